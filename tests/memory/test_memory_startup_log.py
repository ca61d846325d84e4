"""Reading vLLM's own start-up logs: every era's wording, several ranks, and logs that cannot be used."""

import pytest

from planner.errors import InputError
from planner.memory.startup_log import read_startup_log
from planner.units import GIB

V0_SENTENCE = """
INFO 01-14 12:36:40 llm_engine.py:234] Initializing an LLM engine (v0.6.6) with config: model='meta-llama/Meta-Llama-3-8B', tensor_parallel_size=1, max_seq_len=8192
INFO 01-14 12:36:51 model_runner.py:1099] Loading model weights took 14.9595 GB
INFO 01-14 12:36:52 worker.py:241] the current vLLM instance can use total_gpu_memory (39.50GiB) x gpu_memory_utilization (0.90) = 35.55GiB
INFO 01-14 12:36:52 worker.py:241] model weights take 14.96GiB; non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes 9.37GiB; the rest of the memory reserved for KV Cache is 11.12GiB.
INFO 01-14 12:36:52 gpu_executor.py:76] # GPU blocks: 5691, # CPU blocks: 2048
INFO 01-14 12:36:52 gpu_executor.py:80] Maximum concurrency for 8192 tokens per request: 11.12x
INFO 01-14 12:37:10 model_runner.py:1535] Graph capturing finished in 18 secs, took 0.28 GiB
"""  # noqa: E501

V1 = """
INFO 09-20 10:00:01 [api_server.py:1896] vLLM API server version 0.10.2
(EngineCore_DP0 pid=77) INFO 09-20 10:00:09 [core.py:76] Initializing a V1 LLM engine (v0.10.2) with config: model='Qwen/Qwen3-4B', tensor_parallel_size=1, kv_cache_dtype=auto
\x1b[1;36m(EngineCore_DP0 pid=77)\x1b[0;0m INFO 09-20 10:00:30 [gpu_model_runner.py:2392] Model loading took 7.5552 GiB and 3.1 seconds
\x1b[1;36m(EngineCore_DP0 pid=77)\x1b[0;0m INFO 09-20 10:00:44 [gpu_worker.py:298] Available KV cache memory: 58.05 GiB
(EngineCore_DP0 pid=77) INFO 09-20 10:00:44 [kv_cache_utils.py:864] GPU KV cache size: 422,672 tokens
(EngineCore_DP0 pid=77) INFO 09-20 10:00:44 [kv_cache_utils.py:868] Maximum concurrency for 40,960 tokens per request: 10.32x
(EngineCore_DP0 pid=77) INFO 09-20 10:00:50 [gpu_model_runner.py:3118] Graph capturing finished in 6 secs, took 0.54 GiB
"""  # noqa: E501

CONSUMED = """
(Worker_TP0 pid=9) INFO [gpu_model_runner.py:5000] Model loading took 55.19 GiB memory and 61.2 seconds
(Worker_TP1 pid=10) INFO [gpu_model_runner.py:5000] Model loading took 55.19 GiB memory and 61.0 seconds
(Worker_TP0 pid=9) INFO [gpu_worker.py:760] Available KV cache memory: 27.91 GiB
(Worker_TP1 pid=10) INFO [gpu_worker.py:760] Available KV cache memory: 27.85 GiB
(EngineCore pid=5) INFO [kv_cache_utils.py:2320] GPU KV cache size: 621,392 tokens, Maximum concurrency for 32,768 tokens per request: 18.96x
(Worker_TP0 pid=9) INFO [gpu_worker.py:970] CUDA graph pool memory: 0.32 GiB (actual), 0.45 GiB (estimated), difference: -0.13 GiB (-28.9%).
(Worker_TP0 pid=9) INFO [gpu_worker.py:1034] Free memory on device (94.2/95.01 GiB) on startup. Desired GPU memory utilization is (0.9, 85.51 GiB). Actual usage is 56.89 GiB for consumed memory (weights + non-torch), 0.76 GiB for peak activation, and 0.32 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` (1.0 GiB) to fit into requested memory. Current kv cache memory in use is 27.91 GiB.
"""  # noqa: E501


def test_v0_names_the_parts_and_counts_blocks() -> None:
    log = read_startup_log(V0_SENTENCE)
    assert (log.version, log.model) == ("0.6.6", "meta-llama/Meta-Llama-3-8B")
    assert log.settings == {"tensor_parallel_size": 1, "max_model_len": 8192, "gpu_memory_utilization": 0.90}
    assert log.memory_bytes == pytest.approx(39.50 * GIB)
    assert log.weights_bytes == pytest.approx(14.96 * GIB)
    assert log.activation_bytes == pytest.approx(9.37 * GIB)
    assert log.non_torch_bytes == pytest.approx(0.10 * GIB)
    assert log.kv_cache_bytes == pytest.approx(11.12 * GIB)
    assert (log.num_gpu_blocks, log.max_concurrency) == (5691, 11.12)
    assert log.graph_bytes == pytest.approx(0.28 * GIB)


def test_v1_prints_the_cache_in_tokens() -> None:
    log = read_startup_log(V1).of_model("Qwen/Qwen3-4B")
    assert (log.version, log.kv_cache_tokens, log.max_concurrency) == ("0.10.2", 422_672, 10.32)
    assert log.weights_bytes == pytest.approx(7.5552 * GIB)
    # 36 layers x 8 heads x 2 x 128 x 2 B
    assert log.kv_cache_bytes / log.kv_cache_tokens == pytest.approx(147_456, rel=1e-3)
    assert log.notes == ()


def test_later_versions_sum_weights_and_what_is_outside_torch() -> None:
    log = read_startup_log(CONSUMED)
    assert log.consumed_bytes == pytest.approx(56.89 * GIB)
    assert log.activation_bytes == pytest.approx(0.76 * GIB)
    assert log.memory_bytes == pytest.approx(95.01 * GIB)
    assert log.graph_bytes == pytest.approx(0.32 * GIB)
    assert log.graph_estimate_bytes == pytest.approx(0.45 * GIB)
    assert (log.kv_cache_tokens, log.max_concurrency) == (621_392, 18.96)
    assert log.settings == {"max_model_len": 32_768, "gpu_memory_utilization": 0.9}


def test_of_ranks_that_disagree_the_smallest_binds() -> None:
    log = read_startup_log(CONSUMED)
    assert log.kv_cache_bytes == pytest.approx(27.85 * GIB)
    assert any("27.85 to 27.91" in note and "smallest counts" in note for note in log.notes)


def test_a_refused_start_is_read_with_its_reason() -> None:
    log = read_startup_log(
        "Model loading took 64.38 GiB and 30 seconds\nAvailable KV cache memory: 1.71 GiB\n"
        "ValueError: To serve at least one request with the models's max seq len (131072), (4.53 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (1.71 GiB)."
    )
    assert log.refusal is not None
    assert "larger than the available KV cache memory" in log.refusal
    assert log.kv_cache_tokens is None


def test_a_log_that_breaks_off_is_refused_with_what_it_has() -> None:
    with pytest.raises(InputError, match="ends before the KV cache was made; it has: weights"):
        read_startup_log("Model loading took 14.99 GiB and 3.5 seconds")


@pytest.mark.parametrize("text", ["", "hello\nworld", "INFO: Started server process [12]"])
def test_text_that_is_no_start_up_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no line of a vLLM start-up") as error:
        read_startup_log(text)
    assert error.value.hint


def test_the_log_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="Qwen/Qwen3-4B, not of meta-llama"):
        read_startup_log(V1).of_model("meta-llama/Llama-3.1-8B")


def test_a_model_served_from_a_folder_is_known_by_its_name() -> None:
    assert read_startup_log(V1.replace("Qwen/Qwen3-4B", "/models/Qwen3-4B")).of_model("Qwen/Qwen3-4B").ranks == 1


ARGUMENTS = """
INFO [api_server.py:1896] vLLM API server version 0.20.1
INFO [utils.py:233] non-default args: {'model_tag': 'Qwen/Qwen3-32B', 'max_model_len': 16000, 'max_num_seqs': 64, 'block_size': 32, 'enable_expert_parallel': True, 'gpu_memory_utilization': 0.85}
(EngineCore_DP0 pid=7) INFO [core.py:76] Initializing a V1 LLM engine (v0.20.1) with config: model='Qwen/Qwen3-32B', speculative_config=SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4), tokenizer='Qwen/Qwen3-32B', dtype=torch.bfloat16, max_seq_len=16000, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=2, quantization=None, enforce_eager=False, kv_cache_dtype=fp8_e4m3, enable_prefix_caching=True, enable_chunked_prefill=True
(EngineCore_DP0 pid=7) INFO [gpu_worker.py:298] Available KV cache memory: 34.49 GiB
(EngineCore_DP1 pid=8) INFO [gpu_worker.py:298] Available KV cache memory: 33.90 GiB
"""  # noqa: E501


def test_settings_are_read_from_the_arguments_and_the_engines_summary() -> None:
    log = read_startup_log(ARGUMENTS)
    assert (log.version, log.model) == ("0.20.1", "Qwen/Qwen3-32B")
    assert log.settings == {
        "max_num_seqs": 64, "block_size": 32, "enable_expert_parallel": True, "gpu_memory_utilization": 0.85,
        "dtype": "bfloat16", "max_model_len": 16_000, "tensor_parallel_size": 2, "pipeline_parallel_size": 1,
        "data_parallel_size": 2, "quantization": "None", "enforce_eager": False, "kv_cache_dtype": "fp8_e4m3",
        "enable_prefix_caching": True, "enable_chunked_prefill": True, "speculative_method": "ngram",
        "num_speculative_tokens": 4,
    }  # fmt: skip


def test_of_replicas_that_disagree_the_smallest_binds() -> None:
    log = read_startup_log(ARGUMENTS)
    assert (log.ranks, log.kv_cache_bytes) == (2, pytest.approx(33.90 * GIB))


def test_an_earlier_start_up_in_the_file_leaves_nothing_behind() -> None:
    """The first one had two ranks and a smaller cache; it was over when the second began."""
    log = read_startup_log(CONSUMED + V1)
    assert (log.ranks, log.kv_cache_bytes, log.notes) == (1, pytest.approx(58.05 * GIB), ())
    assert log.memory_bytes is None


CPU = """
(APIServer pid=3154) INFO 11-20 19:13:12 [api_utils.py:286] non-default args: {'model_tag': './tinycfg', 'model': './tinycfg', 'dtype': 'bfloat16', 'max_model_len': 2048, 'enforce_eager': True, 'max_num_seqs': 8}
(EngineCore pid=3256) INFO 11-20 19:13:29 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='./tinycfg', speculative_config=None, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=2048, tensor_parallel_size=1, decode_context_parallel_size=1, quantization=None, quantization_config=None, enforce_eager=True, kv_cache_dtype=auto, device_config=cpu, enable_prefix_caching=True, enable_chunked_prefill=True
(Worker pid=3341) INFO 11-20 19:13:37 [cpu_worker.py:260] Explicitly set (1.0/23.54) GiB for KV cache on node 0.
(EngineCore pid=3256) INFO 11-20 19:13:37 [kv_cache_utils.py:2327] CPU KV cache size: 262,144 tokens, Maximum concurrency for 2,048 tokens per request: 128.00x
"""  # noqa: E501


def test_a_start_of_0_32_on_a_cpu_is_read() -> None:
    """As vLLM 0.32 printed it; its version stands in a banner and in the engine's summary."""
    log = read_startup_log(CPU * 2).of_model("tinycfg")
    assert (log.version, log.kv_cache_tokens, log.max_concurrency, log.weights_bytes) == (
        "0.32.0",
        262_144,
        128.0,
        None,
    )
    assert (log.settings["max_num_seqs"], log.settings["enforce_eager"]) == (8, True)


@pytest.mark.parametrize(
    "line",
    [
        CPU.splitlines()[3],
        "INFO Initial free memory 78.57 GiB, reserved 10.00 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.",
    ],
)
def test_a_cache_of_a_size_that_was_asked_for_is_not_what_was_left(line: str) -> None:
    log = read_startup_log(f"{V1}{line}\n")
    assert log.given_cache
    assert any("--kv-cache-memory-bytes" in note for note in log.notes)
    assert not read_startup_log(V1).given_cache


def test_of_several_start_ups_the_last_counts() -> None:
    again = V1.replace("58.05", "50.00").replace("422,672", "364,064")
    assert read_startup_log(V1 + again).kv_cache_tokens == 364_064


def test_ranks_without_a_name_are_ranks_all_the_same() -> None:
    """e4e13cb9: eight ranks printed 1,594,928, 1,590,736, ... and 1,611,664 tokens, one after the other, unnamed."""
    lines = [f"GPU KV cache size: {tokens:,} tokens" for tokens in (1_594_928, 1_590_736, 1_611_664)]
    lines += [f"Available KV cache memory: {gib} GiB" for gib in (35.74, 35.65, 36.12)]
    log = read_startup_log("\n".join(lines))
    assert log.kv_cache_tokens == 1_590_736
    assert log.kv_cache_bytes == pytest.approx(35.65 * GIB)


def test_the_sampler_that_a_log_names_is_a_setting() -> None:
    start = "GPU KV cache size: 450,192 tokens\n"
    said = "INFO [topk_topp_sampler.py:36] Using FlashInfer for top-p & top-k sampling.\n"
    assert read_startup_log(start + said).settings["flashinfer_sampler"] is True
    said = "WARNING [topk_topp_sampler.py:63] FlashInfer is not available. Falling back to the PyTorch-native one.\n"
    assert read_startup_log(start + said).settings["flashinfer_sampler"] is False
    assert "flashinfer_sampler" not in read_startup_log(start).settings
