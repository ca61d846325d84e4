"""Measurements of a plan beside its prediction, and why they missed: first what the log says, then the pattern.

Further loads, which ``sweep.sh`` sent, are replayed with the fits that the plan names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, inf
from pathlib import Path
from typing import Any, Literal, cast

from planner.engine import SHORT_NAMES, flag_of, parse_version
from planner.errors import InputError, PlannerError
from planner.evidence.folder import MeasuredPlan, Setting, planned_result, read_measured, read_result
from planner.evidence.results import AGAIN, read_number, stated_number
from planner.memory import StartupLog
from planner.planning import SHIPPED, Deployment, Plan, Prediction, local_for, redeploy
from planner.resources import package_dir, tables_of
from planner.units import GIB, LEAST_FIGURE, MOST_FIGURE
from planner.workload import METRICS, Slo

Verdict = Literal["inside", "above", "below"]

#: Shares by which a prediction without an interval may miss; two runs of one load differ by 2 to 6 % (TTFT once 27 %).
TOLERANCES = {"throughput": 0.15, "tpot": 0.20, "itl": 0.20, "e2el": 0.20, "ttft": 0.35}
TAIL = 1.5  #: times as much for the 90th and 99th percentile
MEMORY_TOLERANCES = {
    "memory_bytes": 0.02,  # GPUs of one name report totals that differ by a few tenths of a per cent
    "weights_bytes": 0.02,
    "kv_cache_bytes": 0.05,
    "kv_cache_tokens": 0.05,
}
#: Metrics that are compared at other loads than the plan's own.
SWEEP_METRICS = ("output_throughput", "mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms")
SAME = 0.005  #: share by which a setting in a log may differ from the plan's


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One metric, predicted and measured, in ``unit``: tokens/s, requests/s, ms, GiB or tokens."""

    metric: str  #: key of the result file, or of the plan's memory
    unit: str
    predicted: float
    lo: float
    hi: float
    measured: float
    basis: str  #: where the bounds come from: ``interval``, ``± 20 %``

    @property
    def verdict(self) -> Verdict:
        return "above" if self.measured > self.hi else "below" if self.measured < self.lo else "inside"

    @property
    def in_words(self) -> str:
        if self.is_inside:
            return "inside"
        if self.unit in ("GiB", "tokens"):
            return "more" if self.verdict == "above" else "less"
        return "slower" if (self.verdict == "above") is (self.unit == "ms") else "faster"

    @property
    def is_inside(self) -> bool:
        return self.verdict == "inside"

    @property
    def error(self) -> float:
        return self.measured / self.predicted - 1 if self.predicted else 0.0

    error_vs_predicted = error


def compare_plan(measured: MeasuredPlan) -> tuple[ComparedLine, ...]:
    """Compare every metric that was both predicted and measured: rates, latencies, memory."""
    lines = compare_results(measured.plan.predicted, measured.result)
    if measured.startup:
        planned = dict(measured.plan.memory)
        if measured.plan.platform == "cpu":  # one profile stands for machines of any memory
            planned.pop("memory_bytes", None)
        lines += _memory(planned, measured.startup, measured.plan.block_size)
    return tuple(lines)


def compare_results(predicted: Mapping[str, Any], result: Mapping[str, Any]) -> list[ComparedLine]:
    """Compare every rate and latency that is in both results of ``vllm bench serve``."""
    lines: list[ComparedLine] = []
    for key, metric in METRICS.items():
        if metric.of in TOLERANCES:
            share = TOLERANCES[metric.of] * (TAIL if key.startswith("p") else 1)
            lines += _line(key, metric.unit, share, predicted, result)
    return lines


def _line(
    key: str, unit: str, share: float, predicted: Mapping[str, Any], result: Mapping[str, Any], scale: float = 1
) -> Iterator[ComparedLine]:
    value, measured = predicted.get(key), result.get(key)
    if not isinstance(value, int | float) or measured is None or value < LEAST_FIGURE:
        return
    if not isinstance(measured, int | float) or not abs(measured) <= MOST_FIGURE:  # nor NaN
        raise InputError(f"the result is broken: {key} is {measured!r:.40}", hint=AGAIN)
    lo, hi, basis = predicted.get(f"{key}_lo"), predicted.get(f"{key}_hi"), "interval"
    if not isinstance(lo, int | float) or not isinstance(hi, int | float):
        lo, hi, basis = value * (1 - share), value * (1 + share), f"± {share:.0%}"
    yield ComparedLine(key, unit, value / scale, lo / scale, hi / scale, measured / scale, basis)


def _memory(planned: dict[str, Any], startup: StartupLog, block_size: int) -> Iterator[ComparedLine]:
    tokens = startup.kv_cache_tokens
    if tokens is None and startup.num_gpu_blocks is not None:  # V0 prints no more
        tokens = startup.num_gpu_blocks * block_size
    logged = {name: getattr(startup, name) for name in MEMORY_TOLERANCES} | {"kv_cache_tokens": tokens}
    tokens_of, size = planned.get("kv_cache_tokens", 0), planned.get("kv_cache_bytes", 0)
    for end in ("lo", "hi"):  # tokens, and so their bounds, are proportional to the bytes of the cache
        if min(tokens_of, size, bound := planned.get(f"kv_cache_bytes_{end}", 0)) >= LEAST_FIGURE:
            planned.setdefault(f"kv_cache_tokens_{end}", tokens_of * (bound / size))  # a given cache stays exact
    for key, share in MEMORY_TOLERANCES.items():
        in_tokens = key == "kv_cache_tokens"
        yield from _line(key, "tokens" if in_tokens else "GiB", share, planned, logged, 1 if in_tokens else GIB)


NOTICEABLE_HITS = 0.02  #: prefix-cache hits below this share do not change the TTFT noticeably
UNTAGGED = "0.1.dev"  #: the version that builds without a release number print
FULL_CACHE = 0.98  #: share of blocks in use from which the cache is full and requests wait
SAME_ACCEPTED = 0.05  #: share by which the tokens of a step with drafts may differ from the prediction's
HOST_BOUND_MS = 12.0  #: decode steps shorter than this are about as long as the host's work between them
NOT_THE_PLAN = ("version", "settings")  #: with these causes the figures say nothing about the plan
#: TTFT and TPOT, or ITL's median and tail, are slower by one factor if their ratios to the prediction differ by less.
ALIKE = 1.2


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause, the evidence for it, and what to do next."""

    cause: str
    evidence: str
    next_step: str
    not_the_plan: bool = False  #: another version or other settings ran: the figures say nothing about the plan


@dataclass(frozen=True)
class _Evidence:
    measured: MeasuredPlan
    lines: Sequence[ComparedLine]

    @cached_property
    def by_metric(self) -> Mapping[str, ComparedLine]:
        return {line.metric: line for line in self.lines}

    @cached_property
    def ratio(self) -> Mapping[str, float]:
        return {line.metric: line.measured / line.predicted for line in self.lines}

    def finding(self, name: str, **values: Any) -> Finding:
        times = dict.fromkeys(METRICS, "not compared with") | {key: f"{x:.2f} times" for key, x in self.ratio.items()}
        known = {"plan": self.measured.plan, "log": self.measured.log, "startup": self.measured.startup}
        values |= {**known, "case": self, "ratio": self.ratio, "times": times}
        causes = tables_of(package_dir("evidence") / "causes.toml")
        texts = {key: text.format(**values) for key, text in causes[name].items()}
        return Finding(**texts, not_the_plan=name in NOT_THE_PLAN)

    def missed(self, metric: str) -> ComparedLine | None:
        line = self.by_metric.get(metric)
        return line if line and not line.is_inside else None

    def differ(self, *metrics: str, faster: bool = False) -> bool:
        """True if one of ``metrics`` missed and is slower than predicted, or ``faster``."""
        missed = [line for metric in metrics if (line := self.missed(metric))]
        return any(((line.verdict == "above") is (line.unit == "ms")) is not faster for line in missed)

    @property
    def wrong_gpu_or_weights(self) -> bool:
        return self.missed("memory_bytes") is not None or self.missed("weights_bytes") is not None

    @property
    def needed_tok(self) -> int:
        """Most tokens that the load holds at once in one engine."""
        plan, load = self.measured.plan, self.measured.plan.workload.sent
        in_flight = load.max_concurrency or load.num_prompts
        requests = ceil(min(in_flight, plan.max_running) / plan.data_parallel_size)
        shared = load.prefix_len if plan.enable_prefix_caching else 0  # kept once
        return requests * (load.max_total_len - shared) + shared

    @property
    def small_cache(self) -> ComparedLine | None:
        line = self.missed("kv_cache_tokens")
        too_small = line and line.verdict == "below" and line.measured < self.needed_tok
        return line if too_small and not self.wrong_gpu_or_weights else None

    def cache(self, line: ComparedLine) -> str:
        digits, startup = 0 if line.unit == "tokens" else 2, self.measured.startup
        parts = {"activations": startup.activation_bytes, "graphs": startup.graph_bytes} if startup else {}
        logged = "".join(f"; {name} {value / GIB:.2f} GiB" for name, value in parts.items() if value)
        return f"{line.measured:,.{digits}f} {line.unit} instead of {line.predicted:,.{digits}f}{logged}"


def find_causes(measured: MeasuredPlan, lines: Sequence[ComparedLine]) -> tuple[Finding, ...]:
    """Causes with evidence, likeliest first. A log that contradicts the plan counts even without a miss."""
    case = _Evidence(measured, lines)
    causes = tuple(_from_the_log(case))
    missed = ", ".join(line.metric for line in lines if not line.is_inside)
    if not missed:
        return causes
    return (*causes, *_from_the_pattern(case)) or (case.finding("none", missed=missed),)


def _from_the_log(case: _Evidence) -> Iterator[Finding]:
    plan, log, startup = case.measured.plan, case.measured.log, case.measured.startup
    version, small, logged = log.version if log else None, case.small_cache, log.settings if log else {}
    narrow = (plan.model_copy(update=dict(line)) for line in (plan.benchmark_line,) if line)
    settings = ", ".join(sorted((_differences(line, logged) for line in (plan, *narrow)), key=len)[0])
    drafts, accepted = plan.speculative_config, case.measured.result.get("spec_decode_acceptance_length")
    planned_release = parse_version(plan.engine_version).release
    rules = {
        "refused": startup and startup.refusal,
        "version": version and not version.startswith(UNTAGGED) and parse_version(version).release != planned_release,
        "gpu": case.missed("memory_bytes"),
        "weights": case.missed("weights_bytes"),
        "settings": settings,
        "accepted": drafts
        and isinstance(accepted, int | float)
        and abs(accepted / drafts.acceptance_length - 1) > SAME_ACCEPTED,
        "preempted": log and log.preemptions,
        "small_cache": small,
    }
    image, cache = plan.image or "none: vLLM as installed", case.cache(small) if small else ""
    values = {**rules, "settings": settings, "image": image, "cache": cache, "accepted": accepted}
    yield from (case.finding(name, **values) for name, holds in rules.items() if holds)


def _differences(plan: Plan, logged: Mapping[str, Setting]) -> list[str]:
    pairs = ((name, value, _planned(plan, name, value)) for name, value in logged.items())
    return [f"{name} {ran} instead of {to}" for name, ran, to in pairs if to is not None and not _same(ran, to)]


def _planned(plan: Plan, name: str, logged: Setting) -> Setting | None:
    """The plan's setting; None where it leaves the choice to vLLM. A logged ``auto`` is the value that was given."""
    if name == "dtype" or logged == "auto":
        flag = flag_of(name)
        asked = plan.serve_argv[plan.serve_argv.index(flag) + 1] if flag in plan.serve_argv else "auto"
        return None if asked == "auto" else asked
    return cast("Setting", getattr(plan, name))


def _same(logged: Setting, planned: Setting) -> bool:
    if not isinstance(logged, str) and not isinstance(planned, str):
        return abs(logged - planned) <= SAME * max(abs(logged), abs(planned))
    # fp8 is e4m3, also in the layouts of some kernels (``fp8_ds_mla``)
    first, second = (SHORT_NAMES.get(str(value), str(value)).replace("fp8_e5m2", "e5m2") for value in (logged, planned))
    return first == second or (first.startswith("fp8") and second.startswith("fp8"))


def _from_the_pattern(case: _Evidence) -> Iterator[Finding]:
    log, ratio = case.measured.log, case.ratio
    slow_prefill = case.differ("mean_ttft_ms", "median_ttft_ms")
    slow_decode = case.differ("mean_tpot_ms", "median_tpot_ms", "median_itl_ms")
    first, each = (ratio.get(f"mean_{name}_ms", 0.0) for name in ("ttft", "tpot"))
    both = slow_prefill and slow_decode and first and each
    alike = both and max(first, each) / min(first, each) < ALIKE
    tokens = case.by_metric.get("median_itl_ms") or case.by_metric.get("median_tpot_ms")
    on_host = tokens is not None and tokens.predicted < HOST_BOUND_MS
    line = case.missed("kv_cache_tokens") or case.missed("kv_cache_bytes")
    spare = line and not case.wrong_gpu_or_weights and not case.small_cache  # it is large enough for this load
    hits = (log.prefix_hit_rate or 0) > NOTICEABLE_HITS if log else False
    gaps = ratio.get("p99_itl_ms", 0.0) > ALIKE * ratio.get("median_itl_ms", inf)  # more than all of them are longer
    is_faster = case.differ("output_throughput", "mean_e2el_ms", faster=True)
    rules = {
        "full_cache": log and not log.preemptions and (log.peak_cache_usage or 0) >= FULL_CACHE and log.peak_waiting,
        "prefix_hits": hits and case.differ("mean_ttft_ms", "median_ttft_ms", "output_throughput", faster=True),
        "all_slow": both and alike,
        "both_slow": both and not alike,
        "slow_prefill": slow_prefill and not slow_decode,
        "slow_host": slow_decode and not slow_prefill and on_host,
        "slow_decode": slow_decode and not slow_prefill and not on_host,
        "long_gaps": gaps and case.differ("p99_itl_ms"),
        "faster": is_faster and not slow_prefill and not slow_decode,
        "fewer_blocks": spare and line and line.verdict == "below",
        "more_blocks": spare and line and line.verdict == "above",
    }
    values = {"tokens": tokens, "cache": case.cache(line) if line else ""}
    yield from (case.finding(name, **values) for name, holds in rules.items() if holds)


@dataclass(frozen=True, slots=True)
class FurtherLoad:
    """One load of ``sweep.sh``, such as ``concurrency-8``; or one class among others."""

    load: str
    result_name: str
    lines: tuple[ComparedLine, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """A latency target of the plan, and the benchmark's figure for it."""

    slo: Slo
    predicted_ms: float | None  #: of the benchmark, whose closed loop opens with a burst
    measured_ms: float | None

    @property
    def verdict(self) -> str:
        """``not judged``: the benchmark was predicted to miss it, by its opening burst."""
        if self.predicted_ms is None or self.measured_ms is None:
            return "not measured"
        missed = "missed" if self.predicted_ms <= self.slo.limit_ms else "not judged"
        return "met" if self.measured_ms <= self.slo.limit_ms else missed

    def __str__(self) -> str:
        known = (("measured", self.measured_ms), ("predicted", self.predicted_ms))
        figures = ", ".join(f"{ms:,.4g} ms {name}" for name, ms in known if ms is not None)
        return f"target {self.slo}: {self.verdict}" + f" ({figures})" * bool(figures)


@dataclass(frozen=True)
class Validation:
    """Predicted beside measured, and what to make of it."""

    measured: MeasuredPlan
    lines: tuple[ComparedLine, ...]
    findings: tuple[Finding, ...]
    further: tuple[FurtherLoad, ...] = ()  #: other loads of the same server
    notes: tuple[str, ...] = ()

    @property
    def every_line(self) -> tuple[ComparedLine, ...]:
        """Lines of the plan's own load, then those of further loads."""
        return (*self.lines, *(line for load in self.further for line in load.lines))

    @property
    def targets(self) -> tuple[MeasuredTarget, ...]:
        plan, ran = self.measured.plan, zip(self.measured.plan.classes, self.measured.of_classes, strict=True)
        sides = {"": (plan.predicted, self.measured.result)} | {
            one.name: (one.predicted, figures) for one, figures in ran
        }
        return tuple(MeasuredTarget(one.slo, *(x.get(one.metric) for x in sides[one.of_class])) for one in plan.targets)

    @property
    def inside(self) -> bool:
        return all(line.is_inside for line in self.every_line)

    @property
    def as_planned(self) -> bool:
        """True unless the log shows another version of vLLM, or other settings, than the plan."""
        return not any(finding.not_the_plan for finding in self.findings)


def compare(measured: MeasuredPlan) -> Validation:
    """Compare a plan's own load alone."""
    lines = compare_plan(measured)
    return Validation(measured, lines, find_causes(measured, lines))


def validate(directory: Path, result_file: Path | None = None) -> Validation:
    """Compare what a plan predicts with what was measured. Raises InputError where there is nothing to compare."""
    measured = read_measured(directory, result_file)
    own = compare(measured)
    lines, causes = own.lines, own.findings
    swept, remarks = _compare_sweep(measured)
    plan, results = measured.plan, measured.of_classes
    of_classes = (
        FurtherLoad(one.name, name, tuple(compare_results(one.predicted, result)))
        for one, name, result in zip(plan.classes, plan.result_names, results, strict=False)
    )
    if (node := directory / "results" / plan.node_result_name).is_file() and measured.result_name != node.name:
        of_one = planned_result(node, plan, plan.workload, plan.predicted)
        swept = (FurtherLoad("node", node.name, tuple(compare_results(plan.predicted, of_one))), *swept)
    further = (*of_classes, *swept)
    missed = [load for load in further if not all(line.is_inside for line in load.lines)]
    if missed and all(line.is_inside for line in lines):  # then the first other load that missed has to be explained
        new = (finding for finding in find_causes(measured, missed[0].lines) if finding not in causes)
        causes += tuple(replace(finding, cause=f"at {missed[0].load}: {finding.cause}") for finding in new)
    return Validation(measured, lines, causes, further, (*measured.notes, *remarks))


def find_sweep_results(directory: Path, plan: Plan) -> list[Path]:
    """Results of ``sweep.sh`` in a plan's folder: one server of the plan at other loads."""
    return sorted((directory / "results").glob(f"sweep-*-{plan.digest}.json"))


def _compare_sweep(measured: MeasuredPlan) -> tuple[tuple[FurtherLoad, ...], tuple[str, ...]]:
    plan = measured.plan
    paths = find_sweep_results(measured.directory, plan)
    if not paths:
        return (), ()
    try:
        deployment = redeploy(plan, local_for(plan.calibration) if Path(plan.calibration).is_file() else SHIPPED)
        loads = sorted((_compare_load(path, plan, deployment) for path in paths), key=_by_load)
        now = Prediction.of(deployment, plan.workload.sent).figures["output_throughput"]
        planned = plan.predicted.get("output_throughput")
        if not planned or abs(now / planned - 1) <= SAME:
            return tuple(loads), ()
        words = f"today's fits, which give {now:,.0f} output tokens/s for the plan's own load"
        return tuple(loads), (f"sweep.sh is predicted with {words}; plan.json says {planned:,.0f}",)
    except InputError:
        raise
    except PlannerError as error:  # such as a model that is not known here
        return (), (f"{len(paths)} results of sweep.sh are not compared: {error.cause}",)


def _compare_load(path: Path, plan: Plan, deployment: Deployment) -> FurtherLoad:
    result = read_result(path, plan)
    limit, rate = stated_number(path, result, "max_concurrency"), result.get("request_rate")
    load = replace(
        plan.workload.sent,
        num_prompts=int(read_number(path, result, "completed")),
        max_concurrency=int(limit) if limit else None,
        request_rate=inf if rate in (None, "inf") else read_number(path, result, "request_rate"),
    )
    predicted = Prediction.of(deployment, load, percentiles=(50, 99)).result
    lines = tuple(line for line in compare_results(predicted, result) if line.metric in SWEEP_METRICS)
    return FurtherLoad(path.stem.removeprefix("sweep-").rpartition("-")[0], path.name, lines)


def _by_load(further: FurtherLoad) -> tuple[str, float]:
    kind, _, load = further.load.rpartition("-")
    return kind, float(load) if load.replace(".", "", 1).isdecimal() else inf
