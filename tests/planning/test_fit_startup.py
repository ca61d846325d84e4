"""``planner fit --startup-log``: predicted beside logged, and the overheads of a machine kept from one run to the next.

The logs are made of figures that vLLM printed on machines of others (pages in ``hardware/calibration``'s sources).
"""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import refused, run

from planner.memory.overheads import shipped
from planner.planning.calibration import UNITS
from planner.units import FACTORS, GIB

#: Qwen3-4B, one H100, vLLM 0.10.2: this version prints what is left and not what was taken.
SUM_ONLY = """
INFO [api_server.py:1896] vLLM API server version 0.10.2
(EngineCore_DP0 pid=77) INFO [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-4B', dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=True
(EngineCore_DP0 pid=77) INFO [gpu_model_runner.py:2392] Model loading took 7.5552 GiB and 3.1 seconds
(EngineCore_DP0 pid=77) INFO [gpu_worker.py:298] Available KV cache memory: 58.05 GiB
(EngineCore_DP0 pid=77) INFO [kv_cache_utils.py:864] GPU KV cache size: 422,672 tokens
(EngineCore_DP0 pid=77) INFO [kv_cache_utils.py:868] Maximum concurrency for 40,960 tokens per request: 10.32x
(EngineCore_DP0 pid=77) INFO [gpu_model_runner.py:3118] Graph capturing finished in 6 secs, took 0.54 GiB
"""  # noqa: E501
#: Qwen3-235B-A22B in fp8 on four RTX PRO 6000, vLLM 0.27: everything is printed, ranks differ.
ALL_PARTS = """
INFO [api_server.py:1896] vLLM API server version 0.27.0
INFO [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-235B-A22B-Instruct-2507-FP8', 'max_model_len': 32768, 'tensor_parallel_size': 4, 'enable_expert_parallel': True, 'gpu_memory_utilization': 0.9, 'max_num_seqs': 32}
(Worker_TP0 pid=9) INFO [gpu_model_runner.py:5000] Model loading took 55.19 GiB memory and 61.2 seconds
(Worker_TP0 pid=9) INFO [gpu_worker.py:760] Available KV cache memory: 27.91 GiB
(Worker_TP1 pid=10) INFO [gpu_worker.py:760] Available KV cache memory: 27.85 GiB
(EngineCore pid=5) INFO [kv_cache_utils.py:2320] GPU KV cache size: 621,392 tokens, Maximum concurrency for 32,768 tokens per request: 18.96x
(Worker_TP0 pid=9) INFO [gpu_worker.py:970] CUDA graph pool memory: 0.32 GiB (actual), 0.45 GiB (estimated), difference: -0.13 GiB (-28.9%).
(Worker_TP0 pid=9) INFO [gpu_worker.py:1034] Free memory on device (94.2/95.01 GiB) on startup. Desired GPU memory utilization is (0.9, 85.51 GiB). Actual usage is 56.89 GiB for consumed memory (weights + non-torch), 0.76 GiB for peak activation, and 0.32 GiB for CUDAGraph memory.
"""  # noqa: E501
BIG = "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8"


@pytest.fixture
def log(tmp_path: Path) -> Callable[[str], str]:
    """A log file's path."""

    def write(text: str) -> str:
        path = tmp_path / "vllm.log"
        path.write_text(text)
        return str(path)

    return write


def fit(*arguments: str) -> dict[str, Any]:
    """The JSON of ``planner fit``."""
    outcome = run("fit", *arguments, "--format", "json")
    assert outcome.status in (0, 1), outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def kept() -> Path:
    """The file of the user's own constants: ``conftest`` sets XDG_DATA_HOME."""
    return Path(os.environ["XDG_DATA_HOME"]) / "planner" / "calibration.toml"


def test_predicted_stands_beside_logged(log: Callable[[str], str]) -> None:
    found = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    lines = {line.pop("line"): line for line in found["startup_log"]}
    assert {name: line["logged"] for name, line in lines.items()} == {
        "model loading took": round(7.5552 * GIB),
        "CUDA graphs": round(0.54 * GIB),
        "available KV cache memory": round(58.05 * GIB),
        "GPU KV cache size": 422_672,
        "maximum concurrency": 10.32,
    }
    for line in lines.values():
        assert line["lo"] <= line["predicted"] <= line["hi"]
        assert line["inside"] == (line["lo"] <= line["logged"] <= line["hi"])
    assert lines["GPU KV cache size"]["predicted"] == pytest.approx(422_672, rel=0.01)


def test_the_log_says_which_settings_are_meant(log: Callable[[str], str]) -> None:
    found = fit(BIG, "--gpu", "rtx-pro-6000", "--startup-log", log(ALL_PARTS))
    assert (found["engine_version"], found["tensor_parallel_size"], found["enable_expert_parallel"]) == (
        "0.27.0",
        4,
        True,
    )
    assert (found["max_model_len"], found["max_num_seqs"], found["gpu_memory_utilization"]) == (32_768, 32, 0.9)
    assert any("27.85 to 27.91" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("text", "name", "gpu", "cache_gib", "tokens"),
    [(SUM_ONLY, "Qwen/Qwen3-4B", "h100", 58.05, 422_672), (ALL_PARTS, BIG, "rtx-pro-6000", 27.85, 621_392)],
)  # fmt: skip
def test_the_same_start_is_then_predicted_as_it_was_logged(
    log: Callable[[str], str], text: str, name: str, gpu: str, cache_gib: float, tokens: int
) -> None:
    """To the last digit of the log: 0.01 GiB of cache."""
    found = fit(name, "--gpu", gpu, "--startup-log", log(text))
    assert found["kv_cache_bytes"] / GIB == pytest.approx(cache_gib, abs=0.006)
    assert found["kv_cache_tokens"] == pytest.approx(tokens, rel=5e-4)
    assert found["kv_cache_tokens_lo"] <= tokens <= found["kv_cache_tokens_hi"]
    assert found["kv_cache_bytes_hi"] - found["kv_cache_bytes_lo"] < 0.15 * GIB


def test_printed_parts_are_taken_as_printed(log: Callable[[str], str]) -> None:
    """0.76 GiB of activations contain the estimate of 0.45 for graphs in 0.27; 56.89 - 55.19 is outside torch."""
    found = fit(BIG, "--gpu", "rtx-pro-6000", "--startup-log", log(ALL_PARTS))
    assert found["gpu"]["memory_bytes"] == round(95.01 * GIB)
    assert found["activation_bytes"] / GIB == pytest.approx(0.31, abs=0.01)
    assert found["non_torch_bytes"] / GIB == pytest.approx(1.70, abs=0.01)
    assert found["cuda_graph_bytes"] / GIB == pytest.approx(0.45, abs=0.01)


def test_later_runs_on_the_machine_use_it_and_say_so(log: Callable[[str], str]) -> None:
    asked = ("Qwen/Qwen3-4B", "--gpu", "h100", "--engine-version", "0.10.1")  # the same minor version
    before = fit(*asked)
    assert before["calibration"] == "shipped"
    now = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    after = fit(*asked)
    assert now["calibration"] == after["calibration"] == str(kept())
    assert after["kv_cache_bytes"] == now["kv_cache_bytes"] != before["kv_cache_bytes"]
    assert any(str(kept()) in note for note in after["notes"])
    assert after["startup_log"] == []


def test_a_plan_for_the_machine_rests_on_its_log_too(log: Callable[[str], str]) -> None:
    asked = ("recommend", "Qwen/Qwen3-4B", "--gpu", "h100", "--gpus", "1", "--engine-version", "0.10.2")
    asked += ("--max-concurrency", "8", "--format", "json")

    def memory() -> dict[str, int]:
        """Memory of the plan in bf16, as logged: the FP8 checkpoint is planned before it."""
        plans = {plan["model"]: plan for plan in json.loads(run(*asked).out)["plans"]}
        found: dict[str, int] = plans["Qwen/Qwen3-4B"]["memory"]
        return found

    before = memory()
    fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    after = memory()
    assert after["kv_cache_bytes"] != before["kv_cache_bytes"]
    assert after["weights_bytes"] == before["weights_bytes"]


def test_another_model_on_the_machine_profits_with_a_wider_interval(log: Callable[[str], str]) -> None:
    """Sampling took 9.43 copies of the logits there rather than the 9.6 of all logs: 1,024 x 151,936 x 4 B each."""
    other = ("Qwen/Qwen3-8B", "--gpu", "h100", "--engine-version", "0.10.2")
    before = fit(*other)
    fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    after = fit(*other)
    copies = (before["activation_bytes"] - after["activation_bytes"]) / (1024 * 151_936 * 4)
    assert 9.6 - copies == pytest.approx(9.43, abs=0.02)
    assert after["activation_bytes_lo"] < after["activation_bytes"] < after["activation_bytes_hi"]


@pytest.mark.parametrize(
    "elsewhere",
    [
        ("--gpu", "h200", "--engine-version", "0.10.2"),
        ("--gpu", "h100", "--engine-version", "0.11.0"),
        ("--gpu", "h100", "--engine-version", "0.10.2", "--tensor-parallel-size", "2"),
    ],
)
def test_other_machines_are_left_alone(log: Callable[[str], str], elsewhere: tuple[str, ...]) -> None:
    before = fit("Qwen/Qwen3-4B", *elsewhere)
    fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    assert fit("Qwen/Qwen3-4B", *elsewhere) == before


def test_calibration_overrides(log: Callable[[str], str], tmp_path: Path) -> None:
    asked = ("Qwen/Qwen3-4B", "--gpu", "h100", "--engine-version", "0.10.2")
    before = fit(*asked)
    own = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    assert fit(*asked, "--calibration", "none") == before
    moved = kept().rename(tmp_path / "mine.toml")
    assert fit(*asked) == before
    given = fit(*asked, "--calibration", str(moved))
    assert (given["calibration"], given["kv_cache_bytes"]) == (str(moved), own["kv_cache_bytes"])


def test_what_is_kept_has_the_format_of_our_own(log: Callable[[str], str]) -> None:
    fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    first = kept().read_bytes()
    fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    assert kept().read_bytes() == first  # the same log again changes nothing
    fit(BIG, "--gpu", "rtx-pro-6000", "--startup-log", log(ALL_PARTS))
    names = {known.name for known in shipped().fits} | {"memory"}
    entries = [(name, entry) for name, found in tomllib.loads(kept().read_text()).items() for entry in found]
    assert {name for name, _ in entries} <= names
    assert {entry["where"]["gpu"] for _, entry in entries} == {"h100-sxm", "rtx-pro-6000"}
    for name, entry in entries:
        assert entry["unit"] == UNITS.get(name, "1")
        assert entry["unit"] in FACTORS
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert len(entry["logs"][0]) == 8
    assert [path.name for path in kept().parent.iterdir()] == ["calibration.toml"]  # no temporary file is left


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (SUM_ONLY, ("Qwen/Qwen3-8B", "--gpu", "h100"), "the log is of Qwen/Qwen3-4B, not of Qwen/Qwen3-8B"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "-tp", "2"), "--tensor-parallel-size 2: the log is of 1"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "--dtype", "float16"), "--dtype float16: the log is of bfloat16"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "--engine-version", "0.11.0"), "the log is of vLLM 0.10.2"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "--gpu", "h200"), "one start on one GPU"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "--sweep"), "one start on one GPU"),
        (SUM_ONLY, ("Qwen/Qwen3-4B", "--gpu", "h100", "--weight-dtype", "fp8"), "another checkpoint"),
        (SUM_ONLY.partition("Available")[0], ("Qwen/Qwen3-4B", "--gpu", "h100"), "ends before the KV cache was made"),
        ("hello", ("Qwen/Qwen3-4B", "--gpu", "h100"), "this log has no line of a vLLM start-up"),
        (ALL_PARTS, (BIG, "--gpu", "h100"), "the log is of a GPU with 95.01 GiB, not 79.18 GiB"),
    ],
)
def test_a_log_that_does_not_belong_is_refused_and_nothing_is_kept(
    log: Callable[[str], str], text: str, arguments: tuple[str, ...], words: str
) -> None:
    outcome = run("fit", *arguments, "--startup-log", log(text))
    assert (outcome.status, outcome.out) == (2, "")
    assert words in outcome.err
    assert "hint:" in outcome.err
    assert not kept().exists()


@pytest.mark.parametrize(
    "content", [None, "no toml", "[[sampler]]\nvalue = 1", "[[sampler]]\nvalue = 'x'\nunit = '1'\nlogs = []"]
)
def test_a_calibration_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "bad.toml"
    if content is not None:
        path.write_text(content)
    assert str(path) in refused("fit", "Qwen/Qwen3-4B", "--gpu", "h100", "--calibration", str(path))


def test_the_same_type_under_another_name_is_no_contradiction(log: Callable[[str], str]) -> None:
    assert fit("Qwen/Qwen3-4B", "--gpu", "h100", "--dtype", "bf16", "--startup-log", log(SUM_ONLY))["fits"]


def test_nothing_is_learned_from_a_cache_that_was_asked_for(log: Callable[[str], str]) -> None:
    text = SUM_ONLY.replace("422,672", "72,816").replace("58.05", "10.00") + (
        "INFO Initial free memory 78.57 GiB, reserved 10.00 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.\n"
    )
    found = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(text))
    assert found["kv_cache_bytes"] / GIB == pytest.approx(58.05, rel=0.01)
    assert any("--kv-cache-memory-bytes" in note for note in found["notes"])


def test_what_a_log_taught_about_a_gpu_holds_under_a_power_limit(log: Callable[[str], str]) -> None:
    """A power limit changes no memory."""
    whole = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    limited = fit("Qwen/Qwen3-4B", "--gpu", "h100@500w", "--engine-version", whole["engine_version"])
    assert limited["kv_cache_bytes"] == whole["kv_cache_bytes"] and limited["calibration"] == str(kept())
    again = fit("Qwen/Qwen3-4B", "--gpu", "h100@500w", "--startup-log", log(SUM_ONLY))
    assert again["kv_cache_bytes"] == whole["kv_cache_bytes"] and "@" not in kept().read_text()


def test_people_see_a_table(log: Callable[[str], str]) -> None:
    outcome = run("fit", "Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    assert outcome.status == 0
    assert "Predicted beside logged" in outcome.out
    (row,) = [line for line in outcome.out.splitlines() if line.startswith("GPU KV cache size")]
    assert row.split()[-2:] == ["422,672", "yes"]


def test_a_refused_start_still_says_what_was_left(log: Callable[[str], str]) -> None:
    refused = SUM_ONLY.split("(EngineCore_DP0 pid=77) INFO [kv_cache_utils.py:864]")[0] + (
        "ValueError: To serve at least one request with the models's max seq len (40960), 60.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (58.05 GiB)."
    )
    found = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(refused))
    assert found["kv_cache_bytes"] / GIB == pytest.approx(58.05, abs=0.006)
    assert any("refused" in note and "larger than the available" in note for note in found["notes"])


@pytest.mark.parametrize("place", ["/proc/self", "/" + "x" * 300])
def test_a_folder_that_cannot_be_used_costs_no_answer(
    place: str, log: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder can be made in the first, even by root; the second cannot even be looked at."""
    monkeypatch.setenv("XDG_DATA_HOME", place)
    assert fit("Qwen/Qwen3-4B", "--gpu", "h100")["fits"]
    answer = fit("Qwen/Qwen3-4B", "--gpu", "h100", "--startup-log", log(SUM_ONLY))
    assert answer["fits"] and any("could not be saved" in note for note in answer["notes"])
