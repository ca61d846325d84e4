"""The published runs nearest to a question: which they are, and their figures."""

import csv
import json
from math import log
from typing import Any

import pytest
from command_line import run

from planner.evidence import nearest_runs
from planner.planning import Serving
from planner.resources import data_dir
from planner.timing import distance, setting_of, settings_near
from planner.workload import Load

with (data_dir("hardware") / "calibration" / "runs.csv").open(encoding="utf-8", newline="") as file:
    PUBLISHED = {row["run_id"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("run_id", "words", "metric", "key"),
    [
        ("17586513642a", "serve meta-llama/Meta-Llama-3-8B-Instruct --gpu rtx-4090 --engine-version 0.11.0 "
         "--max-model-len 8192 --random-input-len 512 --random-output-len 128 --num-prompts 40 --max-concurrency 32",
         "mean_tpot_ms", "mean_tpot_ms"),
        ("cabc3310a2c2", "latency meta-llama/Llama-3.1-405B-FP8 --gpu h100 --engine-version 0.6.3 "
         "--tensor-parallel-size 8 --max-model-len 91680 --input-len 2048 --output-len 2048 --batch-size 16",
         "avg_latency_s", "avg_latency"),
    ],
)  # fmt: skip
def test_a_question_about_a_published_run_finds_it_with_the_figures_of_the_answer(
    run_id: str, words: str, metric: str, key: str
) -> None:
    asked, cells = ("predict", *words.split(), "--calibration", "none"), PUBLISHED[run_id]
    answer = json.loads(run(*asked, "--explain", "--format", "json").out)
    row = next(one for one in answer["nearest_runs"] if one["run"] == 1 and one["metric"] == metric)
    assert {name: row[name] for name in ("run_id", "source", "model", "engine_version")}.items() <= cells.items()
    assert row["measured"] == float(cells[metric])
    assert row["predicted"] == pytest.approx(answer[key], rel=1e-9)
    assert row["ratio"] == pytest.approx(answer[key] / float(cells[metric]))
    text = run(*asked, "--explain").out
    assert "(the fit saw these runs)" in text and f"{float(cells[metric]):,.2f}" in text
    assert "nearest" not in run(*asked).out


def nearest(model: str, gpu: str, load: Load, **engine: Any) -> list[dict[str, str]]:
    """The rows of the published runs nearest to a question, the nearest first."""
    deployment = Serving(model, gpu, calibration="none", **engine).deployment
    figures = {"output_throughput": 1000.0, "mean_tpot_ms": 20.0}  # of an open loop 20 requests decode
    return [PUBLISHED[name] for name in {one[1].run.run_id: 0 for one in nearest_runs(deployment, load, figures)}]


@pytest.mark.parametrize("load", [Load(1024, 1024, 200, max_concurrency=20), Load(1024, 1024, 200, request_rate=1.0)])
def test_of_one_setting_the_nearest_loads_come_first(load: Load) -> None:
    setting = {"model": "meta-llama/Llama-3.1-70B", "gpu": "h200-sxm", "tensor_parallel_size": "4"}
    found = nearest(setting["model"], setting["gpu"], load, tensor_parallel_size=4, weight_dtype="fp8")

    def away(row: dict[str, str]) -> float:
        sizes = {"input_len": 1024, "output_len": 1024, "max_concurrency": 20}
        return sum(abs(log(float(row[name]) / size)) for name, size in sizes.items())

    every = [one for one in PUBLISHED.values() if setting.items() <= one.items()]
    assert len(every) > len(found) == 3
    assert [away(one) for one in found] == pytest.approx(sorted(map(away, every))[:3])


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("openai/gpt-oss-120b", "mi325x", 8), ("meta-llama/Llama-3.1-70B", "mi325x", 1), ("Qwen/Qwen3-32B", "a30", 4)],
)
def test_no_published_setting_is_nearer_than_those_shown(model: str, gpu: str, tp: int) -> None:
    engine = Serving(model, gpu, tensor_parallel_size=tp, calibration="none").memory
    asked = setting_of(engine.covariates, engine.config)
    far = {name: distance(asked, one) for one in settings_near(asked) for name in one["run_ids"].split()}
    found = nearest(model, gpu, Load(1024, 128, 20, max_concurrency=4), tensor_parallel_size=tp)
    shown = [far[row["run_id"]] for row in found]
    assert shown == sorted(far.values())[:3]


def test_the_best_plan_has_its_nearest_runs_and_a_machine_without_relatives_none() -> None:
    asked = ("recommend", "openai/gpt-oss-120b", "--gpu", "mi325x", "--max-concurrency", "64", "--format", "json")
    first, *others = json.loads(run(*asked, "--explain").out)["plans"]
    rows = first["nearest_runs"]
    assert {row["run"] for row in rows} == {1, 2, 3}
    assert all(row["measured"] == float(PUBLISHED[row["run_id"]][row["metric"]]) for row in rows)
    assert not any("nearest_runs" in plan for plan in (*others, *json.loads(run(*asked).out)["plans"]))
    assert nearest("meta-llama/Llama-3.1-8B-Instruct", "cpu", Load(32, 8, 1, max_concurrency=1)) == []


@pytest.mark.parametrize(
    "asked", [("compare", "--gpu", "mi300x", "--max-concurrency", "16"),
              ("fleet", "--request-rate", "2", "--ttft", "2000", "--tpot", "60")],
)  # fmt: skip
def test_the_first_of_a_table_has_its_nearest_runs(asked: tuple[str, ...]) -> None:
    words = (*asked, "openai/gpt-oss-120b", "--gpu", "mi325x", "--format", "json")
    rows = json.loads(run(*words, "--explain").out)["nearest_runs"]
    assert {row["run"] for row in rows} == {1, 2, 3}
    assert all(row["measured"] == float(PUBLISHED[row["run_id"]][row["metric"]]) for row in rows)
    assert "nearest_runs" not in json.loads(run(*words).out)


def test_a_line_has_the_runs_of_the_same_question_to_predict() -> None:
    line = ("vllm", "serve", "meta-llama/Meta-Llama-3-8B-Instruct", "--max-model-len", "8192")
    load = ("--random-input-len", "512", "--random-output-len", "128", "--num-prompts", "40", "--max-concurrency", "32")
    asked = ("--gpu", "rtx-4090", "--explain", "--format", "json", *load)
    judged, predicted = run("check", *asked, "--", *line), run("predict", "serve", *line[2:], *asked)
    runs = [json.loads(one.out)["nearest_runs"] for one in (judged, predicted)]
    assert runs[0] == runs[1] and runs[0][0]["run_id"] == "17586513642a"
