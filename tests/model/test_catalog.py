"""The bundled catalog against published figures, and against itself: links, names, quantised checkpoints."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engine import stated_words
from planner.hardware import load_profile
from planner.memory.cache import stored_weight_bytes
from planner.model import hub
from planner.model.architecture import Component, Model, Weight
from planner.model.catalog import (
    ENTRIES,
    KINDS,
    CatalogEntry,
    catalog_ids,
    find_entry,
    meant_ids,
    nearest_ids,
    quantized_checkpoints,
)

#: Parameters as the hub counts them in the safetensors files of each repository. Where the files hold more than
#: the model (multi-token-prediction modules, rotary tables), the count is that of the model built from its config.
PUBLISHED_PARAMS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-13b-hf": 13_015_864_320,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-405B": 405_853_388_800,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "meta-llama/Llama-3.2-3B": 3_212_749_824,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 108_641_793_536,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "mistralai/Ministral-3-8B-Instruct-2512": 8_918_026_716 - 476,  # scales
    "mistralai/Mistral-Medium-3.5-128B": 127_704_210_176,
    "Qwen/Qwen2-57B-A14B": 57_408_658_944,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-72B-Instruct": 72_706_203_648,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "Qwen/Qwen3.5-0.8B": 873_438_784 - 20_452_864,
    "Qwen/Qwen3.5-2B": 2_274_069_824 - 60_828_160,
    "Qwen/Qwen3.5-4B": 4_659_865_088 - 120_599_552,
    "Qwen/Qwen3.8-27B": 27_781_427_952 - 424_699_392,
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V2-Chat": 235_741_434_880,
    "deepseek-ai/DeepSeek-V3": 671_026_404_352,
    "openai/gpt-oss-20b": 20_914_757_184,
    "google/gemma-2-9b": 9_241_705_984,
    "google/gemma-2-27b": 27_227_128_320,
    "google/gemma-4-E2B-it": 5_123_178_051 - 35,  # layer scalars
    "google/gemma-4-E4B-it": 7_996_156_490 - 42,
    "ibm-granite/granite-4.1-8b": 8_791_592_960,
    "poolside/Laguna-XS.2": 33_442_617_088 - 39 * 256,  # routing biases
    "poolside/Laguna-S-2.1": 117_561_977_600 - 47 * 256,
    "tencent/Hy3-preview": 298_786_155_776 - 3_752_612_096 - 80 * 192,
    "ai21labs/Jamba-v0.1": 51_570_323_328,
    "nvidia/Nemotron-H-56B-Base-8K": 56_324_350_464,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 31_577_937_344,
    "nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16": 3_973_556_832,
    "bigscience/bloom": 176_247_271_424,
    "CohereForAI/c4ai-command-r-plus": 103_810_674_688,
}

#: Parameters that a token passes through, embeddings and lm_head counted: from the same tables.
PUBLISHED_ACTIVE_PARAMS = {
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 12_879_925_248,
    "Qwen/Qwen3-235B-A22B": 22_190_763_520,
    "deepseek-ai/DeepSeek-V3": 37_552_282_624,
    "openai/gpt-oss-20b": 4_187_440_704,
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 17_172_894_720,
}

#: Bytes of all tensors: the ``total_size`` that the index of each repository states.
PUBLISHED_BYTES = {"openai/gpt-oss-20b": 13_761_264_768, "openai/gpt-oss-120b": 65_248_815_744}

RECORDS = {
    name: record
    for path in ENTRIES.glob("*.json")
    for name, record in json.loads(path.read_text(encoding="utf-8")).items()
}
IDS = catalog_ids()


def entry_of(name: str) -> CatalogEntry:
    entry = find_entry(name)
    assert entry is not None, name
    return entry


def text_params(model: Model) -> int:
    """Parameters without the vision tower, which the published config of MiniMax-M3 leaves out."""
    return model.total_params - sum(weight.params for weight in model.vision)


def stored_bytes(model: Model) -> int:
    """Bytes of a checkpoint's own tensors, without multi-token-prediction modules."""

    def size(path: str, weight: Weight) -> int:
        expert = weight.component is Component.ROUTED_EXPERT
        precision = model.quantization.precision_of(path, linear=weight.linear, routed_expert=expert)
        return precision.stored_bytes(weight.shape, weight.copies)

    layers = sum(
        size(f"{model.layer_prefix}{index}.{weight.name}", weight)
        for index, layer in enumerate(model.layers)
        for weight in layer.weights
    )
    return layers + sum(size(weight.name, weight) for weight in (*model.outer, *model.vision))


def test_the_catalog_is_large_and_the_files_are_small() -> None:
    assert len(IDS) >= 150
    assert sum(path.stat().st_size for path in ENTRIES.glob("*.json")) < 2**18


def test_names_are_unique_in_any_case_and_hub_ids() -> None:
    counts = Counter(name.lower() for name in RECORDS)
    assert [name for name, count in counts.items() if count > 1] == []
    assert [name for name in RECORDS if not hub.is_repo_id(name)] == []


def test_files_are_named_after_their_organisation() -> None:
    for path in ENTRIES.glob("*.json"):
        organisations = {name.partition("/")[0].lower() for name in json.loads(path.read_text(encoding="utf-8"))}
        assert organisations == {path.stem}


def test_every_entry_refers_to_entries_only() -> None:
    for name, record in RECORDS.items():
        for key in {"like", "base", "form_of", "alias_of"} & record.keys():
            assert record[key] in RECORDS, f"{name}: {key}"
            assert "alias_of" not in RECORDS[record[key]], f"{name}: {key} is only another name"


def test_every_entry_says_where_its_facts_are_from() -> None:
    for name, record in RECORDS.items():
        if "alias_of" in record:
            assert record["why"].startswith(("is ", "was ", "holds ")), f"{name}: a note begins with the name"
        else:
            assert record["kind"] in KINDS, name
            assert record["from"], name


@pytest.mark.parametrize("name", IDS)
def test_every_entry_builds_a_model(name: str) -> None:
    entry = entry_of(name)
    model = entry.model()
    assert model.id == name
    assert model.total_params >= model.active_params > 0
    assert model.max_position_embeddings > 0
    if entry.weight_dtype:
        assert entry.weight_dtype == model.quantization.weight_dtype
        assert entry.kv_cache_dtype == model.quantization.kv_cache_dtype


#: Qwen pads the MLP of its 72B for quantisation: 80 layers x 3 matrices x 8192 x (29696 - 29568).
PADDING = {f"Qwen/Qwen2.5-72B-Instruct-{form}": 251_658_240 for form in ("AWQ", "GPTQ-Int4", "GPTQ-Int8")}


@pytest.mark.parametrize("name", [name for name in IDS if "weight_dtype" in RECORDS[name]])
def test_a_quantised_checkpoint_has_the_shapes_of_its_base(name: str) -> None:
    entry = entry_of(name)
    assert entry.base is not None
    base, model = entry_of(entry.base).model(), entry.model()
    assert text_params(model) == text_params(base) + PADDING.get(name, 0)
    assert model.num_layers == base.num_layers
    # a verbatim config may state another context; the assembled Qwen3-235B of 2507 had that of the model before it
    assert entry.kind == "verbatim" or model.max_position_embeddings == base.max_position_embeddings
    assert name in {checkpoint.id for checkpoint in quantized_checkpoints(entry.base)}


@pytest.mark.parametrize("name", PUBLISHED_PARAMS)
def test_parameters_are_those_of_the_hub(name: str) -> None:
    assert entry_of(name).model().total_params == PUBLISHED_PARAMS[name]


@pytest.mark.parametrize("name", PUBLISHED_ACTIVE_PARAMS)
def test_active_parameters_are_those_published(name: str) -> None:
    assert entry_of(name).model().active_params == PUBLISHED_ACTIVE_PARAMS[name]


@pytest.mark.parametrize("name", PUBLISHED_BYTES)
def test_bytes_are_those_of_the_index(name: str) -> None:
    assert stored_bytes(entry_of(name).model()) == PUBLISHED_BYTES[name]


@pytest.mark.parametrize(
    ("name", "context"),
    [  # max_position_embeddings of the repositories
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072),
        ("meta-llama/Llama-2-13b-hf", 4_096),
        ("deepseek-ai/DeepSeek-V3", 163_840),
        ("openai/gpt-oss-120b", 131_072),
        ("Qwen/Qwen3-32B", 40_960),
    ],
)
def test_the_models_own_context(name: str, context: int) -> None:
    assert entry_of(name).model().max_position_embeddings == context


def test_ids_are_found_in_any_case() -> None:
    assert entry_of("META-LLAMA/LLAMA-3.3-70B-INSTRUCT").id == "meta-llama/Llama-3.3-70B-Instruct"


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("meta-llama/Llama-2-13B", "meta-llama/Llama-2-13b-hf"),
        ("meta-llama/Llama-2-7B", "meta-llama/Llama-2-7b-hf"),
        ("meta-llama/Llama-2-70B", "meta-llama/Llama-2-70b-hf"),
        ("meta-llama/Llama-2-13b-chat", "meta-llama/Llama-2-13b-chat-hf"),
        ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-405B-Instruct", "meta-llama/Llama-3.1-405B-Instruct"),
    ],
)
def test_other_names_lead_to_the_repository_and_say_so(name: str, repository: str) -> None:
    entry = entry_of(name)
    assert entry.id == repository
    assert any(repository in note and name.lower() in note.lower() for note in entry.notes)


def test_a_name_without_organisation_is_found_when_it_is_unique() -> None:
    entry = entry_of("llama-3.3-70b-instruct")
    assert entry.id == "meta-llama/Llama-3.3-70B-Instruct"
    assert entry.notes


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"), ("qwen3 32b", "Qwen/Qwen3-32B"),
        ("deepseek r1", "deepseek-ai/DeepSeek-R1"), ("gemma 3 27b", "google/gemma-3-27b-it"),
        ("llama 4 scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"), ("gpt oss 120b", "openai/gpt-oss-120b"),
        ("Llama 2 13B", "meta-llama/Llama-2-13b-hf"), ("qwen3 32b awq", "Qwen/Qwen3-32B-AWQ"),
        ("gptoss-20b", "openai/gpt-oss-20b"),
    ],
)  # fmt: skip
def test_a_name_without_organisation_may_leave_out_what_is_clear(name: str, repository: str) -> None:
    assert meant_ids(name) == [repository] == [entry_of(name).id]


@pytest.mark.parametrize("name", ["gpt-oss", "mistral small", "qwen", "deepseek", "nemotron nano"])
def test_a_name_of_several_models_means_none_of_them(name: str) -> None:
    assert len(meant_ids(name)) > 1 and find_entry(name) is None


def test_nearest_names_are_spelled_as_on_the_hub() -> None:
    assert "meta-llama/Llama-3.3-70B-Instruct" in nearest_ids("meta-lama/Lama-3.3-70B-instruct")
    assert nearest_ids("GPT-OSS-120")[0] == "openai/gpt-oss-120b"
    assert nearest_ids("Llama-3.3-70B")[0] == "meta-llama/Llama-3.3-70B-Instruct"
    assert nearest_ids("zzzzzz/qqqqqq") == []


def test_nearest_names_hold_what_was_typed_whatever_separates_its_words() -> None:
    assert all(name.startswith("meta-llama/Llama-3") for name in nearest_ids("llama3"))
    assert all("235B-A22B" in name for name in nearest_ids("235b a22b"))
    assert nearest_ids("somebody/Qwen3-32B")[0] == "Qwen/Qwen3-32B"


@given(st.text(max_size=40))
def test_any_text_may_be_asked_for(name: str) -> None:
    entry = find_entry(name)
    assert entry is None or entry.id in RECORDS


@pytest.mark.parametrize("name", ["../resources", "/etc/passwd", "meta-llama", "meta-llama/", "/", "", "amd/../amd/x"])
def test_a_name_is_never_a_path(name: str) -> None:
    assert find_entry(name) is None


def test_each_vendor_has_its_checkpoints_of_llama_3_3() -> None:
    found = {c.id: c for c in quantized_checkpoints("meta-llama/llama-3.3-70b-instruct")}
    amd = found["amd/Llama-3.3-70B-Instruct-FP8-KV"]
    assert (amd.weight_dtype, amd.kv_cache_dtype, amd.publisher, amd.platforms) == ("fp8", "fp8", "amd", ("amd",))
    assert found["amd/Llama-3.3-70B-Instruct-MXFP4-Preview"].weight_dtype == "mxfp4"
    assert found["nvidia/Llama-3.3-70B-Instruct-FP8"].platforms == ("nvidia",)
    assert found["nvidia/Llama-3.3-70B-Instruct-FP4"].weight_dtype == "nvfp4"
    assert found["RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"].platforms == ("amd", "nvidia")


def test_a_model_nobody_quantised_has_none() -> None:
    assert quantized_checkpoints("bigscience/bloom") == []
    assert quantized_checkpoints("no/such-model") == []


def test_ranges_of_layers_are_written_out() -> None:
    """NVIDIA's list names the experts of layers 3 to 59, and the attention of all 60 layers."""
    layers = entry_of("nvidia/MiniMax-M3-NVFP4").config["quantization_config"]["quantized_layers"]
    queries = [name for name in layers if name.endswith("self_attn.q_proj")]
    assert len(queries) == 60
    assert "language_model.model.layers.59.self_attn.q_proj" in queries
    assert "{" not in "".join(layers)


def test_a_checkpoint_has_one_entry_under_its_old_and_new_name() -> None:
    """NVIDIA renamed its FP4 checkpoints to NVFP4; with two entries a plan has a name that the recipe lacks."""
    names = [name.lower().replace("-nvfp4", "-fp4") for name in catalog_ids()]
    assert sorted(names) == sorted(set(names))
    old, new = (entry_of(f"nvidia/Llama-3.3-70B-Instruct-{form}") for form in ("FP4", "NVFP4"))
    assert old.id == new.id and "--kv-cache-dtype" in stated_words([new.id], load_profile("b200-sxm"))[0]


def test_a_form_that_is_assumed_says_so() -> None:
    notes = entry_of("nvidia/Llama-3.1-8B-Instruct-NVFP4").notes
    assert any("nvfp4" in note and "assumed" in note for note in notes)
    assert entry_of("meta-llama/Llama-3.3-70B-Instruct").notes == ()


def test_no_checkpoint_borrows_the_ignore_list_of_another_architecture() -> None:
    """Module names differ: Llama 4's list left all of Llama 3.3's attention in 16 bits, 79.9 GB instead of 72.7."""
    for name in catalog_ids():
        entry = find_entry(name)
        assert entry is not None
        lender = find_entry(entry.form_of) if entry.form_of else None
        if lender is not None:
            assert lender.model().architecture == entry.model().architecture, name


def test_llama_3_3_70b_in_fp8_is_as_large_as_its_files() -> None:
    """Attention and MLP in 8 bits with a 16-bit scale per channel, the two tables of 128,256 x 8,192 in 16 bits."""
    entry = find_entry("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic")
    assert entry is not None
    assert stored_weight_bytes(entry.model()) == 72_669_806_592  # of the published safetensors header


@pytest.mark.parametrize(("size", "published_gb"), [("4B", 2.67), ("8B", 6.10), ("14B", 9.98), ("32B", 19.33)])
def test_qwen3_awq_is_as_large_as_its_files(size: str, published_gb: float) -> None:
    assert round(stored_weight_bytes(entry_of(f"Qwen/Qwen3-{size}-AWQ").model()) / 1e9, 2) == published_gb


def test_qwen3_235b_gptq_is_as_large_as_logged() -> None:
    """57.64 GiB on each of two DGX Sparks (vLLM 0.19.0, conselara.dev/notes/dgx-spark-benchmarks)."""
    size = stored_weight_bytes(entry_of("Qwen/Qwen3-235B-A22B-GPTQ-Int4").model()) / 2
    assert size / 2**30 == pytest.approx(57.64, rel=0.015)


def test_qwen3_vl_32b_in_fp8_is_as_large_as_its_shapes() -> None:
    """64 layers in blocks of 128 x 128 with a 4-byte scale; norms, both tables and the vision tower in 16 bits."""
    layer = 5120 * (2 * 8192 + 2 * 1024 + 3 * 25_600)
    rest = 33_357_390_064 - 64 * layer  # the hub's count of the 16-bit model
    expected = 64 * (layer + layer // 128**2 * 4) + 2 * rest
    assert stored_bytes(entry_of("Qwen/Qwen3-VL-32B-Instruct-FP8").model()) == expected


def test_qwen2_5_coder_7b_has_the_parameters_of_its_card() -> None:
    """The card: 28 layers, 28 query and 4 KV heads, 6.53B parameters without the two tables."""
    model = entry_of("qwen2.5 coder 7b").model()
    assert model.num_layers == 28
    assert round((model.total_params - 2 * 152_064 * 3_584) / 1e9, 2) == 6.53
