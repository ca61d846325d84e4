"""The load: what is sent, how long it is, and when it arrives. The words are those of ``vllm bench``.

``Workload.sample`` draws the very lengths and arrival times that ``vllm bench serve --dataset-name random``
draws for the same seed, so that the replay gets what the benchmark will send.

>>> Workload(input_len=1000, output_len=130, num_prompts=2, range_ratio=0.25, seed=7).sample().input_len
array([1223, 1063])
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING, Any, Literal

from planner.errors import InputError
from planner.resources import data_dir

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.workload.prefixes import Prefixes

    Tokens = NDArray[np.int64]

LengthDistribution = Literal["symmetric", "below", "conversation"]

#: The names that tables of measured runs use, as (length_distribution, range_ratio).
NAMED_DISTRIBUTIONS: dict[str, tuple[LengthDistribution, float]] = {
    "fixed": ("symmetric", 0.0),
    "uniform-0.8-1": ("below", 0.8),
    "sharegpt": ("conversation", 0.0),
    "sonnet": ("symmetric", 0.0),  # vLLM's sonnets: prompts of the asked length to within a line, answers of it exactly
    "lm-arena-chat": ("symmetric", 0.0),
    "gpqa": ("symmetric", 0.0),
    "sourcegraph-fim": ("symmetric", 0.0),
}

#: vLLM's filter drops conversations with fewer tokens than this in the prompt or in the answer.
CONVERSATION_MIN_TOK = 4


MOST_TOK = 100_000_000  #: of one request; more is taken for a mistake
MOST_REQUESTS = 1_000_000  #: of one replay; percentiles stopped changing long before
_MOST = (
    ("input_len", MOST_TOK, "check its unit"),
    ("output_len", MOST_TOK, "check its unit"),
    ("prefix_len", MOST_TOK, "check its unit"),
    ("num_prompts", MOST_REQUESTS, "send fewer: percentiles no longer change"),
)
LEAST = 1e-12  #: of a rate and of its burstiness; the gaps of less are beyond a float
SEEDS = 2**32  #: that numpy's generator of vLLM's arrivals takes
MOST_IN_FLIGHT = MOST_REQUESTS // 5  #: a closed loop sends several requests for each place


#: Seconds that an answer is taken to last: to its first token, and for each token. About what people read; a server
#: that is slower or faster moves what follows it by a few seconds.
ANSWER_S, ANSWER_S_PER_TOK = 1.0, 0.025


def answer_s(output_tok: float) -> float:
    """Seconds from a request to the end of its answer, where nothing is known of the server."""
    return ANSWER_S + ANSWER_S_PER_TOK * output_tok


@dataclass(frozen=True, slots=True)
class Requests:
    """What the client sends, in order: tokens and arrival times. Arrays of shape (num_prompts,)."""

    input_len: Tokens
    output_len: Tokens
    arrival_s: NDArray[np.float64]  #: when each may be sent at the earliest, non-decreasing
    prefixes: Prefixes | None = None  #: what their prompts have in common; None: nothing is known
    priority: Tokens | None = None  #: as sent with each; lower is sooner; None: all alike
    group: Tokens | None = None  #: the number of each one's class, in ``groups``
    groups: tuple[str, ...] = ()

    @property
    def max_total_len(self) -> int:
        """Tokens, input and output, of the longest request."""
        return int((self.input_len + self.output_len).max())

    @property
    def of_classes(self) -> dict[str, int]:
        """How many there are of each class; empty where none are told apart."""
        return {} if self.group is None else {name: int((self.group == k).sum()) for k, name in enumerate(self.groups)}

    def first(self, count: int) -> Requests:
        """The first ``count`` of them."""
        return self.chosen(slice(0, count))

    def chosen(self, which: NDArray[Any] | slice) -> Requests:
        """Some of them, in order."""
        prefixes = self.prefixes and self.prefixes.chosen(which)
        priority, group = (None if one is None else one[which] for one in (self.priority, self.group))
        lengths = self.input_len[which], self.output_len[which]
        return Requests(*lengths, self.arrival_s[which], prefixes, priority, group, self.groups)

    @property
    def reusable_tok(self) -> float:
        """Tokens of a prompt, on average, that a cache finds which forgets nothing."""
        return float(self.prefixes.reusable_tok.mean()) if self.prefixes else 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of ``input_len`` and ``output_len`` tokens.

    With ``max_concurrency`` the loop is closed: at most that many requests are in flight, and a burst opens it. With
    ``request_rate`` alone (requests per second; infinite means all at once) the loop is open. With both, each request
    waits for its arrival and for a free place. ``burstiness`` is the shape of the gamma-distributed gaps: 1 is
    Poisson, less is burstier, infinity is a metronome.

    ``length_distribution`` says what ``range_ratio`` r does to a length L:

    - ``symmetric``: uniform in [floor((1 - r) L), ceil((1 + r) L)], vLLM since 0.8.4,
      its ``bench serve`` since 0.9.1 (pull request 16126)
    - ``below``: uniform in [int(r L), L], vLLM before that, SGLang and InferenceX
    - ``conversation``: scattered as in ShareGPT, whose means alone are known; r is not used

    All prompts share ``prefix_len`` tokens, which stand before the ``input_len`` of each (``--random-prefix-len``).
    ``prefix_cache_hit_rate`` is the share of each prompt that the server has seen before; no benchmark sends that.

    Raises InputError, with the flag of ``vllm bench``, for values that it does not accept.
    """

    input_len: int
    output_len: int
    num_prompts: int
    max_concurrency: int | None = None
    request_rate: float = inf
    burstiness: float = 1.0
    range_ratio: float = 0.0
    seed: int = 0
    length_distribution: LengthDistribution = "symmetric"
    prefix_len: int = 0
    prefix_cache_hit_rate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("input_len", "output_len", "num_prompts"):
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            _require(value >= 1, f"{flag} must be at least 1, got {value}", f"give {flag} a positive number")
        for name, most, hint in _MOST:
            flag, value = "--" + name.replace("_", "-"), getattr(self, name)
            _require(value <= most, f"{flag} must be at most {most:,}, got {value:,}", hint)
        _require(
            self.max_concurrency is None or 1 <= self.max_concurrency <= MOST_IN_FLIGHT,
            f"--max-concurrency must be from 1 to {MOST_IN_FLIGHT:,}, got {self.max_concurrency}",
            "leave it out for an open loop",
        )
        check_rate(self.request_rate)
        _require(
            self.burstiness >= LEAST,
            f"--burstiness must be a positive number of {LEAST:g} or more, got {self.burstiness:g}",
            "1 is a Poisson process",
        )
        _require(0 <= self.seed < SEEDS, f"--seed must be from 0 to {SEEDS - 1}, got {self.seed}", "0 is the default")
        _require(
            self.prefix_len >= 0,
            f"--random-prefix-len must not be negative, got {self.prefix_len}",
            "0 shares nothing",
        )
        _require(
            0 <= self.prefix_cache_hit_rate <= 1,
            f"--prefix-cache-hit-rate must lie between 0 and 1, got {self.prefix_cache_hit_rate:g}",
            "it is the share of each prompt that is in the prefix cache",
        )
        below = self.length_distribution == "below"
        _require(
            0 <= self.range_ratio < 1 or (self.range_ratio == 1 and below),
            f"--random-range-ratio must be in [0, 1), got {self.range_ratio:g}",
            "0 sends requests of equal length",
        )
        _require(
            below or floor(self.input_len * (1 - self.range_ratio)) >= 1,
            f"--random-range-ratio {self.range_ratio:g} of {self.input_len} tokens allows empty prompts",
            "give a longer input or a smaller ratio",
        )

    @property
    def total_len(self) -> int:
        """Tokens of one request of the nominal lengths, input and output."""
        return self.prefix_len + self.input_len + self.output_len

    @property
    def max_total_len(self) -> int:
        """Tokens, input and output, of the longest request that may be drawn, which max_model_len must hold.

        For conversations: the longest of ``sample``.
        """
        if self.length_distribution == "conversation":
            return self.sample().max_total_len
        return self.prefix_len + self._bounds(self.input_len)[1] + self._bounds(self.output_len)[1]

    def longest(self, num_prompts: int) -> Workload:
        """``num_prompts`` requests of the largest lengths that a uniform distribution may draw."""
        input_len, output_len = self._bounds(self.input_len)[1], self._bounds(self.output_len)[1]
        return replace(
            self,
            input_len=input_len,
            output_len=output_len,
            num_prompts=num_prompts,
            range_ratio=0.0,
            length_distribution="symmetric",
        )

    def sample(self) -> Requests:
        """Draw lengths and arrival times; the same for the same seed, and the same as vLLM draws.

        The generators are those of ``vllm bench``: numpy's default generator for lengths (inputs first),
        its legacy global one for arrivals. Tokens that the tokeniser adds are part of ``input_len``.
        """
        import numpy as np

        rng = np.random.default_rng(self.seed)
        return Requests(
            input_len=self._draw_lengths(self.input_len, "input", rng) + self.prefix_len,
            output_len=self._draw_lengths(self.output_len, "output", rng),
            arrival_s=self._draw_arrivals(),
        )

    def _bounds(self, length: int) -> tuple[int, int]:
        if self.length_distribution == "below":
            return max(int(length * self.range_ratio), 1), length
        return max(floor(length * (1 - self.range_ratio)), 1), ceil(length * (1 + self.range_ratio))

    def _draw_lengths(self, length: int, kind: Literal["input", "output"], rng: np.random.Generator) -> Tokens:
        import numpy as np

        lengths: Tokens
        if self.length_distribution == "conversation":
            known = _conversation()
            shape = known[f"{kind}_shape"]
            drawn = rng.beta(shape, shape * (known["longest"] - 1), self.num_prompts)
            shortest = min(CONVERSATION_MIN_TOK, length)
            lengths = np.maximum(np.rint(drawn * (length / drawn.mean())), shortest).astype(np.int64)
        else:
            low, high = self._bounds(length)
            lengths = rng.integers(low, high + 1, size=self.num_prompts)
        return lengths

    def _draw_arrivals(self) -> NDArray[np.float64]:
        """Arrival times in s: cumulated gamma gaps, stretched so that the last falls on num_prompts / rate."""
        import numpy as np

        if self.request_rate == inf:
            return np.zeros(self.num_prompts)
        if not isfinite(self.burstiness):
            return np.arange(1, self.num_prompts + 1) / self.request_rate
        scale = 1 / (self.request_rate * self.burstiness)
        gaps = np.random.RandomState(self.seed).gamma(self.burstiness, scale, size=self.num_prompts)
        times: NDArray[np.float64] = gaps.cumsum()
        if times[-1]:  # gaps of next to no burstiness are too small for a float; vLLM stretches none then, either
            times *= self.num_prompts / self.request_rate / times[-1]
        return times


def check_rate(request_rate: float) -> None:
    """Raises InputError for requests per second that ``vllm bench`` would not send; infinite is all at once."""
    _require(
        request_rate >= LEAST,
        f"--request-rate must be positive, got {request_rate:g}",
        "use inf to send everything at once",
    )


def _require(holds: bool, cause: str, hint: str) -> None:
    if not holds:
        raise InputError(cause, hint=hint)


@cache
def _conversation() -> dict[str, float]:
    """How the lengths of conversations scatter."""
    text = (data_dir("hardware") / "calibration" / "workload.toml").read_text("utf-8")
    known: dict[str, float] = tomllib.loads(text)["conversation"]
    return known


# --- loads by name ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedWorkload:
    """Usual lengths of prompts and answers, uniform in [(1 - r) L, (1 + r) L].

    ``vllm bench serve --random-range-ratio`` can send the same load, so that the load that was planned for can be
    measured. Real conversations scatter more widely; a trace shows how. ``docs/commands.md`` says where the lengths
    are from.

    >>> NAMED["chat"].input_len
    1024
    """

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
