"""Why a measurement missed its prediction: first what the log says, then what the pattern of the misses says.

Each rule looks at one cause and yields it where there is evidence. The rules are in order of weight: another engine
or another GPU explains all misses, a slower prefill explains only the TTFT.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from planner.engine import SHORT_NAMES, parse_version
from planner.evidence.compared import ComparedLine
from planner.evidence.folder import MeasuredPlan
from planner.evidence.server_log import Setting
from planner.planning import Plan
from planner.units import GIB

#: A number of the log is the plan's, printed with fewer digits, where it differs by a smaller share.
SAME = 0.005
#: Prefix-cache hits below this share do not change the TTFT noticeably.
NOTICEABLE_HITS = 0.02
#: The version that builds without a release number print.
UNTAGGED = "0.1.dev"
#: Share of blocks in use from which the cache is full and requests wait.
FULL_CACHE = 0.98
#: Decode steps shorter than this are about as long as the host's work between them.
HOST_BOUND_MS = 12.0
#: TTFT and TPOT are slower by one factor where their ratios to the prediction differ by less than this factor.
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
    """What the rules look at."""

    measured: MeasuredPlan
    lines: Sequence[ComparedLine]

    @cached_property
    def by_metric(self) -> Mapping[str, ComparedLine]:
        return {line.metric: line for line in self.lines}

    def line(self, metric: str) -> ComparedLine | None:
        """The line of ``metric`` where it is outside its bounds."""
        line = self.by_metric.get(metric)
        return line if line and not line.is_inside else None

    def ratio(self, metric: str) -> float | None:
        """Measured / predicted; None where it was not compared."""
        line = self.by_metric.get(metric)
        return line.measured / line.predicted if line else None

    def slower(self, *metrics: str) -> bool:
        """Whether one of ``metrics`` is out of its bounds on the slow side."""
        found = filter(None, map(self.line, metrics))
        return any((line.verdict == "above") is line.is_latency for line in found)

    def faster(self, *metrics: str) -> bool:
        """Whether one of ``metrics`` is out of its bounds on the fast side."""
        found = filter(None, map(self.line, metrics))
        return any((line.verdict == "below") is line.is_latency for line in found)

    @property
    def slow_first_token(self) -> bool:
        return self.slower("mean_ttft_ms", "median_ttft_ms")

    @property
    def slow_tokens(self) -> bool:
        return self.slower("mean_tpot_ms", "median_tpot_ms", "median_itl_ms")

    @property
    def wrong_gpu_or_weights(self) -> bool:
        """Whether total memory or weights are off: the size of the cache follows from them."""
        return self.line("memory_bytes") is not None or self.line("weights_bytes") is not None

    @property
    def needed_tok(self) -> int:
        """Most tokens that the load holds at once in one engine."""
        plan, load = self.measured.plan, self.measured.plan.workload.sent
        in_flight = load.max_concurrency or load.num_prompts
        requests = min(ceil(in_flight / plan.data_parallel_size), plan.max_num_seqs)
        shared = load.prefix_len if plan.enable_prefix_caching else 0  # kept once
        return requests * (load.max_total_len - shared) + shared


def find_causes(measured: MeasuredPlan, lines: Sequence[ComparedLine]) -> tuple[Finding, ...]:
    """Causes with evidence, likeliest first. A log that contradicts the plan counts even without a miss."""
    case = _Evidence(measured, lines)
    found = [finding for rule in _FROM_THE_LOG for finding in rule(case)]
    if all(line.is_inside for line in lines):
        return tuple(found)
    found += [finding for rule in _FROM_THE_PATTERN for finding in rule(case)]
    return tuple(found) or (_unexplained(case),)


# --- the log contradicts the plan ----------------------------------------------------------------------------------


def _refused(case: _Evidence) -> Iterator[Finding]:
    startup = case.measured.startup
    if startup and startup.refusal:
        yield Finding(
            "the server failed to start once: out of memory",
            startup.refusal,
            "start it with ./launch.sh and measure when it is ready",
        )


def _other_version(case: _Evidence) -> Iterator[Finding]:
    log, plan = case.measured.log, case.measured.plan
    if not log or not log.version or log.version.startswith(UNTAGGED):
        return
    if parse_version(log.version).release != parse_version(plan.engine_version).release:
        yield Finding(
            "another version of vLLM was measured than planned",
            f"the log is of vLLM {log.version}, the plan is for {plan.engine_version}",
            f"run the plan's own image ({plan.image or 'none: vLLM as installed'}), or plan again with "
            f"--engine-version {log.version}",
            not_the_plan=True,
        )


def _other_settings(case: _Evidence) -> Iterator[Finding]:
    """Batch limits, parallelism, dtypes and the like that differ from the plan."""
    log, plan = case.measured.log, case.measured.plan
    if not log:
        return
    differing = [
        f"{name} {value} instead of {planned}"
        for name, value in log.settings.items()
        if (planned := _planned(plan, name, value)) is not None and not _same(value, planned)
    ]
    if differing:
        yield Finding(
            "the server ran with other settings than the plan",
            f"the log says {', '.join(differing)}",
            "start it with ./launch.sh, which passes the plan's settings and nothing else",
            not_the_plan=True,
        )


def _other_gpu(case: _Evidence) -> Iterator[Finding]:
    line = case.line("memory_bytes")
    if line:
        yield Finding(
            "the server did not run on the planned GPU",
            f"the driver reports {line.measured:.2f} GiB, {case.measured.plan.gpu} has {line.predicted:.2f}",
            "run ./preflight.sh and planner hardware list, then plan for the GPU or partition that is there",
        )


def _other_weights(case: _Evidence) -> Iterator[Finding]:
    line = case.line("weights_bytes")
    if line:
        plan = case.measured.plan
        yield Finding(
            "other weights were loaded than planned",
            f"{line.measured:.2f} GiB on each GPU instead of {line.predicted:.2f} for {plan.weight_dtype} at "
            f"tensor-parallel size {plan.tensor_parallel_size}",
            f"check that the log loads {plan.model} with the planned quantisation; if it does, report the difference",
        )


def _preempted(case: _Evidence) -> Iterator[Finding]:
    log = case.measured.log
    if log and log.preemptions:
        yield Finding(
            "requests were preempted: the KV cache was too small for the load",
            f"the log counts {log.preemptions} preemptions",
            "plan with a smaller --max-num-seqs or an fp8 KV cache, or give the cache more memory",
        )


def _small_cache(case: _Evidence) -> Iterator[Finding]:
    """A cache that is smaller than predicted and too small for the load."""
    line = case.line("kv_cache_tokens")
    if line and line.verdict == "below" and not case.wrong_gpu_or_weights and line.measured < case.needed_tok:
        yield Finding(
            "the KV cache holds fewer blocks than predicted, too few for the load: requests wait",
            f"{_cache(case, line)}; the load holds up to {case.needed_tok:,} tokens at once",
            "stop other work on the GPU (./preflight.sh shows it), or plan with a lower concurrency",
        )


# --- the pattern of the misses -------------------------------------------------------------------------------------


def _cached_prefixes(case: _Evidence) -> Iterator[Finding]:
    log = case.measured.log
    hits = log.prefix_hit_rate if log else None
    if hits and hits > NOTICEABLE_HITS and case.faster("mean_ttft_ms", "median_ttft_ms", "output_throughput"):
        yield Finding(
            "prompts were found in the prefix cache",
            f"up to {hits:.0%} of the prompt tokens were hits; random prompts of one seed repeat in a second run",
            "restart the server (./launch.sh) and measure with FORCE=1",
        )


def _full_cache(case: _Evidence) -> Iterator[Finding]:
    log = case.measured.log
    if log and not log.preemptions and log.peak_cache_usage and log.peak_cache_usage >= FULL_CACHE and log.peak_waiting:
        yield Finding(
            "requests waited for the KV cache",
            f"the cache was {log.peak_cache_usage:.0%} full while {log.peak_waiting} requests waited",
            "lower the concurrency, or plan with an fp8 KV cache",
        )


def _all_slow(case: _Evidence) -> Iterator[Finding]:
    first, tokens = case.ratio("mean_ttft_ms"), case.ratio("mean_tpot_ms")
    if not (first and tokens and case.slow_first_token and case.slow_tokens):
        return
    alike = max(first, tokens) / min(first, tokens) < ALIKE
    yield Finding(
        "everything is slower by one factor" if alike else "prefill and decoding are slower, by different factors",
        f"TTFT {first:.2f} and TPOT {tokens:.2f} times the prediction",
        "while ./benchmark.sh runs, look for low clocks, a power cap, or other work on GPU or host; if the machine is "
        "simply slower, planner calibrate learns that from this result",
    )


def _slow_prefill(case: _Evidence) -> Iterator[Finding]:
    if case.slow_first_token and not case.slow_tokens:
        yield Finding(
            "prefill, or the queue before it, is slower than predicted; decoding is not",
            f"TTFT {_times(case.ratio('mean_ttft_ms'))} the prediction, TPOT {_times(case.ratio('mean_tpot_ms'))}",
            "measure with --max-concurrency 1: if TTFT is still high, prefill kernels are slow (see attention backend "
            "and fp8 GEMMs at the top of logs/server.log); if not, the queue is long: try a larger "
            "--max-num-batched-tokens",
        )


def _slow_decode(case: _Evidence) -> Iterator[Finding]:
    if not case.slow_tokens or case.slow_first_token:
        return
    tokens = case.by_metric.get("median_itl_ms") or case.by_metric.get("median_tpot_ms")
    if tokens and tokens.predicted < HOST_BOUND_MS:
        yield Finding(
            "the host does not keep up: steps are short, and each takes longer by about the same time",
            f"{tokens.metric} {tokens.measured:.2f} instead of {tokens.predicted:.2f} ms",
            "set the CPU governor to performance, pin the server to the NUMA node of its GPU, check that CUDA or HIP "
            "graphs are captured (no --enforce-eager) and that asynchronous scheduling is on",
        )
    else:
        yield Finding(
            "decoding is slower than predicted; prefill is not",
            f"TPOT {_times(case.ratio('mean_tpot_ms'))} the prediction, TTFT {_times(case.ratio('mean_ttft_ms'))}",
            "check in logs/server.log that graphs are captured, and which attention backend and quantisation kernels "
            "run; planner calibrate then learns the rest from this result",
        )


def _interrupted_decode(case: _Evidence) -> Iterator[Finding]:
    median, tail = case.ratio("median_itl_ms"), case.ratio("p99_itl_ms")
    if case.slower("p99_itl_ms") and median and tail and not case.slower("median_itl_ms"):
        yield Finding(
            "some gaps between tokens are longer than predicted: prefills of other requests, or pauses of the host",
            f"ITL median {_times(median)} the prediction, 99th percentile {_times(tail)}",
            "try a smaller --max-num-batched-tokens; if that does not help, look for other work on the host's CPU",
        )


def _faster(case: _Evidence) -> Iterator[Finding]:
    if case.faster("output_throughput", "mean_e2el_ms") and not case.slow_first_token and not case.slow_tokens:
        yield Finding(
            "the machine is faster than predicted",
            f"output throughput {_times(case.ratio('output_throughput'))} the prediction",
            "run planner calibrate on this result, then plan again",
        )


def _other_cache(case: _Evidence) -> Iterator[Finding]:
    """A cache of another size that is large enough for this load."""
    line = case.line("kv_cache_tokens") or case.line("kv_cache_bytes")
    if not line or case.wrong_gpu_or_weights or any(_small_cache(case)):
        return
    below = line.verdict == "below"
    yield Finding(
        f"the KV cache holds {'fewer' if below else 'more'} blocks than predicted",
        _cache(case, line),
        "this load fits; before a larger one, check with ./preflight.sh what else uses the GPU"
        if below
        else "plan again with a larger --max-num-seqs to use it",
    )


def _cache(case: _Evidence, line: ComparedLine) -> str:
    """How large the cache is, and what the log says of the rest."""
    startup = case.measured.startup
    parts = {"activations": startup.activation_bytes, "graphs": startup.graph_bytes} if startup else {}
    logged = ", ".join(f"{name} {value / GIB:.2f} GiB" for name, value in parts.items() if value is not None)
    digits = 0 if line.unit == "tokens" else 2
    size = f"{line.measured:,.{digits}f} {line.unit} instead of {line.predicted:,.{digits}f}"
    return f"{size}; the log also has {logged}" if logged else size


def _unexplained(case: _Evidence) -> Finding:
    outside = [line.metric for line in case.lines if not line.is_inside]
    return Finding(
        "no single cause stands out",
        f"out of bounds: {', '.join(outside)}",
        "measure again with FORCE=1 to see the spread, and with more --num-prompts",
    )


_Rule = Callable[[_Evidence], Iterator[Finding]]
_FROM_THE_LOG: tuple[_Rule, ...] = (
    _refused, _other_version, _other_gpu, _other_weights, _other_settings, _preempted, _small_cache,
)  # fmt: skip
_FROM_THE_PATTERN: tuple[_Rule, ...] = (
    _full_cache, _cached_prefixes, _all_slow, _slow_prefill, _slow_decode, _interrupted_decode, _faster,
    _other_cache,
)  # fmt: skip


def _planned(plan: Plan, name: str, logged: Setting) -> Setting | None:
    """What the plan sets; None where it leaves the choice to vLLM. A logged ``auto`` says what was asked for."""
    if name == "dtype" or logged == "auto":
        flag = f"--{name.replace('_', '-')}"
        asked = plan.serve_argv[plan.serve_argv.index(flag) + 1] if flag in plan.serve_argv else "auto"
        return None if asked == "auto" else asked
    planned: Setting = getattr(plan, name)
    return planned


def _same(logged: Setting, planned: Setting) -> bool:
    if isinstance(logged, str) or isinstance(planned, str):
        return _type_of(str(logged)) == _type_of(str(planned))
    return abs(logged - planned) <= SAME * max(abs(logged), abs(planned))


def _type_of(name: str) -> str:
    """fp8 is e4m3, also in the layouts of some kernels (``fp8_ds_mla``)."""
    short = SHORT_NAMES.get(name, name)
    return "fp8" if short.startswith("fp8") and short != "fp8_e5m2" else short


def _times(ratio: float | None) -> str:
    return "not compared with" if ratio is None else f"{ratio:.2f} times"
