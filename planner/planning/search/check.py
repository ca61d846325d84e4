"""Will a ``vllm serve`` line start, what would it deliver, and which settings would deliver more at the same load?"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from itertools import chain, product
from math import ceil, inf, isfinite
from typing import Any

from planner import engine
from planner.errors import IllegalPlanError, InputError, PlannerError, brief
from planner.hardware import GpuProfile
from planner.memory import unset_kv_cache_space
from planner.model import Model, with_overrides
from planner.planning import defaults
from planner.planning.advice import Advised
from planner.planning.defaults import Bench, Goal
from planner.planning.deployment import Deployment
from planner.planning.fit import Fit
from planner.planning.plan import Plan
from planner.planning.predict import Prediction
from planner.planning.search.comparison import recipe_of
from planner.planning.search.plans import for_users
from planner.planning.search.search import Search
from planner.planning.search.space import Merit, Objective, Ranking, Space
from planner.planning.serving import Serving, asked_by, timed_engine
from planner.resources import package_dir, tables_of
from planner.secrets import is_secret
from planner.units import counted, whole_number
from planner.workload import Load, Targets

_TABLE = tables_of(package_dir("planning") / "check.toml")
_REPLACED = ("--tool-call-parser", "--reasoning-parser")  #: options whose remarks the recipe of the model answers
#: Words that choose the attention backend, the newest first.
_ATTENTION = ("--attention-backend", "--attention-config.backend", "VLLM_ATTENTION_BACKEND")
SETTINGS = tuple(dict.fromkeys((*engine.tagged("axes"), "weight_dtype", *engine.tagged("plan"), *_TABLE["compared"])))


@dataclass(frozen=True, slots=True)
class LineRequest:
    """The load to compare at, as far as it is given, and the goal of a better plan."""

    given: Mapping[str, Any] = field(default_factory=dict)  #: fields of the load that were given by hand
    gpus: int | None = None  #: that a plan may use; None: as many as the line; fewer or a node where it does not start
    goal: Goal = "balanced"
    like: Load | None = None  #: the rest of the load; None: requests of one length, in a closed loop
    wrapped: bool = False  #: in a script that may add options, such as those of several nodes
    fixed: bool = False  #: ``like`` is sent as it stands: by the client beside the line, or for a plan of classes
    targets: Targets = field(default_factory=Targets)  #: that a better plan has to meet

    def as_planned(self, plan: Plan) -> "LineRequest":
        """Fill what is left open from a plan's load; a concurrency takes the place of its rate."""
        service, load = plan.service, plan.load
        slos = tuple(target.slo for target in service.targets) if service else ()
        if self.given:  # another load than the plan's own
            slos, load = tuple(slo for slo in slos if not slo.group), plan.workload.sent
        if "max_concurrency" in self.given:
            load = replace(load, request_rate=inf)
        confidence = service.confidence if service else defaults.CONFIDENCE
        targets = Targets(slos, confidence=confidence)
        return replace(self, like=load, fixed=bool(load.classes), targets=targets)

    def with_client(self, client: engine.ServeLine, version: engine.EngineVersion) -> "LineRequest":
        """The load that the client beside the line sends; what was given by hand counts before it."""
        given = {**self.given, "request_rate": inf} if "max_concurrency" in self.given else self.given
        return replace(self, given=given, like=client.workload(version), fixed=True)

    def load(self, default_len: int) -> Load:
        """The load, with ``default_len`` where no length is given; of one request where no number is."""
        return replace(self.like or Load(default_len, default_len), **self.given)

    @property
    def num_prompts(self) -> int | None:
        """The number of requests that was given, or is planned."""
        if "num_prompts" in self.given:
            return int(self.given["num_prompts"])
        return self.like.num_prompts if self.like and (self.like.classes or not self.fixed) else None

    def closed(self, load: Load, concurrency: int) -> Load:
        """``load`` with so many in flight, and as many requests as a steady state needs unless a number is given."""
        if self.fixed:
            return load
        prompts = self.num_prompts or defaults.PROMPTS_PER_SLOT * concurrency
        return replace(load, max_concurrency=concurrency, num_prompts=prompts)

    def objective(self, load: Load) -> Objective:
        """The goal, and the targets under ``load`` where there are any or requests come at a rate."""
        targets = None
        if isfinite(load.request_rate):
            targets = replace(self.targets, by="rate", value=load.request_rate)
            load = replace(load, max_concurrency=None)
        elif self.targets.slos and load.max_concurrency:
            targets = replace(self.targets, by="concurrency", value=load.max_concurrency)
        return Objective(self.goal, load, targets, num_prompts=self.num_prompts)


@dataclass(frozen=True)
class Served:
    model: str  #: the checkpoint
    deployment: Deployment
    prediction: Prediction
    line: engine.ServeLine  #: whose options beside the settings it keeps

    @property
    def config(self) -> engine.EngineConfig:
        return self.deployment.config

    @property
    def launched(self) -> engine.EngineConfig:
        """The settings with the line's drafts, where they are not timed."""
        return _with_drafts(self.config, self.line.args.speculative_config)

    @property
    def result(self) -> dict[str, Any]:
        return self.prediction.result

    @property
    def command(self) -> tuple[str, ...]:
        """``vllm serve`` with these settings, the line's other options as they are, and those that the recipes add."""
        others = {} if self.line.is_offline else dict(self.line.others)
        answered = (*_REPLACED, *_ATTENTION)
        fatal = {one.word for one in self.line.problems if one.fatal or one.word.split()[0] in answered}
        refused = {word.split()[0] for word in fatal}
        if "--tool-call-parser" in refused:  # with a parser of the recipe comes the switch
            refused.add("--enable-auto-tool-choice")
        keyed = {name: value for name, value in others.items() if name in refused - fatal and value.startswith("{")}
        dotted = {n for n, v in others.items() if {key := n.replace(".", " "), f"{key} {v}"} & fatal}
        others = {n: value for n, value in others.items() if n not in refused | dotted}
        spelled = engine.spelled_options(keyed, self.config.version)
        others |= {f"--{name}": json.dumps(value, separators=(",", ":")) for name, value in spelled.items()}
        host, port = others.pop("--host", engine.LOOPBACK), others.pop("--port", "8000")
        head = next((others[name] for name in _TABLE["addresses"] if name in others), "HEAD")
        others = {name: value for name, value in others.items() if name not in _TABLE["joining"]}
        said = {name.removeprefix("--").removeprefix("no-") for name in others}
        captured = "cudagraph_capture_size" in " ".join((*others, *others.values())).replace("-", "_")
        launched = replace(self.launched, max_cudagraph_capture_size=None) if captured else self.launched
        flags = recipe_of(self.deployment).flags.items()
        added = {name: value for name, value in flags if name.removeprefix("--").removeprefix("no-") not in said}
        words = engine.serve_argv(launched, self.model, host=host, port=port, extra=added)
        shown = {name: "REDACTED" if is_secret(value, name) else value for name, value in others.items()}
        kept = (word for name, value in shown.items() for word in (name, *engine.option_values(name, value)))
        own = (word for word in words if not word.startswith("--") or word[2:].removeprefix("no-") not in said)
        nodes = 1 if others.get("--distributed-executor-backend") == "ray" else _nodes(self.deployment)
        joined = engine.head_node_words(self.config, nodes, self.config.version)
        return (*own, *kept, *(head if word == "HEAD" else word for word in joined))

    @property
    def env(self) -> dict[str, str]:
        """Variables that the recipes set, the line's, and those of the settings."""
        more = self.config.num_gpus > engine.Layout.of(self.line.args).num_gpus
        hiding = _TABLE["visible"].get(self.deployment.profile.platform, ()) if more else ()
        changed = {*engine.VARIABLES, *(problem.word for problem in self.line.problems), *hiding}
        kept = {name: one for name, one in self.line.env.items() if name not in changed and not is_secret(one, name)}
        return {**recipe_of(self.deployment).env, **kept, **self.config.env}

    @property
    def from_recipe(self) -> tuple[str, ...]:
        """Options and variables of the recipes in the command that the line lacks, as words."""
        recipe, line = recipe_of(self.deployment), self.line
        options = engine.read_line(self.command, self.config.version).options
        kept = {name for name in line.options if name not in _REPLACED or line.options[name] == options.get(name)}
        added = ((name, options[name]) for name in options if name[2:] in recipe.flags and name not in kept)
        words = (f"{name} {brief(value)}".rstrip() for name, value in added)
        return (*words, *(f"{name}={self.env[name]}" for name in recipe.env if name not in line.env))

    def merit(self, merit: Merit) -> float:
        """The logarithm of how well it serves a goal; larger is better."""
        return merit.of({**self.result, **self.prediction.rates})


@dataclass(frozen=True)
class LineVerdict:
    """The verdict on a line. ``fit`` and ``served`` are None where it does not get so far."""

    serving: Serving  #: the model, GPU, version and calibration
    line: engine.ServeLine
    goal: Goal
    refusals: tuple[PlannerError, ...] = ()  #: why vLLM refuses the settings, whatever the memory
    fit: Fit | None = None
    workload: Load | None = None
    served: Served | None = None
    mended: Served | None = None  #: the line with what a refusal's hint adds or leaves out, or with AMD's kernels
    ranking: Ranking | None = None
    offline: Prediction | None = None  #: of a benchmark that has an engine of its own: what its result would be

    @property
    def starts(self) -> bool:
        """True if the server comes up: no option is refused, and memory is enough."""
        return not self.line.refused and not self.refusals and self.fit is not None and self.fit.fits

    def better(self) -> Iterator[Served]:
        """The mended line, and plans that are worth a change, best first: of any checkpoint, and of the line's own."""
        yield from filter(None, [self.mended])
        candidates = self.ranking.candidates if self.ranking else ()
        merit = Merit.among(candidates, self.goal)
        best, line = next(iter(candidates), None), self.served or self.mended
        refused = "speculative_config" in _refused(("speculative_config",), self.refusals)
        kept = replace(self.line, args=self.line.args.changed(speculative_config=None)) if refused else self.line
        same = next((one for one in candidates if one.resolved.resolved == self.model), None)
        for candidate in (best, same if same is not best else None):
            if candidate is None or self.workload is None:
                continue
            plan = _serve(candidate.resolved.resolved, candidate.deployment, self.workload, kept)
            if not line or plan.merit(merit) > line.merit(merit) + merit.tie:
                yield plan

    def advice(self) -> Iterator[str]:
        """Yield one line for each advice of a document that the line does not follow."""
        timed = self.served or self.offline
        if timed and self.workload:
            bench: Bench = self.offline.bench if self.offline else "serve"
            engine, options = timed.deployment, self.line.options
            yield from Advised(engine, self.model, self.workload, self.goal, bench, options).contradicted()

    def copies(self) -> tuple[int, Served] | None:
        """Return the servers of a smaller TP size that serve a closed loop best on the line's GPUs, and one of them.

        None where the line serves it as well."""
        load, tensor_parallel_size = self.workload, self.line.args.tensor_parallel_size
        if not self.served or not load or not load.max_concurrency or self.served.config.data_parallel_size > 1:
            return None
        best: tuple[int, Served] | None = None
        merit = Merit(self.goal)
        for servers in (2**power for power in range(1, tensor_parallel_size.bit_length())):
            smaller = replace(self.line.args, tensor_parallel_size=tensor_parallel_size // servers)
            try:
                serving = self.serving.changed(args=smaller)
                if not serving.fit().fits:
                    break
                share = load.share_of(servers, most=ceil(load.num_prompts / servers))
                one = _serve(self.model, timed_engine(serving, self.line), share, self.line)
            except PlannerError:
                break
            if one.merit(merit) > (best[1] if best else self.served).merit(merit) + merit.tie:
                best = servers, one
        return best

    @property
    def assumed_kernels(self) -> str:
        """AMD's kernels that the line lacks and whose figures it has; else empty."""
        timed = self.offline or self.served
        off = "AITER" if timed and timed.deployment.slow_steps else ""
        return off or (_lacked_attention(self.line, timed.deployment) if timed else "")

    @property
    def model(self) -> str:
        return self.serving.resolved.resolved

    def changes(self, plan: Served) -> dict[str, tuple[Any, Any]]:
        """Settings in which ``plan`` differs from the line: name -> (the line's, the plan's)."""
        line = {"model": self.model, **self.settings}
        planned = {name: _shown(getattr(plan.launched, name, plan.model)) for name in line}
        line |= {**self.line.env, **self.line.others}
        planned |= {**plan.line.env, **plan.line.others}
        pairs = {name: (line.get(name), planned.get(name)) for name in {**line, **planned}}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def settings(self) -> dict[str, Any]:
        """The line's settings; only what it says itself where vLLM refuses it."""
        config = self.served.config if self.served else self.fit and self.fit.config
        remedied = (name for error in self.refusals for name in error.remedy)
        named = _refused([row.name for row in fields(engine.EngineArgs)], self.refusals)
        names = dict.fromkeys((*SETTINGS, *remedied, *named))
        given = {name: _shown(getattr(config or self.line.args, name, None)) for name in names}
        given["max_model_len"] = given["max_model_len"] or self.serving.longest_context
        return given if config else {name: value for name, value in given.items() if value not in (None, "auto")}


def check_line(line: engine.ServeLine, serving: Serving, asked: LineRequest) -> LineVerdict:
    """Judge a line for the model, GPU, version and calibration of ``serving``; refused options are left out.

    Raises InputError for a load that the line's own context does not hold, and for a model that is not understood."""
    given = serving
    with suppress(ValueError):  # to 0.10.1
        overrides = {"rope_scaling": json.loads(line.others.get("--rope-scaling", ""))}
        serving = serving.changed(model=with_overrides(serving.model, overrides))
    serving = serving.changed(hf_overrides=line.args.hf_overrides)
    length, most = line.args.max_model_len or 0, serving.longest_context
    remarks = {"pooling": "only memory is checked, speed is not simulated"} if line.pools else {}
    if length > most and engine.is_on(line.env, engine.ALLOW_LONG):
        remarks[f"--max-model-len {length}"] = f"positions beyond the {most:,} of the model may give wrong answers"
        serving = serving.changed(model=replace(serving.model, max_position_embeddings=length))
    modelopt = serving.model.quantization.method == "modelopt" and serving.version.release >= (0, 14)  # takes any name
    kept = (one for one in line.problems if not (modelopt and one.word.startswith("--quantization ")))
    problems = (*kept, *(engine.FlagProblem(word, cause, fatal=False) for word, cause in remarks.items()))
    line = replace(line, problems=tuple(dict.fromkeys(problems)))
    answer = LineVerdict(serving, line, asked.goal)
    try:
        line, timed, result = _fitted(line, serving)
    except InputError as error:
        if "enable_chunked_prefill" in error.remedy and serving.version.release < (0, 11, 1):  # V1 overwrites it
            word, _, cause = error.cause.partition(": ")
            overwritten = engine.FlagProblem(word, cause, error.hint, fatal=False)
            line = replace(line, args=line.args.changed(**error.remedy), problems=(*line.problems, overwritten))
            return check_line(line, given, asked)
        answer = replace(answer, refusals=(error, *_further_refusals(line, serving, error)))
        if line.is_offline or line.pools:
            return answer
        hinted = error.remedy or (_named(line, error) if error.hint.startswith("leave") else {})
        if hinted.get("max_model_len", inf) < asked.load(1).longest_len:
            return answer
        if engine.Layout.of(line.args).num_gpus <= (asked.gpus or inf) and hinted:
            verdict = check_line(replace(line, args=line.args.changed(**hinted)), given, asked)
            if mended := verdict.mended or verdict.served:
                return replace(answer, workload=verdict.workload, mended=mended, ranking=verdict.ranking)
        return _with_plan(answer, asked, defaults.LEN)
    nodes, ranks = _nodes(result.deployment), result.config.data_parallel_size
    as_planned = {("--nnodes", str(nodes)), ("--data-parallel-size-local", str(ranks // nodes))}
    ignored = tuple(name for name in line.not_simulated if (name, line.options.get(name)) not in as_planned)
    ignored += tuple(note.split()[0] for note in result.config.ignored if note.startswith("--hf-overrides"))
    line = replace(line, not_simulated=ignored)
    line = _fallen_back(line, result.config, serving.profile, serving.version)
    compilation = line.others.get("--compilation-config", "")
    known = engine.known_issues(result.config, line.env, serving.model, serving.profile, compilation=compilation)
    issues = (*known, *_doubts(line, result.config, serving.model, serving.profile))
    hidden, refusals = ([], ()) if asked.wrapped else _missing_gpus(line, result.config, serving.profile)
    line = replace(line, problems=(*_about_kernels(line, result), *line.problems, *issues, *hidden))
    answer = replace(answer, fit=result, line=line, refusals=refusals)
    if line.is_offline or line.pools:
        return answer if line.pools else _offline(answer, timed)
    room = min(defaults.LEN, result.config.max_model_len // 2)
    if not result.fits:
        return _with_plan(answer, asked, room)
    deployment = timed_engine(timed, line)
    workload = _workload(asked, deployment, room)
    line = replace(answer.line, problems=(*answer.line.problems, *_about_places(answer.line, deployment, workload)))
    served = _serve(answer.model, deployment, workload, line)
    answer = replace(answer, line=line, workload=workload, served=served)
    answer = replace(answer, mended=_with_kernels(answer, served))
    return replace(answer, ranking=_ranking(answer, asked, workload))


def _with_kernels(answer: LineVerdict, served: Served) -> Served | None:
    """The line with the kernels of AMD that it lacks, and a context that they serve; None where it has them."""
    load = served.prediction.load
    context = max(_context(answer) or 0, load.longest_len)
    timed = replace(served.deployment, without_aiter=False).with_settings(max_model_len=context)
    return _serve(served.model, timed, load, served.line) if answer.assumed_kernels else None


def _nodes(deployment: Deployment) -> int:
    return -(-deployment.config.num_gpus // deployment.profile.gpus_per_node)


def _fitted(line: engine.ServeLine, serving: Serving) -> tuple[engine.ServeLine, Serving, Fit]:
    """The line with vLLM's defaults, its engine and its fit; a context of ``auto`` is the longest that fits."""
    profile = serving.profile
    version = asked_by(line, serving.model, profile, serving.version)
    # ``init_static_loras`` hands them to the engine
    if "--lora-modules" in line.others and not line.args.enable_lora and version.release >= (0, 7, 3):
        cause = "--lora-modules: the engine takes no adapters, so the server ends when it loads them"
        raise IllegalPlanError(cause, hint="add --enable-lora", enable_lora=True)
    given = line.args.cpu_kvcache_space or any(problem.word == engine.CPU_KVCACHE_SPACE for problem in line.problems)
    if profile.kv_cache_is_given and not given:
        space = unset_kv_cache_space(profile, version)
        name, word = "cache" if space else "left_cache", engine.CPU_KVCACHE_SPACE
        remark = _problem(name, fatal=False, word=word, version=version, space=space)
        args = line.args.changed(env={engine.CPU_KVCACHE_SPACE: space}) if space else line.args
        line = replace(line, args=args, problems=(*line.problems, remark))
    share = line.args.gpu_memory_utilization or engine.default_utilization(version)
    if profile.memory.utilization:  # a plan would have another one
        line = replace(line, args=line.args.changed(gpu_memory_utilization=share))
    if line.is_offline:  # with the defaults of vLLM's offline benchmarks, where those of its server are others
        args = engine.of_latency_bench(line.args, version) if "latency" in line.command else line.args
        config = engine.resolve(args, serving.model, profile, version, usage="offline")
        line = replace(line, args=replace(args, **config.settings("batch")))
    # ``cudagraph_mode`` in either spelling: such graphs check no states (config/compilation.py)
    compiled = "".join((name + value).upper() for name, value in line.others.items() if "compilation" in name)
    full = "FULL" in compiled or not re.search(r"CUDAGRAPH_MODE\W*(PIECEWISE|NONE)", compiled)
    basis = replace(serving.basis, full_graphs=full, any_length=line.longest_context)
    timed = serving.changed(args=line.args, engine_version=version, basis=basis)
    return line, timed, timed.fit()


def _further_refusals(line: engine.ServeLine, serving: Serving, error: PlannerError) -> Iterator[PlannerError]:
    """Yield the errors that are left without the settings that the one before names."""
    while named := _named(line, error):
        line = replace(line, args=line.args.changed(**named))
        try:
            _fitted(line, serving)
        except InputError as further:
            yield (error := further)
        else:
            return


def _named(line: engine.ServeLine, error: PlannerError) -> dict[str, Any]:
    """Defaults of the settings that an error names, where the line has others."""
    named = (name for name in SETTINGS if engine.flag_of(name) in error.cause)
    unset = {name: getattr(engine.EngineArgs(), name, None) for name in named}
    return {name: value for name, value in unset.items() if getattr(line.args, name, None) != value}


def _refused(names: Sequence[str], refusals: Sequence[PlannerError]) -> list[str]:
    """Return the ``names`` whose options, or the ones that switch them off, stand in a refusal."""
    words = {word.strip(":,.()") for error in refusals for word in error.cause.split()}
    return [name for name in names if words & {engine.flag_of(name), engine.flag_of(f"no_{name}")}]


def _shown(value: Any) -> Any:
    return value.text if isinstance(value, engine.SpeculativeConfig) else value


def _offline(answer: LineVerdict, timed: Serving) -> LineVerdict:
    """The result of an offline benchmark, where it starts and its requests are no longer than its context."""
    fit, load = answer.fit, answer.line.workload(answer.serving.version)
    answer = replace(answer, workload=load)
    if fit is None or not fit.fits:
        return answer
    if load.max_total_len > (most := fit.config.max_model_len):
        cause = f"requests of {load.max_total_len:,} tokens are longer than --max-model-len {most:,}"
        return replace(answer, refusals=(InputError(cause, hint="raise it, or send shorter ones"),))
    bench: Bench = "latency" if "latency" in answer.line.command else "throughput"
    deployment = timed_engine(timed, answer.line, bench)
    load = deployment.resent(load) if bench == "latency" else load  # its warm-up sent the same prompts
    return replace(answer, offline=Prediction.of(deployment, load, bench=bench))


def _fallen_back(
    line: engine.ServeLine, config: engine.EngineConfig, profile: GpuProfile, version: engine.EngineVersion
) -> engine.ServeLine:
    """The line with a remark on each word that costs it the V1 engine, where it would have had it."""
    if config.engine == "V1" or engine.default_engine(version, profile) == "V0":
        return line
    drafts, words = config.speculative_config, line.only_v0
    if not words and line.use_v1 is None:  # settings that V1 did not have yet on this GPU
        given: dict[str, dict[str, Any]] = {
            "--kv-cache-dtype fp8": {"fp8_kv_cache": config.kv_cache_dtype == "fp8"},
            "--dtype float32": {"fp32": config.dtype == "fp32"},
            "--pipeline-parallel-size": {"pipeline": config.pipeline_parallel_size > 1},
            "--speculative-config": {"drafts": drafts and drafts.method},
        }
        words = tuple(
            word for word, setting in given.items() if engine.default_engine(version, profile, **setting) == "V0"
        )
    remarks = [_problem("fallen_back", fatal=False, word=word, version=version) for word in words]
    return replace(line, problems=(*line.problems, *remarks))


def _doubts(
    line: engine.ServeLine, config: engine.EngineConfig, model: Model, profile: GpuProfile
) -> Iterator[engine.FlagProblem]:
    share, method, version = config.gpu_memory_utilization, line.args.quantization, config.version
    if share > engine.MOST_UTILIZATION and config.engine == "V1" and version.release >= (0, 9, 1):
        yield _problem("share", share=share, advised=engine.ADVISED_UTILIZATION)
    yield from _backend_doubts(line, config, profile)
    cuts = version.release >= (0, 32) and engine.cuts_expert_blocks(model, engine.Layout.of(config))
    chosen = "moe_backend" in " ".join((*line.others, *line.others.values())).replace("-", "_")
    for name, moe, default in _TABLE["forced_experts"] if cuts and not chosen else ():
        values = line.env.get(name, default), line.env.get(moe, "1")
        if {name, moe} & line.env.keys() and all(value.lower() in ("1", "true") for value in values):
            yield _problem("experts", word=moe if moe in line.env else name, moe=moe)
    yield from _rank_doubts(line, config, model)
    packed, formats = engine.BITSANDBYTES, (method, model.quantization.method)
    known = engine.value_status(version, "quantization", packed)
    if known and line.others.get("--load-format") == packed and packed not in formats:
        yield _problem("loader", model=model.id)
    own = model.quantization.weight_dtype
    if method and model.quantization.method == "modelopt" and method != _TABLE["modelopt"].get(own, "modelopt_mixed"):
        yield _problem("modelopt", fatal=False, method=method, own=own)
    of_nvidia = model.quantization.method and profile.platform == "cuda"
    # versions with ``auto_awq`` take Marlin under either name
    if method in ("awq", "gptq") and of_nvidia and not engine.value_status(version, "quantization", f"auto_{method}"):
        yield _problem("marlin", fatal=False, method=method, version=version)


def _backends(line: engine.ServeLine, version: engine.EngineVersion) -> dict[str, str]:
    """The attention backends that the line names, by the words that do."""
    given = {name: value for name, value in {**line.env, **line.others}.items() if engine.env_status(version, name)}
    with suppress(KeyError, ValueError, AttributeError):
        keyed = json.loads(given["--attention-config"]).items()
        given |= {f"--attention-config.{key}": str(value) for key, value in keyed}
    return {word: given[word].upper() for word in _ATTENTION if given.get(word)}


def _backend_doubts(
    line: engine.ServeLine, config: engine.EngineConfig, profile: GpuProfile
) -> Iterator[engine.FlagProblem]:
    fp8, capability = config.kv_cache_dtype.startswith("fp8"), profile.compute_capability or (9, 0)
    reads = {"TRITON_ATTN": capability >= (8, 9), "FLASH_ATTN": capability[0] in (9, 10)}  # v1/attention/backends
    block_size = line.args.block_size if line.args.block_size and config.version.release >= (0, 18) else 0
    for word, name in _backends(line, config.version).items():
        kernels = next((home for start, home in _TABLE["kernels"].items() if name.startswith(start)), profile.platform)
        if word.startswith("--") and kernels != profile.platform:
            yield engine.FlagProblem(word, f"{name} has kernels for {kernels} alone", "leave it out")
        elif fp8 and config.engine == "V1" and not reads.get(name, True):
            yield _problem("fp8_cache", word=word, backend=name, gpu=profile.name)
        elif block_size % (divisor := _TABLE["blocks"].get(name, 1)):
            yield _problem("blocks", backend=name, divisor=divisor, size=block_size)


def _lacked_attention(line: engine.ServeLine, deployment: Deployment) -> str:
    """AITER's attention, whose figures a line with AITER has, where it takes another; else empty."""
    version, recipe = deployment.config.version, deployment.with_aiter
    if not recipe or not engine.is_on(line.env, engine.AITER):
        return ""
    backend = str(recipe.flags.get("attention-backend", ""))
    # without a name ROCM_ATTN goes first from 0.19 on
    taken = next(iter(_backends(line, version).values()), "" if backend and version.release >= (0, 19) else "AITER")
    return "" if "AITER" in taken else backend or "AITER"


def _missing_gpus(
    line: engine.ServeLine, config: engine.EngineConfig, profile: GpuProfile
) -> tuple[list[engine.FlagProblem], tuple[PlannerError, ...]]:
    """Variables that hide GPUs of the line, and its refusal if one machine has too few (``config/parallel.py``)."""
    given, node = line.options, profile.gpus_per_node
    backends = {given.get(name, "mp") for name in ("--distributed-executor-backend", "--data-parallel-backend")}
    ray = config.num_gpus > node and profile.platform == "cuda" and not engine.flag_status(config.version, "--nnodes")
    visible = _TABLE["visible"].get(profile.platform, ())
    if ray or not visible or not backends <= {"mp", "uni"} or {*_TABLE["placed"]} & {*given}:
        return [], ()
    nodes, local = (whole_number(given.get(name, "")) for name in ("--nnodes", "--data-parallel-size-local"))
    share = local / config.data_parallel_size if local is not None and not nodes else 1 / (nodes or 1)
    taken = round(config.num_gpus * share)
    seen = {name: value.count(",") + 1 for name in visible if (value := line.env.get(name)) and "$" not in value}
    few = ((name, counted(number)) for name, number in seen.items() if number < taken)
    hidden = [_problem("hidden", word=name, number=number, taken=taken) for name, number in few]
    joined = " ".join(engine.head_node_words(config, -(-taken // node), config.version))
    cause = f"the line takes {counted(taken)} of one machine, which has {node}"
    return hidden, (IllegalPlanError(cause, hint=f"add {joined} on the first node"),) * (taken > node)


def _rank_doubts(line: engine.ServeLine, config: engine.EngineConfig, model: Model) -> Iterator[engine.FlagProblem]:
    version = config.version
    if line.others.get("--prefill-context-parallel-size", "1") != "1":  # v1/worker/cp_utils.py
        mla = engine.uses_latent_attention(model)
        cause = "multiplies the GPUs, and planner does not model it" if mla else f"vLLM {version} has it for MLA alone"
        yield engine.FlagProblem("--prefill-context-parallel-size", cause, "leave it out", modelled=not mla)
    for word, values, other, since in _TABLE["conflicts"]:
        given = other in line.options and re.fullmatch(values, line.options.get(word, "absent"))
        if given and version.release >= tuple(since):
            yield engine.FlagProblem(word, f"vLLM {version} refuses it beside {other}", "leave it out")
    word = "--enable-dbo" if "--enable-dbo" in line.others else "--ubatch-size"
    halved = word == "--enable-dbo" or line.others.get(word, "0") not in ("0", "1")
    if halved and line.args.all2all not in _TABLE["microbatched"]:
        option = "--all2all-backend " if version.release >= (0, 11, 1) else "VLLM_ALL2ALL_BACKEND="
        steps = ", whose steps have 256 tokens by default," if version.release >= (0, 20) else ""
        yield _problem("exchange", word=word, version=version, wanted=f"{option}{_TABLE['microbatched'][0]}{steps}")


def _problem(kind: str, *, fatal: bool = True, **values: Any) -> engine.FlagProblem:
    """Return a problem of ``check.toml``: its word, cause and hint with these ``values``."""
    word, cause, hint = (text.format(**values) for text in _TABLE["problems"][kind])
    return engine.FlagProblem(word, cause, hint, fatal)


def _about_kernels(line: engine.ServeLine, fit: Fit) -> Iterator[engine.FlagProblem]:
    cause, _, hint = replace(fit.deployment, without_aiter=True).kernels_remark(line.env).rpartition("; ")
    if cause and fit.fits and not line.pools:
        yield engine.FlagProblem(engine.AITER, cause, hint, fatal=False)
    attention, named = _lacked_attention(line, fit.deployment), _backends(line, fit.config.version)
    if attention and not named:
        yield _problem("attention", fatal=False, version=fit.config.version, backend=attention)
    fix = f"give {attention}" if attention.startswith("ROCM") else "leave it out"
    yield from (_problem("aiter", fatal=False, word=word, name=named[word], fix=fix) for word in named if attention)


def _about_places(line: engine.ServeLine, deployment: Deployment, load: Load) -> Iterator[engine.FlagProblem]:
    if line.args.max_num_seqs is None:
        return
    places, ranks = deployment.config.max_num_seqs, deployment.config.data_parallel_size
    held = int(deployment.requests_of(load))
    if places > next((size for size in defaults.USUAL_MAX_NUM_SEQS if size >= held), held):  # plans have that size
        yield _problem("places", fatal=False, places=places, held=counted(held, "request"), wanted=max(held, 1))
    if load.num_prompts < min(places * ranks, load.max_concurrency or places * ranks) and not load.open:
        sent, each = load.num_prompts, defaults.PROMPTS_PER_SLOT
        yield _problem("prompts", fatal=False, sent=sent, places=places * ranks, each=each)


def _workload(asked: LineRequest, deployment: Deployment, default_len: int) -> Load:
    """The load to compare at: as asked, else 1024 in and out, and as many requests as run at once."""
    load, config = asked.load(default_len), deployment.config
    longest, ranks = load.longest_len, config.data_parallel_size
    if longest > config.max_model_len:
        cause = f"requests of up to {longest:,} tokens are longer than the {config.max_model_len:,} of the line"
        hint = "give a smaller --random-input-len or --random-output-len, or raise --max-model-len in the line"
        raise InputError(cause, hint=hint)
    if isfinite(load.request_rate) or asked.fixed:
        return load
    most = max(ranks, min(config.max_running, int(deployment.requests_served(longest, load.common_len)) * ranks))
    return asked.closed(load, load.max_concurrency or most)


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
    """The plans of ``recommend`` for this GPU, with the line's GPUs and context.

    Where nothing fits: as ``fit`` makes it fit on these GPUs; then, unless ``gpus`` were given, on twice as many."""
    line, node = answer.line.args, answer.serving.profile.gpus_per_node
    ranks, options = engine.Layout.of(line).num_gpus, answer.fit.options if answer.fit else ()
    more = () if asked.gpus or answer.served else (*(ranks << n for n in range(1, (node // ranks).bit_length())), None)
    contexts = dict.fromkeys((_context(answer), line.max_model_len and _context(answer)))
    here: list[dict[str, Any]] = [{"max_model_len": one} for one in contexts]
    mended = ({**here[0], **way.settings} for way in options if way.settings.keys() <= {*_TABLE["remedies"]})
    sizes = chain(product((asked.gpus or ranks,), chain(here, mended)), product(more, here))
    tried = (_plans(answer, asked, workload, gpus, **settings) for gpus, settings in sizes)
    first = next(tried)
    return next((one for one in chain((first,), tried) if one.candidates), first)


def _plans(answer: LineVerdict, asked: LineRequest, workload: Load, gpus: int | None, **settings: Any) -> Ranking:
    """The plans of one server on ``gpus`` GPUs, or fewer where there are none; None: on a node, or more."""
    given, line = answer.line.args, answer.serving
    starts = answer.served and not any(one.word == "--gpu-memory-utilization" for one in answer.line.problems)
    names = [*_TABLE["functional"], *["gpu_memory_utilization"] * bool(starts)]  # the rest may be other programs'
    names += ["enable_prefix_caching"] * bool(given.enable_prefix_caching or given.enable_chunked_prefill is False)
    refused = _refused((*names, "speculative_config"), answer.refusals)
    kept = {name: getattr(given, name) for name in names if name not in refused}
    drafts = None if "speculative_config" in refused else given.speculative_config
    if drafts and (accepting := line.args.speculative_config) and accepting.acceptance_rates:
        kept["speculative_config"] = accepting
    args = engine.EngineArgs(allow_unvalidated=given.allow_unvalidated, **{**kept, **settings})
    serving = Serving.of(line.resolved, line.profile, args, line.version, local=line.local, basis=line.basis)
    space, objective = Space((serving,), gpus_per_node=gpus), asked.objective(workload)
    (ranking,) = Search(space, objective).run()
    alone = [c for c in ranking.candidates if c.servers == 1 and c.num_gpus <= (gpus or inf)]
    if gpus and not asked.gpus:  # as many as the line; fewer only for one that does not start
        alone = [c for c in alone if c.num_gpus == gpus] or alone * (not answer.served)
    engines = ((c, replace(c.deployment, config=_with_drafts(c.deployment.config, drafts))) for c in alone)
    sure = answer.served and answer.served.deployment.verdict == "fits"  # a plan starts as surely
    fitting = [c for c, drafting in engines if (drafting.verdict == "fits" if sure else drafting.fits)]
    firsts = {id(c) for c in {c.resolved.resolved: c for c in reversed(fitting)}.values()}  # those that are suggested
    wide = (for_users(space, objective, c) if id(c) in firsts else c for c in fitting)
    return replace(ranking, candidates=tuple(wide))


def _with_drafts(config: engine.EngineConfig, drafts: engine.SpeculativeConfig | None) -> engine.EngineConfig:
    """The settings with drafts that are not timed; vLLM schedules those of some methods in step."""
    if not drafts or config.speculative_config:
        return config
    alone = config.async_scheduling and drafts.method not in engine.IN_STEP
    return replace(config, speculative_config=drafts, async_scheduling=alone)


def _context(answer: LineVerdict) -> int | None:
    """The line's context, as far as vLLM and the model take it; None: as long as the load needs."""
    context = answer.fit.config.max_model_len if answer.fit else answer.line.args.max_model_len
    limited = any(problem.word == "--max-model-len" for problem in answer.line.problems)
    most = engine.DEEPSEEK_MAX_MODEL_LEN if limited else answer.serving.longest_context
    return context and min(context, most)


def _serve(model: str, deployment: Deployment, workload: Load, line: engine.ServeLine) -> Served:
    """The load on an engine that ``line`` launches with the kernels of AMD with which it is timed."""
    attention, lacked = _lacked_attention(line, deployment), deployment.lacked_kernels(line.env)
    if attention or lacked:
        options = {name: value for name, value in lacked.items() if name.startswith("--")}
        options |= {_ATTENTION[0]: attention} if attention.startswith("ROCM") else {}
        variables = {name: value for name, value in lacked.items() if name not in options}
        of_line = (line.env, line.options, line.others)
        env, given, others = ({name: one[name] for name in one if name not in _ATTENTION} for one in of_line)
        with suppress(KeyError, ValueError, AttributeError):  # vLLM refuses text that is no JSON
            keyed = json.loads(others.pop("--attention-config")).items()
            rest = {name: value for name, value in keyed if name != "backend"}
            others |= {"--attention-config": json.dumps(rest, separators=(",", ":"))} if rest else {}
        line = replace(line, env=env | variables, options=given | options, others=others | options)
    return Served(model, deployment, Prediction.of(deployment, workload, percentiles=defaults.PERCENTILES), line)
