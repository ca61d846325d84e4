"""The hardware facts: complete, sourced, consistent with each other and with published figures."""

import tomllib
from pathlib import Path

import pytest
from command_line import error_of, json_of, run
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.errors import InputError, UnknownNameError
from planner.hardware import profiles as loader
from planner.hardware.profiles import (
    AllReduceCurve,
    GpuProfile,
    Memory,
    PartitionRule,
    Quantity,
    aliases,
    load_all,
    load_profile,
    profile_ids,
)
from planner.resources import data_dir
from planner.units import FACTORS, GIB, MIB

PROFILES = load_all(partitions=True)
PARTITIONS = [profile for profile in PROFILES if profile.partition]
WHOLE = [profile for profile in PROFILES if not profile.partition]


def by_id(profile: GpuProfile) -> str:
    return profile.id


def test_whole_gpus_are_told_from_partitions_without_parsing_these() -> None:
    assert load_all() == tuple(WHOLE)


@pytest.mark.parametrize("profile", PROFILES, ids=by_id)
def test_every_source_is_listed_and_used(profile: GpuProfile) -> None:
    used = {figure.source for _, figure in profile.figures()} | {profile.emulated_source} - {""}
    assert used == set(profile.sources)


@pytest.mark.parametrize("profile", PROFILES, ids=by_id)
def test_every_number_in_the_file_carries_unit_source_and_kind(profile: GpuProfile) -> None:
    """Walk the file itself: a bare number may only be a count."""
    counts = {"gpus_per_node", "compute_units", "count", "links", "domain_gpus", "gpus"}

    def bare(table: dict[str, object], path: str) -> list[str]:
        found = []
        for key, value in table.items():
            if isinstance(value, dict) and "value" in value:
                assert {"value", "unit", "source", "kind"} <= value.keys(), f"{path}{key}"
            elif isinstance(value, dict):
                found += bare(value, f"{path}{key}.")
            elif isinstance(value, int | float) and not isinstance(value, bool) and key not in counts:
                found.append(path + key)
        return found

    assert not bare(tomllib.loads((data_dir("hardware") / f"{profile.id}.toml").read_text("utf-8")), "")


@pytest.mark.parametrize("profile", [p for p in PROFILES if p.vendor != "cpu"], ids=by_id)
def test_the_engine_sees_no_more_than_the_driver_which_shows_no_more_than_the_stacks_hold(profile: GpuProfile) -> None:
    memory = profile.memory
    assert memory.marketing
    assert memory.engine_visible.base <= memory.marketing.value * GIB  # a marketing GB is at most a GiB
    if memory.driver:
        assert memory.engine_visible.base <= memory.driver.base <= memory.marketing.value * GIB


@pytest.mark.parametrize("profile", PROFILES, ids=by_id)
def test_measured_bandwidth_is_below_the_peak(profile: GpuProfile) -> None:
    memory, kernels = profile.memory, profile.kernels
    for measured in (memory.bandwidth_measured, kernels.gemv_bandwidth, kernels.decode_attention_bandwidth):
        assert measured is None or measured.base < memory.bandwidth.base


@pytest.mark.parametrize("profile", PROFILES, ids=by_id)
def test_an_emulated_format_runs_in_a_dtype_that_the_gpu_has(profile: GpuProfile) -> None:
    native = {"fp8": "fp8", "mxfp8": "fp8", "mxfp4": "fp4", "nvfp4": "fp4"}
    for weight_format, dtype in profile.emulated.items():
        assert profile.supports(dtype)
        if weight_format == "fp8":
            assert not profile.supports(native[weight_format])


@pytest.mark.parametrize(
    ("gpu", "dtype", "tflops"),
    [
        # AMD data sheets; gfx942: 304 CUs x 2048 FLOP per clock x 2.1 GHz = 1307.4
        ("mi300x", "bf16", 304 * 2048 * 2.1e9 / 1e12),
        ("mi300x", "fp8", 2614.9),
        ("mi325x", "bf16", 1307.4),
        ("mi355x", "bf16", 256 * 4096 * 2.4e9 / 1e12),  # gfx950: 2516.6
        ("mi355x", "fp4", 10066),
        # NVIDIA data sheets, the sparse figure halved
        ("h100-sxm", "bf16", 1978.9 / 2),
        ("h100-sxm", "fp8", 3957.8 / 2),
        ("h100-pcie", "bf16", 1513 / 2),
        ("h100-nvl", "fp8", 3341 / 2),
        ("h200-sxm", "bf16", 989.4),
        ("a100-sxm-80gb", "bf16", 624 / 2),
        ("a100-sxm-80gb", "int8", 1248 / 2),
        ("b200-sxm", "fp4", 144_000 / 8 / 2),  # HGX: 144 PFLOPS of sparse FP4 on the board
        ("b200-sxm", "fp8", 4500),
        ("l40s", "fp8", 1466 / 2),
        ("l4", "bf16", 242 / 2),
        ("rtx-4090", "bf16", 165.2),
        ("h20", "bf16", 148),
        ("rtx-3090", "bf16", 71),
    ],
)
def test_dense_peaks(gpu: str, dtype: str, tflops: float) -> None:
    assert load_profile(gpu).peak_flop_per_s(dtype) == pytest.approx(tflops * 1e12, rel=5e-4)


@pytest.mark.parametrize(
    ("gpu", "gb_per_s"),
    [
        ("mi300x", 5300), ("mi325x", 6000), ("mi355x", 8000), ("h100-sxm", 3350), ("h200-sxm", 4800),
        ("a100-sxm-80gb", 2039), ("b200-sxm", 8000), ("l4", 300), ("rtx-5090", 1792), ("mi300x-cpx", 662.5),
    ],
)  # fmt: skip
def test_peak_bandwidth(gpu: str, gb_per_s: float) -> None:
    assert load_profile(gpu).memory_bandwidth_bytes_per_s == gb_per_s * 1e9


@pytest.mark.parametrize(
    ("gpu", "gib"),
    [
        # as vLLM's start-up lines, PyTorch's out-of-memory messages and nvidia-smi mig -lgip print it
        ("mi300x", 191.98), ("mi325x", 255.98), ("mi355x", 287.98), ("h100", 79.18), ("h200", 139.80), ("b200", 178.35),
        ("b300", 267.69), ("gb200", 184.31), ("a100", 79.25), ("rtx-5090", 31.36), ("rtx-pro-6000", 94.97),
        ("mi300x-cpx", 24.00), ("mi300x-cpx-nps4", 24.00), ("h100-mig-1g.10gb", 9.75), ("a100-mig-3g.40gb", 39.25),
    ],
)  # fmt: skip
def test_memory_that_the_engine_sees(gpu: str, gib: float) -> None:
    assert round(load_profile(gpu).memory_bytes / GIB, 2) == gib


def test_amd_stacks_hold_gib_less_16_mib() -> None:
    """206,141,652,992 B is what amd-smi and torch show of the 192 GiB of an MI300X."""
    assert load_profile("mi300x").memory_bytes == 206_141_652_992 == 192 * GIB - 16 * MIB
    assert load_profile("mi355x").memory_bytes == 309_220_868_096 == 288 * GIB - 16 * MIB


def test_a_pair_on_an_xgmi_mesh_has_one_link_of_seven() -> None:
    links = load_profile("mi300x").interconnect
    assert links.kind == "xgmi-mesh"
    assert links.link_bandwidth and links.bandwidth and links.links == 7
    assert links.bandwidth.base == links.links * links.link_bandwidth.base == 448e9
    (pair,) = (curve for curve in links.allreduce if curve.gpus == 2)
    size, seconds = pair.points[-1]  # RCCL's bus bandwidth of a pair is published as 47.7 GB/s
    assert 2 * (2 - 1) / 2 * size / seconds == pytest.approx(47.7e9, rel=0.02)


@pytest.mark.parametrize(
    ("gpu", "gpus", "kib", "microseconds"),
    [
        ("h100", 8, 16, 5.3),
        ("h100", 2, 1024, 8.3),
        ("b200", 8, 16, 8.1),
        ("a100", 8, 256, 17.1),
        ("mi355x", 8, 24, 6.3),
    ],
)
def test_measured_all_reduce(gpu: str, gpus: int, kib: int, microseconds: float) -> None:
    (curve,) = (one for one in load_profile(gpu).interconnect.allreduce if one.gpus == gpus)
    assert dict(curve.points)[kib * 1024] == pytest.approx(microseconds * 1e-6)


def test_an_all_reduce_that_nobody_measured_is_unknown() -> None:
    assert not load_profile("h20").interconnect.allreduce


@pytest.mark.parametrize("profile", WHOLE, ids=by_id)
def test_no_all_reduce_beats_the_links(profile: GpuProfile) -> None:
    links = profile.interconnect
    for curve in links.allreduce:
        assert links.bandwidth
        peak = links.bandwidth.base
        if links.kind == "xgmi-mesh":
            assert links.link_bandwidth
            peak = links.link_bandwidth.base * (curve.gpus - 1)
        for size, seconds in curve.points:
            assert 2 * (curve.gpus - 1) / curve.gpus * size / seconds < peak


def test_number_formats_by_generation() -> None:
    a100, h100, b200 = (load_profile(gpu) for gpu in ("a100", "h100", "b200"))
    mi300x, mi355x = load_profile("mi300x"), load_profile("mi355x")
    assert [gpu.supports("fp8") for gpu in (a100, h100, b200, mi300x, mi355x)] == [False, True, True, True, True]
    assert [gpu.supports("fp4") for gpu in (a100, h100, b200, mi300x, mi355x)] == [False, False, True, False, True]
    assert a100.emulated["fp8"] == "bf16"  # weight-only Marlin: W8A8 needs compute capability 8.9
    assert h100.emulated["mxfp4"] == h100.emulated["nvfp4"] == "bf16"
    assert not b200.emulated
    assert load_profile("t4").emulated["fp8"] == load_profile("rtx-2080-ti").emulated["nvfp4"] == "fp16"  # Marlin, 7.5
    assert mi300x.emulated["mxfp4"] == "bf16"
    assert "mxfp4" not in mi355x.emulated and mi355x.emulated["nvfp4"] == "bf16"
    assert (mi300x.fp8_format, mi355x.fp8_format, h100.fp8_format) == ("e4m3fnuz", "e4m3fn", "e4m3fn")
    assert (a100.compute_capability, h100.compute_capability) == ((8, 0), (9, 0))
    assert load_profile("b300").compute_capability == (10, 3)
    assert load_profile("rtx-5090").compute_capability == (12, 0)
    assert mi300x.compute_capability is None
    with pytest.raises(InputError, match="no fp4 matrix units"):
        mi300x.peak_flop_per_s("fp4")


@pytest.mark.parametrize("profile", PARTITIONS, ids=by_id)
def test_partitions_add_up_to_no_more_than_the_package(profile: GpuProfile) -> None:
    part = profile.partition
    assert part
    whole = load_profile(part.of)
    assert whole.memory.driver and whole.compute_units and profile.compute_units
    assert part.count * profile.memory_bytes <= whole.memory.driver.base
    assert part.count * profile.memory_bandwidth_bytes_per_s <= whole.memory_bandwidth_bytes_per_s
    assert part.count * profile.compute_units <= whole.compute_units
    assert profile.gpus_per_node == part.count * whole.gpus_per_node
    assert profile.architecture == whole.architecture


@pytest.mark.parametrize("profile", PARTITIONS, ids=by_id)
def test_peaks_of_a_partition_scale_with_its_compute_units(profile: GpuProfile) -> None:
    assert profile.partition
    whole = load_profile(profile.partition.of)
    assert whole.compute_units and profile.compute_units
    share = profile.compute_units / whole.compute_units
    for dtype, peak in whole.compute:
        assert profile.supports(dtype) == (peak is not None)
        if peak:
            assert profile.peak_flop_per_s(dtype) == pytest.approx(share * peak.base, rel=1e-4)


@pytest.mark.parametrize("profile", [p for p in PARTITIONS if p.vendor == "amd"], ids=by_id)
def test_amd_partitions_share_all_of_the_package(profile: GpuProfile) -> None:
    part = profile.partition
    assert part
    whole = load_profile(part.of)
    assert part.count == {"DPX": 2, "QPX": 4, "CPX": 8}[part.compute_mode]
    assert int(part.memory_mode.removeprefix("NPS")) <= part.count  # no more memory than compute partitions
    assert part.count * profile.memory_bytes == whole.memory_bytes
    assert profile.compute_units and part.count * profile.compute_units == whole.compute_units
    assert not part.isolated_bandwidth


def test_cpx_of_an_mi300x_has_38_compute_units_and_24_gib() -> None:
    for gpu in ("mi300x-cpx", "mi300x-cpx-nps1", "mi300x-cpx-nps4"):
        profile = load_profile(gpu)
        assert profile.compute_units == 38
        assert profile.memory_bytes == pytest.approx(24 * GIB, rel=1e-4)  # 2 MiB short: the package's 16 MiB / 8
        assert profile.gpus_per_node == 64


def test_cpx_nps1_and_mig_serve_one_partition_per_instance() -> None:
    for gpu in ("mi300x-cpx", "mi325x-cpx", "mi355x-cpx", "h100-mig-1g.10gb", "a100-mig-3g.40gb"):
        part = load_profile(gpu).partition
        assert part
        rule = part.tensor_parallel_rule(2)
        assert not rule.allowed
        assert "--tensor-parallel-size 1 on each" in rule.fix
        assert part.of in rule.fix


def test_tensor_parallelism_over_cpx_nps4_is_unvalidated_inside_and_refused_across_packages() -> None:
    part = load_profile("mi300x-cpx-nps4").partition
    assert part
    inside, across = part.tensor_parallel_rule(8), part.tensor_parallel_rule(16)
    assert inside.allowed and not inside.validated
    assert not across.allowed
    assert across.reason != inside.reason


def test_only_mig_guarantees_bandwidth() -> None:
    assert {p.vendor for p in PARTITIONS if p.partition and p.partition.isolated_bandwidth} == {"nvidia"}


def test_disputed_modes_say_so() -> None:
    part = load_profile("mi300x-qpx-nps4").partition
    assert part and part.legal and part.legal.allowed and not part.legal.validated


def test_every_id_that_the_measured_runs_and_the_contract_use_resolves() -> None:
    runs = """mi300x mi355x a100-sxm-80gb b200-sxm h200-sxm h100-sxm h100-pcie rtx-4090 rtx-pro-6000 mi325x rtx-5090
        l40s h20 rtx-3090 h100-nvl"""
    contract = """mi300x-cpx mi300x-cpx-nps1 mi300x-cpx-nps4 mi300x-dpx mi355 b200 h100 h200 a100 b300 gb200 gb300
        gh200 l4 a10g mi350x a100-40gb h200-nvl cpu"""
    for name in f"{runs} {contract}".split():
        assert load_profile(name.upper()) is load_profile(name)


def test_aliases_are_unique_and_lead_somewhere() -> None:
    table = tomllib.loads((data_dir("hardware") / "aliases.toml").read_text("utf-8"))
    names = [alias for group in table.values() for alias in group]
    assert len(names) == len(set(names))
    assert not set(names) & set(profile_ids())
    assert table.keys() <= set(profile_ids())
    assert all(name == name.lower() for name in (*names, *profile_ids()))
    assert all(alias in load_profile(alias).aliases for alias in aliases())


def test_partitions_name_a_whole_gpu() -> None:
    assert all(p.partition and load_profile(p.partition.of).partition is None for p in PARTITIONS)


def test_unknown_gpu_offers_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_profile("mi3000x")
    assert "planner hardware list" in caught.value.hint
    assert "mi3000x" in caught.value.cause


@pytest.mark.parametrize(
    ("name", "profile_id", "node"),
    [
        ("MI300", "mi300x", 8), ("4090", "rtx-4090", 8), ("nvidia H100", "h100-sxm", 8), ("H100 80 GB", "h100-sxm", 8),
        ("NVIDIA H100 80GB HBM3", "h100-sxm", 8), ("AMD Instinct MI300X", "mi300x", 8), ("8xH100", "h100-sxm", 8),
        ("2 x MI300X", "mi300x", 2), ("h100x4", "h100-sxm", 4), ("2x4090", "rtx-4090", 2), ("4xGB300", "gb300", 4),
        ("MI 300X", "mi300x", 8), ("mi-355x", "mi355x", 8), ("B200 180GB", "b200-sxm", 8),
        ("B200 192GB", "b200-sxm", 8),
        ("RTX 4090 24 GB", "rtx-4090", 8), ("4 H100", "h100-sxm", 4), ("h100:2", "h100-sxm", 2),
    ],
)  # fmt: skip
def test_gpus_are_called_as_people_write_them(name: str, profile_id: str, node: int) -> None:
    profile = load_profile(name)
    assert (profile.id, profile.gpus_per_node) == (profile_id, node)


def test_a_memory_size_in_a_name_is_that_of_the_gpu() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_profile("H100 94GB")
    assert caught.value.nearest[0] == "h100-nvl-94gb"


def test_a_node_has_no_more_gpus_than_its_profile() -> None:
    with pytest.raises(InputError, match="a node of h100-sxm has 8 GPUs"):
        load_profile("16xH100")


def test_a_power_limit_slows_a_gpu_as_published() -> None:
    whole, at_280, at_220 = (load_profile(name) for name in ("3090", "RTX 3090@280W", "2x3090@220w"))
    shares = [at.memory_bandwidth_bytes_per_s / whole.memory_bandwidth_bytes_per_s for at in (at_280, at_220)]
    assert shares[0] >= 0.95  # Puget Systems, four RTX 3090 at 280 W: over 95 %
    assert shares[1] == pytest.approx(0.8, abs=0.05)  # the rig of lotto_4x3090: about a fifth less
    assert at_220.peak_flop_per_s("bf16") == pytest.approx(shares[1] * whole.peak_flop_per_s("bf16"))
    assert (at_220.id, at_220.whole, at_220.gpus_per_node) == ("rtx-3090@220w", "rtx-3090", 2)
    assert load_profile(at_280.id) == at_280


@pytest.mark.parametrize("name", ["3090@50w", "h100@800w", "cpu@100w"])
def test_a_gpu_without_such_a_power_limit_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="has no power limit of"):
        load_profile(name)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Quadro RTX 8000", "rtx-2080-ti"), ("3060", "rtx-4060-ti-16gb"), ("A800", "a100-pcie-80gb"),
        ("MI100", "mi210"), ("B100", "b200-sxm"), ("L40", "l40s"), ("Radeon 7900 XTX", "w7900"), ("mi3000x", "mi300x"),
    ],
)  # fmt: skip
def test_the_nearest_gpus_are_of_the_nearest_generation(name: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_profile(name)
    assert nearest in caught.value.nearest and "h200" not in caught.value.nearest


def test_one_name_reads_one_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(loader, "_read", lambda path, **extra: read.append(path.name))
    loader._shipped.cache_clear()
    load_profile("B200")
    loader._shipped.cache_clear()
    assert read == ["b200-sxm.toml"]


OWN = """
name = "Card of the next generation"
vendor = "nvidia"
architecture = "sm_120"
platform = "cuda"
gpus_per_node = 4

[memory]
engine_visible = { value = 47.1, unit = "GiB", source = "me", kind = "measured" }
bandwidth = { value = 1.3, unit = "TB/s", source = "sheet", kind = "spec" }

[compute]
bf16 = { value = 250, unit = "TFLOP/s", source = "sheet", kind = "spec" }

[interconnect]
kind = "pcie"

[sources.me]
title = "my own log"
retrieved = 2026-11-20

[sources.sheet]
title = "data sheet"
retrieved = 2026-11-20
"""


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "My-Card.toml"
    path.write_text(OWN)
    profile = load_profile(str(path))
    assert (profile.id, profile.gpus_per_node) == ("My-Card", 4)
    assert profile.memory_bandwidth_bytes_per_s == 1.3e12
    assert profile.memory_bytes == int(47.1 * GIB)


def test_links_of_unknown_bandwidth_are_named(tmp_path: Path) -> None:
    """``fit`` counts memory alone, and says that the speed over these links is not known."""
    path, known = tmp_path / "my-card.toml", tmp_path / "known.toml"
    path.write_text(OWN)
    bandwidth = 'bandwidth = { value = 32, unit = "GB/s", source = "me", kind = "spec" }'
    known.write_text(OWN.replace('kind = "pcie"', f'kind = "pcie"\n{bandwidth}'))
    words = ("predict", "latency", "meta-llama/Llama-3.1-8B-Instruct", "-tp", "2", "--gpu")
    cause, hint = error_of(run(*words, str(path)))
    assert cause == "link bandwidth of Card of the next generation unknown: 2 GPUs share the model"
    assert "add bandwidth to [interconnect]" in hint and run(*words, str(known)).status == 0
    notes = [json_of("fit", words[2], "--gpu", str(profile))["notes"] for profile in (path, known)]
    assert [any("link bandwidth unknown" in note for note in of_one) for of_one in notes] == [True, False]


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ('unit = "TB/s"', 'unit = "TB"', "memory.bandwidth: unit 'TB' is not one of B/s, GB/s, TB/s"),
        ('value = 1.3, unit = "TB/s", ', "value = 1.3, ", "memory.bandwidth.unit is missing"),
        ("value = 250", "value = -250", "compute.bf16.value is -250, not at least 1e-06"),
        ("value = 1.3", "value = 1e-308", "memory.bandwidth.value is 1e-308, not at least 1e-06"),
        ("value = 250", "value = 1e300", "compute.bf16.value is 1e+300, not at most 1e+18"),
        ("value = 250", "value = nan", "compute.bf16.value is nan, not a finite number"),
        ("value = 250", 'value = "250"', "compute.bf16.value is '250', not a number"),
        ('source = "me"', 'source = "hearsay"', "toml: sources not listed: hearsay: add [sources.hearsay]"),
        ('kind = "measured"', 'kind = "guessed"', "memory.engine_visible.kind is 'guessed', not 'spec', 'measured'"),
        ("gpus_per_node = 4", "gpus_per_node = 0", "gpus_per_node is 0, not at least 1"),
        ("gpus_per_node = 4", "gpus_per_node = 999999999", "gpus_per_node is 999999999, not at most 4096"),
        ('kind = "pcie"', 'kind = "pcie"\nlanes = 16', "interconnect.lanes is not a known field"),
        ("[memory]", "[memory", "is not valid TOML"),
        ('kind = "pcie"', 'kind = "pcie"\nallreduce = [{ gpus = 2 }]', "interconnect.allreduce.0.method is missing"),
    ],
)
def test_a_broken_profile_names_the_field_in_one_line(tmp_path: Path, before: str, after: str, cause: str) -> None:
    assert before in OWN
    path = tmp_path / "broken.toml"
    path.write_text(OWN.replace(before, after, 1))
    with pytest.raises(InputError) as caught:
        load_profile(str(path))
    assert cause in caught.value.cause
    assert str(path) in caught.value.cause
    assert "\n" not in caught.value.cause and "\n" not in caught.value.hint


def test_a_missing_file_is_a_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read GPU profile"):
        load_profile(str(tmp_path / "absent.toml"))
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(InputError, match="cannot read GPU profile"):
        load_profile(str(tmp_path / "folder.toml"))
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InputError, match="is not valid TOML"):
        load_profile(str(tmp_path / "latin.toml"))


@given(value=st.floats(min_value=1e-6, max_value=1e15), unit=st.sampled_from(sorted(FACTORS)))
def test_a_quantity_converts_by_its_unit(value: float, unit: str) -> None:
    assert Quantity(value=value, unit=unit, source="x", kind="spec").base == pytest.approx(value * FACTORS[unit])


@given(value=st.floats(max_value=0) | st.just(float("nan")) | st.just(float("inf")))
def test_a_quantity_is_positive_and_finite(value: float) -> None:
    with pytest.raises(ValidationError):
        Quantity(value=value, unit="GB", source="x", kind="spec")


def test_memory_is_not_measured_in_seconds() -> None:
    seconds = Quantity(value=1, unit="s", source="x", kind="spec")
    rate = Quantity(value=1, unit="GB/s", source="x", kind="spec")
    with pytest.raises(ValidationError, match="unit 's' is not one of"):
        Memory(engine_visible=seconds, bandwidth=rate)


def test_a_refusal_says_what_to_do_instead() -> None:
    with pytest.raises(ValidationError, match="needs a 'fix'"):
        PartitionRule(allowed=False, reason="no", source="x")
    with pytest.raises(ValidationError, match="needs a 'fix'"):
        PartitionRule(allowed=True, validated=False, reason="disputed", source="x")


@pytest.mark.parametrize(("sizes", "times"), [((1, 2), (1,)), ((), ()), ((2, 1), (1, 2)), ((1, 1), (1, 2))])
def test_a_curve_has_a_time_for_each_ascending_size(sizes: tuple[float, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError):
        AllReduceCurve(
            gpus=2, method="x", size_unit="KiB", sizes=sizes, time_unit="us", times=times, source="x", kind="measured"
        )
