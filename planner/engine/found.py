"""vLLM's commands in words that a shell has split: behind wrappers, in a container's options.

>>> found_in("FOO=1 numactl -N 0 /opt/bin/vllm serve org/model -tp 2".split()).argv
('/opt/bin/vllm', 'serve', 'org/model', '-tp', '2')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from planner.engine.flags import VllmCommand

API_SERVER = "vllm.entrypoints.openai.api_server"
#: Commands that start an engine of their own, and those that send requests to a server.
OFFLINE = ("bench throughput", "bench latency", "benchmark_throughput.py", "benchmark_latency.py")
CLIENTS = ("bench serve", "benchmark_serving.py")

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OFFICIAL_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm/vllm-openai[\w.-]*(?:[:@][\w.:-]+)?")
#: A release in the tag of an image: v0.11.0, or rocm6.3.1_vllm_0.8.5_20250513.
_TAGGED = re.compile(r"(?<![\d.])0\.\d{1,9}\.\d{1,9}(?:\.\d{1,9}|rc\d{1,9})?(?!\.?\d)")
_CONTAINERS = frozenset(("docker", "podman", "nerdctl"))


@dataclass(frozen=True, slots=True)
class Found:
    """A command of vLLM, and the variables that are set for it."""

    argv: tuple[str, ...]  #: from the program on: vllm serve MODEL ..., vllm bench serve ..., python3 -m vllm....
    env: Mapping[str, str]
    image_version: str = ""  #: the release that the tag of its container's image names, if any

    @property
    def command(self) -> VllmCommand:
        """Which of vLLM's commands it is."""
        return split_command(self.argv)[0] or "serve"


def found_in(words: Sequence[str], exported: Mapping[str, str] | None = None) -> Found | None:
    """vLLM's command in a list of words that a shell has split: after wrappers, in a container's options."""
    for at in range(len(words)):
        if command_at(words, at)[0]:
            start = max(at - 1, 0) if words[at] == "-m" else at
            env = {**(exported or {}), **_variables(words[:at])}
            return Found(tuple(words[start:]), env, version_of_images(words[:at]))
    return _in_container(words) if any(word.rsplit("/", 1)[-1] in _CONTAINERS for word in words) else None


def split_command(words: Sequence[str]) -> tuple[VllmCommand | None, list[str]]:
    """The vLLM command that a list of words runs, and its arguments; None for another program."""
    for at in range(len(words)):
        command, length = command_at(words, at)
        if command:
            return command, list(words[at + length :])
    return None, []


def command_at(words: Sequence[str], at: int) -> tuple[VllmCommand | None, int]:
    """The vLLM command that begins at ``at``, and how many words name it."""
    name, following = words[at].rsplit("/", 1)[-1], " ".join(words[at + 1 : at + 3])
    if name not in ("-m", "vllm") and not name.endswith(".py"):
        return None, 0
    if words[at] == "-m" and tuple(words[at + 1 : at + 2]) == (API_SERVER,):
        return "serve", 2
    for command in get_args(VllmCommand):
        own = command.split()
        if name == (own[0] if own[0].endswith(".py") else None):
            return command, 1
        if name == "vllm" and following.split(" ")[: len(own)] == own:
            return command, 1 + len(own)
    return None, 0


def _variables(before: Sequence[str]) -> dict[str, str]:
    """Assignments in front of a program, ``env`` and a container's ``--env`` included."""
    words = [word.split("=", 1)[1] if word.startswith(("--env=", "-e=")) else word for word in before]
    return {match[1]: match[2] for word in words if (match := _ASSIGNMENT.fullmatch(word))}


def _in_container(words: Sequence[str]) -> Found | None:
    """``docker run ... --entrypoint vllm IMAGE serve MODEL``, or an image whose entry point is the server."""
    entry = next((value for flag, value in pairwise(words) if flag == "--entrypoint"), "")
    entry = next((w.split("=", 1)[1] for w in words if w.startswith("--entrypoint=")), entry)
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        if entry.rsplit("/", 1)[-1] == "vllm" and command_at(("vllm", *rest), 0)[0]:
            return Found(("vllm", *rest), _variables(words[:at]), version_of_images([word]))
        if not entry and is_server_image(word) and rest:
            return Found(("vllm", "serve", *rest), _variables(words[:at]), version_of_images([word]))
    return None


def is_server_image(name: str) -> bool:
    """Whether an image is the vLLM project's own, whose entry point is the server."""
    return _OFFICIAL_IMAGE.fullmatch(name) is not None


def version_of_images(words: Sequence[str]) -> str:
    """The release in the tag of the first image of vLLM among ``words``; empty where none names one.

    >>> version_of_images(["docker", "run", "--gpus=all", "vllm/vllm-openai:v0.11.0"])
    '0.11.0'
    """
    for word in words:
        name, _, tag = word.partition("@")[0].rpartition(":")
        is_tagged = "vllm" in word and "/" in name and "/" not in tag  # a mount ends in a path
        if is_tagged and (release := _TAGGED.search(tag)):
            return release[0]
    return ""
