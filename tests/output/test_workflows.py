"""The workflows of the published recipes as text: what they hold, against what the documents and the hubs say."""

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shell_checks import check_scripts
from workflow_cases import NAMES, commands_in, files_of, in_container, points_of, saved_plan, value_of

from planner.commands.main import main
from planner.engine.launches import split_command
from planner.engine.parse import find_flag_problems
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError
from planner.model.resolve import resolve_model
from planner.output.scripts.folder import ALL_FILES
from planner.output.workflows import subject
from planner.output.workflows.documents import find_workflow
from planner.output.workflows.render import plan_workflow, purpose_of


def test_every_script_is_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    others = ({"gpu": "h200-sxm", "model": "Qwen/Qwen3-8B"}, {"gpu": "h100-mig-3g.40gb", "model": "Qwen/Qwen3-0.6B"})
    made = [files_of(name) for name in NAMES]
    made += [files_of(name, **other) for name in ("latency", "copies", "sweep", "online") for other in others]
    # those of every plan are judged with the plans
    texts = [text for files in made for path, text in files.items() if path.endswith(".sh") and purpose_of(path)]
    assert all("set -euo pipefail" in text for text in texts)
    check_scripts(texts, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_vllm_command_is_one_of_its_version(name: str) -> None:
    judged = 0
    files = files_of(name)
    for path, content in files.items():
        folder = path.rpartition("/")[0]
        if not path.endswith(".sh") or f"{folder}/plan.json".lstrip("/") not in files:
            continue
        plan = json.loads(files[f"{folder}/plan.json".lstrip("/")])
        version = parse_version(str(plan["engine_version"]))
        for words in map(in_container, commands_in(content)):
            if split_command(words)[0] is not None:
                judged += 1
                assert find_flag_problems(words, version, platform=str(plan["platform"])) == [], (path, words)
        for variable in plan["env"]:
            assert find_flag_problems([f"{variable}=1"], version, platform=str(plan["platform"])) == []
    assert judged >= 2, "launch.sh serves and benchmark.sh measures, at least"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_exposed_and_no_privilege_is_taken(name: str) -> None:
    for script, content in files_of(name).items():
        # what is said about the document may name them
        code = "\n".join(line for line in content.splitlines() if not line.lstrip().startswith(("#", "- ", "*")))
        if script.endswith(".md"):
            continue
        assert "--privileged" not in code and "/dev/mem" not in code and "CAP_SYS_ADMIN" not in code
        assert "trust-remote-code" not in code.replace("--no_trust_remote_code", "")
        if not script.endswith("shell.sh"):
            assert "SYS_PTRACE" not in code
        for words in commands_in(code):
            for flag, value in pairwise(words):
                if flag in {"--publish", "-p"} and "docker" in words:
                    assert value.startswith(("127.0.0.1:", "${LISTEN_ADDRESS:-127.0.0.1}:")), script
                if flag == "--network":  # the client of instances.sh, which listens to nothing
                    assert script.endswith("instances.sh") and any("client" in word for word in words)
        assert not re.search(r"HF_TOKEN=(?!\.\.\.)|hf_[A-Za-z0-9]{20}", code)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_a_purpose_and_is_known(name: str) -> None:
    """Of mi355x-fp8, say: a node holds eight such servers, and its runbook starts them with instances.sh."""
    files = files_of(name)
    assert {path.rpartition("/")[2] for path in files} <= set(ALL_FILES), "--force removes what another plan left"
    assert set(re.findall(r"\]\(([\w.]+)\)", files["WORKFLOW.md"])) <= set(files), "its links lead somewhere"
    assert all(purpose_of(path) for path in files if path.endswith(".sh")), "the command line lists them with it"
    for script in find_workflow(name).scripts:
        assert purpose_of(script) and script in files["WORKFLOW.md"].replace("\\_", "_")
    for runbook in (path for path in files if path.endswith("RUNBOOK.md")):
        named = set(re.findall(r"([a-z_]+\.sh)", files[runbook].replace("\\_", "_")))
        assert {"launch.sh", "benchmark.sh"} <= named
        assert {runbook.replace("RUNBOOK.md", script) for script in named} <= set(files)


AMD_70B, AMD_405B, AMD_8B = (f"amd/Llama-3.1-{size}-Instruct-FP8-KV" for size in ("70B", "405B", "8B"))
R1 = "deepseek-ai/DeepSeek-R1"
QWEN = {"model": "Qwen/Qwen3-8B", "gpu": "h200-sxm"}
#: Workflow, choices, file: what it says, and what it does not say.
SAID: list[tuple[Any, ...]] = [
    # scores, and lm_eval's arguments: AMD's recipe sends batches of 100
    ("mi355x-fp8", {}, "accuracy.sh", ("0.9052 ± 0.0081", "0.8575 ± 0.0096", "task=gsm8k\n", "--batch_size 100"),
     ("num_concurrent",)),
    ("mi355x-mxfp4", {}, "accuracy.sh", ("0.8954 ± 0.0084", "0.8317 ± 0.0103", "task=gsm8k\n", "--batch_size 100"),
     ("num_concurrent",)),
    ("blackwell-fp4", {}, "accuracy.sh", ("0.9272 ± 0.0072", "0.6293 ± 0.0133", "task=gsm8k\n"), ("--batch_size",)),
    # five worked examples are about 4,000 tokens, and the task generates up to 2,048
    ("mmlu-pro", {}, "accuracy.sh", ("0.848 ± 0.0134", "task=mmlu_pro_biology\n", "needed_len=6144",
                                     "max_model_len=8192"), ()),
    ("mmlu-pro", {"weight_dtype": "fp16"}, "accuracy.sh", ("0.8466 ± 0.0135", "max_model_len=8192"), ()),
    ("blackwell-fp4", {}, "preflight.sh", ("capability=10.0",), ()),
    ("hopper-fp8", {}, "preflight.sh", ("capability=9.0",), ()),
    ("latency", {"engine_version": "0.10.0"}, "latency.sh", (), ("published",)),
    ("latency", {"engine_version": "0.6.3"}, "build_image.sh", ("commit=2c60adc83981ada77a77b2adda78ef109d2e2e2b",),
     ()),
    ("build-rocm-0.9.1", {}, "build_image.sh", ('options+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")',), ()),
    ("mi355x-fp8", {"image": "rocm/vllm-dev:nightly"}, "plan.json", ("as asked for with --image",), ()),
    # AMD prints 11,640 ms; for 0.11.0 12,687 are predicted, for the version that is launched a third more
    ("mi355x-fp8", {}, "WORKFLOW.md", ("benchmark.sh, vLLM 0.11.0", "replaced by --no-enable-log-requests"), ()),
    ("mi355x-fp8", {}, "plan.json", (), ('"engine_version": "0.11.0"',)),
    ("deepseek", {}, "WORKFLOW.md", ("`--max-model-len` | `131072` | 32768 |", "adds --ignore-eos"), ()),
    # AMD's own script runs as it is, with its words: -g 8, as printed
    ("mad", {}, "WORKFLOW.md", (), ("benchmark_latency",)),
    ("mad", {"weight_dtype": "bf16"}, "mad.sh", ("dtype=bfloat16",), ()),
    ("mad", {}, "mad.sh", ('./vllm_benchmark_report.sh -s all -m "$1" -g "$2" -d "$3"', "dtype=float16", "gpus=8 "),
     ()),
    # the document's known issue: AITER has no fp8 KV cache in this image
    ("aiter", {"kv_cache_dtype": "fp8"}, "plan.json", ("no fp8 KV cache",), ()),
    *(("aiter", {"model": f"amd/Mixtral-{size}-Instruct-v0.1-FP8-KV"}, "plan.json",
       ('"VLLM_ROCM_USE_AITER": "1"', '"tensor_parallel_size": 8'), ('"kv_cache_dtype": "fp8"',))
      for size in ("8x22B", "8x7B")),
    ("latency", QWEN, "plan.json", ("recommended settings",), ()),
    ("latency", QWEN, "latency.sh", (), ("published",)),
    # the document gives its commit full_cuda_graph; asynchronous scheduling is off on Hopper at this commit
    ("nvidia-source", {}, "launch.sh", ('"full_cuda_graph":true',), ("cudagraph_mode",)),
    *((name, {"gpu": "h200-sxm"}, "launch.sh", ("nvidia/Llama-3.3-70B-Instruct-FP8",), ())
      for name in ("nvidia-source", "blackwell-fp4")),
    ("nvidia-source", {"gpu": "h200-sxm"}, "launch.sh", (), ("--async-scheduling",)),
]  # fmt: skip
#: Workflow, choices: fields of the plan.
PLANNED: list[tuple[Any, ...]] = [
    ("mmlu-pro", {"weight_dtype": "fp16"}, {"model": "meta-llama/Llama-3.1-405B-Instruct"}),
    # AMD's document of 0.9.1 sets one variable for its server, its recipe for MI355X five; newer versions read three
    ("online", {}, {"env": {"VLLM_USE_TRITON_FLASH_ATTN": "0"}, "kv_cache_dtype": "fp8"}),
    ("mi355x-fp8", {}, {"env": {"SAFETENSORS_FAST_GPU": "1", "NCCL_DEBUG": "WARN", "VLLM_ROCM_USE_AITER": "1",
                                "HIP_VISIBLE_DEVICES": "0"}}),
    ("deepseek", {"model": R1}, {"model": R1, "block_size": 1}),
    ("hopper-fp8", {"gpu": "h100-sxm", "tensor_parallel_size": 2}, {"tensor_parallel_size": 2}),
    ("latency", {**QWEN, "model": "Qwen/Qwen3-32B", "tensor_parallel_size": 4}, {"tensor_parallel_size": 4}),
    ("latency", QWEN, {"gpu": "h200-sxm", "platform": "cuda"}),
    ("online", {"weight_dtype": "fp16"}, {"model": "meta-llama/Llama-3.1-70B-Instruct"}),
    ("nvidia-source", {"gpu": "h200-sxm"}, {"engine_version": "0.10.1"}),
    # the options that this commit takes
    ("latency", {"engine_version": "0.6.3"}, {"image": "planner/vllm-rocm:0.6.3-2c60adc83981",
                                              "engine_version": "0.6.4"}),
    ("mi355x-fp8", {"image": "rocm/vllm-dev:nightly"}, {"image": "rocm/vllm-dev:nightly"}),
    ("mad", {}, {"image": "rocm/vllm:rocm6.3.1_instinct_vllm0.7.3_20250325"}),
]  # fmt: skip
#: Workflow, script, choices, points: their options, one value for all or one for each, and words of the first or last.
#: ``plan``: the two commands of the plan instead.
MEASURED: list[tuple[Any, ...]] = [
    # the same prompts are repeated: with a prefix cache the first token would cost nothing
    *(("latency", "latency.sh", {"model": model}, 16, {
        "--input-len": ["128"] * 8 + ["2048"] * 8, "--output-len": "2048", "--dtype": "float16", "--num-iters": "5",
        "--kv-cache-dtype": "auto", "--tensor-parallel-size": "8", "--no-enable-prefix-caching": "",
        "--num-iters-warmup": "3",
    }, f"published {last} s") for model, last in ((AMD_405B, "125.471"), (AMD_70B, "52.394"))),
    # the table has the same number for prompts and max-num-seqs
    *(("throughput", "throughput.sh", {"model": model}, 4, {
        "--num-prompts": prompts, "--max-num-seqs": prompts, "--max-num-batched-tokens": "131072",
        "--max-model-len": "8192", "--kv-cache-dtype": "fp8", "--disable-detokenize": "",
    }, f"({first} of them output)") for model, prompts, first in (
        (AMD_70B, ["3200", "1500", "2000", "1500"], "12,638.9"),
        (AMD_405B, ["1500", "1500", "2000", "500"], "3,912.8"),
    )),
    # the result counts input and output: 12,638.9 output tokens/s x (128 + 2048) / 2048 = 13,428.8
    ("throughput", "throughput.sh", {}, 4, {}, "published 13,428.8 tokens/s (12,638.9 of them output)"),
    # for FP16 models the document of 0.6.3 removes --quantization fp8 --kv-cache-dtype fp8
    ("latency", "latency.sh", {"engine_version": "0.6.3", "weight_dtype": "fp16"}, 1, {
        "--kv-cache-dtype": "auto", "--model": "meta-llama/Llama-3.1-405B-Instruct", "--quantization": "-",
        "--num-scheduler-steps": "-",
    }, ""),
    ("latency", "latency.sh", {**QWEN, "model": "Qwen/Qwen3-32B"}, 16, {"--model": "Qwen/Qwen3-32B-FP8"}, ""),
    ("ttft", "ttft.sh", {}, 5, {"--output-len": "1", "--enforce-eager": ""}, ""),
    ("cpx", "throughput.sh", {}, 1, {"--model": AMD_8B}, "as if every partition of the GPU were busy"),
    *(("deepseek", f"{bench}.sh", {}, 1, {"--block-size": "1", "--max-model-len": "32768"}, "")
      for bench in ("latency", "throughput")),
    ("aiter", "aiter.sh", {}, 2, {"--batch-size": "256"}, ""),
    ("quick-reduce", "quick_reduce.sh", {}, 5, {"--env": [
        f"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION={mode}" for mode in ("NONE", "FP", "INT8", "INT6", "INT4")]}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "choice", "file", "said", "unsaid"), SAID)
def test_a_file_says_what_its_document_says(
    name: str, choice: dict[str, Any], file: str, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    text = files_of(name, **choice)[file]
    assert [words for words in said if words not in text] == [] and not any(words in text for words in unsaid)


@pytest.mark.parametrize(("name", "choice", "fields"), PLANNED)
def test_the_plan_is_that_of_the_document_or_of_the_choice(
    name: str, choice: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert {key: saved_plan(name, **choice)[key] for key in fields} == fields


@pytest.mark.parametrize(("name", "script", "choice", "number", "options", "said"), MEASURED)
def test_points_are_those_of_the_document(
    name: str, script: str, choice: dict[str, Any], number: int, options: dict[str, str | list[str]], said: str
) -> None:
    points = points_of(name, script, **choice)
    assert len(points) == number and (said in points[0][3] or said in points[-1][3])
    for flag, value in options.items():
        if value in ("", "-"):
            assert all((flag in words) is (value == "") for words in points), flag
        else:
            assert [value_of(words, flag) for words in points] == (
                [value] * number if isinstance(value, str) else value
            )


def test_arguments_reach_their_program() -> None:
    """NVIDIA's lm_eval keeps 128 requests in flight, with 120 s for each; AITER's switches are those of every point."""
    (arguments,) = re.findall(r"^arguments='(.*)'$", files_of("blackwell-fp4")["accuracy.sh"], re.MULTILINE)
    assert json.loads(arguments) == {
        "model": "nvidia/Llama-3.3-70B-Instruct-FP4", "tokenized_requests": False, "tokenizer_backend": "None",
        "num_concurrent": 128, "timeout": 120, "max_retries": 5,
    }  # fmt: skip
    for switch in ("VLLM_ROCM_USE_AITER=1", "VLLM_ROCM_USE_AITER_MHA=0", "VLLM_ROCM_USE_AITER_RMSNORM=0"):
        assert f"--env {switch}" in files_of("aiter")["aiter.sh"].partition("measure()")[0]
    assert "VLLM_ROCM_USE_AITER=0" in points_of("aiter", "aiter.sh")[1]
    assert value_of(saved_plan("mi355x-fp8", num_prompts=320)["bench_argv"], "--num-prompts") == "320"
    argv = saved_plan("latency", tensor_parallel_size=4, kv_cache_dtype="fp8")["serve_argv"]
    assert (value_of(argv, "--tensor-parallel-size"), value_of(argv, "--kv-cache-dtype")) == ("4", "fp8")
    argv = saved_plan("deepseek")["serve_argv"]
    assert value_of(argv, "--block-size") == "1" and int(value_of(argv, "--max-model-len")) <= 32768
    older = saved_plan("mi355x-fp8", engine_version="0.10.2")["env"]
    assert older["VLLM_RPC_TIMEOUT"] == "1800000" and older["VLLM_USE_V1"] == "1"
    assert "pull_image.sh" not in files_of("latency", engine_version="0.6.3")
    # 2 x 9 batches of prompts, 9 of decoding, 4 of throughput: the points of AMD's script, each with its prediction
    script = files_of("mad")["mad.sh"]
    assert len(re.findall(r"^#   (?:latency|throughput)-\S+: predicted ", script, re.MULTILINE)) == 31


@pytest.mark.parametrize(
    ("version", "flags", "engine"),
    [
        ("0.7.3", ["--speculative-model", "--num-speculative-tokens"], None),
        ("0.8.3", ["--speculative-config"], "0"),
        ("0.9.1", ["--speculative-config"], "0"),
        ("0.27.1", ["--speculative-config"], None),
    ],
)
def test_drafting_is_said_in_the_words_of_the_version(version: str, flags: list[str], engine: str | None) -> None:
    without, with_draft = points_of("speculative", "speculative.sh", engine_version=version)
    assert [word for word in with_draft if "specul" in word and word.startswith("--")] == flags
    assert not any("specul" in word for word in without[4:])
    draft = "amd/Llama-3.1-8B-Instruct-FP8-KV"
    assert draft in value_of(with_draft, flags[0])
    for words in (without, with_draft):
        assert (f"VLLM_USE_V1={engine}" in words) == (engine is not None), "both runs use the same engine"


@pytest.mark.parametrize("version", ["0.8.2", "0.14.0", "0.15.0"])
def test_another_model_is_drafted_for_by_the_model_that_is_named(version: str) -> None:
    """0.8.2 drafts in V0; between 0.10.0 and 0.14.1 no release drafts with a model."""
    choice = {"gpu": "h100-sxm", "model": "meta-llama/Llama-3.1-8B-Instruct", "engine_version": version}
    with pytest.raises(IllegalPlanError, match="drafts for"):
        files_of("speculative", **choice)
    choice["draft"] = "meta-llama/Llama-3.2-1B-Instruct"
    if version == "0.14.0":
        with pytest.raises(IllegalPlanError, match="does not draft with a model"):
            files_of("speculative", **choice)
        return
    _, with_draft = points_of("speculative", "speculative.sh", **choice)
    assert "meta-llama/Llama-3.2-1B-Instruct" in value_of(with_draft, "--speculative-config")
    assert ("VLLM_USE_V1=0" in with_draft) == (version == "0.8.2")


@pytest.mark.parametrize("name", ["latency", "deepseek", "speculative"])
def test_mi325x_stands_beside_mi300x_in_the_documents_but_not_in_their_figures(name: str) -> None:
    here, there = (saved_plan(name, gpu=gpu) for gpu in ("mi325x", "mi300x"))
    assert here["serve_argv"] == there["serve_argv"] and here["env"] == there["env"]
    assert "published" not in files_of(name, gpu="mi325x").get(f"{name}.sh", "")


@pytest.mark.parametrize(
    ("name", "choice", "words"),
    [
        ("deepseek", {"engine_version": "0.6.3"}, "does not know DeepseekV3"),
        ("aiter", {"engine_version": "0.6.3"}, "does not read VLLM_ROCM_USE_AITER"),
        ("quick-reduce", {"engine_version": "0.7.3"}, "does not read VLLM_ROCM_QUICK_REDUCE"),
        ("latency", {"gpus": 4}, "takes 8 GPUs, the node has 4"),
        ("latency", {"model": "Qwen/Qwen3-32B", "weight_dtype": "mxfp4"}, "with mxfp4 weights"),
        ("speculative", {"engine_version": "0.10.1"}, "does not draft with a model"),
        ("aiter", {"gpu": "h100-sxm"}, "is not a workflow for"),
        ("latency", {"weight_dtype": "banana"}, "has amd/Llama-3.1-405B-Instruct-FP8-KV in fp8"),
        ("blackwell-fp4", {"weight_dtype": "fp8"}, "has nvidia/Llama-3.3-70B-Instruct-FP4 in nvfp4 on this GPU"),
        ("mad", {"weight_dtype": "fp32"}, "in fp16 on this GPU"),
        ("latency", {"draft": "amd/Llama-3.1-8B-Instruct-FP8-KV"}, "--draft has no effect in latency"),
        ("latency", {"num_prompts": 7}, "--num-prompts has no effect"),
        ("throughput", {"max_concurrency": 7}, "--max-concurrency has no effect"),
        ("compare-partitions", {"weight_dtype": "fp8"}, "--weight-dtype has no effect"),
        ("compare-partitions", {"gpu": "mi300x-cpx"}, "whole AMD GPU"),
        ("quick-reduce", {"gpu": "h100-sxm"}, "not a workflow for"),
        ("sweep", {"model": "meta-llama/Llama-3.1-405B-Instruct", "gpu": "rtx-4090"}, "no plan of"),
        ("nvidia-source", {"engine_version": "0.27.1"}, "takes the options of vLLM 0"),
        ("build-rocm-0.9.1", {"engine_version": "0.8.5"}, "takes the options of vLLM 0"),
        ("mad", {"engine_version": "0.10.1"}, "num-scheduler-steps"),
        # 70 GB of weights on a GPU of 80: `planner check` says of the same line that it does not start
        ("hopper-fp8", {"gpu": "h100-sxm"}, "does not start"),
    ],
)
def test_what_a_version_or_a_gpu_cannot_do_is_refused(name: str, choice: dict[str, Any], words: str) -> None:
    with pytest.raises((IllegalPlanError, InputError), match=words) as error:
        files_of(name, **choice)
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "low", "high", "words"),
    [
        # 410 GB of weights, embeddings in 16 bits among them, and 9 GB of the draft
        ("speculative", 418, 421, r"(9|10) GB of amd/Llama-3.1-8B"),
        # 405.9 billion parameters of two bytes are 812 GB, and the FP8 checkpoint beside them is 410
        ("quantize", 1215, 1230, "GB for the quantised checkpoint"),
    ],
)
def test_what_is_downloaded_and_written_has_room(name: str, low: int, high: int, words: str) -> None:
    text = files_of(name)["preflight.sh"]
    (need,) = re.findall(r"need_gb=\$\(\((\d+)", text)
    assert low <= int(need) <= high and re.search(words, text)
    assert ("draft=amd/Llama-3.1-8B-Instruct-FP8-KV" in files_of(name)["download.sh"]) == (name == "speculative")


@pytest.mark.parametrize(("name", "more"), [("mi355x-fp8", ()), ("latency", ("latency.sh",))])
def test_the_revision_is_downloaded_and_launched(name: str, more: tuple[str, ...], monkeypatch: Any) -> None:
    """``hf download`` and vLLM take the hub's default branch without ``--revision``."""

    def resolved(model: str, *, revision: str | None, **_: Any) -> Any:
        return replace(resolve_model(model), revision=revision)

    monkeypatch.setattr(subject, "resolve_model", resolved)
    files = plan_workflow(find_workflow(name), subject.Choice(revision="v1.0"), command="planner workflow")
    assert all("--revision v1.0" in files[file] for file in ("launch.sh", "download.sh", *more))


def test_whole_gpus_and_partitions_are_compared_at_the_same_load() -> None:
    files = files_of("compare-partitions")
    table = [line for line in files["COMPARISON.md"].splitlines() if line.startswith(("| SPX", "| CPX"))]
    assert len(table) == 4
    plans = {path.split("/")[0]: json.loads(text) for path, text in files.items() if path.endswith("/plan.json")}
    servers = {"mi300x-tp1": 8, "mi300x-tp8": 1, "mi300x-cpx": 64, "mi300x-cpx-nps4": 64}
    assert set(plans) == set(servers)
    for folder, plan in plans.items():
        assert plan["workload"]["max_concurrency"] * servers[folder] == 512
        assert f"layout {folder} results/node-{plan['digest']}.json" in files["compare.sh"]
        assert f"{folder}/instances.sh" in files
    # whole GPUs first: the mode is changed as rarely as possible
    order = re.findall(r"^layout (\S+)", files["compare.sh"], re.MULTILINE)
    assert order == ["mi300x-tp1", "mi300x-tp8", "mi300x-cpx", "mi300x-cpx-nps4"]


def test_a_model_too_large_for_a_partition_is_compared_on_whole_gpus_and_said_so() -> None:
    text = files_of("compare-partitions", model="meta-llama/Llama-3.3-70B-Instruct")["COMPARISON.md"]
    assert "Not possible" in text and "mi300x-cpx" in text.partition("Not possible")[2]


def test_a_sweep_sends_five_prompts_for_each_request_in_flight() -> None:
    script = files_of("sweep")["sweep.sh"]
    loads = [words for words in commands_in(script) if words[:1] == ["point"]]
    closed = [words for words in loads if words[1].startswith("concurrency")]
    assert [int(value_of(words, "--max-concurrency")) for words in closed] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for words in loads:
        assert value_of(words, "--percentile-metrics") == "ttft,tpot,itl,e2el"
        assert words[2] == value_of(words, "--num-prompts")
    for words in closed:
        assert int(words[2]) == 5 * int(value_of(words, "--max-concurrency"))
    opened = [words for words in loads if words[1].startswith("rate")]
    rates = [float(value_of(words, "--request-rate")) for words in opened]
    prompts = [int(words[2]) for words in opened]
    # an idle server has few requests in flight, an overloaded one all: five for each
    assert prompts == sorted(prompts) and 100 <= prompts[0] <= 320 and prompts[-1] == 5 * 256
    assert re.search(r"predicted duration: .*concurrency \d+ min, rate \d+ min", script)
    assert len(rates) == 6 and rates == sorted(rates) and rates[-1] / rates[0] > 4
    digest = saved_plan("sweep")["digest"]
    assert f"digest={digest}\n" in script and "sweep-$load-$digest.json" in script


def test_guidellm_is_told_what_the_sweep_sends() -> None:
    script = files_of("sweep")["guidellm.sh"]
    assert re.findall(r"^streams (\d+) (\d+) \d+$", script, re.MULTILINE)[-1] == ("256", "1280")
    (line,) = [line for line in script.splitlines() if line.startswith("data=")]
    assert json.loads(shlex.split(line)[0].removeprefix("data=")) == {
        "kind": "synthetic_text", "prompt_tokens": 1024, "output_tokens": 1024,
    }  # fmt: skip


def test_the_command_line_lists_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["workflow", "list", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == list(NAMES)
    assert all(row["scripts"] and row["sources"] for row in listed)
    target = tmp_path / "plan"
    assert main(["workflow", "sweep", "--max-concurrency", "32", "-o", str(target)]) == 0
    assert (target / "sweep.sh").stat().st_mode & 0o100
    assert json.loads((target / "plan.json").read_text())["workload"]["max_concurrency"] == 32
    capsys.readouterr()
    assert main(["workflow", "sweep", "-o", str(target)]) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["workflow", "sweeping"]) == 2
    assert "hint:" in capsys.readouterr().err
    with pytest.raises(InputError) as unknown:
        find_workflow("latencies")
    assert "latency" in unknown.value.hint


def test_runbooks_say_what_remains_manual_in_its_order() -> None:
    """Driver, NUMA balancing, partition mode and who may set it, licence, disk, build: as they happen."""
    text = files_of("cpx")["RUNBOOK.md"].partition("## What remains")[2].partition("## Run it")[0].replace("\\", "")
    words = ("amdgpu driver", "NUMA balancing", "Only root may set it", "accept the licence", "GB free in HF_HOME")
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    nvidia = files_of("nvidia-source")["RUNBOOK.md"]
    assert "NVIDIA driver 570" in nvidia and "tens of GB of docker" in nvidia
    assert "812 GB" not in nvidia and "GB for the quantised checkpoint" in files_of("quantize")["RUNBOOK.md"]


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "workflows.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([\w.-]+)` \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_workflow_has_a_row() -> None:
    assert [name for name, _ in ROWS] == list(NAMES)


def test_each_row_names_files_that_are_written() -> None:
    for name, files in ROWS:
        named = set(re.findall(r"`([^`]+)`", files))
        assert named <= set(files_of(name)), name
        assert named <= set(find_workflow(name).scripts), name


def test_examples_name_workflows() -> None:
    assert set(re.findall(r"^planner workflow ([\w.-]+)", PAGE, re.MULTILINE)) <= set(NAMES)


def test_ways_out_are_options_of_the_workflow() -> None:
    """``-g 1`` of the document: neither a GPU that it does not describe, nor an option that workflow lacks."""
    with pytest.raises(IllegalPlanError) as refused:
        files_of("mad", tensor_parallel_size=1)
    hint = str(refused.value.hint)
    assert "--tensor-parallel-size 4 (" in hint and "w7900" not in hint and "--allow-unvalidated" not in hint
    assert files_of("mad", tensor_parallel_size=4)


def test_a_model_of_a_shorter_context_is_told_the_lengths() -> None:
    with pytest.raises(InputError, match="make requests of 4608 tokens, more than the 4096") as refused:
        files_of("cpx", model="meta-llama/Llama-2-7b-hf")
    assert "shorten them" in str(refused.value.hint)
    assert files_of("cpx", model="meta-llama/Llama-2-7b-hf", input_len=3500, output_len=500)


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x"])
def test_a_workflow_of_partitions_takes_no_whole_gpu(gpu: str) -> None:
    with pytest.raises(IllegalPlanError, match="cpx is not a workflow for"):
        files_of("cpx", gpu=gpu)
    assert "partition.sh" in files_of("cpx", gpu=f"{gpu}-cpx")


def test_points_say_which_tokens_they_count_and_who_is_busy() -> None:
    """The bench's own key counts input and output; with -g 8 no partition of the GPU is left idle."""
    (single,) = [line for line in files_of("cpx")["throughput.sh"].splitlines() if line.startswith("measure ")]
    assert " tokens/s (" in single and " of them output; as if every partition of the GPU were busy" in single
    assert "every partition" not in files_of("mad")["mad.sh"]
