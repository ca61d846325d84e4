"""Predicted beside logged memory, start-up by start-up.

    python benchmarks/memory.py PATH_TO_memory_logs.csv [--configs FOLDER]

Each row of the table is one start-up of vLLM that somebody published. Three things are compared: the weights on a
rank, the bytes of KV cache per token (logged cache over logged tokens, arithmetic only) and the KV cache tokens
(arithmetic and every fitted overhead). ``--configs`` is a folder of ``ORG--NAME.json`` files for models that the
catalog lacks.
"""

import argparse
import csv
import json
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.engine.flags import FLASHINFER_SAMPLER, MXFP4_MARLIN, Environment
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs, SpeculativeConfig
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.hardware.profiles import GpuProfile, load_profile
from planner.memory.budget import Basis, MemoryBudget, memory_budget
from planner.memory.overheads import Constants
from planner.model.architecture import Model
from planner.model.build import model_from_config
from planner.model.quantization import as_quantized, load_quantized
from planner.model.resolve import resolve_model
from planner.planning.deployment import served_model
from planner.units import GIB

Row = dict[str, str]

#: Profile of a GPU as the logs name it; for GPUs without one, a profile of like kind and the memory it reports, GiB.
GPUS: dict[str, tuple[str, float | None]] = {
    "RTX PRO 6000 Blackwell": ("rtx-pro-6000", None),
    "H100 80GB": ("h100-sxm", None),
    "H200": ("h200-sxm", None),
    "H200 MIG 3g.71gb": ("h200-mig-3g.71gb", None),
    "A100 80GB": ("a100-sxm-80gb", None),
    "A100 40GB": ("a100-sxm-40gb", None),
    "GH200 96GB": ("gh200-96gb", None),
    "B200": ("b200-sxm", None),
    "GB300": ("gb300", None),
    "L4": ("l4", None),
    "L40S": ("l40s", None),
    "RTX 3090": ("rtx-3090", None),
    "RTX 4090": ("rtx-4090", None),
    "MI300X": ("mi300x", None),
    "MI355X": ("mi355x", None),
    "AMD 64 GiB": ("mi210", None),
    "RTX A5000": ("rtx-a5000", None),
    "RTX 4070 Laptop": ("rtx-4090", 7.65),
    "T4": ("t4", None),
    "GB10": ("gb10", None),
    "RTX 5090": ("rtx-5090", None),
    "RTX 5000 Ada": ("rtx-5000-ada", None),
    "Radeon AI PRO R9700": ("r9700", None),
    "H100": ("h100-sxm", None),
    "Hygon DCU": ("l40s", 63.98),
}
#: Models that are another's architecture in another precision: (base model, weight dtype or None for the same).
SAME_AS: dict[str, tuple[str, str | None]] = {
    "meta-llama/Meta-Llama-3.1-8B-Instruct": ("meta-llama/Llama-3.1-8B-Instruct", None),
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4": ("meta-llama/Llama-3.1-70B-Instruct", "int4-awq"),
    "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic": ("meta-llama/Llama-3.3-70B-Instruct", "fp8"),
    "Qwen/Qwen2.5-14B-Instruct-AWQ": ("Qwen/Qwen2.5-14B-Instruct", "int4-awq"),
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": ("Qwen/Qwen3-235B-A22B-FP8", None),
    "Qwen/Qwen3-8B-Base": ("Qwen/Qwen3-8B", None),
    "Qwen/Qwen3-30B-A3B-Base": ("Qwen/Qwen3-30B-A3B", None),
    "Qwen/Qwen3-Reranker-0.6B": ("Qwen/Qwen3-0.6B", None),
    "Qwen/Qwen2.5-32B fp8": ("Qwen/Qwen2.5-32B-Instruct", "fp8"),
    "Qwen/Qwen3-30B-A3B fp8": ("Qwen/Qwen3-30B-A3B-FP8", None),
    "/mnt/vast/models/minimax-m2.5-nvfp4": ("nvidia/MiniMax-M2.5-NVFP4", None),
    "/mnt/vast/models/kimi-k25-nvfp4": ("nvidia/Kimi-K2.5-NVFP4", None),
    "/mnt/vast/tom.chen/dsv4": ("deepseek-ai/DeepSeek-V4-Pro", None),
    "cpatonn/Qwen3-30B-A3B-Thinking-2507-AWQ-4bit": ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-GPTQ-4bit", None),
    "DeepSeek-R1-Distill-Qwen-32B (fine-tune)": ("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B", None),
    "train/checkpoints/qwen25-3b-distill-merged": ("Qwen/Qwen2.5-3B-Instruct", None),
}
#: Start-ups that are no truth for overheads, and why. They still count for weights and bytes per token.
SPOILT = {
    **dict.fromkeys(
        ("6cf173e6", "ee498063", "45878836"), "neither its release (10,446 commits) nor its sampler is stated"
    ),
    "2d23be3e": "another process left the GPU while vLLM profiled",
    "a09c778f": "another process grew while vLLM profiled",
    "f8273d0b": "a trainer on the same GPU freed memory while vLLM profiled",
    "891e7c79": "engine of a trainer with settings of its own, not stated",
    "95bb3ac1": "its activation peak is that of 2,048 sequences, which the row does not state",
    "7bb56f25": "its own figures add up to a utilisation of 0.95, not the 0.9 stated",
    "067e8d3f": "vLLM 0.2.5, older than any version whose accounting is known",
    "91759c4a": "an accelerator of another vendor, with a stand-in's overheads",
}
#: Versions that a row leaves open, or names by a count of commits.
VERSIONS = {
    # builds on the way from 0.19 to 0.20, whose figures add up only if the estimate of graphs is in the budget
    **dict.fromkeys(("48471528", "4b62498f", "5db10c41"), "0.20.0"),
    **dict.fromkeys(("3ca42ab9", "54e1b2a6"), "0.9.2 (V0 engine)"),
    **dict.fromkeys(("6cf173e6", "ee498063", "45878836"), "2025-10"),
    "8f117f6a": "0.8.5 (V0 engine)",  # 0.7 or 0.8; no products of projections are among its weights
}
#: Weights that are, to the last digit, those of the model without its vision tower.
WITHOUT_VISION = frozenset(("4b62498f",))
#: Start-ups whose notes say that FlashInfer was installed by hand.
FLASHINFER = frozenset(("904d911f", "4c9cd594", "4b27f780", "6cdfa561", "3aa16850"))
#: Total of the GPU in GiB where the notes of a start-up imply another than the profile's.
TOTALS = dict.fromkeys(("35522d2f", "4478bd76", "53e089fe"), 31.84)
#: Sequences where the row has none: NVML names the whole GPU's memory on MIG, so the class ``LLM`` takes 1,024.
SEQUENCES = dict.fromkeys(("4b27f780", "6cdfa561", "3aa16850"), 1024)
#: Start-ups with draft tokens of an MTP module; how many follows from the block size that was logged, or from tokens
#: and concurrency of the cache that was logged, which are then right to the last digit.
DRAFTS = {
    "5db10c41": 3,
    "5279f232": 1,
    "b90d2610": 1,
    "a9848d3f": 3,
    "6110f739": 3,
    "f4483168": 1,
    "89bfa00c": 2,
    "013d315d": 2,
}


@dataclass(frozen=True)
class Compared:
    """Predicted and logged figures of one start-up; None where one of them is missing."""

    log_id: str
    what: str
    weights: tuple[float, float] | None = None  #: GiB per rank
    token_bytes: tuple[float, float] | None = None
    tokens: tuple[float, float] | None = None
    interval: tuple[float, float] = (0, 0)  #: of the tokens
    inside: bool = False  #: whether the logged tokens are inside the predicted interval
    uniform: bool = False  #: all layers keep alike
    judged: bool = False  #: version, GPU, model and utilisation are stated, and nothing spoilt it
    note: str = ""


def main() -> None:
    """Print the table and the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    parser.add_argument("--configs", type=Path)
    arguments = parser.parse_args()
    with arguments.logs.open(newline="") as file:
        rows = [compare(row, arguments.configs) for row in csv.DictReader(file)]
    for row in rows:
        print(line(row))
    print()
    for text in summary(rows):
        print(text)


def compare(row: Row, configs: Path | None, constants: Constants | None = None) -> Compared:
    """One start-up, predicted."""
    log_id, name = row["log_id"][:8], row["hub_id"] or row["model"]
    what = (
        f"{row['vllm_version'][:12]:<12} {row['gpu'][:11]:<11} tp{whole(row, 'tp') or 1} {name.split('/')[-1][:30]:<30}"
    )
    try:
        model = find_model(name, row, configs)
        budget = predict(row, model, constants)
    except (PlannerError, LookupError) as error:
        return Compared(log_id, what, note=str(error))
    return _compared(row, log_id, what, budget)


def _compared(row: Row, log_id: str, what: str, budget: MemoryBudget) -> Compared:
    stage, blocks = budget.binding, budget.num_blocks
    per_token = sum(spec.bytes_per_token for group in budget.pool.groups for _, spec in group.members)
    logged_weights, cache = number(row, "model_load_gib"), number(row, "available_kv_cache_gib")
    tokens = number(row, "kv_cache_tokens")
    if tokens is None and (logged_blocks := number(row, "gpu_blocks")):
        tokens = logged_blocks * budget.pool.block_size
    if tokens is None and (requests := number(row, "max_concurrency")):
        tokens = requests * budget.config.max_model_len
    interval = budget.logged_tokens(blocks.low), budget.logged_tokens(blocks.high)
    uniform = len(budget.pool.groups) == 1 and len(budget.pool.groups[0].specs) == 1
    stated = row["vllm_version"] and row["gpu"] and row["util_evidence"] in ("stated", "default assumed")
    return Compared(
        log_id,
        what,
        weights=(stage.weights.loaded_bytes / GIB, logged_weights) if logged_weights else None,
        token_bytes=(per_token, cache * GIB / tokens) if cache and tokens else None,
        tokens=(budget.logged_tokens(blocks.mid), tokens) if tokens else None,
        interval=interval,
        inside=tokens is not None and interval[0] <= tokens <= interval[1],
        uniform=uniform,
        judged=bool(stated) and log_id not in SPOILT,
        note=SPOILT.get(log_id, ""),
    )


def find_model(name: str, row: Row, configs: Path | None) -> Model:
    """The model of a row. Raises LookupError when neither the catalog nor the folder has it."""
    base, dtype = SAME_AS.get(name, (name, None))
    model = _load(base, configs)
    if dtype:
        return as_quantized(model, dtype)
    if row["quantization"] == "fp8" and model.quantization.method is None:
        return load_quantized(model, "fp8")
    return model


def _load(name: str, configs: Path | None) -> Model:
    try:
        return resolve_model(name, network=False).model
    except PlannerError as error:
        file = configs / f"{name.replace('/', '--')}.json" if configs else None
        if file and file.is_file():
            return model_from_config(json.loads(file.read_text()), model_id=name)
        raise LookupError(f"no config of {name}") from error


def predict(row: Row, model: Model, constants: Constants | None = None) -> MemoryBudget:
    """The budget that the engine of a row should have found, with ``constants`` other than ours."""
    log_id = row["log_id"][:8]
    profile = find_gpu(row["gpu"], number(row, "gpu_mem_total_gib") or TOTALS.get(log_id))
    version = parse_version(VERSIONS.get(row["log_id"][:8]) or row["vllm_version"] or "2025-11")
    kv = "fp8" if row["kv_cache_dtype"].startswith("fp8") else "auto"
    drafts = DRAFTS.get(row["log_id"][:8])
    args = EngineArgs(
        tensor_parallel_size=whole(row, "tp") or 1,
        pipeline_parallel_size=whole(row, "pp") or 1,
        data_parallel_size=whole(row, "dp") or 1,
        enable_expert_parallel="EP" in row["notes"] and model.is_moe,
        dtype=row["weight_dtype"] if row["weight_dtype"] in ("float16", "bfloat16") else "auto",
        kv_cache_dtype=kv,
        max_model_len=whole(row, "max_model_len"),
        max_num_seqs=whole(row, "max_num_seqs") or SEQUENCES.get(log_id),
        max_num_batched_tokens=whole(row, "max_num_batched_tokens"),
        gpu_memory_utilization=number(row, "gpu_memory_utilization"),
        block_size=_block_size(row),
        enforce_eager=row["enforce_eager"] == "True",
        enable_chunked_prefill=False if "no chunked prefill" in row["notes"] else None,
        enable_prefix_caching={"True": True, "False": False}.get(row["prefix_caching"]),
        speculative_config=SpeculativeConfig("mtp", drafts) if drafts else None,
        env=Environment(
            {
                name: "1"
                for name, holds in (
                    (FLASHINFER_SAMPLER, row["log_id"][:8] in FLASHINFER),
                    (MXFP4_MARLIN, "inferencex" in row["source"] and "gpt-oss" in row["hub_id"]),
                )
                if holds
            }
        ),
        max_cudagraph_capture_size=2048 if "inferencex" in row["source"] and "gpt-oss" in row["hub_id"] else None,
        language_model_only="--language-model-only" in row["notes"] or row["log_id"][:8] in WITHOUT_VISION,
    )
    model = served_model(model, args)
    return memory_budget(model, profile, resolve(args, model, profile, version), Basis(constants))


def _block_size(row: Row) -> int | None:
    """The block size that was asked for; hybrid models print the larger one that vLLM makes of it."""
    size = whole(row, "block_size")
    return size if size and size <= 256 else None


def find_gpu(name: str, total_gib: float | None) -> GpuProfile:
    """The profile of a GPU as a log names it, with the memory that this log reports. Raises LookupError."""
    known = next((GPUS[key] for key in sorted(GPUS, key=len, reverse=True) if name.startswith(key)), None)
    if known is None:
        raise LookupError(f"no profile like {name}")
    profile, memory = load_profile(known[0]), total_gib or known[1]
    if memory is None:
        return profile
    visible = profile.memory.engine_visible.model_copy(update={"value": memory, "unit": "GiB"})
    return profile.model_copy(update={"memory": profile.memory.model_copy(update={"engine_visible": visible})})


def number(row: Row, column: str) -> float | None:
    """A number; None where the log did not print it."""
    return float(row[column]) if row[column] else None


def whole(row: Row, column: str) -> int | None:
    """A whole number; None where the log did not print it."""
    value = number(row, column)
    return None if value is None else int(value)


# --- what is printed ----------------------------------------------------------------------------------------------


def line(row: Compared) -> str:
    """One start-up."""

    def pair(values: tuple[float, float] | None, form: str) -> str:
        if values is None:
            return f"{'-':>28}"
        return f"{values[0]:>{form}} {values[1]:>{form}} {error(values):>+6.1%}"

    mark = "in" if row.inside else "out" if row.tokens else ""
    return (
        f"{row.log_id} {row.what} {pair(row.weights, '8.3f')} {pair(row.token_bytes, '9.0f')} "
        f"{pair(row.tokens, '10,.0f')} {mark:<3} {row.note}"
    )


def error(values: tuple[float, float]) -> float:
    """Predicted over logged, less 1."""
    return values[0] / values[1] - 1


def summary(rows: Iterable[Compared]) -> Iterator[str]:
    """Medians and shares, beside what is aimed at."""
    rows = list(rows)
    yield _share("weights per rank", [r for r in rows if r.weights], lambda r: r.weights, within=0.01)
    uniform = [r for r in rows if r.token_bytes and r.uniform]
    yield _share("KV bytes per token, layers alike", uniform, lambda r: r.token_bytes, within=0.005)
    judged = [r for r in rows if r.tokens and r.judged]
    yield _share("KV cache tokens, everything stated", judged, lambda r: r.tokens, within=0.10)
    inside = sum(r.inside for r in judged)
    yield f"{'logged tokens inside the interval':<36} {inside} of {len(judged)}"
    yield f"{'start-ups not predicted':<36} {sum(1 for r in rows if not (r.weights or r.tokens or r.token_bytes))}"


def _share(
    name: str, rows: list[Compared], pick: Callable[[Compared], tuple[float, float] | None], *, within: float
) -> str:
    errors = [abs(error(values)) for r in rows if (values := pick(r))]
    if not errors:
        return f"{name:<36} nothing to compare"
    hit = sum(e <= within for e in errors)
    share = f"within {within:.1%}: {hit / len(errors):.0%}"
    return f"{name:<36} n {len(errors):>2}  median {statistics.median(errors):.2%}  {share}"


if __name__ == "__main__":
    main()
