"""Which requests a client drew, by the means of the lengths that it counted.

``vllm bench`` draws the same requests for the same seed, so the mean of the answers says which seed it was::

    100 answers, uniform in [49, 950], seed 42        491.46 tokens on average; published: 491.5
    the same, seed 0                                  549.6

Its arrivals, and the order of long and short prompts, follow from the seed too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from planner.workload import Load

#: That of ``vllm bench`` where none is given, and the one that is given most.
USUAL_SEEDS = (0, 42)
#: Lengths that people ask for are multiples of one of these.
ROUND_TOK = (50, 64)
#: Means are published with a decimal.
PRINTED_TOK = 0.051


def as_counted(load: Load, input_tok: float, output_tok: float, seeds: Sequence[int] = USUAL_SEEDS) -> Load:
    """``load`` with lengths whose means are ``input_tok`` and ``output_tok``.

    Its seed is the one of ``seeds`` that draws such answers from a round length. Where there is none, it keeps its own.
    """
    seeded = next(filter(None, (_of_seed(load, seed, output_tok) for seed in seeds)), None)
    with_answers = seeded or _stretched(load, "output_len", output_tok)
    return _stretched(with_answers, "input_len", input_tok)  # a chat template adds tokens to each prompt


def _of_seed(load: Load, seed: int, output_tok: float) -> Load | None:
    near = _stretched(replace(load, seed=seed), "output_len", output_tok)
    for step in ROUND_TOK:
        asked = replace(near, output_len=max(round(near.output_len / step), 1) * step)
        if abs(float(asked.requests().output_len.mean()) - output_tok) <= PRINTED_TOK:
            return asked
    return None


def _stretched(load: Load, name: Literal["input_len", "output_len"], counted_tok: float) -> Load:
    drawn_tok = float(getattr(load.requests(), name).mean())
    return replace(load, **{name: max(round(getattr(load, name) * counted_tok / drawn_tok), 1)})
