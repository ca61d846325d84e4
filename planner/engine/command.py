"""Command lines in the spelling of one vLLM version. A line names every setting that was simulated; an option that the
version lacks is refused.

>>> from planner.engine.version import parse_version
>>> from planner.workload import Load
>>> load = Load(input_len=128, output_len=32, num_prompts=8, max_concurrency=4)
>>> bench_serve_argv(load, "m", parse_version("0.7.3"))[:4]
['python3', '/app/vllm/benchmarks/benchmark_serving.py', '--backend', 'vllm']
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isinf
from typing import Any

from planner.engine.flags import VllmCommand, command_status, flag_status, spelled, takes_value
from planner.engine.resolution import LONG_NAMES, speculative_options
from planner.engine.settings import SETTINGS, EngineConfig, SpeculativeConfig
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.workload import Load

LOOPBACK = "127.0.0.1"  #: address of a server on its own machine
EVERYWHERE = "0.0.0.0"  # noqa: S104  (in a container, whose port is published on LOOPBACK; or where the user asks)
Value = str | int | float | bool | Mapping[str, object] | Sequence[str] | None
_ALWAYS = ("tensor_parallel_size", "kv_cache_dtype")  #: settings that a line names even where they are the default
#: Folders of vLLM's benchmark scripts in images of AMD and of the vLLM project.
BENCHMARKS = {"rocm": "/app/vllm/benchmarks", "cuda": "/vllm-workspace/benchmarks", "cpu": "benchmarks"}
_OF_TOKENIZER = {"--trust-remote-code": False, "--tokenizer-mode": True}  #: options, and if they take a value
_SCRIPTS: dict[VllmCommand, VllmCommand] = {
    "bench serve": "benchmark_serving.py",
    "bench throughput": "benchmark_throughput.py",
    "bench latency": "benchmark_latency.py",
}


def serve_argv(
    config: EngineConfig, model_ref: str, *, host: str = LOOPBACK, port: int | str = 8000,
    extra: Mapping[str, Value] | None = None,
) -> list[str]:  # fmt: skip
    """``vllm serve`` with exactly the settings of ``config``. ``extra``: further options; False for a ``--no-`` form, a
    mapping for JSON. Raises IllegalPlanError for an unknown option, InputError for one that the settings decide."""
    line = _Line(["vllm", "serve", model_ref], config.version, "serve")
    line.add_all({"--host": host, "--port": port})
    _add_engine(line, config)
    # requests are logged one by one, unless told otherwise, before 0.10.1
    line.add("--disable-log-requests" if config.version.release < (0, 10, 1) else "--no-enable-log-requests")
    line.add_extra(extra)
    return line.words


def head_node_words(settings: Any, nodes: int, version: EngineVersion) -> tuple[str, ...]:
    """Options that the first of several nodes needs beside ``serve_argv``; HEAD stands for its address."""
    if nodes == 1:
        return ()
    if settings.data_parallel_size > 1:
        local = str(settings.data_parallel_size // nodes)
        return ("--data-parallel-size-local", local, "--data-parallel-address", "HEAD")
    if flag_status(version, "--nnodes"):
        return ("--nnodes", str(nodes), "--node-rank", "0", "--master-addr", "HEAD")
    return ("--distributed-executor-backend", "ray")


def bench_serve_argv(
    workload: Load, model_ref: str, version: EngineVersion, *, port: int = 8000,
    percentiles: Sequence[int] = (50, 90, 99), platform: str = "rocm", priority: int = 0, serving: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """``vllm bench serve`` (``benchmark_serving.py`` before 0.8.0) that sends ``workload``; ``priority``: 0.11.1 on.
    ``serving``: the server's line; the client loads the tokenizer as that does."""
    line = _bench("bench serve", version, platform)
    line.add("--backend" if "--backend" in line else "--endpoint-type", bench_backend(version))
    line.add_all({
        "--host": LOOPBACK, "--port": port, "--model": model_ref, "--dataset-name": "random",
        "--random-input-len": workload.input_len, "--random-output-len": workload.output_len,
        "--random-range-ratio": _range_ratio(workload, line), "--random-prefix-len": workload.prefix_len or None,
        "--num-prompts": workload.num_prompts,
        "--request-rate": "inf" if isinf(workload.request_rate) else workload.request_rate,
        "--burstiness": workload.burstiness if workload.burstiness != 1 else None,
        "--max-concurrency": workload.max_concurrency,
        "--extra-body": json.dumps({"priority": priority}) if priority and "--extra-body" in line else None,
    })  # fmt: skip
    line.add("--ignore-eos")
    line.add_all({
        "--temperature": 0 if "--temperature" in line else None,  # greedy without saying so before
        "--seed": workload.seed, "--percentile-metrics": "ttft,tpot,itl,e2el",
        "--metric-percentiles": ",".join(map(str, percentiles)),
    })  # fmt: skip
    for word, value in pairwise((*serving, "")):
        if word in _OF_TOKENIZER and word in line:
            line.add(word, value if _OF_TOKENIZER[word] else None)
    return line.words


def bench_backend(version: EngineVersion) -> str:
    """The serving benchmark's name for the API of vLLM's own server; its result file has it too."""
    named = command_status(version, "bench serve") and not flag_status(version, "--backend", "bench serve")
    return "openai-comp" if named and version.release < (0, 9, 1) else "vllm"


def bench_throughput_argv(
    config: EngineConfig, workload: Load, model_ref: str, *, platform: str = "rocm",
    extra: Mapping[str, Value] | None = None,
) -> list[str]:  # fmt: skip
    """``vllm bench throughput`` (``benchmark_throughput.py`` before 0.8.5): all prompts at once, offline."""
    line = _bench("bench throughput", config.version, platform)
    line.add("--model", model_ref)
    if "--dataset-name" in line:
        line.add("--dataset-name", "random")
        line.add("--random-range-ratio", _range_ratio(workload, line))
    # from 0.14.0 on --random-input-len wins, by its default, over --input-len
    prefix = "--random-" if "--random-input-len" in line else "--"
    shared = "--random-prefix-len" if "--random-prefix-len" in line else "--prefix-len"
    line.add_all({
        f"{prefix}input-len": workload.input_len, f"{prefix}output-len": workload.output_len,
        shared: workload.prefix_len or None, "--num-prompts": workload.num_prompts, "--seed": workload.seed,
    })  # fmt: skip
    _add_engine(line, config)
    line.add_extra(extra)
    return line.words


def bench_latency_argv(
    config: EngineConfig, model_ref: str, *, input_len: int, output_len: int, batch_size: int,
    num_iters_warmup: int = 3, num_iters: int = 5, platform: str = "rocm", extra: Mapping[str, Value] | None = None,
) -> list[str]:  # fmt: skip
    """``vllm bench latency`` (``benchmark_latency.py`` before 0.8.5): one batch from start to end, repeated."""
    line = _bench("bench latency", config.version, platform)
    line.add_all({
        "--model": model_ref, "--input-len": input_len, "--output-len": output_len, "--batch-size": batch_size,
        "--num-iters-warmup": num_iters_warmup, "--num-iters": num_iters,
    })  # fmt: skip
    _add_engine(line, config)
    line.add_extra(extra)
    return line.words


def _add_engine(line: "_Line", config: EngineConfig) -> None:
    values = _values(config, line)
    for row in SETTINGS.values():
        value = values.get(row.name)
        if row.ours or value is None or (value == row.default and row.name not in _ALWAYS):
            continue
        if isinstance(value, SpeculativeConfig):
            for flag, text in speculative_options(value, config.version):
                line.add(flag, text)
        elif isinstance(value, bool):
            line.switch(row.flag, on=value)
        else:
            line.add(row.flag, value)


def _values(config: EngineConfig, line: "_Line") -> dict[str, Any]:
    lora, cached = config.lora, config.kv_cache_dtype
    values = {name: getattr(lora if lora and hasattr(lora, name) else config, name, None) for name in SETTINGS}
    values |= {
        "dtype": LONG_NAMES[config.dtype],
        "kv_cache_dtype": config.kv_cache_dtype_flag
        or ("auto" if cached == config.dtype else LONG_NAMES.get(cached, cached)),
        "block_size": config.block_size if config.block_size != 16 else None,
        "enable_lora": lora is not None,
        "cpu_offload_gb": config.cpu_offload_gb or None,
    }
    if config.cpu_kvcache_space:
        values["gpu_memory_utilization"] = None  # it has no effect
    # what may be on or off by default is named where the version has the switch for it
    if not config.enable_prefix_caching and "--no-enable-prefix-caching" not in line:
        values["enable_prefix_caching"] = None
    if config.engine == "V1" and config.enable_chunked_prefill:  # V1 chunks unless told otherwise
        values["enable_chunked_prefill"] = None
    if not config.async_scheduling and "--no-async-scheduling" not in line:
        values["async_scheduling"] = None
    return values


def _range_ratio(workload: Load, line: "_Line") -> float:
    """``--random-range-ratio``: half the width of the lengths around L, or in older versions their lower end r L:
    ``RandomDataset.sample`` changed in 0.8.4 for the scripts, in 0.9.1 for ``vllm bench serve``."""
    changed = (0, 9, 1) if line.command == "bench serve" else (0, 8, 4)
    symmetric = line.version.release >= changed
    if workload.length_distribution == "symmetric":
        fixed, possible = workload.range_ratio == 0, symmetric
    else:
        fixed, possible = workload.range_ratio == 1, workload.length_distribution == "below" and not symmetric
    if fixed:
        return 0.0 if symmetric else 1.0
    if not possible:
        cause = f"{line.command} of vLLM {line.version} cannot draw lengths that are {workload.length_distribution}"
        other = "before 0.9.1 for lengths below a maximum" if symmetric else "of 0.9.1 or later"
        raise IllegalPlanError(cause, hint=f"add --random-range-ratio 0, or choose an --engine-version {other}")
    return workload.range_ratio


def program_argv(command: VllmCommand, version: EngineVersion, platform: str) -> tuple[list[str], VllmCommand]:
    newer = next((new for new, script in _SCRIPTS.items() if script == command), command)
    if newer == "serve" or command_status(version, newer):
        return ["vllm", *newer.split()], newer
    script = _SCRIPTS[newer]
    return ["python3", f"{BENCHMARKS[platform]}/{script}"], script


def _bench(command: VllmCommand, version: EngineVersion, platform: str) -> "_Line":
    words, chosen = program_argv(command, version, platform)
    return _Line(words, version, chosen)


class _Line:
    def __init__(self, start: list[str], version: EngineVersion, command: VllmCommand) -> None:
        self.words = start
        self.version = version
        self.command = command

    def __contains__(self, flag: str) -> bool:
        return bool(flag_status(self.version, flag, self.command))

    def add(self, flag: str, value: str | int | float | None = None) -> None:
        flag_status(self.version, flag, self.command).require(f"{flag}: {self.command} of vLLM {self.version}")
        self.words += [flag] if value is None else [flag, str(value)]

    def add_all(self, options: Mapping[str, str | int | float | None]) -> None:
        """Append options in this order, without those of None."""
        for flag, value in options.items():
            if value is not None:
                self.add(flag, value)

    def switch(self, flag: str, *, on: bool) -> None:
        if on:
            self.add(flag)
        elif f"--no-{flag[2:]}" in self or takes_value(self.version, flag) is False:
            self.add(f"--no-{flag[2:]}")
        else:
            self.add(flag)
            self.words[-1] += "=False"

    def add_extra(self, extra: Mapping[str, Value] | None) -> None:
        for name, value in (extra or {}).items():
            flag = spelled(name if name.startswith("-") else f"--{name}")
            if flag in self.words:
                raise InputError(f"{flag} is decided by the settings already", hint="leave it out of the extra options")
            if isinstance(value, bool):
                self.switch(flag, on=value)
            elif isinstance(value, Mapping):
                self.add(flag, json.dumps(value, separators=(",", ":")))
            elif isinstance(value, Sequence) and not isinstance(value, str):
                self.add(flag)
                self.words += value
            elif value is not None:
                self.add(flag, value)
