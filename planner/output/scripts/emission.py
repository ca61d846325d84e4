"""What the templates may name. Whatever has to be decided or computed is decided here, before they run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath
from typing import Any

from planner.engine import CPU_KVCACHE_SPACE
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.planning import Plan, PlanFile
from planner.units import GB, MIB

#: Everything that any plan may write: what a new plan does not need, an old one may have left.
ALL_FILES = (
    "plan.json", "RUNBOOK.md", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh",
    "partition.sh", "recommendation.json", "report.html",
    # of workflows
    "WORKFLOW.md", "pull_image.sh", "build_image.sh", "build_engine.sh", "shell.sh", "download.sh", "quantize.sh",
    "request.sh", "latency.sh", "ttft.sh", "throughput.sh", "speculative.sh", "quick_reduce.sh", "aiter.sh", "sweep.sh",
    "guidellm.sh", "instances.sh", "nginx.conf", "mad.sh", "compare.sh", "COMPARISON.md",
)  # fmt: skip
PORT = 8000  #: vLLM's own
MODEL_CACHE = "/huggingface"  #: where the host's HF_HOME appears in the container
RESULTS = "/results"  #: where the folder ``results`` appears in the container
LM_EVAL_REQUIREMENT = "lm-eval[api]==0.4.9.1"  #: the release that the NVIDIA recipe pins
ACCURACY_CONCURRENCY = 128  #: of the NVIDIA recipe
#: Five worked examples of gsm8k, the question and 256 tokens of answer are about 1300 tokens; with some room
ACCURACY_MAX_MODEL_LEN = 1536
#: Requests that nothing counts: they compile what a first batch of these lengths needs.
WARM_UP_PROMPTS, WARM_UP_OUTPUT_LEN = 8, 64
#: Seeds are this far apart, so that no client sends prompts which a prefix cache has seen from another.
SEED_STEP = 1000
OLDEST_CUDA_DRIVER = 575  #: of the NVIDIA recipe
#: The same GPU shows a few MiB more or less from driver to driver
MEMORY_TOLERANCE = 0.01
#: How ``scripts.workflows`` says where such an image comes from.
_BUILT_BY = re.compile(r"^built .*\bby (build_(?:image|engine)\.sh)$")


@dataclass(frozen=True, slots=True)
class Emission:
    """A plan and what is said about it in the scripts."""

    file: PlanFile
    profile: GpuProfile
    checkpoint_bytes: int
    predicted_lines: tuple[str, ...]
    expected_accuracy: tuple[str, ...] = ()


def container_name(file: PlanFile) -> str:
    """Name of the container, the same for all scripts of one plan."""
    return f"planner-{file.plan.digest}"


def result_name(file: PlanFile) -> str:
    """Name of the benchmark's result file under ``results/``."""
    return f"serve-{file.plan.digest}.json"


def script_names(emission: Emission) -> tuple[str, ...]:
    """The files that this plan needs beside ``plan.json``, in the order in which they are run."""
    partition = ("partition.sh",) if emission.profile.partition else ()
    return (*partition, "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", "RUNBOOK.md")


def template_names(emission: Emission) -> dict[str, Any]:
    """Every name that a template may use.

    Raises IllegalPlanError for a plan whose server would not be reachable, or from elsewhere than this machine.
    """
    file, plan = emission.file, emission.file.plan
    check_exposure(plan)
    return {
        "plan": plan,
        "goal": file.goal,
        "command": file.command,
        "planner_version": file.planner_version,
        "digest": plan.digest,
        "load": describe_load(plan),
        "predicted_lines": emission.predicted_lines,
        "predicted_text": "\n".join(emission.predicted_lines),
        "gpu_name": emission.profile.name,
        "container": container_name(file),
        "port": PORT,
        "build_script": build_script(plan),
        "image_command": f"./{build_script(plan)}" if build_script(plan) else f"docker pull {shlex.quote(plan.image)}",
        "stop_command": f"docker stop {container_name(file)}",
        "warm_up_argv": warm_up_argv(plan),
        "result_name": result_name(file),
        "result_path": f"results/{result_name(file)}",
        "partial_name": f".partial-{result_name(file)}",
        "results": RESULTS,
        "checkpoint_gb": ceil(emission.checkpoint_bytes / GB),
        "serve_command": shlex.join(plan.serve_argv),
        "settings": tuple(_settings(plan)),
        **_container(emission),
        **_machine(emission.profile, plan),
        **_partition(emission.profile, plan),
        **_accuracy(emission),
    }


def check_exposure(plan: Plan) -> None:
    """The published port is bound to 127.0.0.1, so inside the container the server has to bind to all addresses.

    Raises IllegalPlanError otherwise, and where the container would share the host's network.
    """
    if not plan.image:
        return  # no container: ``planner.scripts.native`` asks for the opposite
    host = option(plan.serve_argv, "--host")
    if option(plan.docker_args, "--network") == "host" or option(plan.docker_args, "--net") == "host":
        raise IllegalPlanError(
            "--network host would let every machine that reaches this one use the server",
            hint="leave it out of the docker options: the port is published on 127.0.0.1",
        )
    if host not in {None, "0.0.0.0", "::"}:  # noqa: S104  (inside the container)
        raise IllegalPlanError(
            f"a server with --host {host} is not reachable from outside its container",
            hint="use --host 0.0.0.0: the port is published on 127.0.0.1 only",
        )


def build_script(plan: Plan) -> str:
    """The script that makes the image, where no registry has it; else empty."""
    built = _BUILT_BY.search(plan.image_source)
    return built[1] if built else ""


def option(words: Sequence[str], flag: str) -> str | None:
    """The value of an option in a command line, in the form ``--flag value`` or ``--flag=value``; the last wins."""
    value = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def without_option(words: Sequence[str], flag: str) -> tuple[str, ...]:
    """A command line without an option and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip or word.startswith(f"{flag}="):
            skip = False
        elif word == flag:
            skip = True
        else:
            kept.append(word)
    return tuple(kept)


def with_option(words: Sequence[str], flag: str, value: object) -> tuple[str, ...]:
    """A command line with another value of an option that it has in the form ``--flag value``."""
    previous = ("", *words)
    return tuple(str(value) if before == flag else word for before, word in zip(previous, words, strict=False))


def warm_up_argv(plan: Plan, bench_argv: Sequence[str] = (), servers: int = 1) -> tuple[str, ...]:
    """The benchmark's command with a few short answers to other prompts than those that are measured.

    ``bench_argv``: of the benchmark of several servers, if not the plan's own.
    """
    load, words = plan.workload, tuple(bench_argv) or plan.bench_argv
    for flag, value in {
        "--num-prompts": WARM_UP_PROMPTS * servers,
        "--random-output-len": min(load.output_len, WARM_UP_OUTPUT_LEN),
        "--max-concurrency": min(load.max_concurrency or WARM_UP_PROMPTS, WARM_UP_PROMPTS) * servers,
        "--request-rate": "inf",
        "--seed": load.seed + SEED_STEP,
    }.items():
        words = with_option(words, flag, value)
    return words


def describe_load(plan: Plan) -> str:
    """The load in words."""
    load = plan.workload
    arrival = f"at most {load.max_concurrency} in flight" if load.max_concurrency else "sent as they arrive"
    if load.request_rate:
        arrival += f", {load.request_rate:g} requests/s"
    return f"{load.num_prompts} requests of {load.input_len} input and {load.output_len} output tokens, {arrival}"


def gfx_target_version(architecture: str) -> str:
    """The number that the KFD driver prints for an architecture: 90402 for gfx942, 90010 for gfx90a."""
    digits = re.fullmatch(r"gfx(\d+)([0-9a-f])([0-9a-f])", architecture)
    if not digits:
        raise IllegalPlanError(f"{architecture} is not an AMD architecture", hint="name it as gfx942 is named")
    return str(int(digits[1]) * 10000 + int(digits[2], 16) * 100 + int(digits[3], 16))


def _container(emission: Emission) -> dict[str, Any]:
    """How the container is started around ``serve_argv``."""
    plan = emission.file.plan
    nvidia = emission.profile.vendor == "nvidia"
    local = PurePosixPath(plan.model).is_absolute()
    # which GPUs it takes launch.sh says itself
    pinned = {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} if plan.image else set()
    return {
        "entrypoint": plan.serve_argv[0],
        "serve_args": plan.serve_argv[1:],
        "container_port": option(plan.serve_argv, "--port") or str(PORT),
        "nvidia": nvidia,
        "docker_args": without_option(plan.docker_args, "--gpus") if nvidia else plan.docker_args,
        "env_words": tuple(f"{name}={value}" for name, value in plan.env.items() if name not in pinned),
        "model_cache": MODEL_CACHE,
        "cache_folder": "" if local else f"hub/models--{plan.model.replace('/', '--')}",
        "model_folder": plan.model if local else "",
        "model_mount": f"{plan.model}:{plan.model}:ro" if local else "",
    }


def _machine(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """What the preflight expects of the machine. Memory is compared for whole GPUs only.

    amd-smi and the driver show the memory of the whole package for each AMD partition.
    """
    driver_bytes = (profile.memory.driver or profile.memory.engine_visible).base
    capability = profile.compute_capability
    partition = profile.partition
    return {
        "need_total_mib": int(driver_bytes / MIB * (1 - MEMORY_TOLERANCE)),
        "need_free_mib": int(_taken_bytes(driver_bytes, plan) / MIB * (1 - MEMORY_TOLERANCE)),
        "free_fix": "plan again with a smaller "
        + ("--cpu-kvcache-space" if CPU_KVCACHE_SPACE in plan.env else "--gpu-memory-utilization"),
        "gfx_target": gfx_target_version(profile.architecture) if profile.vendor == "amd" else "",
        "architecture": profile.architecture,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "oldest_driver": OLDEST_CUDA_DRIVER,
        "compute_mode": partition.compute_mode if partition else "SPX",
        "memory_mode": partition.memory_mode if partition else "NPS1",
    }


def _taken_bytes(driver_bytes: float, plan: Plan) -> float:
    """What the server takes: its share of the memory; on a CPU weights, overheads and the cache that it is given."""
    if CPU_KVCACHE_SPACE not in plan.env:
        return driver_bytes * plan.gpu_memory_utilization
    return float(sum(plan.memory[f"{part}_bytes"] for part in ("weights", "activation", "non_torch", "kv_cache")))


def _partition(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """How the GPUs are cut, and which part the server gets."""
    partition = profile.partition
    instances = plan.gpus_per_node // plan.num_gpus
    names: dict[str, Any] = {
        "partition": partition,
        "instances": f"{instances} such server{'s' if instances != 1 else ''}",
        "several": instances > 1 and plan.platform != "cpu",
        "devices": plan.env.get("HIP_VISIBLE_DEVICES") or ",".join(map(str, range(plan.num_gpus))),
        "mig_profile": "",
    }
    if partition:
        names["partitions_per_gpu"] = partition.count
    if partition and profile.vendor == "nvidia":
        names["mig_profile"] = partition.compute_mode.removeprefix("MIG ")
        names["mig_profiles"] = ",".join([names["mig_profile"]] * partition.count)
    return names


def _accuracy(emission: Emission) -> dict[str, Any]:
    plan = emission.file.plan
    arguments = {
        "model": option(plan.serve_argv, "--served-model-name") or plan.model,
        "num_concurrent": min(ACCURACY_CONCURRENCY, plan.max_num_seqs),
        "timeout": 600,
        "max_retries": 5,
        "tokenized_requests": False,
        "tokenizer_backend": "None",
    }
    return {
        "lm_eval_requirement": LM_EVAL_REQUIREMENT,
        # JSON, because lm_eval cuts its other form at every comma
        "accuracy_arguments": json.dumps(arguments),
        "accuracy_name": f"accuracy-{plan.digest}",
        "accuracy_path": f"results/accuracy-{plan.digest}",
        "accuracy_max_model_len": ACCURACY_MAX_MODEL_LEN,
        "expected_accuracy": emission.expected_accuracy,
    }


def _settings(plan: Plan) -> Iterator[tuple[str, object]]:
    for name in (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "weight_dtype", "kv_cache_dtype",
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "engine_version", "image",
    ):  # fmt: skip
        if name == "gpu_memory_utilization" and CPU_KVCACHE_SPACE in plan.env:  # in its place
            yield CPU_KVCACHE_SPACE, plan.env[CPU_KVCACHE_SPACE]
        else:
            yield name, getattr(plan, name)


# --- Plans without a container: the server is the vLLM that is installed on the machine itself
#
# The templates of ``templates/vllm/native`` take the place of those of the same name; all others are shared.

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


def is_native(plan: Plan) -> bool:
    """Whether the plan names no image."""
    return not plan.image


def native_names(plan: Plan) -> dict[str, Any]:
    """What the templates of native plans may name beside the common names. The port is the script's to say.

    Raises IllegalPlanError for a server that other machines could reach.
    """
    host = option(plan.serve_argv, "--host")
    if host not in LOOPBACK:
        raise IllegalPlanError(
            f"a server with --host {host or 'left out'} would listen on every address of this machine",
            hint="use --host 127.0.0.1: there is no container around it",
        )
    return {
        "native_serve": without_option(plan.serve_argv, "--port"),
        "native_bench": without_option(plan.bench_argv, "--port"),
        "native_warm_up": without_option(warm_up_argv(plan), "--port"),
        "stop_command": 'kill "$(cat logs/server.pid)"',
    }
