"""From a declared function to a command: parse the words, call the function, print what it answers."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from planner.commands.declare import Argument, Command, Parameter
from planner.commands.options import FORMAT
from planner.commands.planner_toml import FILE, FROM_FILE, TYPED, UNSAID, source_of
from planner.errors import InputError
from planner.secrets import masked

if TYPE_CHECKING:
    from planner.output import Answer


@dataclass
class Typed:
    """A command line, and what became of it."""

    words: list[str]
    verdict_first: bool = False  #: whether the text that was printed begins with a verdict


class GroupedHelp(TyperCommand):
    """A command whose help lists its options under the headings of their panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, each in the order of the declaration."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None)
                heading = "Arguments" if parameter.param_type_name == "argument" else panel or "Options"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


def add_command(app: typer.Typer, name: str, declared: Command) -> None:
    """Add the command to ``app`` under ``name``."""
    parameters = list(_parameters(declared))

    def answer(context: typer.Context, **typed: Any) -> int:
        return _answer(context, declared, parameters, typed)

    signature = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    signature += [_as_typer(parameter) for parameter in parameters]
    vars(answer)["__signature__"] = inspect.Signature(signature, return_annotation=int)
    answer.__annotations__ = {one.name: one.annotation for one in signature}
    settings = declared.settings and {"context_settings": dict(declared.settings)}
    app.command(name, help=declared.help, cls=GroupedHelp, **settings or {})(answer)


def _parameters(declared: Command) -> Iterator[Parameter]:
    """The function's own parameters, the engine settings, and ``--format`` where the function prints nothing."""
    own = list(declared.parameters())
    yield from own
    if declared.engine:
        from planner.commands.engine_options import engine_parameter
    for name in declared.engine:
        yield engine_parameter(name, searched=name in declared.searched)
    if "format" not in {parameter.name for parameter in own}:
        yield FORMAT


def _as_typer(parameter: Parameter) -> inspect.Parameter:
    option = parameter.option
    kind = parameter.type if option.kind is None else option.kind
    default = parameter.default
    if default is not inspect.Parameter.empty:
        plain = isinstance(default, bool | int | float | str)
        default = default if plain else option.default
        if default is None:
            kind = kind | None
        elif option.kind is str:
            default = str(default)
    if isinstance(option, Argument):
        info = typer.Argument(**option.settings)
    else:
        names = option.names or (_flag(parameter.name, kind),)
        info = typer.Option(*names, rich_help_panel=option.panel or None, **option.settings)
    return inspect.Parameter(
        parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _flag(name: str, kind: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return f"{flag}/--no-{flag[2:]}" if kind == bool | None else flag


def _answer(context: typer.Context, declared: Command, parameters: list[Parameter], typed: Mapping[str, Any]) -> int:
    """Call the function with what was said, and print its answer. Gives the exit status: 0 yes, 1 no."""
    sources = _sources(context, declared, typed)
    stated = {name: value for name, value in typed.items() if sources[name] != UNSAID}
    try:
        answer = _call(context, declared, parameters, stated)
    except InputError as error:
        for name, value in stated.items():
            words = value if isinstance(value, list) else [value]
            if sources[name] == FROM_FILE and any(f"'{word}'" in error.cause for word in words):
                cause = f"{FILE}: [{declared.words.replace(' ', '.')}] {name}: {error.cause}"
                raise InputError(cause, hint=error.hint) from error
        raise
    if answer is None or isinstance(answer, int):
        return answer or 0
    if context.obj is not None:
        context.obj.verdict_first = typed["format"] == "table" and answer.verdict_first
    return show(answer, typed["format"])


def _sources(context: typer.Context, declared: Command, typed: Mapping[str, Any]) -> dict[str, str]:
    """Where each value is from. What planner.toml says gives way to what the command line says about the same."""
    sources = {name: source_of(context, name) for name in typed}
    for named, others in declared.rivals:
        if any(sources.get(name) == TYPED for name in named):
            sources |= {name: UNSAID for name in others if sources.get(name, TYPED) != TYPED}
    return sources


def _call(context: typer.Context, declared: Command, parameters: list[Parameter], stated: Mapping[str, Any]) -> Any:
    words: list[Any] = []
    options: dict[str, Any] = {}
    for parameter in parameters:
        name = parameter.name
        if name not in stated or parameter is FORMAT:
            continue
        value = stated[name] if parameter.option.read is None else parameter.option.read(stated[name])
        if parameter.positional:
            words += value
        else:
            options[name] = value
    if "command_line" in inspect.signature(declared.function).parameters:
        options["command_line"] = masked(shlex.join(["planner", *(context.obj.words if context.obj else ())]))
    return declared.function(*words, **options)


def show(answer: Answer, form: str) -> int:
    """Print an answer; gives the exit status that it means."""
    from planner.output import print_answer

    print_answer(answer, form)
    return 0 if answer.ok else 1
