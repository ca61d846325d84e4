"""Predicted beside measured: nothing dropped, and the summary's arithmetic."""

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import run

from planner.commands.folders import evaluate_runs
from planner.evidence.evaluation import (
    Evaluated,
    PredictedFigure,
    case_of,
    evaluate,
    resent,
    run_workload,
    statistics,
    summary,
)
from planner.evidence.runs import MeasuredRun
from planner.output import Evaluation

RUN = MeasuredRun("a", "serve", "h100-sxm", "meta-llama/Llama-3.1-8B-Instruct", input_len=1024, output_len=128)


def test_statistics_of_three_figures_by_hand() -> None:
    # errors: +10 %, -30 %, +20 %: mean of absolute values 20 %, median 20 %, bias 0, two of three within 20 %
    figures = [
        PredictedFigure(100, 110, 90, 130),
        PredictedFigure(100, 70, 60, 90),
        PredictedFigure(100, 120, 100, 140),
    ]
    found = statistics(figures)
    assert found["mape"] == pytest.approx(0.2)
    assert found["median_ape"] == pytest.approx(0.2)
    assert found["bias"] == pytest.approx(0.0)
    assert found["within_20"] == pytest.approx(2 / 3)
    assert found["coverage_90"] == pytest.approx(2 / 3)  # 100 is outside [60, 90]


def test_a_row_that_cannot_be_predicted_is_counted_not_dropped(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "run_id,bench,gpu,model,input_len,output_len,max_concurrency,num_prompts,mean_tpot_ms\n"
        "good,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,256,32,2,4,7\n"
        "no-gpu,serve,h1000,meta-llama/Llama-3.1-8B-Instruct,256,32,2,4,7\n"
        "no-model,serve,h100-sxm,nobody/nothing,256,32,2,4,7\n"
        "no-load,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,256,32,,,7\n"
        "too-big,serve,rtx-4090,meta-llama/Llama-3.1-405B-Instruct,256,32,2,4,7\n"
    )
    rows = {row["run_id"]: row for row in evaluate_runs(path).to_dict()["rows"]}
    assert list(rows) == ["good", "no-gpu", "no-model", "no-load", "too-big"]
    assert rows["good"]["refused"] is None
    assert rows["good"]["metrics"]["mean_tpot_ms"]["measured"] == 7
    figure = rows["good"]["metrics"]["mean_tpot_ms"]
    assert figure["error_vs_measured"] == figure["error"] == pytest.approx(figure["predicted"] / 7 - 1)
    assert (rows["good"]["gpu"], rows["no-gpu"]["gpu"]) == ("h100-sxm", "h1000")
    assert rows["no-model"]["model"] == "nobody/nothing"
    for name in ("no-gpu", "no-model", "no-load", "too-big"):
        assert rows[name]["refused"] and rows[name]["metrics"] == {}
    head, good, *refused = path.read_text().splitlines()
    for left, status in (([good, *refused], 0), (refused, 1)):
        path.write_text("\n".join([head, *left]))
        assert run("evaluate", str(path)).status == status


def test_figures_of_two_units_are_named(tmp_path: Path) -> None:
    # 175 ms + 255 tokens of 8.23 ms are 2.27 s; stated in seconds, the TPOT makes 0.18 s of it
    path = tmp_path / "runs.csv"
    path.write_text(
        "run_id,bench,gpu,model,input_len,output_len,max_concurrency,num_prompts,mean_ttft_ms,mean_tpot_ms,mean_e2el_ms\n"
        "good,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,1024,256,2,4,175,8.23,2274\n"
        "mixed,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,1024,256,2,4,175,0.00823,2274\n"
    )
    answer = evaluate_runs(path)
    assert len(answer.evaluated) == 2
    assert [note.split(":")[0] for note in answer.notes if "are the units the same?" in note] == ["mixed"]


def test_each_bench_reports_its_own_columns() -> None:
    model = "meta-llama/Llama-3.1-8B-Instruct"
    latency = MeasuredRun("l", "latency", "h100-sxm", model, input_len=64, output_len=16, batch_size=2,
                  metrics={"avg_latency_s": 1.0, "output_throughput": 32.0})  # fmt: skip
    offline = MeasuredRun("t", "throughput", "h100-sxm", model, input_len=64, output_len=16, num_prompts=4,
                  metrics={"output_throughput": 1.0, "total_token_throughput": 5.0})  # fmt: skip
    first, second = evaluate([latency, offline])
    # two prompts of 16 tokens each: 32 tokens in avg_latency seconds
    predicted = {name: figure.predicted for name, figure in first.figures.items()}
    assert predicted["output_throughput"] * predicted["avg_latency_s"] == pytest.approx(32)
    # input and output: (64 + 16) / 16 = 5 times the output tokens
    predicted = {name: figure.predicted for name, figure in second.figures.items()}
    assert predicted["total_token_throughput"] / predicted["output_throughput"] == pytest.approx(5)


def test_what_a_closed_loop_leaves_open_is_ten_prompts_per_slot() -> None:
    run = MeasuredRun(
        "a", "serve", "h100-sxm", "m", input_len=10, output_len=10, max_concurrency=64, arrival="closed-loop"
    )
    fixed, uniform = run_workload(run), run_workload(replace(run, length_distribution="uniform-0.8-1"))
    assert fixed.num_prompts == uniform.num_prompts == 640
    assert fixed.range_ratio == 0.1  # fixed lengths and prompts not stated: not vllm bench


#: Requests, prompt and answer tokens as published, and what the logs of the runs say was asked: vllm bench serve on a
#: DGX Spark, --random-range-ratio 0.9 --seed 42 (djangodevreng/dgx-spark-benchmarks, Qwen3.6-35B-A3B).
DRAWN = [(100, 4202.4, 491.5, 4000, 500), (175, 4097.7, 488.5, 4000, 500), (250, 4057.6, 492.0, 4000, 500),
         (300, 4003.9, 501.1, 4000, 500), (50, 1110.4, 4186.1, 1024, 4096)]  # fmt: skip


@pytest.mark.parametrize(("prompts", "input_tok", "output_tok", "input_len", "output_len"), DRAWN)
def test_means_say_which_requests_were_drawn(
    prompts: int, input_tok: float, output_tok: float, input_len: int, output_len: int
) -> None:
    load = run_workload(replace(MEANS, num_prompts=prompts, mean_input_len=input_tok, mean_output_len=output_tok))
    assert (load.seed, load.output_len, load.range_ratio) == (42, output_len, 0.9)
    assert input_len < load.input_len < 1.02 * input_len  # a chat template of 10 tokens
    sent = load.requests()
    assert sent.output_len.mean() == pytest.approx(output_tok, abs=0.05)
    assert sent.input_len.mean() == pytest.approx(input_tok, rel=1e-3)


MEANS = MeasuredRun("m", "serve", "gb10", "m", mean_input_len=4202.4, mean_output_len=491.5, arrival="poisson",
            request_rate=0.1, num_prompts=100, burstiness=0.7)  # fmt: skip


def test_lengths_that_no_usual_seed_draws_are_stretched_to_their_means() -> None:
    """gpt-oss-20b ended its answers itself, so 500 tokens were asked for and 418.3 came."""
    sent = run_workload(replace(MEANS, mean_output_len=418.3)).requests()
    assert sent.output_len.mean() == pytest.approx(418.3, rel=2e-3)
    assert sent.input_len.mean() == pytest.approx(4202.4, rel=1e-3)
    assert sent.output_len.max() > 1.5 * 418.3


@pytest.mark.parametrize(
    "alike",
    [
        {"mean_input_len": 4202.0, "mean_output_len": 500.0},  # of equal lengths the mean is one of them
        {"input_len": 4000, "output_len": 500},
        {"mean_input_len": 9.5, "mean_output_len": 4.5},  # a tenth of it would be no prompt
    ],
)
def test_lengths_are_alike_unless_their_means_say_otherwise(alike: dict[str, float]) -> None:
    assert run_workload(replace(MEANS, **alike)).range_ratio == 0


def test_the_tail_of_a_load_with_scattered_lengths_is_that_of_its_longest_answers() -> None:
    """Qwen3.6-35B-A3B on a DGX Spark at 0.1 requests/s: p99 E2EL 78.1 s, 2.17 times the mean of 35.9 s."""
    run = replace(MEANS, model="Qwen/Qwen3.6-35B-A3B", engine_version="0.26.0", max_model_len=131072,
              kv_cache_dtype="fp8", metrics={"p99_e2el_ms": 78148.0, "mean_e2el_ms": 35941.0})  # fmt: skip
    figures = evaluate([run])[0].figures
    assert figures["p99_e2el_ms"].predicted / figures["mean_e2el_ms"].predicted == pytest.approx(2.17, rel=0.1)
    alike = evaluate([replace(run, random_range_ratio=0.0)])[0].figures
    assert alike["p99_e2el_ms"].predicted / alike["mean_e2el_ms"].predicted < 1.7


def test_the_summary_groups_by_gpu_bench_and_metric() -> None:
    rows = summary(
        [
            Evaluated(RUN, {"mean_tpot_ms": PredictedFigure(10, 11)}),
            Evaluated(RUN, {"mean_tpot_ms": PredictedFigure(10, 9)}),
        ]
    )
    assert [(row["gpu"], row["bench"], row["metric"], row["n"]) for row in rows] == [
        ("h100-sxm", "serve", "mean_tpot_ms", 2)
    ]
    assert rows[0]["coverage_90"] is None


def sweep(model: str = "meta-llama/Llama-3.1-8B-Instruct", **changes: object) -> list[MeasuredRun]:
    """Three rates of the same conversations, as IOG-Foundation measured vLLM 0.8.5 on one H100 PCIe."""
    one = MeasuredRun("", "serve", "h100-pcie", model, engine_version="0.8.5", input_len=206, output_len=212,
              num_prompts=200, length_distribution="sharegpt", arrival="poisson",
              metrics={"mean_ttft_ms": 20.5})  # fmt: skip
    return [replace(one, run_id=f"{rate}", request_rate=rate, **changes) for rate in (32.0, 16.0, 1.0)]


def test_a_sweep_of_rates_sends_its_prompts_again() -> None:
    # 20.5 ms at 1 request/s and 42 at 32, which came first: computed, a prompt of 1,000 tokens alone takes 30 ms
    first, *later = sweep()
    assert resent([first, *later]) == {"16.0", "1.0"}
    assert case_of(later[0], resent=True).workload.prefix_cache_hit_rate == 1
    fresh, found = evaluate([later[1]]), evaluate([first, *later])
    ttft_ms = [one.figures["mean_ttft_ms"].predicted for one in (*fresh, *found)]
    assert ttft_ms[3] < 0.9 * ttft_ms[0]
    assert ttft_ms[3] < ttft_ms[2] < ttft_ms[1]
    # other lengths, or the same rate twice, are no sweep; nor are random prompts of one length known to return
    assert not resent([first, replace(later[0], input_len=300)])
    assert not resent([first, replace(first, run_id="again")])
    assert not resent(sweep(length_distribution="fixed"))


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "rtx-4090"},  # 24 GB: 16.1 of weights leave some 35,000 tokens, 200 x 418 = 83,600 were sent
        {"engine_version": "0.6.3"},  # V0 keeps no prefixes unless told to
        {"enable_prefix_caching": False},
    ],
)
def test_prompts_return_only_to_a_cache_that_held_them(changes: dict[str, object]) -> None:
    assert case_of(sweep(**changes)[1], resent=True).workload.prefix_cache_hit_rate == 0


@pytest.mark.parametrize(
    ("gpu", "version", "cached"),
    [("mi300x", "0.9.1", False), ("mi300x", "0.10.0", False), ("mi300x", "0.10.1", False), ("mi300x", "0.8.5", False),
     ("h100-sxm", "0.8.5", True), ("h100-sxm", "0.9.1", False), ("h100-sxm", "0.7.3", False)],
)  # fmt: skip
def test_old_latency_benchmarks_time_cached_prompts(gpu: str, version: str, cached: bool) -> None:
    run = MeasuredRun("a", "latency", gpu, "meta-llama/Llama-3.1-8B", engine_version=version, input_len=2048,
                      output_len=16, batch_size=8)  # fmt: skip
    assert case_of(run).workload.prefix_cache_hit_rate == cached
    of_amd = replace(run, family="rocm_vllm_readme")  # whose scripts were those of 0.8.5
    assert case_of(of_amd).workload.prefix_cache_hit_rate == (cached or version in ("0.9.1", "0.10.0"))
    assert case_of(replace(run, bench="throughput", num_prompts=8)).workload.prefix_cache_hit_rate == 0
    too_large = replace(run, input_len=8000, batch_size=1024)
    assert case_of(too_large).workload.prefix_cache_hit_rate == 0  # evicted before they return


@pytest.mark.parametrize(
    ("model", "base_model", "said", "ran"),
    [
        ("MiniMaxAI/MiniMax-M3-MXFP8", "MiniMaxAI/MiniMax-M3", "fp8", "mxfp8"),
        ("Qwen/Qwen3-14B-AWQ", "Qwen/Qwen3-14B", "int4", "int4-awq"),
        ("Qwen/Qwen3-14B-FP8", "Qwen/Qwen3-14B", "fp8", "fp8"),
    ],
)
def test_the_name_of_a_checkpoint_says_more_than_a_table(model: str, base_model: str, said: str, ran: str) -> None:
    run = replace(RUN, gpu="b200-sxm", model=model, base_model=base_model, weight_dtype=said, tensor_parallel_size=8,
                  max_concurrency=4)  # fmt: skip
    assert case_of(run).deployment.config.weight_dtype == ran


def test_runs_with_cached_prompts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "run_id,bench,gpu,model,input_len,output_len,length_distribution,request_rate,num_prompts,mean_ttft_ms\n"
        "fast,serve,h100-pcie,meta-llama/Llama-3.1-8B-Instruct,206,212,sharegpt,8,20,40\n"
        "slow,serve,h100-pcie,meta-llama/Llama-3.1-8B-Instruct,206,212,sharegpt,1,20,20\n"
    )
    assert next(note for note in evaluate_runs(path).notes if "higher request_rate" in note).endswith(": 1")


def test_the_verdict_counts_figures_in_their_intervals_and_names_the_worst() -> None:
    def run(name: str, measured: float) -> Evaluated:
        return Evaluated(replace(RUN, run_id=name), {"mean_tpot_ms": PredictedFigure(measured, 100, 80, 120)})

    text = str(Evaluation((run("good", 100), run("fast", 50), run("slow", 300))))
    said = "1 of 3 measured figures lie inside their 90 % interval; worst predictions: mean_tpot_ms of slow (-67%)"
    assert " ".join(text.split()).startswith(said)
    assert "1 of 1 measured figures" in str(Evaluation((run("good", 100),)))
    two = Evaluation((*(Evaluated(replace(RUN, run_id=name), {}, "no GPU") for name in "ab"), run("good", 100)))
    assert list(two.notes)[-1] == "a, b: no GPU"
    assert "mean_tpot_ms of fast (+100%)" in text and "of good" not in text
    assert str(Evaluation((Evaluated(RUN, {}, "no such model"),))).startswith("No run was predicted")


def test_runs_of_ml_energy_are_the_steady_state_of_a_queue() -> None:
    """Llama-3.1-8B on an H100, lm-arena-chat: one wave of such requests had a p99 ITL of 8.7 ms."""
    said = {"output_throughput": 5147.15, "median_itl_ms": 11.5002, "p99_itl_ms": 25.6834}
    run = replace(
        RUN, input_len=None, output_len=None, mean_output_len=395.5, length_distribution="lm-arena-chat",
        arrival="all-at-once", max_concurrency=64, max_num_seqs=64, max_num_batched_tokens=8192,
        engine_version="0.11.1", async_scheduling=True, metrics=said,
    )  # fmt: skip
    case = case_of(run)
    assert case.workload.steady and case.deployment.config.truncates
    figures = evaluate([run])[0].figures
    for name, measured in said.items():
        assert 0.7 < figures[name].predicted / measured < 1.3
    assert not case_of(replace(run, num_prompts=640)).workload.steady
