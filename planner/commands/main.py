"""The entry point: it turns errors into exit statuses, and it alone writes to the terminal.

0 yes, 1 no, 2 bad input, 3 the hub could not be reached or refused, 70 a bug, 130 Ctrl-C."""

import gc
import re
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer

from planner import __version__, engine
from planner.commands import INTERRUPTED
from planner.commands.adapter import FILE, FROM_FILE, Typed, add_command, read_defaults, source_of
from planner.commands.declare import COMMANDS as DECLARED
from planner.commands.streams import NO, YES, complain, progress_on, write
from planner.errors import PlannerError
from planner.resources import data_dir, package_dir, tables_of

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
