"""What a rank holds beside the model, LoRA adapters and drafts, and what host memory holds instead.

**Adapters.** vLLM makes room for ``max_loras`` adapters of ``max_lora_rank`` when it loads the model, used or not, for
every linear layer (``create_lora_weights`` in ``lora/layers/``)::

    A = rank x inputs,  B = outputs x rank              of each matrix, beside its own piece on the rank:
    elements = max_loras x rank x sum of (inputs + outputs of the piece)

A column-cut matrix keeps A whole and cuts B with its outputs, a row-cut one the other way round, so that a rank holds
exactly the two sides of its piece. ``--fully-sharded-loras`` cuts the whole side by the ranks as well. Matrices that
run fused (q, k, v) have an A each; experts have one pair each. Where embedding and lm_head are adapted, both are held
whole on every rank: (vocabulary + hidden) x rank.

**Host memory.** ``--cpu-offload-gb`` keeps that many GiB of each rank's decoder layers there.
``--kv-offloading-size`` is room for KV blocks there, all ranks together; the cache on the GPU does not change.

**Drafts** stand on the last pipeline stage::

    mtp           the modules of the checkpoint; embedding and lm_head are the model's own. Over several stages the
                  last one, which drafts, loads the embedding again
    draft_model   all of the second model
    eagle         one layer and a projection from 2 hidden to hidden; embedding and lm_head are the model's own
    eagle3        one layer that reads embedding and hidden states side by side, a projection from 3 hidden to hidden,
                  and an lm_head; the embedding is the model's own
    ngram, suffix nothing

Each module or layer of the draft keeps its tokens beside the model's layers, in the same pool of blocks. The
rejection sampler's share of the profile run is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from planner.engine import EngineConfig, Layout, LoraConfig, SpeculativeConfig, held_piece
from planner.errors import InputError
from planner.memory.kv_cache import CacheSettings, CacheSpec, element_bytes, specs_of
from planner.memory.weights import RankWeights, stage_weights, weight_bytes
from planner.model import (
    UNQUANTIZED,
    Attention,
    Component,
    Layer,
    Mixer,
    Model,
    Shard,
    StateMixer,
    Weight,
    mtp_projections,
)
from planner.units import GIB

#: Parts outside the decoder layers: they always stay on the GPU.
_OUTSIDE = frozenset((Component.EMBEDDING, Component.LM_HEAD, Component.VISION))


def with_extras(stages: tuple[RankWeights, ...], model: Model, config: EngineConfig) -> tuple[RankWeights, ...]:
    """``stages`` with the adapters on each rank, and the weights that host memory holds for it."""
    lora, kept = config.lora, round(config.cpu_offload_gb * GIB)
    if lora is None and not kept:
        return stages
    adapters = tuple(lora_bytes(model, config, lora, stages)) if lora else (0,) * len(stages)
    return tuple(
        replace(stage, lora_bytes=num_bytes, offloaded_bytes=min(kept, _layer_bytes(stage)))
        for stage, num_bytes in zip(stages, adapters, strict=True)
    )


def offloaded_bytes(stages: tuple[RankWeights, ...], config: EngineConfig) -> int:
    """Weights that one pass through all stages reads from host memory, bytes of one rank of each."""
    kept = round(config.cpu_offload_gb * GIB)
    return sum(min(kept, _layer_bytes(stage)) for stage in stages)


def _layer_bytes(stage: RankWeights) -> int:
    return sum(num_bytes for part, num_bytes in stage.by_component.items() if part not in _OUTSIDE)


def lora_bytes(model: Model, config: EngineConfig, lora: LoraConfig, stages: tuple[RankWeights, ...]) -> Iterator[int]:
    """Bytes of all adapter slots on a rank of each stage, in the engine's dtype (``--lora-dtype auto``)."""
    layout, slot = Layout.of(config), lora.max_loras * lora.max_lora_rank * element_bytes(config.dtype)
    sides = {id(layer): layer_sides(layer, layout, lora) for layer in model.layers}
    for number, stage in enumerate(stages):
        counts = Counter(id(model.layers[index]) for index in stage.layers)
        elements = sum(times * sides[layer] for layer, times in counts.items())
        ends = (number == 0) + (number == len(stages) - 1)  # embedding on the first, lm_head on the last
        if lora.adapts_tables:
            elements += ends * (model.vocab_size + model.hidden_size)
        yield slot * elements


def layer_sides(layer: Layer, layout: Layout, lora: LoraConfig) -> int:
    """Elements that each unit of rank takes in one layer on one rank: inputs of A and outputs of B, summed."""
    return sum(_sides(weight, layout, lora) for weight in adapted(layer, lora))


def adapted(layer: Layer, lora: LoraConfig) -> Iterator[Weight]:
    """The matrices of a layer that have adapters."""
    for weight in layer.weights:
        if weight.linear and (lora.adapts_experts or weight.component is not Component.ROUTED_EXPERT):
            yield weight


def _sides(weight: Weight, layout: Layout, lora: LoraConfig) -> int:
    piece, ranks = held_piece(weight, layout), layout.tensor_parallel_size
    *_, outputs, inputs = piece.shape
    if lora.fully_sharded_loras and piece.cut_axis is not None:
        if piece.cut_axis == -1:
            outputs = -(-outputs // ranks)
        else:
            inputs = -(-inputs // ranks)
    return piece.copies * (inputs + outputs)


def host_kv_tokens(config: EngineConfig, kv_bytes_per_token: float) -> int:
    """Tokens that ``--kv-offloading-size`` holds, where a rank keeps ``kv_bytes_per_token`` of each.

    The size is of all ranks of an engine together.
    """
    if not config.kv_offloading_size or not kv_bytes_per_token:
        return 0
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    return int(config.kv_offloading_size * GIB / ranks / kv_bytes_per_token)


# --- drafts -----------------------------------------------------------------------------------------------------------


def with_drafts(
    stages: tuple[RankWeights, ...], model: Model, config: EngineConfig, draft: Model | None
) -> tuple[RankWeights, ...]:
    """``stages`` with the draft on the last one, whose layers then count those of the draft."""
    speculative = config.speculative_config
    if speculative is None:
        return stages
    last, by_dtype = stages[-1], _draft_bytes(model, config, speculative, draft)
    return (
        *stages[:-1],
        replace(
            last,
            layers=range(last.layers.start, last.layers.stop + len(_draft_mixers(model, speculative, draft))),
            by_dtype=Counter(last.by_dtype) + by_dtype,
            draft_bytes=by_dtype.total(),
        ),
    )


def draft_specs(
    model: Model, settings: CacheSettings, speculative: SpeculativeConfig | None, draft: Model | None
) -> tuple[tuple[int, CacheSpec], ...]:
    """(layer, spec) of every cache that the draft adds, as layers beyond the model's last."""
    if speculative is None:
        return ()
    mixers = _draft_mixers(model, speculative, draft)
    size = speculative.draft_tensor_parallel_size or settings.tensor_parallel_size
    settings = replace(settings, tensor_parallel_size=size)
    return tuple(specs_of(draft or model, mixers, settings, first_layer=model.num_layers))


def _draft_mixers(model: Model, speculative: SpeculativeConfig, draft: Model | None) -> tuple[Mixer, ...]:
    """The token mixers of the draft, one for each of its layers."""
    if speculative.has_draft_model:
        return tuple(known_draft(speculative, draft).mixers())
    return (module_mixer(model),) * len(mtp_projections(model.mtp)) if speculative.method == "mtp" else ()


def module_mixer(model: Model) -> Mixer:
    """The mixer of an MTP module: the model's first attention layer that has as many queries, else the first."""
    attention = [mixer for mixer in dict.fromkeys(model.mixers()) if not isinstance(mixer, StateMixer)]
    rows = {w.shape[0] for w in model.mtp if w.name.endswith("q_proj")}
    alike = (m for m in attention if isinstance(m, Attention) and rows & {m.num_heads * m.head_dim * n for n in (1, 2)})
    return next(alike, attention[0])


def _draft_bytes(
    model: Model, config: EngineConfig, speculative: SpeculativeConfig, draft: Model | None
) -> Counter[str]:
    """Bytes of the draft's weights on a rank of the last stage, by the name of their precision."""
    layout = Layout.of(config)
    found: Counter[str] = Counter()
    if speculative.method == "mtp":
        for weight in _module_weights(model, layout):
            stored = model.precision_of(weight)
            precision = UNQUANTIZED[config.dtype] if stored is model.quantization.base else stored
            found[precision.name] += weight_bytes(weight, precision, layout)
    elif speculative.has_draft_model:
        known = known_draft(speculative, draft)
        size = speculative.draft_tensor_parallel_size or layout.tensor_parallel_size
        (whole,) = stage_weights(known, Layout(size), config.dtype)
        found.update(whole.by_dtype)
        if speculative.method == "eagle3":  # the draft's own config names its projection and its lm_head
            found[config.dtype] -= whole.by_component.get(Component.EMBEDDING, 0)
        elif speculative.method == "eagle":
            shared = sum(whole.by_component.get(part, 0) for part in (Component.EMBEDDING, Component.LM_HEAD))
            projection = Weight("fc", Component.MTP, (known.hidden_size, 2 * known.hidden_size))
            found[config.dtype] += weight_bytes(projection, UNQUANTIZED[config.dtype], layout) - shared
    return found


def _module_weights(model: Model, layout: Layout) -> Iterator[Weight]:
    """Weights of the MTP modules that vLLM loads: not the tables that checkpoints repeat."""
    yield from (weight for weight in model.mtp if weight.shard is not Shard.VOCAB)
    if layout.pipeline_parallel_size > 1:
        yield from (w for w in model.outer if w.component is Component.EMBEDDING and w.shard is Shard.VOCAB)


def known_draft(speculative: SpeculativeConfig, draft: Model | None) -> Model:
    """``draft``. Raises InputError where the model that ``speculative`` names was not looked up."""
    if draft is None:
        raise InputError(
            f"--speculative-config: the architecture of {speculative.model} is needed",
            hint="give a hub id, or a folder with a config.json",
        )
    return draft
