"""Processes that meet at one file, are killed at a bad moment, or are given what is no file."""

import os
import signal
import time
from pathlib import Path

import pytest
from command_line import error_of, run, start

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
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


def test_a_killed_plan_loses_no_file(tmp_path: Path) -> None:
    assert run("recommend", LLAMA, "--gpu", "h100", "-o", str(tmp_path / "plan")).status == 0
    old = {path.name for path in (tmp_path / "plan").iterdir()}
    for wait_s in (0.0, 0.002, 0.005, 0.01):
        process = start("recommend", LLAMA, "--gpu", "mi300x", "-o", str(tmp_path / "plan"), "--force")
        while process.poll() is None and not list(tmp_path.glob(".plan.*")):
            time.sleep(0.0005)
        time.sleep(wait_s)
        process.kill()
        process.communicate()
        files = list((tmp_path / "plan").iterdir())
        assert old <= {path.name for path in files}
        assert all(path.read_bytes().endswith(b"\n") for path in files)


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
    assert outcome.status == 0
    assert "--num-prompts must be at most 1,000,000" in outcome.err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000])
def test_json_without_end_is_bad_input(text: str) -> None:
    outcome = run("fit", LLAMA, "--gpu", "h100", "--speculative-config", text)
    assert outcome.status == 2
    assert "--speculative-config is not JSON" in error_of(outcome)[0]


@pytest.mark.parametrize(
    "line",
    ["note = 3", 'value = "1"', "value = true", "high = inf", "logs = [1]", 'where = "h100"', 'unit = "parsec"'],
)
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
    assert "holds no memory constants" in error_of(outcome)[0]
