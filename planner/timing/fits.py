"""Files of fits: factors on the priors by covariate, and how far off predictions were on runs that no fit saw."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from math import log, prod
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from planner.engine import EngineConfig
from planner.errors import InputError, fault_in
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import data_dir
from planner.timing.efficiencies import SHARES, Efficiency, Line, covariates_of, prior_values, targets
from planner.units import counted

if TYPE_CHECKING:
    from planner.timing.belief import Belief, Known

SHIPPED = "shipped"
COVARIANCE = "covariance.npz"  #: what the runs teach of the factors, beside ``efficiency.json``
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98)  #: two-sided levels that a file of fits gives the reach of its errors for


class FitRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Effect(FitRecord):
    """A factor on an efficiency or a group of them (``launch``, ``expert_flop``), for engines with some covariates."""

    target: str
    when: dict[str, str]
    factor: float = Field(ge=1e-6, le=1e6)
    sd: float = Field(ge=0)  #: of its logarithm
    rows: int = Field(default=0, ge=0)  #: measured runs with these covariates
    gpu: str = ""  #: of the user's own runs behind it: engines on that GPU have it; empty: all
    #: A row of ``Belief.taught``. Its logarithms and their spreads are of the order of one.
    known: tuple[Annotated[float, Field(ge=-1e3, le=1e3)], ...] = ()
    origin: str = Field(default=SHIPPED, exclude=True)  #: the file it was read from, where that is not ours


class Scatter(FitRecord):
    """Distance of measurements of one kind of metric from predictions, by runs that the fit did not see."""

    noise: float = Field(ge=0)  #: standard deviation of the logarithm that no factor explains
    #: at each of ``LEVELS``: that share of the measurements lies within so many predicted standard deviations
    reach: tuple[float, float, float, float, float]
    rows: int = Field(ge=0)


class Evidence(NamedTuple):
    """The published runs nearest to an engine. Intervals come from ``Belief``, by what these runs teach."""

    kind: Literal["measured", "interpolated", "extrapolated"]  #: the model ran so; on the GPU otherwise; not there
    runs: int  #: of the setting; where interpolated of the model on the GPU, in this precision if any; else on the GPU
    note: str
    basis: Literal["gpu", "architecture", "global"]  #: where the model ran; runs of others are of an architecture


@lru_cache(maxsize=1)
def settings() -> list[dict[str, str]]:
    """Return the settings of all published runs, each with their number, as ``benchmarks/settings.py`` wrote them."""
    with (data_dir("hardware") / "calibration" / "settings.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def ran_on(architecture: str) -> tuple[str, ...]:
    """Return the formats of the weights in published runs on GPUs of an architecture."""
    return tuple({one["weights"] for one in settings() if one["architecture"] == architecture})


def setting_of(covariates: Mapping[str, str], config: EngineConfig) -> dict[str, str]:
    """Return ``covariates`` with the layout. A shape is that of the layers, with images or without."""
    ranks = config.tensor_parallel_size, config.pipeline_parallel_size, config.data_parallel_size
    layout = f"{'.'.join(map(str, ranks))}{'+EP' * config.enable_expert_parallel}"
    return {**covariates, "layout": layout, "shape": re.sub("_(vl|text)-", "-", covariates["shape"])}


def settings_near(asked: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the settings of published runs of the same engine on GPUs of the same vendor, the nearest first."""
    ours = asked["generation"] == "atom", asked["architecture"][:2]
    known = (one for one in settings() if (one["generation"] == "atom", one["architecture"][:2]) == ours)
    return sorted(known, key=lambda one: distance(asked, one))


def distance(one: Mapping[str, str], other: Mapping[str, str]) -> float:
    """Return 0 for like settings; another GPU of the architecture, or 2.7 times layers x width, is 1 away."""
    weights = {"gpu": 1, "architecture": 2, "shape": 1, "kind": 2, "weights": 0.5, "layout": 0.25}
    sizes = [prod(map(int, re.findall(r"\d+", setting["shape"])[-2:])) for setting in (one, other)]
    return abs(log(sizes[0] / sizes[1])) + sum(far for name, far in weights.items() if one[name] != other[name])


class Calibration(FitRecord):
    name: str
    fitted_on: str  #: which runs, and when
    runs_over_nodes: int = Field(default=0, ge=0)  #: of these runs, those whose engine exchanged over a network
    median_error: dict[str, float] = Field(default_factory=dict)  #: by metric, of runs that the fit did not see
    effects: tuple[Effect, ...] = ()
    lines: tuple[Line, ...] = ()
    scatters: dict[str, Scatter] = Field(default_factory=dict)  #: by kind of metric, see ``reach``
    belief: Any = Field(default=None, exclude=True)  #: a ``Belief``, what is known of the factors; None: as shipped

    def __getstate__(self) -> dict[Any, Any]:  # for another process, which loads the belief as shipped itself
        own = {name: getattr(self, name) for name in Calibration.model_fields}
        return super().__getstate__() | {"__dict__": own}

    def efficiency(self, covariates: Mapping[str, str], priors: Mapping[str, float]) -> Efficiency:
        """The efficiencies of an engine, from those that ``prior_values`` gives."""
        key = (*sorted(covariates.items()), *sorted(priors.items()))
        if key not in self._efficiencies:  # a search asks for the same again and again
            values = self.unbounded(covariates, priors)
            self._efficiencies[key] = Efficiency(**values | {name: min(values[name], 1.0) for name in SHARES})
        return self._efficiencies[key]

    @cached_property
    def _efficiencies(self) -> dict[Hashable, Efficiency]:
        return {}

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

    def known(self, covariates: Mapping[str, str]) -> Known:
        return self.whole_belief.of(covariates)

    @cached_property
    def whole_belief(self) -> Belief:
        """The distribution of all factors, with the user's own runs."""
        belief: Belief = self.belief or shipped_belief()
        rows: dict[str, dict[Any, tuple[float, ...]]] = defaultdict(dict)
        for effect in self.effects:
            if effect.known:
                rows[effect.gpu][effect.target, tuple(sorted(effect.when.items()))] = effect.known
        return replace(belief, taught=rows) if rows else belief

    def with_own(self, effects: Iterable[Effect], origin: str) -> Calibration:
        """These fits with a user's own ``effects`` on top; ``origin`` is the file that holds them."""
        own = (effect.model_copy(update={"origin": origin}) for effect in effects)
        fields = {name: getattr(self, name) for name in Calibration.model_fields}  # a copy would keep what is cached
        return Calibration.model_construct(**fields | {"name": origin, "effects": (*self.effects, *own)})

    def evidence(self, covariates: Mapping[str, str], config: EngineConfig) -> Evidence:
        """Return the published runs nearest to an engine."""
        own = [effect for effect in self._matching(covariates) if effect.gpu]
        if runs := max((one.rows for one in own if {"shape", "weights", "tp"} <= one.when.keys()), default=0):
            return Evidence("measured", runs, f"measured: {counted(runs, 'run')} of your own of this setting", "gpu")
        asked = setting_of(covariates, config)
        platform = settings_near(asked)
        here = [one for one in platform if one["gpu"] == asked["gpu"] and not asked["partition"]]
        of_model = [one for one in here if one["shape"] == asked["shape"]]
        alike = [one for one in of_model if one["weights"] == asked["weights"]]
        same = [one for one in alike if one["layout"] == asked["layout"]]
        runs = sum(int(one["runs"]) for one in same or alike or of_model or here)
        ran, gpu = counted(runs, "run"), f"{'a part of ' * bool(asked['partition'])}{asked['gpu']}"
        if same:
            releases = sorted({one["release"] for one in same}, key=lambda text: [*map(int, text.split("."))])
            ends = " to ".join(dict.fromkeys((releases[0], releases[-1])))
            note = f"measured: {ran} of this model's shape, precision and layout on {gpu}, vLLM {ends}"
            return Evidence("measured", runs, note, "gpu")
        if of_model:
            what = f"and precision on {gpu}, none in this layout" if alike else f"on {gpu}, none in this precision"
            return Evidence("interpolated", runs, f"interpolated: {ran} of this model's shape {what}", "gpu")
        note = f"{ran} on {gpu}, none of this model's shape" if here else f"no run on {gpu}"
        if nearest := next(iter(platform), None):
            note += f"; nearest {nearest['model'].rsplit('/', 1)[-1]}" + f" on {nearest['gpu']}" * (nearest not in here)
        relatives = [one for one in platform if one["architecture"] == asked["architecture"]]
        basis: Any = "gpu" if own else "architecture" if relatives else "global"
        return Evidence("extrapolated", runs, f"extrapolated: {note}", basis)

    def _matching(self, covariates: Mapping[str, str]) -> Iterable[Effect]:
        held, gpus = covariates.items(), ("", covariates.get("gpu"))
        return (effect for effect in self.effects if effect.gpu in gpus and effect.when.items() <= held)


@lru_cache(maxsize=1)
def shipped_belief() -> Belief:
    from planner.timing.belief import load_belief  # numpy, which ``fit`` is spared

    return load_belief(data_dir("hardware") / "calibration" / COVARIANCE, load_calibration().lines)


@lru_cache(maxsize=1)
def load_calibration() -> Calibration:
    return Calibration.model_validate_json((data_dir("hardware") / "calibration" / "efficiency.json").read_bytes())


def efficiency_for(
    model: Model, profile: GpuProfile, config: EngineConfig, calibration: Calibration | None = None
) -> Efficiency:
    """The efficiency of ``model`` on ``profile`` under ``config``, from ``calibration`` or the one we ship."""
    calibration = calibration or load_calibration()
    covariates = covariates_of(model, profile, config)
    return calibration.efficiency(covariates, prior_values(profile, covariates))


class LocalFits(FitRecord):
    """Factors fitted to a user's own runs, on top of the fits ``base``."""

    base: str  #: ``base_digest`` of the fits that the factors multiply
    fitted_on: str  #: which runs, and when
    effects: tuple[Effect, ...] = ()
    runs: tuple[dict[str, str | bool | int | float], ...] = ()  #: columns of a table of runs

    @field_validator("effects")
    @classmethod
    def _have_rows_of_one_length(cls, effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
        lengths = {(effect.gpu, len(effect.known)) for effect in effects if effect.known}
        if len(lengths) > len({gpu for gpu, _ in lengths}):
            raise ValueError("known: what the runs of a GPU taught has the same length for each factor")
        return effects


@cache
def base_digest() -> str:
    """Twelve hexadecimal digits that change with our fits and priors."""
    folder = data_dir("hardware") / "calibration"
    content = b"".join((folder / name).read_bytes() for name in ("efficiency.json", "priors.toml", COVARIANCE))
    return sha256(content).hexdigest()[:12]


def parse_local(content: Any, where: str) -> LocalFits:
    """Read the ``efficiency`` of a file. Of factors on other fits only the runs count. Raises InputError."""
    hint = "write it with planner calibrate"
    if isinstance(content, dict) and content.get("base") != base_digest():
        content = {name: value for name, value in content.items() if name in ("base", "fitted_on", "runs")}
    try:
        local = LocalFits.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: efficiency.{fault_in(error)}", hint=hint) from error
    unknown = next((effect.target for effect in local.effects if not targets(effect.target)), None)
    if unknown is not None:
        raise InputError(f"{where}: efficiency.effects: no parameter is called {unknown!r}", hint=hint)
    return local
