"""From ``config.json`` to a ``Model``: read the keys, let the family build its layers, add the quantisation.

A new family is one function in ``planner/model/families``::

    @family("LlamaForCausalLM")
    def llama(config: Config) -> Parts: ...

An architecture that no family claims is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import UnsupportedModelError
from planner.model.architecture import Layer, Weight


class Config:
    """A model's ``config.json``: read by key or by any of its aliases; a missing key is refused by name."""

    def __init__(self, values: Mapping[str, Any], *, model_id: str, outer: Config | None = None) -> None:
        self.values = values
        self.model_id = model_id
        self.outer = outer or self

    @property
    def architecture(self) -> str:
        """Class name of the model, from the outermost level."""
        names = self.outer.values.get("architectures") or ["(none)"]
        return str(names[0])

    def has(self, key: str) -> bool:
        """Whether ``key`` is given and not null."""
        return self.values.get(key) is not None

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of ``keys`` that is given and not null, else ``default``."""
        for key in keys:
            if self.values.get(key) is not None:
                return self.values[key]
        return default

    def need(self, *keys: str) -> Any:
        """The first of ``keys`` that is given. Raises UnsupportedModelError naming the first when none is."""
        value = self.get(*keys)
        if value is None:
            raise UnsupportedModelError(
                f"{self.model_id}: config.json of {self.architecture} lacks {keys[0]!r}",
                hint="check that the file is the model's own and complete",
            )
        return value

    def size(self, *keys: str, default: int | None = None) -> int:
        """A positive integer. Raises UnsupportedModelError when it is missing, or is not one."""
        value = self.get(*keys, default=default) if default is not None else self.need(*keys)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
            raise UnsupportedModelError(
                f"{self.model_id}: {keys[0]} in config.json is {value!r}, not a whole number",
                hint="check that the file is the model's own and complete",
            )
        return int(value)

    def nested(self, key: str) -> Config:
        """The dictionary under ``key`` (``text_config``, ``vision_config``) as a Config; itself where there is none."""
        inner = self.values.get(key)
        return Config(inner, model_id=self.model_id, outer=self.outer) if isinstance(inner, Mapping) else self


@dataclass(frozen=True)
class Parts:
    """What a family knows of a model: everything but names, dtype and quantisation."""

    layers: tuple[Layer, ...]
    outer: tuple[Weight, ...]
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tied_embeddings: bool = False
    vision: tuple[Weight, ...] = ()
    mtp: tuple[Weight, ...] = ()
    layer_prefix: str = "model.layers."
    requires_remote_code: bool = False
    notes: tuple[str, ...] = ()


Builder = Callable[[Config], Parts]
BUILDERS: dict[str, Builder] = {}


def family(*architectures: str) -> Callable[[Builder], Builder]:
    """Register a builder for the class names that ``architectures`` in ``config.json`` may hold."""

    def register(builder: Builder) -> Builder:
        for architecture in architectures:
            BUILDERS[architecture] = builder
        return builder

    return register
