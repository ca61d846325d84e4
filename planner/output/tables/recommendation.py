"""``planner recommend``: a line for each GPU, then each plan with reasons and launch command."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import ceil
from typing import Any

from planner import evidence, planning
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.output.answer import Answer, fields_of, to_plain
from planner.output.render import Column, columns_of, command_lines, known_table, rows_of, table_text, wrapped
from planner.output.scripts.text import without_option
from planner.output.tables import shared
from planner.output.tables.disaggregated import apart_in_words, apart_lines, divided_object, needs_words
from planner.output.workflows.documents import published_accuracy
from planner.planning import bottleneck
from planner.timing import SHIPPED
from planner.units import MS, counted, figure, percent, rounded
from planner.workload import Load, targets_in_words

COLUMNS = columns_of("plans")
#: With targets: the cost and load of all servers, then the figures of one.
TARGET_COLUMNS = columns_of("plans_for_targets", layout=shared.layout_in_words)
BRIEF = columns_of("plans_brief", layout=shared.layout_in_words)  #: on one screen: the best plan of each GPU
BRIEF_TARGETS = columns_of("plans_for_targets_brief", layout=shared.layout_in_words)
CLASS_COLUMNS = columns_of("plan_classes")  #: one server's figures for each class, under the table
WORTH_A_RUN = 1.05  #: gain of a server's load from which on a benchmark run is proposed
BRIEF_GPUS = 8  #: rows of the brief table
BRIEF_WARNINGS = 2
BRIEF_REFUSED = 3  #: GPUs without a plan that are listed with the reason
LISTED = 3  #: plans of each GPU in the JSON
SHOWN_GPUS = 8  #: with more GPUs only the best plan is explained
SHOWN_REJECTED = 3  #: models for each GPU in the text; JSON has all
_Candidates = Mapping[int, planning.Candidate] | None  #: by the id of their plan; None: of the picked ones


@dataclass(frozen=True, repr=False)
class Recommendation(Answer):
    """The plan of each GPU, with reasons: ``planner recommend``."""

    verdict_first = True
    records = "best_first"
    search: planning.Search
    rankings: tuple[planning.Ranking, ...]  #: of each GPU: candidates, best first, and rejected settings
    plans: tuple[planning.Plan | None, ...]  #: the picked plan of each GPU; None where there is none
    pick: int  #: place of the picked plan; 1 is the best
    defaults_taken: Mapping[str, Any]
    command: str  #: the equivalent command line
    doubts: tuple[planning.Doubt, ...] = ()  #: figures of a suspicious size, of the best plan or of each refusal
    divisions: Mapping[str, planning.Disaggregated | planning.Refused] = field(default_factory=dict)  #: by GPU
    apart: Mapping[str, planning.Apart] = field(default_factory=dict)  #: by GPU, where cheaper than its plan
    advice: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: by GPU, of documents, where its plan differs
    bottleneck: str = ""  #: of the best plan
    nearest: tuple["evidence.Near", ...] = ()  #: published runs like the best plan, with ``explain``
    remedy: Mapping[str, Any] | None = None  #: an option that meets the targets where no plan does, and its GPUs
    wrote: bool = False  #: whether the scripts are written already
    disaggregated: bool = False  #: whether disaggregated serving may be the answer

    @classmethod
    def of(cls, search: planning.Search, *more: Any, **shown: Any) -> "Recommendation":
        """The answer, with everything computed that its text shows; ``more`` and ``shown`` are the other fields."""
        answer = cls(search, *more, **shown)
        best_first = answer.best_first
        pairs = ((plan.gpu, answer._beside(plan)) for plan in (best_first if answer.disaggregated else best_first[:1]))
        answer = replace(answer, divisions={gpu: division for gpu, division in pairs if division})
        divided = {gpu: plan for gpu, plan in answer.divisions.items() if isinstance(plan, planning.Disaggregated)}
        if answer.disaggregated:
            made = [plan for plan in answer._made if plan.gpu in divided]
            cheaper = (planning.apart_from(search, plan, divided[plan.gpu]) for plan in made)
            answer = replace(answer, apart={one.plan.gpu: one for one in cheaper if one})
        advice = {plan.gpu: tuple(answer._advised(plan)) for plan in answer._made}
        best, answer = answer.best, replace(answer, advice=advice)
        limit = bottleneck(search.space, search.objective, answer._candidates[id(best)]) if best else ""
        if best and answer.explain:
            engine, local = answer._candidates[id(best)].deployment, search.space.servings[0].local
            near = evidence.nearest_runs(engine, best.workload.sent, best.predicted, local=local)
            answer = replace(answer, nearest=tuple(near))
        remedy = search.remedy(answer.rankings)
        return replace(answer, doubts=tuple(answer._doubts()), bottleneck=limit, remedy=remedy)

    @property
    def objective(self) -> planning.Objective:
        return self.search.objective

    @property
    def ok(self) -> bool:
        """True if any GPU has a plan, and the expected value does not refute the best."""
        return bool(self._made) and not any(doubt.refutes for doubt in self.doubts)

    def _doubts(self) -> Iterable[planning.Doubt]:
        best, targets = self.best, self.objective.targets
        if self.answer_apart:
            return ()
        if best:
            of_best = planning.doubts_about_plan(self.search, self._candidates[id(best)], best)
            others = () if self.search.space.coarse else self.best_first[1:]
            sizes = (planning.doubt_about_size(self.search, self._candidates[id(plan)], plan) for plan in others)
            return filter(None, (*of_best, *sizes))
        refused = (planning.doubt_about_refusal(one, self.objective) for one in self.rankings) if targets else ()
        return filter(None, refused)

    def _advised(self, plan: planning.Plan) -> Iterator[str]:
        served = self._candidates[id(plan)]
        measured = (served.searched or served).deployment
        engine = measured.with_settings(max_model_len=plan.max_model_len)  # the context of the serving line
        figures = plan.benchmark_line.model_dump() if plan.benchmark_line else plan.predicted
        known = figures["output_throughput_per_gpu"], figures["mean_e2el_ms"] * MS
        goal = None if self.objective.targets else self.objective.goal
        asked = planning.Advised(engine, served.resolved.resolved, plan.workload.sent, goal, known=known)
        return asked.contradicted()

    @property
    def best_first(self) -> list[planning.Plan]:
        """Every plan that is printed, from the best to the last."""
        return self._sorted(self._made)[0]

    @property
    def best(self) -> planning.Plan | None:
        """The best of all plans; None where there is none."""
        return next(iter(self.best_first), None)

    def _beside(self, plan: planning.Plan) -> planning.Disaggregated | planning.Refused | None:
        """Disaggregated serving beside a plan; None if one server takes the load and it was not asked for."""
        space = self.search.space
        if plan.service is None or space.coarse or plan.platform == "cpu":
            return None
        named = ("gpus" not in self.defaults_taken or space.nodes or self.disaggregated) and space.stock is None
        gpus = max(plan.gpus_per_node * (space.nodes or 1) if named else 0, plan.service.total_gpus)
        if gpus < 2 * plan.num_gpus and not self.disaggregated:
            return None
        served, most, asked = self._candidates[id(plan)], plan.service.largest_load, self.disaggregated
        return planning.beside(self.search, served, most, gpus, asked=asked)

    @property
    def answer_apart(self) -> planning.Apart | None:
        """Disaggregated serving where that is cheaper than all plans."""
        return planning.cheapest_apart(self._made, self.apart.values())

    def to_svg(self) -> str:
        """The memory of each GPU, a bar for each plan, as an SVG file. Raises InputError without a plan."""
        from planner.output.charts import memory_chart, svg

        if not self._made:
            raise InputError("nothing to draw: no GPU has a plan", hint="print the answer: it says why")
        return svg(memory_chart(self._made))

    @property
    def _made(self) -> list[planning.Plan]:
        return [plan for plan in self.plans if plan is not None]

    @cached_property
    def _candidates(self) -> dict[int, planning.Candidate]:
        picked = zip(self.plans, self.rankings, strict=True)
        return {id(plan): ranking.candidates[self.pick - 1] for plan, ranking in picked if plan}

    @property
    def _assumed_usd(self) -> float:
        """USD per hour at which a GPU without a price is counted; 0 where cost does not order the plans."""
        by_cost = self.objective.targets and self.objective.goal != "max-throughput" and self.search.space.stock is None
        return planning.mean_usd(self._made) if by_cost else 0.0

    @cached_property
    def _merit(self) -> planning.Merit:
        return planning.Merit.among((c for ranking in self.rankings for c in ranking.candidates), self.objective.goal)

    def _sorted(self, plans: Sequence[planning.Plan], of: _Candidates = None) -> tuple[list[planning.Plan], str]:
        scores = [self._merit.of_candidate((of or self._candidates)[id(plan)]) for plan in plans]
        return planning.plans_in_order(plans, self._merit, scores)

    def _behind(self, plans: Sequence[planning.Plan], of: _Candidates = None) -> list[float | None]:
        """Probability that the first of ``plans`` serves the goal better than each; None where targets are given."""
        if self.objective.targets or not plans:
            return [None for _ in plans]
        candidates = of or self._candidates
        best, *others = (candidates[id(plan)] for plan in plans)
        return [None, *(self._merit.odds(self.objective.load, best, other) for other in others)]

    @cached_property
    def _listed(self) -> list[tuple[planning.Plan, planning.Candidate]]:
        """The plans of JSON with their candidates, made once; only JSON has more than those that are picked."""
        sized = self.objective.goal == "max-throughput"  # which orders plans by their largest loads
        return [
            (made if made and place == self.pick else self.search.plan(ranking, candidate, sized=sized), candidate)
            for ranking, made in zip(self.rankings, self.plans, strict=True)
            for place, candidate in enumerate(ranking.candidates, 1)
            if place <= LISTED or place == self.pick
        ]

    def _object(self) -> dict[str, Any]:
        objective, rankings, listed = self.objective, self.rankings, self._listed
        of = {id(plan): candidate for plan, candidate in listed}
        ranked, order = self._sorted([plan for plan, _ in listed], of)
        targets = objective.targets
        limits = targets and {"confidence": targets.confidence, "limits": shared.limits_of(targets.slos)}
        first = self.best_first[:1]  # what is printed and written
        plans = first + [plan for plan in ranked if plan not in first]
        nearest = {"nearest_runs": rows_of(self.nearest, shared.NEAREST)} if self.explain else {}
        return {
            "goal": objective.goal,
            "workload": _workload(self.search),
            "targets": limits,
            "defaults_taken": [f"{name} = {taken_words(value)}" for name, value in self.defaults_taken.items()],
            "order": order if listed else None,
            "doubts": shared.doubts_of(self.doubts),
            "plans": [plan.model_dump(mode="json") | (nearest if plan is self.best else {}) for plan in plans],
            "probability_behind": self._behind(plans, of),
            "pareto": [_point(objective.load, candidate) for ranking in rankings for candidate in ranking.pareto],
            "closest": [planning.closest_point(ranking.closest) for ranking in rankings if ranking.closest],
            "disaggregated": list(map(divided_object, self.divisions.values())),
            "answer": self._answer(),
            "job": (self.best and self.best.job) or None,
            "advice": {gpu: list(lines) for gpu, lines in self.advice.items()},
            "published": {ranking.profile.id: list(ranking_published(ranking)) for ranking in rankings},
            "ways_out": to_plain({ranking.profile.id: ranking.ways_out for ranking in rankings if ranking.ways_out}),
            "rejected": to_plain([rejected for ranking in rankings for rejected in ranking.rejected]),
            "remedy": self.remedy,
        }

    def _answer(self) -> dict[str, Any] | None:
        apart, best = self.answer_apart, self.best
        if apart:
            shape, gpu, size, usd = "disaggregated", apart.plan.gpu, apart.division.num_gpus, apart.usd_per_hour
        elif best is None:
            return None
        else:
            shape, gpu = "aggregated", best.gpu
            served = best.service
            size, usd = (served.total_gpus, served.usd_per_hour) if served else (best.num_gpus, best.usd_per_hour)
        return {"shape": shape, "gpu": gpu, "num_gpus": size, "usd_per_hour": usd, "total_gpus": size}

    def _columns(self) -> Sequence[Column]:
        targets = [
            Column("_".join(filter(None, words)), of=f"service.targets.{place}.{words[-1]}", aside=True)
            for place, slo in enumerate(self.objective.slos)
            for words in product([slo.group], [slo.statistic], [slo.metric], ["predicted_ms", "upper_ms", "limit_ms"])
        ]
        return (*TARGET_COLUMNS, *targets) if self.objective.targets else COLUMNS

    def sentences(self) -> Iterator[str]:
        yield wrapped(self._verdict())
        yield from shared.items("!", map(str, self.doubts))
        if way := self.remedy:
            yield from shared.items("-", [_way_in_words(way, self.objective.confidence)])
        yield from self._every_gpu() if self.explain else self._one_screen()

    def _verdict(self) -> str:
        best, targets, model = self.best, self.objective.targets, self.search.space.model.resolved
        if apart := self.answer_apart:
            return apart_in_words(self.objective, apart)
        if best:
            served = self._candidates[id(best)].resolved.resolved  # of a folder as typed, not its absolute path
            priced = any(plan.service and plan.service.usd_per_hour is not None for plan in self._made)
            guessed = priced and self._assumed_usd and best.service and best.service.usd_per_hour is None
            words = plan_in_words(best, shared.served_words(served, self.search.space.model))
            return "; ".join([words, *job_in_words(best), *["GPU price assumed"] * bool(guessed)])
        where = shared.listed([shared.card(ranking.profile.id) for ranking in self.rankings], BRIEF_REFUSED)
        if targets and targets.slos and any(ranking.closest for ranking in self.rankings):
            return f"No plan meets {targets_in_words(targets.slos)}: {model} on {where}"
        if self.search.space.stock is not None:
            return f"The GPUs of --budget or --have hold no server of {model}: {where}"
        sizes = dict.fromkeys(counted(self.search.space.node_size(r.profile) // r.profile.parts) for r in self.rankings)
        return f"No setting of {model} fits on {where}, {' or '.join(sizes)} per node"

    def _one_screen(self) -> Iterator[str]:
        best, pairs = self.best, self._in_order()
        if apart := self.answer_apart:
            yield ""
            yield from apart_lines(apart, plan_in_words(best) if best else "")
            return
        if best:
            made = [plan for _, plan in pairs if plan]
            yield "\n" + known_table(made[:BRIEF_GPUS], _brief_columns(made[0]))
            if self.search.space.coarse:
                more = len(made[BRIEF_GPUS:])
                rest = [f"{counted(more, 'more type')} of GPU in --format csv"] if more else []
                yield from shared.items("-", ["; ".join([*rest, shared.COARSELY])])
            if best.classes:
                rows = [row for one in best.classes for row in _class_rows(best, one)]
                yield "\n" + known_table(rows, CLASS_COLUMNS)
            ranking = next(ranking for ranking, plan in pairs if plan is best)
            doubts = sum(doubt.gpu == best.gpu for doubt in self.doubts)
            notes = list(self._ranked_notes(ranking, best))[: shared.NOTES - doubts]
            yield from (line for mark, text in notes for line in shared.items(mark, [text]))
        without = [ranking for ranking, plan in pairs if plan is None]
        shown = 1 if best else BRIEF_REFUSED
        for ranking in without[:shown]:
            why = _why_none(ranking, self.objective) + (f" ({ranking.hint})" if ranking.hint else "")
            yield from shared.items("x", [f"no plan on {shared.card(ranking.profile.id)}: {why}"])
            yield from shared.items("-", (f"fits: {_way_words(ranking.profile, way)}" for way in ranking.ways_out))
            yield from self._way_command(ranking) if ranking.ways_out and not best else ()
        if len(without) > shown:
            others = shared.listed([shared.card(ranking.profile.id) for ranking in without[shown:]], BRIEF_REFUSED)
            yield from shared.items("x", [f"no plan on {others} either; --explain says why"])
        if best:
            yield from shared.launch_lines(best.env, shared.local_argv(best))

    def _way_command(self, ranking: planning.Ranking) -> Iterator[str]:
        """The command that plans the first way out for the same load, with a checkpoint that is known."""
        ways = (one for one in ranking.ways_out if "max_model_len" not in one.settings and not _assumed(one))
        if (way := next(ways, None)) is None:
            return
        flags, words = _flags(ranking.profile, way), tuple(shlex.split(self.command))
        if "gpu" not in way.settings and (len(self.rankings) > 1 or self.search.space.stock is not None):
            flags += ["--gpu", ranking.profile.id]
        gone = ("--weight-dtype", *(flag for flag in flags if flag.startswith("--")))
        words = without_option(words, *gone, *("--have", "--budget") * ("--gpu" in gone))
        asked = self.search.space.model.requested
        name, rest = str(way.settings.get("model", asked)), [word for word in words[2:] if word != asked]
        yield from command_lines({}, [*words[:2], name, *rest, *flags])

    def _ranked_notes(self, ranking: planning.Ranking, plan: planning.Plan) -> Iterator[tuple[str, str]]:
        """Each note with its mark, first those that change a decision most."""
        candidate, service = self._candidates[id(plan)], plan.service
        # the runbook explains its scripts
        urgent = [one for one in plan.warnings if one not in candidate.resolved.notes and one.split()[0][-3:] != ".sh"]
        load = (
            [_load_note(plan, service), *_rival_lines(plan), *_cache_lines(service)]
            if service
            else [plan.why[0] + self._odds_words()]
        )
        yield from (("-", reason) for reason in (*load, *self._divided_words()) if reason)
        yield from (("!", warning) for warning in urgent[:BRIEF_WARNINGS])
        yield from (("i", words) for words in self._cheapest())
        yield from (("-", departures) for departures in planning.beside_recipe(plan.departures))
        yield from (("i", advice) for advice in self.advice[plan.gpu])
        tried = {"fp8" if self.search.space.args.quantization else "", *(one.weight_dtype for one in ranking.rejected)}
        whole = candidate.resolved.model.quantization.method is None and candidate.deployment.profile.supports("fp8")
        if whole and "fp8" not in tried and not self.search.space.weight_dtype:
            yield "i", "no FP8 checkpoint of it is known: --quantization fp8 halves the weights while they load"
        yield from (("i", words) for words in _passed_over(self.rankings))
        for option, faster in ranking.roomier if candidate is ranking.best else ():
            ratio, rate = faster.tok_per_s_per_gpu / candidate.tok_per_s_per_gpu - 1, figure(faster.tok_per_s_per_gpu)
            gain = f"would give {rate} output tokens/s per GPU, {ratio:.0%} more"
            costs = "it may cost accuracy" if "dtype" in option else "not calibrated: check speed and answers first"
            yield "i", f"{option} {gain}; {costs}"
        more = _measured_next(service, self._folder) if service else _next_best(ranking, plan) if self.pick == 1 else ()
        yield from (("-", reason) for reason in (f"bottleneck: {self._limit_words(plan)}", *more, _serving_line(plan)))

    @property
    def _folder(self) -> str:
        return "" if self.wrote else " of -o DIR"

    def _cheapest(self) -> Iterator[str]:
        """Yield the GPU of the cheapest tokens, where throughput puts another one first."""
        plans = self.best_first if self.objective.goal == "max-throughput" else []
        priced = [(usd, plan) for plan in plans if (usd := plan.usd_per_million_output_tokens)]
        usd, cheapest = min(priced, key=lambda one: round(one[0], 2), default=(0.0, self.best))
        if cheapest and cheapest is not self.best:
            words = f"cheapest: {shared.card(cheapest.gpu)}, {usd:,.2f} USD per 1M output tokens"
            yield "; ".join([words, *job_in_words(cheapest)])

    def _limit_words(self, plan: planning.Plan) -> str:
        """The bottleneck of the best plan; of a target with its figures. A larger load may miss another one first."""
        candidate, service = self._candidates[id(plan)], plan.service
        limit, larger = self.bottleneck, service.bound_by if service else ""
        also = "" if limit.startswith(larger) else f"; of a larger load: {larger}"
        readings = candidate.load.readings if candidate.load else ()
        if near := next((one for one in readings if limit.startswith(str(one.slo))), None):
            most = f"up to {figure(near.expected_ms)} ms with {self.objective.confidence:.0%} confidence"
            limit = limit.replace(str(near.slo), f"{near.slo}: {figure(near.predicted_ms)} ms predicted, {most}", 1)
        return limit + also

    def _brief_notes(self) -> Iterator[str]:
        yield from self._taken()
        profiles = [one.profile for one, plan in zip(self.rankings, self.plans, strict=True) if plan]
        yield from shared.price_caveats(profiles, self.search.space.prices, self._assumed_usd)
        scripts = () if self.wrote or not self._made else ("-o DIR writes the scripts",)
        yield "; ".join([*self._engines(), *scripts, shared.MORE])

    def _engines(self) -> Iterator[str]:
        """The versions of vLLM, and what the figures rest on."""
        yield from shared.engine_note(plan.engine_version for plan in self._made)
        yield from shared.calibration_note((plan.gpu, plan.calibration, plan.evidence_note) for plan in self._made)

    def _taken(self) -> Iterator[str]:
        shown = {name: value for name, value in self.defaults_taken.items() if name != "num_prompts"}
        if shown:
            yield f"defaults taken: {', '.join(f'{name}={taken_words(value)}' for name, value in shown.items())}"

    def _every_gpu(self) -> Iterator[str]:
        yield ""
        if apart := self.answer_apart:
            yield from (*apart_lines(apart), "", "aggregated servers:", "")
        if self._made:
            yield table_text(self._records(), self._columns())
        yield from shared.items("-", self._divided_words(why=True))
        pairs = self._in_order()  # below a long table the best plan alone
        shown = pairs[:1] if len(self.rankings) > SHOWN_GPUS and self.best else pairs
        for place, (ranking, plan) in enumerate(shown):
            if place or self._made:
                yield ""
            if plan:
                yield from _plan_lines(ranking, plan, self.search.space.prices, self._folder)
                yield from shared.items("i", self.advice[plan.gpu])
                yield from shared.nearest_lines(self.nearest if plan is self.best else ())
            else:
                yield f"{ranking.profile.name}: no plan{' meets the targets' if ranking.closest else ''}"
                yield from shared.items("!", planning.closest_lines(ranking.closest) if ranking.closest else ())
                yield from _rejected_lines(ranking)
        without = [ranking.profile.id for ranking, plan in pairs[len(shown) :] if plan is None]
        if without:
            yield wrapped(f"\nno plan: {', '.join(without)}; --format json gives the reasons", rest="  ")

    def _in_order(self) -> list[tuple[planning.Ranking, planning.Plan | None]]:
        order = {id(plan): place for place, plan in enumerate(self.best_first)}
        pairs = zip(self.rankings, self.plans, strict=True)
        return sorted(pairs, key=lambda pair: order.get(id(pair[1]), len(order)))

    def _divided_words(self, *, why: bool = False) -> Iterator[str]:
        """The better shape; ``why``: also the reason where targets or load do not allow the comparison."""
        targets, plans = self.objective.targets, {plan.gpu: plan for plan in self._made}
        for gpu, division in self.divisions.items():
            if isinstance(division, planning.Disaggregated):
                cheaper = not self.disaggregated and planning.apart_from(self.search, plans[gpu], division)
                if why or self.disaggregated or cheaper or division.wins:
                    yield needs_words(division) + ("; --disaggregated makes that the plan" if cheaper else "")
            elif targets and (why or self.disaggregated):
                on = f" on {gpu}" if len(plans) > 1 else ""
                yield f"disaggregated serving is not compared{on}: {division.reason}"

    def _odds_words(self) -> str:
        first, *others = self.best_first
        behind = self._behind([first, *others])[1] if others else None
        return f"; {first.gpu} is ahead of {others[0].gpu} with {percent(behind)} probability" if behind else ""

    def _notes(self) -> Iterator[str]:
        yield from self._engines()
        if len(self._made) > 1:
            yield f"order: {self._sorted(self._made)[1]}{self._odds_words()}"
        yield from self._taken()
        if not self.wrote and self._made:
            yield f"write the scripts with: {self.command} -o plans"


def _assumed(way: planning.WayOut) -> bool:
    return "weight_dtype" in way.settings and "model" not in way.settings


def _way_words(profile: GpuProfile, way: planning.WayOut) -> str:
    unknown = ", not in the catalog: give yours as MODEL" * _assumed(way)  # flags alone would plan what does not fit
    words = " ".join([str(way.settings.get("model", "")), *_flags(profile, way)]).lstrip()
    return f"{way.change}{unknown} {words}".rstrip() if unknown else ": ".join(filter(None, (way.change, words)))


def _flags(profile: GpuProfile, way: planning.WayOut) -> list[str]:
    """The flags of a way out for ``recommend``, which takes GPUs and nodes and chooses the layout itself."""
    chosen = ("--weight-dtype", "--tensor-parallel-size", "--pipeline-parallel-size")
    words = " ".join(flag for flag in way.flags if not flag.startswith(chosen)).split()
    gpus, node = ceil(way.num_gpus / profile.parts), profile.gpus_per_node // profile.parts
    if way.settings.keys() & {"tensor_parallel_size", "pipeline_parallel_size"} and "gpu" not in way.settings:
        words += ["--nodes", str(ceil(gpus / node))] if gpus > node else ["--gpus", str(gpus)]
    return words


def _passed_over(rankings: Sequence[planning.Ranking]) -> Iterator[str]:
    """Yield the 4-bit checkpoints that wider ones keep from cards, whose bandwidth is scarce."""
    cards = dict[str, list[str]]()
    for one in rankings:
        if one.best and one.ways_out:
            yield f"one {shared.card(one.profile.id)} holds {_way_words(one.profile, one.ways_out[0])}; compare it"
            continue
        wider = (each for each in one.rejected if "where no wider format fits" in each.reason)
        narrow = next((each.model for each in wider if str(each.weight_dtype).startswith("int4")), None)
        if narrow and one.best and one.profile.interconnect.kind == "pcie" and "4" not in one.best.config.weight_dtype:
            cards.setdefault(narrow, []).append(shared.card(one.profile.id))
    for narrow, names in cards.items():
        takes = (one for one in rankings if any(each.resolved.resolved == narrow for each in one.candidates))
        lacking = [shared.card(one.profile.id) for one in takes if not one.profile.supports("fp8")]
        but = f", but not on {shared.listed(lacking, 3)}, without FP8" if lacking else ""
        where = f"{shared.listed(names, 3)}, where more bits fit{but}"
        yield f"{narrow} was left out on {where}: give it as MODEL to compare"


def _brief_columns(plan: planning.Plan) -> Sequence[Column]:
    if plan.service is None:
        return BRIEF
    targets = [
        Column(target.metric, f"{target.slo.name} ms", figure, of=f"service.targets.{place}.predicted_ms")
        for place, target in enumerate(plan.targets)
        if not target.of_class
    ]
    found = () if plan.service.load_asked else (Column("load", plan.service.load_unit, figure, of="service.load"),)
    return (*BRIEF_TARGETS[:4], *found, *BRIEF_TARGETS[4:-2], *(targets or BRIEF_TARGETS[-2:]))


def taken_words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def ranking_published(ranking: planning.Ranking) -> Iterator[str]:
    """Published accuracies of the checkpoints that were compared."""
    return published_accuracy({one.resolved.resolved for one in ranking.candidates}, ranking.profile.id)


def plan_in_words(plan: planning.Plan, served: str = "") -> str:
    """The plan in a sentence: the settings, the GPUs, and the figures that they deliver."""
    service, figures = plan.service, plan.predicted
    layout, tokens = shared.layout_in_words(plan), shared.of_tokens(plan.workload)
    means = f"TTFT {shared.seconds(figures['mean_ttft_ms'])}, TPOT {shared.milliseconds(figures['mean_tpot_ms'])}"
    if service is None:
        value, low, high = (figures[f"request_throughput{end}"] for end in ("", "_lo", "_hi"))
        load = f" at {counted(users, 'concurrent request')}" if (users := plan.workload.max_concurrency) else ""
        delivers = f"{shared.figure_between(value, low, high, 'requests/s')}{load}{tokens}, {means}"
        delivers += shared.in_usd(plan)
    else:
        ends = (service.largest_load, service.largest_load_lo, service.largest_load_hi)
        value, low, high = (end and end * service.carrying / (1 + service.headroom) for end in ends)
        most = shared.figure_between(value, low, high, service.load_unit) if value else ""
        if service.replicas > 1:
            layout = f"{service.replicas:,} servers of {layout} behind a {service.router} router"
        met = []
        for one in service.targets:
            latency = (shared.milliseconds if one.slo.metric in ("tpot", "itl") else shared.seconds)(one.predicted_ms)
            met.append(f"{one.slo.name} {latency}{one.of_class and f' for {one.of_class}'}")
        load = shared.asked_load(service.load or 0.0, service.load_unit) if service.load_asked else most
        delivers = ", ".join([load + tokens, *(met or [means])])
        delivers += shared.in_usd(service)
        delivers += f"; room for {most}" if most and service.load_asked else ""
    size = service.total_gpus if service else plan.num_gpus
    packages = (service or plan).packages or size
    whole = f" ({counted(ceil(packages), 'GPU')})" if packages < size else ""
    return f"Serve {served or plan.model} on {size:,} x {shared.card(plan.gpu)}{whole}, {layout}: {delivers}"


def _way_in_words(way: Mapping[str, Any], confidence: float) -> str:
    """Return what an option of the search would give, and on how many GPUs."""
    size, even = way["num_gpus"], way.get("gpus_at_even_odds")
    servers = f"{size:,} x {shared.card(way['gpu'])}"
    if "requests_held" in way:
        usd = f", {one:,.2f} USD per 1M output tokens" if (one := way["usd_per_million_output_tokens"]) else ""
        rate = f"{figure(way['output_throughput_per_gpu'])} output tokens/s per GPU{usd}"
        held = counted(way["requests_held"], "request")
        return f"{way['option']} would give {rate}, with {servers}: the KV cache of one node surely holds {held}"
    ends = f" at {confidence:.0%} confidence, {even:,} at even odds" if even and even < size else ""
    return f"{way['option']} would meet the targets, with {servers}{ends}"


def job_in_words(plan: planning.Plan) -> Iterator[str]:
    """Yield the time and the cost of ``--num-prompts``, if they are given."""
    if job := plan.job:
        usd = f", {figure(job['usd'])} USD" if job["usd"] else ""
        took = f"{shared.lasting(job, 'duration')}, {figure(job['gpu_hours'])} GPU-hours{usd}"
        yield f"{counted(job['num_prompts'], 'request')} take {took}"


def _class_rows(plan: planning.Plan, one: planning.PlannedClass) -> Iterator[dict[str, Any]]:
    sooner = f", priority {one.priority}" if one.priority else ""
    name, good = f"{one.name}, {figure(one.workload.request_rate or 0.0)} requests/s{sooner}", one.predicted
    rows: list[dict[str, Any]] = [
        {"figure": f"{target.slo.name} ms", **fields_of(target, "value=predicted_ms", "expected=expected_ms"),
         "target": target.limit_ms}
        for target in plan.targets if target.of_class == one.name
    ]  # fmt: skip
    if "request_goodput" in good:  # of the offered rate: the replay takes longer than its requests arrive for
        share = good["request_goodput"] / (good["request_throughput"] or 1.0)
        rows.append({"figure": "good requests/s", "value": share * (one.workload.request_rate or 0.0)})
    rows = rows or [{"figure": "mean E2EL ms", "value": good["mean_e2el_ms"]}]
    for place, row in enumerate(rows):
        yield {"class": "" if place else name, **row}


def _why_none(ranking: planning.Ranking, objective: planning.Objective) -> str:
    closest = ranking.closest
    if closest is None or closest.load is None:
        return ranking.why_none
    missed = [
        f"{reading.slo} ({figure(reading.predicted_ms)} ms predicted, up to {figure(reading.expected_ms)} ms)"
        for reading in closest.load.readings
        if not reading.met
    ]
    server = f"a server of {closest.profile.counted(closest.config.num_gpus)}"
    even = f"even with {planning.little_in_words(closest.load)} {server}"
    misses = f"misses {' and '.join(missed)} at {objective.confidence:.0%} confidence"
    idle = "" if objective.lone else " by an idle server only"
    return f"{even} {misses}; achievable{idle}: {planning.met_limits(closest.load.readings, lone=objective.lone)}"


def _cache_lines(service: planning.Service) -> Iterator[str]:
    """Prompt tokens that come from the prefix cache, and what KV blocks in host memory add."""
    if offloading := service.kv_offloading:
        gpus = offloading.without.total_gpus
        then = f"the load takes {counted(gpus)}" if gpus else "four times as many GPUs would miss the targets"
        yield shared.from_host(offloading, offloading.without.gpu_share, f"and {then}")
    elif service.prefix_cache_share is not None:
        routed = f", {service.router}" if service.replicas > 1 else ""
        yield f"{service.prefix_cache_share:.1%} of the prompt tokens come from the prefix cache{routed}"


def _next_best(ranking: planning.Ranking, plan: planning.Plan) -> Iterator[str]:
    lost = next((one for one in ranking.rejected if one.probability_behind is not None), None)
    if lost:  # the first reason has the figure that it stands against
        value, _, behind = lost.reason.partition(" against ")
        words = _describe(replace(lost, reason=f"{value}, {behind.rpartition(', ')[2]}"))
        yield f"next best: {words.removeprefix(f'{plan.model} ')}"


def _serving_line(plan: planning.Plan) -> str:
    held = f"the KV cache holds {rounded(plan.memory['kv_cache_tokens'])} tokens"
    return f"serving line: {_benchmark_line(plan, line)}; {held}" if (line := plan.benchmark_line) else held


def _benchmark_line(plan: planning.Plan, line: planning.BenchmarkLine) -> str:
    ratio = line.output_throughput_per_gpu / plan.predicted["output_throughput_per_gpu"] - 1
    faster = f"{abs(ratio):.1%} {'faster' if ratio > 0 else 'slower'}"
    speed = "same speed" if abs(ratio) < planning.defaults.EQUAL else faster
    return (
        f"{plan.max_model_len:,} tokens of context, {counted(plan.max_num_seqs, 'request')} at once; benchmark line "
        f"(./launch.sh --benchmark): {line.max_model_len:,} tokens, {counted(line.max_num_seqs, 'request')}, {speed}"
    )


def predicted_lines(plan: planning.Plan) -> Iterator[str]:
    """The predicted figures in a script's header, with their 90 % intervals."""

    def ranged(key: str, form: str) -> str:
        value, low, high = (plan.predicted.get(name) for name in (key, f"{key}_lo", f"{key}_hi"))
        return f"{value:{form}}" + (f" ({low:{form}} to {high:{form}})" if low is not None and high is not None else "")

    yield f"output throughput  {ranged('output_throughput', ',.0f')} tokens/s"
    steady = plan.service.output_throughput_per_gpu if plan.service else None
    more = f", start and end of the benchmark included; {steady:,.0f} in steady state" if steady else ""
    yield f"per GPU            {ranged('output_throughput_per_gpu', ',.0f')} tokens/s{more}"
    for name in ("ttft", "tpot", "itl", "e2el"):
        mean, p99 = (ranged(f"{statistic}_{name}_ms", ",.1f") for statistic in ("mean", "p99"))
        yield f"{name.upper():<5}              {mean} ms mean, {p99} ms p99"
    yield "in brackets        the 90 % interval"
    if plan.benchmark_line:
        yield f"serving line       {_benchmark_line(plan, plan.benchmark_line)}"
    yield from (f"job                {words}" for words in job_in_words(plan))
    if service := plan.service:
        for target in service.targets:
            name, limit = f"{target.of_class} {target.slo.name}".lstrip(), f"{target.limit_ms:,.6g}"
            most = f"below {figure(target.expected_ms, 4)} ms with {service.confidence:.0%} confidence"
            yield f"{name:<17}  {figure(target.predicted_ms, 4)} ms (target {limit} ms), {most}"
        servers = counted(service.replicas, "such server")
        yield f"load               {service.load:,.4g} {service.load_unit} over {servers}"
        yield from filter(None, (_confidence_words(service), *_measured_next(service, "")))
    if plan.evidence_note or plan.calibration != SHIPPED:
        yield f"calibration        {'; '.join(filter(None, (plan.calibration, plan.evidence_note)))}"


def _workload(search: planning.Search) -> dict[str, Any]:
    objective, load, given = search.objective, search.objective.load, search.space.args.max_num_seqs
    trace = planning.PlannedTrace.of(load)
    asked = objective.value and objective.value / (1 + objective.headroom)
    rate = asked if objective.targets and objective.by == "rate" else None
    flying = asked if objective.by == "concurrency" else None
    lengths = "input_len", "output_len", "range_ratio"
    return {
        "name": objective.workload_name,
        **fields_of(load, *lengths, "burstiness"),
        "max_concurrency": flying if objective.targets else objective.wanted_batch(given),
        "request_rate": rate,
        "num_prompts": objective.num_prompts,
        "trace": trace.model_dump() if trace else None,
        "classes": [
            {**fields_of(one, "name", "request_rate", *lengths, "priority"), "targets_ms": dict(one.limits_ms)}
            for one in load.classes
        ],
    }


def _point(load: Load, candidate: planning.Candidate) -> dict[str, Any]:
    return {
        "gpu": candidate.deployment.profile.id,
        "model": candidate.resolved.resolved,
        **fields_of(candidate.config, "tensor_parallel_size", "weight_dtype", "kv_cache_dtype", "max_num_seqs"),
        **candidate.uncertainty(load).beside(candidate.rates),
        **fields_of(candidate.config, "pipeline_parallel_size", "data_parallel_size"),
        **fields_of(candidate.config, "enable_expert_parallel", "speculative_config"),
    }


def _plan_lines(
    ranking: planning.Ranking, plan: planning.Plan, prices: Mapping[str, float], folder: str
) -> Iterator[str]:
    size, service, reasons = counted(plan.num_gpus), plan.service, list(plan.why)
    servers = f"{service.replicas} servers of {size}" if service and service.replicas > 1 else size
    yield f"{ranking.profile.name}: {servers}, {plan.model}"
    if service:
        reasons += [*_cache_lines(service), _load_note(plan, service)]
        reasons += [*_rival_lines(plan), *_measured_next(service, folder)]
        price = planning.price_of(ranking.profile, prices)
        if price and service.usd_per_hour is not None:
            total = f"{service.usd_per_hour:,.2f} USD/h for {counted(ceil(service.packages))}"
            each = price.usd_per_h.mid * ranking.profile.parts
            reasons.append(f"{total}: {each:,.2f} per whole GPU ({price.origin})")
    yield from shared.items("-", filter(None, [*reasons, _serving_line(plan)]))
    yield from shared.items("!", plan.warnings)
    yield from shared.items("i", ranking_published(ranking))
    yield from _rejected_lines(ranking)
    yield from shared.launch_lines(plan.env, shared.local_argv(plan))


def _load_note(plan: planning.Plan, service: planning.Service) -> str:
    """The GPUs that the load takes, those with a margin, and the load of one server, each once."""
    margin = shared.margin_lines(service.headroom, service.spares, service.total_gpus, service.gpus_with_margin)
    words = [_confidence_words(service), *margin, shared.router_words(service.plain_router, service.carrying)]
    flying, sessions, per_day = service.requests_in_flight, service.sessions_at_once, service.output_tokens_per_day
    if flying and per_day and (sessions or not service.load_asked):
        words.append(shared.load_in_words(flying, sessions, per_day))
    if service.largest_load is not None and service.node_load is not None:
        rate, held = service.largest_load_output_throughput_per_gpu, plan.gpus_per_node // plan.num_gpus
        tokens = f", {figure(rate)} output tokens/s per GPU" if rate is not None else ""
        if not words[0].startswith(one := _one_of(service)):
            ends = service.largest_load_lo, service.largest_load_hi
            most = shared.figure_between(service.largest_load, *ends, service.load_unit)
            words.append(f"{one} carries {most}{' within the targets' * bool(service.targets)}{tokens}")
        if held > 1 and service.stock is None:
            words.append(f"a node holds {held} servers, which carry {figure(service.node_load)}")
    return _in_parts("; ".join(filter(None, words)), service)


def _in_parts(words: str, service: planning.Service) -> str:
    """The words, in which the GPUs of ``service`` are partitions where they are."""
    return words.replace("GPU", "partition") if service.packages < service.total_gpus else words


def _one_of(service: planning.Service) -> str:
    """Return the server whose largest load is shown: behind a router fewer carry less each."""
    return "one server" if service.carrying == 1 else f"each of these {service.carrying:,} servers"


def _confidence_words(service: planning.Service) -> str:
    """The load of one server, or the GPUs that the load takes, at each confidence; empty without targets."""
    sizes = {one.total_gpus for one in service.ladder if one.total_gpus or service.load_asked}
    if len(sizes) == 1 and (service.replicas == 1 or not service.load_asked):
        loads = ((one.largest_load, one.confidence) for one in service.ladder)
        carried = (f"{figure(load) if load else 0} {service.load_unit} at {odds:.0%}" for load, odds in loads)
        return f"{_one_of(service)} carries {', '.join(carried)} confidence"
    rungs = [(rung.confidence, rung.total_gpus) for rung in service.ladder]
    return _in_parts(shared.load_takes(rungs, service.total_gpus), service) if rungs else ""


def _rival_lines(plan: planning.Plan) -> Iterator[str]:
    """The precision that would be cheaper at even odds, and the run that settles it."""
    if (service := plan.service) and (rival := service.rival):
        sizes = [(0.5, rival.gpus_at_even_odds), (service.confidence, rival.total_gpus)]
        takes, dtype = shared.load_takes(sizes, service.total_gpus), rival.weight_dtype
        yield f"the interval of {dtype} decides: {takes}; benchmark.sh of --weight-dtype {dtype} -o DIR settles it"


def _measured_next(service: planning.Service, of: str) -> Iterator[str]:
    run = service.measure_next
    now = next((rung for rung in service.ladder if rung.confidence == service.confidence), None)
    if run and now:
        what, ends = "reduce the plan", [one.total_gpus for one in (now, run.expected)]
        words = [shared.size_in_words(gpus, service.total_gpus) for gpus in ends if gpus]
        if ends[0] == ends[1]:
            if service.load_asked or run.expected.largest_load < WORTH_A_RUN * now.largest_load:
                return
            what = "raise the load of one server"
            words = [f"{figure(one.largest_load)} {service.load_unit}" for one in (now, run.expected)]
        change = f"{what} from {words[0]} to {words[-1]} at {service.confidence:.0%} confidence"
        yield shared.measure_next(run.script + of, run, _in_parts(change, service))


def _rejected_lines(ranking: planning.Ranking) -> Iterator[str]:
    winner = ranking.best.resolved.resolved if ranking.best else None  # the reasons compare its other sizes
    fitting = {(one.resolved.resolved, one.config.tensor_parallel_size) for one in ranking.candidates}
    best: dict[str, planning.Rejected] = {}
    for rejected in sorted(ranking.rejected, key=lambda one: (one.model, one.tensor_parallel_size) not in fitting):
        if rejected.model != winner:
            best.setdefault(rejected.model, rejected)
    shown = list(best.values())[:SHOWN_REJECTED]
    yield from shared.items("x", map(_describe, shown))
    if more := len(ranking.rejected) - len(shown):
        yield from shared.items("x", [f"{counted(more, 'other setting')}: --format json lists them"])


def _describe(rejected: planning.Rejected) -> str:
    layout = shared.layout_in_words(rejected) if rejected.tensor_parallel_size else ""
    cache = f"{rejected.kv_cache_dtype} KV cache" if rejected.kv_cache_dtype not in (None, "auto") else ""
    return f"{rejected.model} {', '.join(filter(None, (layout, cache)))}".rstrip() + f": {rejected.reason}"
