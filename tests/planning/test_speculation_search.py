"""Drafts by a model's own MTP modules in searches: acceptance as published, off where they do not help."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, run

from planner import Load, Serving, check_command, recommend_plans
from planner.engine import (
    SpeculativeConfig,
    assumed_acceptance,
    features_of,
    graph_batches,
    parse_version,
    read_drafts,
    read_line,
    searched_drafts,
)
from planner.planning import read_plan
from planner.planning.plan import PlanFile
from planner.planning.predict import Prediction
from planner.planning.serving import redeploy

pytestmark = pytest.mark.usefixtures("short_loops")

GLM = "zai-org/GLM-4.6-FP8"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GPT_OSS = "openai/gpt-oss-120b"
LOAD = {"input_len": 1024, "output_len": 1024}


def searched(serving: Serving) -> Iterator[SpeculativeConfig]:
    return searched_drafts(serving.model, serving.resolved.resolved, serving.version, serving.profile)


@pytest.mark.parametrize(
    ("model", "drafted", "tokens"),
    [
        ("deepseek-ai/DeepSeek-R1", [1, 3], [1.8, 2.45]),  # acceptance lengths published for R1 and V3
        (GLM, [1, 2, 3], [1.75, 1.8, 1.8]),  # the second draft is hardly ever accepted: vLLM issue 25993
        ("zai-org/GLM-5-FP8", [1, 3, 5], [1.75, 2.65, 3.05]),
        (LLAMA, [3], [2.75]),  # by an EAGLE head
        (GPT_OSS, [3], [2.41]),
        ("Qwen/Qwen3-32B", [], []),  # neither
    ],
)
def test_published_acceptance_gives_the_published_lengths(model: str, drafted: list[int], tokens: list[float]) -> None:
    serving = Serving(model, "h200")
    drafts = list(searched(serving))
    assert [one.num_speculative_tokens for one in drafts] == drafted
    assert [one.acceptance_length for one in drafts] == pytest.approx(tokens, abs=0.02)
    for one in drafts:
        assert one.acceptance_range is not None
        assert one.acceptance_range[0] < one.acceptance_length < one.acceptance_range[1] < 1 + max(drafted)
    old, amd = Serving(model, "h200", engine_version="0.12.0"), Serving(model, "mi300x")
    assert list(searched(old)) == list(searched(amd)) == (drafts if serving.model.mtp else [])  # no published run


def test_search_takes_drafts_where_requests_wait_for_the_weights() -> None:
    free, without = (
        recommend_plans(GLM, gpu=["h200"], goal="min-latency", speculation=asked, **LOAD).best
        for asked in (True, False)
    )
    assert free is not None and without is not None
    assert "--speculative-config" in free.serve_argv and "--speculative-config" not in without.serve_argv
    assert free.speculative_config is not None and free.speculative_config.words == "MTP 1"
    assert without.speculative_config is None
    # 1.75 tokens a step that costs less than 1.75 steps
    assert 1.2 < without.predicted["mean_tpot_ms"] / free.predicted["mean_tpot_ms"] < 1.75
    assert any("accepting 1.8 tokens per step (1.6 to 1.9, as published)" in note for note in free.warnings)


def test_an_eagle_head_gains_what_was_published_of_it() -> None:
    """gpt-oss-120b on 8 x H200, MT-Bench, 2,048 tokens out: TensorRT-LLM pull request 12130."""
    serving = Serving(GPT_OSS, "h200", tensor_parallel_size=8, max_num_seqs=32)
    (head,) = searched(serving)
    for at_once, published in {1: 1.97, 4: 1.76, 8: 1.66, 16: 1.47}.items():
        load = Load.closed_loop(at_once, input_len=128, output_len=2048)
        drafting, alone = (one.predict(load).result for one in (serving.changed(speculative_config=head), serving))
        assert drafting["output_throughput"] / alone["output_throughput"] == pytest.approx(published, rel=0.15)


def test_the_search_takes_an_eagle_head_and_its_memory() -> None:
    best = recommend_plans(GPT_OSS, gpu=["h200"], goal="min-latency", **LOAD).best
    assert best is not None and best.speculative_config is not None
    assert best.speculative_config.model == "nvidia/gpt-oss-120b-Eagle3-v3"
    old = recommend_plans(GPT_OSS, gpu=["h200"], goal="min-latency", engine_version="0.12.0", **LOAD).best
    assert old is not None and old.speculative_config is None
    busy = recommend_plans(GPT_OSS, gpu=["h200"], goal="max-throughput", **LOAD).best
    assert busy is not None and busy.speculative_config is None  # full batches wait for no single token
    # one layer, a projection and lm_head in bf16, published as 850 MB, beside the shared embedding
    alone = Serving(LLAMA, "h200")
    with_head = alone.changed(speculative_config=next(searched(alone)))
    weights = [one.memory.budget.binding.weights.loaded_bytes for one in (alone, with_head)]
    assert weights[1] - weights[0] == pytest.approx(0.85e9, rel=0.01)


def test_an_eagle_head_stops_helping_where_it_did() -> None:
    """Llama-3.1-8B on an RTX 3090, chains of two drafts, vLLM: EAGLE-3 (arXiv 2503.01840), throughput table."""
    serving = Serving(LLAMA, "rtx-3090", max_num_seqs=64, max_model_len=2048, engine_version="0.13.0")
    drafts = {"method": "eagle3", "model": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"}
    drafting = serving.changed(speculative_config=read_drafts({**drafts, "num_speculative_tokens": 2}))
    for at_once, published in {2: 1.75, 8: 1.58, 24: 1.42, 32: 1.36, 48: 1.21, 56: 1.01}.items():
        load = Load.closed_loop(at_once, input_len=100, output_len=300, num_prompts=4 * at_once)
        gain = drafting.predict(load).result["output_throughput"] / serving.predict(load).result["output_throughput"]
        assert gain == pytest.approx(published, rel=0.2)


def test_larger_space_is_never_worse() -> None:
    free, without = (
        recommend_plans(GLM, gpu=["h200"], goal="max-throughput", speculation=asked, **LOAD).best
        for asked in (True, False)
    )
    assert free is not None and without is not None
    gain = free.predicted["output_throughput_per_gpu"] / without.predicted["output_throughput_per_gpu"]
    assert gain > 0.98  # finalists are replayed; the serving line moves a figure by 2 %


def test_given_drafts_are_not_searched() -> None:
    asked = read_drafts('{"method": "mtp", "num_speculative_tokens": 1}', 0.5)
    best = recommend_plans(GLM, gpu=["h200"], goal="min-latency", speculative_config=asked, **LOAD).best
    assert best is not None and best.speculative_config == asked


def test_drafts_of_all_places_fit_the_token_budget_of_a_step() -> None:
    """With more places prompts wait until requests end: DeepSeek-R1 on MI355X took 121 s to the first token."""
    asked = read_drafts('{"method": "mtp", "num_speculative_tokens": 3}', 0.5)
    load = {"request_rate": 8, "input_len": 256, "output_len": 64}
    fixed = {"max_num_batched_tokens": 512, "kv_cache_dtype": "fp8"}
    best = recommend_plans(GLM, gpu=["h200"], speculative_config=asked, **load, **fixed).best
    assert best is not None
    assert int(best.serve_argv[best.serve_argv.index("--max-num-seqs") + 1]) == 512 // 4


def test_acceptance_widens_the_interval_of_decoding_alone() -> None:
    serving = Serving(GLM, "h200", tensor_parallel_size=8, max_num_seqs=16)
    drafts = next(searched(serving))
    load = Load.closed_loop(8, **LOAD)
    widths = {}
    for name, one in {"assumed": drafts, "given": replace(drafts, acceptance_range=None)}.items():
        figures = serving.changed(speculative_config=one).predict(load).result
        for key in ("mean_tpot_ms", "mean_ttft_ms"):
            widths[name, key] = figures[f"{key}_hi"] / figures[f"{key}_lo"]
    assert widths["assumed", "mean_tpot_ms"] > widths["given", "mean_tpot_ms"]
    assert widths["assumed", "mean_ttft_ms"] == pytest.approx(widths["given", "mean_ttft_ms"])


@pytest.mark.parametrize(("version", "most"), [("0.12.0", 16), ("0.32.0", 96)])
def test_graphs_cover_the_drafted_tokens_since_0_13(version: str, most: int) -> None:
    """2 x max_num_seqs tokens before vLLM pull request 30330, 2 x max_num_seqs x (1 + drafted) since."""
    drafts = read_drafts('{"method": "mtp", "num_speculative_tokens": 5}', 0.7)
    serving = Serving(
        "deepseek-ai/DeepSeek-V3.1", "b200", tensor_parallel_size=8, max_num_seqs=8, speculative_config=drafts,
        engine_version=version,
    )  # fmt: skip
    config = serving.memory.config
    assert max(graph_batches(config, features_of(config, serving.profile))) == most


def test_plan_keeps_the_acceptance_that_it_was_predicted_with(tmp_path) -> None:
    answer = recommend_plans(GLM, gpu=["h200"], goal="min-latency", output=str(tmp_path / "plan"), **LOAD)
    plan = read_plan(tmp_path / "plan").plan
    assert plan == answer.best
    assert plan.speculative_config is not None
    assert redeploy(plan).tokens_per_step == plan.speculative_config.acceptance_length
    assert PlanFile.from_json((tmp_path / "plan" / "plan.json").read_text()).plan.digest == plan.digest


def test_line_with_mtp_is_timed_with_published_acceptance_and_keeps_it() -> None:
    line = f"vllm serve {GLM} --tensor-parallel-size 8 --max-num-seqs 16"
    drafts = '{"method":"mtp","num_speculative_tokens":1}'
    with_drafts = check_command(f"{line} --speculative-config '{drafts}'", "h200", max_concurrency=256)
    plain = check_command(line, "h200", max_concurrency=256)
    tpot_ms = [answer.to_dict()["delivers"]["mean_tpot_ms"] for answer in (with_drafts, plain)]
    assert 1.2 < tpot_ms[1] / tpot_ms[0] < 1.75
    better = with_drafts.to_dict()["better"]
    assert better and all(f"--speculative-config '{drafts}'" in plan["command"] for plan in better)
    assert "with MTP 1, accepting 1.8 tokens per step (1.6 to 1.9, as published)" in with_drafts.to_dict()["notes"]


def test_a_recommended_line_is_predicted_with_the_acceptance_of_the_recommendation() -> None:
    best = recommend_plans(GLM, gpu=["h200"], goal="min-latency", **LOAD).best
    assert best is not None and best.speculative_config is not None
    line = read_line(best.serve_argv, parse_version(best.engine_version)).args
    assert line.speculative_config is not None and not line.speculative_config.acceptance_rates
    serving = Serving(GLM, "h200", **line.settings("axes"), speculative_config=line.speculative_config.text)
    predicted = serving.predict(Load.closed_loop(best.workload.max_concurrency or 1, **LOAD)).result
    assert predicted["spec_decode_acceptance_length"] == pytest.approx(best.speculative_config.acceptance_length)
    assert predicted["mean_tpot_ms"] == pytest.approx(best.predicted["mean_tpot_ms"], rel=0.02)


@pytest.mark.parametrize(
    ("drafts", "model", "length"),
    [  # published chat lengths of facts gathered 2026-11; vLLM traces of ShareGPT for n-grams
        ({"method": "eagle3", "model": "x/y", "num_speculative_tokens": 3}, LLAMA, 2.75),
        ({"method": "eagle3", "model": "x/y", "num_speculative_tokens": 2}, GLM, 2.05),
        ({"method": "eagle", "model": "x/y", "num_speculative_tokens": 2}, GLM, 1.9),
        ({"method": "ngram", "num_speculative_tokens": 5}, LLAMA, 1.45),
        ({"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 5}, GLM, None),
        ({"method": "mtp", "num_speculative_tokens": 1, "disable_by_batch_size": 8}, GLM, None),
    ],
)  # fmt: skip
def test_acceptance_is_assumed_where_it_is_published(drafts: dict[str, Any], model: str, length: float | None) -> None:
    given = read_drafts(drafts)
    assert given is not None
    assumed = assumed_acceptance(given, model)
    assert (assumed and pytest.approx(assumed.acceptance_length, abs=0.01)) == length
    assert assumed is None or assumed.acceptance_deviation > 0.05


@pytest.mark.parametrize(
    ("drafts", "note"),
    [
        ('{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}', "with NGRAM 5, accepting 1.5 tokens"),
        ('{"model":"meta-llama/Llama-3.2-1B-Instruct","num_speculative_tokens":5}', "speed does not"),
        ('{"method":"suffix","num_speculative_tokens":8}', "speed does not"),
        ('{"method":"eagle3","model":"no/head","num_speculative_tokens":3}', "drafts are left out of account"),
        ('{"method":"dspark","num_speculative_tokens":7}', "not simulated: --speculative-config"),
    ],
)
def test_check_keeps_drafts_of_each_method(drafts: str, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answer = check_command(f"vllm serve {LLAMA} --max-num-seqs 16 --speculative-config '{drafts}'", "h200")
    assert answer.ok and any(note in one for one in answer.notes)
    better = answer.to_dict()["better"]
    assert better
    for plan in better:
        again = check_command(plan["command"], "h200").to_dict()
        assert again["starts"] and shlex.quote(drafts) in plan["command"]


def test_options_of_drafts_one_by_one_are_those_in_json() -> None:
    dotted = "--speculative-config.method mtp --speculative-config.num_speculative_tokens=1"
    words = f"vllm serve {GLM} --tensor-parallel-size 8 {dotted}".split()
    line = read_line(words, parse_version("0.32.0"))
    assert line.args.speculative_config == read_drafts({"method": "mtp", "num_speculative_tokens": 1})
    assert not line.problems and not line.others


def test_benchmark_line_has_vllm_accept_as_predicted(tmp_path: Path) -> None:
    best = recommend_plans(GLM, gpu=["h200"], goal="min-latency", output=str(tmp_path / "plan"), **LOAD).best
    assert best is not None and best.benchmark_line is not None
    words = best.benchmark_line.serve_argv
    given = json.loads(words[words.index("--speculative-config") + 1])
    # keys and meaning as in vllm/config/speculative.py of 0.32: the share of steps that accept up to each position
    assert given == {
        "method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": [0.75],
    }  # fmt: skip
    assert "synthetic" not in str(best.serve_argv)
    assert '"synthetic_acceptance_rates":[0.75]' in (tmp_path / "plan" / "launch.sh").read_text()
    assert 'launch.sh" --benchmark' in (tmp_path / "plan" / "validate.sh").read_text()
    older = recommend_plans(GLM, gpu=["h200"], goal="min-latency", engine_version="0.14.0", **LOAD).best
    assert older is not None and older.speculative_config is not None
    assert "synthetic" not in str(older.benchmark_line)  # no such keys before 0.20


def test_measured_drafts_are_read_with_what_was_accepted(tmp_path: Path) -> None:
    """Half of the drafts accepted, not three quarters: the run is no evidence that the machine is slower."""
    folder = tmp_path / "plan"
    plan = recommend_plans(GLM, gpu=["h200"], goal="min-latency", output=str(folder), **LOAD).best
    assert plan is not None and plan.speculative_config is not None
    engine = redeploy(plan)
    config = replace(engine.config, speculative_config=replace(plan.speculative_config, acceptance_rates=(0.5,)))
    measured = Prediction.of(replace(engine, config=config), plan.workload.sent).result
    result = folder / "results" / plan.result_names[-1]
    result.parent.mkdir()
    silent = {key: value for key, value in measured.items() if not key.startswith("spec_decode")}
    result.write_text(json.dumps({**silent, "model_id": plan.model}))
    assert "does not say what was accepted" in error_of(run("calibrate", str(folder)))[0]
    accepted = {"spec_decode_acceptance_length": 1.5, "spec_decode_per_position_acceptance_rates": [0.5]}
    result.write_text(json.dumps({**silent, "model_id": plan.model, **accepted}))
    (row,) = json.loads(run("evaluate", str(folder), "--format", "json").out)["rows"]
    for name in ("mean_tpot_ms", "mean_itl_ms", "output_throughput"):
        assert row["metrics"][name]["predicted"] == pytest.approx(measured[name], rel=1e-6)
    assert "drafts were accepted more or less often" in run("validate", str(folder)).out
    result.write_text(json.dumps({**silent, "model_id": plan.model, "spec_decode_acceptance_length": "many"}))
    assert run("validate", str(folder)).status in (0, 1)  # what is no number is no cause, and no internal error
