"""How the nodes of one server find each other: one small script, the same for every platform.

::

    mp    --nnodes, --node-rank, --master-addr: vLLM's own processes, from 0.11.1 on
    ray   a Ray cluster, before that
    dp    --data-parallel-address, --data-parallel-start-rank: DP ranks, whole ones on each node

Sources: ``ParallelConfig`` of vLLM 0.27, and its page "Data Parallel Deployment". The script's arguments are the
planned command; ``HEAD``, ``HEAD_PORT``, ``NODES``, ``NODE_RANK``, ``NODE_GPUS`` and ``LOCAL_RANKS`` say the rest.
"""

from __future__ import annotations

from typing import Any, Literal

from planner.engine import flag_status, parse_version
from planner.errors import IllegalPlanError
from planner.planning import Plan
from planner.resources import data_dir

Join = Literal["mp", "ray", "dp"]
#: The head's port, at which the others join: of vLLM's processes, Ray's own default, of vLLM's page on DP.
JOIN_PORTS: dict[Join, int] = {"mp": 29501, "ray": 6379, "dp": 13345}
JOIN_WORDS: dict[Join, str] = {"mp": "vLLM's own processes", "ray": "Ray", "dp": "vLLM's data-parallel ranks"}


def join_of(plan: Plan, gpus_each: int) -> Join:
    """What joins nodes of ``gpus_each`` GPUs. Raises IllegalPlanError where the version cannot."""
    version = parse_version(plan.engine_version)
    if plan.data_parallel_size == 1:
        return "mp" if flag_status(version, "--nnodes") else "ray"
    if gpus_each % (plan.tensor_parallel_size * plan.pipeline_parallel_size):
        raise IllegalPlanError(
            f"--data-parallel-size {plan.data_parallel_size}: a rank of {plan.tensor_parallel_size} x "
            f"{plan.pipeline_parallel_size} GPUs would lie on several nodes of {gpus_each}",
            hint="spread the plan over fewer nodes, or plan with smaller ranks",
        )
    if not flag_status(version, "--data-parallel-start-rank"):
        raise IllegalPlanError(
            f"vLLM {version} does not spread data-parallel ranks over nodes", hint="plan for 0.9.0 or newer"
        )
    return "dp"


def join_names(plan: Plan, join: Join, nodes: int) -> dict[str, Any]:
    """What templates that start nodes may name."""
    words = [f"{name}={number}" for name, number in node_numbers(plan, join, nodes).items()]
    return {"join_script": f"node_{join}.sh", "join_words": words}


def node_script(join: Join) -> str:
    """What every node runs, with the planned command as its arguments."""
    return (data_dir("templates") / "deploy" / f"node_{join}.sh").read_text(encoding="utf-8")


def node_numbers(plan: Plan, join: Join, nodes: int) -> dict[str, int]:
    """The variables of the script that are the same on every node."""
    gpus = plan.num_gpus // nodes
    ranks = gpus // (plan.tensor_parallel_size * plan.pipeline_parallel_size)
    numbers = {"HEAD_PORT": JOIN_PORTS[join], "NODES": nodes, "NODE_GPUS": gpus}
    return {**numbers, "LOCAL_RANKS": ranks} if join == "dp" else numbers
