"""Requests that are sent, and the share of them that each of several servers gets.

How long a request is under way is taken from its answer (``answer_s``), so that a share does not depend on the server.
A router picks the server of a request:

- ``round-robin``: in turn.
- ``least-loaded``: the one with the fewest requests under way.
- ``prefix-aware``: the one that was sent the longest beginning of the prompt, where that is ``MATCHED`` of it or more
  and the servers are balanced; else the least loaded one. Rule and thresholds are those of the cache-aware policy of
  SGLang's router, from which vLLM's comes; it too goes by what it has sent, and never hears what was evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from planner.workload.prefixes import Prefixes
    from planner.workload.targets import Router

    Tokens = NDArray[np.int64]

#: Seconds that an answer is taken to last: to its first token, and for each token. About what people read; a server
#: that is slower or faster moves what follows it by a few seconds.
ANSWER_S, ANSWER_S_PER_TOK = 1.0, 0.025


def answer_s(output_tok: float) -> float:
    """Seconds from a request to the end of its answer, where nothing is known of the server."""
    return ANSWER_S + ANSWER_S_PER_TOK * output_tok


@dataclass(frozen=True, slots=True, eq=False)  # arrays: a list of requests is itself and no other
class Requests:
    """Requests in the order in which a client sends them: tokens and arrival times. Arrays of shape (num_prompts,)."""

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
        """Number of requests of each class; empty without classes."""
        return {} if self.group is None else {name: int((self.group == k).sum()) for k, name in enumerate(self.groups)}

    def first(self, count: int) -> Requests:
        return self.chosen(slice(0, count))

    def chosen(self, which: NDArray[Any] | slice) -> Requests:
        prefixes = self.prefixes and self.prefixes.chosen(which)
        priority, group = (None if one is None else one[which] for one in (self.priority, self.group))
        lengths = self.input_len[which], self.output_len[which]
        return Requests(*lengths, self.arrival_s[which], prefixes, priority, group, self.groups)

    def at_pace(self, factor: float) -> Requests:
        """A copy with all arrivals ``factor`` times as late; 0: all at once."""
        return self if factor == 1 else replace(self, arrival_s=self.arrival_s * factor)

    @property
    def reusable_tok(self) -> float:
        """Tokens of a prompt, on average, that a cache finds which forgets nothing."""
        return float(self.prefixes.reusable_tok.mean()) if self.prefixes else 0.0


#: Share of the prompt; ``--cache-threshold``.
MATCHED = 0.3
#: Servers are out of balance where the fullest has so many requests more than the emptiest, and so many times as many.
#: ``--balance-abs-threshold``, ``--balance-rel-threshold``
UNEVEN, UNEVEN_TIMES = 64, 1.5


def share(requests: Requests, servers: int, most: int, router: Router = "round-robin") -> Requests:
    """The requests of one of ``servers``: at most ``most`` requests, from time zero on.

    The last ones where prompts have something in common, after all the others; else the first ones. Of several unequal
    shares the one with the most tokens to prefill and to generate.
    """
    arrived, prefixes = len(requests.arrival_s), requests.prefixes
    servers = min(servers, max(arrived, 1))  # of more of them the others get nothing
    late = max(arrived - most * servers, 0) if prefixes is not None else 0
    total_tok = requests.input_len + requests.output_len
    places, one = np.arange(arrived) % servers, late % servers
    if servers > 1 and router != "round-robin":
        places = _places(requests, servers, router)
        one = int(np.bincount(places[late:], total_tok[late:], servers).argmax())
    mine = np.flatnonzero(places == one)
    sent = requests.chosen(mine[mine >= late][:most])
    if prefixes is not None and sent.prefixes is not None:
        earlier = mine[mine < late]
        known = sent.prefixes.after(prefixes.answer[earlier], total_tok[earlier], slice(one, None, servers))
        sent = replace(sent, prefixes=known)
    return replace(sent, arrival_s=sent.arrival_s - sent.arrival_s[0])


def _places(requests: Requests, servers: int, router: Router) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    flying = [0] * servers
    ends: list[tuple[float, int]] = []
    known = _Known(requests, servers) if router == "prefix-aware" and requests.prefixes is not None else None
    server_of = np.zeros(len(requests.arrival_s), dtype=np.int64)
    lengths = zip(requests.arrival_s.tolist(), requests.output_len.tolist(), requests.input_len.tolist(), strict=True)
    turn = 0  # ties go round
    for index, (arrival_s, output_tok, prompt_tok) in enumerate(lengths):
        while ends and ends[0][0] <= arrival_s:
            flying[heappop(ends)[1]] -= 1
        least, fullest = min(flying), max(flying)
        among: Sequence[int] = range(servers)
        if known is not None and not (fullest - least > UNEVEN and fullest > least * UNEVEN_TIMES):
            among = known.best(index, prompt_tok) or among
        place = min(among, key=lambda server: (flying[server], (server - turn) % servers))
        turn = (place + 1) % servers
        if known is not None:
            known.sent(index, place)
        flying[place] += 1
        heappush(ends, (arrival_s + answer_s(output_tok), place))
        server_of[index] = place
    return server_of


class _Known:
    """The memory of a router: the prompts that each server was sent."""

    def __init__(self, requests: Requests, servers: int) -> None:
        prefixes = requests.prefixes
        assert prefixes is not None  # who calls has asked
        self._parent: list[int] = prefixes.parent.tolist()
        self._end_tok: list[int] = prefixes.end_tok.tolist()
        self._prompt: list[int] = prefixes.prompt.tolist()
        self._answer: list[int] = prefixes.answer.tolist()
        self._servers = range(servers)
        self._sent = [0] * len(self._parent)  # of each node, a bit for each server that has seen it

    def best(self, index: int, prompt_tok: int) -> list[int]:
        """The servers that have seen most of a prompt; none where that is too little."""
        node = self._prompt[index]
        while node >= 0 and not self._sent[node]:
            node = self._parent[node]
        if node < 0 or self._end_tok[node] < MATCHED * prompt_tok:
            return []
        return [server for server in self._servers if self._sent[node] >> server & 1]

    def sent(self, index: int, server: int) -> None:
        """A prompt, and so its answer, is at a server."""
        node, bit = self._answer[index], 1 << server
        while node >= 0 and not self._sent[node] & bit:
            self._sent[node] |= bit
            node = self._parent[node]
