"""Small hand-made models, GPUs and engines for the tests of the physics; figures are those of public specifications."""

import datetime
from dataclasses import replace
from typing import Any

from planner.engine.settings import EngineConfig
from planner.engine.version import known_version
from planner.hardware.profiles import Compute, GpuProfile, Interconnect, Memory, Quantity, Source
from planner.model.architecture import (
    Attention,
    Component,
    LatentAttention,
    Layer,
    Mixer,
    Model,
    Moe,
    Shard,
    SparseIndexer,
    Weight,
)
from planner.model.blocks import attention_weights, decoder, linear, mlp, norms
from planner.model.config import Config
from planner.model.precision import BF16, Precision, Quantization
from planner.timing.efficiencies import PARAMETERS, SHARES, Efficiency

FP8 = Precision("fp8", 8, "fp8")


def quantity(value: float, unit: str) -> Quantity:
    return Quantity(value=value, unit=unit, source="spec", kind="spec")


def gpu(bandwidth_gb_s: float = 3350, *, links: str = "nvswitch", fp8: float | None = 1979) -> GpuProfile:
    """An H100 SXM unless told otherwise: 3.35 TB/s, 989 and 1979 TFLOP/s, 450 GB/s of NVLink each way."""
    interconnect: dict[str, Any] = {
        "nvswitch": {"kind": "nvswitch", "bandwidth": quantity(450, "GB/s"), "domain_gpus": 8},
        "xgmi-mesh": {"kind": "xgmi-mesh", "link_bandwidth": quantity(64, "GB/s"), "links": 7, "domain_gpus": 8},
        "pcie": {"kind": "pcie", "bandwidth": quantity(64, "GB/s"), "domain_gpus": 8},
        "none": {"kind": "none"},
    }[links]
    return GpuProfile(
        id="test-gpu",
        name="Test GPU",
        vendor="nvidia",
        architecture="sm_90",
        platform="cuda",
        gpus_per_node=8,
        memory=Memory(engine_visible=quantity(80, "GiB"), bandwidth=quantity(bandwidth_gb_s, "GB/s")),
        compute=Compute(bf16=quantity(989, "TFLOP/s"), fp8=quantity(fp8, "TFLOP/s") if fp8 else None),
        interconnect=Interconnect(**interconnect),
        sources={"spec": Source(title="specification", retrieved=datetime.date(2026, 1, 1))},
    )


def engine(tp: int = 1, **changes: Any) -> EngineConfig:
    """vLLM 0.11.0 with bf16 weights and cache, synchronous scheduling."""
    config = EngineConfig(
        version=known_version("0.11.0"),
        tensor_parallel_size=tp,
        pipeline_parallel_size=1,
        data_parallel_size=1,
        enable_expert_parallel=False,
        dtype="bf16",
        weight_dtype="bf16",
        kv_cache_dtype="bf16",
        max_model_len=131072,
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.9,
        block_size=16,
        enforce_eager=False,
        enable_prefix_caching=False,
        async_scheduling=False,
    )
    return replace(config, **changes)


def model(layer: Layer, num_layers: int, hidden: int, vocab: int, *, tied: bool = False, fp8: bool = False) -> Model:
    """``num_layers`` times ``layer`` between an embedding and an lm_head."""
    quantization = Quantization("fp8", BF16, method="fp8", linear=FP8) if fp8 else Quantization("bf16", BF16)
    config = Config({"hidden_size": hidden, "vocab_size": vocab}, model_id="test/model")
    return Model(
        id="test/model",
        architecture="LlamaForCausalLM",
        model_type="llama",
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=131072,
        dtype="bf16",
        layers=(layer,) * num_layers,
        outer=decoder(config, (), tied=tied).outer,
        quantization=quantization,
        tied_embeddings=tied,
    )


def dense_layer(hidden: int, intermediate: int, attention: Attention) -> Layer:
    weights = attention_weights(attention, hidden) + mlp(hidden, intermediate)
    return Layer(weights + norms(hidden, "input_layernorm", "post_attention_layernorm"), attention)


def llama_8b(*, fp8: bool = False, window: int | None = None) -> Model:
    """Llama-3.1-8B: 32 layers, hidden 4096, MLP 14336, 32 query and 8 KV heads of 128, vocabulary 128256."""
    attention = Attention(32, 8, 128, 128, window=window)
    return model(dense_layer(4096, 14336, attention), 32, 4096, 128256, fp8=fp8)


def moe_model(num_experts: int = 128, top_k: int = 8) -> Model:
    """Qwen3-30B-A3B: 48 layers, hidden 2048, 128 experts of 768, 8 per token, 32 query and 4 KV heads of 128."""
    attention = Attention(32, 4, 128, 128)
    experts = mlp(2048, 768, component=Component.ROUTED_EXPERT, copies=num_experts)
    router = linear("mlp.gate", num_experts, 2048, Component.ROUTER, Shard.NONE)
    layer = Layer(attention_weights(attention, 2048) + router + experts, attention, Moe(num_experts, top_k, 768))
    return model(layer, 48, 2048, 151936)


def mla_model(indexer: SparseIndexer | None = None) -> Model:
    """One layer of DeepSeek-V3's attention: 128 heads, latent 512, rotary 64, nope and value heads of 128."""
    mixer = LatentAttention(128, 512, 128, 64, 128, q_lora_rank=1536, indexer=indexer)
    weights = (
        Weight("self_attn.q_b_proj", Component.ATTENTION, (128 * 192, 1536), shard=Shard.COLUMN, linear=True),
        Weight("self_attn.kv_b_proj", Component.ATTENTION, (128 * 256, 512), shard=Shard.COLUMN, linear=True),
        Weight("self_attn.o_proj", Component.ATTENTION, (7168, 128 * 128), shard=Shard.ROW, linear=True),
    )
    return model(Layer(weights, mixer), 1, 7168, 129280)


def mixer_model(mixer: Mixer) -> Model:
    """One layer with ``mixer`` and nothing else."""
    return model(Layer((), mixer), 1, 1024, 1024)


def perfect(**changes: float) -> Efficiency:
    """Every share 1 and every fixed cost 0: the roofline itself."""
    values = {name: 1.0 if name in SHARES else 0.0 for name in PARAMETERS}
    return Efficiency(**{**values, **changes})
