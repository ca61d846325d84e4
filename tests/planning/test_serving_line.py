"""The serving line: what users get is what is simulated, with the model's context and places above the load."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from planner import recommend_plans
from planner.engine import parse_version, read_line
from planner.errors import InputError
from planner.planning import Objective, Prediction, Search, Serving, Space, resolve_deployment
from planner.planning.search.space import Candidate
from planner.workload import Load, Targets

pytestmark = pytest.mark.usefixtures("best_plans", "short_replays")

USUAL = {8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024}  # of the issue trackers' and recipes' launch lines


def best_of(model: str, gpu: str, *, gpus: int = 8, rate: float | None = None, **given: Any) -> Candidate:
    targets = Targets.of(ttft_ms=2000, tpot_ms=60, value=rate) if rate else None
    asked = Load.open_loop(rate, 1024, 256) if rate else Load.closed_loop(4, 1024, 1024)
    search = Search(Space((Serving(model, gpu, **given),), gpus_per_node=gpus), Objective("balanced", asked, targets))
    (ranking,) = search.run()
    assert ranking.best is not None
    return ranking.best


@pytest.mark.parametrize(
    ("model", "gpu", "context"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "h100", 131_072),  # max_position_embeddings of its config
        ("meta-llama/Llama-2-7b-hf", "mi300x-cpx", 4096),
        ("deepseek-ai/DeepSeek-R1", "h200", 163_840),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h100", 262_144),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "b200", 2**20),  # ten times as much in its config
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "h100", 128_000),  # vLLM issue 17747: 131,072 is refused
    ],
)
def test_the_context_is_the_model_s(model: str, gpu: str, context: int) -> None:
    best = best_of(model, gpu)
    assert best.config.max_model_len == context
    assert best.config.max_num_seqs in USUAL
    assert best.config.max_running > 4, "head room above four requests in flight"
    assert best.deployment.fits
    assert best.searched is not None and best.searched.config.max_model_len == 2048


@pytest.mark.parametrize(("flying", "places", "graphs"), [(400, 512, None), (500, 768, 768), (601, 768, 768)])
def test_a_load_above_vllm_s_graphs_gets_graphs_of_its_size(flying: int, places: int, graphs: int | None) -> None:
    """vLLM captures graphs of 512 requests at most by itself (``_set_cudagraph_sizes``)."""
    serving = Serving("openai/gpt-oss-20b", "mi355x", tensor_parallel_size=1, max_num_batched_tokens=8192)
    space, asked = Space((serving,), gpus_per_node=1), Load.closed_loop(flying, 64, 16)
    best = Search(space, Objective("max-throughput", asked)).run()[0].best
    assert best is not None
    assert (best.config.max_num_seqs, best.config.max_cudagraph_capture_size) == (places, graphs)
    assert best.searched is not None
    if flying > 512:  # the largest graphs have sizes of 16 tokens
        assert best.searched.config.max_cudagraph_capture_size == 16 * -(-flying // 16)


@pytest.mark.parametrize(("model", "gpu"), [("openai/gpt-oss-120b", "h100"), ("Qwen/Qwen3-32B", "mi300x")])
def test_what_one_server_carries_does_not_grow_with_the_rate_that_is_asked_for(model: str, gpu: str) -> None:
    """One H100 carried 2.2 requests/s where 0.2 were asked for, in 8 places, and 7.3 where 5 were, in 64."""
    carried = []
    for rate in (0.2, 1.5):
        load, targets = Load.open_loop(rate, 1024, 256), Targets.of(ttft_ms=2000, tpot_ms=50, value=rate)
        search = Search(Space((Serving(model, gpu),)), Objective("balanced", load, targets))
        service = search.plan(search.run()[0]).service
        assert service is not None
        carried.append(service.largest_load)
    assert carried[0] == pytest.approx(carried[1], rel=0.1)


def test_a_context_that_memory_limits_is_one_that_the_cache_holds() -> None:
    best = best_of("meta-llama/Llama-3.1-8B-Instruct", "l4", gpus=1, kv_cache_dtype="bfloat16")
    length = best.config.max_model_len
    assert 2048 < length < 131_072 and length % 1024 == 0
    assert best.deployment.fits and best.deployment.requests_served(length, pessimistic=True) >= 1
    assert best.deployment.requests_served(length + 1024, pessimistic=True) < 1


@pytest.mark.parametrize("given", [(), ("--max-model-len", "4096")])
def test_a_context_below_the_model_s_is_said_unless_it_was_asked_for(given: tuple[str, ...]) -> None:
    asked = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "l4", "--gpus", "1", "--max-concurrency", "4")
    text = run(*asked, "--kv-cache-dtype", "bfloat16", *given).out
    (context,) = re.findall(r"--max-model-len (\d+)", text)
    assert int(context) < 131_072
    assert (f"a context of {int(context):,} tokens surely fits; the model has 131,072" in text) is (not given)


@pytest.mark.parametrize(("places", "context"), [((), 163_840), (("--max-num-seqs", "135"), 3072)])
def test_a_context_gives_way_to_the_load_alone(places: tuple[str, ...], context: int) -> None:
    """DeepSeek-R1, DP 8 + EP: a rank holds 137 requests of 3,000 tokens, and 125 beside what MLA up-projects of a
    long context (``determine_chunked_prefill_workspace_size``): within 3 % of 128, and not of 135."""
    asked = ("deepseek-ai/DeepSeek-R1", "--gpu", "h200", "--input-len", "2000", "--output-len", "1000", *places)
    text = " ".join(run("recommend", *asked, "--max-concurrency", "1080" if places else "1024").out.split())
    assert f"--max-model-len {context} " in text and "surely fits" not in text
    assert ("of at most 3,072 tokens, so that the KV cache holds this load" in text) == (context == 3072)
    assert int(re.findall(r"surely holds ([\d,]+) whole", text)[0].replace(",", "")) > 7 * 108  # of all eight ranks


def test_without_chunked_prefill_the_token_budget_limits_the_context() -> None:
    """vLLM 0.8.5, V0: "max_num_batched_tokens is smaller than max_model_len" (SchedulerConfig). Memory has room."""
    asked = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "l4", "--gpus", "1", "--engine-version", "0.8.5")
    text = " ".join(run(*asked, "--max-concurrency", "4").out.split())
    assert "--max-model-len 2304 " in text and "--max-num-batched-tokens 2304 " in text
    assert "of at most 2,304 tokens, as this load sends" in text and "surely fits" not in text


def test_what_was_given_stays() -> None:
    best = best_of(
        "meta-llama/Llama-3.1-8B-Instruct", "h100", max_model_len=2048, max_num_seqs=33, enable_prefix_caching=False
    )
    config = best.config
    assert (config.max_model_len, config.max_num_seqs, config.enable_prefix_caching) == (2048, 33, False)


@pytest.mark.parametrize("rate", [2.0, 15.0])
def test_targets_are_met_by_the_line_for_users(rate: float) -> None:
    best = best_of("meta-llama/Llama-3.1-8B-Instruct", "h100", rate=rate)
    assert best.load is not None and best.load.meets
    assert best.load.replay.most_seqs < best.config.max_num_seqs, "no request waits for a place"
    assert best.config.max_model_len == 131_072 and best.config.max_num_seqs in USUAL


def test_the_figures_are_those_of_the_printed_line() -> None:
    """A line that is read back is the engine that was simulated, also where a recipe switches prefix caching off."""
    answer = json.loads(run("recommend", "--gpu", "h100", "--format", "json").out)
    plan = answer["plans"][0]
    words = plan["serve_argv"]
    assert "--enable-prefix-caching" in words and "--no-enable-prefix-caching" in plan["benchmark_line"]["serve_argv"]
    version = parse_version(plan["engine_version"])
    line = read_line(words, version, env=plan["env"], platform=plan["platform"])
    serving = Serving(plan["model"], plan["gpu"])
    engine = resolve_deployment(serving.model, serving.profile, line.args, version)
    assert engine.config.max_model_len == plan["max_model_len"] == 131_072
    figures = Prediction.of(engine, Load(**{**plan["workload"], "request_rate": float("inf")})).figures
    assert figures["output_throughput"] == pytest.approx(plan["predicted"]["output_throughput"], rel=1e-9)
    line_of_benchmark = plan["benchmark_line"]
    assert line_of_benchmark["max_model_len"] == 2048
    predicted = plan["predicted"]["output_throughput_per_gpu"]
    assert line_of_benchmark["output_throughput_per_gpu"] == pytest.approx(predicted, rel=0.02)


def test_launch_sh_has_the_benchmark_line(tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    assert run("recommend", "--gpu", "h100", "-o", str(folder)).status == 0
    launch, line = (folder / "launch.sh").read_text(), json.loads((folder / "plan.json").read_text())["benchmark_line"]
    options = launch.partition("benchmark_line=(--")[2].partition(")")[0].replace("\\\n", " ").split()
    assert options == [
        "max-model-len", str(line["max_model_len"]), "--max-num-seqs", str(line["max_num_seqs"]),
        "--no-enable-prefix-caching",
    ]  # fmt: skip
    assert launch.count('"${benchmark_line[@]}"') == 1


def test_the_benchmark_line_has_no_more_places_than_the_serving_line() -> None:
    asked = ("--gpu", "h100", "--gpus", "2", "--use-case", "rag", "--request-rate", "1", "--format", "json")
    plan = json.loads(run("recommend", "meta-llama/Llama-3.3-70B-Instruct", *asked).out)["plans"][0]
    assert plan["benchmark_line"]["max_num_seqs"] <= plan["max_num_seqs"] == 64, "the search had 87"


def test_another_pick_has_its_own_benchmark_line() -> None:
    """Its figures are a replay of that line, also where the search knew the engine by the closed form alone."""
    load = Load.closed_loop(32, 512, 128)
    search = Search(Space((Serving("meta-llama/Llama-3.1-8B-Instruct", "h100"),)), Objective("max-throughput", load))
    (ranking,) = search.run()
    candidate = ranking.candidates[-1]
    line = search.plan(ranking, candidate).benchmark_line
    assert line is not None and line.max_num_seqs == candidate.config.max_num_seqs
    sent = search.plan(ranking, candidate).workload.sent
    figures = Prediction.of(candidate.deployment, sent).figures
    assert line.mean_e2el_ms == pytest.approx(figures["mean_e2el_ms"], rel=1e-9)


def test_the_library_s_targets_are_those_of_the_commands() -> None:
    serving = Serving("meta-llama/Llama-3.1-8B-Instruct", "h100")
    (slo,) = serving.capacity(Load.open_loop(1.0, 128, 16), ttft_ms=500).slos
    assert slo.percentile == 95  # of the contract: targets default to p95


STRETCHED = (
    '{"rope_parameters":{"rope_type":"yarn","rope_theta":1000000,"factor":4.0,"original_max_position_embeddings":32768},'
    '"max_position_embeddings":131072}'
)


@pytest.mark.parametrize(
    "options", [{"hf_overrides": STRETCHED}, {"env": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "max_model_len": 131072}]
)
def test_a_stretched_context_is_planned_and_launched(options: dict[str, Any]) -> None:
    """Qwen3's model card: YaRN of factor 4.0 for 131,072 tokens; ``_get_and_verify_max_len`` of vLLM 0.32.0 takes it
    with ``max_position_embeddings``, or by its variable."""
    load = {"input_len": 100_000, "output_len": 1000, "max_concurrency": 4}
    with pytest.raises(InputError, match="more than the 40960") as error:
        recommend_plans("Qwen/Qwen3-32B", gpu="h100", **load)
    assert '{"max_position_embeddings": 101000}' in error.value.hint
    (plan, *_) = recommend_plans("Qwen/Qwen3-32B", gpu="h100", **load, **options).to_dict()["plans"]
    assert plan["max_model_len"] == 131072
    given = options.get("hf_overrides", "")
    assert not given or plan["serve_argv"][plan["serve_argv"].index("--hf-overrides") + 1] == given
    longer = Serving("Qwen/Qwen3-32B", "h100", tensor_parallel_size=2, **options)
    assert longer.fit().config.max_model_len == 131072 and longer.longest_context == 131072


def test_a_server_of_images_takes_more_than_the_text_of_its_load() -> None:
    """A picture of 1,024 x 1,024 is 1,370 tokens of 28 x 28 pixels; the profile run of a video takes the context."""
    plan = recommend_plans("Qwen/Qwen2.5-VL-7B-Instruct", "l40s", max_concurrency=64, ttft=500, tpot=40).best
    assert plan and plan.max_model_len >= 16_384


def test_a_checkpoint_quantised_on_load_is_downloaded_whole() -> None:
    plan = recommend_plans("meta-llama/Llama-2-13b-hf", "mi300x", quantization="fp8", gpus=1).best
    assert plan and plan.memory["checkpoint_bytes"] == 26_031_728_640


@pytest.mark.parametrize("options", [{"language_model_only": True}, {"limit_mm_per_prompt": '{"image": 0}'}])
def test_a_model_with_images_is_planned_for_text_alone(options: dict[str, Any]) -> None:
    """Gemma-3's tower is 417 million parameters: 0.8 GB in bf16, which text alone gives to the KV cache."""
    asked = {"gpu": "h100", "num_prompts": 64, "max_concurrency": 8}
    images, text = (
        recommend_plans("google/gemma-3-27b-it", **asked, **more).to_dict()["plans"][0] for more in ({}, options)
    )
    flag = "--" + next(iter(options)).replace("_", "-")
    assert flag in text["serve_argv"] and flag not in images["serve_argv"]
    assert text["model"] == images["model"] and text["num_gpus"] == images["num_gpus"]
    saved = images["memory"]["weights_bytes"] - text["memory"]["weights_bytes"]
    assert saved == pytest.approx(0.84e9 / text["num_gpus"], rel=0.1)
