"""The workflows as they are written down in ``workflows.toml``: records, and which printed commands each renders."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Any

from planner.engine import EngineVersion
from planner.errors import UnknownNameError
from planner.hardware import GpuProfile
from planner.output.workflows.documents import Command, Document, commands, documents, printed_rows
from planner.resources import package_dir


@dataclass(frozen=True, slots=True)
class Variant:
    """A way in which every point is measured."""

    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """One offline measurement: a command of the document, and the number that is printed for it, where one is."""

    command: Command
    metric: str = ""
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """One job of the published documents. Field names of ``settings`` are those of EngineArgs."""

    name: str
    title: str
    documents: tuple[Document, ...]
    gpus: tuple[str, ...]  #: profiles that the document ran it on, the first is the default
    model: str
    scripts: tuple[str, ...]
    platforms: tuple[str, ...] = ("rocm", "cuda")
    also: tuple[str, ...] = ()  #: further models of the document
    fp16: tuple[str, ...] = ()  #: models that it serves in FP16, with some options left out
    engine_version: str | None = None
    serve: tuple[Command, ...] = ()
    client: tuple[Command, ...] = ()
    offline: tuple[Command, ...] = ()
    accuracy: Command | None = None
    changes: Mapping[str, str] = field(default_factory=dict)  #: options that the document leaves open, or cannot run
    rows: tuple[Mapping[str, str], ...] = ()
    variants: tuple[Variant, ...] = (Variant(),)
    settings: Mapping[str, Any] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    build: str = ""
    accuracy_task: str = ""
    accuracy_max_model_len: int = 0
    remarks: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """Every model of the document, the first is the default."""
        return (self.model, *self.also, *self.fp16)

    def summary(self) -> dict[str, Any]:
        """What a list of workflows says of this one."""
        return {
            "name": self.name,
            "title": self.title,
            "model": self.model,
            "gpu": self.gpus[0],
            "engine_version": self.engine_version,
            "scripts": list(self.scripts),
            "sources": [document.title for document in self.documents],
        }

    def printed(
        self, found: Sequence[Command], version: EngineVersion, profile: GpuProfile, model: str
    ) -> tuple[Command, ...]:
        """Those of ``found`` that are for this version, GPU and model: of the newest document that is not newer.

        Without the options that the document takes out for a model in FP16, and with what it leaves open.
        """
        capability = ".".join(map(str, profile.compute_capability or ()))
        own = [c for c in found if c.capability in ("", capability)]
        if not own:
            return ()
        older = [c for c in own if c.document.version.release <= version.release]
        document = max(older or own, key=lambda c: c.document.version.release if older else ()).document
        kept = [c for c in own if c.document is document]
        named = [c for c in kept if c.argv[1:2] == ("serve",) and c.argv[2].rstrip("/") == model]
        return tuple(self._for_model(c, model).with_options(self._changes) for c in named or kept)

    @property
    def _changes(self) -> dict[str, str | None]:
        return {flag: None if value == "-" else value for flag, value in self.changes.items()}

    def _for_model(self, command: Command, model: str) -> Command:
        if model not in self.fp16:
            return command
        return command.with_options(dict.fromkeys(command.fp16_without))

    def points(self, version: EngineVersion, profile: GpuProfile, model: str) -> Iterator[Point]:
        """Every offline measurement of the document for this version and model, in its order."""
        for command in self.printed(self.offline, version, profile, model):
            name = command.id.rpartition("/")[2]
            rows = [row for row in self.rows if row.get("bench", name) in name]
            if self.rows:
                yield from (Point(command.with_options(changed)) for row in rows for changed in _spread(row))
                continue
            table = [row for row in printed_rows() if row.command.id == command.id]
            own = [row for row in table if row.model == model]
            for row in own or [row for row in table if row.model == table[0].model]:
                changed = self._for_model(row.command, model).with_options(self._changes)
                yield Point(changed, row.metric, row.value if own else None)
            if not table:
                yield Point(command)


def _spread(row: Mapping[str, str]) -> Iterator[dict[str, str | None]]:
    """Every combination of the values of a row, which are separated by spaces; ``-`` leaves an option out."""
    flags = [flag for flag in row if flag.startswith("--")]
    for values in product(*(row[flag].split(" ") for flag in flags)):
        yield {flag: None if value == "-" else value for flag, value in zip(flags, values, strict=True)}


@lru_cache(maxsize=1)
def list_workflows() -> dict[str, Workflow]:
    """Every workflow by its name, in the order of the file."""
    path = package_dir("output") / "workflows" / "workflows.toml"
    return {entry["name"]: _workflow(entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["workflow"]}


def find_workflow(name: str) -> Workflow:
    """The workflow of that name. Raises UnknownNameError where there is none."""
    known = list_workflows()
    if name not in known:
        raise UnknownNameError("workflow", name, known, see="`planner workflow list`")
    return known[name]


def _workflow(entry: dict[str, Any]) -> Workflow:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    fields["documents"] = tuple(documents()[name] for name in entry["documents"])
    for kind in ("serve", "client", "offline"):
        fields[kind] = tuple(commands()[name] for name in entry.get(kind, ()))
    if "accuracy" in entry:
        fields["accuracy"] = commands()[entry["accuracy"]]
    if "variants" in entry:
        fields["variants"] = tuple(Variant(**variant) for variant in entry["variants"])
    return Workflow(**fields)
