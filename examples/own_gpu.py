"""A GPU that has no profile: start from the file of a similar one. Here an H100 with other memory and power.

Every number has a unit, a source and a kind. Without runs of its own the GPU takes the efficiencies of its
architecture.
"""

import tomllib
from pathlib import Path

from planner import Load, Serving, load_gpu

similar = load_gpu("h100-sxm")
facts = similar.model_dump(mode="json", exclude_none=True)
profile = f"""
name = "My H100 with 96 GB"
vendor = "nvidia"
architecture = "sm_90"
platform = "cuda"
gpus_per_node = 4

[memory]
engine_visible = {{ value = 94.5, unit = "GiB", source = "my-datasheet", kind = "spec" }}
bandwidth = {{ value = 4.0, unit = "TB/s", source = "my-datasheet", kind = "spec" }}

[compute]
bf16 = {{ value = {facts["compute"]["bf16"]["value"]}, unit = "TFLOP/s", source = "my-datasheet", kind = "spec" }}
fp16 = {{ value = {facts["compute"]["fp16"]["value"]}, unit = "TFLOP/s", source = "my-datasheet", kind = "spec" }}
fp8 = {{ value = {facts["compute"]["fp8"]["value"]}, unit = "TFLOP/s", source = "my-datasheet", kind = "spec" }}

[interconnect]
kind = "nvswitch"
bandwidth = {{ value = 450, unit = "GB/s", source = "my-datasheet", kind = "spec" }}

[sources.my-datasheet]
title = "Data sheet of my machine"
retrieved = 2026-11-25
"""
tomllib.loads(profile)  # a slip in the text is easier to read here
Path("my_h100.toml").write_text(profile)

load = Load.closed_loop(32, input_len=1024, output_len=256, num_prompts=160)
for gpu in ("h100-sxm", "my_h100.toml"):
    result = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu=gpu, engine_version="0.27.1").predict(load).result
    print(f"{gpu:<14} {result['output_throughput']:.0f} output tokens/s, TPOT {result['mean_tpot_ms']:.1f} ms")
