"""Blocks, groups and tokens of the KV cache compared with vLLM's own code.

    python benchmarks/memory_against_vllm.py [FOLDER_OF_CONFIGS]

Needs an environment in which vLLM can be imported (0.32; no GPU, no weights). For every model of the catalog, or of
a folder of ``ORG--NAME.json`` files, for several TP sizes, KV dtypes and lengths, with the hybrid manager on and off,
with draft tokens of the model's own MTP modules, and with ranks that share tokens where all layers are alike, the
specs of the layers are handed to vLLM's ``get_kv_cache_groups`` and ``get_kv_cache_config_from_groups``; block count,
blocks of a request, number of groups and printed tokens must be the same to the last digit. Exit status 1 when one
differs.
"""

import json
import logging
import random
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from planner.engine.settings import SpeculativeConfig
from planner.errors import PlannerError
from planner.memory.cache import MLLAMA_ENCODER_TOKENS, CacheSettings, CacheSpec, block_pool, layer_specs
from planner.memory.weights import draft_specs
from planner.model import catalog_ids, find_entry
from planner.model.architecture import CompressedAttention, Model, StateMixer
from planner.model.build import model_from_config

SIZES, DTYPES, LENGTHS, BATCHES = (1, 2, 8), ("bf16", "fp8"), (1000, 4096, 32768, 131072), (2048, 8192)
#: How vLLM says that it has no cache for such layers: an ``assert`` as often as an error of its own.
REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError)
DRAFTS, SHARDS = 3, 4  #: draft tokens; ranks that share the tokens of a request


def models(folder: Path | None) -> Iterator[Model]:
    """Every model that is understood."""
    names = sorted(folder.glob("*.json")) if folder else catalog_ids()
    for name in names:
        try:
            if isinstance(name, Path):
                yield model_from_config(json.loads(name.read_text()), model_id=name.stem.replace("--", "/", 1))
            elif entry := find_entry(name):
                yield entry.model()
        except PlannerError:
            continue  # not understood: nothing to compare


def vllm_spec(spec: CacheSpec, drafts: int) -> KVCacheSpec:
    """The same layer in vLLM's words; a row of bytes stands for keys and values."""
    if spec.kind == "state":
        return MambaSpec(
            block_size=spec.block_size,
            shapes=((spec.state_bytes,),),
            dtypes=(torch.uint8,),
            page_size_padded=spec.padded_bytes or None,
            num_speculative_blocks=drafts,
        )
    row: dict[str, Any] = {
        "block_size": spec.block_size,
        "num_kv_heads": 1,
        "head_size": spec.token_bytes,
        "dtype": torch.uint8,
    }
    aligned = {"alignment": spec.alignment}
    if spec.kind == "full" and spec.alignment > 1:
        label = str(spec.token_bytes)
        return MLAAttentionSpec(**row, **aligned, tokens_per_state=spec.tokens_per_row, cache_dtype_str=label)
    if spec.kind == "window" and spec.alignment > 1:
        return SlidingWindowMLASpec(**row, **aligned, sliding_window=spec.span_tokens)
    row["head_size_v"] = 0
    if spec.kind == "window":
        return SlidingWindowSpec(**row, sliding_window=spec.span_tokens)
    if spec.kind == "chunk":
        return ChunkedLocalAttentionSpec(**row, attention_chunk_size=spec.span_tokens)
    return (CrossAttentionSpec if spec.kind == "cross" else FullAttentionSpec)(**row)


def vllm_config(length: int, tokens: int, *, hybrid: bool, shards: int, layout: KVCacheLayout) -> Any:
    """As much of vLLM's configuration as its cache manager reads."""
    return SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=length, original_max_model_len=length),
        parallel_config=SimpleNamespace(decode_context_parallel_size=shards, tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=not hybrid, max_num_encoder_input_tokens=MLLAMA_ENCODER_TOKENS
        ),
        cache_config=SimpleNamespace(
            mamba_cache_mode="none",
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout,
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        max_in_flight_tokens=tokens,
        num_prefill_lookahead_tokens=0,
        speculative_config=None,
        kv_transfer_config=None,
    )


def vllm_answer(
    layers: tuple[tuple[int, CacheSpec], ...], config: Any, available_bytes: int, drafts: int
) -> tuple[int, int, int, int]:
    """(blocks, blocks of one request, groups, printed tokens) by vLLM. Raises what vLLM raises."""
    specs = {f"layer {index} part {part}": vllm_spec(spec, drafts) for part, (index, spec) in enumerate(layers)}
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    found = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, available_bytes)
    needed = sum(
        -(-g.kv_cache_spec.max_memory_usage_bytes(config) // g.kv_cache_spec.page_size_bytes)
        for g in found.kv_cache_groups
    )
    tokens, _ = kv_cache_utils.get_kv_cache_capacity(config, found)
    return found.num_blocks, needed, len(groups), tokens


def compare(model: Model, draw: random.Random) -> Iterator[tuple[str, bool | None]]:
    """(what was compared, whether it agreed) for one model; None and vLLM's reason where vLLM refuses the settings."""
    packed = any(isinstance(mixer, CompressedAttention) for mixer in model.mixers())
    layout = KVCacheLayout.BLHNC if packed else KVCacheLayout.LBNHC
    alike = len(set(model.mixers())) == 1 and not isinstance(next(iter(model.mixers())), StateMixer)
    variants = [(0, 1)] + [(DRAFTS, 1)] * bool(model.mtp) + [(0, SHARDS)] * alike
    for size, dtype, hybrid, (drafts, shards) in product(SIZES, DTYPES, (True, False), variants):
        settings = CacheSettings(
            size, "bf16", dtype, 256 if packed else 16, MLLAMA_ENCODER_TOKENS, num_speculative_tokens=drafts
        )
        speculative = SpeculativeConfig("mtp", drafts) if drafts else None
        layers = layer_specs(model, settings, draft_specs(model, settings, speculative, None))
        if not layers:
            continue
        length, tokens, available = draw.choice(LENGTHS), draw.choice(BATCHES), draw.randint(2**31, 100 * 2**30)
        config = vllm_config(length, tokens, hybrid=hybrid, shards=shards, layout=layout)
        what = f"{model.id} tp{size} {dtype} hybrid={hybrid} drafts={drafts} shards={shards} {length} tokens"
        try:
            theirs = vllm_answer(layers, config, available, drafts)
        except REFUSALS as error:
            yield f"{what}: {type(error).__name__}: {error}", None
            continue
        pool = block_pool(
            layers, hybrid=hybrid, in_flight_tokens=tokens, states_per_request=1 + drafts, context_shards=shards
        )
        blocks = available // pool.block_bytes(range(max(index for index, _ in layers) + 1))
        printed = pool.logged_tokens(blocks, length, by_concurrency=True)
        ours = (blocks, pool.blocks_per_request(length), len(pool.groups), printed)
        yield f"{what}: {ours}, vLLM {theirs}", ours == theirs


def main() -> int:
    """Print what differs, and how many were compared and refused."""
    logging.disable(logging.CRITICAL)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    draw = random.Random(0)
    compared = differ = refused = 0
    for model in models(folder):
        for what, agreed in compare(model, draw):
            compared += agreed is not None
            differ += agreed is False
            refused += agreed is None
            if not agreed:
                print("refused" if agreed is None else "differs", what)
    print(f"{compared} compared, {differ} differ, {refused} refused by vLLM")
    return 1 if differ or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
