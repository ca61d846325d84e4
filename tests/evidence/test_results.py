"""Results of the tools that people have, in the words of vLLM's benchmark: published figures, and what is refused."""

import csv
import json
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError, PlannerError
from planner.evidence.results import read_results
from planner.evidence.runs import check_run
from planner.evidence.sources import Stated, read_measurements
from planner.workload import Load

FILES = Path(__file__).parent / "result_files"
STATED = Stated(gpu="h100", model="meta-llama/Llama-3.1-8B-Instruct", engine_version="0.11.0")


def read(name: str) -> list[Any]:
    path = FILES / name
    return list(read_results(path, path.read_text(encoding="utf-8")))


def changed(tmp_path: Path, name: str, **fields: Any) -> Path:
    """A copy of a sample with other top-level fields."""
    record = json.loads((FILES / name).read_text(encoding="utf-8"))
    (record[0] if isinstance(record, list) else record).update(fields)
    path = tmp_path / Path(name).with_suffix(".json").name
    path.write_text(json.dumps(record), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # what lies between the first and the last token, over the tokens after the first, is vLLM's TPOT
        ("guidellm.json", {"completed": 337, "mean_ttft_ms": 146.0964, "mean_tpot_ms": 29.25066138074795,
                           "mean_e2el_ms": 3861.406882368139, "p99_e2el_ms": 5084.67173576355, "request_rate": 5.0,
                           "burstiness": 1.0, "total_output_tokens": 337 * 128, "model_id": "Qwen/Qwen3-0.6B"}),
        ("aiperf.json", {"completed": 96, "max_concurrency": 16, "mean_tpot_ms": 13.05021344397687,
                         "p99_itl_ms": 119.59844855472231, "median_e2el_ms": 2189.7230649999997,
                         "total_output_tokens": 19085, "total_input_tokens": 35259, "date": "20260703"}),
        ("genai_perf.json", {"max_concurrency": 100, "mean_input_len": 200.85, "mean_output_len": 2565.855,
                             "output_throughput": 44190.56002502682, "p90_ttft_ms": 302.80112349999996}),
        ("inference_perf.json", {"completed": 6715, "request_rate": 111.92, "mean_ttft_ms": 146.23385537668857,
                                 "p99_e2el_ms": 2056.480849154759, "total_token_throughput": 29210.42717595459}),
        ("inferencex.json", {"max_concurrency": 128, "completed": 1280, "mean_ttft_ms": 2840.227181401133,
                             "p99_tpot_ms": 128.2672055492602, "output_throughput": 8 * 130.21526637990956,
                             "total_token_throughput": 8 * 260.43053275981913, "mean_input_len": 0.9 * 1024}),
        ("sweep.json", {"completed": 6, "mean_itl_ms": 42.35916666666665, "max_concurrency": 4}),
    ],
)  # fmt: skip
def test_figures_come_out_under_the_keys_of_vllm(name: str, figures: dict[str, Any]) -> None:
    result = read(name)[0].result
    assert {key: result.get(key) for key in figures} == pytest.approx(figures)


@pytest.mark.parametrize("name", ["guidellm.json", "aiperf.json", "genai_perf.json"])
def test_translated_latencies_add_up(name: str) -> None:
    """E2EL is TTFT and a TPOT for each token after the first: the words were translated to the right ones.

    In AIPerf's run lengths vary, and a mean of products is not the product of means.
    """
    result = read(name)[0].result
    parts = result["mean_ttft_ms"] + (result["mean_output_len"] - 1) * result["mean_tpot_ms"]
    assert parts == pytest.approx(result["mean_e2el_ms"], rel=0.05)


def test_older_reports_of_guidellm_have_their_totals_and_strategy_elsewhere(tmp_path: Path) -> None:
    """``request_totals`` beside the metrics, ``args.strategy`` instead of ``config.strategy``: up to 0.4."""
    record = json.loads((FILES / "guidellm.json").read_text(encoding="utf-8"))
    (one,) = record["benchmarks"]
    one["request_totals"] = one["metrics"].pop("request_totals")
    one["args"] = {"strategy": {"type_": "concurrent", "streams": 4}}
    del one["config"]
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    (older,) = read_results(path, path.read_text(encoding="utf-8"))
    assert (older.result["completed"], older.result["max_concurrency"]) == (337, 4)
    assert older.result["model_id"] == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("strategy", "sent"),
    [
        ({"type_": "synchronous"}, {"max_concurrency": 1}),
        ({"type_": "concurrent", "streams": 16}, {"max_concurrency": 16}),
        ({"type_": "throughput", "max_concurrency": 512}, {"max_concurrency": 512}),
        ({"type_": "constant", "rate": 2.5}, {"request_rate": 2.5, "burstiness": 1e6}),
    ],
)
def test_strategies_of_guidellm_are_loads_of_vllm_bench(
    tmp_path: Path, strategy: dict[str, Any], sent: dict[str, Any]
) -> None:
    record = json.loads((FILES / "guidellm.json").read_text(encoding="utf-8"))
    record["benchmarks"][0]["config"]["strategy"] = strategy
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    (one,) = read_results(path, path.read_text(encoding="utf-8"))
    assert {
        name: one.result[name] for name in ("max_concurrency", "request_rate", "burstiness") if name in one.result
    } == sent


def test_evenly_spaced_arrivals_are_evenly_spaced(tmp_path: Path) -> None:
    """What "constant" becomes: gaps of 0.4 s to within a percent, as the replay draws them."""
    (one,) = read_measurements(FILES / "inference_perf.json", STATED)
    assert one.burstiness is not None and one.request_rate is not None
    sent = Load(100, 10, num_prompts=200, request_rate=2.5, burstiness=one.burstiness)
    gaps = [float(b - a) for a, b in pairwise(sent.requests().arrival_s)]
    assert all(gap == pytest.approx(0.4, rel=0.01) for gap in gaps)


def test_a_tpot_that_counts_events_is_left_out() -> None:
    """(1.698 - 0.146) s / 61.8 tokens are 25.1 ms; the file says 12.0, with half of the gaps below 0.1 ms."""
    result = read("inference_perf.json")[0].result
    assert "mean_tpot_ms" not in result and "median_itl_ms" not in result
    told, left = 12.0196, (1697.95 - 146.23) / 61.8
    assert left == pytest.approx(2 * told, rel=0.05)


def test_a_sweep_says_what_it_varied(tmp_path: Path) -> None:
    first, second = read("sweep.json")
    assert first.engine == {"max_num_seqs": 32, "max_num_batched_tokens": 2048} and second.engine["max_num_seqs"] == 64
    rows = json.loads((FILES / "sweep.json").read_text(encoding="utf-8"))
    table = StringIO()  # as pandas writes it: with a column for the index, and 32 where all cells are whole
    writer = csv.DictWriter(table, fieldnames=["", *rows[0]])
    writer.writeheader()
    writer.writerows({"": number, **row} for number, row in enumerate(rows))
    path = tmp_path / "summary.csv"
    path.write_text(table.getvalue(), encoding="utf-8")
    runs = read_measurements(path, STATED)
    assert [one.max_num_seqs for one in runs] == [32, 64] and runs[0].metrics["mean_e2el_ms"] == 993.595
    assert read_measurements(tmp_path, STATED) == runs  # the folder of the sweep


def test_sglang_is_another_engine_and_its_benchmark_may_measure_vllm(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bench_serving measured sglang, and predictions are of vLLM"):
        read("sglang.jsonl")
    path = changed(tmp_path, "sglang.jsonl", backend="vllm")
    (one,) = read_measurements(path, STATED)
    assert one.metrics["mean_e2el_ms"] == 2409.499004891637 and one.length_distribution == "sharegpt"
    assert (one.arrival, one.request_rate, one.num_prompts) == ("poisson", 5.0, 1000)
    assert one.mean_output_len == pytest.approx(195.775)
    path.write_text(path.read_text() + "\n" + path.read_text().replace("204.5", "204.4"), encoding="utf-8")
    assert len(read_measurements(path, STATED)) == 2


@pytest.mark.parametrize("name", ["guidellm.json", "aiperf.json", "genai_perf.json", "inference_perf.json"])
def test_every_sample_becomes_a_run_without_contradiction(name: str) -> None:
    (one,) = read_measurements(FILES / name, STATED)
    check_run(one)
    assert (one.gpu, one.model, one.bench) == ("h100", "meta-llama/Llama-3.1-8B-Instruct", "serve")
    assert one.metrics.keys() >= {"output_throughput", "mean_ttft_ms", "mean_e2el_ms"}


def test_inferencex_says_its_engine_itself(tmp_path: Path) -> None:
    released = changed(tmp_path, "inferencex.json", image="vllm/vllm-openai-rocm:v0.21.0")
    (one,) = read_measurements(released, Stated())
    assert (one.gpu, one.engine_version, one.tensor_parallel_size) == ("mi300x", "0.21.0", 8)
    assert (one.length_distribution, one.input_len, one.num_prompts) == ("uniform-0.8-1", 1024, 1280)
    spread = changed(
        tmp_path, "inferencex.json", image="vllm/vllm-openai:v0.25.0", dp_attention="true", ep=8, hw="B200-NB"
    )
    (one,) = read_measurements(spread, Stated())
    assert (one.gpu, one.tensor_parallel_size, one.data_parallel_size, one.expert_parallel_size) == ("b200", 1, 8, 8)
    with pytest.raises(InputError, match="--engine-version"):
        read_measurements(FILES / "inferencex.json", Stated())


@pytest.mark.parametrize(
    ("name", "fields", "cause"),
    [
        ("inference_perf_summary.json", {}, "a summary of inference-perf mixes its stages"),
        ("inference_perf.json", {"failures": {"count": 3}}, "6715 of 6718 requests completed"),
        ("guidellm.json", {"benchmarks": []}, "no benchmark of GuideLLM"),
        ("guidellm.json", {"benchmarks": [{"metrics": None}]}, "no benchmark of GuideLLM, or one without metrics"),
        ("guidellm.json", {"benchmarks": [{"metrics": {"request_totals": {}}}]}, "request_totals.successful is None"),
        ("aiperf.json", {"error_request_count": {"unit": "requests", "avg": 2}}, "96 of 98 requests completed"),
        ("aiperf.json", {"input_sequence_length": {"avg": "many"}}, "input_sequence_length.avg is 'many'"),
        ("inferencex.json", {"spec_decoding": "mtp"}, "speculative decoding"),
        ("inferencex.json", {"framework": "sglang"}, "predictions are of vLLM"),
        ("inferencex.json", {"disagg": "true"}, "disaggregated prefill"),
        ("sweep.json", {"failed": 2}, "6 of 8 requests completed"),
    ],
)
def test_what_is_no_whole_run_is_refused(tmp_path: Path, name: str, fields: dict[str, Any], cause: str) -> None:
    with pytest.raises(InputError) as refused:
        read_measurements(changed(tmp_path, name, **fields), STATED)
    assert cause in refused.value.cause and refused.value.hint


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[1, 2]", '{"a": [', '{"conc": 1}\n{"conc": [}', '{"benchmarks": {}}', "[[]]"]
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    cause, _ = error_of(run("evaluate", str(path), "--gpu", "h100", "--engine-version", "0.11.0"))
    assert "other.json" in cause


def test_validate_compares_another_tools_result_with_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's load sent by GuideLLM: as predicted, and then twice as slow."""
    asked = (
        "--gpu",
        "h100",
        "--gpus",
        "1",
        "--max-concurrency",
        "8",
        "--num-prompts",
        "40",
        "--random-output-len",
        "64",
    )
    assert run("recommend", "Qwen/Qwen3-8B", *asked, "-o", str(tmp_path / "plan")).status == 0
    plan = json.loads((tmp_path / "plan" / "plan.json").read_text(encoding="utf-8"))
    predicted = plan["predicted"]

    def guidellm(slower: float) -> Path:
        def of(value: float) -> dict[str, Any]:
            return {"successful": {"mean": value}}

        metrics = {
            "request_totals": {"successful": 40, "errored": 0},
            "prompt_token_count": of(1024), "output_token_count": of(64),
            "output_tokens_per_second": of(predicted["output_throughput"] / slower),
            "time_to_first_token_ms": of(predicted["mean_ttft_ms"] * slower),
            "inter_token_latency_ms": of(predicted["mean_tpot_ms"] * slower),
            "request_latency": of(predicted["mean_e2el_ms"] * slower / 1000),
        }  # fmt: skip
        config = {"strategy": {"type_": "concurrent", "streams": 8}, "backend": {"model": plan["model"]}}
        path = tmp_path / f"benchmarks-{slower}.json"
        path.write_text(json.dumps({"benchmarks": [{"config": config, "metrics": metrics}]}), encoding="utf-8")
        return path

    same = run("validate", str(tmp_path / "plan"), "--result", str(guidellm(1.0)))
    assert same.status == 0, same.err
    assert run("validate", str(tmp_path / "plan"), "--result", str(guidellm(2.5))).status == 1
    cause, _ = error_of(run("validate", str(tmp_path / "plan"), "--result", str(FILES / "sweep.json")))
    assert "holds 2 runs" in cause


def test_evaluate_and_calibrate_read_them(tmp_path: Path) -> None:
    told = ("--gpu", "h100", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--engine-version", "0.11.0")
    done = run("evaluate", str(FILES / "inference_perf.json"), *told, "--max-num-seqs", "192", "--format", "json")
    (row,) = json.loads(done.out)["rows"]
    assert done.status == 0 and row["refused"] is None
    figure = row["metrics"]["output_throughput"]
    assert figure["measured"] == pytest.approx(6955.730744537778)
    assert 0.65 < figure["predicted"] / 6955.73 < 1.3
    kept = tmp_path / "own.toml"
    done = run("calibrate", str(FILES / "inference_perf.json"), *told, "--max-num-seqs", "192", "-o", str(kept))
    assert done.status in (0, 1) or "the runs determine none of the factors" in done.err


# --- broken in any way ---------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**6), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.just([{"x": 1}]), st.just({"avg": "x", "mean": [], "successful": 3}), st.just("1e999"), st.just(10**400),
)  # fmt: skip


def places(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a record, its inner ones included."""
    inner = record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def put(record: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The record with another value in one place."""
    if not path:
        return value
    copy = dict(record) if isinstance(record, dict) else list(record)
    copy[path[0]] = put(record[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("*.json*")))
@given(data=st.data())
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_broken_file_is_a_run_or_an_error_with_a_hint(tmp_path: Path, name: str, data: st.DataObject) -> None:
    record = json.loads((FILES / name).read_text(encoding="utf-8"))
    if name == "sglang.jsonl":
        record["backend"] = "vllm"
    for _ in range(data.draw(st.integers(1, 3))):
        record = put(record, data.draw(st.sampled_from(places(record))), data.draw(VALUES))
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    try:
        for one in read_measurements(path, STATED):
            check_run(one)
            assert all(value > 0 for value in one.metrics.values())
    except PlannerError as error:
        assert error.cause and error.hint
