"""From what the user typed to facts: GPUs, models, engine versions, targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from planner.engine.version import EngineVersion, parse_version
from planner.errors import InputError
from planner.hardware import GpuProfile, load_all, load_profile
from planner.model.resolve import ResolvedModel, load_model

if TYPE_CHECKING:
    from planner.workload import Workload

LONGEST_REPLAY_S = 1_000_000  #: eleven days; beyond, the clock gets too coarse for single steps


def gpu_profiles(names: Sequence[str]) -> list[GpuProfile]:
    """The profiles of ``names`` in their order, each once; ``all`` is every profile."""
    if any(name.lower() == "all" for name in names):
        return list(load_all())
    profiles: dict[str, GpuProfile] = {}
    for name in names:
        profile = load_profile(name)
        profiles.setdefault(profile.id, profile)
    if not profiles:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    return list(profiles.values())


def model_as(name: str, weight_dtype: str | None, *, revision: str | None, refresh: bool) -> ResolvedModel:
    """The model, in the usual form of ``weight_dtype`` where that is given."""
    resolved = load_model(name, revision=revision, refresh=refresh)
    if weight_dtype is None:
        return resolved
    from planner.model.quantization import as_quantized

    model = as_quantized(resolved.model, weight_dtype)
    return replace(resolved, model=model, notes=(*resolved.notes, f"the usual form of {weight_dtype} is assumed"))


def engine_version_for(text: str | None, profile: GpuProfile) -> EngineVersion:
    """The version asked for, else the newest for which an image of this GPU is pinned."""
    if text is not None:
        return parse_version(text)
    from planner.engine.images import default_version

    return default_version(profile)


def check_context(workload: Workload, max_model_len: int, model: str) -> None:
    """Raises InputError where a request of the load is longer than the context: the server would refuse it."""
    longest = workload.max_total_len
    if longest > max_model_len:
        raise InputError(
            f"--input-len {workload.input_len} and --output-len {workload.output_len} make requests of {longest} "
            f"tokens, more than the {max_model_len} that {model} is served with",
            hint="shorten them, raise --max-model-len where that is what limits, or choose a model of longer context",
        )


def check_duration(workload: Workload) -> None:
    """Raises InputError where the arrivals alone take longer than a replay can follow."""
    arrivals_s = workload.num_prompts / workload.request_rate
    if arrivals_s > LONGEST_REPLAY_S:
        raise InputError(
            f"--request-rate {workload.request_rate:g}: {workload.num_prompts} requests arrive over {arrivals_s:.3g} s",
            hint=f"raise the rate or send fewer prompts: a replay covers {LONGEST_REPLAY_S:,} s",
        )


def percentiles(text: str) -> tuple[float, ...]:
    """The numbers of ``50,90,99``. Raises InputError for anything else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--metric-percentiles {text!r} is not a list of numbers", hint="for example 50,90,99"
        ) from error


def goodput(words: Sequence[str]) -> dict[str, float]:
    """Targets in ms by metric, from ``ttft:500``. Raises InputError for anything else."""
    targets: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            targets[name] = float(text)
        except ValueError:
            targets[name] = float("nan")
        if not (isfinite(targets[name]) and targets[name] > 0):
            raise InputError(f"--goodput {word!r} is not a target in ms", hint="for example --goodput ttft:500")
    return targets
