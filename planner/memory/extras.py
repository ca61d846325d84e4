"""What adapters take on a GPU, and what is kept in host memory instead.

LoRA. vLLM makes room for ``max_loras`` adapters of ``max_lora_rank`` when it loads the model, used or not, for every
linear layer (``create_lora_weights`` in ``lora/layers/``)::

    A = rank x inputs,  B = outputs x rank              of each matrix, beside its own piece on the rank:
    elements = max_loras x rank x sum of (inputs + outputs of the piece)

A column-cut matrix keeps A whole and cuts B with its outputs, a row-cut one the other way round, so that a rank holds
exactly the two sides of its piece. ``--fully-sharded-loras`` cuts the whole side by the ranks as well. Matrices that
run fused (q, k, v) have an A each; experts have one pair each. Where embedding and lm_head are adapted, both are held
whole on every rank: (vocabulary + hidden) x rank.

Weights. ``--cpu-offload-gb`` keeps that many GiB of each rank's decoder layers in host memory.

Cache. ``--kv-offloading-size`` is host memory for blocks, all ranks together. The GPU's own cache stays what it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from planner.engine.config import EngineConfig, LoraConfig
from planner.memory.kv_cache import element_bytes
from planner.memory.weights import RankWeights
from planner.model.architecture import Component, Layer, Model, Weight
from planner.parallelism import Layout, cut_axis, held_copies, held_shape
from planner.units import GIB

#: Parts of a model outside its decoder layers, which are never kept in host memory.
_OUTSIDE = frozenset((Component.EMBEDDING, Component.LM_HEAD, Component.VISION))


def with_extras(stages: tuple[RankWeights, ...], model: Model, config: EngineConfig) -> tuple[RankWeights, ...]:
    """``stages`` with the adapters that each rank holds and the weights that the host keeps for it."""
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
    *_, outputs, inputs = held_shape(weight, layout)
    axis, ranks = cut_axis(weight, layout), layout.tensor_parallel_size
    if lora.fully_sharded_loras and axis is not None:
        if axis == -1:
            outputs = -(-outputs // ranks)
        else:
            inputs = -(-inputs // ranks)
    return held_copies(weight, layout) * (inputs + outputs)


def host_kv_tokens(config: EngineConfig, kv_bytes_per_token: float) -> int:
    """Tokens that ``--kv-offloading-size`` holds, where a rank keeps ``kv_bytes_per_token`` of each.

    The size is of all ranks of an engine together.
    """
    if not config.kv_offloading_size or not kv_bytes_per_token:
        return 0
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    return int(config.kv_offloading_size * GIB / ranks / kv_bytes_per_token)
