"""Results and tables as ``vllm bench`` gives them, from a replay.

Definitions are those of ``vllm/benchmarks/serve.py``, ``throughput.py`` and ``latency.py`` (0.32.0); percentiles
interpolate linearly, standard deviations are those of the population."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from math import floor, isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError
from planner.resources import package_dir, tables_of
from planner.simulator.record import Replay, TokenRuns
from planner.units import MS
from planner.workload import LATENCIES, OF_A_REQUEST, Load, Slo

LINES = tables_of(package_dir("simulator") / "bench.toml")  #: lines of the table of ``vllm bench serve``
LATENCY_PERCENTILES = (10, 25, 50, 75, 90, 99)
NEWEST_RELEASE = (0, 33, 0)
ROUNDING = 1e-9  #: by how much a figure must be above a limit, relative, to be above it for certain

BenchResult = dict[str, Any]


def percentiles_of(values: NDArray[np.float64] | TokenRuns, percents: Sequence[float]) -> NDArray[np.float64]:
    """Percentiles as of ``np.percentile``, of runs those of the gaps of all tokens; zeros where there is nothing."""
    count = int((values.steps * values.tokens).sum()) if isinstance(values, TokenRuns) else len(values)
    if not count:
        return np.zeros(len(percents))
    rank = (count - 1) * np.asarray(percents, dtype=np.float64) / 100
    below, above = np.floor(rank).astype(np.int64), np.ceil(rank).astype(np.int64)
    ranks, place = np.unique([below, above], return_inverse=True)
    at = values.gaps_at(ranks.tolist()) if isinstance(values, TokenRuns) else np.sort(values)[ranks]
    low, high = at[place.reshape(2, -1)]
    return np.asarray(low + (high - low) * (rank - below))


def _moments_s(values_s: NDArray[np.float64] | TokenRuns) -> tuple[float, float]:
    if isinstance(values_s, TokenRuns):
        return values_s.moments_s()
    return (float(values_s.mean()), float(values_s.std())) if len(values_s) else (0.0, 0.0)


def statistic_ms(slo: Slo, replay: Replay, *, after: int = 0) -> float:
    """The figure that a target limits, in ms; 0 where nothing was measured, as in vLLM.

    The first ``after`` requests do not count, nor do those of other classes. ITL pools the gaps of all requests."""
    if slo.group and replay.group is not None:
        replay = replay.of(slo.group)
    values_s = replay.token_runs if slo.metric == "itl" else getattr(replay, f"{slo.metric}_s")[after:]
    if slo.percentile is not None:
        return float(percentiles_of(values_s, [slo.percentile])[0] / MS)
    return float(_moments_s(values_s)[0] / MS)


def hopeless_at(
    limits_s: Mapping[Slo, float], num_requests: int, of_class: Mapping[str, int] | None = None
) -> Callable[[Mapping[str, float], str], bool]:
    """Return a function that counts requests that end, and tells when a target is missed whatever the others do.

    ``limits_s`` are in s. A percentile of ``num_requests``, or of a class in ``of_class``, is missed for certain once
    more requests exceed it than it leaves out. Means may recover; gaps between tokens do not count."""
    sent = {"": num_requests, **(of_class or {})}
    limited, left = list[tuple[Slo, float]](), dict[Slo, int]()
    for slo, limit_s in limits_s.items():
        if slo.metric in OF_A_REQUEST and slo.group in sent and slo.percentile is not None:
            limited.append((slo, limit_s * (1 + ROUNDING)))
            left[slo] = sent[slo.group] - 1 - floor((sent[slo.group] - 1) * slo.percentile / 100)

    def hopeless(metrics_s: Mapping[str, float], name: str = "") -> bool:
        for slo, limit_s in limited:
            if slo.group in ("", name) and metrics_s[slo.metric] > limit_s:
                left[slo] -= 1
                if left[slo] < 0:
                    return True
        return False

    return hopeless


def serve_result(
    replay: Replay, workload: Load, *, model_id: str = "", backend: str = "vllm", percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> BenchResult:  # fmt: skip
    """The result file of ``vllm bench serve --backend BACKEND --percentile-metrics ttft,tpot,itl,e2el``.

    ``goodput`` maps ``ttft``, ``tpot`` and ``e2el`` to ms. Raises InputError for an impossible percentile or target."""
    peak_tok_per_s, peak_requests = _peaks(replay)
    # JSON has no infinity
    rate, burstiness = ("inf" if isinf(value) else value for value in (workload.request_rate, workload.burstiness))
    result: BenchResult = {
        "date": "", "endpoint_type": backend, "backend": backend, "label": None, "model_id": model_id,
        "tokenizer_id": model_id, "num_prompts": workload.count, "request_rate": rate, "burstiness": burstiness,
        "max_concurrency": workload.max_concurrency, "duration": replay.duration_s,
        **_counts(replay, replay.duration_s, goodput), "max_output_tokens_per_s": peak_tok_per_s,
        "max_concurrent_requests": peak_requests, "rtfx": 0.0,
    }  # fmt: skip
    for name in LATENCIES:
        values_s = replay.token_runs if name == "itl" else getattr(replay, f"{name}_s")
        result |= _statistics(name, values_s, percentiles)
    return result


def class_result(
    replay: Replay, group: str, percentiles: Sequence[float] = (99,), goodput: Mapping[str, float] | None = None
) -> BenchResult:
    """The figures of one class of requests among the others, as in ``serve_result``; gaps between tokens are of all."""
    served = replay.of(group)
    result = _counts(served, replay.duration_s, goodput)
    for name in OF_A_REQUEST:
        result |= _statistics(name, getattr(served, f"{name}_s"), percentiles)
    return {key: value for key, value in result.items() if key not in ("failed", "total_token_throughput")}


def _counts(replay: Replay, duration_s: float, goodput: Mapping[str, float] | None) -> BenchResult:
    completed = len(replay.sent_s)
    input_tok, output_tok = int(replay.input_len.sum()), int(replay.output_len.sum())
    return {
        "completed": completed,
        "failed": 0,
        "total_input_tokens": input_tok,
        "total_output_tokens": output_tok,
        "request_throughput": completed / duration_s,
        "request_goodput": good_requests(replay, goodput) / duration_s if goodput else None,
        "output_throughput": output_tok / duration_s,
        "total_token_throughput": (input_tok + output_tok) / duration_s,
    }


def speculative_result(replay: Replay, acceptance_rates: Sequence[float]) -> BenchResult:
    """Figures that ``vllm bench serve`` adds where the server drafts; ``acceptance_rates`` position by position.

    Every decode step of a request verifies one draft, as ``vllm/benchmarks/serve.py`` (0.27) counts them."""
    drafts = int((replay.token_runs.steps * replay.token_runs.tokens).sum())
    accepted = sum(acceptance_rates)
    return {
        "spec_decode_acceptance_rate": 100 * accepted / len(acceptance_rates),
        "spec_decode_acceptance_length": 1 + accepted,
        "spec_decode_num_drafts": drafts,
        "spec_decode_draft_tokens": drafts * len(acceptance_rates),
        "spec_decode_accepted_tokens": round(drafts * accepted),
        "spec_decode_per_position_acceptance_rates": list(acceptance_rates),
    }


def _statistics(name: str, values_s: NDArray[np.float64] | TokenRuns, percents: Sequence[float]) -> BenchResult:
    """Mean, median, standard deviation and percentiles in ms; zeros, as vLLM gives, where nothing was measured."""
    if not all(0 <= percent <= 100 for percent in percents):
        cause = f"--metric-percentiles must lie between 0 and 100, got {list(percents)}"
        raise InputError(cause, hint="for example 50,90,99")
    mean_s, std_s = _moments_s(values_s)
    median_s, *at_s = percentiles_of(values_s, [50, *percents])
    labels = ("mean", "median", "std", *(f"p{percent:g}" for percent in percents))
    values = zip(labels, (mean_s, median_s, std_s, *at_s), strict=True)
    return {f"{label}_{name}_ms": float(value_s / MS) for label, value_s in values}


def good_requests(replay: Replay, targets_ms: Mapping[str, float], after: int = 0) -> int:
    """Requests behind the first ``after`` that meet all targets. TPOT is zero for one output token, as in vLLM.

    Raises InputError for a target other than ``ttft``, ``tpot`` and ``e2el``."""
    tpot_s = np.zeros(len(replay.sent_s))
    tpot_s[replay.output_len > 1] = replay.tpot_s
    measured_s = {"ttft": replay.ttft_s, "tpot": tpot_s, "e2el": replay.e2el_s}
    good = np.ones(len(replay.sent_s), dtype=bool)
    for name, target_ms in targets_ms.items():
        if name not in measured_s:
            raise InputError(f"unknown goodput target {name!r}", hint="use ttft, tpot or e2el, in ms")
        good &= measured_s[name] <= target_ms * MS
    return int(good[after:].sum())


def _peaks(replay: Replay) -> tuple[float, int]:
    """Most output tokens, and most requests in flight, in one of the seconds since the first request."""
    origin_s = replay.sent_s.min()
    once = np.ones(len(replay.sent_s))
    emitted = (part.emissions() for part in replay.token_runs.parts())
    per_second = _by_second(chain([(replay.first_token_s, once)], emitted), origin_s)
    changes = _by_second([(replay.sent_s, once), (replay.end_s + 1, -once)], origin_s)
    return float(per_second.max()), int(np.cumsum(changes).max())


def _by_second(
    parts: Iterable[tuple[NDArray[np.float64], NDArray[np.float64] | NDArray[np.int64]]], origin_s: float
) -> NDArray[np.float64]:
    """Sums of counts, given by their times, in each whole second from ``origin_s`` on in which there are any."""
    seconds, sums = [], []
    for times_s, counts in parts:
        second = (times_s - origin_s).astype(np.int64)
        first = np.flatnonzero(np.diff(second, prepend=second[:1] - 1))  # neighbours mostly share a second
        seconds.append(second[first])
        sums.append(np.add.reduceat(counts, first) if len(first) else counts)
    _, place = np.unique(np.concatenate(seconds), return_inverse=True)
    return np.bincount(place, weights=np.concatenate(sums)).astype(np.float64)


def throughput_result(replay: Replay, *, model_id: str = "", count: int = 0) -> BenchResult:
    """The result file of ``vllm bench throughput``, and ``output_throughput``, which it only prints.

    Of ``count`` requests that are alike, those beyond the replay end one after the other as in its middle half."""
    served, output_tok = len(replay.sent_s), int(replay.output_len.sum())
    duration_s, total_tok, more = replay.duration_s, int(replay.input_len.sum()) + output_tok, max(count - served, 0)
    if more:
        middle = np.arange(served // 4, served * 3 // 4)
        duration_s += more * float(np.polyfit(middle, np.sort(replay.end_s)[middle], 1)[0])
    count = served + more
    output_tok, total_tok = (tok * count // served for tok in (output_tok, total_tok))
    return {
        "model_id": model_id,
        "elapsed_time": duration_s,
        "num_requests": count,
        "total_num_tokens": total_tok,
        "requests_per_second": count / duration_s,
        "tokens_per_second": total_tok / duration_s,
        "output_throughput": output_tok / duration_s,
    }


def latency_result(replay: Replay, *, model_id: str = "") -> BenchResult:
    """The result file of ``vllm bench latency`` for one iteration: a prediction has no spread."""
    latency_s = replay.duration_s
    percentiles = {str(percent): latency_s for percent in LATENCY_PERCENTILES}
    return {"model_id": model_id, "avg_latency": latency_s, "latencies": [latency_s], "percentiles": percentiles}


def serve_table(result: BenchResult, release: tuple[int, ...] = NEWEST_RELEASE) -> str:
    """The table that ``vllm bench serve`` of ``release`` prints, with two columns more for an interval."""
    wide = any(key.endswith("_lo") for key in result)
    width = 72 if wide else 50
    lines = [f"{' Serving Benchmark Result ':=^{width}}"]
    if wide:
        lines.append(f"{'':<40} {'predicted':<10} {'low':<10} {'high':<10}".rstrip())
    for since, label, key, digits in LINES["totals"]:
        if list(release) >= since and result[key] not in (None, "inf"):
            # 0.11.1 still had the capital, 0.13.0 not; which of the two releases between dropped it is not known
            label = label.replace("Token", "token") if release >= (0, 12, 0) else label
            lines.append(_row(result, label, key, digits))
    for name, heading in LATENCIES.items():
        if f"mean_{name}_ms" in result:
            parts = [key.partition("_") for key in result]
            percents = (one for one, _, metric in parts if metric == f"{name}_ms" and one.startswith("p"))
            labels = {"Mean": "mean", "Median": "median", **{one.upper(): one for one in percents}}
            lines.append(f"{heading:-^{width}}")
            rows = ((f"{label} {name.upper()} (ms):", f"{one}_{name}_ms") for label, one in labels.items())
            lines += [_row(result, label, key, 2) for label, key in rows]
    if "spec_decode_num_drafts" in result:
        lines.append(f"{'Speculative Decoding':-^{width}}")
        lines += [_row(result, label, f"spec_decode_{key}", digits) for label, key, digits in LINES["drafts"]]
        rates = result["spec_decode_per_position_acceptance_rates"]
        lines.append("Per-position acceptance (%):")
        lines += [f"{f'  Position {place}:':<40} {100 * rate:<10.2f}" for place, rate in enumerate(rates)]
    lines.append("=" * width)
    return "\n".join(lines)


def _row(result: BenchResult, label: str, key: str, digits: int) -> str:
    row = f"{label:<40} {result[key]:<10.{digits}f}"
    if f"{key}_lo" in result:
        row += f" {result[f'{key}_lo']:<10.{digits}f} {result[f'{key}_hi']:<10.{digits}f}"
    return row


def throughput_table(result: BenchResult) -> str:
    """The lines that ``vllm bench throughput`` prints for ``result``, and the interval, if any."""
    output_tok = round(result["output_throughput"] * result["elapsed_time"])
    rates = {"requests_per_second": "requests/s", "tokens_per_second": "total tokens/s"}
    rates["output_throughput"] = "output tokens/s"
    between = _between(result, rates, 2)
    return (
        f"Throughput: {', '.join(f'{result[key]:.2f} {unit}' for key, unit in rates.items())}\n"
        f"Total num prompt tokens:  {result['total_num_tokens'] - output_tok}\n"
        f"Total num output tokens:  {output_tok}{between}"
    )


def _between(result: BenchResult, units: Mapping[str, str], digits: int) -> str:
    known = {key: unit for key, unit in units.items() if f"{key}_lo" in result}
    ends = (f"{result[f'{key}_lo']:.{digits}f} to {result[f'{key}_hi']:.{digits}f} {known[key]}" for key in known)
    return f"\n90% interval: {', '.join(ends)}" if known else ""


def latency_table(result: BenchResult) -> str:
    """The lines that ``vllm bench latency`` prints for ``result``, and the interval, if any."""
    lines = [f"Avg latency: {round(result['avg_latency'], 4)} seconds"]
    lines += [f"{percent}% percentile latency: {round(s, 4)} seconds" for percent, s in result["percentiles"].items()]
    return "\n".join(lines) + _between(result, {"avg_latency": "seconds"}, 4)
