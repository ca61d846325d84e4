"""Plans without a container: the server is the vLLM that is installed on the machine itself.

The templates of ``templates/vllm/native`` take the place of those of the same name; all others are shared.
"""

from __future__ import annotations

from typing import Any

from planner.errors import IllegalPlanError
from planner.plan import Plan
from planner.scripts.emission import option, warm_up_argv, without_option

LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))


def is_native(plan: Plan) -> bool:
    """Whether the plan names no image."""
    return not plan.image


def native_names(plan: Plan) -> dict[str, Any]:
    """What the templates of native plans may name beside the common names. The port is the script's to say.

    Raises IllegalPlanError for a server that other machines could reach.
    """
    host = option(plan.serve_argv, "--host")
    if host not in LOOPBACK:
        raise IllegalPlanError(
            f"a server with --host {host or 'left out'} would listen on every address of this machine",
            hint="use --host 127.0.0.1: there is no container around it",
        )
    return {
        "native_serve": without_option(plan.serve_argv, "--port"),
        "native_bench": without_option(plan.bench_argv, "--port"),
        "native_warm_up": without_option(warm_up_argv(plan), "--port"),
        "stop_command": 'kill "$(cat logs/server.pid)"',
    }
