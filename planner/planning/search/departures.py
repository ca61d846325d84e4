"""Departures of a plan from the recipe of its model: words left out, set otherwise or added, each with the reason."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner import engine
from planner.errors import IllegalPlanError, brief
from planner.planning.advice import TO_CAPTURE, captures_by_context
from planner.planning.deployment import Deployment
from planner.planning.search.comparison import ComparedPoint, Comparison
from planner.planning.search.space import Candidate, Merit, Objective, Ranking, Space

_LAYOUT = engine.tagged("axes")
#: Settings that are named where only the plan has them; a recipe without a TP size leaves it to the GPU.
_ADDED = (*_LAYOUT[1:], "kv_cache_dtype", "speculative_config", "block_size")


class Departures:
    """The recipe of the model beside the engine that a search chose; ``why``: the reason for settings it left alone."""

    def __init__(self, space: Space, objective: Objective, ranking: Ranking, winner: Candidate, why: str = "") -> None:
        self.space, self.objective, self.ranking, self.winner, self.why = space, objective, ranking, winner, why
        self.served, self.version, profile = winner.resolved.resolved, winner.config.version, winner.profile
        options, self.env = engine.stated_words((self.served, space.model.resolved), profile)
        argv = ["vllm", "serve", self.served, *options]
        self.line = engine.read_line(argv, self.version, env=self.env, platform=profile.platform)
        self.refused = {problem.word.split()[0]: problem.cause for problem in self.line.problems}

    def of(self) -> Iterator[str]:
        """Yield ``--option value, not value (reason)`` for its line; nothing for a model without a recipe."""
        config, recipe = self.winner.config, recipe_of(self.winner.deployment)
        argv, env = engine.serve_argv(config, self.served, extra=recipe.flags), recipe.env | config.env
        stated, planned = self.line.options, engine.read_line(argv, self.version).options
        if stated and not engine.stated_words((self.served,), self.winner.profile)[0]:
            yield f"model {self.served}, not {self.space.model.resolved} (the recipe has no such checkpoint)"
        named = {engine.flag_of(name): getattr(config, name) for name in engine.tagged("logged")}
        has = {**{flag: "" if value is True else str(value) for flag, value in named.items() if value}, **planned}
        for option, value in stated.items():
            if option not in has and value != "auto":
                yield f"without {_word(option, value)} ({self._why(option)})"
            elif not _covers(has.get(option, "auto"), value):
                yield f"{_word(option, has[option])}, not {brief(value)} ({self._why(option)})"
        for option in map(engine.flag_of, _ADDED if stated else ()):
            if option not in stated and planned.get(option, "auto") != "auto":
                yield f"adds {_word(option, planned[option])} ({self._why(option)})"
        missing = {name: value for name, value in self.env.items() if env.get(name) != value}
        yield from (f"without {name}={value} ({self._why(name)})" for name, value in missing.items())

    def _why(self, word: str) -> str:
        name, config = word.removeprefix("--").replace("-", "_"), self.winner.config
        if config.tensor_parallel_size == 1 and word in self.env and word not in engine.without_sums(self.env):
            return "TP 1 sums nothing over GPUs"
        if getattr(self.space.args, name, None) != getattr(engine.EngineArgs(), name, None):
            return "as asked"
        if name == "enable_expert_parallel" and config.num_gpus == 1:
            return "one GPU holds all experts"
        model, profile = self.winner.resolved.model, self.winner.profile
        mtp = next(engine.searched_drafts(model, self.served, self.version, profile), None)
        if mtp and name == "speculative_config" and '"method":"mtp"' in self.line.options.get(word, ""):
            wanted = {**config.settings("axes"), name: mtp}
            return f"{mtp.words}: {_result(self.objective, self.ranking, self.winner, wanted) or 'not searched'}"
        if name == "kv_cache_dtype":
            wanted = {**config.settings("axes"), name: self.line.args.kv_cache_dtype}
        elif name in _LAYOUT:
            wanted, sized = self.line.args.settings("axes"), engine.flag_of(_LAYOUT[0]) in self.line.options
            wanted[_LAYOUT[0]] = wanted[_LAYOUT[0]] if sized else config.num_gpus // self.line.args.num_gpus
        else:
            needed = engine.recipe_release(self.winner.deployment.model)
            stated = word in self.line.options or word in self.env
            if word in self.env and self.version.release < needed:
                return f"the recipe is for vLLM {engine.release_text(needed)} and later"
            return self.refused.get(word) or self.why or engine.reason_beside_recipe(word, added=not stated)
        return f"the recipe's: {_result(self.objective, self.ranking, self.winner, wanted) or self._unsearched(wanted)}"

    def _unsearched(self, wanted: Mapping[str, Any]) -> str:
        serving = next(one for one in self.space.servings if one.profile.id == self.winner.profile.id)
        try:
            _ = serving.changed(resolved=self.winner.resolved, args=replace(self.space.args, **wanted)).deployment
        except IllegalPlanError as error:
            return error.cause
        return "not searched"


def departures_in(comparison: Comparison) -> Iterator[tuple[ComparedPoint, tuple[str, ...]]]:
    """Yield each point that is compared, and where its engine departs from the recipe, each with the reason."""
    for point in comparison.points:
        serving, served = comparison.question.serving.changed(profile=point.rented.profile), point.candidate
        ranking = Ranking(serving.profile, serving.version, point.tried, ())
        asked = Space((serving,)), Objective("min-latency", point.workload)
        yield point, tuple(Departures(*asked, ranking, served, "vLLM's default").of())


def beside_recipe(departures: Sequence[str]) -> list[str]:
    """Return the line that lists the departures, those of one kind and reason together; nothing without any."""
    alike: dict[tuple[str, str], str] = {}
    for words, _, reason in (one.partition(" (") for one in departures):
        key = kind, _ = words.partition(" ")[0], reason
        alike[key] = f"{alike[key]} and {words.removeprefix(f'{kind} ')}" if key in alike else words
    lines = [f"{words} ({reason}" for (_, reason), words in alike.items()]
    return [f"differs from the model's vLLM recipe: {'; '.join(lines)}"] if lines else []


def _result(objective: Objective, ranking: Ranking, winner: Candidate, wanted: Mapping[str, Any]) -> str:
    """Return what the best settings with ``wanted`` come to; empty if not searched. KV dtypes: as asked or resolved."""
    resolved, served = {**wanted}, winner.resolved.resolved
    if wanted.get("kv_cache_dtype") == "auto":
        resolved["kv_cache_dtype"] = winner.config.dtype

    def fits(settings: Any) -> bool:
        return {name: getattr(settings, name) for name in wanted} in (wanted, resolved)

    same = next((one for one in ranking.candidates if one.resolved.resolved == served and fits(one.config)), None)
    lost = (one.reason for one in ranking.rejected if one.model == served and fits(one))
    result = re.sub(r" \([^)]*\)", "", next(lost, ""))
    if same and same.load:
        result = f"{winner.profile.counted(same.num_gpus)}, against {winner.profile.counted(winner.num_gpus)}"
    elif same:
        merit = Merit.among(ranking.candidates, objective.goal)
        result = f"{merit.words(same)} against {merit.words(winner)}"
    as_many = re.fullmatch(r"(\d+ \w+), against \1", result)
    bounded = re.sub(r"^(.* per GPU) at best", r"at most \1", re.sub(r"^(\d+ \w+) at best", r"at least \1", result))
    return f"{as_many[1]} as well" if as_many else bounded


def _covers(planned: Any, stated: Any) -> bool:
    """True if a plan's value is the recipe's; of JSON, if it has the keys that the recipe states."""
    if isinstance(planned, str) and isinstance(stated, str) and planned[:1] == stated[:1] == "{":
        planned, stated = json.loads(planned), engine.without_sums(json.loads(stated))
    if isinstance(planned, Mapping) and isinstance(stated, Mapping):
        return all(_covers(planned.get(key), value) for key, value in stated.items())
    return bool(planned == stated)


def _word(option: str, value: str) -> str:
    return f"{option} {brief(value)}".rstrip()


def recipe_of(deployment: Deployment) -> engine.Recipe:
    config = deployment.config
    model, size = deployment.model, config.tensor_parallel_size
    cuts = engine.cuts_expert_blocks(model, engine.Layout.of(config))
    recipe = engine.recipe_for(
        model, deployment.profile, config.version, engine=config.engine, tensor_parallel_size=size, cuts_blocks=cuts
    )
    if captures_by_context(config):
        recipe.flags[TO_CAPTURE.removeprefix("--")] = config.max_model_len
    return recipe
