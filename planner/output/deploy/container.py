"""``docker_args`` of a plan as facts, for platforms that have other words for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import IllegalPlanError

_SWITCHES = {"--privileged": "privileged"}
_LISTS = {
    "--device": "devices",
    "--group-add": "groups",
    "--security-opt": "security_opt",
    "--cap-add": "capabilities",
}
_VALUES = {"--gpus": "gpus", "--ipc": "ipc", "--shm-size": "shm_size"}


@dataclass(frozen=True, slots=True)
class ContainerNeeds:
    """What ``docker run`` is told beside names, ports and folders."""

    devices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    security_opt: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    privileged: bool = False
    gpus: str = ""  #: of NVIDIA: a number, or ``all``
    ipc: str = ""
    shm_size: str = ""

    @property
    def unconfined(self) -> bool:
        """Whether system calls are not filtered."""
        return bool({"seccomp=unconfined", "seccomp:unconfined"} & set(self.security_opt))


def read_docker_args(docker_args: Sequence[str]) -> ContainerNeeds:
    """Raises IllegalPlanError for an option that has no counterpart on other platforms."""
    found: dict[str, Any] = {}
    for flag, value in _pairs(docker_args):
        if flag in _SWITCHES:
            found[_SWITCHES[flag]] = True
        elif flag in _LISTS:
            found[_LISTS[flag]] = (*found.get(_LISTS[flag], ()), value)
        elif flag in _VALUES:
            found[_VALUES[flag]] = value
        else:
            raise IllegalPlanError(
                f"the plan's docker option {flag} has no counterpart on other platforms",
                hint="use launch.sh of the plan's folder, which passes it to docker",
            )
    return ContainerNeeds(**found)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with their values, in the form ``--flag value`` or ``--flag=value``."""
    left = iter(words)
    for word in left:
        flag, equals, value = word.partition("=")
        yield (flag, value) if flag in _SWITCHES or equals else (flag, next(left, ""))
