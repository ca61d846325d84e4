"""The place where a plan is to run: what its user knows about it and the plan does not."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planner.engine import EVERYWHERE, LOOPBACK
from planner.errors import InputError
from planner.output.scripts.emission import PORT

MOST_REPLICAS = 1000
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Kubernetes appends to the name of a workload: ten characters of a ReplicaSet, numbers of LeaderWorkerSet's pods.
_LONGEST_NAME = 50
HF_SECRET = "hf-token"
_LABEL_FORM = "lower-case letters, digits and dashes"


@dataclass(frozen=True, slots=True)
class Site:
    """What is asked for beside the plan. Empty and None: the target's own default.

    Raises InputError for a name that the platform would not take.
    """

    replicas: int = 1  #: servers like the planned one
    nodes: int | None = None  #: nodes that one server is spread over; None: as many as the planned node size needs
    name: str = ""
    namespace: str = ""
    host: str = LOOPBACK  #: address that the server is reached at, where containers use the network of their node
    port: int = PORT
    hf_secret: str = HF_SECRET  #: name of a Secret with the key HF_TOKEN
    cache: str = "emptydir"  #: ``emptydir``, ``pvc`` (a new claim), or ``claim/NAME``
    gpu_resource: str = ""  #: as the device plugin names it
    tolerations: tuple[str, ...] = ()  #: ``KEY[=VALUE][:EFFECT]``
    node_selector: tuple[str, ...] = ()  #: ``KEY=VALUE``
    start_timeout_s: int | None = None
    container: Literal["pyxis", "apptainer"] = "pyxis"

    def __post_init__(self) -> None:
        """Check every field. Names follow the rules of DNS and of Kubernetes."""
        _check_name("--name", self.name, _LABEL, _LABEL_FORM, _LONGEST_NAME)
        _check_name("--namespace", self.namespace, _LABEL, _LABEL_FORM, 63)
        _check_name("--hf-secret", self.hf_secret, _SUBDOMAIN, "lower-case letters, digits, dashes and dots", 253)
        _check_name("--gpu-resource", self.gpu_resource, _QUALIFIED, "vendor.com/name", 316)
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise InputError(f"--replicas {self.replicas} is no number of servers", hint=f"from 1 to {MOST_REPLICAS}")
        if not 1 <= self.port <= 65535:
            raise InputError(f"--port {self.port} is no port", hint="from 1 to 65535")
        try:
            ipaddress.IPv4Address(self.host)
        except ValueError as error:
            raise InputError(
                f"--host {self.host[:80]!r} is no IPv4 address", hint=f"such as {LOOPBACK}, or {EVERYWHERE} for all"
            ) from error
        if self.cache not in ("emptydir", "pvc"):
            form, _, claim = self.cache.partition("/")
            if form != "claim":
                raise InputError(
                    f"--cache {self.cache!r} is no place for models",
                    hint="emptydir, pvc, or claim/NAME for one that exists",
                )
            _check_name("--cache", claim or "-", _SUBDOMAIN, "claim/ and the name of a claim", 253)
        tuple(self.taints())
        self.node_labels()

    @property
    def claim(self) -> str:
        """The existing claim that holds the models; empty where there is none."""
        return self.cache.partition("/")[2]

    def taints(self) -> Iterator[dict[str, str]]:
        """Tolerations as Kubernetes writes them. Without ``=VALUE`` any value is tolerated, without effect each one."""
        for text in self.tolerations:
            pair, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
            key, equals, value = pair.partition("=")
            named = _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)
            if not named or (colon and effect not in _EFFECTS):
                raise InputError(
                    f"--toleration {text!r} is no toleration",
                    hint=f"KEY, KEY=VALUE or KEY=VALUE:EFFECT with {', '.join(_EFFECTS)}",
                )
            taint = {"key": key, "operator": "Equal" if equals else "Exists"}
            yield taint | ({"value": value} if equals else {}) | ({"effect": effect} if effect else {})

    def node_labels(self) -> dict[str, str]:
        """Labels that a node must have."""
        labels: dict[str, str] = {}
        for text in self.node_selector:
            key, equals, value = text.partition("=")
            if not (equals and _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
                raise InputError(
                    f"--node-selector {text!r} is no label", hint="KEY=VALUE, as kubectl get nodes --show-labels has it"
                )
            labels[key] = value
        return labels


def _check_name(flag: str, name: str, form: re.Pattern[str], what: str, longest: int) -> None:
    if name and (not form.fullmatch(name) or len(name) > longest):
        raise InputError(f"{flag} {name[:80]!r} cannot be used", hint=f"{what}, at most {longest} characters")
