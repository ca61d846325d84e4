"""Reads ``config.json``: typed values under any of their names; and the registry of model families.

A new family is one function in ``planner/model/families``::

    @family("LlamaForCausalLM")
    def llama(config: Config) -> ModelParts: ..."""

from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import Any

from planner.errors import UnsupportedModelError
from planner.model.architecture import ModelParts
from planner.resources import package_dir, tables_of

MAX_SIZE = 2**31  #: beyond any size in a real model; a guard against damaged files
MAX_LAYERS = 10_000
#: Older names of keys, tried after the present one.
ALIASES: Mapping[str, list[str]] = tables_of(package_dir("model") / "names.toml")["aliases"]
COMPLETE = "check that the file is the model's own and complete"


class Config:
    """A model's ``config.json``. Readers take the first of ``keys`` that is given. They raise UnsupportedModelError."""

    def __init__(self, values: Mapping[str, Any], *, model_id: str, outer: "Config | None" = None) -> None:
        self.values = values
        self.model_id = model_id
        self.outer = outer or self

    @property
    def architecture(self) -> str:
        """Class name of the model, from the outermost level; empty where none is given."""
        names = self.outer.values.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""

    def has(self, key: str) -> bool:
        return self.values.get(self._given((key,))) is not None

    def get(self, *keys: str, default: Any = None) -> Any:
        key = self._given(keys)
        value = self.values.get(key)
        return default if value is None else value

    def need(self, *keys: str) -> Any:
        """The value as it stands, unchecked. Raises UnsupportedModelError naming the first key when there is none."""
        value = self.get(*keys)
        if value is None:
            cause = f"{self.model_id}: config.json of {self.architecture} lacks {keys[0]!r}"
            raise UnsupportedModelError(cause, hint=COMPLETE)
        return value

    def refuse(self, key: str, wanted: str) -> UnsupportedModelError:
        cause = f"{self.model_id}: {key} in config.json is {brief(self.values.get(key))}, not {wanted}"
        return UnsupportedModelError(cause, hint=COMPLETE)

    def _given(self, keys: tuple[str, ...]) -> str:
        names = (name for key in keys for name in (key, *ALIASES.get(key, ())))
        return next((name for name in names if self.values.get(name) is not None), keys[0])

    def size(self, *keys: str, default: int | None = None, at_most: int = MAX_SIZE) -> int:
        """A whole number of at least 1; also 0 where that is the default and means that there is none."""
        value = self.need(*keys) if default is None else self.get(*keys, default=default)
        least = 0 if default == 0 else 1
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not least <= value <= at_most or value != int(value):
            raise self.refuse(self._given(keys), f"a whole number from {least} to {at_most}")
        return int(value)

    @property
    def hidden_size(self) -> int:
        return self.size("hidden_size")

    @property
    def num_layers(self) -> int:
        return self.size("num_hidden_layers", at_most=MAX_LAYERS)

    def flag(self, *keys: str, default: bool) -> bool:
        value = self.get(*keys, default=default)
        if not isinstance(value, bool):
            raise self.refuse(self._given(keys), "true or false")
        return value

    def text(self, *keys: str, default: str | None = None) -> str:
        value = self.need(*keys) if default is None else self.get(*keys, default=default)
        if not isinstance(value, str):
            raise self.refuse(self._given(keys), "a string")
        return value

    def sizes(self, *keys: str, count: int | None = None) -> list[int]:
        """A list of whole numbers, 0 included: of ``count`` entries where given, else empty when absent."""
        return self._list(keys, count, "whole numbers", lambda value: type(value) is int and 0 <= value <= MAX_SIZE)

    def names(self, *keys: str, count: int | None = None) -> list[str]:
        """A list of strings, of ``count`` entries where that is given; empty when absent."""
        if self.get(*keys) is None:
            return []
        return self._list(keys, count, "strings", lambda value: isinstance(value, str))

    def _list(self, keys: tuple[str, ...], count: int | None, kind: str, sound: Callable[[Any], bool]) -> list[Any]:
        values = self.get(*keys, default=[])
        if not isinstance(values, list) or count not in (None, len(values)) or not all(map(sound, values)):
            raise self.refuse(self._given(keys), f"a list of {kind}" + (f", {count} of them" if count else ""))
        return list(values)

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Config":
        given = {key: value for key, value in self.values.items() if value is not None}
        return Config({**defaults, **given}, model_id=self.model_id, outer=None if self.outer is self else self.outer)

    def section(self, key: str) -> "Config":
        """The dictionary under ``key`` as a Config. Raises UnsupportedModelError when there is none."""
        if not isinstance(self.values.get(key), Mapping):
            raise self.refuse(key, "an object")
        return self.nested(key)

    def nested(self, key: str) -> "Config":
        """The dictionary under ``key`` (``text_config``, ``vision_config``) as a Config; itself where there is none."""
        inner = self.values.get(key)
        return Config(inner, model_id=self.model_id, outer=self.outer) if isinstance(inner, Mapping) else self


Builder = Callable[[Config], ModelParts]
BUILDERS: dict[str, Builder] = {}


def family(*architectures: str) -> Callable[[Builder], Builder]:
    """Register a builder for the class names that ``architectures`` in ``config.json`` may hold."""

    def register(builder: Builder) -> Builder:
        for architecture in architectures:
            BUILDERS[architecture] = builder
        return builder

    return register
