"""The load and the targets that are asked for: which options exclude each other, and what they mean."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, inf, isfinite
from typing import Any

from planner import hardware
from planner import workload as loads
from planner.commands.declare import Rivals
from planner.commands.options import assignments
from planner.engine import flag_of
from planner.errors import InputError
from planner.planning import defaults, price_of
from planner.resources import package_dir, tables_of
from planner.units import figure, whole_number

FASTEST_MS = {"ttft": 10, "tpot": 1, "itl": 1, "e2el": 100}  #: below all published runs: seconds are meant
LENGTHS, PREFIX = ("input_len", "output_len", "random_range_ratio"), "random_prefix_len"
SPELLED = {"input_len": "--random-input-len", "output_len": "--random-output-len", "classes": "--class"}


#: An option, those that cannot be given beside it, the reason, and whether only planned servers or turns exclude them.
EXCLUSIONS: list[dict[str, Any]] = tables_of(package_dir("commands") / "exclusions.toml")["exclusions"]


def refuse_contradictions(given: Mapping[str, Any], *, planned: bool) -> None:
    """Raise InputError for two options of ``EXCLUSIONS`` that are both said; ``planned``: servers are planned."""
    present = [name for name, value in given.items() if value is not None and value != () and value != ""]
    for rule in EXCLUSIONS:
        both = [name for name in rule["excluded"] if name in present]
        if rule["option"] in present and both and (planned or not rule.get("planned")):
            if rule.get("turns") and str(given["workload"]) not in loads.named_sessions():
                continue
            raise InputError(f"{_flag(rule['option'])} and {_flag(both[0])} are both given", hint=rule["hint"])


def rivals(*, planned: bool) -> Rivals:
    """For planner.toml: what the left says on the command line takes the place of what the file says on the right."""
    known = (rule for rule in EXCLUSIONS if (planned or not rule.get("planned")) and not rule.get("turns"))
    rules = (((rule["option"],), tuple(rule["excluded"])) for rule in known)
    return tuple(pair for one, others in rules for pair in ((one, others), *(((name,), one) for name in others)))


def _flag(name: str) -> str:
    return SPELLED.get(name, flag_of(name))


def with_use_case(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the options with ``use_case`` written out as workload, targets and goal, and a note that says so.

    Lengths, targets and a goal that are given win. Raises InputError for ``workload`` beside it, UnknownNameError."""
    given = {key: value for key, value in options.items() if value is not None}
    asked = ((name, given.get(name), least) for name, least in FASTEST_MS.items())
    in_ms = tuple(
        f"targets are in ms: {limit:g} s is --{name} {limit * 1e3:g}"
        for name, limit, least in asked if isinstance(limit, int | float) and 0 < limit < least
    )  # fmt: skip
    if "use_case" not in given:
        return dict(options), (*in_ms, *_of_classes_alone(given))
    refuse_contradictions(given, planned=True)
    name = checked_workload(given.pop("use_case"))
    case, load = dict(loads.use_cases()[name]), dict[str, Any](workload=name)
    case.pop("source")
    if given.get("trace") or given.get("classes"):
        load = {}
    elif name in loads.NAMED and any(length in given for length in LENGTHS):
        named = loads.NAMED[name]
        load = {"input_len": named.input_len, "output_len": named.output_len, "random_range_ratio": named.range_ratio}
    options = {**load, **case, **given}
    slos = loads.parse_slos(
        {metric: case.get(metric) for metric in loads.LATENCIES.keys() - given}, options.get("percentile")
    )
    sets = f"{loads.targets_in_words(slos)}; change with {' and '.join(f'--{slo.metric}' for slo in slos)}"
    sets = sets if slos else f"--goal {case['goal']}" if "goal" in case.keys() - given else ""
    return options, (*([f"--use-case {name} sets {sets}"] if sets else []), *in_ms, *_of_classes_alone(options))


def _of_classes_alone(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note on each class that has targets, and so none of those for all of other metrics."""
    for one in options.get("classes") or ():
        others = [name for name in loads.OF_A_REQUEST if options.get(name) and name not in one.limits_ms]
        if one.limits_ms and others:
            flags, words = " and ".join(f"--{name}" for name in others), ",".join(f"{name}=MS" for name in others)
            yield f"class {one.name} has targets of its own, without {flags}: add {words} to it"


def load_of(
    *, input_len: Any = None, output_len: Any = None, random_range_ratio: Any = None, workload: Any = None,
    trace: Any = None, classes: Sequence[loads.Load] = (), request_rate: float | None = None,
    num_prompts: int | None = None, seed: int | None = None, burstiness: float | None = None,
    scheduling_policy: str | None = None, random_prefix_len: int = 0,
) -> loads.Load:  # fmt: skip
    """The load that these options name, an open loop if a rate is given. Raises InputError for impossible values."""
    if request_rate is not None:
        _ = loads.Load(1, 1, request_rate=request_rate)  # refuses impossible values
    rate = None if request_rate is None or not isfinite(request_rate) else request_rate
    rhythm: dict[str, Any] = {"seed": seed or 0, "burstiness": 1.0 if burstiness is None else burstiness}
    if num_prompts is not None:
        rhythm["num_prompts"] = num_prompts
    if trace is not None:
        return loads.Load.trace(trace, rate)
    if classes:
        loads.check_classes(classes, scheduling_policy)
        _ = loads.Load(1, 1, **rhythm)  # refuses impossible values
        return loads.Load.classes_of(classes, **rhythm)
    sent = {**rhythm, "prefix_len": random_prefix_len, "request_rate": inf if request_rate is None else request_rate}
    if workload is None:
        input_len, output_len = (defaults.LEN if length is None else length for length in (input_len, output_len))
        return loads.Load(input_len, output_len, range_ratio=random_range_ratio or 0.0, **sent)
    if checked_workload(workload) in loads.NAMED:
        return loads.Load.named(workload, **sent)
    if rate is None:
        cause = f"--workload {workload} has turns, and what they find in the prefix cache depends on how many come"
        one = f"{figure(1 / loads.named_sessions()[workload].turn_s)} is about one session at a time"
        raise InputError(cause, hint=f"add --request-rate, requests per second of all servers together; {one}")
    check_planned_rate(rate)
    return loads.Load.sessions(workload, rate, rhythm["seed"])


def checked_workload(name: Any, *, turns: bool = True) -> str:
    """``--workload``. Raises UnknownNameError, and InputError for one of several turns without ``turns``."""
    loads.check_workload(name, [*loads.NAMED, *loads.named_sessions()])
    if name not in loads.NAMED and not turns:
        cause = f"--workload {name} has turns, and a GPU here is sent lengths alone"
        hint = "ask planner predict serve, recommend or fleet, or name one of " + ", ".join(loads.NAMED)
        raise InputError(cause, hint=hint)
    return str(name)


def planned_load(
    given: Mapping[str, Any], size: Mapping[str, Any], scheduling_policy: str | None
) -> tuple[loads.Load, loads.Targets | None]:
    """The load and the targets of ``PlannedLoad``. Raises InputError where options contradict each other."""
    refuse_contradictions({**given, **size}, planned=True)
    burstiness, least = given.get("burstiness"), defaults.LEAST_BURSTINESS
    if burstiness is not None and not burstiness >= least:
        cause = f"--burstiness must be a positive number of {least:g} or more, got {burstiness:g}"
        raise InputError(cause, hint="planner predict serve takes smaller ones")
    names = (*LENGTHS, PREFIX, "workload", "trace", "classes", "request_rate", "seed")
    of_load = {name: given[name] for name in (*names, "burstiness") if name in given}
    limits_ms: dict[str, float | None] = {name: given.get(name) for name in loads.LATENCIES}
    sized = any(limits_ms.values()) or size.get("budget") or size.get("have")
    largest = sized and given.get("workload") in loads.named_sessions() and not given.get("request_rate")
    if largest:
        of_load["request_rate"] = 1.0  # the search deals turns anew at each rate
    load = load_of(**of_load, scheduling_policy=scheduling_policy)
    if load.classes and "num_prompts" in given:
        loads.benchmarks(load.classes, given["num_prompts"])  # refuses a class of which that many send none
    percentile = given.get("percentile")
    of_targets = {name: given.get(name) for name in ("confidence", "request_rate", "max_concurrency", "router")}
    targets = targets_of(
        load, limits_ms, percentile=f"{percentile:g}" if isinstance(percentile, float) else percentile, **of_targets
    )
    targets = replace(targets, value=None) if targets and largest else targets
    return load, targets


def targets_of(
    load: loads.Load, limits_ms: Mapping[str, float | None], *, percentile: str | None = None,
    confidence: float | None = None, request_rate: float | None = None, max_concurrency: int | None = None,
    router: "loads.Router | None" = None,
) -> loads.Targets | None:  # fmt: skip
    """The targets under ``load``, and how much of it all servers carry; None without targets and without a rate."""
    slos = slos_of(load.classes or (load,), limits_ms, percentile)
    single = "--percentile" if percentile else "--confidence" if confidence else ""
    if single and not slos:
        raise InputError(f"{single} has no target to go with", hint="add --ttft, --tpot, --itl or --e2el, each in ms")
    if router == "prefix-aware" and not (load.reused or load.origin):
        cause = "--router prefix-aware has nothing to go with: what these prompts have in common is not known"
        raise InputError(cause, hint="add --trace, or --workload with one of " + ", ".join(loads.named_sessions()))
    trust = confidence or defaults.CONFIDENCE
    if load.recorded is not None:
        for one in load.classes:
            check_planned_rate(one.request_rate, f"--class {one.name}")
        check_planned_rate(
            load.request_rate, "--trace: the rate of its busiest stretch" if load.origin else "--request-rate"
        )
        return loads.Targets(slos, "rate", load.request_rate, confidence=trust, router=router)
    if not slos and request_rate is None:
        return None
    if request_rate is not None:
        check_planned_rate(request_rate, more="; leave it out for the most that one server carries")
    if max_concurrency is not None:
        return loads.Targets(slos, "concurrency", float(max_concurrency), confidence=trust, router=router)
    return loads.Targets(slos, "rate", request_rate, confidence=trust, router=router)


def slos_of(
    classes: Sequence[loads.Load], limits_ms: Mapping[str, float | None], percentile: str | None
) -> "tuple[loads.Slo, ...]":
    """The targets of all, or of each class its own. Raises InputError for gaps where answers have one token."""
    slos = loads.parse_slos(limits_ms, percentile)
    if any(one.limits_ms for one in classes):
        of_the_server = tuple(slo for slo in slos if slo.metric not in loads.OF_A_REQUEST)
        others = tuple(slo for slo in slos if slo.metric in loads.OF_A_REQUEST)
        by_class = [(one.name, loads.parse_slos(one.limits_ms, percentile) or others) for one in classes]
        slos = (*of_the_server, *(replace(slo, group=name) for name, targets in by_class for slo in targets))
    for one in classes:
        if one.recorded is None and not one.range_ratio:
            loads.refuse_gaps_of_one_token([slo for slo in slos if slo.group in ("", one.name)], one.output_len)
    return slos


def gpus_in(size: Mapping[str, Any]) -> list[str] | None:
    """The GPUs that ``--have`` names; None without it."""
    words = assignments(size.get("have", ()))
    return [word.partition("=")[0] if "=" in word else hardware.counted_name(word)[0] for word in words] or None


def stock_of(
    size: dict[str, Any], profiles: "Sequence[hardware.GpuProfile]", prices: Mapping[str, float]
) -> dict[str, int] | None:
    """Whole GPUs by profile id of ``--have`` or ``--budget``, which are taken out of ``size``; None: neither."""
    budget, have = size.pop("budget", None), size.pop("have", ())
    if have:
        return stocks("--have", assignments(have), profiles)
    if budget is None:
        return None
    priced = ((profile, price) for profile in profiles if (price := price_of(profile, prices)) and price.usd_per_h.mid)
    usd = {profile.id: price.usd_per_h.mid * profile.parts for profile, price in priced}
    if not usd:
        raise InputError("--budget: no price is known for these GPUs", hint=f"add --price {profiles[0].id}=USD")
    stock = {profile.id: floor(budget / usd.get(profile.id, inf) + 1e-9) for profile in profiles}
    if not any(stock.values()):
        least, gpu = min((each, gpu) for gpu, each in usd.items())
        cause = f"--budget {budget:g} rents no GPU: one {gpu} is {least:.2f} USD/h"
        raise InputError(cause, hint=f"--budget {least:.3g} or more")
    return stock


def stocks(flag: str, words: Sequence[str], profiles: "Sequence[hardware.GpuProfile]") -> dict[str, int]:
    """Whole GPUs by profile id, from ``h100=16`` or ``16xh100``. Raises InputError, naming ``flag``."""
    known = {profile.id for profile in profiles} | {profile.whole for profile in profiles}
    stock: dict[str, int] = {}
    hint = "a positive number of GPUs, such as h100=16; to plan without a GPU, leave it out of --gpu"
    for word in words:
        name, equals, text = word.partition("=")
        name, number = (name, whole_number(text)) if equals else hardware.counted_name(word)
        if not number:
            raise InputError(f"{flag} {word!r} is not GPU=N", hint=hint)
        gpu = hardware.load_profile(name).id
        if gpu not in known:
            raise InputError(f"{flag} {word!r}: {gpu} is not among the GPUs", hint=f"add --gpu {gpu}")
        if gpu in stock:
            raise InputError(f"{flag} of {gpu} is given twice", hint="give each GPU one number")
        stock[gpu] = number
    return stock


def check_planned_rate(rate: float, flag: str = "--request-rate", more: str = "") -> None:
    """Raise InputError for requests per second that no servers are planned for."""
    if not defaults.LEAST_RATE <= rate <= defaults.MOST_RATE:
        raise InputError(
            f"{flag} must be a positive number from {defaults.LEAST_RATE:g} to {defaults.MOST_RATE:,.0f}, got {rate:g}",
            hint=f"requests per second of all servers together{more}",
        )
