"""Every config.json of a folder through ``load_model``: right, refused with a reason, or a bug.

    python benchmarks/models.py FACTS

``FACTS`` holds ``configs/<org>--<name>.json``, ``hf_quant/<org>--<name>.json`` (the sidecars) and ``params.csv``
(``model``, ``computed_params``, ``total_params``). Three things are checked of each config:

1. it gives a model or a clean refusal, never another error;
2. its parameter count is the one of ``params.csv``;
3. where the bundled catalog has the id, its entry gives the same model, weight by weight.

Exit status 1 when one is neither right nor refused, or a catalog entry differs from its config.
"""

import csv
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from planner.errors import PlannerError
from planner.model import find_entry
from planner.model.architecture import Model
from planner.model.resolve import resolve_model

#: Facts of a model that two ways of loading it must agree on, beside its weights and their precisions.
PLAIN = (
    "architecture", "model_type", "hidden_size", "vocab_size", "max_position_embeddings", "dtype", "tied_embeddings",
    "layer_prefix", "requires_remote_code", "notes", "facts",
)  # fmt: skip


def facts_of(model: Model) -> dict[str, object]:
    """All that a model says, in a form that compares: the layers by value, the precision of every weight."""
    quantization = model.quantization
    found: dict[str, object] = {name: getattr(model, name) for name in PLAIN}
    found["layers"] = [(layer.weights, layer.mixer, layer.moe) for layer in model.layers]
    found["outside the layers"] = (model.outer, model.vision, model.mtp)
    found["quantization"] = (
        quantization.weight_dtype, quantization.method, quantization.base, quantization.kv_cache_dtype,
        quantization.notes,
    )  # fmt: skip
    paths = [(w.name, w) for w in (*model.outer, *model.vision, *model.mtp)]
    for index, layer in enumerate(model.layers):
        paths += [(f"{model.layer_prefix}{index}.{w.name}", w) for w in layer.weights]
    found["precisions"] = {
        path: quantization.precision_of(
            path, linear=w.linear, routed_expert=w.component.value == "routed_expert"
        )
        for path, w in paths
    }  # fmt: skip
    return found


def differences(one: Model, other: Model) -> list[str]:
    """What two models disagree on."""
    left, right = facts_of(one), facts_of(other)
    return [name for name in left if left[name] != right[name]]


def published_params(facts: Path) -> dict[str, set[int]]:
    """Counts that are right, by model: what the hub stores, and what building the model on the meta device gives."""
    with (facts / "params.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = ("computed_params", "total_params")
    return {row["model"]: {int(float(row[c])) for c in columns if row[c]} for row in rows}


def main(facts: Path) -> int:
    """Check every config below ``facts`` and print the counts."""
    published, outcome, failed = published_params(facts), Counter[str](), 0
    began = time.perf_counter()
    for config in sorted((facts / "configs").glob("*.json")):
        name = config.stem.replace("--", "/", 1)
        sidecar = facts / "hf_quant" / config.name
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(config, f"{scratch}/config.json")
            if sidecar.is_file():
                shutil.copy(sidecar, f"{scratch}/hf_quant_config.json")
            verdict, problem = check(name, scratch, published.get(name, set()))
        outcome[verdict] += 1
        if problem:
            print(f"{name}: {verdict}: {problem}")
        failed += verdict in ("bug", "catalog differs")
    for verdict, count in outcome.most_common():
        print(f"{count:4d} {verdict}")
    print(f"{time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


def check(name: str, folder: str, published: set[int]) -> tuple[str, str]:
    """Verdict on one model, and what there is to say about it."""
    try:
        model = resolve_model(folder, network=False).model
        entry = find_entry(name)
        if entry and (differing := differences(model, entry.model())):
            return "catalog differs", ", ".join(differing)
    except PlannerError as error:
        return "refused", error.cause
    except Exception:  # a bug is what this script looks for
        return "bug", traceback.format_exc(limit=-3)
    if not published:
        return "loaded, no published count", ""
    if model.total_params in published:
        return "right: parameter count as published", ""
    nearest = min(published, key=lambda count: abs(count - model.total_params))
    return "count differs", f"{model.total_params:,} here, {nearest:,} published"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
