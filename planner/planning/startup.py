"""A start-up log beside the prediction for its settings, and the overheads that it teaches."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from planner import engine as vllm
from planner import memory
from planner.engine import CPU_KVCACHE_SPACE, FLASHINFER_SAMPLER, MXFP4_MARLIN, SHORT_NAMES, EngineArgs, tagged
from planner.errors import InputError, os_errors
from planner.planning.calibration import local_path, save
from planner.planning.deployment import resolve_deployment
from planner.planning.fit import Fit, LogLine, fit_of
from planner.resources import MOST_LOG_BYTES, alone_in, read_given
from planner.units import GIB, Interval, format_bytes

if TYPE_CHECKING:
    from planner.planning.serving import Serving

#: Settings that a log and a question must agree on, and those that the question may change.
LAYOUT, FREE = tagged("layout"), tagged("logged")
#: Kernels that a log names, by the variables that choose them.
KERNELS = {"flashinfer_sampler": FLASHINFER_SAMPLER, "mxfp4_use_marlin": MXFP4_MARLIN}
#: Largest difference of a profile's total from the one logged: GPUs of one name differ by up to 0.3 %.
MEMORY_TOLERANCE = 0.01
WEIGHTS_TOLERANCE = 0.01  #: largest difference of weights from the prediction: 94 % of published logs are within 1 %
OTHER_CHECKPOINT = 0.10  #: weights further off than this are those of another checkpoint


class Start(NamedTuple):
    """Figures of a log that count for an answer."""

    args: EngineArgs  #: as asked, else as the log prints
    lines: tuple[LogLine, ...]
    learned: tuple[memory.FittedConstant, ...]
    notes: tuple[str, ...]


def fit_with_log(serving: "Serving", path: Path) -> Fit:
    """Check whether the engine starts, with the overheads of a machine's own log; later runs use them too.

    Raises as ``Serving.fit`` and ``read_start``, and InputError for another file, model or version."""
    resolved, given = serving.resolved, serving.engine_version
    with os_errors(f"--startup-log {path}", hint="give the output of vllm serve"):
        text = read_given(path, most_bytes=MOST_LOG_BYTES, errors="replace")
    log = memory.read_startup_log(text).of_model(resolved.requested, resolved.resolved, resolved.model.id)
    logged = vllm.parse_version(log.version) if log.version else None
    if logged and given and logged.release[:2] != given.release[:2]:
        cause = f"--engine-version {given}: the log is of vLLM {log.version}"
        raise InputError(cause, hint="leave --engine-version out")
    serving = serving.changed(engine_version=logged or given)
    start = read_start(log, serving)
    notes, basis = start.notes, serving.basis
    if start.learned:
        try:
            with alone_in(local_path().parent):
                notes += (f"the overheads of this machine are saved in {save(start.learned)}",)
        except InputError as error:
            notes += (f"the overheads of this machine count here, but could not be saved: {error.cause}",)
        basis = replace(basis, constants=memory.Constants(start.learned).before(basis.constants or memory.shipped()))
    fit = fit_of(serving.changed(args=start.args, basis=basis))
    return replace(fit, startup_log=start.lines, notes=(*notes, *fit.notes))


def read_start(log: memory.StartupLog, serving: "Serving") -> Start:
    """Compare a log with the prediction for its settings. Raises InputError for another layout, GPU or checkpoint."""
    args, basis = logged_settings(log, serving), serving.basis
    engine = resolve_deployment(serving.model, serving.profile, args, serving.version, basis=basis, as_started=True)
    _check_machine(log, engine.budget, serving)
    learned = memory.learn_constants(log, engine.budget, origin=str(local_path()))
    unset, given = EngineArgs(), serving.args
    asked = {name: value for name in FREE if (value := getattr(given, name)) != getattr(unset, name)}
    refused = [f"vLLM refused this start: {log.refusal}"] if log.refusal else []
    silent = [] if learned else ["the log says nothing about overheads: the fitted ones are used"]
    lines = tuple(compare_with_log(log, engine.budget))
    return Start(args.changed(**asked, env=given.env), lines, learned, (*log.notes, *refused, *silent))


def logged_settings(log: memory.StartupLog, serving: "Serving") -> EngineArgs:
    """Settings of the log, as asked where it prints none. Raises InputError where layouts differ."""
    args, unset, taken = serving.args, EngineArgs(), dict[str, Any]()
    for name in (*LAYOUT, *FREE):
        value, asked = log.settings.get(name), getattr(args, name)
        if value is None or value == "None":
            continue
        differs = SHORT_NAMES.get(str(asked), asked) != SHORT_NAMES.get(str(value), value)  # ``half`` is fp16
        if name in LAYOUT and asked != getattr(unset, name) and differs:
            flag = vllm.flag_of(name)
            raise InputError(f"{flag} {asked}: the log is of {value}", hint=f"leave {flag} out, or give another log")
        taken[name] = value
    kernels = {name: log.settings[key] for key, name in KERNELS.items() if key in log.settings}
    taken["env"] = {name: value for name, value in kernels.items() if vllm.env_status(serving.version, name)}
    if log.given_cache and log.kv_cache_bytes and log.kv_cache_bytes % GIB == 0:  # counts on a CPU alone
        taken["env"][CPU_KVCACHE_SPACE] = int(log.kv_cache_bytes / GIB)
    method = log.settings.get("quantization")
    if isinstance(method, str) and method != "None" and serving.model.quantization.method is None:
        taken["quantization"] = method
    if "speculative_method" in log.settings and args.speculative_config is None:
        raise InputError("the log is from a start with speculative decoding", hint="give the same --speculative-config")
    return args.changed(**taken)


def _check_machine(log: memory.StartupLog, budget: memory.MemoryBudget, serving: "Serving") -> None:
    profile, predicted = serving.profile, max(stage.weights.loaded_bytes for stage in budget.stages)
    named = profile.platform != "cpu"  # one profile stands for machines of any memory
    if named and log.memory_bytes and abs(log.memory_bytes / profile.memory_bytes - 1) > MEMORY_TOLERANCE:
        cause = f"the log is of a GPU with {format_bytes(log.memory_bytes)}, not {format_bytes(profile.memory_bytes)}"
        raise InputError(f"--gpu {profile.id}: {cause}", hint="name the GPU that the log is of")
    if log.weights_bytes and abs(log.weights_bytes / predicted - 1) > OTHER_CHECKPOINT:
        seen = f"{format_bytes(log.weights_bytes)} of weights on a rank, not {format_bytes(predicted)}"
        hint = "name the checkpoint that was served, and its TP size where the log does not print it"
        raise InputError(f"the log is of another checkpoint or layout: {seen}", hint=hint)


def compare_with_log(log: memory.StartupLog, budget: memory.MemoryBudget) -> Iterator[LogLine]:
    """One line for each figure that the log prints. ``budget`` is the prediction for the log's settings."""
    stage, features, blocks = budget.binding, budget.features, budget.num_blocks
    loaded = float(max(s.weights.loaded_bytes for s in budget.stages))
    weights = Interval(loaded, loaded * (1 - WEIGHTS_TOLERANCE), loaded * (1 + WEIGHTS_TOLERANCE))
    weights = weights.plus(budget.overheads["loading"])
    in_all = budget.overheads["reported_memory"].scaled(budget.memory_bytes).plus(Interval.exact(budget.memory_bytes))
    with_graphs = features.activation_includes_graphs and features.graphs_in_budget
    activation = stage.activation.plus(stage.graphs) if with_graphs else stage.activation
    counts = (blocks.mid, blocks.low, blocks.high)
    tokens = Interval(*(float(budget.logged_tokens(count)) for count in counts))
    concurrency = Interval(*(budget.concurrency(count) if count else 0.0 for count in counts))
    lines: tuple[tuple[str, str, Interval, float | None], ...] = (
        ("memory of the GPU", "bytes", in_all, log.memory_bytes),
        ("model loading took", "bytes", weights, log.weights_bytes),
        ("peak activation", "bytes", activation, log.activation_bytes),
        ("non-torch memory", "bytes", stage.non_torch, log.non_torch_bytes),
        ("weights and non-torch memory", "bytes", weights.plus(stage.non_torch), log.consumed_bytes),
        ("CUDA graphs, estimated", "bytes", stage.graphs, log.graph_estimate_bytes),
        ("CUDA graphs", "bytes", stage.graphs, log.graph_bytes),
        ("available KV cache memory", "bytes", stage.available, log.kv_cache_bytes),
        ("attention block size", "tokens", Interval.exact(budget.pool.block_size), log.block_size),
        ("GPU blocks", "blocks", blocks, log.num_gpu_blocks),
        ("GPU KV cache size", "tokens", tokens, log.kv_cache_tokens),
        ("maximum concurrency", "requests", concurrency, log.max_concurrency),
    )
    for name, unit, predicted, logged in lines:
        if logged is not None:
            slack = {"bytes": memory.ROUNDING_BYTES, "requests": 0.005}.get(unit, 0.0)
            inside = predicted.low - slack <= logged <= predicted.high + slack
            digits = 2 if unit == "requests" else None
            mid, low, high, seen = (round(v, digits) for v in (predicted.mid, predicted.low, predicted.high, logged))
            yield LogLine(name, unit, mid, low, high, seen, inside)
