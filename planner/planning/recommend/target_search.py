"""The cheapest plan that keeps latency targets under a load, and how much one server of it carries.

The cost of a plan is its GPUs: those of one server times the servers that share the load. Searched: checkpoint
(precision) x KV dtype x TP, PP, DP, EP x ``max_num_batched_tokens`` x ``max_num_seqs``. A *family* is all engines that
differ in the last two only. Bounds say how many servers a family needs at least. Families are taken in that order, and
an engine that could still be cheaper than the best so far is challenged with one replay at the load that it would have
to carry. Without a load the cheapest plan is the one that carries most requests per second and GPU.

Of several plans of the same cost the one with the most slack is best; with ``min-latency`` the one with the least mean
E2EL, and with ``max-throughput`` the one with most output tokens/s per GPU at its largest load under the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, floor, inf, log

import numpy as np

from planner import progress
from planner.engine import EngineArgs, EngineVersion
from planner.errors import InputError, PlannerError
from planner.hardware import GpuProfile
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import (
    Capacity,
    Steady,
    against,
    at_load,
    closed_form_load,
    idle_load,
    measure,
    most_in_flight,
    outlined_load,
    queued_load,
    usual_doubt,
)
from planner.planning.defaults import TOLERANCE
from planner.planning.deployment import Deployment
from planner.planning.predict import ServedLoad, estimate
from planner.planning.recommend.bounds import alone, broken_for_certain, rate_bound
from planner.planning.recommend.candidates import (
    checkpoints,
    deployed,
    engines,
    largest_batch,
    left_out,
    why_not,
)
from planner.planning.recommend.request import Candidate, Ranking, Rejected, Request
from planner.planning.recommend.service import largest
from planner.planning.uncertainty import Uncertainty
from planner.workload import PRIORITY, Load, Slo, Targets

#: A server carries at most so many times the closed form, which knows no percentiles and no queue, exactly and to first
#: order. A judgement, and what it turns down says so; benchmarks/results/search.md has the most that was seen.
OPTIMISM = {True: 1.05, False: 1.2}
FAR_OFF = 1.03  #: expected over limit, by more than a token budget changes beyond the closed form's own order
#: Of a family that breaks a target with prompts not seen before, members that are tried on few servers; and the prompts
#: that tell.
MEMBERS_WITHOUT_REUSE, COLD_PROMPTS = 2, 2000
MEMBERS_OF_A_TRACE = 3  #: the same of a known load, once there is a plan: each takes seconds to replay
SAME = 0.01  #: by which a step may be shorter that counts as no shorter
ROOMY = 0.9  #: share of the KV blocks in use, at most, where nobody waits for one


@dataclass(frozen=True)
class RankedEngine:
    """One engine with its bounds. Of a family: with settings that no member exceeds."""

    resolved: ResolvedModel
    args: EngineArgs
    deployment: Deployment
    most: float  #: load of one server that is not exceeded
    guess: float  #: load of one server in the closed form
    usual: Uncertainty | None = None  #: doubt about the closed form, with few requests and with many
    full: Uncertainty | None = None
    queued: float = inf  #: load at which the prompts of several classes wait for one another too long
    budgets: tuple[int | None, ...] = ()  #: of a family, the most promising first

    @property
    def num_gpus(self) -> int:
        """GPUs of one server."""
        return self.deployment.config.num_gpus

    @property
    def num_batched_tok(self) -> int:
        """The token budget."""
        return self.deployment.config.max_num_batched_tokens

    def servers(self, targets: Targets, *, at_least: bool) -> int:
        """Servers that the load needs at least, or by the closed form."""
        each = self.most if at_least else self._expected
        return max(ceil((targets.value or 0.0) / each - 1e-9), 1) if each > 0 else 10**9

    def cost(self, targets: Targets, *, at_least: bool) -> float:
        """GPUs, or without a load GPUs for each unit of it."""
        if targets.value is None:
            return self.num_gpus / max(self.most if at_least else self._expected, 1e-12)
        return self.num_gpus * self.servers(targets, at_least=at_least)

    @property
    def _expected(self) -> float:
        """Load of one server."""
        return min(self.most, self.guess, self.queued)


def rank_by_targets(request: Request, profile: GpuProfile, version: EngineVersion) -> Ranking:
    """The plans that keep the targets, cheapest first; the closest one where none does."""
    search = _Search(request, profile, version)
    search.run()
    return search.ranking()


class _Search:
    """What has been found of one GPU so far."""

    def __init__(self, request: Request, profile: GpuProfile, version: EngineVersion) -> None:
        assert request.targets is not None  # ``rank`` asks
        self.request, self.profile, self.version = request, profile, version
        self.targets: Targets = request.targets
        self.load: Load = request.load
        self.parts = request.parts
        self.found: list[Candidate] = []
        self.rejected: list[Rejected] = []
        self.alternatives = 0 if request.coarse else defaults.TARGET_ALTERNATIVES
        self.hopeless: list[tuple[float, RankedEngine]] = []  # break targets even when requests are alone
        self.exactly = not request.coarse  # many types of GPUs are left at first order
        self._cold: dict[tuple[str, EngineArgs], bool] = {}  # whether they keep the targets of prompts not seen before
        self._known: dict[tuple[str, EngineArgs], Deployment] = {}  # whose step times are worked out once
        self._usual: dict[Slo, float] = {}  # expected over predicted, about what engines of this GPU need
        self._broke: list[tuple[RankedEngine, ServedLoad]] = []  # with loads that were too much for them

    @property
    def best_cost(self) -> float:
        """Of the cheapest plan so far."""
        return min(map(self.cost, self.found), default=inf)

    def cost(self, candidate: Candidate) -> float:
        """GPUs, or without a load GPUs for each unit of it."""
        if self.targets.value is None and candidate.load:
            return candidate.config.num_gpus / candidate.load.value
        return candidate.num_gpus

    def run(self) -> None:
        """Families in the order of their cost in the closed form; those that cannot be cheaper are passed over.

        Of equals the one that carries most comes first: it has the most slack.
        """

        def order(family: RankedEngine) -> tuple[float, int, float]:
            return family.cost(self.targets, at_least=False), family.num_gpus, -family.guess

        families = sorted(self._families(), key=order)
        for outline in progress.each(families, lambda family: f"{self.profile.id}: {family.resolved.resolved}"):
            family: RankedEngine | None = outline
            if self._may_be_better(outline):
                family = self._family(outline.resolved, outline.args)
                if family and self._may_be_better(family):
                    self._search_family(family)
                    continue
            if family:
                least = self._cost_words(family.cost(self.targets, at_least=True))
                best = self._cost_words(self.best_cost)
                against = "" if least == best else f", against {best}"
                self._reject(family, f"{least} {self._at_best(family)}{against}")
        self.rejected += left_out(self.request, self.profile, self.version)

    def _at_best(self, family: RankedEngine) -> str:
        """Whether the most that a server of ``family`` carries is proved, or ``OPTIMISM`` decides."""
        margin = OPTIMISM[self.exactly]
        if family.most < family.guess * margin or self.targets.by == "concurrency":
            return "at best"
        return f"at best ({margin - 1:.0%} above the closed form, a margin by judgement)"

    def _may_be_better(self, engine: RankedEngine) -> bool:
        """Whether it may be cheaper; as cheap is of interest while there are few to choose from.

        Without a load, cheaper by more than loads are told apart: that is what it is held against.
        """
        least = engine.cost(self.targets, at_least=True)
        if self.targets.value is None:
            return least * (1 + TOLERANCE) < self.best_cost
        return least < self.best_cost or (least == self.best_cost and len(self.found) <= self.alternatives)

    def _search_family(self, family: RankedEngine) -> None:
        tried: list[tuple[RankedEngine, ServedLoad]] = []
        served, refused = False, "cannot be cheaper"
        for args in self._members(family):
            member = self._engine(family.resolved, args, family)
            if not self._may_be_better(member) or any(_no_better(member, *other) for other in tried):
                continue
            candidate, load = None, self._slower_than(member)
            if not load:
                try:
                    candidate, load = self._challenge(member)
                except InputError as error:  # a budget in which such prompts take too many steps to be replayed
                    refused = error.cause
                    continue
                if load and not load.meets:
                    self._broke.append((member, load))
            if candidate:
                self.found.append(candidate)
                served, load = True, candidate.load
            if load:
                tried.append((member, load))
            if not served and self._enough(member, len(tried)):
                break
        if not served:
            closest = min((load for _, load in tried), key=lambda load: load.excess, default=None)
            best = self._cost_words(self.best_cost)
            why = f"breaks {closest.binding}" if closest else refused
            self._reject(family, f"{why} at {best}" if self.found else why)

    def _enough(self, member: RankedEngine, tried: int) -> bool:
        """Whether no other member of a family is tried, where so many have broken a target."""
        if self.best_cost < inf:
            return self.load.recorded is not None and tried >= MEMBERS_OF_A_TRACE
        return tried >= MEMBERS_WITHOUT_REUSE and not self._keeps_cold(member)

    def _slower_than(self, engine: RankedEngine) -> ServedLoad | None:
        """What a like engine broke a target with, whose usual steps are no longer than the same of this one.

        Not where it is known what prompts have in common: what is found of them depends on the room for it.
        """
        if self.load.reused:
            return None
        least = self._least_load(engine) * (1 + 1e-9)
        for other, load in self._broke:
            if load.value <= least and self._surely_broken(engine, other, load) and _no_faster(engine, other, load):
                return load
        return None

    def _surely_broken(self, engine: RankedEngine, other: RankedEngine, load: ServedLoad) -> bool:
        """Whether ``load`` is so much too much for the ``other`` that being better known does not help ``engine``."""
        worst = max(load.readings, key=lambda reading: reading.excess, default=None)
        if worst is None or not engine.usual or not other.usual:
            return False
        mine, its = (one.usual.upper(worst.slo.key, self.targets.confidence) for one in (engine, other) if one.usual)
        return worst.excess * min(mine / its, 1.0) > FAR_OFF

    def _least_load(self, engine: RankedEngine) -> float:
        """Of one server, that it has to carry to be of interest; 0 while anything is."""
        if self.targets.value is None:
            return engine.num_gpus / self.best_cost * (1 + TOLERANCE)
        each = self.targets.value / max(self._most_of_interest(engine), 1)
        return ceil(each) if self.targets.by == "concurrency" else each

    def _families(self) -> Iterator[RankedEngine]:
        for resolved in checkpoints(self.request.model, self.profile, self.rejected):
            for args in engines(self.request, resolved, self.profile, self.version, self.rejected):
                try:
                    family = self._outline(resolved, args)
                except PlannerError as error:
                    self.rejected.append(Rejected.of_args(self.profile, resolved, args, error.cause))
                    continue
                if family is not None:
                    yield family

    def _outline(self, resolved: ResolvedModel, args: EngineArgs) -> RankedEngine | None:
        """A family with what no member exceeds, without any replay or uncertainty: what memory and noise leave.

        None where it cannot run or break a target for certain.
        """
        request, targets = self.request, self.targets
        budgets = self._budgets(args)
        small = replace(args, max_num_batched_tokens=min(budgets, key=lambda b: b or inf))
        lone = self._deployed(resolved, replace(small, max_num_seqs=args.max_num_seqs or 1))
        held = int(lone.requests_held(request.total_len, pessimistic=True))
        if held < 1 and self._largest(resolved, small) < 1:
            self.rejected.append(
                Rejected.of_args(self.profile, resolved, args, why_not(self._deployed(resolved, args)))
            )
            return None
        most_seqs = args.max_num_seqs or min(defaults.MAX_NUM_SEQS, max(held, 1))
        engines = [self._deployed(resolved, one) for one in self._each_budget(args, most_seqs)]
        engine = max(engines, key=lambda one: one.config.max_num_batched_tokens)
        if self.load.reused:
            engine.check_host_blocks()
        outline = RankedEngine(resolved, args, engine, inf, 0.0)
        if broken := broken_for_certain(engine, request, targets):
            self._reject(outline, f"breaks {broken.slo} even with one request at a time on the server")
            if engine.config.pipeline_parallel_size == 1:
                self.hopeless.append((broken.excess, outline))
            return None
        if targets.by == "concurrency":
            return replace(outline, most=float(most_in_flight(engine)), guess=float(most_in_flight(engine)))
        loads = [
            [outlined_load(one, load, slos, targets.confidence) for _, load, slos in self.parts] for one in engines
        ]
        most, guess = max(map(self._most, loads)), max(map(self._guess, loads))
        return replace(outline, most=most * OPTIMISM[self.exactly], guess=guess, queued=max(map(self._queued, engines)))

    def _family(self, resolved: ResolvedModel, args: EngineArgs) -> RankedEngine | None:
        """Bounds for all members: the batch that the smallest token budget leaves room for, the largest budget."""
        budgets = self._budgets(args)
        one = replace(args, max_num_seqs=args.max_num_seqs or 1)
        most_tok = max(budget or self._deployed(resolved, one).config.max_num_batched_tokens for budget in budgets)
        relaxed = replace(args, max_num_batched_tokens=most_tok)
        one = replace(one, max_num_batched_tokens=most_tok)
        lone = RankedEngine(resolved, one, self._deployed(resolved, one), 0.0, 0.0)
        if broken := self._breaks_alone(lone):
            self._reject(lone, f"breaks {broken} even with one request at a time on the server")
            return None
        largest = self._largest(resolved, replace(args, max_num_batched_tokens=min(budgets, key=lambda b: b or inf)))
        return self._bounded(resolved, args, self._deployed(resolved, replace(relaxed, max_num_seqs=largest)))

    def _bounded(self, resolved: ResolvedModel, args: EngineArgs, deployment: Deployment) -> RankedEngine:
        """A family with bounds for all members: its ``deployment`` has the largest of all settings."""
        targets, workload = self.targets, self.load
        largest = deployment.config.max_num_seqs
        usual, full = usual_doubt(deployment, workload), Steady.of(deployment, workload).doubt
        family = RankedEngine(resolved, args, deployment, inf, 0.0, usual, full)
        members = [self._engine(resolved, one, family) for one in self._each_budget(args, largest)]
        most, guess = max(member.most for member in members), max(member.guess for member in members)
        if targets.by == "rate":
            carried = guess
            if len(self.parts) > 1:
                carried = max(self._most(self._loads(member.deployment, usual)) for member in members)
            most = min(rate_bound(deployment, self.request, targets, most), carried * OPTIMISM[self.exactly])
        members.sort(key=lambda member: self._less_promising(member, args))
        budgets = {member.num_batched_tok: member.args for member in reversed(members)}
        best_first = tuple(one.max_num_batched_tokens for one in reversed(budgets.values()))
        queued = max(member.queued for member in members)
        return replace(family, most=most, guess=guess, queued=queued, budgets=best_first)

    def _less_promising(self, member: RankedEngine, args: EngineArgs) -> tuple[float, bool, int]:
        """Larger for token budgets that are tried later; the closed form tells those of like loads not apart.

        Under a TPOT the one that is advised comes first, then large ones, which take several prompts at once; else
        small ones, which let short prompts pass long ones.
        """
        like = -round(log(max(member.guess, 1e-12)) / TOLERANCE)
        if any(slo.metric == "tpot" for slo in self.targets.slos):
            return like, member.args.max_num_batched_tokens != args.max_num_batched_tokens, -member.num_batched_tok
        return like, False, member.num_batched_tok

    def _each_budget(self, args: EngineArgs, batch: int) -> Iterator[EngineArgs]:
        """With each token budget, and ``batch`` as far as the budget has a token for each."""
        for budget in self._budgets(args):
            yield replace(args, max_num_batched_tokens=budget, max_num_seqs=min(batch, budget or batch))

    def _breaks_alone(self, engine: RankedEngine) -> str | None:
        """The target that even single requests break; None where they keep all, or are no bound."""
        deployment = engine.deployment
        if deployment.config.pipeline_parallel_size > 1:
            return None
        try:
            least = alone(deployment, self.request, self.targets)
        except InputError:  # the largest token budget and one request need not fit together
            return None
        if least.meets:
            return None
        self.hopeless.append((least.excess, engine))
        return least.binding

    def _largest(self, resolved: ResolvedModel, args: EngineArgs) -> int:
        return largest_batch(self.request, resolved.model, self.profile, args, self.version)

    def _deployed(self, resolved: ResolvedModel, args: EngineArgs) -> Deployment:
        key = resolved.resolved, args
        if key not in self._known:
            self._known[key] = deployed(self.request, resolved.model, self.profile, args, self.version)
        return self._known[key]

    def _members(self, family: RankedEngine) -> Iterator[EngineArgs]:
        """Token budgets x batches, the largest batch first."""
        for budget in family.budgets:
            args = replace(family.args, max_num_batched_tokens=budget)
            try:
                largest = self._largest(family.resolved, args)
            except PlannerError:
                continue  # a budget that this engine does not take
            asked = self.request.args.max_num_seqs
            fewer = [] if self.request.coarse else [batch for batch in defaults.TARGET_BATCHES if batch < largest]
            batches = {asked} if asked else {largest, *fewer}
            for batch in sorted(batches, reverse=True):
                if 1 <= batch <= largest and (budget is None or budget >= batch):
                    yield replace(args, max_num_seqs=batch)

    def _budgets(self, args: EngineArgs) -> list[int | None]:
        """Token budgets to search: the one that is asked for or advised first, or else vLLM's own."""
        if self.request.args.max_num_batched_tokens:
            return [self.request.args.max_num_batched_tokens]
        own = args.max_num_batched_tokens
        if self.request.coarse:
            return [own]
        shared = defaults.SHARED_BUDGETS if args.data_parallel_size > 1 else ()
        return list(dict.fromkeys((own, *defaults.TOKEN_BUDGETS, *shared)))

    def _engine(self, resolved: ResolvedModel, args: EngineArgs, family: RankedEngine) -> RankedEngine:
        """A member: no better than its ``family``, whose doubt it shares, and than full batches."""
        deployment = self._deployed(resolved, args)
        targets, workload = self.targets, self.load
        guess, queued = self._guess(self._loads(deployment, family.usual)), self._queued(deployment)
        if targets.by == "concurrency":
            return RankedEngine(resolved, args, deployment, float(most_in_flight(deployment)), guess)
        full = Steady.of(deployment, workload, family.full).rate(targets.confidence)
        most, guess = min(family.most, full), min(guess, full)
        return RankedEngine(resolved, args, deployment, most, guess, family.usual, family.full, queued)

    def _loads(self, deployment: Deployment, doubt: Uncertainty | None) -> list[float]:
        """What a server carries of each class alone, in the closed form."""
        by, confidence = self.targets.by, self.targets.confidence
        return [
            closed_form_load(deployment, load, slos, by, confidence=confidence, doubt=doubt)
            for _, load, slos in self.parts
        ]

    def _guess(self, loads: Sequence[float]) -> float:
        """All classes together, where each has a share of the server's time."""
        if len(loads) == 1:
            return loads[0]
        return 1 / sum(share / max(load, 1e-12) for (share, _, _), load in zip(self.parts, loads, strict=True))

    def _queued(self, deployment: Deployment) -> float:
        """All classes together, where their prompts wait for one another, in the order in which they come."""
        if len(self.parts) == 1 or deployment.config.scheduling_policy == PRIORITY:
            return inf
        if not self._usual:
            doubt = usual_doubt(deployment, self.load).at_own_pace()
            self._usual = {slo: doubt.upper(slo.key, self.targets.confidence) for slo in self.targets.slos}
        return queued_load(deployment, self.parts, self._usual)

    def _most(self, loads: Sequence[float]) -> float:
        """All classes together, where none is in the way of another."""
        return min(load / share for (share, _, _), load in zip(self.parts, loads, strict=True))

    def _challenge(self, engine: RankedEngine) -> tuple[Candidate | None, ServedLoad | None]:
        """The engine at the least cost where it keeps the targets, if that is below the best; and the last failure."""
        if self.targets.value is None:
            return self._most_carried(engine)
        fewest = engine.servers(self.targets, at_least=True)
        cap = self._most_of_interest(engine)
        if cap == inf and not self._keeps_cold(engine):  # more servers find less, down to nothing
            cap = fewest
        if cap < fewest or fewest > self._most_servers:
            return None, None
        start = int(min(max(engine.servers(self.targets, at_least=False), fewest), cap))
        share = cache(lambda count: self._share(engine, count))
        if cap == inf and not share(start).meets and (hopeless := self._breaks_idle(engine, start, share)):
            return None, hopeless
        count, load, failed = fewest_servers(share, fewest, start, cap)
        if count is None or load is None:
            return None, failed
        return replace(self._candidate(engine, load, count), too_much=failed), failed

    def _most_of_interest(self, engine: RankedEngine) -> float:
        """Servers that are not more expensive than the best so far; an equal cost counts while there are few plans."""
        allowed = self.best_cost if len(self.found) <= self.alternatives else self.best_cost - 1
        return inf if self.best_cost == inf else floor(allowed / engine.num_gpus)

    @property
    def _most_servers(self) -> float:
        """One for each request of a trace; what is drawn stands for any number of requests."""
        return self.load.count if self.load.unsendable and not self.load.drawn else inf

    def _breaks_idle(self, engine: RankedEngine, start: int, share: Callable[[int], ServedLoad]) -> ServedLoad | None:
        """The load of so many servers that they idle, ``start`` at least, where that breaks a target: more do not help.

        Of a trace it is not asked: what servers find in their caches depends on how many they are.
        """
        targets = self.targets
        if targets.value is None or self.load.unsendable:
            return None
        each = idle_load(engine.deployment, self.load, targets.by)
        load = share(max(2 * ceil(targets.value / each), start))  # as far as ``fewest_servers`` goes
        return None if load.meets else load

    def _keeps_cold(self, engine: RankedEngine) -> bool:
        """Whether a server that idles and has seen none of the prompts keeps the targets: what more servers come to.

        A router that looks for what servers have seen keeps it together, however many there are.
        """
        key = engine.resolved.resolved, replace(engine.args, max_num_seqs=None)  # nobody waits for a place
        if key not in self._cold:
            requests = self.load.recorded
            if requests is None or not self.load.reused or self.targets.router == "prefix-aware":
                return True
            apart = replace(requests, prefixes=None).first(COLD_PROMPTS)
            rate = idle_load(engine.deployment, self.load, "rate")
            apart = replace(apart, arrival_s=np.arange(len(apart.arrival_s)) / rate)
            idle = replace(self.load, num_prompts=len(apart.arrival_s), request_rate=rate, recorded=apart)
            self._cold[key] = measure(
                engine.deployment, idle, self.targets.slos, confidence=self.targets.confidence, whole=False
            ).meets
        return self._cold[key]

    def _most_carried(self, engine: RankedEngine) -> tuple[Candidate | None, ServedLoad | None]:
        targets = self.targets
        capacity = Capacity(engine.deployment, self.load, targets, exactly=self.exactly)
        if self.found:
            challenge = engine.num_gpus / self.best_cost * (1 + TOLERANCE)
            for exactly in (False, True)[: 1 + self.exactly]:
                load = capacity.at(challenge, exactly=exactly)
                if not load.meets:
                    return None, load
        elif not (hopeless := capacity.idle()).meets:
            return None, hopeless
        carried = capacity.largest()
        return (self._candidate(engine, carried, 1, capacity), None) if carried else (None, None)

    def _share(self, engine: RankedEngine, servers: int) -> ServedLoad:
        """What one of ``servers`` has to carry: to first order, and what keeps the targets so exactly.

        Of a long trace the last requests, and where those keep the targets all of them.
        """
        targets = self.targets
        load = share_of(engine.deployment, self.request, targets, servers, whole=False)
        more = self.load.unsendable and not self.load.drawn and len(load.replay.sent_s) == defaults.TRACE_PROMPTS
        if load.meets and more:
            load = share_of(engine.deployment, self.request, targets, servers, entire=True, whole=False)
        if load.meets and self.exactly and targets.by == "rate" and targets.slos:
            load = against(load.prediction, targets.slos, targets.confidence)
        return load

    def _candidate(
        self, engine: RankedEngine, load: ServedLoad, servers: int, capacity: Capacity | None = None
    ) -> Candidate:
        concurrency = max(min(round(load.replay.mean_in_flight), engine.deployment.config.max_num_seqs), 1)
        asked = self.load
        figures = estimate(engine.deployment, asked.input_len, asked.output_len, concurrency, asked.prefix_len)
        return Candidate(engine.resolved, engine.deployment, figures, servers=servers, load=load, capacity=capacity)

    def ranking(self) -> Ranking:
        """Cheapest first; of equals the one with most slack, the least latency or the most throughput."""
        goal = self.request.goal

        def order(candidate: Candidate) -> tuple[float, float]:
            load, cost = candidate.load, self.cost(candidate)
            assert load is not None
            if goal == "min-latency":
                return cost, candidate.e2el_s
            if goal == "max-throughput" and cost == self.best_cost:  # others are not looked at
                most = largest(self.request, candidate) or load
                return cost, -most.output_tok_per_s / candidate.config.num_gpus
            return cost, load.excess

        candidates = sorted(self.found, key=order)
        seen: set[tuple[str, int, str]] = set()
        for candidate in candidates:
            key = (candidate.resolved.resolved, candidate.config.tensor_parallel_size, candidate.config.kv_cache_dtype)
            if seen and key not in seen:
                words, best = (self._cost_words(self.cost(one)) for one in (candidate, candidates[0]))
                reason = f"{words} against {best}" if words != best else f"{words}, too"
                self.rejected.append(Rejected.of(candidate, reason))
            seen.add(key)
        closest = None if candidates else self._closest()
        return Ranking(self.profile, self.version, tuple(candidates), tuple(self.rejected), closest)

    def _closest(self) -> Candidate | None:
        """The engine that breaks a target least: while it idles, or even with one request at a time."""
        idle = self.exactly and self.targets.by == "rate" and not self.load.unsendable
        closest: tuple[RankedEngine, ServedLoad] | None = None
        nearest = min(self._broke, key=lambda pair: pair[1].excess, default=None)  # they meet those of a request alone
        if nearest and self.load.unsendable:
            closest = nearest
        elif nearest and idle:
            closest = self._broken_idle(nearest[0])
        for at_least, engine in () if closest else sorted(self.hopeless, key=lambda pair: pair[0]):
            if closest and at_least >= closest[1].excess:
                break
            one = replace(engine.args, max_num_seqs=engine.args.max_num_seqs or 1)
            load = alone(self._deployed(engine.resolved, one), self.request, self.targets)
            closest = closest if closest and closest[1].excess <= load.excess else (engine, load)
        if closest and idle and closest[1].by == "concurrency":
            closest = self._broken_idle(closest[0]) or closest
        return self._candidate(*closest, 1) if closest else None

    def _broken_idle(self, engine: RankedEngine) -> tuple[RankedEngine, ServedLoad] | None:
        """A load so small that the server idles, where it breaks a target: a limit that it keeps has a plan."""
        args, targets = engine.args, self.targets
        try:
            batch = args.max_num_seqs or self._largest(engine.resolved, args)
            roomy = self._deployed(engine.resolved, replace(args, max_num_seqs=max(batch, 1)))
            load = Capacity(roomy, self.load, targets).idle(whole=True)
        except PlannerError:  # with more room than for one request, or in so many steps, it is not served
            return None
        return None if load.meets else (engine, load)

    def _reject(self, engine: RankedEngine, reason: str) -> None:
        candidate = Candidate(engine.resolved, engine.deployment, estimate(engine.deployment, 1, 1, 1))
        self.rejected.append(Rejected.of(candidate, reason))

    def _cost_words(self, cost: float) -> str:
        if self.targets.value is None:
            return f"{1 / cost:,.3g} requests/s per GPU"
        return f"{cost:,.0f} GPU{'s' if cost != 1 else ''}"


def share_of(
    deployment: Deployment,
    request: Request,
    targets: Targets,
    servers: int,
    *,
    entire: bool = False,
    whole: bool = True,
    exactly: bool = False,
) -> ServedLoad:
    """What one of ``servers`` has to carry, beside the targets. Of a trace, what the router sends it.

    Those are the last ``TRACE_PROMPTS`` of its requests, or its ``entire`` share. ``whole`` and ``exactly`` as for
    ``measure``.
    """
    assert targets.value is not None
    load = request.load
    if load.classes:
        few = at_load(deployment, load, targets.slos, "rate", targets.value / servers)
        one_of_each = ceil(max(targets.value / one.request_rate for one in load.classes)) + 1
        prompts = request.num_prompts or max(few.num_prompts, one_of_each)
        sent = load.share_of(servers, most=prompts)
    elif load.recorded is not None:
        sent = load.share_of(servers, targets.router, load.count if entire else defaults.TRACE_PROMPTS)
    else:
        value = ceil(targets.value / servers) if targets.by == "concurrency" else targets.value / servers
        sent = at_load(deployment, load, targets.slos, targets.by, value)
        if request.num_prompts:
            sent = replace(sent, num_prompts=request.num_prompts)
    return measure(deployment, sent, targets.slos, confidence=targets.confidence, whole=whole, exactly=exactly)


def fewest_servers(
    probe: Callable[[int], ServedLoad], fewest: int, start: int, cap: float = inf
) -> tuple[int | None, ServedLoad | None, ServedLoad | None]:
    """The smallest number in [fewest, cap] whose share meets the targets, its load, and the last load that does not.

    ``probe`` is assumed to be broken below some number and met from there on. With a cap, that is tried first.
    """
    low, high = fewest - 1, inf
    met: ServedLoad | None = None
    failed: ServedLoad | None = None
    count, fewer, more = start if cap == inf else int(cap), 1, 0.1
    while low + 1 < high:
        load = probe(count)
        if load.meets:
            high, met = count, load
        else:
            low, failed = count, load
        if failed and met:
            count = (low + int(high)) // 2
        elif met and count == cap and cap > max(fewest, start):  # most engines carry no more than the best so far
            count = int(cap) - 1
        elif met:  # the start is a good guess: steps from there grow
            count = start if count > start else max(low + 1, int(high) - fewer)
            fewer = fewer if count == start else 2 * fewer
        elif low >= cap or load.value <= least_share(load):
            break
        else:  # as many more as the worst target is off, or in growing steps where that is not enough
            count = int(min(max(low + 1, ceil(low * min(max(load.excess, 1 + more), 2.0))), cap))
            more *= 2
    return (None if high == inf else int(high)), met, failed


def least_share(load: ServedLoad) -> float:
    """A load so small that fewer of it would not help: one in flight, or a server that idles between requests."""
    if load.by == "concurrency":
        return 1.0
    return 0.02 / float(load.replay.e2el_s.mean())


def _no_faster(engine: RankedEngine, other: RankedEngine, load: ServedLoad) -> bool:
    """Whether the ``other``, which broke a target under ``load``, differs in the time of its steps alone, and took no
    longer for them."""
    one, two, replay = engine.deployment.config, other.deployment.config, load.replay
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_num_batched_tokens")
    alike = all(getattr(one, name) == getattr(two, name) for name in names) and one.max_num_seqs <= two.max_num_seqs
    if not alike or replay.kv_cache_usage_peak > ROOMY:
        return False
    batches = [batch for batch in (replay.prefill_batch, replay.decode_batch) if batch is not None]
    mine, its = ([each.deployment.timer.step_s(batch) for batch in batches] for each in (engine, other))
    return all(mine_s >= its_s * (1 - SAME) for mine_s, its_s in zip(mine, its, strict=True))


def _no_better(engine: RankedEngine, other: RankedEngine, load: ServedLoad) -> bool:
    """Whether ``engine`` serves ``load`` no better than ``other`` of its family, which is more promising.

    It serves a load that breaks a target in the same steps where none of these came near the limits of either. And
    where the TPOT decides, how prompts are cut moves it little beyond what the closed form says.
    """
    one, two, replay = engine.deployment.config, other.deployment.config, load.replay
    budgets = {one.max_num_batched_tokens, two.max_num_batched_tokens}
    same = (
        replay.most_seqs < min(one.max_num_seqs, two.max_num_seqs)
        and (len(budgets) == 1 or replay.most_step_tok < min(budgets))
        and replay.kv_cache_usage_peak < ROOMY
    )
    if same and load.sent.recorded is not None and len(budgets) == 1:
        return True  # a trace takes long to replay: an engine that serves it in the same steps is no alternative
    worst = max(load.readings, key=lambda reading: reading.excess, default=None)
    behind = max(other.guess / engine.guess, 1.0) if engine.guess else inf
    decides = (
        worst is not None
        and worst.slo.metric == "tpot"
        and (load.bound_by in ("", str(worst.slo)) if load.meets else worst.excess * behind > FAR_OFF)
    )
    pipelined = one.pipeline_parallel_size > 1  # a prompt that is cut fills a pipeline alone
    return (same and not load.meets) or (decides and replay.most_seqs < one.max_num_seqs and not pipelined)
