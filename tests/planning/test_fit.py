"""Does it fit: the documents' examples, vLLM's own refusals, and ways out that are really checked."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from command_line import run
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import fitted, model, version

from planner.engine.settings import EngineArgs
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile
from planner.model.quantization import as_quantized
from planner.output.tables.fit import fit_object
from planner.planning.deployment import Condition, resolve_deployment
from planner.planning.fit import Fit, explain, sweep_settings
from planner.planning.serving import Serving, load_model
from planner.units import GIB, Interval


@pytest.mark.parametrize(
    ("name", "fits", "weights_bytes", "kv_bytes_per_token", "smallest"),
    [
        # the document's examples: 26.03 GB of fp16 weights against 24 GiB (25.77 GB), and half of that
        ("meta-llama/Llama-2-13b-hf", False, 26_031_728_640, 819_200, None),  # TP 1 only, and it does not fit
        ("meta-llama/Llama-2-7b-hf", True, 13_476_831_232, 524_288, 1),
    ],
)
def test_the_documents_models_on_a_cpx_partition(
    name: str, fits: bool, weights_bytes: int, kv_bytes_per_token: int, smallest: int | None
) -> None:
    answer = fit_object(fitted(name, "mi300x-cpx", "0.11.0"))
    assert (answer["fits"], answer["verdict"]) == (fits, "fits" if fits else "does not fit")
    assert (answer["weights_bytes"], answer["kv_bytes_per_token"]) == (weights_bytes, kv_bytes_per_token)
    assert answer["min_tensor_parallel_size"] == smallest
    assert bool(answer["options"]) is not fits
    assert answer["reason"].startswith("" if fits else "out of memory while loading")


def test_llama_3_3_70b_in_fp8_on_one_h100() -> None:
    """Not at its full context of 131,072 tokens; too close to call at 8,192."""
    fp8, gpu, newest = as_quantized(model("meta-llama/Llama-3.3-70B-Instruct"), "fp8"), load_profile("h100"), "0.33.0"
    full = Serving.of(fp8, gpu, EngineArgs(), version(newest)).fit()
    assert full.verdict == "does not fit"
    assert full.min_tensor_parallel_size == 2
    assert "max seq len (131072)" in full.reason
    short = Serving.of(fp8, gpu, EngineArgs(max_model_len=8192), version(newest)).fit()
    assert short.verdict == "too close to call" and 0.05 < short.deployment.probability_fits < 0.95
    assert short.verdict_words.startswith("too close to call: starts with ")
    assert short.deployment.why_not.startswith(f"{short.verdict_words}; ")  # as recommend says
    cards = "ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4", "--gpu", "rtx-4090", "--max-model-len", "4096"
    home = run("recommend", *cards, "--gpus", "2", "--max-concurrency", "1").out
    alone = run("fit", *cards, "-tp", "2", "--max-num-seqs", "1").out
    (odds,) = {re.search(r"too close to call: starts with (\d+%)", " ".join(text.split()))[1] for text in (home, alone)}
    assert odds != "100%"
    assert 0 < short.largest_max_model_len < 131_072


@pytest.mark.parametrize(
    ("name", "gpu", "place", "flags"),
    [
        # 32.8e9 weights of 4 bits are 18 GiB, with half the cache beside them: vLLM may take 29 GiB of a 5090. NVIDIA's
        # NVFP4 leaves more of them in 16 bits.
        ("Qwen/Qwen3-32B", "rtx-5090", 0, "Qwen/Qwen3-32B-AWQ --kv-cache-dtype fp8"),
        # a 4090 holds them too, and 2 GiB of cache: what people run at home
        ("Qwen/Qwen3-32B", "rtx-4090", 0, "Qwen/Qwen3-32B-AWQ --max-num-seqs 128 --gpu-memory-utilization 0.95"),
        ("google/gemma-3-27b-it", "rtx-4090", 0, "a 4-bit checkpoint (int4), frugal settings and a context of"),
        # 31 GB of FP8 leave nothing of 28.85 GiB (vLLM issue 41695), 17 GB of 4 bits do
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "rtx-5090", 0, "QuantTrio/Qwen3-Coder-30B-A3B-Instruct-AWQ"),
    ],
)
def test_a_gpu_at_hand_comes_before_more_of_them(name: str, gpu: str, place: int, flags: str) -> None:
    options = Serving(name, gpu).fit().options[:3]
    assert flags in str(options[place]) and options[place].num_gpus == 1
    assert any(option.num_gpus > 1 for option in options)


def test_shorter_requests_come_before_a_cache_that_may_cost_accuracy() -> None:
    """vLLM's own advice for Qwen3-8B on a 4090: "decreasing `max_model_len`"; 28,864 of 40,960 tokens are left."""
    assert Serving("Qwen/Qwen3-8B", "rtx-4090").fit().options[0].flags == ("--max-model-len 28864",)


def test_a_usual_form_names_the_checkpoints_whose_form_is_known() -> None:
    """NVIDIA's own, with 8-bit attention, had 257.3 tokens/s on an RTX 5090 (club-3090, issue 612): 243 predicted."""
    noted = load_model("Qwen/Qwen3.6-35B-A3B", weight_dtype="nvfp4").notes[-1]
    assert noted.startswith("the usual form of nvfp4 is assumed: name nvidia/Qwen3.6-35B-A3B-NVFP4 or ")
    assert load_model("Qwen/Qwen3-VL-2B-Instruct", weight_dtype="fp8").notes[-1] == "the usual form of fp8 is assumed"


@pytest.mark.parametrize(
    ("release", "flag"),
    [("0.11.1", """--limit-mm-per-prompt '{"image":0,"video":0}'"""), ("0.24.0", "--language-model-only")],
)
def test_text_alone_fits_as_published(release: str, flag: str) -> None:
    """vLLM pull request 29217: one L40S served 1,000 requests of ShareGPT under 24,000 tokens, with both limits 0.

    The tower is 27 x (4 x 1,152**2 + 2 x 1,152 x 4,304) and four mergers, 0.59 G parameters of 2 bytes.
    """
    asked = Serving(
        "Qwen/Qwen3-VL-32B-Instruct", "l40s", weight_dtype="fp8", engine_version=release, max_model_len=24_000
    )
    without = asked.changed(limit_mm_per_prompt='{"image": 0, "video": 0}').fit()
    assert asked.fit().verdict == "does not fit" != without.verdict and without.deployment.probability_fits > 0.8
    loaded = [one.stage.weights.loaded_bytes for one in (asked.fit(), without)]
    assert (loaded[0] - loaded[1]) / 2 == pytest.approx(0.59e9, rel=0.02)
    assert flag in " ".join(asked.fit().options[0].flags)


@pytest.mark.parametrize(
    ("name", "gpu", "flags", "condition", "words"),
    [
        ("meta-llama/Llama-3.1-8B", "h100", {"gpu_memory_utilization": 1.0}, "free memory below budget", "Free memory"),
        ("Qwen/Qwen3-32B", "h100", {"gpu_memory_utilization": 0.5}, "weights exceed budget", "No available memory"),
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", {}, "weights exceed memory", "out of memory"),
        ("Qwen/Qwen3-14B", "l40s", {"gpu_memory_utilization": 0.75}, "max_model_len larger than cache", "max seq len"),
    ],
)  # fmt: skip
def test_why_it_does_not_start_is_said_in_vllms_terms(
    name: str, gpu: str, flags: dict[str, Any], condition: str, words: str
) -> None:
    result = fitted(name, gpu, "0.33.0", **flags)
    assert not result.fits
    assert result.binding_condition.name == condition
    assert words in result.reason


def test_a_close_call_names_the_condition_that_may_fail() -> None:
    """4.00 GiB for 32,768 tokens of 131,072 B (and a block) against 3.88 of the low end; 1.8 GiB outside are spare."""
    flags = {"max_model_len": 32768, "kv_cache_dtype": "fp8"}
    result = fitted("nvidia/Qwen3-32B-NVFP4", "rtx-5090", "0.32.0", **flags)
    lack_gib = 32768 * 131_072 / GIB - result.kv_cache.low / GIB
    assert result.verdict == "too close to call" and 0 < lack_gib < 0.2
    assert result.reason.startswith(f"max_model_len larger than cache: from {lack_gib:.2f} GiB too little to ")


def test_a_refused_layout_is_an_error_not_an_answer() -> None:
    with pytest.raises(IllegalPlanError, match="tensor parallel size 1 only"):
        fitted("meta-llama/Llama-2-13b-hf", "mi300x-cpx", "0.11.0", tensor_parallel_size=2)
    with pytest.raises(InputError, match="--gpu-memory-utilization"):
        fitted("meta-llama/Llama-2-7b-hf", "h100", "0.11.0", gpu_memory_utilization=1.5)


def asked_again(result: Fit, name: str, gpu: str, release: str, args: EngineArgs) -> list[str]:
    """The verdicts of a result's options, worked out from their settings alone."""
    verdicts = []
    for option in result.options:
        changes = dict(option.settings)
        found, profile = model(str(changes.pop("model", name))), load_profile(str(changes.pop("gpu", gpu)))
        dtype = changes.pop("weight_dtype", None)
        if dtype:
            found = as_quantized(found, str(dtype))
        deployment = resolve_deployment(found, profile, replace(args, **changes), version(release))  # type: ignore[arg-type]
        verdicts.append(deployment.verdict)
    return verdicts


@pytest.mark.parametrize(
    ("name", "gpu", "release", "flags"),
    [
        ("meta-llama/Llama-2-13b-hf", "mi300x-cpx", "0.11.0", {}),
        ("meta-llama/Llama-2-13b-hf", "mi300x-cpx", "0.33.0", {}),
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", "0.33.0", {}),
        ("Qwen/Qwen3-32B", "rtx-4090", "0.16.0", {"max_model_len": 8192}),
        ("Qwen/Qwen3-8B", "rtx-4090", "0.33.0", {"gpu_memory_utilization": 0.8}),
    ],
)
def test_every_option_fits_when_it_is_asked_for(name: str, gpu: str, release: str, flags: dict[str, Any]) -> None:
    result = fitted(name, gpu, release, **flags)
    assert result.verdict != "fits"
    assert result.options
    assert set(asked_again(result, name, gpu, release, EngineArgs(**flags))) == {"fits"}


@pytest.mark.parametrize("change", [{"gpu_memory_utilization": 0.97}, {"max_num_seqs": 1}])
@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "google/gemma-3-27b-it", "Qwen/Qwen3-32B"])
def test_a_setting_that_is_enough_alone_is_offered(name: str, change: dict[str, Any]) -> None:
    """One H100 holds gpt-oss-120b, as its publisher says: with 95 % of the memory, or with fewer requests at once."""
    result, enough = fitted(name, "h100", "0.32.0"), fitted(name, "h100", "0.32.0", **change).verdict
    assert result.verdict != "fits"
    assert (change.keys() in [option.settings.keys() for option in result.options]) == (enough == "fits")


def test_fewer_requests_at_once_come_first_where_many_are_left() -> None:
    """They cost nothing: 256 are more than the cache of one H100 holds of usual requests."""
    assert fitted("openai/gpt-oss-120b", "h100", "0.32.0").options[0].settings == {"max_num_seqs": 256}


KIND_OF = {"gpu": "GPU", "weight_dtype": "precision", "quantization": "precision", "tensor_parallel_size": "GPUs"}


@pytest.mark.parametrize(
    ("name", "gpu", "flags", "kinds"),
    [
        # 65.7 GiB of weights and a cache of 131,072 tokens: a shorter context, more GPUs, or a larger one
        ("meta-llama/Llama-3.3-70B-Instruct", "h100", {"quantization": "fp8"}, ["settings", "GPUs", "GPU"]),
        ("meta-llama/Llama-2-13b-hf", "mi300x-cpx", {}, ["precision", "GPU", "GPUs"]),
    ],
)
def test_the_first_ways_out_are_of_different_kinds(
    name: str, gpu: str, flags: dict[str, Any], kinds: list[str]
) -> None:
    options = fitted(name, gpu, "0.33.0", **flags).options
    assert [KIND_OF.get(next(iter(o.settings)), "settings") for o in options[: len(kinds)]] == kinds


def test_people_are_shown_three_ways_out_and_programs_all() -> None:
    asked = ("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100", "--weight-dtype", "fp8")
    shown = [line for line in run(*asked).out.splitlines() if line.startswith("    fits, ")]
    assert len(shown) == 3
    assert len(json.loads(run(*asked, "--format", "json").out)["options"]) > 3


def test_a_table_of_gpus_looks_for_no_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows none, and for all GPUs they take ten times as long as the table."""
    asked = ("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100,h200")
    expected = run(*asked)
    assert all(one["options"] for one in json.loads(run(*asked, "--format", "json").out))
    monkeypatch.delattr("planner.planning.fit._ways_out")
    assert run(*asked) == expected


@pytest.mark.parametrize(("gpus", "status"), [("h100,h200", 0), ("h200,mi300x-cpx", 1), ("mi300x-cpx,l4", 1)])
def test_the_exit_status_over_several_gpus_is_a_no_if_one_of_them_is(gpus: str, status: int) -> None:
    """26 GB of Llama-2-13B: as docs/reference/json.md has it, a list is a yes where every GPU is."""
    assert run("fit", "meta-llama/Llama-2-13b-hf", "--gpu", gpus).status == status


def test_online_quantisation_needed_room_for_the_16_bit_model_before_0_15() -> None:
    """26 GB pass through a partition of 25.77 GB only where vLLM quantises each layer as it is read."""
    before, after = (
        {
            flag
            for option in fitted("meta-llama/Llama-2-13b-hf", "mi300x-cpx", v, enforce_eager=True).options
            for flag in option.flags
        }
        for v in ("0.11.0", "0.33.0")
    )
    assert "--quantization fp8" not in before
    assert "--quantization fp8" in after
    assert "--weight-dtype fp8" in before


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_two_nodes_serve_the_whole_context_of_what_a_node_does_not(gpu: str) -> None:
    """Kimi-K2's deployment guide: FP8 weights with 128k of context take 16 GPUs of H200's size at least."""
    said = " ".join(run("fit", "moonshotai/Kimi-K2-Instruct", "--gpu", gpu).out.split())
    assert "16 GPUs on two nodes (--nnodes 2), TP 8 x PP 2" in said and "requests of 131,072 tokens at once" in said


def test_a_partition_is_offered_a_larger_mode() -> None:
    gpus = [
        option.settings.get("gpu") for option in fitted("meta-llama/Llama-2-13b-hf", "mi300x-cpx", "0.11.0").options
    ]
    larger = [load_profile(str(gpu)) for gpu in gpus if gpu]
    assert any(p.partition and p.partition.of == "mi300x" for p in larger)
    whole = fitted("meta-llama/Llama-3.1-70B-Instruct", "mi300x-cpx", "0.11.0", max_model_len=4608).options[0]
    assert whole.settings == {"gpu": "mi300x"}, "131 of 192 GiB; DPX holds 96"


def test_vllm_fits_the_context_of_auto_to_the_cache() -> None:
    """``_auto_fit_max_model_len`` of kv_cache_utils.py, 0.14.0 on: only a cache without room for a token is refused."""
    words = ("Qwen/Qwen3-8B", "--gpu", "rtx-3090", "--max-model-len", "auto", "--engine-version")
    found = json.loads(run("fit", *words, "0.14.0", "--format", "json").out)
    (note,) = (note for note in found["notes"] if "auto" in note)
    low, high = (int(text.replace(",", "")) for text in re.findall(r"[\d,]{4,}", note))
    assert found["verdict"] == "fits" and low < found["max_model_len"] < high <= 40_960
    per_token = found["kv_bytes_per_token"]
    assert low * per_token <= found["kv_cache_bytes_lo"] < (low + 32) * per_token  # a block more, and the one reserved
    refused = run("fit", *words, "0.13.0")
    assert refused.status == 2 and "0.14.0" in refused.err


@pytest.mark.parametrize("release", ["0.33.0", "0.18.0", "0.14.0", "0.10.0"])
def test_limits_are_the_last_values_that_fit(release: str) -> None:
    """Before 0.20 graphs are captured outside the budget: a smaller share leaves them more memory, not less."""
    name, gpu = "Qwen/Qwen3-32B", "h100"
    result = fitted(name, gpu, release, max_model_len=4096)
    share, seqs = result.smallest_gpu_memory_utilization, result.largest_max_num_seqs
    assert result.fits
    assert share is not None
    assert fitted(name, gpu, release, max_model_len=4096, gpu_memory_utilization=share).fits
    assert not fitted(name, gpu, release, max_model_len=4096, gpu_memory_utilization=round(share - 0.01, 2)).fits
    assert fitted(name, gpu, release, max_model_len=4096, max_num_seqs=seqs, max_num_batched_tokens=8192).fits
    longest = result.largest_max_model_len
    assert fitted(name, gpu, release, max_model_len=longest, max_num_seqs=1024, max_num_batched_tokens=8192).fits


def test_the_rule_of_thumb_is_shown_where_it_is_wrong() -> None:
    lines = [str(line) for line in explain(fitted("meta-llama/Llama-3.1-8B", "h100", "0.33.0"))]
    text = "\n".join(lines)
    assert "524,288 B" in text  # 2 x 32 layers x 4,096 x 2 B
    # 32 x 8 x (128 + 128) x 2 B
    assert any("131,072 B" in line and "32 layers x 8 KV heads on the rank x 256 x bf16" in line for line in lines)
    assert "grouped queries: 8 KV heads for 32 query heads" in text


def test_the_documents_slip_is_pointed_out() -> None:
    """4,096 x 819,200 B are 3.36 GB; the document says 3.6."""
    text = "\n".join(str(line) for line in explain(fitted("meta-llama/Llama-2-13b-hf", "mi300x-cpx", "0.11.0")))
    assert 4096 * 819_200 == 3_355_443_200
    assert "3.36 GB by its own formula" in text
    assert "26.03 GB" in text


def test_sweep_leaves_out_what_vllm_refuses() -> None:
    partition = Serving.of(model("meta-llama/Llama-2-7b-hf"), load_profile("mi300x-cpx"), version=version("0.11.0"))
    results = sweep_settings(partition)
    assert {r.config.tensor_parallel_size for r in results} == {1}


def test_stages_of_a_pipeline_bind_one_by_one() -> None:
    found = fitted("meta-llama/Llama-3.3-70B-Instruct", "h100", "0.33.0", pipeline_parallel_size=4, max_model_len=8192)
    assert found.fits
    assert any("pipeline stages" in note for note in found.notes)


MODELS = (
    "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b",
    "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct", "google/gemma-3-27b-it",
)  # fmt: skip


@settings(max_examples=60)
@given(
    name=st.sampled_from(MODELS),
    gpu=st.sampled_from(["h100", "h200", "mi300x", "mi355x", "b200", "l40s"]),
    release=st.sampled_from(["0.11.2", "0.16.0", "0.19.1", "0.22.0", "0.30.0", "0.33.0"]),
    size=st.sampled_from([1, 2, 4, 8]),
    length=st.sampled_from([1024, 8192, 32768]),
    share=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
)
def test_what_is_accepted_satisfies_vllms_own_inequality(
    name: str, gpu: str, release: str, size: int, length: int, share: float
) -> None:
    args = EngineArgs(tensor_parallel_size=size, max_model_len=length, gpu_memory_utilization=share)
    result = Serving.of(model(name), load_profile(gpu), args, version(release)).fit(ways_out=False)
    stage, blocks = result.stage, result.budget.num_blocks
    needed = result.budget.pool.blocks_per_request(length) * stage.block_bytes
    taken = stage.weights.loaded_bytes + stage.activation.mid + stage.non_torch.mid
    taken += stage.graphs.mid if stage.graphs_in_budget else 0
    if result.fits:
        assert taken + needed <= stage.requested_bytes <= result.budget.memory_bytes
        assert result.max_concurrency >= 1
        assert result.largest_max_model_len >= length
    else:
        assert result.reason
    assert blocks.low <= blocks.mid <= blocks.high
    assert (result.verdict == "fits") <= result.fits
    assert (result.verdict == "does not fit") <= (not result.fits)


def test_the_arithmetic_counts_the_layers_that_keep_latents() -> None:
    """Kimi-K3: 24 of 93 layers have latent attention, 576 elements of 2 bytes a token each; 69 keep a state."""
    found = fitted("moonshotai/Kimi-K3", "b300", "0.27.1", tensor_parallel_size=8)
    line = next(line for line in explain(found) if line.label == "KV cache per token")
    assert line.value == f"{24 * 576 * 2:,} B"
    assert line.how.startswith("24 layers of 576")


@pytest.mark.parametrize(
    ("release", "value", "words"),
    [  # 61 layers, 16 of 128 heads on a rank; ``_latents`` of features.py names vLLM's files
        ("0.6.6", 61 * 2 * 16 * 256 * 2, "61 layers of 16 heads on the rank x 512 x bf16, without latents"),
        ("0.7.3", 61 * 640 * 2, "61 layers of 576 latent elements, padded to 640; TP does not divide them"),
        ("0.8.5", 61 * 576 * 2, "61 layers of 576 latent elements; TP does not divide them"),
    ],
)
def test_the_arithmetic_says_how_a_version_keeps_latents(release: str, value: int, words: str) -> None:
    found = fitted("deepseek-ai/DeepSeek-V3", "h200", release, tensor_parallel_size=8, max_model_len=4096)
    line = next(line for line in explain(found) if line.label == "KV cache per token")
    assert (line.value, line.how) == (f"{value:,} B", words)


def test_the_smallest_size_may_fill_several_nodes() -> None:
    """Llama-3.1-405B is 812 GB in 16 bits: more than 8 H100, less than 16."""
    for asked, smallest in ((8, None), (16, 16), (32, 16)):
        found = fitted("meta-llama/Llama-3.1-405B-Instruct", "h100", "0.27.1", tensor_parallel_size=asked)
        assert found.min_tensor_parallel_size == smallest


def test_no_gpu_is_a_way_out_that_needs_more_nodes() -> None:
    """DeepSeek-V3 on 8 H100: eight GB10, one in a node, are none; a node of H200 is."""
    found = fitted("deepseek-ai/DeepSeek-V3", "h100", "0.11.0", tensor_parallel_size=8)
    named = {option.settings["gpu"] for option in found.options if "gpu" in option.settings}
    assert "h200-sxm" in named
    assert all(load_profile(str(name)).gpus_per_node >= 8 for name in named)


def test_products_of_projections_stand_beside_the_weights() -> None:
    """DeepSeek-R1 on 0.7.3 loads 83.9 GiB: 79.3 of weights and 4.5 of products."""
    flags = ("-tp", "8", "--engine-version", "0.7.3", "--max-model-len", "65536")
    answer = run("fit", "deepseek-ai/DeepSeek-R1", "--gpu", "h200", *flags).out
    assert "products of projections        4.47 GiB on each GPU" in answer


@pytest.mark.parametrize(
    ("low", "mid", "high", "probability"),
    [
        (-1.0, 0.0, 1.0, 0.5),
        (0.0, 2.0, 3.0, 0.95),  # nothing lacks at the low end of a 90 % interval: 5 % are below it
        (-3.0, -2.0, 0.0, 0.05),
        (-2.0, 2.0, 5.0, 0.7946),  # 2 of 4 to the end, which is 1.645 deviations away: 0.8224 deviations
        (3.0, 3.0, 3.0, 1.0),
        (-3.0, -3.0, -3.0, 0.0),
    ],
)
def test_the_probability_that_it_starts(low: float, mid: float, high: float, probability: float) -> None:
    condition = Condition("no cache blocks", Interval(mid, low, high), "")
    assert condition.probability == pytest.approx(probability, abs=1e-4)


def test_several_changes_together_where_none_is_enough() -> None:
    """Llama-3.3-70B on RTX 4090s of 24 GB, as people run it: 4 of them with 4 bits, 8 with all 16.

    By hand: 141 GB are 17.6 GB on each of 8, and 70.6e9 parameters of 4 bits 8.8 GB on each of 4; a context of 131,072
    tokens of 320 KiB would take 43 GB more, so the 16 bits come with a shorter one.
    """
    options = fitted("meta-llama/Llama-3.3-70B-Instruct", "rtx-4090", "0.27.1").options
    four = next(option for option in options if option.settings.get("weight_dtype") == "int4-awq")
    assert four.settings["tensor_parallel_size"] == four.num_gpus == 4
    sixteen = next(option for option in options if "max_model_len" in option.settings)
    assert sixteen.settings.keys() == {"tensor_parallel_size", "max_model_len"}
    assert sixteen.settings["tensor_parallel_size"] == 8 and 8_192 < int(sixteen.settings["max_model_len"]) < 131_072


def flags_of(name: str, gpu: str, release: str, **flags: Any) -> list[str]:
    """The ways out, best first."""
    return [str(option).partition(": ")[2] for option in fitted(name, gpu, release, **flags).options]


def test_the_first_way_out_combines_a_precision_with_fewer_gpus() -> None:
    """Llama-3.3-70B on an H100: 4 bits on it, 8 bits on two of them, or on one H200."""
    own, first, second, *_ = flags_of("meta-llama/Llama-3.3-70B-Instruct", "h100", "0.27.1")
    fp8 = "nvidia/Llama-3.3-70B-Instruct-FP8"
    assert first == f"{fp8} --tensor-parallel-size 2"
    assert second in {f"{fp8} --gpu {name}" for name in ("h200-sxm", "h200-nvl")}
    assert own == "ibnzterrell/Meta-Llama-3.3-70B-Instruct-AWQ-INT4 --kv-cache-dtype fp8"


def test_a_card_at_hand_serves_text_alone_with_a_shorter_context() -> None:
    """Qwen2.5-VL-7B on a 3090: 14.2 GiB of weights fit 24; the profile run of the largest image does not."""
    first, *_ = Serving("Qwen/Qwen2.5-VL-7B-Instruct", "rtx-3090").fit().options
    assert first.num_gpus == 1 and {"language_model_only", "max_model_len"} <= first.settings.keys()


def test_four_bits_fit_one_card() -> None:
    first, *_ = fitted("Qwen/Qwen3-30B-A3B", "rtx-4090", "0.27.1").options
    assert first.settings == {
        "weight_dtype": "int4-gptq", "model": "Qwen/Qwen3-30B-A3B-GPTQ-Int4", "gpu_memory_utilization": 0.95
    }  # fmt: skip


def test_graphs_outside_the_budget_may_not_fit() -> None:
    """Qwen3-30B-A3B on 4 GPUs of 24 GB, 0.8.5, one sequence: out of memory but for --enforce-eager."""
    asked = {"tensor_parallel_size": 4, "max_num_seqs": 1}
    found = fitted("Qwen/Qwen3-30B-A3B", "a10g", "0.8.5", **asked)
    assert (found.verdict, found.binding_condition.name) == ("too close to call", "CUDA graphs exceed memory")
    assert found.options[0].flags == ("--enforce-eager",)
    assert fitted("Qwen/Qwen3-30B-A3B", "a10g", "0.8.5", **asked, enforce_eager=True).verdict == "fits"


def test_a_4_bit_checkpoint_fits_fewer_gpus_than_its_groups_forbid() -> None:
    """Four A10 leave each expert 192 channels, and groups of 128 do not divide them; two leave 384, in 9 GiB."""
    asked = {"tensor_parallel_size": 4, "max_num_seqs": 1}
    found = fitted("Qwen/Qwen3-30B-A3B", "a10", "0.8.5", **asked)
    four_bits = [option for option in found.options if option.settings.get("weight_dtype") == "int4-gptq"]
    # and no 8-bit KV cache is offered: Triton has no fp8 type on an A10 (vLLM issue 7714)
    assert four_bits[0].flags == ("--tensor-parallel-size 2", "--enforce-eager")
    assert four_bits[0].num_gpus == 2
    assert not any("kv_cache_dtype" in option.settings for option in found.options if "gpu" not in option.settings)


def test_ways_out_count_the_gpus_of_all_ranks() -> None:
    """DeepSeek-V4-Pro on 8 H200, DP 8, EP, 800,000 tokens: with TP 2 it takes 16, and requests have their length."""
    asked = {"data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 800_000}
    options = fitted("deepseek-ai/DeepSeek-V4-Pro", "h200", "0.27.1", **asked).options
    two = next(option for option in options if option.settings.get("tensor_parallel_size") == 2)
    assert two.num_gpus == 16 and two.change.startswith("16 GPUs")
    for option in options:
        assert option.kv_cache_tokens >= 0.9 * option.max_concurrency * option.max_model_len


def test_the_next_card_of_a_gamer_is_one() -> None:
    """A10 and A10G, cards of servers with as much memory as a 3090, stood there."""
    gpus = [way.settings.get("gpu") for way in Serving("openai/gpt-oss-20b", "rtx-5080").fit().options]
    assert list(filter(None, gpus)) == ["rtx-3090", "rtx-4090", "rtx-5090"]


def test_a_gpu_of_the_same_memory_is_no_way_out() -> None:
    """Llama-3.1-405B-FP8 on 8 H100: an A100 80 GB has as much, and no 8-bit kernels."""
    found = flags_of("meta-llama/Llama-3.1-405B-FP8", "h100", "0.6.3", tensor_parallel_size=8)
    assert found and not any("a100" in flags for flags in found)


@pytest.mark.parametrize(
    ("name", "gpu", "release", "flags", "slow"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "gh200", "0.32.0", {"tensor_parallel_size": 2}, "gb10"),  # 0.27 of 4 TB/s
        ("meta-llama/Llama-3.1-405B-FP8", "h100", "0.6.3", {"tensor_parallel_size": 8}, "h20"),  # 148 of 989 TFLOP/s
    ],
)
def test_a_gpu_of_half_the_speed_is_no_way_out(
    name: str, gpu: str, release: str, flags: dict[str, Any], slow: str
) -> None:
    named = [o.settings["gpu"] for o in fitted(name, gpu, release, **flags).options if "gpu" in o.settings]
    assert named and slow not in named


def test_no_way_out_is_named_twice() -> None:
    """Llama-3.1-405B-FP8 on 8 H100: a shorter context on the same eight is one of the settings."""
    found = fitted("meta-llama/Llama-3.1-405B-Instruct-FP8", "h100", "0.6.3", tensor_parallel_size=8).options
    asked = [{"tensor_parallel_size": 8} | option.settings for option in found]
    assert all(one not in asked[:place] for place, one in enumerate(asked))


def test_the_smallest_settings_of_a_model_with_much_to_spare() -> None:
    found = fitted("Qwen/Qwen3-0.6B", "h100", "0.27.1", max_model_len=1024)
    assert found.smallest_gpu_memory_utilization is not None and found.smallest_gpu_memory_utilization < 0.1
    needed = found.smallest_kv_cache_memory_bytes
    assert needed == (1024 // 16 + 1) * 16 * 114_688
    assert fitted("Qwen/Qwen3-0.6B", "h100", "0.27.1", max_model_len=1024, kv_cache_memory_bytes=needed).fits
    assert fitted("Qwen/Qwen3-0.6B", "h100", "0.9.2").smallest_kv_cache_memory_bytes is None
    words = run("fit", "Qwen/Qwen3-0.6B", "--gpu", "h100", "--max-model-len", "1024", "--engine-version", "0.27.1").out
    assert f"--kv-cache-memory-bytes {needed}" in " ".join(words.split())


def test_the_class_llm_has_larger_defaults() -> None:
    """DeepSeek-V4-Flash on 2 GH200: 16,384 batched tokens, so that a request of 30,000 needs 6.35 GiB (logged 6.66)."""
    asked = {"tensor_parallel_size": 2, "max_model_len": 30_000, "gpu_memory_utilization": 0.95}
    server, offline = (
        fitted("deepseek-ai/DeepSeek-V4-Flash", "gh200-96gb", "0.22.0", **asked, offline=offline)
        for offline in (False, True)
    )
    assert (server.config.max_num_batched_tokens, offline.config.max_num_batched_tokens) == (8192, 16384)
    needed = offline.budget.needed_bytes(offline.stage, 30_000)
    assert needed / 2**30 == pytest.approx(6.66, rel=0.06)
    assert offline.verdict == "too close to call"


def test_memory_that_other_processes_hold() -> None:
    """``request_memory`` of 0.9.1 and later: what is free, not the total, must hold the share that is asked for."""
    found = fitted("Qwen/Qwen3-8B", "h100", "0.27.1", used_gib=30)
    assert (found.fits, found.binding_condition.name) == (False, "free memory below budget")
    (share,) = (o.settings["gpu_memory_utilization"] for o in found.options if "gpu_memory_utilization" in o.settings)
    assert share == 0.61  # (79.18 - 30 - 0.7) / 79.18
    # 15 GiB of weights do not fit the 13.9 that are left of 44.4: fewer bits, or more GPUs, in 30 % of each
    beside = fitted("meta-llama/Llama-3.1-8B-Instruct", "l40s", "0.32.0", used_gib=30).options
    assert {"weight_dtype", "tensor_parallel_size"} <= {name for option in beside for name in option.settings}
    assert all(option.flags[0] == "--gpu-memory-utilization 0.3" for option in beside if "gpu" not in option.settings)


def test_loading_holds_the_16_bit_weights_before_0_15() -> None:
    """Qwen3-VL-235B on 8 H20, quantised on loading: 470 GB pass through the GPUs, 55 GiB each."""
    asked = {"tensor_parallel_size": 8, "quantization": "fp8", "gpu_memory_utilization": 0.7}
    notes = " ".join(fitted("Qwen/Qwen3-VL-235B-A22B-Instruct", "h20", "0.11.0", **asked).notes)
    assert "loads the 16-bit weights whole, 55." in notes and "a checkpoint in fp8 needs 28." in notes
    assert "--mm-encoder-tp-mode data" in notes
    assert "16-bit" not in " ".join(fitted("Qwen/Qwen3-VL-235B-A22B-Instruct", "h20", "0.15.0", **asked).notes)


def test_predict_and_fit_give_the_same_odds_of_starting() -> None:
    asked = ("openai/gpt-oss-120b", "--gpu", "h100")
    texts = run("fit", *asked).out, run("predict", "serve", *asked, "--max-concurrency", "4").err
    odds = [re.findall(r"starts with (\d+%) probability", " ".join(text.split())) for text in texts]
    assert odds[0] == odds[1] != []


def test_a_list_says_where_the_context_alone_is_too_long() -> None:
    """Llama 4 Scout has a context of 10M tokens, which hardly any server offers."""
    asked = ("fit", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "-tp", "4", "--gpu", "h100,mi300x,l40s,b200")
    (note,) = [one for one in run(*asked).err.splitlines() if "tokens of context exceed" in one]
    shorter = {gpu.id for gpu in map(load_profile, asked[-1].split(",")) if gpu.id in note}
    fitting = json.loads(run(*asked, "--max-model-len", "8192", "--format", "json").out)
    whole = json.loads(run(*asked, "--format", "json").out)
    pairs = zip(whole, fitting, strict=True)
    assert shorter == {long["gpu"]["id"] for long, short in pairs if short["fits"] and not long["fits"]}


def test_different_gpus_in_one_engine_are_not_modelled() -> None:
    answer = run("fit", "Qwen/Qwen3-8B", "--gpu", "rtx-3090,rtx-4090", "-pp", "2")
    assert "different GPUs in one engine are not modelled" in " ".join((answer.out + answer.err).split())


def test_both_outcomes_of_a_sampler_that_is_not_known() -> None:
    """4c9cd594: 2 A100, FlashInfer installed: 1,192,160 tokens; without it 0.9 GiB less for each."""
    asked = {"tensor_parallel_size": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.5}
    sorting, flashinfer = fitted("Qwen/Qwen2-7B-Instruct", "a100", "0.10.1", **asked).outcomes
    assert flashinfer.env == {"VLLM_USE_FLASHINFER_SAMPLER": "1"}
    assert flashinfer.kv_cache_tokens == pytest.approx(1_192_160, rel=0.005)
    assert sorting.kv_cache_tokens < 0.98 * flashinfer.kv_cache_tokens
    assert fitted("Qwen/Qwen2-7B-Instruct", "a100", "0.12.0", **asked).outcomes == ()


def test_weights_of_four_bytes_are_called_so() -> None:
    found = fitted("facebook/opt-13b", "h100", "0.27.1", dtype="float32")
    assert found.config.weight_dtype == "fp32"
    assert found.stage.weights.weight_bytes > 50e9


@pytest.mark.parametrize("gpu", ["mi210", "mi250"])
def test_weights_that_a_gpu_cannot_multiply_are_refused_as_predict_refuses_them(gpu: str) -> None:
    """vLLM 0.32 multiplies FP8 on gfx942, gfx950 and gfx12 alone (``_rocm_torch_fp8_scaled_mm_supported``)."""
    name = "Qwen/Qwen3-30B-A3B-FP8"
    fit, speed = run("fit", name, "--gpu", gpu), run("predict", "serve", name, "--gpu", gpu, "--num-prompts", "4")
    assert fit.status == speed.status == 2
    assert "has no fp8 matrix units" in fit.err and fit.err.splitlines()[0] == speed.err.splitlines()[0]
    ways = (way.settings for way in fitted(name, "mi355x-cpx", "0.32.0").options if "model" not in way.settings)
    assert gpu not in {settings.get("gpu") for settings in ways}
    several = run("fit", name, "--gpu", gpu, "--gpu", "h100")
    assert several.status == 1 and f"vLLM refuses these settings on {gpu}" in several.err


def test_a_shorter_context_is_named_beside_more_gpus() -> None:
    """141 GB of bf16 weights leave a quarter of an MI300X for a context of some 100,000 tokens."""
    words = " ".join(run("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "mi300x,h200").out.split())
    shorter = re.search(r"mi300x holds it with --max-model-len (\d+); h200-sxm .*--tensor-parallel-size 2", words)
    assert shorter and 100_000 < int(shorter[1]) < 131_072


def test_a_sweep_in_which_nothing_fits_ends_with_no() -> None:
    none = run("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "mi300x-cpx", "--sweep")
    some = run("fit", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "h100", "--sweep")
    assert (none.status, some.status) == (1, 0) and "fits on none of 6 settings" in none.out


def test_a_larger_mode_takes_as_many_packages() -> None:
    """Eight CPX partitions are one MI300X, not eight of them."""
    asked = {"tensor_parallel_size": 8, "allow_unvalidated": True}
    options = fitted("amd/Llama-3.1-70B-Instruct-FP8-KV", "mi300x-cpx-nps4", "0.32.0", **asked).options
    (whole,) = [one for one in options if one.settings.get("gpu") == "mi300x"]
    assert whole.num_gpus == whole.settings["tensor_parallel_size"] == 1
    assert fitted("amd/Llama-3.1-70B-Instruct-FP8-KV", "mi300x", "0.32.0").kv_cache_tokens == whole.kv_cache_tokens


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_a_context_is_not_cut_to_nothing_where_frugal_settings_keep_more(kv_cache_dtype: str) -> None:
    first = fitted("meta-llama/Llama-3.1-8B-Instruct", "mi300x-cpx", "0.32.0", kv_cache_dtype=kv_cache_dtype).options[0]
    assert "frugal settings" in first.change and first.max_model_len > 32_768


def test_eight_bits_with_frugal_settings_go_before_four_bits() -> None:
    """AMD's FP8 checkpoint holds the whole context then; without them it starts with 78 % only."""
    options = fitted("meta-llama/Llama-3.1-8B-Instruct", "mi300x-cpx", "0.32.0").options
    here = [one for one in options if "gpu" not in one.settings and "weight_dtype" in one.settings]
    assert here[0].settings["weight_dtype"] == "fp8" and here[0].max_model_len == 131_072
    asked = {name: value for name, value in here[0].settings.items() if name != "weight_dtype"}
    assert fitted(str(asked.pop("model")), "mi300x-cpx", "0.32.0", **asked).verdict == "fits"


@pytest.mark.parametrize("context", [8192, 32_768])
def test_a_4_bit_checkpoint_with_states_comes_with_fewer_requests(context: int) -> None:
    """The 21 GB of Qwen3.5-35B-A3B-GPTQ-Int4 leave one 5090 room for 64 states: 256 of them need two cards."""
    first = fitted("Qwen/Qwen3.5-35B-A3B", "rtx-5090", "0.32.0", max_model_len=context).options[0]
    assert first.settings.pop("model") == "Qwen/Qwen3.5-35B-A3B-GPTQ-Int4" and first.num_gpus == 1
    asked = {"max_num_seqs": first.settings["max_num_seqs"], "max_model_len": context}
    assert fitted("Qwen/Qwen3.5-35B-A3B-GPTQ-Int4", "rtx-5090", "0.32.0", **asked).verdict == "fits"


@pytest.mark.parametrize(
    ("name", "gpu", "size", "made"),
    [
        ("zai-org/GLM-4.6", "h100", 8, "zai-org/GLM-4.6-FP8"),
        # the publisher's own is fbgemm_fp8, which vLLM 0.32 refuses
        ("meta-llama/Llama-3.1-405B-Instruct", "h100", 8, "nvidia/Llama-3.1-405B-Instruct-FP8"),
        ("meta-llama/Llama-3.3-70B-Instruct", "gb200", 1, "nvidia/Llama-3.3-70B-Instruct-FP8"),
    ],
)
def test_a_ready_checkpoint_comes_before_16_bits_quantised_on_load(name: str, gpu: str, size: int, made: str) -> None:
    options = fitted(name, gpu, "0.32.0", tensor_parallel_size=size).options
    assert next(one for one in options if "weight_dtype" in one.settings).settings["model"] == made
    assert not any("quantization" in one.settings for one in options)


def test_a_partition_is_offered_its_whole_card_before_other_products() -> None:
    options = fitted("openai/gpt-oss-120b", "mi300x-cpx", "0.32.0").options
    assert [one.settings["gpu"] for one in options if "gpu" in one.settings][:2] == ["mi300x-dpx", "mi300x"]


def test_gpus_on_several_nodes_are_called_so() -> None:
    asked = ("deepseek-ai/DeepSeek-V3", "--tensor-parallel-size", "16", "--gpu")
    over = "over 2 nodes" in run("fit", *asked, "h100").out, "over" in run("fit", *asked, "gb200").out.splitlines()[0]
    assert over == (True, load_profile("gb200").gpus_per_node < 16)
