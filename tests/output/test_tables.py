"""Tables stay tables on a terminal of 80 or 100 columns."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from planner.output import render
from planner.output.render import Column, columns_of, table_text
from planner.output.tables.measured import LINES
from planner.resources import package_dir

ROOT = Path(__file__).parents[2]
LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-R1"
PINNED = "--max-num-batched-tokens 8192 --max-num-seqs 128 --kv-cache-dtype fp8 --no-speculation"
TARGETS = f"--ttft 5000 --tpot 60 --request-rate 5 {PINNED}"
CLASSES = "--class chat=5:500:100,ttft=5000 --class rag=1:2000:100"
APART = f"--request-rate 30 --random-input-len 8192 --random-output-len 128 --ttft 1500 --tpot 10 {PINNED}"
LOG = """
INFO [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-4B', 'max_model_len': 40960}
INFO [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-4B', dtype=torch.bfloat16
INFO [gpu_model_runner.py:2392] Model loading took 7.5552 GiB and 3.1 seconds
INFO [gpu_worker.py:298] Available KV cache memory: 58.05 GiB
INFO [kv_cache_utils.py:864] GPU KV cache size: 422,672 tokens
"""
#: A table of columns.toml, and a command that prints it.
PRINTED = [line.split(maxsplit=1) for line in f"""
hardware hardware list --all
catalog models list
model models show {LLAMA} {DEEPSEEK} RedHatAI/Mistral-Small-3.1-24B-Instruct-2503-quantized.w4a16
model_figures hardware show h100
model_figures hardware show mi300x-cpx
workflows workflow list
fit fit {LLAMA} --gpu all
fit fit {DEEPSEEK} --gpu all --partitions -tp 8 --explain
fit fit {LLAMA} --gpu h200 --gpu l4 --sweep
startup_log fit Qwen/Qwen3-4B --gpu h100 --startup-log vllm.log
operators predict latency {DEEPSEEK} --gpu mi355x -tp 8 --explain
nearest_runs predict serve {LLAMA} --gpu h100 --num-prompts 40 --explain
prediction_classes predict serve {LLAMA} --gpu h100 {CLASSES} --num-prompts 40
check check --gpu h100 -- vllm serve {LLAMA} --max-num-seqs 8
plans recommend {LLAMA} --gpu h100 --gpu mi300x-cpx-nps4 --explain --max-concurrency 16 {PINNED}
plans_brief recommend {LLAMA} --gpu h100 --gpu mi300x-cpx-nps4 --max-concurrency 16 {PINNED}
plans_for_targets recommend {LLAMA} --gpu h100 --gpu mi300x --explain {TARGETS}
plans_for_targets_brief recommend {LLAMA} --gpu h100 --gpu mi300x {TARGETS}
plan_classes recommend {LLAMA} --gpu h100 {CLASSES} {PINNED}
disaggregated_sides recommend {LLAMA} --gpu h100 --disaggregated {APART}
fleets fleet {LLAMA} --gpu h100 --gpu mi300x --explain {TARGETS}
fleets_brief fleet {LLAMA} --gpu h100 --gpu mi300x --class chat=50:500:200 --class rag=30:4000:100 {PINNED}
fleet_disaggregated fleet {LLAMA} --gpu mi300x --disaggregated --explain {TARGETS}
comparison compare {LLAMA} --gpu h100 --gpu mi300x-cpx-nps4 --max-concurrency 32 --explain
comparison_brief compare {LLAMA} --gpu h100 --gpu mi300x --random-input-len 128,1024 --max-concurrency 4,32
calibration_factors calibrate {ROOT}/docs/data/mi355x-llama-3.3-70b.csv -o own.toml
calibration_errors calibrate {ROOT}/docs/data/mi355x-llama-3.3-70b.csv -o own.toml
evaluation evaluate {ROOT}/docs/data/mi355x-llama-3.3-70b.csv
""".strip().splitlines()]  # fmt: skip
MORE = 3  #: columns that an answer adds to its table
#: Rows of tables that need a machine: its longest values.
FILLED = {
    "validation": ("total_token_throughput", "requests/s", 11809.26, 11809.26, 8211.59, 16983.15, 7380.79, -0.375,
                   "interval", "slower", -0.375),
    "tuning": ("TP 8, fp8 KV cache, 1,024 x 16,384", 12345.6, 12345.6, 123456.7, 0.123, 0.123,
               "p95 TTFT of 500 ms is missed", ""),
}  # fmt: skip
#: Tables of reports, in HTML, and of WORKFLOW.md.
IN_HTML = {"printed", "report_validation", "report_rejected", "report_operators", "report_levels", "evaluation_chart"}
#: Fields of JSON and CSV, which no table shows.
IN_JSON = {"fit_fields", "fleet_fields", "comparison_fields", "model_fields"}


def test_every_table_is_printed_here() -> None:
    tables = tomllib.loads((package_dir("output") / "columns.toml").read_text())
    assert set(tables) == {table for table, _ in PRINTED} | FILLED.keys() | IN_HTML | IN_JSON


@pytest.mark.parametrize(("table", "line"), PRINTED, ids=[" ".join(words)[:60] for words in PRINTED])
def test_a_table_stays_a_table(table: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {column.key for column in columns_of(table)}
    Path("vllm.log").write_text(LOG)
    aligned = render._aligned
    printed = []
    for width in (200, 100, 80):
        tables: list[set[str]] = []

        def recorded(grid: render.Grid, rows: Sequence[Any], tables: list[set[str]] = tables) -> Iterator[str]:
            tables.append({column.key for column in grid})
            return aligned(grid, rows)

        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(render, "_aligned", recorded)
        outcome = run(*line.split())
        assert outcome.status in (0, 1), outcome.err
        assert any(len(keys - wanted) <= MORE for keys in tables), outcome.out
        printed.append(len(tables))
    assert len(set(printed)) == 1, "a table became a list"


@pytest.mark.parametrize("table", FILLED)
@pytest.mark.parametrize("width", [80, 100])
def test_a_table_of_long_values_stays_a_table(table: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = LINES if table == "validation" else columns_of(table)
    columns = [Column(c.key, c.heading, c.form, c.wraps, c.aside, c.spare) for c in shown]
    row = {column.key: value for column, value in zip(columns, FILLED[table], strict=True)}
    heading, *lines = table_text([row], columns).splitlines()
    assert len(heading) <= width and any(set(line) == {"-", " "} for line in lines)


def test_words_break_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a hyphen, dot, slash or underscore; programs that read a pipe find the whole name."""
    columns = (Column("model", wraps=True), Column("text"))
    records = [{"model": "nvidia/Llama-3_1-Nemotron-Ultra-253B-v1-FP8", "text": "x" * 60}]
    monkeypatch.setenv("COLUMNS", "80")
    pieces = [line.split()[0] for line in table_text(records, columns).splitlines()[2:]]
    assert "".join(pieces) == records[0]["model"] and all(one[-1] in "-._/8" for one in pieces)
    monkeypatch.delenv("COLUMNS")
    assert records[0]["model"] in table_text(records, columns)
