"""The hub, against a server on loopback: what is fetched, what is kept, and how each refusal reads."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from itertools import repeat
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import HubError, InputError
from planner.model import hub


def test_config_and_sidecar_land_in_the_hub_cache(server: HubServer, tmp_path: Path) -> None:
    server.add("org/model", {"config.json": b'{"a": 1}', "hf_quant_config.json": b'{"b": 2}'})
    assert hub.cached_snapshot("org/model") is None
    snapshot = hub.fetch_snapshot("org/model")
    # the layout that huggingface_hub documents, so that other tools find the files again
    assert snapshot.folder == tmp_path / "hf/hub/models--org--model/snapshots" / COMMIT
    assert json.loads((snapshot.folder / "config.json").read_text()) == {"a": 1}
    assert json.loads((snapshot.folder / "hf_quant_config.json").read_text()) == {"b": 2}
    assert hub.cached_snapshot("org/model") == snapshot


def test_a_cached_snapshot_needs_no_network(server: HubServer) -> None:
    server.add("org/model", {"config.json": b"{}"})
    fetched = hub.fetch_snapshot("org/model")
    asked = len(server.requests)
    assert hub.cached_snapshot("org/model") == fetched
    assert fetched.complete  # that there is no sidecar is remembered too
    assert len(server.requests) == asked


def test_a_cache_filled_by_another_tool_may_lack_the_sidecar(server: HubServer, tmp_path: Path) -> None:
    repo = tmp_path / "hf/hub/models--org--model"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs/main").write_text(COMMIT)
    (repo / "snapshots" / COMMIT).mkdir(parents=True)
    (repo / "snapshots" / COMMIT / "config.json").write_text("{}")
    snapshot = hub.cached_snapshot("org/model")
    assert snapshot is not None
    assert not snapshot.complete


def test_gated_repository_says_where_to_accept_the_licence(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.gate("org/secret")
    with pytest.raises(HubError, match="org/secret is gated") as without:
        hub.fetch_snapshot("org/secret")
    assert f"accept the licence at {server.endpoint}/org/secret" in without.value.hint
    assert "HF_TOKEN" in without.value.hint
    monkeypatch.setenv("HF_TOKEN", "hf_quite_secret")
    with pytest.raises(HubError, match="org/secret is gated") as refused:
        hub.fetch_snapshot("org/secret")
    assert server.tokens == {None, "Bearer hf_quite_secret"}  # it was sent, and is not shown
    assert "quite_secret" not in refused.value.cause + refused.value.hint


def test_missing_things_are_told_apart(server: HubServer) -> None:
    server.add("org/model", {"config.json": b"{}"})
    server.add("org/quants", {"model-Q4_K_M.gguf": b"GGUF"})
    with pytest.raises(HubError, match="no repository org/nowhere"):
        hub.fetch_snapshot("org/nowhere")
    with pytest.raises(HubError, match="org/model has no revision 'v9'"):
        hub.fetch_snapshot("org/model", "v9")
    with pytest.raises(HubError, match=r"org/quants has no config\.json") as error:
        hub.fetch_snapshot("org/quants")
    assert "GGUF" in error.value.hint


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_failing_hub_is_asked_once(server: HubServer, status: int) -> None:
    server.status = status
    with pytest.raises(HubError, match=f"HTTP status {status}"):
        hub.fetch_snapshot("org/model")
    assert len(server.requests) == 1


def test_a_login_page_is_no_hub(server: HubServer) -> None:
    server.plain = True
    with pytest.raises(HubError, match="does not answer like a Hugging Face hub"):
        hub.fetch_snapshot("org/model")


def test_a_slow_hub_times_out(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 1)  # which the library reads as whole seconds
    server.delay_s = 2.0
    with pytest.raises(HubError, match="no answer in time"):
        hub.fetch_snapshot("org/model")


def test_a_silent_hub_has_a_deadline_for_the_whole(server: HubServer) -> None:
    server.delay_s = 5.0
    began_s = time.monotonic()
    with pytest.raises(HubError, match=r"took longer than 0\.3 s"):
        hub.fetch_snapshot("org/model", timeout_s=0.3)
    assert time.monotonic() - began_s < server.delay_s


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize("content", [b"<html>please log in</html>", b"[]", b"", b"[" * 100_000, b"\xff"])
def test_what_is_no_json_object_does_not_stay_in_the_cache(server: HubServer, name: str, content: bytes) -> None:
    files = {"config.json": b'{"a": 1}', "hf_quant_config.json": b"{}"}
    server.add("org/model", {**files, name: content})
    with pytest.raises(HubError, match=f"{name} is not a JSON object"):
        hub.fetch_snapshot("org/model")
    cached = hub.cached_snapshot("org/model")
    assert cached is None or not (cached.folder / name).exists()
    server.add("org/model", files)  # behind the login page
    snapshot = hub.fetch_snapshot("org/model")
    assert hub.cached_snapshot("org/model") == snapshot
    (snapshot.folder / name).write_bytes(content)  # by another tool
    cached = hub.cached_snapshot("org/model")
    assert cached is None if name == "config.json" else cached and not cached.complete


def test_the_library_keeps_its_own_progress_bar_and_warnings(server: HubServer) -> None:
    from huggingface_hub.utils import are_progress_bars_disabled

    level = logging.getLogger("huggingface_hub").level
    server.add("org/model", {"config.json": b"{}"})
    hub.fetch_snapshot("org/model")
    assert logging.getLogger("huggingface_hub").level == level
    assert not are_progress_bars_disabled("huggingface_hub.http_get")


def _only_get(handler: BaseHTTPRequestHandler, headers: str, body: Iterable[bytes]) -> None:
    """The hub's headers for a HEAD; for a GET those of ``headers``, and ``body`` for as long as it is read."""
    known = f'ETag: "{"0" * 40}"\r\nX-Repo-Commit: {COMMIT}\r\n'
    if handler.command == "HEAD":
        handler.wfile.write(f"HTTP/1.1 200 OK\r\n{known}Content-Length: 10\r\n\r\n".encode())
        return
    handler.wfile.write(f"HTTP/1.1 200 OK\r\n{known}{headers}\r\n".encode())
    for chunk in body:
        handler.wfile.write(chunk)
        handler.wfile.flush()


def _drip(text: bytes, every_s: float = 0.2) -> Iterator[bytes]:
    for at in range(len(text)):
        time.sleep(every_s)
        yield text[at : at + 1]


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 1000]


@pytest.mark.parametrize(
    ("headers", "body", "timeout_s", "cause"),
    [
        ("", repeat(b" " * 2**16), 60, "more than 3 MB, which describes no model"),
        ("Content-Length: 999999999999\r\n", repeat(b""), 60, "more than 3 MB"),  # as stated, before the first byte
        ("", (time.sleep(0.05) or b" " * 2**14 for _ in repeat(0)), 1, "took longer than 1 s"),
    ],
    ids=["endless", "stated", "given up"],
)
def test_a_download_ends_at_its_limit_and_leaves_no_file(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    headers: str, body: Iterable[bytes], timeout_s: float, cause: str,
) -> None:  # fmt: skip
    """Also where a process lives on after its answer, as a notebook does."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 2**16)  # 10 MB, otherwise
    monkeypatch.setattr(hub, "MOST_BYTES", 3_000_000)
    server.misbehave = lambda handler: _only_get(handler, headers, body)
    with pytest.raises(HubError, match=cause):
        hub.fetch_snapshot("org/model", timeout_s=timeout_s)
    for thread in threading.enumerate():
        if isinstance(thread, hub._Fetch) and thread.endpoint == server.endpoint:
            thread.join(60)
            assert not thread.is_alive()
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".incomplete"] == _files(tmp_path) == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answer_that_drips_has_a_deadline(server: HubServer, method: str) -> None:
    def drip(handler: BaseHTTPRequestHandler) -> None:
        if handler.command == method:
            for byte in _drip(b"HTTP/1.1 200 OK\r\nX-Padding: " + b"a" * 1000):
                handler.wfile.write(byte)
        else:
            _only_get(handler, "Content-Length: 1000\r\n", _drip(b"{" * 1000))

    server.misbehave = drip
    began_s = time.monotonic()
    with pytest.raises(HubError, match="took longer than 1 s to answer") as error:
        hub.fetch_snapshot("org/model", timeout_s=1)
    assert time.monotonic() - began_s < 100  # the answer takes 200 s
    assert "--timeout" in error.value.hint


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_credential_follows_a_redirect_to_another_host(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, method: str, status: int
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_quite_secret")
    with HubServer() as other:
        other.add("org/model", {"config.json": b"{}"})

        def elsewhere(handler: BaseHTTPRequestHandler) -> None:
            if handler.command == method:
                handler.send_response(status)
                handler.send_header("Location", other.endpoint + handler.path)
                handler.send_header("Set-Cookie", "session=quite_secret")
                handler.send_header("X-Repo-Commit", COMMIT)
                handler.send_header("ETag", f'"{"0" * 40}"')
                handler.end_headers()
            else:
                _only_get(handler, "Content-Length: 2\r\n", [b"{}"])

        server.misbehave = elsewhere
        with suppress(HubError):
            hub.fetch_snapshot("org/model")
        assert other.requests
        assert other.tokens == {None}
    assert server.tokens == {"Bearer hf_quite_secret"}


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/config.json", "javascript:alert(1)"])
def test_a_redirect_leads_to_no_file(server: HubServer, tmp_path: Path, location: str) -> None:
    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        for name, value in {"Location": location, "X-Repo-Commit": COMMIT, "ETag": '"0"'}.items():
            handler.send_header(name, value)
        handler.end_headers()

    server.misbehave = elsewhere
    with pytest.raises(HubError):
        hub.fetch_snapshot("org/model")
    assert _files(tmp_path) == []


def test_a_variable_that_the_library_cannot_read_is_named(server: HubServer) -> None:
    # huggingface_hub reads its variables when it is imported: in a process of its own here
    code = "from planner.model import resolve_model; resolve_model('org/model')"
    env = {**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "soon"}
    done = subprocess.run([sys.executable, "-c", code], env=env, check=False, capture_output=True, text=True)
    assert re.search(r"InputError: huggingface_hub cannot read its variables: .*'soon'", done.stderr)


def test_nobody_listens_and_the_password_stays_hidden(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://me:hunter2@127.0.0.1:9")
    with pytest.raises(HubError, match=r"127\.0\.0\.1:9: could not be reached") as error:
        hub.fetch_snapshot("org/model")
    printed = capfd.readouterr()
    assert "hunter2" not in error.value.cause + error.value.hint + printed.out + printed.err


def test_a_cache_that_cannot_be_written_is_not_the_networks_fault(server: HubServer, tmp_path: Path) -> None:
    server.add("org/model", {"config.json": b"{}"})
    (tmp_path / "hf").write_text("a file where the folder should be")
    with pytest.raises(HubError, match="local hub cache cannot be used") as error:
        hub.fetch_snapshot("org/model")
    assert "HF_HOME" in error.value.hint


def test_a_full_disk_is_told_as_a_full_disk(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's error names no file where a write fails."""

    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.add("org/model", {"config.json": b"{}"})
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fill)
    with pytest.raises(HubError, match="local hub cache cannot be used: No space left on device") as error:
        hub.fetch_snapshot("org/model")
    assert "free some space" in error.value.hint


def test_offline_asks_nobody(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("org/model", {"config.json": b"{}"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        hub.fetch_snapshot("org/model")
    assert server.requests == []


@pytest.mark.parametrize("endpoint", ["file:///etc", "huggingface.co", "javascript:alert(1)"])
def test_an_endpoint_must_be_a_web_address(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(InputError, match="HF_ENDPOINT is not a web address"):
        hub.fetch_snapshot("org/model")


@pytest.mark.parametrize(
    "name",
    [
        "a/b; rm -rf ~", "$(id)", "../../etc", "a/../b", "a/b\n", "a/b/c", "a", "", "/a/b", "a/", "-a/b", "a/b.git",
        "a/.b", "a/b-", "a-/b", "a/b--c", "é/b", "a/`id`", "a/b%2e%2e", "a" * 97 + "/b", "a/b\0",
    ],
)  # fmt: skip
def test_a_malformed_id_reaches_neither_network_nor_disk(server: HubServer, tmp_path: Path, name: str) -> None:
    for ask in (hub.cached_snapshot, hub.fetch_snapshot):
        with pytest.raises(InputError, match="neither a path nor a hub id"):
            ask(name)
    assert server.requests == []
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "Qwen/Qwen2.5-0.5B", "nvidia/Llama-3_3-Nemotron-Super-49B-v1"])
def test_ids_of_the_hub_are_accepted(name: str) -> None:
    assert hub.check_repo_id(name) == name


@given(st.text(max_size=60))
def test_no_accepted_id_can_leave_its_folder_or_reach_a_shell(name: str) -> None:
    if hub.is_repo_id(name):
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./")
        assert name.count("/") == 1
        assert ".." not in name


_PARTS = st.text("aZ7_-.", min_size=1, max_size=8) | st.integers(94, 98).map("x".__mul__)


@given(_PARTS, _PARTS)
def test_an_id_is_accepted_where_huggingface_hub_accepts_it(organisation: str, name: str) -> None:
    said = f"{organisation}/{name}"
    try:
        validate_repo_id(said)
    except HFValidationError:
        assert not hub.is_repo_id(said)
    else:
        assert hub.is_repo_id(said)


@pytest.mark.parametrize("revision", ["../main", "a b", "", "-x", "main;id", "x\ny"])
def test_a_malformed_revision_names_its_flag(revision: str) -> None:
    with pytest.raises(InputError, match="--revision"):
        hub.check_revision(revision)


def test_importing_costs_no_hub_library() -> None:
    """Start-up time is a feature: neither importing nor a catalog name loads huggingface_hub."""
    code = (
        "import sys; from planner.model.resolve import resolve_model; "
        "resolve_model('meta-llama/Llama-3.1-8B-Instruct');"
        "sys.exit('huggingface_hub' in sys.modules or 'httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
