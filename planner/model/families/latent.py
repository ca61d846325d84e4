"""Decoders with multi-head latent attention (MLA): DeepSeek V2 to V3.2, Kimi K2, GLM-5, MiniCPM3."""

from __future__ import annotations

from planner.model.architecture import Component, LatentAttention, Layer, Shard, SparseIndexer, Weight
from planner.model.blocks import PRE_NORMS, linear, mlp, moe_mlp, norms, shared_expert, vector
from planner.model.config import Config, ModelParts, family
from planner.model.reading import decoder, layers_by_kind, mtp_layers, read_moe, sparse_layers


def read_latent(config: Config, indexer: SparseIndexer | None = None) -> LatentAttention:
    """Shape of MLA; ``q_lora_rank`` null means that queries are not compressed."""
    return LatentAttention(
        num_heads=config.size("num_attention_heads"),
        kv_lora_rank=config.size("kv_lora_rank"),
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
        q_lora_rank=config.size("q_lora_rank", default=0) or None,
        indexer=indexer,
    )


def latent_weights(mla: LatentAttention, hidden: int, *, bias: bool = False) -> tuple[Weight, ...]:
    """Projections of MLA: down to the latents on every rank, up from them split by heads."""
    part, stem = Component.ATTENTION, "self_attn."
    heads, q_rank, kv_rank = mla.num_heads, mla.q_lora_rank, mla.kv_lora_rank
    q_size = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if q_rank:
        queries = (
            *linear(f"{stem}q_a_proj", q_rank, hidden, part, bias=bias),
            *vector(f"{stem}q_a_layernorm", q_rank),
            *linear(f"{stem}q_b_proj", q_size, q_rank, part, Shard.COLUMN),
        )
    else:
        queries = linear(f"{stem}q_proj", q_size, hidden, part, Shard.COLUMN)
    return (
        *queries,
        *linear(f"{stem}kv_a_proj_with_mqa", kv_rank + mla.qk_rope_head_dim, hidden, part, bias=bias),
        *vector(f"{stem}kv_a_layernorm", kv_rank),
        *linear(f"{stem}kv_b_proj", heads * (mla.qk_nope_head_dim + mla.v_head_dim), kv_rank, part, Shard.COLUMN),
        *linear(f"{stem}o_proj", hidden, heads * mla.v_head_dim, part, Shard.ROW, bias=bias),
    )


def indexer_weights(indexer: SparseIndexer, hidden: int, q_rank: int) -> tuple[Weight, ...]:
    """The scorer of DeepSeek sparse attention, held whole by every rank."""
    part, stem = Component.ATTENTION, "self_attn.indexer."
    return (
        *linear(f"{stem}wq_b", indexer.num_heads * indexer.head_dim, q_rank, part),
        *linear(f"{stem}wk", indexer.head_dim, hidden, part),
        *norms(indexer.head_dim, f"{stem}k_norm", bias=True),
        *linear(f"{stem}weights_proj", indexer.num_heads, hidden, part),
    )


def read_indexers(config: Config) -> list[SparseIndexer | None]:
    """The indexer of each layer: none before V3.2; GLM-5.2 reuses that of an earlier layer in three of four."""
    count = config.num_layers
    if not config.has("index_topk"):
        return [None] * count
    top_k = config.size("index_topk")
    own = SparseIndexer(config.size("index_n_heads"), config.size("index_head_dim"), top_k)
    reused = SparseIndexer(0, 0, top_k)
    types = config.names("indexer_types", count=count) or ["full"] * count
    return [reused if kind == "shared" else own for kind in types]


@family("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "KimiK2ForCausalLM",
        "GlmMoeDsaForCausalLM", "Glm4MoeLiteForCausalLM", "Mistral4ForCausalLM")  # fmt: skip
def deepseek(config: Config) -> ModelParts:
    """DeepSeek V2, V3, R1, V3.2, Kimi K2, GLM-5: MLA, the first layers dense, shared experts in the others."""
    hidden = config.hidden_size
    bias = config.flag("attention_bias", default=False)
    moe = read_moe(config, shared=config.size("n_shared_experts", default=0))

    def make(kind: tuple[SparseIndexer | None, bool]) -> Layer:
        indexer, sparse = kind
        mla = read_latent(config, indexer)
        weights = latent_weights(mla, hidden, bias=bias) + norms(hidden, *PRE_NORMS)
        if indexer and indexer.num_heads:
            weights += indexer_weights(indexer, hidden, config.size("q_lora_rank"))
        if not sparse:
            return Layer(weights + mlp(hidden, config.size("intermediate_size")), mla)
        shared = moe.num_shared_experts * moe.intermediate_size
        weights += moe_mlp(hidden, moe) + shared_expert(hidden, shared, prefix="mlp.shared_experts.")
        return Layer(weights, mla, moe)

    indexers = read_indexers(config)
    layers = layers_by_kind(list(zip(indexers, sparse_layers(config), strict=True)), make)
    mtp = mtp_layers(config, make((indexers[0], True)), tables=config.architecture.startswith("Deepseek"))
    kimi = config.text("model_type", default="") == "kimi_k2"  # its tokenizer is its own
    return decoder(config, layers, mtp=mtp, remote_code=kimi)


@family("MiniCPM3ForCausalLM")
def minicpm3(config: Config) -> ModelParts:
    """MiniCPM3: MLA with ordinary MLPs; tied."""
    hidden, mla = config.hidden_size, read_latent(config)
    weights = (
        *latent_weights(mla, hidden, bias=config.flag("attention_bias", default=False)),
        *mlp(hidden, config.size("intermediate_size")),
        *norms(hidden, *PRE_NORMS),
    )
    return decoder(config, (Layer(weights, mla),) * config.num_layers, tied=True)
