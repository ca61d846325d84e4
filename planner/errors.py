"""The errors that a user can cause, each with an exit status. Anything else that escapes is a bug (exit status 70)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, NamedTuple


class PlannerError(Exception):
    """An error with a cause (one line), a hint (what to do about it) and the engine's settings that the hint adds."""

    exit_status = 2

    def __init__(self, cause: str, *, hint: str, **remedy: Any) -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:  # for another process: classes below have arguments of their own
        return Exception.__new__, (type(self), self.cause), vars(self)


class InputError(PlannerError):
    """A flag, a file or a name given by the user is wrong."""


class UnknownNameError(InputError):
    def __init__(
        self, what: str, name: str, known: Iterable[str] = (), *, see: str, near: list[str] | None = None
    ) -> None:
        spelled = {k.lower(): k for k in known}
        if near is None:
            near = [spelled[match] for match in get_close_matches(name.lower(), spelled, n=3, cutoff=0.5)]
        nearest = f"nearest: {', '.join(near)}; " if near else ""
        super().__init__(f"unknown {what} {name!r}", hint=f"{nearest}see {see}")
        self.nearest = near


class IllegalPlanError(InputError):
    """The settings contradict the model, the GPU or the engine version."""


class UnmodelledError(IllegalPlanError):
    """vLLM has the settings, and planner does not model them."""


class UnsupportedModelError(PlannerError):
    """The model's architecture or quantisation is not understood, so nothing is said about it."""


class HubError(PlannerError):
    """The hub could not be reached, or refused."""

    exit_status = 3


@contextmanager
def os_errors(cause: str, *also: type[Exception], hint: str) -> Iterator[None]:
    """Raise InputError with ``cause``, the reason and ``hint`` for an OSError, or one of ``also``, in this block."""
    kinds: tuple[type[Exception], ...] = (OSError, *also)
    try:
        yield
    except kinds as error:
        raise InputError(f"{cause}: {getattr(error, 'strerror', None) or error}", hint=hint) from error


#: Kinds of pydantic's faults, by how they begin: what a value should be.
_KINDS = {
    "int": "a whole number", "float": "a number", "finite": "a finite number", "bool": "true or false",
    "string": "text", "tuple": "a list", "list": "a list", "dict": "an object", "model": "an object",
}  # fmt: skip
_BOUNDS = {"ge": "at least {:g}", "gt": "more than {:g}", "le": "at most {:g}", "lt": "less than {:g}"}


class Fault(NamedTuple):
    """A fault that pydantic found: the field, dotted, and what is wrong with it, such as ``is 'x', not a number``."""

    field: str
    what: str

    def __str__(self) -> str:
        return f"{self.field or 'it'} {self.what}" if self.what.startswith("is ") else ": ".join(filter(None, self))


def fault_in(error: Any) -> Fault:
    first = error.errors(include_url=False)[0]
    name, kind, limits = ".".join(map(str, first["loc"])), first["type"], first.get("ctx", {})
    if kind == "missing":
        return Fault(name, "is missing")
    if kind == "extra_forbidden":
        return Fault(name, "is not a known field")
    if kind == "value_error":
        return Fault(name, str(limits["error"]))
    bounds = (words.format(limits[limit]) for limit, words in _BOUNDS.items() if limit in limits)
    wanted = next(bounds, None) or _KINDS.get(kind.split("_")[0]) or limits.get("expected") or "of the expected form"
    return Fault(name, f"is {shown(first['input'])}, not {wanted}")


def shown(value: Any) -> str:
    return brief(repr(value))


def brief(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
