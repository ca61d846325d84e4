"""Plans of a pairwise table, with their scripts: what is launched and sent is what was simulated, and it is sound.

``differences`` reads launch.sh and benchmark.sh as bash would, lets ``planner check``'s reader turn the words back into
settings, simulates those again and compares with plan.json. That it sees every change of a flag is tested as well.
"""

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pairwise import covering
from plan_matrix import FACTORS, emitted, planned
from shell_checks import check_scripts

from planner.engine.parse import read_line
from planner.engine.version import parse_version
from planner.output.scripts.emission import Emission, needed_by, render_scripts
from planner.output.scripts.text import without_option
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.plan import PlanFile
from planner.planning.predict import Prediction
from planner.resources import data_dir
from planner.workload.load import Load

#: The kinds that scripts differ by; ``make e2e`` plans the whole table.
TABLE = {
    **FACTORS,
    "gpu": ("mi300x", "mi300x-cpx", "mi355x", "h100-sxm", "h100-mig-3g.40gb", "b200-sxm"),
    "model": ("llama-70b", "llama-8b", "deepseek", "gpt-oss"),
    "version": ("0.7.3", "0.9.1", "0.10.2", "0.16.0", "0.27.1", "0.33.0"),
}
#: Versions that a CPU is planned for: without a container, and with the size of the cache in a variable.
ON_CPU = ("0.27.1", "0.33.0")
#: Of the result that plan.json and a new simulation must agree in to the last digit.
FIGURES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "output_throughput")


@dataclass(frozen=True)
class Case:
    """A plan, what was simulated for it, and its scripts."""

    emission: Emission
    deployment: Deployment
    files: dict[str, str]


@cache
def cases() -> dict[str, Case]:
    found = {}
    for row, (plan, candidate) in covering(TABLE, planned, attempts=2):
        emission = emitted(plan, candidate, row)
        files = {**render_scripts(emission), **needed_by(emission)}
        found[" ".join(row.values())] = Case(emission, candidate.deployment, files)
    for version in ON_CPU:
        row = {"gpu": "cpu", "model": "llama-8b", "precision": "16-bit", "goal": "min-latency", "version": version}
        made = planned(row)
        assert made, row
        emission = emitted(*made, row)
        found[" ".join(row.values())] = Case(emission, made[1].deployment, render_scripts(emission))
    return found


#: What tells the script that joins nodes where it is.
JOINING = {"HEAD_PORT", "NODES", "NODE_GPUS", "LOCAL_RANKS"}

# --- reading the scripts -------------------------------------------------------------------------------------------


def words_behind(script: str, start: str) -> list[str]:
    """The words of the one command that begins with ``start``, its continued lines joined."""
    (line,) = [line for line in script.replace("\\\n", " ").splitlines() if line.strip().startswith(start)]
    return [word for word in shlex.split(line) if word != "${benchmark_line[@]}"]  # empty without --benchmark


def launched(files: dict[str, str]) -> tuple[str, list[str], dict[str, str]]:
    """The image, the server's command line and its variables in launch.sh."""
    if "docker run" not in files["launch.sh"]:
        return launched_natively(files["launch.sh"])
    words = words_behind(files["launch.sh"], "docker run --detach")
    at = words.index("$image")
    (image,) = re.findall(r"^image=(.*)$", files["launch.sh"], re.MULTILINE)
    # what is set to a word of the shell is launch.sh's own: the token, the folder of the models, a partition's number
    pairs = [value.partition("=") for flag, value in pairwise(words[:at]) if flag == "--env"]
    env = {name: value for name, equals, value in pairs if equals and not value.startswith("$")}
    argv = [words[words.index("--entrypoint") + 1], *words[at + 1 :]]
    if "$node_script" in argv:  # over several nodes a script that joins them gets the command
        argv = argv[argv.index("planner") + 1 : argv.index("--port")]
        argv[argv.index("--host") + 1] = "0.0.0.0"  # launch.sh has the network of the node and listens on its own
        env = {name: value for name, value in env.items() if name not in JOINING}
    return shlex.split(image)[0], argv, env


def launched_natively(script: str) -> tuple[str, list[str], dict[str, str]]:
    """The same where there is no container: ``setsid env NAME=VALUE ... vllm serve ... --port PORT``."""
    words = words_behind(script, "setsid env")[2:]
    at = next((n for n, word in enumerate(words) if "=" not in word), len(words))
    argv = words[at : words.index("--port")]
    return "", argv, dict(word.split("=", 1) for word in words[:at])


def sent(files: dict[str, str]) -> list[str]:
    """The benchmark's command line in benchmark.sh, without where the result goes."""
    words = words_behind(files["benchmark.sh"], "send ")
    return words[1 : words.index("${again[@]}")]


def workload_in(words: list[str]) -> Load:
    """The load that a benchmark's command line asks for."""

    def value(flag: str) -> str:
        return words[words.index(flag) + 1]

    limit = int(value("--max-concurrency")) if "--max-concurrency" in words else None
    lengths = int(value("--random-input-len")), int(value("--random-output-len"))
    rate, seed = float(value("--request-rate")), int(value("--seed"))
    return Load(*lengths, int(value("--num-prompts")), limit, rate, seed=seed)


def differences(case: Case, files: dict[str, str]) -> Iterator[str]:
    """Where plan.json, the scripts and the simulation disagree."""
    saved = json.loads(files["plan.json"])
    if not saved["image"]:  # the port is the script's to say
        saved |= {name: list(without_option(saved[name], "--port")) for name in ("serve_argv", "bench_argv")}
    image, argv, env = launched(files)
    if saved["image"] and "node_script=" in files["launch.sh"]:  # the address is the script's to say
        for option in ("--port", "--host"):
            argv, saved["serve_argv"] = (list(without_option(one, option)) for one in (argv, saved["serve_argv"]))
    devices = {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"} if saved["image"] else set()  # chosen at the start
    for what, script, plan in (
        ("image", image, saved["image"]),
        ("serve", argv, saved["serve_argv"]),
        ("env", set(env.items()), {pair for pair in saved["env"].items() if pair[0] not in devices}),
        ("bench", sent(files), saved["bench_argv"]),
    ):  # fmt: skip
        if script != plan:
            yield f"{what}: {script} is not {plan}"
    version = parse_version(saved["engine_version"])
    line = read_line(argv, version, env=env, platform=saved["platform"])
    if line.refused or line.model != saved["model"]:
        yield f"{[problem.word for problem in line.problems if problem.fatal]} of {line.model}"
        return
    again = resolve_deployment(case.deployment.model, case.deployment.profile, line.args, version)
    now, then = asdict(again.config), asdict(case.deployment.config)
    del now["defaults_taken"], then["defaults_taken"]  # words about where a setting comes from
    yield from (
        f"{name} is launched as {now[name]}, simulated as {then[name]}" for name in now if now[name] != then[name]
    )
    figures = Prediction.of(again, workload_in(sent(files))).figures
    yield from (
        f"{name} of the launched settings differs" for name in FIGURES if figures[name] != saved["predicted"][name]
    )


# --- the tests -----------------------------------------------------------------------------------------------------


def test_the_table_has_every_kind() -> None:
    names = " ".join(cases())
    for levels in TABLE.values():
        assert all(level in names for level in levels)


def test_what_is_launched_and_sent_is_what_was_simulated() -> None:
    for name, case in cases().items():
        assert list(differences(case, case.files)) == [], name


def test_five_prompts_are_sent_for_each_request_in_flight() -> None:
    for name, case in cases().items():
        load = workload_in(sent(case.files))
        assert load.max_concurrency and load.num_prompts >= 5 * load.max_concurrency, name


def scripts_of(case: Case) -> list[str]:
    return [text for name, text in case.files.items() if name.endswith(".sh")]


def test_every_script_is_valid_bash_without_shellcheck_findings(tmp_path: Path) -> None:
    check_scripts([text for case in cases().values() for text in scripts_of(case)], tmp_path)


def some_case(start: str = "mi355x llama-70b") -> Case:
    """One with variables, a compilation config and several GPUs; or another."""
    return next(case for name, case in cases().items() if name.startswith(start))


def lines_of_plan(files: dict[str, str]) -> list[tuple[str, int]]:
    """The lines of launch.sh and benchmark.sh that hold words of the plan."""
    launch, benchmark = (files[name].splitlines() for name in ("launch.sh", "benchmark.sh"))
    measured = next(n for n, line in enumerate(benchmark) if line.startswith("send "))
    if '    "$image" \\' not in launch:
        served = launch.index("  setsid env \\")
        end = next(n for n, line in enumerate(launch) if line.startswith('    --port "$port"'))
    else:
        served = launch.index('    "$image" \\')
        end = launch.index("fi", served)
    return [
        *(("launch.sh", n) for n, line in enumerate(launch) if re.match(r"    --env [\w']+=(?!\$)", line)),
        *(("launch.sh", n) for n in range(served + 1, end)),
        *(
            ("benchmark.sh", n)
            for n in range(measured + 1, len(benchmark))
            if benchmark[n].startswith("    --") and "--save" not in benchmark[n]
        ),
    ]


@pytest.mark.parametrize("start", ["mi355x llama-70b", "cpu llama-8b"])
def test_any_flag_that_is_changed_or_missing_in_a_script_is_seen(start: str) -> None:
    case = some_case(start)
    touched = lines_of_plan(case.files)
    assert len(touched) >= 25
    launch = case.files["launch.sh"].splitlines()
    sized = any("VLLM_CPU_KVCACHE_SPACE=" in launch[number] for script, number in touched if script == "launch.sh")
    assert sized is start.startswith("cpu")
    for script, number in touched:
        lines = case.files[script].splitlines()
        line, more = lines[number].removesuffix("\\"), lines[number].endswith("\\")
        for changed in ("    " + shlex.join([*shlex.split(line)[:-1], "9"]), ""):
            other = [*lines[:number], f"{changed} \\" if more else changed, *lines[number + 1 :]]
            files = {**case.files, script: "\n".join(other) + "\n"}
            assert next(differences(case, files), None), (script, line, changed)


@pytest.mark.parametrize(
    ("template", "old", "new"),
    [
        ("launch.sh.j2", "{{ serve_args | argv }}", "{{ serve_args | argv }} --enforce-eager"),
        ("_environment_words.sh.j2", "{% for word in env_words %}\n    --env {{ word | sh }} \\\n{% endfor %}\n", ""),
        ("native/launch.sh.j2", "{% for word in env_words %}\n    {{ word | sh }} \\\n{% endfor %}\n", ""),
        ("benchmark.sh.j2", "{{ bench_argv | argv }}", "{{ bench_argv | argv }} --num-warmups 2"),
    ],
)
def test_a_template_that_says_more_or_less_than_the_plan_is_seen(
    template: str, old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(data_dir("templates"), tmp_path / "templates")
    copy = tmp_path / "templates" / "vllm" / template
    assert old in copy.read_text()
    copy.write_text(copy.read_text().replace(old, new))
    monkeypatch.setattr(sys.modules["planner.output.scripts.text"], "data_dir", lambda name: tmp_path / name)
    case = some_case("cpu llama-8b") if template.startswith("native/") else some_case()
    assert next(differences(case, render_scripts(case.emission)), None)


def test_a_plan_that_says_other_than_was_simulated_is_seen() -> None:
    """As when the search changed a setting after the command line was written."""
    case = some_case()
    file = case.emission.file
    words: list[Any] = list(file.plan.serve_argv)
    words[words.index("--max-num-seqs") + 1] = str(file.plan.max_num_seqs + 1)
    plan = file.plan.model_copy(update={"serve_argv": tuple(words)})
    other = Emission(PlanFile(**{**dict(file), "plan": plan}), case.emission.profile, 1, ())
    found = list(differences(case, render_scripts(other)))
    assert any("max_num_seqs is launched as" in difference for difference in found)
