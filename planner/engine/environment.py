"""Variables that are set for vLLM: which it reads, which change a plan, and which are never written down.

>>> Environment.read(["VLLM_CPU_KVCACHE_SPACE=4", "OMP_NUM_THREADS=8"])
{'VLLM_CPU_KVCACHE_SPACE': '4', 'OMP_NUM_THREADS': '8'}
>>> Environment.read({"VLLM_USE_FLASHINFER_SAMPLR": "1"})
Traceback (most recent call last):
planner.errors.UnknownNameError: unknown variable of vLLM 'VLLM_USE_FLASHINFER_SAMPLR'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from planner.engine.flags import known_variables
from planner.errors import InputError, UnknownNameError
from planner.secrets import is_secret
from planner.units import MOST_FIGURE, whole_number

CPU_KVCACHE_SPACE = "VLLM_CPU_KVCACHE_SPACE"
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
MXFP4_MARLIN = "VLLM_MXFP4_USE_MARLIN"
USE_V1 = "VLLM_USE_V1"
QUICK_REDUCE = "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of vLLM with a meaning for a plan. ``flags.json`` has the versions that read it."""

    changes: str
    values: tuple[str, ...] = ()  #: empty: any
    on: Literal["", "cpu", "gpu"] = ""  #: where it has a meaning; empty: everywhere
    simulated: bool = True  #: memory or time is computed with it


SWITCH = ("0", "1")
#: The variables that are simulated, or whose values vLLM checks.
VARIABLES: Mapping[str, Variable] = {
    CPU_KVCACHE_SPACE: Variable("KV cache of each rank on a CPU, whole GiB", on="cpu"),
    FLASHINFER_SAMPLER: Variable("sample with FlashInfer, or without", SWITCH, on="gpu"),
    MXFP4_MARLIN: Variable("MXFP4 experts by Marlin's kernels", SWITCH, on="gpu"),
    USE_V1: Variable("the V1 engine or the V0 engine", SWITCH),
    # envs.py and quick_all_reduce.py, and AMD's document of 0.9.1
    QUICK_REDUCE: Variable("precision of sums over GPUs", ("FP", "INT8", "INT6", "INT4", "NONE"), simulated=False),
}


class Environment(dict[str, str]):
    """Variables by name, in their order. It has a hash, as settings have: do not change one."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    @classmethod
    def read(cls, given: Mapping[str, Any] | Sequence[str] | str | None) -> Self:
        """The variables of a mapping, or of ``NAME=VALUE`` words.

        Raises InputError for what is neither, for a secret, and for a value that the variable does not take;
        UnknownNameError for a variable that no version of vLLM reads.
        """
        if given is None or isinstance(given, Mapping):
            pairs = dict(given or {})
        elif isinstance(given, list | tuple | str):
            pairs = dict(_split(word) for word in ([given] if isinstance(given, str) else given))
        else:
            raise InputError(f"--env {str(given)[:80]} is no variables", hint="give a mapping, or NAME=VALUE words")
        return cls({str(name): _checked(str(name), value) for name, value in pairs.items()})

    def switch(self, name: str) -> bool | None:
        """Whether a variable switches something on or off; None where it is not set."""
        return {"1": True, "0": False}.get(self.get(name, ""))

    def number(self, name: str) -> int | None:
        """The whole number that a variable has; None where it has none."""
        return whole_number(self.get(name, ""))


def _split(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=") if isinstance(word, str) else ("", "", "")
    if not equals:
        hint = f"{word} is passed through by name if it is set" if is_secret("x" * 8, word) else "write NAME=VALUE"
        raise InputError(f"--env {str(word)[:80]!r} has no value", hint=hint)
    return name, value


def _checked(name: str, value: Any) -> str:
    text = str(int(value)) if isinstance(value, bool) else str(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(f"--env {name[:80]!r} is not the name of a variable", hint="write NAME=VALUE")
    if is_secret(text, name):
        raise InputError(
            f"--env {name}: its value looks like a secret, and scripts would show it",
            hint=f"export {name} where the scripts run: HF_TOKEN is passed through by its name",
        )
    if not isinstance(value, str | int | float) or not text.isprintable():
        raise InputError(f"--env {name}: its value is not printable text", hint="write it on one line")
    if name.startswith("VLLM_") and name not in known_variables():
        raise UnknownNameError("variable of vLLM", name, known_variables(), see="planner/engine/flags.json")
    check_value(name, text)
    return text


def is_value(name: str, text: str) -> bool:
    """Whether a variable takes a value."""
    known = VARIABLES.get(name)
    if name == CPU_KVCACHE_SPACE:
        return 1 <= (whole_number(text) or 0) <= MOST_FIGURE
    return known is None or not known.values or text.upper() in known.values


def check_value(name: str, text: str) -> None:
    """Raise InputError for a value that a variable does not take."""
    if is_value(name, text):
        return
    if name == CPU_KVCACHE_SPACE:
        raise InputError(f"{name}={text[:40]} is not a whole number of at least 1", hint="give it in GiB")
    values = ", ".join(VARIABLES[name].values)
    raise InputError(f"{name}={text[:40]} is none of {values}", hint=f"use one of: {values}")
