"""The whole loop on a real vLLM: plan, launch, benchmark, score, validate, calibrate, on the CPU with a random model.

What is asserted is the mechanics: what was planned is what runs, what was sent is what was predicted for, the KV cache
has exactly the blocks that were predicted, and each command says what it should. How fast a CPU that others use too
turns out to be is printed, never asserted; that a calibration makes no load worse that it did not see, beyond the noise
between two runs of one load, is.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from math import log
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.request import ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parent.parent.parent
VERSION = "0.32.0"
LOAD = {"input_len": 128, "output_len": 32, "num_prompts": 24, "max_concurrency": 4}
#: Requests that are alone on the server: without them slow prompts are not told from a slow client.
ALONE = {"input_len": 32, "output_len": 32, "num_prompts": 8, "max_concurrency": 1}
#: What the calibration does not see: other lengths, another concurrency.
UNSEEN = {"input_len": 64, "output_len": 48, "num_prompts": 16, "max_concurrency": 2}
METRICS = (
    "output_throughput", "mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_e2el_ms",
)  # fmt: skip
#: Two runs of one load differ by so much in the mean even where nobody else uses the machine.
LEAST_NOISE = 0.06
#: GiB of KV cache. vLLM refuses more than the NUMA node has free, which may be less than the machine.
SPACE, SPACE_GIB = "VLLM_CPU_KVCACHE_SPACE", 2
GIB = 2**30


class Loop:
    """One model, one folder with its plan."""

    def __init__(self, venv: Path, folder: Path, port: int | None = None) -> None:
        self.venv, self.model, self.plan = venv, folder / "model", folder / "plan"
        self.planned_again, self.learned = folder / "plan-calibrated", folder / "learned.toml"
        self.data = folder / "data"
        self.port = port or free_port()
        quiet = {
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
            "PORT": str(self.port), "START_TIMEOUT_S": "300", "PYTHONPATH": str(ROOT),
            "XDG_DATA_HOME": str(self.data),
        }  # fmt: skip
        self.environment = {**os.environ, **quiet, "PATH": f"{venv / 'bin'}:{os.environ['PATH']}"}

    def planner(self, *words: object, status: int | tuple[int, ...] = 0) -> str:
        """What a planner command prints."""
        return self.run([sys.executable, "-m", "planner", *map(str, words)], status)

    def script(self, name: str, status: int | tuple[int, ...] = 0, cwd: str = "/", **variables: str) -> str:
        """What an emitted script prints."""
        return self.run([str(self.plan / name)], status, variables, cwd)

    def run(
        self,
        words: list[str],
        status: int | tuple[int, ...],
        variables: Mapping[str, str] | None = None,
        cwd: str = "/",
    ) -> str:
        done = subprocess.run(
            words, env={**self.environment, **(variables or {})}, cwd=cwd, capture_output=True, text=True, check=False
        )
        wanted = status if isinstance(status, tuple) else (status,)
        said = f"{done.stdout}\n{done.stderr}"
        assert done.returncode in wanted, f"{' '.join(words)} ended with {done.returncode}, not {wanted}:\n{said}"
        return done.stdout if status == 0 else said

    @property
    def saved(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.plan / "plan.json").read_text())
        return data

    @property
    def result(self) -> Path:
        return self.plan / "results" / f"serve-{self.saved['digest']}.json"

    def further(self, name: str) -> Path:
        """A result of the plan's server under a load that is not the plan's, or once more under it."""
        return self.plan / "results" / f"{name}.json"


@contextmanager
def step(title: str) -> Iterator[None]:
    start_s = time.monotonic()
    yield
    print(f"  {title} ({time.monotonic() - start_s:.0f} s)", flush=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def make_model(loop: Loop) -> None:
    if not (loop.model / "config.json").exists():
        script = Path(__file__).parent / "make_model.py"
        loop.run([str(loop.venv / "bin" / "python"), str(script), str(loop.model)], 0)


def recommend(loop: Loop) -> None:
    """A plan for this folder's model. A second one into the same folder is refused."""
    for left_behind in (loop.plan, loop.data):
        shutil.rmtree(left_behind, ignore_errors=True)
    loop.planner(*recommend_words(loop, loop.plan))
    assert "already exists" in loop.planner(*recommend_words(loop, loop.plan), status=2)
    assert loop.saved["model"] == str(loop.model), "a local model is planned by its whole path"
    assert loop.saved["image"] == "" and loop.saved["platform"] == "cpu"
    assert loop.saved["calibration"] == "shipped"
    assert loop.saved["env"][SPACE] == str(SPACE_GIB)
    assert "--gpu-memory-utilization" not in loop.saved["serve_argv"], "it has no effect where the cache is given"


def recommend_words(loop: Loop, plan: Path) -> tuple[object, ...]:
    return (
        "recommend", loop.model, "--gpu", "cpu", "--engine-version", VERSION, "--goal", "min-latency",
        "--input-len", LOAD["input_len"], "--output-len", LOAD["output_len"], "--num-prompts", LOAD["num_prompts"],
        "--max-concurrency", LOAD["max_concurrency"], "--env", f"VLLM_CPU_KVCACHE_SPACE={SPACE_GIB}", "--enforce-eager",
        "-o", plan,
    )  # fmt: skip


def launch(loop: Loop) -> None:
    """The server starts, answers on 127.0.0.1 only, and is not started twice."""
    assert "nothing was measured yet" in loop.planner("validate", loop.plan, status=2)
    assert "is not running" in loop.script("benchmark.sh", status=1)
    assert loop.script("preflight.sh").endswith("ready\n")
    assert f"ready: http://127.0.0.1:{loop.port}/v1" in loop.script("launch.sh")
    direct = build_opener(ProxyHandler({}))
    assert direct.open(f"http://127.0.0.1:{loop.port}/health", timeout=10).status == 200
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    places = [word for word in listening.split() if word.endswith(f":{loop.port:04X}") and word != "00000000:0000"]
    assert places and all(place.startswith("0100007F:") for place in places), f"listens elsewhere too: {places}"
    assert "is already running" in loop.script("launch.sh")
    assert "is already running" in loop.script("preflight.sh")


def benchmark(loop: Loop) -> None:
    """Exactly the plan's load is sent; an interrupted measurement leaves no result; a finished one is kept."""
    client = subprocess.Popen([loop.plan / "benchmark.sh"], env=loop.environment, stderr=subprocess.PIPE, text=True)
    time.sleep(4)
    client.send_signal(signal.SIGTERM)
    _, said = client.communicate(timeout=60)
    assert client.returncode == 143 and "interrupted" in said, f"{client.returncode}: {said[-2000:]}"
    assert not loop.result.exists()
    loop.script("benchmark.sh")
    result = json.loads(loop.result.read_text())
    assert (result["completed"], result["failed"]) == (LOAD["num_prompts"], 0)
    assert result["total_output_tokens"] == LOAD["num_prompts"] * LOAD["output_len"]
    assert "already measured" in loop.script("benchmark.sh")
    assert "already measured" in loop.script("validate.sh")


def benchmark_again(loop: Loop) -> None:
    """Lone requests, a load that is not calibrated with, and both loads of the plan's server once more.

    Each load is measured at two times with another between them, so that the noise includes a machine that changes.
    """
    loads = {"alone": ALONE, "unseen": UNSEEN, "again": LOAD, "unseen-again": UNSEEN}
    for number, (name, load) in enumerate(loads.items()):
        send(loop, loop.further(name), load, seed=100 + number)


def send(loop: Loop, result: Path, load: Mapping[str, int], seed: int) -> None:
    """The plan's own benchmark command with another load and other prompts, for the server that runs."""
    words = list(loop.saved["bench_argv"])
    options = {
        "--random-input-len": load["input_len"], "--random-output-len": load["output_len"],
        "--num-prompts": load["num_prompts"], "--max-concurrency": load["max_concurrency"], "--port": loop.port,
        "--seed": seed,
    }  # fmt: skip
    for option, value in options.items():
        words[words.index(option) + 1] = str(value)
    words += ["--save-result", "--result-dir", str(result.parent), "--result-filename", result.name]
    loop.run(words, 0)


def accuracy(loop: Loop) -> None:
    """The real lm_eval, installed by accuracy.sh, scores the running server; a half-made environment is made anew.

    The task is gsm8k itself. Its questions are ours: a folder of the data set's name is found before the hub.
    """
    questions, data = 8, loop.model.parent / "questions" / "openai" / "gsm8k"
    data.mkdir(parents=True, exist_ok=True)
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    configs = {"configs": [{"config_name": "main", "data_files": files}]}
    (data / "README.md").write_text(f"---\n{json.dumps(configs)}\n---\n")
    for file in files:
        asked = [{"question": f"{n} + {n}?", "answer": f"#### {2 * n}"} for n in range(questions)]
        (data / file["path"]).write_text("".join(f"{json.dumps(row)}\n" for row in asked))
    environment = loop.plan / ".lm_eval"
    environment.mkdir()
    (environment / "complete").touch()
    assert "measured: " in loop.script("accuracy.sh", cwd=str(data.parent.parent))
    assert "lm-eval" in (environment / "complete").read_text()
    result = next((loop.plan / "results" / f"accuracy-{loop.saved['digest']}").rglob("results_*.json"))
    measured = json.loads(result.read_text())
    assert measured["n-samples"]["gsm8k"] == {"original": questions, "effective": questions}
    assert "already measured" in loop.script("accuracy.sh")


def stop(loop: Loop) -> None:
    """As the runbook says."""
    command = next(line for line in (loop.plan / "RUNBOOK.md").read_text().splitlines() if "kill " in line)
    subprocess.run(["bash", "-c", command.split("`")[1]], cwd=loop.plan, check=True)
    deadline = time.monotonic() + 60
    while "is not running" not in loop.script("benchmark.sh", status=(0, 1), FORCE="1"):
        assert time.monotonic() < deadline, "the server does not end"
        time.sleep(1)


def validate(loop: Loop) -> None:
    """Every metric and the KV cache stand beside their prediction, and the score; what was launched was planned."""
    text = loop.planner("validate", loop.plan, status=(0, 1))
    compared = json.loads(json_of(loop, "validate", str(loop.plan), "--format", "json"))
    metrics = {line["metric"] for line in compared["lines"]}
    latencies = product(("mean", "median", "p99"), ("ttft", "tpot", "itl", "e2el"))
    wanted = {f"{statistic}_{name}_ms" for statistic, name in latencies}
    assert wanted | {"output_throughput", "kv_cache_bytes", "kv_cache_tokens"} <= metrics, metrics
    causes = [finding["cause"] for finding in compared["findings"]]
    assert not any("other settings" in cause or "another vLLM" in cause for cause in causes), causes
    assert compared["inside"] or causes, "a miss has a likeliest cause"
    cache = [line for line in compared["lines"] if line["metric"].startswith("kv_cache")]
    assert cache and all(line["measured"] == line["predicted"] for line in cache), cache
    scores = compared["accuracy"]
    assert {score["metric"] for score in scores} == {"exact_match,strict-match", "exact_match,flexible-extract"}
    assert all(score["task"] == "gsm8k" and 0 <= score["value"] <= 1 for score in scores), scores
    print(text)


def kv_cache(loop: Loop) -> None:
    """The real engine cut exactly the blocks that were predicted, and that the model's own numbers give by hand."""
    log = (loop.plan / "logs" / "server.log").read_text()
    tokens = int(re.findall(r"KV cache size: ([\d,]+) tokens", log)[-1].replace(",", ""))
    saved, model = loop.saved, json.loads((loop.model / "config.json").read_text())
    block_size = saved["block_size"]
    block_bytes = 2 * model["num_hidden_layers"] * model["num_key_value_heads"] * model["head_dim"] * 2 * block_size
    blocks = SPACE_GIB * GIB // block_bytes
    print(f"  {SPACE_GIB} GiB in blocks of {block_bytes:,} B: {blocks:,} x {block_size} tokens; logged {tokens:,}")
    assert tokens == blocks * block_size == saved["memory"]["kv_cache_tokens"]
    assert saved["memory"]["kv_cache_bytes"] == SPACE_GIB * GIB


def json_of(loop: Loop, *words: str) -> str:
    """Standard output of a planner command that may end with 0 or 1."""
    command = [sys.executable, "-m", "planner", *words]
    done = subprocess.run(command, env=loop.environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def start_up_log(loop: Loop) -> None:
    """``fit`` beside the real log: everything that it prints of the cache is as predicted."""
    log = loop.plan / "logs" / "server.log"
    words = ("fit", str(loop.model), "--gpu", "cpu", "--startup-log", str(log), "--format", "json")
    lines = {line["line"]: line for line in json.loads(json_of(loop, *words))["startup_log"]}
    for name in ("available KV cache memory", "GPU KV cache size"):
        assert lines[name]["inside"] and lines[name]["lo"] == lines[name]["hi"] == lines[name]["logged"], lines[name]


def refuse_foreign_results(loop: Loop) -> None:
    """Results of another plan, or of another load, are not compared."""
    result = json.loads(loop.result.read_text())
    kept = loop.result.read_text()
    loop.result.write_text(json.dumps({**result, "num_prompts": 7}))
    assert "another load was measured" in loop.planner("validate", loop.plan, status=2)
    loop.result.write_text(kept[: len(kept) // 2])
    assert "is broken" in loop.planner("validate", loop.plan, status=2)
    elsewhere = loop.result.with_name("serve-0123456789ab.json")
    loop.result.rename(elsewhere)
    assert "another plan" in loop.planner("validate", loop.plan, status=2)
    elsewhere.unlink()
    loop.result.write_text(kept)


def check(loop: Loop) -> None:
    """The line that was launched is understood again, and with the same settings."""
    answer = json.loads(json_of(loop, "check", str(loop.plan), "--format", "json"))
    assert answer["starts"] and not answer["flags"], answer["flags"]
    saved = loop.saved
    for name in ("tensor_parallel_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enforce_eager"):
        assert answer["settings"][name] == saved[name], name
    assert answer["settings"]["cpu_kvcache_space"] == SPACE_GIB
    assert LOAD.items() <= answer["load"].items()


def calibrate(loop: Loop) -> None:
    """Learn from the plan's load, measured twice, and from lone requests; no unseen load may come out worse."""
    loop.learned.unlink(missing_ok=True)
    before = predict(loop, UNSEEN, "none")
    seen = (loop.plan, *map(loop.further, ("again", "alone")))
    said = loop.planner("calibrate", *seen, "-o", loop.learned, status=(0, 1, 2))
    print(said)
    if not loop.learned.exists():
        assert "not kept:" in said or "determine none of the factors" in said, "refused for another reason"
        print("  the runs taught nothing: the shipped efficiencies stay")
        return
    after = predict(loop, UNSEEN, str(loop.learned))
    assert after["calibration"] == str(loop.learned)
    first, repeated, *unseen = (
        json.loads(path.read_text()) for path in (loop.result, *map(loop.further, ("again", "unseen", "unseen-again")))
    )
    noise = max(LEAST_NOISE, 2 * apart(first, repeated), 2 * apart(*unseen))
    measured = {name: mean(run[name] for run in unseen) for name in METRICS}
    print(f"  {'not seen by the fit':<22}{'predicted':>12}{'measured':>12}{'calibrated':>12}")
    for name in METRICS:
        print(f"  {name:<22}" + "".join(f"{found[name]:>12.1f}" for found in (before, measured, after)))
    was, is_now = apart(before, measured), apart(after, measured)
    print(f"  off by {was:.1%} before and {is_now:.1%} after; noise of runs of one load {noise:.1%}")
    assert is_now <= was + noise, "the calibration made an unseen load worse"


def apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Mean absolute logarithm of the ratio of two results."""
    return mean(abs(log(one[name] / other[name])) for name in METRICS)


def predict(loop: Loop, load: Mapping[str, int], calibration: str) -> dict[str, Any]:
    """What a benchmark of the plan's server under ``load`` would write."""
    saved = loop.saved
    words = (
        "predict", "serve", loop.model, "--gpu", "cpu", "--engine-version", VERSION, "--calibration", calibration,
        "--random-input-len", load["input_len"], "--random-output-len", load["output_len"], "--num-prompts",
        load["num_prompts"], "--max-concurrency", load["max_concurrency"], "--max-num-seqs", saved["max_num_seqs"],
        "--max-num-batched-tokens", saved["max_num_batched_tokens"], "--max-model-len", saved["max_model_len"],
        "--env", f"VLLM_CPU_KVCACHE_SPACE={SPACE_GIB}", "--enforce-eager", "--format", "json",
    )  # fmt: skip
    found: dict[str, Any] = json.loads(loop.planner(*words))
    return found


def validate_again(loop: Loop) -> None:
    """The same plan, predicted with what was learned, beside the same measurements: it is launched alike."""
    if not loop.learned.exists():
        return
    shutil.rmtree(loop.planned_again, ignore_errors=True)
    loop.planner(*recommend_words(loop, loop.planned_again), "--calibration", loop.learned)
    saved = json.loads((loop.planned_again / "plan.json").read_text())
    assert saved["calibration"] == str(loop.learned)
    assert saved["digest"] == loop.saved["digest"], "a calibration changes what is predicted, not what is launched"
    for name in ("results", "logs"):
        shutil.copytree(loop.plan / name, loop.planned_again / name, dirs_exist_ok=True)
    print(loop.planner("validate", loop.planned_again, status=(0, 1)))


def start(venv: Path, folder: Path) -> int:
    """0 when the server of a plan runs and is scored: all that is not timed, and may have company."""
    folder.mkdir(parents=True, exist_ok=True)
    loop = Loop(venv, folder)
    with step("model with random weights"):
        make_model(loop)
    with step("recommend"):
        recommend(loop)
    try:
        with step("preflight, launch"):
            launch(loop)
        with step("accuracy"):
            accuracy(loop)
    except BaseException:
        stop(loop)
        raise
    return 0


def main(venv: Path, folder: Path) -> int:
    """0 when the loop closes with the server of ``start``."""
    loop = Loop(venv, folder, int((folder / "plan" / "logs" / "server.port").read_text()))
    try:
        with step("benchmark"):
            benchmark(loop)
        with step("benchmark again, and another load"):
            benchmark_again(loop)
    finally:
        with step("stop"):
            stop(loop)
    for part in (validate, kv_cache, start_up_log, refuse_foreign_results, check, calibrate, validate_again):
        with step(part.__name__.replace("_", " ")):
            part(loop)
    print("loop: plan, launch, benchmark, validation and calibration agree")
    return 0


if __name__ == "__main__":
    paths = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
    sys.exit(start(*paths) or main(*paths))
