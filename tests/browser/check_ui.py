"""The page of ``planner ui`` in a real browser: ``make browser``. Not part of ``make test``, because it needs Chromium.

Chromium is driven by Playwright, and axe-core looks for what shuts people out. Each check is made on a page that must
fail it, too.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
STATE = "model=meta-llama/Llama-3.1-8B-Instruct&gpu=h100-sxm&gpus=1&flight=8&input_len=256&output_len=64"
#: From now to the next verdict that differs, in ms.
WATCH = """() => {
  const text = () => document.getElementById("verdict")?.textContent, before = text(), began = performance.now();
  window.taken = null;
  const seen = new MutationObserver(() => {
    if (text() && text() !== before) { window.taken = performance.now() - began; seen.disconnect(); }
  });
  seen.observe(document.getElementById("answer"), { childList: true, subtree: true });
}"""
LETTERS = """[...document.querySelectorAll("svg text")].filter(one => one.getBoundingClientRect().width > 0).map(
  one => parseFloat(getComputedStyle(one).fontSize) * Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b))"""
FOCUSED = """document.activeElement.id || document.activeElement.getAttribute("aria-label") ||
  document.activeElement.textContent.slice(0, 30)"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = {"XDG_DATA_HOME": str(tmp_path_factory.mktemp("data")), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "planner", "ui", "--port", "0", "--timeout", "60"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, **home}, text=True)
    assert process.stderr is not None
    yield process.stderr.readline().strip()
    process.terminate()
    process.wait(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert program, f"this check needs a browser: install one of {', '.join(NAMES)}"
    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


class Opened:
    """A page, with all that it said and asked for."""

    def __init__(self, browser: Browser, **context: Any) -> None:
        self.page: Page = browser.new_context(**context).new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))


def opened(browser: Browser, url: str, **context: Any) -> Opened:
    found = Opened(browser, **context)
    found.page.goto(url)
    return found


def verdict(page: Page) -> str:
    return page.inner_text("#verdict")


def until(page: Page, expression: str, seconds: float = 60) -> None:
    """Wait for an expression to hold. Playwright's own way evaluates text in the page, which its policy forbids."""
    ends = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < ends, expression
        page.wait_for_timeout(10)


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["390", "1280"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_shuts_anybody_out(browser: Browser, address: str, size: Any, theme: Any) -> None:
    found = opened(browser, f"{address}&{STATE}&by=rate&rate=3&ttft=900&tpot=40", viewport=size, color_scheme=theme)
    for closed in found.page.query_selector_all("details:not([open]) > summary"):
        closed.click()
    told = Axe().run(found.page).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in told] == []
    assert found.said == []
    assert all(url.startswith((address.partition("?")[0], "data:")) for url in found.asked)
    wide = found.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], wide
    letters = found.page.evaluate(LETTERS)
    assert min(letters) >= 9
    ground = found.page.evaluate("getComputedStyle(document.body).backgroundColor")
    light = sum(map(int, re.findall(r"\d+", ground)[:3])) / 3
    assert light > 225 if theme == "light" else light < 60


def test_the_checks_find_what_they_look_for(browser: Browser, address: str) -> None:
    poor = browser.new_page()
    poor.set_content('<img src="data:,"><div style="width:3000px">x</div><p style="color:#ccc;background:#fff">words')
    told = {one["id"] for one in Axe().run(poor).response["violations"]}
    assert {"image-alt", "color-contrast"} <= told
    assert poor.evaluate("document.documentElement.scrollWidth") >= 3000
    page = browser.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"{address}&{STATE}")
    page.evaluate("console.log('heard')")
    with pytest.raises(Exception, match=r"Content Security Policy|Failed|blocked"):  # no script from elsewhere
        page.add_script_tag(url="https://example.org/x.js")
    assert "heard" in said


def test_a_slider_changes_the_answer_while_it_moves(browser: Browser, address: str) -> None:
    """From the key to the new verdict on the page, the median of ten; then a search follows.

    On a quiet machine with two cores it took 162 ms, beside the end-to-end commands of ``.ci/run`` 519 ms.
    """
    found = opened(browser, f"{address}&{STATE}", viewport=DESKTOP)
    page = found.page
    slider = page.get_by_label("Concurrent requests, slider")
    slider.focus()
    taken = []
    for _ in range(10):
        before = page.input_value("#flight")
        page.evaluate(WATCH)
        while page.input_value("#flight") == before:  # several places of the slider round to one number
            page.keyboard.press("ArrowRight")
        until(page, "window.taken !== null")
        taken.append(page.evaluate("window.taken"))
    assert sorted(taken)[5] < 600, taken
    flight = page.input_value("#flight")
    assert int(flight) > 8
    until(page, f"document.getElementById('verdict').textContent.includes('at {flight} concurrent requests')")
    until(page, "!document.querySelector('#live .lead')")  # the search has come
    assert f"flight={flight}" in page.url
    assert found.said == []


def test_targets_move_too(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}&{STATE}", viewport=DESKTOP).page
    page.fill("#tpot", "1")
    page.wait_for_selector(".targets .missed, #live :text('No plan')")
    until(page, "document.getElementById('verdict').textContent.startsWith('No plan')")
    page.fill("#tpot", "100")
    until(page, "document.getElementById('verdict').textContent.startsWith('Serve')")
    page.wait_for_selector(".targets li.met")
    until(page, "document.querySelectorAll('#levels tbody tr').length === 3")  # 50, 80 and 95 % confidence


def test_a_use_case_fills_the_form(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}&{STATE}&e2el=9000", viewport=PHONE).page
    assert not page.is_visible("#use-case")  # the verdict comes first on a phone
    page.set_viewport_size(DESKTOP)  # a tablet that is turned
    page.click("#question > summary")
    page.set_viewport_size(PHONE)
    page.select_option("#use-case", label="rag")
    until(page, "location.search.includes('ttft=1000')")
    fields = {"input_len": "4096", "output_len": "256", "ttft": "1000", "tpot": "40", "e2el": "", "percentile": "95"}
    assert {name: page.input_value(f"#{name}") for name in fields} == fields
    assert page.get_by_label("Prompt tokens, slider").get_attribute("aria-valuetext") == "4096"
    until(page, "document.querySelectorAll('.targets li').length === 2")
    page.fill("#tpot", "50")
    assert page.input_value("#use-case") == "rag"  # its spread of lengths stays
    page.select_option("#use-case", label="multi-turn-chat")
    assert page.is_checked("input[value=rate]") and not page.is_visible("#input_len")


def test_the_keyboard_alone_is_enough(browser: Browser, address: str) -> None:
    """Tab reaches every control in the order of the page; keys choose a model, open the GPUs, take another, search."""
    page = opened(browser, f"{address}&{STATE}", viewport=DESKTOP).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(FOCUSED))
    for wanted in ("model", "gpus", "goal", "flight", "Concurrent requests, slider", "ttft", "percentile", "Search",
                   "Download the scripts", "Launch command"):  # fmt: skip
        assert wanted in reached, (wanted, reached)
    assert reached.index("model") < reached.index("flight") < reached.index("Search")
    page.focus(".gpus summary")
    page.keyboard.press("Enter")
    page.focus("input[value='mi300x']")
    page.keyboard.press("Space")
    page.focus("form button")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:text('The plan of each GPU')")
    assert "gpu=h100-sxm&gpu=mi300x" in page.url
    ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert ring == "solid"


def test_an_address_is_the_state(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}&{STATE}", viewport=DESKTOP).page
    page.fill("#input_len", "512")
    until(page, "location.search.includes('input_len=512')")
    until(page, "document.getElementById('status').textContent.startsWith('Serve')")
    again = opened(browser, f"{address}&{page.url.partition('?')[2]}", viewport=DESKTOP).page
    assert again.input_value("#input_len") == "512" and verdict(again) == verdict(page)


def test_without_script_the_form_is_enough(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}&{STATE}", java_script_enabled=False, viewport=PHONE).page
    page.fill("#flight", "16")
    page.click("form button")
    assert "flight=16" in page.url and "at 16 concurrent requests" in verdict(page)


def test_scripts_are_downloaded(browser: Browser, address: str) -> None:
    page = opened(browser, f"{address}&{STATE}", viewport=DESKTOP).page
    with page.expect_download() as waiting:
        page.click("text=Download the scripts")
    assert waiting.value.suggested_filename == "plan.zip" and Path(waiting.value.path()).stat().st_size > 10_000


def test_another_sites_page_gets_nothing(browser: Browser, address: str) -> None:
    """The attack of attack.html, in a browser that has the page open too, and so its cookie."""
    base, _, token = address.partition("?token=")
    page = opened(browser, f"{address}&{STATE}").page.context.new_page()
    content = (Path(__file__).parent / "attack.html").read_text(encoding="utf-8")
    page.route("http://elsewhere.example/", lambda route: route.fulfill(body=content, content_type="text/html"))
    page.goto("http://elsewhere.example/")
    page.evaluate("base => { attack(base).then(results => { window.results = results; }); }", base)

    def seconds(path: str) -> float:  # by another client: a browser opens few connections to one host
        began = time.monotonic()
        with urlopen(Request(base + path, headers={"Authorization": f"Bearer {token}"})) as answer:
            assert answer.status == 200
        return time.monotonic() - began

    taken = []
    while not page.evaluate("window.results"):
        taken.append(seconds("style.css"))
        page.wait_for_timeout(100)
    assert set(page.evaluate("Object.values(window.results)")) == {"refused"}
    assert max(taken) < 1.0
    assert seconds("api/fit?gpu=h100&model=meta-llama/Llama-3.1-8B-Instruct") < 5  # nothing is computed for the others
