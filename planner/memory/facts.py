"""Facts of a model that need no GPU: parameters, bytes, what its cache costs per token."""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.memory.cache import CacheSettings, layer_specs
from planner.model import CompressedAttention, LatentAttention, Mixer, Model, ResolvedModel, StateMixer


def model_facts(found: ResolvedModel) -> dict[str, Any]:
    model = found.model
    quantization = model.quantization
    return {
        "requested": found.requested,
        "resolved": found.resolved,
        "architecture": model.architecture,
        "attention": attention_kinds(model),
        "layers": model.num_layers,
        "max_position_embeddings": model.max_position_embeddings,
        "total_params": model.total_params,
        "active_params": model.active_params,
        "params_by_component": {str(part): n for part, n in model.params_by_component().items() if n},
        "weight_dtype": quantization.weight_dtype,
        "weights_bytes": stored_weight_bytes(model),
        "kv_bytes_per_token": kv_bytes_per_token(model),
        "quantization": {
            "weight_dtype": quantization.weight_dtype,
            "method": quantization.method,
            "kv_cache_dtype": quantization.kv_cache_dtype or model.dtype,
        },
        "gated": model.gated,
        "notes": [*found.notes, *model.notes, *quantization.notes],
    }


def stored_weight_bytes(model: Model) -> int:
    """Bytes of the stored weights with their scales, without MTP modules and vocabulary padding."""
    layers = sum(
        len(kind.indices) * precision.stored_bytes(weight.shape, weight.copies)
        for kind in model.layer_kinds
        for weight, precision in zip(kind.layer.weights, kind.precisions, strict=True)
    )
    return layers + sum(model.precision_of(w).stored_bytes(w.shape, w.copies) for w in (*model.outer, *model.vision))


def kv_bytes_per_token(model: Model) -> int:
    """Bytes of one token in every layer that keeps it, TP 1, in the KV dtype that the checkpoint carries scales for."""
    dtype = model.quantization.kv_cache_dtype or model.dtype
    settings = CacheSettings(1, model.dtype, dtype, block_size=16, encoder_tokens=0)
    return round(sum(spec.bytes_per_token for _, spec in layer_specs(model, settings)))


def attention_kinds(model: Model) -> str:
    """The kinds of token mixers, most frequent first: ``GQA 32/8``, ``MLA + sparse indexer``, ``GDN, GQA 16/2``."""
    counts = Counter(map(_kind, model.mixers()))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{k} x {n}" for k, n in counts.most_common())


def _kind(mixer: Mixer) -> str:
    if isinstance(mixer, StateMixer):
        return mixer.kind.upper() if len(mixer.kind) < 4 else mixer.kind
    indexed = " + sparse indexer" if mixer.indexer else ""
    if isinstance(mixer, LatentAttention):
        return f"MLA{indexed}"
    if isinstance(mixer, CompressedAttention):
        ratio = f", 1 row per {mixer.compress_ratio} tokens" if mixer.compress_ratio else ""
        return f"window {mixer.window}{ratio}{indexed}"
    heads, kv_heads = mixer.num_heads, mixer.num_kv_heads
    name = f"MHA {heads}" if heads == kv_heads else f"{'MQA' if kv_heads == 1 else 'GQA'} {heads}/{kv_heads}"
    details = (
        (mixer.cross, ", cross"), (mixer.shared, ", shared KV"), (mixer.window, f", window {mixer.window}"),
        (mixer.chunk, f", chunks of {mixer.chunk}"),
    )  # fmt: skip
    return name + "".join(text for holds, text in details if holds) + indexed
