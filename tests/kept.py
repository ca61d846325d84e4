"""Files that are compared word by word with ``golden``: one whole set of each kind, further sets as added lines.

The header of a plan's scripts is kept once for each set, and the plan's digest as ``DIGEST``. A set that differs from
another is kept as the lines that it has in place of ranges of the other. ``python tests/kept.py`` writes all anew; read
what changed.
"""

import re
import shutil
from collections.abc import Mapping
from difflib import SequenceMatcher, unified_diff
from pathlib import Path

from deployed import files_of
from script_plans import CLASSES, GOLDEN

from planner.output.scripts.emission import render_scripts

PLANS = {**GOLDEN, "mi355x-classes": CLASSES}
FOLDER = Path(__file__).parent / "golden"
_SINGLE = ("compose", "compose-x2", "kubernetes", "slurm")
_SEVERAL = ("lws", "slurm")
_HEADER = re.compile(r"(?m)^#\n# .* on \d+ x .*\n(?:#.*\n)*?# +output .*\n")
#: A case, and the case that it is kept as a difference from; empty: kept whole.
CASES = {
    "mi355x": "",
    "b200-x2": "mi355x",
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
    """The files of a case as they are kept; ``plan.json`` only where the case is kept whole."""
    files = dict(files_of(case.removeprefix("deploy/")) if case.startswith("deploy/") else render_scripts(PLANS[case]))
    digests = {one[1] for text in files.values() for one in re.finditer(r"(?m)plan ([0-9a-f]{12});", text)}
    headers = []
    for name, text in files.items():
        for digest in digests:
            text = text.replace(digest, "DIGEST")
        if header := _HEADER.search(text):
            headers.append(header[0])
            text = text.replace(header[0], "# (header)\n", 1)
        files[name] = text
    (shared,) = set(headers)
    return {name: text for name, text in files.items() if name != "plan.json" or not CASES[case]} | {"header": shared}


def additions(base: Mapping[str, str], files: Mapping[str, str]) -> str:
    """Lines of ``files`` that ``base`` lacks, each run below the range of lines of ``base`` that it replaces."""
    lines: list[str] = []
    for name in sorted({*base, *files} - {"plan.json"}):
        old, new = (found.get(name, "").splitlines(keepends=True) for found in (base, files))
        changed = [one for one in SequenceMatcher(None, old, new, False).get_opcodes() if one[0] != "equal"]
        lines += [f"--- {name}\n"] * bool(changed)
        for _, start, end, first, last in changed:
            lines += [f"@@ {start + 1}-{end}\n", *(f"+{line}" for line in new[first:last])]
    return "".join(lines)


def change_of(case: str) -> str:
    """What changed in a case since it was written, as a diff."""
    now = {"diff": additions(rendered(CASES[case]), rendered(case))} if CASES[case] else rendered(case)
    folder = FOLDER / case
    kept = {"diff": folder.with_name(f"{folder.name}.diff")} if CASES[case] else {p.name: p for p in folder.iterdir()}
    lines: list[str] = []
    for name in sorted({*kept, *now}):
        was = kept[name].read_text() if name in kept else ""
        lines += unified_diff(was.splitlines(True), now.get(name, "").splitlines(True), name, name, n=0)
    return "".join(lines)


def refresh() -> None:
    """Write every case anew."""
    for folder in FOLDER.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    for case, base in CASES.items():
        files = {f"{case}.diff": additions(rendered(base), rendered(case))} if base else {
            f"{case}/{name}": text for name, text in rendered(case).items()
        }  # fmt: skip
        for name, text in files.items():
            (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(text)
        print(FOLDER / case)


if __name__ == "__main__":
    refresh()
