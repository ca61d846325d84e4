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

from planner.engine import Layout, held_piece, stage_sizes
from planner.model import UNQUANTIZED, Attention, Component, LatentAttention, Model, PerModel, Precision, Shard, Weight

#: (intermediate, hidden) multiples that the kernels of MXFP4 experts pad a shard to, by the GPU's architecture.
#: From vLLM 0.32's ``mxfp4_round_up_hidden_size_and_intermediate_size``; Hopper's from gpt-oss-120b's logged
#: 64.38 GiB, where the layout pads the output features. Elsewhere Marlin runs: logged 65.97 GiB.
EXPERT_PADDING = {"sm_90": (256, 1), "sm_90a": (256, 1), "gfx942": (256, 256), "gfx950": (256, 256)}
MARLIN_PADDING = (128, 256)


@dataclass(frozen=True)
class RankWeights:
    """Weights on each rank of one pipeline stage, bytes."""

    layers: range  #: of this stage
    by_component: dict[Component, int]
    by_dtype: dict[str, int]
    rotary_bytes: int  #: the table of rotary cosines and sines
    draft_bytes: int = 0  #: of the draft (``memory.extras``): MTP modules, a second model
    lora_bytes: int = 0  #: of LoRA adapters
    offloaded_bytes: int = 0  #: of the weights, those in host memory

    @cached_property
    def weight_bytes(self) -> int:
        """Parameters and scales of the rank, the draft's included."""
        return sum(self.by_component.values()) + self.draft_bytes

    @cached_property
    def loaded_bytes(self) -> int:
        """What "Model loading took" counts: weights on the GPU, adapters and rotary table."""
        return self.weight_bytes - self.offloaded_bytes + self.lora_bytes + self.rotary_bytes


def stage_weights(
    model: Model, layout: Layout, dtype: str, *, architecture: str = "", remainder_last: bool = False
) -> tuple[RankWeights, ...]:
    """Weights on each rank, stage by stage, bytes.

    ``dtype`` (bf16, fp16, fp32) is the engine's, of everything that is not quantised; ``architecture`` is the
    GPU's (``sm_90``, ``gfx942``), which decides how MXFP4 experts are padded; ``remainder_last`` splits layers
    as vLLM did before 0.8.0.
    """
    return _stages(model, layout, dtype, architecture, remainder_last)


def rotary_bytes(model: Model, dtype: Precision) -> int:
    """The table of cosines and sines: one row of rotary elements for each position of the model's context."""
    widths = [
        mixer.qk_rope_head_dim if isinstance(mixer, LatentAttention) else mixer.head_dim
        for mixer in dict.fromkeys(model.mixers())
        if isinstance(mixer, Attention | LatentAttention)
    ]
    return model.max_position_embeddings * max(widths, default=0) * dtype.bits // 8


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
