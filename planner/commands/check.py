"""A user's own command: ``planner check``."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Interval

from planner import engine, hardware, output, planning
from planner.commands import options as opt
from planner.commands.declare import COMMANDS, Argument, Option, command
from planner.errors import HubError, InputError, UnsupportedModelError, os_errors
from planner.planning import defaults
from planner.resources import may_be_path, package_dir, read_given, tables_of


def _line_of(words: list[str]) -> str | list[str]:
    if words[0].startswith("-") and words[0] != "-":  # in front of the line it was meant for this command
        option, parameters = words[0].partition("=")[0], COMMANDS["check"].parameters.values()
        known = ["--format", *(one.flag for one in parameters)]
        near = get_close_matches(option, known, 1, 0.8)
        meant = tables_of(package_dir("commands") / "commands.toml")["meant"].get(option, *near) or ""
        hint = f"use {meant}" if meant.partition(" ")[0] in known else "see planner check --help"
        raise InputError(f"No such option: {option}", hint=hint)
    return sys.stdin.read() + "\n" if words == ["-"] else words[0] if len(words) == 1 else words


_LINES = Argument(kind=list[str], read=_line_of, metavar="LINE", help=opt.HELP["line"])
Line = Annotated["str | PathLike[str] | Sequence[str]", _LINES]
OneGpu = Annotated["planning.GpuName", opt.gpu_option("Profile id, alias or file; or 'local'. Default: the plan's.")]
_AS_MODEL = Option(metavar="MODEL", autocompletion=opt.complete_model, help=opt.HELP["as_model"])
AsModel = Annotated[str | None, _AS_MODEL]
Concurrency = Annotated[int | None, Interval(ge=1), Option(panel=opt.LOAD, help=opt.HELP["concurrency"])]
_SET = Option("--set", kind=list[str], metavar="NAME=VALUE", help="Variable of the script. Repeatable.")
Given = Annotated["Mapping[str, str] | Sequence[str]", _SET]
Goal = Annotated[defaults.Goal, Option(help="Goal to optimise when suggesting changes.")]
Gpus = Annotated[int | None, Interval(ge=1), Option(help=opt.HELP["better_gpus"])]


#: ``--`` in front of the line is not needed: what is no option of this command belongs to the line.
@command(
    "check", help="Does this vllm serve line start, and what would be faster?", groups=(opt.HUB,),
    settings={"ignore_unknown_options": True},
)  # fmt: skip
def check_command(
    line: Line | None = None, gpu: OneGpu | None = None, *, engine_version: opt.EngineVersion = None,
    as_model: AsModel = None, variables: Given = (), input_len: opt.RandomInputLen = None,
    output_len: opt.RandomOutputLen = None, max_concurrency: Concurrency = None, num_prompts: opt.UsualPrompts = None,
    goal: Goal = "balanced", gpus: Gpus = None, network_gb_per_s: opt.NetworkGbPerS = None,
    calibration: opt.Calibration = None, explain: opt.Explain = False, **hub: Any,
) -> "output.CheckAnswer":  # fmt: skip
    """Check whether a ``vllm serve`` line starts on GPUs of this kind, its speed, and faster settings.

    ``line`` is the command, its words, or the path of a script, manifest or plan's folder.
    ``answer.ok`` is true if every engine starts, ``answer.branches`` has each of several. Raises InputError where there
    is no such line, and for a load that its context does not hold."""
    if line is None:
        raise InputError("Missing argument 'LINE': there is nothing to check", hint="see planner check --help")
    text, plan = _text_of(line)
    wanted = gpu or (plan.gpu if plan else None)
    if wanted is None:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    planned = plan.network_gb_per_s if plan else None
    profile, remarks = planning.find_gpu(wanted, planned if network_gb_per_s is None else network_gb_per_s)
    version = engine_version or (plan.engine_version if plan and plan.gpu == profile.id else None)
    given = dict(input_len=input_len, output_len=output_len, max_concurrency=max_concurrency, num_prompts=num_prompts)
    asked = planning.LineRequest({name: value for name, value in given.items() if value}, gpus, goal)
    if plan:
        asked = asked.as_planned(plan)
    judge = _Judge(profile, version, as_model, asked, planning.local_for(calibration), hub, plan)
    judged = [judge.verdict(launch) for launch in _launches(text, profile, variables)]
    remarks = (*remarks, *judge.remarks, *judge.local.notes)
    return output.CheckAnswer.of(judged, remarks=tuple(dict.fromkeys(remarks)), explain=explain)


@dataclass
class _Judge:
    """Judge of the launches of one GPU, version and load."""

    profile: "hardware.GpuProfile"
    version: str | None
    as_model: str | None
    asked: "planning.LineRequest"
    local: "planning.Local"
    hub: dict[str, Any]
    plan: "planning.Plan | None"  #: beside the script: whose server its clients ask
    remarks: tuple[str, ...] = field(default=())

    def verdict(self, launch: "engine.Launch") -> "planning.LineVerdict":
        server = launch.server
        version = planning.version_for(self.version, self.profile, server.image_version if server else "")

        def read_in(one: engine.Found) -> "engine.ServeLine":
            read = engine.read_line(one.argv, version, env=one.env, platform=self.profile.platform)
            ours = {"--format", *(one.flag for one in COMMANDS["check"].parameters.values())}
            mine = {one for one in read.problems if one.word in ours and one.cause.startswith("unknown")}
            hint = "of planner check: put it in front of --"
            return replace(read, problems=tuple(replace(p, hint=hint) if p in mine else p for p in read.problems))

        clients = [read_in(client) for client in launch.clients]
        if server is None and self.plan:
            joined = engine.head_node_words(self.plan, self.plan.nodes, engine.parse_version(self.plan.engine_version))
            server = engine.Found((*self.plan.serve_argv, *joined), self.plan.env)
        elif server is None:
            server = engine.Found(("vllm", "serve", *filter(None, [clients[0].model])), {})
            self.remarks += ("there is no server in this: its client is judged with vllm serve and vLLM's defaults",)
        read, asked = read_in(server), replace(self.asked, wrapped=server.wrapped)
        if clients:
            asked = asked.with_client(clients[0], version)
            problems = tuple(problem for client in clients for problem in client.problems)
            read = replace(read, problems=(*read.problems, *problems))
        elif not (read.is_offline or read.pools or asked.like or "max_concurrency" in asked.given):
            self.remarks += ("the load is a default: --max-concurrency N sets it",)
        data = (clients[0] if clients else read).options.get("--dataset-name", "random")
        if data != "random":  # as ``planner predict`` refuses it
            self.remarks += (f"--dataset-name {data} is not simulated: the load is text alone, of these lengths",)
        if len(clients) > 1:
            self.remarks += (f"{len(clients)} clients are in this; the load is that of the first",)
        resolved = planning.load_model(self._model(read), **self.hub)
        try:
            serving = planning.Serving.of(resolved, self.profile, read.args, version, local=self.local)
        except (HubError, UnsupportedModelError) as error:  # of the draft, which the line keeps
            self.remarks += (f"drafts are left out of account: {error.cause}",)
            read = engine.without_drafts(read)
            serving = planning.Serving.of(resolved, self.profile, read.args, version, local=self.local)
        return planning.check_line(read, serving, asked)

    def _model(self, read: "engine.ServeLine") -> str:
        model = self.as_model or read.model
        if model is None:
            raise InputError("the line names no model", hint="write it behind vllm serve")
        if "$" in model:
            raise InputError(f"the model is {model}, which the script does not set", hint="name it with --as-model")
        name = model.rstrip("/")
        if name == model or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or _exists(model):
            return model
        # an id with a slash behind it, as recipes print them
        self.remarks += (f"vLLM takes {model} for a folder and does not start where there is none; {name} is judged",)
        return name


def _launches(
    text: str | list[str] | None, profile: "hardware.GpuProfile", variables: Mapping[str, str] | Sequence[str]
) -> "tuple[engine.Launch, ...]":
    if text is None:
        return (engine.Launch(None),)  # the plan's own
    if not isinstance(variables, Mapping):
        variables = dict(str(word).partition("=")[::2] for word in variables)
    given = {str(name): str(value) for name, value in variables.items()}
    for name in given:
        if not name.isidentifier():
            raise InputError(f"--set {name}: this is no variable", hint="write --set NAME=VALUE")
    if isinstance(text, str) and _MANIFEST.search(text):
        return engine.read_manifest(text, gpu=profile, given=given)
    return engine.find_launches(text, gpu=profile, given=given)


#: The keys that compose files and manifests begin lines with, and scripts do not.
_MANIFEST = re.compile(r"^(?:services|apiVersion|kind)\s*:", re.MULTILINE)


def _text_of(line: "str | PathLike[str] | Sequence[str]") -> "tuple[str | list[str] | None, planning.Plan | None]":
    if not isinstance(line, str | PathLike):
        return list(line), None
    if isinstance(line, str) and (not may_be_path() or ((" " in line.strip() or "\n" in line) and not _exists(line))):
        return line, None  # the text itself
    path = Path(line)
    # ValueError: a NUL in the name
    with os_errors(str(path)[:200], ValueError, hint="give a script, or a folder with a launch.sh or plan.json"):
        files = (path / name for name in ("launch.sh", "plan.json"))
        script = next(filter(Path.is_file, files), path)
        plan = planning.read_plan(script.parent).plan if (script.parent / "plan.json").is_file() else None
        if plan and script.name == "plan.json":  # kept without its scripts
            return None, plan
        try:
            return read_given(script), plan
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no script: {error.reason}", hint="give a shell script") from error


def _exists(text: str) -> bool:
    try:
        return may_be_path() and Path(text).exists()
    except (OSError, ValueError):
        return False
