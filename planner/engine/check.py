"""Read a command line the way one vLLM version would, and say what it would not take.

>>> from planner.engine.version import parse_version
>>> for problem in check_command("vllm serve m --swap-space 16".split(), parse_version("0.18.0")):
...     print(problem)
--swap-space: gone in 0.18.0 (nothing: V1 recomputes instead of swapping)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from planner.engine.flags import (
    Command,
    Status,
    Values,
    command_status,
    env_status,
    flag_status,
    known_flags,
    spelled,
    takes_value,
    value_status,
)
from planner.engine.version import EngineVersion

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_CONFIGS: dict[str, Values] = {
    "--compilation-config": "compilation_config",
    "-cc": "compilation_config",
    "--speculative-config": "speculative_config",
    "-sc": "speculative_config",
}
_VALUES: dict[str, Values] = {
    "--kv-cache-dtype": "kv_cache_dtype",
    "--quantization": "quantization",
    "-q": "quantization",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A word of a command that the version at hand does not take."""

    word: str
    cause: str
    hint: str = ""
    fatal: bool = True  #: False: vLLM ignores it, with a warning at most

    def __str__(self) -> str:
        return f"{self.word}: {self.cause}" + (f" ({self.hint})" if self.hint else "")


def check_command(argv: Sequence[str], version: EngineVersion, *, platform: str = "") -> list[Problem]:
    """What ``version`` would refuse or ignore in a command: options, their values, variables set before it.

    Understands ``vllm serve``, ``vllm bench serve|throughput|latency`` and the ``benchmark_*.py`` scripts; other
    commands are not vLLM's and have no problems. ``platform`` (``rocm``) admits what AMD's images had early.
    """
    words = list(argv)
    problems = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name = words.pop(0).split("=", 1)[0]
        problems += check_env(name, version, platform=platform)
    command, rest = split_command(words)
    if command is None:
        return problems
    status = command_status(version, command)
    if not status:
        other = "vllm bench" if status.state == "gone" else "the scripts benchmarks/benchmark_*.py"
        return [*problems, Problem(command, str(status), f"use {other}")]
    return [*problems, *_check_options(rest, command, version)]


def check_env(name: str, version: EngineVersion, *, platform: str = "") -> list[Problem]:
    """Whether ``version`` reads a variable. One that it does not read has no effect, so it is never fatal."""
    status = env_status(version, name, platform=platform)
    return [] if status else [Problem(name, str(status), status.hint, fatal=False)]


def split_command(words: Sequence[str]) -> tuple[Command | None, list[str]]:
    """The command that an argument list runs, and its arguments; None for one that is not vLLM's."""
    for index, word in enumerate(words):
        name = word.rsplit("/", 1)[-1]
        if name in get_args(Command):
            return name, list(words[index + 1 :])  # type: ignore[return-value]
        if name == "vllm":
            rest = list(words[index + 1 :])
            length = 2 if rest[:1] == ["bench"] else 1
            found = " ".join(rest[:length])
            return (found, rest[length:]) if found in get_args(Command) else (None, [])  # type: ignore[return-value]
    return None, []


def _check_options(words: list[str], command: Command, version: EngineVersion) -> Iterator[Problem]:
    for index, word in enumerate(words):
        if not _OPTION.match(word):
            continue
        flag, joined = spelled(word), word.partition("=")[2]
        status = flag_status(version, flag, command)
        if not status:
            yield Problem(flag, str(status), status.hint or _nearest(flag, version, command))
            continue
        following = words[index + 1] if index + 1 < len(words) else ""
        if not takes_value(version, flag):
            if joined or following.lower() in {"true", "false"}:
                yield Problem(flag, f"takes no value in vLLM {version}", "use the --no- form to switch it off")
        elif "." not in word.split("=", 1)[0]:
            yield from _check_value(flag, joined or following, version)


def _nearest(flag: str, version: EngineVersion, command: Command) -> str:
    near = get_close_matches(flag, known_flags(version, command), n=1, cutoff=0.7)
    return f"nearest: {near[0]}" if near else ""


def _check_value(flag: str, value: str, version: EngineVersion) -> Iterator[Problem]:
    if flag in _VALUES:
        yield from _missing(f"{flag} {value}", value_status(version, _VALUES[flag], value))
    elif flag in _CONFIGS and value.startswith("{"):
        try:
            config = json.loads(value)
        except json.JSONDecodeError as error:
            yield Problem(flag, f"{value!r} is not JSON: {error}", "quote the keys, and the whole for the shell")
        else:
            yield from _check_keys(flag, config, _CONFIGS[flag], version)
    elif flag == "--compilation-config" and not value.startswith("{") and version.release >= (0, 10, 2):
        yield Problem(flag, f"takes JSON, not {value!r}, from vLLM 0.10.2 on", 'write {"mode": 3}')


def _check_keys(flag: str, config: dict[str, object], kind: Values, version: EngineVersion) -> Iterator[Problem]:
    for key, value in config.items():
        yield from _missing(f"{flag} {key}", value_status(version, kind, key))
        if key == "pass_config" and isinstance(value, dict):
            yield from _check_keys(f"{flag} pass_config", value, "pass_config", version)


def _missing(word: str, status: Status) -> Iterator[Problem]:
    if not status:
        yield Problem(word, str(status), status.hint)
