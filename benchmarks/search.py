"""The search beside trying everything: 30 cases, each engine of its space through ``predict``.

    python benchmarks/search.py [--first N] [--processes N] [--write FILE.md]

Each case is a model, a type of GPU and a load with targets. *Everything* is every checkpoint, layout, KV dtype, token
budget and batch below; more budgets and batches than the search tries. An engine is dropped where it breaks the
targets at the best rate per GPU so far; else its largest rate is found by bisection over whole predictions, queue
included. What is certain is not replayed to its end: a rate above that of full batches or above what the decode steps
alone allow (``decode_bound.py`` has the proof), a target that one request alone breaks or that is broken by more
than any later request can mend, and settings which no step of an engine that broke the targets came near. Then::

    found    requests/s per GPU of what ``recommend`` answers, with its confidence
    best     the same of the best of everything
    lost     1 - found / best; loads are told apart by 3 %

The closed form of an engine, and a margin on it, is what the search takes for a bound: the page says what the best
engines carry over theirs.
"""

import argparse
import datetime
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from decode_bound import rate_bound
from planner.engine.settings import EngineArgs, EngineConfig
from planner.errors import PlannerError
from planner.hardware.profiles import load_profile
from planner.model.resolve import ResolvedModel, resolve_model
from planner.planning import defaults
from planner.planning.capacity import Steady, against, at_load, closed_form_load, measure
from planner.planning.defaults import TOLERANCE
from planner.planning.deployment import Deployment
from planner.planning.predict import ServedLoad
from planner.planning.search.by_targets import missed_for_certain
from planner.planning.search.search import Search
from planner.planning.search.space import Choices, Objective, Space
from planner.planning.serving import Serving
from planner.simulator.record import Replay
from planner.workload.load import Load
from planner.workload.targets import Targets, parse_slos

BUDGETS = (None, 512, 1024, 2048, 4096, 16384)
BATCHES = (32, 64, 128, 256)
MODELS = {  # with the GPUs that it is tried on
    "meta-llama/Llama-3.1-8B-Instruct": ("l40s", "h100", "mi300x", "rtx-4090"),
    "meta-llama/Llama-3.3-70B-Instruct": ("h200", "b200", "mi300x"),
    "Qwen/Qwen3-30B-A3B": ("h100", "l40s"),
    "openai/gpt-oss-120b": ("h100", "mi355x"),
    "Qwen/Qwen3-235B-A22B": ("h200", "mi300x"),
    "deepseek-ai/DeepSeek-V3": ("b200", "h200"),
}
LOADS = {  # tokens in, tokens out, limits in ms
    "chat": (1024, 1024, {"ttft": 2000.0, "tpot": 50.0}),
    "long prompts": (4000, 500, {"ttft": 3000.0, "tpot": 60.0}),
}


@dataclass(frozen=True)
class Case:
    """What is asked."""

    model: str
    gpu: str
    load: str

    @property
    def search(self) -> Search:
        """The search for the most requests per second and GPU under the targets."""
        input_len, output_len, limits_ms = LOADS[self.load]
        space = Space((Serving.of(resolve_model(self.model), load_profile(self.gpu)),))
        return Search(space, Objective("balanced", Load(input_len, output_len), Targets(parse_slos(limits_ms))))


@dataclass
class Outcome:
    """Requests/s per GPU, and what the best carries over its closed form."""

    case: Case
    found: float = 0.0
    best: float = 0.0
    engine: str = "nothing"
    tried: int = 0
    over: float = 0.0
    search_s: float = 0.0

    @property
    def lost(self) -> float:
        """Share of the best that the search does not find."""
        return max(1 - self.found / self.best, 0.0) if self.best else 0.0


@dataclass(frozen=True)
class Everything:
    """All engines of a case, each held against the best so far."""

    search: Search
    result: Outcome

    @property
    def objective(self) -> Objective:
        """The targets and the load of the case."""
        return self.search.objective

    def try_all(self) -> None:
        """Every family: checkpoint, layout, KV dtype."""
        choices = Choices(self.search.space, self.objective, self.search.space.servings[0])
        for resolved in choices.checkpoints():
            for args in choices.engines(resolved):
                self.try_family(choices, resolved, args)

    def try_family(self, choices: Choices, resolved: ResolvedModel, args: EngineArgs) -> None:
        """Token budgets x batches."""
        failed: list[tuple[EngineConfig, Replay, float]] = []
        for budget in BUDGETS:
            given = replace(args, max_num_batched_tokens=budget or args.max_num_batched_tokens)
            try:
                largest = choices.largest_batch(resolved, given)
                for batch in sorted({largest, *(b for b in BATCHES if b < largest)}, reverse=True):
                    if 1 <= batch <= (given.max_num_batched_tokens or batch):
                        self.challenge(choices.deployed(resolved, replace(given, max_num_seqs=batch)), failed)
            except PlannerError:
                continue

    def challenge(self, engine: Deployment, failed: list[tuple[EngineConfig, Replay, float]]) -> None:
        """One engine, at the best rate per GPU so far and a little more."""
        result, config = self.result, engine.config
        result.tried += 1
        rate = max(result.best * config.num_gpus * (1 + TOLERANCE), 1e-3)
        if any(value <= rate and alike(config, other, replay) for other, replay, value in failed):
            return
        if missed_for_certain(engine, self.objective):
            return
        if rate_bound(engine, self.objective, inf) < rate:
            return
        load = self.kept(engine, rate)
        if load is None or not load.meets:
            if load:
                failed.append((config, load.replay, rate))
            return
        low, high = rate, rate * 1.5
        while self.meets(engine, high):
            low, high = high, high * 1.5
        while high > low * (1 + TOLERANCE):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.meets(engine, middle) else (low, middle)
        result.best, result.over = low / config.num_gpus, low / self.closed_form(engine)
        result.engine = (
            f"{engine.model.id.split('/')[-1]} {config.weight_dtype}, KV {config.kv_cache_dtype}, "
            f"TP {config.tensor_parallel_size} PP {config.pipeline_parallel_size} DP {config.data_parallel_size}"
            f"{' EP' if config.enable_expert_parallel else ''}, {config.max_num_seqs} x {config.max_num_batched_tokens}"
        )

    def closed_form(self, engine: Deployment) -> float:
        """Requests/s of one server, without percentiles and queues."""
        wanted = self.objective
        return closed_form_load(engine, wanted.load, wanted.slos, "rate", confidence=wanted.confidence)

    def meets(self, engine: Deployment, rate: float) -> bool:
        """Whether every target is kept with the confidence."""
        load = self.kept(engine, rate)
        return load is not None and load.meets

    def kept(self, engine: Deployment, rate: float) -> ServedLoad | None:
        """The load as ``predict`` has it, or as far as it is certain that a target is broken; None for too much."""
        targets, load = self.objective, self.objective.load
        if rate > Steady.of(engine, load).rate(targets.confidence):
            return None
        sent = at_load(engine, load, targets.slos, "rate", rate)
        first = measure(engine, sent, targets.slos, confidence=targets.confidence, whole=False)
        if not first.meets and not first.whole:
            return first
        return against(first.prediction, targets.slos, targets.confidence)


def alike(one: EngineConfig, two: EngineConfig, replay: Replay) -> bool:
    """Whether no step of ``replay``, of one of two engines, came near a limit in which they differ."""
    return (
        replay.most_seqs < min(one.max_num_seqs, two.max_num_seqs)
        and replay.most_step_tok < min(one.max_num_batched_tokens, two.max_num_batched_tokens)
        and replay.kv_cache_usage_peak < 0.9
    )


def outcome(case: Case) -> Outcome:
    """The search beside everything."""
    search, result = case.search, Outcome(case)
    start_s = time.process_time()
    (ranking,) = search.run()
    result.search_s = time.process_time() - start_s
    everything, best = Everything(search, result), ranking.best
    if best and best.load:
        result.found = result.best = best.load.value / best.config.num_gpus
        result.over = best.load.value / everything.closed_form(best.deployment)
    everything.try_all()
    return result


def cases() -> list[Case]:
    """Thirty of them, those of models with few layouts first."""
    return [Case(model, gpu, load) for model, gpus in MODELS.items() for load in LOADS for gpu in gpus]


def lines(outcomes: list[Outcome]) -> Iterator[str]:
    """The page."""
    yield "# The search beside trying everything\n"
    lost = [one.lost for one in outcomes]
    yield (
        f"{datetime.date.today()}; `python benchmarks/search.py`. {len(outcomes)} cases, "
        f"{sum(one.tried for one in outcomes):,} engines. The answer is the best of all, to the {TOLERANCE:.0%} by "
        f"which loads are told apart, in {sum(share <= TOLERANCE for share in lost)} cases; most is lost in the worst: "
        f"{max(lost):.1%}; mean {sum(lost) / len(lost):.1%}. Requests/s per GPU with "
        f"{defaults.CONFIDENCE:.0%} confidence. The search passes over what cannot win with "
        f"{defaults.OPTIMISM:g} times its closed form; "
        f"the best carry {max(one.over for one in outcomes):.2f} times theirs at most.\n"
    )
    yield "| model | GPU | load | engines | found | best | lost | the better engine | CPU s of the search |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | ---: |"
    for one in outcomes:
        case = one.case
        better = one.engine if one.lost > 0 else ""
        yield (
            f"| {case.model} | {case.gpu} | {case.load} | {one.tried} | {one.found:.3f} | {one.best:.3f} | "
            f"{one.lost:.1%} | {better} | {one.search_s:.1f} |"
        )
    for name, (input_len, output_len, limits_ms) in LOADS.items():
        limits = ", ".join(f"p99 {metric.upper()} {limit:g} ms" for metric, limit in limits_ms.items())
        yield f"\n{name}: {input_len:,} tokens in, {output_len:,} out; {limits}."


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, help="of the cases")
    parser.add_argument("--processes", type=int, default=1, help="that try cases side by side")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    arguments = parser.parse_args()
    outcomes = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for one in pool.map(outcome, cases()[: arguments.first]):
            outcomes.append(one)
            text = "\n".join(lines(outcomes)) + "\n"
            if arguments.write:  # after each case: it takes an hour
                arguments.write.write_text(text, encoding="utf-8")
            print(text.splitlines()[-3 - 2 * (len(LOADS) - 1)], flush=True)


if __name__ == "__main__":
    main()
