"""Scale each term of a step by 1.2 and 0.8, and show which test notices.

    python tests/timing/mutate.py [WORD]      only mutations whose name has WORD in it

Exit status 1 where a mutation survives. Each one runs in a process of its own, against the tests that ``SUITE`` names.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from physics_cases import engine, gpu, llama_8b, mixer_model, mla_model, moe_model, quantity  # noqa: E402

from planner.engine.settings import LoraConfig  # noqa: E402
from planner.hardware.profiles import load_constants  # noqa: E402
from planner.model.architecture import CompressedAttention, SparseIndexer, StateMixer  # noqa: E402
from planner.timing import step  # noqa: E402
from planner.timing.roofline import Part, Term, TimedTerm  # noqa: E402

SUITE = [str(HERE / f"test_{name}.py") for name in ("terms", "collectives", "speculation", "efficiency")]
OF_OTHER_ROOMS = {"known_to_run"}
Mutation = Callable[[float], None]


def terms() -> Iterator[Term]:
    """Every term that the tests know, once."""
    links = {"network_bandwidth": quantity(25, "GB/s"), "host_bandwidth": quantity(64, "GB/s")}
    profile = gpu().model_copy(update={"interconnect": gpu().interconnect.model_copy(update=links)})
    compressed = CompressedAttention(128, 512, window=128, compress_ratio=4, indexer=SparseIndexer(64, 128, 512))
    lora = replace(engine(8, pipeline_parallel_size=4), lora=LoraConfig(4, 16, 4), cpu_offload_gb=4.0)
    shared = engine(2, data_parallel_size=4, pipeline_parallel_size=2, enable_expert_parallel=True)
    cases = [
        (llama_8b(), lora), (moe_model(), shared), (moe_model(), replace(engine(), lora=LoraConfig(4, 16, 4))),
        (mla_model(SparseIndexer(64, 128, 2048)), engine()), (mixer_model(compressed), engine()),
        (mixer_model(StateMixer("gdn", conv_elements=1000, recurrent_elements=64_000, num_heads=32)), engine()),
    ]  # fmt: skip
    known: dict[str, Term] = {}
    for model, config in cases:
        known |= {term.name: term for term in step.StepModel(model, profile, config).terms}
    yield from known.values()


def scaled_term(name: str, part: Part) -> Mutation:
    """One part of one term."""

    def mutate(factor: float) -> None:
        of = TimedTerm.of

        def scaled(term: Term, *rest: Any) -> TimedTerm:
            costs = (replace(c, seconds=c.seconds * (factor if c.part is part else 1)) for c in term.costs)
            return of(replace(term, costs=tuple(costs)) if term.name == name else term, *rest)

        TimedTerm.of = scaled  # type: ignore[method-assign,assignment]

    return mutate


def scaled_constant(name: str) -> Mutation:
    """One entry of ``constants.toml``."""

    def mutate(factor: float) -> None:
        known = load_constants()
        known[name] = known[name].model_copy(update={"value": known[name].value * factor})

    return mutate


def scaled_result(owner: Any, name: str) -> Mutation:
    """What one function or method returns."""

    def mutate(factor: float) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *given, **named: original(*given, **named) * factor)

    return mutate


def mutations() -> Iterator[tuple[str, Mutation]]:
    """All of them by name."""
    for term in terms():
        for part in Part:
            if any(cost.part is part and cost.seconds for cost in term.costs):
                yield f"{term.name}: {part.name.lower()}", scaled_term(term.name, part)
    for name in load_constants():
        if name not in OF_OTHER_ROOMS:
            yield f"constant {name}", scaled_constant(name)
    yield "experts touched", scaled_result(step, "distinct_experts")
    yield "rows of the busiest rank", scaled_result(step, "hottest_rows")
    yield "host", scaled_result(step.StepModel, "host_s")
    yield "launches", scaled_result(step.StepModel, "_launch_s")
    yield "drafting", scaled_result(step.SpeculativeStep, "draft_s")
    yield "search for drafts", scaled_result(step.SpeculativeStep, "_search_s")


class First:
    """The first test that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember it."""
        if report.failed and not self.name:
            self.name = report.nodeid.rpartition("/")[2]


def first_failure(mutate: Mutation, factor: float) -> str:
    """The test that notices ``mutate``; empty where none does."""
    read, write = os.pipe()
    if not (child := os.fork()):
        mutate(factor)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        found = First()
        status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *SUITE], plugins=[found])
        os.write(write, (found.name or ("" if status == 0 else f"the suite does not run: status {status}")).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        name = answer.read()
    os.waitpid(child, 0)
    return name


def main() -> int:
    """See the module."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    survivors = 0
    for name, mutate in mutations():
        if wanted not in name:
            continue
        for factor in (1.2, 0.8):
            noticed = first_failure(mutate, factor)
            survivors += not noticed
            print(f"{name:<40} x {factor}  {noticed or 'SURVIVES'}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
