"""Each example runs as a person would run it: alone, in an empty folder, without network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
#: Files that an example writes, and a line that it prints.
EXPECTED = {
    "does_it_fit": ((), r"2 x H100: does not fit|2 x H100: fits"),
    "latency_and_load": ((), r"4 requests/s: p99 TTFT \d+ ms"),
    "largest_load": ((), r"requests/s"),
    "best_settings": (("plans/plan.json", "plans/launch.sh"), r"[1-9]\d+ output tokens/s"),
    "compare_gpus": (("fits.csv",), r"fits\.csv: 5 rows"),
    "sweep": (("sweep.csv",), r"sweep\.csv: 8 rows|kv_cache_dtype"),
    "search": ((), r"h100-sxm: \d+ GPUs, TP 1"),
    "own_gpu": (("my_h100.toml",), r"my_h100\.toml +\d+ output tokens/s"),
    "calibration_loop": (("machine.toml",), r"after: \d+ output tokens/s"),
}


def test_every_example_is_run_and_listed() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == EXPECTED.keys()
    listed = re.findall(r"\((\w+)\.py\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    command = [sys.executable, "-W", "error", str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    files, line = EXPECTED[name]
    assert re.search(line, done.stdout), done.stdout
    assert all((folder / file).stat().st_size > 100 for file in files)
    if not files:
        assert list(folder.iterdir()) == []
