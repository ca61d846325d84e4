"""Advice of the published documents: stated where an answer differs from it, silent where the answer follows."""

import json
import shlex

import pytest
from command_line import run

from planner import Load, Serving

pytestmark = pytest.mark.usefixtures("best_plans")

FP4 = "nvidia/Llama-3.3-70B-Instruct-FP4"
LLAMA = "amd/Llama-3.1-70B-Instruct-FP8-KV"
R063 = (
    f"--gpu mi300x --engine-version 0.6.3 --random-input-len 16000 --random-output-len 1000 -- vllm serve {LLAMA} -tp 8"
)
LONG = f"{R063} --max-model-len 17152 --max-num-batched-tokens 65536 --enable-chunked-prefill False"
OFFLINE = (
    f"--gpu mi300x --engine-version 0.9.1 -- vllm bench throughput --model {LLAMA} --max-model-len 8192 "
    "--max-num-batched-tokens 131072 --input-len 128 --output-len 2048 --kv-cache-dtype fp8"
)
ONE = f"--gpu mi300x --engine-version 0.9.1 -- vllm serve {LLAMA} --max-model-len 8192 --max-num-batched-tokens 65536"


def checked(line: str) -> list[str]:
    advice: list[str] = json.loads(run("check", *shlex.split(f"--format json {line}")).out)["advice"]
    return advice


def recommended(words: str) -> list[str]:
    said = json.loads(run("recommend", *shlex.split(words), "--format", "json").out)["advice"]
    return [line for lines in said.values() for line in lines]


def test_the_difference_is_that_of_two_predictions() -> None:
    """NVIDIA: "Balanced: Set TP to 2 and set BS to 128"; we take 64."""
    (line,) = recommended(f"{FP4} --gpu b200 --goal balanced")
    here, there = (
        Serving(FP4, "b200", tensor_parallel_size=size, max_num_seqs=places, max_model_len=2048,
                max_num_batched_tokens=8192, kv_cache_dtype="fp8", enable_prefix_caching=False)
        .predict(Load.closed_loop(places, 1024, 1024, num_prompts=5 * places))
        for size, places in ((2, 64), (2, 128))
    )  # fmt: skip
    rate = there.figures["output_throughput"] / here.figures["output_throughput"] - 1
    e2el = there.figures["mean_e2el_ms"] / here.figures["mean_e2el_ms"] - 1
    assert "TP 2 with 128" in line and "here max_num_seqs 64" in line
    assert f"{rate:+.0%} tokens/s per GPU, {e2el:+.0%} E2EL" in line


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (f"{LLAMA} --gpu mi300x --goal max-throughput", "65,536 batched tokens"),
        (f"{LLAMA} --gpu mi300x --goal balanced", "servers on the same GPUs, "),
        ("meta-llama/Llama-3.3-70B-Instruct --gpu mi355x --goal max-throughput", "FP8 first, and MXFP4"),
        ("deepseek-ai/DeepSeek-R1 --gpu mi300x", "at most 32,768 tokens of context; here max_model_len 163840"),
    ],
)
def test_a_plan_says_what_it_does_otherwise(words: str, advice: str) -> None:
    assert any(advice in line and "predicted" in line for line in recommended(words))


@pytest.mark.parametrize(
    "words",
    [
        f"{FP4} --gpu b200 --goal min-latency",  # TP 4 or 8 and a small batch
        f"{FP4} --gpu b200 --goal max-throughput",  # TP 1 and the largest batch
        f"{FP4} --gpu b200 --ttft 2000 --tpot 60",  # advice for a goal is none for targets
        "Qwen/Qwen3-32B --gpu b200",
        "meta-llama/Llama-3.3-70B-Instruct --gpu a100",
    ],
)
def test_a_plan_that_follows_says_nothing(words: str) -> None:
    assert recommended(words) == []


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (f"{OFFLINE} -tp 1 --max-num-seqs 300 --num-prompts 1000", "multiple of max-num-seqs prompts; here 1,000"),
        (f"{ONE} --max-num-seqs 1000", "or requests are preempted; here 1,000 and"),
        (f"{ONE} --gpu-memory-utilization 0.97", "at most 0.92 to 0.95 of the memory"),
        (LONG, "max-seq-len-to-capture as long as the context; here 8,192"),
        ("--gpu h200 -- vllm serve nvidia/Llama-3.3-70B-Instruct-FP8 --enable-prefix-caching", "no prefix caching"),
        ("--gpu mi300x -- vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --max-model-len 65536", "here max_model_len 65536"),
    ],
)  # fmt: skip
def test_a_line_is_held_against_each_document(line: str, advice: str) -> None:
    assert any(advice in one and "predicted" in one for one in checked(line)), checked(line)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (f"{OFFLINE} -tp 1 --max-num-seqs 250 --num-prompts 1000", "multiple"),
        (f"{ONE} --max-num-seqs 100", "preempted"),
        (f"{LONG} --max-seq-len-to-capture 17152", "max-seq-len-to-capture"),
    ],
)
def test_a_line_that_follows_is_not_contradicted(line: str, advice: str) -> None:
    assert not any(advice in one for one in checked(line))


def test_preempted_requests_cost_what_fewer_places_gain() -> None:
    """AMD's guide: too many places, and "requests [are] getting preempted": computed twice."""
    (line,) = (one for one in checked(f"{ONE} --max-num-seqs 1000") if "preempted" in one)
    assert "tokens/s per GPU, -" in line and "with the advice: +" in line


def test_long_contexts_of_v0_are_captured() -> None:
    """`arg_utils.py`: 8,192 by default, and beyond it V0 runs without graphs."""
    words = f"{LLAMA} --gpu mi300x --engine-version 0.6.3 --random-input-len 16000 --random-output-len 1000"
    answer = json.loads(run("recommend", *shlex.split(words), "--format", "json").out)
    (plan, *_) = answer["plans"]
    argv = plan["serve_argv"]
    assert argv[argv.index("--max-seq-len-to-capture") + 1] == str(plan["max_model_len"])
    assert not any("max-seq-len-to-capture" in one for lines in answer["advice"].values() for one in lines)
