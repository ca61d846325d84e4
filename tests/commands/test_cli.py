"""The contract that users script against: what goes where, in which form, and how each command ends."""

import csv
import json
import re
import shlex
from io import StringIO
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from command_line import Outcome, answer_of, error_of, json_of, run
from published_models import CONFIGS

import planner
from planner.engine import NEWEST, flag_status, parse_version, release_text
from planner.resources import data_dir, package_dir, tables_of

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA_7B, LLAMA_13B = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf"
SERVE = ("predict", "serve", LLAMA_7B, "--gpu", "h100", "--num-prompts", "20", "--max-concurrency", "4")
PINNED = ("--max-num-batched-tokens", "8192", "--max-num-seqs", "128", "--no-speculation")

FIT_KEYS = {
    "schema_version", "fits", "verdict", "model", "gpu", "engine_version", "tensor_parallel_size", "weight_dtype",
    "kv_cache_dtype", "max_model_len", "gpu_memory_utilization", "weights_bytes", "activation_bytes",
    "cuda_graph_bytes", "non_torch_bytes", "kv_cache_bytes", "kv_bytes_per_token", "kv_cache_tokens",
    "max_concurrency", "min_tensor_parallel_size", "options", "notes",
}  # fmt: skip
#: of the file that ``vllm bench serve --save-result`` writes, with the percentiles asked for by default
SERVE_KEYS = {
    "duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
    "total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "std_ttft_ms", "p99_ttft_ms", "mean_tpot_ms",
    "median_tpot_ms", "std_tpot_ms", "p99_tpot_ms", "mean_itl_ms", "median_itl_ms", "std_itl_ms", "p99_itl_ms",
    "mean_e2el_ms", "median_e2el_ms", "std_e2el_ms", "p99_e2el_ms", "num_prompts", "request_rate", "burstiness",
    "max_concurrency",
}  # fmt: skip
PLAN_KEYS = {
    "gpu", "num_gpus", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "model", "weight_dtype",
    "kv_cache_dtype", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization",
    "engine_version", "image", "predicted", "memory", "why",
}  # fmt: skip


def data(outcome: Outcome) -> Any:
    """The JSON on stdout."""
    return json.loads(outcome.out)


def table(text: str) -> list[dict[str, str]]:
    """The rows of a CSV."""
    return list(csv.DictReader(StringIO(text)))


# --- fit -----------------------------------------------------------------------------------------------------------


def test_fit_answers_yes_and_no_with_its_exit_status() -> None:
    """AMD's own example: of a 24 GB partition, Llama 2 7B takes 13.48 GB and fits, 13B takes 26.03 GB and does not."""
    small, large = run("fit", LLAMA_7B, "--gpu", "mi300x-cpx"), run("fit", LLAMA_13B, "--gpu", "mi300x-cpx")
    assert (small.status, large.status) == (0, 1)
    assert ": fits\n" in small.out and "13.48 GB" in small.out
    assert ": does not fit\n" in large.out and "26.03 GB" in large.out
    assert small.err == large.err == ""


def test_fit_json_has_the_keys_of_the_contract() -> None:
    outcome = run("fit", LLAMA_13B, "--gpu", "mi300x-cpx", "--format", "json")
    answer = data(outcome)
    assert outcome.status == 1
    assert answer.keys() >= FIT_KEYS
    assert (answer["schema_version"], answer["fits"], answer["verdict"]) == (1, False, "does not fit")
    assert answer["model"]["total_params"] == answer["model"]["active_params"] == 13_015_864_320
    assert answer["weights_bytes"] == 2 * 13_015_864_320
    assert answer["kv_bytes_per_token"] == 2 * 40 * 5120 * 2  # K and V x layers x hidden size x 2 bytes
    assert answer["min_tensor_parallel_size"] is None  # a CPX partition serves TP 1 only
    assert answer["gpu"]["id"] == "mi300x-cpx"


def test_original_format_ids_resolve_and_say_so() -> None:
    answer = data(run("fit", "meta-llama/Llama-2-13B", "--gpu", "mi300x", "--format", "json"))
    assert (answer["model"]["requested"], answer["model"]["resolved"]) == ("meta-llama/Llama-2-13B", LLAMA_13B)
    assert any(LLAMA_13B in note for note in answer["notes"])


def test_several_gpus_give_a_list_in_their_order() -> None:
    outcome = run("fit", LLAMA_13B, "--gpu", "h200", "--gpu", "mi300x-cpx", "--gpu", "h200-sxm", "--format", "json")
    answers = data(outcome)
    assert outcome.status == 1  # not on the partition
    assert [(a["gpu"]["id"], a["fits"]) for a in answers] == [("h200-sxm", True), ("mi300x-cpx", False)]
    assert all(a["schema_version"] == 1 for a in answers)
    assert data(run("fit", LLAMA_13B, "--gpu", "h200,mi300x-cpx", "--format", "json")) == answers


def test_all_gpus_are_answered_even_those_that_refuse_the_settings() -> None:
    """Partitions that serve TP 1 only, and modes that are disputed, are an answer among others, not an error."""
    command = ("fit", LLAMA_7B, "--gpu", "all", "--partitions", "-tp", "2", "--format")
    answers = {a["gpu"]["id"]: a for a in data(run(*command, "json"))}
    listed = {row["id"] for row in data(run("hardware", "list", "--all", "--format", "json"))}
    assert answers.keys() == listed
    assert answers["h100-sxm"]["fits"]
    assert not answers["mi300x-cpx"]["fits"]
    assert "TP" in answers["mi300x-cpx"]["error"] or "tensor parallel" in answers["mi300x-cpx"]["error"]
    assert answers["mi300x-cpx"]["hint"]
    rows = {row["gpu"]: row for row in table(run(*command, "csv").out)}
    assert rows.keys() == listed
    assert rows["mi300x-cpx"]["verdict"] == "refused"
    held = answers["l4"]["max_concurrency"]  # full in both; one layout of all layers, so exactly the logged tokens
    assert held == float(rows["l4"]["max_concurrency"])
    assert held * answers["l4"]["max_model_len"] == pytest.approx(answers["l4"]["kv_cache_tokens"], rel=1e-9)


def test_all_stands_for_its_gpus_beside_others(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text((data_dir("hardware") / "h100-sxm.toml").read_text())
    words = ("fit", LLAMA_7B, "--format", "json", "--gpu", "h200, ALL", "--gpu", str(tmp_path / "mine.toml"))
    gpus = [answer["gpu"]["id"] for answer in data(run(*words))]
    listed = [row["id"] for row in data(run("hardware", "list", "--format", "json"))]
    assert (gpus[0], gpus[-1]) == ("h200-sxm", "mine") and sorted(gpus[:-1]) == sorted(listed)


def test_settings_that_no_gpu_runs_are_bad_input() -> None:
    outcome = run("fit", LLAMA_7B, "--gpu", "h100", "--gpu", "mi300x", "--max-model-len", "4097")
    assert outcome.status == 2
    assert error_of(outcome)[0].startswith("--max-model-len 4097")


@pytest.mark.parametrize(
    "command",
    [
        ("fit", LLAMA_13B, "--gpu", "mi300x-cpx"),
        ("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "rtx-4090"),  # several changes together
    ],
)
def test_options_are_answers_that_hold(command: tuple[str, ...]) -> None:
    """Every option that ``fit`` offers says "fits" when it is asked for."""
    options = data(run(*command, "--format", "json"))["options"]
    assert options
    for option in options:
        words = [word for flag in option["flags"] for word in flag.split(" ", 1)]
        served = ("fit", option["settings"].get("model", command[1]), *command[2:])
        without_gpu = served[:2] if "--gpu" in words else served
        asked = run(*without_gpu, *words, "--format", "json")
        assert asked.status == 0, option
        assert data(asked)["kv_cache_tokens"] == option["kv_cache_tokens"]


def test_sweep_is_a_table_over_precisions_and_sizes() -> None:
    rows = table(run("fit", LLAMA_7B, "--gpu", "h100", "--sweep", "--format", "csv").out)
    seen = {(row["tensor_parallel_size"], row["weight_dtype"], row["kv_cache_dtype"]) for row in rows}
    caches = ("fp16", "fp8")  # of a matrix of 11,008 rows, 4 ranks have no whole groups of 128
    assert seen == {(t, w, k) for t in "1248" for w in caches for k in caches} | {
        (t, "int4-awq", k) for t in "12" for k in caches
    }


def test_explain_shows_the_arithmetic_and_the_rule_of_thumb() -> None:
    shown = run("fit", LLAMA_13B, "--gpu", "mi300x-cpx", "--explain").out
    assert "13,015,864,320 parameters" in shown
    assert "819,200 B" in shown
    assert "rule of thumb" in shown
    arithmetic = data(run("fit", LLAMA_13B, "--gpu", "mi300x-cpx", "--explain", "--format", "json"))["arithmetic"]
    assert {"label", "value", "how"} == arithmetic[0].keys()


def test_engine_flags_reach_the_answer() -> None:
    flags = {
        "tensor_parallel_size": ("-tp", 2), "max_model_len": ("--max-model-len", 2048),
        "max_num_seqs": ("--max-num-seqs", 32), "max_num_batched_tokens": ("--max-num-batched-tokens", 4096),
        "gpu_memory_utilization": ("--gpu-memory-utilization", 0.5), "kv_cache_dtype": ("--kv-cache-dtype", "fp8"),
    }  # fmt: skip
    words = [str(word) for pair in flags.values() for word in pair]
    answer = data(run("fit", LLAMA_7B, "--gpu", "h100", *words, "--engine-version", "0.11.0", "--format", "json"))
    assert {name: answer[name] for name in flags} == {name: value for name, (_, value) in flags.items()}
    assert answer["engine_version"] == "0.11.0"


# --- predict ---------------------------------------------------------------------------------------------------------


def test_predict_serve_speaks_as_the_bench_does() -> None:
    outcome = run(*SERVE)
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[0] == " Serving Benchmark Result ".center(72, "=")  # wider than the bench's: with the interval
    assert any(line.startswith("Mean TTFT (ms):") for line in lines)
    gpu = SERVE[SERVE.index("--gpu") + 1]
    assert re.match(rf"note: \S+ on 1 x {gpu}\S*, TP 1; vLLM [\d.]+; calibration: ", outcome.err)


@pytest.mark.parametrize("sent", [("--request-rate", "4"), ("--request-rate", "1"), ()])
def test_no_request_waits_longer_than_it_is_served_nor_than_the_benchmark(sent: tuple[str, ...]) -> None:
    words = ("--gpu", "l4", "--max-model-len", "8192", "--random-output-len", "256", *sent, "--format", "json")
    said = data(run("predict", "serve", "meta-llama/Llama-3.1-8B-Instruct", *words))
    for statistic in ("mean", "median", "p99"):
        first, whole = (said[f"{statistic}_{metric}_ms_hi"] for metric in ("ttft", "e2el"))
        assert first <= whole <= said["duration_hi"] * 1e3, statistic
        assert first >= said[f"{statistic}_ttft_ms"] and whole >= said[f"{statistic}_e2el_ms"]


@pytest.mark.parametrize(
    ("words", "load"),
    [
        ("serve", "1,000 requests of 1,024 + 128 tokens, all at once, so TTFT includes the queue: --max-concurrency"),
        ("serve --max-concurrency 16", "1,000 requests of 1,024 + 128 tokens, 16 at once"),
        ("serve --request-rate 2 --num-prompts 50", "50 requests of 1,024 + 128 tokens, 2 per second"),
        ("serve --request-rate 900", "1,000 requests of 1,024 + 128 tokens, 900 per second, but it serves "),
        ("throughput --input-len 99 --output-len 9", "1,000 requests of 99 + 9 tokens, all at once"),
        ("latency", "8 requests of 32 + 128 tokens, all at once"),
        ("latency --batch-size 1", "1 request of 32 + 128 tokens"),
    ],
)
def test_predict_names_its_load(words: str, load: str) -> None:
    """The defaults are those of vLLM. Sent at once, 1,000 requests of 1,024 + 128 tokens have a TTFT of 20 to 40 s."""
    name, *more = words.split()
    notes = data(run("predict", name, LLAMA_7B, "--gpu", "h100", *more, "--format", "json"))["notes"]
    (said,) = (note for note in notes if note.startswith("load: "))
    assert said.startswith(f"load: {load}") and ("queue" in said) == ("all at once, so" in load)
    assert ("at once" in said) == ("at once" in load)


def test_predict_serve_json_has_the_keys_of_the_result_file() -> None:
    result = data(run(*SERVE, "--format", "json"))
    assert result.keys() >= SERVE_KEYS | {"schema_version", "engine_version", "breakdown"}
    assert result["completed"] == result["num_prompts"] == 20
    assert result["total_output_tokens"] == 20 * 128  # the bench's own default length
    steps = result["breakdown"]
    for step in steps.values():
        assert {"name", "time_s", "flop", "bytes", "bound"} <= step["operators"][0].keys()
    assert set(steps) == {"decode step", "prefill step"}


@pytest.mark.parametrize(("flying", "bf16_tok_per_s", "fp8_tok_per_s"), [(8, 387.9, 315.8), (64, 1547.5, 1760.5)])
def test_fp8_experts_that_are_slower_than_16_bits_are_said_to_be(
    flying: int, bf16_tok_per_s: float, fp8_tok_per_s: float
) -> None:
    """ML.ENERGY leaderboard, lm-arena-chat, Qwen3-235B-A22B-Instruct-2507 on eight H100 with EP, vLLM 0.11.1.

    FP8 was slower there in batches of 8. Predictions leave out what only one party measured, and have it 6 % faster.
    """
    load = ("--max-concurrency", str(flying), "--input-len", "150", "--output-len", "870", "--max-model-len", "8192")
    asked = ("--gpu", "h100", "-tp", "8", "-ep", "--engine-version", "0.11.1", *load, "--format", "json")
    wide, narrow = (data(run("predict", "serve", f"Qwen/Qwen3-235B-A22B{form}", *asked)) for form in ("", "-FP8"))
    for result, measured in ((wide, bf16_tok_per_s), (narrow, fp8_tok_per_s)):
        assert result["output_throughput_lo"] < measured < result["output_throughput_hi"]
    slower = narrow["output_throughput"] < wide["output_throughput"]
    assert flying == 8 or not slower
    assert any("16-bit weights" in note for note in narrow["notes"]) is slower
    assert not any("16-bit weights" in note for note in wide["notes"])


@pytest.mark.parametrize(("flying", "slower"), [(1, True), (32, False)])
def test_fp8_experts_on_b200_are_said_to_be_slower_in_small_batches(flying: int, slower: bool) -> None:
    # kernel tables, one token: 25 us a layer with scales of blocks, 16 in 16 bits
    asked = ("--gpu", "b200", "--max-concurrency", str(flying), "--format", "json")
    wide, narrow = (data(run("predict", "serve", f"Qwen/Qwen3-30B-A3B{form}", *asked)) for form in ("", "-FP8"))
    assert (narrow["mean_tpot_ms"] > wide["mean_tpot_ms"]) is slower
    assert any("16-bit weights" in note for note in narrow["notes"]) is slower


def test_predict_goodput_and_percentiles_are_those_asked_for() -> None:
    asked = ("--metric-percentiles", "50,95", "--goodput", "ttft:100000", "--goodput", "e2el:0.001")
    result = data(run(*SERVE, *asked, "--format", "json"))
    assert "p95_ttft_ms" in result and "p99_ttft_ms" not in result
    assert result["request_goodput"] == 0  # nobody ends within a microsecond
    everyone = data(run(*SERVE, "--goodput", "e2el:1e9", "--format", "json"))
    assert everyone["request_goodput"] == pytest.approx(everyone["request_throughput"])


def test_predict_throughput_and_latency_have_the_keys_of_their_result_files() -> None:
    model = (LLAMA_7B, "--gpu", "h100", "--input-len", "64", "--output-len", "16")
    throughput = data(run("predict", "throughput", *model, "--num-prompts", "8", "--format", "json"))
    wanted = {"elapsed_time", "num_requests", "total_num_tokens", "requests_per_second", "tokens_per_second"}
    assert throughput.keys() >= wanted | {"output_throughput", "breakdown"}
    assert throughput["total_num_tokens"] == 8 * (64 + 16)
    assert "\nElapsed time: 0." in run("predict", "throughput", *model, "--num-prompts", "8").out
    latency = data(run("predict", "latency", *model, "--batch-size", "2", "--format", "json"))
    assert latency.keys() >= {"avg_latency", "latencies", "percentiles", "breakdown"}


def test_predict_says_no_where_the_cache_holds_no_request() -> None:
    """131 GiB of weights do not go into 80 GB."""
    command = ("predict", "latency", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100")
    plain, answer = run(*command), run(*command, "--format", "json")
    assert (plain.status, answer.status) == (1, 1)
    assert "does not fit: 131.4 GiB of weights on each GPU, which has 79.2 GiB" in " ".join(plain.out.split())
    assert "KV cache" not in plain.out and data(answer)["fits"] is False  # nothing to set there
    little = run("predict", "latency", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "b200", "--input-len", "99999")
    assert "cannot be served" in " ".join(little.out.split()) and "GiB are left for the KV cache" in little.out


def test_predict_says_where_the_server_would_not_start_as_it_is_set_up() -> None:
    """80 GB hold 70 GB of fp8 weights and some requests, but not one of the model's 131,072 tokens (40 GiB)."""
    command = ("predict", "latency", "meta-llama/Llama-3.3-70B-Instruct", "--weight-dtype", "fp8", "--gpu", "h100")
    command += ("--max-num-batched-tokens", "8192")  # offline it is 16,384, whose profile run takes the rest
    assert "vLLM does not start" in run(*command).err
    assert "vLLM does not start" not in run(*command, "--max-model-len", "1024").err
    assert any("vLLM does not start" in note for note in data(run(*command, "--format", "json"))["notes"])


def test_predict_csv_is_one_metric_a_line() -> None:
    rows = {row["metric"]: row["value"] for row in table(run(*SERVE, "--format", "csv").out)}
    assert rows["completed"] == "20"
    assert float(rows["mean_ttft_ms"]) == data(run(*SERVE, "--format", "json"))["mean_ttft_ms"]  # no digit is lost


def test_predict_explain_names_what_bounds_each_operator() -> None:
    shown = run(*SERVE, "--explain").out
    assert "decode step:" in shown and "prefill step:" in shown
    assert {"memory", "compute"} <= set(shown.split())


# --- recommend -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recommendation() -> Any:
    command = ("recommend", LLAMA_7B, "--gpu", "h100", "--gpu", "mi300x-cpx", "--goal", "min-latency")
    outcome = run(*command, "--format", "json")
    assert outcome.status == 0
    return data(outcome)


def test_recommend_json_has_the_keys_of_the_contract(recommendation: Any) -> None:
    assert recommendation.keys() >= {"goal", "workload", "defaults_taken", "plans", "pareto", "rejected"}
    assert recommendation["goal"] == "min-latency"
    assert recommendation["workload"]["input_len"] == recommendation["workload"]["output_len"] == 1024
    for plan in recommendation["plans"]:
        assert plan.keys() >= PLAN_KEYS
        assert plan["why"]


def test_recommend_lists_the_best_plan_first(recommendation: Any) -> None:
    latencies = [plan["predicted"]["mean_e2el_ms"] for plan in recommendation["plans"]]
    assert latencies == sorted(latencies)
    assert recommendation["plans"][0]["gpu"] == "h100-sxm"  # 3.35 TB/s a GPU, against 0.66 TB/s a partition


def test_recommend_says_which_defaults_it_took(recommendation: Any) -> None:
    taken = [line.partition(" = ")[0] for line in recommendation["defaults_taken"]]
    # model, goal and GPU were given
    assert taken == ["gpus", "input_len", "output_len", "max_concurrency", "num_prompts"]
    assert "max_concurrency = 8" in recommendation["defaults_taken"]


def test_recommend_without_anything_compares_four_gpus() -> None:
    outcome = run("recommend", "--format", "csv", "--goal", "min-latency")
    assert outcome.status == 0
    rows = table(outcome.out)
    assert {row["gpu"] for row in rows} == {"mi300x", "mi355x", "b200-sxm", "h100-sxm"}
    latencies = [float(row["mean_e2el_ms"]) for row in rows]
    assert latencies == sorted(latencies), "the list is in the order of the goal"
    assert "order: mean E2EL, the shortest first" in outcome.err


@pytest.mark.parametrize(
    ("words", "taken", "said"),
    [
        ("gb200", "gpus=4,", ""),
        ("gb200 --gpus 8", "input", "a node of gb200 has 4 GPUs at most"),
        ("h100", "gpus=8,", ""),
    ],
)
def test_the_node_of_a_plan_is_that_of_the_profile(words: str, taken: str, said: str) -> None:
    """NVIDIA's GB200 NVL72 has four GPUs to a compute tray: 8 was named, and 4 were planned for."""
    notes = " ".join(run("recommend", LLAMA_7B, "--gpu", *words.split(), "--ttft", "2000").err.split())
    assert f"defaults taken: {taken}" in notes and ("a node of" in notes) == bool(said) and said in notes


def test_check_and_fit_print_the_same_weights() -> None:
    """6,738,415,616 parameters of 2 bytes: 12.55 GiB. What loading takes beside them is in vLLM's log, not in these."""
    fit, check = run("fit", LLAMA_7B, "--gpu", "h100"), run("check", "--gpu", "h100", "vllm", "serve", LLAMA_7B)
    weights = [re.search(r"weights +([\d.]+ GiB)", outcome.out) for outcome in (fit, check)]
    assert [found and found[1] for found in weights] == ["12.55 GiB", "12.55 GiB"]


def test_nothing_left_has_no_sign() -> None:
    from planner.output.tables.fit import _left
    from planner.units import GIB, Interval

    assert _left(Interval(0.5 * GIB, -0.001 * GIB, GIB)) == "0.50 GiB (0.00 to 1.00)"


def test_a_folder_is_not_taken_for_another_checkpoint(tmp_path: Path) -> None:
    """The verdict said ``Serve /home/me/ft (asked: bf16)`` of weights in bf16."""
    (tmp_path / "ft").mkdir()
    (tmp_path / "ft/config.json").write_text(json.dumps(CONFIGS[0]))
    outcome = run("recommend", "./ft", "--gpu", "h100", "--ttft", "2000")
    assert re.match(r"Serve (\./)?ft on \d+ x H100", outcome.out), outcome.out


def test_plans_are_listed_by_the_goal_and_explained_in_that_order() -> None:
    """Asked the other way round: the cheaper GPU (1.99 against 2.99 USD/h) and one without a price at their mean."""
    names = ("--gpu", "mi308x", "--gpu", "h100", "--gpu", "mi300x")
    load = ("--request-rate", "1", "--tpot", "60", "--random-input-len", "256", "--random-output-len", "64", *PINNED)
    outcome = run("recommend", LLAMA_7B, *names, *load, "--explain")
    assert _first_words(outcome.out) == _first_words(run("recommend", LLAMA_7B, *names, *load).out)
    assert _first_words(outcome.out) == ["mi300x", "mi308x", "h100-sxm"]
    explained = [line.split(":")[0] for line in outcome.out.splitlines() if line.startswith(("AMD", "NVIDIA"))]
    assert explained == ["AMD Instinct MI300X", "AMD Instinct MI308X 192GB", "NVIDIA H100 SXM 80GB"]
    said = " ".join(outcome.err.split())
    order = (
        "order: USD per hour, the cheapest first; no price is known for mi308x: counted at 2.49 USD/h each, the mean of"
    )
    assert order in said
    assert "one server of 1 GPU" in outcome.out and "1 server of 1 GPU each" not in outcome.out
    own = run("recommend", LLAMA_7B, *names, *load, "--price", "mi308x=0.5", "--price", "h100=1", "--explain")
    assert _first_words(own.out) == ["mi308x", "h100-sxm", "mi300x"]
    assert "0.50 USD/h for 1 GPU: 0.50 per whole GPU (--price)" in own.out and "no price is known" not in own.err
    for_goal = answer_of("recommend", LLAMA_7B, "--gpu", "h100", "--gpus", "1", "--price", "h100=1")
    (plan, *_) = for_goal.to_dict()["plans"]
    per_million = plan["num_gpus"] * 1.0 / 3600 / plan["predicted"]["output_throughput"] * 1e6
    assert plan["usd_per_hour"] == plan["num_gpus"]
    assert plan["usd_per_million_output_tokens"] == pytest.approx(per_million)
    words = f"{plan['usd_per_hour']:.2f} USD/h, {per_million:.2f} USD per 1M output tokens"
    assert words in " ".join(for_goal.to_text().split())
    most = run("recommend", LLAMA_7B, *names, *load, "--goal", "max-throughput", "--format", "json")
    answer = json.loads(most.out)
    rates = [plan["service"]["largest_load_output_throughput_per_gpu"] for plan in answer["plans"]]
    assert rates == sorted(rates, reverse=True)
    assert answer["order"] == "output tokens/s per GPU under the targets, the most first"
    for plan in answer["plans"]:  # by hand: 1 request/s of 64 tokens
        service, per_hour = plan["service"], 64 * 3600
        assert service["output_throughput_per_gpu"] == pytest.approx(64 / service["total_gpus"])
        usd = service["usd_per_hour"] and service["usd_per_hour"] / per_hour * 1e6
        assert plan["usd_per_million_output_tokens"] == service["usd_per_million_output_tokens"] == pytest.approx(usd)
    assert answer["answer"]["total_gpus"] == answer["plans"][0]["service"]["total_gpus"]


def test_flags_of_adapters_without_adapters_are_said_to_do_nothing() -> None:
    asked = ("fit", LLAMA_7B, "--gpu", "h100", "--max-model-len", "2048", "--format", "json")
    plain, given = run(*asked), run(*asked, "--max-loras", "4", "--max-lora-rank", "64")
    assert "--max-loras and --max-lora-rank: ignored without --enable-lora" in " ".join(
        given.err.split() + given.out.split()
    )
    assert json.loads(given.out)["kv_cache_bytes"] == json.loads(plain.out)["kv_cache_bytes"]
    used = run(*asked, "--max-loras", "4", "--enable-lora")
    assert "ignored" not in used.out + used.err


def _first_words(text: str) -> list[str]:
    """The first column of the first table."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith("---"))
    return [line.split()[0] for line in takewhile(lambda line: line and not line.startswith(" "), lines)]


def test_recommend_prints_the_launch_command_and_the_line_that_writes_it() -> None:
    outcome = run("recommend", LLAMA_7B, "--gpu", "h100")
    assert "$ vllm serve meta-llama/Llama-2-7b-hf" in outcome.out
    assert "defaults taken: goal=balanced" in outcome.err
    assert "-o DIR writes the scripts" in " ".join(outcome.err.split())
    whole = run("recommend", LLAMA_7B, "--gpu", "h100", "--explain")
    line = f"write the scripts with: planner recommend {LLAMA_7B} --gpu h100 --explain -o plans"
    assert line in " ".join(whole.err.split())


def test_recommend_writes_the_plan_that_it_prints(tmp_path: Path) -> None:
    outcome = run("recommend", LLAMA_7B, "--gpu", "h100", "-o", "plan", "--format", "json")
    assert outcome.status == 0
    plan = json.loads((tmp_path / "plan/plan.json").read_text())
    printed = data(outcome)["plans"]
    assert {name: plan[name] for name in printed[0]} in printed
    assert (plan["schema_version"], plan["goal"]) == (1, "balanced")
    assert plan["command"] == f"planner recommend {LLAMA_7B} --gpu h100 -o plan --format json"
    wanted = {"preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "RUNBOOK.md"}
    assert {file.name for file in (tmp_path / "plan").iterdir()} >= wanted


def test_recommend_writes_a_folder_for_each_of_several_gpus(tmp_path: Path) -> None:
    assert run("recommend", LLAMA_7B, "--gpu", "h100", "--gpu", "mi300x", "-o", "plans").status == 0
    assert {entry.name for entry in (tmp_path / "plans").iterdir()} == {"h100-sxm", "mi300x", "recommendation.json"}


def test_another_plan_can_be_picked(tmp_path: Path) -> None:
    listed = data(run("recommend", LLAMA_7B, "--gpu", "h100", "--format", "json"))["plans"]
    assert len(listed) == 3
    assert run("recommend", LLAMA_7B, "--gpu", "h100", "--pick", "2", "-o", "second").status == 0
    second = json.loads((tmp_path / "second/plan.json").read_text())
    assert "number 2, behind" in second["why"][0]
    assert second["serve_argv"] == listed[1]["serve_argv"] != listed[0]["serve_argv"]


@pytest.mark.parametrize(
    ("target", "said"),
    [(("--ttft", "2"), "2 s is --ttft 2000"), (("--tpot", "0.05"), "0.05 s is --tpot 50"), (("--ttft", "20"), "")],
)
def test_a_target_in_seconds_is_noticed(target: tuple[str, str], said: str) -> None:
    text = run("fleet", LLAMA_7B, "--gpu", "h100", "--request-rate", "1", *target).err
    assert ("targets are in ms" in text) == bool(said) and said in text


@pytest.mark.parametrize(("gpu", "said"), [("8xH100", True), ("h100", False), ("1xH100", False)])
def test_gpus_of_a_node_that_a_server_leaves_idle_are_said(gpu: str, said: bool) -> None:
    for command in (("fit",), ("predict", "latency")):
        assert ("is a node of 8 GPUs; a server takes" in run(*command, LLAMA_7B, "--gpu", gpu).err) is said
    assert "is a node" not in run("fleet", LLAMA_7B, "--gpu", gpu, "--request-rate", "1").err


def test_recommend_says_no_where_nothing_fits() -> None:
    """A trillion parameters at any precision do not go into one 24 GB partition."""
    command = ("recommend", "moonshotai/Kimi-K2-Instruct", "--gpu", "mi300x-cpx")
    outcome = run(*command, "--format", "json")
    assert outcome.status == 1
    assert data(outcome)["plans"] == []
    assert data(outcome)["rejected"]
    assert "no plan" in run(*command).out


# --- facts -----------------------------------------------------------------------------------------------------------


def test_hardware_list_has_every_profile_with_its_aliases() -> None:
    whole = {row["id"] for row in data(run("hardware", "list", "--format", "json"))}
    rows = {row["id"]: row for row in data(run("hardware", "list", "--all", "--format", "json"))}
    assert whole >= {"mi300x", "mi325x", "mi355x", "b200-sxm", "h100-sxm"} and whole.isdisjoint({"mi300x-cpx"})
    assert rows.keys() >= {"mi300x-cpx", "mi300x-cpx-nps4", "a100-mig-1g.10gb", *whole}
    aliases = {alias: name for name, row in rows.items() for alias in row["aliases"]}
    assert {"mi355": "mi355x", "b200": "b200-sxm", "h100": "h100-sxm", "h200": "h200-sxm"}.items() <= aliases.items()
    for alias, name in aliases.items():
        assert data(run("hardware", "show", alias, "--format", "json"))["id"] == name


def test_every_profile_can_be_shown() -> None:
    for row in data(run("hardware", "list", "--all", "--format", "json")):
        outcome = run("hardware", "show", row["id"])
        assert outcome.status == 0
        assert outcome.out.startswith(row["id"])


def test_models_show_keeps_the_order_and_reports_what_it_cannot_show(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    outcome = run("models", "show", "openai/gpt-oss-120b", "config.json", LLAMA_7B, "--format", "json")
    rows = data(outcome)
    assert outcome.status == 2
    assert [row["requested"] for row in rows] == ["openai/gpt-oss-120b", "config.json", LLAMA_7B]
    wanted = {
        "requested", "resolved", "architecture", "attention", "total_params", "active_params", "weights_bytes",
        "kv_bytes_per_token", "quantization", "schema_version",
    }  # fmt: skip
    assert rows[0].keys() >= wanted and rows[2].keys() >= wanted
    assert "not valid JSON" in rows[1]["error"]
    assert outcome.err.startswith("error: config.json is not valid JSON")
    assert rows[2]["total_params"] == 6_738_415_616


def test_models_show_exits_3_where_the_hub_is_needed_and_cannot_be_had() -> None:
    outcome = run("models", "show", LLAMA_7B, "nobody/nothing", "also/missing")
    assert outcome.status == 3
    assert LLAMA_7B in outcome.out
    assert [line.partition(":")[0] for line in outcome.err.splitlines()] == ["error", "hint"]


def test_models_list_is_the_catalog() -> None:
    rows = table(run("models", "list", "--format", "csv").out)
    assert {LLAMA_7B, "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"} <= {row["model"] for row in rows}


# --- every command ---------------------------------------------------------------------------------------------------

EVERY = {
    "fit": ("fit", LLAMA_7B, "--gpu", "h100"),
    "several": ("fit", LLAMA_7B, "--gpu", "h100", "--gpu", "mi300x"),
    "serve": SERVE,
    "recommend": ("recommend", LLAMA_7B, "--gpu", "h100", "--goal", "min-latency"),
    "hardware list": ("hardware", "list"),
    "hardware show": ("hardware", "show", "mi300x-cpx"),
    "models list": ("models", "list"),
    "models show": ("models", "show", LLAMA_7B),
}


@pytest.mark.parametrize("command", EVERY.values(), ids=EVERY.keys())
def test_every_form_is_whole(command: tuple[str, ...]) -> None:
    """JSON has its version, CSV and Markdown equal rows, a table at most 120 columns; addresses are not cut."""
    answer = data(run(*command, "--format", "json"))
    assert {row["schema_version"] for row in (answer if isinstance(answer, list) else [answer])} == {1}
    head, *cells = csv.reader(StringIO(run(*command, "--format", "csv").out))
    assert cells and {len(row) for row in cells} == {len(set(head))} == {len(head)}
    title, rule, *rows = run(*command, "--format", "markdown").out.splitlines()
    assert rows and set(rule) <= set("|-: ")
    assert all(row.replace("\\|", "").count("|") == title.count("|") for row in rows)
    lines = [line for line in run(*command).out.splitlines() if not line.strip().startswith("http")]
    assert max(map(len, lines)) <= 120, max(lines, key=len)


@pytest.mark.parametrize("name", ["fit", "several", "serve", "recommend"])
def test_every_answer_names_the_engine_version(name: str) -> None:
    for form in ("table", "json", "csv"):
        outcome = run(*EVERY[name], "--engine-version", "0.25.0", "--format", form)
        assert "0.25.0" in outcome.out + (outcome.err if form == "table" else "")


def test_version() -> None:
    outcome = run("--version")
    assert outcome.status == 0
    first, second = outcome.out.splitlines()
    assert first == f"planner {planner.__version__}"
    dates = re.fullmatch(r"newest vLLM known: (\S+) of (\S+); GPU facts of (\S+), prices of (\S+)", second)
    assert dates and dates[1] == release_text(NEWEST) and all(day > "2026" for day in dates.groups()[1:])


def test_without_a_command_it_shows_what_to_ask() -> None:
    """Four commands that answer; and where to go on."""
    outcome = run()
    assert outcome.status == 0 and outcome.err == "" and len(outcome.out.splitlines()) <= 15
    examples = [line.removeprefix("  $ planner ") for line in outcome.out.splitlines() if line.startswith("  $ ")]
    assert len(examples) == 4 and "planner --help" in outcome.out and "planner ui" in outcome.out
    for example in examples:
        answered = run(*shlex.split(example))
        assert answered.status in (0, 1) and answered.out, example


@pytest.mark.parametrize("words", [("fit",), ("predict",), ("predict", "serve"), ("hardware",), ("models", "show")])
def test_help_is_data_and_a_missing_word_is_an_error(words: tuple[str, ...]) -> None:
    helped = run(*words, "--help")
    assert helped.status == 0
    assert helped.out.startswith("Usage: planner")
    bare = run(*words)
    assert bare.status == 2
    cause, hint = error_of(bare)
    assert "Missing" in cause
    assert hint == " ".join(("see planner", *words, "--help"))


@pytest.mark.parametrize("command", ["fit", "check", "validate", "report", "calibrate", "evaluate", "tune", "deploy"])
def test_a_name_that_the_system_refuses_is_an_error_of_two_lines(command: str) -> None:
    words = ("--gpu", "h100") if command in ("fit", "check") else ()
    outcome = run(command, "A" * 300, *words, *(("--target", "compose") if command == "deploy" else ()))
    cause, hint = error_of(outcome)
    assert outcome.status == 2 and cause.endswith("File name too long") and hint


@pytest.mark.parametrize(("typed", "tokens"), [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("8192", 8192)])
def test_lengths_have_the_suffixes_of_vllm(typed: str, tokens: int) -> None:
    """As its ``human_readable_int`` reads them, which planner check does too."""
    assert json_of("fit", "Qwen/Qwen3-8B", "--gpu", "h100", "--max-model-len", typed)["max_model_len"] == tokens
    Path("planner.toml").write_text(f"[fit]\nmax-model-len = '{typed}'")
    assert json_of("fit", "Qwen/Qwen3-8B", "--gpu", "h100")["max_model_len"] == tokens


def test_predict_takes_a_line_of_the_bench() -> None:
    """That of a plan, flag by flag; what changes no figure is left out with a note."""
    (plan,) = json_of("recommend", LLAMA_7B, "--gpu", "h100", "--max-concurrency", "4")["plans"][:1]
    bench = plan["bench_argv"]
    assert bench[:3] == ["vllm", "bench", "serve"]
    line = run("predict", "serve", *bench[3:], "--gpu", "h100", "--format", "json")
    assert line.status == 0 and "no effect on the prediction: --backend, --host, --port, --dataset-name" in line.err
    lengths = ("--random-input-len", "1024", "--random-output-len", "1024", "--num-prompts", "20")
    plain = json_of("predict", "serve", plan["model"], "--gpu", "h100", "--max-concurrency", "4", *lengths)
    assert json.loads(line.out)["output_throughput"] == plain["output_throughput"]


@pytest.mark.parametrize(
    ("bench", "short", "whole"),
    [
        (
            "serve", "--random-input 64 --random_output_len=8 --num-prompt 4 --dataset-n random --tensor-par 2",
            "--random-input-len 64 --random-output-len 8 --num-prompts 4 --tensor-parallel-size 2",
        ),
        ("throughput", "--input 64 --output-l 8 --num-prompt 4", "--input-len 64 --output-len 8 --num-prompts 4"),
        ("latency", "--input=64 --output-len 8 --batch 4", "--input-len 64 --output-len 8 --batch-size 4"),
    ],
)  # fmt: skip
def test_options_of_the_bench_may_be_cut_as_vllm_lets_them(bench: str, short: str, whole: str) -> None:
    """Its parser is argparse's: one name alone that begins so is meant; of several none, as --output is here."""
    asked = ("predict", bench, LLAMA_7B, "--gpu", "h100")
    assert json_of(*asked, *short.split()) == json_of(*asked, *whole.split())
    assert run(*asked, "--max", "4").err.startswith("error: No such option: --max")
    zero = run("predict", "serve", LLAMA_7B, "--gpu", "h100", "--random-input", "0")
    assert zero.err.startswith("error: --random-input-len must be at least 1")


def test_a_target_of_goodput_is_given_once() -> None:
    twice = run("predict", "serve", LLAMA_7B, "--gpu", "h100", "--goodput", "ttft:500", "--goodput", "ttft:900")
    assert twice.status == 2 and "--goodput ttft:500 ttft:900 gives a target twice" in twice.err


def test_options_of_the_bench_are_those_of_vllm() -> None:
    """Of its newest release, or of the one whose lines the documents print."""
    tables = tables_of(package_dir("commands") / "bench.toml")
    benches = ("bench serve", "bench latency", "bench throughput", "benchmark_latency.py", "benchmark_throughput.py")
    for flag in (*tables["switches"], *tables["options"], *tables["refused"]):
        versions = (parse_version(release_text(NEWEST)), parse_version("0.6.3"), parse_version("0.9.1"))
        assert any(flag_status(version, flag, bench) for version in versions for bench in benches), flag


@pytest.mark.parametrize("bench", ["latency", "throughput"])
def test_lines_of_the_documents_are_predicted_or_lead_on(bench: str) -> None:
    """AMD's guides print each of these in every command for the two offline benches."""
    load = ("--batch-size", "4") if bench == "latency" else ("--num-prompts", "4")
    asked = ("predict", bench, LLAMA_7B, "--gpu", "mi300x", "--input-len", "64", "--output-len", "8", *load)
    printed = "--trust-remote-code --distributed-executor-backend mp --load-format dummy --use-v2-block-manager"
    assert json_of(*asked, *printed.split()) == json_of(*asked)
    cause, hint = error_of(run(*asked, "--num-scheduler-steps", "10"))
    assert "--num-scheduler-steps" in cause and "planner check --gpu GPU -- LINE" in hint
    cause, hint = error_of(run("predict", bench, "--", "python3", f"benchmark_{bench}.py", "--model", LLAMA_7B))
    assert "planner check --gpu GPU -- LINE" in hint


@pytest.mark.parametrize(
    ("words", "cause", "hint"),
    [
        (("--dataset-name", "sharegpt"), "--dataset-name sharegpt is not simulated", "--trace"),
        (("--use-beam-search",), "--use-beam-search is not simulated", "leave it out"),
        (("--ramp-up-strategy=linear",), "--ramp-up-strategy linear is not simulated", "--trace"),
    ],
)
def test_what_a_line_of_the_bench_has_unsimulated_is_refused(words: tuple[str, ...], cause: str, hint: str) -> None:
    told, offered = error_of(run("predict", "serve", LLAMA_7B, "--gpu", "h100", *words))
    assert told == cause and hint in offered
