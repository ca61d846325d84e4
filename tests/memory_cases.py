"""Models, GPUs and settings that the tests of memory share."""

from functools import cache
from typing import Any

from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs, EngineConfig
from planner.engine.version import EngineVersion, parse_version
from planner.hardware.profiles import load_profile
from planner.memory.budget import MemoryBudget, memory_budget
from planner.memory.cache import BlockPool, CacheSettings, block_pool, layer_specs
from planner.model.architecture import Model
from planner.model.resolve import resolve_model
from planner.planning.fit import Fit
from planner.planning.serving import Serving


@cache
def model(name: str) -> Model:
    """A model of the bundled catalog."""
    return resolve_model(name, network=False).model


def version(text: str) -> EngineVersion:
    """A vLLM release."""
    return parse_version(text)


def config(name: str, gpu: str, release: str, **flags: Any) -> EngineConfig:
    """The settings that vLLM would run with."""
    return resolve(EngineArgs(**flags), model(name), load_profile(gpu), version(release))


def budget(name: str, gpu: str, release: str, **flags: Any) -> MemoryBudget:
    """How vLLM would divide the memory."""
    return memory_budget(model(name), load_profile(gpu), config(name, gpu, release, **flags))


def fitted(name: str, gpu: str, release: str, **flags: Any) -> Fit:
    """The whole answer."""
    return Serving.of(model(name), load_profile(gpu), EngineArgs(**flags), version(release)).fit()


def pool(
    name: str,
    *,
    tensor_parallel_size: int = 1,
    kv_cache_dtype: str = "bf16",
    block_size: int = 16,
    max_num_batched_tokens: int = 8192,
    hybrid: bool = True,
    **settings: Any,
) -> BlockPool:
    """The pool of KV blocks of a model."""
    cache_settings = CacheSettings(
        tensor_parallel_size, model(name).dtype, kv_cache_dtype, block_size, max_num_batched_tokens
    )
    layers = layer_specs(model(name), cache_settings)
    return block_pool(layers, hybrid=hybrid, in_flight_tokens=max_num_batched_tokens, **settings)


def bytes_per_token(found: BlockPool) -> float:
    """Bytes of one token in every layer that keeps it."""
    return sum(spec.bytes_per_token for group in found.groups for _, spec in group.members)
