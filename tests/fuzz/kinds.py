"""The kinds of cases: each makes a command line, and the broken files that it meets, from a random generator."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import hub_faults
import published_models
import relations
from mutations import HOSTILE, NUMBERS, as_bytes, damaged, json_text, mutated, token_text

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
MODELS = (MODEL, "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "Qwen/Qwen2.5-0.5B-Instruct", "google/gemma-3-27b-it")
GPUS = ("h100", "mi300x", "l40s", "a100", "mi300x-cpx", "b200", "h100-mig-3g.40gb")
RUNS = """run_id,bench,gpu,model,input_len,output_len,max_concurrency,num_prompts,mean_ttft_ms,mean_tpot_ms,\
output_throughput
a,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,512,128,8,80,40,8,900
b,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,512,128,32,320,80,10,2900
c,serve,h100-sxm,meta-llama/Llama-3.1-8B-Instruct,1024,256,64,640,160,14,4200
d,throughput,mi300x,meta-llama/Llama-3.1-8B-Instruct,512,128,,200,,,5000
e,latency,mi300x,meta-llama/Llama-3.1-8B-Instruct,32,128,8,,,,
"""
TRACES = (
    "arrival_s,input_len,output_len\n" + "".join(f"{n * 0.3:.1f},{100 + n},{20 + n % 7}\n" for n in range(60)),
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    + "".join(f"2026-05-01 10:{n // 60:02}:{n % 60:02}.5,{n + 5},{n % 9 + 1}\n" for n in range(90)),
    "".join(json.dumps({"timestamp": n * 400, "input_length": 90 + n, "output_length": 30}) + "\n" for n in range(50)),
    # what prompts have in common: blocks by name, and rows of a session
    "".join(
        json.dumps({"timestamp": n * 400, "input_length": 1500 + n, "output_length": 9, "hash_ids": [0, n % 5, n]})
        + "\n"
        for n in range(50)
    ),
    "".join(
        json.dumps({"chat_id": n, "timestamp": n, "input_length": 40, "output_length": 9, "hash_ids": [1, 2, n]}) + "\n"
        for n in range(50)
    ),
    "arrival_s,input_len,output_len,session\n" + "".join(f"{n},{200 * (n // 9 + 1)},{20},{n % 9}\n" for n in range(45)),
)
#: Statements of launch scripts, and what they stand in.
SHELL = (
    "X=1", "Y+=('WORD' \"$X\")", "X=$X$X", "Y+=(\"${Y[@]}\")", "set -- a \"$@\" 'WORD'", "shift 2", "shift WORD",
    "f vllm serve m", "\"$@\" --port 1", "local X=WORD Y", "export X", "return", "exit 1", "break", "f | f && f || f",
    "docker run --entrypoint \"$1\" img \"${@:2}\"", "bash -c 'vllm serve \"$1\" WORD' bash m", "X=WORD vllm serve $Z",
    "echo ${#Y[@]} ${Y[@]:1:2}", "vllm bench latency --model m --input-len $X", "vllm bench serve --model WORD &",
)  # fmt: skip
AROUND = (
    "f() { BODY; }", "g() { BODY; f $X; }", "while true; do BODY; done", "while [[ $1 != -- ]]; do BODY; shift; done",
    "until f; do BODY; done", "for X in 1 2 3 WORD; do BODY; done", "for ((i=0;i<9;i++)); do BODY; done",
    "if [[ -n $X ]]; then BODY; else BODY; fi", "if ((X > 1)); then BODY; elif f; then BODY; fi",
    "case $X in a) BODY;; *) f;; esac", "(BODY)", "BODY; BODY",
)  # fmt: skip
#: Questions that are answered, to which one odd value is added.
SOUND = tuple(
    line.split()
    for line in (
        "fit --gpu h100", "fit --gpu mi300x-cpx --max-model-len 2048",
        "predict latency --gpu h100 --input-len 64 --output-len 16 --batch-size 4",
        "predict throughput --gpu mi300x --input-len 64 --output-len 16 --num-prompts 40",
        "predict serve --gpu h100 --request-rate 3 --num-prompts 60", "predict serve --gpu h100 --max-concurrency 8",
        "predict serve --gpu h100 --class a=4:512:128,ttft=500 --class b=1:100:10 --num-prompts 80",
        "predict serve --gpu h100 --trace trace", "compare --gpu h100 --gpu mi300x --max-concurrency 8",
        "compare --gpu h100 --request-rate 2", "recommend --gpu h100 --goal min-latency",
        "recommend --gpu h100 --request-rate 4 --ttft 800", "recommend --gpu l40s --max-concurrency 16 --tpot 60",
        "recommend --gpu h100 --class a=4:512:128,ttft=500 --class b=1:100:10",
        "recommend --gpu h100 --trace trace --tpot 100", "fleet --gpu h100 --request-rate 4 --ttft 800",
        "fleet --gpu h100 --class a=4:512:128,ttft=500 --class b=1:100:10", "fleet --gpu h100 --trace trace --tpot 100",
    )
)  # fmt: skip
#: What vLLM prints as it starts, and how full its cache is.
LOG = f"""\
INFO 05-01 10:00:00 [utils.py:233] vLLM API server version 0.11.0
INFO 05-01 10:00:00 [utils.py:233] non-default args: {{'model': '{MODEL}', 'max_model_len': 2048, 'max_num_seqs': 64}}
INFO 05-01 10:00:09 [core.py:77] Initializing a V1 LLM engine (v0.11.0) with config: model='{MODEL}', max_seq_len=2048,\
 tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto
INFO 05-01 10:01:30 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 4.1 seconds
INFO 05-01 10:02:44 [gpu_worker.py:298] Available KV cache memory: 54.31 GiB
INFO 05-01 10:02:44 [kv_cache_utils.py:1087] GPU KV cache size: 444,912 tokens
INFO 05-01 10:02:44 [kv_cache_utils.py:1091] Maximum concurrency for 2,048 tokens per request: 217.24x
INFO 05-01 10:02:50 [gpu_model_runner.py:3480] Graph capturing finished in 5 secs, took 0.55 GiB
INFO 05-01 10:05:00 [loggers.py:127] Engine 000: Running: 64 reqs, Waiting: 0 reqs, GPU KV cache usage: 9.8%, \
Prefix cache hit rate: 0.0%, Preemptions: 3
"""
DEFAULTS = """[recommend]
gpu = ["h100"]
random-input-len = 512
goal = "min-latency"
[fit]
max-model-len = 2048
gpu-memory-utilization = 0.9
enforce-eager = true
[predict.serve]
max-concurrency = 32
"""
DEPLOYED = ("compose", "kubernetes", "slurm")


@dataclass
class Case:
    """A command line in a folder, and what belongs to it."""

    words: list[str]
    json: bool = False  #: stdout is JSON where the command says yes or no
    own: set[Path] = field(default_factory=set)  #: files that the case made, which nobody else has to keep in order
    env: dict[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    call: Callable[[], int] | None = None  #: instead of the command line
    hub: Callable[[], Any] | None = None  #: what runs meanwhile
    label: str = ""

    @property
    def title(self) -> str:
        """The command line, for a person."""
        return self.label or shlex.join(["planner", *self.words])[:600]

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Around the run."""
        if self.hub is None:
            yield
            return
        with self.hub() as server:
            self.env["HF_ENDPOINT"] = server.endpoint
            yield


@dataclass(frozen=True)
class Shop:
    """Sound files, made once, that the cases break."""

    plans: dict[str, dict[str, bytes]]  #: name -> file -> content
    calibration: str
    profiles: dict[str, str]
    tools: dict[str, str]  #: results of other tools, by file

    @classmethod
    def stocked(cls, folder: Path) -> Shop:
        """Ask the planner for plans and for a calibration."""
        from planner.output.tuning import Tuner
        from planner.planning import SHIPPED
        from planner.resources import data_dir

        folder.mkdir(parents=True)
        (folder / "runs.csv").write_text(RUNS)
        asked = {
            "one": ["recommend", MODEL, "--gpu", "h100"],
            "targets": ["recommend", MODEL, "--gpu", "mi300x", "--ttft", "800", "--tpot", "60", "--request-rate", "5"],
            "both": ["recommend", MODEL, "--gpu", "h100", "--gpu", "mi300x-cpx"],
        }
        for name, words in asked.items():
            _sure([*words, "-o", str(folder / name)])
        tuned = folder / "tuned"
        goal = ["--goal", "max-throughput", "--gpus", "1", "--input-len", "256", "--output-len", "128"]
        _sure(["recommend", MODEL, "--gpu", "h100", *goal, "-o", str(tuned)])
        Tuner(tuned, lambda _: None).run(SHIPPED, runs=0, minutes=None)
        _sure(["calibrate", str(folder / "runs.csv"), "-o", str(folder / "calibration.toml")], also=1)
        kept = folder / "calibration.toml"
        plans = {name: _content(folder / name) for name in (*asked, "tuned")}
        profiles = {p.stem: p.read_text() for p in sorted(data_dir("hardware").glob("*.toml"))}
        tools = {p.name: p.read_text() for p in (Path(__file__).parents[1] / "evidence/result_files").glob("*.json*")}
        return cls(plans, kept.read_text() if kept.exists() else "", profiles, tools)


def _sure(words: list[str], also: int = 0) -> None:
    from planner.commands.main import main

    err = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        status = main(words)
    if status not in (0, also):
        raise RuntimeError(f"{words}: {status}: {err.getvalue()}")


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def _put(case_files: set[Path], path: Path, content: bytes | str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    case_files.add(path)
    return str(path)


# --- files -------------------------------------------------------------------------------------------------------


def config(random: Random, shop: Shop, work: Path) -> Case:
    """A broken ``config.json``."""
    own: set[Path] = set()
    text = json_text(random, random.choice(published_models.CONFIGS))
    _put(own, work / "m/config.json", as_bytes(random, text))
    if random.random() < 0.2:
        index = {"metadata": {"total_size": random.choice(NUMBERS)}, "weight_map": {"a": random.choice(HOSTILE)}}
        with suppress(ValueError):
            _put(own, work / "m/model.safetensors.index.json", json.dumps(mutated(random, index)))
    if random.random() < 0.2:
        length = random.choice((2, 100, 2**40, 2**63)).to_bytes(8, "little")
        _put(own, work / "m/model.safetensors", length + b'{"a":{"dtype":"BF16","data_offsets":[0,' * 3)
    gpu = random.choice(GPUS)
    words = random.choice(
        (
            ["models", "show", "m"],
            ["fit", "m", "--gpu", gpu],
            ["fit", "m", "--gpu", gpu, "--max-model-len", "2048", "--explain"],
            ["predict", "latency", "m", "--gpu", gpu, "--input-len", "64", "--output-len", "16", "--batch-size", "4"],
        )
    )
    return Case([*words, "--format", "json"], json=words[0] != "models", own=own)


def profile(random: Random, shop: Shop, work: Path) -> Case:
    """A broken GPU profile."""
    own: set[Path] = set()
    text = token_text(random, random.choice(list(shop.profiles.values())))
    _put(own, work / "gpu.toml", as_bytes(random, text))
    model = random.choice(MODELS)
    words = random.choice(
        (
            ["hardware", "show", "gpu.toml"],
            ["fit", model, "--gpu", "gpu.toml", "--format", "json"],
            ["predict", "latency", model, "--gpu", "gpu.toml", "--input-len", "64", "--output-len", "16",
             "--batch-size", "4", "--format", "json"],
            ["compare", model, "--gpu", "gpu.toml", "--gpu", "h100", "--max-concurrency", "8", "--format", "json"],
            ["recommend", MODEL, "--gpu", "gpu.toml", "--goal", "min-latency", "--format", "json"],
        )
    )  # fmt: skip
    return Case(words, json=words[0] != "hardware", own=own)


def plan(random: Random, shop: Shop, work: Path) -> Case:
    """A changed ``plan.json``, with the digest that belongs to it."""
    own: set[Path] = set()
    name = random.choice(("one", "targets"))
    for file, content in shop.plans[name].items():
        _put(own, work / "p" / file, content)
    data = json.loads(shop.plans[name]["plan.json"])
    changed = mutated(random, data)
    if random.random() < 0.85 and isinstance(changed, dict):
        changed = _signed(changed)
    text = json.dumps(changed)
    _put(own, work / "p/plan.json", damaged(random, text) if random.random() < 0.1 else text)
    digest = changed.get("digest") if isinstance(changed, dict) else None
    if random.random() < 0.5 and isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{12}", digest):
        result = _result(data)
        with suppress(ValueError):
            sent = result if random.random() < 0.3 else mutated(random, result)
            _put(own, work / f"p/results/serve-{digest}.json", json.dumps(sent))
    target = random.choice(DEPLOYED)
    words = random.choice(
        (
            ["check", "p", "--format", "json"],
            ["validate", "p", "--format", "json"],
            ["report", "p"],
            ["report", "p", "--format", "svg", "--chart", "pareto"],
            ["report", "p", "--format", "svg", "--chart", "memory"],
            ["deploy", "p", "--target", target, "-o", "out"],
            ["calibrate", "p", "-o", "c.toml"],
        )
    )
    return Case(words, json="json" in words, own=own)


def beside(random: Random, shop: Shop, work: Path) -> Case:
    """What stands beside a plan, broken: results of any tool and of lm_eval, logs, lists; and a file of defaults."""
    own: set[Path] = set()
    for file, content in shop.plans["one"].items():
        _put(own, work / "p" / file, content)
    digest = json.loads(shop.plans["one"]["plan.json"])["digest"]
    accuracy = {"gsm8k": {"exact_match,strict-match": 0.8, "exact_match_stderr,strict-match": 0.01, "alias": "gsm8k"}}
    figures = {"predicted": 1.5, "lo": 1.0, "hi": 2.0, "published": None}
    points = [{"name": name, "key": "avg_latency", **figures} for name in ("one", "two")]
    folder = random.choice((["validate", "p"], ["report", "p"], ["calibrate", "p", "-o", "c.toml"]))
    tool = random.choice(sorted(shop.tools))
    stated = ["--gpu", "h100", "--engine-version", "0.11.0", "--max-num-seqs", "64"]
    log = ["fit", MODEL, "--gpu", "h100", "--startup-log", f"p/results/serve-{digest}.log"]
    texts: dict[str, tuple[str, list[str]]] = {
        f"p/results/accuracy-{digest}/m/results_2026.json": (json_text(random, {"results": accuracy}), folder),
        "p/recommendation.json": (json_text(random, json.loads(shop.plans["one"]["recommendation.json"])), folder),
        "q/points.json": (json_text(random, {"digest": digest, "points": points}), ["validate", "q"]),
        f"q/results/one-{digest}.json": (json_text(random, {"avg_latency": 1.2}), ["validate", "q"]),
        f"p/results/{tool}": (
            _broken_records(random, shop.tools[tool]),
            random.choice((["calibrate", f"p/results/{tool}", *stated, "-o", "c.toml"],
                           ["validate", "p", "--result", f"p/results/{tool}"])),
        ),
        "p/logs/server.log": (token_text(random, LOG), folder),
        f"p/results/serve-{digest}.log": (token_text(random, LOG), log),
        "planner.toml": (
            token_text(random, DEFAULTS),
            random.choice((["fit", MODEL, "--gpu", "h100"], ["recommend", MODEL],
                           ["predict", "serve", MODEL, "--gpu", "h100"])),
        ),
    }  # fmt: skip
    file, (text, words) = random.choice(list(texts.items()))
    if words[0] in ("validate", "calibrate", "report"):
        _put(
            own,
            work / f"p/results/serve-{digest}.json",
            json.dumps(_result(json.loads(shop.plans["one"]["plan.json"]))),
        )
    if file != "q/points.json":
        _put(own, work / "q/points.json", json.dumps({"digest": digest, "points": points}))
    _put(own, work / f"q/results/two-{digest}.json", json.dumps({"avg_latency": 1.2}))
    _put(own, work / file, as_bytes(random, text))
    return Case(
        [*words, *(["--format", "json"] if words[0] in ("validate", "fit") else [])],
        json=words[0] == "validate",
        own=own,
    )


def _broken_records(random: Random, text: str) -> str:
    try:
        return json_text(random, json.loads(text))
    except ValueError:  # an object on each line
        lines = text.splitlines()
        number = random.randrange(len(lines))
        return "\n".join((*lines[:number], json_text(random, json.loads(lines[number])), *lines[number + 1 :]))


def _result(data: dict[str, Any]) -> dict[str, Any]:
    """What ``vllm bench serve`` may have written of a plan."""
    load = data["workload"]
    return {
        "model_id": data["model"], "num_prompts": load["num_prompts"], "completed": load["num_prompts"],
        "max_concurrency": load["max_concurrency"], "duration": 100.0, "request_throughput": 1.0,
        "total_input_tokens": 1024 * load["num_prompts"], "total_output_tokens": 1024 * load["num_prompts"],
        "output_throughput": 1000.0, **{f"{s}_{m}_ms": 50.0 for s in ("mean", "median", "p99")
                                        for m in ("ttft", "tpot", "itl", "e2el")},
    }  # fmt: skip


def _signed(data: dict[str, Any]) -> dict[str, Any]:
    """The plan with its own digest, where it is a plan at all."""
    from planner.planning.plan import PlanFile

    unsigned = {**data, "digest": "0"}
    try:
        PlanFile.from_json(json.dumps(unsigned))
    except ValueError as error:
        told = re.search(r"its digest is ([0-9a-f]{12})", str(error))
        if told:
            return {**data, "digest": told[1]}
    except Exception:  # the command itself has to answer for it
        pass
    return data


def calibration(random: Random, shop: Shop, work: Path) -> Case:
    """A broken calibration file."""
    own: set[Path] = set()
    memory = (
        '[[sampler]]\nsince = "0.20"\nuntil = "0.28"\nwhere = { gpu = "h100-sxm", tensor_parallel_size = 1 }\n'
        'value = 1.5\nlow = 1.0\nhigh = 2.0\nunit = "GiB"\nlogs = ["a"]\nnote = "x"\n'
    )
    text = random.choice(
        (shop.calibration or memory, memory, memory.replace("sampler", "non_torch").replace("GiB", "MiB"))
    )
    _put(own, work / "c.toml", as_bytes(random, token_text(random, text)))
    _put(own, work / "runs.csv", RUNS)
    words = random.choice(
        (
            ["fit", MODEL, "--gpu", "h100", "--calibration", "c.toml", "--format", "json"],
            ["predict", "latency", MODEL, "--gpu", "h100", "--input-len", "64", "--output-len", "16", "--batch-size",
             "4", "--calibration", "c.toml", "--format", "json"],
            ["evaluate", "runs.csv", "--calibration", "c.toml", "--format", "json"],
            ["calibrate", "runs.csv", "-o", "c.toml"],
        )
    )  # fmt: skip
    return Case(words, json="json" in words, own=own)


def runs(random: Random, shop: Shop, work: Path) -> Case:
    """A broken table of measured runs, or a broken result of ``vllm bench``."""
    own: set[Path] = set()
    rows = list(csv.reader(io.StringIO(RUNS)))
    for _ in range(random.choice((1, 1, 2, 4))):
        row = random.choice(rows)
        row[random.randrange(len(row))] = random.choice((*HOSTILE, *map(str, NUMBERS[:10]), "1e17", "10x conc"))
    out = io.StringIO()
    with suppress(csv.Error):
        csv.writer(out).writerows(rows)
    text = damaged(random, out.getvalue()) if random.random() < 0.3 else out.getvalue()
    _put(own, work / "runs.csv", as_bytes(random, text))
    words = random.choice((["evaluate", "runs.csv", "--format", "json"], ["calibrate", "runs.csv", "-o", "c.toml"]))
    return Case(words, json="json" in words, own=own)


def trace(random: Random, shop: Shop, work: Path) -> Case:
    """A broken trace, or one that is no file."""
    own: set[Path] = set()
    if random.random() < 0.02:
        os.mkfifo(work / "trace")
    else:
        _put(own, work / "trace", as_bytes(random, token_text(random, random.choice(TRACES))))
    words = ["recommend", MODEL, "--gpu", "h100", "--trace", "trace", "--tpot", "100", "--format", "json"]
    if random.random() < 0.3:
        words[0] = "fleet"
    if random.random() < 0.3:
        words += ["--router", random.choice(("round-robin", "least-loaded", "prefix-aware"))]
    if random.random() < 0.3 and words[0] == "recommend":
        words += ["--kv-offloading-size", random.choice(("0", "0.001", "1", "64", "1e9", "nan"))]
    return Case(words, json=True, own=own)


def tuning(random: Random, shop: Shop, work: Path) -> Case:
    """A tuning that has begun, with a broken state, on a machine where nothing starts."""
    own: set[Path] = set()
    for file, content in shop.plans["tuned"].items():
        _put(own, work / "p" / file, content)
    state = json.dumps(mutated(random, json.loads(shop.plans["tuned"]["tune/state.json"])))
    _put(own, work / "p/tune/state.json", damaged(random, state) if random.random() < 0.1 else state)
    for script in (work / "p").rglob("*.sh") if random.random() < 0.9 else ():
        script.chmod(0o755)
    for path in [work / "bin" / name for name in ("docker", "vllm", "nvidia-smi")]:
        _put(own, path, "#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
    words = ["tune", "p", "--runs", str(random.choice((1, 1, 2, 50)))]
    words += random.choice(([], ["--retry"], ["--minutes", "5"])) + random.choice(([], ["--format", "json"]))
    return Case(words, json="json" in words, own=own, env={"PATH": f"{work / 'bin'}:{os.environ['PATH']}"})


# --- scripts -----------------------------------------------------------------------------------------------------


def _statement(random: Random, depth: int = 3) -> str:
    """A statement with others in it."""
    if not depth or random.random() < 0.3:
        return random.choice(SHELL).replace("WORD", random.choice(HOSTILE).replace("'", "").replace("\n", " "))
    whole = random.choice(AROUND).replace("WORD", "w")
    while "BODY" in whole:
        whole = whole.replace("BODY", _statement(random, depth - 1).removesuffix("&"), 1)
    return whole


def scripts(random: Random, shop: Shop, work: Path) -> Case:
    """Somebody's launch script: a plan's own with other statements in it, or made of them; some are damaged."""
    own = random.choice(("launch.sh", "benchmark.sh", ""))
    lines = shop.plans["one"][own].decode().splitlines() if own else [f'vllm serve {MODEL} -tp $X $Y "$@"']
    for _ in range(random.choice((1, 3, 8))):
        lines.insert(random.randrange(len(lines) + 1) if not own else len(lines), _statement(random))
    text = "\n".join(lines)
    if random.random() < 0.3:
        text = token_text(random, text) if random.random() < 0.5 else damaged(random, text)
    made: set[Path] = set()
    _put(made, work / "s.sh", as_bytes(random, text) if random.random() < 0.1 else text.encode("utf-8", "replace"))
    words = ["check", "s.sh", "--gpu", random.choice(GPUS), *random.choice(([], ["--format", "json"]))]
    return Case(words, json="json" in words, own=made)


# --- the hub -----------------------------------------------------------------------------------------------------


def hub(random: Random, shop: Shop, work: Path) -> Case:
    """A hub that misbehaves."""
    words = ["models", "show", "org/model", "--format", "json", "--timeout", "2"]
    return Case(words, env={"HF_HUB_OFFLINE": "0"}, hub=partial(hub_faults.faulty, random))


# --- options and values ------------------------------------------------------------------------------------------


def options(random: Random, shop: Shop, work: Path) -> Case:
    """A command with options of any value, or one that is answered with one such option."""
    from planner.commands.declare import COMMANDS

    if random.random() < 0.4:
        return _nearly_sound(random, work)
    name = random.choice(sorted(COMMANDS.keys() - {"ui"}))  # which ends when it is told to
    words = [*name.split(), *random.choice(([MODEL], [MODEL], [random.choice(MODELS)], [], [random.choice(HOSTILE)]))]
    if name in ("report", "validate", "deploy"):
        words = [name, "p"]
    if random.random() < 0.8 and name not in ("models", "hardware", "evaluate", "calibrate"):
        words += ["--gpu", random.choice(GPUS)]
    spellings = _spellings(name)
    for _ in range(random.choice((0, 1, 2, 3, 5))):
        spelling, kind = random.choice(spellings)
        words.append(spelling)
        if kind is not bool:
            words.append(_value(random, spelling, kind))
    own: set[Path] = set()
    for file, content in shop.plans["one"].items():
        _put(own, work / "p" / file, content)
    clean = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]
    return Case(clean, own=own)


def _nearly_sound(random: Random, work: Path) -> Case:
    own: set[Path] = set()
    _put(own, work / "trace", random.choice(TRACES[:4]))
    sound = random.choice(SOUND)
    name = " ".join(sound[: sound.index("--gpu")])
    spelling, kind = random.choice(_spellings(name))
    added = [spelling] if kind is bool else [spelling, _value(random, spelling, kind)]
    words = [*name.split(), MODEL, *sound[sound.index("--gpu") :], *added]
    clean = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]
    return Case([*clean, *random.choice(([], ["--format", "json"]))], own=own)


def _spellings(name: str) -> list[tuple[str, Any]]:
    from planner.commands.declare import COMMANDS, Argument

    found: list[tuple[str, Any]] = []
    for parameter in COMMANDS[name].parameters.values():
        option = parameter.option
        if isinstance(option, Argument) or parameter.name == "output":
            continue
        kind = parameter.kind
        for spelling in option.names or (parameter.flag,):
            plain = kind in (bool, bool | None)
            found += [(one, bool if plain else kind) for one in spelling.split("/") if one.startswith("--")]
    return found or [("--format", str)]


_SENSIBLE = {
    "--format": ("json", "csv", "markdown", "table"), "--goal": ("min-latency", "max-throughput", "balanced"),
    "--gpu": GPUS, "--workload": ("chat", "rag", "code", "multi-turn-chat", "coding-agent"),
    "--class": ("a=4:512:128", "b=1:100:10,ttft=500,priority=0", "c=0.5:2000:200,tpot=50,priority=-5", "d=1:1e5:1"),
    "--scheduling-policy": ("priority", "fcfs"), "--kv-offloading-size": ("0.001", "1", "64"),
    "--router": ("round-robin", "least-loaded", "prefix-aware"), "--weight-dtype": ("fp8", "int4-awq", "bf16", "mxfp4"),
    "--kv-cache-dtype": ("auto", "fp8", "fp8_e5m2"), "--engine-version": ("0.6.0", "0.8.5", "0.11.0", "0.27.1"),
    "--speculative-config": ('{"method":"ngram","num_speculative_tokens":2}', "[" * 50_000),
    "--price": ("h100=2", "mi300x=0", "h100=nan"),
}  # fmt: skip


def _value(random: Random, spelling: str, kind: Any) -> str:
    how = random.random()
    if spelling in _SENSIBLE and how < 0.7:
        return random.choice(_SENSIBLE[spelling])
    if how < 0.5:
        return str(random.choice((1, 2, 4, 8, 16, 100, 256, 512, 1000, 0.5, 0.9, 3.5)))
    return str(random.choice((*NUMBERS, *HOSTILE)))


def classes(random: Random, shop: Shop, work: Path) -> Case:
    """Classes of requests together, some of them broken."""
    asked = random.choice((["predict", "serve"], ["fleet"], ["recommend"]))
    words = [*asked, random.choice((MODEL, *MODELS)), "--gpu", random.choice(GPUS)]
    for text in random.choices(_SENSIBLE["--class"], k=random.choice((1, 2, 2, 3, 9))):
        words += ["--class", token_text(random, text) if random.random() < 0.3 else text]
    words += random.choice(([], ["--scheduling-policy", "priority"], ["--request-rate", "3"], ["--num-prompts", "50"]))
    clean = [word.replace("\0", "").encode("utf-8", "replace").decode() for word in words]
    return Case([*clean, "--format", "json"], json=True)


def templates(random: Random, shop: Shop, work: Path) -> Case:
    """Values that mean something to a shell, YAML or Markdown, in everything that is written."""
    own: set[Path] = set()
    name = random.choice(HOSTILE).replace("/", "_").replace("\0", "").strip()[:60] or "m"
    with suppress(OSError, ValueError):
        _put(own, work / name / "config.json", json.dumps(published_models.LLAMA_8B))
    secret = "hf_" + "".join(random.choice("abcdefghij0123456789") for _ in range(34))
    value = random.choice((*HOSTILE, secret)).replace("\0", "")
    common = ["--gpu", random.choice(("h100", "mi300x", "mi300x-cpx"))]
    words = random.choice(
        (
            ["recommend", f"./{name}", *common, "--input-len", "64", "--output-len", "16", "-o", "out"],
            ["workflow", random.choice(("quickstart", "offline", "list", "sweep")), f"./{name}", *common, "-o", "out"],
            ["deploy", "p", "--target", random.choice(DEPLOYED), *_site(random, value), "-o", "out"],
            ["check", *common, "--", "docker", "run", "-e", f"HF_TOKEN={value}", "vllm/vllm-openai:v0.11.0", "--model",
             f"./{name}", "--max-model-len", "2048"],
            ["recommend", MODEL, *common, "-o", f"out/{name}"],
        )
    )  # fmt: skip
    for file, content in shop.plans["one"].items():
        text = content
        if file == "plan.json":
            data = json.loads(content)
            data["docker_args"] = [
                *data["docker_args"],
                *random.choice(([], ["--env", f"X={value}"], ["--label", value])),
            ]
            data["why"] = [*data.get("why", []), value]
            text = json.dumps(_signed(data)).encode("utf-8", "replace")
        _put(own, work / "p" / file, text)
    return Case(words, own=own, secrets=())


def _site(random: Random, value: str) -> list[str]:
    from planner.commands.declare import COMMANDS

    del COMMANDS
    flag = random.choice(("--name", "--namespace", "--image", "--storage-class", "--node-selector", "--toleration"))
    return [flag, value] if random.random() < 0.8 else []


def physics(random: Random, shop: Shop, work: Path) -> Case:
    """A relation that holds for every server."""
    asked = relations.draw(random)
    return Case([], call=partial(relations.judge, asked), label=f"relation {asked}")


KINDS: dict[str, Callable[[Random, Shop, Path], Case]] = {
    "config": config, "profile": profile, "plan": plan, "calibration": calibration, "runs": runs, "trace": trace,
    "beside": beside, "tuning": tuning,
    "scripts": scripts, "hub": hub, "options": options, "classes": classes, "templates": templates, "physics": physics,
}  # fmt: skip
