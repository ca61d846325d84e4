"""Files of fits: factors on the priors by covariate, and how far off predictions were on runs that no fit saw."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from planner.engine import EngineConfig
from planner.errors import InputError, fault_in
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import data_dir
from planner.timing.efficiencies import SHARES, Efficiency, EfficiencyBasis, Line, covariates_of, prior_values, targets

if TYPE_CHECKING:
    from planner.timing.belief import Belief, Known

SHIPPED = "shipped"
COVARIANCE = "covariance.npz"  #: what the runs teach of the factors, beside ``efficiency.json``
#: Two-sided levels that a file of fits gives the reach of its errors for.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.98)


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
            self._efficiencies[key] = self._efficiency(covariates, priors)
        return self._efficiencies[key]

    @cached_property
    def _efficiencies(self) -> dict[Hashable, Efficiency]:
        return {}

    def _efficiency(self, covariates: Mapping[str, str], priors: Mapping[str, float]) -> Efficiency:
        values = self.unbounded(covariates, priors)
        basis: EfficiencyBasis = "global"
        for effect in self._matching(covariates):
            if effect.gpu or "gpu" in effect.when:
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


def to_text(calibration: Calibration) -> str:
    """The file of ``calibration``: JSON with one effect and one line of factors to a line."""
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
