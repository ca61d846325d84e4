"""The subject of a workflow: one serving engine, its load, and the plan that the scripts launch.

The document's model on its GPU gets the document's command, any other the settings that ``planner recommend`` finds."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner import engine, planning
from planner.errors import IllegalPlanError, InputError
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis
from planner.model import ResolvedModel, resolve_model
from planner.output.workflows.documents import Command, Point, Workflow, results, tables
from planner.units import counted, percent
from planner.workload import Load

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
    timeout: float | None = None  #: seconds; None: as the hub has it
    local: planning.Local = planning.SHIPPED  #: the fits that predict

    def resolve(self, model: str) -> ResolvedModel:
        return resolve_model(model, revision=self.revision, refresh=self.refresh, timeout_s=self.timeout)

    def profile(self, workflow: Workflow) -> GpuProfile:
        """The GPU of the caller, else the document's. Raises UnknownNameError for an unknown name."""
        gpu = self.gpu or workflow.gpus[0]
        return gpu if isinstance(gpu, GpuProfile) else load_profile(gpu)

    def given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def refuse(self, workflow: Workflow, names: Iterable[str]) -> None:
        """Raise InputError if the caller gave one of the options ``names``."""
        for name in self.given(*names):
            cause = f"{engine.flag_of(name)} has no effect in {workflow.name}"
            raise InputError(cause, hint="leave it out, or name another workflow")

    def sent(self, load: Load) -> Load:
        """The load with the caller's lengths and number of prompts."""
        return replace(load, **self.given("input_len", "output_len", "num_prompts"))

    def load(self, workflow: Workflow, client: Command | None = None) -> Load:
        """The load of the document's client, else of its table, with the caller's options."""
        load = client.read().workload(client.document.version) if client else Load(**workflow.load)
        if self.max_concurrency is not None:
            prompts = planning.defaults.PROMPTS_PER_SLOT * self.max_concurrency
            load = replace(load, max_concurrency=self.max_concurrency, num_prompts=prompts, request_rate=float("inf"))
        return self.sent(load)

    @property
    def other_run(self) -> bool:
        """True if it is another run than the document's, with whatever checkpoint."""
        engine, load = ("kv_cache_dtype", "tensor_parallel_size", "draft"), ("input_len", "output_len", "num_prompts")
        return bool(self.given(*engine, *load, "max_concurrency"))


class Subject:
    """A workflow with the caller's options: one engine, its plan, and the document's commands if it ran this.

    Raises IllegalPlanError for an unsupported GPU, version or size, InputError for an option without an effect."""

    def __init__(self, workflow: Workflow, choice: Choice) -> None:
        self.workflow, self.choice, self.profile = workflow, choice, choice.profile(workflow)
        parts = all(load_profile(gpu).partition for gpu in workflow.gpus)
        if self.profile.platform not in workflow.platforms or (parts and not self.profile.partition):
            kind = "partitions on " * parts + " and ".join(workflow.platforms)
            cause = f"{workflow.name} is not a workflow for {self.profile.name}"
            raise IllegalPlanError(cause, hint=f"it is for {kind}, such as --gpu {workflow.gpus[0]}")
        self.version, self.build = _version(workflow, self.profile, choice)
        self.resolved = _resolved(workflow, choice, self.profile)
        described = workflow.models_on(self.profile) if self.profile.id in workflow.gpus else ()
        self.documented = self.resolved.resolved in described  #: a document describes this model on this GPU
        self._refuse_ignored()
        client, printed = self._first(workflow.client), self._first(workflow.serve)
        load = choice.load(workflow, client)
        bench = engine.program_argv("bench serve", self.version, "rocm")[1]
        if load.max_concurrency is not None and not engine.flag_status(self.version, "--max-concurrency", bench):
            load = replace(load, max_concurrency=None, request_rate=1.0)  # the document's open loop
        self.printed, self.client = (printed, client) if self.documented else (None, None)
        measured = next((point.command for point in self.points()), None) if self.documented else None
        command = self.printed or measured
        search, ranking = self._ranked(load, command)
        candidate = ranking.candidates[0].searched or ranking.candidates[0]  # the document's benchmark, not its users
        if not self.documented and load.max_concurrency:
            load = search.objective.closed_loop(candidate.estimate.concurrency)
        self.plan = search.plan(ranking, candidate, image=self._image(), load=load)
        self.deployment, self.resolved = candidate.deployment, candidate.resolved
        self.version = candidate.config.version
        self.draft = self._draft()  #: the model that drafts, if one does
        self.plan = self.plan.model_copy(update=self._in_documents_words(command))

    def points(self) -> Iterator[Point]:
        return self.workflow.points(self.version, self.profile, self.resolved.resolved)

    def settings(
        self, command: Command, version: engine.EngineVersion
    ) -> tuple[engine.EngineArgs, engine.EngineVersion, engine.ServeLine]:
        """Settings of a document's command, the version with the engine that they bring, and the line."""
        line = command.read(version, self.profile.platform)
        args = self._chosen(replace(line.args, speculative_config=command.drafts))
        if self.profile.partition and args.tensor_parallel_size > 1:
            args = replace(args, allow_unvalidated=True)
        undrafted = replace(line, args=replace(args, speculative_config=None))
        version = planning.asked_by(undrafted, self.resolved.model, self.profile, version)
        share = args.gpu_memory_utilization
        if share and share > engine.MOST_UTILIZATION and version.release >= (0, 9, 1) and version.engine != "V0":
            args = replace(args, gpu_memory_utilization=engine.ADVISED_UTILIZATION)
        if args.async_scheduling and not engine.flag_status(version, "--async-scheduling"):
            args = replace(args, async_scheduling=None)
        return args, version, line

    def start(
        self, args: engine.EngineArgs, version: engine.EngineVersion, *, steps: int = 1, offline: bool = False
    ) -> planning.Deployment:
        """The engine of these settings. Raises IllegalPlanError, with changes that make it fit, if it does not start.

        ``steps`` for each visit of V0's scheduler. The memory of a draft is left out."""
        serving = self._serving(args, version)
        deployment = (serving.offline if offline else serving.deployment).stepping(steps)
        if deployment.with_settings(speculative_config=None).fits:
            return deployment
        fit, name, gpus = serving.fit(), self.resolved.resolved, self.workflow.gpus
        taken = {"gpu", "tensor_parallel_size", "kv_cache_dtype", "allow_unvalidated"}  # the last one by itself
        options = (way for way in fit.options if way.settings.keys() <= taken)
        ways = [
            f"{' '.join(way.flags).removesuffix(' --allow-unvalidated')} ({way.change})" for way in options
            if way.settings.get("gpu", gpus[0]) in gpus
        ]  # fmt: skip
        cause = f"{name} on {args.tensor_parallel_size} x {self.profile.name} does not start: {fit.reason}"
        hint = f"of the document's settings change one: {'; '.join(ways[:3])}" if ways else "choose a larger GPU"
        raise IllegalPlanError(cause, hint=hint)

    def read_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """A document's variables that the version reads; the scripts choose the GPUs."""
        placed, platform = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), self.profile.platform
        known = {name for name in env if engine.env_status(self.version, name, platform=platform)}
        return {name: value for name, value in env.items() if name in known and name not in placed}

    def other_options(self, line: engine.ServeLine) -> dict[str, Any]:
        """Options of a document's line beside the engine's settings, in the words of the version."""
        steps, ours = "--num-scheduler-steps", tables("workflows")["ours"]
        others = {flag: value for flag, value in line.others.items() if flag not in ours}
        if "--tokenizer" in others:
            others["--tokenizer"] = self.plan.model
        extra = engine.spelled_options(others, self.version, line.command)
        if steps in line.options and engine.flag_status(self.version, steps, line.command):
            extra["num-scheduler-steps"] = line.options[steps]
        return extra | self.choice.given("revision")

    def written_out(self, words: list[str], line: engine.ServeLine) -> tuple[str, ...]:
        """A rendered command with those settings of the document's that a writer leaves out as defaults."""
        for flag, value in line.options.items():
            known = flag in _STATED - line.others.keys() and engine.flag_status(self.version, flag, line.command)
            if known and not any(word == flag or word.startswith(f"{flag}=") for word in words):
                words = [*words, flag, *([value] if value else [])]
        return tuple(words)

    def _refuse_ignored(self) -> None:
        workflow, dtype, own = self.workflow, self.choice.weight_dtype, _weights(self.resolved)
        if self.documented and dtype not in (None, own, *workflow.dtypes):
            cause = f"--weight-dtype {dtype}: the document has {self.resolved.resolved} in {own} on this GPU"
            hint = f"leave it out, choose from {', '.join({own: 0, **workflow.dtypes})}, or name another model"
            raise InputError(cause, hint=hint)
        ignored = [] if any(command.drafts for command in workflow.offline) else ["draft"]
        if self.documented and workflow.offline and not workflow.client:
            ignored.append("max_concurrency")
            if not any("throughput" in command.argv[1] for command in workflow.offline):
                ignored.append("num_prompts")
        self.choice.refuse(workflow, ignored)

    def _first(self, printed: tuple[Command, ...]) -> Command | None:
        return next(iter(self.workflow.printed(printed, self.version, self.profile, self.resolved.resolved)), None)

    def _chosen(self, args: engine.EngineArgs) -> engine.EngineArgs:
        return args.changed(**self.choice.given("tensor_parallel_size", "kv_cache_dtype"))

    def _serving(self, args: engine.EngineArgs, version: engine.EngineVersion) -> planning.Serving:
        fits = self.choice.local
        return planning.Serving.of(self.resolved, self.profile, args, version, local=fits, basis=Basis(fits.constants))

    def _ranked(self, load: Load, command: Command | None) -> tuple[planning.Search, planning.Ranking]:
        """The document's engine alone, else those that a search finds and the caller's options leave.

        Raises IllegalPlanError if none starts, InputError for requests that are too long for the document's."""
        choice, documented = self.choice, self.documented
        deployment = self._documented(load, command) if documented else None
        flying = load.max_concurrency if documented else choice.max_concurrency
        sent = Load(load.input_len, load.output_len, max_concurrency=flying)
        prompts = load.num_prompts if documented or choice.max_concurrency else None
        plain = self._serving(engine.EngineArgs(kv_cache_dtype=choice.kv_cache_dtype or "auto"), self.version)
        space = planning.Space((plain,), gpus_per_node=choice.gpus)
        search = planning.Search(space, planning.Objective("balanced", sent, num_prompts=prompts))
        if deployment:
            return search, search.of_one(deployment)
        name, profile = self.resolved.resolved, self.profile
        planning.check_context(sent, self.resolved.model.max_position_embeddings, name)
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
        wanted = (f" with TP {size}" if size else "") + (f" with {dtype} weights" if dtype else "")
        why = "none of the plans has that" if ranking.candidates else ranking.why_none
        cause = f"no plan of {name} on {profile.name} for {self.workflow.name}{wanted}: {why}"
        raise IllegalPlanError(cause, hint=f"planner fit {name} --gpu {profile.id} says what would make it fit")

    def _documented(self, load: Load, command: Command | None) -> planning.Deployment:
        args, version, steps = self._chosen(engine.EngineArgs(**self.workflow.settings)), self.version, 1
        if command:
            args, version, line = self.settings(command, version)
            steps = line.num_scheduler_steps
        node = self.choice.gpus or self.profile.gpus_per_node
        if args.tensor_parallel_size > node:
            cause = f"{self.workflow.name} takes {counted(args.tensor_parallel_size)}, the node has {node}"
            raise IllegalPlanError(cause, hint=f"--tensor-parallel-size {node}, or a node with more GPUs")
        deployment = self.start(args, version, steps=steps)
        planning.check_load(load, deployment.config.max_model_len, self.resolved.resolved)
        return deployment

    def _image(self) -> engine.Image | None:
        """The image that is asked for or built; None: the one of the version."""
        named, source = (self.build.image, self.build.source) if self.build else ("", "")
        if asked := self.choice.image:
            named, source = asked, f"as asked for with --image; the options are those of vLLM {self.version}"
        pinned = engine.Image(
            named, self.version, self.profile.platform, pinned=True, source=source, gpus=(self.profile.id,)
        )
        return pinned if named else None

    def _draft(self) -> str:
        """The draft model, whose vocabulary has to be the model's. Raises IllegalPlanError for one that cannot run.

        No version from 0.10 to 0.14 drafts with a model (``spec_decode/`` and ``v1/spec_decode/draft_model.py``)."""
        workflow, draft, version = self.workflow, self.choice.draft, self.version
        own = next((c.drafts.model for c in workflow.offline if c.drafts and c.drafts.model), "")
        if own and not draft and not self.documented:
            raise IllegalPlanError(f"{own} drafts for {workflow.model} only", hint="name another one with --draft")
        if own and (0, 10) <= version.release < (0, 15):
            cause = f"vLLM {version} does not draft with a model"
            raise IllegalPlanError(cause, hint="--engine-version up to 0.9.2, or from 0.15.0 on")
        return own and (draft or own)

    def _in_documents_words(self, command: Command | None) -> dict[str, Any]:
        """Fields of the plan in which the document's words take the place of ours."""
        plan, workflow = self.plan, self.workflow
        fields: dict[str, Any] = {"accuracy_task": workflow.accuracy_task or plan.accuracy_task}
        if command:
            fields |= self._launched(command)
        warnings = self._warnings(fields.get("env", {}))
        fields["warnings"] = tuple(dict.fromkeys((*plan.warnings, *warnings)))
        if not self.documented:
            return fields | {"why": (f"no document describes {workflow.name} here: recommended settings", *plan.why)}
        titles = f"the settings are those of: {'; '.join(document.title for document in workflow.documents)}"
        weights = (reason for reason in plan.why if reason.startswith("weights take"))
        fields |= {"why": (titles, *weights), "departures": ()}
        if self.printed and self.client and not self.choice.other_run and plan.gpu == workflow.gpus[0]:
            fields["published"] = results().get((self.printed.id, self.client.id), {})
        return fields

    def _launched(self, command: Command) -> dict[str, Any]:
        recipe, line = planning.recipe_of(self.deployment), command.read(self.version, self.profile.platform)
        extra = self.other_options(line)
        if recipe.flags.get("trust-remote-code"):
            extra["trust-remote-code"] = True
        extra = {name: value for name, value in extra.items() if engine.flag_status(self.version, f"--{name}")}
        words = engine.serve_argv(self.deployment.config, self.plan.model, host=engine.EVERYWHERE, extra=extra)
        own_env = {name: value for name, value in self.plan.env.items() if name not in recipe.env}
        env = {**self.read_env(command.env), **own_env}
        return {"serve_argv": self.written_out(words, line) if self.printed else tuple(words), "env": env}

    def _warnings(self, env: Mapping[str, str]) -> Iterator[str]:
        load, deployment, config = self.plan.workload, self.deployment, self.deployment.config
        held = int(deployment.requests_held(load.sent.total_len))
        if load.max_concurrency and held < load.max_concurrency:
            yield f"the cache holds {held} of the {load.max_concurrency} concurrent requests: the others wait"
        elif self.plan.predicted["mean_ttft_ms"] > LONG_TTFT_S * 1e3:
            yield "the load is more than one server carries: most of the predicted TTFT is waiting"
        if deployment.verdict == "too close to call":
            yield f"memory is too close to call: it starts with {percent(deployment.probability_fits)} probability"
        compilation = self.printed.read().others.get("--compilation-config", "") if self.printed else ""
        model, profile = self.resolved.model, self.profile
        yield from map(str, engine.known_issues(config, env, model, profile, compilation=compilation))
        if profile.partition and config.tensor_parallel_size > 1:
            yield "tensor parallelism over partitions: one document prints it, another says that it is not supported"


def _resolved(workflow: Workflow, choice: Choice, profile: GpuProfile) -> ResolvedModel:
    models = workflow.models_on(profile)
    resolved = choice.resolve(choice.model or models[0])
    if choice.weight_dtype is None or choice.weight_dtype in (_weights(resolved), *workflow.dtypes):
        return resolved
    for other in models:  # of the same model
        if _base(other) == _base(resolved.resolved) and _weights(resolve_model(other)) == choice.weight_dtype:
            return resolve_model(other)
    return resolved  # the search has that precision, or says that it does not


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
        cause = f"{workflow.name} builds commit {build.commit[:12]}, which takes the options of vLLM {build.version}"
        raise IllegalPlanError(cause, hint="leave out --engine-version")
    return engine.parse_version(build.version), build
