"""How much of the memory model's accuracy is memory: each log predicted with constants fitted without it.

    python benchmarks/memory_leave_one_out.py PATH_TO_memory_logs.csv [--configs FOLDER]

The constants in ``hardware/calibration/memory.toml`` were chosen by people who saw the logs that they name. Here they
are fitted by rule: each is the median of what would reproduce its logs one by one, the other constants as they are,
a few times over. A part that a log prints counts before one that is only what remains. That is done once with all
logs and once without the log that is predicted; a constant that rests on that log alone falls away for the next one
that applies, or stays where there is none ("alone").

Printed are the errors of the KV cache tokens with the constants as shipped, fitted to all logs, and fitted without
the log.
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
from planner.memory.activations import peak_terms
from planner.memory.budget import MemoryBudget, graph_captures
from planner.memory.kv_cache import element_bytes
from planner.memory.learned import PEAKS, cache_bytes, parts_of
from planner.memory.overheads import Constants, FittedConstant, Interval, shipped
from planner.memory.startup_log import StartupLog
from planner.model.architecture import Model
from planner.units import GIB

#: Constants that logs decide; the others are not fitted to them.
FITTED = (*PEAKS, "non_torch", "graphs")
ROUNDS = 3


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


def main() -> None:
    """Print one line for each log and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--configs", type=Path)
    arguments = parser.parse_args()
    with arguments.logs.open(newline="") as file:
        rows = {row["log_id"][:8]: row for row in csv.DictReader(file)}
    starts = dict(find_starts(rows, arguments.configs))
    everything, _ = refit(starts, without="")
    kinds: dict[str, list[Compared]] = defaultdict(list)
    for log_id, row in rows.items():
        as_shipped = compare(row, arguments.configs)
        if not (as_shipped.judged and as_shipped.tokens):
            continue
        constants, alone = refit(starts, without=log_id)
        found = (as_shipped, compare(row, arguments.configs, everything), compare(row, arguments.configs, constants))
        for kind, compared in zip(("as shipped", "fitted to all logs", "fitted without the log"), found, strict=True):
            kinds[kind].append(compared)
        errors = " ".join(f"{error(c.tokens):>+7.1%} {'in ' if c.inside else 'out'}" for c in found if c.tokens)
        note = f"  alone: {', '.join(alone)}" if alone else ""
        print(f"{as_shipped.log_id} {as_shipped.what} {errors}{note}")
    print()
    for kind, several in kinds.items():
        print(summary(kind, several))


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
    """The constants fitted to all logs but one, and the names of those that rest on it alone."""
    fits, alone = [], []
    used = [starts[without].budget(shipped()).overheads.find(name) for name in FITTED] if without in starts else []
    for fit in shipped().fits:
        if fit in used and without in fit.logs and not any(log in starts for log in fit.logs if log != without):
            alone.append(fit.name)
            if another(fit, shipped().fits):
                continue
        fits.append(fit)
    constants = Constants(tuple(fits))
    for _ in range(ROUNDS):
        constants = Constants(tuple(refitted(fit, starts, constants, without) for fit in constants.fits))
    return constants, alone


def refitted(fit: FittedConstant, starts: Mapping[str, Start], constants: Constants, without: str) -> FittedConstant:
    """One constant as its logs imply it."""
    if fit.name not in FITTED:
        return fit
    logs = [starts[log] for log in fit.logs if log != without and log in starts]
    implied = [imply(fit.name, start, start.budget(constants)) for start in logs]
    values = [value for value, printed in filter(None, implied) if printed] or [v for v, _ in filter(None, implied)]
    return replace(fit, interval=moved(fit.interval, statistics.median(values))) if values else fit


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
    """A row as if its log had been read."""

    def gib(column: str) -> float | None:
        value = number(row, column)
        return None if value is None else value * GIB

    return StartupLog(
        version=row["vllm_version"],
        model=row["hub_id"],
        settings={},
        memory_bytes=None,  # the row's GPU already has it
        weights_bytes=gib("model_load_gib"),
        activation_bytes=gib("activation_peak_gib"),
        non_torch_bytes=gib("non_torch_gib"),
        consumed_bytes=gib("consumed_gib"),
        graph_bytes=gib("cuda_graph_gib"),
        graph_estimate_bytes=gib("cuda_graph_estimated_gib"),
        kv_cache_bytes=gib("available_kv_cache_gib"),
        kv_cache_tokens=None,
        num_gpu_blocks=int(number(row, "gpu_blocks") or 0) or None,
        max_concurrency=None,
        block_size=None,
        refusal=None,
        given_cache=False,
        ranks=1,
        notes=(),
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


def moved(interval: Interval, mid: float) -> Interval:
    """The interval around another estimate, as wide in proportion; wide enough for the old one."""
    scale = mid / interval.mid if interval.mid else 1.0
    return Interval(mid, min(mid, interval.low * scale), max(mid, interval.high * scale))


def summary(kind: str, compared: list[Compared]) -> str:
    """Median, share within 10 %, worst, and share inside the interval."""
    errors = [abs(error(c.tokens)) for c in compared if c.tokens]
    inside = sum(c.inside for c in compared)
    within = sum(e <= 0.10 for e in errors) / len(errors)
    return (
        f"{kind:<26} n {len(errors)}  median {statistics.median(errors):.2%}  mean {statistics.fmean(errors):.2%}  "
        f"within 10 %: {within:.0%}  worst {max(errors):.1%}  inside the interval {inside} of {len(errors)}"
    )


if __name__ == "__main__":
    main()
