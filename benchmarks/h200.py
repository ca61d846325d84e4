"""Predictions beside steps timed on one H200: ``python benchmarks/h200.py --record benchmarks/results/h200.md``.

``h200.json`` holds what vLLM 0.24.0 took: a lone prompt or several at once with one token of output, and steps of
decoding, as the time of 81 tokens minus that of 17, over 64. No fit has seen them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.evidence.evaluation import case_of
from planner.evidence.runs import MeasuredRun
from planner.planning.deployment import Deployment
from planner.timing.step import Batch

MEASURED = Path(__file__).with_name("h200.json")


def deployment(model: str) -> Deployment:
    """The engine that was measured."""
    dtype = "fp8" if model.endswith("FP8") else "bf16"
    run = MeasuredRun(
        "", "latency", "h200-sxm", model, weight_dtype=dtype, engine_version="0.24.0", batch_size=1, input_len=128,
        output_len=8, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=16384, gpu_memory_utilization=0.9,
        metrics={"avg_latency_s": 1.0},
    )  # fmt: skip
    return case_of(run).deployment


def batch_of(kind: str, prompts: int, input_len: int) -> Batch:
    """The step that was timed: all prompts whole, or decoding in the middle of 81 - 17 tokens."""
    if kind == "decode":
        return Batch(prompts, float(prompts * (input_len + 49)))
    return Batch(0, 0.0, prompts, prompts * input_len, prompts * input_len * (input_len + 1) / 2, prompts)


def measured_ms(repeats: list[float]) -> float:
    """Median of the repeats; of two the shorter, as the first may compile a kernel."""
    sound = sorted(one for one in repeats if one > 0)
    return sound[(len(sound) - 1) // 2]


def report(measured: dict[str, Any]) -> Iterator[str]:
    yield from ("# Steps on one H200", "", measured["source"] + ".", "")
    yield from ("| model | step | measured ms | predicted ms | error |", "| --- | --- | --- | --- | --- |")
    engines = {model: deployment(model) for model in measured["kv_cache_tokens"]}
    for model, kind, prompts, input_len, repeats in measured["rows"]:
        took_ms = measured_ms(repeats)
        step_ms = engines[model].timer.step_s(batch_of(kind, prompts, input_len)) * 1e3
        error = f"{step_ms / took_ms - 1:+.0%}"
        step = f"{prompts:,} x {input_len:,} {'prompt tokens' if kind == 'prefill' else 'tokens of context'}"
        yield f"| {model} | {step} | {took_ms:.1f} | {step_ms:.1f} | {error} |"
    yield from (
        "",
        "| model | operator, 8,192 prompt tokens | measured ms | predicted ms |",
        "| --- | --- | --- | --- |",
    )
    for model, operators in measured["kernels_us"].items():
        parts = engines[model].timer.breakdown(batch_of("prefill", 1, 8192)).parts
        for name, took_us in operators.items():
            predicted_s = sum(part.time_s for part in parts if part.name == name)
            yield f"| {model} | {name} | {took_us / 1e3:.1f} | {predicted_s * 1e3:.1f} |"
    yield from ("", "| model | KV cache, tokens | predicted | error |", "| --- | --- | --- | --- |")
    for model, logged in measured["kv_cache_tokens"].items():
        engine = engines[model]
        found = int(engine.budget.num_blocks.mid) * engine.config.block_size
        yield f"| {model} | {logged:,} | {found:,} | {found / logged - 1:+.1%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, help="write the tables there")
    record = parser.parse_args().record
    text = "\n".join(report(json.loads(MEASURED.read_text(encoding="utf-8")))) + "\n"
    print(text)
    if record:
        record.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
