"""What KV blocks in host memory are worth for a trace, and how far that is known."""

import json
from math import exp
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import error_of, run
from memory_cases import model
from searches import choices, search_for

from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction
from planner.timing.efficiencies import PARAMETERS
from planner.units import GIB
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests
from planner.workload.targets import Targets, parse_slos

LLAMA, LLAMA_70B = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.3-70B-Instruct"
PROMPT_TOK = 8192


def engine(name: str = LLAMA, gpu: str = "h100-sxm", **flags: Any) -> Deployment:
    args = EngineArgs(**{"max_model_len": 16384, "gpu_memory_utilization": 0.3, **flags})
    return resolve_deployment(model(name), load_profile(gpu), args, parse_version("0.27.1"))


def in_turns(prompts: int, rounds: int) -> Requests:
    """Prompts that have nothing in common, one a second, and all of them again; the last token is another one."""
    count = prompts * rounds
    names = [[index % prompts, prompts + index] for index in range(count)]
    lengths = np.full(count, PROMPT_TOK)
    prefixes = Prefixes.of(names, [[PROMPT_TOK - 1, 1]] * count)
    return Requests(lengths, np.full(count, 2), np.arange(count, dtype=np.float64), prefixes)


def predicted(deployment: Deployment, requests: Requests) -> Prediction:
    return Prediction.of(deployment, Load(PROMPT_TOK, 2, len(requests.input_len), request_rate=1, recorded=requests))


def test_a_prompt_that_comes_again_waits_for_the_link_instead_of_being_computed() -> None:
    # 24 prompts of 8,192 tokens, 131,072 bytes each, are 25.8 GB: more than this engine has on the GPU (4 GiB), less
    # than the 40 GiB of the host. So each comes back from there: 511 full blocks of 16 tokens over 0.78 x 64 GB/s.
    copy_s = 511 * 16 * 131_072 / (0.78 * 64e9)  # 21.5 ms
    found = predicted(engine(kv_offloading_size=40), in_turns(prompts=24, rounds=2))
    assert found.replay.host_tok.tolist() == [0] * 24 + [8176] * 24
    assert found.unaided is not None
    assert not found.unaided.replay.cached_tok.any()
    # what is left: 16 tokens of the prompt and what every request has to pass, as after a hit on the GPU
    alone = predicted(engine(), in_turns(prompts=1, rounds=2)).replay
    assert alone.cached_tok.tolist() == [0, 8176]
    assert found.replay.ttft_s[24:] == pytest.approx(alone.ttft_s[1] + copy_s, rel=0.02)
    # vLLM's authors measured 2 to 22 times, by the length of the prompt (blog of 8 January 2026; this model on an H100)
    assert 2 < found.unaided.replay.ttft_s[24:].mean() / found.replay.ttft_s[24:].mean() < 22


def test_all_ranks_share_the_size_and_each_has_its_link() -> None:
    # Llama-3.3-70B at TP 4 keeps 81,920 bytes of a token on each of four ranks
    deployment = engine(LLAMA_70B, tensor_parallel_size=4, kv_offloading_size=64, gpu_memory_utilization=0.9)
    limits = deployment.with_host_blocks(deployment.limits(1024))
    assert limits.host_blocks == 64 * GIB // (4 * 81_920) // 16
    assert limits.host_block_s == pytest.approx(16 * 81_920 / (0.78 * 64e9))


def test_the_interval_holds_a_link_that_is_slower() -> None:
    requests, deployment = in_turns(prompts=24, rounds=2), engine(kv_offloading_size=40)
    held, place = predicted(deployment, requests), PARAMETERS.index("offload_share")
    # 0.15 of the prior and 0.2 of the machine: no run has taken any of it away
    assert deployment.known.covariance[place, place] == pytest.approx(0.15**2 + 0.2**2)
    by = np.zeros(len(PARAMETERS))
    by[place] = -0.25
    slower = predicted(deployment.with_efficiencies_moved(by), requests).figures["mean_ttft_ms"]
    assert 1 < slower / held.figures["mean_ttft_ms"] <= exp(held.uncertainty.deviations("mean_ttft_ms")[1])


@pytest.mark.parametrize(
    ("gpu", "flags", "words"),
    [
        ("h100-sxm", {"enable_prefix_caching": False}, "keeps no prefixes"),
        ("gb200", {"gpu_memory_utilization": 0.5}, "reads from its host is not in its profile"),
    ],
)
def test_what_cannot_be_replayed_is_refused(gpu: str, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        predicted(engine(gpu=gpu, kv_offloading_size=40, **flags), in_turns(prompts=2, rounds=2))
    assert error.value.hint


PLANNED = (
    "nvidia/Llama-3.1-8B-Instruct-FP8", "--max-model-len", "32768", "--max-num-seqs", "2", "--max-num-batched-tokens",
    "2048", "--calibration", "none", "--kv-offloading-size", "16",
)  # fmt: skip
ON_L4 = (*PLANNED, "--gpu", "l4", "--gpu-memory-utilization", "0.6")
TARGET = ("--ttft", "20000", "--percentile", "mean")


@pytest.fixture
def documents(tmp_path: Path) -> str:
    """Eight documents, and a question to each a minute later: 92,000 tokens, and ``ON_L4`` there is room for 67,920."""
    path = tmp_path / "documents.csv"
    # the answer of 100 tokens takes 2.5 s, the pause 60 s; the question has 60 tokens
    rows = [(8 * n + 62.5 * asked, 15000 - 1000 * n + 160 * asked, n) for n in range(8) for asked in (0, 1)]
    lines = "".join(f"{at},{tokens},100,{n}\n" for at, tokens, n in sorted(rows))
    path.write_text("arrival_s,input_len,output_len,session\n" + lines)
    return str(path)


def said(*words: str) -> Any:
    return json.loads(run(*words, "--format", "json").out)


def test_a_plan_has_the_host_in_its_replay_and_its_script(documents: str, tmp_path: Path) -> None:
    words = ("recommend", *ON_L4, "--gpus", "1", "--trace", documents, *TARGET)
    out = tmp_path / "plan"
    answered = run(*words, "-o", str(out))
    plan = json.loads((out / "plan.json").read_text())
    assert "--kv-offloading-size 16.0" in " ".join((out / "launch.sh").read_text().replace("\\\n", " ").split())
    found = plan["service"]["kv_offloading"]
    # the replay of a plan is that of ``predict`` with the plan's settings
    settings = ("--kv-cache-dtype", plan["kv_cache_dtype"])
    predicted = said("predict", "serve", *ON_L4, *settings, "--trace", documents)["kv_offloading"]
    assert found["host_share"] == pytest.approx(predicted["host_share"])
    assert found["host_share"] > 0.3
    assert found["without"]["gpu_share"] == pytest.approx(predicted["without"]["gpu_share"])
    (target,) = plan["service"]["targets"]
    (without,) = found["without"]["targets"]
    assert target["metric"] == without["metric"] == "mean_ttft_ms"
    assert without["predicted_ms"] == pytest.approx(predicted["without"]["mean_ttft_ms"])
    assert target["predicted_ms"] < without["predicted_ms"]
    told = " ".join(answered.out.split())
    assert f"{found['host_share']:.1%} of the prompt tokens are loaded from host memory" in told
    assert "without --kv-offloading-size: " in told


def test_a_fleet_has_it_too(documents: str) -> None:
    gpu = ("--gpu", "gh200-96gb", "--gpu-memory-utilization", "0.15")  # one to a node, with about as much room
    answer = said("fleet", *PLANNED, *gpu, "--trace", documents, *TARGET, "--n-plus", "0")
    found = answer["kv_offloading"]
    assert found["host_share"] > 0.3
    assert found["gpu_share"] + found["host_share"] > found["without_gpu_share"]
    assert found["without_gpus"] >= answer["fleets"][0]["gpus"]


@pytest.mark.parametrize("command", ["recommend", "fleet"])
@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("google/gemma-3-27b-it", "--gpu", "h100"), "a model whose layers keep different blocks"),
        (("meta-llama/Llama-3.1-8B", "--gpu", "h100", "--no-enable-prefix-caching"), "keeps no prefixes"),
        (("meta-llama/Llama-3.1-8B", "--gpu", "h100", "--scheduling-policy", "priority"), "priority"),
        (("meta-llama/Llama-3.1-8B", "--gpu", "gb200"), "reads from its host is not in its profile"),
    ],
)
def test_a_plan_that_cannot_be_replayed_is_refused_in_a_line(
    command: str, words: tuple[str, ...], cause: str, documents: str
) -> None:
    cause_said, hint = error_of(run(command, *words, "--trace", documents, *TARGET, "--kv-offloading-size", "16"))
    assert cause in cause_said
    assert hint


def test_layouts_that_step_together_lose_with_that_reason() -> None:
    requests = in_turns(prompts=4, rounds=2)
    wanted = Targets(parse_slos({"ttft": 60000.0}, "mean"), "rate", 1.0)
    load = Load(1, 2, len(requests.arrival_s), request_rate=1.0, prefix_len=PROMPT_TOK - 1, recorded=requests)
    args = EngineArgs(kv_offloading_size=40, max_num_seqs=8, max_num_batched_tokens=8192)
    (ranking,) = search_for(wanted, "h100", model="Qwen/Qwen3-30B-A3B", load=load, args=args, gpus_per_node=2).run()
    assert ranking.best and ranking.best.config.data_parallel_size == 1
    reasons = {rejected.reason for rejected in ranking.rejected if (rejected.data_parallel_size or 1) > 1}
    assert any("DP ranks that step together" in reason for reason in reasons)


def test_a_known_load_keeps_the_prefix_cache_that_recipes_switch_off() -> None:
    # vLLM's recipes for Llama-3.3-70B set --no-enable-prefix-caching, for a benchmark of random prompts
    for requests, kept in ((in_turns(prompts=4, rounds=2), True), (None, False)):
        load = Load(512, 8, request_rate=1.0, recorded=requests)
        wanted, version = Targets((), "rate", 1.0), parse_version("0.27.1")
        asked = search_for(wanted, "h100", model=LLAMA_70B, load=load, version=version)
        args = choices(asked).launched(asked.space.model.model, EngineArgs())
        assert (args.enable_prefix_caching is not False) is kept


def test_a_load_that_finds_nothing_on_the_host_says_so() -> None:
    load = ("--random-input-len", "256", "--random-output-len", "8", "--max-concurrency", "2")
    served = ("--num-prompts", "4", *load)
    for words in (("predict", "serve", *ON_L4, *served), ("compare", *ON_L4, *load)):
        assert "changes no figure here" in " ".join(run(*words).err.split())
    planned = run("recommend", *ON_L4, "--gpus", "1", *load)
    assert "changes no figure here" in " ".join(planned.out.split())
