"""Predicted beside measured: each run is replayed as stated, else as ``docs/reference/results.md`` assumes.

``vllm bench`` draws the same requests, arrivals and order for the same seed, so the mean of the answers tells it::

    100 answers, uniform in [49, 950], seed 42        491.46 tokens on average; published: 491.5"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import islice
from math import inf, log
from statistics import mean, median
from typing import Any, Literal

from planner import progress
from planner.engine import EngineArgs, EngineVersion, of_latency_bench, parse_version, read_drafts, tagged
from planner.errors import InputError, PlannerError
from planner.evidence.runs import RUN_COLUMNS, MeasuredRun, find_contradictions, read_runs
from planner.hardware import GpuProfile, load_profile
from planner.memory import Basis
from planner.model import UNQUANTIZED, Model, as_quantized, resolve_model
from planner.planning import SHIPPED, Deployment, Local, Prediction, resolve_deployment
from planner.resources import calibration_tables, data_dir
from planner.timing import distance, setting_of, settings_near
from planner.units import MS, format_bytes
from planner.workload import NAMED_DISTRIBUTIONS, Load

#: Sampling of the client of the ML.ENERGY leaderboard (``mlenergy/llm/benchmark.py``).
ML_ENERGY_SAMPLING = '{"temperature": 0.8, "top_p": 0.95}'
#: Requests of a published run that does not state them; what we send ourselves stands in ``planning.defaults``.
PUBLISHED_PROMPTS_PER_SLOT = 10
PUBLISHED_PROMPTS = 1000
LEAST_PUBLISHED_PROMPTS, MOST_PUBLISHED_PROMPTS = 20, 5120
#: A closed loop of fixed lengths that does not state its prompts was run by another client: its lengths scatter.
OTHER_RANGE_RATIO = 0.1
#: Lengths with means that are no whole numbers were not alike. The seed that draws those of the one such source draws
#: them from lengths as wide as this, and from no narrower ones.
MEANS_RANGE_RATIO = 0.9
V0_SCHEDULER_STEPS = 10
#: Published runs of such weights that do not state their cache hold more requests than fit in 16 bits.
NARROW_WEIGHTS = frozenset({"fp8", "mxfp8", "nvfp4", "mxfp4", "fp4-experts+fp8"})
CONTEXT_ROOM, LEAST_CONTEXT = 256, 8192
#: The longest request that most published servers allowed: vLLM refuses to start where one such does not fit.
SERVED_CONTEXT = 32768
#: Seeds of ``vllm bench``: its default, and the one that is given most.
USUAL_SEEDS = (0, 42)
ROUND_TOK = (50, 64)  #: lengths that people ask for are multiples of one of these
PRINTED_TOK = 0.051  #: means are published with a decimal
NEAREST = 3  #: published runs beside an answer


@dataclass(frozen=True)
class Case:
    """A run, with the engine and the load that replay it."""

    run: MeasuredRun
    deployment: Deployment
    workload: Load


@dataclass(frozen=True, slots=True)
class PredictedFigure:
    """One metric of one run, in the column's unit."""

    measured: float
    predicted: float
    lo: float | None = None
    hi: float | None = None

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    error_vs_measured = error

    @property
    def covered(self) -> bool | None:
        return None if self.lo is None or self.hi is None else self.lo <= self.measured <= self.hi


Near = tuple[int, Case, str, PredictedFigure]  #: place of a published run, the run, and one of its metrics


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One run: its figures, or why there are none."""

    run: MeasuredRun
    figures: dict[str, PredictedFigure]
    refused: str | None = None
    calibration: str | None = None  #: whose fits predicted: ``shipped``, or the files of the user's own


def evaluate(runs: Iterable[MeasuredRun], local: Local = SHIPPED) -> list[Evaluated]:
    """Predict each run with the fits of ``local``. A run that cannot be predicted is returned with ``refused``."""
    runs = list(runs)
    seen = resent(runs)
    listed = progress.each(runs, lambda run: run.run_id)
    return [evaluate_run(run, local, resent=run.run_id in seen) for run in listed]


def evaluate_run(run: MeasuredRun, local: Local = SHIPPED, *, resent: bool = False) -> Evaluated:
    if run.unread:
        return Evaluated(run, {}, run.unread)
    try:
        case = case_of(run, local, resent=resent)
        prediction = simulate(case)
        predicted = figures_in_columns(case, prediction)
    except PlannerError as error:
        return Evaluated(run, {}, error.cause)
    figures = {}
    for name, measured in run.metrics.items():
        if (value := predicted.get(name)) is not None:
            bounds = prediction.uncertainty.factors(name) or ()
            figures[name] = PredictedFigure(measured, value, *(value * factor for factor in bounds))
    why = None if figures else "no metric of this bench was measured"
    return Evaluated(run, figures, why, case.deployment.calibrated_by)


def nearest_runs(
    engine: Deployment, load: Load, figures: Mapping[str, Any], bench: str = "serve", local: Local = SHIPPED
) -> Iterator[Near]:
    """Yield the published runs nearest to an engine, of which ``figures`` are predicted under ``load``.

    The order: ``distance`` of the setting; the same bench; lengths and requests in flight; the newest release."""
    runs = {run.run_id: run for run in read_runs(data_dir("hardware") / "calibration" / "runs.csv")}
    asked, sizes, seen = setting_of(engine.covariates, engine.config), _sizes(load, figures), resent(runs.values())

    def away(setting: Mapping[str, str], run: MeasuredRun) -> tuple[float, ...]:
        pairs = zip(sizes, _sizes(_stated_load(run), run.metrics), strict=True)
        apart = sum(abs(log(one / other)) for one, other in pairs)
        return distance(asked, setting), run.bench != bench, apart, -int(setting["release"].split(".")[1])

    every = ((one, name) for one in settings_near(asked) for name in one["run_ids"].split())
    ranked = sorted((away(one, runs[name]), name) for one, name in every)
    predicted = (evaluate_run(runs[name], local, resent=name in seen) for _, name in ranked)
    for place, one in enumerate(islice((one for one in predicted if one.figures), NEAREST), 1):
        case = case_of(one.run)
        for metric, figure in one.figures.items():
            if not re.search("p99|itl|e2el", metric):
                yield place, case, metric, figure


def _sizes(load: Load, figures: Mapping[str, Any]) -> tuple[float, float, float]:
    """Tokens of a prompt and of an answer, and requests in flight; of an open loop those that decode."""
    decoding = figures["output_throughput"] * figures["mean_tpot_ms"] * MS if load.open else 0.0
    flying = max(decoding, 1.0) if load.open else min(load.value, load.num_prompts)
    return load.prefix_len + load.input_len, load.output_len, flying


def simulate(case: Case) -> Prediction:
    return Prediction.of(case.deployment, case.workload, bench=case.run.bench)


def figures_in_columns(case: Case, prediction: Prediction) -> dict[str, float]:
    """Return the metrics of a prediction that the run's bench reports, under the names of the columns."""
    result = prediction.figures
    if case.run.bench == "latency":
        output_tok = case.workload.num_prompts * case.workload.output_len
        latency_s = result["avg_latency"]
        return {"avg_latency_s": latency_s, "output_throughput": output_tok / latency_s}
    if case.run.bench == "throughput":
        rates = {"output_throughput": "output_throughput", "total_token_throughput": "tokens_per_second"}
        return {column: result[key] for column, key in rates.items()}
    return {name: value for name, value in result.items() if isinstance(value, float)}


def case_of(run: MeasuredRun, local: Local = SHIPPED, *, resent: bool = False) -> Case:
    """Return engine and load of a run, sent before if ``resent``. Raises PlannerError where it cannot be planned."""
    profile = load_profile(run.gpu)
    workload = run_workload(run)
    model = _model(run.model, run.base_model, run.weight_dtype)
    length = workload.max_total_len
    usual = min(model.max_position_embeddings, max(length + CONTEXT_ROOM, LEAST_CONTEXT))
    context = max(run.max_model_len or usual, length)
    if context > model.max_position_embeddings:  # it ran, so a longer context was allowed
        model = replace(model, max_position_embeddings=context)
    spread = run.expert_parallel_size > 1 and model.is_moe
    stated = {name: getattr(run, name) for name in tagged("result") if name in RUN_COLUMNS}
    args = EngineArgs(**{
        **stated,
        "enable_expert_parallel": spread,
        "kv_cache_dtype": _KV_NAMES.get(run.kv_cache_dtype, run.kv_cache_dtype) or "auto",
        "max_model_len": context,
        "enable_chunked_prefill": (run.max_num_batched_tokens or context) < context or None,  # or vLLM had refused
        "enforce_eager": bool(run.enforce_eager),
        "speculative_config": read_drafts(run.speculative_config or None),
        "override_generation_config": ML_ENERGY_SAMPLING if _assumed_tok(run) else None,
        "allow_unvalidated": True,
    })  # fmt: skip
    # AMD's tables to 0.10.0 were made with the scripts of 0.8.5, which resend cached prompts
    if run.bench == "latency" and not (run.family == "rocm_vllm_readme" and run_version(run).release < (0, 10, 1)):
        args = of_latency_bench(args, run_version(run))
    deployment = _deployed(run, model, profile, args, local)
    weights_bytes, memory_bytes = deployment.budget.binding.weights.loaded_bytes, profile.memory_bytes
    if weights_bytes > memory_bytes:  # a measured run outweighs estimated overheads, but weights are arithmetic
        cause = f"{format_bytes(weights_bytes)} of weights do not fit in the {format_bytes(memory_bytes)} of each GPU"
        raise InputError(cause, hint="check model, weight_dtype and tensor_parallel_size of the run")
    held = max(run.max_model_len or min(SERVED_CONTEXT, model.max_position_embeddings), length)
    deployment = replace(deployment, least_cache_tok=held + deployment.config.block_size)
    if run.bench == "throughput":
        deployment = deployment.stepping(V0_SCHEDULER_STEPS)
    if resent or run.bench == "latency":
        workload = deployment.resent(workload)
    return Case(run, deployment, workload)


def resent(runs: Iterable[MeasuredRun]) -> frozenset[str]:
    """Return the ids of runs whose server has answered the same prompts before.

    Runs with lengths of conversations that differ only in request_rate were sent to one server, the fastest first."""
    sweeps: dict[tuple[object, ...], dict[str, float]] = defaultdict(dict)
    for run in runs:
        if run.length_distribution == "sharegpt" and run.request_rate:
            same = tuple(getattr(run, one.name) for one in fields(run) if one.name not in _OF_A_RATE)
            sweeps[same][run.run_id] = run.request_rate
    return frozenset(run for rates in sweeps.values() for run, rate in rates.items() if rate < max(rates.values()))


def notes_on_runs(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield how many runs are taken to find their prompts cached, and metrics that contradict each other."""
    if seen := resent(runs):
        yield f"runs whose prompts are taken to be cached, by a run at a higher request_rate: {len(seen)}"
    for run in runs:
        yield from (f"{run.run_id}: {what}: are the units the same?" for what in find_contradictions(run))


#: Columns that differ between the runs of a sweep of rates. Lengths of answers do without ``--ignore-eos``.
_OF_A_RATE = frozenset({"run_id", "request_rate", "output_len", "mean_output_len", "source", "metrics"})


def _deployed(run: MeasuredRun, model: Model, profile: GpuProfile, args: EngineArgs, local: Local) -> Deployment:
    def with_cache(kv_cache_dtype: str) -> Deployment:
        asked, offline = replace(args, kv_cache_dtype=kv_cache_dtype), run.bench != "serve"
        return resolve_deployment(
            model, profile, asked, run_version(run), offline=offline, known_to_run=True,
            basis=Basis(local.constants), calibration=local.calibration,
        )  # fmt: skip

    deployment = with_cache(args.kv_cache_dtype)
    narrow = deployment.config.weight_dtype in NARROW_WEIGHTS and deployment.config.engine == "V1"
    careful = all(getattr(run, name) for name in tagged("batch"))  # who states both would state that cache too
    if run.kv_cache_dtype or careful or not narrow:
        return deployment
    try:
        return with_cache("fp8")
    except PlannerError:  # the GPU, the model or the version has no such cache
        return deployment


#: Precisions in the names of checkpoints, finer than what a table says: fp8 of MiniMax-M3-MXFP8 has other kernels.
_FINER = {"fp8": [("mxfp8", "mxfp8")], "int4": [("awq", "int4-awq"), ("gptq", "int4-gptq")]}
_KV_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def run_version(run: MeasuredRun) -> EngineVersion:
    """The engine version of a run. A build without a number takes the newest release of the run's date."""
    version = parse_version(run.engine_version, date=run.date)
    return replace(version, build="vllm+atom-plugin") if run.engine_build == "vllm+atom-plugin" else version


@cache
def _model(name: str, base_model: str, weight_dtype: str) -> Model:
    try:
        model = resolve_model(name, network=False).model
    except PlannerError:
        if not base_model:
            raise
        model = replace(resolve_model(base_model, network=False).model, id=name)
    weight_dtype = next((full for part, full in _FINER.get(weight_dtype, ()) if part in name.lower()), weight_dtype)
    stored = model.quantization.weight_dtype
    if not weight_dtype or weight_dtype == stored or {weight_dtype, stored} <= UNQUANTIZED.keys():
        return model
    return as_quantized(model, weight_dtype)


def run_workload(run: MeasuredRun) -> Load:
    """The load of a run. Raises InputError where it does not state what its bench needs."""
    load, input_tok, output_tok = _stated_load(run), run.mean_input_len, run.mean_output_len
    if not _scatter(run) or not input_tok or not output_tok:
        return load
    seeds = USUAL_SEEDS if run.seed is None else (run.seed,)
    seeded = next(filter(None, (_of_seed(load, seed, output_tok) for seed in seeds)), None)
    with_answers = seeded or _stretched(load, "output_len", output_tok)
    return _stretched(with_answers, "input_len", input_tok)  # a chat template adds tokens to each prompt


def _of_seed(load: Load, seed: int, output_tok: float) -> Load | None:
    """``load`` with a round length from which ``seed`` draws answers of ``output_tok`` on average, if there is one."""
    near = _stretched(replace(load, seed=seed), "output_len", output_tok)
    for step in ROUND_TOK:
        rounded = replace(near, output_len=max(round(near.output_len / step), 1) * step)
        if abs(float(rounded.requests().output_len.mean()) - output_tok) <= PRINTED_TOK:
            return rounded
    return None


def _stretched(load: Load, name: Literal["input_len", "output_len"], counted_tok: float) -> Load:
    drawn_tok = float(getattr(load.requests(), name).mean())
    return replace(load, **{name: max(round(getattr(load, name) * counted_tok / drawn_tok), 1)})


def _stated_load(run: MeasuredRun) -> Load:
    distribution, ratio = NAMED_DISTRIBUTIONS[run.length_distribution]
    nominal = distribution == "below"  # the means follow from the nominal lengths
    usual = _assumed_tok(run)
    input_len = run.input_len if nominal else run.mean_input_len or run.input_len or usual
    output_len = run.output_len if nominal else run.mean_output_len or run.output_len
    if not input_len or not output_len:
        raise InputError(f"{run.run_id}: input_len or output_len is not stated", hint="state both")
    one = Load(
        max(round(input_len), 1), max(round(output_len), 1), 1, range_ratio=_scatter(run) or ratio,
        length_distribution=distribution, burstiness=run.burstiness or 1.0, seed=run.seed or 0,
    )  # fmt: skip
    if run.bench == "latency":
        batch = run.batch_size or run.max_concurrency or run.num_prompts
        if not batch:
            raise InputError(f"{run.run_id}: batch_size is not stated", hint="state it")
        return replace(one, num_prompts=batch)
    if run.bench == "throughput" or run.arrival in ("offline", "all-at-once"):
        places = run.max_concurrency if usual and not run.num_prompts else None  # with an endless queue before them
        return replace(one, num_prompts=run.num_prompts or places or PUBLISHED_PROMPTS, steady=places is not None)
    if run.arrival == "poisson" or (run.request_rate and not run.max_concurrency):
        rate, prompts = run.request_rate or inf, run.num_prompts or PUBLISHED_PROMPTS
        return replace(one, num_prompts=prompts, max_concurrency=run.max_concurrency, request_rate=rate)
    if not run.max_concurrency:
        raise InputError(f"{run.run_id}: neither max_concurrency nor request_rate is stated", hint="state one of them")
    stated = run.num_prompts is not None or run.random_range_ratio is not None
    other = not stated and run.length_distribution == "fixed"
    prompts = PUBLISHED_PROMPTS_PER_SLOT * run.max_concurrency
    prompts = min(max(prompts, LEAST_PUBLISHED_PROMPTS), MOST_PUBLISHED_PROMPTS)
    return replace(
        one,
        num_prompts=run.num_prompts or prompts,
        max_concurrency=run.max_concurrency,
        request_rate=run.request_rate or inf,
        range_ratio=OTHER_RANGE_RATIO if other else one.range_ratio,
    )


def _assumed_tok(run: MeasuredRun) -> int | None:
    """Prompt tokens of a data set of the ML.ENERGY leaderboard, which publishes those of the answers alone."""
    tokens: int | None = calibration_tables("workload")["prompt_tokens"].get(run.length_distribution)
    return tokens


def _scatter(run: MeasuredRun) -> float:
    """The share by which lengths vary that are called fixed: as stated, or as means show that stand alone."""
    if run.length_distribution != "fixed":
        return 0.0
    if run.random_range_ratio is not None:
        return run.random_range_ratio
    means = run.mean_input_len, run.mean_output_len
    shortest_tok = (run.mean_input_len or 0) * (1 - MEANS_RANGE_RATIO)
    alike = run.input_len or run.output_len or shortest_tok < 2 or not any(mean and mean % 1 for mean in means)
    return 0.0 if alike else MEANS_RANGE_RATIO


def summary(evaluated: Sequence[Evaluated]) -> list[dict[str, Any]]:
    """Errors by GPU, bench and metric, as fractions: mean, median, bias, share within 20 %, coverage."""
    groups: dict[tuple[str, str, str], list[PredictedFigure]] = defaultdict(list)
    for one in evaluated:
        for metric, figure in one.figures.items():
            groups[one.run.gpu, one.run.bench, metric].append(figure)
    return [
        {"gpu": gpu, "bench": bench, "metric": metric, **statistics(figures)}
        for (gpu, bench, metric), figures in sorted(groups.items())
    ]


def statistics(figures: Sequence[PredictedFigure]) -> dict[str, Any]:
    """Mean, median and share within 20 % of absolute relative errors; mean signed error (bias); coverage."""
    errors = [abs(figure.error) for figure in figures]
    covered = [figure.covered for figure in figures if figure.covered is not None]
    return {
        "n": len(figures),
        "mape": mean(errors),
        "median_ape": median(errors),
        "within_20": sum(error <= 0.2 for error in errors) / len(errors),
        "bias": mean(figure.error for figure in figures),
        "coverage_90": sum(covered) / len(covered) if covered else None,
    }
