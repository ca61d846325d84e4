"""How answers of ``recommend`` and ``fleet`` change with the question: relations that hold whatever the figures are."""

import csv
from functools import cache
from io import StringIO
from itertools import permutations
from typing import Any

import pytest
from command_line import answer_of

from planner.output import Answer

pytestmark = pytest.mark.usefixtures("best_plans", "short_replays")

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GPUS = ("h100", "mi300x")
ASKED: dict[str, Any] = {
    "input-len": 512, "output-len": 128, "request-rate": 40.0, "ttft": 1000.0, "tpot": 40.0, "e2el": 60000.0,
    "confidence": 0.8, "kv-cache-dtype": "fp8",
}  # fmt: skip


def asked(command: str, on: tuple[str, ...], *words: str, **changes: Any) -> Answer:
    options = {**ASKED, **{name.replace("_", "-"): value for name, value in changes.items()}}
    given = [word for name, value in options.items() if value is not None for word in (f"--{name}", f"{value}")]
    chosen = [word for gpu in on for word in ("--gpu", gpu)]
    return answer_of(command, MODEL, *chosen, *given, *words)


_cached = cache(asked)


def answered(command: str, on: tuple[str, ...], *words: str, **changes: Any) -> Answer:
    """``asked``, once for each question, whether a change says what holds anyway."""
    others = {name: value for name, value in changes.items() if ASKED.get(name.replace("_", "-")) != value}
    return _cached(command, on, *words, **others)


@cache
def plans(*gpus: str, **changes: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answered("recommend", gpus, **changes).to_dict()["plans"]
    return found


def usd(plan: dict[str, Any]) -> float:
    return float(plan["service"]["usd_per_hour"])


def test_the_order_of_the_gpus_changes_nothing() -> None:
    answers = [plans(*gpus) for gpus in permutations(GPUS)]
    for other in answers[1:]:
        assert [(plan["gpu"], plan["serve_argv"], usd(plan)) for plan in other] == [
            (plan["gpu"], plan["serve_argv"], usd(plan)) for plan in answers[0]
        ]


def test_more_gpus_to_choose_from_are_never_dearer() -> None:
    assert min(map(usd, plans(*GPUS))) == min(usd(plan) for gpu in GPUS for plan in plans(gpu))


@pytest.mark.parametrize(
    ("gpu", "name", "ascending"),
    [
        ("h100", "request_rate", (20.0, 40.0, 80.0)),
        ("mi300x", "confidence", (0.5, 0.8, 0.95)),
        ("h100", "ttft", (4000.0, 1000.0, 250.0)),
        ("mi300x", "tpot", (100.0, 40.0, 15.0)),
    ],
)
def test_what_asks_for_more_is_never_cheaper(gpu: str, name: str, ascending: tuple[float, ...]) -> None:
    costs = [usd(plans(gpu, **{name: value})[0]) for value in ascending]
    assert costs == sorted(costs)


def test_twice_the_prices_are_twice_the_cost_of_the_same_plans() -> None:
    once, twice = (
        answered("recommend", GPUS, "--price", f"h100={2.5 * k}", "--price", f"mi300x={2 * k}").to_dict()["plans"]
        for k in (1, 2)
    )
    assert [plan["serve_argv"] for plan in once] == [plan["serve_argv"] for plan in twice]
    for one, two in zip(once, twice, strict=True):
        assert usd(two) == pytest.approx(2 * usd(one))
        price = {"h100-sxm": 2.5, "mi300x": 2.0}[one["gpu"]]
        assert usd(one) == pytest.approx(one["service"]["packages"] * price), "the cost is that of its parts"


@pytest.mark.parametrize("command", ["recommend", "fleet"])
def test_the_same_question_has_the_same_answer(command: str) -> None:
    assert answered(command, GPUS[:1]).to_json() == asked(command, GPUS[:1]).to_json()


def test_every_format_has_the_same_plans() -> None:
    """CSV, Markdown and the table have the best plan of each GPU."""
    answer, best = answered("recommend", GPUS), dict[str, dict[str, Any]]()
    for plan in answer.to_dict()["plans"]:
        best.setdefault(plan["gpu"], plan)
    rows = list(csv.DictReader(StringIO(answer.to_text("csv"))))
    for name in ("gpu", "max_num_seqs"):
        assert [row[name] for row in rows] == [str(plan[name]) for plan in best.values()]
    for shape in ("table", "markdown"):
        assert all(name in answer.to_text(shape) for name in best)


@pytest.mark.parametrize(
    "pinned",
    [
        "--kv-cache-dtype=bfloat16", "--kv-cache-dtype=fp8", "--weight-dtype=bf16", "--weight-dtype=fp8", "--gpus=2",
        "--max-num-batched-tokens=2048",
    ],
)  # fmt: skip
def test_a_pinned_value_never_beats_the_free_search(pinned: str) -> None:
    free, given = (
        answered("recommend", GPUS[:1], *words, kv_cache_dtype=None, request_rate=400.0).to_dict()["plans"]
        for words in ((), (pinned,))
    )
    assert usd(free[0]) <= usd(given[0])


@pytest.mark.parametrize(("gpu", "rate"), [("h100", 40.0), ("h100", 400.0), ("mi300x", 300.0)])
def test_twice_the_load_takes_twice_the_servers_at_most(gpu: str, rate: float) -> None:
    """Each of twice as many servers has the share that it had."""
    once, twice = (plans(gpu, request_rate=times * rate)[0] for times in (1, 2))
    assert usd(once) <= usd(twice) <= 2 * usd(once)
