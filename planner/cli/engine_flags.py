"""The flags of ``vllm serve``, made from the table of settings for every command that takes them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from planner.engine import SETTINGS, Setting

ENGINE = "Engine (flags of vllm serve)"
#: Flags whose memory is modelled and whose time is not: ``fit`` alone takes them.
MEMORY_ONLY = tuple(name for name, row in SETTINGS.items() if row.only == "memory")
#: Flags that change time alone: ``fit`` does not take them.
TIME_ONLY = tuple(name for name, row in SETTINGS.items() if row.only == "time")


def _speculative(text: str) -> Any:
    from planner.engine import parse_speculative_config

    return parse_speculative_config(text)


def _annotation(row: Setting) -> Any:
    """A parameter of typer for one setting. Bounds of counts are in the help; the others are checked later."""
    counts = row.kind in (int, int | None)
    drafts = row.name == "speculative_config"
    option = typer.Option(
        *row.flags,
        rich_help_panel=ENGINE,
        help=row.help,
        metavar=row.metavar or None,
        envvar=row.env or None,
        show_envvar=bool(row.env),
        min=row.least if counts else None,
        max=row.most if counts else None,
        parser=_speculative if drafts else None,
    )
    return Annotated[Any if drafts else row.kind, option]


#: Field of ``EngineArgs`` -> (annotation, default).
FLAGS: dict[str, tuple[Any, Any]] = {name: (_annotation(row), row.default) for name, row in SETTINGS.items()}


def takes_engine_flags(*names: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the flags ``names``; it receives them as one ``EngineArgs`` named ``args``.

    By default they are all but ``MEMORY_ONLY``. They stand in the help where ``args`` stands among the command's own
    parameters.
    """
    chosen = names or tuple(name for name in FLAGS if name not in MEMORY_ONLY)

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        @wraps(command)
        def parsed(**given: Any) -> int:
            from planner.api.flags import engine_args

            return command(args=engine_args({name: given.pop(name) for name in chosen}), **given)

        parameters = list(_replaced(inspect.signature(command).parameters.values(), chosen))
        parsed.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
        parsed.__annotations__ = {p.name: p.annotation for p in parameters}
        return parsed

    return decorate


def _replaced(own: Any, chosen: tuple[str, ...]) -> Any:
    """The command's own parameters, with the flags in the place of ``args``."""
    for parameter in own:
        if parameter.name != "args":
            yield parameter
            continue
        for name in chosen:
            annotation, default = FLAGS[name]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
