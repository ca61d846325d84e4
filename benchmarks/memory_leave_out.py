"""How well the memory model predicts what it has not seen: each log with constants fitted without its source or kind.

    python benchmarks/memory_leave_out.py LOGS.csv [LOGS.csv ...] [--configs FOLDER] [--write]

A source is one repository, page or author: what its logs share, drivers and habits, must not predict them. A kind is
what the form of a formula was chosen for: vision towers at TP > 1, gated delta nets, latent attention, sparse
attention, ROCm, V0. The constants of ``hardware/calibration/memory.toml`` name the logs that they rest on. Here they
are fitted by rule: each is the median, over sources, of what would reproduce a source's logs one by one (their median),
the other constants as they are, a few times over. A part that a log prints counts before one that is only what remains.
A constant that rests on the left-out logs alone stays as it was guessed for others: the next one that applies, or the
middle of its interval ("alone").

Intervals move with their constants, and are as many times as wide as they have to be so that nine logs in ten of the
sources that were not left out, each predicted without its own source, are inside. ``--write`` prints the constants
fitted to all sources, to be copied.

Printed are the errors of the KV cache tokens with the constants as shipped, without the source, and without the source
and every log of the same kinds.
"""

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memory import SPOILT, Compared, Row, compare, error, find_model, number, predict
from planner.errors import PlannerError
from planner.memory.budget import MemoryBudget, graph_captures, peak_terms_of
from planner.memory.overheads import Constants, FittedConstant, shipped
from planner.memory.startup_log import PEAKS, StartupLog, cache_bytes, parts_of
from planner.model.architecture import Model
from planner.units import GIB, Interval

#: Constants that logs decide; the others are not fitted to them.
FITTED = (*PEAKS, "non_torch", "graphs")
ROUNDS = 3
#: Factors that are tried for all intervals together.
FACTORS = tuple(0.5 + step / 10 for step in range(36))


#: Start-ups of one author under several addresses.
AUTHORS = dict.fromkeys(
    ("TI:51912001300", "TI:52066611745", "TI:51830815744", "TI:51995050688", "TI:56730870618"), "TI:51912001300"
)
MIXERS = {"gdn": "GDN", "latent": "MLA", "compressed": "sparse"}


@dataclass(frozen=True)
class Start:
    """One start-up that can be predicted."""

    row: Row
    model: Model
    log: StartupLog
    kinds: frozenset[str]
    spoilt: bool  #: what remains is no truth; parts that it prints are

    def budget(self, constants: Constants) -> MemoryBudget:
        """The prediction."""
        return predict(self.row, self.model, constants)

    @property
    def source(self) -> str:
        """The repository, page or author."""
        return source_of(self.row)


def source_of(row: Row) -> str:
    """The repository, page or author of the log."""
    source = AUTHORS.get(row["source"], row["source"])
    return "/".join(source.split("/")[3:5]) if source.startswith("https://github.com/") else source


def kinds_of(model: Model, budget: MemoryBudget) -> Iterator[str]:
    """The kinds that a start-up belongs to."""
    where, config = budget.overheads.where, budget.config
    indexed = any(getattr(mixer, "indexer", None) for mixer in model.mixers())
    if mixers := "sparse" if indexed else MIXERS.get(where["attention"]):
        yield mixers
    if model.vision and config.tensor_parallel_size > 1 and not config.language_model_only:
        yield "vision, TP > 1"
    if where["vendor"] == "amd":
        yield "ROCm"
    if config.engine == "V0":
        yield "V0"


@dataclass(frozen=True)
class Fitted:
    """Constants that were fitted without some logs."""

    constants: Constants
    alone: tuple[str, ...]  #: names of those that rest on the left-out logs alone


def main() -> None:
    """Print one line for each log and the summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path, nargs="+")
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows: dict[str, Row] = {}
    for path in arguments.logs:
        with path.open(newline="") as file:
            rows |= {row["log_id"][:8]: row for row in csv.DictReader(file)}
    starts = dict(find_starts(rows, arguments.configs))
    if arguments.write:
        write(refit(starts, frozenset()).constants)
        return
    LeftOut(starts, arguments.configs).report()


class LeftOut:
    """Predictions without the source of each log, and without its kinds too."""

    def __init__(self, starts: Mapping[str, Start], configs: Path | None) -> None:
        self.starts, self.configs = starts, configs
        self.shipped = {
            log: found
            for log, start in starts.items()
            if (found := self.compare(log, shipped())).judged and found.tokens
        }
        self._fits: dict[frozenset[str], Fitted] = {}
        self._inside: dict[tuple[str, float], bool] = {}

    def compare(self, log: str, constants: Constants) -> Compared:
        """One start-up, predicted."""
        return compare(self.starts[log].row, self.configs, constants)

    def without(self, log: str, *, kinds: bool) -> frozenset[str]:
        """The logs that must not predict ``log``."""
        this = self.starts[log]
        return frozenset(
            other
            for other, start in self.starts.items()
            if start.source == this.source or (kinds and start.kinds & this.kinds)
        )

    def fitted(self, without: frozenset[str]) -> Fitted:
        """The constants without these logs."""
        if without not in self._fits:
            self._fits[without] = refit(self.starts, without)
        return self._fits[without]

    def factor(self, without: frozenset[str]) -> float:
        """The smallest factor with which nine tenths of the other sources' logs are inside, each source alike."""
        for factor in FACTORS:
            inside: dict[str, list[bool]] = defaultdict(list)
            for log in self.shipped.keys() - without:
                inside[self.starts[log].source].append(self.is_inside(log, factor))
            if statistics.fmean(statistics.fmean(found) for found in inside.values()) >= 0.9:
                return factor
        return FACTORS[-1]

    def is_inside(self, log: str, factor: float) -> bool:
        """True if the tokens are inside the interval of constants fitted without the log's source."""
        if (log, factor) not in self._inside:
            fitted = self.fitted(self.without(log, kinds=False))
            self._inside[log, factor] = self.compare(log, widened(fitted.constants, factor)).inside
        return self._inside[log, factor]

    def report(self) -> None:
        """One line for each log; then summaries of all logs and of each kind."""
        found: dict[str, dict[str, Compared]] = {"as shipped": self.shipped}
        factors: list[float] = []
        for title, kinds in (("without the source", False), ("without source and kinds", True)):
            found[title] = {}
            for log in self.shipped:
                without = self.without(log, kinds=kinds)
                factors.append(self.factor(without))
                found[title][log] = self.compare(log, widened(self.fitted(without).constants, factors[-1]))
        for log, as_shipped in self.shipped.items():
            each = [one[log] for one in found.values()]
            errors = " ".join(f"{error(c.tokens):>+7.1%} {'in ' if c.inside else 'out'}" for c in each if c.tokens)
            alone = ", ".join(self.fitted(self.without(log, kinds=True)).alone)
            print(f"{log} {as_shipped.what} {errors}  x{width(each[1]):.3f}{f'  alone: {alone}' if alone else ''}")
        print(f"\nfactor of the intervals: {min(factors):.1f} to {max(factors):.1f}")
        for title, compared in found.items():
            print(summary(title, list(compared.values())))
        for title, compared in found.items():
            print(by_source(title, compared, self.starts))
        for kind in sorted(set().union(*(self.starts[log].kinds for log in self.shipped))):
            of_kind = [c for log, c in found["without source and kinds"].items() if kind in self.starts[log].kinds]
            print(summary(f"without {kind}", of_kind))


def width(compared: Compared) -> float:
    """Upper over lower end of the interval of the tokens."""
    low, high = compared.interval
    return high / low if low else float("inf")


def find_starts(rows: Mapping[str, Row], configs: Path | None) -> Iterator[tuple[str, Start]]:
    """The rows that can be predicted."""
    for log_id, row in rows.items():
        try:
            model = find_model(row["hub_id"] or row["model"], row, configs)
            kinds = frozenset(kinds_of(model, predict(row, model, shipped())))
        except (PlannerError, LookupError):
            continue
        yield log_id, Start(row, model, as_log(row), kinds, log_id in SPOILT)


def refit(starts: Mapping[str, Start], without: frozenset[str]) -> Fitted:
    """The constants fitted to all logs but some."""
    fits, alone = [], []
    for fit in shipped().fits:
        known = [log for log in fit.logs if log in starts]
        if fit.name in FITTED and known and without.issuperset(known):
            alone.append(fit.name)
            if another(fit, shipped().fits):
                continue
        fits.append(fit)
    constants = Constants(tuple(fits))
    for _ in range(ROUNDS):
        constants = Constants(tuple(refitted(fit, starts, constants, without) for fit in constants.fits))
    return Fitted(constants, tuple(dict.fromkeys(alone)))


def refitted(
    fit: FittedConstant, starts: Mapping[str, Start], constants: Constants, without: frozenset[str]
) -> FittedConstant:
    """One constant as the sources of its logs imply it: the median."""
    if fit.name not in FITTED:
        return fit
    implied: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for log in fit.logs:
        start = starts.get(log)
        if start and log not in without and (found := imply(fit.name, start, start.budget(constants))):
            implied[start.source].append(found)
    values = [
        statistics.median([v for v, printed in found if printed] or [v for v, _ in found]) for found in implied.values()
    ]
    return replace(fit, interval=moved(fit.interval, statistics.median(values))) if values else fit


def moved(interval: Interval, mid: float) -> Interval:
    """The interval around another estimate, as wide in proportion."""
    scale = mid / interval.mid if interval.mid else 1.0
    return Interval(mid, min(mid, interval.low * scale), max(mid, interval.high * scale))


def widened(constants: Constants, factor: float) -> Constants:
    """All fitted constants with intervals so many times as wide."""
    return Constants(tuple(replace(fit, interval=_scaled(fit, factor)) for fit in constants.fits))


def _scaled(fit: FittedConstant, factor: float) -> Interval:
    mid, low, high = fit.interval.mid, fit.interval.low, fit.interval.high
    if fit.name not in FITTED:
        return fit.interval
    return Interval(mid, max(0.0, mid - factor * (mid - low)), mid + factor * (high - mid))


def write(constants: Constants) -> None:
    """The fitted constants, in the units of ``memory.toml``."""
    for fit in constants.fits:
        if fit.name in FITTED and fit.logs:
            unit = GIB if fit.name in ("non_torch", "graphs") else 1
            low, mid, high = (x / unit for x in (fit.interval.low, fit.interval.mid, fit.interval.high))
            print(f"{fit.name} {dict(fit.where)} {fit.since} {fit.until}: {mid:.2f} ({low:.2f} to {high:.2f})")


def imply(name: str, start: Start, budget: MemoryBudget) -> tuple[float, bool] | None:
    """(the constant that reproduces a log, whether the log prints the part); None where the log cannot say."""
    stage, parts = budget.binding, parts_of(start.log, budget)
    if name == "non_torch":
        if parts.non_torch and not parts.implied:
            return parts.non_torch.mid, True
        return remainder(start, budget, stage.activation.mid)
    if name in PEAKS:
        peak = (parts.activation.mid, True) if parts.activation and not parts.implied else None
        peak = peak or remainder(start, budget, stage.non_torch.mid)
        return (constant, peak[1]) if peak and (constant := of_peak(name, peak[0], budget)) is not None else None
    captures = graph_captures(budget.model, budget.config, budget.features)
    if parts.graphs is None or not captures or name != "graphs":
        return None
    return max(0.0, parts.graphs.mid - budget.overheads["graph_each"].mid * captures), True


def remainder(start: Start, budget: MemoryBudget, others: float) -> tuple[float, bool] | None:
    """What the budget leaves for one part when weights, cache, graphs and ``others`` are taken from it."""
    log, stage, cache = start.log, budget.binding, cache_bytes(start.log, budget)
    if start.spoilt or cache is None or log.weights_bytes is None:
        return None
    graphs = stage.graphs.mid if stage.graphs_in_budget else 0.0
    return max(0.0, stage.requested_bytes - log.weights_bytes - cache - graphs - others), False


def of_peak(name: str, peak_bytes: float, budget: MemoryBudget) -> float | None:
    """The constant of a term of the profile run; None where another term is the peak."""
    overheads = budget.overheads
    sizes = peak_terms_of(budget.model, budget.config, overheads).scaled
    largest = max(sizes, key=lambda term: overheads[term].mid * sizes[term][0] + sizes[term][1])
    size, fixed = sizes[name]
    return max(0.0, peak_bytes - fixed) / size if name == largest else None


def as_log(row: Row) -> StartupLog:
    """A row as if its log had been read, without the memory, which the row's GPU already has."""

    def gib(column: str) -> float | None:
        value = number(row, column)
        return None if value is None else value * GIB

    return StartupLog(
        version=row["vllm_version"],
        model=row["hub_id"],
        settings={},
        weights_bytes=gib("model_load_gib"),
        activation_bytes=gib("activation_peak_gib"),
        non_torch_bytes=gib("non_torch_gib"),
        consumed_bytes=gib("consumed_gib"),
        graph_bytes=gib("cuda_graph_gib"),
        graph_estimate_bytes=gib("cuda_graph_estimated_gib"),
        kv_cache_bytes=gib("available_kv_cache_gib"),
        num_gpu_blocks=int(number(row, "gpu_blocks") or 0) or None,
        digest=row["log_id"][:8],
    )


def another(fit: FittedConstant, fits: Iterable[FittedConstant]) -> bool:
    """Whether a further constant of the name applies wherever ``fit`` does."""
    return any(
        other is not fit
        and other.name == fit.name
        and other.since <= fit.since
        and other.until >= fit.until
        and other.where.items() <= fit.where.items()
        for other in fits
    )


def summary(kind: str, compared: list[Compared]) -> str:
    """Median, share within 10 %, worst, and share inside the interval."""
    errors = [abs(error(c.tokens)) for c in compared if c.tokens]
    inside = sum(c.inside for c in compared)
    within = sum(e <= 0.10 for e in errors) / len(errors)
    return (
        f"{kind:<35} n {len(errors):>3}  median {statistics.median(errors):.2%}  mean {statistics.fmean(errors):.2%}  "
        f"within 10 %: {within:.0%}  worst {max(errors):.1%}  inside the interval {inside} of {len(errors)}  "
        f"median width {statistics.median(width(c) for c in compared):.3f}"
    )


def by_source(kind: str, compared: Mapping[str, Compared], starts: Mapping[str, Start]) -> str:
    """The same with each source counted once: the means of its logs."""
    sources: dict[str, list[Compared]] = defaultdict(list)
    for log, found in compared.items():
        sources[starts[log].source].append(found)
    errors = [statistics.fmean(abs(error(c.tokens)) for c in found if c.tokens) for found in sources.values()]
    inside = statistics.fmean(statistics.fmean(c.inside for c in found) for found in sources.values())
    within = statistics.fmean(
        statistics.fmean(abs(error(c.tokens)) <= 0.10 for c in found if c.tokens) for found in sources.values()
    )
    return (
        f"{kind + ', by source':<35} n {len(errors)}  median {statistics.median(errors):.2%}  "
        f"within 10 %: {within:.0%}  inside the interval {inside:.0%}"
    )


if __name__ == "__main__":
    main()
