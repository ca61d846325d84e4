"""What a fit works on: a run as the batches of its steps, and each of its metrics as a weighted sum of their times."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.engine.config import EngineConfig
from planner.hardware.schema import GpuProfile
from planner.model.architecture import Model
from planner.step import Batch

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ObservedMetric:
    """One metric of one run: ``measured_s`` = sum of ``weights`` x step times + delays outside the engine.

    A throughput is observed as the time that the run took.
    """

    name: str  #: as in the table of runs: ``mean_tpot_ms``
    measured_s: float
    weights: Floats  #: for each batch of the run
    requests: float = 0.0  #: times ``request_s`` that it contains
    waits: float = 0.0  #: times ``frontend_s`` that it contains


@dataclass(frozen=True, eq=False)
class Observed:
    """One run: the engine, representative batches of its steps, and what was measured."""

    run_id: str
    group: Hashable  #: runs of one group are left out together: GPU, model, TP, weight dtype, engine version
    model: Model
    profile: GpuProfile
    config: EngineConfig
    circumstances: dict[str, str]
    batches: tuple[Batch, ...]
    metrics: tuple[ObservedMetric, ...]
