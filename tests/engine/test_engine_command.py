"""VllmCommand lines by version: the spelling of each, and that no version is given an option it does not take.

``tests/real_parsers/check_commands.py`` lets the parsers of the versions themselves judge the same commands.
"""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.engine.command import (
    bench_backend,
    bench_latency_argv,
    bench_serve_argv,
    bench_throughput_argv,
    serve_argv,
)
from planner.engine.flags import table_versions
from planner.engine.parse import find_flag_problems
from planner.engine.published import recipe_for
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs, EngineConfig
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.workload.load import Load

MODELS = {
    name: resolve_model(name, network=False).model
    for name in (
        "meta-llama/Llama-3.3-70B-Instruct",
        "amd/Llama-3.3-70B-Instruct-MXFP4-Preview",
        "deepseek-ai/DeepSeek-R1",
        "openai/gpt-oss-120b",
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
    )
}
LLAMA = MODELS["meta-llama/Llama-3.3-70B-Instruct"]
LOAD = Load(input_len=1024, output_len=128, num_prompts=64, max_concurrency=16)
VERSIONS = st.sampled_from(table_versions()).map(parse_version)


def config(version: str, gpu: str = "h100-sxm", **asked: Any) -> EngineConfig:
    return resolve(EngineArgs(max_model_len=8192, **asked), LLAMA, load_profile(gpu), parse_version(version))


def option(argv: list[str], flag: str) -> str:
    """The value after ``flag``."""
    return argv[argv.index(flag) + 1]


def test_what_was_simulated_is_said_outright() -> None:
    argv = serve_argv(config("0.27.1", tensor_parallel_size=4, max_num_seqs=64), "some/model", port=8123)
    assert argv == [
        "vllm", "serve", "some/model",
        "--host", "127.0.0.1", "--port", "8123",
        "--tensor-parallel-size", "4",
        "--dtype", "bfloat16", "--kv-cache-dtype", "auto",
        "--max-model-len", "8192", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192",
        "--gpu-memory-utilization", "0.92",
        "--enable-prefix-caching", "--async-scheduling", "--no-enable-log-requests",
    ]  # fmt: skip


def test_the_layout_is_said_where_there_is_one() -> None:
    argv = serve_argv(config("0.27.1", pipeline_parallel_size=2, data_parallel_size=4), "m")
    assert (option(argv, "--pipeline-parallel-size"), option(argv, "--data-parallel-size")) == ("2", "4")
    assert "--block-size" not in argv
    assert option(serve_argv(config("0.27.1", block_size=32), "m"), "--block-size") == "32"


@pytest.mark.parametrize(
    ("version", "asked", "words"),
    [
        ("0.8.4", {"enable_chunked_prefill": False}, ["--enable-chunked-prefill=False"]),
        ("0.8.5", {"enable_chunked_prefill": False}, ["--no-enable-chunked-prefill"]),
        ("0.7.3", {"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ("0.9.1", {}, ["--disable-log-requests"]),
        ("0.10.1", {}, ["--no-enable-log-requests"]),
        ("0.33.0", {}, ["--no-enable-log-requests", "--async-scheduling"]),
        ("0.33.0", {"async_scheduling": False}, ["--no-async-scheduling"]),
        ("0.33.0", {"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
    ],
)
def test_switches_in_the_spelling_of_the_version(version: str, asked: dict[str, Any], words: list[str]) -> None:
    gpu = "mi300x" if version.startswith("0.8") else "h100-sxm"  # V0: V1 does not let go of chunks then
    argv = serve_argv(config(version, gpu, **asked), "m")
    assert [word for word in words if word in argv] == words


def test_async_scheduling_is_no_word_before_0_10() -> None:
    assert not any("async" in word for word in serve_argv(config("0.9.1"), "m"))


def test_extra_options_are_added_and_checked() -> None:
    extra: dict[str, Any] = {
        "trust_remote_code": True,
        "--enable-flashinfer-autotune": False,
        "compilation-config": {"cudagraph_mode": "FULL_DECODE_ONLY"},
        "attention-backend": None,
    }
    argv = serve_argv(config("0.27.1"), "m", extra=extra)
    assert argv[-4:] == [
        "--trust-remote-code",
        "--no-enable-flashinfer-autotune",
        "--compilation-config",
        '{"cudagraph_mode":"FULL_DECODE_ONLY"}',
    ]
    with pytest.raises(IllegalPlanError, match=r"--swap-space.*gone in 0\.18\.0"):
        serve_argv(config("0.27.1"), "m", extra={"swap-space": 16})
    with pytest.raises(InputError, match="--max-num-seqs"):
        serve_argv(config("0.27.1"), "m", extra={"max_num_seqs": 8})


@pytest.mark.parametrize(
    ("version", "start"),
    [
        ("0.7.3", ["python3", "/app/vllm/benchmarks/benchmark_serving.py", "--backend", "vllm"]),
        ("0.8.0", ["vllm", "bench", "serve", "--endpoint-type", "openai-comp"]),
        ("0.9.1", ["vllm", "bench", "serve", "--endpoint-type", "vllm"]),
        ("0.9.2", ["vllm", "bench", "serve", "--backend", "vllm"]),
        ("0.33.0", ["vllm", "bench", "serve", "--backend", "vllm"]),
    ],
)
def test_the_serving_benchmark_by_version(version: str, start: list[str]) -> None:
    argv = bench_serve_argv(LOAD, "m", parse_version(version))
    assert argv[: len(start)] == start
    assert bench_backend(parse_version(version)) == start[-1], "the result file says what was asked for"
    sent = {
        "--random-input-len": "1024", "--random-output-len": "128", "--num-prompts": "64", "--max-concurrency": "16",
        "--request-rate": "inf", "--percentile-metrics": "ttft,tpot,itl,e2el", "--metric-percentiles": "50,90,99",
    }  # fmt: skip
    assert {flag: option(argv, flag) for flag in sent} == sent
    assert "--ignore-eos" in argv


def test_greedy_sampling_is_asked_for_where_it_is_not_the_rule() -> None:
    assert "--temperature" not in bench_serve_argv(LOAD, "m", parse_version("0.9.0"))
    assert option(bench_serve_argv(LOAD, "m", parse_version("0.33.0")), "--temperature") == "0"


def test_the_client_loads_the_tokenizer_as_the_server_does() -> None:
    """``get_tokenizer`` in ``vllm/benchmarks/serve.py`` runs in the client, which asks no server how it is done."""
    serving = ("vllm", "serve", "m", "--trust-remote-code", "--tokenizer-mode", "mistral", "--max-num-seqs", "8")
    argv = bench_serve_argv(LOAD, "m", parse_version("0.33.0"), serving=serving)
    assert argv[-3:] == ["--trust-remote-code", "--tokenizer-mode", "mistral"]
    assert bench_serve_argv(LOAD, "m", parse_version("0.33.0"), serving=("vllm", "serve", "m"))[-1] == "50,90,99"
    early = Load(input_len=8, output_len=8, num_prompts=8, request_rate=2.0)
    assert bench_serve_argv(early, "m", parse_version("0.6.3"), serving=serving)[-1] == "--trust-remote-code"


def test_the_range_of_lengths_changed_its_meaning() -> None:
    spread = Load(input_len=100, output_len=10, num_prompts=8, max_concurrency=4, range_ratio=0.2)
    assert option(bench_serve_argv(spread, "m", parse_version("0.9.1")), "--random-range-ratio") == "0.2"
    # [ratio x L, L] until then: fixed lengths are 1, and both sides of a mean cannot be had
    assert option(bench_serve_argv(LOAD, "m", parse_version("0.9.0")), "--random-range-ratio") == "1.0"
    assert option(bench_serve_argv(LOAD, "m", parse_version("0.9.1")), "--random-range-ratio") == "0.0"
    with pytest.raises(IllegalPlanError, match=r"0\.9\.0"):
        bench_serve_argv(spread, "m", parse_version("0.9.0"))
    below = replace(spread, range_ratio=0.8, length_distribution="below")
    assert option(bench_serve_argv(below, "m", parse_version("0.9.0")), "--random-range-ratio") == "0.8"
    with pytest.raises(IllegalPlanError, match=r"0\.33\.0"):
        bench_serve_argv(below, "m", parse_version("0.33.0"))


def test_a_version_that_cannot_hold_a_concurrency_says_when_it_came() -> None:
    with pytest.raises(IllegalPlanError, match=r"--max-concurrency.*not before 0\.6\.4"):
        bench_serve_argv(LOAD, "m", parse_version("0.6.3"))
    open_loop = Load(input_len=8, output_len=8, num_prompts=8, request_rate=2.0)
    assert option(bench_serve_argv(open_loop, "m", parse_version("0.6.3")), "--request-rate") == "2.0"


@pytest.mark.parametrize(
    ("version", "start", "length_flag"),
    [
        ("0.8.4", ["python3", "/app/vllm/benchmarks/benchmark_throughput.py"], "--input-len"),
        ("0.13.0", ["vllm", "bench", "throughput"], "--input-len"),
        ("0.14.0", ["vllm", "bench", "throughput"], "--random-input-len"),
    ],
)
def test_the_offline_benchmark_by_version(version: str, start: list[str], length_flag: str) -> None:
    argv = bench_throughput_argv(config(version), LOAD, "m")
    assert argv[: len(start)] == start
    assert (option(argv, length_flag), option(argv, "--num-prompts")) == ("1024", "64")
    assert option(argv, "--max-num-seqs") == str(config(version).max_num_seqs)


def test_the_latency_benchmark_by_version() -> None:
    sizes: dict[str, Any] = {"input_len": 128, "output_len": 2048, "batch_size": 1}
    old = bench_latency_argv(config("0.7.3", "mi300x"), "m", **sizes)
    new = bench_latency_argv(config("0.33.0", "mi300x"), "m", **sizes)
    assert (old[1], new[:3]) == ("/app/vllm/benchmarks/benchmark_latency.py", ["vllm", "bench", "latency"])
    for argv in (old, new):
        assert (option(argv, "--output-len"), option(argv, "--num-iters-warmup"), option(argv, "--num-iters")) == (
            "2048", "3", "5",
        )  # fmt: skip
    with pytest.raises(IllegalPlanError, match=r"--max-num-seqs.*not before 0\.6\.4"):
        bench_latency_argv(config("0.6.3"), "m", **sizes)


@settings(max_examples=200)
@given(
    version=VERSIONS,
    gpu=st.sampled_from(["mi300x", "mi300x-cpx", "mi355x", "h100-sxm", "b200-sxm", "a100-sxm-80gb", "cpu"]),
    model=st.sampled_from(sorted(MODELS)),
    asked=st.fixed_dictionaries(
        {},
        optional={
            "tensor_parallel_size": st.sampled_from([1, 2, 8]),
            "pipeline_parallel_size": st.sampled_from([1, 2]),
            "data_parallel_size": st.sampled_from([1, 4]),
            "enable_expert_parallel": st.booleans(),
            "kv_cache_dtype": st.sampled_from(["auto", "fp8", "bfloat16"]),
            "dtype": st.sampled_from(["auto", "float16"]),
            "quantization": st.sampled_from([None, "fp8"]),
            "max_num_seqs": st.integers(1, 256),
            "block_size": st.sampled_from([None, 16, 32]),
            "enforce_eager": st.booleans(),
            "enable_chunked_prefill": st.sampled_from([None, True, False]),
            "enable_prefix_caching": st.sampled_from([None, True, False]),
            "async_scheduling": st.sampled_from([None, True, False]),
        },
    ),
    load=st.builds(
        Load,
        input_len=st.integers(2, 4096),
        output_len=st.integers(2, 512),
        num_prompts=st.integers(1, 64),
        max_concurrency=st.none() | st.integers(1, 64),
        range_ratio=st.sampled_from([0.0, 0.3]),
    ),
)
def test_no_version_is_given_what_it_does_not_take(
    version: Any, gpu: str, model: str, asked: dict[str, Any], load: Load
) -> None:
    profile = load_profile(gpu)
    try:
        found = resolve(EngineArgs(max_model_len=4096, **asked), MODELS[model], profile, version)
        recipe = recipe_for(MODELS[model], profile, version, kv_cache_dtype=found.kv_cache_dtype, engine=found.engine)
        commands = [
            [f"{name}={value}" for name, value in recipe.env.items()] + serve_argv(found, model, extra=recipe.flags),
            bench_serve_argv(load, model, version),
            bench_throughput_argv(found, load, model),
            bench_latency_argv(found, model, input_len=8, output_len=8, batch_size=1),
        ]
    except IllegalPlanError as error:
        assert error.hint
        return
    for command in commands:
        assert find_flag_problems(command, version, platform=profile.platform) == []
        assert all(command)
