"""``planner tune`` on a real vLLM: two settings of the small model on the CPU, with a break between them.

Which of them is faster is for the machine to say. What is asserted is that each is measured once by the emitted
scripts, that the best is the one that was measured as the best, and that no server is left.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from loop import LOAD, Loop, make_model, recommend_words, step

GOAL = "mean_e2el_ms"  #: of ``min-latency``


LIMIT_MS = 60_000  #: of the target: the model answers within seconds


def tune(loop: Loop, runs: int) -> dict[str, Any]:
    """The answer after so many runs."""
    said = loop.run(
        [sys.executable, "-m", "planner", "tune", str(loop.plan), "--runs", str(runs), "--format", "json"], (0, 1)
    )
    found: dict[str, Any] = json.loads(said[: said.rindex("\n}") + 2])
    return found


def results(loop: Loop) -> dict[str, int]:
    """Every result below the plan, and when it was written."""
    return {str(path): path.stat().st_mtime_ns for path in loop.plan.rglob("serve-*.json")}


def serves(folder: Path) -> bool:
    """Whether the server of a plan's folder is up."""
    try:
        process = int((folder / "logs" / "server.pid").read_text())
        return "vllm" in Path(f"/proc/{process}/cmdline").read_text().lower()
    except (OSError, ValueError):
        return False


def main(venv: Path, folder: Path) -> int:
    """0 when two settings are measured, each once."""
    folder.mkdir(parents=True, exist_ok=True)
    loop = Loop(venv, folder)
    with step("model with random weights"):
        make_model(loop)
    shutil.rmtree(loop.plan, ignore_errors=True)
    loop.planner(*recommend_words(loop, loop.plan))
    with step("tune, one run"):
        first = tune(loop, 1)
    assert first["runs"] == 1 and first["best"] == str(loop.plan), "the plan itself is first"
    measured = results(loop)
    assert len(measured) == 1 and not serves(loop.plan)
    assert len(first["settings"]) >= 2, "another token budget is a setting of its own"
    with step("tune on, to two runs"):
        second = tune(loop, 2)
    assert second["runs"] == 2, second
    assert measured.items() <= results(loop).items() and len(results(loop)) == 2, "nothing is measured twice"
    rows = [row for row in second["settings"] if row[GOAL] is not None]
    assert len(rows) == 2 and second["best"] == min(rows, key=lambda row: row[GOAL])["folder"]
    assert not any(serves(Path(row["folder"])) for row in second["settings"])
    result = json.loads(next(Path(second["best"]).glob("results/serve-*.json")).read_text())
    assert result["completed"] == LOAD["num_prompts"]
    assert tune(loop, 2) == second, "the budget is spent: nothing runs"
    print(loop.run([sys.executable, "-m", "planner", "tune", str(loop.plan), "--runs", "2"], (0, 1)))
    print("tune: two settings measured, each once")
    tune_under_a_target(loop)
    return 0


def tune_under_a_target(loop: Loop) -> None:
    """What is said of the target is what the benchmark measured."""
    shutil.rmtree(loop.plan)
    loop.planner(*recommend_words(loop, loop.plan), "--e2el", LIMIT_MS, "--percentile", "mean", "--confidence", "0.5")
    with step("tune under a target, one run"):
        found = tune(loop, 1)
    assert [one["limit_ms"] for one in found["targets"]] == [LIMIT_MS]
    (path,) = loop.plan.glob("results/serve-*.json")
    measured_ms = json.loads(path.read_text())[GOAL]
    assert (found["best"] == str(loop.plan)) == (measured_ms <= LIMIT_MS), f"{measured_ms} ms measured"
    print(f"tune: {measured_ms:.0f} ms measured under a target of {LIMIT_MS:,} ms")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
