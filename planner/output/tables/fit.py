"""``planner fit`` in words and rows."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED
from planner.model import ResolvedModel
from planner.output.answer import Answer, fields_of, to_plain
from planner.output.render import SCHEMA_VERSION, at, columns_of, pair_lines, table_text, wrapped
from planner.output.tables.shared import MORE, engine_note, gpus_on_nodes, listed
from planner.planning import Fit, LogLine, Verdict, explain
from planner.units import GIB, Interval, format_bytes, format_gb, rounded

COLUMNS = columns_of("fit", engine_version=lambda fit: str(v) if (v := at(fit, "config.version")) else None)
#: On one screen: columns that go first, of a sweep and of several GPUs.
SPARE = {
    True: {"min_tensor_parallel_size": 1, "engine_version": 1, "kv_cache_gib": -1},
    False: {"kv_cache_dtype": 1, "max_model_len": 1, "engine_version": 1, "kv_cache_gib": -1},
}
BRIEF_ROWS = 24
BRIEF_NAMES = 4
LOG_COLUMNS = columns_of(
    "startup_log",
    unit=lambda line: "GiB" if line.unit == "bytes" else line.unit,
    predicted=lambda line: _logged(line, line.predicted),
    interval=lambda line: f"{_logged(line, line.lo)} to {_logged(line, line.hi)}",
    logged=lambda line: _logged(line, line.logged),
)
FIELDS = columns_of(  # of JSON
    "fit_fields",
    model=lambda fit: _names(fit.serving.resolved) | fields_of(fit.budget.model, "total_params", "active_params"),
    gpu=lambda fit: fields_of(fit, "id=gpu_id", "budget.memory_bytes"),
    engine_version=lambda fit: str(fit.config.version),
    speculative_config=lambda fit: (drafts := fit.config.speculative_config) and json.loads(drafts.text),
    kv_bytes_per_token=lambda fit: _whole(fit.kv_bytes_per_token),
    kv_bytes_per_next_token=lambda fit: _whole(round(fit.kv_bytes_per_next_token, 2)),
    kv_cache_tokens_lo=lambda fit: fit.budget.logged_tokens(fit.budget.num_blocks.low),
    kv_cache_tokens_hi=lambda fit: fit.budget.logged_tokens(fit.budget.num_blocks.high),
)
MUCH_TO_SPARE = 32  #: requests at once from which on the smallest settings are named
OPTIONS_SHOWN = 3  #: in the text; JSON has all of them


@dataclass(frozen=True, slots=True)
class RefusedFit:
    """A GPU, among several, on which vLLM does not run these settings, whatever its memory."""

    profile: GpuProfile
    error: PlannerError
    fits: Literal[False] = False


GpuFit = Fit | RefusedFit


@dataclass(frozen=True, repr=False)
class FitAnswer(Answer):
    """The memory of a model on one GPU, and whether vLLM starts: ``planner fit``."""

    verdict_first = True
    columns = COLUMNS
    record: Fit  #: every figure, typed; bytes per GPU, tokens and concurrency per engine
    resolved: ResolvedModel

    @property
    def fits(self) -> bool:
        """The best estimate; ``verdict`` says how sure that is."""
        return self.record.fits

    ok = fits

    @property
    def verdict(self) -> Verdict:
        """``fits``, ``does not fit`` or ``too close to call``."""
        return self.record.verdict

    def _object(self) -> dict[str, Any]:
        return _object(self.record, self.resolved, arithmetic=self.explain)

    def _records(self) -> tuple[Fit]:
        return (self.record,)

    def sentences(self) -> Iterator[str]:
        result = self.record
        config, profile = result.config, result.deployment.profile
        where = gpus_on_nodes(config.num_gpus, profile) if config.num_gpus > 1 else profile.id
        yield wrapped(f"{self.resolved.resolved} on {where}, vLLM {config.version}: {result.verdict_words}")
        if result.reason:
            yield wrapped(result.reason, first="  ", rest="  ")
        yield ""
        yield from pair_lines(_figures(result))
        if result.startup_log:
            yield "\nPredicted beside logged:"
            yield table_text(result.startup_log, LOG_COLUMNS)
        if result.options:
            yield "\nWhat would make it fit (each one checked):"
        for option in result.options[:OPTIONS_SHOWN]:
            words = str(option) if "model" in option.settings else f"{option.change}: {' '.join(option.flags)}"
            yield wrapped(words, first="  ", rest="      ")
            at_once = f"{option.max_concurrency:.2f} requests of {option.max_model_len:,} tokens at once"
            yield f"    {option.verdict}, {rounded(option.kv_cache_tokens)} tokens of KV cache, {at_once}"
        if self.explain:
            yield ""
            for line in explain(result):
                start = f"{line.label:<32} {line.value:>26}  "
                yield wrapped(line.how, first=start, rest=" " * len(start)) if line.how else start.rstrip()

    def _notes(self) -> Iterable[str]:
        yield from (*self.resolved.notes, *self.record.notes)
        if self.record.verdict == "does not fit" and not self.record.options:
            yield f"planner fit {self.resolved.resolved} --gpu all shows which GPUs hold it"


@dataclass(frozen=True, repr=False)
class FitTable(Answer):
    """``FitAnswer`` for several GPUs or with several settings, a row for each: ``planner fit``."""

    verdict_first = True
    columns = COLUMNS
    answers: tuple[GpuFit, ...]
    resolved: ResolvedModel
    sweep: bool = False  #: over settings, which need not all fit

    @property
    def ok(self) -> bool:
        """True if all fit, or one setting of a sweep."""
        return (any if self.sweep else all)(answer.fits for answer in self.answers)

    def _object(self) -> list[dict[str, Any]]:
        return [_object(answer, self.resolved, arithmetic=self.explain) for answer in self.answers]

    def _records(self) -> list[Any]:
        return list(map(_record, self.answers))

    def _verdict(self) -> str:
        fits = [answer for answer in self.answers if isinstance(answer, Fit)]
        fitting = [answer for answer in fits if answer.fits]
        among = f"{len(self.answers)} {'settings' if self.sweep else 'GPUs'}"
        if not fitting:
            least = min(((size, one.gpu_id) for one in fits if (size := one.min_tensor_parallel_size)), default=None)
            longest = max(((one.largest_max_model_len, one.gpu_id) for one in fits), default=(0, ""))
            ways = ["{1} holds it with --max-model-len {0}".format(*longest)] if longest[0] else []
            ways += ["{1} holds it with --tensor-parallel-size {0}".format(*least)] if least else []
            then = "" if self.sweep else "".join(f"; {way}" for way in ways)
            return f"{self.resolved.resolved} fits on none of {among}{then}"
        most = max(fitting, key=lambda answer: answer.max_concurrency)
        where = "" if self.sweep else f": {listed([answer.gpu_id for answer in fitting], BRIEF_NAMES)}"
        size = most.config.tensor_parallel_size
        setting = f"{most.gpu_id}{f' TP {size}' if size > 1 else ''}, {most.config.weight_dtype}"
        return (
            f"{self.resolved.resolved} fits {'with' if self.sweep else 'on'} {len(fitting)} of {among}{where}; most "
            f"requests at once ({most.max_concurrency:,.2f} of {most.config.max_model_len:,} tokens) on {setting}"
        )

    def sentences(self) -> Iterator[str]:
        yield wrapped(self._verdict()) + "\n"
        if self.explain:
            yield table_text(self._records(), COLUMNS)
            return
        shown: Sequence[GpuFit] = self.answers
        if len(shown) > BRIEF_ROWS:
            shown = sorted(shown, key=lambda one: -one.max_concurrency - one.fits if isinstance(one, Fit) else 0.0)
        columns = [replace(c, spare=SPARE[self.sweep].get(c.key, 0)) for c in COLUMNS if not c.aside]
        yield table_text(map(_record, shown[:BRIEF_ROWS]), columns)
        if (more := len(self.answers) - BRIEF_ROWS) > 0:
            yield f"and {more} more"

    def _notes(self, *, brief: bool = False) -> Iterable[str]:
        refused = [answer for answer in self.answers if isinstance(answer, RefusedFit)]
        yield from self.resolved.notes
        if any(isinstance(a, Fit) and a.config.pipeline_parallel_size > 1 for a in self.answers) and not self.sweep:
            yield "each row is an engine on GPUs of one kind: different GPUs in one engine are not modelled"
        unfit = [one for one in self.answers if isinstance(one, Fit) and not one.fits]
        if (short := [one.gpu_id for one in unfit if one.largest_max_model_len]) and not self.sweep:
            context = f"{unfit[0].config.max_model_len:,} tokens of context exceed the KV cache"
            yield f"{context} of {listed(short, BRIEF_NAMES)}: --max-model-len shortens it"
        if not brief:
            yield from (f"{one.profile.id}: {one.error.cause}" for one in refused)
        elif refused:
            yield f"vLLM refuses these settings on {listed([one.profile.id for one in refused], BRIEF_NAMES)}"

    def _brief_notes(self) -> Iterable[str]:
        yield from self._notes(brief=True)
        versions = (str(answer.config.version) for answer in self.answers if isinstance(answer, Fit))
        yield "; ".join([*engine_note(versions), MORE])


def _object(answer: GpuFit, resolved: ResolvedModel, *, arithmetic: bool) -> dict[str, Any]:
    if isinstance(answer, RefusedFit):
        model, cause = fields_of(resolved.model, "total_params", "active_params"), answer.error.cause
        return {
            "fits": False,
            "verdict": "does not fit",
            "probability_fits": 0.0,
            **{"reason": cause, "error": cause, "hint": answer.error.hint},
            "model": _names(resolved) | model,
            "gpu": fields_of(answer.profile, "id", "memory_bytes"),
        }
    written = fit_object(answer)
    written |= {"model": written["model"] | _names(resolved), "notes": [*resolved.notes, *answer.notes]}
    return written | ({"arithmetic": to_plain(list(explain(answer)))} if arithmetic else {})


def fit_object(fit: Fit) -> dict[str, Any]:
    """The object of ``planner fit --format json``, without the notes on the model."""
    row = {"schema_version": SCHEMA_VERSION} | {field.key: to_plain(field.value(fit)) for field in FIELDS}
    digits = {field.key: int(str(field.form)[1:-1]) for field in FIELDS if field.form}
    return row | {key: round(row[key], places or None) for key, places in digits.items()}


def _names(resolved: ResolvedModel) -> dict[str, Any]:
    return fields_of(resolved, "requested", "resolved")


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _record(answer: GpuFit) -> Fit | dict[str, Any]:
    if isinstance(answer, Fit):
        return answer
    return {"gpu_id": answer.profile.id, "verdict": "refused", "reason": answer.error.cause}


def _figures(result: Fit) -> Iterator[tuple[str, str]]:
    config, weights = result.config, result.stage.weights.weight_bytes
    on_each = " on each GPU" if config.num_gpus > 1 else ""
    yield "weights", f"{format_bytes(weights)} ({format_gb(weights)}){on_each}, {config.weight_dtype}"
    if absorbed := result.stage.weights.absorbed_bytes:
        yield "products of projections", f"{format_bytes(absorbed)}{on_each}, kept beside the weights of MLA"
    if offloaded := result.stage.weights.offloaded_bytes:
        yield "of these in host memory", f"{format_bytes(offloaded)}{on_each}"
    if lora := config.lora:
        size = format_bytes(result.stage.weights.lora_bytes)
        yield "adapters", f"{size}{on_each} for {lora.max_loras} of rank {lora.max_lora_rank}"
    memory = f"{format_bytes(result.budget.memory_bytes)}{on_each}"
    if result.stage.given_bytes is not None:
        yield "memory", memory
        yield "left beside the weights", _left(result.stage.left)
        yield "size of the KV cache", f"{format_bytes(result.stage.given_bytes)}, given by {config.kv_cache_given_by}"
    else:
        yield "memory", f"{memory}, {config.gpu_memory_utilization:g} of it in vLLM's budget"
        yield "left for the KV cache", _left(result.kv_cache)
    if result.budget.pool.groups:
        mean, more = result.kv_bytes_per_token_on_average, result.kv_bytes_per_next_token
        further = f" on average, {more:,.0f} for each further one" if abs(mean - more) > 0.01 * mean else ""
        yield "KV cache per token", f"{mean if further else more:,.0f} bytes{further}, {config.kv_cache_dtype}"
    if result.host_kv_cache_tokens:
        yield "KV cache in host memory", f"{rounded(result.host_kv_cache_tokens)} tokens, for prefixes sent again"
    if result.kv_cache_tokens:
        yield "KV cache", f"{rounded(result.kv_cache_tokens)} tokens"
    at_once = f", {result.max_concurrency:,.2f} requests of that length at once" if result.kv_cache_tokens else ""
    for outcome in result.outcomes if len({one.kv_cache_tokens for one in result.outcomes}) > 1 else ():
        said = " ".join(f"{name}={value}" for name, value in outcome.env.items())
        yield "  with " + said.partition("_USE_")[2], f"{rounded(outcome.kv_cache_tokens)} tokens: {outcome.verdict}"
    yield "context", f"{config.max_model_len:,} tokens{at_once}"
    if result.verdict == "fits" and result.max_concurrency > MUCH_TO_SPARE and result.smallest_gpu_memory_utilization:
        given = result.smallest_kv_cache_memory_bytes
        share = f"--gpu-memory-utilization {result.smallest_gpu_memory_utilization:g} holds one request"
        yield "smallest share", share + (f", as does --kv-cache-memory-bytes {given}" if given else "")
    profile = result.deployment.profile
    alone = profile.partition and not profile.partition.tensor_parallel.allowed
    several = config.tensor_parallel_size > profile.gpus_per_node
    most = f"none up to {config.tensor_parallel_size} fits" if several else "none fits in one node"
    none = "does not fit, and TP 1 alone is allowed" if alone else most
    yield "smallest tensor-parallel size", f"{result.min_tensor_parallel_size or none}"
    yield from [("memory overheads", result.calibration)] * (result.calibration != SHIPPED)


def _logged(line: LogLine, value: float) -> str:
    return f"{value / GIB:,.2f}" if line.unit == "bytes" else f"{value:{',.2f' if line.unit == 'requests' else ',.0f'}}"


def _left(left: Interval) -> str:
    low, high = (f"{round(end / GIB, 2) + 0:,.2f}" for end in (left.low, left.high))  # -0.00 is 0.00
    if left.mid >= 0:
        return f"{format_bytes(left.mid)} ({low} to {high})"
    most = f"{-left.high / GIB:,.2f}" if left.high < 0 else f"{high} GiB to spare"
    between = f"{most} to {-left.low / GIB:,.2f}" if left.high < 0 else f"{-left.low / GIB:,.2f} too little to {most}"
    return f"nothing: {format_bytes(-left.mid)} too little ({between})"
