"""What has to be carried: classes of requests, each with its lengths and its rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

from planner.errors import InputError
from planner.planning import defaults
from planner.units import LEAST_FIGURE, MOST_FIGURE
from planner.workload import NAMED, OF_A_REQUEST, SEEDS, Requests, Router, Trace, Workload, share

PRIORITY = "priority"
LEAST_RATE = 1e-9  #: requests per second: one in thirty years
MOST_PRIORITY = 1_000_000


@dataclass(frozen=True, eq=False)  # requests of a trace are arrays: a class is itself and no other
class Demand:
    """One class of requests, Poisson or in the rhythm of a trace. Raises InputError for what is no load."""

    name: str
    request_rate: float  #: per second, of all servers together
    input_len: int  #: tokens; of a trace the mean
    output_len: int
    range_ratio: float = 0.0
    requests: Requests | None = None  #: of a trace
    prefix_len: int = 0  #: tokens on top of ``input_len`` that a cache finds which forgets nothing
    whole: Requests | None = None  #: all of the trace, where ``requests`` are what one of the servers gets
    limits_ms: Mapping[str, float] = field(default_factory=dict)  #: its own targets, by ``ttft``, ``tpot``, ``e2el``
    priority: int = 0  #: sent with its requests; lower is sooner
    parts: tuple[Demand, ...] = ()  #: of all classes together: each of them
    asked_as: tuple[str, ...] = ()  #: the options that give others the same requests; empty: rate and lengths do

    def __post_init__(self) -> None:
        if not LEAST_RATE <= self.request_rate < float("inf"):
            raise InputError(
                f"--request-rate {self.request_rate:g} is no rate to plan for", hint="give requests per second"
            )
        for metric, limit_ms in self.limits_ms.items():
            if not LEAST_FIGURE <= limit_ms <= MOST_FIGURE:
                raise InputError(
                    f"--class {self.name}: {metric}={limit_ms:g} is not a target in ms",
                    hint=f"for example {metric}=500",
                )
        if not -MOST_PRIORITY <= self.priority <= MOST_PRIORITY:
            raise InputError(
                f"--class {self.name}: a priority is from {-MOST_PRIORITY:,} to {MOST_PRIORITY:,}",
                hint="lower is sooner",
            )
        _ = self.workload  # refuses lengths that vLLM would not accept

    @property
    def workload(self) -> Workload:
        """Lengths and rhythm; how many requests are sent, and how fast, is for the search to say."""
        return Workload(self.input_len, self.output_len, 1, range_ratio=self.range_ratio, prefix_len=self.prefix_len)

    @property
    def drawn(self) -> bool:
        """Whether requests with something in common were drawn, and not recorded."""
        return "--workload" in self.asked_as

    @property
    def reused(self) -> bool:
        """Whether it is known what the prompts have in common."""
        return self.requests is not None and self.requests.prefixes is not None

    def dealt(self, servers: int, router: Router, most: int | None = None) -> Demand:
        """With the requests that one of ``servers`` gets, at most so many."""
        whole = self.whole or self.requests
        assert whole is not None  # who calls has asked
        each = max(len(whole.arrival_s) // servers, 2)
        return replace(self, requests=share(whole, servers, min(most or each, each), router), whole=whole)

    @property
    def longest_len(self) -> int:
        """Tokens of the longest request."""
        return self.requests.max_total_len if self.requests is not None else self.workload.max_total_len

    @property
    def word(self) -> str:
        """As it is typed: see ``parse``."""
        limits = "".join(f",{metric}={limit_ms:g}" for metric, limit_ms in self.limits_ms.items())
        first = f",{PRIORITY}={self.priority}" if self.priority else ""
        return f"{self.name}={self.request_rate:g}:{self.input_len}:{self.output_len}{limits}{first}"

    @property
    def output_tok_per_s(self) -> float:
        """Output tokens per second that are asked for."""
        mean = float(self.requests.output_len.mean()) if self.requests is not None else self.output_len
        return self.request_rate * mean

    @classmethod
    def parse(cls, text: str) -> Demand:
        """``chat=20:1024:256``, or ``chat=20:rag`` with lengths by name: see ``workloads``.

        Targets of its own in ms and a priority may follow: ``chat=20:rag,ttft=500,tpot=40,priority=1``. Raises
        InputError.
        """
        load, *more = text.split(",")
        found = cls._sized(load)
        words = dict(word.partition("=")[::2] for word in more)
        if "itl" in words:
            raise InputError(
                f"--class {text!r}: gaps between tokens are those of all requests, whatever their class",
                hint="add tpot=MS, the mean gap of each request, or --itl beside the classes, which recommend takes",
            )
        if unknown := [word for word in words if word not in (*OF_A_REQUEST, PRIORITY)]:
            raise InputError(
                f"--class {text!r}: {unknown[0]!r} is no target of a class",
                hint=f"add {', '.join(f'{metric}=MS' for metric in OF_A_REQUEST)} or {PRIORITY}=N after a comma",
            )
        if len(words) < len(more):
            raise InputError(f"--class {text!r} gives a target twice", hint="give each once")
        try:
            priority = int(words.pop(PRIORITY, "0"))
        except ValueError as error:
            raise InputError(f"--class {text!r}: a priority is a whole number", hint="lower is sooner") from error
        try:
            limits_ms = {metric: float(limit) for metric, limit in words.items()}
        except ValueError as error:
            raise InputError(f"--class {text!r}: targets are in ms", hint="for example ttft=500") from error
        return replace(found, limits_ms=limits_ms, priority=priority)

    @classmethod
    def _sized(cls, text: str) -> Demand:
        name, _, numbers = text.partition("=")
        rate_text, _, lengths = numbers.partition(":")
        hint = f"for example chat=20:1024:256, or chat=20:WORKLOAD with one of {', '.join(NAMED)}"
        if name and (not rate_text or rate_text in NAMED):
            raise InputError(f"--class {text!r} has no rate", hint=hint)
        try:
            rate = float(rate_text)
            known = NAMED.get(lengths)
            input_len, output_len = (known.input_len, known.output_len) if known else map(int, lengths.split(":"))
        except ValueError as error:
            raise InputError(f"--class {text!r} is not NAME=RATE:INPUT:OUTPUT", hint=hint) from error
        if not name:
            raise InputError(f"--class {text!r} has no name", hint=hint)
        if not (isfinite(rate) and min(rate, input_len, output_len) > 0):
            raise InputError(f"--class {text!r}: rate and lengths must be positive", hint=hint)
        return cls.named(name, rate, lengths) if known else cls(name, rate, input_len, output_len)

    @classmethod
    def named(cls, name: str, rate: float, workload: str) -> Demand:
        """A class with the lengths of a workload that has a name."""
        lengths = NAMED[workload]
        return cls(name or workload, rate, lengths.input_len, lengths.output_len, lengths.range_ratio)

    @classmethod
    def reusing(cls, name: str, rate: float, requests: Requests, asked_as: tuple[str, ...]) -> Demand:
        """One class of requests whose prompts have something in common."""
        prefix_len = round(requests.reusable_tok)
        input_len = max(round(float(requests.input_len.mean())) - prefix_len, 1)
        output_len = max(round(float(requests.output_len.mean())), 1)
        return cls(
            name, rate, input_len, output_len, requests=requests, prefix_len=prefix_len, asked_as=asked_as
        )  # fmt: skip

    @classmethod
    def of_trace(
        cls, trace: Trace, rate: float | None = None, classes: int = defaults.TRACE_CLASSES
    ) -> tuple[Demand, ...]:
        """Classes by the length of a request: ``classes`` of about as many tokens each, the short ones first.

        Where prompts have something in common there is one class, so that what goes on from each other stays together.
        ``rate``: requests per second of all of them; None: as fast as the busiest stretch of the trace.
        """
        import numpy as np

        requests, whole_rate = trace.busiest, rate or trace.busiest_rate
        if requests.prefixes is not None:
            return (cls.reusing("trace", whole_rate, requests, ("--trace", trace.path)),)
        total_tok = requests.input_len + requests.output_len
        ascending = np.sort(total_tok)
        upto = np.cumsum(ascending)
        # the longest request of each class but the last
        longest = ascending[np.searchsorted(upto * classes, upto[-1] * np.arange(1, classes))]
        place = np.searchsorted(longest, total_tok)  # requests of one length stay together
        found = []
        for number in range(classes):
            chosen = place == number
            count = int(chosen.sum())
            if not count:
                continue
            part = Requests(requests.input_len[chosen], requests.output_len[chosen], requests.arrival_s[chosen])
            share = count / len(place)
            low, high = int(total_tok[chosen].min()), int(total_tok[chosen].max())
            means = round(float(part.input_len.mean())), round(float(part.output_len.mean()))
            name = f"{low}-{high} tokens" if low < high else f"{low} tokens"
            found.append(cls(name, whole_rate * share, *means, requests=part))
        return tuple(found)


def too_rare(demands: Sequence[Demand], num_prompts: int) -> Demand | None:
    """A class of which not one request is among ``num_prompts`` of all classes, if any: a replay says nothing of it."""
    rate = sum(demand.request_rate for demand in demands)
    drawn = (demand for demand in demands if demand.requests is None)
    return next((demand for demand in drawn if num_prompts * (demand.request_rate / rate) < 1), None)


def requests_of(demands: Sequence[Demand], servers: int, sent: Workload) -> Requests:
    """What one of ``servers`` gets of all classes, as many, as bursty and from the seed that ``sent`` says."""
    return mixed(shares_of(demands, servers), sent.num_prompts, seed=sent.seed, burstiness=sent.burstiness)


def shares_of(demands: Sequence[Demand], servers: int) -> tuple[Demand, ...]:
    """What one of ``servers`` gets of each class."""
    return tuple(replace(demand, request_rate=demand.request_rate / servers) for demand in demands)


def together(demands: Sequence[Demand]) -> Demand:
    """All classes as one, in the order of arrival: what servers get that serve every class."""
    mix = mixed(demands, defaults.MIXED_PROMPTS)
    means = round(float(mix.input_len.mean())), round(float(mix.output_len.mean()))
    return Demand("all", sum(demand.request_rate for demand in demands), *means, requests=mix, parts=tuple(demands))


def benchmarks(
    demands: Sequence[Demand], num_prompts: int, *, seed: int = 0, burstiness: float = 1.0
) -> tuple[Workload, ...]:
    """What a benchmark of each class sends, about ``num_prompts`` in all: the first with ``seed``, the next with more.

    Raises InputError for a class that would not send one.
    """
    rate = sum(demand.request_rate for demand in demands)
    if rare := too_rare(demands, num_prompts):
        raise InputError(
            f"--class {rare.name} sends one request in {rate / rare.request_rate:,.0f}, and {num_prompts:,} are sent",
            hint="raise --num-prompts, or plan that class by itself",
        )
    return tuple(
        replace(
            demand.workload,
            num_prompts=max(round(num_prompts * (demand.request_rate / rate)), 1),
            request_rate=demand.request_rate,
            burstiness=burstiness,
            seed=(seed + place) % SEEDS,
        )
        for place, demand in enumerate(demands)
    )


def mixed(demands: Sequence[Demand], num_prompts: int, *, seed: int = 0, burstiness: float = 1.0) -> Requests:
    """About ``num_prompts`` requests of all classes, by their rates, in the order of arrival.

    Each class is what a benchmark of its own would send meanwhile: the first with ``seed``, the next with ``seed`` + 1,
    so that their arrivals have nothing to do with each other. Raises InputError for a class that would not send one.
    """
    sent = benchmarks(demands, num_prompts, seed=seed, burstiness=burstiness)
    parts = [demand.requests or workload.sample() for demand, workload in zip(demands, sent, strict=True)]
    return joined(demands, parts)


def joined(demands: Sequence[Demand], parts: Sequence[Requests]) -> Requests:
    """The requests of all classes in the order of arrival."""
    import numpy as np

    group = np.repeat(np.arange(len(parts)), [len(part.arrival_s) for part in parts])
    everything = Requests(
        np.concatenate([part.input_len for part in parts]),
        np.concatenate([part.output_len for part in parts]),
        np.concatenate([part.arrival_s for part in parts]),
        priority=np.array([demand.priority for demand in demands])[group],
        group=group,
        groups=tuple(demand.name for demand in demands),
    )
    return everything.chosen(np.argsort(everything.arrival_s, kind="stable"))


def check_classes(demands: Sequence[Demand], policy: str | None) -> None:
    """Raise InputError for classes of one name, and for priorities that ``--scheduling-policy`` does not heed."""
    names = [demand.name for demand in demands]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"--class {twice[0]} is given twice", hint="name each class once")
    if len(demands) > defaults.MOST_CLASSES:
        raise InputError(f"--class is given {len(demands)} times", hint=f"plan {defaults.MOST_CLASSES} classes at most")
    first = next((demand for demand in demands if demand.priority), None)
    if first and policy != PRIORITY:
        raise InputError(
            f"--class {first.name} has a priority, which vLLM refuses where requests are served as they come",
            hint=f"add --scheduling-policy {PRIORITY}",
        )
