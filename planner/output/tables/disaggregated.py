"""Prefill and decode on servers of their own, as JSON has them and in a line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.errors import IllegalPlanError
from planner.planning import Disaggregated, NotDivided
from planner.units import MS


def divided_object(plan: Disaggregated | NotDivided) -> dict[str, Any]:
    """The plan, or why there is none."""
    if isinstance(plan, NotDivided):
        return {"gpu": plan.profile.id, "refused": plan.reason}
    return {
        "gpu": plan.profile.id,
        "refused": None,
        "prefill_servers": plan.prefill_servers,
        "prefill_tensor_parallel_size": plan.prefill.deployment.config.tensor_parallel_size,
        "prefill_load": plan.prefill.load.value,
        "decode_servers": plan.decode_servers,
        "decode_tensor_parallel_size": plan.decode.deployment.config.tensor_parallel_size,
        "decode_load": plan.decode.load.value,
        "spare_servers": 2 * plan.spares,
        "num_gpus": plan.num_gpus,
        "kv_bytes_per_prompt": plan.transfer.kv_bytes,
        "kv_transfer_bytes_per_s": plan.transfer.bytes_per_s,
        "kv_transfer_over": plan.transfer.over,
        "kv_transfer_ms": plan.transfer.time_s / MS,
        "ttft_ms": plan.ttft_ms,
        "tpot_ms": plan.tpot_ms,
        "least_gpus": plan.least_gpus,
        "aggregated_gpus": plan.aggregated_gpus,
        "launch": _launches(plan),
        "equal_gpus": plan.aggregated_gpus,
        "aggregated_rate": plan.aggregated_rate,
        "disaggregated_rate": plan.disaggregated_rate,
        "wins": "disaggregated" if plan.wins else "aggregated" if plan.loses else None,
    }


def _launches(plan: Disaggregated) -> list[dict[str, Any]] | None:
    """How the sides are started; None where the version has no connector for it."""
    from planner.output.deploy.split import ROUTED_PORT  # and with it jinja2, which few answers need

    try:
        return [asdict(side) for side in plan.launches(ROUTED_PORT)]
    except IllegalPlanError:
        return None


def equal_words(plan: Disaggregated) -> str:
    """Which carries more on as many GPUs, and by how much."""
    split, both = plan.disaggregated_rate, plan.aggregated_rate
    if not split:
        return f"together is better: {plan.aggregated_gpus} GPUs hold no server of each side"
    rates = f"{split:,.3g} against {both:,.3g} requests/s on {plan.aggregated_gpus}"
    if plan.wins:
        return f"split is better{f' by {split / both - 1:.0%}' if both else ''}: {rates}"
    return f"together is better by {both / split - 1:.0%}: {rates}" if plan.loses else f"equal: {rates}"


def needs_words(plan: Disaggregated) -> str:
    """What the division takes beside servers that do both, at the same confidence."""
    both = f"against {plan.aggregated_gpus}" if plan.aggregated_gpus else "where servers that do both keep no target"
    sides = " and ".join(
        f"{servers} x TP {side.deployment.config.tensor_parallel_size} {role}"
        for role, side, servers in (
            ("prefill", plan.prefill, plan.prefill_servers), ("decode", plan.decode, plan.decode_servers)
        )
    )  # fmt: skip
    return (
        f"disaggregated on {plan.profile.id} would need {plan.least_gpus} GPUs {both} at the same confidence, without "
        f"spares: {sides}; {equal_words(plan)}"
    )
