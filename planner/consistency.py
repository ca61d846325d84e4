"""Do the figures of a run agree with each other? What does not is of other units, or of other runs, and teaches lies.

::

    E2EL  =  TTFT + (output tokens - 1) x TPOT             of means, with requests that are alike
    requests in flight  =  throughput x E2EL / output tokens         Little's law; in a closed loop the concurrency
    output tokens  =  throughput x duration
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.measurements import Run, disorder
from planner.units import MS

#: Sums that hold on average only may be off by this factor: lengths vary, and rates are taken over a run's whole time.
#: Units that are mixed up are off by 60 or more.
LOOSE = 2.0
#: Requests in flight may be this many times less than the concurrency, in a run that starts and ends empty.
EMPTY = 10.0
#: The same sum, by the same program, printed with all its digits.
EXACT = 0.01

_UNITS = "are the units the same, and are all figures of one run?"


def check_run(run: Run) -> None:
    """Raises InputError naming the run and the figures that contradict each other."""
    for what in contradictions(run):
        raise InputError(f"{run.run_id}: {what}", hint=_UNITS)


def contradictions(run: Run) -> Iterator[str]:
    """Each pair of figures of ``run`` that cannot both be right, in words."""
    for low, high in disorder(run.metrics):
        yield f"{high}, {run.metrics[high]:g}, is below {low}, {run.metrics[low]:g}"
    output_len = run.mean_output_len or run.output_len
    if not output_len:
        return
    figures = run.metrics
    ttft, tpot, e2el = (_mean_s(figures, name) for name in ("ttft", "tpot", "e2el"))
    parts = None if ttft is None or tpot is None else ttft + (output_len - 1) * tpot
    if e2el and parts and not 1 / LOOSE < e2el / parts < LOOSE:
        yield f"an E2EL of {e2el:.4g} s is not TTFT and TPOT of {output_len:g} tokens, which make {parts:.4g} s"
    yield from _little(run, e2el or parts, output_len)


def _mean_s(figures: Mapping[str, float], name: str) -> float | None:
    value = figures.get(f"mean_{name}_ms") or figures.get(f"median_{name}_ms")
    return value * MS if value else None


def _little(run: Run, e2el_s: float | None, output_len: float) -> Iterator[str]:
    rate = run.metrics.get("output_throughput")
    if not rate:
        return
    if run.bench == "latency":
        batch, seconds = run.batch_size or run.max_concurrency or run.num_prompts, run.metrics.get("avg_latency_s")
        if batch and seconds and not 1 / LOOSE < batch * output_len / seconds / rate < LOOSE:
            made = batch * output_len / seconds
            yield f"a batch of {batch} in {seconds:g} s makes {made:.4g} tokens/s, output_throughput is {rate:g}"
        return
    limit = run.max_concurrency
    if not limit or not e2el_s:
        return
    in_flight = rate * e2el_s / output_len
    closed = run.arrival == "closed-loop" or not run.request_rate
    if in_flight > LOOSE * limit or (closed and in_flight < limit / EMPTY):
        yield (
            f"output_throughput {rate:g} and an E2EL of {e2el_s:.4g} s keep {in_flight:.3g} requests in flight, "
            f"max_concurrency is {limit}"
        )


def check_result(path: Path, content: Mapping[str, Any]) -> None:
    """Rates of a result of ``vllm bench serve`` against its duration. Raises InputError naming the rate."""
    seconds, requests, given, made = (
        _number(content, name) for name in ("duration", "completed", "total_input_tokens", "total_output_tokens")
    )
    totals = {"request_throughput": requests, "output_throughput": made, "total_token_throughput": given + made}
    for name, total in totals.items():
        rate = _number(content, name)
        if rate and seconds and total and abs(rate * seconds / total - 1) > EXACT:
            raise InputError(
                f"{path}: {name} is {rate:g}, {total:g} in {seconds:g} s are {total / seconds:g} a second",
                hint="is it the file that vllm bench serve wrote?",
            )


def _number(content: Mapping[str, Any], name: str) -> float:
    """0 where there is none: what is needed of a result is asked for by name elsewhere."""
    value = content.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
