"""A machine on which the scripts of a plan run for real: docker, the GPUs and the driver's files are stand-ins.

Paths of the driver are redirected into a folder of the test.
"""

import csv
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from script_plans import MATRIX
from stand_ins import StandIns

from planner.output.scripts.emission import Emission, render_scripts
from planner.output.scripts.folder import write_folder

#: What the scripts may use beside bash itself.
TOOLS = (
    "awk", "basename", "bash", "cat", "cut", "df", "dirname", "du", "env", "find", "grep", "head", "ln", "ls", "mkdir",
    "mv", "paste", "rm", "sed", "sh", "sort", "tail", "touch", "tr", "wc",
)  # fmt: skip
_STUBS = {
    # Containers: $state/running is there while one runs; run and port are remembered from its options.
    "docker": """
previous=
for word in "$@"; do
  case "$previous" in
    --cidfile) cidfile=$word ;;
    --publish) published=$word ;;
    --result-filename) result=$word ;;
  esac
  previous=$word
done
case "$1" in
  info) [[ -e "$state/docker_down" ]] && exit 1; cat "$state/docker_info" ;;
  image) [[ -e "$state/image" ]] ;;
  pull) [[ ! -e "$state/pull_fails" ]] && touch "$state/image" ;;
  ps) [[ -e "$state/running" ]] && echo 0123abcd || true ;;
  port) cat "$state/port" ;;
  run)
    if [[ -e "$cidfile" ]]; then echo "container ID file found" >&2; exit 125; fi # as docker does
    echo 0123abcd-full >"$cidfile"
    echo "${published%:*}" >"$state/port"
    if [[ -e "$state/run_fails" ]]; then echo "port is already allocated" >&2; exit 125; fi
    [[ -e "$state/dies" ]] || touch "$state/running"
    ;;
  stop) rm -f "$state/running" ;;
  rm) [[ ! -e "$state/running" ]] ;;
  logs) echo "a line of the server's log" ;;
  exec)
    if [[ -n "$result" ]]; then
      touch "$state/benchmarking"
      if [[ -e "$state/slow" ]]; then exec /bin/sleep 60; fi
      printf '{"completed": %s, "failed": 0}' "$(<"$state/completed")" >"$state/../the plan/results/$result"
      if [[ -e "$state/bench_fails" ]]; then exit 7; fi
    fi
    ;;
esac
""",
    "curl": """[[ -e "$state/running" && ! -e "$state/unhealthy" ]]""",
    "sleep": """if [[ -e "$state/waiting_is_real" ]]; then exec /bin/sleep "$1"; fi""",
    "sudo": """exec "$@" """,
    "sysctl": """echo "${!###*=}" >"$state/root/proc/sys/kernel/numa_balancing" """,
    "python3": """
[[ ! -e "$state/no_venv" ]] || exit 1
if [[ "$1 $2" == "-m venv" ]]; then
  rm -rf "${!#}"
  mkdir -p "${!#}/bin"
  ln -s "$state/python" "$state/lm_eval" "${!#}/bin/"
fi
""",
    "nvidia-smi": """
[[ -e "$state/nvidia_down" ]] && { echo "NVIDIA-SMI has failed"; exit 9; }
case "$*" in
  *-L*) cat "$state/nvidia/list" ;;
  *--query-gpu=*)
    words=$*
    field=${words#*--query-gpu=}
    cat "$state/nvidia/${field%% *}" ;;
  *--query-compute-apps=*) cat "$state/nvidia/apps" ;;
  *"-mig 1"*) [[ -e "$state/pending" ]] || echo Enabled >"$state/nvidia/mig.mode.current" ;;
  *"-mig 0"*) echo Disabled >"$state/nvidia/mig.mode.current" ;;
  *-cgi*)
    words=$*
    profiles=${words#*-cgi }
    gpu=${words#*-i }
    gpu=${gpu%% *}
    profiles=(${profiles//,/ })
    number=$((${#profiles[@]} - 2)) # -C ends the list
    for profile in "${profiles[@]:0:number+1}"; do
      sed -i "/^GPU $gpu:/a\\  MIG $profile     Device  $number: (UUID: MIG-$gpu-$number)" "$state/nvidia/list"
      number=$((number - 1))
    done ;;
  *-dci*) grep -q MIG "$state/nvidia/list" || { echo "No compute instances found"; exit 6; } ;;
  *-dgi*) sed -i '/MIG /d' "$state/nvidia/list" ;;
esac
""",
    # The rule of the driver: never more memory partitions than compute partitions, SPX only under NPS1.
    "amd-smi": """
declare -A parts=([SPX]=1 [DPX]=2 [QPX]=4 [CPX]=8)
current() { cat "$state"/root/sys/bus/pci/drivers/amdgpu/0000:00:00.0/current_"$1"_partition; }
memory=$(current memory); compute=$(current compute)
case "$*" in
  *--compute-partition*)
    ((${parts[${!#}]} >= ${memory#NPS})) || { echo "illegal: ${!#} under $memory" >&2; exit 3; }
    for file in "$state"/root/sys/bus/pci/drivers/amdgpu/*/current_compute_partition; do echo "${!#}" >"$file"; done
    "$state/topology" "${parts[${!#}]}" ;;
  *--memory-partition*)
    read -r answer; [[ "$answer" == [yY] ]] || { echo "Confirmation not given" >&2; exit 1; }
    wanted=${!#}
    ((${parts[$compute]} >= ${wanted#NPS})) || { echo "illegal: $wanted under $compute" >&2; exit 3; }
    echo "$wanted" >"$state/requested"
    if [[ -e "$state/rocm6" ]]; then "$state/reload"; fi ;;
esac
""",
    "modprobe": """[[ "$1" == -r ]] || "$state/reload" """,
}
_RELOAD = """#!/bin/bash
# Loading the driver takes over the requested memory mode and chooses a compute mode for it.
state={state}
declare -A automatic=([NPS1]=SPX [NPS2]=DPX [NPS4]=CPX) parts=([SPX]=1 [DPX]=2 [CPX]=8)
declare -A offered=([NPS1]="SPX, DPX, QPX, CPX" [NPS2]="DPX, QPX, CPX" [NPS4]="QPX, CPX")
[[ ! -e "$state/reload_fails" ]] || { echo "modprobe: FATAL: Module amdgpu is in use." >&2; exit 1; }
wanted=$(<"$state/requested")
for device in "$state"/root/sys/bus/pci/drivers/amdgpu/*/; do
  echo "$wanted" >"$device/current_memory_partition"
  echo "${automatic[$wanted]}" >"$device/current_compute_partition"
  echo "${offered[$wanted]}" >"$device/available_compute_partition"
done
"$state/topology" "${parts[${automatic[$wanted]}]}"
"""
_TOPOLOGY = """#!/bin/bash
# The driver's list of logical GPUs: one node for each partition of each package, after two of the processors.
nodes={state}/root/sys/class/kfd/kfd/topology/nodes
rm -rf "$nodes"
packages=({state}/root/sys/bus/pci/drivers/amdgpu/*)
for ((node = 0; node < 2 + ${#packages[@]} * $1; node++)); do
  mkdir -p "$nodes/$node"
  printf 'simd_count 0\\ngfx_target_version %s\\n' "$((node < 2 ? 0 : $(<{state}/gfx)))" >"$nodes/$node/properties"
done
"""


class Machine(StandIns):
    """The scripts of a plan, and the GPUs that it is for."""

    def __init__(self, root: Path, emission: Emission, *, free_gb: int = 4000) -> None:
        super().__init__(root, TOOLS, _STUBS)
        (self.state / "nvidia").mkdir()
        self.fake_root = self.state / "root"
        free = (
            f"if [[ $1 == -k ]]; then printf 'Avail\\n{free_gb * 10**9 // 1024}\\n'; else printf 'Mounted\\n/\\n'; fi\n"
        )
        self.program(self.bin / "df", f"#!/bin/bash\n{free}")
        # of the environment that "python3 -m venv" makes
        self.stub(self.state / "python", '[[ "$1" != -c || ! -e "$state/import_fails" ]]\n', name="pip")
        self.stub(self.state / "lm_eval", 'mkdir -p "${!#}"; [[ ! -e "$state/lm_eval_fails" ]]\n')
        self.program(self.state / "reload", _RELOAD.replace("{state}", str(self.state)))
        self.program(self.state / "topology", _TOPOLOGY.replace("{state}", str(self.state)))
        self.set(completed=emission.file.plan.workload.num_prompts, image="", docker_info="Runtimes: nvidia runc")
        self._hardware(emission)
        write_folder(self.plan, render_scripts(emission), force=False)
        for script in ("preflight.sh", "partition.sh"):
            self._redirect(self.plan / script)

    def _redirect(self, script: Path) -> None:
        """Let a script read the driver's files in the folder of the test."""
        if not script.exists():
            return
        there = re.sub(
            r"(?<![\w/])/(sys/|proc/|dev/kfd|models/)", rf"{self.fake_root}/\1", script.read_bytes().decode()
        )
        script.write_bytes(there.encode())

    def _hardware(self, emission: Emission) -> None:
        """As many idle packages as the plan needs and one more, or eight idle GPUs, of its kind and whole."""
        profile = emission.profile
        driver = profile.memory.driver or profile.memory.engine_visible
        total_mib = int(driver.base / 2**20)
        if profile.vendor == "nvidia":
            capability = profile.compute_capability or (0, 0)
            for name, lines in {
                "driver_version": ["580.65.06"] * 8,
                "compute_cap": [f"{capability[0]}.{capability[1]}"] * 8,
                "name": [profile.name] * 8,
                "mig.mode.current": ["Disabled"],
                "index,uuid,memory.total,memory.free": [
                    f"{i}, GPU-{i}, {total_mib}, {total_mib - 500}" for i in range(8)
                ],
                "apps": [],
                "list": [f"GPU {i}: {profile.name} (UUID: GPU-{i})" for i in range(8)],
            }.items():
                self.set_nvidia(name, lines)
        self.fake("/models/my llama/config.json", "{}")
        if profile.vendor == "amd":
            self.set(gfx={"gfx942": 90402, "gfx950": 90500}[profile.architecture])
            self.fake("/dev/kfd", "")
            self.fake("/proc/sys/kernel/numa_balancing", "0")
            self.fake("/proc/cpuinfo", "flags : fpu sse")
            (self.fake_root / "sys/class/kfd/kfd/proc").mkdir(parents=True)
            nps = "NPS1, NPS2" if profile.architecture == "gfx950" else "NPS1, NPS2, NPS4"
            for bus in range(emission.file.plan.num_gpus + 1):
                for name, value in {
                    "current_compute_partition": "SPX",
                    "current_memory_partition": "NPS1",
                    "available_compute_partition": "SPX, DPX, QPX, CPX",
                    "available_memory_partition": nps,
                    "mem_info_vram_total": total_mib * 2**20,
                    "mem_info_vram_used": 300 * 2**20,
                }.items():
                    self.fake(f"/sys/bus/pci/drivers/amdgpu/0000:{bus:02}:00.0/{name}", value)
            subprocess.run([self.state / "topology", "1"], check=True)

    def set_nvidia(self, name: str, lines: list[str]) -> None:
        (self.state / "nvidia" / name).write_text("".join(f"{line}\n" for line in lines))

    def fake(self, path: str, value: object) -> None:
        """A file of the kernel."""
        file = self.fake_root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def fake_all(self, name: str, value: object) -> None:
        """The same content for a file of every package."""
        for folder in self._packages():
            (folder / name).write_text(f"{value}\n")

    def keep_packages(self, number: int, *, gfx: int | None = None) -> None:
        """A machine with fewer GPUs, or with others."""
        for folder in self._packages()[number:]:
            shutil.rmtree(folder)
        if gfx:
            self.set(gfx=gfx)
        subprocess.run([self.state / "topology", "1"], check=True)

    def _packages(self) -> list[Path]:
        return sorted((self.fake_root / "sys/bus/pci/drivers/amdgpu").iterdir())

    def kernel(self, name: str) -> set[str]:
        """What a file of the driver says, over all packages."""
        return {(folder / name).read_text().strip() for folder in self._packages()}


def values_of(words: Sequence[str], *flags: str) -> list[str]:
    """The values of an option in a command line, in order."""
    return [value for word, value in pairwise(words) if word in flags]


def variables_of(docker_run: Sequence[str]) -> list[str]:
    """What is passed to the container with ``--env``."""
    return values_of(docker_run, "--env")


def mounts_of(docker_run: Sequence[str]) -> dict[str, str]:
    """Folders of the host and where the container sees them. docker reads each ``--mount`` as a line of CSV."""
    mounts = {}
    for value in values_of(docker_run, "--mount"):
        (words,) = csv.reader([value], strict=True)
        fields = dict(word.partition("=")[::2] for word in words)
        assert fields.pop("type") == "bind" and fields.keys() <= {"source", "target", "readonly"}, value
        mounts[fields["source"]] = fields["target"] + (":ro" if "readonly" in fields else "")
    assert not values_of(docker_run, "--volume", "-v")
    return mounts


def prepared(root: Path, name: str = "mi355x", **options: int) -> Machine:
    """A machine for a plan of the matrix, its GPUs partitioned where the plan says so."""
    made = Machine(root, MATRIX[name], **options)
    if (made.plan / "partition.sh").exists():
        assert made.run("partition.sh", "--apply").returncode == 0
        made.forget()
    return made


def files_below(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
