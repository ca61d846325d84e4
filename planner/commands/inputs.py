"""From names to facts: GPUs, models, engine versions, fits; and values of the type that a keyword takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, get_args

from planner.engine import flag_of
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.engine import EngineArgs, EngineVersion
    from planner.hardware import GpuProfile
    from planner.memory import Basis
    from planner.model import Model, ResolvedModel
    from planner.planning import Local

    #: A hub id, a folder with a ``config.json`` or such a file; or what ``load_model`` gave.
    ModelName = str | PathLike[str] | ResolvedModel
    #: A profile's id or alias, ``local``, or the path of a ``.toml`` file; or what ``load_gpu`` gave.
    GpuName = str | PathLike[str] | GpuProfile

#: Beyond these nobody's links are: a kilobyte and a petabyte in a second.
LEAST_GB_PER_S, MOST_GB_PER_S = 1e-6, 1e6


def load_model(
    model: ModelName,
    *,
    weight_dtype: str | None = None,
    revision: str | None = None,
    refresh: bool = False,
    timeout: float | None = None,
) -> ResolvedModel:
    """A model's architecture, and what its name led to.

    ``model``: a hub id in any case, a folder with a ``config.json``, or such a file. The bundled catalog answers
    first, then the local hub cache, then the hub (``HF_TOKEN``, ``HF_ENDPOINT`` and ``HF_HUB_OFFLINE`` count).
    ``weight_dtype`` stands for the usual checkpoint of that precision: ``fp8``, ``mxfp4``, ``int4-awq``, ...
    ``revision`` is a branch, tag or commit; ``refresh`` asks the hub even where a local answer exists.
    ``timeout`` is in seconds, for all that the hub is asked, by default 30.

    Raises UnknownNameError for a name that is nowhere, InputError for a file that is no model, UnsupportedModelError
    for an architecture that is not understood, and HubError where the hub cannot be reached or refuses.
    """
    from planner.model import ResolvedModel, as_quantized, resolve_model

    if isinstance(model, ResolvedModel):
        resolved = model
    else:
        resolved = resolve_model(str(model), revision=revision, refresh=refresh, timeout_s=timeout)
    if weight_dtype is None:
        return resolved
    found = as_quantized(resolved.model, weight_dtype)
    return replace(resolved, model=found, notes=(*resolved.notes, f"the usual form of {weight_dtype} is assumed"))


def load_gpu(gpu: GpuName) -> GpuProfile:
    """The profile of a GPU, or of a partition of one: memory, bandwidth, peaks, prices, each with its source.

    ``gpu`` is an id or an alias in any case (``list_gpus`` has them), the path of a ``.toml`` file, or ``local`` for
    the GPUs of this machine. Raises UnknownNameError for any other name, and InputError for a file that is no profile
    and for a machine whose GPUs have none.
    """
    return find_gpu(gpu)[0]


def find_gpu(gpu: GpuName, network_gb_per_s: float | None = None) -> tuple[GpuProfile, tuple[str, ...]]:
    """The profile, with the network that is stated, and of ``local`` a remark on which GPUs were found."""
    from planner.hardware import GpuProfile, load_profile, local_profile

    network = checked_rate("network_gb_per_s", network_gb_per_s)
    if isinstance(gpu, GpuProfile):
        return gpu.with_network(network), ()
    if str(gpu).strip().lower() != "local":
        return load_profile(str(gpu)).with_network(network), ()
    found = local_profile()
    return found.profile.with_network(network), (found.note,)


def find_gpus(
    gpus: GpuName | Iterable[GpuName], network_gb_per_s: float | None = None
) -> tuple[tuple[GpuProfile, ...], tuple[str, ...]]:
    """The profiles in their order, each once, with the network that is stated, and remarks; ``all`` is every one."""
    from planner.hardware import GpuProfile, load_all

    given: Sequence[GpuName] = [gpus] if isinstance(gpus, str | PathLike | GpuProfile) else list(gpus)
    names = [name for several in given for name in _apart(several)]
    if any(isinstance(name, str) and name.lower() == "all" for name in names):
        names = list(load_all(partitions=True))
    profiles: dict[str, GpuProfile] = {}
    remarks: list[str] = []
    for name in names:
        profile, said = find_gpu(name, network_gb_per_s)
        profiles.setdefault(profile.id, profile)
        remarks += said
    if not profiles:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    return tuple(profiles.values()), tuple(remarks)


def _apart(gpu: GpuName) -> Sequence[GpuName]:
    """``h100,b200`` are two names; a comma in the path of a file is part of it."""
    return gpu.split(",") if isinstance(gpu, str) and not gpu.endswith(".toml") else [gpu]


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
    from planner.engine import parse_version

    return None if text is None else parse_version(typed("engine_version", text, str))


def version_for(text: str | None, profile: GpuProfile) -> EngineVersion:
    """The version asked for, else the newest for which an image of this GPU is pinned."""
    from planner.engine import default_version

    return asked_version(text) or default_version(profile)


def fits_for(calibration: str | PathLike[str] | None) -> Local:
    """The fits that ``calibration`` names: a file, ``"none"``, or by default the user's own."""
    from planner.planning import local_for

    return local_for(None if calibration is None else str(calibration))


def basis_for(local: Local, args: EngineArgs) -> Basis:
    """What memory is computed from: fitted overheads, and the draft model of ``speculative_config``."""
    from planner.memory import Basis

    return Basis(local.constants, draft_of(args))


def draft_of(args: EngineArgs) -> Model | None:
    """The second model that ``--speculative-config`` names, if any."""
    from planner.model import resolve_model

    drafts = args.speculative_config
    return resolve_model(drafts.model).model if drafts and drafts.has_draft_model and drafts.model else None


def checked_rate(name: str, gb_per_s: float | None) -> float | None:
    """GB/s of one GPU; None is fine. Raises InputError, naming the flag, for what is no rate."""
    if gb_per_s is None:
        return None
    rate: float = typed(name, gb_per_s, float)
    if not LEAST_GB_PER_S <= rate <= MOST_GB_PER_S:
        raise InputError(f"{flag_of(name)} {rate:g} is no rate", hint="give GB/s of one GPU, such as 50")
    return rate


def check_count(name: str, value: int | None, *, least: int = 1, most: int | None = None) -> None:
    """Raises InputError, naming the flag, for what is no whole number from ``least`` to ``most``; None is fine."""
    if value is None:
        return
    plain = typed(name, value, int)
    if plain < least or (most is not None and plain > most):
        wanted = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InputError(f"{flag_of(name)} must be {wanted}, got {plain}", hint="give such a number, or leave it out")


def typed(name: str, value: Any, hint: Any) -> Any:
    """``value`` as a plain one of the types in ``hint``; numbers of numpy and the like are taken.

    Raises InputError, naming the flag, for a value of another type.
    """
    kinds = get_args(hint) or (hint,)
    if not isinstance(value, Real) or isinstance(value, bool):
        if type(value) in kinds:
            return value
    elif isinstance(value, Integral) and int in kinds:
        return int(value)
    elif float in kinds:
        return float(value)
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    wanted = " or ".join(words[kind] for kind in kinds if kind in words)
    raise InputError(f"{flag_of(name)} {repr(value)[:80]} is not {wanted}", hint=f"give {name} as {wanted}")


def assignments(given: Mapping[str, float] | Sequence[str]) -> list[str]:
    """``GPU=NUMBER`` for each, as it is typed."""
    return [f"{name}={number}" for name, number in given.items()] if isinstance(given, Mapping) else list(given)
