"""Speculative decoding in time: hand arithmetic at the roofline, and the limits of acceptance and batch size."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import model
from physics_cases import engine, gpu, llama_8b, perfect

from planner.engine.resolution import parse_speculative_config, with_acceptance
from planner.engine.settings import EngineArgs, SpeculativeConfig
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.memory.budget import Basis
from planner.model.architecture import Model
from planner.planning.deployment import Deployment, resolve_deployment
from planner.planning.predict import Prediction, estimate
from planner.simulator.bench import serve_table
from planner.timing.operators import step_operators
from planner.timing.step import Batch, SpeculativeStep, StepModel, module_model, speculative_step
from planner.workload.load import Load

#: Parameters of Llama-3.1-8B that every step reads: all but the embedding (128,256 x 4,096) and 65 norms.
READ_PARAMS = 8_030_261_248 - 128_256 * 4_096 - 65 * 4_096


def drafts(method: str, tokens: int, acceptance: str = "0.7", **more: object) -> SpeculativeConfig:
    given = "".join(f', "{key}": "{value}"' for key, value in more.items())
    config = parse_speculative_config(f'{{"method": "{method}", "num_speculative_tokens": {tokens}{given}}}')
    return with_acceptance(config, acceptance)


def at_the_roofline(speculative: SpeculativeConfig) -> SpeculativeStep:
    """Llama-3.1-8B on a perfect H100; the host costs nothing."""
    target = StepModel(llama_8b(), gpu(), engine(speculative_config=speculative), perfect())
    drafter = None
    if speculative.has_draft_model:
        drafter = StepModel(llama_8b(), gpu(), engine(), perfect())
    return SpeculativeStep(target, drafter, speculative)


PLAIN = StepModel(llama_8b(), gpu(), engine(), perfect())


# What a step yields.


@pytest.mark.parametrize(
    ("tokens", "acceptance", "length"),
    [
        (1, "0.7", 1.7),
        (4, "0.7", (1 - 0.7**5) / (1 - 0.7)),  # Leviathan et al.: 2.7731
        (4, "0", 1.0),
        (4, "1", 5.0),
        (3, "0.8,0.5,0.1", 2.4),  # position by position, as vLLM logs it
    ],
)
def test_tokens_of_a_step(tokens: int, acceptance: str, length: float) -> None:
    assert drafts("ngram", tokens, acceptance).acceptance_length == pytest.approx(length)


@pytest.mark.parametrize(
    ("keys", "rates"),
    [
        ('"synthetic_acceptance_rates": [0.9, 0.5, 0.2]', (0.9, 0.5, 0.2)),
        ('"synthetic_acceptance_length": 2.4', (1.0, 0.4, 0.0)),  # one always, the second in 40 % of the steps
        ('"synthetic_acceptance_length": 4', (1.0, 1.0, 1.0)),
    ],
)
def test_a_synthetic_sampler_says_its_acceptance_itself(keys: str, rates: tuple[float, ...]) -> None:
    text = f'{{"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "synthetic", {keys}}}'
    found = parse_speculative_config(text)
    assert found.acceptance_rates == pytest.approx(rates)
    with pytest.raises(InputError, match="already"):
        with_acceptance(found, "0.5")


@pytest.mark.parametrize(
    ("acceptance", "words"),
    [
        ("high", "not a number"),
        ("1.1", "between 0 and 1"),
        ("-0.1", "between 0 and 1"),
        ("nan", "between 0 and 1"),
        ("0.8,0.6", "2 rates for 3"),
        ("0.5,0.6,0.1", "never rise"),
    ],
)
def test_rates_that_cannot_be_are_refused(acceptance: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        drafts("ngram", 3, acceptance)
    assert error.value.hint


# What a step costs.


def test_verifying_four_tokens_of_one_request_reads_the_weights_once() -> None:
    # 15.0 GB / 3.35 TB/s = 4.48 ms for one token or four; the logits of four rows are what is more
    batch = Batch(decode_seqs=1, decode_context_tok=1)
    verified_s = at_the_roofline(drafts("suffix", 3)).step_s(batch)
    assert verified_s == pytest.approx(2 * READ_PARAMS / 3.35e12, rel=0.01)
    assert PLAIN.step_s(batch) < verified_s < 1.01 * PLAIN.step_s(batch)


def test_where_arithmetic_binds_four_tokens_cost_four_times_as_much() -> None:
    # 2,048 requests x 4 tokens x 2 FLOP x 7.50e9 parameters / 989 TFLOP/s = 124 ms; beside it the sampler moves
    # 5 x 4 bytes x 128,256 x 8,192 = 21.0 GB, and the small kernels 2 bytes x 32 x 8,192 x (8 passes of 4,096 in norms,
    # 1.5 of 28,672 in the activation, 2 of 6,144 in rotary embedding and KV write) = 46.2 GB. Attention reads
    # 131,072 bytes for the one token of each request and the 160 of its pad, once for all four
    batch = Batch(decode_seqs=2048, decode_context_tok=2048)
    verified_s = at_the_roofline(drafts("ngram", 3)).step_s(batch)
    moved_bytes = 5 * 4 * 128_256 * 8192 + 2 * 32 * 8192 * (8 * 4096 + 1.5 * 28_672 + 2 * 6144)
    read_s = 2048 * (1 + 160) * 131_072 / 3.35e12
    assert verified_s == pytest.approx(8192 * 2 * READ_PARAMS / 989e12 + moved_bytes / 3.35e12 + read_s, rel=0.01)
    assert verified_s - read_s == pytest.approx(4 * (PLAIN.step_s(batch) - read_s), rel=0.05)


def test_the_cache_is_read_once_and_multiplied_by_every_token() -> None:
    # 64 requests of 8,192 tokens, 32 layers x 8 heads x 2 x 128 x 2 bytes = 131,072 bytes a token: 68.7 GB
    batch = Batch(decode_seqs=64, decode_context_tok=64 * 8192)
    (plain,) = [p for p in PLAIN.breakdown(batch).parts if p.name == "attention decode"]
    parts = at_the_roofline(drafts("ngram", 3)).breakdown(batch).parts
    (verified,) = [p for p in parts if p.name == "attention decode"]
    assert verified.bytes == plain.bytes == 64 * 8192 * 131_072
    assert verified.flop == 4 * plain.flop
    assert verified.time_s == plain.time_s  # still bound by memory


def test_a_draft_model_runs_once_for_each_drafted_token() -> None:
    # the model drafts for itself: 4 passes of 4.48 ms beside the verification
    step = at_the_roofline(drafts("draft_model", 4, model="meta-llama/Llama-3.1-8B"))
    batch = Batch(decode_seqs=1, decode_context_tok=1)
    assert step.draft_s(batch) == pytest.approx(4 * 2 * READ_PARAMS / 3.35e12, rel=0.01)
    assert step.step_s(batch) == pytest.approx(5 * 2 * READ_PARAMS / 3.35e12, rel=0.01)


def test_the_first_pass_of_a_draft_covers_the_prompt() -> None:
    # 8,192 prompt tokens x 2 x 7.50e9 FLOP / 989 TFLOP/s: once for the model, once for the draft, which has no
    # reason to compute the prompt again for its second token
    step = at_the_roofline(drafts("draft_model", 2, model="meta-llama/Llama-3.1-8B"))
    batch = Batch(prefill_seqs=1, prefill_tok=8192, prefill_pair_tok=8192 * 8193 / 2, prefill_finishing=1)
    prefill_s = PLAIN.step_s(batch)
    assert step.draft_s(batch) == pytest.approx(prefill_s + 2 * READ_PARAMS / 3.35e12, rel=0.01)


def test_a_draft_replays_graphs_of_as_many_tokens_as_its_model() -> None:
    """vLLM captures 2 x max_num_seqs x (1 + drafted tokens) for both; 8 x 4 tokens pass through the draft at first."""
    spec = drafts("draft_model", 3, model="meta-llama/Llama-3.1-8B")
    config = engine(version=parse_version("0.22.0"), max_num_seqs=8, speculative_config=spec)
    step = speculative_step(StepModel(llama_8b(), gpu(), config, perfect()), llama_8b())
    assert step.drafter and step.drafter.graphs.max_tok == step.target.graphs.max_tok == 64
    assert not step.drafter.eager_kernels(Batch(decode_seqs=8, decode_query_tok=4, decode_sampled=4))


def test_drafts_by_ngram_cost_the_host_a_walk_over_the_context() -> None:
    # 64 requests of 8,000 tokens x 3 ns = 1.5 ms; a suffix tree is not known to cost anything
    batch = Batch(decode_seqs=64, decode_context_tok=64 * 8000)
    ngram, suffix = at_the_roofline(drafts("ngram", 5)), at_the_roofline(drafts("suffix", 5))
    assert ngram.draft_s(batch) == suffix.draft_s(batch) == 0
    assert ngram.step_s(batch) - suffix.step_s(batch) == pytest.approx(64 * 8000 * 3e-9)
    assert "draft: n-gram search" in {part.name for part in ngram.breakdown(batch).parts}


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
@pytest.mark.parametrize("drafted_tok", [1, 4])
def test_steps_that_only_decode_are_timed_as_all_others(method: str, drafted_tok: int) -> None:
    """By a shorter way, which sees less of the batch; also in another process."""
    step = at_the_roofline(drafts(method, drafted_tok, model="meta-llama/Llama-3.1-8B"))
    for sampled in (1, 2):
        batch = Batch(decode_seqs=24, decode_context_tok=24 * 5000, decode_sampled=sampled)
        long_way_s = step.target.step_s(step.verified(batch), step.draft_s(batch))
        long_way_s += (method == "ngram") * 24 * 5000 * 3e-9
        assert step.step_s(batch) == pickle.loads(pickle.dumps(step)).step_s(batch) == pytest.approx(long_way_s)


def test_an_empty_step_takes_no_time() -> None:
    assert at_the_roofline(drafts("draft_model", 3, model="x")).step_s(Batch()) == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300), st.floats(1, 30_000), st.integers(1, 7))
def test_the_breakdown_adds_up(seqs: int, context: float, tokens: int) -> None:
    step = at_the_roofline(drafts("draft_model", tokens, model="x"))
    batch = Batch(decode_seqs=seqs, decode_context_tok=seqs * context)
    found = step.breakdown(batch)
    assert sum(part.time_s for part in found.parts) == pytest.approx(step.step_s(batch))
    drafted = [part for part in found.parts if part.name.startswith("draft: ")]
    assert sum(part.time_s for part in drafted) == pytest.approx(step.draft_s(batch))


def test_a_module_of_deepseek_is_one_layer_a_projection_and_the_head() -> None:
    found = {op.name: op for op in step_operators(module_model(model("deepseek-ai/DeepSeek-V3")), engine(8))}
    # eh_proj: 7,168 x 14,336 in bf16, on every rank; there is no other dense MLP in a layer of experts
    assert found["mlp up"].fixed_bytes == 7168 * 14336 * 2
    assert found["lm_head"].fixed_bytes == 129280 * 7168 * 2 / 8
    # o_proj: 7,168 x 16,384 in fp8, one of eight ranks; scales of 4 bytes for each 128 x 128 block
    assert found["attention output"].fixed_bytes == 7168 * 16384 * (1 + 4 / 128**2) / 8
    assert found["experts"].count == 1
    assert found["experts"].load.num_experts == 256
    assert found["attention decode"].count == 1


def test_a_module_of_a_hybrid_attends() -> None:
    """Qwen3-Next mixes by state in three of four layers; its module attends (16 heads of 256)."""
    found = {op.name for op in step_operators(module_model(model("Qwen/Qwen3-Next-80B-A3B-Instruct")), engine())}
    assert "attention decode" in found
    assert "state decode" not in found


# What it is good for.


@cache
def served(speculative: SpeculativeConfig | None, max_num_seqs: int = 512) -> Deployment:
    """Llama-3.1-8B on an H100 by vLLM 0.22.0."""
    args = EngineArgs(max_model_len=8192, max_num_seqs=max_num_seqs, speculative_config=speculative)
    basis = Basis(draft=draft_of(speculative))
    return resolve_deployment(
        model("meta-llama/Llama-3.1-8B"), load_profile("h100-sxm"), args, parse_version("0.22.0"), basis=basis
    )


def draft_of(speculative: SpeculativeConfig | None) -> Model | None:
    return model(speculative.model) if speculative and speculative.model else None


def small_draft(acceptance: str, tokens: int = 4) -> SpeculativeConfig:
    return drafts("draft_model", tokens, acceptance, model="meta-llama/Llama-3.2-1B")


def mean_tpot_ms(speculative: SpeculativeConfig | None, concurrency: int) -> float:
    load = Load(512, 128, 3 * concurrency, max_concurrency=concurrency)
    found: float = Prediction.of(served(speculative), load).figures["mean_tpot_ms"]
    return found


def test_without_acceptance_drafts_only_cost() -> None:
    assert mean_tpot_ms(small_draft("0"), 1) > mean_tpot_ms(None, 1)


def test_full_acceptance_yields_every_drafted_token() -> None:
    never, always = mean_tpot_ms(small_draft("0"), 1), mean_tpot_ms(small_draft("1"), 1)
    # 127 tokens after the first take 127 steps or, five at a time, 26; contexts grow alike but in fewer steps
    assert always / never == pytest.approx(26 / 127, rel=0.02)


def test_more_acceptance_is_never_slower() -> None:
    found = [mean_tpot_ms(small_draft(rate), 8) for rate in ("0", "0.2", "0.4", "0.6", "0.8", "1")]
    assert found == sorted(found, reverse=True)


def test_drafts_help_one_user_and_harm_a_full_machine() -> None:
    usual = small_draft("0.7")  # 2.77 tokens a step
    assert mean_tpot_ms(usual, 1) < 0.8 * mean_tpot_ms(None, 1)
    assert mean_tpot_ms(usual, 512) > mean_tpot_ms(None, 512)


def test_every_chunk_that_a_client_sees_is_a_step() -> None:
    load = Load(512, 129, 4, max_concurrency=1)
    found = Prediction.of(served(small_draft("1")), load).figures
    # 128 tokens in 26 steps: ITL counts steps, TPOT spreads them over tokens
    assert found["mean_itl_ms"] / found["mean_tpot_ms"] == pytest.approx(128 / 26)
    assert found["spec_decode_num_drafts"] == 4 * 26
    assert found["spec_decode_draft_tokens"] == 4 * 26 * 4
    assert found["spec_decode_acceptance_length"] == 5
    assert found["spec_decode_acceptance_rate"] == 100
    assert "Acceptance length:                       5.00" in serve_table(found)


def test_the_closed_form_is_the_steady_state_of_the_replay() -> None:
    usual = served(small_draft("0.6"))
    replayed = Prediction.of(usual, Load(1024, 256, 160, max_concurrency=8)).figures
    quick = estimate(usual, 1024, 256, 8)
    assert quick.output_tok_per_s == pytest.approx(replayed["output_throughput"], rel=0.10)
    assert quick.e2el_s * 1000 == pytest.approx(replayed["mean_e2el_ms"], rel=0.10)


def test_explained_steps_show_draft_and_verification() -> None:
    usual = served(small_draft("0.6"))
    steps = usual.typical_steps(Prediction.of(usual, Load(128, 64, 4), bench="latency").replay)
    names = [part.name for part in steps["decode step"].parts]
    assert {"mlp up", "draft: mlp up", "draft: lm_head", "host"} <= set(names)
    (head,) = [part for part in steps["decode step"].parts if part.name == "draft: lm_head"]
    assert head.count == 4


# What is refused.


@pytest.mark.parametrize(
    ("speculative", "words"),
    [
        (parse_speculative_config('{"method": "ngram", "num_speculative_tokens": 3}'), "is not known"),
        (drafts("ngram", 3, disable_by_batch_size="8"), "'disable_by_batch_size' is not modelled"),
    ],
)
def test_what_is_not_known_is_not_invented(speculative: SpeculativeConfig, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        speculative_step(replace_speculative(PLAIN, speculative), None)
    assert error.value.hint


def replace_speculative(step: StepModel, speculative: SpeculativeConfig) -> Any:
    return StepModel(step.model, step.profile, replace(step.config, speculative_config=speculative), perfect())
