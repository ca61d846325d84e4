"""Fixed plans, written by hand after the published recipes, and the machines that they are for."""

from typing import Any

from planner.hardware.profiles import load_profile
from planner.output.scripts.emission import Emission
from planner.planning.plan import BenchmarkLine, Plan, PlanFile, PlannedClass, PlannedWorkload

AMD_DOCKER = (
    "--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video", "--ipc", "host",
    "--security-opt", "seccomp=unconfined",
)  # fmt: skip
NVIDIA_DOCKER = ("--gpus", "all", "--ipc", "host")
PREDICTED = ("TTFT mean 5,210 ms (4,100 to 6,700)", "output 1,020 tok/s (860 to 1,210)")


def serve(model: str, *options: str, host: str = "0.0.0.0", port: str = "8000") -> tuple[str, ...]:
    return ("vllm", "serve", model, "--host", host, "--port", port, *options)


def bench(model: str, *, concurrency: int, prompts: int, input_len: int, output_len: int) -> tuple[str, ...]:
    return (
        "vllm", "bench", "serve", "--host", "127.0.0.1", "--port", "8000", "--model", model,
        "--dataset-name", "random", "--random-input-len", str(input_len), "--random-output-len", str(output_len),
        "--max-concurrency", str(concurrency), "--num-prompts", str(prompts), "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--seed", "0",
    )  # fmt: skip


def plan(**changes: Any) -> Plan:
    """A plan for one MI355X after AMD's recipe for Llama-3.3-70B, with ``changes``."""
    fields: dict[str, Any] = {
        "gpu": "mi355x",
        "num_gpus": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "requested_model": "meta-llama/Llama-3.3-70B-Instruct",
        "model": "amd/Llama-3.3-70B-Instruct-FP8-KV",
        "gated": False,
        "weight_dtype": "fp8",
        "kv_cache_dtype": "fp8",
        "max_num_seqs": 64,
        "max_num_batched_tokens": 32768,
        "max_model_len": 9216,
        "gpu_memory_utilization": 0.9,
        "block_size": 16,
        "enforce_eager": False,
        "enable_prefix_caching": False,
        "async_scheduling": True,
        "engine_version": "0.11.0",
        "platform": "rocm",
        "image": "rocm/vllm-dev:nightly",
        "image_source": "AMD's quick start recipe for MI355",
        "env": {"VLLM_ROCM_USE_AITER": "1", "SAFETENSORS_FAST_GPU": "1"},
        "docker_args": AMD_DOCKER,
        "serve_argv": serve(
            "amd/Llama-3.3-70B-Instruct-FP8-KV", "--tensor-parallel-size", "1", "--max-num-batched-tokens", "32768",
            "--max-num-seqs", "64", "--max-model-len", "9216", "--gpu-memory-utilization", "0.9",
            "--kv-cache-dtype", "fp8", "--async-scheduling", "--no-enable-prefix-caching",
            "--compilation-config",
            '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["-rms_norm","-quant_fp8","-silu_and_mul"]}',
        ),
        "bench_argv": bench(
            "amd/Llama-3.3-70B-Instruct-FP8-KV", concurrency=64, prompts=320, input_len=8192, output_len=1024
        ),
        "workload": PlannedWorkload(input_len=8192, output_len=1024, num_prompts=320, max_concurrency=64),
        "predicted": {"mean_ttft_ms": 5210.0, "output_throughput": 1020.0},
        "memory": {"kv_cache_bytes": 200_000_000_000},
        "why": ("one GPU gives the most tokens/s per GPU: no all-reduce",),
        "warnings": ("the fits for this GPU rest on few runs",),
    }  # fmt: skip
    fields |= changes
    fields.setdefault("gpus_per_node", load_profile(fields["gpu"]).gpus_per_node)
    return Plan(**fields)


def emission(
    made: Plan, *, profile: str | None = None, command: str = "planner recommend --goal max-throughput", **more: Any
) -> Emission:
    file = PlanFile(planner_version="0.0.0", command=command, goal="max-throughput", plan=made)
    fields: dict[str, Any] = {"checkpoint_bytes": 72_600_000_000, "predicted_lines": PREDICTED, **more}
    return Emission(file=file, profile=load_profile(profile or made.gpu), **fields)


def b200() -> Plan:
    """NVIDIA's recipe for Llama-3.3-70B on Blackwell."""
    model = "nvidia/Llama-3.3-70B-Instruct-FP4"
    return plan(
        gpu="b200-sxm", num_gpus=2, tensor_parallel_size=2, model=model, weight_dtype="nvfp4", max_num_seqs=128,
        max_num_batched_tokens=8192, max_model_len=2048, engine_version="0.14.0", platform="cuda",
        image="vllm/vllm-openai:v0.14.0", image_source="NVIDIA's quick start recipe", env={},
        docker_args=NVIDIA_DOCKER,
        serve_argv=serve(
            model, "--tensor-parallel-size", "2", "--max-num-seqs", "128", "--max-num-batched-tokens", "8192",
            "--max-model-len", "2048", "--gpu-memory-utilization", "0.9", "--kv-cache-dtype", "fp8",
            "--async-scheduling", "--no-enable-prefix-caching",
        ),
        bench_argv=bench(model, concurrency=128, prompts=640, input_len=1024, output_len=1024),
        workload=PlannedWorkload(input_len=1024, output_len=1024, num_prompts=640, max_concurrency=128),
        warnings=(),
    )  # fmt: skip


def b200_newer(image: str = "vllm/vllm-openai:v0.27.1", **env: str) -> Plan:
    """The B200 plan with a release whose image has CUDA 13."""
    return b200().model_copy(update={"engine_version": "0.27.1", "image": image, "env": env})


def partition(gpu: str = "mi300x-cpx", **changes: Any) -> Plan:
    """A 7B model in one 24 GB partition of an MI300X."""
    model = "meta-llama/Llama-2-7b-chat-hf"
    return plan(**{
        "gpu": gpu, "requested_model": model, "model": model, "gated": True, "weight_dtype": "fp16",
        "kv_cache_dtype": "fp16", "max_num_seqs": 8, "max_model_len": 2048, "engine_version": "0.9.1",
        "image": "rocm/vllm-dev:main", "image_source": "AMD's page on vLLM for MI300X",
        "env": {"HIP_VISIBLE_DEVICES": "0", "NCCL_DEBUG": "WARN"},
        "serve_argv": serve(model, "--max-model-len", "2048", "--max-num-seqs", "8"),
        "bench_argv": bench(model, concurrency=8, prompts=40, input_len=1024, output_len=1024),
        "workload": PlannedWorkload(input_len=1024, output_len=1024, num_prompts=40, max_concurrency=8),
        **changes,
    })  # fmt: skip


def mig(gpu: str = "h100-mig-3g.40gb", **changes: Any) -> Plan:
    """The same model in a MIG instance of an H100."""
    return partition(
        gpu,
        **{
            "platform": "cuda",
            "image": "vllm/vllm-openai:v0.9.1",
            "docker_args": NVIDIA_DOCKER,
            "image_source": "the release of the vLLM project",
            "env": {"CUDA_VISIBLE_DEVICES": "0"},
            **changes,
        },
    )


def _class(name: str, seed: int, input_len: int, *more: str, priority: int = 0) -> PlannedClass:
    model = "amd/Llama-3.3-70B-Instruct-FP8-KV"
    words = bench(model, concurrency=0, prompts=40, input_len=input_len, output_len=128)
    at = words.index("--max-concurrency")
    return PlannedClass(
        name=name,
        request_rate=4.0,
        priority=priority,
        targets_ms={"ttft": 500.0},
        workload=PlannedWorkload(
            input_len=input_len, output_len=128, num_prompts=40, request_rate=2.0, seed=seed
        ),
        bench_argv=(*words[:at], "--request-rate", "2.0", *words[at + 2 : -1], str(seed), *more),
        predicted={"mean_ttft_ms": 210.0},
    )  # fmt: skip


def classes(**changes: Any) -> Plan:
    """The first plan with two classes of requests; the name of one is no file name."""
    later = ("--extra-body", '{"priority": 1}')
    return plan(
        classes=(_class("chat", 0, 512), _class("batch; rm -rf $HOME", 1, 4096, *later, priority=1)),
        bench_argv=(),
        workload=PlannedWorkload(input_len=2304, output_len=128, num_prompts=80, request_rate=4.0),
        **changes,
    )


CLASSES = emission(classes())

#: Kept word by word under ``golden/``.
GOLDEN = {
    "mi355x": emission(plan(), expected_accuracy=("gsm8k, flexible-extract: 0.9052 ± 0.0081 (AMD's recipe)",)),
    "b200-x2": emission(b200(), checkpoint_bytes=42_700_000_000),
    "mi300x-cpx-nps4": emission(partition("mi300x-cpx-nps4"), checkpoint_bytes=13_500_000_000),
    "h100-mig": emission(mig(), checkpoint_bytes=13_500_000_000),
}

#: Every branch of every template at least once.
DRAFTS = '{"method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "synthetic"}'
DRAFTED = BenchmarkLine(
    max_model_len=2048, max_num_seqs=128, enable_prefix_caching=True, output_throughput_per_gpu=1e3, mean_e2el_ms=1e4,
    serve_argv=serve("amd/Llama-3.3-70B-Instruct-FP8-KV", "--speculative-config", DRAFTS),
)  # fmt: skip
MATRIX = {
    **GOLDEN,
    "mi300x-x8": emission(plan(gpu="mi300x", num_gpus=8, tensor_parallel_size=8, gated=None)),
    "mi355x-dpx-nps2": emission(partition("mi355x-dpx-nps2")),
    "mi300x-qpx": emission(
        partition("mi300x-qpx", num_gpus=2, tensor_parallel_size=2, env={"HIP_VISIBLE_DEVICES": "0,1"})
    ),
    "h100-gated": emission(b200().model_copy(update={"gpu": "h100-sxm", "gated": True})),
    "gb10": emission(b200().model_copy(update={"gpu": "gb10", "num_gpus": 1, "tensor_parallel_size": 1})),
    "b200-cuda-13": emission(b200_newer()),
    "b200-cu129": emission(b200_newer("vllm/vllm-openai:v0.27.1-cu129")),
    "b200-compatible": emission(b200_newer(VLLM_ENABLE_CUDA_COMPATIBILITY="1")),
    "local-folder": emission(plan(model="/models/my llama", serve_argv=serve("/models/my llama", port="9000"))),
    "short-context": emission(plan(max_model_len=1024, docker_args=(), warnings=())),
    "cpu": emission(plan(gpu="cpu", platform="cpu", docker_args=(), image="vllm/vllm-openai-cpu:latest")),
    "benchmark-line": emission(plan(benchmark_line=DRAFTED)),
}
