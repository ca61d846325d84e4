"""From a name to a model: the order of the sources, and one clean line for whatever is wrong with a name or a file."""

import json
import os
from pathlib import Path

import pytest
from hub_server import COMMIT, HubServer
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import HubError, InputError, PlannerError, UnknownNameError
from planner.model.resolve import resolve_model

#: A Llama of one layer. Parameters by hand: embeddings and lm_head 2 x 1000 x 64 = 128,000; q and o 2 x 64 x 64 =
#: 8,192; k and v 2 x 32 x 64 = 4,096; MLP 3 x 64 x 256 = 49,152; three norms 3 x 64 = 192. Sum 189,632.
TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 1000,
    "max_position_embeddings": 512, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
TINY_PARAMS = 189_632
MODELOPT_FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}


def config_bytes(**changes: object) -> bytes:
    return json.dumps(TINY | changes).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tiny"
    made.mkdir()
    (made / "config.json").write_bytes(config_bytes())
    return made


def test_a_folder_and_its_config_file_are_the_same_model(folder: Path) -> None:
    for path in (folder, folder / "config.json"):
        found = resolve_model(str(path), network=False)
        assert found.source == "path"
        assert found.model.total_params == TINY_PARAMS


def test_a_home_folder_is_expanded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve_model("~/tiny", network=False).model.total_params == TINY_PARAMS


def test_a_path_wins_over_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "openai/gpt-oss-20b"
    here.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    # an unrelated folder of that name is no model, so the catalog answers
    assert resolve_model("openai/gpt-oss-20b", network=False).source == "catalog"
    (here / "config.json").write_bytes(config_bytes())
    assert resolve_model("openai/gpt-oss-20b", network=False).model.total_params == TINY_PARAMS


def test_the_sidecar_beside_config_json_is_read(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps(MODELOPT_FP8))
    quantization = resolve_model(str(folder), network=False).model.quantization
    assert (quantization.weight_dtype, quantization.kv_cache_dtype) == ("fp8", "fp8")


BROKEN = {
    "empty": b"",
    "cut short": config_bytes()[:100],
    "a list": b"[1, 2]",
    "a string": b'"LlamaForCausalLM"',
    "null": b"null",
    "not UTF-8": b"\xff\xfe{\0}\0\xd8",
    "deep": b"[" * 100_000,
    "a number of 5000 digits": b'{"hidden_size": ' + b"9" * 5000 + b"}",
    "an empty object": b"{}",
    "a diffusion pipeline": b'{"_class_name": "FluxPipeline"}',
    "an unknown architecture": config_bytes(architectures=["FooForCausalLM"]),
    "a negative size": config_bytes(hidden_size=-64),
    "a size that is text": config_bytes(hidden_size="64"),
    "endless layers": config_bytes(num_hidden_layers=10**12),
    "unknown quantisation": config_bytes(quantization_config={"quant_method": "sorcery"}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_config_is_refused_in_one_line(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(PlannerError) as error:
        resolve_model(str(folder), network=False)
    assert error.value.exit_status == 2
    assert error.value.cause
    assert error.value.hint
    assert "\n" not in error.value.cause + error.value.hint
    assert len(error.value.cause) < 400


def test_a_huge_config_is_not_even_read(folder: Path) -> None:
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**36)  # 64 GiB of nothing, sparse
    with pytest.raises(InputError, match="68,719,476,736 bytes"):
        resolve_model(str(folder), network=False)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("model-Q4_K_M.gguf", "GGUF"),
        ("adapter_config.json", "adapter"),
        ("params.json", "original format"),
        ("README.md", "no config.json"),
    ],
)
def test_a_folder_that_is_no_model_says_what_it_is(tmp_path: Path, file: str, says: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(InputError, match=says):
        resolve_model(str(tmp_path), network=False)


def test_an_unreadable_config_is_an_input_error(folder: Path) -> None:
    # root may read any file, so take a folder in the file's place
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    with pytest.raises(InputError, match=r"no config\.json"):
        resolve_model(str(folder), network=False)
    with pytest.raises(InputError, match=r"no config\.json"):
        resolve_model(str(folder / "config.json"), network=False)


def test_a_closed_folder_is_an_input_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> bool:  # what Path.is_file does below a folder without the x permission
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(InputError, match="Permission denied"):
        resolve_model(str(folder), network=False)


def test_a_link_in_a_circle_is_an_input_error(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(InputError):
        resolve_model(str(folder), network=False)


@pytest.mark.parametrize("name", ["./Qwen3-8B-Q4_K_M.gguf", "unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "Qwen/Qwen3-8B:Q8_0"])
def test_gguf_is_refused_with_a_checkpoint_of_as_many_bits(name: str) -> None:
    """vLLM's forms: a file, a repository with the quantisation (docs/features/quantization/gguf.md)."""
    with pytest.raises(InputError, match="GGUF is not modelled") as error:
        resolve_model(name, network=False)
    assert error.value.hint == "give another checkpoint: Qwen/Qwen3-8B-AWQ"


@pytest.mark.parametrize(
    "name",
    ["", "/nowhere/at/all", "./missing", "../missing", "~/missing", "missing/config.json", "weights.gguf", "a\0b",
     "x" * 5000, "a/b; rm -rf ~", "$(id)", "../../etc", "meta-llama/Llama-3.1-8B\n", "~nobody-by-this-name/x",
     "/dev/null"],
)  # fmt: skip
def test_no_such_thing_is_an_input_error(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        resolve_model(name, network=False)
    assert "\n" not in error.value.cause
    assert len(error.value.cause) < 500


@settings(max_examples=60)
@given(st.text(max_size=80) | st.binary(max_size=80).map(os.fsdecode))
def test_no_name_at_all_raises_anything_else(name: str) -> None:
    try:
        resolve_model(name, network=False)
    except PlannerError as error:
        assert error.exit_status in (2, 3)


def test_the_catalog_answers_without_network_in_any_case(server: HubServer) -> None:
    found = resolve_model("META-LLAMA/llama-3.3-70b-instruct")
    assert (found.source, found.resolved) == ("catalog", "meta-llama/Llama-3.3-70B-Instruct")
    assert found.model.total_params == 70_553_706_496  # the hub's own count
    assert server.requests == []


def test_an_original_format_id_says_what_it_is_taken_for() -> None:
    found = resolve_model("meta-llama/Llama-2-13B", network=False)
    assert found.resolved == "meta-llama/Llama-2-13b-hf"
    assert found.requested == "meta-llama/Llama-2-13B"
    assert any("meta-llama/Llama-2-13b-hf" in note for note in found.notes)


def test_a_bare_name_gets_the_nearest_ids() -> None:
    with pytest.raises(UnknownNameError) as error:
        resolve_model("Llama-3.3-70B-Instrct", network=False)
    assert "meta-llama/llama-3.3-70b-instruct" in error.value.hint.lower()


@pytest.mark.parametrize("name", ["gpt-4o", "openai/o3-mini", "claude-sonnet-4", "Gemini 2.5 Pro", "grok-4", "ChatGPT"])
def test_models_without_open_weights_are_named_as_such(name: str) -> None:
    with pytest.raises(InputError, match="has no open weights"):
        resolve_model(name, network=False)


def test_a_name_of_several_models_lists_them() -> None:
    with pytest.raises(InputError, match="'gpt-oss' may be any of 2 models") as error:
        resolve_model("gpt-oss", network=False)
    assert "openai/gpt-oss-120b, openai/gpt-oss-20b" in error.value.hint


def test_an_unknown_id_is_fetched_once_and_then_served_from_the_cache(server: HubServer) -> None:
    server.add("org/tiny", {"config.json": config_bytes()})
    first = resolve_model("org/tiny")
    assert (first.source, first.model.total_params) == ("hub", TINY_PARAMS)
    asked = len(server.requests)
    second = resolve_model("org/tiny", network=False)
    assert (second.source, second.model.total_params) == ("cache", TINY_PARAMS)
    assert len(server.requests) == asked


def test_the_sidecar_of_a_repository_is_seen(server: HubServer) -> None:
    sidecar = json.dumps(MODELOPT_FP8).encode()
    server.add("org/tiny-FP8", {"config.json": config_bytes(), "hf_quant_config.json": sidecar})
    assert resolve_model("org/tiny-FP8").model.quantization.weight_dtype == "fp8"
    assert resolve_model("org/tiny-FP8", network=False).model.quantization.weight_dtype == "fp8"


def test_refresh_asks_the_hub_again(server: HubServer) -> None:
    server.add("org/tiny", {"config.json": config_bytes()})
    resolve_model("org/tiny")
    server.add("org/tiny", {"config.json": config_bytes(vocab_size=2000)})
    assert resolve_model("org/tiny").model.vocab_size == 1000
    assert resolve_model("org/tiny", refresh=True).model.vocab_size == 2000


def test_revision_passes_over_the_catalog(server: HubServer) -> None:
    server.add("openai/gpt-oss-20b", {"config.json": config_bytes()})
    found = resolve_model("openai/gpt-oss-20b", revision=COMMIT)
    assert found.revision == COMMIT
    assert (found.source, found.model.total_params) == ("hub", TINY_PARAMS)


def test_a_cache_without_sidecar_is_used_when_the_hub_is_gone_and_says_so(server: HubServer, tmp_path: Path) -> None:
    repo = tmp_path / "hf/hub/models--org--tiny"
    (repo / "snapshots" / COMMIT).mkdir(parents=True)
    (repo / "snapshots" / COMMIT / "config.json").write_bytes(config_bytes())
    (repo / "refs").mkdir()
    (repo / "refs/main").write_text(COMMIT)
    server.status = 503
    found = resolve_model("org/tiny")
    assert found.source == "cache"
    assert any("hf_quant_config.json" in note for note in found.notes)


def test_a_config_that_is_no_config_is_refused(server: HubServer) -> None:
    server.add("org/list", {"config.json": b"[]"})
    with pytest.raises(HubError, match=r"config\.json is not a JSON object"):
        resolve_model("org/list")
    server.add("org/list", {"config.json": config_bytes()})  # repaired: nothing of the first answer is left
    assert resolve_model("org/list").model.total_params == TINY_PARAMS


def test_without_network_the_nearest_catalog_names_are_offered() -> None:
    with pytest.raises(HubError) as error:
        resolve_model("meta-llama/Llama-3.3-70B-Instruct-Turbo", network=False)
    assert error.value.exit_status == 3
    assert "meta-llama/Llama-3.3-70B-Instruct" in error.value.hint


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("deepseek-ai/deepseek_r1", "deepseek-ai/DeepSeek-R1"),
        ("qwen/qwen3_32b", "Qwen/Qwen3-32B"),
    ],
)
def test_a_short_name_behind_its_organisation_is_its_one_model(server: HubServer, name: str, model: str) -> None:
    answer = resolve_model(name)
    assert (answer.resolved, answer.source) == (model, "catalog")
    assert f"the hub has no {name}: {model} is taken" in answer.notes


def test_a_short_name_of_several_models_lists_those_of_its_organisation(server: HubServer) -> None:
    with pytest.raises(HubError) as error:
        resolve_model("openai/gpt-oss")
    assert "any of: openai/gpt-oss-120b, openai/gpt-oss-20b" in error.value.hint
    with pytest.raises(HubError):  # of another organisation
        resolve_model("Qwen/llama-3.3-70b")


def test_a_short_name_that_the_hub_has_is_its_repository(server: HubServer) -> None:
    server.add("meta-llama/llama-3.3-70b", {"config.json": config_bytes()})
    assert resolve_model("meta-llama/llama-3.3-70b").model.total_params == TINY_PARAMS


def test_a_missing_repository_offers_the_nearest_names(server: HubServer) -> None:
    with pytest.raises(HubError, match="no repository Qwen/Qwen3-32") as error:
        resolve_model("Qwen/Qwen3-32")
    assert "Qwen/Qwen3-32B" in error.value.hint
