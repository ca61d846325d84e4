"""Reading measured runs: strict about what a person gets wrong, lenient about what is not stated."""

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.evidence.runs import read_runs

HEADER = "run_id,bench,gpu,model,tensor_parallel_size,input_len,output_len,batch_size,num_prompts,max_concurrency"
LATENCY = "a,latency,mi300x,amd/Llama-3.1-70B-Instruct-FP8-KV,8,128,2048,1,,"


def table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_run_states_what_it_states_and_nothing_else(tmp_path: Path) -> None:
    (run,) = read_runs(table(tmp_path, f"{HEADER},avg_latency_s,remark", f"{LATENCY},17.236,whatever"))
    assert (run.bench, run.gpu, run.tensor_parallel_size, run.batch_size) == ("latency", "mi300x", 8, 1)
    assert run.metrics == {"avg_latency_s": 17.236}
    assert run.max_concurrency is None and run.engine_version == ""


def test_prompts_may_be_a_multiple_of_the_concurrency(tmp_path: Path) -> None:
    line = "a,serve,mi355x,amd/x,1,1024,1024,,10x conc,64"
    (run,) = read_runs(table(tmp_path, f"{HEADER},mean_tpot_ms", f"{line},20"))
    assert run.num_prompts == 640


@pytest.mark.parametrize(("in_flight", "busy"), [(400, 4), (2, 2), (1, 1)])
def test_a_row_of_several_servers_is_the_share_of_one(tmp_path: Path, in_flight: int, busy: int) -> None:
    # 4 servers, 1,200 requests, 4,457 tokens/s of all: 300 and 1,114 of one; two requests in flight keep two busy
    line = f"a,serve,rtx-4090,a/b,1,1000,1000,,1200,{in_flight},4,4457,36.4"
    (run,) = read_runs(table(tmp_path, f"{HEADER},replicas,output_throughput,mean_tpot_ms", line))
    assert (run.max_concurrency, run.num_prompts) == (in_flight // busy, 1200 // busy)
    assert run.metrics == {"output_throughput": 4457 / busy, "mean_tpot_ms": 36.4}


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (("bench,gpu,avg_latency_s", "latency,mi300x,1"), "columns missing: model"),
        (("bench,gpu,model", "latency,mi300x,a/b"), "no column with a measurement"),
        ((f"{HEADER},avg_latency_s",), "has no rows"),
        ((f"{HEADER},avg_latency_s,avg_latency_s", LATENCY + ",1,2"), "column avg_latency_s appears twice"),
    ],
)
def test_a_file_without_what_every_run_needs_is_refused(tmp_path: Path, lines: tuple[str, ...], named: str) -> None:
    with pytest.raises(InputError) as refused:
        read_runs(table(tmp_path, *lines))
    assert named in refused.value.cause
    assert refused.value.hint


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ((f"{HEADER},avg_latency_s", f"{LATENCY},fast"), "line 2, column avg_latency_s is 'fast', not a number"),
        ((f"{HEADER},avg_latency_s", f"{LATENCY},nan"), "column avg_latency_s is 'nan', not a finite number"),
        ((f"{HEADER},avg_latency_s", f"{LATENCY},-3"), "column avg_latency_s is '-3', not at least 1e-06"),
        ((f"{HEADER},avg_latency_s", f"{LATENCY},inf"), "column avg_latency_s is 'inf', not a finite number"),
        ((f"{HEADER},avg_latency_s", LATENCY.replace(",8,", ",1.5,") + ",3"), "'1.5', not a whole number"),
        ((f"{HEADER},avg_latency_s", LATENCY.replace("latency", "speed") + ",3"), "'speed', not 'latency',"),
        ((f"{HEADER},avg_latency_s", LATENCY + ",3,4,5"), "more cells than the header has columns"),
        ((f"{HEADER},median_ttft_ms,p99_ttft_ms", LATENCY + ",800,1.2"), "1.2, below median_ttft_ms, 800"),
        ((f"{HEADER},mean_ttft_ms,mean_e2el_ms", LATENCY + ",800,1.2"), "1.2, below mean_ttft_ms"),
        ((f"{HEADER},mean_tpot_ms", "a,serve,mi300x,a/b,1,9,9,,10x conc,,3"), "the concurrency, which is not stated"),
    ],
)
def test_a_cell_that_cannot_be_read_costs_its_row_alone(tmp_path: Path, lines: tuple[str, ...], named: str) -> None:
    sound = "b,latency,mi300x,a/b" + "," * (lines[0].count(",") - 3)
    bad, good = read_runs(table(tmp_path, *lines, sound + "3"))
    assert named in bad.unread and "line 2" in bad.unread
    assert bad.run_id == "a" and not bad.metrics
    assert good.run_id == "b" and not good.unread and good.metrics


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "runs.csv"
    binary.write_bytes(b"\xff\xfe\x00bench")
    for path in (tmp_path / "absent.csv", binary):
        with pytest.raises(InputError):
            read_runs(path)
