"""How the memory is divided, against parts that vLLM logged and against its own inequality."""

from dataclasses import replace
from math import ceil, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import budget, config, fitted, model, version

from planner.engine.flags import Environment
from planner.engine.settings import media_limits
from planner.engine.sharding import Layout
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile
from planner.memory.overheads import (
    IMAGES,
    Overheads,
    encoder_bytes,
    exchange_bytes,
    forward_bytes,
    largest_media_tok,
    latent_elements,
    peak_terms,
    shipped,
    sparse_bytes,
    total,
)
from planner.model.architecture import Component
from planner.output.tables.fit import fit_object
from planner.units import GIB, Interval


@pytest.mark.parametrize(
    ("name", "size", "activation_gib", "non_torch_gib"),
    [  # start-ups of vLLM 0.11.0 on H100, 16,000 tokens of context: what its own log lines say
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 4.76, 0.13),
        ("Qwen/Qwen3-32B", 1, 5.64, 0.14),
        ("Qwen/Qwen3-32B", 2, 5.64, 0.54),
        ("meta-llama/Llama-3.3-70B-Instruct", 2, 4.84, 0.55),
        ("openai/gpt-oss-120b", 1, 7.38, 0.13),
    ],
)
def test_parts_of_the_profile_run_are_what_vllm_logged(
    name: str, size: int, activation_gib: float, non_torch_gib: float
) -> None:
    found = budget(name, "h100", "0.11.0", tensor_parallel_size=size, max_model_len=16_000).binding
    assert found.activation.mid / GIB == pytest.approx(activation_gib, abs=0.06)
    assert found.activation.low <= activation_gib * GIB <= found.activation.high
    assert found.non_torch.low <= non_torch_gib * GIB <= found.non_torch.high


@pytest.mark.parametrize(
    ("name", "gpu", "release", "flags", "tokens"),
    [  # "GPU KV cache size" of published start-ups with everything stated
        ("Qwen/Qwen3-4B", "h100", "0.10.2", {"gpu_memory_utilization": 0.9}, 422_672),
        (
            "meta-llama/Meta-Llama-3-8B-Instruct",
            "h200",
            "0.11.2",
            {"max_model_len": 1024, "max_num_batched_tokens": 2048},
            868_080,
        ),
        (
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "rtx-pro-6000",
            "0.12.0",
            {"gpu_memory_utilization": 0.85, "max_model_len": 4096, "enforce_eager": True},
            198_288,
        ),
        (
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            "h100",
            "0.22.1",
            {"quantization": "fp8", "max_model_len": 8192, "max_num_seqs": 64},
            464_656,
        ),
        (
            "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
            "rtx-pro-6000",
            "0.27.0",
            {
                "tensor_parallel_size": 4,
                "enable_expert_parallel": True,
                "gpu_memory_utilization": 0.9,
                "max_model_len": 32768,
                "max_num_seqs": 32,
            },
            621_392,
        ),
    ],
)
def test_kv_cache_tokens_are_what_vllm_logged(
    name: str, gpu: str, release: str, flags: dict[str, object], tokens: int
) -> None:
    result = fitted(name, gpu, release, **flags)
    assert result.kv_cache_tokens == pytest.approx(tokens, rel=0.04)
    found = fit_object(result)
    assert found["kv_cache_tokens_lo"] <= tokens <= found["kv_cache_tokens_hi"]


def test_v0_started_with_the_blocks_that_it_logged() -> None:
    """Llama-2-7B, fp16, TP 8 on MI300X, vLLM 0.6.3: 169,460 blocks of 16 tokens."""
    found = budget("meta-llama/Llama-2-7b-chat-hf", "mi300x", "0.6.3", tensor_parallel_size=8)
    assert found.num_blocks.mid == pytest.approx(169_460, rel=0.01)


def test_the_budget_is_a_share_of_the_total_rounded_up() -> None:
    found = budget("meta-llama/Llama-2-7b-hf", "h100", "0.11.0", gpu_memory_utilization=0.9)
    assert found.binding.requested_bytes == ceil(load_profile("h100").memory_bytes * 0.9)


def test_all_parts_add_up_to_the_budget() -> None:
    stage = budget("meta-llama/Llama-3.1-8B", "h100", "0.33.0").binding
    assert stage.graphs_in_budget
    parts = (stage.activation, stage.non_torch, stage.graphs, stage.unexplained, stage.available)
    assert stage.weights.loaded_bytes + sum(part.mid for part in parts) == pytest.approx(stage.requested_bytes)


def test_graphs_came_on_top_of_the_budget_until_0_20() -> None:
    before = budget("meta-llama/Llama-3.1-8B", "h100", "0.19.1").binding
    assert not before.graphs_in_budget
    assert before.graphs.mid > 0
    parts = (before.activation, before.non_torch, before.unexplained, before.available)
    without = before.weights.loaded_bytes + sum(part.mid for part in parts)
    assert without == pytest.approx(before.requested_bytes)


@pytest.mark.parametrize(
    ("release", "gpu", "value", "counts"),
    [("0.19.1", "h100", "1", True), ("0.20.0", "h100", "0", False),
     ("0.22.0", "mi300x", "1", False), ("0.26.0", "mi300x", "0", False)],
)  # fmt: skip
def test_the_estimate_of_graphs_is_switched_by_its_variable(release: str, gpu: str, value: str, counts: bool) -> None:
    """``VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`` of ``envs.py``; on ROCm nothing is estimated before 0.26."""
    env = Environment(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=value)
    stage = budget("Qwen/Qwen3-8B", gpu, release, max_model_len=4096, env=env).binding
    left = stage.requested_bytes - stage.weights.loaded_bytes - stage.activation.mid - stage.non_torch.mid
    assert stage.graphs_in_budget is counts
    assert stage.graphs.mid > 0
    taken = left - stage.unexplained.mid - stage.available.mid
    assert taken == pytest.approx(stage.graphs.mid if counts else 0, abs=1)


def test_eager_mode_has_no_graphs() -> None:
    assert budget("meta-llama/Llama-3.1-8B", "h100", "0.33.0", enforce_eager=True).binding.graphs.high == 0


def test_the_sampler_stopped_sorting_in_0_17() -> None:
    before, after = (budget("Qwen/Qwen3-8B", "h100", v).binding.activation.mid for v in ("0.16.0", "0.17.0"))
    assert before - after == pytest.approx((9.5 - 3.2) * 1024 * 151_936 * 4, rel=1e-6)


def test_logits_are_rows_by_vocabulary_in_32_bits() -> None:
    qwen, asked = model("Qwen/Qwen3-8B"), config("Qwen/Qwen3-8B", "h100", "0.11.0", max_model_len=512)
    for tokens, rows in ((8192, 1024), (512, 512)):  # no more rows than tokens
        asked = replace(asked, max_num_seqs=1024, max_num_batched_tokens=tokens)
        assert peak_terms(qwen, asked, 2).logits_bytes == rows * 151_936 * 4


def test_a_long_unchunked_profile_run_is_a_forward_pass() -> None:
    """Llama-3.1-405B, TP 8, 131,072 tokens at once: 4 x 16,384 + 3 x 53,248 / 8 elements of 2 bytes per token."""
    expected = 131_072 * 2 * (4 * 16_384 + 3 * 53_248 // 8)
    assert forward_bytes(model("meta-llama/Llama-3.1-405B-Instruct"), Layout(8), 131_072, 2) == expected


def test_expert_buffers_hold_every_token_top_k_times() -> None:
    """Qwen3-30B-A3B, per token: 4 x 2,048 and 8 x (max(2 x 768, 2,048) + 768) elements of 2 bytes."""
    expected = 1000 * 2 * (4 * 2048 + 8 * (2048 + 768))
    assert forward_bytes(model("Qwen/Qwen3-30B-A3B"), Layout(), 1000, 2) == expected


@pytest.mark.parametrize(
    ("backend", "nodes", "tokens", "gib"),
    [
        # VLLM_DEEPEP_BUFFER_SIZE_MB = 1024 over NVLink, and as much over the network (``all2all.py`` of vLLM 0.32.0)
        ("deepep_high_throughput", 1, 8192, 1), ("deepep_high_throughput", 2, 8192, 2),
        # get_low_latency_rdma_size_hint of R1: 4 x 256 experts x 256 tokens x (2 x 7,168 + 56 x 4) bytes
        ("deepep_low_latency", 2, 256, 4 * 256 * 256 * 14_560 / GIB + 1),
        ("nixl_ep", 2, 256, 4 * 256 * 256 * 14_560 / GIB),
        ("allgather_reducescatter", 2, 8192, 0),
    ],
)  # fmt: skip
def test_buffers_of_deepep(backend: str, nodes: int, tokens: int, gib: float) -> None:
    asked = {"data_parallel_size": 8 * nodes, "enable_expert_parallel": True, "max_num_batched_tokens": tokens}
    name, plain = "deepseek-ai/DeepSeek-R1", {"all2all_backend": "allgather_reducescatter"}
    kept = [budget(name, "h200-sxm", "0.32.0", **asked, **chosen) for chosen in (plain, {"all2all_backend": backend})]
    assert kept[1].exchange_bytes == pytest.approx(gib * GIB)
    assert kept[1].binding.non_torch.mid - kept[0].binding.non_torch.mid == pytest.approx(gib * GIB)


def test_deepep_has_no_buffers_from_32_gib_on() -> None:
    """vllm-project/vllm issue 57894: hidden 5,120, 448 experts and 2,048 tokens are 35.55 GiB, and fail."""
    r1, asked = model("deepseek-ai/DeepSeek-R1"), {"data_parallel_size": 16, "enable_expert_parallel": True}
    asked |= {"max_num_batched_tokens": 2048, "all2all_backend": "deepep_low_latency"}
    tokens = config(r1.id, "h200-sxm", "0.32.0", **asked)
    layers = tuple(replace(one, moe=one.moe and replace(one.moe, num_experts=448)) for one in r1.layers)
    with pytest.raises(IllegalPlanError, match=r"buffers of 35\.5 GiB on each GPU"):
        exchange_bytes(replace(r1, hidden_size=5120, layers=layers), tokens, several_nodes=True)


def test_batched_experts_hold_places_for_the_tokens_of_all_ranks() -> None:
    """Qwen3-30B-A3B: max(2,048, 2 x 768) + 768 elements of 2 bytes (``workspace_shapes``), and 2,048 sent in fp8."""
    asked = {"data_parallel_size": 8, "enable_expert_parallel": True, "all2all_backend": "deepep_low_latency"}
    found = peak_terms(model("Qwen/Qwen3-30B-A3B"), config("Qwen/Qwen3-30B-A3B", "h200-sxm", "0.32.0", **asked), 2)
    assert found.forward_bytes == 128 * 256 * ((2048 + 768) * 2 + 2048)


def test_the_vision_encoder_sees_a_full_budget_of_images() -> None:
    """Gemma 3: 16 patches a token; per patch 3 x 1,152 and 5 x 4,304 elements of 2 bytes. Text models have none."""
    expected = 8192 * 16 * 2 * (3 * 1152 + 5 * 4304)
    asked = {"max_num_batched_tokens": 8192}
    assert encoder_peak("google/gemma-3-27b-it", "0.27.1", **asked) == (expected, 8192 * 5376 * 2)
    assert encoder_peak("Qwen/Qwen3-8B", "0.27.1", **asked) == (0, 0)


def encoder_peak(name: str, release: str, **flags: object) -> tuple[int, int]:
    """The peak of the encoder and what it keeps, on an H100."""
    return encoder_bytes(model(name), config(name, "h100", release, **flags), 2)


def test_matrices_of_the_vision_encoder_are_cut_over_the_ranks() -> None:
    """``--mm-encoder-tp-mode weights``, the default; with ``data`` each rank encodes whole images: here the one."""
    name = "Qwen/Qwen3.6-27B"
    alone, cut, whole = (
        encoder_peak(name, "0.27.1", **flags)[0]
        for flags in ({}, {"tensor_parallel_size": 4}, {"tensor_parallel_size": 4, "mm_encoder_tp_mode": "data"})
    )
    assert alone == whole == 65536 * 2 * (3 * 1152 + 5 * 4304)
    assert cut == 65536 * 2 * (3 * 1152 + 5 * 4304 // 4)


@pytest.mark.parametrize("name", ["google/gemma-3-27b-it", "mistralai/Ministral-3-14B-Instruct-2512-BF16"])
def test_a_tower_without_data_parallelism_stays_cut(name: str) -> None:
    """config/model.py, 0.32.0: "Falling back to `--mm-encoder-tp-mode weights`" without supports_encoder_tp_data."""
    flags = {"tensor_parallel_size": 2, "max_model_len": 8192}
    cut, data = (fitted(name, "h100", "0.32.0", **flags, mm_encoder_tp_mode=mode) for mode in (None, "data"))
    assert data.stage == cut.stage


@pytest.mark.parametrize("size", [4, 8])
def test_a_rank_that_encodes_whole_images_has_the_whole_tower(size: int) -> None:
    """``disable_tp=is_vit_use_data_parallel()`` of qwen2_5_vl.py, 0.32.0: 2 bytes a parameter on each rank."""
    name, flags = "Qwen/Qwen2.5-VL-72B-Instruct", {"tensor_parallel_size": size, "mm_encoder_tp_mode": "data"}
    tower = sum(weight.copies * prod(weight.shape) for weight in model(name).vision)
    assert fitted(name, "h100", "0.32.0", **flags).stage.weights.by_component[Component.VISION] == 2 * tower


@pytest.mark.parametrize(
    "flags",
    [
        {"skip_mm_profiling": True},
        {"limit_mm_per_prompt": '{"image": 0, "video": {"count": 0}}'},
    ],
)
def test_without_images_the_profile_run_has_no_encoder(flags: dict[str, object]) -> None:
    """``profile_run`` of 0.27.1, and ``MultiModalBudget``: no modality is left."""
    assert encoder_peak("Qwen/Qwen3.6-27B", "0.27.1", **flags) == (0, 0)


QWEN2, QWEN3, ONE = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct", '{"image": 1, "video": 0}'


@pytest.mark.parametrize(
    ("name", "release", "length", "kwargs", "limits", "largest_tok"),
    [
        # 1,003,520 / 28**2 = 1,280 tokens of four patches, 980 of 32**2 pixels; 12,845,056 / 28**2 = 16,384 without
        (QWEN2, "0.32.0", 128_000, '{"max_pixels": 1003520}', ONE, 1280),
        (QWEN2, "0.32.0", 128_000, '{"size": {"longest_edge": 1003520, "shortest_edge": 3136}}', ONE, 1280),
        (QWEN3, "0.32.0", 128_000, '{"images_kwargs": {"max_pixels": 1003520}}', ONE, 980),
        (QWEN3, "0.32.0", 128_000, '{"images_kwargs": {"max_pixels": 1003520}}', None, 12_288),
        (QWEN3, "0.32.0", 128_000, None, None, 16_384),
        # vllm-project/vllm pull request 41239: a server of 469,762,048 pixels profiles a video of 229,376 tokens
        (QWEN3, "0.32.0", 128_000, '{"videos_kwargs": {"size": {"longest_edge": 469762048}}}', None, 229_376),
        (QWEN2, "0.32.0", 128_000, '{"max_pixels": 1003520}', '{"image": 1}', 7 * 1280),
        (QWEN2, "0.32.0", 128_000, None, ONE, 16_384),
        (QWEN2, "0.32.0", 32_768, None, None, 2 * 16_384),
        (QWEN2, "0.32.0", 8192, None, None, 16_384),
        (QWEN2, "0.23.0", 128_000, None, None, 114_688),  # "initialized with a budget of 114688 tokens"
        (QWEN2, "0.10.2", 128_000, None, None, 7 * 16_384),  # 16 frames are more than fit
        (QWEN2, "0.8.1", 128_000, None, None, 98_304),  # as logged: an image takes its part of the context
    ],
)
def test_the_largest_image_or_video_is_that_of_the_processor(
    name: str, release: str, length: int, kwargs: str | None, limits: str | None, largest_tok: int
) -> None:
    """``get_mm_max_tokens_per_item`` and ``_get_vision_size`` of qwen2_vl.py and qwen3_vl.py, 0.32.0."""
    flags = {"mm_processor_kwargs": kwargs, "limit_mm_per_prompt": limits}
    asked = config(name, "h100", release, max_model_len=length, **flags)
    found = model(name)
    assert largest_media_tok(IMAGES[found.model_type], asked, media_limits(limits or "{}")) == largest_tok


def test_a_start_whose_video_left_no_memory() -> None:
    """vLLM 0.23.0, A100 80 GB, 0.22 of its memory: "Available KV cache memory: -14.28 GiB"; an image has 1.8 GiB."""
    left = budget(QWEN2, "a100-sxm-80gb", "0.23.0", gpu_memory_utilization=0.22).binding.left
    assert left.low < -14.28 * GIB < left.high


def test_qwen3_vl_kept_a_long_video_before_0_14() -> None:
    """``get_max_video_tokens`` of 0.11.0: 12,288 x 12.5 places; each is as wide as 1 + 3 hidden vectors of 2,048."""
    name = "Qwen/Qwen3-VL-30B-A3B-Instruct"
    assert encoder_peak(name, "0.11.0")[1] == 153_600 * 8192 * 2
    assert encoder_peak(name, "0.14.0")[1] == 16_384 * 8192 * 2


@pytest.mark.parametrize("text", ["{", "image", '{"image": "many"}', '{"image": {}}', "[1]"])
def test_limits_of_media_are_read_or_refused(text: str) -> None:
    with pytest.raises(InputError, match="--limit-mm-per-prompt"):
        config("Qwen/Qwen3.6-27B", "h100", "0.27.1", limit_mm_per_prompt=text)


def test_mla_up_projects_a_long_context() -> None:
    """``determine_chunked_prefill_workspace_size``: 65,536 rows from 0.11.0 on, 131,072 before; 16 heads of 256."""
    rows = {"0.10.2": 131_072, "0.11.0": 65_536}
    for release, expected in rows.items():
        asked = config("deepseek-ai/DeepSeek-V3", "h200", release, tensor_parallel_size=8)
        assert latent_elements(model("deepseek-ai/DeepSeek-V3"), asked) == expected * 16 * 256


def test_sparse_attention_reserves_a_workspace() -> None:
    """``get_max_prefill_buffer_size``: 40 contexts of 132 bytes, and 512 MiB of logits; in V4 the context is cut by 4.

    GLM-5.1, 202,752 tokens; DeepSeek-V4, 1,048,576 (``indexer.py`` and ``deepseek_v4/attention.py`` of 0.27.1). On ROCm
    the logits of all decode tokens as well (``rocm_aiter_mla_sparse.py``).
    """
    glm, flash = "zai-org/GLM-5.1-FP8", "deepseek-ai/DeepSeek-V4-Flash"
    asked = config(glm, "h200", "0.27.1", tensor_parallel_size=8, kv_cache_dtype="bfloat16", max_model_len=202_752)
    assert sparse_bytes(model(glm), asked, rocm=False) == (40 * 202_752 * 132, 512 * 2**20)
    settings = {"max_model_len": 1_048_576, "max_num_batched_tokens": 8192}
    asked = config(flash, "b200", "0.27.1", tensor_parallel_size=8, **settings)
    assert sparse_bytes(model(flash), asked, rocm=False) == (40 * 1_048_576 // 4 * 132, 512 * 2**20)
    assert sparse_bytes(model(flash), asked, rocm=True) == (8192 * 1_048_576 // 4 * 4, 512 * 2**20)


def test_the_stage_with_the_fewest_blocks_binds() -> None:
    found = budget("meta-llama/Llama-3.3-70B-Instruct", "h100", "0.33.0", pipeline_parallel_size=4)
    assert len(found.stages) == 4
    blocks = [stage.num_blocks(stage.available.mid) for stage in found.stages]
    assert found.binding.num_blocks(found.binding.available.mid) == min(blocks)
    assert found.num_blocks.mid == min(blocks)


def overheads(release: str, size: int = 1, link: str = "nvswitch") -> Overheads:
    """The shipped constants for NVIDIA GPUs."""
    where = {"vendor": "nvidia", "link": link, "tensor_parallel_size": size}
    return Overheads(shipped(), version(release).release, where)


def test_memory_outside_torch_is_interpolated_between_known_sizes() -> None:
    two, three, four = (overheads("0.11.0", n).non_torch_bytes for n in (2, 3, 4))
    assert two.mid < three.mid < four.mid
    assert overheads("0.11.0", 16).non_torch_bytes.mid >= four.mid


def test_pcie_needs_smaller_buffers_than_nvlink() -> None:
    pcie, nvlink = (overheads("0.22.0", 2, link).non_torch_bytes.mid for link in ("pcie", "nvswitch"))
    assert pcie < nvlink


def test_every_fitted_constant_has_an_interval_and_says_what_it_rests_on() -> None:
    for fit in shipped().fits:
        assert fit.interval.low <= fit.interval.mid <= fit.interval.high, fit
        assert fit.logs or fit.note or fit.where.get("vendor") == "cpu" or fit.name == "start_up", fit


def test_a_constant_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="no_such_thing"):
        overheads("0.11.0")["no_such_thing"]


def test_independent_parts_add_in_quadrature() -> None:
    """3 and 4 above, 6 and 8 below: 5 and 10."""
    found = total([Interval(10, 4, 13), Interval(20, 12, 24)])
    assert (found.mid, found.low, found.high) == (30, 20, 35)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b"]),
    gpu=st.sampled_from(["h100", "mi300x", "b200", "rtx-4090"]),
    release=st.sampled_from(["0.11.0", "0.16.0", "0.20.0", "0.33.0"]),
    share=st.floats(0.5, 0.97),
    more=st.floats(0.0, 0.03),
)
def test_a_larger_share_never_leaves_less_for_the_cache(
    name: str, gpu: str, release: str, share: float, more: float
) -> None:
    less, greater = (
        budget(name, gpu, release, gpu_memory_utilization=s).binding.available.mid for s in (share, share + more)
    )
    assert greater >= less


@settings(max_examples=40)
@given(
    name=st.sampled_from(["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"]),
    size=st.sampled_from([1, 2, 4]),
    seqs=st.integers(1, 1024),
)
def test_intervals_hold_their_estimate_and_fewer_requests_never_need_more(name: str, size: int, seqs: int) -> None:
    few, many = (
        budget(name, "h200", "0.33.0", tensor_parallel_size=size, max_num_seqs=n, max_num_batched_tokens=8192)
        for n in (seqs, 2 * seqs)
    )
    for found in (few, many):
        part = found.binding.available
        assert part.low <= part.mid <= part.high
    assert few.num_blocks.mid >= many.num_blocks.mid


def test_settings_come_from_the_engine() -> None:
    assert config("meta-llama/Llama-3.1-8B", "h100", "0.33.0").gpu_memory_utilization == 0.92
