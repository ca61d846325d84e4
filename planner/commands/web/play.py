"""The page's questions: from its address to ``recommend_plans``, and one replay while a slider moves."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from math import ceil, isclose
from time import monotonic
from typing import Any, Literal, NamedTuple, get_args, get_origin
from urllib.parse import urlencode

from planner import output, planning
from planner.commands.recommend import recommend_plans, script_files
from planner.errors import InputError, PlannerError, UnknownNameError
from planner.planning import defaults
from planner.resources import names_only
from planner.workload import NAMED, named_sessions, parse_slos

MOST_GPUS = 8  #: of one question
MODEL, GPU = "meta-llama/Llama-3.3-70B-Instruct", "h100-sxm"
LIVE_PROMPTS = 1000  #: at most, of a replay while a slider moves


class Search(NamedTuple):
    html: str
    played: bytes


def read_asked(query: Mapping[str, list[str]]) -> output.Asked:
    """Read the question of an address. Raises InputError, naming the parameter, for an impossible one."""
    known: dict[str, Any] = {field.name: field.type for field in fields(output.Asked)}
    given: dict[str, Any] = {"model": MODEL, "gpu": (GPU,)}
    for name, texts in query.items():
        if name not in known:
            raise UnknownNameError("parameter", name[:80], known, see="the fields of the page")
        text, words = texts[-1].strip(), get_args(known[name]) if get_origin(known[name]) is Literal else ()
        if name == "gpu":
            given["gpu"] = tuple(dict.fromkeys(texts))
        elif words and text not in words:
            raise UnknownNameError(name, text[:80], words, see="the page")
        elif words or known[name] is str:
            given[name] = text
        elif text or name == "flight":
            given[name] = planning.typed(name, text or None, known[name], flag=name, strict=False)
    with names_only():
        profiles, _ = planning.find_gpus(given["gpu"])
    if len(profiles) > MOST_GPUS:
        raise InputError(f"{len(profiles)} GPUs are chosen", hint=f"the page compares up to {MOST_GPUS}")
    if not given["model"]:
        raise InputError("no model is named", hint="name one of the catalog, or any id of the hub")
    return output.Asked(**{**given, "gpu": tuple(profile.id for profile in profiles)})


def readable(query: Mapping[str, list[str]]) -> output.Asked:
    """Read the parameters of an address that are possible ones, each alone."""
    known: dict[str, list[str]] = {}
    for name, texts in query.items():
        with suppress(PlannerError):
            _ = read_asked({name: texts})
            known[name] = texts
    return read_asked(known)


def address(asked: output.Asked) -> str:
    known = {field.name: getattr(asked, field.name) for field in fields(asked)} | {"flight": asked.flight or ""}
    texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in known.items()}
    return urlencode({name: text for name, text in texts.items() if text is not None}, doseq=True)


def key_of(asked: output.Asked) -> str:
    """The name of a question while its search is remembered."""
    return sha256(address(asked).encode()).hexdigest()[:16]


def search(asked: output.Asked) -> Search:
    """Search plans. Raises what ``recommend_plans`` raises."""
    began_s = monotonic()
    answer = _recommended(asked)
    plan = answer.best
    sweep = planning.sweep_loads(plan, planning.local_for(None)) if plan else planning.Sweep()
    served = next((one.candidates[0].load for one in answer.rankings if plan and one.profile.id == plan.gpu), None)
    chances = _chances(served.prediction, asked) if served else {}
    played = output.Played(asked, answer.command, answer.objective.goal, plan, sweep, chances)
    shown = output.whole_answer(played, answer, address(asked), key=key_of(asked), seconds=monotonic() - began_s)
    return Search(shown, pickle.dumps(played))


@lru_cache(maxsize=2)  # the scripts of a search often follow it
def _recommended(asked: output.Asked) -> output.Recommendation:
    load: dict[str, Any] = {"request_rate": asked.rate} if asked.by == "rate" else {"max_concurrency": asked.flight}
    if asked.targets:
        load |= {**asked.targets, "percentile": asked.percentile, "confidence": asked.confidence}
    elif asked.by != "rate":
        load["goal"] = asked.goal
    lengths, named = {"input_len": asked.input_len, "output_len": asked.output_len}, NAMED.get(asked.workload)
    if asked.workload and (not named or all(getattr(named, name) == lengths[name] for name in lengths)):
        load["workload"] = asked.workload
    else:
        load |= lengths | ({"random_range_ratio": named.range_ratio} if named else {})
    return recommend_plans(asked.model, asked.gpu, gpus=asked.gpus, **load)


def rungs(searches: Iterable[bytes]) -> str:
    return output.ladder([pickle.loads(one) for one in searches])  # noqa: S301 - written by ``search``


def move(before: bytes, asked: output.Asked) -> str | None:
    """The plan of a search at another load, under other targets or at another confidence; None for other changes.

    Its server is replayed with as many requests as the search judges targets by."""
    played, engine = _remembered(before)
    same, plan = ("model", "gpu", "gpus", "by", "workload", "input_len", "output_len", "percentile"), played.plan
    if not plan or not engine or any(getattr(played.asked, name) != getattr(asked, name) for name in same):
        return None
    sent, slos = plan.workload.sent, parse_slos(asked.targets, asked.percentile)
    servers = plan.service.replicas if plan.service else 1
    if asked.by == "rate":
        load = planning.at_load(engine, sent, slos, "rate", asked.rate / servers)
    else:
        places = ceil(asked.flight / servers) if asked.flight else sent.value
        load = planning.at_load(engine, sent, slos, "concurrency", places)
    load = replace(load, num_prompts=min(load.num_prompts, max(LIVE_PROMPTS, 2 * (load.max_concurrency or 0))))
    answer = planning.Prediction.of(engine, load, percentiles=defaults.PERCENTILES)
    known = [replace(point, planned=True) for point in played.sweep.points if isclose(point.load, load.value)]
    moved = known[0] if known else planning.LoadPoint.of(answer, answer.readings(slos, asked.confidence))
    return output.live_answer(replace(played, asked=asked, moved=moved, chances=_chances(answer, asked)))


@lru_cache(maxsize=4)
def _remembered(before: bytes) -> tuple[output.Played, planning.Deployment | None]:
    played = pickle.loads(before)  # noqa: S301 - written by ``search``
    movable = played.plan and played.asked.workload not in named_sessions()  # turns are dealt anew at each rate
    return played, planning.redeploy(played.plan, planning.local_for(None)) if movable else None


def _chances(answer: planning.Prediction, asked: output.Asked) -> dict[str, tuple[float, float]]:
    """The predicted ms of each target, and the probability that it is met."""
    chance, slos = answer.uncertainty.probability, parse_slos(asked.targets, asked.percentile)
    ms = {one.slo: one.predicted_ms for one in answer.readings(slos, asked.confidence)}
    return {slo.metric: (ms[slo], chance(slo.key, slo.limit_ms / max(ms[slo], 1e-9))) for slo in slos}


def zipped(asked: output.Asked) -> bytes:
    """The scripts of the search's plans as a zip file: the same bytes for the same plans."""
    files = script_files(_recommended(asked))
    if not files:
        raise InputError("no plan, and so no script", hint="loosen a target, or choose another GPU")
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(f"plan/{name}", (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, content)
    return written.getvalue()
