"""Deployables of fixed plans, and how each platform reads them: what reaches ``vllm`` in the end."""

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from script_plans import GOLDEN, b200, emission, plan, serve

from planner.output.deploy.hosts import render_deployable
from planner.output.deploy.pods import Site
from planner.output.scripts.emission import Emission
from planner.planning.plan import Plan

Json = dict[str, Any]


def over_two_nodes(made: Plan, **changes: Any) -> Emission:
    """The plan over 2 x 8 GPUs: tensor parallel in a node, pipeline parallel over them."""
    argv = list(made.serve_argv)
    at = argv.index("--tensor-parallel-size")
    argv[at + 1 : at + 2] = ["8", "--pipeline-parallel-size", "2"]
    layout = {"num_gpus": 16, "tensor_parallel_size": 8, "pipeline_parallel_size": 2, "serve_argv": tuple(argv)}
    return emission(made.model_copy(update=layout | changes))


#: vLLM's images for NVIDIA have a user of their own from 0.23 on.
NEW_IMAGE = emission(b200().model_copy(update={"engine_version": "0.32.0", "image": "vllm/vllm-openai:v0.32.0"}))
AMD_X16 = over_two_nodes(plan())  # vLLM 0.11.0: joined by Ray
NVIDIA_X16 = over_two_nodes(b200())  # 0.14.0: by vLLM's own processes
#: DeepSeek-V3 as its recipe has it: attention by DP, a rank on each of 16 GPUs, experts over all of them.
SPREAD_X16 = emission(
    b200().model_copy(
        update={
            "num_gpus": 16, "tensor_parallel_size": 1, "data_parallel_size": 16, "enable_expert_parallel": True,
            "network_gb_per_s": 50.0,
            "serve_argv": serve(
                b200().model, "--tensor-parallel-size", "1", "--data-parallel-size", "16", "--enable-expert-parallel"
            ),
        }
    )
)  # fmt: skip
PROMETHEUS = "http://prometheus-operated.monitoring:9090"
SINGLE = ("compose", "kubernetes", "slurm")
SEVERAL = ("lws", "slurm")

#: Kept word by word (``kept``): the plan, the target and the place.
CASES: dict[str, tuple[Emission, str, Site]] = {
    **{f"mi355x/{name}": (GOLDEN["mi355x"], name, Site()) for name in SINGLE},
    **{f"b200-x2/{name}": (GOLDEN["b200-x2"], name, Site()) for name in SINGLE},
    **{f"mi355x-x16/{name}": (AMD_X16, name, Site()) for name in SEVERAL},
    **{f"b200-x16/{name}": (NVIDIA_X16, name, Site()) for name in SEVERAL},
    **{f"b200-dp16/{name}": (SPREAD_X16, name, Site()) for name in ("lws", "slurm")},
    "mi355x/compose-x2": (GOLDEN["mi355x"], "compose", Site(replicas=2)),
    "b200-x2/compose-x2": (GOLDEN["b200-x2"], "compose", Site(replicas=2)),
}
#: More that is checked and not kept.
MORE: dict[str, tuple[Emission, str, Site]] = {
    "mi355x/compose-x8": (GOLDEN["mi355x"], "compose", Site(replicas=8)),
    "b200-x2/compose-x4": (GOLDEN["b200-x2"], "compose", Site(replicas=4)),
    "cpx/compose": (GOLDEN["mi300x-cpx-nps4"], "compose", Site(replicas=64, host="0.0.0.0")),
    "cpx/kubernetes": (GOLDEN["mi300x-cpx-nps4"], "kubernetes", Site(replicas=64, cache="pvc", namespace="llm")),
    "mig/compose": (GOLDEN["h100-mig"], "compose", Site(replicas=2)),
    "mig/kubernetes": (
        GOLDEN["h100-mig"],
        "kubernetes",
        Site(
            cache="claim/shared",
            tolerations=("nvidia.com/gpu", "team=llm:NoSchedule"),
            node_selector=("zone=a",),
            hf_secret="",
        ),
    ),
    "local/kubernetes": (
        emission(plan(model="/models/my llama", serve_argv=("vllm", "serve", "/models/my llama", "--host", "0.0.0.0"))),
        "kubernetes",
        Site(),
    ),
    "mi355x/apptainer": (GOLDEN["mi355x"], "slurm", Site(container="apptainer", host="0.0.0.0")),
    "b200-x16/apptainer": (NVIDIA_X16, "slurm", Site(container="apptainer")),
    "b200-x16/lws-pvc": (NVIDIA_X16, "lws", Site(cache="pvc", replicas=3)),
    "b200-x2/scaled": (
        GOLDEN["b200-x2"], "kubernetes", Site(replicas=2, max_replicas=6, prometheus=PROMETHEUS, namespace="llm"),
    ),
    "b200-x16/scaled": (NVIDIA_X16, "lws", Site(max_replicas=3, prometheus=PROMETHEUS)),
    "b200-x2/as-user": (NEW_IMAGE, "kubernetes", Site()),
    "b200-x16/as-user": (over_two_nodes(NEW_IMAGE.file.plan), "lws", Site()),
    "mi355x/monitored": (GOLDEN["mi355x"], "kubernetes", Site(prometheus=PROMETHEUS)),
}  # fmt: skip


@cache
def files_of(case: str) -> dict[str, str]:
    made, target, site = {**CASES, **MORE}[case]
    return render_deployable(made, target, site, command="planner deploy DIR")


def documents(text: str) -> list[Json]:
    """As PyYAML reads it."""
    return list(yaml.safe_load_all(text))


def composed(text: str) -> str:
    """What compose makes of a value: ``$$`` is a dollar; here no variable may be left."""
    assert not re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text), f"compose would replace something in {text!r}"
    return text.replace("$$", "$")


def expanded(text: str, env: Mapping[str, str]) -> str:
    """What Kubernetes makes of a command, an argument or a variable, as its API reference says: ``$(NAME)`` becomes
    the variable where there is one, ``$$`` becomes ``$``."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda m: "$" if m[1] is None else env.get(m[1], m[0]), text)


def container_of(document: Json) -> Json:
    """The one container of a Deployment; the leader's of a LeaderWorkerSet."""
    if document["kind"] == "LeaderWorkerSet":
        spec = document["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    else:
        spec = document["spec"]["template"]["spec"]
    (found,) = spec["containers"]
    return found


def workload_of(text: str) -> Json:
    """The document that has pods."""
    (found,) = [d for d in documents(text) if d["kind"] in {"Deployment", "LeaderWorkerSet"}]
    return found


class Host:
    """A machine on which scripts run for real; the programs that they call write down what they were given."""

    def __init__(self, folder: Path, *, programs: Sequence[str]) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir(parents=True)
        for name in ("bash", "cat", "cut", "dirname", "env", "mkdir", "rm", "sleep"):
            found = shutil.which(name)
            assert found
            (self.bin / name).symlink_to(found)
        for name in programs:
            self.program(name, "")
        self.program("hostname", "echo 10.0.0.1")

    def program(self, name: str, body: str) -> None:
        path = self.bin / name
        record = f'printf \'%s\\0\' "$(($# + 1))" {name} "$@" >>{str(self.folder / "calls")!r}'
        path.write_text(f"#!/bin/bash\n{record}\n{body}\n")
        path.chmod(0o755)

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = {"PATH": str(self.bin), "HOME": str(self.folder), **env}
        return subprocess.run(
            words, env=given, cwd=self.folder, capture_output=True, text=True, check=False, timeout=30
        )

    def calls(self, name: str) -> list[list[str]]:
        path = self.folder / "calls"
        words = path.read_bytes().decode(errors="surrogateescape").split("\0")[:-1] if path.exists() else []
        found: list[list[str]] = []
        while words:
            count = int(words[0])
            found.append(words[1 : count + 1])
            words = words[count + 1 :]
        return [call[1:] for call in found if call[0] == name]

    def clean(self) -> None:
        (self.folder / "calls").unlink(missing_ok=True)


def run_container(host: Host, container: Json, **pod_env: str) -> list[str]:
    """Run a pod's command as the kubelet would; the words that ``vllm`` gets."""
    env = {**pod_env, **{v["name"]: v["value"] for v in container["env"] if "value" in v}}
    words = [expanded(word, env) for word in (*container["command"], *container["args"])]
    host.clean()
    done = host.run(*words, **{k: expanded(v, env) for k, v in env.items()})
    assert done.returncode == 0, done.stderr
    (call,) = host.calls("vllm")
    return ["vllm", *call]
