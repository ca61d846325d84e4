"""Real parsers, and a real configuration builder, judge what the planner writes.

- the golden plans, each by the parsers of its own version
- a pairwise table of GPU x model x precision x goal x version, likewise
- every command of every workflow, for every model of its document and at the versions of the documents, 0.6.3 too
- every GPU x model x precision for two versions, likewise, and through ``EngineArgs.create_engine_config`` of that
  version: the settings that vLLM ends with must be the plan's
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

import plan_matrix  # noqa: E402
from pairwise import Row, pairwise  # noqa: E402
from script_plans import GOLDEN  # noqa: E402

from planner.errors import PlannerError  # noqa: E402
from planner.model import find_entry  # noqa: E402
from planner.output.workflows.catalog import list_workflows  # noqa: E402
from planner.output.workflows.offline import offline_points  # noqa: E402
from planner.output.workflows.subject import Choice, subject  # noqa: E402
from planner.planning.plan import Plan  # noqa: E402

INSTALLED = "0.32.0"
#: Versions whose parsers judge, and the folder of libraries that their trees import (none: the environment's); the
#: options of 0.33.0 are judged by the installed parser, which knows all of them.
LIBRARIES = {
    "0.8.5": "0.9", "0.9.1": "0.9", "0.10.2": "0.14", "0.11.0": "0.14", "0.14.0": "0.14", "0.27.1": "",
}  # fmt: skip
BUILT = ("0.27.1", INSTALLED)  #: whose configurations are built as well
NEWER = "0.33.0"
FACTORS = {**plan_matrix.FACTORS, "version": (*LIBRARIES, INSTALLED, NEWER)}


@dataclass(frozen=True)
class Case:
    """A plan, and where it comes from."""

    name: str
    plan: Plan


def golden() -> Iterator[Case]:
    for name, emission in GOLDEN.items():
        yield Case(f"golden {name}", emission.file.plan)


def rows() -> Iterator[Row]:
    """What is planned."""
    yield from pairwise(FACTORS)
    goals = cycle(FACTORS["goal"])
    for version, gpu, model, precision in product(BUILT, FACTORS["gpu"], FACTORS["model"], FACTORS["precision"]):
        yield {"gpu": gpu, "model": model, "precision": precision, "goal": next(goals), "version": version}


def planned(none: Counter[str]) -> Iterator[Case]:
    """Plans of ``rows``; why there is none is counted in ``none``."""
    for row in rows():
        found = plan_matrix.planned(row, lambda reason: none.update([reason]))
        if found is not None:
            yield Case(" ".join(row.values()), found[0])


#: Versions of the documents' commands, beside those above, and the libraries that their trees import.
OF_DOCUMENTS = {"0.6.4": "0.9", "0.7.3": "0.9", "0.10.1": "0.14"}


def workflow_commands() -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and words of every command of vLLM that the workflows render."""
    for name, workflow in list_workflows().items():
        if "compare.sh" in workflow.scripts:
            continue
        choices = [Choice(model=model) for model in workflow.models]
        choices += [Choice(gpu=gpu) for gpu in workflow.gpus[1:]]
        choices += [Choice(engine_version=version) for version in ("0.6.3", "0.27.1")]
        for choice in choices:
            try:
                found = subject(workflow, choice)
                points = offline_points(found) if workflow.offline else ()
            except PlannerError:
                continue
            for argv in (found.plan.serve_argv, found.plan.bench_argv, *(point.argv for point in points)):
                yield f"{name} {found.plan.model}", str(found.version), list(argv)


def judge_workflows(python: Path, trees: Path) -> int:
    """Commands of workflows that the parser of their version refuses."""
    found, refused = list(dict.fromkeys((n, v, tuple(a)) for n, v, a in workflow_commands())), 0
    for version in sorted({version for _, version, _ in found}):
        own = [(name, list(argv)) for name, other, argv in found if other == version]
        if version not in {**LIBRARIES, **OF_DOCUMENTS, INSTALLED: "", NEWER: ""}:
            print(f"vLLM {version}: {len(own)} commands of workflows, no parser at hand")
            continue
        verdicts = in_vllm("parse_commands.py", [argv for _, argv in own], python, *paths_of(version, trees))
        judged = [(name, argv, said) for (name, argv), said in zip(own, verdicts, strict=True)
                  if not (said or "").startswith("not judged")]  # fmt: skip
        wrong = [one for one in judged if one[2]]
        for name, argv, said in wrong:
            print(f"  {name}: {' '.join(argv)}\n    -> {said}")
        print(
            f"vLLM {version}: {len(judged) - len(wrong)} of {len(judged)} commands of workflows accepted by its parsers"
        )
        refused += len(wrong)
    return refused


def in_vllm(script: str, data: Any, python: Path, *path: Path) -> Any:
    """What a script of ``tests/real_parsers`` answers in vLLM's interpreter, with ``path`` first on its path."""
    quiet = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(map(str, path)),
    }  # fmt: skip
    done = subprocess.run(
        [python, ROOT / "tests" / "real_parsers" / script],
        input=json.dumps(data), env={**os.environ, **quiet}, cwd=path[0] if path else None,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{script} with {python}, {path}: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout[done.stdout.index("[") :].strip().splitlines()[-1])


def paths_of(version: str, trees: Path) -> tuple[Path, ...]:
    """The tree of a version and its libraries; nothing for the one that is installed, or newer."""
    trees_of = {**LIBRARIES, **OF_DOCUMENTS}
    if version not in trees_of:
        return ()
    libraries = trees_of[version]
    return (trees / f"vllm-{version}", *((trees / f"libraries-{libraries}",) if libraries else ()))


def judge_parsers(cases: Sequence[Case], python: Path, trees: Path) -> int:
    """Commands that a parser refuses, over all versions."""
    refused = 0
    for version in FACTORS["version"]:
        own = [case for case in cases if case.plan.engine_version == version]
        argvs = [list(argv) for case in own for argv in (case.plan.serve_argv, case.plan.bench_argv)]
        names = [case.name for case in own for _ in range(2)]
        verdicts = in_vllm("parse_commands.py", argvs, python, *paths_of(version, trees))
        judged = [v for v in verdicts if not (v or "").startswith("not judged")]
        wrong = [(n, a, v) for n, a, v in zip(names, argvs, verdicts, strict=True) if v and v in judged]
        for name, argv, said in wrong:
            print(f"  {name}: {' '.join(argv)}\n    -> {said}")
        by = f"the parsers of {INSTALLED}" if version == NEWER else "its parsers"
        accepted = len(judged) - len(wrong)
        print(f"vLLM {version}: {len(own)} plans, {accepted} of {len(judged)} commands accepted by {by}")
        refused += len(wrong)
    return refused


def judge_configs(cases: Sequence[Case], version: str, python: Path, trees: Path) -> int:
    """Plans of a version with which vLLM would run other settings than planned."""
    jobs, judged = [], []
    for case in cases:
        entry = find_entry(case.plan.model)
        if case.plan.engine_version == version and entry is not None:
            plan = case.plan
            jobs.append({"argv": plan.serve_argv, "env": plan.env, "config": entry.config, "platform": plan.platform})
            judged.append(case)
    verdicts = in_vllm("build_configs.py", jobs, python, *paths_of(version, trees))
    wrong, left_out = 0, Counter[str]()
    for case, verdict in zip(judged, verdicts, strict=True):
        differing = [
            f"{name} is {value}, planned {getattr(case.plan, name)}"
            for name, value in verdict.get("settings", {}).items()
            if value != getattr(case.plan, name)
        ]
        left_out[verdict.get("not_judged", "")] += "not_judged" in verdict
        if differing or "error" in verdict:
            wrong += 1
            print(f"  {case.name}: {case.plan.model}\n    -> {'; '.join(differing) or verdict['error']}")
    skipped = sum(left_out.values())
    print(
        f"vLLM {version}: of {len(judged)} configurations built from config.json, {len(judged) - wrong - skipped} have "
        f"exactly the plan's settings, {wrong} differ, {skipped} need a GPU build to judge"
    )
    for reason, times in left_out.items():
        if times:
            print(f"  {times} x {reason[:160]}")
    return wrong


def main(venv: Path, trees: Path) -> int:
    python, start_s = venv / "bin" / "python", time.monotonic()
    none: Counter[str] = Counter()
    cases = list({case.plan.digest: case for case in (*golden(), *planned(none))}.values())
    print(f"{len(cases)} plans, {sum(none.values())} combinations without one ({time.monotonic() - start_s:.0f} s)")
    for reason, times in none.most_common():
        print(f"  {times} x {reason}")
    wrong = judge_parsers(cases, python, trees) + judge_workflows(python, trees)
    wrong += sum(judge_configs(cases, version, python, trees) for version in BUILT)
    print(f"commands: {'all as planned' if not wrong else f'{wrong} wrong'} ({time.monotonic() - start_s:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
