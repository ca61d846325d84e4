"""Find vLLM's commands in shell scripts, compose files and manifests. Nothing is executed.

Read are literal variables and arrays, and an ``if`` that the script, the caller or the GPU decides. Loops and functions
are not followed: a script that launches in one is refused.

>>> (launch,) = find_launches('MODEL=org/model\\nexec vllm serve "$MODEL" --max-num-seqs 8  # ours')
>>> launch.server.argv
('vllm', 'serve', 'org/model', '--max-num-seqs', '8')
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from planner.engine.flags import VllmCommand
from planner.engine.parse import CLIENTS, OFFLINE, command_at, split_command
from planner.errors import InputError
from planner.hardware import GpuProfile

_HINT = "give the line itself: planner check -- vllm serve MODEL ..."
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OFFICIAL_IMAGE = re.compile(r"(?:[\w.:-]+/)*vllm/vllm-openai[\w.-]*(?:[:@][\w.:-]+)?")
#: An image before its tag or digest: a registry, and a path in it.
_NAME = re.compile(r"(?:--[\w-]+=)?[\w.-]+(?::\d+)?(?:/[\w.-]+)+")
#: A release in the tag of an image: v0.11.0, or rocm6.3.1_vllm_0.8.5_20250513.
_TAGGED = re.compile(r"(?<![\d.])0\.\d{1,9}\.\d{1,9}(?:\.\d{1,9}|rc\d{1,9})?(?!\.?\d)")
_CONTAINER = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl)")
_JOINED = re.compile(r"(?<=^--env)=|(?<=^--gpus)=|(?<=^-e)=?(?=\w)|(?<=^--entrypoint)=")  #: an option, its value


@dataclass(frozen=True, slots=True)
class Found:
    argv: tuple[str, ...]  #: from the program on: vllm serve MODEL ..., vllm bench serve ..., python3 -m vllm....
    env: Mapping[str, str]
    image_version: str = ""  #: what its container's image says of the version, as ``version_of_images`` reads it
    wrapped: bool = False  #: by a script of a shell, which may add options

    @property
    def command(self) -> VllmCommand:
        return split_command(self.argv)[0] or "serve"


@dataclass(frozen=True, slots=True)
class Launch:
    server: Found | None  #: None: only clients
    clients: tuple[Found, ...] = ()


def found_in(words: Sequence[str], exported: Mapping[str, str] | None = None) -> Found | None:
    """vLLM's command in a list of words that a shell has split: after wrappers, in a container's options.

    >>> found_in("FOO=1 numactl -N 0 /opt/bin/vllm serve org/model -tp 2".split()).argv
    ('/opt/bin/vllm', 'serve', 'org/model', '-tp', '2')
    """
    for at in range(len(words)):
        if command_at(words, at)[0]:
            start = max(at - 1, 0) if words[at] == "-m" else at
            env = _variables(words[:at], exported or {})
            wrapped = "-c" in words[max(start - 3, 0) : start - 2]  # bash -c SCRIPT NAME vllm serve ...
            return Found(tuple(words[start:]), env, version_of_images(words[:at]), wrapped)
    return _in_container(words, exported or {}) if any(map(_CONTAINER.fullmatch, words)) else None


def _variables(before: Sequence[str], exported: Mapping[str, str]) -> dict[str, str]:
    """Variables of the program behind these words; in a container those of ``--env``, and the GPUs of ``--gpus``."""
    env, host, inside = dict(exported), dict[str, str](), False
    for option, word in pairwise(("", *(part for one in before for part in _JOINED.split(one, 1)))):
        by_name = option in ("-e", "--env")
        match = _ASSIGNMENT.fullmatch(f"{word}={host[word]}" if by_name and word in host else word)
        if not inside and _CONTAINER.fullmatch(word):
            env, host, inside = {}, env, True
        elif inside and option == "--gpus" and (gpus := re.fullmatch(r"\W*device=([\w,-]+)\W*", word)):
            env["CUDA_VISIBLE_DEVICES"] = gpus[1]  # what chooses the same GPUs outside a container
        elif match and (by_name or not (inside and option.startswith("-"))):
            env[match[1]] = match[2]
    return env


def _in_container(words: Sequence[str], exported: Mapping[str, str]) -> Found | None:
    split = [part for word in words for part in _JOINED.split(word, 1)]
    entry = next((value.rsplit("/", 1)[-1] for flag, value in pairwise(split) if flag == "--entrypoint"), "")
    for at, word in enumerate(words):
        argv = ("vllm", *["serve"] * (not entry), *(rest := words[at + 1 :]))
        if (entry == "vllm" and command_at(argv, 0)[0]) or (not entry and rest and _OFFICIAL_IMAGE.fullmatch(word)):
            return Found(argv, _variables(words[:at], exported), version_of_images([word]))
    return None


def version_of_images(words: Sequence[str]) -> str:
    """The release in the tag of the first image of vLLM among ``words`` (``vllm/vllm-openai:v0.11.0``), else its tag,
    ``latest`` where it has none; its name where it has a digest alone or another project's version; ""."""
    for word in words:
        image, _, digest = word.partition("@")
        name, _, tag = image.rpartition(":")
        is_tagged = "vllm" in word and "/" in name and "/" not in tag  # a mount ends in a path
        if is_tagged and ((release := _TAGGED.search(tag)) or _NAME.fullmatch(name)):
            return name if "lmcache/" in name else release[0] if release else tag
        if _OFFICIAL_IMAGE.fullmatch(word):
            return image if digest else "latest"
    return ""


def find_launches(
    line: str | Sequence[str], *, gpu: GpuProfile | None = None, given: Mapping[str, str] | None = None
) -> tuple[Launch, ...]:
    """The engines that a script, or words of a command, starts. ``gpu`` answers what the script asks of its machine,
    ``given`` are variables of the caller. Raises InputError for none, different ones, or a launch in a loop or
    function."""
    if not isinstance(line, str):
        if command := found_in(line):
            return _launches([command])
        raise InputError(f"{' '.join(line)[:80]!r} is no vllm serve line, nor one of its benchmarks", hint=_HINT)
    launches = _launches(_Script(gpu, given or {}).run(line))
    if not launches:
        raise InputError("there is no vllm serve command in this, nor one of its benchmarks", hint=_HINT)
    if (servers := sum(one.server is not None and one.server.command == "serve" for one in launches)) > 1:
        raise InputError(f"{servers} different vllm serve commands are in this script", hint=_HINT)
    return launches


def _launches(commands: Sequence[Found]) -> tuple[Launch, ...]:
    servers = {one.argv: one for one in commands if one.command == "serve"}
    clients = tuple({one.argv: one for one in commands if one.command in CLIENTS}.values())
    offline = {(one.argv, tuple(sorted(one.env.items()))): one for one in commands if one.command in OFFLINE}
    engines = [Launch(one, clients if len(servers) == 1 else ()) for one in servers.values()]
    if clients and not servers and not offline:
        engines = [Launch(None, clients)]
    return (*engines, *(Launch(one) for one in offline.values()))


#: What a document leaves to its reader, ``<path/to/output.json>``: a shell would take it for two redirections, which
#: swallow the option behind it.
_OPEN = re.compile(r"(?<![^\s=])<([^\s<>&|;()]*)>(?=\s|$)")
_HERE = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1([^\n]*)\n(?:[^\n]*\n)*?\t*\2(?=\n|$)")
_SINGLE, _ESCAPED = r"'[^']*+'|\$'(?:\\.|[^'\\])*+'", r"\\[\s\S]"


def _nested(depth: int) -> tuple[str, str]:
    double, inside = _nested(depth - 1) if depth else (r'"(?:\\[\s\S]|[^"\\])*+"', r"(?!)")
    double = rf'"(?:{_ESCAPED}|\${inside}|[^"\\])*+"'
    return double, rf"\((?:{_ESCAPED}|{_SINGLE}|{double}|{inside}|[^()'\"\\])*+\)"


_DOUBLE, _BRACKETS = _nested(4)
_BRACES = rf"\$\{{(?:(?:{_ESCAPED}|{_SINGLE}|{_DOUBLE}|\${_BRACKETS}|[^}}'\"\\])*+|[^}}]*+)\}}"
_EXPANSION = rf"\${_BRACKETS}|`[^`]*+`|{_BRACES}|\$(?:\w+|[@*#?!$-])"
_PIECE = re.compile(rf"(?P<single>{_SINGLE})|(?P<double>{_DOUBLE})|(?P<expansion>{_EXPANSION})|{_ESCAPED}|[^'\"`\\]")
_WORD = rf"(?:{_SINGLE}|{_DOUBLE}|{_EXPANSION}|{_ESCAPED}|(?<==){_BRACKETS}|\$(?![({{])|[^\s;&|()<>'\"`\\$])++"
_TOKEN = re.compile(
    rf"(?P<skip>[ \t]+|\\\n|(?<![^\s;&|()])\#[^\n]*)"
    rf"|(?P<function>(?:function[ \t]+)?[\w-]+[ \t]*\([ \t]*\)|function[ \t]+[\w-]+)"
    rf"|(?P<redirection>(?:\d+|\{{\w+\}})?(?:&>>?|<<<|<<-?|>>|>\||<>|[<>]&|[<>])[ \t]*(?:{_BRACKETS}|{_WORD})?)"
    rf"|(?P<word>\(\((?:[^)]|\)(?!\)))*+\)\)|\[\[(?=\s)(?:{_WORD}|\s|[&|<>()](?!\]))*?\s\]\](?=[\s;&|)]|$)|{_WORD})"
    rf"|(?P<operator>;;&?|;&|&&|\|\||\|&|[;&|()\n])"
)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:\[[@*]\])?(?::?-(.*?))?\})", re.DOTALL)
_ARRAY = re.compile(r'\$(?:[@*]|\{[@*](?::\d+)?\}|\{(\w+)\[@\](?::?\+"?\$\{\1\[@\]\}"?)?\})')
_SET = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_KEYWORDS = frozenset((
    "if", "then", "elif", "else", "fi", "for", "select", "while", "until", "do", "done", "case", "esac", "{", "}", "!",
    "time", "exec",
))  # fmt: skip
_OPAQUE = {"for": "done", "select": "done", "while": "done", "until": "done", "case": "esac"}
_DECLARE = frozenset(("export", "local", "declare", "readonly", "typeset"))
#: Tools of one platform, and the platform: a script that looks for one asks which GPU it is on.
_TOOLS = {"nvidia-smi": "cuda", "nvcc": "cuda", "rocm-smi": "rocm", "amd-smi": "rocm", "rocminfo": "rocm"}
#: Programs that start no engine, whatever their words are.
_INERT = frozenset(("echo", "printf", "exit", "return", "rm", "mv", "mkdir", "sleep", "wait", "kill", "trap"))
MOST_CHARACTERS = 2**17  #: of a variable, all words of an array together; Linux passes no longer word on


def _statements(text: str) -> Iterator[tuple[list[str], int]]:
    """Commands as written, each with its line; a keyword or the head of a function is one. IndexError: unclosed."""
    words, line, at = list[str](), 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise IndexError(line)
        kind, token = match.lastgroup, match[0]
        if kind == "operator" and words:
            yield words, line
            words = []
        elif kind == "function" and not words:
            yield [f"{re.sub(r'^function |[ ()]', '', token)}()"], line
        elif kind == "word" and token in _KEYWORDS and not words:
            yield [token], line
        elif kind in ("word", "function"):
            words.append(token)
        line, at = line + token.count("\n"), match.end()
    if words:
        yield words, line


@dataclass
class _Frame:
    name: str
    end: str
    line: int
    opaque: bool = False  #: what stands inside is not followed
    conditions: list[list[str]] | None = None  #: commands between ``if`` and ``then``, while they are read
    runs: bool | None = True  #: what is read runs; None: undecided
    undecided: bool = False  #: a condition before was
    ended: bool = False  #: a branch before surely runs


class _Script:
    def __init__(self, gpu: GpuProfile | None, given: Mapping[str, str]) -> None:
        self.gpu, self.given, self.scalars = gpu, given, dict(given)  # what the caller sets stays set
        self.arrays: dict[str | None, list[str]] = {None: []}  #: None: the script's own arguments
        self.exported: set[str] = set()
        self.unknown: set[str] = set()  #: variables that only a run knows: set where it is undecided
        self.commands: list[Found] = []
        self.frames: list[_Frame] = []
        self.image_version = ""  #: of the container that runs the text
        self.text = ""

    def run(self, text: str) -> list[Found]:
        text = _OPEN.sub(r"{\1}", text.replace("\r\n", "\n"))
        self.text = text = _HERE.sub(lambda match: match[3] + "\n" * match[0].count("\n"), text)
        head, unread = "", 0
        try:
            for words, line in _statements(text):
                if re.fullmatch(r"[\w-]+\(\)", words[0]):
                    head = words[0].removesuffix("()")
                elif not self._construct(words[0], line, head if words[0] == "{" else ""):
                    self._statement(words)
                head = head if head and words[0] != "{" else ""
            unread = self.frames[-1].line if self.frames else 0
        except IndexError as error:
            unread = int(str(error)) if str(error).isdecimal() else 1
        except RecursionError as error:
            raise InputError("this script is nested too deeply", hint=_HINT) from error
        if unread:
            cause = f"line {unread} of this cannot be read as shell: a quote or bracket may not be closed"
            raise InputError(cause, hint=f"give the complete script, or {_HINT}")
        return self.commands

    def _construct(self, word: str, line: int, function: str) -> bool:
        top = self.frames[-1] if self.frames else None
        if word == "if":
            self.frames.append(_Frame("`if`", "fi", line, conditions=[]))
        elif word in _OPAQUE:
            self.frames.append(_Frame(f"`{word}`", _OPAQUE[word], line, opaque=True, runs=None))
        elif word == "{":
            self.frames.append(_Frame(f"the function {function}", "}", line, opaque=bool(function)))
        elif top and word in ("then", "elif", "else") and top.end == "fi":
            self._branch(top, word)
        elif top and word == top.end:
            self.frames.pop()
        else:
            return word in _KEYWORDS
        return True

    def _branch(self, frame: _Frame, word: str) -> None:
        if word == "elif":
            frame.conditions = []
            return
        held = self._holds(frame.conditions or []) if word == "then" else True
        frame.conditions = None
        frame.undecided = frame.undecided or held is None
        frame.runs = False if frame.ended or held is False else None if frame.undecided else True
        frame.ended = frame.ended or held is True

    def _statement(self, words: list[str]) -> None:
        if self.frames and (conditions := self.frames[-1].conditions) is not None:
            conditions.append(words)
            return
        if words[0].startswith("[[") or any(frame.runs is False for frame in self.frames):
            return  # a test launches nothing, whatever names it compares
        declared = words[0] in _DECLARE
        sets = [word for word in words[declared:] if _SET.fullmatch(word)]
        opaque = next((frame for frame in self.frames if frame.opaque), None)
        if opaque:
            plain = [_plain(word) for word in words]
            launches = found_in(plain) or any(" " in word and "vllm" in word for word in plain)
            if launches and plain[0] not in _INERT:
                raise InputError(f"cannot follow {opaque.name} in line {opaque.line}", hint=_HINT)
        if declared or len(sets) == len(words):
            undecided = any(frame.runs is None for frame in self.frames)
            for word in sets if undecided or not opaque else ():
                self._assign(word, undecided)
            self.exported |= {word.split("=")[0] for word in words[1:]} if words[0] == "export" else set()
        elif not opaque:
            self._command([part for word in words for part in self._expand(word)])

    def _command(self, words: list[str]) -> None:
        if not words or words[0] in _INERT:
            return
        exported = {name: self.scalars[name] for name in sorted(self.exported) if name in self.scalars}
        if command := found_in(words, exported):
            argv = command.argv
            if command.command in CLIENTS:  # options that a run adds change no load: a seed, a header
                argv = tuple(word for word in argv if not _ARRAY.fullmatch(word))
            self.commands.append(replace(command, argv=argv, image_version=command.image_version or self.image_version))
            return
        for place, word in enumerate(words):
            if " " in word and word != self.text and ("vllm" in word or "benchmark_" in word):  # bash -c TEXT
                inner, env = _Script(self.gpu, self.given), _variables(words[:place], exported)
                inner.scalars, inner.exported = {**self.scalars, **env}, {*env}
                inner.image_version = version_of_images(words[:place]) or self.image_version
                self.commands += inner.run(word)
                return

    def _assign(self, word: str, undecided: bool) -> None:
        match = _SET.fullmatch(word)
        if match is None or match[1] in self.given:
            return
        name, more, value = match.groups()
        if undecided:
            self.unknown.add(name)
            self.scalars.pop(name, None)
            self.arrays.pop(name, None)
            return
        self.unknown.discard(name)
        if value.startswith("("):
            parts = [one[0] for one in re.finditer(_WORD, value[1:-1])]
            words = [part for one in parts for part in self._expand(one)]
            self.arrays[name] = [*(self.arrays.get(name, []) if more else ()), *words]
        else:
            text = "".join(self._expand(value, splits=False))
            self.scalars[name] = (self.scalars.get(name, "") if more else "") + text
        if len(self.scalars.get(name, "")) + sum(map(len, self.arrays.get(name, ()))) > MOST_CHARACTERS:
            raise InputError(f"{name} grows beyond {MOST_CHARACTERS:,} characters", hint=_HINT)

    def _holds(self, conditions: Sequence[list[str]]) -> bool | None:
        if len(conditions) != 1:
            return None
        words = conditions[0]
        if words[0].startswith("[["):
            words = ["[", *(one[0] for one in re.finditer(rf"{_WORD}|&&|\|\|", words[0][2:-2])), "]"]
        match ["".join(self._expand(word, splits=False)) for word in words]:
            case ["true" | "false" as word]:
                return word == "true"
            case ["[" | "test", "-z" | "-n" as operator, text] | ["[", "-z" | "-n" as operator, text, "]"]:
                return None if "$" in text else (not text) is (operator == "-z")
            case ["test", left, operator, right] | ["[", left, operator, right, "]"]:
                return None if set("$`") & set(left + right) else _compared(left, operator, right)
            case ["command" | "which" | "type" | "hash", *_, tool] if self.gpu and tool in _TOOLS:
                return _TOOLS[tool] == self.gpu.platform
        return None

    def _expand(self, raw: str, *, splits: bool = True) -> list[str]:
        words, quoted = [""], False
        for match in _PIECE.finditer(raw):
            kind, piece = match.lastgroup, match[0]
            inside = piece[1:-1] if kind == "double" else piece
            array = _ARRAY.fullmatch(inside)
            if array and array[1] in self.arrays:
                parts, quoted = self.arrays[array[1]] or [""], quoted or bool(self.arrays[array[1]])
            elif kind == "expansion" and splits and not piece.startswith(("$(", "`")):
                parts = re.split(r"\s+", value) if (value := self._text(piece)) != piece else [value]
            else:
                parts = [self._text(inside) if kind in ("double", "expansion") else _plain(piece)]
                quoted = quoted or kind in ("single", "double")
            words[-1] += parts[0]
            words += parts[1:]
        return [word for word in words if word or quoted] if splits else [" ".join(words)]

    def _text(self, written: str) -> str:
        def stands_for(match: re.Match[str]) -> str:
            part = match[0]
            if part.startswith(("$(", "`")):
                if self.gpu and self.gpu.vendor == "amd" and re.search("rocminfo|rocm_agent_enumerator", part):
                    return self.gpu.architecture
                capability = self.gpu.compute_capability if self.gpu and "compute_cap" in part else None
                return "{}.{}".format(*capability) if capability else part
            if part[0] == "\\":
                return part[1:].strip("\n") if part[1:] in ("$", "`", '"', "\\", "\n") else part
            named = _VARIABLE.fullmatch(part)
            return self._value(named) if named else part

        return re.sub(rf"{_EXPANSION}|{_ESCAPED}", stands_for, written)

    def _value(self, match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name in self.arrays:
            return " ".join(self.arrays[name] if "[" in match[0] else self.arrays[name][:1])
        if name in self.scalars:
            return self.scalars[name]
        return match[0] if match[3] is None or name in self.unknown else self._text(match[3].strip("\"'"))


def _plain(raw: str) -> str:
    def bare(match: re.Match[str]) -> str:
        piece = match[0]
        if piece.startswith("$'"):
            return piece[2:-1].encode("latin-1", "backslashreplace").decode("unicode_escape", "replace")
        if piece[0] == "\\":
            return piece[1:].strip("\n")
        return piece[1:-1] if match["single"] or match["double"] else piece

    return _PIECE.sub(bare, raw)


def shell_word(word: str) -> str:
    """Quote a word for a shell, which puts in what a script leaves open: ``$NAME``, ``$(...)``."""
    pieces = re.split(f"({_EXPANSION})", word)
    pieces[::2] = [re.sub(r'(["$`\\])', r"\\\1", piece) for piece in pieces[::2]]
    return f'"{"".join(pieces)}"' if pieces[1:] else shlex.quote(word)


def _compared(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "==", "!="):
        return fnmatchcase(left, right) is (operator != "!=")
    with suppress(ValueError):
        a, b = int(left), int(right)
        return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}.get(operator)
    return None


def read_manifest(
    text: str, *, gpu: GpuProfile | None = None, given: Mapping[str, str] | None = None
) -> tuple[Launch, ...]:
    """The engines of the containers in a compose file or a Kubernetes manifest. Raises InputError for none."""
    import yaml

    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        cause = " ".join(str(error).split())[:160]
        raise InputError(f"this is no YAML: {cause}", hint="give a compose file, a manifest or a script") from error
    launches = _launches([one for node in _containers(documents) for one in _started(node, gpu, given or {})])
    if not launches:
        raise InputError("no container in this starts vllm serve", hint=_HINT)
    return launches


def _containers(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        if any(isinstance(node.get(key), str | list) for key in ("command", "args", "entrypoint")):
            yield node
        node = list(node.values())
    for value in node if isinstance(node, list) else ():
        yield from _containers(value)


def _started(container: Mapping[str, Any], gpu: GpuProfile | None, given: Mapping[str, str]) -> list[Found]:
    kubernetes = "args" in container or isinstance(container.get("env"), list)
    entry = _words(container.get("command" if kubernetes else "entrypoint"))
    rest = _words(container.get("args" if kubernetes else "command"))
    image = str(container.get("image", ""))
    if not entry and _OFFICIAL_IMAGE.fullmatch(image):
        entry = ["vllm", "serve"]
    words, env = [*entry, *rest], _environment(container)
    command, version, commands = found_in(words, env), version_of_images([image]), list[Found]()
    script = next((word for word in words if "vllm" in word and (" " in word or "\n" in word)), "")
    if command:
        commands = [command]
    elif script:
        with suppress(InputError):
            commands = _Script(gpu, {**env, **given}).run(script)
    return [replace(one, env={**env, **one.env}, image_version=one.image_version or version) for one in commands]


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(word) for word in value]
    with suppress(ValueError):
        return shlex.split(str(value)) if value else []
    return [str(value)]


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    given = container.get("env", container.get("environment")) or {}
    pairs = given.items() if isinstance(given, Mapping) else [
        (one.get("name"), one.get("value")) if isinstance(one, Mapping) else str(one).partition("=")[::2]
        for one in given
    ]  # fmt: skip
    return {str(name): str(value) for name, value in pairs if value not in (None, "")}
