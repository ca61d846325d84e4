"""The scripts of the published recipes, by name: ``planner workflow``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from planner.commands.completion import gpus, models, workflows
from planner.commands.declare import Argument, Option, command
from planner.commands.inputs import find_gpu, fits_for
from planner.commands.options import LOAD, Calibration, EngineVersion, Force, Format, Refresh, Revision, Timeout

LIST = "list"

Name = Annotated[str, Argument(metavar="list|NAME", autocompletion=workflows, help="Name of the workflow.")]
Model = Annotated[str, Argument(metavar="[MODEL]", autocompletion=models, help="Default: the document's.")]
Gpu = Annotated[
    str,
    Option(metavar="GPU", autocompletion=gpus, help="Profile id, alias or file; or 'local'. Default: the document's."),
]
InputLen = Annotated[int, Option("--random-input-len", min=1, panel=LOAD, help="Prompt tokens.")]
OutputLen = Annotated[int, Option("--random-output-len", min=1, panel=LOAD, help="Output tokens.")]
InFlight = Annotated[int, Option(min=1, panel=LOAD, help="Requests in flight.")]
Draft = Annotated[str, Option(metavar="MODEL", autocompletion=models, help="Draft model, for 'speculative'.")]
NumPrompts = Annotated[int, Option(min=1, panel=LOAD, help="Requests that are sent. Default: the document's.")]
Image = Annotated[str, Option(metavar="NAME", help="Image to run, by its full tag. Default: the one of the version.")]
Weights = Annotated[str, Option(metavar="DTYPE", help="Precision of the weights: fp16, fp8, mxfp4, nvfp4, ...")]
Cache = Annotated[str, Option(metavar="DTYPE", help="vLLM's --kv-cache-dtype. Default: the document's.")]
Tensor = Annotated[int, Option("--tensor-parallel-size", "-tp", min=1, help="Default: the document's.")]
Gpus = Annotated[int, Option(min=1, help="GPUs of the node. Default: as the profile says.")]
Show = Annotated[bool, Option(help="Show the document's numbers beside the predictions, and write nothing.")]
OutputDir = Annotated[Path, Option("-o", "--output", metavar="DIR", help="Write the files into this folder.")]


@command("workflow", help="Scripts of the published recipes: 'list' shows them, a NAME writes them.")
def workflow(
    name: Name,
    model: Model | None = None,
    *,
    gpu: Gpu | None = None,
    engine_version: EngineVersion = None,
    input_len: InputLen | None = None,
    output_len: OutputLen | None = None,
    max_concurrency: InFlight | None = None,
    num_prompts: NumPrompts | None = None,
    draft: Draft | None = None,
    image: Image | None = None,
    weight_dtype: Weights | None = None,
    kv_cache_dtype: Cache | None = None,
    tensor_parallel_size: Tensor | None = None,
    gpus: Gpus | None = None,
    show: Show = False,
    output: OutputDir | None = None,
    force: Force = False,
    calibration: Calibration = None,
    format: Format = "table",
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
    command_line: str,
) -> None:
    """Print the files of a workflow, or write them. Settings that do not fit are refused before that."""
    from planner.output import (
        Choice,
        WorkflowAnswer,
        calibration_of,
        find_workflow,
        list_workflows,
        note,
        plan_workflow,
        print_answer,
        print_files,
        print_notes,
        print_workflows,
        purpose_of,
        show_workflow,
        write_folder,
    )

    if name == LIST:
        print_workflows([found.summary() for found in list_workflows().values()], format)
        return
    chosen = find_workflow(name)
    profile, remarks = find_gpu(gpu) if gpu else (None, ())
    local = fits_for(calibration)
    print_notes((*remarks, *local.notes))
    choice = Choice(
        model,
        profile,
        engine_version,
        input_len,
        output_len,
        max_concurrency,
        draft,
        num_prompts,
        image,
        weight_dtype,
        kv_cache_dtype,
        tensor_parallel_size,
        gpus,
        revision=revision,
        refresh=refresh,
        timeout_s=timeout,
        local=local,
    )
    if show:
        print_answer(WorkflowAnswer(*show_workflow(chosen, choice)), format)
        return
    files = plan_workflow(chosen, choice, command=command_line)
    if output:
        write_folder(output, files, force=force)
        note(f"wrote {len(files)} files into {output}; start with WORKFLOW.md")
    print_files({file: purpose_of(file) for file in files}, format)
    print_notes([f"calibration: {calibration_of(files)}"])
    if not output:
        note(f"write them with: {command_line} -o {name}")
