"""Real parsers, and a real configuration builder, judge what the planner writes.

- the golden plans, each by the parsers of its own version
- a pairwise table of GPU x model x precision x goal x version, likewise
- every command of every workflow, for every model of its document and at the versions of the documents, 0.6.3 too
- what ``check`` suggests for every sixteenth published line of a known model, likewise
- a pairwise table with the two versions whose configurations are built, likewise, and through
  ``EngineArgs.create_engine_config`` of that version: the settings that vLLM ends with must be the plan's
"""

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

import plan_matrix  # noqa: E402
from pairwise import Row, pairwise  # noqa: E402
from script_plans import GOLDEN  # noqa: E402

from planner import check_command  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.model import find_entry  # noqa: E402
from planner.output.workflows.documents import list_workflows  # noqa: E402
from planner.output.workflows.offline import offline_points  # noqa: E402
from planner.output.workflows.subject import Choice, Subject  # noqa: E402
from planner.planning import defaults  # noqa: E402
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
    yield from pairwise({**plan_matrix.FACTORS, "version": BUILT})


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
                found = Subject(workflow, choice)
                points = offline_points(found) if workflow.offline else ()
            except PlannerError:
                continue
            for argv in (found.plan.serve_argv, found.plan.bench_argv, *(point.argv for point in points)):
                yield f"{name} {found.plan.model}", str(found.version), list(argv)


def suggestions() -> Iterator[tuple[str, str, list[str]]]:
    """Name, version and words of what ``check`` suggests for published lines."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # a draft that the catalog lacks stays in the line
    table = (ROOT / "tests" / "engine" / "published_lines.csv").read_text(encoding="utf-8").splitlines()
    for row in [row for row in csv.DictReader(table) if find_entry(row["model"])][::16]:
        answer = check_command(f"{row['env']} vllm serve {row['model']} {row['options']}", row["gpu"]).to_dict()
        for plan in answer["better"]:
            yield f"check {row['model']} {row['gpu']}", answer["engine_version"], shlex.split(plan["command"])


@dataclass(frozen=True)
class Job:
    """Data for a script of ``tests/real_parsers``, and the path of the vLLM that answers."""

    script: str
    data: Sequence[Any]
    path: tuple[Path, ...]


@dataclass(frozen=True)
class Verdict:
    """How much is wrong, and the lines that say so."""

    wrong: int
    lines: list[str]


#: A job, and what its answers mean.
Question = tuple[Job, Callable[[list[Any]], Verdict]]


def ask_parsers(version: str, named: Mapping[tuple[str, ...], str], trees: Path) -> Question:
    """Ask the parser of a version which of the commands, here with their names, it refuses."""

    def judge(verdicts: list[Any]) -> Verdict:
        judged = [(name, argv, said) for (argv, name), said in zip(named.items(), verdicts, strict=True)
                  if not (said or "").startswith("not judged")]  # fmt: skip
        wrong = [one for one in judged if one[2]]
        lines = [f"  {name}: {' '.join(argv)}\n    -> {said}" for name, argv, said in wrong]
        accepted = f"{len(judged) - len(wrong)} of {len(judged)} commands accepted by its parsers"
        return Verdict(len(wrong), [*lines, f"vLLM {version}: {accepted}"])

    return Job("parse_commands.py", [*named], paths_of(version, trees)), judge


def in_vllm(jobs: Sequence[Job], python: Path) -> list[Any]:
    """The answers to ``jobs`` in vLLM's interpreter."""
    quiet = {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "CRITICAL", "VLLM_TARGET_DEVICE": "cpu",
    }  # fmt: skip
    done = subprocess.run(
        [python, ROOT / "tests" / "real_parsers" / "forked.py"],
        input=json.dumps([asdict(job) for job in jobs], default=str), env={**os.environ, **quiet},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"forked.py with {python}: {done.stderr.strip()[-2000:]}")
    found: list[Any] = json.loads(done.stdout)
    return found


def paths_of(version: str, trees: Path) -> tuple[Path, ...]:
    """The tree of a version and its libraries; nothing for the one that is installed, or newer."""
    trees_of = {**LIBRARIES, **OF_DOCUMENTS}
    if version not in trees_of:
        return ()
    libraries = trees_of[version]
    return (trees / f"vllm-{version}", *((trees / f"libraries-{libraries}",) if libraries else ()))


def ask_configs(version: str, cases: Sequence[Case], trees: Path) -> Question:
    """Ask a version for the settings that it would run its plans with."""
    jobs, judged = [], []
    for case in cases:
        entry = find_entry(case.plan.model)
        if case.plan.engine_version == version and entry is not None:
            plan = case.plan
            jobs.append({"argv": plan.serve_argv, "env": plan.env, "config": entry.config, "platform": plan.platform})
            judged.append(case)

    def judge(verdicts: list[Any]) -> Verdict:
        lines, left_out = list[str](), Counter[str]()
        for case, verdict in zip(judged, verdicts, strict=True):
            differing = [
                f"{name} is {value}, planned {getattr(case.plan, name)}"
                for name, value in verdict.get("settings", {}).items()
                if value != getattr(case.plan, name)
            ]
            left_out[verdict.get("not_judged", "")] += "not_judged" in verdict
            if differing or "error" in verdict:
                lines.append(f"  {case.name}: {case.plan.model}\n    -> {'; '.join(differing) or verdict['error']}")
        wrong, skipped = len(lines), sum(left_out.values())
        lines.append(
            f"vLLM {version}: of {len(judged)} configurations built from config.json, "
            f"{len(judged) - wrong - skipped} have exactly the plan's settings, {wrong} differ, "
            f"{skipped} need a GPU build to judge"
        )
        lines += [f"  {times} x {reason[:160]}" for reason, times in left_out.items() if times]
        return Verdict(wrong, lines)

    return Job("build_configs.py", jobs, paths_of(version, trees)), judge


def main(venv: Path, trees: Path) -> int:
    python, start_s = venv / "bin" / "python", time.monotonic()
    defaults.PROMPTS_PER_SLOT = 2  # parsers judge words: the plans are those of longer replays
    none: Counter[str] = Counter()
    cases = list({case.plan.digest: case for case in (*golden(), *planned(none))}.values())
    print(f"{len(cases)} plans, {sum(none.values())} combinations without one ({time.monotonic() - start_s:.0f} s)")
    for reason, times in none.most_common():
        print(f"  {times} x {reason}")
    of_plans = (
        (case.name, case.plan.engine_version, list(argv))
        for case in cases
        for argv in (case.plan.serve_argv, case.plan.bench_argv)
    )
    named: dict[str, dict[tuple[str, ...], str]] = {}  # by version, each command once
    for name, version, argv in (*of_plans, *workflow_commands(), *suggestions()):
        named.setdefault(INSTALLED if version == NEWER else version, {}).setdefault(tuple(argv), name)
    questions = [ask_configs(version, cases, trees) for version in BUILT]
    for version in sorted(named):
        if version in {**LIBRARIES, **OF_DOCUMENTS, INSTALLED: ""}:
            questions.append(ask_parsers(version, named[version], trees))
        else:
            print(f"vLLM {version}: {len(named[version])} commands, no parser at hand")
    wrong = 0
    for (_, judge), answers in zip(questions, in_vllm([job for job, _ in questions], python), strict=True):
        verdict = judge(answers)
        print(*verdict.lines, sep="\n", flush=True)
        wrong += verdict.wrong
    print(f"commands: {'all as planned' if not wrong else f'{wrong} wrong'} ({time.monotonic() - start_s:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
