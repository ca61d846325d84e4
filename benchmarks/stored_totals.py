"""Quantised checkpoints: what is stored by our reading of their configuration, beside the hub's own totals.

    python benchmarks/stored_totals.py PATH/TO/models

PATH holds ``configs/ORG--NAME.json``, ``hf_quant/ORG--NAME.json`` and ``params.csv``, whose ``total_params`` is the
hub's count of stored numbers. The hub counts a packed pair of 4-bit values as one or as two, scales or not, and
multi-token-prediction modules where they are stored, so each checkpoint is compared in all eight readings and the
closest is printed. A difference of 0 says that exactly the right matrices are read as quantised.
"""

import csv
import json
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from planner.errors import PlannerError
from planner.model.architecture import Component, Model, Weight
from planner.model.build import model_from_config
from planner.model.precision import Precision


def read_json(path: Path) -> dict[str, object] | None:
    """The content of a JSON file, None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def held(model: Model) -> Iterator[tuple[Weight, Precision]]:
    """Every weight with its precision, layer by layer."""
    paths = [(f"{model.layer_prefix}{i}.{w.name}", w) for i, layer in enumerate(model.layers) for w in layer.weights]
    paths += [(w.name, w) for w in (*model.outer, *model.vision, *model.mtp)]
    for path, weight in paths:
        expert = weight.component is Component.ROUTED_EXPERT
        yield weight, model.quantization.precision_of(path, linear=weight.linear, routed_expert=expert)


def stored(model: Model, *, packed: bool, scales: bool, mtp: bool) -> int:
    """Numbers that the files hold, in one reading."""
    count = 0
    for weight, precision in held(model):
        if mtp or weight.component is not Component.MTP:
            count += weight.params // 2 if packed and precision.bits == 4 else weight.params
            count += weight.copies * precision.scales(weight.shape) if scales else 0
    return count


def main(folder: Path) -> int:
    """Print one line per quantised checkpoint, and how many agree to within 1e-6."""
    with (folder / "params.csv").open() as file:
        totals = {row["model"]: float(row["total_params"] or 0) for row in csv.DictReader(file)}
    close = compared = 0
    for path in sorted((folder / "configs").glob("*.json")):
        name = path.stem.replace("--", "/", 1)
        try:
            model = model_from_config(
                read_json(path), model_id=name, sidecar=read_json(folder / "hf_quant" / path.name)
            )
        except PlannerError as error:
            print(f"{name}: refused: {error}")
            continue
        if model.quantization.method is None or not totals.get(name):
            continue
        readings = [dict(zip(("packed", "scales", "mtp"), r, strict=True)) for r in product((False, True), repeat=3)]
        differences = [(totals[name] - stored(model, **reading), reading) for reading in readings]
        difference, reading = min(differences, key=lambda found: abs(found[0]))
        compared += 1
        close += abs(difference) <= 1e-6 * totals[name]
        said = ", ".join(key for key, value in reading.items() if value)
        print(f"{name}: {model.quantization.weight_dtype}, {totals[name]:.0f}, off by {difference:.0f} ({said})")
    print(f"{close} of {compared} agree to 1e-6")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
