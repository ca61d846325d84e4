"""Prefill and decode on servers of their own, as JSON has them and in a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from planner.errors import IllegalPlanError
from planner.output.render import Column, command_lines, table_text
from planner.output.tables.shared import asked_load, card, items, milliseconds, on_loopback, seconds
from planner.planning import Apart, Disaggregated, NotDivided, Request, SideLaunch
from planner.units import GB, MB, MS, figure


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
        "launch": None if (sides := launches_of(plan)) is None else [asdict(side) for side in sides],
        "equal_gpus": plan.aggregated_gpus,
        "aggregated_rate": plan.aggregated_rate,
        "disaggregated_rate": plan.disaggregated_rate,
        "wins": "disaggregated" if plan.wins else "aggregated" if plan.loses else None,
    }


def launches_of(plan: Disaggregated) -> tuple[SideLaunch, ...] | None:
    """How the sides are started; None where the version has no connector for it."""
    from planner.output.deploy.kubernetes import ROUTED_PORT  # and with it jinja2, which few answers need

    try:
        return plan.launches(ROUTED_PORT)
    except IllegalPlanError:
        return None


SIDES = (
    Column("role", "side"),
    Column("servers", "", ","),
    Column("gpus", "", ","),
    Column("layout"),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache", spare=True),
    Column("max_num_seqs", "batch", ","),
    Column("max_num_batched_tokens", "tokens", ","),
    Column("largest_load", "one carries/s", figure),
    Column("bound_by", "limited by", wraps=True),
)


def apart_in_words(request: Request, apart: Apart) -> str:
    """The plan in a sentence."""
    plan, targets = apart.division, request.targets
    assert targets is not None
    kept = " and ".join(
        f"{slo.statistic} {slo.metric.upper()} below {seconds(ms) if slo.metric == 'ttft' else milliseconds(ms)}"
        for slo in targets.slos
        for ms in (plan.ttft_ms if slo.metric == "ttft" else plan.tpot_ms,)
    )
    load = asked_load(targets.value) if targets.value is not None else f"{figure(plan.aggregated_rate)} requests/s"
    price = f", {apart.usd_per_hour:,.2f} USD/h" if apart.usd_per_hour is not None else ""
    return (
        f"Serve {plan.model} on {plan.least_gpus:,} x {card(plan.profile.id)}, prefill and decode apart: {load}, "
        f"{kept} with {targets.confidence:.0%} confidence{price}; servers that do both take "
        f"{plan.aggregated_gpus:,} GPUs"
    )


def apart_lines(apart: Apart, otherwise: str = "") -> Iterator[str]:
    """The sides, why they are the plan, and their commands; ``otherwise``: the plan of servers that do both."""
    plan, transfer = apart.division, apart.division.transfer
    yield table_text([_side_row(plan, role) for role in ("prefill", "decode")], SIDES)
    said = [needs_words(plan), otherwise and f"next best: {otherwise.removeprefix('Serve ')}"]
    moved = (
        f"the KV cache of a prompt, {figure(transfer.kv_bytes / MB)} MB on each GPU, takes "
        f"{figure(transfer.time_s / MS)} ms over the {transfer.over} at {figure(transfer.bytes_per_s / GB)} GB/s"
    )
    yield from items("-", filter(None, [*said, moved]))
    doubted = (warning.partition(":")[0] for warning in apart.plan.warnings if "accuracy.sh" in warning)
    unmeasured = "no run with prefill and decode apart was measured: what NIXL and a router take is left out"
    yield from items("!", [*doubted, unmeasured])
    for side in launches_of(plan) or ():
        yield from command_lines({}, on_loopback(side.serve_argv))


def _side_row(plan: Disaggregated, role: str) -> dict[str, Any]:
    side, servers = (plan.prefill, plan.prefill_servers) if role == "prefill" else (plan.decode, plan.decode_servers)
    config = side.deployment.config
    experts = " + EP" if config.enable_expert_parallel else ""
    return {
        "role": role,
        "servers": servers,
        "gpus": servers * side.num_gpus,
        "layout": f"TP {config.tensor_parallel_size}{experts}",
        "weight_dtype": config.weight_dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "largest_load": side.load.value,
        "bound_by": side.load.bound_by.partition(" of ")[0],  # the other side has a part of the limit
    }


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
