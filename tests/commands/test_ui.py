"""``planner ui`` without a browser: who may ask, what the page answers, and that the API is the library."""

import asyncio
import html
import http.client
import json
import pickle
import re
import socket
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

import pytest
import uvicorn
from command_line import error_of, run, start

from planner.commands.web.app import ANSWERED, HEADERS, SENDING_S, Guard, make_app, openapi, operations
from planner.commands.web.play import address, move, read_asked, search
from planner.errors import InputError, UnknownNameError
from planner.hardware import load_profile

ROOT = Path(__file__).parents[2]
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

    def __init__(self, seconds: float = 60, loopback: bool = True) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        app = make_app(token=TOKEN, loopback=loopback, seconds=seconds)
        self.server = uvicorn.Server(
            uvicorn.Config(app, http="h11", log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def get(self, path: str, query: object = None, method: str = "GET", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        full = f"{path}?{urlencode(query, doseq=True)}" if query else path  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {TOKEN}", **headers}
        connection.request(method, full, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        connection.close()
        return found

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
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


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/fit", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}),
        ("/style.css", {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "no-cors"}),
        ("/style.css", {"Origin": "https://evil.example"}),
        ("/style.css", {"Origin": "null"}),
        ("/", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}),
        ("/style.css", {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}),
        ("/answer", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}),
        ("/api/fit", {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}),
    ],
)
def test_other_sites_get_nothing(server: Server, path: str, headers: dict[str, str]) -> None:
    """By no means of a page: an image, a script, a form, a frame, a window."""
    assert server.get(path, PLAN, **headers).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec_Fetch_Site": "same-origin", "Sec_Fetch_Mode": "cors", "Sec_Fetch_Dest": "empty"},
        {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
        {"Origin": "http://127.0.0.1:{port}"},
    ],
)
def test_the_page_and_the_address_bar_are_answered(server: Server, headers: dict[str, str]) -> None:
    sent = {name: value.replace("{port}", str(server.port)) for name, value in headers.items()}
    assert server.get("/api/openapi.json", **sent).status == 200


def test_every_request_needs_the_token(server: Server) -> None:
    """Also on this machine: other users, and other pages of its browsers, have none."""
    for given in ("", f"Basic {TOKEN}", "Bearer another", f"Bearer{TOKEN}"):
        for path in ("/", "/style.css", "/api/openapi.json", "/nowhere"):
            assert server.get(path, Authorization=given).status == 401, (given, path)
    assert server.get("/style.css", {"token": "another"}, Authorization="").status == 401
    assert server.get("/style.css", Authorization=f"bearer {TOKEN}").status == 200
    first = server.get("/style.css", {"token": TOKEN, "x": "1"}, Authorization="")
    assert first.status == 303 and first.headers["location"] == "/style.css?x=1"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and str(server.port) in cookie.partition("=")[0]
    assert server.get("/style.css", Authorization="", Cookie=cookie.partition(";")[0]).status == 200


@pytest.mark.parametrize("path", ["//evil.example", "//evil.example/%2e%2e", "/\\evil.example", "///evil.example"])
def test_the_token_leads_nowhere_else(server: Server, path: str) -> None:
    answer = server.get(path, {"token": TOKEN})
    assert answer.status == 400 and "location" not in answer.headers


def test_a_server_for_others_needs_no_name() -> None:
    server = Server(loopback=False)
    assert server.get("/style.css", Host="planner.example:8321").status == 200
    server.stop()


# --- what a request may cost -----------------------------------------------------------------------------------------

#: Much longer than any deadline here.
HEAVY = {"model": MODEL, "gpu": GPU, "input_len": 9000, "output_len": 90_000, "num_prompts": 10_000,
         "max_concurrency": 500}  # fmt: skip


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A server with little time for an answer."""
    found = Server(seconds=4)
    fits = (found.get("/api/fit", {"model": MODEL, "gpu": GPU}).status for _ in range(5))
    assert 200 in fits  # a worker is there
    found.get("/", PLAN)  # the profiles of the form are read
    yield found
    found.stop()


def test_an_answer_has_its_time(hasty: Server) -> None:
    began = time.monotonic()
    answer = hasty.get("/api/predict/serve", HEAVY)
    assert answer.status == 504 and "4 s" in json.loads(answer.text)["error"]
    assert time.monotonic() - began < 8 and {name: answer.headers[name] for name in HEADERS} == HEADERS
    fits = (hasty.get("/api/fit", {"model": MODEL, "gpu": GPU}).status for _ in range(3))  # the first starts a worker
    assert 200 in fits


def test_of_many_requests_each_is_answered_or_refused_soon(hasty: Server) -> None:
    """Fifty at once, on all paths that compute: the style sheet still comes at once."""
    asked = {**PLAN, "flight": 4096, "input_len": 9000, "output_len": 90_000}
    paths = [
        ("/", asked),
        ("/scripts.zip", asked),
        ("/api/predict/serve", HEAVY),
        ("/answer", asked),
        ("/ladder", asked),
    ]
    statuses: list[tuple[int, float]] = []

    def ask(path: str, query: object) -> None:
        began = time.monotonic()
        answer = hasty.get(path, query)
        statuses.append((answer.status, time.monotonic() - began))
        assert answer.status != 503 or int(answer.headers["retry-after"]) > 0

    threads = [threading.Thread(target=ask, args=paths[number % len(paths)]) for number in range(50)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        assert hasty.get("/style.css").status == 200
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.2)
    assert len(statuses) == 50 and {status for status, _ in statuses} <= {200, 400, 503, 504}
    assert sum(status == 503 for status, _ in statuses) >= 25 and max(taken for _, taken in statuses) < 15
    assert slowest < 1.0


def test_what_nobody_waits_for_is_not_computed() -> None:
    server = Server(seconds=60)
    gone = []
    for _ in range(4):  # twice the places
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request(
            "GET", f"/api/predict/serve?{urlencode(HEAVY)}", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        gone.append(connection)
    time.sleep(1)
    for connection in gone:
        connection.close()
    began = time.monotonic()
    assert server.get("/api/fit", {"model": MODEL, "gpu": GPU}).status == 200
    assert time.monotonic() - began < 10
    server.stop()


def test_a_million_prompts_are_refused(server: Server) -> None:
    answer = server.get("/api/predict/serve", {**HEAVY, "num_prompts": 1_000_000})
    assert answer.status == 400 and "num_prompts" in json.loads(answer.text)["error"]


def test_many_fields_are_refused_with_all_headers(server: Server) -> None:
    for path in ("/", "/answer", "/api/fit", "/style.css"):
        answer = server.get(path, [("x", "1")] * 201)
        assert answer.status == 400 and {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_errors_of_the_server_are_logged_at_once(tmp_path: Path) -> None:
    """A broken installation: the trace is on stderr while the server runs, and an answer without it is sent."""
    program = (
        "import planner.output, sys\n"
        "planner.output.style = None\n"
        "from planner.commands.main import main\n"
        "main(['ui', '--port', '0'])"
    )
    process = start(program=("-c", program), PLANNER_TOKEN=TOKEN)
    assert process.stderr is not None
    address = process.stderr.readline().decode().strip()
    assert address.endswith(f"/?token={TOKEN}") and "Ctrl-C" in process.stderr.readline().decode()
    connection = http.client.HTTPConnection("127.0.0.1", int(re.findall(r":(\d+)/", address)[0]))
    connection.request("GET", "/style.css", headers={"Authorization": f"Bearer {TOKEN}"})
    answer = connection.getresponse()
    assert answer.status == 500 and {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert "TypeError" not in answer.read().decode()
    while b"TypeError" not in process.stderr.readline():
        pass
    process.kill()
    process.wait()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_ctrl_c_ends_the_command_also_while_it_searches(host: str) -> None:
    process = start("ui", "--port", "0", "--host", host)
    assert process.stderr is not None
    printed = process.stderr.readline().decode().strip()
    name, port, token = re.fullmatch(r"http://([\w.-]+):(\d+)/\?token=([\w-]{30,})", printed).groups()  # type: ignore[union-attr]
    warned = process.stderr.readline().decode()
    assert name != "0.0.0.0" and ("plain HTTP" in warned) == (host == "0.0.0.0")
    if host == "127.0.0.1":
        connection, allowed = http.client.HTTPConnection(name, int(port)), {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/api/predict/serve?{urlencode(HEAVY)}", headers=allowed)
        time.sleep(3)
    process.send_signal(2)
    assert process.wait(10) == 130


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
    verdict = run("recommend", MODEL, "--gpu", GPU, *words).out.partition("\n\n")[0]
    assert f'<h2 id="verdict">{" ".join(verdict.split())}</h2>' in page
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
    """One replay of the plan that stands there: at most 300 ms of CPU. What a browser waits for is measured in
    tests/browser."""
    key = key_of(server.get("/answer", PLAN).text)
    asked = read_asked({name: [str(value)] for name, value in PLAN.items()})
    before, taken = search(asked).played, []
    for flight in (9, 12, 16, 24, 31):
        began = time.process_time()
        moved = move(before, replace(asked, flight=flight))
        taken.append(time.process_time() - began)
        answer = server.get("/live", {**PLAN, "flight": flight, "of": key})
        assert answer.status == 200 and answer.text == moved and f"at {flight} concurrent requests" in answer.text
    assert sorted(taken)[2] < 0.3
    plan = json.loads(server.get("/api/recommend", {"model": MODEL, "gpu": GPU, "gpus": 1, "max_concurrency": 8,
                                                    "input_len": 256, "output_len": 64}).text)["plans"][0]  # fmt: skip
    same = ("model", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "kv_cache_dtype")
    load = {"gpu": GPU, "max_concurrency": 31, "num_prompts": 93, "input_len": 256, "output_len": 64}
    asked = load | {name: plan[name] for name in same}
    predicted = json.loads(server.get("/api/predict/serve", asked).text)
    shown = float(answer.text.partition("<dt>TPOT</dt><dd><b>")[2].partition("<")[0])
    assert shown == pytest.approx(predicted["mean_tpot_ms"], rel=0.05)


def test_a_rate_is_answered_in_its_steady_state() -> None:
    """The page's own figure is that of the plan, and a step of the slider changes it as little as the load."""
    typed = {"model": MODEL, "gpu": "h100", "gpus": "1", "by": "rate", "rate": "20", "ttft": "300", "tpot": "30"}
    asked = read_asked({name: [value] for name, value in typed.items()})
    found = search(asked)

    def figures(text: str) -> list[float]:
        shown = re.findall(r"p95 TPOT(?: at most 30 ms:)? ([\d.]+) ms", " ".join(re.sub("<[^>]+>", "", text).split()))
        return [float(ms) for ms in shown]

    of_plan, own = figures(found.html)[:2]  # of the verdict, and beside the target
    assert own == pytest.approx(of_plan, abs=0.5)  # which has no decimals
    moved = move(found.played, replace(asked, rate=20.2)) or ""
    assert figures(moved) == [pytest.approx(own, rel=0.1)] and "<dt>Speed</dt><dd><b>-" not in moved
    plan = pickle.loads(found.played).plan
    per_gpu, predicted = 20 * 1024 / plan.service.total_gpus, plan.predicted  # what arrives: cost is counted by it
    assert f"<dt>Throughput</dt><dd><b>{per_gpu:,.0f}</b>" in found.html
    for end, other in ("", ""), ("_lo", "_hi"), ("_hi", "_lo"):  # Little's law: a user's speed is tokens over E2EL
        speed = 1024e3 / predicted[f"mean_e2el_ms{other}"]
        assert predicted[f"output_throughput_per_user{end}"] == pytest.approx(speed, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "load"), [("rag", "by=flight&flight=40"), ("offline", ""), ("multi-turn-chat", "rate=0.2")]
)
def test_a_use_case_is_that_of_the_command(server: Server, name: str, load: str) -> None:
    """Spread of lengths, turns, and a concurrency that is searched: rag was planned with equal lengths."""
    (case,) = re.findall(rf'<option data-fields="([^"]*)">{name}</option>', server.get("/").text)
    fields = {"model": MODEL, "gpu": GPU, "workload": name, **dict(parse_qsl(load)), **json.loads(html.unescape(case))}
    page = html.unescape(server.get("/answer", fields).text)
    flag = {"flight": ("--max-concurrency", "40"), "rate": ("--request-rate", "0.2")}
    words = next((flag[key] for key in flag if key in load), ())
    verdict = run("recommend", MODEL, "--gpu", GPU, "--use-case", name, *words).out.partition("\n\n")[0]
    assert f'<h2 id="verdict">{" ".join(verdict.split())}</h2>' in page


def test_the_targets_and_their_curve_are_those_of_the_plan() -> None:
    """437 ms in the verdict stood over 292 ms in the row, as each came from a replay of its own length."""
    typed = {"model": MODEL, "gpu": GPU, "flight": "40", "output_len": "256", "ttft": "2000", "tpot": "50"}
    found = search(read_asked({name: [value] for name, value in typed.items()}))
    played = pickle.loads(found.played)
    (planned,) = [point for point in played.sweep.points if point.planned]
    for target in played.plan.service.targets:
        metric = target.metric.split("_")[1]
        assert played.chances[metric][0] == planned.figures[target.metric] == pytest.approx(target.predicted_ms)
    moved = move(found.played, replace(played.asked, flight=41)) or ""
    assert ">p95</text>" in found.html and ">p95</text>" in moved and ">p99</text>" not in found.html + moved


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


def test_a_target_is_stated_once(server: Server) -> None:
    """The page said p95 TTFT at most 2,000 ms twice, with 303 ms predicted and with 305."""
    page = server.get("/", {**PLAN, "ttft": 60000, "tpot": 900, "by": "rate", "rate": 1}).text
    live = page.partition('<section id="live"')[2].partition("</section>")[0]
    text = re.sub(r"<svg.*?</svg>|<table.*?</table>", "", live, flags=re.DOTALL)
    assert (text.count("60,000 ms"), text.count("at most 900 ms"), text.count("ms predicted")) == (1, 1, 2)
    assert "p95 TPOT of 900 ms" not in text.replace("bottleneck: p95 TPOT of 900 ms", "", 1)


def test_what_is_out_of_reach_is_answered_as_the_command_does(server: Server) -> None:
    asked = {**PLAN, "by": "rate", "rate": 2, "tpot": 1}
    lengths = ("--input-len", "256", "--output-len", "64")
    page = html.unescape(server.get("/answer", asked).text)
    said = run("recommend", MODEL, "--gpu", GPU, "--gpus", "1", "--request-rate", "2", "--tpot", "1", *lengths).out
    verdict, achievable = (" ".join(part.split()) for part in said.split("\n  x ")[:2])
    assert f">{verdict}<" in page and f">{achievable}<" in page
    assert "achievable by an idle server only: --tpot" in achievable
    assert "tensor_parallel_size" not in page  # a field, and no word of the page


def test_a_command_over_several_lines_is_one_to_copy(server: Server) -> None:
    asked = {**PLAN, "model": "meta-llama/Llama-3.3-70B-Instruct", "gpu": "rtx-4090"}
    (command,) = re.findall("<code>(planner recommend .*?)</code>", server.get("/answer", asked).text)
    assert " --" in command and not {"\\", "random-input-len", "gpus"} & {*command.split()}


def test_gpus_are_listed_by_vendor_with_memory_and_price(server: Server) -> None:
    page = server.get("/", PLAN).text
    vendors = re.findall(r"<legend>([A-Z]+(?: partitions)?)</legend>(.*?)</fieldset>", page)
    listed = dict(vendors)
    h100 = load_profile("h100")
    assert h100.price and f"{h100.price.typical.base:,.2f} USD/h" in listed["NVIDIA"].partition('value="h100-sxm"')[2]
    assert (
        f"{h100.memory_bytes / 2**30:,.0f} GiB" in listed["NVIDIA"] and f" USD/h, {h100.price.date}" in listed["NVIDIA"]
    )
    assert "GiB, no price" in listed["NVIDIA"].partition('value="h20"')[2].partition("</label>")[0]
    assert "192 GiB" in listed["AMD"] and "mi300x-cpx" in listed["AMD partitions"]


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


def test_the_page_names_the_engine_and_the_evidence_behind_its_figures(server: Server) -> None:
    """The notes had ``calibration: shipped`` and no version of vLLM at all."""
    text = server.get("/answer", PLAN).text
    notes = re.findall(r"<li[^>]*>([^<]*)</li>", text)
    assert any(re.match(r"vLLM \d+\.\d+", note) for note in notes), notes
    assert any(re.match("(measured|interpolated|extrapolated): ", note) for note in notes)


def test_a_target_is_met_with_a_probability(server: Server) -> None:
    """It falls as the target does, and what is asked for decides the word."""
    key = key_of(server.get("/answer", PLAN).text)
    chances = []
    for tpot in (200, 14, 9, 6, 4, 1):
        text = server.get("/live", {**PLAN, "tpot": tpot, "of": key}).text
        found = re.search(r'<li class="(\w+)">.*met with (under |over )?(\d+)% probability \(target 80%', text)
        assert found
        assert found[3] not in ("0", "100")
        chances.append(int(found[3]) + {"under ": -1, "over ": 1}.get(found[2], 0))
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
        ({"flight": ["0"]}, "flight must be from 1 to 4,096"),
        ({"flight": ["9" * 400]}, "flight must be from 1 to 4,096"),
        ({"rate": ["nan"]}, "rate must be"),
        ({"input_len": ["1e3"]}, "must be an integer, from 1 to 1,000,000"),
        ({"goal": ["fast"]}, "unknown goal"),
        ({"gpu": ["nothing"]}, "unknown GPU"),
        ({"gpu": ["all"]}, "GPUs are chosen"),
        ({"gpu": ["/etc/passwd.toml"]}, "unknown GPU"),
        ({"gpu": ["/etc/passwd.toml,h100"]}, "unknown GPU"),
        ({"model": [""]}, "no model is named"),
        ({"request_rate": ["5"]}, "unknown parameter 'request_rate'"),
    ],
)
def test_bad_addresses_are_told_on_the_page(server: Server, query: dict[str, list[str]], words: str) -> None:
    with pytest.raises(InputError) as refused:
        read_asked(query)
    assert words in refused.value.cause and refused.value.hint
    answer = server.get("/", {"output_len": ["77"], **query})
    assert 'name="output_len" type="number" min="1" max="1000000" step="1" value="77"' in answer.text  # stays
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
    answered, printed = json.loads(answer.text), json.loads(outcome.out)
    assert answered.get("settings") == printed.get("settings")  # apart, so that a failure names the setting
    assert answered == printed


def test_no_is_an_answer_and_bad_input_an_error(server: Server) -> None:
    answer = server.get("/api/fit", {"model": "meta-llama/Llama-2-13b-hf", "gpu": "mi300x-cpx"})
    assert (answer.status, answer.headers["planner-exit-status"], json.loads(answer.text)["fits"]) == (200, "1", False)
    bad: list[tuple[str, dict[str, object], str]] = [
        ("fit", {"model": MODEL, "gpu": "h10"}, "unknown GPU"),
        ("fit", {"model": MODEL}, "the parameter gpu is missing"),
        ("fit", {"model": MODEL, "gpu": GPU, "colour": "red"}, "unknown parameter"),
        ("fit", {"model": MODEL, "gpu": GPU, "max_model_len": "long"}, "an integer"),
        ("fit", {"model": MODEL, "gpu": GPU, "tensor_parallel_size": 0}, "at least 1"),
        ("fit", {"model": MODEL, "gpu": [GPU, GPU]}, "given 2 times"),
        ("fit", {"model": MODEL, "gpu": GPU, "startup_log": "/etc/passwd"}, "unknown parameter"),
        ("fit", {"model": MODEL, "gpu": GPU, "calibration": "/etc/passwd"}, "unknown parameter"),
        ("recommend", {"trace": "/etc/passwd"}, "unknown parameter"),
        ("recommend", {"goal": "fast"}, "unknown goal"),
        ("check", {"line": "/etc/passwd", "gpu": GPU}, "no vllm serve command"),
        ("check", {"url": "http://127.0.0.1:1", "gpu": GPU}, "unknown parameter"),
    ]
    for path, query, words in bad:
        answer = server.get(f"/api/{path}", query)
        said = json.loads(answer.text)
        assert answer.status == 400 and words in said["error"] and said["hint"] and said["exit_status"] == 2, said
        assert ".toml" not in said["hint"]  # no parameter takes a path


def test_nothing_names_a_file(server: Server, tmp_path: Path) -> None:
    """A file that is there is answered like one that is not: by no parameter is it read, or its existence told."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    config = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    (folder / "config.json").write_text(config)
    (folder / "h.toml").write_text((ROOT / "hardware" / "h100-sxm.toml").read_text())
    (folder / "launch.sh").write_text(f"vllm serve {MODEL} --max-num-seqs 7391\n")
    draft = json.dumps({"model": "@", "num_speculative_tokens": 2})
    for path, query in [
        ("fit", {"model": "@", "gpu": GPU}),
        ("fit", {"model": "@/config.json", "gpu": GPU}),
        ("fit", {"model": MODEL, "gpu": "@/h.toml"}),
        ("fits", {"model": MODEL, "gpu": "@/h.toml,h100"}),
        ("recommend", {"model": MODEL, "gpu": "@/h.toml"}),
        ("check", {"line": "@/launch.sh", "gpu": GPU}),
        ("check", {"line": "@", "gpu": GPU}),
        ("check", {"line": ["@/launch.sh", ""], "gpu": GPU}),
        ("check", {"line": "vllm serve @/", "gpu": GPU}),
        ("check", {"line": f"vllm serve {MODEL}", "gpu": GPU, "as_model": "@"}),
        ("check", {"line": f"vllm serve {MODEL} --speculative-config '{draft}'", "gpu": GPU}),
        ("check", {"line": "vllm serve --config @/config.json", "gpu": GPU}),
    ]:
        answers = []
        for place in (folder, tmp_path / "b folder"):
            named = {
                name: [one.replace("@", str(place)) for one in ([text] if isinstance(text, str) else text)]
                for name, text in query.items()
            }
            answer = server.get(f"/api/{path}", named)
            answers.append((answer.status, answer.text.replace(f"{tmp_path}/b", f"{tmp_path}/a")))
        assert answers[0] == answers[1] and "7391" not in answers[0][1], (path, query)
        assert answers[0][0] == 400 or path == "check", (path, query, answers[0])


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


def test_an_answer_that_does_not_begin_in_time_is_a_504() -> None:
    """Uvicorn turns an application that says nothing into a bare 500."""
    sent: list[Any] = []

    async def silent(*_: Any) -> None:
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        sent.append(message)

    guard = Guard(silent, token="t", loopback=False, seconds=0.01 - SENDING_S)
    request = {
        "type": "http", "method": "GET", "path": "/health", "query_string": b"", "server": ("127.0.0.1", 80),
        "headers": [(b"authorization", b"Bearer t")],
    }  # fmt: skip
    asyncio.run(guard(request, silent, send))
    assert sent[0]["status"] == 504 and b"no answer within" in sent[1]["body"]


def test_errors_cross_processes_whatever_their_class_is_made_of() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_profile("h10")
    crossed = pickle.loads(pickle.dumps(caught.value))
    assert (type(crossed), str(crossed), vars(crossed)) == (UnknownNameError, str(caught.value), vars(caught.value))
