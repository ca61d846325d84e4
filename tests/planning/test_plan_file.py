"""A ``plan.json`` that is broken, cut off, edited or of another planner: told in one line by whatever reads it."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.planning.plan import PlanFile, read_plan

LLAMA = "meta-llama/Llama-2-7b-hf"
#: Everything that reads a plan's folder.
READERS = (
    ("validate", "{}"),
    ("calibrate", "{}", "-o", "{}/c.toml"),
    ("deploy", "{}", "--target", "compose", "--target", "kubernetes", "-o", "{}/d", "--force"),
    ("report", "{}"),
    ("check", "{}"),
    ("check", "{}/launch.sh"),
)
JUNK: tuple[Any, ...] = (None, True, -1, 0, 1.5, 10**400, "", "x", "\0", [], [1], {}, {"a": [None]}, float("nan"))
LIBRARY = ("pydantic", "validation error", "Input should", "Traceback", "[type=", "Field required")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with targets, its scripts, and a result."""
    where = tmp_path_factory.mktemp("plans") / "one"
    load = ("--max-concurrency", "4", "--num-prompts", "16", "--random-input-len", "64", "--random-output-len", "32")
    made = run("recommend", LLAMA, "--gpu", "h100", "--gpus", "1", *load, "--tpot", "100", "-o", str(where))
    assert made.status == 0, made.err
    saved = json.loads((where / "plan.json").read_text())
    figures = {name: value for name, value in saved["predicted"].items() if isinstance(value, int | float)}
    (where / "results").mkdir()
    (where / "results" / f"serve-{saved['digest']}.json").write_text(json.dumps({
        **figures, "model_id": LLAMA, "num_prompts": 16, "max_concurrency": 4, "completed": 16,
        "total_input_tokens": 16 * 64, "total_output_tokens": 16 * 32,
    }))  # fmt: skip
    return where


def with_plan(folder: Path, text: str, copy: Path) -> Path:
    """The folder with another ``plan.json``."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    (copy / "plan.json").write_text(text)
    return copy


@st.composite
def mutations(draw: st.DrawFn, text: str) -> str:
    """Cut off, a byte more, or one place of it deleted, added or replaced."""
    kind = draw(st.sampled_from(("cut", "insert", "delete", "add", "replace", "replace", "whole")))
    if kind == "cut":
        return text[: draw(st.integers(0, len(text) - 1))]
    if kind == "insert":
        at = draw(st.integers(0, len(text)))
        return text[:at] + draw(st.sampled_from(list('{}[]",:0x\\'))) + text[at:]
    junk = draw(st.sampled_from(JUNK))
    if kind == "whole":
        return json.dumps(junk)
    data: Any = json.loads(text)
    place = data
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner and draw(st.booleans())):
            break
        place = inner
    if kind == "delete":
        del place[key]
    elif kind == "add" and isinstance(place, dict):
        place["banana"] = junk
    else:
        place[key] = junk
    return json.dumps(data)


@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(data=st.data())
def test_whatever_is_wrong_with_a_plan_is_told_in_two_lines(folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    text = data.draw(mutations((folder / "plan.json").read_text()))
    where = with_plan(folder, text, tmp_path / "copy")
    for words in READERS:
        outcome = run(*(word.format(where) for word in words))
        assert outcome.status in (0, 1, 2), (words, outcome.err)
        assert not any(word in outcome.err for word in LIBRARY), outcome.err
        if outcome.status == 2:
            cause, hint = error_of(outcome)
            assert cause and hint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_num_seqs": None}, "max_num_seqs is None, not a whole number"),
        ({"max_num_seqs": "many"}, "max_num_seqs is 'many', not a whole number"),
        ({"gpu_memory_utilization": []}, "gpu_memory_utilization is [], not a number"),
        ({"workload": 3}, "workload is 3, not an object"),
        ({"serve_argv": "vllm serve"}, "serve_argv is 'vllm serve', not a list"),
        ({"goal": "best"}, "goal is 'best', not 'min-latency', 'max-throughput' or 'balanced'"),
        ({"predicted": {"mean_ttft_ms": "fast"}}, "predicted.mean_ttft_ms is 'fast', not a number"),
        ({"memory": {"weights_bytes": float("inf")}}, "memory.weights_bytes is inf, not a number"),
        ({"memory": {"activation_bytes": None}}, "memory.activation_bytes is None, not a number"),
        ({"predicted": {"mean_ttft_ms": -5.0}}, "predicted.mean_ttft_ms is -5.0, not a number of 0 or more"),
        ({"schema_version": 2}, "its schema_version is 2; planner reads 1"),
        ({"banana": 1}, "banana is not a known field"),
        ({"max_num_seqs": 7}, "it was changed after it was written"),
        ({"digest": None}, "it was changed after it was written"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    saved = json.loads((folder / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**saved, **change}))
    with pytest.raises(InputError) as error:
        read_plan(tmp_path)
    assert words in error.value.cause and "write" in error.value.hint


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("num_gpus",), 10**40, "num_gpus is"),
        (("num_gpus",), 0, "num_gpus is 0, not at least 1"),
        (("max_num_seqs",), 10**40, "which is too large"),
        (("network_gb_per_s",), 1e-9, "network_gb_per_s is 1e-09, not at least 1e-06"),
        (("workload", "num_prompts"), 10**9, "workload: --num-prompts must be at most 1,000,000"),
        (("workload", "output_len"), 1_024_000, "its requests are longer than its context of"),
        (("workload", "seed"), 2**32, "workload: --seed must be at most 4,294,967,295"),
        (("workload", "burstiness"), 5e-324, "workload: --burstiness must be at least 1e-12"),
        (("service", "targets", 0, "limit_ms"), 0, "service.targets.0: --tpot 0 is not a target in ms"),
        (("published",), {"mean_ttft_ms": -1}, "published.mean_ttft_ms is -1, not at least 0"),
        (("predicted", "total_output_tokens"), None, "predicted.total_output_tokens is None, not a number"),
        (("predicted", "mean_tpot_ms_hi"), ..., "predicted.mean_tpot_ms_hi is missing"),
        (("predicted", "mean_tpot_ms"), ..., "predicted.mean_tpot_ms is missing"),
    ],
)
def test_no_field_holds_what_no_command_writes(folder: Path, place: tuple[Any, ...], value: Any, words: str) -> None:
    saved = json.loads((folder / "plan.json").read_text())
    *above, last = place
    holder = saved
    for key in above:
        holder = holder[key]
    holder[last] = value
    if value is ...:
        del holder[last]
    with pytest.raises(ValueError, match=re.escape(words)):
        PlanFile.from_json(json.dumps(saved))


@pytest.mark.parametrize("figure", ["median_tpot_ms", "output_throughput_per_user"])
def test_a_prediction_of_next_to_nothing_is_not_compared(folder: Path, tmp_path: Path, figure: str) -> None:
    saved = json.loads((folder / "plan.json").read_text())
    saved["predicted"][figure] = 5e-324
    where = with_plan(folder, json.dumps(saved), tmp_path / "copy")  # predictions are not in the digest
    for words in (("validate", str(where), "--format", "json"), ("report", str(where))):
        outcome = run(*words)
        assert outcome.status in (0, 1), outcome.err


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    saved = json.loads((folder / "plan.json").read_text())
    del saved["tensor_parallel_size"]
    with pytest.raises(ValueError, match="tensor_parallel_size is missing"):
        PlanFile.from_json(json.dumps(saved))
    with pytest.raises(ValueError, match="not a JSON object"):
        PlanFile.from_json("[]")
    with pytest.raises(ValueError, match="nested too deeply"):
        PlanFile.from_json("[" * 200_000)
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(InputError, match="directory"):
        read_plan(tmp_path)
