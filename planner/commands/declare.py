"""How a function says what its command looks like.

::

    Verbose = Annotated[bool, Option(help="Say more.")]

    @command("fit", help="Does it fit?", engine=("max_model_len",))
    def check_fit(model: Model, *, verbose: Verbose = False, **engine: Any) -> FitAnswer: ...

The annotation of a parameter is the name of an alias that says how it is typed, or ``ALIAS | None``. The decorator
returns the function as it is: the library offers it, and ``adapter`` makes the command of it. Nothing here imports
typer, so that a program that uses the library does not wait for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args

Function = TypeVar("Function", bound=Callable[..., Any])

#: What gives way in planner.toml where the command line says something else about the same.
Rivals = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


class Option:
    """How a parameter is typed: ``Annotated[int, Option(help="...")]``.

    ``names`` are the flags, by default the parameter's name with dashes. ``kind`` is the type of the words that are
    typed, where it is not the parameter's, and ``read`` turns such a value into the parameter's. ``default`` is what
    the help shows where the parameter's own default is None. The settings are those of ``typer.Option``.
    """

    def __init__(
        self,
        *names: str,
        kind: Any = None,
        read: Callable[[Any], Any] | None = None,
        default: Any = None,
        panel: str = "",
        **settings: Any,
    ) -> None:
        self.names, self.kind, self.read, self.default = names, kind, read, default
        self.panel, self.settings = panel, settings

    def __repr__(self) -> str:
        return " ".join(self.names) or str(self.settings.get("metavar", "flag"))


class Argument(Option):
    """As ``Option``, without a flag."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command."""

    name: str
    type: Any
    default: Any  #: ``inspect.Parameter.empty`` where a value is required
    option: Option
    positional: bool = False  #: of ``*names``


@dataclass(frozen=True)
class Command:
    """What a function declares.

    ``words`` is what is typed, ``engine`` names the engine settings that the command takes, of which those in
    ``searched`` are found where they are not given. ``extends`` is a function whose parameters the command has too, and
    gets as ``**options``. ``settings`` go to typer.
    """

    words: str
    function: Callable[..., Any]
    help: str
    engine: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    extends: Callable[..., Any] | None = None
    rivals: Rivals = ()
    settings: Mapping[str, Any] | None = None

    def parameters(self) -> Iterator[Parameter]:
        """The parameters in their order, without the engine settings."""
        own = inspect.signature(self.function).parameters
        for parameter in own.values():
            yield from _declared(self.function, parameter)
        if self.extends is not None:
            for name, parameter in inspect.signature(self.extends).parameters.items():
                if name not in own:
                    yield from _declared(self.extends, parameter)


#: Every command that is declared by a module that was imported.
COMMANDS: dict[str, Command] = {}


def command(words: str, **declared: Any) -> Callable[[Function], Function]:
    """Declare the command that a function answers. The keywords are the fields of ``Command``."""

    def remember(function: Function) -> Function:
        COMMANDS[words] = Command(words, function, **declared)
        return function

    return remember


def keywords(function: Callable[..., Any]) -> tuple[str, ...]:
    """The parameters that a function names."""
    return tuple(inspect.signature(function).parameters)


def _declared(function: Callable[..., Any], parameter: inspect.Parameter) -> Iterator[Parameter]:
    """The parameter, where its annotation names an alias that says how it is typed."""
    alias = function.__globals__.get(parameter.annotation.removesuffix(" | None"))
    kind, *metadata = get_args(alias) or (None,)
    for option in metadata:
        if isinstance(option, Option):
            positional = parameter.kind is parameter.VAR_POSITIONAL
            yield Parameter(parameter.name, kind, None if positional else parameter.default, option, positional)
