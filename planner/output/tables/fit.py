"""``planner fit`` in words and rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED, Interval
from planner.model import ResolvedModel
from planner.output.render import Column, pair_lines, rows_of, table_text, wrapped
from planner.output.result import Result
from planner.output.tables.shared import MORE, engine_note, listed
from planner.planning import ArithmeticLine, Fit, LogLine, Verdict, explain
from planner.units import GIB, format_bytes, format_gb

COLUMNS = (
    Column("gpu", of=lambda fit: fit.gpu_id),
    Column("tensor_parallel_size", "tp", of=lambda fit: fit.config.tensor_parallel_size),
    Column("weight_dtype", "weights", of=lambda fit: fit.config.weight_dtype),
    Column("kv_cache_dtype", "kv cache", of=lambda fit: fit.config.kv_cache_dtype),
    Column("verdict"),
    Column("weights_gib", "weights GiB", ",.2f", of=lambda fit: fit.stage.weights.weight_bytes / GIB),
    Column("kv_cache_gib", "left GiB", ",.2f", of=lambda fit: fit.kv_cache.mid / GIB),
    Column("kv_cache_tokens", "kv tokens", ","),
    Column("max_model_len", "context", ",", of=lambda fit: fit.config.max_model_len),
    Column("max_concurrency", "requests", ",.2f"),
    Column("min_tensor_parallel_size", "min tp"),
    Column("engine_version", "vllm", of=lambda fit: str(fit.config.version)),
    Column("reason", aside=True),
)
#: On one screen: columns that go first, of a sweep and of several GPUs.
SPARE = {
    True: ("min_tensor_parallel_size", "engine_version"),
    False: ("kv_cache_dtype", "max_model_len", "engine_version"),
}
BRIEF_ROWS = 24
BRIEF_NAMES = 4
LOG_COLUMNS = (
    Column("line"), Column("unit"), Column("predicted"), Column("interval"), Column("logged"), Column("inside"),
)  # fmt: skip
#: Options in the text; JSON has all of them.
OPTIONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class RefusedFit:
    """A GPU, among several, on which vLLM does not run these settings, whatever its memory."""

    profile: GpuProfile
    error: PlannerError

    @property
    def fits(self) -> bool:
        """Never."""
        return False


GpuFit = Fit | RefusedFit


@dataclass(frozen=True, repr=False)
class FitAnswer(Result):
    """Whether a model fits on one GPU: ``planner fit``."""

    verdict_first = True
    record: Fit  #: every figure, typed; bytes per GPU, tokens and concurrency per engine
    resolved: ResolvedModel
    explain: bool = False  #: show each step of the calculation (``--explain``)
    remarks: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it fits, by the best estimate; ``verdict`` says how sure that is."""
        return self.record.fits

    ok = fits

    @property
    def verdict(self) -> Verdict:
        """``fits``, ``does not fit`` or ``too close to call``."""
        return self.record.verdict

    def _object(self) -> dict[str, Any]:
        return _object(self.record, self.resolved, arithmetic=self.explain)

    def _rows(self) -> list[dict[str, Any]]:
        return [_row(self.record)]

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _lines(self) -> Iterator[str]:
        return _lines(self.record, self.resolved, arithmetic=self.explain)

    def _title(self) -> str:
        return _headline(self.record, self.resolved)

    def _html_rows(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        columns = Column("what", ""), Column("figure", "")
        return [{"what": label, "figure": value} for label, value in _figures(self.record)], columns

    def _notes(self) -> Iterable[str]:
        return *self.resolved.notes, *self.record.notes


@dataclass(frozen=True, repr=False)
class FitTable(Result):
    """Whether a model fits on several GPUs or with several settings, a row for each: ``planner fit``."""

    verdict_first = True
    answers: tuple[GpuFit, ...]
    resolved: ResolvedModel
    sweep: bool = False  #: over settings, which need not all fit
    remarks: tuple[str, ...] = ()
    explain: bool = False

    @property
    def ok(self) -> bool:
        """Whether all fit; a sweep is always fine."""
        return self.sweep or all(answer.fits for answer in self.answers)

    def _object(self) -> list[dict[str, Any]]:
        return [_object(answer, self.resolved, arithmetic=self.explain) for answer in self.answers]

    def _rows(self) -> list[dict[str, Any]]:
        return [_row(answer) for answer in self.answers]

    def _columns(self) -> Sequence[Column]:
        return COLUMNS

    def _title(self) -> str:
        return self.resolved.resolved

    def _verdict(self) -> str:
        """Where it fits, in a sentence."""
        fitting = [answer for answer in self.answers if not isinstance(answer, RefusedFit) and answer.fits]
        model, among = self.resolved.resolved, len(self.answers)
        what = "settings" if self.sweep else "GPUs"
        if not fitting:
            sizes = [a.min_tensor_parallel_size for a in self.answers if not isinstance(a, RefusedFit)]
            least = min((size for size in sizes if size), default=None)
            then = f"; the least is --tensor-parallel-size {least}" if least and not self.sweep else ""
            return f"{model} fits on none of {among} {what}{then}"
        names = [answer.gpu_id for answer in fitting]
        most = max(fitting, key=lambda answer: answer.max_concurrency)
        where = "" if self.sweep else f": {listed(names, BRIEF_NAMES)}"
        held = f"{most.max_concurrency:,.2f} of {most.config.max_model_len:,} tokens"
        then = (
            f"most requests at once ({held}) on {_setting(most)}" if len(fitting) > 1 else f"requests at once: {held}"
        )
        return f"{model} fits {'with' if self.sweep else 'on'} {len(fitting)} of {among} {what}{where}; {then}"

    def _lines(self) -> Iterator[str]:
        yield wrapped(self._verdict()) + "\n"
        yield from super()._lines()

    def _brief_lines(self) -> Iterator[str]:
        yield wrapped(self._verdict()) + "\n"
        shown: Sequence[GpuFit] = self.answers
        if len(shown) > BRIEF_ROWS:  # those that fit first, and of these the ones that hold most
            shown = sorted(shown, key=_emptiest)[:BRIEF_ROWS]
        columns = [replace(c, spare=c.key in SPARE[self.sweep]) for c in COLUMNS if not c.aside]
        yield table_text([_row(answer) for answer in shown], columns)
        if len(shown) < len(self.answers):
            yield f"and {len(self.answers) - len(shown)} more"

    def _brief_notes(self) -> Iterable[str]:
        refused = [answer.profile.id for answer in self.answers if isinstance(answer, RefusedFit)]
        yield from self.resolved.notes
        if refused:
            yield f"vLLM refuses these settings on {listed(refused, BRIEF_NAMES)}"
        versions = (str(a.config.version) for a in self.answers if not isinstance(a, RefusedFit))
        yield "; ".join([*engine_note(versions), MORE])

    def _notes(self) -> Iterable[str]:
        refused = (f"{a.profile.id}: {a.error.cause}" for a in self.answers if isinstance(a, RefusedFit))
        return *self.resolved.notes, *refused


def _object(answer: GpuFit, resolved: ResolvedModel, *, arithmetic: bool) -> dict[str, Any]:
    if isinstance(answer, RefusedFit):
        return _refused_object(answer, resolved)
    found = answer.to_json()
    found["model"] = {**found["model"], "requested": resolved.requested, "resolved": resolved.resolved}
    found["notes"] = [*resolved.notes, *found["notes"]]
    if arithmetic:
        found["arithmetic"] = [{"label": e.label, "value": e.value, "how": e.how} for e in explain(answer)]
    return found


def _refused_object(answer: RefusedFit, resolved: ResolvedModel) -> dict[str, Any]:
    model, profile = resolved.model, answer.profile
    return {
        "fits": False,
        "verdict": "does not fit",
        "probability_fits": 0.0,
        "reason": answer.error.cause,
        "error": answer.error.cause,
        "hint": answer.error.hint,
        "model": {
            "requested": resolved.requested,
            "resolved": resolved.resolved,
            "total_params": model.total_params,
            "active_params": model.active_params,
        },
        "gpu": {"id": profile.id, "memory_bytes": profile.memory_bytes},
    }


def _row(answer: GpuFit) -> dict[str, Any]:
    if isinstance(answer, RefusedFit):
        return {"gpu": answer.profile.id, "verdict": "refused", "reason": answer.error.cause}
    return rows_of((answer,), COLUMNS)[0]


def _emptiest(answer: GpuFit) -> float:
    return 0.0 if isinstance(answer, RefusedFit) else -answer.max_concurrency - answer.fits


def _setting(fit: Fit) -> str:
    config = fit.config
    size = f" TP {config.tensor_parallel_size}" if config.tensor_parallel_size > 1 else ""
    return f"{fit.gpu_id}{size}, {config.weight_dtype}"


def _headline(result: Fit, resolved: ResolvedModel) -> str:
    config = result.config
    where = f"{config.num_gpus} x {result.gpu_id}" if config.num_gpus > 1 else result.gpu_id
    return f"{resolved.resolved} on {where}, vLLM {config.version}: {result.verdict_words}"


def _lines(result: Fit, resolved: ResolvedModel, *, arithmetic: bool) -> Iterator[str]:
    yield wrapped(_headline(result, resolved))
    if result.reason:
        yield wrapped(_reason(result), first="  ", rest="  ")
    yield ""
    yield from pair_lines(_figures(result))
    if result.startup_log:
        yield "\nPredicted beside logged:"
        yield table_text([_log_row(line) for line in result.startup_log], LOG_COLUMNS)
    yield from _option_lines(result)
    if arithmetic:
        yield ""
        yield from map(_explained, explain(result))


def _reason(result: Fit) -> str:
    """What vLLM would say; where that is not sure, how far the margin reaches."""
    if result.verdict == "does not fit":
        return result.reason
    condition = result.binding_condition
    short, spare = -condition.margin.low / GIB, condition.margin.high / GIB
    return f"{condition.name}: from {short:,.2f} GiB too little to {spare:,.2f} GiB to spare"


def _figures(result: Fit) -> Iterator[tuple[str, str]]:
    config, weights = result.config, result.stage.weights.weight_bytes
    on_each = " on each GPU" if config.num_gpus > 1 else ""
    yield "weights", f"{format_bytes(weights)} ({format_gb(weights)}){on_each}, {config.weight_dtype}"
    if absorbed := result.stage.weights.absorbed_bytes:
        yield "products of projections", f"{format_bytes(absorbed)}{on_each}, kept beside the weights of MLA"
    if offloaded := result.stage.weights.offloaded_bytes:
        yield "of these in host memory", f"{format_bytes(offloaded)}{on_each}"
    if lora := config.lora:
        held = format_bytes(result.stage.weights.lora_bytes)
        yield "adapters", f"{held}{on_each} for {lora.max_loras} of rank {lora.max_lora_rank}"
    memory = f"{format_bytes(result.budget.memory_bytes)}{on_each}"
    if result.stage.given_bytes is not None:
        yield "memory", memory
        yield "left beside the weights", _left(result.stage.left)
        yield "size of the KV cache", f"{format_bytes(result.stage.given_bytes)}, given by {config.kv_cache_given_by}"
    else:
        yield "memory", f"{memory}, {config.gpu_memory_utilization:g} of it in vLLM's budget"
        yield "left for the KV cache", _left(result.kv_cache)
    if result.budget.pool.groups:
        yield "KV cache per token", _per_token(result)
    if result.host_kv_cache_tokens:
        yield "KV cache in host memory", f"{result.host_kv_cache_tokens:,} tokens, for prefixes that are sent again"
    if result.kv_cache_tokens:
        yield "KV cache", f"{result.kv_cache_tokens:,} tokens"
        at_once = f", {result.max_concurrency:,.2f} requests of that length at once"
    else:
        at_once = ""
    yield "context", f"{config.max_model_len:,} tokens{at_once}"
    several = config.tensor_parallel_size > result.deployment.profile.gpus_per_node
    none = "none fits" if several else "none fits in one node"
    yield "smallest tensor-parallel size", f"{result.min_tensor_parallel_size or none}"
    yield "memory overheads", "fitted, as shipped" if result.calibration == SHIPPED else result.calibration


def _per_token(result: Fit) -> str:
    """What a token takes, and one more token where windows, states or compressed rows make that another figure."""
    more, length = result.kv_bytes_per_next_token, result.config.max_model_len
    mean, dtype = result.kv_bytes_per_request / length, result.config.kv_cache_dtype
    if abs(mean - more) <= 0.01 * mean:
        return f"{more:,.0f} bytes, {dtype}"
    return f"{mean:,.0f} bytes on average over {length:,} tokens, {more:,.0f} for each further one, {dtype}"


def _left(room: Interval) -> str:
    """What is left for the KV cache, or what is missing, with the interval of the estimate."""
    low, high = f"{room.low / GIB:,.2f}", f"{room.high / GIB:,.2f}"
    if room.mid >= 0:
        return f"{format_bytes(room.mid)} ({low} to {high})"
    most = f"{-room.high / GIB:,.2f}" if room.high < 0 else f"{high} GiB to spare"
    between = f"{most} to {-room.low / GIB:,.2f}" if room.high < 0 else f"{-room.low / GIB:,.2f} too little to {most}"
    return f"nothing: {format_bytes(-room.mid)} too little ({between})"


def _log_row(line: LogLine) -> dict[str, Any]:
    """Bytes in GiB, everything else as logged."""
    scale, form = (GIB, ",.2f") if line.unit == "bytes" else (1, ",.2f" if line.unit == "requests" else ",.0f")
    predicted = line.predicted
    return {
        "line": line.line,
        "unit": "GiB" if line.unit == "bytes" else line.unit,
        "predicted": format(predicted.mid / scale, form),
        "interval": f"{predicted.low / scale:{form}} to {predicted.high / scale:{form}}",
        "logged": format(line.logged / scale, form),
        "inside": line.inside,
    }


def _option_lines(result: Fit) -> Iterator[str]:
    if result.options:
        yield "\nWhat would make it fit (each one checked):"
    for option in result.options[:OPTIONS_SHOWN]:
        yield wrapped(f"{option.change}: {' '.join(option.flags)}", first="  ", rest="      ")
        at_once = f"{option.max_concurrency:.2f} requests at once"
        yield f"    {option.verdict}, {option.kv_cache_tokens:,} tokens, {at_once}"


def _explained(line: ArithmeticLine) -> str:
    start = f"{line.label:<32} {line.value:>26}  "
    return wrapped(line.how, first=start, rest=" " * len(start)) if line.how else start.rstrip()
