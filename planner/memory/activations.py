"""What the profile run needs at its peak: one forward pass of the whole token budget, then the sampler.

vLLM runs the model once with ``max_num_batched_tokens`` dummy tokens before it has a KV cache, then computes
logits for as many rows as requests run at once and samples; models with vision encode a full budget
of images before. The largest of these peaks is taken from the cache::

    sampler  = copies x rows x vocabulary x 4 bytes + hidden states     logits are gathered: TP does not shrink them
    forward  = tokens x 2 bytes x (residuals x hidden + widest part of a layer on the rank)
    encoder  = patches of a full budget of images x 2 bytes x (residuals x hidden + two wide vectors)

The widest part is the MLP (gate, up and their product), attention (q, k, v and its output) or the buffers of the
routed experts: ``top_k`` rows of max(2 x intermediate, hidden) and of intermediate for every token. How many
copies of the logits live at once depends on the sampler and is fitted (``hardware/calibration/memory.toml``), and so
is the ratio of measured peaks to these formulas.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from planner.engine import EngineConfig, Layout, held_heads, held_piece
from planner.model import Component, LatentAttention, Layer, Model, PerModel, Shard, Weight

LOGIT_BYTES = 4  #: logits are turned into 32-bit numbers before sampling
#: Hidden vectors of a token alive at the widest point: residual, normed input, output and its reduced copy.
RESIDUALS = 4
#: Patches that are merged into one token, and tokens of the largest image, by model type: from the defaults of the
#: image processors. Gemma 3: 64 x 64 patches in 256 tokens; Mistral 3: 110 x 110 patches, merged by 2 x 2; Llama 4: 16
#: tiles and a whole of 144 tokens; others: ``max_pixels`` of Qwen-VL, 12,845,056 / 28**2.
IMAGES = {"": (4, 16384), "gemma3": (16, 256), "mistral3": (4, 3025), "llama4": (4, 2448)}


@dataclass(frozen=True, slots=True)
class PeakTerms:
    """The terms of the peak of a profile run, by formula, before the fitted constants, bytes."""

    logits_bytes: int  #: one copy
    hidden_bytes: int  #: alive while the logits are sampled
    forward_bytes: int
    encoder_bytes: int


def peak_terms(model: Model, config: EngineConfig, element_bytes: int) -> PeakTerms:
    """The terms for a profile run of ``max_num_batched_tokens`` tokens of ``element_bytes`` bytes an element."""
    num_tokens = config.max_num_batched_tokens
    return PeakTerms(
        config.sampled_rows * model.vocab_size * LOGIT_BYTES,
        hidden_bytes(model, num_tokens, element_bytes),
        forward_bytes(model, Layout.of(config), num_tokens, element_bytes),
        encoder_bytes(model, num_tokens, element_bytes),
    )


def hidden_bytes(model: Model, num_tokens: int, element_bytes: int) -> int:
    """One hidden vector for each of ``num_tokens``."""
    return num_tokens * model.hidden_size * element_bytes


def forward_bytes(model: Model, layout: Layout, num_tokens: int, element_bytes: int) -> int:
    """Peak of a forward pass over ``num_tokens`` on one rank, weights not counted."""
    return num_tokens * element_bytes * (RESIDUALS * model.hidden_size + _widest(model, layout))


@PerModel
def _widest(model: Model, layout: Layout) -> int:
    """Elements per token of the widest part of any layer on one rank."""
    return max((_layer_width(layer, layout) for layer in dict.fromkeys(model.layers)), default=0)


def encoder_bytes(model: Model, num_tokens: int, element_bytes: int) -> int:
    """Peak of the vision encoder over a full budget of images; 0 without one.

    Rough: sizes of images are not in a model's config. A budget holds at least one image of the largest size.
    """
    repeated = [w.shape for w in model.vision if w.copies > 1 and len(w.shape) == 2]
    if not repeated:
        return 0
    hidden, wide = min(map(min, repeated)), max(map(max, repeated))
    per_token, largest = IMAGES.get(model.model_type, IMAGES[""])
    patches = per_token * max(num_tokens, largest)
    return patches * element_bytes * (RESIDUALS * hidden + 2 * wide)


def _layer_width(layer: Layer, layout: Layout) -> int:
    parts = {component: [w for w in layer.weights if w.component is component] for component in _PARTS}
    widths = [_flow(weights, layout) for component, weights in parts.items() if component in _DENSE]
    widths.append(_expert_width(layer, layout) + _flow(parts[Component.SHARED_EXPERT], layout))
    if isinstance(layer.mixer, LatentAttention):
        mixer = layer.mixer
        per_head = 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) + 2 * mixer.v_head_dim
        widths.append(held_heads(mixer.num_heads, layout.tensor_parallel_size) * per_head)
    return max(widths)


def _flow(weights: Iterable[Weight], layout: Layout) -> int:
    """Elements per token that go through these matrices on one rank: outputs, and the inputs of row-cut ones."""
    pieces = ((w, held_piece(w, layout)) for w in weights if w.linear and len(w.shape) == 2)
    return sum(piece.inputs if w.shard is Shard.ROW else piece.outputs for w, piece in pieces)


def _expert_width(layer: Layer, layout: Layout) -> int:
    """Elements per token of the buffers around the routed experts."""
    experts = [w for w in layer.weights if w.component is Component.ROUTED_EXPERT and len(w.shape) == 2]
    if layer.moe is None or not experts:
        return 0
    shapes = [held_piece(w, layout).shape for w in experts]
    inner = layer.moe.intermediate_size
    if not layout.enable_expert_parallel:
        inner = -(-inner // layout.expert_ranks)
    outer = max(max(shape) for shape in shapes)
    return layer.moe.top_k * (max(2 * inner, outer) + inner)


_DENSE = (Component.ATTENTION, Component.STATE, Component.MLP)
_PARTS = (*_DENSE, Component.SHARED_EXPERT)
