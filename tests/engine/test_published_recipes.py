"""The options and variables that users need, against every recipe of vllm-project/recipes at 8959cf64 (2026-08-21).

``published_recipes.csv`` has the facts of its recipes for text: remote code, parsers, tokenizer and variables on AMD.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.engine.flags import flag_status, value_status
from planner.engine.published import default_version, recipe_for
from planner.engine.version import parse_version
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model

with (Path(__file__).parent / "published_recipes.csv").open(encoding="utf-8") as file:
    RECIPES = list(csv.DictReader(file))

#: Options of a recipe that no plan has, each with its reason.
EXCEPT = {
    "--tokenizer-mode auto": "vLLM's default",
    "--generation-config auto": "vLLM's default",
    "--tool-call-parser nemotron_json": "a plugin, which is a file of the checkpoint",
    "--reasoning-parser nano_v3": "a plugin; vLLM's own nemotron_v3 takes its place",
}

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


def test_a_version_without_the_parser_is_launched_without_it() -> None:
    model = resolve_model("moonshotai/Kimi-K3", network=False).model
    older = recipe_for(model, load_profile("b300"), parse_version("0.26.0"))
    assert older.flags == {"trust-remote-code": True}
    assert older.left_out == ("--tool-call-parser kimi_k3", "--reasoning-parser kimi_k3")
    assert value_status(parse_version("0.27.1"), "reasoning_parser", "kimi_k3")
