"""What KV blocks in host memory are worth for a trace, and how far that is known."""

from math import exp
from typing import Any

import numpy as np
import pytest
from memory_cases import model

from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction, simulate_serve
from planner.timing.efficiencies import PARAMETERS
from planner.units import GIB
from planner.workload.prefixes import Prefixes
from planner.workload.requests import Requests, Workload

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
    load = Workload(PROMPT_TOK, 2, len(requests.input_len), request_rate=1)
    return simulate_serve(deployment, load, requests=requests)


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
