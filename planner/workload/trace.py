"""Recorded loads: a file of arrivals and lengths, read as a stream.

CSV with a heading, or JSON objects line by line. The columns say the form:

=========================  ================================================  ===================================
form                       columns                                           arrivals
=========================  ================================================  ===================================
planner                    arrival_s, input_len, output_len                  seconds from any origin
Azure LLM inference trace  TIMESTAMP, ContextTokens, GeneratedTokens         date and time of day
BurstGPT                   Timestamp, Request tokens, Response tokens        seconds
Mooncake                   timestamp, input_length, output_length            milliseconds
Alibaba Bailian            the same, with chat_id                            seconds
conversations              arrival_s, turns                                  seconds, of the first turn
vLLM's request log         see below                                         date and time of day
=========================  ================================================  ===================================

What prompts have in common is known in three ways. ``hash_ids`` name the blocks of a prompt, each with all before it:
512 tokens in Mooncake's traces, 16 in Bailian's. Rows of one ``session`` go on from each other: a prompt begins with
the prompt and the answer before it, where it is long enough for both. Each of the ``turns`` of a conversation has the
tokens that it adds (``input_len``), those of its answer (``output_len``) and the seconds that somebody, or a tool,
takes after the answer before (``pause_s``).

A million rows pass through a buffer of bounded size, which sorts rows that are out of order. What is kept is the
busiest stretch of ``STRETCH`` requests in a row (most tokens per second): a plan has to carry that. A row that lacks a
number, or has an impossible one, is refused with its line number.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO

from planner.errors import InputError
from planner.resources import check_file
from planner.workload.load import BURSTIEST, EVENEST, MOST_TOK
from planner.workload.requests import Prefixes, Requests, answer_s

STRETCH = 20_000  #: requests in a row that are kept
REORDERED = 65_536  #: rows of the sorting buffer; a row that is out of order by more is refused
#: A gap is a pause, and gets a note, when it is this many times the mean gap and at least this long.
PAUSE, PAUSE_S = 100, 60.0
LEAST_STRETCH = 200  #: requests between two pauses that are enough for a 99th percentile
MOST_LINE_BYTES = 2**20
LONGEST_S = 10 * 365 * 86_400.0  #: from the first request to the last; more is taken for a mistake

_HINT = "columns: arrival_s,input_len,output_len, as CSV with a heading or as JSON objects line by line"


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Names of the columns, and seconds per unit of the arrival; None: date and time."""

    arrival: str
    input_len: str
    output_len: str
    unit_s: float | None
    block_tok: int = 512  #: tokens of a block that ``hash_ids`` names
    only_with: str = ""  #: another column, which decides between two forms

    def is_of(self, names: set[str]) -> bool:
        """True if these columns are those of the form."""
        return {self.arrival, self.input_len, self.output_len, self.only_with or self.arrival} <= names


FORMS = (
    TraceFormat("arrival_s", "input_len", "output_len", 1.0),
    TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    TraceFormat("Timestamp", "Request tokens", "Response tokens", 1.0),
    TraceFormat("timestamp", "input_length", "output_length", 1.0, block_tok=16, only_with="chat_id"),
    TraceFormat("timestamp", "input_length", "output_length", 1e-3),
)
HASHES, SESSION, TURNS = "hash_ids", "session", "turns"
MOST_TURNS = 10_000  #: of one conversation; more is taken for a mistake


@dataclass(frozen=True)
class Trace:
    """The load in a file of requests."""

    path: str
    sha256: str
    rows: int
    duration_s: float  #: first arrival to last
    input_len: float  #: mean tokens over all rows
    output_len: float
    longest_len: int  #: tokens, input and output, of the longest request of all
    busiest: Requests  #: at most ``STRETCH`` in a row, from time zero on
    notes: tuple[str, ...]

    @property
    def mean_rate(self) -> float:
        """Requests per second over the whole file."""
        return self.rows / self.duration_s

    @property
    def busiest_rate(self) -> float:
        """Requests per second of the busiest stretch."""
        return len(self.busiest.arrival_s) / float(self.busiest.arrival_s[-1])

    @property
    def burstiness(self) -> float:
        """Shape of the gamma distribution whose gaps vary as those of the busiest stretch: 1 / (sd / mean)^2."""
        import numpy as np

        gaps = np.diff(self.busiest.arrival_s)
        variation = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 1.0
        return round(min(max(1 / variation**2, BURSTIEST), EVENEST), 3) if variation > 0 else EVENEST


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Text:
    """The pieces of a prompt: names of its pieces, and their tokens, or those of each but the last one.

    ``answers``: how many of the last pieces are the answer to it.
    """

    names: Sequence[int]
    sizes_tok: Sequence[int] | int
    answers: int = 0

    def sizes(self, prompt_tok: int) -> Sequence[int]:
        """Tokens of every piece; blocks of one size fill the prompt but for the last one."""
        if not isinstance(self.sizes_tok, int):
            return self.sizes_tok
        whole = min(prompt_tok // self.sizes_tok, len(self.names))
        rest = [prompt_tok - whole * self.sizes_tok] * (len(self.names) - whole)
        return [self.sizes_tok] * whole + rest


#: One request while it passes through: arrival in s, a number in the order of the file, tokens of the prompt, of the
#: answer, what the prompt consists of, and its line.
_Row = tuple[float, int, int, int, Text | None, int]


def read_trace(path: Path) -> Trace:
    """Read a file in one pass. Raises InputError, with the line number, for anything that is not a trace."""
    digest = hashlib.sha256()
    try:
        check_file(path, most_bytes=inf)
        with path.open("rb") as file:
            seen = _Summary()
            for row in _in_order(_rows(_lines(file, digest, str(path)), str(path)), seen, str(path)):
                seen.add(row)
    except OSError as error:
        raise InputError(f"--trace {path}: {error.strerror}", hint="name a file that can be read") from error
    return seen.trace(str(path), digest.hexdigest())


def _lines(file: BinaryIO, digest: Any, path: str) -> Iterator[str]:
    for number, line in enumerate(iter(partial(file.readline, MOST_LINE_BYTES), b""), 1):
        digest.update(line)
        if len(line) == MOST_LINE_BYTES or b"\r" in line.rstrip(b"\r\n"):
            cause = "is too long, or ends without a line feed"
            raise InputError(f"--trace {path}: line {number} {cause}", hint="end each line with a line feed (LF)")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"--trace {path}: line {number} is not UTF-8 text", hint=_HINT) from error


def _rows(lines: Iterator[str], path: str) -> Iterator[_Row]:
    first = next(lines, "")
    if not first.strip():
        raise InputError(f"--trace {path} is empty, or begins with an empty line", hint=_HINT)
    if first.lstrip().startswith("{"):
        yield from _json_rows(first, lines, path)
    elif is_request_log(first):
        for at, logged in enumerate(read_request_log(_with(first, lines), f"--trace {path}")):
            text = Text(logged.names, LOGGED_BLOCK_TOK) if logged.names else None
            yield logged.arrival_s, at, logged.input_len, logged.output_len, text, logged.line
    else:
        yield from _csv_rows(first, lines, path)


def _json_rows(first: str, lines: Iterator[str], path: str) -> Iterator[_Row]:
    form: TraceFormat | None = None
    sessions = _Sessions()
    for number, line in enumerate(_with(first, lines), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--trace {path}: line {number} is not JSON", hint=_HINT) from error
        if not isinstance(fields, dict):
            raise InputError(f"--trace {path}: line {number} is not a JSON object", hint=_HINT)
        if TURNS in fields:
            yield from _turns(fields, number, path)
            continue
        form = form or _form_of(list(fields), path)
        yield _row(form, fields, number, path, sessions)


def _csv_rows(first: str, lines: Iterator[str], path: str) -> Iterator[_Row]:
    heading = [name.strip() for name in next(csv.reader([first]), [])]
    form = _form_of(heading, path)
    named = (form.arrival, form.input_len, form.output_len, *({SESSION} & set(heading)))
    wanted = {name: heading.index(name) for name in named}
    sessions = _Sessions()
    reader = csv.reader(lines)
    try:
        for cells in reader:
            if not cells:
                continue
            fields = {name: cells[at] for name, at in wanted.items() if at < len(cells)}
            yield _row(form, fields, reader.line_num + 1, path, sessions)
    except csv.Error as error:
        raise InputError(f"--trace {path}: line {reader.line_num + 1}: {error}", hint=_HINT) from error


def _with(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _form_of(names: list[str], path: str) -> TraceFormat:
    for form in FORMS:
        if form.is_of(set(names)):
            return form
    shown = ", ".join(names)[:120] or "nothing"
    hint = _HINT
    if "conversations" in names:
        hint = 'it holds text: give tokens, {"arrival_s": 0, "turns": [{"input_len": 30, "output_len": 200}, ...]}'
    raise InputError(f"--trace {path}: line 1 names {shown}, not the columns of a trace", hint=hint)


class _Sessions:
    """Names for the pieces of prompts that go on from each other."""

    def __init__(self) -> None:
        self._names = count()
        self._last: dict[str, tuple[list[int], list[int]]] = {}  # of each session: names and sizes, answer included
        self._latest_s: dict[str, float] = {}

    def check_order(self, session: str, arrival_s: float, where: str) -> None:
        """Raises InputError for a row that arrives before the one of its session that it would go on from."""
        if arrival_s < self._latest_s.get(session, 0.0):
            raise InputError(
                f"{where}: {SESSION} {session[:40]!r} goes back in time", hint="sort the rows of a session by arrival"
            )
        self._latest_s[session] = arrival_s

    def text(self, session: str, prompt_tok: int, answer_tok: int) -> Text:
        """A prompt that goes on from the last one of the session, or one that begins anew."""
        names, sizes = self._last.get(session, ([], []))
        new_tok = prompt_tok - sum(sizes)
        if new_tok < 0:  # shortened, or something else altogether
            names, sizes, new_tok = [], [], prompt_tok
        if new_tok:
            names, sizes = [*names, next(self._names)], [*sizes, new_tok]
        names, sizes = [*names, next(self._names)], [*sizes, answer_tok]
        self._last[session] = names, sizes
        return Text(names, sizes, answers=1)


def _turns(fields: dict[str, Any], number: int, path: str) -> Iterator[_Row]:
    """The turns of one conversation, each with all before it in its prompt."""
    where, turns = f"--trace {path}: line {number}", fields[TURNS]
    if not isinstance(turns, list) or not 1 <= len(turns) <= MOST_TURNS or not all(isinstance(t, dict) for t in turns):
        raise InputError(
            f"{where}: {TURNS} is no list of 1 to {MOST_TURNS:,} objects",
            hint='such as {"arrival_s": 0, "turns": [{"input_len": 30, "output_len": 200, "pause_s": 5}]}',
        )
    arrival_s = _arrival_s(FORMS[0], fields.get(FORMS[0].arrival), where)
    sessions, prompt_tok = _Sessions(), 0
    for place, turn in enumerate(turns, 1):
        here = f"{where}: turn {place}"
        pause_s = _number(turn.get("pause_s", 0.0), f"{here}: pause_s")
        if pause_s < 0:
            raise InputError(f"{here}: pause_s is negative", hint="seconds from the answer before to this turn")
        new_tok, answer_tok = (_tokens(turn.get(name), f"{here}: {name}") for name in ("input_len", "output_len"))
        arrival_s += pause_s
        prompt_tok += new_tok
        unique = (number << 16) + place  # pieces of different conversations have different names
        text = sessions.text("", prompt_tok, answer_tok)
        named = Text([(number << 24) + name for name in text.names], text.sizes_tok, text.answers)
        yield arrival_s, unique, prompt_tok, answer_tok, named, number
        arrival_s += answer_s(answer_tok)
        prompt_tok += answer_tok


def _row(form: TraceFormat, fields: dict[str, Any], number: int, path: str, sessions: _Sessions) -> _Row:
    where = f"--trace {path}: line {number}"
    arrival_s = _arrival_s(form, fields.get(form.arrival), where)
    prompt_tok, answer_tok = (
        _tokens(fields.get(name), f"{where}: {name}") for name in (form.input_len, form.output_len)
    )
    text: Text | None = None
    if (hashes := fields.get(HASHES)) is not None:
        text = _hashed(hashes, prompt_tok, form.block_tok, where)
    elif session := fields.get(SESSION):
        sessions.check_order(str(session), arrival_s, where)
        text = sessions.text(str(session), prompt_tok, answer_tok)
    return arrival_s, number, prompt_tok, answer_tok, text, number


def _hashed(hashes: Any, prompt_tok: int, block_tok: int, where: str) -> Text | None:
    if not isinstance(hashes, list) or not all(type(one) is int and abs(one) < 2**62 for one in hashes):
        raise InputError(f"{where}: {HASHES} is no list of whole numbers", hint="one for each block of the prompt")
    if len(hashes) not in (prompt_tok // block_tok, -(-prompt_tok // block_tok)):
        raise InputError(
            f"{where}: {len(hashes)} {HASHES} for a prompt of {prompt_tok:,} tokens",
            hint=f"one for each block of {block_tok} tokens",
        )
    return Text(hashes, block_tok) if hashes else None


def _tokens(value: Any, where: str) -> int:
    number = _number(value, where)
    if not 1 <= number <= MOST_TOK or number != int(number):
        raise InputError(f"{where} is {number:g}, not a number of tokens", hint="every request has one token or more")
    return int(number)


def _arrival_s(form: TraceFormat, value: Any, where: str) -> float:
    if form.unit_s is not None:
        seconds = _number(value, f"{where}: {form.arrival}") * form.unit_s
        if seconds < 0:
            raise InputError(f"{where}: {form.arrival} is negative", hint="count from the first request on")
        return seconds
    try:
        moment = datetime.fromisoformat(str(value).strip()[:26])  # to the microsecond
    except ValueError as error:
        raise InputError(f"{where}: {form.arrival} {str(value)[:40]!r} is no date and time", hint=_HINT) from error
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _number(value: Any, where: str) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"{where} is missing", hint=_HINT)
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not isfinite(number):
        raise InputError(f"{where} is {str(value)[:40]!r}, not a number", hint=_HINT)
    return number


def _in_order(rows: Iterator[_Row], seen: _Summary, path: str) -> Iterator[_Row]:
    """Rows by arrival, through a heap of ``REORDERED``."""
    waiting: list[_Row] = []
    newest_s, passed_s = float("-inf"), float("-inf")
    for row in rows:
        if row[0] < newest_s and not (row[4] and row[1] != row[5]):  # turns of conversations overlap by their nature
            seen.note_disorder(row[5])
        newest_s = max(newest_s, row[0])
        if row[0] < passed_s:
            raise InputError(
                f"--trace {path}: line {row[5]} arrives before rows that stand more than {REORDERED:,} lines above it",
                hint="sort the file by arrival",
            )
        heappush(waiting, row)
        if len(waiting) > REORDERED:
            passed_s = waiting[0][0]
            yield heappop(waiting)
    while waiting:
        yield heappop(waiting)


class _Summary:
    """Sums over the rows of a trace, and its busiest stretch."""

    def __init__(self) -> None:
        self.rows = self.input_tok = self.output_tok = self.longest_tok = 0
        self.first_s = self.last_s = 0.0
        self.window: deque[_Row] = deque()
        self.window_tok = 0
        self.earlier: deque[_Row] = deque(maxlen=STRETCH)  # rows before those of the window, where prompts are known
        self.busiest: list[_Row] = []
        self.before: list[_Row] = []
        self.busiest_tok_per_s = -1.0
        self.disordered, self.first_disordered = 0, 0
        self.pauses: list[tuple[float, int]] = []  # the longest few, with the line after

    def note_disorder(self, line: int) -> None:
        """A row that arrives before one above it."""
        self.disordered += 1
        self.first_disordered = self.first_disordered or line

    def add(self, row: _Row) -> None:
        """The next row in order of arrival."""
        arrival_s, _, input_tok, output_tok, text, line = row
        if not self.rows:
            self.first_s = self.last_s = arrival_s
        elif arrival_s - self.last_s >= PAUSE_S:
            self.pauses = sorted([*self.pauses, (arrival_s - self.last_s, line)], reverse=True)[:3]
        self.rows += 1
        self.last_s = arrival_s
        self.input_tok += input_tok
        self.output_tok += output_tok
        self.longest_tok = max(self.longest_tok, input_tok + output_tok)
        self.window.append(row)
        self.window_tok += input_tok + output_tok
        if len(self.window) > STRETCH:
            old = self.window.popleft()
            self.window_tok -= old[2] + old[3]
            if text:
                self.earlier.append(old)
        if len(self.window) == STRETCH:
            span_s = arrival_s - self.window[0][0]
            tok_per_s = self.window_tok / span_s if span_s > 0 else float("inf")
            # copying a stretch costs as much as reading one: skip those that are hardly busier
            if tok_per_s > 1.01 * self.busiest_tok_per_s:
                self.busiest, self.busiest_tok_per_s = list(self.window), tok_per_s
                self.before = list(self.earlier)

    def trace(self, path: str, sha256: str) -> Trace:
        """The trace, after the last row. Raises InputError for rows that make no load."""
        import numpy as np

        stretch = self.busiest or list(self.window)
        rows = _between_pauses(stretch)
        if len(rows) < 2 or rows[-1][0] <= rows[0][0]:
            count = {0: "no request", 1: "a single request"}.get(self.rows, f"{self.rows:,} requests at one moment")
            raise InputError(
                f"--trace {path}: {count}, which makes no rate", hint="give requests that arrive one after the other"
            )
        if self.last_s - self.first_s > LONGEST_S:
            raise InputError(
                f"--trace {path}: its requests arrive over {self.last_s - self.first_s:,.4g} s, more than ten years",
                hint="check the unit of the arrivals",
            )
        columns = np.array([(row[0] - rows[0][0], row[2], row[3]) for row in rows])
        busiest = Requests(
            columns[:, 1].astype(np.int64),
            columns[:, 2].astype(np.int64),
            columns[:, 0],
            _prefixes([*self.before, *(row for row in stretch if row < rows[0])], rows),
        )
        return Trace(
            path=path,
            sha256=sha256,
            rows=self.rows,
            duration_s=self.last_s - self.first_s,
            input_len=self.input_tok / self.rows,
            output_len=self.output_tok / self.rows,
            longest_len=self.longest_tok,
            busiest=busiest,
            notes=tuple(self._notes(len(rows))),
        )

    def _notes(self, chosen: int) -> Iterator[str]:
        if self.disordered:
            lines = "line" if self.disordered == 1 else "lines"
            yield f"trace: {self.disordered:,} {lines} out of order, the first is {self.first_disordered}; sorted"
        mean_s = (self.last_s - self.first_s) / self.rows
        for pause_s, line in self.pauses:
            if pause_s >= PAUSE * mean_s:
                yield f"trace: nothing arrives for {pause_s:,.0f} s before line {line}"
        if chosen < self.rows:
            yield f"trace: {self.rows:,} requests; planned for the busiest {chosen:,} in a row"


def _prefixes(before: list[_Row], rows: list[_Row]) -> Prefixes | None:
    """The prefixes that the prompts of ``rows`` share with each other and with those of earlier ones."""
    if not any(row[4] for row in rows):
        return None
    texts = [(row[4] or Text((), ()), row[2]) for row in (*before, *rows)]
    return Prefixes.of(
        [text.names for text, _ in texts],
        [text.sizes(prompt_tok) for text, prompt_tok in texts],
        [text.answers for text, _ in texts],
        [row[2] + row[3] for row in before],
    )


def _between_pauses(rows: list[_Row]) -> list[_Row]:
    """The busiest part between two long pauses, so that a quiet night does not lower the rate."""
    span_s = rows[-1][0] - rows[0][0] if rows else 0.0
    least_s = max(PAUSE_S, PAUSE * span_s / max(len(rows), 1))
    cuts = [at for at in range(1, len(rows)) if rows[at][0] - rows[at - 1][0] >= least_s]
    parts = [rows[first:last] for first, last in pairwise([0, *cuts, len(rows)]) if last - first >= LEAST_STRETCH]
    lasting = [part for part in parts if part[-1][0] > part[0][0]]
    return max(lasting, key=_tok_per_s, default=rows)


def _tok_per_s(rows: list[_Row]) -> float:
    return sum(row[2] + row[3] for row in rows) / (rows[-1][0] - rows[0][0])


# --- vLLM's own request log -------------------------------------------------------------------------------------------


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
    """A request of vLLM's log: its line, arrival, lengths and blocks."""

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
