"""CPU seconds (user and system) of what users wait for on one thread, beside a fixed numpy workload in the same run.

    python benchmarks/speed.py [RUNS.csv]

Writes ``benchmarks/results/speed.md``. Machines differ and are shared: compare the ratios. Commands run from compiled
bytecode, as they do where a package is installed. ``RUNS.csv`` adds the time of ``planner evaluate`` on it.
"""

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
from typing import Any

from planner.engine.published import default_version
from planner.engine.settings import EngineArgs
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.planning.deployment import resolve_deployment
from planner.workload.load import Load

RESULT = Path(__file__).parent / "results" / "speed.md"
REPEATS = 3
#: For commands: one thread, compiled modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
YARDSTICK = """
import numpy as np
matrix = np.random.default_rng(0).random((400, 400))
for _ in range(200):
    matrix = matrix @ matrix
    matrix /= matrix.max()
"""  # products of 400 x 400 matrices


def python(*words: str) -> Callable[[], None]:
    """A process of its own."""

    def run() -> None:
        done = subprocess.run([sys.executable, *words], capture_output=True, env=ENVIRONMENT, check=False)
        if done.returncode not in (0, 1):  # 1 is the honest no
            raise SystemExit(f"{' '.join(words)}: {done.stderr.decode()}")

    return run


def command(line: str) -> Callable[[], None]:
    """A command line of the planner in a process of its own."""
    return python("-m", "planner", *line.split())


def replayed(model: str, gpu: str, range_ratio: float = 0.0, **settings: Any) -> Callable[[], None]:
    """10,000 requests of 1,024 + 1,024 tokens at a concurrency of 512, client included."""
    profile = load_profile(gpu)
    args = EngineArgs(max_model_len=4096, max_num_seqs=512, **settings)
    deployment = resolve_deployment(resolve_model(model).model, profile, args, default_version(profile))
    load = Load(1024, 1024, 10_000, max_concurrency=512, range_ratio=range_ratio)
    deployment.replay(load)  # what is worked out once is not counted

    def run() -> None:
        deployment.replay(load)

    return run


def cpu_s(work: Callable[[], None]) -> float:
    """CPU seconds of this process and its children that ``work`` takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_s = time.process_time()
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.process_time() - start_s + children_s


def works() -> dict[str, tuple[Callable[[], None], str]]:
    """What is measured, with its target."""
    llama, moe = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3"
    ranks = {"data_parallel_size": 8, "enable_expert_parallel": True}
    slos = "--gpu all --ttft 2000 --tpot 100"
    serve = "--max-concurrency 64 --num-prompts 640 --max-model-len 8192"
    return {
        "numpy workload": (python("-c", YARDSTICK), ""),
        "import typer, pydantic": (python("-c", "import typer, pydantic"), ""),
        "fit, fits": (command(f"fit {llama} --gpu h100"), ""),
        "fit, does not fit": (command("fit meta-llama/Llama-3.3-70B-Instruct --gpu h100"), "3 x import"),
        "predict serve, from cold": (command(f"predict serve {llama} --gpu h100 {serve}"), "1.5 s"),
        "replay of 10,000 requests at 512": (replayed("nvidia/Llama-3.1-8B-Instruct-FP8", "b200"), "1 s"),
        "the same, lengths +-10 %": (replayed("nvidia/Llama-3.1-8B-Instruct-FP8", "b200", 0.1), "1 s"),
        "replay, DP 8 in lockstep": (replayed(moe, "b200", **ranks), "1 s"),
        "the same in lockstep, lengths +-10 %": (replayed(moe, "b200", 0.1, **ranks), "1 s"),
        "recommend, defaults": (command("recommend"), "5 s"),
        "targets, all GPUs, Llama-3.1-8B at 20/s": (command(f"recommend {llama} {slos} --request-rate 20"), "10 s"),
        "targets, all GPUs, DeepSeek-V3 at 20/s": (command(f"recommend {moe} {slos} --request-rate 20"), "10 s"),
        "targets, all GPUs, DeepSeek-V3, no load": (command(f"recommend {moe} {slos}"), "10 s"),
        "targets, all GPUs, DeepSeek-V2-Lite, no load": (
            command(f"recommend deepseek-ai/DeepSeek-V2-Lite {slos}"),
            "10 s",
        ),
        "targets, all GPUs, Qwen3-30B-A3B at 50/s": (
            command("recommend Qwen/Qwen3-30B-A3B --gpu all --ttft 2000 --tpot 50 --request-rate 50"),
            "10 s",
        ),
        "fleet, all GPUs, chat": (command(f"fleet {llama} --gpu all --workload chat --request-rate 20"), "10 s"),
    }


def main() -> None:
    """Measure in turn, print and record."""
    measured = works()
    if len(sys.argv) > 1:
        rows = len(Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()) - 1
        measured[f"evaluate, {rows} rows"] = (python("-m", "planner", "evaluate", sys.argv[1]), "90 s")
    taken: dict[str, list[float]] = {name: [] for name in measured}
    for round_number in range(REPEATS):
        for name, (work, _) in measured.items():
            if not name.startswith("evaluate") or round_number == 0:
                taken[name].append(cpu_s(work))
    yard_s = statistics.median(taken["numpy workload"])
    lines = [
        "# Speed",
        "",
        f"{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} CPUs shared with other work; "
        f"median of {REPEATS} rounds (evaluate: one). Written by `benchmarks/speed.py`.",
        "",
        "| work | CPU s | x numpy workload | target |",
        "|---|--:|--:|--:|",
    ]
    for name, (_, target) in measured.items():
        median_s = statistics.median(taken[name])
        lines.append(f"| {name} | {median_s:.2f} | {median_s / yard_s:.2f} | {target} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
