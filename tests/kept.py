"""Files that are kept word by word below ``golden``: one whole set of each kind, the others as what differs from it.

``python tests/kept.py`` writes them anew; read what changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

from deployed import files_of
from script_plans import CLASSES, GOLDEN

from planner.output.scripts.emission import render_scripts
from planner.output.scripts.folder import write_folder

PLANS = {**GOLDEN, "mi355x-classes": CLASSES}
FOLDER = Path(__file__).parent / "golden"
_SINGLE = ("compose", "compose-x2", "kubernetes", "kserve", "llm-d", "slurm")
_SEVERAL = ("lws", "ray", "slurm")
#: A case, and the case that it is kept as a difference from; empty: kept whole.
CASES = {
    "mi355x": "",
    "b200-x2": "",
    "mi300x-cpx-nps4": "mi355x",
    "h100-mig": "b200-x2",
    "mi355x-classes": "mi355x",
    **{f"deploy/mi355x/{name}": "" for name in _SINGLE},
    "deploy/mi355x/compose-x2": "deploy/mi355x/compose",
    **{f"deploy/b200-x2/{name}": f"deploy/mi355x/{name}" for name in _SINGLE},
    **{f"deploy/mi355x-x16/{name}": "" for name in _SEVERAL},
    "deploy/mi355x-x16/slurm": "deploy/mi355x/slurm",
    **{f"deploy/b200-x16/{name}": f"deploy/mi355x-x16/{name}" for name in _SEVERAL},
    **{f"deploy/b200-dp16/{name}": f"deploy/b200-x16/{name}" for name in ("lws", "slurm")},
}


def rendered(case: str) -> dict[str, str]:
    """The files of a case as they are made now."""
    return files_of(case.removeprefix("deploy/")) if case.startswith("deploy/") else render_scripts(PLANS[case])


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """A unified diff of two sets of files, without lines around the changes; empty where they are equal."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        texts = (found.get(name, "").splitlines(keepends=True) for found in (old, new))
        lines += unified_diff(*texts, name, name, n=0)
    return "".join(lines)


def change_of(case: str) -> str:
    """What changed in a case since it was written: a diff, or a diff of diffs."""
    files, base = rendered(case), CASES[case]
    if base:
        kept = (FOLDER / f"{case}.diff").read_text()
        return differences({"diff": kept}, {"diff": differences(rendered(base), files)})
    return differences({path.name: path.read_text() for path in (FOLDER / case).iterdir()}, files)


def refresh() -> None:
    """Write every case anew."""
    for folder in FOLDER.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    for case, base in CASES.items():
        if base:
            path = FOLDER / f"{case}.diff"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(differences(rendered(base), rendered(case)))
        else:
            write_folder(FOLDER / case, rendered(case), force=False)
        print(FOLDER / case)


if __name__ == "__main__":
    refresh()
