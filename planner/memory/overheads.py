"""The part of vLLM's memory that no formula gives: constants fitted to start-up logs, each with its interval.

The constants that we ship live in ``hardware/calibration/memory.toml``, with the logs that they rest on. Those of a
user's own GPUs are computed from the user's logs (``planner.memory.startup_log``) and take precedence over ours.
An interval should hold nine logs in ten. Intervals of independent parts add in quadrature.

What the profile run needs at its peak: one forward pass of the whole token budget, then the sampler.

vLLM runs the model once with ``max_num_batched_tokens`` dummy tokens before it has a KV cache, then computes
logits for as many rows as requests run at once and samples; models with vision encode a full budget
of images before. The largest of these peaks is taken from the cache::

    sampler  = copies x rows x vocabulary x 4 bytes + hidden states     logits are gathered: TP does not shrink them
    forward  = tokens x 2 bytes x (residuals x hidden + widest part of a layer on the rank)
    encoder  = patches of a full budget of images x 2 bytes x (residuals x hidden + two wide vectors)

The widest part is the MLP (gate, up and their product), attention (q, k, v and its output) or the buffers of the
routed experts: ``top_k`` rows of max(2 x intermediate, hidden) and of intermediate for every token. How many
copies of the logits live at once depends on the sampler and is fitted (``hardware/calibration/memory.toml``), and so
is the ratio of measured peaks to these formulas.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import hypot, isfinite, log2
from typing import Any

from planner.engine import EngineConfig, Layout, held_heads, held_piece
from planner.errors import InputError
from planner.model import Component, LatentAttention, Layer, Model, PerModel, Shard, Weight
from planner.resources import data_dir
from planner.units import to_base

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Interval:
    """A best estimate between a low and a high one; bytes unless said otherwise."""

    mid: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value, value, value)

    def scaled(self, factor: float) -> Interval:
        """All three multiplied by ``factor``, which is not negative."""
        return Interval(self.mid * factor, self.low * factor, self.high * factor)

    def larger(self, other: Interval) -> Interval:
        return Interval(max(self.mid, other.mid), max(self.low, other.low), max(self.high, other.high))

    def smaller(self, other: Interval) -> Interval:
        return Interval(min(self.mid, other.mid), min(self.low, other.low), min(self.high, other.high))

    def plus(self, other: Interval) -> Interval:
        """The sum of two parts that err together."""
        return Interval(self.mid + other.mid, self.low + other.low, self.high + other.high)


def total(parts: Iterable[Interval]) -> Interval:
    """Sum of independent parts: errors add in quadrature."""
    parts = tuple(parts)
    mid = sum(part.mid for part in parts)
    below = hypot(*(part.mid - part.low for part in parts))
    above = hypot(*(part.high - part.mid for part in parts))
    return Interval(mid, mid - below, mid + above)


# --- constants --------------------------------------------------------------------------------------------------------

_ALWAYS, _NEVER = (0,), (10**6,)


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One fitted constant: where it applies, what it is, which logs it rests on."""

    name: str
    interval: Interval  #: in the unit used inside
    logs: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)  #: vendor, gpu, tensor_parallel_size, ...
    since: tuple[int, ...] = _ALWAYS  #: first release that it holds for
    until: tuple[int, ...] = _NEVER  #: first release that it no longer holds for
    note: str = ""
    origin: str = SHIPPED  #: the file it was read from, where that is not ours

    def holds(self, release: tuple[int, ...], where: Mapping[str, Any]) -> bool:
        """True if the constant applies to this release and to everything in ``where`` that it names."""
        return self.since <= release < self.until and all(where.get(key) == value for key, value in self.where.items())


@dataclass(frozen=True)
class Overheads:
    """The constants that apply to one engine on one GPU."""

    constants: Constants
    release: tuple[int, ...]
    where: Mapping[str, Any]

    def find(self, name: str) -> FittedConstant | None:
        """The first constant ``name`` that holds; None when there is none."""
        return next((f for f in self.constants.by_name.get(name, ()) if f.holds(self.release, self.where)), None)

    def __getitem__(self, name: str) -> Interval:
        """The constant itself, in the unit used inside. KeyError when there is none."""
        found = self.find(name)
        if found is None:
            raise KeyError(f"no {name} for vLLM {'.'.join(map(str, self.release))} and {dict(self.where)}")
        return found.interval

    @property
    def non_torch_bytes(self) -> Interval:
        """Communicators, code of kernels, workspaces; straight in log2(TP) between known sizes."""
        ranks: int = self.where["tensor_parallel_size"]
        known: dict[int, Interval] = {}
        for fit in self.constants.by_name["non_torch"]:
            size = int(fit.where.get("tensor_parallel_size", ranks))
            if size not in known and fit.holds(self.release, {**self.where, "tensor_parallel_size": size}):
                known[size] = fit.interval
        below = max(size for size in known if size <= ranks)
        above = min((size for size in known if size >= ranks), default=below)
        share = 0.0 if below == above else log2(ranks / below) / log2(above / below)
        return known[below].scaled(1 - share).plus(known[above].scaled(share))

    @property
    def own(self) -> tuple[FittedConstant, ...]:
        """Constants that hold here and come from the user's logs."""
        names = self.constants.by_name
        return tuple(f for name in names if (f := self.find(name)) is not None and f.origin != SHIPPED)


@dataclass(frozen=True)
class Constants:
    """Constants by precedence: the first of a name that holds is the one that applies."""

    fits: tuple[FittedConstant, ...]

    @cached_property
    def by_name(self) -> dict[str, tuple[FittedConstant, ...]]:
        """The constants of each name, in order."""
        names = dict.fromkeys(fit.name for fit in self.fits)
        return {name: tuple(fit for fit in self.fits if fit.name == name) for name in names}

    def before(self, others: Constants) -> Constants:
        """These, and ``others`` where none of these holds."""
        return Constants(self.fits + others.fits)


@cache
def shipped() -> Constants:
    """The constants of our own ``memory.toml``."""
    entries = {name: entry for name, entry in _shipped_table().items() if name != "spread"}
    return Constants(parse_constants(entries, "memory.toml", origin=SHIPPED, hint="install planner again"))


def spread() -> dict[str, float]:
    """Relative spread of each constant over models on one GPU."""
    return dict(_shipped_table()["spread"])


@cache
def _shipped_table() -> dict[str, Any]:
    return tomllib.loads((data_dir("hardware") / "calibration" / "memory.toml").read_text("utf-8"))


def parse_constants(table: Mapping[str, Any], where: str, *, hint: str, origin: str = "") -> tuple[FittedConstant, ...]:
    """The constants of a table in the format of ``memory.toml``, read from ``where``; InputError for any other."""
    found = []
    for name, entries in table.items():
        try:
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise TypeError(f"it is no list of tables, [[{name}]]")
            found += [_read(name, entry, origin or where) for entry in entries]
        except KeyError as error:
            raise InputError(
                f"{where} holds no memory constants: {name}: {error} is missing, or not known", hint=hint
            ) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{where} holds no memory constants: {name}: {str(error)[:200]}", hint=hint) from error
    return tuple(found)


def _read(name: str, entry: Mapping[str, Any], origin: str) -> FittedConstant:
    mid, low, high = (to_base(entry[key], entry["unit"]) for key in ("value", "low", "high"))
    if not low <= mid <= high or not isfinite(high - low):
        raise ValueError(f"{low} <= {mid} <= {high} does not hold")
    logs, where, note = entry["logs"], entry.get("where", {}), entry.get("note", "")
    if not all(isinstance(text, str) for text in (note, *logs)) or not isinstance(where, dict):
        raise TypeError("logs and note are texts, where is a table")
    if not all(isinstance(value, str | int | float) for value in where.values()):
        raise TypeError("where has values that are no texts or numbers")
    size = where.get("tensor_parallel_size", 1)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"tensor_parallel_size {size!r} must be a number of GPUs")
    return FittedConstant(
        name=name,
        interval=Interval(mid, low, high),
        logs=tuple(logs),
        where=where,
        since=_release(entry.get("since"), _ALWAYS),
        until=_release(entry.get("until"), _NEVER),
        note=note,
        origin=origin,
    )


def _release(text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text and not isinstance(text, str):
        raise TypeError(f"{text!r} is no release, such as '0.11.0'")
    return tuple(int(part) for part in text.split(".")) if text else default


# --- the peak of the profile run --------------------------------------------------------------------------------------


LOGIT_BYTES = 4  #: logits are turned into 32-bit numbers before sampling
#: Hidden vectors of a token alive at the widest point: residual, normed input, output and its reduced copy.
RESIDUALS = 4
#: Patches that are merged into one token, and tokens of the largest image, by model type: from the defaults of the
#: image processors. Gemma 3: 64 x 64 patches in 256 tokens; Mistral 3: 110 x 110 patches, merged by 2 x 2; Llama 4: 16
#: tiles and a whole of 144 tokens; others: ``max_pixels`` of Qwen-VL, 12,845,056 / 28**2.
IMAGES = {"": (4, 16384), "gemma3": (16, 256), "mistral3": (4, 3025), "llama4": (4, 2448)}


@dataclass(frozen=True, slots=True)
class PeakTerms:
    """The terms of the peak of a profile run, by formula, before the fitted constants, bytes."""

    logits_bytes: int  #: one copy
    hidden_bytes: int  #: alive while the logits are sampled
    forward_bytes: int
    encoder_bytes: int


def peak_terms(model: Model, config: EngineConfig, element_bytes: int) -> PeakTerms:
    """The terms for a profile run of ``max_num_batched_tokens`` tokens of ``element_bytes`` bytes an element."""
    num_tokens = config.max_num_batched_tokens
    return PeakTerms(
        config.sampled_rows * model.vocab_size * LOGIT_BYTES,
        hidden_bytes(model, num_tokens, element_bytes),
        forward_bytes(model, Layout.of(config), num_tokens, element_bytes),
        encoder_bytes(model, num_tokens, element_bytes),
    )


def hidden_bytes(model: Model, num_tokens: int, element_bytes: int) -> int:
    """One hidden vector for each of ``num_tokens``."""
    return num_tokens * model.hidden_size * element_bytes


def forward_bytes(model: Model, layout: Layout, num_tokens: int, element_bytes: int) -> int:
    """Peak of a forward pass over ``num_tokens`` on one rank, weights not counted."""
    return num_tokens * element_bytes * (RESIDUALS * model.hidden_size + _widest(model, layout))


@PerModel
def _widest(model: Model, layout: Layout) -> int:
    """Elements per token of the widest part of any layer on one rank."""
    return max((_layer_width(layer, layout) for layer in dict.fromkeys(model.layers)), default=0)


def encoder_bytes(model: Model, num_tokens: int, element_bytes: int) -> int:
    """Peak of the vision encoder over a full budget of images; 0 without one.

    Rough: sizes of images are not in a model's config. A budget holds at least one image of the largest size.
    """
    repeated = [w.shape for w in model.vision if w.copies > 1 and len(w.shape) == 2]
    if not repeated:
        return 0
    hidden, wide = min(map(min, repeated)), max(map(max, repeated))
    per_token, largest = IMAGES.get(model.model_type, IMAGES[""])
    patches = per_token * max(num_tokens, largest)
    return patches * element_bytes * (RESIDUALS * hidden + 2 * wide)


def _layer_width(layer: Layer, layout: Layout) -> int:
    parts = {component: [w for w in layer.weights if w.component is component] for component in _PARTS}
    widths = [_flow(weights, layout) for component, weights in parts.items() if component in _DENSE]
    widths.append(_expert_width(layer, layout) + _flow(parts[Component.SHARED_EXPERT], layout))
    if isinstance(layer.mixer, LatentAttention):
        mixer = layer.mixer
        per_head = 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) + 2 * mixer.v_head_dim
        widths.append(held_heads(mixer.num_heads, layout.tensor_parallel_size) * per_head)
    return max(widths)


def _flow(weights: Iterable[Weight], layout: Layout) -> int:
    """Elements per token that go through these matrices on one rank: outputs, and the inputs of row-cut ones."""
    pieces = ((w, held_piece(w, layout)) for w in weights if w.linear and len(w.shape) == 2)
    return sum(piece.inputs if w.shard is Shard.ROW else piece.outputs for w, piece in pieces)


def _expert_width(layer: Layer, layout: Layout) -> int:
    """Elements per token of the buffers around the routed experts."""
    experts = [w for w in layer.weights if w.component is Component.ROUTED_EXPERT and len(w.shape) == 2]
    if layer.moe is None or not experts:
        return 0
    shapes = [held_piece(w, layout).shape for w in experts]
    inner = layer.moe.intermediate_size
    if not layout.enable_expert_parallel:
        inner = -(-inner // layout.expert_ranks)
    outer = max(max(shape) for shape in shapes)
    return layer.moe.top_k * (max(2 * inner, outer) + inner)


_DENSE = (Component.ATTENTION, Component.STATE, Component.MLP)
_PARTS = (*_DENSE, Component.SHARED_EXPERT)
