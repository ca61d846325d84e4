"""What drafting holds besides the model: weights on the last pipeline stage, and a KV cache of its own.

::

    mtp           the modules of the checkpoint; embedding and lm_head are the model's own. Over several stages the
                  last one, which drafts, loads the embedding again
    draft_model   all of the second model
    eagle         one layer and a projection from 2 hidden to hidden; embedding and lm_head are the model's own
    ngram, suffix nothing

Each module or layer of the draft keeps its tokens beside the model's layers, in the same pool of blocks. What is
left out: the rejection sampler's share of the profile run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from planner.engine.config import EngineConfig, SpeculativeConfig
from planner.errors import InputError
from planner.memory.kv_cache import CacheSettings, CacheSpec, specs_of
from planner.memory.weights import RankWeights, stage_weights, weight_bytes
from planner.model.architecture import Attention, Component, Mixer, Model, Shard, StateMixer, Weight
from planner.model.mtp import module_count
from planner.model.precision import UNQUANTIZED
from planner.parallelism import Layout


def with_drafts(
    stages: tuple[RankWeights, ...], model: Model, config: EngineConfig, draft: Model | None
) -> tuple[RankWeights, ...]:
    """``stages`` with what drafts on the last of them; its layers then count those of the draft."""
    speculative = config.speculative_config
    if speculative is None:
        return stages
    last, by_dtype = stages[-1], _draft_bytes(model, config, speculative, draft)
    return (
        *stages[:-1],
        replace(
            last,
            layers=range(last.layers.start, last.layers.stop + len(_draft_mixers(model, speculative, draft))),
            by_dtype=Counter(last.by_dtype) + by_dtype,
            draft_bytes=by_dtype.total(),
        ),
    )


def draft_specs(
    model: Model, settings: CacheSettings, speculative: SpeculativeConfig | None, draft: Model | None
) -> tuple[tuple[int, CacheSpec], ...]:
    """(layer, spec) of every cache that drafting adds, as layers beyond the model's last."""
    if speculative is None:
        return ()
    mixers = _draft_mixers(model, speculative, draft)
    size = speculative.draft_tensor_parallel_size or settings.tensor_parallel_size
    settings = replace(settings, tensor_parallel_size=size)
    return tuple(specs_of(draft or model, mixers, settings, first_layer=model.num_layers))


def _draft_mixers(model: Model, speculative: SpeculativeConfig, draft: Model | None) -> tuple[Mixer, ...]:
    """The token mixers of what drafts, one for each of its layers."""
    if speculative.has_draft_model:
        return tuple(known_draft(speculative, draft).mixers())
    return (module_mixer(model),) * module_count(model.mtp) if speculative.method == "mtp" else ()


def module_mixer(model: Model) -> Mixer:
    """The mixer of an MTP module: like the model's first attention layer, unless its queries are those of another."""
    attention = [mixer for mixer in dict.fromkeys(model.mixers()) if not isinstance(mixer, StateMixer)]
    rows = {w.shape[0] for w in model.mtp if w.name.endswith("q_proj")}
    alike = (m for m in attention if isinstance(m, Attention) and rows & {m.num_heads * m.head_dim * n for n in (1, 2)})
    return next(alike, attention[0])


def _draft_bytes(
    model: Model, config: EngineConfig, speculative: SpeculativeConfig, draft: Model | None
) -> Counter[str]:
    """Bytes of the draft's weights on a rank of the last stage, by the name of their precision."""
    layout = Layout.of(config)
    found: Counter[str] = Counter()
    if speculative.method == "mtp":
        for weight in _module_weights(model, layout):
            precision = model.quantization.precision_of(
                weight.name, linear=weight.linear, routed_expert=weight.shard is Shard.EXPERT
            )
            precision = UNQUANTIZED[config.dtype] if precision is model.quantization.base else precision
            found[precision.name] += weight_bytes(weight, precision, layout)
    elif speculative.has_draft_model:
        known = known_draft(speculative, draft)
        size = speculative.draft_tensor_parallel_size or layout.tensor_parallel_size
        (whole,) = stage_weights(known, Layout(size), config.dtype)
        found.update(whole.by_dtype)
        if speculative.method == "eagle":
            shared = sum(whole.by_component.get(part, 0) for part in (Component.EMBEDDING, Component.LM_HEAD))
            projection = Weight("fc", Component.MTP, (known.hidden_size, 2 * known.hidden_size))
            found[config.dtype] += weight_bytes(projection, UNQUANTIZED[config.dtype], layout) - shared
    return found


def _module_weights(model: Model, layout: Layout) -> Iterator[Weight]:
    """Weights of the MTP modules that are loaded: not the tables that checkpoints repeat."""
    yield from (weight for weight in model.mtp if weight.shard is not Shard.VOCAB)
    if layout.pipeline_parallel_size > 1:
        yield from (w for w in model.outer if w.component is Component.EMBEDDING and w.shard is Shard.VOCAB)


def known_draft(speculative: SpeculativeConfig, draft: Model | None) -> Model:
    """``draft``. Raises InputError where the second model that ``speculative`` names was not looked up."""
    if draft is None:
        raise InputError(
            f"--speculative-config: the architecture of {speculative.model} is needed",
            hint="give a hub id, or a folder with a config.json",
        )
    return draft
