"""Let the real parsers of a vLLM version judge the command lines that the planner writes for it.

::

    python tests/real_parsers/check_commands.py 0.32.0 --python vllm-venv/bin/python
    python tests/real_parsers/check_commands.py 0.11.0 --python vllm-venv/bin/python --tree vllm-0.11.0

``--tree`` is a folder with an unpacked wheel or source distribution, put first on the path. Exits with 1 when a
parser refuses a command.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from planner.engine.command import bench_latency_argv, bench_serve_argv, bench_throughput_argv, serve_argv
from planner.engine.flags import flag_status
from planner.engine.published import recipe_for
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs
from planner.engine.version import EngineVersion, parse_version
from planner.errors import PlannerError
from planner.hardware.profiles import load_profile
from planner.model.architecture import Model
from planner.model.resolve import resolve_model
from planner.output.scripts.emission import node_script
from planner.workload.load import Load

GPUS = ("mi300x", "mi300x-cpx", "mi355x", "h100-sxm", "a100-sxm-80gb", "b200-sxm", "cpu")
MODELS = (
    "meta-llama/Llama-3.3-70B-Instruct",
    "amd/Llama-3.3-70B-Instruct-FP8-KV",
    "amd/Llama-3.3-70B-Instruct-MXFP4-Preview",
    "nvidia/Llama-3.3-70B-Instruct-FP8",
    "deepseek-ai/DeepSeek-R1",
    "openai/gpt-oss-120b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507",
    "moonshotai/Kimi-K2.6",
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"tensor_parallel_size": 8, "max_model_len": 8192, "max_num_seqs": 64, "enforce_eager": True},
    {"kv_cache_dtype": "fp8", "enable_prefix_caching": False, "max_num_batched_tokens": 16384, "max_num_seqs": 256},
    {"enable_chunked_prefill": False, "max_model_len": 4096, "gpu_memory_utilization": 0.95},
    {"async_scheduling": True, "dtype": "float16", "block_size": 32},
    {"data_parallel_size": 8, "enable_expert_parallel": True},
    {"pipeline_parallel_size": 2, "quantization": "fp8"},
)
LOADS = (
    Load(input_len=1024, output_len=128, num_prompts=32, max_concurrency=8),
    Load(input_len=128, output_len=32, num_prompts=8, request_rate=2.5, burstiness=0.5, range_ratio=0.2),
)


def models() -> Iterator[Model]:
    for name in MODELS:
        try:
            yield resolve_model(name, network=False).model
        except PlannerError as error:
            print(f"# {name}: {error}", file=sys.stderr)


def commands(version: EngineVersion) -> Iterator[list[str]]:
    """Every command for every GPU, model and setting; what the planner itself refuses is passed over."""
    for gpu, model, settings in product(GPUS, models(), SETTINGS):
        profile = load_profile(gpu)
        try:
            config = resolve(EngineArgs(**settings), model, profile, version)
            recipe = recipe_for(model, profile, version, kv_cache_dtype=config.kv_cache_dtype, engine=config.engine)
            yield serve_argv(config, model.id, host="127.0.0.1", port=8000, extra=recipe.flags)
            latency = bench_latency_argv(config, model.id, input_len=128, output_len=16, batch_size=4)
            for words in (latency, bench_throughput_argv(config, LOADS[0], model.id)):
                yield [*words, "--output-json", "result.json"]
        except PlannerError:
            continue
    for load in LOADS:
        try:
            saved = ("--save-result", "--result-dir", "results", "--result-filename", "r.json")
            serving = ("vllm", "serve", "m", "--trust-remote-code", "--tokenizer-mode", "mistral")
            yield [*bench_serve_argv(load, "m", version, serving=serving), *saved]
        except PlannerError:
            continue


def over_nodes(argv: list[str], version: EngineVersion) -> Iterator[list[str]]:
    """The same command as the first and as the second of two nodes get it, from the scripts that start them."""
    for join, layout in (("mp", ["-tp", "8", "-pp", "2"]), ("dp", ["-tp", "2", "-dp", "8", "-ep"])):
        if not flag_status(version, "--nnodes" if join == "mp" else "--data-parallel-start-rank"):
            continue
        for rank in ("0", "1"):
            told = {"HEAD": "10.0.0.1", "HEAD_PORT": "29501", "NODES": "2", "NODE_RANK": rank, "LOCAL_RANKS": "4"}
            words = ["bash", "-c", node_script(join), "planner", "printf", "%s\\n", *argv, *layout]
            done = subprocess.run(words, env={**os.environ, **told}, capture_output=True, text=True, check=True)
            yield done.stdout.splitlines()


def judge(argvs: list[list[str]], python: str, tree: Path | None) -> list[str | None]:
    """The real parsers' verdicts."""
    paths = [str(tree)] if tree else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("VLLM_PYTHONPATH", "")]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    script = Path(__file__).resolve().parent / "parse_commands.py"
    done = subprocess.run(
        [python, str(script)],
        input=json.dumps(argvs),
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{python}: {done.stderr.strip().splitlines()[-1]}")
    verdicts: list[str | None] = json.loads(done.stdout[done.stdout.index("[") :].splitlines()[-1])
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has this vLLM's dependencies")
    parser.add_argument("--tree", type=Path, help="folder of an unpacked wheel or source distribution")
    args = parser.parse_args()
    version = parse_version(args.version)
    argvs = [list(words) for words in dict.fromkeys(map(tuple, commands(version))) if words[0] == "vllm"]
    argvs += over_nodes(["vllm", "serve", MODELS[0]], version)
    verdicts = judge(argvs, args.python, args.tree)
    judged = [(a, v) for a, v in zip(argvs, verdicts, strict=True) if not (v or "").startswith("not judged")]
    refused = [(argv, said) for argv, said in judged if said]
    for argv, said in refused[:20]:
        print(" ".join(argv), "->", said)
    rest = len(argvs) - len(judged)
    print(f"vLLM {version}: {len(judged) - len(refused)} of {len(judged)} commands accepted, {rest} not judged")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
