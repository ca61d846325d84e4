"""The page of accuracy: which line a figure counts in, and what is said of the worst."""

from dataclasses import replace

import pytest

import accuracy
from fit.leave_out import leave_out, replayed_misses
from planner.evidence.evaluation import case_of, figures_in_columns, simulate
from planner.evidence.observations import observe
from planner.evidence.runs import MeasuredRun

DENSE, MOE = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B"
RUN = MeasuredRun("one", "serve", "h100-sxm", MOE, engine_version="0.11.0", input_len=512, output_len=64, num_prompts=8,
                  arrival="closed-loop", max_concurrency=4, family="a")  # fmt: skip
FIGURES = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")


def measured(run: MeasuredRun, slower: float, keys: tuple[str, ...] = FIGURES) -> MeasuredRun:
    """``run`` on a machine whose times are ``slower`` than predicted."""
    found = figures_in_columns(case_of(run), simulate(case_of(run)))
    return replace(run, metrics={key: found[key] * (1 / slower if "throughput" in key else slower) for key in keys})


@pytest.mark.parametrize(
    ("changes", "metric", "line"),
    [
        ({}, "mean_tpot_ms", "TPOT, MoE, Hopper"),
        ({"gpu": "gb200"}, "mean_tpot_ms", "TPOT, MoE, Blackwell (B200 to GB300)"),
        ({"gpu": "mi355x"}, "mean_tpot_ms", "TPOT, MoE, AMD"),
        ({"gpu": "b200-sxm", "model": DENSE}, "mean_tpot_ms", "TPOT, dense, B200 and B300"),
        ({"gpu": "mi355x", "engine_build": "vllm+atom-plugin"}, "mean_tpot_ms", "TPOT, ATOM"),
        ({"max_concurrency": 1}, "mean_ttft_ms", "TTFT, lone prompt"),
        ({}, "p99_itl_ms", "p99 ITL, closed loop"),
    ],
)
def test_a_figure_counts_in_its_line(changes: dict[str, object], metric: str, line: str) -> None:
    run = replace(RUN, **changes, metrics=dict.fromkeys(FIGURES, 50.0))
    (one,), _ = observe([run])
    assert line in accuracy.wanted_lines(one, run, metric)
    assert ("TPOT or ITL, all" in accuracy.wanted_lines(one, run, metric)) == (metric == "mean_tpot_ms")


def test_the_page_has_every_line_that_is_wanted() -> None:
    """Twice as slow as predicted is 50 % off; so are the gaps, which no fit sees."""
    runs = [measured(replace(RUN, run_id=f"{n}", max_concurrency=n, family=f"of {n}"), 2.0) for n in (1, 2, 4)]
    observed, refused = observe(runs)
    without, every = leave_out(observed), {run.run_id: run for run in runs}
    misses = replayed_misses(without, runs, lambda one: one.source, uncertain=True, gaps=True)
    lines = list(accuracy.wanted(observed, every, {"source": misses, "pair": misses}))
    assert [line.split(" |")[0] for line in lines[2:]] == [
        f"| {name}" for name in (*accuracy.WANTED, *accuracy.ELSEWHERE)
    ]
    gaps = next(line for line in lines if line.startswith("| p99 ITL"))
    assert gaps.split(" | ")[1:3] == ["20 %", "3"]
    fitted = [miss for miss in misses if miss.metric in FIGURES[:3]]
    page = "\n".join(
        accuracy.report(without, dict.fromkeys(accuracy.SECTIONS, fitted), refused, every, (), lines, 90.0)
    )
    assert "took 2 minutes in 2 processes" in page
    assert "| predicted / measured | likely cause |" in page and page.count("| unknown |") == 3


def test_causes_name_sources_that_there_are() -> None:
    sources = {run.family for run in accuracy.read_runs(accuracy.SHIPPED_RUNS)}
    assert {one["source"] for one in accuracy.causes()} <= sources
    assert "vLLM 0.7" in accuracy.likely_cause("dstack_deepseek_r1", "h200-sxm", "deepseek_v3-61x7168", "fp8-block")
    assert accuracy.likely_cause("nobody", "h100-sxm", "llama-80x8192", "bf16") == "unknown"
