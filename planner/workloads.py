"""Loads by name: how long prompts and answers usually are. ``docs/commands.md`` says where the lengths are from.

Lengths are uniform around the mean, by the share ``range_ratio``: what ``vllm bench serve --random-range-ratio`` can
send, so that the very load that is planned for can be measured. Real conversations spread wider; a trace says how.

>>> NAMED["chat"].input_len
1024
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """Tokens of prompts and answers, uniform in [(1 - r) L, (1 + r) L]."""

    input_len: int
    output_len: int
    range_ratio: float
    about: str


NAMED: dict[str, NamedWorkload] = {
    "chat": NamedWorkload(1024, 256, 0.5, "a question with the turns before it, a few paragraphs in answer"),
    "rag": NamedWorkload(4096, 256, 0.25, "a question among a dozen retrieved passages, a short answer"),
    "summarise": NamedWorkload(8192, 1024, 0.25, "a long document, two pages of summary"),
    "code": NamedWorkload(2048, 64, 0.5, "the code around the cursor, a few lines to go on with"),
    "agent": NamedWorkload(8192, 256, 0.5, "what one step of an agent adds to its context, one call of a tool"),
    "reasoning": NamedWorkload(1024, 8192, 0.5, "a problem, thousands of tokens of thought before the answer"),
}
