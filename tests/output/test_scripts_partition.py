"""partition.sh against a driver that refuses what the real one refuses: more memory than compute partitions."""

from collections.abc import Callable
from pathlib import Path

import pytest
from script_machine import Machine
from script_plans import emission, mig, partition

RELOAD = ["modprobe -r amdgpu", "modprobe amdgpu"]


def compute(mode: str) -> str:
    return f"amd-smi set --gpu all --compute-partition {mode}"


def memory(mode: str) -> str:
    return f"amd-smi set --memory-partition {mode}"


def changes(machine: Machine) -> list[str]:
    """The commands that change the machine, in order."""
    return [" ".join(words) for words in machine.all_calls() if words[0] in {"amd-smi", "modprobe"}]


@pytest.fixture
def amd(tmp_path: Path) -> Callable[[str], Machine]:
    return lambda gpu: Machine(tmp_path, emission(partition(gpu)))


@pytest.fixture
def nvidia(tmp_path: Path) -> Machine:
    return Machine(tmp_path, emission(mig()))


@pytest.mark.parametrize(
    ("gpu", "expected", "modes"),
    [
        ("mi300x-cpx", [compute("CPX")], ("CPX", "NPS1")),
        ("mi300x-qpx", [compute("QPX")], ("QPX", "NPS1")),
        ("mi300x-cpx-nps4", [compute("CPX"), memory("NPS4"), *RELOAD], ("CPX", "NPS4")),
        ("mi355x-dpx-nps2", [compute("DPX"), memory("NPS2"), *RELOAD], ("DPX", "NPS2")),
        # loading the driver under NPS4 chooses CPX, so QPX is set again
        ("mi300x-qpx-nps4", [compute("QPX"), memory("NPS4"), *RELOAD, compute("QPX")], ("QPX", "NPS4")),
    ],
)
def test_compute_mode_first_then_memory_mode(
    amd: Callable[[str], Machine], gpu: str, expected: list[str], modes: tuple[str, str]
) -> None:
    machine = amd(gpu)
    done = machine.run("partition.sh", "--apply")
    assert done.returncode == 0, done.stderr
    assert changes(machine) == expected
    assert (machine.kernel("current_compute_partition"), machine.kernel("current_memory_partition")) == (
        {modes[0]}, {modes[1]},
    )  # fmt: skip
    again = machine.run("partition.sh", "--apply")
    assert again.returncode == 0 and "already" in again.stdout and changes(machine) == expected


def test_leaving_sets_the_memory_mode_first(amd: Callable[[str], Machine]) -> None:
    """SPX under NPS4 is illegal. Loading the driver under NPS1 chooses SPX by itself, another mode has to be left."""
    machine = amd("mi300x-cpx-nps4")
    machine.run("partition.sh", "--apply")
    machine.forget()
    done = machine.run("partition.sh", "--leave", "--apply")
    assert done.returncode == 0, done.stderr
    assert changes(machine) == [memory("NPS1"), *RELOAD]
    assert machine.kernel("current_compute_partition") == {"SPX"} and "SPX/NPS1" in done.stdout

    shown = machine.run("partition.sh", "--leave")
    assert "already" in shown.stdout


def test_from_a_finer_memory_mode_it_comes_first(tmp_path: Path) -> None:
    """From CPX/NPS4 to CPX/NPS1: the driver, loaded again, chooses SPX, so CPX comes after."""
    machine = Machine(tmp_path, emission(partition("mi300x-cpx")))
    machine.fake_all("current_memory_partition", "NPS4")
    machine.fake_all("current_compute_partition", "CPX")
    machine.fake_all("available_compute_partition", "QPX, CPX")
    done = machine.run("partition.sh", "--apply")
    assert done.returncode == 0, done.stderr
    assert changes(machine) == [memory("NPS1"), *RELOAD, compute("CPX")]


def test_rocm_6_reloads_the_driver_itself(amd: Callable[[str], Machine]) -> None:
    machine = amd("mi300x-cpx-nps4")
    machine.set(rocm6="")
    assert machine.run("partition.sh", "--apply").returncode == 0
    assert changes(machine) == [compute("CPX"), memory("NPS4")]


@pytest.mark.parametrize("arguments", [(), ("--leave",)])
def test_without_apply_nothing_is_changed(amd: Callable[[str], Machine], arguments: tuple[str, ...]) -> None:
    machine = amd("mi300x-cpx-nps4")
    if arguments:
        machine.run("partition.sh", "--apply")
        machine.forget()
    done = machine.run("partition.sh", *arguments)
    assert done.returncode == 0 and changes(machine) == []
    shown = [line.removeprefix("+ ").removeprefix("sudo ") for line in done.stdout.splitlines() if line[0] == "+"]
    leave = [memory("NPS1"), *RELOAD, compute("SPX")]
    assert shown == (leave if arguments else [compute("CPX"), memory("NPS4"), *RELOAD])
    assert "nothing was changed" in done.stdout


@pytest.mark.parametrize(
    ("breaking", "cause"),
    [
        (lambda m: (m.fake_root / "sys/class/kfd/kfd/proc/4711").mkdir(), "processes use the GPUs: 4711"),
        (lambda m: m.fake("/proc/cpuinfo", "flags : fpu hypervisor sse"), "virtual machine"),
        (lambda m: (m.bin / "amd-smi").unlink(), "amd-smi is missing"),
        (lambda m: m.keep_packages(0), "no GPU that can be partitioned"),
        (lambda m: m.fake_all("available_memory_partition", "NPS1, NPS2"), "do not offer CPX/NPS4"),
        (lambda m: m.fake_all("available_compute_partition", "SPX"), "do not offer CPX/NPS4"),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("--apply",)])
def test_checks_come_before_any_change(
    amd: Callable[[str], Machine], breaking: Callable[[Machine], object], cause: str, arguments: tuple[str, ...]
) -> None:
    machine = amd("mi300x-cpx-nps4")
    breaking(machine)
    done = machine.run("partition.sh", *arguments)
    assert done.returncode == 1 and cause in done.stderr and "refused: " in done.stderr and "fix: " in done.stderr
    assert "stopped halfway" not in done.stderr
    assert changes(machine) == []


def test_a_driver_in_use_stops_the_change_and_the_same_command_goes_on(amd: Callable[[str], Machine]) -> None:
    machine = amd("mi300x-cpx-nps4")
    machine.set(reload_fails="")
    failed = machine.run("partition.sh", "--apply")
    assert failed.returncode == 1 and "in use" in failed.stderr and "run it again with --apply" in failed.stderr
    (machine.state / "reload_fails").unlink()
    assert machine.run("partition.sh", "--apply").returncode == 0
    assert machine.kernel("current_memory_partition") == {"NPS4"}


def test_a_missing_partition_is_noticed(amd: Callable[[str], Machine]) -> None:
    """With a graphics driver on a render node, a node of 64 partitions shows 63."""
    machine = amd("mi300x-cpx")
    script = (machine.state / "topology").read_text()
    machine.program(machine.state / "topology", script + "rm -r $nodes/2\n")
    done = machine.run("partition.sh", "--apply")
    assert done.returncode == 1 and "shows 15 GPUs, 16 were expected" in done.stderr and "ast" in done.stderr


def test_an_unknown_argument_is_refused(amd: Callable[[str], Machine]) -> None:
    machine = amd("mi300x-cpx")
    done = machine.run("partition.sh", "--aply")
    assert done.returncode == 2 and "usage:" in done.stderr and changes(machine) == []


# --- MIG ---


def mig_changes(machine: Machine) -> list[str]:
    calls = [" ".join(call) for call in machine.calls("nvidia-smi")]
    return [call for call in calls if not call.startswith("-L") and "--query" not in call]


def test_mig_is_switched_on_filled_and_left(nvidia: Machine) -> None:
    shown = nvidia.run("partition.sh")
    assert shown.returncode == 0 and mig_changes(nvidia) == [] and "nothing was changed" in shown.stdout
    done = nvidia.run("partition.sh", "--apply")
    assert done.returncode == 0, done.stderr
    enter = ["-i 0 -mig 1", "mig -i 0 -cgi 3g.40gb,3g.40gb -C"]
    assert mig_changes(nvidia) == enter and "MIG-0-1" in done.stdout
    again = nvidia.run("partition.sh", "--apply")
    assert "already" in again.stdout and mig_changes(nvidia) == enter
    left = nvidia.run("partition.sh", "--leave", "--apply")
    assert left.returncode == 0, left.stderr
    assert mig_changes(nvidia)[2:] == ["mig -i 0 -dci", "mig -i 0 -dgi", "-i 0 -mig 0"]
    assert "already whole" in nvidia.run("partition.sh", "--leave", "--apply").stdout


def test_mig_goes_on_where_the_instances_are_missing(nvidia: Machine) -> None:
    nvidia.set_nvidia("mig.mode.current", ["Enabled"])
    assert nvidia.run("partition.sh", "--apply", GPU="3").returncode == 0
    assert mig_changes(nvidia) == ["mig -i 3 -cgi 3g.40gb,3g.40gb -C"]


@pytest.mark.parametrize(
    ("breaking", "cause"),
    [
        (lambda m: m.set_nvidia("apps", ["4711"]), "processes use GPU 0"),
        (lambda m: m.set_nvidia("mig.mode.current", ["[N/A]"]), "has no MIG"),
        (lambda m: m.set(nvidia_down=""), "does not know GPU 0"),
        (lambda m: (m.set_nvidia("mig.mode.current", ["Enabled"]),
                    m.set_nvidia("list", ["GPU 0: x", "  MIG 1g.10gb Device 0: (UUID: MIG-y)"])),
         "is partitioned into 1g.10gb"),
    ],
)  # fmt: skip
def test_mig_checks_come_before_any_change(nvidia: Machine, breaking: Callable[[Machine], object], cause: str) -> None:
    breaking(nvidia)
    done = nvidia.run("partition.sh", "--apply")
    assert done.returncode == 1 and "refused: " in done.stderr and cause in done.stderr
    assert mig_changes(nvidia) == []


def test_a_mode_that_waits_for_a_reset_is_said(nvidia: Machine) -> None:
    nvidia.set(pending="")
    done = nvidia.run("partition.sh", "--apply")
    assert done.returncode == 1 and "needs a reset" in done.stderr and "--gpu-reset -i 0" in done.stderr
    assert mig_changes(nvidia) == ["-i 0 -mig 1"]
