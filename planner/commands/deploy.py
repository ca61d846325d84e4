"""A plan as docker compose, Kubernetes, Slurm and the like run it: ``planner deploy``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from planner.commands.declare import Argument, Option, command
from planner.commands.options import Force
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.output import Emission, Site


class Target(StrEnum):
    """The platforms. The parser takes a list of an enumeration, and none of a ``Literal``."""

    compose = "compose"
    kubernetes = "kubernetes"
    lws = "lws"
    kserve = "kserve"
    llm_d = "llm-d"
    slurm = "slurm"
    ray = "ray"


def _site(help: str, **settings: Any) -> Option:
    return Option(panel="Where it runs", help=help, **settings)


PlanDir = Annotated[Path, Argument(metavar="DIR", help="Folder of a plan, as recommend -o wrote it.")]
Targets = Annotated[list[Target], Option("--target", help="Platform. Repeatable.")]
OutputDir = Annotated[
    Path, Option("-o", "--output", metavar="OUT", help="Write into this folder. Default: print a single file.")
]
Replicas = Annotated[int, _site("Servers like the planned one.")]
Nodes = Annotated[int, _site("Nodes that one server spans.")]
Name = Annotated[str, _site("Name of what is made. Default: planner-DIGEST.")]
Namespace = Annotated[str, _site("Namespace of Kubernetes.")]
Host = Annotated[str, _site("Address at which the server is reached.")]
Port = Annotated[int, _site("Port at which the server is reached.")]
HfSecret = Annotated[str, _site("Name of the Secret with the key HF_TOKEN.")]
Cache = Annotated[str, _site("Where models are kept: emptydir, pvc or claim/NAME.")]
GpuResource = Annotated[str, _site("Name of the GPUs in the device plugin.")]
Tolerations = Annotated[
    list[str],
    Option(
        "--toleration",
        metavar="KEY[=VALUE][:EFFECT]",
        panel="Where it runs",
        help="Taint that the server tolerates. Repeatable.",
    ),
]
NodeSelector = Annotated[list[str], _site("Label of the nodes to run on. Repeatable.", metavar="KEY=VALUE")]
StartTimeout = Annotated[int, _site("Seconds until the server answers. Default: by the size of the weights.", min=1)]
Container = Annotated[Literal["pyxis", "apptainer"], _site("What runs containers under Slurm.")]


@command("deploy", help="A plan as docker compose, Kubernetes, Slurm and the like run it.")
def deploy(
    directory: PlanDir,
    *,
    target: Targets,
    output: OutputDir | None = None,
    force: Force = False,
    replicas: Replicas = 1,
    nodes: Nodes | None = None,
    name: Name = "",
    namespace: Namespace = "",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    hf_secret: HfSecret = "hf-token",
    cache: Cache = "emptydir",
    gpu_resource: GpuResource = "",
    toleration: Tolerations | None = None,
    node_selector: NodeSelector | None = None,
    start_timeout: StartTimeout | None = None,
    container: Container = "pyxis",
    command_line: str,
) -> None:
    """Print the file that deploys a plan, or write the files. A plan that cannot be deployed is refused first."""
    from planner.output import Site

    site = Site(
        replicas=replicas,
        nodes=nodes,
        name=name,
        namespace=namespace,
        host=host,
        port=port,
        hf_secret=hf_secret,
        cache=cache,
        gpu_resource=gpu_resource,
        tolerations=tuple(toleration or ()),
        node_selector=tuple(node_selector or ()),
        start_timeout_s=start_timeout,
        container=container,
    )
    made = _made(_emission(directory), list(dict.fromkeys(one.value for one in target)), site, command_line)
    if output is None:
        _print(made)
    else:
        _write(output, made, force=force)


def _emission(directory: Path) -> Emission:
    """The plan of a folder and what is said about it."""
    from planner.hardware import load_profile
    from planner.output import Emission, predicted_lines
    from planner.planning import read_plan

    file = read_plan(directory)
    plan = file.plan
    try:
        lines, checkpoint_bytes = tuple(predicted_lines(plan)), int(plan.memory["checkpoint_bytes"])
    except KeyError as error:
        raise InputError(
            f"{directory / 'plan.json'} does not say {error.args[0]}",
            hint="write the plan again with planner recommend",
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{directory / 'plan.json'} has figures that are no numbers",
            hint="write the plan again with planner recommend",
        ) from error
    return Emission(file, load_profile(plan.gpu), checkpoint_bytes, lines)


def _made(emission: Emission, targets: list[str], site: Site, command: str) -> dict[str, str]:
    """The files of one target; those of several in a folder for each."""
    from planner.output import render_deployable as deployed

    if len(targets) == 1:
        return deployed(emission, targets[0], site, command=command)
    return {
        f"{name}/{file}": content
        for name in targets
        for file, content in deployed(emission, name, site, command=command).items()
    }


def _print(made: dict[str, str]) -> None:
    if len(made) > 1:
        raise InputError(f"these are {len(made)} files: {', '.join(made)}", hint="say where to write them with -o OUT")
    print(*made.values(), end="")


def _write(output: Path, made: dict[str, str], *, force: bool) -> None:
    from planner.output import FILES, note, write_folder

    if (output / "plan.json").exists():
        raise InputError(
            f"-o {output} is the folder of a plan, whose scripts have the same names",
            hint=f"name another one, such as {output / 'deploy'}",
        )
    write_folder(output, made, force=force, replaces=FILES)
    note(f"wrote {', '.join(made)} into {output}")
