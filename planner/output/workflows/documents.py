"""What the published documents print, as ``documents.toml`` has it: records, and nothing decided."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from planner.engine import (
    EngineVersion,
    ServeLine,
    SpeculativeConfig,
    parse_version,
    program_argv,
    read_drafts,
    read_line,
    split_command,
)
from planner.output.scripts.text import option, without_option
from planner.resources import package_dir


@dataclass(frozen=True, slots=True)
class Document:
    """One published document."""

    id: str
    title: str
    version: EngineVersion  #: of vLLM, whose options its commands take
    caveats: tuple[str, ...] = ()  #: on the results that it prints; or that it prints none

    @property
    def measures(self) -> bool:
        """Whether it prints results of its benchmarks."""
        runs = (*(row.command.id for row in printed_rows()), *(result.server for result in printed_results()))
        return any(run.startswith(f"{self.id}/") for run in runs)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a document."""

    id: str
    document: Document
    place: str  #: the heading above it
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    capability: str = ""  #: compute capability of the GPUs that it is printed for; empty: any
    fp16_without: tuple[str, ...] = ()  #: options that the document takes out for models in FP16

    def read(self, version: EngineVersion | None = None, platform: str = "rocm") -> ServeLine:
        """The command as the parser of a version reads it; by default of the document's own."""
        command, rest = split_command(self.argv)
        if version is None or command is None or version.release == self.document.version.release:
            return read_line(self.argv, self.document.version, env=self.env, platform=platform)
        program, _ = program_argv(command, version, platform)
        return read_line([*program, *rest], version, env=self.env, platform=platform)

    @property
    def drafts(self) -> SpeculativeConfig | None:
        """The draft that it names in the words of older versions; None: none."""
        model, tokens = option(self.argv, "--speculative-model"), option(self.argv, "--num-speculative-tokens")
        if model is None or tokens is None:
            return None
        return read_drafts({"model": model, "num_speculative_tokens": int(tokens)})

    def with_options(self, changes: Mapping[str, str | None]) -> Command:
        """The command with other values, or without an option: None; an empty value is that of a switch."""
        words = self.argv
        for flag, value in changes.items():
            if option(words, flag) is not None:
                words = without_option(words, flag)
            if value is not None:
                words = (*words, flag, value) if value else (*words, flag)
        return replace(self, argv=words)


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """One row of a printed table: the command that measured it, and the number."""

    command: Command
    place: str
    metric: str  #: ``avg_latency`` in seconds, ``output_throughput`` in tokens/s
    value: float

    @property
    def model(self) -> str:
        """The model that was measured."""
        return option(self.command.argv, "--model") or ""


@dataclass(frozen=True, slots=True)
class PrintedResult:
    """The printed result of a client: figures by the keys of ``vllm bench``'s result file."""

    server: str  #: id of the server's command
    client: str
    place: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Score:
    """A printed score of an evaluation, with its standard error."""

    document: str
    place: str
    model: str
    task: str
    filter: str
    value: float
    stderr: float

    def __str__(self) -> str:
        precision = "" if self.task == "gsm8k" else f" ({self.model})"
        return f"{self.task}, {self.filter}: {self.value} ± {self.stderr}{precision}"


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings that a document recommends for a goal."""

    document: str
    place: str
    gpu: str
    goal: str
    tensor_parallel_size: tuple[int, ...]
    max_num_seqs: int


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a word is another one here, or left out, or added; empty fields hold for every value, document, ..."""

    word: str
    why: str
    value: str = ""
    documents: tuple[str, ...] = ()
    place: str = ""
    model: str = ""
    workflow: str = ""
    scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """Words of other programs' commands, and what stands in their place."""

    documents: tuple[str, ...]
    scripts: tuple[str, ...]
    words: tuple[str, ...]
    why: str
    here: str = ""


@lru_cache(maxsize=1)
def documents() -> dict[str, Document]:
    """Every document by its id."""
    return {
        name: Document(name, entry["title"], parse_version(entry["version"]), tuple(entry["caveats"]))
        for name, entry in _data()["document"].items()
    }


@lru_cache(maxsize=1)
def commands() -> dict[str, Command]:
    """Every printed command by its id."""
    found = {}
    for entry in _data()["command"]:
        fields = _frozen({**entry, "document": documents()[entry["id"].split("/")[0]]})
        fields["argv"] = tuple(shlex.split(fields.pop("line")))
        found[entry["id"]] = Command(**fields)
    return found


@lru_cache(maxsize=1)
def printed_rows() -> tuple[PrintedRow, ...]:
    """Every row of every printed table."""
    return tuple(
        PrintedRow(
            commands()[table["command"]].with_options(dict(zip(table["varied"], map(str, row[:-1]), strict=True))),
            table["place"],
            table["metric"],
            float(row[-1]),
        )
        for table in _data()["table"]
        for row in table["rows"]
    )


@lru_cache(maxsize=1)
def printed_results() -> tuple[PrintedResult, ...]:
    """Every printed result of a client."""
    return tuple(PrintedResult(**entry) for entry in _data()["result"])


@lru_cache(maxsize=1)
def scores() -> tuple[Score, ...]:
    """Every printed score."""
    return tuple(Score(**entry) for entry in _data()["score"])


@lru_cache(maxsize=1)
def advice() -> tuple[Advice, ...]:
    """Every recommendation of settings."""
    return tuple(Advice(**_frozen(entry)) for entry in _data()["advice"])


@lru_cache(maxsize=1)
def reasons() -> tuple[Reason, ...]:
    """Why words differ."""
    return tuple(Reason(**_frozen(entry)) for entry in _data()["reason"])


@lru_cache(maxsize=1)
def other_words() -> tuple[Words, ...]:
    """Words of other programs that differ."""
    return tuple(Words(**_frozen(entry)) for entry in _data()["words"])


def published_scores(model: str, task: str) -> tuple[str, ...]:
    """The scores that a document prints for a checkpoint in an evaluation; none where it prints none."""
    return tuple(dict.fromkeys(str(score) for score in scores() if (score.model, score.task) == (model, task)))


def said_of(models: Collection[str], gpu: str) -> Iterator[str]:
    """What the documents say of checkpoints that stand against each other on a GPU: their scores, and words."""
    for model in dict.fromkeys(score.model for score in scores()):
        own = [f"{s.filter} {s.value:.4f} ± {s.stderr:.4f}" for s in scores() if (s.model, s.task) == (model, "gsm8k")]
        if model in models and own:
            yield f"published gsm8k of {model}: {', '.join(own)}"
    for entry in _data()["verdict"]:
        if entry["gpu"] == gpu and len(set(entry["models"]) & set(models)) > 1:
            yield entry["text"]


def _frozen(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads((package_dir("output") / "workflows" / "documents.toml").read_text(encoding="utf-8"))
