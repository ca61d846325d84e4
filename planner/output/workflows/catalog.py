"""The workflows as they are written down in ``workflows.toml``: records, and nothing decided."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from planner.errors import UnknownNameError
from planner.resources import package_dir

Bench = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One offline measurement. ``published`` is seconds (latency) or output tokens/s (throughput)."""

    bench: Bench
    input_len: int
    output_len: int
    batch_size: int = 0  #: latency
    num_prompts: int = 0  #: throughput
    max_num_seqs: int | None = None
    published: float | None = None

    @property
    def requests(self) -> int:
        """Requests of one measurement."""
        return self.batch_size or self.num_prompts


@dataclass(frozen=True, slots=True)
class Variant:
    """A way in which every row is measured."""

    name: str = ""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """The offline measurements of a workflow: every row in every variant, or without and with a draft model."""

    rows: tuple[PublishedRow, ...]
    variants: tuple[Variant, ...] = (Variant(),)
    draft: str = ""
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """How an image is made from source. ``args`` are build arguments that its Dockerfile declares."""

    name: str
    repository: str
    commit: str
    dockerfile: str
    image: str
    version: str = ""  #: of vLLM, whose options the commit takes; empty where the caller chooses what is built
    args: dict[str, str] = field(default_factory=dict)
    target: str = ""
    jobs_arg: str = ""  #: the build argument that says how many files are compiled at the same time
    max_jobs: int = 0
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workflow:
    """One job of the published recipes. Field names of ``settings`` are those of EngineArgs."""

    name: str
    title: str
    sources: tuple[str, ...]  #: titles of the documents
    gpus: tuple[str, ...]  #: profiles that the document ran it on, the first is the default
    model: str
    scripts: tuple[str, ...]
    load: dict[str, Any]
    settings: dict[str, Any]
    platforms: tuple[str, ...] = ("rocm", "cuda")
    also: tuple[str, ...] = ()  #: further models with the same settings
    engine_version: str | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    measure: Measure | None = None
    build: str = ""
    accuracy_task: str = ""
    accuracy_max_model_len: int = 0
    expected: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """What a list of workflows says of this one."""
        return {
            "name": self.name,
            "title": self.title,
            "model": self.model,
            "gpu": self.gpus[0],
            "engine_version": self.engine_version,
            "scripts": list(self.scripts),
            "sources": list(self.sources),
        }


@lru_cache(maxsize=1)
def list_workflows() -> dict[str, Workflow]:
    """Every workflow by its name, in the order of the file."""
    data = _data()
    return {entry["name"]: _workflow(entry, data["sources"]) for entry in data["workflow"]}


def find_workflow(name: str) -> Workflow:
    """The workflow of that name. Raises UnknownNameError where there is none."""
    known = list_workflows()
    if name not in known:
        raise UnknownNameError("workflow", name, known, see="`planner workflow list`")
    return known[name]


def published_scores(model: str, task: str) -> tuple[str, ...]:
    """The scores that a document prints for a checkpoint in an evaluation; none where it prints none."""
    found = (w for w in list_workflows().values() if w.model == model and (w.accuracy_task or "gsm8k") == task)
    return next((w.expected for w in found if w.expected), ())


@lru_cache(maxsize=1)
def builds() -> dict[str, ImageBuild]:
    """How images are made, by the name under which workflows ask for them."""
    return {entry["name"]: ImageBuild(**_frozen(entry)) for entry in _data()["build"]}


def _workflow(entry: dict[str, Any], titles: dict[str, str]) -> Workflow:
    fields = _frozen(entry)
    fields["sources"] = tuple(titles[key] for key in entry["sources"])
    if "measure" in entry:
        fields["measure"] = _measure(entry["measure"])
    return Workflow(**fields)


def _measure(entry: dict[str, Any]) -> Measure:
    bench = entry["bench"]
    rows = tuple(PublishedRow(**({"bench": bench} | row)) for row in entry["rows"])
    variants = tuple(Variant(**variant) for variant in entry.get("variants", [{}]))
    return Measure(rows, variants, entry.get("draft", ""), entry.get("draft_tokens", 0))


def _frozen(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads((package_dir("output") / "workflows" / "workflows.toml").read_text(encoding="utf-8"))
