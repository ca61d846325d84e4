"""The options and variables that users need, against every recipe of vllm-project/recipes at 8959cf64 (2026-08-21).

``published_recipes.csv`` has the facts of its recipes for text: remote code, parsers, tokenizer and variables on AMD.
``published_lines.csv`` has the whole lines of its 148 recipes for vLLM, drafts included, on one verified GPU of each
vendor; the other 25 are for vLLM-Omni.
"""

import csv
import json
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner import check_command
from planner.engine.flags import flag_status, value_status
from planner.engine.parse import read_line
from planner.engine.published import default_version, recipe_for
from planner.engine.version import parse_version
from planner.hardware.profiles import load_profile
from planner.model.catalog import find_entry
from planner.model.resolve import resolve_model

HERE = Path(__file__).parent
RECIPES, LINES = (
    list(csv.DictReader((HERE / name).read_text(encoding="utf-8").splitlines()))
    for name in ("published_recipes.csv", "published_lines.csv")
)

#: What vLLM refuses or no longer reads in these lines: model -> words.
REFUSED = {
    "XiaomiMiMo/MiMo-V2.5-Pro": {"--max-model-len auto"},  # one word in the recipe
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": {"--tool-call-parser-plugin", "--tool-call-parser nemotron_json"},
}

#: Options of a recipe that no plan has, each with its reason.
EXCEPT = {
    "--tokenizer-mode auto": "vLLM's default",
    "--generation-config auto": "vLLM's default",
    "--tool-call-parser nemotron_json": "a plugin, which is a file of the checkpoint",
    "--reasoning-parser nano_v3": "a plugin; vLLM's own nemotron_v3 takes its place",
}

#: What plans do not have of the whole lines, beside settings, which are planned, and what plans say themselves.
NOT_PLANNED = {
    "--speculative-config": "drafts of second models: check times them, and no search adds them",
    "--hf-overrides": "for the drafts of Step-3.5",
    "--served-model-name": "clients name the checkpoint",
    "--tokenizer-mode": "auto is vLLM's default",
    "--load-format": "auto is vLLM's default",
    "--generation-config": "auto is vLLM's default",
    "--reasoning-parser-plugin": "vLLM's own nemotron_v3 takes its place",
    "--enable-auto-tool-choice": "its parser is a plugin",
    "--kernel-config.enable_flashinfer_autotune": "--no-enable-flashinfer-autotune says the same",
    "--compilation-config.pass_config.fuse_rope_kvcache": "in JSON",
    "--compilation-config.use_inductor_graph_partition": "in JSON",
    "--compilation-config": "of Ling-3.0 vLLM's default, of Voxtral for speech",
    "--moe-backend": "of Laguna, whose plans have no such drafts",
    "--enable-flashinfer-autotune": "vLLM's default",
    "--runner": "no plan is for embeddings",
    "VLLM_DEEP_GEMM_WARMUP": "NVIDIA's kernels",
    "VLLM_USE_DEEP_GEMM": "NVIDIA's kernels",
    "PYTHONNOUSERSITE": "of the recipe's own machine",
    **dict.fromkeys(
        ("--mm-processor-cache-gb", "--mm-processor-cache-type", "--video-pruning-rate", "--media-io-kwargs",
         "VLLM_VIDEO_LOADER_BACKEND", "VLLM_DISABLE_COMPILE_CACHE"), "for images, video and speech"),
    **dict.fromkeys(
        ("--mamba-backend", "--mamba-cache-mode", "--mamba-ssm-cache-dtype", "--mamba-cache-philox-rounds",
         "--enable-mamba-cache-stochastic-rounding"), "of Nemotron-3.5-Lightning, in few bits"),
}  # fmt: skip

#: Settings that a suggestion has as the line has them, or names among its changes.
KEPT = {
    "max_model_len", "speculative_config", "mm_encoder_tp_mode", "language_model_only", "limit_mm_per_prompt",
    "enable_prefix_caching",
}  # fmt: skip

ANY = resolve_model("meta-llama/Llama-3.1-8B", network=False).model
OURS = ("h100", "h200", "b200", "b300", "gb200", "gb300", "mi300x", "mi325x", "mi350x", "mi355x", "rtx_5090")


@pytest.mark.parametrize("row", RECIPES, ids=[row["model"] for row in RECIPES])
def test_a_plan_has_the_options_and_variables_of_the_recipe(row: dict[str, str]) -> None:
    verified = [gpu for gpu in row["verified"].split() if gpu in OURS]
    for gpu in verified or ["h200", "mi300x"]:
        profile = load_profile(gpu.replace("_", "-"))
        version = default_version(profile)
        recipe = recipe_for(replace(ANY, id=row["model"]), profile, version)
        words = {f"--{name}" if value is True else f"--{name} {value}" for name, value in recipe.flags.items()}
        asked = {word for word in row["options"].split("; ") if word and word not in EXCEPT}
        if "--tool-call-parser nemotron_json" in row["options"]:
            asked -= {"--enable-auto-tool-choice"}
        assert asked <= words, f"{gpu}: {asked - words} missing"
        assert all(flag_status(version, word.split()[0]) for word in words)
        if profile.platform == "rocm":
            env = {*(f"{name}={value}" for name, value in recipe.env.items()), *recipe.left_out}
            assert set(filter(None, row["rocm_env"].split("; "))) <= env, gpu


def test_checkpoints_of_other_publishers_get_the_parsers_of_the_model() -> None:
    for row in RECIPES:
        for model in row["others"].split():
            recipe = recipe_for(replace(ANY, id=model), load_profile("b200"), parse_version("0.32.0"))
            parsers = {word for word in row["options"].split("; ") if "-parser" in word and word not in EXCEPT}
            base = model.endswith(("-Base", "-Base-BF16")) or "Phi-4" in model
            assert base or {f"--{name} {value}" for name, value in recipe.flags.items()} >= parsers, model


def test_the_catalog_has_the_8_and_4_bit_floats_of_the_recipes_of_its_models() -> None:
    others = {one for row in RECIPES if find_entry(row["model"]) for one in row["others"].split()}
    floats = {one for one in others if "FP8" in one or "FP4" in one}
    assert {one for one in floats if not find_entry(one)} == {
        "RedHatAI/Hy3-NVFP4-FP8",  # which modules take which of the two formats is not published
        "mistralai/Ministral-3-14B-Instruct-2512-FP8",  # Ministral-3-14B-Instruct-2512 itself is in FP8
    }


def test_a_version_without_the_parser_is_launched_without_it() -> None:
    model = resolve_model("moonshotai/Kimi-K3", network=False).model
    older = recipe_for(model, load_profile("b300"), parse_version("0.26.0"))
    assert older.flags == {"trust-remote-code": True}  # the recipe demands 0.27.1
    assert older.left_out == ("--tool-call-parser kimi_k3", "--reasoning-parser kimi_k3")
    assert value_status(parse_version("0.27.1"), "reasoning_parser", "kimi_k3")


def test_every_published_line_is_read_word_by_word() -> None:
    for row in LINES:
        profile = load_profile(row["gpu"])
        env = dict(word.split("=", 1) for word in row["env"].split())
        words = shlex.split(row["options"])
        line = read_line(
            ["vllm", "serve", row["model"], *words], default_version(profile), env=env, platform=profile.platform
        )
        assert {problem.word for problem in line.problems if problem.fatal} == REFUSED.get(row["model"], set()), row
        options = {
            word.partition("=")[0].partition(".")[0].replace("_", "-") for word in words if word.startswith("--")
        }
        gone = {"--tool-call-parser-plugin", "--max-model-len auto"}
        assert options - gone <= {*line.options}, row
        assert line.env == env


def test_a_plan_has_the_published_line_or_says_what_it_lacks() -> None:
    for row in LINES:
        profile = load_profile(row["gpu"])
        version = default_version(profile)
        env = dict(word.split("=", 1) for word in row["env"].split())
        words = ["vllm", "serve", row["model"], *shlex.split(row["options"])]
        line = read_line(words, version, env=env, platform=profile.platform)
        recipe = recipe_for(replace(ANY, id=row["model"]), profile, version)
        planned = {f"--{name}" if value is not False else f"--no-{name}" for name, value in recipe.flags.items()}
        refused = {problem.word.split()[0] for problem in line.problems}
        missing = {*line.others} - planned | {name for name, value in env.items() if recipe.env.get(name) != value}
        assert line.args.mm_encoder_tp_mode in (None, recipe.settings.get("mm_encoder_tp_mode"))
        assert {one for one in missing - refused - {*NOT_PLANNED} if one not in " ".join(recipe.asides)} == set(), row


def known_lines(every: int) -> list[dict[str, str]]:
    """Each so many lines of models that the catalog knows."""
    known = [row for row in LINES if find_entry(row["model"])]
    assert len(known) > 100
    return known[::every]


@pytest.mark.parametrize("row", known_lines(10), ids=lambda row: f"{row['model']} {row['gpu']}")
def test_check_keeps_the_published_line(row: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In what it suggests: every option that is no change, the variables, and no secret."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("planner.planning.defaults.PROMPTS_PER_SLOT", 1)  # the figures do not matter
    line = f"{row['env']} vllm serve {row['model']} {row['options']} --api-key sk-1234567890abcdef"
    answer = check_command(line, row["gpu"]).to_dict()
    assert "1234567890abcdef" not in json.dumps(answer["better"])
    env = dict(word.split("=", 1) for word in row["env"].split())
    version = parse_version(answer["engine_version"])
    given = read_line(["vllm", "serve", row["model"], *shlex.split(row["options"])], version, env=env)
    refused = {problem.word.split()[0] for problem in given.problems}
    if "--tool-call-parser" in refused:  # the switch does not start without it
        refused.add("--enable-auto-tool-choice")

    def lost(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
        return {name for name, value in before.items() if value is not None and after.get(name) != value} - refused

    for plan in answer["better"]:
        suggested = read_line(shlex.split(plan["command"]), version, env=plan["env"])
        assert not suggested.refused and "--api-key" in suggested.others
        sums = set() if suggested.args.tensor_parallel_size > 1 else {"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"}
        assert not lost(given.others, suggested.others) and not lost(env, plan["env"]) - sums
        before, after = ({name: getattr(line.args, name) for name in KEPT} for line in (given, suggested))
        assert not lost(before, after) - {*plan["changes"]}
