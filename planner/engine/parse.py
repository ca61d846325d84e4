"""A command line as the parser of one vLLM version reads it: the settings, and what that version refuses or ignores.

>>> from planner.engine.version import parse_version
>>> for problem in find_flag_problems("vllm serve m --swap-space 16".split(), parse_version("0.18.0")):
...     print(problem)
--swap-space: gone in 0.18.0 (nothing: V1 recomputes instead of swapping)
>>> read_line(["vllm", "serve", "m", "-tp=2", "--block_size", "8"], parse_version("0.27.1")).args.block_size
8
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import isfinite
from typing import Any, get_args

from planner.engine.features import needs_v0, pipelines_on_v1
from planner.engine.flags import (
    SWITCH,
    USE_V1,
    VARIABLES,
    Environment,
    FlagProblem,
    Status,
    VllmCommand,
    check_value,
    command_status,
    env_status,
    flag_status,
    is_value,
    key_list,
    known_flags,
    known_values,
    spelled,
    takes_value,
    value_status,
)
from planner.engine.published import PARSERS, PARSERS_SINCE, options_version, parsers_of
from planner.engine.resolution import FLAG as DRAFTS
from planner.engine.resolution import parse_speculative_config
from planner.engine.settings import NOT_SIMULATED, SETTINGS, EngineArgs, flag_of
from planner.engine.version import EngineVersion
from planner.errors import InputError, UnmodelledError
from planner.model import GGUF
from planner.resources import package_dir, tables_of
from planner.units import whole_number
from planner.workload import Load

_TABLE = tables_of(package_dir("engine") / "lines.toml")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_ROWS = {row.flag: row for row in SETTINGS.values() if not row.ours}  #: the settings by their flags
#: Values of options beside ``NOT_SIMULATED`` that are simulated.
_AS_SIMULATED = {"--kv-offloading-backend": ["native"]}
_CAPTURED = "--max-cudagraph-capture-size"
_LONG = _TABLE["short"] | {row.short: row.flag for row in _ROWS.values() if row.short}
_SWITCHES = {
    flag_of(no + row.name): (row.name, not no) for row in _ROWS.values() if row.is_switch for no in ("", "no_")
}
#: First release that refuses a key it does not know; 0.16 for others (``vllm/config/utils.py``). Before, it is ignored.
_KEYS_REFUSED_SINCE = {"speculative_config": (0,), "compilation_config": (0, 13), "pass_config": (0, 13)}
_FRACTIONS = ("request_rate", "burstiness", "range_ratio")
#: First words of each command.
_SPELLED: dict[VllmCommand, list[str]] = {
    command: [command] if command.endswith(".py") else ["vllm", *command.split()] for command in get_args(VllmCommand)
}
BITSANDBYTES, _OTHER_FORMATS = "bitsandbytes", "serve a checkpoint in AWQ, GPTQ or FP8"
_DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
API_SERVER = "vllm.entrypoints.openai.api_server"
#: Commands that start an engine of their own, and those that send requests to a server.
OFFLINE = ("bench throughput", "bench latency", "benchmark_throughput.py", "benchmark_latency.py")
CLIENTS = ("bench serve", "benchmark_serving.py")


def split_command(words: Sequence[str]) -> tuple[VllmCommand | None, list[str]]:
    for at in range(len(words)):
        command, length = command_at(words, at)
        if command:
            return command, list(words[at + length :])
    return None, []


def command_at(words: Sequence[str], at: int) -> tuple[VllmCommand | None, int]:
    """The vLLM command that begins at ``at``, and how many words name it."""
    name, *following = words[at].rsplit("/", 1)[-1], *words[at + 1 : at + 3]
    if words[at] == "-m" and following[:1] == [API_SERVER]:
        return "serve", 2
    for command, parts in _SPELLED.items():
        if [name, *following][: len(parts)] == parts:
            return command, len(parts)
    return None, 0


def find_flag_problems(argv: Sequence[str], version: EngineVersion, *, platform: str = "") -> list[FlagProblem]:
    """Problems of a command of vLLM, server or benchmark: options, values and variables that ``version`` refuses or
    ignores. With ``platform`` ``rocm``, what AMD's images had early is no problem."""
    words = list(argv)
    problems = []
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        problems += check_env(name, version, platform=platform, value=value)
    command, rest = split_command(words)
    if command is None:
        return problems
    status = command_status(version, command)
    if not status:
        other = "vllm bench" if status.state == "gone" else "the scripts benchmarks/benchmark_*.py"
        return [*problems, FlagProblem(command, str(status), f"use {other}")]
    return [*problems, *_check_options(rest, command, version)]


def check_env(name: str, version: EngineVersion, *, platform: str = "", value: str = "") -> list[FlagProblem]:
    """The problem of a variable: one that ``version`` does not read has no effect, a value that is none stops it."""
    status = env_status(version, name, platform=platform)
    if not status:
        return [FlagProblem(name, str(status), status.hint, fatal=False)]
    known = VARIABLES.get(name)
    if not known or known.values == SWITCH or not value or (known.on == "cpu" and platform not in ("", "cpu")):
        return []
    if "$" in value and not known.values:
        return [_left_open(name, value)]
    try:
        check_value(name, value)
    except InputError as error:
        word = f"{name}={value}" if known.values else name
        return [FlagProblem(word, error.cause.removeprefix(word).lstrip(" ="), error.hint)]
    return []


def _check_options(words: list[str], command: VllmCommand, version: EngineVersion) -> Iterator[FlagProblem]:
    for index, word in enumerate(words):
        if not _OPTION.match(word):
            continue
        flag, joined = spelled(word), word.partition("=")[2]
        status = flag_status(version, flag, command)
        if not status:
            yield FlagProblem(flag, str(status), _hint(status, flag, known_flags(version, command)))
            continue
        following = words[index + 1] if index + 1 < len(words) else ""
        if not takes_value(version, flag):
            if joined or following.lower() in {"true", "false"}:
                yield FlagProblem(flag, f"takes no value in vLLM {version}", "use the --no- form to switch it off")
        elif keys := word.partition("=")[0].split(".")[1:]:
            config: Any = joined or following
            for key in reversed(keys):
                config = {key.removesuffix("+"): config}
            yield from _check_keys(flag, config, key_list(_LONG.get(flag, flag)), version)
        else:
            yield from _check_value(flag, joined or following, version)


def _hint(status: Status, name: str, known: Iterable[str], otherwise: str = "leave it out") -> str:
    """Return the replacement of ``name``. Only a name that vLLM never had may be a misspelling."""
    near = get_close_matches(name, known, n=1, cutoff=0.7) if status.state == "unknown" else ()
    return status.hint or "".join(f"nearest: {one}" for one in near) or otherwise


def _left_open(word: str, value: str) -> FlagProblem:
    hint = "write the value out" + ", or give it by --set" * (not re.search(r"\$\(|`|\[@\]", value))
    return FlagProblem(word, f"the script does not set {value[:80]}", hint, "[@]" not in value, modelled=False)


def _check_value(flag: str, value: str, version: EngineVersion) -> Iterator[FlagProblem]:
    option = _LONG.get(flag, flag)
    if (kind := key_list(option)) and value.startswith("{"):
        try:
            config = json.loads(value)
        except (ValueError, RecursionError) as error:
            cause = f"{value[:80]!r} is not JSON: {error}"
            quoted = FlagProblem(flag, cause, "quote the keys, and the value for the shell")
            yield _left_open(flag, value) if "$" in value else quoted
        else:
            yield from _check_keys(flag, config, kind, version)
    elif flag == "--compilation-config" and not value.startswith("{") and version.release >= (0, 10, 2):
        key = "mode" if value_status(version, kind, "mode") else "level"
        yield FlagProblem(flag, f"takes JSON, not {value!r}, from vLLM 0.10.2 on", f'write {{"{key}": 3}}')
    elif not kind and option.removeprefix("--") not in PARSERS:
        yield from _check_choice(flag, option.removeprefix("--").replace("-", "_"), value, version)


def _check_choice(word: str, name: str, value: str, version: EngineVersion) -> Iterator[FlagProblem]:
    """Yield a problem for a value that is not in its option's list; vLLM folds the case of backends and of graphs."""
    known = known_values(version, name)
    if name.endswith(("_backend", "cudagraph_mode")):
        value = {one.lower(): one for one in known}.get(value.lower().replace("-", "_"), value)
    if known and not (status := value_status(version, name, value)) and not set(value) & {*"$."}:  # a dot: a class
        listed = f"use one of: {', '.join(known)}" if len(known) < 9 else "leave it out"
        yield FlagProblem(f"{word} {value}", str(status), _hint(status, value, known, listed))


def _check_keys(flag: str, config: dict[str, object], kind: str, version: EngineVersion) -> Iterator[FlagProblem]:
    fatal = version.release >= _KEYS_REFUSED_SINCE.get(kind, (0, 16))
    for key, value in config.items() if kind else ():
        if not (status := value_status(version, kind, key)):
            yield FlagProblem(f"{flag} {key}", str(status), _hint(status, key, known_values(version, kind)), fatal)
        elif isinstance(value, dict):
            yield from _check_keys(f"{flag} {key}", value, key_list(key), version)
        elif isinstance(value, str):
            name = f"{kind.removesuffix('_config')}_{key}" if key == "backend" else key
            yield from _check_choice(f"{flag} {key}", name, value, version)


@dataclass(frozen=True, slots=True)
class ServeLine:
    model: str | None  #: hub id or path; None: the line names none
    args: EngineArgs
    problems: tuple[FlagProblem, ...]
    not_simulated: tuple[str, ...]  #: options that change memory or time and are left out of account
    longest_context: bool = False  #: --max-model-len auto: as long as the memory allows
    num_scheduler_steps: int = 1  #: steps that the V0 engine takes for one visit of its scheduler
    only_v0: tuple[str, ...] = ()  #: words that the V1 engine does not serve
    env: Mapping[str, str] = field(default_factory=dict)  #: variables that are set for the command
    pipelines_on_v1: bool = False  #: its executor runs a pipeline on V1, where the default one needs V0
    command: VllmCommand = "serve"
    load: Mapping[str, float] = field(default_factory=dict)  #: what a benchmark's line says of its load
    options: Mapping[str, str] = field(default_factory=dict)  #: whole names with their values; of a switch it is empty
    others: Mapping[str, str] = field(default_factory=dict)  #: those that are neither settings nor load

    @property
    def use_v1(self) -> str | None:
        return self.env.get(USE_V1)

    @property
    def refused(self) -> bool:
        return any(problem.fatal for problem in self.problems)

    @property
    def is_offline(self) -> bool:
        return self.command in OFFLINE

    @property
    def pools(self) -> bool:
        """True for a server of embeddings, classes or scores (``config/model.py``, ``_get_runner_type``)."""
        return any(self.options.get(name) in _TABLE["pooling"] for name in ("--task", "--runner", "--convert"))

    def workload(self, version: EngineVersion) -> Load:
        """The load that a benchmark's line sends, its own defaults included. Raises InputError for others."""
        latency = "latency" in self.command
        taken = {"input_len": 32, "output_len": 128, "num_prompts": 8} if latency else {
            "input_len": 1024, "output_len": 128, "num_prompts": 1000
        }  # fmt: skip
        stated: dict[str, Any] = {
            name: int(value) if isfinite(value) and name not in _FRACTIONS else value
            for name, value in self.load.items()
        }
        # what the ratio means, as ``bench_serve_argv`` writes it
        symmetric = version.release >= ((0, 9, 1) if self.command == "bench serve" else (0, 8, 4))
        if "range_ratio" in stated and not symmetric:
            stated |= {"range_ratio": 0.0} if stated["range_ratio"] == 1 else {"length_distribution": "below"}
        return Load(**{**taken, **stated})


def read_line(
    argv: Sequence[str], version: EngineVersion, *, env: Mapping[str, str] | None = None, platform: str = ""
) -> ServeLine:
    """The settings of a command line of vLLM's server or benchmarks under ``version``, or under the commit that stands
    for it on ``platform``. Raises InputError for any other command, and for ``--config``."""
    command, words = split_command(argv)
    if command is None:
        raise InputError("this is not a vllm serve command", hint="write: planner check -- vllm serve MODEL [options]")
    version = options_version(version, platform)
    reader = _LineReader(version, command)
    reader.read(words)
    reader.combine()
    environment = dict(env or {})
    others = "gpu" if platform == "cpu" else "cpu" if platform else ""
    reader.settings["env"] = Environment({
        name: environment[name] for name, one in VARIABLES.items()
        if environment.get(name) and one.on and one.on != others
        and env_status(version, name, platform=platform) and is_value(name, environment[name])
    })  # fmt: skip
    model, load_format = reader.positional or reader.named, reader.options.get("--load-format", "")
    reader.problems += _check_parsers(reader.options, version, model or "")
    seen = {problem.word for problem in reader.problems}
    judged = find_flag_problems([*_SPELLED[command], *reader.canonical], version, platform=platform)
    problems = [problem for problem in judged if not {problem.word, problem.word.rpartition(" ")[0]} & seen]
    plugin, in_gguf = version.release >= (0, 24), load_format == "gguf"  # pull request 39612
    if in_gguf or GGUF.search(model or ""):
        cause = f"vLLM {version} reads GGUF by vllm-gguf-plugin alone" if plugin else "weights in GGUF are not modelled"
        word = "--load-format" if in_gguf else "GGUF"
        problems.append(FlagProblem(word, cause, _OTHER_FORMATS, modelled=plugin))
    if load_format == BITSANDBYTES and not (status := value_status(version, "quantization", BITSANDBYTES)):
        problems.append(FlagProblem(f"--load-format {BITSANDBYTES}", str(status), _OTHER_FORMATS))
    for name, value in environment.items():
        problems += check_env(name, version, platform=platform, value=value)
    return ServeLine(
        model, EngineArgs(**reader.settings),
        problems=(*reader.problems, *problems),
        not_simulated=tuple(dict.fromkeys(reader.not_simulated)), longest_context=reader.longest_context,
        num_scheduler_steps=reader.num_scheduler_steps, only_v0=needs_v0(reader.options, environment, version),
        env=environment, pipelines_on_v1=pipelines_on_v1(reader.options, version), command=command,
        load=reader.load, options=reader.options, others=reader.others,
    )  # fmt: skip


def _check_parsers(options: Mapping[str, str], version: EngineVersion, model: str) -> Iterator[FlagProblem]:
    """Yield the parsers that the server misses when it starts (``validate_api_server_args`` of vLLM)."""
    auto, of_recipe = "--enable-auto-tool-choice" in options, parsers_of(model, version)
    if auto and not options.get("--tool-call-parser"):
        named = of_recipe.get("tool-call-parser", "the model's parser")
        yield FlagProblem("--enable-auto-tool-choice", "needs --tool-call-parser", f"name {named}")
    for option, kind in PARSERS.items() if version.release >= PARSERS_SINCE else ():
        flag, plugin = f"--{option}", f"--{option.replace('-call', '')}-plugin"
        name, parser = options.get(flag, ""), of_recipe.get(option, "")
        if not name or "$" in name or plugin in options:
            continue
        if not (status := value_status(version, kind, name)):
            load = f"load it by {plugin}" if flag_status(version, plugin) else "leave it out"
            hint = f"give {parser}" if parser else _hint(status, name, known_values(version, kind), load)
            yield FlagProblem(f"{flag} {name}", str(status), hint, fatal=auto or kind == "reasoning_parser")
        elif _reads_other_format(option, name, parser, of_recipe, model):
            becomes = "tool calls stay text" if kind == "tool_call_parser" else "answers may end in the reasoning"
            cause = f"the model's recipe has {parser or 'none'}; with another format {becomes}"
            yield FlagProblem(f"{flag} {name}", cause, f"give {parser}" if parser else "leave it out", fatal=False)


def _reads_other_format(option: str, name: str, parser: str, recipe: Mapping[str, str], model: str) -> bool:
    """True if the recipe's parser reads another format, or a recipe with tools has no reasoning, unlike ``name``."""
    if parser:
        return name != parser and not any({name, parser} <= {*group} for group in _TABLE["alike"][option])
    named = name.replace("_", "") in re.sub(r"[-_]", "", model.lower())
    named = named and not re.search(_TABLE["instruct"], model.lower())
    return option == "reasoning-parser" and bool(recipe) and not named


def without_drafts(line: ServeLine) -> ServeLine:
    drafts, args = line.args.speculative_config, line.args.changed(speculative_config=None)
    others = {**line.others, DRAFTS: drafts.text} if drafts else line.others
    return replace(line, args=args, others=others, not_simulated=(*line.not_simulated, DRAFTS))


class _LineReader:
    def __init__(self, version: EngineVersion, command: VllmCommand) -> None:
        self.version, self.command, self.known = version, command, known_flags(version, command)
        self.load: dict[str, float] = {}
        self.others: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.positional: str | None = None
        self.named: str | None = None  #: by --model, which a positional one overrules
        self.longest_context = False
        self.num_scheduler_steps = 1
        self.keyed: dict[str, dict[str, Any]] = {}  #: keys of --OPTION.KEY by option, of those that are settings
        self.options: dict[str, str] = {}  #: whole names with their values, the last of equal ones
        self.problems: list[FlagProblem] = []
        self.not_simulated: list[str] = []
        self.canonical: list[str] = []  #: the same words with whole option names

    def read(self, words: Sequence[str]) -> None:
        at = 0
        while at < len(words):
            word = words[at]
            if not _OPTION.match(word):
                if self.positional or self.command != "serve":
                    cause, hint = "is neither an option nor the model", "quote values with spaces"
                    self.problems.append(_left_open(word, word) if "$" in word else FlagProblem(word, cause, hint))
                if self.command == "serve":
                    self.positional = self.positional or word
                self.canonical.append(word)
                at += 1
                continue
            flag = self._whole(spelled(word))
            joined = word.partition("=")[2] if "=" in word.split("{", 1)[0] else None
            values = [joined] if joined is not None else self._values(flag, words[at + 1 :])
            at += 1 if joined is not None else 1 + len(values)
            key_and_value = word[len(re.split(r"[.=]", word, maxsplit=1)[0]) :]
            self.canonical += [_LONG.get(flag, flag) + key_and_value, *(values if joined is None else ())]
            self._take(flag, values, key_and_value.partition("=")[0])

    def _whole(self, flag: str) -> str:
        if flag in self.known or not flag.startswith("--"):
            return flag
        meant = sorted(name for name in self.known if name.startswith(flag))
        if len(meant) == 1:
            return meant[0]
        if meant:
            self.problems.append(FlagProblem(flag, f"could mean {', '.join(meant)}", "write the option out"))
        return flag

    def _values(self, flag: str, following: Sequence[str]) -> list[str]:
        truth = following[:1] if following and following[0].lower() in ("true", "false") else []
        if flag in self.known and not takes_value(self.version, flag):
            return list(truth)  # refused later, but not read as the model
        upto = next((i for i, word in enumerate(following) if _OPTION.match(word)), len(following))
        parts = list(following[:upto])
        if _LONG.get(flag, flag) in _SWITCHES:
            return list(truth)
        if flag not in self.known and not (self.positional or self.named) and len(parts) == 1:
            return []  # an unknown option in front of the model
        return parts if flag in _TABLE["lists"] else parts[:1]

    def _take(self, flag: str, values: list[str], key: str = "") -> None:
        if flag == "--config":
            raise InputError("--config: the file with the settings is not read", hint="write the settings out")
        flag = _LONG.get(flag, flag)
        if flag in NOT_SIMULATED and values != _AS_SIMULATED.get(flag):
            self.not_simulated.append(flag)
        self.options[flag] = " ".join(values)
        if flag == "--model":
            self.named = values[0] if values else None
        elif flag == "--num-scheduler-steps":
            self.num_scheduler_steps = max(whole_number(values[0] if values else "") or 1, 1)
        elif flag not in self.known:
            return  # a problem already; the rest of the line is answered without it
        elif flag in _SWITCHES:
            name, value = _SWITCHES[flag]
            self.settings[name] = value if not values else value == (values[0].lower() == "true")
        elif flag in _ROWS and key.startswith(".") and values:
            with suppress(ValueError):  # text that is no JSON is itself, as vLLM reads it (``argparse_utils.py``)
                values = [json.loads(values[0])]
            self.keyed.setdefault(flag, {})[key.removeprefix(".")] = values[0]
        elif flag in _ROWS:
            self.set(flag, values)
        elif flag in _TABLE["load"] and self.command != "serve":
            self._set_load(flag, values)
        else:
            self.others[flag + key] = " ".join(values)

    def combine(self) -> None:
        model, tokens = (self.options.get(flag) for flag in ("--speculative-model", "--num-speculative-tokens"))
        if model and tokens and {"--speculative-model", "--num-speculative-tokens"} <= self.known:
            count = tokens if (number := whole_number(tokens)) is None else number
            self.keyed[DRAFTS] = {"model": model, "num_speculative_tokens": count}
            for flag in ("--speculative-model", "--num-speculative-tokens"):
                self.others.pop(flag, None)
        for option, config in self.keyed.items():
            self._set_row(option, json.dumps(config))
        given = " ".join(f"{name} {value}" for name, value in self.others.items()).replace("-", "_")
        for sizes in re.findall(r"cudagraph_capture_sizes?\W+(\d[\d,\s]*)", given) if _CAPTURED in self.known else ():
            most = max(int(size) for size in re.findall(r"\d+", sizes))
            if self.settings.setdefault("max_cudagraph_capture_size", most) != most:  # config/vllm.py
                self.problems.append(FlagProblem(_CAPTURED, f"the line captures graphs up to {most}", "leave it out"))
        drafts = self.settings.get("speculative_config")
        if drafts and self.num_scheduler_steps > 1:  # arg_utils.py, create_engine_config, until multi-step went
            cause = "speculative decoding is not supported with multi-step (--num-scheduler-steps > 1)"
            self.problems.append(FlagProblem("--num-scheduler-steps", cause, "leave it out beside a draft"))

    def _set_load(self, flag: str, values: list[str]) -> None:
        if flag == "--seed" and values and "$" in values[0]:
            return  # a run decides it, as in our own benchmark.sh; any seed is as good
        try:
            self.load[_TABLE["load"][flag]] = float(values[0]) if values else float("nan")
        except ValueError:
            self.problems.append(FlagProblem(flag, f"{values[0]!r} is not a number"))

    def set(self, flag: str, values: list[str]) -> None:
        if not values:
            self.problems.append(FlagProblem(flag, "needs a value"))
        elif "$" in values[0]:
            self.problems.append(_left_open(flag, values[0]))
        elif flag == "--dtype" and values[0] not in _DTYPES:
            self.problems.append(FlagProblem(flag, f"takes no {values[0]!r}", f"use {', '.join(_DTYPES)}"))
        elif flag == "--max-model-len" and values[0] in ("auto", "-1"):
            self.longest_context = True
        else:
            self._set_row(flag, values[0])

    def _set_row(self, flag: str, value: str) -> None:
        row = _ROWS[flag]
        try:
            reader = parse_speculative_config if row.name == "speculative_config" else row.read
            self.settings[row.name] = reader(value)
        except (ValueError, OverflowError):  # OverflowError: digits beyond any float
            self.problems.append(FlagProblem(flag, f"{value[:40]!r} is not a number"))
        except UnmodelledError:
            self.others[flag] = value
            self.not_simulated.append(flag)
        except InputError as error:  # of a configuration in JSON
            self.problems.append(FlagProblem(flag, error.cause.removeprefix(flag).lstrip(": "), error.hint))


def option_values(flag: str, text: str) -> list[str]:
    return text.split() if flag in _TABLE["lists"] else [text] * bool(text)
