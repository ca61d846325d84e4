"""Finds the model that a name means: a path, the bundled catalog, the local hub cache, the hub."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.errors import HubError, InputError, UnknownNameError, os_errors
from planner.model import hub
from planner.model.architecture import Model
from planner.model.catalog import find_entry, meant_ids, nearest_ids, quantized_checkpoints
from planner.model.hub import CONFIG, SIDECAR
from planner.resources import may_be_path, read_given

Source = Literal["path", "catalog", "cache", "hub"]
#: Models that only their vendors serve.
CLOSED = re.compile(
    r"(?:(?:openai|anthropic|google|xai|x-ai)/)?"
    r"(?:chatgpt|gpt[ -]?[345]|o[134](?![a-z0-9.])|claude|gemini|grok[ -]?[345]|text-(?:davinci|embedding))",
    re.IGNORECASE,
)
_LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface|hf)\.co/([\w.-]+/[\w.-]+)")
MOST_IDS = 6  #: that a refusal lists
#: Ends of the names of GGUF files and repositories; of the latter with the quantisation, as vLLM takes them.
GGUF = re.compile(r"(?:[-_.](?:UD-)?I?Q\d\w*)?\.gguf$|[-_.]gguf(?::[\w-]+)?$|:(?:UD-)?I?Q\d\w*$", re.IGNORECASE)


@dataclass(frozen=True)
class ResolvedModel:
    requested: str
    resolved: str  #: hub id, or path
    model: Model
    source: Source
    notes: tuple[str, ...] = ()
    revision: str | None = None  #: that was asked for


def resolve_model(
    name: str, *, revision: str | None = None, refresh: bool = False, network: bool = True,
    timeout_s: float | None = None,
) -> ResolvedModel:  # fmt: skip
    """The model that ``name`` means: a folder or file, a bundled entry, the local hub cache, else the hub. ``revision``
    skips the catalog; ``refresh`` skips it and the cache; ``timeout_s`` limits all requests together. Raises
    InputError, UnsupportedModelError (architecture, quantisation), or HubError."""
    hub.check_revision(revision)
    path = _existing(name)
    if GGUF.search(name) and not (path and path.is_dir()):
        ids = meant_ids(GGUF.sub("", name).rpartition("/")[2])
        made = quantized_checkpoints(ids[0]) if len(ids) == 1 else []
        other = next((one.id for one in made if one.weight_dtype.startswith("int4")), "one in AWQ or GPTQ")
        cause = f"{name[:80]}: GGUF is not modelled, and vLLM 0.24.0 and newer read it by vllm-gguf-plugin alone"
        raise InputError(cause, hint=f"give another checkpoint: {other}")
    if path is not None:
        with os_errors(f"{path} cannot be read", hint="check its permissions"):
            folder, config = (path.parent, path) if path.is_file() else (path, path / CONFIG)
            is_model = config.is_file()
        if is_model:  # the files beside another name may belong to other models
            beside = folder if config.name == CONFIG else None
            return ResolvedModel(name, str(path), _read_model(beside, config, model_id=name), "path")
    entry = find_entry(name)
    if entry is not None and revision is None and not refresh:
        return ResolvedModel(name, entry.id, entry.model(), "catalog", entry.notes)
    if entry is None:
        _refuse_unless_hub_id(name, path)
    repo_id, notes = (entry.id, entry.renamed) if entry else (name, ())
    allowed_s = (hub.DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s) if network else None
    return _from_hub(name, repo_id, revision, refresh, allowed_s, notes)


def _existing(name: str) -> Path | None:
    if not name.strip():
        raise InputError("the model's name is empty", hint="give a hub id, or a folder with a config.json")
    hint = "give a hub id or a readable folder"
    # too long, a null byte, no permission, no such user
    with os_errors(f"{name[:200]!r} is not a path", ValueError, RuntimeError, hint=hint):
        path = Path(name).expanduser()
        return path if may_be_path() and path.exists() else None


def _refuse_unless_hub_id(name: str, path: Path | None) -> None:
    if path is not None and path.is_dir():
        raise InputError(f"{name}: {_what_is_in(path)}", hint="give a folder with a config.json in Hugging Face format")
    if path is not None:
        raise InputError(f"{name} is neither a file nor a folder", hint="give a folder with a config.json")
    if name.startswith(("/", "./", "../", "~")) or name.endswith(".json"):
        raise InputError(f"{name[:200]!r}: no such file or folder", hint="check the path, or give a hub id")
    if link := _LINK.match(name):
        raise InputError(f"{name[:200]!r} is a link, not a hub id", hint=f"give {link[1]}")
    if CLOSED.match(name):
        hint = "give a model with published weights, such as openai/gpt-oss-120b; see planner models list"
        raise InputError(f"{name[:80]} has no open weights: only its vendor serves it", hint=hint)
    if "/" not in name and (ids := meant_ids(name)):
        cause = f"{name[:80]!r} may be any of {len(ids)} models"
        raise InputError(cause, hint=f"give one of: {', '.join(ids[:MOST_IDS])}; see planner models list")
    if "/" not in name and hub.is_repo_id(f"organisation/{'-'.join(name.split())}"):
        raise UnknownNameError("model", name, near=nearest_ids(name), see="planner models list")
    hub.check_repo_id(name)


def _what_is_in(folder: Path) -> str:
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
    from planner.model.build import model_from_config

    beside = read_json(folder / SIDECAR) if folder and (folder / SIDECAR).is_file() else None
    return model_from_config(read_json(config), model_id=model_id, sidecar=beside)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError when it cannot be read, is too large, or is something else."""
    try:
        with os_errors(str(path), hint="check the path and its permissions"):
            values = json.loads(read_given(path))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, endless digits or nesting
        reason = str(error).partition("\n")[0][:120]
        raise InputError(f"{path} is not valid JSON: {reason}", hint="give the model's own, complete file") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} does not hold a JSON object", hint="give the model's own config.json")
    return values


def _from_hub(
    name: str, repo_id: str, revision: str | None, refresh: bool, timeout_s: float | None, notes: tuple[str, ...]
) -> ResolvedModel:
    def read(snapshot: hub.Snapshot, source: Source, *more: str) -> ResolvedModel:
        beside = snapshot.folder if snapshot.complete else None  # a damaged sidecar is none
        model = _read_model(beside, snapshot.folder / CONFIG, model_id=repo_id)
        return ResolvedModel(name, repo_id, model, source, (*notes, *more), revision)

    cached = None if refresh else hub.cached_snapshot(repo_id, revision)
    if cached is not None and cached.complete:
        return read(cached, "cache")
    try:
        if timeout_s is None:
            cause = f"{repo_id} is neither in the bundled catalog nor in the local hub cache"
            raise HubError(cause, hint="allow the network, or give a folder with the model's config.json")
        return read(hub.fetch_snapshot(repo_id, revision, timeout_s=timeout_s), "hub")
    except HubError as error:
        if cached is not None:
            note = f"{SIDECAR} of {repo_id} is not cached: if there is one, its quantisation is not known"
            return read(cached, "cache", note)
        hint = error.hint
        meant = [] if find_entry(name) or not isinstance(error, hub.NoRepositoryError) else meant_ids(name)
        if len(meant) == 1 and revision is None and (entry := find_entry(meant[0])):
            taken = f"the hub has no {name[:80]}: {entry.id} is taken"
            return ResolvedModel(name, entry.id, entry.model(), "catalog", (taken, *entry.notes))
        if meant:
            hint += f"; it may be any of: {', '.join(meant[:MOST_IDS])}"
        elif find_entry(name):
            hint += "; without --revision and --refresh the bundled catalog answers"
        elif near := nearest_ids(name):
            hint += f"; in the bundled catalog: {', '.join(near)}"
        raise HubError(error.cause, hint=hint) from error
