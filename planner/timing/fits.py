"""Files of fits: factors on the priors under circumstances, and how far off predictions have been."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.engine import EngineConfig
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import data_dir
from planner.timing.covariates import covariates_of
from planner.timing.efficiencies import PARAMETERS, SHARES, Efficiency, EfficiencyBasis, prior_values, targets

#: How near to a configuration measured runs are: this very setting under another load; the GPU with this model in this
#: precision; both, but not together; the GPU with other models; another GPU of its architecture; none.
Familiarity = Literal["setting", "combination", "parts", "gpu", "architecture", "nothing"]
FAMILIARITIES: tuple[Familiarity, ...] = get_args(Familiarity)
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
    """A factor on a parameter, or on a group of them (``launch``, ``expert_flop``), under some circumstance."""

    target: str
    when: dict[str, str]
    factor: float = Field(gt=0)
    sd: float = Field(ge=0)  #: of its logarithm
    rows: int = Field(default=0, ge=0)  #: metrics of measured runs under this circumstance
    origin: str = Field(default=SHIPPED, exclude=True)  #: the file it was read from, where that is not ours


class Spread(FitRecord):
    """90 % of measurements lie between ``lo`` and ``hi`` times the prediction, by runs that the fit did not see."""

    metric: str
    familiarity: Familiarity
    when: dict[str, str] = Field(default_factory=dict)  #: of runs in this circumstance; empty: of all
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

    def efficiency(self, circumstances: Mapping[str, str], priors: Mapping[str, float]) -> Efficiency:
        """The efficiency under ``circumstances``, from the values that ``prior_values`` gives."""
        values = self.unbounded(circumstances, priors)
        basis: EfficiencyBasis = "global"
        for effect in self._matching(circumstances):
            if "gpu" in effect.when:
                basis = "gpu"
            elif "architecture" in effect.when and basis == "global":
                basis = "architecture"
        if circumstances.get("partition") and basis == "gpu":
            basis = "architecture"  # a part of a GPU is not the GPU that was measured
        for name in SHARES:
            values[name] = min(values[name], 1.0)
        return Efficiency(**values, basis=basis)

    def unbounded(self, circumstances: Mapping[str, str], priors: Mapping[str, float]) -> dict[str, float]:
        """Priors times factors, before shares stop at 1."""
        values = dict(priors)
        for effect in self._matching(circumstances):
            for name, power in targets(effect.target).items():
                values[name] *= effect.factor**power
        return values

    def origin(self, circumstances: Mapping[str, str]) -> str:
        """``shipped``, or the file of the user's own that has a say under ``circumstances``."""
        return next((e.origin for e in self._matching(circumstances) if e.origin != SHIPPED), SHIPPED)

    def familiarity(self, circumstances: Mapping[str, str]) -> Familiarity:
        """How near the fit has been to ``circumstances``; nobody has measured a part of a GPU."""
        if circumstances.get("partition"):
            return "architecture"
        here = Combination(**{key: circumstances.get(key, "") for key in Combination.model_fields})
        gpu = [c for c in self.combinations if c.gpu == here.gpu]
        if here in gpu:
            return "setting"
        if any((c.shape, c.weights) == (here.shape, here.weights) for c in gpu):
            return "combination"
        if gpu:
            return "parts" if any(c.shape == here.shape for c in self.combinations) else "gpu"
        return "architecture" if any(c.architecture == here.architecture for c in self.combinations) else "nothing"

    def interval(self, metric: str, circumstances: Mapping[str, str]) -> tuple[float, float] | None:
        """Factors around a prediction of ``metric`` between which 90 % of measurements lie; None where unknown.

        The less familiar the circumstances, the wider: never narrower than what is known of more familiar ones.
        Of each familiarity the most detailed intervals count, and of several their geometric mean.
        """
        name = next((name for part, name in STANDS_FOR.items() if part in metric), metric)
        near = FAMILIARITIES[: FAMILIARITIES.index(self.familiarity(circumstances)) + 1]
        found: dict[Familiarity, list[Spread]] = {}
        for spread in self.spreads:
            if (
                spread.metric != name
                or spread.familiarity not in near
                or not spread.when.items() <= circumstances.items()
            ):
                continue
            others = found.get(spread.familiarity)
            if others is None or len(spread.when) > len(others[0].when):
                found[spread.familiarity] = [spread]
            elif len(spread.when) == len(others[0].when):
                others.append(spread)
        every = [(_mean([s.lo for s in spreads]), _mean([s.hi for s in spreads])) for spreads in found.values()]
        return (min(lo for lo, _ in every), max(hi for _, hi in every)) if every else None

    def _matching(self, circumstances: Mapping[str, str]) -> Iterable[Effect]:
        held = circumstances.items()
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


# --- What a user's own runs taught beside the fits that we ship: factors that multiply them where they apply
#
# The runs themselves are kept too, so that a later fit can start from all of them, or from other fits of ours.


class LocalFits(FitRecord):
    """Factors fitted to a user's own runs, relative to the fits ``base``."""

    base: str  #: ``base_digest`` of the fits that the factors multiply
    fitted_on: str  #: which runs, and when
    effects: tuple[Effect, ...] = ()
    spreads: tuple[Spread, ...] = ()  #: of settings with enough runs to leave each out once
    combinations: tuple[Combination, ...] = ()  #: the settings that ``spreads`` are of
    runs: tuple[dict[str, str | bool | int | float], ...] = ()  #: columns of a table of runs


@cache
def base_digest() -> str:
    """Twelve hexadecimal digits that change with the fits and priors that we ship."""
    folder = data_dir("hardware") / "calibration"
    content = b"".join((folder / name).read_bytes() for name in ("efficiency.json", "priors.toml"))
    return sha256(content).hexdigest()[:12]


def parse_local(content: Any, where: str) -> LocalFits:
    """What a file says under ``efficiency``. Raises InputError naming the field that is wrong."""
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
    """The fits that we ship, with those of ``local`` on top; ``origin`` is the file that holds them."""
    base = load_calibration()
    own = (effect.model_copy(update={"origin": origin}) for effect in local.effects)
    changes = {
        "name": origin,
        "effects": (*base.effects, *own),
        "spreads": (*base.spreads, *local.spreads),
        "combinations": tuple(dict.fromkeys((*base.combinations, *local.combinations))),
    }
    return base.model_copy(update=changes)
