"""The report in a real browser: ``make browser``. Not part of ``make test``, because it needs Chromium.

Headless Chromium opens the page as a file, without a network. Each check is made on a page that must fail it, too.
"""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import run
from PIL import Image, ImageStat

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PHONE, SMALL_PHONE, DESKTOP = 390, 360, 1280
MEASURE = """
addEventListener("load", () => {
  const inside = frames[0].document;
  const before = inside.documentElement.scrollWidth;
  inside.querySelectorAll("details").forEach(found => { found.open = true; });
  const seen = [...inside.querySelectorAll("svg text")].filter(text => text.getBoundingClientRect().width > 0);
  const letters = seen.map(text => {
    const drawn = text.getScreenCTM();  // turned text has its scale in b
    return parseFloat(inside.defaultView.getComputedStyle(text).fontSize) * Math.hypot(drawn.a, drawn.b);
  });
  document.body.textContent = "measured " + JSON.stringify({
    shut: before, open: inside.documentElement.scrollWidth, smallest: Math.min(...letters),
  });
});
"""


def chromium(*words: str) -> subprocess.CompletedProcess[str]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert program, f"this check needs a browser: install one of {', '.join(NAMES)}"
    always = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
    return subprocess.run([program, *always, *words], capture_output=True, text=True, timeout=120, check=True)


def console(page: Path) -> list[str]:
    """What a page says on its console."""
    said = chromium("--dump-dom", page.as_uri()).stderr
    return [line for line in said.splitlines() if "CONSOLE" in line]


def widths(page: Path, width: int) -> dict[str, float]:
    """Pixels that the content takes in a window of ``width``, with details shut and open; the smallest letters."""
    outer = page.with_name("outer.html")
    inner = html.escape(page.read_text(encoding="utf-8"))
    frame = f'<iframe srcdoc="{inner}" style="border:0;width:{width}px;height:800px"></iframe>'
    outer.write_text(f"<!doctype html><script>{MEASURE}</script><body>{frame}", encoding="utf-8")
    said = chromium("--dump-dom", "--virtual-time-budget=5000", outer.as_uri()).stdout
    found = re.search(r"measured (\{.*?\})", said)
    assert found, said[-2000:]
    return dict(json.loads(found[1]))


def brightness(page: Path, name: str, *words: str) -> float:
    """0 is black, 255 white."""
    picture = page.with_name(name)
    chromium(f"--window-size={DESKTOP},2400", f"--screenshot={picture}", *words, page.as_uri())
    return float(ImageStat.Stat(Image.open(picture).convert("L")).mean[0])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Reports on one GPU and on four."""
    folder = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        assert run("recommend", "Qwen/Qwen3-30B-A3B", "--gpu", "mi355x", "-o", str(folder / "one")).status == 0
        assert run("recommend", "-o", str(folder / "four")).status == 0
        assert run("report", str(folder / "one")).status == run("report", str(folder / "four")).status == 0
    yield [folder / "one/report.html", folder / "four/report.html"]


def test_the_console_stays_silent(pages: list[Path], tmp_path: Path) -> None:
    loud = tmp_path / "loud.html"
    loud.write_text('<!doctype html><script>console.error("heard")</script>')
    assert any("heard" in line for line in console(loud))
    assert [console(page) for page in pages] == [[], []]


@pytest.mark.parametrize("width", [SMALL_PHONE, PHONE, DESKTOP])
def test_nothing_is_wider_than_the_window(pages: list[Path], tmp_path: Path, width: int) -> None:
    wide = tmp_path / "wide.html"
    wide.write_text('<!doctype html><svg></svg><div style="width:3000px">.</div>')
    assert widths(wide, width)["shut"] >= 3000
    for page in pages:
        found = widths(page, width)
        assert found["shut"] == found["open"] == width, page
        assert found["smallest"] >= 9, page  # pixels of the smallest letters in a chart


def test_it_is_light_by_day_and_dark_by_night(pages: list[Path]) -> None:
    night = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    for page in pages:
        assert brightness(page, "light.png") > 225
        assert brightness(page, "dark.png", *night) < 60
