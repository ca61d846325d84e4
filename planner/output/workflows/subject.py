"""What a workflow is about: one deployment, and the plan that its scripts launch.

The document's model on the document's GPU gets the document's settings. Any other gets those that ``planner recommend``
finds. ``assemble`` makes the plan in both cases, as it makes every plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.engine import (
    EngineArgs,
    EngineConfig,
    EngineVersion,
    Image,
    Recipe,
    VllmCommand,
    command_status,
    default_version,
    flag_status,
    image_for,
    parse_version,
    serve_argv,
)
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.scripts.emission import EVERYWHERE
from planner.output.workflows.catalog import ImageBuild, Workflow, builds
from planner.planning import (
    SHIPPED,
    Candidate,
    Deployment,
    Local,
    Plan,
    Ranking,
    Request,
    assemble,
    defaults,
    estimate,
    rank,
    recipe_of,
    resolve_deployment,
)
from planner.workload import Workload


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
    revision: str | None = None
    refresh: bool = False
    timeout_s: float | None = None  #: None: as the hub has it
    local: Local = SHIPPED  #: the fits that predict

    @property
    def basis(self) -> Basis:
        """Overheads of memory."""
        return Basis(self.local.constants)


@dataclass(frozen=True)
class Subject:
    """One deployment, its plan, and whether it is what the document ran."""

    workflow: Workflow
    resolved: ResolvedModel
    deployment: Deployment
    args: EngineArgs  #: the settings that are said; the rest is the version's default
    recipe: Recipe
    plan: Plan
    build: ImageBuild | None
    documented: bool
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

    def flags_for(self, command: VllmCommand) -> dict[str, Any]:
        """The further options that ``command`` of the version takes: the recipes', then the document's."""
        return flags_known_to({**self.recipe.flags, **self.workflow.flags}, self.version, command)


def subject(workflow: Workflow, choice: Choice) -> Subject:
    """The deployment and the plan for a workflow.

    Raises IllegalPlanError where the GPU is none for this workflow, or nothing fits; PlannerError for a model or GPU
    that is not known.
    """
    profile = profile_of(workflow, choice)
    if profile.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} is not a workflow for {profile.name}",
            hint=f"it is for {' and '.join(workflow.platforms)}, such as --gpu {workflow.gpus[0]}",
        )
    resolved = resolve_model(
        choice.model or workflow.model,
        revision=choice.revision,
        refresh=choice.refresh,
        timeout_s=choice.timeout_s,
    )
    documented = profile.id in workflow.gpus and resolved.resolved in (workflow.model, *workflow.also)
    version = _version(workflow, profile, choice)
    build = _build(workflow, profile, version)
    if build and build.version:
        version = _as_built(workflow, build, choice)
    load = _sendable(chosen_load(workflow, choice), version)
    asked = Request(
        resolved, (profile,), "balanced", load.input_len, load.output_len, choice.max_concurrency,
        load.num_prompts if choice.max_concurrency else None,
        version=version, basis=choice.basis, calibration=choice.local.calibration,
    )  # fmt: skip
    if documented:
        request, ranking, args = _documented(workflow, asked, version, load)
    else:
        request, ranking, args = _recommended(workflow, asked)
    candidate = ranking.candidates[0]
    own_load = load if documented or not load.max_concurrency else None
    plan = assemble(request, ranking, candidate, image=_image(build, profile, version), workload=own_load)
    recipe = recipe_of(candidate.deployment)
    draft = _draft(workflow, choice, documented=documented)
    found = Subject(workflow, candidate.resolved, candidate.deployment, args, recipe, plan, build, documented, draft)
    return replace(found, plan=_as_documented(found))


def profile_of(workflow: Workflow, choice: Choice) -> GpuProfile:
    """The GPU that was asked for, else the document's. Raises UnknownNameError for a name that is none."""
    gpu = choice.gpu or workflow.gpus[0]
    return gpu if isinstance(gpu, GpuProfile) else load_profile(gpu)


def flags_known_to(flags: dict[str, Any], version: EngineVersion, command: VllmCommand) -> dict[str, Any]:
    """Those of ``flags`` that ``command`` of ``version`` takes."""
    return {
        name: value
        for name, value in flags.items()
        if flag_status(version, f"--no-{name}" if value is False else f"--{name}", command)
    }


def bench_command(version: EngineVersion, bench: VllmCommand) -> VllmCommand:
    """``bench latency`` or the script that came before it."""
    if command_status(version, bench):
        return bench
    scripts: dict[VllmCommand, VllmCommand] = {
        "bench latency": "benchmark_latency.py",
        "bench throughput": "benchmark_throughput.py",
        "bench serve": "benchmark_serving.py",
    }
    return scripts[bench]


def _version(workflow: Workflow, profile: GpuProfile, choice: Choice) -> EngineVersion:
    """As asked for; the document's on the document's GPU; else the newest with an image."""
    if choice.engine_version:
        return parse_version(choice.engine_version)
    if workflow.engine_version and profile.id in workflow.gpus:
        return parse_version(workflow.engine_version)
    return default_version(profile)


def _build(workflow: Workflow, profile: GpuProfile, version: EngineVersion) -> ImageBuild | None:
    """How the image is made where it is not pulled: asked for by the workflow, or because no registry has one."""
    if workflow.build == "engine":
        image = f"planner/vllm-{profile.architecture}:{version}"
        return ImageBuild(workflow.build, "", "", "", image)
    if workflow.build:
        return builds()[workflow.build]
    own = builds().get(f"{profile.platform}-{version}")
    try:
        image_for(profile, version)
    except IllegalPlanError:
        if own is None:
            raise
        return own
    return None


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


def _draft(workflow: Workflow, choice: Choice, *, documented: bool) -> str:
    """The document's draft drafts for the document's model only: the vocabularies have to be the same."""
    own = workflow.measure.draft if workflow.measure else ""
    if not own or choice.draft:
        return choice.draft or ""
    if not documented:
        raise IllegalPlanError(
            f"{own} drafts for {workflow.model}; which model drafts for another one is not known",
            hint="name one of the same vocabulary with --draft",
        )
    return own


def _image(build: ImageBuild | None, profile: GpuProfile, version: EngineVersion) -> Image | None:
    if build is None:
        return None
    source = f"built at commit {build.commit[:12]} by build_image.sh" if build.commit else "built by build_engine.sh"
    return Image(build.image, version, profile.platform, pinned=True, source=source, gpus=(profile.id,))


def _documented(
    workflow: Workflow, asked: Request, version: EngineVersion, load: Workload
) -> tuple[Request, Ranking, EngineArgs]:
    """The document's settings, checked as any others."""
    args, resolved, (profile,) = EngineArgs(**workflow.settings), asked.model, asked.gpus
    if args.async_scheduling and not flag_status(version, "--async-scheduling"):
        args = replace(args, async_scheduling=None)
    served = replace(args, max_model_len=args.max_model_len or defaults.round_context(load.total_len))
    deployment = resolve_deployment(
        resolved.model, profile, served, version, basis=asked.basis, calibration=asked.calibration
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


def _recommended(workflow: Workflow, asked: Request) -> tuple[Request, Ranking, EngineArgs]:
    """The best settings for a model or GPU that the document does not have, at any concurrency or the one asked for."""
    (ranking,) = rank(asked)
    if ranking.best is None:
        reasons = "; ".join(dict.fromkeys(rejected.reason for rejected in ranking.rejected))
        name, profile = asked.model.resolved, ranking.profile
        raise IllegalPlanError(
            f"no plan of {name} on {profile.name} for {workflow.name}: {reasons}",
            hint=f"planner fit {name} --gpu {profile.id} says what would make it fit",
        )
    config = ranking.best.config
    args = EngineArgs(
        tensor_parallel_size=config.tensor_parallel_size,
        kv_cache_dtype=config.kv_cache_dtype_flag or "auto",
        gpu_memory_utilization=config.gpu_memory_utilization,
        # without chunks it follows the context, which is another one for each measurement
        max_num_batched_tokens=config.max_num_batched_tokens if config.enable_chunked_prefill else None,
    )
    return asked, ranking, args


def chosen_load(workflow: Workflow, choice: Choice) -> Workload:
    """The document's load, with what was asked for."""
    load = dict(workflow.load)
    load |= {name: value for name in ("input_len", "output_len") if (value := getattr(choice, name)) is not None}
    if choice.max_concurrency is not None:
        load |= {
            "max_concurrency": choice.max_concurrency,
            "num_prompts": defaults.PROMPTS_PER_SLOT * choice.max_concurrency,
        }
        load.pop("request_rate", None)
    return Workload(**load)


def _sendable(load: Workload, version: EngineVersion) -> Workload:
    """An open loop at one request per second, the document's, where the client has no ``--max-concurrency``."""
    if load.max_concurrency is None or flag_status(version, "--max-concurrency", bench_command(version, "bench serve")):
        return load
    return replace(load, max_concurrency=None, request_rate=1.0)


def _as_documented(found: Subject) -> Plan:
    """The plan with the document's further options, and what it is for."""
    workflow, plan = found.workflow, found.plan
    extra = found.flags_for("serve") if found.documented else found.recipe.flags
    update: dict[str, Any] = {
        "serve_argv": tuple(serve_argv(found.config, plan.model, host=EVERYWHERE, extra=extra)),
        "why": tuple(_why(found)),
        "accuracy_task": workflow.accuracy_task or plan.accuracy_task,
    }
    return plan.model_copy(update=update)


def _why(found: Subject) -> Iterator[str]:
    if found.documented:
        yield f"the settings are those of: {'; '.join(found.workflow.sources)}"
        left_out = {name for name in found.workflow.flags if name not in found.flags_for("serve")}
        if left_out:
            yield f"vLLM {found.version} does not have these options of the document: {', '.join(sorted(left_out))}"
    else:
        yield f"no document describes {found.workflow.name} for this model and GPU: these are the recommended settings"
    yield from found.plan.why[1:] if found.documented else found.plan.why
