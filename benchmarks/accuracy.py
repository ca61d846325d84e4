"""How accurate the predictions are, on runs that the fit did not see; and the fit that we ship.

    python benchmarks/accuracy.py [RUNS.csv]                 errors with runs, groups, models, GPUs, sources left out
    python benchmarks/accuracy.py RUNS.csv --record FILE   the same as a page of Markdown
    python benchmarks/accuracy.py RUNS.csv --write DIR     also fit to all runs: DIR/efficiency.json and DIR/runs.csv
    python benchmarks/accuracy.py --steps [...]            replays only what intervals rest on: a third of the time

What is left out together says what is asked: a new load, a new combination, a pair of GPU and model, a model, a GPU or
a source that was never seen. Every run is replayed with the fit that did not see it. Coverage is that of intervals
found without the same runs. The page says how long it took. With ``--steps`` the runs of most sections keep the
steps that the fit to all runs replayed: right but for queues that grow with the time of a step. ``causes.toml`` has
the likely causes of the worst runs.
"""

import argparse
import csv
import datetime
import subprocess
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from fit.design import Structure, effects_of, posterior
from fit.files import save, to_text
from fit.leave_out import GAPS, LEFT_OUT, REFITTED_RUNS, LeaveOut, Miss, leave_out_of, replayed_misses, scatters
from planner.evidence.fitting import Fitted, scatter_of
from planner.evidence.observations import Observed
from planner.evidence.runs import MEASUREMENTS, REPLICAS, RUN_COLUMNS, MeasuredRun, read_runs
from planner.timing.fits import COVARIANCE, LEVELS, Calibration

#: The runs that the shipped fits rest on.
SHIPPED_RUNS = Path(__file__).parent.parent / "hardware" / "calibration" / "runs.csv"
LARGE = ("mi300x", "mi325x", "mi355x", "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb")
#: Median error and share within 20 %, for runs of a pair of GPU and model that was left out.
AIMS = {
    "latency, mi300x": "4 %, 97 %",
    "TPOT, stock": "6 %, 87 %",
    "output throughput, stock": "6 %, 87 %",
    "TTFT, closed-loop": "12 %, 70 %",
    "TTFT, lone prompt": "10 %, 85 %",
    "TPOT, ATOM": "9 %, 85 %",
}
#: What is wanted of runs that the fit did not see: median error, and share within 20 % or inside the 90 % interval.
WANTED = {
    "TPOT or ITL, all": "8 %, 85 %",
    "TPOT, dense, B200 and B300": "8 %, 90 %",
    "TPOT, MoE, Hopper": "9 %",
    "TPOT, MoE, Blackwell (B200 to GB300)": "9 %",
    "TPOT, MoE, AMD": "9 %",
    "output throughput": "8 %, 85 %",
    "TTFT, closed loop": "12 %, 72 %",
    "TTFT, lone prompt": "20 %, 85 % inside",
    "latency tables, MI300X": "4 %, 97 %",
    "TPOT, ATOM": "9 %",
    "p99 ITL, closed loop": "20 %",
}
#: Lines that another page has.
ELSEWHERE = {
    "experts against kernel tables": ("80 % between 0.8 and 1.25", "Today's operators beside the tables"),
    "tables alone, by source": ("each source", "Whole steps from tables alone, by source"),
}
CAUSES = Path(__file__).parent / "causes.toml"
VENDORS = {"nvidia": "NVIDIA", "amd": "AMD"}
BLACKWELL = ("sm_100", "sm_103")  #: architectures of data centres
#: GPUs with fewer figures than this have no coverage of their own.
LEAST_FIGURES = 50
#: What is left out together, and what that asks.
SECTIONS = {
    "load": "A new load on a known setting: single runs left out",
    "combination": "A known GPU and model in a new combination: one GPU, model, TP, weight dtype and version left out",
    "pair": "A GPU and a model that were not measured together: pairs left out",
    "model": "A model never seen: all runs of one architecture at one size left out",
    "gpu": "A GPU never seen: all runs of one GPU left out",
    "source": "A source never seen: all runs that one party published left out",
}
COVERED = ("combination", "pair", "source")  #: sections that show intervals too
JUDGED = "pair"  #: what is left out for the noise that we ship
REPLAYED = (JUDGED, "source")  #: sections whose misses the shipped intervals hold; replayed with ``--steps`` too
FOLDS = 5  #: the intervals of a group are judged with scatters of the other folds
LEVEL = 0.9
#: Directions of the factors of which runs teach a smaller share are not written.
LEAST_WRITTEN = 0.02
LEAST_SOURCES = 3  #: of a GPU whose bias is shown
WORST = 30  #: runs of which the error is shown
PROCESSES = 2
HOPPER_AND_BLACKWELL = ("h100-sxm", "h200-sxm", "b200-sxm")


def kinds(one: Observed, run: MeasuredRun, metric: str) -> Iterator[str]:
    """The lines of the table that a metric of a run counts in."""
    has = {m.name for m in one.metrics}
    engine = "ATOM" if run.engine_build != "vllm" else "stock"
    if metric == "avg_latency_s":
        yield f"latency, {run.gpu}"
    elif metric == "output_throughput":
        yield f"throughput, {run.gpu}" if run.bench == "throughput" else f"output throughput, {engine}"
    elif metric == "mean_tpot_ms" or (metric == "median_tpot_ms" and "mean_tpot_ms" not in has):
        yield f"TPOT, {engine}"
        yield f"TPOT, {engine}, {'data-centre' if run.gpu in LARGE else 'other'} GPUs"
        if run.gpu in HOPPER_AND_BLACKWELL and one.config.engine == "V1":
            yield f"TPOT, {'MoE' if one.model.is_moe else 'dense'}, H100 H200 B200, V1"
    elif metric == "mean_ttft_ms" or (metric == "median_ttft_ms" and "mean_ttft_ms" not in has):
        yield f"TTFT, {run.arrival}"
        if run.max_concurrency == 1:
            yield "TTFT, lone prompt"
    elif metric.startswith("p99"):
        yield metric


def wanted_lines(one: Observed, run: MeasuredRun, metric: str) -> list[str]:
    """The lines of ``WANTED`` that a metric of a run counts in. Those of TPOT and throughput are of stock vLLM."""
    has = run.metrics.keys()
    tpot, gap, ttft = (
        next((name for name in (f"mean_{of}_ms", f"median_{of}_ms") if name in has), None)
        for of in ("tpot", "itl", "ttft")
    )
    closed = run.arrival == "closed-loop"
    lines = {
        "TPOT or ITL, all": metric == (tpot or gap),
        of_tpot(one, run): metric == tpot,
        "output throughput": metric == "output_throughput" and run.engine_build == "vllm",
        "TTFT, closed loop": metric == ttft and closed,
        "TTFT, lone prompt": metric == ttft and run.max_concurrency == 1,
        "latency tables, MI300X": metric == "avg_latency_s" and run.gpu == "mi300x",
        "p99 ITL, closed loop": metric == "p99_itl_ms" and closed,
    }
    return [line for line, counts in lines.items() if line and counts]


def of_tpot(one: Observed, run: MeasuredRun) -> str:
    """The line of ``WANTED`` for the TPOT of a run; empty where it has none."""
    if run.engine_build != "vllm":
        return "TPOT, ATOM"
    architecture = one.profile.architecture
    if not one.model.is_moe:
        return "TPOT, dense, B200 and B300" if architecture in BLACKWELL and run.gpu.startswith("b") else ""
    if one.profile.vendor == "amd":
        return "TPOT, MoE, AMD"
    places = {"sm_90": "Hopper"} | dict.fromkeys(BLACKWELL, "Blackwell (B200 to GB300)")
    return f"TPOT, MoE, {places[architecture]}" if architecture in places else ""


def wanted(
    observed: Sequence[Observed], runs: Mapping[str, MeasuredRun], misses: Mapping[str, Sequence[Miss]]
) -> Iterator[str]:
    """``WANTED`` beside the median error, the share within 20 % and the share inside, by what was left out."""
    yield "| | wanted | figures | sources left out | inside 90 % | pairs left out | inside 90 % |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    cells: dict[str, list[str]] = defaultdict(list)
    for name in ("source", JUDGED):
        told = [miss for miss in misses[name] if miss.metric not in GAPS]
        inside = {
            (one.miss.run, one.miss.metric): one.inside
            for one in held_intervals(observed, stated(told, observed, runs), LEFT_OUT[name])
        }
        found: dict[str, list[tuple[float, bool | None]]] = defaultdict(list)
        for miss in misses[name]:
            one = observed[miss.run]
            for line in wanted_lines(one, runs[one.run_id], miss.metric):
                found[line].append((abs(np.expm1(miss.error)), inside.get((miss.run, miss.metric), miss.inside)))
        for line in WANTED:
            error = np.array([off for off, _ in found[line]])
            covered = [holds for _, holds in found[line] if holds is not None]
            if name == "source":
                cells[line].append(str(len(error)))
            cells[line].append(f"{np.median(error):.1%}, {np.mean(error <= 0.2):.0%}" if len(error) else "")
            cells[line].append(f"{np.mean(covered):.0%}" if covered else "")
    for line, aim in WANTED.items():
        yield f"| {line} | {aim} | {' | '.join(cells[line])} |"
    for line, (aim, section) in ELSEWHERE.items():
        yield f'| {line} | {aim} | | [kernels](kernels.md): "{section}" | | | |'


def table(observed: Sequence[Observed], runs: dict[str, MeasuredRun], misses: Sequence[Miss]) -> Iterator[str]:
    """Median error, share within 20 %, and bias, by kind of metric, beside what we aim at."""
    found: dict[str, list[float]] = defaultdict(list)
    for miss in misses:
        one = observed[miss.run]
        for kind in kinds(one, runs[one.run_id], miss.metric):
            found[kind].append(np.expm1(miss.error))
    yield "| | figures | median error | within 20 % | bias | aim |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for kind, values in sorted(found.items()):
        error = np.abs(values)
        yield (
            f"| {kind} | {len(values)} | {np.median(error):.1%} | {np.mean(error <= 0.2):.0%} | "
            f"{np.median(values):+.1%} | {AIMS.get(kind, '')} |"
        )


@dataclass(frozen=True)
class Held:
    """One figure and its interval, by scatters that did not see its group. Logarithms of measured / predicted."""

    kind: str
    gpu: str
    vendor: str
    miss: Miss
    half: float  #: half the width of the interval
    plain: float  #: the same of an interval of one width for all figures of the kind

    @property
    def error(self) -> float:
        return self.miss.error

    @property
    def inside(self) -> bool:
        return abs(self.error) <= self.half

    def score(self, half: float) -> float:
        """The interval score: width, and 2 / (1 - level) x what is outside (Gneiting and Raftery, JASA 102(477))."""
        return 2 * half + 2 / (1 - LEVEL) * max(abs(self.error) - half, 0.0)


def held_intervals(
    observed: Sequence[Observed], misses: Sequence[Miss], key: Callable[[Observed], object]
) -> list[Held]:
    """Every figure with the interval that the other folds of groups give it."""
    number = {group: i % FOLDS for i, group in enumerate(dict.fromkeys(key(one) for one in observed))}
    fold = [number[key(observed[miss.run])] for miss in misses]
    found = []
    for here in range(FOLDS):
        others = [miss for miss, at in zip(misses, fold, strict=True) if at != here]
        known = scatters(observed, others)
        widths: dict[str, list[float]] = defaultdict(list)
        for miss in others:
            widths[scatter_of(observed[miss.run], miss.metric)].append(abs(miss.error))
        for miss in (miss for miss, at in zip(misses, fold, strict=True) if at == here):
            kind = scatter_of(observed[miss.run], miss.metric)
            if scatter := known.get(kind):
                half = scatter.reach[LEVELS.index(LEVEL)] * float(np.hypot(miss.deviation, scatter.noise))
                plain = float(np.quantile(widths[kind], LEVEL))
                profile = observed[miss.run].profile
                found.append(Held(kind, profile.id, VENDORS[profile.vendor], miss, half, plain))
    return found


def coverage(held: Sequence[Held], lone: Container[int]) -> Iterator[str]:
    """Share of measurements inside their intervals, width (highest over lowest) and score, by metric, GPU and vendor.

    ``lone``: numbers of the runs with one prompt in flight.
    """
    found: dict[str, list[Held]] = defaultdict(list)
    for one in held:
        for name in ("all", one.kind, one.gpu, f"all of {one.vendor}"):
            found[name].append(one)
        if one.miss.run in lone:
            found["lone prompts, TTFT" if "ttft" in one.kind else "lone prompts, other figures"].append(one)
    yield "| | figures | inside the 90 % interval | median width | interval score | with one width for all |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, ones in sorted(found.items()):
        if len(ones) >= LEAST_FIGURES:
            inside = np.mean([one.inside for one in ones])
            width = np.exp(2 * np.median([one.half for one in ones]))
            score, plain = (np.mean([one.score(getattr(one, half)) for one in ones]) for half in ("half", "plain"))
            yield f"| {name} | {len(ones)} | {inside:.0%} | {width:.2f} | {score:.2f} | {plain:.2f} |"


def carried(source: Path, target: Path) -> None:
    """The columns that a fit needs, with the source of each run; suspect rows stay behind."""
    columns = [name for name in (*RUN_COLUMNS, REPLICAS, *MEASUREMENTS) if name not in ("suspect", "source")]
    columns.append("source")
    with source.open(newline="", encoding="utf-8-sig") as read, target.open("w", newline="", encoding="utf-8") as write:
        table_out = csv.DictWriter(write, columns, extrasaction="ignore", lineterminator="\n")
        table_out.writeheader()
        table_out.writerows(row for row in csv.DictReader(read) if not row.get("suspect"))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?", default=SHIPPED_RUNS)
    parser.add_argument("--write", type=Path, metavar="DIR")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--steps", action="store_true")
    arguments = parser.parse_args()
    start = time.monotonic()
    every = {run.run_id: run for run in read_runs(arguments.runs)}
    without, refused = leave_out_of(every.values(), processes=PROCESSES)
    replayed = REPLAYED if arguments.steps else tuple(SECTIONS)
    misses = {name: misses_of(name, without, every, replayed=name in replayed) for name in SECTIONS}
    fitted = {name: [miss for miss in found if miss.metric not in GAPS] for name, found in misses.items()}
    if arguments.write:
        write(without, [fitted[name] for name in REPLAYED], arguments.runs, arguments.write)
    figures = list(wanted(without.observed, every, misses))
    lines = list(report(without, fitted, refused, every, replayed, figures, time.monotonic() - start))
    print("\n".join(lines))
    if arguments.record:
        arguments.record.write_text("\n".join(lines) + "\n", encoding="utf-8")


def misses_of(name: str, without: LeaveOut, runs: Mapping[str, MeasuredRun], *, replayed: bool) -> list[Miss]:
    """The misses of a section."""
    if not replayed:
        return without.misses([LEFT_OUT[name](one) for one in without.observed])
    return replayed_misses(
        without, runs.values(), LEFT_OUT[name],
        processes=PROCESSES, uncertain=name in COVERED, gaps=name in REPLAYED,
    )  # fmt: skip


def report(
    without: LeaveOut,
    misses: Mapping[str, Sequence[Miss]],
    refused: Sequence[tuple[MeasuredRun, str]],
    runs: dict[str, MeasuredRun],
    replayed: Sequence[str],
    figures: Sequence[str],
    taken_s: float,
) -> Iterator[str]:
    """The page that ``--record`` writes, with the lines of ``wanted``."""
    observed = without.observed
    lone = {number for number, one in enumerate(observed) if runs[one.run_id].max_concurrency == 1}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    yield "# Accuracy on runs that the fit did not see"
    yield ""
    yield f"`benchmarks/accuracy.py`, {datetime.date.today()}, on top of commit {commit.stdout.strip() or 'unknown'}."
    yield f"{len(observed)} runs; {len(refused)} refused" + (":" if refused else ".")
    for run, why in refused:
        yield f"- {run.run_id} {run.gpu} {run.model}: {why}"
    yield "A fit without a group is one step from the fit to everything (`benchmarks/fit/leave_out.py`)."
    yield f"Without {REFITTED_RUNS} runs or more it goes on from there to its own optimum."
    yield f"The fit, all that was left out and all replays took {taken_s / 60:.0f} minutes in {PROCESSES} processes."
    yield from ("", "## Figures wanted", "")
    yield "Median error and share within 20 %. Each run is replayed with the fit that did not see its source, or its"
    yield "pair of GPU and model. The p99 ITL is held against the shipped intervals, all else against intervals without"
    yield "the run's group. The aims of later sections are older, and for pairs left out."
    yield from ("", *figures)
    for name, title in SECTIONS.items():
        how = (
            "replayed with the fit that did not see it" if name in replayed else "over the steps of the fit to all runs"
        )
        yield from ("", f"## {title}", "", f"Each run {how}.", "", *table(observed, runs, misses[name]))
        if name in COVERED:
            held = held_intervals(observed, stated(misses[name], observed, runs), LEFT_OUT[name])
            yield from ("", *coverage(held, lone))
    yield from ("", "## Bias by GPU, pairs of GPU and model left out", "", *bias(observed, misses[JUDGED]))
    yield from ("", "## Each source, left out", "", *by_source(observed, misses["source"]))
    yield from ("", f"## The worst {WORST} runs of sources left out", "", *worst(observed, misses["source"]))
    yield from ("", "## What each line of the structure gives", "", *parameters(without))


def stated(misses: Sequence[Miss], observed: Sequence[Observed], runs: Mapping[str, MeasuredRun]) -> list[Miss]:
    """Without the tails of runs that do not say how many prompts they sent: what decides a tail is not known there."""
    told = {run for run, one in enumerate(observed) if runs[one.run_id].num_prompts}
    return [miss for miss in misses if miss.run in told or not miss.metric.startswith("p99")]


def bias(observed: Sequence[Observed], misses: Sequence[Miss]) -> Iterator[str]:
    """Median of predicted / measured - 1 by GPU and metric, where at least three sources measured."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for miss in misses:
        one = observed[miss.run]
        found[one.covariates["gpu"], miss.metric].append((miss.error, one.source))
    yield "| GPU | metric | figures | sources | bias |"
    yield "| --- | --- | --- | --- | --- |"
    for (gpu, metric), values in sorted(found.items()):
        sources = {source for _, source in values}
        if len(sources) >= LEAST_SOURCES and not metric.startswith("p99"):
            middle = np.expm1(np.median([error for error, _ in values]))
            yield f"| {gpu} | {metric} | {len(values)} | {len(sources)} | {middle:+.1%} |"


def by_source(observed: Sequence[Observed], misses: Sequence[Miss]) -> Iterator[str]:
    """Median error of each source, and in brackets its bias, by kind of metric."""
    columns = ("tpot", "throughput", "ttft", "latency")
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for miss in misses:
        kind = next((name for name in columns if name in miss.metric), "")
        if not miss.metric.startswith("p99"):
            found[observed[miss.run].source][kind].append(np.expm1(miss.error))
    yield "| source | figures | TPOT | throughput | TTFT | batch latency |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for source, kinds_of in sorted(found.items()):
        values = (kinds_of.get(name, []) for name in columns)
        cells = (f"{np.median(np.abs(v)):.0%} ({np.median(v):+.0%})" if v else "" for v in values)
        yield f"| {source} | {sum(map(len, kinds_of.values()))} | " + " | ".join(cells) + " |"


def worst(observed: Sequence[Observed], misses: Sequence[Miss]) -> Iterator[str]:
    """Runs with the largest error of TPOT, throughput or batch latency, at most one of each source, GPU and model."""
    found: dict[tuple[str, ...], Miss] = {}
    for miss in misses:
        one = observed[miss.run]
        if miss.metric.startswith("p99") or "ttft" in miss.metric or "e2el" in miss.metric:
            continue
        key = one.source, one.covariates["gpu"], one.covariates["shape"], one.covariates["weights"]
        if key not in found or abs(miss.error) > abs(found[key].error):
            found[key] = miss
    yield "| source | GPU | model | weights | TP | vLLM | metric | predicted / measured | likely cause |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for key, miss in sorted(found.items(), key=lambda item: -abs(item[1].error))[:WORST]:
        has = observed[miss.run].covariates
        what = (has["tp"], has["release"], miss.metric, f"{np.exp(miss.error):.2f}", likely_cause(*key))
        yield f"| {' | '.join((*key, *what))} |"


@cache
def causes() -> tuple[dict[str, str], ...]:
    """The entries of ``causes.toml``."""
    return tuple(tomllib.loads(CAUSES.read_text(encoding="utf-8"))["cause"])


def likely_cause(source: str, gpu: str, model: str, weights: str) -> str:
    """What the first entry that fits says."""
    row = {"source": source, "gpu": gpu, "model": model, "weights": weights}
    fits = (one["likely"] for one in causes() if all(row[key].startswith(one.get(key, "")) for key in row))
    return next(fits, "unknown")


def parameters(without: LeaveOut) -> Iterator[str]:
    """How many factors each line of the structure has, how many are shipped, and of how many runs the median is."""
    effects = effects_of(without.design, Fitted(without.factors))
    shipped: dict[tuple[str, frozenset[str]], list[int]] = defaultdict(list)
    for effect in effects:
        shipped[effect.target, frozenset(effect.when)].append(effect.rows)
    yield "| target | covariates | deviation | factors shipped | runs of the median factor |"
    yield "| --- | --- | --- | --- | --- |"
    for target, scope, sd in Structure.shipped().lines:
        rows = shipped[target, frozenset(scope)]
        yield f"| {target} | {', '.join(scope)} | {sd:.2f} | {len(rows)} | {np.median(rows) if rows else 0:.0f} |"
    yield f"| all, with one for each efficiency | | | {len(effects)} | |"


def write(without: LeaveOut, misses: Sequence[Sequence[Miss]], source: Path, folder: Path) -> None:
    """Fit to everything, with what that leaves known of the factors, and the scatters of all ``misses``."""
    observed = without.observed
    runs = {run.run_id: run for run in read_runs(source)}
    known = posterior(without.design, without.covariance, LEAST_WRITTEN)
    errors: dict[str, list[float]] = defaultdict(list)
    for miss in misses[0]:
        errors[miss.metric].append(abs(np.expm1(miss.error)))
    calibration = Calibration(
        name="published runs",
        fitted_on=f"{len(observed)} published runs of vLLM (runs.csv), {datetime.date.today()}",
        runs_over_nodes=sum(bool(one.covariates["nodes"]) for one in observed),
        median_error={metric: round(float(np.median(found)), 4) for metric, found in errors.items()},
        effects=without.refit(),
        lines=known.lines,
        scatters=scatters(observed, *(stated(one, observed, runs) for one in misses)),
    )
    (folder / "efficiency.json").write_text(to_text(calibration), encoding="utf-8")
    save(known, folder / COVARIANCE)
    if source.resolve() != (folder / "runs.csv").resolve():
        carried(source, folder / "runs.csv")


if __name__ == "__main__":
    main()
