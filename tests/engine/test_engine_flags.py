"""What each vLLM version accepts, against its own release notes, parsers and errors."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from planner.engine.flags import (
    VllmCommand,
    command_status,
    env_status,
    flag_status,
    table_versions,
    takes_value,
    value_status,
)
from planner.engine.parse import find_flag_problems
from planner.engine.version import parse_version
from planner.resources import package_dir

# (option, last version with it, first version that rejects it): tried on the argparse of those versions.
GONE = [
    ("--num-scheduler-steps", "0.10.0", "0.10.1"),
    ("--swap-space", "0.17.0", "0.18.0"),
    ("--disable-log-requests", "0.16.0", "0.17.0"),
    ("--max-seq-len-to-capture", "0.10.2", "0.11.0"),
    ("--use-v2-block-manager", "0.9.2", "0.10.0"),
    ("--speculative-model", "0.8.2", "0.8.3"),
    ("--num-speculative-tokens", "0.8.2", "0.8.3"),
    ("--cuda-graph-sizes", "0.12.0", "0.13.0"),
    ("--task", "0.12.0", "0.13.0"),
    ("--rope-scaling", "0.11.0", "0.11.1"),
    ("--device", "0.9.2", "0.10.0"),
    ("--guided-decoding-backend", "0.11.2", "0.12.0"),
    ("--calculate-kv-scales", "0.27.0", "0.28.0"),
    ("--max-num-partial-prefills", "0.26.0", "0.27.0"),
    ("--enable-reasoning", "0.9.2", "0.10.0"),
]
NEW = [
    ("--speculative-config", "0.8.1", "0.8.2"),
    ("--async-scheduling", "0.9.2", "0.10.0"),
    ("--enable-log-requests", "0.10.0", "0.10.1"),
    ("--attention-backend", "0.12.0", "0.13.0"),
    ("--max-cudagraph-capture-size", "0.11.0", "0.11.1"),
    ("--all2all-backend", "0.11.0", "0.11.1"),
    ("--moe-backend", "0.16.0", "0.17.0"),
    ("--spec-method", "0.21.0", "0.22.0"),
    ("--compilation-config", "0.6.4", "0.6.5"),
]
ENV_GONE = [
    ("VLLM_USE_V1", "0.11.0", "0.11.1"),
    ("VLLM_USE_TRITON_FLASH_ATTN", "0.11.0", "0.11.1"),
    ("VLLM_V1_USE_PREFILL_DECODE_ATTENTION", "0.14.0", "0.15.0"),
    ("VLLM_ATTENTION_BACKEND", "0.14.0", "0.15.0"),
    ("VLLM_USE_TRTLLM_ATTENTION", "0.14.0", "0.15.0"),
    ("VLLM_FLASH_ATTN_VERSION", "0.14.0", "0.15.0"),
    ("VLLM_USE_FLASHINFER_MOE_FP4", "0.23.0", "0.24.0"),
    ("VLLM_ALL2ALL_BACKEND", "0.15.0", "0.16.0"),
    ("VLLM_TORCH_PROFILER_DIR", "0.15.0", "0.16.0"),
    ("VLLM_RPC_TIMEOUT", "0.22.0", "0.23.0"),
    ("VLLM_ROCM_USE_AITER_PAGED_ATTN", "0.25.0", "0.26.0"),
]
VALUES: list[tuple[str, str, str, str]] = [
    # kind, value, a version without it, a version with it
    ("kv_cache_dtype", "fp8_inc", "0.9.2", "0.10.0"),
    ("kv_cache_dtype", "bfloat16", "0.10.2", "0.11.0"),
    ("kv_cache_dtype", "fp8_ds_mla", "0.11.0", "0.11.1"),
    ("kv_cache_dtype", "float16", "0.17.0", "0.18.0"),
    ("kv_cache_dtype", "nvfp4", "0.19.0", "0.20.0"),
    ("kv_cache_dtype", "ultraquant_4bit", "0.31.0", "0.32.0"),
    ("quantization", "mxfp4", "0.10.0", "0.10.1"),
    ("quantization", "mxfp8", "0.18.0", "0.19.0"),
    ("quantization", "marlin", "0.10.2", "0.10.1"),
    ("quantization", "gguf", "0.24.0", "0.23.0"),
    ("quantization", "bitsandbytes", "0.28.0", "0.27.0"),
    ("quantization", "ptpc_fp8", "0.19.0", "0.18.0"),
    ("compilation_config", "full_cuda_graph", "0.11.1", "0.11.0"),
    ("compilation_config", "full_cuda_graph", "0.8.5", "0.9.0"),
    ("compilation_config", "cudagraph_mode", "0.10.0", "0.10.1"),
    ("compilation_config", "level", "0.18.0", "0.17.0"),
    ("compilation_config", "mode", "0.11.0", "0.11.1"),
    ("compilation_config", "use_inductor", "0.12.0", "0.11.2"),
    ("pass_config", "fuse_allreduce_rms", "0.11.2", "0.12.0"),
    ("pass_config", "enable_noop", "0.13.0", "0.12.0"),
]


@pytest.mark.parametrize(("flag", "last", "rejected"), GONE)
def test_options_that_went(flag: str, last: str, rejected: str) -> None:
    assert flag_status(parse_version(last), flag)
    status = flag_status(parse_version(rejected), flag)
    assert (status.state, status.gone_in) == ("gone", rejected)


@pytest.mark.parametrize(("flag", "before", "since"), NEW)
def test_options_that_came(flag: str, before: str, since: str) -> None:
    status = flag_status(parse_version(before), flag)
    assert (status.state, status.since) == ("not yet", since)
    assert flag_status(parse_version(since), flag)
    assert flag_status(parse_version("0.33.0"), flag)


@pytest.mark.parametrize(("name", "last", "ignored"), ENV_GONE)
def test_variables_that_went(name: str, last: str, ignored: str) -> None:
    assert env_status(parse_version(last), name)
    assert env_status(parse_version(ignored), name).gone_in == ignored


@pytest.mark.parametrize(("kind", "value", "without", "having"), VALUES)
def test_values_and_keys(kind: str, value: str, without: str, having: str) -> None:
    assert not value_status(parse_version(without), kind, value)
    assert value_status(parse_version(having), kind, value)


def test_int8_was_never_a_kv_cache_dtype() -> None:
    assert all(not value_status(parse_version(name), "kv_cache_dtype", "int8") for name in table_versions())


def test_disable_log_requests_came_back() -> None:
    assert flag_status(parse_version("0.32.0"), "--disable-log-requests").state == "gone"
    assert flag_status(parse_version("0.33.0"), "--disable-log-requests")
    assert flag_status(parse_version("0.20.0"), "--disable-log-requests").replaced_by == "--no-enable-log-requests"


def test_patch_releases_follow_the_release_before_them() -> None:
    assert flag_status(parse_version("0.17.1"), "--swap-space")
    assert flag_status(parse_version("0.9.0.1"), "--use-v2-block-manager")
    assert not flag_status(parse_version("0.40.0"), "--swap-space")


def test_a_switch_took_a_value_in_the_first_versions() -> None:
    assert takes_value(parse_version("0.8.4"), "--enable-chunked-prefill")
    assert not takes_value(parse_version("0.8.5"), "--enable-chunked-prefill")
    assert takes_value(parse_version("0.33.0"), "--max-model-len")


def test_amd_images_had_some_variables_a_release_early() -> None:
    version = parse_version("0.9.1")
    assert not env_status(version, "VLLM_ROCM_USE_AITER_MHA")
    assert env_status(version, "VLLM_ROCM_USE_AITER_MHA", platform="rocm")
    assert env_status(version, "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", platform="rocm")
    assert env_status(parse_version("0.9.2"), "VLLM_ROCM_USE_AITER_MHA")


def test_variables_of_others_are_not_vllms_to_know() -> None:
    assert env_status(parse_version("0.33.0"), "NCCL_DEBUG")


@pytest.mark.parametrize(
    ("command", "before", "since"),
    [("bench serve", "0.7.3", "0.8.0"), ("bench throughput", "0.8.4", "0.8.5"), ("bench latency", "0.8.4", "0.8.5")],
)
def test_benchmarks_became_commands(command: VllmCommand, before: str, since: str) -> None:
    assert command_status(parse_version(before), command).since == since
    assert command_status(parse_version(since), command)


# Commands of the published recipes, each with what newer or older versions say of it.
PROBLEMS = [
    ("0.18.0", "vllm serve m --swap-space 16", ["--swap-space"]),
    ("0.17.0", "vllm serve m --swap-space 16", []),
    ("0.20.0", "vllm serve m --disable-log-requests --num_scheduler-steps 10", [
        "--disable-log-requests", "--num-scheduler-steps",
    ]),
    ("0.6.3", "vllm serve m --swap-space 16 --disable-log-requests --num_scheduler-steps 10", []),
    ("0.8.5", "vllm serve m --enable-chunked-prefill False", ["--enable-chunked-prefill"]),
    ("0.8.4", "vllm serve m --enable-chunked-prefill False", []),
    ("0.10.2", "vllm serve m --kv-cache-dtype bfloat16 -q marlin", ["--kv-cache-dtype bfloat16", "-q marlin"]),
    ("0.10.2", "vllm serve m --compilation-config 3", ["--compilation-config"]),
    ("0.9.1", "vllm serve m --compilation-config 3", []),
    ("0.29.0", "vllm serve m -O3 -tp 8 --attention_config.use_fp4_indexer_cache True", []),
    ("0.30.0", "vllm serve m --attention_config.use_fp4_indexer_cache=True --attention-config.backend FLASHINFER", [
        "--attention-config use_fp4_indexer_cache",
    ]),
    ("0.33.0", "vllm serve m -ac.indexer_kv_dtyp fp8 -cc.pass_config.fuse_allreduce_rms true -cc.pass_config.x 1", [
        "-ac indexer_kv_dtyp", "-cc pass_config x",
    ]),
    ("0.32.0", """vllm serve m --kv-transfer-config '{"kv_connector":"NixlConnector","kv_rank":0}'""", [
        "--kv-transfer-config kv_rank",
    ]),
    ("0.33.0", """vllm serve m --additional-config '{"a":1}' --kv-transfer-config.kv_connector_extra_config.a 1""", []),
    ("0.33.0", "VLLM_USE_V1=1 VLLM_ROCM_USE_AITER=1 NCCL_DEBUG=WARN vllm serve m", ["VLLM_USE_V1"]),
    ("0.7.3", "vllm bench serve --model m", ["bench serve"]),
    ("0.12.0", "python3 /app/vllm/benchmarks/benchmark_latency.py --model m", ["benchmark_latency.py"]),
    ("0.9.1", "python3 /app/vllm/benchmarks/benchmark_latency.py --model m -tp 8 --batch-size 1", []),
    ("0.33.0", "lm_eval --model local-completions --swap-space 16", []),
    ("0.33.0", "vllm serve m --max-num-sequences 8", ["--max-num-sequences"]),
    ("0.33.0", "vllm serve m --speculative-config nonsense --compilation-config {broken", ["--compilation-config"]),
]  # fmt: skip


@pytest.mark.parametrize(("version", "command", "words"), PROBLEMS)
def test_commands_are_judged_as_their_version_would(version: str, command: str, words: list[str]) -> None:
    assert [problem.word for problem in find_flag_problems(shlex.split(command), parse_version(version))] == words


def test_keys_of_the_nvidia_recipe_of_2025_by_version() -> None:
    fusions = '{"pass_config":{"enable_fi_allreduce_fusion":true,"enable_noop":true},"full_cuda_graph":true}'
    command = ["vllm", "serve", "m", "--compilation-config", fusions]
    assert find_flag_problems(command, parse_version("0.10.2")) == []
    words = [str(problem) for problem in find_flag_problems(command, parse_version("0.13.0"))]
    assert words == [
        "--compilation-config pass_config enable_fi_allreduce_fusion: gone in 0.13.0 (use fuse_allreduce_rms)",
        "--compilation-config pass_config enable_noop: gone in 0.13.0 (use eliminate_noops)",
        "--compilation-config full_cuda_graph: gone in 0.11.1 (use cudagraph_mode)",
    ]


@pytest.mark.parametrize(
    ("version", "option", "fatal"),
    [
        ("0.14.0", "--attention-config.use_fp4_indexer_cache=1", False),
        ("0.16.0", "--attention-config.use_fp4_indexer_cache=1", True),
        ("0.12.0", "--compilation-config.dynamic_shapes_confg=1", False),
        ("0.13.0", "--compilation-config.dynamic_shapes_confg=1", True),
    ],
)
def test_an_unknown_key_is_ignored_until_vllm_forbids_it(version: str, option: str, fatal: bool) -> None:
    (problem,) = find_flag_problems(["vllm", "serve", "m", option], parse_version(version))
    assert problem.fatal is fatal


def test_a_key_that_nothing_replaced_is_to_be_left_out() -> None:
    command = ["vllm", "serve", "m", "--kv-transfer-config", '{"kv_buffer_size":1e9}']
    (problem,) = find_flag_problems(command, parse_version("0.32.0"))
    assert str(problem) == "--kv-transfer-config kv_buffer_size: gone in 0.32.0 (leave it out)"


def test_a_key_that_is_gone_comes_with_the_one_in_its_place() -> None:
    gone = value_status(parse_version("0.32.0"), "quantization", "ptpc_fp8")  # config/quantization.py has its successor
    assert gone.hint == "use --quantization fp8_per_channel (0.24.0 on)"
    command = ["vllm", "serve", "m", "--attention-config", '{"use_fp4_indexer_cache":true}']
    (problem,) = find_flag_problems(command, parse_version("0.32.0"))
    cause = "--attention-config use_fp4_indexer_cache: gone in 0.30.0"
    assert str(problem) == f"{cause} (use indexer_kv_dtype mxfp4)"


def test_a_variable_without_effect_is_no_error() -> None:
    (problem,) = find_flag_problems(["VLLM_USE_V1=1", "vllm", "serve", "m"], parse_version("0.33.0"))
    assert not problem.fatal


def test_a_misspelt_option_comes_with_the_nearest_one() -> None:
    (problem,) = find_flag_problems(["vllm", "serve", "m", "--max-model-length", "8"], parse_version("0.33.0"))
    assert problem.hint == "nearest: --max-model-len"


def test_the_server_decides_what_is_a_switch_when_the_table_is_built(tmp_path: Path) -> None:
    """In 0.6.3 ``vllm serve`` takes ``--enable-chunked-prefill=False``; the scripts of its benchmarks have a switch."""
    flag = "--enable-chunked-prefill"
    dumps = {
        "0.6.3": {"serve": {flag: "maybe", "--enforce-eager": "switch"}, "benchmark_latency.py": {flag: "switch"}},
        "0.8.5": {"serve": {flag: "switch", "--enforce-eager": "switch"}},
    }
    for version, options in dumps.items():
        (tmp_path / f"{version}.json").write_text(json.dumps({"version": version, **options}))
    builder = Path(__file__).parents[1] / "real_parsers" / "build_table.py"
    subprocess.run([sys.executable, builder, tmp_path, tmp_path / "table"], check=True)
    switches = json.loads((tmp_path / "table").read_text())["switches"]
    assert switches == {"0.6.3..": "--enforce-eager", "0.8.5..": flag}
    assert takes_value(parse_version("0.6.3"), flag) and not takes_value(parse_version("0.8.5"), flag)


def test_one_dump_adds_one_version(tmp_path: Path) -> None:
    """What the table says of the other versions stays, word for word."""
    table = package_dir("engine") / "flags.json"
    builder = Path(__file__).parents[1] / "real_parsers" / "build_table.py"
    (tmp_path / "dumps").mkdir()
    (tmp_path / "table").write_text(table.read_text())
    subprocess.run([sys.executable, builder, tmp_path / "dumps", tmp_path / "table"], check=True)
    assert (tmp_path / "table").read_text() == table.read_text()
