"""The time of every term of a step against arithmetic by hand, under efficiencies that are stated here.

The GPU is an H100 SXM: 3.35 TB/s, 989 TFLOP/s bf16, 1,979 fp8, 450 GB/s of NVLink. Each efficiency differs from every
other, so that a term that meets the wrong one is off. ``mutate.py`` scales each term by 1.2 and 0.8 and shows which of
these tests fails.
"""

from dataclasses import replace
from math import log, sqrt

import pytest
from memory_cases import model as catalog_model
from physics_cases import engine, gpu, llama_8b, mixer_model, mla_model, moe_model, perfect, quantity

from planner.engine.resolution import parse_speculative_config, with_acceptance
from planner.engine.settings import EngineConfig, LoraConfig
from planner.hardware.profiles import GpuProfile
from planner.model.architecture import Attention, CompressedAttention, Model, SparseIndexer, StateMixer
from planner.model.quantization import as_quantized
from planner.timing.step import Batch, OperatorTime, StepModel, speculative_step

BYTES_PER_S, FLOP_PER_S, FP8_FLOP_PER_S, LINK_BYTES_PER_S = 3.35e12, 989e12, 1979e12, 450e9
PROMPT_PAD, DECODE_PAD = 550, 160  #: of an H100: pairs of a prompt token, tokens of a sequence (constants.toml)
HIDDEN = 0.9  #: share of the shorter of arithmetic and memory traffic that the longer one hides
STATED = perfect(
    weight_bandwidth_16=0.80, weight_bandwidth_8=0.71, weight_bandwidth_4=0.62,
    expert_bandwidth_16=0.65, expert_bandwidth_8=0.58, expert_bandwidth_4=0.51,
    kv_bandwidth_16=0.84, kv_bandwidth_8=0.73, small_bandwidth=0.45,
    gemm_flop_16=0.66, gemm_flop_8=0.54, gemm_flop_4=0.43,
    expert_flop_16=0.31, expert_flop_8=0.22, expert_flop_4=0.17, attention_flop=0.37, decode_attention_flop=0.27,
    gemm_launch_s=4e-6, expert_launch_s=33e-6, attention_launch_s=11e-6, small_launch_s=1.5e-6,
    collective_s=7e-6, link_share=0.7, network_s=19e-6, network_share=0.8, offload_share=0.8,
    host_step_s=900e-6, host_seq_s=13e-6, coverage_exponent=0.75, tile_tok=24.0, overlap=HIDDEN,
)  # fmt: skip

ONE = Batch(decode_seqs=1, decode_context_tok=1)
MANY = Batch(decode_seqs=64, decode_context_tok=64 * 4096)
PROMPT = Batch(prefill_seqs=1, prefill_tok=8192, prefill_pair_tok=8192 * 8193 / 2, prefill_finishing=1)


def parts(
    model: Model, batch: Batch, config: EngineConfig | None = None, profile: GpuProfile | None = None
) -> dict[str, OperatorTime]:
    """The terms of a step by name."""
    step = StepModel(model, profile or gpu(), config or engine(), STATED)
    return {part.name: part for part in step.breakdown(batch).parts}


def roofline(fixed_s: float, compute_s: float, memory_s: float) -> object:
    """fixed + the longer + a tenth of the shorter, to a part in a million."""
    longer, shorter = max(compute_s, memory_s), min(compute_s, memory_s)
    return pytest.approx(fixed_s + longer + (1 - HIDDEN) * shorter, rel=1e-6)


# --- matrix multiplications: kernels, inputs and outputs of Llama-3.1-8B

GEMMS = [
    ("qkv projection", 32, 4096, 4096 + 2 * 1024),
    ("attention output", 32, 4096, 4096),
    ("mlp up", 32, 4096, 2 * 14336),
    ("mlp down", 32, 14336, 4096),
    ("lm_head", 1, 4096, 128_256),
]


@pytest.mark.parametrize(("name", "kernels", "inputs", "outputs"), GEMMS)
@pytest.mark.parametrize("batch", [ONE, MANY, PROMPT])
def test_gemm(name: str, kernels: int, inputs: int, outputs: int, batch: Batch) -> None:
    tokens = batch.decode_seqs + (batch.prefill_finishing if name == "lm_head" else batch.prefill_tok)
    # 2 bytes a weight, read once; 2 bytes of each activation in and out; 24 rows more than there are are multiplied
    moved_bytes = kernels * 2 * (inputs * outputs + tokens * (inputs + outputs))
    flop = kernels * 2 * inputs * outputs * (tokens + 24)
    expected = roofline(kernels * 4e-6, flop / (0.66 * FLOP_PER_S), moved_bytes / (0.80 * BYTES_PER_S))
    assert parts(llama_8b(), batch)[name].time_s == expected


@pytest.mark.parametrize(("name", "kernels", "inputs", "outputs"), GEMMS[:-1])
@pytest.mark.parametrize("batch", [ONE, PROMPT])
def test_gemm_in_fp8(name: str, kernels: int, inputs: int, outputs: int, batch: Batch) -> None:
    tokens = batch.decode_seqs + batch.prefill_tok
    moved_bytes = kernels * (inputs * outputs + 2 * tokens * (inputs + outputs))
    flop = kernels * 2 * inputs * outputs * (tokens + 24)
    expected = roofline(kernels * 4e-6, flop / (0.54 * FP8_FLOP_PER_S), moved_bytes / (0.71 * BYTES_PER_S))
    assert parts(llama_8b(fp8=True), batch, engine(weight_dtype="fp8"))[name].time_s == expected


def test_gemm_in_int4_is_multiplied_in_16_bits() -> None:
    # Llama-3.1-8B AWQ: 4 bits a weight, a 16-bit scale and a 4-bit zero for each 128
    awq = as_quantized(catalog_model("meta-llama/Llama-3.1-8B"), "int4-awq")
    up = parts(awq, ONE, engine(weight_dtype="int4-awq"))["mlp up"]
    elements = 32 * 4096 * 28_672
    moved_bytes = elements * (4 + 20 / 128) / 8 + 32 * 2 * (4096 + 28_672)
    assert up.bytes == pytest.approx(moved_bytes, rel=0.01)
    compute_s = 2 * elements * 25 / (0.66 * FLOP_PER_S)
    expected = 32 * 4e-6 + up.bytes / (0.62 * BYTES_PER_S) + 0.1 * compute_s
    assert up.time_s == pytest.approx(expected, rel=1e-6)


def test_two_ranks_hold_half_of_each_matrix() -> None:
    found = parts(llama_8b(), ONE, engine(2))
    # up: 4,096 in, 14,336 out; down: 7,168 in, 4,096 out
    for name, inputs, outputs in (("mlp up", 4096, 14_336), ("mlp down", 7168, 4096)):
        moved_s = 32 * 2 * (inputs * outputs + inputs + outputs) / (0.80 * BYTES_PER_S)
        compute_s = 32 * 2 * inputs * outputs * 25 / (0.66 * FLOP_PER_S)
        assert found[name].time_s == roofline(32 * 4e-6, compute_s, moved_s), name


# --- attention: 32 layers, 32 query and 8 KV heads of 128; the 4 queries of a KV head are padded to a tile of 64


@pytest.mark.parametrize(("dtype", "element_bytes", "share"), [("bf16", 2, 0.84), ("fp8", 1, 0.73)])
def test_attention_decode(dtype: str, element_bytes: int, share: float) -> None:
    seen = 64 * (4096 + DECODE_PAD * 2 / element_bytes)  # the pad moves as many bytes whatever their precision
    moved_bytes = seen * 32 * 8 * (128 + 128) * element_bytes
    flop = seen * 32 * 8 * 64 * 4 * 128
    expected = roofline(32 * 11e-6, flop / (0.27 * FLOP_PER_S), moved_bytes / (share * BYTES_PER_S))
    assert parts(llama_8b(), MANY, engine(kv_cache_dtype=dtype))["attention decode"].time_s == expected


def test_attention_decode_sees_its_window() -> None:
    # 64 x 1,000 rows of 131,072 bytes and their pad, and not 64 x 4,096
    seen = 64 * (1000 + DECODE_PAD)
    moved_bytes, flop = seen * 131_072, seen * 32 * 8 * 64 * 4 * 128
    expected = roofline(32 * 11e-6, flop / (0.27 * FLOP_PER_S), moved_bytes / (0.84 * BYTES_PER_S))
    assert parts(llama_8b(window=1000), MANY)["attention decode"].time_s == expected


def test_attention_prefill() -> None:
    # 8,192 x 8,193 / 2 pairs of a query and a key with their pad, 4 FLOP for each of 32 x 128 elements, in 32 layers
    flop = 8192 * (8193 / 2 + PROMPT_PAD) * 32 * 32 * 4 * 128
    expected = roofline(32 * 11e-6, flop / (0.37 * FLOP_PER_S), 0.0)
    assert parts(llama_8b(), PROMPT)["attention prefill"].time_s == expected


def test_latent_attention() -> None:
    """DeepSeek-V3, one layer: 576 elements of cache a token, 128 heads; 192 and 128 wide where they are not latent."""
    decode, prefill = parts(mla_model(), MANY)["attention decode"], parts(mla_model(), PROMPT)["attention prefill"]
    seen, pairs = 64 * 4096, 8192 * (8193 / 2 + PROMPT_PAD)
    flop = seen * 2 * 128 * (576 + 512)
    assert decode.time_s == roofline(11e-6, flop / (0.27 * FLOP_PER_S), seen * 576 * 2 / (0.84 * BYTES_PER_S))
    assert prefill.time_s == roofline(11e-6, pairs * 2 * 128 * (192 + 128) / (0.37 * FLOP_PER_S), 0.0)


def test_sparse_attention_and_its_indexer() -> None:
    # 64 sequences see 2,048 of their 4,096 tokens; 64 index heads of 128 score all, 128 fp8 elements and a scale each
    found = parts(mla_model(SparseIndexer(64, 128, 2048)), MANY)
    seen = 64 * 2048
    attention = roofline(
        11e-6, seen * 2 * 128 * (576 + 512) / (0.27 * FLOP_PER_S), seen * 576 * 2 / (0.84 * BYTES_PER_S)
    )
    scored = 64 * 4096
    indexer = roofline(11e-6, scored * 2 * 64 * 128 / (0.27 * FLOP_PER_S), scored * 132 / (0.84 * BYTES_PER_S))
    assert (found["attention decode"].time_s, found["indexer decode"].time_s) == (attention, indexer)


def test_block_sparse_attention_and_its_indexer() -> None:
    # MiniMax-M3: 64 heads of 128 see 16 blocks of 128 tokens of 4 KV heads; 4 index heads score every key of 16 bits
    found = parts(mixer_model(Attention(64, 4, 128, 128, indexer=SparseIndexer(4, 128, 2048))), MANY)
    seen, scored = 64 * 2048, 64 * 4096
    for name, rows, flop, row_bytes in (
        ("attention decode", seen, 4 * 4 * 64 * 128, 2 * 4 * 128 * 2),
        ("indexer decode", scored, 2 * 4 * 128, 128 * 2),
    ):
        expected = roofline(11e-6, rows * flop / (0.27 * FLOP_PER_S), rows * row_bytes / (0.84 * BYTES_PER_S))
        assert found[name].time_s == expected, name


def test_small_kernels_of_sparse_attention() -> None:
    compressed = CompressedAttention(128, 512, window=128, compress_ratio=4, indexer=SparseIndexer(64, 128, 512))
    for model, name, kernels in (
        (mla_model(SparseIndexer(64, 128, 2048)), "indexer kernels", 10),
        (mixer_model(Attention(64, 4, 128, 128, indexer=SparseIndexer(4, 128, 2048))), "indexer kernels", 7),
        (mixer_model(compressed), "compressed attention kernels", 12),
    ):
        assert parts(model, ONE)[name].time_s == pytest.approx(kernels * 1.5e-6), name


def test_a_layer_that_reuses_what_an_earlier_one_picked_scores_nothing() -> None:
    # GLM-5.2: an indexer of no heads
    assert not {name for name in parts(mla_model(SparseIndexer(0, 0, 2048)), MANY) if "indexer" in name}


def test_compressed_attention() -> None:
    """A window of 128 tokens, and 1,024 of the rows that stand for 4 tokens each; 128 heads of 512."""
    mixer = CompressedAttention(128, 512, window=128, compress_ratio=4, indexer=SparseIndexer(64, 128, 512))
    found = parts(mixer_model(mixer), MANY)
    for name, rows, flop, row_bytes in (
        ("attention decode", 64 * 128, 4 * 128 * 512, 512 * 2),
        ("compressed attention decode", 64 * 512, 4 * 128 * 512, 512 * 2),
        ("indexer decode", 64 * 1024, 2 * 64 * 128, 132),
    ):
        expected = roofline(11e-6, rows * flop / (0.27 * FLOP_PER_S), rows * row_bytes / (0.84 * BYTES_PER_S))
        assert found[name].time_s == expected, name


def test_prefill_of_compressed_attention() -> None:
    # 8,192 queries see 128 tokens of the window, 512 of the rows that stand for 4 tokens, and score all of these
    mixer = CompressedAttention(128, 512, window=128, compress_ratio=4, indexer=SparseIndexer(64, 128, 512))
    found = parts(mixer_model(mixer), PROMPT)
    for name, pairs, flop, row_bytes in (
        ("attention prefill", 8192 * 128, 4 * 128 * 512, 512 * 2),
        ("compressed attention prefill", 8192 * 512, 4 * 128 * 512, 512 * 2),
        ("indexer prefill", 8192 * 8193 / 2 / 4, 2 * 64 * 128, 0),
    ):
        expected = roofline(11e-6, pairs * flop / (0.37 * FLOP_PER_S), pairs * row_bytes / (0.84 * BYTES_PER_S))
        assert found[name].time_s == expected, name


def test_state_mixers() -> None:
    # 64,000 elements in fp32 and 1,000 of the convolution in bf16, read and written; 6 FLOP and 2 kernels in decode
    mixer = StateMixer("gdn", conv_elements=1000, recurrent_elements=64_000, num_heads=32)
    state_bytes = 2 * (64_000 * 4 + 1000 * 2)
    decode = parts(mixer_model(mixer), MANY)["state decode"]
    compute_s = 64 * 6 * 64_000 / (0.37 * FLOP_PER_S)
    assert decode.time_s == roofline(2 * 1.5e-6, compute_s, 64 * state_bytes / (0.45 * BYTES_PER_S))
    # a prompt: 8 FLOP for each token, 6 kernels, and the state once for each 64 tokens
    prefill = parts(mixer_model(mixer), PROMPT)["state prefill"]
    compute_s, memory_s = 8192 * 8 * 64_000 / (0.37 * FLOP_PER_S), 128 * state_bytes / (0.45 * BYTES_PER_S)
    assert prefill.time_s == roofline(6 * 1.5e-6, compute_s, memory_s)


# --- experts: 48 layers of 128 experts, 8 for each token, 2,048 x 768


def expert_time(tokens: float, *, slices: int = 1, ranks: int = 1) -> object:
    """Of the experts of all layers: 128 (1 - (15 / 16)^(n^0.75)) are read; arithmetic and memory add up."""
    touched = 128 * (1 - (1 - 8 / 128) ** (tokens**0.75)) / ranks
    rows = tokens * 8 / ranks
    rows += sqrt(2 * rows * log(ranks)) if ranks > 1 else 0
    elements = 3 * 2048 * 768 / slices
    row_bytes = 2 * (3 * 2048 + 3 * 768 / slices)
    memory_s = 48 * (touched * 2 * elements + rows * row_bytes) / (0.65 * BYTES_PER_S)
    compute_s = 48 * 2 * elements * rows / (0.31 * FLOP_PER_S)
    return pytest.approx(48 * 33e-6 + compute_s + memory_s, rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 64, 512])
def test_experts(tokens: int) -> None:
    assert parts(moe_model(), Batch(tokens, tokens))["experts"].time_s == expert_time(tokens)


def test_experts_of_a_prompt_are_bound_by_arithmetic() -> None:
    experts = parts(moe_model(), PROMPT)["experts"]
    assert experts.time_s == expert_time(8192)
    assert experts.bound == "compute"


def test_experts_cut_by_tensor_parallelism() -> None:
    assert parts(moe_model(), MANY, engine(4))["experts"].time_s == expert_time(64, slices=4)


def test_experts_spread_by_expert_parallelism() -> None:
    # 64 tokens x 8 / 4 ranks: 128 rows, and sqrt(2 x 128 x ln 4) = 18.8 more on the busiest rank
    config = engine(4, enable_expert_parallel=True)
    assert parts(moe_model(), MANY, config)["experts"].time_s == expert_time(64, ranks=4)


def test_experts_see_the_tokens_of_every_dp_rank() -> None:
    config = engine(1, data_parallel_size=4, enable_expert_parallel=True)
    assert parts(moe_model(), MANY, config)["experts"].time_s == expert_time(4 * 64, ranks=4)


@pytest.mark.parametrize("tp", [1, 4])
def test_router(tp: int) -> None:
    # 48 layers, 2,048 in and a score for each of 128 experts out; every rank holds all of it
    elements = 48 * 2048 * 128
    moved_bytes = 2 * elements + 64 * 48 * 2 * (2048 + 128)
    expected = roofline(48 * 4e-6, 2 * elements * (64 + 24) / (0.66 * FLOP_PER_S), moved_bytes / (0.80 * BYTES_PER_S))
    assert parts(moe_model(), MANY, engine(tp))["router"].time_s == expected


def test_routing() -> None:
    # 5 kernels a layer; 128 scores of 4 bytes go through memory three times for each token
    expected = roofline(48 * 5 * 1.5e-6, 0.0, 64 * 48 * 128 * 4 * 3 / (0.45 * BYTES_PER_S))
    assert parts(moe_model(), MANY)["routing"].time_s == expected


# --- small kernels


@pytest.mark.parametrize("batch", [MANY, PROMPT])
def test_norms_and_activations(batch: Batch) -> None:
    # 8 passes of the hidden vector, 1.5 of gate and up, 2 of q, k and v; 6 kernels a layer
    elements = 8 * 4096 + 1.5 * 2 * 14336 + 2 * 6144
    memory_s = (batch.decode_seqs + batch.prefill_tok) * 32 * 2 * elements / (0.45 * BYTES_PER_S)
    assert parts(llama_8b(), batch)["norms and activations"].time_s == roofline(32 * 6 * 1.5e-6, 0.0, memory_s)


def test_embedding() -> None:
    # two kernels; a row of 4,096 is read and written
    expected = roofline(2 * 1.5e-6, 0.0, 8192 * 2 * 4096 * 2 / (0.45 * BYTES_PER_S))
    assert parts(llama_8b(), PROMPT)["embedding"].time_s == expected


def test_sampler() -> None:
    # 8 kernels; 128,256 logits of 4 bytes go through memory five times for each sequence
    expected = roofline(8 * 1.5e-6, 0.0, 64 * 5 * 128_256 * 4 / (0.45 * BYTES_PER_S))
    assert parts(llama_8b(), MANY)["sampler"].time_s == expected


def test_logits_are_copied_where_several_ranks_made_them() -> None:
    expected = roofline(1.5e-6, 0.0, 64 * 128_256 * 4 / (0.45 * BYTES_PER_S))
    assert parts(llama_8b(), MANY, engine(2))["logits copy"].time_s == expected
    assert "logits copy" not in parts(llama_8b(), MANY)


# --- collectives: 7 us between two ranks, 6 % more for each further pair, 70 % of 450 GB/s


def test_all_reduce() -> None:
    # one after the embedding and two a layer; 64 hidden vectors of 8,192 bytes, 2 x 7 / 8 of them on the bus
    moved_s = 64 * 65 * 8192 * 2 * 7 / 8 / (0.7 * LINK_BYTES_PER_S)
    found = parts(llama_8b(), MANY, engine(8))["all-reduce"]
    assert found.time_s == roofline(65 * 7e-6 * (1 + 0.06 * 3), 0.0, moved_s)


def test_logits_all_gather() -> None:
    moved_s = 64 * 128_256 * 2 * 7 / 8 / (0.7 * LINK_BYTES_PER_S)
    found = parts(llama_8b(), MANY, engine(8))["logits all-gather"]
    assert found.time_s == roofline(7e-6 * 1.18, 0.0, moved_s)


def test_expert_exchange_and_token_all_gather() -> None:
    # TP 2 x DP 4, 48 layers: each rank brings 32 tokens and meets 7 x 32 others, there and back; then halves are joined
    found = parts(moe_model(), MANY, engine(2, data_parallel_size=4, enable_expert_parallel=True))
    exchanged_s = 2 * 48 * 7 * 32 * 4096 / (0.7 * LINK_BYTES_PER_S)
    assert found["expert exchange"].time_s == roofline(2 * 48 * 7e-6 * 1.18, 0.0, exchanged_s)
    gathered_s = 48 * 64 * 4096 / 2 / (0.7 * LINK_BYTES_PER_S)
    assert found["token all-gather"].time_s == roofline(48 * 7e-6, 0.0, gathered_s)


def test_pipeline_hops_in_a_node() -> None:
    # 2 stages: one of two batches of 32 tokens is under way; hidden vector and residual, in two slices
    found = parts(llama_8b(), MANY, engine(2, pipeline_parallel_size=2))
    assert found["pipeline hop"].time_s == roofline(7e-6, 0.0, 32 * 2 * 8192 / 2 / (0.7 * LINK_BYTES_PER_S))
    assert found["pipeline all-gather"].time_s == roofline(7e-6, 0.0, 32 * 2 * 8192 / 2 / (0.7 * LINK_BYTES_PER_S))


def test_pipeline_hop_between_nodes() -> None:
    # TP 8, PP 2 on nodes of 8: eight slices over 80 % of 25 GB/s each, 19 us more
    links = gpu().interconnect.model_copy(update={"network_bandwidth": quantity(25, "GB/s")})
    profile = gpu().model_copy(update={"interconnect": links})
    found = parts(llama_8b(), MANY, engine(8, pipeline_parallel_size=2), profile)
    expected = roofline(7e-6 + 19e-6, 0.0, 32 * 2 * 8192 / 8 / (0.8 * 25e9))
    assert found["pipeline hop between nodes"].time_s == expected


# --- LoRA, weights in host memory, drafts


def test_adapters() -> None:
    # rank 16, 4 adapters; per layer q, k, v, o, gate, up and down: the sides of each matrix add up to 81,920
    sides = 32 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
    config = replace(engine(), lora=LoraConfig(max_loras=4, max_lora_rank=16, max_cpu_loras=4))
    adapters = parts(llama_8b(), MANY, config)["adapters"]
    # shrink and expand of 4 kernels a layer; the product of the first is written and read in 4 bytes
    moved_bytes = 4 * 16 * sides * 2 + 64 * (2 * sides + 8 * 16 * 32 * 7)
    flop = 2 * 16 * sides * (64 + 24)
    assert adapters.count == 32 * 2 * 4
    expected = roofline(32 * 2 * 4 * 4e-6, flop / (0.66 * FLOP_PER_S), moved_bytes / (0.80 * BYTES_PER_S))
    assert adapters.time_s == expected


def test_adapters_of_experts() -> None:
    # 48 layers of gate, up and down, 2,048 x 768; each expert that is read has 4 adapters of rank 16
    sides, matrices = 48 * 3 * (2048 + 768), 48 * 3
    config = replace(engine(), lora=LoraConfig(max_loras=4, max_lora_rank=16, max_cpu_loras=4))
    adapters = parts(moe_model(), MANY, config)["expert adapters"]
    touched, rows = 128 * (1 - (1 - 8 / 128) ** (64**0.75)), 64 * 8
    moved_bytes = touched * 4 * 16 * sides * 2 + rows * (2 * sides + 8 * 16 * matrices)
    memory_s = moved_bytes / (0.65 * BYTES_PER_S)
    compute_s = 2 * 16 * sides * rows / (0.31 * FLOP_PER_S)
    assert adapters.time_s == pytest.approx(48 * 33e-6 + compute_s + memory_s, rel=1e-6)


def test_weights_in_host_memory() -> None:
    # 4 GiB over 64 GB/s of PCIe, of which 85 % are payload: 79 ms
    links = gpu().interconnect.model_copy(update={"host_bandwidth": quantity(64, "GB/s")})
    profile = gpu().model_copy(update={"interconnect": links})
    found = parts(llama_8b(), ONE, engine(cpu_offload_gb=4.0), profile)
    assert found["weights from host"].time_s == pytest.approx(4 * 2**30 / (0.85 * 64e9), rel=1e-6)


def test_search_for_drafts() -> None:
    # 3 ns a token of context, on the host
    speculative = with_acceptance(parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 3}'), "0.7")
    target = StepModel(llama_8b(), gpu(), engine(speculative_config=speculative), STATED)
    found = {part.name: part for part in speculative_step(target, None).breakdown(MANY).parts}
    assert found["draft: n-gram search"].time_s == pytest.approx(64 * 4096 * 3e-9)


# --- the host


def host_only(batch: Batch, **changes: object) -> float:
    """Seconds that a step takes beside its terms."""
    step = StepModel(llama_8b(), gpu(), engine(**changes), STATED)  # type: ignore[arg-type]
    return step.step_s(batch) - sum(part.time_s for part in step.breakdown(batch).parts if part.name != "host")


def test_host_in_turn() -> None:
    # 900 us a step and 13 us for each of 64 sequences
    assert host_only(MANY) == pytest.approx(900e-6 + 64 * 13e-6)


def test_host_visits_once_in_several_steps() -> None:
    assert host_only(MANY, num_scheduler_steps=8) == pytest.approx((900e-6 + 64 * 13e-6) / 8)


def test_host_behind_the_gpu() -> None:
    # a tenth of it is not hidden
    assert host_only(MANY, async_scheduling=True) == pytest.approx(0.1 * (900e-6 + 64 * 13e-6))


def test_gpu_behind_the_host() -> None:
    slow = replace(STATED, host_step_s=50e-3)
    step = StepModel(llama_8b(), gpu(), engine(async_scheduling=True), slow)
    assert step.step_s(ONE) == pytest.approx(1.1 * (50e-3 + 13e-6))


def test_launches_without_a_graph() -> None:
    # 32 layers of 4 GEMMs, 2 kernels of attention and 6 small ones; embedding 2, lm_head 1, sampler 8: 395
    eager = replace(STATED, eager_launch_s=50e-6)
    step = StepModel(llama_8b(), gpu(), engine(enforce_eager=True), eager)
    assert step.step_s(ONE) == pytest.approx(395 * 50e-6 + 913e-6)


def test_a_tied_embedding_is_the_lm_head() -> None:
    # 1,024 x 1,024 in 16 bits
    model = mixer_model(Attention(8, 8, 64, 64))
    tied = replace(model, outer=model.outer[:2])
    compute_s = 2 * 1024 * 1024 * 25 / (0.66 * FLOP_PER_S)
    memory_s = 2 * (1024 * 1024 + 2048) / (0.80 * BYTES_PER_S)
    assert parts(tied, ONE)["lm_head"].time_s == roofline(4e-6, compute_s, memory_s)
