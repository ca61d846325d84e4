"""What a command costs before and beside its answer: CPU seconds and memory of whole processes.

    python benchmarks/startup.py [-n RUNS]

Every command runs RUNS times, in turn with the yardstick (a Python that imports typer and pydantic), so that a busy
machine slows all of them alike; ratios are taken run by run. CPU time (user + system) and the peak of resident
memory come from the kernel (``getrusage`` of each child). Byte code is cached, as it is after an installation.
Results go to ``benchmarks/results/startup.json`` and ``.md``; exit status 1 when a target is missed.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
YARDSTICK = ("-c", "import typer, pydantic")
FITS, FITS_NOT = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf"
COMMANDS = {
    "--version": (),
    "fit": (FITS, "--gpu", "mi300x-cpx"),
    "fit, with options to look for": (FITS_NOT, "--gpu", "mi300x-cpx"),
    "hardware list": (),
    "models show": (FITS,),
    "predict serve": (FITS, "--gpu", "h100", "--max-concurrency", "64"),
    "recommend": (),
}
#: (largest ratio to the yardstick, most CPU seconds, most MB); None: no target
TARGETS = {"fit": (3.0, None, None), "recommend": (None, 3.0, 200.0)}
MB_PER_MAXRSS = 1024 / 1e6 if sys.platform != "darwin" else 1 / 1e6  #: kB on Linux, bytes on macOS


def measure(words: tuple[str, ...], environment: dict[str, str]) -> tuple[float, float]:
    """CPU seconds and peak resident memory (MB) of a Python with these arguments."""
    null = os.open(os.devnull, os.O_RDWR)
    redirect = [(os.POSIX_SPAWN_DUP2, null, stream) for stream in (0, 1, 2)]
    pid = os.posix_spawn(sys.executable, [sys.executable, *words], environment, file_actions=redirect)
    _, status, usage = os.wait4(pid, 0)
    os.close(null)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise SystemExit(f"python {' '.join(words)}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * MB_PER_MAXRSS


def run_all(runs: int) -> dict[str, list[tuple[float, float]]]:
    """(CPU s, MB) of each run of each command; the yardstick is called ``yardstick``."""
    lines = {name: ("-m", "planner", *name.partition(",")[0].split(), *words) for name, words in COMMANDS.items()}
    lines["yardstick"] = YARDSTICK
    with tempfile.TemporaryDirectory() as folder:
        keep = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {
            **keep, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        }  # fmt: skip
        os.chdir(folder)  # no planner.toml
        for words in lines.values():
            measure(words, environment)  # writes the byte code
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in lines}
        for _ in range(runs):
            for name, words in lines.items():
                found[name].append(measure(words, environment))
    return found


def summarise(found: dict[str, list[tuple[float, float]]]) -> list[dict[str, float | str | bool | None]]:
    """Medians per command, and whether the targets are met."""
    yardstick = [cpu_s for cpu_s, _ in found["yardstick"]]
    rows: list[dict[str, float | str | bool | None]] = []
    for name, measured in found.items():
        cpu_s = [cpu for cpu, _ in measured]
        figures = (
            median(own / base for own, base in zip(cpu_s, yardstick, strict=True)),
            median(cpu_s),
            max(mb for _, mb in measured),
        )
        limits = TARGETS.get(name, (None, None, None))
        met = all(limit is None or value <= limit for value, limit in zip(figures, limits, strict=True))
        ratio, seconds, megabytes = figures
        rows.append({
            "command": name, "ratio": round(ratio, 2), "cpu_s": round(seconds, 3), "cpu_s_min": round(min(cpu_s), 3),
            "cpu_s_max": round(max(cpu_s), 3), "peak_mb": round(megabytes, 1),
            "target": _target(limits), "met": met if name in TARGETS else None,
        })  # fmt: skip
    return rows


def _target(limits: tuple[float | None, ...]) -> str:
    texts = ("{:g} x the yardstick", "{:g} s", "{:g} MB")
    return ", ".join(text.format(limit) for text, limit in zip(texts, limits, strict=True) if limit is not None)


def commit() -> str:
    """The commit that was measured, and whether files differed from it."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True).stdout.strip()

    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+changes" if git("status", "--porcelain") else "")


def write(rows: list[dict[str, float | str | bool | None]], runs: int) -> None:
    """The two result files."""
    about = {
        "date": datetime.date.today().isoformat(), "commit": commit(), "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs", "runs": runs,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "startup.json").write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
    lines = [
        "# Start-up",
        "",
        f"{about['date']}, commit {about['commit']}, Python {about['python']}, {about['machine']}; "
        f"median of {runs} runs. Written by `benchmarks/startup.py`.",
        "",
        "| command | CPU s | x yardstick | peak MB | target | met |",
        "|---|--:|--:|--:|---|---|",
    ]
    for row in rows:
        met = "" if row["met"] is None else "yes" if row["met"] else "no"
        name = (
            '`python -c "import typer, pydantic"`' if row["command"] == "yardstick" else f"`planner {row['command']}`"
        )
        lines.append(
            f"| {name} | {row['cpu_s']:.3f} ({row['cpu_s_min']:.3f} to {row['cpu_s_max']:.3f}) | {row['ratio']:.2f} "
            f"| {row['peak_mb']:.0f} | {row['target']} | {met} |"
        )
    (RESULTS / "startup.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> int:
    """Measure, write, and say whether the targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--runs", type=int, default=9)
    runs = parser.parse_args().runs
    rows = summarise(run_all(runs))
    write(rows, runs)
    return 0 if all(row["met"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
