"""Compare kernel surfaces with today's operator times, with surfaces of relatives, and with measured runs.

    python benchmarks/kernel_comparison.py FOLDER --runs RUNS.csv ... [--sections relatives today sources]

Writes three sections of ``benchmarks/results/kernels.md``: how well a GPU is predicted from the surfaces of a relative;
today's time of an operator over its table, beside the surface's; and whole steps from tables alone, by source of the
runs: surfaces for the operators that have one, today's times for small kernels, collectives, launches and the host.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import kernel_surfaces as surfaces
from fit.kernel_work import LONGEST_PROMPT
from fit.kernels import Kernels, Surface, load_surfaces
from kernel_surfaces import Block
from planner.engine import EngineArgs, Layout, held_heads
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.evidence.observations import Observed, observe
from planner.evidence.runs import MeasuredRun, read_runs
from planner.hardware import load_profile
from planner.model import Attention, Component, Precision, Shard
from planner.model.resolve import resolve_model
from planner.planning.deployment import resolve_deployment
from planner.timing import load_calibration, operators
from planner.timing.operators import Driver, Operator, OperatorKind, StepLoad
from planner.timing.roofline import TimedTerm, operator_term
from planner.timing.step import Batch, StepModel

VERSION = "0.24.0"
TOKENS = (1, 8, 32, 128, 512, 2048, 8192)
#: A GPU, and whose surface predicts it.
PAIRS = (("h200-sxm", "h100-sxm"), ("h100-sxm", "h200-sxm"), ("b300-sxm", "b200-sxm"), ("gb200", "b200-sxm"),
         ("gb300", "b300-sxm"), ("rtx-pro-6000", "l40s"), ("l40s", "rtx-pro-6000"),
         ("b200-sxm", "h200-sxm"))  # fmt: skip
PAIRED = ("gemm", "experts", "decode_attention", "prefill_attention")
MOST_RUNS = 36  #: of one source


# --- surfaces of relatives


def predicted_us(surface: Surface, block: Block) -> np.ndarray:
    """Microseconds of each row of ``block`` by ``surface``."""
    matrix = surfaces.design(surface.form, block.work, np.array(surface.low), np.array(surface.high))
    solution = np.concatenate([np.ravel(surface.by_knot), surface.everywhere]) / 1000
    us = (surface.floor_us + block.work.base_s * 1e6) * np.exp(matrix @ solution)
    return np.maximum(us, block.work.bound_s * 1e6)


def relatives(blocks: dict[str, list[Block]]) -> str:
    lines = ["| GPU | by the surface of | " + " | ".join(PAIRED) + " |", "| --- | --- |" + " --- |" * len(PAIRED)]
    for gpu, other in PAIRS:
        cells = []
        for kind in PAIRED:
            errors = []
            for block in blocks[kind]:
                surface = load_surfaces().get((kind, other, block.precision))
                if block.gpu == gpu and surface:
                    errors.append(np.log(predicted_us(surface, block) / block.us))
            errors = np.concatenate(errors) if errors else np.zeros(0)
            middle = 100 * np.median(surfaces.relative(errors)), 100 * np.expm1(np.median(errors))
            cells.append(f"{middle[0]:.0f} ({middle[1]:+.0f})" if len(errors) else "")
        lines.append(f"| {gpu} | {other} | " + " | ".join(cells) + " |")
    return "\n".join(["Median error in percent, in brackets bias, over all precisions.", "", *lines])


# --- today's operators


def step_of(gpu: str, model: str, **settings: object) -> StepModel:
    """The steps of an engine, whose efficiencies time single operators."""
    args = EngineArgs(max_model_len=4096, **settings)
    deployment = resolve_deployment(resolve_model(model).model, load_profile(gpu), args, parse_version(VERSION))
    return StepModel(deployment.model, deployment.profile, deployment.config, deployment.efficiency)


def seconds(operator: Operator, step: StepModel, units: float, rows: float) -> float:
    """Today's time of one operator."""
    term = operator_term(operator, step.profile)
    return TimedTerm.of(term, 0, lambda name: getattr(step.efficiency, name)).time_s(units, rows)


WORDS = {"bf16": ("bf16", "bf16", 2.0), "fp8": ("fp8", "fp8", 1.0), "fp8_block": ("fp8", "fp8", 1.0),
         "nvfp4": ("fp4", "nvfp4", 0.5625), "mxfp4_mxfp4": ("fp4", "mxfp4", 0.53), "mxfp4": ("bf16", "mxfp4", 0.53),
         "mxfp4_mxfp8": ("fp8", "mxfp4", 0.53)}  # fmt: skip


def gemm_s(block: Block, row: int, step: StepModel) -> float:
    m, n, k = (float(block.work.at[name][row]) for name in ("m", "n", "k"))
    compute, storage, stored_bytes = WORDS[block.precision]
    load = StepLoad(Driver.TOKENS)
    operator = Operator("gemm", OperatorKind.GEMM, load, 1, 2 * n * k, n * k * stored_bytes, 2 * (n + k),
                        compute_dtype=compute, storage=storage)  # fmt: skip
    return seconds(operator, step, m, m)


def experts_s(block: Block, row: int, step: StepModel) -> float:
    at = {name: float(np.broadcast_to(value, block.us.shape)[row]) for name, value in block.work.at.items()}
    compute, storage, stored_bytes = WORDS[block.precision]
    count, params = at["held"] * at["ep"], 3 * at["hidden"] * at["inner"]
    tokens = at["rows"] * count / at["topk"]
    operator = Operator("experts", OperatorKind.EXPERTS, StepLoad(Driver.EXPERTS), 1, 2 * params, 0.0,
                        params * stored_bytes, (operators.EXPERT_PASSES * at["hidden"] + 3 * at["inner"]) * 2,
                        compute_dtype=compute, storage=storage)  # fmt: skip
    load = StepLoad(Driver.EXPERTS, num_experts=count, top_k=at["topk"], ranks=at["ep"])
    return seconds(operator, step, *step._experts(load, tokens))


def attention_s(block: Block, row: int, step: StepModel) -> float:
    """Of one layer, as the operators of the step time it; the tables' windows are left out."""
    at = {name: float(value[row]) for name, value in block.work.at.items()}
    decode, seqs = block.kind == "decode_attention", int(at["batch"])
    if decode:
        kv_heads = at["parallel"] / seqs
        batch = Batch(decode_seqs=seqs, decode_context_tok=seqs * at["seen"])
    else:
        length = at["length"]
        kv_heads = at["parallel"] / seqs * min(1.0, LONGEST_PROMPT / length) / at["group"]
        tokens = int(seqs * length)
        batch = Batch(
            prefill_seqs=seqs, prefill_tok=tokens, prefill_pair_tok=tokens * (length + 1) / 2, prefill_finishing=seqs
        )
    mixer = next(kind.layer.mixer for kind in step.model.layer_kinds if isinstance(kind.layer.mixer, Attention))
    width, held = int(at["head_dim"]), round(kv_heads)
    mixer = replace(mixer, num_heads=round(kv_heads * at["group"]), num_kv_heads=held, head_dim=width, v_head_dim=width)
    config = step.config.changed(kv_cache_dtype=block.precision)
    operator = list(operators.mixer_operators(mixer, config))[0 if decode else 1]
    return seconds(operator, step, *step.drivers(batch, [operator.load])[0])


@dataclass(frozen=True)
class Compared:
    """One line of the comparison."""

    kind: str
    gpu: str
    precision: str
    model: str
    today_s: Callable[[Block, int, StepModel], float]
    quantization: str | None = None


def compared() -> Iterator[Compared]:
    dense, moe, gpt = "meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-235B-A22B-Instruct-2507", "openai/gpt-oss-120b"
    for gpu in ("h100-sxm", "h200-sxm", "b200-sxm"):
        yield Compared("gemm", gpu, "bf16", dense, gemm_s)
        yield Compared("gemm", gpu, "fp8", dense, gemm_s, "fp8")
        yield Compared("experts", gpu, "bf16", moe, experts_s)
        yield Compared("experts", gpu, "fp8_block", "Qwen/Qwen3-235B-A22B-FP8", experts_s)
        yield Compared("experts", gpu, "mxfp4", gpt, experts_s)
        yield Compared("decode_attention", gpu, "bf16", dense, attention_s)
        yield Compared("prefill_attention", gpu, "bf16", dense, attention_s)
    yield Compared("gemm", "mi355x", "fp8", dense, gemm_s, "fp8")
    yield Compared("experts", "mi355x", "fp8_block", "Qwen/Qwen3-235B-A22B-FP8", experts_s)
    yield Compared("experts", "mi355x", "mxfp4_mxfp4", gpt, experts_s)


def today(blocks: dict[str, list[Block]]) -> str:
    lines = ["| | " + " | ".join(f"{tokens:,}" for tokens in TOKENS) + " |", "| --- |" + " --- |" * len(TOKENS)]
    experts: dict[str, list[float]] = defaultdict(list)
    for one in compared():
        block = next(b for b in blocks[one.kind] if (b.gpu, b.precision) == (one.gpu, one.precision))
        if one.kind.endswith("attention"):
            block = surfaces.pick(block, block.work.at["windowed"] == 1)
        settings = {"tensor_parallel_size": 4} if one.kind == "experts" else {}
        step = step_of(one.gpu, one.model, quantization=one.quantization, **settings)
        by_surface = predicted_us(load_surfaces()[one.kind, one.gpu, one.precision], block)
        size = block.work.at["batch"] if one.kind == "decode_attention" else block.size
        cells = []
        for tokens in TOKENS:
            rows = np.flatnonzero(size == tokens)
            rows = rows[np.random.default_rng(0).permutation(len(rows))[:300]]
            ratios = [one.today_s(block, row, step) * 1e6 / block.us[row] for row in rows]
            experts[one.gpu] += ratios if one.kind == "experts" else []
            medians = [np.median(ratios), np.median(by_surface[rows] / block.us[rows])] if ratios else []
            cells.append("; ".join(f"{ratio:.2f}" for ratio in medians))
        lines.append(f"| {one.kind} {one.precision}, {one.gpu} | " + " | ".join(cells) + " |")
    near = {gpu: np.mean([0.8 <= ratio <= 1.25 for ratio in ratios]) for gpu, ratios in experts.items()}
    shares = ", ".join(f"{gpu} {share:.0%}" for gpu, share in near.items())
    return "\n".join(["Today's time over the table; the surface's over the table. Medians by tokens (decode: by "
                      f"sequences). Today's fit: {load_calibration().fitted_on}.", "", *lines, "",
                      f"Today's time of experts within 0.8 to 1.25 of the table: {shares}."])  # fmt: skip


# --- whole steps from tables alone


def table_precision(precision: Precision, kernels: Kernels, experts: bool) -> str:
    """The tables' word for a precision of weights."""
    hopper = kernels.profile.architecture == "sm_90"
    if precision.name in ("fp8", "mxfp8"):
        return (
            "fp8_block" if precision.group == (128, 128) or precision.name == "mxfp8" or (experts and hopper) else "fp8"
        )
    return {"fp16": "bf16"}.get(precision.name, precision.name)


Timed = Callable[[StepModel, Batch], float]


class TabledStep:
    """Seconds of a step with the surfaces' times for the operators that have one."""

    def __init__(self, one: Observed) -> None:
        self.step = StepModel(one.model, one.profile, one.config)
        self.kernels = Kernels(one.profile)
        self.parts: dict[str, list[Timed]] = defaultdict(list)
        for kind in one.model.layer_kinds:
            self._add_matrices(one, kind.layer, kind.precisions, len(kind.indices))
            if isinstance(kind.layer.mixer, Attention) and kind.layer.mixer.indexer is None:
                self._add_attention(one, kind.layer.mixer, len(kind.indices))
        probe = Batch(1, 100.0, 1, 100, 5000.0, 1)
        for name in list(self.parts):
            try:
                for part in self.parts[name]:
                    part(self.step, probe)
            except PlannerError:
                del self.parts[name]  # no table: today's time

    def _add_matrices(self, one: Observed, layer: object, precisions: tuple[Precision, ...], times: int) -> None:
        kernels, config = self.kernels, one.config
        fused: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0, 0.0])
        experts: list[tuple[object, Precision]] = []
        for weight, precision in zip(layer.weights, precisions, strict=True):
            if not weight.linear:
                continue
            if weight.component is Component.ROUTED_EXPERT:
                experts.append((weight, precision))
                continue
            piece = operators._pieces([weight], config)[0]
            is_output = weight.shard is Shard.ROW
            name = operators._gemm_name(weight.component, is_output)
            kernel = weight.name if is_output else (weight.shape[-1], weight.shard)  # as ``operators._gemm``
            sizes = fused[name, table_precision(precision, kernels, False), kernel]
            sizes[0] += piece.copies * piece.outputs
            sizes[1] = piece.inputs
        for (name, word, _), (n, k) in fused.items():
            self.parts[name].append(
                lambda _, batch, w=word, n=n, k=k: times * kernels.gemm_s(w, batch_tok(batch), n, k)
            )
        if experts and layer.moe:
            weight, precision = experts[0]
            moe, word = layer.moe, table_precision(precision, kernels, True)
            hidden = weight.shape[-1]
            inner = operators._pieces([weight], config)[0].outputs
            ep = Layout.of(config).expert_ranks if config.enable_expert_parallel else 1
            matrices, load = len(experts), operators._expert_load(moe, config)
            self.parts["experts"].append(
                lambda step, batch: times * kernels.experts_s(
                    word, step.expert_tok(load, batch), hidden, inner, moe.num_experts, moe.top_k, ep, 1.0, matrices
                )
            )  # fmt: skip

    def _add_attention(self, one: Observed, mixer: Attention, times: int) -> None:
        tp, kernels = one.config.tensor_parallel_size, self.kernels
        shape = (held_heads(mixer.num_heads, tp), held_heads(mixer.num_kv_heads, tp), mixer.head_dim)
        kv, window = "fp8" if "fp8" in one.config.kv_cache_dtype else "bf16", mixer.span_tokens or 0

        def decode(_: StepModel, batch: Batch) -> float:
            if not batch.decode_seqs:
                return 0.0
            context = max(batch.decode_context_tok / batch.decode_seqs, 1.0)
            return times * kernels.decode_attention_s(kv, batch.decode_seqs, context, *shape, window)

        def prefill(_: StepModel, batch: Batch) -> float:
            if not batch.prefill_tok:
                return 0.0
            return times * kernels.prefill_attention_s(kv, batch.prefill_tok, batch.prefill_pair_tok, *shape, window)

        self.parts["attention decode"].append(decode)
        self.parts["attention prefill"].append(prefill)

    def times_s(self, batch: Batch) -> tuple[float, float]:
        """Seconds of a step today, and from tables."""
        split = self.step.breakdown(batch)
        gpu_s = sum(part.time_s for part in split.parts if part.name not in self.parts and part.name != "host")
        gpu_s += sum(part(self.step, batch) for parts in self.parts.values() for part in parts)
        return split.total_s, self.step.total_s(gpu_s, split.launch_s, split.host_s)


def batch_tok(batch: Batch) -> float:
    return batch.decode_seqs * batch.decode_query_tok + batch.prefill_tok


def tables_alone(one: Observed) -> Iterator[tuple[str, float, float]]:
    """Each metric, with the logarithm of predicted over measured today and from tables."""
    tabled = TabledStep(one)
    times = np.array([tabled.times_s(batch) for batch in one.batches])
    efficiency = tabled.step.efficiency
    for metric in one.metrics:
        steps = metric.steps
        outside_s = steps.fixed_s + sum(getattr(efficiency, name) * count for name, count in steps.delays.items())
        today_s, tabled_s = steps.weights @ times + outside_s
        yield metric.name, float(np.log(today_s / metric.measured_s)), float(np.log(tabled_s / metric.measured_s))


KINDS = {"mean_tpot_ms": "TPOT", "median_tpot_ms": "TPOT", "mean_ttft_ms": "TTFT", "median_ttft_ms": "TTFT",
         "output_throughput": "duration", "avg_latency_s": "duration"}  # fmt: skip


def supported(run: MeasuredRun) -> bool:
    """Whether surfaces stand for what ran: NVIDIA, V1, one stage."""
    try:
        profile = load_profile(run.gpu)
    except PlannerError:
        return False
    return profile.vendor == "nvidia" and run.pipeline_parallel_size == 1 and not run.suspect


def chosen_runs(paths: list[Path]) -> Iterator[MeasuredRun]:
    """A few runs of each source, GPU and model."""
    groups: dict[tuple[str, ...], list[MeasuredRun]] = defaultdict(list)
    for run in (run for path in paths for run in read_runs(path) if supported(run)):
        groups[run.family, run.gpu, run.model].append(run)
    generator, done = np.random.default_rng(0), defaultdict(int)
    for (family, *_), runs in groups.items():
        for i in generator.permutation(len(runs))[: min(6, MOST_RUNS - done[family])]:
            done[family] += 1
            yield runs[i]


def sources(paths: list[Path]) -> str:
    by_source: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in observe(chosen_runs(paths))[0]:
        if one.config.engine == "V1":
            for name, now, tabled in tables_alone(one):
                if name in KINDS and np.isfinite(tabled):
                    by_source[one.source, one.profile.id, KINDS[name]].append((now, tabled))
    heads = ["source", "GPU", "figure", "figures", "today", "tables alone", "median error today", "tables alone"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for (family, gpu, kind), pairs in sorted(by_source.items()):
        if len(pairs) < 3:
            continue
        now, tabled = np.array(pairs).T
        cells = [f"{np.exp(np.median(x)):.2f}" for x in (now, tabled)]
        cells += [f"{100 * np.median(surfaces.relative(x)):.0f} %" for x in (now, tabled)]
        lines.append(f"| {family} | {gpu} | {kind} | {len(pairs)} | " + " | ".join(cells) + " |")
    fit = load_calibration().fitted_on
    head = f"Predicted over measured times, medians. Today's fit, to {fit}, has seen most of these runs."
    return "\n".join([head, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--runs", nargs="+", type=Path, required=True, metavar="RUNS.csv")
    parser.add_argument("--sections", nargs="+", default=["relatives", "today", "sources"])
    args = parser.parse_args()
    if {"relatives", "today"} & set(args.sections):
        blocks = {kind: [surfaces.cleaned(b) for b in surfaces.blocks_of(args.folder, kind)] for kind in PAIRED}
        for name, make in (("relatives", relatives), ("today", today)):
            if name in args.sections:
                surfaces.replace_section(name, make(blocks))
    if "sources" in args.sections:
        surfaces.replace_section("sources", sources(args.runs))


if __name__ == "__main__":
    main()
