"""What plans say of the recipes of vllm-project/recipes at 8959cf64 (2026-08-21): all of it is planned, or said."""

import csv
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest

from planner import Serving, compare_gpus, engine, recommend_plans, size_fleet
from planner.engine.published import stated_words
from planner.errors import IllegalPlanError
from planner.hardware.profiles import load_profile
from planner.model.catalog import find_entry
from planner.planning.predict import Estimate
from planner.planning.search.comparison import Departures, recipe_of
from planner.planning.search.space import Candidate, Objective, Ranking, Space
from planner.workload import Load

pytestmark = pytest.mark.usefixtures("best_plans", "short_loops")

TESTS = Path(__file__).parent.parent
LINES, RECIPES = (
    list(csv.DictReader((TESTS / "engine" / name).read_text(encoding="utf-8").splitlines()))
    for name in ("published_lines.csv", "published_recipes.csv")
)
GPUS = ("h100", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi350x", "mi355x", "rtx_5090")


#: Options that recipes leave to choice: a TP size by memory, and drafts with their backends.
CHOSEN = {"--tensor-parallel-size", "--speculative-config", "--no-enable-chunked-prefill", "--moe-backend"}
#: Options that one table has in JSON, or as a switch, and the other in words with dots.
SPELLED = {
    "--attention-config", "--compilation-config", "--default-chat-template-kwargs", "--hf-overrides", "--kernel-config",
    "--limit-mm-per-prompt", "--max-model-len auto", "--media-io-kwargs", "--reasoning-config", "--speculative-config",
}  # fmt: skip


def options_of(argv: Sequence[str]) -> Mapping[str, str]:
    return engine.read_line(argv, engine.parse_version("0.32.0")).options


def test_the_packaged_lines_are_the_published_ones() -> None:
    for row in LINES:
        words, env = stated_words((row["model"],), load_profile(row["gpu"]))
        published = options_of(["vllm", "serve", "m", *shlex.split(row["options"])])
        packaged = options_of(["vllm", "serve", "m", *words])
        assert dict(word.split("=", 1) for word in row["env"].split()).items() <= env.items(), row
        assert {*published} - {*packaged} <= CHOSEN | SPELLED, row
        differ = {name for name in {*published} & {*packaged} if published[name] != packaged[name]}
        assert differ <= SPELLED | {"--tensor-parallel-size"}, row


@cache
def known_checkpoints() -> list[tuple[str, str]]:
    """Each checkpoint of a recipe that the catalog knows, on one of the verified GPUs that have the same words."""
    pairs = {}
    for row in RECIPES:
        for gpu in row["verified"].split() if find_entry(row["model"]) else ():
            profile = load_profile(gpu.replace("_", "-")) if gpu in GPUS else None
            for entry in map(find_entry, (row["model"], *row["others"].split()) if profile else ()):
                words = str(stated_words((entry.id,), profile)) if entry and profile else ""
                emulated = entry and profile and entry.weight_dtype in profile.emulated
                if words not in ("", "([], {})") and not emulated:
                    pairs[entry.id, profile.platform, words] = (entry.id, profile.id)
    return list(pairs.values())


@cache
def said_of(model: str, gpu: str) -> tuple[list[str], dict[str, str], list[str]]:
    """Words and variables of a plan on as many GPUs of a node as are legal, and its departures."""
    for size in (8, 4, 2, 1):
        serving = Serving(model, gpu, tensor_parallel_size=size, engine_version="0.32.0")
        with suppress(IllegalPlanError):
            candidate = Candidate(serving.resolved, serving.deployment, estimate=cast(Estimate, None))
            break
    recipe = recipe_of(candidate.deployment)
    if vision := recipe.settings.get("mm_encoder_tp_mode"):  # settings that a search takes from the recipe
        changed = serving.changed(mm_encoder_tp_mode=vision)
        candidate = replace(candidate, deployment=changed.deployment)
    argv = engine.serve_argv(candidate.config, model, extra=recipe.flags)
    ranking = Ranking(serving.profile, serving.version, (candidate,), ())
    space, objective = Space((serving,)), Objective("balanced", Load.closed_loop(8, 1024, 128))
    return argv, recipe.env, list(Departures(space, objective, ranking, candidate).of())


def covers(planned: str, stated: str) -> bool:
    def inside(one: Any, other: Any) -> bool:
        if isinstance(other, dict):
            return all(key in one and inside(one[key], value) for key, value in other.items())
        return bool(one == other)

    return stated.startswith("{") and planned.startswith("{") and inside(json.loads(planned), json.loads(stated))


def assert_said(departures: Sequence[str], answer: Any) -> None:
    """In one line, each reason once: ``adds --data-parallel-size 2 and --enable-expert-parallel (...)``."""
    text = " ".join("\n".join(answer.sentences()).split()).partition("differs from the model's vLLM recipe: ")[2]
    for words, _, reason in (one.partition(" (") for one in departures):
        words = words.removeprefix("adds ").removeprefix("without ")
        assert words in text and f" ({reason}" in text[text.index(words) :], words
    assert departures and sum(text.count(f"{word} --") for word in ("adds", "without")) == len(
        {(one.split()[0], one.partition(" (")[2]) for one in departures if one.startswith(("adds --", "without --"))}
    )


@cache
def chat_on(gpu: str, model: str) -> Any:
    """The answer for a chat, with a token budget of the load's own: no recipe's word depends on the search for it."""
    fixed: dict[str, Any] = {"engine_version": "0.32.0", "max_num_batched_tokens": 4096}
    return recommend_plans(model, gpu=gpu, use_case="chat", request_rate=2, **fixed)


def test_every_word_of_a_recipe_is_on_the_plan_or_said() -> None:
    known = known_checkpoints()
    assert len(known) > 200
    for model, gpu in known:
        argv, env, said = said_of(model, gpu)
        words, variables = stated_words((model,), load_profile(gpu))
        named = {word for one in said for word in one.partition(" (")[0].replace("=", " ").split()}
        assert {name for name, value in variables.items() if env.get(name) != value} <= named, model
        planned, stated = options_of(argv), options_of(["vllm", "serve", model, *words])
        for name, value in stated.items():
            same = planned.get(name) == value or covers(planned.get(name, ""), value)
            of_vllm = name not in planned and (value == "auto" or name == "--enable-chunked-prefill")
            assert same or of_vllm or name in named, (model, gpu, name)


def test_no_reason_is_missing() -> None:
    """``untimed`` stands where no table, no search and no version has another reason."""
    untimed = {
        one.split()[1].partition("=")[0]
        for model, gpu in known_checkpoints()
        for one in said_of(model, gpu)[2]
        if "(untimed)" in one
    }
    assert untimed == set()


@pytest.mark.parametrize(
    ("model", "gpu", "said"),
    [
        (
            "deepseek-ai/DeepSeek-V3.1", "h200",  # no fp8 cache, at the same cost
            ["without --chat-template examples/tool_chat_template_deepseekv... "
             "(a file of vLLM's repository, for tool calls)",
             "adds --speculative-config {\"method\":\"mtp\",\"num_speculative_toke... "
             "(the recipe's drafts or the model's own, chosen by the search)"],
        ),
        (
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "h100",
            ["without VLLM_USE_FLASHINFER_MOE_FP8=1 (gone in 0.24.0)",
             "without VLLM_FLASHINFER_MOE_BACKEND=throughput (gone in 0.24.0)"],
        ),
        (
            "moonshotai/Kimi-K3", "b300",  # its own checkpoint, laid out as in the recipe
            ["adds --block-size 32 (vLLM's own choice, written out)"],
        ),
        (
            "MiniMaxAI/MiniMax-M2.5", "h200",
            ["--tensor-parallel-size 2, not 4 (the recipe's: at least 4 GPUs, against 2 GPUs)",
             "--max-num-seqs 128, not 512 (places for the load)"],
        ),
        (
            "deepseek-ai/DeepSeek-V4-Pro", "b200",  # a recipe without a TP size means all GPUs
            ['without --attention-config {"use_fp4_indexer_cache":true} (gone in 0.30.0)'],
        ),
    ],
)  # fmt: skip
def test_a_plan_says_where_it_departs_from_the_recipe(model: str, gpu: str, said: list[str]) -> None:
    answer = chat_on(gpu, model)
    (plan, *_) = answer.to_dict()["plans"]
    assert {*said} <= {*plan["departures"]}
    assert not any("adds --kv-cache-dtype" in one for one in plan["departures"])
    assert_said(plan["departures"], answer)


def test_drafts_as_in_the_recipe_that_a_plan_lacks_have_their_result() -> None:
    """The recipe of Nemotron 3 Ultra drafts by the model's own MTP modules; they were said to be searched alone."""
    answer = chat_on("b200", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16")
    (drafts,) = (one for one in answer.to_dict()["plans"][0]["departures"] if "--speculative-config" in one)
    assert re.search(r"\(MTP 1: (.* )?2 GPUs( as well)?\)$", drafts)


def test_a_variable_of_a_later_release_than_the_plans_is_left_out_and_said_so() -> None:
    """The recipe of DeepSeek-R1 demands 0.12.0; 0.11.0 stops with its variable."""
    asked = {"gpu": "h200", "engine_version": "0.11.0", "max_concurrency": 64, "speculation": False}
    (plan, *_) = recommend_plans("deepseek-ai/DeepSeek-R1", **asked).to_dict()["plans"]
    assert "VLLM_USE_FLASHINFER_MOE_FP8" not in plan["env"]
    assert "without VLLM_USE_FLASHINFER_MOE_FP8=1 (the recipe is for vLLM 0.12.0 and later)" in plan["departures"]


def test_kimi_k3_starts_with_an_fp8_cache() -> None:
    """Its layers assert it: Kimi-K3 fp8 KV cache requires an fp8 prefill query."""
    answer = recommend_plans("moonshotai/Kimi-K3", gpu="b300", kv_cache_dtype="fp8", engine_version="0.32.0")
    planned = options_of(answer.to_dict()["plans"][0]["serve_argv"])
    assert json.loads(planned["--attention-config"])["use_prefill_query_quantization"]
    assert planned["--load-format"] == "fastsafetensors"


@pytest.mark.parametrize(("gpu", "starts"), [("h200", False), ("b300", True), ("mi355x", True)])
def test_kimi_k3_takes_an_fp8_cache_where_its_prefill_does(gpu: str, starts: bool) -> None:
    args = {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8", "engine_version": "0.32.0"}
    if starts:
        assert Serving("moonshotai/Kimi-K3", gpu, **args).deployment.config.kv_cache_dtype == "fp8"
    else:
        with pytest.raises(IllegalPlanError, match="no kernel for moonshotai/Kimi-K3 with --kv-cache-dtype fp8"):
            _ = Serving("moonshotai/Kimi-K3", gpu, **args).deployment


@pytest.mark.parametrize(("model", "gpu"), [("moonshotai/Kimi-K3", "b300"), ("MiniMaxAI/MiniMax-M2.5", "h200")])
def test_the_cache_of_a_recipe_is_searched_without_targets(model: str, gpu: str) -> None:
    (plan, *_) = recommend_plans(model, gpu=gpu, engine_version="0.32.0").to_dict()["plans"]
    assert "--kv-cache-dtype fp8" in " ".join(stated_words((model,), load_profile(gpu))[0])
    assert plan["kv_cache_dtype"] == "fp8" and not any("--kv-cache-dtype" in one for one in plan["departures"])


def test_a_layout_of_a_recipe_that_vllm_refuses_is_called_so() -> None:
    """Six GPUs run DP 6; the recipe without a TP size means TP 6, and a node has four GPUs: "not searched"."""
    answer = recommend_plans("deepseek-ai/DeepSeek-V4-Pro", gpu="gb200", gpus=3, engine_version="0.32.0")
    (said,) = (one for one in answer.to_dict()["plans"][0]["departures"] if "--data-parallel-size" in one)
    assert said == "adds --data-parallel-size 6 (the recipe's: --tensor-parallel-size 6: a node of gb200 has 4 GPUs)"


def test_at_tp_1_sums_over_gpus_are_left_out_aloud() -> None:
    answer = recommend_plans("openai/gpt-oss-120b", gpu="mi355x", gpus=1, engine_version="0.32.0")
    plan = answer.to_dict()["plans"][0]
    assert "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION" not in plan["env"]
    assert "without VLLM_ROCM_QUICK_REDUCE_QUANTIZATION=INT4 (TP 1 sums nothing over GPUs)" in plan["departures"]


def test_the_utilisation_of_a_recipe_is_planned() -> None:
    """Kimi-K3 on H200: 0.97 in the recipe; plans had 0.95 and called it vLLM's default, which is 0.92."""
    for model, gpu in known_checkpoints():
        profile, entry = load_profile(gpu), find_entry(model)
        assert entry
        advised = engine.recipe_for(entry.model(), profile, engine.parse_version("0.32.0")).settings
        stated = options_of(["vllm", "serve", model, *stated_words((model,), profile)[0]])
        share, published = advised.get("gpu_memory_utilization"), stated.get("--gpu-memory-utilization")
        assert not (share and published) or share == float(published), (model, gpu)


def test_a_model_without_a_recipe_departs_from_nothing() -> None:
    answer = recommend_plans("Qwen/Qwen2.5-7B-Instruct", gpu="h100", max_concurrency=8)
    assert answer.to_dict()["plans"][0]["departures"] == []


def test_a_fleet_departs_as_the_plan_that_it_rents() -> None:
    model = "MiniMaxAI/MiniMax-M2.5"
    (plan, *_) = chat_on("h200", model).to_dict()["plans"]
    asked = {"use_case": "chat", "request_rate": 2, "engine_version": "0.32.0", "max_num_batched_tokens": 4096}
    answer = size_fleet(model, "h200", **asked)
    (pool,) = answer.to_dict()["fleets"][0]["pools"]
    assert pool["departures"] == plan["departures"] != []
    assert_said(plan["departures"], answer)


def test_a_comparison_says_what_its_engines_lack() -> None:
    """Recipes of MiniMax-M2.5: TP 4 on H200 with fp8 KV cache, TP 2 on MI355X. Two GPUs of each hold it."""
    answer = compare_gpus(
        "MiniMaxAI/MiniMax-M2.5", gpu=["h200", "mi355x"], max_concurrency=[4, 32], engine_version="0.32.0"
    )
    by_gpu = {(row["gpu"], row["max_concurrency"]): row["departures"] for row in answer.to_dict()["rows"]}
    assert {
        "--tensor-parallel-size 2, not 4 (the recipe's: not searched)",
        "--max-num-batched-tokens 8192, not 32768 (vLLM's default)",
        "--kv-cache-dtype auto, not fp8 (the recipe's: not searched)",
    } <= {*by_gpu["h200-sxm", 4]}
    (layout,) = by_gpu["mi355x", 4]
    assert layout.startswith("--tensor-parallel-size 1, not 2 (the recipe's: mean E2EL ") and not by_gpu["mi355x", 32]
    text = " ".join(str(answer).split())
    assert "vLLM recipe" not in text  # mi355x is fastest at 32 requests, as its recipe has it
    explained = compare_gpus(
        "MiniMaxAI/MiniMax-M2.5", gpu="h200", max_concurrency=8, engine_version="0.32.0", explain=True
    )
    assert "h200-sxm differs from the model's vLLM recipe: --tensor-parallel-size 2, not 4" in " ".join(
        str(explained).split()
    )
    assert "departures" not in explained.to_rows()[0]
