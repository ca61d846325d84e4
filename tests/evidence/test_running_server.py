"""``planner check --url``: a server on loopback that answers as vLLM does, and servers that do not."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isfinite
from typing import Any

import pytest
from command_line import error_of, run
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.evidence import running_server
from planner.evidence.running_server import look_at_server

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
#: What vLLM 0.11.0 prints, with the names and the labels of its v1/metrics/loggers.py. ``%d``: what grows.
METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} 15.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.04
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} {prompt}
vllm:generation_tokens_total{{engine="0",model_name="{model}"}} {generation}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="{model}"}} {ended}
vllm:request_success_total{{engine="0",finished_reason="abort",model_name="{model}"}} 0.0
vllm:request_prompt_tokens_bucket{{engine="0",le="1000.0",model_name="{model}"}} 0.0
vllm:request_prompt_tokens_count{{engine="0",model_name="{model}"}} {ended}
vllm:request_prompt_tokens_sum{{engine="0",model_name="{model}"}} {prompt}
vllm:request_generation_tokens_count{{engine="0",model_name="{model}"}} {ended}
vllm:request_generation_tokens_sum{{engine="0",model_name="{model}"}} {generation}
vllm:time_to_first_token_seconds_count{{engine="0",model_name="{model}"}} {ended}
vllm:time_to_first_token_seconds_sum{{engine="0",model_name="{model}"}} {ttft}
vllm:time_per_output_token_seconds_count{{engine="0",model_name="{model}"}} {gaps}
vllm:time_per_output_token_seconds_sum{{engine="0",model_name="{model}"}} {gap_s}
vllm:e2e_request_latency_seconds_count{{engine="0",model_name="{model}"}} {ended}
vllm:e2e_request_latency_seconds_sum{{engine="0",model_name="{model}"}} {e2e}
vllm:cache_config_info{{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
gpu_memory_utilization="0.9",num_gpu_blocks="{blocks}"}} 1.0
"""


class VllmLike:
    """Answers of a server with requests of 1,000 + 200 tokens that take 120 ms, then 9 ms a token."""

    def __init__(self, blocks: int = 27_000, root: str = LLAMA, ended_meanwhile: int = 10) -> None:
        self.blocks, self.root, self.step = blocks, root, ended_meanwhile
        self.ended = 50  # before anybody looked, of half the length

    def __call__(self, path: str) -> tuple[int, bytes]:
        if path == "/version":
            return 200, b'{"version": "0.11.0"}'
        if path == "/v1/models":
            served = {"id": "chat", "object": "model", "root": self.root, "parent": None, "max_model_len": 8192}
            adapter = {"id": "lora", "root": "/adapters/a", "parent": "chat"}
            return 200, json.dumps({"object": "list", "data": [adapter, served]}).encode()
        if path == "/metrics":
            new = self.ended - 50
            text = METRICS.format(
                model="chat", prompt=50 * 500 + new * 1000, generation=50 * 100 + new * 200, ended=self.ended,
                ttft=50 * 9.0 + new * 0.12, gaps=50 * 99 + new * 199, gap_s=50 * 99 * 0.5 + new * 199 * 0.009,
                e2e=50 * 60.0 + new * (0.12 + 199 * 0.009), blocks=self.blocks,
            )  # fmt: skip
            self.ended += self.step
            return 200, text.encode()
        return 404, b"not found"


@contextmanager
def serving(answer: Callable[[str], tuple[int, bytes]], *, headers: dict[str, str] | None = None) -> Iterator[str]:
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(dict(self.headers))
            status, body = answer(self.path)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = asked  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_load_is_that_of_the_window() -> None:
    with serving(VllmLike()) as url:
        seen = look_at_server(url + "/v1", window_s=0.2)
    assert (seen.url, seen.version, seen.model, seen.max_model_len) == (url, "0.11.0", LLAMA, 8192)
    assert (seen.in_flight, seen.input_len, seen.output_len, seen.ended_in_window) == (16, 1000, 200, 10)
    assert seen.kv_cache_tokens == 27_000 * 16
    assert seen.measured["mean_ttft_ms"] == pytest.approx(120)
    assert seen.measured["mean_tpot_ms"] == pytest.approx(9)
    assert seen.measured["mean_e2el_ms"] == pytest.approx(1911)
    assert seen.measured["output_throughput"] == pytest.approx(2000 / seen.window_s)


def test_without_an_end_in_the_window_means_are_since_the_start() -> None:
    with serving(VllmLike(ended_meanwhile=0)) as url:
        seen = look_at_server(url, window_s=0)
    assert (seen.input_len, seen.output_len, seen.ended_in_window) == (500, 100, 0)
    assert seen.measured["mean_ttft_ms"] == pytest.approx(9000)


@pytest.mark.parametrize(("gpu", "blocks", "size"), [("h100", 27_000, 1), ("h100", 59_000, 2), ("mi300x", 77_000, 1)])
def test_check_says_what_it_would_predict_for_the_load_that_it_sees(gpu: str, blocks: int, size: int) -> None:
    """8B in bf16 leaves 27,000 blocks of 2 MiB on an H100; over two GPUs a block takes 1 MiB on each."""
    with serving(VllmLike(blocks=blocks)) as url:
        outcome = run("check", "--url", url, "--url-seconds", "0.1", "--gpu", gpu, "--format", "json")
    answer = json.loads(outcome.out)
    assert outcome.status == 0 and answer["starts"] and answer["engine_version"] == "0.11.0"
    assert answer["settings"]["tensor_parallel_size"] == size
    assert answer["settings"]["gpu_memory_utilization"] == 0.9
    assert (answer["load"]["input_len"], answer["load"]["output_len"]) == (1000, 200)
    assert answer["load"]["max_concurrency"] == 16
    assert answer["server"]["measured"]["mean_tpot_ms"] == pytest.approx(9)
    assert 0.5 < answer["delivers"]["mean_tpot_ms"] / 9 < 2
    assert f"tensor parallel size: {size} is taken" in " ".join((outcome.err + outcome.out).split())


def test_the_table_has_measured_beside_predicted_and_a_line_says_more() -> None:
    with serving(VllmLike(root="/models/llama")) as url:
        refused = run("check", "--url", url, "--url-seconds", "0", "--gpu", "h100")
        words = ("--", "vllm", "serve", LLAMA, "-tp", "2", "--max-model-len", "8192")
        outcome = run("check", "--url", url, "--url-seconds", "0", "--gpu", "h100", *words)
    assert refused.status == 2
    assert outcome.status == 0 and "2 x h100-sxm" in outcome.out
    assert "\nmeasured " in outcome.out and "\npredicted " in outcome.out


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_hostile_metrics_are_read_or_left_out(data: st.DataObject) -> None:
    """Whatever a line says, what is read are finite figures."""
    odd = st.sampled_from(["NaN", "+Inf", "-1e400", "1e308", "", "x", "²", "12 34", '{"', '"}', "\x00"])
    lines = VllmLike()("/metrics")[1].decode().splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        words = lines[at].split(" ")
        words[data.draw(st.integers(0, len(words) - 1))] = data.draw(odd)
        lines[at] = " ".join(words).replace('"27000"', f'"{data.draw(odd)}"')
    samples = running_server._samples("\n".join(lines))
    assert all(isfinite(value) for value in samples.values.values())
    served = {"id": "m", "max_model_len": 4096}
    seen = running_server._seen("http://x", "0.11.0", served, running_server.Samples(), samples, 1.0)
    assert seen.in_flight >= 1 and (seen.kv_cache_tokens is None or seen.kv_cache_tokens >= 0)
    assert all(isfinite(value) for value in seen.measured.values())


def test_a_key_is_sent_and_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret-of-the-server")
    with serving(lambda _: (401, b"no")) as url, pytest.raises(InputError) as refused:
        look_at_server(url)
    assert "401" in refused.value.cause and "VLLM_API_KEY" in refused.value.hint
    assert "secret" not in refused.value.cause + refused.value.hint


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///etc/passwd", "file://"),
        ("ftp://127.0.0.1/x", "ftp://127.0.0.1 is not the address"),
        ("http://", "is not the address"),
        ("http://user:password@127.0.0.1", "http://127.0.0.1 is not the address"),
        ("http://127.0.0.1:port", "Port"),
        ("http://[::1", "Invalid"),
        ("http://a b:80", "http://a b is not the address"),
        ("\ntouch x\n", "is not the address"),
        ("http://127.0.0.1:1", "onnection refused"),
    ],
)
def test_other_addresses_are_refused(url: str, words: str) -> None:
    cause, hint = error_of(run("check", "--url", url, "--gpu", "h100"))
    assert words in cause and "password" not in cause + hint


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: (200, b"<html>"), "is not JSON"),
        (lambda _: (200, b"{}"), "does not answer as vLLM does"),
        (lambda _: (200, b"[1]"), "does not answer as vLLM does"),
        (lambda path: (200, b'{"version": "1"}') if path == "/version" else (200, b'{"data": [7]}'), "as vLLM does"),
        (lambda _: (404, b""), "answers 404"),
        (lambda _: (302, b""), "answers 302"),
        (lambda _: (200, b"x" * (running_server.MOST_ANSWER_BYTES + 1)), "has more than"),
        (lambda path: VllmLike()(path) if path != "/metrics" else (200, b"up 1\n"), "no metric of vLLM"),
    ],
)
def test_other_servers_are_refused(answer: Callable[[str], tuple[int, bytes]], words: str) -> None:
    where = {"Location": "http://127.0.0.1:1/elsewhere"}
    with serving(answer, headers=where) as url, pytest.raises(InputError) as refused:
        look_at_server(url, window_s=0)
    assert words in refused.value.cause and refused.value.hint


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b""]
)
def test_what_does_not_speak_http_is_refused(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            taken, _ = listening.accept()
            with taken:
                taken.recv(2**16)
                taken.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        cause, hint = error_of(run("check", "--url", url, "--gpu", "h100"))
    assert cause.startswith(f"{url}/version") and "serve" in hint


def test_a_server_that_sends_a_byte_now_and_then_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_server, "ANSWER_S", 0.5)

    def slowly(_: str) -> tuple[int, bytes]:
        time.sleep(3)
        return 200, b"{}"

    began_s = time.monotonic()
    with serving(slowly) as url, pytest.raises(InputError, match=r"within 0.5 s|timed out"):
        look_at_server(url)
    assert time.monotonic() - began_s < 3.5
