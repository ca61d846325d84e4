"""What a fit leaves known and unknown of the factors, as the distribution that predictions are made with.

At its optimum a fit is a normal distribution of the columns of its design, with covariance A^-1 (Laplace). Of a column
of several factors that no run tells apart the sum is known, and each has its share by its prior variance. Hence, with V
the prior variances of the columns and v that of a factor in column c::

    covariance of two factors = v (on the diagonal) - (v / V_c) (V - A^-1)_cc' (v' / V_c')

and U of ``Belief`` is a root of the middle matrix. A fit without some of the runs knows less: by Woodbury its A^-1 is
larger by m (1 / W - J A^-1 J')^-1 m' with m = A^-1 J', which are columns of the other sign.
"""

from __future__ import annotations

import numpy as np

from planner.evidence.effects import Design, load_structure
from planner.evidence.observe import Floats
from planner.timing import Belief, Key, Line, load_priors

#: Share of a prior variance that runs take away, below which a direction is not worth a column.
LEAST_KNOWN = 1e-3


def lines() -> tuple[Line, ...]:
    """Every factor that a prediction hangs on: those of the fit, the priors', and those of a machine of its own."""
    structure = load_structure()
    priors = (Line(name, (), prior.sd) for name, prior in load_priors().items())
    return (*priors, *(Line(*line) for line in structure.lines), *structure.machine)


def posterior(design: Design, covariance: Floats, least: float = LEAST_KNOWN) -> Belief:
    """The distribution of the factors of ``design``, whose columns have ``covariance``."""
    known = np.diag(np.ones(len(design.sd))) - covariance / np.outer(design.sd, design.sd)
    share, directions = np.linalg.eigh(known)
    kept = share > least
    columns = directions[:, kept] * np.sqrt(share[kept]) * design.sd[:, None]
    keys, shares = _parts(design)
    return Belief(lines(), keys, shares @ columns, np.full(columns.shape[1], -1.0))


def unlearnt(belief: Belief, design: Design, columns: Floats) -> Belief:
    """``belief`` without what some runs taught; ``columns`` as above, of the columns of ``design``."""
    _, shares = _parts(design)
    return belief.with_columns(shares @ columns, 1.0)


def _parts(design: Design) -> tuple[tuple[Key, ...], Floats]:
    """The factors, and the share of each in its column, (factors, columns)."""
    parts = [(part, number) for number, column in enumerate(design.columns) for part in column.parts]
    shares = np.zeros((len(parts), len(design.columns)))
    for row, (part, number) in enumerate(parts):
        shares[row, number] = part.sd**2 / design.columns[number].variance
    return tuple(part.key for part, _ in parts), shares
