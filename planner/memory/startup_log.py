"""Memory figures of a start-up log of vLLM, and the constants of a user's GPU that they imply.

- ``sampler`` is (peak activation - hidden states) / one copy of the logits, where sampling is the largest peak.
- ``forward`` is peak activation / formula, where the forward pass is the largest peak (``encoder`` alike).
- ``graphs`` is the captured memory, less what layers and batch sizes explain.

Each has two values. That for the log's model has its rounding as interval. That for others on the same GPU, vLLM minor
version and TP size has the known spread between models. Where only the cache is printed, the rest is activations."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import ceil
from typing import Any, Self

from planner.engine import SETTINGS, tagged
from planner.errors import InputError
from planner.memory.budget import MemoryBudget, graph_captures, peak_terms_of
from planner.memory.overheads import FittedConstant, spread
from planner.resources import package_dir, tables_of
from planner.units import GIB, Interval

_WHOLE = r"\d{1,18}\b"
_N = r"(-?\d[\d,]{0,20}(?:\.\d+)?)"
_FORMS = tables_of(package_dir("memory") / "startup_log.toml")
#: All settings: ``name=value`` of its summary, ``'name': value`` of its arguments.
_SETTINGS = (
    *_FORMS["spelled"],
    *(
        (name, rf"{name}(?:=|': )({'True|False' if SETTINGS[name].is_switch else _WHOLE})")
        for name in (*tagged("layout"), *tagged("logged"))
        if name not in dict(_FORMS["spelled"])
    ),
)
#: Lines that begin a start-up, and end an earlier one in the same file.
_BEGIN = ("vLLM API server version", "non-default args: ")
#: Words of a start whose cache has a given size: vLLM then measures no memory.
_GIVEN = ("as specified by kv_cache_memory_bytes", "Explicitly set (")
GIVEN = "the size of this cache was given (--kv-cache-memory-bytes or VLLM_CPU_KVCACHE_SPACE), not measured"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_RANK = re.compile(r"\((?:Worker|VllmWorker|VllmWorkerProcess|RayWorkerWrapper|EngineCore_DP\d)[^)]*\)")
_OF_THE_CACHE = {"kv_cache_bytes": "KV cache memory", "kv_cache_tokens": "KV cache tokens", "num_gpu_blocks": "blocks"}
_per_rank = tuple((field, re.compile(form.replace("{N}", _N))) for field, form in _FORMS["per_rank"])
_settings = tuple((field, re.compile(expression)) for field, expression in _SETTINGS)


@dataclass(frozen=True)
class StartupLog:
    """Memory of one start-up as logged. Bytes per rank, tokens per engine; None: not printed."""

    version: str | None
    model: str | None
    settings: Mapping[str, int | float | bool | str]  #: by vLLM's names, those that it printed
    memory_bytes: float | None = None  #: total that the driver reported
    weights_bytes: float | None = None  #: of the heaviest rank
    activation_bytes: float | None = None
    non_torch_bytes: float | None = None
    consumed_bytes: float | None = None  #: weights and non-torch memory as one figure (0.27 on)
    graph_bytes: float | None = None
    graph_estimate_bytes: float | None = None
    kv_cache_bytes: float | None = None  #: least of all ranks
    kv_cache_tokens: int | None = None
    num_gpu_blocks: int | None = None
    max_concurrency: float | None = None
    block_size: int | None = None
    refusal: str | None = None  #: vLLM's own words, where it did not start
    given_cache: bool = False  #: the size of the cache was asked for, not what was left
    ranks: int = 1  #: that printed anything
    notes: tuple[str, ...] = ()
    digest: str = ""  #: first eight hexadecimal digits of the text's SHA-256

    def of_model(self, *names: str) -> Self:
        """This log. Raises InputError where it is of another model than the one of these ``names``."""
        if self.model and _last_part(self.model) not in map(_last_part, names):
            raise InputError(f"the log is of {self.model}, not of {names[0]}", hint="give the log of the same model")
        return self


def read_startup_log(text: str) -> StartupLog:
    """Read the memory figures of a start-up log. Raises InputError for one that ends too early, or is not vLLM's."""
    by_rank: dict[str, dict[str, float]] = defaultdict(dict)
    settings: dict[str, str] = {}
    refusal: str | None = None
    given = False
    for line in _ANSI.sub("", text).splitlines():
        if by_rank and any(words in line for words in _BEGIN):
            by_rank.clear()
            settings.clear()
            refusal, given = None, False
        _read_line(line, by_rank, settings)
        given = given or any(words in line for words in _GIVEN)
        if refusal is None and any(words in line for words in _FORMS["refusals"]):
            refusal = line.strip()[-400:]
    values: dict[str, list[float]] = defaultdict(list)
    for of_rank in by_rank.values():
        for name, value in of_rank.items():
            values[name].append(value)
    if refusal is None and not values.keys() & _OF_THE_CACHE.keys():
        cause = f"the log ends before the KV cache was made; it has: {', '.join(sorted(values))}"
        hint = "give the server's output from its start until 'Application startup complete', at log level INFO"
        raise InputError(cause if values else "this log has no line of a vLLM start-up", hint=hint)
    read: dict[str, Any] = {name: (min if _is_least(name) else max)(numbers) for name, numbers in values.items()}
    for name, value in read.items():
        read[name] = value * GIB if name.endswith("_bytes") else value if name == "max_concurrency" else int(value)
    notes = [
        f"ranks disagree on {_OF_THE_CACHE[name]} ({min(numbers):,g} to {max(numbers):,g}): the smallest counts"
        for name, numbers in values.items()
        if name in _OF_THE_CACHE and len(set(numbers)) > 1
    ]
    if "max_model_len" in read:
        settings["max_model_len"] = str(read.pop("max_model_len"))
    return StartupLog(
        version=settings.pop("version", None),
        model=settings.pop("model", None),
        settings={name: _value(text) for name, text in settings.items()},
        **read,
        refusal=refusal,
        given_cache=given,
        ranks=sum(any(name.endswith("_bytes") for name in of_rank) for of_rank in by_rank.values()),
        notes=(*notes, GIVEN) if given else tuple(notes),
        digest=sha256(text.encode()).hexdigest()[:8],
    )


def _read_line(line: str, by_rank: dict[str, dict[str, float]], settings: dict[str, str]) -> None:
    for field, expression in _per_rank:
        if match := expression.search(line):
            rank, value = _RANK.search(line), float(match[match.lastindex or 1].replace(",", ""))
            own = by_rank[rank[0] if rank else ""]  # without a rank, lines of all ranks follow each other
            own[field] = min(value, own.get(field, value)) if _is_least(field) else value
    for field, expression in _settings:
        if match := expression.search(line):
            settings.setdefault(field, match[1])
    for words, field, choice in _FORMS["choices"]:
        if words in line:
            settings.setdefault(field, choice)


def _is_least(name: str) -> bool:
    """True if the smallest of all ranks counts, not the largest."""
    return name in ("memory_bytes", "kv_cache_bytes") or not name.endswith("_bytes")


def _last_part(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _value(text: str) -> int | float | bool | str:
    if text in ("True", "False"):
        return text == "True"
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d*\.\d+", text) else text


ROUNDING_BYTES = 0.005 * GIB  #: half of the last digit that vLLM prints
IMPLIED = "the log prints the sum of activations and memory outside torch; the planner divides it"
PEAKS = ("sampler", "forward", "encoder")


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Overheads on one GPU that a log prints or implies, bytes; None: unknown."""

    activation: Interval | None
    non_torch: Interval | None
    graphs: Interval | None
    implied: bool = False  #: only their sum was printed


def learn_constants(log: StartupLog, budget: MemoryBudget, *, origin: str) -> tuple[FittedConstant, ...]:
    """Constants that ``log`` implies, those for its own model first; ``budget`` is the prediction for its settings."""
    parts = parts_of(log, budget)
    own: dict[str, Interval] = {}
    others: dict[str, Interval] = {}
    if log.memory_bytes:
        others |= {"memory": _rounded(log.memory_bytes), "reported_memory": Interval.exact(0)}
    if parts.non_torch:
        own["non_torch"] = parts.non_torch.minus(Interval.exact(budget.exchange_bytes))
        others["non_torch"] = _spread("non_torch", own["non_torch"])
    for name, narrow, wide in _peaks(parts, budget):
        own[name] = narrow
        others |= {name: _spread(name, wide)} if wide else {}
    if parts.graphs and (captures := graph_captures(budget.model, budget.config, budget.features)):
        each = min(budget.overheads["graph_each"].mid, parts.graphs.mid / captures)
        graphs = {"graph_each": Interval.exact(each), "graphs": _rounded(parts.graphs.mid - each * captures)}
        own |= graphs
        others |= {name: _spread(name, interval) for name, interval in graphs.items()}
    cache = cache_bytes(log, budget)
    if own and cache is not None:
        # the remainder that makes the parts add up to the memory beside the cache
        stage = budget.binding
        taken = [parts.activation or stage.activation, parts.non_torch or stage.non_torch]
        taken += [parts.graphs or stage.graphs] if stage.graphs_in_budget else []
        mid = _requested(log, budget) - cache - stage.weights.loaded_bytes - sum(part.mid for part in taken)
        own |= dict.fromkeys(("reported_memory", "loading"), Interval.exact(0))
        own["unexplained"] = Interval(mid, mid - ROUNDING_BYTES, mid + ROUNDING_BYTES)
    gpu = {"gpu": budget.overheads.where["gpu"], "tensor_parallel_size": budget.config.tensor_parallel_size}
    major, minor = (*budget.config.version.release, 0)[:2]

    def kept(found: dict[str, Interval], where: dict[str, Any]) -> Iterator[FittedConstant]:
        for name, interval in found.items():
            note = IMPLIED if parts.implied and name in (*PEAKS, "non_torch") else ""
            yield FittedConstant(name, interval, (log.digest,), where, (major, minor), (major, minor + 1), note, origin)

    model = {"model": budget.model.id, "weight_dtype": budget.config.weight_dtype}
    return (*kept(own, {**gpu, **model}), *kept(others, gpu))


def parts_of(log: StartupLog, budget: MemoryBudget) -> MemoryParts:
    stage, found = budget.binding, budget.features
    graphs = log.graph_estimate_bytes if found.graphs_in_budget else log.graph_bytes
    if graphs is not None and graphs <= 0:  # a difference of free memory: the allocator gave some back
        graphs = None
    activation, non_torch = log.activation_bytes, log.non_torch_bytes
    if activation is not None and graphs and found.activation_includes_graphs:
        activation -= graphs
    if non_torch is None and log.consumed_bytes is not None and log.weights_bytes is not None:
        non_torch = log.consumed_bytes - log.weights_bytes
    printed = [None if one is None else _rounded(one) for one in (activation, non_torch, graphs)]
    taken = MemoryParts(printed[0], printed[1], printed[2])
    cache = cache_bytes(log, budget)
    if cache is None or log.weights_bytes is None or (activation is not None and non_torch is not None):
        return taken
    rest = _requested(log, budget) - log.weights_bytes - cache
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


def _requested(log: StartupLog, budget: MemoryBudget) -> int:
    return ceil((log.memory_bytes or budget.memory_bytes) * budget.config.gpu_memory_utilization)


def _peaks(parts: MemoryParts, budget: MemoryBudget) -> Iterator[tuple[str, Interval, Interval | None]]:
    """Each term of the profile run: name, constant for this model, constant for others (None: the log does not say)."""
    if parts.activation is None:
        return
    overheads, exact = budget.overheads, _rounded(parts.activation.mid)
    sizes = peak_terms_of(budget.model, budget.config, overheads).scaled
    largest = max(sizes, key=lambda name: overheads[name].mid * sizes[name][0] + sizes[name][1])

    def constant(peak: Interval, size: int, fixed: int) -> Interval:
        return Interval(*(max(0.0, value - fixed) / size for value in (peak.mid, peak.low, peak.high)))

    for name, (size, fixed) in sizes.items():
        if size and name == largest:
            yield name, constant(exact, size, fixed), constant(parts.activation, size, fixed)
        elif size and constant(exact, size, fixed).low < overheads[name].high:  # no larger than the whole peak
            yield name, constant(exact, size, fixed).smaller(overheads[name]), None


def _rounded(value: float) -> Interval:
    if value < 0:
        return Interval.exact(0)
    return Interval(value, max(0.0, value - ROUNDING_BYTES), value + ROUNDING_BYTES)


def _spread(name: str, interval: Interval) -> Interval:
    share = spread()[name]
    return Interval(interval.mid, interval.low * (1 - share), interval.high * (1 + share))
