"""The entry point: it turns errors into exit statuses, and it alone writes to the terminal.

0 yes, 1 no, 2 bad input, 3 the hub could not be reached or refused, 70 a bug, 130 Ctrl-C. ``planner.toml`` has a table
for each command (``[predict.serve]``) with a key for each flag (``max-concurrency``)."""

import gc
import inspect
import re
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from planner import __version__, engine, output
from planner.commands import INTERRUPTED
from planner.commands.declare import COMMANDS as DECLARED
from planner.commands.declare import REQUIRED, Argument, Command, Option, Parameter
from planner.commands.streams import NO, YES, complain, progress_on, write
from planner.errors import InputError, PlannerError, os_errors
from planner.resources import data_dir, package_dir, read_toml, tables_of
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


BUG = 70
#: The error of the parser: the base of the bases of typer's own error, wherever its version keeps them.
ParserError: type[Exception] = typer.BadParameter.__mro__[2]

LOOK_EACH = 1_000_000  #: new objects between two looks for unused cycles: a replay makes many that last, and no cycles
PROGRAMS = ("planner", "llm-serving-planner")  #: the console scripts
_TABLES = tables_of(package_dir("commands") / "commands.toml")
#: Command, in the order of the help -> the module that declares it. Groups of commands, with their help.
COMMANDS, GROUPS = dict[str, str](_TABLES["modules"]), dict[str, str](_TABLES["groups"])
FACTS, PRICES = r"^retrieved = ([\d-]+)$", r"^\[sources\.prices-([\d-]+)\]$"  #: dates in GPU profiles


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status. Never raises for anything that a user can cause."""
    gc.set_threshold(LOOK_EACH)
    data, remarks = StringIO(), StringIO()
    words = list(sys.argv[1:] if arguments is None else arguments)
    typed = Typed(words)
    try:
        with progress_on(sys.stderr), redirect_stdout(data), redirect_stderr(remarks):
            status = _run(typed)
        write(data.getvalue(), sys.stdout, verdict=(NO if status else YES) if typed.verdict_first else "")
        write(remarks.getvalue(), sys.stderr)
    except (KeyboardInterrupt, typer.Abort):
        return complain("interrupted", INTERRUPTED)
    except PlannerError as error:
        cause = error.cause
        for side in ("input", "output"):  # the name that was typed: that of vllm bench serve begins with random
            if any(word.startswith((f"--random-{side}", f"--random_{side}")) for word in words):
                cause = cause.replace(f"--{side}-len", f"--random-{side}-len")
        return complain(cause, error.exit_status, hint=error.hint)
    except ParserError as error:
        return complain(_cause(error, words), 2, hint=_usage_hint(error, words))
    except OSError as error:
        if error.filename is None:
            return _bug()
        return complain(f"{str(error.filename)[:200]}: {error.strerror}", 2, hint="check the path, and who may use it")
    except Exception:  # whatever else escapes
        return _bug()
    return status


def _bug() -> int:
    traceback.print_exc()
    return complain("this is a bug in planner", BUG, hint="please report it with the command and the trace above")


def app_for(words: Sequence[str]) -> typer.Typer:
    """The command line with the command that ``words`` name alone: declaring all takes longer than to answer."""
    app = typer.Typer(
        name="planner",
        help="Plan how to serve a large language model with vLLM, before renting a GPU.",
        add_completion=not words or words[0] not in COMMANDS,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(_root)
    named: Iterable[str] = COMMANDS
    if words[:1] == ["--version"]:
        named = ()
    elif words and words[0] in COMMANDS and not Path(FILE).exists():
        named = words[:1]
    for name in named:
        import_module(f"planner.commands.{COMMANDS[name]}")
        if name not in GROUPS:
            add_command(app, name, DECLARED[name])
            continue
        group = typer.Typer(help=GROUPS[name], rich_markup_mode=None)
        for typed, declared in DECLARED.items():
            if typed.startswith(f"{name} "):
                add_command(group, typed.removeprefix(f"{name} "), declared)
        app.add_typer(group, name=name)
    return app


def _run(typed: Typed) -> int:
    called = Path(sys.argv[0]).stem  # shells complete words by this name
    program = called if called in PROGRAMS else PROGRAMS[0]
    words = typed.words
    if words[:1] == ["predict"]:
        from planner.commands.predict import of_bench

        words = of_bench(words)
    try:
        status = app_for(words)(args=words, prog_name=program, standalone_mode=False, obj=typed)
    except SystemExit as done:  # typer ends so when it has completed a word, or installed that it does
        status = done.code
    if status == INTERRUPTED:  # newer versions of typer answer Ctrl-C so
        raise KeyboardInterrupt
    return status if isinstance(status, int) else 0


def _print_version(value: bool) -> None:
    if value:
        texts = [path.read_text("utf-8") for path in data_dir("hardware").glob("*.toml")]  # parsing takes 0.1 s
        facts, prices = (max(re.findall(line, "".join(texts), re.MULTILINE)) for line in (FACTS, PRICES))
        print(f"planner {__version__}")
        newest = f"{engine.release_text(engine.NEWEST)} of {engine.RELEASES[engine.NEWEST]}"
        print(f"newest vLLM known: {newest}; GPU facts of {facts}, prices of {prices}")
        raise typer.Exit


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    del version
    if context.invoked_subcommand is None:
        print((package_dir("commands") / "start.txt").read_text(encoding="utf-8"), end="")
        raise typer.Exit
    context.default_map = read_defaults(context.command)


def _cause(error: Exception, words: Sequence[str]) -> str:
    if named := getattr(error, "possibilities", None):  # typer counts the dashes too: --seed is like --use-case to it
        without = {one.lstrip("-"): one for one in named}
        near = get_close_matches(vars(error)["option_name"].lstrip("-"), without, 1, 0.8)
        vars(error)["possibilities"] = [without[one] for one in near]
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    if option := getattr(error, "option_name", ""):  # the parser takes -tp for -t and -p
        whole = next((word.partition("=")[0] for word in words if word.startswith(option)), option)
        vars(error)["option_name"], message = whole, message.replace(f": {option}", f": {whole}", 1)
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context and parameter and source_of(context, parameter.name) == FROM_FILE:
        return f"{FILE}: {message}"
    return message or "no command is given"


def _usage_hint(error: Exception, words: Sequence[str]) -> str:
    context, message = getattr(error, "ctx", None), str(getattr(error, "message", ""))
    if option := getattr(error, "option_name", ""):
        meant = _TABLES["meant"].get(option, option)
        option = meant.partition(" ")[0]
        if context and any(option in parameter.opts for parameter in context.command.params):
            return f"use {meant}"
        if row := next((row for row in engine.SETTINGS.values() if option in row.flags), None):
            searched = words[0] in ("recommend", "fleet") and "searched" in row.tags.split()
            first = "fit" if row.only == "memory" else "predict"
            takes = "planner fit takes" if row.ours and first == "fit" else f"planner {first} and planner check take"
            return f"{words[0]} searches it: " * searched + f"{takes} {option}"
        for module in COMMANDS.values():
            import_module(f"planner.commands.{module}")
        of_commands = ((name, one) for name, command in DECLARED.items() for one in command.parameters.values())
        if (takers := [f"planner {name}" for name, one in of_commands if one.flag == option]) and context:
            load = "--workload NAME is its load; " * (option == "--use-case" and words[0] in ("compare", "predict"))
            named = f"{', '.join(takers[:3])} and others" if takers[3:] else " and ".join(takers)
            return f"{load}{named} take{'s' * (len(takers) == 1)} {option}"
    if choices := re.search(r"'(.*)' is not one of (.*)", message):
        names = re.findall(r"'([^']+)'", choices[2])
        if near := get_close_matches(choices[1], names, n=2, cutoff=0.5):
            return f"nearest: {', '.join(near)}"
    return f"see {context.command_path if context else 'planner'} --help"
