"""Requests that are sent, the share that each of several servers gets, and the prefixes of their prompts.

``prefix-aware`` routing follows the longest known beginning of the prompt (``MATCHED`` of it or more) while servers are
balanced, else it is ``least-loaded``. That is the cache-aware policy of SGLang's router, from which vLLM's comes.

Prefixes are a tree of named pieces of text: prompts share what their paths share. Pieces that the same prompts pass one
after the other become one node.

>>> tree = Prefixes.of([[7, 8], [7, 9]], [[512, 100], [512, 30]])
>>> tree.end_tok[tree.prompt].tolist(), tree.reusable_tok.tolist()
([512, 512], [0, 512])

Loads of several turns by name are sessions whose prompts hold everything before, with pauses between the turns.
Lengths, numbers of turns and pauses are drawn from published statistics (``hardware/calibration/workload.toml``) for
one request rate. The clock goes round: at its beginning sessions are in their first turn, in their last or between."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from heapq import heappop, heappush
from math import ceil, inf, isfinite, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from planner.resources import calibration_tables
from planner.workload.targets import Router

if TYPE_CHECKING:
    from planner.workload.load import Load


Tokens = NDArray[np.int64]
Nodes = NDArray[np.int64]

#: vLLM's filter drops conversations with fewer tokens than this in the prompt or in the answer.
CONVERSATION_MIN_TOK = 4
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
    prefixes: "Prefixes | None" = None  #: what their prompts have in common; None: nothing is known
    priority: Tokens | None = None  #: as sent with each; lower is sooner; None: all alike
    group: Tokens | None = None  #: the number of each one's class, in ``groups``
    groups: tuple[str, ...] = ()
    pool: "tuple[Requests, ...]" = ()  #: of several servers, each replayed on its own; all of them, one after the other

    @property
    def max_total_len(self) -> int:
        return int((self.input_len + self.output_len).max())

    @property
    def of_classes(self) -> dict[str, int]:
        return {} if self.group is None else {name: int((self.group == k).sum()) for k, name in enumerate(self.groups)}

    def first(self, count: int) -> "Requests":
        return self.chosen(slice(0, count))

    def chosen(self, which: NDArray[Any] | slice) -> "Requests":
        prefixes = self.prefixes and self.prefixes.chosen(which)
        priority, group = (None if one is None else one[which] for one in (self.priority, self.group))
        lengths = self.input_len[which], self.output_len[which]
        return Requests(*lengths, self.arrival_s[which], prefixes, priority, group, self.groups)

    def at_pace(self, factor: float) -> "Requests":
        pool = tuple(one.at_pace(factor) for one in self.pool)
        return self if factor == 1 else replace(self, arrival_s=self.arrival_s * factor, pool=pool)

    @property
    def reusable_tok(self) -> float:
        """Tokens of a prompt, on average, that a cache finds which forgets nothing."""
        if self.pool:
            return sum(one.reusable_tok * len(one.arrival_s) for one in self.pool) / len(self.arrival_s)
        return float(self.prefixes.reusable_tok.mean()) if self.prefixes else 0.0


MATCHED = 0.3  #: share of the prompt; ``--cache-threshold``
#: Servers are out of balance where the fullest has so many requests more than the emptiest, and so many times as many.
#: ``--balance-abs-threshold``, ``--balance-rel-threshold``
UNEVEN, UNEVEN_TIMES = 64, 1.5
POOLED = 4  #: servers of many that are replayed
TRACE_POOL = 2000  #: requests of a trace by which a share is judged: those of several servers, where one gets fewer
MOST_SHARES = 32  #: kept, with the requests that they are of


@lru_cache(maxsize=MOST_SHARES)  # engines are compared by the same shares
def share(requests: Requests, servers: int, most: int, router: Router = "round-robin", few: int = 1) -> Requests:
    """The requests of the busiest of ``servers``, or of ``few``, at most ``most``, from time zero on; the last ones
    where prompts share prefixes."""
    if requests.pool:
        return in_turn([share(one, 1, -(-most // len(requests.pool))) for one in requests.pool])
    arrived, prefixes = len(requests.arrival_s), requests.prefixes
    servers = min(servers, max(arrived, 1))  # of more of them the others get nothing
    late = max(arrived - most * servers // few, 0) if prefixes is not None else 0
    total_tok = requests.input_len + requests.output_len
    places, busiest, dice = np.arange(arrived) % servers, late % servers, np.random.default_rng(0)
    if servers > 1 and router != "round-robin":
        random = router == "random"
        places = dice.integers(servers, size=arrived) if random else _places(requests, servers, router)
        busiest = int(np.bincount(places[late:], total_tok[late:], servers).argmax())
    pool = []
    for one in np.unique(places[late:]).tolist()[:few] if few > 1 else (busiest,):
        mine = np.flatnonzero(places == one)
        sent = requests.chosen(mine[mine >= late][:most])
        if prefixes is not None and sent.prefixes is not None:
            earlier = mine[mine < late]
            known = sent.prefixes.after(prefixes.answer[earlier], total_tok[earlier], slice(one, None, servers))
            sent = replace(sent, prefixes=known)
        pool.append(replace(sent, arrival_s=sent.arrival_s - sent.arrival_s[:1]))
    return in_turn(pool) if few > 1 else pool[0]


def in_turn(pool: Sequence[Requests]) -> Requests:
    """The requests of several servers, one after the other; none has a priority."""
    starts_s = np.cumsum([0.0, *(one.arrival_s[-1] for one in pool)])
    arrivals_s = [one.arrival_s + start_s for one, start_s in zip(pool, starts_s, strict=False)]
    inputs, outputs = (np.concatenate([getattr(one, name) for one in pool]) for name in ("input_len", "output_len"))
    trees = [one.prefixes for one in pool if one.prefixes]
    ends = {name: np.concatenate([getattr(tree, name) for tree in trees]) for name in ("prompt", "answer") if trees}
    prefixes = replace(trees[0], **ends) if trees else None
    return Requests(inputs, outputs, np.concatenate(arrivals_s), prefixes, pool=tuple(pool))


def _places(requests: Requests, servers: int, router: Router) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    levels = [(1 << servers) - 1]  # for each number of requests in flight, a bit for each server that has so many
    least = fullest = turn = 0  # ties go round
    ends: list[tuple[float, int]] = []
    flying = [0] * servers
    tree = requests.prefixes if router == "prefix-aware" else None
    fields = (tree.parent, tree.end_tok, tree.prompt, tree.answer) if tree else ()
    parent, end_tok, prompt, answer = map(np.ndarray.tolist, fields) if fields else [[]] * 4
    seen_by = [0] * len(parent)  # of each node, a bit for each server that has seen it
    server_of = np.zeros(len(requests.arrival_s), dtype=np.int64)
    lengths = zip(requests.arrival_s.tolist(), requests.output_len.tolist(), requests.input_len.tolist(), strict=True)
    for index, (arrival_s, output_tok, prompt_tok) in enumerate(lengths):
        while ends and ends[0][0] <= arrival_s:
            place = heappop(ends)[1]
            flying[place] = level = flying[place] - 1
            levels[level + 1] ^= 1 << place
            levels[level] |= 1 << place
            least = min(least, level)
        while not levels[fullest]:
            fullest -= 1
        among = -1
        if tree and not (fullest - least > UNEVEN and fullest > least * UNEVEN_TIMES):
            node = prompt[index]
            while node >= 0 and not seen_by[node]:
                node = parent[node]
            among = seen_by[node] if node >= 0 and end_tok[node] >= MATCHED * prompt_tok else -1
        level = least
        while not (those := levels[level] & among):
            level += 1
        later = those >> turn << turn or those
        bit = later & -later
        place = bit.bit_length() - 1
        turn, node = (place + 1) % servers, answer[index] if tree else -1
        while node >= 0 and not seen_by[node] & bit:
            seen_by[node] |= bit
            node = parent[node]
        flying[place] = level + 1
        levels += [0] * (level + 2 - len(levels))
        levels[level] ^= bit
        levels[level + 1] |= bit
        fullest = max(fullest, level + 1)
        while not levels[least]:
            least += 1
        heappush(ends, (arrival_s + answer_s(output_tok), place))
        server_of[index] = place
    return server_of


@dataclass(frozen=True)
class Prefixes:
    """A tree of nodes, and where in it each prompt and its answer end. Text of one request alone is outside."""

    parent: Nodes  #: of each node, -1 at a root; a parent comes before its children. Shape (nodes,)
    end_tok: Nodes  #: tokens from the beginning of a prompt to the end of the node. Shape (nodes,)
    prompt: Nodes  #: the last node of each prompt, -1 where it shares nothing. Shape (num_prompts,)
    answer: Nodes  #: the last node of each prompt with its answer. Shape (num_prompts,)
    #: Last nodes of requests that servers have answered before, the oldest first, and all tokens of each. Shape (any,)
    before: Nodes
    before_tok: Nodes

    @classmethod
    def of(
        cls, pieces: Sequence[Sequence[int]], sizes_tok: Sequence[Sequence[int]], answers: Sequence[int] | None = None,
        before_tok: Sequence[int] = (),
    ) -> "Prefixes":  # fmt: skip
        """The tree of prompts, each a list of names of ``pieces`` and of their ``sizes_tok``. ``answers``: how many of
        the last pieces are the answer. The first lists were answered before, with ``before_tok`` tokens each."""
        counts = np.array([len(names) for names in pieces], dtype=np.int64)
        names = np.fromiter((name for one in pieces for name in one), np.int64, int(counts.sum()))
        sizes = np.fromiter((size for one in sizes_tok for size in one), np.int64, len(names))
        ends = np.array(answers or [0] * len(counts), dtype=np.int64)
        return cls.of_arrays(names, sizes, counts, ends, np.array(before_tok, dtype=np.int64))

    @classmethod
    def of_arrays(cls, names: Nodes, sizes_tok: Nodes, counts: Nodes, answers: Nodes, before_tok: Nodes) -> "Prefixes":
        """The tree of all names and sizes in a row, (pieces,), and the number of them in each request."""
        last = np.cumsum(counts)
        first = last - counts
        node, parent, users = _chained(names, sizes_tok, first, counts)
        # a node that the same requests pass as the one before it is the same piece; a single request shares none
        ends_here = np.zeros(len(parent), dtype=bool)
        prompt_ends = last - answers - 1
        for at in (prompt_ends, last - 1):
            ends_here[node[at[at >= first]]] = True
        step_tok = np.zeros(len(parent), dtype=np.int64)
        step_tok[node] = sizes_tok
        summed_tok = step_tok.tolist()
        for child, node_above in enumerate(parent.tolist()):
            summed_tok[child] += summed_tok[node_above] if node_above >= 0 else 0
        end_tok = np.array(summed_tok, dtype=np.int64)
        shared = users > 1
        joins = np.zeros(len(parent), dtype=bool)  # goes on where its parent ends, for the same requests
        inner = np.flatnonzero(parent >= 0)
        joins[inner] = (users[inner] == users[parent[inner]]) & ~ends_here[parent[inner]]
        joined = np.zeros(len(parent), dtype=bool)  # the child stands for it
        joined[parent[joins]] = True
        remains = shared & ~joined
        number = np.where(remains, np.cumsum(remains) - 1, -1)
        kept_above, stays = list[int](), remains.tolist()
        for node_above in parent.tolist():  # the nearest above each node that remains, or -1
            kept_above.append(node_above if node_above < 0 or stays[node_above] else kept_above[node_above])
        above = np.array(kept_above, dtype=np.int64)
        new_parent = np.where(above[remains] >= 0, number[above[remains]], -1)
        last_shared = np.where(remains, np.arange(len(parent)), above)  # of each node, itself or the nearest above

        def place(at: Nodes) -> Nodes:
            places = np.full(len(counts), -1, dtype=np.int64)
            some = at >= first
            nearest = last_shared[node[at[some]]]
            places[some] = np.where(nearest >= 0, number[nearest], -1)
            return places

        prompt, answer, before = place(prompt_ends), place(last - 1), len(before_tok)
        return cls(new_parent, end_tok[remains], prompt[before:], answer[before:], answer[:before], before_tok)

    def chosen(self, which: Nodes | slice) -> "Prefixes":
        return replace(self, prompt=self.prompt[which], answer=self.answer[which])

    def after(self, earlier: Nodes, earlier_tok: Nodes, before: slice) -> "Prefixes":
        """The requests on a server that also answered those at the nodes ``earlier``, ``before``: of the earliest."""
        nodes, tok = (self.before[before], earlier), (self.before_tok[before], earlier_tok)
        return replace(self, before=np.concatenate(nodes), before_tok=np.concatenate(tok))

    @cached_property
    def reusable_tok(self) -> Nodes:
        """Tokens of each prompt that an earlier request has had, in a cache that forgets nothing. (num_prompts,)"""
        seen = bytearray(len(self.parent) + 1)
        seen[-1] = 1  # what stands above the roots
        parent, end_tok = self.parent.tolist(), [*self.end_tok.tolist(), 0]

        def see(node: int) -> None:
            while not seen[node]:
                seen[node] = 1
                node = parent[node]

        for node in self.before.tolist():
            see(node)
        reusable = []
        for prompt, answer in zip(self.prompt.tolist(), self.answer.tolist(), strict=True):
            node = prompt
            while not seen[node]:
                node = parent[node]
            reusable.append(end_tok[node])
            see(prompt)
            see(answer)
        return np.array(reusable, dtype=np.int64)

    def shared_tok(self, together: int) -> float:
        """Tokens of a prompt, on average, that are in the KV cache for others too, with ``together`` requests in it.

        A node on the path of the share p of all prompts is held 1 - (1 - p)^together times."""
        size_tok = self.end_tok - np.where(self.parent >= 0, self.end_tok[self.parent], 0)
        return float(size_tok @ (self._share - (1 - (1 - self._share) ** together) / together))

    @cached_property
    def _share(self) -> NDArray[np.float64]:
        """The share of all prompts that pass each node. Shape (nodes,)"""
        users = np.bincount(self.prompt[self.prompt >= 0], minlength=len(self.parent)).tolist()
        parent = self.parent.tolist()
        for node in range(len(parent) - 1, -1, -1):  # children come after their parents
            if parent[node] >= 0:
                users[parent[node]] += users[node]
        return np.array(users) / len(self.prompt)


def _chained(names: Nodes, sizes: Nodes, first: Nodes, counts: Nodes) -> tuple[Nodes, Nodes, Nodes]:
    node = np.full(len(names), -1, dtype=np.int64)
    parents: list[Nodes] = []
    users: list[Nodes] = []
    made, level = 0, 0
    order = np.argsort(-counts, kind="stable")  # those with most pieces first
    live = len(order)
    ascending = -counts[order]
    while live:
        live = int(np.searchsorted(ascending, -level, side="left"))  # more than ``level`` pieces
        if not live:
            break
        at = first[order[:live]] + level
        above = node[at - 1] if level else np.full(live, -1, dtype=np.int64)
        keys = np.stack([above, names[at], sizes[at]])
        by = np.lexsort(keys)
        ordered = keys[:, by]
        new = np.ones(live, dtype=bool)
        new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
        place = np.cumsum(new) - 1
        node[at[by]] = place + made
        parents.append(ordered[0, new])
        users.append(np.bincount(place))
        made += int(place[-1]) + 1
        level += 1
    empty = np.zeros(0, dtype=np.int64)
    return node, np.concatenate([*parents, empty]), np.concatenate([*users, empty])


def drawn(load: "Load") -> Requests:
    """Requests as ``vllm bench`` draws them: numpy's default generator for lengths (inputs first), its legacy global
    one for arrivals."""
    if load.steady:
        return _staggered(load)
    rng = np.random.default_rng(load.seed)
    return Requests(
        input_len=_lengths(load, load.input_len, "input", rng) + load.prefix_len,
        output_len=_lengths(load, load.output_len, "output", rng),
        arrival_s=_arrivals(load),
    )


def _staggered(load: "Load") -> Requests:
    """Three cycles of requests. The first ones end at random moments, as all after them do, so the second cycle is
    steady; the last ones last until it ends."""
    each, whole = load.num_prompts, load.output_len
    first = np.sort(np.random.default_rng(load.seed).integers(1, whole + 1, each))
    output_len = np.concatenate([first, np.full(each, whole), np.maximum(whole - first, 1)])
    return Requests(np.full(3 * each, load.input_len), output_len, np.zeros(3 * each))


def _lengths(load: "Load", length: int, kind: Literal["input", "output"], rng: np.random.Generator) -> Tokens:
    if load.length_distribution != "conversation":
        low, high = load.bounds(length)
        return rng.integers(low, high + 1, size=load.num_prompts)
    known = calibration_tables("workload")["conversation"]
    shape = known[f"{kind}_shape"]
    shares = rng.beta(shape, shape * (known["longest"] - 1), load.num_prompts)
    shortest = min(CONVERSATION_MIN_TOK, length)
    lengths: Tokens = np.maximum(np.rint(shares * (length / shares.mean())), shortest).astype(np.int64)
    return lengths


def _arrivals(load: "Load") -> NDArray[np.float64]:
    """Arrival times in s: cumulated gamma gaps, stretched so that the last falls on num_prompts / rate."""
    if load.request_rate == inf:
        return np.zeros(load.num_prompts)
    if not isfinite(load.burstiness):
        return np.arange(1, load.num_prompts + 1) / load.request_rate
    scale = 1 / (load.request_rate * load.burstiness)
    gaps = np.random.RandomState(load.seed).gamma(load.burstiness, scale, size=load.num_prompts)
    times: NDArray[np.float64] = gaps.cumsum()
    if times[-1]:  # gaps of next to no burstiness are too small for a float; vLLM stretches none then, either
        times *= load.num_prompts / load.request_rate / times[-1]
    return times


def joined(classes: Sequence["Load"], parts: Sequence[Requests]) -> Requests:
    group = np.repeat(np.arange(len(parts)), [len(part.arrival_s) for part in parts])
    everything = Requests(
        np.concatenate([part.input_len for part in parts]), np.concatenate([part.output_len for part in parts]),
        np.concatenate([part.arrival_s for part in parts]), priority=np.array([one.priority for one in classes])[group],
        group=group, groups=tuple(one.name for one in classes),
    )  # fmt: skip
    return everything.chosen(np.argsort(everything.arrival_s, kind="stable"))


KEPT = 20_000  #: requests of a load, the last ones of those that are drawn
MOST = 100_000  #: that are drawn
POOL_PROMPTS = 1000  #: of a share, all its servers together
ROUNDS = 2.0  #: mean sessions in a row for which the clock runs, at least
MOST_TURNS = 1000


@dataclass(frozen=True, slots=True)
class Drawn:
    """A quantity that scatters: lognormal where the median is known, else exponential."""

    mean: float
    median: float | None = None

    def draw(self, count: int, dice: np.random.Generator) -> NDArray[np.float64]:
        if self.median is None:
            return dice.exponential(self.mean, count)
        return dice.lognormal(log(self.median), sqrt(2 * log(self.mean / self.median)), count)


@dataclass(frozen=True, slots=True)
class Sessions:
    turns: Drawn
    input_tok: Drawn  #: that a turn adds
    output_tok: Drawn
    pause_s: Drawn  #: from the end of an answer to the next turn
    most_tok: int  #: of a prompt and its answer; then the next turn begins anew

    @property
    def turn_s(self) -> float:
        """Mean seconds from one request of a session to the next."""
        return self.pause_s.mean + answer_s(self.output_tok.mean)

    def requests(self, rate: float, seed: int = 0, count: int = KEPT) -> Requests:
        """``count`` requests, two or more times in a row: at every rate the same ones, in another order."""
        # each quantity has dice of its own, so that more sessions begin with the same ones
        of_turns, of_starts, of_inputs, of_outputs, of_pauses = np.random.default_rng(seed).spawn(5)
        turns = np.clip(np.rint(self.turns.draw(count, of_turns)), 1, MOST_TURNS).astype(np.int64)
        span_s = float(turns.mean()) * self.turn_s
        turns = turns[: int(np.searchsorted(np.cumsum(turns), count)) + 1]
        turns[-1] -= turns.sum() - count
        round_s = count / rate
        new_tok = np.clip(np.rint(self.input_tok.draw(count, of_inputs)), 1, self.most_tok // 2).astype(np.int64)
        answer_tok = np.clip(np.rint(self.output_tok.draw(count, of_outputs)), 1, self.most_tok // 4).astype(np.int64)
        sizes, pause_s = np.column_stack([new_tok, answer_tok]).ravel().tolist(), self.pause_s.draw(count, of_pauses)
        rows: list[tuple[float, int, int, int]] = []  # time, prompt, the first turn that it holds, its own
        for start_s, more in zip(of_starts.uniform(0, round_s, len(turns)).tolist(), turns.tolist(), strict=True):
            time_s, first, before_tok = start_s, len(rows), 0
            for turn in range(first, first + more):
                new, answer = sizes[2 * turn : 2 * turn + 2]
                if before_tok + new + answer > self.most_tok:
                    first, before_tok = turn, 0
                rows.append((time_s, before_tok + new, first, turn))
                before_tok += new + answer
                time_s += answer_s(answer) + float(pause_s[turn])
        rows.sort(key=lambda row: row[0] % round_s)
        times_s, prompt_tok, firsts, lasts = map(np.array, zip(*rows, strict=True))
        begun, past_s = np.divmod(times_s, round_s)
        laps = np.arange(max(min(ceil(ROUNDS * span_s / round_s), MOST // count), 2))[:, None]
        # what goes on at the beginning began before it, and is not what begins at the end
        shift = (laps - begun).astype(np.int64) * count
        pieces = 2 * np.tile(lasts - firsts + 1, len(laps))
        places = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        names = np.repeat(2 * (firsts + shift).ravel(), pieces) + places
        tok, every = np.array(sizes)[names % len(sizes)], np.ones_like(pieces)
        prompts, answers = (np.tile(each, len(laps)) for each in (prompt_tok, answer_tok[lasts]))
        arrival_s = (past_s + laps * round_s).ravel() - past_s[0]
        return Requests(prompts, answers, arrival_s, Prefixes.of_arrays(names, tok, pieces, every, pieces[:0]))


@lru_cache(maxsize=32)  # engines are compared by the same shares
def shares(name: str, rate: float, servers: int, router: Router, seed: int) -> Requests:
    """Load of ``POOLED`` of ``servers`` under ``rate`` requests per second, ``POOL_PROMPTS`` in all."""
    few = min(servers, POOLED)
    # such a router leaves sessions where they are, so those of a few servers can be drawn alone
    dealt = few if router == "prefix-aware" else servers
    count = min(POOL_PROMPTS * dealt // few, MOST // 2)
    return share(named_sessions()[name].requests(rate * dealt / servers, seed, count), dealt, POOL_PROMPTS, router, few)


@cache
def named_sessions() -> dict[str, Sessions]:
    return {name: _read(entry) for name, entry in calibration_tables("workload")["sessions"].items()}


def _read(entry: dict[str, Any]) -> Sessions:
    names = ("turns", "input_tok", "output_tok", "pause_s")
    drawn = {name: Drawn(entry[name]["mean"], entry[name].get("median")) for name in names}
    return Sessions(**drawn, most_tok=entry["most_tok"]["value"])
