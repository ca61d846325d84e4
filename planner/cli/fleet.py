"""``planner fleet``: how many GPUs a load takes, and what that costs."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli import options as flag
from planner.cli.defaults import source_of
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import LOAD, TARGETS, Format
from planner.cli.streams import show
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.engine import EngineArgs

FLEET = "Fleet"


class Minimise(StrEnum):
    """What the best fleet has least of."""

    usd = "usd"
    gpus = "gpus"
    watts = "watts"


class Rent(StrEnum):
    """What is rented at once."""

    gpu = "gpu"
    node = "node"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("fleet", help="Servers, GPUs, dollars and watts for a load under latency targets.")(fleet)


@takes_engine_flags(
    "kv_cache_dtype",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "cpu_kvcache_space",
    "enforce_eager",
    "allow_unvalidated",
)
def fleet(
    *,
    context: typer.Context,
    model: flag.ModelOrDefault = defaults.MODEL,
    gpu: flag.GpusOrDefault = None,
    request_rate: flag.FleetRate = None,
    input_len: flag.RandomInputLen = defaults.LEN,
    output_len: flag.RandomOutputLen = defaults.LEN,
    range_ratio: flag.RangeRatio = 0.0,
    workload: flag.Workload = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            metavar="NAME=RATE:IN:OUT",
            rich_help_panel=LOAD,
            help="Instead: one of several classes of requests, which may get servers of their own; repeatable.",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            rich_help_panel=LOAD,
            help="Instead: recorded arrivals and lengths, cut into classes by length; --request-rate makes it faster.",
        ),
    ] = None,
    ttft: flag.Ttft = None,
    tpot: flag.Tpot = None,
    e2el: flag.E2el = None,
    percentile: Annotated[
        str, typer.Option("--percentile", metavar="P", rich_help_panel=TARGETS, help="Of the targets, or mean.")
    ] = "99",
    optimistic: flag.Optimistic = False,
    headroom: Annotated[
        float,
        typer.Option("--headroom", rich_help_panel=FLEET, help="Share of the load that is carried on top of it."),
    ] = 0.2,
    n_plus: Annotated[
        int, typer.Option("--n-plus", min=0, max=100, rich_help_panel=FLEET, help="Spare servers of each kind.")
    ] = 1,
    minimise: Annotated[
        Minimise, typer.Option("--minimise", rich_help_panel=FLEET, help="What the best fleet has least of.")
    ] = Minimise.usd,
    rent: Annotated[
        Rent, typer.Option("--rent", rich_help_panel=FLEET, help="What is rented at once: GPUs, or whole nodes.")
    ] = Rent.gpu,
    stock: Annotated[
        list[str] | None,
        typer.Option(
            "--stock", metavar="GPU=N", rich_help_panel=FLEET, help="Whole GPUs that there are at most; repeatable."
        ),
    ] = None,
    price: flag.Price = None,
    disaggregated: Annotated[
        bool,
        typer.Option("--disaggregated", rich_help_panel=FLEET, help="Also with prefill and decode on their own."),
    ] = False,
    kv_transfer: Annotated[
        float | None,
        typer.Option(
            "--kv-transfer-gb-per-s",
            rich_help_panel=FLEET,
            help="GB/s at which one GPU sends KV cache. Default: line rate of the profile's link or network.",
        ),
    ] = None,
    args: "EngineArgs",
    engine_version: flag.EngineVersionOption = None,
    calibration: flag.Calibration = None,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0 when there is a fleet, 1 when no GPU keeps the targets."""
    from planner.api.flags import flags_of
    from planner.api.fleet import size_fleet
    from planner.api.recommend import GIVEN
    from planner.planning import Demand

    def stated(name: str) -> bool:
        """Whether a length is given, or stands in planner.toml and nothing else gives one."""
        source = source_of(context, name)
        return source == "COMMANDLINE" or (source != "DEFAULT" and not (classes or trace or workload))

    answer = size_fleet(
        model,
        gpu or defaults.GPUS,
        request_rate=request_rate,
        input_len=input_len if stated("input_len") else None,
        output_len=output_len if stated("output_len") else None,
        random_range_ratio=range_ratio if stated("range_ratio") else None,
        workload=workload.value if workload else None,
        classes=tuple(map(Demand.parse, classes or ())),
        trace=trace,
        ttft=ttft,
        tpot=tpot,
        e2el=e2el,
        percentile=percentile,
        optimistic=optimistic,
        headroom=headroom,
        n_plus=n_plus,
        minimise=minimise.value,
        rent=rent.value,
        stock=stock or (),
        price=price or (),
        disaggregated=disaggregated,
        kv_transfer_gb_per_s=kv_transfer,
        engine_version=engine_version,
        calibration=calibration,
        revision=revision,
        refresh=refresh,
        **flags_of(args, GIVEN),
    )
    return show(answer, output)
