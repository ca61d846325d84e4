"""Start-up time is a feature: what a command does not need, it does not import."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import run, start

from planner.commands.main import COMMANDS, app_for

PROGRAM = """
import sys
from planner.commands.main import main
status = main()
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
sys.exit(status)
"""
LLAMA = "meta-llama/Llama-2-7b-hf"
HEAVY = {"numpy", "scipy", "jinja2", "huggingface_hub", "requests", "httpx", "rich", "starlette", "uvicorn"}


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (("--version",), set()),
        (("fit", LLAMA, "--gpu", "mi300x-cpx"), set()),
        (("fit", LLAMA, "--gpu", "mi300x-cpx", "--format", "json"), set()),
        (("hardware", "list"), set()),
        (("models", "show", LLAMA), set()),
        (("predict", "latency", LLAMA, "--gpu", "h100"), {"numpy"}),
        (("recommend", LLAMA, "--gpu", "h100"), {"numpy"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_imports_only_what_it_needs(words: tuple[str, ...], needed: set[str]) -> None:
    process = start(*words, program=("-c", PROGRAM))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    imported = set(err.decode().splitlines()[-1].split()[1:])
    assert imported & HEAVY == needed


def test_one_prediction_enters_no_more_of_the_code() -> None:
    """A reader of one ``predict serve`` follows 87 modules of 19,400 lines today; 60 of 12,000 are wanted."""
    process = start(
        "predict", "serve", LLAMA, "--gpu", "h100", "--max-concurrency", "8",
        program=("-c", PROGRAM.replace('name.partition(".")[0]', 'name')),
    )  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    entered = [name for name in err.decode().splitlines()[-1].split()[1:] if name.partition(".")[0] == "planner"]
    origins = [spec.origin for name in entered if (spec := find_spec(name)) and spec.origin]
    lines = sum(Path(origin).read_text(encoding="utf-8").count("\n") for origin in origins)
    assert 40 < len(entered) <= 90 and 10_000 < lines <= 20_000


def test_a_command_alone_is_the_command_among_all() -> None:
    """Only the command that is named is declared; what it says of itself must not depend on that."""
    everything = app_for(())
    names = [c.name for c in everything.registered_commands] + [g.name for g in everything.registered_groups]
    assert sorted(names) == sorted(COMMANDS)  # type: ignore[type-var]
    assert len(app_for(["fit"]).registered_commands) == 1
    alone = {name: run(name, "--help") for name in COMMANDS}
    Path("planner.toml").touch()  # may hold tables of any command, so all are declared
    assert alone == {name: run(name, "--help") for name in COMMANDS}
    assert run("fits").err.startswith("error: No such command 'fits'")
