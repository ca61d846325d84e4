"""Which settings? Enumerate, prune what memory forbids, rank by the closed form, replay the finalists.

Goals::

    max-throughput   output tokens/s per GPU
    min-latency      mean E2EL at the given concurrency
    balanced         the knee of the Pareto front of tokens/s per GPU against tokens/s per user: the point
                     with the largest product of the two, where giving one per cent of one no longer buys
                     one per cent of the other

Searched: checkpoint (precision) x KV dtype x tensor-parallel size x ``max_num_seqs``. ``max_num_seqs`` and the
client's concurrency are the same number, as the recipes advise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from planner.engine.config import EngineArgs, EngineConfig
from planner.engine.version import EngineVersion
from planner.errors import PlannerError
from planner.hardware import GpuProfile
from planner.model.architecture import Model
from planner.plan import Goal
from planner.predict import Estimate, estimate
from planner.step import StepModel

DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
DEFAULT_GPUS = ("mi300x", "mi355x", "b200-sxm", "h100-sxm")
DEFAULT_LEN = 1024
DEFAULT_CONCURRENCY = 8  #: of min-latency, where none is given
MAX_NUM_SEQS = 1024  #: vLLM's own default on large GPUs; larger batches are not searched
PROMPTS_PER_SLOT = 5  #: the recipes: at least five times the concurrency, to see the steady state
