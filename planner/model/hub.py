"""The only code that touches the network: it fetches the small files that describe a model, with huggingface_hub.

Three steps, from free to slow::

    cached_snapshot      what the local hub cache holds; never touches the network
    fetch_snapshot       config.json and hf_quant_config.json, into the same cache
    fetch_stored_bytes   what the safetensors files hold, by dtype: only their headers, a few kB each

The environment is read at each call: ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_HUB_CACHE``, ``HF_HOME``,
``HF_HUB_ETAG_TIMEOUT``. The token (``HF_TOKEN``, or the one saved by ``hf auth login``) is read by huggingface_hub
itself and does not pass through here. Functions import huggingface_hub themselves: most calls never need it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from planner.errors import HubError, InputError
from planner.resources import write_then_rename

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"  #: where NVIDIA's modelopt checkpoints keep their quantisation
DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_TIMEOUT_S = 10.0

# The hub's own rule: letters, digits, "-", "_" and "." inside, an organisation and a name.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_-])?"
_REPO_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")


@dataclass(frozen=True)
class Settings:
    """What the environment says about the hub."""

    endpoint: str
    offline: bool
    cache_dir: Path | None  #: None leaves it to huggingface_hub
    timeout_s: float

    @classmethod
    def from_environment(cls) -> Settings:
        """Read the variables that huggingface_hub documents. Raises InputError for one that cannot be understood."""
        env = os.environ
        offline = env.get("HF_HUB_OFFLINE") or env.get("TRANSFORMERS_OFFLINE") or ""
        home = env.get("HF_HOME")
        cache_dir = env.get("HF_HUB_CACHE") or (f"{home}/hub" if home else None)
        endpoint = (env.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        if not endpoint.startswith(("https://", "http://")):
            raise InputError("HF_ENDPOINT is not a web address", hint=f"unset it, or give it like {DEFAULT_ENDPOINT}")
        try:
            timeout_s = float(env.get("HF_HUB_ETAG_TIMEOUT") or DEFAULT_TIMEOUT_S)
        except ValueError as error:
            raise InputError("HF_HUB_ETAG_TIMEOUT is not a number", hint="give it in seconds: 10") from error
        return cls(
            endpoint=endpoint,
            offline=offline.upper() in {"1", "ON", "YES", "TRUE"},
            cache_dir=Path(cache_dir).expanduser() if cache_dir else None,
            timeout_s=timeout_s,
        )

    @property
    def host(self) -> str:
        """The endpoint as it may be printed: without a user name and password."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2] or "the hub"


@dataclass(frozen=True)
class Snapshot:
    """A folder of the local hub cache: the files of one commit that were fetched so far."""

    folder: Path  #: holds config.json at least; its name is the commit
    complete: bool  #: hf_quant_config.json is there too, or the repository is known to have none

    @property
    def commit(self) -> str:
        """The commit that the files belong to."""
        return self.folder.name


def is_repo_id(name: str) -> bool:
    """Whether ``name`` has the form ``organisation/name`` that the hub allows."""
    return bool(_REPO_ID.fullmatch(name)) and ".." not in name and "--" not in name and name[-4:] != ".git"


def check_repo_id(name: str) -> str:
    """``name`` itself. Raises InputError unless it has the form of a hub id: nothing else reaches disk or network."""
    if not is_repo_id(name):
        raise InputError(
            f"{name[:200]!r} is neither a path nor a hub id",
            hint="give organisation/name as on the hub, a folder with a config.json, or see: planner models list",
        )
    return name


def check_revision(revision: str | None) -> str | None:
    """``revision`` itself. Raises InputError unless it has the form of a branch, a tag or a commit."""
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise InputError(
            f"--revision {revision[:200]!r} is not a revision", hint="give a branch, a tag or a commit, such as main"
        )
    return revision


def cached_snapshot(repo_id: str, revision: str | None = None) -> Snapshot | None:
    """What the local hub cache holds of a repository; None without its config.json. Never touches the network."""
    check_repo_id(repo_id)
    check_revision(revision)
    from huggingface_hub import try_to_load_from_cache

    cache_dir = Settings.from_environment().cache_dir
    config, sidecar = (
        try_to_load_from_cache(repo_id, name, cache_dir=cache_dir, revision=revision) for name in (CONFIG, SIDECAR)
    )
    if not isinstance(config, str):
        return None
    return Snapshot(Path(config).parent, complete=sidecar is not None)


def fetch_snapshot(repo_id: str, revision: str | None = None) -> Snapshot:
    """Fetch config.json and, where there is one, hf_quant_config.json into the local hub cache, even if they are there.

    Raises HubError when the hub cannot be reached, refuses, or has no such repository, revision or config.json;
    InputError for a malformed id.
    """
    check_repo_id(repo_id)
    check_revision(revision)
    settings = Settings.from_environment()
    if settings.offline:
        raise HubError(
            f"{repo_id} is not in the local hub cache, and HF_HUB_OFFLINE is set",
            hint="unset HF_HUB_OFFLINE, or give a folder with the model's config.json",
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def download(name: str, at: str | None) -> Path:
        # force_download also keeps huggingface_hub from retrying for 20 s when there is no network
        path = hf_hub_download(
            repo_id, name, revision=at, endpoint=settings.endpoint, cache_dir=settings.cache_dir,
            etag_timeout=settings.timeout_s, force_download=True,
        )  # fmt: skip
        return Path(path)

    with _errors_explained(repo_id, revision, settings):
        folder = download(CONFIG, revision).parent
        try:
            download(SIDECAR, folder.name)
        except LocalEntryNotFoundError:
            raise  # the hub could not be reached: whether there is a sidecar stays unknown
        except EntryNotFoundError:
            pass  # most repositories have none
    return Snapshot(folder, complete=True)


def fetch_stored_bytes(repo_id: str, commit: str, *, network: bool = True) -> dict[str, int] | None:
    """Bytes of the tensors in the safetensors files of a commit, by dtype as in their headers (``BF16``, ``U8``).

    A commit never changes, so the answer is kept in the user's cache folder. None when it is not there and the hub
    is not asked (``network``, offline) or has no safetensors. Raises HubError like ``fetch_snapshot``.
    """
    memo = _memo_path(check_repo_id(repo_id), commit)
    known = _recall(memo)
    settings = Settings.from_environment()
    if known is not None or not network or settings.offline:
        return known
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    total: dict[str, int] = {}
    with _errors_explained(repo_id, commit, settings):
        try:
            metadata = HfApi(endpoint=settings.endpoint).get_safetensors_metadata(repo_id, revision=commit)
            for file in metadata.files_metadata.values():
                for tensor in file.tensors.values():
                    begin, end = tensor.data_offsets
                    total[tensor.dtype] = total.get(tensor.dtype, 0) + end - begin
        except NotASafetensorsRepoError:
            return None
        except (AttributeError, KeyError, TypeError, ValueError, struct.error) as error:
            raise SafetensorsParsingError from error  # an index or a header that is not what the format says
    _remember(memo, total)
    return total


def _memo_path(repo_id: str, commit: str) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("planner") / "stored-bytes" / f"{repo_id.replace('/', '--')}@{commit}.json"


def _recall(memo: Path) -> dict[str, int] | None:
    """An answer kept earlier; None without one, or where the file is damaged."""
    try:
        values = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    sound = isinstance(values, dict) and all(isinstance(size, int) for size in values.values())
    return values if sound else None


def _remember(memo: Path, total: dict[str, int]) -> None:
    """Keep an answer for next time; a folder that cannot be written does no harm."""
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        write_then_rename(memo, json.dumps(total).encode())
    except OSError:
        return


@contextmanager
def _errors_explained(repo_id: str, revision: str | None, settings: Settings) -> Iterator[None]:
    """Turn what huggingface_hub raises into a HubError."""
    from huggingface_hub.errors import HfHubHTTPError, SafetensorsParsingError

    # the bases are the HTTP library's own error and OSError: requests, httpx, ... by version of huggingface_hub
    transport = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    expected: tuple[type[Exception], ...] = (*transport, OSError, ValueError, SafetensorsParsingError)
    try:
        with _quiet():
            yield
    except expected as error:
        raise _explained(error, repo_id, revision, settings) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars for files of a few kB, and no log lines: our errors say the same."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    level, had_bars = logger.level, not are_progress_bars_disabled()
    logger.setLevel(logging.CRITICAL)
    if had_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bars:
            enable_progress_bars()


def _explained(error: Exception, repo_id: str, revision: str | None, settings: Settings) -> HubError:
    """One cause and one hint for an error of huggingface_hub, whose own text runs over many lines."""
    from huggingface_hub import errors

    while isinstance(error, errors.LocalEntryNotFoundError | ValueError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "not cached, and the request failed": the request says why
    page = f"{settings.endpoint}/{repo_id}".replace(urlsplit(settings.endpoint).netloc, settings.host)
    host, folder = settings.host, "give a folder with the model's config.json"
    known: dict[type[Exception], tuple[str, str]] = {
        errors.GatedRepoError: (
            f"{repo_id} is gated, and {host} refused its files",
            f"accept the licence at {page}, then set HF_TOKEN",
        ),
        errors.RepositoryNotFoundError: (
            f"{host} has no repository {repo_id}, or it is private",
            "check the spelling; for a private repository set HF_TOKEN",
        ),
        errors.RevisionNotFoundError: (
            f"{repo_id} has no revision {revision!r}",
            "give --revision a branch, a tag or a commit of that repository",
        ),
        errors.EntryNotFoundError: (
            f"{repo_id} has no {CONFIG}",
            "a repository of GGUF files or of an adapter describes no architecture: give the base model",
        ),
        errors.OfflineModeIsEnabled: (
            f"{repo_id} is not in the local hub cache, and huggingface_hub is offline",
            f"unset HF_HUB_OFFLINE, or {folder}",
        ),
        errors.SafetensorsParsingError: (
            f"{repo_id}: its safetensors headers or index cannot be read",
            "the repository is damaged: report it to its owner",
        ),
        errors.FileMetadataError: (
            f"{host} does not answer like a Hugging Face hub",
            "check HF_ENDPOINT, and whether a proxy or a login page stands in between",
        ),
    }
    for kind, (cause, hint) in known.items():
        if isinstance(error, kind):
            return HubError(cause, hint=hint)
    if isinstance(error, OSError) and error.filename:
        return HubError(
            f"the local hub cache cannot be used: {error.strerror} ({error.filename})",
            hint="set HF_HOME to a folder that you may write",
        )
    return HubError(
        f"{host}: {_transport_cause(error)}", hint=f"check the network, HF_ENDPOINT and HF_TOKEN; offline, {folder}"
    )


def _transport_cause(error: Exception) -> str:
    """What went wrong on the way, in a few words and without the request, whose headers hold the token."""
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status is not None:
        return f"the hub answered with HTTP status {status}"
    name = type(error).__name__
    if "Timeout" in name:
        return "no answer in time"
    return f"could not be reached ({name})"
