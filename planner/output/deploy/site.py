"""The place where a plan runs: everything that a user knows about it beyond the plan."""

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
HF_SECRET = "hf-token"
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_LABEL = (r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "lower-case letters, digits and dashes")
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
#: Names by their flag: form, form in words, and the longest one. Kubernetes appends to the name of a workload: ten
#: characters of a ReplicaSet, numbers of LeaderWorkerSet's pods.
_NAMES = {
    "--name": (*_LABEL, 50),
    "--namespace": (*_LABEL, 63),
    "--hf-secret": (_SUBDOMAIN, "lower-case letters, digits, dashes and dots", 253),
    "--gpu-resource": (_QUALIFIED.pattern, "vendor.com/name", 316),
    "--rdma-resource": (_QUALIFIED.pattern, "such as rdma/hca", 316),
    "--cache": (rf"emptydir|pvc|claim/{_SUBDOMAIN}", "emptydir, pvc, or claim/NAME for one that exists", 259),
}


@dataclass(frozen=True, slots=True)
class Site:
    """Options of a deployment beside the plan. Empty and None stand for the target's own default.

    Raises InputError for a name that the platform would refuse.
    """

    replicas: int | None = None  #: servers like the planned one; None: as many as the plan needs
    nodes: int | None = None  #: nodes of one server; None: as many as the planned node size needs
    name: str = ""
    namespace: str = ""
    host: str = LOOPBACK  #: address of the server, where containers use the network of their node
    port: int = PORT
    hf_secret: str = HF_SECRET  #: name of a Secret with the key HF_TOKEN
    cache: str = "pvc"  #: ``emptydir``, ``pvc`` (a new claim), or ``claim/NAME``
    gpu_resource: str = ""  #: as the device plugin names it
    rdma_resource: str = ""  #: as the device plugin names the adapters between nodes
    tolerations: tuple[str, ...] = ()  #: ``KEY[=VALUE][:EFFECT]``
    node_selector: tuple[str, ...] = ()  #: ``KEY=VALUE``
    start_timeout_s: int | None = None
    container: Literal["pyxis", "apptainer"] = "pyxis"

    def __post_init__(self) -> None:
        """Check every field. Names follow the rules of DNS and of Kubernetes."""
        for flag, (form, words, longest) in _NAMES.items():
            name = getattr(self, flag[2:].replace("-", "_"))
            if (name or flag == "--cache") and (not re.fullmatch(form, name) or len(name) > longest):
                raise InputError(f"{flag} {name[:80]!r} cannot be used", hint=f"{words}, at most {longest} characters")
        for flag, value, most in (("--replicas", self.replicas, MOST_REPLICAS), ("--port", self.port, 65535)):
            if value is not None and not 1 <= value <= most:
                raise InputError(f"{flag} {value} is out of range", hint=f"from 1 to {most}")
        try:
            ipaddress.IPv4Address(self.host)
        except ValueError as error:
            raise InputError(
                f"--host {self.host[:80]!r} is not an IPv4 address", hint=f"such as {LOOPBACK}, or {EVERYWHERE} for all"
            ) from error
        tuple(self.taints())
        self.node_labels()

    def taints(self) -> Iterator[dict[str, str]]:
        """Tolerations as Kubernetes writes them. Without ``=VALUE`` any value is tolerated, without effect each one."""
        for text in self.tolerations:
            pair, colon, effect = text.rpartition(":") if ":" in text else (text, "", "")
            key, equals, value = pair.partition("=")
            named = _QUALIFIED.fullmatch(key) and _LABEL_VALUE.fullmatch(value)
            if not named or (colon and effect not in _EFFECTS):
                raise InputError(
                    f"--toleration {text!r} cannot be used",
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
                    f"--node-selector {text!r} cannot be used", hint="KEY=VALUE, as kubectl get nodes --show-labels"
                )
            labels[key] = value
        return labels
