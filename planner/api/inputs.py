"""From names to facts: GPUs, models, engine versions, fits; and what a load must keep to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, get_type_hints

from planner.api.flags import flag_of, typed
from planner.engine import EngineVersion, parse_version
from planner.errors import InputError
from planner.hardware import GpuProfile, load_all, load_profile
from planner.model import Model, ResolvedModel, resolve_model
from planner.planning import defaults

if TYPE_CHECKING:
    from planner.engine import EngineArgs
    from planner.memory import Basis
    from planner.workload import Workload

#: A hub id, a folder with a ``config.json`` or such a file; or what ``load_model`` gave.
ModelName = str | PathLike[str] | ResolvedModel
#: A profile's id or alias, ``local``, or the path of a ``.toml`` file; or what ``load_gpu`` gave.
GpuName = str | PathLike[str] | GpuProfile


def load_model(
    model: ModelName, *, weight_dtype: str | None = None, revision: str | None = None, refresh: bool = False
) -> ResolvedModel:
    """A model's architecture, and what its name led to.

    ``model``: a hub id in any case, a folder with a ``config.json``, or such a file. The bundled catalog answers
    first, then the local hub cache, then the hub (``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` count).
    ``weight_dtype`` stands for the usual checkpoint of that precision: ``fp8``, ``mxfp4``, ``int4-awq``, ...
    ``revision`` is a branch, tag or commit; ``refresh`` asks the hub even where a local answer exists.

    Raises UnknownNameError for a name that is nowhere, InputError for a file that is no model, UnsupportedModelError
    for an architecture that is not understood, and HubError where the hub cannot be reached or refuses.
    """
    if isinstance(model, ResolvedModel):
        resolved = model
    else:
        resolved = resolve_model(str(model), revision=revision, refresh=refresh)
    if weight_dtype is None:
        return resolved
    from planner.model import as_quantized

    found = as_quantized(resolved.model, weight_dtype)
    return replace(resolved, model=found, notes=(*resolved.notes, f"the usual form of {weight_dtype} is assumed"))


def load_gpu(gpu: GpuName) -> GpuProfile:
    """The profile of a GPU, or of a partition of one: memory, bandwidth, peaks, prices, each with its source.

    ``gpu`` is an id or an alias in any case (``list_gpus`` has them), the path of a ``.toml`` file, or ``local`` for
    the GPUs of this machine. Raises UnknownNameError for any other name, and InputError for a file that is no profile
    and for a machine whose GPUs have none.
    """
    return found_gpu(gpu)[0]


def found_gpu(gpu: GpuName) -> tuple[GpuProfile, tuple[str, ...]]:
    """The profile, and of ``local`` a remark on which GPUs were found."""
    if isinstance(gpu, GpuProfile):
        return gpu, ()
    if str(gpu).strip().lower() != "local":
        return load_profile(str(gpu)), ()
    from planner.hardware import local_profile

    found = local_profile()
    return found.profile, (found.note,)


def found_gpus(gpus: GpuName | Iterable[GpuName]) -> tuple[tuple[GpuProfile, ...], tuple[str, ...]]:
    """The profiles in their order, each once, with remarks; ``all`` is every profile."""
    names: Sequence[GpuName] = [gpus] if isinstance(gpus, str | PathLike | GpuProfile) else list(gpus)
    if any(isinstance(name, str) and name.lower() == "all" for name in names):
        return load_all(), ()
    profiles: dict[str, GpuProfile] = {}
    remarks: list[str] = []
    for name in names:
        profile, said = found_gpu(name)
        profiles.setdefault(profile.id, profile)
        remarks += said
    if not profiles:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    return tuple(profiles.values()), tuple(remarks)


def list_gpus() -> tuple[str, ...]:
    """The ids of all GPU profiles, partitions included."""
    from planner.hardware import profile_ids

    return profile_ids()


def list_models() -> tuple[str, ...]:
    """The hub ids of the bundled catalog; any other id is asked for at the hub."""
    from planner.model import catalog_ids

    return tuple(catalog_ids())


def asked_version(text: str | None) -> EngineVersion | None:
    """The version asked for, if any."""
    return None if text is None else parse_version(typed("engine_version", text, str))


def version_for(text: str | None, profile: GpuProfile) -> EngineVersion:
    """The version asked for, else the newest for which an image of this GPU is pinned."""
    from planner.engine import default_version

    return asked_version(text) or default_version(profile)


def basis_for(calibration: str | PathLike[str] | None, args: EngineArgs) -> Basis:
    """The overheads of memory that ``calibration`` means, and the draft of ``speculative_config``."""
    from planner.memory import Basis
    from planner.planning import local_for

    return Basis(local_for(path_text(calibration)).constants, draft_of(args))


def path_text(path: str | PathLike[str] | None) -> str | None:
    """A path as text."""
    return None if path is None else str(path)


def draft_of(args: EngineArgs) -> Model | None:
    """The second model that ``--speculative-config`` names, if any."""
    drafts = args.speculative_config
    return resolve_model(drafts.model).model if drafts and drafts.has_draft_model and drafts.model else None


def workload_of(**given: Any) -> Workload:
    """The load with these fields. Raises InputError for values that ``vllm bench`` would not accept."""
    from planner.workload import Workload

    hints = get_type_hints(Workload)
    return Workload(**{name: typed(name, value, hints[name]) for name, value in given.items()})


def check_count(name: str, value: int | None, *, least: int = 1, most: int | None = None) -> None:
    """Raises InputError, naming the flag, for what is no whole number from ``least`` to ``most``; None is fine."""
    if value is None:
        return
    plain = typed(name, value, int)
    if plain < least or (most is not None and plain > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag_of(name)} must be {wanted}, got {plain}", hint="give such a number, or leave it out")


def check_context(workload: Workload, max_model_len: int, model: str, *, longest_len: int | None = None) -> None:
    """Raises InputError where a request of the load is longer than the context: the server would refuse it.

    ``longest_len``: tokens of the longest request of a trace.
    """
    if longest_len is not None and longest_len > max_model_len:
        raise InputError(
            f"--trace: the longest request has {longest_len} tokens, more than the {max_model_len} that {model} is "
            "served with",
            hint="raise --max-model-len where that is what limits, or choose a model of longer context",
        )
    longest = workload.max_total_len
    if longest > max_model_len:
        raise InputError(
            f"--input-len {workload.input_len} and --output-len {workload.output_len} make requests of {longest} "
            f"tokens, more than the {max_model_len} that {model} is served with",
            hint="shorten them, raise --max-model-len where that is what limits, or choose a model of longer context",
        )


def check_load(workload: Workload) -> None:
    """Raises InputError for more requests, or more seconds of arrivals, than a replay can follow."""
    if workload.num_prompts > defaults.MOST_PROMPTS:
        raise InputError(
            f"--num-prompts must be {defaults.MOST_PROMPTS:,} at most, got {workload.num_prompts:,}",
            hint="send fewer: percentiles no longer change",
        )
    arrivals_s = workload.num_prompts / workload.request_rate
    if arrivals_s > defaults.LONGEST_REPLAY_S:
        raise InputError(
            f"--request-rate {workload.request_rate:g}: {workload.num_prompts} requests arrive over {arrivals_s:.3g} s",
            hint=f"raise the rate or send fewer prompts: a replay covers {defaults.LONGEST_REPLAY_S:,} s",
        )
