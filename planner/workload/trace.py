"""Recorded loads: a file of arrivals and lengths, read as a stream.

CSV with a heading, or JSON objects line by line. The columns say the form:

=========================  ================================================  ===================================
form                       columns                                           arrivals
=========================  ================================================  ===================================
planner                    arrival_s, input_len, output_len                  seconds from any origin
Azure LLM inference trace  TIMESTAMP, ContextTokens, GeneratedTokens         date and time of day
BurstGPT                   Timestamp, Request tokens, Response tokens        seconds
Mooncake                   timestamp, input_length, output_length            milliseconds
=========================  ================================================  ===================================

A million rows pass through a buffer of bounded size, which sorts rows that are out of order. What is kept is the
busiest stretch of ``STRETCH`` requests in a row (most tokens per second): a plan has to carry that. A row that lacks a
number, or has an impossible one, is refused with its line number.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from math import inf, isfinite
from pathlib import Path
from typing import Any, BinaryIO

from planner.errors import InputError
from planner.resources import check_file
from planner.workload.requests import MOST_TOK, Requests

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


FORMS = (
    TraceFormat("arrival_s", "input_len", "output_len", 1.0),
    TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens", None),
    TraceFormat("Timestamp", "Request tokens", "Response tokens", 1.0),
    TraceFormat("timestamp", "input_length", "output_length", 1e-3),
)


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
        return round(min(max(1 / variation**2, 0.01), 100.0), 3) if variation > 0 else 100.0


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: One request while it passes through: arrival in s, line number, tokens of the prompt, of the answer.
_Row = tuple[float, int, int, int]


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
    """Rows as they stand in the file."""
    first = next(lines, "")
    if not first.strip():
        raise InputError(f"--trace {path} is empty, or begins with an empty line", hint=_HINT)
    if first.lstrip().startswith("{"):
        yield from _json_rows(first, lines, path)
    else:
        yield from _csv_rows(first, lines, path)


def _json_rows(first: str, lines: Iterator[str], path: str) -> Iterator[_Row]:
    form: TraceFormat | None = None
    for number, line in enumerate(_with(first, lines), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"--trace {path}: line {number} is not JSON", hint=_HINT) from error
        if not isinstance(fields, dict):
            raise InputError(f"--trace {path}: line {number} is not a JSON object", hint=_HINT)
        form = form or _form_of(list(fields), path)
        yield _row(form, fields, number, path)


def _csv_rows(first: str, lines: Iterator[str], path: str) -> Iterator[_Row]:
    heading = [name.strip() for name in next(csv.reader([first]), [])]
    form = _form_of(heading, path)
    wanted = {name: heading.index(name) for name in (form.arrival, form.input_len, form.output_len)}
    reader = csv.reader(lines)
    try:
        for cells in reader:
            if not cells:
                continue
            fields = {name: cells[at] for name, at in wanted.items() if at < len(cells)}
            yield _row(form, fields, reader.line_num + 1, path)
    except csv.Error as error:
        raise InputError(f"--trace {path}: line {reader.line_num + 1}: {error}", hint=_HINT) from error


def _with(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _form_of(names: list[str], path: str) -> TraceFormat:
    for form in FORMS:
        if {form.arrival, form.input_len, form.output_len} <= set(names):
            return form
    shown = ", ".join(names)[:120] or "nothing"
    raise InputError(f"--trace {path}: line 1 names {shown}, not the columns of a trace", hint=_HINT)


def _row(form: TraceFormat, fields: dict[str, Any], number: int, path: str) -> _Row:
    where = f"--trace {path}: line {number}"
    arrival_s = _arrival_s(form, fields.get(form.arrival), where)
    lengths = []
    for name in (form.input_len, form.output_len):
        value = _number(fields.get(name), f"{where}: {name}")
        if not 1 <= value <= MOST_TOK or value != int(value):
            raise InputError(
                f"{where}: {name} is {value:g}, not a number of tokens", hint="every request has one token or more"
            )
        lengths.append(int(value))
    return arrival_s, number, lengths[0], lengths[1]


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
        if row[0] < newest_s:
            seen.note_disorder(row[1])
        newest_s = max(newest_s, row[0])
        if row[0] < passed_s:
            raise InputError(
                f"--trace {path}: line {row[1]} arrives before rows that stand more than {REORDERED:,} lines above it",
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
        self.busiest: list[_Row] = []
        self.busiest_tok_per_s = -1.0
        self.disordered, self.first_disordered = 0, 0
        self.pauses: list[tuple[float, int]] = []  # the longest few, with the line after

    def note_disorder(self, line: int) -> None:
        """A row that arrives before one above it."""
        self.disordered += 1
        self.first_disordered = self.first_disordered or line

    def add(self, row: _Row) -> None:
        """The next row in order of arrival."""
        arrival_s, line, input_tok, output_tok = row
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
            _, _, old_input_tok, old_output_tok = self.window.popleft()
            self.window_tok -= old_input_tok + old_output_tok
        if len(self.window) == STRETCH:
            span_s = arrival_s - self.window[0][0]
            tok_per_s = self.window_tok / span_s if span_s > 0 else float("inf")
            # copying a stretch costs as much as reading one: skip those that are hardly busier
            if tok_per_s > 1.01 * self.busiest_tok_per_s:
                self.busiest, self.busiest_tok_per_s = list(self.window), tok_per_s

    def trace(self, path: str, sha256: str) -> Trace:
        """The trace, after the last row. Raises InputError for rows that make no load."""
        import numpy as np

        rows = _between_pauses(self.busiest or list(self.window))
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
        columns = np.array([(arrival_s - rows[0][0], *lengths) for arrival_s, _, *lengths in rows])
        busiest = Requests(columns[:, 1].astype(np.int64), columns[:, 2].astype(np.int64), columns[:, 0])
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

    def _notes(self, kept: int) -> Iterator[str]:
        if self.disordered:
            lines = "line" if self.disordered == 1 else "lines"
            yield f"trace: {self.disordered:,} {lines} out of order, the first is {self.first_disordered}; sorted"
        mean_s = (self.last_s - self.first_s) / self.rows
        for pause_s, line in self.pauses:
            if pause_s >= PAUSE * mean_s:
                yield f"trace: nothing arrives for {pause_s:,.0f} s before line {line}"
        if kept < self.rows:
            yield f"trace: {self.rows:,} requests; planned for the busiest {kept:,} in a row"


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
