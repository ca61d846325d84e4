"""The load: what is sent, how long, and how it arrives. The words are those of ``vllm bench``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from planner.errors import InputError


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of ``input_len`` and ``output_len`` tokens.

    Closed loop when ``max_concurrency`` is given (at most so many in flight), open loop when only
    ``request_rate`` is (requests per second; infinite means all at once). ``range_ratio`` r draws each
    length uniformly from [(1 - r) L, (1 + r) L], as ``--random-range-ratio`` does.
    """

    input_len: int
    output_len: int
    num_prompts: int
    max_concurrency: int | None = None
    request_rate: float = inf
    burstiness: float = 1.0
    range_ratio: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "num_prompts"):
            if getattr(self, name) < 1:
                flag = "--" + name.replace("_", "-")
                raise InputError(f"{flag} must be at least 1, got {getattr(self, name)}", hint=f"give {flag} a positive number")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise InputError("--max-concurrency must be at least 1", hint="leave it out for an open loop")
        if not self.request_rate > 0:
            raise InputError("--request-rate must be positive", hint="use inf to send everything at once")

    @property
    def total_len(self) -> int:
        """Tokens of one request, input and output."""
        return self.input_len + self.output_len
