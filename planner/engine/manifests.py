"""vLLM's commands in files that are no scripts: compose files, and manifests of Kubernetes.

Every mapping with an ``image``, a ``command`` or ``args`` is a container. Its words are those that its shell, or vLLM
itself, would get.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.engine.found import Found, found_in, is_server_image, version_of_images
from planner.engine.shell import Launch, find_launches, paired
from planner.errors import InputError
from planner.hardware import GpuProfile


def read_manifest(
    text: str, *, gpu: GpuProfile | None = None, given: Mapping[str, str] | None = None
) -> tuple[Launch, ...]:
    """What the containers of a YAML file start. Raises InputError for what is no YAML, or starts no vLLM."""
    import yaml

    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        cause = " ".join(str(error).split())[:160]
        raise InputError(f"this is no YAML: {cause}", hint="give a compose file, a manifest or a script") from error
    launches: list[Launch] = []
    for container in _containers(documents):
        launches += _started(container, gpu, given or {})
    if not launches:
        raise InputError(
            "no container in this starts vllm serve", hint="give the line itself: planner check -- vllm serve MODEL ..."
        )
    return paired(launches)


def _containers(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        if any(isinstance(node.get(key), str | list) for key in ("command", "args", "entrypoint")):
            yield node
        for value in node.values():
            yield from _containers(value)
    elif isinstance(node, list):
        for value in node:
            yield from _containers(value)


def _started(container: Mapping[str, Any], gpu: GpuProfile | None, given: Mapping[str, str]) -> tuple[Launch, ...]:
    """What one container starts. Of Kubernetes ``command`` is the entry point, of compose what comes behind it."""
    kubernetes = "args" in container or isinstance(container.get("env"), list)
    entry = _words(container.get("command" if kubernetes else "entrypoint"))
    rest = _words(container.get("args" if kubernetes else "command"))
    image = str(container.get("image", ""))
    if not entry and is_server_image(image):
        entry = ["vllm", "serve"]
    words, env = [*entry, *rest], _environment(container)
    found = found_in(words, env)
    version = version_of_images([image])
    if found:
        return (Launch(_with(found, env, version)),)
    script = next((word for word in words if "vllm" in word and (" " in word or "\n" in word)), "")
    if not script:
        return ()
    try:
        launches = find_launches(script, gpu=gpu, given={**env, **given})
    except InputError:
        return ()
    return tuple(replace(one, server=one.server and _with(one.server, env, version)) for one in launches)


def _with(found: Found, env: Mapping[str, str], version: str) -> Found:
    """What its container adds: variables, and the version of its image, unless it starts another one itself."""
    return replace(found, env={**env, **found.env}, image_version=found.image_version or version)


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(str(value)) if value else []
    except ValueError:
        return [str(value)]


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    """``env`` of Kubernetes: names and values; ``environment`` of compose: a mapping or ``NAME=VALUE``."""
    given = container.get("env", container.get("environment")) or {}
    if isinstance(given, Mapping):
        return {str(name): str(value) for name, value in given.items() if value is not None}
    pairs = [
        (one.get("name"), one.get("value")) if isinstance(one, Mapping) else str(one).partition("=")[::2]
        for one in given
    ]
    return {str(name): str(value) for name, value in pairs if value not in (None, "")}
