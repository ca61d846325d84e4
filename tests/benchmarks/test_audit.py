"""The audit of the source documents over their commands, which are kept; the texts are not in the repository."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from workflow_cases import files_of

from audit import FAILURES, _place, commands_in, judge_commands, judge_figures, judge_names
from planner.output.workflows.documents import Workflow
from planner.output.workflows.subject import Choice

FACTS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "published_commands.json").read_text())
TABLE = """
| Model | Precision | TP Size | Batch Size | Input | Output | MI300X Latency (sec) |
|-------|-----------|----------|------------|--------|---------|-------------------|
| Llama 3.1 70B (amd/Llama-3.1-70B-Instruct-FP8-KV) | FP8 | 8 | 1 | 128 | 2048 | 17.236 |
| | | | 2 | 128 | 2048 | {} |
"""


@pytest.fixture(autouse=True)
def rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each workflow, whichever documents it is of, with short requests in the figures of its comments."""

    def files(workflow: Workflow, choice: Choice, *, command: str) -> dict[str, str]:
        assert choice == Choice(engine_version=choice.engine_version) and command.endswith(workflow.name)
        return files_of(workflow.name, **({"engine_version": choice.engine_version} if choice.engine_version else {}))

    monkeypatch.setattr("audit.plan_workflow", files)


@pytest.mark.parametrize("document", ["amd-mi355", "amd-2024", "nvidia", "amd-2025", "amd-cpx"])
def test_every_word_of_a_command_is_rendered_or_said_to_differ(document: str) -> None:
    items = list(judge_commands(fact for fact in FACTS if fact["document"] == document))
    assert [one for one in items if one.verdict in FAILURES] == []
    assert Counter(one.verdict for one in items)["as printed"] > len(items) / 2


@pytest.mark.parametrize(
    ("was", "other", "verdict"),
    [("benchmark_serving.py", "other.py", "silent"), ("--request-rate", "--burst", "missing"), ("500", "5", "missing")],
)
def test_a_word_that_nothing_renders_is_a_failure(was: str, other: str, verdict: str) -> None:
    fact = next(one for one in FACTS if one["document"] == "amd-2025" and "--request-rate" in one["words"])
    changed = {**fact, "words": [word.replace(was, other) for word in fact["words"]]}
    assert verdict in {one.verdict for one in judge_commands([changed])}


def test_an_option_that_differs_and_is_not_listed_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("audit.changed_options", lambda job: ())
    monkeypatch.setattr("audit._place", _place.__wrapped__)
    fact = next(one for one in FACTS if one["document"] == "nvidia" and one["words"][:2] == ["vllm", "serve"])
    silent = {one.printed for one in judge_commands([fact]) if one.verdict == "silent"}
    assert "--port 8080" in silent


def test_blocks_are_run_without_their_programs() -> None:
    """Variables of an earlier block count unless a later one sets them; nothing is started, whatever it is called."""
    text = """
```bash
export VLLM_USE_V1=1
```
`docker pull org/image:tag`
```bash
MODEL=org/m
if [ "$(nvidia-smi -i 0 --query-gpu=compute_cap)" = "10.0" ]; then FLAG="--fast"; else FLAG=""; fi
vllm serve $MODEL \\
  --path <to/be/filled> $FLAG &
touch made
```
```
Successful requests: 5
```
"""
    found = commands_in("nvidia", text)
    assert [one["words"] for one in found] == [
        ["docker", "pull", "org/image:tag"],
        ["vllm", "serve", "org/m", "--path", "<to/be/filled>", "--fast"],
        ["vllm", "serve", "org/m", "--path", "<to/be/filled>"],
        ["touch", "made"],
    ]
    assert all(one["env"] == ({"VLLM_USE_V1": "1"} if one["words"][0] == "vllm" else {}) for one in found)


def test_a_printed_figure_that_is_not_ours_is_wrong() -> None:
    assert [one.verdict for one in judge_figures("amd-2025", TABLE.format(18.057))] == ["as printed", "as printed"]
    assert [one.verdict for one in judge_figures("amd-2025", TABLE.format(18.06))] == ["as printed", "wrong"]


def test_a_model_that_no_workflow_has_is_missing() -> None:
    text = "`nvidia/Llama-3.3-70B-Instruct-FP4`, `nvidia/No-7B`"
    items = {one.printed: one.verdict for one in judge_names("nvidia", text)}
    assert items == {"nvidia/Llama-3.3-70B-Instruct-FP4": "as printed", "nvidia/No-7B": "missing"}
