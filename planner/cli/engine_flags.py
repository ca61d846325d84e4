"""The flags of ``vllm serve``, declared once for every command that takes them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from planner.engine import CPU_KVCACHE_SPACE, MOST_RANKS

ENGINE = "Engine (flags of vllm serve)"


def _option(kind: Any, default: Any, *names: str, **settings: Any) -> tuple[Any, Any]:
    return Annotated[kind, typer.Option(*names, rich_help_panel=ENGINE, **settings)], default


def _speculative(text: str) -> Any:
    from planner.engine import parse_speculative_config

    return parse_speculative_config(text)


#: Flags whose memory is modelled and whose time is not: ``fit`` alone takes them.
MEMORY_ONLY = ("decode_context_parallel_size",)
#: Flags that change time alone: ``fit`` does not take them.
TIME_ONLY = ("speculative_acceptance_rate",)
#: Field of ``EngineArgs`` -> (annotation, default).
FLAGS: dict[str, tuple[Any, Any]] = {
    "tensor_parallel_size": _option(
        int, 1, "--tensor-parallel-size", "-tp", min=1, max=MOST_RANKS, help="GPUs that share each layer."
    ),
    "pipeline_parallel_size": _option(
        int, 1, "--pipeline-parallel-size", "-pp", min=1, max=MOST_RANKS, help="Stages of layers."
    ),
    "data_parallel_size": _option(
        int, 1, "--data-parallel-size", "-dp", min=1, max=MOST_RANKS, help="Replicas of the engine."
    ),
    "enable_expert_parallel": _option(bool, False, "--enable-expert-parallel", help="Whole experts per rank."),
    "dtype": _option(str, "auto", "--dtype", help="auto, bfloat16, float16 or float32."),
    "quantization": _option(
        str | None, None, "--quantization", "-q", help="Quantise while loading: fp8, ... Default: as the checkpoint is."
    ),
    "kv_cache_dtype": _option(str, "auto", "--kv-cache-dtype", help="auto, fp8, bfloat16, ..."),
    "max_model_len": _option(int | None, None, "--max-model-len", min=1, help="Context. Default: the model's own."),
    "max_num_seqs": _option(int | None, None, "--max-num-seqs", min=1, help="Largest batch."),
    "max_num_batched_tokens": _option(int | None, None, "--max-num-batched-tokens", min=1, help="Tokens of one step."),
    "gpu_memory_utilization": _option(
        float | None, None, "--gpu-memory-utilization", help="Share of the memory to use, such as 0.9."
    ),
    "cpu_kvcache_space": _option(
        int | None,
        None,
        "--cpu-kvcache-space",
        envvar=CPU_KVCACHE_SPACE,
        show_envvar=True,
        min=1,
        metavar="GIB",
        help="KV cache on a CPU. Default: what is left of that share, in whole GiB.",
    ),
    "block_size": _option(int | None, None, "--block-size", min=1, help="Tokens of a KV block."),
    "enforce_eager": _option(bool, False, "--enforce-eager", help="No CUDA/HIP graphs."),
    "enable_chunked_prefill": _option(
        bool | None, None, "--enable-chunked-prefill/--no-enable-chunked-prefill", help="Split long prompts."
    ),
    "enable_prefix_caching": _option(
        bool | None, None, "--enable-prefix-caching/--no-enable-prefix-caching", help="Keep blocks of shared prefixes."
    ),
    "async_scheduling": _option(
        bool | None, None, "--async-scheduling/--no-async-scheduling", help="Schedule while the GPU computes."
    ),
    "decode_context_parallel_size": _option(
        int,
        1,
        "--decode-context-parallel-size",
        "-dcp",
        min=1,
        max=MOST_RANKS,
        help="Ranks that share the tokens of the KV cache.",
    ),
    "speculative_config": _option(
        Any, None, "--speculative-config", metavar="JSON", parser=_speculative, help="How tokens are drafted."
    ),
    "speculative_acceptance_rate": _option(
        str | None,
        None,
        "--speculative-acceptance-rate",
        metavar="RATE[,RATE...]",
        help="Share of drafted tokens that the model accepts where those before were; or of each position.",
    ),
    "enable_lora": _option(bool, False, "--enable-lora", help="Make room for LoRA adapters."),
    "max_loras": _option(int | None, None, "--max-loras", min=1, help="Adapters in one batch. Default: 1."),
    "max_lora_rank": _option(int | None, None, "--max-lora-rank", min=1, help="Largest rank. Default: 16."),
    "max_cpu_loras": _option(
        int | None, None, "--max-cpu-loras", min=1, help="Adapters in host memory. Default: as --max-loras."
    ),
    "fully_sharded_loras": _option(bool, False, "--fully-sharded-loras", help="Cut adapters by all ranks."),
    "cpu_offload_gb": _option(
        float | None, None, "--cpu-offload-gb", metavar="GIB", help="Weights of each GPU that stay in host memory."
    ),
    "kv_offloading_size": _option(
        float | None, None, "--kv-offloading-size", metavar="GIB", help="Host memory for KV blocks, of all ranks."
    ),
    "swap_space": _option(
        float | None, None, "--swap-space", metavar="GIB", help="Host memory of each GPU for swapped blocks (V0)."
    ),
    "allow_unvalidated": _option(
        bool, False, "--allow-unvalidated", help="Plan what one source documents and another reports broken."
    ),
}


def takes_engine_flags(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the flags ``names``; it receives them as one ``EngineArgs`` named ``args``.

    By default they are all but ``MEMORY_ONLY``. They stand in the help where ``args`` stands among the command's own
    parameters.
    """
    chosen = names or tuple(name for name in FLAGS if name not in MEMORY_ONLY)

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def parsed(**given: Any) -> int:
            from planner.api.flags import engine_args

            return command(args=engine_args({name: given.pop(name) for name in chosen}), **given)

        parameters = list(_replaced(inspect.signature(command).parameters.values(), chosen))
        parsed.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in parameters}
        return parsed

    return decorate


def _replaced(own: Any, chosen: tuple[str, ...]) -> Any:
    """The command's own parameters, with the flags in the place of ``args``."""
    for parameter in own:
        if parameter.name != "args":
            yield parameter
            continue
        for name in chosen:
            annotation, default = FLAGS[name]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
