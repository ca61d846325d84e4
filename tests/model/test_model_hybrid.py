"""Hybrid, state-space and unusual decoders: published parameter totals, state sizes by hand, what is refused.

Totals are those of the safetensors headers on the hub (``safetensors.total``) or, where the hub counts
multi-token-prediction modules or routing biases in, what is left without them; the arithmetic is beside each.
"""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import UnsupportedModelError
from planner.memory.weights import module_mixer
from planner.model.architecture import Attention, Component, CompressedAttention, LatentAttention, Model, StateMixer
from planner.model.build import model_from_config

CONFIGS: dict[str, dict[str, Any]] = {
    "mamba-2.8b": {
        "architectures": ["MambaForCausalLM"], "hidden_size": 2560, "intermediate_size": 5120, "state_size": 16,
        "conv_kernel": 4, "time_step_rank": 160, "num_hidden_layers": 64, "vocab_size": 50280,
    },
    "falcon-mamba-7b": {
        "architectures": ["FalconMambaForCausalLM"], "hidden_size": 4096, "intermediate_size": 8192, "expand": 16,
        "state_size": 16, "conv_kernel": 4, "time_step_rank": 256, "num_hidden_layers": 64, "vocab_size": 65024,
        "tie_word_embeddings": False,
    },
    "jamba-v0.1": {
        "architectures": ["JambaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 65536,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 16,
        "num_experts_per_tok": 2, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
        "expert_layer_offset": 1, "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2,
        "tie_word_embeddings": False, "max_position_embeddings": 262144,
    },
    "nemotron-h-56b": {
        "architectures": ["NemotronHForCausalLM"], "hidden_size": 8192, "intermediate_size": 32768,
        "vocab_size": 131072, "num_hidden_layers": 118, "num_attention_heads": 64, "num_key_value_heads": 8,
        "attention_head_dim": 128, "mamba_num_heads": 256, "mamba_head_dim": 64, "n_groups": 8,
        "ssm_state_size": 256, "conv_kernel": 4, "max_position_embeddings": 8192,
        "hybrid_override_pattern": "M-M-M-M*" + "-M-M-M-M-M*" * 9 + "-M-M-M-M-M-",
    },
    "nemotron-3-super": {
        "architectures": ["NemotronHForCausalLM"], "hidden_size": 4096, "vocab_size": 131072, "head_dim": 128,
        "num_attention_heads": 32, "num_key_value_heads": 2, "mamba_num_heads": 128, "mamba_head_dim": 64,
        "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "mamba_ssm_cache_dtype": "float32",
        "n_routed_experts": 512, "num_experts_per_tok": 22, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
        "moe_shared_expert_intermediate_size": 5376, "n_shared_experts": 1, "intermediate_size": 2688,
        "num_hidden_layers": 88, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E",
        "hybrid_override_pattern":
            "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    },
    "granite-4.0-h-small": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 4096, "intermediate_size": 768,
        "vocab_size": 100352, "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_local_experts": 72, "num_experts_per_tok": 10, "shared_intermediate_size": 1536, "mamba_n_heads": 128,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_groups": 1,
        "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    },
    "minimax-m1": {
        "architectures": ["MiniMaxM1ForCausalLM"], "hidden_size": 6144, "intermediate_size": 9216, "head_dim": 128,
        "vocab_size": 200064, "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
        "num_local_experts": 32, "num_experts_per_tok": 2, "attn_type_list": ([0] * 7 + [1]) * 10,
        "shared_intermediate_size": 0, "tie_word_embeddings": False,
    },
    "qwen3-next": {
        "architectures": ["Qwen3NextForCausalLM"], "hidden_size": 2048, "head_dim": 256, "vocab_size": 151936,
        "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 512, "num_experts_per_tok": 10,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    },
    "qwen3.5-35b-a3b": {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "text_config": {
            "hidden_size": 2048, "head_dim": 256, "vocab_size": 248320, "num_hidden_layers": 40,
            "num_attention_heads": 16, "num_key_value_heads": 2, "full_attention_interval": 4,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "mamba_ssm_dtype": "float32",
            "mtp_num_hidden_layers": 1,
        },
        "vision_config": {
            "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
            "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
            "out_hidden_size": 2048, "num_heads": 16, "deepstack_visual_indexes": [],
        },
        "tie_word_embeddings": False,
    },
    "deepseek-v4-pro": {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 7168,
        "vocab_size": 129280, "num_hidden_layers": 61, "num_attention_heads": 128, "head_dim": 512,
        "q_lora_rank": 1536, "o_lora_rank": 1024, "o_groups": 16, "qk_rope_head_dim": 64, "index_head_dim": 128,
        "index_n_heads": 64, "index_topk": 1024, "sliding_window": 128, "hc_mult": 4, "n_routed_experts": 384,
        "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 3072,
        "num_nextn_predict_layers": 1, "compress_ratios": [128, 128] + [4, 128] * 29 + [4, 0],
    },
    "mimo-v2-flash": {
        "architectures": ["MiMoV2FlashForCausalLM"], "hidden_size": 4096, "intermediate_size": 16384,
        "vocab_size": 152576, "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 192, "v_head_dim": 128, "sliding_window": 128, "swa_num_attention_heads": 64,
        "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128,
        "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0], "moe_layer_freq": [0] + [1] * 47,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8,
        "add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False,
    },
    "step-3.7-flash": {
        "architectures": ["Step3p7FlashForCausalLM"], "hidden_size": 4096, "intermediate_size": 11264,
        "vocab_size": 128896, "num_hidden_layers": 45, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "sliding_window": 512, "first_k_dense_replace": 3, "num_experts": 288,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1280, "share_expert_dim": 1280,
        "num_nextn_predict_layers": 3,
        "layer_types": ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(45)],
    },
    "minimax-m3": {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "text_config": {
            "hidden_size": 6144, "intermediate_size": 3072, "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072, "num_hidden_layers": 60, "num_attention_heads": 64,
            "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 200064, "num_local_experts": 128,
            "num_experts_per_tok": 4, "n_shared_experts": 1, "use_qk_norm": True,
            "moe_layer_freq": [0] * 3 + [1] * 57,
            "sparse_attention_config": {
                "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
                "sparse_block_size": 128, "sparse_attention_freq": [0] * 3 + [1] * 57,
            },
        },
        "vision_config": {
            "hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14,
            "num_attention_heads": 16,
        },
        "img_token_compression_config": {"spatial_merge_size": 2, "temporal_patch_size": 2},
        "projector_hidden_size": 6144,
    },
    "kimi-k3": {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 7168, "intermediate_size": 33792, "vocab_size": 163840, "num_hidden_layers": 93,
            "num_attention_heads": 96, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_output_gate": True, "num_experts": 896,
            "num_experts_per_token": 16, "num_shared_experts": 2, "moe_intermediate_size": 3072,
            "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "first_k_dense_replace": 1,
            "attn_res_block_size": 12,
            "linear_attn_config": {
                "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
                "kda_layers": [i for i in range(1, 93) if i % 4],
                "full_attn_layers": [*range(4, 93, 4), 93],
            },
        },
        "vision_config": {
            "vt_hidden_size": 1024, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4096, "qkv_hidden_size": 1536,
            "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64,
            "mm_projector_type": "patchmergerv2",
        },
    },
}  # fmt: skip

#: Llama-3.3-Nemotron-Super-49B: (query heads per KV head, 0 for no attention; MLP multiple), times layers.
NAS_49B = [
    ((8, 2.625), 1), ((8, 5.25), 5), ((0, 2.625), 2), ((8, 5.25), 3), ((0, 3.28125), 1), ((8, 5.25), 30),
    ((0, 1.3125), 1), ((0, 2.625), 2), ((0, 1.3125), 1), ((0, 5.25), 1), ((0, 1.3125), 1), ((0, 2.625), 1),
    ((0, 1.3125), 3), ((8, 5.25), 1), ((0, 1.3125), 1), ((0, 1.0), 2), ((0, 1.3125), 1), ((0, 1.0), 3),
    ((0, 1.3125), 2), ((0, 0.5), 2), ((0, 1.0), 2), ((0, 0.5), 2), ((0, 1.0), 1), ((0, 0.5), 2), ((8, 5.25), 9),
]  # fmt: skip


def nas_49b() -> dict[str, Any]:
    blocks = [
        {
            "attention": {"no_op": group == 0, "n_heads_in_group": group or None, "replace_with_linear": False},
            "ffn": {"no_op": False, "ffn_mult": multiple, "replace_with_linear": False},
        }
        for (group, multiple), count in NAS_49B
        for _ in range(count)
    ]
    return {
        "architectures": ["DeciLMForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "vocab_size": 128256, "tie_word_embeddings": False, "block_configs": blocks,
    }  # fmt: skip


def build(name: str, **changes: Any) -> Model:
    return model_from_config(copy.deepcopy(CONFIGS[name]) | changes, model_id=name)


def mixers(model: Model, kind: type) -> list[Any]:
    return [mixer for mixer in model.mixers() if isinstance(mixer, kind)]


@pytest.mark.parametrize(
    ("name", "published", "not_counted_here"),
    [
        ("mamba-2.8b", 2_768_345_600, 0),
        ("falcon-mamba-7b", 7_272_665_088, 0),
        ("jamba-v0.1", 51_570_323_328, 0),
        ("nemotron-h-56b", 56_324_350_464, 0),
        ("granite-4.0-h-small", 32_207_337_984, 0),
        ("minimax-m1", 456_089_655_296, 0),
        # the hub counts one routing bias per expert: 57 layers x 128
        ("minimax-m3", 427_040_140_160, 57 * 128),
        # 92 x 896 routing biases, and 2,208 = 69 x 32 numbers not accounted for
        ("kimi-k3", 2_779_931_837_184, 92 * 896 + 69 * 32),
    ],
)
def test_parameters_are_the_published_total(name: str, published: int, not_counted_here: int) -> None:
    assert build(name).total_params == published - not_counted_here


@pytest.mark.parametrize(
    ("name", "published", "not_counted_here"),
    [
        ("nemotron-3-super", 123_611_012_096, 0),
        ("qwen3.5-35b-a3b", 35_951_822_704, 0),
        # three layers route by a table of 6 experts for each of 129,280 tokens; the other 58 and the
        # prediction module have a routing bias per expert
        ("deepseek-v4-pro", 1_598_839_674_782, 3 * 129_280 * 6 + 59 * 384),
        ("step-3.7-flash", 201_365_316_160, 42 * 288),
    ],
)
def test_with_prediction_modules_parameters_are_the_published_total(
    name: str, published: int, not_counted_here: int
) -> None:
    model = build(name)
    assert model.total_params + model.params_by_component()[Component.MTP] == published - not_counted_here


@pytest.mark.parametrize(
    ("name", "params"),
    [
        # as transformers 5 counts them on the meta device, prediction modules left out
        ("qwen3-next", 79_674_391_296),
        ("qwen3.5-35b-a3b", 35_107_181_936),
        ("nemotron-3-super", 120_668_687_360),
        ("deepseek-v4-pro", 1_572_997_179_491),
        ("mimo-v2-flash", 308_778_768_832),
    ],
)
def test_parameters_are_those_of_the_instantiated_model(name: str, params: int) -> None:
    assert build(name).total_params == params


def test_nemotron_nas_49b_has_the_published_total() -> None:
    model = model_from_config(nas_49b(), model_id="nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    assert model.total_params == 49_867_145_216
    assert len(mixers(model, Attention)) == 49  # 31 of 80 layers have no attention, hence no KV cache
    assert {m.num_kv_heads for m in mixers(model, Attention)} == {8}  # 64 / 8


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # the names that publishers give: Qwen3-Next-80B-A3B, Granite H-Small 32B-A9B, 120B-A12B, 1.6T-A49B
        ("qwen3-next", 3.9),
        ("granite-4.0-h-small", 9.0),
        ("nemotron-3-super", 12.8),
        ("deepseek-v4-pro", 49.8),
        ("minimax-m1", 48.4),
    ],
)
def test_active_parameters_are_about_what_the_name_says(name: str, billions: float) -> None:
    assert build(name).active_params / 1e9 == pytest.approx(billions, abs=0.4)


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_one_kind_are_one_object(name: str) -> None:
    layers = build(name).layers
    assert (
        len({id(layer) for layer in layers}) == len({(layer.weights, layer.mixer, layer.moe) for layer in layers}) <= 4
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_names_are_unique_within_a_layer(name: str) -> None:
    for layer in set(build(name).layers):
        names = [w.name for w in layer.weights]
        assert len(names) == len(set(names))


#: Layers with a state, elements of its convolution and of the state itself, and its dtype; None: the model's.
STATES = [
    # 5120 channels x (4 - 1); 5120 x 16
    ("mamba-2.8b", 64, 15_360, 81_920, None),
    # (128 x 64 + 2 x 8 x 128) x 3 = 10,240 x 3; 128 heads x 64 x 128; fp32 as the config asks
    ("nemotron-3-super", 40, 30_720, 1_048_576, "fp32"),
    # (2 x 16 x 128 + 32 x 128) x 3 = 8192 x 3; 32 value heads x 128 x 128; "mamba_ssm_dtype" is given in Qwen3.5 alone
    ("qwen3-next", 36, 24_576, 524_288, None),
    ("qwen3.5-35b-a3b", 30, 24_576, 524_288, "fp32"),
    # q, k and v of 96 x 128 each, x 3; 96 x 128 x 128
    ("kimi-k3", 69, 3 * 12_288 * 3, 1_572_864, "fp32"),
    # lightning attention: no convolution; 64 heads x 128 x 128
    ("minimax-m1", 70, 0, 1_048_576, None),
]


@pytest.mark.parametrize(("name", "layers", "convolution", "recurrent", "dtype"), STATES)
def test_states(name: str, layers: int, convolution: int, recurrent: int, dtype: str | None) -> None:
    states = mixers(build(name), StateMixer)
    assert len(states) == layers
    assert (states[0].conv_elements, states[0].recurrent_elements) == (convolution, recurrent)
    assert states[0].recurrent_dtype == dtype


def test_mamba2_shares_its_state_by_heads() -> None:
    assert mixers(build("nemotron-3-super"), StateMixer)[0].num_heads == 128


def test_an_unknown_state_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="mamba_ssm_cache_dtype"):
        build("nemotron-3-super", mamba_ssm_cache_dtype="float8")


def test_which_layers_keep_a_kv_cache() -> None:
    assert len(mixers(build("jamba-v0.1"), Attention)) == 4  # one in eight of 32
    assert len(mixers(build("nemotron-h-56b"), Attention)) == 10
    assert len(mixers(build("granite-4.0-h-small"), Attention)) == 4
    assert len(mixers(build("qwen3-next"), Attention)) == 12
    assert len(mixers(build("mamba-2.8b"), Attention)) == 0
    kimi = build("kimi-k3")
    assert len(mixers(kimi, LatentAttention)) == 24
    assert mixers(kimi, LatentAttention)[0].kv_elements_per_token == 512 + 64


def test_jamba_places_attention_and_experts_by_period_and_offset() -> None:
    layers = build("jamba-v0.1").layers
    assert [i for i, layer in enumerate(layers) if isinstance(layer.mixer, Attention)] == [4, 12, 20, 28]
    assert [i for i, layer in enumerate(layers) if layer.moe] == list(range(1, 32, 2))


def test_deepseek_v4_compresses_by_layer() -> None:
    attention = mixers(build("deepseek-v4-pro"), CompressedAttention)
    assert [m.compress_ratio for m in attention[:4]] == [128, 128, 4, 128]
    assert {m.window for m in attention} == {128}
    # only the fine compression has an indexer that picks 1024 rows
    assert {m.compress_ratio: m.indexer.top_k if m.indexer else None for m in attention} == {128: None, 4: 1024}


def test_mimo_keys_are_wider_than_values() -> None:
    full, sliding = (build("mimo-v2-flash").layers[i].mixer for i in (0, 1))
    assert isinstance(full, Attention) and isinstance(sliding, Attention)
    assert full.kv_elements_per_token == 4 * (192 + 128)
    assert sliding.kv_elements_per_token == 8 * (192 + 128)
    assert (full.window, sliding.window) == (None, 128)


def test_mimo_drafts_with_a_dense_sliding_layer() -> None:
    """``MiMoV2MTPLayer`` of vLLM 0.32: the sliding layers' attention and sinks, an MLP, ``eh_proj`` and five norms."""
    model = build("mimo-v2-flash")
    heads = 64 * 192 + 8 * (192 + 128) + 64 * 128
    assert sum(w.params for w in model.mtp) == 4096 * (heads + 3 * 16384 + 2 * 4096 + 5) + 64
    assert module_mixer(model) == model.layers[1].mixer


def test_minimax_m3_reads_sixteen_blocks_of_128_tokens() -> None:
    attention = mixers(build("minimax-m3"), Attention)
    assert [m.indexer is None for m in attention[:4]] == [True, True, True, False]
    assert attention[3].indexer.top_k == 16 * 128


def test_step_takes_the_heads_of_sliding_layers_from_the_config_where_they_are_given() -> None:
    other = {"attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 8}
    told = build("step-3.7-flash", attention_other_setting=other)
    assert told.total_params == build("step-3.7-flash").total_params
    assert {m.num_heads: m.window for m in mixers(told, Attention)} == {64: None, 96: 512}


@pytest.mark.parametrize(
    ("name", "change", "names"),
    [
        ("nemotron-h-56b", {"hybrid_override_pattern": "MX" * 59}, "hybrid_override_pattern"),
        ("nemotron-h-56b", {"hybrid_override_pattern": "M-" * 10}, "num_hidden_layers"),
        ("granite-4.0-h-small", {"layer_types": ["rwkv"] * 40}, "layer_types"),
        ("deepseek-v4-pro", {"compress_ratios": [4]}, "compress_ratios"),
        ("minimax-m1", {"shared_intermediate_size": 9216}, "shared_intermediate_size"),
        ("mimo-v2-flash", {"moe_layer_freq": None}, "moe_layer_freq"),
    ],
)
def test_a_config_that_is_not_understood_is_refused_by_key(name: str, change: dict[str, Any], names: str) -> None:
    with pytest.raises(UnsupportedModelError, match=names) as refused:
        build(name, **change)
    assert refused.value.hint


def test_nas_blocks_that_are_not_understood_are_refused() -> None:
    config = nas_49b()
    config["block_configs"][0]["attention"]["replace_with_linear"] = True
    with pytest.raises(UnsupportedModelError, match="replace_with_linear"):
        model_from_config(config, model_id="nas")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 5), st.floats(), st.text(max_size=4), st.lists(st.integers(-1, 4)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_is_refused_and_never_crashes(data: st.DataObject) -> None:
    """Any one value of any config replaced by junk: a model, or a refusal with a hint."""
    name = data.draw(st.sampled_from(sorted(CONFIGS)))
    config = copy.deepcopy(CONFIGS[name])
    holder = config
    key = data.draw(st.sampled_from(sorted(k for k in config if k != "architectures")))
    while isinstance(holder[key], dict) and data.draw(st.booleans()):
        holder = holder[key]
        key = data.draw(st.sampled_from(sorted(holder)))
    holder[key] = data.draw(JUNK)
    try:
        model = model_from_config(config, model_id=name)
    except UnsupportedModelError as refused:
        assert refused.hint
    else:
        assert model.total_params > 0
