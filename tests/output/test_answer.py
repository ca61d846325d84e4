"""An answer renders what was computed before: rows by columns, JSON by fields, no replay while it is printed."""

import csv
import importlib
import json
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import pytest

import planner.planning
from planner import (
    Answer,
    Load,
    check_command,
    check_fit,
    compare_gpus,
    list_fits,
    predict_serve,
    recommend_plans,
    size_fleet,
)
from planner.output.answer import fields_of
from planner.output.render import Column, records_text, rows_of, table_text
from planner.planning.deployment import Deployment

pytestmark = pytest.mark.usefixtures("small_searches")

LLAMA = "meta-llama/Llama-2-7b-hf"
SHORT: dict[str, Any] = {"input_len": 64, "output_len": 16}
TARGETS: dict[str, Any] = {**SHORT, "ttft": 2000, "tpot": 50, "max_num_batched_tokens": 8192}


@pytest.mark.parametrize(
    ("columns", "headings"),
    [("40", "first much later last"), ("21", "first much last"), ("16", "first last"), ("9", "last")],
)
def test_spare_columns_go_from_a_table_that_is_too_wide(
    columns: str, headings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    spare = {"first": 1, "much": 2, "later": 2, "last": 0}
    text = table_text([dict.fromkeys(spare, 1)], [Column(name, spare=number) for name, number in spare.items()])
    assert text.splitlines()[0].split() == headings.split()


@dataclass
class Inner:
    seconds_s: float
    name: str


@dataclass
class Outer:
    inner: Inner | None
    bytes: int
    by_key: dict[str, float]


RECORD = Outer(Inner(0.25, "one"), 3 * 2**30, {"p99": 7.0})
COLUMNS = (
    Column("name", "what", of="inner.name"),
    Column("gib", "GiB", ",.1f", of="bytes", unit=2**30),
    Column("p99", "p99 ms", ",.0f", of="by_key.p99"),
    Column("double", of=lambda record: 2 * record.bytes, aside=True),
)


def test_fields_follow_paths_and_leave_in_edge_units() -> None:
    fields = fields_of(RECORD, "inner.name", "delay_ms=inner.seconds_s", "by_key.p99", "inner")
    assert fields == {"name": "one", "delay_ms": 250.0, "p99": 7.0, "inner": {"seconds_s": 0.25, "name": "one"}}
    assert fields_of(Outer(None, 0, {}), "inner.name", "delay_ms=inner.seconds_s") == {"name": None, "delay_ms": None}


def test_one_list_of_columns_makes_every_form() -> None:
    records = [RECORD, Outer(None, 2**30, {})]
    assert rows_of(records, COLUMNS)[0] == {"name": "one", "gib": 3.0, "p99": 7.0, "double": 6 * 2**30}
    table = records_text(records, "table", COLUMNS).splitlines()
    assert table == ["what  GiB  p99 ms", "----  ---  ------", "one   3.0       7", "-     1.0       -"]
    markdown = records_text(records, "markdown", COLUMNS).splitlines()
    assert markdown[:2] == ["| what | GiB | p99 ms | double |", "| --- | ---: | ---: | ---: |"]
    assert list(csv.reader(StringIO(records_text(records, "csv", COLUMNS))))[2] == ["", "1.0", "", "2147483648"]
    assert json.loads(records_text(records, "json", COLUMNS))[0]["gib"] == 3.0


@pytest.mark.parametrize("package", ["planner.output", "planner.output.tables", "planner.output.workflows"])
def test_columns_of_the_tables_have_their_functions_and_units(package: str) -> None:
    """A name in ``columns.toml`` that neither ``planner.units`` nor the module has would be taken for a format."""
    names = [f"{package}.{module.name}" for module in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    tables = [value for value in values if isinstance(value, tuple) and value and isinstance(value[0], Column)]
    assert tables
    for column in chain(*tables):
        assert callable(column.form) or not column.form.isidentifier(), column
        assert isinstance(column.unit, int | float), column


CLASSES = [Load.of_class("a", 4, 64, 16), Load.of_class("b", 1, 512, 16)]
#: Each kind of answer, small.
ANSWERS: dict[str, Callable[[], Answer]] = {
    "fit": lambda: check_fit(LLAMA, "h100"),
    "fits": lambda: list_fits(LLAMA, ["h100", "l4"]),
    "predict": lambda: predict_serve(LLAMA, "h100", max_concurrency=4, num_prompts=16, **SHORT),
    "compare": lambda: compare_gpus(LLAMA, ["h100", "l40s"], max_concurrency=[4, 8], **SHORT),
    "check": lambda: check_command(f"vllm serve {LLAMA} --max-num-seqs 16", "h100", max_concurrency=4, **SHORT),
    "recommend": lambda: recommend_plans(LLAMA, "h100", max_concurrency=4, **SHORT),
    "targets": lambda: recommend_plans(LLAMA, "h100", gpus=4, request_rate=20, **TARGETS),
    "refused": lambda: recommend_plans(LLAMA, "l4", request_rate=1, **{**TARGETS, "ttft": 1}),
    "fleet": lambda: size_fleet(LLAMA, "h100", request_rate=20, disaggregated=True, **TARGETS),
    "classes": lambda: size_fleet(
        LLAMA, "h100", classes=CLASSES, ttft=2000, max_num_batched_tokens=8192, max_num_seqs=128
    ),
}


@cache
def answered(kind: str) -> Answer:
    return ANSWERS[kind]()


def _replayed(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a replay while an answer is printed")


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("explain", [False, True], ids=["", "explained"])
def test_rendering_replays_nothing(kind: str, explain: bool, offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first JSON of recommend makes the plans that could be picked instead, and no other does."""
    answer: Any = replace(answered(kind), explain=explain)  # type: ignore[type-var]
    whole = answer.to_json() if kind in ("recommend", "targets") else ""
    monkeypatch.setattr(Deployment, "replay", _replayed)
    monkeypatch.setattr(planner.planning.Search, "plan", _replayed)
    assert whole in ("", answer.to_json())
    for form in ("table", "csv", "markdown", "json"):
        assert answer.to_text(form)
    assert answer.to_rows() or not answer.ok
    assert isinstance(answer.shown_notes, tuple)


def header(answer: Answer) -> list[str]:
    return answer.to_text("csv").splitlines()[0].split(",")


@pytest.mark.parametrize("kind", ["fit", "fits", "compare", "check", "recommend", "targets", "fleet"])
def test_csv_names_the_engine(kind: str, offline: None) -> None:
    """A DP + EP engine of 8 GPUs was a row with ``tensor_parallel_size`` 1, as that of one GPU."""
    axes = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel"}
    layout = {"layout"} if kind == "fleet" else axes | {"speculative_config"}
    engine = {"gpu", "engine_version", "weight_dtype", "kv_cache_dtype", *layout}
    assert engine <= set(header(answered(kind))) and {"num_gpus", "gpus"} & set(header(answered(kind)))
    assert all(row[key] not in (None, "") for row in answered(kind).rows() for key in engine - {"speculative_config"})


def test_csv_has_the_targets_with_their_upper_bounds(offline: None) -> None:
    answer: Any = answered("targets")
    (row,), (ttft, tpot) = answer.rows(), answer.best.targets
    assert [row[f"p95_ttft_{end}_ms"] for end in ("predicted", "upper", "limit")] == [
        ttft.predicted_ms, ttft.upper_ms, 2000,
    ]  # fmt: skip
    assert row["p95_tpot_upper_ms"] == tpot.upper_ms > row["p95_tpot_predicted_ms"]


NO_ROWS: dict[str, Callable[[], Answer]] = {
    "targets": lambda: answered("refused"),
    "fleet": lambda: size_fleet(LLAMA, "l4", request_rate=1, **{**TARGETS, "ttft": 1}),
    "compare": lambda: compare_gpus("meta-llama/Llama-3.1-405B", ["l4"], max_concurrency=[4], **SHORT),
}


@pytest.mark.parametrize("kind", NO_ROWS)
def test_an_answer_without_rows_has_the_same_header(kind: str, offline: None) -> None:
    refused = NO_ROWS[kind]()
    assert not refused.rows() and header(refused) == header(answered(kind))
    assert refused.to_dict().get("minimised", "usd") == "usd", "an L4 has a price"


def test_every_replay_of_planning_goes_through_the_deployment() -> None:
    """Else the test above would miss some."""
    planning = Path(planner.planning.__file__ or "").parent
    replays = re.compile(r"import .*\breplay\b|\bsimulator\.replay\b")
    callers = {path.name for path in planning.rglob("*.py") if replays.search(path.read_text())}
    assert callers == {"deployment.py"}
