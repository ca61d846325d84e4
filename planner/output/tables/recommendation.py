"""``planner recommend`` in words and rows: a line for each GPU, then each plan with reasons and launch command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.output.answer import Answer
from planner.output.render import Column, command_lines, known_table, wrapped
from planner.output.tables.disaggregated import apart_in_words, apart_lines, divided_object, needs_words
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
    local_argv,
    milliseconds,
    minutes,
    no_price,
    seconds,
)
from planner.output.workflows.documents import said_of
from planner.planning import (
    Apart,
    Candidate,
    Disaggregated,
    Doubt,
    Merit,
    NotDivided,
    Plan,
    PlannedClass,
    PlannedRung,
    PlannedTarget,
    PlannedTrace,
    Ranking,
    Rejected,
    Request,
    Service,
    apart_from,
    assemble,
    beside,
    cheapest_apart,
    closest_lines,
    closest_point,
    doubt_about_refusal,
    doubts_about_plan,
    kept_limits,
    little_in_words,
    order_words,
    percent,
    plans_best_first,
    price_of,
    what_binds,
)
from planner.timing import SHIPPED
from planner.units import GIB, MS, figure
from planner.workload import Load, targets_in_words


def _predicted(key: str) -> Callable[[Plan], Any]:
    return lambda plan: plan.predicted[key]


def _service(key: str) -> Callable[[Plan], Any]:
    return lambda plan: getattr(plan.service, key)


_LATENCIES = (
    Column("mean_ttft_ms", "TTFT ms", ",.0f", of=_predicted("mean_ttft_ms")),
    Column("mean_tpot_ms", "TPOT ms", ",.1f", of=_predicted("mean_tpot_ms")),
    Column("mean_e2el_ms", "E2EL ms", ",.0f", of=_predicted("mean_e2el_ms")),
    Column("engine_version", "vllm"),
    Column("calibration", aside=True),
)
COLUMNS = (
    Column("gpu"),
    Column("num_gpus", "gpus"),
    Column("model", aside=True),
    Column("tensor_parallel_size", "tp"),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache"),
    Column("max_num_seqs", "batch", ","),
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f", of=_predicted("output_throughput_per_gpu")),
    Column("output_throughput_per_user", "tok/s/user", ",.1f", of=_predicted("output_throughput_per_user")),
    *_LATENCIES,
)
#: With targets: what all servers cost and carry, then what one server does.
TARGET_COLUMNS = (
    Column("gpu"),
    Column("total_gpus", "gpus", of=_service("total_gpus")),
    Column("usd_per_hour", "USD/h", ",.2f", of=_service("usd_per_hour")),
    Column("replicas", "servers", of=_service("replicas")),
    Column("model", aside=True),
    Column("layout", of=lambda plan: layout_in_words(plan)),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache"),
    Column("max_num_seqs", "batch", ","),
    Column("max_num_batched_tokens", "tokens", ","),
    Column("load", "load", figure, of=_service("load")),
    Column("largest_load", "largest", figure, of=_service("largest_load")),
    Column("goodput", "goodput", figure, aside=True, of=_service("goodput")),
    *_LATENCIES,
)
#: On one screen: the best plan of each GPU.
BRIEF_COLUMNS = (
    Column("gpu"),
    Column("num_gpus", "gpus"),
    Column("layout", of=lambda plan: layout_in_words(plan)),
    Column("weight_dtype", "weights"),
    Column("kv_cache_dtype", "kv cache", spare=True),
    Column("max_num_seqs", "batch", ",", spare=True),
    *COLUMNS[7:9],
    *_LATENCIES[:2],
    Column("mean_e2el_ms", "E2EL ms", ",.0f", spare=True, of=_predicted("mean_e2el_ms")),
)
BRIEF_TARGET_COLUMNS = (
    Column("gpu"),
    *TARGET_COLUMNS[1:4],
    *BRIEF_COLUMNS[2:6],
    Column("output_throughput_per_gpu", "tok/s/gpu", ",.0f", of=_service("output_throughput_per_gpu")),
)
#: What one server gets of each class, under the table.
CLASS_COLUMNS = (
    Column("class"),
    Column("figure"),
    Column("value", "predicted", figure),
    Column("expected", "up to", figure),
    Column("target", form=",.10g"),
)
BRIEF_GPUS = 8  #: rows of the brief table
BRIEF_REASONS = 3
BRIEF_WARNINGS = 2
BRIEF_REFUSED = 3  #: GPUs without a plan whose reasons are told
LISTED = 3  #: plans of each GPU in the JSON
SHOWN_GPUS = 8  #: with more GPUs only the best plan is explained
SHOWN_REJECTED = 3  #: models for each GPU in the text; JSON has all


@dataclass(frozen=True, repr=False)
class Recommendation(Answer):
    """The plan of each GPU, with reasons: ``planner recommend``."""

    verdict_first = True
    request: Request
    rankings: tuple[Ranking, ...]  #: of each GPU: candidates, best first, and what was rejected
    plans: tuple[Plan | None, ...]  #: the picked plan of each GPU; None where there is none
    pick: int  #: place of the picked plan; 1 is the best
    defaults_taken: Mapping[str, Any]
    command: str  #: the equivalent command line
    wrote: bool = False  #: whether the scripts are written already
    remarks: tuple[str, ...] = ()
    explain: bool = False
    disaggregated: bool = False  #: whether prefill and decode apart may be the answer

    @property
    def ok(self) -> bool:
        """Whether there is a plan for at least one GPU, and the central prediction does not refute the best."""
        return bool(self._made) and not any(doubt.refutes for doubt in self.doubts)

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """What is out of proportion in the best plan, or in the refusal of each GPU."""
        best, targets = self.best, self.request.targets
        if self.answer_apart:
            return ()
        if best:
            return tuple(doubts_about_plan(self.request, self._candidates[id(best)], best))
        if targets is None:
            return ()
        found = (doubt_about_refusal(ranking, targets.confidence) for ranking in self.rankings)
        return tuple(doubt for doubt in found if doubt)

    @property
    def best(self) -> Plan | None:
        """The best of all plans; None where there is none."""
        return next(iter(self._best_first(self._made)), None)

    @cached_property
    def divisions(self) -> Mapping[str, Disaggregated | NotDivided]:
        """Prefill and decode apart by GPU: beside the best plan, and where they may be the answer beside each."""
        plans = self._best_first(self._made)
        found = ((plan.gpu, self._beside(plan)) for plan in (plans if self.disaggregated else plans[:1]))
        return {gpu: division for gpu, division in found if division}

    @property
    def divided(self) -> Disaggregated | NotDivided | None:
        """Prefill and decode apart beside the best plan."""
        return self.divisions.get(self.best.gpu) if self.best else None

    def _beside(self, plan: Plan) -> Disaggregated | NotDivided | None:
        """None where one server takes all and nobody asked, or many types are named.

        The GPUs are those of a plan of several servers, or of the nodes that somebody named.
        """
        request = self.request
        if plan.service is None or request.coarse or plan.platform == "cpu":
            return None
        named = "gpus" not in self.defaults_taken or request.nodes or self.disaggregated
        gpus = max(plan.gpus_per_node * (request.nodes or 1) if named else 0, plan.service.total_gpus)
        if gpus < 2 * plan.num_gpus and not self.disaggregated:
            return None
        return beside(request, self._candidates[id(plan)], plan.service.largest_load, gpus)

    @cached_property
    def apart(self) -> Mapping[str, Apart]:
        """By GPU, prefill and decode apart where that is asked for, and cheaper than its plan."""
        if not self.disaggregated:
            return {}
        divided = {gpu: plan for gpu, plan in self.divisions.items() if isinstance(plan, Disaggregated)}
        found = (apart_from(self.request, plan, divided[plan.gpu]) for plan in self._made if plan.gpu in divided)
        return {one.plan.gpu: one for one in found if one}

    @property
    def answer_apart(self) -> Apart | None:
        """Prefill and decode apart where that is the answer: cheaper than all plans."""
        return cheapest_apart(self._made, self.apart.values())

    def to_svg(self) -> str:
        """The memory of each GPU, a bar for each plan, as an SVG file. Raises InputError where there is no plan."""
        from planner.output.charts import draw
        from planner.output.report.figures import memory_chart

        if not self._made:
            raise InputError("nothing to draw: no GPU has a plan", hint="print the answer: it says why")
        return draw.svg(memory_chart(self._made))

    @property
    def _made(self) -> list[Plan]:
        return [plan for plan in self.plans if plan is not None]

    @property
    def _are_many(self) -> bool:
        return len(self.rankings) > SHOWN_GPUS

    @cached_property
    def _candidates(self) -> dict[int, Candidate]:
        """Of each picked plan, by ``id``."""
        picked = zip(self.plans, self.rankings, strict=True)
        return {id(plan): ranking.candidates[self.pick - 1] for plan, ranking in picked if plan}

    def _others(self) -> Iterator[tuple[Plan, Candidate]]:
        """The plans that could be picked instead."""
        for ranking in self.rankings:
            for place, candidate in enumerate(ranking.candidates[:LISTED], 1):
                if place != self.pick:
                    yield assemble(self.request, ranking, candidate), candidate

    @cached_property
    def _merit(self) -> Merit:
        return Merit.among((c for ranking in self.rankings for c in ranking.candidates), self.request.goal)

    def _best_first(self, plans: Iterable[Plan]) -> list[Plan]:
        return plans_best_first(plans, self._merit)

    def _behind(self, plans: Sequence[Plan], more: Iterable[tuple[Plan, Candidate]] = ()) -> list[float | None]:
        """Probability that the first of ``plans``, picked ones or of ``more``, serves the goal better than each.

        None for itself, and with targets, where GPUs are counted.
        """
        if self.request.targets or not plans:
            return [None for _ in plans]
        candidates = self._candidates | {id(plan): candidate for plan, candidate in more}
        best, *others = (candidates[id(plan)] for plan in plans)
        return [None, *(self._merit.odds(self.request, best, other) for other in others)]

    def _object(self) -> dict[str, Any]:
        request, rankings = self.request, self.rankings
        others = list(self._others())
        first = self._best_first(self._made)[:1]  # what is printed and written
        plans = first + self._best_first(p for p in (*self._made, *(plan for plan, _ in others)) if p not in first)
        return {
            "goal": request.goal,
            "workload": _workload(request),
            "targets": _targets(request),
            "defaults_taken": [f"{name} = {_plain(value)}" for name, value in self.defaults_taken.items()],
            "order": order_words(self._made, request.goal) if self._made else None,
            "doubts": [doubt_object(doubt) for doubt in self.doubts],
            "plans": [plan.model_dump(mode="json") for plan in plans],
            "probability_behind": self._behind(plans, others),
            "pareto": [_point(self.request, candidate) for ranking in rankings for candidate in ranking.pareto],
            "closest": [closest_point(ranking.closest) for ranking in rankings if ranking.closest],
            "disaggregated": [divided_object(plan) for plan in self.divisions.values()],
            "answer": self._answer(),
            "published": {ranking.profile.id: list(_published(ranking)) for ranking in rankings},
            "rejected": [asdict(rejected) for ranking in rankings for rejected in ranking.rejected],
        }

    def _answer(self) -> dict[str, Any] | None:
        """What to rent, and in which shape."""
        apart, best = self.answer_apart, self.best
        if apart:
            size, usd = apart.division.least_gpus, apart.usd_per_hour
            return {"shape": "disaggregated", "gpu": apart.plan.gpu, "num_gpus": size, "usd_per_hour": usd}
        if best is None:
            return None
        size, usd = (best.service.total_gpus, best.service.usd_per_hour) if best.service else (best.num_gpus, None)
        return {"shape": "aggregated", "gpu": best.gpu, "num_gpus": size, "usd_per_hour": usd}

    def _records(self) -> list[Plan]:
        return self._best_first(self._made)

    def _columns(self) -> Sequence[Column]:
        return TARGET_COLUMNS if self.request.targets else COLUMNS

    def _verdict(self) -> str:
        """The answer in a sentence."""
        best, targets, model = self.best, self.request.targets, self.request.model.resolved
        if apart := self.answer_apart:
            return apart_in_words(self.request, apart)
        if best:
            return plan_in_words(best)
        where = listed([card(ranking.profile.id) for ranking in self.rankings], BRIEF_REFUSED)
        if targets and targets.slos and any(ranking.closest for ranking in self.rankings):
            return f"No plan keeps {targets_in_words(targets.slos)}: {model} on {where}"
        return f"No setting of {model} fits on {where}, {self.request.gpus_per_node} GPUs to the node"

    def _brief_lines(self) -> Iterator[str]:
        yield wrapped(self._verdict())
        yield from items("!", map(str, self.doubts))
        best, pairs = self.best, self._in_order()
        if apart := self.answer_apart:
            yield ""
            yield from apart_lines(apart, plan_in_words(best) if best else "")
            return
        if best:
            made = [plan for _, plan in pairs if plan][:BRIEF_GPUS]
            columns = _brief_target_columns(made[0]) if self.request.targets else BRIEF_COLUMNS
            yield "\n" + known_table(made, columns)
            yield from _class_lines(best)
            ranking = next(ranking for ranking, plan in pairs if plan is best)
            ahead = self._odds_words() if len(made) > 1 else ""
            candidate, divided = self._candidates[id(best)], list(self._divided_words())
            yield from _brief_plan_lines(self.request, ranking, candidate, best, ahead, divided)
        without = [ranking for ranking, plan in pairs if plan is None]
        for ranking in without[: 1 if best else BRIEF_REFUSED]:
            yield from items("x", [f"no plan on {card(ranking.profile.id)}: {_why_none(ranking)}"])
        if len(without) > (1 if best else BRIEF_REFUSED):
            yield from items("x", [f"{len(without)} GPUs in all have no plan"])
        if best:
            yield from command_lines(best.env, local_argv(best))

    def _brief_notes(self) -> Iterator[str]:
        if taken := self._taken():
            yield f"defaults taken: {taken}"
        unpriced = [plan.gpu for plan in self._made if plan.service and plan.service.usd_per_hour is None]
        if unpriced:
            yield no_price(unpriced)
        fits = calibration_note((plan.gpu, plan.calibration) for plan in self._made)
        scripts = () if self.wrote or not self._made else ("-o DIR writes the scripts",)
        yield "; ".join([*engine_note(plan.engine_version for plan in self._made), *fits, *scripts, MORE])

    def _taken(self) -> str:
        return ", ".join(f"{name}={_plain(value)}" for name, value in self.defaults_taken.items())

    def _lines(self) -> Iterator[str]:
        yield wrapped(self._verdict())
        yield from items("!", map(str, self.doubts))
        yield ""
        if apart := self.answer_apart:
            yield from (*apart_lines(apart), "", "servers that do both:", "")
        if self._made:
            yield from super()._lines()
        yield from items("-", self._divided_words(why=True))
        if self._are_many and self.best:
            yield from _best_lines(self.rankings, self.plans, self.best, self.request.prices)
        else:
            yield from _each_lines(self._in_order(), self.request.prices)

    def _in_order(self) -> list[tuple[Ranking, Plan | None]]:
        """In the order of the table; GPUs without a plan are last."""
        pairs = list(zip(self.rankings, self.plans, strict=True))
        order = {id(plan): place for place, plan in enumerate(self._best_first(self._made))}
        return sorted(pairs, key=lambda pair: order.get(id(pair[1]), len(order)))

    def _divided_words(self, *, why: bool = False) -> Iterator[str]:
        """Which is better, together or apart; ``why`` not, too, where targets or load are not of the kind for it."""
        targets, plans = self.request.targets, {plan.gpu: plan for plan in self._made}
        for gpu, division in self.divisions.items():
            if isinstance(division, Disaggregated):
                cheaper = not self.disaggregated and apart_from(self.request, plans[gpu], division)
                yield needs_words(division) + ("; --disaggregated makes that the plan" if cheaper else "")
            elif targets and (why or self.disaggregated or {slo.metric for slo in targets.slos} == {"ttft", "tpot"}):
                yield (
                    f"prefill and decode apart are not compared{f' on {gpu}' if len(plans) > 1 else ''}: "
                    + division.reason
                )

    def _odds_words(self) -> str:
        """How sure the first place is, where a goal decides."""
        plans = self._best_first(self._made)
        behind = self._behind(plans)[1]
        return f"; {plans[0].gpu} is ahead of {plans[1].gpu} with {percent(behind)} probability" if behind else ""

    def _title(self) -> str:
        return f"{self.request.model.resolved}, {self.request.goal}"

    def _notes(self) -> Iterator[str]:
        if self._made:
            yield f"calibration: {', '.join(dict.fromkeys(plan.calibration for plan in self._made))}"
        if len(self._made) > 1:
            yield f"order: {order_words(self._made, self.request.goal)}{self._odds_words()}"
        if taken := self._taken():
            yield f"defaults taken: {taken}"
        if not self.wrote and self._made:
            yield f"write the scripts with: {self.command} -o plans"


def _brief_target_columns(plan: Plan) -> Sequence[Column]:
    """With what is predicted for each target of all requests; without such targets the mean latencies."""
    kept = tuple(
        Column(target.metric, f"{statistic} {name.upper()} ms", figure, of=_predicted_of_target(place))
        for place, target in enumerate(plan.targets)
        if not target.of_class
        for statistic, name, _ in [target.metric.split("_")]
    )
    return (*BRIEF_TARGET_COLUMNS, *(kept or _LATENCIES[:2]))


def _predicted_of_target(place: int) -> Callable[[Plan], Any]:
    return lambda plan: plan.service.targets[place].predicted_ms if plan.service else None


def plan_in_words(plan: Plan) -> str:
    """The plan in a sentence: what to serve on what, and what that delivers."""
    service, figures = plan.service, plan.predicted
    layout = layout_in_words(plan)
    means = f"TTFT {seconds(figures['mean_ttft_ms'])}, TPOT {milliseconds(figures['mean_tpot_ms'])}"
    if service is None:
        value, low, high = (figures[f"request_throughput{end}"] for end in ("", "_lo", "_hi"))
        rate = figure_between(value, low, high, "requests/s")
        size, delivers = plan.num_gpus, f"{rate}, {means}"
    else:
        size, most = service.total_gpus, _most_in_words(service)
        if service.replicas > 1:
            layout = f"{service.replicas:,} servers of {layout}"
        kept = [_target_in_words(target) for target in service.targets]
        price = [f"{service.usd_per_hour:,.2f} USD/h"] if service.usd_per_hour is not None else []
        load = asked_load(service.load or 0.0, service.load_unit) if service.load_asked else most
        delivers = ", ".join([load, *(kept or [means]), *price])
        delivers += f"; room for {most}" if most and service.load_asked else ""
    return f"Serve {plan.model} on {size:,} x {card(plan.gpu)}, {layout}: {delivers}"


def _most_in_words(service: Service) -> str:
    """The largest load of all servers, with its interval; empty where it was not looked for."""
    ends = (service.largest_load, service.largest_load_lo, service.largest_load_hi)
    most, low, high = (end and end * service.replicas for end in ends)
    return figure_between(most, low, high, service.load_unit) if most else ""


def _target_in_words(target: PlannedTarget) -> str:
    """``p99 TTFT 0.65 s`` of ``p99_ttft_ms``, and of which class."""
    statistic, name, _ = target.metric.split("_")
    value = seconds(target.predicted_ms) if name in ("ttft", "e2el") else milliseconds(target.predicted_ms)
    return f"{statistic} {name.upper()} {value}" + (f" for {target.of_class}" if target.of_class else "")


def _class_lines(plan: Plan) -> Iterator[str]:
    """What one server gets of each class, its targets, and how much of it keeps them."""
    if plan.classes:
        yield "\n" + known_table([row for one in plan.classes for row in _class_rows(plan, one)], CLASS_COLUMNS)


def _class_rows(plan: Plan, one: PlannedClass) -> Iterator[dict[str, Any]]:
    sooner = f", priority {one.priority}" if one.priority else ""
    name, good = f"{one.name}, {figure(one.workload.request_rate or 0.0)} requests/s{sooner}", one.predicted
    rows: list[dict[str, Any]] = []
    for target in plan.targets:
        if target.of_class == one.name:
            statistic, metric, _ = target.metric.split("_")
            row = {"figure": f"{statistic} {metric.upper()} ms", "value": target.predicted_ms}
            rows.append({**row, "expected": target.expected_ms, "target": target.limit_ms})
    if "request_goodput" in good:
        rows.append({"figure": "good requests/s", "value": good["request_goodput"]})
    rows = rows or [{"figure": "mean E2EL ms", "value": good["mean_e2el_ms"]}]
    for place, row in enumerate(rows):
        yield {"class": "" if place else name, **row}


def _why_none(ranking: Ranking) -> str:
    """Why a GPU has no plan, and which targets its closest plan would keep."""
    closest = ranking.closest
    if closest is None or closest.load is None:
        return next((rejected.reason for rejected in _rejected_of_each(ranking)), "nothing fits")
    broken = [
        f"{reading.slo} ({figure(reading.predicted_ms, 4)} ms predicted, up to {figure(reading.expected_ms, 4)} ms)"
        for reading in closest.load.readings
        if not reading.met
    ]
    count = closest.config.num_gpus
    subject = f"{count} GPUs break" if count > 1 else "1 GPU breaks"
    return (
        f"{subject} {' and '.join(broken)} even with {little_in_words(closest.load)}; "
        f"{kept_limits(closest.load.readings)} would be kept"
    )


def _brief_plan_lines(
    request: Request, ranking: Ranking, candidate: Candidate, plan: Plan, ahead: str, divided: Sequence[str]
) -> Iterator[str]:
    """Three reasons, what binds, what it costs to be surer, and the warnings that touch the answers of the model."""
    yield from items("-", _brief_reasons(ranking, plan, ahead))
    yield from items("-", [f"what binds: {_binding(request, candidate, plan.service)}"])
    if plan.service and plan.service.prefix_cache_share is not None:
        dealt = f", {plan.service.router}" if plan.service.replicas > 1 else ""
        found = f"{plan.service.prefix_cache_share:.1%} of the prompt tokens come from the prefix cache"
        replayed = f"{dealt}{_replayed(request, candidate)}"
        yield from items("-", [*_host_lines(plan.service)] or [found + replayed])
    if plan.service:
        yield from items("-", [*_ladder_lines(plan.service), *divided])
    general = candidate.resolved.notes
    urgent = [warning for warning in plan.warnings if warning not in general]
    yield from items("!", urgent[:BRIEF_WARNINGS])


def _host_lines(service: Service) -> Iterator[str]:
    """What KV blocks in host memory are worth: to the targets of as many servers, and in GPUs."""
    found = service.kv_offloading
    if found is None:
        return
    without, kept = found.without, {target.metric: target for target in service.targets}
    figures = "".join(
        f", {target.slo.statistic} {target.slo.metric.upper()} {milliseconds(target.predicted_ms)} instead of "
        f"{milliseconds(kept[target.metric].predicted_ms)}"
        for target in without.targets
    )
    if without.total_gpus == service.total_gpus:
        taken = "and the targets are kept on as many GPUs"
    elif without.total_gpus:
        taken = f"and the load takes {without.total_gpus:,} GPUs instead of {service.total_gpus:,}"
    else:
        taken = "and four times as many GPUs would not keep the targets"
    yield (
        f"{found.host_share:.1%} of the prompt tokens are loaded from host memory, {found.gpu_share:.1%} are found on "
        f"the GPU; without --kv-offloading-size: {without.gpu_share:.1%} on the GPU{figures}, {taken}"
    )


def _replayed(request: Request, candidate: Candidate) -> str:
    """How much of a long load was replayed; empty where that was all of it."""
    if candidate.load is None or request.load.recorded is None:
        return ""
    sent, known = len(candidate.load.replay.sent_s) * candidate.servers, request.load.count
    return f"; the last {sent:,} of {known:,} requests are replayed" if sent < known else ""


def _binding(request: Request, candidate: Candidate, service: Service | None) -> str:
    """What keeps a server from serving more; of a target how near the prediction and its interval come to it."""
    binds = what_binds(request, candidate)
    if service is None:
        return binds
    if not binds.startswith(service.bound_by):  # a larger load breaks something else first
        binds = service.bound_by
    slo, _, behind = binds.partition("; ")
    near = next((r for r in candidate.load.readings if str(r.slo) == slo), None) if candidate.load else None
    if near is None:
        return binds
    form = seconds if near.slo.metric in ("ttft", "e2el") else milliseconds
    said = (
        f"{slo}: {form(near.predicted_ms)} predicted, up to {form(near.expected_ms)} with "
        f"{service.confidence:.0%} confidence"
    )
    return f"{said}; {behind}" if behind else said


def _next_best(ranking: Ranking, plan: Plan) -> Iterator[str]:
    """The best other engine, and how far it is behind."""
    if plan.service is None:
        lost = next((one for one in ranking.rejected if one.probability_behind is not None), None)
        if lost:  # the first reason has the figure that it stands against
            value, _, behind = lost.reason.partition(" against ")
            lost = replace(lost, reason=f"{value}, {behind.rpartition(', ')[2]}")
    else:
        lost = _next_under_targets(ranking, plan.service)
    if lost:
        rank = "also tried" if lost.reason.startswith("breaks ") else "next best"
        yield f"{rank}: {_describe(lost).removeprefix(f'{plan.model} ')}"


def _next_under_targets(ranking: Ranking, service: Service) -> Rejected | None:
    """The first candidate that is another engine than the best; where none was looked at, what lost to it."""
    best, *others = ranking.candidates
    other = next((candidate for candidate in others if candidate.engine != best.engine), None)
    if other is None or other.load is None:
        return next((one for one in ranking.rejected if one.reason.startswith("breaks ")), None)
    if not service.load_asked:
        return Rejected.of(other, f"{figure(other.load.value / other.config.num_gpus)} {service.load_unit} per GPU")
    return Rejected.of(other, "as many GPUs" if other.num_gpus == best.num_gpus else f"{other.num_gpus:,} GPUs")


def _brief_reasons(ranking: Ranking, plan: Plan, ahead: str) -> Iterator[str]:
    if plan.service is None:
        yield plan.why[0] + ahead
    elif carried := next(_carried_most(plan), None):
        yield carried
    yield from _next_best(ranking, plan)
    memory = plan.memory
    yield (
        f"weights take {memory['weights_bytes'] / GIB:,.1f} of {memory['budget_bytes'] / GIB:,.1f} GiB on each GPU; "
        f"{memory['kv_cache_tokens']:,} KV tokens fit beside them"
    )


def _best_lines(
    rankings: Sequence[Ranking], plans: Sequence[Plan | None], best: Plan, prices: Mapping[str, float]
) -> Iterator[str]:
    """Below a long table: the best plan with its reasons, and the GPUs without a plan."""
    yield ""
    ranking = next(ranking for ranking, plan in zip(rankings, plans, strict=True) if plan is best)
    yield from _plan_lines(ranking, best, prices)
    without = [ranking.profile.id for ranking, plan in zip(rankings, plans, strict=True) if plan is None]
    if without:
        yield ""
        yield wrapped(f"no plan: {', '.join(without)}; --format json gives the reasons", rest="  ")


def _each_lines(pairs: Sequence[tuple[Ranking, Plan | None]], prices: Mapping[str, float]) -> Iterator[str]:
    """Below the table: the plan of each GPU with its reasons, or why there is none."""
    made = any(plan is not None for _, plan in pairs)
    for index, (ranking, plan) in enumerate(pairs):
        if index or made:
            yield ""
        if plan:
            yield from _plan_lines(ranking, plan, prices)
        else:
            yield f"{ranking.profile.name}: no plan{' meets the targets' if ranking.closest else ''}"
            if ranking.closest:
                yield from items("!", closest_lines(ranking.closest))
            yield from _rejected_lines(ranking)


def predicted_lines(plan: Plan) -> Iterator[str]:
    """The predicted figures in a script's header, with their 90 % intervals."""

    def ranged(key: str, form: str) -> str:
        value, low, high = (plan.predicted.get(name) for name in (key, f"{key}_lo", f"{key}_hi"))
        return f"{value:{form}}" + (f" ({low:{form}} to {high:{form}})" if low is not None and high is not None else "")

    yield f"output throughput  {ranged('output_throughput', ',.0f')} tokens/s"
    yield f"per GPU            {ranged('output_throughput_per_gpu', ',.0f')} tokens/s"
    for name in ("ttft", "tpot", "itl", "e2el"):
        mean, p99 = (ranged(f"{statistic}_{name}_ms", ",.1f") for statistic in ("mean", "p99"))
        yield f"{name.upper():<5}              {mean} ms mean, {p99} ms p99"
    yield "in brackets        the 90 % interval"
    if plan.service:
        yield from _service_lines(plan.service)
    if plan.calibration != SHIPPED:
        yield f"calibration        {plan.calibration}"


def _service_lines(service: Service) -> Iterator[str]:
    for target in service.targets:
        name = f"{target.of_class} {target.metric}".lstrip()
        yield (
            f"target             {name} {target.limit_ms:,.4g}: {target.predicted_ms:,.4g} predicted, below "
            f"{target.expected_ms:,.4g} with {service.confidence:.0%} confidence"
        )
    servers = f"{service.replicas} such server{'s' if service.replicas > 1 else ''}"
    yield f"load               {service.load:,.4g} {service.load_unit} over {servers}"
    yield from _ladder_lines(service)


def _workload(request: Request) -> dict[str, Any]:
    """The load of all servers together."""
    targets, load = request.targets, request.load
    trace = PlannedTrace.of(load)
    rate = targets.value if targets and targets.by == "rate" else None
    flying = targets.value if targets and targets.by == "concurrency" else None
    return {
        "name": request.workload_name,
        "input_len": load.input_len,
        "output_len": load.output_len,
        "range_ratio": load.range_ratio,
        "burstiness": load.burstiness,
        "max_concurrency": flying if targets else request.wanted_batch,
        "request_rate": rate,
        "num_prompts": request.num_prompts,
        "trace": trace.model_dump() if trace else None,
        "classes": [_class(one) for one in load.classes],
    }


def _class(one: Load) -> dict[str, Any]:
    """A class as it was asked for, with the rate of all servers together."""
    lengths = {"input_len": one.input_len, "output_len": one.output_len, "range_ratio": one.range_ratio}
    said = {"name": one.name, "request_rate": one.request_rate, **lengths}
    return {**said, "priority": one.priority, "targets_ms": dict(one.limits_ms)}


def _targets(request: Request) -> dict[str, Any] | None:
    targets = request.targets
    if targets is None:
        return None
    limits = [
        {"metric": slo.key, "limit_ms": slo.limit_ms} | ({"class": slo.group} if slo.group else {})
        for slo in targets.slos
    ]
    return {"confidence": targets.confidence, "limits": limits}


def _point(request: Request, candidate: Candidate) -> dict[str, Any]:
    config = candidate.config
    figures = {
        "output_throughput_per_gpu": candidate.tok_per_s_per_gpu,
        "output_throughput_per_user": candidate.tok_per_s_per_user,
        "mean_e2el_ms": candidate.e2el_s / MS,
    }
    return {
        "gpu": candidate.deployment.profile.id,
        "model": candidate.resolved.resolved,
        "tensor_parallel_size": config.tensor_parallel_size,
        "weight_dtype": config.weight_dtype,
        "kv_cache_dtype": config.kv_cache_dtype,
        "max_num_seqs": config.max_num_seqs,
        **request.doubt_about(candidate).beside(figures),
    }


def layout_in_words(plan: Plan) -> str:
    """The parallel axes of one server, such as ``TP 4 + EP``."""
    sizes = (
        ("TP", plan.tensor_parallel_size),
        ("PP", plan.pipeline_parallel_size),
        ("DP", plan.data_parallel_size),
    )
    words = [f"{name} {size}" for name, size in sizes if size > 1] + ["EP"] * plan.enable_expert_parallel
    return " + ".join(words) or "TP 1"


def _plan_lines(ranking: Ranking, plan: Plan, prices: Mapping[str, float]) -> Iterator[str]:
    yield f"{ranking.profile.name}: {_servers(plan)}, {plan.model}"
    yield from items("-", [*plan.why, *_carried(plan, ranking.profile, prices)])
    yield from items("!", plan.warnings)
    yield from items("i", _published(ranking))
    yield from _rejected_lines(ranking)
    yield from command_lines(plan.env, local_argv(plan))


def _published(ranking: Ranking) -> tuple[str, ...]:
    """What the documents print of the accuracy of the checkpoints that were compared."""
    return tuple(said_of({candidate.resolved.resolved for candidate in ranking.candidates}, ranking.profile.id))


def _servers(plan: Plan) -> str:
    size = f"{plan.num_gpus} GPU{'s' if plan.num_gpus > 1 else ''}"
    if plan.service is None or plan.service.replicas == 1:
        return size
    return f"{plan.service.replicas} servers of {size}"


def _carried(plan: Plan, profile: GpuProfile, prices: Mapping[str, float]) -> Iterator[str]:
    """The load that one server and one node carry, and its price."""
    service = plan.service
    if service is None:
        return
    yield from _host_lines(service)
    yield from _carried_most(plan)
    yield from _ladder_lines(service)
    price = price_of(profile, prices)
    if price and service.usd_per_hour is not None:
        gpus = f"{service.total_gpus} GPU{'s' if service.total_gpus > 1 else ''}"
        each = price.usd_per_h.mid * profile.parts
        yield f"{service.usd_per_hour:,.2f} USD/h for {gpus}: {each:,.2f} per whole GPU ({price.origin})"


def _carried_most(plan: Plan) -> Iterator[str]:
    """The largest load of one server and of a node, where it was looked for."""
    service = plan.service
    if service and service.largest_load is not None and service.node_load is not None:
        most = figure_between(service.largest_load, service.largest_load_lo, service.largest_load_hi, service.load_unit)
        rate = service.output_throughput_per_gpu
        tokens = f", {figure(rate)} output tokens/s per GPU" if rate is not None else ""
        held = plan.gpus_per_node // plan.num_gpus
        node = f"; {held} fit on a node and carry {figure(service.node_load)}" if held > 1 else ""
        yield f"one server carries {most} under the targets{tokens}{node}"


def _ladder_lines(service: Service) -> Iterator[str]:
    """What other confidences take, and the measurement that is worth most."""
    per_server = service.replicas == 1 and len({rung.total_gpus for rung in service.ladder}) == 1
    if service.ladder:
        first, *others = (
            f"{_rung_words(rung, service, per_server)} at {rung.confidence:.0%}" for rung in service.ladder
        )
        rest = [re.sub(f" ({service.load_unit}|GPUs?) at ", " at ", words) for words in others]
        verb = "one server carries" if per_server else "the load takes"
        yield f"{verb} {', '.join([first, *rest])} confidence"
    run = service.measure_next
    now = next((rung for rung in service.ladder if rung.confidence == service.confidence), None)
    if run is None or now is None:
        return
    load = load_of_run(run.workload.max_concurrency, run.workload.request_rate)
    per_server = run.expected.total_gpus == now.total_gpus
    before, after = (_rung_words(rung, service, per_server) for rung in (now, run.expected))
    what = "raise what one server carries" if per_server else "take the plan"
    yield (
        f"measure next: one run of {run.script} at {load} ({minutes(run.duration_s)}) is expected to {what} from "
        f"{before} to {after} at {service.confidence:.0%} confidence"
    )


def _rung_words(rung: PlannedRung, service: Service, per_server: bool) -> str:
    if per_server:
        return f"{figure(rung.largest_load)} {service.load_unit}"
    return f"{rung.total_gpus:,} GPU{'s' if rung.total_gpus != 1 else ''}" if rung.total_gpus else "no number of GPUs"


def _rejected_lines(ranking: Ranking) -> Iterator[str]:
    """A line for each other model: first those that fit and are slower, then those that do not fit or cannot run."""
    best = _rejected_of_each(ranking)
    shown = best[:SHOWN_REJECTED]
    yield from items("x", map(_describe, shown))
    if not shown and ranking.rejected:  # all of the winner's own checkpoint
        yield from items("x", [f"{len(ranking.rejected)} other settings of this model; --format json lists them"])
    elif len(ranking.rejected) > len(shown):
        yield from items("x", [f"and {len(ranking.rejected) - len(shown)} more; --format json lists them"])


def _rejected_of_each(ranking: Ranking) -> list[Rejected]:
    """The best setting of each other model."""
    fitting = {
        (c.resolved.resolved, c.config.tensor_parallel_size, c.config.kv_cache_dtype) for c in ranking.candidates
    }

    def order(r: Rejected) -> tuple[bool, bool]:
        return (r.model, r.tensor_parallel_size, r.kv_cache_dtype) not in fitting, r.tensor_parallel_size is None

    winner = ranking.best.resolved.resolved if ranking.best else None  # the reasons compare its other sizes
    best: dict[str, Rejected] = {}
    for rejected in sorted(ranking.rejected, key=order):
        if rejected.model != winner:
            best.setdefault(rejected.model, rejected)
    return list(best.values())


def _describe(rejected: Rejected) -> str:
    axes = (
        ("TP", rejected.tensor_parallel_size or 0),
        ("PP", rejected.pipeline_parallel_size or 1),
        ("DP", rejected.data_parallel_size or 1),
    )
    words = [f"{name} {size}" for name, size in axes if size > (name != "TP")]
    layout = " + ".join([*words, *["EP"] * bool(rejected.enable_expert_parallel)])
    cache = f"{rejected.kv_cache_dtype} KV cache" if rejected.kv_cache_dtype not in (None, "auto") else ""
    return f"{rejected.model} {', '.join(filter(None, (layout, cache)))}".rstrip() + f": {rejected.reason}"


def _plain(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
