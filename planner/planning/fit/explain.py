"""The arithmetic behind the answer, line by line, and where the rule of thumb in AMD's documents goes wrong.

The documents' rule::

    weights + batch x context x 2 x layers x hidden x bytes < memory

It is the special case of multi-head attention on a GPU without any overhead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.engine import features_of, held_heads
from planner.memory import Interval, element_bytes
from planner.model import Attention, LatentAttention, Model, StateMixer
from planner.planning.fit.result import FitResult
from planner.units import GB, GIB, format_bytes, format_gb


@dataclass(frozen=True, slots=True)
class ArithmeticLine:
    """One line of the arithmetic: what, how much, and how it comes about."""

    label: str
    value: str
    how: str = ""


def explain(result: FitResult) -> tuple[ArithmeticLine, ...]:
    """Weights, overheads, cache, concurrency; then the documents' rule beside them."""
    return (*_weights(result), *_budget(result), *_cache(result), *_rule_of_thumb(result))


def _weights(result: FitResult) -> Iterator[ArithmeticLine]:
    weights, config = result.stage.weights, result.config
    ranks = config.tensor_parallel_size
    shared = f"on each of {ranks} ranks" if ranks > 1 else "on the GPU"
    for component, num_bytes in sorted(weights.by_component.items(), key=lambda item: -item[1]):
        yield ArithmeticLine(f"  {component.replace('_', ' ')}", _both(num_bytes), shared)
    yield ArithmeticLine("weights", _both(weights.weight_bytes), _params(result))
    if weights.offloaded_bytes:
        kept = f"--cpu-offload-gb {config.cpu_offload_gb:g}: read over the host's link in every step"
        yield ArithmeticLine("of these in host memory", _both(weights.offloaded_bytes), kept)
    if lora := config.lora:
        how = f"{lora.max_loras} of rank {lora.max_lora_rank}, in every matrix of the layers, used or not"
        yield ArithmeticLine("adapters", _both(weights.lora_bytes), how)
    if weights.absorbed_bytes:
        yield ArithmeticLine(
            "products of projections", _both(weights.absorbed_bytes), "V0 keeps them beside the weights of MLA"
        )
    if weights.rotary_bytes:
        length = result.budget.model.max_position_embeddings
        yield ArithmeticLine(
            "rotary table", _both(weights.rotary_bytes), f"{length:,} positions, loaded with the weights"
        )


def _params(result: FitResult) -> str:
    model, config = result.budget.model, result.config
    return f"{model.total_params:,} parameters, linear weights in {config.weight_dtype}, the rest in {config.dtype}"


def _budget(result: FitResult) -> Iterator[ArithmeticLine]:
    stage, config, budget = result.stage, result.config, result.budget
    yield ArithmeticLine("memory that the engine sees", _both(budget.memory_bytes), f"of one {result.gpu_id}")
    if stage.given_bytes is None:
        how = f"{config.gpu_memory_utilization:g} of it (--gpu-memory-utilization)"
        yield ArithmeticLine("budget", _both(stage.requested_bytes), how)
    rows = min(config.max_num_seqs, config.max_num_batched_tokens)
    yield ArithmeticLine(
        "activation peak",
        _range(stage.activation),
        f"sampling {rows:,} rows of {budget.model.vocab_size:,} logits, "
        f"or {config.max_num_batched_tokens:,} tokens at once",
    )
    yield ArithmeticLine("memory outside torch", _range(stage.non_torch), "fitted to start-up logs")
    inside = "inside the budget" if stage.graphs_in_budget else "captured later, outside the budget"
    yield ArithmeticLine("graphs", _range(stage.graphs), inside)
    if stage.given_bytes is None:
        yield ArithmeticLine("left for the KV cache", _range(result.kv_cache), "budget - weights - the above")
    else:
        yield ArithmeticLine("left", _range(stage.left), "memory - weights - the above")
        yield ArithmeticLine("given to the KV cache", _both(stage.given_bytes), f"by {config.kv_cache_given_by}")


def _cache(result: FitResult) -> Iterator[ArithmeticLine]:
    model, config, pool = result.budget.model, result.config, result.budget.pool
    if not pool.groups:
        yield ArithmeticLine("KV cache", "none", "no layer keeps anything between tokens")
        return
    yield ArithmeticLine("KV cache per token", f"{result.kv_bytes_per_token:,.0f} B", _per_token(model, result))
    if round(result.kv_bytes_per_next_token) != round(result.kv_bytes_per_token):
        yield ArithmeticLine(
            "one more token", f"{result.kv_bytes_per_next_token:,.0f} B", f"after {config.max_model_len:,} of them"
        )
    yield ArithmeticLine(
        "KV cache of one request",
        _both(result.kv_bytes_per_request),
        f"{config.max_model_len:,} tokens, in {pool.blocks_per_request(config.max_model_len):,} blocks"
        + (f" of {len(pool.groups)} groups of layers" if len(pool.groups) > 1 else ""),
    )
    yield ArithmeticLine("tokens that vLLM logs", f"{result.kv_cache_tokens:,}", f"vLLM {config.version}")
    if result.kv_cache_tokens != result.kv_cache_capacity_tokens:
        yield ArithmeticLine(
            "tokens that really fit", f"{result.kv_cache_capacity_tokens:,}", "in requests of max_model_len"
        )
    yield ArithmeticLine("requests at once", f"{result.max_concurrency:,.2f}", f"of {config.max_model_len:,} tokens")
    yield ArithmeticLine("longest request", f"{result.largest_max_model_len:,}", "tokens")


def _per_token(model: Model, result: FitResult) -> str:
    config = result.config
    kinds = dict.fromkeys(model.mixers())
    first = next((m for m in kinds if isinstance(m, Attention)), None)
    latent = next((m for m in kinds if isinstance(m, LatentAttention)), None)
    mixers = [model.layers[index].mixer for index in result.stage.weights.layers if index < model.num_layers]
    if latent:
        layers = sum(isinstance(mixer, LatentAttention) for mixer in mixers)
        return f"{layers} layers of {_latent_row(latent, result)}"
    if first is None:
        return "a state of fixed size per request instead"
    ranks = config.tensor_parallel_size
    heads = held_heads(first.num_kv_heads, ranks)
    note = ", repeated on ranks" if first.num_kv_heads < ranks else ""
    width = first.head_dim + first.v_head_dim
    count = sum(isinstance(mixer, Attention) for mixer in mixers)
    return f"{count} layers x {heads} KV heads on the rank{note} x {width} x {config.kv_cache_dtype}"


def _latent_row(latent: LatentAttention, result: FitResult) -> str:
    """What a layer of MLA keeps of a token in this version."""
    kept = max(spec.token_bytes for group in result.budget.pool.groups for spec in group.specs)
    elements, size = latent.kv_elements_per_token, element_bytes(result.config.kv_cache_dtype)
    kind = features_of(result.config, result.deployment.profile).latents
    if kind == "heads":
        heads = held_heads(latent.num_heads, result.config.tensor_parallel_size)
        return f"{heads} heads on the rank x {kept // heads // size} x {result.config.kv_cache_dtype}, without latents"
    padded = f", padded to {kept // size}" if kind == "padded rows" else ""
    return f"{elements} latent elements{padded}; TP does not divide them"


def naive_kv_bytes_per_token(model: Model, bytes_per_element: int = 2) -> int:
    """The documents' formula: 2 x layers x hidden size x bytes."""
    return 2 * model.num_layers * model.hidden_size * bytes_per_element


def _rule_of_thumb(result: FitResult) -> Iterator[ArithmeticLine]:
    model, config, budget = result.budget.model, result.config, result.budget
    per_token = naive_kv_bytes_per_token(model, element_bytes(config.dtype))
    weights = model.total_params * element_bytes(config.dtype)
    cache = per_token * config.max_model_len
    memory = budget.memory_bytes * config.num_gpus
    verdict = "fits" if weights + cache < memory else "does not fit"
    yield ArithmeticLine("rule of thumb in AMD's documents", verdict, "weights + KV cache < memory of all GPUs")
    yield ArithmeticLine(
        "  weights + KV cache",
        format_gb(weights + cache),
        f"{weights / GB:,.2f} GB + {config.max_model_len:,} tokens x {per_token:,} B ({cache / GB:,.2f} GB)",
    )
    for reason in _where_it_is_wrong(result, per_token):
        yield ArithmeticLine("  not in the rule", "", reason)


def _where_it_is_wrong(result: FitResult, naive_per_token: int) -> Iterator[str]:
    model, config, stage = result.budget.model, result.config, result.stage
    mixers = tuple(dict.fromkeys(model.mixers()))
    attention = [m for m in mixers if isinstance(m, Attention)]
    if any(isinstance(m, LatentAttention) for m in mixers):
        yield "latent attention: one compressed row per token instead of keys and values of every head"
    grouped = next((m for m in attention if m.num_kv_heads < m.num_heads), None)
    if grouped:
        yield (
            f"grouped queries: {grouped.num_kv_heads} KV heads for {grouped.num_heads} query heads; "
            f"the rule's {naive_per_token:,} B per token are too many"
        )
    if any(m.num_heads * m.head_dim != model.hidden_size for m in attention):
        yield "heads x head_dim is not the hidden size"
    if any(m.span_tokens for m in attention):
        yield "layers with a window keep only their window"
    if any(isinstance(m, StateMixer) for m in mixers):
        yield "layers with a state keep a fixed size per request"
    if any(m.num_kv_heads < config.tensor_parallel_size for m in attention):
        yield f"{config.tensor_parallel_size} ranks repeat the KV heads: their cache does not shrink further"
    if config.kv_cache_dtype != config.dtype:
        yield f"the cache is kept in {config.kv_cache_dtype}"
    if model.quantization.method:
        yield f"weights are stored in {config.weight_dtype}, scales come on top"
    overhead = stage.requested_bytes - stage.weights.loaded_bytes - stage.left.mid
    spare = result.budget.memory_bytes - stage.requested_bytes
    yield (
        f"{spare / GIB:.2f} GiB that vLLM leaves alone, and {overhead / GIB:.2f} GiB of activations, graphs and "
        "communicators"
    )
    if model.id.lower().startswith("meta-llama/llama-2-13b") and config.max_model_len == 4096:
        yield "the document's 3.6 GB of KV cache for this example are 3.36 GB by its own formula: 4,096 x 819,200 B"


def _both(num_bytes: float) -> str:
    return f"{format_gb(num_bytes)} = {format_bytes(num_bytes)}"


def _range(interval: Interval) -> str:
    return f"{interval.mid / GIB:,.2f} ({interval.low / GIB:,.2f} to {interval.high / GIB:,.2f}) GiB"
