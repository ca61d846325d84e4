"""vLLM's own oracle judges which engine a line gets in the releases that had two: options, models and pipelines."""

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from commands import Job, in_vllm

from planner.engine.features import V0_GONE_IN
from planner.engine.parse import read_line
from planner.engine.resolution import resolve
from planner.engine.version import EngineVersion, parse_version
from planner.errors import IllegalPlanError
from planner.hardware.profiles import load_profile
from planner.model.architecture import Attention, Model
from planner.model.resolve import resolve_model
from planner.planning.serving import asked_by

#: Where something changes, and the folder of libraries that the tree imports.
VERSIONS = {
    "0.8.5": "0.9", "0.9.0.1": "0.9", "0.9.1": "0.9", "0.9.2": "0.9", "0.10.1": "0.14", "0.10.2": "0.14",
    "0.11.0": "0.14",
}  # fmt: skip
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MODELS = (
    LLAMA, "bigscience/bloom", "meta-llama/Llama-3.2-11B-Vision-Instruct", "mistralai/Mistral-7B-v0.1",
    "ai21labs/Jamba-v0.1", "nvidia/NVIDIA-Nemotron-Nano-9B-v2",
)  # fmt: skip
NGRAM = '{"method":"ngram","num_speculative_tokens":2,"prompt_lookup_max":4}'
OPTIONS = (
    "--num-scheduler-steps 8", "--num-scheduler-steps 1", "--scheduling-policy priority", "--scheduling-policy fcfs",
    "--preemption-mode swap", "--scheduler-delay-factor 0.5", "--scheduler-delay-factor 0",
    "--disable-async-output-proc", "--guided-decoding-backend outlines", "--guided-decoding-backend xgrammar",
    "--guided-decoding-backend lm-format-enforcer", "--enable-prompt-adapter", "--enable-prompt-embeds",
    "--max-num-partial-prefills 2", "--max-num-partial-prefills 2 --max-long-partial-prefills 2",
    "--otlp-traces-endpoint http://a:1", "--load-format sharded_state", "--load-format tensorizer",
    "--logits-processor-pattern x", "--dtype float32", f"--speculative-config {NGRAM}",
    "--pipeline-parallel-size 2", "--pipeline-parallel-size 2 --distributed-executor-backend ray",
    "--pipeline-parallel-size 2 --distributed-executor-backend mp",
)  # fmt: skip
BACKENDS = ("XFORMERS", "FLASH_ATTN", "FLASHINFER", "FLASHMLA")
USE_V1 = ({}, {"VLLM_USE_V1": "1"})

Case = tuple[str, str, dict[str, str], str]  #: model, words, variables, GPU


def cases() -> Iterator[Case]:
    """What is asked of each version."""
    yield from ((LLAMA, words, env, "h100-sxm") for words, env in product(OPTIONS, USE_V1))
    yield from ((LLAMA, "", {"VLLM_ATTENTION_BACKEND": name}, "h100-sxm") for name in BACKENDS)
    yield from ((model, "", env, gpu) for model, env, gpu in product(MODELS, USE_V1, ("h100-sxm", "cpu")))


def ours(case: Case, version: EngineVersion) -> str:
    """What the planner says; empty for a line that the parser of the version refuses."""
    name, words, env, gpu = case
    model, profile = resolve_model(name, network=False).model, load_profile(gpu)
    line = read_line(["vllm", "serve", name, *words.split()], version, env=env, platform=profile.platform)
    if line.refused:
        return ""
    try:
        asked = asked_by(line, model, profile, version)
        return resolve(line.args, model, profile, asked).engine
    except IllegalPlanError as error:
        return "V0" if "by its V0 engine" in error.cause else f"ends: {error.cause}"


def window_of(model: Model) -> int | None:
    """What ``sliding_window`` of a config holds."""
    return next((m.window for m in model.mixers() if isinstance(m, Attention) and m.window), None)


def main(venv: Path, trees: Path) -> int:
    """1 where the oracle and the planner disagree."""
    asked, jobs, wrong = [], [], 0
    for name, libraries in VERSIONS.items():
        version = parse_version(name)
        own = [(case, said) for case in cases() if (said := ours(case, version))]
        asked.append((version, own))
        data = []
        for (model_id, words, env, gpu), _ in own:
            model = resolve_model(model_id, network=False).model
            facts = {"architecture": model.architecture, "window": window_of(model), "cpu": gpu == "cpu"}
            data.append({"words": words.split(), "env": env, **facts})
        jobs.append(Job("which_engine.py", data, (trees / f"vllm-{name}", trees / f"libraries-{libraries}")))
    for (version, own), verdicts in zip(asked, in_vllm(jobs, venv / "bin" / "python"), strict=True):
        if version.release >= V0_GONE_IN:  # what falls back has nothing to fall back to
            verdicts = ["ends: V0" if real == "V0" else real for real in verdicts]
        judged = [(case, said, real) for (case, said), real in zip(own, verdicts, strict=True) if real]
        differing = [one for one in judged if one[1][:4] != one[2][:4]]
        for case, said, real in differing:
            print(f"  {case}: {said}\n    -> {real}")
        lines = f"{len(judged) - len(differing)} of {len(judged)} lines"
        print(f"vLLM {version}: the engine of {lines} is as its oracle says")
        wrong += len(differing)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()))
