"""Parallel layouts: sizes of the axes, legal sizes, and the piece of a weight on one rank.

- TP cuts matrices: columns of q, k, v, gate and up; rows of o and down; the vocabulary of embedding and lm_head.
- PP gives each stage a run of layers. The embedding is on the first stage, the norm and the lm_head on the last.
- EP gives each rank whole experts instead of a slice of every expert.
- DP repeats the engine. The experts of an MoE are the exception: all TP x DP ranks share them.

With fewer KV heads than ranks the heads are repeated. A size that vLLM refuses is refused here in its words.

>>> stage_sizes(61, 4)
(15, 15, 16, 15)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any, Literal

from planner.engine.settings import EngineArgs, flag_of, tagged
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile, PartitionRule
from planner.model import UNQUANTIZED, Attention, Component, Model, Precision, Shard, StateMixer, Weight

VOCAB_PADDING = 64  #: vLLM pads the vocabulary to a multiple of this (DEFAULT_VOCAB_PADDING_SIZE) before TP cuts it
#: Smallest block that fp8 scales of expert weights are refined to when a shard cuts a block (vLLM 0.32).
SMALLEST_REFINED_BLOCK = 32


@dataclass(frozen=True)
class Layout:
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    redundant_experts: int = 0  #: copies of experts, of each layer

    @classmethod
    def of(cls, settings: EngineArgs) -> "Layout":
        return cls(**settings.settings("axes"), redundant_experts=settings.redundant_experts)

    @property
    def num_gpus(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks of one stage that share the routed experts: TP x DP, with EP or without."""
        return self.tensor_parallel_size * self.data_parallel_size

    @cached_property
    def axes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in tagged("axes")}

    @cached_property
    def flags(self) -> str:
        words = [f"{flag_of(name)} {size}" for name, size in self.axes.items() if size > 1]
        return " ".join(words + ["--enable-expert-parallel"] * self.enable_expert_parallel) or "one GPU"


def stage_sizes(num_layers: int, pipeline_parallel_size: int, *, remainder_last: bool = False) -> tuple[int, ...]:
    """Layers of each pipeline stage.

    Those left over go one each to the stages before the last, from the back (vLLM 0.8.0 on, pull request 13839). With
    ``remainder_last`` all go to the last, as before."""
    each, left = divmod(num_layers, pipeline_parallel_size)
    sizes = [each] * pipeline_parallel_size
    if remainder_last:
        sizes[-1] += left
    else:
        for back in range(2, left + 2):
            sizes[-back] += 1
    return tuple(sizes)


def padded_vocab(vocab_size: int) -> int:
    return -(-vocab_size // VOCAB_PADDING) * VOCAB_PADDING


@dataclass(frozen=True, slots=True)
class Piece:
    copies: int
    shape: tuple[int, ...]  #: of one copy, vocabulary padding included
    cut_axis: int | None  #: 0 for output features, -1 for input features, None: each copy is whole
    count: int  #: pieces that each copy is cut into; ranks beyond that repeat them

    @property
    def params(self) -> int:
        return self.copies * prod(self.shape)

    @property
    def inputs(self) -> int:
        """Elements that one copy reads of each token."""
        return self.shape[-1]

    @property
    def outputs(self) -> int:
        """Elements that one copy makes of each token."""
        return prod(self.shape[:-1])

    def stored_bytes(self, precision: Precision) -> int:
        """Bytes in memory, and bytes that a step reads when it uses all copies."""
        return precision.stored_bytes(self.shape, self.copies)


def held_piece(weight: Weight, layout: Layout) -> Piece:
    """The piece of ``weight`` on the rank that holds most. TP cuts KV heads no further than whole heads. Experts are
    cut over all ranks that share them; with EP they stay whole, and the first ranks hold those left over."""
    axis, shape, copies = 0, list(weight.shape), weight.copies
    if weight.shard in (Shard.ROW, Shard.EXPERT_ROW):
        axis = -1
    ranks = layout.tensor_parallel_size
    if weight.shard.of_experts:
        ranks = layout.expert_ranks
        if layout.enable_expert_parallel:
            copies = -(-(copies + layout.redundant_experts) // ranks)
    if weight.shard is Shard.VOCAB:
        shape[0] = padded_vocab(shape[0])
    whole = weight.shard is Shard.NONE or (weight.shard.of_experts and layout.enable_expert_parallel)
    if whole or (axis and len(shape) == 1):  # the bias of a row is added once, after the reduction
        return Piece(copies, tuple(shape), None, 1)
    count = min(ranks, weight.max_shards or ranks)
    shape[axis] = -(-shape[axis] // count)
    return Piece(copies, tuple(shape), axis, count)


def held_heads(num_heads: int, tensor_parallel_size: int) -> int:
    """Query, KV or state heads on each rank; where ranks outnumber heads, each holds one."""
    return -(-num_heads // min(num_heads, tensor_parallel_size))


#: Which blocks of fp8 weights a shard may cut: none, those of matrices that run merged (``linear.py`` of 0.14), those
#: of experts too, whose scales are divided anew (``layers/quantization/fp8.py`` of 0.32).
Fp8Blocks = Literal["whole", "merged", "refined"]
#: Matrices that vLLM merges with their siblings, outside experts.
MERGED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")


def check_layout(
    model: Model, profile: GpuProfile, layout: Layout, *, allow_unvalidated: bool = False,
    fp8_blocks: Fp8Blocks = "whole",
) -> None:  # fmt: skip
    """Raise IllegalPlanError for a layout that cannot run, and for weights that the GPU cannot multiply.
    ``fp8_blocks``: blocks that a shard may cut."""
    for problem in _problems(model, profile, layout, allow_unvalidated, fp8_blocks):
        raise problem
    for precision in filter(None, (model.quantization.linear, model.quantization.expert)):
        computed = profile.emulated.get(precision.name, precision.compute_dtype)
        if computed not in UNQUANTIZED and not profile.supports(computed):
            hint = "choose a checkpoint in 16 bits, or another GPU"
            raise IllegalPlanError(f"{profile.name} has no {computed} matrix units", hint=hint)


def legal_tensor_parallel_sizes(
    model: Model, profile: GpuProfile, *, allow_unvalidated: bool = False, fp8_blocks: Fp8Blocks = "whole",
    most: int = 1, **others: Any,
) -> tuple[int, ...]:  # fmt: skip
    """TP sizes that run in one node, or fill several up to ``most`` GPUs; ``others``: axes of ``Layout``."""
    node = profile.gpus_per_node
    sizes = (*range(1, node + 1), *range(2 * node, most + 1, node))
    layouts = {size: Layout(tensor_parallel_size=size, **others) for size in sizes}
    return tuple(s for s in sizes if not any(_problems(model, profile, layouts[s], allow_unvalidated, fp8_blocks)))


def cuts_expert_blocks(model: Model, layout: Layout) -> bool:
    """True if the fp8 blocks of experts become smaller: Triton's kernels alone read them (``oracle/fp8.py``, 0.32)."""
    return any(_cut_problems(model, layout, "merged"))


def _problems(
    model: Model, profile: GpuProfile, layout: Layout, allow_unvalidated: bool, fp8_blocks: Fp8Blocks
) -> Iterator[IllegalPlanError]:
    yield from _hardware_problems(profile, layout, allow_unvalidated)
    yield from _head_problems(model, layout)
    experts = min((layer.moe.num_experts for layer in model.layers if layer.moe), default=0)
    if layout.enable_expert_parallel and not experts:
        cause = f"--enable-expert-parallel: {model.id} has no experts"
        yield IllegalPlanError(cause, hint="leave out --enable-expert-parallel")
    elif layout.enable_expert_parallel and layout.expert_ranks > experts:
        cause = f"{layout.expert_ranks} ranks (TP x DP) for {experts} experts of {model.id}"
        yield IllegalPlanError(f"--enable-expert-parallel: {cause}", hint="use fewer ranks")
    if layout.pipeline_parallel_size > model.num_layers:
        cause = f"--pipeline-parallel-size {layout.pipeline_parallel_size}: {model.id} has {model.num_layers} layers"
        yield IllegalPlanError(cause, hint="use fewer stages")
    yield from _cut_problems(model, layout, fp8_blocks)


def _hardware_problems(profile: GpuProfile, layout: Layout, allow_unvalidated: bool) -> Iterator[IllegalPlanError]:
    sizes = (layout.tensor_parallel_size, layout.pipeline_parallel_size, layout.data_parallel_size)
    if min(sizes) < 1:
        yield IllegalPlanError(f"parallel sizes must be at least 1, got {sizes}", hint="leave the flag out for 1")
        return
    tensor_parallel_size = layout.tensor_parallel_size
    if profile.partition and profile.partition.legal:
        yield from _ruled_out(profile, profile.partition.legal, "the mode", allow_unvalidated)
    if profile.partition and tensor_parallel_size > 1:
        rule = profile.partition.tensor_parallel_rule(tensor_parallel_size)
        yield from _ruled_out(profile, rule, "tensor parallelism", allow_unvalidated)
    if tensor_parallel_size > profile.gpus_per_node and tensor_parallel_size % profile.gpus_per_node:
        yield IllegalPlanError(
            f"--tensor-parallel-size {tensor_parallel_size}: a node of {profile.id} has {profile.gpus_per_node} GPUs",
            hint="use a size that fills its nodes, or cut the layers over nodes with --pipeline-parallel-size",
        )


def _ruled_out(
    profile: GpuProfile, rule: PartitionRule, what: str, allow_unvalidated: bool
) -> Iterator[IllegalPlanError]:
    fix = rule.fix or "use the whole GPU"
    if not rule.allowed:
        yield IllegalPlanError(f"{profile.name}: {rule.reason} (source: {rule.source})", hint=fix)
    elif not rule.validated and not allow_unvalidated:
        yield IllegalPlanError(
            f"{profile.name}: {what} is not validated: {rule.reason} (source: {rule.source})",
            hint=f"{fix}; --allow-unvalidated plans it all the same",
        )


def _head_problems(model: Model, layout: Layout) -> Iterator[IllegalPlanError]:
    size = layout.tensor_parallel_size
    flag = f"--tensor-parallel-size {size}"
    for mixer in model.distinct_mixers:
        what, heads = "state heads" if isinstance(mixer, StateMixer) else "attention heads", mixer.num_heads
        if heads % size:
            cause = f"{flag}: the {heads} {what} of {model.id} are not divisible by {size}"
            yield IllegalPlanError(cause, hint=f"use a divisor of {heads}")
            return
        kv_heads = mixer.num_kv_heads if isinstance(mixer, Attention) else 1
        if kv_heads % size and size % kv_heads:
            cause = f"{flag}: {kv_heads} KV heads of {model.id} can be neither divided nor repeated evenly"
            yield IllegalPlanError(cause, hint=f"use a divisor or a multiple of {kv_heads}")
            return
    rows = padded_vocab(model.vocab_size)
    if rows % size:
        cause = f"{flag}: the vocabulary of {model.id}, padded to {rows}, is not divisible by {size}"
        yield IllegalPlanError(cause, hint="use a power of two")


def _cut_problems(model: Model, layout: Layout, fp8_blocks: Fp8Blocks) -> Iterator[IllegalPlanError]:
    if layout.expert_ranks == 1:
        return
    for path, weight, precision in _distinct_weights(model):
        piece = held_piece(weight, layout)
        axis, cut = piece.cut_axis, piece.count
        padded = weight.shard.of_experts and precision.name == "mxfp4"  # the kernels pad each shard
        if axis is None or cut == 1 or weight.shard is Shard.VOCAB or padded:
            continue
        shard, uneven = divmod(weight.shape[axis], cut)
        block = 0 if uneven else _split_block(weight, precision, axis, shard, fp8_blocks)
        if uneven:
            sides = "inputs" if axis == -1 else "outputs"
            cause = f"{weight.shape[axis]} {sides} of {path} are not divisible by {cut}"
        elif block:
            kind = f"{precision.name} quantization block of {block}"
            cause = f"{path}: a shard of {shard} is not divisible by the {kind}"
        else:
            continue
        hint, remedy = _cut_hint(weight, layout)
        yield IllegalPlanError(cause, hint=hint, **remedy)
        return


def _split_block(weight: Weight, precision: Precision, axis: int, shard: int, fp8_blocks: Fp8Blocks) -> int:
    """Size of the quantisation block that a shard would split; 0 when it splits none."""
    if precision.group is None or len(weight.shape) < 2:
        return 0
    rows, columns = precision.group
    block = columns if axis == -1 else rows
    if block <= 1 or shard % block == 0:
        return 0
    other = weight.shape[-2] if axis == -1 else weight.shape[-1]
    expert = weight.component is Component.ROUTED_EXPERT
    merged = fp8_blocks != "whole" and weight.name.endswith(MERGED)
    refined = fp8_blocks == "refined" and expert and gcd(rows, columns, shard, other) >= SMALLEST_REFINED_BLOCK
    return 0 if merged or refined else block


def _cut_hint(weight: Weight, layout: Layout) -> tuple[str, dict[str, Any]]:
    smaller = "use a smaller --tensor-parallel-size"
    if weight.shard.of_experts:
        hint = f"add --enable-expert-parallel, which keeps experts whole, or {smaller}"
        return hint, {"enable_expert_parallel": True}
    if weight.component is Component.VISION:
        hint = f"add --mm-encoder-tp-mode data, which does not cut the encoder, or {smaller}"
        return hint, {"mm_encoder_tp_mode": "data"}
    if layout.pipeline_parallel_size == 1:
        return f"{smaller}, with --pipeline-parallel-size for the rest of the GPUs", {}
    return smaller, {}


def _distinct_weights(model: Model) -> Iterator[tuple[str, Weight, Precision]]:
    for kind in model.layer_kinds:
        for weight, precision in zip(kind.layer.weights, kind.precisions, strict=True):
            yield f"{model.layer_prefix}{kind.indices[0]}.{weight.name}", weight, precision
    for weight in (*model.outer, *model.vision):
        yield weight.name, weight, model.precision_of(weight)
