"""What may only rise, or only fall, whatever the model, the GPU and the load: relations that need no measurement.

``draw`` makes a case, ``check`` says by which factor it is violated: 1 and less is in order. Where physics allows an
exception the relation says so and leaves such a case out (``None``).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from random import Random
from typing import Any

import numpy as np

from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.hardware.profiles import load_profile
from planner.model.architecture import Model
from planner.model.quantization import as_quantized
from planner.model.resolve import resolve_model
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction
from planner.simulator.client import replay
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests

#: Rounding of whole steps: a batch that ends a step later is no violation.
ROUNDING = 1.01
#: Two precisions, and two sizes, have efficiencies of their own, and each is fitted to within a few per cent. That of
#: FP8 is the factor ``slowdown`` by weights, which makes 25 of 685 dense cases slower by 5 to 13.2 %; those above 10
#: are a 0.5B on MI300X and MI325X. With one factor for all precisions fewer were slower, but the median error of
#: TPOT of pairs of GPU and dense model that were left out rose from 8.8 to 9.4 %, so the factor stays.
FITTED = {"fp8": 1.14, "tensor-parallel": 1.05}
LONGER_TOK = 37
#: Closed loops of shorter answers are judged with so many tokens: their prompts come in packs, whatever is in between.
SHORT_TOK = 16
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct",
    "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-32B", "mistralai/Mixtral-8x7B-Instruct-v0.1", "google/gemma-3-27b-it",
    "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V2-Lite", "mistralai/Mistral-7B-v0.1",
)  # fmt: skip
GPUS = ("mi300x", "mi325x", "mi355x", "h100-sxm", "h200-sxm", "b200-sxm", "a100-sxm-80gb", "l40s", "mi300x-cpx")
VERSIONS = ("0.8.5", "0.11.0", "0.14.0", "0.27.1")


@dataclass(frozen=True)
class Question:
    """A server and a load, before the one change that a relation makes."""

    relation: str
    model: str
    gpu: str
    version: str | None
    input_len: int
    output_len: int
    number: int  #: batch, or requests in flight
    args: tuple[tuple[str, Any], ...] = ()

    def deployment(self, *, weight_dtype: str | None = None, offline: bool = True, **changes: Any) -> Deployment:
        """The engine; raises PlannerError where there is none."""
        profile = load_profile(self.gpu)
        version = parse_version(self.version) if self.version else _default(self.gpu)
        found = as_quantized(_model(self.model), weight_dtype) if weight_dtype else _model(self.model)
        args = EngineArgs(**{**dict(self.args), **changes})
        return resolve_deployment(found, profile, args, version, offline=offline)

    def load(self, **changes: Any) -> Load:
        """The requests."""
        given = {"input_len": self.input_len, "output_len": self.output_len, "num_prompts": self.number, **changes}
        return Load(**given)

    def __str__(self) -> str:
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.args)
        return (
            f"{self.relation}: {self.model} --gpu {self.gpu} --engine-version {self.version or 'default'} "
            f"--input-len {self.input_len} --output-len {self.output_len} N {self.number} {flags}"
        )


@cache
def _model(name: str) -> Model:
    return resolve_model(name, network=False).model


def _default(gpu: str) -> Any:
    from planner.engine.published import default_version

    return default_version(load_profile(gpu))


def draw(random: Random, relation: str | None = None) -> Question:
    """A question about a random server."""
    name = relation or random.choice(list(RELATIONS))
    tp = random.choice((1, 1, 1, 2, 4, 8))
    args: list[tuple[str, Any]] = [("tensor_parallel_size", tp)] if tp > 1 else []
    if random.random() < 0.3:
        args.append(("max_num_batched_tokens", random.choice((512, 1000, 2048, 8192, 16384))))
    if random.random() < 0.3:
        args.append(("max_num_seqs", random.choice((8, 64, 100, 256, 512, 1024))))
    if random.random() < 0.2:
        args.append(("enforce_eager", True))
    if random.random() < 0.2:
        args.append(("kv_cache_dtype", "fp8"))
    return Question(
        name, random.choice(MODELS), random.choice(GPUS), random.choice((None, None, *VERSIONS)),
        random.choice((1, 16, 128, 500, 1024, 2048)), random.choice((1, 2, 16, 64, 128, 256)),
        random.choice((1, 2, 4, 7, 8, 16, 32, 33, 64, 100, 128, 200, 255, 256, 257, 400, 512)), tuple(args),
    )  # fmt: skip


# --- the relations: each gives what is to be the smaller, and what is to be the larger -----------------------------

Pair = tuple[float, float] | None


def _latency_s(deployment: Deployment, load: Load) -> float:
    return float(Prediction.of(deployment, load, bench="latency").figures["avg_latency"])


def _step_s(deployment: Deployment, asked: Question, number: int | None = None) -> float:
    seqs = number or asked.number
    return deployment.timer.step_s(Batch(seqs, seqs * float(asked.input_len + asked.output_len / 2)))


def _gpu_s(deployment: Deployment, asked: Question, *, links: bool = True) -> float:
    """The GPU's time of a decode step, with its collectives or without."""
    seqs = asked.number
    timer: Any = deployment.timer
    step = timer.breakdown(Batch(seqs, seqs * float(asked.input_len + asked.output_len / 2)))
    without = set() if links else {term.name for term in timer.terms if term.path == "link"}
    return float(step.gpu_s) - sum(part.time_s for part in step.parts if part.name in without)


def _serve(deployment: Deployment, load: Load, figure: str) -> float:
    return float(Prediction.of(deployment, load).figures[figure])


def _steady(deployment: Deployment, load: Load) -> float:
    """Requests per second after the burst that opens a closed loop."""
    served = deployment.replay(load)
    opened = load.max_concurrency or 0
    ended = sorted(served.end_s.tolist())
    return (len(ended) - opened) / max(ended[-1] - ended[opened - 1], 1e-9)


def fp8(asked: Question) -> Pair:
    """The GPU never takes longer with FP8 weights than with 16-bit ones, where it multiplies in FP8.

    Without the host's launches: vLLM quantises what a matrix is multiplied with in a kernel of its own (``QuantFP8`` of
    ``model_executor/layers/quantization/input_quant_fp8.py``), and so launches more of them where it captures no graph.
    Of dense models: experts in FP8 were measured to be slower in small batches. Eight H100 with Qwen3-235B-A22B deliver
    388 tokens/s in BF16 and 316 in FP8 with 8 requests in flight, 616 and 578 with 16, 908 and 1,017 with 32 (ML.ENERGY
    leaderboard, vLLM 0.11.1). ``predict`` says so; ``tests/commands/test_cli.py`` holds it to these figures.
    """
    if _model(asked.model).is_moe:
        return None
    if "fp8" not in load_profile(asked.gpu).compute.model_dump(exclude_none=True):
        return None
    if _model(asked.model).quantization.weight_dtype not in ("bf16", "fp16"):
        return None
    wide, narrow = asked.deployment(), asked.deployment(weight_dtype="fp8")
    return _gpu_s(narrow, asked), _gpu_s(wide, asked)


def tensor_parallel(asked: Question) -> Pair:
    """Twice the tensor-parallel size is never slower at an equal batch, but for the collectives.

    Those were measured: an all-reduce of 1 MiB over 2, 4 and 8 L40S takes 60, 361 and 583 us (``hardware/l40s.toml``),
    so four of them can be slower than two. ``predict`` says where they take long.
    """
    size = dict(asked.args).get("tensor_parallel_size", 1)
    if load_profile(asked.gpu).partition or 2 * size > load_profile(asked.gpu).gpus_per_node:
        return None  # between nodes the network may well bind
    one, two = asked.deployment(), asked.deployment(tensor_parallel_size=2 * size)
    return _gpu_s(two, asked, links=False), _gpu_s(one, asked, links=False)


def batch(asked: Question) -> Pair:
    """A larger batch never lowers throughput."""
    more = asked.number + max(asked.number // 32, 1)
    one = asked.deployment(max_num_seqs=1024)
    if one.requests_held(asked.input_len + asked.output_len) < more:
        return None
    timer: Any = one.timer
    kernels = [timer.eager_kernels(Batch(number, float(number * asked.input_len))) for number in (asked.number, more)]
    if kernels[0] != kernels[1]:
        return None  # beyond the captured graphs each kernel is launched by the host
    return asked.number / _step_s(one, asked), more / _step_s(one, asked, more)


def concurrency(asked: Question) -> Pair:
    """Twice the requests in flight never lower throughput, while the cache holds them.

    Answers are not shorter than ``SHORT_TOK``: prompts that all come at once leave the captured graphs together.
    """
    one = asked.deployment(offline=False)
    flying, output_len = min(asked.number, 128), max(asked.output_len, SHORT_TOK)
    if one.requests_held(asked.input_len + output_len) < 2 * flying or one.config.max_num_seqs < 2 * flying:
        return None
    timer: Any = one.timer
    prompts = [
        timer.eager_kernels(Batch(0, 0.0, 1, tok, float(tok), 1)) for tok in (asked.input_len, 2 * asked.input_len)
    ]
    if prompts[0] != prompts[1]:
        return None  # two prompts in one step are beyond the captured graphs
    few, many = (
        asked.load(output_len=output_len, num_prompts=20 * flying, max_concurrency=places)
        for places in (flying, 2 * flying)
    )
    return _steady(one, few), _steady(one, many)


def data_parallel(asked: Question) -> Pair:
    """Two engines side by side never deliver less than one.

    Of dense models: engines of MoE models share their experts, so each step waits for the slower engine. Of even
    numbers: of an odd one a request goes to and fro, as its engine ends before the other, and waits for a step that
    has begun, which one engine in step with its clients never loses: a third of the throughput where an answer has a
    token or two, so answers have ``SHORT_TOK`` at least.
    """
    if _model(asked.model).is_moe:
        return None
    size = dict(asked.args).get("tensor_parallel_size", 1)
    if load_profile(asked.gpu).partition or 2 * size > load_profile(asked.gpu).gpus_per_node:
        return None  # between nodes the network may well bind
    one, two = asked.deployment(offline=False), asked.deployment(offline=False, data_parallel_size=2)
    even = asked.number + asked.number % 2
    load = asked.load(num_prompts=8 * even, max_concurrency=even, output_len=max(asked.output_len, SHORT_TOK))
    return _serve(one, load, "output_throughput"), _serve(two, load, "output_throughput")


def rate(asked: Question) -> Pair:
    """Twice the arrivals never lower the mean time between tokens."""
    if asked.output_len < 2:
        return None
    one = asked.deployment(offline=False)
    base = 0.5 / max(_latency_s(one, asked.load(num_prompts=1)), 1e-6)
    slow, fast = (asked.load(num_prompts=400, request_rate=factor * base) for factor in (1, 2))
    return _serve(one, slow, "mean_tpot_ms"), _serve(one, fast, "mean_tpot_ms")


def eager(asked: Question) -> Pair:
    """Launching kernel by kernel is never faster than replaying a captured graph, while the cache holds all requests.

    Graphs take memory that the cache has without them.
    """
    captured, launched = asked.deployment(enforce_eager=False), asked.deployment(enforce_eager=True)
    if captured.requests_served(asked.input_len + asked.output_len) < asked.number:
        return None
    return _latency_s(captured, asked.load()), _latency_s(launched, asked.load())


def context(asked: Question) -> Pair:
    """A longer context never leaves more room for tokens of the KV cache.

    With windows the requests of full length are compared instead. vLLM logs those times their length since 0.20.1
    (``_report_kv_cache_config`` of ``v1/core/kv_cache_utils.py``), and a window takes no more of a longer request, so
    its tokens do rise: 0.29.0 logs 78,433, 116,025 and 152,592 of them at 32, 64 and 128 Ki in one cache of gemma-4.
    """
    own = _model(asked.model).max_position_embeddings
    short = min(max(asked.input_len * 4, 512), own // 2)
    windows = any(getattr(mixer, "span_tokens", 0) for mixer in _model(asked.model).mixers())
    room = []
    for length in (short, 2 * short):
        budget = asked.deployment(max_model_len=length).budget
        blocks = int(budget.num_blocks.mid)
        by_request = windows and budget.features.kv_tokens == "concurrency"
        room.append(budget.concurrency(blocks) if by_request else float(budget.logged_tokens(blocks)))
    return room[1], room[0]


def utilization(asked: Question) -> Pair:
    """More memory never leaves less room for the KV cache."""
    figures = [asked.deployment(gpu_memory_utilization=share).budget.num_blocks.mid for share in (0.8, 0.9)]
    return float(figures[0]), float(figures[1])


def longer_prompt(asked: Question) -> Pair:
    """A longer prompt is never answered sooner.

    Of as many as fit into a step: steps cut more of them otherwise, and one with a few decodes may be saved.
    """
    return _longer(asked, {"input_len": asked.input_len}, {"input_len": asked.input_len + LONGER_TOK})


def longer_answer(asked: Question) -> Pair:
    """A longer answer never takes less time."""
    return _longer(asked, {"output_len": asked.output_len}, {"output_len": asked.output_len + 5})


def _longer(asked: Question, short: dict[str, int], long: dict[str, int]) -> Pair:
    one = asked.deployment()
    fitting = one.config.max_num_batched_tokens // (asked.input_len + LONGER_TOK)
    number = max(min(asked.number, fitting, 64), 1)
    return _latency_s(one, asked.load(num_prompts=number, **short)), _latency_s(
        one, asked.load(num_prompts=number, **long)
    )


def target(asked: Question) -> Pair:
    """A target that ``recommend`` keeps at a rate is kept by ``predict`` with the plan's flags, at the same end."""
    from planner import recommend_plans
    from planner.planning.serving import redeploy

    limit_ms = float(asked.number * 10)
    found = recommend_plans(
        asked.model, asked.gpu, request_rate=2.0, ttft=limit_ms, input_len=max(asked.input_len, 16),
        output_len=asked.output_len, random_range_ratio=0.5 if asked.number % 2 else 0.0,
    )  # fmt: skip
    plan = found.best
    if plan is None or plan.service is None or plan.service.replicas > 1 or not plan.service.targets[0].met:
        return None
    metric = plan.service.targets[0].metric
    found = Prediction.of(redeploy(plan), plan.workload.sent, percentiles=(95,))  # that of targets by default
    return float(found.figures[metric]) * found.uncertainty.upper(metric, plan.service.confidence), limit_ms


def _conversations(asked: Question, alone_s: float) -> Requests:
    """Conversations side by side, each turn with all of those before it in its prompt."""
    talks, piece_tok = min(asked.number, 60) + 2, max(asked.input_len // 4, 16)
    turns = [turn for turn in range(6) for _ in range(talks)]
    names = [[6 * (place % talks) + n for n in range(turn + 1)] for place, turn in enumerate(turns)]
    sizes = [[piece_tok] * (turn + 1) for turn in turns]
    arrival_s = np.arange(len(turns)) * alone_s * (asked.number % 3)
    prompts, answers = np.array([sum(one) for one in sizes]), np.full(len(turns), asked.output_len)
    return Requests(prompts, answers, arrival_s, Prefixes.of(names, sizes))


def host_memory(asked: Question) -> Pair:
    """More host memory for KV blocks never lets less be found, from four times the longest request on.

    Below, it may: what finds no room on the host is not stored (``prepare_store`` of ``v1/kv_offload`` gives None), so
    a host that holds the first turns alone keeps them, and one that holds a whole request loses all to the next.
    """
    one = asked.deployment(offline=False)
    requests = _conversations(asked, _latency_s(one, asked.load(num_prompts=1)))
    longest = requests.max_total_len
    limits = replace(one.limits(longest), kv_cache_tokens=3 * longest, enable_prefix_caching=True, host_block_s=1e-5)
    few = (0, 4, 8)[asked.number % 3] * -(-longest // limits.block_size)
    load = asked.load(num_prompts=len(requests.input_len))
    found = [
        replay(
            one.timer, replace(load, recorded=requests), replace(limits, host_blocks=blocks), one.client
        ).cached_tok.sum()
        for blocks in (few, 2 * few or longest)
    ]
    return float(found[0]), float(found[1])


RELATIONS: dict[str, Callable[[Question], Pair]] = {
    "fp8": fp8, "tensor-parallel": tensor_parallel, "batch": batch, "concurrency": concurrency,
    "data-parallel": data_parallel, "rate": rate, "eager": eager, "context": context, "utilization": utilization,
    "longer-prompt": longer_prompt, "longer-answer": longer_answer, "target": target,
    "host-memory": host_memory,
}  # fmt: skip


def check(asked: Question) -> float | None:
    """By which factor the relation is violated (1 and less: it holds); None where there is no such pair of servers."""
    try:
        pair = RELATIONS[asked.relation](asked)
    except PlannerError:
        return None
    if pair is None:
        return None
    smaller, larger = pair
    return smaller / larger if larger > 0 else inf if smaller > 0 else 1.0


def judge(asked: Question) -> int:
    """0 where the relation holds, else 1: an exit status that no fault is."""
    found = check(asked)
    if found is not None and found > slack(asked.relation):
        raise AssertionError(f"violated by a factor of {found:.3f}")
    return 0


def slack(relation: str) -> float:
    """The factor up to which a relation counts as kept."""
    return FITTED.get(relation, ROUNDING)
