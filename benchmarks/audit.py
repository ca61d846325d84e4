"""Every item of the source documents that a program can compare, held against what the workflows render.

The items come from the documents' own text: real bash runs their code blocks, in which each program is replaced by one
that writes down its words and its variables; tables, results and scores are read as they are printed.
"""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import starmap
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from typing import Any

from planner import Serving
from planner.engine import split_command
from planner.errors import PlannerError
from planner.model import resolve_model
from planner.output.tables.fit import fit_object
from planner.output.workflows.documents import commands, list_workflows
from planner.output.workflows.offline import OFFLINE_SCRIPTS, offline_points
from planner.output.workflows.printed import PrintedFigure, changed_options, printed_beside
from planner.output.workflows.render import plan_workflow
from planner.output.workflows.subject import Choice, Subject
from planner.planning.advice import advice

#: The documents by a part of their first line.
TITLES = {
    "AMD MI355": "amd-mi355", "NVIDIA Blackwell": "nvidia", "Steps to Run": "amd-cpx",
    "benchmarks on AMD MI300x": "amd-2024", "with vLLM on the AMD Instinct": "amd-2025",
}  # fmt: skip
FAILURES = ("silent", "missing", "wrong")
#: One option under several names.
SAME = {"-tp": "--tensor-parallel-size", "--random-input-len": "--input-len", "--random-output-len": "--output-len"}
GPUS = {
    "MI300X": "mi300x", "MI325X": "mi325x", "MI355": "mi355x", "B200": "b200-sxm", "Hopper": "h200-sxm",
    "CPX/NPS4": "mi300x-cpx-nps4", "CPX-NPS1": "mi300x-cpx",
}  # fmt: skip
_PROGRAMS = r"^\s*(?:sudo|docker|git|pip3?|python3?|vllm|lm_eval|curl|huggingface-cli|rocm-smi|export|\./|[A-Z_]+=\S)"
_OF_ENGINE = re.compile(r"(?:VLLM|NCCL|HIP|SAFETENSORS|PYTORCH|DOCKER)_\w+")
_RECORD = """
command_not_found_handle() {
  for name in $(compgen -e); do printf '%s=%s\\0' "$name" "${!name}"; done
  printf '\\0'
  printf '%s\\0' "$@"
  printf '\\1\\0'
}
said() { command_not_found_handle "$@"; }
cd() { :; }
nvidia-smi() { echo "$CAPABILITY"; }
model='$model' HF_TOKEN='$HF_TOKEN' HF_HOME='$HF_HOME'
"""


@dataclass(frozen=True)
class Item:
    """One statement of a document, and what became of it."""

    document: str
    what: str
    printed: str
    verdict: str  #: as printed, said (differs, and the user is told), by hand (no program compares it) or a failure
    here: str = ""


# --- the text ---------------------------------------------------------------------------------------------------------


def read_documents(folder: Path) -> dict[str, str]:
    """The text of each document in a folder by its id."""
    texts = (path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt")))
    return {name: text for text in texts for title, name in TITLES.items() if title in text.splitlines()[0]}


def commands_in(document: str, text: str) -> list[dict[str, Any]]:
    """The commands of a document's code blocks: their words, their variables, and the capability that they are for."""
    blocks = [block.partition("\n")[2] for block in text.split("```")[1::2]]
    blocks += re.findall(r"code-block:: bash\n\n((?: {4}.*\n|\n)+)", text)
    blocks = [block for block in blocks if re.search(_PROGRAMS, block, re.MULTILINE)]
    blocks = [*re.findall(r"`(docker pull [^`\n]+)`", text), *blocks]
    exported = [set(re.findall(r"^ *export (\w+)", block, re.MULTILINE)) for block in blocks]
    found, before, carried = list[dict[str, Any]](), "", set[str]()
    for place, block in enumerate(blocks):
        lines = [line for line in block.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if all(line.lstrip().startswith("export") for line in lines):
            # variables for all that follows, unless later blocks set them again
            if not any(exported[place] & later for later in exported[place + 1 :]):
                before, carried = before + block, carried | exported[place]
            continue
        of_each = {capability: list(_run(before + block, capability)) for capability in ("10.0", "9.0")}
        for blackwell, hopper in zip(*of_each.values(), strict=True):
            several = [("", blackwell)] if blackwell == hopper else [("10.0", blackwell), ("9.0", hopper)]
            for capability, (words, env) in several:
                if words[-1] != "-h":  # of the engine's variables other programs get those of their own block
                    own = env if _is_vllm(words) else {name: env[name] for name in env if name not in carried}
                    found.append({"document": document, "words": words, "env": own, "capability": capability})
    return found


def _is_vllm(words: Sequence[str]) -> bool:
    return split_command(words)[0] is not None or words[0].endswith("report.sh")


def _run(block: str, capability: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    script = re.sub(r"\\[ \t]+\n", "\\\n", block)  # blanks behind a backslash: no shell joins these lines
    script = re.sub(r"(export \w+) = ", r"\1=", script)
    script = re.sub(r"(?<!&)&\s*$", "", script, flags=re.MULTILINE)  # one after the other
    script = re.sub(r"<([^<>\n]*)>", r"'<\1>'", script)  # to be filled in
    script = re.sub(r"^( *)((?:\./|/app/)\S+)", r"\1said \2", script, flags=re.MULTILINE)
    script = f"{_RECORD}{script}\n"
    env = {"CAPABILITY": capability, "PATH": "/nonexistent"}  # no program runs, whatever it is
    bash = which("bash") or "bash"
    with TemporaryDirectory() as folder:
        done = subprocess.run([bash, "--norc", "-c", script], capture_output=True, env=env, cwd=folder, check=False)
    for record in done.stdout.decode().split("\1\0")[:-1]:
        variables, _, words = record.partition("\0\0")
        named = dict(one.split("=", 1) for one in variables.split("\0") if _OF_ENGINE.match(one))
        yield words.rstrip("\0").split("\0"), named


def rows_in(text: str) -> Iterator[tuple[tuple[str, ...], float]]:
    """The rows of the tables of a document: model and numbers of a run, with the figure in the last column."""
    model = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"[\d.]+", cells[-1]) and len(cells) in (7, 8):
            if named := re.search(r"\((\S+/\S+)\)", cells[0]):
                model = named[1]
            yield (model, *cells[3:-1]), float(cells[-1])


def results_in(text: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The result blocks of a document: the model in the line above, and each figure by its printed name."""
    for model, block in re.findall(r"^`(\S+)` TP1[^\n]*\n```\n(=+ Serving Benchmark.*?)```", text, re.M | re.S):
        yield model, {n.strip(): float(v) for n, v in re.findall(r"^([^:\n]+):\s+([\d.]+)\s*$", block, re.M)}


def scores_in(text: str) -> Iterator[tuple[str, str, float, float]]:
    """The scores of a document: the line of lm_eval above a table, filter, value and standard error."""
    above = ""
    for line in text.splitlines():
        above = line if line.startswith(("local-completions", "vllm (")) else above
        if found := re.match(
            r"\|[^|]*\|[^|]*\|\s*([\w-]+)\s*\|[^|]*\|\s*exact_match.*\|\s*([\d.]+)\|±\s*\|\s*([\d.]+)\|", line
        ):
            yield above, found[1], float(found[2]), float(found[3])


# --- the workflows ----------------------------------------------------------------------------------------------------


@cache
def subject_of(name: str, **choice: Any) -> Subject:
    return Subject(list_workflows()[name], Choice(**choice))


@cache
def scripts_of(document: str) -> tuple[str, str]:
    """What all scripts made from a document run, and what they and WORKFLOW.md say."""
    run, said = list[str](), list[str]()
    for name, workflow in list_workflows().items():
        if document in [one.id for one in workflow.documents]:
            older = document == "amd-2024" and workflow.engine_version not in (None, "0.6.3")
            with_version = Choice(engine_version="0.6.3") if older else Choice()
            try:
                files = plan_workflow(workflow, with_version, command=f"planner workflow {name}")
            except PlannerError:
                continue
            for path, text in files.items():
                for line in text.splitlines() if path.endswith((".sh", ".conf", ".md")) else ():
                    spoken = path.endswith(".md") or line.lstrip().startswith("#")
                    (said if spoken else run).append(line.replace("\\_", "_"))
    return "\n".join(run), "\n".join(said)


def judge_commands(facts: Iterable[Mapping[str, Any]]) -> Iterator[Item]:
    """Each word of each command."""
    for fact in facts:
        program, _ = split_command(fact["words"])
        yield from _of_vllm(fact) if program else _of_others(fact)


def _of_vllm(fact: Mapping[str, Any]) -> Iterator[Item]:
    places = list(places_of(fact))
    name = " ".join(fact["words"])[:48]
    for word, value in words_of(fact["words"], fact.get("env", {})).items():
        printed = f"{word} {value}".strip()
        if not places:
            yield Item(fact["document"], name, printed, "missing", "no workflow renders it")
        elif "<" in value or "$" in value:
            yield Item(fact["document"], name, printed, "by hand", "to be filled in")
        else:
            yield Item(
                fact["document"], name, printed, *_worst(place(word, value) for place in starmap(_place, places))
            )


def _worst(verdicts: Iterable[tuple[str, str]]) -> tuple[str, str]:
    order = ("as printed", "said", "silent")
    return max(verdicts, key=lambda one: order.index(one[0]))


@dataclass(frozen=True)
class _Place:
    """A rendered command: its options, and those that WORKFLOW.md lists as changed."""

    name: str
    rendered: tuple[Mapping[str, str], ...]  #: of several points each
    listed: Mapping[str, str]

    def __call__(self, word: str, value: str) -> tuple[str, str]:
        if any(_same(one.get(word), value) for one in self.rendered):
            return "as printed", ""
        if word in self.listed:
            return "said", f"{self.name}: {self.listed[word] or 'left out'}"
        return "silent", f"{self.name}: {self.rendered[0].get(word, 'left out')}"


@cache
def _place(name: str, script: str, choice: tuple[tuple[str, Any], ...]) -> _Place:
    found = subject_of(name, **dict(choice))
    rendered = tuple(words_of(words, env) for words, env in _rendered(found, script))
    scripts = (script, *_offline(found, script))
    listed = {one["word"]: one["here"] for one in changed_options(found) if one["script"] in scripts}
    return _Place(f"{name} {script}".strip(), rendered, listed)


def _offline(found: Subject, script: str) -> list[str]:
    return [] if script else [one for one in found.workflow.scripts if one in OFFLINE_SCRIPTS]


def _rendered(found: Subject, script: str) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    if script:
        yield (found.plan.serve_argv if script == "launch.sh" else found.plan.bench_argv), found.plan.env
    else:
        yield from ((point.argv, point.env) for point in offline_points(found))


def places_of(fact: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[tuple[str, Any], ...]]]:
    """The workflows and scripts that render a command of vLLM: at its document's version, on its GPU, for its model."""
    own = [
        one for one in commands().values()
        if list(one.argv) == fact["words"]
        and (one.document.id, one.capability) == (fact["document"], fact.get("capability", ""))
    ]  # fmt: skip
    for command in own:
        for name, workflow in list_workflows().items():
            choice: dict[str, Any] = {}
            if fact["document"] == "amd-2024" and workflow.engine_version != "0.6.3":
                choice["engine_version"] = "0.6.3"
            named = [model for model in workflow.models if model in [word.rstrip("/") for word in command.argv]]
            choice |= {"model": named[0]} if named else {}
            if command.capability:
                choice["gpu"] = {"10.0": "b200-sxm", "9.0": "h200-sxm"}[command.capability]
            for kind, script in (("serve", "launch.sh"), ("client", "benchmark.sh"), ("offline", "")):
                if command in getattr(workflow, kind) and choice.get("gpu", workflow.gpus[0]) in workflow.gpus:
                    yield name, script, tuple(choice.items())


def words_of(words: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Options, variables and the model of a command of vLLM with their values; independent of our own reader."""
    _, rest = split_command(words)
    found, place = dict(env), 0
    while place < len(rest):
        word, following = rest[place], rest[place + 1 : place + 2]
        place += 1
        if not word.startswith("-"):
            found["model"] = word
            continue
        name, joined, value = word.partition("=")
        name = SAME.get(name.replace("_", "-"), name.replace("_", "-"))
        if not joined and following and not re.match(r"--?[a-zA-Z]", following[0]):
            value = following[0]
            place += 1
        found[name] = value
    return found


def _same(here: str | None, printed: str) -> bool:
    if here is None or here == printed:
        return here is not None
    try:
        return bool(json.loads(here) == json.loads(printed))
    except ValueError:
        return here.lower() == printed.lower()


def _of_others(fact: Mapping[str, Any]) -> Iterator[Item]:
    """The words of docker, git, pip, lm_eval, ...: in a script of the document, or said to be left out."""
    words = [*fact["words"], *(f"{name}={value}" for name, value in fact.get("env", {}).items())]
    words = [part for word in words for part in (word.split(",") if "=" in word and word[0] not in "-{" else [word])]
    (run, spoken), name = scripts_of(fact["document"]), " ".join(fact["words"])[:48]
    for word in words:
        if _stands_in(word, run):
            yield Item(fact["document"], name, word, "as printed")
        elif _stands_in(word, spoken) or ("=" in word and _stands_in(word.partition("=")[0], spoken)):
            yield Item(fact["document"], name, word, "said", "WORKFLOW.md, or a remark in the scripts")
        else:
            yield Item(fact["document"], name, word, "by hand" if "<" in word or "$" in word else "silent")


def _stands_in(word: str, text: str) -> bool:
    if word.startswith("{"):
        return json.dumps(json.loads(word)) in text
    parts = [part for part in re.split(r"[=;]", word) if part]
    return all(re.search(rf"(?<![\w/.-]){re.escape(part)}(?![\w/-])", text, re.IGNORECASE) for part in parts)


# --- figures, names and advice ----------------------------------------------------------------------------------------

_KEYS = {
    "Successful requests": "completed", "Failed requests": "failed", "Maximum request concurrency": "max_concurrency",
    "Benchmark duration (s)": "duration", "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens", "Request throughput (req/s)": "request_throughput",
    "Output token throughput (tok/s)": "output_throughput", "Total Token throughput (tok/s)": "total_token_throughput",
    "Peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "Peak concurrent requests": "max_concurrent_requests",
}  # fmt: skip


@cache
def shown(name: str, **choice: Any) -> dict[tuple[str, str], PrintedFigure]:
    """The printed figures that a workflow shows, by run and metric."""
    figures = printed_beside(subject_of(name, **choice))
    return {(one.run.split(",")[0], one.metric): one for one in figures if one.published is not None}


def judge_figures(document: str, text: str) -> Iterator[Item]:
    """Each printed number beside the one that a workflow shows with its prediction."""
    for (model, *lengths), value in rows_in(text):
        name = "throughput" if len(lengths) == 4 else "latency"
        form = "throughput-in{}-out{}-prompts{}" if name == "throughput" else "latency-in{1}-out{2}-bs{0}"
        run = f"{name}.sh {form.format(*lengths)}"
        metric = "output_throughput" if name == "throughput" else "avg_latency"
        yield _figure(document, f"{model}: {run}", value, shown(name, model=model).get((run, metric)))
    for model, block in results_in(text):
        figures = shown(f"mi355x-{'mxfp4' if 'MXFP4' in model else 'fp8'}")
        for printed, value in block.items():
            key = _KEYS.get(printed) or re.sub(r"\W+", "_", printed.lower()).strip("_")
            yield _figure(document, f"{model}: {printed}", value, figures.get(("benchmark.sh", key)))
    printed = {
        (one.metric.split()[-1], one.published, one.unit)
        for workflow in list_workflows().values()
        if document in [d.id for d in workflow.documents] and "compare.sh" not in workflow.scripts
        for choice in ({}, {"weight_dtype": "fp16"})[: 1 + (workflow.name == "mmlu-pro")]
        for (run, _), one in shown(workflow.name, **choice).items()
        if run == "accuracy.sh"
    }
    for above, score, value, stderr in scores_in(text):
        verdict = "as printed" if (score, value, f"± {stderr}") in printed else "missing"
        yield Item(document, above[:60], f"{score} {value} ± {stderr}", verdict)


def _figure(document: str, what: str, value: float, here: PrintedFigure | None) -> Item:
    if here is None:
        return Item(document, what, f"{value:,}", "missing")
    verdict = "as printed" if here.published == value else "wrong"
    return Item(
        document, what, f"{value:,}", verdict, "" if here.predicted is None else f"predicted {here.predicted:,.4g}"
    )


def judge_names(document: str, text: str) -> Iterator[Item]:
    """Each model, GPU and driver that is named, and the arithmetic of the guide to partitions."""
    workflows = [one for one in list_workflows().values() if document in [d.id for d in one.documents]]
    ids = r"(?<!collections/)\b(?:amd|nvidia|meta-llama|deepseek-ai)/[\w.-]*\d[\w.-]*\w"
    for model in sorted(set(re.findall(ids, re.sub(r"\S*\$[A-Z]\S*", "", text)))):
        if not model.startswith("amd/quark-"):
            known = any(model in one.models for one in workflows)
            try:
                here = "a workflow's" if known else resolve_model(model, network=False).resolved
            except PlannerError:
                here = ""
            yield Item(document, "model", model, "as printed" if here else "missing", here)
    for name, gpu in GPUS.items():
        if re.search(rf"{name}\b", text, re.IGNORECASE) and not (document == "amd-mi355" and gpu == "mi300x"):
            described = any(gpu in one.gpus for one in workflows)
            yield Item(document, "GPU", name, "as printed" if described else "missing", gpu)
    for driver in re.findall(r"Driver (\d{3}) or above", text):
        stands = driver in "".join(scripts_of(document))
        yield Item(document, "driver", driver, "as printed" if stands else "missing")
    for model, cache_text, weights, per_token, mark in re.findall(
        r"(Llama-2-\w+) \((FP16)\)[^✅❌]*?= (\d+) GB\s+kv_cache_per_token = [^=]*= ([\d,]+) bytes[^✅❌]*(✅|❌)", text
    ):
        serving = Serving(f"meta-llama/{model}", "mi300x-cpx-nps4", dtype="float16", max_model_len=4096)
        fit = serving.fit()
        here = fit_object(fit)["kv_bytes_per_token"]
        right = here == int(per_token.replace(",", ""))
        yield Item(
            document,
            f"{model} {cache_text}, bytes of a token",
            per_token,
            "as printed" if right else "wrong",
            f"{here:,}",
        )
        near = abs(serving.model.total_params * 2 / 1e9 / float(weights) - 1) < 0.05
        yield Item(document, f"{model} {cache_text}, GB of weights", weights, "as printed" if near else "wrong")
        yield Item(
            document,
            f"{model} {cache_text}, one partition",
            mark,
            "as printed" if fit.fits == (mark == "✅") else "wrong",
        )


def judge_prose(document: str, text: str) -> Iterator[Item]:
    """Advised values, which ``recommend`` and ``check`` hold against theirs, and sentences that no program compares."""
    whose = {"nvidia": "NVIDIA's recipe", "amd-mi355": "AMD's recipe for MI355X"}.get(
        document, "AMD's guide for MI300X"
    )
    for one in advice() if document != "amd-cpx" else ():
        values = [*one.get("settings", {}).values(), *([most] for most in one.get("at_most", {}).values())]
        if one["document"] == whose:
            stands = all(
                any(str(value) in text for value in some if not isinstance(value, bool))
                for some in values
                if some != [False]
            )
            older = document == "amd-2024" and "DeepSeek" in one["models"]
            yield Item(document, "advice", one["text"], "said" if stands or older else "wrong", "recommend, check")
    for line in text.splitlines():
        if re.search(r"recommend|should|\bmust\b|important|suggest|optimal|may need", line, re.IGNORECASE):
            yield Item(document, "prose", line.strip()[:100], "by hand")


def audit(folder: Path) -> list[Item]:
    """Every item of the documents in a folder."""
    items = list[Item]()
    for document, text in read_documents(folder).items():
        for judged in (judge_commands(commands_in(document, text)), judge_figures(document, text),
                       judge_names(document, text), judge_prose(document, text)):  # fmt: skip
            items += judged
    return items


def table(items: Sequence[Item]) -> Iterator[str]:
    """The items, and their number by document and verdict."""
    yield "| document | of | printed | verdict | here |\n| --- | --- | --- | --- | --- |"
    for one in items:
        cells = (one.document, one.what, one.printed, one.verdict, one.here)
        yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
    counts = Counter((one.document, one.verdict) for one in items)
    verdicts = ("as printed", "said", "by hand", *FAILURES)
    yield f"\n| document | items | {' | '.join(verdicts)} |\n| --- |{' ---: |' * (len(verdicts) + 1)}"
    for document in (*TITLES.values(), "all"):
        own = [
            sum(n for (d, v), n in counts.items() if v == verdict and document in (d, "all")) for verdict in verdicts
        ]
        yield f"| {document} | {sum(own)} | {' | '.join(map(str, own))} |"
