"""Predictions as CSV and markdown: one number per row, for programs that know no Python."""

from __future__ import annotations

import csv
import io
import json

import pytest

from planner.cli.main import main

CASES = {
    "latency": ["--input-len", "16", "--output-len", "4", "--batch-size", "2"],
    "throughput": ["--input-len", "16", "--output-len", "4", "--num-prompts", "8"],
    "serve": ["--random-input-len", "16", "--random-output-len", "4", "--max-concurrency", "2", "--num-prompts", "8"],
}


@pytest.mark.parametrize("bench", CASES)
@pytest.mark.parametrize("form", ["csv", "markdown"])
def test_every_value_stands_alone(bench: str, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", bench, "Qwen/Qwen3-8B", "--gpu", "h100", *CASES[bench]]
    assert main([*asked, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main([*asked, "--format", form]) == 0
    printed = capsys.readouterr().out
    assert not set("{}[]") & set(printed)
    if form == "csv":
        rows = {row["metric"]: row["value"] for row in csv.DictReader(io.StringIO(printed))}
        expected = {f"percentiles.{p}": s for p, s in data.get("percentiles", {}).items()}
        assert {name: float(rows[name]) for name in expected} == expected
        assert len(expected) == (6 if bench == "latency" else 0)  # 10, 25, 50, 75, 90, 99


def test_the_result_names_the_backend_of_the_emitted_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """``--backend vllm``, as bench_argv has it, not the default of the client."""
    assert main(["predict", "serve", "Qwen/Qwen3-8B", "--gpu", "h100", *CASES["serve"], "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["backend"], data["endpoint_type"]) == ("vllm", "vllm")
