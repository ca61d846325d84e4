"""The platforms that a plan can be deployed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from planner.errors import InputError, UnknownNameError
from planner.output.deploy.compose import compose
from planner.output.deploy.deployable import Deployable
from planner.output.deploy.kubernetes import kserve, kubernetes, llm_d, lws
from planner.output.deploy.shell import RAY_SCRIPTS, ray, slurm
from planner.output.deploy.site import Site
from planner.output.scripts.emission import Emission
from planner.output.scripts.text import refuse_tokens

_SERVER = ("name", "start_timeout_s")
_POD = (*_SERVER, "replicas", "hf_secret", "gpu_resource", "tolerations", "node_selector")
_CLUSTER = (*_POD, "namespace", "cache")
_HOST = (*_SERVER, "host", "nodes")
#: How a field of ``Site`` is called on the command line, where it is not just with dashes.
FLAGS = {"tolerations": "--toleration", "start_timeout_s": "--start-timeout"}


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform."""

    name: str
    summary: str
    make: Callable[[Deployable], dict[str, str]]
    takes: tuple[str, ...]  #: fields of ``Site`` that mean something to it


_ALL = (
    Platform("compose", "docker compose on one node", compose, (*_SERVER, "replicas", "host", "port")),
    Platform("kubernetes", "Deployment and Service", kubernetes, (*_CLUSTER, "port")),
    Platform("lws", "LeaderWorkerSet: one server over several nodes", lws, (*_CLUSTER, "port", "nodes")),
    Platform("kserve", "KServe InferenceService", kserve, _CLUSTER),
    Platform("llm-d", "values of the chart llm-d-modelservice", llm_d, _POD),
    Platform("slurm", "batch script, with pyxis or apptainer", slurm, (*_HOST, "container")),
    Platform("ray", "scripts for a Ray cluster of nodes with docker", ray, _HOST),
)
TARGETS = {target.name: target for target in _ALL}
#: Everything that any target may write.
FILES = (
    "compose.yaml", "nginx.conf", "kubernetes.yaml", "lws.yaml", "kserve.yaml", "llm-d-values.yaml", "server.sbatch",
    *RAY_SCRIPTS,
)  # fmt: skip


def find_target(name: str) -> Platform:
    """The target of this name. Raises UnknownNameError."""
    if name not in TARGETS:
        raise UnknownNameError("target", name, TARGETS, see=f"--target: {', '.join(TARGETS)}")
    return TARGETS[name]


def render_deployable(
    emission: Emission, target: str, site: Site | None = None, *, command: str = "planner deploy"
) -> dict[str, str]:
    """File name to content for one target; ``command`` is what the headers say was typed.

    Raises UnknownNameError for a target that is none, InputError for an option that the target has no use for or that
    the plan leaves no room for, and IllegalPlanError for a plan that does not fit the target.
    """
    found, asked = find_target(target), site or Site()
    for field in fields(Site):
        if field.name not in found.takes and getattr(asked, field.name) != field.default:
            flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
            raise InputError(
                f"{flag} has no effect with --target {target}", hint="leave it out, or name another target"
            )
    files = found.make(Deployable(emission, asked, command))
    refuse_tokens(files)
    return files
