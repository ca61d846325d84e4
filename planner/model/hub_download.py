"""Asks the hub, in a process of its own: ``python -m planner.model.hub_download``.

Only a process can be ended for certain, whatever it waits for: a header that comes byte by byte, a name server that
does not answer, a thread in the middle of a read. It reads an ``Ask`` as JSON from stdin, and prints one JSON object:
``{"answer": ...}``, or the cause and the hint of a HubError.

``Guard`` sees every request and every chunk of an answer, those after a redirect included.
"""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any, cast
from urllib.parse import urlsplit

from planner.errors import HubError, InputError

CONFIG = "config.json"
#: Of huggingface_hub: it writes a file and renames it. Interrupted in between, it leaves the file in the cache.
WRITES_REFERENCE = "_cache_commit_hash_for_specific_revision"
SIDECAR = "hf_quant_config.json"  #: where NVIDIA's modelopt checkpoints keep their quantisation
#: Most bytes of all answers about one thing. 100 MB is also the limit of the safetensors format for a header.
MOST_BYTES = {"snapshot": 64_000_000, "stored_bytes": 100_000_000}
MOST_MEMORY_BYTES = 2**30  #: of this process: a header of 100 MB may become far more once it is read
PROXY = "check HF_ENDPOINT, and whether a proxy or a login page stands in between"


@dataclass(frozen=True)
class Ask:
    """What to fetch, and from where."""

    what: str  #: a key of ``MOST_BYTES``
    repo_id: str
    revision: str | None
    endpoint: str
    cache_dir: str | None  #: None leaves it to huggingface_hub
    etag_timeout_s: float
    timeout_s: float  #: for everything together

    @property
    def host(self) -> str:
        """The endpoint as it may be printed: without a user name and password."""
        return urlsplit(self.endpoint).netloc.rpartition("@")[2] or "the hub"


class Late(BaseException):
    """The time is over. No ``except Exception`` on the way may hold it up."""


class Guard:
    """Hooks of the HTTP client: credentials go to the endpoint alone, and no more than ``MOST_BYTES`` comes back."""

    def __init__(self, ask: Ask) -> None:
        self.host = ask.host
        self.home = _origin(ask.endpoint)
        self.most_bytes = self.left_bytes = MOST_BYTES[ask.what]
        self.lock = Lock()

    def request(self, request: Any) -> None:
        """Before a request is sent. Raises HubError where a redirect leaves https."""
        request.headers["Accept-Encoding"] = "identity"  # what is counted is then what is kept
        origin = _origin(str(request.url))
        if origin == self.home:
            return
        if origin[0] != "https" and self.home[0] == "https":
            raise HubError(f"{self.host} sends its visitors on to an address without https", hint=PROXY)
        for name in ("Authorization", "Cookie"):
            request.headers.pop(name, None)

    def response(self, response: Any) -> None:
        """Before an answer is read: refuse one that is stated to be too large, and count what comes."""
        if response.request.method == "HEAD":
            return
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise HubError(f"{self.host} sends compressed answers, which was not asked for", hint=PROXY)
        stated = response.headers.get("Content-Length", "")
        self._refuse_over(self.left_bytes - int(stated[:20]) if stated.isdecimal() else 0)
        response.iter_raw = self._counted(response.iter_raw)

    def _counted(self, iter_raw: Callable[..., Iterator[bytes]]) -> Callable[..., Iterator[bytes]]:
        def counted(*args: Any, **options: Any) -> Iterator[bytes]:
            for chunk in iter_raw(*args, **options):
                with self.lock:
                    self.left_bytes -= len(chunk)
                self._refuse_over(self.left_bytes)
                yield chunk

        return counted

    def _refuse_over(self, left_bytes: int) -> None:
        if left_bytes < 0:
            raise HubError(
                f"{self.host} answers with more than {self.most_bytes / 1e6:.0f} MB, which describes no model",
                hint="check HF_ENDPOINT, and the model's repository",
            )


def main() -> None:
    """Answer the question on stdin."""
    ask = Ask(**json.load(sys.stdin))
    said: dict[str, Any] = {"late": True}
    with suppress(Late):  # the alarm comes again, and may meet the end of the first
        with suppress(Late):
            _limit(ask)
            said = _said(ask)
        _stop_clock()
    _stop_clock()
    print(json.dumps(said), flush=True)
    os._exit(0)  # threads that still read are not waited for


def _said(ask: Ask) -> dict[str, Any]:
    try:
        with _errors_explained(ask):
            return {"answer": _ANSWERS[ask.what](ask)}
    except (HubError, InputError) as error:
        return {"cause": error.cause, "hint": error.hint}


def _stop_clock() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit(ask: Ask) -> None:
    """Memory and time of this process, where the platform has such limits. Who started it ends it in any case."""
    if hasattr(signal, "setitimer"):

        def late(_: int, frame: FrameType | None) -> None:
            while frame:
                if frame.f_code.co_name == WRITES_REFERENCE:
                    return  # the alarm comes again
                frame = frame.f_back
            raise Late

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, max(ask.timeout_s, 0.001), 0.2)  # again, should somebody wait for a thread
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY_BYTES, most))


def _snapshot(ask: Ask) -> str:
    """The folder of the hub cache that holds config.json and, where there is one, hf_quant_config.json."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    def download(name: str, at: str | None) -> Path:
        # force_download also keeps huggingface_hub from retrying for 20 s when there is no network
        path = hf_hub_download(
            ask.repo_id, name, revision=at, endpoint=ask.endpoint, cache_dir=ask.cache_dir,
            etag_timeout=ask.etag_timeout_s, force_download=True,
        )  # fmt: skip
        return Path(path)

    folder = download(CONFIG, ask.revision).parent
    try:
        download(SIDECAR, folder.name)
    except LocalEntryNotFoundError:
        raise  # the hub could not be reached: whether there is a sidecar stays unknown
    except EntryNotFoundError:
        pass  # most repositories have none
    return str(folder)


def _stored_bytes(ask: Ask) -> dict[str, int] | None:
    """Bytes by dtype, from the headers of the safetensors files; None where there are none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    total: dict[str, int] = {}
    try:
        metadata = HfApi(endpoint=ask.endpoint).get_safetensors_metadata(ask.repo_id, revision=ask.revision)
        for file in metadata.files_metadata.values():
            for tensor in file.tensors.values():
                begin, end = tensor.data_offsets
                if not 0 <= begin <= end < 2**60:
                    raise SafetensorsParsingError
                total[tensor.dtype] = total.get(tensor.dtype, 0) + end - begin
    except NotASafetensorsRepoError:
        return None
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, struct.error) as error:
        raise SafetensorsParsingError from error  # an index or a header that is not what the format says
    return total


_ANSWERS: dict[str, Callable[[Ask], Any]] = {"snapshot": _snapshot, "stored_bytes": _stored_bytes}


@contextmanager
def environment_explained() -> Iterator[None]:
    """Around the import of huggingface_hub, which reads its variables then. Raises InputError for a bad one."""
    try:
        yield
    except ValueError as error:
        raise InputError(
            f"huggingface_hub cannot read its variables: {error}", hint="check the variables that begin with HF_"
        ) from error


@contextmanager
def _errors_explained(ask: Ask) -> Iterator[None]:
    """Put the guard into the client of huggingface_hub, and turn what is raised into a HubError."""
    with environment_explained():
        from huggingface_hub import get_session
        from huggingface_hub.errors import HfHubHTTPError, SafetensorsParsingError

    client, guard = get_session(), Guard(ask)
    hooks = client.event_hooks
    client.event_hooks = {
        "request": [*hooks["request"], guard.request],
        "response": [*hooks["response"], guard.response],
    }
    # the bases are the HTTP library's own error and OSError: httpx, httpx2, ... by version of huggingface_hub
    transport = cast(tuple[type[Exception], ...], HfHubHTTPError.__bases__)
    odd = (OSError, ValueError, RuntimeError, MemoryError)
    expected: tuple[type[Exception], ...] = (*transport, *odd, SafetensorsParsingError)
    try:
        yield
    except expected as error:
        raise _explained(error, ask) from error


def _explained(error: Exception, ask: Ask) -> HubError:
    """One cause and one hint for an error of huggingface_hub, whose own text runs over many lines."""
    from huggingface_hub import errors

    while isinstance(error, errors.LocalEntryNotFoundError | ValueError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # "not cached, and the request failed": the request says why
    repo_id, host = ask.repo_id, ask.host
    page = f"{ask.endpoint}/{repo_id}".replace(urlsplit(ask.endpoint).netloc, host)
    folder = "give a folder with the model's config.json"
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
            f"{repo_id} has no revision {ask.revision!r}",
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
        MemoryError: (
            f"{repo_id}: its safetensors headers or index take more than 1 GB once they are read",
            "the repository is damaged: report it to its owner",
        ),
        errors.FileMetadataError: (f"{host} does not answer like a Hugging Face hub", PROXY),
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


def _origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)


if __name__ == "__main__":
    main()
