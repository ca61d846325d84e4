"""Equal hardware: as many packages of each GPU, and how many servers of which size stand on them.

A package is what one rents: a whole GPU, or all partitions of one. Eight CPX instances with TP 1 and one SPX server
are equal hardware; so are four servers of TP 2 and one of TP 8. Which of the legal sizes serves a load best is
found out for each load; the engine's other settings are the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.engine import EngineArgs, EngineVersion, default_version, legal_tensor_parallel_sizes
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.memory import SHIPPED_BASIS, Basis
from planner.model import Model
from planner.planning.deployment import Deployment, resolve_deployment
from planner.timing import Calibration
from planner.units import GIB

#: What each GPU type gets as much of. ``gpu``: logical GPUs as they are, so a partition stands for itself.
Per = Literal["package", "node", "gpu"]


@dataclass(frozen=True)
class Question:
    """What is served, with which settings, on which ground the predictions stand."""

    model: Model
    args: EngineArgs
    per: Per = "package"
    share: int | None = None  #: packages of each, or logical GPUs; None: the fewest on which all hold the model
    sizes: tuple[int, ...] = ()  #: tensor-parallel sizes to try; empty: all that are legal
    version: EngineVersion | None = None  #: None: the newest with an image for each GPU
    basis: Basis = SHIPPED_BASIS
    calibration: Calibration | None = None

    def version_for(self, profile: GpuProfile) -> EngineVersion:
        """The engine's version on ``profile``."""
        return self.version or default_version(profile)


@dataclass(frozen=True)
class Machine:
    """Hardware of one kind, and the equal servers on it that share a load."""

    deployment: Deployment
    units: int  #: logical GPUs that are paid for
    servers: int
    gpus: float  #: what counts as one GPU in figures per GPU: packages, or with ``per`` of ``gpu`` logical GPUs

    @property
    def profile(self) -> GpuProfile:
        """The (logical) GPU."""
        return self.deployment.profile

    @property
    def idle(self) -> int:
        """Logical GPUs that are paid for and too few for one more server."""
        return self.units - self.servers * self.deployment.config.num_gpus


@dataclass(frozen=True, slots=True)
class RefusedMachine:
    """A GPU that does not take part, and why."""

    gpu: str
    reason: str


def machines(question: Question, profile: GpuProfile, units: int, longest_len: int) -> list[Machine] | RefusedMachine:
    """Every way to put servers on ``units`` logical GPUs of which each holds one request of ``longest_len`` tokens."""
    reasons: list[str] = []
    found: list[Machine] = []
    for size in _sizes(question, profile, units):
        args = replace(question.args, tensor_parallel_size=size)
        try:
            deployment = _deployed(question, profile, args)
        except PlannerError as error:
            reasons.append(error.cause)
            continue
        servers = units // deployment.config.num_gpus
        if not servers:
            reasons.append(f"one server takes {deployment.config.num_gpus} GPUs, there are {units}")
        elif deployment.requests_held(longest_len) < 1:
            reasons.append(f"TP {size}: {_why_not(deployment)}")
        else:
            found.append(Machine(deployment, units, servers, units if question.per == "gpu" else units / profile.parts))
    return found or RefusedMachine(profile.id, reasons[-1] if reasons else "no tensor-parallel size is legal")


def fair_share(question: Question, profiles: Sequence[GpuProfile], longest_len: int) -> int:
    """Packages (of ``gpu``: logical GPUs) for each: the fewest, a power of two, on which all hold the model.

    Those that cannot hold it within a node have no say.
    """
    if question.share:
        return question.share
    fewest = [_fewest(question, profile, longest_len) for profile in profiles]
    return max((number for number in fewest if number is not None), default=1)


def units_of(question: Question, profile: GpuProfile, share: int) -> int:
    """Logical GPUs in ``share`` packages, or in a node."""
    if question.per == "node":
        return profile.gpus_per_node
    return share * (profile.parts if question.per == "package" else 1)


def _fewest(question: Question, profile: GpuProfile, longest_len: int) -> int | None:
    share = 1
    while units_of(question, profile, share) <= profile.gpus_per_node:
        if not isinstance(machines(question, profile, units_of(question, profile, share), longest_len), RefusedMachine):
            return share
        share *= 2
    return None


def _sizes(question: Question, profile: GpuProfile, units: int) -> Iterator[int]:
    if question.sizes:
        yield from question.sizes
        return
    legal = legal_tensor_parallel_sizes(
        question.model, profile, allow_unvalidated=question.args.allow_unvalidated, refines_fp8_blocks=True
    )
    powers = [size for size in legal if size & (size - 1) == 0 and size <= units]
    yield from powers or (1,)  # refused in the engine's own words


def _deployed(question: Question, profile: GpuProfile, args: EngineArgs) -> Deployment:
    return resolve_deployment(
        question.model,
        profile,
        args,
        question.version_for(profile),
        basis=question.basis,
        calibration=question.calibration,
    )


def _why_not(deployment: Deployment) -> str:
    stage = deployment.budget.binding
    weights, left = stage.weights.loaded_bytes / GIB, max(stage.available.mid, 0) / GIB
    return f"{weights:.1f} GiB of weights on each GPU leave {left:.1f} GiB for the KV cache"
