"""Processes that meet at one file, are killed at a bad moment, or are given what is no file."""

import errno
import fcntl
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import error_of, run, start

from planner.resources import write_then_rename

pytestmark = pytest.mark.usefixtures("short_loops")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
#: One GPU, one batch: the tests are about files.
PLAN = ("recommend", LLAMA, "--gpus", "1", "--max-num-seqs", "8")
HEADING = "run_id,bench,gpu,model,input_len,output_len,max_concurrency,num_prompts,mean_tpot_ms,output_throughput"


def table(path: Path, name: str, speed: float) -> Path:
    """Three runs that are as much faster or slower than a first guess."""
    rows = [
        f"{name}{seqs},serve,h100-sxm,{LLAMA},512,128,{seqs},{10 * seqs},{6 / speed:g},{seqs * 150 * speed:g}"
        for seqs in (4, 8, 16)
    ]
    path.write_text("\n".join([HEADING, *rows]) + "\n")
    return path


def test_two_calibrations_at_once_lose_no_run(tmp_path: Path) -> None:
    tables = [table(tmp_path / f"{name}.csv", name, 0.6) for name in "ab"]
    both = [start("calibrate", str(path), "-o", str(tmp_path / "c.toml")) for path in tables]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    kept = (tmp_path / "c.toml").read_text()
    assert all(f'"{name}{seqs}"' in kept for name in "ab" for seqs in (4, 8, 16))


WRITES = ("os.rename", "os.remove", "os.mkdir", "os.chmod", "os.rmdir", "shutil.copyfile")


@contextmanager
def before_its_first(folder: Path, words: tuple[str, ...]) -> Iterator[Callable[[int], bool]]:
    """Run a command up to its first change in ``folder``, where copies of the process begin: it computes once.

    Yields a function: SIGKILL ends a copy just before its ``write``-th change; returns whether it came so far.
    """
    (asked, ask), (told, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(ask)
        left: list[int] = []

        def copy() -> int:
            while number := int.from_bytes(os.read(asked, 4)):
                if not (process := os.fork()):
                    return number
                os.write(tell, bytes([os.WIFSIGNALED(os.waitpid(process, 0)[1])]))
            os._exit(0)

        def watch(event: str, args: tuple[object, ...]) -> None:
            writes = event in WRITES or (event == "open" and isinstance(args[2], int) and args[2] & os.O_ACCMODE)
            nothing = event == "os.mkdir" and Path(str(args[0])).is_dir()
            if writes and not nothing and any(str(folder) in str(arg) for arg in args):
                left[:] = [(left or [copy()])[0] - 1]
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            sys.addaudithook(watch)
            status = run(*words).status
        finally:
            os._exit(status)
    os.close(tell)

    def killed(write: int) -> bool:
        os.write(ask, write.to_bytes(4))
        return bool(os.read(told, 1)[0])

    yield killed
    os.close(ask)
    assert os.waitpid(child, 0)[1] == 0
    os.close(asked)
    os.close(told)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_only_what_no_living_process_writes_is_taken_away(tmp_path: Path) -> None:
    living, dead = tmp_path / ".c.toml.1.part", tmp_path / ".c.toml.2.part"
    other = tmp_path / ".d.toml.2.part"
    for path in (living, dead, other):
        path.write_text("half")
    with living.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_then_rename(tmp_path / "c.toml", b"whole")
    assert set(hidden(tmp_path)) == {living.name, other.name}
    assert (tmp_path / "c.toml").read_bytes() == b"whole"


def test_what_a_disk_refuses_at_the_end_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drives report that they are full only then; a power failure after the rename must find the content."""
    path = tmp_path / "c.toml"
    write_then_rename(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        write_then_rename(path, b"new")
    assert contents(tmp_path) == {"c.toml": b"old"}


@pytest.mark.parametrize("refusal", [errno.ENOSPC, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_refuses_a_change_leaves_a_plan_as_it_was(
    refusal: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full or read-only, at the first, second or fifth change of a kind."""
    folder = tmp_path / "plan"
    words = (*PLAN, "--gpu", "h100", "-o", str(folder))
    assert run(*words).status == 0
    before, refused = contents(folder), 0
    for name, number in product(("mkdir", "rename", "replace"), (1, 2, 5)):
        left, kept = [number], getattr(os, name)

        def refuse(*given: Any, left: list[int] = left, real: Any = kept, **named: Any) -> Any:
            left[0] -= str(tmp_path) in str(given[0])
            if left[0] == 0:
                raise OSError(refusal, os.strerror(refusal))
            return real(*given, **named)

        with monkeypatch.context() as disk:
            disk.setattr(f"os.{name}", refuse)
            outcome = run(*words, "--force")
        if outcome.status == 0:  # there were fewer changes, or the folder was there
            before = contents(folder)
        else:
            assert os.strerror(refusal) in error_of(outcome)[0]
            assert contents(folder) == before and not hidden(tmp_path)
            refused += 1
    assert refused >= 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            (*PLAN, "--gpu", "h100", "-o", "{at}/plan"),
            (*PLAN, "--gpu", "mi300x", "-o", "{at}/plan", "--force"),
        ),
        (("calibrate", "{table}a.csv", "-o", "{at}/c.toml"), ("calibrate", "{table}b.csv", "-o", "{at}/c.toml")),
        (
            ("report", "{plan}", "--format", "svg", "--chart", "memory", "-o", "{at}/r.svg"),
            ("report", "{plan}", "--format", "svg", "--chart", "latency", "-o", "{at}/r.svg"),
        ),
    ],
    ids=lambda words: words[0],
)
def test_what_is_killed_at_any_moment_leaves_each_file_as_it_was_or_as_it_will_be(
    old: tuple[str, ...], new: tuple[str, ...], tmp_path: Path
) -> None:
    at, plan = tmp_path / "at", tmp_path / "p"
    at.mkdir()
    for name in "ab":
        table(tmp_path / f"{name}.csv", name, 0.6)
    assert run(*PLAN, "--gpu", "h100", "-o", str(plan)).status == 0
    old, new = (tuple(word.format(at=at, table=f"{tmp_path}/", plan=plan) for word in words) for words in (old, new))
    folder = at / "plan" if "-o" in old and old[0] == "recommend" else at

    def kept() -> dict[str, bytes]:
        return {name: content for name, content in contents(folder).items() if not name.startswith(".")}

    assert run(*old).status == 0
    before = kept()
    saved = tmp_path / "saved"
    shutil.copytree(at, saved)
    assert run(*new).status == 0
    after = kept()
    assert before != after
    random, write, moments, leftovers = Random(new[0]), 1, 0, 0

    def restore() -> None:
        shutil.rmtree(at)
        shutil.copytree(saved, at)

    restore()
    with before_its_first(at, new) as killed:
        while killed(write):
            found = kept()
            assert found.keys() >= before.keys() & after.keys()
            assert all(content in (before.get(name), after.get(name)) for name, content in found.items()), write
            if found.get("plan.json") == after.get("plan.json", b""):  # the last one to change
                assert all(found.get(name) == content for name, content in after.items())
            if hidden(at):
                leftovers += 1
                if leftovers in (1, 4):  # the next run takes them away
                    assert run(*new).status == 0
                    assert kept() == after and not hidden(at)
            write, moments = write + (random.choice((3, 5, 9)) if write > 4 else 1), moments + 1
            restore()
    assert kept() == after
    assert moments and leftovers


@pytest.mark.parametrize(
    "words",
    [
        ("recommend", LLAMA, "--gpu", "h100", "--trace", "pipe"),
        ("evaluate", "pipe"),
        ("calibrate", "pipe"),
        ("models", "show", "folder"),
        ("hardware", "show", "pipe.toml"),
        ("fit", LLAMA, "--gpu", "h100", "--calibration", "pipe"),
        ("fit", LLAMA, "--gpu", "h100", "--startup-log", "pipe"),
        ("check", "pipe"),
    ],
)
def test_a_pipe_is_no_file_to_wait_for(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "pipe.toml", "folder/config.json"):
        os.mkfifo(tmp_path / name)
    signal.alarm(20)  # it would wait for ever
    try:
        outcome = run(*words)
    finally:
        signal.alarm(0)
    assert outcome.status == 2 or words[0] == "models"
    if words[0] != "models":
        assert "no" in error_of(outcome)[0]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("arrival_s,input_len,output_len\r1,2,3\r2,3,4\r", "line 1 is too long, or ends without a line feed"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n0001-01-01,2,3\n2020-01-01,2,3\n", "more than ten years"),
        ("arrival_s,input_len,output_len\n0,2,3\n1e300,2,3\n", "more than ten years"),
        ("arrival_s,input_len,output_len\n0,2,3\n1e8,2,3\n", "busiest stretch"),
        ("arrival_s,input_len,output_len\n" + "1" * 2**21, "too long"),
    ],
)
def test_a_trace_that_is_no_load(text: str, cause: str, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(text.encode())
    outcome = run("recommend", LLAMA, "--gpu", "h100", "--trace", "trace.csv")
    assert outcome.status == 2
    assert cause in error_of(outcome)[0]


@pytest.mark.parametrize("cell", ["99999999999999999999", "1e17", "1000001"])
def test_more_requests_than_memory_cost_their_row(cell: str, tmp_path: Path) -> None:
    row = f"throughput,h100-sxm,{LLAMA},128,128,{cell},1000"
    (tmp_path / "runs.csv").write_text(f"bench,gpu,model,input_len,output_len,num_prompts,output_throughput\n{row}\n")
    outcome = run("evaluate", "runs.csv")
    assert outcome.status == 1, "it was the only row"
    assert "--num-prompts must be at most 1,000,000" in outcome.err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000])
def test_json_without_end_is_bad_input(text: str) -> None:
    outcome = run("fit", LLAMA, "--gpu", "h100", "--speculative-config", text)
    assert outcome.status == 2
    assert "--speculative-config is not JSON" in error_of(outcome)[0]


@pytest.mark.parametrize(
    "line",
    ["note = 3", 'value = "1"', "value = true", "high = inf", "logs = [1]", 'where = "h100"', 'unit = "parsec"',
     "since = 11",
     'where = { tensor_parallel_size = "2" }', "where = { tensor_parallel_size = 0 }", "where = { gpu = {} }"],
)  # fmt: skip
def test_a_calibration_with_odd_values_is_bad_input(line: str, tmp_path: Path) -> None:
    fields = {
        "value": "1.5",
        "low": "1.0",
        "high": "2.0",
        "unit": '"GiB"',
        "logs": '["a"]',
        "where": "{}",
        "note": '""',
    }
    name, _, value = line.partition(" = ")
    text = "[[sampler]]\n" + "".join(f"{key} = {known}\n" for key, known in {**fields, name: value}.items())
    (tmp_path / "c.toml").write_text(text)
    outcome = run("fit", LLAMA, "--gpu", "h100", "--calibration", "c.toml")
    assert outcome.status == 2
    cause, _ = error_of(outcome)
    assert "c.toml holds no memory constants: sampler: " in cause and "object" not in cause
