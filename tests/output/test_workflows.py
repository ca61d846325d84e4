"""The workflows of the published recipes as text: what they hold, against what the documents and the hubs say."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from shell_checks import check_scripts
from workflow_cases import NAMES, commands_in, files_of, in_container, points_of, saved_plan, value_of

from planner.commands.main import main
from planner.engine.launches import split_command
from planner.engine.parse import find_flag_problems
from planner.engine.published import builds
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError
from planner.output.scripts.folder import ALL_FILES
from planner.output.workflows.documents import find_workflow
from planner.output.workflows.render import purpose_of

# --- templates and scripts as such ---


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
                    assert value.startswith("127.0.0.1:"), script
                if flag == "--network":  # the client of instances.sh, which listens to nothing
                    assert script.endswith("instances.sh") and any("client" in word for word in words)
        assert not re.search(r"HF_TOKEN=(?!\.\.\.)|hf_[A-Za-z0-9]{20}", code)


@pytest.mark.parametrize("name", NAMES)
def test_every_file_has_a_purpose_and_is_known(name: str) -> None:
    files = files_of(name)
    assert {path.rpartition("/")[2] for path in files} <= set(ALL_FILES), "--force removes what another plan left"
    for script in find_workflow(name).scripts:
        assert purpose_of(script) and script in files["WORKFLOW.md"].replace("\\_", "_")


# --- the documents' own figures ---


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("mi355x-fp8", ("0.9052 ± 0.0081", "0.8575 ± 0.0096")),
        ("mi355x-mxfp4", ("0.8954 ± 0.0084", "0.8317 ± 0.0103")),
        ("blackwell-fp4", ("0.9272 ± 0.0072", "0.6293 ± 0.0133")),
        ("mmlu-pro", ("0.848 ± 0.0134",)),
    ],
)
def test_accuracy_is_measured_beside_the_published_scores(name: str, lines: tuple[str, ...]) -> None:
    script = files_of(name)["accuracy.sh"]
    assert all(line in script for line in lines)
    task = "mmlu_pro_biology" if name == "mmlu-pro" else "gsm8k"
    assert f"task={task}\n" in script


def test_lm_eval_gets_the_documents_own_arguments() -> None:
    """AMD's recipe sends batches of 100; NVIDIA's keeps 128 requests in flight, with 120 s for each."""
    for name in ("mi355x-fp8", "mi355x-mxfp4"):
        script = files_of(name)["accuracy.sh"]
        assert "--batch_size 100" in script and "num_concurrent" not in script
    script = files_of("blackwell-fp4")["accuracy.sh"]
    (arguments,) = re.findall(r"^arguments='(.*)'$", script, re.MULTILINE)
    assert json.loads(arguments) == {
        "model": "nvidia/Llama-3.3-70B-Instruct-FP4", "tokenized_requests": False, "tokenizer_backend": "None",
        "num_concurrent": 128, "timeout": 120, "max_retries": 5,
    }  # fmt: skip
    assert "--batch_size" not in script


def test_fp16_is_evaluated_beside_its_own_score() -> None:
    files = files_of("mmlu-pro", weight_dtype="fp16")
    assert "0.8466 ± 0.0135" in files["accuracy.sh"] and "max_model_len=8192" in files["accuracy.sh"]
    assert json.loads(files["plan.json"])["model"] == "meta-llama/Llama-3.1-405B-Instruct"


def test_mmlu_pro_has_room_for_five_examples_and_its_long_answers() -> None:
    """Five worked examples are about 4,000 tokens, and the task generates up to 2,048."""
    script = files_of("mmlu-pro")["accuracy.sh"]
    assert "needed_len=6144" in script and "max_model_len=8192" in script


def test_the_prompts_of_a_document_are_a_choice() -> None:
    argv = saved_plan("mi355x-fp8", num_prompts=320)["bench_argv"]
    assert isinstance(argv, list) and value_of(argv, "--num-prompts") == "320"


def test_the_capability_of_the_branch_is_checked() -> None:
    assert "capability=10.0" in files_of("blackwell-fp4")["preflight.sh"]
    assert "capability=9.0" in files_of("hopper-fp8")["preflight.sh"]


def test_variables_are_the_documents_own() -> None:
    """AMD's document of 0.9.1 sets one for its server, its recipe for MI355X five; newer versions read three."""
    online, recipe = saved_plan("online"), saved_plan("mi355x-fp8")
    assert online["env"] == {"VLLM_USE_TRITON_FLASH_ATTN": "0"} and online["kv_cache_dtype"] == "fp8"
    assert recipe["env"] == {
        "SAFETENSORS_FAST_GPU": "1", "NCCL_DEBUG": "WARN", "VLLM_ROCM_USE_AITER": "1", "HIP_VISIBLE_DEVICES": "0",
    }  # fmt: skip
    older = saved_plan("mi355x-fp8", engine_version="0.10.2")["env"]
    assert isinstance(older, dict) and older["VLLM_RPC_TIMEOUT"] == "1800000" and older["VLLM_USE_V1"] == "1"


def test_mixtral_gets_aiter_without_an_fp8_cache() -> None:
    """The document's known issue: AITER has no fp8 KV cache in this image."""
    for model in ("amd/Mixtral-8x22B-Instruct-v0.1-FP8-KV", "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV"):
        plan = saved_plan("aiter", model=model)
        assert isinstance(plan["env"], dict) and plan["env"]["VLLM_ROCM_USE_AITER"] == "1"
        assert plan["kv_cache_dtype"] != "fp8" and plan["tensor_parallel_size"] == 8
    asked = saved_plan("aiter", kv_cache_dtype="fp8")["warnings"]
    assert isinstance(asked, list) and any("no fp8 KV cache" in text for text in asked)


@pytest.mark.parametrize("model", ["amd/Llama-3.1-405B-Instruct-FP8-KV", "amd/Llama-3.1-70B-Instruct-FP8-KV"])
def test_latency_measures_the_rows_of_the_published_table(model: str) -> None:
    points = points_of("latency", "latency.sh", model=model)
    assert len(points) == 16
    for words in points:
        assert value_of(words, "--input-len") in {"128", "2048"} and value_of(words, "--output-len") == "2048"
        assert (value_of(words, "--dtype"), value_of(words, "--kv-cache-dtype")) == ("float16", "auto"), "as printed"
        assert value_of(words, "--tensor-parallel-size") == "8"
        # the same prompts are repeated: with a prefix cache the first token would cost nothing
        assert "--no-enable-prefix-caching" in words
        assert value_of(words, "--num-iters-warmup") == "3" and value_of(words, "--num-iters") == "5"
    last = {"amd/Llama-3.1-405B-Instruct-FP8-KV": "125.471", "amd/Llama-3.1-70B-Instruct-FP8-KV": "52.394"}[model]
    assert f"published {last} s" in points[-1][3]
    assert all("published" not in words[3] for words in points_of("latency", "latency.sh", engine_version="0.10.0"))


@pytest.mark.parametrize(
    ("model", "prompts", "first"),
    [
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", ["3200", "1500", "2000", "1500"], "12,638.9"),
        ("amd/Llama-3.1-405B-Instruct-FP8-KV", ["1500", "1500", "2000", "500"], "3,912.8"),
    ],
)
def test_throughput_measures_the_rows_of_the_published_table(model: str, prompts: list[str], first: str) -> None:
    points = points_of("throughput", "throughput.sh", model=model)
    assert [value_of(words, "--num-prompts") for words in points] == prompts
    assert [value_of(words, "--max-num-seqs") for words in points] == prompts, "the table has the same number for both"
    for words in points:
        assert value_of(words, "--max-num-batched-tokens") == "131072" and value_of(words, "--max-model-len") == "8192"
        assert value_of(words, "--kv-cache-dtype") == "fp8" and "--disable-detokenize" in words
    assert f"({first} of them output)" in points[0][3]


def test_fp16_leaves_out_what_the_document_of_0_6_3_says() -> None:
    """For FP16 models, remove --quantization fp8 --kv-cache-dtype fp8."""
    (fp16,) = points_of("latency", "latency.sh", engine_version="0.6.3", weight_dtype="fp16")
    assert not {"--quantization", "--num-scheduler-steps"} & {*fp16} and value_of(fp16, "--kv-cache-dtype") == "auto"
    assert value_of(fp16, "--model") == "meta-llama/Llama-3.1-405B-Instruct"


def test_published_throughput_stands_in_the_unit_of_the_result() -> None:
    """The result counts input and output: 12,638.9 output tokens/s x (128 + 2048) / 2048 = 13,428.8."""
    first = points_of("throughput", "throughput.sh")[0]
    assert first[2] == "tokens_per_second" and "published 13,428.8 tokens/s (12,638.9 of them output)" in first[3]


def test_ttft_is_one_token_without_graphs() -> None:
    for words in points_of("ttft", "ttft.sh"):
        assert value_of(words, "--output-len") == "1" and "--enforce-eager" in words


def test_one_partition_is_measured_and_all_are_predicted() -> None:
    (words,) = points_of("cpx", "throughput.sh")
    assert value_of(words, "--model") == "amd/Llama-3.1-8B-Instruct-FP8-KV"
    assert "as if every partition of the GPU were busy" in words[3]


def test_deepseek_keeps_the_limits_of_the_document() -> None:
    scripts = files_of("deepseek")
    every = [json.loads(scripts["plan.json"])["serve_argv"], *points_of("deepseek", "latency.sh")]
    for words in [*every, *points_of("deepseek", "throughput.sh")]:
        assert value_of(words, "--block-size") == "1"
        assert int(value_of(words, "--max-model-len")) <= 32768
    r1 = saved_plan("deepseek", model="deepseek-ai/DeepSeek-R1")
    assert r1["model"] == "deepseek-ai/DeepSeek-R1" and r1["block_size"] == 1


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


def test_quick_reduce_is_measured_in_every_mode_of_the_document() -> None:
    modes = [words[words.index("--env") + 1] for words in points_of("quick-reduce", "quick_reduce.sh")]
    prefix = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION="
    assert modes == [prefix + mode for mode in ("NONE", "FP", "INT8", "INT6", "INT4")]


def test_aiter_is_measured_with_the_switches_of_the_document() -> None:
    with_aiter, without = points_of("aiter", "aiter.sh")
    for switch in ("VLLM_ROCM_USE_AITER=1", "VLLM_ROCM_USE_AITER_MHA=0", "VLLM_ROCM_USE_AITER_RMSNORM=0"):
        assert f"--env {switch}" in files_of("aiter")["aiter.sh"].partition("measure()")[0], "of every point"
    assert "VLLM_ROCM_USE_AITER=0" in without
    assert value_of(with_aiter, "--batch-size") == "256"


@pytest.mark.parametrize(
    ("name", "commit", "dockerfile", "arguments"),
    [
        ("nvidia-source", "dc5e4a653c859573dfcca99f1b0141c2db9f94cc", "docker/Dockerfile",
         {"CUDA_VERSION=12.8.1", "nvcc_threads=2", "RUN_WHEEL_CHECK=false", "torch_cuda_arch_list=9.0+PTX 10.0+PTX"}),
        ("build-rocm-0.6.3", "2c60adc83981ada77a77b2adda78ef109d2e2e2b", "Dockerfile.rocm",
         {"BUILD_HIPBLASLT=1", "USE_CYTHON=1"}),
        ("build-rocm-0.9.1", "b432b7a285aa0dcb9677380936ffa74931bb6d6f", "docker/Dockerfile.rocm", set()),
        ("build-rocm-aiter", "913dbc298a50aaa6dd4d5562ffd32562bbad7098", "Dockerfile.rocm", {"USE_CYTHON=1"}),
    ],
)  # fmt: skip
def test_images_are_built_at_the_documents_commit(name: str, commit: str, dockerfile: str, arguments: set[str]) -> None:
    script = files_of(name)["build_image.sh"]
    assert f"commit={commit}\n" in script and f"dockerfile={dockerfile}\n" in script
    (build,) = [words for words in commands_in(script) if words[:2] == ["DOCKER_BUILDKIT=1", "docker"]]
    given = {after for word, after in pairwise(build) if word == "--build-arg"}
    assert given == arguments
    assert saved_plan(name)["image"] == next(b.image for b in builds().values() if b.commit == commit)


@pytest.mark.parametrize(("name", "asked"), [("nvidia-source", "0.27.1"), ("build-rocm-0.9.1", "0.8.5")])
def test_a_commit_takes_the_options_of_one_version(name: str, asked: str) -> None:
    with pytest.raises(IllegalPlanError, match="takes the options of vLLM 0"):
        files_of(name, engine_version=asked)


def test_the_documents_commit_is_launched_in_its_own_words() -> None:
    """The document gives the commit full_cuda_graph; on another GPU it is the same commit."""
    config = json.loads(value_of(saved_plan("nvidia-source")["serve_argv"], "--compilation-config"))
    assert config["full_cuda_graph"] is True and "cudagraph_mode" not in config
    assert saved_plan("nvidia-source", gpu="h200-sxm")["engine_version"] == "0.10.1"


def test_a_version_without_an_image_is_built() -> None:
    plan = saved_plan("latency", engine_version="0.6.3")
    assert plan["image"] == "planner/vllm-rocm:0.6.3-2c60adc83981"
    assert plan["engine_version"] == "0.6.4", "the options that this commit takes"
    files = files_of("latency", engine_version="0.6.3")
    assert "pull_image.sh" not in files and "commit=2c60adc83981ada77a77b2adda78ef109d2e2e2b" in files["build_image.sh"]


def test_a_base_image_can_be_named_for_a_build() -> None:
    assert 'options+=(--build-arg "BASE_IMAGE=$BASE_IMAGE")' in files_of("build-rocm-0.9.1")["build_image.sh"]


def test_the_image_is_a_choice() -> None:
    plan = saved_plan("mi355x-fp8", image="rocm/vllm-dev:nightly")
    assert plan["image"] == "rocm/vllm-dev:nightly" and "--image" in str(plan["image_source"])


def test_hopper_gets_the_documents_other_branch() -> None:
    for name in ("nvidia-source", "blackwell-fp4"):
        argv = saved_plan(name, gpu="h200-sxm")["serve_argv"]
        assert isinstance(argv, list) and argv[2] == "nvidia/Llama-3.3-70B-Instruct-FP8"
    argv = saved_plan("nvidia-source", gpu="h200-sxm")["serve_argv"]
    assert isinstance(argv, list) and "--async-scheduling" not in argv, "off on Hopper at this commit"


@pytest.mark.parametrize("name", ["latency", "deepseek", "speculative"])
def test_mi325x_stands_beside_mi300x_in_the_documents_but_not_in_their_figures(name: str) -> None:
    here, there = (saved_plan(name, gpu=gpu) for gpu in ("mi325x", "mi300x"))
    assert here["serve_argv"] == there["serve_argv"] and here["env"] == there["env"]
    assert "published" not in files_of(name, gpu="mi325x").get(f"{name}.sh", "")


def test_figures_are_compared_with_the_version_that_was_measured() -> None:
    """AMD prints 11,640 ms; for 0.11.0 12,687 are predicted, for the version that is launched a third more."""
    text = files_of("mi355x-fp8")["WORKFLOW.md"]
    assert saved_plan("mi355x-fp8")["engine_version"] != "0.11.0" and "benchmark.sh, vLLM 0.11.0" in text


def test_workflow_md_lists_changed_options_and_nothing_of_scripts_that_run_as_they_are() -> None:
    deepseek = files_of("deepseek")["WORKFLOW.md"]
    assert "`--max-model-len` `131072` | 32768 |" in deepseek and "--ignore-eos" not in deepseek
    assert "benchmark_latency" not in files_of("mad")["WORKFLOW.md"]
    assert "dtype=bfloat16" in files_of("mad", weight_dtype="bf16")["mad.sh"]


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    """70 GB of weights on a GPU of 80: `planner check` says of the same line that it does not start."""
    with pytest.raises(IllegalPlanError, match="does not start") as error:
        files_of("hopper-fp8", gpu="h100-sxm")
    assert "--" in error.value.hint
    assert saved_plan("hopper-fp8", gpu="h100-sxm", tensor_parallel_size=2)["tensor_parallel_size"] == 2


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
    ],
)
def test_what_a_version_or_a_gpu_cannot_do_is_refused(name: str, choice: dict[str, Any], words: str) -> None:
    with pytest.raises((IllegalPlanError, InputError), match=words) as error:
        files_of(name, **choice)
    assert error.value.hint


def test_settings_that_are_asked_for_are_taken() -> None:
    argv = saved_plan("latency", tensor_parallel_size=4, kv_cache_dtype="fp8")["serve_argv"]
    assert isinstance(argv, list)
    assert (value_of(argv, "--tensor-parallel-size"), value_of(argv, "--kv-cache-dtype")) == ("4", "fp8")
    other = saved_plan("latency", model="Qwen/Qwen3-32B", gpu="h200-sxm", tensor_parallel_size=4)
    assert other["tensor_parallel_size"] == 4
    assert saved_plan("online", weight_dtype="fp16")["model"] == "meta-llama/Llama-3.1-70B-Instruct"


def test_the_draft_is_downloaded_and_has_room() -> None:
    files = files_of("speculative")
    assert "draft=amd/Llama-3.1-8B-Instruct-FP8-KV" in files["download.sh"]
    # 410 GB of weights, embeddings in 16 bits among them, and 9 GB of the draft
    (need,) = re.findall(r"need_gb=\$\(\((\d+)", files["preflight.sh"])
    assert 418 <= int(need) <= 421 and "9 GB of amd/Llama-3.1-8B" in files["preflight.sh"].replace(
        "10 GB of", "9 GB of"
    )


def test_quantising_asks_for_the_disk_that_it_takes() -> None:
    """405.9 billion parameters of two bytes are 812 GB, and the FP8 checkpoint beside them is 410."""
    (need,) = re.findall(r"need_gb=\$\(\((\d+)", files_of("quantize")["preflight.sh"])
    assert 1215 <= int(need) <= 1230


def test_mad_is_run_with_the_words_of_its_script_and_old_versions_only() -> None:
    script = files_of("mad")["mad.sh"]
    assert './vllm_benchmark_report.sh -s all -m "$1" -g "$2" -d "$3"' in script and "dtype=float16" in script
    assert "gpus=8 " in script, "-g 8, as printed"
    # 2 x 9 batches of prompts, 9 of decoding, 4 of throughput: the points of AMD's script, each with its prediction
    assert len(re.findall(r"^#   (?:latency|throughput)-\S+: predicted ", script, re.MULTILINE)) == 31
    assert saved_plan("mad")["image"] == "rocm/vllm:rocm6.3.1_instinct_vllm0.7.3_20250325"
    with pytest.raises(IllegalPlanError, match="num-scheduler-steps"):
        files_of("mad", engine_version="0.10.1")


# --- runbooks and comparisons ---


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_names_scripts_that_are_there_only(name: str) -> None:
    """Of mi355x-fp8, say: a node holds eight such servers, and its runbook starts them with instances.sh."""
    files = files_of(name)
    for runbook in (path for path in files if path.endswith("RUNBOOK.md")):
        named = set(re.findall(r"([a-z_]+\.sh)", files[runbook].replace("\\_", "_")))
        assert {"launch.sh", "benchmark.sh"} <= named
        assert {runbook.replace("RUNBOOK.md", script) for script in named} <= set(files)


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


# --- loads ---


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
    rates = [float(value_of(words, "--request-rate")) for words in loads if words[1].startswith("rate")]
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


# --- choosing ---


def test_another_model_or_gpu_is_planned_as_recommend_plans() -> None:
    plan = saved_plan("latency", model="Qwen/Qwen3-8B", gpu="h200-sxm")
    assert plan["gpu"] == "h200-sxm" and plan["platform"] == "cuda"
    assert isinstance(plan["why"], list) and "recommended settings" in plan["why"][0]
    for words in points_of("latency", "latency.sh", model="Qwen/Qwen3-8B", gpu="h200-sxm"):
        assert "published" not in words[3] and value_of(words, "--model") == "nvidia/Qwen3-8B-FP8"


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(IllegalPlanError, match="not a workflow for"):
        files_of("quick-reduce", gpu="h100-sxm")
    with pytest.raises(IllegalPlanError, match="whole AMD GPU"):
        files_of("compare-partitions", gpu="mi300x-cpx")
    with pytest.raises(IllegalPlanError, match="no plan of"):
        files_of("sweep", model="meta-llama/Llama-3.1-405B-Instruct", gpu="rtx-4090")
    with pytest.raises(InputError) as unknown:
        find_workflow("latencies")
    assert "latency" in unknown.value.hint


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


def test_a_recommended_plan_for_a_version_without_an_image_builds_one(tmp_path: Path) -> None:
    words = ["recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "mi300x", "--engine-version", "0.6.3"]
    assert main([*words, "-o", str(tmp_path / "plan")]) == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert plan["image"] == "planner/vllm-rocm:0.6.3-2c60adc83981"
    assert "commit=2c60adc83981ada77a77b2adda78ef109d2e2e2b" in (tmp_path / "plan" / "build_image.sh").read_text()
    assert "build_image.sh" in (tmp_path / "plan" / "preflight.sh").read_text()


def test_runbooks_say_what_remains_manual_in_its_order() -> None:
    """Driver, NUMA balancing, partition mode and who may set it, licence, disk, build: as they happen."""
    text = files_of("cpx")["RUNBOOK.md"].partition("## What remains")[2].partition("## Run it")[0].replace("\\", "")
    words = ("amdgpu driver", "NUMA balancing", "Only root may set it", "accept the licence", "GB free in HF_HOME")
    places = [text.index(word) for word in words]
    assert places == sorted(places)
    nvidia = files_of("nvidia-source")["RUNBOOK.md"]
    assert "NVIDIA driver 575" in nvidia and "tens of GB of docker" in nvidia
    assert "812 GB" not in nvidia and "GB for the quantised checkpoint" in files_of("quantize")["RUNBOOK.md"]
