"""Bytes of weights on each rank as vLLM loads them ("Model loading took N GiB").

::

    bytes of a stage = sum over its weights of  copies on the rank x stored bytes of the rank's piece

The rank's piece is ``planner.engine.held_piece``; ``planner.timing`` reads the same bytes in a step. Stored bytes
count scales and zero points. MTP modules are loaded only where they draft (``memory.extras``). A tied lm_head costs
nothing on one stage, and a second embedding on the last of several. The table of rotary cosines and sines comes on
top, one row for each position of the model's own context: vLLM makes it while it loads. Re-packing at load time is
left out, except for MXFP4 experts, whose kernels pad every shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from planner.engine import Layout, held_heads, held_piece, stage_sizes
from planner.model import UNQUANTIZED, Attention, Component, LatentAttention, Model, PerModel, Precision, Shard, Weight

#: (intermediate, hidden) multiples that the kernels of MXFP4 experts pad a shard to, by the GPU's architecture.
#: From vLLM 0.32's ``mxfp4_round_up_hidden_size_and_intermediate_size``; Hopper's from gpt-oss-120b's logged
#: 64.38 GiB, where the layout pads the output features. Elsewhere, and where it is asked for, Marlin runs: logged 65.97
#: GiB on H100, and 66.14, 34.38, 17.22 and 8.66 GiB at TP 1 to 8 on H200.
EXPERT_PADDING = {
    "sm_90": (256, 1), "sm_90a": (256, 1), "sm_100": (256, 256), "sm_103": (256, 256),
    "gfx942": (256, 256), "gfx950": (256, 256),
}  # fmt: skip
MARLIN_PADDING = (128, 256)
#: Stands for the architecture where Marlin's kernels are asked for.
MARLIN = "marlin"
#: Size of the rotary table where it is not positions x head_dim, by model type. Part of a head turns
#: (``partial_rotary_factor`` of config.json, or ``rotary_dim`` over ``head_dim``); positions of images take four times
#: the rows (``cache_max_position_num`` of ``mrope.py``, and Qwen3.5 turns a quarter of a head); a linear scaling
#: multiplies them (``linear_scaling_rope.py``): eight times in Gemma 3, whose windows have a table of their own.
ROTARY_SIZE = {
    "qwen3_next": 0.25, "glm4_moe": 0.5, "minimax_m2": 0.5, "minimax_m3": 0.5, "minimax_m3_vl": 0.5,
    "mimo_v2_flash": 0.334, "qwen2_vl": 4, "qwen2_5_vl": 4, "qwen3_vl": 4, "qwen3_vl_moe": 4, "gemma3": 9,
    "gemma3_text": 2,
}  # fmt: skip


@dataclass(frozen=True)
class RankWeights:
    """Weights on each rank of one pipeline stage, bytes."""

    layers: range  #: of this stage
    by_component: dict[Component, int]
    by_dtype: dict[str, int]
    rotary_bytes: int  #: the table of rotary cosines and sines
    absorbed_bytes: int = 0  #: products of latent projections that V0 keeps beside them
    draft_bytes: int = 0  #: of the draft (``memory.extras``): MTP modules, a second model
    lora_bytes: int = 0  #: of LoRA adapters
    offloaded_bytes: int = 0  #: of the weights, those in host memory

    @cached_property
    def weight_bytes(self) -> int:
        """Parameters and scales of the rank, the draft's included."""
        return sum(self.by_component.values()) + self.draft_bytes

    @cached_property
    def loaded_bytes(self) -> int:
        """What "Model loading took" counts: weights on the GPU, products of them, adapters and rotary table."""
        return self.weight_bytes - self.offloaded_bytes + self.absorbed_bytes + self.lora_bytes + self.rotary_bytes


def stage_weights(
    model: Model, layout: Layout, dtype: str, *, architecture: str = "", remainder_last: bool = False
) -> tuple[RankWeights, ...]:
    """Weights on each rank, stage by stage, bytes.

    ``dtype`` (bf16, fp16, fp32) is the engine's, of everything that is not quantised; ``architecture`` is the
    GPU's (``sm_90``, ``gfx942``), which decides how MXFP4 experts are padded, or ``MARLIN`` where its kernels are asked
    for; ``remainder_last`` splits layers as vLLM did before 0.8.0.
    """
    return _stages(model, layout, dtype, architecture, remainder_last)


def with_absorbed(stages: tuple[RankWeights, ...], model: Model, layout: Layout, dtype: str) -> tuple[RankWeights, ...]:
    """``stages`` with the products of latent projections on each rank."""
    return tuple(replace(s, absorbed_bytes=absorbed_bytes(model, layout, dtype, s.layers)) for s in stages)


def absorbed_bytes(model: Model, layout: Layout, dtype: str, layers: range) -> int:
    """What V0 of 0.7.1 to 0.7.3 computes for MLA while it loads, on a rank that holds ``layers``, bytes.

    The products of query and key up-projections and of value and output projections, as precise as the weights; the
    rotary part of the query projection and the up-projections themselves, in 16 bits (``process_weights_after_loading``
    of ``attention/backends/mla/utils.py``).
    """
    found = 0
    for kind in model.layer_kinds:
        mixer, times = kind.layer.mixer, sum(index in layers for index in kind.indices)
        if not times or not isinstance(mixer, LatentAttention):
            continue
        known = dict(zip((w.name for w in kind.layer.weights), kind.precisions, strict=True))
        stored = next(p for name, p in known.items() if name.endswith("kv_b_proj"))
        plain = UNQUANTIZED[dtype]
        precision = plain if stored is model.quantization.base else stored
        heads, latent = held_heads(mixer.num_heads, layout.tensor_parallel_size), mixer.kv_lora_rank
        queries, both = mixer.q_lora_rank or model.hidden_size, mixer.qk_nope_head_dim + mixer.v_head_dim
        found += times * (
            precision.stored_bytes((heads * latent, queries))
            + precision.stored_bytes((model.hidden_size, heads * latent))
            + plain.stored_bytes((queries, heads * mixer.qk_rope_head_dim))
            + (precision is not plain) * plain.stored_bytes((latent, heads * both))
        )
    return found


def rotary_bytes(model: Model, dtype: Precision) -> int:
    """The table of cosines and sines: one row of rotary elements for each position of the model's context."""
    widths = [
        mixer.qk_rope_head_dim if isinstance(mixer, LatentAttention) else mixer.head_dim
        for mixer in dict.fromkeys(model.mixers())
        if isinstance(mixer, Attention | LatentAttention)
    ]
    elements = model.max_position_embeddings * max(widths, default=0) * ROTARY_SIZE.get(model.model_type, 1)
    return round(elements) * dtype.bits // 8


def weight_bytes(
    weight: Weight,
    precision: Precision,
    layout: Layout,
    *,
    padding: tuple[int, int] = (1, 1),
) -> int:
    """Bytes of ``weight`` on the rank that holds most of it; ``padding`` rounds an expert's (intermediate, hidden)."""
    piece = held_piece(weight, layout)
    if padding != (1, 1):
        down = held_piece(weight, Layout(2)).cut_axis in (-1, None)
        piece = replace(piece, shape=_padded(piece.shape, padding, down=down))
    return piece.stored_bytes(precision)


def _padded(shape: tuple[int, ...], padding: tuple[int, int], *, down: bool) -> tuple[int, ...]:
    intermediate, hidden = padding
    if len(shape) < 2:
        return (_round_up(shape[0], hidden if down else intermediate),)
    rows, columns = (hidden, intermediate) if down else (intermediate, hidden)
    return (*shape[:-2], _round_up(shape[-2], rows), _round_up(shape[-1], columns))


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


@PerModel
def _stages(
    model: Model, layout: Layout, dtype: str, architecture: str, remainder_last: bool
) -> tuple[RankWeights, ...]:
    parts = _Parts(model, layout, UNQUANTIZED[dtype], architecture)
    kinds = [
        (kind, parts.bytes_of(zip(kind.layer.weights, kind.precisions, strict=True))) for kind in model.layer_kinds
    ]
    rotary, found, start = rotary_bytes(model, UNQUANTIZED[dtype]), [], 0
    sizes = stage_sizes(model.num_layers, layout.pipeline_parallel_size, remainder_last=remainder_last)
    for stage, size in enumerate(sizes):
        layers = range(start, start := start + size)
        total = parts.bytes_outside_layers(first=stage == 0, last=stage == len(sizes) - 1)
        for kind, parts_bytes in kinds:
            if times := sum(index in layers for index in kind.indices):
                total.update({key: times * num_bytes for key, num_bytes in parts_bytes.items()})
        by_component: Counter[Component] = Counter()
        by_dtype: Counter[str] = Counter()
        for (component, name), num_bytes in total.items():
            by_component[component] += num_bytes
            by_dtype[name] += num_bytes
        found.append(RankWeights(layers, by_component, by_dtype, rotary))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Bytes of weights on one rank, by component and name of the precision."""

    model: Model
    layout: Layout
    dtype: Precision  #: of what is not quantised
    architecture: str

    def bytes_of(self, weights: Iterable[tuple[Weight, Precision]]) -> Counter[tuple[Component, str]]:
        """Of these weights with their precisions; MTP modules are left out."""
        found: Counter[tuple[Component, str]] = Counter()
        quantization = self.model.quantization
        kernels_pad = quantization.method == "mxfp4" and bool(self.architecture)
        padding = EXPERT_PADDING.get(self.architecture, MARLIN_PADDING)
        for weight, stored in weights:
            if weight.component is Component.MTP:
                continue
            precision = self.dtype if stored is quantization.base else stored
            padded = kernels_pad and weight.component is Component.ROUTED_EXPERT
            num_bytes = weight_bytes(weight, precision, self.layout, padding=padding if padded else (1, 1))
            found[weight.component, precision.name] += num_bytes
        return found

    def bytes_outside_layers(self, *, first: bool, last: bool) -> Counter[tuple[Component, str]]:
        """On the first stage embedding and vision tower; on the last final norm and lm_head, or the tied embedding."""
        model = self.model
        embedding = [w for w in model.outer if w.component is Component.EMBEDDING]
        held: list[Weight] = [*embedding, *model.vision] if first else []
        if last:
            held += [w for w in model.outer if w.component is not Component.EMBEDDING]
            if model.tied_embeddings and not first:
                held += [w for w in embedding if w.shard is Shard.VOCAB]
        return self.bytes_of((weight, model.precision_of(weight)) for weight in held)
