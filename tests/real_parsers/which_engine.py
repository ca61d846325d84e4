"""Ask vLLM's own oracle, of 0.8.0 to 0.11.0, which of its two engines a server's line gets: no engine, no GPU.

Reads a JSON list of ``{"words": [...], "env": {...}, "architecture": ..., "window": ..., "cpu": ...}`` from standard
input, words being options after the model, and writes a JSON list of ``V0``, ``V1``, ``ends: ...``, or empty strings
for options and models that it does not have. Runs in vLLM's own interpreter and imports nothing of the planner.

The line is for a Hopper GPU, or for this CPU. Of the model the oracle looks at what its class supports, read from the
source: many classes cannot be imported without a GPU.
"""

import ast
import contextlib
import io
import json
import os
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm
from vllm import platforms
from vllm.engine import arg_utils
from vllm.model_executor.models import registry
from vllm.utils import FlexibleArgumentParser

DTYPES = {"auto": torch.bfloat16, "float32": torch.float32}
CPU = platforms.current_platform
HERE = str(Path(__file__).parent)  #: a folder is no model of the hub that would have to be fetched
PARSER = arg_utils.EngineArgs.add_cli_args(FlexibleArgumentParser())


@cache
def bases(architecture: str) -> tuple[str, ...]:
    """Names of what the class of an architecture inherits."""
    module, name = registry._VLLM_MODELS[architecture]
    source = (Path(vllm.__file__).parent / "model_executor" / "models" / f"{module}.py").read_text()
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef) and node.name == name)
    return tuple(ast.unparse(base) for node in classes for base in node.bases)


def hopper() -> Any:
    """As much of a platform as the oracle asks."""
    platform = mock.MagicMock(device_name="cuda", device_type="cuda")
    for name in ("is_rocm", "is_tpu", "is_cpu"):
        getattr(platform, name).return_value = False
    platform.get_device_capability.return_value = SimpleNamespace(major=9, minor=0)
    return platform


def verdict(case: dict[str, Any]) -> str:
    """Of one line."""
    if case["architecture"] not in registry._VLLM_MODELS:
        return ""
    inherited = bases(case["architecture"])
    platform = CPU if case["cpu"] else hopper()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parsed = PARSER.parse_args(["--model", HERE, *case["words"]])
    except SystemExit:
        return ""
    args = arg_utils.EngineArgs.from_cli_args(parsed)
    if isinstance(args.speculative_config, str):
        args.speculative_config = json.loads(args.speculative_config)
    model = SimpleNamespace(
        architectures=[case["architecture"]], dtype=DTYPES[str(args.dtype)], quantization=args.quantization,
        task="generate", runner_type="generate", use_mla=False, is_v1_compatible="SupportsV0Only" not in inherited,
        has_inner_state="HasInnerState" in inherited, get_sliding_window=lambda: case["window"],
    )  # fmt: skip
    with (
        mock.patch.dict(os.environ, case["env"]),
        mock.patch.object(platforms, "_current_platform", platform),
        mock.patch.object(arg_utils, "current_platform", platform, create=True),
    ):
        try:
            return "V1" if args._is_v1_supported_oracle(model) else "V0"
        except NotImplementedError as error:
            return f"ends: {error}"


if __name__ == "__main__":
    print(json.dumps([verdict(case) for case in json.load(sys.stdin)]))
