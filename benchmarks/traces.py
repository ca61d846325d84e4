"""Hit rates of recorded traces beside published ones, in caches of several sizes and behind several routers.

Give files as you have them, each with the share that was published for it, if any. Nothing is fetched and nothing of
a trace is kept::

    python benchmarks/traces.py conversation_trace.jsonl=0.40 synthetic_trace.jsonl=0.66 > benchmarks/results/traces.md

Mooncake's are in its repository (FAST25-release/traces); 40 %, 59 % and 66 % are in table 2 of its paper (FAST '25).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from planner.simulator.record import Replay
from planner.workload.load import Load
from planner.workload.requests import Requests, share
from planner.workload.targets import Router
from planner.workload.trace import read_trace
from replay_speed import Fast

CACHES_TOK = (1_000_000, 4_000_000, 16_000_000, 64_000_000)  #: of one server
SERVERS, CACHE_TOK = 4, 1_000_000  #: behind the routers
ROUTERS: tuple[Router, ...] = ("round-robin", "least-loaded", "prefix-aware")


class Idle(Fast):
    """A server that has always ended what came before: what is found depends on the order alone."""

    def step_s(self, batch: object) -> float:  # noqa: ARG002
        self.calls += 1
        return 1e-6


def served(requests: Requests, cache_tok: int) -> Replay:
    """All requests on one server whose cache is empty at first."""
    cache_tok = max(cache_tok, 2 * requests.max_total_len)
    limits = SchedulerLimits(1024, 16_384, cache_tok, enable_prefix_caching=True)
    return replay(Idle(), Load(1, 1, len(requests.arrival_s), request_rate=1.0, recorded=requests), limits)


def first_come(requests: Requests) -> Requests:
    """The same, a second apart: none comes while the prompt that it goes on from is being computed."""
    return replace(requests, arrival_s=np.arange(len(requests.arrival_s), dtype=np.float64))


def seen_before(path: Path) -> float:
    """Share of the names of blocks in a file that stand in it before, whatever the block holds."""
    seen: set[int] = set()
    known = total = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            names = json.loads(line)["hash_ids"]
            known, total = known + sum(name in seen for name in names), total + len(names)
            seen.update(names)
    return known / max(total, 1)


def rows_of(path: Path, published: str) -> Iterator[str]:
    start_s = time.process_time()
    trace = read_trace(path)
    requests = trace.busiest
    prompt_tok = requests.input_len.sum()
    unlimited = requests.reusable_tok * len(requests.input_len) / prompt_tok
    yield f"\n## {path.name}\n"
    yield (
        f"{trace.rows:,} requests, {len(requests.input_len):,} of them replayed; prompts of {trace.input_len:,.0f} "
        f"tokens, answers of {trace.output_len:,.0f}.\n"
    )
    beside = f"; published: {float(published):.0%}" if published else ""
    yield (
        f"A cache that forgets nothing: **{unlimited:.1%}** of the prompt tokens, {seen_before(path):.1%} of the block "
        f"names{beside}.\n"
    )
    calm = first_come(requests)
    yield "| one server, KV cache | found |\n| ---: | ---: |"
    for cache_tok in CACHES_TOK:
        yield f"| {cache_tok / 1e6:,.0f} M tokens | {served(calm, cache_tok).cached_share:.1%} |"
    yield f"\n| the fullest of {SERVERS} servers, {CACHE_TOK / 1e6:,.0f} M tokens each | found |\n| --- | ---: |"
    for router in ROUTERS:
        part = share(requests, SERVERS, len(requests.arrival_s), router)
        yield f"| {router} | {served(first_come(part), CACHE_TOK).cached_share:.1%} |"
    yield f"\n{time.process_time() - start_s:.1f} s of CPU."


def main() -> None:
    parser = argparse.ArgumentParser(description="Hit rates of recorded traces.")
    parser.add_argument("files", nargs="+", metavar="FILE[=SHARE]", help="a trace, and the share published for it")
    print(
        f"# What prefix caches find of recorded traces\n\n{datetime.now(UTC):%Y-%m-%d}; `python benchmarks/traces.py`."
    )
    for file in parser.parse_args().files:
        path, _, published = file.partition("=")
        for line in rows_of(Path(path), published):
            print(line, flush=True)


if __name__ == "__main__":
    main()
