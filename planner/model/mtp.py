"""Multi-token-prediction modules: one more layer that guesses the token after next, used as a speculative draft.

::

    input = projection [2 hidden -> hidden] of (norm of the embedding, norm of the hidden state)
    output = lm_head of a norm of (one decoder layer of the input)
"""

from __future__ import annotations

from dataclasses import replace

from planner.model.architecture import Component, Layer, Shard, Weight
from planner.model.blocks import linear, vector
from planner.model.config import Config


def mtp_module(
    layer: Layer,
    hidden_size: int,
    prefix: str,
    *,
    vocab_size: int | None = None,
    projection: str = "eh_proj",
    norm_names: tuple[str, str, str] = ("enorm", "hnorm", "shared_head.norm"),
) -> tuple[Weight, ...]:
    """Weights of one module: ``layer``, a projection, three norms; with ``vocab_size`` an embedding and a head.

    Names are full paths under ``prefix``. All are of Component.MTP: the main model does not hold them.
    """
    part = Component.MTP
    weights = (
        *layer.weights,
        *linear(projection, hidden_size, 2 * hidden_size, part),
        *(weight for name in norm_names for weight in vector(name, hidden_size, part)),
    )
    if vocab_size:
        table = Weight("embed_tokens", part, (vocab_size, hidden_size), shard=Shard.VOCAB)
        weights += (table, replace(table, name="shared_head.head", linear=True))
    return tuple(replace(weight, name=prefix + weight.name, component=part) for weight in weights)


def mtp_layers(config: Config, layer: Layer, *, tables: bool) -> tuple[Weight, ...]:
    """The ``num_nextn_predict_layers`` modules of DeepSeek-V3 and its like, stored as layers after the last one.

    ``tables``: whether the checkpoint stores the embedding and the head again with each module.
    """
    hidden, first = config.size("hidden_size"), config.num_layers
    vocab = config.size("vocab_size") if tables else None
    weights: tuple[Weight, ...] = ()
    for index in range(config.size("num_nextn_predict_layers", default=0, at_most=16)):
        weights += mtp_module(layer, hidden, f"model.layers.{first + index}.", vocab_size=vocab)
    return weights


#: What checkpoints call the projection of a module: each has one.
PROJECTIONS = ("eh_proj", "e_h_proj", "fc", "input_proj")


def module_count(mtp: tuple[Weight, ...]) -> int:
    """How many modules the weights ``mtp`` make up."""
    return sum(weight.name.rpartition(".")[2] in PROJECTIONS for weight in mtp)
