"""A machine on which the scripts of a plan run for real: docker, the GPUs and the driver's files are stand-ins.

Paths of the driver are redirected into a folder of the test.
"""

import csv
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from script_plans import MATRIX
from stand_ins import StandIns

from planner.hardware.profiles import tool_names
from planner.output.scripts.emission import Emission, render_scripts
from planner.output.scripts.folder import write_folder

#: What the scripts may use beside bash itself.
TOOLS = (
    "awk", "basename", "bash", "cat", "cp", "cut", "df", "dirname", "du", "env", "find", "grep", "head", "ln", "ls",
    "mkdir", "mv", "paste", "rm", "sed", "seq", "sh", "sort", "tail", "tee", "timeout", "touch", "tr", "wc",
)  # fmt: skip
RESULT = {
    "avg_latency": 1.5, "tokens_per_second": 250.0, "completed": "PROMPTS", "failed": 0, "output_throughput": 99.5,
    "mean_ttft_ms": 12.0, "mean_tpot_ms": 3.25,
}  # fmt: skip
_STUBS = {
    # Running containers are files under containers/ with their address. A program that is told to write a result file
    # writes `result`. `fails` holds a word that makes a program fail, or the end of the name of a server that dies.
    "docker": """
previous= name= published= cidfile= result= prompts= detached=0
for word in "$@"; do
  case "$previous" in
    --name) name=$word ;;
    --cidfile) cidfile=$word ;;
    --publish) published=${word%:*} ;;
    --output-json | --result-filename) result=${word##*/} ;;
    --num-prompts) prompts=$word ;;
  esac
  if [[ "$word" == --detach ]]; then detached=1; fi
  previous=$word
done
work() {
  if [[ -s "$state/fails" && "$*" == *"$(<"$state/fails")"* ]]; then echo "out of memory" >&2; exit 3; fi
  if [[ -n "$result" ]]; then
    if [[ -e "$state/slow" ]]; then
      echo $$ >"$state/worker"
      touch "$state/benchmarking"
      exec /bin/sleep 60
    fi
    if [[ -e "$state/completed" ]]; then prompts=$(<"$state/completed"); fi
    sed "s/PROMPTS/${prompts:-1}/" "$state/result" >"$state/../the plan/results/$result"
    if [[ -e "$state/bench_fails" ]]; then exit 7; fi
  fi
}
case "$1" in
  info) [[ -e "$state/docker_down" ]] && exit 1; cat "$state/docker_info" ;;
  image) [[ -e "$state/image" ]] && cat "$state/image" ;;
  pull | build)
    [[ ! -e "$state/pull_fails" ]] || exit 1
    echo built >"$state/image"
    for word in "$@"; do
      if [[ "$word" == commit=* ]]; then echo "${word#commit=}" >"$state/image"; fi
    done ;;
  ps)
    pattern=${4#name=^}
    [[ ! -e "$state/containers/${pattern%\\$}" ]] || echo 0123abcd ;;
  port) cat "$state/containers/$2" ;;
  run)
    if ((!detached)); then work "$@"; exit; fi
    if [[ -e "$cidfile" ]]; then echo "container ID file found" >&2; exit 125; fi # as docker does
    [[ -z "$cidfile" ]] || echo 0123abcd-full >"$cidfile"
    if [[ -e "$state/run_fails" ]]; then echo "port is already allocated" >&2; exit 125; fi
    if [[ -s "$state/fails" && "$name" == *"$(<"$state/fails")" ]]; then exit 0; fi
    echo "$published" >"$state/containers/$name"
    touch "$state/launched"
    echo 0123abcd ;;
  stop)
    rm -f "$state/containers/$2"
    [[ "$2" != 0123abcd-full ]] || rm -f "$state/containers"/*
    if [[ -e "$state/benchmarking" ]]; then kill "$(<"$state/worker")" || true; fi ;;
  rm) [[ ! -e "$state/containers/$2" ]] ;;
  logs) echo "a line of the server's log" ;;
  exec) if [[ "$*" == *'kill "$(cat'* ]]; then kill "$(<"$state/worker")"; else work "$@"; fi ;;
esac
""",
    "curl": """
case "${!#}" in
  */balancer) [[ -e "$state/balancer" ]] ;;
  */v1/completions) cat "$state/answer" ;;
  */health)
    address=${!#}
    address=${address#http://}
    address=${address%/health}
    [[ ! -e "$state/unhealthy" && ! -e "$state/sick-${address#*:}" ]] || exit 22
    grep -q -x -e "$address" -e "" "$state"/containers/* 2>/dev/null ;; # one on the host's network publishes nothing
esac
""",
    # Runs as a process whose name holds its folder, as the real one does.
    "nginx": """
prefix=$2
case "$*" in
  *"-h"*) echo "  -e filename : set error log file" ;;
  *"-s reload"*) ;;
  *" -t"*) [[ ! -e "$state/nginx_bad" ]] ;;
  *"-s quit"*) kill "$(<"$prefix/nginx.pid")"; rm "$prefix/nginx.pid" "$state/balancer" ;;
  *)
    (exec -a "nginx: master process nginx -p $prefix" /bin/sleep 300) </dev/null >/dev/null 2>&1 &
    echo $! >"$prefix/nginx.pid"
    touch "$state/balancer" ;;
esac
""",
    "git": """if [[ "$1" == clone ]]; then mkdir -p "${!#}/.git" "${!#}/scripts/vllm/reports_float16/summary"; fi""",
    "sleep": """if [[ -e "$state/waiting_is_real" ]]; then touch "$state/asleep"; exec /bin/sleep "$1"; fi""",
    "sudo": """exec "$@" """,
    "hostname": """echo 10.0.0.7 172.17.0.1""",
    "sysctl": """echo "${!###*=}" >"$state/root/proc/sys/kernel/numa_balancing" """,
    "python3": """
[[ ! -e "$state/no_venv" ]] || exit 1
if [[ "$1 $2" == "-m venv" ]]; then
  rm -rf "${!#}"
  mkdir -p "${!#}/bin"
  ln -s "$state/python" "$state/lm_eval" "$state/hf" "$state/guidellm" "${!#}/bin/"
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
  topo* | nvlink*) cat "$state/nvidia/$1" ;;
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
_GUIDELLM = """
for word in "$@"; do
  if [[ "$word" == kind=json,path=* ]]; then echo "{}" >"${word#kind=json,path=}"; fi
done
"""


MEMINFO = "MemTotal:       {} kB\nMemFree:        1024 kB\nMemAvailable:   {} kB"


class Machine(StandIns):
    """The scripts of a plan or ``files``, and the GPUs that it is for."""

    def __init__(
        self, root: Path, emission: Emission, files: Mapping[str, str] | None = None, *, free_gb: int = 4000
    ) -> None:
        super().__init__(root, TOOLS, _STUBS)
        for folder in ("nvidia", "containers"):
            (self.state / folder).mkdir()
        self.fake_root = self.state / "root"
        free = (
            f"if [[ $1 == -k ]]; then printf 'Avail\\n{free_gb * 10**9 // 1024}\\n'; else printf 'Mounted\\n/\\n'; fi\n"
        )
        self.program(self.bin / "df", f"#!/bin/bash\n{free}")
        # of the environment that "python3 -m venv" makes
        self.stub(self.state / "python", '[[ "$1" != -c || ! -e "$state/import_fails" ]]\n', name="pip")
        self.stub(self.state / "lm_eval", 'mkdir -p "${!#}"; [[ ! -e "$state/lm_eval_fails" ]]\n')
        self.stub(self.state / "hf")
        self.stub(self.state / "guidellm", _GUIDELLM)
        self.program(self.state / "reload", _RELOAD.replace("{state}", str(self.state)))
        self.program(self.state / "topology", _TOPOLOGY.replace("{state}", str(self.state)))
        self.set(image="", docker_info="Runtimes: nvidia runc", answer='{"choices":[{"text":" city that is known"}]}')
        (self.state / "result").write_text(json.dumps(RESULT).replace('"PROMPTS"', "PROMPTS"))
        self._hardware(emission)
        if files is None:
            files = render_scripts(emission)
            self.set(completed=emission.file.plan.workload.num_prompts)
        write_folder(self.plan, files, force=False)
        for script in ("preflight.sh", "partition.sh"):
            self._redirect(self.plan / script)

    def _redirect(self, script: Path) -> None:
        """Let a script read the driver's files in the folder of the test."""
        if not script.exists():
            return
        there = re.sub(
            r"(?<![\w/])/(sys/|proc/|dev/(?:kfd|infiniband)|models/)",
            rf"{self.fake_root}/\1",
            script.read_bytes().decode(),
        )
        script.write_bytes(there.encode())

    def _hardware(self, emission: Emission) -> None:
        """As many idle packages as the plan needs and one more, or eight idle GPUs, of its kind and whole."""
        profile = emission.profile
        driver = profile.memory.driver or profile.memory.engine_visible
        total_mib = int(driver.base / 2**20)
        known = tool_names()[profile.whole] if profile.vendor in ("amd", "nvidia") else {}
        if profile.vendor == "nvidia":
            capability = profile.compute_capability or (0, 0)
            for name, lines in {
                "driver_version": ["580.65.06"] * 8,
                "compute_cap": [f"{capability[0]}.{capability[1]}"] * 8,
                "name": known["names"][:1] * 8,
                "mig.mode.current": ["Disabled"],
                "index,uuid,memory.total,memory.free": [
                    f"{i}, GPU-{i}, {total_mib}, {total_mib - 500}" for i in range(8)
                ],
                "apps": [],
                "list": [f"GPU {i}: {profile.name} (UUID: GPU-{i})" for i in range(8)],
            }.items():
                self.set_nvidia(name, lines)
        if profile.memory.utilization:  # nvidia-smi names no memory of a GB10
            self.set_nvidia("index,uuid,memory.total,memory.free", ["0, GPU-0, [N/A], [N/A]"])
            self.fake("/proc/meminfo", MEMINFO.format(total_mib * 1024, (total_mib - 500) * 1024))
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
                    "device": known["pci"][0],
                    "product_name": known["names"][0],
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

    def serve(self) -> None:
        """As if launch.sh had started the plan's server."""
        name = next(w for w in (self.plan / "launch.sh").read_text().split() if w.startswith("name=planner-"))
        (self.state / "containers" / name.removeprefix("name=")).write_text("127.0.0.1:8000\n")

    def stop(self) -> None:
        """As if every container had ended by itself."""
        for path in (self.state / "containers").iterdir():
            path.unlink()

    @property
    def containers(self) -> list[str]:
        """Names of the containers that run."""
        return sorted(path.name for path in (self.state / "containers").iterdir())

    def press_ctrl_c(self, script: str, *arguments: str) -> int:
        """Start a script, wait until a program of a container works, press Ctrl-C; the exit status."""
        self.set(slow="")
        status, _ = self.interrupt(script, "benchmarking", signal.SIGINT, *arguments)
        (self.state / "slow").unlink()
        (self.state / "benchmarking").unlink()
        return status

    def results(self) -> list[str]:
        """Finished result files."""
        return sorted(path.name for path in (self.plan / "results").glob("[!.]*.json"))

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
