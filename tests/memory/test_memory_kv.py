"""KV cache: bytes per token, groups of layers, blocks, and what vLLM prints. Expected values are worked out by hand
or are vLLM's own log lines; the grouping is compared with vLLM itself in ``benchmarks/memory_against_vllm.py``."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import bytes_per_token, model, pool

from planner.errors import InputError
from planner.memory.cache import (
    BlockPool,
    CacheSettings,
    CacheSpec,
    attention_kinds,
    block_pool,
    element_bytes,
    kv_bytes_per_token,
    layer_specs,
    stored_weight_bytes,
)
from planner.model.resolve import resolve_model
from planner.output.tables.facts import model_facts
from planner.units import GIB


@pytest.mark.parametrize(
    ("name", "size", "dtype", "expected"),
    [
        ("meta-llama/Llama-2-7b-hf", 1, "fp16", 524_288),  # 2 x 32 layers x 4096 x 2 B
        ("meta-llama/Llama-2-13b-hf", 1, "fp16", 819_200),  # 2 x 40 layers x 5120 x 2 B
        ("meta-llama/Llama-3.1-8B", 1, "bf16", 131_072),  # 32 layers x 8 heads x 2 x 128 x 2 B
        ("meta-llama/Llama-3.1-8B", 8, "bf16", 16_384),  # one head on each rank
        ("meta-llama/Llama-3.1-8B", 8, "fp8", 8_192),
        ("Qwen/Qwen3-235B-A22B", 4, "bf16", 48_128),  # 94 layers x 1 head x 2 x 128 x 2 B
        ("Qwen/Qwen3-235B-A22B", 8, "bf16", 48_128),  # 4 heads: TP 8 repeats them
        ("deepseek-ai/DeepSeek-V3", 1, "bf16", 70_272),  # 61 layers x 576 x 2 B
        ("deepseek-ai/DeepSeek-V3", 8, "bf16", 70_272),  # not divided
        ("deepseek-ai/DeepSeek-V3", 8, "fp8", 35_136),
        ("zai-org/GLM-5", 8, "bf16", 100_152),  # 78 layers x (1152 + 132 of the indexer) B
        ("deepseek-ai/DeepSeek-V3.2", 8, "fp8", 48_068),  # 61 layers x (656 packed + 132) B
        ("openai/gpt-oss-120b", 1, "bf16", 73_728),  # 36 layers x 8 heads x 2 x 64 x 2 B
        ("mistralai/Mistral-7B-v0.1", 1, "bf16", 131_072),
    ],
)
def test_bytes_of_a_token_on_each_rank(name: str, size: int, dtype: str, expected: int) -> None:
    assert bytes_per_token(pool(name, tensor_parallel_size=size, kv_cache_dtype=dtype)) == expected


def test_a_cache_type_without_a_known_layout_is_refused() -> None:
    with pytest.raises(InputError, match="bytes per token not known") as error:
        element_bytes("turboquant_k8v4")
    assert "fp8" in error.value.hint


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("meta-llama/Llama-3.1-8B", [32]),
        ("openai/gpt-oss-120b", [18, 18]),  # windowed and full layers take turns
        ("google/gemma-3-27b-it", [10, 9, 9, 9, 9, 8, 8]),  # 10 full, 52 windowed in ceil(52 / 10) groups
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", [12, 12, 12, 12]),  # 12 attention, 36 with a state
        ("zai-org/GLM-5", [156]),  # latent and indexer rows always need the same number of blocks
        ("mistralai/Mistral-7B-v0.1", [32]),  # all layers have the same window
    ],
)
def test_groups_of_layers(name: str, groups: list[int]) -> None:
    assert sorted((len(g.members) for g in pool(name).groups), reverse=True) == groups


def test_nearly_equal_kinds_are_padded_to_the_larger() -> None:
    """vLLM's own example: 12 windowed and 13 full layers make two groups of 13, not three of 12."""
    full, window = CacheSpec("full", 16, 100), CacheSpec("window", 16, 100, 128)
    layers = [(i, full) for i in range(13)] + [(13 + i, window) for i in range(12)]
    found = block_pool(layers, hybrid=True, in_flight_tokens=2048)
    assert [len(g.members) for g in found.groups] == [13, 12]
    assert found.block_bytes(range(25)) == 13 * 16 * 100  # the padding costs memory


def test_without_the_hybrid_manager_windows_are_kept_whole() -> None:
    found = pool("openai/gpt-oss-120b", hybrid=False)
    assert [len(g.members) for g in found.groups] == [36]
    assert found.blocks_per_request(131072) == 131072 // 16


def test_deepseek_v4_packs_pages_of_several_sizes() -> None:
    """What vLLM 0.32 makes of DeepSeek-V4-Flash: 43 windows in two groups, and the rows of 21 + 21 + 20 layers."""
    found = pool("deepseek-ai/DeepSeek-V4-Flash", block_size=256)
    assert Counter(len(g.members) for g in found.groups) == Counter([22, 21, 62, 42, 20])
    # 21 pages of 64 rows of 584 B and 21 of 64 x 132 B, 20 of 2 rows, each rounded up to 576 B
    assert found.block_bytes(range(43)) == 21 * (37440 + 8640) + 20 * 1728


def test_attention_blocks_grow_to_the_size_of_a_state() -> None:
    """Qwen3.5-35B-A3B: a state of 32 x 128 x 128 x 4 B and 8,192 x 3 x 2 B of convolution; 2,048 B per token.

    2,146,304 / 2,048 = 1,048 tokens, rounded up to a multiple of 16. With three draft tokens the convolution
    keeps six columns, and the same sum gives the 1,072 that a start-up logged.
    """
    found = pool("Qwen/Qwen3.5-35B-A3B")
    assert found.block_size == 1056
    assert {spec.page_bytes for group in found.groups for spec in group.specs} == {1056 * 2048}
    assert -(-(32 * 128 * 128 * 4 + 8192 * 6 * 2) // 2048 // 16) * 16 == 1072


def test_tensor_parallelism_divides_states() -> None:
    settings = [CacheSettings(size, "bf16", "bf16", 16, 0) for size in (1, 8)]
    whole, shared = ({s.state_bytes for _, s in layer_specs(model("tiiuae/falcon-mamba-7b"), s)} for s in settings)
    assert whole == {8192 * 3 * 2 + 8192 * 16 * 2}  # convolution and recurrent state, 16 bits
    assert shared == {(8192 * 3 * 2 + 8192 * 16 * 2) // 8}


def test_prefix_caching_keeps_two_states_per_request() -> None:
    once = pool("Qwen/Qwen3-Next-80B-A3B-Instruct")
    twice = pool("Qwen/Qwen3-Next-80B-A3B-Instruct", states_per_request=2)
    assert twice.blocks_per_request(4096) - once.blocks_per_request(4096) == 3  # one more for each group of states


@pytest.mark.parametrize(
    ("name", "size", "dtype", "available_gib", "logged_tokens"),
    [  # "Available KV cache memory" and "GPU KV cache size" of published start-ups
        ("Qwen/Qwen3-4B", 1, "bf16", 58.05, 422_672),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 1, "bf16", 18.15, 198_288),
        ("Qwen/Qwen3-235B-A22B-FP8", 8, "fp8", 35.65, 1_590_736),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 1, "bf16", 105.97, 868_080),
        ("Qwen/Qwen2-7B-Instruct", 2, "bf16", 31.83, 1_192_160),
        ("Qwen/Qwen3-0.6B", 1, "bf16", 37.42, 350_304),
    ],
)
def test_tokens_in_the_available_memory_are_what_vllm_logged(
    name: str, size: int, dtype: str, available_gib: float, logged_tokens: int
) -> None:
    found = pool(name, tensor_parallel_size=size, kv_cache_dtype=dtype)
    blocks = int(available_gib * GIB // found.block_bytes(range(model(name).num_layers)))
    # the log rounds GiB to two digits
    assert found.logged_tokens(blocks, 4096, by_concurrency=False) == pytest.approx(logged_tokens, rel=5e-4)


def test_both_meanings_of_logged_tokens_agree_where_all_layers_are_alike() -> None:
    found = pool("Qwen/Qwen3-4B")
    blocks = 422_672 // 16
    assert found.logged_tokens(blocks, 40_960, by_concurrency=False) == 422_672
    assert found.logged_tokens(blocks, 40_960, by_concurrency=True) == 422_672
    assert found.max_concurrency(blocks, 40_960) == pytest.approx(10.32, abs=0.005)  # as logged


def test_the_old_meaning_understates_what_hybrids_hold() -> None:
    """vLLM printed 973,760 tokens for a Qwen3-Next whose concurrency x length was 3.87 million."""
    found = pool("Qwen/Qwen3-Next-80B-A3B-Instruct")
    blocks = 7_000
    old, new = (found.logged_tokens(blocks, 262_144, by_concurrency=meaning) for meaning in (False, True))
    assert new / old == pytest.approx(3.87e6 / 973_760, rel=0.05)


def test_a_request_longer_than_a_window_does_not_cost_more_in_it() -> None:
    """gpt-oss: 128 - 1 + 8,192 tokens in flight = 520 blocks of 16, and one because a window may begin anywhere."""
    found = pool("openai/gpt-oss-120b")
    assert found.blocks_per_request(131_072) == 131_072 // 16 + 520 + 1


def test_the_longest_request_is_exact() -> None:
    found = pool("openai/gpt-oss-120b")
    longest = found.longest(5_000, 131_072)
    assert found.blocks_per_request(longest) <= 5_000 < found.blocks_per_request(longest + 1)


def test_context_parallel_ranks_share_the_tokens() -> None:
    alone, shared = pool("deepseek-ai/DeepSeek-V3"), pool("deepseek-ai/DeepSeek-V3", context_shards=8)
    assert shared.blocks_per_request(131_072) == alone.blocks_per_request(131_072) // 8
    assert shared.logged_tokens(1000, 4096, by_concurrency=False) == 8 * 16_000


ALL_KINDS = st.sampled_from(
    [
        "meta-llama/Llama-3.1-8B",
        "Qwen/Qwen3-235B-A22B",
        "deepseek-ai/DeepSeek-V3",
        "deepseek-ai/DeepSeek-V3.2",
        "openai/gpt-oss-120b",
        "google/gemma-3-27b-it",
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
    ]
)


@given(name=ALL_KINDS, size=st.sampled_from([1, 2, 4]))
def test_bytes_per_token_never_grow_with_tp(name: str, size: int) -> None:
    here = bytes_per_token(pool(name, tensor_parallel_size=size))
    assert bytes_per_token(pool(name, tensor_parallel_size=2 * size)) <= here


@given(name=ALL_KINDS.filter(lambda n: "V3.2" not in n), size=st.sampled_from([1, 2, 8]))
def test_an_8_bit_cache_halves_the_bytes(name: str, size: int) -> None:
    wide = bytes_per_token(pool(name, tensor_parallel_size=size))
    assert bytes_per_token(pool(name, tensor_parallel_size=size, kv_cache_dtype="fp8")) == wide / 2


def windowed(window: int, block_size: int, in_flight_tokens: int) -> BlockPool:
    """Six layers, of which four have a window."""
    full, local = CacheSpec("full", block_size, 256), CacheSpec("window", block_size, 256, window)
    layers = [(i, full if i % 3 == 0 else local) for i in range(6)]
    return block_pool(layers, hybrid=True, in_flight_tokens=in_flight_tokens)


@given(
    window=st.integers(1, 20_000),
    longer=st.integers(0, 20_000),
    tokens=st.integers(1, 50_000),
    block_size=st.sampled_from([16, 32, 64]),
    in_flight=st.sampled_from([512, 2048, 8192]),
)
def test_a_longer_window_never_holds_fewer_bytes(
    window: int, longer: int, tokens: int, block_size: int, in_flight: int
) -> None:
    narrow, wide = (windowed(w, block_size, in_flight) for w in (window, window + longer))
    assert bytes_per_request(wide, tokens) >= bytes_per_request(narrow, tokens)


def bytes_per_request(found: BlockPool, tokens: int) -> int:
    """Bytes that a request of ``tokens`` holds in six layers."""
    return found.blocks_per_request(tokens) * found.block_bytes(range(6))


@given(name=ALL_KINDS, tokens=st.integers(1, 100_000), more=st.integers(0, 50_000))
def test_a_longer_request_never_needs_less(name: str, tokens: int, more: int) -> None:
    found = pool(name)
    assert found.blocks_per_request(tokens + more) >= found.blocks_per_request(tokens)


def test_model_facts_have_the_contracts_keys() -> None:
    found = model_facts(resolve_model("meta-llama/Llama-2-13B", network=False))
    assert (found["requested"], found["resolved"]) == ("meta-llama/Llama-2-13B", "meta-llama/Llama-2-13b-hf")
    assert (found["total_params"], found["active_params"]) == (13_015_864_320, 13_015_864_320)
    assert found["quantization"] == {"weight_dtype": "fp16", "method": None, "kv_cache_dtype": "fp16"}


def test_facts_of_a_model_need_no_gpu() -> None:
    llama = model("meta-llama/Llama-2-13b-hf")
    assert stored_weight_bytes(llama) == 26_031_728_640
    deepseek = stored_weight_bytes(model("deepseek-ai/DeepSeek-V3"), mtp=True)
    assert deepseek == pytest.approx(688_574_839_360, rel=1e-6)  # tensors of the published safetensors
    assert kv_bytes_per_token(llama) == 819_200
    assert attention_kinds(llama) == "MHA 40"
    assert attention_kinds(model("meta-llama/Llama-3.1-8B")) == "GQA 32/8"
    assert kv_bytes_per_token(model("google/gemma-4-E2B-it")) == 12 * 1024 + 3 * 2048  # 20 of 35 layers keep nothing
    gpt_oss = model("openai/gpt-oss-120b")  # 18 of 36 layers have windows
    assert kv_bytes_per_token(gpt_oss) == 2 * kv_bytes_per_token(gpt_oss, past_windows=True) == 73_728
    assert attention_kinds(model("zai-org/GLM-5")) == "MLA + sparse indexer"
    assert attention_kinds(model("Qwen/Qwen3-Next-80B-A3B-Instruct")) == "GDN x 36, GQA 16/2 x 12"
