"""Parameter counts, KV shapes and refusals of the dense, MoE, MLA and multimodal families."""

import json
import math
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_models import (
    BLOOM,
    CHATGLM3,
    CONFIGS,
    DBRX,
    DEEPSEEK_V2_LITE,
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    FALCON_7B,
    FALCON_40B,
    GEMMA2_9B,
    GEMMA3_27B,
    GEMMA4_26B,
    GEMMA4_E2B,
    GLM_5,
    GLM_45,
    GLM_45_AIR,
    GPT_OSS_20B,
    GROK_2,
    KIMI_K2,
    KIMI_K25,
    LAGUNA_S,
    LLAMA_8B,
    LLAMA_70B,
    MAVERICK,
    MINIMAX_M2,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    MLLAMA_90B,
    OPT_66B,
    QWEN3_30B_A3B,
    QWEN3_32B,
    QWEN3_VL_235B,
    QWEN25_VL_7B,
    QWEN_05B,
    QWEN_72B,
    SCOUT,
    TOTALS,
    Json,
    arch,
    llama,
)

from planner.engine import Layout, held_piece
from planner.errors import PlannerError, UnsupportedModelError
from planner.memory.cache import attention_kinds
from planner.model.architecture import Attention, Component, LatentAttention, Model
from planner.model.build import BUILDERS, model_from_config


def build(config: Json) -> Model:
    return model_from_config(config, model_id="test/model")


@pytest.mark.parametrize(("config", "total"), [pytest.param(c, t, id=name) for name, c, t in TOTALS])
def test_total_parameters_are_exact(config: Json, total: int) -> None:
    assert build(config).total_params == total


@pytest.mark.parametrize(
    ("config", "active"),
    [
        # non-routed weights, embedding and lm_head, and top-k of the experts; vision and MTP left out
        (MIXTRAL_8X7B, 12_879_925_248),
        (QWEN3_30B_A3B, 3_353_032_704),
        (GPT_OSS_20B, 4_187_440_704),
        (MINIMAX_M2, 11_030_537_216),
        (GLM_45, 33_632_251_904),
        (DEEPSEEK_V3, 37_552_282_624),  # "37B activated"
        (KIMI_K2, 32_861_477_888),  # "32B activated"
        (SCOUT, 17_172_894_720),  # "17B activated"
        (GROK_2, 114_896_674_816),
        (GEMMA4_26B, 3_822_530_560),
        (LLAMA_8B, 8_030_261_248),
    ],
)
def test_active_parameters_are_exact(config: Json, active: int) -> None:
    assert build(config).active_params == active


def test_llama_8b_by_hand() -> None:
    attention = 4096 * 4096 + 2 * (8 * 128) * 4096 + 4096 * 4096  # q, k and v, o
    mlp = 3 * 4096 * 14336
    layer = attention + mlp + 2 * 4096  # two norms
    total = 32 * layer + 2 * 128256 * 4096 + 4096  # embedding and lm_head; final norm
    assert layer == 218_112_000
    assert total == 8_030_261_248
    model = build(LLAMA_8B)
    assert {layer.params for layer in model.layers} == {218_112_000}
    counts = model.params_by_component()
    assert counts[Component.EMBEDDING] == counts[Component.LM_HEAD] == 525_336_576
    assert counts[Component.MLP] == 32 * mlp
    assert counts[Component.NORM] == 65 * 4096


def test_deepseek_v3_layers_by_hand() -> None:
    hidden, heads = 7168, 128
    mla = (
        hidden * 1536 + 1536 + 1536 * heads * (128 + 64)  # queries down, their norm, up
        + hidden * (512 + 64) + 512 + 512 * heads * (128 + 128)  # keys and values down, norm, up
        + heads * 128 * hidden  # out
    )  # fmt: skip
    dense = mla + 2 * hidden + 3 * hidden * 18432
    sparse = mla + 2 * hidden + 256 * hidden + (256 + 1) * 3 * hidden * 2048  # router, 256 experts and a shared one
    model = build(DEEPSEEK_V3)
    assert [layer.params for layer in model.layers] == [dense] * 3 + [sparse] * 58
    assert model.total_params == 3 * dense + 58 * sparse + 2 * 129280 * hidden + hidden


def test_deepseek_v3_mtp_is_what_the_repository_stores_beyond_the_model() -> None:
    # The hub counts 684,531,386,000 values, of which 41,555,600 are F32: scales of FP8 blocks, and routing biases.
    model = build(DEEPSEEK_V3)
    mtp = sum(weight.params for weight in model.mtp)
    assert model.total_params + mtp == 684_531_386_000 - 41_555_600
    layer, projection, norms, tables = 11_507_286_016, 7168 * 14336, 3 * 7168, 2 * 129280 * 7168
    assert mtp == layer + projection + norms + tables
    assert {weight.component for weight in model.mtp} == {Component.MTP}
    assert model.params_by_component()[Component.MTP] == mtp


@pytest.mark.parametrize(
    ("config", "hub_total", "routing_biases"),
    [
        # hub totals of the 16-bit repositories; each MoE layer and the MTP layer store one bias per expert
        (GLM_5, 753_864_139_008, 76 * 256),
        (GLM_45_AIR, 110_468_824_832, 46 * 128),
        (arch("MiMoForCausalLM", llama(36, 4096, 11008, 32, 8, 151680), num_nextn_predict_layers=1), 7_833_409_536, 0),
    ],
)
def test_mtp_fills_the_gap_to_the_hub_total(config: Json, hub_total: int, routing_biases: int) -> None:
    model = build(config)
    assert model.total_params + sum(weight.params for weight in model.mtp) + routing_biases == hub_total


def test_no_mtp_where_the_config_names_none() -> None:
    assert build(KIMI_K2).mtp == ()


@pytest.mark.parametrize(
    ("config", "elements"),
    [
        (LLAMA_8B, 32 * 2 * 8 * 128),  # 128 KiB a token in bf16
        (LLAMA_70B, 80 * 2 * 8 * 128),  # 320 KiB
        (QWEN3_32B, 64 * 2 * 8 * 128),  # head_dim 128 is given; 5120 / 64 = 80 would be wrong
        (FALCON_7B, 32 * 2 * 1 * 64),  # one KV head
        (FALCON_40B, 60 * 2 * 8 * 64),
        (CHATGLM3, 28 * 2 * 2 * 128),
        (DBRX, 40 * 2 * 8 * 128),
        (DEEPSEEK_V3, 61 * 576),  # 512 of latent and 64 of rotary key, whatever num_key_value_heads says
        (GLM_5, 78 * 576),
        (GEMMA4_26B, 25 * 2 * 8 * 256 + 5 * 2 * 2 * 512),  # full layers have two KV heads of 512
    ],
)
def test_cached_elements_per_token(config: Json, elements: int) -> None:
    mixers = [mixer for mixer in build(config).mixers() if isinstance(mixer, Attention | LatentAttention)]
    assert sum(mixer.kv_elements_per_token for mixer in mixers) == elements


def spans(config: Json) -> list[int | None]:
    return [mixer.span_tokens for mixer in build(config).mixers() if isinstance(mixer, Attention)]


def test_windows_stand_where_the_implementations_put_them() -> None:
    assert spans(MISTRAL_7B) == [4096] * 32
    assert spans(QWEN_72B) == [None] * 80  # use_sliding_window is false
    assert spans(GEMMA2_9B) == [4096, None] * 21
    assert spans(GPT_OSS_20B) == [128, None] * 12
    assert spans(GEMMA3_27B) == ([1024] * 5 + [None]) * 10 + [1024] * 2
    assert spans(SCOUT) == [8192, 8192, 8192, None] * 12  # chunks


def test_qwen_windows_start_at_max_window_layers() -> None:
    config = {**QWEN_05B, "use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 20}
    assert spans(config) == [None] * 20 + [1024] * 4


def test_gemma4_keeps_the_shape_of_sliding_layers_whatever_their_window() -> None:
    wide = {**GEMMA4_26B, "text_config": {**GEMMA4_26B["text_config"], "sliding_window": 262144}}
    assert build(wide).total_params == build(GEMMA4_26B).total_params


def test_layer_types_decide_over_patterns() -> None:
    types = ["full_attention"] * 41 + ["sliding_attention"]
    assert spans({**GEMMA2_9B, "layer_types": types}) == [None] * 41 + [4096]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (llama(2, 64, 64, 4, 4, 100), "MHA 4"),
        (LLAMA_8B, "GQA 32/8"),
        (FALCON_7B, "MQA 71/1"),
        (DEEPSEEK_V3, "MLA"),
        (DEEPSEEK_V32, "MLA + sparse indexer"),
        (GEMMA2_9B, "GQA 16/8, window 4096 x 21, GQA 16/8 x 21"),
        (SCOUT, "GQA 40/8, chunks of 8192 x 36, GQA 40/8 x 12"),
        (LAGUNA_S, "GQA 72/8, window 512 x 36, GQA 48/8 x 12"),
        (
            GEMMA4_E2B,
            "MQA 8/1, shared KV, window 512 x 16, MQA 8/1, window 512 x 12, MQA 8/1, shared KV x 4, MQA 8/1 x 3",
        ),
        (MLLAMA_90B, "GQA 64/8 x 80, GQA 64/8, cross x 20"),
    ],
)
def test_kinds_of_attention_are_named(config: Json, kinds: str) -> None:
    assert attention_kinds(build(config)) == kinds


def test_glm_52_reuses_indexers() -> None:
    # GLM-5.2: 21 of 78 layers have an indexer of 32 x 128 heads; the hub's total is 534,198,528 below GLM-5's.
    types = ["full", "full"] + (["full"] + ["shared"] * 3) * 19
    model = build({**GLM_5, "indexer_types": types})
    indexers = [mixer.indexer for mixer in model.mixers() if isinstance(mixer, LatentAttention)]
    assert [i.num_heads for i in indexers if i] == [32 if kind == "full" else 0 for kind in types]
    assert {i.top_k for i in indexers if i} == {2048}
    indexer = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert build(GLM_5).total_params - model.total_params == 57 * indexer == 534_198_528


def test_experts_stand_where_the_configs_put_them() -> None:
    def sparse(config: Json) -> list[bool]:
        return [layer.moe is not None for layer in build(config).layers]

    assert sparse(MAVERICK) == [False, True] * 24
    assert sparse(DEEPSEEK_V2_LITE) == [False] + [True] * 26
    assert (
        sparse({**QWEN3_30B_A3B, "decoder_sparse_step": 2, "mlp_only_layers": [1]}) == [False] * 2 + [False, True] * 23
    )
    assert sparse({**GLM_5, "mlp_layer_types": ["sparse"] * 78}) == [True] * 78


def test_mllama_cross_attention_keeps_no_text_keys() -> None:
    cross = [i for i, mixer in enumerate(build(MLLAMA_90B).mixers()) if isinstance(mixer, Attention) and mixer.cross]
    assert cross == list(range(3, 100, 5))


@pytest.mark.parametrize("config", CONFIGS)
def test_components_add_up_and_active_is_a_part(config: Json) -> None:
    model = build(config)
    counts = model.params_by_component()
    assert sum(counts.values()) - counts[Component.MTP] == model.total_params
    assert model.active_params <= model.total_params - counts[Component.VISION]
    assert (counts[Component.LM_HEAD] == 0) == model.tied_embeddings
    assert (counts[Component.ROUTED_EXPERT] > 0) == model.is_moe


@pytest.mark.parametrize("config", CONFIGS)
def test_identical_layers_are_one_object(config: Json) -> None:
    model = build(config)
    assert len({id(layer) for layer in model.layers}) <= 4


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("size", [2, 8])
def test_pieces_of_a_tensor_parallel_group_hold_every_weight(config: Json, size: int) -> None:
    model = build(config)
    for weight in chain(model.outer, *(layer.weights for layer in model.layers), model.vision, model.mtp):
        piece = held_piece(weight, Layout(size))
        assert 1 <= piece.count <= size
        assert piece.count * piece.params >= weight.params


def pieces(config: Json, size: int) -> dict[str, int]:
    """Into how many pieces each weight of the first layer is cut."""
    return {weight.name: held_piece(weight, Layout(size)).count for weight in build(config).layers[0].weights}


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    count = pieces(LLAMA_8B, 16)
    assert (count["self_attn.k_proj"], count["self_attn.q_proj"], count["self_attn.o_proj"]) == (8, 16, 16)


def test_latents_are_on_every_rank() -> None:
    count = pieces(DEEPSEEK_V3, 8)
    assert (count["self_attn.kv_a_proj_with_mqa"], count["self_attn.kv_b_proj"]) == (1, 8)


def test_vision_is_neither_quantised_nor_passed_by_text() -> None:
    model = build(QWEN25_VL_7B)
    assert sum(weight.params for weight in model.vision) == 676_550_144
    assert not any(weight.linear for weight in model.vision)
    assert {weight.component for weight in model.vision} == {Component.VISION}


@pytest.mark.parametrize(
    ("config", "prefix"),
    [
        (LLAMA_8B, "model.layers."),
        (QWEN25_VL_7B, "model.layers."),
        (QWEN3_VL_235B, "model.language_model.layers."),
        (SCOUT, "language_model.model.layers."),
        (KIMI_K25, "language_model.model.layers."),
        (BLOOM, "transformer.h."),
    ],
)
def test_layers_are_named_as_in_the_checkpoint(config: Json, prefix: str) -> None:
    assert build(config).layer_prefix == prefix


#: Configs without a nested text model, and without lists of one value per layer.
FLAT = [config for config in CONFIGS if not {"text_config", "layer_types"} & set(config)]


@given(st.sampled_from(FLAT), st.integers(4, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_parameters_are_linear_in_layers(config: Json, start: int, more: int) -> None:
    key = next(k for k in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if k in config)

    def total(layers: int) -> int:
        return build({**config, key: layers}).total_params

    last = build({**config, key: start + 1}).layers[-1].params
    assert total(start + more) - total(start) == more * last


@given(st.sampled_from([LLAMA_8B, MISTRAL_7B, QWEN_72B, QWEN3_32B, MIXTRAL_8X7B, DEEPSEEK_V3]))
def test_tying_saves_exactly_the_lm_head(config: Json) -> None:
    untied, tied = build(config), build({**config, "tie_word_embeddings": True})
    assert untied.total_params - tied.total_params == config["vocab_size"] * config["hidden_size"]


def test_reading_a_config_imports_nothing_heavy() -> None:
    heavy = "{'pydantic', 'typer', 'scipy', 'numpy', 'huggingface_hub', 'jinja2'}"
    code = f"import sys, planner.model.build; sys.exit(bool({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


def test_dtype_comes_from_either_key_at_either_level() -> None:
    plain = {k: v for k, v in LLAMA_8B.items() if k != "torch_dtype"}
    assert build({**plain, "torch_dtype": "float16"}).dtype == "fp16"
    assert build({**plain, "dtype": "float32"}).dtype == "fp32"
    assert build(SCOUT).dtype == "bf16"  # inside text_config
    assert build(plain).dtype == "bf16"
    assert build(plain).notes == ("config.json gives no dtype: bf16 is assumed",)
    with pytest.raises(UnsupportedModelError, match="torch_dtype"):
        build({**plain, "torch_dtype": "int3"})


@pytest.mark.parametrize(
    ("more", "tokens"),
    [
        ({}, 8192),
        ({"model_max_length": 131072}, 131072),  # Command R: 8192 positions trained, 128k served
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 32768),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 8192),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}}, 32768),
        ({"max_position_embeddings": 131072,  # gpt-oss: the stretched context is given already
          "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}}, 131072),
    ],
)  # fmt: skip
def test_context_is_what_vllm_derives(more: Json, tokens: int) -> None:
    assert build({**LLAMA_8B, **more}).max_position_embeddings == tokens


def test_longrope_says_from_where_it_stretches() -> None:
    phi = arch("Phi3ForCausalLM", llama(32, 3072, 8192, 32, 32, 32064), max_position_embeddings=131072)
    found = build({**phi, "original_max_position_embeddings": 4096})
    assert (found.unstretched_tokens, found.max_position_embeddings) == (4096, 131072)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "names no architecture"),
        ({"architectures": []}, "names no architecture"),
        ({"architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration"),
        ({"architectures": ["LlamaForCausalLM"]}, "lacks 'hidden_size'"),
        ({**LLAMA_8B, "num_attention_heads": 0}, "num_attention_heads in config.json is 0"),
        ({**LLAMA_8B, "hidden_size": "4096"}, "hidden_size in config.json is '4096'"),
        ({**LLAMA_8B, "hidden_size": True}, "hidden_size"),
        ({**LLAMA_8B, "hidden_size": float("nan")}, "hidden_size"),
        ({**LLAMA_8B, "num_key_value_heads": 7}, "32 query heads over 7 KV heads"),
        ({**LLAMA_8B, "num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({**LLAMA_8B, "vocab_size": 10**30}, "vocab_size"),
        ({**LLAMA_8B, "tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({**GEMMA2_9B, "layer_types": ["full_attention"]}, "layer_types"),
        ({**MIXTRAL_8X7B, "num_experts_per_tok": 9}, "9 experts per token of 8"),
        ({**QWEN25_VL_7B, "vision_config": None}, "vision_config"),
        ({**OPT_66B, "word_embed_proj_dim": 512}, "word_embed_proj_dim"),
        (
            {**GEMMA4_26B, "text_config": {**GEMMA4_26B["text_config"], "num_kv_shared_layers": 26}},
            "num_kv_shared_layers in config.json is 26",
        ),
        ({**LAGUNA_S, "gating": "per-element"}, "gating in config.json is 'per-element'"),
    ],
)
def test_refusals_name_what_is_wrong(config: Json, words: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        build(config)
    assert words in refused.value.cause
    assert "test/model" in refused.value.cause
    assert "\n" not in refused.value.cause + refused.value.hint
    assert refused.value.hint


def test_an_unknown_architecture_is_offered_its_neighbours() -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        build({"architectures": ["LlamaForCausalML"]})
    assert "LlamaForCausalLM" in refused.value.hint


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("XLMRobertaForSequenceClassification", "as rerankers, reward models and classifiers are not covered"),
        ("WhisperForConditionalGeneration", "as speech and audio models are not covered"),
        ("XLMRobertaModel", "as embedding models are not covered"),
        ("InternVLChatModel", "or add it to planner/model/families"),
    ],
)
def test_models_out_of_scope_are_refused_by_their_kind(architecture: str, reason: str) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        build({"architectures": [architecture]})
    assert refused.value.hint == f"see `planner models list`, {reason}"


def test_a_config_that_is_no_object_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not an object"):
        model_from_config([1, 2], model_id="x")  # type: ignore[arg-type]


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
EDGES = st.sampled_from([None, 0, 1, -1, 3, 2.0, 1.5, math.nan, math.inf, 10**30, "", "8", True, [], {}, [0], [None]])
QUANTIZED = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def answers(config: Any) -> None:
    """Build and look, or refuse in one line; any other exception fails the test."""
    try:
        model = build(config)
    except PlannerError as error:
        assert "\n" not in error.cause + error.hint
        return
    assert model.total_params >= model.active_params >= 0
    assert attention_kinds(model)
    assert math.isfinite(model.total_params)


def test_counts_beyond_the_digits_of_a_float_stay_exact() -> None:
    size = 2**31  # the largest that a config may give: one expert has 3 * 2**62 parameters, and a float 53 bits
    config = {**MIXTRAL_8X7B, "hidden_size": size, "intermediate_size": size, "num_experts_per_tok": 8}
    model = build(config)
    assert model.active_params == model.total_params > 2**64
    fewer = build({**config, "num_experts_per_tok": 3})
    assert fewer.total_params - fewer.active_params == 5 * fewer.num_layers * 3 * size**2


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_configs_are_refused_in_one_line(data: st.DataObject) -> None:
    config = json.loads(json.dumps(data.draw(st.sampled_from(CONFIGS))))
    config.setdefault("quantization_config", dict(QUANTIZED))
    for _ in range(data.draw(st.integers(1, 3))):
        levels = [level for level in (config, *config.values()) if isinstance(level, dict) and level]
        level = data.draw(st.sampled_from(levels))
        level[data.draw(st.sampled_from(sorted(level)))] = data.draw(EDGES | JUNK)
    answers(config)


@given(st.sampled_from(sorted(BUILDERS)) | st.text(), st.dictionaries(st.text(max_size=10), JUNK, max_size=5))
@settings(max_examples=200, deadline=None)
def test_any_json_object_is_refused_in_one_line(name: str, config: Json) -> None:
    answers({**config, "architectures": [name]})
