"""Published ``config.json`` files, cut down to the keys that decide the architecture, and what their makers count.

Totals are the ``safetensors`` totals that the hub shows for the repository named, or, where a checkpoint stores more
than the model (tied heads, scales, MTP), the count of ``torch.nn.Module.parameters()`` of its own implementation.
"""

from typing import Any

Json = dict[str, Any]


def llama(layers: int, hidden: int, inner: int, heads: int, kv_heads: int, vocab: int, **more: Any) -> Json:
    """A ``config.json`` under Llama's keys."""
    return {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "hidden_size": hidden,
        "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "max_position_embeddings": 8192, "torch_dtype": "bfloat16", **more,
    }  # fmt: skip


def arch(name: str, config: Json, **more: Any) -> Json:
    """The same under another class name."""
    return {**config, "architectures": [name], **more}


LLAMA_8B = llama(32, 4096, 14336, 32, 8, 128256)
LLAMA_70B = llama(80, 8192, 28672, 64, 8, 128256)
LLAMA_405B = llama(126, 16384, 53248, 128, 8, 128256)
MISTRAL_7B = arch("MistralForCausalLM", llama(32, 4096, 14336, 32, 8, 32000, sliding_window=4096))
QWEN_05B = arch("Qwen2ForCausalLM", llama(24, 896, 4864, 14, 2, 151936, tie_word_embeddings=True))
QWEN_72B = arch(
    "Qwen2ForCausalLM",
    llama(80, 8192, 29568, 64, 8, 152064, sliding_window=4096, use_sliding_window=False, max_window_layers=80),
)
QWEN3_32B = arch("Qwen3ForCausalLM", llama(64, 5120, 25600, 64, 8, 151936, head_dim=128))
QWEN3_30B_A3B = arch(
    "Qwen3MoeForCausalLM", llama(48, 2048, 6144, 32, 4, 151936, head_dim=128),
    num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
MIXTRAL_8X7B = arch(
    "MixtralForCausalLM", llama(32, 4096, 14336, 32, 8, 32000), num_local_experts=8, num_experts_per_tok=2
)
GEMMA2_9B = arch("Gemma2ForCausalLM", llama(42, 3584, 14336, 16, 8, 256000, head_dim=256, sliding_window=4096))
GPT_OSS_120B = arch(
    "GptOssForCausalLM", llama(36, 2880, 2880, 64, 8, 201088, head_dim=64, sliding_window=128),
    num_local_experts=128, num_experts_per_tok=4, attention_bias=True,
)  # fmt: skip
GPT_OSS_20B = {**GPT_OSS_120B, "num_hidden_layers": 24, "num_local_experts": 32}
DEEPSEEK_V3 = arch(
    "DeepseekV3ForCausalLM", llama(61, 7168, 18432, 128, 128, 129280),
    q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    first_k_dense_replace=3, moe_layer_freq=1, moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, num_nextn_predict_layers=1,
)  # fmt: skip
DEEPSEEK_V2_LITE = arch(
    "DeepseekV2ForCausalLM", llama(27, 2048, 10944, 16, 16, 102400),
    q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    first_k_dense_replace=1, moe_layer_freq=1, moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2,
    num_experts_per_tok=6,
)  # fmt: skip
DEEPSEEK_V32 = arch("DeepseekV32ForCausalLM", DEEPSEEK_V3, index_n_heads=64, index_head_dim=128, index_topk=2048)
GLM_5 = arch(
    "GlmMoeDsaForCausalLM", llama(78, 6144, 12288, 64, 64, 154880, head_dim=64),
    q_lora_rank=2048, kv_lora_rank=512, qk_nope_head_dim=192, qk_rope_head_dim=64, v_head_dim=256,
    first_k_dense_replace=3, moe_layer_freq=1, moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1,
    num_experts_per_tok=8, num_nextn_predict_layers=1, index_n_heads=32, index_head_dim=128, index_topk=2048,
)  # fmt: skip
GLM_45 = arch(
    "Glm4MoeForCausalLM", llama(92, 5120, 12288, 96, 8, 151552, head_dim=128),
    attention_bias=True, use_qk_norm=True, first_k_dense_replace=3, moe_intermediate_size=1536, n_routed_experts=160,
    n_shared_experts=1, num_experts_per_tok=8, num_nextn_predict_layers=1,
)  # fmt: skip
GLM_45_AIR = {
    **GLM_45, **llama(46, 4096, 10944, 96, 8, 151552), "architectures": ["Glm4MoeForCausalLM"], "use_qk_norm": False,
    "first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_routed_experts": 128,
}  # fmt: skip
KIMI_K2 = {
    **DEEPSEEK_V3, "num_attention_heads": 64, "vocab_size": 163840, "first_k_dense_replace": 1,
    "n_routed_experts": 384, "num_nextn_predict_layers": 0,
}  # fmt: skip
MOONVIT = {
    "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 16,
    "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": [2, 2], "patch_size": 14,
}  # fmt: skip
MINIMAX_M2 = arch(
    "MiniMaxM2ForCausalLM", llama(62, 3072, 1536, 48, 8, 200064, head_dim=128),
    num_local_experts=256, num_experts_per_tok=8, use_qk_norm=True,
)  # fmt: skip
#: poolside/Laguna-S-2.1: full layers have 48 query heads, sliding ones 72.
LAGUNA_S = arch(
    "LagunaForCausalLM", llama(48, 3072, 12288, 48, 8, 100352, head_dim=128, sliding_window=512),
    layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 12, mlp_layer_types=["dense"] + ["sparse"] * 47,
    num_attention_heads_per_layer=[48, 72, 72, 72] * 12, gating="per-head", num_experts=256, num_experts_per_tok=10,
    moe_intermediate_size=1024, shared_expert_intermediate_size=1024,
)  # fmt: skip
HY_3 = arch(
    "HYV3ForCausalLM", llama(80, 4096, 13312, 64, 8, 120832, head_dim=128),
    num_experts=192, num_experts_per_tok=8, num_shared_experts=1, moe_intermediate_size=1536,
    num_nextn_predict_layers=1,
)  # fmt: skip
DBRX = {
    "architectures": ["DbrxForCausalLM"], "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
    "max_seq_len": 32768, "attn_config": {"kv_n_heads": 8},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}  # fmt: skip
GROK_2 = arch(
    "Grok1ForCausalLM", llama(64, 8192, 32768, 64, 8, 131072, head_dim=128),
    moe_intermediate_size=16384, num_local_experts=8, num_experts_per_tok=2, residual_moe=True,
)  # fmt: skip
PHI_35_MOE = arch(
    "PhiMoEForCausalLM", llama(32, 4096, 6400, 32, 8, 32064),
    num_local_experts=16, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True,
)  # fmt: skip
FALCON_7B = {
    "architectures": ["FalconForCausalLM"], "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
    "vocab_size": 65024, "multi_query": True, "parallel_attn": True, "new_decoder_architecture": False, "bias": False,
}  # fmt: skip
FALCON_40B = {
    **FALCON_7B, "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
    "new_decoder_architecture": True,
}  # fmt: skip
OPT_66B = {
    "architectures": ["OPTForCausalLM"], "hidden_size": 9216, "ffn_dim": 36864, "num_attention_heads": 72,
    "num_hidden_layers": 64, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 9216,
}  # fmt: skip
GPT_2 = {
    "architectures": ["GPT2LMHeadModel"], "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "n_inner": None, "vocab_size": 50257,
}  # fmt: skip
GPT_J = {
    "architectures": ["GPTJForCausalLM"], "n_embd": 4096, "n_head": 16, "n_layer": 28, "n_positions": 2048,
    "vocab_size": 50400, "tie_word_embeddings": False,
}  # fmt: skip
GPT_NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "hidden_size": 6144, "intermediate_size": 24576,
    "num_attention_heads": 64, "num_hidden_layers": 44, "vocab_size": 50432, "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}  # fmt: skip
BLOOM = {
    "architectures": ["BloomForCausalLM"], "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
    "vocab_size": 250880,
}  # fmt: skip
MPT_7B = {
    "architectures": ["MptForCausalLM"], "d_model": 4096, "n_heads": 32, "n_layers": 32, "max_seq_len": 2048,
    "vocab_size": 50432, "expansion_ratio": 4, "no_bias": True, "attn_config": {"alibi": True},
}  # fmt: skip
CHATGLM3 = {
    "architectures": ["ChatGLMModel"], "num_layers": 28, "padded_vocab_size": 65024, "hidden_size": 4096,
    "ffn_hidden_size": 13696, "num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2,
    "add_qkv_bias": True, "add_bias_linear": False, "rmsnorm": True, "seq_length": 8192,
}  # fmt: skip

SIGLIP = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 896, "patch_size": 14,
}  # fmt: skip
GEMMA3_27B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": SIGLIP,
    "text_config": llama(62, 5376, 21504, 32, 16, 262208, head_dim=128, sliding_window=1024),
}  # fmt: skip
#: As google/gemma-3-4b-it has it: heads, head_dim, vocabulary and context are left to the class.
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": SIGLIP, "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024},
}  # fmt: skip
GEMMA4_26B = {
    "architectures": ["Gemma4ForConditionalGeneration"], "audio_config": None,
    "text_config": llama(
        30, 2816, 2112, 16, 8, 262144, head_dim=256, global_head_dim=512, num_global_key_value_heads=2,
        attention_k_eq_v=True, enable_moe_block=True, num_experts=128, top_k_experts=8, moe_intermediate_size=704,
        sliding_window=1024, layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
        tie_word_embeddings=True,
    ),
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
        "head_dim": 72, "patch_size": 16, "position_embedding_size": 10240,
    },
}  # fmt: skip
#: google/gemma-4-E2B-it: embeddings for each layer, layers that share the cache of earlier ones, an audio tower.
GEMMA4_E2B = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "text_config": llama(
        35, 1536, 6144, 8, 1, 262144, head_dim=256, global_head_dim=512, sliding_window=512, num_kv_shared_layers=20,
        use_double_wide_mlp=True, hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144,
        layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, tie_word_embeddings=True,
    ),
    "vision_config": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "head_dim": 64, "patch_size": 16, "position_embedding_size": 10240,
    },
    "audio_config": {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
        "subsampling_conv_channels": [128, 32], "output_proj_dims": 1536,
    },
}  # fmt: skip
GEMMA4_E4B = {
    **GEMMA4_E2B,
    "text_config": {
        **GEMMA4_E2B["text_config"], **llama(42, 2560, 10240, 8, 2, 262144), "num_kv_shared_layers": 18,
        "use_double_wide_mlp": False, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 7,
    },
}  # fmt: skip
LLAMA4_VISION = {
    "hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14, "projector_input_dim": 4096, "projector_output_dim": 4096,
    "vision_output_dim": 4096,
}  # fmt: skip
SCOUT = {
    "architectures": ["Llama4ForConditionalGeneration"], "vision_config": LLAMA4_VISION,
    "text_config": llama(
        48, 5120, 8192, 40, 8, 202048, head_dim=128, intermediate_size_mlp=16384, num_local_experts=16,
        num_experts_per_tok=1, interleave_moe_layer_step=1, attention_chunk_size=8192, no_rope_layers=[],
        max_position_embeddings=10485760,
    ),
}  # fmt: skip
MAVERICK = {**SCOUT, "text_config": {**SCOUT["text_config"], "num_local_experts": 128, "interleave_moe_layer_step": 2}}
MLLAMA_90B = {
    "architectures": ["MllamaForConditionalGeneration"],
    "text_config": {
        **llama(100, 8192, 28672, 64, 8, 128256), "tie_word_embeddings": False,
        "cross_attention_layers": list(range(3, 100, 5)),
    },
    "vision_config": {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_global_layers": 8,
        "attention_heads": 16, "image_size": 560, "patch_size": 14, "max_num_tiles": 4, "vision_output_dim": 7680,
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    },
}  # fmt: skip
QWEN25_VL_7B = {
    **llama(28, 3584, 18944, 28, 4, 152064), "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vision_config": {
        "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
        "out_hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN2_VL_7B = {
    **llama(28, 3584, 18944, 28, 4, 152064), "architectures": ["Qwen2VLForConditionalGeneration"],
    "vision_config": {
        "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3, "hidden_size": 3584,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
    },
}  # fmt: skip
QWEN3_VL_235B = {
    "architectures": ["Qwen3VLMoeForConditionalGeneration"], "tie_word_embeddings": False,
    "text_config": {
        **QWEN3_30B_A3B, **llama(94, 4096, 12288, 64, 4, 151936, head_dim=128), "moe_intermediate_size": 1536,
        "tie_word_embeddings": True,  # the outer level decides
    },
    "vision_config": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
        "num_position_embeddings": 2304, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}  # fmt: skip
MISTRAL_SMALL_32 = {
    "architectures": ["Mistral3ForConditionalGeneration"], "spatial_merge_size": 2,
    "text_config": llama(40, 5120, 32768, 32, 8, 131072, head_dim=128),
    "vision_config": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "patch_size": 14, "image_size": 1540,
    },
}  # fmt: skip
MISTRAL_SMALL_4 = {
    **MISTRAL_SMALL_32,
    "text_config": {
        **DEEPSEEK_V3, **llama(36, 4096, 12288, 32, 32, 131072), "model_type": "mistral4", "q_lora_rank": 1024,
        "kv_lora_rank": 256, "qk_nope_head_dim": 64, "first_k_dense_replace": 0, "moe_intermediate_size": 2048,
        "n_routed_experts": 128, "num_experts_per_tok": 4, "num_nextn_predict_layers": 0,
    },
}  # fmt: skip
GLM_41V = {
    "architectures": ["Glm4vForConditionalGeneration"],
    "text_config": llama(40, 4096, 13696, 32, 2, 151552),
    "vision_config": {
        "depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "num_heads": 12, "out_hidden_size": 4096,
        "image_size": 336, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
    },
}  # fmt: skip
KIMI_K25 = {
    "architectures": ["KimiK25ForConditionalGeneration"], "text_config": KIMI_K2, "vision_config": MOONVIT,
}  # fmt: skip

TOTALS = [
    ("meta-llama/Llama-2-7b-hf", llama(32, 4096, 11008, 32, 32, 32000), 6_738_415_616),
    ("meta-llama/Llama-2-13b-hf", llama(40, 5120, 13824, 40, 40, 32000), 13_015_864_320),
    ("meta-llama/Llama-2-70b-hf", llama(80, 8192, 28672, 64, 8, 32000), 68_976_648_192),
    ("meta-llama/Llama-3.1-8B", LLAMA_8B, 8_030_261_248),
    ("meta-llama/Llama-3.3-70B-Instruct", LLAMA_70B, 70_553_706_496),
    ("meta-llama/Llama-3.1-405B", LLAMA_405B, 405_853_388_800),
    ("meta-llama/Llama-3.2-1B", llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True), 1_235_814_400),
    ("mistralai/Mistral-7B-v0.1", MISTRAL_7B, 7_241_732_096),
    ("mistralai/Mistral-Nemo-Instruct-2407", llama(40, 5120, 14336, 32, 8, 131072, head_dim=128), 12_247_782_400),
    ("mistralai/Mistral-Large-Instruct-2407", llama(88, 12288, 28672, 96, 8, 32768), 122_610_069_504),
    ("Qwen/Qwen2.5-0.5B", QWEN_05B, 494_032_768),
    ("Qwen/Qwen2.5-72B", QWEN_72B, 72_706_203_648),
    ("Qwen/Qwen3-32B", QWEN3_32B, 32_762_123_264),
    ("ibm-granite/granite-3.3-8b-instruct",
     arch("GraniteForCausalLM", llama(40, 4096, 12800, 32, 8, 49159, tie_word_embeddings=True)), 8_170_864_640),
    ("XiaomiMiMo/MiMo-7B-Base, without MTP",
     arch("MiMoForCausalLM", llama(36, 4096, 11008, 32, 8, 151680), attention_bias=True), 7_622_619_136),
    ("ByteDance-Seed/Seed-OSS-36B-Instruct",
     arch("SeedOssForCausalLM", llama(64, 5120, 27648, 80, 8, 155136, head_dim=128), attention_bias=True),
     36_151_104_512),
    ("allenai/OLMo-2-0325-32B-Instruct",
     arch("Olmo2ForCausalLM", llama(64, 5120, 27648, 40, 8, 100352)), 32_234_279_936),
    ("CohereForAI/c4ai-command-r-plus",
     arch("CohereForCausalLM", llama(64, 12288, 33792, 96, 8, 256000, use_qk_norm=True)), 103_810_674_688),
    ("microsoft/phi-4", arch("Phi3ForCausalLM", llama(40, 5120, 17920, 40, 10, 100352)), 14_659_507_200),
    ("microsoft/Phi-3-small-8k-instruct",
     arch("Phi3SmallForCausalLM", llama(32, 4096, 1, 32, 8, 100352), ff_intermediate_size=14336), 7_392_272_384),
    ("internlm/internlm2_5-7b-chat", arch("InternLM2ForCausalLM", llama(32, 4096, 14336, 32, 8, 92544)), 7_737_708_544),
    ("baichuan-inc/Baichuan2-7B-Base",
     arch("BaichuanForCausalLM", llama(32, 4096, 11008, 32, 32, 125696)), 7_505_973_248),
    ("THUDM/chatglm3-6b", CHATGLM3, 6_243_584_000),
    ("bigcode/starcoder2-15b",
     arch("Starcoder2ForCausalLM", llama(40, 6144, 24576, 48, 4, 49152, tie_word_embeddings=False)), 15_957_889_024),
    ("LGAI-EXAONE/EXAONE-3.0-7.8B-Instruct",
     arch("ExaoneForCausalLM", llama(32, 4096, 14336, 32, 8, 102400)), 7_818_448_896),
    ("google/gemma-2b-it", arch("GemmaForCausalLM", llama(18, 2048, 16384, 8, 1, 256000, head_dim=256)), 2_506_172_416),
    ("google/gemma-2-9b", GEMMA2_9B, 9_241_705_984),
    ("google/gemma-3-1b-it",
     arch("Gemma3ForCausalLM", llama(26, 1152, 6912, 4, 1, 262144, head_dim=256, sliding_window=512)), 999_885_952),
    ("google/gemma-3-4b-it", GEMMA3_4B, 4_300_079_472),
    ("google/gemma-3-27b-it", GEMMA3_27B, 27_432_406_640),
    ("google/gemma-4-26B-A4B", GEMMA4_26B, 25_805_933_872),
    ("google/gemma-4-E2B-it, without layer scalars", GEMMA4_E2B, 5_123_178_051 - 35),
    ("google/gemma-4-E4B-it, without layer scalars", GEMMA4_E4B, 7_996_156_490 - 42),
    ("openai-community/gpt2", GPT_2, 124_439_808),
    ("EleutherAI/gpt-j-6b", GPT_J, 6_050_882_784),
    ("EleutherAI/gpt-neox-20b", GPT_NEOX, 20_554_567_680),
    ("bigscience/bloom", BLOOM, 176_247_271_424),
    ("mosaicml/mpt-7b", MPT_7B, 6_649_286_656),
    ("facebook/opt-66b", OPT_66B, 65_719_701_504),
    ("tiiuae/falcon-7b", FALCON_7B, 6_921_720_704),
    ("tiiuae/falcon-40b", FALCON_40B, 41_303_293_952),
    ("microsoft/phi-2", arch("PhiForCausalLM", llama(32, 2560, 10240, 32, 32, 51200)), 2_779_683_840),
    ("mistralai/Mixtral-8x7B-v0.1", MIXTRAL_8X7B, 46_702_792_704),
    ("microsoft/Phi-3.5-MoE-instruct", PHI_35_MOE, 41_873_153_344),
    ("Qwen/Qwen3-30B-A3B", QWEN3_30B_A3B, 30_532_122_624),
    ("Qwen/Qwen1.5-MoE-A2.7B",
     arch("Qwen2MoeForCausalLM", llama(24, 2048, 5632, 16, 16, 151936), num_experts=60, num_experts_per_tok=4,
          moe_intermediate_size=1408, shared_expert_intermediate_size=5632), 14_315_784_192),
    ("allenai/OLMoE-1B-7B-0924",
     arch("OlmoeForCausalLM", llama(16, 2048, 1024, 16, 16, 50304), num_experts=64, num_experts_per_tok=8),
     6_919_161_856),
    ("ibm-granite/granite-3.1-3b-a800m-instruct",
     arch("GraniteMoeForCausalLM", llama(32, 1536, 512, 24, 8, 49155, tie_word_embeddings=True),
          num_local_experts=40, num_experts_per_tok=8), 3_298_793_472),
    ("baidu/ERNIE-4.5-21B-A3B-PT",
     arch("Ernie4_5_MoeForCausalLM", llama(28, 2560, 12288, 20, 4, 103424), moe_num_experts=64, moe_k=6,
          moe_intermediate_size=1536, moe_num_shared_experts=2, moe_layer_start_index=1), 21_825_437_888),
    ("databricks/dbrx-instruct", DBRX, 131_596_523_520),
    ("xai-org/grok-2", GROK_2, 269_515_497_472),
    ("openai/gpt-oss-20b", GPT_OSS_20B, 20_914_757_184),
    ("openai/gpt-oss-120b", GPT_OSS_120B, 116_829_156_672),
    ("MiniMaxAI/MiniMax-M2", MINIMAX_M2, 228_689_748_992),
    ("poolside/Laguna-S-2.1, without routing biases", LAGUNA_S, 117_561_977_600 - 47 * 256),
    ("tencent/Hy3-preview, without MTP and routing biases", HY_3, 298_786_155_776 - 3_752_612_096 - 80 * 192),
    ("zai-org/GLM-4.5", GLM_45, 352_797_814_784),
    ("zai-org/GLM-4.5-Air", GLM_45_AIR, 106_852_245_504),
    ("zai-org/GLM-5", GLM_5, 743_911_199_232),
    ("deepseek-ai/DeepSeek-V2-Lite", DEEPSEEK_V2_LITE, 15_706_484_224),
    ("deepseek-ai/DeepSeek-V3", DEEPSEEK_V3, 671_026_404_352),
    ("deepseek-ai/DeepSeek-V3.2", DEEPSEEK_V32, 671_877_929_216),
    ("moonshotai/Kimi-K2-Instruct", KIMI_K2, 1_026_408_209_408),
    ("moonshotai/Kimi-K2.5", KIMI_K25, 1_026_879_353_328),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", SCOUT, 108_641_793_536),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", MAVERICK, 401_583_781_376),
    ("meta-llama/Llama-3.2-90B-Vision-Instruct", MLLAMA_90B, 88_593_355_323),
    ("zai-org/GLM-4.1V-9B-Thinking", GLM_41V, 10_292_777_472),
    ("Qwen/Qwen2-VL-7B-Instruct", QWEN2_VL_7B, 8_291_375_616),
    ("Qwen/Qwen2.5-VL-7B-Instruct", QWEN25_VL_7B, 8_292_166_656),
    ("Qwen/Qwen3-VL-235B-A22B-Instruct", QWEN3_VL_235B, 235_670_022_896),
    ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", MISTRAL_SMALL_32, 24_011_361_280),
    ("mistralai/Mistral-Small-4-119B-2603, 119.4B on the hub", MISTRAL_SMALL_4, 119_401_298_944),
]  # fmt: skip
CONFIGS = [config for _, config, _ in TOTALS]
