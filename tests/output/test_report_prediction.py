"""Predictions as CSV and markdown: one number per row, for programs that know no Python."""

import csv
import io
import json
import re

import pytest

from planner.commands.main import main

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


@pytest.mark.parametrize("bench", ["latency", "throughput"])
def test_every_figure_of_the_table_has_its_interval(bench: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["predict", bench, "Qwen/Qwen3-8B", "--gpu", "h100", *CASES[bench]]
    assert main([*asked, "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert main(asked) == 0
    _, said, shown = capsys.readouterr().out.partition("90% interval: ")
    assert said
    bounds = [data[key] for key in data if key.endswith(("_lo", "_hi")) and not key.startswith("elapsed")]
    assert [
        float(number) for number in re.findall(r"[0-9]+\.[0-9]+", shown.partition("Elapsed time")[0])
    ] == pytest.approx(bounds, abs=0.005)


def test_explain_leads_from_the_operators_to_the_last_millisecond(capsys: pytest.CaptureFixture[str]) -> None:
    """128 tokens of a batch: one step with the prompts, 127 that decode; together they are the latency."""
    asked = ["predict", "latency", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--output-len", "128"]
    assert main([*asked, "--explain"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "32 layers, hidden size 4,096, vocabulary 128,256, attention GQA 32/8;" in shown
    assert "through 8,030,261,248 parameters" in shown
    assert "h100-sxm at its peak: 3.35 TB/s, 989 TFLOP/s bf16" in shown  # NVIDIA's data sheet
    latency_s = float(re.findall(r"Avg latency: ([0-9.]+) seconds", shown)[0])
    decode, prefill = (
        tuple(map(float, found)) for found in re.findall(r"mean of ([0-9,]+) steps?, ([0-9.]+) s in all", shown)
    )
    assert (decode[0], prefill[0]) == (127, 1)
    assert decode[1] + prefill[1] == pytest.approx(latency_s, abs=0.0011)  # two figures of three digits
    for step_ms, gpu_ms, host_ms in re.findall(r"step: ([0-9.]+) ms .*?= ([0-9.]+) ms, .*? \+ ([0-9.]+) ms of", shown):
        assert float(gpu_ms) + float(host_ms) == pytest.approx(float(step_ms), abs=0.0011)


def test_explain_adds_up_operator_by_operator(capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes and FLOP of Llama 3.1 8B by hand: 8 sequences, bf16, TP 1.

    attention output: 8 tokens x 4096 x 4096 x 2 FLOP x 32 layers; its weights and both ends of 8 rows, 2 bytes each.
    lm_head: 4096 x 128256 weights.
    """
    asked = ["predict", "latency", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--batch-size", "8"]
    assert main([*asked, "--format", "json"]) == 0
    step = json.loads(capsys.readouterr().out)["breakdown"]["decode step"]
    parts = {part["name"]: part for part in step["operators"]}
    assert sum(p["time_s"] for name, p in parts.items() if name != "host") == pytest.approx(step["gpu_s"], rel=1e-12)
    assert parts["attention output"]["flop"] == 8 * 4096 * 4096 * 2 * 32
    assert parts["attention output"]["bytes"] == 32 * 2 * (4096 * 4096 + 8 * (4096 + 4096))
    assert parts["lm_head"]["flop"] == 8 * 4096 * 128256 * 2
    assert parts["lm_head"]["bytes"] >= 2 * 4096 * 128256
