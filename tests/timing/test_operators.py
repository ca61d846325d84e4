"""Operators against arithmetic done by hand."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from physics_cases import engine, llama_8b, mixer_model, mla_model, moe_model

from planner import Serving
from planner.errors import InputError
from planner.model.architecture import Attention, CompressedAttention, SparseIndexer, StateMixer
from planner.timing.operators import Driver, Operator, OperatorKind, step_operators
from planner.timing.step import Batch

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def by_name(found: tuple[Operator, ...]) -> dict[str, Operator]:
    return {op.name: op for op in found}


def test_llama_8b_streams_its_weights_but_not_its_embedding() -> None:
    # 8,030,261,248 parameters; the embedding (128256 x 4096) is looked up, not streamed; norms are not matrices
    matrices = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    gemms = [op for op in step_operators(llama_8b(), engine()) if op.kind is OperatorKind.GEMM]
    assert sum(op.fixed_bytes for op in gemms) == 2 * matrices
    assert sum(op.flop_per_unit for op in gemms) == 2 * matrices


def test_fp8_weights_take_half_the_bytes_and_lm_head_stays_16_bit() -> None:
    ops = by_name(step_operators(llama_8b(fp8=True), engine(weight_dtype="fp8")))
    assert ops["mlp up"].fixed_bytes == 32 * 2 * 14336 * 4096
    assert (ops["mlp up"].storage, ops["mlp up"].compute_dtype) == ("fp8", "fp8")
    assert ops["lm_head"].fixed_bytes == 2 * 128_256 * 4096


def test_qkv_and_gate_up_run_as_one_kernel_each() -> None:
    ops = by_name(step_operators(llama_8b(), engine()))
    assert [ops[n].count for n in ("qkv projection", "attention output", "mlp up", "mlp down")] == [32] * 4


def test_what_several_matrices_read_is_read_once() -> None:
    # a token's hidden vector (4096) goes in once and q, k, v (4096 + 2 x 1024) come out; of gate and up 2 x 14336
    ops = by_name(step_operators(llama_8b(), engine()))
    assert ops["qkv projection"].bytes_per_unit == 32 * 2 * (4096 + 6144)
    assert ops["mlp up"].bytes_per_unit == 32 * 2 * (4096 + 28_672)
    # two ranks share the 14336 that go into down; each holds a whole vector of what they add up
    ops = by_name(step_operators(llama_8b(), engine(2)))
    assert ops["mlp up"].bytes_per_unit == 32 * 2 * (4096 + 14_336)
    assert ops["mlp down"].bytes_per_unit == 32 * 2 * (7168 + 4096)


@pytest.mark.parametrize(("tp", "inner"), [(1, 3 * 768), (4, 3 * 192)])
def test_a_row_of_an_expert_is_whole_outside_and_sliced_inside(tp: int, inner: int) -> None:
    # 2048 in, gate and up out, their product in, 2048 out, and in once more for the sum over a token's experts
    experts = by_name(step_operators(moe_model(), engine(tp)))["experts"]
    assert experts.bytes_per_row == 48 * 2 * (2048 + inner + 2048 + 2048)


def test_attention_flop_is_four_times_heads_times_head_dim_per_pair() -> None:
    ops = by_name(step_operators(llama_8b(), engine()))
    assert ops["attention decode"].flop_per_unit == 32 * 4 * 32 * 128
    assert ops["attention prefill"].flop_per_unit == 32 * 4 * 32 * 128
    # Llama-3.1-8B caches 128 KiB per token in 16 bits: 32 layers x 2 x 8 heads x 128 x 2 bytes
    assert ops["attention decode"].bytes_per_unit == 131_072


@pytest.mark.parametrize(("tp", "share"), [(1, 1.0), (2, 1 / 2), (8, 1 / 8), (16, 1 / 8)])
def test_kv_heads_are_split_until_there_is_one_left(tp: int, share: float) -> None:
    ops = by_name(step_operators(llama_8b(), engine(tp)))
    assert ops["attention decode"].bytes_per_unit == 131_072 * share


def test_fp8_cache_halves_the_bytes_of_decode_attention() -> None:
    ops = by_name(step_operators(llama_8b(), engine(kv_cache_dtype="fp8")))
    assert ops["attention decode"].bytes_per_unit == 65_536


def test_sliding_window_limits_what_is_seen() -> None:
    ops = by_name(step_operators(llama_8b(window=4096), engine()))
    assert ops["attention decode"].load.span == 4096
    assert by_name(step_operators(llama_8b(), engine()))["attention decode"].load.span == inf


def test_experts_are_read_one_by_one_and_computed_row_by_row() -> None:
    experts = by_name(step_operators(moe_model(), engine()))["experts"]
    one_expert = 3 * 2048 * 768  # gate, up, down
    assert experts.bytes_per_unit == 48 * 2 * one_expert
    assert experts.flop_per_unit == 48 * 2 * one_expert
    assert (experts.load.num_experts, experts.load.top_k, experts.load.ranks) == (128, 8, 1)


def test_tensor_parallelism_cuts_experts_and_expert_parallelism_spreads_them() -> None:
    whole = by_name(step_operators(moe_model(), engine()))["experts"]
    cut = by_name(step_operators(moe_model(), engine(4)))["experts"]
    spread = by_name(step_operators(moe_model(), engine(4, enable_expert_parallel=True)))["experts"]
    assert cut.bytes_per_unit == whole.bytes_per_unit / 4
    assert spread.bytes_per_unit == whole.bytes_per_unit
    assert (cut.load.ranks, spread.load.ranks) == (1, 4)


def test_mla_decodes_in_the_latent_space_and_every_rank_reads_all_of_it() -> None:
    # DeepSeek-V3: 512 + 64 cached elements per token and layer, on every rank
    ops = by_name(step_operators(mla_model(), engine(8)))
    assert ops["attention decode"].bytes_per_unit == 576 * 2
    # 16 heads of a rank: scores over 576, values over 512; prefill: scores over 192, values over 128
    assert ops["attention decode"].flop_per_unit == 2 * 16 * (576 + 512)
    assert ops["attention prefill"].flop_per_unit == 2 * 16 * (192 + 128)


def test_sparse_attention_sees_top_k_and_its_indexer_sees_everything() -> None:
    ops = by_name(step_operators(mla_model(SparseIndexer(64, 128, 2048)), engine()))
    assert ops["attention decode"].load.span == 2048
    assert ops["indexer decode"].load.span == inf
    assert ops["indexer decode"].bytes_per_unit == 132  # 128 fp8 elements and one fp32 scale


def test_prompts_under_sparse_attention_gather_rows_for_heads_padded_to_a_tile() -> None:
    # 16 heads of a rank of eight are padded to 64 (prefill_padding of vLLM's flashmla_sparse.py); 1,152 bytes a row.
    # aiconfigurator-vllm-0.24, H200, bf16 cache, 8,192 tokens of DeepSeek-V3.2: a layer with 1, 16 or 64 heads takes
    # 6.1, 6.8 or 8.2 ms, and with 128 of them 13.5.
    prefill = by_name(step_operators(mla_model(SparseIndexer(64, 128, 2048)), engine(8)))["attention prefill"]
    assert prefill.flop_per_unit == 2 * 64 * (576 + 512)
    assert prefill.bytes_per_unit == 576 * 2


def test_compressed_attention_reads_a_window_and_one_row_per_ratio() -> None:
    mixer = CompressedAttention(128, 512, window=128, compress_ratio=4, indexer=SparseIndexer(64, 128, 1024))
    ops = by_name(step_operators(mixer_model(mixer), engine()))
    assert ops["attention decode"].load.span == 128
    assert (ops["compressed attention decode"].load.span, ops["compressed attention decode"].load.ratio) == (1024, 4)
    assert ops["indexer decode"].load.ratio == 4


def test_a_state_is_read_and_written_once_per_decoding_sequence() -> None:
    mixer = StateMixer("gdn", conv_elements=1000, recurrent_elements=64_000, num_heads=32)
    ops = by_name(step_operators(mixer_model(mixer), engine()))
    assert ops["state decode"].bytes_per_unit == 2 * (64_000 * 4 + 1000 * 2)
    assert ops["state decode"].load.driver is Driver.DECODES


def test_the_sampler_works_on_the_whole_vocabulary_on_every_rank() -> None:
    one, eight = (by_name(step_operators(llama_8b(), engine(tp)))["sampler"] for tp in (1, 8))
    assert one.bytes_per_unit == eight.bytes_per_unit > 128_256 * 4


def test_a_tied_lm_head_is_the_embedding() -> None:
    model = mixer_model(Attention(8, 8, 64, 64))
    tied = type(model)(**{**{f: getattr(model, f) for f in model.__dataclass_fields__}, "outer": model.outer[:2]})
    assert by_name(step_operators(tied, engine()))["lm_head"].fixed_bytes == 2 * 1024 * 1024


@given(tp=st.sampled_from([1, 2, 4]), build=st.sampled_from([llama_8b, moe_model]))
def test_shards_add_up_to_the_whole(tp: int, build: object) -> None:
    """Up to one rank per KV head, every matrix is cut without loss; the router is held whole by every rank."""
    model = build()  # type: ignore[operator]
    whole, part = by_name(step_operators(model, engine())), by_name(step_operators(model, engine(tp)))
    for name, op in whole.items():
        if op.kind in (OperatorKind.GEMM, OperatorKind.EXPERTS) and name != "router":
            assert tp * part[name].flop_per_unit == pytest.approx(op.flop_per_unit)
            assert tp * part[name].fixed_bytes == pytest.approx(op.fixed_bytes)
            assert tp * part[name].bytes_per_unit >= op.bytes_per_unit * 0.999


@given(build=st.sampled_from([llama_8b, moe_model, mla_model]), tp=st.sampled_from([2, 4, 8, 16]))
def test_more_ranks_never_mean_more_flop_for_one(build: object, tp: int) -> None:
    model = build()  # type: ignore[operator]
    fewer, more = by_name(step_operators(model, engine(tp // 2))), by_name(step_operators(model, engine(tp)))
    assert all(more[name].flop_per_unit <= op.flop_per_unit for name, op in fewer.items())


@pytest.mark.parametrize(
    ("sampling", "version", "env", "sorted_"),
    [
        ('{"top_p": 0.95}', "0.11.1", {}, True),
        ('{"top_k": 20}', "0.16.0", {}, True),
        ('{"top_k": -1}', "0.16.0", {}, False),
        ('{"temperature": 0, "top_p": 0.95}', "0.11.1", {}, False),
        ('{"top_p": 0.95}', "0.11.1", {"VLLM_USE_FLASHINFER_SAMPLER": "1"}, False),
        ('{"top_p": 0.95}', "0.17.0", {}, False),
        ("{}", "0.11.1", {}, False),
    ],
)
def test_tokens_of_the_likeliest_are_found_by_sorting_until_0_16(
    sampling: str, version: str, env: dict[str, str], sorted_: bool
) -> None:
    """ML.ENERGY leaderboard, top-p 0.95, H100: median ITL rises by up to 50 us for each sequence above our figures for
    greedy runs, so a sort takes no longer; 128,256 logits of 4 bytes take 0.15 us to read once."""
    few, many = (
        [
            Serving(LLAMA, "h100", engine_version=version, **asked).deployment.timer.step_s(Batch(seqs, 500 * seqs))
            for asked in ({"override_generation_config": sampling, "env": env}, {})
        ]
        for seqs in (64, 256)
    )
    each_s = ((many[0] - many[1]) - (few[0] - few[1])) / (256 - 64)
    assert 3e-6 < each_s < 50e-6 if sorted_ else each_s == 0


def test_a_sampling_that_is_no_object_is_refused() -> None:
    serving = Serving(LLAMA, "h100", override_generation_config="top_p=0.9")
    with pytest.raises(InputError, match=r"--override-generation-config 'top_p=0\.9' is not read"):
        serving.fit()
