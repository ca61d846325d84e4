"""How much of the memory model's accuracy is memory: each log predicted with constants fitted without its host.

    python benchmarks/memory_leave_out.py LOGS.csv [LOGS.csv ...] [--configs FOLDER] [--write]

A host is one machine, or one series of machines, of one source: what its logs share, drivers and habits, must not
predict them. The constants of ``hardware/calibration/memory.toml`` name the logs that they rest on. Here they are
fitted by rule: each is the median, over hosts, of what would reproduce a host's logs one by one (their median), the
other constants as they are, a few times over. A part that a log prints counts before one that is only what remains. A
constant that rests on the left-out host alone stays as it was guessed for others: the next one that applies, or the
middle of its interval ("alone").

Intervals move with their constants, and are as many times as wide as they have to be so that nine logs in ten of the
hosts that were not left out, each predicted without its own host, are inside. ``--write`` prints the constants fitted
to all hosts, to be copied.

Printed are the errors of the KV cache tokens with the constants as shipped and fitted without the host.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from memory import SPOILT, Compared, Row, compare, error, find_model, number, predict
from planner.errors import PlannerError
from planner.memory.budget import MemoryBudget, graph_captures
from planner.memory.cache import element_bytes
from planner.memory.overheads import Constants, FittedConstant, Interval, peak_terms, shipped
from planner.memory.startup_log import PEAKS, StartupLog, cache_bytes, parts_of
from planner.model.architecture import Model
from planner.units import GIB

#: Constants that logs decide; the others are not fitted to them.
FITTED = (*PEAKS, "non_torch", "graphs")
ROUNDS = 3
#: Factors that are tried for all intervals together.
FACTORS = tuple(0.5 + step / 10 for step in range(36))


@dataclass(frozen=True)
class Start:
    """One start-up that can be predicted."""

    row: Row
    model: Model
    log: StartupLog
    spoilt: bool  #: what remains is no truth; parts that it prints are

    def budget(self, constants: Constants) -> MemoryBudget:
        """The prediction."""
        return predict(self.row, self.model, constants)

    @property
    def host(self) -> str:
        """The machine, or the series of machines, of one source."""
        return host_of(self.row)


def host_of(row: Row) -> str:
    """The repository or page of the log, and the GPU in it."""
    source = row["source"]
    if source.startswith("https://github.com/"):
        source = "/".join(source.split("/")[3:5])
    return f"{source} {row['gpu'].split(' (')[0]}"


def main() -> None:
    """Print one line for each log and the summary."""
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
        write(refit(starts, without="")[0])
        return
    judged = {log: c for log, row in rows.items() if (c := compare(row, arguments.configs)).judged and c.tokens}
    hosts = dict.fromkeys(host_of(rows[log]) for log in judged)
    fits = {host: refit(starts, without=host) for host in hosts}
    factors = {host: factor_without(host, judged, rows, fits, arguments.configs) for host in hosts}
    left_out: dict[str, Compared] = {}
    for log, as_shipped in judged.items():
        host = host_of(rows[log])
        constants, alone = fits[host]
        found = left_out[log] = compare(rows[log], arguments.configs, widened(constants, factors[host]))
        errors = " ".join(
            f"{error(c.tokens):>+7.1%} {'in ' if c.inside else 'out'}" for c in (as_shipped, found) if c.tokens
        )
        print(f"{log} {as_shipped.what} {errors}  x{width(found):.3f}{'  alone: ' + ', '.join(alone) if alone else ''}")
    print(f"\nfactor of the intervals: {min(factors.values()):.1f} to {max(factors.values()):.1f}")
    print(summary("as shipped", list(judged.values())))
    print(summary("without the host", list(left_out.values())))
    print(by_host("as shipped", judged, rows))
    print(by_host("without the host", left_out, rows))


def width(compared: Compared) -> float:
    """Upper over lower end of the interval of the tokens."""
    low, high = compared.interval
    return high / low if low else float("inf")


def find_starts(rows: Mapping[str, Row], configs: Path | None) -> Iterator[tuple[str, Start]]:
    """The rows that can be predicted."""
    for log_id, row in rows.items():
        try:
            model = find_model(row["hub_id"] or row["model"], row, configs)
            start = Start(row, model, as_log(row), log_id in SPOILT)
            start.budget(shipped())
        except (PlannerError, LookupError):
            continue
        yield log_id, start


def refit(starts: Mapping[str, Start], *, without: str) -> tuple[Constants, list[str]]:
    """The constants fitted to all hosts but one, and the names of those that rest on it alone."""
    fits, alone = [], []
    for fit in shipped().fits:
        known = [starts[log].host for log in fit.logs if log in starts]
        if fit.name in FITTED and without in known and not any(host != without for host in known):
            alone.append(fit.name)
            if another(fit, shipped().fits):
                continue
        fits.append(fit)
    constants = Constants(tuple(fits))
    for _ in range(ROUNDS):
        constants = Constants(tuple(refitted(fit, starts, constants, without) for fit in constants.fits))
    return constants, list(dict.fromkeys(alone))


def refitted(fit: FittedConstant, starts: Mapping[str, Start], constants: Constants, without: str) -> FittedConstant:
    """One constant as the hosts of its logs imply it: the median, and their range."""
    if fit.name not in FITTED:
        return fit
    implied: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for log in fit.logs:
        start = starts.get(log)
        if start and start.host != without and (found := imply(fit.name, start, start.budget(constants))):
            implied[start.host].append(found)
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


def factor_without(
    host: str,
    judged: Mapping[str, Compared],
    rows: Mapping[str, Row],
    fits: Mapping[str, tuple[Constants, list[str]]],
    configs: Path | None,
) -> float:
    """The smallest factor with which nine tenths of the other hosts' logs are inside, each host of the same weight."""
    for factor in FACTORS:
        inside: dict[str, list[bool]] = defaultdict(list)
        for log in judged:
            other = host_of(rows[log])
            if other != host:
                inside[other].append(_inside(rows[log], configs, fits[other][0], factor))
        if statistics.fmean(statistics.fmean(found) for found in inside.values()) >= 0.9:
            return factor
    return FACTORS[-1]


_known_inside: dict[tuple[str, float], bool] = {}


def _inside(row: Row, configs: Path | None, constants: Constants, factor: float) -> bool:
    key = row["log_id"], factor
    if key not in _known_inside:
        _known_inside[key] = compare(row, configs, widened(constants, factor)).inside
    return _known_inside[key]


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
    terms, overheads = peak_terms(budget.model, budget.config, element_bytes(budget.config.dtype)), budget.overheads
    sizes = {
        "sampler": (terms.logits_bytes, terms.hidden_bytes),
        "forward": (terms.forward_bytes, 0),
        "encoder": (terms.encoder_bytes, 0),
    }
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
        f"{kind:<26} n {len(errors)}  median {statistics.median(errors):.2%}  mean {statistics.fmean(errors):.2%}  "
        f"within 10 %: {within:.0%}  worst {max(errors):.1%}  inside the interval {inside} of {len(errors)}  "
        f"median width {statistics.median(width(c) for c in compared):.3f}"
    )


def by_host(kind: str, compared: Mapping[str, Compared], rows: Mapping[str, Row]) -> str:
    """The same with each host counted once: the means of its logs."""
    hosts: dict[str, list[Compared]] = defaultdict(list)
    for log, found in compared.items():
        hosts[host_of(rows[log])].append(found)
    errors = [statistics.fmean(abs(error(c.tokens)) for c in found if c.tokens) for found in hosts.values()]
    inside = statistics.fmean(statistics.fmean(c.inside for c in found) for found in hosts.values())
    within = statistics.fmean(
        statistics.fmean(abs(error(c.tokens)) <= 0.10 for c in found if c.tokens) for found in hosts.values()
    )
    return (
        f"{kind + ', by host':<26} n {len(hosts)}  median {statistics.median(errors):.2%}  within 10 %: {within:.0%}  "
        f"inside the interval {inside:.0%}"
    )


if __name__ == "__main__":
    main()
