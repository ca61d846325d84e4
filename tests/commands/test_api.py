"""The library: the answers of the command line, as objects; light to import, typed, and stable."""

import inspect
import json
import pickle
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from xml.etree import ElementTree

import pytest
from command_line import run, start
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner import (
    Answer,
    Capacity,
    Fit,
    IllegalPlanError,
    InputError,
    Load,
    PlannerError,
    Prediction,
    Serving,
    calibrate_from,
    check_command,
    check_fit,
    compare_gpus,
    evaluate_runs,
    list_fits,
    list_gpus,
    list_models,
    load_gpu,
    load_model,
    predict_latency,
    predict_serve,
    predict_throughput,
    recommend_plans,
    size_fleet,
    sweep_fit,
    validate_plan,
    write_scripts,
)
from planner.commands.load import with_use_case
from planner.engine import SETTINGS
from planner.workload import NAMED, named_sessions, use_cases

pytestmark = pytest.mark.usefixtures("small_searches")

ROOT = Path(__file__).parents[2]
NOUNS = (Serving, Load, Fit, Prediction, Capacity)
GOLDEN = Path(__file__).parents[1] / "golden" / "api.txt"
LLAMA = "meta-llama/Llama-2-7b-hf"
LONG = "meta-llama/Llama-3.1-8B-Instruct"
RUNS = ROOT / "docs" / "data" / "mi300x-vllm-0.9.1.csv"
LINE = f"vllm serve {LLAMA} --max-num-seqs 16 --max-model-len 2048"
SHORT = ("--num-prompts", "16", "--max-concurrency", "4")
PINNED: dict[str, Any] = {"max_num_seqs": 128, "max_num_batched_tokens": 8192}  #: fewer choices to search

#: The same question, asked of the library and of the command line.
SAME: list[tuple[Callable[[], Answer], tuple[str, ...]]] = [
    (
        lambda: check_fit(LLAMA, "h100", tensor_parallel_size=2, gpu_memory_utilization=0.8),
        ("fit", LLAMA, "--gpu", "h100", "-tp", "2", "--gpu-memory-utilization", "0.8"),
    ),
    (
        lambda: check_fit("meta-llama/Llama-3.1-70B-Instruct", load_gpu("b200"), weight_dtype="fp8", explain=True),
        ("fit", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "b200", "--weight-dtype", "fp8", "--explain"),
    ),
    (
        lambda: list_fits("meta-llama/Llama-3.1-70B-Instruct", ["mi300x-cpx", "b200"], tensor_parallel_size=2),
        (*("fit", "meta-llama/Llama-3.1-70B-Instruct", "--gpu", "mi300x-cpx", "--gpu", "b200"), "-tp", "2"),
    ),
    (lambda: sweep_fit(LLAMA, "h100"), ("fit", LLAMA, "--gpu", "h100", "--sweep")),
    (
        lambda: predict_serve(
            LLAMA, "mi300x", input_len=512, num_prompts=16, max_concurrency=4, random_range_ratio=0.5, seed=3,
            metric_percentiles=(50, 99.9), goodput={"ttft": 500}, enable_prefix_caching=False,
        ),
        ("predict", "serve", LLAMA, "--gpu", "mi300x", "--random-input-len", "512", *SHORT, "--random-range-ratio",
         "0.5", "--seed", "3", "--metric-percentiles", "50,99.9", "--goodput", "ttft:500",
         "--no-enable-prefix-caching"),
    ),
    (
        lambda: predict_serve(LLAMA, "h100-mig-1g.10gb", num_prompts=16, max_concurrency=4),  # does not fit
        ("predict", "serve", LLAMA, "--gpu", "h100-mig-1g.10gb", *SHORT),
    ),
    (
        lambda: predict_throughput(load_model(LLAMA), "h100", input_len=128, output_len=32, num_prompts=16),
        ("predict", "throughput", LLAMA, "--gpu", "h100", "--input-len", "128", "--output-len", "32",
         "--num-prompts", "16"),
    ),
    (
        lambda: predict_latency(LLAMA, "h100", batch_size=2),
        ("predict", "latency", LLAMA, "--gpu", "h100", "--batch-size", "2"),
    ),
    (
        lambda: recommend_plans(LLAMA, ["h100", "mi300x"], goal="min-latency", kv_cache_dtype="fp8", input_len=512),
        ("recommend", LLAMA, "--gpu", "h100", "--gpu", "mi300x", "--goal", "min-latency", "--kv-cache-dtype", "fp8",
         "--random-input-len", "512"),
    ),
    (
        lambda: recommend_plans(
            LLAMA, ["h100", "mi300x"], tpot=80, request_rate=2, price={"h100": 1, "mi300x": 0.5}, speculation=False,
            **PINNED,
        ),
        ("recommend", LLAMA, "--gpu", "h100", "--gpu", "mi300x", "--tpot", "80", "--request-rate", "2", "--price",
         "h100=1", "--price", "mi300x=0.5", "--no-speculation", "--max-num-seqs", "128", "--max-num-batched-tokens",
         "8192"),
    ),
    (
        lambda: compare_gpus(LLAMA, ["h100", "mi300x"], input_len=[256, 512], max_concurrency=8, price={"h100": 2.5}),
        ("compare", LLAMA, "--gpu", "h100", "--gpu", "mi300x", "--random-input-len", "256,512", "--max-concurrency",
         "8", "--price", "h100=2.5"),
    ),
    (
        lambda: size_fleet(
            LLAMA, "h100", classes=[Load.of_class("chat", 4, 256, 64)], tpot=100, spares=0, stock={"h100": 9}, **PINNED
        ),
        ("fleet", LLAMA, "--gpu", "h100", "--class", "chat=4:256:64", "--tpot", "100", "--n-plus", "0", "--stock",
         "h100=9", "--max-num-seqs", "128", "--max-num-batched-tokens", "8192"),
    ),
    (
        lambda: check_command(LINE, "h100", max_concurrency=4),
        ("check", LINE, "--gpu", "h100", "--max-concurrency", "4"),
    ),
    (lambda: evaluate_runs("few.csv"), ("evaluate", "few.csv")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def few_runs(offline: None) -> None:
    """A table of a header and three runs in the folder of each test."""
    Path("few.csv").write_text("".join(RUNS.read_text(encoding="utf-8").splitlines(keepends=True)[:4]), "utf-8")


@pytest.mark.parametrize(("ask", "words"), SAME, ids=lambda value: value[0] if isinstance(value, tuple) else "")
def test_the_library_says_what_the_command_prints(ask: Callable[[], Answer], words: tuple[str, ...]) -> None:
    answer, command = ask(), run(*words)
    assert command.status == (0 if answer.ok else 1)
    assert answer.to_text() == command.out
    data = answer.to_dict()
    assert json.dumps(data) == json.dumps(json.loads(run(*words, "--format", "json").out))
    assert all(one["schema_version"] == 1 for one in (data if isinstance(data, list) else [data]))
    assert all(len(row) == len(answer.rows()[0]) for row in answer.rows())
    assert all(note.split()[0] in command.err for note in answer.shown_notes)


def test_objects_and_functions_answer_alike() -> None:
    serving = Serving(LONG, gpu="h100", tensor_parallel_size=2, max_model_len=4096)
    answer = check_fit(LONG, "h100", tensor_parallel_size=2, max_model_len=4096)
    assert serving.fit().kv_cache_tokens == answer.record.kv_cache_tokens
    load = Load.closed_loop(4, input_len=512, output_len=64, num_prompts=16)
    asked: Any = {"input_len": 512, "output_len": 64, "num_prompts": 16, "max_concurrency": 4}
    served = predict_serve(LONG, "h100", **asked, tensor_parallel_size=2, max_model_len=4096)
    assert serving.predict(load).result.items() <= served.result.items()
    capacity = serving.capacity(load, tpot_ms=20)
    most = capacity.largest()
    assert most is not None and capacity.interval()[0] <= most.value <= capacity.interval()[1]
    too_long = Load.closed_loop(4, input_len=4096, output_len=64)
    with pytest.raises(InputError, match=r"does not fit: 131\.4 GiB of weights"):  # 70.55e9 of 2 bytes
        Serving("meta-llama/Llama-3.3-70B-Instruct", "h100").predict(load)
    with pytest.raises(InputError, match="more than the 4096"):
        serving.predict(too_long)
    with pytest.raises(InputError, match="more than the 4096"):
        serving.capacity(too_long, tpot_ms=20)


def test_one_model_is_served_by_several_gpus() -> None:
    servings = Serving.on_each(LLAMA, "h100,mi300x", kv_cache_dtype="fp8")
    assert [one.profile.id for one in servings] == ["h100-sxm", "mi300x"]
    assert {id(one.resolved) for one in servings} == {id(servings[0].resolved)}
    assert servings[0].changed(tensor_parallel_size=2).fit(ways_out=False).config.tensor_parallel_size == 2
    everything = {one.profile.id for one in Serving.on_each(LLAMA, "all", partitions=True)}
    assert everything == set(list_gpus())
    assert {one.profile.id for one in Serving.on_each(LLAMA, "all")} < everything


def test_measurements_of_a_plan_and_what_they_teach(tmp_path: Path) -> None:
    """Half the speed that was predicted: outside its bounds, and worth learning from."""
    wanted = recommend_plans(LLAMA, "h100", max_concurrency=4, num_prompts=16)
    assert "plan.json" in write_scripts(wanted, "plan")
    with pytest.raises(InputError, match="exists"):
        write_scripts(wanted, "plan")
    plan = wanted.best
    assert plan is not None
    times = {key: 2 * value for key, value in plan.predicted.items() if key.endswith("_ms")}
    result = {
        "model_id": plan.model, "num_prompts": 16, "max_concurrency": 4, "request_rate": "inf", "completed": 16,
        "failed": 0, "total_input_tokens": 16 * 1024, "total_output_tokens": 16 * 1024, **times,
        "output_throughput": plan.predicted["output_throughput"] / 2,
    }  # fmt: skip
    (tmp_path / "plan" / "results").mkdir()
    (tmp_path / "plan" / "results" / f"serve-{plan.digest}.json").write_text(json.dumps(result))
    validation = validate_plan("plan")
    command = run("validate", "plan", "--format", "json")
    assert validation.to_dict() == json.loads(command.out)
    assert command.status == (0 if validation.ok else 1)
    learned = calibrate_from("plan", output="own.toml")
    assert learned.ok and Path("own.toml").exists()
    assert run("calibrate", "plan", "-o", "again.toml", "--format", "csv").out == learned.to_text("csv")


def test_a_recommendation_names_the_command_that_asks_the_same() -> None:
    answer = recommend_plans(
        LLAMA, "h100", input_len=256, output_len=64, request_rate=2.0, tpot=60, percentile="mean", confidence=0.6,
        enable_prefix_caching=False, max_model_len=2048,
    )  # fmt: skip
    words = answer.command.split()
    assert words[:2] == ["planner", "recommend"]
    assert json.loads(run(*words[1:], "--format", "json").out) == answer.to_dict()


# --- how it is shown -----------------------------------------------------------------------------------------------


def test_nouns_show_themselves_in_one_line() -> None:
    serving = planner.Serving(LLAMA, "h200", tensor_parallel_size=2, engine_version="0.11.0")
    load = planner.Load.closed_loop(4, input_len=64, output_len=16)
    prediction, capacity = serving.predict(load), serving.capacity(load, tpot_ms=50)
    for one in (serving, prediction, capacity, serving.fit()):  # for another process: 0.2 MB, not the 10 MB of the fits
        sent = pickle.dumps(one)
        assert len(sent) < 1e6 and repr(pickle.loads(sent)) == repr(one)
    assert pickle.loads(pickle.dumps(serving)).predict(load).result == prediction.result
    assert repr(serving) == f"Serving({LLAMA} on 2 x h200-sxm, vLLM 0.11.0)"
    assert repr(serving.fit()) == f"Fit({serving!r}: {serving.fit().verdict})"
    assert f"output_throughput {prediction.figures['output_throughput']:,.4g}" in repr(prediction)
    largest = capacity.largest()
    assert largest is not None and repr(capacity).endswith(f"vLLM 0.11.0): {largest.value:,.4g} concurrent requests)")
    shown = (prediction, serving.deployment, serving.model, serving.profile, serving.resolved, capacity)
    assert all(len(repr(one)) < 200 and "\n" not in repr(one) for one in shown)


def test_an_answer_shows_itself() -> None:
    answer = check_fit(LLAMA, "h100")
    assert f"{answer}" == repr(answer) == answer.to_text().removesuffix("\n")
    assert f"{LLAMA} on h100-sxm" in str(answer)
    assert json.loads(answer.to_json()) == answer.to_dict()
    (row,) = answer.rows()
    assert row["gpu"] == "h100-sxm"
    assert answer.to_text("csv").splitlines()[0] == ",".join(row)


def test_pictures_are_whole_files() -> None:
    plans = recommend_plans(LLAMA, "h100", max_concurrency=4, num_prompts=8)
    picture = ElementTree.fromstring(plans.to_svg())
    assert picture.tag.endswith("svg")
    assert "h100-sxm" in {word for text in picture.itertext() for word in text.split()}
    nothing = recommend_plans("meta-llama/Llama-3.1-405B-Instruct", "h100-mig-1g.10gb")
    assert not nothing.ok and nothing.best is None
    with pytest.raises(InputError, match="nothing to draw"):
        nothing.to_svg()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for ask, _ in SAME[:8]:
        ask()
    assert capfd.readouterr() == ("", "")


# --- what is asked -------------------------------------------------------------------------------------------------


LOAD = Load(1024, 128, 100)


def capacity(**asked: Any) -> Capacity:
    return Serving(LLAMA, "h100").capacity(LOAD, ttft_ms=1000, **asked)


def offline(bench: Any, **arrivals: Any) -> Prediction:
    return Serving(LLAMA, "h100").predict(replace(LOAD, **arrivals), bench=bench)


@pytest.mark.parametrize(
    ("ask", "cause", "hint"),
    [
        (lambda: check_fit(LLAMA, "h100", tensor_paralel_size=8), "keyword 'tensor_paralel_size'", "tensor_parallel"),
        (lambda: predict_serve(LLAMA, "h100", max_concurency=8), "keyword 'max_concurency'", "max_concurrency"),
        (lambda: check_fit(LLAMA, "h100", tensor_parallel_size="8"), "an integer, got '8'", "tensor-parallel"),
        (lambda: check_fit(LLAMA, "h100", tensor_parallel_size=True), "an integer, got True", "tensor-parallel"),
        (lambda: check_fit(LLAMA, "h100", max_num_seqs=0), "--max-num-seqs must be at least 1, got 0", "number"),
        (lambda: Serving(LLAMA, "h100").changed(max_num_seq=8), "unknown keyword 'max_num_seq'", "max_num_seqs"),
        (lambda: planner.Objective("fast", Load(8, 8)), "'balanced', got 'fast'", "goal"),  # type: ignore[arg-type]
        (lambda: check_fit(LLAMA, "h100").to_text("xml"), "unknown format 'xml'", "markdown"),
        (lambda: check_fit(LLAMA, "h100", enforce_eager=1), "--enforce-eager must be", "enforce-eager"),
        (lambda: check_fit(LLAMA, "h100", speculative_config={"method": {1}}), "--speculative-config", "mapping"),
        (lambda: check_fit(LLAMA, "h1000"), "unknown GPU", "h100"),
        (lambda: predict_serve(LLAMA, "h100", input_len="long"), "must be an integer, got 'long'", "input-len"),
        (lambda: predict_serve(LLAMA, "h100", num_prompts=10**9), "--num-prompts", "send fewer"),
        (lambda: predict_serve(LLAMA, "h100", goodput={"ttft": -1}), "--goodput must be greater than 0", "goodput"),
        (lambda: recommend_plans(LLAMA, "h100", tensor_parallel_size=2), "it is searched", "leave it out"),
        (lambda: recommend_plans(LLAMA, "h100", goal="fast"), "unknown goal 'fast'", "recommend"),
        (lambda: recommend_plans(LLAMA, "h100", workload="chatt"), "unknown workload", "chat"),
        (lambda: recommend_plans(LLAMA, "h100", use_case="chatt"), "unknown workload", "chat"),
        (lambda: recommend_plans(LLAMA, "h100", use_case="rag", workload="chat"), "--use-case and --workload", "leave"),
        (lambda: size_fleet(LLAMA, "h100", use_case="offline"), "no load is given", "--request-rate"),
        (lambda: predict_serve(LLAMA, "h100", workload="chat", input_len=9), "--workload and --random", "leave one"),
        (lambda: predict_serve(LLAMA, "h100", workload="coding-agent"), "--workload coding-agent", "0.052 is about"),
        (lambda: predict_serve(LLAMA, "h100", workload="chatt"), "unknown workload", "chat"),
        (lambda: compare_gpus(LLAMA, "h100", workload="coding-agent"), "has turns", "predict serve"),
        (lambda: compare_gpus(LLAMA, "h100", per="rack"), "unknown per 'rack'", "compare"),
        (lambda: compare_gpus(LLAMA, "h100", input_len=[]), "--input-len", "for example"),
        (lambda: size_fleet(LLAMA, "h100"), "no load is given", "--request-rate"),
        (lambda: size_fleet(LLAMA, "h100", request_rate=1, minimise="money"), "unknown minimise", "fleet"),
        (lambda: list_fits(LLAMA, []), "no GPU is named", "--gpu"),
        (lambda: check_command(["ls"], "h100"), "'ls' is no vllm serve line", "vllm serve"),
        (lambda: check_command("run.sh", "h100"), "run.sh: No such file", "script"),
        (lambda: evaluate_runs("nothing.csv"), "nothing.csv", "CSV"),
        (lambda: Load.named("chatt"), "unknown workload 'chatt'", "chat"),
        (lambda: Load.sessions("coding-agents", 1.0), "unknown workload 'coding-agents'", "coding-agent"),
        (lambda: capacity(confidence=1.0).largest(), "a confidence must be above 0 and below 1", "0.8"),
        (lambda: capacity().largest(confidence=0.0), "a confidence must be above 0 and below 1", "0.8"),
        (lambda: offline("throughput", request_rate=1.0), "bench throughput sends all requests", "bench"),
        (lambda: offline("latency", recorded=LOAD.requests()), "bench latency sends all requests", "bench"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(ask: Callable[[], Any], cause: str, hint: str) -> None:
    with pytest.raises(PlannerError) as error:
        ask()
    assert cause in error.value.cause
    assert hint in error.value.hint


def test_a_workload_by_name_is_its_lengths() -> None:
    lengths: Any = {"input_len": 4096, "output_len": 256, "random_range_ratio": 0.25}  # "rag" in docs/guide/speed.md
    load: Any = {"num_prompts": 20, "max_concurrency": 4}
    assert (
        predict_serve(LONG, "h100", workload="rag", **load).to_json()
        == predict_serve(LONG, "h100", **lengths, **load).to_json()
    )
    assert (
        compare_gpus(LONG, "h100", workload="rag", max_concurrency=4).to_json()
        == compare_gpus(LONG, "h100", **lengths, max_concurrency=4).to_json()
    )


def test_a_use_case_is_a_workload_with_targets() -> None:
    """The figures of MLPerf and of the table in docs/guide/speed.md; what is given wins."""
    of_case: Any = {"ttft": 500, "tpot": 30, "percentile": 99}  # loadgen/mlperf.conf, llama3.1-8b-interactive
    lengths: Any = {"input_len": 778, "output_len": 128}
    asked: Any = {"request_rate": 20, "speculation": False, **PINNED}
    fleet = size_fleet(LLAMA, "h100", use_case="mlperf-interactive", **asked)
    assert fleet.to_dict() == size_fleet(LLAMA, "h100", workload="mlperf-interactive", **asked, **of_case).to_dict()
    assert str(fleet.record.search.objective.slos[0]) == "p99 TTFT of 500 ms"
    few: Any = {"speculation": False, **PINNED}
    longer = recommend_plans(LLAMA, "h100", use_case="mlperf-interactive", output_len=256, tpot=25, **few)
    same = {**of_case, **lengths, "output_len": 256, "tpot": 25}
    assert longer.plans == recommend_plans(LLAMA, "h100", **same, **few).plans
    assert "--use-case mlperf-interactive --tpot 25" in longer.command.replace(" --random-output-len 256", "")
    classes: Any = ("short=1:100:50", "long=1:2000:500,ttft=900")
    mixed = size_fleet(LLAMA, "h100", use_case="chat", classes=[Load.parse(one) for one in classes], **few)
    assert list(map(str, mixed.record.search.objective.slos)) == [
        "p95 TTFT of 500 ms for short", "p95 TPOT of 40 ms for short", "p95 TTFT of 900 ms for long",
    ]  # fmt: skip
    batch = recommend_plans(LLAMA, "h100", use_case="offline", **few)
    assert batch.objective.goal == "max-throughput" and not batch.objective.slos


@pytest.mark.parametrize(
    ("asked", "notes"),
    [
        ({"tpot": 25}, ["--use-case coding-agent sets p95 TTFT of 3,000 ms; change with --ttft"]),
        ({"ttft": 3717}, ["--use-case coding-agent sets p95 TPOT of 20 ms; change with --tpot"]),
        ({"ttft": 3717, "tpot": 25}, []),
        ({"use_case": "offline"}, ["--use-case offline sets --goal max-throughput"]),
        ({"use_case": "offline", "goal": "balanced"}, []),
    ],
)
def test_the_note_on_a_use_case_names_what_it_sets(asked: dict[str, Any], notes: list[str]) -> None:
    assert list(with_use_case({"use_case": "coding-agent", **asked})[1]) == notes


def test_use_cases_are_those_of_the_guide() -> None:
    page = (ROOT / "docs/guide/speed.md").read_text("utf-8").partition("| workload |")[2]
    rows = re.findall(r"^\| `([\w-]+)`[^|]*\|(.+)\|$", page, re.M)
    told = {name: [float(cell.strip().replace(",", "") or 0) for cell in cells.split("|")] for name, cells in rows}
    for name, load in NAMED.items():
        case = use_cases()[name]
        assert told[name] == [
            load.input_len,
            load.output_len,
            load.range_ratio,
            case.get("ttft", 0),
            case.get("tpot", 0),
        ]
    assert use_cases().keys() == NAMED.keys() | named_sessions().keys()


def test_a_workload_of_turns_finds_what_was_there() -> None:
    """The last requests of chats that go on: their prompts hold the turns before, which the cache has."""
    found = predict_serve(LONG, "h100", workload="multi-turn-chat", request_rate=1, num_prompts=100)
    assert found.result["completed"] == 100
    assert 0.3 < found.record.replay.cached_share < 1


def test_a_refusal_of_vllm_is_an_error_of_its_own() -> None:
    with pytest.raises(IllegalPlanError):
        check_fit(LLAMA, "h100", tensor_parallel_size=3)  # 32 heads
    with pytest.raises(IllegalPlanError):
        list_fits(LLAMA, ["h100", "mi300x"], tensor_parallel_size=3)
    assert not check_fit("meta-llama/Llama-3.1-70B-Instruct", "mi300x-cpx").ok  # an answer: 140 GB do not fit in 24


def test_numbers_of_other_libraries_are_taken() -> None:
    import numpy as np

    plain = check_fit(LLAMA, "h100", tensor_parallel_size=2, gpu_memory_utilization=0.5, max_model_len=1024)
    other = check_fit(
        LLAMA, "h100", tensor_parallel_size=np.int64(2), gpu_memory_utilization=np.float64(0.5),
        max_model_len=np.int32(1024),
    )  # fmt: skip
    assert plain.to_dict() == other.to_dict()


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2**40), st.floats(), st.text(max_size=5), st.just(("fp8",)),
    st.sampled_from(["auto", "fp8", "bfloat16", "mtp"]),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(sorted(SETTINGS)), VALUES, max_size=3))
@settings(max_examples=60, deadline=None)
def test_any_value_of_any_flag_is_answered_or_refused(engine: dict[str, Any]) -> None:
    try:
        assert check_fit(LLAMA, "h100", calibration="none", **engine).verdict
    except PlannerError as error:
        assert error.cause and error.hint


def test_drafts_are_said_in_three_ways() -> None:
    drafts: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 2}
    load = {"input_len": 64, "output_len": 32, "num_prompts": 8, "max_concurrency": 4}
    one = predict_serve(LLAMA, "h100", **load, speculative_config=drafts, speculative_acceptance_rate=0.5)
    two = predict_serve(
        LLAMA, "h100", **load, speculative_config=json.dumps(drafts), speculative_acceptance_rate=[0.5, 0.25]
    )
    assert one.to_dict() == two.to_dict()
    with pytest.raises(InputError, match="without --speculative-config"):
        predict_serve(LLAMA, "h100", **load, speculative_acceptance_rate=0.5)


# --- what is public ------------------------------------------------------------------------------------------------


def test_every_public_name_is_there_and_hides_no_module() -> None:
    modules = {module.name for module in pkgutil.iter_modules(planner.__path__)}
    for name in planner.__all__:
        assert getattr(planner, name).__name__ == {"Demand": "of_class"}.get(name, name)
        assert name in dir(planner)
        assert inspect.getdoc(getattr(planner, name))
        assert name not in modules
    with pytest.raises(AttributeError, match="attribute nothing"):
        _ = planner.nothing  # type: ignore[attr-defined]
    assert "h100-sxm" in list_gpus() and LLAMA in list_models()


def test_importing_imports_nothing() -> None:
    program = "import sys; before = set(sys.modules); import planner; print(*sorted(set(sys.modules) - before))"
    done = _python("-c", program)
    assert {name for name in done.split() if "planner" in name} == {"planner"}
    assert not {"typing", "pydantic", "typer"} & set(done.split())
    heavy = {"numpy", "scipy", "jinja2", "rich", "typer", "huggingface_hub", "yaml"}
    program = f"import sys, planner; planner.check_fit({LLAMA!r}, 'h100').to_dict(); print(*sys.modules)"
    assert not heavy & {name.partition(".")[0] for name in _python("-c", program).split()}


def test_a_program_of_a_user_runs() -> None:
    lines = _python(str(Path(__file__).parents[1] / "library_use.py")).splitlines()
    assert lines[0].startswith("{'h100': 1, 'mi300x': 1}")  # 13.5 GB of weights
    assert lines[2] == "[True, True]"
    assert lines[3].startswith("True nearest: h100")


def _python(*words: str) -> str:
    process = start(program=words)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    return out.decode()


def test_what_is_public_only_grows() -> None:
    """``python tests/test_api.py`` writes what is new into the file; a line that went breaks somebody's script."""
    promised, now = set(GOLDEN.read_text(encoding="utf-8").splitlines()), set(_signatures())
    assert not promised - now
    assert not now - promised


def _signatures() -> Iterator[str]:
    """Every public name; parameters of functions and of ``Serving``, public attributes of answers and of ``Serving``.

    Options that a command takes as ``**options`` are listed with their declared types.
    """
    for name in planner.__all__:
        public = getattr(planner, name)
        yield name
        if inspect.isfunction(public) or public is Serving:
            for parameter in inspect.signature(public).parameters.values():
                if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "command_line":
                    yield f"{name}: {_typed(parameter)}"
            declared = getattr(public, "declared", None)
            for option in declared.parameters.values() if declared else ():
                if option.name not in {*inspect.signature(public).parameters, *SETTINGS}:
                    yield f"{name}: keyword {option.name}: {_text(option.type)} = {option.default!r}"
        if inspect.isclass(public) and (issubclass(public, Answer) or public in NOUNS):
            yield from (f"{name}.{key}" for key in dir(public) if not key.startswith("_"))


def _typed(parameter: inspect.Parameter) -> str:
    kind = "keyword " if parameter.kind is parameter.KEYWORD_ONLY else ""
    star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{kind}{star}{parameter.name}: {_text(parameter.annotation)}{default}"


def _text(annotation: Any) -> str:
    """The type as text; an alias of ``Annotated`` by its type."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(os|collections\.abc|planner(\.\w+)*|planning|workload|out)\.", "", text)


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for line in _signatures()), encoding="utf-8")


def test_the_command_of_one_server_repeats_what_the_fleet_was_asked() -> None:
    """Else the two plan different servers: lengths that vary, a percentile, a version, a search without drafts."""
    asked: Any = {"ttft": 900, "percentile": "99", "confidence": 0.95, "headroom": 0.2, "engine_version": "0.27.1"}
    fleet = size_fleet(LLAMA, "h100", workload="chat", request_rate=20, speculation=False, **asked)
    line = " ".join(str(fleet).partition("$ ")[2].replace("\\\n", " ").split())
    assert line.startswith(f"planner recommend {LLAMA} --gpu h100-sxm --request-rate 20 --random-input-len 1024")
    for words in (
        "--random-range-ratio 0.5", "--ttft 900", "--percentile 99", "--confidence 0.95", "--headroom 0.2",
        "--no-speculation", "--engine-version 0.27.1 -o plans",
    ):  # fmt: skip
        assert words in line
    again = run(*line.removesuffix(" -o plans").split()[1:])
    assert f"{fleet.fleets[0].gpus} x H100" in again.out.partition("\n")[0]


def test_classes_may_be_given_as_they_are_typed() -> None:
    chat, asked = "chat=2:1000:200", {"ttft": 1000.0}
    typed, made = (size_fleet("Qwen/Qwen3-8B", "h100", classes=[one], **asked) for one in (chat, Load.parse(chat)))
    assert typed.to_dict() == made.to_dict()
    with pytest.raises(InputError, match="has no rate"):
        size_fleet("Qwen/Qwen3-8B", "h100", classes=["chat:2"], **asked)


def test_the_command_of_a_classes_own_servers_has_the_targets_of_the_class() -> None:
    classes = [Load.parse("short=4:100:50,ttft=100"), Load.parse("long=4:8000:500,ttft=900")]
    fleet = size_fleet("Qwen/Qwen3-8B", "h100", classes=classes, tpot=40, speculation=False, **PINNED)
    assert len(fleet.fleets[0].pools) == 2
    line = " ".join(str(fleet).partition("$ ")[2].replace("\\\n", " ").split())
    assert "--request-rate 4 --random-input-len 8000 --random-output-len 500 --ttft 900 --no-speculation" in line
