"""benchmark.sh of a plan for several classes of requests: a client for each, side by side."""

import json
import signal
from pathlib import Path

import pytest
from script_machine import Machine, values_of
from script_plans import CLASSES, classes, emission
from shell_checks import check_scripts

from planner.errors import InputError
from planner.evidence import read_measurements, validate
from planner.evidence.sources import Stated
from planner.output.scripts.emission import Emission, render_scripts

PLAN = CLASSES.file.plan


def machine(tmp_path: Path, made: Emission = CLASSES) -> Machine:
    here = Machine(tmp_path, made)
    here.set(completed=40)
    here.run("launch.sh")
    return here


def test_scripts_are_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    native = emission(classes(image="", serve_argv=("vllm", "serve", PLAN.model, "--host", "127.0.0.1")))
    for place, made in enumerate((CLASSES, native)):
        folder = tmp_path / str(place)
        folder.mkdir()
        check_scripts([text for name, text in render_scripts(made).items() if name.endswith(".sh")], folder)


def test_each_class_is_sent_by_a_client_of_its_own(tmp_path: Path) -> None:
    here = machine(tmp_path)
    assert here.run("benchmark.sh").returncode == 0
    warm_up, *sent = here.docker("exec")
    assert values_of(warm_up, "--num-prompts") == ["8"] and values_of(warm_up, "--random-input-len") == ["4096"]
    sent.sort(key=lambda words: values_of(words, "--seed"))  # they start at once
    for one, words, name in zip(PLAN.classes, sent, PLAN.result_names, strict=True):
        at = words.index("bench") - 1
        assert tuple(words[at : at + len(one.bench_argv)]) == one.bench_argv
        assert values_of(words, "--result-filename") == [f".partial-{name}"]
    assert {path.name for path in (here.plan / "results").iterdir()} == set(PLAN.result_names)
    assert PLAN.result_names[1] == f"serve-{PLAN.digest}-2-batch-rm--rf-HOME.json"
    assert "already measured" in here.run("benchmark.sh").stdout


def test_a_repetition_sends_no_prompt_that_any_client_has_sent(tmp_path: Path) -> None:
    here = machine(tmp_path)
    for _ in range(3):
        assert here.run("benchmark.sh", FORCE="1").returncode == 0
    measured = [words for words in here.docker("exec") if "--save-result" in words]
    assert sorted(values_of(words, "--seed")[-1] for words in measured) == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("broken", "status", "said"),
    [({"bench_fails": ""}, 7, "client 2 ended with status 7"), ({"completed": 39}, 1, "39 of 40 requests completed")],
)
def test_one_client_that_fails_leaves_no_result(
    tmp_path: Path, broken: dict[str, object], status: int, said: str
) -> None:
    here = machine(tmp_path)
    here.set(**broken)
    failed = here.run("benchmark.sh")
    assert failed.returncode == status and said in failed.stderr
    assert not any((here.plan / "results").glob("serve-*"))


def test_an_interruption_stops_every_client(tmp_path: Path) -> None:
    here = machine(tmp_path)
    here.set(slow="")
    returned, said = here.interrupt("benchmark.sh", "benchmarking", signal.SIGTERM)
    assert returned == 143 and "same command" in said
    # a client that bash is just starting has the trap too, and ends the other once more
    assert {words[-1] for words in here.docker("exec") if "kill" in words[-3]} == {
        "/results/.client-1.pid", "/results/.client-2.pid",
    }  # fmt: skip


def folder_of(tmp_path: Path, **measured: float) -> Path:
    """The plan's folder with a result of each client, ``mean_ttft_ms`` by the first word of its class."""
    here = machine(tmp_path)
    (here.plan / "results").mkdir(exist_ok=True)
    for one, name in zip(PLAN.classes, PLAN.result_names, strict=True):
        sent = one.workload
        result = {
            "model_id": PLAN.model, "num_prompts": 40, "completed": 40, "failed": 0, "duration": 20.0,
            "total_input_tokens": 40 * sent.input_len, "total_output_tokens": 40 * sent.output_len,
            "mean_ttft_ms": measured[one.name.split(";")[0]],
        }  # fmt: skip
        (here.plan / "results" / name).write_text(json.dumps(result))
    return here.plan


def test_validate_compares_each_class_and_all_together(tmp_path: Path) -> None:
    found = validate(folder_of(tmp_path, chat=220.0, batch=700.0))
    of_class = {load.load: {line.metric: line for line in load.lines} for load in found.further}
    assert of_class["chat"]["mean_ttft_ms"].verdict == "inside"
    assert of_class["batch; rm -rf $HOME"]["mean_ttft_ms"].verdict == "above"
    own = {line.metric: line.measured for line in found.lines}
    assert own["mean_ttft_ms"] == (220 + 700) / 2  # as many requests of each
    assert own["output_throughput"] == 80 * 128 / 20.0
    assert not found.inside


def test_evaluate_and_another_result_say_what_they_are_not(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, chat=220.0, batch=230.0)
    result = folder / "results" / PLAN.result_names[0]
    for path in (folder, result):
        with pytest.raises(InputError, match="send 2 classes side by side") as caught:
            read_measurements(path, Stated())
        assert "planner validate" in str(caught.value.hint)
    with pytest.raises(InputError, match="is of one client"):
        validate(folder, result)


def test_a_class_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, chat=220.0, batch=230.0)
    (folder / "results" / PLAN.result_names[0]).unlink()
    with pytest.raises(InputError, match="1-chat"):
        validate(folder)


def test_what_is_sent_of_a_class_is_in_the_digest() -> None:
    first, second = PLAN.classes
    other = first.model_copy(update={"request_rate": 5.0})
    assert PLAN.load.recorded is not None and len(PLAN.load.recorded.arrival_s) == 80
    assert PLAN.model_copy(update={"classes": (other, second)}).digest != PLAN.digest
    predicted = first.model_copy(update={"predicted": {"mean_ttft_ms": 1.0}})
    assert PLAN.model_copy(update={"classes": (predicted, second)}).digest == PLAN.digest
