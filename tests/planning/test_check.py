"""Somebody's own line: found in scripts, read as the version's parser reads it, judged, and compared with a plan."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, run
from hypothesis import given
from hypothesis import strategies as st
from workflow_cases import files_of

from planner import check_command
from planner.engine.flags import AITER, table_versions
from planner.engine.launches import Found, find_launches
from planner.engine.parse import ServeLine, read_line
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model
from planner.output.workflows.documents import find_workflow
from planner.output.workflows.render import plan_workflow
from planner.output.workflows.subject import Choice
from planner.planning import engine_args
from planner.planning.plan import PlannedWorkload
from planner.planning.search.space import Merit
from planner.planning.serving import Serving
from planner.workload import Load

pytestmark = pytest.mark.usefixtures("short_loops")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NEW = parse_version("0.32.0")
#: A load for tests of what starts or is suggested: its replays take little time. Also as words.
SMALL: dict[str, int] = {"input_len": 64, "output_len": 8, "max_concurrency": 2}
FEW = ("--random-input-len", "64", "--random-output-len", "8", "--max-concurrency", "2")


def server_of(script: str | list[str]) -> Found:
    (launch,) = find_launches(script)
    assert launch.server
    return launch.server


def words_of(script: str) -> list[str]:
    return list(server_of(script).argv)


def test_a_line_in_an_image_is_judged_by_the_rules_of_its_version() -> None:
    """--swap-space is an option of vLLM up to 0.17."""
    line = ["docker", "run", "--gpus=all", "vllm/vllm-openai:v0.11.0", LLAMA, "--swap-space", "4"]
    assert answer("--gpu", "h100", "--", *line)["engine_version"] == "0.11.0"
    asked = answer("--gpu", "h100", "--engine-version", "0.27.1", "--", *line, status=1)
    assert asked["engine_version"] == "0.27.1" and not asked["starts"]


def test_what_a_run_decides_is_asked_for() -> None:
    script = f'if [ "$BIG" = 1 ]; then L=400000; else L=8192; fi; vllm serve {LLAMA} --max-model-len $L'
    said = answer("--gpu", "h100", script, status=1)
    assert said["flags"][0]["flag"] == "--max-model-len" and "--set" in said["flags"][0]["hint"]
    assert answer("--gpu", "h100", "--set", "BIG=0", script)["starts"]


def test_an_offline_script_of_ours_gets_the_prediction_that_stands_in_it(tmp_path: Path) -> None:
    files = plan_workflow(find_workflow("latency"), Choice(), command="planner workflow latency")
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    saved = json.loads(files["points.json"])["points"]
    said = answer(str(tmp_path / "latency.sh"))
    assert [way["offline"]["avg_latency"] for way in said["branches"]] == pytest.approx(
        [point["predicted"] for point in saved]
    )
    assert len(run("check", str(tmp_path / "latency.sh")).out.splitlines()) < 40


def test_points_of_which_the_same_is_said_are_one(tmp_path: Path) -> None:
    for name, text in files_of("latency").items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert answer(str(tmp_path / "benchmark.sh"))["branches"] == []


def test_the_client_beside_the_server_says_the_load() -> None:
    script = f"""
    vllm serve {LLAMA} --max-model-len 8192 --max-num-seqs 64 &
    until curl -s localhost:8000/health; do sleep 1; done
    vllm bench serve --model {LLAMA} --dataset-name random --random-input-len 300 --random-output-len 100 \\
        --max-concurrency 16 --num-prompts 48 --ignore-eos
    """
    said = answer("--gpu", "h100", script)
    assert (
        said["load"] == PlannedWorkload(input_len=300, output_len=100, max_concurrency=16, num_prompts=48).model_dump()
    )
    assert said["delivers"]["completed"] == 48
    asked = answer("--gpu", "h100", "--max-concurrency", "4", script)
    assert asked["load"]["max_concurrency"] == 4 and asked["load"]["input_len"] == 300


@pytest.mark.parametrize(("data", "simulated"), [("random", True), ("random-mm", False), ("sharegpt", False)])
def test_a_data_set_that_is_not_simulated_is_named(data: str, simulated: bool) -> None:
    """``get_samples`` of benchmarks/datasets/datasets.py, 0.32.0: random-mm adds images to random text."""
    words = f"vllm bench serve --model {LLAMA} --dataset-name {data} --random-input-len 64 --num-prompts 4"
    said = check_command(f"{words} --max-concurrency 1", "h100").remarks
    assert any(f"--dataset-name {data} is not simulated" in note for note in said) != simulated


def test_a_rate_and_a_burst_without_a_limit_are_sent_as_they_are() -> None:
    client = f"python3 benchmarks/benchmark_serving.py --model {LLAMA} "
    line = f"vllm serve {LLAMA} --max-model-len 8192 --max-num-seqs 64\n{client}"
    rate = answer("--gpu", "h100", "--engine-version", "0.9.1", line + "--request-rate 1 --num-prompts 20")
    assert not rate["flags"], "the rate limits the requests in flight"
    assert rate["load"]["request_rate"] == 1.0 and rate["load"]["max_concurrency"] is None
    burst = answer("--gpu", "h100", line + "--num-prompts 20", "--engine-version", "0.9.1")
    assert [one["flag"] for one in burst["flags"]] == ["--num-prompts"]
    assert burst["load"]["max_concurrency"] is None and burst["delivers"]["completed"] == 20


@pytest.mark.parametrize(
    ("words", "key", "same"),
    [
        (
            "vllm bench latency --model {m} --batch-size 4 --input-len 256 --output-len 64",
            "avg_latency",
            "latency {m} --input-len 256 --output-len 64 --batch-size 4",
        ),
        (
            "python3 benchmark_throughput.py --model {m} --input-len 256 --output-len 64 --num-prompts 32",
            "tokens_per_second",
            "throughput {m} --input-len 256 --output-len 64 --num-prompts 32",
        ),
    ],
)  # fmt: skip
def test_offline_benchmarks_are_judged_and_predicted_like_planner_predict(words: str, key: str, same: str) -> None:
    version = ("--engine-version", "0.9.1")
    said = answer("--gpu", "h100", *version, words.format(m=LLAMA))
    assert said["starts"] and said["delivers"] is None
    predicted = run("predict", *same.format(m=LLAMA).split(), "--gpu", "h100", *version, "--format", "json")
    assert said["offline"][key] == pytest.approx(json.loads(predicted.out)[key])
    assert f"{key}_lo" in said["offline"]


def test_what_an_offline_benchmark_does_not_take_is_named() -> None:
    said = answer("--gpu", "h100", f"vllm bench latency --model {LLAMA} --max-concurrency 4", status=1)
    assert said["flags"][0]["flag"] == "--max-concurrency"


def test_drafts_and_several_steps_of_the_scheduler_are_refused_together() -> None:
    """arg_utils.py of 0.6.4: "Speculative decoding is not supported with multi-step (--num-scheduler-steps > 1)"."""
    words = "vllm serve m --speculative-model d --num-speculative-tokens 5"
    for steps, refused in (("", False), (" --num-scheduler-steps 10", True)):
        line = read_line(shlex.split(words + steps), parse_version("0.6.4"))
        assert line.refused is refused and line.args.speculative_config
        assert line.args.speculative_config.num_speculative_tokens == 5


def test_a_share_of_the_memory_that_only_later_versions_refuse() -> None:
    """gpu_worker.py of V1 compares it with the free memory from 0.9.1 on; V0 never does."""
    line = f"vllm serve {LLAMA} --max-model-len 4608 --gpu-memory-utilization 0.999"
    assert answer("--gpu", "h100", "--engine-version", "0.6.3", line)["starts"]
    said = answer("--gpu", "h100", "--engine-version", "0.10.0", line, status=1)
    assert "Free memory on device" in said["fit"]["reason"]
    assert said["fit"]["schema_version"] == 1


def test_a_form_of_quick_reduce_that_is_none_is_named() -> None:
    for mode, refused in (("INT4", False), ("INT5", True)):
        env = {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": mode}
        line = read_line(["vllm", "serve", "m"], parse_version("0.10.1"), env=env, platform="rocm")
        assert line.refused is refused


def test_what_nvidia_says_of_hopper_is_warned_of_before_it_was_lifted() -> None:
    fusion = '{"pass_config":{"enable_fi_allreduce_fusion":true}}'
    words = ("vllm", "serve", LLAMA, "--async-scheduling", "--compilation-config", fusion, "--max-model-len", "8192")
    said = answer("--gpu", "h100", "--engine-version", "0.10.1", "--", *words)
    assert [flag["flag"] for flag in said["flags"] if "Hopper" in flag["cause"]] == [
        "--async-scheduling", "--compilation-config enable_fi_allreduce_fusion",
    ]  # fmt: skip
    assert not answer("--gpu", "b200", "--engine-version", "0.10.1", "--", *words)["flags"]


#: What every shell passes on unchanged when it is quoted.
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=("Cs",)), min_size=1)


def line_of(text: str) -> ServeLine:
    return read_line(shlex.split(text), NEW)


def settings(line: str, version: str = "0.32.0") -> dict[str, Any]:
    """What a line sets, beside the defaults."""
    args = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version)).args
    plain = EngineArgs()
    return {name: getattr(args, name) for name in EngineArgs.__slots__ if getattr(args, name) != getattr(plain, name)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--tensor-parallel 2", {"tensor_parallel_size": 2}),
        ("--gpu-memory-util=0.5", {"gpu_memory_utilization": 0.5}),
        ("--max_num_seqs 8", {"max_num_seqs": 8}),
        ("-tp=4 -ep", {"tensor_parallel_size": 4, "enable_expert_parallel": True}),
        ("-pp 2 -dp 2", {"pipeline_parallel_size": 2, "data_parallel_size": 2}),
        ("--max-model-len 32k --max-num-batched-tokens 8K", {"max_model_len": 32_000, "max_num_batched_tokens": 8192}),
        ("--max-model-len 25.6k", {"max_model_len": 25_600}),
        ("--no-enable-prefix", {"enable_prefix_caching": False}),
        ("--enforce-eager --async-scheduling", {"enforce_eager": True, "async_scheduling": True}),
        ("--max-num-seqs 8 --max-num-seqs 16", {"max_num_seqs": 16}),
        ("-q awq --kv-cache-dtype=fp8", {"quantization": "awq", "kv_cache_dtype": "fp8"}),
        ("--served-model-name a b --block-size 32", {"block_size": 32}),
        ("--compilation-config '{\"cudagraph_mode\": \"FULL\"}' --dtype half", {"dtype": "half"}),
    ],
)  # fmt: skip
def test_options_are_read_as_argparse_reads_them(line: str, expected: dict[str, Any]) -> None:
    """The real parser of 0.32.0 takes each of these lines so."""
    assert settings(line) == expected
    assert not read_line(shlex.split(f"vllm serve org/model {line}"), NEW).problems


@pytest.mark.parametrize(
    ("version", "line", "words", "fatal"),
    [
        ("0.32.0", "--max-num 8", "could mean", True),
        ("0.32.0", "--tp 2", "nearest: -tp", True),
        ("0.18.0", "--swap-space 16", "gone in 0.18.0", True),
        ("0.11.0", "--num-scheduler-steps 10", "--async-scheduling", True),
        ("0.9.1", "--async-scheduling", "not before 0.10.0", True),
        ("0.32.0", "--dtype bf16", "takes no 'bf16'", True),
        ("0.32.0", "--max-num-seqs two", "'two' is not a number", True),
        ("0.32.0", "--max-num-seqs 1k", "'1k' is not a number", True),
        ("0.32.0", "--max-num-seqs $N", "does not set $N", True),
        ("0.32.0", "--tensor-parallel-size --enforce-eager", "needs a value", True),
        ("0.32.0", "--enforce-eager=true", "takes no value", True),
        ("0.32.0", "--enforce-eager true", "takes no value", True),
        ("0.32.0", "another/model", "neither an option nor the model", True),
        ("0.32.0", "--quantization nosuch", "unknown to vLLM", True),
        ("0.32.0", "-cc '{\"full_cuda_graph\": true}'", "cudagraph_mode", True),
        ("0.32.0", "--speculative-config '{}'", "num_speculative_tokens", True),
        # a length of contexts, which V1's graphs do not know; the largest size, by config/scheduler.py of 0.11.0
        ("0.11.0", "--max-seq-len-to-capture 8192", "(nothing: V1 captures graphs for every length)", True),
        ("0.24.0", "--cuda-graph-sizes 2048", "(use --max-cudagraph-capture-size, for several", True),
        # arg_utils.py of 0.11.0: "Please use"
        ("0.24.0", "--eplb-step-interval 3000", "(use --eplb-config.step_interval)", True),
        ("0.24.0", "--enable-multimodal-encoder-data-parallel", "(use --mm-encoder-tp-mode data)", True),
        ("0.32.0", "--max-num-partial-prefills 2", "(leave it out)", True),
        ("0.10.2", "--compilation-config 3", 'write {"level": 3}', True),
        ("0.11.1", "--compilation-config 3", 'write {"mode": 3}', True),
    ],
)
def test_what_the_version_does_not_take_is_named_with_what_to_use(
    version: str, line: str, words: str, fatal: bool
) -> None:
    read = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version))
    (problem,) = read.problems
    assert words in str(problem) and problem.fatal is fatal
    assert read.model == "org/model"


def test_a_variable_that_nobody_reads_is_no_reason_not_to_start() -> None:
    line = read_line(["vllm", "serve", "m"], NEW, env={"VLLM_NO_SUCH_THING": "1", "HF_TOKEN": "secret"})
    (problem,) = line.problems
    assert not problem.fatal and not line.refused and "secret" not in str(problem)


def test_a_positional_model_overrules_a_named_one() -> None:
    assert line_of("vllm serve --model a b").model == "b"
    assert line_of("vllm serve --tensor-parallel-size 2 b").model == "b"
    assert line_of("vllm serve").model is None


def test_options_in_a_file_are_not_guessed_at() -> None:
    with pytest.raises(InputError, match="--config"):
        line_of("vllm serve m --config serve.yaml")


def test_what_is_left_out_of_account_is_said() -> None:
    line = line_of("vllm serve m --num-gpu-blocks-override 400 --enable-eplb")
    assert line.not_simulated == ("--num-gpu-blocks-override", "--enable-eplb")
    for backend, said in (("native", ()), ("lmcache", ("--kv-offloading-backend",))):
        line = line_of(f"vllm serve m --kv-offloading-size 4 --kv-offloading-backend {backend}")
        assert line.not_simulated == said
    known = line_of("vllm serve m --cpu-offload-gb 4 --enable-lora --max-lora-rank 64")
    assert not known.not_simulated
    assert (known.args.cpu_offload_gb, known.args.enable_lora, known.args.max_lora_rank) == (4.0, True, 64)


@given(version=st.sampled_from(table_versions()).map(parse_version), words=st.lists(WORDS, max_size=6))
def test_no_line_is_too_strange_to_be_read_or_refused(version: Any, words: list[str]) -> None:
    try:
        line = read_line(["vllm", "serve", "m", *words], version)
    except InputError as error:
        assert error.hint
    else:
        assert line.model is not None


@pytest.mark.parametrize(
    ("version", "line", "only_v0"),
    [
        # vLLM's own oracle says so of each (arg_utils.py of that version, _is_v1_supported_oracle)
        ("0.9.1", "--num-scheduler-steps 8", ("--num-scheduler-steps 8",)),
        ("0.9.1", "--num-scheduler-steps 1", ()),
        ("0.8.5", "--num_scheduler_steps=10", ("--num-scheduler-steps 10",)),
        ("0.7.3", "--num-scheduler-steps 10", ()),  # V0 is the only default
        ("0.10.0", "--num-scheduler-steps 10", ("--num-scheduler-steps 10",)),
        ("0.9.1", "--scheduling-policy priority --preemption-mode swap", None),
        ("0.10.2", "--scheduling-policy priority", ()),
        ("0.10.2", "--preemption-mode swap", ("--preemption-mode swap",)),
        ("0.10.2", "--scheduler-delay-factor 0.5", ("--scheduler-delay-factor 0.5",)),
        ("0.10.2", "--scheduler-delay-factor 0", ()),
        ("0.10.2", "--disable-async-output-proc", ("--disable-async-output-proc",)),
        ("0.9.1", "--guided-decoding-backend outlines", ("--guided-decoding-backend outlines",)),
        ("0.10.0", "--guided-decoding-backend outlines", ()),
        ("0.8.5", "--guided-decoding-backend xgrammar", ()),
        ("0.9.1", "--otlp-traces-endpoint http://a:4317", ("--otlp-traces-endpoint http://a:4317",)),
        ("0.10.2", "--otlp-traces-endpoint http://a:4317", ()),
        ("0.11.0", "--max-num-partial-prefills 2", ("--max-num-partial-prefills 2",)),
        ("0.12.0", "--max-num-partial-prefills 2", ()),
    ],
)
def test_options_that_bring_the_old_engine_back_are_known(
    version: str, line: str, only_v0: tuple[str, ...] | None
) -> None:
    read = read_line(shlex.split(f"vllm serve org/model {line}"), parse_version(version))
    assert not read.problems
    if only_v0 is None:
        assert len(read.only_v0) == 2
    else:
        assert read.only_v0 == only_v0


def test_an_attention_backend_of_the_old_engine_brings_it_back() -> None:
    words, version = ["vllm", "serve", "m"], parse_version("0.9.1")
    assert read_line(words, version, env={"VLLM_ATTENTION_BACKEND": "XFORMERS"}).only_v0
    assert not read_line(words, version, env={"VLLM_ATTENTION_BACKEND": "FLASHINFER"}).only_v0


NGRAM = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}'


@pytest.mark.parametrize(
    ("args", "version", "engine"),
    [
        # the same oracle on what a plan may ask for: 0.8 drafts by its old engine and has pipelines with Ray alone
        ({"pipeline_parallel_size": 2}, "0.8.5", "V0"),
        ({"pipeline_parallel_size": 2}, "0.9.1", "V1"),
        ({"dtype": "float32"}, "0.9.1", "V0"),
        ({"dtype": "float32"}, "0.9.2", "V1"),
        ({"speculative_config": NGRAM}, "0.8.5", "V0"),
        ({"speculative_config": NGRAM}, "0.9.1", "V1"),
    ],
)  # fmt: skip
def test_plans_get_the_engine_that_the_version_would_take(args: dict[str, Any], version: str, engine: str) -> None:
    asked = engine_args(args)
    resolved = resolve_model(LLAMA)
    assert resolve(asked, resolved.model, load_profile("h100"), parse_version(version)).engine == engine


def answer(*words: str, status: int = 0) -> dict[str, Any]:
    outcome = run("check", "--format", "json", *words)
    assert outcome.status == status, outcome.err
    data: dict[str, Any] = json.loads(outcome.out)
    return data


def test_a_good_line_starts_and_is_predicted_like_planner_predict() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-num-seqs", "64", "--max-model-len", "8192")
    assert said["starts"] and said["flags"] == []
    sent = PlannedWorkload(input_len=1024, output_len=1024, max_concurrency=64, num_prompts=128)
    assert said["load"] == sent.model_dump()
    predicted = run(
        "predict", "serve", LLAMA, "--gpu", "h100", "--max-num-seqs", "64", "--max-model-len", "8192",
        "--random-input-len", "1024", "--random-output-len", "1024", "--max-concurrency", "64",
        "--num-prompts", "128", "--format", "json",
    )  # fmt: skip
    same = json.loads(predicted.out)
    for key in ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"):
        assert said["delivers"][key] == pytest.approx(same[key])


def test_without_an_asked_load_as_many_requests_are_sent_as_run_at_once() -> None:
    """A context of 131,072 tokens, 1024 sequences by default: the cache holds fewer requests of 2048 tokens."""
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA)
    held = said["fit"]["kv_cache_tokens"] // 2048
    assert 1 < held < said["settings"]["max_num_seqs"]
    assert abs(said["load"]["max_concurrency"] - held) <= 1


def test_what_does_not_fit_is_answered_with_no_and_a_plan_that_does() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct", status=1)
    assert not said["starts"] and said["fit"]["verdict"] == "does not fit"
    assert said["delivers"] is None and said["fit"]["options"]
    for plan in said["better"]:
        again = answer("--gpu", "h100", "--gpus", "8", "--", *shlex.split(plan["command"]))
        assert again["starts"], plan["command"]


def test_where_no_load_is_asked_for_a_line_that_does_not_start_gets_what_recommend_gives() -> None:
    """Batch and all: it is chosen with as many requests as show it, not with a handful."""
    line = ("vllm", "serve", LLAMA, "-tp", "3", "--max-model-len", "131072")  # 32 heads
    said = answer("--gpu", "h100", "--gpus", "1", "--", *line, status=1)
    same = ("--gpu", "h100", "--gpus", "1", "--max-model-len", "131072", "--format", "json")
    (best, *_) = json.loads(run("recommend", LLAMA, *same).out)["plans"]
    assert said["load"] == best["workload"]
    found = said["better"][0]["delivers"]
    assert found["num_gpus"] == best["num_gpus"] == 1
    assert found["output_throughput"] == pytest.approx(best["predicted"]["output_throughput"], rel=0.02)


def test_a_refused_option_is_no_but_the_rest_is_answered() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--swap-space", "4", status=1)
    assert [flag["flag"] for flag in said["flags"]] == ["--swap-space"]
    assert said["fit"]["fits"] and said["delivers"]


def test_settings_that_vllm_refuses_are_told_with_the_reason() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "-tp", "3", status=1)
    assert "32 attention heads" in said["refusal"]["cause"] and said["refusal"]["hint"]


OLD = ("--gpu", "h100", "--engine-version", "0.9.1", "--")
DRAFT = '{"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5}'
SHORT = ("vllm", "serve", LLAMA, "--max-num-seqs", "64", "--max-model-len", "4096")


#: ``CacheDType`` of config/cache.py and ``QUANTIZATION_METHODS`` of vLLM 0.32.0 have all of these but ``int9``.
@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--kv-cache-dtype int8_per_token_head", "planner cannot tell: it does not model these settings"),
        ("--kv-cache-dtype turboquant_4bit_nc", "planner cannot tell: it does not model these settings"),
        ("--quantization humming", "planner cannot tell: it does not model these settings"),
        ("--kv-cache-dtype int9", "vLLM refuses these settings"),
        ("--kv-cache-dtype nvfp4 --max-model-len 999999", "vLLM refuses these settings"),
    ],
)
def test_what_is_not_modelled_is_not_called_refused(words: str, told: str) -> None:
    checked = run("check", "--gpu", "h100", *FEW, "--", "vllm", "serve", LLAMA, *words.split())
    assert checked.status == 1 and f"vLLM 0.32.0: {told} x --" in " ".join(checked.out.split())


def test_an_option_of_planner_in_the_line_is_sent_in_front_of_it() -> None:
    checked = run("check", "--gpu", "h100", "--", "vllm", "serve", LLAMA, "--goal", "balanced")
    assert "--goal: unknown to vLLM (of planner check: put it in front of --)" in checked.out


def test_a_given_number_of_blocks_is_named_beside_the_size_of_the_cache() -> None:
    """``may_override_num_blocks`` of v1/core/kv_cache_utils.py (0.32.0): the number replaces the profiled one."""
    told = run("check", "--gpu", "h100", "--", "vllm", "serve", LLAMA, "--num-gpu-blocks-override", "400").out
    (cache,) = [line for line in told.splitlines() if line.startswith("  KV cache")]
    assert cache.endswith("(before --num-gpu-blocks-override)")


MOE, MLA = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3.1 -tp 8"
WIDE, COPIES = "deepseek-ai/DeepSeek-R1 -dp 8 -ep", '--eplb-config {"num_redundant_experts":%s}'
NODE = f"{MOE} -ep -dp 16 -dpl 8 -dpr 8 -dpa 10.1.1.1"
ALONE = "vLLM refuses an option; without it: starts x"
UNSHARED = "vLLM refuses these settings x --enable-eplb, --eplb-config"
SENT = "--all2all-backend deepep_low_latency"


#: vLLM 0.32.0: ``supports_pcp`` of v1/attention/backend.py (True for MLA alone, asserted in v1/worker/cp_utils.py), the
#: world size and ``enable_eplb`` of config/parallel.py; 0.9.2 had no such check of EPLB. ``Microbatching currently only
#: supports`` of config/vllm.py, in 0.11.0 by the variable. An expert of DeepSeek-R1 has 3 x 2,048 x 7,168 bytes, with
#: scales 0.0410 GiB: 36 in 58 layers in place of 32, and 36 in EPLB's buffer, are 10.99 GiB more.
@pytest.mark.parametrize(
    ("version", "line", "told"),
    [
        ("0.32.0", f"{LLAMA} -pcp 2", "vLLM refuses an option; without it: starts x --prefill-context-parallel-size:"),
        ("0.32.0", f"{MLA} -pcp 2", "planner does not model an option; without it: starts x --prefill-context-"),
        ("0.32.0", f"{LLAMA} -pcp 1", "starts weights"),
        ("0.32.0", f"{MOE} --enable-dbo -ep", "vLLM refuses an option; without it: starts x --enable-dbo:"),
        ("0.11.0", f"{MOE} --enable-dbo -ep", "vLLM refuses an option; without it: starts x --enable-dbo: vLLM 0.11.0 "
         "runs it on DeepEP or NIXL alone (add VLLM_ALL2ALL_BACKEND=deepep_low_latency and install DeepEP, or"),
        ("0.32.0", f"{MOE} --enable-dbo -ep -dp 2 --all2all-backend deepep_high_throughput", "starts weights"),
        ("0.32.0", f"{WIDE} --enable-dbo {SENT}", "starts weights 93.92 GiB on each GPU, fp8 KV cache 24.24 GiB"),
        ("0.32.0", f"{WIDE} {SENT} --max-num-batched-tokens 8192", f"vLLM refuses these settings x {SENT}: buffers of "
         "113.8 GiB on each GPU, DeepEP has up to 32 (use --max-num-batched-tokens 2304 or less)"),
        ("0.32.0", f"deepseek-ai/DeepSeek-R1 -dp 8 {SENT}", f"vLLM refuses these settings x {SENT}: vLLM runs it "
         "between ranks with whole experts (add --enable-expert-parallel)"),
        ("0.32.0", f"{WIDE} --all2all-backend mori_low_latency", "vLLM refuses these settings x --all2all-backend "
         "mori_low_latency: it has no kernels for NVIDIA H200"),
        ("0.32.0", f"{MOE} --enable-eplb", f"{UNSHARED}: no ranks share experts"),
        ("0.32.0", f"{MOE} --enable-eplb -ep", f"{UNSHARED}: no ranks share experts"),
        ("0.32.0", f"{MOE} --enable-eplb -tp 2", f"{UNSHARED}: no ranks share experts"),
        ("0.32.0", f"{MOE} --enable-eplb -ep -tp 2", "starts weights"),
        ("0.32.0", f"{WIDE}", "starts weights 93.92 GiB on each GPU"),
        ("0.32.0", f"{WIDE} --enable-eplb --eplb-config.num_redundant_experts 32", "starts weights 104.91 GiB on each"),
        ("0.32.0", f"{WIDE} --enable-eplb {COPIES % 64}", "does not fit x To serve at least one request"),
        ("0.32.0", f"{WIDE} --enable-eplb {COPIES % 30}", f"{UNSHARED}: 286 experts cannot be divided evenly over 8 "
         "ranks (use --eplb-config '{\"num_redundant_experts\": 32}')"),
        ("0.32.0", f"{WIDE} {COPIES % 64}", "vLLM refuses these settings x --eplb-config: num_redundant_experts 64 "
         "without EPLB (add --enable-eplb)"),
        ("0.9.2", f"{MOE} --enable-eplb", "starts weights"),
        ("0.32.0", f"{NODE} --headless", "starts weights"),
        ("0.32.0", f"{NODE} --headless --api-server-count 4", f"{ALONE} --api-server-count: vLLM 0.32.0 refuses it"),
        ("0.14.0", f"{NODE} --headless --api-server-count 1", "starts weights"),
        ("0.32.0", f"{NODE} --headless --data-parallel-hybrid-lb", f"{ALONE} --data-parallel-hybrid-lb: vLLM 0.32.0 "),
        ("0.32.0", f"{MOE} -ep -dp 16 -dpr 8 -dpn 3", f"{ALONE} --data-parallel-start-rank: vLLM 0.32.0 refuses it"),
        ("0.32.0", f"{MOE} -ep -dp 16 -dpn 3 -dph", f"{ALONE} --data-parallel-hybrid-lb: vLLM 0.32.0 refuses it"),
        ("0.32.0", f"{MOE} -ep -dp 16 -dpn 3 -dpl 8", f"{ALONE} --data-parallel-size-local: vLLM 0.32.0 refuses it"),
        ("0.32.0", f"{MOE} -ep -dp 16 -dpn 3 -dpl 1", "starts weights"),
    ],
)  # fmt: skip
def test_ranks_that_have_no_setting(version: str, line: str, told: str) -> None:
    words = ("--gpu", "h200", "--engine-version", version, *FEW, "--", "vllm", "serve", *line.split())
    checked = run("check", *words)
    assert f"vLLM {version}: {told}" in " ".join(checked.out.split())
    starts = told.startswith("starts weights")
    assert checked.status == (0 if starts else 1)
    assert "--prefill-context" not in checked.out.partition("$ ")[2] or starts


def test_a_line_that_falls_back_to_the_old_engine_is_predicted_with_it() -> None:
    """By V0's own rules: a whole context in a step (no chunks below 32,768 tokens), and no prefix cache by default."""
    plain, many = answer(*OLD, *SHORT), answer(*OLD, *SHORT, "--num-scheduler-steps", "8")
    asked, policy = (
        answer(*OLD, "VLLM_USE_V1=0 " + shlex.join(SHORT)),
        answer(*OLD, *SHORT, "--preemption-mode", "swap"),
    )
    assert plain["settings"]["engine"] == "V1" and plain["flags"] == []
    for said in (many, asked, policy):
        assert said["starts"] and said["not_simulated"] == []
        assert said["settings"]["engine"] == "V0" and said["engine_version"] == "0.9.1"
        assert said["settings"]["max_num_batched_tokens"] == 4096 and not said["settings"]["enable_prefix_caching"]
    (flag,) = many["flags"]
    assert flag["flag"] == "--num-scheduler-steps 8" and "falls back to V0" in flag["cause"] and not flag["fatal"]
    assert asked["flags"] == []  # it was asked for
    assert policy["delivers"]["mean_tpot_ms"] == asked["delivers"]["mean_tpot_ms"]
    # one visit of the scheduler for eight steps: the host's time shrinks, and nothing else changes
    assert many["delivers"]["mean_tpot_ms"] < asked["delivers"]["mean_tpot_ms"]
    assert many["better"][-1]["changes"]["engine"] == {"line": "V0", "plan": "V1"}


@pytest.mark.parametrize(
    ("gpu", "version", "words", "engine"),
    [
        # FlashAttention 3 reads an fp8 cache, FlashAttention 2 of an A100 does not (arg_utils.py of 0.8.5)
        ("a100", "0.8.5", "--kv-cache-dtype fp8", "V0"),
        ("h100", "0.8.5", "--kv-cache-dtype fp8", "V1"),
        ("h100", "0.9.1", f"--speculative-config {DRAFT}", "V0"),
    ],
)  # fmt: skip
def test_a_setting_that_costs_the_new_engine_is_named(gpu: str, version: str, words: str, engine: str) -> None:
    said = answer("--gpu", gpu, "--engine-version", version, "--", *SHORT, *words.split())
    assert said["settings"]["engine"] == engine and said["load"]["max_concurrency"] <= 64
    assert [flag["flag"] for flag in said["flags"]] == ([words.split(" {")[0]] if engine == "V0" else [])


@pytest.mark.parametrize(
    ("version", "option", "key"),
    [
        ("0.32.0", "--hf-overrides", '{"rope_parameters": %s, "max_position_embeddings": 131072}'),
        ("0.29.0", "--hf-overrides", '{"rope_scaling": %s}'),
        ("0.9.1", "--rope-scaling", "%s"),
    ],
)
def test_a_context_that_the_line_stretches_is_the_models(version: str, option: str, key: str) -> None:
    """Qwen3's model card: YaRN of factor 4.0 from 32,768 tokens, and ``--max-model-len 131072``. vLLM 0.30 and newer
    refuse that without ``max_position_embeddings`` ("YaRN variants leave it already scaled", config/model.py)."""
    scaling = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}'
    line = ("vllm", "serve", "Qwen/Qwen3-8B", option, key % scaling, "--max-model-len")
    asked = ("--gpu", "h100", "--engine-version", version, *FEW, "--")
    said = answer(*asked, *line, "131072")
    assert said["starts"] and said["not_simulated"] == (["--rope-scaling"] if option == "--rope-scaling" else [])
    assert not answer(*asked, *line, "131073", status=1)["starts"]
    if option == "--hf-overrides":
        keys = {"max_position_embeddings": 131072, "num_hidden_layers": 4}
        said = answer(*asked, *line[:3], option, json.dumps(keys))
        assert said["not_simulated"] == [option]
    if version == "0.32.0":
        alone = ("vllm", "serve", "Qwen/Qwen3-8B", option, json.dumps({"rope_parameters": json.loads(scaling)}))
        (plan, *_) = answer(*asked, *alone, "--max-model-len", "131072", status=1)["better"]
        keys = {"rope_parameters": json.loads(scaling), "max_position_embeddings": 131072}
        assert json.loads(plan["changes"]["hf_overrides"]["plan"]) == keys
        assert "--max-model-len 131072" in plan["command"]


def test_what_amd_names_as_an_issue_is_remarked_where_it_holds() -> None:
    """ "AITER does not support fp8 kv cache"; DeepSeek-V3: "--max-model-len cannot be greater than 32768"."""

    def flags(version: str, *line: str) -> list[str]:
        said = answer("--gpu", "mi300x", "--engine-version", version, *FEW, "--", *line)
        return [flag["flag"] for flag in said["flags"] if not flag["fatal"]]

    mixtral = ("vllm", "serve", "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV", "-tp", "8", "--kv-cache-dtype")
    aiter = "VLLM_ROCM_USE_AITER"
    assert flags("0.9.1", f"{aiter}=1", *mixtral, "fp8") == [aiter]
    assert flags("0.9.1", f"{aiter}=0", *mixtral, "fp8") == flags("0.9.1", f"{aiter}=1", *mixtral, "auto") == []
    backend = ("--attention-backend", "ROCM_AITER_FA")
    assert flags("0.27.1", f"{aiter}=1", *mixtral, "fp8", *backend) == [], "said of the image of 0.9.1 only"
    deepseek = (
        f"{aiter}=1",
        "vllm",
        "serve",
        "deepseek-ai/DeepSeek-V3",
        "-tp",
        "8",
        "--block-size=1",
        "--max-model-len",
    )
    assert flags("0.9.1", *deepseek, "131072") == ["--max-model-len"] and flags("0.9.1", *deepseek, "32768") == []


@pytest.mark.parametrize(
    ("version", "backend", "engine"),
    [
        ("0.8.5", "", "V0"),
        ("0.8.5", "--distributed-executor-backend mp", "V0"),
        ("0.8.5", "--distributed-executor-backend ray", "V1"),
        ("0.8.5", "--distributed-executor-backend ray --dtype float32", "V0"),  # for another reason
        ("0.9.0", "", "V0"),
        ("0.9.0", "--distributed-executor-backend mp", "V1"),
        ("0.9.1", "", "V1"),
    ],
)
def test_a_pipeline_has_the_engine_that_its_backend_allows(version: str, backend: str, engine: str) -> None:
    words = (*SHORT, "--pipeline-parallel-size", "2", *backend.split())
    said = answer("--gpu", "h100", "--engine-version", version, *FEW, "--", *words)
    assert said["settings"]["engine"] == engine and said["settings"]["pipeline_parallel_size"] == 2


def test_engines_that_a_version_does_not_have_are_refused() -> None:
    both = answer(*FEW, *OLD, "VLLM_USE_V1=1 " + shlex.join((*SHORT, "--num-scheduler-steps", "8")), status=1)
    assert both["refusal"]["cause"].startswith("VLLM_USE_V1=1 is not supported with --num-scheduler-steps 8")
    gone = answer(
        "--gpu", "h100", *FEW, "--engine-version", "0.11.0", "--", "VLLM_USE_V1=0 " + shlex.join(SHORT), status=1
    )
    assert "V0 engine, which vLLM 0.11.0 does not have" in gone["refusal"]["cause"]
    amd = answer("--gpu", "mi300x", *FEW, "--engine-version", "0.8.5", "--", "VLLM_USE_V1=1 " + shlex.join(SHORT))
    assert amd["settings"]["engine"] == "V1"  # the default there is V0


def test_a_better_plan_is_better_at_the_same_load_and_with_as_many_gpus() -> None:
    line = ("vllm", "serve", LLAMA, "--max-num-seqs", "64", "--enforce-eager", "--max-model-len", "8192")
    said = answer("--gpu", "h100", "--goal", "max-throughput", "--", *line)
    assert said["better"]
    for plan in said["better"]:
        assert plan["delivers"]["num_gpus"] == 1
        assert plan["delivers"]["output_throughput_per_gpu"] > said["delivers"]["output_throughput_per_gpu"]
        assert plan["changes"]["enforce_eager"] == {"line": True, "plan": False}
        assert "max_model_len" not in plan["changes"], "the context that the line asks for is kept"
        assert plan["delivers"]["max_concurrency"] == said["load"]["max_concurrency"]


def test_the_line_of_a_plan_cannot_be_improved_much(tmp_path: Path) -> None:
    """What recommend writes is checked with the load that it was made for, and is what recommend would write."""
    made = run("recommend", LLAMA, "--gpu", "h100", "--goal", "max-throughput", "-o", str(tmp_path / "plan"))
    assert made.status == 0
    said = answer(str(tmp_path / "plan"), "--goal", "max-throughput")
    saved = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert said["starts"] and said["gpu"] == "h100-sxm" and said["engine_version"] == saved["engine_version"]
    assert said["load"] == saved["workload"]
    assert said["delivers"]["output_throughput"] == pytest.approx(saved["predicted"]["output_throughput"], rel=1e-6)
    assert said["better"] == []
    client = run("check", str(tmp_path / "plan" / "benchmark.sh"))  # asks the plan's server
    assert client.status == 0 and "there is no server" not in client.err
    (tmp_path / "plan" / "launch.sh").unlink()
    for place in (tmp_path / "plan", tmp_path / "plan" / "plan.json"):
        assert answer(str(place), "--goal", "max-throughput") == said, "plan.json without its scripts is the same line"


def test_a_plan_over_nodes_is_checked_without_its_scripts(tmp_path: Path) -> None:
    """``vllm serve`` of it alone takes 16 GPUs of a machine with 8, which vLLM refuses."""
    where, network = tmp_path / "plan", ("--nodes", "2", "--network-gb-per-s", "50")
    run("recommend", "deepseek-ai/DeepSeek-R1", "--gpu", "h100", *network, "--max-concurrency", "8", "-o", str(where))
    assert answer(str(where / "benchmark.sh"))["starts"] and answer(str(where / "plan.json"))["starts"]


@pytest.mark.parametrize("merit", [Merit("max-throughput"), Merit("min-latency"), Merit("balanced", 0.7, 1.3)])
def test_the_margin_of_a_change_is_the_same_throughput_for_every_goal(merit: Merit) -> None:
    """As between the layouts of ``recommend``, which keeps to the recipe's within 3 %."""

    def of(speed: float) -> float:
        rates = {"output_throughput_per_gpu": 259 * speed, "output_throughput_per_user": 32.4 * speed}
        return merit.of({**rates, "mean_e2el_ms": 30_806 / speed})

    assert of(1.0) < of(1.025) < of(1.0) + merit.tie < of(1.035)


def test_the_layout_of_recommend_is_not_improved_by_an_equal_one() -> None:
    load = ("--random-input-len", "8000", "--random-output-len", "1000", "--max-concurrency", "32")
    made = json.loads(run("recommend", "zai-org/GLM-4.6-FP8", "--gpu", "b200", *load, "--format", "json").out)
    assert answer("--gpu", "b200", *load, "--", *made["plans"][0]["serve_argv"])["better"] == []


def test_a_plan_for_targets_at_a_rate_is_checked_with_just_that(tmp_path: Path) -> None:
    """Lengths that vary, a prefix, arrivals in bursts: a load that differs in any of them has other latencies."""
    load = ("--request-rate", "3", "--random-input-len", "700", "--random-output-len", "150", "--burstiness", "0.5",
            "--random-range-ratio", "0.4", "--random-prefix-len", "256", "--num-prompts", "200",
            "--seed", "7")  # fmt: skip
    where = tmp_path / "plan"
    made = run("recommend", LLAMA, "--gpu", "h100", *load, "--ttft", "600", "--tpot", "60", "-o", str(where))
    assert made.status == 0, made.err
    saved = json.loads((where / "plan.json").read_text())
    assert saved["workload"]["request_rate"] and saved["workload"]["burstiness"] == 0.5
    said = answer(str(where))
    assert said["load"] == saved["workload"]
    for name in ("output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_e2el_ms"):
        assert said["delivers"][name] == pytest.approx(saved["predicted"][name], rel=1e-6)
    assert said["better"] == []
    assert "200 requests of 700 + 150 tokens, varied by 40%, after 256 shared tokens, 3 per second:" in " ".join(
        run("check", str(where)).out.split()
    )
    closed = answer(str(where), "--max-concurrency", "4")["load"]
    assert closed == {**saved["workload"], "request_rate": None, "max_concurrency": 4}


def test_a_short_context_is_filled_half_with_the_prompt() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-model-len", "512")
    assert (said["load"]["input_len"], said["load"]["output_len"]) == (256, 256)
    outcome = run(
        "check", "--gpu", "h100", "--input-len", "600", "--", "vllm", "serve", LLAMA, "--max-model-len", "512"
    )
    assert outcome.status == 2 and "longer than the 512" in error_of(outcome)[0]


def test_a_context_of_auto_is_as_long_as_the_memory_allows() -> None:
    """Llama-3.3-70B at TP 2 on H100: the weights leave room for a part of its 131,072 tokens."""
    line = ("vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct", "-tp", "2", "--max-num-seqs", "32")
    assert not answer("--gpu", "h100", *FEW, "--", *line, status=1)["starts"]
    auto = answer("--gpu", "h100", *FEW, "--", *line, "--max-model-len", "auto")
    assert "as the memory turns out" in run("check", "--gpu", "h100", *FEW, "--", *line, "--max-model-len", "auto").out
    assert auto["starts"] and auto["fit"]["verdict"] == "fits" and 2048 < auto["settings"]["max_model_len"] < 131_072


def test_a_context_beyond_the_models_is_allowed_by_its_variable() -> None:
    """``config/model.py`` of vLLM 0.32.0 warns with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, and raises without it."""
    line = ("vllm", "serve", "Qwen/Qwen2.5-7B-Instruct", "--max-model-len", "65536")
    assert (
        "set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1" in answer("--gpu", "h100", *FEW, "--", *line, status=1)["refusal"]["hint"]
    )
    long = answer("--gpu", "h100", *FEW, "--", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1", *line)
    assert long["starts"] and long["settings"]["max_model_len"] == 65536 and "32,768" in long["flags"][0]["cause"]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("vllm serve m",), "no GPU is named"),
        (("--gpu", "h100"), "LINE"),
        (("--gpu", "h100", "--", "vllm", "serve"), "names no model"),
        (("--gpu", "h100", "--", "vllm", "bench", "serve"), "names no model"),
        (("--gpu", "h100", "--", "vllm", "complete"), "is no vllm serve line"),
        (("--gpu", "h100", "nowhere.sh"), "nowhere.sh"),
        (("--gpu", "h1000", "vllm serve m"), "h1000"),
        (("--gpu", "h100", "M=$1; vllm serve $M"), "the script does not set"),
        (("--gpu", "h100", "--engine-version", "banana", "vllm serve m"), "banana"),
        (("--gpu", "h100", "--request-rate", "1", "--", "vllm", "serve", LLAMA), "No such option: --request-rate"),
    ],
)
def test_bad_input_is_told_in_two_lines(words: tuple[str, ...], cause: str) -> None:
    outcome = run("check", *words)
    assert outcome.status == 2
    assert cause in error_of(outcome)[0]


def test_a_line_needs_no_dashes_before_it() -> None:
    with_dashes = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-num-seqs", "8", "-tp", "2")
    assert answer("--gpu", "h100", "vllm", "serve", LLAMA, "--max-num-seqs", "8", "-tp", "2") == with_dashes
    assert answer("--gpu", "h100", f"vllm serve {LLAMA} --max-num-seqs 8 -tp 2") == with_dashes


def test_a_path_of_another_machine_can_be_named(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("vllm serve /models/llama --max-num-seqs 8 --max-model-len 4096\n")
    assert run("check", str(script), "--gpu", "h100").status == 2
    assert answer(str(script), "--gpu", "h100", "--as-model", LLAMA)["model"]["resolved"] == LLAMA


def test_a_path_may_have_blanks(tmp_path: Path) -> None:
    script = tmp_path / "my plan" / "start.sh"
    script.parent.mkdir()
    script.write_text(f"vllm serve {LLAMA} --max-num-seqs 8 --max-model-len 4096\n")
    assert answer(str(script), "--gpu", "h100")["model"]["resolved"] == LLAMA


def test_an_id_with_a_slash_behind_it_is_judged_by_its_facts_on_the_hub() -> None:
    """AMD's recipe for MI355X prints its checkpoint so; vLLM looks for a folder of that name."""
    said = answer("--gpu", "h100", "--", "vllm", "serve", f"{LLAMA}/", "--max-model-len", "4096")
    assert said["model"]["resolved"] == LLAMA and said["starts"]
    assert "for a folder" in run("check", "--gpu", "h100", "--", "vllm", "serve", f"{LLAMA}/").err


def test_a_context_that_the_model_does_not_have_is_not_asked_of_the_plan() -> None:
    said = answer("--gpu", "h100", "--", "vllm", "serve", LLAMA, "--max-model-len", "1000000", status=1)
    assert "1000000 is more than the 131072" in said["refusal"]["cause"]
    assert said["better"], "a context of 2,048 serves the load"


def test_the_text_says_what_to_change() -> None:
    outcome = run("check", "--gpu", "mi300x", "--", "vllm", "serve", LLAMA, "--swap-space", "4", "--enforce-eager")
    assert outcome.status == 1
    assert "x --swap-space: gone in" in outcome.out
    assert "enforce_eager: True -> False" in " ".join(outcome.out.split())
    assert "$ " in outcome.out and "vllm serve" in outcome.out.split("$ ")[-1]


def test_what_a_document_calls_0_6_3_takes_the_options_of_its_commit() -> None:
    """AMD's document of 0.6.3 prints both options; its commit has them, the release of vLLM has not."""
    line = ["benchmark_throughput.py", "--model", "m", "--max-num-seqs", "2000", "--max-seq-len-to-capture", "131072"]
    named = parse_version("0.6.3")
    assert not read_line(line, named, platform="rocm").problems
    refused = {problem.word for problem in read_line(line, named, platform="cuda").problems}
    assert refused == {"--max-num-seqs", "--max-seq-len-to-capture"}


def test_a_client_of_an_old_version_may_send_requests_of_equal_length() -> None:
    """Lengths between r L and L, to 0.8.3: with r = 1 all are L (``benchmarks/benchmark_serving.py`` of 0.6.3)."""
    client = read_line(["benchmark_serving.py", "--model", "m", "--random-range-ratio", "1.0"], parse_version("0.6.4"))
    load = client.workload(parse_version("0.6.4"))
    assert (load.range_ratio, load.length_distribution) == (0.0, "symmetric")


def test_a_line_that_probably_starts_is_not_told_that_more_is_needed_than_there_is() -> None:
    """13.76 GiB of cache are predicted for the 11.75 that one request needs; the overheads may take some of it."""
    words = "-tp 4 --enable-expert-parallel --max-model-len 262144"
    answer = run("check", "--gpu", "h100", "--", *f"vllm serve Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 {words}".split())
    said = " ".join(answer.out.split())
    assert "starts with 9" in said and "! max_model_len larger than cache: from 0." in said and "GiB to spare" in said
    assert "which is larger than the available" not in said


def test_a_seed_that_a_run_decides_is_no_fault() -> None:
    """``benchmark.sh`` of a plan warms up with a seed of its own."""
    assert not read_line(["vllm", "bench", "serve", "--model", "m", "--seed", "$((seed + 5))"], NEW).problems


def test_parsers_that_the_server_misses_when_it_starts() -> None:
    """``validate_api_server_args``; ``--enable-auto-tool-choice requires --tool-call-parser`` before it."""
    start = ("vllm", "serve", "m")
    for words, problems in (
        ("--enable-auto-tool-choice", {"--enable-auto-tool-choice": True}),
        ("--enable-auto-tool-choice --tool-call-parser hermess", {"--tool-call-parser hermess": True}),
        ("--tool-call-parser hermess", {"--tool-call-parser hermess": False}),
        ("--reasoning-parser qwen33", {"--reasoning-parser qwen33": True}),
        ("--reasoning-parser mine --reasoning-parser-plugin mine.py", {}),
        ("--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3", {}),
    ):
        line = read_line((*start, *words.split()), parse_version("0.32.0"))
        assert {problem.word: problem.fatal for problem in line.problems} == problems
    assert not read_line((*start, "--reasoning-parser", "any"), parse_version("0.9.1")).problems


def test_a_suggestion_has_the_parsers_of_the_recipe_for_those_that_are_refused() -> None:
    model = "Qwen/Qwen3-Next-80B-A3B-Instruct"
    words = "--no-enable-chunked-prefill --enable-auto-tool-choice --tool-call-parser nonsense"
    answer = check_command(f"vllm serve {model} -tp 8 --no-enable-prefix-caching {words}", "h200").to_dict()
    assert not answer["starts"] and answer["better"]
    for plan in answer["better"]:
        assert "--tool-call-parser hermes --enable-auto-tool-choice" in plan["command"]
        assert "--no-enable-chunked-prefill" in plan["command"]


def test_a_line_without_a_share_has_that_of_vllm() -> None:
    found = check_command(f"vllm serve {LLAMA}", "gb10", engine_version="0.26.0").to_dict()
    assert not found["starts"] and found["settings"]["gpu_memory_utilization"] == 0.92
    assert "--gpu-memory-utilization 0.8 " in found["better"][0]["command"]


@pytest.mark.parametrize(
    ("words", "starts"),
    [("", False), ("--max-num-seqs 256", True), ("-cc.cudagraph_mode=piecewise", True),
     ("""--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE"}'""", False)],
)  # fmt: skip
def test_places_without_a_block_for_their_states(words: str, starts: bool) -> None:
    """``has_full_cudagraphs`` in config/compilation.py; 351 blocks of 49 MiB beside 51 GiB of weights."""
    line = f"vllm serve Qwen/Qwen3.6-27B --max-model-len 16384 {words}"
    found = check_command(line, "h100", engine_version="0.32.0", **SMALL)
    assert found.to_dict()["starts"] is starts


def test_no_suggestion_has_the_drafts_that_are_refused() -> None:
    """``config/speculative.py`` of vLLM 0.21 is the first that drafts for MiMo-V2-Flash; Qwen3-8B has no modules."""
    drafts = """--speculative-config '{"method":"mtp","num_speculative_tokens":1}'"""
    for model, version, starts in (
        ("XiaomiMiMo/MiMo-V2-Flash -tp 8", "0.32.0", True),
        ("XiaomiMiMo/MiMo-V2-Flash -tp 8", "0.20.0", False),
        ("Qwen/Qwen3-8B", "0.32.0", False),
    ):
        line = f"vllm serve {model} --trust-remote-code {drafts}"
        said = check_command(line, "h200", engine_version=version, **SMALL)
        assert said.ok == starts and said.record.ranking and said.record.ranking.candidates
        for plan in said.to_dict()["better"]:
            assert ("--speculative-config" in plan["command"]) == starts
            assert ("speculative_config" in plan["changes"]) == (not starts)
        assert ("starts with: " in said.to_text("table")) == (not starts)


def test_what_the_hint_of_a_refusal_leaves_out_is_a_change() -> None:
    line = "vllm serve RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic -tp 2 --decode-context-parallel-size 2"
    said = check_command(line, "h100", max_concurrency=8)
    assert said.to_dict()["better"][0]["changes"]["decode_context_parallel_size"] == {"line": 2, "plan": 1}
    assert "starts with: decode_context_parallel_size: 2 -> 1" in said.to_text("table")


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("--no-enable-chunked-prefill --max-num-batched-tokens 2048", "enable_chunked_prefill: False -> True"),
        ("--enable-lora --max-loras 8 --max-cpu-loras 4", "max_cpu_loras: 4 -> 8"),
        # RuntimeError("LoRA is not enabled.") of lora_model_runner_mixin.py, from init_static_loras (0.7.3 to 0.32)
        ("--lora-modules a=/x b=/y", "enable_lora: False -> True"),
        ("--max-num-batched-tokens 4 --max-num-seqs 8 --max-model-len 4096", "max_num_batched_tokens: 4 -> "),
    ],
)
def test_a_refused_line_is_mended_by_its_hint_and_keeps_the_rest(words: str, changes: str) -> None:
    said = check_command(f"vllm serve {LLAMA} {words}", "h100", **SMALL)
    assert not said.ok and changes in said.to_text("table")
    better = said.to_dict()["better"][0]
    context = "4096" if "4096" in words else "131072"
    assert f"--max-model-len {context}" in better["command"] or "max_model_len" in better["changes"]
    assert words.startswith("--max-num") or list(better["changes"]) == [changes.split(":")[0]]


def test_a_refused_context_is_told_where_the_mended_one_does_not_hold_the_load() -> None:
    """Qwen2.5-72B has 32,768 positions in its config.json: no plan serves 100,500 tokens without an override."""
    load = {"input_len": 100_000, "output_len": 500, "max_concurrency": 4}
    said = check_command("vllm serve Qwen/Qwen2.5-72B-Instruct -tp 8 --max-model-len 131072", "h100", **load).to_dict()
    assert not said["starts"] and not said["better"]
    assert '{"max_position_embeddings": 131072}' in said["refusal"]["hint"]


def test_states_are_cached_at_the_ends_of_chunks() -> None:
    """ "Chunked prefill is required for mamba cache mode 'align'" (``MambaModelConfig``): the mode of every cache from
    0.28 on, from 0.15 on of all states but Mamba's. The first line is that of the model's recipe."""
    gdn, mamba = "Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"
    for version, model, words, starts in (
        ("0.32.0", gdn, "", False),
        ("0.32.0", mamba, "", False),
        ("0.32.0", mamba, "--no-enable-prefix-caching", True),
        ("0.27.1", gdn, "", True),  # caches no prefixes unless asked
        ("0.27.1", gdn, "--enable-prefix-caching", False),
        ("0.27.1", mamba, "--enable-prefix-caching", True),
    ):
        line = f"vllm serve {model} --trust-remote-code --no-enable-chunked-prefill {words}"
        said = check_command(line, "h100", engine_version=version, **SMALL)
        assert said.ok == starts, (version, model, words)
        (better, *_) = said.to_dict()["better"] or [{"changes": {}}]
        assert ("enable_chunked_prefill" in better["changes"]) == (not starts)
        assert said.record.ranking and said.record.ranking.candidates


@pytest.mark.parametrize("share", ["0.95", "0.9"])
def test_a_suggestion_keeps_the_share_of_the_memory(share: str) -> None:
    """0.95 was changed into 0.92, which has less room; what a smaller share leaves may be others'."""
    words = f"--tensor-parallel-size 2 --max-num-seqs 256 --enforce-eager --gpu-memory-utilization {share}"
    answer = check_command(f"vllm serve openai/gpt-oss-120b {words}", gpu="h100").to_dict()
    (better, *_) = answer["better"]
    assert f"--gpu-memory-utilization {share} " in better["command"]
    assert "gpu_memory_utilization" not in better["changes"]


@pytest.mark.parametrize(("version", "kept"), [("0.14.1", False), ("0.24.0", True)])
def test_prefix_caching_of_a_hybrid_model_is_as_the_version_has_it(version: str, kept: bool) -> None:
    """0.14.1 ignores the option of a model with gated delta nets, which the answer says; 0.24.0 takes it."""
    line = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4 --enable-prefix-caching"
    answer = check_command(line, gpu="h200", engine_version=version)
    (better, *_) = answer.to_dict()["better"]
    assert ("--enable-prefix-caching" in better["command"].split()) == kept
    assert ("--enable-prefix-caching: ignored" in answer.to_text("table")) != kept
    assert answer.to_dict()["settings"]["enable_prefix_caching"] == kept


def test_what_a_recipe_adds_to_the_line_is_listed() -> None:
    """The recipe of MiniMax-M2.5 on H100 has a backend, PIECEWISE graphs and four variables."""
    line = "vllm serve MiniMaxAI/MiniMax-M2.5 -tp 4 --trust-remote-code --tool-call-parser minimax_m2"
    answer = check_command(f"{line} --max-num-seqs 32 --max-num-batched-tokens 1024", gpu="h100")
    (better, *_) = answer.to_dict()["better"]
    added, words = better["from_recipe"], shlex.split(better["command"])
    assert {"--moe-backend triton", "VLLM_USE_DEEP_GEMM=0"} <= {*added}
    assert not {one.split()[0] for one in added} & {"--trust-remote-code", "--tool-call-parser", "--max-num-seqs"}
    for one in added:
        assert one.split()[0] in words or one in [f"{name}={value}" for name, value in better["env"].items()]
    assert "adds from the recipe: --moe-backend triton, " in " ".join(str(answer).split())


@pytest.mark.parametrize(
    ("gpu", "env", "said"),
    [
        ("mi325x", {}, True), ("mi325x", {"VLLM_ROCM_USE_AITER": "0"}, True),
        ("mi325x", {"VLLM_ROCM_USE_AITER": "True"}, False), ("h200", {}, False),
    ],
)  # fmt: skip
def test_a_server_without_amds_kernels_is_told_so(gpu: str, env: dict[str, str], said: bool) -> None:
    """vLLM issue 56945: decode steps of 17 to 38 ms on an MI325X as started by default, 10 with AITER."""
    words = [word for name, value in env.items() for word in ("--env", f"{name}={value}")]
    load = ["--random-input-len", "100", "--random-output-len", "10", "--num-prompts", "2"]
    predicted = run("predict", "serve", "Qwen/Qwen3-8B", "--gpu", gpu, *words, *load)
    line = " ".join([*(f"{name}={value}" for name, value in env.items()), "vllm serve", "Qwen/Qwen3-8B"])
    cut = Serving("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", gpu, tensor_parallel_size=8)  # 192 channels, blocks of 128
    assert ("VLLM_ROCM_USE_AITER_MOE=0 " in cut.deployment.kernels_remark(env)) is said
    for outcome in (predicted, run("check", line, "--gpu", gpu)):
        assert ("set VLLM_ROCM_USE_AITER=1" in " ".join((outcome.out + outcome.err).split())) is said


@pytest.mark.parametrize(("prompt_len", "published"), [(200, 57), (2000, 49), (12000, 26)])
def test_intervals_without_amds_kernels_hold_what_was_published(prompt_len: int, published: float) -> None:
    """vLLM issue 56945, tokens/s after the first: 98, 98 and 97 with AITER, for which the figures stand."""
    highs_ms = {}
    for on in "01":
        line = Serving("Qwen/Qwen3.5-122B-A10B-FP8", "mi325x", engine_version="0.27.1", env={AITER: on})
        result = line.predict(Load.closed_loop(1, prompt_len, 256)).result
        highs_ms[on] = result["mean_tpot_ms_hi"]
    assert result["mean_tpot_ms_lo"] < 1000 / 98 < highs_ms["1"] and 1000 / published < highs_ms["0"]
    assert highs_ms["0"] / highs_ms["1"] == pytest.approx(98 / published, rel=0.05)


@pytest.mark.parametrize(("concurrency", "published_ms"), [(10, 77_830), (100, 183_350)])
def test_the_same_of_latent_attention(concurrency: int, published_ms: float) -> None:
    """Kimi-K2.5 on four MI325X without AITER, p99 E2EL of docs.vultr.com, 1,245 + 512 tokens."""
    load = Load.closed_loop(concurrency, 1245, 512, num_prompts=100)
    line = Serving("moonshotai/Kimi-K2.5", "mi325x", tensor_parallel_size=4, engine_version="0.15.0", env={AITER: "0"})
    answer = line.predict(load)
    assert answer.result["p99_e2el_ms_lo"] < published_ms < answer.result["p99_e2el_ms_hi"]
    assert "8.6 times as long" in answer.deployment.kernels_remark({AITER: "0"})


def test_the_verdict_says_where_settings_of_the_checkpoint_are_assumed() -> None:
    """The bundled catalog has no config.json of this one (kind ``form``)."""
    answer = run("check", "--gpu", "h100", "--", "vllm serve nvidia/Qwen3-8B-FP8 --max-model-len 8192")
    assert "those usual for fp8 are assumed" in answer.err
