"""Options, variables and values that each vLLM version accepts; and the variables of a plan.

``flags.json`` was written by the real parsers of 0.6.3 to 0.33.0 (``tests/real_parsers``).

>>> from planner.engine.version import parse_version
>>> str(flag_status(parse_version("0.18.0"), "--swap-space"))
'gone in 0.18.0'
>>> Environment.read(["VLLM_CPU_KVCACHE_SPACE=4", "OMP_NUM_THREADS=8"])
{'VLLM_CPU_KVCACHE_SPACE': '4', 'OMP_NUM_THREADS': '8'}
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal, Self

from planner.engine.version import EngineVersion, release_of, release_text
from planner.errors import IllegalPlanError, InputError, UnknownNameError
from planner.resources import package_dir, tables_of
from planner.secrets import is_secret
from planner.units import MOST_FIGURE, whole_number

VllmCommand = Literal[
    "serve", "bench serve", "bench throughput", "bench latency", "benchmark_serving.py", "benchmark_throughput.py",
    "benchmark_latency.py",
]  # fmt: skip
Spans = tuple[tuple[int, int], ...]  #: first and last index into the list of versions, ascending
_ENGINE_COMMANDS = ("serve", "bench throughput", "bench latency")  #: commands whose options include those of the engine
#: In AMD's images one release before upstream (their documentation of 0.9.1).
_EARLY_ON_ROCM = {"VLLM_ROCM_USE_AITER_MHA": (0, 9, 1), "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": (0, 9, 1)}


@dataclass(frozen=True, slots=True)
class Status:
    state: Literal["known", "not yet", "gone", "unknown"]
    since: str = ""  #: the version where it appeared
    gone_in: str = ""  #: the first version without it
    replaced_by: str = ""

    def __bool__(self) -> bool:
        return self.state == "known"

    def __str__(self) -> str:
        """``known since 0.8.0``, ``not before 0.10.0``, ``gone in 0.18.0``, ``unknown to vLLM``."""
        words = {"known": f"known since {self.since}", "not yet": f"not before {self.since}"}
        return {**words, "gone": f"gone in {self.gone_in}"}.get(self.state, "unknown to vLLM")

    def require(self, what: str, otherwise: str = "leave it out") -> None:
        if not self:
            raise IllegalPlanError(f"{what} does not have it ({self})", hint=self.hint or otherwise)

    @property
    def hint(self) -> str:
        if self.replaced_by:
            return f"use {self.replaced_by}" if not self.replaced_by.startswith("nothing") else self.replaced_by
        return f"choose vLLM {self.since} or later" if self.state == "not yet" else ""


@dataclass(frozen=True, slots=True)
class FlagProblem:
    word: str
    cause: str
    hint: str = ""
    fatal: bool = True  #: False: vLLM ignores it, with a warning at most
    modelled: bool = True  #: False: vLLM takes it, and planner does not model it

    def __str__(self) -> str:
        return f"{self.word}: {self.cause}" + (f" ({self.hint})" if self.hint else "")


def flag_status(version: EngineVersion, flag: str, command: VllmCommand = "serve") -> Status:
    name = spelled(flag)
    names = (name, "--optimization-level") if name == "-O" else (name,)  # -O3 from 0.12.0 on
    spans = [span for table in _tables(command) for n in names for span in table.get(n, ())]
    return _status(version, name, tuple(sorted(spans)))


def env_status(version: EngineVersion, name: str, *, platform: str = "") -> Status:
    """Status of a variable; all that do not start with ``VLLM_`` are known."""
    if not name.startswith("VLLM_"):
        return Status("known")
    early = _EARLY_ON_ROCM.get(name)
    if platform == "rocm" and early and early <= version.release:
        return Status("known", since=release_text(early))
    return _status(version, name, _table("env").get(name, ()))


def value_status(version: EngineVersion, kind: str, value: str) -> Status:
    """Status of a value of ``--kv-cache-dtype`` or ``--quantization``, or of a configuration key, by its list there."""
    return _status(version, value, _table(kind).get(value, ()))


def known_values(version: EngineVersion, kind: str) -> list[str]:
    """Values in the list ``kind``; empty where the version has none."""
    return [name for name, spans in _table(kind).items() if _within(spans, version)]


def key_list(option: str) -> str:
    """Name of the list of the keys that an option's JSON has, or a key's; empty where any key is taken."""
    name = option.removeprefix("--").replace("-", "_")
    return name if name.endswith("_config") and name in _data() else ""


def command_status(version: EngineVersion, command: VllmCommand) -> Status:
    firsts, lasts = zip(*(span for spans in _table(command).values() for span in spans), strict=True)
    return _status(version, command, ((min(firsts), max(lasts)),))


def takes_value(version: EngineVersion, flag: str) -> bool:
    return not _within(_table("switches").get(spelled(flag), ()), version)


def known_flags(version: EngineVersion, command: VllmCommand) -> set[str]:
    return {name for table in _tables(command) for name, spans in table.items() if _within(spans, version)}


def _tables(command: VllmCommand) -> list[dict[str, Spans]]:
    return [_table(name) for name in (("engine", command) if command in _ENGINE_COMMANDS else (command,))]


def _within(spans: Spans, version: EngineVersion) -> bool:
    index = _index(version)
    return any(first <= index <= last for first, last in spans)


def spelled(flag: str) -> str:
    name = flag.split("=", 1)[0].split(".", 1)[0]
    return name.replace("_", "-") if name.startswith("--") else "-O" if name.startswith("-O") else name


@cache
def table_versions() -> tuple[str, ...]:
    return tuple(_data()["versions"].split())


def _status(version: EngineVersion, name: str, spans: Spans) -> Status:
    names, index = table_versions(), _index(version)
    if not spans:
        return Status("unknown")
    since = names[spans[0][0]]
    if _within(spans, version):
        return Status("known", since)
    ended = [last for _, last in spans if last < index]
    if not ended:
        return Status("not yet", names[next(first for first, _ in spans if first > index)])
    return Status("gone", since, names[max(ended) + 1], _data("replaced.toml").get(name, ""))


@lru_cache(maxsize=256)
def _index(version: EngineVersion) -> int:
    releases = [release_of(name) for name in table_versions()]
    return max(bisect_right(releases, version.release) - 1, 0)


@cache
def _data(file: str = "flags.json") -> dict[str, Any]:
    return tables_of(package_dir("engine") / file)


@lru_cache(maxsize=32)
def _table(name: str) -> dict[str, Spans]:
    place = {version: index for index, version in enumerate(table_versions())}
    groups: dict[str, str] = _data().get(name, {})
    spans_by_name = {}
    for key, names in groups.items():
        edges = [span.split("..") for span in key.split(",")]
        spans = tuple((place[first], place[last] if last else len(place) - 1) for first, last in edges)
        spans_by_name.update(dict.fromkeys(names.split(), spans))
    return spans_by_name


CPU_KVCACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
MXFP4_MARLIN = "VLLM_MXFP4_USE_MARLIN"
GRAPH_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
USE_V1 = "VLLM_USE_V1"
ALL2ALL = "VLLM_ALL2ALL_BACKEND"
CHUNK = "VLLM_MOE_DP_CHUNK_SIZE"
BUFFER = "VLLM_DEEPEP_BUFFER_SIZE_MB"
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"  #: a context beyond the model's own
QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"
AITER = "VLLM_ROCM_USE_AITER"  #: AMD's kernels, which measured servers had


def is_on(env: Mapping[str, str], name: str, default: str = "") -> bool:
    """Return what ``envs.py`` of vLLM makes of a switch."""
    return env.get(name, default).lower() in ("1", "true")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of vLLM with a meaning for a plan. ``flags.json`` has the versions that read it."""

    values: Sequence[str] = ()  #: empty: any
    on: Literal["", "cpu", "gpu"] = ""  #: where it has a meaning; empty: everywhere


SWITCH = ["0", "1"]
#: The variables that are simulated, or whose values vLLM checks.
VARIABLES = {name: Variable(**row) for name, row in _data("variables.toml").items()}


class Environment(dict[str, str]):
    """Variables by name, in their order. It has a hash, as settings have: do not change one."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    @classmethod
    def read(cls, given: Mapping[str, Any] | Sequence[str] | str | None) -> Self:
        """The variables of a mapping or of ``NAME=VALUE`` words. Raises InputError, also UnknownNameError."""
        if given is None or isinstance(given, Mapping):
            pairs = dict(given or {})
        elif isinstance(given, list | tuple | str):
            pairs = dict(_split(word) for word in ([given] if isinstance(given, str) else given))
        else:
            raise InputError(f"--env {str(given)[:80]} is no variables", hint="give a mapping, or NAME=VALUE words")
        return cls({str(name): _checked(str(name), value) for name, value in pairs.items()})

    def switch(self, name: str) -> bool | None:
        return {"1": True, "0": False}.get(self.get(name, ""))


def _split(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
    if not equals:
        hint = _by_name(word) if is_secret("x" * 8, word) else "write NAME=VALUE"
        raise InputError(f"--env {str(word)[:80]!r} has no value", hint=hint)
    return name, value


def _by_name(name: str) -> str:
    passed = name in ("HF_TOKEN", "VLLM_API_KEY")
    where = f": export {name} where they run" if passed else ", and no other secret"
    return f"scripts pass HF_TOKEN and VLLM_API_KEY by name{where}"


def _checked(name: str, value: Any) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(f"--env {name[:80]!r} is not the name of a variable", hint="write NAME=VALUE")
    if is_secret(text, name):
        raise InputError(f"--env {name}: its value looks like a secret, and scripts would show it", hint=_by_name(name))
    if not isinstance(value, str | int | float) or not text.isprintable():
        raise InputError(f"--env {name}: its value is not printable text", hint="write it on one line")
    if name.startswith("VLLM_") and name not in (known := {**_table("env"), **_EARLY_ON_ROCM}):
        raise UnknownNameError("variable of vLLM", name, known, see="planner/engine/flags.json")
    check_value(name, text)
    return text


def is_value(name: str, text: str) -> bool:
    known = VARIABLES.get(name)
    if name == CPU_KVCACHE_SPACE:
        return 1 <= (whole_number(text) or 0) <= MOST_FIGURE
    return known is None or not known.values or text.upper() in known.values


def check_value(name: str, text: str) -> None:
    if is_value(name, text):
        return
    if name == CPU_KVCACHE_SPACE:
        raise InputError(f"{name}={text[:40]} is not a whole number of at least 1", hint="give it in GiB")
    values = ", ".join(VARIABLES[name].values)
    raise InputError(f"{name}={text[:40]} is none of {values}", hint=f"use one of: {values}")
