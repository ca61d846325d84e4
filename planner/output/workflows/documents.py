"""The published documents and the workflows made from them, as ``documents.toml`` and ``workflows.toml`` have them."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

from planner import engine
from planner.errors import UnknownNameError
from planner.hardware import GpuProfile
from planner.output.scripts.text import option, without_option
from planner.resources import package_dir, tables_of

#: Scripts of a workflow with a server.
_SERVING = ("pull_image.sh", "shell.sh", "download.sh", "request.sh", "sweep.sh", "guidellm.sh")


@dataclass(frozen=True, slots=True)
class Document:
    """A published document and the vLLM version whose options its commands take."""

    id: str
    title: str
    version: engine.EngineVersion
    env: Mapping[str, str]  #: variables of all its commands
    gpus: tuple[str, ...] = ()  #: profiles that it describes
    engine_version: str | None = None  #: the one that it names
    caveats: tuple[str, ...] = ()  #: on its printed results


@dataclass(frozen=True, slots=True)
class Command:
    """A command line of a document, with the variables that are set for it."""

    id: str
    document: Document
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    capability: str = ""  #: compute capability of the GPUs that it is printed for; empty: any
    fp16_without: tuple[str, ...] = ()  #: options that the document takes out for models in FP16

    def read(self, version: engine.EngineVersion | None = None, platform: str = "rocm") -> engine.ServeLine:
        """The command as the parser of a version reads it; by default of the document's own."""
        command, rest = engine.split_command(self.argv)
        if version is None or command is None or version.release == self.document.version.release:
            return engine.read_line(self.argv, self.document.version, env=self.env, platform=platform)
        program, _ = engine.program_argv(command, version, platform)
        return engine.read_line([*program, *rest], version, env=self.env, platform=platform)

    @property
    def drafts(self) -> engine.SpeculativeConfig | None:
        """The draft that it names in the words of older versions; None: it drafts nothing."""
        model, tokens = option(self.argv, "--speculative-model"), option(self.argv, "--num-speculative-tokens")
        if model is None or tokens is None:
            return None
        return engine.read_drafts({"model": model, "num_speculative_tokens": int(tokens)})

    def with_options(self, changes: Mapping[str, str | None]) -> "Command":
        """A copy with other values, or without an option: None. An empty value is that of a switch."""
        words = self.argv
        for flag, value in changes.items():
            if option(words, flag) is not None:
                words = without_option(words, flag)
            if value is not None:
                words = (*words, flag, value) if value else (*words, flag)
        return replace(self, argv=words)


@dataclass(frozen=True, slots=True)
class Point:
    """One offline measurement: a command of the document, and the printed number if there is one."""

    command: Command
    printed: Command  #: as the document has it
    metric: str = ""  #: ``avg_latency`` in seconds, ``output_throughput`` in tokens/s
    published: float | None = None

    @property
    def model(self) -> str:
        return option(self.command.argv, "--model") or ""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One job of the published documents. Field names of ``settings`` are those of EngineArgs."""

    name: str
    title: str
    documents: tuple[Document, ...]
    gpus: tuple[str, ...]  #: profiles that the document describes; its figures are from the first, the default
    model: str
    scripts: tuple[str, ...]
    platforms: tuple[str, ...] = ("rocm", "cuda")
    also: tuple[str, ...] = ()  #: further models of the document
    fp16: tuple[str, ...] = ()  #: models that it serves in FP16, with some options left out
    #: ``--dtype`` by precision, where one checkpoint has several
    dtypes: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None
    serve: tuple[Command, ...] = ()
    client: tuple[Command, ...] = ()
    offline: tuple[Command, ...] = ()
    accuracy: tuple[str, ...] = ()  #: words of ``lm_eval``
    changes: Mapping[str, str] = field(default_factory=dict)  #: options that the document leaves open, or cannot run
    rows: tuple[Mapping[str, str], ...] = ()
    variants: tuple[Mapping[str, Any], ...] = ({"name": "", "env": {}},)  #: variables that every point is measured with
    settings: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    build: str = ""
    accuracy_task: str = ""
    accuracy_max_model_len: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model, *self.also, *self.fp16)

    def models_on(self, profile: GpuProfile) -> tuple[str, ...]:
        """The document's models for a GPU: those of the servers that it prints for its capability, else all."""
        served = [c.argv[2].rstrip("/") for c in self.serve if c.capability and c.capability == _capability(profile)]
        return tuple(name for name in self.models if name in served) or self.models

    def printed(
        self, printed: Sequence[Command], version: engine.EngineVersion, profile: GpuProfile, model: str
    ) -> tuple[Command, ...]:
        """Commands for this version, GPU and model: of the newest document that is not newer than the version."""
        suited = [c for c in printed if c.capability in ("", _capability(profile))]
        if not suited:
            return ()
        older = [c for c in suited if c.document.version.release <= version.release]
        document = max(older or suited, key=lambda c: c.document.version.release if older else ()).document
        own = [c for c in suited if c.document is document]
        named = [c for c in own if c.argv[1:2] == ("serve",) and c.argv[2].rstrip("/") == model]
        return tuple(self._adapted(c, model) for c in named or own)

    def _adapted(self, command: Command, model: str) -> Command:
        left_out: dict[str, str | None] = dict.fromkeys(command.fp16_without) if model in self.fp16 else {}
        return command.with_options(left_out).with_options(_values(self.changes))

    def points(self, version: engine.EngineVersion, profile: GpuProfile, model: str) -> Iterator[Point]:
        """Every offline measurement of the document for this version and model, in its order."""
        for command in self.printed(self.offline, version, profile, model):
            name = command.id.rpartition("/")[2]
            if self.rows:
                rows = (options for options in self.rows if options.get("bench", name) in name)
                printed = commands()[command.id]
                yield from (Point(command.with_options(values), printed) for one in rows for values in _spread(one))
                continue
            table = [row for row in printed_rows() if row.command.id == command.id]
            own = [row for row in table if row.model == model]
            for row in own or [row for row in table if row.model == table[0].model]:
                adapted = self._adapted(row.command, model)
                yield replace(row, command=adapted, published=row.published if own else None)
            if not table:
                yield Point(command, commands()[command.id])


def _capability(profile: GpuProfile) -> str:
    return ".".join(map(str, profile.compute_capability or ()))


def _values(options: Mapping[str, str]) -> dict[str, str | None]:
    return {flag: None if value == "-" else value for flag, value in options.items()}


def _spread(row: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
    flags = [flag for flag in row if flag.startswith("--")]
    for values in product(*(row[flag].split(" ") for flag in flags)):
        yield _values(dict(zip(flags, values, strict=True)))


@lru_cache(maxsize=1)
def list_workflows() -> dict[str, Workflow]:
    workflows = {}
    for name, entry in tables("workflows")["workflow"].items():
        own = {**_frozen(entry), "name": name}
        printed = [commands()[one] for one in own.pop("commands", ())]
        ids = entry.get("documents", dict.fromkeys(command.document.id for command in printed))
        own["documents"] = first, *_ = tuple(documents()[one] for one in ids)
        version = entry.get("engine_version", first.engine_version)
        own |= {"gpus": entry.get("gpus", first.gpus), "engine_version": None if version == "newest" else version}
        for command in printed:
            kind = tables("workflows")["kinds"].get(engine.split_command(command.argv)[0] or "", "accuracy")
            own[kind] = (*own.get(kind, ()), command) if kind != "accuracy" else command.argv
        if any(command.fp16_without for command in printed):
            in_fp8 = (own["model"], *own.get("also", ()))
            own["fp16"] = tuple(one.replace("amd/", "meta-llama/").removesuffix("-FP8-KV") for one in in_fp8)
        own.setdefault("scripts", _SERVING if "serve" in own else (*_SERVING[:3:2], f"{name.replace('-', '_')}.sh"))
        workflows[name] = Workflow(**own)
    return workflows


def purposes() -> dict[str, str]:
    """The purpose of each file of a workflow, for ``WORKFLOW.md`` and ``planner workflow``."""
    return dict(tables("workflows")["purpose"])


def instead_of(documents: Collection[Document]) -> list[Mapping[str, Any]]:
    """Words of the documents for other programs than vLLM that no script has, and what stands there instead."""
    ids = {document.id for document in documents}
    return [entry for entry in tables("workflows")["instead"] if ids & {*entry.get("documents", ids)}]


def find_workflow(name: str) -> Workflow:
    """The workflow of that name. Raises UnknownNameError for any other name."""
    known = list_workflows()
    if name not in known:
        raise UnknownNameError("workflow", name, known, see="`planner workflow list`")
    return known[name]


@lru_cache(maxsize=1)
def documents() -> dict[str, Document]:
    return {
        name: Document(name, **_frozen({"env": {}, **entry, "version": engine.parse_version(entry["version"])}))
        for name, entry in tables("documents")["document"].items()
    }


@lru_cache(maxsize=1)
def commands() -> dict[str, Command]:
    printed = {}
    for name, entry in tables("documents")["command"].items():
        document = documents()[name.split("/")[0]]
        own = _frozen({**entry, "env": {**document.env, **entry.get("env", {})}})
        printed[name] = Command(name, document, tuple(shlex.split(own.pop("line"))), **own)
    return printed


@lru_cache(maxsize=1)
def printed_rows() -> tuple[Point, ...]:
    rows = list[Point]()
    for table in tables("documents")["table"]:
        varied, (flag, across) = table["varied"], next(iter(table.get("across", {"": [""]}).items()))
        for row in table["rows"]:
            of_row = dict(zip(varied, map(str, row), strict=False))
            for value, figure in zip(across, row[len(varied) :], strict=True):
                options = {**of_row, flag: str(value)} if flag else of_row
                command = commands()[table["command"]].with_options(options)
                rows.append(Point(command, command, table["metric"], float(figure)))
    return tuple(rows)


@lru_cache(maxsize=1)
def results() -> dict[tuple[str, str], Mapping[str, float]]:
    """The printed results by server and client, with the keys of the client's result file."""
    return {
        (server, one["client"]): {key: values[place] for key, values in one["figures"].items()}
        for one in tables("documents")["result"]
        for place, server in enumerate(one["servers"])
    }


def scores(model: str, task: str) -> Mapping[str, tuple[float, float]]:
    """The printed scores of a model: value and standard error by filter."""
    own: Mapping[str, tuple[float, float]] = tables("documents")["score"].get(task, {}).get(model, {})
    return own


def score_lines(model: str, task: str) -> tuple[str, ...]:
    """Scores in words. The documents for MI300X name the precision too."""
    precision = "" if task == "gsm8k" else f" ({model})"
    return tuple(f"{task}, {name}: {one[0]} ± {one[1]}{precision}" for name, one in scores(model, task).items())


def published_accuracy(models: Collection[str], gpu: str) -> Iterator[str]:
    """Scores and verdicts of the documents on checkpoints that are compared on a GPU."""
    for model, own in tables("documents")["score"]["gsm8k"].items():
        if model in models:
            each = ", ".join(f"{name} {value:.4f} ± {stderr:.4f}" for name, (value, stderr) in own.items())
            yield f"published gsm8k of {model}: {each}"
    for entry in tables("documents")["verdict"]:
        if entry["gpu"] == gpu and len(set(entry["models"]) & set(models)) > 1:
            yield entry["text"]


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


@lru_cache(maxsize=2)
def tables(name: str) -> dict[str, Any]:
    """The tables of ``documents.toml`` or ``workflows.toml``."""
    return tables_of(package_dir("output") / "workflows" / f"{name}.toml")
