"""What ``planner check`` keeps of a line, and all that it finds wrong with it."""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import run

from planner import check_command, check_fit
from planner.output.tables.check import _slower_start
from planner.planning.defaults import USUAL_MAX_NUM_SEQS

pytestmark = pytest.mark.usefixtures("short_loops")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
NVFP4 = "nvidia/Llama-3.1-8B-Instruct-NVFP4"


STRETCHED = """'{"max_position_embeddings":131072}'"""


def answer(gpu: str, line: str, *options: str, status: int = 0) -> dict[str, Any]:
    outcome = run("check", "--format", "json", "--gpu", gpu, *options, "--", *shlex.split(line))
    assert outcome.status == status, outcome.err
    data: dict[str, Any] = json.loads(outcome.out)
    return data


def better(said: dict[str, Any]) -> list[list[str]]:
    return [shlex.split(plan["command"]) for plan in said["better"]]


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def flags(said: dict[str, Any]) -> dict[str, bool]:
    return {flag["flag"]: flag["fatal"] for flag in said["flags"]}


def test_functional_options_context_and_gpus_of_a_working_line_are_kept() -> None:
    kept = "--trust-remote-code --tool-call-parser kimi_k2 --reasoning-parser kimi_k2 --enable-auto-tool-choice"
    line = "vllm serve moonshotai/Kimi-K2-Thinking --tensor-parallel-size 8 --max-num-batched-tokens 512"
    said = answer("h200", f"{line} {kept}")
    assert said["starts"] and said["better"]
    for plan, words in zip(said["better"], better(said), strict=True):
        assert set(shlex.split(kept)) <= set(words)
        assert value(words, "--tool-call-parser") == value(words, "--reasoning-parser") == "kimi_k2"
        assert value(words, "--max-model-len") == "262144"
        assert plan["delivers"]["num_gpus"] == 8


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("vllm/vllm-openai:latest", "0.33.0"),  # takes --disable-log-requests, which 0.32.0 refuses
        ("vllm/vllm-openai:gptoss", "0.32.0"),
        ("lmcache/vllm-openai:v0.3.6", "0.32.0"),  # of LMCache
        ("ghcr.io/acme/vllm:2025-07-15", "0.9.2"),  # of 8 July, 0.10.0 of 25 July
        ("vllm/vllm-openai:v0.9.2", ""),
    ],
)
def test_what_an_image_leaves_open_of_the_version_is_said(image: str, version: str) -> None:
    words = f"docker run --gpus all {image} vllm serve {LLAMA} --disable-log-requests --max-model-len 4096"
    outcome = run("check", "--gpu", "h100", "--max-concurrency", "4", "--", *words.split())
    assert outcome.status == (version == "0.32.0")
    notes = " ".join(outcome.err.split())
    assert f"taken as vLLM {version}" in notes if version else "taken as" not in notes


@pytest.mark.parametrize(
    "sizes", ["--cudagraph-capture-sizes 1 2 4 256", "-cc '{\"cudagraph_capture_sizes\":[1,2,4,256]}'"]
)
def test_captured_sizes_of_the_line_have_no_other_maximum(sizes: str) -> None:
    """vLLM 0.25.0, ``config/vllm.py``: "should be consistent with the max value of cudagraph_capture_sizes"."""
    said = answer("h100", f"vllm serve {LLAMA} {sizes}", "--engine-version", "0.25.0")
    assert said["settings"]["max_cudagraph_capture_size"] == 256 and said["better"]
    assert not any("--max-cudagraph-capture-size" in words for words in better(said))
    wide = f"vllm serve {LLAMA} {sizes} --max-cudagraph-capture-size 512"
    assert flags(answer("h100", wide, "--engine-version", "0.25.0", status=1)) == {"--max-cudagraph-capture-size": True}


def test_a_key_that_the_version_refuses_is_left_out_and_the_others_stay() -> None:
    config = '{"level":3,"pass_config":{"enable_noop":true,"zz":1},"custom_ops":["all"]}'
    line = (
        f"vllm serve {LLAMA} --gpu-memory-utilization 0.5 --attention_config.use_fp4_indexer_cache True "
        f"--attention_config.backend FLASHINFER -cc '{config}' --kernel-config '{{\"moe_backend\":\"triton\"}}'"
    )
    said = answer("h100", line, status=1)
    assert flags(said) == {
        "--attention-config use_fp4_indexer_cache": True, "--compilation-config level": True,
        "--compilation-config pass_config enable_noop": True, "--compilation-config pass_config zz": True,
    }  # fmt: skip
    assert said["better"]
    for words in better(said):
        assert not any("use_fp4_indexer_cache" in word for word in words)
        assert value(words, "--attention-config.backend") == "FLASHINFER"
        kept = {"mode": 3, "pass_config": {"eliminate_noops": True}, "custom_ops": ["all"]}
        assert json.loads(value(words, "--compilation-config")) == kept
        assert value(words, "--kernel-config") == '{"moe_backend":"triton"}'


@pytest.mark.parametrize(
    ("gpu", "env", "line"),
    [
        (
            "h200", {}, "-tp 2 --tool-call-parser openai --enable-auto-tool-choice --async-scheduling "
            "--max-cudagraph-capture-size 2048",
        ),
        (
            "mi355x", {"VLLM_ROCM_USE_AITER": "1", "VLLM_ROCM_USE_AITER_MHA": "0", "HSA_NO_SCRATCH_RECLAIM": "1"},
            "-tp 8 --attention-backend ROCM_AITER_UNIFIED_ATTN --gpu-memory-utilization 0.95 --block-size 64 "
            """--compilation-config '{"use_inductor_graph_partition":true,"pass_config":{"fuse_rope_kvcache":true}}'""",
        ),
    ],
)  # fmt: skip
def test_the_recipe_lines_of_gpt_oss_start_and_are_kept(gpu: str, env: dict[str, str], line: str) -> None:
    words = " ".join(f"{name}={text}" for name, text in env.items())
    said = answer(gpu, f"env {words} vllm serve openai/gpt-oss-120b {line}")
    assert said["starts"] and not any(flags(said).values())
    for plan, command in zip(said["better"], better(said), strict=True):
        assert {*shlex.split(line)[2:]} <= {*command}
        assert env.items() <= plan["env"].items()
        assert value(command, "--max-model-len") == "131072"


def test_a_dotted_key_of_a_setting_is_read_as_json() -> None:
    """``--limit-mm-per-prompt.video 0`` was refused: "'0' is not read (give JSON ...)"."""
    said = answer("h200", "vllm serve Qwen/Qwen3-VL-30B-A3B-Instruct -tp 2 --limit-mm-per-prompt.video 0")
    assert said["starts"] and not said["flags"]
    for words in better(said):
        assert json.loads(value(words, "--limit-mm-per-prompt")) == {"video": 0}


@pytest.mark.parametrize(("version", "starts"), [("0.9.2", True), ("0.10.1", False)])
def test_limits_without_json_went_with_0_10(version: str, starts: bool) -> None:
    """``nullable_kvs`` of 0.9.2: "This will be removed in v0.10.0"; 0.10.1 reads it by ``json.loads`` alone."""
    line = "vllm serve Qwen/Qwen2.5-VL-7B-Instruct --max-model-len 8192 --limit-mm-per-prompt image=4"
    said = answer("h100", line, "--engine-version", version, status=not starts)
    assert said["starts"] is starts
    assert starts or value(better(said)[0], "--limit-mm-per-prompt") == '{"image": 4}'


@pytest.mark.parametrize(("model", "tp"), [("deepseek-ai/DeepSeek-V4-Flash", 4), ("moonshotai/Kimi-K2-Thinking", 8)])
def test_a_suggestion_has_places_with_head_room_as_a_plan_has(model: str, tp: int) -> None:
    """It was one place for each request in flight: 38 for 150 over four ranks."""
    said = answer("b200", f"vllm serve {model} -tp {tp} --trust-remote-code")
    assert said["better"]
    for plan in said["better"]:
        assert int(value(shlex.split(plan["command"]), "--max-num-seqs")) in USUAL_MAX_NUM_SEQS


def test_what_is_not_understood_is_kept_word_for_word() -> None:
    """Dotted keys, JSON with blanks, lists, the address; a key is not shown."""
    json_text = '{"enable_thinking": false}'
    line = (
        f"HF_HOME=/data vllm serve {LLAMA} --gpu-memory-utilization 0.5 --structured-outputs-config.backend xgrammar "
        f"--default-chat-template-kwargs '{json_text}' --served-model-name one two --host 0.0.0.0 --port 9000 "
        "--tool-call-parser pythonic --enable-log-requests --api-key sk-abcdefghijklmnopqrstuvwx"
    )
    said = answer("h100", line)
    assert said["better"]
    for plan, words in zip(said["better"], better(said), strict=True):
        assert value(words, "--structured-outputs-config.backend") == "xgrammar"
        assert value(words, "--default-chat-template-kwargs") == json_text
        assert words[words.index("--served-model-name") :][:3] == ["--served-model-name", "one", "two"]
        assert (value(words, "--host"), value(words, "--port")) == ("0.0.0.0", "9000")
        assert words.count("--tool-call-parser") == 1 and value(words, "--tool-call-parser") == "pythonic"
        assert "--enable-log-requests" in words and "--no-enable-log-requests" not in words
        assert value(words, "--api-key") == "REDACTED" and plan["env"]["HF_HOME"] == "/data"
    assert "sk-abc" not in json.dumps(said["better"])


def test_a_better_plan_names_the_ranks_of_a_context_that_it_gives_up() -> None:
    line = "vllm serve deepseek-ai/DeepSeek-V3.1 --tensor-parallel-size 8 --decode-context-parallel-size 8"
    for plan in answer("h200", line)["better"]:
        assert plan["changes"]["decode_context_parallel_size"] == {"line": 8, "plan": 1}


@pytest.mark.parametrize(("rank", "planned"), [("32", "32"), ("48", "64")])
def test_adapters_and_images_of_the_line_are_planned_for(rank: str, planned: str) -> None:
    """``PEFTHelper.validate_legal``: no adapter may have a larger rank. ``arg_utils.py``: the modules are a list."""
    asked = f"--enable-lora --max-lora-rank {rank} --lora-target-modules q_proj v_proj --max-num-seqs 4"
    said = answer("h100", f"vllm serve {LLAMA} {asked}", status=rank != planned)
    assert said["better"]
    assert all("--enable-lora" in words and value(words, "--max-lora-rank") == planned for words in better(said))


def test_all_errors_of_a_line_are_named_and_its_gpu_stays() -> None:
    said = answer("h100", f"vllm serve {LLAMA} --gpu-memory-utilization 1.2 --max-model-len 200000", status=1)
    causes = [refusal["cause"] for refusal in said["refusals"]]
    assert said["refusal"] == said["refusals"][0]
    assert [cause.split()[0] for cause in causes] == ["--gpu-memory-utilization", "--max-model-len"]
    (plan, *_), (words, *_) = said["better"], better(said)
    assert plan["delivers"]["num_gpus"] == 1 and value(words, "--max-model-len") == "131072"


def test_memory_that_is_not_free_is_refused_as_in_the_workflows() -> None:
    line = f"vllm serve {LLAMA} --gpu-memory-utilization"
    assert flags(answer("h100", f"{line} 0.99", status=1)) == {"--gpu-memory-utilization": True}
    assert flags(answer("h100", f"{line} 0.97")) == {}


def test_a_better_line_starts_as_surely_as_the_given_one() -> None:
    """The line of vLLM's blog on Llama 4: TP 2 and DP 4 of the FP8 checkpoint are faster, and lack memory in 1 of 4."""
    line = "vllm serve meta-llama/Llama-4-Scout-17B-16E-Instruct -tp 8 --max-model-len 1000000 --kv-cache-dtype fp8"
    (best, *_) = better(answer("h100", line, "--engine-version", "0.10.2"))
    again = answer("h100", shlex.join(best[best.index("vllm") :]), "--engine-version", "0.10.2")
    assert again["fit"]["verdict"] == "fits"


def test_places_of_the_next_usual_size_are_no_fault() -> None:
    """57 GiB of cache at 128 KiB a token hold about 230 requests of 2,048 tokens, for which plans have 256 places."""
    line = f"vllm serve {LLAMA} --max-model-len 8192 --max-num-seqs"
    assert flags(answer("h100", f"{line} 256")) == {}
    assert flags(answer("h100", f"{line} 384")) == {"--max-num-seqs": False}


def test_the_places_of_a_plan_of_classes_are_those_that_its_requests_fill_on_average(tmp_path: Path) -> None:
    """486,000 tokens of cache hold 203 requests of (2 x 1,280 + 4,608) / 3 = 2,389 tokens, and 105 of the longest."""
    classes = ("--class", "chat=2:1024:256,ttft=1000", "--class", "batch=1:4096:512,priority=5")
    asked = ("meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100", *classes, "--scheduling-policy", "priority")
    assert run("recommend", *asked, "-o", str(tmp_path / "plan")).status == 0
    assert "places, and" not in run("check", str(tmp_path / "plan")).out


def test_another_form_of_modelopt_is_warned_of() -> None:
    """``ModelConfig`` of 0.32.0 takes any method beside it: ``override_quantization_method``, since 0.10.0."""
    for given in ("modelopt", "fp8", "fp4"):  # fp4: NVIDIA's playbook of DGX Spark
        said = answer("b200", f"vllm serve {NVFP4} --quantization {given}")
        assert flags(said) == {f"--quantization {given}": False} and said["starts"]
    fp8 = "vllm serve nvidia/Llama-3.1-8B-Instruct-FP8 --quantization fp8"
    assert not answer("h100", fp8, "--engine-version", "0.9.2", status=1)["starts"]
    own = answer("b200", "vllm serve nvidia/Llama-3.1-8B-Instruct-FP8 --quantization modelopt")
    assert flags(own) == {}


@pytest.mark.parametrize(
    ("version", "gpu", "method", "slow"),
    [
        ("0.9.2", "h100", "awq", True),  # "forcing awq": vllm-project/vllm issue 21376 measured 23 against 123 tokens/s
        ("0.9.2", "h100", "awq_marlin", False),
        ("0.23.0", "h100", "awq", True),
        ("0.24.0", "h100", "awq", False),  # ``AutoAWQConfig`` has Marlin's kernels under either name
        ("0.9.2", "mi300x", "awq", False),  # without Marlin
    ],
)
def test_a_quantisation_that_forces_slow_kernels_is_warned_of(version: str, gpu: str, method: str, slow: bool) -> None:
    line = f"vllm serve Qwen/Qwen2.5-7B-Instruct-AWQ --quantization {method}"
    said = answer(gpu, line, "--engine-version", version)
    assert flags(said) == ({f"--quantization {method}": False} if slow else {})


@pytest.mark.parametrize(
    ("places", "client", "expected"),
    [
        (2000, "--num-prompts 1000", {"--max-num-seqs": False, "--num-prompts": False}),
        (64, "--num-prompts 1000", {}),
        (64, "--num-prompts 40", {"--num-prompts": False}),
        (64, "--num-prompts 40 --max-concurrency 8", {}),
    ],
)
def test_places_that_no_request_takes_are_warned_of(places: int, client: str, expected: dict[str, bool]) -> None:
    script = f"vllm serve {LLAMA} --max-num-seqs {places} &\nvllm bench serve --model {LLAMA} {client}\n"
    outcome = run("check", "--format", "json", "--gpu", "h100", script)
    assert outcome.status == 0, outcome.err
    assert flags(json.loads(outcome.out)) == expected


def test_a_context_that_amd_warns_of_is_not_planned() -> None:
    line = "VLLM_ROCM_USE_AITER=1 vllm serve deepseek-ai/DeepSeek-R1 -tp 8"
    said = answer("mi300x", line, "--engine-version", "0.9.1")
    assert flags(said) == {"--max-model-len": False}
    assert all(value(words, "--max-model-len") == "32768" for words in better(said))


def test_small_model_over_many_gpus_is_answered_by_copies() -> None:
    """An 8B over TP 8: servers of their own on each GPU deliver a multiple, as AMD's guide says of models that fit."""
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 8"
    answer = check_command(line, "h100", max_concurrency=1024)
    copies = answer.to_dict()["copies"]
    assert copies is not None and copies["servers"] > 1
    whole = answer.to_dict()["delivers"]
    assert copies["servers"] * copies["delivers"]["output_throughput"] > 1.5 * whole["output_throughput"]
    assert f"{copies['servers']} servers of TP" in answer.to_text()


def test_model_that_fills_its_gpus_has_no_copies() -> None:
    line = "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 2"
    assert check_command(line, "h100", max_concurrency=8).to_dict()["copies"] is None


def test_what_is_cut_short_is_counted() -> None:
    line = f"vllm serve {LLAMA} --first 1 --second 2 --third 3 --fourth 4 --fifth 5"
    told, whole = (run("check", "--gpu", "h100", *more, "--", *line.split()).out for more in ((), ("--explain",)))
    assert "and 2 more remarks on options" in told and "--fifth" not in told
    assert "vLLM refuses 5 options; without them: starts" in " ".join(told.split())
    fewer = run("check", "--gpu", "h100", "--", *line.split()[:-2]).out
    assert "and 1 more remark on options" in fewer
    assert "more remarks" not in whole and "--fifth" in whole
    lines = "\n".join(f"vllm bench latency --model {LLAMA} --batch-size {size}" for size in range(1, 11))
    assert "  and 2 more\n" in run("check", "--gpu", "h100", lines).out
    found = run("recommend", LLAMA, "--gpu", "h100", "--explain").out
    assert re.search(r"x \d+ other settings: --format json lists\s+them", found)


@pytest.mark.parametrize(
    ("version", "words", "pools"),
    [
        ("0.32.0", "--runner pooling", True),
        ("0.32.0", "--convert embed", True),  # a runner of auto is then pooling
        ("0.32.0", "--runner generate --convert none", False),
        ("0.9.2", "--task score", True),
        ("0.9.2", "--task generate", False),
        ("0.32.0", "--runner pooling -tp 3", True),  # which 32 heads refuse
    ],
)
def test_a_pooling_server_is_checked_for_memory_alone(version: str, words: str, pools: bool) -> None:
    checked = check_command(f"vllm serve Qwen/Qwen3-8B {words}", gpu="h100", engine_version=version, max_concurrency=2)
    told = checked.to_dict()
    assert ("pooling" in [problem["flag"] for problem in told["flags"]]) is pools
    assert (told["delivers"] is None and not told["better"] and told["load"] is None) is pools
    assert (told["fit"] is None) is ("-tp 3" in words) is (not checked.ok)


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("Qwen/Qwen3-30B-A3B-GPTQ-Int4 -tp 8", {"enable_expert_parallel": {"line": False, "plan": True}}),
        ("Qwen/Qwen3-8B -tp 2 --enable-expert-parallel", {"enable_expert_parallel": {"line": True, "plan": False}}),
    ],
)
def test_a_refused_line_gets_the_setting_that_its_hint_names(line: str, changes: dict[str, Any]) -> None:
    said = answer("h100", f"vllm serve {line}", "--max-concurrency", "8", status=1)
    first = said["better"][0]
    assert said["refusal"] and first["changes"] == changes
    assert value(shlex.split(first["command"]), "--tensor-parallel-size") == line.split()[2]
    fewer = answer("h100", f"vllm serve {line}", "--max-concurrency", "8", "--gpus", "1", status=1)
    assert {plan["delivers"]["num_gpus"] for plan in fewer["better"]} == {1}


@pytest.mark.parametrize(
    ("gpu", "words", "name", "line", "plan"),
    [
        ("h100", "--max-model-len 65536", "max_model_len", 65536, 32768),
        ("t4", "--dtype bfloat16", "dtype", "bfloat16", "fp16"),
    ],
)
def test_a_refused_line_gets_the_value_that_its_hint_names(
    gpu: str, words: str, name: str, line: Any, plan: Any
) -> None:
    said = answer(gpu, f"vllm serve Qwen/Qwen2.5-1.5B-Instruct {words}", "--max-concurrency", "8", status=1)
    assert said["refusal"] and said["better"][0]["changes"] == {name: {"line": line, "plan": plan}}


@pytest.mark.parametrize(
    ("model", "least", "most"), [("openai/gpt-oss-120b", 1, 3), ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 4, 8)]
)
def test_a_refused_line_gets_a_plan_on_its_gpus_or_fewer_before_a_node(model: str, least: int, most: int) -> None:
    """64 and 40 heads refuse TP 3; three GPUs do not hold the second model."""
    said = answer("h100", f"vllm serve {model} -tp 3", "--max-concurrency", "8", status=1)
    assert least <= said["better"][0]["delivers"]["num_gpus"] <= most


@pytest.mark.parametrize(
    ("gpu", "words", "gpus", "changed"),
    [
        # 131,072 tokens of 128 KiB are 16 GiB in 16 bits, more than beside 5.3 GiB of weights, and of 256 KiB 16 in 8
        ("rtx-3090", "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 --max-model-len 131072", 1, "max_model_len"),
        ("l40s", f"Qwen/Qwen3-32B-AWQ --max-model-len 131072 --hf-overrides {STRETCHED}", 1, "kv_cache_dtype"),
        # 24 GB of 8 bits take two GPUs of 24 GB, not four
        ("rtx-4090", "mistralai/Mistral-Small-3.2-24B-Instruct-2506 --max-model-len 16384", 2, "weight_dtype"),
    ],
)
def test_a_line_that_does_not_fit_is_mended_on_as_few_gpus_as_do(gpu: str, words: str, gpus: int, changed: str) -> None:
    (plan, *_) = answer(gpu, f"vllm serve {words}", status=1)["better"]
    assert plan["delivers"]["num_gpus"] == gpus and changed in plan["changes"]
    assert gpus > 1 or plan == answer(gpu, f"vllm serve {words}", "--gpus", "1", status=1)["better"][0]


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("-tp 16 -n 2 -r 1 --headless --master-addr 10.0.0.1", "--nnodes 2 --node-rank 0 --master-addr"),
        ("-dp 16 -ep --data-parallel-size-local 8 --data-parallel-address 10.0.0.1", "--data-parallel-size-local 8"),
        ("-tp 16 --distributed-executor-backend ray", "--distributed-executor-backend ray"),
    ],
)
def test_a_suggestion_joins_its_nodes_once_at_the_address_of_the_line(words: str, joined: str) -> None:
    """argparse takes the last of equal options; ``config/parallel.py``: more than one of ``--nnodes`` is for mp."""
    record = check_command(f"vllm serve moonshotai/Kimi-K2-Instruct {words} --trust-remote-code", "h200").record
    assert record.served and record.line.not_simulated == ()
    command = shlex.join(record.served.command)
    for option in ("--nnodes", "--node-rank", "--master-addr", "--data-parallel-size-local", "--data-parallel-address"):
        assert command.count(option) == ("ray" not in words and option.split("-")[2] in joined), option
    assert joined in command and "HEAD" not in command and "--headless" not in command
    assert ("10.0.0.1" in command) == ("10.0.0.1" in words)


@pytest.mark.parametrize(
    ("gpu", "words", "refused"),
    [
        ("h100", "-tp 16", "--nnodes 2 --node-rank 0 --master-addr HEAD"),
        ("h100", "-dp 16 -ep", "--data-parallel-size-local 8 --data-parallel-address HEAD"),
        ("h100", "-dp 16 -ep --data-parallel-size-local 8 --data-parallel-address a", ""),
        ("h100", "-dp 16 -ep -dpl 8 -dpa a -dpp 13345", ""),  # short names: ``engine/arg_utils.py`` of 0.32.0
        ("h100", "-dp 16 -ep -dpn 3", ""),
        ("h100", "-dp 16 -ep -dpb ray", ""),
        ("h100", "-tp 16 -n 2", ""),
        ("h100", "-tp 16 --distributed-executor-backend ray", ""),
        ("h100 --engine-version 0.9.1", "-tp 16", ""),  # Ray is its default
        ("mi300x --engine-version 0.9.1", "-tp 16", "--distributed-executor-backend ray"),
    ],
)
def test_a_line_of_several_nodes_says_how_they_join(gpu: str, words: str, refused: str) -> None:
    """``config/parallel.py``: World size (16) is larger than the number of available GPUs (8) in this node."""
    name, *version = gpu.split()
    said = answer(name, f"vllm serve Qwen/Qwen3-30B-A3B {words}", *version, status=1 if refused else 0)
    assert (said["refusal"] or {"hint": ""})["hint"] == (refused and f"add {refused} on the first node")
    assert said["starts"] == (not refused) and said["delivers"]


def test_a_script_may_add_the_options_of_its_nodes() -> None:
    """As launch.sh of a plan over nodes does, and its manifests."""
    script = f'docker run --entrypoint bash vllm/vllm-openai:v0.32.0 -c "$join" planner vllm serve {LLAMA} -tp 16'
    assert check_command(script, "h100", max_concurrency=8).ok
    assert not check_command(script.replace('-c "$join" planner', '-c "$0 $*"'), "h100", max_concurrency=8).ok


@pytest.mark.parametrize(
    ("gpu", "visible", "fatal"),
    [
        ("h100", "CUDA_VISIBLE_DEVICES=0,1", True),
        ("h100", "CUDA_VISIBLE_DEVICES=0,1,5,6", False),
        ("h100", "CUDA_VISIBLE_DEVICES=$MINE", False),
        # before --nnodes vLLM asks Ray, which has no more (``executor/ray_utils.py``: "exceeds the total number")
        ("h100 --engine-version 0.7.3", "CUDA_VISIBLE_DEVICES=0,1", True),
        ("h100", "HIP_VISIBLE_DEVICES=0", False),
        ("mi300x", "HIP_VISIBLE_DEVICES=0,1", True),
        ("mi300x", "ROCR_VISIBLE_DEVICES=0,1", True),
    ],
)
def test_a_line_sees_the_gpus_that_it_takes(gpu: str, visible: str, fatal: bool) -> None:
    name, *version = gpu.split()
    said = answer(name, f"{visible} vllm serve {LLAMA} -tp 4", *version, status=int(fatal))
    assert [name for name, one in flags(said).items() if one] == ([visible.split("=")[0]] if fatal else [])
    assert not fatal or not any(visible.split("=")[0] in plan["env"] for plan in said["better"])


@pytest.mark.parametrize(("gpu", "version"), [("b200", "0.8.5"), ("rtx-5090", "0.8.5"), ("mi355x", "0.9.1")])
def test_an_image_without_kernels_for_the_gpu_is_a_remark(gpu: str, version: str) -> None:
    """CUDA 12.4 of the images to 0.8.5 knows no Blackwell (vLLM's issues 16336, 14452), ROCm before 7.0 no gfx950."""
    said = answer(gpu, f"vllm serve {LLAMA} --max-model-len 8192", "--engine-version", version)
    assert said["starts"] and flags(said)[f"vLLM {version}"] is False
    for words in (("fit",), ("predict", "serve", "--max-concurrency", "2"), ("compare", "--max-concurrency", "2")):
        shown = run(*words, LLAMA, "--gpu", gpu, "--engine-version", version, "--max-model-len", "8192")
        assert f"no image of vLLM {version} runs on" in " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("version", "env", "starts"),
    [
        ("0.10.2", "VLLM_ROCM_USE_AITER=1", False),
        ("0.10.2", "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_MHA=0", True),
        ("0.10.2", "", True),
        ("0.14.0", "VLLM_ROCM_USE_AITER=1", True),
    ],
)
def test_aiter_of_early_releases_does_not_take_sinks(version: str, env: str, starts: bool) -> None:
    """``rocm.py`` of 0.10.2 takes ``AiterFlashAttentionBackend``, whose ``__init__`` has no ``sinks``."""
    line = f"{env} vllm serve openai/gpt-oss-20b --max-model-len 8192"
    said = answer("mi300x", line, "--engine-version", version, "--max-concurrency", "4", status=int(not starts))
    assert said["starts"] is starts
    assert all(plan["env"].get("VLLM_ROCM_USE_AITER_MHA") == "0" for plan in said["better"] if version == "0.10.2")


def test_a_plan_on_more_gpus_leaves_out_the_variable_that_hides_them() -> None:
    """135 GiB of bf16 weights leave two H100 no cache for 32,768 tokens."""
    said = answer(
        "h100", "CUDA_VISIBLE_DEVICES=4,5 vllm serve Qwen/Qwen2.5-72B-Instruct -tp 2 --max-model-len 40000", status=1
    )
    plans = [(plan["delivers"]["num_gpus"], "CUDA_VISIBLE_DEVICES" in plan["env"]) for plan in said["better"]]
    assert plans and all(kept == (gpus <= 2) for gpus, kept in plans) and plans[0][0] > 2


@pytest.mark.parametrize("version", ["0.9.1", "0.11.0"])
def test_an_option_that_v1_overwrites_is_a_remark(version: str) -> None:
    """``arg_utils.py``, ``_set_default_args_v1``: "V1 always uses chunked prefills"."""
    said = answer("h100", f"vllm serve {LLAMA} --no-enable-chunked-prefill", "--engine-version", version)
    assert said["starts"] and flags(said) == {"--no-enable-chunked-prefill": False} and said["delivers"]


@pytest.mark.parametrize(
    ("env", "options", "version", "said_of"),
    [
        ("VLLM_ROCM_USE_AITER=1", "", "0.30.0", {"--attention-backend": False}),
        ("VLLM_ROCM_USE_AITER=1", "--attention-backend ROCM_ATTN", "0.30.0", {"--attention-backend": False}),
        ("VLLM_ROCM_USE_AITER=1", "--attention-backend ROCM_AITER_FA", "0.30.0", {}),
        ("VLLM_ROCM_USE_AITER=1", "", "0.18.1", {}),  # whose priorities have AITER first
        ("VLLM_ROCM_USE_AITER=0", "", "0.30.0", {"VLLM_ROCM_USE_AITER": False}),  # of AITER as a whole
    ],
)
def test_attention_that_vllm_picks_before_aiters_is_a_remark(
    env: str, options: str, version: str, said_of: dict[str, bool]
) -> None:
    """Llama-3.3-70B-FP8 on an MI300X, 32 prompts of 8,192 tokens at once: 155 tokens/s by default, 226 with AITER's."""
    said = answer("mi300x", f"{env} vllm serve {LLAMA} {options}", "--engine-version", version)
    assert flags(said) == said_of
    assert version == "0.18.1" or env[-1] == "0" or all("ROCM_AITER_FA" in plan for plan in better(said))
    if "--attention-backend" in said_of:
        changed = {"line": options.partition(" ")[2] or None, "plan": "ROCM_AITER_FA"}
        assert said["better"][0]["changes"] == {"--attention-backend": changed}
        assert said["better"][0]["delivers"]["output_throughput"] == said["delivers"]["output_throughput"]
        words = shlex.split(f"check --gpu mi300x --engine-version {version} -- {env} vllm serve {LLAMA} {options}")
        assert "\nthis line, with ROCM_AITER_FA " in run(*words).out


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ("--load-format bitsandbytes", False),  # "BitsAndBytes loader does not support fp8 quantization"
        ("--load-format bitsandbytes --quantization bitsandbytes", True),
    ],
)
def test_the_loader_of_bitsandbytes_takes_no_other_weights(options: str, starts: bool) -> None:
    model = LLAMA if starts else "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8"
    line = f"vllm serve {model} --max-model-len 8192 {options}"
    assert answer("h100", line, "--engine-version", "0.27.1", status=not starts)["starts"] is starts
    plans = better(answer("h100", line, status=1))
    assert (plans or not starts) and all("bitsandbytes" not in words for words in plans)


SHORT = ("--max-concurrency", "4", "--random-input-len", "200", "--random-output-len", "20")
CODER = "Qwen/Qwen3-Coder-30B-A3B-Instruct"


@pytest.mark.parametrize(
    ("line", "remarks"),
    [
        (f"{CODER} --tool-call-parser hermes", ["give qwen3_coder"]),
        (f"{CODER} --tool-call-parser qwen3_xml", []),
        ("zai-org/GLM-4.7-FP8 --tool-call-parser glm45 -tp 8", ["give glm47"]),  # 4.7 has another format
        (f"{CODER} --tool-call-parser qwen3_coder --reasoning-parser deepseek_r1", ["leave it out"]),
        (f"{CODER} --tool-call-parser qwen3_coder --reasoning-parser qwen3", ["leave it out"]),  # never reasons
        ("Qwen/Qwen3-8B --tool-call-parser hermes --reasoning-parser deepseek_r1", []),
        ("ByteDance-Seed/Seed-OSS-36B-Instruct --tool-call-parser seed_oss --reasoning-parser seed_oss", []),
        ("Qwen/Qwen3-8B --tool-call-parser qwen", ["give hermes"]),
        (f"{LLAMA} --tool-call-parser pythonic", []),  # without a recipe
    ],
)
def test_parsers_that_read_another_format_than_the_recipes_are_replaced(line: str, remarks: list[str]) -> None:
    said = answer("h200", f"vllm serve -tp 2 --enable-auto-tool-choice {line}", status=line.split()[2] == "qwen")
    told = [flag["hint"] for flag in said["flags"] if "-parser" in flag["flag"]]
    assert told == remarks
    for words in better(said) if remarks else ():
        given = {CODER: "qwen3_coder", "zai-org/GLM-4.7-FP8": "glm47"}.get(line.split()[0], "hermes")
        assert value(words, "--tool-call-parser") == given
        assert "deepseek_r1" not in words


def test_an_added_backend_takes_the_place_of_one_in_json() -> None:
    """``attention_backend and attention_config.backend are mutually exclusive`` (``engine/arg_utils.py``)."""
    config = """--attention-config '{"backend":"TRITON_ATTN"}'"""
    plans = better(answer("mi300x", f"VLLM_ROCM_USE_AITER=1 vllm serve Qwen/Qwen3-8B {config}", *SHORT))
    assert plans and all("--attention-config" not in words and "ROCM_AITER_FA" in words for words in plans)
    broken = """--attention-config '{"backend":"TRITON_ATTN"'"""  # no closing brace
    assert answer("mi300x", f"VLLM_ROCM_USE_AITER=1 vllm serve Qwen/Qwen3-8B {broken}", *SHORT, status=1)


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ("mi300x", "vllm serve deepseek-ai/DeepSeek-R1 -tp 8 --max-model-len 8192"),
        ("mi300x", f"VLLM_ROCM_USE_AITER=0 vllm serve {LLAMA} --attention-backend TRITON_ATTN"),
        ("mi355x", "docker run vllm/vllm-openai-rocm:v0.32.0 amd/Llama-3.3-70B-Instruct-MXFP4-Preview"),
    ],
)
def test_the_first_better_line_of_amd_has_its_kernels(gpu: str, line: str) -> None:
    """vLLM issue 56945: the figures are those with AITER, so it is the change that pays."""
    load = ("--max-concurrency", "4", "--random-input-len", "200", "--random-output-len", "20")
    said = answer(gpu, line, *load)
    first, name = said["better"][0], "VLLM_ROCM_USE_AITER"
    assert said["starts"] and next(iter(flags(said).items())) == (name, False) and first["env"][name] == "1"
    assert name in first["changes"] and not {*first["changes"]} - {name, f"{name}_MOE", "--attention-backend"}
    again = " ".join([*(f"{key}={one}" for key, one in first["env"].items()), first["command"]])
    assert name not in flags(answer(gpu, again, *load))
    lines = run("check", "--gpu", gpu, *load, "--", *shlex.split(line)).out.splitlines()
    assert lines[1].startswith(f"  ! {name}: the figures are those with AITER's kernels")
    assert any(row.startswith("this line, with AITER ") for row in lines)
    assert next(row for row in lines if "better" in row).startswith(f"  - better for --goal balanced: {name}: ")


@pytest.mark.parametrize(
    ("gpu", "words", "word"),
    [
        # what 0.32.0 says: "Unknown attention backend: 'NOPE'", "invalid choice: 'nope'", KeyError of the enumeration
        ("h100", "--attention-backend NOPE", "--attention-backend NOPE"),
        ("h100", "--attention-config.backend NOPE", "--attention-config backend NOPE"),
        ("mi300x", "--attention-backend TRITON_ATTN_VLLM_V1", "--attention-backend TRITON_ATTN_VLLM_V1"),
        ("h100", "--moe-backend nope", "--moe-backend nope"),
        ("h100", "--linear-backend nope", "--linear-backend nope"),
        ("h100", "--all2all-backend nope", "--all2all-backend nope"),
        ("h100", "--distributed-executor-backend nope", "--distributed-executor-backend nope"),
        ("h100", "-cc.cudagraph_mode NOPE", "--compilation-config cudagraph_mode NOPE"),
        ("h100", "--runner nope", "--runner nope"),
        ("h100", "--block-size 32 --attention-backend FLASHMLA", "--block-size"),
        ("h100", "--block-size 64 --attention-backend FLASHMLA", ""),
        ("h100", "--load-format bitsandbytes", "--load-format bitsandbytes"),  # "Load format ... is not supported"
        ("h100", "--load-format gguf", "--load-format"),  # "Load format `gguf` is not supported" (pull request 39612)
        # and what it takes: backends and graphs in any case, an executor by its class, formats of plugins
        ("h100", "--attention-backend flash_attn --moe-backend Flashinfer-Cutlass -cc.cudagraph_mode none", ""),
        ("h100", "--distributed-executor-backend my.Executor --load-format mine", ""),
        # platforms/rocm.py and cuda.py: "Selected backend ... is not valid for this configuration"
        ("mi300x", "--attention-backend FLASHINFER", "--attention-backend"),
        ("h100", "--attention-backend FLASHINFER", ""),
        ("h100", "--attention-config.backend ROCM_AITER_FA", "--attention-config.backend"),
    ],
)
def test_a_value_outside_of_its_list_is_refused(gpu: str, words: str, word: str) -> None:
    said = answer(gpu, f"vllm serve {LLAMA} {words}", "--engine-version", "0.32.0", status=int(bool(word)))
    assert flags(said) == ({"VLLM_ROCM_USE_AITER": False} if gpu == "mi300x" else {}) | ({word: True} if word else {})
    assert not word or all(words.split()[1] not in plan for plan in better(said))


@pytest.mark.parametrize(("version", "who"), [("0.32.0", "vLLM refuses"), ("0.23.0", "planner does not model")])
def test_a_file_of_gguf_is_not_taken_for_the_model_that_is_named(version: str, who: str) -> None:
    """5 GB of Q4_K_M were answered with 15 GiB of bf16."""
    line = ("vllm", "serve", "./Qwen3-8B-Q4_K_M.gguf")
    found = check_command(line, "rtx-5090", as_model="Qwen/Qwen3-8B", engine_version=version)
    assert not found.ok and who in " ".join(found.sentences())


def test_nodes_of_another_number_are_not_simulated() -> None:
    line = "vllm serve Qwen/Qwen3-32B -tp 8 --nnodes 2 --node-rank 0 --master-addr 10.0.0.1"
    assert check_command(line, "h100", max_concurrency=8).record.line.not_simulated == ("--nnodes",)


def test_a_suggestion_keeps_the_memory_of_the_host() -> None:
    line = "vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-offloading-size 64 --kv-offloading-backend native"
    better = check_command(line, "h100", max_concurrency=64).to_dict()["better"]
    assert better and all("--kv-offloading-size 64" in plan["command"] for plan in better)


def test_a_better_plan_says_where_first_tokens_come_later() -> None:
    """8 ranks of 128 places hold 1,024 of 3,376 requests; 256 each would hold 2,048."""
    record: Any = SimpleNamespace(
        served=SimpleNamespace(result={"mean_ttft_ms": 4_000}), workload=SimpleNamespace(max_concurrency=3376)
    )
    for places, waiting in ((128, "2,352"), (256, "1,328")):
        config = SimpleNamespace(max_num_seqs=places, data_parallel_size=8)
        plan: Any = SimpleNamespace(result={"mean_ttft_ms": 60_000}, config=config)
        said = f", with TTFT 60 s, not 4.0 s ({waiting} requests wait for a place)"
        assert _slower_start(record, plan) == said


def test_weights_beyond_a_node_name_two_nodes_and_larger_gpus() -> None:
    """A public question: 671 GB of DeepSeek-R1 on eight H100. Two nodes hold it, and so do eight H200."""
    line = "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --trust-remote-code"
    answer = check_command(line, "h100")
    said, (plan, *_) = str(answer), answer.to_dict()["better"]
    assert not answer.ok and plan["delivers"]["num_gpus"] == 16
    words = shlex.split(plan["command"])
    assert {"--nnodes", "--data-parallel-address"} & {*words} and "HEAD" in words
    assert "would fit: 16 GPUs on two nodes (--nnodes 2), TP 8 x PP 2: --pipeline-parallel-size 2" in said
    assert "would fit: NVIDIA H200 SXM 141GB: --gpu h200-sxm" in said
    assert "too little" in said and "-1" not in said.split("KV cache")[1].splitlines()[0]
    spread = run("check", "--gpu", "h100", "--", "vllm", "serve", "deepseek-ai/DeepSeek-R1", "-tp", "16").out
    assert "on 16 x h100-sxm over 2 nodes" in spread


@pytest.mark.parametrize(
    ("gpu", "words", "word"),
    [
        ("a100", "--attention-backend TRITON_ATTN", "--attention-backend"),  # triton_attn.py: requires SM89+
        ("rtx-3090", "--attention-config.backend FLASH_ATTN", "--attention-config.backend"),
        ("rtx-3090", """--attention-config '{"backend": "FLASH_ATTN"}'""", "--attention-config.backend"),
        ("l40s", "--attention-backend FLASH_ATTN", "--attention-backend"),  # fa_utils.py: FA3 on sm_90, FA4 on sm_100
        ("l40s", "--attention-backend TRITON_ATTN", ""),
        ("a100", "--attention-backend FLASHINFER", ""),
        ("h100", "--attention-backend FLASH_ATTN", ""),
        ("a100", "", ""),
    ],
)
def test_a_backend_that_reads_no_8_bit_cache_is_refused(gpu: str, words: str, word: str) -> None:
    """``flash_attn_supports_kv_cache_dtype`` and ``TritonAttentionImpl`` of vLLM 0.32.0."""
    said = answer(gpu, f"vllm serve Qwen/Qwen3-4B --kv-cache-dtype fp8 --max-model-len 8192 {words}", status=bool(word))
    assert flags(said) == ({word: True} if word else {})
    assert all("attention" not in plan["command"] for plan in said["better"] if word)


@pytest.mark.parametrize(
    ("gpu", "env", "words", "word"),
    [
        ("h200", "VLLM_USE_DEEP_GEMM=1", "-tp 8", "VLLM_USE_DEEP_GEMM"),
        ("h200", "VLLM_USE_DEEP_GEMM=1 VLLM_MOE_USE_DEEP_GEMM=0", "-tp 8", ""),
        ("h200", "VLLM_USE_DEEP_GEMM=1", "-tp 8 --enable-expert-parallel", ""),
        ("h200", "VLLM_USE_DEEP_GEMM=1", "-tp 8 --moe-backend triton", ""),  # is looked at before the variables
        ("h200", "VLLM_USE_DEEP_GEMM=0", "-tp 8", ""),
        ("h200", "A=1", "-tp 8", ""),  # DeepGEMM is passed over where nobody asks for it
        ("mi325x", "VLLM_ROCM_USE_AITER=1", "-tp 8", "VLLM_ROCM_USE_AITER"),
        ("mi325x", "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_MOE=True", "-tp 8", "VLLM_ROCM_USE_AITER_MOE"),
        ("mi325x", "VLLM_ROCM_USE_AITER_MOE=1", "-tp 8", ""),
    ],
)
def test_kernels_that_read_no_cut_blocks_are_refused(gpu: str, env: str, words: str, word: str) -> None:
    """``select_fp8_moe_backend`` of vLLM 0.32.0; experts of 1,536 / 8 = 192 columns have blocks of 64."""
    said = answer(gpu, f"env {env} vllm serve MiniMaxAI/MiniMax-M2.5 --max-model-len 8192 {words}", status=bool(word))
    assert [name for name, fatal in flags(said).items() if "USE" in name and fatal] == ([word] if word else [])
    for plan in said["better"] if word else ():
        forced = plan["env"].get("VLLM_ROCM_USE_AITER") == "1" or plan["env"].get("VLLM_USE_DEEP_GEMM") == "1"
        off = "0" in (plan["env"].get("VLLM_ROCM_USE_AITER_MOE"), plan["env"].get("VLLM_MOE_USE_DEEP_GEMM"))
        options = plan["command"]
        assert not forced or off or "--enable-expert-parallel" in options or "--tensor-parallel-size 8" not in options


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("VLLM_ROCM_USE_AITER=1 vllm serve Qwen/Qwen3-32B --attention-backend TRITON_ATTN", "ROCM_AITER_FA"),
        ("VLLM_ROCM_USE_AITER=1 VLLM_ATTENTION_BACKEND=TRITON_MLA vllm serve deepseek-ai/DeepSeek-R1 -tp 8", None),
    ],
)
def test_another_attention_than_aiters_is_named_and_left_out_of_better_lines(line: str, backend: str | None) -> None:
    """``get_attn_backend_cls`` of ``platforms/rocm.py`` takes the backend that is named before AITER's own."""
    version = ("--engine-version", "0.19.0" if backend else "0.10.1")
    said = answer("mi300x", line, *version, "--max-concurrency", "8")
    named = next(one for one in said["flags"] if "TRITON" in str(one))
    assert not named["fatal"] and "takes the place of AITER's attention" in str(named)
    assert named["hint"] == (f"give {backend}" if backend else "leave it out")  # which ROCM_ATTN would follow
    for plan, words in zip(said["better"], better(said), strict=True):
        assert "TRITON" not in plan["command"] and (backend is None or value(words, "--attention-backend") == backend)
    without = answer("mi300x", re.sub(r"\S* ?\S*TRITON_\w+", "", line), *version, "--max-concurrency", "8")
    assert "takes the place" not in str(without["flags"])


def test_no_suggestion_has_a_longer_context_than_the_images_serve() -> None:
    """AMD's guide of vLLM 0.9.1, on DeepSeek-V3 and R1: "--max-model-len cannot be greater than 32768"."""
    asked = ("--engine-version", "0.9.1", "--max-concurrency", "8")
    said = answer("mi300x", "vllm serve deepseek-ai/DeepSeek-R1 -tp 8", *asked)
    assert said["better"] and all(value(words, "--max-model-len") == "32768" for words in better(said))
    plan = json.loads(run("recommend", "deepseek-ai/DeepSeek-R1", "--gpu", "mi300x", *asked, "--format", "json").out)
    assert plan["plans"][0]["max_model_len"] == 32768


def test_a_suggestion_has_no_switch_without_its_parser() -> None:
    """vLLM ends with "--enable-auto-tool-choice requires --tool-call-parser"; no recipe names one for phi-4."""
    line = "vllm serve microsoft/phi-4 --enable-auto-tool-choice --tool-call-parser nonsense"
    said = answer("h100", line, "--max-concurrency", "4", status=1)
    assert said["better"] and "--enable-auto-tool-choice" not in str(better(said))


def test_better_plans_start_as_surely_as_the_line() -> None:
    """Beside 16-bit weights an L4 holds 33,536 tokens in 16 bits or not, and surely in 8."""
    fit = check_fit(LLAMA, "l4", max_model_len=2048).to_dict()
    context = int(1.02 * fit["kv_cache_tokens"])
    assert check_fit(LLAMA, "l4", max_model_len=context).to_dict()["verdict"] == "too close to call"
    found = check_command(f"vllm serve {LLAMA} --max-model-len {context} --kv-cache-dtype fp8", "l4", max_concurrency=1)
    ranking = found.record.ranking
    assert found.record.served and ranking and found.record.served.deployment.verdict == "fits"
    assert {one.deployment.verdict for one in ranking.candidates} == {"fits"}
