"""Fetches the two small files that describe a model into the local hub cache: the only code that uses the network.
huggingface_hub does the work, in a thread with limits of time and bytes. Its variables are read at each call."""

import errno
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit
from warnings import catch_warnings

from planner.errors import HubError, InputError, PlannerError
from planner.resources import package_dir, tables_of

CONFIG = "config.json"
SIDECAR = "hf_quant_config.json"  #: NVIDIA's modelopt checkpoints keep their quantisation here
DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_TIMEOUT_S = 30.0  #: for both files together
MOST_BYTES = 64_000_000  #: of both files together; the largest published config.json has 3 MB
PROXY = "check HF_ENDPOINT, and whether a proxy or a login page stands in between"
FOLDER = "give a folder with the model's config.json"
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}  #: errors of a disk, also without a file
# The rule of huggingface_hub: letters, digits and "_", with "-" and "." inside, an organisation and a name.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")


@dataclass(frozen=True)
class Snapshot:
    folder: Path  #: holds config.json at least; its name is the commit
    complete: bool  #: hf_quant_config.json is there too, or the repository is known to have none


def is_repo_id(name: str) -> bool:
    """True if ``name`` has the form ``organisation/name`` that the hub allows."""
    return bool(_REPO_ID.fullmatch(name)) and ".." not in name and "--" not in name and name[-4:] != ".git"


def check_repo_id(name: str) -> str:
    """Return ``name``. Raises InputError unless it has the form of a hub id: only ids reach disk or network."""
    if not is_repo_id(name):
        hint = "give organisation/name as on the hub, a folder with a config.json, or see: planner models list"
        raise InputError(f"{name[:200]!r} is neither a path nor a hub id", hint=hint)
    return name


def check_revision(revision: str | None) -> str | None:
    """Return ``revision``. Raises InputError unless it has the form of a branch, a tag or a commit."""
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision):
        cause = f"--revision {revision[:200]!r} is not a revision"
        raise InputError(cause, hint="give a branch, a tag or a commit, such as main")
    return revision


def cached_snapshot(repo_id: str, revision: str | None = None) -> Snapshot | None:
    """The cached files of a repository; None without its config.json. Never touches the network."""
    check_repo_id(repo_id)
    check_revision(revision)
    find = _library().try_to_load_from_cache
    config, sidecar = (find(repo_id, name, cache_dir=_cache_dir(), revision=revision) for name in (CONFIG, SIDECAR))
    if not isinstance(config, str) or not _holds_object(Path(config)):  # damaged, or the login page of a proxy
        return None
    whole = _holds_object(Path(sidecar)) if isinstance(sidecar, str) else sidecar is not None
    return Snapshot(Path(config).parent, complete=whole)


def fetch_snapshot(repo_id: str, revision: str | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Snapshot:
    """Fetch both files into the local hub cache. Raises InputError for a malformed id, else HubError."""
    check_repo_id(repo_id)
    check_revision(revision)
    endpoint = (os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise InputError("HF_ENDPOINT is not a web address", hint=f"unset it, or give it like {DEFAULT_ENDPOINT}")
    offline = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    if offline.upper() in {"1", "ON", "YES", "TRUE"}:
        cause = f"{repo_id} is not in the local hub cache, and HF_HUB_OFFLINE is set"
        raise HubError(cause, hint=f"unset HF_HUB_OFFLINE, or {FOLDER}")
    fetch = _Fetch(repo_id, revision, endpoint)
    if timeout_s > 0:
        with _quiet(_library()):
            fetch.start()  # a thread can be left behind whatever it waits for, a name server for example
            fetch.join(timeout_s)
    if fetch.error is not None:
        raise fetch.error
    if fetch.folder is None:
        fetch.left_bytes = 0  # the thread ends with the next part of an answer
        cause = f"{fetch.host} took longer than {timeout_s:.3g} s to answer"
        raise HubError(cause, hint=f"give it more time with --timeout, or {FOLDER}")
    return Snapshot(fetch.folder, complete=True)


class NoRepositoryError(HubError):
    """The hub has no such repository, or does not show it."""


class _Fetch(Thread):
    """Asks the hub for both files of a repository; ends with a ``folder`` or an ``error``."""

    def __init__(self, repo_id: str, revision: str | None, endpoint: str) -> None:
        super().__init__(daemon=True)
        self.repo_id, self.revision, self.endpoint = repo_id, revision, endpoint
        #: The endpoint as it may be printed: without a user name and password.
        self.host = urlsplit(endpoint).netloc.rpartition("@")[2] or "the hub"
        self.left_bytes: float = MOST_BYTES
        self.folder: Path | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.folder = self._fetch()
        except BaseException as error:  # raised by the thread that waits
            self.error = error

    def _fetch(self) -> Path:
        errors = _library().errors
        try:
            folder = self._download(CONFIG, self.revision).parent
            try:
                self._download(SIDECAR, folder.name)
            except errors.LocalEntryNotFoundError:
                raise  # the hub could not be reached: whether there is a sidecar stays unknown
            except errors.EntryNotFoundError:
                pass  # most repositories have none
        except PlannerError:
            raise
        except Exception as error:  # of the library, of its HTTP client by any name, of what a hostile answer breaks
            raise self._explained(error) from error
        return folder

    def _download(self, name: str, revision: str | None) -> Path:
        path = Path(
            _library().hf_hub_download(
                self.repo_id, name, revision=revision, endpoint=self.endpoint, cache_dir=_cache_dir(),
                force_download=True,  # it also keeps huggingface_hub from retrying for 20 s when there is no network
                tqdm_class=self._limit(),
            )
        )  # fmt: skip
        if not _holds_object(path):
            path.resolve().unlink(missing_ok=True)  # the blob that the link leads to
            path.unlink(missing_ok=True)
            raise HubError(f"{self.host}: its answer for {name} is not a JSON object", hint=PROXY)
        return path

    def _limit(self) -> type:
        """Return a progress bar that shows nothing. It ends a download whose stated or received bytes are too many."""
        fetch = self

        class Limit(_library().utils.tqdm):  # type: ignore[misc]
            def __init__(self, *args: Any, **options: Any) -> None:
                super().__init__(*args, **options | {"disable": True})
                fetch._check(options.get("total") or 0)

            def update(self, n: float | None = 1) -> None:
                fetch.left_bytes -= n or 0
                fetch._check(0)

        return Limit

    def _check(self, coming_bytes: float) -> None:
        if self.left_bytes < coming_bytes:
            cause = f"{self.host} answers with more than {MOST_BYTES / 1e6:.0f} MB, which describes no model"
            raise HubError(cause, hint=f"check the model's repository and HF_ENDPOINT, or {FOLDER}")

    def _explained(self, error: BaseException) -> HubError:
        errors = _library().errors
        while isinstance(error, errors.LocalEntryNotFoundError | ValueError) and error.__cause__:
            error = error.__cause__  # "not cached, and the request failed": the request says why
        page = f"{self.endpoint}/{self.repo_id}".replace(urlsplit(self.endpoint).netloc, self.host)
        for name, texts in tables_of(package_dir("model") / "names.toml")["hub_errors"].items():
            if isinstance(error, getattr(errors, name)):
                said = dict(repo_id=self.repo_id, host=self.host, revision=self.revision, page=page, proxy=PROXY)
                cause, hint = (text.format(**said) for text in texts)
                return (NoRepositoryError if name == "RepositoryNotFoundError" else HubError)(cause, hint=hint)
        if isinstance(error, OSError) and (error.filename or error.errno in _DISK):
            cause = f"the local hub cache cannot be used: {error.strerror}"
            cause += f" ({error.filename})" if error.filename else ""
            return HubError(cause, hint="free some space, or set HF_HOME to another folder that you may write")
        # in a few words and without the request, whose headers hold the token
        status, name = getattr(getattr(error, "response", None), "status_code", None), type(error).__name__
        cause = "no answer in time" if "Timeout" in name else f"could not be reached ({name})"
        cause = f"the hub answered with HTTP status {status}" if status is not None else cause
        return HubError(f"{self.host}: {cause}", hint=f"check the network, HF_ENDPOINT and HF_TOKEN; offline, {FOLDER}")


def _library() -> Any:
    """huggingface_hub, imported on first use. Raises InputError for a variable that it cannot read then."""
    try:
        import huggingface_hub.file_download
    except ValueError as error:
        cause = f"huggingface_hub cannot read its variables: {error}"
        raise InputError(cause, hint="check the variables that begin with HF_") from error
    return huggingface_hub


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    log = logging.getLogger("huggingface_hub")
    level, reports_nothing = log.level, library.constants.HF_HUB_DISABLE_TELEMETRY
    log.setLevel(logging.CRITICAL)
    library.constants.HF_HUB_DISABLE_TELEMETRY = True  # it asks the hub for a list of agents, to name the sender
    try:
        with catch_warnings(action="ignore"):  # of a file too large for the disk, for example
            yield
    finally:
        log.setLevel(level)
        library.constants.HF_HUB_DISABLE_TELEMETRY = reports_nothing


def _cache_dir() -> Path | None:
    home = os.environ.get("HF_HOME")
    folder = os.environ.get("HF_HUB_CACHE") or (f"{home}/hub" if home else None)
    return Path(folder).expanduser() if folder else None


def _holds_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError, RecursionError):
        return False
