"""What the templates of workflows may name beside the names of every plan's scripts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.engine import bench_serve_argv, image_for, parse_version, value_status
from planner.errors import IllegalPlanError
from planner.output.scripts.emission import Emission, option, warm_up_argv, without_option
from planner.output.workflows.catalog import ImageBuild
from planner.output.workflows.loads import concurrency_loads, node_load, offline_points, rate_loads
from planner.output.workflows.subject import Subject
from planner.planning import Deployment, Plan

HUB_REQUIREMENT = "huggingface_hub==2.4.0"
GUIDELLM_REQUIREMENT = "guidellm[recommended]==0.8.1"
QUARK_REQUIREMENT = "amd-quark[cli]==0.13"
FASTSAFETENSORS_REF = "v0.1.15-rocm7-preview"  #: the release that the MI355X recipe links
#: A commit of ROCm/MAD with vllm_benchmark_report.sh
MAD_COMMIT = "047bbf930397b21bb582443fb95bf8b9808914f3"
#: MAD's script passes --num-scheduler-steps and calls benchmarks/benchmark_*.py
MAD_NEWEST = (0, 10, 0)
BALANCER_PORT = 8000
FIRST_PORT = 8001
ENGINE_JOBS = 32

#: Scripts made from a template of another name.
TEMPLATES = {
    "latency.sh": "offline.sh.j2",
    "ttft.sh": "offline.sh.j2",
    "throughput.sh": "offline.sh.j2",
    "speculative.sh": "offline.sh.j2",
    "quick_reduce.sh": "offline.sh.j2",
    "aiter.sh": "offline.sh.j2",
}
OFFLINE_TITLES = {
    "latency.sh": "Measure the latency of batches offline.",
    "ttft.sh": "Measure the time to first token offline: one output token, no graphs.",
    "throughput.sh": "Measure the throughput with all prompts at once, offline.",
    "speculative.sh": "Measure latency with and without a small model that drafts.",
    "quick_reduce.sh": "Measure latency with quick reduce off, and in each of its number formats.",
    "aiter.sh": "Measure latency with and without AITER.",
}


def copies_of(plan: Plan) -> int:
    """How many servers like this one a node holds."""
    return plan.gpus_per_node // plan.num_gpus


def workflow_script_names(found: Subject, emission: Emission, base: Mapping[str, Any], script: str) -> dict[str, Any]:
    """The names of one script of a workflow. Raises IllegalPlanError for what its version or model cannot do."""
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "pull_image.sh": lambda: {"built": bool(found.build)},
        "build_image.sh": lambda: build_names(found.build),
        "build_engine.sh": lambda: _engine_names(found),
        "download.sh": lambda: {"hub_requirement": HUB_REQUIREMENT},
        "request.sh": lambda: {"request_body": _request_body(found.plan)},
        "quantize.sh": lambda: _quantize_names(found),
        "sweep.sh": lambda: sweep_names(found.plan, found.deployment),
        "guidellm.sh": lambda: _guidellm_names(found),
        "mad.sh": lambda: _mad_names(found),
        "instances.sh": lambda: instance_names(emission, base),
        "nginx.conf": lambda: instance_names(emission, base),
    }
    if TEMPLATES.get(script) == "offline.sh.j2":
        return _offline_names(found, script)
    return makers.get(script, dict)()


def _offline_names(found: Subject, script: str) -> dict[str, Any]:
    points = offline_points(found, "throughput" if script == "throughput.sh" else "latency")
    return {
        "title": OFFLINE_TITLES[script],
        "job": script.removesuffix(".sh").replace("_", "-"),
        "points": points,
        "points_total": len(points),
    }


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


def workflow_served_name(plan: Plan) -> str:
    """The name that requests have to give."""
    return option(plan.serve_argv, "--served-model-name") or plan.model


def _request_body(plan: Plan) -> str:
    """The request of the NVIDIA recipe."""
    return json.dumps(
        {"model": workflow_served_name(plan), "prompt": "San Francisco is a", "max_tokens": 20, "temperature": 0}
    )


def _quantize_names(found: Subject) -> dict[str, Any]:
    reads = value_status(found.version, "quantization", "quark")
    remarks = [
        f"The checkpoint is in Quark's own form (quant_method quark); vLLM {found.version}: {reads}.",
        "The document downloads a folder of examples; the command line of the package has the same options.",
        "Quark needs Python 3.11 to 3.13 in the image. Calibration takes 128 samples of its default data set.",
    ]
    return {"job": "quantize", "quark_requirement": QUARK_REQUIREMENT, "quantize_remarks": remarks}


def sweep_names(plan: Plan, deployment: Deployment) -> dict[str, Any]:
    """Both kinds of loads."""
    closed, rates = concurrency_loads(plan, deployment), rate_loads(plan, deployment)
    return {
        "concurrency_loads": closed,
        "concurrency_total": len(closed),
        "rate_loads": rates,
        "rate_total": len(rates),
    }


def _guidellm_names(found: Subject) -> dict[str, Any]:
    loads = concurrency_loads(found.plan, found.deployment)
    return {
        "guidellm_requirement": GUIDELLM_REQUIREMENT,
        **_guidellm_arguments(found.plan),
        "guidellm_total": len(loads),
        "concurrency_loads": loads,
    }


def _guidellm_arguments(plan: Plan) -> dict[str, str]:
    """JSON, because GuideLLM cuts its other form at every comma."""
    load = plan.workload
    return {
        "guidellm_backend": json.dumps({"kind": "openai_http", "model": workflow_served_name(plan)}),
        "guidellm_tokenizer": json.dumps({"kind": "huggingface_auto", "model": plan.model}),
        "guidellm_data": json.dumps(
            {"kind": "synthetic_text", "prompt_tokens": load.input_len, "output_tokens": load.output_len}
        ),
    }


def _mad_names(found: Subject) -> dict[str, Any]:
    if found.version.release > MAD_NEWEST:
        raise IllegalPlanError(
            f"vllm_benchmark_report.sh of ROCm/MAD does not run with vLLM {found.version}: it passes "
            "--num-scheduler-steps, which is gone in 0.10.1",
            hint="choose an --engine-version up to 0.10.0, or planner workflow latency and throughput",
        )
    dtype = "float8" if found.config.weight_dtype == "fp8" else "float16"
    return {"job": "mad", "mad_commit": MAD_COMMIT, "mad_dtype": dtype}


def instance_names(emission: Emission, base: Mapping[str, Any]) -> dict[str, Any]:
    """Several servers on one node and what spreads requests over them."""
    plan, profile = emission.file.plan, emission.profile
    copies = copies_of(plan)
    nvidia = profile.vendor == "nvidia"
    own = without_option(plan.docker_args, "--gpus") if nvidia else plan.docker_args
    client = ("--gpus", "all", *own) if nvidia else own
    load, version = node_load(plan, copies), parse_version(plan.engine_version)
    argv = bench_serve_argv(load, plan.model, version, port=BALANCER_PORT, platform=plan.platform)
    result = f"node-{base['digest']}.json"
    return {
        "copies": copies,
        "first_port": FIRST_PORT,
        "balancer_port": BALANCER_PORT,
        "balanced_addresses": tuple(f"127.0.0.1:{port}" for port in range(FIRST_PORT, FIRST_PORT + copies)),
        "balancer_address": f"127.0.0.1:{BALANCER_PORT}",
        "balancer_of": "instances.sh",
        "device_groups": "\n".join(_groups(copies, plan.num_gpus)),
        "docker_args": own,
        "client_docker_args": client,
        "shared_env_words": tuple(w for w in base["env_words"] if not w.startswith("HIP_VISIBLE_DEVICES=")),
        "nvidia": nvidia,
        "node_bench_argv": tuple(argv),
        "node_warm_up_argv": warm_up_argv(plan, argv, copies),
        "node_seed": load.seed,
        "node_prompts": load.num_prompts,
        "node_result_name": result,
        "node_partial_name": f".partial-{result}",
    }


def _groups(copies: int, size: int) -> Sequence[str]:
    """The numbers of the GPUs of each copy: ``0,1`` and ``2,3``."""
    return [",".join(str(copy * size + index) for index in range(size)) for copy in range(copies)]
