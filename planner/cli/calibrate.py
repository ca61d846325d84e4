"""``planner calibrate``: learn from a user's own runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import LOAD, Format
from planner.cli.streams import show

if TYPE_CHECKING:
    from planner.engine import EngineArgs

RESULTS = "Results without a plan.json"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("calibrate", help="Learn from your own runs: the next prediction on this machine uses it.")(calibrate)


@takes_engine_flags(
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "enforce_eager",
    "enable_prefix_caching",
    "async_scheduling",
)
def calibrate(
    *,
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS.csv|RESULT.json|DIR]...",
            help="Tables of runs, results of vllm bench, folders of plans. Default: the runs that are kept, once more.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: this user's own calibration.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Leave out the runs of earlier calibrations.")] = False,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="GPU", rich_help_panel=RESULTS, help="Profile id or alias.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", rich_help_panel=RESULTS, help="Default: the result's.")
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option("--engine-version", metavar="VERSION", rich_help_panel=RESULTS, help="Of vLLM.")
    ] = None,
    weight_dtype: Annotated[
        str | None, typer.Option("--weight-dtype", rich_help_panel=RESULTS, help="Default: the checkpoint's.")
    ] = None,
    args: "EngineArgs",
    input_len: Annotated[
        int | None, typer.Option("--input-len", min=1, rich_help_panel=LOAD, help="Of a latency or throughput result.")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option("--output-len", min=1, rich_help_panel=LOAD, help="Likewise.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, rich_help_panel=LOAD, help="Of a latency result.")
    ] = None,
    output: flag.OutputFormat = Format.table,
) -> int:
    """Exit status 0 when the calibration is better and was kept, 1 when it is not and nothing was changed."""
    from planner.api.flags import flags_of
    from planner.api.measured import calibrate_from

    answer = calibrate_from(
        *(sources or ()),
        output=file,
        fresh=fresh,
        gpu=gpu,
        model=model,
        engine_version=engine_version,
        weight_dtype=weight_dtype,
        input_len=input_len,
        output_len=output_len,
        batch_size=batch_size,
        **flags_of(args),
    )
    return show(answer, output)
