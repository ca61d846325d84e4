"""Parameter counts of every known checkpoint beside those of its own implementation.

    python benchmarks/params.py PATH/TO/models

PATH holds ``configs/ORG--NAME.json`` and ``params.csv``, whose ``computed_params`` and further counts come from
building each model without storage. Prints every mismatch and a summary; exits 1 when one is not explained below.
"""

import csv
import json
import sys
import time
from pathlib import Path

from planner.errors import PlannerError
from planner.model.architecture import Component, Model, Shard
from planner.model.build import model_from_config

#: (model, column): why the table is not the truth there.
STEP = "the table's class builds from defaults; ours, MTP and routing biases are the hub's total to the digit"
EXPLAINED = {
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "lm_head_params"): "its total counts the lm_head",
    ("stepfun-ai/Step-3.7-Flash", "computed_params"): STEP,
    ("stepfun-ai/Step-3.7-Flash", "active_params"): STEP,
    ("stepfun-ai/Step-3.7-Flash", "embedding_params"): STEP,
    ("stepfun-ai/Step-3.7-Flash", "lm_head_params"): STEP,
}


def counts(model: Model) -> dict[str, int]:
    """Our figures, under the table's column names."""
    parts = model.params_by_component()
    tables = [w for w in model.outer if w.component is Component.EMBEDDING and w.shard is Shard.VOCAB]
    return {
        "computed_params": model.total_params,
        "embedding_params": sum(w.params for w in tables),
        "lm_head_params": sum(w.params for w in model.outer if w.component is Component.LM_HEAD and w.linear),
        "vision_params": parts[Component.VISION],
        "routed_expert_params": parts[Component.ROUTED_EXPERT],
        "active_params": model.active_params,
        "n_layers": model.num_layers,
    }


def read_json(path: Path) -> dict[str, object] | None:
    """The content of a JSON file, None where there is none."""
    return json.loads(path.read_text()) if path.exists() else None


def main(folder: Path) -> int:
    """Compare, print, and say with the exit status whether all is equal or explained."""
    with (folder / "params.csv").open() as file:
        table = {row["model"]: row for row in csv.DictReader(file)}
    wrong = refused = compared = 0
    slowest = (0.0, "")
    for path in sorted((folder / "configs").glob("*.json")):
        name = path.stem.replace("--", "/", 1)
        start = time.perf_counter()
        try:
            model = model_from_config(
                read_json(path), model_id=name, sidecar=read_json(folder / "hf_quant" / path.name)
            )
        except PlannerError as error:
            refused += 1
            print(f"refused  {error.cause}")
            continue
        slowest = max(slowest, (time.perf_counter() - start, name))
        ours = counts(model)
        for column, ours_value in ours.items():
            theirs = table.get(name, {}).get(column)
            if not theirs:
                continue
            compared += 1
            if round(float(theirs)) != ours_value:
                why = EXPLAINED.get((name, column))
                wrong += why is None
                verdict = "differs" if why is None else f"explained ({why})"
                print(f"{verdict}  {name} {column}: ours {ours_value:,}, {ours_value - round(float(theirs)):+,}")
    print(f"{compared} figures compared, {wrong} differ, {refused} configs refused")
    print(f"slowest build {slowest[0] * 1e3:.1f} ms ({slowest[1]})")
    return 1 if wrong or refused else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
