"""Somebody's own command: ``planner check``."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from planner.commands.declare import Argument, Option, command
from planner.commands.inputs import (
    check_count,
    draft_of,
    find_gpu,
    fits_for,
    load_model,
    typed,
    version_for,
)
from planner.commands.options import (
    LOAD,
    Calibration,
    EngineVersion,
    Explain,
    NetworkGbPerS,
    RandomInputLen,
    RandomOutputLen,
    Refresh,
    Revision,
    Timeout,
    complete_gpu,
    complete_model,
)
from planner.errors import InputError, UnknownNameError
from planner.planning import defaults
from planner.resources import read_given

if TYPE_CHECKING:
    from planner.commands.inputs import GpuName
    from planner.engine import Found, Launch, ServeLine
    from planner.evidence import SeenServer
    from planner.hardware import GpuProfile
    from planner.model import Model
    from planner.output import CheckAnswer
    from planner.planning import LineRequest, LineVerdict, Local, Plan


def _line_of(words: list[str]) -> str | list[str]:
    """The line that was typed; ``-`` is stdin."""
    if words[0].startswith("-") and words[0] != "-":  # in front of the line it was meant for this command
        raise InputError(f"No such option: {words[0].partition('=')[0]}", hint="see planner check --help")
    if words == ["-"]:
        return sys.stdin.read() + "\n"
    return words[0] if len(words) == 1 else words


Line = Annotated[
    str | PathLike[str] | Sequence[str],
    Argument(
        kind=list[str],
        read=_line_of,
        metavar="LINE",
        help="-- vllm serve MODEL ... (or vllm bench ...); or a script, compose file or manifest with such a line, the "
        "folder of a plan, '-' for stdin.",
    ),
]
Url = Annotated[
    str,
    Option(metavar="URL", help="A running vLLM server: what it runs and is asked for, instead of a line and a load."),
]
Seconds = Annotated[float, Option("--url-seconds", min=0, help="How long to watch that server. Default: 5.")]
OneGpu = Annotated[
    "GpuName",
    Option(
        kind=str,
        metavar="GPU",
        autocompletion=complete_gpu,
        help="Profile id, alias or file; or 'local'. Default: the plan's.",
    ),
]
AsModel = Annotated[
    str, Option(metavar="MODEL", autocompletion=complete_model, help="Model that a path in the line stands for.")
]
InFlight = Annotated[int, Option(min=1, panel=LOAD, help="Requests in flight. Default: as many as run at once.")]
NumPrompts = Annotated[int, Option(min=1, panel=LOAD, help="Requests. Default: 5 x the concurrency.")]
Given = Annotated[
    "Mapping[str, str] | Sequence[str]",
    Option("--set", kind=list[str], metavar="NAME=VALUE", help="A variable of the script, as a run would have it."),
]
Goal = Annotated[defaults.Goal, Option(help="What a better plan is better at.")]
Gpus = Annotated[int, Option(min=1, help="GPUs that a better plan may use. Default: as many as the line.")]


#: ``--`` in front of the line is not needed: what is no option of this command belongs to the line.
@command(
    "check",
    help="Would this vllm serve line start, what would it deliver, and what would deliver more?",
    settings={"ignore_unknown_options": True},
)
def check_command(
    line: Line | None = None,
    gpu: OneGpu | None = None,
    *,
    url: Url | None = None,
    url_seconds: Seconds | None = None,
    engine_version: EngineVersion = None,
    as_model: AsModel | None = None,
    variables: Given = (),
    input_len: RandomInputLen | None = None,
    output_len: RandomOutputLen | None = None,
    max_concurrency: InFlight | None = None,
    num_prompts: NumPrompts | None = None,
    goal: Goal = "balanced",
    gpus: Gpus | None = None,
    network_gb_per_s: NetworkGbPerS = None,
    calibration: Calibration = None,
    explain: Explain = False,
    revision: Revision = None,
    refresh: Refresh = False,
    timeout: Timeout | None = None,
) -> CheckAnswer:
    """Whether a ``vllm serve`` line starts on GPUs of this kind, what it delivers, and what delivers more.

    ``line`` is the command or the text of a script with it; its words; or the path of a script, of a compose file, of a
    manifest of Kubernetes, or of a plan's folder, whose plan then says the GPU and the load where nothing else does. A
    client beside the server (``vllm bench serve``) says the load; ``vllm bench latency`` and ``throughput`` are judged
    as engines of their own. Where a script has branches that its GPU or ``variables`` do not decide, each is judged:
    ``answer.branches``. ``as_model`` is what a path in the line stands for. Lengths are tokens; where no load is given
    it is 1024 in and out, and as many requests as run at once. ``goal`` is what a better plan is better at, ``gpus``
    how many it may use (as many as the line). ``url`` is a running vLLM server: it is asked what it runs, unless
    ``line`` says so, and watched for ``url_seconds`` (5): the load is what it has then; ``answer.seen`` has the rest.

    ``answer.ok`` is whether it starts, in every branch; ``answer.record`` has the rest. Raises InputError where there
    is no such line, or several that differ, and for a load that its context does not hold.
    """
    from planner.output import CheckAnswer
    from planner.planning import LineRequest

    if goal not in get_args(defaults.Goal):
        raise UnknownNameError("goal", str(goal), get_args(defaults.Goal), see="planner check --help")
    load = {"input_len": input_len, "output_len": output_len, "max_concurrency": max_concurrency}
    for name, value in {**load, "num_prompts": num_prompts, "gpus": gpus}.items():
        check_count(name, value)
    if as_model is not None:
        typed("as_model", as_model, str)
    seen = _watched(url, url_seconds)
    if line is None and seen is None:
        raise InputError("Missing argument 'LINE': there is nothing to check", hint="see planner check --help")
    text, plan = _text_of(line or ())
    wanted = gpu or (plan.gpu if plan else None)
    if wanted is None:
        raise InputError("no GPU is named", hint="add --gpu; planner hardware list shows the names")
    planned = plan.network_gb_per_s if plan else None
    profile, remarks = find_gpu(wanted, planned if network_gb_per_s is None else network_gb_per_s)
    version = engine_version or (plan.engine_version if plan and plan.gpu == profile.id else None)
    asked = LineRequest(input_len, output_len, max_concurrency, num_prompts, gpus, goal)
    if seen:
        version = version or seen.version
        asked = replace(
            asked,
            input_len=input_len or seen.input_len,
            output_len=output_len or seen.output_len,
            max_concurrency=max_concurrency or seen.in_flight,
        )
    if seen and line is None:
        model = load_model(as_model or seen.model, revision=revision, refresh=refresh, timeout=timeout).model
        text, said = _as_served(seen, model, profile, version)
        remarks = (*remarks, *said)
    if plan:
        asked = asked.as_planned(plan)
    judge = _Judge(profile, version, as_model, asked, fits_for(calibration), revision, refresh, timeout, plan)
    judged = tuple((launch.when, judge.verdict(launch)) for launch in _launches(text, profile, variables))
    remarks = (*remarks, *judge.remarks, *judge.local.notes)
    return replace(CheckAnswer.of(judged, tuple(dict.fromkeys(remarks))), seen=seen, explain=explain)


def _watched(url: str | None, seconds: float | None) -> SeenServer | None:
    """The server, asked and watched; None where there is none."""
    if url is None:
        if seconds is not None:
            raise InputError("--url-seconds is how long to watch a server", hint="add --url")
        return None
    from planner.evidence import look_at_server

    return look_at_server(url) if seconds is None else look_at_server(url, window_s=seconds)


def _as_served(
    seen: SeenServer, model: Model, profile: GpuProfile, version: str | None
) -> tuple[list[str], tuple[str, ...]]:
    """The words of the line that a server runs with, and what was taken for granted in them."""
    from planner.evidence import likely_tensor_parallel

    size = likely_tensor_parallel(seen, model, profile, version_for(version, profile))
    remark = f"the server does not say its tensor parallel size: {size} is taken"
    if seen.kv_cache_tokens:
        remark += f", whose KV cache is nearest to its {seen.kv_cache_tokens:,} tokens"
    return list(seen.words(size)), (f"{remark}; say its line behind -- where it is another",)


@dataclass
class _Judge:
    """What is asked of each line."""

    profile: GpuProfile
    version: str | None
    as_model: str | None
    asked: LineRequest
    local: Local
    revision: str | None
    refresh: bool
    timeout: float | None
    plan: Plan | None  #: beside the script: whose server its clients ask
    remarks: tuple[str, ...] = ()

    def verdict(self, launch: Launch) -> LineVerdict:
        """One engine with the client beside it; a client alone with the server of its plan, or of its model."""
        from planner.engine import Found, read_line
        from planner.planning import check_line, client_request

        server = launch.server
        version = version_for(self.version or (server and server.image_version) or None, self.profile)

        def read_in(found: Found) -> ServeLine:
            return read_line(found.argv, version, env=found.env, platform=self.profile.platform)

        clients = [read_in(client) for client in launch.clients]
        if server is None and self.plan:
            server = Found(self.plan.serve_argv, self.plan.env)
        elif server is None:
            server = Found(("vllm", "serve", *filter(None, [clients[0].model])), {})
            self.remarks += ("there is no server in this: its client is judged with vllm serve and vLLM's defaults",)
        read = read_in(server)
        asked = self.asked
        if clients:
            asked = client_request(asked, clients[0], version)
            problems = tuple(problem for client in clients for problem in client.problems)
            read = replace(read, problems=(*read.problems, *problems))
        if len(clients) > 1:
            self.remarks += (f"{len(clients)} clients are in this; the load is that of the first",)
        resolved = load_model(self._model(read), revision=self.revision, refresh=self.refresh, timeout=self.timeout)
        return check_line(read, resolved, self.profile, version, asked, self.local, draft_of(read.args))

    def _model(self, read: ServeLine) -> str:
        model = self.as_model or read.model
        if model is None:
            raise InputError("the line names no model", hint="write it behind vllm serve")
        if "$" in model:
            raise InputError(f"the model is {model}, which the script does not set", hint="name it with --as-model")
        name, renamed = _on_the_hub(model)
        self.remarks += renamed
        return name


def _on_the_hub(model: str) -> tuple[str, tuple[str, ...]]:
    """The model that a line means, and a remark where it is an id with a slash behind it, as recipes print them."""
    name = model.rstrip("/")
    if name == model or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) or _is_there(model):
        return model, ()
    return name, (f"vLLM takes {model} for a folder and does not start where there is none; {name} is judged here",)


def _launches(
    text: str | list[str], profile: GpuProfile, variables: Mapping[str, str] | Sequence[str]
) -> tuple[Launch, ...]:
    """What is to be judged, of a script, a YAML file or words."""
    from planner.engine import find_launches, read_manifest

    pairs = (
        variables.items() if isinstance(variables, Mapping) else [str(word).partition("=")[::2] for word in variables]
    )
    given = {str(name): str(value) for name, value in pairs}
    for name in given:
        if not name.isidentifier():
            raise InputError(f"--set {name}: this is no variable", hint="write --set NAME=VALUE")
    if isinstance(text, str) and _MANIFEST.search(text):
        return read_manifest(text, gpu=profile, given=given)
    return find_launches(text, gpu=profile, given=given)


#: The keys that compose files and manifests begin lines with, and scripts do not.
_MANIFEST = re.compile(r"^(?:services|apiVersion|kind)\s*:", re.MULTILINE)


def _text_of(line: str | PathLike[str] | Sequence[str]) -> tuple[str | list[str], Plan | None]:
    """The script or the words, and the plan beside it where it is a file of a plan's folder."""
    if not isinstance(line, str | PathLike):
        return list(line), None
    if isinstance(line, str) and (" " in line.strip() or "\n" in line) and not _is_there(line):
        return line, None  # the text itself
    path = Path(line)
    try:
        script = path / "launch.sh" if path.is_dir() else path
        text = read_given(script)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no script: {error.reason}", hint="give a shell script") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        cause = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{str(path)[:200]}: {cause}", hint="give a script, or a folder with a launch.sh") from error
    return text, _plan_beside(script)


def _is_there(text: str) -> bool:
    """Whether ``text`` is the path of something; a long text is none."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def _plan_beside(script: Path) -> Plan | None:
    """The plan that wrote a script; None where there is none. Raises InputError for one that is broken."""
    from planner.planning import read_plan

    return read_plan(script.parent).plan if (script.parent / "plan.json").is_file() else None
