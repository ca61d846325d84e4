"""Result files of ``vllm bench``: an object of numbers that agree with each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.resources import read_given
from planner.units import LEAST_FIGURE, MOST_FIGURE

#: Rates of one file agree with its totals to this share: one program computed them, and printed all digits.
EXACT = 0.01
AGAIN = "measure again (in the folder of a plan: FORCE=1 ./benchmark.sh)"


def read_text(path: Path) -> str:
    """The text of a file. Raises InputError where it cannot be read."""
    try:
        return read_given(path)
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}", hint="give a table of runs, a result of vllm bench, or a plan's folder"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text file", hint="give a table of runs, or a result of vllm bench"
        ) from error


def parse_result(path: Path, text: str) -> dict[str, Any]:
    """The object in the text of a result file. Raises InputError for anything else."""
    try:
        result = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is broken: {error}", hint=AGAIN) from error
    if not isinstance(result, dict):
        raise InputError(
            f"{path} is not a result of vllm bench", hint="give what --save-result (serve) or --output-json wrote"
        )
    return result


def read_number(path: Path, result: Mapping[str, Any], name: str, *, positive: bool = False) -> float:
    """The figure ``name`` of a result. Raises InputError where it is no number, or not ``positive``."""
    value = result.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_FIGURE:
        raise InputError(f"{path} is broken: {name} is {value!r:.40}, not a number", hint=AGAIN)
    if positive and value < LEAST_FIGURE:
        raise InputError(
            f"{path} is broken: {name} is {value:g}, not a positive number of {LEAST_FIGURE:g} or more", hint=AGAIN
        )
    return value


def check_complete(path: Path, result: Mapping[str, Any]) -> int:
    """How many requests of ``vllm bench serve`` were answered. Raises InputError where some were not."""
    completed = read_number(path, result, "completed")
    sent = completed if result.get("num_prompts") is None else read_number(path, result, "num_prompts")
    if completed < max(sent, 1) or result.get("failed"):
        raise InputError(
            f"{path}: {completed:g} of {sent:g} requests completed", hint=f"see the server's log, then {AGAIN}"
        )
    return int(completed)


def check_rates(path: Path, result: Mapping[str, Any]) -> None:
    """Raise InputError for a rate of ``vllm bench serve`` that is not its total over the duration."""

    def known(name: str) -> float:
        return 0.0 if result.get(name) is None else read_number(path, result, name)

    seconds, requests = known("duration"), known("completed")
    given, made = known("total_input_tokens"), known("total_output_tokens")
    totals = {"request_throughput": requests, "output_throughput": made, "total_token_throughput": given + made}
    for name, total in totals.items():
        rate = known(name)
        if rate and seconds and total and abs(rate * seconds / total - 1) > EXACT:
            raise InputError(
                f"{path}: {name} is {rate:g}, but {total:g} in {seconds:g} s are {total / seconds:g} per second",
                hint="give the file that vllm bench serve wrote",
            )
