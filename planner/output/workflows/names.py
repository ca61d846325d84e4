"""What the templates of workflows may name beside the names of every plan's scripts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from planner.engine import (
    LOOPBACK,
    ImageBuild,
    bench_serve_argv,
    image_for,
    options_version,
    parse_version,
    value_status,
)
from planner.errors import IllegalPlanError
from planner.output.scripts.emission import (
    PORT,
    Emission,
    gpus_of_server,
    served_name,
    servers_per_node,
    template_names,
    warm_up_argv,
)
from planner.output.workflows.offline import OFFLINE_SCRIPTS, offline_names, offline_points
from planner.output.workflows.subject import Subject
from planner.output.workflows.sweep import guidellm_names, sweep_names
from planner.planning import Plan
from planner.workload import Load

HUB_REQUIREMENT = "huggingface_hub==2.4.0"
QUARK_REQUIREMENT = "amd-quark[cli]==0.13"
FASTSAFETENSORS_REF = "v0.1.15-rocm7-preview"  #: the release that the MI355X recipe links
#: A commit of ROCm/MAD with vllm_benchmark_report.sh
MAD_COMMIT = "047bbf930397b21bb582443fb95bf8b9808914f3"
#: MAD's script passes --num-scheduler-steps and calls benchmarks/benchmark_*.py
MAD_NEWEST = (0, 10, 0)
FIRST_PORT = PORT + 1  #: of the servers behind the balancer, which listens where one server would
ENGINE_JOBS = 32


def workflow_names(found: Subject, script: str) -> dict[str, Any]:
    """The names of one script of a workflow. Raises IllegalPlanError for what its version or model cannot do."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "pull_image.sh": lambda: {"built": bool(found.build)},
        "build_image.sh": lambda: build_names(found.build),
        "build_engine.sh": lambda: _engine_names(found),
        "download.sh": lambda: {"hub_requirement": HUB_REQUIREMENT, "draft": found.draft},
        "request.sh": lambda: {"request_body": _request_body(found.plan)},
        "quantize.sh": lambda: _quantize_names(found),
        "sweep.sh": lambda: sweep_names(found.plan, found.deployment),
        "guidellm.sh": lambda: guidellm_names(found.plan),
        "mad.sh": lambda: _mad_names(found),
    }
    if script in OFFLINE_SCRIPTS:
        return offline_names(found, script)
    return makers.get(script, dict)()


def build_names(build: ImageBuild | None) -> dict[str, Any]:
    """How an image is built."""
    if build is None:
        raise IllegalPlanError("this image is pulled, not built", hint="leave out build_image.sh")
    options: list[str] = []
    for name, value in build.args.items():
        options += ["--build-arg", f"{name}={value}"]
    if build.target:
        options += ["--target", build.target]
    return {"build": build, "build_options": tuple(options)}


def _engine_names(found: Subject) -> dict[str, Any]:
    return {
        "base_image": image_for(found.profile, found.version).name,
        "vllm_ref": f"v{found.version}",
        "fastsafetensors_ref": FASTSAFETENSORS_REF,
        "engine_jobs": ENGINE_JOBS,
    }


def _request_body(plan: Plan) -> str:
    """The request of the NVIDIA recipe."""
    return json.dumps({"model": served_name(plan), "prompt": "San Francisco is a", "max_tokens": 20, "temperature": 0})


def _quantize_names(found: Subject) -> dict[str, Any]:
    reads = value_status(found.version, "quantization", "quark")
    remarks = [
        f"The checkpoint is in Quark's own form (quant_method quark); vLLM {found.version}: {reads}.",
        "The document downloads a folder of examples; the command line of the package has the same options.",
        "Quark needs Python 3.11 to 3.13 in the image. Calibration takes 128 samples of its default data set.",
    ]
    return {"job": "quantize", "quark_requirement": QUARK_REQUIREMENT, "quantize_remarks": remarks}


def _mad_names(found: Subject) -> dict[str, Any]:
    if found.version.release > MAD_NEWEST:
        raise IllegalPlanError(
            f"vllm_benchmark_report.sh of ROCm/MAD does not run with vLLM {found.version}: it passes "
            "--num-scheduler-steps, which is gone in 0.10.1",
            hint="choose an --engine-version up to 0.10.0, or planner workflow latency and throughput",
        )
    dtype = "float8" if found.config.weight_dtype == "fp8" else "float16"
    points = offline_points(found)
    return {"job": "mad", "mad_commit": MAD_COMMIT, "mad_dtype": dtype, "points": points}


def instance_names(emission: Emission) -> dict[str, Any]:
    """Several servers on one node and the balancer in front of them, beside the names of the plan's own scripts."""
    plan, base = emission.file.plan, template_names(emission)
    servers = servers_per_node(plan)
    load = _node_load(plan, servers)
    version = options_version(parse_version(plan.engine_version), plan.platform, plan.image)
    argv = bench_serve_argv(load, plan.model, version, port=PORT, platform=plan.platform)
    result = f"node-{plan.digest}.json"
    return {
        **base,
        "copies": servers,
        "first_port": FIRST_PORT,
        "balancer_port": PORT,
        "balanced_addresses": tuple(f"{LOOPBACK}:{port}" for port in range(FIRST_PORT, FIRST_PORT + servers)),
        "balancer_address": f"{LOOPBACK}:{PORT}",
        "balancer_of": "instances.sh",
        "device_groups": "\n".join(gpus_of_server(plan, index) for index in range(servers)),
        "client_docker_args": (*(("--gpus", "all") if base["nvidia"] else ()), *base["docker_args"]),
        "node_bench_argv": tuple(argv),
        "node_warm_up_argv": warm_up_argv(plan, argv, servers),
        "node_seed": load.seed,
        "node_prompts": load.num_prompts,
        "node_result_name": result,
        "node_partial_name": f".partial-{result}",
    }


def _node_load(plan: Plan, servers: int) -> Load:
    """The plan's load on each of ``servers`` servers at once."""
    load = plan.workload
    return Load(
        load.input_len,
        load.output_len,
        load.num_prompts * servers,
        max_concurrency=load.max_concurrency * servers if load.max_concurrency else None,
        request_rate=load.request_rate * servers if load.request_rate else float("inf"),
        seed=load.seed,
    )
