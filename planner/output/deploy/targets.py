"""The platforms that a plan can be deployed on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from planner.errors import InputError, UnknownNameError
from planner.output.deploy.hosts import compose, ray, slurm
from planner.output.deploy.kubernetes import kserve, kubernetes, llm_d, lws
from planner.output.deploy.pods import MOST_REPLICAS, Pods, Site, describe
from planner.output.scripts.emission import Emission, servers_per_node
from planner.output.scripts.text import refuse_tokens
from planner.planning import Plan

_SERVER = ("name", "start_timeout_s")
_POD = (*_SERVER, "replicas", "hf_secret", "gpu_resource", "tolerations", "node_selector")
_CLUSTER = (*_POD, "namespace", "cache")
_HOST = (*_SERVER, "host", "nodes")
#: Fields of ``Site`` whose option is not just their name with dashes.
FLAGS = {"tolerations": "--toleration", "start_timeout_s": "--start-timeout"}


@dataclass(frozen=True, slots=True)
class Target:
    """A platform: what it makes of pods, and the fields of ``Site`` that it reads."""

    summary: str
    make: Callable[[Pods], dict[str, str]]
    takes: tuple[str, ...]
    most: Callable[[Plan], int] = lambda _: MOST_REPLICAS  #: servers that one deployment has


def _one(plan: Plan) -> int:
    del plan
    return 1


TARGETS = {
    "compose": Target("docker compose on one node", compose, (*_SERVER, "replicas", "host", "port"), servers_per_node),
    "kubernetes": Target("Deployment and Service", kubernetes, (*_CLUSTER, "port")),
    "lws": Target("LeaderWorkerSet: one server over several nodes", lws, (*_CLUSTER, "port", "nodes", "rdma_resource")),
    "kserve": Target("KServe InferenceService", kserve, _CLUSTER),
    "llm-d": Target("values of the chart llm-d-modelservice", llm_d, _POD),
    "slurm": Target("batch script, with pyxis or apptainer", slurm, (*_HOST, "container"), _one),
    "ray": Target("scripts for nodes with docker, joined by Ray", ray, _HOST, _one),
}
#: Every file of any target.
FILES = (
    "compose.yaml", "nginx.conf", "kubernetes.yaml", "lws.yaml", "kserve.yaml", "llm-d-values.yaml", "server.sbatch",
    "build.sh", "launch.sh",
)  # fmt: skip


def render_deployable(
    emission: Emission, target: str, site: Site | None = None, *, command: str = "planner deploy"
) -> dict[str, str]:
    """File name to content for one target; ``command`` is the command line that the headers show.

    Raises UnknownNameError for an unknown target, InputError for an option without effect on the target, and
    IllegalPlanError for a plan that does not fit the target.
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, TARGETS, see=f"--target: {', '.join(TARGETS)}")
    platform, asked = TARGETS[target], site or Site()
    for field in fields(Site):
        if field.name not in platform.takes and getattr(asked, field.name) != field.default:
            flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
            raise InputError(
                f"{flag} has no effect with --target {target}", hint="leave it out, or name another target"
            )
    files = platform.make(describe(emission, asked, command, platform.most(emission.file.plan)))
    refuse_tokens(files)
    return files
