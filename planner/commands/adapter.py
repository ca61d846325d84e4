"""From a declared command to a command line: parse the words, call the function, print what it answers."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from planner.commands.declare import REQUIRED, Argument, Command, Option, Parameter
from planner.commands.planner_toml import FILE, FROM_FILE, TYPED, UNSAID, source_of
from planner.errors import InputError
from planner.secrets import masked

if TYPE_CHECKING:
    from planner.output import Answer

FORMAT = Parameter(
    "format", Literal["table", "json", "csv", "markdown"], "table", Option(help="Form of the data on stdout.")
)


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
    """Add the command to ``app`` under ``name``; with ``--format`` where the function prints nothing itself."""
    parameters = dict(declared.parameters)
    parameters.setdefault("format", FORMAT)

    def answer(context: typer.Context, **typed: Any) -> int:
        return _answer(context, declared, parameters, typed)

    signature = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    signature += [_as_typer(parameter) for parameter in parameters.values()]
    vars(answer)["__signature__"] = inspect.Signature(signature, return_annotation=int)
    answer.__annotations__ = {one.name: one.annotation for one in signature}
    settings: dict[str, Any] = {"context_settings": dict(declared.settings)} if declared.settings else {}
    app.command(name, help=declared.help, cls=GroupedHelp, **settings)(answer)


def _as_typer(parameter: Parameter) -> inspect.Parameter:
    option, kind, default = parameter.option, parameter.kind, parameter.default
    if default is not REQUIRED:
        default = default if isinstance(default, bool | int | float | str) else option.default
        if default is None:
            kind = kind | None
        elif option.kind is str:
            default = str(default)
    info: Any
    if isinstance(option, Argument):
        info = typer.Argument(**option.settings)
    else:
        flag = parameter.flag
        names = option.names or (f"{flag}/--no-{flag[2:]}" if kind == bool | None else flag,)
        limits = parameter.limits if option.kind is None else {}
        info = typer.Option(*names, rich_help_panel=option.panel or None, **(option.settings | limits))
    annotation: Any = Annotated[kind, info]
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _answer(
    context: typer.Context, declared: Command, parameters: Mapping[str, Parameter], typed: Mapping[str, Any]
) -> int:
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
    """The source of each value. planner.toml gives way to what the command line says about the same."""
    sources = {name: source_of(context, name) for name in typed}
    for named, others in declared.rivals:
        if any(sources.get(name) == TYPED for name in named):
            sources |= {name: UNSAID for name in others if sources.get(name, TYPED) != TYPED}
    return sources


def _call(
    context: typer.Context, declared: Command, parameters: Mapping[str, Parameter], stated: Mapping[str, Any]
) -> Any:
    words: list[Any] = []
    options: dict[str, Any] = {}
    for name, value in stated.items():
        parameter = parameters[name]
        value = value if parameter.option.read is None else parameter.option.read(value)
        if parameter.positional:
            words += value
        elif parameter is not FORMAT:
            options[name] = value
    if "command_line" in inspect.signature(declared.function).parameters:
        options["command_line"] = masked(shlex.join(["planner", *(context.obj.words if context.obj else ())]))
    return declared.function(*words, **declared.check(options))


def show(answer: Answer, form: str) -> int:
    """Print an answer; gives the exit status that it means."""
    from planner.output import print_answer

    print_answer(answer, form)
    return 0 if answer.ok else 1
