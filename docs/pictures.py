"""Take the pictures in docs/images: ``make pictures``. With the argument ``charts``, only those without Chromium.

The terminal of some commands, charts of a report, intervals near saturation, and screenshots of the report and of the
page of ``planner ui``.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from unittest.mock import patch

from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

from planner import Load, Serving
from planner.commands.main import main
from planner.commands.streams import NO, YES, coloured
from planner.output.charts import Chart, LinePanel, Series, svg

IMAGES = Path(__file__).resolve().parent / "images"
PIXELS_PER_DOT = 1.5
PLAYED = "model=meta-llama/Llama-3.3-70B-Instruct&gpu=h200-sxm&gpu=mi300x&by=rate&rate=6&ttft=2000&tpot=60"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  #: of the throughput of full batches
COLORS = 200  #: of a PNG with a palette, which is a third of the size
#: Name of the picture -> command.
TYPED = {
    "terminal-recommend": "planner recommend --gpu h200 --ttft 2000 --tpot 30 --request-rate 5 --workload summarise",
    "terminal-compare": "planner compare --gpu mi300x --gpu h100 --gpu b200",
    "terminal-fit": "planner fit meta-llama/Llama-3.3-70B-Instruct --gpu h200",
}
PLANNED = "recommend meta-llama/Llama-3.1-8B-Instruct --gpu mi300x -o"  #: the plan whose charts are drawn
CHARTS = ("operators", "latency")
SCREEN = 100  #: columns
WEB_FONT = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def screenshot(address: str, width: int, height: int, name: str) -> None:
    """Save what a window of that size shows, with few colours."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        window = browser.new_page(
            viewport={"width": width, "height": height}, device_scale_factor=PIXELS_PER_DOT, color_scheme="light"
        )
        window.goto(address, timeout=120_000)
        window.wait_for_load_state("networkidle", timeout=120_000)
        picture = Image.open(BytesIO(window.screenshot())).convert("RGB")
        browser.close()
    few = picture.quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(IMAGES / name, optimize=True)


def page() -> None:
    """Save the page of ``planner ui`` with a question that has targets."""
    words = [sys.executable, "-m", "planner", "ui", "--port", "0", "--timeout", "120"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stderr.readline().strip() if process.stderr else ""
        screenshot(f"{address}&{PLAYED}", 1280, 1180, "page-light.png")
        screenshot(f"{address}&{PLAYED}", 390, 844, "page-phone.png")
    finally:
        process.terminate()
        process.wait(20)


def band(gpu: str, place: int) -> Series:
    """Mean TTFT of one server of an 8B model at shares of what it carries, with the 90 % interval."""
    serving = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu=gpu, max_model_len=4096, calibration="none")
    lengths = {"input_len": 1024, "output_len": 256}
    most = serving.predict(Load.closed_loop(256, num_prompts=256, **lengths)).figures["request_throughput"]
    lines = []
    for share in SHARES:
        found = serving.predict(Load.open_loop(share * most, num_prompts=600, **lengths)).result
        lines.append((share, *(found[f"mean_ttft_ms{end}"] for end in ("", "_lo", "_hi"))))
    x, y, lo, hi = zip(*lines, strict=True)
    return Series(gpu, x, y, color=place, marker="os"[place], lo=lo, hi=hi)


def intervals() -> Chart:
    """Intervals near the end of what a server carries, and far from what was measured."""
    panel = LinePanel(
        "request rate, share of what full batches serve",
        "mean TTFT, ms, with its 90 % interval",
        tuple(band(gpu, place) for place, gpu in enumerate(("h100-sxm", "l40s"))),
        y_log=True,
    )
    said = "The band widens where the queue reacts, and on a GPU without measured runs."
    return Chart("intervals", "Llama-3.1-8B, 1,024 tokens in, 256 out", said, (panel,))


def terminal(line: str) -> str:
    """Return the terminal after a command as SVG, with the reader's own fonts."""
    out, err = StringIO(), StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(SCREEN)}), redirect_stdout(out), redirect_stderr(err):
        status = main(shlex.split(line)[1:])
    shown = coloured(out.getvalue(), verdict=NO if status else YES) + coloured(err.getvalue())
    console = Console(width=SCREEN, record=True, file=StringIO())
    console.print(Text(f"$ {line}", style="bold"))
    console.print(Text.from_ansi(shown))
    return console.export_svg(title="planner", code_format=WEB_FONT.sub("", CONSOLE_SVG_FORMAT), unique_id="planner")


def run(*words: str) -> None:
    """Run a command that must succeed."""
    if main(list(words)):
        sys.exit(f"failed: planner {' '.join(words)}")


if __name__ == "__main__":
    (IMAGES / "intervals.svg").write_text(svg(intervals()), encoding="utf-8")
    for name, line in TYPED.items():
        (IMAGES / f"{name}.svg").write_text(terminal(line), encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        run(*PLANNED.split(), f"{folder}/plan")
        for chart in CHARTS:
            picture = str(IMAGES / f"{chart}.svg")
            run("report", f"{folder}/plan", "--format", "svg", "--chart", chart, "-o", picture)
    if sys.argv[1:] == ["charts"]:
        sys.exit()
    page()
    with tempfile.TemporaryDirectory() as folder:
        run("recommend", "-o", f"{folder}/plans")
        run("report", f"{folder}/plans")
        screenshot(Path(folder, "plans", "report.html").as_uri(), 860, 1330, "report-light.png")
