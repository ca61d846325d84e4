"""The page's questions: from its address to ``recommend_plans``, and one replay while a slider moves.

What was found is remembered, so that a plan can be asked again at another load in a fraction of a second.
"""

from __future__ import annotations

import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import fields, replace
from hashlib import sha256
from io import BytesIO
from math import ceil
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, get_args
from urllib.parse import urlencode

from annotated_types import Interval

from planner import planning
from planner.commands.recommend import recommend_plans, script_files
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.output import Asked, Played, Probed
    from planner.workload import Load

#: Field of ``Asked`` -> type and bounds.
NUMBERS: Mapping[str, Any] = {
    "gpus": Annotated[int, Interval(ge=1, le=72)],
    "flight": Annotated[int, Interval(ge=1, le=4096)],
    "rate": Annotated[float, Interval(ge=0.1, le=1000)],
    "input_len": Annotated[int, Interval(ge=1, le=1_000_000)],
    "output_len": Annotated[int, Interval(ge=1, le=1_000_000)],
    "ttft": Annotated[float, Interval(ge=1, le=60_000)],
    "tpot": Annotated[float, Interval(ge=1, le=1000)],
    "e2el": Annotated[float, Interval(ge=1, le=600_000)],
    "confidence": Annotated[float, Interval(ge=defaults.LEAST_CONFIDENCE, le=defaults.MOST_CONFIDENCE)],
}
WORDS = {"goal": get_args(defaults.Goal), "by": ("flight", "rate"), "percentile": ("50", "90", "99", "mean")}
MOST_GPUS = 8  #: of one question
MODEL, GPU = "meta-llama/Llama-3.3-70B-Instruct", "h100-sxm"
REMEMBERED = 24  #: searches
LIVE_PROMPTS = 100  #: of a replay while a slider moves: enough for a mean, and about for a p90


def read_asked(query: Mapping[str, list[str]]) -> Asked:
    """Read the question of an address. Raises InputError, naming the parameter, for an impossible one."""
    from planner.output import Asked

    known = {field.name for field in fields(Asked)}
    given: dict[str, Any] = {"model": MODEL, "gpu": (GPU,)}
    for name, texts in query.items():
        if name not in known:
            continue
        text = texts[-1].strip()
        if name == "gpu":
            given["gpu"] = tuple(dict.fromkeys(texts))
        elif name in NUMBERS:
            given |= {name: planning.typed(name, text, NUMBERS[name], flag=name, strict=False)} if text else {}
        elif name in WORDS and text not in WORDS[name]:
            raise UnknownNameError(name, text[:80], WORDS[name], see="the page")
        else:
            given[name] = text
    profiles, _ = planning.find_gpus([name for name in given["gpu"] if not name.lower().endswith(".toml")])
    if len(profiles) > MOST_GPUS:
        raise InputError(f"{len(profiles)} GPUs are chosen", hint=f"the page compares up to {MOST_GPUS}")
    if not given["model"]:
        raise InputError("no model is named", hint="name one of the catalog, or any id of the hub")
    return Asked(**{**given, "gpu": tuple(profile.id for profile in profiles)})


def address(asked: Asked) -> str:
    """The query that asks the same."""
    pairs = [("model", asked.model), *(("gpu", name) for name in asked.gpu)]
    rest = ((field.name, getattr(asked, field.name)) for field in fields(asked) if field.name not in ("model", "gpu"))
    return urlencode([*pairs, *((name, f"{value:g}" if isinstance(value, float) else value) for name, value in rest
                                if value is not None)])  # fmt: skip


class Memory:
    """The latest searches."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Played] = OrderedDict()
        self._alone = Lock()  # requests are answered by several threads

    def search(self, asked: Asked) -> Played:
        """The search, made or remembered. Raises what ``recommend_plans`` raises."""
        key = sha256(address(asked).encode()).hexdigest()[:16]
        played = self.remembered(key) or _searched(asked, key)
        with self._alone:
            self._found[key] = played
            self._found.move_to_end(key)
            while len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
        return played

    def ladder(self, asked: Asked) -> list[Played]:
        """Searches of the question at other confidences, the lowest first."""
        return [self.search(replace(asked, confidence=level)) for level in defaults.LADDER]

    def remembered(self, key: str) -> Played | None:
        """The search of that name, if it is still known."""
        return self._found.get(key)


def _searched(asked: Asked, key: str) -> Played:
    from planner.output import Played
    from planner.planning import Sweep, fits_for, sweep_loads

    began_s = monotonic()
    load: dict[str, Any] = {"request_rate": asked.rate} if asked.by == "rate" else {"max_concurrency": asked.flight}
    targets: dict[str, Any] = (
        {**asked.targets, "percentile": asked.percentile, "confidence": asked.confidence} if asked.targets else {}
    )
    promised = bool(targets) or asked.by == "rate"
    answer = recommend_plans(
        asked.model,
        asked.gpu,
        goal=None if promised else asked.goal,
        gpus=asked.gpus,
        input_len=asked.input_len,
        output_len=asked.output_len,
        **load,
        **targets,
    )
    plan = answer.best
    sweep = sweep_loads(plan, fits_for(None)) if plan else Sweep()
    played = Played(asked, key, answer, plan, sweep, None, 0.0)
    return replace(played, own=replayed(played), seconds=monotonic() - began_s)


def moved(played: Played, asked: Asked) -> Played | None:
    """Reuse a search if only load, targets or confidence changed; else None."""
    same = ("model", "gpu", "gpus", "by", "input_len", "output_len", "percentile")
    if any(getattr(played.asked, name) != getattr(asked, name) for name in same):
        return None
    return replace(played, asked=asked)


def replayed(played: Played) -> Probed | None:
    """One replay of the best plan's server at the load that is asked for; None without a plan."""
    from planner.output import Probed
    from planner.planning import LoadPoint, Prediction

    plan, asked = played.plan, played.asked
    if plan is None:
        return None
    ranking = next(one for one, made in zip(played.found.rankings, played.found.plans, strict=True) if made is plan)
    deployment = ranking.candidates[played.found.pick - 1].deployment
    sent, load = _sent(asked, plan.workload.sent, plan.service.replicas if plan.service else 1)
    answer = Prediction.of(deployment, sent, percentiles=(50, 90, 99))
    rates = {"output_throughput_per_gpu": answer.figures["output_throughput"] / plan.num_gpus}
    if sent.max_concurrency:
        rates["output_throughput_per_user"] = answer.figures["output_throughput"] / sent.max_concurrency
    statistic = {"mean": "mean", "50": "median"}.get(asked.percentile, f"p{asked.percentile}")
    chances = {}
    for name, limit_ms in asked.targets.items():
        key = f"{statistic}_{name}_ms"
        chances[name] = answer.uncertainty.probability(key, limit_ms / max(answer.figures[key], 1e-9))
    return Probed(LoadPoint(load, {**answer.result, **answer.with_intervals(rates)}, planned=True), chances)


def _sent(asked: Asked, sent: Load, servers: int) -> tuple[Load, float]:
    """The load of one server, and its place on the curve."""
    if asked.by == "rate":
        rate = asked.rate / servers
        return replace(sent, request_rate=rate, num_prompts=min(sent.num_prompts, LIVE_PROMPTS)), rate
    flying = ceil(asked.flight / servers)
    prompts = min(max(3 * flying, 24), max(LIVE_PROMPTS, flying))
    return replace(sent, max_concurrency=flying, num_prompts=prompts), float(flying)


def zipped(played: Played) -> bytes:
    """The scripts of the search's plans as a zip file: the same bytes for the same plans."""
    files = script_files(played.found)
    if not files:
        raise InputError("no plan, and so no script", hint="loosen a target, or choose another GPU")
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"plan/{name}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, content)
    return written.getvalue()
