"""Run a declared command: parse the words, call the function, print its answer.

``planner.toml`` has a table for each command (``[predict.serve]``) with a key for each flag (``max-concurrency``)."""

import inspect
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from planner import output
from planner.commands.declare import REQUIRED, Argument, Command, Option, Parameter
from planner.errors import InputError, os_errors
from planner.resources import read_toml
from planner.secrets import masked
from planner.units import in_range

FILE = "planner.toml"
TYPED, FROM_FILE, UNSAID = "COMMANDLINE", "DEFAULT_MAP", "DEFAULT"  #: sources of a value, as the parser calls them

FORMAT = Parameter("format", Literal["table", "json", "csv", "markdown"], "table", Option(help="Form of the data."))


@dataclass
class Typed:
    """A command line, and what became of it."""

    words: list[str]
    verdict_first: bool = False  #: whether the text that was printed begins with a verdict


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises InputError for an option of one value that is given several times: the parser keeps the last."""
        rest = super().parse_args(ctx, list(args))
        given: Counter[Any] = Counter(self.make_parser(ctx).parse_args(list(args))[2])
        for one, times in given.items():
            if times > 1 and not (one.is_flag or one.multiple):
                several = "; planner compare takes several" if one.name == "gpu" else ""
                raise InputError(f"{one.opts[0]} is given {times} times", hint=f"give it once{several}")
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
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
    """Add the command to ``app`` under ``name``; with ``--format`` where the function returns an answer."""
    parameters = dict(declared.parameters)
    if inspect.signature(declared.function).return_annotation is not None:
        parameters.setdefault("format", FORMAT)

    def answer(context: typer.Context, **typed: Any) -> int:
        return _answer(context, declared, parameters, typed)

    signature = [inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    signature += [_as_typer(parameter) for parameter in parameters.values()]
    vars(answer)["__signature__"] = inspect.Signature(signature, return_annotation=int)
    answer.__annotations__ = {one.name: one.annotation for one in signature}
    settings: dict[str, Any] = {"context_settings": dict(declared.settings)} if declared.settings else {}
    app.command(name, help=declared.help, cls=_Command, **settings)(answer)


def _as_typer(parameter: Parameter) -> inspect.Parameter:
    option, kind, default, settings = parameter.option, parameter.kind, parameter.default, parameter.option.settings
    if parameter.number:  # typed as text, so that one place words what is wrong
        ends, form = in_range(**parameter.limits), settings.get("metavar") or f"<{parameter.number.__name__}>"
        kind, settings = str, settings | {"metavar": form, "help": settings["help"] + f" [{ends}]" * bool(ends)}
    if default is not REQUIRED:
        default = default if isinstance(default, bool | int | float | str) else option.default
        if default is None:
            kind = kind | None
        elif kind is str:
            default = str(default)
    info: Any
    if isinstance(option, Argument):
        info = typer.Argument(**settings)
    else:
        flag = parameter.flag
        names = option.names or (f"{flag}/--no-{flag[2:]}" if kind == bool | None else flag,)
        info = typer.Option(*names, rich_help_panel=option.panel or None, **settings)
    annotation: Any = Annotated[kind, info]
    return inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _answer(
    context: typer.Context, declared: Command, parameters: Mapping[str, Parameter], typed: Mapping[str, Any]
) -> int:
    sources = {name: source_of(context, name) for name in typed}
    for named, others in declared.rivals:  # planner.toml gives way to what is typed about the same
        if any(sources.get(name) == TYPED for name in named):
            sources |= {name: UNSAID for name in others if sources.get(name, TYPED) != TYPED}
    stated = {name: value for name, value in typed.items() if sources[name] != UNSAID}
    of_file = [name for name in stated if sources[name] == FROM_FILE and name != "format"]
    in_words = [word for name in of_file for word in parameters[name].words(stated[name])]
    try:
        answer = _call(context, declared, parameters, stated, in_words)
    except InputError as error:
        for name, value in stated.items():
            words = map(str, value if isinstance(value, list) else [value])
            if sources[name] == FROM_FILE and any(
                error.cause.endswith(f" {word}") or f"'{word}'" in error.cause for word in words
            ):
                cause = f"{FILE}: [{declared.words.replace(' ', '.')}] {name}: {error.cause}"
                raise InputError(cause, hint=error.hint) from error
        raise
    if answer is None or isinstance(answer, int):
        return answer or 0
    if context.obj is not None:
        context.obj.verdict_first = typed["format"] == "table" and answer.verdict_first
    output.print_answer(answer, typed["format"])
    if in_words:
        output.print_notes([masked(f"from {FILE}: {shlex.join(in_words)}")])
    return 0 if answer.ok else 1


def _call(
    context: typer.Context, declared: Command, parameters: Mapping[str, Parameter], stated: Mapping[str, Any],
    of_file: Sequence[str],
) -> Any:  # fmt: skip
    words: list[Any] = []
    options: dict[str, Any] = {}
    for name, value in stated.items():
        parameter = parameters[name]
        value = parameter.read(value)
        if parameter.positional:
            words += value
        elif parameter is not FORMAT:
            options[name] = value
    if "command_line" in inspect.signature(declared.function).parameters:
        options["command_line"] = masked(shlex.join(["planner", *(context.obj.words if context.obj else ()), *of_file]))
    return declared.function(*words, **declared.check(options))


def read_defaults(root: Any, path: Path = Path(FILE)) -> dict[str, Any]:
    """Defaults of all commands below ``root``, as the parser takes them. Raises InputError for unknown names."""
    if not path.exists():
        return {}
    with os_errors(str(path), hint="make it readable, or move it away"):
        tables = read_toml(path, hint="fix the file, or move it away")
    return _of_group(root, tables, str(path), ())


def source_of(context: typer.Context, name: str) -> str:
    """The source of a value: ``TYPED``, ``FROM_FILE``, ``UNSAID`` or the environment."""
    return str(getattr(context.get_parameter_source(name), "name", UNSAID))


def _of_group(group: Any, tables: dict[str, Any], file: str, names: tuple[str, ...]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for name, table in tables.items():
        command, path = group.commands.get(name), (*names, name)
        if command is None or not isinstance(table, dict):
            known = ", ".join(f"[{'.'.join((*names, other))}]" for other in group.commands)
            raise InputError(f"{file}: {'.'.join(path)} is no table of a command", hint=f"tables are named {known}")
        below = _of_group if hasattr(command, "commands") else _of_command
        defaults[name] = below(command, table, file, path)
    return defaults


def _of_command(command: Any, table: dict[str, Any], file: str, names: tuple[str, ...]) -> dict[str, Any]:
    named = [one for one in command.params if one.name != "help"]
    flags = {_key(spelling): one for one in named for spelling in (*one.opts, *one.secondary_opts)}
    opposites = {_key(spelling) for one in named for spelling in one.secondary_opts}
    defaults: dict[str, Any] = {}
    for key, given in table.items():
        where = f"{file}: [{'.'.join(names)}] {key}"
        parameter = flags.get(_key(key))
        if parameter is None:
            near = get_close_matches(_key(key), flags, n=3)
            nearest = f"nearest: {', '.join(near)}; " if near else ""
            raise InputError(f"{where} is not a flag", hint=f"{nearest}keys are flags without their dashes")
        value = _value(parameter, given, where)
        defaults[parameter.name] = not value if _key(key) in opposites else value
    return defaults


def _key(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _value(parameter: Any, value: Any, where: str) -> Any:
    repeatable = getattr(parameter, "multiple", False) or parameter.nargs == -1
    switch = bool(getattr(parameter, "is_flag", False))
    values = value if isinstance(value, list) and repeatable else [value]
    if any(isinstance(one, bool) is not switch or not isinstance(one, str | int | float) for one in values):
        wanted = "true or false" if switch else "a string or a number" + (", or a list of them" if repeatable else "")
        raise InputError(f"{where} is not {wanted}", hint="write it as after the flag on the command line")
    return values if repeatable else value
