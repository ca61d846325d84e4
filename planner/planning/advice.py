"""Advice of published documents that an engine does not follow, each with the predicted difference."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from re import search
from typing import Any

from planner.engine import EngineConfig, flag_status
from planner.errors import PlannerError
from planner.model import resolve_model
from planner.planning.defaults import PROMPTS_PER_SLOT, Bench, Goal
from planner.planning.deployment import Deployment
from planner.planning.predict import Prediction
from planner.resources import package_dir, tables_of
from planner.workload import Load

#: The option of V0 that the last kind of advice is about, and its default.
TO_CAPTURE, CAPTURED_LEN = "--max-seq-len-to-capture", 8192


@dataclass(frozen=True)
class Advised:
    """An engine under a load, beside what documents advise for its GPU and model."""

    deployment: Deployment
    model: str  #: the checkpoint
    load: Load
    goal: Goal | None  #: None: targets
    bench: Bench = "serve"
    options: Mapping[str, str] | None = None  #: of the line, as they are given; None: of a plan
    known: tuple[float, float] | None = None  #: output tokens/s per GPU and mean E2EL in seconds, if predicted before

    def contradicted(self) -> Iterator[str]:
        """Yield one line for each advice that the engine does not follow."""
        offline = self.bench == "throughput"
        goal = "max-throughput" if offline else self.goal
        for one in advice():
            asked = goal in one.get("goals", (goal,)) and one.get("offline", offline) == offline
            if asked and self.deployment.profile.id in one["gpus"] and search(one["models"], self.model):
                try:
                    here, difference = self._other(one)
                except PlannerError:  # a setting that this engine does not have, or a request that it does not hold
                    continue
                if here:
                    advised = f"{one['document']} advises {one['text']}; here {here}"
                    yield f"{advised}; predicted with the advice: {difference}"

    def _other(self, entry: Mapping[str, Any]) -> tuple[str, str]:
        """The settings that differ, and the predicted difference; empty where none does."""
        config, load = self.deployment.config, self.load
        match entry.get("kind"):
            case "copies" if config.num_gpus == config.tensor_parallel_size > 1:
                share = load.share_of(config.num_gpus, most=ceil(load.num_prompts / config.num_gpus))
                one = self.deployment.with_settings(tensor_parallel_size=1, enable_expert_parallel=False)
                spread = f"{config.num_gpus} servers on the same GPUs, {self._difference(one, share)}"
                return (f"TP {config.num_gpus}", spread) if one.fits else ("", "")
            case "held" if "--max-num-seqs" in (self.options or ()):
                served, full = self.deployment.requests_of(load), _in_flight(load, config.max_running)
                held = int(served)
                if 0 < held < min(config.max_num_seqs, full.num_prompts):
                    fewer = self.deployment.with_settings(max_num_seqs=held)
                    return f"{config.max_num_seqs:,} and {held:,}", self._difference(fewer, full, self.deployment)
            case "multiple" if over := load.num_prompts % config.max_num_seqs:
                full = replace(load, num_prompts=load.num_prompts - over + config.max_num_seqs)
                return f"{load.num_prompts:,} and {config.max_num_seqs:,}", self._difference(self.deployment, full)
            case "graphs" if self.options is not None and captures_by_context(config):
                captured = int(self.options.get(TO_CAPTURE, CAPTURED_LEN))
                if captured < min(config.max_model_len, load.longest_len) and not config.enforce_eager:
                    # a bound: no graphs beyond that length alone
                    eager = self.deployment.with_settings(enforce_eager=True)
                    return f"{captured:,}", f"{self._difference(self.deployment, load, eager)} at most"
            case None:
                return self._settings(entry)
        return "", ""

    def _settings(self, entry: Mapping[str, Any]) -> tuple[str, str]:
        config, load = self.deployment.config, self.load
        changes = {
            name: values[0] for name, values in entry.get("settings", {}).items() if getattr(config, name) not in values
        }
        changes |= {name: most for name, most in entry.get("at_most", {}).items() if getattr(config, name) > most}
        if not changes or ("enable_prefix_caching" in changes and load.reused):
            return "", ""
        here = ", ".join(f"{name} {getattr(config, name)}" for name in changes)
        other = self.deployment.with_settings(**changes)
        if "checkpoint" in entry:
            other = replace(other, model=resolve_model(entry["checkpoint"], network=False).model, checkpoint=None)
        if "max_num_seqs" in changes:
            load = _in_flight(load, other.config.max_running)
        return here, self._difference(other, load)

    def _difference(self, other: Deployment, load: Load, before: Deployment | None = None) -> str:
        """The figures of ``other`` beside the engine's own, or those of ``before`` under its load."""
        if not other.fits:
            return "does not fit"
        own = _figures(before, load, self.bench) if before else self._figures
        advised = _figures(other, load, self.bench)
        rate, e2el = (round(after / once - 1, 2) + 0.0 for once, after in zip(own, advised, strict=True))
        latency = "" if self.bench == "throughput" else f", {e2el:+.0%} E2EL"  # offline all prompts come at once
        return f"{rate:+.0%} tokens/s per GPU{latency}" if rate or e2el else "the same speed"

    @cached_property
    def _figures(self) -> tuple[float, float]:
        return self.known or _figures(self.deployment, self.load, self.bench)


def _in_flight(load: Load, concurrency: int) -> Load:
    """A closed loop of other size; any other load as it is."""
    if load.max_concurrency is None:
        return load
    return replace(load, max_concurrency=concurrency, num_prompts=PROMPTS_PER_SLOT * concurrency)


def _figures(deployment: Deployment, load: Load, bench: Bench) -> tuple[float, float]:
    """Output tokens/s per GPU, and the mean E2EL in seconds."""
    replay = Prediction.of(deployment, load, bench=bench).replay
    return replay.output_len.sum() / replay.duration_s / deployment.config.num_gpus, replay.e2el_s.mean()


def captures_by_context(config: EngineConfig) -> bool:
    """True for an engine that captures no graphs for contexts above ``--max-seq-len-to-capture``: V0."""
    longer = config.engine == "V0" and config.max_model_len > CAPTURED_LEN
    return longer and bool(flag_status(config.version, TO_CAPTURE))


def advice() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tables_of(package_dir("planning") / "advice.toml")["advice"]
    return entries
