"""How good the decisions are: predictions choose among measured settings, and the measurements judge the choice.

    python benchmarks/decisions.py RUNS.csv [--write FILE.md]

Runs that share model, GPU type, lengths and engine are one choice: which TP, and which concurrency? For each target of
TPOT that some of them met, the predictions choose the setting with the most output tokens/s per GPU among those that
they say meet the target. Then the measurements judge::

    breaks       the chosen setting's measured TPOT is above the target
    gives away   1 - measured tokens/s per GPU of the choice / that of the best setting that measurably met the target
    no choice    the predictions say that nothing meets the target, though something did

Predictions come from fits that saw no run of the same GPU, model, TP, weight dtype and engine version. Three ways to
choose: by the prediction itself; by what three of four measurements stay below, taking the 90 % interval for that of a
log-normal; and by the pessimistic end of the interval, as ``recommend`` does.
"""

from __future__ import annotations

import argparse
import datetime
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner.evidence.leave_out import LEFT_OUT, leave_out, replayed_errors
from planner.evidence.observe import Observed, observe
from planner.evidence.runs import MeasuredRun, read_runs
from planner.timing.fits import Combination, load_calibration

TARGETS_MS = (8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150)
#: Of the way from the prediction to the end of its 90 % interval, in logarithms: normal quantiles of 0.75 and 0.95.
THREE_OF_FOUR = 0.674 / 1.645
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
    worst_tpot_ms: float  #: upper end of the 90 % interval


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


def options(observed: Sequence[Observed], runs: dict[str, MeasuredRun]) -> list[Option]:
    """The runs with a TPOT and a throughput, each predicted by a fit that did not see its group."""
    without = leave_out(observed)
    errors, terms = replayed_errors(without, runs.values(), LEFT_OUT["combination"]), without.problem.terms
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for number, name, error in zip(terms.metric_run, terms.metric_names, errors, strict=True):
        found[observed[number].run_id][name] = float(error)
    by_id = {one.run_id: one for one in observed}
    return [
        option for run_id, error in found.items() if (option := _option(by_id[run_id], runs[run_id], error)) is not None
    ]


def _option(one: Observed, run: MeasuredRun, error: dict[str, float]) -> Option | None:
    name = next((n for n in ("mean_tpot_ms", "median_tpot_ms") if n in error), None)
    if name is None or "output_throughput" not in error or "output_throughput" not in run.metrics:
        return None
    gpus = run.tensor_parallel_size * run.pipeline_parallel_size * run.data_parallel_size
    tpot_ms, rate = run.metrics[name], run.metrics["output_throughput"] / gpus
    predicted_ms = tpot_ms * np.exp(error[name])
    # the error of a throughput is that of a duration
    return Option(
        run, tpot_ms, rate, predicted_ms, rate * np.exp(-error["output_throughput"]),
        predicted_ms * _upper_end(one, name),
    )  # fmt: skip


def _upper_end(one: Observed, metric: str) -> float:
    """Of the interval that a user would see whose setting nobody had measured."""
    calibration = load_calibration()
    here = Combination(**{key: one.covariates[key] for key in Combination.model_fields})
    others = tuple(c for c in calibration.combinations if c != here)
    bounds = calibration.model_copy(update={"combinations": others}).interval(metric, one.covariates)
    return bounds[1] if bounds else 1.0


def decisions(choices: Sequence[Sequence[Option]], tpot: Callable[[Option], float]) -> Iterator[Decision]:
    """What is chosen where ``tpot`` must stay below each target that some option measurably met and some did not."""
    for group in choices:
        for target_ms in TARGETS_MS:
            meets = [o for o in group if o.tpot_ms <= target_ms]
            if not meets or len(meets) == len(group):
                continue
            best = max(meets, key=lambda o: o.tok_per_s_per_gpu)
            allowed = [o for o in group if tpot(o) <= target_ms]
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
    heads = ("chosen by", "engine", "choices", "decisions", "no choice", "breaks", "by, median", "gives away, median")
    yield f"| {' | '.join(heads)} | 95 % of cases |"
    yield f"| --- | --- |{' ---: |' * 7}"
    ways: dict[str, Callable[[Option], float]] = {
        "the prediction": lambda o: o.predicted_tpot_ms,
        "three of four": lambda o: o.predicted_tpot_ms * (o.worst_tpot_ms / o.predicted_tpot_ms) ** THREE_OF_FOUR,
        "the pessimistic end": lambda o: o.worst_tpot_ms,
    }
    engines: dict[str, Callable[[MeasuredRun], bool]] = {
        "all": lambda _: True,
        "stock vLLM": lambda run: run.engine_build == "vllm",
        "ATOM": lambda run: run.engine_build != "vllm",
    }
    for way, tpot in ways.items():
        for engine, belongs in engines.items():
            some = [group for group in choices if belongs(group[0].run)]
            yield f"| {way} | {engine} | {len(some)} | {_row(list(decisions(some, tpot)))} |"


def _row(made: Sequence[Decision]) -> str:
    chosen = [d for d in made if d.chosen]
    if not chosen:
        return f"{len(made)} | {len(made)} | - | - | - | -"
    beyond = [d.chosen.tpot_ms / d.target_ms - 1 for d in chosen if d.breaks and d.chosen]
    given = [d.given_away for d in chosen if not d.breaks]
    return (
        f"{len(made)} | {1 - len(chosen) / len(made):.1%} | {len(beyond) / len(chosen):.1%} | "
        f"{np.median(beyond or [0]):.1%} | {np.median(given):.1%} | {np.quantile(given, 0.95):.1%}"
    )


def worst(choices: Sequence[Sequence[Option]], count: int = 8) -> Iterator[str]:
    """The breaks that are farthest off, chosen by the pessimistic end."""
    broken = [d for d in decisions(choices, lambda o: o.worst_tpot_ms) if d.breaks and d.chosen]
    for decision in sorted(broken, key=lambda d: -d.chosen.tpot_ms / d.target_ms if d.chosen else 0)[:count]:
        option = decision.chosen
        if option is None:
            continue
        run = option.run
        yield (
            f"{run.gpu} {run.model} TP {run.tensor_parallel_size} concurrency {run.max_concurrency} vLLM "
            f"{run.engine_version}: target {decision.target_ms:g} ms, measured {option.tpot_ms:.1f}, "
            f"predicted {option.predicted_tpot_ms:.1f} (up to {option.worst_tpot_ms:.1f})"
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    runs = {run.run_id: run for run in read_runs(arguments.runs)}
    observed, _ = observe(run for run in runs.values() if run.bench == "serve" or run.bench == "throughput")
    choices = grouped(options(observed, runs))
    text = "\n".join(
        (
            "# Decisions\n",
            f"{datetime.date.today()}; `python benchmarks/decisions.py hardware/calibration/runs.csv`. "
            f"{len(choices)} choices of at least {LEAST_OPTIONS} measured settings each; TPOT targets "
            f"{', '.join(map(str, TARGETS_MS))} ms, where some setting met the target and some did not. Goal: breaks "
            "at most 5 %, gives away at most 5 % (median) and 15 % (95 % of cases).\n",
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
