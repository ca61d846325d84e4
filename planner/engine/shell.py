"""Find vLLM's commands in a shell script. Nothing is executed.

tree-sitter reads the grammar of bash; this module follows what launch scripts do with it: variables and arrays that the
script assigns, functions, loops over written words, branches. A branch is decided where its condition is: by what the
script assigns, by what the caller sets, by the GPU that a command such as ``nvidia-smi`` would ask. Where it is not,
each branch is followed. A value that only a run has, such as ``$(nproc)``, stays as it is written.

>>> (launch,) = find_launches('MODEL=org/model\\nexec vllm serve "$MODEL" --max-num-seqs 8  # ours')
>>> launch.server.argv
('vllm', 'serve', 'org/model', '--max-num-seqs', '8')
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from planner.engine.found import CLIENTS, OFFLINE, Found, found_in, version_of_images
from planner.errors import InputError
from planner.hardware import GpuProfile
from planner.units import whole_number

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Tree

MOST_BRANCHES = 32  #: ways through a script that are followed
MOST_TURNS = 256  #: of a loop
MOST_STATEMENTS = 10_000  #: that are followed, those of loops and functions each time
MOST_CHARACTERS = 2**17  #: of a variable, all words of an array together; Linux passes no longer word on
MOST_WORDS = 1_000  #: of an array, which each way through a script has its own copy of

_VARIABLE = re.compile(r"\$(?:(\w+|#)|\{(\w+)(?:\[[@*]\])?(?::?-(.*?))?\})", re.DOTALL)
#: What a document leaves to its reader, ``<path/to/output.json>``: a shell would take it for two redirections, which
#: swallow the option behind it.
_OPEN = re.compile(r"(?<![^\s=])<([^\s<>&|;()]*)>(?=\s|$)")
#: ``${NAME[@]}``, ``$@``, ``${@}``, and such a slice of them as ``${@:2}`` or ``${NAME[@]:1:3}``.
_ARRAY = re.compile(r"\$(?:\{(?:(\w+)\[[@*]\]|[@*])(?::\s*(\d{1,9})(?::\s*(\d{1,9}))?)?\}|[@*])")
#: Programs that start no engine, whatever their words are.
_INERT = frozenset(("echo", "printf", "exit", "return", "rm", "mv", "mkdir", "sleep", "wait", "kill", "trap"))
#: Programs that are there where the GPUs are of one vendor.
_TOOLS = {"nvidia-smi": "cuda", "nvcc": "cuda", "rocm-smi": "rocm", "amd-smi": "rocm", "rocminfo": "rocm"}


@dataclass(frozen=True, slots=True)
class Launch:
    """An engine that a script starts: a server, the clients beside it, and when that is."""

    server: Found | None  #: None: only clients
    clients: tuple[Found, ...] = ()
    #: Conditions that only a run decides, as the script has them, with ``not: `` in front where they do not hold
    when: tuple[str, ...] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """What makes two of them the same, whatever led to them."""
        found = (self.server, *self.clients)
        return tuple((one.argv, tuple(sorted(one.env.items())), one.image_version) if one else None for one in found)


def find_launches(
    line: str | Sequence[str], *, gpu: GpuProfile | None = None, given: Mapping[str, str] | None = None
) -> tuple[Launch, ...]:
    """What a script, or a command whose words a shell has split, starts: one for each way through it.

    ``gpu`` answers what the script asks of its machine, ``given`` are variables that the caller sets. An offline
    benchmark is an engine of its own. Raises InputError when there is none, when one way starts several servers that
    differ, or when the text is no shell script.
    """
    if not isinstance(line, str):
        found = found_in(line)
        if found is None:
            raise InputError(f"{' '.join(line)[:80]!r} is no vllm serve line, nor one of its benchmarks", hint=_HINT)
        return tuple(_launches(_World(found=[found])))
    script = _Script(gpu, dict(given or {}))
    try:
        worlds = script.run(line, [_World(scalars=dict(given or {}))])
    except RecursionError as error:
        raise InputError("this script is nested too deeply", hint=_HINT) from error
    launches = [launch for world in worlds for launch in _launches(world)]
    if not launches:
        raise InputError("there is no vllm serve command in this, nor one of its benchmarks", hint=_HINT)
    return paired(launches)


def paired(launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """Each engine once; clients that stand alone belong to the only server, and else are no answer beside one."""
    if any(launch.server for launch in launches):
        alone = tuple(client for one in launches if one.server is None for client in one.clients)
        launches = [launch for launch in launches if launch.server]
        if alone and len(launches) == 1:
            launches = [replace(launches[0], clients=(*launches[0].clients, *alone))]
    return tuple({one.identity: one for one in reversed(launches)}.values())[::-1]


_HINT = "give the line itself: planner check -- vllm serve MODEL ..."


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a word."""

    text: str
    quoted: bool = False
    splits: bool = False  #: falls apart at spaces: a variable outside quotes
    words: Sequence[str] | None = None  #: of an array, each a word


@dataclass
class _World:
    """One way through a script: its variables, and what was found on it."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    local: set[str] = field(default_factory=set)  #: names of the function that is running
    found: list[Found] = field(default_factory=list)
    when: tuple[str, ...] = ()
    ended: bool = False
    image_version: str = ""  #: of the container whose words these are

    def copy(self, *when: str) -> _World:
        """The same, to go another way from here."""
        arrays = {name: list(words) for name, words in self.arrays.items()}
        return replace(
            self, scalars=dict(self.scalars), arrays=arrays, exported=set(self.exported), local=set(self.local),
            found=list(self.found), when=(*self.when, *when),
        )  # fmt: skip

    def state(self, unread: Set[str]) -> tuple[object, ...]:
        """What is equal where two ways go on alike, whatever led to them; variables of ``unread`` do not count."""
        scalars = frozenset(item for item in self.scalars.items() if item[0] not in unread)
        arrays = frozenset((name, tuple(words)) for name, words in self.arrays.items() if name not in unread)
        return self.ended, frozenset(self.exported), frozenset(self.local), scalars, arrays

    def built_in(self, words: Sequence[str]) -> bool:
        """Do what a command of the shell itself does to a way; whether it is one, or none that starts anything."""
        match words:
            case ["exit" | "return", *_]:
                self.ended = True
            case ["export", *names]:
                self.exported |= set(names)
            case ["shift", *counts] if "@" in self.arrays:
                self.pass_words(self.arrays["@"][_shifted(counts) :])
            case ["set", "--", *passed]:
                self.pass_words(passed)
            case _:
                return words[0] in _INERT
        return True

    def pass_words(self, words: Sequence[str]) -> None:
        """Let ``$1``, ``$2``, ``$@`` and ``$#`` be these words; ``$0`` stays."""
        self.arrays["@"] = _small(list(words))

    def passed(self, name: str) -> str | None:
        """``$1`` and the like, or ``$#``; None for other names, and where the script does not say."""
        words = self.arrays.get("@")
        place = len(words or ()) if name == "#" else whole_number(name)
        if words is None or name == "0" or place is None:
            return None
        return str(place) if name == "#" else "".join(words[place - 1 : place])

    def back_in(self, caller: _World) -> _World:
        """This way behind the end of a function, where its words and its local variables are the caller's again."""
        names = self.local | {"@"}
        _put_back(self.scalars, caller.scalars, names)
        _put_back(self.arrays, caller.arrays, names)
        return replace(self, local=set(caller.local), ended=False, image_version=caller.image_version)


def _shifted(counts: Sequence[str]) -> int:
    number = whole_number(counts[0]) if counts else None
    return 1 if number is None else number


V = TypeVar("V")


def _put_back(ours: dict[str, V], theirs: Mapping[str, V], names: Iterable[str]) -> None:
    """Let each of ``names`` be theirs again, or unset."""
    for name in names:
        ours.pop(name, None)
        if name in theirs:
            ours[name] = theirs[name]


def _launches(world: _World) -> Iterator[Launch]:
    """The engines of one way. Raises InputError for several servers that differ."""
    servers = {one.argv: one for one in world.found if one.command == "serve"}
    if len(servers) > 1:
        raise InputError(
            f"{len(servers)} different vllm serve commands are in this script",
            hint="give one of them: planner check -- vllm serve MODEL ...",
        )
    clients = tuple({one.argv: one for one in world.found if one.command in CLIENTS}.values())
    if servers or clients:
        yield Launch(next(iter(servers.values()), None), clients, world.when)
    for one in {Launch(one).identity: one for one in world.found if one.command in OFFLINE}.values():
        yield Launch(one, (), world.when)


def _parser() -> Parser:
    """One for each text: threads must not share one."""
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class _Script:
    """Follows a script through every way that is open."""

    def __init__(self, gpu: GpuProfile | None, given: Mapping[str, str]) -> None:
        self.gpu = gpu
        self.given = given  #: what the caller sets stays set
        self.functions: dict[str, Node] = {}
        self.statements = 0  #: followed so far
        self.texts: list[str] = []  #: those that are being followed, each in the one before
        self.trees: dict[str, Tree] = {}  #: by text, which a loop may have often; functions hold on to their nodes
        self.unread: set[str] = set()  #: variables that decide nothing and reach no command that may start an engine

    def run(self, text: str, worlds: list[_World]) -> list[_World]:
        """The ways out of ``text`` from each of ``worlds``. Raises InputError for what is no shell."""
        if text not in self.trees:
            source = _OPEN.sub(r"{\1}", text.replace("\r\n", "\n")).encode("utf-8", "replace") + b"\n"
            self.trees[text] = _parser().parse(source.decode("latin-1").encode())  # see _plain
            self.unread = _unread(self.trees.values())
        root = self.trees[text].root_node
        if root.has_error:
            raise InputError(
                f"line {_error_line(root)} of this cannot be read as shell: a quote or bracket may not be closed",
                hint="is the script complete? Or give the line itself: planner check -- vllm serve MODEL ...",
            )
        self.texts.append(text)
        worlds = self._each(root.named_children, worlds)
        self.texts.pop()
        return worlds

    def _each(self, nodes: Sequence[Node], worlds: list[_World]) -> list[_World]:
        for node in nodes:
            going = [world for world in worlds if not world.ended]
            worlds = [world for world in worlds if world.ended]
            for world in going:
                worlds += self._node(node, world)
            worlds = self._few(worlds)
        return worlds

    def _few(self, worlds: list[_World]) -> list[_World]:
        """The ways, those that go on alike as one. Raises InputError for more than are followed."""
        worlds = _merged(worlds, self.unread)
        if len(worlds) > MOST_BRANCHES:
            worlds = _joined_where_alike(worlds, self.unread)
        if len(worlds) > MOST_BRANCHES:
            raise InputError(
                f"there are more than {MOST_BRANCHES} ways through this script",
                hint="set the variables that decide, with --set NAME=VALUE, or give the line itself",
            )
        return worlds

    def _node(self, node: Node, world: _World) -> list[_World]:
        """The ways out of one statement."""
        self.statements += 1
        if self.statements > MOST_STATEMENTS:
            raise InputError(f"this script takes more than {MOST_STATEMENTS:,} steps to follow", hint=_HINT)
        forks = {
            "command": self._command, "if_statement": self._if, "case_statement": self._case,
            "for_statement": self._for, "c_style_for_statement": self._inside,
            "while_statement": self._while, "list": self._inside, "pipeline": self._inside,
            "subshell": self._block, "redirected_statement": self._block, "compound_statement": self._block,
            "do_group": self._block, "negated_command": self._block,
        }  # fmt: skip
        if node.type in forks:
            return forks[node.type](node, world)
        if node.type == "variable_assignment":
            self._assign(node, world)
        elif node.type in ("variable_assignments", "declaration_command"):
            self._declare(node, world)
        elif node.type == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name and body:
                self.functions[_text(name)] = body
        return [world]

    def _block(self, node: Node, world: _World) -> list[_World]:
        """What stands inside, in its order; redirections are left out."""
        return self._each([child for child in node.named_children if not child.type.endswith("_redirect")], [world])

    def _inside(self, node: Node, world: _World) -> list[_World]:
        """The same, where a run decides which parts are reached: all are followed, and none ends the script."""
        return [replace(one, ended=False) for one in self._block(node, world)]

    # --- statements ---

    def _assign(self, node: Node, world: _World) -> None:
        target, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if target is None or target.type == "subscript" or _text(target) in self.given:
            return
        name, more = _text(target), any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            words = [word for child in value.named_children for word in self._expand(child, world)]
            world.arrays[name] = _small((world.arrays.get(name, []) if more else []) + words)
            return
        text = self._whole(value, world) if value is not None else ""
        world.scalars[name] = "".join(_small([world.scalars.get(name, "") if more else "", text]))

    def _declare(self, node: Node, world: _World) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child, world)
                child = child.named_children[0]
            if child.type == "variable_name":
                keyword = node.children[0].type
                names = {"export": world.exported, "local": world.local, "declare": world.local}
                names.get(keyword, set()).add(_text(child))

    def _command(self, node: Node, world: _World) -> list[_World]:
        """One command: a function of the script, a shell with a text of its own, or words to look into."""
        before = [child for child in node.children if child.type == "variable_assignment"]
        own = world.copy() if before else world
        for child in before:
            self._assign(child, own)
        assigned = [f"{_text(c.named_children[0])}={own.scalars.get(_text(c.named_children[0]), '')}" for c in before]
        parts = [c for c in node.children if _is_word(c)]
        words = [word for part in parts for word in self._expand(part, world)]
        body = self.functions.get(words[0]) if words else None
        if body is not None:
            return self._call(words, body, world)
        if not words or world.built_in(words):
            return [world]
        if found := found_in([*assigned, *words], self._exported(world)):
            world.found.append(replace(found, image_version=found.image_version or world.image_version))
            return [world]
        for place, word in enumerate(words):
            if " " in word and ("vllm" in word or "benchmark_" in word) and word not in self.texts:
                inner = world.copy()  # as in: bash -c TEXT NAME WORD ...
                inner.image_version = version_of_images(words[:place]) or world.image_version
                inner.pass_words(words[place + 2 :])
                return [one.back_in(world) for one in self.run(word, [inner])]
        return [world]

    def _call(self, words: list[str], body: Node, world: _World) -> list[_World]:
        """A function of the script with its arguments; one that calls itself is not followed again."""
        inner = replace(world.copy(), local=set())
        inner.pass_words(words[1:])
        del self.functions[words[0]]
        worlds = self._each([body], [inner])
        self.functions[words[0]] = body
        return _merged([one.back_in(world) for one in worlds], self.unread)

    def _exported(self, world: _World) -> dict[str, str]:
        return {name: world.scalars[name] for name in sorted(world.exported) if name in world.scalars}

    def _if(self, node: Node, world: _World) -> list[_World]:
        """Each branch whose condition holds, or may."""
        worlds: list[_World] = []
        parts: list[tuple[Node | None, list[Node]]] = [_condition_and_body(node)]
        parts += [_condition_and_body(child) for child in node.named_children if child.type == "elif_clause"]
        last = [child for child in node.named_children if child.type == "else_clause"]
        parts.append((None, last[0].named_children if last else []))
        for condition, body in parts:
            held = True if condition is None else self._holds(condition, world)
            if held is False:
                continue
            if held or condition is None:
                return worlds + self._each(body, [world.copy()])
            said = _text(condition).strip()
            worlds += self._each(body, [world.copy(said)])
            world = world.copy(f"not: {said}")
        return worlds

    def _case(self, node: Node, world: _World) -> list[_World]:
        value = node.child_by_field_name("value")
        text = self._whole(value, world) if value is not None else ""
        items = [child for child in node.named_children if child.type == "case_item"]
        worlds: list[_World] = []
        for item in items:
            patterns = item.children_by_field_name("value")
            body = [child for child in item.named_children if child not in patterns]
            if "$" in text:
                worlds += self._each(body, [world.copy(f"{text} is {'|'.join(map(_text, patterns))}")])
            elif any(fnmatchcase(text, self._whole(pattern, world)) for pattern in patterns):
                return self._each(body, [world])
        return worlds or [world]

    def _for(self, node: Node, world: _World) -> list[_World]:
        """The body for each word that is written; once, where a run decides."""
        name, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value") for word in self._expand(child, world)]
        worlds = [world]
        if name is None or body is None:
            return worlds
        for value in values[:MOST_TURNS] if not any("$" in word for word in values) else [f"${_text(name)}"]:
            for one in worlds:
                if _text(name) not in self.given:
                    one.scalars[_text(name)] = value
            worlds = self._each([body], worlds)
        return worlds

    def _while(self, node: Node, world: _World) -> list[_World]:
        """The body as often as the condition is known to hold and its turns differ; once, where a run decides."""
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        turning, done = [world], list[_World]()
        for turn in range(MOST_TURNS):
            going: list[_World] = []
            for one in turning:
                held = self._holds(condition, one) if condition else None
                held = held if held is None or node.children[0].type == "while" else not held
                before = one.state(self.unread)
                if body is None or held is False or (turn and held is None):
                    done.append(one)
                else:
                    after = self._inside(body, one)
                    ends = [held is None or way.state(self.unread) == before for way in after]
                    done += [way for way, end in zip(after, ends, strict=True) if end]
                    going += [way for way, end in zip(after, ends, strict=True) if not end]
            turning = self._few(going)
            if not turning:
                break
        return self._few(done + turning)

    # --- conditions ---

    def _holds(self, node: Node, world: _World) -> bool | None:
        """Whether a condition is true; None where only a run decides."""
        match node.type:
            case "test_command" | "parenthesized_expression" | "compound_statement" | "redirected_statement":
                inner = [child for child in node.named_children if not child.type.endswith("_redirect")]
                return self._holds(inner[-1], world) if len(inner) == 1 else None
            case "negated_command":
                held = self._holds(node.named_children[0], world)
                return None if held is None else not held
            case "unary_expression":
                return self._unary(node, world)
            case "binary_expression":
                return self._binary(node, world)
            case "list":
                left, right = (self._holds(child, world) for child in node.named_children[:2])
                return _both(left, right) if node.children[1].type == "&&" else _either(left, right)
            case "command":
                return self._says(node, world)
        return None

    def _unary(self, node: Node, world: _World) -> bool | None:
        operator, operand = _text(node.children[0]), node.children[-1]
        if operator == "!":
            held = self._holds(operand, world)
            return None if held is None else not held
        text = self._whole(operand, world)
        if operator not in ("-z", "-n") or "$" in text:
            return None
        return (not text) is (operator == "-z")

    def _binary(self, node: Node, world: _World) -> bool | None:
        left, middle, right = node.children[0], _text(node.children[1]), node.children[-1]
        if middle in ("&&", "||", "-a", "-o"):
            sides = self._holds(left, world), self._holds(right, world)
            return _both(*sides) if middle in ("&&", "-a") else _either(*sides)
        texts = [self._side(side, world) for side in (left, right)]
        if any("$" in text or "`" in text for text in texts):
            return None
        if middle in ("=", "==", "!="):
            return fnmatchcase(texts[0], texts[1]) is (middle != "!=")
        return _compared(texts[0], middle, texts[1])

    def _side(self, node: Node, world: _World) -> str:
        """One side of a comparison; arithmetic names variables without ``$``."""
        text = self._whole(node, world).strip()
        return world.scalars.get(text, f"${text}") if node.type == "variable_name" else text

    def _says(self, node: Node, world: _World) -> bool | None:
        """What a command in a condition answers, where that is known: whether a vendor's tool is there."""
        words = [word for child in node.named_children for word in self._expand(child, world)]
        if words[:1] in (["true"], ["false"]):
            return words[0] == "true"
        if self.gpu and words[:1] and words[0] in ("command", "which", "type", "hash") and words[-1] in _TOOLS:
            return _TOOLS[words[-1]] == self.gpu.platform
        return None

    # --- words ---

    def _expand(self, node: Node, world: _World) -> list[str]:
        """The words that a written word becomes: none, one or several."""
        words, quoted = [""], False
        for piece in self._pieces(node, world):
            quoted = quoted or piece.quoted
            parts = piece.words if piece.words is not None else [piece.text]
            for place, value in enumerate(re.split(r"\s+", piece.text) if piece.splits else parts):
                if place:
                    words.append(value)
                else:
                    words[-1] += value
        return [word for word in words if word or quoted]

    def _whole(self, node: Node, world: _World) -> str:
        """The same as one word, as in an assignment or a condition."""
        pieces = self._pieces(node, world)
        return "".join(" ".join(piece.words) if piece.words is not None else piece.text for piece in pieces)

    def _pieces(self, node: Node, world: _World) -> Iterator[_Piece]:
        text = _text(node)
        match node.type:
            case "command_name" | "concatenation":
                yield from self._joined(node, world)
            case "raw_string":
                yield _Piece(text[1:-1], quoted=True)
            case "ansi_c_string":
                escaped = text[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
                yield _Piece(escaped, quoted=True)
            case "string" | "translated_string":
                yield from self._quoted(node, world)
            case "simple_expansion" | "expansion":
                words = _array_of(text, world)
                value = self._value(text, world)
                yield _Piece("", words=words) if words is not None else _Piece(value, splits=value != text)
            case "command_substitution":
                yield _Piece(self._answer(text))
            case _:
                yield _Piece(re.sub(r"\\(\n)?(.)?", r"\2", text, flags=re.DOTALL))

    def _joined(self, node: Node, world: _World) -> Iterator[_Piece]:
        """The children, and what the grammar leaves between them."""
        at, source = node.start_byte, node.text or b""
        for child in node.children:
            yield _Piece(_plain(source[at - node.start_byte : child.start_byte - node.start_byte]))
            yield from self._pieces(child, world)
            at = child.end_byte

    def _quoted(self, node: Node, world: _World) -> Iterator[_Piece]:
        """What stands between double quotes: an array alone gives words, all else is text."""
        source, base = node.text or b"", node.start_byte
        at = source.index(b'"') + 1
        words = _array_of(_plain(source[at:-1]), world)
        if words is not None:
            yield _Piece("", words=words)
            return
        yield _Piece("", quoted=True)  # an empty word is a word
        for child in node.named_children:
            if child.type != "string_content":
                yield _Piece(_unescaped(source[at : child.start_byte - base]))
                substituted = child.type == "command_substitution"
                yield _Piece(self._answer(_text(child)) if substituted else self._value(_text(child), world))
                at = child.end_byte - base
        yield _Piece(_unescaped(source[at:-1]))

    def _value(self, written: str, world: _World) -> str:
        """What ``$NAME``, ``$1`` or ``${NAME:-DEFAULT}`` stands for; the text itself where the script does not say."""

        def stands_for(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if (passed := world.passed(name)) is not None:
                return passed
            if name in world.arrays:
                words = world.arrays[name]
                return " ".join(words) if "[" in match[0] else (words[0] if words else "")
            if name in world.scalars:
                return world.scalars[name]
            return match[0] if match[3] is None else _VARIABLE.sub(stands_for, match[3].strip("\"'"))

        return _VARIABLE.sub(stands_for, written)

    def _answer(self, written: str) -> str:
        """What a command prints, where the GPU says it: its compute capability or its architecture."""
        gpu = self.gpu
        if gpu and "compute_cap" in written and gpu.compute_capability:
            return "{}.{}".format(*gpu.compute_capability)
        if gpu and gpu.vendor == "amd" and ("rocminfo" in written or "rocm_agent_enumerator" in written):
            return gpu.architecture
        return written


# --- pieces of the tree ----------------------------------------------------------------------------------------------


def _small(words: list[str]) -> list[str]:
    """The words. Raises InputError for more than a launch script has: loops may double them."""
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_CHARACTERS:
        most = f"{MOST_WORDS:,} words or {MOST_CHARACTERS:,} characters"
        raise InputError(f"a variable of this script grows beyond {most}", hint=_HINT)
    return words


def _text(node: Node) -> str:
    return _plain(node.text or b"")


def _plain(source: bytes) -> str:
    """Part of what the parser was given, which is each byte of the text as a character.

    The scanner of tree-sitter-bash asks the C library whether a character is a letter in a way (``isalpha``) that is
    defined up to 255: beyond, it reads foreign memory and may end this process.
    """
    return source.decode().encode("latin-1").decode("utf-8", "replace")


def _is_word(part: Node) -> bool:
    """Whether part of a command is a word of it. The grammar has no name for ``==`` between words."""
    if not part.is_named:
        return part.type in ("==", "=~")
    return part.type != "variable_assignment" and not part.type.endswith("_redirect")


def _array_of(written: str, world: _World) -> list[str] | None:
    """The words of ``$@``, ``${NAME[@]}``, ``${@:2}`` and the like, where the script says them."""
    match = _ARRAY.fullmatch(written)
    words = world.arrays.get(match[1] or "@") if match else None
    if not match or words is None or match[2] is None:
        return words
    first = int(match[2]) - (match[1] is None)  # $@ counts from 1
    return words[max(first, 0) :][: int(match[3]) if match[3] else None]


def _unescaped(source: bytes) -> str:
    """Text between double quotes: a backslash counts in front of four characters and at the end of a line."""
    return re.sub(r'\\(?:\n|([$`"\\]))', lambda match: match[1] or "", _plain(source))


def _condition_and_body(node: Node) -> tuple[Node | None, list[Node]]:
    """The condition of ``if`` or ``elif``, and what stands behind ``then``."""
    then = next(child for child in node.children if child.type == "then")
    inside = [child for child in node.named_children if child.type not in ("elif_clause", "else_clause")]
    conditions = [child for child in inside if child.end_byte <= then.start_byte and child.type != "comment"]
    return conditions[-1] if conditions else None, [child for child in inside if child.start_byte >= then.end_byte]


def _error_line(root: Node) -> int:
    """The line, from 1, in which what cannot be read begins."""
    node = root
    while not (node.is_error or node.is_missing):
        node = next((child for child in node.children if child.has_error or child.is_missing), None) or node
        if not any(child.has_error or child.is_missing for child in node.children):
            break
    return node.start_point[0] + 1


def _merged(worlds: list[_World], unread: Set[str]) -> list[_World]:
    """Ways that go on alike are one, the one that starts all that the other does: what led to it does not matter then.

    Ended ways with nothing found are dropped.
    """
    kept: list[_World] = []
    alike: dict[object, list[int]] = {}  # places in kept
    for world in worlds if len(worlds) > 1 else ():
        places = alike.setdefault(world.state(unread), [])
        for place in places:
            other = kept[place]
            more, less = (world, other) if len(world.found) > len(other.found) else (other, world)
            if more.found == less.found:
                common = tuple(one for one, also in zip(more.when, less.when, strict=False) if one == also)
                kept[place] = replace(more, when=common)
                break
            if all(one in more.found for one in less.found):
                kept[place] = more
                break
        else:
            places.append(len(kept))
            kept.append(world)
    alive = [world for world in kept if world.found or not world.ended]
    return alive or kept or worlds


def _joined_where_alike(worlds: list[_World], unread: Set[str]) -> list[_World]:
    """Ways that go on alike as one that starts what any of them does, where they are too many to be told apart."""
    kept: dict[object, _World] = {}
    for world in worlds:
        state = world.state(unread)
        if state not in kept:
            kept[state] = world
        else:
            more = [one for one in world.found if one not in kept[state].found]
            kept[state] = replace(kept[state], found=kept[state].found + more, when=())
    return list(kept.values())


def _each_of(trees: Iterable[Tree], *types: str) -> Iterator[Node]:
    """Every node of these types."""
    waiting = [tree.root_node for tree in trees]
    while waiting:
        node = waiting.pop()
        waiting += node.named_children
        if node.type in types:
            yield node


def _unread(trees: Iterable[Tree]) -> set[str]:
    """The variables that a script assigns, and reads at most to print them or to count an array's words."""
    assigned, read = set[str](), set[str]()
    for node in _each_of(trees, "variable_name"):
        above = node.parent
        if above and above.type == "variable_assignment" and node == above.named_children[0]:
            into = above.parent
            exported = into and into.type == "declaration_command" and into.children[0].type == "export"
            (read if exported else assigned).add(_text(node))
        elif not _is_inert(node):
            read.add(_text(node))
    for node in _each_of(trees, "raw_string", "heredoc_body"):  # what another shell may read
        read |= set(re.findall(r"\w+", _text(node)))
    return assigned - read


def _is_inert(node: Node) -> bool:
    """Whether a variable is only printed here, or only the number of its words is asked."""
    above = node.parent
    while above and above.type != "command":
        if above.type == "expansion" and _text(above).startswith("${#"):
            return True
        above = above.parent
    name = above and above.child_by_field_name("name")
    return bool(above and name and _text(name) in _INERT and "vllm" not in _text(above))


def _both(left: bool | None, right: bool | None) -> bool | None:
    return False if False in (left, right) else None if None in (left, right) else True


def _either(left: bool | None, right: bool | None) -> bool | None:
    return True if True in (left, right) else None if None in (left, right) else False


def _compared(left: str, operator: str, right: str) -> bool | None:
    """Numbers, by the words of ``test`` or of arithmetic."""
    try:
        a, b = int(left), int(right)
    except ValueError:
        return None
    return {
        "-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b,
        "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b,
    }.get(operator)  # fmt: skip
