"""The closed form beside values computed by hand and beside replays of every DP rank."""

from types import SimpleNamespace
from typing import cast

import pytest

from planner.planning.capacity import at_concurrency
from planner.planning.deployment import Deployment
from planner.planning.predict import estimate
from planner.planning.serving import Serving
from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.load import Load


class Steps:
    """1 ms a step, 0.1 ms a decoding request, 0.01 ms a token of a prompt."""

    def step_s(self, batch: Batch) -> float:
        return 1e-3 + 1e-4 * batch.decode_seqs + 1e-5 * batch.prefill_tok


def engine(ranks: int = 1, budget_tok: int = 2048) -> Deployment:
    config = SimpleNamespace(
        enable_prefix_caching=False, max_num_batched_tokens=budget_tok, data_parallel_size=ranks, max_running=64 * ranks
    )
    model = SimpleNamespace(is_moe=ranks > 1)
    kept = SimpleNamespace(timer=Steps(), config=config, model=model, tokens_per_step=1.0, estimates={})
    return cast(Deployment, kept)


def served(ranks: int, concurrency: int, input_len: int, output_len: int) -> dict[str, float]:
    """Mean ms of a replay, and tokens/s; without the opening burst, which the closed form does not know."""
    load = Load(input_len, output_len, 40 * concurrency, max_concurrency=concurrency, range_ratio=0.3)
    limits = SchedulerLimits(64, 2048, 10**7, data_parallel_size=ranks, lockstep=ranks > 1)
    run = replay(Steps(), load, limits)
    steady = slice(5 * concurrency, None)
    ttft_s, e2el_s = run.ttft_s[steady], run.e2el_s[steady]
    tpot_s = (e2el_s - ttft_s) / (run.output_len[steady] - 1)
    rate = run.output_len.sum() / run.duration_s
    return {"ttft": ttft_s.mean(), "tpot": tpot_s.mean(), "e2el": e2el_s.mean(), "rate": rate}


def test_figures_are_those_computed_by_hand() -> None:
    """Four requests of 1,000 + 101 tokens: a decode step of 1.4 ms, of three 1.3 ms, beside a prompt 11.3 ms."""
    by_hand = estimate(engine(), 1000, 101, 4)
    assert by_hand.ttft_s == pytest.approx(0.7e-3 + 11.3e-3)  # half a step, and its own prompt
    assert by_hand.e2el_s == pytest.approx((100 - 3) * 1.4e-3 + 3 * (1.4e-3 - 1.3e-3 + 11.3e-3) + 11.3e-3)
    assert by_hand.tpot_s == pytest.approx((by_hand.e2el_s - by_hand.ttft_s) / 100)
    # a budget of 403 tokens leaves 400 beside three that decode: 3 chunks of 334 tokens
    assert estimate(engine(budget_tok=403), 1000, 101, 4).ttft_s == pytest.approx(0.7e-3 + 3 * (1.3e-3 + 3.34e-3))


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_the_mean_ttft_is_that_of_the_replay(concurrency: int) -> None:
    ttft_s = at_concurrency(engine(), Load(1000, 100), concurrency).ttft_s
    assert ttft_s == pytest.approx(served(1, concurrency, 1000, 100)["ttft"], rel=0.15)


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("each", [1, 2, 8])
@pytest.mark.parametrize("lengths", [(1000, 100), (200, 400)])
def test_ranks_that_step_together_are_held_up_by_each_other(ranks: int, each: int, lengths: tuple[int, int]) -> None:
    """All ranks are replayed: a prompt on one of them delays the tokens of all."""
    concurrency = each * ranks
    quick, replayed = at_concurrency(engine(ranks), Load(*lengths), concurrency), served(ranks, concurrency, *lengths)
    assert quick.output_tok_per_s == pytest.approx(replayed["rate"], rel=0.07)
    assert quick.tpot_s == pytest.approx(replayed["tpot"], rel=0.07)


@pytest.mark.parametrize(
    ("model", "gpu", "ranks", "concurrency"),
    [("deepseek-ai/DeepSeek-R1", "h200", 8, 64), ("Qwen/Qwen3-30B-A3B", "h100", 2, 64)],
)
def test_a_prompt_of_one_rank_meets_tokens_of_the_others(model: str, gpu: str, ranks: int, concurrency: int) -> None:
    """Eight ranks that all read a prompt in each such step would deliver 0.43 of what the replay does."""
    serving = Serving(model, gpu, data_parallel_size=ranks, enable_expert_parallel=True)
    load = Load(8000, 1000, 5 * concurrency, max_concurrency=concurrency, range_ratio=0.2)
    replayed = serving.predict(load).figures["output_throughput"]
    assert at_concurrency(serving.deployment, load, concurrency).output_tok_per_s == pytest.approx(replayed, rel=0.1)
