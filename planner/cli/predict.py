"""``planner predict``: how fast, in the words of ``vllm bench``."""

from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from planner.cli import options as flag
from planner.cli.engine_flags import takes_engine_flags
from planner.cli.options import Format

if TYPE_CHECKING:
    from planner.engine.config import EngineArgs
    from planner.workload import Workload


class Case(NamedTuple):
    """What is to serve the load, as the flags name it."""

    model: str
    gpu: str
    args: "EngineArgs"
    weight_dtype: str | None
    engine_version: str | None
    revision: str | None
    refresh: bool


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="How fast, in the words of vllm bench.", rich_markup_mode=None)
    group.command("serve", help="Client against a server: vllm bench serve.")(serve)
    group.command("throughput", help="Offline, all prompts at once: vllm bench throughput.")(throughput)
    group.command("latency", help="One batch from start to end: vllm bench latency.")(latency)
    app.add_typer(group, name="predict")


@takes_engine_flags()
def serve(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.RandomInputLen = 1024,
    output_len: flag.RandomOutputLen = 128,
    num_prompts: flag.NumPrompts = 1000,
    max_concurrency: flag.MaxConcurrency = None,
    request_rate: flag.RequestRate = float("inf"),
    burstiness: flag.Burstiness = 1.0,
    range_ratio: flag.RangeRatio = 0.0,
    seed: flag.Seed = 0,
    percentiles: flag.Percentiles = "99",
    goodput: flag.Goodput = None,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.cli import inputs
    from planner.workload import Workload

    workload = Workload(
        input_len, output_len, num_prompts, max_concurrency, request_rate, burstiness, range_ratio, seed
    )
    percents, targets_ms = inputs.percentiles(percentiles), inputs.goodput(goodput or ())
    case = Case(model, gpu, args, weight_dtype, engine_version, revision, refresh)
    return _predict("serve", workload, case, output, explain=explain, percentiles=percents, goodput=targets_ms)


@takes_engine_flags()
def throughput(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.InputLen,
    output_len: flag.OutputLen,
    num_prompts: flag.NumPrompts = 1000,
    seed: flag.Seed = 0,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.workload import Workload

    workload = Workload(input_len, output_len, num_prompts, seed=seed)
    case = Case(model, gpu, args, weight_dtype, engine_version, revision, refresh)
    return _predict("throughput", workload, case, output, explain=explain)


@takes_engine_flags()
def latency(
    *,
    model: flag.ModelArgument,
    gpu: flag.Gpu,
    input_len: flag.InputLen = 32,
    output_len: flag.OutputLen = 128,
    batch_size: flag.BatchSize = 8,
    args: "EngineArgs",
    weight_dtype: flag.WeightDtype = None,
    engine_version: flag.EngineVersionOption = None,
    explain: flag.Explain = False,
    output: flag.OutputFormat = Format.table,
    revision: flag.Revision = None,
    refresh: flag.Refresh = False,
) -> int:
    """Exit status 0, or 1 when the KV cache does not hold one request of the load."""
    from planner.workload import Workload

    workload = Workload(input_len, output_len, batch_size)
    case = Case(model, gpu, args, weight_dtype, engine_version, revision, refresh)
    return _predict("latency", workload, case, output, explain=explain)


def _predict(bench: str, workload: "Workload", case: Case, output: str, *, explain: bool, **asked: Any) -> int:
    """Predict ``workload`` and print it; ``asked`` is for the result of the bench."""
    from planner import predict
    from planner.cli import inputs
    from planner.fit import check
    from planner.hardware import load_profile
    from planner.memory.budget import Basis
    from planner.memory.local import constants_for
    from planner.report import prediction as report

    profile = load_profile(case.gpu)  # before the model: a mistyped GPU should not wait for the hub
    resolved = inputs.model_as(case.model, case.weight_dtype, revision=case.revision, refresh=case.refresh)
    version = inputs.engine_version_for(case.engine_version, profile)
    basis = Basis(constants_for(None))  # overheads that the user's own logs taught count here too
    checked = check(resolved.model, profile, case.args, version, basis)
    deployment = predict.deploy(resolved.model, profile, case.args, version, offline=bench != "serve", basis=basis)
    inputs.check_duration(workload)
    inputs.check_context(workload, deployment.config.max_model_len, resolved.resolved)
    if deployment.requests_held(workload.max_total_len) < 1:
        report.print_refusal(deployment, workload, resolved, output)
        return 1
    benches = {
        "serve": predict.predict_serve,
        "throughput": predict.predict_throughput,
        "latency": predict.predict_latency,
    }
    prediction = benches[bench](deployment, workload, **asked)
    report.print_prediction(bench, prediction, deployment, checked, resolved, output, explain=explain)
    return 0
