"""What ``--speculative-config`` and ``--decode-context-parallel-size`` may say: vLLM's own rules and refusals."""

import json
from typing import Any

import pytest
from memory_cases import config, version

from planner import Serving
from planner.engine.command import serve_argv
from planner.engine.features import version_features
from planner.engine.resolution import parse_speculative_config
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile

MTP = parse_speculative_config('{"method": "mtp", "num_speculative_tokens": 2}')
NGRAM = parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}')
LLAMA_1B = parse_speculative_config('{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}')


@pytest.mark.parametrize(
    ("text", "method"),
    [
        ('{"method": "mtp", "num_speculative_tokens": 1}', "mtp"),
        ('{"method": "deepseek_mtp", "num_speculative_tokens": 1}', "mtp"),  # until 0.11
        ('{"method": "[ngram]", "num_speculative_tokens": 1}', "ngram"),
        ('{"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B", "num_speculative_tokens": 1}', "eagle"),
        ('{"model": "a/eagle3-head", "num_speculative_tokens": 1}', "eagle3"),
        ('{"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}', "eagle3"),
        ('{"model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 1}', "draft_model"),
    ],
)
def test_methods_are_named_or_guessed_as_vllm_does(text: str, method: str) -> None:
    assert parse_speculative_config(text).method == method


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mtp", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"method": "mtp"}', "num_speculative_tokens"),
        ('{"method": "mtp", "num_speculative_tokens": 0}', "at least 1"),
        ('{"method": "mtp", "num_speculative_tokens": true}', "whole number"),
        ('{"num_speculative_tokens": 1}', "neither method nor model"),
        ('{"method": "medusa", "model": "x", "num_speculative_tokens": 1}', "'medusa' is not known"),
        ('{"method": "draft_model", "num_speculative_tokens": 1}', "needs a model"),
        ('{"model": 7, "num_speculative_tokens": 1}', "hub id or a path"),
        ('{"method": "mtp", "num_speculative_tokens": 1, "draft_tensor_parallel_size": 0}', "at least 1"),
    ],
)
def test_what_is_not_understood_is_refused_with_a_way_out(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        parse_speculative_config(text)
    assert error.value.hint


def mtp(**more: object) -> dict[str, Any]:
    """One draft token of the model's own module, and further keys of the JSON."""
    text = json.dumps({"method": "mtp", "num_speculative_tokens": 1, **more})
    return {"tensor_parallel_size": 8, "speculative_config": parse_speculative_config(text)}


def draft(name: str = "meta-llama/Llama-3.2-1B", **more: object) -> dict[str, Any]:
    text = json.dumps({"method": "draft_model", "model": name, "num_speculative_tokens": 5, **more})
    return {"tensor_parallel_size": 4, "speculative_config": parse_speculative_config(text)}


def shared(size: int, ranks: int = 8) -> dict[str, Any]:
    """Ranks that share tokens."""
    return {"tensor_parallel_size": ranks, "decode_context_parallel_size": size}


LLAMA, DEEPSEEK, QWEN = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B"


@pytest.mark.parametrize(
    ("name", "release", "flags", "words"),
    [
        (LLAMA, "0.33.0", {"speculative_config": MTP}, "no multi-token-prediction modules"),
        ("deepseek-ai/DeepSeek-R1", "0.10.2", {"speculative_config": MTP}, "has no method mtp"),  # "deepseek_mtp" there
        (LLAMA, "0.14.0", {"speculative_config": LLAMA_1B}, "not before 0.15.0"),
        (DEEPSEEK, "0.7.3", {"speculative_config": MTP, "tensor_parallel_size": 8}, "drafts by mtp are not modelled"),
        (LLAMA, "0.7.3", {"speculative_config": NGRAM, "enable_chunked_prefill": True}, "it is not modelled"),
        (LLAMA, "0.33.0", {"speculative_config": NGRAM, "async_scheduling": True}, "drafts by ngram"),
        (DEEPSEEK, "0.33.0", mtp(acceptance_method="x"), "does not know 'acceptance_method'"),
        (DEEPSEEK, "0.33.0", mtp(draft_tensor_parallel_size=4), "neither 1 nor the model's 8"),
        (
            LLAMA,
            "0.27.1",
            draft(draft_tensor_parallel_size=1),
            "1 is not the model's 4",
        ),  # v1/spec_decode/draft_model.py
        (DEEPSEEK, "0.10.1", shared(8), "not before 0.10.2"),
        (DEEPSEEK, "0.33.0", shared(3), "does not divide"),
        (LLAMA, "0.33.0", shared(2), "8 KV heads for 8 ranks"),
        (QWEN, "0.33.0", shared(4), "4 KV heads for 8 ranks"),
        (QWEN, "0.11.0", shared(2), "is not known"),
        ("openai/gpt-oss-120b", "0.33.0", shared(2, ranks=16), "is not known"),
    ],
)
def test_what_the_version_or_the_model_cannot_do_is_refused(
    name: str, release: str, flags: dict[str, Any], words: str
) -> None:
    with pytest.raises(IllegalPlanError, match=words) as error:
        config(name, "h200", release, **flags)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "drafting", "release", "mapped", "refused"),
    [
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "0.24.0", False, True),  # 152,064 and 151,936
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "0.32.0", False, True),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "0.32.0", True, False),
        ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "0.32.0", False, False),
        ("meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "0.32.0", False, True),
        ("Qwen/Qwen3-32B", "Qwen/Qwen3-0.6B", "0.32.0", False, False),
    ],
)
def test_a_draft_model_has_the_vocabulary_of_the_model(
    name: str, drafting: str, release: str, mapped: bool, refused: bool
) -> None:
    """``verify_equal_vocab_size_if_draft_model`` of config/speculative.py; use_heterogeneous_vocab came in 0.25."""
    flags = draft(drafting, **({"use_heterogeneous_vocab": True} if mapped else {}))
    serving = Serving(name, "h100", engine_version=release, max_model_len=8192, **flags)
    if not refused:
        assert serving.memory.config.speculative_config
        return
    with pytest.raises(IllegalPlanError, match="vocabulary") as error:
        _ = serving.memory
    assert ("use_heterogeneous_vocab" in error.value.hint) is (release >= "0.25")


def test_a_draft_model_falls_back_to_v0_where_v1_cannot_draft_with_one() -> None:
    """``_is_v1_supported_oracle`` of 0.8.0 to 0.9.2; V0 lost its drafts in 0.10.0 (pull request 21152)."""
    assert config(LLAMA, "h100", "0.9.2").engine == "V1"
    assert config(LLAMA, "h100", "0.9.2", speculative_config=LLAMA_1B).engine == "V0"
    with pytest.raises(IllegalPlanError, match=r"not before 0\.15\.0"):
        config(LLAMA, "h100", "0.10.0", speculative_config=LLAMA_1B)
    with pytest.raises(IllegalPlanError, match="no longer drafts"):
        config(LLAMA, "a100-sxm-80gb", "0.10.0", kv_cache_dtype="fp8", speculative_config=NGRAM)


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.7.3", "--speculative-model meta-llama/Llama-3.2-1B --num-speculative-tokens 5"),
        ("0.8.3", '--speculative-config {"model":"meta-llama/Llama-3.2-1B","num_speculative_tokens":5}'),
        ("0.33.0", '--speculative-config {"model":"meta-llama/Llama-3.2-1B","num_speculative_tokens":5}'),
    ],
)
def test_each_version_is_launched_in_its_own_words(release: str, words: str) -> None:
    """``--speculative-model`` went in 0.8.3; ``--speculative-config`` came in 0.8.2 (vLLM's option tables)."""
    found = " ".join(serve_argv(config(LLAMA, "mi300x", release, speculative_config=LLAMA_1B), LLAMA))
    assert words in found
    assert found.count("speculative") == words.count("speculative")


def test_prompt_lookup_had_a_model_of_its_own_name() -> None:
    found = " ".join(serve_argv(config(LLAMA, "mi300x", "0.7.3", speculative_config=NGRAM), LLAMA))
    assert "--speculative-model [ngram]" in found
    assert "--num-speculative-tokens 4" in found
    assert "--ngram-prompt-lookup-max 4" in found


def test_what_was_planned_is_launched() -> None:
    found = config(
        "deepseek-ai/DeepSeek-V3", "h200", "0.33.0",
        tensor_parallel_size=8, decode_context_parallel_size=8, speculative_config=MTP,
    )  # fmt: skip
    words = serve_argv(found, "deepseek-ai/DeepSeek-V3")
    assert words[words.index("--decode-context-parallel-size") + 1] == "8"
    assert words[words.index("--speculative-config") + 1] == '{"method":"mtp","num_speculative_tokens":2}'
    plain = serve_argv(config("deepseek-ai/DeepSeek-V3", "h200", "0.33.0", tensor_parallel_size=8), "x")
    assert not {"--decode-context-parallel-size", "--speculative-config"} & set(plain)


def test_drafts_by_ngram_switch_asynchronous_scheduling_off() -> None:
    """vLLM raises when it is asked for, and leaves it off otherwise (config/vllm.py)."""
    assert config("meta-llama/Llama-3.1-8B", "h100", "0.33.0").async_scheduling
    assert not config("meta-llama/Llama-3.1-8B", "h100", "0.33.0", speculative_config=NGRAM).async_scheduling
    assert config(
        "deepseek-ai/DeepSeek-V3", "h200", "0.33.0", tensor_parallel_size=8, speculative_config=MTP
    ).async_scheduling


@pytest.mark.parametrize(
    ("field", "last_without", "first_with"),
    [
        ("keeps_windows", "0.9.0", "0.9.1"),
        ("keeps_chunks", "0.11.2", "0.12.0"),
        ("context_parallel_heads", "0.11.0", "0.11.1"),
        ("draft_models", "0.14.0", "0.15.0"),
        ("streams_online_quantization", "0.14.0", "0.15.0"),
        ("reserves_whole_prompt", "0.18.1", "0.19.0"),
    ],
)
def test_where_versions_turn(field: str, last_without: str, first_with: str) -> None:
    gpu = load_profile("h100")
    assert not getattr(version_features(version(last_without), gpu), field)
    assert getattr(version_features(version(first_with), gpu), field)


def test_which_blocks_of_fp8_a_shard_may_cut() -> None:
    """``linear.py`` of 0.14.0 (``_maybe_allow_fp8_block_shape_mismatch``), ``fp8.py`` of 0.32.0."""
    gpu = load_profile("h100")
    found = [version_features(version(name), gpu).fp8_blocks for name in ("0.13.0", "0.14.0", "0.31.0", "0.32.0")]
    assert found == ["whole", "merged", "merged", "refined"]


def test_stages_were_cut_otherwise_before_0_8() -> None:
    gpu = load_profile("h100")
    assert version_features(version("0.7.3"), gpu).pipeline_remainder_last
    assert not version_features(version("0.8.0"), gpu).pipeline_remainder_last
