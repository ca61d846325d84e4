"""The step: roofline limits by hand, and what must hold for any batch."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from physics_cases import engine, gpu, llama_8b, mla_model, moe_model, perfect

from planner.engine import EngineConfig, parse_version
from planner.timing.efficiencies import Efficiency, prior_values
from planner.timing.fits import load_calibration
from planner.timing.step import Batch, StepModel, distinct_experts, hottest_rows

PRIOR = load_calibration().efficiency({}, prior_values(gpu(), {}))
MODELS = {"dense": llama_8b(), "moe": moe_model(), "mla": mla_model()}
batches = st.builds(
    Batch,
    decode_seqs=st.integers(0, 512),
    decode_context_tok=st.floats(0, 1e6),
    prefill_seqs=st.integers(0, 16),
    prefill_tok=st.integers(0, 16384),
    prefill_pair_tok=st.floats(0, 1e9),
    prefill_finishing=st.integers(0, 16),
    decode_query_tok=st.just(1),
    decode_sampled=st.just(1),
    peer_tok=st.none(),
)
models = st.sampled_from(sorted(MODELS))
tensor_parallel = st.sampled_from([1, 2, 8])


def step(name: str = "dense", tp: int = 1, efficiency: Efficiency = PRIOR, bandwidth: float = 3350) -> StepModel:
    return StepModel(MODELS[name], gpu(bandwidth), engine(tp), efficiency)


def test_one_decode_step_at_the_roofline_streams_the_weights_once() -> None:
    # (8,030,261,248 - embedding 525,336,576 - norms 266,240) x 2 bytes / 3.35 TB/s = 4.48 ms, and the logits
    weights_s = 2 * (8_030_261_248 - 525_336_576 - 65 * 4096) / 3.35e12
    assert step(efficiency=perfect()).step_s(Batch(1, 1)) == pytest.approx(weights_s, rel=1e-2)


def test_long_context_reads_the_cache() -> None:
    # 64 sequences of 4096 tokens: 128 KiB each, 34.4 GB more, 10.3 ms more
    at = step(efficiency=perfect())
    more = at.step_s(Batch(64, 64 * 4096)) - at.step_s(Batch(64, 0))
    assert more == pytest.approx(64 * 4096 * 131_072 / 3.35e12)


def test_a_long_prompt_is_bound_by_arithmetic() -> None:
    # 8192 tokens x 2 x 6.98e9 matrix parameters (lm_head works on one row), and 4 x 4096 x 32 for 8192 x 8193 / 2 pairs
    # and the 550 that pad each token's
    matrices = 8_030_261_248 - 2 * 525_336_576 - 65 * 4096
    flop = 8192 * 2 * matrices + 4 * 4096 * 32 * 8192 * (8193 / 2 + 550)
    prompt = Batch(prefill_seqs=1, prefill_tok=8192, prefill_pair_tok=8192 * 8193 / 2, prefill_finishing=1)
    parts = step(efficiency=perfect()).breakdown(prompt).parts
    assert sum(part.time_s for part in parts if part.bound == "compute") == pytest.approx(flop / 989e12, rel=1e-3)


def test_one_row_is_bound_by_its_weights_however_a_tile_is_padded() -> None:
    """At 5 TFLOP/s a row of 235 MFLOP takes 47 us, a tile of 64 rows 3 ms; 235 MB of weights take 70 us."""
    slow = perfect(gemm_flop_16=5e12 / 989e12, tile_tok=63)
    one, many = (step(efficiency=slow).breakdown(Batch(n, n)).parts for n in (1, 64))
    bounds = [next(part.bound for part in parts if part.name == "mlp up") for parts in (one, many)]
    assert bounds == ["memory", "compute"]


@given(models, batches)
def test_the_shares_of_a_part_add_up_to_its_time(model: str, batch: Batch) -> None:
    for part in step(model).breakdown(batch).parts:
        assert sum(part.shares.values()) == pytest.approx(part.time_s)


def test_host_time_is_added_or_hidden() -> None:
    slow_host = perfect(host_step_s=1e-3, host_seq_s=10e-6)
    batch = Batch(100, 100)
    gpu_s = StepModel(llama_8b(), gpu(), engine(), perfect()).step_s(batch)
    in_turn = StepModel(llama_8b(), gpu(), engine(), slow_host).step_s(batch)
    beside = StepModel(llama_8b(), gpu(), engine(async_scheduling=True), slow_host).step_s(batch)
    assert in_turn == pytest.approx(gpu_s + 2e-3)
    assert gpu_s < beside < gpu_s + 0.5e-3


def test_launching_kernel_by_kernel_bounds_a_small_step_without_graphs() -> None:
    slow = perfect(eager_launch_s=20e-6)
    graphed, eager = (StepModel(llama_8b(), gpu(), engine(enforce_eager=e), slow) for e in (False, True))
    assert graphed.step_s(Batch(1, 100)) < eager.step_s(Batch(1, 100))
    # at least 32 layers x (4 GEMMs + attention + small kernels) launches of 20 us
    assert eager.step_s(Batch(1, 100)) > 32 * 6 * 20e-6


def test_an_empty_step_takes_no_time() -> None:
    assert step().step_s(Batch()) == 0


@pytest.mark.parametrize(("experts", "k", "tokens", "touched"), [(128, 8, 1, 8), (8, 2, 2, 3.5), (4, 4, 9, 4)])
def test_distinct_experts_by_hand(experts: int, k: int, tokens: float, touched: float) -> None:
    # 8 experts, 2 per token, 2 tokens: 8 x (1 - (6/8)^2) = 3.5
    assert distinct_experts(experts, k, tokens) == pytest.approx(touched)


@given(st.integers(1, 10_000), st.floats(0.3, 1))
def test_distinct_experts_are_bounded_and_similar_tokens_touch_fewer(tokens: int, exponent: float) -> None:
    touched = distinct_experts(256, 8, tokens, exponent)
    assert touched + 1e-9 >= 8
    assert touched <= min(256, 8 * tokens) + 1e-9
    assert touched <= distinct_experts(256, 8, tokens) + 1e-9


@given(st.floats(0, 1e6), st.sampled_from([1, 2, 8, 64]))
def test_the_busiest_rank_has_at_least_the_mean(rows: float, ranks: int) -> None:
    assert hottest_rows(rows, ranks) >= rows / ranks


@given(
    batches,
    models,
    tensor_parallel,
    st.sampled_from([name for name in Batch._fields if name != "peer_tok"]),
    st.integers(1, 1000),
)
def test_more_load_is_never_faster(batch: Batch, name: str, tp: int, field: str, more: int) -> None:
    at = step(name, tp)
    assert at.step_s(batch._replace(**{field: getattr(batch, field) + more})) >= at.step_s(batch)


@given(batches, models, tensor_parallel, st.floats(1, 10))
def test_more_bandwidth_is_never_slower(batch: Batch, name: str, tp: int, factor: float) -> None:
    assert step(name, tp, bandwidth=3350 * factor).step_s(batch) <= step(name, tp).step_s(batch)


@given(batches, models, tensor_parallel)
def test_nothing_beats_the_roofline(batch: Batch, name: str, tp: int) -> None:
    assert step(name, tp).step_s(batch) >= step(name, tp, perfect()).step_s(batch)


@given(batches, models, tensor_parallel)
def test_the_breakdown_adds_up(batch: Batch, name: str, tp: int) -> None:
    at = step(name, tp)
    parts = at.breakdown(batch)
    assert parts.total_s == pytest.approx(at.step_s(batch))
    assert sum(p.time_s for p in parts.parts) == pytest.approx(parts.gpu_s + parts.host_s)


@given(models, st.integers(1, 256), st.floats(1e3, 1e6))
def test_between_kinks_time_is_linear_in_context(name: str, seqs: int, context: float) -> None:
    """Replays jump runs of decode steps by the trapezoid rule."""
    at = step(name)
    low, middle, high = (at.step_s(Batch(seqs, context + d)) for d in (0, seqs * 32, seqs * 64))
    assert middle == pytest.approx((low + high) / 2, rel=1e-3)


def test_pipeline_stages_share_the_batch() -> None:
    """Twice the stages with half the batch each: weights are streamed as often, the rest is shared."""
    one = StepModel(llama_8b(), gpu(), engine(), perfect())
    two = StepModel(llama_8b(), gpu(), engine(pipeline_parallel_size=2), perfect())
    batch, half = Batch(64, 64 * 2048), Batch(32, 32 * 2048)
    assert two.step_s(batch) == pytest.approx(one.step_s(half), rel=0.01)


@pytest.mark.parametrize("stages", [2, 4])
def test_a_prompt_passes_the_stages_whole_whatever_decodes_beside_it(stages: int) -> None:
    """Batches are under way at once, but a prompt is in one of them: TTFT under load was that alone over the stages."""
    at = StepModel(llama_8b(), gpu(), engine(pipeline_parallel_size=stages), perfect())
    lone, beside = Batch(0, 0, 1, 2048, 2e6, 1), Batch(64, 64 * 2048, 1, 2048, 2e6, 1)
    assert at.step_s(lone) <= at.step_s(beside) <= at.step_s(lone) + at.step_s(Batch(64, 64 * 2048))
    cached = Batch(0, 0, 1, 2048, 2048 * 8192.0, 1)  # behind 7,000 tokens of the prefix cache
    one = StepModel(llama_8b(), gpu(), engine(), perfect())
    assert at.step_s(cached) == pytest.approx(one.step_s(cached), rel=0.02)
    many = Batch(0, 0, stages, 2048 * stages, 2e6 * stages, stages)  # each batch under way has one of these
    assert at.step_s(many) == pytest.approx(at.step_s(lone), rel=0.02)


def asynchronous(version: str, stages: int) -> EngineConfig:
    return engine(version=parse_version(version), pipeline_parallel_size=stages, async_scheduling=True)


MIXED, SAMPLING, GOING_ON = Batch(64, 64 * 2048, 1, 8192, 4e7), Batch(0, 0, 1, 8192, 3e7, 1), Batch(0, 0, 1, 8192, 4e7)
HALVES = [Batch(32, 32 * 2048, 1, 4096, 2e7), Batch(0, 0, 1, 4096, 1.5e7, 1), Batch(0, 0, 1, 4096, 2e7)]


@pytest.mark.parametrize(
    ("version", "alone"),
    [
        ("0.15.0", []),
        ("0.19.1", [MIXED, SAMPLING, GOING_ON]),
        ("0.23.0", [MIXED, SAMPLING]),
        ("0.28.0", [MIXED, SAMPLING]),
        ("0.29.0", []),
    ],
)
def test_what_waits_for_a_token_has_both_stages_to_itself(version: str, alone: list[Batch]) -> None:
    """Such a step takes what it takes on one GPU, and others that with half the batch, as the stages overlap."""
    moe = replace(moe_model(), architecture="Qwen3MoeForCausalLM")
    one, two = (StepModel(moe, gpu(), asynchronous(version, stages), perfect()) for stages in (1, 2))
    for whole, half in zip((MIXED, SAMPLING, GOING_ON), HALVES, strict=True):
        alike = whole if whole in alone or whole is SAMPLING else half  # a lone prompt's last step overlaps with none
        assert two.device_s(whole) == pytest.approx(one.device_s(alike), rel=0.02)


@given(batches, st.sampled_from(["0.16.0", "0.22.0"]))
def test_stages_that_wait_are_never_faster(drawn: Batch, version: str) -> None:
    batch = drawn._replace(prefill_seqs=drawn.prefill_seqs + drawn.prefill_finishing)
    waiting = asynchronous(version, 4)
    times_s = [
        StepModel(MODELS["moe"], gpu(), config, PRIOR).device_s(batch)
        for config in (waiting, replace(waiting, async_scheduling=False))
        if batch.decode_seqs + batch.prefill_seqs
    ]
    assert times_s == sorted(times_s, reverse=True)
