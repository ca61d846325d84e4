"""Prefill and decode on servers of their own, as JSON and in sentences."""

from collections.abc import Iterator
from typing import Any

from planner.engine import LOOPBACK
from planner.errors import IllegalPlanError
from planner.output.answer import fields_of, to_plain
from planner.output.render import NAMES, columns_of, command_lines, table_text
from planner.output.scripts.text import with_option
from planner.output.tables.shared import asked_load, card, items, layout_in_words, milliseconds, seconds
from planner.planning import Apart, Disaggregated, Objective, Refused, SideLaunch
from planner.units import GB, MB, MS, counted, figure

SIDES = columns_of(
    "disaggregated_sides",
    gpus=lambda row: row[2] * row[1].num_gpus,
    layout=lambda row: layout_in_words(row[1].deployment.config),
    bound_by=lambda row: row[1].load.bound_by.partition(" of ")[0],  # the other side has a part of the limit
)


def divided_object(plan: Disaggregated | Refused) -> dict[str, Any]:
    if isinstance(plan, Refused):
        return {"gpu": plan.gpu, "refused": plan.reason}
    return {
        **fields_of(plan, *NAMES["disaggregated"]),
        "refused": None,
        "spare_servers": 2 * plan.spares,
        "launch": to_plain(launches_of(plan)),
        "wins": "disaggregated" if plan.wins else "aggregated" if plan.loses else None,
    }


def launches_of(plan: Disaggregated) -> tuple[SideLaunch, ...] | None:
    """The commands of both sides; None where the version has no connector for it."""
    try:
        return plan.launches()
    except IllegalPlanError:
        return None


def sides_of(plan: Disaggregated) -> tuple[tuple[str, Any, int], ...]:
    """Name, engine and number of servers of each side."""
    return ("prefill", plan.prefill, plan.prefill_servers), ("decode", plan.decode, plan.decode_servers)


def apart_in_words(objective: Objective, apart: Apart) -> str:
    """The verdict where prefill and decode on servers of their own are the plan."""
    plan = apart.division
    latencies = {"ttft": seconds(plan.ttft_ms), "tpot": milliseconds(plan.tpot_ms)}
    met = " and ".join(f"{slo.name} below {latencies[slo.metric]}" for slo in objective.slos)
    load = asked_load(objective.value) if objective.value is not None else f"{figure(plan.aggregated_rate)} requests/s"
    price = f", {apart.usd_per_hour:,.2f} USD/h" if apart.usd_per_hour is not None else ""
    return (
        f"Serve {plan.model} on {plan.num_gpus:,} x {card(plan.profile.id)}, disaggregated: {load}, {met} with "
        f"{objective.confidence:.0%} confidence{price}; aggregated: {counted(plan.aggregated_gpus)}"
    )


def apart_lines(apart: Apart, otherwise: str = "") -> Iterator[str]:
    """The sides, the reasons, and their commands; ``otherwise``: the plan of aggregated servers."""
    plan, transfer = apart.division, apart.division.transfer
    yield table_text(sides_of(plan), SIDES)
    moved = (
        f"the KV cache of a prompt, {figure(transfer.kv_bytes / MB)} MB on each GPU, takes "
        f"{figure(transfer.time_s / MS)} ms over the {transfer.over} at {figure(transfer.bytes_per_s / GB)} GB/s"
    )
    next_best = [f"next best: {otherwise.removeprefix('Serve ')}"] if otherwise else []
    yield from items("-", [needs_words(plan), *next_best, moved])
    accuracy = (warning.partition(":")[0] for warning in apart.plan.warnings if "accuracy.sh" in warning)
    yield from items("!", [*accuracy, "disaggregated serving has not been measured: NIXL and the router count as free"])
    for side in launches_of(plan) or ():
        yield from command_lines({}, with_option(side.serve_argv, "--host", LOOPBACK))


def equal_words(plan: Disaggregated) -> str:
    """The shape that carries more on as many GPUs, and by how much."""
    split, both = plan.disaggregated_rate, plan.aggregated_rate
    if plan.aggregated_ranks > 1 and not plan.wins:
        return f"not compared: both sides are planned with TP alone, aggregated servers with DP {plan.aggregated_ranks}"
    if not split:
        return f"aggregated better: no server of each side fits on {counted(plan.aggregated_gpus)}"
    rates = f"on {counted(plan.aggregated_gpus)}: {split:,.3g} vs {both:,.3g} requests/s"
    if plan.wins:
        return f"disaggregated{f' {split / both - 1:.0%}' if both else ''} better {rates}"
    return f"aggregated {both / split - 1:.0%} better {rates}" if plan.loses else f"equal {rates}"


def needs_words(plan: Disaggregated) -> str:
    """The GPUs of both shapes at the same confidence."""
    both = f"vs {plan.aggregated_gpus} aggregated" if plan.aggregated_gpus else "(aggregated servers miss the targets)"
    layouts = ((role, layout_in_words(side.deployment.config), servers) for role, side, servers in sides_of(plan))
    sides = ", ".join(f"{servers} x {layout} {role}" for role, layout, servers in layouts)
    return (
        f"disaggregated on {plan.profile.id}: {plan.least_gpus} GPUs ({sides}) {both} at the same confidence, without "
        f"spares; {equal_words(plan)}"
    )
