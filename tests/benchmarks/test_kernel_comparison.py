"""The comparison of kernels runs, and its operators cost what the step's cost."""

from dataclasses import replace

import numpy as np
import pytest

import kernel_comparison as comparison
from fit.kernel_work import Peaks, decode_attention_work, experts_work, gemm_work, prefill_attention_work
from kernel_surfaces import Block
from planner.evidence.observations import observe
from planner.evidence.runs import MeasuredRun
from planner.hardware import load_profile
from planner.timing.step import Batch, StepModel

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
RUN = MeasuredRun("one", "serve", "h100-sxm", LLAMA, engine_version="0.24.0", input_len=512, output_len=64,
    num_prompts=8, arrival="closed-loop", max_concurrency=4, metrics={"mean_tpot_ms": 8.0})  # fmt: skip
H100 = Peaks.of(load_profile("h100-sxm"))


@pytest.fixture(scope="module")
def step() -> StepModel:
    return comparison.step_of("h100-sxm", LLAMA)


def part_s(step: StepModel, batch: Batch, name: str) -> float:
    """Of one of the 32 layers."""
    return next(part.time_s for part in step.breakdown(batch).parts if part.name == name) / 32


def test_single_operators_are_those_of_a_step(step: StepModel) -> None:
    """Llama-3.1-8B: 32 heads, 8 of them of the cache, 128 dimensions; qkv has 6,144 outputs of 4,096 inputs."""
    size = np.array([4.0])
    decodes = Batch(decode_seqs=4, decode_context_tok=8000.0)
    prompts = Batch(prefill_seqs=4, prefill_tok=8000, prefill_pair_tok=4 * 2000 * 2001 / 2, prefill_finishing=4)
    heads = [np.array([value]) for value in (32.0, 8.0, 128.0, 0.0)]  # and no window
    context = np.array([2000.0])
    for kind, batch, name, timed, work in (
        ("gemm", decodes, "qkv projection", comparison.gemm_s,
         gemm_work(H100, "bf16", size, np.array([6144.0]), np.array([4096.0]))),
        ("decode_attention", decodes, "attention decode", comparison.attention_s,
         decode_attention_work(H100, "bf16", size, context, *heads)),
        ("prefill_attention", prompts, "attention prefill", comparison.attention_s,
         prefill_attention_work(H100, "bf16", size, context, *heads)),
    ):  # fmt: skip
        block = Block(kind, "h100-sxm", "bf16", np.array([1.0]), work, np.zeros(1), size)
        assert timed(block, 0, step) == pytest.approx(part_s(step, batch, name), rel=1e-6), kind


def test_experts_are_those_of_a_step() -> None:
    """Qwen3-30B-A3B: 128 experts of 768 in 48 layers, 8 for each token."""
    step = comparison.step_of("h100-sxm", "Qwen/Qwen3-30B-A3B")
    one = [np.array([value]) for value in (64.0, 2048.0, 768.0, 128.0, 8.0)]
    work = experts_work(H100, "bf16", *one)
    block = Block("experts", "h100-sxm", "bf16", np.array([1.0]), work, np.zeros(1), one[0])
    parts = step.breakdown(Batch(decode_seqs=64, decode_context_tok=64.0)).parts
    experts = next(part for part in parts if part.name == "experts")
    assert comparison.experts_s(block, 0, step) == pytest.approx(experts.time_s / 48, rel=1e-6)


@pytest.mark.parametrize("model", [LLAMA, "Qwen/Qwen3-30B-A3B"])
def test_whole_steps_by_tables(model: str) -> None:
    """Surfaces replace the operators that have one; a step of either stays within a factor of two of the other."""
    (one,), _ = observe([replace(RUN, model=model)])
    parts = comparison.TabledStep(one).parts
    assert {"qkv projection", "attention output", "attention decode", "attention prefill"} < parts.keys()
    assert ("experts" in parts) == one.model.is_moe
    ((name, today, tabled),) = comparison.tables_alone(one)
    assert name == "mean_tpot_ms" and abs(today - tabled) < np.log(2)
