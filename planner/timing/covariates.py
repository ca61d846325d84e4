"""Covariates of an engine: what its efficiencies may depend on. And which of its steps replay a captured graph."""

from __future__ import annotations

from dataclasses import dataclass

from planner.engine import EngineConfig, features_of, graph_batches
from planner.hardware import GpuProfile
from planner.model import Attention, CompressedAttention, LatentAttention, Model, StateMixer
from planner.timing.links import joined_nodes

#: Architectures that vLLM serves with the kernels of another one: they differ in their peaks only.
SAME_KERNELS = {"sm_103": "sm_100"}


def covariates_of(model: Model, profile: GpuProfile, config: EngineConfig) -> dict[str, str]:
    """What the efficiencies of an engine may depend on, as words.

    ``machine`` stands for what differs between two with the same GPUs, ``gpu`` is the whole GPU of a partition,
    ``partition`` its mode or empty, ``nodes`` how many a network joins or empty, ``release`` the major and minor
    version of vLLM, ``kind`` dense or moe, and ``shape`` one architecture at one size, whoever trained it.
    """
    nodes = joined_nodes(model, profile, config)
    return {
        "machine": "",  # the user's own
        "gpu": profile.whole,
        "partition": profile.partition.compute_mode if profile.partition else "",
        "architecture": SAME_KERNELS.get(profile.architecture, profile.architecture),
        "platform": profile.platform,
        "links": profile.interconnect.kind,
        "nodes": str(nodes) if nodes > 1 else "",
        "generation": engine_generation(config, profile),
        "release": ".".join(map(str, config.version.release[:2])),
        "weights": config.weight_dtype,
        "attention": attention_class(model),
        "kind": "moe" if model.is_moe else "dense",
        "shape": f"{model.model_type or model.architecture}-{model.num_layers}x{model.hidden_size}",
        "tp": str(config.tensor_parallel_size),
    }


def attention_class(model: Model) -> str:
    """``mha`` (grouped or not), ``window``, ``mla``, ``sparse`` (an indexer picks), ``hybrid`` (with states)."""
    mixers = list(model.mixers())
    if any(isinstance(m, StateMixer) for m in mixers):
        return "hybrid"
    if any(isinstance(m, CompressedAttention) or getattr(m, "indexer", None) for m in mixers):
        return "sparse"
    if any(isinstance(m, LatentAttention) for m in mixers):
        return "mla"
    return "window" if any(isinstance(m, Attention) and m.span_tokens for m in mixers) else "mha"


def engine_generation(config: EngineConfig, profile: GpuProfile) -> str:
    """The generation of the engine: versions that share the way they schedule and capture graphs.

    ``v0``; ``v1`` (graphs leave attention out), ``v1-full`` (graphs of whole decode steps), ``v1-async`` (scheduling
    overlaps the GPU); ``atom`` (AMD's plugin).
    """
    if config.version.build == "vllm+atom-plugin":
        return "atom"
    if config.engine == "V0":
        return "v0"
    found = features_of(config, profile)
    if found.async_scheduling:
        return "v1-async"
    return "v1-full" if found.graph_mode == "full-and-piecewise" else "v1"


@dataclass(frozen=True, slots=True)
class Graphs:
    """Which steps replay a captured graph."""

    max_tok: int  #: largest batch, tokens
    prefill: bool  #: steps with prompt tokens too, if piece by piece
    max_context_tok: float  #: longest context of a decoding sequence

    def holds(self, decode_seqs: float, decode_context_tok: float, prefill_tok: float) -> bool:
        """Whether a step of such a batch replays a graph."""
        fits = decode_seqs + prefill_tok <= self.max_tok and (self.prefill or not prefill_tok)
        return fits and decode_context_tok <= self.max_context_tok * max(decode_seqs, 1)


def graphs(config: EngineConfig, profile: GpuProfile) -> Graphs:
    """vLLM's defaults: V0 captures decode steps, V1 any step.

    V0 before 0.6 ran eager beyond a context of 8,192 tokens (``max_context_len_to_capture``); runs of later V0
    releases show no such step.
    """
    found = features_of(config, profile)
    sizes = graph_batches(config, found)
    short = config.version.release < (0, 6)
    return Graphs(sizes[-1] if sizes else 0, found.graph_mode != "decode", 8192 if short else float("inf"))
