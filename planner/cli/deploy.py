"""``planner deploy``: an emitted plan as docker compose, Kubernetes, Slurm and the like run it."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from planner.output import Emission, Site

SITE = "The place where it runs"


class TargetName(StrEnum):
    """The platforms, as ``planner.scripts.deploy`` knows them."""

    compose = "compose"
    kubernetes = "kubernetes"
    lws = "lws"
    kserve = "kserve"
    llm_d = "llm-d"
    slurm = "slurm"
    ray = "ray"


class Container(StrEnum):
    """What runs containers under Slurm."""

    pyxis = "pyxis"
    apptainer = "apptainer"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("deploy", help="A plan as docker compose, Kubernetes, Slurm and the like run it.")(deploy)


def deploy(
    *,
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a plan, as recommend -o wrote it.")],
    target: Annotated[list[TargetName], typer.Option("--target", help="Platform; repeatable.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="OUT", help="Write into this folder. Default: print a single file."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
    replicas: Annotated[
        int, typer.Option("--replicas", rich_help_panel=SITE, help="Servers like the planned one.")
    ] = 1,
    nodes: Annotated[
        int | None, typer.Option("--nodes", rich_help_panel=SITE, help="Machines that one server is spread over.")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", rich_help_panel=SITE, help="Of what is made. Default: planner-DIGEST.")
    ] = "",
    namespace: Annotated[str, typer.Option("--namespace", rich_help_panel=SITE, help="Of Kubernetes.")] = "",
    host: Annotated[
        str, typer.Option("--host", rich_help_panel=SITE, help="Address that the server is reached at.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", rich_help_panel=SITE, help="Port that it is reached at.")] = 8000,
    hf_secret: Annotated[
        str, typer.Option("--hf-secret", rich_help_panel=SITE, help="Name of the Secret with the key HF_TOKEN.")
    ] = "hf-token",  # noqa: S107  (the name of a Secret)
    cache: Annotated[
        str, typer.Option("--cache", rich_help_panel=SITE, help="Where models are kept: emptydir, pvc or claim/NAME.")
    ] = "emptydir",
    gpu_resource: Annotated[
        str, typer.Option("--gpu-resource", rich_help_panel=SITE, help="GPUs as the device plugin calls them.")
    ] = "",
    toleration: Annotated[
        list[str] | None,
        typer.Option(
            "--toleration", metavar="KEY[=VALUE][:EFFECT]", rich_help_panel=SITE, help="Of a taint; repeatable."
        ),
    ] = None,
    node_selector: Annotated[
        list[str] | None,
        typer.Option("--node-selector", metavar="KEY=VALUE", rich_help_panel=SITE, help="Of a node; repeatable."),
    ] = None,
    start_timeout: Annotated[
        int | None,
        typer.Option("--start-timeout", min=1, rich_help_panel=SITE, help="Seconds. Default: by the weights."),
    ] = None,
    container: Annotated[
        Container, typer.Option("--container", rich_help_panel=SITE, help="What runs containers under Slurm.")
    ] = Container.pyxis,
) -> int:
    """Exit status 0; what cannot be deployed as planned is refused before anything is written."""
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
        container=container.value,
    )
    command = shlex.join(["planner", *(context.obj or ())])
    targets = list(dict.fromkeys(one.value for one in target))
    made = _made(_emission(directory), targets, site, command)
    if output is None:
        _print(made)
    else:
        _write(output, made, force=force)
    return 0


def _emission(directory: Path) -> "Emission":
    """The plan of a folder and what is said about it."""
    from planner.errors import InputError
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


def _made(emission: "Emission", targets: list[str], site: "Site", command: str) -> dict[str, str]:
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
    from planner.errors import InputError

    if len(made) > 1:
        raise InputError(f"these are {len(made)} files: {', '.join(made)}", hint="say where to write them with -o OUT")
    print(*made.values(), end="")


def _write(output: Path, made: dict[str, str], *, force: bool) -> None:
    from planner.errors import InputError
    from planner.output import FILES, note, write_folder

    if (output / "plan.json").exists():
        raise InputError(
            f"-o {output} is the folder of a plan, whose scripts have the same names",
            hint=f"name another one, such as {output / 'deploy'}",
        )
    write_folder(output, made, force=force, replaces=FILES)
    note(f"wrote {', '.join(made)} into {output}")
