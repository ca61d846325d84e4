"""The hub, against a server on loopback: what is fetched, what is kept, and how each refusal reads."""

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import COMMIT, HubServer, hub_environment, safetensors
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import HubError, InputError
from planner.model import hub
from planner.model.hub_download import Ask, Guard


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer() as running:
        hub_environment(monkeypatch, running.endpoint, tmp_path)
        yield running


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


def test_stored_bytes_of_one_file(server: HubServer) -> None:
    # 3 x 4 values of 2 bytes, and 10 of 1 byte
    tensors = {"w": ("BF16", [3, 4], 24), "packed": ("U8", [10], 10)}
    server.add("org/model", {"config.json": b"{}", "model.safetensors": safetensors(tensors)})
    assert hub.fetch_stored_bytes("org/model", COMMIT) == {"BF16": 24, "U8": 10}


def test_stored_bytes_of_shards_are_summed_and_kept(server: HubServer, tmp_path: Path) -> None:
    index = {"metadata": {}, "weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"}}
    server.add(
        "org/model",
        {
            "config.json": b"{}",
            "model.safetensors.index.json": json.dumps(index).encode(),
            "1.safetensors": safetensors({"a": ("BF16", [5], 10)}),
            "2.safetensors": safetensors({"b": ("BF16", [6], 12), "c": ("F8_E4M3", [7], 7)}),
        },
    )
    assert hub.fetch_stored_bytes("org/model", COMMIT) == {"BF16": 10 + 12, "F8_E4M3": 7}
    asked = len(server.requests)
    assert hub.fetch_stored_bytes("org/model", COMMIT, network=False) == {"BF16": 22, "F8_E4M3": 7}
    assert len(server.requests) == asked
    (kept,) = (tmp_path / "cache").rglob("*.json")
    for damaged in ('{"BF16": "many"}', "[1]", "{"):
        kept.write_text(damaged)
        assert hub.fetch_stored_bytes("org/model", COMMIT, network=False) is None


def test_only_headers_are_read(server: HubServer) -> None:
    # 5 MB of weights; huggingface_hub asks for the first 100 kB, which hold the header
    server.add("org/model", {"config.json": b"{}", "model.safetensors": safetensors({"w": ("U8", [5000000], 5000000)})})
    sent = server.sent_bytes
    assert hub.fetch_stored_bytes("org/model", COMMIT) == {"U8": 5000000}
    assert server.sent_bytes - sent < 200_000


@pytest.mark.parametrize(
    "content", [b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]", b"", b"\x0c\0\0\0\0\0\0\0" + b'{"a": "bcd"}']
)
def test_damaged_safetensors_are_a_hub_error(server: HubServer, content: bytes) -> None:
    server.add("org/model", {"config.json": b"{}", "model.safetensors": content})
    with pytest.raises(HubError, match="safetensors headers or index cannot be read"):
        hub.fetch_stored_bytes("org/model", COMMIT)


@pytest.mark.parametrize("index", [b"[]", b"{", b'{"weight_map": 3}'])
def test_damaged_index_is_a_hub_error(server: HubServer, index: bytes) -> None:
    server.add("org/model", {"config.json": b"{}", "model.safetensors.index.json": index})
    with pytest.raises(HubError, match="safetensors headers or index cannot be read"):
        hub.fetch_stored_bytes("org/model", COMMIT)


def test_no_safetensors_is_no_answer(server: HubServer) -> None:
    server.add("org/model", {"config.json": b"{}", "pytorch_model.bin": b"x"})
    assert hub.fetch_stored_bytes("org/model", COMMIT) is None


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
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
    server.delay_s = 2.0
    with pytest.raises(HubError, match="no answer in time"):
        hub.fetch_snapshot("org/model")


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
    ("headers", "body"),
    [
        ("", repeat(b" " * 2**16)),  # until the disk is full
        ("Content-Length: 999999999999\r\n", [b"{}"]),
        ("Content-Encoding: gzip\r\n", [gzip.compress(bytes(200_000_000))]),
    ],
)
def test_an_endless_answer_is_cut_short(server: HubServer, tmp_path: Path, headers: str, body: Iterable[bytes]) -> None:
    server.misbehave = lambda handler: _only_get(handler, headers, body)
    with pytest.raises(HubError, match=r"more than 64 MB|compressed answers"):
        hub.fetch_snapshot("org/model")
    assert _files(tmp_path) == []


def test_an_endless_header_of_weights_is_cut_short(server: HubServer, tmp_path: Path) -> None:
    # a length of 2**62, as the safetensors format has it: little-endian, before the header
    start = (2**62).to_bytes(8, "little")
    server.misbehave = lambda handler: _only_get(handler, "", chain([start], repeat(b" " * 2**16)))
    with pytest.raises(HubError, match="more than 100 MB"):
        hub.fetch_stored_bytes("org/model", COMMIT)
    assert _files(tmp_path) == []


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answer_that_drips_has_a_deadline(server: HubServer, tmp_path: Path, method: str) -> None:
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
    assert time.monotonic() - began_s < 1 + hub.GRACE_S + 1
    assert "--timeout" in error.value.hint
    assert [path for path in tmp_path.rglob("*") if "incomplete" in path.name] == []


def test_a_time_that_is_over_before_anything_is_asked_is_an_answer_too(tmp_path: Path) -> None:
    # a machine so busy that the alarm rings while the limits are being set
    slow = "import resource, time; resource.setrlimit = lambda *_: time.sleep(0.5)\n"
    code = f"{slow}from planner.model import hub_download; hub_download.main()"
    ask = Ask("snapshot", "org/model", None, "http://127.0.0.1:9", str(tmp_path), 1.0, 0.05)
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(asdict(ask)), capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout), done.stderr) == (0, {"late": True}, "")


def test_an_alarm_between_writing_a_reference_and_naming_it_leaves_no_file_behind(
    server: HubServer, tmp_path: Path
) -> None:
    server.add("org/model", {"config.json": b"{}"})
    code = """
import os, signal
from planner.model import hub_download
rename = os.replace
def late(source, target):
    if "refs" in str(target):
        signal.raise_signal(signal.SIGALRM)
    rename(source, target)
os.replace = late
hub_download.main()
"""
    ask = Ask("snapshot", "org/model", None, server.endpoint, str(tmp_path / "hub"), 10.0, 60.0)
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(asdict(ask)), capture_output=True, text=True)
    assert "answer" in json.loads(done.stdout)
    assert [path.name for path in (tmp_path / "hub/models--org--model/refs").iterdir()] == ["main"]


def test_headers_of_weights_that_drip_cost_the_answer_nothing_but_time(server: HubServer) -> None:
    shards = {str(n): f"{n}.safetensors" for n in range(20)}
    index = json.dumps({"metadata": {}, "weight_map": shards}).encode()
    server.add("org/model", {"model.safetensors.index.json": index, **dict.fromkeys(shards.values(), b"")})
    whole = server.repos["org/model"]

    class Dripping(dict[str, bytes]):
        def __getitem__(self, name: str) -> bytes:
            if name.endswith(".safetensors"):
                time.sleep(5)
            return super().__getitem__(name)

    server.repos["org/model"] = Dripping(whole)
    began_s = time.monotonic()
    with pytest.raises(HubError, match="took longer than 1 s"):
        hub.fetch_stored_bytes("org/model", COMMIT, timeout_s=1)
    assert time.monotonic() - began_s < 1 + hub.GRACE_S + 1


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


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://huggingface.co/a", True),
        ("https://huggingface.co:443/a", True),
        ("https://cdn-lfs.huggingface.co/a", False),
        ("https://huggingface.co:8443/a", False),
        ("https://huggingface.co.evil.org/a", False),
        ("https://evil.org@huggingface.co/a", True),
        ("https://huggingface.co@evil.org/a", False),
    ],
)
def test_credentials_go_to_the_endpoint_alone(url: str, sent: bool) -> None:
    ask = Ask("snapshot", "org/model", None, "https://huggingface.co", None, 1.0, 1.0)
    request = SimpleNamespace(url=url, headers={"Authorization": "Bearer x", "Cookie": "y"})
    Guard(ask).request(request)
    assert ("Authorization" in request.headers, "Cookie" in request.headers) == (sent, sent)


def test_https_is_not_left_for_http() -> None:
    ask = Ask("snapshot", "org/model", None, "https://huggingface.co", None, 1.0, 1.0)
    with pytest.raises(HubError, match="without https"):
        Guard(ask).request(SimpleNamespace(url="http://huggingface.co/a", headers={}))


def test_a_variable_that_the_library_cannot_read_is_named(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("org/model", {"config.json": b"{}"})
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
    with pytest.raises(HubError, match=r"cannot read its variables: .*'soon'"):
        hub.fetch_snapshot("org/model")


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


def test_offline_asks_nobody(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("org/model", {"config.json": b"{}"})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        hub.fetch_snapshot("org/model")
    assert hub.fetch_stored_bytes("org/model", COMMIT) is None
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
