"""Fit surfaces to published kernel timings, and report their errors on shapes that the fit did not see.

    python benchmarks/kernel_surfaces.py FOLDER [--kinds gemm experts ...] [--form]

``FOLDER`` holds the published tables, which are never committed. Writes ``benchmarks/fit/kernels.json``, which
``fit.kernels`` evaluates, and ``benchmarks/results/kernels.md``. ``--kinds`` fits only these and keeps the
rest of both files. Whole shapes are left out: a matrix (n, k), the experts of a model, a head configuration. Parsed
tables are cached under the temporary folder.
"""

import argparse
import csv
import gzip
import json
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fit import kernel_work as kernels
from fit.kernel_work import Peaks, Work
from fit.kernels import Form
from planner.errors import InputError
from planner.hardware import load_profile

ROOT = Path(__file__).parent.parent
RESULT, COEFFICIENTS = (ROOT / "benchmarks" / "results" / "kernels.md", ROOT / "benchmarks" / "fit" / "kernels.json")
SOURCES = {
    "nvidia": "NVIDIA aiconfigurator, package aiconfigurator-core 0.12.0 (Apache-2.0), measured with vLLM 0.24.0",
    "nvidia-0.14": "the same, measured with vLLM 0.14.0",
    "aiter": "ROCm/aiter, commit e4048607a5 (MIT), tuned tables",
}
MOST_ROWS = 10_000  #: of one block: a fit gains nothing from more
FOLDS = 5
WORDS = {"bfloat16": "bf16", "int4_wo": "int4", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8"}
BLACKWELL = ("b200-sxm", "b300-sxm", "gb200", "gb300")
#: The L2 of these serves what one repeated kernel reads; a model's layers take turns, so such rows are dropped.
LARGE_L2_BYTES = {"l40s": 96 * 2**20, "rtx-pro-6000": 128 * 2**20}

_ROWS = (1 / 64, 1 / 8, 0.5, 2, 8, 32, 128, 512)
_CONTEXT = (32, 128, 512, 2048, 8192, 32768)
_LENGTH = (16, 64, 256, 1024, 4096, 16384)
_LATENT = ("heads", "heads heads", "heads tokens", "heads seen", "weights", "weights heads", "weights tokens")
_BATCH = (1, 8, 64, 512)
_PROMPT = (16, 128, 512, 2048, 8192, 65536)
FORMS = {
    "gemm": Form(
        axis="m", knots=(1, 8, 32, 64, 128, 256, 512, 1024, 4096, 32768), terms=("", "n", "k", "n n", "n k", "k k")
    ),
    "experts": Form(
        axis="rows", knots=_ROWS, terms=("", "inner", "held", "skew", "skew ep", "ep"),
        everywhere=("hidden", "topk", "inner inner", "held held"),
    ),
    "decode_attention": Form(
        axis="seen", knots=_CONTEXT, axis2="parallel", knots2=(1, 8, 32, 128, 512, 2048, 8192),
        everywhere=("windowed", "beyond", "group", "head_dim", "group group", "head_dim head_dim", "batch",
                    "group batch", "group seen", "head_dim batch", "head_dim seen"),
    ),
    "prefill_attention": Form(
        axis="length", knots=_LENGTH, axis2="parallel", knots2=(1, 16, 256, 4096),
        terms=("", "head_dim", "group", "windowed"),
        everywhere=("beyond", "head_dim head_dim", "group group", "windowed head_dim", "group head_dim",
                    "windowed group"),
    ),
    "mla_decode": Form(axis="seen", knots=_CONTEXT, axis2="tokens", knots2=_BATCH, everywhere=_LATENT),
    "mla_prefill": Form(axis="tokens", knots=_PROMPT, axis2="seen", knots2=(64, 1024, 4096, 16384), everywhere=_LATENT),
    "dsa_decode": Form(axis="seen", knots=_CONTEXT, axis2="tokens", knots2=_BATCH, everywhere=_LATENT),
    "dsa_prefill": Form(axis="tokens", knots=_PROMPT, axis2="seen", knots2=(64, 1024, 4096, 16384), everywhere=_LATENT),
    "state_decode": Form(axis="size", knots=(1, 8, 64, 512, 4096, 32768)),
    "state_prefill": Form(
        axis="length", knots=(16, 64, 128, 256, 512, 2048, 16384), axis2="size", knots2=(1, 4, 16, 64, 256, 1024, 4096)
    ),
    "quantise": Form(axis="size", knots=tuple(2**power for power in range(10, 32, 3)), terms=("", "k")),
    "all_reduce": Form(
        axis="size", knots=tuple(2**power for power in (9, 13, 15, 17, 19, 21, 23, 26, 29)), terms=("", "ranks")
    ),
    "all_to_all": Form(axis="tokens", knots=(1, 16, 128, 1024, 8192, 65536), everywhere=("hidden", "topk", "ranks")),
}  # fmt: skip


@dataclass
class Block:
    """Rows of one kernel on one GPU in one precision."""

    kind: str
    gpu: str
    precision: str
    us: np.ndarray
    work: Work
    shape: np.ndarray  #: rows with the same number are left out together
    size: np.ndarray  #: what errors are reported by
    source: str = "nvidia"
    bound: bool = False
    judged: np.ndarray | None = None  #: rows that errors count; None: all


# --- tables


def table(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The columns of one table; numbers where every value is one."""
    path = folder / f"{name}.csv.gz"
    cache = Path(tempfile.gettempdir()) / f"kernel-table-{name}-{path.stat().st_size}.pickle"
    if cache.exists():
        return pickle.loads(cache.read_bytes())
    with gzip.open(path, "rt", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        columns = {head: np.array(column) for head, column in zip(header, zip(*reader, strict=True), strict=True)}
    for head, column in columns.items():
        try:
            columns[head] = column.astype(float)
        except ValueError:
            columns[head] = np.array([WORDS.get(word, word) for word in column])
    cache.write_bytes(pickle.dumps(columns, 4))
    return columns


def rows_of(columns: dict[str, np.ndarray], chosen: np.ndarray) -> dict[str, np.ndarray]:
    return {name: column[chosen] for name, column in columns.items()}


def numbered(*columns: np.ndarray) -> np.ndarray:
    """One number for each combination of the columns."""
    stacked = np.stack([np.unique(column, return_inverse=True)[1] for column in columns])
    return np.unique(stacked, axis=1, return_inverse=True)[1].ravel()


def groups(columns: dict[str, np.ndarray], *names: str) -> Iterator[tuple[tuple[str, ...], dict[str, np.ndarray]]]:
    """The rows of each combination of the named columns."""
    numbers = numbered(*(columns[name] for name in names))
    for number in np.unique(numbers):
        part = rows_of(columns, numbers == number)
        yield tuple(str(part[name][0]) for name in names), part


def peaks_of(gpu: str) -> Peaks:
    return Peaks.of(load_profile(gpu))


def source_of(gpu: str) -> str:
    return "nvidia-0.14" if gpu.startswith("a100") else "nvidia"


# --- from tables to blocks, with what is wrong in them taken out


def gemm_blocks(folder: Path) -> Iterator[Block]:
    columns = table(folder, "nvidia_gemm")
    columns = rows_of(columns, (columns["n"] >= 128) & (columns["k"] >= 128))  # no model has smaller matrices
    parts = dict(groups(columns, "gpu", "dtype"))
    for (gpu, precision), part in parts.items():
        if (gpu, precision) == ("rtx-pro-6000", "fp8_block"):
            continue  # 518 rows
        if precision == "fp8" and gpu in BLACKWELL:
            part = rows_of(part, part["m"] > 1)  # one row takes three times as long as eight
        block = gemm_block(gpu, precision, part)
        yield with_plain_fp8(block, parts[gpu, "fp8"]) if precision == "fp8_block" else block


def gemm_block(gpu: str, precision: str, part: dict[str, np.ndarray], **more: object) -> Block:
    m, n, k = part["m"], part["n"], part["k"]
    work = kernels.gemm_work(peaks_of(gpu), precision, m, n, k)
    return Block("gemm", gpu, precision, part["us"], work, numbered(n, k), m, **{"source": source_of(gpu)} | more)


def with_plain_fp8(block: Block, plain: dict[str, np.ndarray]) -> Block:
    """``block`` well above the host's floor in its table; below it the per-tensor kernel, times their usual ratio."""
    if block.gpu in BLACKWELL:
        plain = rows_of(plain, plain["m"] > 1)
    other = gemm_block(block.gpu, block.precision, plain)
    least_us = 1.5 * np.quantile(block.us, 0.25)
    above, below = (one.work.base_s * 1e6 > least_us for one in (block, other))
    block, large, small = pick(block, above), pick(other, below), pick(other, ~below)
    times = {key: us for *key, us in zip(*large.work.at.values(), large.us, strict=True) for key in [tuple(key)]}
    pairs = [
        (us, times.get(key)) for *key, us in zip(*block.work.at.values(), block.us, strict=True) for key in [tuple(key)]
    ]
    small.us = small.us * np.median([us / plain_us for us, plain_us in pairs if plain_us])
    chosen = np.random.default_rng(0).permutation(len(small.us))[: 2 * len(block.us)]  # else they would rule the fit
    joined = concatenated([block, pick(small, chosen)])
    joined.shape = numbered(joined.work.at["n"], joined.work.at["k"])
    joined.judged = np.arange(len(joined.us)) < len(block.us)
    return joined


def pick(block: Block, chosen: np.ndarray) -> Block:
    """The chosen rows of a block."""
    at = {name: np.broadcast_to(value, block.us.shape)[chosen] for name, value in block.work.at.items()}
    base, bound = (np.broadcast_to(value, block.us.shape)[chosen] for value in (block.work.base_s, block.work.bound_s))
    judged = None if block.judged is None else block.judged[chosen]
    return Block(block.kind, block.gpu, block.precision, block.us[chosen], Work(base, bound, at), block.shape[chosen],
                 block.size[chosen], block.source, block.bound, judged)  # fmt: skip


def concatenated(blocks: list[Block]) -> Block:
    first = blocks[0]
    at = {name: np.concatenate([block.work.at[name] for block in blocks]) for name in first.work.at}
    base, bound, us, shape, size = (
        np.concatenate(parts)
        for parts in zip(*((b.work.base_s, b.work.bound_s, b.us, b.shape, b.size) for b in blocks), strict=True)
    )
    return Block(first.kind, first.gpu, first.precision, us, Work(base, bound, at), shape, size, first.source)


def experts_blocks(folder: Path) -> Iterator[Block]:
    columns = table(folder, "nvidia_moe")
    columns = rows_of(columns, columns["num_tokens"] <= 16384)
    families = ("marlin", "cutlass", "trtllm", "triton")
    columns["family"] = np.array([next((f for f in families if f in name), "triton") for name in columns["kernel"]])
    for (gpu, precision), part in groups(columns, "gpu", "moe_dtype"):
        halves = {"": np.full(len(part["us"]), True)}
        if precision == "fp8_block" and gpu in ("h100-sxm", "h200-sxm"):  # another kernel where EP is on
            halves = {"": part["moe_ep_size"] == 1, "/ep": part["moe_ep_size"] > 1}
        for suffix, chosen in halves.items():
            half = rows_of(part, chosen)
            names, counts = np.unique(half["family"], return_counts=True)
            half = rows_of(half, half["family"] == names[counts.argmax()])  # single shapes got another kernel
            yield experts_block(gpu, precision + suffix, half)


def experts_block(gpu: str, precision: str, part: dict[str, np.ndarray]) -> Block:
    tokens, hidden, inner = part["num_tokens"], part["hidden_size"], part["inter_size"]
    topk, experts = part["topk"], part["num_experts"]
    ungated = ((topk == 22) | (hidden == 2688)) & (source_of(gpu) == "nvidia")  # Nemotron's; 0.14 ran them with a gate
    matrices = np.where(ungated, 2.0, 3.0)
    skew = np.where(part["distribution"] == "balanced", 0.0, 1.0)
    work = kernels.experts_work(
        peaks_of(gpu), precision.split("/")[0], tokens, hidden, inner / part["moe_tp_size"], experts, topk,
        part["moe_ep_size"], skew, matrices,
    )  # fmt: skip
    shape = numbered(hidden, inner, topk, experts)
    return Block("experts", gpu, precision, part["us"], work, shape, tokens, source_of(gpu))


def attention_blocks(folder: Path, kind: str) -> Iterator[Block]:
    decode = kind == "decode_attention"
    columns = table(folder, "nvidia_decode_attention" if decode else "nvidia_prefill_attention")
    length = columns["step"] + 1 if decode else columns["isl"]
    columns["length"] = length
    columns = rows_of(columns, (length >= 16) & (columns["head_dim"] < 512))
    for (gpu, kv), part in groups(columns, "gpu", "kv_cache_dtype"):
        names, counts = np.unique(part["kernel"], return_counts=True)
        part = rows_of(part, part["kernel"] == names[counts.argmax()])  # Blackwell: another one for 192 dimensions
        heads, kv_heads, head_dim = part["num_heads"], part["num_key_value_heads"], part["head_dim"]
        batch, length, window = part["batch_size"], part["length"], part["window_size"]
        make = kernels.decode_attention_work if decode else kernels.prefill_attention_work
        work = make(peaks_of(gpu), kv, batch, length, heads, kv_heads, head_dim, window)
        shape = numbered(heads, kv_heads, head_dim, window)
        block = Block(kind, gpu, kv, part["us"], work, shape, batch * length, source_of(gpu))
        if decode and gpu in LARGE_L2_BYTES:
            cached = 2 * batch * work.at["seen"] * kv_heads * head_dim * kernels.KV_BYTES[kv]
            block = pick(block, (cached < 0.02 * LARGE_L2_BYTES[gpu]) | (cached > 1.3 * LARGE_L2_BYTES[gpu]))
        yield block


@dataclass(frozen=True)
class Latent:
    """Sizes of latent attention that its tables leave out, from the models' configurations."""

    hidden: int
    q_rank: int
    nope: int
    value: int
    index_heads: int = 0


LATENT = {
    "deepseek-ai/DeepSeek-V3": Latent(7168, 1536, 128, 128),
    "deepseek-ai/DeepSeek-V3.2": Latent(7168, 1536, 128, 128, 64),
    "zai-org/GLM-5": Latent(6144, 2048, 192, 256, 32),
}
KV_RANK, ROPE, INDEX_DIM, INDEX_TOP_K = 512, 64, 128, 2048
WEIGHT_BYTES = {"bf16": 2.0, "fp8_block": 1.0, "nvfp4": 0.5625}


def latent_blocks(folder: Path, kind: str) -> Iterator[Block]:
    decode = kind.endswith("decode")
    columns = table(folder, f"nvidia_{kind}")
    known = np.isin(columns["model"], list(LATENT)) & (columns["mla_dtype"] == "bf16")
    columns = rows_of(columns, known & ((columns["isl"] > 1) | decode) & ((columns["step"] >= 16) | (not decode)))
    for (gpu, kv), part in groups(columns, "gpu", "kv_cache_dtype"):
        work = latent_work(kind, peaks_of(gpu), kv, part)
        shape = numbered(part["model"], part["num_heads"], part["gemm_type"])
        size = part["batch_size"] * (part["step"] if decode else part["isl"])
        if len(part["us"]) > 1000:
            yield Block(kind, gpu, kv, part["us"], work, shape, size, source_of(gpu))


def latent_work(kind: str, peaks: Peaks, kv: str, part: dict[str, np.ndarray]) -> Work:
    sizes = [LATENT[name] for name in part["model"]]
    hidden, q_rank, nope, value, index_heads = (
        np.array([getattr(one, name) for one in sizes], float)
        for name in ("hidden", "q_rank", "nope", "value", "index_heads")
    )
    heads, batch, weight = part["num_heads"], part["batch_size"], np.array([WEIGHT_BYTES[x] for x in part["gemm_type"]])
    absorbed = heads * KV_RANK * (nope + value)
    params = hidden * (q_rank + KV_RANK + ROPE) + heads * (q_rank * (nope + ROPE) + value * hidden)
    params = params + index_heads * q_rank * INDEX_DIM + (index_heads > 0) * hidden * INDEX_DIM
    if kind.endswith("decode"):
        tokens, seen = batch, part["step"]
        rows, pair_flop = batch * seen, 2 * heads * (2 * KV_RANK + ROPE)
        pairs = rows
    else:
        tokens, seen = batch * part["isl"], part["isl"] + part["step"]
        rows, pairs = batch * seen, batch * part["isl"] * (part["step"] + (part["isl"] + 1) / 2)
        pair_flop = 2 * heads * (nope + ROPE + value)
    index_flop = 2 * index_heads * INDEX_DIM * pairs
    if index_heads.any():
        pairs = np.minimum(pairs, tokens * INDEX_TOP_K)
        pair_flop = 2 * np.maximum(heads, 64) * (2 * KV_RANK + ROPE)  # sparse kernels pad heads to 64
    flop = 2 * tokens * (params + absorbed) + pair_flop * pairs + index_flop
    moved = params * weight + absorbed * 2 + rows * ((KV_RANK + ROPE) * kernels.KV_BYTES[kv] + 132 * (index_heads > 0))
    return kernels.latent_work(peaks, flop, moved + tokens * hidden * 8, tokens, seen, heads, weight)


def state_blocks(folder: Path, kind: str) -> Iterator[Block]:
    columns = table(folder, "nvidia_gdn")
    decode = kind == "state_decode"
    columns = rows_of(columns, columns["phase"] == ("generation" if decode else "context"))
    names = ("batch_size", "seq_len", "num_k_heads", "num_v_heads", "d_model")
    for (gpu,), part in groups(columns, "gpu"):
        if not decode:
            part = rows_of(part, part["seq_len"] >= 16)
        numbers = numbered(*(part[name] for name in names))
        first = np.unique(numbers, return_index=True)[1]
        us = np.zeros(len(first))
        for name in np.unique(part["kernel"]):  # convolution and recurrence
            of_kernel = part["kernel"] == name
            rows = np.bincount(numbers[of_kernel], minlength=len(first))
            us += np.bincount(numbers[of_kernel], part["us"][of_kernel], len(first)) / np.maximum(rows, 1)
        part = rows_of(part, first)
        heads, batch = part["num_v_heads"], part["batch_size"]
        work = kernels.state_work(peaks_of(gpu), batch, part["seq_len"], heads, heads * 128 * 128)
        yield Block(kind, gpu, "bf16", us, work, numbered(part["num_k_heads"], heads), batch * part["seq_len"])


def quantise_blocks(folder: Path) -> Iterator[Block]:
    for (gpu,), part in groups(table(folder, "nvidia_fp8_quantise"), "gpu"):
        work = kernels.quantise_work(peaks_of(gpu), part["m"], part["k"])
        yield Block("quantise", gpu, "fp8", part["us"], work, numbered(part["k"]), part["m"])


def all_reduce_blocks(folder: Path) -> Iterator[Block]:
    plain, library = table(folder, "nvidia_allreduce"), table(folder, "nvidia_nccl")
    plain = rows_of(plain, plain["backend"] == "vllm_graph")  # eager times are those of launches
    plain["library"] = np.full(len(plain["us"]), "graph")
    library["library"] = np.array([f"nccl_{word}" for word in library["op_name"]])
    for columns in (plain, library):
        for (gpu, name), part in groups(columns, "gpu", "library"):
            part = rows_of(part, part["num_gpus"] <= (4 if gpu.startswith("gb") else 8))  # inside one node
            bandwidth = load_profile(gpu).interconnect.bandwidth
            assert bandwidth is not None
            work = kernels.all_reduce_work(bandwidth.base, part["message_size"], part["num_gpus"])
            if name.endswith(("alltoall", "scatter")):
                continue  # a reduce-scatter takes as long as an all-gather
            if name.endswith("gather"):
                work = Work(work.base_s, work.bound_s / 2, work.at)
            shape = numbered(part["message_size"])
            yield Block("all_reduce", gpu, name, part["us"], work, shape, part["message_size"], source_of(gpu))


def all_to_all_blocks(folder: Path) -> Iterator[Block]:
    columns = table(folder, "nvidia_moe_all_to_all")
    columns = rows_of(columns, np.isin(columns["comm_backend"], ("deepep_ht", "deepep_ll")))
    for (gpu, backend, phase), part in groups(columns, "gpu", "comm_backend", "phase"):
        bandwidth = load_profile(gpu).interconnect.bandwidth
        assert bandwidth is not None
        work = kernels.all_to_all_work(
            bandwidth.base, part["num_tokens"], part["hidden_size"], part["topk"], part["ep_size"]
        )
        shape = numbered(part["hidden_size"], part["topk"], part["num_experts"], part["ep_size"])
        # the source's microseconds were taken for milliseconds
        yield Block("all_to_all", gpu, f"{backend}_{phase}", part["us"] / 1000, work, shape, part["num_tokens"])


def amd_gemm_blocks(folder: Path) -> Iterator[Block]:
    columns = table(folder, "amd_gemm")
    inside = (columns["n"] >= 128) & (columns["n"] <= 65536) & (columns["k"] >= 128) & (columns["k"] <= 65536)
    columns = rows_of(columns, inside & (columns["m"] <= 32768) & np.isfinite(columns["us"]))
    for (gpu, dtype), part in groups(columns, "gpu", "dtype"):
        precision = {"mxfp4": "mxfp4_mxfp4"}.get(dtype, dtype)
        if gpu != "mi308x" and precision in kernels.PRECISIONS and len(part["us"]) > 600:
            yield gemm_block(gpu, precision, part, source="aiter", bound=True)


AMD_EXPERTS = {
    ("No", "bf16", "bf16"): "bf16", ("per_1x128", "fp8", "fp8"): "fp8_block", ("per_Token", "fp8", "fp8"): "fp8",
    ("per_Tensor", "fp8", "fp8"): "fp8", ("per_1x32", "fp4", "fp4"): "mxfp4_mxfp4",
    ("per_1x32", "fp8", "fp4"): "mxfp4_mxfp8", ("per_1x32", "bf16", "fp4"): "mxfp4",
    ("per_1x32", "fp8", "fp8"): "fp8_block",
}  # fmt: skip


def amd_experts_blocks(folder: Path) -> Iterator[Block]:
    columns = table(folder, "amd_moe")
    short = {"float8_e4m3fn": "fp8", "float8_e4m3fnuz": "fp8", "float4_e2m1fn_x2": "fp4"}
    kinds = zip(columns["quant"], columns["dtype_a"], columns["dtype_w"], strict=True)
    columns["precision"] = np.array([AMD_EXPERTS.get((q, short.get(a, a), short.get(w, w)), "") for q, a, w in kinds])
    for (gpu, precision), part in groups(columns, "gpu", "precision"):
        if gpu == "mi308x" or not precision or len(part["us"]) < 60:
            continue
        hidden, inner = part["hidden_size"], part["inter_size_per_rank"]
        experts, topk, tokens = part["num_experts"], part["topk"], part["num_tokens"]
        work = kernels.experts_work(peaks_of(gpu), precision, tokens, hidden, inner, experts, topk, 1.0, 0 * tokens)
        shape = numbered(hidden, inner, experts, topk)
        yield Block("experts", gpu, precision, part["us"], work, shape, tokens, "aiter", True)


def blocks_of(folder: Path, kind: str) -> Iterator[Block]:
    """All blocks of one kind."""
    if kind == "gemm":
        yield from gemm_blocks(folder)
        yield from amd_gemm_blocks(folder)
    elif kind == "experts":
        yield from experts_blocks(folder)
        yield from amd_experts_blocks(folder)
    elif kind.endswith("attention"):
        yield from attention_blocks(folder, kind)
    elif kind.startswith("state"):
        yield from state_blocks(folder, kind)
    elif kind.startswith(("mla", "dsa")):
        yield from latent_blocks(folder, kind)
    else:
        yield from {"quantise": quantise_blocks, "all_reduce": all_reduce_blocks, "all_to_all": all_to_all_blocks}[
            kind
        ](folder)


def cleaned(block: Block) -> Block:
    """``block`` without rows that beat the peaks, the median of rows with the same coordinates, at most MOST_ROWS."""
    block = pick(block, np.isfinite(block.us) & (block.us * 1e-6 >= block.work.bound_s))
    numbers = numbered(*block.work.at.values(), block.work.base_s)
    order = np.lexsort((block.us, numbers))
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    counts = np.diff(np.append(starts, len(order)))
    block = pick(block, order[starts + (counts - 1) // 2])
    return pick(block, np.random.default_rng(0).permutation(len(block.us))[:MOST_ROWS])


# --- fits


def hats(values: np.ndarray, knots: tuple[float, ...]) -> np.ndarray:
    """The share of each knot in each value."""
    logs, at = np.log(np.array(knots, float)), np.log(np.clip(values, knots[0], knots[-1]))
    columns = [np.interp(at, logs, row) for row in np.eye(len(knots))]
    return np.stack(columns, 1)


def design(form: Form, work: Work, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The terms of ``form`` for each row: those of the knots, then those of all."""
    at = {name: np.clip(work.at[name], *ends) for name, *ends in zip(form.names, low, high, strict=True)}
    centred = {name: np.log(at[name]) - np.log(ends).mean() for name, *ends in zip(form.names, low, high, strict=True)}

    def product(term: str) -> np.ndarray:
        return np.prod([centred[name] for name in term.split()] or [np.ones(len(at[form.axis]))], axis=0)

    by_knot = hats(at[form.axis], form.knots)
    if form.axis2:
        second = hats(at[form.axis2], form.knots2)
        by_knot = (by_knot[:, :, None] * second[:, None, :]).reshape(len(by_knot), -1)
    terms = np.stack([product(term) for term in form.terms], 1)
    columns = (by_knot[:, :, None] * terms[:, None, :]).reshape(len(by_knot), -1)
    return np.hstack([columns, *(product(term)[:, None] for term in form.everywhere)])


def robust(matrix: np.ndarray, wanted: np.ndarray, shrink: float = 1e-5) -> np.ndarray:
    """Coefficients with the least absolute error, held near zero where nothing determines them."""
    weights, ridge = np.ones(len(wanted)), np.eye(matrix.shape[1]) * shrink * len(wanted)
    for _ in range(12):
        weighted = matrix * weights[:, None]
        solution = np.linalg.solve(matrix.T @ weighted + ridge, weighted.T @ wanted)
        weights = 1 / np.sqrt((wanted - matrix @ solution) ** 2 + 0.03**2)
        weights /= weights.mean()
    return solution


@dataclass
class Fit:
    """A surface, and the logarithm of predicted over measured on shapes left out."""

    block: Block
    surface: dict[str, object]
    errors: np.ndarray
    solution: np.ndarray


#: Whose surface a precision with few shapes starts from.
DONORS = {"int4": ("bf16",), "mxfp4": ("nvfp4", "bf16"), "mxfp4_mxfp8": ("nvfp4", "bf16")}
FEW_SHAPES, SHRUNK = 4, 0.01


def fitted(block: Block, form: Form, fits: list[Fit]) -> Fit:
    """The surface of one block; ``fits``: those before it."""
    shapes = len(np.unique(block.shape))
    earlier = {(fit.block.gpu, fit.block.precision): fit for fit in fits}
    donor = next(
        (earlier[block.gpu, name] for name in DONORS.get(block.precision, ()) if (block.gpu, name) in earlier), None
    )
    floor_us = float(np.quantile(block.us, 0.01))
    base = np.log(floor_us + block.work.base_s * 1e6)
    ends = [(block.work.at[name].min(), block.work.at[name].max()) for name in form.names]
    low, high = (np.array(end, float) for end in zip(*ends, strict=True))
    start, shrink = np.zeros(0), 1e-5
    if donor and shapes < FEW_SHAPES:
        low, high = (np.array(donor.surface[name], float) for name in ("low", "high"))
        start, shrink = donor.solution, SHRUNK
    matrix, wanted = design(form, block.work, low, high), np.log(block.us) - base
    if not len(start):
        start = np.zeros(matrix.shape[1])
    wanted = wanted - matrix @ start
    folds = np.unique(block.shape, return_inverse=True)[1]
    if block.kind != "experts" and shapes > FOLDS:  # experts have few shapes: each is left out alone
        folds = np.random.default_rng(0).permutation(shapes)[folds] % FOLDS
    predicted = np.zeros(len(wanted))
    for fold in np.unique(folds):
        seen = folds != fold
        if seen.any():
            predicted[~seen] = matrix[~seen] @ robust(matrix[seen], wanted[seen], shrink)
    predicted += matrix @ start + base
    errors = np.maximum(predicted, np.log(block.work.bound_s * 1e6 + 1e-12)) - np.log(block.us)
    judged = slice(None) if block.judged is None else block.judged
    solution = start + robust(matrix, wanted, shrink)
    count = len(form.knots) * len(form.knots2)
    split = count * len(form.terms)
    surface = {
        "kind": block.kind, "gpu": block.gpu, "precision": block.precision, "floor_us": round(floor_us, 2),
        "low": rounded(low), "high": rounded(high),
        "by_knot": np.rint(1000 * solution[:split].reshape(count, -1)).astype(int).tolist(),
        "everywhere": np.rint(1000 * solution[split:]).astype(int).tolist(),
        "rows": len(block.us), "error": round(float(np.median(relative(errors[judged]))), 3), "source": block.source,
    } | ({"bound": True} if block.bound else {})  # fmt: skip
    return Fit(block, surface, errors, solution)


def rounded(values: np.ndarray) -> list[float]:
    return [int(value) if value == int(value) else float(f"{value:.4g}") for value in values]


def relative(errors: np.ndarray) -> np.ndarray:
    return np.abs(np.expm1(errors))


# --- report

#: Upper ends of the size classes of a kind, and what a size is.
CLASSES = {
    "gemm": ("rows", (8, 64, 512, 4096)),
    "experts": ("tokens", (8, 64, 512, 4096)),
    "decode_attention": ("cached tokens", (8192, 131072)),
    "prefill_attention": ("tokens", (512, 8192)),
    "mla_decode": ("cached tokens", (8192, 131072)), "mla_prefill": ("tokens", (512, 8192)),
    "dsa_decode": ("cached tokens", (8192, 131072)), "dsa_prefill": ("tokens", (512, 8192)),
    "state_decode": ("sequences", (16, 128)), "state_prefill": ("tokens", (512, 8192)),
    "quantise": ("rows", (64, 1024)),
    "all_reduce": ("bytes", (65536, 4194304)), "all_to_all": ("tokens", (64, 1024)),
}  # fmt: skip


def class_names(kind: str) -> list[str]:
    _, ends = CLASSES[kind]
    return [f"to {end:,}" for end in ends] + [f"over {ends[-1]:,}"]


def report_row(fit: Fit) -> str:
    block, errors, size = fit.block, fit.errors, fit.block.size
    if block.judged is not None:
        errors, size = errors[block.judged], size[block.judged]
    numbers = np.searchsorted(CLASSES[block.kind][1], size)
    cells = []
    for number in range(len(CLASSES[block.kind][1]) + 1):
        part = errors[numbers == number]
        cells.append(
            f"{100 * np.median(relative(part)):.0f} ({100 * np.expm1(np.median(part)):+.0f})" if len(part) else ""
        )
    shapes = len(np.unique(block.shape))
    words = [block.gpu, block.precision + (" (tuned)" if block.bound else ""), f"{len(block.us):,}", str(shapes),
             f"{100 * np.median(relative(errors)):.1f}", f"{100 * np.quantile(relative(errors), 0.9):.0f}",
             *cells]  # fmt: skip
    return "| " + " | ".join(words) + " |"


def report(kind: str, fits: list[Fit]) -> str:
    """The section of one kind."""
    heads = ["GPU", "precision", "rows", "shapes", "median", "p90", *class_names(kind)]
    errors = 100 * np.array([float(fit.surface["error"]) for fit in fits])
    summary = f"Median of the blocks {np.median(errors):.1f} %, worst {errors.max():.1f} %. Size: {CLASSES[kind][0]}."
    lines = [f"### {kind}", "", summary, "", "| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    return "\n".join([*lines, *map(report_row, fits)])


def write(folder: Path, kinds: list[str]) -> None:
    """Fit ``kinds``, and put them in the place of what both files say of them."""
    content = json.loads(COEFFICIENTS.read_text()) if COEFFICIENTS.exists() else {"surfaces": []}
    surfaces = [one for one in content["surfaces"] if one["kind"] in FORMS and one["kind"] not in kinds]
    sections = {}
    for kind in kinds:
        fits = []
        blocks = sorted(map(cleaned, blocks_of(folder, kind)), key=lambda block: block.precision in DONORS)
        for block in blocks:
            fits.append(fitted(block, FORMS[kind], fits))
            print(kind, report_row(fits[-1]), flush=True)
        surfaces += [fit.surface for fit in fits]
        sections[kind] = report(kind, fits)
    surfaces.sort(key=lambda one: list(FORMS).index(one["kind"]))
    head = {
        "unit": "us; coefficients: thousandths", "kind": "fitted", "sources": SOURCES,
        "forms": {kind: form.model_dump(exclude_defaults=True) for kind, form in FORMS.items()},
    }  # fmt: skip
    text = json.dumps(head, separators=(",", ":"))[:-1]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in surfaces)
    COEFFICIENTS.write_text(f'{text},"surfaces":[\n{lines}\n]}}\n')
    for kind, section in sections.items():
        replace_section(kind, section)
    replace_section("summary", summary(surfaces))


def summary(written: list[dict[str, object]]) -> str:
    """One line for each kind: measured kernels and tuned ones apart."""
    lines = ["| kind | surfaces | rows | median error | worst | over 10 % |", "|" + " --- |" * 6]
    for kind in FORMS:
        for bound in (False, True):
            ours = [one for one in written if one["kind"] == kind and bool(one.get("bound")) == bound]
            if ours:
                errors, rows = 100 * np.array([one["error"] for one in ours]), sum(one["rows"] for one in ours)
                words = [kind + " (tuned)" * bound, str(len(ours)), f"{rows:,}", f"{np.median(errors):.1f} %",
                         f"{errors.max():.1f} %", str(np.sum(errors > 10))]  # fmt: skip
                lines.append("| " + " | ".join(words) + " |")
    return "\n".join(lines)


def replace_section(name: str, text: str) -> None:
    """Put ``text`` between the marks of one section of the page; the words around them are written by hand."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    page = RESULT.read_text(encoding="utf-8")
    before, mark, rest = page.partition(begin)
    if not mark:
        raise InputError(f"{RESULT} has no {begin}", hint="add the two marks")
    RESULT.write_text(f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--kinds", nargs="+", choices=list(FORMS), default=list(FORMS))
    args = parser.parse_args()
    if not args.folder.is_dir():
        raise InputError(f"{args.folder} is not a folder of kernel tables", hint="pass their folder")
    write(args.folder, args.kinds)


if __name__ == "__main__":
    main()
