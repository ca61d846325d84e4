"""GPUs side by side: ``planner compare`` as a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Unpack

from planner.api.flags import EngineFlags, engine_args, flag_of, typed
from planner.api.inputs import (
    GpuName,
    ModelName,
    asked_version,
    check_context,
    check_count,
    found_gpus,
    load_model,
    path_text,
    workload_of,
)
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.output import ComparisonAnswer
    from planner.workload import Workload

Per = Literal["package", "node", "gpu"]
PER: tuple[Per, ...] = ("package", "node", "gpu")
OWN = (
    "per", "packages", "input_len", "output_len", "max_concurrency", "request_rate", "burstiness", "random_range_ratio",
    "seed", "price", "weight_dtype", "engine_version", "calibration", "revision", "refresh",
)  # fmt: skip


def compare_gpus(
    model: ModelName = defaults.MODEL,
    gpu: GpuName | Iterable[GpuName] = defaults.GPUS,
    *,
    per: Per = "package",
    packages: int | None = None,
    input_len: int | Sequence[int] = defaults.LEN,
    output_len: int | Sequence[int] = defaults.LEN,
    max_concurrency: int | Sequence[int] | None = None,
    request_rate: float | Sequence[float] | None = None,
    burstiness: float = 1.0,
    random_range_ratio: float = 0.0,
    seed: int = 0,
    price: Mapping[str, float] | Sequence[str] = (),
    weight_dtype: str | None = None,
    engine_version: str | None = None,
    calibration: str | PathLike[str] | None = None,
    revision: str | None = None,
    refresh: bool = False,
    **engine: Unpack[EngineFlags],
) -> ComparisonAnswer:
    """Several GPUs and partition modes on equal hardware under equal load: tokens/s, dollars, watts, who leads where.

    Equal are whole GPUs with all their partitions (``per="package"``, ``packages`` of them), nodes, or logical GPUs.
    Lengths are tokens, ``max_concurrency`` requests in flight (8, 32 and 128 where nothing is said), ``request_rate``
    requests per second, each of all servers of a GPU type together; several make a table for each. ``price`` are USD
    per GPU and hour instead of the profiles' (``{"mi355x": 2.5}``). The layout is searched unless
    ``tensor_parallel_size`` is given; the other keywords are those of ``check_fit``.

    ``answer.record.points`` has every figure, with its interval. Raises InputError for what is no load and no price,
    IllegalPlanError for settings that vLLM refuses, and what ``load_model`` and ``load_gpu`` raise.
    """
    from planner.memory import Basis
    from planner.output import ComparisonAnswer
    from planner.planning import Question, compare_hardware, local_for, parse_prices

    if per not in PER:
        raise UnknownNameError("unit", str(per), PER, see="planner compare --help")
    check_count("packages", packages)
    args = engine_args(engine, own=OWN)
    rhythm = {"burstiness": burstiness, "range_ratio": random_range_ratio, "seed": seed}
    workloads = _workloads(input_len, output_len, max_concurrency, request_rate, rhythm)
    profiles, remarks = found_gpus(gpu)
    prices = parse_prices(words_of(price), profiles)
    resolved = load_model(model, weight_dtype=weight_dtype, revision=revision, refresh=refresh)
    own_context = resolved.model.max_position_embeddings
    for workload in workloads:
        check_context(workload, min(args.max_model_len or own_context, own_context), resolved.resolved)
    local = local_for(path_text(calibration))
    question = Question(
        resolved.model,
        args,
        per,
        packages,
        (args.tensor_parallel_size,) if "tensor_parallel_size" in engine else (),
        asked_version(engine_version),
        Basis(local.constants),
        local.calibration,
    )
    comparison = compare_hardware(question, profiles, workloads, prices)
    return ComparisonAnswer(comparison, profiles, prices, (*remarks, *local.notes), resolved.notes)


def words_of(given: Mapping[str, float] | Sequence[str]) -> list[str]:
    """``GPU=NUMBER`` for each, as after the flag."""
    return [f"{name}={number}" for name, number in given.items()] if isinstance(given, Mapping) else list(given)


def _workloads(
    input_len: int | Sequence[int],
    output_len: int | Sequence[int],
    max_concurrency: int | Sequence[int] | None,
    request_rate: float | Sequence[float] | None,
    rhythm: Mapping[str, Any],
) -> list[Workload]:
    """Every pair of lengths under every load."""
    if max_concurrency is not None and request_rate is not None:
        raise InputError("--max-concurrency and --request-rate name two loads", hint="give one of them")
    loads: list[dict[str, Any]]
    if request_rate is not None:
        loads = [{"request_rate": rate, **rhythm} for rate in _numbers("request_rate", request_rate, float)]
    else:
        in_flight = defaults.COMPARED_CONCURRENCY if max_concurrency is None else max_concurrency
        closed = {name: value for name, value in rhythm.items() if name != "burstiness"}
        loads = [{"max_concurrency": places, **closed} for places in _numbers("max_concurrency", in_flight, int)]
    lengths = _pairs(_numbers("input_len", input_len, int), _numbers("output_len", output_len, int))
    every = dict.fromkeys(
        workload_of(input_len=given, output_len=answered, num_prompts=1, **load)
        for given, answered in lengths
        for load in loads
    )
    found = list(every)  # each once
    if len(found) > defaults.MOST_LOADS:
        raise InputError(
            f"{len(found)} loads are more than {defaults.MOST_LOADS}", hint="compare fewer lengths or loads at once"
        )
    return found


def _pairs(inputs: Sequence[int], outputs: Sequence[int]) -> list[tuple[int, int]]:
    if len(outputs) == 1:
        return [(length, outputs[0]) for length in inputs]
    if len(inputs) == 1:
        return [(inputs[0], length) for length in outputs]
    if len(inputs) != len(outputs):
        raise InputError(
            f"--random-input-len names {len(inputs)} lengths, --random-output-len {len(outputs)}",
            hint="give as many of both, or one of either",
        )
    return list(zip(inputs, outputs, strict=True))


def _numbers(name: str, given: Any, kind: type) -> list[Any]:
    """Positive numbers, in their order: lengths are pairs, in which one may come again."""
    values = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found = [typed(name, value, kind) for value in values]
    if not found or not all(isfinite(value) and value > 0 for value in found):
        raise InputError(f"{flag_of(name)} {given!r} is not positive", hint=f"for example {flag_of(name)} 8")
    return found
