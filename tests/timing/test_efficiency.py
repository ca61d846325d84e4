"""Efficiencies: priors from kernel tables, files of fits, how near runs are, and intervals."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from physics_cases import engine, gpu, llama_8b, mla_model, moe_model, quantity

from planner.engine.version import known_version
from planner.hardware.profiles import AllReduceCurve, Kernels, load_profile
from planner.model.architecture import SparseIndexer
from planner.model.quantization import as_quantized
from planner.model.resolve import resolve_model
from planner.resources import data_dir
from planner.timing.efficiencies import (
    PARAMETERS,
    SAME_KERNELS,
    SHARES,
    Efficiency,
    attention_class,
    covariates_of,
    engine_generation,
    kernel_values,
    load_priors,
    prior_values,
)
from planner.timing.fits import (
    LEVELS,
    Calibration,
    Effect,
    efficiency_for,
    load_calibration,
    settings,
)
from planner.timing.step import Batch, Graphs, StepModel

HERE = {
    "gpu": "a",
    "architecture": "x",
    "shape": "s",
    "weights": "fp8",
    "tp": "1",
    "release": "0.11",
    "generation": "v1-full",
}


def test_every_parameter_has_a_prior_with_a_source_and_shares_are_shares() -> None:
    priors = load_priors()
    assert tuple(priors) == PARAMETERS
    assert all(prior.source for prior in priors.values())
    assert all(0 < priors[name].value <= 1 for name in SHARES)


def test_kernel_tables_of_the_gpu_come_before_the_global_prior() -> None:
    # 3129 of 3350 GB/s, as NVIDIA's vLLM tables have it for H100
    profile = gpu().model_copy(update={"kernels": Kernels(gemv_bandwidth=quantity(3129, "GB/s"))})
    assert prior_values(profile, {})["weight_bandwidth_16"] == pytest.approx(3129 / 3350)
    assert prior_values(gpu(), {})["weight_bandwidth_16"] == load_priors()["weight_bandwidth_16"].value


#: Published times of the experts of one layer for one token, us: aiconfigurator 0.12.0, vLLM 0.24.0, one GPU, balanced.
#: GPU, weights, bits with scales, experts of a token, hidden size, size of an expert.
EXPERTS_US = {
    ("h200-sxm", "bf16", 16, 8, 4096, 1536): 96.325,
    ("h200-sxm", "fp8-block", 8, 8, 4096, 1536): 70.507,
    ("h200-sxm", "fp8-block", 8, 8, 7168, 2048): 115.648,
    ("h200-sxm", "mxfp4", 4.25, 4, 2880, 2880): 60.859,
    ("b200-sxm", "bf16", 16, 8, 4096, 1536): 59.627,
    ("b200-sxm", "fp8", 8, 8, 4096, 1536): 40.768,
    ("b200-sxm", "fp8-block", 8, 8, 4096, 1536): 52.789,
    ("b200-sxm", "fp8-block", 8, 8, 7168, 2048): 81.984,
    ("b200-sxm", "nvfp4", 4.5, 8, 4096, 1536): 23.435,
    ("b200-sxm", "nvfp4", 4.5, 8, 7168, 2048): 51.504,
    ("b200-sxm", "mxfp4", 4.25, 4, 2880, 2880): 31.227,
}


@pytest.mark.parametrize("case", EXPERTS_US)
def test_experts_start_from_the_tables_of_their_architecture(case: tuple[str, str, float, int, int, int]) -> None:
    name, weights, bits, top_k, hidden, inner = case
    profile = load_profile(name)
    architecture = SAME_KERNELS.get(profile.architecture, profile.architecture)
    values = prior_values(profile, {"architecture": architecture, "weights": weights})
    rate = values[f"expert_bandwidth_{int(bits)}"] * profile.memory.bandwidth.base
    read_s = top_k * 3 * hidden * inner * bits / 8 / rate  # gate, up and down
    assert values["expert_launch_s"] + read_s == pytest.approx(EXPERTS_US[case] * 1e-6, rel=0.25)


#: The same of the attention of one layer, us: 32 heads and 8 KV heads of 128, 16-bit cache.
#: GPU, one prompt or 256 decoding sequences, tokens of each, window.
ATTENTION_US = {
    ("h100-sxm", "prefill", 1024, None): 35.520,
    ("h100-sxm", "prefill", 16384, None): 3310.384,
    ("h100-sxm", "prefill", 16384, 128): 325.904,
    ("b200-sxm", "prefill", 1024, None): 28.629,
    ("b200-sxm", "prefill", 16384, None): 1768.219,
    ("b200-sxm", "prefill", 16384, 128): 199.989,
    ("l40s", "prefill", 1024, None): 75.776,
    ("l40s", "prefill", 16384, None): 11825.152,
    ("h100-sxm", "decode", 127, None): 87.867,
    ("h100-sxm", "decode", 1023, None): 364.384,
    ("b200-sxm", "decode", 1023, None): 158.283,
    ("l40s", "decode", 1023, None): 1522.171,
}


@pytest.mark.parametrize("case", ATTENTION_US)
def test_attention_starts_from_its_tables(case: tuple[str, str, int, int | None]) -> None:
    name, phase, length, window = case
    profile = load_profile(name)
    architecture = SAME_KERNELS.get(profile.architecture, profile.architecture)
    believed = Efficiency(**prior_values(profile, {"architecture": architecture}))
    decoding = Batch(decode_seqs=256, decode_context_tok=256 * length)
    prompt = Batch(prefill_seqs=1, prefill_tok=length, prefill_pair_tok=length * (length + 1) / 2)
    step = StepModel(llama_8b(window=window), profile, engine(), believed)
    (found,) = (
        p for p in step.breakdown(decoding if phase == "decode" else prompt).parts if p.name == f"attention {phase}"
    )
    assert found.time_s / 32 == pytest.approx(ATTENTION_US[case] * 1e-6, rel=0.25)


#: The same of latent attention: what 64 sequences of DeepSeek-R1 take longer at 8,192 tokens than at 2,048, us.
#: GPU, cache, TP (128 heads, or 16, which take as many multiplications as 64).
LATENT_US = {
    ("h200-sxm", "auto", 1): 404.2 - 255.5,
    ("h200-sxm", "auto", 8): 256.0 - 151.8,
    ("h200-sxm", "fp8", 1): 398.8 - 255.9,
    ("h200-sxm", "fp8", 8): 238.8 - 166.0,
    ("b200-sxm", "auto", 1): 238.8 - 158.9,
    ("b200-sxm", "auto", 8): 169.9 - 91.0,
    ("b200-sxm", "fp8", 1): 193.2 - 153.9,
    ("b200-sxm", "fp8", 8): 108.6 - 72.4,
}


@pytest.mark.parametrize("case", LATENT_US)
def test_latent_attention_starts_from_its_tables(case: tuple[str, str, int]) -> None:
    name, cache, tp = case
    profile, model = load_profile(name), resolve_model("deepseek-ai/DeepSeek-R1", network=False).model
    architecture = SAME_KERNELS.get(profile.architecture, profile.architecture)
    config = engine(kv_cache_dtype="bf16" if cache == "auto" else cache, tensor_parallel_size=tp)
    step = StepModel(model, profile, config, Efficiency(**prior_values(profile, {"architecture": architecture})))
    short, long = (
        next(p.time_s for p in step.breakdown(Batch(64, 64 * tok)).parts if p.name == "attention decode")
        for tok in (2048, 8192)
    )
    assert (long - short) / model.num_layers == pytest.approx(LATENT_US[case] * 1e-6, rel=0.3)


def test_experts_without_a_table_start_from_the_global_prior() -> None:
    values = prior_values(load_profile("mi300x"), {"architecture": "gfx942", "weights": "fp8-block"})
    assert values["expert_launch_s"] == load_priors()["expert_launch_s"].value


def test_fp8_with_scales_of_blocks_is_a_precision_of_its_own() -> None:
    profile = load_profile("b300-sxm")
    names = ("Qwen/Qwen3-30B-A3B-FP8", "zai-org/GLM-4.6-FP8", "Qwen/Qwen3-30B-A3B")
    models = [resolve_model(name, network=False).model for name in names]
    config = [engine(weight_dtype=model.quantization.weight_dtype) for model in models]
    found = [covariates_of(model, profile, one) for model, one in zip(models, config, strict=True)]
    assert [one["weights"] for one in found] == ["fp8-block", "fp8", "bf16"]
    assert found[0]["architecture"] == "sm_100", "B300 has the kernels of B200"


@pytest.mark.parametrize("gpu_id", ["h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "mi355x", "l40s"])
@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"])
def test_precisions_of_weights_change_the_operators_that_read_them_alone(gpu_id: str, name: str) -> None:
    # FlashAttention on a 16-bit cache, norms and all-reduces do not know the precision of the weights
    base, profile = resolve_model(name, network=False).model, load_profile(gpu_id)
    models = [base, *(as_quantized(base, dtype) for dtype in ("fp8", "int4-awq", "int4-gptq"))]
    bf16, fp8, awq, gptq = (
        efficiency_for(one, profile, engine(weight_dtype=one.quantization.weight_dtype, tensor_parallel_size=4))
        for one in models
    )
    others = [one for one in PARAMETERS if not one.startswith(("weight", "gemm", "expert"))]
    assert all(getattr(bf16, one) == getattr(fp8, one) == getattr(awq, one) for one in others)
    # vLLM 0.32 runs both by Marlin (quantization/auto_awq.py, auto_gptq.py); AMD has kernels of its own for each
    assert awq == gptq or profile.platform == "rocm"


def test_a_measured_all_reduce_gives_latency_and_bandwidth() -> None:
    # H100, 8 GPUs: 5.1 us at 8 KiB, 50.7 us at 8 MiB: 8 MiB x 14/8 / 45.6 us = 322 of 450 GB/s
    curve = AllReduceCurve(
        gpus=8,
        method="",
        size_unit="KiB",
        sizes=(8, 8192),
        time_unit="us",
        times=(5.1, 50.7),
        source="spec",
        kind="measured",
    )
    links = gpu().interconnect.model_copy(update={"allreduce": (curve,)})
    values = kernel_values(gpu().model_copy(update={"interconnect": links}), 8)
    assert values["link_share"] == pytest.approx(322 / 450, rel=0.01)
    # 8 ranks take 1.18 times what two take
    assert values["collective_s"] == pytest.approx(5.1e-6 / 1.18, rel=0.01)


def test_an_all_reduce_over_pcie_that_nobody_measured_reaches_a_fifth() -> None:
    # 5 of 32 GB/s on RTX 4090 and 8 of 64 on H100 PCIe are 0.16 and 0.13; up to 0.59 was seen on L40S
    assert prior_values(gpu(links="pcie"), {"tp": "2"})["link_share"] == pytest.approx(0.2)


def test_a_gpu_without_fits_takes_those_of_its_architecture() -> None:
    effects = (
        Effect(target="gemm_flop_16", when={"architecture": "sm_90"}, factor=0.5, sd=0.1),
        Effect(target="gemm_flop_16", when={"gpu": "other-gpu"}, factor=0.1, sd=0.1),
    )
    calibration = Calibration(name="test", fitted_on="", effects=effects)
    found = efficiency_for(llama_8b(), gpu(), engine(), calibration)
    assert found.gemm_flop_16 == 0.5 * load_priors()["gemm_flop_16"].value


def basis_of(name: str, calibration: Calibration) -> str:
    covariates = covariates_of(llama_8b(), load_profile(name), engine())
    return calibration.evidence(covariates, engine()).basis


def test_runs_of_a_user_measure_their_gpu() -> None:
    """A W7900 has no published run. Its owner's runs are of that GPU, and of no other."""
    own = (Effect(target="gemm_flop_16", when={}, factor=0.5, sd=0.1, gpu="w7900"),)
    calibration = load_calibration().with_own(own, "mine.toml")
    assert [basis_of(name, calibration) for name in ("w7900", "gfx1151")] == ["gpu", "global"]


def test_a_part_of_a_gpu_is_not_the_gpu_that_was_measured() -> None:
    calibration = load_calibration()
    whole, part = (covariates_of(llama_8b(), load_profile(name), engine()) for name in ("mi300x", "mi300x-cpx"))
    assert [basis_of(name, calibration) for name in ("mi300x", "mi300x-cpx")] == ["gpu", "architecture"]
    wide, narrow = (np.diag(calibration.known(where).covariance) for where in (part, whole))
    assert (wide >= narrow - 1e-12).all() and (wide > narrow + 0.01).any()


def test_b300_takes_what_was_fitted_for_b200() -> None:
    """One run of B300 is of another model."""
    assert basis_of("b300-sxm", load_calibration()) == "architecture"


def test_what_we_ship_is_readable_physical_and_has_a_scatter_for_every_metric() -> None:
    calibration = load_calibration()
    profile = load_profile("mi300x")
    found = calibration.efficiency(covariates_of(llama_8b(), profile, engine()), prior_values(profile, {}))
    assert all(0 < getattr(found, name) <= 1 for name in SHARES)
    assert all(getattr(found, name) > 0 for name in PARAMETERS)
    for metric in ("avg_latency_s", "output_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms"):
        scatter = calibration.scatters[metric]
        assert 0.01 < scatter.noise < 0.5 and list(scatter.reach) == sorted(scatter.reach), metric
        assert 1 < scatter.reach[LEVELS.index(0.9)] < 4, metric


def test_attention_classes() -> None:
    assert attention_class(llama_8b()) == "mha"
    assert attention_class(llama_8b(window=4096)) == "window"
    assert attention_class(mla_model()) == "mla"
    assert attention_class(mla_model(SparseIndexer(64, 128, 2048))) == "sparse"


@pytest.mark.parametrize(
    ("version", "name"), [("0.6.3", "v0"), ("0.10.0", "v1"), ("0.11.0", "v1-full"), ("0.14.0", "v1-async")]
)
def test_engine_generations(version: str, name: str) -> None:
    config = engine(version=known_version(version), engine="V0" if name == "v0" else "V1")
    assert engine_generation(config, gpu()) == name


def test_atom_is_an_engine_of_its_own() -> None:
    version = replace(known_version("0.19.0"), build="vllm+atom-plugin")
    assert engine_generation(engine(version=version), gpu()) == "atom"


def test_v0_replays_decode_steps_only_and_v1_any_small_step() -> None:
    old, new = Graphs.of(engine(engine="V0", version=known_version("0.7.3")), gpu()), Graphs.of(engine(), gpu())
    decodes = Batch(8, 8 * 1000.0)
    short, long = (decodes._replace(prefill_seqs=1, prefill_tok=tok) for tok in (100, 4000))
    assert old.holds(decodes) and new.holds(decodes)
    assert not old.holds(short) and new.holds(short)
    assert not new.holds(long)
    assert not Graphs.of(engine(enforce_eager=True), gpu()).holds(Batch(1, 100.0))


def test_the_first_v0_releases_ran_long_contexts_without_graphs() -> None:
    early = Graphs.of(engine(engine="V0", version=known_version("0.4.2")), gpu())
    assert early.holds(Batch(2, 2 * 8000.0))
    assert not early.holds(Batch(2, 2 * 9000.0))


def test_a_shape_is_one_architecture_at_one_size_whoever_trained_it() -> None:
    base, tuned = llama_8b(), replace(llama_8b(), id="somebody/else")
    shapes = {covariates_of(model, gpu(), engine())["shape"] for model in (base, tuned)}
    assert len(shapes) == 1
    assert covariates_of(moe_model(), gpu(), engine())["shape"] not in shapes


def test_settings_count_every_published_run() -> None:
    """Stale: ``python benchmarks/settings.py``."""
    with (data_dir("hardware") / "calibration" / "runs.csv").open(encoding="utf-8", newline="") as file:
        published = {row["run_id"]: (row["model"], row["weight_dtype"]) for row in csv.DictReader(file)}
    counted = [(name, (one["model"], one["weight_dtype"])) for one in settings() for name in one["run_ids"].split()]
    assert sorted(counted) == sorted(published.items())
    assert all(len(one["run_ids"].split()) == int(one["runs"]) for one in settings())


def test_every_published_run_of_fp8_experts_has_a_layout_that_vllm_starts() -> None:
    """Before 0.32 vLLM's ``Fp8MoEMethod`` refuses experts whose part on a GPU ends within a block of scales."""
    cut = []
    for one in settings():
        tensor_parallel, *_ = one["layout"].split(".")
        if one["kind"] == "moe" and one["weights"] == "fp8-block" and "+EP" not in one["layout"]:
            experts = resolve_model(one["model"]).model.layers[-1].moe
            assert experts
            cut += [one] * (experts.intermediate_size % (128 * int(tensor_parallel)) > 0)
    assert cut == []


@pytest.mark.parametrize(
    ("model", "on", "tp", "note"),
    [  # counted in runs.csv by GPU, model, weight_dtype and layout
        ("openai/gpt-oss-120b", "mi325x", 2,
         "measured: 1 run of this model's shape, precision and layout on mi325x, vLLM 0.17"),
        ("openai/gpt-oss-120b", "mi325x", 8,
         "interpolated: 2 runs of this model's shape and precision on mi325x, none in this layout"),
        ("meta-llama/Llama-3.1-70B-Instruct", "mi325x", 1,
         "interpolated: 2 runs of this model's shape on mi325x, none in this precision"),
        ("nvidia/MiniMax-M3-NVFP4", "mi325x", 8,
         "extrapolated: 10 runs on mi325x, none of this model's shape; nearest MiniMax-M3-MXFP8 on mi300x"),
        ("meta-llama/Llama-3.1-8B-Instruct", "mi300x-cpx", 1,
         "extrapolated: no run on a part of mi300x; nearest Llama-3.1-8B-Instruct on mi300x"),
        ("meta-llama/Llama-3.1-8B-Instruct", "cpu", 1, "extrapolated: no run on cpu"),
    ],
)  # fmt: skip
def test_an_engine_has_the_class_of_the_runs_nearest_to_it(model: str, on: str, tp: int, note: str) -> None:
    """MI325X said "measured on the same GPU" for a model and a precision that nobody ran there."""
    profile, served = load_profile(on), resolve_model(model).model
    config = engine(tensor_parallel_size=tp, weight_dtype=served.quantization.weight_dtype)
    found = load_calibration().evidence(covariates_of(served, profile, config), config)
    assert found.note == note
    assert found.note.startswith(found.kind)


def test_a_user_who_measured_a_setting_reads_so() -> None:
    setting = {"gpu": "l4", "shape": "s", "weights": "fp8", "tp": "1"}
    own = Effect(target="slowdown", when=setting, factor=1.1, sd=0.1, rows=3, gpu="l4")
    assert Calibration(name="mine", fitted_on="", effects=(own,)).evidence(setting, engine())[:2] == ("measured", 3)
