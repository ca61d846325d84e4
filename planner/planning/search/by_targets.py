"""The cheapest servers that meet latency targets under a load, and how much one of them carries.

A *family* is all engines that differ in ``max_num_batched_tokens`` and ``max_num_seqs`` only. Families are taken by
their bounds on the cost in GPUs; an engine that could be cheaper than the best is replayed at the load it would carry.
Bounds drop an engine before it is replayed, and never a winner: on latency that of a request alone on the server, on
the rate that of full batches in the steady state."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil, floor, inf, log, sqrt
from statistics import NormalDist

import numpy as np

from planner import progress
from planner.engine import EngineArgs, EngineConfig
from planner.errors import InputError, PlannerError
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import Capacity, Steady, at_concurrency, at_load, closed_form_load, idle_load, measure
from planner.planning.defaults import TOLERANCE, USUAL_BATCH
from planner.planning.deployment import Deployment
from planner.planning.predict import Reading, ServedLoad, doubt_at, estimate
from planner.planning.search.plans import for_users
from planner.planning.search.servers import Servers, fewest_servers, judged_share
from planner.planning.search.space import Candidate, Choices, Objective, Ranking, Rejected
from planner.planning.uncertainty import Uncertainty, least_upper
from planner.timing import Batch
from planner.units import MS, counted
from planner.workload import Requests, Targets

ENDLESS_TOK = 1 << 40  #: of a cache that holds all prompts of any trace


@dataclass(frozen=True)
class RankedEngine:
    """One engine with its bounds. For a family: with settings that no member exceeds."""

    resolved: ResolvedModel
    args: EngineArgs
    deployment: Deployment
    most: float = inf  #: upper bound of the load of one server
    guess: float = 0.0  #: load of one server in the closed form
    usual: Uncertainty | None = None  #: of the closed form, with few requests and with many
    full: Uncertainty | None = None
    budgets: tuple[int | None, ...] = ()  #: of a family, the most promising first

    @property
    def tied(self) -> int:
        """Equal for engines whose loads differ by less than TOLERANCE; smaller for larger loads."""
        return -round(log(min(max(self.guess, 1e-12), 1e12)) / TOLERANCE)

    @property
    def num_gpus(self) -> int:
        return self.deployment.config.num_gpus

    def servers(self, objective: Objective, *, at_least: bool) -> int:
        """Servers that the load needs at least, or by the closed form."""
        each = self.load_of(at_least=at_least)
        return max(ceil((objective.value or 0.0) / each - 1e-9), 1) if each > 0 else 10**9

    def load_of(self, *, at_least: bool) -> float:
        """Load of one server at most, or by the closed form."""
        return self.most if at_least else min(self.most, self.guess)

    def cost(self, choices: Choices, *, at_least: bool) -> float:
        """GPUs, spares included; without a load GPUs for each unit of it."""
        objective = choices.objective
        if objective.value is None:
            return choices.gpus_each(self.num_gpus) / max(self.load_of(at_least=at_least), 1e-12)
        return self.num_gpus * (self.servers(objective, at_least=at_least) + objective.spares)


def rank_by_targets(choices: Choices) -> Ranking:
    """Rank the plans that meet the targets, cheapest first; name the closest one where none does."""
    return _Search(choices).ranking()


class _Search:
    def __init__(self, choices: Choices) -> None:
        self.choices, self.objective, self.load = choices, choices.objective, choices.objective.load
        self.classes, self.coarse = choices.objective.classes, choices.space.coarse
        self.targets = choices.objective.targets or Targets()
        self.margin = defaults.CROWDED if self.load.drawn else defaults.OPTIMISM  # over the closed form
        self.families: list[RankedEngine] = []  # the most promising first
        self.plans: list[Candidate] = []
        self.alternatives = 0 if self.coarse else defaults.TARGET_ALTERNATIVES
        self.hopeless: list[tuple[float, RankedEngine]] = []  # miss targets even when requests are alone
        self.beyond_stock: tuple[float, str] = inf, ""  # the GPUs of the smallest server, and words on it; 0: in stock
        self.missed: list[tuple[RankedEngine, ServedLoad]] = []  # with loads that were too much for them
        self._cold: dict[tuple[str, EngineArgs], bool] = {}  # whether they meet the targets of prompts not seen before

    def cost(self, candidate: Candidate) -> float:
        if self.objective.value is None and candidate.load:
            return self.choices.gpus_each(candidate.config.num_gpus) / candidate.load.value
        return candidate.num_gpus + self.objective.spares * candidate.config.num_gpus

    @property
    def best_cost(self) -> float:
        return min(map(self.cost, self.plans), default=inf)

    def run(self) -> None:
        """Take families of one model first, then by closed-form cost, 16-bit caches, DP ranks, load and the recipe."""

        def order(family: RankedEngine) -> tuple[float, ...]:
            config, cost = family.deployment.config, family.cost(choices, at_least=False)
            unscaled, other = choices.beside_recipe(family.resolved, config)
            sized = cost, family.num_gpus, unscaled, config.data_parallel_size
            return self._adds_model(family), *sized, family.tied, other, -family.guess

        margin, choices, profile = self.margin, self.choices, self.choices.profile.id
        self.families = sorted(self._families(), key=order)
        for outline in progress.each(self.families, lambda family: f"{profile}: {family.resolved.resolved}"):
            family: RankedEngine | None = outline
            if self._may_be_better(outline):
                family = self._family(outline.resolved, outline.args)
                if family and self._may_be_better(family):
                    self._search_family(family)
                    continue
            if family:
                proved = family.most < family.guess * margin or self.objective.by == "concurrency"
                judged = "" if proved else f" ({margin - 1:.0%} above the closed form, a margin by judgement)"
                least = self._cost_words(family.cost(self.choices, at_least=True))
                best = self._cost_words(self.best_cost)
                self._reject(family, f"{least} at best{judged}" + ("" if least == best else f", against {best}"))
        self.choices.rejected += self.choices.left_out()

    def _may_be_better(self, engine: RankedEngine) -> bool:
        """Return True if it may be cheaper. Without a load, by more than the tolerance of loads."""
        least = engine.cost(self.choices, at_least=True)
        if self.objective.value is None:
            return least * self._clearly(engine) < self.best_cost
        return least < self.best_cost or (least == self.best_cost and self._may_cost_the_same(engine))

    def _may_cost_the_same(self, engine: RankedEngine) -> bool:
        """True while there are few plans of one model, and where it keeps 16 bits beside such fp8 KV caches."""
        few = len(self.plans) <= self.alternatives and not (self.plans and self._adds_model(engine))
        return few or self._keeps_bits(engine)

    def _adds_model(self, engine: RankedEngine) -> bool:
        """True where the search added a model that drafts: one more to download, which has to save GPUs."""
        drafts = engine.deployment.config.speculative_config
        return drafts is not None and drafts.has_draft_model and not self.choices.space.args.speculative_config

    def _clearly(self, engine: RankedEngine) -> float:
        """Factor by which it has to carry more than the best: an fp8 KV cache has to be worth its loss."""
        return 1 / (1 + TOLERANCE) if self._keeps_bits(engine) else 1 + TOLERANCE

    def _keeps_bits(self, engine: RankedEngine) -> bool:
        """True where all of the best have fp8 KV caches that no recipe names, and this has none."""
        best = (one for one in self.plans if self.cost(one) == self.best_cost)
        return not self._unscaled(engine) and all(map(self._unscaled, best))

    def _unscaled(self, engine: RankedEngine | Candidate) -> bool:
        return self.choices.beside_recipe(engine.resolved, engine.deployment.config)[0]

    def _families(self) -> Iterator[RankedEngine]:
        for resolved in self.choices.checkpoints():
            for args in self.choices.engines(resolved):
                try:
                    if family := self._outline(resolved, args):
                        yield family
                except PlannerError as error:
                    self.choices.reject_args(resolved, args, error.cause)

    def _outline(self, resolved: ResolvedModel, args: EngineArgs) -> RankedEngine | None:
        """A family with bounds from memory and noise alone, without any replay; None where it cannot serve the load."""
        choices, objective = self.choices, self.objective
        small = replace(args, max_num_batched_tokens=min(self._budgets(resolved, args), key=lambda b: b or inf))
        lone = choices.deployed(resolved, replace(small, max_num_seqs=args.max_num_seqs or 1))
        held = int(lone.requests_of(self.load, pessimistic=True))
        if held < 1 and choices.largest_batch(resolved, small) < 1:
            choices.reject_args(resolved, args, lone.why_not)
            return None
        most_seqs = args.max_num_seqs or min(defaults.MAX_NUM_SEQS, max(held, 1))
        engines = [choices.deployed(resolved, one) for one in self._each_budget(resolved, args, most_seqs)]
        engine = max(engines, key=lambda one: one.config.max_num_batched_tokens)
        if self.load.reused:
            engine.check_host_blocks()
        outline = RankedEngine(resolved, args, engine)
        if not choices.servers_in_stock(outline.num_gpus):
            few, needed = choices.space.why_no_stock(choices.profile), outline.num_gpus * (1 + objective.spares)
            if choices.most_gpus:
                takes = f"and {counted(objective.spares, 'spare')} take" if objective.spares else "takes"
                few = f"--budget or --have allows {counted(choices.most_gpus)}; one server {takes} {needed:,}"
            self.beyond_stock = min(self.beyond_stock, (needed, few))
            self._reject(outline, few)
            return None
        self.beyond_stock = 0, ""
        if missed := missed_for_certain(engine, objective):
            self._reject(outline, f"misses {missed.slo} even with one request at a time on the server")
            if engine.config.pipeline_parallel_size == 1:
                self.hopeless.append((missed.excess, outline))
            return None
        if objective.by == "concurrency":
            return replace(outline, most=float(engine.config.max_running), guess=float(engine.config.max_running))
        loads = [self._loads(one, None) for one in engines]
        most, guess = max(map(self._most, loads)), max(map(self._guess, loads))
        return replace(outline, most=most * self.margin, guess=guess)

    def _family(self, resolved: ResolvedModel, args: EngineArgs) -> RankedEngine | None:
        """Bounds for all members: the batch that fits beside the smallest token budget, the largest budget."""
        choices, budgets = self.choices, self._budgets(resolved, args)
        one = replace(args, max_num_seqs=args.max_num_seqs or 1)
        own_tok = choices.deployed(resolved, one).config.max_num_batched_tokens
        most_tok = max(budget or own_tok for budget in budgets)
        one = replace(one, max_num_batched_tokens=most_tok)
        lone = RankedEngine(resolved, one, choices.deployed(resolved, one), 0.0)
        with suppress(InputError):  # the largest token budget and one request need not fit together
            # once there is a plan to beat, a share of recorded requests says more
            needless = args.pipeline_parallel_size > 1 or (self.plans and self.load.unsendable)
            least = None if needless else alone(lone.deployment, self.objective)
            if least and not least.meets:
                self.hopeless.append((least.excess, lone))
                self._reject(lone, f"misses {least.binding} even with one request at a time on the server")
                return None
        small = replace(args, max_num_batched_tokens=min(budgets, key=lambda b: b or inf))
        relaxed = replace(args, max_num_batched_tokens=most_tok, max_num_seqs=choices.largest_batch(resolved, small))
        return self._bounded(resolved, args, choices.deployed(resolved, relaxed))

    def _bounded(self, resolved: ResolvedModel, args: EngineArgs, deployment: Deployment) -> RankedEngine:
        """A family with bounds for all members: its ``deployment`` has the largest of all settings.

        Its budgets come best first. Within TOLERANCE: under a TPOT the advised one, then large ones; else small ones.
        """
        objective, load = self.objective, self.load
        usual, full = self._usual_doubt(deployment), Steady.of(deployment, load).doubt
        family = RankedEngine(resolved, args, deployment, usual=usual, full=full)
        batch = deployment.config.max_num_seqs
        members = [self._engine(resolved, one, family) for one in self._each_budget(resolved, args, batch)]
        most, guess = max(member.most for member in members), max(member.guess for member in members)
        if objective.by == "rate":
            carried = guess
            if len(self.classes) > 1:
                carried = max(self._most(self._loads(member.deployment, usual)) for member in members)
            most = min(most, carried * self.margin)

        def promise(member: RankedEngine) -> tuple[float, bool, int]:
            """Sort key; larger is tried later."""
            like, tok = member.tied, member.deployment.config.max_num_batched_tokens
            if any(slo.metric == "tpot" for slo in objective.slos):
                return like, member.args.max_num_batched_tokens != args.max_num_batched_tokens, -tok
            return like, False, tok

        members.sort(key=promise)
        budgets = {one.deployment.config.max_num_batched_tokens: one.args for one in reversed(members)}
        best_first = tuple(one.max_num_batched_tokens for one in reversed(budgets.values()))
        return replace(family, most=most, guess=guess, budgets=best_first)

    def _usual_doubt(self, deployment: Deployment) -> Uncertainty:
        """Uncertainty of the closed form with a usual number of requests, or as few as the targets allow."""
        usual, slos, confidence = doubt_at(deployment, self.load), self.objective.slos, self.objective.confidence
        if len(self.classes) > 1 or not slos:
            return usual
        few = closed_form_load(deployment, self.load, slos, "concurrency", confidence=confidence, doubt=usual)
        return usual if few >= USUAL_BATCH else doubt_at(deployment, self.load, max(int(few), 2))

    def _budgets(self, resolved: ResolvedModel, args: EngineArgs) -> list[int | None]:
        """Token budgets to search: the one that is asked for or advised first, or else vLLM's own.

        An engine that cuts no prompts takes none below its context."""
        asked, own = self.choices.space.args.max_num_batched_tokens, args.max_num_batched_tokens
        if asked or self.coarse or "batched" in args.exchange:
            return [asked or own]
        config = self.choices.deployed(resolved, replace(args, max_num_seqs=args.max_num_seqs or 1)).config
        least = 0 if config.enable_chunked_prefill else config.max_model_len
        return list(dict.fromkeys((own, *(budget for budget in defaults.TOKEN_BUDGETS if budget >= least))))

    def _each_budget(self, resolved: ResolvedModel, args: EngineArgs, batch: int) -> Iterator[EngineArgs]:
        for budget in self._budgets(resolved, args):
            one = replace(args, max_num_batched_tokens=budget)
            yield replace(one, max_num_seqs=min(batch, one.most_decodes or batch))

    def _engine(self, resolved: ResolvedModel, args: EngineArgs, family: RankedEngine) -> RankedEngine:
        """A member: no better than its ``family``, whose uncertainty it shares, and than full batches."""
        deployment, load = self.choices.deployed(resolved, args), self.load
        loads = self._loads(deployment, family.usual)
        guess = self._guess(loads)
        if self.objective.by == "concurrency":
            return RankedEngine(resolved, args, deployment, float(deployment.config.max_running), guess)
        full = Steady.of(deployment, load, family.full).rate(self.objective.confidence)
        # the closed form orders token budgets less well than layouts
        most, guess = min(family.most, full, self._most(loads) * self.margin**2), min(guess, full)
        return RankedEngine(resolved, args, deployment, most, guess, family.usual, family.full)

    def _loads(self, deployment: Deployment, doubt: Uncertainty | None) -> list[float]:
        """Closed-form load of each class, at most without ``doubt``; of sessions one that seldom has more in flight."""
        asked = partial(closed_form_load, by=self.objective.by, confidence=self.objective.confidence, doubt=doubt)
        loads = [asked(deployment, load, slos, by_noise=doubt is None) for _, load, slos in self.classes]
        if not self.load.drawn:
            return loads
        seldom = max((min(slo.percentile or 50.0, 99.9) for slo in self.objective.slos), default=50.0)
        flying, reach = loads[0] * at_concurrency(deployment, self.load, 1).e2el_s, NormalDist().inv_cdf(seldom / 100)
        return [loads[0] * (sqrt(reach**2 / 4 + flying) - reach / 2) ** 2 / flying if 0 < flying < inf else loads[0]]

    def _guess(self, loads: Sequence[float]) -> float:
        """Closed-form load of all classes, each with a share of the server's time."""
        if len(loads) == 1:
            return loads[0]
        return 1 / sum(share / max(load, 1e-12) for (share, _, _), load in zip(self.classes, loads, strict=True))

    def _most(self, loads: Sequence[float]) -> float:
        """Upper bound of the load of all classes, none in the way of another."""
        return min(load / share for (share, _, _), load in zip(self.classes, loads, strict=True))

    def _search_family(self, family: RankedEngine) -> None:
        tried: list[tuple[RankedEngine, ServedLoad]] = []
        served, refused = False, "cannot be cheaper"
        for args in self._members(family):
            member = self._engine(family.resolved, args, family)
            if not self._may_be_better(member) or any(_no_better(member, *other) for other in tried):
                continue
            try:
                candidate, load = self._challenge(member)
            except InputError as error:  # a budget in which such prompts take too many steps to be replayed
                refused = error.cause
                continue
            if load and not load.meets:
                self.missed.append((member, load))
            if candidate:
                self.plans.append(candidate)
                served, load = True, candidate.load
            if load:
                tried.append((member, load))
            if self.best_cost < inf:
                enough = self.load.recorded is not None and len(tried) >= defaults.MEMBERS_OF_A_TRACE
            else:
                enough = len(tried) >= defaults.MEMBERS_WITHOUT_REUSE and not self._meets_cold(member)
            if enough and not served:
                break
        if not served:
            closest = min((load for _, load in tried), key=lambda load: load.excess, default=None)
            why = f"misses {closest.binding}" if closest else refused
            self._reject(family, f"{why} at {self._cost_words(self.best_cost)}" if self.plans else why)

    def _members(self, family: RankedEngine) -> Iterator[EngineArgs]:
        asked = self.choices.space.args.max_num_seqs
        for budget in family.budgets:
            args = replace(family.args, max_num_batched_tokens=budget)
            try:
                most = self.choices.largest_batch(family.resolved, args)
            except PlannerError:
                continue  # a budget that this engine does not take
            fewer = [] if self.coarse else [batch for batch in defaults.TARGET_BATCHES if batch < most]
            for batch in sorted({asked} if asked else {most, *fewer}, reverse=True):
                if 1 <= batch <= most and (budget is None or budget >= batch):
                    yield replace(args, max_num_seqs=batch)

    def _challenge(self, engine: RankedEngine) -> tuple[Candidate | None, ServedLoad | None]:
        """The engine at the least cost that meets the targets, if that is below the best; and the last failure."""
        load, value = self.load, self.objective.value
        if value is None:
            return self._most_carried(engine)
        fewest, allowed = engine.servers(self.objective, at_least=True), self.best_cost
        allowed -= not self._may_cost_the_same(engine)  # cheaper than the best so far, or as cheap where that counts
        cap = inf if allowed == inf else floor(allowed / engine.num_gpus) - self.objective.spares
        if cap == inf and not self._meets_cold(engine):  # more servers find less, down to nothing
            cap = fewest
        # one server for each request of a trace; drawn requests stand for any number
        if cap < fewest or fewest > (load.count if load.unsendable and not load.drawn else inf):
            return None, None
        start = int(min(max(engine.servers(self.objective, at_least=False), fewest), cap))
        share = cache(partial(judged_share, engine.deployment, self.objective))
        if cap == inf and not load.unsendable and not share(start).meets:
            each = idle_load(engine.deployment, load, self.objective.by)
            idle = share(max(2 * ceil(value / each), start))  # as far as ``fewest_servers`` goes
            if not idle.meets:
                return None, idle
        count, met, failed = fewest_servers(share, fewest, start, cap)
        if count is None or met is None:
            return None, failed
        failed = None
        for fewer in range(count - 1, 0, -1):  # ``fewest`` rests on a margin by judgement
            one = share(fewer)
            if one.meets:
                count, met, failed = fewer, one, None
                continue
            failed = failed or one
            if not load.drawn or one.excess > defaults.NOISY or fewer < count - 1:
                break
        return self._candidate(engine, met, count), failed

    def _meets_cold(self, engine: RankedEngine) -> bool:
        """True if an idle server that has seen none of the prompts meets the targets: the limit of many servers."""
        key = engine.resolved.resolved, replace(engine.args, max_num_seqs=None)  # nothing waits for a place
        if key not in self._cold:
            requests, objective = self.load.recorded, self.objective
            if requests is None or not self.load.reused or objective.router == "prefix-aware":
                return True
            cold = replace(requests, prefixes=None).first(defaults.COLD_PROMPTS)
            rate = idle_load(engine.deployment, self.load, "rate")
            cold = replace(cold, arrival_s=np.arange(len(cold.arrival_s)) / rate)
            idle = replace(self.load, num_prompts=len(cold.arrival_s), request_rate=rate, recorded=cold)
            self._cold[key] = measure(
                engine.deployment, idle, objective.slos, confidence=objective.confidence, whole=False
            ).meets
        return self._cold[key]

    def _most_carried(self, engine: RankedEngine) -> tuple[Candidate | None, ServedLoad | None]:
        servers = self.choices.servers_in_stock(engine.num_gpus)
        sent = self.objective.dealt(max(servers, 1))
        capacity = Capacity(engine.deployment, sent, self.targets)
        if self.plans:
            challenge = self.choices.gpus_each(engine.num_gpus) / self.best_cost * self._clearly(engine)
            for exactly in (False, True)[: 1 + capacity.exactly]:
                load = capacity.at(challenge, exactly=exactly)
                if not load.meets:
                    return None, load
        elif not (hopeless := capacity.idle()).meets:
            return None, hopeless
        carried = capacity.largest()
        return (self._candidate(engine, carried, servers, capacity), None) if carried else (None, None)

    def _candidate(
        self, engine: RankedEngine, load: ServedLoad, servers: int, capacity: Capacity | None = None
    ) -> Candidate:
        concurrency = max(min(round(load.replay.mean_in_flight), engine.deployment.config.max_num_seqs), 1)
        sent = self.load
        figures = estimate(engine.deployment, sent.input_len, sent.output_len, concurrency, sent.prefix_len)
        return Candidate(engine.resolved, engine.deployment, figures, servers=servers, load=load, capacity=capacity)

    def ranking(self) -> Ranking:
        self.run()
        goal, rejected, cheapest = self.objective.goal, self.choices.rejected, self.best_cost
        least = min((one.load.excess for one in self.plans if one.load and self.cost(one) == cheapest), default=0.0)

        def order(candidate: Candidate) -> tuple[float, ...]:
            load, cost = candidate.load, self.cost(candidate)
            assert load is not None
            if goal == "min-latency":
                return cost, candidate.e2el_s
            if goal == "max-throughput" and cost == cheapest:  # others are not looked at
                most = Servers(self.choices.space, self.objective, candidate).most or load
                return cost, -most.output_tok_per_s / candidate.config.num_gpus
            unscaled, other = self.choices.beside_recipe(candidate.resolved, candidate.config)
            slack = max(load.excess, least * (1 + TOLERANCE)), candidate.config.data_parallel_size, other, load.excess
            near = cost if self.objective.value else max(cost, cheapest * (1 + TOLERANCE))  # as loads are found to it
            return near, candidate.config.pipeline_parallel_size, unscaled, cost, *slack  # few pipelines were measured

        candidates = sorted(self.plans, key=order)
        seen: set[tuple[str, int, str]] = set()
        for candidate in candidates:
            key = (candidate.resolved.resolved, candidate.config.tensor_parallel_size, candidate.config.kv_cache_dtype)
            if seen and key not in seen:
                words, best = (self._cost_words(self.cost(one)) for one in (candidate, candidates[0]))
                words = f"{words} against {best}" if words != best else f"also {words}"
                rejected.append(Rejected.of(candidate.resolved, candidate.deployment, words))
            seen.add(key)
        closest = None if candidates else self._closest()
        users = partial(for_users, self.choices.space, self.objective)
        candidates[:1] = (replace(users(best), rival=self._rival(best.config)) for best in candidates[:1])
        profile, version = self.choices.profile, self.choices.version
        return Ranking(profile, version, tuple(candidates), tuple(rejected), closest, self.beyond_stock[1])

    def _rival(self, best: EngineConfig) -> Deployment | None:
        """The most promising engine of another precision than ``best``, with its token budget."""
        others = (one for one in self.families if one.deployment.config.weight_dtype != best.weight_dtype)
        if self.coarse or (family := next(others, None)) is None:
            return None
        with suppress(PlannerError):  # a budget that this engine does not take
            args = replace(family.args, max_num_batched_tokens=best.max_num_batched_tokens)
            batch = self.choices.space.args.max_num_seqs or self.choices.largest_batch(family.resolved, args)
            return self.choices.deployed(family.resolved, replace(args, max_num_seqs=batch))
        return None

    def _closest(self) -> Candidate | None:
        """The engine that misses a target least: while it idles, or even with one request at a time."""
        idle = not self.coarse and self.objective.by == "rate" and not self.load.unsendable
        closest: tuple[RankedEngine, ServedLoad] | None = None
        nearest = min(self.missed, key=lambda pair: pair[1].excess, default=None)  # it meets those of a request alone
        if nearest and (idle or self.load.unsendable):
            closest = (self._missed_when_idle(nearest[0]) if idle else None) or nearest
        for at_least, engine in sorted(self.hopeless, key=lambda pair: pair[0]):
            if closest and at_least >= closest[1].excess:
                break
            one = replace(engine.args, max_num_seqs=engine.args.max_num_seqs or 1)
            load = alone(self.choices.deployed(engine.resolved, one), self.objective)
            closest = closest if closest and closest[1].excess <= load.excess else (engine, load)
        if closest and idle and closest[1].by == "concurrency":
            closest = self._missed_when_idle(closest[0]) or closest
        return self._candidate(*closest, 1) if closest else None

    def _missed_when_idle(self, engine: RankedEngine) -> tuple[RankedEngine, ServedLoad] | None:
        """A load so small that the server idles, if it misses a target; a limit that it meets has a plan."""
        args = engine.args
        try:
            batch = self.choices.space.args.max_num_seqs or self.choices.largest_batch(engine.resolved, args)
            roomy = self.choices.deployed(engine.resolved, replace(args, max_num_seqs=max(batch, 1)))
            load = Capacity(roomy, self.load, self.targets).idle(whole=True)
        except PlannerError:  # with memory for more than one request, or in so many steps, it is not served
            return None
        return None if load.meets else (engine, load)

    def _reject(self, engine: RankedEngine, reason: str) -> None:
        self.choices.rejected.append(Rejected.of(engine.resolved, engine.deployment, reason))

    def _cost_words(self, cost: float) -> str:
        if self.objective.value is None:
            return f"{1 / cost:,.3g} requests/s per GPU"
        return self.choices.profile.counted(round(cost))


def _no_better(engine: RankedEngine, other: RankedEngine, load: ServedLoad) -> bool:
    """Return True if ``engine`` serves ``load`` no better than ``other`` of its family, which is more promising.

    It takes the same steps where none came near the limits of either. A TPOT of steps without prompts hardly moves."""
    one, two, replay = engine.deployment.config, other.deployment.config, load.replay
    budgets = {one.max_num_batched_tokens, two.max_num_batched_tokens}
    same = (
        replay.most_seqs < min(one.max_num_seqs, two.max_num_seqs)
        and (len(budgets) == 1 or replay.most_step_tok < min(budgets))
        and replay.kv_cache_usage_peak < defaults.ROOMY
    )
    if same and (not load.meets or (load.sent.recorded is not None and len(budgets) == 1)):
        return True  # a trace takes long to replay: an engine that serves it in the same steps is no alternative
    worst = load.worst
    pipelined = one.pipeline_parallel_size > 1  # a prompt that is cut fills a pipeline alone
    if worst is None or worst.slo.metric != "tpot" or pipelined or replay.most_seqs >= one.max_num_seqs:
        return False
    if len(budgets) > 1 and replay.decode.batch is not None and len(replay.tpot_s):
        step_s = other.deployment.timer.step_s(replay.decode.batch) / other.deployment.tokens_per_step
        if step_s <= defaults.LONG_STEPS * float(replay.tpot_s.mean()):
            return False
    behind = max(other.guess / engine.guess, 1.0) if engine.guess else inf
    return load.bound_by in ("", str(worst.slo)) if load.meets else worst.excess * behind > defaults.FAR_OFF


def alone(deployment: Deployment, objective: Objective) -> ServedLoad:
    """Predict requests that have the server for themselves: the longest ones, or all where those miss a target.

    Recorded requests come so slowly that the server idles. Its cache forgets nothing: in a fleet it gets few sessions.
    """
    load, slos, config = objective.load, objective.slos, deployment.config
    sent = partial(measure, slos=slos, confidence=objective.confidence)
    if load.unsendable:
        places = min(max(config.max_num_seqs, defaults.USUAL_BATCH), config.most_decodes)
        # no bunch queues, and no prefix is forgotten
        roomy = replace(deployment, config=replace(config, max_num_seqs=places), least_cache_tok=ENDLESS_TOK)
        idle = idle_load(deployment, load, "rate")
        share = load.share_of(ceil(load.request_rate / idle), "prefix-aware") if load.drawn else None
        return sent(roomy, share or load.at_rate(idle, defaults.PROMPTS_ALONE))
    load = at_load(deployment, load, slos, "concurrency", 1)
    if load.recorded is None:
        longest = sent(deployment, load.longest(2))
        # with speculative decoding few tokens may come at a slower pace than many
        if not load.range_ratio or (longest.meets and deployment.tokens_per_step == 1):
            return longest
    elif all(slo.group for slo in slos):  # else the shares of the classes matter
        few = _two_of_each(load.recorded)
        load = replace(load, recorded=few, num_prompts=len(few.arrival_s))
    return sent(deployment, load)


def _two_of_each(requests: Requests) -> Requests:
    """Two requests of each class, as the first one of all only opens the loop; all where those of a class differ."""
    if requests.group is None or requests.prefixes is not None:
        return requests
    _, first, place = np.unique(requests.group, return_index=True, return_inverse=True)
    alike = all((one[first][place] == one).all() for one in (requests.input_len, requests.output_len))
    return requests.chosen(first.repeat(2)) if alike else requests


def missed_for_certain(deployment: Deployment, objective: Objective) -> Reading | None:
    """The worst target that no request meets, whatever else is in the engine; None where that is not certain.

    Of recorded requests: that half of them miss, in a cache that forgets nothing."""
    config, load, client = deployment.config, objective.load, deployment.client
    if load.classes or config.speculative_config:
        return None
    input_len, output_len = (
        max(floor(length * (1 - load.range_ratio)), 1) for length in (load.input_len, load.output_len)
    )
    new_tok = input_len + (0 if config.enable_prefix_caching else load.prefix_len)
    cached_tok = load.prefix_len + input_len - new_tok
    if sent := load.recorded:
        found = sent.prefixes.reusable_tok if sent.prefixes and config.enable_prefix_caching else 0 * sent.input_len
        # three in four have so many tokens, so half of all have so many of both
        new_tok, cached_tok, input_len = (
            int(np.quantile(tok, 0.25)) for tok in (sent.input_len - found, found, sent.input_len)
        )
        new_tok, output_len = max(new_tok, 1), int(np.quantile(sent.output_len, 0.25))
    pairs = new_tok * (cached_tok + (new_tok + 1) / 2)
    # a full pipeline has a share of the prompt in each stage; chunks before the last never have it to themselves
    going_on = config.pipeline_parallel_size > 1
    share = Batch(0, 0.0, 1 + going_on, new_tok, pairs, prefill_finishing=1 - going_on, peer_tok=0)
    ttft_s = client.delay_s(new_tok, 1) + deployment.timer.breakdown(share).gpu_s + client.response_s
    tpot_s = deployment.timer.step_s(Batch(1, input_len, peer_tok=0)) if output_len > 1 else 0.0
    least_s = {"ttft": ttft_s, "tpot": tpot_s} | ({} if sent else {"e2el": ttft_s + (output_len - 1) * tpot_s})
    readings = []
    for slo in objective.slos:
        if not sent or (slo.percentile or 0.0) > 50:
            least_ms = least_s.get(slo.metric, 0.0) / MS
            expected_ms = least_ms * least_upper(deployment, slo.key, objective.confidence)
            readings.append(Reading(slo, least_ms, expected_ms))
    return max((one for one in readings if not one.met), key=lambda one: one.excess, default=None)
