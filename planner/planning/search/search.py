"""One search for every question of the kind "which settings": a space to choose from, and an objective.

For a goal it ranks by the closed form and replays the finalists:

- ``max-throughput``: output tokens/s per GPU.
- ``min-latency``: mean E2EL at the given concurrency.
- ``balanced``: the point of the Pareto front of tokens/s per GPU and per user, in logarithms, farthest from its chord.

A batch fits when the low end of the memory budget holds all its requests at full length, so no plan preempts. Where a
concurrency is asked for, its expected size is enough: requests without a place would wait for a whole answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, inf
from typing import Any

from planner import progress
from planner.engine import EngineArgs
from planner.errors import InputError, PlannerError
from planner.model import LatentAttention, ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import at_concurrency
from planner.planning.cost import Paid
from planner.planning.deployment import Deployment
from planner.planning.fit import of_four_bits
from planner.planning.plan import Plan
from planner.planning.predict import Prediction
from planner.planning.search.by_targets import rank_by_targets
from planner.planning.search.plans import assemble, for_users
from planner.planning.search.servers import Servers
from planner.planning.search.space import Candidate, Choices, Merit, Objective, Ranking, Rejected, Space, best_first
from planner.planning.serving import Serving


def rank_by_goal(choices: Choices) -> Ranking:
    """Rank every setting that fits, best first."""
    objective = choices.objective
    engines = [(resolved, args) for resolved in choices.checkpoints() for args in choices.engines(resolved)]
    candidates = [candidate for engine in engines for candidate in _batches(choices, *engine)]
    candidates = best_first(_replayed(choices, best_first(candidates, objective.goal)), objective.goal)
    while candidates and candidates[0].figures is None:  # the closed form promised more than the finalists deliver
        candidates = best_first([with_figures(objective, candidates[0], ranked=True), *candidates[1:]], objective.goal)
    candidates = _recipe_first(choices, candidates) if candidates else []
    rejected = [*choices.rejected, *_runners_up(objective, candidates), *choices.left_out()]
    best = (with_figures(objective, for_users(choices.space, objective, one)) for one in candidates[:1])
    kept = (*best, *(replace(one, prediction=None) for one in candidates[1:]))
    roomier = tuple(_roomier(choices, candidates[0])) if candidates else ()
    return Ranking(choices.profile, choices.version, kept, tuple(rejected), roomier=roomier)


def _roomier(choices: Choices, best: Candidate) -> Iterator[tuple[str, Candidate]]:
    """Yield the options that shrink a request's KV cache on each GPU, with ``best`` under each that makes it faster."""
    goal, load, space, config = choices.objective.goal, choices.objective.load, choices.space, best.config
    short = best.deployment.requests_of(load) * config.data_parallel_size < (load.max_concurrency or 0)
    if space.coarse or not (short or goal == "max-throughput"):
        return
    options, ranks = dict[str, dict[str, Any]](), config.tensor_parallel_size
    halved = space.args.kv_cache_dtype == "auto" and not config.kv_cache_dtype.startswith("fp8")
    if halved and choices.profile.supports("fp8"):
        options["--kv-cache-dtype fp8"] = {"kv_cache_dtype": "fp8"}
    copied = all(isinstance(one, LatentAttention) and not one.indexer for one in best.resolved.model.distinct_mixers)
    if copied and config.decode_context_parallel_size == 1 < ranks and choices.profile.platform == "cuda":
        options[f"--decode-context-parallel-size {ranks}"] = {"decode_context_parallel_size": ranks}
    layout = replace(space.args, **config.settings("axes"), speculative_config=config.speculative_config)
    for option, changes in options.items():
        args = choices.launched(best.resolved.model, replace(layout, **changes))
        for one in best_first([*_batches(choices, best.resolved, args)], goal)[:1]:
            faster = with_figures(choices.objective, one, ranked=True)
            if faster.tok_per_s_per_gpu > best.tok_per_s_per_gpu * (1 + defaults.TOLERANCE):
                yield option, faster


def _recipe_first(choices: Choices, candidates: list[Candidate]) -> list[Candidate]:
    """Put the recipe's layout first among those alike, of the same checkpoint and GPUs; fewer GPUs before stages."""
    merit = Merit.among(candidates, choices.objective.goal)
    best, least = candidates[0], merit.of_candidate(candidates[0]) - merit.tie
    gpus = range(1 if best.config.pipeline_parallel_size > 1 else best.config.num_gpus, best.config.num_gpus + 1)
    alike = (
        one for one in candidates
        if one.figures and one.config.num_gpus in gpus and merit.of_candidate(one) >= least
        and one.resolved.resolved == best.resolved.resolved
    )  # fmt: skip
    first = min(alike, key=lambda one: (one.config.num_gpus, *choices.beside_recipe(one.resolved, one.config)))
    return [first, *(one for one in candidates if one is not first)]


def with_figures(objective: Objective, candidate: Candidate, *, ranked: bool = False) -> Candidate:
    """Return the candidate with its replay; to be ``ranked``, DP ranks that share experts get lengths that vary.

    Under equal lengths they read prompts in the same steps, as the traffic of users never does."""
    load = objective.closed_loop(candidate.estimate.concurrency)
    in_phase = candidate.in_phase(load)
    if ranked and in_phase:
        load = replace(load, range_ratio=defaults.USUAL_RANGE_RATIO)
    prediction = Prediction.of(candidate.deployment, load, percentiles=defaults.PERCENTILES)
    ranked_it = candidate.figures if candidate.searched and in_phase else None
    return replace(candidate, figures=ranked_it or {**prediction.figures, **prediction.rates}, prediction=prediction)


def _batches(choices: Choices, resolved: ResolvedModel, args: EngineArgs) -> Iterator[Candidate]:
    """Yield the engine at each concurrency that is worth considering."""
    objective, ranks, given = choices.objective, args.data_parallel_size, choices.space.args.max_num_seqs
    wanted = objective.wanted_batch((given or 0) * ranks)
    least, bound = defaults.LATENCY_CONCURRENCY if objective.goal == "balanced" else 1, defaults.MAX_NUM_SEQS
    bound *= ranks if wanted else 1  # --max-num-seqs is of each rank
    try:
        largest = min(choices.largest_batch(resolved, args) * ranks, bound)
        if largest < 1:
            choices.reject_args(resolved, args, choices.deployed(resolved, choices.sized(args, given or 1)).why_not)
            return
        if wanted and wanted > largest:
            largest = min(choices.largest_batch(resolved, args, cautious=False) * ranks, bound)
        usual = {batch for batch in defaults.GOAL_BATCHES if least <= batch < largest}
        for batch in (min(wanted, largest),) if wanted else sorted(usual | {largest}):
            deployment = choices.deployed(resolved, choices.sized(args, given or ceil(batch / ranks)))
            estimate, more = at_concurrency(deployment, objective.load, batch), (wanted or batch) / batch
            queued = replace(estimate, concurrency=wanted or batch, e2el_s=estimate.e2el_s * more)  # behind ``batch``
            yield Candidate(resolved, deployment, queued)
    except PlannerError as error:
        choices.reject_args(resolved, args, error.cause)


def _replayed(choices: Choices, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    most, each = defaults.COARSE_FINALISTS if choices.space.coarse else defaults.FINALISTS
    engines = dict.fromkeys((bool(candidate.config.drafted_tok), candidate.engine) for candidate in candidates)
    of_both = ([engine for drafts, engine in engines if drafts is wanted][:most] for wanted in (False, True))
    left = dict.fromkeys(chain.from_iterable(of_both), each)
    for candidate in candidates:
        if left.get(candidate.engine):
            left[candidate.engine] -= 1
            yield with_figures(choices.objective, candidate, ranked=True)
        else:
            yield candidate


def _runners_up(objective: Objective, candidates: Sequence[Candidate]) -> Iterator[Rejected]:
    """Yield the best of each engine that lost, against the winner."""
    merit = Merit.among(candidates, objective.goal)
    best_of = {candidate.engine: candidate for candidate in reversed(candidates)}
    for candidate in candidates[1:]:
        if best_of[candidate.engine] is candidate:
            behind = merit.odds(objective.load, candidates[0], candidate)
            reason = f"{merit.words(candidate)} against {merit.words(candidates[0])}, {merit.odds_words(behind)}"
            reason += merit.tie_words(candidates[0], candidate)
            yield Rejected.of(candidate.resolved, candidate.deployment, reason, behind)


WAYS_OUT = 3  #: that are named where nothing fits


@dataclass(frozen=True)
class Search:
    """The best engines of a space for an objective: a goal, or targets under a load at the least cost.

    >>> space = Space((Serving("meta-llama/Llama-3.1-8B-Instruct", "h100"),))
    >>> ranking, = Search(space, Objective("min-latency", Load.closed_loop(8, 1024, 128))).run()
    >>> ranking.best.config.tensor_parallel_size
    8
    """

    space: Space
    objective: Objective

    def run(self) -> tuple[Ranking, ...]:
        """Rank the candidates of each GPU, in the order of the space. Raises InputError for loads that none replays."""
        self._check_offloading()
        servings = progress.each(self.space.servings, lambda serving: serving.profile.id)
        return tuple(self._on_one_card(serving, self._over_nodes(serving)) for serving in servings)

    def of_one(self, deployment: Deployment) -> Ranking:
        """Rank one engine alone, at the concurrency of the objective; without one, with all its places taken."""
        load, config = self.objective.load, deployment.config
        figures = at_concurrency(deployment, load, load.max_concurrency or config.max_num_seqs)
        return Ranking(deployment.profile, config.version, (Candidate(self.space.model, deployment, figures),), ())

    def plan(self, ranking: Ranking, candidate: Candidate | None = None, **other: Any) -> Plan:
        """Return the plan of ``candidate``, by default the best. ``other`` as for ``assemble``."""
        candidate = candidate or ranking.best
        if candidate is None:
            raise ValueError("the ranking has no candidate")
        return assemble(self.space, self.objective, ranking, candidate, **other)

    def _on(self, serving: Serving, nodes: tuple[int, ...] = (1,)) -> Ranking:
        rank = rank_by_targets if self.objective.targets else rank_by_goal
        choices = Choices(self.space, self.objective, serving, nodes)
        ranking = rank(choices)
        if ranking.candidates or not choices.passed_over:
            return ranking
        fewer_bits = rank(Choices(self.space, self.objective, serving, nodes, native=False))
        if ranking.closest and (best := fewer_bits.best) and best.servers > 1:
            return ranking  # wider formats fit: a fleet in integers would rest on intervals alone
        planned = {one.resolved.resolved for one in fewer_bits.candidates}
        rejected = (*fewer_bits.rejected, *(one for one in ranking.rejected if one.model not in planned))
        return replace(fewer_bits, rejected=tuple(dict.fromkeys(rejected))) if planned else ranking

    def _over_nodes(self, serving: Serving) -> Ranking:
        """Rank servers of one node; of two as well where one holds few requests; of the fewest that hold one."""
        profile, space = serving.profile, self.space
        # partitions and processors stay on their node, and so does a search over many types of GPUs
        spreads = profile.partition is None and profile.platform != "cpu" and not space.coarse
        # nodes of the asked size decide what crosses the network
        in_nodes = serving.changed(profile=profile.with_node(space.node_size(profile))) if spreads else serving
        if space.nodes:
            ranking = self._on(in_nodes, tuple(range(1, space.nodes + 1)))
            fits = ranking.best or ranking.closest
            return ranking if fits else replace(ranking, profile=profile, **self._ways_out(serving))
        ranking, joined = self._on(serving), profile.joins_nodes
        if nearest := ranking.best or ranking.closest:
            taken, node, goal = nearest.config.num_gpus, space.node_size(profile), self.objective.goal
            single = profile.interconnect.kind == "pcie" and not self.objective.targets  # cards are bought one by one
            if single and goal == "balanced" and space.gpus_per_node is None and taken < node:
                # layouts that the user may not have do not decide the batch
                return replace(self, space=replace(space, gpus_per_node=taken))._over_nodes(serving)
            few = nearest.deployment.requests_of(self.objective.load) < defaults.FEW_HELD
            return self._on(in_nodes, (1, 2)) if spreads and joined and taken == node and few else ranking
        for nodes in range(2, defaults.MOST_NODES + 1) if spreads and joined else ():
            spread = self._on(in_nodes, (nodes,))
            if spread.candidates or spread.closest:
                return replace(spread, rejected=(*spread.rejected, *ranking.rejected))
        rejected = list(ranking.rejected)
        if spreads and not joined and space.node_size(profile) == profile.gpus_per_node:
            reason = "their network is unknown: --network-gb-per-s plans across nodes"
            rejected.append(Rejected(profile.id, space.model.resolved, reason=reason))
        return replace(ranking, rejected=tuple(rejected), **self._ways_out(serving))

    def _on_one_card(self, serving: Serving, ranking: Ranking) -> Ranking:
        """Add the 4-bit checkpoint that one card holds, where the best plan takes several for more bits."""
        best, cards = ranking.best, serving.profile.interconnect.kind == "pcie" and not self.space.coarse
        if not best or not cards or best.config.num_gpus == 1 or "4" in best.config.weight_dtype:
            return ranking
        way = None if self.space.weight_dtype else of_four_bits(serving.changed(max_model_len=self._held_len))
        return replace(ranking, ways_out=(way,)) if way else ranking

    @property
    def _held_len(self) -> int:
        return self.objective.load.held_len(caching=self.space.args.enable_prefix_caching is not False)

    def _ways_out(self, serving: Serving) -> dict[str, Any]:
        """Changes after which one request fits, from the largest tensor-parallel size of a node; or a hint."""
        node = 1 if serving.profile.partition else self.space.node_size(serving.profile)
        for size in (size for size in (8, 4, 2, 1) if size <= node):
            try:
                fit = serving.changed(tensor_parallel_size=size, max_model_len=self._held_len).fit()
                ways = sorted(fit.options, key=lambda way: "max_model_len" in way.settings)  # shorter requests last
                return {"ways_out": tuple(ways[:WAYS_OUT])}
            except PlannerError as error:
                hint = error.hint
        return {"hint": hint}

    def remedy(self, rankings: Sequence[Ranking]) -> dict[str, Any] | None:
        """Return an option with which the closest GPU has a plan, and its GPUs; None where any has one without.

        Where no plan meets the targets an idle server misses one: another router, or larger servers, may still help.
        Without targets: the throughput of two nodes, where the KV cache of one limits it."""
        if not self.objective.targets:
            most = max((one.best.tok_per_s_per_gpu for one in rankings if one.best), default=0.0)
            offers = (self._two_nodes(*pair, most) for pair in zip(self.space.servings, rankings, strict=True))
            return next(filter(None, offers), None)
        near = [one.closest for one in rankings if one.closest and one.closest.load]
        if not near or self.space.coarse or any(one.candidates for one in rankings):
            return None
        closest = min(near, key=lambda one: one.load.excess if one.load else inf)
        profile, objective, worst = closest.profile, self.objective, closest.load and closest.load.worst
        space = replace(self.space, servings=tuple(s for s in self.space.servings if s.profile.id == profile.id))
        if objective.load.reused and objective.targets and objective.router != "prefix-aware":
            option, targets = "--router prefix-aware", replace(objective.targets, router="prefix-aware")
            objective = replace(objective, targets=targets)
        elif profile.joins_nodes and not objective.load.reused and worst and worst.slo.metric in ("ttft", "e2el"):
            if space.nodes or space.gpus_per_node or space.stock is not None:
                return None
            option, space = "--nodes", replace(space, nodes=defaults.REMEDY_NODES)
        else:
            return None
        if (best := replace(self, space=space, objective=objective).run()[0].best) is None:
            return None
        each = best.config.num_gpus
        option += f" {each // self.space.node_size(profile)}" * (option == "--nodes")
        size = {"num_gpus": (best.servers + objective.spares) * each}
        rungs = Servers(space, objective, best).by_confidence
        even = next((one.total_gpus for one in rungs if one.confidence == defaults.LADDER[0]), None)
        return {"option": option, "gpu": profile.id, **size, "gpus_at_even_odds": even}

    def _two_nodes(self, serving: Serving, ranking: Ranking, most: float) -> dict[str, Any] | None:
        """Return what ``--nodes 2`` gives for ``max-throughput`` where the KV cache of a node holds few requests.

        None unless a GPU gives more tokens/s than ``most``, those of the best answer."""
        profile, space, best = serving.profile, self.space, ranking.best
        if self.objective.goal != "max-throughput" or space.nodes or space.coarse or not (best and profile.joins_nodes):
            return None
        held = int(best.deployment.requests_of(self.objective.load, pessimistic=True)) * best.config.data_parallel_size
        if best.config.num_gpus != space.node_size(profile) or held >= defaults.FEW_FOR_THROUGHPUT:
            return None
        (spread,) = replace(self, space=replace(space, servings=(serving,), nodes=2)).run()
        if spread.best is None or spread.best.prediction is None or spread.best.config.num_gpus <= best.config.num_gpus:
            return None
        if spread.best.tok_per_s_per_gpu <= most:
            return None
        gpus, rates = spread.best.config.num_gpus, spread.best.prediction.rates
        paid = Paid.of(profile, gpus, gpus * rates["output_throughput_per_gpu"], space.prices)
        size = {"option": "--nodes 2", "gpu": profile.id, "num_gpus": gpus, "requests_held": held}
        cost = {"usd_per_million_output_tokens": paid.usd_per_million_output_tokens}
        return size | {"output_throughput_per_gpu": rates["output_throughput_per_gpu"]} | cost

    def _check_offloading(self) -> None:
        """Raise InputError where no GPU replays what ``--kv-offloading-size`` keeps of prompts that share prefixes."""
        refusals, wanted = list[InputError](), self.space.args.kv_offloading_size and self.objective.load.reused
        for serving in self.space.servings if wanted and self.objective.targets else ():
            choices = Choices(self.space, self.objective, serving)
            if args := next(iter(choices.engines(self.space.model)), None):
                try:
                    choices.deployed(self.space.model, args).check_host_blocks()
                    return
                except InputError as error:  # other layouts are refused for the same reason, or for one of their own
                    refusals.append(error)
        if refusals:
            raise refusals[0]
