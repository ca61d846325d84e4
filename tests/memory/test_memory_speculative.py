"""What drafting holds: modules and draft models against published sizes, caches and states against logged start-ups."""

from typing import Any

import pytest
from memory_cases import budget, config, model

from planner.engine.resolution import parse_speculative_config
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.memory.budget import Basis, MemoryBudget, StageBudget, memory_budget
from planner.model.build import model_from_config
from planner.units import GIB


def drafting(method: str, tokens: int = 3, **more: Any) -> Any:
    """A ``--speculative-config``."""
    named = "".join(f', "{key}": "{value}"' for key, value in more.items())
    return parse_speculative_config(f'{{"method": "{method}", "num_speculative_tokens": {tokens}{named}}}')


def with_draft(draft: str, method: str, name: str = "meta-llama/Llama-3.3-70B-Instruct", **flags: Any) -> MemoryBudget:
    """The budget of a model and a second one that drafts for it."""
    settings = config(name, "h100", "0.33.0", speculative_config=drafting(method, model=draft), **flags)
    return memory_budget(model(name), load_profile("h100"), settings, Basis(draft=model(draft)))


def spark(tokens: int) -> MemoryBudget:
    """Qwen3.6-35B-A3B in NVFP4 with vLLM 0.25.1, 262,144 tokens of context; somebody's DGX Spark logged it."""
    flags: dict[str, Any] = {"max_num_seqs": 32, "enable_prefix_caching": False}
    if tokens:
        flags["speculative_config"] = drafting("mtp", tokens)
    return budget("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "rtx-pro-6000", "0.25.1", **flags)


def test_a_hybrid_with_an_mtp_module_is_what_vllm_logged() -> None:
    """23.45 GiB of weights, attention blocks of 1,072 tokens, 3,366,051 tokens in 74.22 GiB.

    A state is 32 x 128 x 128 x 4 B and 8,192 x (3 + 3 drafts) x 2 B of convolution; 2,048 B per token and layer:
    1,072 tokens. 11 layers of attention are one group, 30 of states three. A request takes ceil(262,144 / 1,072)
    = 245 blocks and, in each of three groups, one state and three for drafts: 257 in all. 3,300 blocks / 257 =
    12.84 requests, as logged.
    """
    found = spark(3)
    assert found.binding.weights.loaded_bytes / GIB == pytest.approx(23.45, rel=2e-3)
    assert found.pool.block_size == 1072
    assert sorted(len(group.members) for group in found.pool.groups) == [10, 10, 10, 11]
    assert found.pool.blocks_per_request(262_144) == 245 + 3 * (1 + 3)
    assert found.logged_tokens(3_300) == 3_366_051
    assert 74.22 * GIB // found.binding.block_bytes == pytest.approx(3_300, abs=1)


def test_without_drafts_the_same_model_holds_more() -> None:
    plain, drafted = spark(0), spark(3)
    assert (plain.pool.block_size, plain.binding.weights.draft_bytes) == (1056, 0)
    assert plain.logged_tokens(3_300) > drafted.logged_tokens(3_300)


def test_a_27b_hybrid_with_an_8_bit_cache_has_blocks_of_1600() -> None:
    """(48 x 128 x 128 x 4 + 10,240 x 6 x 2) B of state / 2,048 B per token = 1,596: the next multiple of 16."""
    assert -(-(48 * 128 * 128 * 4 + 10_240 * 6 * 2) // 2_048) == 1_596
    found = budget(
        "nvidia/Qwen3.6-27B-NVFP4", "rtx-pro-6000", "0.25.1",
        kv_cache_dtype="fp8", speculative_config=drafting("mtp"),
    )  # fmt: skip
    assert found.pool.block_size == 1600


def test_deepseeks_module_is_loaded_without_its_tables() -> None:
    """The repository says 14 B parameters, of which 11.5 B are the module's own; they are stored in 8 bits."""
    found = budget(
        "deepseek-ai/DeepSeek-V3", "h200", "0.33.0", tensor_parallel_size=8, speculative_config=drafting("mtp", 1)
    ).binding
    plain = budget("deepseek-ai/DeepSeek-V3", "h200", "0.33.0", tensor_parallel_size=8).binding
    drafted = found.weights.draft_bytes
    assert found.weights.loaded_bytes - plain.weights.loaded_bytes == drafted
    # experts and most of attention are cut in 8; the projection (2 x 7,168^2 x 2 B) and the router are not
    assert 11.5e9 / 8 < drafted < 11.9e9 / 8 + 2 * 7_168**2 * 2 + 0.1e9
    assert found.block_bytes == plain.block_bytes * 62 // 61


def test_publishers_forms_keep_modules_in_16_bits() -> None:
    """GLM-5.3 in NVFP4 on four B200 logged 106.57 GiB without and 111.49 GiB with its module: 4.92 GiB."""
    glm = budget(
        "nvidia/GLM-5.2-NVFP4", "b200", "0.30.0", tensor_parallel_size=4, speculative_config=drafting("mtp", 1)
    )
    assert glm.binding.weights.draft_bytes / GIB == pytest.approx(4.92, rel=0.03)


def test_over_several_stages_the_last_one_drafts_and_loads_the_embedding_again() -> None:
    flags: dict[str, Any] = {"tensor_parallel_size": 8, "speculative_config": drafting("mtp", 1)}
    one = budget("deepseek-ai/DeepSeek-V3", "h200", "0.33.0", **flags).binding
    first, last = budget("deepseek-ai/DeepSeek-V3", "h200", "0.33.0", pipeline_parallel_size=2, **flags).stages
    assert first.weights.draft_bytes == 0
    assert last.weights.draft_bytes - one.weights.draft_bytes == 129_280 * 7_168 * 2 // 8
    assert last.weights.layers == range(31, 62)  # 61 layers, 31 and 30, and one that drafts


def test_a_draft_model_brings_its_weights_and_its_cache() -> None:
    """Llama-3.2-1B on four ranks: 1,235,814,400 parameters, of which 33 norms of 2,048 are on every rank."""
    found = with_draft("meta-llama/Llama-3.2-1B", "draft_model", tensor_parallel_size=4)
    norms = 33 * 2_048
    assert found.binding.weights.draft_bytes == 2 * ((1_235_814_400 - norms) // 4 + norms)
    kv_bytes = sum(spec.bytes_per_token for group in found.pool.groups for _, spec in group.members)
    # 80 layers x 2 heads x 2 x 128, and 16 layers x 2 heads x 2 x 64, in 16 bits
    assert kv_bytes == 2 * (80 * 2 * 2 * 128 + 16 * 2 * 2 * 64)


def test_eagle_shares_embedding_and_head() -> None:
    """Llama-3.2-1B as an EAGLE head: without its tied table of 128,256 rows, and a projection of 4,096 inputs more."""
    found = with_draft("meta-llama/Llama-3.2-1B", "eagle", "meta-llama/Llama-3.1-8B")
    expected = 2 * (1_235_814_400 - 128_256 * 2_048 + 4_096 * 2_048)
    assert found.binding.weights.draft_bytes == expected


def test_eagle_3_brings_a_projection_and_a_head_of_its_own() -> None:
    """``llama_eagle3.py`` of 0.22, for Llama-3.1-8B: q, k and v read 8,192 inputs, ``fc`` 12,288; 32,000 tokens.

    One layer: (4,096 + 2 x 1,024) x 8,192 + 4,096 x 4,096 + 3 x 4,096 x 14,336 and three norms; with ``fc``, lm_head
    and the last norm 424 million parameters, in 16 bits, beside the model's embedding.
    """
    draft = model_from_config(
        {
            "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "torch_dtype": "bfloat16",
            "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
            "num_hidden_layers": 1, "vocab_size": 128256, "draft_vocab_size": 32000, "max_position_embeddings": 2048,
        },
        model_id="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    )  # fmt: skip
    target, gpu = model("meta-llama/Llama-3.1-8B"), load_profile("h100")
    settings = config(target.id, "h100", "0.33.0", speculative_config=drafting("eagle3", model=draft.id))
    found = memory_budget(target, gpu, settings, Basis(draft=draft))
    layer = (4096 + 2 * 1024) * 8192 + 4096 * 4096 + 3 * 4096 * 14336 + 3 * 4096
    expected = 2 * (layer + 3 * 4096 * 4096 + 32000 * 4096 + 4096)
    assert found.binding.weights.draft_bytes == expected


def test_the_drafts_architecture_must_be_known() -> None:
    settings = config(
        "meta-llama/Llama-3.1-8B", "h100", "0.33.0", speculative_config=drafting("draft_model", model="a/b")
    )
    with pytest.raises(InputError, match="architecture of a/b is needed"):
        memory_budget(model("meta-llama/Llama-3.1-8B"), load_profile("h100"), settings)


def test_drafts_by_ngram_hold_nothing() -> None:
    name = "meta-llama/Llama-3.1-8B"
    flags: dict[str, Any] = {"async_scheduling": False}
    plain = budget(name, "h100", "0.33.0", **flags)
    drafted = budget(name, "h100", "0.33.0", speculative_config=drafting("ngram"), **flags)
    assert parts(plain.binding) == parts(drafted.binding)
    assert plain.num_blocks == drafted.num_blocks


def parts(stage: StageBudget) -> tuple[float, ...]:
    """Bytes of one GPU."""
    return stage.weights.loaded_bytes, stage.block_bytes, stage.available.mid


def test_ranks_that_share_tokens_hold_as_many_times_more() -> None:
    """DeepSeek-V3 on eight ranks: each holds all of the latent cache, or an eighth of it."""
    flags: dict[str, Any] = {"tensor_parallel_size": 8, "max_model_len": 32_768}
    alone = budget("deepseek-ai/DeepSeek-V3", "h200", "0.20.0", **flags)
    shared = budget("deepseek-ai/DeepSeek-V3", "h200", "0.20.0", decode_context_parallel_size=8, **flags)
    assert shared.num_blocks == alone.num_blocks
    assert shared.logged_tokens(1_000) == 8 * alone.logged_tokens(1_000)
