"""YAML that every reader understands alike: quotes around words that YAML 1.1, YAML 1.2 or Go's parsers could take
for numbers or truth values (``1e3``, ``y``, ``0o7``)."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import yaml

from planner.output.scripts.text import comment, writable
from planner.resources import data_dir

Json = dict[str, Any]

#: A word of two or more letters, digits and signs that mean nothing in YAML.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*[A-Za-z0-9]")
_TAKEN = frozenset(("yes", "no", "on", "off", "true", "false", "null", "nan", "inf"))


class Script(str):
    """A multi-line script of ours, written as a YAML block. Never for user input."""


def dump(document: object) -> str:
    """``document`` as YAML, keys in the order given. Raises InputError for a NUL and for bytes that are not UTF-8."""
    return yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=False,  # everything beyond ASCII is escaped: no invisible character hides in a file
        width=sys.maxsize,
    )


def fill(file: str, template: str, names: Mapping[str, Any]) -> Json:
    """A part of a file below ``templates/deploy`` with ``names`` for its values ``$name``; None leaves the key out."""
    filled: Json = _filled(_templates(file)[template], names)
    return filled


@lru_cache
def _templates(file: str) -> Json:
    parts: Json = yaml.safe_load((data_dir("templates") / "deploy" / file).read_text(encoding="utf-8"))
    return parts


def _filled(node: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(node, dict):
        filled = {key: _filled(value, names) for key, value in node.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(node, list):
        return [_filled(one, names) for one in node]
    return names[node[1:]] if isinstance(node, str) and node.startswith("$") else node


def escape_dollars(text: str) -> str:
    """Compose replaces ``$NAME`` and ``${NAME}``, Kubernetes ``$(NAME)``. Both read ``$$`` as a plain ``$``."""
    return text.replace("$", "$$")


def escape_words(argv: Sequence[str]) -> list[str]:
    return [escape_dollars(word) for word in argv]


def commented(lines: Sequence[str]) -> str:
    """Lines of comment; each stays one line."""
    return "".join(f"# {comment(line)}".rstrip() + "\n" for line in lines)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True  # no anchors: a list that occurs twice is written twice

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)  # items of a list stand below the key


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    plain = _PLAIN.fullmatch(writable(value, "a file")) and value.lower() not in _TAKEN
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if plain else '"')


_Dumper.add_representer(str, _text)
_Dumper.add_representer(Script, lambda to, text: to.represent_scalar("tag:yaml.org,2002:str", str(text), style="|"))
