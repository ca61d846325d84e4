"""From a name to a model: a path, the bundled catalog, the local hub cache, the hub."""

from __future__ import annotations

import json
import struct
from collections import Counter
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from planner.errors import HubError, InputError, UnknownNameError
from planner.model import hub
from planner.model.architecture import Model
from planner.model.catalog import find_entry, nearest_ids
from planner.model.hub_download import CONFIG, SIDECAR
from planner.resources import check_file, read_given

Source = Literal["path", "catalog", "cache", "hub"]

INDEX = "model.safetensors.index.json"
MOST_STORED_BYTES = 2**60  #: of a checkpoint; a larger total is no total
MAX_HEADER_BYTES = 100_000_000  #: the limit of the safetensors format itself


@dataclass(frozen=True)
class StoredBytes:
    """What the tensors of a checkpoint's safetensors files take, as the files themselves say."""

    total: int
    by_dtype: dict[str, int] | None  #: by dtype as in the headers (``BF16``, ``F8_E4M3``, ``U8``); None: only the total


@dataclass(frozen=True)
class ResolvedModel:
    """A model, and how the name that was asked for led to it."""

    requested: str
    resolved: str  #: hub id, or path
    model: Model
    source: Source
    notes: tuple[str, ...] = ()
    checkpoint: StoredBytes | None = None  #: where the files or their headers were at hand


def resolve_model(
    name: str,
    *,
    revision: str | None = None,
    refresh: bool = False,
    network: bool = True,
    timeout_s: float | None = None,
) -> ResolvedModel:
    """The model that ``name`` means: a folder with a config.json, such a file, or a hub id.

    Tried in this order: path, bundled catalog, local hub cache, the hub. The catalog holds facts of the main
    revision, so ``revision`` skips it; ``refresh`` skips both it and the cache. ``timeout_s`` is for all that
    the hub is asked, by default ``hub.DEFAULT_TIMEOUT_S``.

    Raises InputError for a path without a readable config.json or a malformed name, UnsupportedModelError for an
    architecture or quantisation that is not understood, HubError when the hub is needed and cannot be had.
    """
    hub.check_revision(revision)
    path = _existing(name)
    if path is not None and _is_model(path):
        return _from_path(name, path)
    entry = find_entry(name)
    if entry is not None and revision is None and not refresh:
        return ResolvedModel(name, entry.id, entry.model(), "catalog", entry.notes)
    if entry is None:
        _refuse_unless_hub_id(name, path)
    repo_id, notes = (entry.id, entry.renamed) if entry else (name, ())
    until_s = monotonic() + (hub.DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s) if network else 0.0
    return _from_hub(name, repo_id, revision, refresh, until_s, notes)


# --- paths -------------------------------------------------------------------------------------------------------


def _existing(name: str) -> Path | None:
    """The path that ``name`` is, if it exists. Raises InputError where the system cannot tell."""
    if not name.strip():
        raise InputError("the model's name is empty", hint="give a hub id, or a folder with a config.json")
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, no permission, no such user
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{name[:200]!r} is not a path: {reason}", hint="give a hub id or a readable folder"
        ) from error


def _is_model(path: Path) -> bool:
    """Whether a path is a file, or a folder with a config.json. Raises InputError for a folder that is closed."""
    try:
        return path.is_file() or (path / CONFIG).is_file()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error


def _from_path(name: str, path: Path) -> ResolvedModel:
    folder, config = (path, path / CONFIG) if path.is_dir() else (path.parent, path)
    beside = config.name == CONFIG  # the files beside another name may belong to other models
    model = _read_model(folder if beside else None, config, model_id=name)
    return ResolvedModel(name, str(path), model, "path", checkpoint=stored_bytes(folder) if beside else None)


def _refuse_unless_hub_id(name: str, path: Path | None) -> None:
    """Raise InputError for a name that is not a model on disk, not in the catalog, and cannot be a hub id."""
    if path is not None and path.is_dir():
        raise InputError(f"{name}: {_what_is_in(path)}", hint="give a folder with a config.json in Hugging Face format")
    if path is not None:
        raise InputError(f"{name} is neither a file nor a folder", hint="give a folder with a config.json")
    if name.startswith(("/", "./", "../", "~")) or name.endswith((".json", ".gguf")):
        raise InputError(f"{name[:200]!r}: no such file or folder", hint="check the path, or give a hub id")
    if "/" not in name and hub.is_repo_id(f"organisation/{name}"):
        raise UnknownNameError("model", name, near=nearest_ids(name), see="planner models list")
    hub.check_repo_id(name)


def _what_is_in(folder: Path) -> str:
    """What a folder without config.json holds instead."""
    try:
        names = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        return f"the folder cannot be read ({error.strerror})"
    if any(name.endswith(".gguf") for name in names):
        return "a folder of GGUF files, without a config.json"
    if "adapter_config.json" in names:
        return "an adapter, not a model: it has no config.json of its own"
    if "params.json" in names:
        return "the original format (params.json), without a config.json"
    return "the folder has no config.json"


def _read_model(folder: Path | None, config: Path, *, model_id: str) -> Model:
    """The model of a config.json and, beside it, hf_quant_config.json."""
    from planner.model.build import model_from_config

    sidecar = folder / SIDECAR if folder else None
    return model_from_config(
        read_json(config), model_id=model_id, sidecar=read_json(sidecar) if sidecar and sidecar.is_file() else None
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError when it cannot be read, is too large, or is something else."""
    try:
        values = json.loads(read_given(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="check the path and its permissions") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, endless digits or nesting
        reason = str(error).partition("\n")[0][:120]
        raise InputError(f"{path} is not valid JSON: {reason}", hint="give the model's own, complete file") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} does not hold a JSON object", hint="give the model's own config.json")
    return values


# --- cache and hub -------------------------------------------------------------------------------------------------


def _from_hub(
    name: str, repo_id: str, revision: str | None, refresh: bool, until_s: float, notes: tuple[str, ...]
) -> ResolvedModel:
    """The model of a hub id that the catalog does not answer for: from the local hub cache, else from the hub.

    ``until_s`` is when the hub has to have answered, on the clock of ``monotonic``; 0 leaves it in peace.
    """
    cached = None if refresh else hub.cached_snapshot(repo_id, revision)
    if cached is not None and cached.complete:
        return _from_snapshot(name, repo_id, cached, "cache", notes, 0.0)
    try:
        if not until_s:
            raise HubError(
                f"{repo_id} is neither in the bundled catalog nor in the local hub cache",
                hint="allow the network, or give a folder with the model's config.json",
            )
        fetched = hub.fetch_snapshot(repo_id, revision, timeout_s=until_s - monotonic())
    except HubError as error:
        if cached is None:
            raise _with_nearest(error, name) from error
        notes += (f"{SIDECAR} of {repo_id} is not cached: if there is one, its quantisation is not known",)
        return _from_snapshot(name, repo_id, cached, "cache", notes, 0.0)
    return _from_snapshot(name, repo_id, fetched, "hub", notes, until_s)


def _from_snapshot(
    name: str, repo_id: str, snapshot: hub.Snapshot, source: Source, notes: tuple[str, ...], until_s: float
) -> ResolvedModel:
    folder = snapshot.folder
    model = _read_model(folder, folder / CONFIG, model_id=repo_id)
    stored = stored_bytes(folder)
    if stored is None or stored.by_dtype is None:
        try:
            left_s = until_s - monotonic()
            by_dtype = hub.fetch_stored_bytes(repo_id, snapshot.commit, network=source == "hub", timeout_s=left_s)
            stored = StoredBytes(sum(by_dtype.values()), by_dtype) if by_dtype else stored
        except HubError as error:
            notes += (f"the stored bytes are not known: {error.cause}",)
    return ResolvedModel(name, repo_id, model, source, notes, stored)


def _with_nearest(error: HubError, name: str) -> HubError:
    """The same error, with the nearest ids of the catalog in its hint."""
    if find_entry(name):
        return HubError(error.cause, hint=f"{error.hint}; without --revision and --refresh the bundled catalog answers")
    near = nearest_ids(name)
    return HubError(error.cause, hint=f"{error.hint}; in the bundled catalog: {', '.join(near)}") if near else error


# --- what the safetensors files hold -------------------------------------------------------------------------------


def stored_bytes(folder: Path) -> StoredBytes | None:
    """Bytes of the tensors stored in a folder: from the headers of its safetensors files where all are there, else the
    total that the index states, else None. Files that are no safetensors (Git LFS pointers) count as not there."""
    weight_map, total = _index(folder)
    names = weight_map or {path.name for path in folder.glob("*.safetensors") if "consolidated" not in path.name}
    headers = [_header_bytes(folder / name) for name in sorted(names)]
    by_dtype: Counter[str] = Counter()
    for header in headers:
        by_dtype.update(header or {})
    if headers and None not in headers:
        return StoredBytes(by_dtype.total(), dict(by_dtype))
    return StoredBytes(total, None) if total else None


def _index(folder: Path) -> tuple[set[str], int | None]:
    """Names of the shards and the stated total of an index; nothing where there is none, or no sound one."""
    try:
        values = read_json(folder / INDEX)
    except InputError:
        return set(), None
    weight_map, metadata = values.get("weight_map"), values.get("metadata")
    listed = weight_map.values() if isinstance(weight_map, dict) else ()
    names = {Path(name).name for name in listed if isinstance(name, str) and "\0" not in name}
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, int | float) and 0 < total < MOST_STORED_BYTES:
        return names, int(total)
    return names, None


def _header_bytes(path: Path) -> dict[str, int] | None:
    """Bytes by dtype of one file: an 8-byte little-endian length, then a JSON header with each tensor's offsets."""
    try:
        check_file(path, most_bytes=inf)
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MAX_HEADER_BYTES)))
        by_dtype: Counter[str] = Counter()
        for name, tensor in header.items():
            if name != "__metadata__":
                begin, end = tensor["data_offsets"]
                if not 0 <= begin <= end < MOST_STORED_BYTES:
                    return None
                by_dtype[str(tensor["dtype"])] += int(end) - int(begin)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return dict(by_dtype)
