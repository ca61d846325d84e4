"""How well engines over several nodes are predicted by a fit that saw no run of the party which measured them.

    python benchmarks/nodes.py RUNS.csv [--write FILE.md]

RUNS.csv holds the runs that we ship the fit of. Below them stand published figures that are in no fit: a pair of runs
with and without ranks that share the tokens of the cache (DCP), and Kimi-K2 on 16 GPUs, for which nobody stated how the
server was launched. These are predicted with each launch that its page names. They chose nothing.
"""

import argparse
import datetime
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from fit.leave_out import LEFT_OUT, LeaveOut, case_under, held_out, leave_out_of
from planner.engine import EngineArgs, parse_version
from planner.evidence.evaluation import figures_in_columns, resent, simulate
from planner.evidence.runs import MeasuredRun, read_runs
from planner.hardware import load_profile
from planner.model import resolve_model
from planner.planning import Prediction
from planner.planning.deployment import resolve_deployment
from planner.workload import Load

SHOWN = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms")


@dataclass(frozen=True)
class Published:
    """A published run that is in no fit."""

    what: str
    model: str
    gpu: str
    version: str
    launches: Mapping[str, EngineArgs]  #: by name
    workload: Load
    measured: Mapping[str, float]
    source: str


_K2 = Load(8000, 1000, 16, request_rate=10000.0)
_UNKNOWN = {
    "TP 8 + PP 2": EngineArgs(tensor_parallel_size=8, pipeline_parallel_size=2),
    "TP 16": EngineArgs(tensor_parallel_size=16),
    "DP 16 + EP": EngineArgs(data_parallel_size=16, enable_expert_parallel=True),
    "TP 8 + PP 2, eager": EngineArgs(tensor_parallel_size=8, pipeline_parallel_size=2, enforce_eager=True),
}
PUBLISHED = (
    Published(
        "Kimi-K2-Thinking, 8 x H200, TP 8", "moonshotai/Kimi-K2-Thinking", "h200-sxm", "0.11.1",
        {"TP 8": EngineArgs(tensor_parallel_size=8)}, Load(8000, 390, 1000, request_rate=100.0),
        {"request_throughput": 1.25, "output_throughput": 485.78},
        "recipes of vLLM, moonshotai/Kimi-K2-Think.md@0d218d1; answers end by themselves, on average after 390 tokens",
    ),
    Published(
        "the same with DCP 8", "moonshotai/Kimi-K2-Thinking", "h200-sxm", "0.11.1",
        {"TP 8, DCP 8": EngineArgs(tensor_parallel_size=8, decode_context_parallel_size=8)},
        Load(8000, 441, 1000, request_rate=100.0), {"request_throughput": 1.57, "output_throughput": 695.13},
        "the same page; after 441 tokens on average",
    ),
    Published(
        "Kimi-K2-Instruct, 16 x H200", "moonshotai/Kimi-K2-Instruct", "h200-sxm", "0.11.0", _UNKNOWN, _K2,
        {"output_throughput": 254.99, "mean_ttft_ms": 4278.46, "mean_tpot_ms": 58.15},
        "recipes of vLLM, moonshotai/Kimi-K2.md@c9bc671; serve command, version and network are not stated",
    ),
    Published(
        "the same after adding -dcp 8", "moonshotai/Kimi-K2-Instruct", "h200-sxm", "0.11.0",
        {
            "TP 8 + PP 2, DCP 8": EngineArgs(
                tensor_parallel_size=8, pipeline_parallel_size=2, decode_context_parallel_size=8
            ),
            "TP 16, DCP 16": EngineArgs(tensor_parallel_size=16, decode_context_parallel_size=16),
        },
        _K2, {"output_throughput": 339.38, "mean_ttft_ms": 2007.87, "mean_tpot_ms": 45.01},
        "the same page; its serve command is TP 8 + PP 2 over Ray, with -dcp 8",
    ),
    Published(
        "Kimi-K2-Instruct, 16 x H800 (as H100), one request at a time", "moonshotai/Kimi-K2-Instruct", "h100-sxm",
        "0.10.2",
        {
            "TP 8 + PP 2": EngineArgs(
                tensor_parallel_size=8, pipeline_parallel_size=2, max_num_seqs=1, max_model_len=2048,
                max_num_batched_tokens=1024, kv_cache_dtype="fp8",
            )
        },
        Load(1000, 512, 8, request_rate=1.0),
        {"output_throughput": 30.84, "mean_tpot_ms": 30.78, "median_itl_ms": 22.37},
        "the same page, with its whole serve command",
    ),
)  # fmt: skip


def over_nodes(without: LeaveOut, runs: Mapping[str, MeasuredRun]) -> Iterator[list[str]]:
    """A row for each figure of each run over several nodes, by the fit that did not see its source."""
    observed = without.observed
    sources = defaultdict(list)
    for number, one in enumerate(observed):
        sources[LEFT_OUT["source"](one)].append(number)
    sent = resent(runs.values())
    for source, numbers in sources.items():
        far = [number for number in numbers if observed[number].covariates["nodes"]]
        if not far:
            continue
        fits = held_out(without, numbers)
        for number in far:
            run = runs[observed[number].run_id]
            case = case_under(fits, run, resent=run.run_id in sent)
            prediction = simulate(case)
            predicted = figures_in_columns(case, prediction)
            name = f"{source}, {run.model}, TP {run.tensor_parallel_size} + PP {run.pipeline_parallel_size}"
            for key in SHOWN:
                if key in run.metrics and key in predicted:
                    factors = prediction.uncertainty.factors(key) or (1.0, 1.0)
                    yield [
                        f"{name}, {run.max_concurrency:g} in flight",
                        *_cells(key, predicted[key], run.metrics, factors),
                    ]


def published(run: Published) -> Iterator[list[str]]:
    """A row for each figure, under each launch."""
    model, profile = resolve_model(run.model, network=False).model, load_profile(run.gpu)
    for launch, args in run.launches.items():
        deployment = resolve_deployment(model, profile, args, parse_version(run.version))
        prediction = Prediction.of(deployment, run.workload)
        for key in run.measured:
            factors = prediction.uncertainty.factors(key) or (1.0, 1.0)
            yield [f"{run.what}: {launch}", *_cells(key, prediction.figures[key], run.measured, factors)]


def _cells(key: str, predicted: float, measured: Mapping[str, float], factors: tuple[float, float]) -> list[str]:
    low, high = (predicted * factor for factor in factors)
    inside = "yes" if low <= measured[key] <= high else "no"
    return [key, f"{measured[key]:,.4g}", f"{predicted:,.4g}", f"{predicted / measured[key]:.2f}", inside]


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| | figure | measured | predicted | ratio | inside 90 % |"
    yield "| --- | --- | ---: | ---: | ---: | --- |"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def report(path: Path) -> str:
    """The page."""
    runs = {run.run_id: run for run in read_runs(path)}
    without, _ = leave_out_of((run for run in runs.values() if run.bench != "latency"), processes=2)
    far = list(over_nodes(without, runs))
    others = list(chain.from_iterable(map(published, PUBLISHED)))
    lines = [
        "# Engines over several nodes",
        "",
        f"{datetime.date.today()}; `python benchmarks/nodes.py hardware/calibration/runs.csv`.",
        "",
        "## By a fit that saw no run of the same source",
        "",
        "The deviations that engines over nodes have besides (`hardware/calibration/structure.toml`) were chosen with "
        "these errors in view: whether figures lie inside says little, the ratios do not hang on it.",
        "",
        *_table(far),
        "",
        "## Published runs that are in no fit",
        "",
        *_table(others),
        "",
        *(f"- {run.what}: {run.source}" for run in PUBLISHED),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    asked: Any = parser.parse_args()
    text = report(asked.runs)
    print(text)
    if asked.write:
        asked.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
