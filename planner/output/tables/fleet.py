"""``planner fleet``: a line for each fleet, best first, then those with prefill and decode on servers of their own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import isfinite
from typing import Any

from planner import evidence, planning
from planner.hardware import GpuProfile
from planner.output.answer import Answer, fields_of, to_plain
from planner.output.render import SPACE, at, columns_of, command_lines, known_table, rows_of, table_text, wrapped
from planner.output.tables import shared
from planner.output.tables.disaggregated import divided_object, equal_words, needs_words, sides_of
from planner.units import counted, figure
from planner.workload import targets_in_words

_TAKEN: dict[str, Callable[[Any], Any]] = {
    "gpu": lambda fleet: " + ".join(rented.profile.id for rented in fleet.rented),
    "servers": lambda fleet: _servers_words(fleet),
    "request_rate": lambda fleet: fleet.request_rate if _stocked(fleet) else None,
    "usd_per_million_output_tokens": lambda fleet: shared.with_interval(fleet.usd_per_million_tok, ",.2f"),
    "bound_by": lambda fleet: fleet.busiest.load.bound_by or fleet.busiest.load.binding,
}
COLUMNS, BRIEF = columns_of("fleets", **_TAKEN), columns_of("fleets_brief", **_TAKEN)
#: A fleet in JSON and CSV; of several kinds of servers the words of each.
FIELDS = columns_of(
    "fleet_fields",
    gpu=_TAKEN["gpu"],
    spare_servers=lambda fleet: sum(count for _, count in fleet.spares),
    layout=_TAKEN["servers"],
    model=lambda fleet: _of_pools(fleet, "kind.candidate.resolved.resolved"),
    weight_dtype=lambda fleet: _of_pools(fleet, "kind.deployment.config.weight_dtype"),
    kv_cache_dtype=lambda fleet: _of_pools(fleet, "kind.deployment.config.kv_cache_dtype"),
    engine_version=lambda fleet: _of_pools(fleet, "kind.deployment.config.version"),
)
DISAGGREGATED = columns_of(
    "fleet_disaggregated",
    prefill=lambda plan: _side_words(plan, *sides_of(plan)[0][1:]),
    decode=lambda plan: _side_words(plan, *sides_of(plan)[1][1:]),
    verdict=equal_words,
)
RUNG = ("confidence", "gpus", "usd_per_hour=usd_per_h.mid")
BRIEF_FLEETS = 8
BRIEF_REFUSED = 3
BRIEF_DOUBTS = 2
BRIEF_COMMANDS = 4


@dataclass(frozen=True, repr=False)
class FleetAnswer(Answer):
    """Servers, GPUs, dollars and watts for a load, best fleet first: ``planner fleet``."""

    verdict_first = True
    columns, records = FIELDS, "fleets"
    record: planning.Fleets
    doubts: tuple[planning.Doubt, ...]  #: figures of a suspicious size in the best fleet
    divided: tuple[planning.Disaggregated | planning.Refused, ...] = ()  #: disaggregated serving of each GPU
    said: tuple[str, ...] = ()  #: notes on the model and on the trace
    stated: tuple[str, ...] = ()  #: words of the options that planner recommend takes too, without load and limits
    nearest: tuple["evidence.Near", ...] = ()  #: published runs like the busiest servers' of the best, with ``explain``

    @classmethod
    def of(cls, record: planning.Fleets, *more: Any, **shown: Any) -> "FleetAnswer":
        """The answer, with everything computed that it shows; ``more`` and ``shown`` are the other fields."""
        doubts = tuple(planning.doubts_about_fleets(record))
        if best := record.best:
            _ = best.carries, best.reuse, best.offloading, best.measure_next, best.with_margin  # cached: they replay
            _ = best.plain_router
            _ = best.by_confidence if record.search.objective.slos else ()
        answer = cls(record, doubts, *more, **shown)
        if best is None or not answer.explain:
            return answer
        served, local = best.busiest.load.prediction, record.search.space.servings[0].local
        near = evidence.nearest_runs(served.deployment, served.load, served.figures, local=local)
        return replace(answer, nearest=tuple(near))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of accuracy, of the best fleet."""
        kinds, space = self.record.best.kinds if self.record.best else (), self.record.search.space
        lines = (planning.accuracy_warnings(space, kind.candidate) for kind in kinds)
        return tuple(dict.fromkeys(chain.from_iterable(lines)))

    @cached_property
    def advice(self) -> tuple[str, ...]:
        """Advice of documents that the best fleet does not follow."""
        best = self.record.best
        served = ((one.kind.candidate, one.load.sent) for one in (best.pools if best else ()))
        lines = (planning.Advised(one.deployment, one.resolved.resolved, sent, None) for one, sent in served)
        return tuple(dict.fromkeys(words for one in lines for words in one.contradicted()))

    @property
    def ok(self) -> bool:
        """True if there is a fleet, and the expected value does not refute it."""
        return self.record.best is not None and not any(doubt.refutes for doubt in self.doubts)

    @property
    def fleets(self) -> tuple[planning.Fleet, ...]:
        """The fleets of every GPU and of their mix, the best first."""
        return self.record.fleets

    def _object(self) -> dict[str, Any]:
        fleets, best = self.record, self.record.best
        objective, space = fleets.search.objective, fleets.search.space
        return {
            "model": space.model.resolved,
            "classes": [fields_of(one, "name", "request_rate", "input_len", "output_len") for one in fleets.demands],
            "targets": shared.limits_of(objective.slos),
            "confidence": objective.confidence,
            "output_tokens_per_day": best and best.output_tok_per_day,
            **fields_of(objective, "headroom", "spares", "n_plus=spares"),  # the last until 0.2: its old name
            "gpus_with_margin": best and best.with_margin,
            "rented_by": fleets.terms.rent,
            "ladder": [fields_of(one, *RUNG) for one in best.by_confidence] if best and objective.slos else [],
            "measure_next": _measure_next(best) if best else None,
            "doubts": shared.doubts_of(self.doubts),
            **fields_of(self, "warnings", "advice"),
            "minimised": fleets.minimised,
            "carries": planning.interval_figures("request_rate", best.carries if best else None),
            "prefix_cache_share": best.reuse if best else {},
            "plain_router": best and to_plain(best.plain_router),
            "kv_offloading": _offloading(best) if best else None,
            "fleets": [
                row | {"pools": [_pool_object(fleet, pool) for pool in fleet.pools]}
                for row, fleet in zip(self.rows(), self.fleets, strict=True)
            ],
            "disaggregated": list(map(divided_object, self.divided)),
            "prices": shared.price_rows(space.gpus, space.prices),
            "refused": to_plain(fleets.refused),
            **({"nearest_runs": rows_of(self.nearest, shared.NEAREST)} if self.explain else {}),
        }

    def sentences(self) -> Iterator[str]:
        fleets, best = self.record, self.record.best
        yield wrapped(_verdict_of(fleets))
        yield from shared.items("!", map(str, self.doubts if self.explain else self.doubts[:BRIEF_DOUBTS]))
        cautions = [*shared.items("!", self.warnings), *shared.items("i", self.advice[: None if self.explain else 1])]
        if self.explain:
            yield "\n" + (table_text(self.fleets, COLUMNS) if self.fleets else "no fleet: no GPU carries this load")
            yield from (*shared.items("-", _reasons(fleets, best) if best else ()), *cautions)
            if self._split:
                yield f"\nprefill and decode on servers of their own:\n\n{table_text(self._split, DISAGGREGATED)}"
            yield from shared.nearest_lines(self.nearest)
            for words in self._next_commands(best) if best else ():
                yield from command_lines({}, words)
            return
        if best is None:
            yield from shared.items("x", (f"{one.gpu}: {one.reason}" for one in fleets.refused[:BRIEF_REFUSED]))
            return
        yield "\n" + known_table(self.fleets[:BRIEF_FLEETS], BRIEF)
        rest = [f"and {len(self.fleets) - BRIEF_FLEETS} more fleets"] if len(self.fleets) > BRIEF_FLEETS else []
        if rest or fleets.search.space.coarse:
            yield "; ".join([*rest, *[shared.COARSELY] * fleets.search.space.coarse])
        certainty, (servers, *reasons) = list(_certainty(best)), _reasons(fleets, best, brief=True)
        notes = [*certainty[:1], *map(needs_words, self._split[:2]), *reasons, *certainty[1:], servers]
        yield from (*shared.items("-", notes[: shared.NOTES - len(self.doubts)]), *cautions)
        yield from (line for words in self._next_commands(best) for line in command_lines({}, words))

    @property
    def _split(self) -> list[planning.Disaggregated]:
        return [plan for plan in self.divided if isinstance(plan, planning.Disaggregated)]

    def _next_commands(self, best: planning.Fleet) -> Iterator[list[str]]:
        """For each class and GPU the command that plans its servers, with the share of the load that they carry."""
        solver = best.solver
        space, profiles = solver.search.space, {pool.kind.profile.id: pool.kind.profile for pool in best.pools}
        pools = [(pool.place, pool.kind.profile.id, pool.servers * pool.load.value) for pool in best.pools]
        parts = list(dict.fromkeys(pool[:2] for pool in pools))
        for place, gpu in parts[:BRIEF_COMMANDS]:
            share = sum(p[2] for p in pools if p[:2] == (place, gpu)) / sum(p[2] for p in pools if p[0] == place)
            demand = planning.times(solver.demands[place], share / (1 + solver.headroom))
            lengths = ("--random-input-len", str(demand.input_len), "--random-output-len", str(demand.output_len))
            if demand.classes:
                load = tuple(word for one in demand.classes for word in ("--class", one.word))
            else:
                sent = ("--request-rate", f"{demand.request_rate:g}")
                varied = ("--random-range-ratio", f"{demand.range_ratio:g}") if demand.range_ratio else ()
                known = ("--trace", demand.origin.path) if demand.origin else ("--workload", demand.name)
                load = (*known, *sent) if demand.reused or demand.origin else (*sent, *lengths, *varied)
            own = {one.name for one in demand.classes if one.limits_ms}
            limits = {slo.metric: slo.limit_ms for slo in solver.objectives[place].slos if slo.group not in own}
            targets = (word for metric, limit_ms in limits.items() for word in (f"--{metric}", f"{limit_ms:g}"))
            folder = "-".join([f"plans/{gpu}", *[demand.name] * (len(solver.demands) > 1)])
            words = shared.recommend_words(space.model.requested, profiles[gpu], space.prices)
            yield [*words, *load, *targets, *self.stated, "-o", folder if len(parts) > 1 else "plans"]

    def split_files(self, command: str) -> dict[str, str]:
        """Scripts that launch both sides, of several GPUs in a folder each; empty where none is divided."""
        from planner.output.deploy.hosts import split_files  # slow to import, for the few that write scripts

        return {
            f"{plan.profile.id}/{name}" if len(self._split) > 1 else name: text
            for plan in self._split
            for name, text in split_files(plan, command).items()
        }

    def _fits(self) -> Iterator[str]:
        kinds = [pool.kind for fleet in self.fleets for pool in fleet.pools]
        yield from shared.engine_note(str(kind.deployment.config.version) for kind in kinds)
        yield from shared.calibration_note(kind.deployment for kind in kinds)

    def _brief_notes(self) -> Iterator[str]:
        kinds = [pool.kind for fleet in self.fleets for pool in fleet.pools]
        refused = [f"{one.gpu} ({one.reason})" for one in self.record.refused]
        if refused and kinds:
            yield f"left out: {shared.listed(refused, BRIEF_REFUSED)}"
        profiles = {kind.profile.id: kind.profile for kind in kinds}.values()
        assumed_usd = self.record.mean_usd if self.record.terms.minimise == "usd" else 0.0
        yield from shared.price_caveats(profiles, self.record.search.space.prices, assumed_usd)
        yield "; ".join([*self._fits(), shared.MORE])

    def _notes(self) -> Iterator[str]:
        fleets, space, best = self.record, self.record.search.space, self.record.best
        yield from self._fits()
        yield from (f"{refused.gpu} is left out: {refused.reason}" for refused in fleets.refused)
        missing = [plan for plan in self.divided if isinstance(plan, planning.Refused)]
        yield from (f"{plan.gpu} is not split: {plan.reason}" for plan in missing)
        taking_part = {fleet.rented[0].profile.id for fleet in fleets.single}
        yield from shared.price_notes([profile for profile in space.gpus if profile.id in taking_part], space.prices)
        if best and fleets.minimised != fleets.terms.minimise:
            yield "no price is known: fleets are ordered by their number of GPUs"
        if best:
            yield from _certainty(best)
            yield "USD range from the lowest price to the highest; kW assume boards at their TDP"
            yield from () if best.proven else ["the search stopped early: a cheaper mix may exist"]
        if any(not plan.transfer.over.startswith("--") for plan in self._split):
            yield "transfers run at line rate: they take at least this long"
        yield from self.said


def _stocked(fleet: planning.Fleet) -> bool:
    return fleet.solver.search.space.stock is not None


def _measure_next(fleet: planning.Fleet) -> dict[str, Any] | None:
    if fleet.measure_next is None:
        return None
    run, then = fleet.measure_next
    rate = run.workload.request_rate
    return {
        "gpu": fleet.pools[0].kind.profile.id,
        **fields_of(run, "workload.max_concurrency", "workload.num_prompts"),
        "request_rate": rate if isfinite(rate) else None,
        **fields_of(run, "duration_s", "figure", "deviation_factor=factor"),
        "expected": fields_of(then, *RUNG),
    }


def _offloading(fleet: planning.Fleet) -> dict[str, Any] | None:
    if fleet.offloading is None:
        return None
    found, rate, gpus = fleet.offloading
    shares = fields_of(found, "host_share", "gpu_share", "without_gpu_share=without.gpu_share")
    return shares | {"without_rate": rate, "without_gpus": gpus}


def _verdict_of(fleets: planning.Fleets) -> str:
    search, best, model = fleets.search, fleets.best, fleets.search.space.model
    targets = targets_in_words(search.objective.slos) if search.objective.slos else "no latency target"
    where = shared.listed([shared.card(profile.id) for profile in search.space.gpus], BRIEF_REFUSED)
    if best is None and search.space.stock is not None:
        return f"The GPUs of --budget or --have serve no load of {model.resolved} with {targets}: {where}"
    by = " by length" if fleets.demands[0].recorded else ""  # of a trace
    sent = f" in {len(fleets.demands)} classes{by}" if fleets.demands[1:] else shared.of_tokens(fleets.demands[0])
    loads = shared.asked_load(sum(demand.request_rate for demand in fleets.demands)) + sent
    if best is None:
        return f"No fleet carries {loads} of {model.resolved} with {targets}: {where}"
    checkpoints = dict.fromkeys(pool.kind.candidate.resolved.resolved for pool in best.pools)
    models = shared.listed([shared.served_words(one, model) for one in checkpoints], 1)
    gpus = " + ".join(f"{one.gpus:,} x {_rented(one.profile)}" for one in best.rented)
    price = f"; {best.usd_per_h.mid:,.2f}{SPACE}USD/h" if best.usd_per_h else ""
    price += f", {each.mid:,.2f}{SPACE}USD per 1M output tokens" if (each := best.usd_per_million_tok) else ""
    by_cost = fleets.minimised == "usd" and not _stocked(best)
    price += "; GPU price assumed" * (by_cost and not best.usd_per_h and any(one.usd_per_h for one in fleets.fleets))
    most = best.carries and best.carries.scaled(1 / (1 + search.objective.headroom))  # without the spares
    room = f"; room for {shared.figure_between(most.mid, most.low, most.high, 'requests/s')}" if most else ""
    if most and _stocked(best):
        loads, room = shared.figure_between(best.request_rate, most.low, most.high, "requests/s") + sent, ""
    return f"Serve {models} on {gpus}: {loads} with {targets}{room}{price}"


def _rented(profile: GpuProfile) -> str:
    return (f"{shared.card(profile.whole)} as " if profile.parts > 1 else "") + shared.card(profile.id)


def _reasons(fleets: planning.Fleets, best: planning.Fleet, *, brief: bool = False) -> Iterator[str]:
    objective, pool = fleets.search.objective, best.busiest
    spare = sum(count for _, count in best.spares)
    servers = counted(best.servers - spare, "server") + (f" and {spare} spare" if spare else "")
    pools = len({(one.place, one.kind.profile.id) for one in best.pools})
    each = f" in {pools} pools, each" if pools > 1 else ""
    servers += f"{each} behind a {objective.router} router" if best.servers > 1 else ""
    one = "each" if pools == 1 and pool.servers > 1 else "one server"  # behind a router fewer carry less each
    yield "; ".join([servers, *dict.fromkeys(_carries(best, other, one) for other in best.pools)])
    yield from planning.beside_recipe(pool.kind.departures)
    margin = shared.margin_lines(objective.headroom, objective.spares, best.gpus, best.with_margin)
    parts = filter(None, [*margin, shared.router_words(best.plain_router, best.servers - spare)])
    yield from filter(None, ["; ".join(parts)])
    if best.sessions_at_once or _stocked(best):
        yield shared.load_in_words(best.requests_in_flight, best.sessions_at_once, best.output_tok_per_day)
    if fleets.shapes:
        apart, together = fleets.shapes
        one = f"takes {counted(together.gpus)}" if together else "misses the targets"
        yield f"one pool for all classes {one}, a pool for each {f'takes {apart.gpus:,}' if apart else 'misses them'}"
    if (others := fleets.fleets[1:]) and not _stocked(best) and not brief:  # the table has it
        usd = f", {others[0].usd_per_h.mid:,.2f} USD/h" if others[0].usd_per_h else ""
        yield f"next best: {counted(others[0].gpus)} of {' + '.join(r.profile.id for r in others[0].rented)}{usd}"
    if best.offloading:
        found, _, gpus = best.offloading
        then = f"the load takes {counted(gpus)}" if gpus else "any number of such servers misses the targets"
        yield shared.from_host(found, found.without.gpu_share, then)
    elif unused := pool.kind.deployment.unused_host_remark:
        yield unused
    if best.reuse:
        asked = objective.router
        rest = ", ".join(f"{share:.1%} {router}" for router, share in best.reuse.items() if router != asked)
        words = f"{best.reuse.get(asked, 0.0):.1%} of the prompt tokens come from the prefix cache, {asked}"
        yield f"{words}; {rest}" if rest else words


def _carries(best: planning.Fleet, pool: planning.Pool, one: str) -> str:
    of = f" of {pool.demand.name}" * (len({other.place for other in best.pools}) > 1)
    of += f" on {shared.card(pool.kind.profile.id)}" * (len(best.rented) > 1)
    layout = shared.layout_in_words(pool.kind.deployment.config)
    return f"{one}{of}, {layout}, carries {figure(pool.load.value)} requests/s"


def _certainty(best: planning.Fleet) -> Iterator[str]:
    objective = best.solver.search.objective
    if not objective.slos:
        return
    ladder = shared.load_takes([(one.confidence, one.gpus) for one in best.by_confidence], best.gpus)
    yield f"targets are met with {objective.confidence:.0%} confidence; {ladder}"
    if best.measure_next:
        run, then = best.measure_next
        change = f"reduce the fleet from {best.gpus:,} to {counted(then.gpus or 0)}"
        yield shared.measure_next("vllm bench serve on one of these servers", run, change)


def _servers_words(fleet: planning.Fleet) -> str:
    """``2 + 1 x TP 8`` for one class and one kind of server, else each pool by name."""
    spares = sum(count for _, count in fleet.spares)
    layouts = [shared.layout_in_words(pool.kind.deployment.config) for pool in fleet.pools]
    if len(fleet.pools) == 1:
        return f"{fleet.pools[0].servers}{f' + {spares}' if spares else ''} x {layouts[0]}"
    mixed, several = len(fleet.rented) > 1, len({pool.place for pool in fleet.pools}) > 1
    gpus = (f"{pool.kind.profile.id} " if mixed else "" for pool in fleet.pools)
    names = (f"{pool.demand.name}: " if several else "" for pool in fleet.pools)
    rows = zip(names, fleet.pools, gpus, layouts, strict=True)
    words = [f"{name}{pool.servers} x {gpu}{layout}" for name, pool, gpu, layout in rows]
    return ", ".join([*words, f"{spares} spare"] if spares else words)


def _of_pools(fleet: planning.Fleet, path: str) -> str:
    return ", ".join(dict.fromkeys(str(at(pool, path)) for pool in fleet.pools))


def _pool_object(fleet: planning.Fleet, pool: planning.Pool) -> dict[str, Any]:
    return {
        **fields_of(pool, "class=demand.name", "gpu=kind.profile.id", "model=kind.candidate.resolved.resolved"),
        **fields_of(pool, "servers", "kind.num_gpus"),
        **pool.kind.deployment.config.choice,
        **fields_of(pool.kind.deployment, "engine_version=config.version", *shared.EVIDENCE),
        "largest_load": fleet.used and pool.load.value,
        "utilisation": fleet.used and fleet.utilisation(pool),
        "bound_by": pool.load.bound_by or None,
        "departures": list(pool.kind.departures),
    }


def _side_words(plan: planning.Disaggregated, engine: Any, servers: int) -> str:
    extra = f" + {plan.spares}" if plan.spares else ""
    return f"{servers}{extra} x {shared.layout_in_words(engine.deployment.config)}"
