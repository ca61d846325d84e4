"""Find the server's command in a shell script. Nothing is executed.

It reads the part of the shell's grammar that launch scripts use: quotes, comments, continued lines, here-documents,
variables and arrays that the script assigns. A value that only a run has, such as ``$(nproc)`` or a variable from
outside, stays as it is written.

>>> find_command('MODEL=org/model\\nexec vllm serve "$MODEL" --max-num-seqs 8  # ours').argv
('vllm', 'serve', 'org/model', '--max-num-seqs', '8')
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner.errors import InputError

API_SERVER = "vllm.entrypoints.openai.api_server"

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(\[[@*]\])?(?::?-(.*?))?\})", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?^\t*\2$", re.DOTALL | re.MULTILINE)
_OFFICIAL_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm/vllm-openai[\w.-]*(?:[:@][\w.:-]+)?")
_DECLARE = frozenset(("export", "local", "readonly", "declare", "typeset"))
_CONTAINERS = frozenset(("docker", "podman", "nerdctl"))
_ENDS = frozenset("\n;&|()")


@dataclass(frozen=True, slots=True)
class Found:
    """A server's command line, and the variables that are set for it."""

    argv: tuple[str, ...]  #: from the program on: vllm serve MODEL ..., or python3 -m vllm.entrypoints... --model MODEL
    env: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a word: quotes decide whether variables are replaced in it, and whether it falls apart at spaces."""

    text: str
    expands: bool = False
    splits: bool = False


_Word = list[_Piece]


def find_command(line: str | Sequence[str]) -> Found:
    """The one ``vllm serve`` command of a script, or of words that a shell has split.

    Raises InputError when there is none, when there are several that differ, or when a quote is not closed.
    """
    if not isinstance(line, str):
        command = _found_in(line)
        if command is None:
            raise InputError(
                f"{' '.join(line)[:80]!r} is no vllm serve line", hint="write: planner check -- vllm serve MODEL ..."
            )
        return command
    found = list(_Script().run(line))
    distinct = {one.argv: one for one in found}
    if not distinct:
        raise InputError(
            "there is no vllm serve command in this", hint="give the line itself: planner check -- vllm serve MODEL ..."
        )
    if len(distinct) > 1:
        raise InputError(
            f"{len(distinct)} different vllm serve commands are in this script",
            hint="give one of them: planner check -- vllm serve MODEL ...",
        )
    return found[-1]


def _found_in(words: Sequence[str], exported: dict[str, str] | None = None) -> Found | None:
    """The server's command in a list of words that a shell has split: after wrappers, in a container's options."""
    for at, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == "vllm" and words[at + 1 : at + 2] == ["serve"]:
            return Found(tuple(words[at:]), {**(exported or {}), **_variables(words[:at])})
        if word == "-m" and words[at + 1 : at + 2] == [API_SERVER]:
            return Found(tuple(words[max(at - 1, 0) :]), {**(exported or {}), **_variables(words[:at])})
    return _in_container(words) if any(word.rsplit("/", 1)[-1] in _CONTAINERS for word in words) else None


def _variables(before: Sequence[str]) -> dict[str, str]:
    """Assignments in front of a program, ``env`` and a container's ``--env`` included."""
    words = [word.split("=", 1)[1] if word.startswith(("--env=", "-e=")) else word for word in before]
    return {match[1]: match[3] for word in words if (match := _ASSIGNMENT.fullmatch(word))}


def _in_container(words: Sequence[str]) -> Found | None:
    """``docker run ... --entrypoint vllm IMAGE serve MODEL``, or an image whose entry point is the server."""
    entry = next((value for flag, value in pairwise(words) if flag == "--entrypoint"), "")
    entry = next((w.split("=", 1)[1] for w in words if w.startswith("--entrypoint=")), entry)
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        if entry.rsplit("/", 1)[-1] == "vllm" and rest[:1] == ["serve"]:
            return Found(("vllm", *rest), _variables(words[:at]))
        if not entry and _OFFICIAL_IMAGE.fullmatch(word) and rest:
            return Found(("vllm", "serve", *rest), _variables(words[:at]))
    return None


class _Script:
    """The variables of a script while its commands are read one after the other."""

    def __init__(self) -> None:
        self.scalars: dict[str, str] = {}
        self.arrays: dict[str, list[str]] = {}
        self.exported: dict[str, str] = {}

    def run(self, text: str) -> Iterator[Found]:
        """Every server's command, in the order of the script."""
        for command in _commands(_HERE_DOCUMENT.sub("", text.replace("\r\n", "\n"))):
            if isinstance(command, tuple):
                self._assign_array(*command)
            else:
                yield from self._simple([word for written in command for word in self._expand(written)])

    def _simple(self, words: list[str]) -> Iterator[Found]:
        """One command: assignments are remembered, shells called with a command are looked into."""
        declares = bool(words) and words[0] in _DECLARE
        assigned = [_ASSIGNMENT.fullmatch(word) for word in (words[1:] if declares else words)]
        if assigned and (declares or all(assigned)):
            for match in filter(None, assigned):
                self.scalars[match[1]] = self.scalars.get(match[1], "") + match[3] if match[2] else match[3]
            if words[0] == "export":
                names = {word.split("=", 1)[0] for word in words[1:]}
                self.exported |= {name: self.scalars[name] for name in names if name in self.scalars}
            return
        found = _found_in(words, self.exported)
        if found:
            yield found
            return
        for word in words:
            if " " in word and ("vllm serve" in word or API_SERVER in word):
                yield from self.run(word)

    def _assign_array(self, name: str, words: list[_Word]) -> None:
        values = [value for word in words for value in self._expand(word)]
        kept = self.arrays.get(name.removesuffix("+"), []) if name.endswith("+") else []
        self.arrays[name.removesuffix("+")] = kept + values

    def _expand(self, written: _Word) -> list[str]:
        """The words that a written word becomes: none, one or several."""
        words = [""]
        quoted = False
        for piece in written:
            quoted = quoted or not piece.splits
            if not piece.expands:
                words[-1] += piece.text
                continue
            whole = _VARIABLE.fullmatch(piece.text)
            if whole and whole[3] and (whole[2] in self.arrays):
                values = self.arrays[whole[2]]
            else:
                text = _VARIABLE.sub(self._value, piece.text)
                values = re.split(r"\s+", text) if piece.splits and text != piece.text else [text]
            for place, value in enumerate(values):
                if place:
                    words.append(value)
                else:
                    words[-1] += value
        return [word for word in words if word or quoted]

    def _value(self, match: re.Match[str]) -> str:
        """What a variable stands for; the text itself where the script does not say."""
        name = match[1] or match[2]
        if name in self.arrays:
            return " ".join(self.arrays[name]) if match[3] else self.arrays[name][0] if self.arrays[name] else ""
        if name in self.scalars:
            return self.scalars[name]
        if match[4] is None:
            return match[0]
        return _VARIABLE.sub(self._value, match[4].strip("\"'"))


# --- characters to words -------------------------------------------------------------------------------------------


def _commands(text: str) -> Iterator[list[_Word] | tuple[str, list[_Word]]]:
    """Simple commands as lists of words, and assignments of arrays as (name, words)."""
    reader = _ScriptReader(text)
    while not reader.at_end:
        command = reader.command()
        array = reader.array_name(command)
        if array:
            yield array, reader.array()
        elif command:
            yield command


class _ScriptReader:
    """Reads words off a text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def at_end(self) -> bool:
        return self.at >= len(self.text)

    def array_name(self, command: list[_Word]) -> str:
        """``NAME`` (or ``NAME+``) where the last word read is ``NAME=`` and a parenthesis opened right behind it."""
        if not command or self.text[self.at - 1 : self.at] != "(":
            return ""
        last = "".join(piece.text for piece in command[-1])
        return last.rstrip("=") if _ARRAY.fullmatch(last) and self.text[self.at - 2] == "=" else ""

    def array(self) -> list[_Word]:
        """The words up to the closing parenthesis, over several lines."""
        words: list[_Word] = []
        while not self.at_end:
            words += self.command()
            if self.text[self.at - 1] == ")":
                break
        return words

    def command(self) -> list[_Word]:
        """The words up to the end of the line, or to an operator; redirections are left out."""
        words: list[_Word] = []
        redirected = False
        while not self.at_end:
            character = self.text[self.at]
            if character in _ENDS:
                self.at += 1
                break
            if character in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):  # the line goes on
                self.at += 2
            elif character == "#":
                self._to("\n")
            elif character in "<>":
                self._operator()
                redirected = True
            else:
                word = self._word()
                descriptor = self.text[self.at : self.at + 1] in ("<", ">") and word[0].text.isdigit()
                if not redirected and not descriptor:
                    words.append(word)
                redirected = False
        return words

    def _operator(self) -> None:
        while not self.at_end and self.text[self.at] in "<>&":
            self.at += 1

    def _to(self, character: str) -> None:
        found = self.text.find(character, self.at)
        self.at = len(self.text) if found < 0 else found

    def _word(self) -> _Word:
        pieces: _Word = []
        while not self.at_end and self.text[self.at] not in " \t<>" and self.text[self.at] not in _ENDS:
            character = self.text[self.at]
            if character == "'":
                end = self._closing("'", self.at + 1)
                pieces.append(_Piece(self.text[self.at + 1 : end]))
                self.at = end + 1
            elif character == '"':
                pieces += self._double_quoted()
            elif character == "\\":
                pieces.append(_Piece(self.text[self.at + 1 : self.at + 2].strip("\n")))
                self.at += 2
            elif character in "$`":
                pieces.append(self._dollar(splits=True))
            else:
                start = self.at
                while not self.at_end and self.text[self.at] not in " \t<>'\"\\$`" and self.text[self.at] not in _ENDS:
                    self.at += 1
                pieces.append(_Piece(self.text[start : self.at], splits=True))
        return pieces

    def _double_quoted(self) -> Iterator[_Piece]:
        opened, self.at = self.at, self.at + 1
        yield _Piece("")  # an empty word is a word
        plain = ""
        while self.text[self.at : self.at + 1] != '"':
            character = self.text[self.at : self.at + 1]
            if not character:
                raise self._unclosed(opened)
            if character in "$`":
                yield _Piece(plain)
                plain = ""
                yield self._dollar(splits=False)
            elif character == "\\" and self.text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\"):
                plain += self.text[self.at + 1]
                self.at += 2
            else:
                plain += character
                self.at += 1
        self.at += 1
        yield _Piece(plain)

    def _dollar(self, *, splits: bool) -> _Piece:
        """A variable, or the output of a command, which stays as it is written."""
        start = self.at
        if self.text[start] == "`":
            self.at = self._closing("`", start + 1) + 1
            return _Piece(self.text[start : self.at])
        following = self.text[start + 1 : start + 2]
        if following in ("(", "{"):
            self.at = self._balanced(start + 2, ")" if following == "(" else "}") + 1
            return _Piece(self.text[start : self.at], expands=following == "{", splits=splits)
        self.at += 1
        while not self.at_end and (self.text[self.at].isalnum() or self.text[self.at] == "_"):
            self.at += 1
        return _Piece(self.text[start : self.at], expands=True, splits=splits)

    def _balanced(self, at: int, close: str) -> int:
        """Where the bracket that was opened before ``at`` closes."""
        opened, opening, depth = at, "(" if close == ")" else "{", 0
        while at < len(self.text):
            character = self.text[at]
            if character == close and not depth:
                return at
            depth += (character == opening) - (character == close)
            if character == "\\":
                at += 1
            elif character in "'\"":
                at = self._closing(character, at + 1)
            at += 1
        raise self._unclosed(opened)

    def _closing(self, quote: str, at: int) -> int:
        """Where a quote that was opened before ``at`` closes."""
        opened = at
        while at < len(self.text) and self.text[at] != quote:
            at += 2 if self.text[at] == "\\" and quote != "'" else 1
        if at >= len(self.text):
            raise self._unclosed(opened)
        return at

    def _unclosed(self, opened: int) -> InputError:
        line = self.text.count("\n", 0, opened) + 1
        return InputError(f"a quote or bracket that opens in line {line} is not closed", hint="is the script complete?")
