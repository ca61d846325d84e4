"""Files of fits: factors on the priors by covariate, and how far off predictions were on runs that no fit saw."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from planner.engine import EngineConfig
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import data_dir
from planner.timing.covariates import covariates_of
from planner.timing.efficiencies import PARAMETERS, SHARES, Efficiency, EfficiencyBasis, prior_values, targets

#: How near measured runs are to an engine, nearest first: the same setting under another load; the same GPU, model and
#: precision; the GPU and the model, but not together; the GPU; another GPU of its architecture; nothing of these.
Proximity = Literal["setting", "combination", "parts", "gpu", "architecture", "nothing"]
PROXIMITIES: tuple[Proximity, ...] = get_args(Proximity)
SHIPPED = "shipped"
#: Metrics whose intervals are those of another: part of the name, and the other.
STANDS_FOR = {
    "throughput": "output_throughput",
    "latency": "avg_latency_s",
    "duration": "output_throughput",
    "p99_itl": "p99_tpot_ms",
    "median_itl": "median_tpot_ms",
    "mean_itl": "mean_tpot_ms",
    "median_e2el": "mean_e2el_ms",
}


class FitRecord(BaseModel):
    """Part of a file of fits."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Effect(FitRecord):
    """A factor on an efficiency or a group of them (``launch``, ``expert_flop``), for engines with some covariates."""

    target: str
    when: dict[str, str]
    factor: float = Field(gt=0)
    sd: float = Field(ge=0)  #: of its logarithm
    rows: int = Field(default=0, ge=0)  #: measured runs with these covariates
    origin: str = Field(default=SHIPPED, exclude=True)  #: the file it was read from, where that is not ours


class Spread(FitRecord):
    """90 % of measurements lie between ``lo`` and ``hi`` times the prediction, by runs that the fit did not see."""

    metric: str
    proximity: Proximity = Field(validation_alias=AliasChoices("proximity", "familiarity"))  # the older name
    when: dict[str, str] = Field(default_factory=dict)  #: covariates of the runs; empty: of all
    lo: float = Field(gt=0)
    hi: float = Field(gt=0)
    rows: int = Field(ge=0)


class Combination(FitRecord):
    """What was measured together."""

    gpu: str
    architecture: str
    shape: str
    weights: str
    tp: str
    release: str


class Calibration(FitRecord):
    """The content of a file of fits."""

    name: str
    fitted_on: str  #: which runs, and when
    median_error: dict[str, float] = Field(default_factory=dict)  #: by metric, of runs that the fit did not see
    effects: tuple[Effect, ...] = ()
    spreads: tuple[Spread, ...] = ()
    combinations: tuple[Combination, ...] = ()

    def efficiency(self, covariates: Mapping[str, str], priors: Mapping[str, float]) -> Efficiency:
        """The efficiencies of an engine, from those that ``prior_values`` gives."""
        values = self.unbounded(covariates, priors)
        basis: EfficiencyBasis = "global"
        for effect in self._matching(covariates):
            if "gpu" in effect.when:
                basis = "gpu"
            elif "architecture" in effect.when and basis == "global":
                basis = "architecture"
        if covariates.get("partition") and basis == "gpu":
            basis = "architecture"  # a partition is not the GPU that was measured
        for name in SHARES:
            values[name] = min(values[name], 1.0)
        return Efficiency(**values, basis=basis)

    def unbounded(self, covariates: Mapping[str, str], priors: Mapping[str, float]) -> dict[str, float]:
        """Priors times factors, before shares stop at 1."""
        values = dict(priors)
        for effect in self._matching(covariates):
            for name, power in targets(effect.target).items():
                values[name] *= effect.factor**power
        return values

    def origin(self, covariates: Mapping[str, str]) -> str:
        """``shipped``, or the file of the user's own that holds a factor for these ``covariates``."""
        return next((e.origin for e in self._matching(covariates) if e.origin != SHIPPED), SHIPPED)

    def proximity(self, covariates: Mapping[str, str]) -> Proximity:
        """How near measured runs are to ``covariates``; no partition was measured."""
        if covariates.get("partition"):
            return "architecture"
        here = Combination(**{key: covariates.get(key, "") for key in Combination.model_fields})
        gpu = [c for c in self.combinations if c.gpu == here.gpu]
        if here in gpu:
            return "setting"
        if any((c.shape, c.weights) == (here.shape, here.weights) for c in gpu):
            return "combination"
        if gpu:
            return "parts" if any(c.shape == here.shape for c in self.combinations) else "gpu"
        return "architecture" if any(c.architecture == here.architecture for c in self.combinations) else "nothing"

    def interval(self, metric: str, covariates: Mapping[str, str]) -> tuple[float, float] | None:
        """Factors around a prediction of ``metric`` between which 90 % of measurements lie; None where unknown.

        The interval never narrows where runs are less near. For each proximity the intervals with the most covariates
        count, and of several their geometric mean.
        """
        name = next((name for part, name in STANDS_FOR.items() if part in metric), metric)
        near = PROXIMITIES[: PROXIMITIES.index(self.proximity(covariates)) + 1]
        found: dict[Proximity, list[Spread]] = {}
        for spread in self.spreads:
            if spread.metric != name or spread.proximity not in near or not spread.when.items() <= covariates.items():
                continue
            others = found.get(spread.proximity)
            if others is None or len(spread.when) > len(others[0].when):
                found[spread.proximity] = [spread]
            elif len(spread.when) == len(others[0].when):
                others.append(spread)
        every = [(_mean([s.lo for s in spreads]), _mean([s.hi for s in spreads])) for spreads in found.values()]
        return (min(lo for lo, _ in every), max(hi for _, hi in every)) if every else None

    def _matching(self, covariates: Mapping[str, str]) -> Iterable[Effect]:
        held = covariates.items()
        return (effect for effect in self.effects if effect.when.items() <= held)


def _mean(factors: Sequence[float]) -> float:
    """The geometric mean."""
    return prod(factors) ** (1 / len(factors))


def load_calibration(path: Path | None = None) -> Calibration:
    """Read a file of fits; the one we ship without ``path``. Raises InputError naming what is wrong."""
    return _load(path or data_dir("hardware") / "calibration" / "efficiency.json")


@lru_cache(maxsize=8)
def _load(path: Path) -> Calibration:
    try:
        return parse_calibration(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}", hint="check --calibration") from error
    except ValueError as error:  # not UTF-8, or not JSON
        raise InputError(f"{path} is not JSON: {error}", hint="write it with planner calibrate") from error


def parse_calibration(content: Any, where: str) -> Calibration:
    """A calibration from what was read of ``where``. Raises InputError naming the field that is wrong."""
    try:
        calibration = Calibration.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"{where}: {field}: {first['msg']}", hint="write it with planner calibrate") from error
    for effect in calibration.effects:
        if not targets(effect.target):
            raise InputError(
                f"{where}: no parameter is called {effect.target!r}", hint=f"one of {', '.join(PARAMETERS)}"
            )
    return calibration


def to_text(calibration: Calibration) -> str:
    """The file of ``calibration``: JSON with one effect, one interval and one combination to a line."""
    fields = []
    for name, value in calibration.model_dump(mode="json", exclude_defaults=True).items():
        if isinstance(value, list):
            lines = ",\n  ".join(json.dumps(item) for item in value)
            fields.append(f" {json.dumps(name)}: [\n  {lines}\n ]")
        else:
            fields.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def efficiency_for(
    model: Model, profile: GpuProfile, config: EngineConfig, calibration: Calibration | None = None
) -> Efficiency:
    """The efficiency of ``model`` on ``profile`` under ``config``, from ``calibration`` or the one we ship."""
    calibration = calibration or load_calibration()
    priors = prior_values(profile, config.tensor_parallel_size)
    return calibration.efficiency(covariates_of(model, profile, config), priors)


# --- a user's own fits: factors on top of ours. The runs are kept too, so that a later fit can start from all of them


class LocalFits(FitRecord):
    """Factors fitted to a user's own runs, on top of the fits ``base``."""

    base: str  #: ``base_digest`` of the fits that the factors multiply
    fitted_on: str  #: which runs, and when
    effects: tuple[Effect, ...] = ()
    spreads: tuple[Spread, ...] = ()  #: of settings with enough runs to leave each out once
    combinations: tuple[Combination, ...] = ()  #: the settings that ``spreads`` are of
    runs: tuple[dict[str, str | bool | int | float], ...] = ()  #: columns of a table of runs


@cache
def base_digest() -> str:
    """Twelve hexadecimal digits that change with our fits and priors."""
    folder = data_dir("hardware") / "calibration"
    content = b"".join((folder / name).read_bytes() for name in ("efficiency.json", "priors.toml"))
    return sha256(content).hexdigest()[:12]


def parse_local(content: Any, where: str) -> LocalFits:
    """What a file holds under ``efficiency``. Raises InputError naming the field that is wrong."""
    hint = "write it with planner calibrate"
    try:
        local = LocalFits.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, ("efficiency", *first["loc"])))
        raise InputError(f"{where}: {field}: {first['msg']}", hint=hint) from error
    unknown = next((effect.target for effect in local.effects if not targets(effect.target)), None)
    if unknown is not None:
        raise InputError(f"{where}: efficiency.effects: no parameter is called {unknown!r}", hint=hint)
    return local


def over_shipped(local: LocalFits, origin: str) -> Calibration:
    """Our fits with those of ``local`` on top; ``origin`` is the file that holds these."""
    base = load_calibration()
    own = (effect.model_copy(update={"origin": origin}) for effect in local.effects)
    changes = {
        "name": origin,
        "effects": (*base.effects, *own),
        "spreads": (*base.spreads, *local.spreads),
        "combinations": tuple(dict.fromkeys((*base.combinations, *local.combinations))),
    }
    return base.model_copy(update=changes)
