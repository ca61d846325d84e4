"""The KV cache of a CPU is what ``VLLM_CPU_KVCACHE_SPACE`` says: blocks by hand, and in every command alike."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import budget, config, fitted, model, version
from searches import search_for

from planner.engine.command import serve_argv
from planner.engine.flags import Environment
from planner.engine.parse import read_line
from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.evidence.folder import MeasuredPlan, read_server_log
from planner.evidence.validation import ComparedLine, compare_plan
from planner.hardware.profiles import load_profile
from planner.memory.budget import unset_kv_cache_space, with_kv_cache_space
from planner.memory.startup_log import read_startup_log
from planner.model.resolve import resolve_model
from planner.planning.deployment import resolve_deployment
from planner.planning.plan import PlanFile
from planner.planning.serving import Serving
from planner.units import GIB
from planner.workload.load import Load

LLAMA, SMALL = "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B"
#: A start of vLLM 0.32.0 for CPUs with VLLM_CPU_KVCACHE_SPACE=5 (a model of 8 layers with 2 KV heads of 64).
GIVEN_LOG = """
(APIServer pid=1) INFO [api_utils.py:286] non-default args: {'model_tag': 'm', 'max_model_len': 256, 'max_num_seqs': 4}
(Worker pid=12214) INFO 11-22 00:15:19 [cpu_worker.py:260] Explicitly set (5.0/6.84) GiB for KV cache on node 0.
(EngineCore pid=12184) INFO 11-22 00:15:19 [kv_cache_utils.py:2327] CPU KV cache size: 1,310,720 tokens, Maximum concurrency for 256 tokens per request: 5120.00x
"""  # noqa: E501


def test_bytes_of_a_cache_on_a_gpu_bound_it_instead_of_the_share() -> None:
    """``determine_available_memory`` of v1/worker/gpu_worker.py returns them as they are, and profiles nothing."""
    block_bytes = 16 * 8 * 64 * 2 * 2 * 16  # 16 layers x 8 KV heads x 64 x (K and V) x 2 B x 16 tokens: 512 KiB
    found = budget(LLAMA, "h100", "0.27.1", kv_cache_memory_bytes=5 * 2**30)
    assert found.binding.block_bytes == block_bytes
    assert found.num_blocks.low == found.num_blocks.high == 5 * 2**30 // block_bytes
    shared = budget(LLAMA, "h100", "0.27.1")
    assert found.binding.left.mid - shared.binding.left.mid == pytest.approx(0.08 * found.memory_bytes, rel=0.01)


def test_bytes_beyond_the_memory_do_not_fit_and_are_named() -> None:
    beyond = run("fit", LLAMA, "--gpu", "h100", "--kv-cache-memory-bytes", str(10**11))
    assert beyond.status == 1 and "--kv-cache-memory-bytes" in beyond.out
    assert "on a CPU" in refused("fit", LLAMA, "--gpu", "cpu", "--kv-cache-memory-bytes", str(10**9))


def of_gib(space: int) -> Environment:
    return Environment(VLLM_CPU_KVCACHE_SPACE=str(space))


@pytest.mark.parametrize(
    ("name", "space", "block_bytes", "blocks"),
    [  # layers x KV heads x head size x (K and V) x 2 B x 128 tokens; floor(GiB / that)
        (LLAMA, 4, 16 * 8 * 64 * 2 * 2 * 128, 1024),  # 4 MiB: no rest
        (SMALL, 4, 28 * 8 * 128 * 2 * 2 * 128, 292),  # 14 MiB: 4096 / 14 = 292.6
        (SMALL, 5, 28 * 8 * 128 * 2 * 2 * 128, 365),  # 5120 / 14 = 365.7
        (SMALL, 1, 28 * 8 * 128 * 2 * 2 * 128, 73),  # 1024 / 14 = 73.1
    ],
)
def test_blocks_are_the_given_gib_over_the_bytes_of_a_block(
    name: str, space: int, block_bytes: int, blocks: int
) -> None:
    found = budget(name, "cpu", "0.32.0", env=of_gib(space))
    assert found.binding.block_bytes == block_bytes
    assert (found.num_blocks.low, found.num_blocks.mid, found.num_blocks.high) == (blocks, blocks, blocks)
    assert found.logged_tokens(blocks) == blocks * 128
    cache = found.binding.available
    assert cache.low == cache.mid == cache.high == space * 2**30


def test_a_rest_that_is_no_block_is_left_as_a_real_start_left_it(tmp_path: Path) -> None:
    """vLLM 0.32.0, 8 layers of 2 KV heads of 64, blocks of 96 tokens, 2 GiB: "CPU KV cache size: 466,005 tokens,
    Maximum concurrency for 256 tokens per request: 1820.33x". 2 GiB / (4,096 B x 96) = 5461.3; 256 tokens take 3."""
    settings = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 12_000, "hidden_size": 512,
        "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "max_position_embeddings": 4096, "dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(settings))
    small = resolve_model(str(tmp_path), network=False).model
    args = EngineArgs(env=of_gib(2), block_size=96, max_model_len=256)
    result = Serving.of(small, load_profile("cpu"), args, version("0.32.0")).fit()
    assert result.budget.num_blocks.low == result.budget.num_blocks.high == 5461
    assert (result.kv_cache_tokens, round(result.max_concurrency, 2)) == (466_005, 1820.33)


def test_the_refusal_of_a_published_start() -> None:
    """vLLM issue 29233: 28 layers of 8 KV heads of 128, 4 GiB, "4.38 GiB KV cache is needed" for 40,960 tokens,
    "the estimated maximum model length is 37376"."""
    result = fitted(SMALL, "cpu", "0.11.0", env=of_gib(4), max_model_len=40_960)
    assert result.kv_cache_tokens == 37_376
    assert round(result.kv_bytes_per_request / GIB, 2) == 4.38
    assert (result.verdict, result.binding_condition.name) == ("does not fit", "max_model_len larger than cache")
    enough = next(option for option in result.options if "env" in option.settings)
    assert enough.flags == ("--env VLLM_CPU_KVCACHE_SPACE=5",)


def test_the_verdict_compares_weights_overheads_and_cache_with_the_memory() -> None:
    """24 GiB, 2.3 GiB of weights: 19 fit, 40 do not; what would is the most that does."""
    assert fitted(LLAMA, "cpu", "0.32.0", env=of_gib(19), max_model_len=8192).verdict == "fits"
    result = fitted(LLAMA, "cpu", "0.32.0", env=of_gib(40), max_model_len=8192)
    assert (result.verdict, result.binding_condition.name) == ("does not fit", "KV cache exceeds memory")
    assert "less than requested memory for kv (40.00 GiB)" in result.reason
    assert result.kv_cache.high < 0
    less = next(option for option in result.options if "env" in option.settings)
    space = int(str(less.settings["env"]).removeprefix("VLLM_CPU_KVCACHE_SPACE="))
    assert fitted(LLAMA, "cpu", "0.32.0", env=of_gib(space), max_model_len=8192).verdict == "fits"
    assert fitted(LLAMA, "cpu", "0.32.0", env=of_gib(space + 1), max_model_len=8192).verdict != "fits"
    assert result.smallest_gpu_memory_utilization is None


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.15, 1.0), seqs=st.integers(1, 256), name=st.sampled_from([LLAMA, SMALL]))
def test_an_unnamed_size_is_the_whole_gib_that_the_share_surely_leaves(share: float, seqs: int, name: str) -> None:
    asked = config(name, "cpu", "0.32.0", gpu_memory_utilization=share, max_num_seqs=seqs)
    chosen = with_kv_cache_space(model(name), load_profile("cpu"), asked)
    stage = budget(name, "cpu", "0.32.0", gpu_memory_utilization=share, max_num_seqs=seqs).binding
    taken = stage.weights.loaded_bytes + stage.activation.high
    space = chosen.cpu_kvcache_space
    assert space and chosen.env == {"VLLM_CPU_KVCACHE_SPACE": str(space)}
    assert space == 1 or taken + space * GIB <= 24 * GIB * share
    assert taken + stage.non_torch.high + (space + 1) * GIB > 24 * GIB * share
    assert with_kv_cache_space(model(name), load_profile("cpu"), chosen) == chosen


def test_an_unnamed_size_is_named_in_the_answer() -> None:
    """0.92 x 24 = 22.08 GiB, less 2.32 of weights, 0.24 of activations and 0.50 that overheads may be more: 19.02."""
    result = fitted(LLAMA, "cpu", "0.32.0", max_model_len=8192)
    assert "VLLM_CPU_KVCACHE_SPACE=19: the whole GiB that 0.92 of the memory leaves" in result.notes
    named = fitted(LLAMA, "cpu", "0.32.0", max_model_len=8192, env=of_gib(19))
    assert not any("VLLM_CPU_KVCACHE_SPACE" in note for note in named.notes)


def test_where_not_even_one_gib_is_left_it_does_not_fit() -> None:
    result = fitted("Qwen/Qwen3-14B", "cpu", "0.32.0")
    assert result.config.cpu_kvcache_space == 1 and result.verdict == "does not fit"


@pytest.mark.parametrize(
    ("release", "space"),
    [("0.8.5", 4), ("0.9.1", 4), ("0.12.0", 4), ("0.13.0", 12), ("0.19.1", 12), ("0.20.0", None), ("0.32.0", None)],
)
def test_what_vllm_takes_where_the_variable_is_not_set(release: str, space: int | None) -> None:
    """``platforms/cpu.py`` of these releases: 4 GiB, half of the 24 GiB, what ``--gpu-memory-utilization`` leaves."""
    assert unset_kv_cache_space(load_profile("cpu"), version(release)) == space


def test_a_gpu_does_not_read_it() -> None:
    plain = config(LLAMA, "h100", "0.32.0")
    said = config(LLAMA, "h100", "0.32.0", env=of_gib(4))
    assert replace(said, defaults_taken=plain.defaults_taken) == plain
    assert with_kv_cache_space(model(LLAMA), load_profile("h100"), plain) == plain and plain.env == {}


def test_the_command_line_does_not_say_what_has_no_effect() -> None:
    asked = config(LLAMA, "cpu", "0.32.0", env=of_gib(4))
    assert "--gpu-memory-utilization" not in serve_argv(asked, LLAMA)
    assert asked.env == {"VLLM_CPU_KVCACHE_SPACE": "4"}


@pytest.mark.parametrize("space", [0, -1])
def test_a_size_below_one_gib_is_refused(space: int) -> None:
    with pytest.raises(InputError, match="VLLM_CPU_KVCACHE_SPACE"):
        Environment.read({"VLLM_CPU_KVCACHE_SPACE": space})


ON_CPU = ("--gpu", "cpu", "--engine-version", "0.32.0", "--max-model-len", "4096")


def test_fit_takes_the_variable_and_says_where_the_size_comes_from() -> None:
    said = ("--env", "VLLM_CPU_KVCACHE_SPACE=4")
    assert "4.00 GiB, given by VLLM_CPU_KVCACHE_SPACE=4" in run("fit", LLAMA, *ON_CPU, *said).out
    found = json.loads(run("fit", LLAMA, *ON_CPU, *said, "--format", "json").out)
    assert (found["kv_cache_tokens"], found["env"]) == (131_072, {"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert found["kv_cache_bytes_lo"] == found["kv_cache_bytes"] == found["kv_cache_bytes_hi"] == 4 * GIB
    assert found["budget_bytes"] == found["gpu"]["memory_bytes"]
    assert "VLLM_CPU_KVCACHE_SPACE" in refused("fit", LLAMA, *ON_CPU, "--env", "VLLM_CPU_KVCACHE_SPACE=4.5")


def checked(line: str, release: str = "0.32.0") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("check", "--gpu", "cpu", "--engine-version", release, "--format", "json",
                                           "--", *line.split()).out)  # fmt: skip
    return found


def test_check_reads_the_variable() -> None:
    found = checked(f"VLLM_CPU_KVCACHE_SPACE=4 vllm serve {LLAMA} --max-model-len 4096 --max-num-seqs 8")
    assert found["starts"] and found["flags"] == []
    assert found["settings"]["cpu_kvcache_space"] == 4
    assert found["fit"]["kv_cache_tokens"] == 131_072


def test_check_says_what_happens_without_the_variable() -> None:
    line = f"vllm serve {LLAMA} --max-model-len 4096 --max-num-seqs 8"
    old, new = checked(line, "0.11.0"), checked(line)
    assert old["fit"]["kv_cache_tokens"] == 131_072 and "4 GiB" in str(old["flags"])
    assert "what --gpu-memory-utilization leaves" in str(new["flags"])
    assert old["starts"] and new["starts"]


@pytest.mark.parametrize("value", ["4.5", "much", "$SPACE"])
def test_check_refuses_a_size_that_vllm_cannot_read(value: str) -> None:
    words, env = ("vllm", "serve", LLAMA), {"VLLM_CPU_KVCACHE_SPACE": value}
    line = read_line(words, version("0.32.0"), env=env, platform="cpu")
    assert line.refused and line.problems[0].word == "VLLM_CPU_KVCACHE_SPACE"
    on_gpu = read_line(words, version("0.32.0"), env=env, platform="rocm")
    assert not on_gpu.refused


def planned(**flags: Any) -> PlanFile:
    """The best plan for the CPU."""
    search = search_for(
        None, "cpu", model=LLAMA, goal="min-latency", load=Load(128, 32, max_concurrency=4),
        version=version("0.32.0"), args=EngineArgs(**flags),
    )  # fmt: skip
    (ranking,) = search.run()
    plan = search.plan(ranking)
    return PlanFile(planner_version="0", command="", goal="min-latency", plan=plan)


def test_a_plan_sets_the_variable_and_no_share() -> None:
    plan = planned(env=of_gib(4)).plan
    assert plan.env["VLLM_CPU_KVCACHE_SPACE"] == "4" and "--gpu-memory-utilization" not in plan.serve_argv
    assert plan.memory["kv_cache_bytes"] == 4 * GIB and plan.memory["kv_cache_tokens"] == 131_072
    assert any("VLLM_CPU_KVCACHE_SPACE=4" in reason for reason in plan.why)
    assert planned().plan.digest != plan.digest, "what is launched differs"


def test_what_was_planned_is_what_the_words_of_the_plan_launch() -> None:
    plan = planned().plan
    line = read_line(plan.serve_argv, version("0.32.0"), env=plan.env, platform="cpu")
    again = resolve_deployment(model(LLAMA), load_profile("cpu"), line.args, version("0.32.0")).budget
    assert again.logged_tokens(again.num_blocks.mid) == plan.memory["kv_cache_tokens"]


def test_a_plan_for_more_than_the_memory_is_none() -> None:
    args = EngineArgs(env=of_gib(30))
    (ranking,) = search_for(None, "cpu", model=LLAMA, load=Load(128, 32), version=version("0.32.0"), args=args).run()
    assert ranking.best is None
    assert "VLLM_CPU_KVCACHE_SPACE is 30" in ranking.rejected[0].reason


def logged(tokens: str, size: str = "4.0") -> dict[str, ComparedLine]:
    """The lines of memory of a plan with 4 GiB, validated against a log."""
    log = GIVEN_LOG.replace("1,310,720", tokens).replace("(5.0/", f"({size}/")
    found = compare_plan(MeasuredPlan(Path(), planned(env=of_gib(4)), "", {}, read_startup_log(log)))
    return {line.metric: line for line in found}


def test_validate_compares_the_cache_exactly() -> None:
    same = logged("131,072")
    assert same["kv_cache_tokens"].verdict == same["kv_cache_bytes"].verdict == "inside"
    assert logged("130,944")["kv_cache_tokens"].verdict == "below", "one block less"
    assert logged("131,200")["kv_cache_tokens"].verdict == "above"
    assert logged("131,072", "5.0")["kv_cache_bytes"].verdict == "above"


def test_a_log_says_which_size_its_start_was_given(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(GIVEN_LOG.replace("'m'", f"'{LLAMA}'").replace("1,310,720", "163,840").replace("5120", "640"))
    outcome = run("fit", LLAMA, "--gpu", "cpu", "--engine-version", "0.32.0", "--startup-log", path, "--format", "json")
    found = json.loads(outcome.out)
    assert found["env"] == {"VLLM_CPU_KVCACHE_SPACE": "5"}
    lines = {line["line"]: line for line in found["startup_log"]}
    for name, value in (("available KV cache memory", 5 * GIB), ("GPU KV cache size", 163_840)):
        assert (lines[name]["predicted"], lines[name]["logged"], lines[name]["inside"]) == (value, value, True)


def test_the_refusal_of_too_large_a_size_is_read_from_the_log() -> None:
    said = "Available memory on node 0 (9.58/11.34 GiB) on kv cache allocation is less than requested memory for kv"
    log = read_startup_log(f"(Worker pid=1) ERROR [multiproc_executor.py:1063] ValueError: {said} (40.0 GiB). Decrease")
    assert log.refusal and said in log.refusal


def test_a_log_of_a_start_without_a_size_is_compared_with_what_the_share_leaves(tmp_path: Path) -> None:
    """0.25 of 24 GiB less 2.57 GiB that the process held: the cache is an interval again."""
    path = tmp_path / "server.log"
    path.write_text(
        f"(APIServer pid=1) non-default args: {{'model_tag': '{LLAMA}', 'gpu_memory_utilization': 0.25}}\n"
        "(Worker pid=2) INFO [cpu_worker.py:260] Auto set (3.43/24.0) GiB for KV cache on node 0, with 6.0 GiB "
        "requested memory for the worker. 2.57 GiB memory was consumed by non-kv usages.\n"
    )
    outcome = run("fit", LLAMA, "--gpu", "cpu", "--engine-version", "0.32.0", "--max-model-len", "4096",
                  "--startup-log", path, "--format", "json")  # fmt: skip
    (line,) = [one for one in json.loads(outcome.out)["startup_log"] if one["line"] == "available KV cache memory"]
    assert line["inside"] and line["lo"] < line["predicted"] < line["hi"]


@pytest.mark.parametrize(("max_model_len", "logged"), [(32_768, 78_433), (65_536, 116_025), (131_072, 152_592)])
def test_windows_make_a_longer_context_hold_more_tokens_as_vllm_logs_them(max_model_len: int, logged: int) -> None:
    """``_report_kv_cache_config`` (v1/core/kv_cache_utils.py) logs requests of full length times that length; a window
    takes no more of a longer request. Logged by vLLM 0.29.0 for gemma-4-26B-A4B-it with ``--kv-cache-memory-bytes`` of
    4.25 GiB and 2,496 batched tokens (Arc B60, published notes; 2.39, 1.77 and 1.16 requests at once).
    """
    args = EngineArgs(
        kv_cache_memory_bytes=round(4.25 * GIB),
        max_num_batched_tokens=2496,
        max_model_len=max_model_len,
        enforce_eager=True,
    )
    model = resolve_model("google/gemma-4-26B-A4B-it").model
    found = resolve_deployment(model, load_profile("h100"), args, parse_version("0.29.0")).budget
    assert found.logged_tokens(found.num_blocks.mid) == logged


@pytest.mark.parametrize("written", ["9" * 5000, "9" * 400, "9" * 25, ",", ".", "1.2.3", "-", "1,,5"])
@pytest.mark.parametrize("number", ["1,310,720", "5.0", "256", "5120.00", "4"])
def test_a_number_of_a_log_that_is_none_is_not_read(number: str, written: str) -> None:
    broken = GIVEN_LOG.replace(number, written)
    with suppress(InputError):  # where nothing is left to read
        read_startup_log(broken)
    usage = (
        f"Engine 000: Running: 4 reqs, Waiting: {written} reqs, Preemptions: {written}, GPU KV cache usage: {written}%"
    )
    found = read_server_log(usage)
    assert (found.peak_cache_usage, found.peak_waiting) == (None, None) and found.preemptions <= 1
