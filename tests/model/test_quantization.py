"""Quantised weights: bytes against published checkpoints, every form of configuration, names, and properties."""

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import IllegalPlanError, InputError, UnsupportedModelError
from planner.model.architecture import Component, Model
from planner.model.build import model_from_config
from planner.model.config import Config
from planner.model.precision import (
    BF16,
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_STATIC,
    FP8_TENSOR,
    FP16,
    MXFP4,
    MXFP8,
    NVFP4,
    WEIGHT_DTYPES,
    Precision,
    Quantization,
    canonical,
    int4,
    rules,
    weight_only,
)
from planner.model.quantization import as_quantized, load_quantized, read_quantization

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA_405B = LLAMA_70B | {
    "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128,
}  # fmt: skip
QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"], "hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_nextn_predict_layers": 1,
    "vocab_size": 129280, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    "quantization_config": {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
    },
}  # fmt: skip


def gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880,
        "intermediate_size": 2880, "num_hidden_layers": layers, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "num_local_experts": experts, "num_experts_per_tok": 4,
        "sliding_window": 128, "attention_bias": True, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
            ],
        },
    }  # fmt: skip


def build(config: dict[str, Any], quantization: dict[str, Any] | None = None, **changes: Any) -> Model:
    config = config | changes
    if quantization is not None:
        config = config | {"quantization_config": quantization}
    return model_from_config(config, model_id="a/model", sidecar=None)


def read(quantization: dict[str, Any] | None, *, sidecar: dict[str, Any] | None = None, **config: Any) -> Quantization:
    values = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, **config}
    if quantization is not None:
        values["quantization_config"] = quantization
    return read_quantization(Config(values, model_id="a/model"), base=BF16, sidecar=sidecar)


def stored(model: Model, *, mtp: bool = False) -> dict[str, tuple[int, int, int]]:
    """(values, scales, bytes) of all weights by precision."""
    sums: dict[str, tuple[int, int, int]] = {}
    paths = [(f"{model.layer_prefix}{i}.{w.name}", w) for i, layer in enumerate(model.layers) for w in layer.weights]
    paths += [(w.name, w) for w in (*model.outer, *model.vision, *(model.mtp if mtp else ()))]
    for path, weight in paths:
        expert = weight.component is Component.ROUTED_EXPERT
        precision = model.quantization.precision_of(path, linear=weight.linear, routed_expert=expert)
        values, scales, num_bytes = sums.get(precision.name, (0, 0, 0))
        sums[precision.name] = (
            values + weight.params,
            scales + weight.copies * precision.scales(weight.shape),
            num_bytes + precision.stored_bytes(weight.shape, weight.copies),
        )
    return sums


def total_bytes(model: Model, *, mtp: bool = False) -> int:
    return sum(num_bytes for _, _, num_bytes in stored(model, mtp=mtp).values())


@pytest.mark.parametrize(
    ("precision", "shape", "num_bytes"),
    [
        (BF16, (4096, 4096), 33_554_432),
        # 56 x 5 blocks: 576 rows are 4.5 blocks of 128, and half a block has a scale of its own
        (FP8_BLOCK, (576, 7168), 576 * 7168 + 5 * 56 * 4),
        (FP8_TENSOR, (576, 7168), 576 * 7168 + 4),
        (FP8_STATIC, (576, 7168), 576 * 7168 + 4 + 4),
        (FP8_CHANNEL, (576, 7168), 576 * 7168 + 576 * 4),
        (MXFP8, (100, 64), 6400 + 100 * 2),
        (MXFP4, (5760, 2880), 5760 * 2880 // 2 + 5760 * 90),  # 4.25 bits
        (NVFP4, (1024, 4096), 1024 * 4096 // 2 + 1024 * 256 + 8),  # 4.5 bits and two 32-bit scales
        (weight_only(NVFP4, BF16), (1024, 4096), 1024 * 4096 // 2 + 1024 * 256 + 4),
        # scales of 16 bits and zero points of 4 per 128 inputs: 28 groups of 3584 inputs
        (int4("int4-awq", FP16, zero_bits=4), (512, 3584), 512 * 1792 + 512 * 28 * 2 + 512 * 28 // 2),
        # the same, and a 32-bit group index for each input
        (
            int4("int4-gptq", FP16, zero_bits=4, index_bytes=4),
            (512, 3584),
            512 * 1792 + 512 * 28 * 2 + 512 * 28 // 2 + 3584 * 4,
        ),
        (MXFP4, (64,), 32),  # a vector has no scales
    ],
)
def test_bytes_of_one_matrix(precision: Precision, shape: tuple[int, ...], num_bytes: int) -> None:
    assert precision.stored_bytes(shape) == num_bytes
    assert precision.stored_bytes(shape, copies=7) == 7 * num_bytes


def test_deepseek_v3_is_the_published_checkpoint_by_dtype() -> None:
    """Headers at revision afb92e1: BF16 3,918,786,560, F8_E4M3 680,571,043,840, F32 41,555,600; prediction included."""
    sums = stored(build(DEEPSEEK_V3), mtp=True)
    assert sums["bf16"][0] == 3_918_786_560
    assert sums["fp8"][0] == 680_571_043_840
    routing_biases = 59 * 256  # 58 MoE layers and the prediction layer; buffers, not counted as weights
    assert sums["fp8"][1] + routing_biases == 41_555_600
    total = sum(num_bytes for _, _, num_bytes in sums.values())
    assert total + 4 * routing_biases == 688_574_839_360


@pytest.mark.parametrize(
    ("layers", "experts", "published_bytes"), [(36, 128, 65_248_815_744), (24, 32, 13_761_264_768)]
)
def test_gpt_oss_is_the_published_size(layers: int, experts: int, published_bytes: int) -> None:
    model = build(gpt_oss(layers, experts))
    assert total_bytes(model) == published_bytes
    assert model.quantization.weight_dtype == "mxfp4"


def test_llama_70b_fp8_dynamic_is_the_published_size() -> None:
    """RedHatAI's FP8-dynamic: 16-bit embeddings and lm_head, 8-bit layers, a 16-bit scale per output channel."""
    assert total_bytes(as_quantized(build(LLAMA_70B), "fp8")) == 72_669_806_592


def test_llama_405b_fbgemm_has_the_published_scales() -> None:
    """The hub counts 15,237,120 numbers beyond the weights: 124 layers x (2 x 53248 + 16384) row scales."""
    model = build(LLAMA_405B, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0})
    values, scales, _ = stored(model)["fp8"]
    assert scales == 15_237_120 == 405_868_625_920 - 405_853_388_800
    assert values == 124 * 3 * 53248 * 16384
    assert any("16-bit" in note for note in model.quantization.notes)


def test_qwen3_32b_fp8_has_the_published_scales() -> None:
    model = build(QWEN3_32B, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})
    assert stored(model)["fp8"][1] == 32_764_027_904 - 32_762_123_264  # hub total, with scales, minus weights


def test_qwen3_coder_480b_fp8_has_the_published_scales() -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 6144, "intermediate_size": 8192, "head_dim": 128,
        "moe_intermediate_size": 2560, "num_hidden_layers": 62, "num_attention_heads": 96, "num_key_value_heads": 8,
        "num_experts": 160, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": 151936, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
    model = build(config, block)
    assert model.total_params == 480_154_875_392
    assert stored(model)["fp8"][1] == 480_184_064_000 - 480_154_875_392


def test_qwen3_6_27b_nvfp4_mixes_as_the_published_total_says() -> None:
    """The hub counts a packed pair of 4-bit values once, scales not: 18,164,649,200."""
    text = {
        "hidden_size": 5120, "intermediate_size": 17408, "head_dim": 256, "vocab_size": 248320,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "full_attention_interval": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    }  # fmt: skip
    vision = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "patch_size": 16,
        "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304, "out_hidden_size": 5120,
        "num_heads": 16,
    }  # fmt: skip
    fp8, nvfp4 = {"quant_algo": "FP8"}, {"quant_algo": "W4A16_NVFP4", "group_size": 16}
    layers: dict[str, Any] = {"lm_head": nvfp4}
    for i in range(64):
        prefix = f"model.language_model.layers.{i}."
        full = (i + 1) % 4 == 0
        mixer = "self_attn." if full else "linear_attn."
        names = ("q_proj", "k_proj", "v_proj", "o_proj") if full else ("in_proj_qkv", "in_proj_z", "out_proj")
        layers |= {prefix + mixer + name: fp8 for name in names}
        layers |= {f"{prefix}mlp.{name}": nvfp4 for name in ("gate_proj", "up_proj", "down_proj")}
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": text, "vision_config": vision,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    sidecar = {
        "quantization": {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8", "quantized_layers": layers}
    }
    model = model_from_config(config, model_id="nvidia/Qwen3.6-27B-NVFP4", sidecar=sidecar)
    sums = stored(model)
    assert sum(values // 2 if name == "nvfp4" else values for name, (values, _, _) in sums.items()) == 18_164_649_200
    assert (model.quantization.weight_dtype, model.quantization.kv_cache_dtype) == ("nvfp4", "fp8")
    head = model.quantization.precision_of("lm_head", linear=True)
    assert (head.name, head.compute_dtype) == ("nvfp4", "bf16")  # weight-only: 16-bit activations


Q_PROJ, EXPERT = "model.layers.2.self_attn.q_proj", "model.layers.2.mlp.experts.0.up_proj"


def of(quantization: Quantization, path: str = Q_PROJ) -> Precision:
    return quantization.precision_of(path, linear=True, routed_expert=".experts." in path)


def test_no_quantization_means_the_base() -> None:
    quantization = read(None)
    assert (quantization.method, quantization.weight_dtype, of(quantization)) == (None, "bf16", BF16)


@pytest.mark.parametrize(
    ("block", "weight_dtype", "precision"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8", FP8_BLOCK),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8", FP8_STATIC),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8", FP8_TENSOR),
        ({"quant_method": "mxfp8"}, "mxfp8", MXFP8),
        ({"quant_algo": "FP8", "ignore": ["lm_head"]}, "fp8", FP8_STATIC),  # a legacy modelopt dictionary
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, "nvfp4", NVFP4),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, "fp8", FP8_BLOCK),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True},
            "int4-awq",
            Precision("int4-awq", 4, "bf16", 2, (1, 128), zero_bits=4),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True},
            "int8-gptq",
            Precision("int8-gptq", 8, "bf16", 2, (1, 0), zero_bits=8, index_bytes=4),
        ),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", Precision("int4", 4, "bf16", 4, (1, 64))),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            "mxfp4",
            weight_only(MXFP4, BF16),
        ),
        (
            {
                "quant_method": "quark",
                "global_quant_config": {
                    "weight": {"dtype": "fp4", "group_size": 32},
                    "input_tensors": {"dtype": "fp4", "is_dynamic": True},
                },
            },
            "mxfp4",
            MXFP4,
        ),
    ],
)
def test_forms(block: dict[str, Any], weight_dtype: str, precision: Precision) -> None:
    quantization = read(block)
    assert quantization.weight_dtype == weight_dtype
    assert of(quantization) == precision
    assert of(quantization, "lm_head") is BF16
    assert of(quantization, "model.layers.2.mlp.gate") is BF16  # a router


def group(bits: int, kind: str, *, activations: dict[str, Any] | None = None, **weights: Any) -> dict[str, Any]:
    scheme = {"weights": {"num_bits": bits, "type": kind, **weights}, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"targets": ["Linear"], **scheme}}}


@pytest.mark.parametrize(
    ("block", "name", "scale_group", "compute"),
    [
        (group(8, "float", strategy="channel", activations={"dynamic": True}), "fp8", (1, 0), "fp8"),
        (group(8, "float", strategy="tensor", activations={"dynamic": False}), "fp8", (0, 0), "fp8"),
        (group(8, "float", strategy="block", block_structure=[128, 128], activations={"dynamic": True}), "fp8",
         (128, 128), "fp8"),
        (group(8, "float", strategy="channel"), "fp8", (1, 0), "bf16"),
        (group(4, "int", strategy="group", group_size=32, symmetric=True), "int4", (1, 32), "bf16"),
        (group(8, "int", strategy="channel", activations={"dynamic": True}), "int8-gptq", (1, 0), "int8"),
        (group(4, "float", group_size=32, strategy="group"), "mxfp4", (1, 32), "bf16"),
        (group(4, "float", group_size=16, activations={"dynamic": False}), "nvfp4", (1, 16), "fp4"),
    ],
)  # fmt: skip
def test_compressed_tensors(block: dict[str, Any], name: str, scale_group: tuple[int, int], compute: str) -> None:
    precision = of(read(block))
    assert (precision.name, precision.group, precision.compute_dtype) == (name, scale_group, compute)


def test_compressed_tensors_groups_with_targets_of_their_own() -> None:
    block = group(4, "float", group_size=16, activations={"dynamic": False})
    eight = {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}
    block["config_groups"]["group_1"] = eight | {"input_activations": {"dynamic": True}}
    quantization = read(block)
    assert of(quantization).name == "fp8"
    assert of(quantization, "model.layers.0.mlp.up_proj").name == "nvfp4"


def test_quark_exceptions_by_name_and_an_fp8_cache() -> None:
    fp4, fp8 = (
        {"weight": {"dtype": "fp4", "group_size": 32}},
        {"weight": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
    )
    block = {
        "quant_method": "quark", "global_quant_config": fp4, "layer_quant_config": {"*self_attn*": fp8},
        "exclude": ["lm_head", "*down_proj"], "export": {"kv_cache_group": ["*k_proj", "*v_proj"]},
    }  # fmt: skip
    quantization = read(block)
    assert of(quantization).name == "fp8"
    assert of(quantization, "model.layers.1.mlp.up_proj").name == "mxfp4"
    assert of(quantization, "model.layers.1.mlp.down_proj") is BF16
    assert quantization.kv_cache_dtype == "fp8"


def test_gpt_oss_quantises_experts_only_and_multiplies_in_16_bits() -> None:
    quantization = read(gpt_oss(4, 32)["quantization_config"])
    assert of(quantization) is BF16
    assert (of(quantization, EXPERT).name, of(quantization, EXPERT).compute_dtype) == ("mxfp4", "bf16")


def test_deepseek_v4_has_fp4_experts_and_one_byte_scales() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
    told = read(block, expert_dtype="fp4")
    assert told.weight_dtype == "fp4-experts+fp8"
    assert of(told, "layers.3.attn.wq_b") == Precision("fp8", 8, "fp8", 1, (128, 128))
    assert of(told, "layers.3.ffn.experts.0.w1") == MXFP4
    assert of(told, "layers.3.attn.compressor.wkv") is BF16
    # vLLM takes fp4 where a DeepSeek-V4 config leaves expert_dtype out
    assert read(block, model_type="deepseek_v4").weight_dtype == "fp4-experts+fp8"
    assert read(block, expert_dtype="fp8", model_type="deepseek_v4").weight_dtype == "fp8"
    assert read(block).weight_dtype == "fp8"


def test_nvidia_deepseek_v4_requantises_the_listed_experts_only() -> None:
    """There ``ignore`` says what was left in DeepSeek's own form, not what is 16-bit."""
    block = {
        "quant_method": "fp8", "weight_block_size": [128, 128], "moe_quant_algo": "NVFP4",
        "ignore": ["*.attn.*", "mtp.*"], "quantized_layers": {"layers.0.ffn.experts": {"quant_algo": "NVFP4"}},
    }  # fmt: skip
    quantization = read(block, expert_dtype="fp4")
    assert of(quantization, "layers.0.ffn.experts.0.w1") == NVFP4
    assert of(quantization, "mtp.0.ffn.experts.0.w1") == MXFP4
    assert of(quantization, "layers.0.attn.wq_b").name == "fp8"
    assert quantization.weight_dtype == "nvfp4"


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({"quant_method": "fp8", "kv_cache_scheme": "static"}, "fp8"),
        ({"quant_method": "fp8"}, None),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": None}, None),
        (group(8, "float", strategy="tensor") | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
    ],
)
def test_kv_cache_dtype_that_the_checkpoint_has_scales_for(block: dict[str, Any], expected: str | None) -> None:
    assert read(block).kv_cache_dtype == expected


def test_where_a_quantization_may_stand() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    sidecar = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]},
    }
    assert read(None, sidecar=sidecar).weight_dtype == "nvfp4"
    assert read(block, sidecar=sidecar).weight_dtype == "fp8"  # config.json first
    assert read(None, text_config={"quantization_config": block}).weight_dtype == "fp8"
    assert read(None, sidecar={"quantization": {"quant_algo": None}}).method is None


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'aqlm'") as refused:
        read({"quant_method": "aqlm"})
    assert "awq" in refused.value.hint


@pytest.mark.parametrize(
    "block",
    [
        group(3, "int", strategy="group"),
        {"quant_method": "compressed-tensors"},
        {"quant_method": "modelopt", "quant_algo": "W1A1"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "quark"},
        {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int3"}}},
        group(4, "int") | {"ignore": ["re:["]},
        {"quant_method": "gptq", "bits": 16},
        {"quant_method": "awq", "bits": 3},
        {},
    ],
)
def test_what_is_not_understood_is_refused(block: dict[str, Any]) -> None:
    if not block:  # an empty dictionary says nothing, so nothing is quantised
        assert read(block).method is None
        return
    with pytest.raises(UnsupportedModelError) as refused:
        read(block)
    assert refused.value.hint


def test_canonical_names_drop_wrappers_and_indices() -> None:
    assert canonical("model.language_model.layers.7.mlp.experts.3.up_proj") == ("layers.#.mlp.experts.up_proj", 7)
    assert canonical("language_model.model.layers.10.self_attn") == ("layers.#.self_attn", 10)
    assert canonical("backbone.layers.0.mixer.in_proj") == ("layers.#.mixer.in_proj", 0)
    assert canonical("lm_head") == ("lm_head", None)
    assert canonical("model.visual.blocks.3.attn") == ("visual.blocks.#.attn", 3)
    assert canonical("layers.1.mlp.shared_experts.up_proj") == ("layers.#.mlp.shared_experts.up_proj", 1)


@pytest.mark.parametrize(
    ("listed", "kept", "quantised"),
    [
        ("gate", ["model.layers.0.mlp.gate"], ["model.layers.0.mlp.gate_proj"]),
        ("model.layers.0.mlp", ["model.layers.0.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
        ("model.layers.1*", ["model.layers.1.mlp.up_proj", "model.layers.12.mlp.up_proj"],
         ["model.layers.2.mlp.up_proj"]),
        ("model.layers.1.*", ["model.layers.1.mlp.up_proj"], ["model.layers.12.mlp.up_proj"]),
        ("model.layers.*.self_attn", ["model.layers.3.self_attn.o_proj"], ["model.layers.3.mlp.up_proj"]),
        ("*mlp.shared_experts*", ["model.layers.3.mlp.shared_experts.up_proj"],
         ["model.layers.3.mlp.experts.0.up_proj"]),
        ("language_model.model.layers.5.self_attn.q_proj", ["model.language_model.layers.5.self_attn.q_proj"],
         ["model.language_model.layers.5.self_attn.k_proj"]),
        ("model.layers.5.self_attn.qkv_proj", ["model.layers.5.self_attn.k_proj"], ["model.layers.5.self_attn.o_proj"]),
        ("model.layers.2.mlp.experts.17.down_proj", ["model.layers.2.mlp.experts.0.down_proj"],
         ["model.layers.2.mlp.experts.0.up_proj"]),
        (r"re:.*mlp\.(gate|up)_proj.*", ["model.layers.0.mlp.up_proj"], ["model.layers.0.mlp.down_proj"]),
        (r"re:.*layers\.(0|7)\..*", ["model.layers.7.mlp.up_proj"], ["model.layers.8.mlp.up_proj"]),
        ("mtp*", ["mtp.layers.0.mlp.up_proj"], ["model.layers.0.mlp.up_proj"]),
    ],
)  # fmt: skip
def test_what_an_exclusion_means(listed: str, kept: list[str], quantised: list[str]) -> None:
    quantization = Quantization("fp8", BF16, "fp8", FP8_BLOCK, rules=rules([listed], None))
    assert {of(quantization, path) for path in kept} == {BF16}
    assert {of(quantization, path) for path in quantised} == {FP8_BLOCK}


def test_a_list_that_names_every_layer_is_one_rule() -> None:
    listed = [f"model.layers.{i}.mlp.experts.{e}.w1" for i in range(60) for e in range(64)]
    (rule,) = rules(listed, NVFP4)
    assert rule.layers == frozenset(range(60))


def test_what_vllm_holds_in_32_bits() -> None:
    quantization = read(None)
    assert quantization.precision_of("model.layers.0.linear_attn.A_log", linear=False).name == "fp32"
    assert quantization.precision_of("model.layers.0.linear_attn.dt_bias", linear=False) is BF16


@settings(max_examples=60, deadline=None)
@given(
    kept=st.sets(st.integers(0, 30), max_size=6),
    globbed=st.integers(0, 3),
    expression=st.sampled_from(["re:.*o_proj", r"re:.*layers\.[1-3]\..*", "re:lm_head"]),
)
def test_equal_variants_have_equal_precisions(kept: set[int], globbed: int, expression: str) -> None:
    listed = [f"model.layers.{i}.mlp.up_proj" for i in kept] + [f"model.layers.{globbed}*", expression]
    quantization = Quantization("fp8", BF16, "fp8", FP8_BLOCK, rules=rules(listed, None))
    names = ("mlp.up_proj", "mlp.down_proj", "self_attn.o_proj")
    by_variant: dict[Any, tuple[Precision, ...]] = {}
    for i in range(31):
        precisions = tuple(of(quantization, f"model.layers.{i}.{name}") for name in names)
        assert by_variant.setdefault(quantization.variant(i), precisions) == precisions


def test_fp8_at_load_time_quantises_linear_weights_of_layers_only() -> None:
    model = load_quantized(build(LLAMA_70B), "fp8")
    sums = stored(model)
    norms = (2 * 80 + 1) * 8192
    assert sums["bf16"][0] == 2 * 128256 * 8192 + norms
    values = 80 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192)
    assert sums["fp8"] == (values, 80 * 7, values + 80 * 7 * 4)  # one 32-bit scale per matrix
    assert (model.quantization.weight_dtype, model.quantization.method) == ("fp8", "fp8")


@pytest.mark.parametrize(
    ("method", "weight_dtype"),
    [("ptpc_fp8", "fp8"), ("fp8_per_block", "fp8"), ("mxfp8", "mxfp8"), ("mxfp4", "mxfp4"), ("experts_int8", "bf16")],
)
def test_other_methods_at_load_time(method: str, weight_dtype: str) -> None:
    quantization = load_quantized(build(LLAMA_70B), method).quantization
    assert (quantization.weight_dtype, quantization.method) == (weight_dtype, method)


#: ``_ONLINE_SHORTHANDS`` of config/quantization.py and ``get_quant_method`` of experts_int8.py and ptpc_fp8.py (vLLM
#: 0.14.0, 0.32.0): bits of linear weights and of routed experts.
@pytest.mark.parametrize(
    ("method", "linear", "expert"),
    [
        ("fp8_per_tensor", 8, 8), ("fp8_per_channel", 8, 8), ("mxfp4", 4, 4), ("ptpc_fp8", 8, 16),
        ("int8_per_channel_weight_only", 16, 8), ("experts_int8", 16, 8), ("nvfp4_per_token", 16, 4),
    ],
)  # fmt: skip
def test_load_time_quantises_what_vllm_quantises(method: str, linear: int, expert: int) -> None:
    quantization = load_quantized(as_quantized(build(DEEPSEEK_V3), "bf16"), method).quantization
    assert of(quantization, "model.layers.5.self_attn.o_proj").bits == linear
    assert of(quantization, "model.layers.5.mlp.shared_experts.up_proj").bits == linear
    assert of(quantization, "model.layers.5.mlp.experts.0.up_proj").bits == expert


@pytest.mark.parametrize("method", ["int8_per_channel_weight_only", "experts_int8", "nvfp4_per_token"])
def test_a_dense_model_stays_as_it_is_where_experts_alone_are_quantised(method: str) -> None:
    dense = build(LLAMA_70B)
    assert stored(load_quantized(dense, method)) == stored(dense)


def test_load_time_on_a_quantised_checkpoint() -> None:
    gptq = build(LLAMA_70B, {"quant_method": "gptq", "bits": 4, "group_size": 128})
    assert load_quantized(gptq, "gptq_marlin") is gptq
    with pytest.raises(IllegalPlanError, match="already quantised with gptq"):
        load_quantized(gptq, "fp8")


@pytest.mark.parametrize("weight_dtype", WEIGHT_DTYPES)
def test_usual_forms(weight_dtype: str) -> None:
    model = as_quantized(build(LLAMA_70B), weight_dtype)
    assert model.quantization.weight_dtype == weight_dtype
    assert model.total_params == 70_553_706_496
    assert as_quantized(model, weight_dtype) is model
    assert as_quantized(model, "bf16").quantization.method is None


def test_usual_form_of_a_mixture_keeps_attention() -> None:
    quantization = as_quantized(build(DEEPSEEK_V3), "mxfp4").quantization
    assert of(quantization, "model.layers.5.self_attn.o_proj") is BF16
    assert of(quantization, "model.layers.5.mlp.experts.0.up_proj") == MXFP4


def test_an_unknown_weight_dtype_is_refused() -> None:
    with pytest.raises(InputError, match="int2") as refused:
        as_quantized(build(LLAMA_70B), "int2")
    assert "nvfp4" in refused.value.hint


def test_fewer_bits_are_fewer_bytes() -> None:
    narrower = ["fp32", "bf16", "mxfp8", "fp8", "nvfp4", "mxfp4"]
    sizes = [total_bytes(as_quantized(build(LLAMA_70B), name)) for name in narrower]
    assert sizes == sorted(sizes, reverse=True)
    # Qwen's GPTQ-Int8 and -Int4 of a 70B: a little over 8 and 4 bits for all but embeddings and lm_head
    gptq8, gptq4, awq = (total_bytes(as_quantized(build(LLAMA_70B), n)) for n in ("int8-gptq", "int4-gptq", "int4-awq"))
    assert gptq8 > gptq4 > awq > 70_553_706_496 // 2


PRECISIONS = [BF16, FP8_BLOCK, FP8_TENSOR, FP8_STATIC, FP8_CHANNEL, MXFP8, MXFP4, NVFP4, int4("int4", BF16, 32)]


@given(
    precision=st.sampled_from(PRECISIONS), rows=st.integers(1, 40), columns=st.integers(1, 40), pieces=st.integers(1, 4)
)
def test_shards_add_up_to_the_whole(precision: Precision, rows: int, columns: int, pieces: int) -> None:
    """Cut along output features at multiples of 128, nothing is lost; only scales of the whole matrix repeat."""
    shape, piece = (128 * rows * pieces, 128 * columns), (128 * rows, 128 * columns)
    per_matrix = 4 * precision.tensor_scales + (precision.scale_bytes if precision.group == (0, 0) else 0)
    assert pieces * precision.stored_bytes(piece) == precision.stored_bytes(shape) + (pieces - 1) * per_matrix


@given(precision=st.sampled_from(PRECISIONS), rows=st.integers(1, 5000), columns=st.integers(1, 5000))
def test_bytes_are_bits_and_an_overhead_that_is_small(precision: Precision, rows: int, columns: int) -> None:
    values_bytes = ceil(rows * columns * precision.bits / 8)
    assert precision.stored_bytes((rows, columns)) >= values_bytes
    wider = precision.stored_bytes((rows, columns + 1)), precision.stored_bytes((rows + 1, columns))
    assert min(wider) >= precision.stored_bytes((rows, columns))


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 200), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
KEYS = [
    "activation_scheme", "weight_block_size", "kv_cache_scheme", "ignored_layers", "modules_to_not_convert", "ignore",
    "config_groups", "format", "global_quant_config", "layer_quant_config", "export", "exclude", "quant_algo",
    "quantized_layers", "group_size", "bits", "sym", "zero_point", "dynamic", "lm_head", "load_in_8bit",
    "moe_quant_algo", "data_type",
]  # fmt: skip
METHODS = [
    "fp8", "fbgemm_fp8", "mxfp8", "compressed-tensors", "mxfp4", "quark", "modelopt", "awq", "gptq", "auto-round",
    "bitsandbytes", "hqq", 7, None,
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(method=st.sampled_from(METHODS), values=st.dictionaries(st.sampled_from(KEYS), ANYTHING, max_size=5))
def test_any_content_is_read_or_refused(method: Any, values: dict[str, Any]) -> None:
    try:
        quantization = read({"quant_method": method, **values})
    except UnsupportedModelError as refused:
        assert refused.hint
    else:
        assert quantization.weight_dtype in WEIGHT_DTYPES
        assert of(quantization).stored_bytes((64, 64)) > 0
