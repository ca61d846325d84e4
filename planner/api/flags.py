"""The flags of ``vllm serve`` as keyword arguments: ``tensor_parallel_size=8``."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from numbers import Integral, Real
from typing import Any, TypedDict, cast, get_args, get_type_hints

from planner.engine import (
    FLAG,
    MOST_RANKS,
    RATE_FLAG,
    EngineArgs,
    SpeculativeConfig,
    parse_speculative_config,
    with_acceptance,
)
from planner.errors import InputError, UnknownNameError

ACCEPTANCE = "speculative_acceptance_rate"


class EngineFlags(TypedDict, total=False):
    """Flags of ``vllm serve`` that change memory or time, under vLLM's own names. None: vLLM's default."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    gpu_memory_utilization: float | None
    cpu_kvcache_space: int | None
    block_size: int | None
    enforce_eager: bool
    enable_chunked_prefill: bool | None
    enable_prefix_caching: bool | None
    async_scheduling: bool | None
    decode_context_parallel_size: int
    speculative_config: SpeculativeConfig | Mapping[str, Any] | str | None
    speculative_acceptance_rate: float | Sequence[float] | str | None
    enable_lora: bool
    max_loras: int | None
    max_lora_rank: int | None
    max_cpu_loras: int | None
    fully_sharded_loras: bool
    cpu_offload_gb: float | None
    kv_offloading_size: float | None
    swap_space: float | None
    allow_unvalidated: bool


def engine_args(given: Mapping[str, Any], *, own: Iterable[str] = ()) -> EngineArgs:
    """The settings of an engine.

    ``own`` are other keywords of the function that was called, for a hint at what was meant. Raises UnknownNameError
    for a keyword that is no flag, and InputError for a value that is none of this flag.
    """
    settings = dict(given)
    rates = settings.pop(ACCEPTANCE, None)
    hints = _hints()
    for name, value in settings.items():
        if name not in hints:
            raise UnknownNameError("keyword", name, (*hints, ACCEPTANCE, *own), see="docs/library.md")
        settings[name] = _drafts(value) if name == "speculative_config" else _checked(name, value)
    args = EngineArgs(**settings)
    if rates is None:
        return args
    if args.speculative_config is None:
        raise InputError(f"{RATE_FLAG} without {FLAG}", hint=f"add {FLAG}, or leave {RATE_FLAG} out")
    text = ",".join(map(str, rates)) if isinstance(rates, Sequence) and not isinstance(rates, str) else str(rates)
    return replace(args, speculative_config=with_acceptance(args.speculative_config, text))


def flags_of(args: EngineArgs, names: Container[str] | None = None) -> EngineFlags:
    """The settings as keywords; those of ``names``, where they are given."""
    every = (field.name for field in fields(args))
    return cast(EngineFlags, {name: getattr(args, name) for name in every if names is None or name in names})


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(EngineArgs)


def _drafts(value: Any) -> SpeculativeConfig | None:
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, str):
        return parse_speculative_config(value)
    try:
        return parse_speculative_config(json.dumps(value))
    except TypeError as error:
        raise InputError(f"{FLAG}: {error}", hint="give a mapping, or its JSON") from error


def _checked(name: str, value: Any) -> Any:
    plain = typed(name, value, _hints()[name])
    if type(plain) is int:
        most = MOST_RANKS if name.endswith("parallel_size") else None
        if plain < 1 or (most and plain > most):
            wanted = f"from 1 to {most:,}" if most else "of at least 1"
            raise InputError(f"{flag_of(name)} {plain} is not a number {wanted}", hint="give such a number")
    return plain


def typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` as a plain one of the types in ``hint``; numbers of numpy and the like are taken.

    Raises InputError, naming the flag, for a value of another type.
    """
    kinds = get_args(hint) or (hint,)
    if not isinstance(value, Real) or isinstance(value, bool):
        if type(value) in kinds:
            return value
    elif isinstance(value, Integral) and int in kinds:
        return int(value)
    elif float in kinds:
        return float(value)
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    wanted = " or ".join(words[kind] for kind in kinds if kind in words)
    raise InputError(f"{flag_of(name)} {repr(value)[:80]} is not {wanted}", hint=f"give {name} as {wanted}")


def flag_of(name: str) -> str:
    """The flag of a keyword."""
    return "--" + name.replace("_", "-")
