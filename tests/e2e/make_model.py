"""Write a small Llama with random weights and a tokenizer of its own into a folder; nothing is downloaded.

Runs in vLLM's interpreter. The vocabulary has more than 10,000 words, because ``vllm bench`` draws ids up to there.
"""

import random
import string
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 12_000
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


def write_tokenizer(folder: Path) -> int:
    """A byte-pair tokenizer trained on random words; returns the size of its vocabulary."""
    chance = random.Random(0)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(2, 8))) for _ in range(20_000)]
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((" ".join(chance.choices(words, k=40)) for _ in range(8_000)), trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=4096, **SPECIAL).save_pretrained(folder)
    return int(tokenizer.get_vocab_size())


def write_model(folder: Path, vocabulary: int) -> None:
    """9 M parameters, as a CPU without bf16 units emulates them: 4 layers of 256, 4 heads, 2 KV heads."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_model(target, write_tokenizer(target))
