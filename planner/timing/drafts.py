"""Time of a step with speculative decoding: the model verifies a draft, then the next one is made.

::

    step   = verification of k + 1 tokens of each sequence + draft           k: num_speculative_tokens
    draft  = one pass over what was just computed + (k - 1) passes of one token for each sequence
    tokens = 1 + p1 + ... + pk of each sequence, pi: share of steps that accept i drafted tokens or more

With one acceptance rate a, pi = a^i (Leviathan, Kalman and Matias, 2023, arXiv 2211.17192, equation 1). The passes are
those of vLLM's ``v1/spec_decode/eagle.py`` and ``draft_model.py``. The first covers prompts and all k + 1 tokens,
accepted or not. Only the last token gets logits. MTP modules and EAGLE layers run k times. For n-grams the host
searches the context of every request while the GPU is idle. V0 is timed alike; suffix trees are not."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from planner.engine import FLAG, RATE_FLAG, UNTIMED, SpeculativeConfig
from planner.errors import InputError
from planner.hardware import constant
from planner.memory import known_draft, module_mixer
from planner.model import Component, Layer, Model, Quantization, Weight, mtp_projections
from planner.timing.efficiencies import Efficiency
from planner.timing.fits import Calibration, efficiency_for
from planner.timing.step import MOST_DECODES, Batch, OperatorTime, StepBreakdown, StepModel


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
            f"{FLAG}: the share of drafted tokens that is accepted is not known: it depends on the model, the draft "
            "and the text",
            hint=f"add {RATE_FLAG}, such as 0.7; a running vLLM logs it, position by position",
        )
    for key in sorted(UNTIMED & json.loads(speculative.text or "{}").keys()):
        raise InputError(f"{FLAG}: the time of {key!r} is not modelled", hint=f"leave {key} out")
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
