"""The scripts of the published recipes, by name: ``planner workflow``."""

from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import output as out
from planner import planning
from planner.commands import options as opt
from planner.commands.declare import Argument, Option, command


def complete_workflow(incomplete: str) -> list[str]:
    return opt.beginning(incomplete, ("list", *out.list_workflows()))


Name = Annotated[str, Argument(metavar="list|NAME", autocompletion=complete_workflow, help="Name of the workflow.")]
Gpu = Annotated[str, opt.gpu_option("Profile id, alias or file; or 'local'. Default: the document's.")]
OutputDir = Annotated[Path, Option("-o", "--output", metavar="DIR", help="Write the files into this folder.")]
Count = Annotated[int | None, Interval(ge=1)]
Text = str | None


class ChoiceOptions:
    """Choices that take the place of the document's."""

    model: Annotated[str | None, opt.model_argument("[MODEL]", "Default: the document's.")] = None
    engine_version: Annotated[Text, Option(metavar="VERSION", help="vLLM version. Default: the document's.")] = None
    input_len: Annotated[Count, Option("--random-input-len", panel=opt.LOAD, help="Prompt tokens.")] = None
    output_len: Annotated[Count, Option("--random-output-len", panel=opt.LOAD, help="Output tokens.")] = None
    max_concurrency: opt.MaxConcurrency = None
    num_prompts: Annotated[Count, Option(panel=opt.LOAD, help="Requests. Default: the document's.")] = None
    draft: Annotated[
        Text, Option(metavar="MODEL", autocompletion=opt.complete_model, help="Draft model, for 'speculative'.")
    ] = None
    image: Annotated[Text, Option(metavar="NAME", help="Image to run, by its full tag. Default: the version's.")] = None
    weight_dtype: Annotated[
        Text, Option(metavar="DTYPE", help="Precision of the weights: fp16, fp8, mxfp4, nvfp4, ...")
    ] = None
    kv_cache_dtype: Annotated[
        Text, Option(metavar="DTYPE", help="vLLM's --kv-cache-dtype. Default: the document's.")
    ] = None
    tensor_parallel_size: Annotated[
        Count, Option("--tensor-parallel-size", "-tp", help="GPUs that share each layer. Default: the document's.")
    ] = None
    gpus: Annotated[Count, Option(help="GPUs of the node. Default: as the profile says.")] = None


@command("workflow", help="Scripts of published recipes: 'list', or a NAME.", groups=(ChoiceOptions, opt.HubOptions))
def workflow(
    name: Name, *, gpu: Gpu | None = None, output: OutputDir | None = None,
    force: opt.Force = False, calibration: opt.Calibration = None, format: opt.Format = "table", command_line: str,
    **choices: Any,
) -> None:  # fmt: skip
    """Print the files of a workflow, or write them. Settings that do not fit are refused before that."""
    if name == "list":
        out.print_workflows(list(out.list_workflows().values()), format)
        return
    chosen = out.find_workflow(name)
    if output:
        out.check_folder(output, force=force)
    profile, remarks = planning.find_gpu(gpu) if gpu else (None, ())
    local = planning.local_for(calibration)
    out.print_notes((*remarks, *local.notes))
    choice = out.Choice(gpu=profile, local=local, **choices)
    files = out.plan_workflow(chosen, choice, command=command_line)
    if output:
        out.write_folder(output, files, force=force)
        out.note(f"wrote {len(files)} files into {output}; start with WORKFLOW.md")
    out.print_files({file: out.purpose_of(file) for file in files}, format)
    out.print_notes([out.calibration_of(files)])
    if not output:
        out.note(f"write them with: {command_line} -o {name}")
