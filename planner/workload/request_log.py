"""vLLM's own request log: what ``vllm serve --enable-log-requests --enable-log-outputs`` writes.

From ``RequestLogger`` (``vllm/entrypoints/serve/utils/request_logger.py`` of 0.32, ``vllm/entrypoints/logger.py``
before). At the level INFO a line says when a request came, with its sampling parameters. The tokens of prompts and of
answers stand in lines of the level DEBUG (``VLLM_LOGGING_LEVEL=DEBUG``), up to 0.10 those of prompts at INFO. The clock
has no year and whole seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from planner.errors import InputError

LOGGED_BLOCK_TOK = 16  #: tokens of a piece that logged prompts are cut into: vLLM's usual block
_TIME = re.compile(r"\b(?:INFO|DEBUG) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\b")
_RECEIVED = re.compile(r"Received request ([^\s:]+):")
_DETAILS = re.compile(r"Request ([^\s:]+) details:")
_ANSWERED = re.compile(r"Generated response (\S+?)(?: \(streaming [a-z]+\))? details: output_token_ids: \[([\d, ]*)\]")
_PROMPT = re.compile(r"prompt_token_ids: \[([\d, ]*)\]")
_MOST = re.compile(r"max_tokens=(\d{1,18})")
_HINT = "log with VLLM_LOGGING_LEVEL=DEBUG vllm serve --enable-log-requests --enable-log-outputs"


@dataclass(slots=True)
class LoggedRequest:
    """One request of a log."""

    line: int
    arrival_s: float
    input_len: int = 0
    output_len: int = 0  #: tokens; where no answer was logged, as many as were allowed
    names: tuple[int, ...] = ()  #: of the blocks of the prompt, each standing for all before it too


def is_request_log(first: str) -> bool:
    """True if a file that begins so is a log of vLLM."""
    return bool(_TIME.search(first))


def read_request_log(lines: Iterator[str], where: str) -> Iterator[LoggedRequest]:
    """The requests of a log, each once its answer is there, or at the end. Raises InputError for one without tokens."""
    waiting: dict[str, LoggedRequest] = {}
    blocks: dict[tuple[int | str, ...], int] = {}
    any_request = False
    for number, line in enumerate(lines, 1):
        if received := _RECEIVED.search(line):
            request = waiting[received[1]] = LoggedRequest(number, _seconds(line, where, number))
            most = _MOST.search(line)
            request.output_len = int(most[1]) if most else 0
            any_request = True
        details = _DETAILS.search(line) or received
        if details and details[1] in waiting and (prompt := _PROMPT.search(line)):
            _tell(waiting[details[1]], _ids(prompt[1]), blocks)
        if (answered := _ANSWERED.search(line)) and answered[1] in waiting:
            request = waiting.pop(answered[1])
            request.output_len = len(_ids(answered[2]))
            yield _checked(request, where)
    for request in waiting.values():
        yield _checked(request, where)
    if not any_request:
        raise InputError(f"{where}: a log without requests", hint=_HINT)


def _seconds(line: str, where: str, number: int) -> float:
    """Seconds since the beginning of a year with 366 days."""
    time = _TIME.search(line)
    if not time:
        raise InputError(f"{where}: line {number} has no time", hint="keep the beginning of each line of the log")
    month, day, hour, minute, second = map(int, time.groups())
    try:
        return datetime(2000, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError as error:
        raise InputError(
            f"{where}: line {number}: {error}", hint="a time is month-day hours:minutes:seconds"
        ) from error


def _ids(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _tell(request: LoggedRequest, tokens: list[str], blocks: dict[tuple[int | str, ...], int]) -> None:
    """Name the full blocks of a prompt; a name stands for the block and all before it."""
    request.input_len = len(tokens)
    names: list[int] = []
    for at in range(0, len(tokens) - LOGGED_BLOCK_TOK + 1, LOGGED_BLOCK_TOK):
        key: tuple[int | str, ...] = (names[-1] if names else -1, *tokens[at : at + LOGGED_BLOCK_TOK])
        names.append(blocks.setdefault(key, len(blocks)))
    request.names = tuple(names)


def _checked(request: LoggedRequest, where: str) -> LoggedRequest:
    if not request.input_len or not request.output_len:
        what = "prompt" if not request.input_len else "answer"
        raise InputError(f"{where}: line {request.line}: the tokens of the {what} are not in the log", hint=_HINT)
    return request
