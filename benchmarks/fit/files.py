"""The files of a fit that we ship, as ``planner.timing`` reads them."""

import json
from pathlib import Path

import numpy as np

from planner.timing.belief import Belief
from planner.timing.efficiencies import Key
from planner.timing.fits import Calibration


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


def save(belief: Belief, path: Path) -> None:
    """Write keys, rows and signs; the lines stand in the file of fits."""
    names = np.array([_text(key) for key in belief.keys])
    np.savez_compressed(path, keys=names, rows=belief.rows.astype(np.float16), signs=belief.signs)


def _text(key: Key) -> str:
    target, when = key
    return "|".join([target, *(f"{name}={value}" for name, value in when)])
