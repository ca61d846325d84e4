"""What a server logged beside its memory: the settings that it took, and what its cache went through.

>>> log = read_server_log("Engine 000: Running: 4 reqs, Waiting: 2 reqs, Preemptions: 3, GPU KV cache usage: 99.5%")
>>> log.preemptions, log.peak_cache_usage
(3, 0.995)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Setting = int | float | bool | str

#: Settings that change what is measured, as the start-up prints them: ``'max_num_seqs': 8`` among the arguments that
#: are not defaults, ``max_num_seqs=8`` before that list was there, ``enforce_eager=False`` in the engine's summary.
_SETTINGS: dict[str, Callable[[str], Setting]] = {
    "tensor_parallel_size": int,
    "pipeline_parallel_size": int,
    "data_parallel_size": int,
    "max_num_seqs": int,
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "gpu_memory_utilization": float,
    "enforce_eager": lambda text: text == "True",
    "enable_prefix_caching": lambda text: text == "True",
    "enable_expert_parallel": lambda text: text == "True",
}
_SETTING = re.compile(rf"['\"]?\b({'|'.join(_SETTINGS)})['\"]?\s?[=:]\s?(\d+(?:\.\d+)?|True|False)\b")
#: Those that are words, where a server prints its settings and nowhere else.
_WORD = re.compile(r"['\"]?\b(dtype|kv_cache_dtype)['\"]?\s?[=:]\s?['\"]?(?:torch\.)?(\w+)")
_PRINTS_SETTINGS = ("non-default args: ", " with config: ", "args: Namespace(")
_VERSION = re.compile(r"(?:LLM engine \(v|LLM engine \(version |API server version )(\d+\.\d+[\w.+]*)")
_PREEMPTIONS = re.compile(r"Preemptions: (\d+)")
_PREEMPTED = re.compile(r"is preempted by PreemptionMode")
_USAGE = re.compile(r"KV cache usage: ([\d.]+)%")
_HITS = re.compile(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?([\d.]+)%")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d+) reqs")


@dataclass(frozen=True, slots=True)
class ServerLog:
    """One server's log. None: nothing was printed about it."""

    version: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    peak_cache_usage: float | None = None  #: fraction of the KV blocks, the most that was printed
    prefix_hit_rate: float | None = None  #: fraction of prompt tokens, the most that was printed
    peak_waiting: int | None = None  #: requests


def read_server_log(text: str) -> ServerLog:
    """Whatever ``text`` says; empty where it says nothing. Of several start-ups the last counts."""
    version: str | None = None
    settings: dict[str, Any] = {}
    counted, seen = 0, 0
    for line in text.splitlines():
        match = _VERSION.search(line)
        version = match[1] if match else version
        for name, value in _SETTING.findall(line):
            try:
                settings[name] = _SETTINGS[name](value)
            except ValueError:  # True where a number is meant: not a setting of that name
                continue
        if any(words in line for words in _PRINTS_SETTINGS):
            settings.update(_WORD.findall(line))
        counted += bool(_PREEMPTED.search(line))
        seen = max([seen, *map(int, _PREEMPTIONS.findall(line))])
    return ServerLog(
        version=version,
        settings=MappingProxyType(settings),
        preemptions=max(counted, seen),
        peak_cache_usage=_most(_USAGE, text, 100),
        prefix_hit_rate=_most(_HITS, text, 100),
        peak_waiting=_count(_WAITING, text),
    )


def _most(expression: re.Pattern[str], text: str, scale: float) -> float | None:
    found = [float(value) for value in expression.findall(text)]
    return max(found) / scale if found else None


def _count(expression: re.Pattern[str], text: str) -> int | None:
    found = _most(expression, text, 1)
    return None if found is None else int(found)
