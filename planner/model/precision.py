"""Precisions: the bytes of a weight in each, and rules that give each weight of a model its own::

    bytes  = out x in x bits / 8  +  scales x scale_bytes (+ zero points, + one index per input feature)
    scales = one per tensor, per output channel, per group along the input, or per block

Sources: checkpoints' own ``quantization_config``, and the OCP microscaling (MX) and NVFP4 formats."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod

from planner.resources import package_dir, tables_of


@dataclass(frozen=True, slots=True)
class Precision:
    """Storage and arithmetic of one weight."""

    name: str  #: as in ``weight_dtype``: bf16, fp8, mxfp4, nvfp4, int4-awq, ...
    bits: int  #: stored bits per value
    compute_dtype: str  #: what the matrix unit multiplies in: ``fp8`` for W8A8, ``bf16`` for weight-only forms
    scale_bytes: int = 0  #: of one scale
    group: tuple[int, int] | None = None  #: (rows, columns) that share a scale; 0 means the whole extent
    zero_bits: int = 0  #: of one packed zero point per scale
    tensor_scales: int = 0  #: further 4-byte scales per matrix (second-level weight scale, input scale)
    index_bytes: int = 0  #: per input feature and matrix (``g_idx`` of GPTQ)

    def scales(self, shape: tuple[int, ...]) -> int:
        if self.group is None or len(shape) < 2:
            return 0
        out_features, in_features = prod(shape[:-1]), shape[-1]
        rows, columns = self.group
        return ceil(out_features / (rows or out_features)) * ceil(in_features / (columns or in_features))

    def stored_bytes(self, shape: tuple[int, ...], copies: int = 1) -> int:
        """Bytes of ``copies`` matrices of ``shape``, scales and zero points included."""
        scales = self.scales(shape)
        values_bytes = ceil(prod(shape) * self.bits / 8)
        scales_bytes = scales * self.scale_bytes + ceil(scales * self.zero_bits / 8) + 4 * self.tensor_scales
        return copies * (values_bytes + scales_bytes + shape[-1] * self.index_bytes)


FP32 = Precision("fp32", 32, "fp32")
BF16 = Precision("bf16", 16, "bf16")
FP16 = Precision("fp16", 16, "fp16")
UNQUANTIZED = {p.name: p for p in (FP32, BF16, FP16)}
PER_TENSOR, PER_CHANNEL = (0, 0), (1, 0)
FP8_TENSOR = Precision("fp8", 8, "fp8", 4, PER_TENSOR)
FP8_STATIC = Precision("fp8", 8, "fp8", 4, PER_TENSOR, tensor_scales=1)
FP8_CHANNEL = Precision("fp8", 8, "fp8", 4, PER_CHANNEL)
FP8_DYNAMIC = Precision("fp8", 8, "fp8", 2, PER_CHANNEL)  #: of llm-compressor: scales are stored in 16 bits
FP8_BLOCK = Precision("fp8", 8, "fp8", 4, (128, 128))
MXFP8 = Precision("mxfp8", 8, "fp8", 1, (1, 32))
MXFP4 = Precision("mxfp4", 4, "fp4", 1, (1, 32))
NVFP4 = Precision("nvfp4", 4, "fp4", 1, (1, 16), tensor_scales=2)
_NAMES = tables_of(package_dir("model") / "names.toml")
WEIGHT_DTYPES: list[str] = _NAMES["weight_dtypes"]


def weight_only(precision: Precision, base: Precision) -> Precision:
    """A copy with the same storage, multiplied with unquantised activations of ``base``."""
    tensor_scales = 1 if precision.name == "nvfp4" else 0
    return replace(precision, compute_dtype=base.name, tensor_scales=tensor_scales)


def int4(
    name: str, base: Precision, group: int = 128, *, zero_bits: int = 0, bits: int = 4, index_bytes: int = 0
) -> Precision:
    """Integers of ``bits`` with a 16-bit scale per ``group`` inputs (0: per output channel), weight-only."""
    return Precision(name, bits, base.name, 2, (1, group), zero_bits=zero_bits, index_bytes=index_bytes)


#: Bytes of one cached element, by vLLM's ``--kv-cache-dtype``; ``auto`` is resolved before this is asked.
KV_ELEMENT_BYTES: dict[str, float] = _NAMES["kv_element_bytes"]
HELD_IN_FP32, KEPT_UNLESS_NAMED = frozenset(_NAMES["held_in_fp32"]), frozenset(_NAMES["kept_unless_named"])
FUSED: dict[str, list[str]] = _NAMES["fused"]
_WRAPPERS = re.compile(r"^(?:(?:model|language_model|backbone|transformer|text_model|llm|gpt_neox)\.)+")
_EXPERT_INDEX = re.compile(r"\bexperts\.(?:\d+|\*)(?=\.|\*|$)")
_INDEX = re.compile(r"(?:^|(?<=\.))(\d{1,9}|\*(?=\.))(?=\.|\*|$)")


def canonical(path: str) -> tuple[str, int | None]:
    """A module path without wrappers and expert number, its layer index replaced by ``#``; and that index:
    ``model.language_model.layers.7.mlp.experts.3.up_proj`` is ``("layers.#.mlp.experts.up_proj", 7)``."""
    path = _EXPERT_INDEX.sub("experts", _WRAPPERS.sub("", path))
    match = _INDEX.search(path)
    if match is None:
        return path, None
    return f"{path[: match.start()]}#{path[match.end() :]}", None if match[1] == "*" else int(match[1])


@dataclass(frozen=True, slots=True)
class PrecisionRule:
    """Modules that a checkpoint's configuration names, and their precision (None: not quantised)."""

    pattern: re.Pattern[str]  #: searched in the canonical path, or in the whole path where ``raw``
    precision: Precision | None
    layers: frozenset[int] | None = None  #: of which layers; None means all
    raw: bool = False  #: a regular expression of the checkpoint's own, on paths as they are

    @property
    def depends_on_layer(self) -> bool:
        if self.raw:  # one that starts anywhere and names neither layers nor digits treats all layers alike
            text = self.pattern.pattern
            return not text.startswith(".*") or re.search(r"layers|[0-9]|\\d", text) is not None
        return self.layers is not None

    def matches(self, path: str, template: str, index: int | None) -> bool:
        if self.raw:
            return self.pattern.match(path) is not None
        return (self.layers is None or index in self.layers) and self.pattern.search(template) is not None


def rules(names: Iterable[str], precision: Precision | None) -> tuple[PrecisionRule, ...]:
    """Rules for the modules that ``names`` list: paths, parts of paths, globs, and ``re:`` expressions. A name means
    that module and all below it: ``gate`` is ``model.layers.0.mlp.gate``, not ``gate_proj``."""
    everywhere: list[PrecisionRule] = []
    layers: dict[str, set[int]] = defaultdict(set)
    listed: list[str] = []
    for name in dict.fromkeys(n if n.startswith("re:") else _EXPERT_INDEX.sub("experts", n) for n in names):
        stem, dot, last = name.rpartition(".")
        listed += [name, *(f"{stem}{dot}{part}" for part in FUSED.get(last, ()))]
    for name in listed:
        if name.startswith("re:"):
            everywhere.append(PrecisionRule(re.compile(name.removeprefix("re:")), precision, raw=True))
            continue
        template, index = canonical(name)
        if index is None:
            everywhere.append(PrecisionRule(_template_pattern(template), precision))
        elif "#*" in template:  # a glob: layers.1* means 1, 10, 11, ...
            layers[template].update(i for i in range(1000) if str(i).startswith(str(index)))
        else:
            layers[template].add(index)
    return *everywhere, *(PrecisionRule(_template_pattern(t), precision, frozenset(i)) for t, i in layers.items())


def _template_pattern(template: str) -> re.Pattern[str]:
    whole = "*" in template or "#" in template  # from the start of the path; a plain name may occur anywhere
    glob = re.escape(template).replace(r"\*", ".*").replace(r"\#", "#")
    return re.compile(rf"{'^' if whole else '(?:^|[.])'}(?:{glob})(?:[.]|$)")


@dataclass(frozen=True)
class Quantization:
    weight_dtype: str  #: of most linear weights, in the words of ``--weight-dtype``
    base: Precision  #: of everything that is not quantised: norms, biases, embeddings, routers, lm_head
    method: str | None = None  #: ``quant_method`` of the checkpoint, empty if left out; None when it is not quantised
    linear: Precision | None = None  #: of linear weights inside layers; None means ``base``
    expert: Precision | None = None  #: of routed experts, where it differs from ``linear``
    rules: tuple[PrecisionRule, ...] = ()  #: exceptions, first match wins
    kv_cache_dtype: str | None = None  #: that the checkpoint carries scales for, such as ``fp8``
    notes: tuple[str, ...] = field(default=())
    assumed: bool = False  #: a usual form, as the checkpoint's own settings are not known

    def precision_of(self, path: str, *, linear: bool, routed_expert: bool = False) -> Precision:
        """Precision of the weight at ``path`` (``model.layers.3.self_attn.q_proj``)."""
        key = (path, linear, routed_expert)
        if key not in self._known:
            self._known[key] = self._decide(*key)
        return self._known[key]

    def variant(self, index: int) -> Hashable:
        """A key that two layers share exactly when every rule treats them alike."""
        return tuple(index if rule.layers is None else index in rule.layers for rule in self._by_layer)

    @cached_property
    def _known(self) -> dict[tuple[str, bool, bool], Precision]:
        return {}

    @cached_property
    def _by_layer(self) -> tuple[PrecisionRule, ...]:
        return tuple(rule for rule in self.rules if rule.depends_on_layer)

    def _decide(self, path: str, linear: bool, routed_expert: bool) -> Precision:
        if not linear:
            return FP32 if path.rpartition(".")[2] in HELD_IN_FP32 else self.base
        if self.method is None:
            return self.base
        template, index = canonical(path)
        for rule in self.rules:
            if rule.matches(path, template, index):
                return rule.precision or self.base
        parts = template.split(".")
        if not KEPT_UNLESS_NAMED.isdisjoint(parts):
            return self.base
        return (self.expert if routed_expert or "experts" in parts else None) or self.linear or self.base
