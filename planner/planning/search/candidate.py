"""One engine at one load: what a search compares, and what it turned down."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, inf, log, log1p
from typing import Any

from planner.engine import EngineConfig, EngineVersion, Layout, SpeculativeConfig
from planner.hardware import GpuProfile
from planner.model import ResolvedModel
from planner.planning.capacity import Capacity
from planner.planning.defaults import TOLERANCE, Goal
from planner.planning.deployment import Deployment
from planner.planning.fit import WayOut
from planner.planning.predict import Estimate, Prediction, ServedLoad, doubt_at
from planner.planning.uncertainty import Forecast, Uncertainty
from planner.units import MS, percent
from planner.workload import Load


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
        cls, resolved: ResolvedModel, engine: Deployment, reason: str, probability_behind: float | None = None
    ) -> "Rejected":
        """An engine that lost, with everything that it would have been launched with."""
        settings = {**engine.config.choice, "speculative_config": engine.config.speculative_config}
        names = engine.profile.id, resolved.resolved
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
    ways_out: tuple[WayOut, ...] = ()  #: where nothing fits: changes after which it does, as ``fit`` finds them
    hint: str = ""  #: of the refusal, where ``fit`` is refused too
    with_fp8_cache: Candidate | None = None  #: the best with a KV cache without measured scales, which is faster

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
