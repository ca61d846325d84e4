"""preflight.sh: content with a machine that fits the plan, and precise about one that does not."""

import socket
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from script_machine import MEMINFO, Machine, files_below, prepared
from script_plans import MATRIX

MEMORY_OF = "index,uuid,memory.total,memory.free"  # what nvidia-smi is asked for

MakeMachine = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> MakeMachine:
    """A machine for one of the plans."""
    return partial(prepared, tmp_path)


@pytest.mark.parametrize("name", MATRIX)
def test_preflight_is_content_and_changes_nothing(machine: MakeMachine, name: str) -> None:
    here = machine(name)
    before = files_below(here.plan), files_below(here.home), files_below(here.fake_root)
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("ready\n") and "FAIL" not in done.stdout
    assert (files_below(here.plan), files_below(here.home), files_below(here.fake_root)) == before
    assert {call[0] for call in here.calls("docker")} <= {"info", "image", "ps"}
    assert not (here.home / ".cache").exists()
    assert here.calls("sudo") == here.calls("amd-smi") == here.calls("modprobe") == []


BROKEN: list[tuple[str, Callable[[Machine], object], str, str]] = [
    ("mi355x", lambda m: m.program(m.bin / "docker", "exit 1"), "docker does not answer", "install docker"),
    ("mi355x", lambda m: (m.bin / "curl").unlink(), "curl is missing", "install curl"),
    ("mi355x", lambda m: (m.fake_root / "dev/kfd").unlink(), "kfd is missing", "modprobe amdgpu"),
    ("mi355x", lambda m: m.keep_packages(1, gfx=90402),
     "0 GPUs gfx950, 1 needed", "this one has: 90402"),
    ("mi355x", lambda m: [p.unlink() for p in (m.fake_root / "sys/class/kfd").rglob("properties")],
     "0 GPUs gfx950, 1 needed", "this one has: none"),
    ("mi300x-x8", lambda m: m.keep_packages(3), "3 GPUs gfx942, 8 needed", "use a machine that has them"),
    ("mi355x", lambda m: m.fake_all("current_compute_partition", "CPX"),
     "partitioned as CPX/NPS1", "--compute-partition SPX"),
    ("mi355x", lambda m: m.fake_all("mem_info_vram_used", 200 * 2**30),
     "MiB free, the server needs", "amd-smi process"),
    ("mi355x", lambda m: m.fake_all("mem_info_vram_total", 192 * 2**30), "the plan expects", "plan again"),
    ("mi300x-cpx-nps4", lambda m: m.fake_all("current_memory_partition", "NPS1"),
     "partitioned as CPX/NPS1, the plan needs CPX/NPS4", "partition.sh"),
    ("b200-x2", lambda m: m.set(nvidia_down=""), "nvidia-smi does not answer", "575 or newer"),
    ("b200-x2", lambda m: m.set_nvidia("driver_version", ["520.61.05"]),
     "driver is 520.61.05, the image needs 575", "install the NVIDIA driver 575 or newer"),
    ("b200-cuda-13", lambda m: m.set_nvidia("driver_version", ["575.57.08"]),
     "driver is 575.57.08, the image needs 580", "--env VLLM_ENABLE_CUDA_COMPATIBILITY=1"),
    ("b200-x2", lambda m: m.set(docker_info="Kernel Version: 6.8-nvidia"),
     "cannot reach NVIDIA GPUs", "Container Toolkit"),
    ("b200-x2", lambda m: m.set_nvidia("compute_cap", ["10.0", "9.0"]), "1 GPUs of compute capability 10.0, 2 needed",
     "use a machine"),
    ("b200-x2", lambda m: m.set_nvidia("mig.mode.current", ["Disabled", "Enabled"]), "MIG instances", "-mig 0"),
    ("b200-x2", lambda m: m.set_nvidia(MEMORY_OF, ["0, GPU-0, 183359, 183000", "1, GPU-1, 183359, 90000"]),
     "GPU 1 has 90000 MiB free", "nvidia-smi shows"),
    ("gb10", lambda m: m.fake("/proc/meminfo", MEMINFO.format(127_606_784, 90_000 * 1024)),
     "GPU 0 has 90000 MiB free", "stop other programs"),
    ("b200-x2", lambda m: m.set_nvidia(MEMORY_OF, ["0, GPU-0, 81559, 81000"]),
     "GPU 0 has 81559 MiB, the plan expects", "plan again"),
    ("b200-x2", lambda m: m.set_nvidia(MEMORY_OF, ["0, GPU-0, [GPU is lost], [GPU is lost]"]),
     "GPU 0 does not work: [GPU is lost]", "--gpu-reset -i 0"),
    ("h100-mig", lambda m: m.set_nvidia("list", ["GPU 0: H100 (UUID: GPU-0)", "  MIG 1g.10gb Device 0: (UUID: MIG-x)"]),
     "0 MIG instances 3g.40gb", "partition.sh"),
    ("h100-mig", lambda m: m.set_nvidia("compute_cap", ["8.0"]), "no GPU of compute capability 9.0", "use a machine"),
    ("local-folder", lambda m: (m.fake_root / "models/my llama/config.json").unlink(),
     "there is no model in", "copy it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "breaking", "cause", "fix"), BROKEN, ids=[f"{b[0]}-{b[2][:20]}" for b in BROKEN])
def test_preflight_names_what_is_broken_and_how_to_fix_it(
    machine: MakeMachine, name: str, breaking: Callable[[Machine], object], cause: str, fix: str
) -> None:
    here = machine(name)
    breaking(here)
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 1 and not done.stdout.endswith("ready\n")
    failed = [(line, after) for line, after in pairwise(done.stdout.splitlines()) if line.startswith("FAIL")]
    assert any(cause in line and fix in after for line, after in failed), done.stdout + done.stderr
    assert f"not ready: {len(failed)} of the checks failed" in done.stderr


#: What the server starts with all the same, and what makes it good.
MENDED: list[tuple[str, Callable[[Machine], object], str, str]] = [
    ("mi355x", lambda m: (m.state / "image").unlink(), "is missing", "docker pull rocm/vllm-dev:nightly"),
    ("mi355x", lambda m: m.fake("/proc/sys/kernel/numa_balancing", "1"),
     "NUMA balancing is on", "sudo sysctl kernel.numa_balancing=0"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "breaking", "cause", "fix"), MENDED, ids=["image", "numa"])
def test_what_only_slows_or_comes_by_itself_is_a_warning_and_apply_fixes_it(
    machine: MakeMachine, name: str, breaking: Callable[[Machine], object], cause: str, fix: str
) -> None:
    here = machine(name)
    breaking(here)
    done = here.run("preflight.sh")
    assert done.returncode == 0 and done.stdout.endswith("ready\n")
    ((line, after),) = [pair for pair in pairwise(done.stdout.splitlines()) if pair[0].startswith("WARN")]
    assert cause in line and fix in after and "preflight.sh --apply" in after
    assert here.calls("sysctl") == [] and here.docker("pull") == []
    done = here.run("preflight.sh", "--apply")
    assert done.returncode == 0 and "WARN" not in done.stdout, done.stdout
    assert here.docker("pull") or here.calls("sysctl") == [["--quiet", "kernel.numa_balancing=0"]]


def warnings_of(here: Machine) -> list[str]:
    """Warnings of preflight.sh, which passes, each with its fix."""
    done = here.run("preflight.sh")
    assert done.returncode == 0 and done.stdout.endswith("ready\n"), done.stdout + done.stderr
    return [f"{line} {fix}" for line, fix in pairwise(done.stdout.splitlines()) if line.startswith("WARN")]


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "H100 80GB HBM3"])  # drivers before 470 have no vendor
def test_the_planned_gpu_is_named(machine: MakeMachine, name: str) -> None:
    here = machine("h100-gated")
    here.set_nvidia("name", [name] * 8)
    assert f"needed: {name}\n" in here.run("preflight.sh", HF_TOKEN="token").stdout


@pytest.mark.parametrize("name", ["NVIDIA H20", "NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200"])
def test_another_gpu_of_the_architecture_is_a_warning(machine: MakeMachine, name: str) -> None:
    """All are of compute capability 9.0 (developer.nvidia.com/cuda-gpus), none is an H100 SXM."""
    here = machine("h100-gated")
    here.set_nvidia("name", [name] * 8)
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 0
    (warned,) = (line for line in done.stdout.splitlines() if line.startswith("WARN"))
    assert f"the GPU is {name}, the plan is for NVIDIA H100 SXM 80GB (NVIDIA H100 80GB HBM3)" in warned


def test_an_mi308x_is_no_mi300x(machine: MakeMachine) -> None:
    """Both are gfx942 with 192 GB; libdrm's amdgpu.ids has 74A1 for one and 74A2 for the other."""
    here = machine("mi300x-x8")
    assert "needed: AMD Instinct MI300X\n" in here.run("preflight.sh").stdout
    here.fake_all("device", "0x74a2")
    here.fake_all("product_name", "AMD Instinct MI308X")
    (warned,) = warnings_of(here)
    assert "the GPUs are AMD Instinct MI308X (PCI device 0x74a2), the plan is for AMD Instinct MI300X" in warned


#: As nvidia-smi topo -p2p r prints it: the head underlined, then a row for each GPU, then the legend.
PEERS = (
    " \t\x1b[4mGPU0\tGPU1\tGPU2\x1b[0m", " GPU0\tX\t{0}\tNS", " GPU1\t{0}\tX\tNS", " GPU2\tNS\tNS\tX", "",
    "Legend:", "", "  X    = Self", "  OK   = Status Ok", "  CNS  = Chipset not supported", "  NS   = Not supported",
)  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "lines", "cause"),
    [
        ("topo", [line.format("CNS") for line in PEERS], "GPU 0 and 1 (CNS) cannot read each other's memory"),
        ("nvlink", ["GPU 0: NVIDIA B200 (UUID: GPU-0)",
                    "NVML: Unable to retrieve NVLink information as all links are inActive"], "no NVLink is active"),
        ("fabric.state", ["In Progress"] * 8, "the fabric of the NVSwitches is not up: In Progress"),
    ],
)  # fmt: skip
def test_broken_links_are_a_warning(machine: MakeMachine, answer: str, lines: list[str], cause: str) -> None:
    here = machine("b200-x2")
    here.set_nvidia(answer, lines)
    (warned,) = warnings_of(here)
    assert cause in warned


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ("topo", [line.format("OK") for line in PEERS]),
        ("topo", ["Invalid combination of input arguments."]),
        ("nvlink", ["GPU 0: NVIDIA B200 (UUID: GPU-0)", "\t Link 0: 50 GB/s"]),
        ("fabric.state", ["Completed"] * 8),
        ("fabric.state", ['Field "fabric.state" is not a valid field to query.']),
        ("fabric.state", ["[N/A]"] * 8),
    ],
)
def test_links_that_work_or_are_unknown_pass(machine: MakeMachine, answer: str, lines: list[str]) -> None:
    here = machine("b200-x2")
    here.set_nvidia(answer, lines)
    assert warnings_of(here) == []


def test_what_apply_cannot_fix_is_told(machine: MakeMachine) -> None:
    here = machine()
    (here.state / "image").unlink()
    here.set(pull_fails="")
    done = here.run("preflight.sh", "--apply")
    assert done.returncode == 1 and "is not available" in done.stdout
    assert here.run("preflight.sh", "--aply").returncode == 2


def test_preflight_does_not_mind_what_other_gpus_do(machine: MakeMachine) -> None:
    """The server takes the first GPUs; the MI355X plan needs one of the two, the B200 plan two of eight."""
    here = machine()
    here.fake("/sys/bus/pci/drivers/amdgpu/0000:01:00.0/mem_info_vram_used", 250 * 2**30)
    done = here.run("preflight.sh")
    assert done.returncode == 0 and "GPU 0 has" in done.stdout and "GPU 1" not in done.stdout


@pytest.mark.parametrize("chosen", ["2,5", "GPU-2,GPU-5"])
def test_preflight_minds_the_chosen_gpus(machine: MakeMachine, chosen: str) -> None:
    here = machine("b200-x2")
    free = [f"{i}, GPU-{i}, 183359, {183000 if i in (2, 5) else 10}" for i in range(8)]
    here.set_nvidia(MEMORY_OF, free)
    done = here.run("preflight.sh", CUDA_VISIBLE_DEVICES=chosen)
    assert done.returncode == 0 and "GPU 5 has" in done.stdout and "GPU 0" not in done.stdout
    assert here.run("preflight.sh").returncode == 1


@pytest.mark.parametrize("name", ["b200-x2", "h100-mig"])
def test_preflight_leaves_a_hanging_driver_behind(machine: MakeMachine, name: str) -> None:
    """nvidia-smi in the kernel: no signal ends it, and the checks behind it still run."""
    here = machine(name)
    here.program(here.bin / "nvidia-smi", "#!/bin/bash\ntrap '' TERM HUP INT\n/bin/sleep 20\n")
    script = here.plan / "preflight.sh"
    script.write_text(script.read_text().replace("read -r -t 30 ", "read -r -t 0.5 "))
    began = time.monotonic()
    done = here.run("preflight.sh")
    assert time.monotonic() - began < 10
    assert done.returncode == 1 and "nvidia-smi does not answer" in done.stdout and "reboot" in done.stdout
    assert "port 8000 is free" in done.stdout
    if name == "h100-mig":
        launch = here.plan / "launch.sh"
        launch.write_text(launch.read_text().replace("read -r -t 30 ", "read -r -t 0.5 "))
        done = here.run("launch.sh")
        assert done.returncode == 1 and "no MIG instance" in done.stderr
        split = here.plan / "partition.sh"
        split.write_text(split.read_text().replace("read -r -t 30 ", "read -r -t 0.5 "))
        done = here.run("partition.sh", "--apply")
        assert done.returncode == 1 and "or hangs" in done.stderr
        assert time.monotonic() - began < 15


def test_preflight_minds_the_first_gpus_of_nvidia_only(machine: MakeMachine) -> None:
    here = machine("b200-x2")
    here.set_nvidia(
        "index,uuid,memory.total,memory.free", [f"{i}, GPU-{i}, 183359, {183000 if i < 2 else 10}" for i in range(8)]
    )
    done = here.run("preflight.sh")
    assert done.returncode == 0 and "GPU 1 has" in done.stdout and "GPU 2" not in done.stdout


def test_preflight_looks_at_disk_port_and_token(machine: MakeMachine) -> None:
    here = machine("h100-gated", free_gb=10)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = here.run("preflight.sh", PORT=port, HF_HOME=f"{here.home}/a:b")
    for cause in (
        "10 GB free in /, 75 needed: 73 GB for the model, 2 GB for lm_eval",
        f"port {port} is taken",
        "is gated and HF_TOKEN is not set",
    ):
        assert cause in done.stdout, done.stdout
    assert done.returncode == 1 and "not ready: 3 of" in done.stderr


def test_a_model_on_disk_needs_neither_space_nor_token(machine: MakeMachine) -> None:
    here = machine("h100-gated", free_gb=8)
    cache = here.home / ".cache/huggingface/hub/models--nvidia--Llama-3.3-70B-Instruct-FP4"
    cache.mkdir(parents=True)
    here.program(here.bin / "du", "#!/bin/bash\nprintf '71500000\\t.'\nexit 1\n")  # KiB: 73.2 GB; one file unreadable
    done = here.run("preflight.sh")
    assert done.returncode == 0, done.stdout
    assert "none is needed: the model is on disk" in done.stdout


def test_preflight_counts_the_image_and_warns_of_what_only_accuracy_needs(machine: MakeMachine) -> None:
    here = machine("h100-gated", free_gb=100)
    (here.state / "image").unlink()
    here.set(no_venv="")
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert (
        done.returncode == 1 and "100 GB free in /, 115 needed: 40 GB for the image, 73 GB for the model" in done.stdout
    )
    assert "WARN  accuracy.sh needs a python3 of 3.10" in done.stdout and "python3-venv" in done.stdout
    here.set(image="")
    done = here.run("preflight.sh", HF_TOKEN="token")
    assert done.returncode == 0 and "75 needed" in done.stdout


@pytest.mark.parametrize(
    ("name", "driver", "warned"),
    [
        ("b200-x2", "570.133", True),
        ("b200-x2", "575.57", False),
        ("b200-cuda-13", "580.65", False),
        ("b200-cu129", "575.57", False),
        ("b200-compatible", "570.133", True),
    ],
)
def test_an_older_driver_is_a_warning_where_it_can_run_the_cuda_of_the_image(
    machine: MakeMachine, name: str, driver: str, *, warned: bool
) -> None:
    here = machine(name)
    here.set_nvidia("driver_version", [driver])
    done = here.run("preflight.sh")
    assert done.returncode == 0 and ("WARN  the NVIDIA driver" in done.stdout) is warned, done.stdout


def test_preflight_is_ready_where_the_plan_is_being_served(machine: MakeMachine) -> None:
    here = machine()
    here.run("launch.sh")
    done = here.run("preflight.sh")
    assert done.returncode == 0 and "already running" in done.stdout
