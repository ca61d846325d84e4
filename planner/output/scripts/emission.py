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

from planner.engine import CPU_KVCACHE_SPACE, EVERYWHERE, LOOPBACK
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.output.scripts.command_line import option, with_option, without_option
from planner.output.scripts.joining import join_names, join_of
from planner.planning import Plan, PlanFile, PlannedWorkload
from planner.units import GB, GIB, MIB, whole_number

PORT = 8000  #: vLLM's own
MODEL_CACHE = "/huggingface"  #: where the host's HF_HOME appears in the container
RESULTS = "/results"  #: where the folder ``results`` appears in the container
LM_EVAL_REQUIREMENT = "lm-eval[api]==0.4.9.1"  #: the release that the NVIDIA recipe pins
ACCURACY_CONCURRENCY = 128  #: of the NVIDIA recipe
#: Five worked examples of gsm8k, the question and 256 tokens of answer are about 1300 tokens; with some room
ACCURACY_MAX_MODEL_LEN = 1536
#: Requests that nothing counts: they compile what a first batch of these lengths needs.
WARM_UP_PROMPTS, WARM_UP_OUTPUT_LEN = 8, 64
#: Seeds are this far apart, so that no client sends prompts that a prefix cache has seen from another.
SEED_STEP = 1000
OLDEST_CUDA_DRIVER = 575  #: of the NVIDIA recipe
#: Drivers differ by a few MiB in the memory that they report for the same GPU.
_DRIVER_VARIATION = 0.01
#: Variables that choose GPUs. launch.sh, or the platform of a deployment, sets them.
PLACEMENT_VARIABLES = frozenset((
    "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"
))  # fmt: skip
#: How ``image_source`` of a plan names the script that makes its image.
_BUILT_BY = re.compile(r"^built .*\bby (build_(?:image|engine)\.sh)$")


@dataclass(frozen=True, slots=True)
class Emission:
    """A plan and what is said about it in the scripts."""

    file: PlanFile
    profile: GpuProfile
    checkpoint_bytes: int
    predicted_lines: tuple[str, ...]
    expected_accuracy: tuple[str, ...] = ()
    accuracy: tuple[str, ...] = ()  #: a document's lm_eval command; none: ours
    accuracy_max_model_len: int = 0  #: that its task needs; 0: that of ours
    tunes: bool = False  #: whether tune.sh is one of the scripts
    disk_includes: tuple[str, ...] = ()  #: what ``checkpoint_bytes`` counts beside the model itself


def container_name(plan: Plan) -> str:
    """Name of the container, the same for all scripts of one plan."""
    return f"planner-{plan.digest}"


def result_name(plan: Plan) -> str:
    """Name of the benchmark's result file under ``results/``, of several the one that is written last."""
    return plan.result_names[-1]


def served_name(plan: Plan) -> str:
    """The model name that requests have to give."""
    return option(plan.serve_argv, "--served-model-name") or plan.model


def local_folder(plan: Plan) -> str:
    """The folder that is served, empty for a model of the hub."""
    return plan.model if PurePosixPath(plan.model).is_absolute() else ""


def servers_per_node(plan: Plan) -> int:
    """How many servers like the planned one a node has room for."""
    return plan.gpus_per_node // plan.num_gpus


def gpus_of_server(plan: Plan, index: int) -> str:
    """The numbers of the GPUs of one of several servers on a node: ``2,3`` for the second server on two GPUs."""
    each = plan.num_gpus // plan.nodes
    return ",".join(str(index * each + gpu) for gpu in range(each))


def template_names(emission: Emission) -> dict[str, Any]:
    """Every name that a template may use.

    Raises IllegalPlanError for a plan whose server would not be reachable, or from elsewhere than this machine.
    """
    file, plan = emission.file, emission.file.plan
    check_exposure(plan)
    built_by = build_script(plan)
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
        "container": container_name(plan),
        "port": PORT,
        "build_script": built_by,
        "measures_next": other_run(plan) != {},
        "tunes": emission.tunes,
        "image_command": f"./{built_by}" if built_by else f"docker pull {shlex.quote(plan.image)}",
        "stop_command": f"docker stop {container_name(plan)}" if plan.image else 'kill "$(cat logs/server.pid)"',
        "bench_argv": _client_argv(plan, plan.bench_argv),
        "clients": tuple(_clients(plan)),
        "num_clients": len(plan.classes),
        "warm_up_argv": _client_argv(plan, warm_up_argv(plan)),
        "result_name": result_name(plan),
        "result_path": f"results/{result_name(plan)}",
        "partial_name": f".partial-{result_name(plan)}",
        "results": RESULTS,
        "checkpoint_gb": ceil(emission.checkpoint_bytes / GB),
        "disk_includes": emission.disk_includes,
        "serve_command": shlex.join(plan.serve_argv),
        "settings": tuple(_settings(plan)),
        "manual_steps": tuple(_manual_steps(emission)),
        **_server(emission.profile, plan),
        **_nodes(plan),
        **_node(emission.profile, plan),
        **_partition(emission.profile, plan),
        **_accuracy(emission),
    }


def check_exposure(plan: Plan) -> None:
    """Only this machine reaches the server.

    The port of a container is published on 127.0.0.1, so inside it the server has to bind to all addresses. Without a
    container the server binds to 127.0.0.1 itself. Raises IllegalPlanError for anything else, and for a container that
    would share the host's network.
    """
    host = option(plan.serve_argv, "--host")
    if not plan.image:
        if host not in {LOOPBACK, "localhost", "::1"}:
            raise IllegalPlanError(
                f"a server with --host {host or 'left out'} would listen on every address of this machine",
                hint="use --host 127.0.0.1: there is no container around it",
            )
        return
    if option(plan.docker_args, "--network") == "host" or option(plan.docker_args, "--net") == "host":
        raise IllegalPlanError(
            "--network host would let every machine that reaches this one use the server",
            hint="leave it out of the docker options: the port is published on 127.0.0.1",
        )
    if host not in {None, EVERYWHERE, "::"}:
        raise IllegalPlanError(
            f"a server with --host {host} is not reachable from outside its container",
            hint="use --host 0.0.0.0: the port is published on 127.0.0.1 only",
        )


def build_script(plan: Plan) -> str:
    """The script that makes the image, where no registry has it; else empty."""
    built = _BUILT_BY.search(plan.image_source)
    return built[1] if built else ""


def warm_up_argv(plan: Plan, bench_argv: Sequence[str] = (), servers: int = 1) -> tuple[str, ...]:
    """The benchmark's command with a few short answers to other prompts than those that are measured.

    ``bench_argv``: of the benchmark of several servers, if not the plan's own.
    """
    load, words = plan.workload, tuple(bench_argv) or plan.bench_argv
    if not words:
        longest = max(plan.classes, key=lambda one: one.workload.input_len)
        load, words = longest.workload, longest.bench_argv
    for flag, value in {
        "--num-prompts": WARM_UP_PROMPTS * servers,
        "--random-output-len": min(load.output_len, WARM_UP_OUTPUT_LEN),
        "--max-concurrency": min(load.max_concurrency or WARM_UP_PROMPTS, WARM_UP_PROMPTS) * servers,
        "--request-rate": "inf",
        "--seed": load.seed + SEED_STEP,
    }.items():
        words = with_option(words, flag, value)
    return words


def other_run(plan: Plan) -> dict[str, Any]:
    """What ``measure_next.sh`` says otherwise than ``benchmark.sh``; nothing where that is the run to make."""
    run = plan.service and plan.service.measure_next
    if not run or run.script != "measure_next.sh":
        return {}
    name = f"serve-{plan.digest}-c{run.workload.max_concurrency}.json"
    sent = plan.model_copy(update={"workload": run.workload, "classes": ()})
    return {
        "plan": sent,
        "bench_argv": _client_argv(plan, run.bench_argv),
        "load": describe_load(sent),
        "result_name": name,
        "result_path": f"results/{name}",
        "partial_name": f".partial-{name}",
        "predicted_lines": (),
        "predicted_text": "",
    }


def describe_load(plan: Plan) -> str:
    """The load in words."""
    if plan.classes:
        return "; ".join(f"{one.name}: {_load_words(one.workload)}" for one in plan.classes)
    return _load_words(plan.workload)


def _load_words(load: PlannedWorkload) -> str:
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


def _clients(plan: Plan) -> Iterator[dict[str, Any]]:
    """What benchmark.sh runs side by side, where the load has several classes."""
    for place, (one, name) in enumerate(zip(plan.classes, plan.result_names, strict=False), 1):
        yield {
            "place": place,
            "said": f"{one.name}: {_load_words(one.workload)}",
            "argv": _client_argv(plan, one.bench_argv),
            "num_prompts": one.workload.num_prompts,
            "seed": one.workload.seed,
            "result_name": name,
            "partial_name": f".partial-{name}",
        }


def _client_argv(plan: Plan, words: Sequence[str]) -> tuple[str, ...]:
    """Without a container the scripts say the port: PORT may be another one."""
    return tuple(words) if plan.image else without_option(words, "--port")


def _server(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """How the server is started: ``serve_argv``, and the container around it where there is one."""
    nvidia = profile.vendor == "nvidia"
    local = local_folder(plan)
    left_out = PLACEMENT_VARIABLES if plan.image else ()
    return {
        "entrypoint": plan.serve_argv[0],
        "serve_args": plan.serve_argv[1:],
        "native_serve": without_option(plan.serve_argv, "--port"),
        "container_port": option(plan.serve_argv, "--port") or str(PORT),
        "nvidia": nvidia,
        "docker_args": without_option(plan.docker_args, "--gpus") if nvidia else plan.docker_args,
        "env_words": tuple(f"{name}={value}" for name, value in plan.env.items() if name not in left_out),
        "model_cache": MODEL_CACHE,
        "cache_folder": "" if local else f"hub/models--{plan.model.replace('/', '--')}",
        "model_folder": local,
        "model_mount": f"{local}:{local}:ro" if local else "",
    }


def _nodes(plan: Plan) -> dict[str, Any]:
    """What joins the nodes of a server over several of them."""
    names: dict[str, Any] = {"nodes": plan.nodes, "gpus_each": plan.num_gpus // plan.nodes}
    if plan.nodes == 1:
        return names
    return {
        **names,
        **join_names(plan, join_of(plan, names["gpus_each"]), plan.nodes),
        "host_argv": with_option(plan.serve_argv, "--host", LOOPBACK),
    }


def host_kv_gib(plan: Plan) -> int:
    """Host memory of a node for KV blocks, GiB: each engine keeps ``--kv-offloading-size`` for itself."""
    engines = ceil(plan.data_parallel_size / plan.nodes)
    return ceil(float(option(plan.serve_argv, "--kv-offloading-size") or 0) * engines)


def _node(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """What preflight.sh expects of the node. It compares memory for whole GPUs only.

    amd-smi and the driver show the memory of the whole GPU for each AMD partition.
    """
    driver_bytes = (profile.memory.driver or profile.memory.engine_visible).base
    capability = profile.compute_capability
    partition = profile.partition
    on_cpu = CPU_KVCACHE_SPACE in plan.env
    smaller = "--cpu-kvcache-space" if on_cpu else "--gpu-memory-utilization"
    if on_cpu:  # weights, overheads and the cache of the size that it is given
        taken = float(sum(plan.memory[f"{part}_bytes"] for part in ("weights", "activation", "non_torch", "kv_cache")))
    else:
        taken = driver_bytes * plan.gpu_memory_utilization
    return {
        "need_total_mib": int(driver_bytes / MIB * (1 - _DRIVER_VARIATION)),
        "need_free_mib": int(taken / MIB * (1 - _DRIVER_VARIATION)),
        "free_fix": f"plan again with a smaller {smaller}",
        "host_kv_mib": host_kv_gib(plan) * GIB // MIB,
        "gfx_target": gfx_target_version(profile.architecture) if profile.vendor == "amd" else "",
        "architecture": profile.architecture,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "oldest_driver": OLDEST_CUDA_DRIVER,
        "compute_mode": partition.compute_mode if partition else "SPX",
        "memory_mode": partition.memory_mode if partition else "NPS1",
    }


def _partition(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """How the GPUs are cut, and which part the server gets."""
    partition = profile.partition
    servers = servers_per_node(plan)
    names: dict[str, Any] = {
        "partition": partition,
        "servers": f"{servers} such server{'s' if servers != 1 else ''}",
        "several": servers > 1 and plan.platform != "cpu",
        "devices": plan.env.get("HIP_VISIBLE_DEVICES") or gpus_of_server(plan, 0),
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
    arguments: dict[str, Any] = {
        "model": served_name(plan),
        "num_concurrent": min(ACCURACY_CONCURRENCY, plan.max_num_seqs),
        "timeout": 600,
        "max_retries": 5,
        "tokenized_requests": False,
        "tokenizer_backend": "None",
    }
    if printed := option(emission.accuracy, "--model_args"):
        pairs = [pair.partition("=")[::2] for pair in printed.split(",")]
        arguments = {"model": served_name(plan), **{name: _typed(value) for name, value in pairs if name not in _OWN}}
    return {
        "lm_eval_requirement": LM_EVAL_REQUIREMENT,
        # JSON, because lm_eval cuts its other form at every comma
        "accuracy_arguments": json.dumps(arguments),
        "accuracy_batch_size": option(emission.accuracy, "--batch_size") or "",
        "accuracy_name": f"accuracy-{plan.digest}",
        "accuracy_path": f"results/accuracy-{plan.digest}",
        "accuracy_max_model_len": emission.accuracy_max_model_len or ACCURACY_MAX_MODEL_LEN,
        "expected_accuracy": emission.expected_accuracy,
    }


#: Arguments of lm_eval that the script says: the server's name and address.
_OWN = frozenset(("model", "base_url"))


def _typed(value: str) -> Any:
    """A value of lm_eval's arguments as JSON has it."""
    number = whole_number(value)
    return {"True": True, "False": False}.get(value, value) if number is None else number


def _manual_steps(emission: Emission) -> Iterator[str]:
    """What no script does, in the order in which it happens: the machine, its mode, the licence, the disk."""
    plan, profile = emission.file.plan, emission.profile
    drivers = {
        "rocm": "install the amdgpu driver (of ROCm 6.4 or newer for partitions) and docker; add your user to the "
        "groups docker and video",
        "cuda": f"install the NVIDIA driver {OLDEST_CUDA_DRIVER} or newer, docker and the NVIDIA Container Toolkit; "
        "add your user to the group docker",
        "cpu": f"install vLLM {plan.engine_version} for CPUs",
    }
    yield f"{drivers[plan.platform]}; preflight.sh checks it"
    if plan.platform == "rocm":
        yield "as root, switch automatic NUMA balancing off: preflight.sh --apply does it, until the next boot"
    if profile.partition:
        mode = profile.partition.compute_mode
        yield (
            f"agree with everybody who uses the machine: {mode} changes its GPUs for all. Only root may set it, on the "
            "machine itself (no virtual machine), with no process on any GPU; partition.sh --apply does"
        )
    if plan.nodes > 1:
        yield (
            f"have {plan.nodes} machines of {plan.num_gpus // plan.nodes} GPUs that reach each other, and this folder "
            "on each: preflight.sh and launch.sh run on all of them, launch.sh on all but the first with "
            "HEAD_ADDRESS and NODE_RANK=1 (2, ...); benchmark.sh runs on the first"
        )
    if local_folder(plan):
        yield f"put the model into {local_folder(plan)}"
        return
    if plan.gated is not False:
        gated = "its repository is gated" if plan.gated else "if its repository is gated"
        yield f"{gated}: accept the licence of {plan.model} on the hub, make a token that may read, and export HF_TOKEN"
    parts = f", {' and '.join(emission.disk_includes)} among them" if emission.disk_includes else ""
    yield f"have {ceil(emission.checkpoint_bytes / GB)} GB free in HF_HOME{parts}; preflight.sh checks it"
    if build_script(plan):
        yield "give the build of the image time and tens of GB of docker's disk; MAX_JOBS limits its memory"


def _settings(plan: Plan) -> Iterator[tuple[str, object]]:
    for name in (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "weight_dtype", "kv_cache_dtype",
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "engine_version", "image",
    ):  # fmt: skip
        if name == "gpu_memory_utilization" and CPU_KVCACHE_SPACE in plan.env:  # in its place
            yield CPU_KVCACHE_SPACE, plan.env[CPU_KVCACHE_SPACE]
        else:
            yield name, getattr(plan, name)
