"""V0 or V1: which of vLLM's two engines runs. Releases from 0.8.0 to 0.10 have both.

V1 is their default. Options, models and devices that V1 does not serve yet bring V0 back: ``_is_v1_supported_oracle``
in ``arg_utils.py`` decides. It was read in 0.8.5, 0.9.0.1, 0.9.1, 0.9.2, 0.10.0, 0.10.1, 0.10.2 and 0.11.0 (which has
no V0 any more, and stops where it would need it), and so was ``SupportsV0Only`` in the models of the same releases.

>>> from planner.engine.version import parse_version
>>> needs_v0({"--num-scheduler-steps": "8", "--seed": "1"}, {}, parse_version("0.9.1"))
('--num-scheduler-steps 8',)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.engine.settings import Engine, SpeculativeMethod
from planner.engine.version import EngineVersion, Release
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.model import Attention, Model, StateMixer

#: First release with both engines, first without V0, and first without the oracle.
BOTH_SINCE, V0_GONE_IN, ORACLE_GONE_IN = (0, 8), (0, 11), (0, 11, 1)
#: ``V1_BACKENDS`` of all these releases together, but for 0.11.0, where no name is V0's any more.
_V1_BACKENDS = (
    "FLASH_ATTN_VLLM_V1", "FLASH_ATTN", "PALLAS", "PALLAS_VLLM_V1", "TRITON_ATTN_VLLM_V1", "TRITON_MLA",
    "CUTLASS_MLA_VLLM_V1", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_VLLM_V1", "FLASH_ATTN_MLA", "FLASHINFER",
    "FLASHINFER_VLLM_V1", "FLASHINFER_MLA", "ROCM_AITER_MLA", "TORCH_SDPA_VLLM_V1", "FLEX_ATTENTION", "TREE_ATTN",
    "XFORMERS_VLLM_V1",
)  # fmt: skip

#: Architectures that only V0 served at first, with the release whose V1 serves them.
_V1_SERVES_SINCE: dict[str, Release] = {
    "NemotronHForCausalLM": (0, 9, 2), "GraniteMoeHybridForCausalLM": (0, 9, 2),
    "MambaForCausalLM": (0, 10, 1), "FalconMambaForCausalLM": (0, 10, 1), "JambaForCausalLM": (0, 10, 1),
    "MiniMaxText01ForCausalLM": (0, 10, 1), "MiniMaxM1ForCausalLM": (0, 10, 1),
    "BloomForCausalLM": (0, 10, 2), "MllamaForConditionalGeneration": V0_GONE_IN,
}  # fmt: skip
#: From here on models with states get V1 without being asked for ("V1 mamba models are unoptimized" before).
_STATES_SINCE: Release = (0, 10, 2)
#: V1 runs on CPUs from the first of these on; from the second on, until the oracle goes, without sliding windows.
_CPU_SINCE, _NO_WINDOWS_ON_CPU_SINCE = (0, 9, 1), (0, 9, 2)
#: From here on V1 runs pipelines with the default executor.
_PIPELINES_SINCE: Release = (0, 9, 1)


def has_both_engines(version: EngineVersion) -> bool:
    """Whether a server of ``version`` may run either engine."""
    return BOTH_SINCE <= version.release < V0_GONE_IN


@dataclass(frozen=True, slots=True)
class _Rule:
    """``option`` brings V0 back where its value passes ``when``, in releases before ``until``."""

    option: str
    until: Release
    when: Callable[[str], bool] = lambda _: True


def _other_than(*defaults: str) -> Callable[[str], bool]:
    return lambda value: value not in defaults


def _is_not(number: float) -> Callable[[str], bool]:
    def differs(value: str) -> bool:
        try:
            return float(value) != number
        except ValueError:
            return False  # the parser refuses it

    return differs


_RULES = (
    _Rule("--load-format", (0, 9), lambda value: value == "tensorizer"),
    _Rule("--load-format", V0_GONE_IN, lambda value: value == "sharded_state"),
    _Rule("--logits-processor-pattern", ORACLE_GONE_IN),
    _Rule("--preemption-mode", V0_GONE_IN),
    _Rule("--disable-async-output-proc", V0_GONE_IN),
    _Rule("--scheduling-policy", (0, 9, 2), _other_than("fcfs")),
    _Rule("--num-scheduler-steps", (0, 10, 1), _is_not(1)),
    _Rule("--scheduler-delay-factor", V0_GONE_IN, _is_not(0)),
    _Rule("--guided-decoding-backend", (0, 10), lambda v: v.split(":")[0] not in ("auto", "xgrammar", "guidance")),
    _Rule("--guided-decoding-backend", (0, 10, 1), lambda value: value == "lm-format-enforcer"),
    _Rule("--enable-prompt-adapter", (0, 10)),
    _Rule("--enable-prompt-embeds", V0_GONE_IN),
    _Rule("--quantization", (0, 9), lambda value: value == "gguf"),
    _Rule("--max-num-partial-prefills", ORACLE_GONE_IN, _is_not(1)),
    _Rule("--max-long-partial-prefills", ORACLE_GONE_IN, _is_not(1)),
    _Rule("--otlp-traces-endpoint", (0, 10, 2)),
    _Rule("--collect-detailed-traces", (0, 10, 2)),
    _Rule("--dtype", (0, 9, 2), lambda value: value in ("float32", "float")),
    _Rule("--pipeline-parallel-size", _PIPELINES_SINCE, _is_not(1)),
    _Rule("VLLM_ATTENTION_BACKEND", V0_GONE_IN, _other_than("", *_V1_BACKENDS)),
)


def needs_v0(options: Mapping[str, str], env: Mapping[str, str], version: EngineVersion) -> tuple[str, ...]:
    """The words of a command line that the V1 engine of ``version`` does not serve; none where there is one engine.

    ``options`` maps whole names to values; the value of a switch is empty.
    """
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return ()
    given = {**env, **options}
    if pipelines_on_v1(options, version):
        given.pop("--pipeline-parallel-size", None)
    return tuple(
        f"{rule.option}{' ' if rule.option.startswith('--') else '='}{given[rule.option]}".strip()
        for rule in _RULES
        if rule.option in given and version.release < rule.until and rule.when(given[rule.option])
    )


def pipelines_on_v1(options: Mapping[str, str], version: EngineVersion) -> bool:
    """Whether ``--distributed-executor-backend`` keeps a pipeline on V1 that would otherwise run on V0."""
    backends = ("ray",) if version.release < (0, 9) else ("ray", "mp", "external_launcher")
    both = BOTH_SINCE <= version.release < _PIPELINES_SINCE
    return both and options.get("--distributed-executor-backend") in backends


def v1_serves(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether the V1 engine of ``version`` can serve the model."""
    release = version.release
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in model.mixers())
    if on_cpu and (release < _CPU_SINCE or (windows and _NO_WINDOWS_ON_CPU_SINCE <= release < ORACLE_GONE_IN)):
        return False
    return release >= _V1_SERVES_SINCE.get(model.architecture, BOTH_SINCE)


def _falls_back(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether ``version``, which has both engines, runs the model on V0 where nobody asks for V1."""
    states = any(isinstance(mixer, StateMixer) for mixer in model.mixers())
    return not v1_serves(model, version, on_cpu=on_cpu) or (states and version.release < _STATES_SINCE)


def asked_engine(only_v0: Sequence[str], use_v1: str | None, version: EngineVersion) -> Engine | None:
    """The engine that a line asks for, by ``VLLM_USE_V1`` or by words that only V0 serves; None: the default one.

    Raises IllegalPlanError where vLLM stops: V1 is asked for beside such words, or V0 in a release without it.
    """
    if not BOTH_SINCE <= version.release < ORACLE_GONE_IN:
        return None
    asked: Engine | None = None if use_v1 not in ("0", "1") else "V1" if use_v1 == "1" else "V0"
    if only_v0 and asked == "V1":
        raise IllegalPlanError(
            f"VLLM_USE_V1=1 is not supported with {' and '.join(only_v0)} in vLLM {version}",
            hint=f"leave out {' and '.join(only_v0)}",
        )
    wanted = "V0" if only_v0 else asked
    if wanted == "V0" and version.release >= V0_GONE_IN:
        raise IllegalPlanError(
            f"{' and '.join(only_v0) or 'VLLM_USE_V1=0'} asks for the V0 engine, which vLLM {version} does not have",
            hint=f"leave out {' and '.join(only_v0) or 'VLLM_USE_V1'}",
        )
    return wanted


def default_engine(
    version: EngineVersion,
    profile: GpuProfile,
    *,
    model: Model | None = None,
    fp8_kv_cache: bool = False,
    fp32: bool = False,
    pipeline: bool = False,
    drafts: SpeculativeMethod | None = None,
) -> Engine:
    """The engine where ``VLLM_USE_V1`` is not set and no word asks for V0; V0 where 0.11.0 would stop.

    On AMD, upstream switches to V1 in 0.9.2. AMD's images, the only ones for these GPUs then, switch in 0.9.1 (their
    change log of 20250620).
    """
    release = version.release
    if version.engine:
        return version.engine
    if not BOTH_SINCE <= release < ORACLE_GONE_IN:
        return "V0" if release < BOTH_SINCE else "V1"
    if model and _falls_back(model, version, on_cpu=profile.platform == "cpu"):
        return "V0"
    if release >= V0_GONE_IN:
        return "V1"
    if (fp32 and release < (0, 9, 2)) or (pipeline and release < (0, 9, 1)):
        return "V0"
    if drafts and release < ((0, 10) if drafts == "draft_model" else (0, 9)):
        return "V0"
    if profile.platform in ("rocm", "cpu"):
        return "V1" if release >= (0, 9, 1) else "V0"
    capability = profile.compute_capability or (0, 0)
    if (capability < (8, 0) and release < (0, 10, 2)) or (fp8_kv_cache and not _v1_reads_fp8(release, capability)):
        return "V0"
    return "V1"


def _v1_reads_fp8(release: tuple[int, ...], capability: tuple[int, int]) -> bool:
    """FlashAttention 3 (Hopper) from 0.8.2, every Blackwell backend from 0.10.0."""
    return (capability[0] == 9 and release >= (0, 8, 2)) or (capability[0] == 10 and release >= (0, 10))
