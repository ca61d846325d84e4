"""A model: every weight and every token mixer, layer by layer. Parameters, bytes, shards and FLOP all follow from
the list of weights. Shapes are as in the checkpoint: ``(out_features, in_features)`` for linear weights."""

import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from math import prod
from typing import Any, Generic, TypeVar

from planner.model.precision import Precision, Quantization


class Component(StrEnum):
    EMBEDDING = "embedding"
    ATTENTION = "attention"
    STATE = "state"  # linear attention and state-space mixers
    MLP = "mlp"
    ROUTER = "router"
    SHARED_EXPERT = "shared_expert"
    ROUTED_EXPERT = "routed_expert"
    NORM = "norm"
    LM_HEAD = "lm_head"
    VISION = "vision"
    MTP = "mtp"  # multi-token-prediction modules: loaded only for speculative decoding


class Shard(StrEnum):
    NONE = "none"  # a full copy on every rank
    COLUMN = "column"  # along the output features
    ROW = "row"  # along the input features
    VOCAB = "vocab"  # along the vocabulary, which vLLM pads to a multiple of 64
    EXPERT_COLUMN = "expert_column"  # of a routed expert: as COLUMN, or whole experts with EP
    EXPERT_ROW = "expert_row"  # of a routed expert: as ROW, or whole experts with EP

    @property
    def of_experts(self) -> bool:
        return self in (Shard.EXPERT_COLUMN, Shard.EXPERT_ROW)


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter tensor, or ``copies`` identical ones (the experts of a layer)."""

    name: str  #: module path inside its layer, as in the checkpoint: ``self_attn.q_proj``
    component: Component
    shape: tuple[int, ...]
    copies: int = 1
    shard: Shard = Shard.NONE
    max_shards: int | None = None  #: most pieces that it is cut into; ranks beyond that repeat them (KV heads)
    linear: bool = False  #: a matrix that tokens are multiplied with; quantisation applies to these

    @property
    def params(self) -> int:
        return self.copies * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own KV heads: MHA, GQA or MQA."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None  #: sliding window, tokens
    chunk: int | None = None  #: chunked attention (Llama 4), tokens
    cross: bool = False  #: keys and values come from the encoder, not from the text
    shared: bool = False  #: reads the cache of an earlier layer and keeps none of its own
    indexer: "SparseIndexer | None" = None  #: sparse attention (MiniMax-M3): what picks the blocks that are read

    @property
    def kv_elements_per_token(self) -> int:
        return self.num_kv_heads * (self.head_dim + self.v_head_dim)

    @property
    def span_tokens(self) -> int | None:
        """Tokens that a query can see at most; None means all."""
        return self.window or self.chunk


@dataclass(frozen=True, slots=True)
class SparseIndexer:
    """A light scorer that picks the ``top_k`` tokens that attention reads (DeepSeek sparse attention). (0, 0) heads:
    the layer reuses what an earlier layer picked; nothing is scored or cached."""

    num_heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one compressed row per token, the same on every rank."""

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    indexer: SparseIndexer | None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token: the latent and the rotary key."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek-V4: one shared KV head, a sliding window, and beyond it one row per ``compress_ratio`` tokens."""

    num_heads: int
    head_dim: int
    window: int
    compress_ratio: int  #: 0 keeps the window only
    indexer: SparseIndexer | None = None


@dataclass(frozen=True, slots=True)
class StateMixer:
    """Linear attention or a state-space layer: a state of fixed size per sequence instead of a KV cache."""

    kind: str  #: ``mamba``, ``mamba2``, ``gdn`` (gated delta net), ``kda``, ``lightning``
    conv_elements: int  #: convolution state per sequence, elements
    recurrent_elements: int  #: recurrent state per sequence, elements
    num_heads: int  #: heads of the recurrent state; tensor parallelism divides them
    recurrent_dtype: str | None = None  #: of the recurrent state, where the checkpoint asks for one; None: the model's


Mixer = Attention | LatentAttention | CompressedAttention | StateMixer


@dataclass(frozen=True, slots=True)
class Moe:
    num_experts: int
    top_k: int
    intermediate_size: int  #: of one routed expert
    num_shared_experts: int = 0
    groups: int = 1  #: of experts
    top_groups: int = 1  #: that the experts of a token come from


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One decoder layer: at most one token mixer, at most one MoE, and all weights. Identical layers are one object."""

    weights: tuple[Weight, ...]
    mixer: Mixer | None = None
    moe: Moe | None = None

    @property
    def params(self) -> int:
        return sum(w.params for w in self.weights)

    @property
    def active_params(self) -> int:
        """Parameters that one token passes through: those of ``top_k`` routed experts, and all others."""
        if self.moe is None:
            return self.params
        routed = sum(w.params for w in self.weights if w.component is Component.ROUTED_EXPERT)
        return self.params - routed + routed * self.moe.top_k // self.moe.num_experts


@dataclass(frozen=True, slots=True)
class LayerKind:
    layer: Layer
    precisions: tuple[Precision, ...]  #: of each of its weights
    indices: tuple[int, ...]  #: which layers of the model they are


@dataclass(frozen=True, kw_only=True)
class ModelParts:
    """The result of a family: everything about a model but names, dtype and quantisation."""

    layers: tuple[Layer, ...]
    outer: tuple[Weight, ...]  #: embeddings, final norm, lm_head; a tied lm_head appears once, as the embedding
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int  #: the model's own context, tokens
    tied_embeddings: bool = False
    unstretched_tokens: int | None = None  #: the context before LongRoPE stretches it
    vision: tuple[Weight, ...] = ()
    mtp: tuple[Weight, ...] = ()
    layer_prefix: str = "model.layers."  #: what quantisation ignore lists call a layer: prefix + index
    requires_remote_code: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Model(ModelParts):
    id: str  #: hub id or path that the facts belong to
    architecture: str  #: class name in ``config.json``, such as ``LlamaForCausalLM``
    model_type: str
    dtype: str  #: ``bf16``, ``fp16`` or ``fp32``: of everything that is not quantised
    quantization: Quantization
    gated: bool | None = None

    def __repr__(self) -> str:
        return f"Model({self.id}, {self.total_params / 1e9:,.2f} billion parameters)"

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def total_params(self) -> int:
        """All parameters that the main model holds: vision towers included, MTP modules not."""
        return sum(layer.params for layer in self.layers) + sum(w.params for w in (*self.outer, *self.vision))

    @property
    def active_params(self) -> int:
        """Parameters that one text token passes through: embeddings and lm_head counted, vision not."""
        return sum(layer.active_params for layer in self.layers) + sum(w.params for w in self.outer)

    @property
    def is_moe(self) -> bool:
        return any(layer.moe for layer in self.layers)

    @property
    def num_heads(self) -> int:
        """Query heads of the attention layers (0 for a pure state-space model)."""
        return max((m.num_heads for m in self.distinct_mixers if not isinstance(m, StateMixer)), default=0)

    def precision_of(self, weight: Weight, layer: int | None = None) -> Precision:
        """Precision that ``weight`` is stored in; ``layer`` is the index of the layer that it is in, if any."""
        path = weight.name if layer is None else f"{self.layer_prefix}{layer}.{weight.name}"
        return self.quantization.precision_of(path, linear=weight.linear, routed_expert=weight.shard.of_experts)

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        indices: dict[Hashable, list[int]] = {}
        for index, layer in enumerate(self.layers):
            indices.setdefault((id(layer), self.quantization.variant(index)), []).append(index)
        kinds = []
        for same in indices.values():
            layer = self.layers[same[0]]
            precisions = tuple(self.precision_of(weight, same[0]) for weight in layer.weights)
            kinds.append(LayerKind(layer, precisions, tuple(same)))
        return tuple(kinds)

    def mixers(self) -> Iterable[Mixer]:
        return (layer.mixer for layer in self.layers if layer.mixer is not None)

    @cached_property
    def distinct_mixers(self) -> tuple[Mixer, ...]:
        """Each different mixer once, in the order of the layers."""
        return tuple(dict.fromkeys(self.mixers()))

    def params_by_component(self) -> dict[Component, int]:
        """MTP modules included."""
        counts = dict.fromkeys(Component, 0)
        for weight in chain(self.outer, *(layer.weights for layer in self.layers), self.vision, self.mtp):
            counts[weight.component] += weight.params
        return counts


T = TypeVar("T")


class PerModel(Generic[T]):
    """A memo of ``work`` by model and further arguments, as long as the model lives. A look-up costs a microsecond."""

    def __init__(self, work: Callable[..., T]) -> None:
        self.work = work
        self._results: dict[int, dict[Hashable, T]] = {}

    def __call__(self, model: Model, *arguments: Any) -> T:
        known = self._results.get(id(model))
        if known is None:
            known = self._results[id(model)] = {}
            weakref.finalize(model, self._results.pop, id(model), None)
        if arguments not in known:
            known[arguments] = self.work(model, *arguments)
        return known[arguments]
