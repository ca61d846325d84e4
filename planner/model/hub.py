"""Fetches the small files that describe a model; the only code beside ``hub_download`` that knows of a network.

Three steps, from free to slow::

    cached_snapshot      what the local hub cache holds; never touches the network
    fetch_snapshot       config.json and hf_quant_config.json, into the same cache
    fetch_stored_bytes   what the safetensors files hold, by dtype: only their headers, a few kB each

The environment is read at each call: ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``, ``HF_HUB_CACHE``, ``HF_HOME``,
``HF_HUB_ETAG_TIMEOUT``. The token (``HF_TOKEN``, or the one saved by ``hf auth login``) is read by huggingface_hub
itself and does not pass through here. What touches the network runs in a process of its own
(``planner.model.hub_download``), which ends when the time is over.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from planner.errors import HubError, InputError
from planner.model.hub_download import CONFIG, SIDECAR, Ask, environment_explained
from planner.resources import write_then_rename

DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_ETAG_TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S = 30.0  #: for all that is asked about one model
#: Nothing but the files that were asked for: no list of agents for the sender's name, no second protocol for them.
QUIET = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
GRACE_S = 2.0  #: that a process has to say by itself that the time is over

# The rule of huggingface_hub: letters, digits and "_", with "-" and "." inside, an organisation and a name.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
_REPO_ID = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,254}")


@dataclass(frozen=True)
class Settings:
    """What the environment says about the hub."""

    endpoint: str
    offline: bool
    cache_dir: Path | None  #: None leaves it to huggingface_hub
    etag_timeout_s: float

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
            etag_timeout_s = float(env.get("HF_HUB_ETAG_TIMEOUT") or DEFAULT_ETAG_TIMEOUT_S)
        except ValueError as error:
            raise InputError("HF_HUB_ETAG_TIMEOUT is not a number", hint="give it in seconds: 10") from error
        return cls(
            endpoint=endpoint,
            offline=offline.upper() in {"1", "ON", "YES", "TRUE"},
            cache_dir=Path(cache_dir).expanduser() if cache_dir else None,
            etag_timeout_s=etag_timeout_s,
        )


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
    with environment_explained():
        from huggingface_hub import try_to_load_from_cache

    cache_dir = Settings.from_environment().cache_dir
    config, sidecar = (
        try_to_load_from_cache(repo_id, name, cache_dir=cache_dir, revision=revision) for name in (CONFIG, SIDECAR)
    )
    if not isinstance(config, str):
        return None
    return Snapshot(Path(config).parent, complete=sidecar is not None)


def fetch_snapshot(repo_id: str, revision: str | None = None, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> Snapshot:
    """Fetch config.json and, where there is one, hf_quant_config.json into the local hub cache, even if they are there.

    Raises HubError when the hub cannot be reached, refuses, takes longer than ``timeout_s``, answers with more than a
    model is described with, or has no such repository, revision or config.json; InputError for a malformed id.
    """
    check_repo_id(repo_id)
    check_revision(revision)
    settings = Settings.from_environment()
    if settings.offline:
        raise HubError(
            f"{repo_id} is not in the local hub cache, and HF_HUB_OFFLINE is set",
            hint="unset HF_HUB_OFFLINE, or give a folder with the model's config.json",
        )
    return Snapshot(Path(_ask("snapshot", repo_id, revision, settings, timeout_s)), complete=True)


def fetch_stored_bytes(
    repo_id: str, commit: str, *, network: bool = True, timeout_s: float = DEFAULT_TIMEOUT_S
) -> dict[str, int] | None:
    """Bytes of the tensors in the safetensors files of a commit, by dtype as in their headers (``BF16``, ``U8``).

    A commit never changes, so the answer is kept in the user's cache folder. None when it is not there and the hub
    is not asked (``network``, offline) or has no safetensors. Raises HubError like ``fetch_snapshot``.
    """
    memo = _memo_path(check_repo_id(repo_id), commit)
    known = _recall(memo)
    settings = Settings.from_environment()
    if known is not None or not network or settings.offline:
        return known
    total: dict[str, int] | None = _ask("stored_bytes", repo_id, commit, settings, timeout_s)
    if total is not None:
        _remember(memo, total)
    return total


def _ask(what: str, repo_id: str, revision: str | None, settings: Settings, timeout_s: float) -> Any:
    """The answer of a process that asks the hub. Raises HubError as it says, or when it takes too long."""
    cache_dir = str(settings.cache_dir) if settings.cache_dir else None
    ask = Ask(what, repo_id, revision, settings.endpoint, cache_dir, settings.etag_timeout_s, timeout_s)
    late = HubError(
        f"{ask.host} took longer than {timeout_s:.3g} s to answer",
        hint="give it more time with --timeout, or give a folder with the model's config.json",
    )
    if timeout_s <= 0:
        raise late
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **QUIET}
    env.pop("HF_HUB_ETAG_TIMEOUT", None)  # huggingface_hub takes whole seconds only, and is told in another way
    try:
        done = subprocess.run(
            [sys.executable, "-m", "planner.model.hub_download"],
            input=json.dumps(asdict(ask)),
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s + GRACE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise late from error
    if done.returncode != 0:
        raise RuntimeError(f"the process that asks the hub ended with status {done.returncode}: {done.stderr}")
    said = json.loads(done.stdout)
    if "late" in said:
        raise late
    if "cause" in said:
        raise HubError(said["cause"], hint=said["hint"])
    return said["answer"]


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
