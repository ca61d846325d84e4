"""How much of a GPU's peaks vLLM reaches, and what each kernel, exchange and step costs beside them.

``Efficiency`` holds few numbers, each named and physical: shares of a peak (never above 1) and fixed costs in
seconds. Three sources give them, each in its own file::

    value = prior                   hardware/calibration/priors.toml, or the GPU's own kernel tables where it has any
          x effect(architecture)    hardware/calibration/efficiency.json: factors fitted to measured runs, each for a
          x effect(GPU) x ...       circumstance, drawn towards 1 where runs are few

So a GPU that nobody measured takes the effects of its architecture, and else the prior; ``basis`` says which.
"""

from planner.efficiency.circumstances import Graphs, attention_class, circumstances, era, graphs
from planner.efficiency.fits import (
    SHIPPED,
    Calibration,
    Combination,
    Effect,
    Familiarity,
    Spread,
    efficiency_for,
    load_calibration,
    parse_calibration,
    to_text,
)
from planner.efficiency.local import LocalFits, base_digest, over_shipped, parse_local
from planner.efficiency.parameters import PARAMETERS, SHARES, Basis, Efficiency, targets
from planner.efficiency.priors import Prior, kernel_values, load_priors, prior_values

__all__ = [
    "PARAMETERS",
    "SHARES",
    "SHIPPED",
    "Basis",
    "Calibration",
    "Combination",
    "Effect",
    "Efficiency",
    "Familiarity",
    "Graphs",
    "LocalFits",
    "Prior",
    "Spread",
    "attention_class",
    "base_digest",
    "circumstances",
    "efficiency_for",
    "era",
    "graphs",
    "kernel_values",
    "load_calibration",
    "load_priors",
    "over_shipped",
    "parse_calibration",
    "parse_local",
    "prior_values",
    "targets",
    "to_text",
]
