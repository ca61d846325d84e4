"""One model on one type of GPU: names are resolved and settings checked once, for every question about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from inspect import signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from planner import engine as vllm
from planner import hardware, planning, workload
from planner.engine import SETTINGS, EngineArgs, EngineVersion, Environment, default_version, existing_version, flag_of
from planner.errors import InputError, PlannerError, UnknownNameError
from planner.hardware import GpuProfile, counted_name, load_all, load_profile, profile_ids
from planner.memory import Basis
from planner.model import Model, ResolvedModel, as_quantized, catalog_ids, quantized_checkpoints, resolve_model
from planner.planning import defaults
from planner.planning.calibration import SHIPPED, Local, local_for
from planner.planning.defaults import Bench
from planner.planning.deployment import Deployment, resolve_deployment
from planner.units import in_range, meant

#: A hub id, a folder with a ``config.json`` or such a file; or what ``load_model`` gave.
ModelName = str | PathLike[str] | ResolvedModel
#: A profile's id or alias, ``local``, or the path of a ``.toml`` file; or what ``load_gpu`` gave.
GpuName = str | PathLike[str] | GpuProfile


@dataclass(frozen=True, init=False)
class Serving:
    """A model, a GPU, engine arguments, a vLLM version and a calibration.

    >>> Serving("meta-llama/Llama-2-7b-hf", "mi300x", tensor_parallel_size=2).fit().verdict
    'fits'
    """

    resolved: ResolvedModel
    profile: GpuProfile
    args: EngineArgs
    engine_version: EngineVersion | None  #: None: ``default_version`` of the GPU
    local: Local  #: the user's own fits
    basis: Basis  #: overheads of memory, and the draft model
    remarks: tuple[str, ...]  #: on how the names were resolved

    def __init__(
        self, model: ModelName, gpu: GpuName, *, network_gb_per_s: float | None = None,
        weight_dtype: str | None = None, engine_version: str | None = None,
        calibration: str | PathLike[str] | None = None, revision: str | None = None, refresh: bool = False,
        timeout: float | None = None, **engine: Any,
    ) -> None:  # fmt: skip
        """Resolve the names: ``model`` as in ``load_model``, ``gpu`` as in ``load_gpu``.

        ``engine`` are flags of ``vllm serve`` (``tensor_parallel_size=8``, ``max_model_len=32768``, ...).
        ``engine_version`` is a version of vLLM or the date of a build, by default ``default_version``.
        ``calibration`` is a file of ``calibrate_from``, ``"none"`` for the fits as shipped, by default the user's own.
        ``network_gb_per_s`` is the inter-node bandwidth of one GPU. Raises UnknownNameError for a keyword that is no
        setting, InputError for a value that a setting does not take, and what ``load_model`` and ``load_gpu`` raise."""
        # the GPU before the model: a mistyped GPU should not wait for the hub
        args = engine_args(engine, own=signature(Serving).parameters)
        profile, remarks = find_gpu(gpu, network_gb_per_s)
        resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh, timeout=timeout)
        version = None if engine_version is None else version_for(engine_version, profile)
        self._set(resolved, profile, args, version, local_for(calibration), remarks)

    @classmethod
    def on_each(
        cls, model: ModelName, gpu: GpuName | Iterable[GpuName], *, partitions: bool = False, rented: bool = False,
        network_gb_per_s: float | None = None, **given: Any,
    ) -> tuple[Self, ...]:  # fmt: skip
        """One for each of several GPUs of the same model; ``"all"``: every whole GPU, or those for rent (``rented``).

        ``partitions`` adds theirs."""
        engine_args({name: value for name, value in given.items() if name not in signature(cls).parameters})
        profiles, remarks = find_gpus(gpu, network_gb_per_s, partitions=partitions, rented=rented)
        first = cls(model, profiles[0], **given)
        return tuple(first.changed(profile=profile, remarks=remarks) for profile in profiles)

    @classmethod
    def of(
        cls, model: Model | ResolvedModel, profile: GpuProfile, args: EngineArgs | None = None,
        version: EngineVersion | None = None, *, local: Local = SHIPPED, basis: Basis | None = None,
    ) -> Self:  # fmt: skip
        """A ``Serving`` of facts that are resolved already."""
        if isinstance(model, Model):
            model = ResolvedModel(model.id, model.id, model, "catalog")
        made = cls.__new__(cls)
        made._set(model, profile, args or EngineArgs(), version, local, basis=basis)
        return made

    def _set(
        self, resolved: ResolvedModel, profile: GpuProfile, args: EngineArgs, version: EngineVersion | None,
        local: Local, remarks: tuple[str, ...] = (), basis: Basis | None = None,
    ) -> None:  # fmt: skip
        basis = _with_draft(basis or Basis(local.constants), args)
        if args.max_model_len == vllm.ANY_LENGTH:
            args, basis = args.changed(max_model_len=None), replace(basis, any_length=True)
        given = (resolved, profile, _accepting(args, resolved), version, local, basis, remarks)
        vars(self).update(zip((field.name for field in fields(self)), given, strict=True))

    def changed(self, **changes: Any) -> Self:
        """A copy with other fields, another ``model``, or other settings of the engine."""
        if "model" in changes:
            changes["resolved"] = replace(self.resolved, model=changes.pop("model"))
        made, names = self.__class__.__new__(self.__class__), [field.name for field in fields(self)]
        vars(made).update({name: changes.pop(name, getattr(self, name)) for name in names})
        if unknown := next((name for name in changes if not hasattr(made.args, name)), None):
            raise UnknownNameError("keyword", unknown, (*SETTINGS, *names), see="docs/reference/library.md")
        vars(made)["args"] = _accepting(made.args.changed(**changes), made.resolved)
        vars(made)["basis"] = _with_draft(made.basis, made.args)
        return made

    def __repr__(self) -> str:
        where = f"{self.args.num_gpus} x {self.profile.id}, vLLM {self.version}"
        return f"{type(self).__name__}({self.resolved.resolved} on {where})"

    @property
    def model(self) -> Model:
        return self.resolved.model

    @property
    def longest_context(self) -> int:
        """Tokens of the longest request: those of ``--max-model-len``, at most the model's own context."""
        context = vllm.stretched(self.model, self.args, self.version).max_position_embeddings
        return min(context, self.args.max_model_len or context)

    @cached_property
    def version(self) -> EngineVersion:
        """The vLLM version that was asked for, else ``default_version``."""
        return self.engine_version or default_version(self.profile)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        return (*self.remarks, *self.local.notes)

    @cached_property
    def memory(self) -> Deployment:
        """The engine for questions about memory, without efficiencies.

        Raises IllegalPlanError for settings that vLLM refuses whatever the memory."""
        return resolve_deployment(self.model, self.profile, self.args, self.version, basis=self.basis)

    @cached_property
    def deployment(self) -> Deployment:
        """The engine of ``vllm serve``. Raises as ``memory``."""
        return replace(self.memory, calibration=self.local.calibration)

    @cached_property
    def offline(self) -> Deployment:
        """The engine with the defaults of ``vllm bench throughput`` and ``latency``. Raises as ``memory``."""
        return resolve_deployment(
            self.model, self.profile, self.args, self.version, offline=True, basis=self.basis,
            calibration=self.local.calibration,
        )  # fmt: skip

    def fit(self, *, startup_log: str | PathLike[str] | None = None, ways_out: bool = True) -> planning.Fit:
        """Check whether vLLM starts, and how many tokens its KV cache holds.

        ``startup_log``, a file with vLLM's own messages, is compared; the overheads that it shows count and are kept
        for this user. ``ways_out`` also checks what would make it fit. Raises as ``memory``."""
        if startup_log is not None:
            from planner.planning.startup import fit_with_log

            return fit_with_log(self, Path(startup_log))
        from planner.planning.fit import fit_of

        return fit_of(self, ways_out=ways_out)

    def predict(self, load: workload.Load, *, bench: Bench = "serve", **asked: Any) -> planning.Prediction:
        """Predict what ``vllm bench`` measures of ``load``; ``asked``: ``percentiles``, ``goodput`` in ms by metric.

        Raises as ``memory`` and ``check_load``, and InputError where KV cache or ``bench`` do not take such a load."""
        if bench != "serve" and (load.open or load.recorded is not None):
            cause = f"vllm bench {bench} sends all requests at once: neither --request-rate nor --trace has an effect"
            raise InputError(cause, hint="leave out bench, or give a load of lengths alone")
        engine = self.engine_of(bench)
        check_load(load, engine.config.max_model_len, self.resolved.resolved)
        if why := engine.refusal(load):
            raise InputError(f"{self!r}: {why}", hint="fit() and planner fit show what would make it fit")
        load = engine.resent(load) if bench == "latency" else load  # its warm-up sent the same prompts
        return planning.Prediction.of(engine, load, bench=bench, **asked)

    def capacity(
        self, load: workload.Load, *, ttft_ms: float | None = None, tpot_ms: float | None = None,
        itl_ms: float | None = None, e2el_ms: float | None = None, percentile: float | str = 95,
        confidence: float = defaults.CONFIDENCE,
    ) -> planning.Capacity:  # fmt: skip
        """The largest load like ``load`` that meets the targets: a concurrency of a closed loop, else a request rate.

        ``capacity.largest()`` is that load, None where even one request misses a target; ``capacity.interval()`` has 90
        %. Targets are met at ``percentile`` (95, ``"mean"``) with probability ``confidence``. Raises as ``predict``."""
        check_context(load, self.deployment.config.max_model_len, self.resolved.resolved)
        targets = workload.Targets.of(
            ttft_ms=ttft_ms, tpot_ms=tpot_ms, itl_ms=itl_ms, e2el_ms=e2el_ms, percentile=percentile,
            confidence=confidence, by="concurrency" if load.max_concurrency else "rate",
        )  # fmt: skip
        return planning.Capacity(self.deployment, load, targets)

    def engine_of(self, bench: Bench) -> Deployment:
        """The engine that a benchmark measures. Raises as ``memory``."""
        if bench == "serve":
            return self.deployment
        args = vllm.of_latency_bench(self.args, self.version) if bench == "latency" else self.args
        return self.offline if args is self.args else self.changed(args=args).offline


def _with_draft(basis: Basis, args: EngineArgs) -> Basis:
    """``basis`` with the second model that ``--speculative-config`` names."""
    drafts = args.speculative_config
    named = drafts and drafts.has_draft_model and drafts.model
    if not named or basis.draft is not None:
        return basis
    try:
        return replace(basis, draft=resolve_model(named).model)
    except PlannerError as error:
        error.cause = f"draft model {named}: {error.cause}"
        raise


def _accepting(args: EngineArgs, resolved: ResolvedModel) -> EngineArgs:
    """``args`` with the published acceptance of their drafts, where it is not given and some was published."""
    drafts = args.speculative_config
    assumed = vllm.assumed_acceptance(drafts, resolved.resolved) if drafts and not drafts.acceptance_rates else None
    return replace(args, speculative_config=assumed) if assumed else args


def load_model(
    model: ModelName, *, weight_dtype: str | None = None, revision: str | None = None, refresh: bool = False,
    timeout: float | None = None,
) -> ResolvedModel:  # fmt: skip
    """A model's architecture, and what its name led to.

    ``model``: a hub id in any case, a folder with a ``config.json``, or such a file. The bundled catalog answers first,
    then the local hub cache, then the hub (``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` count). ``refresh``
    asks the hub in any case, for at most ``timeout`` seconds (30). ``weight_dtype`` stands for the usual checkpoint
    of that precision: ``fp8``, ``mxfp4``, ``int4-awq``, ... Raises UnknownNameError for an unknown name, InputError for
    a file without a model, UnsupportedModelError for an unknown architecture, HubError where the hub cannot be reached.
    """
    resolved = model
    if not isinstance(resolved, ResolvedModel):
        resolved = resolve_model(str(model), revision=revision, refresh=refresh, timeout_s=timeout)
    if weight_dtype is None:
        return resolved
    quantized = as_quantized(resolved.model, weight_dtype)
    forms = (one.id for one in quantized_checkpoints(resolved.resolved) if one.weight_dtype == weight_dtype)
    known = [name for name in forms if not resolve_model(name, network=False).model.quantization.assumed]
    note = f"the usual form of {weight_dtype} is assumed" + f": name {' or '.join(known)} for theirs" * bool(known)
    return replace(resolved, model=quantized, notes=(*resolved.notes, note))


def load_gpu(gpu: GpuName) -> GpuProfile:
    """The profile of a GPU, or of a partition of one: memory, bandwidth, peaks, prices, each with its source.

    ``gpu``: an id or alias in any case (``list_gpus``), a ``.toml`` file, or ``local`` for this machine's GPUs. Raises
    UnknownNameError for any other name, InputError for a file that is no profile and a machine whose GPUs have none."""
    return find_gpu(gpu)[0]


def find_gpu(
    gpu: GpuName, network_gb_per_s: float | None = None, *, searched: bool = False
) -> tuple[GpuProfile, tuple[str, ...]]:
    """The profile with the stated network, and a remark on ``local`` or ``8xH100``.

    ``searched``: the number of GPUs of a server is."""
    if network_gb_per_s is not None:
        network_gb_per_s = rate = float(typed("network_gb_per_s", network_gb_per_s, float))
        if not defaults.LEAST_GB_PER_S <= rate <= defaults.MOST_GB_PER_S:
            raise InputError(f"--network-gb-per-s {rate:g} is no rate", hint="give GB/s of one GPU, such as 50")
    if isinstance(gpu, GpuProfile):
        return gpu.with_network(network_gb_per_s), ()
    name = str(gpu)
    if name.strip().lower() == "local":
        profile, note = hardware.local_profile()
        return profile.with_network(network_gb_per_s), (note,)
    count = None if searched else counted_name(name)[1]
    node = f"{name} is a node of {count} GPUs; a server takes as many as --tensor-parallel-size says, by default one"
    return load_profile(name).with_network(network_gb_per_s), (node,) * ((count or 1) > 1)


def find_gpus(
    gpus: GpuName | Iterable[GpuName], network_gb_per_s: float | None = None, *, partitions: bool = False,
    rented: bool = False,
) -> tuple[tuple[GpuProfile, ...], tuple[str, ...]]:  # fmt: skip
    """The profiles in their order, each once, with the stated network, and remarks; ``all`` as in ``on_each``."""
    names: list[GpuName] = []
    for given in [gpus] if isinstance(gpus, str | PathLike | GpuProfile) else gpus:
        several = isinstance(given, str) and not given.endswith(".toml")  # a comma in a path is part of it
        for name in str(given).split(",") if several else [given]:
            if isinstance(name, str) and name.strip().lower() == "all":
                every = load_all(partitions=partitions)
                # the cost of a card of one's own is no rent, by which the others are ranked
                names += [one for one in every if not (rented and one.price and one.price.date.endswith("owned"))]
            else:
                names.append(name)
    profiles: dict[str, GpuProfile] = {}
    remarks: list[str] = []
    for name in names:
        profile, notes = find_gpu(name, network_gb_per_s, searched=rented)
        parts = [one for one in load_all(partitions=True) if one.whole == profile.id] if partitions else []
        profiles |= {one.id: one for one in (profile, *parts) if one.id not in profiles}
        remarks += notes
    if not profiles:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    return tuple(profiles.values()), tuple(remarks)


def list_gpus() -> tuple[str, ...]:
    """The ids of all GPU profiles, partitions included."""
    return profile_ids()


def list_models() -> tuple[str, ...]:
    """The hub ids of the bundled catalog; any other id is asked for at the hub."""
    return tuple(catalog_ids())


def version_for(text: str | None, profile: GpuProfile, image: str = "") -> EngineVersion:
    """The version asked for, else what ``image`` says of it, else the default of this GPU, with a note for an image."""
    if text is not None:
        return existing_version(typed("engine_version", text, str))
    default = default_version(profile)
    with suppress(InputError):
        return vllm.parse_version(image) if image else default
    return replace(default, note=f"image {image} names no version; taken as vLLM {default}: --engine-version sets it")


def asked_by(line: vllm.ServeLine, model: Model, profile: GpuProfile, version: EngineVersion) -> EngineVersion:
    """The version with the engine that the line, or its own build, decides on; empty: the default one."""
    wanted = vllm.asked_engine(line.only_v0, line.use_v1, version)
    if wanted is None and line.pipelines_on_v1:  # the one that it would have without a pipeline
        wanted = vllm.resolve(replace(line.args, pipeline_parallel_size=1), model, profile, version).engine
    return replace(version, engine=wanted or version.engine)


def timed_engine(serving: Serving, line: vllm.ServeLine, bench: Bench = "serve") -> Deployment:
    """The engine that is timed: without drafts whose acceptance is neither given nor published."""
    if (drafts := serving.args.speculative_config) and not drafts.acceptance_rates:
        decided = replace(serving.version, engine=serving.memory.config.engine)  # which the drafts may have decided
        serving = serving.changed(speculative_config=None, engine_version=decided)
    timed = serving.engine_of(bench).stepping(line.num_scheduler_steps)
    return timed if vllm.is_on(line.env, vllm.AITER) else replace(timed, without_aiter=True)


def launched_line(plan: planning.Plan) -> vllm.ServeLine:
    version = vllm.parse_version(plan.engine_version)
    line = vllm.read_line(plan.serve_argv, version, env=plan.env, platform=plan.platform)
    return replace(line, args=replace(line.args, allow_unvalidated=True))


def redeploy(plan: planning.Plan, local: Local = SHIPPED) -> Deployment:
    """The engine that ``serve_argv`` launches. Raises PlannerError where its model or GPU is not known here."""
    profile, model = load_profile(plan.gpu).with_network(plan.network_gb_per_s), resolve_model(plan.model)
    if plan.nodes > 1:
        profile = profile.with_node(plan.gpus_per_node)
    line, basis = launched_line(plan), Basis(local.constants)
    version = asked_by(line, model.model, profile, vllm.parse_version(plan.engine_version))
    args = replace(line.args, speculative_config=plan.speculative_config or line.args.speculative_config)
    return timed_engine(Serving.of(model, profile, args, version, local=local, basis=basis), line)


def check_load(load: workload.Load, max_model_len: int, model: str) -> None:
    """Raise InputError for arrivals over more seconds than a replay can follow, and as ``check_context``."""
    arrivals_s, most_s = load.num_prompts / load.request_rate, defaults.LONGEST_REPLAY_S
    if arrivals_s > most_s:
        cause = f"--request-rate {load.request_rate:g}: {load.num_prompts} requests arrive over {arrivals_s:.3g} s"
        raise InputError(cause, hint=f"raise the rate or send fewer prompts: a replay covers {most_s:,} s")
    check_context(load, max_model_len, model)


def check_context(load: workload.Load, max_model_len: int, model: str) -> None:
    """Raise InputError where a request of the load is longer than the context: the server would refuse it."""
    longer = f"""--hf-overrides '{{"max_position_embeddings": {max(load.longest_len, load.max_total_len)}}}'"""
    served = f"more than the {max_model_len} that {model} is served with"
    change = f"raise --max-model-len if that limits, stretch the model by {longer} beside rope_parameters"
    if load.recorded is not None and load.longest_len > max_model_len:
        longest = max(load.classes, key=lambda one: one.longest_len, default=None)
        what = f"--workload {load.name}" if load.drawn else "--trace"
        what = f"--class {longest.name}" if longest and longest.recorded is None else what
        cause = f"{what}: the longest request has {load.longest_len} tokens, {served}"
        raise InputError(cause, hint=f"{change}, or choose a model of longer context")
    if load.max_total_len > max_model_len:
        lengths = f"--input-len {load.input_len} and --output-len {load.output_len} make requests of"
        cause = f"{lengths} {load.max_total_len} tokens, {served}"
        raise InputError(cause, hint=f"shorten them, {change}, or choose a model of longer context")


def engine_args(given: Mapping[str, Any], *, own: Iterable[str] = ()) -> EngineArgs:
    """The settings of an engine; ``own``: other keywords of the caller, to suggest the one that was meant.

    Raises UnknownNameError for a keyword that is no setting, and InputError for a value that the setting does not take.
    """
    if unknown := next((name for name in given if name not in SETTINGS), None):
        raise UnknownNameError("keyword", unknown, (*SETTINGS, *own), see="docs/reference/library.md")
    settings = dict(given)
    drafts, rates = settings.pop("speculative_config", None), settings.pop("speculative_acceptance_rate", None)
    variables = Environment.read(settings.pop("env", None))
    for name, value in settings.items():
        settings[name] = typed(name, value, SETTINGS[name].kind)
        SETTINGS[name].check(settings[name])
    return EngineArgs(**settings, speculative_config=vllm.read_drafts(drafts, rates), env=variables)


def typed(name: str, value: Any, kind: Any, *, flag: str = "", unit: str = "", strict: bool = True) -> Any:
    """``value`` as a plain one of ``kind``, bounds included; also numbers of numpy, without ``strict`` also text.

    Raises InputError, naming the flag, for any other value."""
    if isinstance(value, Real) and not isinstance(value, bool):
        value = int(value) if isinstance(value, Integral) else float(value)
    try:
        return TypeAdapter(kind).validate_python(value, strict=strict and not isinstance(value, list | tuple | dict))
    except ValidationError as error:
        problem, flag, rules = error.errors()[0], flag or flag_of(name), getattr(kind, "__metadata__", ())
        least, most = (next((getattr(one, end) for one in rules if hasattr(one, end)), None) for end in ("ge", "le"))
        wanted = {"int": "an integer", "float": "a number"}.get(problem["type"].partition("_")[0], "")
        wanted += f" of {unit}" * bool(wanted and unit)
        if wanted or problem["type"].endswith("than_equal"):
            wanted = ", ".join(filter(None, (wanted, in_range(least, most))))
        cause = f"{flag} must be {wanted or problem['msg'].removeprefix('Input should be ')}, got {repr(value)[:80]}"
        hint = meant(flag, value, most, unit) or f"give such a value, or leave {flag} out"
        raise InputError(cause, hint=hint) from error
