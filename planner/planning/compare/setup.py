"""Equal hardware: as many whole GPUs of each type, and the equal servers that stand on them.

A whole GPU is what one rents. Eight CPX partitions with TP 1 on each and one server on the GPU that they are parts of
are equal hardware; so are four servers of TP 2 and one of TP 8. Which of the legal sizes serves a load best is found
for each load; the engine's other settings are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.engine import EngineArgs, EngineVersion, default_version, legal_tensor_parallel_sizes
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import Model
from planner.planning.defaults import Per
from planner.planning.deployment import Deployment, resolve_deployment
from planner.timing import Calibration
from planner.units import GIB


@dataclass(frozen=True)
class Question:
    """What is served with which settings, and the fits that predict it."""

    model: Model
    args: EngineArgs
    per: Per = "package"
    share: int | None = None  #: whole GPUs of each type, or logical ones; None: the fewest on which all hold the model
    sizes: tuple[int, ...] = ()  #: tensor-parallel sizes to try; empty: all that are legal
    version: EngineVersion | None = None  #: None: the newest with an image for each GPU
    basis: Basis = SHIPPED_BASIS
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Setup:
    """GPUs of one type, and the equal servers on them that share a load."""

    deployment: Deployment
    num_gpus: int  #: logical GPUs that are paid for
    servers: int
    counted_gpus: float  #: GPUs in figures per GPU: whole ones, or with ``per`` of ``gpu`` logical ones

    @property
    def profile(self) -> GpuProfile:
        """The (logical) GPU."""
        return self.deployment.profile

    @property
    def idle_gpus(self) -> int:
        """Logical GPUs that are paid for and too few for one more server."""
        return self.num_gpus - self.servers * self.deployment.config.num_gpus


@dataclass(frozen=True, slots=True)
class RefusedGpu:
    """A GPU that does not take part, and why."""

    gpu: str
    reason: str


def find_setups(question: Question, profile: GpuProfile, num_gpus: int, longest_len: int) -> list[Setup] | RefusedGpu:
    """Every way to put servers that hold one request of ``longest_len`` tokens on ``num_gpus`` logical GPUs."""
    reasons: list[str] = []
    found: list[Setup] = []
    counted = num_gpus if question.per == "gpu" else num_gpus / profile.parts
    version = question.version or default_version(profile)
    for size in _sizes(question, profile, num_gpus):
        args = replace(question.args, tensor_parallel_size=size)
        try:
            deployment = resolve_deployment(
                question.model, profile, args, version, basis=question.basis, calibration=question.calibration
            )
        except PlannerError as error:
            reasons.append(error.cause)
            continue
        servers = num_gpus // deployment.config.num_gpus
        if not servers:
            reasons.append(f"one server takes {deployment.config.num_gpus} GPUs, there are {num_gpus}")
        elif deployment.requests_held(longest_len) < 1:
            stage = deployment.budget.binding
            weights, left = stage.weights.loaded_bytes / GIB, max(stage.available.mid, 0) / GIB
            reasons.append(f"TP {size}: {weights:.1f} GiB of weights on each GPU leave {left:.1f} GiB for the KV cache")
        else:
            found.append(Setup(deployment, num_gpus, servers, counted))
    return found or RefusedGpu(profile.id, reasons[-1] if reasons else "no tensor-parallel size is legal")


def find_share(question: Question, profiles: Sequence[GpuProfile], longest_len: int) -> int:
    """GPUs for each type, whole or logical: the fewest, a power of two, on which all types hold the model.

    Types that cannot hold it within a node do not count.
    """
    if question.share:
        return question.share
    fewest = [_fewest(question, profile, longest_len) for profile in profiles]
    return max((number for number in fewest if number is not None), default=1)


def count_gpus(question: Question, profile: GpuProfile, share: int) -> int:
    """Logical GPUs that one type gets."""
    if question.per == "node":
        return profile.gpus_per_node
    return share * (profile.parts if question.per == "package" else 1)


def _fewest(question: Question, profile: GpuProfile, longest_len: int) -> int | None:
    share = 1
    while (num_gpus := count_gpus(question, profile, share)) <= profile.gpus_per_node:
        if not isinstance(find_setups(question, profile, num_gpus, longest_len), RefusedGpu):
            return share
        share *= 2
    return None


def _sizes(question: Question, profile: GpuProfile, num_gpus: int) -> Iterator[int]:
    if question.sizes:
        yield from question.sizes
        return
    legal = legal_tensor_parallel_sizes(
        question.model, profile, allow_unvalidated=question.args.allow_unvalidated, fp8_blocks="refined"
    )
    powers = [size for size in legal if size & (size - 1) == 0 and size <= num_gpus]
    yield from powers or (1,)  # refused in the engine's own words
