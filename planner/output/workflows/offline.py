"""Loads that a workflow measures, each with its prediction: offline points of the document, and loads of a sweep."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from planner import engine, planning
from planner.errors import IllegalPlanError, InputError
from planner.output.scripts.emission import SEED_STEP, served_name
from planner.output.workflows.documents import Command, Point, purposes
from planner.output.workflows.subject import Subject
from planner.workload import Load

#: Scripts that are made from the template ``offline.sh.j2``.
OFFLINE_SCRIPTS = ("latency.sh", "ttft.sh", "throughput.sh", "speculative.sh", "quick_reduce.sh", "aiter.sh")
WARM_UP_ITERATIONS, ITERATIONS = 10, 30  #: defaults of ``vllm bench latency``
RATES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1)  #: shares of the predicted highest request rate, from idle to overload
LEAST_PROMPTS = 100  #: of a load at a rate
MOST_STEPS = 50  #: more doublings than ``max_num_seqs`` has


@dataclass(frozen=True, slots=True)
class OfflinePoint:
    """One offline measurement: its command, and its prediction."""

    name: str
    key: str  #: of the result file
    expected: str
    options: tuple[str, ...]  #: of docker run
    argv: tuple[str, ...]
    metric: str  #: ``avg_latency`` in seconds, ``output_throughput`` in tokens/s
    predicted: Mapping[str, Any]  #: the keys of the result file with their intervals; empty: no prediction
    published: float | None
    printed: Command
    published_key: float | None = None  #: ``published`` in the unit of ``key``
    env: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The entry that ``planner validate`` compares a result with."""
        lo, hi = (self.predicted.get(f"{self.key}_{end}") for end in ("lo", "hi"))
        own = {"name": self.name, "key": self.key, "predicted": self.predicted.get(self.key)}
        return {**own, "lo": lo, "hi": hi, "published": self.published_key}


def offline_names(job: Subject, script: str) -> dict[str, Any]:
    points, purpose = offline_points(job, script), purposes()[script]
    return {"title": f"{purpose[0].upper()}{purpose[1:]}.", "points": points}


def offline_points(job: Subject, script: str = "") -> tuple[OfflinePoint, ...]:
    """The measurements of a script; AMD's own, and no name, have all. Raises IllegalPlanError as ``Subject``."""
    workflow, version, platform = job.workflow, job.version, job.profile.platform
    bench = "throughput" if script == "throughput.sh" else "latency" if script in OFFLINE_SCRIPTS else ""
    points = [point for point in job.points() if bench in str(point.command.read().command)]
    if not points:
        raise InputError(f"{workflow.name} measures no {bench}", hint="planner workflow list shows those that do")
    varied = sorted({name for variant in workflow.variants for name in variant["env"]})
    if varied and not any(engine.env_status(version, name, platform=platform) for name in varied):
        cause = f"{workflow.name}: vLLM {version} does not read {varied[0]}"
        hint = engine.env_status(version, varied[0], platform=platform).hint or "choose another --engine-version"
        raise IllegalPlanError(cause, hint=hint)
    return tuple(
        _point(job, point, variant, predicted=index == 0)
        for point in points
        for index, variant in enumerate(workflow.variants)
    )


def _point(job: Subject, point: Point, variant: Mapping[str, Any], *, predicted: bool) -> OfflinePoint:
    command = point.command
    if job.draft and "--speculative-model" in command.argv:
        command = command.with_options({"--speculative-model": job.draft})
    if dtype := job.workflow.dtypes.get(job.choice.weight_dtype or ""):
        command = command.with_options({"--dtype": dtype})
    deployment, line = _engine(job, command)
    drafts = deployment.config.speculative_config is not None
    load, latency = _load(job, command), "latency" in line.command
    result: Mapping[str, Any] = {}
    if predicted and not drafts and deployment.requests_held(load.total_len) >= 1:
        result = planning.Prediction.of(deployment, load, bench="latency" if latency else "throughput").result
    metric = point.metric or ("avg_latency" if latency else "output_throughput")
    # printed numbers are of this version and of these settings
    measured = job.profile.id == job.workflow.gpus[0] and str(job.version) == job.workflow.engine_version
    as_printed = job.documented and measured and not job.choice.other_run
    published = point.published if as_printed and predicted else None
    env = job.read_env({**command.env, **variant["env"]}) | _same_engine(job)
    own = {name: value for name, value in env.items() if job.plan.env.get(name) != value}
    # the result's key counts input and output tokens
    in_key = published and (published if metric == "avg_latency" else published * load.total_len / load.output_len)
    expected = ", ".join(_expected(result, metric, published, in_key)) or "nothing to compare with"
    partition = job.profile.partition
    if result and partition and not partition.isolated_bandwidth and deployment.config.num_gpus < partition.count:
        expected += "; as if every partition of the GPU were busy, alone it has more bandwidth"
    parts = ["latency" if latency else "throughput", f"in{load.input_len}", f"out{load.output_len}"]
    parts.append(f"bs{load.num_prompts}" if latency else f"prompts{load.num_prompts}")
    name = variant["name"] or (("with" if drafts else "without") if job.draft else "")
    return OfflinePoint(
        name="-".join([*parts, name] if name else parts), key="avg_latency" if latency else "tokens_per_second",
        options=tuple(word for name, value in own.items() for word in ("--env", f"{name}={value}")),
        argv=_argv(job, deployment, line, load, latency=latency), env={**job.plan.env, **own}, expected=expected,
        metric=metric, predicted=result, published=published, printed=point.printed, published_key=in_key,
    )  # fmt: skip


def _engine(job: Subject, command: Command) -> tuple[planning.Deployment, engine.ServeLine]:
    # both runs of a comparison with drafts get the same engine
    version = replace(job.version, engine="V0" if _same_engine(job) else "")
    args, version, line = job.settings(command, version)
    steps = line.num_scheduler_steps
    if "latency" in line.command and args.enable_prefix_caching is None:
        args = replace(args, enable_prefix_caching=False)  # latency.py sets it so from 0.9.1 on
    if not job.documented:  # recommended settings, with the document's way of measuring
        own, version, steps = job.deployment.config, job.version, 1
        # tokens follow the context without chunks
        tokens = max(own.max_num_batched_tokens, args.max_num_seqs or 0) if own.enable_chunked_prefill else None
        of_document = ("enforce_eager", "max_num_seqs", "speculative_config", "enable_prefix_caching")
        args = engine.EngineArgs(
            **{name: getattr(args, name) for name in of_document},
            tensor_parallel_size=own.tensor_parallel_size,
            kv_cache_dtype=own.kv_cache_dtype_flag or "auto",
            gpu_memory_utilization=own.gpu_memory_utilization,
            max_model_len=max(_load(job, command).max_total_len, own.max_model_len),
            max_num_batched_tokens=tokens,
        )
    if args.speculative_config and job.draft:
        draft = {"model": job.draft, "num_speculative_tokens": args.speculative_config.num_speculative_tokens}
        args = replace(args, speculative_config=engine.read_drafts(draft))
    return job.start(args, version, steps=steps, offline=True), line


def _same_engine(job: Subject) -> dict[str, str]:
    """The variable of V0 for runs beside a draft: from 0.8.0 to 0.9.2 only V0 drafts with a model."""
    return {"VLLM_USE_V1": "0"} if job.draft and (0, 8) <= job.version.release < (0, 10) else {}


def _load(job: Subject, command: Command) -> Load:
    load = command.read(platform=job.profile.platform).workload(command.document.version)
    choice = job.choice if "throughput" in command.argv[1] else replace(job.choice, num_prompts=None)
    return choice.sent(load)


def _argv(
    job: Subject, deployment: planning.Deployment, line: engine.ServeLine, load: Load, *, latency: bool
) -> tuple[str, ...]:
    model, platform, config = job.plan.model, job.profile.platform, deployment.config
    extra = job.other_options(line)
    if not job.documented:
        extra = {**planning.recipe_of(job.deployment).flags, **extra}
        # the first would bring the older engine, which is not the recommended one; no answer is parsed
        takes = engine.program_argv(line.command, job.version, "rocm")[1]
        flags = {name: f"--no-{name}" if value is False else f"--{name}" for name, value in extra.items()}
        read = {name for name, flag in flags.items() if engine.flag_status(job.version, flag, takes)}
        read -= {"num-scheduler-steps", "reasoning-parser"}
        extra = {name: value for name, value in extra.items() if name in read}
    if latency:
        warm_up, iterations = (line.others.get(flag) for flag in ("--num-iters-warmup", "--num-iters"))
        words = engine.bench_latency_argv(
            config, model, input_len=load.input_len, output_len=load.output_len, batch_size=load.num_prompts,
            num_iters_warmup=int(warm_up or WARM_UP_ITERATIONS), num_iters=int(iterations or ITERATIONS),
            platform=platform, extra=extra,
        )  # fmt: skip
    else:
        words = engine.bench_throughput_argv(config, load, model, platform=platform, extra=extra)
    return job.written_out(words, line)


def _expected(result: Mapping[str, Any], metric: str, published: float | None, in_key: float | None) -> Iterator[str]:
    forms = {"avg_latency": (",.2f", ",.2f", "s"), "tokens_per_second": (",.1f", ",.0f", "tokens/s")}
    for key, (form, around, unit) in forms.items():
        if key in result:
            low, high = (result.get(f"{key}_{end}") for end in ("lo", "hi"))
            interval = f" ({low:{around}} to {high:{around}})" if low and high else ""
            per_s = result.get("output_throughput")
            output = f", {per_s:{form}} of them output" if key != "avg_latency" and per_s else ""
            yield f"predicted {result[key]:{form}} {unit}{interval}{output}"
    if published and metric == "avg_latency":
        yield f"published {published:,.3f} s"
    elif published:
        yield f"published {in_key:,.1f} tokens/s ({published:,.1f} of them output)"


def sweep_names(plan: planning.Plan, deployment: planning.Deployment) -> dict[str, Any]:
    """The names of the template of sweep.sh: closed loops of 1, 2, 4, ... requests, and open loops."""
    closed = [_swept(plan, deployment, load) for load in _closed_loads(plan)]
    highest = closed[-1]["figures"]["request_throughput"]  # with every place taken
    rates = sorted({float(f"{share * highest:.2g}") for share in RATES})
    opened = [_open(plan, rate, MOST_STEPS + place, closed) for place, rate in enumerate(rates)]
    swept = {"concurrency": closed, "rate": [_swept(plan, deployment, load) for load in opened]}
    taken = {kind: sum(one["figures"]["duration"] for one in loads) / 60 for kind, loads in swept.items()}
    return {"logged": True, "swept": swept, "taken": ", ".join(f"{kind} {taken[kind]:,.0f} min" for kind in swept)}


def guidellm_names(plan: planning.Plan) -> dict[str, Any]:
    """The names of the template of guidellm.sh. JSON, because GuideLLM cuts its other form at every comma."""
    loads, sent = _closed_loads(plan), plan.workload
    lengths = {"prompt_tokens": sent.input_len, "output_tokens": sent.output_len}
    return {
        "guidellm_backend": json.dumps({"kind": "openai_http", "model": served_name(plan)}),
        "guidellm_tokenizer": json.dumps({"kind": "huggingface_auto", "model": plan.model}),
        "guidellm_data": json.dumps({"kind": "synthetic_text", **lengths}),
        "guidellm_loads": loads,
    }


def _closed_loads(plan: planning.Plan) -> list[Load]:
    most = plan.max_num_seqs
    steps = sorted({1 << power for power in range(most.bit_length())} | {most})
    return [_closed(plan, step, place) for place, step in enumerate(steps)]


def _closed(plan: planning.Plan, concurrency: int, place: int) -> Load:
    """The load of one step, with prompts that no step at another place sends."""
    load, seed = plan.workload, plan.workload.seed + SEED_STEP * (2 + place)
    prompts = planning.defaults.PROMPTS_PER_SLOT * concurrency
    return Load(load.input_len, load.output_len, prompts, max_concurrency=concurrency, seed=seed)


def _open(plan: planning.Plan, rate: float, place: int, closed: Sequence[Mapping[str, Any]]) -> Load:
    """The load of requests at ``rate``: as many as a closed loop of that rate needs for a steady state."""
    reached = (one["load"] for one in closed if one["figures"]["request_throughput"] >= rate)
    load = _closed(plan, next(reached, closed[-1]["load"]).max_concurrency, place)
    return replace(load, num_prompts=max(load.num_prompts, LEAST_PROMPTS), max_concurrency=None, request_rate=rate)


def _swept(plan: planning.Plan, deployment: planning.Deployment, load: Load) -> dict[str, Any]:
    figures, version = planning.Prediction.of(deployment, load).figures, deployment.config.version
    return {
        "name": f"{'rate' if load.max_concurrency is None else 'concurrency'}-{load.value:g}",
        "load": load,
        "figures": figures,
        "predicted": f"{figures['output_throughput']:.1f}",
        "argv": engine.bench_serve_argv(load, plan.model, version, platform=plan.platform, serving=plan.serve_argv),
    }
