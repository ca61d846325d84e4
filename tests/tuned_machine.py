"""A machine that can be tuned: its servers are as fast as a formula says, and some do not fit.

Docker is a stand-in: it remembers the server that runs, and answers a benchmark with a whole result of ``vllm bench``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from script_machine import Machine

from planner.commands.recommend import recommend_plans
from planner.hardware.profiles import load_profile
from planner.output.scripts.emission import Emission, render_scripts
from planner.output.scripts.folder import write_folder
from planner.output.tuning import Tuner
from planner.planning.calibration import SHIPPED
from planner.planning.plan import PlanFile

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"
_DOCKER = r'''#!{python} -IS
import os, sys
state, words = {state!r}, sys.argv[1:]
with open(state + "/calls", "ab") as calls:
    calls.write(b"".join(os.fsencode(word) + b"\0" for word in (str(len(words) + 1), "docker", *words)))
if words[0] in ("info", "image"):  # without the imports: most calls of a preflight.sh
    print("Runtimes: nvidia runc" if words[0] == "info" else "")
    sys.exit()
import csv, json, time
from pathlib import Path
state = Path(state)
server = state / "server.json"
up = json.loads(server.read_text()) if server.exists() else None

def after(flag):
    return words[words.index(flag) + 1]

def rate(argv):
    """Output tokens/s: halfway to its most at a batch of 64; one token budget is best."""
    best = int((state / "best").read_text())
    value = lambda flag: int(argv[argv.index(flag) + 1]) if flag in argv else 1
    tp, batch, tokens = map(value, ("--tensor-parallel-size", "--max-num-seqs", "--max-num-batched-tokens"))
    return 15000 * tp * {{1: 1.0, 2: 0.9}}.get(tp, 0.8) * batch / (batch + 64) * (1.6 if tokens == best else 1.0)

verb = words[0]
if verb == "info":
    print("Runtimes: nvidia runc")
elif verb == "ps":
    if up and up["name"] in after("--filter"):
        print("0123abcd")
elif verb == "port":
    print("127.0.0.1:8000")
elif verb == "run":
    if (state / "run_fails").exists():
        sys.exit("port is already allocated")
    Path(after("--cidfile")).write_text("0123abcd-full")
    bound = [next(csv.reader([words[at + 1]])) for at, word in enumerate(words) if word == "--mount"]
    fields = next(one for one in bound if "target=/results" in one)
    folder = next(field.partition("=")[2] for field in fields if field.startswith("source="))
    batch = int(after("--max-num-seqs"))
    limit = state / "largest_batch"
    if not limit.exists() or batch <= int(limit.read_text()):
        server.write_text(json.dumps({{"name": after("--name"), "argv": words, "results": folder}}))
    (state / "launched").touch()
elif verb == "stop":
    server.unlink(missing_ok=True)
elif verb == "logs":
    if up is None and (state / "largest_batch").exists():
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
elif verb == "exec" and "--result-filename" in words:
    (state / "benchmarking").touch()
    while (state / "slow").exists():
        time.sleep(0.05)
    if up is None:
        sys.exit(1)
    sent, flying = int(after("--num-prompts")), int(after("--max-concurrency"))
    tok_in, tok_out = int(after("--random-input-len")), int(after("--random-output-len"))
    tok_per_s = rate(up["argv"])
    duration = sent * tok_out / tok_per_s
    e2el = flying * tok_out / tok_per_s * 1000
    tpot = e2el * 0.95 / (tok_out - 1)
    late = (state / "late").read_text().strip() if (state / "late").exists() else "none"
    budget = up["argv"][up["argv"].index("--max-num-batched-tokens") + 1]
    figures = {{
        f"{{statistic}}_{{name}}_ms": value
        for name, value in (("ttft", e2el / 20), ("tpot", tpot), ("itl", tpot), ("e2el", e2el))
        for statistic in ("mean", "median", "p50", "p90", "p95", "p99")
    }}
    if late in ("all", budget):
        figures["p95_tpot_ms"] *= 20
    result = {{
        "model_id": after("--model"), "num_prompts": sent, "completed": sent, "failed": 0, "max_concurrency": flying,
        "request_rate": "inf", "duration": duration, "total_input_tokens": sent * tok_in,
        "total_output_tokens": sent * tok_out, "request_throughput": sent / duration, "output_throughput": tok_per_s,
        "total_token_throughput": sent * (tok_in + tok_out) / duration, **figures,
    }}
    (Path(up["results"]) / after("--result-filename")).write_text(json.dumps(result))
'''


def _short() -> Any:
    """Searches replay two requests for each place, with two token budgets beside that of the plan."""
    return patch.multiple("planner.planning.defaults", TOKEN_BUDGETS=(4096, 16384), PROMPTS_PER_SLOT=2)


@cache
def plan_file(*, targets: bool = False) -> PlanFile:
    """A plan for an H100 of the machine below, of short requests; with ``targets`` for 64 of them in flight."""
    command = f"planner recommend {MODEL} --gpu {GPU} --goal max-throughput --gpus 1 --kv-cache-dtype fp8 -o plans"
    asked = {"max_concurrency": 64, "tpot": 50.0} if targets else {}
    lengths = {"input_len": 64, "output_len": 16}
    with _short():
        found = recommend_plans(MODEL, GPU, goal="max-throughput", gpus=1, kv_cache_dtype="fp8", **lengths, **asked)
    assert found.best
    return PlanFile(planner_version="0.0.0", command=command, goal="max-throughput", plan=found.best)


@cache
def begun(*, targets: bool = False) -> dict[str, bytes]:
    """What a tuning of that plan writes before its first run: name to content. It takes seconds, so tests share it."""
    with TemporaryDirectory() as folder:
        emission = Emission(plan_file(targets=targets), load_profile(GPU), 16_000_000_000, (), tunes=True)
        write_folder(Path(folder), render_scripts(emission), force=True)
        with _short(), patch.object(Tuner, "_check"):  # whatever runs the tests
            Tuner(Path(folder), lambda _: None).run(SHIPPED, runs=0, minutes=None)
        tune = Path(folder) / "tune"
        return {str(path.relative_to(folder)): path.read_bytes() for path in tune.rglob("*") if path.is_file()}


class TunedMachine(Machine):
    """The folder of a plan, and a machine that serves it."""

    def __init__(self, root: Path, *, targets: bool = False) -> None:
        file = plan_file(targets=targets)
        super().__init__(root, Emission(file, load_profile(GPU), 16_000_000_000, (), tunes=True))
        for name, content in begun(targets=targets).items():
            path = self.plan / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(0o755)
        self.set(best=8192)
        self.program(self.bin / "docker", _DOCKER.format(python=sys.executable, state=str(self.state)))
        self.program(self.bin / "curl", f"#!/bin/bash\n[[ -e {str(self.state / 'server.json')!r} ]]\n")
        (self.bin / "planner").symlink_to(Path(sys.executable).with_name("planner"))

    @contextmanager
    def here(self) -> Iterator[None]:
        """This program runs on the machine."""
        with patch.dict(os.environ, self.environment() | self.variables, clear=True):
            yield

    def tune(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``planner tune`` as a program of its own, to its end."""
        return self.run("tune.sh", *words, **self.variables)

    @property
    def variables(self) -> dict[str, str]:
        paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "XDG_DATA_HOME": str(self.home)}
        return {**paths, "HF_TOKEN": "of the stand-in"}  # some of the settings serve a gated checkpoint

    def killed(self, how: signal.Signals, when: str = "benchmarking") -> tuple[int, str]:
        """``planner tune`` gets a signal as soon as the file ``when`` is there; its status, and what it printed."""
        return self.interrupt("tune.sh", when, how, **self.variables)

    @property
    def results(self) -> list[str]:
        """The results that were measured, in order; warm-ups keep none."""
        return [
            call[call.index("--result-filename") + 1] for call in self.docker("exec") if "--result-filename" in call
        ]

    @property
    def serves(self) -> bool:
        """Whether a server is up."""
        return (self.state / "server.json").exists()

    def idle(self, seconds: float = 20) -> bool:
        """Whether no server is up, at the latest after so many seconds."""
        deadline = time.monotonic() + seconds
        while self.serves and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.serves

    def wait_for_process(self) -> int:
        """The process of the script that measures, once its client is at work."""
        deadline = time.monotonic() + 60
        while not (self.state / "benchmarking").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return int(json.loads((self.plan / "tune" / "state.json").read_text())["process"])
