"""Run scripts of this folder in several vLLMs, each in a fork of one interpreter that has imported torch.

Reads a JSON list of ``{"script": ..., "data": ..., "path": [...]}`` from standard input and writes a JSON list of what
each script writes for its data, with ``path`` first on its path. What vLLM imports from outside the trees of its
versions is more than half of its start.
"""

import contextlib
import gc
import importlib
import io
import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

#: Each vLLM here imports them, from the environment.
SHARED = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "openai.types.chat", "aiohttp", "fastapi")


def answer(job: dict[str, Any]) -> Any:
    """What the script writes."""
    folder = Path(__file__).resolve().parent
    sys.path[:1] = [str(folder), *job["path"]]
    if job["path"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(job["path"])
        os.chdir(job["path"][0])
    sys.stdin, output = io.StringIO(json.dumps(job["data"])), io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(str(folder / job["script"]), run_name="__main__")
    except SystemExit as error:  # a pool waits for ever for a worker that ends
        raise RuntimeError(f"{job['script']} with {job['path']} ended with {error.code}") from error
    text = output.getvalue()
    return json.loads(text[text.index("[") :].strip().splitlines()[-1])


if __name__ == "__main__":
    gc.disable()  # imports leave no garbage, and a collection would copy the pages that the forks share
    for name in SHARED:
        importlib.import_module(name)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        json.dump(pool.map(answer, json.load(sys.stdin), chunksize=1), sys.stdout)
