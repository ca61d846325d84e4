"""The load and the targets that ``recommend`` plans for: what was asked for, and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from planner.commands.inputs import typed
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults
from planner.workload import (
    DEFAULT_PERCENTILE,
    NAMED,
    OF_A_REQUEST,
    named_sessions,
    parse_slos,
    refuse_gaps_of_one_token,
)

if TYPE_CHECKING:
    from planner.commands.declare import Rivals
    from planner.planning import Demand, Targets
    from planner.workload import Requests, Router, Slo, Workload

#: Parameters that say what a trace says itself, with their flags.
OF_A_TRACE = {
    "input_len": "--random-input-len",
    "output_len": "--random-output-len",
    "random_range_ratio": "--random-range-ratio",
    "max_concurrency": "--max-concurrency",
    "request_rate": "--request-rate",
    "burstiness": "--burstiness",
    "seed": "--seed",
    "num_prompts": "--num-prompts",
    "workload": "--workload",
}
LENGTHS = ("input_len", "output_len", "random_range_ratio")
OF_CLASSES = (*LENGTHS, "max_concurrency", "request_rate", "workload")  #: that classes say themselves
#: What the left says on the command line takes the place of what planner.toml says on the right.
ONE_ARRIVAL: Rivals = ((("request_rate",), ("max_concurrency",)), (("max_concurrency",), ("request_rate",)))
ONE_NAME: Rivals = ((("workload",), LENGTHS), (LENGTHS, ("workload",)))
ONE_LOAD: Rivals = (
    (("trace",), (*OF_A_TRACE, "classes")),
    (("classes",), (*OF_CLASSES, "trace")),
    (("workload", *LENGTHS), ("classes",)),
    *ONE_NAME,
    *ONE_ARRIVAL,
)


@dataclass(frozen=True)
class LoadFlags:
    """What is said about the load and the targets; None where nothing is."""

    input_len: int | None
    output_len: int | None
    random_range_ratio: float | None
    workload: str | None
    max_concurrency: int | None
    request_rate: float | None
    burstiness: float | None
    trace: Path | None
    seed: int | None
    num_prompts: int | None
    router: Router | None
    limits_ms: Mapping[str, float | None]
    percentile: str | None
    confidence: float | None
    classes: tuple[Demand, ...] = ()
    scheduling_policy: str | None = None


LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.05, 0.99  #: beyond, no run says how far off predictions are


@dataclass(frozen=True)
class AskedLoad:
    """Lengths, and targets where there are any."""

    input_len: int
    output_len: int
    range_ratio: float
    longest_len: int | None = None
    targets: Targets | None = None
    notes: tuple[str, ...] = ()
    prefix_len: int = 0  #: that a cache finds which forgets nothing, of a prompt of both


def checked_confidence(value: float | None) -> float | None:
    """``--confidence``. Raises InputError for what is no probability."""
    if value is None:
        return None
    value = float(typed("confidence", value, float))
    if not LEAST_CONFIDENCE <= value <= MOST_CONFIDENCE:
        raise InputError(
            f"--confidence must lie between {LEAST_CONFIDENCE:g} and {MOST_CONFIDENCE:g}, got {value:g}",
            hint="0.8 keeps the targets with a probability of 80 %",
        )
    return value


def asked_load(given: LoadFlags) -> AskedLoad:
    """What is asked for. Raises InputError where flags contradict each other, or make no load."""
    _refuse_contradictions(given)
    least, burstiness = defaults.LEAST_BURSTINESS, given.burstiness
    if burstiness is not None and not burstiness >= least:
        raise InputError(
            f"--burstiness must be a positive number of {least:g} or more, got {burstiness:g}",
            hint="plans are made for gaps that vary by ten times their mean at most; planner predict serve takes more",
        )
    percentile = given.percentile or f"{DEFAULT_PERCENTILE:g}"
    slos = parse_slos(given.limits_ms, percentile)
    lonely = "--percentile" if given.percentile else "--confidence" if given.confidence else ""
    if lonely and not slos and not any(one.limits_ms for one in given.classes):
        raise InputError(f"{lonely} has no target to go with", hint="add --ttft, --tpot, --itl or --e2el, each in ms")
    if given.trace is not None:
        return _of_trace(given.trace, slos, given)
    if given.classes:
        return _of_classes(given.classes, given, percentile)
    lengths = (given.input_len or defaults.LEN, given.output_len or defaults.LEN, given.random_range_ratio or 0.0)
    if given.workload:
        if given.workload in named_sessions():
            return _of_sessions(given.workload, slos, given)
        checked_workload(given.workload)
        named = NAMED[given.workload]
        lengths = (named.input_len, named.output_len, named.range_ratio)
    if not lengths[2]:
        refuse_gaps_of_one_token(slos, lengths[1])
    wanted = slos or given.request_rate is not None
    return AskedLoad(*lengths, targets=_targets(given, slos) if wanted else None)


def slos_of(classes: Sequence[Demand], limits_ms: Mapping[str, float | None], percentile: str) -> tuple[Slo, ...]:
    """The targets: of all, or of each class its own, which take the place of those of all.

    Gaps between tokens are those of all requests.
    """
    of_all = parse_slos(limits_ms, percentile)
    if not any(one.limits_ms for one in classes):
        return of_all
    of_the_server = tuple(slo for slo in of_all if slo.metric not in OF_A_REQUEST)
    others = tuple(slo for slo in of_all if slo.metric in OF_A_REQUEST)
    own = [(one.name, parse_slos(one.limits_ms, percentile) or others) for one in classes]
    return (*of_the_server, *(replace(slo, group=name) for name, slos in own for slo in slos))


def _of_classes(classes: Sequence[Demand], given: LoadFlags, percentile: str) -> AskedLoad:
    """Several classes of requests on each server."""
    from planner.planning import Targets, check_classes, mixed

    check_classes(classes, given.scheduling_policy)
    slos = slos_of(classes, given.limits_ms, percentile)
    for one in classes:
        _check_rate(one.request_rate, f"--class {one.name}")
        refuse_gaps_of_one_token([slo for slo in slos if slo.group in ("", one.name)], one.output_len)
    if given.num_prompts:
        mixed(classes, given.num_prompts)  # refuses a class of which that many send none
    targets = Targets.of_classes(
        classes, slos, given.confidence or defaults.CONFIDENCE,
        seed=given.seed or 0, burstiness=given.burstiness or 1.0,
    )  # fmt: skip
    assert targets.requests is not None
    input_len, output_len = (
        max(round(float(one.mean())), 1) for one in (targets.requests.input_len, targets.requests.output_len)
    )
    return AskedLoad(input_len, output_len, 0.0, max(one.longest_len for one in classes), targets)


def _targets(given: LoadFlags, slos: tuple[Slo, ...]) -> Targets:
    from planner.planning import Targets

    rate, flying = given.request_rate, given.max_concurrency
    if rate is not None:
        _check_rate(rate, "--request-rate", "; leave it out for the most that one server carries")
    if flying is not None:
        return Targets(slos, "concurrency", float(flying), confidence=given.confidence or defaults.CONFIDENCE)
    return Targets(slos, "rate", rate, confidence=given.confidence or defaults.CONFIDENCE)


def _check_rate(rate: float, flag: str, more: str = "") -> None:
    if not defaults.LEAST_RATE <= rate <= defaults.MOST_RATE:
        raise InputError(
            f"{flag} must be a positive number from {defaults.LEAST_RATE:g} to {defaults.MOST_RATE:,.0f}, got {rate:g}",
            hint=f"requests per second of all servers together{more}",
        )


def checked_workload(name: str) -> str:
    """``--workload``. Raises UnknownNameError."""
    if name not in NAMED and name not in named_sessions():
        raise UnknownNameError("workload", name, [*NAMED, *named_sessions()], see="docs/library.md")
    return name


def lengths_by_name(name: str) -> tuple[int, int, float]:
    """Tokens in and out of a workload, and their range ratio. Raises InputError for one of several turns."""
    if checked_workload(name) not in NAMED:
        raise InputError(
            f"--workload {name} has turns, and a GPU here is sent lengths alone",
            hint="ask planner predict serve, recommend or fleet, or name one of " + ", ".join(NAMED),
        )
    named = NAMED[name]
    return named.input_len, named.output_len, named.range_ratio


def requests_of_sessions(name: str, rate: float | None, seed: int = 0) -> Requests:
    """A load of several turns by name. Raises InputError without a rate: hits depend on how many sessions there are."""
    if rate is None:
        raise InputError(
            f"--workload {name} has turns, and what they find in the prefix cache depends on how many come",
            hint="add --request-rate, requests per second of all servers together",
        )
    if not defaults.LEAST_RATE <= rate <= defaults.MOST_RATE:
        raise InputError(f"--request-rate {rate:g} is no rate to plan for", hint="give requests per second")
    return named_sessions()[name].requests(rate, seed)


def _of_sessions(name: str, slos: tuple[Slo, ...], given: LoadFlags) -> AskedLoad:
    requests = requests_of_sessions(name, given.request_rate, given.seed or 0)
    return _of_requests(requests, slos, given, rate=given.request_rate or 0.0, drawn=True)


def _of_requests(requests: Requests, slos: tuple[Slo, ...], given: LoadFlags, *, rate: float, **of: Any) -> AskedLoad:
    """Requests at their own pace. The lengths are their means: what is new, after what a cache may find."""
    from planner.planning import Targets

    confidence, router = given.confidence or defaults.CONFIDENCE, given.router or "round-robin"
    targets = Targets(slos, "rate", rate, requests, confidence=confidence, router=router, **of)
    prefix_len = round(requests.reusable_tok)
    new_len = max(round(float(requests.input_len.mean())) - prefix_len, 1)
    output_len = max(round(float(requests.output_len.mean())), 1)
    return AskedLoad(new_len, output_len, 0.0, requests.max_total_len, targets, prefix_len=prefix_len)


def _of_trace(path: Path, slos: tuple[Slo, ...], given: LoadFlags) -> AskedLoad:
    from planner.planning import PlannedTrace
    from planner.workload import read_trace

    trace = read_trace(path)
    if not defaults.LEAST_RATE <= trace.busiest_rate <= defaults.MOST_RATE:
        raise InputError(
            f"--trace {path}: its busiest stretch has {trace.busiest_rate:.3g} requests/s",
            hint=f"plans are made for {defaults.LEAST_RATE:g} to {defaults.MOST_RATE:,.0f} requests/s",
        )
    planned = PlannedTrace(
        path=trace.path,
        sha256=trace.sha256,
        requests=trace.rows,
        mean_rate=trace.mean_rate,
        busiest_rate=trace.busiest_rate,
    )
    # what is planned for is the busiest stretch; only the context has to hold the longest request of all
    of = {"trace": planned, "burstiness": trace.burstiness}
    found = _of_requests(trace.busiest, slos, given, rate=trace.busiest_rate, **of)
    return replace(found, longest_len=trace.longest_len, notes=trace.notes)


def _refuse_contradictions(given: LoadFlags) -> None:
    both = [spelling for name, spelling in OF_A_TRACE.items() if getattr(given, name) is not None]
    if given.trace is not None and both:
        raise InputError(
            f"--trace and {both[0]} are both given", hint="a trace brings its own lengths and arrivals: leave one out"
        )
    if given.classes and (both := [OF_A_TRACE[name] for name in OF_CLASSES if getattr(given, name) is not None]):
        raise InputError(
            f"--class and {both[0]} are both given",
            hint="a class says how long its requests are and how many come: leave one out",
        )
    if given.classes and given.trace is not None:
        raise InputError("--class and --trace are both given", hint="each says what is sent: leave one out")
    lengths = [OF_A_TRACE[name] for name in LENGTHS if getattr(given, name) is not None]
    if given.workload is not None and lengths:
        raise InputError(
            f"--workload and {lengths[0]} are both given", hint="a named workload brings its own lengths: leave one out"
        )
    if given.request_rate is not None and given.max_concurrency is not None:
        raise InputError(
            "--request-rate and --max-concurrency are both given",
            hint="say how the load comes: so many a second, or so many in flight",
        )
    if given.router is not None and given.trace is None and given.workload not in named_sessions():
        raise InputError(
            "--router has nothing to go with: what these prompts have in common is not known",
            hint="add --trace, or --workload with one of " + ", ".join(named_sessions()),
        )


def workload_of(**given: Any) -> Workload:
    """The load with these fields. Raises InputError for values that ``vllm bench`` would not accept."""
    from planner.workload import Workload

    hints = get_type_hints(Workload)
    return Workload(**{name: typed(name, value, hints[name]) for name, value in given.items()})


def check_context(workload: Workload, max_model_len: int, model: str, *, longest_len: int | None = None) -> None:
    """Raises InputError where a request of the load is longer than the context: the server would refuse it.

    ``longest_len``: tokens of the longest request of a trace.
    """
    if longest_len is not None and longest_len > max_model_len:
        raise InputError(
            f"--trace: the longest request has {longest_len} tokens, more than the {max_model_len} that {model} is "
            "served with",
            hint="raise --max-model-len where that is what limits, or choose a model of longer context",
        )
    longest = workload.max_total_len
    if longest > max_model_len:
        raise InputError(
            f"--input-len {workload.input_len} and --output-len {workload.output_len} make requests of {longest} "
            f"tokens, more than the {max_model_len} that {model} is served with",
            hint="shorten them, raise --max-model-len where that is what limits, or choose a model of longer context",
        )


def check_load(workload: Workload) -> None:
    """Raises InputError for more seconds of arrivals than a replay can follow."""
    arrivals_s = workload.num_prompts / workload.request_rate
    if arrivals_s > defaults.LONGEST_REPLAY_S:
        raise InputError(
            f"--request-rate {workload.request_rate:g}: {workload.num_prompts} requests arrive over {arrivals_s:.3g} s",
            hint=f"raise the rate or send fewer prompts: a replay covers {defaults.LONGEST_REPLAY_S:,} s",
        )
