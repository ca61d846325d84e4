"""What the five documents print, in the table of the product and in what its commands show of them.

``tests/published_commands.json`` has their commands as ``benchmarks/audit.py`` reads them from the texts;
``tests/benchmarks/test_audit.py`` holds each word against what is rendered.
"""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from command_line import run
from workflow_cases import NAMES, OfShortRequests, files_of

from planner.engine.launches import split_command
from planner.engine.parse import read_line
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.hardware.profiles import load_profile
from planner.memory.budget import Basis
from planner.model.resolve import resolve_model
from planner.output.workflows.documents import commands, find_workflow, list_workflows, printed_rows, results
from planner.output.workflows.offline import offline_points
from planner.output.workflows.printed import printed_beside
from planner.output.workflows.subject import Choice, Subject
from planner.planning.serving import Serving, asked_by

FACTS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "published_commands.json").read_text())
OF_VLLM = [fact for fact in FACTS if split_command(fact["words"])[0]]


@cache
def subject_of(name: str, **choice: Any) -> Subject:
    return Subject(find_workflow(name), Choice(**choice))


def test_the_facts_are_the_documents() -> None:
    """86 commands, 25 of them vLLM's: both branches of NVIDIA's launch script, and each in the table of the product."""
    assert len(FACTS) == 86 and len(OF_VLLM) == 25
    ours = {(c.document.id, c.capability, c.argv) for c in commands().values() if split_command(c.argv)[0]}
    theirs = {(f["document"], f.get("capability", ""), tuple(f["words"])) for f in OF_VLLM}
    assert theirs <= ours
    assert {document for document, _, _ in ours - theirs} == {"mad"}, "what the script of AMD's repository runs"
    for fact in OF_VLLM:
        (own,) = [c for c in commands().values() if c.document.id == fact["document"] and list(c.argv) == fact["words"]
                  and c.capability == fact.get("capability", "")]  # fmt: skip
        env = fact.get("env", {})
        if "deepseek" not in own.id:  # whose variables are those of its docker run
            assert dict(own.env) == env, own.id


# --- the tables ----------------------------------------------------------------------------------------------------


def test_every_printed_number_stands_beside_its_prediction() -> None:
    """40 rows of MI300X and two blocks of MI355X: 24 figures each with the one of failed requests."""
    assert len(printed_rows()) == 40
    assert [len(figures) for figures in results().values()] == [23, 23]
    shown = 0
    for name in ("latency", "throughput"):
        for model in ("amd/Llama-3.1-70B-Instruct-FP8-KV", "amd/Llama-3.1-405B-Instruct-FP8-KV"):
            rows = [row for row in printed_beside(subject_of(name, model=model)) if row.published is not None]
            assert all(row.predicted and row.lo and row.hi and row.error is not None for row in rows)
            own = sorted(row.published for row in printed_rows() if row.model == model and name in row.command.id)
            assert sorted(row.published for row in rows if row.published) == own
            shown += len(rows)
    assert shown == 40
    for name in ("mi355x-fp8", "mi355x-mxfp4"):
        figures = {row.metric: row for row in printed_beside(subject_of(name))}
        result = results()[f"amd-mi355/serve-{name.removeprefix('mi355x-')}", "amd-mi355/client"]
        assert {metric: figures[metric].published for metric in result} == result
        for metric in ("mean_ttft_ms", "p99_itl_ms", "output_throughput", "median_e2el_ms"):
            assert figures[metric].predicted and figures[metric].error is not None
        assert figures["gsm8k, flexible-extract"].published in (0.9052, 0.8954)


def test_figures_are_written_as_the_documents_write_theirs() -> None:
    """A score keeps its four places, a count has none."""
    page = files_of("mi355x-fp8")["WORKFLOW.md"]
    for printed in ("0.9052", "0.8575", "1,048,448 ", "7,864.95", "0.85 "):
        assert printed in page
    assert "1,048,448.00" not in page
    rows = files_of("mad")["WORKFLOW.md"].splitlines()
    first = next(line for line in rows if "latency-in128-out1-bs1 " in line).replace("|", " ").split()
    assert all("." in word and len(word.strip("0.")) >= 2 for word in first[4:6]), (
        "milliseconds are not rounded to 0.01 s"
    )


@pytest.mark.parametrize(
    ("name", "said", "not_said"),
    [
        ("latency", "benchmark scripts of vLLM 0.8.5", "no performance numbers"),
        ("cpx", "", "benchmark scripts of vLLM 0.8.5"),
        ("mmlu-pro", "no performance numbers", "benchmark scripts of vLLM 0.8.5"),
        ("blackwell-fp4", "no performance numbers", ""),
    ],
)
def test_caveats_on_results_stand_beside_results_only(name: str, said: str, not_said: str) -> None:
    text = files_of(name)["WORKFLOW.md"]
    assert said in text
    assert not not_said or not_said not in text


@pytest.mark.parametrize(("name", "points"), [("speculative", 2), ("aiter", 2), ("quick-reduce", 5)])
def test_points_without_a_prediction_are_shown_too(name: str, points: int) -> None:
    figures = printed_beside(subject_of(name))
    assert len(figures) == points and sum(figure.predicted is None for figure in figures) == points - 1


def test_another_load_has_no_printed_numbers() -> None:
    assert saved_published(num_prompts=320) == {}
    assert saved_published()["mean_ttft_ms"] == 11639.66


def saved_published(**choice: Any) -> dict[str, float]:
    return subject_of("mi355x-fp8", **choice).plan.published


# --- every workflow x GPU x version ---------------------------------------------------------------------------------

GPUS = ("mi300x", "mi300x-cpx", "mi355x", "b200-sxm", "h100-sxm", "h200-sxm")
VERSIONS = ("0.6.3", "0.9.1", "0.27.1")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "compare-partitions"])
def test_what_is_not_refused_starts_by_our_own_arithmetic_and_is_explained(name: str) -> None:
    workflow, kept = find_workflow(name), 0
    for place, gpu in enumerate(GPUS, start=NAMES.index(name)):  # over all workflows, each GPU meets each version
        own = {workflow.engine_version} if gpu in workflow.gpus else set()
        for version in {VERSIONS[place % len(VERSIONS)], *own}:
            try:
                found = Subject(workflow, Choice(gpu=gpu, engine_version=version))
                with patch("planner.planning.Prediction", OfShortRequests):  # no figure of a point is judged
                    points = offline_points(found) if workflow.offline else ()
            except PlannerError as error:
                assert error.hint, (gpu, version, error)
                continue
            kept += 1
            for argv, env in [(found.plan.serve_argv, found.plan.env), *((p.argv, p.env) for p in points)]:
                judge(found, list(argv), dict(env))
            waits = found.plan.predicted["mean_ttft_ms"] > 60_000
            assert not waits or any("wait" in text for text in found.plan.warnings), (gpu, version)
    assert kept, "it runs somewhere"


_JUDGED: set[tuple[Any, ...]] = set()  #: engines that were judged: the points of a workflow are often alike


def judge(found: Subject, argv: list[str], env: dict[str, str]) -> None:
    """As `planner check` judges a line: no option that the version refuses, and memory enough."""
    version = found.version
    line = read_line(argv, version, env=env, platform=found.profile.platform)
    assert not line.refused, [str(problem) for problem in line.problems]
    on_partitions = found.profile.partition is not None and line.args.tensor_parallel_size > 1
    args = replace(line.args, allow_unvalidated=on_partitions)
    drafts = line.args.speculative_config
    draft = resolve_model(drafts.model).model if drafts and drafts.model else None
    own = asked_by(line, found.resolved.model, found.profile, version)
    if (args, own, found.profile.id, found.resolved.resolved) in _JUDGED:
        return
    _JUDGED.add((args, own, found.profile.id, found.resolved.resolved))
    fit = Serving.of(found.resolved.model, found.profile, args, own, basis=Basis(None, draft)).fit(ways_out=False)
    assert fit.fits, (argv, fit.reason)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", [None, "0.6.3"])
def test_no_script_names_a_script_that_is_not_there(name: str, version: str | None) -> None:
    try:
        files = files_of(name, **({"engine_version": version} if version else {}))
    except PlannerError as error:
        assert error.hint and version
        return
    for path, text in files.items():
        folder = path.rpartition("/")[0]
        for script in re.findall(r"\$here/([a-z_]+\.sh)", text):
            assert f"{folder}/{script}".lstrip("/") in files, (path, script)


def test_the_resolved_models_of_the_documents_are_known_without_a_network() -> None:
    for workflow in list_workflows().values():
        for model in workflow.models:
            assert resolve_model(model, network=False).resolved == model
        assert load_profile(workflow.gpus[0]) and (
            not workflow.engine_version or parse_version(workflow.engine_version)
        )


# --- what other commands show of the documents ----------------------------------------------------------------------


def test_a_users_own_result_stands_beside_the_printed_and_the_predicted_one(tmp_path: Path) -> None:
    """The printed result itself, as if it had been measured: its figures are the document's to the last digit."""
    files = files_of("mi355x-fp8")
    plan = json.loads(files["plan.json"])
    (tmp_path / "plan.json").write_text(files["plan.json"])
    (tmp_path / "results").mkdir()
    printed = results()["amd-mi355/serve-fp8", "amd-mi355/client"]
    result = {**printed, "num_prompts": 128, "request_rate": "inf", "backend": "vllm", "model_id": plan["model"]}
    (tmp_path / "results" / f"serve-{plan['digest']}.json").write_text(json.dumps(result))
    said = json.loads(run("validate", str(tmp_path), "--format", "json").out)
    lines = {line["metric"]: line for line in said["lines"]}
    for metric in ("mean_ttft_ms", "mean_tpot_ms", "output_throughput"):
        assert lines[metric]["published"] == lines[metric]["measured"] == printed[metric]
    assert "published" in run("validate", str(tmp_path)).out.splitlines()[0]


def test_offline_results_stand_beside_the_printed_and_the_predicted_ones(tmp_path: Path) -> None:
    """The key counts input and output: 12,638.9 output tokens/s x (128 + 2048) / 2048 = 13,428.8."""
    files = files_of("throughput")
    digest = json.loads(files["plan.json"])["digest"]
    (tmp_path / "results").mkdir()
    for name in ("plan.json", "points.json"):
        (tmp_path / name).write_text(files[name])
    result = tmp_path / "results" / f"throughput-in128-out2048-prompts3200-{digest}.json"
    result.write_text('{"tokens_per_second": 13000.0}')
    (line,) = json.loads(run("validate", str(tmp_path), "--format", "json").out)["lines"]
    assert line["published"] == pytest.approx(13428.83, abs=0.01) and line["measured"] == 13000.0
    assert line["predicted"] and line["lo"] < line["predicted"] < line["hi"]
    result.write_text('{"tokens_per_second": 1.0}')
    outcome = run("validate", str(tmp_path))
    assert outcome.status == 1 and "slower" in outcome.out
    for broken in ("{}", "[1]", '{"tokens_per_second": 1e300}', '{"tokens_per_second": "1"}'):
        result.write_text(broken)
        assert run("validate", str(tmp_path)).status == 2
    result.unlink()
    tiny = {"name": "a", "key": "k", "predicted": 5e-324, "lo": 5e-324, "hi": 5e-324, "published": None}
    endless = json.dumps({"digest": "x", "points": [tiny]})  # what is measured is beyond any float of it
    for broken in ("[]", '{"digest": "x", "points": [{"name": 1}]}', '{"digest": "x", "points": 5}', endless):
        (tmp_path / "points.json").write_text(broken)
        assert "points.json is" in run("validate", str(tmp_path)).err


def test_recommend_shows_what_is_published_of_the_checkpoints_it_compares() -> None:
    said = json.loads(run("recommend", "--gpu", "mi355x", "--format", "json").out)["published"]["mi355x"]
    assert any("FP8-KV: flexible-extract 0.9052" in text for text in said)
    assert any("MXFP4-Preview: flexible-extract 0.8954" in text for text in said)
    assert any("FP8 performs best for most workloads" in text for text in said)
