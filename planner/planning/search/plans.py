"""Turn a candidate into a plan: every word that is launched, the figures that are predicted, and the reasons."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace
from functools import partial
from math import ceil, inf
from pathlib import Path
from statistics import fmean
from typing import Any

from planner import engine
from planner.errors import PlannerError
from planner.memory import stored_weight_bytes
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.capacity import measure
from planner.planning.cost import Paid, interval_figures, interval_of
from planner.planning.deployment import Deployment, remarks
from planner.planning.plan import (
    BenchmarkLine,
    Plan,
    PlannedClass,
    PlannedRun,
    PlannedRung,
    PlannedTarget,
    PlannedTrace,
    PlannedWorkload,
    Service,
)
from planner.planning.predict import Prediction, ServedLoad, find_limit, limit_in_words, what_limits
from planner.planning.search.comparison import Departures, beside_recipe, recipe_of
from planner.planning.search.servers import Servers
from planner.planning.search.space import INTEGER, Candidate, Merit, Objective, Ranking, Space
from planner.simulator import statistic_ms
from planner.units import DAY_S, GB, GIB, HOUR_S, Interval, counted, figure
from planner.workload import OF_A_REQUEST, Load, benchmarks, targets_in_words

Client = Callable[..., list[str]]  #: the line of ``vllm bench serve`` that sends a load to the planned server


def assemble(
    space: Space, objective: Objective, ranking: Ranking, candidate: Candidate, *, image: engine.Image | None = None,
    load: Load | None = None, sized: bool = True,
) -> Plan:  # fmt: skip
    """Return the plan for ``candidate``, with an ``image`` that is built instead of pulled, or under another ``load``.

    ``sized`` looks for the largest load of one server, which takes longer than the rest of the plan.
    Raises IllegalPlanError where no image of the version is known for the GPU."""
    best = candidate is ranking.best
    place = next((place for place, one in enumerate(ranking.candidates, 1) if one is candidate), 1)
    if load is None:
        candidate = for_users(space, objective, candidate)
    deployment, config, profile = candidate.deployment, candidate.config, candidate.profile
    model = served_name(candidate.resolved)
    image = image or engine.image_for(profile, config.version)
    # inside a container the server listens on all addresses, and the port is published on 127.0.0.1
    host, recipe = engine.EVERYWHERE if image.name else engine.LOOPBACK, recipe_of(deployment)
    extra = {**recipe.flags, "revision": candidate.resolved.revision}
    serve_argv = tuple(engine.serve_argv(config, model, host=host, extra=extra))
    client = partial(
        engine.bench_serve_argv, model_ref=model, percentiles=defaults.PERCENTILES, platform=profile.platform,
        version=engine.options_version(config.version, profile.platform, image.name), serving=serve_argv,
    )  # fmt: skip
    prediction, service, asked = None, None, tuple[Load, ...]()
    if load is None:
        servers = Servers(space, objective, candidate)
        prediction, asked, load = candidate.prediction, objective.load.classes, servers.benchmark()
        if candidate.load and objective.targets:
            service = _service(servers, client, servers.most if sized else None, best=best)
    prediction = prediction or _benchmarked(objective, candidate, load)
    classes = tuple(_classes(client, asked, prediction, load))
    if classes:
        load = replace(load, num_prompts=sum(one.workload.num_prompts for one in classes))
    network = profile.interconnect.network_bandwidth
    figures = {key: value for key, value in prediction.result.items() if value is not None}
    paid = Paid.of(profile, config.num_gpus, figures["output_throughput"], space.prices)
    env = {**recipe.env, **config.env, **engine.visible_devices(profile, config.num_gpus)}
    departures = tuple(Departures(space, objective, ranking, candidate).of())
    apart = {f"adds {said.split()[1]}" for said in departures}  # what tool calls need is not left to that line
    asides = (one for one in recipe.asides if "tool calls" in one or not any(word in one for word in apart))
    recipe = replace(recipe, asides=tuple(asides))
    warnings = *_warnings(space, objective, candidate, image.note, recipe), *_burst(candidate, prediction)
    plan = Plan(
        gpu=profile.id,
        num_gpus=config.num_gpus,
        **config.planned,
        speculative_config=config.speculative_config,
        requested_model=space.model.requested,
        model=model,
        gated=candidate.resolved.model.gated,
        engine_version=str(config.version),
        gpus_per_node=space.node_size(profile),
        network_gb_per_s=network.base / GB if network and deployment.covariates["nodes"] else None,
        platform=profile.platform,
        image=image.name,
        image_source=image.source,
        env=env,
        docker_args=tuple(engine.docker_args(profile, config.num_gpus)) if image.name else (),
        serve_argv=serve_argv,
        benchmark_line=_benchmark_line(objective, candidate, load, model, host, extra),
        bench_argv=() if classes else tuple(client(load)),
        classes=classes,
        workload=PlannedWorkload.of(load),
        service=service,
        **(paid._asdict() | {"usd_per_million_output_tokens": (service or paid).usd_per_million_output_tokens}),
        predicted={**figures, **prediction.with_intervals(prediction.rates)},
        memory=_memory(deployment, load.total_len),
        calibration=deployment.calibrated_by,
        efficiency_basis=deployment.evidence.basis,
        evidence=deployment.evidence.kind,
        evidence_runs=deployment.evidence.runs,
        evidence_note=deployment.evidence.note,
        why=(*_why(space, objective, ranking, candidate, place, recipe), *beside_recipe(departures)),
        departures=departures,
        warnings=tuple(filter(None, warnings)),
    )
    return plan.model_copy(update={"job": _job(plan, prompts)}) if (prompts := objective.num_prompts) else plan


def _job(plan: Plan, prompts: int) -> dict[str, Any]:
    """Return the duration in s, the GPU-hours and the cost of ``prompts`` requests at the planned load."""
    paid, service = plan.service or plan, plan.service
    rate = interval_of(plan.predicted, "request_throughput").scaled(service.carrying if service else 1)
    if service and service.request_rate:
        rate, ends = Interval.exact(service.request_rate), (service.largest_load_lo, service.largest_load_hi)
        if not service.load_asked and all(ends):
            rate = Interval(rate.mid, *(service.carrying * (end or 0.0) for end in ends))
    duration, usd = Interval.exact(prompts).over(rate), paid.usd_per_hour
    gpu_hours = ceil(paid.packages or 1) * duration.mid / HOUR_S
    cost = {"gpu_hours": gpu_hours, "usd": usd and usd * duration.mid / HOUR_S}
    return {"num_prompts": prompts, **interval_figures("duration", duration), **cost}


def _benchmarked(objective: Objective, candidate: Candidate, load: Load) -> Prediction:
    """The prediction of the benchmark of ``load``, from the replay of the search if that sent the same."""
    searched, own = candidate.load, {one.name for one in load.classes if one.limits_ms}
    of_all = (slo for slo in objective.slos if slo.group not in own and slo.metric in OF_A_REQUEST)
    goodput: dict[str, float] = {slo.metric: slo.limit_ms for slo in of_all} if load.classes else {}
    if searched and searched.whole and searched.sent == load:
        return searched.prediction.reported(defaults.PERCENTILES, goodput)
    return Prediction.of(candidate.deployment, load, percentiles=defaults.PERCENTILES, goodput=goodput)


def _benchmark_line(
    objective: Objective, candidate: Candidate, load: Load, model: str, host: str, extra: Mapping[str, Any]
) -> BenchmarkLine | None:
    """The launch that was searched, with its replay of the benchmark; None where the serving line is the same.

    Drafts are accepted as predicted: the random prompts of the benchmark would accept fewer."""
    searched = candidate.searched or candidate
    narrow = replace(searched.config, max_num_seqs=min(searched.config.max_num_seqs, candidate.config.max_num_seqs))
    if narrow != searched.config:
        searched = replace(searched, deployment=replace(searched.deployment, config=narrow), load=None)
    config, drafts = narrow, narrow.speculative_config
    if drafts:
        config = replace(config, speculative_config=engine.with_imposed_acceptance(drafts, config.version))
    if config == candidate.config:
        return None
    replayed = _benchmarked(objective, searched, load)
    return BenchmarkLine(
        **{name: getattr(config, name) for name in ("max_model_len", "max_num_seqs", "enable_prefix_caching")},
        serve_argv=tuple(engine.serve_argv(config, model, host=host, extra=extra)),
        output_throughput_per_gpu=replayed.rates["output_throughput_per_gpu"],
        mean_e2el_ms=replayed.figures["mean_e2el_ms"],
    )


def _classes(client: Client, asked: Sequence[Load], prediction: Prediction, load: Load) -> Iterator[PlannedClass]:
    sent = benchmarks(load.classes, load.num_prompts, seed=load.seed, burstiness=load.burstiness) if asked else ()
    for one, of_it, figures in zip(asked, sent, prediction.classes, strict=True):
        yield PlannedClass(
            name=one.name,
            request_rate=one.request_rate,
            priority=one.priority,
            targets_ms=dict(figures.targets_ms),
            workload=PlannedWorkload.of(of_it),
            bench_argv=tuple(client(of_it, priority=one.priority)),
            predicted={key: value for key, value in figures.result.items() if value is not None},
        )


def served_name(resolved: ResolvedModel) -> str:
    """The model argument of ``vllm serve``: a hub id, or the absolute path of a folder."""
    if resolved.source != "path":
        return resolved.resolved
    path = Path(resolved.resolved).resolve()
    return str(path if path.is_dir() else path.parent)


def _memory(deployment: Deployment, total_len: int) -> dict[str, Any]:
    stage, budget = deployment.budget.binding, deployment.budget
    return {
        "memory_bytes": budget.memory_bytes,
        "budget_bytes": stage.requested_bytes,
        "weights_bytes": stage.weights.loaded_bytes,
        "activation_bytes": round(stage.activation.mid),
        "non_torch_bytes": round(stage.non_torch.mid),
        "cuda_graph_bytes": round(stage.graphs.mid),
        "kv_cache_bytes": round(stage.available.mid),
        "kv_cache_bytes_lo": round(stage.available.low),
        "kv_cache_bytes_hi": round(stage.available.high),
        "kv_cache_tokens": budget.logged_tokens(budget.num_blocks.mid),
        "requests_held": deployment.requests_held(total_len),
        "checkpoint_bytes": stored_weight_bytes(deployment.checkpoint or deployment.model, mtp=True),
    }


def _service(servers: Servers, client: Client, most: ServedLoad | None, *, best: bool) -> Service:
    space, objective, candidate = servers.space, servers.objective, servers.candidate
    load, profile, config, reused = candidate.load, candidate.profile, candidate.config, objective.load.reused
    assert load is not None
    whole = objective.value if objective.value is not None else load.value * candidate.servers
    per_node = space.node_size(profile) // config.num_gpus
    servers_in_all = candidate.servers + objective.spares
    total_gpus = servers_in_all * config.num_gpus
    whole_gpus = objective.value is not None or space.stock is not None  # else one server stands for many
    interval = servers.interval if best else None
    rungs = servers.by_confidence if best else ()
    whole /= 1 + objective.headroom
    in_flight = load.in_flight * candidate.servers / (1 + objective.headroom)
    output_tok_per_s, carried = load.output_tok_per_s * candidate.servers / (1 + objective.headroom), most or load
    most_tok_per_s = carried.output_tok_per_s
    if objective.by == "rate":  # as it is sent, not as the replay drew it
        output_tok_per_s, most_tok_per_s = (
            replace(objective.load, request_rate=rate).output_tok_per_s for rate in (whole, carried.value)
        )
    return Service(
        confidence=objective.confidence,
        targets=tuple(map(PlannedTarget.of, load.readings)),
        request_rate=whole if objective.by == "rate" else None,
        burstiness=PlannedWorkload.of(objective.load).burstiness,
        max_concurrency=round(whole) if objective.by == "concurrency" else None,
        load_asked=objective.value is not None,
        stock=most_gpus // profile.parts if (most_gpus := space.most_gpus(profile)) is not None else None,
        workload=objective.workload_name,
        trace=PlannedTrace.of(objective.load),
        headroom=objective.headroom,
        spares=objective.spares,
        replicas=servers_in_all,
        total_gpus=total_gpus,
        goodput=load.goodput_per_s * candidate.servers / (1 + objective.headroom),
        largest_load=most.value if most else None,
        largest_load_lo=interval[0] if interval else None,
        largest_load_hi=interval[1] if interval else None,
        largest_load_output_throughput_per_gpu=most_tok_per_s / config.num_gpus if most else None,
        node_load=most.value * per_node if most and per_node else None,
        bound_by=most.bound_by if most else "",
        output_throughput_per_gpu=output_tok_per_s / total_gpus,
        **Paid.of(profile, total_gpus, output_tok_per_s, space.prices, whole=whole_gpus)._asdict(),
        output_tokens_per_day=output_tok_per_s * DAY_S,
        requests_in_flight=in_flight,
        sessions_at_once=objective.load.sessions_at_once(whole, in_flight),
        router=objective.router,
        rival=servers.rival if best else None,
        plain_router=servers.plain_router if best else None,
        prefix_cache_share=load.replay.cached_share if reused else None,
        kv_offloading=servers.offloading(load) if best else None,
        gpus_with_margin=servers.with_margin if best else None,
        ladder=rungs,
        measure_next=_next_run(servers, client) if rungs else None,
    )


def _next_run(servers: Servers, client: Client) -> PlannedRun | None:
    """The run that is worth most: it takes fewer servers for the load, or without one puts more load on a server."""

    def worth(rung: PlannedRung) -> float:
        return rung.largest_load if servers.objective.value is None else -(rung.total_gpus or inf)

    narrowing = servers.next_run(worth)
    if narrowing is None:
        return None
    run, then = narrowing
    sent = PlannedWorkload.of(servers.benchmark() if run.own else run.workload)
    return PlannedRun(
        script="benchmark.sh" if run.own else "measure_next.sh",
        workload=sent,
        bench_argv=tuple(client(sent.sent)),
        duration_s=run.duration_s,
        figure=run.figure,
        deviation_factor=run.factor,
        expected=then,
    )


def mean_usd(plans: Iterable[Plan]) -> float:
    """Mean USD per hour of one whole GPU, which stands in for a price that is not known; 1 where none is."""
    services = [plan.service for plan in plans if plan.service]
    known = [one.usd_per_hour / ceil(one.packages) for one in services if one.usd_per_hour is not None]
    return fmean(known) if known else 1.0


def cost(servers: Any, usd: float) -> tuple[float, float]:
    """Cost of a ``Service`` or ``Apart`` per unit of load: USD per hour (``usd`` for a GPU without a price), GPUs."""
    carried, packages = servers.load or 1.0, servers.packages
    each = usd if servers.usd_per_hour is None else servers.usd_per_hour / ceil(packages)
    return packages * each / carried, packages / carried


def plans_in_order(plans: Sequence[Plan], merit: Merit, scores: Sequence[float] = ()) -> tuple[list[Plan], str]:
    """Sort plans, those of one GPU as ranked, and name the order. An unknown price is the mean of the others."""
    services, usd = [plan.service for plan in plans if plan.service], mean_usd(plans)
    weights: list[Any]
    if len(services) < len(plans):
        weights = [-score for score in scores]
        words = {
            "min-latency": "mean E2EL, the shortest first",
            "max-throughput": "output tokens/s per GPU, the most first",
            "balanced": "balance of tokens/s per GPU and tokens/s per user, the best first",
        }[merit.goal]
    elif merit.goal == "max-throughput":
        words = "output tokens/s per GPU under the targets, the most first"
        weights = [-(service.largest_load_output_throughput_per_gpu or 0.0) for service in services]
    elif any(service.stock is not None for service in services):
        words, weights = "the largest load first", [-(service.load or 0.0) for service in services]
    else:
        words, weights = "USD per hour, the cheapest first", [cost(service, usd) for service in services]
        if unpriced := [plan.gpu for plan in plans if plan.service and plan.service.usd_per_hour is None]:
            names = ", ".join(dict.fromkeys(unpriced))
            words += f"; no price is known for {names}: counted at {usd:,.2f} USD/h each, the mean of the others"
        if unpriced and len(unpriced) == len(plans):
            words = "whole GPUs, the fewest first; no price is known"
    places = sorted(range(len(plans)), key=weights.__getitem__)
    of_gpu = {plan.gpu: iter([one for one in plans if one.gpu == plan.gpu]) for plan in plans}
    return [next(of_gpu[plans[place].gpu]) for place in places], words


def _why(
    space: Space, objective: Objective, ranking: Ranking, winner: Candidate, place: int, recipe: engine.Recipe
) -> Iterator[str]:
    if winner.load:
        yield from _why_service(objective, winner, winner.load)
    else:
        yield from _why_goal(space, objective, ranking, winner, place)
    stage, config = winner.deployment.budget.binding, winner.config
    given = config.given_kv_cache_bytes and f" ({config.kv_cache_given_by})"
    cache = f"are given to the KV cache{given}" if given else "are left for the KV cache"
    yield (
        f"weights take {stage.weights.loaded_bytes / GIB:.1f} GiB of {stage.requested_bytes / GIB:.1f} GiB "
        f"on each GPU, {stage.available.mid / GIB:.1f} GiB {cache}"
    )
    if recipe.sources:
        yield "sources of variables and further flags: " + "; ".join(recipe.sources)


def _why_goal(space: Space, objective: Objective, ranking: Ranking, winner: Candidate, place: int) -> Iterator[str]:
    merit, count = Merit.among(ranking.candidates, objective.goal), len(ranking.candidates)
    best = ranking.candidates[0] if ranking.candidates else winner
    rival = winner if place > 1 else max(ranking.candidates[1:], key=merit.of_candidate, default=best)
    tied = merit.tie_words(best.searched or best, rival)
    among = f"number {place}, behind {merit.words(best)}," if place > 1 else "the first" if tied else "the best"
    place_words = f"{among} of {count} settings that fit{tied}" if count > 1 else "the only setting that fits"
    varied = f" where lengths vary by {defaults.USUAL_RANGE_RATIO:.0%}" * winner.in_phase(objective.load)
    yield f"{objective.goal}: {merit.words(winner)}{varied}, {place_words}"
    of_layout: dict[engine.Layout, Candidate] = {}  # the best with the winner's checkpoint; the ranking is best first
    for candidate in ranking.candidates:
        if candidate.resolved.resolved == winner.resolved.resolved:
            of_layout.setdefault(engine.Layout.of(candidate.config), candidate)
    for layout in sorted(of_layout, key=astuple):
        if layout != engine.Layout.of(winner.config):
            behind = merit.odds_words(merit.odds(objective.load, winner, of_layout[layout]))
            words = layout.flags if layout.num_gpus > 1 else "--tensor-parallel-size 1"
            yield f"{words} instead: {merit.words(of_layout[layout])}, {behind}"
    searched = winner.searched or winner
    largest = int(searched.deployment.requests_of(objective.load, pessimistic=True))
    flying = ceil(searched.estimate.concurrency / searched.config.data_parallel_size)
    reasons = {
        "as asked for": objective.load.max_concurrency or flying == space.args.max_num_seqs,
        "a small batch: the concurrency at which latency counts": objective.wanted_batch(),
        # a smaller max_num_seqs frees memory for a few more
        "the largest batch whose requests all fit the KV cache at full length": flying >= 0.99 * largest,
        f"up to {largest} would fit the KV cache": True,
    }
    reason = next(reason for reason, holds in reasons.items() if holds)
    yield f"{counted(searched.estimate.concurrency, 'concurrent request')}: {reason}"


def _why_service(objective: Objective, winner: Candidate, load: ServedLoad) -> Iterator[str]:
    """Yield the targets met, the GPUs of each server, and what limits them."""
    unit, size, targets = (
        load_words(objective.by),
        winner.profile.counted(winner.config.num_gpus),
        targets_in_words(objective.slos),
    )
    several, sent, replay = winner.servers > 1, objective.load, load.replay
    if objective.value is None:
        each = f"each of {winner.servers} servers" if several else "one server"
        yield f"{targets}: {each} of {size} carries {load.value:,.4g} {unit}"
    else:
        each = f"{winner.servers} servers of {size}, {load.value:,.4g} {unit} on each"
        yield (
            f"{objective.value / (1 + objective.headroom):,.4g} {unit} with {targets}: "
            f"{each if several else f'one server of {size}'}"
        )
    for reading in load.readings:
        of_class = f" for {reading.slo.group}:" if reading.slo.group else ""
        yield (
            f"{reading.slo.name}{of_class} {reading.predicted_ms:,.0f} ms predicted, below "
            f"{reading.expected_ms:,.0f} ms with {objective.confidence:.0%} confidence (target "
            f"{reading.slo.limit_ms:,.10g} ms)"
        )
    goodput = load.goodput_per_s * winner.servers / (1 + objective.headroom)
    yield f"goodput {goodput:,.4g} requests/s: {load.good_share:.1%} of requests meet every target with that confidence"
    if sent.reused and sent.recorded is not None:
        most = sent.recorded.reusable_tok / float(sent.recorded.input_len.mean())
        of_servers = f" of {winner.servers} servers, {objective.router}" if several else ""
        yield (
            f"{replay.cached_share:.1%} of the prompt tokens come from the prefix cache{of_servers}; {most:.1%} would "
            "from one that forgets nothing"
        )
    if limits := what_limits(winner.deployment, load):
        yield f"bottleneck: {limits}"
    if objective.by == "concurrency":
        yield f"the first {load.value:,.0f} requests, which start together, do not count for the targets"
        if not sent.range_ratio and sent.recorded is None:
            yield "requests of equal lengths end together, and so start together: --random-range-ratio 0.5 spreads them"


def _burst(candidate: Candidate, benchmarked: Prediction) -> Iterator[str]:
    """Yield the targets that the benchmark is expected to miss, because it counts the opening burst."""
    load = candidate.load
    if load is None or load.by != "concurrency" or load.sent.unsendable:
        return
    for reading in load.readings:
        counted_ms = statistic_ms(reading.slo, benchmarked.replay)
        if reading.met and counted_ms > reading.slo.limit_ms:
            yield (
                f"benchmark.sh counts the first {load.value:,.0f} requests, which start together: its "
                f"{reading.slo.name} is {counted_ms:,.0f} ms, above the target of {reading.slo.limit_ms:,.10g} ms"
            )


def bottleneck(space: Space, objective: Objective, candidate: Candidate) -> str:
    """The limit of one server: the tightest target, or without targets the part of a step that takes most."""
    if candidate.load:
        return what_limits(candidate.deployment, candidate.load)
    sent = Servers(space, objective, candidate).benchmark()
    served = candidate.prediction.replay if candidate.prediction else candidate.deployment.replay(sent)
    return limit_in_words(find_limit(candidate.deployment, served, sent))


def load_words(by: str) -> str:
    return "requests/s" if by == "rate" else "concurrent requests"


def little_in_words(load: ServedLoad) -> str:
    """The load under which the closest plan already misses a target."""
    return "one request at a time" if load.by == "concurrency" else f"{figure(load.value)} requests/s"


def closest_point(candidate: Candidate) -> dict[str, Any]:
    """The plan that comes nearest to targets that none meets, for JSON."""
    load = candidate.load
    assert load is not None
    return {
        "gpu": candidate.profile.id,
        "model": candidate.resolved.resolved,
        **candidate.config.choice,
        "load": {load.by: load.value},
        "targets": [PlannedTarget.of(reading).model_dump() for reading in load.readings],
        "limits": what_limits(candidate.deployment, load),
    }


def closest_lines(candidate: Candidate) -> Iterator[str]:
    """Yield the plan that comes nearest, in words."""
    config, load = candidate.config, candidate.load
    assert load is not None
    yield (
        f"closest: {candidate.resolved.resolved}, {candidate.profile.counted(config.num_gpus)}, --tensor-parallel-size "
        f"{config.tensor_parallel_size}, {little_in_words(load)}"
    )
    for reading in load.readings:
        verdict = "meets" if reading.met else "misses"
        predicted, most = figure(reading.predicted_ms, 4), figure(reading.expected_ms, 4)
        yield f"{verdict} {reading.slo}: {predicted} ms predicted, up to {most} ms"
    yield f"bottleneck: {what_limits(candidate.deployment, load)}"


def accuracy_warnings(space: Space, candidate: Candidate) -> Iterator[str]:
    """Yield warnings of a checkpoint with few bits that the user did not name, and of an fp8 KV cache likewise."""
    config, resolved = candidate.config, candidate.resolved
    stated, _ = engine.stated_words((resolved.resolved, space.model.resolved), candidate.profile)
    fp8_asked = space.args.kv_cache_dtype != "auto" or engine.flag_of("kv_cache_dtype") in stated
    fp8_chosen = config.kv_cache_dtype.startswith("fp8") and not fp8_asked
    few_bits = config.weight_dtype in ("mxfp4", "nvfp4", *INTEGER)
    holds = {
        "few_bits": few_bits and resolved.resolved != space.model.resolved,
        "fp8_cache": fp8_chosen and not resolved.model.quantization.kv_cache_dtype,
    }
    yield from remarks("plan", holds, config=config, asked=space.model.resolved)


def _warnings(
    space: Space, objective: Objective, candidate: Candidate, image_note: str, recipe: engine.Recipe
) -> Iterator[str]:
    config, profile, deployment, load = candidate.config, candidate.profile, candidate.deployment, objective.load
    model, drafts = candidate.resolved.model, config.speculative_config
    options = [name for name in recipe.left_out if name.startswith("--")]  # variables that went are simply not needed
    node, unknown = space.node_size(profile), [*engine.known_issues(config, recipe.env | config.env, model, profile)]
    copies, sends = node // config.num_gpus, partial(engine.flag_status, config.version, command="bench serve")
    started = copies if objective.value is None else min(copies, candidate.servers)
    timed_trace = load.unsendable and load.origin and load.hashed and sends("--timed-trace-chunk-hash-size")
    unsent = any(one.priority for one in load.classes) and not sends("--extra-body")
    quick_reduce = config.num_gpus > 1 and recipe.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP") != "FP"
    imposed = drafts and engine.with_imposed_acceptance(drafts, config.version) != drafts
    varied = (candidate.searched or candidate).tok_per_s_per_gpu
    context = min(deployment.model.max_position_embeddings, defaults.LONGEST_CONTEXT)
    shorter = config.max_model_len < context and not space.args.max_model_len
    longest, chunked = _longest_context(deployment), config.enable_chunked_prefill
    held = int(deployment.requests_of(load, pessimistic=True) * config.data_parallel_size)
    at_once = min(candidate.estimate.concurrency, config.max_running)
    holds = {
        **dict.fromkeys(map(str, unknown), True),
        "unchunked" if not chunked else "cut" if longest > config.max_model_len else "context": shorter,
        "preempts": not objective.targets and held < at_once,
        **dict.fromkeys((deployment.network_remark, deployment.media_remark), True),
        deployment.unused_host_remark: not load.reused,
        **dict.fromkeys(candidate.resolved.notes, True),
        "drafts_imposed" if imposed else "drafts": drafts,
        "in_phase": not objective.targets and candidate.in_phase(load),
        **dict.fromkeys(accuracy_warnings(space, candidate), True),
        "unsendable": load.unsendable,
        "timed_trace": timed_trace,
        "priority": unsent,
        "classes": load.classes and copies > 1,
        "shared": profile.memory.utilization,
        "image": image_note,
        "options": options,
        **dict.fromkeys(recipe.asides, True),
        "quick_reduce": quick_reduce,
        "partitions": profile.partition and not profile.partition.isolated_bandwidth,
        "servers": started > 1,
    }
    yield from remarks(
        "plan", holds, config=config, context=context, held=held, drafts=drafts, varied=varied, image=image_note,
        started=started, range_ratio=defaults.USUAL_RANGE_RATIO, sent="a trace" if load.origin else "turns",
        options=", ".join(options), longest=longest,
    )  # fmt: skip


def for_users(space: Space, objective: Objective, candidate: Candidate) -> Candidate:
    """Return the candidate as it is launched for users: with the widest settings that carry its load as well.

    Settings that were given stay. Under targets a wider batch that misses one gives way to the searched batch."""
    if candidate.searched is not None:
        return candidate
    searched, own = replace(candidate, searched=replace(candidate, prediction=None)), candidate.load
    exactly = objective.by == "rate"
    for deployment in _wider(space, objective, candidate):
        wide = replace(searched, deployment=deployment, capacity=None)
        if own is None:
            return wide
        with suppress(PlannerError):  # a request that the smaller cache does not hold
            sent, confidence = own.prediction.load, objective.confidence
            load = measure(deployment, sent, objective.slos, confidence=confidence, whole=own.whole, exactly=exactly)
            if load.meets:
                return replace(wide, load=replace(load, bound_by=own.bound_by))
    return searched


def _wider(space: Space, objective: Objective, candidate: Candidate) -> Iterator[Deployment]:
    """Yield the engine with places for a larger rate, for its load, for the searched batch and with that batch itself.

    Each has the model's context and vLLM's own choice of prefix caching, and is yielded as far as it fits."""
    config, given, load, usual = candidate.config, space.args, candidate.load, defaults.USUAL_MAX_NUM_SEQS
    caching, own = config.enable_prefix_caching, candidate.deployment
    flying = ceil(candidate.estimate.concurrency / config.data_parallel_size)
    in_flight = load.replay.most_seqs if load else min(flying, config.max_num_seqs)
    wanted = (in_flight * (1 + defaults.PLACES_HEAD_ROOM), config.max_num_seqs)
    enough = [max(next((size for size in usual if size >= places), usual[-1]), in_flight) for places in wanted]
    busy = enough[0]  # places that have graphs of their size
    if load and load.by == "rate":  # few places would queue the requests of a larger load that one server carries
        held = own.requests_of(objective.load, pessimistic=True)
        most = min(held, max(defaults.USUAL_PLACES, config.max_num_seqs))
        enough[:0] = [size for size in reversed(usual) if enough[0] < size <= most]
    if given.enable_prefix_caching is None:
        caching = caching or engine.prefix_caching(own.model, own.budget.features)
    cautious = own.requests_of(objective.load, pessimistic=True) >= in_flight
    held = min(in_flight, own.requests_of(objective.load, pessimistic=cautious))
    fixed = replace(config, enable_prefix_caching=caching, max_cudagraph_capture_size=given.max_cudagraph_capture_size)
    for places in dict.fromkeys([given.max_num_seqs] if given.max_num_seqs else [*enough, config.max_num_seqs]):
        places = min(places, config.most_decodes)
        graphs = engine.capture_size(replace(fixed, max_num_seqs=min(busy, places)), config.version, candidate.profile)
        wide = replace(own, config=replace(fixed, max_num_seqs=places, max_cudagraph_capture_size=graphs))
        lengths = [given.max_model_len or _longest_context(wide)]
        if own.model.vision and not given.max_model_len:  # whose profile run takes memory for as long a video
            lengths += [size for size in defaults.MEDIA_CONTEXTS if config.max_model_len < size < lengths[0]]
        least = held * (1 - defaults.TOLERANCE * (places <= config.max_num_seqs))
        for longest in lengths:
            wide = wide.with_settings(max_model_len=longest)
            holds = wide.requests_of(objective.load, pessimistic=cautious) >= least
            if wide.config != config and wide.fits and not wide.lacking_states and (holds or load):
                yield wide


def _longest_context(deployment: Deployment) -> int:
    """Tokens of the longest request that the low end of the KV cache holds, at most the model's context.

    Engines that never cut a prompt keep theirs: a longer context takes a larger token budget there."""
    config, budget = deployment.config, deployment.budget
    served = engine.served_context(deployment.model, deployment.profile, config.version)
    own, most = config.max_model_len, min(served, defaults.LONGEST_CONTEXT)
    if not config.enable_chunked_prefill or config.engine != "V1" or most <= own:
        return own
    longest = budget.longest(budget.num_blocks.low, most)
    return longest if longest == most else max(longest // defaults.LONG_CONTEXT_STEP * defaults.LONG_CONTEXT_STEP, own)
