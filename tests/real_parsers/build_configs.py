"""Let an installed vLLM build its whole configuration from a ``vllm serve`` line: no engine, no weights, no GPU.

Reads a JSON list of ``{"argv": [...], "env": {...}, "config": {...}, "platform": "rocm"}`` from standard input, where
``config`` stands for the model's own ``config.json``. Writes a JSON list of the settings that vLLM ends with, or of
what it said instead. Runs in vLLM's own interpreter and imports nothing of the planner.

What a CPU would do differently (block size, asynchronous scheduling, quantisation kernels) is switched off: the lines
are for GPUs, and what is judged is vLLM's common code, and its list of what ROCm can quantise.
"""

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import vllm
from parse_commands import CLI_ARGS, first
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

#: What a build for the CPU, or a trimmed ``config.json``, cannot be asked: fused GPU kernels, image processors.
NOT_JUDGED = (
    # 0.32: without Triton, which a CPU build lacks, vLLM takes its old runner; on a GPU the new one does both
    "Model Runner V1 does not support: pipeline parallelism with async scheduling",
    "'_C' object has no attribute",
    "failed to be inspected",
)


def use_common_rules() -> None:
    """Leave out the CPU platform's own changes, and look at model classes in this process: it is faster."""
    platform = type(current_platform)
    platform.verify_quantization = classmethod(verify_quantization)
    platform.check_and_update_config = classmethod(lambda cls, config: None)
    registry._run_in_subprocess = lambda function: function()


def verify_quantization(cls: type, method: str) -> None:
    """What the platform that the line is for would say."""
    if PLATFORM == "rocm" and method not in QUANTIZED_BY_ROCM:
        raise ValueError(f"{method} quantization is currently not supported in rocm.")


def methods_of(platform: str) -> frozenset[str]:
    """The list in a platform's source, whose module only its own machines can import."""
    source = (Path(vllm.__file__).parent / "platforms" / f"{platform}.py").read_text()
    lists = (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "supported_quantization"
    )
    return frozenset(ast.literal_eval(next(lists)))


QUANTIZED_BY_ROCM = methods_of("rocm")
PLATFORM = ""  #: of the line that is judged


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """A trimmed configuration of AMD's Quark with the keys that vLLM also wants: how its KV cache is scaled."""
    quantization = config.get("quantization_config") or {}
    if quantization.get("quant_method") == "quark":
        export = quantization.setdefault("export", {"kv_cache_group": []})
        export.setdefault("pack_method", "reorder")
        static = {"dtype": "fp8_e4m3", "is_dynamic": False, "qscheme": "per_tensor"}
        scales = static if export["kv_cache_group"] else None
        quantization.get("global_quant_config", {}).setdefault("output_tensors", None)
        for layer in (quantization.get("layer_quant_config") or {}).values():
            layer.setdefault("output_tensors", scales)
    return config


def built(job: dict[str, Any]) -> dict[str, Any]:
    """The settings that vLLM ends with, under the planner's names."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(completed(job["config"])))
        parser = first(CLI_ARGS, "make_arg_parser")(FlexibleArgumentParser(prog="vllm serve"))
        args = parser.parse_args(["--model", folder, *job["argv"][3:]])
        if hasattr(args, "reasoning_parser"):  # 0.27 looks its strings up in the tokenizer, which the folder lacks
            args.reasoning_parser = parser.get_default("reasoning_parser")
        config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    parallel, scheduler, cache = config.parallel_config, config.scheduler_config, config.cache_config
    return {
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "enable_expert_parallel": parallel.enable_expert_parallel,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "block_size": cache.block_size,
        "enforce_eager": config.model_config.enforce_eager,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "async_scheduling": scheduler.async_scheduling,
    }


def verdict(job: dict[str, Any]) -> dict[str, Any]:
    """``{"settings": ...}``, ``{"error": ...}``, or ``{"not_judged": ...}``."""
    global PLATFORM
    PLATFORM = job["platform"]
    said = io.StringIO()
    before = dict(os.environ)
    os.environ.update(job["env"])
    try:
        with contextlib.redirect_stderr(said):
            return {"settings": built(job)}
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # whatever it throws is the verdict
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return {"not_judged" if any(words in text for words in NOT_JUDGED) else "error": text[:400]}
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    use_common_rules()
    verdicts = [verdict(job) for job in json.load(sys.stdin)]
    print(json.dumps(verdicts))
