"""Ranks that share the tokens of the cache (``--decode-context-parallel-size``): what each reads and sends."""

from typing import Any

import pytest

from planner.engine import EngineArgs, parse_version
from planner.errors import InputError
from planner.hardware import load_profile
from planner.model import resolve_model
from planner.planning import Deployment, Prediction, resolve_deployment
from planner.timing.links import step_collectives
from planner.timing.operators import OperatorKind, step_operators
from planner.workload import Load

KIMI, GQA = "moonshotai/Kimi-K2-Thinking", "Qwen/Qwen3-235B-A22B"


def served(name: str, release: str = "0.11.1", **flags: Any) -> Deployment:
    """On eight H200."""
    model, args = resolve_model(name, network=False).model, EngineArgs(tensor_parallel_size=8, **flags)
    return resolve_deployment(model, load_profile("h200"), args, parse_version(release))


def exchanged(deployment: Deployment) -> Any:
    found = step_collectives(deployment.model, deployment.profile, deployment.config)
    return next((one for one in found if one.name == "context exchange"), None)


def cache_bytes_per_token(deployment: Deployment) -> float:
    operators = step_operators(deployment.model, deployment.config)
    return sum(one.bytes_per_unit for one in operators if one.kind is OperatorKind.ATTENTION)


def test_each_rank_reads_its_share_and_computes_as_much() -> None:
    """MLA keeps 576 elements of a token in each of 61 layers, 70,272 bytes in bf16, on every rank."""
    alone, shared = served(KIMI), served(KIMI, decode_context_parallel_size=8)
    assert cache_bytes_per_token(alone) == 70_272
    assert cache_bytes_per_token(shared) == 70_272 / 8
    flop = [
        [one.flop_per_unit for one in step_operators(d.model, d.config) if one.kind is OperatorKind.ATTENTION]
        for d in (alone, shared)
    ]
    assert flop[0] == flop[1]


def test_the_exchange_by_hand() -> None:
    """Query 576 and output 512 of 64 heads in bf16, and eight fp32 sums of each: 7/8 of it comes from others."""
    assert exchanged(served(KIMI)) is None
    found = exchanged(served(KIMI, decode_context_parallel_size=8))
    assert (found.count, found.ranks) == (3 * 61, 8)
    assert found.bytes_per_unit == 61 * 64 * ((576 + 512) * 2 + 8 * 4) * 7 / 8
    # of two ranks, each answers for the 2 x 8 heads of both
    pair = exchanged(served(KIMI, decode_context_parallel_size=2))
    assert pair.bytes_per_unit == 61 * 16 * ((576 + 512) * 2 + 2 * 4) / 2


def test_grouped_heads_share_what_they_repeat() -> None:
    """Four KV heads on eight ranks: two of them hold the same. 94 layers, 64 heads of 128: 16 heads in each pair."""
    alone, pair = served(GQA, "0.27.1"), served(GQA, "0.27.1", decode_context_parallel_size=2)
    assert cache_bytes_per_token(pair) == cache_bytes_per_token(alone) / 2
    assert exchanged(pair).bytes_per_unit == 94 * 16 * (2 * 128 * 2 + 2 * 4) / 2


def test_an_index_is_refused() -> None:
    with pytest.raises(InputError, match="index is not known"):
        _ = served("deepseek-ai/DeepSeek-V3.2", "0.27.1", decode_context_parallel_size=8).timer


def test_what_sharing_is_worth_where_the_cache_is_full() -> None:
    """Kimi-K2-Thinking on 8 H200, prompts of 8,000 tokens, vLLM's recipe: 1.25 requests/s, with DCP 8 1.57 requests/s;
    the logs say 715,072 and 5,721,088 tokens of cache. Answers ended after 390 and 441 tokens on average.

    How fast this engine is depends on the fit, so each rate is held against its interval; what sharing adds does not.
    """
    measured, rates = {1: (1.25, 390, 715_072), 8: (1.57, 441, 5_721_088)}, {}
    for size, (rate, output_len, cache_tok) in measured.items():
        deployment = served(KIMI, decode_context_parallel_size=size)
        result = Prediction.of(deployment, Load(8000, output_len, 1000, request_rate=100.0)).result
        rates[size] = result["request_throughput"]
        assert result["request_throughput_lo"] < rate < result["request_throughput_hi"]
        assert deployment.limits(8000 + output_len).kv_cache_tokens == pytest.approx(cache_tok, rel=0.03)
    assert rates[8] / rates[1] == pytest.approx(1.57 / 1.25, rel=0.1)
