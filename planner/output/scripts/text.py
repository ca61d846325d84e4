"""Text of scripts and runbooks: values quoted for their place, templates filled in, options of command lines.

Filters: ``sh``, ``argv``, ``comment`` for shell, ``text``, ``cell``, ``fenced`` for Markdown, ``endpoint`` for nginx.
"""

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import InputError
from planner.resources import data_dir
from planner.secrets import is_secret

if TYPE_CHECKING:
    import jinja2

_ENDPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*:[0-9]{1,5}")
_MARKDOWN = re.compile(r"([\\`*{}\[\]<>#|~!&]|(?<![^\W_])_|_(?![^\W_]))")  # _ inside a word has no meaning


def writable(word: str, file: str = "a script") -> str:
    """Return ``word``. Raises InputError for a NUL and for bytes that are not UTF-8."""
    if "\0" in word or any(unicodedata.category(character) == "Cs" for character in word):
        cause = f"{word!a} cannot be written into {file}"
        raise InputError(cause, hint="it holds a NUL or bytes that are not UTF-8; rename the model, folder or option")
    return word


def sh(value: object) -> str:
    """One word of a shell command. Raises InputError as ``writable``."""
    return shlex.quote(writable(str(value)))


def argv(words: Sequence[object]) -> str:
    """A command line with one option and its values on each line."""
    lines: list[str] = []
    for word in map(str, words):
        if lines and not word.startswith("-"):
            lines[-1] += " " + sh(word)
        else:
            lines.append(sh(word))
    return " \\\n    ".join(lines)


def comment(value: object) -> str:
    """Text on one comment line: line breaks, control and invisible formatting characters become spaces."""
    return _flat(value).rstrip("\\ ")


def text(value: object) -> str:
    """Plain text whose signs have no meaning in Markdown."""
    return _MARKDOWN.sub(r"\\\1", _flat(value))


def cell(value: object) -> str:
    code = _flat(value).replace("|", "\\|")
    fence = "`" * (_longest_run(code) + 1)
    padding = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{fence}{padding}{code}{padding}{fence}"


def fenced(value: object) -> str:
    """A block of code in Markdown; its content cannot close the fence."""
    lines = ["".join(" " if _breaks(c) and c != "\t" else c for c in line).rstrip() for line in str(value).split("\n")]
    code = "\n".join(lines)
    fence = "`" * max(3, _longest_run(code) + 1)
    return f"{fence}\n{code}\n{fence}"


def endpoint(value: object) -> str:
    """``HOST:PORT`` for files that no shell reads. Raises ValueError for anything else."""
    address = str(value)
    if not _ENDPOINT.fullmatch(address):
        raise ValueError(f"nginx.conf takes HOST:PORT only, not {address!r}")
    return address


def _flat(value: object) -> str:
    spaced = ("".join(" " if _breaks(character) else character for character in str(value))).split(" ")
    return " ".join(filter(None, spaced))


def _breaks(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("C") or category in {"Zl", "Zp"}


def _longest_run(code: str) -> int:
    return max((len(run) for run in re.findall("`+", code)), default=0)


def render_template(
    template: str, names: Mapping[str, object], folders: tuple[str, ...], *, escaped: bool = False
) -> str:
    """A template of the first of ``folders``, below ``templates/``, that has it; ``escaped`` as HTML."""
    root = data_dir("templates")
    return _environment(tuple(root / folder for folder in folders), escaped).get_template(template).render(names)


def refuse_tokens(files: Mapping[str, str]) -> None:
    """Raise InputError if a file would hold a token or a key."""
    for name, content in files.items():
        if is_secret(content):
            cause = f"{name} would hold a token or a key"
            hint = "put it into the environment, as HF_TOKEN: the scripts pass it through by name"
            raise InputError(cause, hint=hint)


@lru_cache
def _environment(folders: tuple[Path, ...], escaped: bool) -> "jinja2.Environment":
    import jinja2  # slow, and few commands write files

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        comment_start_string="{//",  # {# is the length of something in bash
        comment_end_string="//}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=escaped,  # noqa: S701  (shell scripts are not HTML: every value passes a filter of its own)
    )
    environment.filters |= {one.__name__: one for one in (sh, argv, comment, text, cell, fenced, endpoint)}
    return environment


def option(words: Sequence[str], flag: str) -> str | None:
    """The value of an option; the last wins."""
    value = None
    for index, word in enumerate(words):
        if word == flag and index + 1 < len(words):
            value = words[index + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return value


def without_option(words: Sequence[str], *flags: str) -> tuple[str, ...]:
    rest, left = iter(words), []
    for word in rest:
        if word in flags:
            next(rest, None)
        elif not word.startswith(tuple(f"{flag}=" for flag in flags)):
            left.append(word)
    return tuple(left)


def with_option(words: Sequence[str], flag: str, value: object) -> tuple[str, ...]:
    """A command line with another value of an option that it has in the form ``--flag value``."""
    return tuple(str(value) if before == flag else w for before, w in zip(("", *words), words, strict=False))
