"""Which models a vLLM release knows: ``architectures.toml``, read off the registries of its source distributions."""

from __future__ import annotations

import tomllib
from functools import cache

from planner.engine.version import EngineVersion, Release, release_of, release_text
from planner.errors import IllegalPlanError
from planner.model import Model
from planner.resources import package_dir


def check_known(model: Model, version: EngineVersion) -> None:
    """Raise IllegalPlanError where ``version`` has no implementation of the model's architecture.

    A build whose release is assumed (a date, a development build, a plugin with models of its own) is not judged.
    """
    if version.note or version.build != "vllm":
        return
    first, last = releases_of(model.architecture)
    if first and version.release < first:
        raise IllegalPlanError(
            f"vLLM {version} does not know {model.architecture}, the architecture of {model.id}",
            hint=f"choose --engine-version {release_text(first)} or later",
        )
    if last and version.release > last:
        raise IllegalPlanError(
            f"vLLM {version} no longer knows {model.architecture}, the architecture of {model.id}",
            hint=f"choose --engine-version {release_text(last)} or before",
        )


def releases_of(architecture: str) -> tuple[Release | None, Release | None]:
    """The first and the last release that know ``architecture``; None: no bound is known."""
    table = _table()
    return table["first"].get(architecture), table["last"].get(architecture)


@cache
def _table() -> dict[str, dict[str, Release]]:
    read = tomllib.loads((package_dir("engine") / "architectures.toml").read_text("utf-8"))
    return {
        bound: {name: release_of(release) for release, names in entries.items() for name in names}
        for bound, entries in read.items()
    }
