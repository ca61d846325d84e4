"""Will a ``vllm serve`` line start, what would it deliver, and which settings would deliver more at the same load?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite, log
from typing import Any, Literal

from planner.engine import (
    CPU_KVCACHE_SPACE,
    Engine,
    EngineArgs,
    EngineConfig,
    EngineVersion,
    FlagProblem,
    ServeLine,
    asked_engine,
    default_engine,
    known_issues,
    parse_version,
    read_line,
    resolve,
    serve_argv,
    tagged,
)
from planner.errors import InputError, PlannerError
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis, unset_kv_cache_space
from planner.model import Model, ResolvedModel, resolve_model
from planner.planning import defaults
from planner.planning.calibration import SHIPPED, Local
from planner.planning.defaults import Goal
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.fit import Fit
from planner.planning.plan import Plan
from planner.planning.predict import Bench, Prediction
from planner.planning.recommend.assemble import rank, recipe_of
from planner.planning.recommend.goals import Merit
from planner.planning.recommend.request import Candidate, Ranking, Request
from planner.planning.serving import Serving
from planner.workload import Load, Slo, Targets

WORTH_IT = 1.02  #: a plan that is better by less is not worth a change: replays and machines scatter by more

#: Settings that are compared, beside the checkpoint, in the order of vLLM's help.
SETTINGS = (
    *tagged("axes"), "weight_dtype", *(name for name in tagged("plan") if name not in tagged("axes")),
    "cpu_kvcache_space", "engine", "num_scheduler_steps", "flashinfer_sampler", "mxfp4_use_marlin",
    "language_model_only", "max_cudagraph_capture_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The load to compare at, as far as it is given, and what is wanted."""

    input_len: int | None = None
    output_len: int | None = None
    max_concurrency: int | None = None
    num_prompts: int | None = None
    gpus: int | None = None  #: that a plan may use; None: as many as the line, or a node where the line does not start
    goal: Goal = "balanced"
    like: Load | None = None  #: how lengths vary, what prompts share, how they arrive; None: equal, closed loop
    slos: tuple[Slo, ...] = ()  #: what a better plan has to keep
    confidence: float = defaults.CONFIDENCE  #: with which
    sent: Load | None = None  #: the load of the client beside the line, or of a plan for several classes

    def as_planned(self, plan: Plan) -> LineRequest:
        """What is left open, as in the load that a plan was made for; a concurrency takes the place of its rate."""
        load, service = plan.workload.sent, plan.service
        slos = tuple(target.slo for target in service.targets) if service else ()
        found = replace(
            self,
            input_len=self.input_len or load.input_len,
            output_len=self.output_len or load.output_len,
            max_concurrency=self.max_concurrency or load.max_concurrency,
            num_prompts=self.num_prompts or load.num_prompts,
            like=replace(load, request_rate=inf) if self.max_concurrency else load,
            slos=tuple(slo for slo in slos if not slo.group),
            confidence=service.confidence if service else defaults.CONFIDENCE,
        )
        if self.input_len or self.output_len or self.max_concurrency or self.num_prompts:  # another load than its own
            return found
        return replace(found, slos=slos, sent=plan.load if plan.classes else None)

    def load(self, default_len: int) -> Load:
        """What is asked for, ``default_len`` where no length is; of one request where no number is."""
        if self.sent:
            return self.sent
        input_len, output_len = self.input_len or default_len, self.output_len or default_len
        given = Load(input_len, output_len, self.num_prompts or 1, max_concurrency=self.max_concurrency)
        if self.like is None:
            return given
        own = {name: getattr(given, name) for name in ("input_len", "output_len", "num_prompts", "max_concurrency")}
        return replace(self.like, **own)

    def closed(self, load: Load, concurrency: int) -> Load:
        """``load`` with so many in flight, and as many requests as show it where no number is asked for."""
        if self.sent:
            return load
        prompts = self.num_prompts or defaults.PROMPTS_PER_SLOT * concurrency
        return replace(load, max_concurrency=concurrency, num_prompts=prompts)

    def targets(self, load: Load) -> Targets | None:
        """What decides besides the goal: latency targets, or requests that come at a rate."""
        if isfinite(load.request_rate):
            return Targets(self.slos, "rate", load.request_rate, confidence=self.confidence)
        if self.slos and load.max_concurrency:
            return Targets(self.slos, "concurrency", load.max_concurrency, confidence=self.confidence)
        return None


@dataclass(frozen=True)
class Served:
    """One engine under the load."""

    model: str  #: the checkpoint
    deployment: Deployment
    prediction: Prediction

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self.deployment.config

    @property
    def result(self) -> dict[str, Any]:
        """The keys of the benchmark's result file."""
        return self.prediction.result

    @property
    def tok_per_s_per_gpu(self) -> float:
        """Output tokens per second and GPU."""
        return self.prediction.rates["output_throughput_per_gpu"]

    @property
    def command(self) -> tuple[str, ...]:
        """``vllm serve`` with these settings and the options that the recipes add."""
        return tuple(serve_argv(self.config, self.model, extra=recipe_of(self.deployment).flags))

    @property
    def env(self) -> dict[str, str]:
        """Variables that the recipes set, and those of the settings."""
        return {**recipe_of(self.deployment).env, **self.config.env}

    def merit(self, merit: Merit) -> float:
        """The logarithm of how well it serves a goal; larger is better."""
        return merit.of({**self.result, **self.prediction.rates})


@dataclass(frozen=True)
class LineVerdict:
    """What is said about a line. ``fit`` and ``served`` are None where it does not get so far."""

    resolved: ResolvedModel
    profile: GpuProfile
    version: EngineVersion
    line: ServeLine
    goal: Goal
    refusal: PlannerError | None = None  #: why vLLM refuses the settings, whatever the memory
    fit: Fit | None = None
    workload: Load | None = None
    served: Served | None = None
    ranking: Ranking | None = None
    local: Local = SHIPPED  #: fits that predict
    offline: Prediction | None = None  #: of a benchmark that has an engine of its own: what its result would be

    @property
    def starts(self) -> bool:
        """Whether the server would come up: no option is refused, and memory is enough."""
        return not self.line.refused and self.refusal is None and self.fit is not None and self.fit.fits

    @cached_property
    def recommended(self) -> Served | None:
        """The best plan for this GPU at the same load, replayed; None where nothing fits."""
        return self._replayed(self.ranking.best if self.ranking else None)

    @cached_property
    def recommended_same_model(self) -> Served | None:
        """The best plan that keeps the checkpoint, where the best one does not."""
        if not self.ranking or not self.ranking.best or self.ranking.best.resolved.resolved == self.resolved.resolved:
            return None
        own = (c for c in self.ranking.candidates if c.resolved.resolved == self.resolved.resolved)
        return self._replayed(next(own, None))

    def better(self) -> Iterator[Served]:
        """The plans that are worth a change, best first."""
        merit = Merit.among(self.ranking.candidates if self.ranking else (), self.goal)
        for plan in (self.recommended, self.recommended_same_model):
            if plan and (not self.served or plan.merit(merit) > log(WORTH_IT) + self.served.merit(merit)):
                yield plan

    def changes(self, plan: Served) -> dict[str, tuple[Any, Any]]:
        """Settings in which ``plan`` differs from the line: name -> (the line's, the plan's)."""
        line = {"model": self.resolved.resolved, **self.settings}
        planned = {"model": plan.model, **line_settings(plan.config)}
        return {name: (value, planned[name]) for name, value in line.items() if value != planned[name]}

    @property
    def settings(self) -> dict[str, Any]:
        """What the line runs with; only what it says itself where vLLM refuses it."""
        if self.served:
            return line_settings(self.served.config)
        if self.fit:
            return line_settings(self.fit.config)
        given = {name: getattr(self.line.args, name, None) for name in SETTINGS}
        return {name: value for name, value in given.items() if value not in (None, "auto")}

    def _replayed(self, candidate: Candidate | None) -> Served | None:
        if candidate is None or self.workload is None:
            return None
        return _serve(candidate.resolved.resolved, candidate.deployment, self.workload)


def client_request(asked: LineRequest, client: ServeLine, version: EngineVersion) -> LineRequest:
    """``asked``, with the load that the client's line sends; what was asked for by hand counts before it."""
    names = ("input_len", "output_len", "max_concurrency", "num_prompts")
    own = {name: value for name in names if (value := getattr(asked, name)) is not None}
    if "max_concurrency" in own:
        own["request_rate"] = inf
    return replace(asked, sent=replace(client.workload(version), **own))


def check_line(
    line: ServeLine,
    resolved: ResolvedModel,
    profile: GpuProfile,
    version: EngineVersion,
    asked: LineRequest,
    local: Local = SHIPPED,
    draft: Model | None = None,
) -> LineVerdict:
    """Judge a line for GPUs of ``profile`` under ``version``, without the options that the version refuses.

    ``local`` holds the fits to predict with, ``draft`` is the second model that the line names. Raises InputError for
    a load that the line's own context does not hold, and whatever says that the model is not understood.
    """
    answer = LineVerdict(resolved, profile, version, line, asked.goal, local=local)
    basis = Basis(local.constants, draft)
    try:
        version = replace(version, engine=asked_by(line, resolved.model, profile, version))  # a plan chooses for itself
        line = _with_cache_space(line, profile, version)
        if line.is_offline:
            line = _as_offline(line, resolved.model, profile, version)
        args, result = _fit(line, resolved, profile, version, basis)
    except InputError as error:
        if line.is_offline:
            return replace(answer, refusal=error)
        return _with_plan(replace(answer, refusal=error), asked, defaults.LEN)
    line = _fallen_back(line, result.config, profile, answer.version)
    compilation = line.others.get("--compilation-config", "")
    issues = known_issues(result.config, line.env, resolved.model, profile, compilation=compilation)
    answer = replace(answer, fit=result, line=replace(line, problems=(*line.problems, *issues)))
    room = result.config.max_model_len // 2
    if line.is_offline:
        return _offline(answer, args)
    if not result.fits:
        return _with_plan(answer, asked, min(defaults.LEN, room))
    deployment = replace(result.deployment, calibration=local.calibration)
    drafts = args.speculative_config
    if drafts and not drafts.acceptance_rates:  # a line does not say how many are accepted: timed without drafts
        args = replace(args, speculative_config=None)
        version = replace(version, engine=result.config.engine)  # which the drafts may have decided
        deployment = resolve_deployment(
            resolved.model, profile, args, version, basis=basis, calibration=local.calibration
        )
    if deployment.config.engine == "V0" and profile.platform != "cpu":  # on CPUs vLLM takes one step at a time
        config = replace(deployment.config, num_scheduler_steps=line.num_scheduler_steps)
        deployment = replace(deployment, config=config)
    workload = _workload(asked, deployment, min(defaults.LEN, room))
    served = _serve(resolved.resolved, deployment, workload)
    answer = replace(answer, workload=workload, served=served)
    return replace(answer, ranking=_ranking(answer, asked, workload))


def _as_offline(line: ServeLine, model: Model, profile: GpuProfile, version: EngineVersion) -> ServeLine:
    """The line with the defaults that vLLM has for its offline benchmarks, where those of its server are others."""
    args = line.args
    if "latency" in line.command and args.enable_prefix_caching is None and version.release >= (0, 9, 1):
        args = replace(args, enable_prefix_caching=False)  # benchmarks/latency.py: "which skews the latency numbers"
    config = resolve(args, model, profile, version, usage="offline")
    return replace(line, args=replace(args, **config.settings("batch")))


def _offline(answer: LineVerdict, args: EngineArgs) -> LineVerdict:
    """What an offline benchmark would measure, where it starts and its requests are no longer than its context."""
    fit, load = answer.fit, answer.line.workload(answer.version)
    answer = replace(answer, workload=load)
    if fit is None or not fit.fits:
        return answer
    if load.max_total_len > fit.config.max_model_len:
        cause = (
            f"requests of {load.max_total_len:,} tokens are longer than --max-model-len {fit.config.max_model_len:,}"
        )
        return replace(answer, refusal=InputError(cause, hint="raise it, or send shorter ones"))
    drafts = args.speculative_config
    version = replace(answer.version, engine=fit.config.engine)
    if drafts and not drafts.acceptance_rates:  # timed without drafts, as a server's line
        args = replace(args, speculative_config=None)
    deployment = resolve_deployment(
        answer.resolved.model, answer.profile, args, version, offline=True, basis=Basis(answer.local.constants),
        calibration=answer.local.calibration,
    )  # fmt: skip
    if deployment.config.engine == "V0":
        deployment = replace(
            deployment, config=replace(deployment.config, num_scheduler_steps=answer.line.num_scheduler_steps)
        )
    bench: Bench = "latency" if "latency" in answer.line.command else "throughput"
    return replace(answer, offline=Prediction.of(deployment, load, bench=bench))


def asked_by(line: ServeLine, model: Model, profile: GpuProfile, version: EngineVersion) -> Engine | Literal[""]:
    """The engine that the line, or the build of ``version``, decides on; empty: the default one."""
    engine = asked_engine(line.only_v0, line.use_v1, version)
    if engine is None and line.pipelines_on_v1:  # the one that it would have without a pipeline
        engine = resolve(replace(line.args, pipeline_parallel_size=1), model, profile, version).engine
    return engine or version.engine


def _with_cache_space(line: ServeLine, profile: GpuProfile, version: EngineVersion) -> ServeLine:
    """The line with the KV cache that vLLM takes on a CPU where the line gives no size, and a remark on that."""
    said = line.args.cpu_kvcache_space or any(problem.word == CPU_KVCACHE_SPACE for problem in line.problems)
    if said or not profile.kv_cache_is_given:
        return line
    space = unset_kv_cache_space(profile, version)
    left = "what --gpu-memory-utilization leaves when it starts; the prediction counts whole GiB of that"
    cause = f"not set: vLLM {version} then gives the KV cache " + (f"{space} GiB" if space else left)
    remark = FlagProblem(CPU_KVCACHE_SPACE, cause, "set it to the GiB that the cache should get", fatal=False)
    args = line.args.changed(env={CPU_KVCACHE_SPACE: space}) if space else line.args
    return replace(line, args=args, problems=(*line.problems, remark))


def _fallen_back(line: ServeLine, config: EngineConfig, profile: GpuProfile, version: EngineVersion) -> ServeLine:
    """The line with a remark on each word that costs it the V1 engine, where it would have had it."""
    if config.engine == "V1" or default_engine(version, profile) == "V0":
        return line
    words = line.only_v0
    if not words and line.use_v1 is None:
        words = _only_v0_here(config, profile, version)
    cause = f"the V1 engine of vLLM {version} does not have it, so the server falls back to V0"
    remarks = [FlagProblem(word, cause, "leave it out to run V1", fatal=False) for word in words]
    return replace(line, problems=(*line.problems, *remarks))


def _only_v0_here(config: EngineConfig, profile: GpuProfile, version: EngineVersion) -> tuple[str, ...]:
    """Settings that V1 did not have yet on this GPU."""
    drafts = config.speculative_config
    given: dict[str, dict[str, Any]] = {
        "--kv-cache-dtype fp8": {"fp8_kv_cache": config.kv_cache_dtype == "fp8"},
        "--dtype float32": {"fp32": config.dtype == "fp32"},
        "--pipeline-parallel-size": {"pipeline": config.pipeline_parallel_size > 1},
        "--speculative-config": {"drafts": drafts and drafts.method},
    }
    return tuple(word for word, setting in given.items() if default_engine(version, profile, **setting) == "V0")


def _fit(
    line: ServeLine, resolved: ResolvedModel, profile: GpuProfile, version: EngineVersion, basis: Basis
) -> tuple[EngineArgs, Fit]:
    """Whether the settings fit; a context of ``auto`` becomes the longest that does."""

    serving = Serving.of(resolved, profile, line.args, version, basis=basis)
    result = serving.fit()
    longest = result.largest_max_model_len
    if not line.longest_context or result.fits or longest < 1:
        return line.args, result
    args = replace(line.args, max_model_len=longest)
    return args, serving.changed(args=args).fit()


def _workload(asked: LineRequest, deployment: Deployment, default_len: int) -> Load:
    """The load to compare at: as asked, else 1024 in and out, and as many requests as run at once."""
    load, config = asked.load(default_len), deployment.config
    longest = load.longest_len
    if longest > config.max_model_len:
        raise InputError(
            f"requests of up to {longest:,} tokens are longer than the {config.max_model_len:,} of the line",
            hint="give a smaller --random-input-len or --random-output-len, or raise --max-model-len in the line",
        )
    if isfinite(load.request_rate) or asked.sent:
        return load
    held = int(deployment.requests_held(longest))
    most = max(config.data_parallel_size, min(config.max_running, held * config.data_parallel_size))
    return asked.closed(load, asked.max_concurrency or most)


def _with_plan(answer: LineVerdict, asked: LineRequest, default_len: int) -> LineVerdict:
    """The answer for a line that does not start: plans that do, at the load asked for or one that the plan chooses."""
    load = asked.load(default_len)
    if load.max_concurrency:
        load = asked.closed(load, load.max_concurrency)
    ranking = _ranking(answer, asked, load)
    if ranking.best and not load.max_concurrency and not isfinite(load.request_rate):
        load = asked.closed(load, ranking.best.estimate.concurrency)
    return replace(answer, workload=load, ranking=ranking)


def _ranking(answer: LineVerdict, asked: LineRequest, workload: Load) -> Ranking:
    """What ``recommend`` finds on this GPU. The context is the line's where vLLM takes it; all else is open."""
    line = answer.line.args
    context = line.max_model_len if answer.refusal is None else None
    ranks = line.tensor_parallel_size * line.pipeline_parallel_size * line.data_parallel_size
    (ranking,) = rank(
        Request(
            model=answer.resolved,
            gpus=(answer.profile,),
            goal=asked.goal,
            load=workload,
            max_concurrency=workload.max_concurrency,
            num_prompts=asked.num_prompts,
            gpus_per_node=asked.gpus or (ranks if answer.served else None),
            version=answer.version,
            basis=Basis(answer.local.constants),
            calibration=answer.local.calibration,
            args=EngineArgs(max_model_len=context, allow_unvalidated=line.allow_unvalidated),
            targets=asked.targets(workload),
        )
    )
    most = asked.gpus or (ranks if answer.served else inf)
    alone = tuple(c for c in ranking.candidates if c.servers == 1 and c.num_gpus <= most)  # one server is compared
    return replace(ranking, candidates=alone)


def _serve(model: str, deployment: Deployment, workload: Load) -> Served:
    return Served(model, deployment, Prediction.of(deployment, workload, percentiles=defaults.PERCENTILES))


def line_settings(config: EngineConfig) -> dict[str, Any]:
    """The settings by name."""
    return {name: getattr(config, name) for name in SETTINGS}


def launched_args(plan: Plan) -> EngineArgs:
    """The settings that ``serve_argv`` and the plan's variables ask for."""
    line = read_line(plan.serve_argv, parse_version(plan.engine_version), env=plan.env, platform=plan.platform)
    return replace(line.args, allow_unvalidated=True)


def redeploy(plan: Plan, local: Local = SHIPPED) -> Deployment:
    """The engine that ``serve_argv`` launches. Raises PlannerError where its model or GPU is not known here."""
    profile, model = load_profile(plan.gpu).with_network(plan.network_gb_per_s), resolve_model(plan.model).model
    if plan.nodes > 1:
        profile = profile.with_node(plan.gpus_per_node)
    version = parse_version(plan.engine_version)
    line = read_line(plan.serve_argv, version, env=plan.env, platform=plan.platform)
    version = replace(version, engine=asked_by(line, model, profile, version))
    basis, args = Basis(local.constants), launched_args(plan)
    deployment = resolve_deployment(model, profile, args, version, basis=basis, calibration=local.calibration)
    if deployment.config.engine == "V0" and profile.platform != "cpu":
        config = replace(deployment.config, num_scheduler_steps=line.num_scheduler_steps)
        return replace(deployment, config=config)
    return deployment
