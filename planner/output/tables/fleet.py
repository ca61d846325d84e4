"""``planner fleet`` in words and rows: a line for each fleet, best first, then those that split prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from typing import Any

from planner.output.answer import Answer
from planner.output.render import SPACE, Column, command_lines, known_table, table_text, wrapped
from planner.output.tables.disaggregated import divided_object, equal_words, needs_words
from planner.output.tables.shared import (
    MORE,
    asked_load,
    calibration_note,
    card,
    doubt_object,
    engine_note,
    figure_between,
    items,
    listed,
    load_of_run,
    minutes,
    no_price,
    price_notes,
    price_rows,
    with_interval,
)
from planner.planning import (
    Disaggregated,
    Doubt,
    Fleet,
    Fleets,
    NotDivided,
    Offloading,
    Pool,
    Rung,
    doubts_about_fleets,
    span_figures,
)
from planner.units import GB, MB, MS, figure
from planner.workload import DEFAULT_PERCENTILE, targets_in_words

COLUMNS = (
    Column("gpu"),
    Column("servers", wraps=True),
    Column("gpus", "GPUs", ","),
    Column("nodes", form=","),
    Column("usd_per_hour", "USD/h", ",.2f"),
    Column("usd_per_million_output_tokens", "USD/1M"),
    Column("kw", "kW", ",.1f"),
    Column("utilisation", "used"),
    Column("bound_by", "limited by", wraps=True),
)
DISAGGREGATED = (
    Column("gpu"),
    Column("prefill"),
    Column("decode"),
    Column("num_gpus", "GPUs", ","),
    Column("transfer", wraps=True),
    Column("ttft_ms", "TTFT ms", ",.0f"),
    Column("tpot_ms", "TPOT ms", ",.1f"),
    Column("verdict", "on equal GPUs", wraps=True),
)
BRIEF = (
    *COLUMNS[:5],
    Column("usd_per_million_output_tokens", "USD/1M", ",.2f", spare=True),
    Column("kw", "kW", ",.1f", spare=True),
    *COLUMNS[7:],
)
BRIEF_FLEETS = 8
BRIEF_REFUSED = 3
BRIEF_DOUBTS = 2


@dataclass(frozen=True, repr=False)
class FleetAnswer(Answer):
    """Servers, GPUs, dollars and watts for a load, best fleet first: ``planner fleet``."""

    verdict_first = True
    record: Fleets
    divided: tuple[Disaggregated | NotDivided, ...] = ()  #: fleets with prefill and decode on servers of their own
    remarks: tuple[str, ...] = ()
    said: tuple[str, ...] = ()  #: notes on the model and on the trace
    explain: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is a fleet, and the central prediction does not refute it."""
        return self.record.best is not None and not any(doubt.refutes for doubt in self.doubts)

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """What is out of proportion in the best fleet."""
        return tuple(doubts_about_fleets(self.record))

    @property
    def fleets(self) -> tuple[Fleet, ...]:
        """All fleets, the best first."""
        return self.record.fleets

    def _object(self) -> dict[str, Any]:
        fleets, asked = self.record, self.record.asked
        return {
            "model": asked.model.resolved,
            "classes": [
                {
                    "name": demand.name,
                    "request_rate": demand.request_rate,
                    "input_len": demand.input_len,
                    "output_len": demand.output_len,
                }
                for demand in asked.demands
            ],
            "targets": [
                {"metric": slo.key, "limit_ms": slo.limit_ms} | ({"class": slo.group} if slo.group else {})
                for slo in asked.slos
            ],
            "confidence": asked.confidence,
            "ladder": [_rung(rung) for rung in fleets.best.ladder] if fleets.best and asked.slos else [],
            "measure_next": _measure_next(fleets.best) if fleets.best else None,
            "doubts": [doubt_object(doubt) for doubt in self.doubts],
            "headroom": asked.headroom,
            "n_plus": asked.n_plus,
            "minimised": fleets.objective,
            "rented_by": asked.rented_by,
            "carries": span_figures("request_rate", fleets.best.carries if fleets.best else None),
            "prefix_cache_share": fleets.best.reuse if fleets.best else {},
            "kv_offloading": asdict(found) if fleets.best and (found := fleets.best.offloading) else None,
            "fleets": [_row(fleet) for fleet in fleets.fleets],
            "disaggregated": [divided_object(plan) for plan in self.divided],
            "prices": price_rows(asked.gpus, asked.prices),
            "refused": [{"gpu": refused.profile.id, "reason": refused.reason} for refused in fleets.refused],
        }

    def _records(self) -> list[dict[str, Any]]:
        return [_row(fleet) for fleet in self.fleets]

    def _columns(self) -> Sequence[Column]:
        rows = self._records()
        return [Column(key) for key in (rows[0] if rows else ("gpu",)) if key != "pools"]

    def _brief_lines(self) -> Iterator[str]:
        fleets, best = self.record, self.record.best
        yield wrapped(_verdict_of(fleets))
        yield from items("!", map(str, self.doubts[:BRIEF_DOUBTS]))
        for refused in fleets.refused[: BRIEF_REFUSED if best is None else 0]:
            yield from items("x", [f"{refused.profile.id}: {refused.reason}"])
        if best is None:
            return
        yield "\n" + known_table([_brief_row(fleet) for fleet in self.fleets[:BRIEF_FLEETS]], BRIEF)
        if len(self.fleets) > BRIEF_FLEETS:
            yield f"and {len(self.fleets) - BRIEF_FLEETS} more fleets"
        yield from items("-", [*_reasons(fleets, best), *_certainty(best)])
        split = [plan for plan in self.divided if isinstance(plan, Disaggregated)]
        yield from items("-", map(needs_words, split[:2]))
        yield from command_lines({}, _next_command(best))

    def _brief_notes(self) -> Iterator[str]:
        pools = [pool for fleet in self.fleets for pool in fleet.pools]
        refused = [one.profile.id for one in self.record.refused]
        if refused and pools:
            yield f"left out: {listed(refused, BRIEF_REFUSED)}"
        taking_part = {pool.kind.profile.id: pool.kind.profile for pool in pools}
        unpriced = [
            row["gpu"] for row in price_rows(taking_part.values(), self.record.asked.prices) if not row["origin"]
        ]
        if unpriced:
            yield no_price(unpriced)
        fits = calibration_note((pool.kind.profile.id, pool.kind.deployment.calibrated_by) for pool in pools)
        versions = engine_note(str(pool.kind.deployment.config.version) for pool in pools)
        yield "; ".join([*versions, *fits, MORE])

    def _lines(self) -> Iterator[str]:
        yield wrapped(_verdict_of(self.record))
        yield from items("!", map(str, self.doubts))
        yield wrapped(_question(self.record)) + "\n"
        rows = [_table_row(fleet) for fleet in self.fleets]
        yield table_text(rows, COLUMNS) if rows else "no fleet: no GPU carries this load"
        if self.record.best:
            yield from items("-", _reasons(self.record, self.record.best))
        plans = [_divided_row(plan) for plan in self.divided if isinstance(plan, Disaggregated)]
        if plans:
            yield "\nprefill and decode on servers of their own:\n"
            yield table_text(plans, DISAGGREGATED)

    def split_files(self, command: str) -> dict[str, str]:
        """Scripts and values that launch both sides, of several GPUs in a folder for each; none where none is divided.

        Raises IllegalPlanError where no image or no connector of the version is known.
        """
        from planner.output.deploy.hosts import split_files  # slow to import, for the few that write scripts

        split = [plan for plan in self.divided if isinstance(plan, Disaggregated)]
        return {
            f"{plan.profile.id}/{name}" if len(split) > 1 else name: text
            for plan in split
            for name, text in split_files(plan, command).items()
        }

    def _title(self) -> str:
        return _question(self.record)

    def _html(self) -> tuple[list[dict[str, Any]], Sequence[Column]]:
        return [_table_row(fleet) for fleet in self.fleets], COLUMNS

    def _notes(self) -> Iterator[str]:
        pools = [pool for fleet in self.fleets for pool in fleet.pools]
        yield from calibration_note((pool.kind.profile.id, pool.kind.deployment.calibrated_by) for pool in pools)
        yield from _remarks(self.record, self.divided)
        yield from self.said


def _rung(rung: Rung) -> dict[str, Any]:
    usd = rung.usd_per_h
    return {"confidence": rung.confidence, "gpus": rung.gpus, "usd_per_hour": usd.mid if usd else None}


def _measure_next(fleet: Fleet) -> dict[str, Any] | None:
    if fleet.measure_next is None:
        return None
    run, then = fleet.measure_next
    sent = run.workload
    return {
        "gpu": fleet.pools[0].kind.profile.id,
        "max_concurrency": sent.max_concurrency,
        "request_rate": sent.request_rate if isfinite(sent.request_rate) else None,
        "num_prompts": sent.num_prompts,
        "duration_s": run.duration_s,
        "figure": run.figure,
        "deviation_factor": run.factor,
        "expected": _rung(then),
    }


def _question(fleets: Fleets) -> str:
    asked = fleets.asked
    loads = ", ".join(
        f"{d.request_rate:,.4g} requests/s of {d.input_len:,} in / {d.output_len:,} out" for d in asked.demands
    )
    kept = f", {targets_in_words(asked.slos)}" if asked.slos else ", no latency target"
    return f"{loads}{kept}; {asked.headroom:.0%} headroom, N+{asked.n_plus}"


def _verdict_of(fleets: Fleets) -> str:
    """The best fleet in a sentence."""
    asked, best = fleets.asked, fleets.best
    loads = asked_load(sum(demand.request_rate for demand in asked.demands))
    loads += f" in {len(asked.demands)} classes" if len(asked.demands) > 1 else ""
    kept = targets_in_words(asked.slos) if asked.slos else "no latency target"
    if best is None:
        where = listed([card(profile.id) for profile in asked.gpus], BRIEF_REFUSED)
        return f"No fleet carries {loads} of {asked.model.resolved} with {kept}: {where}"
    models = listed(list(dict.fromkeys(pool.kind.candidate.resolved.resolved for pool in best.pools)), 1)
    gpus = " + ".join(f"{rented.gpus:,} x {card(rented.profile.id)}" for rented in best.rented)
    price = f"; {best.usd_per_h.mid:,.2f}{SPACE}USD/h" if best.usd_per_h else ""
    return f"Serve {models} on {gpus}: {loads} with {kept}{_room(best)}{price}"


def _room(best: Fleet) -> str:
    """What the servers without the spares carry, with its interval; empty for several pools."""
    most = best.carries
    return f"; room for {figure_between(most.mid, most.low, most.high, 'requests/s')}" if most else ""


def _reuse_words(fleet: Fleet) -> str:
    """What the prefix caches spare, with the router that was planned for and with others."""
    asked = fleet.asked.router
    others = [f"{share:.1%} {router}" for router, share in fleet.reuse.items() if router != asked]
    found = next((share for router, share in fleet.reuse.items() if router == asked), 0.0)
    words = f"{found:.1%} of the prompt tokens come from the prefix cache, {asked}"
    return f"{words}; {', '.join(others)}" if others else words


def _host_words(fleet: Fleet, found: Offloading) -> str:
    """What KV blocks in host memory are worth."""
    if found.without_gpus is None:
        taken = "no number of such servers keeps the targets"
    else:
        gpus = f"{found.without_gpus:,} GPUs" if found.without_gpus != fleet.gpus else "as many GPUs"
        taken = f"one such server carries {figure(found.without_rate)} requests/s, and the load takes {gpus}"
    return (
        f"{found.host_share:.1%} of the prompt tokens are loaded from host memory, {found.gpu_share:.1%} are found on "
        f"the GPU; without --kv-offloading-size: {found.without_gpu_share:.1%} on the GPU, {taken}"
    )


def _reasons(fleets: Fleets, best: Fleet) -> Iterator[str]:
    """Why this fleet, what binds, and what more certainty costs."""
    asked, pool = fleets.asked, best.busiest
    spare = sum(count for _, count in best.spares)
    spares = f" and {spare} spare" if spare else ""
    yield (
        f"{best.servers - spare:,} server{'s' if best.servers - spare != 1 else ''}{spares}: one {_engine_words(pool)} "
        f"carries {figure(pool.load.value)} requests/s; {asked.headroom:.0%} headroom, N+{asked.n_plus}"
    )
    if fleets.shapes:
        yield _shapes_words(*fleets.shapes)
    if others := fleets.fleets[1:]:
        usd = f", {others[0].usd_per_h.mid:,.2f} USD/h" if others[0].usd_per_h else ", whose price is not known"
        usd = "" if fleets.objective != "usd" and not others[0].usd_per_h else usd
        yield f"next best: {others[0].gpus:,} GPUs of {' + '.join(r.profile.id for r in others[0].rented)}{usd}"
    yield f"what binds: {pool.load.bound_by or pool.load.binding}"
    if best.offloading:
        yield _host_words(best, best.offloading)
    elif unused := pool.kind.deployment.unused_host_remark:
        yield unused
    if best.reuse:
        yield _reuse_words(best)


def _shapes_words(apart: Fleet | None, together: Fleet | None) -> str:
    """What a pool for each class takes, and one pool for all of them, at the same confidence."""
    one = (
        f"one pool for all classes takes {together.gpus:,} GPUs" if together else "one pool for all classes: no server"
    )
    each = f"a pool for each {apart.gpus:,}" if apart else "a pool for each: no servers"
    return f"{one} that keeps the targets, {each}" if not (apart and together) else f"{one}, {each}, spares included"


def _certainty(best: Fleet) -> Iterator[str]:
    """What other confidences take, and the measurement that is worth most."""
    if best.asked.slos:
        kept = f"targets are kept with {best.asked.confidence:.0%} confidence"
        yield f"{kept}; the load takes {ladder_words(best)}"
        yield from _measure_next_words(best)


def _next_command(best: Fleet) -> list[str]:
    """What plans one server of the busiest pool, and writes its scripts."""
    asked, pool = best.asked, best.busiest
    demand, kind = pool.demand, pool.kind
    words = ["planner", "recommend", asked.model.requested, "--gpu", kind.profile.id]
    lengths = ("--random-input-len", str(demand.input_len), "--random-output-len", str(demand.output_len))
    if demand.classes:
        words += [word for one in demand.classes for word in ("--class", one.word)]
        words += ["--scheduling-policy", asked.args.scheduling_policy] if asked.args.scheduling_policy else []
    else:
        rate = ("--request-rate", f"{demand.request_rate:g}")
        known = ("--trace", demand.origin.path) if demand.origin else ("--workload", demand.name, *rate)
        words += known if demand.reused else (*rate, *lengths)
    if demand.reused and asked.router != "round-robin":
        words += ["--router", asked.router]
    if asked.args.kv_offloading_size:
        words += ["--kv-offloading-size", f"{asked.args.kv_offloading_size:g}"]
    own = {one.name for one in demand.classes if one.limits_ms}
    of_all = {slo.metric: slo.limit_ms for slo in asked.slos_of(demand) if slo.group not in own}
    words += [word for metric, limit_ms in of_all.items() for word in (f"--{metric}", f"{limit_ms:g}")]
    for percentile in {slo.percentile for slo in asked.slos} - {DEFAULT_PERCENTILE}:
        words += ["--percentile", "mean" if percentile is None else f"{percentile:g}"]
    return [*words, "-o", "plans"]


def _brief_row(fleet: Fleet) -> dict[str, Any]:
    dollars = fleet.usd_per_million_tok
    return {**_table_row(fleet), "usd_per_million_output_tokens": dollars.mid if dollars else None}


def _table_row(fleet: Fleet) -> dict[str, Any]:
    row = _row(fleet)
    dollars = fleet.usd_per_million_tok
    busiest = fleet.busiest
    return {
        **row,
        "servers": _servers_words(fleet),
        "usd_per_million_output_tokens": with_interval(dollars, ",.2f") if dollars else None,
        "kw": fleet.power_w / 1000 if fleet.power_w else None,
        "utilisation": f"{fleet.utilisation(busiest.demand):.0%}",
        "bound_by": busiest.load.bound_by or busiest.load.binding,
    }


def _servers_words(fleet: Fleet) -> str:
    """``2 + 1 x TP 8`` for one class and one kind of server, else each pool by name."""
    spare = {id(kind): count for kind, count in fleet.spares}
    if len(fleet.pools) == 1:
        pool = fleet.pools[0]
        extra = f" + {spare[id(pool.kind)]}" if id(pool.kind) in spare else ""
        return f"{pool.servers}{extra} x {_engine_words(pool)}"
    several = len(fleet.rented) > 1
    words = [
        f"{pool.demand.name}: {pool.servers} x {pool.kind.profile.id + ' ' if several else ''}{_engine_words(pool)}"
        for pool in fleet.pools
    ]
    spares = sum(count for _, count in fleet.spares)
    return ", ".join([*words, f"{spares} spare"] if spares else words)


def _engine_words(pool: Pool) -> str:
    config = pool.kind.deployment.config
    axes = (
        ("TP", config.tensor_parallel_size),
        ("PP", config.pipeline_parallel_size),
        ("DP", config.data_parallel_size),
    )
    words = [f"{name} {size}" for name, size in axes if size > 1 or name == "TP"]
    return " ".join([*words, *["EP"] * config.enable_expert_parallel])


def _row(fleet: Fleet) -> dict[str, Any]:
    return {
        "gpu": " + ".join(rented.profile.id for rented in fleet.rented),
        "servers": fleet.servers,
        "spare_servers": sum(count for _, count in fleet.spares),
        "gpus": fleet.gpus,
        "nodes": fleet.nodes,
        **span_figures("usd_per_hour", fleet.usd_per_h),
        **span_figures("usd_per_million_output_tokens", fleet.usd_per_million_tok),
        "power_w": fleet.power_w,
        "output_tokens_per_joule": fleet.tok_per_joule,
        "proven": fleet.proven,
        "pools": [_pool_object(fleet, pool) for pool in fleet.pools],
    }


def _pool_object(fleet: Fleet, pool: Pool) -> dict[str, Any]:
    config = pool.kind.deployment.config
    return {
        "class": pool.demand.name,
        "gpu": pool.kind.profile.id,
        "model": pool.kind.candidate.resolved.resolved,
        "servers": pool.servers,
        "num_gpus": pool.kind.num_gpus,
        **config.layout,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "engine_version": str(config.version),
        "calibration": pool.kind.deployment.calibrated_by,
        "largest_load": pool.load.value,
        "utilisation": fleet.utilisation(pool.demand),
        "bound_by": pool.load.bound_by or None,
    }


def _divided_row(plan: Disaggregated) -> dict[str, Any]:
    extra = f" + {plan.spares}" if plan.spares else ""
    prefill, decode = plan.prefill.deployment.config, plan.decode.deployment.config
    transfer = plan.transfer
    return {
        "gpu": plan.profile.id,
        "prefill": f"{plan.prefill_servers}{extra} x TP {prefill.tensor_parallel_size}",
        "decode": f"{plan.decode_servers}{extra} x TP {decode.tensor_parallel_size}",
        "num_gpus": plan.num_gpus,
        "transfer": f"{transfer.kv_bytes / MB:,.0f} MB in {transfer.time_s / MS:,.1f} ms, {transfer.over} at "
        f"{transfer.bytes_per_s / GB:,.0f} GB/s",
        "ttft_ms": plan.ttft_ms,
        "tpot_ms": plan.tpot_ms,
        "verdict": equal_words(plan),
    }


def ladder_words(fleet: Fleet) -> str:
    """What more and less confidence take: ``6 GPUs at 50 %, 8 at 80 %, 12 at 95 %``."""
    rungs = [f"{rung.gpus or 'no number'} at {rung.confidence:.0%}" for rung in fleet.ladder]
    first = "GPU" if fleet.ladder[0].gpus == 1 else "GPUs"
    return ", ".join(rungs).replace(" at", f" {first} at", 1) + " confidence"


def _measure_next_words(fleet: Fleet) -> Iterator[str]:
    if fleet.measure_next:
        run, then = fleet.measure_next
        load = load_of_run(run.workload.max_concurrency, run.workload.request_rate)
        yield (
            f"measure next: one run of vllm bench serve on one of these servers at {load} ({minutes(run.duration_s)}) "
            f"is expected to take the fleet from {fleet.gpus:,} to {then.gpus:,} GPUs"
        )


def _remarks(fleets: Fleets, divided: Sequence[Disaggregated | NotDivided]) -> Iterator[str]:
    asked = fleets.asked
    for refused in fleets.refused:
        yield f"{refused.profile.id} is left out: {refused.reason}"
    for plan in divided:
        if isinstance(plan, NotDivided):
            yield f"{plan.profile.id} is not split: {plan.reason}"
    taking_part = {fleet.rented[0].profile.id for fleet in fleets.single}
    yield from price_notes([profile for profile in asked.gpus if profile.id in taking_part], asked.prices)
    if fleets.best and fleets.objective != asked.objective:
        yield "no price is known: fleets are ordered by their number of GPUs"
    if fleets.best:
        if asked.slos:
            yield from _certainty(fleets.best)
        yield "USD range from the lowest price to the highest; kW assume boards at their TDP"
    if fleets.best and not fleets.best.proven:
        yield "the search stopped early: a cheaper mix may exist"
    if any(isinstance(plan, Disaggregated) and not plan.transfer.over.startswith("--") for plan in divided):
        yield "transfers run at line rate: they take at least this long"
