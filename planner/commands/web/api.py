"""The commands as an HTTP API: ``GET /api/fit?model=...&gpu=...`` calls the function of ``planner fit``.

Nothing names a file: parameters that are paths are not offered, and neither are other servers."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Interval
from pydantic import TypeAdapter

import planner
from planner.commands.declare import COMMANDS, REQUIRED, Argument, Command, Option, Parameter
from planner.errors import InputError, UnknownNameError
from planner.planning import typed
from planner.resources import package_dir, tables_of

ANSWERED: Mapping[str, list[str]] = tables_of(package_dir("commands") / "web" / "answered.toml")
#: Closed over HTTP: another server, variables of a shell, a second model, the cache of the hub, what is written.
CLOSED = frozenset((
    "refresh", "variables", "speculative_config", "speculative_acceptance_rate", "output",
    "force", "sweep",
))  # fmt: skip
LINE = "line"  #: of check: a text, or its words
MOST_PROMPTS = 10_000  #: requests of one question


@dataclass(frozen=True)
class Operation:
    """One function of the library, as a path."""

    path: str
    command: Command
    function: "Callable[..., planner.Answer]"

    @cached_property
    def parameters(self) -> Mapping[str, Parameter]:
        every = dict(self.command.parameters)
        if prompts := every.get("num_prompts"):
            every["num_prompts"] = replace(prompts, bounds=(Interval(ge=1, le=MOST_PROMPTS),))
        if self.path == "fit":  # one GPU; the path fits is for several
            every["gpu"] = replace(every["gpu"], option=Option(kind=str, help="Profile id or alias; or 'local'."))
            del every["partitions"]
        return {name: one for name, one in every.items() if name not in CLOSED and not _names_a_file(one)}

    def answer(self, query: Iterable[tuple[str, str]]) -> "planner.Answer":
        """Call the function. Raises what it raises, and InputError for a parameter that it does not have."""
        given: dict[str, list[str]] = {}
        for name, text in query:
            if name not in self.parameters:
                raise UnknownNameError("parameter", name[:80], self.parameters, see="/api/openapi.json")
            given.setdefault(name, []).append(text)
        for name, one in self.parameters.items():
            if one.default is REQUIRED and name not in given:
                raise InputError(f"the parameter {name} is missing", hint="/api/openapi.json lists all parameters")
        return self.function(**{name: _value(self.parameters[name], texts) for name, texts in given.items()})


@cache
def operations() -> dict[str, Operation]:
    functions = {path: getattr(planner, name) for path, (_, name) in ANSWERED.items()}  # declares their commands
    return {path: Operation(path, COMMANDS[ANSWERED[path][0]], function) for path, function in functions.items()}


def call(path: str, query: Iterable[tuple[str, str]]) -> tuple[str, bool]:
    """The answer of an operation as JSON, and whether it is positive."""
    answer = operations()[path].answer(query)
    return answer.to_json(), answer.ok


def _kind(parameter: Parameter) -> Any:
    """The type of the words that are typed, without None."""
    kind = parameter.kind
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else str
    return kind


def _names_a_file(parameter: Parameter) -> bool:
    if isinstance(parameter.type, str) or parameter.name == LINE:
        return False
    kinds = {parameter.type, *get_args(parameter.type), parameter.option.kind}
    return any(get_origin(one) is PathLike or (isinstance(one, type) and issubclass(one, PathLike)) for one in kinds)


def _value(parameter: Parameter, texts: list[str]) -> Any:
    kind, option, name = _kind(parameter), parameter.option, parameter.name
    if name == LINE:
        return texts[0] if len(texts) == 1 else texts
    value: Any = texts if get_origin(kind) is list else texts[0]
    if value is not texts and len(texts) > 1:
        raise InputError(f"{name} is given {len(texts)} times", hint="give it once")
    if kind in (int, float, bool):
        bounds = parameter.bounds if name == "num_prompts" else ()  # the function checks the others
        value = typed(name, value, Annotated[kind, *bounds] if bounds else kind, flag=name, strict=False)
    return value if option.read is None else option.read(value)


def openapi(offered: Mapping[str, Operation]) -> dict[str, Any]:
    document = tables_of(package_dir("commands") / "web" / "openapi.toml")
    paths = {f"/api/{path}": {"get": {**_described(one), **document["operation"]}} for path, one in offered.items()}
    info = {"title": "planner", "version": planner.__version__, "description": document["description"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": document["components"]}


def _described(one: Operation) -> dict[str, Any]:
    return {
        "operationId": one.path.replace("/", "_"),
        "summary": one.command.help,
        "description": inspect.getdoc(one.function) or "",
        "parameters": [_parameter(parameter) for parameter in one.parameters.values()],
    }


def _parameter(parameter: Parameter) -> dict[str, Any]:
    kind, default = _kind(parameter), parameter.default
    bounds = {"least": "minimum", "most": "maximum"}
    schema = TypeAdapter(kind).json_schema() | {bounds[key]: value for key, value in parameter.limits.items()}
    if isinstance(default, bool | int | str) or (isinstance(default, float) and default < float("inf")):
        schema["default"] = default
    described = {
        "name": parameter.name,
        "in": "query",
        "required": default is REQUIRED and parameter.name != LINE,
        "schema": schema,
        "description": parameter.option.settings.get("help", ""),
    }
    repeated = get_origin(kind) is list or isinstance(parameter.option, Argument)
    return described | ({"style": "form", "explode": True} if repeated else {})
