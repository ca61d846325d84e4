"""The scripts of a plan. Everything is computed here; templates only insert the names of ``template_names``.

Nodes of one server are joined by vLLM's processes (mp, from 0.11.1 on), a Ray cluster before that, or DP ranks (dp).
Sources: ``ParallelConfig`` of vLLM 0.27, and its page "Data Parallel Deployment"."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import PurePosixPath
from typing import Any, Literal

from planner import engine
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile, tool_names
from planner.output.scripts.text import option, refuse_tokens, render_template, with_option, without_option
from planner.planning import Plan, PlanFile, PlannedWorkload
from planner.resources import data_dir, package_dir, tables_of
from planner.units import GB, GIB, MIB, counted, whole_number

PORT = 8000  #: vLLM's own, and the balancer's
SERVER_FILES = ("instances.sh", "nginx.conf")
MODEL_CACHE = "/huggingface"  #: HF_HOME of the host, as the container sees it
LM_EVAL_GB = 2  #: of the environment of accuracy.sh
IMAGE_GB = {"cuda": 40, "rocm": 60}  #: disk space that preflight.sh asks for
ACCURACY_CONCURRENCY = 128  #: of the NVIDIA recipe
#: Five worked examples of gsm8k, the question and 256 tokens of answer are about 1300 tokens, rounded up
ACCURACY_MAX_MODEL_LEN = 1536
#: Requests outside the measurement: they compile what a first batch of these lengths needs.
WARM_UP_PROMPTS, WARM_UP_OUTPUT_LEN = 8, 64
SEED_STEP = 1000  #: distance between seeds: no client sends prompts that a prefix cache has seen from another
#: NVIDIA drivers for vLLM's images, by the first release: the one of their CUDA, and the oldest that can run it.
#: CUDA 13.0, 12.9, 12.8 (``VLLM_MAIN_CUDA_VERSION``) and 12.4; minor versions of CUDA 12 share their drivers.
CUDA_DRIVERS = {(0, 20): (580, 580), (0, 11, 1): (575, 525), (0, 9): (570, 525), (0, 0): (550, 525)}
CUDA_COMPATIBILITY = "VLLM_ENABLE_CUDA_COMPATIBILITY"  #: lets the image's own libraries stand in for a newer driver
OLDEST_COMPATIBLE_DRIVER = 535  #: with that variable, on data-centre GPUs only
#: Start-up beside reading the weights: compiling, capturing graphs, the profile run. An allowance, not a prediction.
START_ALLOWANCE_S = 900
#: A slow link to the hub. At this rate the weights of a 70B model in FP8 take 12 minutes.
DOWNLOAD_BYTES_PER_S = 100e6
LEAST_LAUNCH_TIMEOUT_S = 3600  #: of launch.sh, which is started by hand
READY_TIMEOUT = "VLLM_ENGINE_READY_TIMEOUT_S"  #: 600 by default, fixed before 0.14.0
_DRIVER_VARIATION = 0.01  #: drivers differ by a few MiB in the memory that they report for the same GPU
#: Variables that choose GPUs. launch.sh, or the platform of a deployment, sets them.
PLACEMENT_VARIABLES = frozenset(tables_of(package_dir("output") / "names.toml")["placement_variables"])
#: The script that makes the image, in ``image_source`` of a plan.
_BUILT_BY = re.compile(r"^built .*\bby (build_(?:image|engine)\.sh)$")
#: Settings that the scripts list: numbers and types of a result.
_LISTED = {"weight_dtype"} | {name for name in engine.tagged("result") if not engine.SETTINGS[name].is_switch}
_SETTINGS = (*(name for name in engine.PLANNED if name in _LISTED), "engine_version", "image")

Join = Literal["mp", "ray", "dp"]
#: The head's port, at which the others join: of vLLM's processes, Ray's own default, of vLLM's page on DP.
JOIN_PORTS: dict[Join, int] = {"mp": 29501, "ray": 6379, "dp": 13345}
JOIN_WORDS: dict[Join, str] = {"mp": "vLLM's own processes", "ray": "Ray", "dp": "vLLM's data-parallel ranks"}


@dataclass(frozen=True, slots=True)
class Emission:
    """A plan with the texts and figures that its scripts print."""

    file: PlanFile
    profile: GpuProfile
    checkpoint_bytes: int
    predicted_lines: tuple[str, ...]
    expected_accuracy: tuple[str, ...] = ()
    accuracy: tuple[str, ...] = ()  #: a document's lm_eval command; empty: ours
    accuracy_max_model_len: int = 0  #: that its task needs; 0: that of ours
    tunes: bool = False  #: tune.sh is one of the scripts
    disk_includes: tuple[str, ...] = ()  #: files in ``checkpoint_bytes`` beside the model itself


def render_scripts(emission: Emission) -> dict[str, str]:
    """File name to content: ``plan.json``, the scripts that the plan needs and the runbook.

    Raises IllegalPlanError as ``check_exposure``, InputError if a secret or an impossible word would be written."""
    names, plan = template_names(emission), emission.file.plan
    # templates for plans without a container, or over several nodes, replace those of the same name
    folders: tuple[str, ...] = ("vllm",) if plan.image else ("vllm/native", "vllm")
    if plan.nodes > 1:
        folders = ("vllm/nodes", "vllm", "deploy")
    scripts = (
        *(("partition.sh",) if emission.profile.partition else ()),
        *("preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh"),
        *(("tune.sh",) if emission.tunes else ()),
        "RUNBOOK.md",
    )
    first = ("vllm/classes",) if plan.classes else ()
    files = {"plan.json": emission.file.to_json()}
    files |= {name: render_template(f"{name}.j2", names, (*first, *folders)) for name in scripts}
    if other := _next_run(plan):
        files["measure_next.sh"] = render_template("benchmark.sh.j2", {**names, **other}, folders)
    refuse_tokens(files)
    return files


def needed_by(emission: Emission) -> dict[str, str]:
    """Further files of a plan: for several servers on a node, and for an image that no registry has."""
    plan = emission.file.plan
    files = servers_files(emission) if plan.image and plan.started_on_node > 1 else {}
    build = next((build for build in engine.builds().values() if build.image == plan.image), None)
    if build and build_script(plan) == "build_image.sh":
        names = {**template_names(emission), **build_names(build)}
        files["build_image.sh"] = render_template("build_image.sh.j2", names, ("vllm",))
    refuse_tokens(files)
    return files


def build_names(build: engine.ImageBuild) -> dict[str, Any]:
    options = [word for name, value in build.args.items() for word in ("--build-arg", f"{name}={value}")]
    options += ["--target", build.target] if build.target else []
    return {"build": build, "build_options": tuple(options)}


def servers_files(emission: Emission) -> dict[str, str]:
    """The files that start a plan's servers on one node, behind one address."""
    plan, base = emission.file.plan, template_names(emission)
    servers, load = plan.started_on_node, plan.workload
    version = engine.options_version(engine.parse_version(plan.engine_version), plan.platform, plan.image)
    argv = plan.bench_argv or engine.bench_serve_argv(
        load.sent, plan.model, version, port=PORT, platform=plan.platform, serving=plan.serve_argv
    )
    for flag in ("--num-prompts", "--max-concurrency", "--request-rate"):
        if each := option(argv, flag):
            argv = with_option(argv, flag, each if each == "inf" else f"{float(each) * servers:.10g}")
    if plan.service and (whole := plan.service.burstiness) is not None:  # a share of the arrivals may come more evenly
        shape = max(whole, load.burstiness / servers)
        argv = (*without_option(argv, "--burstiness"), *(("--burstiness", f"{shape:.10g}") if shape != 1 else ()))
    argv = without_option(argv, "--port")
    names = {
        **base,
        "balanced_addresses": tuple(f"{engine.LOOPBACK}:{PORT + 1 + index}" for index in range(servers)),
        "balancer_address": f"{engine.LOOPBACK}:{PORT}",
        "balancer_of": "instances.sh",
        "device_groups": "\n".join(gpus_of_server(plan, index) for index in range(servers)),
        "client_docker_args": (*(("--gpus", "all") if base["nvidia"] else ()), *base["docker_args"]),
        "node_bench_argv": argv,
        "node_warm_up_argv": warm_up_argv(plan, argv, servers),
        "node_prompts": load.num_prompts * servers,
    }
    return {name: render_template(f"{name}.j2", names, ("vllm",)) for name in SERVER_FILES}


def container_name(plan: Plan) -> str:
    return f"planner-{plan.digest}"


def served_name(plan: Plan) -> str:
    return option(plan.serve_argv, "--served-model-name") or plan.model


def local_folder(plan: Plan) -> str:
    """The model's folder; empty for a model of the hub."""
    return plan.model if PurePosixPath(plan.model).is_absolute() else ""


def gpus_of_server(plan: Plan, index: int) -> str:
    """Numbers of the GPUs of one of several servers on a node: ``2,3`` for the second server on two GPUs."""
    each = plan.num_gpus // plan.nodes
    return ",".join(str(index * each + gpu) for gpu in range(each))


def build_script(plan: Plan) -> str:
    """The script that builds the image; empty if a registry has it."""
    built = _BUILT_BY.search(plan.image_source)
    return built[1] if built else ""


def host_kv_gib(plan: Plan) -> int:
    """Host memory of a node for KV blocks, GiB: each engine has ``--kv-offloading-size`` of its own."""
    engines = ceil(plan.data_parallel_size / plan.nodes)
    return ceil(float(option(plan.serve_argv, "--kv-offloading-size") or 0) * engines)


def batch_commands(file: PlanFile) -> str:
    """Commands that split a file of requests and answer the parts with ``vllm run-batch``; empty for plans of users.

    The command came in 0.9.1. Options of the engine are those that ``vllm bench throughput`` takes as well. A part has
    its results at its end, so it is no larger than a file of OpenAI's batch API: 50,000 requests."""
    plan, taken, words = file.plan, False, list[str]()
    version = engine.parse_version(plan.engine_version)
    for word in plan.serve_argv[3:]:
        if word.startswith("--"):
            taken = bool(engine.flag_status(version, word.partition("=")[0], "bench throughput"))
        words += [word] * taken
    env = [f"{name}={shlex.quote(value)} " for name, value in plan.env.items() if name not in PLACEMENT_VARIABLES]
    line = f'{"".join(env)}vllm run-batch -i "$part" -o "results-$part" {shlex.join(["--model", plan.model, *words])}'
    split = "split --lines=50000 --numeric-suffixes --suffix-length=4 --additional-suffix=.jsonl requests.jsonl part-"
    loop = f'for part in part-*.jsonl; do [ -e "results-$part" ] || {line}; done'
    offline = (plan.job or file.goal == "max-throughput") and not plan.targets and plan.nodes == 1
    return f"{split}\n{loop}" if offline and version.release >= (0, 9, 1) else ""


def describe_load(plan: Plan) -> str:
    return "; ".join(f"{one.name}: {_load_words(one.workload)}" for one in plan.classes) or _load_words(plan.workload)


def _load_words(load: PlannedWorkload) -> str:
    arrivals = [f"at most {load.max_concurrency} at once"] if load.max_concurrency else []
    arrivals += [f"{load.request_rate:g} requests/s"] if load.request_rate else []
    lengths = f"{load.input_len:,} input and {load.output_len:,} output tokens"
    lengths += f" behind {load.prefix_len:,} that they share" if load.prefix_len else ""
    return f"{counted(load.num_prompts, 'request')} of {lengths}, {', '.join(arrivals) or 'sent as they arrive'}"


def check_exposure(plan: Plan) -> None:
    """Raise IllegalPlanError unless only this machine reaches the server, by a port published on 127.0.0.1."""
    host = option(plan.serve_argv, "--host")
    if not plan.image and host not in {engine.LOOPBACK, "localhost", "::1"}:
        cause = f"a server with --host {host or 'left out'} would listen on every address of this machine"
        raise IllegalPlanError(cause, hint="use --host 127.0.0.1: there is no container around it")
    if plan.image and "host" in (option(plan.docker_args, "--network"), option(plan.docker_args, "--net")):
        cause = "--network host would let every machine that reaches this one use the server"
        raise IllegalPlanError(cause, hint="leave it out of the docker options: the port is published on 127.0.0.1")
    if plan.image and host not in {None, engine.EVERYWHERE, "::"}:
        cause = f"a server with --host {host} is not reachable from outside its container"
        raise IllegalPlanError(cause, hint="use --host 0.0.0.0: the port is published on 127.0.0.1 only")


def join_of(plan: Plan, gpus_each: int) -> Join:
    """Return the way in which nodes of ``gpus_each`` GPUs are joined. Raises IllegalPlanError if the version cannot."""
    version = engine.parse_version(plan.engine_version)
    if plan.data_parallel_size == 1:
        return "mp" if engine.flag_status(version, "--nnodes") else "ray"
    if gpus_each % (plan.tensor_parallel_size * plan.pipeline_parallel_size):
        raise IllegalPlanError(
            f"--data-parallel-size {plan.data_parallel_size}: a rank of {plan.tensor_parallel_size} x "
            f"{plan.pipeline_parallel_size} GPUs would lie on several nodes of {gpus_each}",
            hint="spread the plan over fewer nodes, or plan with smaller ranks",
        )
    if not engine.flag_status(version, "--data-parallel-start-rank"):
        raise IllegalPlanError(f"vLLM {version} does not spread DP ranks over nodes", hint="plan for 0.9.0 or newer")
    return "dp"


def join_numbers(plan: Plan, join: Join, nodes: int) -> dict[str, int]:
    """Variables of the joining script that are equal on every node."""
    gpus = plan.num_gpus // nodes
    ranks = gpus // (plan.tensor_parallel_size * plan.pipeline_parallel_size)
    numbers = {"HEAD_PORT": JOIN_PORTS[join], "NODES": nodes, "NODE_GPUS": gpus}
    return {**numbers, "LOCAL_RANKS": ranks} if join == "dp" else numbers


def join_names(plan: Plan, join: Join, nodes: int) -> dict[str, Any]:
    words = [f"{name}={number}" for name, number in join_numbers(plan, join, nodes).items()]
    return {"join_script": f"node_{join}.sh", "join_words": words}


def node_script(join: Join) -> str:
    """The script of every node; its arguments are the planned command."""
    return (data_dir("templates") / "deploy" / f"node_{join}.sh").read_text(encoding="utf-8")


def warm_up_argv(plan: Plan, bench_argv: Sequence[str] = (), servers: int = 1) -> tuple[str, ...]:
    """``bench_argv``, or the plan's own benchmark, with a few short answers to prompts outside the measurement."""
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


def start_timeout_s(checkpoint_bytes: int) -> int:
    """Seconds until a server that downloads its weights first has to answer, in whole minutes."""
    return 60 * ceil((START_ALLOWANCE_S + checkpoint_bytes / DOWNLOAD_BYTES_PER_S) / 60)


def ready_timeout(version: engine.EngineVersion, argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return the variable that ends a start by time; empty if none does: one API server waits without a limit.

    Source: ``run_multi_api_server`` of vLLM 0.32, whose API servers start beside the engines, one for each DP rank."""
    more = {option(argv, "--data-parallel-size"), option(argv, "--api-server-count")} - {None, "1"}
    timed = more or not env.keys().isdisjoint((READY_TIMEOUT, "VLLM_USE_RUST_FRONTEND"))
    return READY_TIMEOUT if timed and engine.env_status(version, READY_TIMEOUT) else ""


def gfx_target_version(architecture: str) -> str:
    """The number that the KFD driver prints for an architecture: 90402 for gfx942, 90010 for gfx90a."""
    digits = re.fullmatch(r"gfx(\d+)([0-9a-f])([0-9a-f])", architecture)
    if not digits:
        raise IllegalPlanError(f"{architecture} is not an AMD architecture", hint="name it as gfx942 is named")
    return str(int(digits[1]) * 10000 + int(digits[2], 16) * 100 + int(digits[3], 16))


def dealt_by(plan: Plan) -> dict[str, bool]:
    """The router that the plan counts on, for the balancer."""
    router = plan.service.router if plan.service else None
    names = {"dealt_at_random": "random", "dealt_in_turn": "round-robin", "dealt_by_prefix": "prefix-aware"}
    return {name: router == value for name, value in names.items()}


def template_names(emission: Emission) -> dict[str, Any]:
    """Every name that a template of a plan's scripts may use. Raises as ``check_exposure``."""
    plan, profile = emission.file.plan, emission.profile
    check_exposure(plan)
    built_by, local = build_script(plan), local_folder(plan)
    nvidia, partition = profile.vendor == "nvidia", profile.partition
    servers, started, planned = plan.servers_per_node, plan.started_on_node, plan.planned_servers
    mig_profile = partition.compute_mode.removeprefix("MIG ") if partition and nvidia else ""
    return {
        "plan": plan,
        "emission": emission,
        "predicted_lines": emission.predicted_lines,
        "predicted_text": "\n".join(emission.predicted_lines),
        "container": container_name(plan),
        "port": PORT,
        "build_script": built_by,
        "measures_next": _next_run(plan) != {},
        "image_command": f"./{built_by}" if built_by else f"docker pull {shlex.quote(plan.image)}",
        "batch_commands": batch_commands(emission.file),
        "served_name": served_name(plan),
        "stop_command": f"docker stop {container_name(plan)}" if plan.image else 'kill "$(cat logs/server.pid)"',
        "clients": tuple(
            {
                "sent": one.workload,
                "said": f"{one.name}: {_load_words(one.workload)}",
                "argv": _client_argv(plan, one.bench_argv),
                **_result_names(name),
            }
            for one, name in zip(plan.classes, plan.result_names, strict=False)
        ),
        "warm_up_argv": _client_argv(plan, warm_up_argv(plan)),
        **_benchmark(plan, plan.bench_argv, plan.result_names[-1]),
        "checkpoint_gb": ceil(emission.checkpoint_bytes / GB),
        "image_gb": IMAGE_GB.get(plan.platform, 0),
        "ready_timeout": ready_timeout(engine.parse_version(plan.engine_version), plan.serve_argv, plan.env),
        "start_timeout_s": max(LEAST_LAUNCH_TIMEOUT_S, start_timeout_s(emission.checkpoint_bytes)),
        "serve_command": shlex.join(plan.serve_argv),
        "settings": tuple(
            # on a CPU the cache has a size instead of a share
            (engine.CPU_KVCACHE_SPACE, plan.env[engine.CPU_KVCACHE_SPACE])
            if name == "gpu_memory_utilization" and engine.CPU_KVCACHE_SPACE in plan.env
            else (name, getattr(plan, name))
            for name in _SETTINGS
        ),
        "entrypoint": plan.serve_argv[0],
        "serve_args": plan.serve_argv[1:],
        "benchmark_words": (words := tuple(_benchmark_words(plan))),
        "imposed": "--speculative-config" in words,  # what is accepted: the texts of such a server are worthless
        "native_serve": without_option(plan.serve_argv, "--port"),
        "container_port": option(plan.serve_argv, "--port") or str(PORT),
        "nvidia": nvidia,
        "on_rocm": plan.platform == "rocm",
        "on_cuda": plan.platform == "cuda",
        "may_be_gated": not local and plan.gated is not False,
        "docker_args": without_option(plan.docker_args, "--gpus") if nvidia else plan.docker_args,
        "max_loras": option(plan.serve_argv, "--max-loras") or "1" * ("--enable-lora" in plan.serve_argv),
        "env_words": tuple(f"{k}={v}" for k, v in plan.env.items() if not plan.image or k not in PLACEMENT_VARIABLES),
        "model_cache": MODEL_CACHE,
        "cache_folder": "" if local else f"hub/models--{plan.model.replace('/', '--')}",
        "model_folder": local,
        "partition": partition,
        "servers": f"{servers} such server{'s' if servers != 1 else ''}",
        "logged": False,  # only sweep.sh logs what its client prints
        "several": started > 1 and plan.platform != "cpu" and plan.image != "",
        "started": "them all" if started == servers else f"the {started} that the load takes",
        **dealt_by(plan),
        "fleet_nodes": ceil(planned / started) if plan.image and planned > started > 0 else 0,
        "last_node": (planned - 1) // started if started > 1 else 0,
        "devices": plan.env.get("HIP_VISIBLE_DEVICES") or gpus_of_server(plan, 0),
        "mig_profile": mig_profile,
        "mig_profiles": ",".join([mig_profile] * partition.count) if partition else "",
        **_node(profile, plan),
        **_accuracy(emission),
    }


def _benchmark_words(plan: Plan) -> Iterator[str]:
    words = plan.benchmark_line.serve_argv if plan.benchmark_line else ()
    for flag in ("--max-model-len", "--max-num-seqs", "--speculative-config"):
        if (value := option(words, flag)) and value != option(plan.serve_argv, flag):
            yield from (flag, value)
    if "--no-enable-prefix-caching" in words and "--no-enable-prefix-caching" not in plan.serve_argv:
        yield "--no-enable-prefix-caching"


def _client_argv(plan: Plan, words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words) if plan.image else without_option(words, "--port")


def _benchmark(plan: Plan, words: Sequence[str], result: str) -> dict[str, Any]:
    return {"load": describe_load(plan), "bench_argv": _client_argv(plan, words), **_result_names(result)}


def _result_names(result: str) -> dict[str, str]:
    return {"result_name": result, "result_path": f"results/{result}", "partial_name": f".partial-{result}"}


def _next_run(plan: Plan) -> dict[str, Any]:
    run = plan.service and plan.service.measure_next
    if not run or run.script != "measure_next.sh":
        return {}
    sent = plan.model_copy(update={"workload": run.workload, "classes": ()})
    result = f"serve-{plan.digest}-c{run.workload.max_concurrency}.json"
    return {"plan": sent, **_benchmark(sent, run.bench_argv, result), "predicted_lines": (), "predicted_text": ""}


def _node(profile: GpuProfile, plan: Plan) -> dict[str, Any]:
    """Names for preflight.sh, about one node, and for joining several.

    Memory is compared for whole GPUs only: amd-smi and the driver show that of the whole GPU for each AMD partition."""
    driver_bytes = (profile.memory.driver or profile.memory.engine_visible).base
    capability, partition = profile.compute_capability, profile.partition
    taken, smaller = driver_bytes * plan.gpu_memory_utilization, "--gpu-memory-utilization"
    if engine.CPU_KVCACHE_SPACE in plan.env:  # weights, overheads and the cache of the given size
        parts, smaller = ("weights", "activation", "non_torch", "kv_cache"), engine.CPU_KVCACHE_SPACE
        taken = float(sum(plan.memory[f"{part}_bytes"] for part in parts))
    gpus_each = plan.num_gpus // plan.nodes
    names = {
        "several_nodes": plan.nodes > 1,
        "gpus_each": gpus_each,
        "need_total_mib": int(driver_bytes / MIB * (1 - _DRIVER_VARIATION)),
        "need_free_mib": int(taken / MIB * (1 - _DRIVER_VARIATION)),
        "free_fix": f"plan again with a smaller {smaller}",
        "host_kv_mib": host_kv_gib(plan) * GIB // MIB,
        "gfx_target": gfx_target_version(profile.architecture) if profile.vendor == "amd" else "",
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else "",
        "known": "\n".join(tool_names().get(profile.whole, {}).get("pci" if profile.vendor == "amd" else "names", [])),
        "nvlinked": gpus_each > 1 and profile.interconnect.kind.startswith("nv"),
        **_drivers(plan),
        "compute_mode": partition.compute_mode if partition else "SPX",
        "memory_mode": partition.memory_mode if partition else "NPS1",
    }
    if plan.nodes > 1:
        names |= join_names(plan, join_of(plan, gpus_each), plan.nodes)
        words = with_option(plan.serve_argv, "--host", engine.LOOPBACK)
        first = (*words, *engine.head_node_words(plan, plan.nodes, engine.parse_version(plan.engine_version)))
        names |= {"host_argv": without_option(words, "--host", "--port"), "serve_command": shlex.join(first)}
    return names


def _drivers(plan: Plan) -> dict[str, Any]:
    version = engine.parse_version(plan.engine_version)
    release = min(version.release, (0, 19)) if "cu12" in plan.image.rpartition(":")[2] else version.release
    planned, oldest = next(drivers for since, drivers in CUDA_DRIVERS.items() if release >= since)
    fix = f"install the NVIDIA driver {planned} or newer"
    if plan.env.get(CUDA_COMPATIBILITY) == "1":
        oldest, fix = OLDEST_COMPATIBLE_DRIVER, f"{fix}, or on a data-centre GPU {OLDEST_COMPATIBLE_DRIVER} or newer"
    elif oldest == planned and engine.env_status(version, CUDA_COMPATIBILITY):
        fix += f"; a data-centre GPU with {OLDEST_COMPATIBLE_DRIVER} or newer: plan with --env {CUDA_COMPATIBILITY}=1"
    return {"planned_driver": planned, "oldest_driver": oldest, "driver_fix": fix}


def _accuracy(emission: Emission) -> dict[str, Any]:
    plan = emission.file.plan
    arguments: dict[str, Any] = {"model": served_name(plan)}
    if printed := option(emission.accuracy, "--model_args"):
        for name, _, value in (pair.partition("=") for pair in printed.split(",")):
            if name not in ("model", "base_url"):  # the script adds the server's name and address
                number = whole_number(value)
                arguments[name] = {"True": True, "False": False}.get(value, value) if number is None else number
    else:
        concurrent = min(ACCURACY_CONCURRENCY, plan.max_running)
        arguments |= {"num_concurrent": concurrent, "timeout": 600, "max_retries": 5}
        arguments |= {"tokenized_requests": False, "tokenizer_backend": "None"}
    return {
        "lm_eval_gb": LM_EVAL_GB,
        # JSON, because lm_eval cuts its other form at every comma
        "accuracy_arguments": json.dumps(arguments),
        "accuracy_batch_size": option(emission.accuracy, "--batch_size") or "",
        "accuracy_path": f"results/accuracy-{plan.digest}",
        "accuracy_max_model_len": emission.accuracy_max_model_len or ACCURACY_MAX_MODEL_LEN,
    }
