"""Work of LoRA adapters in a step: two thin matrix multiplications beside each of the model's.

::

    FLOP  = 2 x rank x (inputs + outputs)                     of each token and matrix
    bytes = adapters x rank x (inputs + outputs) x 2          read once per step
          + (inputs + outputs) x 2 + rank x 8 for each token  the product of the first is kept in 32 bits

vLLM's Punica kernels shrink and then expand: two launches for each matrix, fused ones counted once (``lora/ops/
triton_ops`` of 0.27). How near they come to the peaks was published for no GPU here; they are given the shares of the
model's own matrices, and every adapter that has room is taken to be in use, which is the most that they can cost.
"""

from __future__ import annotations

from collections import Counter

from planner.engine.config import EngineConfig, LoraConfig
from planner.memory.extras import adapted
from planner.model.architecture import Component, Layer, Model, Shard, Weight
from planner.operators import ACTIVATION_BYTES, FP32_BYTES, TOKENS, Driver, Kind, Load, Operator, expert_ranks
from planner.parallelism import Layout, held_shape

KERNELS = 2  #: shrink and expand


def adapter_operators(model: Model, config: EngineConfig) -> tuple[Operator, ...]:
    """The operators that ``--enable-lora`` adds to a step, all layers together; none without it."""
    if config.lora is None:
        return ()
    dense = _Sum()
    experts: dict[Load, _Sum] = {}
    layers = {id(layer): layer for layer in model.layers}
    for key, times in Counter(map(id, model.layers)).items():
        layer = layers[key]
        for weight in adapted(layer, config.lora):
            expert = weight.component is Component.ROUTED_EXPERT
            into = experts.setdefault(_experts(layer, config), _Sum()) if expert else dense
            into.add(times, sum(held_shape(weight, Layout.of(config))[-2:]))
        dense.kernels += times * KERNELS * _fused(layer, config.lora)
        if any(found.component is Component.ROUTED_EXPERT for found in adapted(layer, config.lora)):
            experts[_experts(layer, config)].kernels += times
    found = [_operator("adapters", Kind.GEMM, TOKENS, dense, config.lora)]
    found += [_operator("expert adapters", Kind.EXPERTS, load, total, config.lora) for load, total in experts.items()]
    return tuple(operator for operator in found if operator.count)


class _Sum:
    """What the adapters of many matrices add up to."""

    def __init__(self) -> None:
        self.kernels, self.matrices, self.sides = 0, 0, 0

    def add(self, times: int, sides: int) -> None:
        """Count ``times`` matrices whose inputs and outputs on a rank are ``sides``."""
        self.matrices += times
        self.sides += times * sides


def _operator(name: str, kind: Kind, load: Load, total: _Sum, lora: LoraConfig) -> Operator:
    """One operator for all; of experts the driver is experts touched, and a row is a token at one of them."""
    read_bytes = lora.max_loras * lora.max_lora_rank * total.sides * ACTIVATION_BYTES
    token_bytes = total.sides * ACTIVATION_BYTES + 2 * FP32_BYTES * lora.max_lora_rank * total.matrices
    expert = kind is Kind.EXPERTS
    return Operator(
        name, kind, load, total.kernels,
        flop_per_unit=2 * lora.max_lora_rank * total.sides,
        fixed_bytes=0 if expert else read_bytes,
        bytes_per_unit=read_bytes if expert else token_bytes,
        bytes_per_row=token_bytes if expert else 0,
    )  # fmt: skip


def _experts(layer: Layer, config: EngineConfig) -> Load:
    """The load of the experts' own operator."""
    moe = layer.moe
    if moe is None:
        raise ValueError("a layer with routed experts says how it routes")
    ranks = expert_ranks(config) if config.enable_expert_parallel else 1
    return Load(Driver.EXPERTS, float("inf"), 1, moe.num_experts, moe.top_k, ranks, config.data_parallel_size)


def _fused(layer: Layer, lora: LoraConfig) -> int:
    """Matrices that run, those that share their inputs as one."""
    dense = (weight for weight in adapted(layer, lora) if weight.component is not Component.ROUTED_EXPERT)
    return len({_runs_with(weight) for weight in dense})


def _runs_with(weight: Weight) -> tuple[object, ...]:
    if weight.shard is Shard.ROW:
        return (weight.name,)
    return (weight.component, weight.shape[-1], weight.shard)
