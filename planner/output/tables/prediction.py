"""``planner predict``: the benchmark's own table and keys, and the operators of a step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from planner import evidence
from planner.engine import without_kernels
from planner.memory import attention_kinds
from planner.model import ResolvedModel
from planner.output.answer import MetricAnswer, fields_of
from planner.output.render import columns_of, rows_of, screen_width, table_text, wrapped
from planner.output.tables import shared
from planner.output.tables.shared import EVIDENCE, calibration_note, from_host, lasting, layout_in_words, sent_words
from planner.planning import Bench, ClassFigures, Deployment, Prediction, cache_remark, steady_per_s
from planner.simulator import Replay, latency_table, serve_table, throughput_table
from planner.timing import StepBreakdown
from planner.units import MS, TB, TFLOP, counted, percent
from planner.workload import Load

TABLES = {"serve": serve_table, "throughput": throughput_table, "latency": latency_table}
OPERATOR_COLUMNS = columns_of(
    "operators",
    tflop_per_s=lambda part: _rate(part.flop / TFLOP, part.time_s),
    tb_per_s=lambda part: _rate(part.bytes / TB, part.time_s),
)
CLASS_COLUMNS = columns_of("prediction_classes")

#: ML.ENERGY leaderboard, lm-arena-chat, Qwen3-235B-A22B-Instruct-2507 on eight H100, TP and EP 8, vLLM 0.11.1:
#: 388 tokens/s in BF16 and 316 in FP8 with 8 requests in flight, 908 and 1,017 with 32.
EXPERTS_IN_FP8 = "FP8 experts quantise their input first, which counts in small batches"
OPERATOR = ("name", "count", "time_s", "flop", "bytes", "bound")
PRECISIONS_ALIKE = 1.01  #: steps that differ by less than this factor take equally long
LINKS_BIND = 0.4  #: share of a decode step from which on it is said that collectives take it


@dataclass(frozen=True, repr=False)
class PredictionAnswer(MetricAnswer):
    """The result of one server under a load, with the keys of ``vllm bench``: ``planner predict``."""

    bench: Bench
    record: Prediction  #: the keys of the bench's result file, and the replay behind them
    deployment: Deployment  #: the engine
    resolved: ResolvedModel
    steps: Mapping[str, StepBreakdown]  #: the average decode step and the average prefill step, operator by operator
    step_16_bits_s: float | None = None  #: of the same decode step with 16-bit weights, where these are FP8 and fit
    nearest: tuple["evidence.Near", ...] = ()  #: published runs like this question, with ``explain``

    @classmethod
    def of(
        cls, bench: Bench, record: Prediction, deployment: Deployment, resolved: ResolvedModel, **shown: Any
    ) -> "PredictionAnswer":
        """The answer, with everything computed that it shows: intervals, and the parts of a step."""
        steps, batch, wide = deployment.typical_steps(record.replay), record.replay.decode.batch, None
        _ = record.result  # cached: intervals may take two more replays
        if batch and deployment.config.weight_dtype == "fp8" and (engine := deployment.in_16_bits()):
            wide = engine.timer.breakdown(batch).total_s
        return cls(bench, record, deployment, resolved, steps, wide, **shown)

    @property
    def result(self) -> dict[str, Any]:
        """The keys of the bench's result file; beside each prediction its 90 % interval, ``KEY_lo`` and ``KEY_hi``."""
        keys = ("engine_version=config.version", *EVIDENCE, "gpu=profile.id", "config.num_gpus")
        paid = fields_of(self.record.paid, "usd_per_hour", "usd_per_million_output_tokens")
        return {**self.record.result, **fields_of(self.deployment, *keys), **self.deployment.config.choice, **paid}

    def _object(self) -> dict[str, Any]:
        classes = [
            {**fields_of(one, "load.name", "load.request_rate", "load.priority", "targets_ms"), **one.result}
            for one in self.record.classes
        ]
        breakdown = {
            name: {
                **fields_of(step, "total_s", "gpu_s", "launch_s", "host_s"),
                "operators": [fields_of(part, *OPERATOR) for part in step.parts],
            }
            for name, step in self.steps.items()
        }
        more = {"classes": classes, "kv_offloading": self._offloading}
        more |= {"nearest_runs": rows_of(self.nearest, shared.NEAREST)}
        known = {name: value for name, value in more.items() if value}
        return {**self.result, **known, "notes": list(self._notes()), "breakdown": breakdown}

    @property
    def _offloading(self) -> dict[str, Any] | None:
        replay, unaided = self.record.replay, self.record.unaided
        if unaided is None:
            return None
        figures = ("mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput", "duration")
        without = fields_of(unaided, "gpu_share=replay.cached_share", *(f"figures.{key}" for key in figures))
        gpu_share = replay.cached_share - replay.host_share
        return {"host_share": replay.host_share, "gpu_share": gpu_share, "without": without}

    def sentences(self) -> Iterator[str]:
        for line in TABLES[self.bench](self.result).splitlines():
            yield line if len(line) <= screen_width() else wrapped(line, rest="  ")
        if self.bench == "throughput":
            yield wrapped(f"Elapsed time: {lasting(self.result, 'elapsed_time')}")
        if self.record.classes:
            yield ""
            yield table_text([row for one in self.record.classes for row in _class_rows(one)], CLASS_COLUMNS)
        if self.explain:
            yield ""
            yield from _basis_lines(self.deployment)
        yield from shared.nearest_lines(self.nearest)
        for name, step in self.steps.items() if self.explain else ():
            yield f"\n{name}: {_ms(step.total_s)} ms ({_ms(step.gpu_s)} ms on the GPU, {_ms(step.host_s)} ms host)"
            yield table_text(step.parts, OPERATOR_COLUMNS)
            besides_s = step.total_s - max(step.gpu_s, step.launch_s)
            hidden = "; asynchronous scheduling hides the rest" if step.host_s - besides_s > 1e-9 else ""
            what = "to launch the kernels one by one" if step.launch_s > step.gpu_s else "of operators"
            words = f"= {_ms(max(step.gpu_s, step.launch_s))} ms {what} + {_ms(besides_s)} ms of host time{hidden}"
            yield wrapped(words, first="  ", rest="  ")
            yield wrapped(_share(name, self.record.replay), first="  ", rest="  ")

    def _notes(self) -> Iterator[str]:
        yield from _notes(self.deployment, self.resolved)
        load = self.record.load
        if load.recorded is None:
            yield f"load: {sent_words(load)}{_queue(self.record)}"
        yield from filter(None, [shared.in_usd(self.record.paid).removeprefix(", "), cache_remark(self.record)])
        if shares := self._offloading:
            without, figures = shares["without"], self.record.figures
            then = (
                f"mean TTFT {without['mean_ttft_ms']:,.0f} ms instead of {figures['mean_ttft_ms']:,.0f}, "
                f"{without['output_throughput']:,.0f} output tokens/s instead of {figures['output_throughput']:,.0f}"
            )
            yield from_host(shares, without["gpu_share"], then)
            yield "KV offloading is not measured: the link is assumed as fast as copies, which widens the interval"
        elif share := self.record.replay.cached_share:
            yield f"{share:.1%} of the prompt tokens come from the prefix cache"
        elif unused := self.deployment.unused_host_remark:
            yield unused
        step, batch = self.steps.get("decode step"), self.record.replay.decode.batch
        if step is None or batch is None:
            return
        kind = self.deployment.profile.interconnect.kind
        over = "the network" if kind == "none" else f"{kind} links"
        said = {"link": f"collectives over {over}", "host link": "weights read from host memory"}
        for bound, what in said.items():
            taken = sum(part.time_s for part in step.parts if part.bound == bound) / step.total_s
            if taken > LINKS_BIND:
                yield f"{what} take {taken:.0%} of a decode step" + ": fewer GPUs may be as fast" * (bound == "link")
        if self.step_16_bits_s and self.step_16_bits_s * PRECISIONS_ALIKE < step.total_s:
            why = f": {EXPERTS_IN_FP8}" if self.deployment.model.is_moe else ""
            yield (
                f"a decode step of {counted(batch.decode_seqs, 'request')} takes {self.step_16_bits_s / MS:.2f} ms "
                f"with 16-bit weights and {step.total_s / MS:.2f} with these{why}"
            )
        if step.launch_s > step.gpu_s and not self.deployment.config.enforce_eager:
            yield f"{batch.decode_seqs:,} requests exceed vLLM's captured graphs: the host launches kernels one by one"


@dataclass(frozen=True, repr=False)
class PredictionRefused(MetricAnswer):
    """The answer where the KV cache does not hold one request of the load: ``planner predict``."""

    verdict_first = True
    ok = False
    keys = ("model_id=resolved.resolved", "gpu=deployment.profile.id", "engine_version=deployment.config.version",
            "calibration=deployment.calibrated_by", "fits=ok", "reason")  # fmt: skip
    deployment: Deployment
    workload: Load
    resolved: ResolvedModel

    @property
    def result(self) -> dict[str, Any]:
        return self._object()

    @property
    def reason(self) -> str:
        config = self.deployment.config
        where = f"{self.resolved.resolved} on {shared.gpus_on_nodes(config.num_gpus, self.deployment.profile)}"
        return f"{where}, vLLM {config.version}: {self.deployment.refusal(self.workload)}"

    def _object(self) -> dict[str, Any]:
        return {**fields_of(self, *self.keys), "kv_cache_bytes": round(self.deployment.budget.binding.available.mid)}

    def sentences(self) -> Iterator[str]:
        yield wrapped(self.reason)

    def _notes(self) -> Iterator[str]:
        yield f"planner fit {self.resolved.resolved} --gpu {self.deployment.profile.id} shows what would make it fit"


def _class_rows(one: ClassFigures) -> Iterator[dict[str, Any]]:
    demand, result = one.load, one.result
    sooner = f", priority {demand.priority}" if demand.priority else ""
    name, figures = f"{demand.name}, {demand.request_rate:,.4g} req/s{sooner}", {}
    for metric in one.targets_ms or ("ttft", "tpot"):
        key = [key for key in result if key.endswith(f"_{metric}_ms")][-1]  # percentiles come last, in their order
        figures[key] = f"{key.split('_')[0].upper()} {metric.upper()} (ms)", one.targets_ms.get(metric)
    figures["request_throughput"] = "requests/s", None
    if one.targets_ms:
        figures["request_goodput"] = "good requests/s", None
    for place, (key, (figure, target)) in enumerate(figures.items()):
        ends = {"lo": result.get(f"{key}_lo"), "hi": result.get(f"{key}_hi")}
        yield {"class": "" if place else name, "figure": figure, "value": result[key], **ends, "target": target}


def _ms(time_s: float) -> str:
    return f"{time_s / MS:.3f}"


def _rate(amount: float, time_s: float) -> float | None:
    return amount / time_s if time_s and amount else None


def _basis_lines(deployment: Deployment) -> Iterator[str]:
    model, profile, config = deployment.model, deployment.profile, deployment.config
    tokens = f"{f'{model.active_params:,} of ' if model.is_moe else ''}{model.total_params:,} parameters"
    ranks = f"; each of {config.num_gpus} GPUs has its part" if config.num_gpus > 1 else ""
    yield wrapped(
        f"{model.id}: {model.num_layers} layers, hidden size {model.hidden_size:,}, vocabulary {model.vocab_size:,}, "
        f"attention {attention_kinds(model)}; a token passes through {tokens}{ranks}"
    )
    peaks = ", ".join(
        f"{profile.peak_flop_per_s(dtype) / TFLOP:,.0f} TFLOP/s {dtype}"
        for dtype in ("bf16", "fp8", "fp4")
        if profile.supports(dtype)
    )
    yield f"{profile.id} at its peak: {profile.memory_bandwidth_bytes_per_s / TB:.2f} TB/s, {peaks}"


def _share(name: str, served: Replay) -> str:
    done: Any = getattr(served, name.removesuffix(" step"))
    batch = done.batch
    work = [f"{batch.prefill_tok:,} prompt tokens"] if batch.prefill_tok else []
    if batch.decode_seqs:
        context_tok = batch.decode_context_tok / batch.decode_seqs
        work.append(f"{counted(batch.decode_seqs, 'decoding sequence')}, {context_tok:,.0f} tokens of context each")
    return f"mean of {counted(done.steps, 'step')}, {done.time_s:,.3f} s in all: {' and '.join(work)}"


def _queue(record: Prediction) -> str:
    """Clause on requests that are not replayed, or on the queue that the load makes; empty where none grows."""
    load, served = record.load, len(record.replay.sent_s)
    if record.bench == "throughput" and served < load.num_prompts:
        return f"; the first {served:,} are replayed, and the others end as evenly as these"
    if record.bench == "serve" and load.value == inf:
        return ", so TTFT includes the queue: --max-concurrency or --request-rate limits it"
    most = steady_per_s(record.deployment, load) if load.open else inf
    return f", but it serves {most:,.1f}: waits grow with the number of requests" if load.value > most else ""


def _notes(deployment: Deployment, resolved: ResolvedModel) -> Iterator[str]:
    config = deployment.config
    if refusal := next((one.message for one in deployment.conditions if one.margin.mid < 0), ""):
        likely = f"starts with {percent(deployment.probability_fits)} probability"
        odds = "does not start" if deployment.verdict == "does not fit" else likely
        yield f"vLLM {odds}: {refusal}; the figures assume that it does; planner fit shows ways out"
    gpus = shared.gpus_on_nodes(config.num_gpus, deployment.profile)
    server = f"{resolved.resolved} on {gpus}, {layout_in_words(config)}"
    yield "; ".join([server, f"vLLM {config.version}", *calibration_note([deployment])])
    if computed := deployment.profile.emulated.get(config.weight_dtype):
        name = deployment.profile.name
        yield f"{name} does not multiply in {config.weight_dtype}: weights are unpacked to {computed}"
    yield from filter(None, (deployment.network_remark, deployment.media_remark, deployment.kernels_remark(config.env)))
    yield from map(str, without_kernels(deployment.profile, config.version))
    if config.decode_context_parallel_size > 1:
        yield f"DCP={config.decode_context_parallel_size} is not calibrated; intervals are those without DCP"
    if drafts := config.speculative_config:
        yield f"with {drafts.words}, accepting {drafts.accepted_words}"
    yield from resolved.notes
    if config.defaults_taken:
        yield f"defaults taken: {'; '.join(config.defaults_taken)}"
