"""Time of one engine step: its operators, its collectives and the host.

::

    step = max(operators + collectives, launches) + host                      the host works while the GPU waits
    step = max(operators + collectives, launches, host) + unhidden x host     asynchronous scheduling (vLLM 0.14 on)

``launches`` is what the host needs to launch every kernel one by one; replaying a captured graph spares it.

With speculative decoding the model verifies a draft, then the next one is made::

    step   = verification of k + 1 tokens of each sequence + draft           k: num_speculative_tokens
    draft  = one pass over what was just computed + (k - 1) passes of one token for each sequence
    tokens = 1 + p1 + ... + pk of each sequence, pi: share of steps that accept i drafted tokens or more

With one acceptance rate a, pi = a^i (Leviathan, Kalman and Matias, 2023, arXiv 2211.17192, equation 1). The passes are
those of vLLM's ``v1/spec_decode/eagle.py`` and ``draft_model.py``. The first covers prompts and all k + 1 tokens,
accepted or not. Only the last token gets logits. MTP modules and EAGLE layers run k times. For n-grams the host
searches the context of every request while the GPU is idle. V0 is timed alike; suffix trees are not."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, log, sqrt
from typing import Any, NamedTuple

from planner import engine
from planner.engine import EngineConfig, SpeculativeConfig, features_of, graph_batches, lone_steps, sorts, tagged
from planner.errors import InputError
from planner.hardware import GpuProfile, constant, constant_of
from planner.memory import known_draft, module_mixer
from planner.model import Component, Layer, Model, PerModel, Quantization, Weight, mtp_projections
from planner.timing.efficiencies import SAME_KERNELS, Efficiency
from planner.timing.fits import Calibration, efficiency_for
from planner.timing.links import collective_term, host_read_term, step_collectives
from planner.timing.operators import TILE_HEADS, Driver, StepLoad, adapter_operators, step_operators
from planner.timing.roofline import Row, TimedTerm, operator_term, sum_s

#: The drivers under names of their own: ``Driver.TOKENS`` takes as long to look up as a term to compute.
TOKENS, SAMPLED, DECODES, _, CONTEXT, PAIRS, EXPERTS = Driver
MOST_DECODES = 4096  #: numbers of decoding sequences for which all but the reading of their context is kept


class Batch(NamedTuple):
    """The work of one step. All zero is an empty step. A tuple, since a replay makes some for every request."""

    decode_seqs: int = 0
    decode_context_tok: float = 0.0  #: sum of context lengths over the decoding sequences
    prefill_seqs: int = 0  #: sequences that get prompt tokens in this step
    prefill_tok: int = 0  #: prompt tokens computed in this step
    prefill_pair_tok: float = 0.0  #: sum over chunks of new x (context before + (new + 1) / 2): (query, key) pairs
    prefill_finishing: int = 0  #: prompts that end in this step and so sample a token
    decode_query_tok: int = 1  #: tokens that each decoding sequence computes: 1, or drafted ones too
    decode_sampled: int = 1  #: how many of these get logits
    peer_tok: int | None = None  #: tokens that other DP ranks bring to the same experts; None: as many as these, each


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator, collective or the host in a step."""

    name: str
    count: int  #: kernels
    time_s: float
    flop: float
    bytes: float
    shares: Mapping[str, float]  #: of ``time_s`` by cause, s: memory, compute, launch, link, host link or host

    @property
    def bound(self) -> str:
        """The cause of the largest share."""
        return max(self.shares, key=lambda cause: self.shares[cause])


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """The parts of one step. ``total_s`` is not their sum where the host works beside the GPU."""

    parts: tuple[OperatorTime, ...]
    gpu_s: float  #: operators and collectives
    launch_s: float  #: what launching kernel by kernel takes; 0 for a captured graph
    host_s: float
    total_s: float


def distinct_experts(num_experts: Any, top_k: Any, tokens: Any, coverage_exponent: Any = 1.0) -> Any:
    """Expected number of experts touched: E (1 - (1 - k / E)^n), n = tokens^a: a below 1 for tokens that are alike."""
    several = tokens > 1  # below one token n is ``tokens`` itself
    independent = (several * tokens + (1 - several)) ** coverage_exponent * (several + (1 - several) * tokens)
    return num_experts * (1 - (1 - top_k / num_experts) ** independent)


def hottest_rows(rows: float, ranks: int, spread: float = 1.0) -> float:
    """Rows on the busiest of ``ranks`` that share ``rows`` at random: m + spread sqrt(2 m ln ranks), m the mean.

    The largest of n normal variables lies about sqrt(2 ln n) standard deviations above their mean (Cramér,
    "Mathematical Methods of Statistics", 1946, section 28.6). The deviation of a Poisson variable is sqrt(m)."""
    mean = rows / ranks
    return mean if ranks == 1 else mean + spread * sqrt(2 * mean * log(ranks))


def combine_shares(gpu_s: Any, launch_s: Any, host_s: Any, asynchronous: Any, unhidden: float) -> tuple[Any, Any, Any]:
    """Shares of the GPU's time, of launches and of the host's time in a step: numbers or arrays.

    The longer of GPU and launches counts. Asynchronous scheduling hides it, or all but ``unhidden`` of the host's time.
    """
    launches = launch_s > gpu_s
    busy_s = launches * launch_s + (1 - launches) * gpu_s
    behind_host = asynchronous * (host_s > busy_s)
    seen = 1 - behind_host
    return seen * (1 - launches), seen * launches, 1 + asynchronous * (unhidden - 1) + behind_host


class StepModel:
    """Seconds of the steps of one engine: ``model`` on ``profile`` under ``config``."""

    def __init__(
        self, model: Model, profile: GpuProfile, config: EngineConfig, efficiency: Efficiency | None = None
    ) -> None:
        """``efficiency``: by default ours. Raises PlannerError where the GPU lacks a dtype or a link."""
        self.model, self.profile, self.config = model, profile, config
        self.efficiency = efficiency or efficiency_for(model, profile, config)
        made_of = _parts_of(model, profile, config)
        self.terms, self._contexts, self.loads = made_of.terms, made_of.contexts, made_of.loads
        self.kernels = sum(term.count for term in self.terms if term.path == "memory")  #: launches of one step
        self.timed, self._rows = made_of.timed(self.efficiency)
        self._context_rows = tuple(row for row in self._rows if row[0] < len(self._contexts))
        self._other_rows = tuple(row for row in self._rows if row[0] >= len(self._contexts))
        self.decoding = lru_cache(maxsize=MOST_DECODES)(self._decoding)
        self.graphs = Graphs.of(config, profile)
        self._piece_kernels = int(constant("piece_launches")) * model.num_layers
        self._most_launch_s = max(self.kernels, self._piece_kernels) * self.efficiency.eager_launch_s
        self._lone = lone_steps(model, config, profile)
        kernels = SAME_KERNELS.get(profile.architecture, profile.architecture)
        self._prefill_pad, self._decode_pad = constant_of("prefill_pad", kernels), constant_of("decode_pad", kernels)
        self._tile = 16 if profile.platform == "rocm" else TILE_HEADS  # 16 rows of an MFMA; AITER's MLA takes 16 heads
        self._unhidden, self._row_spread = constant("unhidden_host"), constant("expert_row_spread")

    def __reduce__(self) -> tuple[Any, ...]:  # for another process, without its caches
        return type(self), (self.model, self.profile, self.config, self.efficiency)

    def step_s(self, batch: Batch, besides_s: float = 0.0) -> float:
        """Seconds of one engine step, and of ``besides_s`` on the GPU; 0 for an empty batch.

        With pipeline parallelism: the pass of one of the batches that fill the pipeline through all stages."""
        seqs = batch.decode_seqs + batch.prefill_seqs
        return self.total_s(self.device_s(batch) + besides_s, 0.0, self.host_s(seqs)) if seqs else 0.0

    def device_s(self, batch: Batch) -> float:
        """Seconds of a step on the GPU alone: the cost of a pass that the scheduler does not see."""
        if batch.prefill_seqs or any(batch[3:6]):
            gpu_s = sum_s(self._rows, self.drivers(batch, self.loads))
            return gpu_s if gpu_s >= self._most_launch_s else max(gpu_s, self._launch_s(batch))
        return self.decoding(batch.decode_seqs, *batch[6:])(batch.decode_context_tok)

    def _decoding(self, seqs: int, query_tok: int, sampled: int, peer_tok: int | None) -> Callable[[float], float]:
        """``device_s`` of steps that decode ``seqs`` sequences, by the tokens of their contexts together."""
        batch = Batch(seqs, decode_query_tok=query_tok, decode_sampled=sampled, peer_tok=peer_tok)
        beside_s, rows = sum_s(self._other_rows, self.drivers(batch, self.loads)), self._context_rows
        share, most_tok = self._shares(batch)[0], self.graphs.max_context_tok * max(seqs * query_tok, 1)
        readings = [(load.ratio, *self._reading(load, seqs * share, query_tok)) for load in self._contexts]
        graph_s, eager_s = self._launch_s(batch), self.kernels * self.efficiency.eager_launch_s

        def device_s(context_tok: float) -> float:
            drivers = []
            for ratio, most, pads, rows_each in readings:
                units = min(context_tok * share / ratio, most) + pads
                drivers.append((units, units * rows_each))
            return max(beside_s + sum_s(rows, drivers), graph_s if context_tok * query_tok <= most_tok else eager_s)

        return device_s

    def _reading(self, load: StepLoad, decodes: float, query_tok: int) -> tuple[float, float, float]:
        """Rows of the cache that sequences read at most, once whatever asks; those that pad them; queries of each."""
        queries = load.heads * query_tok
        rows_each = ceil(queries / self._tile) * self._tile / load.heads if queries else query_tok
        return inf if load.span == inf else decodes * load.span, load.pads * self._decode_pad * decodes, rows_each

    def breakdown(self, batch: Batch) -> StepBreakdown:
        if not batch.decode_seqs + batch.prefill_seqs:
            return StepBreakdown((), 0.0, 0.0, 0.0, 0.0)
        drivers = self.drivers(batch, self.loads)
        done = self.drivers(batch, [replace(load, pads=0.0, heads=0.0) for load in self.loads])
        parts = [self._part(one, drivers[one.load], *done[one.load]) for one in self.timed if drivers[one.load][0]]
        gpu_s = sum(part.time_s for part in parts)
        host_s, launch_s = self.host_s(batch.decode_seqs + batch.prefill_seqs), self._launch_s(batch)
        parts.append(OperatorTime("host", 1, host_s, 0.0, 0.0, {"host": host_s}))
        return StepBreakdown(tuple(parts), gpu_s, launch_s, host_s, self.total_s(gpu_s, launch_s, host_s))

    def _part(self, timed: TimedTerm, padded: tuple[float, float], units: float, rows: float) -> OperatorTime:
        term = timed.term
        moved_bytes = term.fixed_bytes + units * term.bytes_per_unit + rows * term.bytes_per_row
        time_s, shares = timed.time_s(*padded), timed.shares(*padded)
        return OperatorTime(term.name, term.count, time_s, rows * term.flop_per_row, moved_bytes, shares)

    def total_s(self, gpu_s: float, launch_s: float, host_s: float) -> float:
        gpu, launch, host = combine_shares(gpu_s, launch_s, host_s, self.config.async_scheduling, self._unhidden)
        total_s: float = gpu * gpu_s + launch * launch_s + host * host_s
        return total_s

    def host_s(self, seqs: int) -> float:
        visit_s = self.efficiency.host_step_s + self.efficiency.host_seq_s * seqs
        return visit_s / self.config.num_scheduler_steps

    def _shares(self, batch: Batch) -> tuple[float, float]:
        """Shares of the decodes and of the prompts in one of the batches that are under way in a pipeline of p stages.

        A prompt passes all stages whole; others wait. Chunks in its middle, and several that go on, fill the pipeline.
        """
        stages = self.config.pipeline_parallel_size
        if stages == 1 or self._lone == "all":
            return 1.0, 1.0
        if self._lone == "sampling":
            sampling = min(1.0, batch.decode_seqs + batch.prefill_finishing)  # in a mean of steps, a part of them
            return (sampling + (1.0 - sampling) / stages,) * 2
        whole, prompts, tok = batch.decode_seqs + batch.prefill_seqs, batch.prefill_seqs, batch.prefill_tok
        first = prompts == 1 and batch.prefill_pair_tok <= tok * (tok + 1) / 2  # no context before
        going_on = prompts > batch.prefill_finishing and not first
        filled = stages if going_on else max(1.0, min(stages, prompts))
        return 1.0 / max(1.0, min(stages, whole)), 1.0 / filled

    def _launch_s(self, batch: Batch) -> float:
        return self.eager_kernels(batch) * self.efficiency.eager_launch_s

    def eager_kernels(self, batch: Batch) -> int:
        """Kernels that the host launches one by one; between the pieces of a graph of prompts those of attention."""
        pieces = self._piece_kernels if batch.prefill_tok else 0
        return pieces if self.graphs.holds(batch) else self.kernels

    def drivers(self, batch: Batch, loads: Sequence[StepLoad]) -> list[tuple[float, float]]:
        """The units and rows of each of ``loads``."""
        share, filled = self._shares(batch)
        decodes, context = batch.decode_seqs * share, batch.decode_context_tok * share
        prefill, pairs = batch.prefill_tok * filled, batch.prefill_pair_tok * filled
        query_tok = batch.decode_query_tok
        tokens = decodes * query_tok + prefill
        sampled = decodes * batch.decode_sampled + batch.prefill_finishing * filled
        drivers: list[tuple[float, float]] = []
        for load in loads:
            driver = load.driver
            if driver is TOKENS:
                units, rows = tokens, tokens
            elif driver is CONTEXT:
                most, pads, rows_each = self._reading(load, decodes, query_tok)
                units = min(context / load.ratio, most) + pads
                rows = units * rows_each
            elif driver is PAIRS:
                most = inf if load.span == inf else prefill * load.span
                units = rows = min(pairs / load.ratio, most) + load.pads * self._prefill_pad * prefill
            elif driver is EXPERTS:
                units, rows = self._experts(load, self.expert_tok(load, batch))
            elif driver is SAMPLED:
                units, rows = sampled, sampled
            elif driver is DECODES:
                # a state is read once, and written after each token: any of them may be the last accepted one
                units, rows = decodes * (1 + query_tok) / 2, decodes * query_tok
            else:
                units, rows = prefill, prefill
            drivers.append((units, rows))
        return drivers

    def expert_tok(self, load: StepLoad, batch: Batch) -> float:
        """Tokens of all DP ranks that meet at the experts of one layer."""
        share, filled = self._shares(batch)
        tokens = batch.decode_seqs * share * batch.decode_query_tok + batch.prefill_tok * filled
        return tokens * load.peers if batch.peer_tok is None else tokens + batch.peer_tok * share

    def _experts(self, load: StepLoad, tokens: float) -> tuple[float, float]:
        touched = distinct_experts(load.num_experts, load.top_k, tokens, self.efficiency.coverage_exponent)
        return touched / load.ranks, hottest_rows(tokens * load.top_k, load.ranks, self._row_spread)


@dataclass(frozen=True, slots=True)
class Graphs:
    max_tok: int  #: largest batch, tokens
    prefill: bool  #: steps with prompt tokens too, if piece by piece
    max_context_tok: float  #: longest context of a decoding sequence

    def holds(self, batch: Batch) -> bool:
        """Return True if a step of ``batch`` replays a graph."""
        query_tok = batch.decode_query_tok
        decode_tok, context_tok = batch.decode_seqs * query_tok, batch.decode_context_tok * query_tok
        fits = decode_tok + batch.prefill_tok <= self.max_tok and (self.prefill or not batch.prefill_tok)
        return fits and context_tok <= self.max_context_tok * max(decode_tok, 1)

    @classmethod
    def of(cls, config: EngineConfig, profile: GpuProfile) -> "Graphs":
        """vLLM's defaults: V0 captures decode steps (before 0.6 up to 8,192 tokens of context), V1 any step."""
        features = features_of(config, profile)
        sizes = graph_batches(config, features)
        most_context_tok = 8192 if config.version.release < (0, 6) else inf
        return cls(sizes[-1] if sizes else 0, features.graph_mode != "decode", most_context_tok)


class _Parts:
    def __init__(self, model: Model, profile: GpuProfile, config: EngineConfig) -> None:
        self.profile = profile
        #: operators, collectives and reads from the host, in the order of a breakdown
        operators = (*step_operators(model, config, sorts=sorts(config, profile)), *adapter_operators(model, config))
        read = host_read_term(model, profile, config)
        self.terms = (
            *(operator_term(operator, profile) for operator in operators),
            *(collective_term(collective, profile) for collective in step_collectives(model, profile, config)),
            *((read,) if read else ()),
        )
        loads = dict.fromkeys(term.load for term in self.terms)
        self.contexts = [load for load in loads if load.driver is CONTEXT]
        self.loads = self.contexts + [load for load in loads if load.driver is not CONTEXT]
        self._timed: dict[Efficiency, tuple[list[TimedTerm], tuple[Row, ...]]] = {}

    def timed(self, efficiency: Efficiency) -> tuple[list[TimedTerm], tuple[Row, ...]]:
        if efficiency not in self._timed:
            values = efficiency.__getattribute__
            timed = [TimedTerm.of(term, self.loads.index(term.load), values) for term in self.terms]
            self._timed[efficiency] = timed, tuple(one.row for one in timed)
        return self._timed[efficiency]


_cache: PerModel[list[_Parts]] = PerModel(lambda _model, _gpu, _config: [])


def _parts_of(model: Model, profile: GpuProfile, config: EngineConfig) -> _Parts:
    """Cached: engines that differ in the limits of a step alone share them."""
    cached = _cache(model, profile.id, config.changed(**dict.fromkeys(tagged("batch"), 0)))
    if not cached or cached[0].profile is not profile:
        cached[:] = [_Parts(model, profile, config)]
    return cached[0]


class SpeculativeStep:
    """Seconds of the steps of an engine that drafts. Batches count decoding sequences, not drafted tokens."""

    def __init__(self, target: StepModel, drafter: StepModel | None, speculative: SpeculativeConfig) -> None:
        self.target, self.drafter, self._speculative = target, drafter, speculative
        self.drafted_tok = speculative.num_speculative_tokens
        self._search_s = constant("ngram_search") if speculative.method == "ngram" else 0.0
        self.efficiency: Efficiency = target.efficiency
        self._decoding_s = lru_cache(maxsize=MOST_DECODES)(self._decoding)

    def __reduce__(self) -> tuple[Any, ...]:  # for another process, without its caches
        return type(self), (self.target, self.drafter, self._speculative)

    def step_s(self, batch: Batch) -> float:
        """Seconds of one engine step, draft included; 0 for an empty batch."""
        if batch.decode_seqs and not (batch.prefill_seqs or any(batch[3:6])):
            return self._decoding_s(batch.decode_seqs, *batch[7:])(batch.decode_context_tok)
        return self.target.step_s(self.verified(batch), self.draft_s(batch)) + self._search_s * batch.decode_context_tok

    def draft_s(self, batch: Batch) -> float:
        """Seconds that the GPU drafts in the step of ``batch``."""
        return sum(passes * drafter.device_s(drafted) for drafter, passes, drafted in self._passes(batch))

    def _decoding(self, seqs: int, sampled: int, peer_tok: int | None) -> Callable[[float], float]:
        """``step_s`` of steps that decode ``seqs`` sequences, by the tokens of their contexts together."""
        target, tok, search_s = self.target, self.drafted_tok + 1, self._search_s
        verified_s, host_s = target.decoding(seqs, tok, tok, peer_tok), target.host_s(seqs)
        passes = self._passes(Batch(seqs, decode_sampled=sampled, peer_tok=peer_tok))
        drafts = [(count, one[1], drafter.decoding(one[0], *one[6:])) for drafter, count, one in passes]

        def step_s(context_tok: float) -> float:
            draft_s = sum([count * time_s(context_tok + more_tok) for count, more_tok, time_s in drafts])
            return target.total_s(verified_s(context_tok) + draft_s, 0.0, host_s) + search_s * context_tok

        return step_s

    def breakdown(self, batch: Batch) -> StepBreakdown:
        """A step part by part; the names of drafting parts start with ``draft:``."""
        verification = self.target.breakdown(self.verified(batch))
        *parts, host = verification.parts or (None,)
        drafts, search_s = tuple(self._draft_parts(batch)), self._search_s * batch.decode_context_tok
        search = OperatorTime("draft: n-gram search", 1, search_s, 0.0, 0.0, {"host": search_s}) if search_s else None
        return StepBreakdown(
            parts=tuple(part for part in (*parts, *drafts, search, host) if part),
            gpu_s=verification.gpu_s + sum(part.time_s for part in drafts),
            launch_s=verification.launch_s,
            host_s=verification.host_s + search_s,
            total_s=self.step_s(batch),
        )

    def verified(self, batch: Batch) -> Batch:
        """The batch that the model computes in the step of ``batch``: drafted tokens too."""
        tok = self.drafted_tok + 1
        return Batch(*batch[:6], tok, tok, batch.peer_tok)  # every step asks: half the time of ``_replace``

    def _passes(self, batch: Batch) -> Iterator[tuple[StepModel, int, Batch]]:
        """The drafter, the batches that pass through it, and how often; later passes count at their mean context."""
        if self.drafter is None or not batch.decode_seqs + batch.prefill_seqs:
            return
        yield self.drafter, 1, Batch(*batch[:6], self.drafted_tok + 1, batch.decode_sampled, batch.peer_tok)
        if later := self.drafted_tok - 1:
            seqs = batch.decode_seqs + batch.prefill_seqs
            yield self.drafter, later, Batch(seqs, batch.decode_context_tok + seqs * self.drafted_tok / 2)

    def _draft_parts(self, batch: Batch) -> Iterator[OperatorTime]:
        merged: dict[str, OperatorTime] = {}
        for drafter, passes, drafted in self._passes(batch):
            for part in drafter.breakdown(drafted).parts:
                if part.bound == "host":
                    continue
                old = merged.get(part.name, OperatorTime(f"draft: {part.name}", 0, 0.0, 0.0, 0.0, {}))
                added = {name: passes * getattr(part, name) for name in ("count", "time_s", "flop", "bytes")}
                sums: dict[str, Any] = {name: getattr(old, name) + more for name, more in added.items()}
                sums["shares"] = {why: old.shares.get(why, 0.0) + passes * s for why, s in part.shares.items()}
                merged[part.name] = replace(old, **sums)
        yield from merged.values()


def speculative_step(target: StepModel, draft: Model | None, calibration: Calibration | None = None) -> SpeculativeStep:
    """Steps of ``target`` with drafts, of the second model ``draft``. Raises InputError for an unknown acceptance."""
    speculative = target.config.speculative_config
    if speculative is None:
        raise ValueError("the settings do not ask for drafts")
    if not speculative.acceptance_rates:
        raise InputError(
            f"{engine.FLAG}: the share of drafted tokens that is accepted is not known: it depends on the model, the "
            "draft and the text",
            hint=f"add {engine.RATE_FLAG}, such as 0.7; a running vLLM logs it, position by position",
        )
    for key in sorted(engine.UNTIMED & json.loads(speculative.text or "{}").keys()):
        raise InputError(f"{engine.FLAG}: the time of {key!r} is not modelled", hint=f"leave {key} out")
    return SpeculativeStep(target, _drafter(target, speculative, draft, calibration), speculative)


def _drafter(
    target: StepModel, speculative: SpeculativeConfig, draft: Model | None, calibration: Calibration | None
) -> StepModel | None:
    config = replace(
        target.config, speculative_config=None, pipeline_parallel_size=1, lora=None, cpu_offload_gb=0.0,
        max_cudagraph_capture_size=target.graphs.max_tok or None,  # both replay graphs of the same sizes
    )  # fmt: skip
    if speculative.method == "mtp":
        return StepModel(module_model(target.model), target.profile, config, target.efficiency)
    if not speculative.has_draft_model:
        return None
    model = known_draft(speculative, draft)
    if speculative.method == "eagle":  # one more matrix: the layer takes embedding and hidden state
        last, width = model.layers[-1], model.hidden_size
        fc = Weight("fc", Component.MLP, (width, 2 * width), linear=True)
        model = replace(model, layers=(*model.layers[:-1], Layer((*last.weights, fc), last.mixer, last.moe)))
    config = replace(
        config,
        tensor_parallel_size=speculative.draft_tensor_parallel_size or config.tensor_parallel_size,
        enable_expert_parallel=config.enable_expert_parallel and model.is_moe,
        data_parallel_size=config.data_parallel_size if model.is_moe else 1,
        weight_dtype=model.quantization.weight_dtype,
        quantization=None,
    )
    efficiency = efficiency_for(model, target.profile, config, calibration)
    return StepModel(model, target.profile, config, efficiency)


def module_model(model: Model) -> Model:
    """One multi-token-prediction module as a model: the last layer with its attention, its projection and lm_head."""
    mixer = module_mixer(model)
    layer = next(layer for layer in reversed(model.layers) if layer.mixer == mixer)
    projection = mtp_projections(model.mtp)[0]
    weights = (*layer.weights, replace(projection, component=Component.MLP))
    return replace(
        model,
        layers=(Layer(weights, layer.mixer, layer.moe),),
        mtp=(),
        vision=(),
        quantization=_module_quantization(model),
    )


def _module_quantization(model: Model) -> Quantization:
    """One precision for the module's matrices and one for its experts, by their own names."""
    whole = model.quantization
    names = {w.name: "expert" if w.copies > 1 else "linear" for w in model.mtp if w.linear and len(w.shape) == 2}
    kinds = {
        kind: whole.precision_of(name, linear=True, routed_expert=kind == "expert")
        for name, kind in reversed(names.items())
        if kind == "expert" or ".self_attn." in name
    }
    linear_precision = kinds.get("linear", whole.base)
    return replace(
        whole, linear=linear_precision, expert=kinds.get("expert"), rules=(), method=whole.method or "module"
    )
