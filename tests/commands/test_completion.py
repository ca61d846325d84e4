"""Shells complete the names of models, GPUs and workflows, and every name that is offered is understood."""

import os
import sys
from pathlib import Path

import pytest
from command_line import run, shell, spawn

from planner.commands.folders import complete_workflow as workflows
from planner.commands.options import complete_gpu as gpus
from planner.commands.options import complete_model as models
from planner.hardware import load_profile
from planner.model import resolve_model


def completed(line: str, program: str = "PLANNER") -> list[str]:
    """What bash is offered for the last word of a line, as its completion script asks."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), f"_{program}_COMPLETE": "complete_bash"}
    outcome = spawn(**asked)
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("planner fit meta-llama/Llama-3.3-70B-Ins", ["meta-llama/Llama-3.3-70B-Instruct"]),
        ("planner fit x --gpu mi325", ["mi325x", "mi325x-cpx", "mi325x-dpx-nps2"]),
        ("planner recommend --gpu b200-s", ["b200-sxm"]),
        ("planner predict serve x --gpu rtx-409", ["rtx-4090"]),
        ("planner workflow spec", ["speculative"]),
        ("planner re", ["recommend", "report"]),
        ("planner recommend --goal max", ["max-throughput"]),
    ],
)
def test_the_shell_is_offered_what_goes_on_so(line: str, offered: list[str]) -> None:
    assert completed(line) == offered


def test_names_go_on_from_what_was_typed_and_are_understood() -> None:
    offered = models("qwen3-235b-a22b-t")
    assert offered and all(name.startswith("qwen3-235b-a22b-t") for name in offered)
    assert all(resolve_model(name, timeout_s=0).model for name in models("llama-3.3"))
    assert [load_profile(name).id for name in gpus("RTX409")] == ["rtx-4090"]  # an alias: no id begins so
    assert workflows("speculativ") == ["speculative"]


def test_a_real_bash_completes_with_the_script_that_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "planner"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    ask = "COMP_WORDS=(planner fit x --gpu mi325); COMP_CWORD=4; _planner_completion planner; echo ${COMPREPLY[*]}"
    done = shell(f'unset -f planner; PATH="{tmp_path}:$PATH"; . <(planner --show-completion); {ask}')
    assert done.out.split() == ["mi325x", "mi325x-cpx", "mi325x-dpx-nps2"], done.err


def test_both_console_scripts_complete_under_their_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/llm-serving-planner"])
    assert run("fit", "--help").out.startswith("Usage: llm-serving-planner fit ")
    monkeypatch.setenv("_LLM_SERVING_PLANNER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "llm-serving-planner re")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert run().out.split() == ["recommend", "report"]
    assert "_PLANNER_COMPLETE" not in os.environ
