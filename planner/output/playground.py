"""The page of ``planner ui``: what is asked, and the answer beside it.

The answer has two parts. ``whole_answer`` is of a search: the best plan, and what was considered. ``live_answer`` is of
the plan that stands there, at another load or under other targets: one replay, while a slider moves.

The template substitutes and escapes; every decision is made here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import __version__
from planner.evidence import PlanFolder, PlanFolders
from planner.output.charts import style_sheet
from planner.output.render import Column
from planner.output.report import (
    FIGURES,
    REJECTED,
    command_text,
    environment,
    figures_of,
    interval_of,
    latency_chart,
    memory_chart,
    number,
    pareto_chart,
    picture,
    size_of,
    table_of,
)
from planner.output.tables.recommendation import Recommendation
from planner.output.tables.shared import batch_in_words, layout_in_words
from planner.planning import LoadPoint, Plan, PlanFile, Sweep, defaults

PROMISE = ("ttft", "tpot", "e2el")  #: the targets that the page asks for, in ms
NOWHERE = Path()  #: plans of the page lie in no folder
#: The best plan of a search at one confidence level.
LEVELS = (
    Column("confidence", form=".0%", of="asked.confidence"),
    Column("GPU", of=lambda one: one.plan.gpu if one.plan else "no plan meets the targets with this confidence"),
    Column("setting", of=lambda one: one.plan and _setting(one.plan)),
    Column("servers", form=",", of="plan.service.replicas"),
    Column("GPUs", form=",", of="plan.service.total_gpus"),
    Column("USD/h", form=",.2f", of="plan.service.usd_per_hour"),
)
#: Of a plan and its main figures.
PLANS = (
    Column("GPU", of="0.gpu"),
    Column("size", of=lambda one: size_of(one[0])),
    Column("weights", of="0.weight_dtype"),
    *(Column(f"{heading}, {unit}", of=f"1.{at}.value") for at, (_, heading, unit) in enumerate(FIGURES)),
)


@dataclass(frozen=True)
class Asked:
    """The question of the page; each field is a parameter of its address."""

    model: str
    gpu: tuple[str, ...]
    gpus: int = 8  #: of a node
    goal: defaults.Goal = defaults.GOAL
    by: str = "flight"  #: or ``rate``: how the load is given
    flight: int = 32  #: requests in flight
    rate: float = 2.0  #: requests per second
    input_len: int = 1024
    output_len: int = 1024
    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None
    percentile: str = "99"
    confidence: float = defaults.CONFIDENCE  #: with which the targets are met

    @property
    def targets(self) -> dict[str, float]:
        return {name: value for name in PROMISE if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Probed:
    """One replay of a plan's server."""

    point: LoadPoint
    chances: Mapping[str, float]  #: of each target that is set: the probability that it is met


@dataclass(frozen=True)
class Played:
    """The best plan of a search and the replays around it."""

    asked: Asked
    command: str  #: on the command line
    goal: defaults.Goal
    plan: Plan | None
    sweep: Sweep
    own: Probed | None = None  #: at the load of the search


def front_page(asked: Asked, answer: str, *, models: Sequence[str], gpus: Sequence[tuple[str, str]]) -> str:
    """The whole page; ``gpus`` are ids with their full names."""
    context = {"asked": asked, "answer": answer, "models": models, "gpus": gpus, "planner_version": __version__}
    return _render("page.html.j2", context)


def style() -> str:
    """The style sheet: the report's, with the page's own rules."""
    return style_sheet() + environment("report").get_template("report.css").render() + _render("ui.css", {})


def script() -> str:
    return _render("ui.js", {})


def refused(cause: str, hint: str) -> str:
    return _render("refused.html.j2", {"cause": cause, "hint": hint})


def _render(name: str, context: Mapping[str, Any]) -> str:
    return environment("ui").get_template(name).render(context)


def ladder(searches: Sequence[Played]) -> str:
    """The plan by confidence level, from the least to the most."""
    return _render("ladder.html.j2", {"levels": table_of(LEVELS, searches)})


def _setting(plan: Plan) -> str:
    return f"{layout_in_words(plan)}, {plan.weight_dtype}, {batch_in_words(plan)}"


def whole_answer(played: Played, search: Recommendation, query: str, *, key: str, seconds: float) -> str:
    """The answer of a search; ``query`` is the address that asks it, ``key`` names it while it is remembered."""
    answer, plan = search.to_dict(), played.plan
    plans = [(one, figures_of(one.predicted)) for one in search.plans if one]
    folders = PlanFolders(NOWHERE, (_entry(played, plan),) if plan else (), answer)
    context = {
        "key": key,
        "seconds": f"{seconds:.1f}",
        "live": live_answer(played, None) if plan else "",
        "plan": plan,
        "closest": [f"nearest: {_closest(one)}" for one in answer.get("closest", ())],
        "pareto": picture(pareto_chart(folders, [played.sweep])) if plan else None,
        "memory": picture(memory_chart([plan])) if plan else None,
        "levels": f"/ladder?{query}" if plan and played.asked.targets else "",
        "rejected": table_of(REJECTED, answer["rejected"]),
        "plans": table_of(PLANS, plans) if len(plans) > 1 else None,
        "command": command_text(plan) if plan else "",
        "typed": played.command,
        "notes": [*search.notes, *played.sweep.notes],
        "scripts": f"/scripts.zip?{query}",
    }
    return _render("answer.html.j2", context)


def live_answer(played: Played, moved: Probed | None) -> str:
    """The plan at the load of ``moved``, or at its own; the curve has a mark there."""
    plan = played.plan
    if plan is None:
        return ""
    point, probed = (moved.point if moved else None), moved or played.own
    figures: Mapping[str, Any] = point.figures if point else plan.predicted
    sweep = played.sweep
    if point:
        others = (replace(one, planned=False) for one in sweep.points if one.load != point.load)
        sweep = replace(sweep, points=tuple(sorted((*others, point), key=lambda one: one.load)))
    entry = _entry(played, plan)
    context = {
        "headline": _headline(plan, figures, played.asked),
        "figures": figures_of(figures),
        "targets": list(_targets(figures, played.asked, probed.chances if probed else {})),
        "why": plan.why[:3] if point is None else (),
        "latency": picture(latency_chart(entry, sweep, played.asked.targets)),
        "missing": sweep.missing,
        "moved": point is not None,
    }
    return _render("live.html.j2", context)


def _headline(plan: Plan, figures: Mapping[str, Any], asked: Asked) -> str:
    servers = plan.service.replicas if plan.service else 1
    many = f"{servers} servers of " if servers > 1 else ""
    load = f"{asked.rate:,.4g} requests/s" if asked.by == "rate" else f"{asked.flight:,} in flight"
    rate = f"{number(figures.get('output_throughput'))} output tokens/s a server"
    if figures.get("output_throughput_lo"):
        rate += f" ({interval_of(figures, 'output_throughput')})"
    return (
        f"Serve {plan.model} on {many}{plan.num_gpus} x {plan.gpu}, {layout_in_words(plan)}: at {load}, {rate}, "
        f"TTFT {number(figures.get('mean_ttft_ms'))} ms, TPOT {number(figures.get('mean_tpot_ms'))} ms"
    )


def _targets(figures: Mapping[str, Any], asked: Asked, chances: Mapping[str, float]) -> Iterator[tuple[str, str, str]]:
    """Each target with its prediction and a word: met, open or missed; never by colour alone."""
    statistic = "mean" if asked.percentile == "mean" else f"p{asked.percentile}"
    for name, chance in chances.items():
        what = f"{statistic} {name.upper()} at most {asked.targets[name]:,.4g} ms"
        expected = f"{number(figures.get(f'{statistic}_{name}_ms'))} ms predicted, met with {chance:.0%} probability"
        word = "met" if chance >= asked.confidence else "open" if chance >= 0.5 else "missed"
        yield what, f"{expected} (target {asked.confidence:.0%})", word


def _closest(point: Mapping[str, Any]) -> str:
    """The setting nearest to targets that no setting meets."""
    return ", ".join(f"{key} {value}" for key, value in point.items() if isinstance(value, int | float | str))


def _entry(played: Played, plan: Plan) -> PlanFolder:
    file = PlanFile(planner_version=__version__, command=played.command, goal=played.goal, plan=plan)
    return PlanFolder(NOWHERE, file, {})
