"""Adapters, weights and cache in host memory, prefixes: bytes and seconds by hand, and what versions refuse."""

import json
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from command_line import refused, run
from memory_cases import budget, config, fitted, model
from physics_cases import engine, gpu, llama_8b, moe_model, perfect
from test_scheduler import ROOMY, serve, times

from planner.engine.command import bench_serve_argv, bench_throughput_argv, serve_argv
from planner.engine.settings import EngineArgs, LoraConfig
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile
from planner.output.tables.fit import fit_object
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction, estimate
from planner.timing.links import host_bytes_per_s
from planner.timing.operators import adapter_operators
from planner.timing.step import Batch, StepModel
from planner.units import GIB
from planner.workload.load import Load

LLAMA, QWEN_MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"
#: Inputs + outputs of the matrices of a Llama-3.1-8B layer: q, k, v, o, gate, up, down.
LAYER_SIDES = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14336)
#: Embedding and lm_head are adapted too in this architecture.
TABLE_SIDES = 2 * (128_256 + 4096)


def adapters(name: str, **flags: Any) -> int:
    return budget(name, "h100", "0.27.1", enable_lora=True, **flags).binding.weights.lora_bytes


# Adapters in memory.


@pytest.mark.parametrize(("loras", "rank"), [(1, 16), (4, 64), (8, 8)])
def test_every_matrix_gets_room_for_every_adapter(loras: int, rank: int) -> None:
    elements = loras * rank * (32 * LAYER_SIDES + TABLE_SIDES)
    assert adapters(LLAMA, max_loras=loras, max_lora_rank=rank) == 2 * elements


def test_tensor_parallelism_cuts_one_side_of_each_adapter() -> None:
    # 4 ranks. A is whole where outputs are cut, B is whole where inputs are; the tables are whole on every rank
    cut = (4096 + 1024) + 2 * (4096 + 256) + (1024 + 4096) + 2 * (4096 + 3584) + (3584 + 4096)
    assert adapters(LLAMA, tensor_parallel_size=4) == 2 * 16 * (32 * cut + TABLE_SIDES)


def test_fully_sharded_adapters_cut_the_other_side_too() -> None:
    cut = (1024 + 1024) + 2 * (1024 + 256) + (1024 + 1024) + 2 * (1024 + 3584) + (3584 + 1024)
    found = adapters(LLAMA, tensor_parallel_size=4, fully_sharded_loras=True)
    assert found == 2 * 16 * (32 * cut + TABLE_SIDES)


def test_each_expert_has_adapters_of_its_own() -> None:
    """Qwen3-30B-A3B: 48 layers of 128 experts with 3 matrices of 2,048 x 768; since 0.11.1."""
    attention = (2048 + 4096) + 2 * (2048 + 512) + (4096 + 2048)
    layer, tables = attention + (2048 + 128) + 128 * 3 * (2048 + 768), 2 * (151_936 + 2048)
    assert adapters(QWEN_MOE) == 2 * 16 * (48 * layer + tables)
    before = budget(QWEN_MOE, "h100", "0.11.0", enable_lora=True).binding.weights.lora_bytes
    assert before == 2 * 16 * 48 * (layer - 128 * 3 * (2048 + 768))


def test_gate_and_up_of_an_expert_share_an_a_where_weights_are_3d() -> None:
    """gpt-oss-20b: 24 layers of 32 experts of 2,880 x 2,880; ``FusedMoE3DWithLoRA`` has ``_w13_slices`` = 1."""
    others = 2 * (2880 + 4096) + 2 * (2880 + 512) + (2880 + 32)
    gate_up, down = 2880 + 2 * 2880, 2880 + 2880
    assert adapters("openai/gpt-oss-20b") == 2 * 16 * 24 * (others + 32 * (gate_up + down))


@pytest.mark.parametrize(
    ("name", "release", "vocab_size"),
    [
        ("mistralai/Mistral-7B-Instruct-v0.3", "0.14.0", 32_768),  # served by LlamaForCausalLM
        ("mistralai/Mistral-7B-Instruct-v0.3", "0.27.1", None),  # ``embedding_modules = {}`` in mistral.py
    ],
)
def test_tables_have_adapters_where_the_class_names_them(name: str, release: str, vocab_size: int | None) -> None:
    found = budget(name, "h100", release, enable_lora=True).binding.weights.lora_bytes
    assert found == 2 * 16 * (32 * LAYER_SIDES + (2 * (vocab_size + 4096) if vocab_size else 0))


def test_the_language_model_of_a_vision_model_names_tables_too() -> None:
    """``get_supported_lora_modules`` walks all modules: Qwen3LLMForCausalLM is a Qwen3ForCausalLM."""
    assert adapters("Qwen/Qwen3-VL-8B-Instruct") == adapters("Qwen/Qwen3-8B")


def test_stages_hold_the_adapters_of_their_layers() -> None:
    first, last = budget(LLAMA, "h100", "0.27.1", enable_lora=True, pipeline_parallel_size=2).stages
    assert first.weights.lora_bytes == last.weights.lora_bytes == 2 * 16 * (16 * LAYER_SIDES + TABLE_SIDES // 2)


def test_room_for_adapters_is_taken_from_the_cache() -> None:
    with_them, without = (
        budget(LLAMA, "h100", "0.27.1", enforce_eager=True, **flags).binding
        for flags in ({"enable_lora": True, "max_loras": 4, "max_lora_rank": 64}, {})
    )
    assert without.available.mid - with_them.available.mid == pytest.approx(with_them.weights.lora_bytes, abs=2)
    assert with_them.weights.weight_bytes == without.weights.weight_bytes


def test_numbers_of_adapters_mean_nothing_without_the_switch() -> None:
    assert budget(LLAMA, "h100", "0.27.1", max_loras=64).binding.weights.lora_bytes == 0


@pytest.mark.parametrize(
    ("flags", "kind", "words"),
    [
        ({"max_lora_rank": 48}, InputError, "48 is no rank"),
        ({"max_loras": 8, "max_cpu_loras": 4}, IllegalPlanError, "less than --max-loras 8"),
        ({"fully_sharded_loras": True, "max_lora_rank": 1, "tensor_parallel_size": 2}, IllegalPlanError, "divisible"),
    ],
)
def test_adapters_that_vllm_refuses(flags: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        config(LLAMA, "h100", "0.27.1", enable_lora=True, **flags)


@pytest.mark.parametrize(
    ("name", "release", "served"),
    [
        ("moonshotai/Kimi-K2.5", "0.32.0", False),
        ("XiaomiMiMo/MiMo-V2-Flash", "0.32.0", False),
        ("openai/gpt-oss-20b", "0.11.0", False),
        ("openai/gpt-oss-20b", "0.14.0", True),
        ("deepseek-ai/DeepSeek-V3.2", "0.32.0", True),  # DeepseekV32ForCausalLM(DeepseekV2ForCausalLM)
    ],
)
def test_only_classes_with_supports_lora_take_adapters(name: str, release: str, served: bool) -> None:
    """``load_lora_model`` of lora_model_runner_mixin.py: "... does not support LoRA yet"."""
    with nullcontext() if served else pytest.raises(IllegalPlanError, match=f"{release} serves no adapters"):
        config(name, "h200", release, enable_lora=True, tensor_parallel_size=8)


def test_sharded_adapters_and_whole_experts_contradict_each_other() -> None:
    with pytest.raises(IllegalPlanError, match="--enable-expert-parallel"):
        config(
            QWEN_MOE, "h100", "0.27.1",
            enable_lora=True, fully_sharded_loras=True, enable_expert_parallel=True, tensor_parallel_size=2,
        )  # fmt: skip


# Adapters in time.


def test_adapters_are_read_once_and_multiplied_by_every_token() -> None:
    (found,) = adapter_operators(llama_8b(), engine(lora=LoraConfig(4, 64, 4)))
    assert found.fixed_bytes == 4 * 64 * 32 * LAYER_SIDES * 2
    assert found.flop_per_unit == 2 * 64 * 32 * LAYER_SIDES
    assert found.count == 32 * 4 * 2  # qkv, output, gate and up, down: shrink and expand


def test_adapters_of_experts_are_read_where_tokens_go() -> None:
    found = {op.name: op for op in adapter_operators(moe_model(), engine(lora=LoraConfig(1, 16, 1)))}
    assert found["expert adapters"].bytes_per_unit == 16 * 48 * 3 * (2048 + 768) * 2
    assert found["expert adapters"].load.num_experts == 128
    assert adapter_operators(moe_model(), engine()) == ()


def test_adapters_make_a_step_longer_by_their_bytes() -> None:
    batch = Batch(decode_seqs=1, decode_context_tok=1)
    plain = StepModel(llama_8b(), gpu(), engine(), perfect())
    adapted = StepModel(llama_8b(), gpu(), engine(lora=LoraConfig(4, 64, 4)), perfect())
    read_s = 4 * 64 * 32 * LAYER_SIDES * 2 / 3.35e12
    assert adapted.step_s(batch) - plain.step_s(batch) == pytest.approx(read_s, rel=0.01)


# Weights in host memory.


def test_weights_in_host_memory_leave_their_room_to_the_cache() -> None:
    kept, whole = (
        budget(LLAMA_70B, "h100", "0.27.1", max_model_len=8192, **flags).binding
        for flags in ({"cpu_offload_gb": 80}, {})
    )
    assert kept.weights.offloaded_bytes == 80 * GIB
    assert kept.available.mid - whole.available.mid == pytest.approx(80 * GIB)
    assert not fitted(LLAMA_70B, "h100", "0.27.1", max_model_len=8192).fits
    assert fitted(LLAMA_70B, "h100", "0.27.1", max_model_len=8192, cpu_offload_gb=80).fits


def test_only_decoder_layers_can_be_kept_in_host_memory() -> None:
    weights = budget(LLAMA, "h100", "0.27.1", cpu_offload_gb=1000).binding.weights
    # 8,030,261,248 parameters without the two tables of 128,256 x 4,096, in 16 bits
    assert weights.offloaded_bytes == pytest.approx(2 * (8_030_261_248 - 2 * 128_256 * 4096), rel=1e-5)


def test_every_step_reads_them_over_the_link() -> None:
    # 80 GiB over PCIe 5.0 x16, 64 GB/s of which 85 % are payload: 1.58 s, whatever else the step does
    args = EngineArgs(max_model_len=8192, cpu_offload_gb=80)
    found = resolve_deployment(model(LLAMA_70B), load_profile("h100-sxm"), args, parse_version("0.27.1")).timer
    assert found.step_s(Batch(1, 1)) == pytest.approx(80 * GIB / (0.85 * 64e9), rel=0.05)
    (link,) = [part for part in found.breakdown(Batch(1, 1)).parts if part.name == "weights from host"]
    assert (link.bytes, link.bound) == (80 * GIB, "host link")


def test_an_unknown_link_is_refused() -> None:
    with pytest.raises(InputError, match="not in its profile") as error:
        host_bytes_per_s(gpu(), "--cpu-offload-gb")
    assert error.value.hint


@pytest.mark.parametrize(
    ("release", "flags", "kind", "words"),
    [
        ("0.27.1", {"cpu_offload_gb": -1.0}, InputError, "--cpu-offload-gb"),
        ("0.27.1", {"kv_offloading_size": float("nan")}, InputError, "--kv-offloading-size"),
        ("0.11.0", {"kv_offloading_size": 8.0}, IllegalPlanError, "not before 0.11.1"),
        ("0.18.0", {"swap_space": 4.0}, IllegalPlanError, "gone in 0.18.0"),
    ],
)
def test_host_memory_by_version(release: str, flags: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words.replace(".", r"\.")):
        config(LLAMA, "h100", release, **flags)


# The cache in host memory.


def test_the_host_holds_tokens_beside_the_gpu() -> None:
    """Llama-3.3-70B at TP 4 keeps 80 x 2 heads x 2 x 128 x 2 = 81,920 bytes of a token on each of four ranks."""
    found = fitted(LLAMA_70B, "h100", "0.27.1", tensor_parallel_size=4, kv_offloading_size=64)
    assert found.host_kv_cache_tokens == 64 * GIB // (4 * 81_920)
    assert fit_object(found)["host_kv_cache_tokens"] == found.host_kv_cache_tokens
    without = fitted(LLAMA_70B, "h100", "0.27.1", tensor_parallel_size=4)
    assert (without.host_kv_cache_tokens, without.kv_cache_tokens) == (0, found.kv_cache_tokens)


def test_blocks_from_the_host_are_loaded_one_request_after_the_other() -> None:
    # 64 of 100 tokens are found, 0.25 s each: the first request starts at 16 s, the second 16 s later
    limits = replace(ROOMY, max_num_batched_tokens=64, prefix_cache_hit_rate=0.64, load_s_per_tok=0.25)
    assert times(serve([(100, 1), (100, 1)], limits)) == [(17.0, 17.0), (33.0, 33.0)]


# Prefixes.


def test_a_shared_prefix_is_computed_for_nobody() -> None:
    # 40 of 50 tokens are shared, 32 of them in whole blocks: 18 are left, and three prompts fit a step of 64
    limits = replace(ROOMY, shared_prefix_tok=40)
    assert [first for first, _ in times(serve([(50, 1)] * 4, limits))] == [1.0, 1.0, 1.0, 2.0]


def test_running_requests_hold_the_blocks_of_a_shared_prefix_once() -> None:
    # vLLM's block pool takes a found block by a reference (touch in v1/core/block_pool.py), so a prefix of 4 blocks
    # of 16 tokens in a cache that is larger by 4 blocks changes nothing, preempted requests included
    lengths = [(7 * i % 50 + 1, 11 * i % 60 + 1) for i in range(40)]
    limits = replace(ROOMY, kv_cache_tokens=256, enable_prefix_caching=True, scheduler_reserve_full_isl=False)
    plain = serve(lengths, limits)
    more = replace(limits, kv_cache_tokens=256 + 64, shared_prefix_tok=64)
    shared = serve([(64 + prompt, output) for prompt, output in lengths], more)
    assert plain.preemptions.sum() > 20
    assert (shared.preemptions == plain.preemptions).all()
    assert times(shared) == times(plain)
    assert shared.kv_cache_usage_peak == pytest.approx((plain.kv_cache_usage_peak * 16 + 4) / 20)


def test_a_cache_holds_more_requests_that_share_a_prefix() -> None:
    # ceil((3072 + 512 + 200) / 16) = 237 blocks, of which 3072 / 16 = 192 are held once
    blocks = served().budget.num_blocks.mid
    assert served().requests_served(3784, 3072) == pytest.approx((blocks - 192) / (237 - 192))
    assert served(enable_prefix_caching=False).requests_served(3784, 3072) == pytest.approx(blocks / 237, rel=1e-3)


def served(**flags: Any) -> Deployment:
    args = EngineArgs(max_model_len=16384, max_num_seqs=64, **flags)
    return resolve_deployment(model(LLAMA), load_profile("h100-sxm"), args, parse_version("0.27.1"))


@pytest.mark.parametrize(
    ("name", "flags", "said"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", {}, True),
        ("Qwen/Qwen3-VL-8B-Instruct", {"language_model_only": True}, False),
        (LLAMA, {}, False),
    ],
)
def test_a_server_of_images_says_that_loads_are_text(name: str, flags: dict[str, Any], said: bool) -> None:
    args = EngineArgs(max_model_len=8192, **flags)
    server = resolve_deployment(model(name), load_profile("h100-sxm"), args, parse_version("0.32.0"))
    assert ("tokens of images" in server.media_remark) is said


def test_prefixes_are_part_of_the_prompts_and_of_no_prefill() -> None:
    plain, shared = Load(4096, 16, 8, max_concurrency=1), Load(1024, 16, 8, max_concurrency=1, prefix_len=3072)
    assert plain.max_total_len == shared.max_total_len
    assert shared.requests().input_len.tolist() == [4096] * 8
    long, short = Prediction.of(served(), plain).result, Prediction.of(served(), shared).figures
    assert short["total_input_tokens"] == long["total_input_tokens"]
    assert short["mean_ttft_ms"] < 0.5 * long["mean_ttft_ms"]
    off = served(enable_prefix_caching=False)
    # the prefix cache off: all of it is computed
    assert Prediction.of(off, shared).figures["mean_ttft_ms"] == pytest.approx(long["mean_ttft_ms"], rel=0.01)


def test_a_hit_rate_spares_as_much_as_a_prefix_of_that_share() -> None:
    by_rate = Load(4096, 16, 8, max_concurrency=1, prefix_cache_hit_rate=0.75)
    by_prefix = Load(1024, 16, 8, max_concurrency=1, prefix_len=3072)
    rate, prefix = (Prediction.of(served(), load).figures["mean_ttft_ms"] for load in (by_rate, by_prefix))
    assert rate == pytest.approx(prefix)
    with pytest.raises(InputError, match="keeps no prefixes"):
        Prediction.of(served(enable_prefix_caching=False), by_rate)


def test_what_comes_from_the_host_takes_the_links_time() -> None:
    # 3,072 tokens x 131,072 bytes / (0.78 x 64 GB/s) = 8.1 ms more before the first token
    load = Load(4096, 16, 8, max_concurrency=1, prefix_cache_hit_rate=0.75)
    gpu_ms, host_ms = (
        Prediction.of(served(**flags), load).figures["median_ttft_ms"] for flags in ({}, {"kv_offloading_size": 64})
    )
    assert host_ms - gpu_ms == pytest.approx(3072 * 131_072 / (0.78 * 64e9) * 1000, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "words"), [({"prefix_len": -1}, "prefix-len"), ({"prefix_cache_hit_rate": 2}, "hit-rate")]
)
def test_impossible_prefixes_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Load(10, 10, 1, **changes)


# What is launched.


def test_what_was_planned_is_launched() -> None:
    flags = {"enable_lora": True, "max_loras": 4, "max_lora_rank": 32, "cpu_offload_gb": 8, "kv_offloading_size": 16}
    words = " ".join(serve_argv(config(LLAMA, "h100", "0.27.1", **flags), LLAMA))
    assert "--enable-lora --max-loras 4 --max-lora-rank 32 --max-cpu-loras 4" in words
    assert "--cpu-offload-gb 8 --kv-offloading-size 16" in words
    plain = serve_argv(config(LLAMA, "h100", "0.27.1"), LLAMA)
    assert not [word for word in plain if "lora" in word or "offload" in word or "swap" in word]


def test_prefixes_are_sent_by_the_benchmarks_own_name() -> None:
    load = Load(128, 32, 8, max_concurrency=4, prefix_len=64)
    assert "--random-prefix-len" in bench_serve_argv(load, LLAMA, parse_version("0.27.1"))
    offline = Load(128, 32, 8, prefix_len=64)
    for release, name in (("0.27.1", "--random-prefix-len"), ("0.10.0", "--prefix-len")):
        words = bench_throughput_argv(config(LLAMA, "h100", release), offline, LLAMA)
        assert words[words.index(name) + 1] == "64"


def test_the_closed_form_knows_prefixes_too() -> None:
    load = Load(512, 64, 80, max_concurrency=4, prefix_len=4096)
    replayed = Prediction.of(served(), load).figures
    quick = estimate(served(), 512, 64, 4, prefix_len=4096)
    assert quick.e2el_s * 1000 == pytest.approx(replayed["mean_e2el_ms"], rel=0.10)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--speculative-acceptance-rate", "0.7"), "without --speculative-config"),
        (("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 2}'), "is not known"),
        (("--prefix-cache-hit-rate", "1.5"), "--prefix-cache-hit-rate must be at most 1"),
        (("--enable-lora", "--max-lora-rank", "17"), "is no rank"),
        (("--cpu-offload-gb", "nan"), "--cpu-offload-gb"),
        (("--kv-offloading-size", "1", "--engine-version", "0.9.1"), "not before 0.11.1"),
    ],
)
def test_bad_input_is_told_in_one_line_with_a_way_out(words: tuple[str, ...], cause: str) -> None:
    load = ("--random-input-len", "64", "--random-output-len", "8", "--num-prompts", "2")
    assert cause in refused("predict", "serve", LLAMA, "--gpu", "h100", *load, *words)


def test_a_plan_launches_and_sends_what_was_predicted() -> None:
    drafts = '{"method": "ngram", "num_speculative_tokens": 2}'
    outcome = run(
        "recommend", LLAMA, "--gpu", "h100", "--max-concurrency", "4", "--random-prefix-len", "1024",
        "--random-input-len", "256", "--random-output-len", "64", "--enable-lora", "--max-lora-rank", "32",
        "--speculative-config", drafts, "--speculative-acceptance-rate", "0.5", "--format", "json",
    )  # fmt: skip
    plan = json.loads(outcome.out)["plans"][0]
    launched, sent = " ".join(plan["serve_argv"]), " ".join(plan["bench_argv"])
    assert '--speculative-config {"method":"ngram","num_speculative_tokens":2}' in launched
    assert "--enable-lora --max-loras 1 --max-lora-rank 32" in launched
    assert "--random-prefix-len 1024" in sent
    assert plan["workload"]["prefix_len"] == 1024
    assert plan["predicted"]["spec_decode_acceptance_length"] == 1.75  # 1 + 0.5 + 0.25
