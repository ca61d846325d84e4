"""The scripts of the published recipes, by name: ``planner workflow``."""

from pathlib import Path
from typing import Annotated, Any

from planner import output as out
from planner import planning
from planner.commands import options as opt
from planner.commands.declare import Argument, Option, command


def complete_workflow(incomplete: str) -> list[str]:
    return opt.beginning(incomplete, ("list", *out.list_workflows()))


Name = Annotated[str, Argument(metavar="list|NAME", autocompletion=complete_workflow, help="Name of the workflow.")]
Gpu = Annotated[str, opt.gpu_option("Profile id, alias or file; or 'local'. Default: the document's.")]
OutputDir = Annotated[Path, Option("-o", "--output", metavar="DIR", help="Write the files into this folder.")]
CHOICE = opt.group_of("choice")
Model = Annotated[str, opt.model_argument("[MODEL]", "Default: the document's.")]


@command("workflow", help="Scripts of published recipes: 'list', or a NAME.", groups=(CHOICE, opt.HUB))
def workflow(
    name: Name, model: Model | None = None, *, gpu: Gpu | None = None, output: OutputDir | None = None,
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
    choice = out.Choice(model, profile, local=local, **choices)
    files = out.plan_workflow(chosen, choice, command=command_line)
    if output:
        out.write_folder(output, files, force=force)
        out.note(f"wrote {len(files)} files into {output}; start with WORKFLOW.md")
    out.print_files({file: out.purpose_of(file) for file in files}, format)
    out.print_notes([out.calibration_of(files)])
    if not output:
        out.note(f"write them with: {command_line} -o {name}")
