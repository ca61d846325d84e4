"""How good the decisions are: predictions choose among measured settings, and the measurements judge the choice.

    python benchmarks/decisions.py RUNS.csv [--write FILE.md]

Runs that share model, GPU type, lengths and engine are one choice: which TP, and which concurrency? For each target of
TPOT that some of them met, the predictions choose the setting with the most output tokens/s per GPU among those that
they say meet the target. Then the measurements judge::

    breaks       the chosen setting's measured TPOT is above the target
    gives away   1 - measured tokens/s per GPU of the choice / that of the best setting that measurably met the target
    no choice    the predictions say that nothing meets the target, though something did

Predictions come from fits that saw no run of the same GPU, model, TP, weight dtype and engine version. Choices are made
by the TPOT that a measurement stays below with each of several confidences, as ``recommend --confidence`` does.
"""

import argparse
import datetime
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import copysign, exp, hypot
from pathlib import Path

import numpy as np

from fit.leave_out import LEFT_OUT, Miss, leave_out_of, replayed_misses
from planner.evidence.runs import MeasuredRun, read_runs
from planner.planning.defaults import CONFIDENCE
from planner.planning.uncertainty import _reach
from planner.timing.fits import load_calibration

TARGETS_MS = (8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150)
#: Probabilities with which the target is to be kept.
CONFIDENCES = (0.5, 0.7, 0.8, 0.9, 0.95)
#: Settings that a choice is between, at least.
LEAST_OPTIONS = 3


@dataclass(frozen=True)
class Option:
    """One setting: what was measured, what was predicted without it. TPOT in ms, tokens/s per GPU."""

    run: MeasuredRun
    tpot_ms: float
    tok_per_s_per_gpu: float
    predicted_tpot_ms: float
    predicted_tok_per_s_per_gpu: float
    tpot_deviation: float  #: standard deviation of its logarithm, without noise
    metric: str  #: of the TPOT

    def tpot_below_ms(self, confidence: float) -> float:
        """What a measurement stays below with that probability."""
        scatter = load_calibration().scatters[self.metric]
        return self.predicted_tpot_ms * exp(
            copysign(_reach(scatter, abs(2 * confidence - 1)), confidence - 0.5)
            * hypot(self.tpot_deviation, scatter.noise)
        )


@dataclass(frozen=True)
class Decision:
    """One target and what was chosen for it."""

    target_ms: float
    chosen: Option | None
    best: Option

    @property
    def breaks(self) -> bool:
        """Whether the choice misses its target."""
        return self.chosen is not None and self.chosen.tpot_ms > self.target_ms

    @property
    def given_away(self) -> float:
        """Share of the best throughput that the choice does not reach; never negative."""
        return max(0.0, 1 - self.chosen.tok_per_s_per_gpu / self.best.tok_per_s_per_gpu) if self.chosen else 1.0


def options(runs: dict[str, MeasuredRun]) -> list[Option]:
    """The runs with a TPOT and a throughput, each predicted by a fit that did not see its group."""
    without, _ = leave_out_of((run for run in runs.values() if run.bench in ("serve", "throughput")), processes=2)
    misses = replayed_misses(without, runs.values(), LEFT_OUT["combination"], processes=2, uncertain=True)
    found: dict[int, dict[str, Miss]] = defaultdict(dict)
    for miss in misses:
        found[miss.run][miss.metric] = miss
    made = (_option(runs[without.observed[number].run_id], of_run) for number, of_run in found.items())
    return [option for option in made if option]


def _option(run: MeasuredRun, misses: dict[str, Miss]) -> Option | None:
    name = next((n for n in ("mean_tpot_ms", "median_tpot_ms") if n in misses), None)
    if name is None or "output_throughput" not in misses or "output_throughput" not in run.metrics:
        return None
    gpus = run.tensor_parallel_size * run.pipeline_parallel_size * run.data_parallel_size
    tpot_ms, rate = run.metrics[name], run.metrics["output_throughput"] / gpus
    predicted_rate = rate * np.exp(misses["output_throughput"].error)
    predicted_ms = tpot_ms * np.exp(misses[name].error)
    return Option(run, tpot_ms, rate, predicted_ms, predicted_rate, misses[name].deviation, name)


def decisions(choices: Sequence[Sequence[Option]], confidence: float) -> Iterator[Decision]:
    """What is chosen to keep each target that some option measurably met and some did not."""
    for group in choices:
        for target_ms in TARGETS_MS:
            meets = [o for o in group if o.tpot_ms <= target_ms]
            if not meets or len(meets) == len(group):
                continue
            best = max(meets, key=lambda o: o.tok_per_s_per_gpu)
            allowed = [o for o in group if o.tpot_below_ms(confidence) <= target_ms]
            chosen = max(allowed, key=lambda o: o.predicted_tok_per_s_per_gpu, default=None)
            yield Decision(target_ms, chosen, best)


def grouped(found: Sequence[Option]) -> list[list[Option]]:
    """Options that share model, GPU type, lengths and engine, where there are several."""
    groups: dict[tuple[object, ...], list[Option]] = defaultdict(list)
    for option in found:
        run = option.run
        lengths = (run.input_len or run.mean_input_len, run.output_len or run.mean_output_len, run.length_distribution)
        groups[run.gpu, run.model, run.engine_build, run.engine_version, *lengths].append(option)
    return [group for group in groups.values() if len(group) >= LEAST_OPTIONS]


def lines(choices: Sequence[Sequence[Option]]) -> Iterator[str]:
    """The table: a way to choose to a line, for stock vLLM, the ATOM build, and both."""
    heads = ("confidence", "engine", "choices", "decisions", "no choice", "breaks", "by, median", "gives away, mean")
    yield f"| {' | '.join(heads)} | 95 % of cases |"
    yield f"| --- | --- |{' ---: |' * 7}"
    engines: dict[str, Callable[[MeasuredRun], bool]] = {
        "all": lambda _: True,
        "stock vLLM": lambda run: run.engine_build == "vllm",
        "ATOM": lambda run: run.engine_build != "vllm",
    }
    for confidence in CONFIDENCES:
        for engine, belongs in engines.items():
            some = [group for group in choices if belongs(group[0].run)]
            yield f"| {confidence:.0%} | {engine} | {len(some)} | {_row(list(decisions(some, confidence)))} |"


def _row(made: Sequence[Decision]) -> str:
    chosen = [d for d in made if d.chosen]
    if not chosen:
        return f"{len(made)} | {len(made)} | - | - | - | -"
    beyond = [d.chosen.tpot_ms / d.target_ms - 1 for d in chosen if d.breaks and d.chosen]
    given = [d.given_away for d in chosen if not d.breaks]
    return (
        f"{len(made)} | {1 - len(chosen) / len(made):.1%} | {len(beyond) / len(chosen):.1%} | "
        f"{np.median(beyond or [0]):.1%} | {np.mean(given):.1%} | {np.quantile(given, 0.95):.1%}"
    )


def worst(choices: Sequence[Sequence[Option]], count: int = 8) -> Iterator[str]:
    """The breaks that are farthest off, chosen at the default confidence."""
    broken = [d for d in decisions(choices, CONFIDENCE) if d.breaks and d.chosen]
    for decision in sorted(broken, key=lambda d: -d.chosen.tpot_ms / d.target_ms if d.chosen else 0)[:count]:
        option = decision.chosen
        if option is None:
            continue
        run = option.run
        yield (
            f"{run.gpu} {run.model} TP {run.tensor_parallel_size} concurrency {run.max_concurrency} vLLM "
            f"{run.engine_version}: target {decision.target_ms:g} ms, measured {option.tpot_ms:.1f}, "
            f"predicted {option.predicted_tpot_ms:.1f} (up to {option.tpot_below_ms(CONFIDENCE):.1f})"
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    runs = {run.run_id: run for run in read_runs(arguments.runs)}
    choices = grouped(options(runs))
    text = "\n".join(
        (
            "# Decisions\n",
            f"{datetime.date.today()}; `python benchmarks/decisions.py hardware/calibration/runs.csv`. "
            f"{len(choices)} choices of at least {LEAST_OPTIONS} measured settings each; TPOT targets "
            f"{', '.join(map(str, TARGETS_MS))} ms, where some setting met the target and some did not. Goal: breaks "
            "at most 5 %, gives away at most 8 % (mean) and 30 % (95 % of cases).\n",
            *lines(choices),
            "\nThe breaks that are farthest off:\n",
            *(f"- {line}" for line in worst(choices)),
        )
    )
    print(text)
    if arguments.write:
        arguments.write.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
