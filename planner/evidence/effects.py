"""The lines of the random-effects model: what may differ, between which circumstances, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.evidence.observe import Floats, Observed
from planner.timing import PARAMETERS, Effect, load_priors, prior_values, targets

Scope = tuple[str, ...]
StructureLine = tuple[str, Scope, float]

#: (target, circumstances, standard deviation of the logarithm). ``efficiency.circumstances`` explains the words; a
#: target is a parameter, or a part of the names of several.
STRUCTURE: tuple[StructureLine, ...] = (
    ("slowdown", ("era", "architecture"), 0.12),
    ("slowdown", ("kind", "era", "platform"), 0.03),
    ("slowdown", ("tp", "platform"), 0.07),
    ("slowdown", ("gpu", "shape"), 0.035),
    ("slowdown", ("gpu", "shape", "weights", "tp"), 0.072),
    ("slowdown", ("gpu", "era", "release"), 0.029),
    ("slowdown", ("shape", "weights"), 0.049),
    ("slowdown", ("weights", "architecture", "era"), 0.048),
    ("slowdown", ("attention", "era", "platform"), 0.029),
    ("slowdown", ("shape", "era", "platform"), 0.018),
    ("slowdown", ("gpu", "shape", "weights", "tp", "release"), 0.018),
    ("launch", ("architecture",), 0.072),
    ("launch", ("gpu",), 0.024),
    ("launch", ("era", "platform"), 0.59),
    ("launch", ("release", "platform"), 0.06),
    ("launch", ("attention",), 0.1),
    ("launch", ("shape",), 0.1),
    ("launch", ("shape", "architecture", "era"), 0.19),
    ("expert_launch_s", ("architecture",), 0.15),
    ("expert_launch_s", ("weights",), 0.15),
    ("expert_launch_s", ("weights", "architecture"), 0.09),
    ("expert_launch_s", ("weights", "architecture", "era"), 0.05),
    ("expert_launch_s", ("shape",), 0.03),
    ("expert_each_s", ("architecture",), 0.35),
    ("expert_each_s", ("era", "platform"), 0.33),
    ("attention_launch_s", ("attention",), 0.1),
    ("attention_launch_s", ("attention", "architecture", "era"), 0.25),
    ("weight_bandwidth", ("architecture",), 0.08),
    ("weight_bandwidth", ("gpu",), 0.018),
    ("weight_bandwidth", ("weights", "architecture"), 0.06),
    ("weight_bandwidth", ("weights",), 0.06),
    ("expert_bandwidth", ("architecture",), 0.12),
    ("expert_bandwidth", ("weights",), 0.22),
    ("expert_bandwidth", ("weights", "architecture"), 0.4),
    ("expert_bandwidth", ("shape",), 0.048),
    ("kv_bandwidth", ("architecture",), 0.32),
    ("kv_bandwidth", ("attention",), 0.09),
    ("kv_bandwidth", ("attention", "architecture", "era"), 0.15),
    ("kv_bandwidth", ("gpu",), 0.048),
    ("bandwidth", ("shape", "architecture", "era"), 0.022),
    ("gemm_flop", ("architecture",), 0.25),
    ("gemm_flop", ("gpu",), 0.21),
    ("gemm_flop", ("era", "platform"), 0.19),
    ("gemm_flop", ("weights", "architecture"), 0.15),
    ("gemm_flop", ("weights",), 0.03),
    ("gemm_flop", ("shape",), 0.31),
    ("gemm_flop", ("release", "platform"), 0.03),
    ("expert_flop", ("architecture",), 0.09),
    ("expert_flop", ("weights",), 0.32),
    ("expert_flop", ("weights", "architecture"), 0.31),
    ("expert_flop", ("weights", "architecture", "era"), 0.77),
    ("expert_flop", ("shape",), 0.74),
    ("attention_flop", ("architecture",), 0.069),
    ("attention_flop", ("era", "platform"), 0.87),
    ("attention_flop", ("attention",), 0.15),
    ("attention_flop", ("attention", "architecture", "era"), 0.36),
    ("attention_flop", ("shape",), 0.1),
    ("attention_flop", ("gpu",), 0.03),
    ("decode_attention_flop", ("architecture",), 0.25),
    ("_flop", ("shape", "architecture", "era"), 0.11),
    ("collective_s", ("architecture",), 0.08),
    ("collective_s", ("links", "tp"), 0.58),
    ("collective_s", ("gpu",), 0.1),
    ("collective_s", ("era", "platform"), 0.2),
    ("collective_s", ("gpu", "tp"), 0.03),
    ("link_share", ("gpu",), 0.13),
    ("host", ("gpu",), 0.12),
    ("host_step_s", ("era", "platform"), 0.8),
    ("host_step_s", ("release", "platform"), 0.09),
    ("host_seq_s", ("era", "platform"), 0.5),
    ("host_seq_s", ("release", "platform"), 0.2),
    ("host_seq_s", ("shape",), 0.077),
    ("host_seq_s", ("gpu",), 0.03),
    ("request_s", ("release", "platform"), 1.0),
    ("frontend_s", ("release", "platform"), 1.0),
    ("frontend_s", ("shape",), 1.0),
    ("frontend_s", ("release", "platform", "shape"), 0.03),
    ("coverage_exponent", ("shape",), 0.048),
)


# --- Which circumstances may change which efficiencies, and by how much before any run has said so
#
# A random-effects model on the logarithm: the value of a parameter for one run is its prior times one factor for each
# line of ``STRUCTURE`` that targets it, shared by all runs in the same circumstance and drawn towards 1 with the line's
# standard deviation. The deviations were chosen by leaving out groups of runs, and single runs, of those that we ship.

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """One factor: what it multiplies, under which circumstance, and what is believed of its logarithm."""

    target: str
    when: dict[str, str]
    sd: float
    mean: float


@dataclass(frozen=True)
class DesignColumn:
    """Factors that multiply the same parameters of the same runs, which no run can tell apart: fitted as one."""

    parts: tuple[Part, ...]
    powers: tuple[int, ...]  #: of the factor, for each parameter
    runs: NDArray[np.bool_]

    @property
    def variance(self) -> float:
        """Of the logarithm of all parts together."""
        return sum(part.sd**2 for part in self.parts)

    @property
    def mean(self) -> float:
        """Of the logarithm of all parts together."""
        return sum(part.mean for part in self.parts)

    def split(self, log_factor: float) -> Iterator[tuple[Part, float]]:
        """Each part with its share of what was fitted: in proportion to its variance, as Bayes has it."""
        moved = log_factor - self.mean
        return ((part, part.mean + moved * part.sd**2 / self.variance) for part in self.parts)


class Design:
    """All factors of a fit to ``observed``, and how they make up the efficiencies of each run."""

    def __init__(
        self,
        observed: Sequence[Observed],
        structure: Sequence[StructureLine] = STRUCTURE,
        base: Sequence[Effect] = (),
        *,
        start: Floats | None = None,
    ) -> None:
        """``base``: factors of an earlier fit, which this one starts from and is drawn towards.

        ``start``: logarithm of the efficiencies of each run, (runs, parameters), that the factors of ``structure``
        multiply. By default the priors, which have a factor of their own each.
        """
        self.observed = observed
        self.start: Floats = np.log([list(_priors(one)) for one in observed]) if start is None else start
        self._known = {_key(effect.target, effect.when): effect for effect in base}
        self.columns = _merged([*(self._global() if start is None else ()), *self._scoped(structure)])
        self.sd: Floats = np.array([column.variance**0.5 for column in self.columns])
        self.mean: Floats = np.array([column.mean for column in self.columns])
        self._by_parameter = [
            [i for i, column in enumerate(self.columns) if column.powers[parameter]]
            for parameter in range(len(PARAMETERS))
        ]
        runs = np.array([column.runs for column in self.columns], dtype=np.float64).T
        powers = np.array([column.powers for column in self.columns], dtype=np.float64)
        self._members = [runs[:, on] * powers[on, parameter] for parameter, on in enumerate(self._by_parameter)]

    def _global(self) -> Iterator[DesignColumn]:
        everywhere = np.ones(len(self.observed), dtype=bool)
        return (self._column(name, {}, everywhere, prior.sd) for name, prior in load_priors().items())

    def _scoped(self, structure: Sequence[StructureLine]) -> Iterator[DesignColumn]:
        for target, scope, sd in structure:
            found = [tuple(one.circumstances[key] for key in scope) for one in self.observed]
            for values in dict.fromkeys(found):
                members = np.array([value == values for value in found])
                yield self._column(target, dict(zip(scope, values, strict=True)), members, sd)

    def _column(self, target: str, when: dict[str, str], runs: NDArray[np.bool_], sd: float) -> DesignColumn:
        changed = targets(target)
        powers = tuple(changed.get(name, 0) for name in PARAMETERS)
        before = self._known.get(_key(target, when))
        mean = float(np.log(before.factor)) if before else 0.0
        return DesignColumn((Part(target, when, before.sd if before else sd, mean),), powers, runs)

    def log_values(self, factors: Floats) -> Floats:
        """Logarithm of every efficiency of every run, (runs, parameters), from the logarithms of the factors."""
        values = self.start.copy()
        for parameter, columns in enumerate(self._by_parameter):
            values[:, parameter] += self._members[parameter] @ factors[columns]
        return values

    def jacobian(self, derivative: Floats, metric_run: NDArray[np.int64]) -> Floats:
        """Derivative of every metric by every factor, from those by the efficiencies of its run."""
        result = np.zeros((len(derivative), len(self.columns)))
        for parameter, columns in enumerate(self._by_parameter):
            result[:, columns] += derivative[:, [parameter]] * self._members[parameter][metric_run]
        return result


def _priors(one: Observed) -> Iterator[float]:
    values = prior_values(one.profile, one.config.tensor_parallel_size)
    return (values[name] for name in PARAMETERS)


def _key(target: str, when: dict[str, str]) -> Key:
    return target, tuple(sorted(when.items()))


def _merged(columns: Sequence[DesignColumn]) -> list[DesignColumn]:
    """Columns that no run can tell apart become one."""
    found: dict[tuple[tuple[int, ...], bytes], DesignColumn] = {}
    for column in columns:
        key = column.powers, column.runs.tobytes()
        same = found.get(key)
        found[key] = DesignColumn(same.parts + column.parts, column.powers, column.runs) if same else column
    return list(found.values())
