"""vLLM's prefix cache written out block by block, after ``vllm/v1/core/block_pool.py`` of 0.32: slow, only for tests.

A block is found by all tokens from the beginning of its prompt to its own end.
"""

import random
from math import ceil

import numpy as np
from reference_scheduler import Engine, Request

from planner.simulator.limits import SchedulerLimits, StepTimer
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests

#: Tokens of each request, those of its answer included.
Texts = list[list[int]]


class CachingEngine(Engine):
    def __init__(self, timer: StepTimer, limits: SchedulerLimits, texts: Texts) -> None:
        super().__init__(timer, limits)
        self.texts = texts
        self.total = limits.kv_cache_tokens // limits.block_size
        self.free_blocks = list(range(self.total))  #: taken from the front
        self.users = [0] * self.total
        self.content: list[tuple[int, ...] | None] = [None] * self.total
        self.cached: dict[tuple[int, ...], dict[int, None]] = {}
        self.blocks_of: dict[int, list[int]] = {}
        self.first_found: dict[int, int] = {}

    @property
    def free(self) -> int:
        return len(self.free_blocks) if hasattr(self, "free_blocks") else 0

    def allocate(self, request: Request, new: int) -> bool:
        size = self.limits.block_size
        mine = self.blocks_of.setdefault(request.index, [])
        missing = ceil((request.computed + new) / size) - len(mine)
        if missing > self.free:
            return False
        for _ in range(missing):
            block = self.free_blocks.pop(0)
            content = self.content[block]
            if content is not None:
                del self.cached[content][block]
                if not self.cached[content]:
                    del self.cached[content]
                self.content[block] = None
            self.users[block] = 1
            mine.append(block)
        request.blocks = len(mine)
        for place in range(min(request.computed + new, request.tokens) // size):
            if self.content[mine[place]] is None:
                key = self.key(request, place)
                self.content[mine[place]] = key
                self.cached.setdefault(key, {})[mine[place]] = None
        return True

    def key(self, request: Request, place: int) -> tuple[int, ...]:
        return tuple(self.texts[request.index][: (place + 1) * self.limits.block_size])

    def release(self, request: Request) -> None:
        last, first = [], []
        for block in reversed(self.blocks_of.pop(request.index)):
            self.users[block] -= 1
            if not self.users[block]:
                (first if self.content[block] is None else last).append(block)
        self.free_blocks = [*first, *self.free_blocks, *last]
        request.blocks = 0

    def found_blocks(self, request: Request) -> list[int]:
        blocks: list[int] = []
        while len(blocks) < (request.tokens - 1) // self.limits.block_size:
            copies = self.cached.get(self.key(request, len(blocks)))
            if not copies:
                break
            blocks.append(next(iter(copies)))
        return blocks

    def found(self, request: Request) -> int:
        return len(self.found_blocks(request))

    def held(self, request: Request, found: int) -> int:
        return sum(self.users[block] > 0 for block in self.found_blocks(request))

    def reuse(self, request: Request, found: int) -> None:
        blocks = self.found_blocks(request)
        for block in blocks:
            if not self.users[block]:
                self.free_blocks.remove(block)
            self.users[block] += 1
        self.blocks_of[request.index] = blocks
        if not request.preemptions:
            self.first_found[request.index] = found * self.limits.block_size


def random_workload(dice: random.Random) -> Load:
    """A few short requests of several lengths."""
    return Load(
        dice.randint(1, 40),
        dice.randint(1, 30),
        num_prompts=dice.randint(1, 20),
        max_concurrency=dice.choice([None, 1, 2, 5, 9]),
        request_rate=dice.choice([float("inf"), dice.uniform(1, 500)]),
        range_ratio=0.8,
        length_distribution="below",
        seed=dice.randrange(1000),
    )


def random_texts(dice: random.Random, requests: Requests, *, answers: bool) -> tuple[Requests, Texts]:
    """The same requests with prompts that begin as others do; with ``answers``, some go on where others have ended.

    Those come a long time later, when the answer is there.
    """
    fresh = iter(range(100, 100_000_000))
    names: list[list[int]] = []  # pieces of each request, the last of them its answer
    sizes: list[list[int]] = []
    told: dict[tuple[int, ...], list[int]] = {}  # the tokens of a piece, by the names up to it
    texts: Texts = []
    input_len, arrival_s = requests.input_len.copy(), requests.arrival_s.copy()
    for index, output_tok in enumerate(requests.output_len.tolist()):
        path: list[int] = []
        spans: list[int] = []
        if names and dice.random() < 0.8:
            other = dice.randrange(len(names))
            most = len(names[other]) - (not answers)
            count = dice.randint(0, most)
            path, spans = names[other][:count], sizes[other][:count]
            if answers and count == most:
                arrival_s[index:] += 1e4
        new_tok = dice.choice([0, dice.randint(1, 40), 16, 32])
        if new_tok or not path:
            path, spans = [*path, next(fresh)], [*spans, new_tok or 16]
        input_len[index] = sum(spans)
        names.append([*path, next(fresh)])
        sizes.append([*spans, output_tok])
        text: list[int] = []
        for place, span in enumerate(sizes[-1], 1):
            key = tuple(names[-1][:place])
            text += told.setdefault(key, [next(fresh) for _ in range(span)])
        texts.append(text)
    prefixes = Prefixes.of(names, sizes, [1] * len(names))
    return Requests(input_len, requests.output_len, arrival_s, prefixes), texts


def with_prefixes(dice: random.Random, limits: SchedulerLimits, requests: Requests) -> SchedulerLimits:
    """The same engine with a prefix cache that holds the longest request and some more."""
    from dataclasses import replace

    longest = int((requests.input_len + requests.output_len).max())
    return replace(
        limits,
        enable_prefix_caching=True,
        max_num_batched_tokens=max(limits.max_num_batched_tokens, 1 if limits.enable_chunked_prefill else longest),
        kv_cache_tokens=longest + limits.block_size + dice.choice([0, 64, 200, 600, 10_000]),
    )


def as_found(engines: list[CachingEngine], count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Tokens that each request found when it was first scheduled."""
    found = np.zeros(count, dtype=np.int64)
    for engine in engines:
        for index, tok in engine.first_found.items():
            found[index] = tok
    return found
