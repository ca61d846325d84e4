"""A running vLLM server: its engine, its load, and what it measures of itself.

Sources: ``/version``, ``/v1/models``, and ``/metrics`` with the names of vLLM's ``v1/metrics/loggers.py``, 0.8 to 0.27.
Counters are read twice. A server may be anything: answers are small and soon there, and nothing is followed.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from math import ceil, inf, log
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from planner.engine import EngineArgs
from planner.errors import InputError, PlannerError
from planner.planning import Serving
from planner.units import whole_number

if TYPE_CHECKING:
    from planner.engine import EngineVersion
    from planner.hardware import GpuProfile
    from planner.model import Model

MOST_ANSWER_BYTES = 8 * 2**20  #: of one answer; the metrics of eight engines take less than one MB
ANSWER_S = 10.0  #: for one answer, from the name to its last byte
WINDOW_S = 5.0  #: between the two looks at the counters
KEY = "VLLM_API_KEY"  #: environment variable with the key of the server, where it wants one
ROOT_HINT = "give the address of vllm serve, without a path"  #: where something else answers
MOST_COUNTED = 1e15  #: tokens or seconds: no server counts so far, and sums of more lose their last digit
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: Histograms, the first that a server has: figure -> metric. TPOT is of a request since 0.12; before, gaps are pooled.
_TPOT = "request_time_per_output_token", "inter_token_latency", "time_per_output_token"
_MEANS_S = {"mean_ttft_ms": ("time_to_first_token",), "mean_tpot_ms": _TPOT, "mean_e2el_ms": ("e2e_request_latency",)}


@dataclass(frozen=True)
class SeenServer:
    """Engine, load and figures that a server reports."""

    url: str
    version: str
    model: str  #: hub id or path that was loaded
    max_model_len: int | None
    cache: Mapping[str, str]  #: labels of ``vllm:cache_config_info``
    engines: int  #: data-parallel ranks
    in_flight: int
    window_s: float
    input_len: int | None  #: mean of the requests that ended; None: none did
    output_len: int | None
    ended_in_window: int
    measured: Mapping[str, float] = field(default_factory=dict)  #: under the keys of ``vllm bench serve``

    @property
    def kv_cache_tokens(self) -> int | None:
        """Tokens that the KV cache of one engine holds."""
        blocks, size = (whole_number(self.cache.get(name, "")) for name in ("num_gpu_blocks", "block_size"))
        return None if blocks is None or size is None else blocks * size

    def words(self, tensor_parallel_size: int) -> tuple[str, ...]:
        """Return a line that serves like this, as far as the server reports it."""
        dtype, caching = self.cache.get("cache_dtype"), self.cache.get("enable_prefix_caching")
        values = {
            "--max-model-len": self.max_model_len,
            "--gpu-memory-utilization": self.gpu_memory_utilization,
            "--kv-cache-dtype": None if dtype == "auto" else dtype,
        }
        switch = {"True": ["--enable-prefix-caching"], "False": ["--no-enable-prefix-caching"]}.get(caching or "", [])
        sizes = {"--tensor-parallel-size": tensor_parallel_size, "--data-parallel-size": self.engines}
        words = [word for flag, value in values.items() if value for word in (flag, str(value))]
        ranks = [word for flag, value in sizes.items() if value > 1 for word in (flag, str(value))]
        return ("vllm", "serve", self.model, *words, *switch, *ranks)

    @property
    def gpu_memory_utilization(self) -> float | None:
        """The share of the memory that the server took; None where it is not reported."""
        text = self.cache.get("gpu_memory_utilization", "")
        return float(text) if text.replace(".", "", 1).isdecimal() else None


def look_at_server(url: str, *, window_s: float = WINDOW_S) -> SeenServer:
    """Ask a server twice, ``window_s`` between. Raises InputError for another server than vLLM, or no answer."""
    root = _checked(url)
    version = str(_json(root, "/version").get("version", ""))
    listed = _json(root, "/v1/models").get("data")
    models = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    if not version or not models:
        raise InputError(f"{root} does not answer as vLLM does", hint=ROOT_HINT)
    base = next((one for one in models if not one.get("parent")), models[0])  # adapters have a parent
    before, began_s = _samples(_get(root, "/metrics")), monotonic()
    sleep(window_s)
    after, passed_s = _samples(_get(root, "/metrics")), monotonic() - began_s
    if not any(name.startswith("vllm:") for name in after.values):
        raise InputError(f"{root}/metrics has no metric of vLLM", hint="give the address of vllm serve itself")
    return _seen(root, version, base, before, after, passed_s)


def _seen(
    root: str, version: str, model: Mapping[str, Any], before: Samples, after: Samples, passed_s: float
) -> SeenServer:
    ended = after.values["vllm:request_success_total"] - before.values["vllm:request_success_total"]

    def mean(*names: str) -> float | None:
        """The mean of the window if a request ended in it, else since the start."""
        for name in names:
            for since in (before, Samples()):
                count = after.values[f"{name}_count"] - since.values[f"{name}_count"]
                if count > 0:
                    return (after.values[f"{name}_sum"] - since.values[f"{name}_sum"]) / count
        return None

    waits = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    flying = sum((samples.values[name] for samples in (before, after) for name in waits), 0.0) / 2
    generated = after.values["vllm:generation_tokens_total"] - before.values["vllm:generation_tokens_total"]
    lengths = [mean(f"vllm:request_{side}_tokens") for side in ("prompt", "generation")]
    latencies = {figure: mean(*(f"vllm:{name}_seconds" for name in names)) for figure, names in _MEANS_S.items()}
    name, path = str(model.get("id", "")), str(model.get("root") or "")  # a path of the server's machine, or a hub id
    return SeenServer(
        url=root,
        version=version,
        model=name if not path or (_HUB_ID.fullmatch(name) and not _HUB_ID.fullmatch(path)) else path,
        max_model_len=model["max_model_len"] if isinstance(model.get("max_model_len"), int) else None,
        cache=after.cache,
        engines=max(len(after.engines), 1),
        in_flight=max(ceil(flying), 1),
        window_s=passed_s,
        input_len=None if lengths[0] is None else max(round(lengths[0]), 1),
        output_len=None if lengths[1] is None else max(round(lengths[1]), 1),
        ended_in_window=round(max(ended, 0)),
        measured={"output_throughput": max(generated, 0) / passed_s}
        | {figure: value * 1000 for figure, value in latencies.items() if value is not None},
    )


def likely_tensor_parallel(seen: SeenServer, model: Model, profile: GpuProfile, version: EngineVersion) -> int:
    """Return the size whose KV cache is nearest to the server's, which does not report it; 1 without a cache size."""
    distance: dict[int, float] = {}
    size, most = 1, max(profile.gpus_per_node // seen.engines, 1)
    while seen.kv_cache_tokens and size <= most:
        try:
            args = EngineArgs(
                tensor_parallel_size=size,
                data_parallel_size=seen.engines,
                max_model_len=seen.max_model_len,
                gpu_memory_utilization=seen.gpu_memory_utilization,
            )
            tokens = Serving.of(model, profile, args, version).fit(ways_out=False).kv_cache_tokens
        except PlannerError:
            tokens = 0
        distance[size] = abs(log(tokens / seen.kv_cache_tokens)) if tokens > 0 else inf
        size *= 2
    return min(distance, key=distance.__getitem__, default=1)


@dataclass
class Samples:
    """Values of metrics, summed over engines and reasons."""

    values: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    engines: set[str] = field(default_factory=set)
    cache: Mapping[str, str] = field(default_factory=dict)


def _samples(text: str) -> Samples:
    samples = Samples()
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if not match or not match["name"].startswith("vllm:") or match["name"].endswith("_bucket"):
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not abs(value) <= MOST_COUNTED:  # nor NaN
            continue
        samples.values[match["name"]] += value
        if match["name"] == "vllm:num_requests_running":
            samples.engines.add(labels.get("engine", "0"))
        if match["name"] == "vllm:cache_config_info":
            samples.cache = labels
    return samples


def _checked(url: str) -> str:
    """The address without a path. Raises InputError for anything but one of http or https."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise InputError(f"--url {url[:200]!r}: {error}", hint="write it as http://HOST:PORT") from error
    odd = any(char.isspace() or not char.isprintable() for char in parts.hostname or " ")  # nor does http.client
    if parts.scheme not in ("http", "https") or odd or not parts.hostname or parts.username is not None:
        raise InputError(
            f"--url {parts.scheme}://{(parts.hostname or '')[:200]} is not the address of a server",
            hint=f"write it as http://HOST:PORT; a key goes into the environment, as {KEY}",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}"


def _json(root: str, path: str) -> Mapping[str, Any]:
    try:
        content = json.loads(_get(root, path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{root}{path} is not JSON", hint=ROOT_HINT) from error
    return content if isinstance(content, Mapping) else {}


def _get(root: str, path: str) -> str:
    """An answer, in a thread of its own: the time limit then holds for a server that sends a byte now and then."""
    answer: Future[str] = Future()

    def ask() -> None:
        try:
            answer.set_result(b"".join(_chunks(root, path)).decode("utf-8", "replace"))
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        cause = f"no answer within {ANSWER_S:g} s"
    except (OSError, HTTPException, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error) or type(error).__name__
    raise InputError(f"{root}{path}: {' '.join(cause.split())[:200]}", hint="is the server up, and its port reachable?")


def _chunks(root: str, path: str) -> Iterator[bytes]:
    """The server's own answer: no proxy is asked, and no redirect is followed."""
    headers = {"Accept-Encoding": "identity"}
    if key := os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {key}"
    scheme, _, host = root.partition("://")
    left = MOST_ANSWER_BYTES
    with closing((HTTPSConnection if scheme == "https" else HTTPConnection)(host, timeout=ANSWER_S)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            wanted = f"set {KEY} to its key" if answer.status in (401, 403) else ROOT_HINT
            raise InputError(f"{root}{path} answers {answer.status}", hint=wanted)
        while chunk := answer.read1(2**16):
            left -= len(chunk)
            if left < 0:
                raise ValueError(f"its answer has more than {MOST_ANSWER_BYTES:,} bytes")
            yield chunk
