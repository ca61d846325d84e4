"""Declarations of commands: their options with types, bounds and help, and the check of values.

Nothing here imports typer, so that a program that uses the library does not wait for it."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from planner import engine, planning
from planner.errors import UnknownNameError

Function = TypeVar("Function", bound=Callable[..., Any])

#: Options of planner.toml that give way where the command line says something else about the same.
Rivals = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

ENGINE = "Engine (flags of vllm serve)"
SCALARS = (int, float, str, bool)
REQUIRED = inspect.Parameter.empty


class Option:
    """The spelling of a parameter: ``Annotated[int, Option(help="...")]``; ``settings`` are those of ``typer.Option``.

    ``kind`` is the type of the typed words, which ``read`` turns into the parameter's; ``default`` is for the help."""

    def __init__(
        self, *names: str, kind: Any = None, read: Callable[[Any], Any] | None = None, default: Any = None,
        panel: str = "", **settings: Any,
    ) -> None:  # fmt: skip
        self.names, self.kind, self.read, self.default = names, kind, read, default
        self.panel, self.settings = panel, settings

    def __repr__(self) -> str:
        return " ".join(self.names) or str(self.settings.get("metavar", "flag"))


class Argument(Option):
    """An ``Option`` that is typed without a flag, by its place."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command, with its type, bounds and spelling."""

    name: str
    type: Any
    default: Any  #: ``REQUIRED`` where there is none
    option: Option
    bounds: tuple[Any, ...] = ()  #: of annotated_types
    positional: bool = False  #: one of ``*names``

    @property
    def kind(self) -> Any:
        return self.type if self.option.kind is None else self.option.kind

    @property
    def flag(self) -> str:
        """The first spelling of the parameter, such as ``--gpu``."""
        return (self.option.names or (engine.flag_of(self.name),))[0]

    @cached_property
    def number(self) -> Any:
        """The type of a number; None for other values."""
        kinds = set(get_args(self.kind) or (self.kind,)) - {NoneType}
        return next((kind for kind in (int, float) if kinds == {kind} and get_origin(self.kind) is not list), None)

    @property
    def unit(self) -> str:
        return "ms" if self.option.settings.get("metavar") == "MS" else ""

    @property
    def limits(self) -> dict[str, float]:
        """The bounds that include their value, as ``least`` and ``most``."""
        pairs = ((word, getattr(one, key)) for one in self.bounds for word, key in (("least", "ge"), ("most", "le")))
        return {word: value for word, value in pairs if value is not None}

    def check(self, value: Any, see: str) -> Any:
        """The value as a plain one of its type. Raises InputError, naming the flag, for another type or value."""
        typed = value and isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if typed and self.option.read and not isinstance(self.option, Argument):
            return self.option.read(value)
        union = get_origin(self.type) in (Union, UnionType)
        kinds = [kind for kind in (get_args(self.type) if union else (self.type,)) if kind is not NoneType]
        checked = all(kind in SCALARS or get_origin(kind) in (Literal, dict, tuple) for kind in kinds)
        if value is None or not kinds or not checked:
            return value
        if get_origin(kinds[0]) is Literal and isinstance(value, str) and value not in get_args(kinds[0]):
            raise UnknownNameError(self.name, value[:80], get_args(kinds[0]), see=see)
        wanted: Any = Annotated[self.type, *self.bounds] if self.bounds else self.type
        return planning.typed(self.name, value, wanted, flag=self.flag, unit=self.unit)

    def words(self, value: Any) -> Iterator[str]:
        """Return the words that give the option this value on the command line."""
        flag, _, opposite = self.flag.partition("/")
        for one in value if isinstance(value, list) else [value]:
            if isinstance(self.option, Argument):
                yield str(one)
            elif not isinstance(one, bool):
                yield from (flag, str(one).removesuffix(".0") if isinstance(one, float) else str(one))
            elif one or self.default is not False:
                yield flag if one else opposite or f"--no-{flag[2:]}"

    def read(self, given: Any) -> Any:
        """Return the value of typed words. Raises InputError, naming the flag, for text in place of a number."""
        if self.option.read:
            return self.option.read(given)
        if self.number is None:
            return given
        row = engine.SETTINGS.get(self.name)
        with suppress(ValueError, OverflowError):  # OverflowError: digits beyond any float
            return row.read(given) if row else self.number(given)
        wanted: Any = Annotated[self.number, *self.bounds, self.option]
        return planning.typed(self.name, given, wanted, flag=self.flag, unit=self.unit, strict=False)


@dataclass(frozen=True)
class Command:
    """A declared command: ``groups`` are classes of further options, ``engine`` the settings that it takes.

    Those in ``searched`` are found where they are not given. ``settings`` go to typer."""

    words: str
    function: Callable[..., Any]
    help: str = ""
    groups: tuple[type, ...] = ()
    engine: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    rivals: Rivals = ()
    settings: Mapping[str, Any] | None = None

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        every = [*_of_function(self.function)]
        for group in self.groups:
            for name, alias in _members(group).items():
                every += _declared(name, alias, getattr(group, name, REQUIRED))
        every += [_of_engine(name, searched=name in self.searched) for name in self.engine]
        return {one.name: one for one in every}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords with plain values. Raises UnknownNameError for another keyword than the command has."""
        known = {**inspect.signature(self.function).parameters, **self.parameters, **engine.SETTINGS}
        for name in given:
            if name not in known:
                raise UnknownNameError("keyword", name, known, see="docs/reference/library.md")
        checked_here = self.parameters.keys() - engine.SETTINGS.keys()  # engine settings check themselves
        see = f"planner {self.words} --help"
        return {
            name: self.parameters[name].check(value, see) if name in checked_here else value
            for name, value in given.items()
        }


COMMANDS: dict[str, Command] = {}  #: every command that is declared by a module that was imported


def command(words: str, **declared: Any) -> Callable[[Function], Function]:
    """Declare the command that a function answers, and check its keywords. The keywords are fields of ``Command``."""

    def remember(function: Function) -> Function:
        made = COMMANDS[words] = Command(words, function, **declared)

        @wraps(function)
        def checked(*given: Any, **options: Any) -> Any:
            return function(*given, **made.check(options))

        vars(checked)["declared"] = made
        return checked  # type: ignore[return-value]

    return remember


def taken(options: dict[str, Any], group: type) -> dict[str, Any]:
    return {name: options.pop(name) for name in _members(group) if name in options}


def _members(group: type) -> dict[str, Any]:
    return {name: alias for one in group.__mro__ for name, alias in inspect.get_annotations(one).items()}


def _of_function(function: Callable[..., Any]) -> Iterator[Parameter]:
    for parameter in inspect.signature(function).parameters.values():
        alias, positional = parameter.annotation, parameter.kind is parameter.VAR_POSITIONAL
        if isinstance(alias, str):
            alias = function.__globals__.get(alias.removesuffix(" | None"))
        elif get_origin(alias) is not Annotated:
            alias = next((one for one in get_args(alias) if get_origin(one) is Annotated), None)
        yield from _declared(parameter.name, alias, None if positional else parameter.default, positional)


def _declared(name: str, alias: Any, default: Any, positional: bool = False) -> Iterator[Parameter]:
    kind, *metadata = get_args(alias) or (None,)
    bounds = tuple(rule for rule in metadata if not isinstance(rule, Option))
    yield from (Parameter(name, kind, default, one, bounds, positional) for one in metadata if isinstance(one, Option))


def _of_engine(name: str, *, searched: bool) -> Parameter:
    from annotated_types import Interval

    row = engine.SETTINGS[name]
    counts = row.kind in (int, int | None)
    option = Option(
        *row.flags,
        kind={"speculative_config": str | None, "env": list[str]}.get(name),
        panel=ENGINE,
        help=f"{row.help} Default: searched." if searched else row.help,
        metavar=row.metavar or None,
    )
    bounds = (Interval(ge=row.least, le=row.most),) if counts else ()
    return Parameter(name, row.kind, None if searched else row.default, option, bounds)
