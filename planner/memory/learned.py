"""Constants of one user's GPU, computed from one of its start-up logs.

A log gives sums of bytes. From them we compute the constants of ``memory.toml``, so that the log also improves the
answer for other models and settings on the same GPU::

    sampler    (peak activation - hidden states) / one copy of the logits, where sampling is the largest peak;
    forward    peak activation / formula, where the forward pass is (``encoder`` alike)
    graphs     what was captured, less what layers and batch sizes explain

Each is kept twice: for the model of the log, with the rounding of the log as its interval; and for other models on
the same GPU, vLLM minor version and TP size, with the known spread between models. Most versions print only what is
left for the cache. Then memory outside torch and graphs are taken as fitted, and activations are the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from planner.hardware import GpuProfile
from planner.memory.activations import peak_terms
from planner.memory.budget import MemoryBudget, graph_captures
from planner.memory.kv_cache import element_bytes
from planner.memory.overheads import FittedConstant, Interval, spread
from planner.memory.startup_log import StartupLog
from planner.units import GIB

#: Half of the last digit that vLLM prints.
ROUNDING_BYTES = 0.005 * GIB
IMPLIED = "the log prints the sum of activations and memory outside torch; the planner divides it"
PEAKS = ("sampler", "forward", "encoder")


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What a log says, or implies, about the overheads on one GPU, bytes; None: nothing."""

    activation: Interval | None
    non_torch: Interval | None
    graphs: Interval | None
    implied: bool = False  #: only their sum was printed


def learn_constants(
    log: StartupLog, budget: MemoryBudget, profile: GpuProfile, *, origin: str
) -> tuple[FittedConstant, ...]:
    """The constants that ``log`` implies; ``budget`` is the prediction for its settings, from fitted constants.

    The constants for the log's own model come first. Empty when the log says nothing about overheads. ``origin`` is
    the file that will hold them.
    """
    parts = parts_of(log, budget)
    own: dict[str, Interval] = {}
    others: dict[str, Interval] = {}
    if log.memory_bytes:
        others |= {"memory": _rounded(log.memory_bytes), "reported_memory": Interval.exact(0)}
    if parts.non_torch:
        own["non_torch"] = parts.non_torch
        others["non_torch"] = _spread("non_torch", parts.non_torch)
    for name, narrow, wide in _peaks(parts, budget):
        own[name] = narrow
        others |= {name: _spread(name, wide)} if wide else {}
    for name, narrow in _graph_constants(parts, budget):
        own[name], others[name] = narrow, _spread(name, narrow)
    cache = cache_bytes(log, budget)
    if own and cache is not None:
        rest = _requested(log, budget) - cache
        own |= {"unexplained": _unexplained(rest, parts, budget), "reported_memory": Interval.exact(0)}
    gpu = {"gpu": profile.id, "tensor_parallel_size": budget.config.tensor_parallel_size}
    major, minor = (*budget.config.version.release, 0)[:2]

    def kept(found: dict[str, Interval], where: dict[str, Any]) -> Iterator[FittedConstant]:
        for name, interval in found.items():
            note = IMPLIED if parts.implied and name in (*PEAKS, "non_torch") else ""
            yield FittedConstant(name, interval, (log.digest,), where, (major, minor), (major, minor + 1), note, origin)

    model = {"model": budget.model.id, "weight_dtype": budget.config.weight_dtype}
    return (*kept(own, {**gpu, **model}), *kept(others, gpu))


def parts_of(log: StartupLog, budget: MemoryBudget) -> MemoryParts:
    """The overheads that a log prints. Where it prints only what is left, the fitted constants divide the sum."""
    stage, found = budget.binding, budget.features
    graphs = log.graph_estimate_bytes if found.graphs_in_budget else log.graph_bytes
    if graphs is not None and graphs <= 0:  # a difference of free memory: the allocator gave some back
        graphs = None
    activation, non_torch = log.activation_bytes, log.non_torch_bytes
    if activation is not None and graphs and found.activation_includes_graphs:
        activation -= graphs
    if non_torch is None and log.consumed_bytes is not None and log.weights_bytes is not None:
        non_torch = log.consumed_bytes - log.weights_bytes
    taken = MemoryParts(_printed(activation), _printed(non_torch), _printed(graphs))
    rest = _rest(log, budget)
    if rest is None or (activation is not None and non_torch is not None):
        return taken
    if found.graphs_in_budget:
        rest -= stage.graphs.mid if graphs is None else graphs
    if activation is not None:
        return replace(taken, non_torch=_rounded(rest - activation), implied=True)
    outside = taken.non_torch or stage.non_torch
    mid = min(outside.mid, max(rest, 0.0))
    peak = Interval(*(max(0.0, rest - part) for part in (mid, max(outside.high, mid), min(outside.low, mid))))
    return replace(taken, activation=peak, non_torch=_rounded(mid), implied=True)


def cache_bytes(log: StartupLog, budget: MemoryBudget) -> float | None:
    """Memory left for the cache of a GPU; None where it was given. V0 before 0.6.5 prints only blocks."""
    if log.given_cache:
        return None
    if log.kv_cache_bytes is None and log.num_gpu_blocks is not None:
        return float(log.num_gpu_blocks * budget.binding.block_bytes)
    return log.kv_cache_bytes


def _rest(log: StartupLog, budget: MemoryBudget) -> float | None:
    """Budget less weights and cache: everything that the log does not name."""
    cache = cache_bytes(log, budget)
    if cache is None or log.weights_bytes is None:
        return None
    return _requested(log, budget) - log.weights_bytes - cache


def _requested(log: StartupLog, budget: MemoryBudget) -> int:
    return ceil((log.memory_bytes or budget.memory_bytes) * budget.config.gpu_memory_utilization)


def _peaks(parts: MemoryParts, budget: MemoryBudget) -> Iterator[tuple[str, Interval, Interval | None]]:
    """Each term of the profile run: name, constant for this model, constant for others (None: the log does not say)."""
    if parts.activation is None:
        return
    overheads, exact = budget.overheads, _rounded(parts.activation.mid)
    terms = peak_terms(budget.model, budget.config, element_bytes(budget.config.dtype))
    sizes = {
        "sampler": (terms.logits_bytes, terms.hidden_bytes),
        "forward": (terms.forward_bytes, 0),
        "encoder": (terms.encoder_bytes, 0),
    }
    largest = max(sizes, key=lambda name: overheads[name].mid * sizes[name][0] + sizes[name][1])

    def constant(peak: Interval, size: int, fixed: int) -> Interval:
        return Interval(*(max(0.0, value - fixed) / size for value in (peak.mid, peak.low, peak.high)))

    for name, (size, fixed) in sizes.items():
        if size and name == largest:
            yield name, constant(exact, size, fixed), constant(parts.activation, size, fixed)
        elif size and constant(exact, size, fixed).low < overheads[name].high:  # no larger than the whole peak
            yield name, constant(exact, size, fixed).smaller(overheads[name]), None


def _unexplained(rest: float, parts: MemoryParts, budget: MemoryBudget) -> Interval:
    """The remainder that makes the parts add up to what is not cache; predicted weights are a little off too."""
    stage = budget.binding
    taken = [parts.activation or stage.activation, parts.non_torch or stage.non_torch]
    if stage.graphs_in_budget:
        taken.append(parts.graphs or stage.graphs)
    mid = rest - stage.weights.loaded_bytes - sum(part.mid for part in taken)
    return Interval(mid, mid - ROUNDING_BYTES, mid + ROUNDING_BYTES)


def _graph_constants(parts: MemoryParts, budget: MemoryBudget) -> Iterator[tuple[str, Interval]]:
    captures = graph_captures(budget.model, budget.config, budget.features)
    if parts.graphs is None or not captures:
        return
    each = min(budget.overheads["graph_each"].mid, parts.graphs.mid / captures)
    yield "graph_each", Interval.exact(each)
    yield "graphs", _rounded(parts.graphs.mid - each * captures)


def _printed(value: float | None) -> Interval | None:
    return None if value is None else _rounded(value)


def _rounded(value: float) -> Interval:
    """A figure as vLLM prints it."""
    if value < 0:
        return Interval.exact(0)
    return Interval(value, max(0.0, value - ROUNDING_BYTES), value + ROUNDING_BYTES)


def _spread(name: str, interval: Interval) -> Interval:
    """The interval for other models on the same GPU."""
    share = spread()[name]
    return Interval(interval.mid, interval.low * (1 - share), interval.high * (1 + share))
