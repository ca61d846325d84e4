"""What a workflow is about: one deployment, and the plan that its scripts launch.

The document's model on the document's GPU gets the document's command. Any other gets what ``planner recommend``
finds. ``assemble`` makes the plan in both cases, as it makes every plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.engine import (
    EVERYWHERE,
    EngineArgs,
    EngineConfig,
    EngineVersion,
    Image,
    ImageBuild,
    Recipe,
    ServeLine,
    builds,
    default_version,
    env_status,
    flag_status,
    image_for,
    known_issues,
    parse_version,
    program_argv,
    serve_argv,
    spelled_options,
)
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.workflows.catalog import Workflow
from planner.output.workflows.documents import Command, PrintedResult, printed_results
from planner.planning import (
    SHIPPED,
    Candidate,
    Deployment,
    Local,
    Plan,
    Ranking,
    Request,
    Serving,
    asked_by,
    assemble,
    defaults,
    estimate,
    percent,
    rank,
    recipe_of,
    resolve_deployment,
)
from planner.workload import Load

#: Options that the scripts decide for themselves; ``differences`` says why.
OURS = frozenset((
    "--trust-remote-code", "--host", "--port", "--disable-log-requests", "--enable-log-requests", "--model",
    "--no-enable-log-requests", "--output-json", "--num-iters", "--num-iters-warmup", "--dataset-name",
))  # fmt: skip
LONG_TTFT_S = 60  #: more than this is waiting, not prefill
#: The most of the memory that V1 of these releases finds free, and what the documents advise with graphs.
MOST_UTILIZATION, ADVISED_UTILIZATION = 0.97, 0.95


@dataclass(frozen=True, slots=True)
class Choice:
    """What somebody asks for beside the workflow itself. None: the document's."""

    model: str | None = None
    gpu: str | GpuProfile | None = None  #: a name, or a profile such as that of this machine's own GPUs
    engine_version: str | None = None
    input_len: int | None = None
    output_len: int | None = None
    max_concurrency: int | None = None
    draft: str | None = None  #: of the workflow that measures drafting
    num_prompts: int | None = None
    image: str | None = None
    weight_dtype: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    gpus: int | None = None  #: of one node
    revision: str | None = None
    refresh: bool = False
    timeout_s: float | None = None  #: None: as the hub has it
    local: Local = SHIPPED  #: the fits that predict

    @property
    def basis(self) -> Basis:
        """Overheads of memory."""
        return Basis(self.local.constants)

    @property
    def asked(self) -> frozenset[str]:
        """Words of command lines that are the caller's choice."""
        names = {
            "--kv-cache-dtype": self.kv_cache_dtype, "--tensor-parallel-size": self.tensor_parallel_size,
            "--input-len": self.input_len, "--output-len": self.output_len, "--random-input-len": self.input_len,
            "--random-output-len": self.output_len, "--max-concurrency": self.max_concurrency,
            "--num-prompts": self.num_prompts or self.max_concurrency, "--request-rate": self.max_concurrency,
            "--model": self.model or self.weight_dtype, "model": self.model or self.weight_dtype,
            "--tokenizer": self.model or self.weight_dtype, "--quantization": self.weight_dtype,
            "--speculative-model": self.draft, "--speculative-config": self.draft,
        }  # fmt: skip
        return frozenset(name for name, value in names.items() if value)


@dataclass(frozen=True)
class Subject:
    """One deployment, its plan, and whether it is what the document ran."""

    workflow: Workflow
    choice: Choice
    resolved: ResolvedModel
    deployment: Deployment
    args: EngineArgs  #: the settings that are said; the rest is the version's default
    recipe: Recipe
    plan: Plan
    build: ImageBuild | None
    documented: bool
    printed: Command | None = None  #: the document's server, where it has one
    client: Command | None = None
    draft: str = ""  #: the model that drafts, where one does

    @property
    def profile(self) -> GpuProfile:
        """The GPU."""
        return self.deployment.profile

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self.deployment.config

    @property
    def version(self) -> EngineVersion:
        """The vLLM version."""
        return self.config.version


def subject(workflow: Workflow, choice: Choice) -> Subject:
    """The deployment and the plan for a workflow.

    Raises IllegalPlanError where the GPU, or the version, is none for this workflow, or where it does not fit;
    PlannerError for a model or GPU that is not known.
    """
    profile = profile_of(workflow, choice)
    if profile.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} is not a workflow for {profile.name}",
            hint=f"it is for {' and '.join(workflow.platforms)}, such as --gpu {workflow.gpus[0]}",
        )
    resolved = _resolved(workflow, choice, profile)
    version = _version(workflow, profile, choice)
    build = _build(workflow, profile, version, choice)
    if build and build.version:
        version = _as_built(workflow, build, choice)
    documented = profile.id in workflow.gpus and resolved.resolved in workflow.models
    client = next(iter(workflow.printed(workflow.client, version, profile, resolved.resolved)), None)
    load = _sendable(chosen_load(workflow, choice, client), version)
    asked = Request(
        resolved, (profile,), "balanced", Load(load.input_len, load.output_len), choice.max_concurrency,
        load.num_prompts if choice.max_concurrency else None, gpus_per_node=choice.gpus, version=version,
        basis=choice.basis, calibration=choice.local.calibration,
        args=EngineArgs(kv_cache_dtype=choice.kv_cache_dtype or "auto"),
    )  # fmt: skip
    printed = next(iter(workflow.printed(workflow.serve, version, profile, resolved.resolved)), None)
    if documented:
        request, ranking, args = _documented(workflow, asked, choice, version, load, printed)
    else:
        request, ranking, args = _recommended(workflow, asked, choice)
    candidate = ranking.candidates[0]
    own_load = load if documented or not load.max_concurrency else None
    plan = assemble(request, ranking, candidate, image=_image(build, profile, version, choice), workload=own_load)
    found = Subject(
        workflow, choice, candidate.resolved, candidate.deployment, args, recipe_of(candidate.deployment), plan, build,
        documented, printed if documented else None, client if documented else None,
        _draft(workflow, choice, version, documented=documented),
    )  # fmt: skip
    return replace(found, plan=_as_documented(found))


def profile_of(workflow: Workflow, choice: Choice) -> GpuProfile:
    """The GPU that was asked for, else the document's. Raises UnknownNameError for a name that is none."""
    gpu = choice.gpu or workflow.gpus[0]
    return gpu if isinstance(gpu, GpuProfile) else load_profile(gpu)


def engine_env(env: Mapping[str, str], version: EngineVersion, platform: str) -> dict[str, str]:
    """Those of a document's variables that the version reads; what chooses GPUs is the script's business."""
    placed = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    return {k: v for k, v in env.items() if k not in placed and env_status(version, k, platform=platform)}


def other_options(line: ServeLine, version: EngineVersion, model: str) -> dict[str, Any]:
    """Options of a document's line that are no settings, in the words of the version."""
    others = {flag: value for flag, value in line.others.items() if flag not in OURS}
    if "--tokenizer" in others:
        others["--tokenizer"] = model
    extra = spelled_options(others, version, line.command)
    if "--num-scheduler-steps" in line.options and flag_status(version, "--num-scheduler-steps", line.command):
        extra["num-scheduler-steps"] = line.options["--num-scheduler-steps"]
    return extra


def written_out(words: list[str], line: ServeLine, version: EngineVersion) -> tuple[str, ...]:
    """A rendered command with those settings of the document's that a writer leaves out as defaults."""
    for flag, value in line.options.items():
        known = flag_status(version, flag, line.command) and flag not in OURS and flag not in line.others
        if known and not any(word == flag or word.startswith(f"{flag}=") for word in words) and flag in _WRITTEN:
            words = [*words, flag, *([value] if value else [])]
    return tuple(words)


#: Settings that the documents say although they are defaults.
_WRITTEN = frozenset(("--enable-chunked-prefill", "--pipeline-parallel-size", "--block-size", "--quantization"))


def engine_settings(
    command: Command, choice: Choice, profile: GpuProfile, resolved: ResolvedModel, version: EngineVersion
) -> tuple[EngineArgs, EngineVersion, ServeLine]:
    """What a document's command asks of an engine: settings, the version with the engine that it brings, the line."""
    line = command.read(version, profile.platform)
    args = replace(line.args, speculative_config=command.drafts)
    if choice.tensor_parallel_size:
        args = replace(args, tensor_parallel_size=choice.tensor_parallel_size)
    if choice.kv_cache_dtype:
        args = replace(args, kv_cache_dtype=choice.kv_cache_dtype)
    if profile.partition and args.tensor_parallel_size > 1:
        args = replace(args, allow_unvalidated=True)
    line = replace(line, args=args)
    engine = asked_by(replace(line, args=replace(args, speculative_config=None)), resolved.model, profile, version)
    own = replace(version, engine=engine)
    free = args.gpu_memory_utilization
    if free and free > MOST_UTILIZATION and version.release >= (0, 9, 1) and engine != "V0":
        args = replace(args, gpu_memory_utilization=ADVISED_UTILIZATION)
    return args, own, replace(line, args=args)


def with_steps(deployment: Deployment, line: ServeLine) -> Deployment:
    """The deployment with the steps that V0 takes for one visit of its scheduler."""
    if deployment.config.engine != "V0":
        return deployment
    return replace(deployment, config=replace(deployment.config, num_scheduler_steps=line.num_scheduler_steps))


def check_fits(deployment: Deployment, resolved: ResolvedModel, args: EngineArgs) -> None:
    """Raise IllegalPlanError, with what would fit, where the engine would not start."""
    if deployment.checked.fits:
        return
    profile, version = deployment.profile, deployment.config.version
    found = Serving.of(resolved, profile, args, version).fit()
    ways = [f"{' '.join(way.flags)} ({way.change})" for way in found.options]
    raise IllegalPlanError(
        f"{resolved.resolved} on {args.tensor_parallel_size} x {profile.name} does not start: {found.reason}",
        hint=f"of the document's settings change one: {'; '.join(ways[:3])}" if ways else "choose a larger GPU",
    )


def _resolved(workflow: Workflow, choice: Choice, profile: GpuProfile) -> ResolvedModel:
    """The model asked for, else the document's: of that precision, and for that GPU."""
    capability = ".".join(map(str, profile.compute_capability or ()))
    names = [c.argv[2].rstrip("/") for c in workflow.serve if c.capability and c.capability == capability]
    name = choice.model or next((name for name in names if name in workflow.models), workflow.model)
    resolved = resolve_model(name, revision=choice.revision, refresh=choice.refresh, timeout_s=choice.timeout_s)
    if choice.weight_dtype is None or _weights(resolved) == choice.weight_dtype:
        return resolved
    stem = resolved.resolved.split("/")[-1]
    for other in workflow.models:  # of the same model, whose quantised checkpoints have longer names
        own = other.split("/")[-1]
        if stem.startswith(own) or own.startswith(stem) or own.split("-Instruct")[0] == stem.split("-Instruct")[0]:
            found = resolve_model(other)
            if _weights(found) == choice.weight_dtype:
                return found
    return resolved  # the search has that precision, or says that it does not


def _weights(resolved: ResolvedModel) -> str:
    """The precision as it is asked for; 16 bits are what the documents call FP16."""
    return resolved.model.quantization.weight_dtype if resolved.model.quantization.method else "fp16"


def _version(workflow: Workflow, profile: GpuProfile, choice: Choice) -> EngineVersion:
    """As asked for; the document's on the document's GPU; else the newest with an image."""
    if choice.engine_version:
        return parse_version(choice.engine_version)
    if workflow.engine_version and profile.id in workflow.gpus:
        return parse_version(workflow.engine_version)
    return default_version(profile)


def _build(workflow: Workflow, profile: GpuProfile, version: EngineVersion, choice: Choice) -> ImageBuild | None:
    """How the image is made where it is not pulled: asked for by the workflow, or because no registry has one."""
    if workflow.build == "engine":
        image = f"planner/vllm-{profile.architecture}:{version}"
        return ImageBuild(workflow.build, "", "", "", image)
    if workflow.build:
        return builds()[workflow.build]
    if choice.image:
        return None
    name = image_for(profile, version).name
    return next((build for build in builds().values() if build.image == name), None)


def _as_built(workflow: Workflow, build: ImageBuild, choice: Choice) -> EngineVersion:
    """The version whose options the commit takes; where the workflow is that commit, no other can be asked for."""
    asked = parse_version(choice.engine_version) if choice.engine_version else None
    own = {parse_version(text).release for text in (build.version, workflow.engine_version) if text}
    if workflow.build and asked and asked.release not in own:
        raise IllegalPlanError(
            f"{workflow.name} builds commit {build.commit[:12]}, which takes the options of vLLM {build.version}",
            hint="leave out --engine-version",
        )
    return parse_version(build.version)


def _draft(workflow: Workflow, choice: Choice, version: EngineVersion, *, documented: bool) -> str:
    """The document's draft drafts for the document's model only: the vocabularies have to be the same.

    V0 drafts with a model until 0.9.2, V1 from 0.15.0 on, and nothing between does (``spec_decode/`` and
    ``v1/spec_decode/draft_model.py`` of the releases). Raises IllegalPlanError for what cannot.
    """
    own = next((c.drafts.model for c in workflow.offline if c.drafts and c.drafts.model), "")
    if not own:
        return ""
    if not choice.draft and not documented:
        raise IllegalPlanError(
            f"{own} drafts for {workflow.model}; which model drafts for another one is not known",
            hint="name one of the same vocabulary with --draft",
        )
    if (0, 10) <= version.release < (0, 15):
        raise IllegalPlanError(
            f"vLLM {version} does not draft with a model",
            hint="choose an --engine-version up to 0.9.2, or 0.15.0 and later",
        )
    return choice.draft or own


def _image(build: ImageBuild | None, profile: GpuProfile, version: EngineVersion, choice: Choice) -> Image | None:
    if choice.image:
        source = f"as asked for with --image; the options are those of vLLM {version}"
        return Image(choice.image, version, profile.platform, pinned=True, source=source, gpus=(profile.id,))
    if build is None:
        return None
    return Image(build.image, version, profile.platform, pinned=True, source=build.source, gpus=(profile.id,))


def _documented(
    workflow: Workflow, asked: Request, choice: Choice, version: EngineVersion, load: Load, printed: Command | None
) -> tuple[Request, Ranking, EngineArgs]:
    """The document's settings, checked as any others."""
    resolved, (profile,) = asked.model, asked.gpus
    points = list(workflow.points(version, profile, resolved.resolved)) if printed is None else []
    command = printed or (points[0].command if points else None)
    if command is None:
        args, line = EngineArgs(**workflow.settings), None
        if choice.tensor_parallel_size or choice.kv_cache_dtype:
            size, cache = choice.tensor_parallel_size, choice.kv_cache_dtype
            args = replace(
                args,
                tensor_parallel_size=size or args.tensor_parallel_size,
                kv_cache_dtype=cache or args.kv_cache_dtype,
            )
    else:
        args, version, line = engine_settings(command, choice, profile, resolved, version)
    if args.async_scheduling and not flag_status(version, "--async-scheduling"):
        args = replace(args, async_scheduling=None)
    node = choice.gpus or profile.gpus_per_node
    if args.tensor_parallel_size > node:
        raise IllegalPlanError(
            f"{workflow.name} takes {args.tensor_parallel_size} GPUs, the node has {node}",
            hint=f"--tensor-parallel-size {node}, or a node with more GPUs",
        )
    deployment = resolve_deployment(
        resolved.model, profile, args, version, basis=asked.basis, calibration=asked.calibration
    )
    deployment = with_steps(deployment, line) if line else deployment
    check_fits(deployment, resolved, args)
    if load.max_total_len > deployment.config.max_model_len:
        raise IllegalPlanError(
            f"requests of {load.max_total_len} tokens are longer than the context of {deployment.config.max_model_len}",
            hint="give a smaller --random-input-len or --random-output-len",
        )
    if deployment.requests_held(load.total_len) < 1:
        raise IllegalPlanError(
            f"{resolved.resolved} on {args.tensor_parallel_size} x {profile.name}: not one request of "
            f"{load.total_len} tokens fits beside the weights",
            hint=f"planner fit {resolved.resolved} --gpu {profile.id} says what would fit",
        )
    concurrency = load.max_concurrency or deployment.config.max_num_seqs
    figures = estimate(deployment, load.input_len, load.output_len, concurrency)
    ranking = Ranking(profile, version, (Candidate(resolved, deployment, figures),), ())
    return replace(asked, max_concurrency=concurrency, num_prompts=load.num_prompts), ranking, args


def _recommended(workflow: Workflow, asked: Request, choice: Choice) -> tuple[Request, Ranking, EngineArgs]:
    """The best settings for a model or GPU that the document does not have, at any concurrency or the one asked for."""
    (ranking,) = rank(asked)
    size, dtype = choice.tensor_parallel_size, choice.weight_dtype
    fitting = (c for c in ranking.candidates if size in (None, c.config.tensor_parallel_size))
    kept = tuple(c for c in fitting if dtype in (None, c.config.weight_dtype, _weights(c.resolved)))
    if not kept:
        reasons = "; ".join(dict.fromkeys(rejected.reason for rejected in ranking.rejected))
        name, profile = asked.model.resolved, ranking.profile
        wanted = (f" with TP {size}" if size else "") + (f" with {dtype} weights" if dtype else "")
        why = reasons or "none of the plans has that"
        raise IllegalPlanError(
            f"no plan of {name} on {profile.name} for {workflow.name}{wanted}: {why}",
            hint=f"planner fit {name} --gpu {profile.id} says what would make it fit",
        )
    ranking = replace(ranking, candidates=kept)
    config = kept[0].config
    args = EngineArgs(
        tensor_parallel_size=config.tensor_parallel_size,
        kv_cache_dtype=config.kv_cache_dtype_flag or "auto",
        gpu_memory_utilization=config.gpu_memory_utilization,
        # without chunks it follows the context, which is another one for each measurement
        max_num_batched_tokens=config.max_num_batched_tokens if config.enable_chunked_prefill else None,
    )
    return asked, ranking, args


def chosen_load(workflow: Workflow, choice: Choice, client: Command | None = None) -> Load:
    """The document's load, with what was asked for."""
    load = client.read().workload(client.document.version) if client else Load(**workflow.load)
    asked = {name: value for name in ("input_len", "output_len") if (value := getattr(choice, name)) is not None}
    if choice.max_concurrency is not None:
        prompts = defaults.PROMPTS_PER_SLOT * choice.max_concurrency
        asked |= {"max_concurrency": choice.max_concurrency, "num_prompts": prompts, "request_rate": float("inf")}
    if choice.num_prompts is not None:
        asked["num_prompts"] = choice.num_prompts
    return replace(load, **asked)


def _sendable(load: Load, version: EngineVersion) -> Load:
    """An open loop at one request per second, the document's, where the client has no ``--max-concurrency``."""
    client = program_argv("bench serve", version, "rocm")[1]
    if load.max_concurrency is None or flag_status(version, "--max-concurrency", client):
        return load
    return replace(load, max_concurrency=None, request_rate=1.0)


def _as_documented(found: Subject) -> Plan:
    """The plan with the document's own line and variables, what is printed for it, and what it is for."""
    workflow, plan = found.workflow, found.plan
    launched = _launched(found) if found.documented else {}
    update: dict[str, Any] = {
        "accuracy_task": workflow.accuracy_task or plan.accuracy_task,
        "why": tuple(_why(found)),
        "warnings": tuple(dict.fromkeys((*plan.warnings, *_warnings(found, launched.get("env", {}))))),
        **launched,
    }
    if found.documented:
        update["published"] = dict(result.figures) if (result := _printed_result(found, plan)) else {}
    else:
        extra = found.recipe.flags
        update["serve_argv"] = tuple(serve_argv(found.config, plan.model, host=EVERYWHERE, extra=extra))
    return plan.model_copy(update=update)


def _launched(found: Subject) -> dict[str, Any]:
    """The document's line and variables; those of the recipes where it has no command."""
    plan, version, platform = found.plan, found.version, found.profile.platform
    points = list(found.workflow.points(version, found.profile, found.resolved.resolved))
    command = found.printed or (points[0].command if points else None)
    remote = {"trust-remote-code": True} if found.recipe.flags.get("trust-remote-code") else {}
    if command is None:
        return {"serve_argv": tuple(serve_argv(found.config, plan.model, host=EVERYWHERE, extra=found.recipe.flags))}
    line = command.read(version, platform)
    extra = {**other_options(line, version, plan.model), **remote}
    extra = {name: value for name, value in extra.items() if flag_status(version, f"--{name}")}
    words = serve_argv(found.config, plan.model, host=EVERYWHERE, extra=extra)
    kept = {name: value for name, value in plan.env.items() if name not in found.recipe.env}
    env = {**engine_env(command.env, version, platform), **kept}
    return {"serve_argv": written_out(words, line, version) if found.printed else tuple(words), "env": env}


def _printed_result(found: Subject, plan: Plan) -> PrintedResult | None:
    """The printed result, where the same load is sent to the same settings."""
    if found.printed is None or found.client is None or found.choice.asked - {"model", "--model", "--tokenizer"}:
        return None
    ids = found.printed.id, found.client.id
    return next(
        (one for one in printed_results() if (one.server, one.client) == ids and plan.gpu in found.workflow.gpus), None
    )


def _why(found: Subject) -> Iterator[str]:
    if found.documented:
        yield f"the settings are those of: {'; '.join(document.title for document in found.workflow.documents)}"
    else:
        yield f"no document describes {found.workflow.name} for this model and GPU: these are the recommended settings"
    own = [reason for reason in found.plan.why if reason.startswith("weights take")]
    yield from own if found.documented else found.plan.why


def _warnings(found: Subject, env: Mapping[str, str]) -> Iterator[str]:
    """What the document's settings run into."""
    load, held = found.plan.workload, found.deployment.requests_held(found.plan.workload.sent.total_len)
    if load.max_concurrency and held < load.max_concurrency:
        yield (
            f"the cache holds {int(held)} of the {load.max_concurrency} requests in flight: the others wait, which the "
            "prediction of TTFT has in it"
        )
    elif found.plan.predicted["mean_ttft_ms"] > LONG_TTFT_S * 1e3:
        seconds = found.plan.predicted["mean_ttft_ms"] / 1e3
        yield f"the load is more than one server carries: most of the predicted TTFT of {seconds:,.0f} s is waiting"
    checked = found.deployment.checked
    if checked.verdict == "too close to call":
        yield f"memory is too close to call: it starts with {percent(checked.probability_fits)} probability"
    compilation = found.printed.read().others.get("--compilation-config", "") if found.printed else ""
    issues = known_issues(found.config, env, found.resolved.model, found.profile, compilation=compilation)
    yield from map(str, issues)
    if found.profile.partition and found.config.tensor_parallel_size > 1:
        yield "tensor parallelism over partitions: one document prints it, another says that it is not supported"
