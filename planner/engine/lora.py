"""LoRA adapters: the room that ``--enable-lora`` leaves for them, with the defaults and refusals of ``config/lora.py``.

vLLM 0.27, where no other version is named.
"""

from __future__ import annotations

from planner.engine.settings import EngineArgs, LoraConfig, flag_of
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.model import Model

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MOST_VOCABULARY = 258_048  #: ``lora/layers/logits_processor.py``
#: Architectures whose embedding and lm_head are adapted too (``embedding_modules`` of their classes).
ADAPTED_TABLES = frozenset(
    (
        "ApertusForCausalLM", "CohereForCausalLM", "DeciLMForCausalLM", "Exaone4ForCausalLM", "ExaoneForCausalLM",
        "FalconH1ForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM",
        "GraniteMoeSharedForCausalLM", "JambaForCausalLM", "Lfm2ForCausalLM", "Lfm2MoeForCausalLM", "LlamaForCausalLM",
        "MiniCPMForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "NemotronForCausalLM",
        "NemotronHForCausalLM", "PhiMoEForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "SolarForCausalLM",
    )
)  # fmt: skip


def resolve_lora(args: EngineArgs, model: Model, version: EngineVersion) -> LoraConfig | None:
    """The adapters that ``args`` leave room for; None without ``--enable-lora``, as in vLLM.

    Raises InputError for a rank that no version takes, IllegalPlanError for what vLLM refuses.
    """
    if not args.enable_lora:
        return None
    rank, loras = args.max_lora_rank or 16, args.max_loras or 1
    in_host = loras if args.max_cpu_loras is None else args.max_cpu_loras
    if rank not in RANKS:
        raise InputError(
            f"--max-lora-rank {rank} is no rank that vLLM has", hint=f"use one of {', '.join(map(str, RANKS))}"
        )
    if in_host < loras:
        raise IllegalPlanError(
            f"--max-cpu-loras {in_host} is less than --max-loras {loras}",
            hint="raise it: host memory holds a copy of each adapter on the GPU",
        )
    if model.vocab_size > MOST_VOCABULARY and model.architecture in ADAPTED_TABLES:
        raise IllegalPlanError(
            f"--enable-lora: vLLM adapts an lm_head of at most {MOST_VOCABULARY:,} rows, and {model.id} has "
            f"{model.vocab_size:,}",
            hint="leave it out, or merge the adapter into the model",
        )
    if args.fully_sharded_loras and args.enable_expert_parallel:
        raise IllegalPlanError(
            "--fully-sharded-loras: vLLM refuses it with --enable-expert-parallel", hint="leave one of them out"
        )
    if args.fully_sharded_loras and rank % args.tensor_parallel_size:
        raise IllegalPlanError(
            f"--fully-sharded-loras: --max-lora-rank {rank} is not divisible by --tensor-parallel-size "
            f"{args.tensor_parallel_size}",
            hint="raise the rank, or leave it out",
        )
    # routed experts have adapters since FusedMoEWithLoRA (pull request 21229)
    return LoraConfig(
        max_loras=loras,
        max_lora_rank=rank,
        max_cpu_loras=in_host,
        fully_sharded_loras=args.fully_sharded_loras,
        adapts_experts=version.release >= (0, 11, 1),
        adapts_tables=model.architecture in ADAPTED_TABLES,
    )


def ignored_lora_flags(args: EngineArgs) -> str:
    """A note on flags of adapters without ``--enable-lora``: vLLM ignores them and says nothing."""
    if args.enable_lora:
        return ""
    flags = [
        flag_of(name)
        for name in ("max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras")
        if getattr(args, name)
    ]
    return f"{' and '.join(flags)} ignored without --enable-lora, as by vLLM" if flags else ""
