"""Take the pictures of docs/ anew: ``make pictures``. Needs Chromium, but for ``charts``: the chart of
docs/uncertainty.md, and the terminals.

A report on the GPUs that ``planner recommend`` takes by default, and the page of ``planner ui``, each in three windows;
what a terminal shows of some commands.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from PIL import Image
from planner.commands.colour import NO, YES, coloured
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

from planner.commands.main import main
from planner.engine import EngineArgs, default_version
from planner.hardware import load_profile
from planner.model import resolve_model
from planner.output.charts import Chart, LinePanel, Series, svg
from planner.planning import resolve_deployment, simulate_serve
from planner.workload import Workload

IMAGES = Path(__file__).resolve().parent / "images"
DOTS = 1.5  #: to the pixel
DARK = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
PLAYED = "model=meta-llama/Llama-3.3-70B-Instruct&gpu=h200-sxm&gpu=mi300x&by=rate&rate=6&ttft=2000&tpot=60"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)  #: of what full batches serve
COLORS = 200  #: of a PNG with a palette, which is a third of the size


def take(page: str, width: int, height: int, *words: str) -> Image.Image:
    """What a window of that size shows."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("install chromium")
    always = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    size = (f"--force-device-scale-factor={DOTS}", f"--window-size={width},{height}")
    with tempfile.NamedTemporaryFile(suffix=".png") as file:
        words = (program, *always, *size, f"--screenshot={file.name}", *words, page)
        subprocess.run(words, check=True, capture_output=True, timeout=120)
        return Image.open(file.name).copy()


def frames(page: Path, width: int, height: int, *starts: int) -> Path:
    """A page that shows another from several places on, side by side, in windows of ``width``."""
    boxes = "".join(
        f'<div style="width:{width}px;height:{height}px;overflow:hidden"><iframe src="{page.as_uri()}" '
        f'style="border:0;width:{width}px;height:30000px;margin-top:-{start}px"></iframe></div>'
        for start in starts
    )
    outer = page.with_name("frames.html")
    outer.write_text(
        f'<!doctype html><body style="margin:0;background:#888;display:flex;gap:24px">{boxes}', encoding="utf-8"
    )
    return outer


def save(picture: Image.Image, name: str) -> None:
    """With few colours: charts and letters have no more."""
    few = picture.convert("RGB").quantize(COLORS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(IMAGES / name, optimize=True)


@contextmanager
def playing() -> Iterator[str]:
    """The page of ``planner ui``, with a question that has targets."""
    words = [sys.executable, "-m", "planner", "ui", "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        yield f"{process.stderr.readline().strip() if process.stderr else ''}&{PLAYED}"
    finally:
        process.terminate()
        process.wait(20)


def band(gpu: str, place: int) -> Series:
    """The mean TTFT of one server of an 8B model at shares of what it carries, with the 90 % interval."""
    model, profile = resolve_model("meta-llama/Llama-3.1-8B-Instruct").model, load_profile(gpu)
    deployment = resolve_deployment(model, profile, EngineArgs(max_model_len=4096), default_version(profile))
    full = Workload(1024, 256, 256, max_concurrency=256)
    most = simulate_serve(deployment, full).figures["request_throughput"]
    lines: list[tuple[float, ...]] = []
    for share in SHARES:
        found = simulate_serve(deployment, Workload(1024, 256, 600, request_rate=share * most)).result
        lines.append((share, *(found[f"mean_ttft_ms{end}"] for end in ("", "_lo", "_hi"))))
    x, y, lo, hi = zip(*lines, strict=True)
    return Series(gpu, x, y, color=place, marker="os"[place], lo=lo, hi=hi)


def uncertainty() -> Chart:
    """Intervals near the end of what a server carries, and far from what was measured."""
    panel = LinePanel(
        "request rate, share of what full batches serve",
        "mean TTFT, ms, with its 90 % interval",
        tuple(band(gpu, place) for place, gpu in enumerate(("h100-sxm", "l40s"))),
        y_log=True,
    )
    title = "Llama-3.1-8B, 1,024 tokens in, 256 out"
    said = "The band widens where the queue reacts, and on a GPU that no run was measured on."
    return Chart("uncertainty", title, said, (panel,))


#: Name of the picture -> command.
TYPED = {
    "terminal-recommend": "planner recommend --gpu h200 --ttft 2000 --tpot 30 --request-rate 5 --workload summarise",
    "terminal-compare": "planner compare --gpu mi300x --gpu h100 --gpu b200",
    "terminal-fit": "planner fit meta-llama/Llama-3.3-70B-Instruct --gpu h200",
    "terminal-doubt": "planner fleet meta-llama/Llama-3.1-8B-Instruct --gpu gb10 --request-rate 4 --tpot 32 "
    "--random-input-len 256 --random-output-len 64",
}
SCREEN = 100  #: columns
WEB_FONT = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)


def terminal(line: str) -> str:
    """What a terminal shows of a command, as SVG; with the fonts of who looks at it, so that nothing is fetched."""
    out, err = StringIO(), StringIO()
    with patch.dict(os.environ, {"COLUMNS": str(SCREEN)}), redirect_stdout(out), redirect_stderr(err):
        status = main(shlex.split(line)[1:])
    shown = coloured(out.getvalue(), verdict=NO if status else YES) + coloured(err.getvalue())
    console = Console(width=SCREEN, record=True, file=StringIO())
    console.print(Text(f"$ {line}", style="bold"))
    console.print(Text.from_ansi(shown))
    return console.export_svg(title="planner", code_format=WEB_FONT.sub("", CONSOLE_SVG_FORMAT), unique_id="planner")


if __name__ == "__main__":
    (IMAGES / "uncertainty.svg").write_text(svg(uncertainty()), encoding="utf-8")
    for name, line in TYPED.items():
        (IMAGES / f"{name}.svg").write_text(terminal(line), encoding="utf-8")
    if sys.argv[1:] == ["charts"]:
        sys.exit()
    with playing() as page:
        save(take(page, 1280, 1180), "page-light.png")
        save(take(page, 1280, 1180, *DARK), "page-dark.png")
        save(take(page, 390, 2200), "page-phone.png")
    with tempfile.TemporaryDirectory() as folder:
        plans = f"{folder}/plans"
        if main(["recommend", "-o", plans]) or main(["report", plans]):
            sys.exit("no report")
        page = Path(plans, "report.html")
        save(take(page.as_uri(), 860, 1330), "report-light.png")
        below = take(page.as_uri(), 860, 4000, *DARK)
        save(below.crop((0, round(2930 * DOTS), below.width, round(3960 * DOTS))), "report-dark.png")
        save(take(frames(page, 390, 1240, 0, 2900).as_uri(), 804, 1240), "report-narrow.png")
