"""``--gpu local``: what the vendors' tools print, read into profiles.

The outputs are written by hand after public ones: AMD SMI's documentation of the command line (6.4, 7.x: entries per
logical GPU, ``vram.size`` in MiB called MB, from version 26 on an object with ``gpu_data``), NVIDIA's nvidia-smi
manual and MIG user guide.
"""

import json
import subprocess
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import planner.hardware
from planner.commands.main import main
from planner.errors import InputError
from planner.hardware.local import (
    LocalGpu,
    SilentTool,
    find_local_gpus,
    local_profile,
    read_amd_smi,
    read_nvidia_smi,
    run_tool,
)
from planner.hardware.profiles import load_all
from planner.units import MIB

MI300X_MIB = 196592  # 192 GiB less 16 MiB, as amd-smi shows it


def amd_entry(
    gpu: int, bdf: str, name: str = "AMD Instinct MI300X", pci: str = "0x74a1", **more: Any
) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "asic": {"market_name": name, "vendor_id": "0x1002", "device_id": pci, "target_graphics_version": "gfx942"},
        "bus": {"bdf": bdf, "max_pcie_width": 16},
        "vram": {"type": "HBM3", "size": {"value": MI300X_MIB, "unit": "MB"}},
        **more,
    }


def whole_node(count: int, mode: str = "SPX", memory: str = "NPS1") -> str:
    """ROCm 6: a list, and the modes in it."""
    partition = {"compute_partition": mode, "memory_partition": memory, "partition_id": 0}
    return json.dumps([amd_entry(i, f"0000:{i:02x}:00.0", partition=partition) for i in range(count)])


def cpx_node(packages: int) -> tuple[str, str]:
    """ROCm 7: an object; eight entries for each package, whose modes stand with the first of them."""
    rows = [
        (package * 8 + part, f"0000:{package:02x}:00.{part}", part) for package in range(packages) for part in range(8)
    ]
    static = {"gpu_data": [amd_entry(gpu, bdf, **({} if part == 0 else {"vram": "N/A"})) for gpu, bdf, part in rows]}
    current = [
        {
            "gpu_id": gpu,
            "memory": "NPS4" if part == 0 else "N/A",
            "accelerator_type": "CPX" if part == 0 else "N/A",
            "accelerator_profile_index": 3 if part == 0 else "N/A",
            "partition_id": str(part),
        }
        for gpu, _, part in rows
    ]
    return json.dumps(static), json.dumps({"current_partition": current})


def test_amd_smi_of_rocm_6_tells_the_modes_itself() -> None:
    found = tuple(read_amd_smi(whole_node(8)))
    assert len(found) == 8
    assert found[0] == LocalGpu("AMD Instinct MI300X", "0x74a1", MI300X_MIB * MIB, "SPX", "NPS1")


def test_amd_smi_of_rocm_7_leaves_them_to_partition() -> None:
    static = json.dumps({"gpu_data": [amd_entry(0, "0000:05:00.0")]})
    partition = json.dumps({"current_partition": [{"gpu_id": 0, "memory": "NPS2", "accelerator_type": "DPX*"}]})
    (found,) = read_amd_smi("WARNING: the user is in no group render\n" + static, partition)
    assert (found.compute_mode, found.memory_mode) == ("DPX", "NPS2")


def test_partitions_of_a_package_are_one_package_with_a_mode() -> None:
    found = tuple(read_amd_smi(*cpx_node(packages=2)))
    assert [(gpu.compute_mode, gpu.memory_mode) for gpu in found] == [("CPX", "NPS4")] * 2
    profile, note = local_profile(found)
    assert profile.id == "mi300x-cpx-nps4" and profile.gpus_per_node == 16  # 2 packages x 8
    assert "16 x AMD Instinct MI300X, CPX/NPS4 partition" in note


H100 = "NVIDIA H100 80GB HBM3"


def listing(*slices: Sequence[str], name: str = H100) -> str:
    lines = []
    for gpu, own in enumerate(slices):
        lines.append(f"GPU {gpu}: {name} (UUID: GPU-{gpu}c958-aaaa)")
        lines += [
            f"  MIG {profile:<11} Device  {place}: (UUID: MIG-{place}4d1-bbbb)" for place, profile in enumerate(own)
        ]
    return "\n".join(lines) + "\n"


def query(*rows: str) -> str:
    return "\n".join(rows) + "\n"


def test_nvidia_smi_counts_equal_gpus() -> None:
    found = read_nvidia_smi(query(*[f"{H100}, 81559, Disabled"] * 4), listing([], [], [], []))
    profile, note = local_profile(found)
    assert profile.id == "h100-sxm" and profile.gpus_per_node == 4
    assert profile.memory_bytes == next(p for p in load_all() if p.id == "h100-sxm").memory_bytes
    assert note == "--gpu local: this machine has 4 x NVIDIA H100 SXM 80GB (h100-sxm)"


def test_mig_instances_are_the_gpus_of_a_gpu_that_is_cut() -> None:
    cut = read_nvidia_smi(query(f"{H100}, 81559, Enabled"), listing(["3g.40gb", "3g.40gb"]))
    assert cut[0].slices == ("3g.40gb", "3g.40gb")
    profile, _ = local_profile(cut)
    assert profile.id == "h100-mig-3g.40gb" and profile.gpus_per_node == 2


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("0,2", 2), (" 1 ", 1), ("GPU-2,GPU-3", 2), ("0,1,2,3,4", 4), ("7", 0), ("", 0), ("-1", 0)],
)
def test_cuda_visible_devices_leaves_gpus_out(visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA reads it: a job of a cluster plans for the GPUs that it was given."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = machine(
        nvidia_smi___query_gpu=query(*[f"{H100}, 81559, Disabled"] * 4), nvidia_smi__L=listing([], [], [], [])
    )
    if count:
        assert len(find_local_gpus(run)) == count
    else:
        with pytest.raises(InputError, match="CUDA_VISIBLE_DEVICES"):
            find_local_gpus(run)


def test_cuda_visible_devices_names_mig_instances() -> None:
    text = "GPU 0: H100 (UUID: GPU-0)\n" + "".join(
        f"  MIG {profile} Device {number}: (UUID: MIG-{number})\n"
        for number, profile in enumerate(("3g.40gb", "1g.10gb", "3g.40gb"))
    )
    (gpu,) = read_nvidia_smi(query(f"{H100}, 81559, Enabled"), text, "MIG-0,MIG-2")
    assert gpu.slices == ("3g.40gb", "3g.40gb")


def test_a_lost_gpu_is_none() -> None:
    """nvidia-smi's words for a GPU that fell off the bus; ``[N/A]`` is an ordinary value."""
    rows = (
        f"{H100}, 81559, Disabled",
        "[GPU is lost], [GPU is lost], [GPU is lost]",
        f"{H100}, [Unknown Error], [N/A]",
    )
    assert len(read_nvidia_smi(query(*rows), listing([], [], []))) == 1
    with pytest.raises(SilentTool, match="lost"):
        read_nvidia_smi(query(rows[1]), listing([]))


@pytest.mark.parametrize(
    ("rows", "slices", "cause"),
    [
        ([f"{H100}, 81559, Enabled"], [["3g.40gb", "1g.10gb"]], "1 x h100-mig-3g.40gb and 1 x h100-mig-1g.10gb"),
        (
            [f"{H100}, 81559, Enabled", f"{H100}, 81559, Disabled"],
            [["3g.40gb"], []],
            "h100-mig-3g.40gb and 1 x h100-sxm",
        ),
        ([f"{H100}, 81559, Disabled", "NVIDIA L4, 23034, [N/A]"], [[], []], "1 x h100-sxm and 1 x l4"),
        ([f"{H100}, 81559, Enabled"], [[]], "MIG is on, and there are no instances"),
        ([f"{H100}, 81559, Enabled"], [["1c.3g.40gb"]], "no profile of NVIDIA H100 SXM 80GB as MIG 1c.3g.40gb"),
        (["Tesla P4, 15360, [N/A]"], [[]], "no profile of 'Tesla P4'"),
        (["NVIDIA H200, 95000, Disabled"], [[]], "has 92.8 GiB here, and the profile h200-sxm 140.4 GiB"),
    ],
)
def test_what_is_not_one_known_kind_is_refused(rows: list[str], slices: list[list[str]], cause: str) -> None:
    with pytest.raises(InputError) as refused:
        local_profile(read_nvidia_smi(query(*rows), listing(*slices)))
    assert cause in refused.value.cause and refused.value.hint


def test_a_mode_without_a_profile_is_refused() -> None:
    with pytest.raises(InputError, match="MI300X as TPX/NPS1"):
        local_profile(read_amd_smi(whole_node(1, mode="TPX")))


def machine(**tools: str | Exception) -> Callable[[Sequence[str]], str]:
    """A machine on which commands print ``tools``, by name and first argument; others are not installed."""

    def run(command: Sequence[str]) -> str:
        key = f"{command[0]} {command[1]}".replace("-", "_").replace(" ", "_").partition("=")[0]
        answer = tools.get(key, SilentTool("not installed"))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


def test_an_older_amd_smi_without_partition_is_enough() -> None:
    assert len(find_local_gpus(machine(amd_smi_static=whole_node(2)))) == 2


def test_a_machine_with_gpus_of_both_vendors_shows_both() -> None:
    run = machine(
        amd_smi_static=whole_node(1),
        nvidia_smi___query_gpu=query("NVIDIA L4, 23034, [N/A]"),
        nvidia_smi__L=listing([], name="NVIDIA L4"),
    )
    with pytest.raises(InputError, match="1 x mi300x and 1 x l4"):
        local_profile(find_local_gpus(run))


def test_no_gpu_is_told_with_the_reason_of_each_tool() -> None:
    run = machine(amd_smi_static="[]", nvidia_smi___query_gpu="No devices were found\n", nvidia_smi__L="")
    with pytest.raises(InputError) as refused:
        find_local_gpus(run)
    for reason in ("amd-smi: shows none", "nvidia-smi: prints something unknown"):
        assert reason in refused.value.cause
    assert "\n" not in refused.value.cause and "--gpu" in refused.value.hint


@pytest.mark.parametrize("printed", ["ERROR:root: no driver", '{"gpu_data": [{', "[1, 2]", '{"card0": 3}', "null"])
def test_no_output_is_too_strange_to_be_refused(printed: str) -> None:
    with pytest.raises(InputError, match="no GPU is found"):
        find_local_gpus(machine(amd_smi_static=printed))


def test_a_tool_that_fails_or_is_missing_says_why() -> None:
    with pytest.raises(SilentTool, match="status 9: the driver is not loaded"):
        run_tool(["sh", "-c", "echo the driver is not loaded >&2; exit 9"])
    with pytest.raises(SilentTool, match="not installed"):
        run_tool(["no-such-tool-of-any-vendor"])
    assert run_tool(["echo", "fine"]) == "fine\n"


def test_a_tool_that_the_kernel_holds_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No signal ends a process in uninterruptible sleep, and who waits for it hangs too."""
    monkeypatch.setattr("planner.hardware.local.TIMEOUT_S", 0.2)
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: None)
    began = time.monotonic()
    with pytest.raises(SilentTool, match=r"no answer in 0.2 s"):
        run_tool(["sleep", "5"])
    assert time.monotonic() - began < 3


def test_every_whole_gpu_has_a_name() -> None:
    """``--gpu local`` finds a profile by the names and PCI ids in this table only."""
    table = tomllib.loads((Path(planner.hardware.__file__).parent / "devices.toml").read_text(encoding="utf-8"))
    assert set(table) == {profile.id for profile in load_all() if profile.vendor != "cpu"}
    keys = [key for entry in table.values() for key in (*entry["names"], *entry.get("pci", []))]
    assert len(keys) == len(set(keys))


def test_the_command_line_takes_the_gpus_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import planner.hardware.local as local

    monkeypatch.setattr(
        local, "find_local_gpus", lambda: read_nvidia_smi(query(*[f"{H100}, 81559, Disabled"] * 2), listing([], []))
    )
    assert main(["hardware", "show", "local", "--format", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["id"] == "h100-sxm" and "2 x NVIDIA H100 SXM 80GB" in shown.err
    assert main(["fit", "Qwen/Qwen3-8B", "--gpu", "local", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["gpu"]["id"] == "h100-sxm"
    # two GPUs are here: eight-way tensor parallelism is not recommended, one or two are
    assert main(["recommend", "Qwen/Qwen3-8B", "--gpu", "local", "--format", "json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert {plan["num_gpus"] for plan in plans} <= {1, 2} and plans[0]["gpus_per_node"] == 2
    assert main(["workflow", "copies", "Qwen/Qwen3-8B", "--gpu", "local", "--format", "json"]) == 0
    assert "2 x NVIDIA H100 SXM 80GB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "count"),
    [
        ({}, 8),
        ({"HIP_VISIBLE_DEVICES": "0"}, 1),
        ({"HIP_VISIBLE_DEVICES": "4,5"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6", "HIP_VISIBLE_DEVICES": "0,2"}, 2),
        ({"ROCR_VISIBLE_DEVICES": "4", "HIP_VISIBLE_DEVICES": "1"}, 0),  # HIP counts what ROCR leaves
        ({"ROCR_VISIBLE_DEVICES": "GPU-8a4e"}, 8),
    ],
)
def test_gpus_that_are_hidden_from_hip_are_not_planned_for(
    named: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """launch.sh takes the same GPUs: a plan for eight ended there with "names only 0"."""
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    tools = machine(amd_smi_static=whole_node(8))
    if count:
        assert len(find_local_gpus(tools)) == count
    else:
        with pytest.raises(InputError, match="no GPU is found"):
            find_local_gpus(tools)
