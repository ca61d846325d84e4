"""Which checkpoints of a model may be served: the one asked for, and those of publishers that are trusted."""

from __future__ import annotations

from collections.abc import Iterator

from planner.hardware import GpuProfile
from planner.model import catalog
from planner.model.resolve import ResolvedModel, load_model
from planner.recommend.request import Rejected

#: Besides the model's own publisher: those who publish evaluations with their quantised checkpoints.
TRUSTED_PUBLISHERS = frozenset({"amd", "nvidia", "redhatai"})


def checkpoints(
    asked: ResolvedModel, profile: GpuProfile, rejected: list[Rejected] | None = None
) -> Iterator[ResolvedModel]:
    """The model asked for and, where that is not quantised, the quantised checkpoints that this GPU runs."""
    yield asked
    if asked.model.quantization.method or asked.source == "path":
        return
    seen: set[tuple[str, str | None]] = set()
    for checkpoint in catalog.checkpoints_of(asked.resolved):
        reason = _not_trusted(checkpoint, asked) or _not_for(checkpoint, profile)
        key = (checkpoint.weight_dtype, checkpoint.kv_cache_dtype)
        if reason is None and key in seen:
            reason = "another checkpoint of the same precision is considered"
        if reason is not None:
            if rejected is not None:
                rejected.append(
                    Rejected(profile.id, checkpoint.id, None, None, reason, weight_dtype=checkpoint.weight_dtype)
                )
            continue
        seen.add(key)
        yield load_model(checkpoint.id, network=False)


def _not_trusted(checkpoint: catalog.Checkpoint, asked: ResolvedModel) -> str | None:
    if checkpoint.publisher.lower() in TRUSTED_PUBLISHERS or checkpoint.publisher == asked.resolved.split("/")[0]:
        return None
    return f"quantised by {checkpoint.publisher}: ask for it by name to plan it"


def _not_for(checkpoint: catalog.Checkpoint, profile: GpuProfile) -> str | None:
    if profile.vendor in ("amd", "nvidia") and profile.vendor not in checkpoint.platforms:
        return f"published for {' and '.join(checkpoint.platforms)} GPUs"
    if checkpoint.weight_dtype in profile.emulated:
        return (
            f"{profile.name} computes {checkpoint.weight_dtype} in {profile.emulated[checkpoint.weight_dtype]}: "
            "saves memory, not time; ask for the checkpoint by name to plan it"
        )
    return None
