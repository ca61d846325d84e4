"""Recorded loads: a file of arrivals and lengths, read as a stream.

CSV with a heading, or JSON objects line by line; ``FORMS`` has the columns. ``hash_ids`` name the blocks of a prompt,
each with all before it. Rows of one ``session`` go on from each other: a prompt begins with the prompt and the answer
before it, where it is long enough for both. A plan is made for the busiest stretch of ``STRETCH`` requests in a row."""

import csv
import hashlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count, pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from planner.errors import InputError, os_errors
from planner.resources import check_file, package_dir, tables_of
from planner.workload.requests import Prefixes, Requests

MOST_TOK = tables_of(package_dir("workload") / "load.toml")["input_len"][2]  #: of a prompt, and of an answer
STRETCH = 20_000  #: requests in a row that are kept
BURSTIEST, EVENEST = 0.01, 100.0  #: burstiness of a trace; values beyond say no more
REORDERED = 65_536  #: rows of the sorting buffer; a row that is out of order by more is refused
#: A gap is a pause, and gets a note, when it is this many times the mean gap and at least this long.
PAUSE, PAUSE_S = 100, 60.0
LEAST_STRETCH = 200  #: requests between two pauses that are enough for a 99th percentile
MOST_LINE_BYTES = 2**20
LONGEST_S = 10 * 365 * 86_400.0  #: from the first request to the last; more is taken for a mistake
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HINT = "columns: arrival_s,input_len,output_len, as CSV with a heading or as JSON objects line by line"


@dataclass(frozen=True, slots=True)
class TraceFormat:
    arrival: str
    input_len: str
    output_len: str
    unit_s: float | None = None
    block_tok: int = 512  #: tokens of a block that ``hash_ids`` names
    only_with: str = ""  #: another column, which decides between two forms


FORMS = [TraceFormat(**columns) for columns in tables_of(package_dir("workload") / "trace.toml")["columns"]]
HASHES, SESSION = "hash_ids", "session"


@dataclass(frozen=True)
class Trace:
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
        return self.rows / self.duration_s

    @property
    def busiest_rate(self) -> float:
        return len(self.busiest.arrival_s) / float(self.busiest.arrival_s[-1])

    @property
    def burstiness(self) -> float:
        """Shape of the gamma distribution whose gaps vary as those of the busiest stretch: 1 / (sd / mean)^2."""
        gaps = np.diff(self.busiest.arrival_s)
        variation = float(gaps.std() / gaps.mean()) if len(gaps) and gaps.mean() > 0 else 1.0
        return round(min(max(1 / variation**2, BURSTIEST), EVENEST), 3) if variation > 0 else EVENEST


@dataclass(frozen=True, slots=True)
class Text:
    """The pieces of a prompt: their names and tokens; for blocks of one size only that size."""

    names: Sequence[int]
    sizes_tok: Sequence[int] | int
    answers: int = 0  #: how many of the last pieces are the answer

    def sizes(self, prompt_tok: int) -> Sequence[int]:
        """Tokens of every piece; blocks of one size fill the prompt but for the last one."""
        if not isinstance(self.sizes_tok, int):
            return self.sizes_tok
        whole = min(prompt_tok // self.sizes_tok, len(self.names))
        rest = [prompt_tok - whole * self.sizes_tok] * (len(self.names) - whole)
        return [self.sizes_tok] * whole + rest


#: Arrival in s, line, tokens of the prompt and of the answer, pieces of the prompt.
_Row = tuple[float, int, int, int, Text | None]


def read_trace(path: Path) -> Trace:
    """Read a file in one pass. Raises InputError, with the line number, for anything that is not a trace."""
    digest = hashlib.sha256()
    with os_errors(f"--trace {path}", hint="name a file that can be read"):
        check_file(path, most_bytes=inf)
        with path.open("rb") as file:
            summary = _Summary()
            for row in _in_order(_rows(_lines(file, digest, str(path)), str(path)), summary, str(path)):
                summary.add(row)
    return summary.trace(str(path), digest.hexdigest())


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
    objects = first.lstrip().startswith("{")
    form: TraceFormat | None = None
    sessions = _Sessions()
    for number, fields in _json_fields(chain([first], lines), path) if objects else _csv_fields(first, lines, path):
        form = form or _form_of(list(fields), path)
        yield _row(form, fields, number, f"--trace {path}: line {number}", sessions)


def _json_fields(lines: Iterator[str], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--trace {path}: line {number} is not JSON", hint=_HINT) from error
        if not isinstance(fields, dict):
            raise InputError(f"--trace {path}: line {number} is not a JSON object", hint=_HINT)
        yield number, fields


def _csv_fields(first: str, lines: Iterator[str], path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    heading = [name.strip() for name in next(csv.reader([first]), [])]
    form = _form_of(heading, path)
    # arrival, lengths and session alone: a million rows pass here
    named = {form.arrival, form.input_len, form.output_len, form.only_with, SESSION}
    wanted = {name: heading.index(name) for name in heading if name in named}
    reader = csv.reader(lines)
    try:
        for cells in reader:
            if cells:
                here = len(cells)
                yield reader.line_num + 1, {name: cells[at] if at < here else None for name, at in wanted.items()}
    except csv.Error as error:
        raise InputError(f"--trace {path}: line {reader.line_num + 1}: {error}", hint=_HINT) from error


def _form_of(names: list[str], path: str) -> TraceFormat:
    for form in FORMS:
        if {form.arrival, form.input_len, form.output_len, form.only_with or form.arrival} <= set(names):
            return form
    shown = ", ".join(names)[:120] or "nothing"
    raise InputError(f"--trace {path}: line 1 names {shown}, not the columns of a trace", hint=_HINT)


class _Sessions:
    def __init__(self) -> None:
        self._names = count()
        #: of each session: arrival of its last row, names and sizes of its pieces, answer included
        self._last: dict[str, tuple[float, list[int], list[int]]] = {}

    def text(self, session: str, arrival_s: float, prompt_tok: int, answer_tok: int, where: str) -> Text:
        latest_s, names, sizes = self._last.get(session, (0.0, [], []))
        if arrival_s < latest_s:
            cause = f"{where}: {SESSION} {session[:40]!r} goes back in time"
            raise InputError(cause, hint="sort the rows of a session by arrival")
        new_tok = prompt_tok - sum(sizes)
        if new_tok < 0:  # shortened, or something else altogether
            names, sizes, new_tok = [], [], prompt_tok
        if new_tok:
            names, sizes = [*names, next(self._names)], [*sizes, new_tok]
        names, sizes = [*names, next(self._names)], [*sizes, answer_tok]
        self._last[session] = arrival_s, names, sizes
        return Text(names, sizes, answers=1)


def _row(form: TraceFormat, fields: dict[str, Any], number: int, where: str, sessions: _Sessions) -> _Row:
    arrival_s = _arrival_s(form, fields.get(form.arrival), where)
    lengths = []
    for name in (form.input_len, form.output_len):
        tokens = _number(fields.get(name), f"{where}: {name}")
        if not 1 <= tokens <= MOST_TOK or tokens != int(tokens):
            cause = f"{where}: {name} is {tokens:g}, not a number of tokens"
            raise InputError(cause, hint="every request has one token or more")
        lengths.append(int(tokens))
    prompt_tok, answer_tok = lengths
    text: Text | None = None
    if (hashes := fields.get(HASHES)) is not None:
        text = _hashed(hashes, prompt_tok, form.block_tok, where)
    elif session := fields.get(SESSION):
        text = sessions.text(str(session), arrival_s, prompt_tok, answer_tok, where)
    return arrival_s, number, prompt_tok, answer_tok, text


def _hashed(hashes: Any, prompt_tok: int, block_tok: int, where: str) -> Text | None:
    if not isinstance(hashes, list) or not all(type(one) is int and abs(one) < 2**62 for one in hashes):
        raise InputError(f"{where}: {HASHES} is no list of whole numbers", hint="one for each block of the prompt")
    if len(hashes) not in (prompt_tok // block_tok, -(-prompt_tok // block_tok)):
        cause = f"{where}: {len(hashes)} {HASHES} for a prompt of {prompt_tok:,} tokens"
        raise InputError(cause, hint=f"one for each block of {block_tok} tokens")
    return Text(hashes, block_tok) if hashes else None


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


def _in_order(rows: Iterator[_Row], summary: "_Summary", path: str) -> Iterator[_Row]:
    waiting: list[_Row] = []
    newest_s, passed_s = float("-inf"), float("-inf")
    for row in rows:
        if row[0] < newest_s:
            summary.disordered.append(row[1])
        newest_s = max(newest_s, row[0])
        if row[0] < passed_s:
            cause = f"line {row[1]} arrives before rows that stand more than {REORDERED:,} lines above it"
            raise InputError(f"--trace {path}: {cause}", hint="sort the file by arrival")
        heappush(waiting, row)
        if len(waiting) > REORDERED:
            passed_s = waiting[0][0]
            yield heappop(waiting)
    while waiting:
        yield heappop(waiting)


class _Summary:
    def __init__(self) -> None:
        self.rows = self.input_tok = self.output_tok = self.longest_tok = 0
        self.first_s = self.last_s = 0.0
        self.window: deque[_Row] = deque()
        self.window_tok = 0
        self.earlier: deque[_Row] = deque(maxlen=STRETCH)  # rows before those of the window, where prompts are known
        self.busiest: list[_Row] = []
        self.before: list[_Row] = []
        self.busiest_tok_per_s = -1.0
        self.disordered: list[int] = []  # lines that arrive before one above them
        self.pauses: list[tuple[float, int]] = []  # the longest few, with the line after

    def add(self, row: _Row) -> None:
        arrival_s, line, input_tok, output_tok, _ = row
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
            if old[4]:
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
        stretch = self.busiest or list(self.window)
        rows, span_s = _between_pauses(stretch), self.last_s - self.first_s
        if len(rows) < 2 or rows[-1][0] <= rows[0][0]:
            count = {0: "no request", 1: "a single request"}.get(self.rows, f"{self.rows:,} requests at one moment")
            cause = f"--trace {path}: {count}, which makes no rate"
            raise InputError(cause, hint="give requests that arrive one after the other")
        if span_s > LONGEST_S:
            cause = f"--trace {path}: its requests arrive over {span_s:,.4g} s, more than ten years"
            raise InputError(cause, hint="check the unit of the arrivals")
        columns = np.array([(row[0] - rows[0][0], row[2], row[3]) for row in rows])
        prefixes = _prefixes([*self.before, *(row for row in stretch if row < rows[0])], rows)
        lengths = columns[:, 1].astype(np.int64), columns[:, 2].astype(np.int64)
        return Trace(
            path=path, sha256=sha256, rows=self.rows, duration_s=span_s, input_len=self.input_tok / self.rows,
            output_len=self.output_tok / self.rows, longest_len=self.longest_tok,
            busiest=Requests(*lengths, columns[:, 0], prefixes), notes=tuple(self._notes(len(rows), span_s)),
        )  # fmt: skip

    def _notes(self, chosen: int, span_s: float) -> Iterator[str]:
        if self.disordered:
            yield f"trace: rows out of order: {len(self.disordered):,}, the first in line {self.disordered[0]}; sorted"
        for pause_s, line in self.pauses:
            if pause_s >= PAUSE * span_s / self.rows:
                yield f"trace: nothing arrives for {pause_s:,.0f} s before line {line}"
        if chosen < self.rows:
            yield f"trace: {self.rows:,} requests; planned for the busiest {chosen:,} in a row"


def _prefixes(before: list[_Row], rows: list[_Row]) -> Prefixes | None:
    if not any(row[4] for row in rows):
        return None
    texts = [(row[4] or Text((), ()), row[2]) for row in (*before, *rows)]
    return Prefixes.of(
        [text.names for text, _ in texts], [text.sizes(prompt_tok) for text, prompt_tok in texts],
        [text.answers for text, _ in texts], [row[2] + row[3] for row in before],
    )  # fmt: skip


def _between_pauses(rows: list[_Row]) -> list[_Row]:
    """The busiest part between two long pauses, so that a quiet night does not lower the rate."""
    span_s = rows[-1][0] - rows[0][0] if rows else 0.0
    least_s = max(PAUSE_S, PAUSE * span_s / max(len(rows), 1))
    cuts = [at for at in range(1, len(rows)) if rows[at][0] - rows[at - 1][0] >= least_s]
    parts = [rows[first:last] for first, last in pairwise([0, *cuts, len(rows)]) if last - first >= LEAST_STRETCH]
    lasting = [part for part in parts if part[-1][0] > part[0][0]]
    return max(lasting, key=lambda part: sum(r[2] + r[3] for r in part) / (part[-1][0] - part[0][0]), default=rows)
