"""Bytes that vLLM holds on each GPU: weights, KV cache, the peak of the profile run, everything else."""

from planner.memory.budget import MemoryBudget, StageBudget, memory_budget
from planner.memory.facts import kv_bytes_per_token, model_facts, stored_weight_bytes
from planner.memory.kv_blocks import BlockPool
from planner.memory.overheads import Interval
from planner.memory.weights import RankWeights, stage_weights

__all__ = [
    "BlockPool",
    "Interval",
    "MemoryBudget",
    "RankWeights",
    "StageBudget",
    "kv_bytes_per_token",
    "memory_budget",
    "model_facts",
    "stage_weights",
    "stored_weight_bytes",
]
