"""What is legal on which hardware, and who holds what. Expected values are vLLM's own rules and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import model

from planner.engine.sharding import (
    Layout,
    check_layout,
    cuts_expert_blocks,
    held_heads,
    held_piece,
    legal_tensor_parallel_sizes,
    padded_vocab,
    stage_sizes,
)
from planner.errors import IllegalPlanError
from planner.hardware.profiles import load_profile
from planner.model.architecture import Component, Shard, Weight
from planner.model.resolve import resolve_model


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [
        # vLLM pull request 46217 tabulates what 0.8 and later do ("before")
        (61, 4, (15, 15, 16, 15)),
        (94, 4, (23, 24, 24, 23)),
        # sglang pull request 6666 quotes vLLM's rule for DeepSeek-R1 on 8 stages
        (61, 8, (7, 7, 8, 8, 8, 8, 8, 7)),
        (80, 4, (20, 20, 20, 20)),
        (5, 2, (3, 2)),
    ],
)
def test_layers_of_each_stage_are_vllms(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert stage_sizes(layers, stages) == expected


def test_before_0_8_the_last_stage_took_what_was_left() -> None:
    assert stage_sizes(61, 8, remainder_last=True) == (7, 7, 7, 7, 7, 7, 7, 12)


@given(layers=st.integers(1, 200), stages=st.integers(1, 16))
def test_stages_hold_every_layer_once_and_differ_by_one_at_most(layers: int, stages: int) -> None:
    sizes = stage_sizes(layers, stages)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert stages == 1 or sizes[-1] == min(sizes)


@pytest.mark.parametrize(("vocab", "padded"), [(32000, 32000), (50257, 50304), (50272, 50304), (151936, 151936)])
def test_vocabulary_is_padded_to_64(vocab: int, padded: int) -> None:
    assert padded_vocab(vocab) == padded


@pytest.mark.parametrize(("heads", "size", "held"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (4, 8, 1), (1, 8, 1)])
def test_kv_heads_are_divided_then_repeated(heads: int, size: int, held: int) -> None:
    assert held_heads(heads, size) == held
    keys = Weight("k_proj", Component.ATTENTION, (heads * 128, 64), shard=Shard.COLUMN, max_shards=heads)
    assert held_piece(keys, Layout(size)).outputs == held * 128


def test_cpx_partitions_do_not_take_tensor_parallelism() -> None:
    with pytest.raises(IllegalPlanError) as error:
        check_layout(model("meta-llama/Llama-2-13b-hf"), load_profile("mi300x-cpx"), Layout(2))
    assert "tensor parallel size 1 only" in error.value.cause
    assert "whole GPU" in error.value.hint


def test_disputed_tensor_parallelism_is_planned_only_when_asked_for() -> None:
    llama, partition = model("meta-llama/Llama-2-13b-hf"), load_profile("mi300x-cpx-nps4")
    with pytest.raises(IllegalPlanError, match="not validated") as error:
        check_layout(llama, partition, Layout(2))
    assert "--allow-unvalidated" in error.value.hint
    check_layout(llama, partition, Layout(2), allow_unvalidated=True)


def test_a_model_over_partitions_of_several_packages_is_refused_whatever_is_asked() -> None:
    """Eight CPX partitions make one package; inside it TP is disputed, beyond it the profile rules it out."""
    llama, partition = model("meta-llama/Llama-3.1-405B-Instruct"), load_profile("mi300x-cpx-nps4")
    assert partition.partition is not None
    assert partition.partition.count == 8
    check_layout(llama, partition, Layout(8), allow_unvalidated=True)
    with pytest.raises(IllegalPlanError, match="64-rank all-reduce over CPX partitions") as error:
        check_layout(llama, partition, Layout(16), allow_unvalidated=True)
    assert error.value.hint
    assert legal_tensor_parallel_sizes(llama, partition, allow_unvalidated=True) == (1, 2, 4, 8)


def test_a_disputed_mode_is_planned_only_when_asked_for() -> None:
    """AMD's own pages contradict each other on QPX with NPS4."""
    llama, partition = model("meta-llama/Llama-2-7b-hf"), load_profile("mi300x-qpx-nps4")
    with pytest.raises(IllegalPlanError, match="the mode is not validated"):
        check_layout(llama, partition, Layout())
    check_layout(llama, partition, Layout(), allow_unvalidated=True)


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("meta-llama/Llama-3.1-8B", Layout(3), "attention heads"),
        ("Qwen/Qwen2.5-7B-Instruct", Layout(7), "KV heads"),  # 28 heads divide by 7, 4 KV heads do not
        ("meta-llama/Llama-3.1-8B", Layout(12), "GPUs"),
        ("meta-llama/Llama-3.1-8B", Layout(1, 33), "32 layers"),
        ("meta-llama/Llama-3.1-8B", Layout(1, enable_expert_parallel=True), "no experts"),
        ("meta-llama/Llama-3.1-8B", Layout(0), "at least 1"),
    ],
)
def test_what_vllm_refuses_is_refused_with_the_reason(name: str, layout: Layout, words: str) -> None:
    with pytest.raises(IllegalPlanError, match=words) as error:
        check_layout(model(name), load_profile("h100"), layout)
    assert error.value.hint


def test_tensor_parallelism_may_fill_several_nodes() -> None:
    """DeepSeek-V2.5 started at TP 16 on two nodes of 8 x A100 40 GB (8f117f6a)."""
    check_layout(model("deepseek-ai/DeepSeek-V2.5"), load_profile("a100-sxm-40gb"), Layout(16))


@pytest.mark.parametrize("size", [4, 8])
def test_matrices_that_run_merged_may_be_cut_inside_a_block(size: int) -> None:
    """MiMo-V2-Flash's own recipe: keys of 192 rows on a rank (``_maybe_allow_fp8_block_shape_mismatch``, 0.14.0)."""
    mimo, gpu = model("XiaomiMiMo/MiMo-V2-Flash"), load_profile("h200")
    with pytest.raises(IllegalPlanError, match="shard of 192"):
        check_layout(mimo, gpu, Layout(size), fp8_blocks="whole")
    check_layout(mimo, gpu, Layout(size), fp8_blocks="merged")


def test_step_3_7_keeps_all_but_its_experts_in_16_bits() -> None:
    step, gpu = model("stepfun-ai/Step-3.7-Flash-FP8"), load_profile("h200")
    check_layout(step, gpu, Layout(2), fp8_blocks="merged")
    for size in (4, 8):
        check_layout(step, gpu, Layout(size, enable_expert_parallel=True), fp8_blocks="merged")


def test_a_shard_that_cuts_a_block_of_fp8_experts_is_refused_unless_experts_stay_whole() -> None:
    """vLLM issue 25292: Qwen3-30B-A3B-FP8 at TP 4: 768 / 4 = 192 is no multiple of 128."""
    qwen, gpu = model("Qwen/Qwen3-30B-A3B-FP8"), load_profile("h100")
    with pytest.raises(IllegalPlanError, match="shard of 192") as error:
        check_layout(qwen, gpu, Layout(4))
    assert "--enable-expert-parallel" in error.value.hint
    check_layout(qwen, gpu, Layout(2))  # 384 = 3 x 128
    check_layout(qwen, gpu, Layout(4, enable_expert_parallel=True))
    check_layout(qwen, gpu, Layout(4), fp8_blocks="refined")  # 0.32: blocks of 64


def test_legal_sizes() -> None:
    node = load_profile("h100")
    assert legal_tensor_parallel_sizes(model("meta-llama/Llama-3.1-8B"), node) == (1, 2, 4, 8)
    assert legal_tensor_parallel_sizes(model("Qwen/Qwen2.5-7B-Instruct"), node) == (1, 2, 4)
    assert legal_tensor_parallel_sizes(model("Qwen/Qwen3-30B-A3B-FP8"), node) == (1, 2)
    assert legal_tensor_parallel_sizes(model("meta-llama/Llama-2-7b-hf"), load_profile("mi300x-cpx")) == (1,)


EXPERT_UP = Weight("experts.up_proj", Component.ROUTED_EXPERT, (768, 2048), 128, Shard.EXPERT_COLUMN, linear=True)
EXPERT_DOWN = Weight("experts.down_proj", Component.ROUTED_EXPERT, (2048, 768), 128, Shard.EXPERT_ROW, linear=True)


def test_slices_of_experts_follow_their_projections() -> None:
    assert held_piece(EXPERT_UP, Layout(4)).shape == (192, 2048)
    assert held_piece(EXPERT_DOWN, Layout(4)).shape == (2048, 192)
    assert held_piece(EXPERT_UP, Layout(4)).copies == 128


def test_expert_parallelism_keeps_experts_whole_and_spreads_them_over_tp_and_dp() -> None:
    piece = held_piece(EXPERT_DOWN, Layout(4, data_parallel_size=2, enable_expert_parallel=True))
    assert (piece.shape, piece.copies) == ((2048, 768), 16)  # 128 over 8 ranks
    uneven = held_piece(EXPERT_DOWN, Layout(5, enable_expert_parallel=True))
    assert uneven.copies == 26  # the first ranks hold one more


weights = st.builds(
    Weight,
    name=st.just("x"),
    component=st.just(Component.MLP),
    shape=st.tuples(st.sampled_from([64, 256, 1024, 4096]), st.sampled_from([64, 512, 2048])),
    copies=st.integers(1, 8),
    shard=st.sampled_from([Shard.NONE, Shard.COLUMN, Shard.ROW, Shard.VOCAB]),
    max_shards=st.sampled_from([None, 1, 2, 4]),
    linear=st.booleans(),
)


@given(weight=weights, size=st.sampled_from([1, 2, 4, 8]))
def test_pieces_add_up_to_the_whole(weight: Weight, size: int) -> None:
    """Each piece is on ``size / count`` ranks: all of them hold the weight that many times."""
    piece = held_piece(weight, Layout(size))
    assert piece.params * piece.count == weight.params
    assert size % piece.count == 0
    assert piece.count == (1 if weight.shard is Shard.NONE else min(size, weight.max_shards or size))


@given(weight=weights, size=st.sampled_from([1, 2, 4]))
def test_more_ranks_never_hold_more(weight: Weight, size: int) -> None:
    assert held_piece(weight, Layout(2 * size)).params <= held_piece(weight, Layout(size)).params


@given(
    experts=st.sampled_from([EXPERT_UP, EXPERT_DOWN]),
    layout=st.builds(
        Layout,
        tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
        data_parallel_size=st.sampled_from([1, 2, 4]),
        enable_expert_parallel=st.booleans(),
    ),
)
def test_ranks_share_the_experts_evenly_whole_or_sliced(experts: Weight, layout: Layout) -> None:
    assert held_piece(experts, layout).params * layout.expert_ranks == experts.params


@pytest.mark.parametrize(
    ("name", "layout", "cuts"),
    [
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", Layout(8), True),  # 2560 / 8 = 320 = 5 x 64
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", Layout(4), False),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8", Layout(8, enable_expert_parallel=True), False),
        ("deepseek-ai/DeepSeek-R1", Layout(8), False),
        ("Qwen/Qwen3-30B-A3B", Layout(8), False),  # no blocks
    ],
)
def test_tensor_parallelism_cuts_the_blocks_of_experts(name: str, layout: Layout, cuts: bool) -> None:
    """``refine_fp8_moe_block_shape`` of vLLM 0.32.0."""
    assert cuts_expert_blocks(resolve_model(name, network=False).model, layout) is cuts
