"""CPU seconds of what users wait for, as ratios to a fixed numpy workload in the same run.

    python benchmarks/speed.py [RUNS.csv]

Writes ``benchmarks/results/speed.md``. Machines differ and are shared: compare the ratios. ``RUNS.csv`` adds the time
of ``planner evaluate`` on it.
"""

from __future__ import annotations

import datetime
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from planner.engine.config import EngineArgs
from planner.engine.images import default_version
from planner.hardware import load_profile
from planner.model.resolve import load_model
from planner.predict import deploy
from planner.scheduler import replay
from planner.workload import Workload

RESULT = Path(__file__).parent / "results" / "speed.md"
REPEATS = 5


YARDSTICK = """
import numpy as np
matrix = np.random.default_rng(0).random((400, 400))
for _ in range(200):
    matrix = matrix @ matrix
    matrix /= matrix.max()
"""


def yardstick() -> None:
    """Two hundred products of 400 x 400 matrices on one thread, in a process of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", YARDSTICK], check=True, env=environment)


def replay_ten_thousand() -> None:
    """10,000 requests of 1,024 + 1,024 tokens at a concurrency of 512, on one B200."""
    model, profile = load_model("nvidia/Llama-3.1-8B-Instruct-FP8").model, load_profile("b200")
    args = EngineArgs(max_model_len=2048, max_num_seqs=512)
    deployment = deploy(model, profile, args, default_version(profile))
    load = Workload(1024, 1024, 10_000, max_concurrency=512)
    replay(deployment.timer, load, deployment.limits(2048))


def command(*words: str) -> Callable[[], None]:
    """A command line of the planner in a process of its own."""

    def run() -> None:
        subprocess.run([sys.executable, "-m", "planner", *words], check=True, capture_output=True)

    return run


def cpu_s(work: Callable[[], None]) -> float:
    """CPU seconds of this process and its children that ``work`` takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.process_time()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.process_time() - start_s + children_s


def main() -> None:
    """Measure in turn, print and record."""
    serve = (
        "predict", "serve", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--max-concurrency", "64",
        "--num-prompts", "640", "--max-model-len", "8192",
    )  # fmt: skip
    targets = ("recommend", "--gpu", "all", "--ttft", "2000", "--tpot", "100", "--request-rate", "20")
    works: dict[str, tuple[Callable[[], None], str]] = {
        "numpy workload": (yardstick, ""),
        "replay of 10,000 requests at 512": (replay_ten_thousand, "1 s"),
        "predict serve, from cold": (command(*serve), "1.5 s"),
        "recommend, defaults": (command("recommend"), "5 s"),
        "recommend, targets, all GPUs": (command(*targets), "10 s"),
    }
    if len(sys.argv) > 1:
        works[f"evaluate, {len(Path(sys.argv[1]).read_text().splitlines()) - 1} rows"] = (
            command("evaluate", sys.argv[1]),
            "90 s",
        )
    taken: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(REPEATS):
        for name, (work, _) in works.items():
            if not name.startswith("evaluate") or round_number == 0:
                taken[name].append(cpu_s(work))
    yard_s = statistics.median(taken["numpy workload"])
    lines = [
        "# Speed",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} CPUs; "
        f"median of {REPEATS} rounds (evaluate: one). Written by `benchmarks/speed.py`.",
        "",
        "| work | CPU s | x numpy workload | target |",
        "|---|--:|--:|--:|",
    ]
    for name, (_, target) in works.items():
        median_s = statistics.median(taken[name])
        lines.append(f"| {name} | {median_s:.2f} | {median_s / yard_s:.2f} | {target} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
