"""One server over several machines: what each of them runs."""

from __future__ import annotations

from planner.errors import InputError
from planner.resources import data_dir
from planner.scripts.deploy.deployable import Deployable


def several_nodes(made: Deployable) -> None:
    """Raises InputError for a server on one machine."""
    if made.nodes == 1:
        raise InputError(
            "the planned server is on one node, and this target is for several",
            hint="use --target kubernetes, compose or slurm, or spread it with --nodes",
        )


def node_script(made: Deployable) -> str:
    """The same on every node: a constant text that takes ``serve_argv`` as its arguments.

    It reads NODE_RANK (0 is the head), NODES, HEAD (the head's address), HEAD_PORT and, for Ray, NODE_GPUS and
    START_TIMEOUT_S.
    """
    return (data_dir("templates") / "deploy" / f"node_{made.executor}.sh").read_text(encoding="utf-8")
