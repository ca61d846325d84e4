"""How good plans are: what the recommended settings measurably serve, and how many GPUs a fleet measurably needs.

    python benchmarks/plans.py [RUNS.csv] [--write FILE.md]

A case is a model on a type of GPU, measured in closed loops of several sizes, with one layout (parallel sizes and
precision) or several. Its target of TPOT is the geometric middle of what was measured. Predictions come from fits that
saw no run of the same GPU, model, TP, weight dtype and engine version. Each layout is a curve over the concurrency,
straight between neighbours on logarithmic scales, and a plan is the layout with the most predicted tokens/s per GPU, at
the largest concurrency whose TPOT is predicted to keep the target with the confidence. The measurements judge it::

    setting   measured tokens/s per GPU of the plan's layout at the largest concurrency that measurably keeps the
              target / the same of the best layout
    load      measured tokens/s per GPU of the plan at its own concurrency / that of the best, at most 1
    TPOT      measured at the plan's concurrency / target: the plan breaks its target above 1
    fleet     GPUs that the plan takes for a load / GPUs that its layout measurably needs for it
"""

import argparse
import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from decisions import Option, options
from planner.evidence.runs import MeasuredRun, read_runs

SHIPPED_RUNS = Path(__file__).parent.parent / "hardware" / "calibration" / "runs.csv"
CASES = 20
CONFIDENCES = (0.5, 0.8)
LEAST_POINTS = 4  #: of a layout
ALIKE = 1  #: cases of one model on one type of GPU, at most, where one layout was measured
WITHIN = 0.25  #: of the size of a fleet
PRECISION = re.compile(r"(?i)[-_](fp8|mxfp4|nvfp4|fp4|moefp4|mtp|awq|kv|dynamic|preview|0528)(?=$|[-_])")


@dataclass(frozen=True)
class Curve:
    """One layout over the concurrency: TPOT in ms, tokens/s per GPU."""

    name: str
    points: tuple[Option, ...]  #: in ascending order

    def along(self, of: Callable[[Option], float], concurrency: float) -> float:
        """A figure at a concurrency, on a line between the logarithms of two neighbours."""
        sizes = np.log([point.run.max_concurrency or 1 for point in self.points])
        return float(np.exp(np.interp(np.log(concurrency), sizes, np.log([of(point) for point in self.points]))))

    def largest(self, tpot_ms: Callable[[Option], float], target_ms: float) -> float | None:
        """The largest concurrency up to which the TPOT keeps the target; None where the first one breaks it."""
        found = None
        for point, after in zip(self.points, (*self.points[1:], None), strict=True):
            if tpot_ms(point) > target_ms:
                break
            size = found = float(point.run.max_concurrency or 1)
            if after and tpot_ms(after) > target_ms:
                share = np.log(target_ms / tpot_ms(point)) / np.log(tpot_ms(after) / tpot_ms(point))
                found = size * ((after.run.max_concurrency or 1) / size) ** float(share)
        return found

    def capacity(
        self, tpot_ms: Callable[[Option], float], rate: Callable[[Option], float], target_ms: float
    ) -> tuple[float, float]:
        """Tokens/s per GPU under the target, and the concurrency of that; zeros where nothing keeps it."""
        size = self.largest(tpot_ms, target_ms)
        return (self.along(rate, size), size) if size else (0.0, 0.0)


@dataclass(frozen=True)
class Case:
    """Layouts of one model on one type of GPU."""

    gpu: str
    model: str
    engine: str
    lengths: tuple[object, ...]
    curves: tuple[Curve, ...]

    @property
    def target_ms(self) -> float:
        """The middle of what was measured."""
        measured = [point.tpot_ms for curve in self.curves for point in curve.points]
        return float(np.sqrt(min(measured) * max(measured)))


@dataclass(frozen=True)
class Judged:
    """One plan, and what the measurements say of it."""

    case: Case
    curve: Curve | None
    setting: float = 0.0
    load: float = 0.0
    tpot: float = 0.0  #: over the target
    fleet: float = 0.0

    @property
    def within(self) -> bool:
        """Whether the size of the fleet is what is needed, nearly."""
        return self.curve is not None and abs(self.fleet - 1) <= WITHIN


def measured_ms(point: Option) -> float:
    """TPOT."""
    return point.tpot_ms


def measured_rate(point: Option) -> float:
    """Tokens/s per GPU."""
    return point.tok_per_s_per_gpu


def predicted_rate(point: Option) -> float:
    """Tokens/s per GPU."""
    return point.predicted_tok_per_s_per_gpu


def judged(case: Case, confidence: float) -> Judged:
    """What is planned with ``confidence``, and what was measured of it."""
    target_ms = case.target_ms
    plans = [
        (curve, *curve.capacity(lambda point: point.tpot_below_ms(confidence), predicted_rate, target_ms))
        for curve in case.curves
    ]
    curve, rate, size = max(plans, key=lambda plan: plan[1])
    if not rate:
        return Judged(case, None)
    best = max(one.capacity(measured_ms, measured_rate, target_ms)[0] for one in case.curves)
    own, _ = curve.capacity(measured_ms, measured_rate, target_ms)
    return Judged(
        case,
        curve,
        setting=own / best,
        load=min(curve.along(measured_rate, size) / best, 1.0),
        tpot=curve.along(measured_ms, size) / target_ms,
        fleet=own / rate,
    )


def cases(found: Sequence[Option]) -> list[Case]:
    """Twenty of them: those with several layouts first, then stock vLLM and the longest curves."""
    groups: dict[tuple[object, ...], dict[str, dict[int, Option]]] = defaultdict(lambda: defaultdict(dict))
    for option in found:
        run = option.run
        if not run.max_concurrency:
            continue
        stock = run.engine_build == "vllm"
        lengths = (run.input_len or run.mean_input_len, run.output_len or run.mean_output_len, run.length_distribution)
        name = PRECISION.sub("", run.model.split("/")[-1])
        key = run.gpu, name, run.engine_version if stock else run.engine_build, *lengths
        groups[key][layout_of(run)].setdefault(run.max_concurrency, option)
    made = []
    for (gpu, model, engine, *lengths), layouts in groups.items():
        curves = [
            Curve(name, tuple(point for _, point in sorted(points.items())))
            for name, points in layouts.items()
            if len(points) >= LEAST_POINTS
        ]
        if curves:
            made.append(Case(str(gpu), str(model), str(engine), tuple(lengths), tuple(curves)))
    made.sort(
        key=lambda case: (
            -len(case.curves),
            case.engine.endswith("plugin"),  # stock vLLM first
            -max(len(curve.points) for curve in case.curves),
            case.gpu,
        )
    )
    chosen: list[Case] = []
    for case in made:
        alike = sum((case.gpu, case.model) == (one.gpu, one.model) for one in chosen)
        if len(case.curves) > 1 or alike < ALIKE:
            chosen.append(case)
    return chosen[:CASES]


def layout_of(run: MeasuredRun) -> str:
    """Parallel sizes and precision, in words."""
    sizes = [("TP", run.tensor_parallel_size), ("PP", run.pipeline_parallel_size), ("DP", run.data_parallel_size)]
    words = [f"{name} {size}" for name, size in sizes if size > 1 or name == "TP"]
    experts = ["EP"] if run.expert_parallel_size and run.expert_parallel_size > 1 else []
    return " ".join([*words, *experts, str(run.weight_dtype)])


def lines(found: Sequence[Case]) -> Iterator[str]:
    """The page: a summary by confidence, then each case."""
    yield "# Plans\n"
    several = sum(len(case.curves) > 1 for case in found)
    yield (
        f"{datetime.date.today()}; `python benchmarks/plans.py`. {len(found)} cases, {several} with several layouts. "
        f"Aims: the setting's measured tokens/s are 95 % of the best's on average, and fleets are within {WITHIN:.0%} "
        "of the measured need. With one layout the setting is no choice: 100 % there says that there is a plan.\n"
    )
    yield (
        "| confidence | no plan | setting, mean | with several layouts | least | load, mean | breaks the target | "
        f"by, worst | fleet within {WITHIN:.0%} | fleet, median | least | most |"
    )
    yield f"| --- |{' ---: |' * 11}"
    for confidence in CONFIDENCES:
        every = [judged(case, confidence) for case in found]
        made = [one for one in every if one.curve]
        breaks = [one.tpot for one in made if one.tpot > 1]
        fleets = [one.fleet for one in made]
        choosing = [one.setting for one in every if len(one.case.curves) > 1]
        yield (
            f"| {confidence:.0%} | {len(every) - len(made)} | {np.mean([one.setting for one in every]):.1%} | "
            f"{np.mean(choosing):.1%} | "
            f"{min(one.setting for one in every):.1%} | {np.mean([one.load for one in every]):.1%} | "
            f"{len(breaks)} of {len(made)} | {max(breaks, default=1) - 1:.1%} | "
            f"{sum(one.within for one in every)} of {len(every)} | {np.median(fleets):.2f} | {min(fleets):.2f} | "
            f"{max(fleets):.2f} |"
        )
    yield "\n| GPU, model, engine | in, out | target, ms | layouts | plan | setting | load | TPOT | fleet |"
    yield "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: |"
    for case in found:
        one = judged(case, CONFIDENCES[-1])
        layouts = "; ".join(curve.name for curve in case.curves)
        said = (
            f"{one.curve.name} | {one.setting:.0%} | {one.load:.0%} | {one.tpot:.2f} | {one.fleet:.2f}"
            if one.curve
            else "- | - | - | - | -"
        )
        yield (
            f"| {case.gpu}, {case.model}, {case.engine} | {case.lengths[0]:g}, {case.lengths[1]:g} | "
            f"{case.target_ms:.1f} | {layouts} | {said} |"
        )
    yield f"\nThe cases are those with {CONFIDENCES[-1]:.0%} confidence, which is the default.\n"
    yield (
        "Not judged here: open loops and TTFT (few grids were published with either), and layouts that nobody measured."
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=SHIPPED_RUNS)
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    runs = {run.run_id: run for run in read_runs(arguments.runs)}
    text = "\n".join(lines(cases(options(runs))))
    print(text)
    if arguments.write:
        arguments.write.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
