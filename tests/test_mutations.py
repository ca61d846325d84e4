"""Tests that bite: each of these changes to the code makes a test fail, which passes without it in its own module."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import pytest
from planning import test_capacity, test_closed_form, test_layouts
from planning.test_layouts import COARSE, LATENT, OTHER
from simulator import test_scheduler
from workload import test_routing

from planner.planning import capacity, predict
from planner.planning.search.space import Choices
from planner.simulator.rank import DpRank
from planner.workload.load import Load

Function = Callable[..., Any]


@contextmanager
def mutated(function: Function, text: str, other: str) -> Iterator[None]:
    """Replace ``text``, which stands once in ``function``, while the block runs."""
    plain = getattr(function, "__func__", function)
    assert isinstance(plain, FunctionType)
    source = inspect.getsource(plain)
    assert source.count(text) == 1, f"{plain.__qualname__} has changed: adapt its mutation"
    module = compile(textwrap.dedent(source.replace(text, other)), plain.__code__.co_filename, "exec", 1 << 24)
    before = plain.__code__
    plain.__code__ = next(
        one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == plain.__name__
    )
    try:
        yield
    finally:
        plain.__code__ = before


#: A function, its text and what replaces it, and a test that notices.
MUTATIONS: dict[str, tuple[Function, str, str, Function]] = {
    "the closed form's TTFT is its E2EL": (
        predict._Steps.of, '"ttft": ttft', '"ttft": e2el',
        test_closed_form.test_figures_are_those_computed_by_hand,
    ),
    "the closed form's TTFT leaves out half a step": (
        predict._Steps.of, "(0.5, 0.0, float(chunks))", "(0.0, 0.0, float(chunks))",
        test_closed_form.test_figures_are_those_computed_by_hand,
    ),
    "DP ranks do not wait for each other": (
        predict._Steps.of, "if deployment.model.is_moe else 1", "if not deployment.model.is_moe else 1",
        lambda: test_closed_form.test_ranks_that_step_together_are_held_up_by_each_other(8, 2, (1000, 100)),
    ),
    "the throughput of DP ranks is that of one": (
        capacity.at_concurrency, "min(ranks, concurrency)", "1",
        lambda: test_closed_form.test_ranks_that_step_together_are_held_up_by_each_other(8, 2, (1000, 100)),
    ),
    "DP inside a node is searched among many types of GPUs": (
        Choices._layouts, "node if coarse else 1", "1",
        lambda: test_layouts.test_copies_of_attention_fill_a_node_among_many_types_of_gpus(LATENT, COARSE),
    ),
    "DP is searched without latent attention among many types of GPUs": (
        Choices._layouts, "not coarse or engine.uses_latent_attention(model)", "True",
        lambda: test_layouts.test_copies_of_attention_fill_a_node_among_many_types_of_gpus(OTHER, set()),
    ),
    "decoding requests take nothing of the token budget": (
        DpRank._schedule, "self.limits.max_num_batched_tokens - self.kv.seqs * self.limits.decode_tok",
        "self.limits.max_num_batched_tokens", test_scheduler.test_prompts_take_the_budget_that_decoding_leaves,
    ),
    "a prompt that is finished leaves no budget to the next": (
        DpRank._schedule, "budget_tok - sum(new_tok for _, new_tok in chunks)", "0 if chunks else budget_tok",
        test_scheduler.test_prompts_take_the_budget_that_decoding_leaves,
    ),
    "the KV cache holds the new tokens of a request alone": (
        Load.held_len, "sent.input_len + sent.output_len", "0 * sent.input_len + self.input_len + self.output_len",
        test_routing.test_room_is_kept_for_whole_contexts_and_shared_pieces_count_once,
    ),
    "full batches are as large as max_num_seqs": (
        capacity.most_held, "held * deployment.config.data_parallel_size", "inf",
        test_capacity.test_full_batches_are_those_that_the_cache_holds,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTATIONS)
def test_a_test_notices(what: str) -> None:
    function, text, other, notices = MUTATIONS[what]
    with mutated(function, text, other), pytest.raises(AssertionError):
        notices()
