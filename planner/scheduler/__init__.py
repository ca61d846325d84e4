"""Replay of vLLM's continuous batching over a workload: every percentile comes from here.

The scheduler is simulated decision by decision; the time of a step comes from a ``StepTimer``. Between two
events (a request ends, a prompt is admitted, the KV cache runs out) every step computes the same sequences on
contexts that grow by one token each, so those steps are jumped together.

>>> from planner.workload import Workload
>>> class Constant:
...     def step_s(self, batch): return 0.01
>>> limits = Limits(max_num_seqs=8, max_num_batched_tokens=2048, kv_cache_tokens=10_000)
>>> round(replay(Constant(), Workload(input_len=100, output_len=50, num_prompts=4), limits).duration_s, 6)
0.5
"""

from planner.scheduler.limits import Client, Limits, StepTimer
from planner.scheduler.record import Replay
from planner.scheduler.replay import replay

__all__ = ["Client", "Limits", "Replay", "StepTimer", "replay"]
