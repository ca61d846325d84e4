"""Predicted beside measured: what is compared, what is refused, and which cause is named for which pattern."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from script_plans import DRAFTED
from script_plans import plan as a_plan

from planner.errors import InputError
from planner.evidence.folder import read_measured, read_server_log
from planner.evidence.sources import Stated, read_sources
from planner.evidence.validation import Validation, validate
from planner.memory.startup_log import read_startup_log
from planner.planning.plan import Plan, PlanFile, PlannedTarget, PlannedWorkload, Service, read_plan
from planner.units import GIB

MODEL = "amd/Llama-3.3-70B-Instruct-FP8-KV"
LOAD = PlannedWorkload(input_len=1024, output_len=1024, num_prompts=320, max_concurrency=64)
#: 64 requests of 1024 tokens in 20 s: 3277 tokens/s; (20 s - 0.5 s) / 1023 tokens = 19.06 ms.
PREDICTED: dict[str, Any] = {
    "output_throughput": 3277.0,
    **{f"{s}_ttft_ms": ms for s, ms in (("mean", 500.0), ("median", 480.0), ("p99", 1500.0))},
    **{f"{s}_tpot_ms": ms for s, ms in (("mean", 19.06), ("median", 19.0), ("p99", 20.0))},
    **{f"{s}_itl_ms": ms for s, ms in (("mean", 19.06), ("median", 18.0), ("p99", 60.0))},
    **{f"{s}_e2el_ms": ms for s, ms in (("mean", 20000.0), ("median", 20000.0), ("p99", 21000.0))},
}
MEMORY = {
    "memory_bytes": round(287.65 * GIB), "weights_bytes": round(67.7 * GIB), "kv_cache_bytes": 180 * GIB,
    "kv_cache_bytes_lo": 175 * GIB, "kv_cache_bytes_hi": 183 * GIB, "kv_cache_tokens": 1_179_648,
}  # fmt: skip
SERVED = ("vllm", "serve", MODEL, "--dtype", "bfloat16", "--kv-cache-dtype", "fp8")
#: Lines as vLLM 0.11 to 0.32 prints them.
LOG = """
(APIServer pid=1) INFO 11-20 10:00:00 [utils.py:233] vLLM API server version 0.11.0
(APIServer pid=1) INFO 11-20 10:00:00 [utils.py:233] non-default args: {'model_tag': 'amd/Llama-3.3-70B-Instruct-FP8-KV', 'max_model_len': 9216, 'gpu_memory_utilization': 0.9, 'max_num_batched_tokens': 32768, 'max_num_seqs': 64}
(EngineCore_DP0 pid=77) INFO 11-20 10:00:09 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='amd/Llama-3.3-70B-Instruct-FP8-KV', max_seq_len=9216, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False, kv_cache_dtype=fp8
(EngineCore_DP0 pid=77) INFO 11-20 10:01:30 [gpu_model_runner.py:2653] Model loading took 67.7012 GiB and 81.1 seconds
(EngineCore_DP0 pid=77) INFO 11-20 10:02:44 [gpu_worker.py:298] Available KV cache memory: 180.53 GiB
(EngineCore_DP0 pid=77) INFO 11-20 10:02:44 [kv_cache_utils.py:1087] GPU KV cache size: 1,183,120 tokens
(EngineCore_DP0 pid=77) INFO 11-20 10:02:44 [kv_cache_utils.py:1091] Maximum concurrency for 9,216 tokens per request: 128.38x
(APIServer pid=1) INFO 11-20 10:05:00 [loggers.py:127] Engine 000: Avg prompt throughput: 3011.2 tokens/s, Avg generation throughput: 3201.9 tokens/s, Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.8%, Prefix cache hit rate: 0.0%
"""  # noqa: E501
#: Of a CPU: vLLM 0.32.0, as it printed them.
CPU_LOG = """
(EngineCore pid=6560) INFO 11-20 18:36:58 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='./tiny', max_seq_len=512
(Worker pid=6576) INFO 11-20 18:37:37 [cpu_worker.py:260] Auto set (0.13/8.46) GiB for KV cache on node 0, with 0.85 GiB requested memory for the worker. 0.72 GiB memory was consumed by non-kv usages.
(EngineCore pid=6560) INFO 11-20 18:37:37 [kv_cache_utils.py:2327] CPU KV cache size: 32,896 tokens, Maximum concurrency for 512 tokens per request: 64.25x
"""  # noqa: E501


def made(**changes: Any) -> Plan:
    return a_plan(workload=LOAD, predicted=PREDICTED, memory=MEMORY, **changes)


def result_of(measured: Plan, **changes: Any) -> dict[str, Any]:
    """What ``vllm bench serve`` would have written had everything come out as predicted."""
    load = measured.workload
    return {
        "model_id": measured.model, "num_prompts": load.num_prompts, "max_concurrency": load.max_concurrency,
        "request_rate": "inf", "completed": load.num_prompts, "failed": 0,
        "total_input_tokens": load.num_prompts * load.input_len,
        "total_output_tokens": load.num_prompts * load.output_len, **PREDICTED, **changes,
    }  # fmt: skip


Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A plan's folder after its scripts ran."""

    def write(saved: Plan | None = None, *, log: str | None = LOG, name: str = "", **measured: Any) -> Path:
        saved = saved or made()
        file = PlanFile(planner_version="0.1.0", command="planner recommend", goal="balanced", plan=saved)
        (tmp_path / "results").mkdir(exist_ok=True)
        (tmp_path / "logs").mkdir(exist_ok=True)
        (tmp_path / "plan.json").write_text(file.to_json())
        result = tmp_path / "results" / (name or f"serve-{saved.digest}.json")
        result.write_text(json.dumps(result_of(saved, **measured)))
        if log is not None:
            (tmp_path / "logs" / "server.log").write_text(log)
        return tmp_path

    return write


def slower(factor: float, *names: str) -> dict[str, float]:
    """Latencies whose names end so, ``factor`` times the prediction."""
    return {key: value * factor for key, value in PREDICTED.items() if key.endswith(tuple(f"{n}_ms" for n in names))}


def verdicts(found: Validation) -> dict[str, str]:
    return {line.metric: line.verdict for line in found.lines}


# --- what is compared ----------------------------------------------------------------------------------------------


def test_what_comes_out_as_predicted_is_inside(folder: Folder) -> None:
    outcome = run("validate", str(folder()), "--format", "json")
    said = json.loads(outcome.out)
    assert outcome.status == 0 and said["inside"] and said["findings"] == []
    lines = {line["metric"]: line for line in said["lines"]}
    # ± 20 % of 19.06 ms; no interval in this plan
    assert lines["mean_tpot_ms"]["lo"] == pytest.approx(15.248) and lines["mean_tpot_ms"]["hi"] == pytest.approx(22.872)
    assert lines["mean_tpot_ms"]["basis"] == "± 20%"
    # the cache has an interval of its own, and its tokens the same one: 1,179,648 x 175 / 180
    assert lines["kv_cache_bytes"]["basis"] == "interval"
    assert (lines["kv_cache_bytes"]["lo"], lines["kv_cache_bytes"]["measured"]) == (175, 180.53)
    assert lines["kv_cache_tokens"]["lo"] == pytest.approx(1_146_880)
    assert lines["weights_bytes"]["measured"] == pytest.approx(67.7012)
    table = run("validate", str(folder())).out.splitlines()
    assert table[0].split()[:2] == ["metric", "unit"]  # also beside tokens: 1,179,648 without decimals
    assert next(line.split()[:3] for line in table if line.startswith("kv_cache_b")) == [
        "kv_cache_bytes",
        "GiB",
        "180.00",
    ]


@pytest.mark.parametrize(
    ("predicted_ms", "measured_ms", "verdict", "status"),
    [(53.0, 92.0, "missed", 1), (53.0, 79.0, "met", 0), (85.0, 92.0, "not judged", 0), (53.0, None, "not measured", 0)],
)
def test_a_benchmark_that_misses_a_target_makes_the_answer_no(
    folder: Folder, predicted_ms: float, measured_ms: float | None, verdict: str, status: int
) -> None:
    """80 ms; every figure is inside its interval. A burst that opens a closed loop may be predicted to miss."""
    key = "p95_tpot_ms"
    target = PlannedTarget(metric=key, limit_ms=80.0, predicted_ms=53.0, expected_ms=68.0, met=True)
    saved = made(service=Service(targets=(target,), replicas=1, total_gpus=1, packages=1.0, goodput=1.0))
    bounds = {key: predicted_ms, f"{key}_lo": 32.0, f"{key}_hi": 97.0}
    where = folder(saved.model_copy(update={"predicted": PREDICTED | bounds}), **{key: measured_ms})
    outcome = run("validate", str(where))
    assert outcome.status == status and f"target p95 TPOT of 80 ms: {verdict} (" in outcome.out


@pytest.mark.parametrize("alone", [True, False])
def test_the_benchmark_of_a_nodes_servers_is_the_plans_own_load(folder: Folder, *, alone: bool) -> None:
    """``instances.sh bench`` sends four servers four times the load: 4 x 3277 tokens/s, latencies as of one."""
    saved = made(service=Service(targets=(), replicas=4, total_gpus=4, packages=4.0, goodput=1.0))
    totals = "num_prompts", "max_concurrency", "completed", "total_input_tokens", "total_output_tokens"
    ran = {name: value * 4 for name, value in result_of(saved).items() if name in (*totals, "output_throughput")}
    where = folder(saved, name=saved.node_result_name, **ran)
    if not alone:
        folder(saved)
    found = validate(where)
    lines = found.lines if alone else found.further[0].lines
    assert {line.metric: line.measured for line in lines}["output_throughput"] == 3277.0 and found.inside
    assert read_sources([where], Stated()).runs[0].metrics["output_throughput"] == 3277.0


def test_the_interval_of_a_prediction_counts_where_there_is_one(folder: Folder) -> None:
    bounds = {"mean_ttft_ms_lo": 300.0, "mean_ttft_ms_hi": 900.0}
    saved = made().model_copy(update={"predicted": {**PREDICTED, **bounds}})
    inside = validate(folder(saved, mean_ttft_ms=899.0))
    assert verdicts(inside)["mean_ttft_ms"] == "inside"
    assert verdicts(validate(folder(saved, mean_ttft_ms=901.0)))["mean_ttft_ms"] == "above"
    assert verdicts(validate(folder(saved, mean_ttft_ms=299.0)))["mean_ttft_ms"] == "below"


def test_what_the_log_says_of_a_run_that_is_inside_explains_no_miss(folder: Folder) -> None:
    outcome = run("validate", str(folder(log=LOG + "Engine 000: Running: 64 reqs, Waiting: 2 reqs, Preemptions: 3\n")))
    assert outcome.status == 0 and "mind: requests were preempted" in outcome.out
    assert "likeliest cause" not in outcome.out


def test_one_line_outside_makes_the_answer_no(folder: Folder) -> None:
    outcome = run("validate", str(folder(output_throughput=2000.0)))
    assert outcome.status == 1
    assert "outside: 1 of" in outcome.out and "likeliest cause:" in outcome.out and "next:" in outcome.out


@given(measured=st.floats(1.0, 1e6), factor=st.floats(1.0, 3.0))
def test_a_wider_interval_never_excludes_more(measured: float, factor: float) -> None:
    from planner.evidence.validation import ComparedLine

    narrow = ComparedLine("mean_ttft_ms", "ms", 500, 400, 600, measured, "interval")
    wide = ComparedLine("mean_ttft_ms", "ms", 500, 500 - 100 * factor, 500 + 100 * factor, measured, "interval")
    assert wide.verdict == "inside" or narrow.verdict == wide.verdict


def test_without_a_log_the_memory_is_not_compared_and_that_is_said(folder: Folder) -> None:
    outcome = run("validate", str(folder(log=None)))
    assert outcome.status == 0 and "memory is not compared" in outcome.err
    broken_off = validate(folder(log=LOG.split("Available")[0]))
    assert any("ends before the KV cache" in note for note in broken_off.measured.notes)
    assert "kv_cache_bytes" not in verdicts(broken_off)


def test_the_log_of_a_cpu_is_read() -> None:
    log = read_startup_log(CPU_LOG)
    assert log.kv_cache_bytes == pytest.approx(0.13 * GIB)
    assert log.memory_bytes == pytest.approx(8.46 * GIB)
    assert log.consumed_bytes == pytest.approx(0.72 * GIB)
    assert log.kv_cache_tokens == 32_896


def test_blocks_of_v0_are_tokens(folder: Folder) -> None:
    """1,179,648 tokens are 73,728 blocks of 16."""
    log = (
        "# GPU blocks: 73728, # CPU blocks: 2048\n"
        "model weights take 67.70GiB; the rest of the memory reserved for KV Cache is 180.00GiB"
    )
    line = next(line for line in validate(folder(log=log)).lines if line.metric == "kv_cache_tokens")
    assert (line.measured, line.error) == (1_179_648, 0.0)
    assert replace(line, predicted=11_206.7, measured=8_965.4).error_vs_predicted == pytest.approx(-0.2, abs=1e-4)


def test_accuracy_is_shown_without_a_prediction(folder: Folder) -> None:
    where = folder()
    below = where / "results" / f"accuracy-{made().digest}" / "amd__Llama"
    below.mkdir(parents=True)
    figures = {
        "alias": "gsm8k", "sample_len": 1319,
        "exact_match,flexible-extract": 0.9052, "exact_match_stderr,flexible-extract": 0.0081,
    }  # fmt: skip
    (below / "results_2026-11-20T10-00-00.json").write_text(json.dumps({"results": {"gsm8k": figures}}))
    outcome = run("validate", str(where), "--format", "json")
    assert json.loads(outcome.out)["accuracy"] == [
        {"task": "gsm8k", "metric": "exact_match,flexible-extract", "value": 0.9052, "stderr": 0.0081}
    ]
    assert "accuracy gsm8k, exact_match,flexible-extract: 0.9052 ± 0.0081" in run("validate", str(where)).out
    for broken in ('{"results": [1]}', "[1]", '{"results": {"gsm8k": {"acc,none": 1' + 400 * "0" + "}}}", "[" * 5000):
        (below / "results_2026-11-20T10-00-00.json").write_text(broken)
        assert run("validate", str(where)).status == 2


# --- what is refused -----------------------------------------------------------------------------------------------


def refusal(where: Path) -> InputError:
    with pytest.raises(InputError) as error:
        read_measured(where)
    assert error.value.hint
    return error.value


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    assert run("validate", str(tmp_path / "nowhere")).status == 2
    (tmp_path / "mi300x").mkdir()
    (tmp_path / "mi300x" / "plan.json").write_text("{}")
    assert "mi300x" in refusal(tmp_path).hint, "one folder per GPU: which ones there are is said"
    assert "is not a plan" in refusal(tmp_path / "mi300x").cause
    (tmp_path / "prefill.sh").touch()
    assert "run prefill.sh and decode.sh" in refusal(tmp_path).hint


def test_a_plan_that_was_edited_is_refused(folder: Folder) -> None:
    where = folder()
    text = (where / "plan.json").read_text()
    (where / "plan.json").write_text(text.replace('"max_num_seqs": 64', '"max_num_seqs": 128'))
    assert "was changed after it was written" in refusal(where).cause


def test_nothing_measured_is_not_a_measurement(folder: Folder) -> None:
    where = folder()
    for path in (where / "results").iterdir():
        path.unlink()
    assert "nothing was measured yet" in refusal(where).cause
    assert "benchmark.sh" in refusal(where).hint


def test_the_result_of_another_plan_is_refused(folder: Folder) -> None:
    said = refusal(folder(name="serve-0123456789ab.json"))
    assert "another plan" in said.cause and "serve-0123456789ab.json" in said.cause


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_prompts": 64}, "num_prompts is 64, but the plan sends 320"),
        ({"max_concurrency": 32}, "max_concurrency is 32, but the plan sends 64"),
        ({"total_input_tokens": 320 * 512}, "total_input_tokens is 512 for each request, but the plan sends 1024"),
        ({"total_output_tokens": 320 * 128}, "total_output_tokens is 128 for each request"),
        ({"completed": 300, "failed": 20}, "300 of 320 requests completed"),
        ({"completed": None}, "is broken: completed is None"),
        ({"num_prompts": float("nan")}, "is broken: num_prompts is nan"),
        ({"model_id": "Qwen/Qwen3-32B"}, "is of Qwen/Qwen3-32B, its plan is of amd/Llama"),
    ],
)
def test_another_load_is_refused(folder: Folder, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(folder(**changes)).cause


def test_a_tokeniser_may_add_a_token_to_each_prompt(folder: Folder) -> None:
    assert validate(folder(total_input_tokens=320 * 1025)).inside


@pytest.mark.parametrize("text", ["", "{", "[1]", "not json", "\ufffd{"])
def test_a_broken_result_is_refused(folder: Folder, text: str) -> None:
    where = folder()
    (where / "results" / f"serve-{made().digest}.json").write_text(text)
    assert refusal(where)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, 1e300, "12"])
def test_a_figure_that_is_no_number_is_never_inside(folder: Folder, value: Any) -> None:
    with pytest.raises(InputError, match="mean_ttft_ms is"):
        validate(folder(mean_ttft_ms=value))


def test_a_result_that_is_no_text_is_refused(folder: Folder) -> None:
    where = folder()
    (where / "results" / f"serve-{made().digest}.json").write_bytes(b"\xff\xfe\x00")
    assert "is not a text file" in refusal(where).cause


def test_the_log_of_another_model_is_refused(folder: Folder) -> None:
    log = LOG.replace("Llama-3.3-70B-Instruct-FP8-KV", "Qwen3-32B")
    assert "Qwen3-32B" in refusal(folder(log=log)).cause


# --- why -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        # a prefill twice as slow, decoding as predicted
        (slower(2.0, "ttft"), "prefill, or the queue before it, is slower"),
        # decoding 1.5 times as slow with steps of 19 ms
        (slower(1.5, "tpot", "itl", "e2el"), "decoding is slower than predicted; prefill is inside its interval"),
        # all of it 1.5 times: the machine
        (slower(1.5, "ttft", "tpot", "itl", "e2el"), "everything is slower by one factor"),
        # prefill 3 times, decoding 1.4 times
        ({**slower(3.0, "ttft"), **slower(1.4, "tpot", "e2el")}, "are slower, by different factors"),
        ({"p99_itl_ms": 400.0}, "some gaps between tokens are longer"),
        ({**slower(0.7, "tpot", "itl", "e2el"), "output_throughput": 4680.0}, "the machine is faster than predicted"),
        ({"output_throughput": 2000.0}, "no single cause stands out"),
    ],
)
def test_the_pattern_of_the_misses_names_the_cause(folder: Folder, measured: dict[str, float], words: str) -> None:
    found = validate(folder(**measured))
    assert not found.inside
    assert words in found.findings[0].cause
    assert found.findings[0].evidence and found.findings[0].next_step


def test_a_tail_that_grows_like_the_median_is_no_cause_of_its_own(folder: Folder) -> None:
    wide = {**PREDICTED, "median_itl_ms_lo": 9.0, "median_itl_ms_hi": 36.0}  # 1.5 x 18 ms is inside
    found = validate(folder(made().model_copy(update={"predicted": wide}), **slower(1.5, "ttft", "tpot", "itl")))
    assert [finding.cause for finding in found.findings] == ["everything is slower by one factor"]


def test_short_steps_that_grow_are_the_hosts(folder: Folder) -> None:
    """A small model: 4 ms a step predicted, 6 measured."""
    short = {key: value / 4.75 for key, value in PREDICTED.items() if key.endswith(("tpot_ms", "itl_ms"))}
    saved = made().model_copy(update={"predicted": {**PREDICTED, **short}})
    found = validate(folder(saved, **{key: value * 1.5 for key, value in short.items()}))
    assert "the host does not keep up" in found.findings[0].cause


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("'max_num_seqs': 64", "'max_num_seqs': 256", "max_num_seqs 256 instead of 64"),
        ("'max_num_batched_tokens': 32768", "'max_num_batched_tokens': 8192", "max_num_batched_tokens 8192 instead"),
        ("enforce_eager=False", "enforce_eager=True", "enforce_eager True instead of False"),
        ("0.11.0", "0.10.2", "the log is of vLLM 0.10.2, the plan is for 0.11.0"),
        ("tensor_parallel_size=1", "tensor_parallel_size=2", "tensor_parallel_size 2 instead of 1"),
        ("kv_cache_dtype=fp8", "kv_cache_dtype=auto", "kv_cache_dtype auto instead of fp8"),
        ("kv_cache_dtype=fp8", "kv_cache_dtype=bfloat16", "kv_cache_dtype bfloat16 instead of fp8"),
        ("kv_cache_dtype=fp8", "kv_cache_dtype=fp8_e5m2", "kv_cache_dtype fp8_e5m2 instead of fp8"),
        ("enforce_eager=False", "dtype=torch.float16", "dtype float16 instead of bfloat16"),
        ("enforce_eager=False", "enable_expert_parallel=True", "enable_expert_parallel True instead of False"),
    ],
)
def test_what_is_inside_without_the_plan_is_no_proof_of_it(folder: Folder, old: str, new: str, words: str) -> None:
    """Every figure is as predicted; what ran is not what was planned, so the answer is no."""
    assert LOG.count(old)
    where = folder(made(serve_argv=SERVED), log=LOG.replace(old, new))
    found = validate(where)
    assert found.inside and not found.as_planned
    assert words in found.findings[0].evidence
    outcome = run("validate", str(where))
    assert outcome.status == 1 and "inside, but this is not the plan" in " ".join(outcome.out.split())
    assert "not the plan: " in outcome.out and "next: " in outcome.out
    said = json.loads(run("validate", str(where), "--format", "json").out)
    assert said["inside"] and not said["as_planned"]


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_ds_mla", "fp8"])
def test_other_names_of_the_planned_types_are_the_plan(folder: Folder, name: str) -> None:
    log = LOG.replace("kv_cache_dtype=fp8", f"kv_cache_dtype={name}, dtype=torch.bfloat16")
    log += "INFO some kernel was compiled for dtype: float32\n"  # not a setting
    assert validate(folder(made(serve_argv=SERVED), log=log)).findings == ()


@pytest.mark.parametrize(("places", "as_planned"), [(128, True), (64, False)])
def test_the_benchmark_line_is_the_plan_too(folder: Folder, places: int, *, as_planned: bool) -> None:
    """``./launch.sh --benchmark`` passes 2048 and 128; 9216 and 64 are the serving line's. A mix is neither."""
    log = LOG.replace("9216", "2048").replace("'max_num_seqs': 64", f"'max_num_seqs': {places}")
    assert validate(folder(made(benchmark_line=DRAFTED), log=log)).as_planned is as_planned


def test_a_plan_that_leaves_a_type_to_vllm_is_not_contradicted_by_auto(folder: Folder) -> None:
    """A checkpoint with scales for its cache: auto is fp8."""
    argv = ("vllm", "serve", MODEL, "--kv-cache-dtype", "auto")
    log = LOG.replace("kv_cache_dtype=fp8", "kv_cache_dtype=auto, dtype=torch.bfloat16")
    assert validate(folder(made(serve_argv=argv), log=log)).findings == ()


def test_a_build_without_a_number_is_not_another_version(folder: Folder) -> None:
    log = LOG.replace("0.11.0", "0.1.dev11974+g1b2c3d4")
    assert validate(folder(log=log + "INFO: Using CUDA version 12.8\n")).findings == ()


def test_what_the_log_explains_comes_before_what_the_pattern_suggests(folder: Folder) -> None:
    """Half the memory: another GPU. That the cache is smaller and the first token late follows from it."""
    log = LOG.replace("180.53 GiB", "20.00 GiB").replace("1,183,120", "131,072")
    log += "total_gpu_memory (191.98GiB) x gpu_memory_utilization (0.90) = 172.78GiB\n"
    found = validate(folder(log=log, **slower(3.0, "ttft")))
    assert "did not run on the planned GPU" in found.findings[0].cause
    assert not any("fewer blocks" in finding.cause for finding in found.findings)
    assert verdicts(found)["kv_cache_tokens"] == "below"


def test_fewer_blocks_are_named_with_what_took_the_memory(folder: Folder) -> None:
    log = LOG.replace("180.53 GiB", "150.00 GiB").replace("1,183,120", "983,040")
    found = validate(folder(log=log + "Graph capturing finished in 60 secs, took 29.10 GiB\n"))
    assert "fewer blocks" in found.findings[0].cause
    assert "983,040 tokens instead of 1,179,648" in found.findings[0].evidence
    assert "graphs 29.10 GiB" in found.findings[0].evidence


def test_a_small_cache_explains_a_late_first_token_only_where_the_load_needs_more(folder: Folder) -> None:
    """64 requests of 2048 tokens need 131,072: a cache of 983,040 does not slow them, one of 98,304 does."""
    large = LOG.replace("180.53 GiB", "150.00 GiB").replace("1,183,120", "983,040")
    small = LOG.replace("180.53 GiB", "15.00 GiB").replace("1,183,120", "98,304")
    causes = [finding.cause for finding in validate(folder(log=large, **slower(2.0, "ttft"))).findings]
    assert "prefill" in causes[0] and "fewer blocks" in causes[-1]
    found = validate(folder(log=small, **slower(2.0, "ttft"))).findings[0]
    assert "requests wait" in found.cause and "up to 131,072 tokens at once" in found.evidence


@pytest.mark.parametrize(
    ("load", "settings", "needed"),
    [
        ({}, {}, "131,072"),  # 64 x (1024 + 1024)
        ({"prefix_len": 512}, {}, "163,840"),  # 64 x (512 + 1024 + 1024)
        ({"prefix_len": 512}, {"enable_prefix_caching": True}, "131,584"),  # 512 + 64 x 2048: the prefix is there once
        ({"range_ratio": 0.5}, {}, "196,608"),  # 64 x 1.5 x 2048
        ({"max_concurrency": 9}, {"data_parallel_size": 2}, "10,240"),  # each copy gets five of nine at most
        ({}, {"max_num_seqs": 32}, "65,536"),
    ],
)
def test_what_a_load_needs_of_the_cache(
    folder: Folder, load: dict[str, Any], settings: dict[str, Any], needed: str
) -> None:
    small = LOG.replace("180.53 GiB", "1.00 GiB").replace("1,183,120", "6,553")
    plan = made(**settings).model_copy(update={"workload": LOAD.model_copy(update=load)})
    causes = validate(folder(plan, log=small, **slower(2.0, "ttft"))).findings
    assert any(f"the load holds up to {needed} tokens at once" in finding.evidence for finding in causes)


def test_weights_that_are_twice_as_large_were_not_quantised(folder: Folder) -> None:
    found = validate(folder(log=LOG.replace("took 67.7012 GiB", "took 131.4500 GiB")))
    assert "other weights were loaded" in found.findings[0].cause
    assert "131.45 GiB on each GPU instead of 67.70 for fp8" in found.findings[0].evidence


def test_preemptions_are_named(folder: Folder) -> None:
    log = LOG.replace(
        "Waiting: 0 reqs, GPU KV cache usage: 9.8%", "Waiting: 9 reqs, Preemptions: 41, GPU KV cache usage: 99.9%"
    )
    found = validate(folder(log=log, **slower(2.0, "ttft", "e2el")))
    assert "preempted" in found.findings[0].cause and "41 preemptions" in found.findings[0].evidence


def test_a_second_run_against_the_same_server_finds_its_prompts_again(folder: Folder) -> None:
    log = LOG.replace("hit rate: 0.0%", "hit rate: 48.7%")
    found = validate(folder(log=log, **slower(0.3, "ttft")))
    assert "prefix cache" in found.findings[0].cause and "49%" in found.findings[0].evidence


# --- the server's log ----------------------------------------------------------------------------------------------


def test_settings_are_read_from_every_era() -> None:
    v0 = "INFO] args: Namespace(model='m', tensor_parallel_size=4, max_num_seqs=256, enforce_eager=True)"
    assert dict(read_server_log(v0).settings) == {
        "tensor_parallel_size": 4, "max_num_seqs": 256, "enforce_eager": True,
    }  # fmt: skip
    assert read_server_log(LOG).settings["max_num_batched_tokens"] == 32768
    assert read_server_log(LOG).version == "0.11.0"


def test_what_v0_preempts_is_counted() -> None:
    line = "WARNING scheduler.py:1754] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because\n"
    assert read_server_log(line * 3).preemptions == 3


def test_of_the_periodic_lines_the_worst_counts() -> None:
    text = "\n".join(
        f"Engine 000: Running: {r} reqs, Waiting: {w} reqs, GPU KV cache usage: {u}%, Prefix cache hit rate: {h}%"
        for r, w, u, h in ((8, 0, 12.5, 0.0), (64, 17, 99.1, 3.4), (3, 0, 2.0, 3.1))
    )
    log = read_server_log(text)
    assert (log.peak_waiting, log.peak_cache_usage) == (17, 0.991)
    assert log.prefix_hit_rate == pytest.approx(0.034)


@given(st.text())
def test_no_log_is_too_strange_to_read(text: str) -> None:
    assert read_server_log(text).preemptions >= 0


# --- other loads of the same server --------------------------------------------------------------------------------


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., Validation]:
    """A real plan, measured as predicted at its own load, and at other ones ``factor`` times as slow as a replay."""
    words = ("--goal", "max-throughput", "--max-concurrency", "16", "--input-len", "256", "--output-len", "64")
    outcome = run(
        "recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", *words, "-o", str(tmp_path / "plan")
    )
    assert outcome.status == 0, outcome.err

    def write(factor: float, **changes: Any) -> Validation:
        saved = read_plan(tmp_path / "plan").plan
        results = tmp_path / "plan" / "results"
        results.mkdir(exist_ok=True)
        own = result_of(saved, **saved.predicted)
        (results / f"serve-{saved.digest}.json").write_text(json.dumps(own))
        settings = ("kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "engine_version")
        flags = [word for name in settings for word in (f"--{name.replace('_', '-')}", str(getattr(saved, name)))]
        load = "--random-input-len 256 --random-output-len 64 --max-concurrency 4 --num-prompts 20 --format json"
        predicted = json.loads(run("predict", "serve", saved.model, "--gpu", "h100", *flags, *load.split()).out)
        figures = {key: predicted[key] * factor for key in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")}
        sent = {"num_prompts": 20, "completed": 20, "max_concurrency": 4, "total_input_tokens": 20 * 256}
        sweep = {**own, **figures, **sent, "total_output_tokens": 20 * 64, "output_throughput": None, **changes}
        (results / f"sweep-concurrency-4-{saved.digest}.json").write_text(json.dumps(sweep))
        return validate(tmp_path / "plan")

    return write


def test_each_load_of_a_sweep_stands_beside_its_own_prediction(swept: Callable[..., Validation]) -> None:
    found = swept(1.0)
    (load,) = found.further
    assert load.load == "concurrency-4" and {line.metric for line in load.lines} >= {"mean_ttft_ms", "mean_tpot_ms"}
    assert all(line.error == pytest.approx(0, abs=0.02) for line in load.lines), "planner predict says the same"
    assert found.inside and not found.findings


def test_a_load_of_a_sweep_that_is_outside_makes_the_answer_no_and_is_explained(
    swept: Callable[..., Validation],
) -> None:
    found = swept(10.0)
    assert all(line.verdict == "inside" for line in found.lines) and not found.inside
    assert found.findings[0].cause == "at concurrency-4: everything is slower by one factor"


def test_loads_of_a_sweep_say_that_the_fits_moved_since_the_plan(
    swept: Callable[..., Validation], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any("today's fits" in note for note in swept(1.0).notes)
    monkeypatch.setattr("planner.evidence.validation.SAME", -1.0)
    assert any("sweep.sh is predicted with today's fits" in note for note in swept(1.0).notes)


@pytest.mark.parametrize("limit", ["abc", [1], {}, True])
def test_a_load_of_a_sweep_that_is_no_number_is_refused(swept: Callable[..., Validation], limit: object) -> None:
    with pytest.raises(InputError, match=r"max_concurrency is .*, not a number"):
        swept(1.0, max_concurrency=limit)


def test_a_load_of_a_sweep_that_lost_requests_is_refused(swept: Callable[..., Validation]) -> None:
    with pytest.raises(InputError, match="19 of 20 requests completed"):
        swept(1.0, completed=19)
