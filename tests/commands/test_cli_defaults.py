"""``planner.toml`` in the working directory: other defaults, a table per command."""

import json
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, run

from planner.commands.options import group_of
from planner.evidence import Stated
from planner.output import Choice, Site

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA = "meta-llama/Llama-2-7b-hf"


def write(text: str) -> None:
    Path("planner.toml").write_text(text)


def test_a_default_stands_in_for_a_flag_and_gives_way_to_it() -> None:
    write('[fit]\ngpu = "h100"\nformat = "json"\nmax-model-len = 2048\nenforce_eager = true\n')
    outcome = run("fit", LLAMA)
    answer = json.loads(outcome.out)
    assert (answer["gpu"]["id"], answer["max_model_len"], answer["cuda_graph_bytes"]) == ("h100-sxm", 2048, 0)
    assert json.loads(run("fit", LLAMA, "--gpu", "mi300x", "--max-model-len", "1024").out)["max_model_len"] == 1024


def test_flags_that_may_be_repeated_take_a_list() -> None:
    write('[fit]\ngpu = ["h100", "mi300x"]\nformat = "json"\n')
    assert [answer["gpu"]["id"] for answer in json.loads(run("fit", LLAMA).out)] == ["h100-sxm", "mi300x"]


def test_commands_of_a_group_have_tables_of_their_own() -> None:
    write('[predict.serve]\ngpu = "h100"\nformat = "json"\nrandom-input-len = 64\nmax-concurrency = 4\n')
    result = json.loads(run("predict", "serve", LLAMA, "--num-prompts", "8").out)
    assert (result["total_input_tokens"], result["max_concurrency"]) == (8 * 64, 4)
    assert run("predict", "latency", LLAMA).status == 2  # has no --gpu


def test_arguments_have_defaults_too() -> None:
    write(f'[models.show]\nmodel = ["{LLAMA}"]\nformat = "json"\n[recommend]\nmodel = "{LLAMA}"\ngpu = "h100"\n')
    assert json.loads(run("models", "show").out)[0]["resolved"] == LLAMA
    recommended = json.loads(run("recommend", "--format", "json").out)
    assert recommended["plans"][0]["requested_model"] == LLAMA
    assert not any(taken.startswith(("model", "gpu =")) for taken in recommended["defaults_taken"])


def test_switches_may_be_written_either_way() -> None:
    """vLLM 0.11.0 cannot be told not to chunk prompts, so there the value of the switch shows."""
    table = '[fit]\ngpu = "h100"\nengine-version = "0.11.0"\n'
    for line in ("enable-chunked-prefill = true", "no-enable-chunked-prefill = false"):
        write(f"{table}{line}\n")
        assert run("fit", LLAMA).status == 0
    for line in ("enable-chunked-prefill = false", "no-enable-chunked-prefill = true"):
        write(f"{table}{line}\n")
        assert error_of(run("fit", LLAMA))[0].startswith("--no-enable-chunked-prefill: ")
        assert run("fit", LLAMA, "--enable-chunked-prefill").status == 0


def test_scripts_and_notes_name_the_settings_of_the_file_so_that_the_command_makes_the_plan_elsewhere() -> None:
    """The header had ``planner recommend MODEL -o p``, which planned four types of GPU without a target."""
    write('[recommend]\ngpu = ["h100"]\ninput_len = 2048\nttft = 300\nspeculation = false\nformat = "json"\n')
    outcome = run("recommend", LLAMA, "-o", "p")
    assert "from planner.toml: --gpu h100 --no-speculation --random-input-len 2048 --ttft 300" in outcome.err
    made = json.loads(Path("p/plan.json").read_text())
    words = shlex.split(made["command"])
    assert f"# by: {made['command']}\n" in Path("p/launch.sh").read_text()
    Path("planner.toml").unlink()
    assert run(*words[1:], "--force").status == 0 and words[0] == "planner"
    assert json.loads(Path("p/plan.json").read_text())["digest"] == made["digest"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ((), "--gpu h100 --max-model-len 2048 --no-enable-prefix-caching"),
        (("--gpu", "h200"), "--max-model-len 2048 --no-enable-prefix-caching"),
        (("--gpu", "h200", "--max-model-len", "99", "--enable-prefix-caching"), ""),
    ],
)
def test_the_note_leaves_out_what_was_typed_instead(typed: tuple[str, ...], said: str) -> None:
    write('[fit]\ngpu = "h100"\nmax-model-len = 2048\nenable-prefix-caching = false\nexplain = false\n')
    notes = " ".join(run("fit", LLAMA, *typed).err.split())
    assert notes.partition("from planner.toml: ")[2] == said


@pytest.mark.parametrize(
    ("text", "cause", "hint"),
    [
        ("[fit", "planner.toml is not valid TOML: Expected ']'", "fix the file"),
        ("[fits]\ngpu = 'h100'", "planner.toml: fits is no table of a command", "[fit]"),
        ("gpu = 'h100'", "planner.toml: gpu is no table of a command", "[predict]"),
        ("[predict]\ngpu = 'h100'", "planner.toml: predict.gpu is no table of a command", "[predict.serve]"),
        ("[fit]\ngpus = 'h100'", "planner.toml: [fit] gpus is not a flag", "nearest: gpu"),
        ("[fit]\nhelp = true", "planner.toml: [fit] help is not a flag", "without their dashes"),
        ("[fit]\nenforce-eager = 1", "[fit] enforce-eager is not true or false", "command line"),
        ("[fit]\nmax-model-len = true", "[fit] max-model-len is not a string or a number", "command line"),
        ("[fit]\nmax-model-len = [1, 2]", "[fit] max-model-len is not a string or a number", "command line"),
        ("[fit]\ngpu = 1979-05-27", "[fit] gpu is not a string or a number, or a list of them", "command line"),
        (
            "[fit]\nmax-model-len = 'abc'",
            "planner.toml: [fit] max_model_len: --max-model-len must be an integer",
            "leave",
        ),
        (
            "[fit]\nmax-model-len = 0",
            "planner.toml: [fit] max_model_len: --max-model-len must be at least 1",
            "default",
        ),
        ("[fit]\nformat = 'xml'", "planner.toml: Invalid value for '--format'", "planner fit --help"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(text: str, cause: str, hint: str) -> None:
    write(text)
    outcome = run("fit", LLAMA, "--gpu", "h100") if "gpu" not in text or "predict" in text else run("fit", LLAMA)
    assert outcome.status == 2
    told, offered = error_of(outcome)
    assert cause in told
    assert hint in offered


def test_a_file_that_cannot_be_read_is_an_error_and_the_version_needs_none() -> None:
    Path("planner.toml").write_bytes(b"\xff")
    assert error_of(run("hardware", "list"))[0].startswith("planner.toml is not valid TOML: ")
    assert run("--version").status == 0
    Path("planner.toml").unlink()
    Path("planner.toml").mkdir()
    assert error_of(run("hardware", "list"))[0] == "planner.toml: Is a directory"


@pytest.mark.parametrize(("table", "record"), [("site", Site), ("choice", Choice), ("results", Stated)])
def test_options_of_a_table_are_fields_of_its_record_with_their_defaults(table: str, record: Any) -> None:
    usual, declared = {field.name: field.default for field in fields(record)}, group_of(table)
    listed = {name: getattr(declared, name) for name in declared.__annotations__}
    assert {name: usual[name] for name in listed} == {n: () if v == [] else v for n, v in listed.items()}
