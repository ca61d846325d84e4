"""Public questions about launch lines, each with its right answer, beside those of ``test_check_line``."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from planner import recommend_plans, size_fleet
from planner.planning.search import servers
from planner.planning.serving import Serving

pytestmark = pytest.mark.usefixtures("best_plans", "short_loops")

#: Coding agents, with all settings fixed but those that the tests are about.
AGENTS: dict[str, Any] = {
    "workload": "coding-agent", "speculation": False, "max_num_seqs": 32, "max_num_batched_tokens": 8192,
    "kv_cache_dtype": "fp8",
}  # fmt: skip


def line_of(plan: dict[str, Any]) -> str:
    return shlex.join(plan["serve_argv"])


@pytest.mark.parametrize("gpu", ["b300", "gb300", "mi355x"])
def test_kimi_k3_starts_on_each_gpu(gpu: str) -> None:
    answer = recommend_plans("moonshotai/Kimi-K3", gpu=gpu, goal="min-latency", speculation=False)
    plan, text = answer.to_dict()["plans"][0], "\n".join(answer.sentences())
    for words in ("--trust-remote-code", "--gpu-memory-utilization 0.95", "--tool-call-parser kimi_k3",
                  "--reasoning-parser kimi_k3"):  # fmt: skip
        assert words in line_of(plan)
    assert "--trust-remote-code" in plan["bench_argv"]  # its client loads the tokenizer, a file of code, by itself
    assert tuple(map(int, plan["engine_version"].split("."))) >= (0, 27, 1)
    assert plan["model"] == "moonshotai/Kimi-K3"  # its own 4 bits, not those of another publisher
    assert plan["env"].get("VLLM_USE_BREAKABLE_CUDAGRAPH") == ("0" if gpu == "mi355x" else None)
    assert ("over 2 nodes" in text.splitlines()[0] or "over 2 nodes" in text.splitlines()[1]) is (gpu == "gb300")
    assert ("--nnodes 2" in " ".join(text.split())) is (gpu == "gb300")
    assert ("this is the command of the first, whose address is HEAD" in " ".join(text.split())) is (gpu == "gb300")


@pytest.mark.parametrize("load", [{}, {"request_rate": 1, "ttft": 3000, "max_num_batched_tokens": 8192}])
def test_no_plan_has_places_without_a_block_for_their_states(load: dict[str, Any]) -> None:
    """vLLM refuses 1,024 of 821 blocks; one H100 cannot have more."""
    asked = {"gpu": "h100", "gpus": 1, "nodes": 1, "max_num_seqs": 1024, "speculation": False}
    found = recommend_plans("Qwen/Qwen3.6-27B-FP8", **asked, **load).to_dict()
    assert not found["plans"] and "exceeds available Mamba cache blocks" in found["rejected"][0]["reason"]


def test_places_beyond_the_load_have_blocks_for_their_states() -> None:
    """Mamba-2.8B on a T4 holds 308 to 561 states: 384 places for 312 requests are too many."""
    plan = recommend_plans("state-spaces/mamba-2.8b-hf", gpu="t4", gpus=1, goal="max-throughput").to_dict()["plans"][0]
    found = Serving(plan["model"], "t4", max_num_seqs=plan["max_num_seqs"], max_model_len=plan["max_model_len"]).memory
    assert plan["max_num_seqs"] <= found.budget.num_blocks.low


def test_a_missing_chat_template_is_a_warning() -> None:
    """vllm-project/recipes, DeepSeek-R1.yaml: tool calling takes the parser and --chat-template."""
    answer = recommend_plans("deepseek-ai/DeepSeek-R1-0528", gpu="h200", goal="min-latency", speculation=False)
    plan, text = answer.to_dict()["plans"][0], " ".join("\n".join(answer.sentences()).split())
    assert "--tool-call-parser deepseek_v3" in line_of(plan) and "--chat-template" not in line_of(plan)
    warning = "tool calls lack their chat template: the recipe adds --chat-template"
    assert any(one.startswith(warning) for one in plan["warnings"])
    assert f"! {warning} examples/tool_chat_template_deepseekr1.jinja" in text


@pytest.mark.parametrize(
    ("model", "words", "context"),
    [
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ["--trust-remote-code"], 262_144),
        ("openai/gpt-oss-120b", ["--tool-call-parser openai", "--reasoning-parser openai_gptoss"], 131_072),
    ],
)
def test_the_line_has_what_users_need(model: str, words: list[str], context: int) -> None:
    plan = recommend_plans(model, gpu="b200", workload="chat", gpus=1).to_dict()["plans"][0]
    assert all(one in line_of(plan) for one in words)
    assert plan["max_model_len"] == context


def test_one_request_at_a_time_has_room_for_more() -> None:
    plan = recommend_plans("deepseek-ai/DeepSeek-R1", gpu="b200", max_concurrency=1).to_dict()["plans"][0]
    assert plan["max_num_seqs"] >= 8


def test_agents_keep_their_prefixes() -> None:
    answer = recommend_plans("Qwen/Qwen3.5-397B-A17B", gpu="b200", request_rate=0.3, **AGENTS)
    plan = answer.to_dict()["plans"][0]
    assert plan["enable_prefix_caching"] and "--no-enable-prefix-caching" not in line_of(plan)


def test_agents_keep_their_prefixes_where_a_version_asks_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's config/model.py: prefix caching of hybrid models is opt-in from 0.15 to 0.27, the default from 0.28 on."""
    asked = {"gpu": "h200", "request_rate": 0.3, **AGENTS}
    plan = recommend_plans("Qwen/Qwen3.5-397B-A17B", engine_version="0.24.0", **asked).to_dict()["plans"][0]
    assert plan["enable_prefix_caching"] and "--enable-prefix-caching" in line_of(plan)
    assert plan["service"]["prefix_cache_share"] > 0.8
    # without a cache the benchmark of 60,000 tokens a prompt, 8,192 in each step, is as long as a replay takes
    monkeypatch.setattr(servers, "MOST_CHUNKS", 2000)
    asked |= {"gpus": 1, "enable_prefix_caching": False}
    without = recommend_plans("nvidia/Llama-3.1-8B-Instruct-FP8", **asked).to_dict()["plans"][0]["workload"]
    chunks_each = without["input_len"] // 8192
    assert plan["workload"]["num_prompts"] * chunks_each > 2000 >= without["num_prompts"] * chunks_each


def test_a_workflow_has_the_line_of_its_document(tmp_path: Path) -> None:
    run("workflow", "deepseek", "--gpu", "mi325x", "-o", str(tmp_path / "deepseek"))
    plan = json.loads((tmp_path / "deepseek" / "plan.json").read_text(encoding="utf-8"))
    assert plan["tensor_parallel_size"] == 8
    assert plan["departures"] == []  # they are those of a search


def test_a_fleet_serves_what_was_asked() -> None:
    answer = size_fleet("Qwen/Qwen2.5-3B-Instruct", gpu="h100", request_rate=5)
    assert next(answer.sentences()).startswith("Serve Qwen/Qwen2.5-3B-Instruct on ")


def test_weights_stored_in_fp32_are_served_in_16_bits() -> None:
    targets = {"ttft": 2000, "tpot": 50, "input_len": 2000, "output_len": 500, "max_num_batched_tokens": 8192}
    one, other = (
        recommend_plans(model, gpu="h200", **targets).to_dict()["plans"][0]
        for model in ("allenai/OLMo-2-1124-7B-Instruct", "meta-llama/Llama-2-7b-hf")
    )
    assert one["num_gpus"] == 1 and one["weight_dtype"] == "bf16"
    assert one["service"]["largest_load"] == pytest.approx(other["service"]["largest_load"], rel=0.3)


def test_one_gpu_has_no_options_of_several() -> None:
    """At TP 1 nothing is summed over GPUs, and one GPU holds all experts; V4's recipe asks for its fp8 cache."""
    asked: dict[str, Any] = {
        "use_case": "chat",
        "request_rate": 5,
        "speculation": False,
        "gpus": 1,
        "max_num_batched_tokens": 8192,
    }
    plan = recommend_plans("openai/gpt-oss-120b", gpu="mi355x", **asked).to_dict()["plans"][0]
    assert not any("QUICK_REDUCE" in name for name in plan["env"]) and "quick reduce" not in str(plan)
    asked["request_rate"] = 2
    plan = recommend_plans("deepseek-ai/DeepSeek-V4-Flash", gpu="b200", **asked).to_dict()["plans"][0]
    assert plan["kv_cache_dtype"] == "fp8"
    assert any("--enable-expert-parallel (one GPU holds all experts)" in one for one in plan["departures"])
    assert not any("without measured scales" in warning for warning in plan["warnings"])
