"""``planner workflow``: the scripts of the published recipes, by name."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from planner.cli import options as flag
from planner.cli.options import Format

LIST = "list"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("workflow", help="Scripts of the published recipes: 'list' shows them, a NAME writes them.")(workflow)


def workflow(
    *,
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="list|NAME", help="Which workflow.")],
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Default: the document's.")] = None,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="GPU", help="Profile id, alias or file; 'local'. Default: the document's."),
    ] = None,
    engine_version: flag.EngineVersionOption = None,
    input_len: Annotated[
        int | None, typer.Option("--random-input-len", min=1, rich_help_panel=flag.LOAD, help="Prompt tokens.")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option("--random-output-len", min=1, rich_help_panel=flag.LOAD, help="Output tokens.")
    ] = None,
    max_concurrency: Annotated[
        int | None, typer.Option("--max-concurrency", min=1, rich_help_panel=flag.LOAD, help="Requests in flight.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="Model that drafts, for 'speculative'.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write the files into this folder.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write into a folder that exists.")] = False,
    calibration: flag.Calibration = None,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0; whether the settings fit was checked before anything is written."""
    from planner.cli.inputs import gpu_profile, local_fits
    from planner.output import (
        Choice,
        calibration_of,
        find_workflow,
        list_workflows,
        note,
        plan_workflow,
        print_files,
        print_notes,
        print_workflows,
        purpose_of,
        write_folder,
    )

    if name == LIST:
        print_workflows([found.summary() for found in list_workflows().values()], output)
        return 0
    chosen = find_workflow(name)
    profile = gpu_profile(gpu) if gpu else None
    choice = Choice(
        model,
        profile,
        engine_version,
        input_len,
        output_len,
        max_concurrency,
        draft,
        revision=revision,
        refresh=refresh,
        local=local_fits(calibration),
    )
    command = shlex.join(["planner", *(context.obj or ())])
    files = plan_workflow(chosen, choice, command=command)
    if directory:
        write_folder(directory, files, force=force)
        note(f"wrote {len(files)} files into {directory}; start with WORKFLOW.md")
    print_files({file: purpose_of(file) for file in files}, output)
    print_notes([f"calibration: {calibration_of(files)}"])
    if not directory:
        note(f"write them with: {command} -o {name}")
    return 0
