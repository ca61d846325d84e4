"""Bytes of weights on each rank as vLLM loads them ("Model loading took N GiB"), with adapters and drafts.

A rank's piece is ``planner.engine.held_piece``, scales and zero points counted. A tied lm_head costs nothing on one
stage, a second embedding on the last of several. The table of rotary cosines and sines has one row per position of the
model's own context. Re-packing at load is left out, except for MXFP4 experts, whose kernels pad every shard.

**Adapters** (``create_lora_weights`` in ``lora/layers/``) for every linear layer, used or not::

    elements = max_loras x rank x sum of (inputs + outputs of the piece on the rank)

``--fully-sharded-loras`` also cuts the side that is whole. Fused matrices (q, k, v) and experts have one pair each;
embedding and lm_head, where adapted, (vocabulary + hidden) x rank on every rank.

**Drafts** stand on the last stage; their tokens share the pool of blocks. The share of the rejection sampler in the
profile run is left out.

- ``mtp`` has the modules of the checkpoint, over several stages the embedding once more.
- ``draft_model`` has all of the second model.
- ``eagle`` has one layer and a projection from 2 hidden to hidden.
- ``eagle3`` has one layer, a projection from 3 hidden to hidden, and an lm_head.
- ``ngram`` and ``suffix`` have no weights."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from planner.engine import EngineConfig, Layout, LoraConfig, SpeculativeConfig, held_heads, held_piece, stage_sizes
from planner.errors import InputError
from planner.memory.cache import CacheSettings, CacheSpec, element_bytes, specs_of
from planner.model import (
    UNQUANTIZED,
    Attention,
    Component,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    PerModel,
    Precision,
    Shard,
    StateMixer,
    Weight,
    mtp_projections,
)
from planner.resources import package_dir, tables_of
from planner.units import GIB

_TABLE = tables_of(package_dir("memory") / "sizes.toml")
MARLIN = "marlin"  #: stands for the architecture where Marlin's kernels are asked for


@dataclass(frozen=True)
class RankWeights:
    layers: range  #: of this stage
    by_component: dict[Component, int]
    by_dtype: dict[str, int]
    rotary_bytes: int  #: the table of rotary cosines and sines
    absorbed_bytes: int = 0  #: products of latent projections that V0 keeps beside them
    draft_bytes: int = 0  #: of the draft (``memory.weights``): MTP modules, a second model
    lora_bytes: int = 0  #: of LoRA adapters
    offloaded_bytes: int = 0  #: of the weights, those in host memory

    @cached_property
    def weight_bytes(self) -> int:
        return sum(self.by_component.values()) + self.draft_bytes

    @cached_property
    def loaded_bytes(self) -> int:
        """Bytes of "Model loading took": weights on the GPU, products of them, adapters and rotary table."""
        return self.weight_bytes - self.offloaded_bytes + self.absorbed_bytes + self.lora_bytes + self.rotary_bytes


def absorbed_bytes(model: Model, layout: Layout, dtype: str, layers: range) -> int:
    """Products that V0 of 0.7.1 to 0.7.3 computes for MLA while it loads, on a rank that holds ``layers``, bytes
    (``process_weights_after_loading`` of ``attention/backends/mla/utils.py``)."""
    found = 0
    for kind in model.layer_kinds:
        mixer, times = kind.layer.mixer, sum(index in layers for index in kind.indices)
        if not times or not isinstance(mixer, LatentAttention):
            continue
        known = dict(zip((w.name for w in kind.layer.weights), kind.precisions, strict=True))
        stored = next(p for name, p in known.items() if name.endswith("kv_b_proj"))
        plain = UNQUANTIZED[dtype]
        precision = plain if stored is model.quantization.base else stored
        heads, latent = held_heads(mixer.num_heads, layout.tensor_parallel_size), mixer.kv_lora_rank
        queries, both = mixer.q_lora_rank or model.hidden_size, mixer.qk_nope_head_dim + mixer.v_head_dim
        found += times * (
            precision.stored_bytes((heads * latent, queries))
            + precision.stored_bytes((model.hidden_size, heads * latent))
            + plain.stored_bytes((queries, heads * mixer.qk_rope_head_dim))
            + (precision is not plain) * plain.stored_bytes((latent, heads * both))
        )
    return found


def rotary_bytes(model: Model, dtype: Precision) -> int:
    """The table of cosines and sines: one row of rotary elements for each position of the model's context."""
    widths = [
        mixer.qk_rope_head_dim if isinstance(mixer, LatentAttention) else mixer.head_dim
        for mixer in model.distinct_mixers
        if isinstance(mixer, Attention | LatentAttention)
    ]
    share: float = _TABLE["rotary_size"].get(model.model_type, 1)
    elements = model.max_position_embeddings * max(widths, default=0) * share
    return round(elements) * dtype.bits // 8


def weight_bytes(weight: Weight, precision: Precision, layout: Layout, *, padding: tuple[int, int] = (1, 1)) -> int:
    """Bytes of ``weight`` on the rank that holds most of it; ``padding`` rounds an expert's (intermediate, hidden)."""
    piece = held_piece(weight, layout)
    if padding != (1, 1):
        down = held_piece(weight, Layout(2)).cut_axis in (-1, None)
        axes = len(piece.shape)
        multiples = (*(1,) * (axes - 2), *(padding[::-1] if down else padding))[:axes]
        rounded = (-(-size // multiple) * multiple for size, multiple in zip(piece.shape, multiples, strict=True))
        piece = replace(piece, shape=tuple(rounded))
    return piece.stored_bytes(precision)


@PerModel
def stage_weights(
    model: Model, layout: Layout, dtype: str, architecture: str = "", remainder_last: bool = False
) -> tuple[RankWeights, ...]:
    """Weights on each rank, stage by stage, bytes. ``dtype``: of everything that is not quantised. ``architecture``
    (``sm_90``, ``MARLIN``) decides how MXFP4 experts are padded; ``remainder_last``: vLLM before 0.8.0."""
    parts = _Parts(model, layout, UNQUANTIZED[dtype], architecture)
    kinds = [
        (kind, parts.bytes_of(zip(kind.layer.weights, kind.precisions, strict=True))) for kind in model.layer_kinds
    ]
    rotary, found, start = rotary_bytes(model, UNQUANTIZED[dtype]), [], 0
    sizes = stage_sizes(model.num_layers, layout.pipeline_parallel_size, remainder_last=remainder_last)
    for stage, size in enumerate(sizes):
        layers = range(start, start := start + size)
        total = parts.bytes_outside_layers(first=stage == 0, last=stage == len(sizes) - 1)
        for kind, parts_bytes in kinds:
            if times := sum(index in layers for index in kind.indices):
                total.update({key: times * num_bytes for key, num_bytes in parts_bytes.items()})
        by_component, by_dtype = Counter[Component](), Counter[str]()
        for (component, name), num_bytes in total.items():
            by_component[component] += num_bytes
            by_dtype[name] += num_bytes
        found.append(RankWeights(layers, by_component, by_dtype, rotary))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Parts:
    model: Model
    layout: Layout
    dtype: Precision  #: of unquantised weights
    architecture: str

    def bytes_of(self, weights: Iterable[tuple[Weight, Precision]]) -> Counter[tuple[Component, str]]:
        found: Counter[tuple[Component, str]] = Counter()
        quantization = self.model.quantization
        kernels_pad = quantization.method == "mxfp4" and bool(self.architecture)
        padding = _TABLE["expert_padding"].get(self.architecture, _TABLE["marlin_padding"])
        for weight, stored in weights:
            if weight.component is Component.MTP:
                continue
            precision = self.dtype if stored is quantization.base else stored
            padded = kernels_pad and weight.component is Component.ROUTED_EXPERT
            num_bytes = weight_bytes(weight, precision, self.layout, padding=padding if padded else (1, 1))
            found[weight.component, precision.name] += num_bytes
        return found

    def bytes_outside_layers(self, *, first: bool, last: bool) -> Counter[tuple[Component, str]]:
        model = self.model
        embedding = [w for w in model.outer if w.component is Component.EMBEDDING]
        held: list[Weight] = [*embedding, *model.vision] if first else []
        if last:
            held += [w for w in model.outer if w.component is not Component.EMBEDDING]
            if model.tied_embeddings and not first:
                held += [w for w in embedding if w.shard is Shard.VOCAB]
        return self.bytes_of((weight, model.precision_of(weight)) for weight in held)


#: Parts outside the decoder layers: they always stay on the GPU.
_OUTSIDE = frozenset((Component.EMBEDDING, Component.LM_HEAD, Component.VISION))


def with_extras(stages: tuple[RankWeights, ...], model: Model, config: EngineConfig) -> tuple[RankWeights, ...]:
    """``stages`` with EPLB's buffer and the adapters on each rank, and the weights that host memory holds for it."""
    if config.enable_eplb:
        stages = tuple(_with_moving_experts(stage, model) for stage in stages)
    if config.lora is None and not config.cpu_offload_gb:
        return stages
    adapters = lora_bytes(model, config, config.lora, stages) if config.lora else (0,) * len(stages)
    return tuple(
        replace(stage, lora_bytes=num_bytes, offloaded_bytes=offloaded_bytes((stage,), config))
        for stage, num_bytes in zip(stages, adapters, strict=True)
    )


def _with_moving_experts(stage: RankWeights, model: Model) -> RankWeights:
    """``stage`` with EPLB's buffer for experts that move, as large as those of one layer (``eplb_state.py``)."""
    part, layers = Component.ROUTED_EXPERT, sum(model.layers[index].moe is not None for index in stage.layers)
    num_bytes = stage.by_component.get(part, 0)
    return replace(stage, by_component={**stage.by_component, part: num_bytes + num_bytes // max(layers, 1)})


def offloaded_bytes(stages: tuple[RankWeights, ...], config: EngineConfig) -> int:
    """Weights that one pass through all stages reads from host memory, bytes of one rank of each."""
    kept = round(config.cpu_offload_gb * GIB)
    layers = (sum(n for part, n in stage.by_component.items() if part not in _OUTSIDE) for stage in stages)
    return sum(min(kept, num_bytes) for num_bytes in layers)


def lora_bytes(model: Model, config: EngineConfig, lora: LoraConfig, stages: tuple[RankWeights, ...]) -> Iterator[int]:
    """Bytes of all adapter slots on a rank of each stage, in the engine's dtype (``--lora-dtype auto``)."""
    layout, slot = Layout.of(config), lora.max_loras * lora.max_lora_rank * element_bytes(config.dtype)
    sides = {id(one): sum(_sides(weight, layout, lora) for weight in adapted(one, lora)) for one in model.layers}
    for number, stage in enumerate(stages):
        elements = sum(sides[id(model.layers[index])] for index in stage.layers)
        ends = (number == 0) + (number == len(stages) - 1)  # embedding on the first, lm_head on the last
        if lora.adapts_tables:
            elements += ends * (model.vocab_size + model.hidden_size)
        yield slot * elements


def adapted(layer: Layer, lora: LoraConfig) -> list[Weight]:
    """Return the matrices with adapters; with ``joins_gate_up``, gate and up of the experts as one matrix."""
    held = [w for w in layer.weights if w.linear and (lora.adapts_experts or not w.shard.of_experts)]
    halves = [w for w in held if lora.joins_gate_up and w.shard is Shard.EXPERT_COLUMN]
    whole = [replace(w, shape=(2 * w.shape[0], w.shape[1])) for w in halves[::2]]
    return [w for w in held if w not in halves] + whole


def _sides(weight: Weight, layout: Layout, lora: LoraConfig) -> int:
    """Elements that a unit of rank takes on one rank: inputs of A and outputs of B."""
    piece, ranks = held_piece(weight, layout), layout.tensor_parallel_size
    *_, outputs, inputs = piece.shape
    cut, whole = (inputs, outputs) if piece.cut_axis == -1 else (outputs, inputs)
    if lora.fully_sharded_loras and piece.cut_axis is not None:
        whole = -(-whole // ranks)
    return piece.copies * (cut + whole)


def host_kv_tokens(config: EngineConfig, kv_bytes_per_token: float) -> int:
    """Tokens that ``--kv-offloading-size`` (all ranks) holds at ``kv_bytes_per_token`` on each rank."""
    if not config.kv_offloading_size or not kv_bytes_per_token:
        return 0
    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    return int(config.kv_offloading_size * GIB / ranks / kv_bytes_per_token)


def with_drafts(
    stages: tuple[RankWeights, ...], model: Model, config: EngineConfig, draft: Model | None
) -> tuple[RankWeights, ...]:
    speculative = config.speculative_config
    if speculative is None:
        return stages
    last, by_dtype = stages[-1], _draft_bytes(model, config, speculative, draft)
    layers = range(last.layers.start, last.layers.stop + len(_draft_mixers(model, speculative, draft)))
    total = Counter(last.by_dtype) + by_dtype
    return (*stages[:-1], replace(last, layers=layers, by_dtype=total, draft_bytes=by_dtype.total()))


def draft_specs(
    model: Model, settings: CacheSettings, speculative: SpeculativeConfig | None, draft: Model | None
) -> tuple[tuple[int, CacheSpec], ...]:
    """(layer, spec) of every cache that the draft adds, as layers beyond the model's last."""
    if speculative is None:
        return ()
    mixers = _draft_mixers(model, speculative, draft)
    size = speculative.draft_tensor_parallel_size or settings.tensor_parallel_size
    settings = replace(settings, tensor_parallel_size=size)
    return tuple(specs_of(draft or model, mixers, settings, first_layer=model.num_layers))


def _draft_mixers(model: Model, speculative: SpeculativeConfig, draft: Model | None) -> tuple[Mixer, ...]:
    if speculative.has_draft_model:
        return tuple(known_draft(speculative, draft).mixers())
    return (module_mixer(model),) * len(mtp_projections(model.mtp)) if speculative.method == "mtp" else ()


def module_mixer(model: Model) -> Mixer:
    """The mixer of an MTP module: the model's first attention layer with its queries and keys, else the first."""
    attention = [mixer for mixer in model.distinct_mixers if not isinstance(mixer, StateMixer)]
    rows, keys = ({w.shape[0] for w in model.mtp if w.name.endswith(name)} for name in ("q_proj", "k_proj"))
    heads = [m for m in attention if isinstance(m, Attention) and m.num_kv_heads * m.head_dim in keys]
    alike = (m for m in heads if rows & {m.num_heads * m.head_dim * n for n in (1, 2)})
    return next(alike, attention[0])


def _draft_bytes(
    model: Model, config: EngineConfig, speculative: SpeculativeConfig, draft: Model | None
) -> Counter[str]:
    layout = Layout.of(config)
    found: Counter[str] = Counter()
    if speculative.method == "mtp":
        # not the tables that checkpoints repeat
        held = [weight for weight in model.mtp if weight.shard is not Shard.VOCAB]
        if layout.pipeline_parallel_size > 1:
            held += [w for w in model.outer if w.component is Component.EMBEDDING and w.shard is Shard.VOCAB]
        for weight in held:
            stored = model.precision_of(weight)
            precision = UNQUANTIZED[config.dtype] if stored is model.quantization.base else stored
            found[precision.name] += weight_bytes(weight, precision, layout)
    elif speculative.has_draft_model:
        known = known_draft(speculative, draft)
        size = speculative.draft_tensor_parallel_size or layout.tensor_parallel_size
        (whole,) = stage_weights(known, Layout(size), config.dtype)
        found.update(whole.by_dtype)
        if speculative.method == "eagle3":  # the draft's own config names its projection and its lm_head
            found[config.dtype] -= whole.by_component.get(Component.EMBEDDING, 0)
        elif speculative.method == "eagle":
            shared = sum(whole.by_component.get(part, 0) for part in (Component.EMBEDDING, Component.LM_HEAD))
            projection = Weight("fc", Component.MTP, (known.hidden_size, 2 * known.hidden_size))
            found[config.dtype] += weight_bytes(projection, UNQUANTIZED[config.dtype], layout) - shared
    return found


def known_draft(speculative: SpeculativeConfig, draft: Model | None) -> Model:
    """``draft``. Raises InputError where the model that ``speculative`` names was not looked up."""
    if draft is None:
        cause = f"--speculative-config: the architecture of {speculative.model} is needed"
        raise InputError(cause, hint="give a hub id, or a folder with a config.json")
    return draft
