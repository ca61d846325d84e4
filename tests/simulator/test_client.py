"""What a replay refuses to begin."""

from __future__ import annotations

from command_line import run


def test_prompts_that_are_read_a_few_tokens_at_a_time_are_refused() -> None:
    """80 prompts of 1,024 tokens, two at a time, are 80 x 512 = 40,960 steps; 40 of them are half as many."""
    words = ["predict", "serve", "Qwen/Qwen3-0.6B", "--gpu", "h100", "--random-input-len", "1024"]
    words += ["--random-output-len", "1", "--max-concurrency", "2", "--max-num-batched-tokens", "2"]
    refused = run(*words, "--num-prompts", "80")
    assert refused.status == 2
    error, hint = refused.err.splitlines()[:2]
    assert error == "error: the prompts come to 40,960 steps of --max-num-batched-tokens 2"
    assert hint.startswith("hint: raise it, or send fewer prompts")
    assert run(*words, "--num-prompts", "40").status == 0
