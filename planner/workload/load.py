"""The load of a server: how long its requests are, how they arrive, and how many there are.

Lengths and arrival times are those that ``vllm bench serve --dataset-name random`` draws for the same seed.

>>> Load(input_len=1000, output_len=130, num_prompts=2, range_ratio=0.25, seed=7).requests().input_len
array([1223, 1063])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from planner.errors import InputError, UnknownNameError
from planner.resources import calibration_tables, package_dir, tables_of
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload.targets import OF_A_REQUEST

if TYPE_CHECKING:
    from planner.workload.requests import Requests
    from planner.workload.targets import Router
    from planner.workload.trace import Trace

LengthDistribution = Literal["symmetric", "below", "conversation"]
#: The names that tables of measured runs use, as (length_distribution, range_ratio).
NAMED_DISTRIBUTIONS: dict[str, tuple[LengthDistribution, float]] = {
    # vLLM's sonnets: prompts of the asked length to within a line, answers of it exactly
    **dict.fromkeys(("fixed", "sonnet", "lm-arena-chat", "gpqa", "sourcegraph-fim"), ("symmetric", 0.0)),
    "uniform-0.8-1": ("below", 0.8), "sharegpt": ("conversation", 0.0),
}  # fmt: skip
_BOUNDS = tables_of(package_dir("workload") / "load.toml")
LEAST, SEEDS = _BOUNDS["burstiness"][1], _BOUNDS["seed"][2] + 1
PRIORITY = "priority"
MOST_PRIORITY = 1_000_000
MOST_CLASSES = 16
MIXED_PROMPTS = 4000  #: of all classes together, by default
TOGETHER = 64  #: requests in the KV cache at once, for what they share
TRACE_CLASSES = 3  #: that a trace is cut into


@dataclass(frozen=True)
class Load:
    """Requests of ``input_len`` and ``output_len`` tokens, on average where they vary. Raises InputError with the flag.

    ``max_concurrency`` closes the loop: at most that many in flight. ``request_rate`` (per second; infinite: all at
    once) alone opens it; with both, each request waits for its arrival and a free place. ``burstiness`` is the shape of
    the gamma-distributed gaps: 1 is Poisson, less is burstier. ``range_ratio`` r of a length L depends
    on ``length_distribution``:

    - ``symmetric``: uniform in [floor((1 - r) L), ceil((1 + r) L)], vLLM since 0.8.4,
      its ``bench serve`` since 0.9.1 (pull request 16126).
    - ``below``: uniform in [int(r L), L], vLLM before that, SGLang and InferenceX.
    - ``conversation``: scattered as in ShareGPT, whose means alone are known; r is not used.

    ``prefix_len`` tokens, shared by all, stand before each prompt. ``prefix_cache_hit_rate`` is the share of each
    prompt that the server has seen before. ``recorded`` requests (a trace, sessions, the mixture of ``classes``) are
    sent instead of drawn ones; lengths are then means, and ``prefix_len`` what an unlimited prefix cache finds."""

    input_len: int
    output_len: int
    num_prompts: int = 1
    max_concurrency: int | None = None
    request_rate: float = inf
    burstiness: float = 1.0
    range_ratio: float = 0.0
    seed: int = 0
    length_distribution: LengthDistribution = "symmetric"
    prefix_len: int = 0
    prefix_cache_hit_rate: float = 0.0
    recorded: Requests | None = field(default=None, repr=False)
    classes: tuple[Load, ...] = ()
    name: str = ""
    limits_ms: Mapping[str, float] = field(default_factory=dict, hash=False)  #: by ``ttft``, ``tpot``, ``e2el``
    priority: int = 0  #: sent with its requests; lower is sooner
    steady: bool = False  #: ``num_prompts`` places that a queue fills again and again; figures are of one such cycle
    origin: Trace | None = field(default=None, repr=False, hash=False, compare=False)  #: the file of the requests
    drawn: bool = False  #: whether ``recorded`` were drawn, so that some of them say as much as all
    dealt: tuple[int, Router] | None = None  #: of a share: the servers and the router, to draw it anew at each rate

    # --- constructors

    @classmethod
    def closed_loop(cls, concurrency: int, input_len: int, output_len: int, **more: Any) -> Load:
        """``concurrency`` requests in flight, five times as many in all. ``more``: fields such as ``num_prompts``."""
        more.setdefault("num_prompts", 5 * concurrency)
        return cls(input_len, output_len, max_concurrency=concurrency, **more)

    @classmethod
    def open_loop(cls, rate: float, input_len: int, output_len: int, **more: Any) -> Load:
        """``rate`` requests per second, 1,000 in all as in ``vllm bench serve``. ``more``: as of ``closed_loop``."""
        return cls(input_len, output_len, request_rate=rate, **{"num_prompts": 1000} | more)

    @classmethod
    def trace(cls, path: str | Path, rate: float | None = None) -> Load:
        from planner.workload.trace import read_trace

        return cls.of_trace(read_trace(Path(path)), rate)

    @classmethod
    def of_trace(cls, trace: Trace, rate: float | None = None) -> Load:
        sent = trace.busiest if rate is None else trace.busiest.at_pace(trace.busiest_rate / rate)
        load = cls.of_requests(sent, rate or trace.busiest_rate, name="trace")
        return replace(load, burstiness=trace.burstiness, origin=trace)

    @classmethod
    def sessions(cls, name: str, rate: float, seed: int = 0) -> Load:
        """A load of several turns by name, drawn for ``rate`` requests per second. Raises UnknownNameError."""
        from planner.workload.requests import KEPT, named_sessions, share

        check_workload(name, named_sessions())
        sent = share(named_sessions()[name].requests(rate, seed), 1, KEPT)
        return cls.of_requests(sent, rate, name=name, seed=seed, drawn=True)

    @classmethod
    def of_requests(cls, sent: Requests, rate: float, **more: Any) -> Load:
        prefix_len, means = round(sent.reusable_tok), (sent.input_len.mean(), sent.output_len.mean())
        input_len, output_len = (max(round(float(mean)), 1) for mean in means)
        return cls(
            max(input_len - prefix_len, 1), output_len, len(sent.arrival_s),
            request_rate=rate, prefix_len=prefix_len, recorded=sent, **more,
        )  # fmt: skip

    @classmethod
    def of_class(cls, name: str, request_rate: float, input_len: int, output_len: int, **more: Any) -> Load:
        """One class of requests: its name, its requests per second of all servers, tokens in and out."""
        return cls(input_len, output_len, request_rate=float(request_rate), name=name, **more)

    @classmethod
    def named(cls, workload: str, **more: Any) -> Load:
        check_workload(workload, NAMED)
        return replace(NAMED[workload], **more)

    @classmethod
    def classes_of(
        cls, classes: Sequence[Load], num_prompts: int = MIXED_PROMPTS, *, seed: int = 0, burstiness: float = 1.0,
        name: str = "",
    ) -> Load:  # fmt: skip
        sent = mixed(classes, num_prompts, seed=seed, burstiness=burstiness)
        load = cls.of_requests(sent, sum(one.request_rate for one in classes), name=name, classes=tuple(classes))
        return replace(load, num_prompts=num_prompts, seed=seed, burstiness=burstiness)

    @classmethod
    def classes_of_trace(
        cls, trace: Trace, rate: float | None = None, classes: int = TRACE_CLASSES
    ) -> tuple[Load, ...]:
        """Classes by the length of a request: ``classes`` of about as many tokens each, the short ones first; one class
        where prompts share prefixes. ``rate``: requests per second of all; None: of the busiest stretch."""
        import numpy as np

        sent = (whole := cls.of_trace(trace, rate)).requests()
        if sent.prefixes is not None:
            return (whole,)
        total_tok = sent.input_len + sent.output_len
        ascending = np.sort(total_tok)
        upto = np.cumsum(ascending)
        # the longest request of each class but the last
        longest = ascending[np.searchsorted(upto * classes, upto[-1] * np.arange(1, classes))]
        place = np.searchsorted(longest, total_tok)  # requests of one length stay together
        loads = []
        for number in range(classes):
            chosen = place == number
            if not chosen.any():
                continue
            part = sent.chosen(chosen)
            low, high = int(total_tok[chosen].min()), int(total_tok[chosen].max())
            name = f"{low}-{high} tokens" if low < high else f"{low} tokens"
            loads.append(cls.of_requests(part, whole.request_rate * float(chosen.mean()), name=name))
        return tuple(loads)

    @classmethod
    def parse(cls, text: str) -> Load:
        """``chat=20:1024:256``, ``chat=20:rag,ttft=500,tpot=40,priority=1`` (targets in ms; ``NAMED``). Raises
        InputError."""
        load, *more = text.split(",")
        sized = cls._sized(load)
        words = dict(word.partition("=")[::2] for word in more)
        cause = f"--class {text!r}: gaps between tokens are those of all requests, whatever their class"
        _require("itl" not in words, cause, "add tpot=MS, the mean gap of each request, or --itl beside the classes")
        if unknown := [word for word in words if word not in (*OF_A_REQUEST, PRIORITY)]:
            cause, targets = f"--class {text!r}: {unknown[0]!r} is no target of a class", "=MS, ".join(OF_A_REQUEST)
            raise InputError(cause, hint=f"add {targets}=MS or {PRIORITY}=N after a comma")
        _require(len(words) == len(more), f"--class {text!r} gives a target twice", "give each once")
        try:
            priority, limits_ms = int(words.pop(PRIORITY, "0")), {metric: float(ms) for metric, ms in words.items()}
        except ValueError as error:
            cause = f"--class {text!r}: targets are in ms, and a priority is a whole number"
            raise InputError(cause, hint="for example ttft=500,priority=1") from error
        return replace(sized, limits_ms=limits_ms, priority=priority)

    @classmethod
    def _sized(cls, text: str) -> Load:
        name, _, numbers = text.partition("=")
        rate_text, _, lengths = numbers.partition(":")
        hint = f"for example chat=20:1024:256, or chat=20:WORKLOAD with one of {', '.join(NAMED)}"
        _require(not name or (bool(rate_text) and rate_text not in NAMED), f"--class {text!r} has no rate", hint)
        try:
            rate = float(rate_text)
            known = NAMED.get(lengths)
            input_len, output_len = (known.input_len, known.output_len) if known else map(int, lengths.split(":"))
        except ValueError as error:
            raise InputError(f"--class {text!r} is not NAME=RATE:INPUT:OUTPUT", hint=hint) from error
        _require(bool(name), f"--class {text!r} has no name", hint)
        positive = isfinite(rate) and min(rate, input_len, output_len) > 0
        _require(positive, f"--class {text!r}: rate and lengths must be positive", hint)
        return cls.of_class(name, rate, input_len, output_len, range_ratio=known.range_ratio if known else 0.0)

    # --- what is sent

    def __post_init__(self) -> None:
        for name, (flag, least, most, hint) in _BOUNDS.items():
            if (value := getattr(self, name)) is None and name == "max_concurrency":
                continue
            object.__setattr__(self, name, value := _plain(flag, value, type(least), hint))
            if not least <= value <= most:
                kind, bound = ("at least", least) if value < least else ("at most", most)
                shown = [f"{one:,}" if isinstance(one, int) else f"{one:g}" for one in (bound, value)]
                wanted = "positive" if bound == LEAST and value <= 0 else f"{kind} {shown[0]}"
                raise InputError(f"{flag} must be {wanted}, got {shown[1]}", hint=hint)
        below, flag = self.length_distribution == "below", f"--random-range-ratio {self.range_ratio:g}"
        _require(self.range_ratio < 1 or below, f"{flag} must be in [0, 1)", "0 sends requests of equal length")
        some = below or floor(self.input_len * (1 - self.range_ratio)) >= 1
        _require(some, f"{flag} of {self.input_len} tokens allows empty prompts", "give a longer input or less")
        for metric, limit_ms in self.limits_ms.items():
            cause = f"--class {self.name}: {metric}={limit_ms:g} is not a target in ms"
            _require(LEAST_FIGURE <= limit_ms <= MOST_FIGURE, cause, f"for example {metric}=500")
        cause = f"--class {self.name}: a priority is from {-MOST_PRIORITY:,} to {MOST_PRIORITY:,}"
        _require(-MOST_PRIORITY <= self.priority <= MOST_PRIORITY, cause, "lower is sooner")

    @property
    def total_len(self) -> int:
        return self.prefix_len + self.input_len + self.output_len

    @property
    def max_total_len(self) -> int:
        """Tokens, input and output, of the longest request that may be drawn, which max_model_len must hold."""
        if self.length_distribution == "conversation":
            return self.requests().max_total_len
        return self.prefix_len + self.bounds(self.input_len)[1] + self.bounds(self.output_len)[1]

    def bounds(self, length: int) -> tuple[int, int]:
        """The least and the most tokens of a ``length`` that varies."""
        if self.length_distribution == "below":
            return max(int(length * self.range_ratio), 1), length
        return max(floor(length * (1 - self.range_ratio)), 1), ceil(length * (1 + self.range_ratio))

    @property
    def common_len(self) -> int:
        """Tokens at the head of all prompts; of recorded ones a cache finds what they share by itself."""
        return self.prefix_len if self.recorded is None else 0

    def held_len(self, *, caching: bool = True) -> int:
        """KV tokens per request: the longest, or the recorded mean less what ``TOGETHER`` share (sessions: none)."""
        sent = self.recorded
        if sent is None:
            return self.max_total_len
        shared_tok = sent.prefixes.shared_tok(TOGETHER) if caching and sent.prefixes and not self.drawn else 0.0
        return max(round(float((sent.input_len + sent.output_len).mean()) - shared_tok), 1)

    def longest(self, num_prompts: int) -> Load:
        input_len, output_len = self.bounds(self.input_len)[1], self.bounds(self.output_len)[1]
        return replace(
            self, input_len=input_len, output_len=output_len, num_prompts=num_prompts, range_ratio=0.0,
            length_distribution="symmetric",
        )  # fmt: skip

    def requests(self) -> Requests:
        """The requests that are sent. Tokens that the tokeniser adds are part of ``input_len``."""
        from planner.workload.requests import drawn

        return drawn(self) if self.recorded is None else self.recorded

    @property
    def count(self) -> int:
        return self.num_prompts if self.recorded is None else len(self.recorded.arrival_s)

    @property
    def longest_len(self) -> int:
        """Tokens of the longest request, of a trace over the whole file: what ``max_model_len`` must hold."""
        if self.origin is not None:
            return self.origin.longest_len
        return self.max_total_len if self.recorded is None else self.recorded.max_total_len

    @property
    def reused(self) -> bool:
        return self.recorded is not None and self.recorded.prefixes is not None

    @property
    def hashed(self) -> bool:
        """True if prompts share blocks by ``hash_ids``; in sessions answers are shared too."""
        shared = self.recorded.prefixes if self.recorded is not None else None
        return shared is not None and bool((shared.answer == shared.prompt).all())

    @property
    def unsendable(self) -> bool:
        """True if no benchmark can send its requests: a trace, or sessions."""
        return self.recorded is not None and not self.classes

    @property
    def open(self) -> bool:
        """True if requests arrive at a rate, however many are in flight."""
        return self.max_concurrency is None and isfinite(self.request_rate)

    @property
    def value(self) -> float:
        """Requests in flight of a closed loop, else requests per second."""
        return self.max_concurrency or self.request_rate

    def sessions_at_once(self, rate: float, in_flight: float) -> float | None:
        """Sessions that wait for an answer or pause at ``rate`` requests/s; None for a load without named sessions."""
        from planner.workload.requests import named_sessions

        return in_flight + rate * named_sessions()[self.name].pause_s.mean if self.drawn else None

    @property
    def notes(self) -> tuple[str, ...]:
        return self.origin.notes if self.origin else ()

    @property
    def output_tok_per_s(self) -> float:
        mean = self.output_len if self.recorded is None else float(self.recorded.output_len.mean())
        return self.request_rate * mean

    @property
    def word(self) -> str:
        limits = "".join(f",{metric}={limit_ms:g}" for metric, limit_ms in self.limits_ms.items())
        first = f",{PRIORITY}={self.priority}" if self.priority else ""
        own = self.input_len, self.output_len, self.range_ratio
        names = (name for name, one in NAMED.items() if own == (one.input_len, one.output_len, one.range_ratio))
        lengths = next(names, f"{self.input_len}:{self.output_len}")
        return f"{self.name}={self.request_rate:g}:{lengths}{limits}{first}"

    # --- the same requests under another load

    def at_rate(self, rate: float, num_prompts: int | None = None) -> Load:
        return self._at(num_prompts, max_concurrency=None, request_rate=rate)

    def at_concurrency(self, places: int, num_prompts: int | None = None) -> Load:
        return self._at(num_prompts, max_concurrency=places, request_rate=inf)

    def _at(self, num_prompts: int | None, **arrivals: Any) -> Load:
        load = replace(self, num_prompts=num_prompts or self.num_prompts, **arrivals)
        if self.recorded is None:
            return load
        from planner.workload.requests import share

        if self.dealt and load.open:
            anew = replace(self, request_rate=load.request_rate * self.dealt[0]).share_of(*self.dealt)
            assert anew.recorded is not None
            return replace(anew, recorded=share(anew.recorded, 1, num_prompts)) if num_prompts else anew
        sent = share(self.recorded, 1, load.num_prompts)
        if load.request_rate == inf:
            return replace(load, recorded=sent.at_pace(0.0))
        last_s = float(sent.arrival_s[-1])
        return replace(load, recorded=sent.at_pace(len(sent.arrival_s) / load.request_rate / last_s if last_s else 1.0))

    def as_drawn(self) -> Load:
        """Requests of the same lengths, on average, and at the same rate, drawn as a benchmark draws them."""
        return replace(self, recorded=None, classes=(), origin=None, drawn=False)

    def first(self, count: int) -> Load:
        recorded = self.recorded and self.recorded.first(count)
        return replace(self, num_prompts=min(self.num_prompts, count), recorded=recorded)

    def share_of(self, servers: int, router: Router = "round-robin", most: int | None = None) -> Load:
        """The load of one of ``servers``, at most ``most`` requests; recorded ones as the router deals them.

        Where one server gets few requests of a trace, those of several are replayed, each on its own. Of drawn ones it
        gets every n-th arrival: those of a gamma process are one with n times the shape. Least-loaded is no worse than
        round-robin; at random each server has arrivals like all of them."""
        rate = self.request_rate / servers
        if self.classes:
            classes = tuple(replace(one, request_rate=one.request_rate / servers) for one in self.classes)
            prompts = most or self.num_prompts
            sent = mixed(classes, prompts, seed=self.seed, burstiness=self.burstiness)
            return replace(self, request_rate=rate, num_prompts=prompts, recorded=sent, classes=classes)
        if self.recorded is not None:
            from planner.workload.requests import TRACE_POOL, share, shares

            drawn = self.drawn and shares(self.name, self.request_rate, servers, router, self.seed)
            few = max(min(servers, self.count, TRACE_POOL * servers // self.count), 1)
            sent = drawn or share(self.recorded, servers, most or self.count, router, few)
            return replace(self, request_rate=rate, num_prompts=len(sent.arrival_s), recorded=sent)
        places, prompts = self.max_concurrency and ceil(self.max_concurrency / servers), most or self.num_prompts
        shape = self.burstiness * (1 if places or router == "random" else servers)
        return replace(self, request_rate=rate, max_concurrency=places, num_prompts=prompts, burstiness=shape)


Demand = Load.of_class  #: the name of a class of requests in earlier releases


def too_rare(classes: Sequence[Load], num_prompts: int) -> Load | None:
    """A class of which not one request is among ``num_prompts`` of all classes, if any: a replay says nothing of it."""
    rate = sum(one.request_rate for one in classes)
    drawn = (one for one in classes if one.recorded is None)
    return next((one for one in drawn if num_prompts * (one.request_rate / rate) < 1), None)


def benchmarks(
    classes: Sequence[Load], num_prompts: int, *, seed: int = 0, burstiness: float = 1.0
) -> tuple[Load, ...]:
    """A benchmark for each class, about ``num_prompts`` in all. Raises InputError for a class that would send none."""
    rate = sum(one.request_rate for one in classes)
    if rare := too_rare(classes, num_prompts):
        share = rate / rare.request_rate
        cause = f"--class {rare.name} sends one request in {share:,.0f}, and {num_prompts:,} are sent"
        raise InputError(cause, hint="raise --num-prompts, or plan that class by itself")
    counts = (max(round(num_prompts * (one.request_rate / rate)), 1) for one in classes)
    return tuple(
        replace(one, num_prompts=count, burstiness=burstiness, seed=(seed + place) % SEEDS)
        for place, (one, count) in enumerate(zip(classes, counts, strict=True))
    )


def mixed(classes: Sequence[Load], num_prompts: int, *, seed: int = 0, burstiness: float = 1.0) -> Requests:
    """About ``num_prompts`` requests of all classes, by their rates, in the order of arrival; see ``benchmarks``."""
    from planner.workload.requests import joined

    sent = benchmarks(classes, num_prompts, seed=seed, burstiness=burstiness)
    return joined(classes, [one.requests() for one in sent])


def check_classes(classes: Sequence[Load], policy: str | None) -> None:
    """Raise InputError for classes of one name, and for priorities that ``--scheduling-policy`` does not heed."""
    names = [one.name for one in classes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--class {twice[0]} is given twice", hint="name each class once")
    if len(classes) > MOST_CLASSES:
        raise InputError(f"--class is given {len(classes)} times", hint=f"plan {MOST_CLASSES} classes at most")
    first = next((one for one in classes if one.priority), None)
    if first and policy != PRIORITY:
        cause = f"--class {first.name} has a priority, which vLLM refuses where requests are served as they come"
        raise InputError(cause, hint=f"add --scheduling-policy {PRIORITY}")


def _plain(flag: str, value: Any, kind: type[float], hint: str) -> float:
    """``value`` as a plain number of ``kind``: numpy's too, and the whole float of a data frame. Raises InputError."""
    with suppress(TypeError, ValueError, OverflowError):
        if (plain := kind(value)) == value:
            return plain
    raise InputError(f"{flag} must be {'an integer' if kind is int else 'a number'}, got {value!r:.40}", hint=hint)


def check_workload(name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UnknownNameError("workload", name, known, see="docs/guide/speed.md")


def _require(holds: bool, cause: str, hint: str) -> None:
    if not holds:
        raise InputError(cause, hint=hint)


#: Usual lengths of prompts and answers, uniform in [(1 - r) L, (1 + r) L], which ``vllm bench serve`` can send.
NAMED = {
    name: Load(row["input_len"], row["output_len"], range_ratio=row["range_ratio"])
    for name, row in calibration_tables("workload")["named"].items()
}
