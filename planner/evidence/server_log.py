"""A server's log beside its memory: version, settings, and how full the KV cache was.

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

from planner.engine import SETTINGS, tagged

Setting = int | float | bool | str

#: Numbers and switches of a result. The start-up prints them as ``'max_model_len': 8`` among the arguments that are not
#: defaults, in older versions as ``max_model_len=8``, in the engine's summary as ``enforce_eager=False``.
_SETTINGS: dict[str, Callable[[str], Setting]] = {
    name: (lambda text: text == "True") if SETTINGS[name].is_switch else SETTINGS[name].value_type
    for name in tagged("result")
    if SETTINGS[name].value_type is not str
}
_SETTING = re.compile(rf"['\"]?\b({'|'.join(_SETTINGS)})['\"]?\s?[=:]\s?(\d+(?:\.\d+)?|True|False)\b")
#: Settings that are words. They count only on lines where a server prints its settings.
_WORD = re.compile(r"['\"]?\b(dtype|kv_cache_dtype)['\"]?\s?[=:]\s?['\"]?(?:torch\.)?(\w+)")
_PRINTS_SETTINGS = ("non-default args: ", " with config: ", "args: Namespace(")
_VERSION = re.compile(r"(?:LLM engine \(v|LLM engine \(version |API server version )(\d+\.\d+[\w.+]*)")
_PREEMPTIONS = re.compile(r"Preemptions: (\d{1,18})\b")
_PREEMPTED = re.compile(r"is preempted by PreemptionMode")
_USAGE = re.compile(r"KV cache usage: (\d{1,9}(?:\.\d+)?)%")
_HITS = re.compile(r"(?<!External )[Pp]refix cache hit rate: (?:GPU: )?(\d{1,9}(?:\.\d+)?)%")
_WAITING = re.compile(r"(?:Waiting|Pending): (\d{1,18}) reqs")


@dataclass(frozen=True, slots=True)
class ServerLog:
    """One server's log. None: the log does not say."""

    version: str | None = None
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    preemptions: int = 0
    peak_cache_usage: float | None = None  #: largest fraction of the KV blocks that was in use
    prefix_hit_rate: float | None = None  #: largest fraction of prompt tokens that were hits
    peak_waiting: int | None = None  #: requests


def read_server_log(text: str) -> ServerLog:
    """Read a log. Of several start-ups the last counts."""
    version: str | None = None
    settings: dict[str, Any] = {}
    counted, seen = 0, 0
    for line in text.splitlines():
        match = _VERSION.search(line)
        version = match[1] if match else version
        for name, value in _SETTING.findall(line):
            try:
                settings[name] = _SETTINGS[name](value)
            except ValueError:  # ``True`` for a number: not a setting of that name
                continue
        if any(words in line for words in _PRINTS_SETTINGS):
            settings.update(_WORD.findall(line))
        counted += bool(_PREEMPTED.search(line))
        seen = max([seen, *map(int, _PREEMPTIONS.findall(line))])
    waiting = _most(_WAITING, text, 1)
    return ServerLog(
        version=version,
        settings=MappingProxyType(settings),
        preemptions=max(counted, seen),
        peak_cache_usage=_most(_USAGE, text, 100),
        prefix_hit_rate=_most(_HITS, text, 100),
        peak_waiting=None if waiting is None else int(waiting),
    )


def _most(expression: re.Pattern[str], text: str, scale: float) -> float | None:
    values = [float(value) for value in expression.findall(text)]
    return max(values) / scale if values else None
