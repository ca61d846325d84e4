"""From a plan to scripts: templates substitute, and everything else is decided before they run.

Every value passes a filter: ``sh`` quotes it for the shell, ``argv`` quotes a whole command line, ``comment``
keeps it on one comment line. An undefined name is an error, and no template computes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import jinja2

from planner import __version__
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.plan import PlanFile
from planner.resources import data_dir
from planner.units import GB, MIB

PORT = 8000
SCRIPTS = ("preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh")
LM_EVAL_REQUIREMENT = "lm-eval[api]>=0.4.9.1"  # the release that the NVIDIA recipe pins
ACCURACY_CONCURRENCY = 128  # of the NVIDIA recipe


@dataclass(frozen=True, slots=True)
class Emission:
    """Everything that the templates may name."""

    file: PlanFile
    profile: GpuProfile
    checkpoint_bytes: int
    predicted_lines: tuple[str, ...]
    expected_accuracy: tuple[str, ...] = ()


def quote(value: object) -> str:
    """One word of a shell command."""
    return shlex.quote(str(value))


def comment(value: object) -> str:
    """Text that cannot leave its comment line: control characters and line breaks become spaces."""
    return re.sub(r"[\x00-\x1f\x7f\u0085\u2028\u2029]+", " ", str(value)).rstrip("\\ ")


def argv(words: Sequence[object]) -> str:
    """A command line over several lines, a flag and its value on each."""
    lines: list[str] = []
    for word in map(str, words):
        if lines and not word.startswith("-") and lines[-1].startswith("-") and " " not in lines[-1]:
            lines[-1] += " " + quote(word)
        else:
            lines.append(quote(word))
    return " \\\n  ".join(lines)


def container_name(file: PlanFile) -> str:
    """Name of the container, the same for all scripts of one plan."""
    return f"planner-{file.plan.digest}"


def result_name(file: PlanFile) -> str:
    """Name of the benchmark's result file under ``results/``."""
    return f"serve-{file.plan.digest}.json"


def render(emission: Emission) -> dict[str, str]:
    """File name to content, ``plan.json`` and the runbook included."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_dir("templates") / "vllm"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (shell scripts, not HTML: every value passes a shell filter)
    )
    environment.filters.update(sh=quote, comment=comment, argv=argv)
    names = _names(emission)
    files = {name: environment.get_template(f"{name}.j2").render(names) for name in (*SCRIPTS, "RUNBOOK.md")}
    return {"plan.json": emission.file.to_json(), **files}


def _names(emission: Emission) -> dict[str, Any]:
    file, profile = emission.file, emission.profile
    plan = file.plan
    partition = profile.partition
    driver = profile.memory.driver or profile.memory.engine_visible
    return {
        "plan": plan,
        "goal": file.goal,
        "command": file.command,
        "digest": plan.digest,
        "planner_version": __version__,
        "gpu_name": profile.name,
        "container": container_name(file),
        "result_name": result_name(file),
        "port": PORT,
        "container_port": PORT,
        "load": describe_load(file),
        "predicted_lines": emission.predicted_lines,
        "expected_accuracy": emission.expected_accuracy,
        "lm_eval_requirement": LM_EVAL_REQUIREMENT,
        "accuracy_concurrency": ACCURACY_CONCURRENCY,
        "checkpoint_gb": ceil(emission.checkpoint_bytes / GB),
        # a little less than the profile says: the same GPU shows a few MiB more or less from driver to driver
        "driver_memory_mib": int(driver.base / MIB * 0.99),
        "partition": partition,
        "partition_fix": partition_command(profile),
        "settings": tuple(_settings(file)),
        "serve_command": shlex.join(plan.serve_argv),
    }


def describe_load(file: PlanFile) -> str:
    """The load in words."""
    load = file.plan.workload
    arrival = f"at most {load.max_concurrency} in flight" if load.max_concurrency else "sent as they arrive"
    if load.request_rate:
        arrival += f", {load.request_rate:g} requests/s"
    return f"{load.num_prompts} requests of {load.input_len} input and {load.output_len} output tokens, {arrival}"


def partition_command(profile: GpuProfile) -> str:
    """How to bring a GPU into the profile's partition mode; empty for a whole GPU."""
    if not profile.partition:
        return ""
    if profile.vendor == "nvidia":
        return "enable MIG and create the instances: sudo nvidia-smi -mig 1, then sudo nvidia-smi mig -cgi PROFILE -C"
    memory = (
        f"; sudo amd-smi set --memory-partition {profile.partition.memory_mode}"
        if profile.partition.memory_mode
        else ""
    )
    compute = f"sudo amd-smi set --gpu all --compute-partition {profile.partition.compute_mode}"
    return f"with no process on the GPUs: {compute}{memory}"


def _settings(file: PlanFile) -> Iterable[tuple[str, object]]:
    plan = file.plan
    for name in (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "weight_dtype", "kv_cache_dtype",
        "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "engine_version", "image",
    ):  # fmt: skip
        yield name, getattr(plan, name)


def write(directory: Path, files: dict[str, str], *, force: bool) -> None:
    """Write all files or none: into a folder beside, then renamed into place.

    Raises InputError when ``directory`` exists and not ``force``, or cannot be written.
    """
    if directory.exists() and not force:
        raise InputError(
            f"{directory} already exists", hint="give another folder to -o, or add --force to replace it"
        )
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file", hint="give another folder to -o")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise InputError(
            f"cannot write {directory}: {error.strerror}", hint="give a folder that you may write to"
        ) from error
    try:
        for name, content in files.items():
            path = staging / name
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
        staging.chmod(0o755)
        _replace(staging, directory)
    except OSError as error:
        raise InputError(
            f"cannot write {directory}: {error.strerror}", hint="give a folder that you may write to"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, directory: Path) -> None:
    """Put the new files in place; results and logs of an earlier run stay."""
    if not directory.exists():
        staging.rename(directory)
        return
    for path in staging.iterdir():
        path.replace(directory / path.name)
