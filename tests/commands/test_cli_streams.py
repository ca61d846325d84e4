"""Unusual terminals: closed pipes, full disks, locales without Unicode, narrow windows, Ctrl-C."""

import json
import re
import signal
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from command_line import error_of, on_terminal, run, shell, spawn, start

from planner.commands.streams import write
from planner.errors import InputError
from planner.output.render import command_lines

LLAMA = "meta-llama/Llama-2-7b-hf"


def test_data_goes_to_stdout_and_remarks_to_stderr() -> None:
    outcome = spawn("recommend", LLAMA, "--gpu", "h100", "--format", "json")
    assert outcome.status == 0
    assert json.loads(outcome.out)["plans"]
    assert outcome.err == ""


def test_ctrl_c_ends_with_130_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: bool) -> None:
        print("half a table")
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.hardware.load_all", interrupted)
    assert run("hardware", "list") == (130, "", "error: interrupted\n")


def test_the_signal_of_ctrl_c_ends_the_process_so() -> None:
    program = """
import sys, time, planner.commands.main
def app_for(words):
    print("running", file=sys.__stdout__, flush=True)
    time.sleep(60)
planner.commands.main.app_for = app_for
planner.commands.run()
"""
    process = start("recommend", program=("-c", program))
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"error: interrupted\n")


def test_ctrl_c_while_the_command_is_being_imported_is_one_line_too(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")  # found before the real one
    process = start("--version", program=("-c", "from planner.commands import run; run()"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"error: interrupted\n")


def test_a_closed_pipe_is_silent() -> None:
    """The list is longer than the buffer of a pipe's reader; ``head`` is gone when it is written."""
    outcome = shell("planner hardware list --format json | head -n 1; echo ${PIPESTATUS[0]}")
    assert outcome.out == "[\n0\n"
    assert outcome.err == ""


def test_a_reader_that_never_reads_is_silent_and_keeps_the_status() -> None:
    outcome = shell("planner fit meta-llama/Llama-2-13b-hf --gpu mi300x-cpx | true; echo ${PIPESTATUS[0]}")
    assert (outcome.out, outcome.err) == ("1\n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- 2>&-"])
def test_closed_streams_do_not_change_the_status(closed: str) -> None:
    outcome = shell(f"planner fit meta-llama/Llama-2-13b-hf --gpu mi300x-cpx {closed}; echo $?")
    assert outcome.out.splitlines()[-1] == "1"
    assert "Traceback" not in outcome.err
    assert ("does not fit" in outcome.out) is (closed != ">&-")


def test_errors_do_not_land_in_the_data_when_stderr_is_closed() -> None:
    outcome = shell("planner fit nothing --gpu h100 2>&-; echo $?")
    assert outcome.out == "2\n"


def test_a_full_disk_is_an_error_like_any_other(tmp_path: Path) -> None:
    """No file may grow beyond one block of 512 or 1024 bytes; unbuffered, Python itself overlooks a partial write."""
    outcome = shell("unset PYTHONUNBUFFERED; ulimit -f 1; planner hardware list > list; echo $?")
    assert outcome.out == "2\n"
    assert error_of(outcome._replace(out=""))[0] == "the output cannot be written: File too large"


@pytest.mark.parametrize(
    "environment",
    [{"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}],
    ids=["C", "C without coercion", "ascii"],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_locales_without_unicode_get_escapes(environment: dict[str, str], output: str, tmp_path: Path) -> None:
    """A folder called "×" is named in the answer, and must not stop it."""
    folder = tmp_path / "×"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    outcome = spawn("models", "show", "×", "--format", output, **environment)
    assert outcome.status == 0
    assert (" 512 " if output == "table" else "115008") in outcome.out  # bytes per token: 2 x 2 layers x 64 x 2
    if output == "json":  # where Python does not know the locale, the name stays the two bytes that it is
        requested = json.loads(outcome.out)[0]["requested"]
        assert requested.encode("utf-8", "surrogateescape").decode() == "×"


def test_characters_that_would_steer_the_terminal_are_escaped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY, "architectures": ["\x1b]0;owned\x07\x1b[31mNo"]}))
    outcome = run("models", "show", str(tmp_path))
    assert outcome.status == 2
    assert "\x1b" not in outcome.err and "\x07" not in outcome.err
    assert "\\x1b" in outcome.err


ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")
BOLD_GREEN, BOLD_RED, CYAN = "\x1b[1;32m", "\x1b[1;31m", "\x1b[36m"


def test_colours_on_a_terminal_have_a_meaning_and_change_no_word() -> None:
    words = ("fit", LLAMA, "--gpu", "h100")
    (yes, _), (no, _) = on_terminal(*words), on_terminal("fit", "meta-llama/Llama-2-13b-hf", "--gpu", "mi300x-cpx")
    assert (yes.status, no.status) == (0, 1)
    assert yes.out.startswith(BOLD_GREEN) and no.out.startswith(BOLD_RED)
    assert ESCAPES.sub("", yes.out) == spawn(*words, COLUMNS="100").out
    bad, _ = on_terminal("fit", "nothing", "--gpu", "h100")
    assert f"{BOLD_RED}error: " in bad.out and f"{CYAN}hint: " in bad.out
    plans, _ = on_terminal("recommend", LLAMA, "--gpu", "h100", "--goal", "min-latency")
    assert f"{CYAN}  $ vllm serve {LLAMA}" in plans.out


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "unknown"}], ids=str)
def test_a_terminal_without_colours_gets_none(environment: dict[str, str]) -> None:
    outcome, _ = on_terminal("fit", LLAMA, "--gpu", "h100", **environment)
    assert outcome.status == 0 and "\x1b" not in outcome.out


def test_json_has_no_colours_on_a_terminal_either() -> None:
    outcome, _ = on_terminal("fit", LLAMA, "--gpu", "h100", "--format", "json")
    assert json.loads(outcome.out)["fits"]


#: Takes some seconds, and so gets a bar: a search over many layouts.
LONG = ("recommend", "Qwen/Qwen3-235B-A22B", "--gpu=h200,mi300x,b200,mi355x", "--ttft=2000", "--request-rate=2")


def test_a_bar_says_what_is_being_done_and_goes_with_ctrl_c() -> None:
    """A tenth of a second on an idle machine; here others may be at work too."""
    outcome, waited_s = on_terminal(*LONG, interrupt_on=b" of 4)")
    assert outcome.status == 130
    assert "of " in outcome.out and outcome.out.count("\x1b[?25l") == outcome.out.count(
        "\x1b[?25h"
    )  # the cursor is back
    assert ESCAPES.sub("", outcome.out).rstrip().splitlines()[-1].endswith("error: interrupted")
    assert waited_s < 1.0


def test_nothing_is_coloured_in_a_pipe() -> None:
    answer, forced = ("fit", LLAMA, "--gpu", "h100"), {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    for words, environment in (
        (answer, {}), (answer, forced), (("fit", "--help"), forced), (("fit", "nothing", "--gpu", "h100"), forced),
    ):  # fmt: skip
        outcome = spawn(*words, **environment)
        assert outcome.out + outcome.err and "\x1b" not in outcome.out + outcome.err


@pytest.mark.parametrize("columns", [40, 60, 79, 100])
def test_nothing_is_wider_than_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for single words, such as the id of a model."""
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (("hardware", "list"), ("fit", LLAMA, "--gpu", "h100"), ("fit", LLAMA, "--gpu", "all")):
        outcome = run(*words)
        for line in (outcome.out + outcome.err).splitlines():
            assert len(line) <= columns or LLAMA in line or len(line.split()[-1]) > columns - 40, line


def test_a_table_that_is_too_wide_becomes_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    first, second, *_ = run("hardware", "list").out.splitlines()
    assert first.split() == ["id", "a10"]
    assert second.split() == ["GiB", "22.18"]


def test_a_wide_terminal_gets_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run("hardware", "list").out.splitlines()[1].startswith("----")


@pytest.mark.parametrize("columns", ["40", "200"])
def test_a_launch_command_can_be_pasted(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash reads the lines as the words and variables that they were made of."""
    monkeypatch.setenv("COLUMNS", columns)
    words = ("server", "an id", "--flag", "--config", '{"a": "b c"}', "--text", "$(id)")
    typed = "\n".join(command_lines({"PLAIN": "1", "SPACED": "two words"}, words)).removeprefix("  $ ")
    outcome = shell(f'server() {{ printf "%s|" "$PLAIN" "$SPACED" "$@"; }}\n{typed}')
    assert outcome.out.split("|")[:-1] == ["1", "two words", *words[1:]]


class Broken(StringIO):
    """A stream on which writing fails, and which has no file behind it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str) -> int:
        raise OSError(self.number, "broken")


def test_only_a_closed_stream_is_passed_over() -> None:
    write("data", None)
    write("data", Broken(32))  # EPIPE
    with pytest.raises(InputError, match="cannot be written: broken"):
        write("data", Broken(5))  # EIO


def test_what_an_encoding_lacks_is_written_as_an_escape() -> None:
    for encoding, written in (("latin-1", b"2 \xd7 3\\t\n"), ("ascii", b"2 \\xd7 3\\t\n")):
        stream = TextIOWrapper(BytesIO(), encoding=encoding, newline="\n")
        write("2 × 3\t\n", stream)
        stream.seek(0)
        assert stream.buffer.read() == written


#: 115,008 parameters: 2 x 256 x 64 at both ends, 2 layers of 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64, a norm of 64.
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
