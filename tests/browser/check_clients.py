"""Fifty clients of ``planner ui`` for a minute: ``make clients``. Not part of ``make test``: its bounds are times."""

import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

ROOT = Path(__file__).parents[2]
STATE = "model=meta-llama/Llama-3.1-8B-Instruct&gpu=h100-sxm&gpus=1&flight=8&input_len=256&output_len=64"


def resident_mb(process: int) -> float:
    """Memory of a process and of all that it started."""
    tree, total = [process], 0.0
    for one in tree:
        with suppress(OSError):
            total += sum(map(int, re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{one}/status").read_text()))) / 1000
            for thread in Path(f"/proc/{one}/task").iterdir():
                tree += map(int, (thread / "children").read_text().split())
    return total


def test_fifty_clients_for_a_minute(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each asks for what is costly as soon as it is answered. The figures are printed: ``pytest -s``."""
    home = {"XDG_DATA_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    words = [sys.executable, "-m", "planner", "ui", "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env={**os.environ, **home}, text=True)
    request.addfinalizer(process.terminate)
    assert process.stderr is not None
    base, _, token = process.stderr.readline().strip().partition("?token=")
    heavy = "model=meta-llama/Llama-3.1-8B-Instruct&gpu=h100-sxm&output_len=90000"
    paths = [f"{path}?{heavy}&flight=4096" for path in ("", "scripts.zip", "answer", "ladder")]
    paths.append(f"api/predict/serve?{heavy}&num_prompts=10000&max_concurrency=500")
    statuses: Counter[int] = Counter()
    slowest = {"style": 0.0, "answer": 0.0}
    ends = time.monotonic() + 60

    def ask(path: str, name: str = "answer") -> None:
        began = time.monotonic()
        try:
            with urlopen(Request(base + path, headers={"Authorization": f"Bearer {token}"}), timeout=30) as answer:
                answer.read()
                status = answer.status
        except HTTPError as error:
            status = error.code
        slowest[name] = max(slowest[name], time.monotonic() - began)
        statuses[status] += name == "answer"

    def client(number: int) -> None:
        for lengths in range(8000 + 100 * number, 20_000):  # a new question each time
            if time.monotonic() > ends:
                return
            ask(f"{paths[number % len(paths)]}&input_len={lengths}")
            time.sleep(0.1)  # clients share the server's processors

    for first in (f"?{STATE}", "style.css"):  # the page is open: the server has imported what it needs
        ask(first, "style")
    slowest["style"], most_mb = 0.0, 0.0
    with ThreadPoolExecutor(50) as clients:
        asking = [clients.submit(client, number) for number in range(50)]
        while not all(one.done() for one in asking):
            ask("style.css", "style")
            most_mb = max(most_mb, resident_mb(process.pid))
            time.sleep(0.2)
    assert all(one.exception() is None for one in asking)
    print(f"\n{dict(statuses)}, slowest {slowest} s, {most_mb:.0f} MB")
    assert set(statuses) <= {200, 400, 503, 504} and statuses[503] > 100
    assert slowest["answer"] < 15 and slowest["style"] < 1
    assert most_mb < 2000
