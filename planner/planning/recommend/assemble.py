"""From a request to plans: rank what each GPU offers, and write down every word that a plan launches, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from planner import progress
from planner.engine import (
    EVERYWHERE,
    LOOPBACK,
    Image,
    Layout,
    Recipe,
    bench_serve_argv,
    default_version,
    docker_args,
    flag_status,
    image_for,
    known_issues,
    options_version,
    recipe_for,
    serve_argv,
    visible_devices,
)
from planner.memory import stored_weight_bytes
from planner.model import ResolvedModel
from planner.planning import defaults
from planner.planning.defaults import Goal
from planner.planning.deployment import Deployment
from planner.planning.plan import Plan, PlannedClass, PlannedWorkload
from planner.planning.predict import Prediction
from planner.planning.recommend.candidates import node_size
from planner.planning.recommend.goals import Merit, figure, odds_words, predicted, rank_by_goal, replayed
from planner.planning.recommend.nodes import rank_over_nodes
from planner.planning.recommend.offloading import check_offloading, offloading_of
from planner.planning.recommend.request import Candidate, Ranking, Request
from planner.planning.recommend.service import cost, sent_to_one, service_of, why_service
from planner.planning.recommend.target_search import rank_by_targets
from planner.units import GB, GIB
from planner.workload import Load, benchmarks


def rank(request: Request) -> list[Ranking]:
    """The candidates of each GPU, in the order of the request: by the goal, or the cheapest that keep the targets."""
    check_offloading(request)
    search = rank_by_targets if request.targets else rank_by_goal
    gpus = progress.each(request.gpus, lambda profile: profile.id)
    versions = ((profile, request.version or default_version(profile)) for profile in gpus)
    return [rank_over_nodes(search, request, profile, version) for profile, version in versions]


def assemble(
    request: Request,
    ranking: Ranking,
    candidate: Candidate,
    *,
    image: Image | None = None,
    workload: Load | None = None,
) -> Plan:
    """The plan for ``candidate``.

    ``image`` is one that is built, not pulled; ``workload`` another load than the one that was searched for.
    Raises IllegalPlanError where no image of the version is known for the GPU.
    """
    deployment, config = candidate.deployment, candidate.config
    profile = deployment.profile
    model = served_name(candidate.resolved)
    prediction = candidate.prediction if workload is None else None
    asked = request.load.classes if workload is None else ()
    service = service_of(request, candidate, best=candidate is ranking.best) if workload is None else None
    if workload is None:
        workload = sent_to_one(request, candidate)
    image = image or image_for(profile, config.version)
    if service and candidate is ranking.best:
        service = service.model_copy(update={"kv_offloading": offloading_of(request, candidate)})
    if service and (run := service.measure_next):
        run = run.model_copy(update={"bench_argv": _bench_argv(run.workload.sent, model, deployment, image)})
        service = service.model_copy(update={"measure_next": run})
    prediction = prediction or replayed(request, candidate, workload)
    classes = tuple(_planned(asked, prediction, workload, candidate, image))
    if classes:
        workload = replace(workload, num_prompts=sum(one.workload.num_prompts for one in classes))
    recipe = recipe_of(deployment)
    # inside a container the server binds to all addresses, and the port is published on 127.0.0.1
    host = EVERYWHERE if image.name else LOOPBACK
    return Plan(
        gpu=profile.id,
        num_gpus=config.num_gpus,
        requested_model=request.model.requested,
        model=model,
        gated=candidate.resolved.model.gated,
        **config.planned,
        engine_version=str(config.version),
        gpus_per_node=node_size(request, profile),
        network_gb_per_s=_network(deployment),
        platform=profile.platform,
        image=image.name,
        image_source=image.source,
        env={**recipe.env, **config.env, **visible_devices(profile, config.num_gpus)},
        docker_args=tuple(docker_args(profile, config.num_gpus)) if image.name else (),
        serve_argv=tuple(serve_argv(config, model, host=host, extra=recipe.flags)),
        bench_argv=() if classes else _bench_argv(workload, model, deployment, image),
        classes=classes,
        workload=PlannedWorkload.of(workload),
        service=service,
        predicted=predicted(prediction),
        memory=memory(deployment, workload.total_len),
        calibration=deployment.calibrated_by,
        why=tuple(_why(request, ranking, candidate, recipe)),
        warnings=tuple(
            filter(None, (*_remarks(request, deployment), *_warnings(request, candidate, image.note, recipe)))
        ),
    )


def _network(deployment: Deployment) -> float | None:
    """GB/s that one GPU has of the network between the nodes of the engine; None on one node."""
    network = deployment.profile.interconnect.network_bandwidth
    return network.base / GB if network and deployment.covariates["nodes"] else None


def _planned(
    asked: Sequence[Load], prediction: Prediction, workload: Load, candidate: Candidate, image: Image
) -> Iterator[PlannedClass]:
    """Each class with the client that sends it, and its figures."""
    model, deployment = served_name(candidate.resolved), candidate.deployment
    sent = benchmarks(workload.classes, workload.num_prompts, seed=workload.seed, burstiness=workload.burstiness)
    for one, of_it, found in zip(asked, sent, prediction.classes, strict=True):
        yield PlannedClass(
            name=one.name,
            request_rate=one.request_rate,
            priority=one.priority,
            targets_ms=dict(found.targets_ms),
            workload=PlannedWorkload.of(of_it),
            bench_argv=_bench_argv(of_it, model, deployment, image, one.priority),
            predicted={key: value for key, value in found.result.items() if value is not None},
        )


def _bench_argv(workload: Load, model: str, deployment: Deployment, image: Image, priority: int = 0) -> tuple[str, ...]:
    platform = deployment.profile.platform
    version = options_version(deployment.config.version, platform, image.name)
    words = bench_serve_argv(
        workload, model, version, percentiles=defaults.PERCENTILES, platform=platform, priority=priority
    )
    return tuple(words)


def served_name(resolved: ResolvedModel) -> str:
    """What ``vllm serve`` is given: a hub id, or a folder by its whole path, whatever folder the scripts run in."""
    if resolved.source != "path":
        return resolved.resolved
    path = Path(resolved.resolved).resolve()
    return str(path if path.is_dir() else path.parent)


def plans_best_first(plans: Iterable[Plan], merit: Merit) -> list[Plan]:
    """Plans of different GPUs in one order, which ``order_words`` tells.

    With targets: by USD per hour, then those without a price by whole GPUs, each for a unit of the load; with
    ``max-throughput`` by tokens/s per GPU under the targets. Without targets: by ``merit``.
    """
    plans = list(plans)
    if any(plan.service is None for plan in plans):
        return sorted(plans, key=lambda plan: merit.of(plan.predicted), reverse=True)
    if merit.goal == "max-throughput":
        return sorted(plans, key=lambda plan: -(plan.service.output_throughput_per_gpu or 0.0 if plan.service else 0.0))
    return sorted(plans, key=cost)


def order_words(plans: Sequence[Plan], goal: Goal) -> str:
    """The order of ``plans_best_first``, and which GPUs have no price where that counts."""
    if any(plan.service is None for plan in plans):
        return {
            "min-latency": "mean E2EL, the shortest first",
            "max-throughput": "output tokens/s per GPU, the most first",
            "balanced": "balance of tokens/s per GPU and tokens/s per user, the best first",
        }[goal]
    if goal == "max-throughput":
        return "output tokens/s per GPU under the targets, the most first"
    unpriced = [plan.gpu for plan in plans if plan.service and plan.service.usd_per_hour is None]
    if len(unpriced) == len(plans):
        return "whole GPUs, the fewest first; no price is known"
    behind = f"; no price is known for {', '.join(dict.fromkeys(unpriced))}: behind, by whole GPUs" if unpriced else ""
    return f"USD per hour, the cheapest first{behind}"


def recipe_of(deployment: Deployment) -> Recipe:
    """What the publishers of recipes set beside the plan's settings."""
    config = deployment.config
    return recipe_for(
        deployment.model,
        deployment.profile,
        config.version,
        engine=config.engine,
    )


def memory(deployment: Deployment, total_len: int) -> dict[str, Any]:
    """Bytes on each GPU, tokens and requests of one engine."""
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
        "requests_held": round(deployment.requests_held(total_len), 2),
        "checkpoint_bytes": stored_weight_bytes(deployment.model),
    }


def _why(request: Request, ranking: Ranking, winner: Candidate, recipe: Recipe) -> Iterator[str]:
    if winner.load:
        yield from why_service(request, winner)
    else:
        yield from _why_goal(request, ranking, winner)
    stage = winner.deployment.budget.binding
    config = winner.config
    given = config.given_kv_cache_bytes and f" ({config.kv_cache_given_by})"
    cache = f"are given to the KV cache{given}" if given else "are left for the KV cache"
    yield (
        f"weights take {stage.weights.loaded_bytes / GIB:.1f} GiB of {stage.requested_bytes / GIB:.1f} GiB "
        f"on each GPU, {stage.available.mid / GIB:.1f} GiB {cache}"
    )
    if recipe.sources:
        yield "environment and further flags: " + "; ".join(recipe.sources)


def _why_goal(request: Request, ranking: Ranking, winner: Candidate) -> Iterator[str]:
    config, goal = winner.config, request.goal
    place = ranking.candidates.index(winner) + 1 if winner in ranking.candidates else 1
    best = ranking.candidates[0] if ranking.candidates else winner
    among = "the best" if place == 1 else f"number {place}, behind {figure(best, goal)},"
    merit = Merit.among(ranking.candidates, goal)
    count = len(ranking.candidates)
    place_words = f"{among} of {count} settings that fit" if count > 1 else "the only setting that fits"
    yield f"{goal}: {figure(winner, goal)}, {place_words}"
    for layout, best in _best_by_layout(ranking, winner).items():
        if layout != Layout.of(config):
            behind = odds_words(merit.odds(request, winner, best))
            words = layout.flags if layout.num_gpus > 1 else "--tensor-parallel-size 1"
            yield f"{words} instead: {figure(best, goal)}, {behind}"
    yield f"--max-num-seqs {config.max_num_seqs}: {_why_batch(request, winner)}"


def _best_by_layout(ranking: Ranking, winner: Candidate) -> dict[Layout, Candidate]:
    """The best candidate of each layout with the winner's checkpoint; ranking is best first."""
    best: dict[Layout, Candidate] = {}
    for candidate in ranking.candidates:
        if candidate.resolved.resolved == winner.resolved.resolved:
            best.setdefault(Layout.of(candidate.config), candidate)
    return {layout: best[layout] for layout in sorted(best, key=astuple)}


def _why_batch(request: Request, winner: Candidate) -> str:
    largest = int(winner.deployment.requests_held(request.total_len, pessimistic=True))
    if request.args.max_num_seqs or request.max_concurrency:
        return "as asked for"
    if request.wanted_batch:
        return "a small batch: the concurrency at which latency counts"
    if winner.config.max_num_seqs >= 0.99 * largest:  # a smaller max_num_seqs frees room for a few more
        return "the largest batch whose requests all fit the KV cache at full length"
    return f"up to {largest} would fit the KV cache"


def _guesses_scales(request: Request, candidate: Candidate) -> bool:
    """Whether an fp8 cache was chosen for a checkpoint that has no scales for it."""
    chosen = request.args.kv_cache_dtype == "auto" and candidate.config.kv_cache_dtype.startswith("fp8")
    return chosen and not candidate.resolved.model.quantization.kv_cache_dtype


def _remarks(request: Request, deployment: Deployment) -> Iterator[str]:
    yield deployment.network_remark
    if not request.load.reused:
        yield deployment.unused_host_remark


def _about_benchmark(request: Request, candidate: Candidate) -> Iterator[str]:
    """What benchmark.sh and instances.sh send otherwise than the load that was planned for."""
    load, version = request.load, candidate.config.version
    if load.unsendable:
        what = "a trace" if load.origin else "turns that go on from each other"
        yield (
            f"benchmark.sh cannot send {what}: it sends random prompts of the mean lengths, at the same rate and "
            "burstiness. The prediction of the targets is for the load itself"
        )
        if load.origin and load.reused and flag_status(version, "--timed-trace-chunk-hash-size", "bench serve"):
            yield (
                f"vllm bench serve of {version} sends a trace with hash_ids itself: --dataset-name timed_trace "
                "--self-timed, to all servers behind one address"
            )
    if any(one.priority for one in load.classes) and not flag_status(version, "--extra-body", "bench serve"):
        yield f"benchmark.sh sends no priority: vllm bench serve of {version} has no --extra-body, that of 0.11.1 does"
    if load.classes and node_size(request, candidate.deployment.profile) // candidate.config.num_gpus > 1:
        yield "instances.sh bench sends requests of the mean lengths, not those of each class"


def _warnings(request: Request, candidate: Candidate, image_note: str, recipe: Recipe) -> Iterator[str]:
    config, profile = candidate.config, candidate.deployment.profile
    yield from candidate.resolved.notes
    if drafts := config.speculative_config:
        yield (
            f"predicted with {drafts.acceptance_length:.2f} tokens in each step, by the acceptance that was given: "
            "benchmark.sh sends random prompts, and fewer or more of their drafts are accepted than of real ones"
        )
    chosen = candidate.resolved.resolved != request.model.resolved  # what the user named is the user's choice
    if chosen and config.weight_dtype in ("mxfp4", "nvfp4", "int4", "int4-awq", "int4-gptq"):
        yield f"{config.weight_dtype} weights may cost accuracy: run accuracy.sh before the plan goes into production"
    if _guesses_scales(request, candidate):
        yield "fp8 KV cache without measured scales may cost accuracy: run accuracy.sh before production"
    yield from _about_benchmark(request, candidate)
    if image_note:
        yield f"image: {image_note}"
    yield from map(str, known_issues(config, recipe.env | config.env, candidate.resolved.model, profile))
    options = [name for name in recipe.left_out if name.startswith("--")]  # variables that went are simply not needed
    if options:
        yield f"the recipes also set options that vLLM {config.version} does not have: {', '.join(options)}"
    if recipe.env.get("VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "FP") != "FP":
        yield "the recipe's quick reduce sends sums over GPUs in few bits: run accuracy.sh before production"
    if profile.partition and not profile.partition.isolated_bandwidth:
        yield "partitions of one GPU share its memory bandwidth: the prediction assumes that all of them are busy"
    node = node_size(request, profile)
    copies = node // config.num_gpus
    if copies > 1:
        yield f"a node of {node} holds {copies} such servers: launch.sh starts one, instances.sh all"
