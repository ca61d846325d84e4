"""Freezes what the command line and the library answer: records the output of some hundred commands, and compares.

It is for changes that should change nothing, such as moving code between modules. Record before and after, and compare:

    python benchmarks/outputs.py record before --checkout ../old
    python benchmarks/outputs.py record after
    python benchmarks/outputs.py compare before after

A recording has a text file for each entry of the list below: exit status, stdout, stderr, and every file written, for
each command of the entry. Numbers are rounded to four significant digits, so that sums may be taken in another order.
``compare --ignore-prose`` looks only at what programs read: exit status, JSON and CSV, scripts. It is for changes that
reword texts on purpose. ``record --only SUBSTRING`` runs the commands that contain it.

Everything runs offline, in children of one process that has imported the checkout, each in an empty folder of its own.
"""

import argparse
import csv
import difflib
import gc
import hashlib
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

LIMIT_S = 60
SLOW_S = 20
#: Imported before the first command, besides all modules of the checkout.
HEAVY = (
    "numpy", "scipy.optimize", "scipy.stats", "pydantic", "jinja2", "huggingface_hub", "typer", "yaml",
)  # fmt: skip

# --- the list ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """Commands that run one after the other in one folder, the files that lie there before, and their stdin."""

    steps: tuple[tuple[str, ...], ...]
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""

    @property
    def title(self) -> str:
        """All commands on one line."""
        return " ; ".join(map(spelled, self.steps))

    @property
    def name(self) -> str:
        """A file name that depends on nothing but the entry."""
        content = json.dumps([self.steps, sorted(self.files.items()), self.stdin])
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", spelled(self.steps[0]).removeprefix("planner ")).strip("-.")
        return f"{slug[:80]}-{hashlib.sha256(content.encode()).hexdigest()[:10]}"


def spelled(step: tuple[str, ...]) -> str:
    """A command on one line; what all snippets begin with is left out."""
    if step[:2] == ("python", "-c"):
        code = "the result" if step[2] == MEASURED else step[2].removeprefix(LIBRARY).replace("\n", "; ")
        return " ".join(["python -c", code, *step[3:]])
    return shlex.join(step)


def ask(*lines: str, stdin: str = "", **files: str) -> Entry:
    """Command lines of ``planner`` without its name; those that begin with ``python`` stay as they are.

    Files are named by keywords: ``__`` stands for a slash and ``_DOT_`` for a dot.
    """
    steps = []
    for line in lines:
        words = shlex.split(line)
        steps.append(tuple(words if words[:1] == ["python"] else ["planner", *words]))
    named = {name.replace("__", "/").replace("_DOT_", "."): content for name, content in files.items()}
    return Entry(tuple(steps), named, stdin)


L8 = "meta-llama/Llama-3.1-8B-Instruct"
L70 = "meta-llama/Llama-3.3-70B-Instruct"
L2 = "meta-llama/Llama-2-7b-hf"
FORMATS = ("table", "json", "csv", "markdown")
VERSIONS = ("0.6.3", "0.8.5", "0.9.1", "0.11.0", "0.14.0", "0.27.1", "0.32.0", "2025-08-28")
GPUS = (
    "mi300x", "mi300x-dpx", "mi300x-qpx-nps4", "mi300x-cpx", "mi300x-cpx-nps4", "mi325x", "mi350x-cpx", "mi355x",
    "mi355x-dpx-nps2", "b200", "b300", "gb200", "gh200-96gb", "h100", "h100-nvl", "h100-mig-1g.10gb",
    "h100-mig-3g.40gb", "h200", "h200-mig-1g.18gb", "h20", "a100-sxm-80gb", "a100-pcie-40gb", "a100-mig-2g.20gb",
    "a10g", "l4", "l40s", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-pro-6000", "cpu",
)  # fmt: skip
#: A model of each class, where it runs, and how.
MODELS = (
    f"{L70} --gpu h100 -tp 4",
    "meta-llama/Llama-2-13b-hf --gpu mi300x-cpx",
    "mistralai/Mistral-7B-v0.1 --gpu l40s",
    "mistralai/Mixtral-8x7B-Instruct-v0.1 --gpu mi300x --enable-expert-parallel -tp 2",
    "Qwen/Qwen2.5-7B-Instruct-AWQ --gpu rtx-4090",
    "Qwen/Qwen2-1.5B-Instruct-GPTQ-Int4 --gpu rtx-3090",
    "Qwen/Qwen2.5-1.5B-Instruct-GPTQ-Int8 --gpu a100-sxm-80gb",
    "Qwen/Qwen3-32B-FP8 --gpu h200",
    "Qwen/Qwen3-30B-A3B --gpu mi325x",
    "Qwen/Qwen3-235B-A22B-FP8 --gpu h100 -tp 8 --enable-expert-parallel",
    "amd/Qwen3-235B-A22B-Instruct-2507-MXFP4 --gpu mi355x -tp 4",
    "Qwen/Qwen3-Next-80B-A3B-Instruct --gpu h200 -tp 2",
    "Qwen/Qwen3.5-35B-A3B --gpu b200",
    "Qwen/Qwen2.5-VL-7B-Instruct --gpu l40s",
    "Qwen/Qwen3-VL-30B-A3B-Instruct --gpu mi300x",
    "meta-llama/Llama-3.2-11B-Vision-Instruct --gpu h100 --engine-version 0.8.5",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct --gpu h200 -tp 4",
    "deepseek-ai/DeepSeek-V2-Lite --gpu h100",
    "deepseek-ai/DeepSeek-V3 --gpu h200 -tp 8",
    "deepseek-ai/DeepSeek-R1 --gpu mi300x -tp 8 --max-model-len 32768",
    "deepseek-ai/DeepSeek-V3 --gpu h200 -dp 8 --enable-expert-parallel",
    "nvidia/DeepSeek-R1-FP4 --gpu b200 -tp 4",
    "deepseek-ai/DeepSeek-V3.2 --gpu b200 -tp 8",
    "deepseek-ai/DeepSeek-V4-Flash --gpu b200 -tp 4",
    "moonshotai/Kimi-K2-Instruct --gpu b300 -tp 8",
    "openai/gpt-oss-20b --gpu rtx-5090",
    "openai/gpt-oss-120b --gpu mi355x",
    "google/gemma-2-9b-it --gpu a100-sxm-80gb",
    "google/gemma-3-27b-it --gpu h100",
    "google/gemma-4-26B-A4B --gpu b200",
    "nvidia/Llama-3.3-70B-Instruct-FP4 --gpu b200",
    "amd/Llama-3.3-70B-Instruct-MXFP4-Preview --gpu mi355x",
    "amd/Llama-3.1-8B-Instruct-FP8-KV --gpu mi300x-cpx",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8 --gpu a100-sxm-80gb",
    "ai21labs/AI21-Jamba-Mini-1.5 --gpu h100 -tp 2",
    "state-spaces/mamba-2.8b-hf --gpu a10g",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8 --gpu h100",
    "MiniMaxAI/MiniMax-M2 --gpu h200 -tp 4",
    "zai-org/GLM-4.5-Air-FP8 --gpu h100 -tp 2",
    "tiiuae/falcon-7b --gpu l4",
    "facebook/opt-13b --gpu mi300x --engine-version 0.6.3",
    "openai-community/gpt2 --gpu cpu",
)
NGRAM = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'"""
MTP = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 2}'"""
DRAFT = (
    "--speculative-config "
    """'{"method": "draft_model", "model": "meta-llama/Llama-3.2-1B-Instruct", "num_speculative_tokens": 4}'"""
)
#: Settings of the engine, that fit and predict know both.
SETTINGS = (
    f"{L70} --gpu h100 -tp 2 -pp 2",
    f"{L8} --gpu h100 -dp 4",
    f"{L8} --gpu mi300x --quantization fp8 --kv-cache-dtype fp8",
    f"{L8} --gpu h100 --weight-dtype int4-awq",
    f"{L70} --gpu b200 --weight-dtype nvfp4 --kv-cache-dtype fp8",
    f"{L8} --gpu h100 --dtype float16 --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 4096",
    f"{L8} --gpu mi300x --gpu-memory-utilization 0.8 --block-size 32 --enforce-eager",
    f"{L8} --gpu h100 --no-enable-prefix-caching --no-async-scheduling",
    f"{L8} --gpu h100 --no-enable-chunked-prefill --engine-version 0.6.3 --max-model-len 4096",
    f"{L8} --gpu h100 --no-enable-chunked-prefill --engine-version 0.8.5",
    f"{L8} --gpu h100 --enable-lora --max-loras 4 --max-lora-rank 64 --fully-sharded-loras -tp 2",
    f"{L70} --gpu h100 -tp 2 --cpu-offload-gb 20",
    f"{L8} --gpu h100 --kv-offloading-size 64",
    f"{L8} --gpu h100 --swap-space 8 --engine-version 0.6.3",
    f"{L8} --gpu h100 {NGRAM}",
    f"{L70} --gpu h100 -tp 4 {DRAFT}",
    f"deepseek-ai/DeepSeek-V3 --gpu h200 -tp 8 {MTP}",
    "Qwen/Qwen3-0.6B --gpu cpu --env VLLM_CPU_KVCACHE_SPACE=4 --max-model-len 4096",
)
#: Of fit alone.
ONLY_FIT = (
    f"{L8} --gpu all",
    f"{L8} --gpu mi300x-cpx --gpu h100 --gpu l4 -tp 2",
    f"{L8} --gpu l4 --sweep --max-model-len 32768",
    "deepseek-ai/DeepSeek-V3 --gpu h200 -tp 8 -dcp 4",
)
EXPLAINED = (
    "meta-llama/Llama-2-13b-hf --gpu mi300x-cpx",
    f"{L2} --gpu mi300x-cpx",
    f"{L70} --gpu b200 --weight-dtype fp8",
    "deepseek-ai/DeepSeek-V3 --gpu mi300x -tp 8 --enable-expert-parallel",
    "Qwen/Qwen3-Next-80B-A3B-Instruct --gpu h200 -tp 2",
    "openai/gpt-oss-120b --gpu h100",
)
#: A short load, for predict serve.
SHORT = "--random-input-len 512 --random-output-len 64 --max-concurrency 8 --num-prompts 24"

TRACE = "arrival_s,input_len,output_len\n" + "".join(
    f"{i * 0.4 + (i * i % 7) * 0.05:.2f},{200 + i * 37 % 900},{20 + i * 53 % 300}\n" for i in range(120)
)
TRACE_LINES = "".join(
    json.dumps({"arrival_s": i * 0.5, "input_len": 100 + i % 5 * 80, "output_len": 16 + i % 3 * 30}) + "\n"
    for i in range(40)
)
COLUMNS = (
    "run_id,bench,gpu,model,weight_dtype,tensor_parallel_size,engine_version,input_len,output_len,arrival,"
    "batch_size,max_concurrency,request_rate,num_prompts,avg_latency_s,output_throughput,mean_ttft_ms,mean_tpot_ms\n"
)
#: Runs that nobody measured: the figures are invented, and some rows cannot be predicted on purpose.
RUNS = f"""{COLUMNS}\
a,latency,mi300x,{L2},,1,0.11.0,128,128,,1,,,,0.81,,,
b,latency,mi300x,{L2},,1,0.11.0,128,128,,16,,,,1.03,,,
c,latency,h100-sxm,{L8},,1,0.11.0,256,64,,4,,,,0.55,,,
d,throughput,h100-sxm,{L8},,1,0.11.0,512,128,offline,,,,200,,7400,,
e,throughput,mi300x,{L70},fp8,8,0.9.1,128,256,offline,,,,300,,9000,,
f,serve,h100-sxm,{L8},,1,0.14.0,1024,128,closed-loop,,4,,20,,470,95,7.9
g,serve,h100-sxm,{L8},,1,0.14.0,1024,128,closed-loop,,16,,80,,1500,210,9.1
h,serve,mi300x,{L8},,1,0.11.0,1024,128,closed-loop,,8,,40,,760,200,9.0
i,serve,mi300x,{L8},,1,0.11.0,512,64,poisson,,,4,60,,250,90,9.5
j,serve,b200-sxm,{L70},fp8,1,0.14.0,1024,128,closed-loop,,4,,16,,330,150,11.0
k,serve,h200-sxm,Qwen/Qwen3-30B-A3B,,1,0.14.0,512,64,closed-loop,,4,,16,,560,60,6.3
l,serve,mi355x,openai/gpt-oss-120b,,1,0.14.0,512,64,all-at-once,,,,16,,1100,300,9.4
m,latency,mi300x,somebody/something,,1,0.11.0,128,128,,1,,,,0.5,,,
n,serve,h1000,{L8},,1,0.11.0,128,128,closed-loop,,4,,16,,300,50,9
o,serve,rtx-4090,meta-llama/Llama-3.1-405B-Instruct,,1,0.11.0,128,128,closed-loop,,2,,8,,30,50,60
"""
OWN = f"""{COLUMNS}\
one,serve,mi300x,{L8},,1,0.11.0,512,128,closed-loop,,2,,8,,190,110,9.7
two,serve,mi300x,{L8},,1,0.11.0,512,128,closed-loop,,8,,32,,700,210,9.8
three,serve,mi300x,{L8},,1,0.11.0,1024,64,closed-loop,,16,,48,,910,330,12.4
"""
MORE = f"{COLUMNS}four,serve,mi300x,{L8},,1,0.11.0,256,64,closed-loop,,4,,16,,350,90,10.2\n"
STARTUP = f"""\
INFO [api_server.py:1896] vLLM API server version 0.11.0
(EngineCore_DP0 pid=9) INFO [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{L8}', \
dtype=torch.bfloat16, max_seq_len=16384, tensor_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto
(EngineCore_DP0 pid=9) INFO [gpu_model_runner.py:2653] Model loading took 14.99 GiB and 4.2 seconds
(EngineCore_DP0 pid=9) INFO [gpu_worker.py:298] Available KV cache memory: 54.9 GiB
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:1087] GPU KV cache size: 449,712 tokens
(EngineCore_DP0 pid=9) INFO [kv_cache_utils.py:1091] Maximum concurrency for 16,384 tokens per request: 27.45x
(EngineCore_DP0 pid=9) INFO [gpu_model_runner.py:3118] Graph capturing finished in 5 secs, took 0.61 GiB
"""
CONFIG = json.dumps({
    "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32,
    "num_hidden_layers": 22, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
})  # fmt: skip
SCRIPT = f"""#!/bin/bash
# starts the server
MODEL=${{1:-{L8}}}
ARGS=(--max-num-seqs 32 --kv-cache-dtype fp8)
export VLLM_USE_V1=1
nohup vllm serve "$MODEL" "${{ARGS[@]}}" --max-model-len 8192 &
"""
NVIDIA_SMI = """#!/bin/sh
case "$*" in
  *-L*) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"; echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)" ;;
  *) echo "NVIDIA H100 80GB HBM3, 81559, Disabled"; echo "NVIDIA H100 80GB HBM3, 81559, Disabled" ;;
esac
"""
#: What a benchmark of a plan's folder would have written, had it come out so many times slower than predicted.
MEASURED = """
import json, pathlib, sys
folder, factor = pathlib.Path(sys.argv[1]), float(sys.argv[2])
plan = json.loads((folder / "plan.json").read_text())
load, said = plan["workload"], plan["predicted"]
rate = load["request_rate"]
found = {
    "model_id": plan["model"], "num_prompts": load["num_prompts"], "max_concurrency": load["max_concurrency"],
    "request_rate": "inf" if rate is None else rate, "completed": load["num_prompts"], "failed": 0,
    "total_input_tokens": load["num_prompts"] * load["input_len"],
    "total_output_tokens": load["num_prompts"] * load["output_len"], "duration": said["duration"] * factor,
}
for key, value in said.items():
    if key.endswith("_throughput"):
        found[key] = value / factor
    elif key.endswith("_ms"):
        found[key] = value * factor
(folder / "results").mkdir(exist_ok=True)
(folder / "results" / f"serve-{plan['digest']}.json").write_text(json.dumps(found))
"""
#: What the snippets below begin with.
LIBRARY = """
import json
import planner
from planner import *
def show(answer):
    seen = {"type": type(answer).__name__, "ok": answer.ok, "data": answer.to_dict(), "rows": list(answer.rows())}
    print(json.dumps({**seen, "notes": list(answer.notes)}, default=str))
    print(answer)
def refused(question, *words, **named):
    try:
        question(*words, **named)
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        status, hint = getattr(error, "exit_status", None), getattr(error, "hint", None)
        print(json.dumps([kinds, status, str(error), hint]))
"""
SNIPPETS = (
    "print(json.dumps(sorted(planner.__all__))); print(planner.__version__)",
    "print(json.dumps([list_gpus(), [str(one) for one in list_models()]], default=str))",
    "gpu = load_gpu('mi300x-cpx'); print(json.dumps(gpu.model_dump(mode='json'), default=str))",
    f"model = load_model('{L8}'); show(check_fit(model, load_gpu('h100'), max_model_len=8192))",
    f"show(check_fit('{L70}', 'h100', tensor_parallel_size=4, explain=True))",
    f"show(list_fits('{L8}', ['mi300x', 'mi300x-cpx', 'h100'], kv_cache_dtype='fp8'))",
    f"show(sweep_fit('{L2}', 'l40s'))",
    f"show(predict_latency('{L8}', 'h100', batch_size=2, input_len=64, output_len=32))",
    f"show(predict_throughput('{L8}', 'mi300x', input_len=128, output_len=32, num_prompts=32))",
    f"show(predict_serve('{L8}', 'mi300x', input_len=512, num_prompts=16, max_concurrency=4, random_range_ratio=0.5,"
    " seed=3, metric_percentiles=(50, 99.9), goodput={'ttft': 500}, enable_prefix_caching=False))",
    f"show(predict_serve('{L8}', 'h100-mig-1g.10gb', num_prompts=16, max_concurrency=4))",
    f"answer = predict_serve('{L8}', 'h100', num_prompts=16, max_concurrency=4)\n"
    "steps = {name: [[part.name, part.time_s, part.bound] for part in step.parts]"
    " for name, step in answer.steps.items()}\n"
    "print(json.dumps(steps))",
    f"show(recommend_plans('{L8}', ['h100', 'mi300x'], goal='min-latency', input_len=512, output_len=128))",
    f"answer = recommend_plans('{L8}', 'mi300x', ttft=1000, tpot=50, request_rate=2, price={{'mi300x': 1.5}})\n"
    "show(answer); print(answer.command); print(*write_scripts(answer, 'plans'))",
    f"show(compare_gpus('{L8}', ['h100', 'mi300x'], input_len=[256, 512], max_concurrency=8, price={{'h100': 2.5}}))",
    f"show(size_fleet('{L8}', 'h100', classes=[Demand('chat', 4, 256, 64)], tpot=100, spares=0, stock={{'h100': 9}}))",
    f"show(check_command('vllm serve {L8} --max-num-seqs 64', 'h100', max_concurrency=4))",
    "show(evaluate_runs('runs.csv', calibration='none'))",
    "show(calibrate_from('own.csv', output='machine.toml'))",
    f"refused(check_fit, '{L8}', 'h1000'); refused(check_fit, '{L8}', 'h100', tensor_parallel_size=3)\n"
    f"refused(check_fit, '{L8}', 'h100', tensor_paralel_size=2); refused(load_model, 'a/b/c')\n"
    f"refused(load_model, 'nobody/nothing'); refused(predict_serve, '{L8}', 'h100', request_rate=-1)\n"
    f"refused(recommend_plans, '{L8}', 'h100', goal='fast'); refused(validate_plan, 'nowhere')\n"
    f"refused(check_fit, '{L8}', 'h100', max_model_len='many'); refused(evaluate_runs, 'none.csv')",
)
COMMANDS = (
    "", "fit", "predict", "predict latency", "predict throughput", "predict serve", "recommend", "compare", "fleet",
    "check", "validate", "calibrate", "report", "evaluate", "workflow", "workflow list", "deploy", "hardware",
    "hardware list", "hardware show", "models", "models list", "models show",
)  # fmt: skip
WORKFLOWS = (
    "mi355x-fp8", "mi355x-mxfp4", "mi355x-source", "blackwell-fp4", "hopper-fp8", "nvidia-source", "latency", "ttft",
    "throughput", "speculative", "quick-reduce", "aiter", "online", "deepseek", "mmlu-pro", "quantize", "copies",
    "cpx", "mad", "compare-partitions", "sweep", "build-rocm-0.6.3", "build-rocm-0.9.1", "build-rocm-aiter",
)  # fmt: skip
#: Refused, each for a reason of its own.
REFUSED = (
    "fits x",
    f"fit {L2} --gpu h10",
    f"fit {L2}",
    "fit Llama-2-7b-h --gpu h100",
    "fit '' --gpu h100",
    "fit 'a/b; rm -rf ~' --gpu h100",
    "fit ../../etc/passwd --gpu h100",
    "fit somebody/something --gpu h100",
    f"fit {L70} --gpu h100 -tp 3",
    f"fit {L70} --gpu h100 -tp 0",
    f"fit {L70} --gpu mi300x-cpx -tp 2",
    f"fit {L70} --gpu h100 --max-model-len -1",
    f"fit {L70} --gpu h100 --max-model-len 131073",
    f"fit {L70} --gpu h100 --gpu-memory-utilization 1.5",
    f"fit {L70} --gpu h100 --gpu-memory-utilization nan",
    f"fit {L70} --gpu h100 --dtype int4",
    f"fit {L70} --gpu h100 --kv-cache-dtype fp2",
    f"fit {L70} --gpu h100 --quantization magic",
    f"fit {L70} --gpu h100 --weight-dtype fp3",
    f"fit {L70} --gpu h100 --engine-version newest",
    f"fit {L70} --gpu h100 --enable-expert-parallel",
    f"fit {L70} --gpu h100 --max-num-seqs 4096 --max-num-batched-tokens 64",
    f"fit {L70} --gpu h100 --max-model-length 5",
    f"fit {L70} --gpu h100 --format xml",
    f"fit {L70} --gpu h100 --revision ../x",
    f"fit {L70} --gpu h100 --calibration none.toml",
    f"fit {L70} --gpu h100 --startup-log none.log",
    f"fit {L70} --gpu h100 --speculative-config '{{broken'",
    f"""fit {L70} --gpu h100 --speculative-config '{{"method": "magic", "num_speculative_tokens": 1}}'""",
    f"fit {L70} --gpu local",
    f"fit {L8} --gpu mi300x --swap-space 4",
    "fit nvidia/Llama-3.3-70B-Instruct-FP4 --gpu a10g -tp 8 --engine-version 0.6.3",
    f"predict latency {L2} --gpu h100 -pp 33",
    f"predict latency {L2} --gpu h100 -dp 10000000000",
    f"predict latency {L2} --gpu h100 --output-len 0",
    f"predict latency {L2} --gpu h100 --input-len 100 --max-model-len 128",
    f"predict throughput {L2} --gpu h100",
    f"predict serve {L2} --gpu h100 --random-input-len -5",
    f"predict serve {L2} --gpu h100 --random-input-len 4000",
    f"predict serve {L2} --gpu h100 --request-rate 0",
    f"predict serve {L2} --gpu h100 --burstiness -1",
    f"predict serve {L2} --gpu h100 --random-range-ratio 1",
    f"predict serve {L2} --gpu h100 --metric-percentiles p99",
    f"predict serve {L2} --gpu h100 --goodput speed:5",
    f"predict serve {L2} --gpu h100 --prefix-cache-hit-rate 2",
    f"recommend {L2} --gpu h100 --random-input-len 4096",
    f"recommend {L2} --gpu h100 --goal fast",
    f"recommend {L2} --gpu h100 --pick 100000",
    f"recommend {L2} --gpu h100 --trace none.csv",
    f"recommend {L2} --gpu h100 --trace none.csv --input-len 5",
    f"recommend {L2} --gpu h100 --workload games",
    f"recommend {L2} --gpu h100 --ttft -1",
    f"recommend {L2} --gpu h100 --ttft 100 --percentile 101",
    f"recommend {L2} --gpu h100 --goal balanced --ttft 100",
    f"recommend {L2} --gpu h100 --price b200=1",
    f"compare {L2} --gpu h100 --max-concurrency 8 --request-rate 2",
    f"compare {L2} --gpu h100 --per rack",
    f"compare {L2} --gpu h100 --input-len 1,2,3 --output-len 1,2",
    f"fleet {L2} --gpu h100",
    f"fleet {L2} --gpu h100 --class broken --tpot 50",
    f"fleet {L2} --gpu h100 --request-rate 2 --tpot 50 --stock h100=-1",
    "check --gpu h100 -- vllm serve",
    "check --gpu h100 -- vllm bench serve",
    f"check -- vllm serve {L8}",
    "check none.sh --gpu h100",
    "validate none",
    "report none",
    "deploy none --target compose",
    "deploy none --target nomad",
    "workflow none -o x",
    "evaluate none.csv",
    "calibrate none.csv",
    "calibrate",
    "hardware show mi300x-cpxx",
    "hardware show my.toml",
    "hardware show local",
    "models show nobody/nothing",
    "models show",
)
#: Files that are broken, each with a command that reads it.
BROKEN = (
    ask("fit . --gpu h100", config_DOT_json=CONFIG[:90]),
    ask("fit . --gpu h100", config_DOT_json="[]"),
    ask("models show config.json", config_DOT_json='{"architectures": ["NopeForCausalLM"]}'),
    ask("models show config.json", config_DOT_json=CONFIG.replace("2048", "-1", 1)),
    ask(f"fit {L2} --gpu mine.toml", mine_DOT_toml="["),
    ask("hardware show mine.toml --format json", mine_DOT_toml="name = 1\n"),
    ask("evaluate runs.csv", runs_DOT_csv="bench,gpu\nserve,h100\n"),
    ask("evaluate runs.csv", runs_DOT_csv=RUNS.replace("7.9", "fast")),
    ask("evaluate runs.csv", runs_DOT_csv=""),
    ask("calibrate own.csv -o m.toml", own_DOT_csv=OWN.replace("9.7", "-3")),
    ask("calibrate own.csv -o m.toml", own_DOT_csv=OWN.replace("9.7", "0.0097")),
    ask("calibrate own.csv -o m.toml", own_DOT_csv=OWN.replace("three", "one")),
    ask("calibrate one.json --gpu h100", one_DOT_json="{}"),
    ask(f"recommend {L2} --gpu h100 --trace t.csv", t_DOT_csv="a,b,c\n1,2,3\n"),
    ask(f"recommend {L2} --gpu h100 --trace t.csv", t_DOT_csv=TRACE.replace("0.45", "later", 1)),
    ask("report plan", "deploy plan --target compose", "validate plan", "check plan", plan__plan_DOT_json="{broken"),
    ask("report plan", "deploy plan --target slurm", "validate plan", "check plan", plan__plan_DOT_json="{}"),
    ask(f"fit {L2} --gpu h100 --calibration m.toml", m_DOT_toml="[broken"),
    ask(f"fit {L2} --gpu h100 --calibration m.toml", m_DOT_toml="name = 1\n"),
    ask(f"fit {L8} --gpu h100 --startup-log a.log", a_DOT_log="nothing of use\n"),
    ask(f"recommend {L2} --gpu h100 -o plan", plan__notes_DOT_txt="mine\n"),
    *(
        ask(f"fit {L2} --gpu h100", planner_DOT_toml=text)
        for text in (
            "[fit",
            "[fits]\ngpu = 'h100'\n",
            "[fit]\ngpus = 'h100'\n",
            "[fit]\nenforce-eager = 1\n",
            "[fit]\nmax-model-len = 0\n",
            "[fit]\nformat = 'xml'\n",
        )
    ),
)


def entries() -> list[Entry]:
    """The whole list, each entry once."""
    parts: tuple[Callable[[], Iterator[Entry]], ...] = (
        _facts, _fit, _predict, _recommend, _compare_and_fleet, _check, _folders, _workflows, _measured, _defaults,
        _bad, _library,
    )  # fmt: skip
    return list({entry.name: entry for part in parts for entry in part()}.values())


def _facts() -> Iterator[Entry]:
    yield ask("--version")
    yield ask("")
    yield ask("python -m planner --version")
    for command in COMMANDS:
        yield ask(f"{command} --help")
    for output in FORMATS:
        yield ask(f"hardware list --format {output}")
        yield ask(f"hardware show mi300x-cpx --format {output}")
        yield ask(f"models list --format {output}")
        yield ask(f"models show {L70} deepseek-ai/DeepSeek-V3 google/gemma-3-27b-it --format {output}")
    for gpu in GPUS:
        yield ask(f"hardware show {gpu} --format json")
    yield ask(f"models show {' '.join(line.split()[0] for line in MODELS)} --format json")
    yield ask(f"models show {L8} nobody/nothing a/b/c --format json")
    yield ask("models show . config.json --format json", "fit . --gpu l4 --format json", config_DOT_json=CONFIG)
    yield ask("hardware show local", f"fit {L8} --gpu local --format json", bin__nvidia_smi=NVIDIA_SMI)


def _fit() -> Iterator[Entry]:
    for gpu in GPUS:
        yield ask(f"fit {L8} --gpu {gpu} --max-model-len 16384 --format json")
    for line in (*MODELS, *SETTINGS, *ONLY_FIT):
        yield ask(f"fit {line} --format json")
    for line in EXPLAINED:
        yield ask(f"fit {line} --explain")
    for output in FORMATS:
        yield ask(f"fit {L8} --gpu h100 --explain --format {output}")
        yield ask(f"fit {L8} --gpu h100 --gpu mi300x-cpx --gpu cpu --format {output}")
    for version in VERSIONS:
        for gpu in ("h100", "mi300x"):
            yield ask(f"fit {L8} --gpu {gpu} --engine-version {version} --format json")
    yield ask(f"fit {L8} --gpu h100 --allow-unvalidated --calibration none")
    log = "--startup-log vllm.log"
    yield ask(f"fit {L8} --gpu h100 {log}", f"fit {L8} --gpu h100 --format json", vllm_DOT_log=STARTUP)
    yield ask(f"fit {L8} --gpu h100 {log} --format json", vllm_DOT_log=STARTUP)


def _predict() -> Iterator[Entry]:
    for line in (*MODELS, *SETTINGS):
        accepted = "--speculative-acceptance-rate 0.7" if "speculative" in line else ""
        yield ask(f"predict serve {line} {accepted} {SHORT} --format json")
    yield ask(f"predict serve {L8} --gpu h100 {NGRAM} {SHORT}")
    for line in SETTINGS[:6]:
        yield ask(f"predict throughput {line} --input-len 256 --output-len 64 --num-prompts 64 --format json")
    for gpu in ("mi300x", "mi300x-cpx", "mi355x", "b200", "h100-mig-3g.40gb", "h200", "l40s", "rtx-4090", "cpu"):
        yield ask(f"predict latency {L2} --gpu {gpu} --batch-size 4 --format json")
    for version in VERSIONS:
        for gpu in ("h100", "mi300x"):
            yield ask(f"predict serve {L8} --gpu {gpu} --engine-version {version} {SHORT} --format json")
    for output in FORMATS:
        yield ask(f"predict serve {L8} --gpu h100 {SHORT} --explain --format {output}")
        yield ask(f"predict throughput {L8} --gpu mi300x --input-len 128 --output-len 32 --format {output} --explain")
        yield ask(f"predict latency {L8} --gpu mi300x --explain --format {output}")
    yield ask(f"predict serve {L8} --gpu h100 --request-rate 4 --burstiness 0.5 --random-range-ratio 0.3 --seed 7")
    yield ask(f"predict serve {L8} --gpu h100 --num-prompts 300 --goodput ttft:300 --goodput tpot:20")
    yield ask(f"predict serve {L8} --gpu mi300x --max-concurrency 16 --random-prefix-len 512 --num-prompts 64")
    yield ask(f"predict serve {L8} --gpu h100 {SHORT} --prefix-cache-hit-rate 0.5 --metric-percentiles 50,90,99.9")
    yield ask(f"predict serve {L8} --gpu h100 {SHORT} {NGRAM} --speculative-acceptance-rate 0.7,0.5,0.3")
    yield ask(f"predict throughput {L8} --gpu h100 --input-len 64 --output-len 64 --random-prefix-len 128")
    yield ask(f"predict latency {L70} --gpu h100")
    yield ask(f"predict serve {L70} --gpu h100 --format json")
    yield ask(f"predict serve {L8} --gpu mi300x-cpx --gpu-memory-utilization 0.95 --max-model-len 4096")


def _recommend() -> Iterator[Entry]:
    for output in FORMATS:
        yield ask(f"recommend {L8} --gpu mi300x --gpu h100 --goal max-throughput --format {output}")
        yield ask(f"recommend {L8} --gpu h100 --ttft 2000 --tpot 50 --request-rate 4 --format {output}")
    for goal in ("min-latency", "max-throughput", "balanced"):
        yield ask(f"recommend --goal {goal} --gpu mi355x --gpu b200")
        yield ask(f"recommend {L8} --gpu mi300x-cpx --goal {goal} --format json")
    for workload in ("chat", "rag", "summarise", "code", "agent", "reasoning"):
        yield ask(f"recommend {L8} --gpu h100 --workload {workload} --format json")
    yield ask("recommend --format json")
    yield ask("recommend deepseek-ai/DeepSeek-V3 --gpu h200 --gpu mi300x --format json")
    yield ask("recommend openai/gpt-oss-120b --gpu h100 --gpu mi355x --format json")
    yield ask("recommend Qwen/Qwen3-30B-A3B --gpu rtx-4090 --gpus 4 --max-concurrency 16 --format json")
    yield ask(f"recommend {L8} --gpu h100-mig-3g.40gb --format json")
    yield ask(f"recommend {L2} --gpu cpu --max-concurrency 4 --format json")
    yield ask(f"recommend {L8} --gpu h100 --engine-version 0.8.5 --gpus 1 --format json")
    yield ask(f"recommend {L8} --gpu mi300x --engine-version 0.9.1 --kv-cache-dtype fp8 --enforce-eager")
    yield ask(f"recommend {L8} --gpu h100 {NGRAM} --speculative-acceptance-rate 0.6 --format json")
    yield ask(f"recommend {L8} --gpu h100 --enable-lora --max-loras 2 --random-prefix-len 256 --format json")
    yield ask(f"recommend {L70} --gpu mi300x --e2el 20000 --itl 60 --percentile mean --max-concurrency 32")
    yield ask(f"recommend {L70} --gpu h100 --gpu b200 --tpot 30 --request-rate 6 --price h100=1.9 --price b200=3")
    yield ask(f"recommend {L8} --gpu h100 --ttft 1 --request-rate 2")
    yield ask(f"recommend {L8} --gpu h100 --ttft 300 --optimistic --percentile 90 --request-rate 4 --format json")
    yield ask("recommend meta-llama/Llama-3.1-405B-Instruct --gpu rtx-4090 --gpus 2")
    yield ask(f"recommend {L8} --gpu h100 --ttft 2000 --tpot 60 --trace trace.csv --format json", trace_DOT_csv=TRACE)
    yield ask(f"recommend {L8} --gpu mi300x --tpot 60 --trace trace.jsonl", trace_DOT_jsonl=TRACE_LINES)


def _compare_and_fleet() -> Iterator[Entry]:
    for output in FORMATS:
        yield ask(f"compare {L8} --gpu mi300x --gpu mi300x-cpx --gpu h100 --max-concurrency 8,64 --format {output}")
        yield ask(f"fleet {L8} --gpu h100 --gpu mi300x --request-rate 8 --ttft 2000 --tpot 50 --format {output}")
    yield ask("compare --gpu mi355x --gpu b200 --request-rate 1,4 --price b200=3 --format json")
    yield ask(f"compare {L8} --gpu h100 --gpu l4 --per node --input-len 256,1024 --output-len 128 --format json")
    yield ask(f"compare {L8} --gpu h200 --gpu h200-mig-1g.18gb --per gpu --packages 2 --max-concurrency 4")
    yield ask(f"compare {L70} --gpu rtx-4090 --gpu h100 -tp 8 --max-concurrency 16 --weight-dtype int4-awq")
    yield ask(f"fleet {L8} --gpu h100 --class chat=4:512:128 --class documents=1:4096:256 --ttft 3000 --tpot 60")
    yield ask(f"fleet {L8} --gpu mi300x --request-rate 8 --workload rag --ttft 3000 --tpot 40 --disaggregated")
    yield ask(f"fleet {L8} --gpu h100 --gpu l40s --request-rate 8 --tpot 60 --minimise gpus --rent node --format json")
    yield ask(f"fleet {L8} --gpu h100 --request-rate 9 --e2el 9000 --minimise watts --headroom 0.5 --n-plus 0")
    yield ask(f"fleet {L8} --gpu h100 --request-rate 200 --tpot 40 --stock h100=1 --price h100=2")
    yield ask(f"fleet {L8} --gpu h100 --trace t.csv --ttft 2000 --tpot 50 --format json", t_DOT_csv=TRACE)


def _check() -> Iterator[Entry]:
    for output in FORMATS:
        yield ask(f"check --gpu h100 --format {output} -- vllm serve {L2} --max-num-seqs 64")
    for gpu, line in (
        ("h100", f"{L2} --max-model-len 8192"),
        ("mi300x", f"{L70} -tp 2 --kv-cache-dtype fp8 --enable-prefix-caching"),
        ("mi300x-cpx", f"{L8} --tensor-parallel-size 8"),
        ("h200", "deepseek-ai/DeepSeek-V3 -tp 8 --enable-expert-parallel --trust-remote-code"),
        ("l40s", f"{L8} --unknown-flag 3 --max-num-seqs"),
        ("rtx-4090", f"{L70}"),
        ("b200", f"nvidia/Llama-3.3-70B-Instruct-FP4 {NGRAM}"),
    ):
        yield ask(f"check --gpu {gpu} --format json -- vllm serve {line}")
    yield ask(f"check --gpu h100 --engine-version 0.6.3 -- vllm serve {L8} --num-scheduler-steps 8")
    yield ask(f"check --gpu h100 --as-model {L8} --max-concurrency 4 --goal max-throughput -- vllm serve /models/mine")
    yield ask("check serve.sh --gpu h100 --format json", serve_DOT_sh=SCRIPT)
    yield ask("check - --gpu mi300x --random-input-len 256 --random-output-len 64", stdin=SCRIPT)


def _measure(folder: str, factor: float) -> str:
    return shlex.join(["python", "-c", MEASURED, folder, str(factor)])


def _folders() -> Iterator[Entry]:
    """What recommend -o writes, and all that reads it."""
    small = "--random-input-len 512 --random-output-len 64 --max-concurrency 4"
    whole = f"recommend {L8} --gpu mi300x -o plan"
    yield ask(
        whole, "report plan", "report plan --format svg --chart pareto",
        "report plan --format svg --chart memory -o m.svg --width 400",
        "check plan", "check plan/launch.sh --gpu h100 --format json", "validate plan", whole, f"{whole} --force",
    )  # fmt: skip
    yield ask(
        f"recommend {L8} --gpu h100 --gpu b200 {small} -o plans", "report plans",
        "report plans/h100-sxm --format svg --chart operators", "check plans/b200-sxm --format json",
    )  # fmt: skip
    for gpu in ("h100 --gpus 1", "mi300x-cpx --gpus 1", "mi355x"):
        asked = f"recommend {L8} --gpu {gpu} {small} -o plan"
        for factor in (1.02, 1.9):
            steps = [asked, _measure("plan", factor), "validate plan", "validate plan --format json"]
            yield ask(*steps, "calibrate plan -o machine.toml", "report plan")
    yield ask(
        f"recommend {L70} --gpu h100 --tpot 30 --request-rate 6 -o p", _measure("p", 1.2), "validate p", "check p"
    )
    targets = [f"deploy p --target {target}" for target in ("compose", "kubernetes", "slurm")]
    folders = ["deploy p --target lws -o lws"]
    options = (
        "deploy p --target compose --replicas 2 --port 9000 --host 0.0.0.0 --name mine -o c2",
        "deploy p --target kubernetes --replicas 3 --namespace ml --hf-secret s --cache pvc --gpu-resource a.com/gpu"
        " --toleration a=b:NoSchedule --node-selector x=y --start-timeout 900",
        "deploy p --target slurm --container apptainer",
        "deploy p --target kubernetes --cache claim/models --namespace ml",
        "deploy p --target compose --target kubernetes -o both",
        "deploy p --target compose --target kubernetes",
        "deploy p --target compose -o both",
        "deploy p --target lws --nodes 2 -o lws2",
        "deploy p --target compose --replicas 0",
        "deploy p --target compose --replicas 9 --name 'no name'",
        "deploy p --target nomad",
    )
    for asked in (
        f"{L70} --gpu h100",
        f"{L8} --gpu mi300x-cpx",
        f"{L8} --gpu mi300x --goal min-latency",
        f"{L8} --gpu h100-mig-3g.40gb",
        f"{L8} --gpu cpu --max-concurrency 2",
    ):
        yield ask(f"recommend {asked} -o p", *targets, *folders, *options)
    for asked in (
        f"{L70} --gpu mi355x --goal max-throughput",
        f"{L70} --gpu b200 --goal min-latency --pick 2",
        "deepseek-ai/DeepSeek-R1 --gpu mi300x",
        "openai/gpt-oss-120b --gpu h100",
        f"{L8} --gpu a100-mig-2g.20gb --max-concurrency 8",
        f"{L8} --gpu l40s --engine-version 0.9.1 {NGRAM} --speculative-acceptance-rate 0.6",
    ):
        yield ask(f"recommend {asked} -o p")


def _workflows() -> Iterator[Entry]:
    for output in FORMATS:
        yield ask(f"workflow list --format {output}")
    for name in WORKFLOWS:
        yield ask(f"workflow {name} -o out --format json")
    yield ask(f"workflow latency {L8} --gpu h100 --random-input-len 64 --random-output-len 32 -o out")
    yield ask(f"workflow online {L8} --gpu b200 --engine-version 0.14.0 --max-concurrency 4 -o out")
    yield ask(f"workflow speculative {L70} --draft meta-llama/Llama-3.2-1B-Instruct --gpu mi355x -o out")
    yield ask(f"workflow cpx {L8} --gpu mi300x-cpx", f"workflow cpx {L70} --gpu h100 -o out")
    yield ask("workflow latency -o out", "check out", "deploy out --target compose", "report out")


def _measured() -> Iterator[Entry]:
    for output in FORMATS:
        yield ask(f"evaluate runs.csv --format {output}", runs_DOT_csv=RUNS)
        yield ask(f"calibrate own.csv -o machine.toml --format {output}", own_DOT_csv=OWN)
    yield ask("evaluate runs.csv --chart all.svg --calibration none", runs_DOT_csv=RUNS)
    yield ask(
        "calibrate own.csv", f"predict serve {L8} --gpu mi300x --engine-version 0.11.0 {SHORT}",
        f"predict latency {L8} --gpu mi300x --engine-version 0.11.0 --calibration none --format json",
        "calibrate more.csv --format json", "calibrate", "calibrate own.csv --fresh -o machine.toml",
        "evaluate own.csv --calibration machine.toml", f"recommend {L8} --gpu mi300x --format json",
        own_DOT_csv=OWN, more_DOT_csv=MORE,
    )  # fmt: skip
    flags = f"--gpu h100 --model {L8} --engine-version 0.11.0 --input-len 256 --output-len 64"
    latency = json.dumps({"avg_latency": 0.61, "latencies": [0.61, 0.61], "percentiles": {"50": 0.61}})
    yield ask(f"calibrate r.json {flags} --batch-size 4 -o m.toml", "calibrate r.json", r_DOT_json=latency)
    offline = {"elapsed_time": 4.0, "num_requests": 100, "total_num_tokens": 32000, "requests_per_second": 25.0}
    thrown = json.dumps({**offline, "tokens_per_second": 8000.0})
    yield ask(f"calibrate r.json {flags} -o m.toml", r_DOT_json=thrown)


def _defaults() -> Iterator[Entry]:
    fit = '[fit]\ngpu = ["mi300x", "h100"]\nmax-model-len = 4096\n'
    serve = '[predict.serve]\ngpu = "h100"\nrandom-input-len = 512\nmax-concurrency = 4\nnum-prompts = 8\n'
    rest = f'[models.show]\nmodel = ["{L8}"]\nformat = "json"\n[recommend]\nmodel = "{L8}"\ngpu = "h100"\n'
    yield ask(
        f"fit {L8}", f"fit {L8} --gpu l4", f"predict serve {L8}", "models show", "recommend", "hardware list --help",
        planner_DOT_toml=fit + serve + rest,
    )  # fmt: skip
    eager = '[fit]\ngpu = "h100"\nformat = "json"\nenforce_eager = true\nno-enable-prefix-caching = true\n'
    yield ask(f"fit {L8}", f"fit {L8} --enable-prefix-caching", planner_DOT_toml=eager)


def _bad() -> Iterator[Entry]:
    for line in REFUSED:
        yield ask(line)
    yield from BROKEN


def _library() -> Iterator[Entry]:
    for snippet in SNIPPETS:
        yield ask(shlex.join(["python", "-c", LIBRARY + snippet]), runs_DOT_csv=RUNS, own_DOT_csv=OWN)


# --- recording -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where an entry runs."""

    root: Path
    checkout: Path
    run: Callable[[], object]

    @property
    def work(self) -> Path:
        """The working directory of the commands."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        """Where a user's own files are."""
        return self.root / "home"

    def environment(self) -> dict[str, str]:
        """Nothing of the person who records."""
        home = str(self.home)
        return BASE | {
            "HOME": home,
            "PATH": str(self.work / "bin"),
            "HF_HOME": f"{home}/hf",
            "TMPDIR": f"{home}/tmp",
            **{f"XDG_{name}_HOME": f"{home}/{name.lower()}" for name in ("DATA", "CONFIG", "CACHE", "STATE")},
        }

    def mask(self, text: str) -> str:
        """Paths of this machine by names that every machine has."""
        names = {self.work: "<work>", self.home: "<home>", self.checkout: "<checkout>", Path(sys.prefix): "<python>"}
        for path in sorted(names, key=lambda path: -len(str(path))):
            text = text.replace(str(path), names[path])
        return text


BASE = {
    "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "__all__",
}  # fmt: skip


def record(folder: Path, checkout: Path, only: str, jobs: int) -> int:
    """Run the list and write what came out; gives the exit status."""
    chosen = [entry for entry in entries() if only in entry.title]
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.txt"):
        old.unlink()
    started = time.monotonic()
    # always as long a path: tables are wrapped by the length of what they hold
    root = Path(tempfile.mkdtemp(prefix="planner-outputs-", dir="/tmp"))
    try:
        run = _preload(checkout, root)
        # those with several commands first: they take longest
        took = _run_all(sorted(chosen, key=lambda e: -len(e.steps)), folder.resolve(), root, checkout, run, jobs)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(f"{len(chosen)} entries, {sum(len(e.steps) for e in chosen)} commands, {time.monotonic() - started:.0f} s")
    for entry in chosen:
        text = (folder / f"{entry.name}.txt").read_text() if (folder / f"{entry.name}.txt").exists() else ""
        for what in ("exit 70", "time limit"):
            if f"\n--- {what}\n" in text:
                print(f"{what}: {entry.name}")
        if not text:
            print(f"nothing recorded: {entry.name}")
        if took[entry.name] > SLOW_S * len(entry.steps):
            print(f"{took[entry.name]:.0f} s: {entry.name}")
    return 0


def _preload(checkout: Path, root: Path) -> Callable[[], object]:
    """The entry point of a checkout, with everything imported that its commands could want."""
    script = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["scripts"]["planner"]
    module, _, function = script.partition(":")
    os.environ.clear()
    os.environ.update(BASE | {"HOME": str(root), "HF_HOME": str(root / "hf")})
    time.tzset()
    sys.path[0] = str(checkout)  # instead of the folder of this file
    package = importlib.import_module(module.partition(".")[0])
    if not Path(str(package.__file__)).resolve().is_relative_to(checkout.resolve()):
        raise SystemExit(f"{package.__file__} is not of {checkout}")
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(found.name)
    run: Callable[[], object] = getattr(importlib.import_module(module), function)
    gc.collect()
    gc.freeze()
    return run


def _run_all(
    chosen: list[Entry], folder: Path, root: Path, checkout: Path, run: Callable[[], object], jobs: int
) -> dict[str, float]:
    """Each entry in a child of this process, so many at once; gives the seconds that each took."""
    waiting, running, took = list(chosen), dict[int, tuple[Entry, float]](), dict[str, float]()
    while waiting or running:
        while waiting and len(running) < jobs:
            entry = waiting.pop(0)
            place = Place(root / hashlib.sha256(entry.name.encode()).hexdigest()[:8], checkout, run)
            pid = _fork(partial(_run_entry, entry, place, folder))
            running[pid] = entry, time.monotonic()
        pid, status = os.wait()
        entry, since = running.pop(pid)
        took[entry.name] = time.monotonic() - since
        if status:
            print(f"{entry.name}: could not be recorded", file=sys.stderr)
    return took


def _fork(work: Callable[[], int]) -> int:
    """Run ``work`` in a child and end it with the status that it gives."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    status = 1
    try:
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_entry(entry: Entry, place: Place, folder: Path) -> int:
    for path in (place.work / "bin", place.home / "tmp"):
        path.mkdir(parents=True)
    for name, content in entry.files.items():
        path = place.work / name.replace("nvidia_smi", "nvidia-smi")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if path.parent.name == "bin":
            path.chmod(0o755)
    (place.root / "stdin").write_text(entry.stdin)
    parts = [f"=== {entry.title}\n"]
    seen = _files(place)
    for step in entry.steps:
        status = _run_step(step, place)
        parts.append(f"=== $ {spelled(step)}\n--- {status}\n")
        for stream in ("stdout", "stderr"):
            said = (place.root / stream).read_bytes()
            grouped = stream == "stderr" or not ("csv" in step or said[:1] in (b"{", b"["))
            parts.append(_section(stream, said, place, grouped))
        now = _files(place)
        for name in sorted(now):
            if now[name] != seen.get(name):
                parts.append(_section(f"file {name}", now[name], place, Path(name).suffix in PROSE))
        parts += [f"--- gone {name}\n" for name in sorted(seen.keys() - now.keys())]
        seen = now
    (folder / f"{entry.name}.txt").write_text("".join(parts))
    shutil.rmtree(place.root)
    return 0


def _run_step(step: tuple[str, ...], place: Place) -> str:
    """Run one command to its end; gives its exit status in words."""

    def work() -> int:
        signal.alarm(LIMIT_S)
        os.chdir(place.work)
        for number, (name, flags) in enumerate(
            (("stdin", os.O_RDONLY), ("stdout", os.O_WRONLY), ("stderr", os.O_WRONLY))
        ):
            opened = os.open(place.root / name, flags | (os.O_CREAT | os.O_TRUNC if number else 0), 0o600)
            os.dup2(opened, number)
            os.close(opened)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(place.environment())
        return _call(step, place)

    _, status = os.waitpid(_fork(work), 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return "time limit"
    return f"exit {code}" if code >= 0 else f"killed by signal {-code}"


def _call(step: tuple[str, ...], place: Place) -> int:
    """A command in this very process; gives its exit status."""
    try:
        if step[:2] == ("python", "-m"):
            sys.argv = [step[2], *step[3:]]
            runpy.run_module(step[2], run_name="__main__", alter_sys=True)
        elif step[:2] == ("python", "-c"):
            sys.argv = ["-c", *step[3:]]
            exec(compile(step[2], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = list(step)
            place.run()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _files(place: Place) -> dict[str, bytes]:
    """Every file of the working directory and of the user's own folders; caches do not count."""
    found = {}
    for top in (place.work, place.home):
        for path in top.rglob("*"):
            name = path.relative_to(place.root).as_posix()
            if path.is_file() and not name.startswith(("home/cache", "home/hf", "home/tmp")):
                found[name.removeprefix("work/")] = path.read_bytes()
    return found


PROSE = (".md", ".html", ".svg", ".txt")
#: What looks like a number and is none: digests. And the day on which a command ran.
DIGEST = r"(?P<digest>\b(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,}\b)"
PLAIN = re.compile(rf"{DIGEST}|(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\d|\.\d)")
GROUPED = re.compile(
    rf"{DIGEST}|(?<![\w.])(?<!\d,)\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?(?!\d|\.\d|,\d)"
    r"|(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\d|\.\d)"
)
TODAY = re.compile(r"(fitted_on = \"\d+ runs?, )\d{4}-\d\d-\d\d")


def rounded(text: str, *, grouped: bool) -> str:
    """``text`` with every number of more than four digits rounded to four; ``grouped``: thousands may have commas.

    >>> rounded("0.27.1 takes 1,020,976 B in 1.23456 s", grouped=True)
    '0.27.1 takes 1.021e+06 B in 1.235 s'
    """

    def four(match: re.Match[str]) -> str:
        found = match[0]
        digits = re.sub(r"[eE].*|\D", "", found).lstrip("0")
        if match["digest"] or len(digits) <= 4:
            return found
        short = f"{float(found.replace(',', '')):.4g}"
        return short if "." not in found or re.search(r"[.en]", short) else f"{short}.0"

    return (GROUPED if grouped else PLAIN).sub(four, text)


def _section(name: str, content: bytes, place: Place, grouped: bool) -> str:
    """A heading and the lines of ``content``, indented, so that no line can look like a heading."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return f"--- {name}\n    binary, sha256 {hashlib.sha256(content).hexdigest()}\n"
    text = TODAY.sub(r"\1<today>", rounded(place.mask(text), grouped=grouped))
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif text:
        lines[-1] += " (no newline at the end)"
    return f"--- {name}\n" + "".join(f"    {line}\n" for line in lines)


# --- comparing -----------------------------------------------------------------------------------------------------


def compare(first: Path, second: Path, *, summary: bool, ignore_prose: bool, lines: int) -> int:
    """Print what differs between two recordings; gives the exit status."""
    names = sorted({path.name for folder in (first, second) for path in folder.glob("*.txt")})
    differing = 0
    for name in names:
        texts = [(folder / name).read_text() if (folder / name).exists() else None for folder in (first, second)]
        if None in texts:
            differing += 1
            print(f"only in {second if texts[0] is None else first}: {name}")
            continue
        one, two = ((_without_prose(text) if ignore_prose else text).splitlines() for text in texts if text is not None)
        if one == two:
            continue
        differing += 1
        print(name if summary else f"\n##### {name}\n{one[0]}")
        if not summary:
            found = list(difflib.unified_diff(one, two, str(first), str(second), lineterm="", n=2))
            print("\n".join(found[:lines]))
            if len(found) > lines:
                print(f"... {len(found) - lines} more lines")
    print(f"{differing} of {len(names)} differ")
    return int(differing > 0 or not names)


def _without_prose(record: str) -> str:
    """What programs would see of a recorded entry."""
    parts: list[str] = []
    command = ""
    for heading, body in _sections(record):
        if heading.startswith("=== "):
            command = heading
            parts.append(heading)
        elif heading == "--- stdout":
            printed = ".csv" if "csv" in command.split() else ".json"
            parts += [heading, *_for_programs(body, ".yaml" if "planner deploy" in command else printed)]
        elif heading != "--- stderr":
            parts += [heading, *_for_programs(body, Path(heading).suffix)]
    return "\n".join(parts) + "\n"


def _sections(record: str) -> Iterator[tuple[str, str]]:
    heading, body = "", list[str]()
    for line in record.split("\n"):
        if line.startswith(("=== ", "--- ")):
            if heading:
                yield heading, "\n".join(body)
            heading, body = line, []
        else:
            body.append(line[4:])
    yield heading, "\n".join(body)


def _for_programs(body: str, suffix: str) -> list[str]:
    """The lines of a file or of a stream that mean something to a program; none of what is for people."""
    if suffix == ".json":
        with suppress(ValueError):
            return json.dumps(_facts_of(json.loads(body)), indent=1, sort_keys=True).split("\n")
        return [_facts_line(line) for line in body.split("\n") if line.startswith(("{", "["))]
    if suffix == ".csv":
        rows = csv.reader(io.StringIO(body))
        return [",".join("..." if " " in cell else cell for cell in row) for row in rows]
    if suffix in PROSE:
        return []
    return [line for line in map(_code_of, body.split("\n")) if line.strip()]


def _facts_line(line: str) -> str:
    try:
        return json.dumps(_facts_of(json.loads(line)), sort_keys=True)
    except ValueError:
        return ""


def _facts_of(value: Any) -> Any:
    """Keys, numbers, booleans, words and command lines; sentences are left out."""
    if isinstance(value, dict):
        return {key: _facts_of(found) for key, found in value.items()}
    if isinstance(value, list):
        return [_facts_of(found) for found in value if not _is_prose(found)]
    return "..." if _is_prose(value) else value


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and " " in value.strip() and not value.startswith(("vllm ", "planner ", "--"))


def _code_of(line: str) -> str:
    """A line of a script or of YAML without its comment, and without what it tells its user."""
    if line.lstrip().startswith("#") and not line.startswith("#!"):
        return ""
    line = re.sub(r"\s+# .*$", "", line)
    if re.match(r"\s*(echo|ok|note|warn|fail|refuse)\b", line) or ">&2" in line:
        line = re.sub(r"\"[^\"]* [^\"]*\"", '"..."', line)
    return line


# --- the command line ----------------------------------------------------------------------------------------------


def main() -> int:
    """Record or compare; gives the exit status."""
    parser = argparse.ArgumentParser(description="Record what planner's commands print and write, and compare.")
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record", help="run the list")
    recording.add_argument("folder", type=Path, metavar="DIR")
    recording.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parent.parent)
    recording.add_argument("--only", default="", metavar="SUBSTRING", help="commands that contain it")
    recording.add_argument("-j", "--jobs", type=int, default=2)
    comparing = actions.add_parser("compare", help="show what differs")
    comparing.add_argument("folders", type=Path, nargs=2, metavar="DIR")
    comparing.add_argument("--summary", action="store_true", help="only the names of what differs")
    comparing.add_argument("--ignore-prose", action="store_true", help="only what programs read")
    comparing.add_argument("--lines", type=int, default=40, help="lines of each difference")
    given = parser.parse_args()
    if given.action == "record":
        return record(given.folder, given.checkout.resolve(), given.only, given.jobs)
    return compare(*given.folders, summary=given.summary, ignore_prose=given.ignore_prose, lines=given.lines)


if __name__ == "__main__":
    sys.exit(main())
