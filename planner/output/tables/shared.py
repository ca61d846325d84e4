"""Words that several answers share: launch commands, loads, intervals, prices, and the fits behind a prediction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import Any

from planner import evidence, planning, workload  # loaded where they are used: ``fit`` needs no numpy
from planner.engine import LOOPBACK, head_node_words, parse_version, tagged
from planner.hardware import GpuProfile
from planner.model import ResolvedModel
from planner.output.answer import fields_of
from planner.output.render import SPACE, Quote, at, columns_of, command_lines, table_text, wrapped
from planner.output.scripts.text import with_option
from planner.units import HOUR_S, MS, Interval, counted, figure


def local_argv(plan: "planning.Plan") -> list[str]:
    """The plan's command for the machine itself; of several nodes for the first."""
    words = with_option(plan.serve_argv, "--host", LOOPBACK)  # only in a container does it listen on all addresses
    return [*words, *head_node_words(plan, plan.nodes, parse_version(plan.engine_version))]


def launch_lines(env: Mapping[str, str], words: Sequence[str], *quote: Quote) -> Iterator[str]:
    """The command of a server; over several nodes with the meaning of HEAD."""
    if "HEAD" in words:
        yield from items("i", ["over several nodes: this is the command of the first, whose address is HEAD"])
    yield from command_lines(env, words, *quote)


def recommend_words(model: str, profile: GpuProfile, prices: Mapping[str, float]) -> list[str]:
    """The first words of a suggested ``planner recommend``: the model, the GPU and its given price."""
    usd_per_h = [f"{gpu}={prices[gpu]:g}" for gpu in dict.fromkeys((profile.id, profile.whole)) if gpu in prices]
    return ["planner", "recommend", model, "--gpu", profile.id, *(w for one in usd_per_h for w in ("--price", one))]


MORE = "see --explain for details"
COARSELY = f"name up to {planning.defaults.FEW_GPUS} with --gpu to search each finely"
EVIDENCE = ("calibration=calibrated_by", "efficiency_basis=evidence.basis",  # of a ``Deployment``, in JSON
            "evidence=evidence.kind", "evidence_runs=evidence.runs")  # fmt: skip
LISTED = 3  #: GPUs of one group in a note
NEAREST = columns_of("nearest_runs", ratio=lambda one: one[3].predicted / one[3].measured)
NOTES = 5  #: of the best answer on one screen: a warning, a reason or a document's advice


def engine_note(versions: Iterable[str]) -> Iterator[str]:
    """The versions of vLLM, in one line; nothing without a plan."""
    if known := list(dict.fromkeys(versions)):
        yield f"vLLM {', '.join(known)}"


def in_usd(paid: "planning.Plan | planning.Service | planning.Paid") -> str:
    """A clause on USD per hour and per 1M output tokens, after a comma; empty without a price."""
    per_hour, per_million = paid.usd_per_hour, paid.usd_per_million_output_tokens
    hourly = f", {per_hour:,.2f} USD/h" if per_hour is not None else ""
    busy = ""
    if paid.packages and paid.packages % 1:
        hourly += f" for {counted(ceil(paid.packages), 'whole GPU')}" if hourly else ""
        busy = " with all partitions busy"
    return hourly + (f", {per_million:,.2f} USD per 1M output tokens{busy}" if per_million else "")


def card(gpu: str) -> str:
    """A profile's id as people write the name: ``H200``, ``MI300X-CPX``."""
    return gpu.removesuffix("-sxm").upper()


def seconds(duration_ms: float) -> str:
    """A latency in seconds: ``0.26 s``, ``12 s``."""
    return f"{figure(duration_ms * MS)}{SPACE}s"


def milliseconds(duration_ms: float) -> str:
    """A latency in milliseconds, with two digits: ``28 ms``."""
    return f"{figure(duration_ms)}{SPACE}ms"


def figure_between(value: float, low: float | None, high: float | None, unit: str = "") -> str:
    """A figure in a sentence, with its 90 % interval where there is one: ``1.7 requests/s (1.2 to 2.4)``."""
    named = f"{figure(value)}{SPACE}{unit}" if unit else figure(value)
    if low is None or high is None or low == high:
        return named
    return f"{named} ({figure(low)} to {figure(high)})" if low else f"{named} (up to {figure(high)})"


def lasting(figures: Mapping[str, float], key: str) -> str:
    """The duration ``key`` with its interval, in hours from one on: ``15 h (11 to 22)``, ``2.4 min (1.7 to 3.3)``."""
    size_s, unit = (HOUR_S, "h") if figures[key] >= HOUR_S else (60, "min") if figures[key] >= 60 else (1, "s")
    value, low, high = (figures[f"{key}{end}"] / size_s for end in ("", "_lo", "_hi"))
    return figure_between(value, low, high, unit)


def size_in_words(size: int, planned: int, what: str = "GPU") -> str:
    """GPUs or servers of another size; a number over four times ``planned`` is too uncertain to rent by."""
    most = planning.defaults.MOST_TIMES * planned
    return counted(size, what) if size <= most else f"over {counted(most, what)}"


def load_takes(sizes: Sequence[tuple[float, int | None]], planned: int) -> str:
    """Return the GPUs that a load takes at each confidence, and the confidences that no number of servers gives."""
    enough = [f"{size_in_words(gpus, planned)} at {confidence:.0%}" for confidence, gpus in sizes if gpus]
    never = [f"{confidence:.0%}" for confidence, gpus in sizes if not gpus]
    words = [f"with such servers the load takes {', '.join(enough)} confidence"] if enough else []
    return "; ".join([*words, f"no number of such servers is enough at {' or '.join(never)}"] if never else words)


def router_words(plain: "planning.PlannedRouter | None", planned: int) -> str:
    """Return a clause: a plainer router would do for the ``planned`` servers, or so many are needed behind it."""
    if plain is None:
        return ""
    name = f"a {plain.router} router{' (a Kubernetes Service)' * (plain.router == 'random')}"
    if plain.servers == planned:
        return f"{name} would do"
    missed = " and ".join(f"{one.slo} (up to {figure(one.expected_ms)} ms)" for one in plain.targets if not one.met)
    such = size_in_words(plain.servers, planned, "such server") if plain.servers else ""
    takes = f"it takes {such}" if such else "no number of such servers is enough"
    few = f"{planned} miss{'es' * (planned == 1)} {missed}" if missed else f"{planned} cannot carry the load"
    return f"behind {name} {takes}: {few}"


def asked_load(value: float, unit: str = "requests/s") -> str:
    """A load as it was asked for: ``1 request/s``, ``4.125 requests/s``; that of a trace is rounded."""
    digits = 6 if value == round(value, 3) else 3
    return f"{value:,.{digits}g}{SPACE}{unit.replace('requests', 'request') if value == 1 else unit}"


def sent_words(load: "workload.Load") -> str:
    """Return the requests of a load, such as ``1,000 requests of 1,024 + 128 tokens, all at once``."""
    words = [f"{counted(load.num_prompts, 'request')} of {load.input_len:,} + {load.output_len:,} tokens"]
    words += [f"varied by {load.range_ratio:.0%}"] if load.range_ratio else []
    words += [f"after {load.prefix_len:,} shared tokens"] if load.prefix_len else []
    words += [f"{load.request_rate:g} per second"] if isfinite(load.request_rate) else []
    if load.num_prompts > 1 and (load.max_concurrency or not isfinite(load.request_rate)):
        words.append(f"{load.max_concurrency or 'all'} at once")
    return ", ".join(words)


def of_tokens(sent: "workload.Load | planning.PlannedWorkload") -> str:
    """Mean lengths of a request: `` of 1,024 + 256 tokens``."""
    return f" of {sent.prefix_len + sent.input_len:,} + {sent.output_len:,} tokens"


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The second words by the first, each once, in their order."""
    by_first: dict[str, dict[str, None]] = {}
    for first, second in pairs:
        by_first.setdefault(first, {})[second] = None
    return {first: list(seconds) for first, seconds in by_first.items()}


def engine_remarks(engine: "planning.Deployment") -> Iterable[str]:
    """Caveats of a server over several nodes, of images, and of KV blocks in host memory."""
    return filter(None, (engine.network_remark, engine.media_remark, engine.unused_host_remark))


def listed(words: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def items(mark: str, texts: Iterable[str]) -> Iterator[str]:
    """Lines that begin with a mark: ``-`` a reason, ``!`` a warning, ``x`` what lost or is refused, ``i`` a fact."""
    for text in texts:
        yield wrapped(text, first=f"  {mark} ", rest="    ")


def with_interval(interval: Interval | None, form: str) -> str | None:
    """A figure with its 90 % interval, such as ``12.30 (10.00-15.20)``; None without a figure."""
    ends = f" ({interval.low:{form}}-{interval.high:{form}})" if interval and interval.low < interval.high else ""
    return f"{interval.mid:{form}}{ends}" if interval else None


def calibration_note(used: Iterable["tuple[str, str, str] | planning.Deployment"]) -> Iterator[str]:
    """The fits behind the predictions and their evidence, in two lines; by GPU where they differ."""
    rows = [e if isinstance(e, tuple) else (e.profile.id, e.calibrated_by, e.evidence.note) for e in used]
    yield from _by_gpu("calibration:", ((origin, gpu) for gpu, origin, _ in rows))
    notes = dict.fromkeys(note for *_, note in rows if note)
    kinds = ((note.partition(":")[0], gpu) for gpu, _, note in rows if note)
    yield from notes if len(notes) == 1 else _by_gpu("speeds:", kinds)


def nearest_lines(nearest: "Sequence[evidence.Near]") -> Iterator[str]:
    """The nearest published runs in words, then their figures beside predictions; nothing without a run."""
    if not nearest:
        return
    yield "\nnearest published runs, by GPU and model, precision, layout, then load (the fit saw these runs):"
    for place, case in {place: case for place, case, *_ in nearest}.items():
        run, config = case.run, case.deployment.config
        where = f"{run.model}, {config.weight_dtype} on {config.num_gpus} x {run.gpu}, {layout_in_words(config)}"
        sent = f"vLLM {config.version}, {run.bench}, {sent_words(case.workload)}"
        yield from items(str(place), [f"{where}, {sent} ({run.source})"])
    yield f"\n{table_text(nearest, NEAREST)}"


def _by_gpu(what: str, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    gpus = grouped(pairs)
    words = [f"{one} ({listed(of, LISTED)})" if len(gpus) > 1 else one for one, of in gpus.items()]
    if words:
        yield f"{what} {', '.join(words)}"


def price_rows(profiles: Iterable[GpuProfile], prices: Mapping[str, float]) -> list[dict[str, Any]]:
    """The price of each GPU in USD per (logical) GPU and hour, and where it comes from."""
    rows = []
    for profile in profiles:
        price = planning.price_of(profile, prices)
        figures = planning.interval_figures("usd_per_gpu_hour", price.usd_per_h if price else None)
        rows.append({"gpu": profile.id, **figures, "origin": price.origin if price else None})
    return rows


def price_caveats(
    profiles: Iterable[GpuProfile], prices: Mapping[str, float], assumed_usd: float = 0.0
) -> Iterator[str]:
    """GPUs without a price, counted at ``assumed_usd`` where cost decides, and those whose price is no rent."""
    rows = price_rows(profiles, prices)
    if unpriced := [row["gpu"] for row in rows if not row["origin"]]:
        assumed = f"counted at {assumed_usd:,.2f} USD/h each, the mean of the others"
        words = "ranked by the number of GPUs" if len(unpriced) == len(rows) else assumed
        place = f": {words}" if assumed_usd and len(rows) > 1 else ""
        yield f"no price is known for {listed(unpriced, 3)}{place}; give one with --price {unpriced[0]}=USD"
    if owned := [row["gpu"] for row in rows if str(row["origin"]).endswith("owned")]:
        cost = "the cost of a card of your own over three years, not a rent"
        yield f"USD of {listed(owned, 3)}: {cost}; give yours with --price {owned[0]}=USD"


def price_notes(profiles: Sequence[GpuProfile], prices: Mapping[str, float]) -> Iterator[str]:
    rows = [row for row in price_rows(profiles, prices) if row["origin"] not in (None, "--price")]
    if dated := [f"{row['gpu']} {row['usd_per_gpu_hour']:.2f} ({row['origin']})" for row in rows]:
        yield f"USD per GPU and hour, on demand: {', '.join(dated)}; give your own with --price GPU=USD"
    if unknown := dict.fromkeys(profile.whole for profile in profiles if planning.price_of(profile, prices) is None):
        yield f"no price is known for {', '.join(unknown)}: give one with --price GPU=USD"


def served_words(checkpoint: str, asked: ResolvedModel) -> str:
    """Return the checkpoint, with the precision of the model that was asked for where that is another one."""
    dtype = asked.model.quantization.weight_dtype
    return checkpoint if checkpoint == asked.resolved else f"{checkpoint} (asked: {dtype})"


def gpus_in_words(plan: Any) -> str:
    """The GPUs of one server: ``8 x mi300x``."""
    return f"{plan.num_gpus} x {plan.gpu}"


def gpus_on_nodes(num_gpus: int, profile: GpuProfile) -> str:
    """GPUs with the nodes that they fill: ``16 x h100-sxm over 2 nodes``."""
    nodes = ceil(num_gpus / profile.gpus_per_node)
    return f"{num_gpus} x {profile.id}" + f" over {nodes} nodes" * (nodes > 1)


def layout_in_words(settings: Any) -> str:
    """The parallel axes of one server, such as ``TP 4 + EP``, of a plan or of an engine's settings."""
    sizes = {"TP": settings.tensor_parallel_size, "PP": settings.pipeline_parallel_size}
    sizes |= {"DP": settings.data_parallel_size, "DCP": getattr(settings, "decode_context_parallel_size", 1)}
    words = [f"{name} {size}" for name, size in sizes.items() if (size or 1) > 1]
    layout = " + ".join([*words, *["EP"] * bool(settings.enable_expert_parallel)]) or "TP 1"
    drafts, nodes = getattr(settings, "speculative_config", None), getattr(settings, "nodes", 1)
    return f"{layout}{f', {drafts.words}' if drafts else ''}{f' over {nodes} nodes' if nodes > 1 else ''}"


def batch_in_words(settings: Any) -> str:
    """The largest batch and the token budget, such as ``256 requests, 8,192 tokens``."""
    batch, tokens = (getattr(settings, name) for name in tagged("batch"))
    return f"{counted(batch, 'request')}, {tokens:,} tokens"


def from_host(shares: Any, without_gpu_share: float, then: str) -> str:
    """The gain by KV blocks in host memory; ``then``: what is so without them."""
    host, gpu = at(shares, "host_share"), at(shares, "gpu_share")
    return (
        f"{host:.1%} of the prompt tokens are loaded from host memory, {gpu:.1%} are found "
        f"on the GPU; this layout without --kv-offloading-size: {without_gpu_share:.1%} on the GPU, {then}"
    )


def measure_next(script: str, run: Any, effect: str) -> str:
    """The measurement that would narrow the interval most, and its likely effect on the plan."""
    sent, whole = run.workload, max(round(run.duration_s / 60), 1)
    load = f"concurrency {sent.max_concurrency:,}" if sent.max_concurrency else f"{sent.request_rate:,.3g} requests/s"
    return f"running {script} at {load} (about {whole:,} min) would probably {effect}"


def load_in_words(flying: float, sessions: float | None, tok_per_day: float) -> str:
    users = f"{figure(sessions)} sessions at once, " if sessions else ""
    words = f"{figure(flying)} concurrent requests, {figure(tok_per_day / 1e6)} million output tokens per day"
    return f"in all {users}{words}"


def margin_words(headroom: float, spares: int) -> str:
    """Headroom and spares in words: ``with 20 % headroom and one spare``."""
    spare = "one spare" if spares == 1 else f"{spares} spares"
    words = [f"{headroom * 100:g} % headroom"] * bool(headroom) + [spare] * bool(spares)
    return f"with {' and '.join(words)}"


def margin_lines(headroom: float, spares: int, gpus: int, with_margin: int | None) -> Iterator[str]:
    """The GPUs with the headroom and spares asked for; without any, those that the usual margin takes."""
    if headroom or spares:
        yield f"{margin_words(headroom, spares)}: {counted(gpus)}"
    elif with_margin:
        yield f"{margin_words(*planning.defaults.MARGIN)} it would take {counted(with_margin)}"


def limits_of(slos: "Iterable[workload.Slo]") -> list[dict[str, Any]]:
    """Targets as JSON has them; ``class`` where a target is of one class."""
    return [{"metric": slo.key, "limit_ms": slo.limit_ms} | ({"class": slo.group} if slo.group else {}) for slo in slos]


def doubts_of(doubts: "Iterable[planning.Doubt]") -> list[dict[str, Any]]:
    """Figures of a suspicious size as JSON has them."""
    return [fields_of(doubt, "kind", "gpu", "said", "change") for doubt in doubts]
