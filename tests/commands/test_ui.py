"""``planner ui`` without a browser: who may ask, what the page answers, and that the API is the library."""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
import uvicorn
from command_line import error_of, run, start

from planner.commands.web.api import ANSWERED, openapi, operations
from planner.commands.web.app import HEADERS, make_app
from planner.commands.web.play import address, read_asked
from planner.errors import InputError

MODEL, GPU = "meta-llama/Llama-3.1-8B-Instruct", "h100-sxm"
PLAN = {"model": MODEL, "gpu": GPU, "gpus": 1, "flight": 8, "input_len": 256, "output_len": 64}
TOKEN = "a-token-of-this-test"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Server:
    """The application behind a real uvicorn on a free port."""

    def __init__(self, token: str = "") -> None:
        import socket

        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        config = uvicorn.Config(make_app(token=token), log_level="error", lifespan="off")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def get(self, path: str, query: object = None, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        full = f"{path}?{urlencode(query, doseq=True)}" if query else path  # type: ignore[arg-type]
        connection.request(method, full, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    found = Server(TOKEN)
    yield found
    found.stop()


# --- who may ask ---------------------------------------------------------------------------------------------------


def test_every_answer_forbids_what_the_page_does_not_need(server: Server) -> None:
    for path in ("/style.css", "/nowhere", "/api/openapi.json", "/live"):
        headers = server.get(path).headers
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "server" not in headers or headers["server"] == "uvicorn"
    policy = HEADERS["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_changes_anything(server: Server, method: str) -> None:
    assert server.get("/answer", PLAN, method=method).status == 405


def test_a_name_that_somebody_pointed_here_is_refused(server: Server) -> None:
    """DNS rebinding: the browser sends the attacker's name."""
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "localhost.evil.example",
        f"127.0.0.1.evil.example:{server.port}",
        "",
    ):
        assert server.get("/style.css", Host=host).status in (400, 421), host
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", f"[::1]:{server.port}", "localhost:9000"):
        assert server.get("/style.css", Host=host).status == 200, host  # the last through a tunnel


def test_other_sites_get_nothing(server: Server) -> None:
    for site in ("cross-site", "same-site"):
        assert server.get("/api/fit", PLAN, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors").status == 403
    assert server.get("/style.css", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors").status == 200
    assert server.get("/style.css", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200  # a link


def test_bound_elsewhere_it_asks_for_a_token(guarded: Server) -> None:
    assert guarded.get("/style.css").status == guarded.get("/style.css", {"token": "another"}).status == 401
    assert guarded.get("/style.css", Authorization=f"Bearer {TOKEN}").status == 200
    first = guarded.get("/style.css", {"token": TOKEN, "x": "1"})
    assert first.status == 303 and first.headers["location"] == "/style.css?x=1"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert guarded.get("/style.css", Cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize(("host", "token"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_the_command_prints_the_address_and_ctrl_c_ends_it(host: str, token: bool) -> None:
    process = start("ui", "--port", "0", "--host", host)
    assert process.stderr is not None
    printed = process.stderr.readline().decode().strip()
    assert printed.startswith(f"http://{host}:") and ("?token=" in printed) == token
    process.send_signal(2)
    assert process.wait(20) == 130


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as where the extra is not installed
    cause, hint = error_of(run("ui"))
    assert "uvicorn" in cause and "pip install 'llm-serving-planner[ui]'" in hint


def test_an_address_in_use_is_an_error(server: Server) -> None:
    cause, _ = error_of(run("ui", "--port", str(server.port)))
    assert "in use" in cause


# --- the page ------------------------------------------------------------------------------------------------------


def key_of(text: str) -> str:
    return text.partition('data-key="')[2].partition('"')[0]


def test_the_page_shows_what_the_command_recommends(server: Server) -> None:
    page = server.get("/", PLAN).text
    words = ("--gpus", "1", "--max-concurrency", "8", "--input-len", "256", "--output-len", "64")
    plan = json.loads(run("recommend", MODEL, "--gpu", GPU, *words, "--format", "json").out)["plans"][0]
    assert f"Serve {plan['model']} on {plan['num_gpus']} x {GPU}" in page
    for heading in (
        "Latency against load",
        "Memory of each GPU",
        "Throughput of a GPU",
        "Confidence",
        "Rejected settings",
    ):
        assert heading in page
    assert page.count("<svg") == 6  # three charts, wide and narrow
    assert 'name="flight" type="number" min="1" max="4096" step="1" value="8"' in page
    assert "<script" in page and 'src="/ui.js"' in page
    elsewhere = set(re.findall(r"(?:src|href|action)=\"(?!/|#|data:,)([^\"]+)", page))
    assert not elsewhere


def test_a_slider_is_answered_in_time_and_as_predict_says(server: Server) -> None:
    """One replay of the plan that stands there: at most 300 ms of CPU, which server and client share here. What a
    browser waits for is measured in tests/browser."""
    key = key_of(server.get("/answer", PLAN).text)
    taken = []
    for flight in (9, 12, 16, 24, 31):
        began = time.process_time()
        answer = server.get("/live", {**PLAN, "flight": flight, "of": key})
        taken.append(time.process_time() - began)
        assert answer.status == 200 and f"at {flight} in flight" in answer.text
    assert sorted(taken)[2] < 0.3
    plan = json.loads(server.get("/api/recommend", {"model": MODEL, "gpu": GPU, "gpus": 1, "max_concurrency": 8,
                                                    "input_len": 256, "output_len": 64}).text)["plans"][0]  # fmt: skip
    same = ("model", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "kv_cache_dtype")
    load = {"gpu": GPU, "max_concurrency": 31, "num_prompts": 93, "input_len": 256, "output_len": 64}
    asked = load | {name: plan[name] for name in same}
    predicted = json.loads(server.get("/api/predict/serve", asked).text)
    shown = float(answer.text.partition("<dt>TPOT</dt><dd><b>")[2].partition("<")[0])
    assert shown == pytest.approx(predicted["mean_tpot_ms"], rel=0.05)


def test_another_question_needs_a_search(server: Server) -> None:
    key = key_of(server.get("/answer", PLAN).text)
    assert server.get("/live", {**PLAN, "of": "0000"}).status == 404
    assert server.get("/live", {**PLAN, "gpu": "mi300x", "of": key}).status == 404
    assert server.get("/live", {**PLAN, "flight": "many", "of": key}).status == 404


def test_targets_are_met_or_missed_in_words(server: Server) -> None:
    key = key_of(server.get("/answer", PLAN).text)
    met = server.get("/live", {**PLAN, "ttft": 60000, "of": key}).text
    missed = server.get("/live", {**PLAN, "tpot": 1, "of": key}).text
    assert "✓ met" in met and "✗ missed" in missed
    assert ">target</text>" in missed and ">target</text>" not in server.get("/live", {**PLAN, "of": key}).text


def test_more_confidence_never_costs_less(server: Server) -> None:
    asked = {**PLAN, "by": "rate", "rate": 40, "ttft": 300, "tpot": 12}
    assert "/ladder?" in server.get("/answer", asked).text
    rows = re.findall(r"<tr>(.*?)</tr>", server.get("/ladder", asked).text)[1:]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert [row[0] for row in cells] == ["50%", "80%", "95%"]
    gpus = [int(row[4].replace(",", "")) for row in cells if row[4] != "-"]
    assert gpus == sorted(gpus)
    words = ("--gpus", "1", "--request-rate", "40", "--ttft", "300", "--tpot", "12", "--confidence", "0.95")
    lengths = ("--input-len", "256", "--output-len", "64", "--format", "json")
    plans = json.loads(run("recommend", MODEL, "--gpu", GPU, *words, *lengths).out)["plans"]
    assert cells[2][4] == ("-" if not plans else str(plans[0]["service"]["total_gpus"]))


def test_a_target_is_met_with_a_probability(server: Server) -> None:
    """It falls as the target does, and what is asked for decides the word."""
    key = key_of(server.get("/answer", PLAN).text)
    chances = []
    for tpot in (200, 14, 9, 6, 4, 1):
        text = server.get("/live", {**PLAN, "tpot": tpot, "of": key}).text
        found = re.search(r'<li class="(\w+)">.*met with (\d+)% probability \(target 80%', text)
        assert found
        chances.append(int(found[2]))
        assert found[1] == ("met" if chances[-1] >= 80 else "open" if chances[-1] >= 50 else "missed")
    assert chances == sorted(chances, reverse=True) and chances[0] > 99 and chances[-1] < 1


def test_every_state_is_an_address() -> None:
    query = {
        "model": [MODEL],
        "gpu": [GPU, "mi300x"],
        "by": ["rate"],
        "rate": ["2.5"],
        "ttft": ["800"],
        "percentile": ["90"],
    }
    asked = read_asked(query)
    from urllib.parse import parse_qs

    assert read_asked(parse_qs(address(asked))) == asked
    assert (asked.gpu, asked.rate, asked.targets) == ((GPU, "mi300x"), 2.5, {"ttft": 800.0})


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"flight": ["0"]}, "flight must be greater than"),
        ({"flight": ["9" * 400]}, "flight must be less than"),
        ({"rate": ["nan"]}, "rate must be"),
        ({"input_len": ["1e3"]}, "must be a valid integer"),
        ({"goal": ["fast"]}, "unknown goal"),
        ({"gpu": ["nothing"]}, "unknown GPU"),
        ({"gpu": ["all"]}, "GPUs are chosen"),
        ({"gpu": ["/etc/passwd.toml"]}, "no GPU is named"),
        ({"model": [""]}, "no model is named"),
    ],
)
def test_bad_addresses_are_told_on_the_page(server: Server, query: dict[str, list[str]], words: str) -> None:
    with pytest.raises(InputError) as refused:
        read_asked(query)
    assert words in refused.value.cause and refused.value.hint
    answer = server.get("/", query)
    assert answer.status == 200 and refused.value.cause.replace("'", "&#39;") in answer.text


def test_names_cannot_break_out_of_the_page(server: Server) -> None:
    hostile = 'x"><script>alert(1)</script>'
    page = server.get("/", {"model": hostile}).text
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_the_zip_holds_what_the_command_writes(server: Server, tmp_path: Path) -> None:
    answer = server.get("/scripts.zip", PLAN)
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(BytesIO(answer.body)) as archive:
        files = {name.removeprefix("plan/"): archive.read(name).decode() for name in archive.namelist()}
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    words = ("--gpus", "1", "--max-concurrency", "8", "--input-len", "256", "--output-len", "64")
    assert run("recommend", MODEL, "--gpu", GPU, *words, "-o", str(tmp_path / "plan")).status == 0
    written = {path.name: path.read_text() for path in (tmp_path / "plan").iterdir()}
    assert files.keys() == written.keys()
    launch = [line for line in written["launch.sh"].splitlines() if not line.startswith("#")]
    assert [line for line in files["launch.sh"].splitlines() if not line.startswith("#")] == launch
    assert modes["plan/launch.sh"] == 0o755 and modes["plan/plan.json"] == 0o644
    assert server.get("/scripts.zip", PLAN).body == answer.body


# --- the API -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "query", "words"),
    [
        ("fit", {"model": MODEL, "gpu": GPU, "max_model_len": 4096},
         ("fit", MODEL, "--gpu", GPU, "--max-model-len", "4096")),
        ("predict/latency", {"model": MODEL, "gpu": GPU, "batch_size": 4},
         ("predict", "latency", MODEL, "--gpu", GPU, "--batch-size", "4")),
        ("predict/serve", {"model": MODEL, "gpu": GPU, "max_concurrency": 4, "num_prompts": 16, "dtype": "auto"},
         ("predict", "serve", MODEL, "--gpu", GPU, "--max-concurrency", "4", "--num-prompts", "16", "--dtype", "auto")),
        ("recommend", {"model": MODEL, "gpu": [GPU, "mi300x"], "goal": "min-latency"},
         ("recommend", MODEL, "--gpu", GPU, "--gpu", "mi300x", "--goal", "min-latency")),
        ("check", {"line": f"vllm serve {MODEL} -tp 2", "gpu": GPU},
         ("check", f"vllm serve {MODEL} -tp 2", "--gpu", GPU)),
    ],
)  # fmt: skip
def test_the_api_answers_as_the_command_prints(
    server: Server, path: str, query: object, words: tuple[str, ...]
) -> None:
    answer, outcome = server.get(f"/api/{path}", query), run(*words, "--format", "json")
    assert answer.status == 200 and answer.headers["planner-exit-status"] == str(outcome.status)
    assert json.loads(answer.text) == json.loads(outcome.out)


def test_no_is_an_answer_and_bad_input_an_error(server: Server) -> None:
    answer = server.get("/api/fit", {"model": "meta-llama/Llama-2-13b-hf", "gpu": "mi300x-cpx"})
    assert (answer.status, answer.headers["planner-exit-status"], json.loads(answer.text)["fits"]) == (200, "1", False)
    bad: list[tuple[str, dict[str, object], str]] = [
        ("fit", {"model": MODEL, "gpu": "h10"}, "unknown GPU"),
        ("fit", {"model": MODEL}, "the parameter gpu is missing"),
        ("fit", {"model": MODEL, "gpu": GPU, "colour": "red"}, "unknown parameter"),
        ("fit", {"model": MODEL, "gpu": GPU, "max_model_len": "long"}, "valid integer"),
        ("fit", {"model": MODEL, "gpu": GPU, "tensor_parallel_size": 0}, "at least 1"),
        ("fit", {"model": MODEL, "gpu": [GPU, GPU]}, "given 2 times"),
        ("fit", {"model": MODEL, "gpu": GPU, "startup_log": "/etc/passwd"}, "unknown parameter"),
        ("fit", {"model": MODEL, "gpu": GPU, "calibration": "/etc/passwd"}, "unknown parameter"),
        ("recommend", {"trace": "/etc/passwd"}, "unknown parameter"),
        ("recommend", {"goal": "fast"}, "unknown goal"),
        ("check", {"line": "/etc/passwd", "gpu": GPU}, "is not a command"),
        ("check", {"url": "http://127.0.0.1:1", "gpu": GPU}, "unknown parameter"),
    ]
    for path, query, words in bad:
        answer = server.get(f"/api/{path}", query)
        said = json.loads(answer.text)
        assert answer.status == 400 and words in said["error"] and said["hint"] and said["exit_status"] == 2, said


def test_the_description_has_every_operation_with_its_parameters(server: Server) -> None:
    described = json.loads(server.get("/api/openapi.json").text)
    assert described["openapi"].startswith("3.1") and set(described["paths"]) == {f"/api/{path}" for path in ANSWERED}
    for path, one in operations().items():
        told = {parameter["name"]: parameter for parameter in described["paths"][f"/api/{path}"]["get"]["parameters"]}
        assert told.keys() == one.parameters.keys()
        assert all(parameter["description"] for parameter in told.values())
        assert not {"output", "force", "trace", "startup_log", "calibration", "url", "refresh"} & told.keys()
    fit = {one["name"]: one for one in described["paths"]["/api/fit"]["get"]["parameters"]}
    size = {"type": "integer", "default": 1, "minimum": 1, "maximum": 1024}
    assert fit["model"]["required"] and fit["tensor_parallel_size"]["schema"] == size
    goal = next(one for one in described["paths"]["/api/recommend"]["get"]["parameters"] if one["name"] == "goal")
    assert goal["schema"]["enum"] == ["min-latency", "max-throughput", "balanced"]
    assert openapi(operations()) == described
