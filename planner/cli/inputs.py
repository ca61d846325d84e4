"""From what the user typed to facts: GPUs, models, engine versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.engine.version import EngineVersion, parse_version
from planner.errors import InputError
from planner.hardware import GpuProfile, load_all, load_profile
from planner.model.resolve import ResolvedModel, load_model


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
    from planner.model.quantization import as_quantized

    resolved = load_model(name, revision=revision, refresh=refresh)
    if weight_dtype is None:
        return resolved
    model = as_quantized(resolved.model, weight_dtype)
    return replace(resolved, model=model, notes=(*resolved.notes, f"the usual form of {weight_dtype} is assumed"))


def engine_version_for(text: str | None, profile: GpuProfile) -> EngineVersion:
    """The version asked for, else the newest for which an image of this GPU is pinned."""
    if text is not None:
        return parse_version(text)
    from planner.engine.images import default_version

    return default_version(profile)
