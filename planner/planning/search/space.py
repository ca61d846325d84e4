"""Everything a search may choose on one GPU, and its candidates: checkpoints, layouts, KV dtypes, budgets, batches."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, product
from math import exp, inf, log, log1p
from typing import Any

from planner import engine, timing
from planner.engine import EngineConfig, EngineVersion, Layout, SpeculativeConfig
from planner.errors import IllegalPlanError, InputError, PlannerError
from planner.hardware import GpuProfile
from planner.model import Checkpoint, Model, ResolvedModel, quantized_checkpoints, resolve_model
from planner.planning import defaults
from planner.planning.capacity import Capacity
from planner.planning.cost import Paid
from planner.planning.defaults import TOLERANCE, Goal
from planner.planning.deployment import Deployment, remarks
from planner.planning.fit import WayOut
from planner.planning.predict import Estimate, Prediction, ServedLoad, doubt_at
from planner.planning.serving import Serving, typed
from planner.planning.uncertainty import Forecast, Uncertainty
from planner.units import MS, percent
from planner.workload import By, Load, Router, Slo, Targets


@dataclass(frozen=True, slots=True)
class Rejected:
    """Settings that lost or cannot run, with the reason. None: the reason comes before that setting."""

    gpu: str
    model: str
    tensor_parallel_size: int | None = None
    kv_cache_dtype: str | None = None
    reason: str = ""
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    weight_dtype: str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    speculative_config: SpeculativeConfig | None = None
    probability_behind: float | None = None  #: that the best serves the goal better; None for other reasons

    @classmethod
    def of(
        cls, resolved: ResolvedModel, deployment: Deployment, reason: str, probability_behind: float | None = None
    ) -> "Rejected":
        """An engine that lost, with everything that it would have been launched with."""
        settings = {**deployment.config.choice, "speculative_config": deployment.config.speculative_config}
        names = deployment.profile.id, resolved.resolved
        return cls(*names, reason=reason, probability_behind=probability_behind, **settings)


@dataclass(frozen=True, slots=True)
class Refused:
    """A GPU without an answer, and why."""

    gpu: str
    reason: str


@dataclass(frozen=True)
class Candidate:
    """One engine that fits, at one concurrency; under targets, the servers that carry the load together."""

    resolved: ResolvedModel
    deployment: Deployment
    estimate: Estimate
    figures: Mapping[str, Any] | None = None  #: of the replay, for the finalists; the others have the closed form alone
    prediction: Prediction | None = None  #: the replay and its uncertainty, for the best
    servers: int = 1  #: that carry the load together, spares left out
    load: ServedLoad | None = None  #: of one server, where there are targets
    capacity: Capacity | None = None  #: other loads, as far as they were replayed
    rival: Deployment | None = None  #: of the best under targets: the most promising engine of another precision
    searched: "Candidate | None" = None  #: with the benchmark line, where ``for_users`` has made this the serving line

    @property
    def config(self) -> EngineConfig:
        return self.deployment.config

    @property
    def profile(self) -> GpuProfile:
        return self.deployment.profile

    @property
    def engine(self) -> tuple[str, Layout, str, int]:
        """Checkpoint, layout, KV dtype and drafted tokens, which all batches of one engine share."""
        config = self.config
        return self.resolved.resolved, Layout.of(config), config.kv_cache_dtype, config.drafted_tok

    def in_phase(self, load: Load) -> bool:
        """Return True if its DP ranks share experts and read prompts of one length in the same steps."""
        return self.deployment.model.is_moe and self.config.data_parallel_size > 1 and not load.range_ratio

    @property
    def num_gpus(self) -> int:
        return self.servers * self.config.num_gpus

    @property
    def tok_per_s_per_gpu(self) -> float:
        if self.figures:
            return float(self.figures["output_throughput_per_gpu"])
        if self.load:
            return self.load.output_tok_per_s / self.config.num_gpus
        return self.estimate.output_tok_per_s / self.config.num_gpus

    @property
    def tok_per_s_per_user(self) -> float:
        return float(self.figures["output_throughput_per_user"]) if self.figures else self.estimate.tok_per_s_per_user

    @property
    def e2el_s(self) -> float:
        if self.load and not self.figures:
            return float(self.load.replay.e2el_s.mean())
        return self.figures["mean_e2el_ms"] * MS if self.figures else self.estimate.e2el_s

    @property
    def rates(self) -> dict[str, float]:
        """The figures that goals are about, by their keys in a result."""
        per_gpu, per_user = self.tok_per_s_per_gpu, self.tok_per_s_per_user
        figures = {"output_throughput_per_gpu": per_gpu, "output_throughput_per_user": per_user}
        return figures | {"mean_e2el_ms": self.e2el_s / MS}

    def uncertainty(self, load: Load) -> Uncertainty:
        """The uncertainty of its figures under ``load``, by the closed form."""
        return doubt_at(self.deployment, load, self.estimate.concurrency)


@dataclass(frozen=True)
class Ranking:
    """The candidates of one GPU, best first, and what was turned down."""

    profile: GpuProfile
    version: EngineVersion
    candidates: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]
    closest: Candidate | None = None  #: where no plan meets the targets: the one that comes nearest
    beyond_stock: str = ""  #: the GPUs of the smallest server that memory allows, where there are fewer
    #: Where nothing fits: changes after which it does, as ``fit`` finds them. Else a 4-bit checkpoint for one card.
    ways_out: tuple[WayOut, ...] = ()
    hint: str = ""  #: of the refusal, where ``fit`` is refused too
    roomier: tuple[tuple[str, Candidate], ...] = ()  #: options with which the KV cache holds more, and what is faster

    @property
    def best(self) -> Candidate | None:
        """The plan to make, None where nothing fits."""
        return self.candidates[0] if self.candidates else None

    @property
    def pareto(self) -> list[Candidate]:
        """The Pareto front of tokens/s per GPU against tokens/s per user."""
        return pareto(self.candidates)

    @property
    def why_none(self) -> str:
        """The reason why there is no candidate, in a few words."""
        closest = self.closest
        if closest and closest.load and (worst := closest.load.worst):
            return f"{worst.slo} becomes {worst.expected_ms:,.0f} ms at best"
        if self.beyond_stock:
            return self.beyond_stock
        of_gpu = [one for one in self.rejected if one.tensor_parallel_size]  # rather than of a checkpoint
        most = max(of_gpu or self.rejected, key=lambda one: one.tensor_parallel_size or 0, default=None)
        return most.reason if most else "nothing fits"


def pareto(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The Pareto front of tokens/s per GPU against tokens/s per user; fastest per user first."""
    front: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda c: (-c.tok_per_s_per_user, -c.tok_per_s_per_gpu)):
        if not front or candidate.tok_per_s_per_gpu > front[-1].tok_per_s_per_gpu:
            front.append(candidate)
    return front


@dataclass(frozen=True, slots=True)
class Merit:
    """Score of a prediction for a goal: its rates, to the powers that count in it."""

    goal: Goal
    per_user: float = 1.0  #: powers of ``balanced``, 2 together: with them both ends of the Pareto front are alike
    per_gpu: float = 1.0

    @classmethod
    def among(cls, candidates: Iterable[Candidate], goal: Goal) -> "Merit":
        """Build it from the Pareto front of ``candidates``; of one point any axis length does."""
        front = pareto(candidates) if goal == "balanced" else []
        if not front:
            return cls(goal)
        users = log(front[0].tok_per_s_per_user / front[-1].tok_per_s_per_user) or 1.0
        gpus = log(front[-1].tok_per_s_per_gpu / front[0].tok_per_s_per_gpu) or 1.0
        return cls(goal, 2 * gpus / (users + gpus), 2 * users / (users + gpus))

    def of(self, figures: Mapping[str, Any]) -> float:
        """Return its logarithm from the figures of a prediction; larger is better."""
        if self.goal == "min-latency":
            return -log(figures["mean_e2el_ms"])
        per_gpu = log(figures["output_throughput_per_gpu"])
        if self.goal == "max-throughput":
            return per_gpu
        return self.per_user * log(figures["output_throughput_per_user"]) + self.per_gpu * per_gpu

    def of_candidate(self, candidate: Candidate) -> float:
        return self.of(candidate.rates)

    @property
    def figure(self) -> tuple[str, float]:
        """The figure of a result that it is a power of, for one setting, and that power."""
        if self.goal == "min-latency":
            return "mean_e2el_ms", -1.0
        # both rates are one throughput, over GPUs and over users
        return "output_throughput", 1.0 if self.goal == "max-throughput" else self.per_user + self.per_gpu

    @property
    def tie(self) -> float:
        """Largest difference between equals: ``TOLERANCE`` of the figure."""
        return abs(self.figure[1]) * log1p(TOLERANCE)

    def odds(self, load: Load, one: Candidate, other: Candidate) -> float:
        """Probability that measurements of ``one`` serve the goal better than those of ``other``."""
        pair = (Forecast.of(exp(self.of_candidate(c)), c.uncertainty(load), *self.figure) for c in (one, other))
        return next(pair).beats(next(pair))

    def words(self, candidate: Candidate) -> str:
        if self.goal == "min-latency":
            return f"mean E2EL {candidate.e2el_s:.2f} s"
        if self.goal == "max-throughput":
            return f"{candidate.tok_per_s_per_gpu:,.0f} output tokens/s per GPU"
        return f"{candidate.tok_per_s_per_gpu:,.0f} tokens/s per GPU at {candidate.tok_per_s_per_user:.0f} per user"

    def tie_words(self, first: Candidate, other: Candidate) -> str:
        """Return why ``first`` goes before an ``other`` that is better; empty where none is."""
        better = self.of_candidate(other) > self.of_candidate(first)
        return f"; within {TOLERANCE:.0%} the recipe's layout and fewer GPUs go first" * better

    def odds_words(self, behind: float) -> str:
        """``93% likely to be slower``, or faster; ``balanced`` weighs two rates, of which one may be larger."""
        worse, better = ("worse", "better") if self.goal == "balanced" else ("slower", "faster")
        return f"{percent(max(behind, 1 - behind))} likely to be {worse if behind >= 0.5 else better}"


def best_first(candidates: Iterable[Candidate], goal: Goal) -> list[Candidate]:
    """Candidates by merit; of those that equal the best (``Merit.tie``) the ones of fewest GPUs come first."""
    candidates = list(candidates)
    merit = Merit.among(candidates, goal)
    scores = {id(one): merit.of_candidate(one) for one in candidates}
    least = max(scores.values(), default=0.0) - merit.tie

    def order(one: Candidate) -> tuple[float, ...]:
        score, gpus = scores[id(one)], one.config.num_gpus
        return (-inf if score >= least else -score), gpus, -score, one.config.max_num_seqs

    return sorted(candidates, key=order)


#: Publishers of quantised checkpoints with published evaluations, beside the model's own publisher.
TRUSTED_PUBLISHERS = frozenset({"amd", "nvidia", "redhatai"})
#: Integer formats. A GPU with matrix units for fp8 takes them where nothing else fits, as one whose architecture has no
#: run of int8 takes that: they save memory, and accuracy costs more than the speed is worth.
INTEGER = ("int8-gptq", "int4", "int4-awq", "int4-gptq")
#: First release with DP attention and EP in ``vllm serve`` (``--data-parallel-size``: 0.8.3 offline, 0.9.0 served).
DATA_PARALLEL_SINCE = (0, 9)
#: Interconnects over which TP is preferred to pipeline stages as far as it reaches.
FAST_LINKS = frozenset({"nvswitch", "xgmi-mesh"})


@dataclass(frozen=True)
class Space:
    """One model on several types of GPUs, with the settings that are given instead of searched."""

    servings: tuple[Serving, ...]  #: one for each GPU, of one model and with the same settings
    gpus_per_node: int | None = None  #: whole GPUs of one node; None: as the profile says
    nodes: int | None = None  #: most nodes of one server; None: one, or the fewest that hold the model
    prices: Mapping[str, float] = field(default_factory=dict)  #: USD per hour by profile id, before the profile's own
    stock: Mapping[str, int] | None = None  #: whole GPUs by profile id, of which the largest load is asked for
    speculation: bool = False  #: whether drafts by the model's own MTP modules, or its EAGLE head, are searched too
    weight_dtype: str | None = None  #: of the checkpoints that are planned; None: any

    def __post_init__(self) -> None:
        made = quantized_checkpoints(self.model.resolved) if self.model.source != "path" else ()
        known = dict.fromkeys((self.model.model.quantization.weight_dtype, *(one.weight_dtype for one in made)))
        if self.weight_dtype not in (None, *known):
            cause = f"--weight-dtype {self.weight_dtype}: no such checkpoint of {self.model.resolved} is known"
            raise InputError(cause, hint=f"known are {', '.join(known)}; or give the checkpoint as MODEL")

    @property
    def model(self) -> ResolvedModel:
        return self.servings[0].resolved

    @property
    def args(self) -> engine.EngineArgs:
        return self.servings[0].args

    @property
    def gpus(self) -> tuple[GpuProfile, ...]:
        return tuple(serving.profile for serving in self.servings)

    @property
    def coarse(self) -> bool:
        """True if each of many GPUs is searched coarsely: few budgets and layouts, first of the cheapest engines."""
        return len(self.servings) > defaults.FEW_GPUS

    def most_gpus(self, profile: GpuProfile) -> int | None:
        """Return the (logical) GPUs of the stock; None without one."""
        if self.stock is None:
            return None
        return self.stock.get(profile.id, self.stock.get(profile.whole, 0)) * profile.parts

    def why_no_stock(self, profile: GpuProfile) -> str:
        """Return the reason why a stock holds none of this GPU."""
        if profile.id not in (self.stock or {}):
            return f"--have names none: add --have {profile.id}=N"
        usd = Paid.of(profile, profile.parts, 1.0, self.prices).usd_per_hour
        return f"one is {usd:.2f} USD/h, above --budget" if usd else f"no price: add --price {profile.id}=USD"

    def node_size(self, profile: GpuProfile) -> int:
        """Return the logical GPUs of one node: ``gpus_per_node`` packages, at most the profile's."""
        parts = profile.partition.count if profile.partition else 1
        return min((self.gpus_per_node or profile.gpus_per_node) * parts, profile.gpus_per_node)


@dataclass(frozen=True)
class Objective:
    """The goal, or the latency targets and the load of all servers together that meet them at the least cost."""

    goal: Goal
    load: Load  #: of all servers together
    targets: Targets | None = None  #: None: the goal alone decides, at the concurrency of the load
    num_prompts: int | None = None  #: requests of the job; None: as many as the figures need
    headroom: float = 0.0  #: share of the load that is carried on top of it; ``load`` and ``value`` include it
    spares: int = 0  #: servers of each kind beside those that carry the load
    workload_name: str | None = None

    def __post_init__(self) -> None:
        typed("goal", self.goal, Goal)

    @property
    def by(self) -> By:
        return self.targets.by if self.targets else "concurrency"

    @property
    def value(self) -> float | None:
        """The load of all servers together; None: as much as one server carries."""
        return self.targets.value if self.targets else None

    @property
    def lone(self) -> bool:
        """True if all servers together carry one request at a time."""
        return self.by == "concurrency" and self.value == 1

    @property
    def router(self) -> Router:
        asked = self.targets.router if self.targets else None
        return asked or ("prefix-aware" if self.load.reused else "least-loaded")

    def dealt(self, servers: int) -> Load:
        """The share of one of ``servers`` as the router deals it, for ``at_load``; classes as they are."""
        load = self.load
        if load.classes or (load.recorded is None and self.by == "concurrency"):
            return load
        anew = (servers, self.router) if load.drawn and self.value is None else None
        return replace(load.share_of(servers, self.router), dealt=anew)

    @property
    def slos(self) -> tuple[Slo, ...]:
        return self.targets.slos if self.targets else ()

    @property
    def paced(self) -> bool:
        """True where tokens have to come fast, for which a draft model pays: min-latency, or a target beside TTFT."""
        asked = any(slo.metric != "ttft" for slo in self.slos) if self.targets else self.goal == "min-latency"
        return asked and self.load.longest_len <= defaults.HEAD_TOKENS

    @property
    def confidence(self) -> float:
        return self.targets.confidence if self.targets else defaults.CONFIDENCE

    def wanted_batch(self, places: int | None = None) -> int | None:
        """Concurrency at which a goal compares every engine, of ``places`` if they are given; None: it is searched."""
        most = min(places or defaults.LATENCY_CONCURRENCY, defaults.LATENCY_CONCURRENCY)
        latency = most if self.goal == "min-latency" else None
        return self.load.max_concurrency or latency

    @property
    def classes(self) -> tuple[tuple[float, Load, tuple[Slo, ...]], ...]:
        """Each class of the load with its share of the requests and its targets; one for a load without classes."""
        rate = sum(one.request_rate for one in self.load.classes)
        classes = (
            (one.request_rate / rate, one, tuple(slo for slo in self.slos if slo.group in ("", one.name)))
            for one in self.load.classes
        )
        return tuple(classes) or ((1.0, self.load, self.slos),)

    @property
    def replayed_prompts(self) -> int | None:
        """Requests of each replay: those of the job, at most as many as the figures need."""
        enough = defaults.PROMPTS_PER_SLOT * (self.load.max_concurrency or 0)
        return self.num_prompts and min(self.num_prompts, max(enough, defaults.MOST_SEARCH_PROMPTS))

    def closed_loop(self, concurrency: int) -> Load:
        """Return the load with ``concurrency`` requests in flight, and enough of them for a steady state."""
        return self.load.at_concurrency(concurrency, self.replayed_prompts or defaults.PROMPTS_PER_SLOT * concurrency)


class Choices:
    """The engines of one GPU that a search may choose, and those that it turned down."""

    def __init__(
        self, space: Space, objective: Objective, serving: Serving, nodes: tuple[int, ...] = (1,), *,
        native: bool = True,
    ) -> None:  # fmt: skip
        """``nodes`` are the numbers of nodes that one server may fill.

        ``native`` yields the model and all checkpoints but integers where FP8 or a lack of runs forbids; else those.
        """
        self.space, self.objective, self.serving, self.nodes = space, objective, serving, nodes
        self.native, self.passed_over = native, False
        self.profile, self.version = serving.profile, serving.version
        self.most_gpus = space.most_gpus(self.profile)
        self.rejected: list[Rejected] = []
        self._deployed: dict[tuple[str, engine.EngineArgs], Deployment] = {}

    def checkpoints(self) -> Iterator[ResolvedModel]:
        """Yield the asked model and the checkpoints made of it that this GPU runs; a quantised one has none."""
        asked, wanted = self.space.model, self.space.weight_dtype
        if self.native and wanted in (None, asked.model.quantization.weight_dtype):
            yield asked
        own, made = asked.model.quantization, quantized_checkpoints(asked.resolved) if asked.source != "path" else ()
        made = sorted(made, key=lambda one: not self._trusted(one))
        seen, measured = {(own.weight_dtype, own.kv_cache_dtype)}, timing.ran_on(self.profile.architecture)
        for checkpoint in made:
            reason, key = self._unsuitable(checkpoint), (checkpoint.weight_dtype, checkpoint.kv_cache_dtype)
            unproven = key[0].startswith("int8") and not key[0].startswith(measured)  # speed is all that int8 offers
            later = key[0] in INTEGER and (self.profile.supports("fp8") or unproven)
            if wanted not in (None, key[0]) or (not self.native and not later):
                continue  # not asked for, or searched or turned down before
            if reason is None and self.native and later:
                self.passed_over = True
                reason = f"{key[0]} is planned on {self.profile.name} where no wider format fits: ask for it by name"
            if {own.weight_dtype, key[0]} == {"mxfp4", "nvfp4"} and own.weight_dtype not in self.profile.emulated:
                reason = reason or f"as many bits as {asked.resolved} itself: ask for it by name"
            if key in seen:
                reason = reason or "another checkpoint of the same precision is considered"
            if reason is not None:
                self.reject(checkpoint.id, reason, weight_dtype=checkpoint.weight_dtype)
                continue
            seen.add(key)
            yield resolve_model(checkpoint.id, network=False)

    def _trusted(self, checkpoint: Checkpoint) -> bool:
        of_model = self.space.model.resolved.split("/")[0]
        return checkpoint.publisher.lower() in TRUSTED_PUBLISHERS or checkpoint.publisher == of_model

    def _unsuitable(self, checkpoint: Checkpoint) -> str | None:
        profile, dtype = self.profile, checkpoint.weight_dtype
        if not self._trusted(checkpoint) and self.space.weight_dtype is None:
            return f"quantised by {checkpoint.publisher}: give {checkpoint.id} as MODEL to plan it"
        if profile.vendor in ("amd", "nvidia") and profile.vendor not in checkpoint.platforms:
            return f"published for {' and '.join(checkpoint.platforms)} GPUs"
        emulated = f"{profile.name} computes {dtype} in {profile.emulated.get(dtype)}: saves memory, not time"
        return f"{emulated}; ask for the checkpoint by name to plan it" if dtype in profile.emulated else None

    def beside_recipe(self, resolved: ResolvedModel, config: engine.EngineConfig) -> tuple[bool, bool]:
        """True for an fp8 KV cache without measured scales that the recipe does not name; for another EP than its."""
        recipe, _ = engine.stated_words((resolved.resolved, self.space.model.resolved), self.profile)
        scaled = resolved.model.quantization.kv_cache_dtype or "--kv-cache-dtype" in recipe
        other = bool(recipe) and ("--enable-expert-parallel" in recipe) is not config.enable_expert_parallel
        return config.kv_cache_dtype.startswith("fp8") and not scaled, other

    def engines(self, resolved: ResolvedModel) -> Iterator[engine.EngineArgs]:
        """Yield layouts x KV dtypes of one checkpoint, with the settings that its recipes advise."""
        model, over = resolved.model, self._layouts_over
        layouts = [one for n in self.nodes for one in (over(model, n) if n > 1 else self._layouts(model))]
        if not layouts:
            self.reject(resolved.resolved, "no tensor-parallel size is legal")
        for layout, kv_cache_dtype in product(layouts, self._kv_cache_dtypes(resolved.model)):
            args = replace(self.space.args, **layout.axes, kv_cache_dtype=kv_cache_dtype)
            try:
                args = self.launched(resolved.model, args)
            except PlannerError as error:
                self.reject_args(resolved, args, error.cause)
                continue
            yield args
            # vLLM's proposers support no stages, nor adapters
            asked = args.speculative_config or args.enable_lora or args.pipeline_parallel_size > 1
            if self.space.speculation and not asked:  # among many GPUs one number of drafted tokens stands for all
                found = engine.searched_drafts(resolved.model, resolved.resolved, self.version, self.profile)
                drafts = tuple(one for one in found if one.method == "mtp" or self.objective.paced)
                for one in drafts[-1:] if self.space.coarse else drafts:
                    yield replace(args, speculative_config=one)

    def launched(self, model: Model, args: engine.EngineArgs) -> engine.EngineArgs:
        """Return ``args`` with a context for the load, and with the recipes' settings where nothing was asked for.

        ``max_num_seqs`` is searched. Recipes that keep no prefixes were written for prompts that share none.
        """
        advised = engine.recipe_for(model, self.profile, self.version, kv_cache_dtype=args.kv_cache_dtype).settings
        load, total = self.objective.load, self.objective.load.longest_len
        if load.prefix_len or load.reused:
            features = engine.version_features(self.version, self.profile)
            advised["enable_prefix_caching"] = engine.prefix_caching(model, features, asked=True) or None
        if "batched" in args.exchange:  # a token for each place: buffers grow with them
            advised["max_num_batched_tokens"] = defaults.MAX_NUM_SEQS
        names = [name for name in advised if name != "max_num_seqs" and getattr(args, name) in (None, "auto")]
        args = replace(args, **{name: advised[name] for name in names})
        if self.version.release < (0, 9, 1):  # its client only decodes: of 800 random prompts the longest had 8 % more
            total += load.input_len // 10
        most = engine.stretched(model, args, self.version).max_position_embeddings
        context = max(min(defaults.round_context(total), most), load.longest_len)
        return replace(args, max_model_len=args.max_model_len or context)

    def deployed(self, resolved: ResolvedModel, args: engine.EngineArgs) -> Deployment:
        """Return one engine; its step times are computed once. Raises IllegalPlanError for what vLLM refuses."""
        key = resolved.resolved, args
        if key not in self._deployed:
            self._deployed[key] = self.serving.changed(resolved=resolved, args=args).deployment
        if self.space.args.max_num_seqs and (lacking := self._deployed[key].lacking_states):
            raise IllegalPlanError(lacking, hint="lower --max-num-seqs")
        return self._deployed[key]

    def sized(self, args: engine.EngineArgs, batch: int) -> engine.EngineArgs:
        """Return ``args`` with places for ``batch`` requests; for a goal, which fills them, with graphs for all."""
        args = replace(args, max_num_seqs=batch)
        graphs = None if self.objective.targets else engine.capture_size(args, self.version, self.profile)
        return replace(args, max_cudagraph_capture_size=graphs or args.max_cudagraph_capture_size)

    def largest_batch(self, resolved: ResolvedModel, args: engine.EngineArgs, *, cautious: bool = True) -> int:
        """Largest ``max_num_seqs`` of requests of full length that the KV cache, or its low end, holds; 0: none.

        A larger batch leaves a smaller cache: what the cache of one holds is tried first, or one less; then halves.
        """
        closed = 0 if self.objective.targets else self.objective.load.max_concurrency or 0
        batch = args.max_num_seqs or max(defaults.MAX_NUM_SEQS, closed)
        if args.most_decodes and not args.max_num_seqs:
            batch = min(batch, args.most_decodes)
        low, high = 0, batch  # low is held, more than high is not
        for step in count():
            if low >= high:
                break
            deployment = self.deployed(resolved, self.sized(args, args.max_num_seqs or batch))
            held = int(deployment.requests_of(self.objective.load, pessimistic=cautious))
            low, high = (batch, min(high, held)) if held >= batch else (max(low, held), batch - 1)
            batch = min(held + 1, high) if step < defaults.BATCH_GUESSES else (low + high + 1) // 2
        return low

    def servers_in_stock(self, num_gpus: int) -> int:
        """Servers of so many GPUs that the stock holds, spares left out; without a stock one."""
        return 1 if self.most_gpus is None else max(self.most_gpus // num_gpus - self.objective.spares, 0)

    def gpus_each(self, num_gpus: int) -> float:
        """GPUs that one server counts for: its share of the stock, because what is left over carries nothing."""
        servers = self.servers_in_stock(num_gpus)
        return num_gpus if self.most_gpus is None else self.most_gpus / servers if servers else inf

    def reject(self, model: str, reason: str, **settings: Any) -> None:
        self.rejected.append(Rejected(self.profile.id, model, reason=reason, **settings))

    def reject_args(self, resolved: ResolvedModel, args: engine.EngineArgs, reason: str) -> None:
        chosen = {"kv_cache_dtype": args.kv_cache_dtype, "speculative_config": args.speculative_config}
        settings = {"weight_dtype": resolved.model.quantization.weight_dtype, **chosen}
        self.reject(resolved.resolved, reason, **args.settings("axes"), **args.settings("batch"), **settings)

    def left_out(self) -> Iterator[Rejected]:
        """Yield what this search does not look at, with the reasons."""
        space, model, fine = self.space, self.space.model.model, not self.space.coarse
        budgets, batches = (", ".join(map(str, sizes)) for sizes in (defaults.TOKEN_BUDGETS, defaults.TARGET_BATCHES))
        holds = {
            "coarse": space.coarse,
            "fine": fine and self.objective.targets is None,
            "fine_targets": fine and self.objective.targets and not space.args.max_num_batched_tokens,
            "experts": model.is_moe and not self._whole_experts(model),
            "dense": not model.is_moe,
            "stages_with_dp": True,
            "stages": True,
            "drafts": space.args.speculative_config is None and model.mtp and not space.speculation,
            "disaggregated": self.objective.targets,
        }
        known = {"gpus": len(space.gpus), "version": self.version, "budgets": budgets, "batches": batches}
        for reason in remarks("left_out", holds, **known):
            yield Rejected(self.profile.id, space.model.resolved, reason=f"left out: {reason}")

    def tensor_parallel_sizes(self, model: Model, *, experts: bool = False, most: int | None = None) -> list[int]:
        """Powers of two that are legal inside one node, or up to ``most``, of the newest version.

        Whole ``experts`` on each rank (EP) may be legal at sizes that cut their blocks.
        """
        legal = engine.legal_tensor_parallel_sizes(
            model, self.profile, enable_expert_parallel=experts, fp8_blocks="refined",
            allow_unvalidated=self.space.args.allow_unvalidated, **({"most": most} if most else {}),
        )  # fmt: skip
        limit = most or self.space.node_size(self.profile)
        return [size for size in legal if size <= limit and (most or size & (size - 1) == 0)]

    def _whole_experts(self, model: Model) -> bool:
        return model.is_moe and self.version.release >= DATA_PARALLEL_SINCE

    def _layouts(self, model: Model) -> Iterator[engine.Layout]:
        """Yield every layout inside one node that is worth considering: ``left_out`` names the others.

        TP x pipeline stages; of an MoE also whole experts on each rank (EP), and copies of the attention (DP) whose
        ranks share the experts. Over fast links stages are only for GPUs that TP cannot be cut for. Many types of GPUs
        are searched coarsely: DP only over whole nodes and where attention is latent: TP would repeat the KV cache.
        """
        coarse, node = self.space.coarse, self.space.node_size(self.profile)
        sizes, experts = self.tensor_parallel_sizes(model), self._whole_experts(model)
        whole = self.tensor_parallel_sizes(model, experts=True) if experts else []
        yield from map(engine.Layout, sizes)
        yield from (engine.Layout(size, enable_expert_parallel=True) for size in whole if size > 1)
        if self.profile.partition is not None:
            return
        shared = experts and (not coarse or engine.uses_latent_attention(model))
        reached = sizes if coarse or self.profile.interconnect.kind in FAST_LINKS else []
        for copies in (2**power for power in range(1, node.bit_length())):
            if shared:
                least = node if coarse else 1
                yield from (engine.Layout(s, 1, copies, True) for s in whole if least <= s * copies <= node)
            fits = [size for size in sizes if size * copies <= node and size * copies not in reached]
            yield from (engine.Layout(size, copies) for size in fits)
            if experts and not coarse:
                yield from (engine.Layout(size, copies, 1, True) for size in fits if size > 1)

    def _layouts_over(self, model: Model, nodes: int) -> Iterator[engine.Layout]:
        """Yield layouts that fill ``nodes`` nodes, with whole experts on each rank (EP) where there are any.

        - TP inside a node, stages over them: one hop of each token from node to node.
        - TP over all nodes: two sums in each layer cross the network.
        - Attention by DP, experts by EP: tokens cross it to their experts and back, in each layer.

        Ranks fill nodes in the order of TP, PP, DP, so that a TP group whose size divides that of a node stays inside.
        """
        node = self.space.node_size(self.profile)
        most = nodes * node
        for experts in (False, True) if self._whole_experts(model) else (False,):
            fitting = [size for size in self.tensor_parallel_sizes(model, experts=experts) if node % size == 0]
            if fitting:
                yield engine.Layout(fitting[-1], most // fitting[-1], 1, experts)
            if most in self.tensor_parallel_sizes(model, experts=experts, most=most):
                yield engine.Layout(most, 1, 1, experts)
            if experts:
                yield from (engine.Layout(size, 1, most // size, True) for size in fitting)

    def _kv_cache_dtypes(self, model: Model) -> tuple[str, ...]:
        """fp8 where the checkpoint has measured scales; also without, which a warning names, by recipe or targets."""
        asked, fp8 = self.space.args.kv_cache_dtype, self.profile.supports("fp8")
        if asked != "auto":
            return (asked,)
        if model.quantization.kv_cache_dtype and fp8:
            return ("fp8",)
        recipe, _ = engine.stated_words((model.id, self.space.model.resolved), self.profile)
        either = "--kv-cache-dtype fp8" in " ".join(recipe) or (self.objective.targets and not self.space.coarse)
        return ("auto", "fp8") if either and fp8 else ("auto",)
