"""The subject of a workflow: one serving engine, its load, and the plan that the scripts launch.

The document's model on its GPU gets the document's command, any other the settings that ``planner recommend`` finds.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import engine, planning
from planner.errors import IllegalPlanError, InputError
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.workflows.documents import Command, Point, Workflow, results
from planner.units import percent
from planner.workload import Load

#: Options that the scripts decide for themselves; ``documents.toml`` has the reasons.
OURS = frozenset((
    "--trust-remote-code", "--host", "--port", "--disable-log-requests", "--enable-log-requests", "--model",
    "--no-enable-log-requests", "--output-json", "--num-iters", "--num-iters-warmup", "--dataset-name",
))  # fmt: skip
#: Settings that the documents state although they are defaults.
_STATED = frozenset(("--enable-chunked-prefill", "--pipeline-parallel-size", "--block-size", "--quantization"))
LONG_TTFT_S = 60  #: more than this is waiting, not prefill


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of a caller beside the workflow itself. None: the document's."""

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
    local: planning.Local = planning.SHIPPED  #: the fits that predict

    def resolve(self, model: str) -> ResolvedModel:
        return resolve_model(model, revision=self.revision, refresh=self.refresh, timeout_s=self.timeout_s)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the options that the caller gave."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def sent(self, load: Load) -> Load:
        """The load with the caller's lengths and number of prompts."""
        return replace(load, **self.given("input_len", "output_len", "num_prompts"))

    def settings(self, args: engine.EngineArgs) -> engine.EngineArgs:
        return args.changed(**self.given("tensor_parallel_size", "kv_cache_dtype"))

    @property
    def other_run(self) -> bool:
        """True if it is another run than the document's, with whatever checkpoint."""
        engine, load = ("kv_cache_dtype", "tensor_parallel_size", "draft"), ("input_len", "output_len", "num_prompts")
        return bool(self.given(*engine, *load, "max_concurrency"))


@dataclass(frozen=True)
class Chosen:
    """A workflow with the caller's options, and the model, GPU and version that they lead to."""

    workflow: Workflow
    choice: Choice
    resolved: ResolvedModel
    profile: GpuProfile
    version: engine.EngineVersion
    build: engine.ImageBuild | None
    documented: bool  #: a document describes this model on this GPU

    def points(self) -> Iterator[Point]:
        return self.workflow.points(self.version, self.profile, self.resolved.resolved)

    def settings(
        self, command: Command, version: engine.EngineVersion
    ) -> tuple[engine.EngineArgs, engine.EngineVersion, engine.ServeLine]:
        """Settings of a document's command, the version with the engine that they bring, and the line."""
        line = command.read(version, self.profile.platform)
        args = self.choice.settings(replace(line.args, speculative_config=command.drafts))
        if self.profile.partition and args.tensor_parallel_size > 1:
            args = replace(args, allow_unvalidated=True)
        undrafted = replace(line, args=replace(args, speculative_config=None))
        runs_as = planning.asked_by(undrafted, self.resolved.model, self.profile, version)
        share = args.gpu_memory_utilization
        if share and share > engine.MOST_UTILIZATION and version.release >= (0, 9, 1) and runs_as != "V0":
            args = replace(args, gpu_memory_utilization=engine.ADVISED_UTILIZATION)
        return args, replace(version, engine=runs_as), replace(line, args=args)

    def serving(self, args: engine.EngineArgs, version: engine.EngineVersion) -> planning.Serving:
        """An engine with the caller's fits; the memory of a draft is left out."""
        fits = self.choice.local
        return planning.Serving.of(self.resolved, self.profile, args, version, local=fits, basis=Basis(fits.constants))


@dataclass(frozen=True)
class Subject(Chosen):
    """One engine, its plan, and the document's commands if this is what the document ran."""

    deployment: planning.Deployment
    plan: planning.Plan
    printed: Command | None = None  #: the document's server, if it has one
    client: Command | None = None
    draft: str = ""  #: the model that drafts, if one does

    def read_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """A document's variables that the version reads; the scripts choose the GPUs."""
        placed, platform = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), self.profile.platform
        known = {name for name in env if engine.env_status(self.version, name, platform=platform)}
        return {name: value for name, value in env.items() if name in known and name not in placed}

    def other_options(self, line: engine.ServeLine) -> dict[str, Any]:
        """Options of a document's line beside the engine's settings, in the words of the version."""
        steps, others = "--num-scheduler-steps", {f: value for f, value in line.others.items() if f not in OURS}
        if "--tokenizer" in others:
            others["--tokenizer"] = self.plan.model
        extra = engine.spelled_options(others, self.version, line.command)
        if steps in line.options and engine.flag_status(self.version, steps, line.command):
            extra["num-scheduler-steps"] = line.options[steps]
        return extra

    def written_out(self, words: list[str], line: engine.ServeLine) -> tuple[str, ...]:
        """A rendered command with those settings of the document's that a writer leaves out as defaults."""
        for flag, value in line.options.items():
            known = flag in _STATED - OURS - line.others.keys() and engine.flag_status(self.version, flag, line.command)
            if known and not any(word == flag or word.startswith(f"{flag}=") for word in words):
                words = [*words, flag, *([value] if value else [])]
        return tuple(words)


def subject(workflow: Workflow, choice: Choice) -> Subject:
    """The engine and the plan of a workflow. Raises IllegalPlanError for an unsupported GPU, version or size."""
    profile = profile_of(workflow, choice)
    if profile.platform not in workflow.platforms:
        raise IllegalPlanError(
            f"{workflow.name} is not a workflow for {profile.name}",
            hint=f"it is for {' and '.join(workflow.platforms)}, such as --gpu {workflow.gpus[0]}",
        )
    version, build = _version(workflow, profile, choice)
    resolved = _resolved(workflow, choice, profile)
    documented = profile.id in workflow.gpus and resolved.resolved in workflow.models_on(profile)
    chosen = Chosen(workflow, choice, resolved, profile, version, build, documented)
    _refuse_ignored(chosen)
    client, printed = (
        next(iter(workflow.printed(commands, version, profile, resolved.resolved)), None)
        for commands in (workflow.client, workflow.serve)
    )
    load = chosen_load(workflow, choice, client)
    bench = engine.program_argv("bench serve", version, "rocm")[1]
    if load.max_concurrency is not None and not engine.flag_status(version, "--max-concurrency", bench):
        load = replace(load, max_concurrency=None, request_rate=1.0)  # the document's open loop
    args = engine.EngineArgs(kv_cache_dtype=choice.kv_cache_dtype or "auto")
    space = planning.Space((chosen.serving(args, version),), gpus_per_node=choice.gpus)
    command: Command | None = None
    if documented:
        command = printed or next((point.command for point in chosen.points()), None)
        search, ranking = only(space, resolved, _documented(chosen, load, command), load)
    else:
        search, ranking = _recommended(chosen, space, load)
        printed = client = None
    candidate = ranking.candidates[0].searched or ranking.candidates[0]  # the document's benchmark, not its users
    if not documented and load.max_concurrency:
        load = search.objective.closed_loop(candidate.estimate.concurrency)
    named, source = (build.image, build.source) if build else ("", "")
    if choice.image:
        named, source = choice.image, f"as asked for with --image; the options are those of vLLM {version}"
    image = engine.Image(named, version, profile.platform, pinned=True, source=source, gpus=(profile.id,))
    plan = search.plan(ranking, candidate, image=image if named else None, load=load)
    own = vars(chosen) | {"resolved": candidate.resolved, "version": candidate.config.version, "draft": _draft(chosen)}
    job = Subject(**own, deployment=candidate.deployment, plan=plan, printed=printed, client=client)
    return replace(job, plan=_in_documents_words(job, command))


def only(
    space: planning.Space, resolved: ResolvedModel, deployment: planning.Deployment, load: Load
) -> tuple[planning.Search, planning.Ranking]:
    """A search whose one answer is ``deployment``, under ``load``."""
    places = load.max_concurrency or deployment.config.max_num_seqs
    estimate = planning.estimate(deployment, load.input_len, load.output_len, places)
    sent = Load(load.input_len, load.output_len, max_concurrency=places)
    one = planning.Candidate(resolved, deployment, estimate)
    ranking = planning.Ranking(deployment.profile, deployment.config.version, (one,), ())
    return planning.Search(space, planning.Objective("balanced", sent, num_prompts=load.num_prompts)), ranking


def profile_of(workflow: Workflow, choice: Choice) -> GpuProfile:
    """The GPU of the caller, else the document's. Raises UnknownNameError for an unknown name."""
    gpu = choice.gpu or workflow.gpus[0]
    return gpu if isinstance(gpu, GpuProfile) else load_profile(gpu)


def chosen_load(workflow: Workflow, choice: Choice, client: Command | None = None) -> Load:
    load = client.read().workload(client.document.version) if client else Load(**workflow.load)
    if choice.max_concurrency is not None:
        prompts = planning.defaults.PROMPTS_PER_SLOT * choice.max_concurrency
        load = replace(load, max_concurrency=choice.max_concurrency, num_prompts=prompts, request_rate=float("inf"))
    return choice.sent(load)


def with_steps(deployment: planning.Deployment, line: engine.ServeLine) -> planning.Deployment:
    """The deployment with the steps that V0 takes for one visit of its scheduler."""
    if deployment.config.engine != "V0":
        return deployment
    return replace(deployment, config=replace(deployment.config, num_scheduler_steps=line.num_scheduler_steps))


def check_fits(serving: planning.Serving, deployment: planning.Deployment) -> None:
    """Raise IllegalPlanError, with changes that make it fit, if the engine would not start."""
    if deployment.checked.fits:
        return
    fit = planning.Serving.of(serving.resolved, serving.profile, serving.args, deployment.config.version).fit()
    ways = [f"{' '.join(way.flags)} ({way.change})" for way in fit.options]
    name, gpus = serving.resolved.resolved, f"{serving.args.tensor_parallel_size} x {serving.profile.name}"
    raise IllegalPlanError(
        f"{name} on {gpus} does not start: {fit.reason}",
        hint=f"of the document's settings change one: {'; '.join(ways[:3])}" if ways else "choose a larger GPU",
    )


def _resolved(workflow: Workflow, choice: Choice, profile: GpuProfile) -> ResolvedModel:
    models = workflow.models_on(profile)
    resolved = choice.resolve(choice.model or models[0])
    if choice.weight_dtype is None or choice.weight_dtype in (_weights(resolved), *workflow.dtypes):
        return resolved
    for other in models:  # of the same model
        if _base(other) == _base(resolved.resolved) and _weights(resolve_model(other)) == choice.weight_dtype:
            return resolve_model(other)
    return resolved  # the search has that precision, or says that it does not


def _refuse_ignored(chosen: Chosen) -> None:
    workflow, choice, documented = chosen.workflow, chosen.choice, chosen.documented
    dtype, own = choice.weight_dtype, _weights(chosen.resolved)
    if documented and dtype not in (None, own, *workflow.dtypes):
        raise InputError(
            f"--weight-dtype {dtype}: the document has {chosen.resolved.resolved} in {own} on this GPU",
            hint=f"leave it out, choose from {', '.join({own: 0, **workflow.dtypes})}, or name another model",
        )
    ignored = [] if any(command.drafts for command in workflow.offline) else ["draft"]
    if documented and workflow.offline and not workflow.client:
        ignored.append("max_concurrency")
        if not any("throughput" in command.argv[1] for command in workflow.offline):
            ignored.append("num_prompts")
    refuse_options(workflow, choice, ignored)


def refuse_options(workflow: Workflow, choice: Choice, names: Iterable[str]) -> None:
    """Raise InputError if the caller gave one of the options ``names``."""
    for name in choice.given(*names):
        flag = f"--{name.replace('_', '-')}"
        raise InputError(f"{flag} has no effect in {workflow.name}", hint="leave it out, or name another workflow")


def _base(name: str) -> str:
    return name.split("/")[-1].split("-Instruct")[0]


def _weights(resolved: ResolvedModel) -> str:
    """The precision in the caller's words; the documents call 16 bits FP16."""
    return resolved.model.quantization.weight_dtype if resolved.model.quantization.method else "fp16"


def _version(
    workflow: Workflow, profile: GpuProfile, choice: Choice
) -> tuple[engine.EngineVersion, engine.ImageBuild | None]:
    asked = engine.existing_version(choice.engine_version) if choice.engine_version else None
    stated = workflow.engine_version if profile.id in workflow.gpus else None
    version = asked or (engine.parse_version(stated) if stated else engine.default_version(profile))
    if workflow.build == "engine":
        image = f"planner/vllm-{profile.architecture}:{version}"
        return version, engine.ImageBuild(workflow.build, "", "", "", image)
    name = None if choice.image or workflow.build else engine.image_for(profile, version).name
    build = next((one for key, one in engine.builds().items() if key == workflow.build or one.image == name), None)
    if build is None or not build.version:
        return version, build
    own = {engine.parse_version(text).release for text in (build.version, workflow.engine_version) if text}
    if workflow.build and asked and asked.release not in own:
        raise IllegalPlanError(
            f"{workflow.name} builds commit {build.commit[:12]}, which takes the options of vLLM {build.version}",
            hint="leave out --engine-version",
        )
    return engine.parse_version(build.version), build


def _draft(chosen: Chosen) -> str:
    """The draft model, whose vocabulary has to be the model's. Raises IllegalPlanError for a draft that cannot run.

    No version from 0.10 to 0.14 drafts with a model (``spec_decode/`` and ``v1/spec_decode/draft_model.py``).
    """
    workflow, draft, version = chosen.workflow, chosen.choice.draft, chosen.version
    own = next((c.drafts.model for c in workflow.offline if c.drafts and c.drafts.model), "")
    if not own:
        return ""
    if not draft and not chosen.documented:
        raise IllegalPlanError(
            f"{own} drafts for {workflow.model} only", hint="name a draft of the same vocabulary with --draft"
        )
    if (0, 10) <= version.release < (0, 15):
        raise IllegalPlanError(
            f"vLLM {version} does not draft with a model", hint="--engine-version up to 0.9.2, or from 0.15.0 on"
        )
    return draft or own


def _documented(chosen: Chosen, load: Load, command: Command | None) -> planning.Deployment:
    """The document's engine. Raises IllegalPlanError if it does not start, InputError for too long requests."""
    workflow, choice, profile, version = chosen.workflow, chosen.choice, chosen.profile, chosen.version
    if command is None:
        args, line = choice.settings(engine.EngineArgs(**workflow.settings)), None
    else:
        args, version, line = chosen.settings(command, version)
    if args.async_scheduling and not engine.flag_status(version, "--async-scheduling"):
        args = replace(args, async_scheduling=None)
    node = choice.gpus or profile.gpus_per_node
    if args.tensor_parallel_size > node:
        raise IllegalPlanError(
            f"{workflow.name} takes {args.tensor_parallel_size} GPUs, the node has {node}",
            hint=f"--tensor-parallel-size {node}, or a node with more GPUs",
        )
    serving = chosen.serving(args, version)
    deployment = with_steps(serving.deployment, line) if line else serving.deployment
    check_fits(serving, deployment)
    planning.check_load(load, deployment.config.max_model_len, chosen.resolved.resolved)
    return deployment


def _recommended(chosen: Chosen, space: planning.Space, load: Load) -> tuple[planning.Search, planning.Ranking]:
    workflow, choice = chosen.workflow, chosen.choice
    sent = Load(load.input_len, load.output_len, max_concurrency=choice.max_concurrency)
    prompts = load.num_prompts if choice.max_concurrency else None
    search = planning.Search(space, planning.Objective("balanced", sent, num_prompts=prompts))
    (ranking,) = search.run()
    size, dtype = choice.tensor_parallel_size, choice.weight_dtype
    suited = tuple(
        candidate
        for candidate in ranking.candidates
        if size in (None, candidate.config.tensor_parallel_size)
        and dtype in (None, candidate.config.weight_dtype, _weights(candidate.resolved))
    )
    if suited:
        return search, replace(ranking, candidates=suited)
    name, profile = search.space.model.resolved, ranking.profile
    wanted = (f" with TP {size}" if size else "") + (f" with {dtype} weights" if dtype else "")
    why = "; ".join(dict.fromkeys(rejected.reason for rejected in ranking.rejected)) or "none of the plans has that"
    raise IllegalPlanError(
        f"no plan of {name} on {profile.name} for {workflow.name}{wanted}: {why}",
        hint=f"planner fit {name} --gpu {profile.id} says what would make it fit",
    )


def _in_documents_words(job: Subject, command: Command | None) -> planning.Plan:
    workflow, plan = job.workflow, job.plan
    launched = _launched(job, command)
    update: dict[str, Any] = {
        "accuracy_task": workflow.accuracy_task or plan.accuracy_task,
        "why": (f"no document describes {workflow.name} here: recommended settings", *plan.why),
        "warnings": tuple(dict.fromkeys((*plan.warnings, *_warnings(job, launched.get("env", {}))))),
        **launched,
    }
    if job.documented:
        titles = f"the settings are those of: {'; '.join(document.title for document in workflow.documents)}"
        weights = (reason for reason in plan.why if reason.startswith("weights take"))
        update |= {"why": (titles, *weights), "departures": (), "published": _published(job)}
    return plan.model_copy(update=update)


def _published(job: Subject) -> Mapping[str, float]:
    if not job.printed or not job.client or job.choice.other_run or job.plan.gpu != job.workflow.gpus[0]:
        return {}
    return results().get((job.printed.id, job.client.id), {})


def _launched(job: Subject, command: Command | None) -> dict[str, Any]:
    model, version, config = job.plan.model, job.version, job.deployment.config
    recipe = planning.recipe_of(job.deployment)
    if command is None:
        return {"serve_argv": tuple(engine.serve_argv(config, model, host=engine.EVERYWHERE, extra=recipe.flags))}
    line = command.read(version, job.profile.platform)
    extra = job.other_options(line)
    if recipe.flags.get("trust-remote-code"):
        extra["trust-remote-code"] = True
    extra = {name: value for name, value in extra.items() if engine.flag_status(version, f"--{name}")}
    words = engine.serve_argv(config, model, host=engine.EVERYWHERE, extra=extra)
    own_env = {name: value for name, value in job.plan.env.items() if name not in recipe.env}
    env = {**job.read_env(command.env), **own_env}
    return {"serve_argv": job.written_out(words, line) if job.printed else tuple(words), "env": env}


def _warnings(job: Subject, env: Mapping[str, str]) -> Iterator[str]:
    load, config, checked = job.plan.workload, job.deployment.config, job.deployment.checked
    held = int(job.deployment.requests_held(load.sent.total_len))
    if load.max_concurrency and held < load.max_concurrency:
        yield f"the cache holds {held} of the {load.max_concurrency} concurrent requests: the others wait"
    elif job.plan.predicted["mean_ttft_ms"] > LONG_TTFT_S * 1e3:
        yield "the load is more than one server carries: most of the predicted TTFT is waiting"
    if checked.verdict == "too close to call":
        yield f"memory is too close to call: it starts with {percent(checked.probability_fits)} probability"
    compilation = job.printed.read().others.get("--compilation-config", "") if job.printed else ""
    yield from map(str, engine.known_issues(config, env, job.resolved.model, job.profile, compilation=compilation))
    if job.profile.partition and config.tensor_parallel_size > 1:
        yield "tensor parallelism over partitions: one document prints it, another says that it is not supported"
