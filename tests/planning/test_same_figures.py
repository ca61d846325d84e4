"""One server under one load has one set of figures, whichever command is asked."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import run

SETTINGS = ("--max-num-batched-tokens", "8192", "--kv-cache-dtype", "auto", "--max-model-len", "2048")
LENGTHS = ("--random-input-len", "1024", "--random-output-len", "256")
FIGURES = tuple(
    f"{statistic}_{metric}_ms{end}"
    for statistic in ("mean", "p99")
    for metric in ("ttft", "tpot", "e2el")
    for end in ("", "_lo", "_hi")
)
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-30B-A3B")


def answer(*words: str) -> dict[str, Any]:
    status, out, err = run(*words, "--format", "json")
    assert status == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any], keys: tuple[str, ...] = FIGURES) -> None:
    for key in keys:
        assert one[key] == pytest.approx(other[key], rel=1e-9), key


@pytest.mark.parametrize(("model", "gpu"), [(MODELS[0], "h100"), (MODELS[1], "mi300x")])
@pytest.mark.parametrize("arrivals", [("--max-concurrency", "8"), ("--request-rate", "2.5")])
def test_every_command_has_the_same_figures(model: str, gpu: str, arrivals: tuple[str, ...], tmp_path: Path) -> None:
    """``recommend`` chooses a server; the others are asked about that one, at its load."""
    folder = tmp_path / "plan"
    targets = ("--tpot", "100") if "--request-rate" in arrivals else ()
    planned = ("recommend", model, "--gpu", gpu, "--gpus", "1", *LENGTHS, *arrivals, *targets, *SETTINGS)
    plan = answer(*planned, "-o", str(folder))["plans"][0]
    checkpoint, sent = plan["model"], plan["workload"]
    settings = shlex.split((folder / "launch.sh").read_text().partition("vllm serve")[2].partition("\n\n")[0])
    flags = [*SETTINGS, "--max-num-seqs", str(plan["max_num_seqs"])]
    flags[3] = "fp8" if plan["kv_cache_dtype"] == "fp8" else "auto"
    if "--no-enable-prefix-caching" in settings:
        flags.append("--no-enable-prefix-caching")
    prompts = str(sent["num_prompts"])
    load = (*LENGTHS, *arrivals, "--num-prompts", prompts)
    predicted = answer("predict", "serve", checkpoint, "--gpu", gpu, *load, *flags)
    assert_same(predicted, plan["predicted"])
    checked = answer("check", "--gpu", gpu, str(folder))
    assert_same(predicted, checked["delivers"])
    flags += ["--tensor-parallel-size", "1"]
    compared = answer("compare", checkpoint, "--gpu", gpu, *LENGTHS, *arrivals, *flags)["rows"][0]
    own = (*LENGTHS, *arrivals, "--num-prompts", "200")
    assert_same(answer("predict", "serve", checkpoint, "--gpu", gpu, *own, *flags), compared)


@pytest.mark.parametrize(
    ("model", "gpu", "rate", "ttft"),
    [
        (MODELS[0], "h100", "30", "600"),
        (MODELS[1], "h200", "40", "400"),
        ("meta-llama/Llama-3.3-70B-Instruct", "mi300x", "20", "300"),
    ],
)
@pytest.mark.usefixtures("best_plans", "short_replays")
def test_recommend_and_fleet_have_one_capacity(model: str, gpu: str, rate: str, ttft: str) -> None:
    """The load that servers carry, its interval, and the GPUs at each confidence."""
    targets = ("--ttft", ttft, "--tpot", "40", "--e2el", "60000")  # disaggregated servers take no third target
    asked = (model, "--gpu", gpu, *LENGTHS, "--request-rate", rate, *targets, *SETTINGS[:4])
    service = answer("recommend", *asked)["plans"][0]["service"]
    fleet = answer("fleet", *asked, "--headroom", "0", "--n-plus", "0")
    carried = [service[f"largest_load{end}"] * service["replicas"] for end in ("", "_lo", "_hi")]
    ends = [fleet["carries"][f"request_rate{end}"] for end in ("", "_lo", "_hi")]
    assert carried == pytest.approx(ends, rel=1e-9)
    assert fleet["fleets"][0]["gpus"] == service["total_gpus"]
    assert [rung["gpus"] for rung in fleet["ladder"]] == [rung["total_gpus"] for rung in service["ladder"]]


@pytest.mark.parametrize(("workload", "rate", "seed"), [("coding-agent", "0.5", "0"), ("multi-turn-chat", "8", "3")])
@pytest.mark.usefixtures("best_plans", "short_replays")
def test_sessions_have_the_figures_of_the_plan_that_serves_them(workload: str, rate: str, seed: str) -> None:
    """One server gets all turns: ``predict`` sends those by which ``recommend`` judges it."""
    targets = ("--ttft", "20000", "--tpot", "200", "--e2el", "200000", "--percentile", "99")
    sent = ("--gpu", "h100", "--workload", workload, "--request-rate", rate, "--seed", seed, *SETTINGS[:2])
    plan = answer("recommend", MODELS[0], *sent, "--gpus", "1", *targets)["plans"][0]
    flags = [f"--{name.replace('_', '-')}={plan[name]}" for name in ("kv_cache_dtype", "max_num_seqs", "max_model_len")]
    predicted = answer("predict", "serve", plan["model"], *sent, *flags)
    assert plan["service"]["replicas"] == 1
    assert {one["metric"]: predicted[one["metric"]] for one in plan["service"]["targets"]} == pytest.approx(
        {one["metric"]: one["predicted_ms"] for one in plan["service"]["targets"]}, rel=1e-9
    )
