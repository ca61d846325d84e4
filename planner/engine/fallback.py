"""Which of vLLM's two engines a command line gets, from 0.8.0 to 0.11.0: options and models that only V0 had bring it
back.

``_is_v1_supported_oracle`` in ``arg_utils.py`` looks at every option; the ones below were read in 0.8.5, 0.9.0.1,
0.9.1, 0.9.2, 0.10.0, 0.10.1, 0.10.2 and 0.11.0 (which has no V0 any more and ends where it would need it), and
``SupportsV0Only`` in the models of the same releases. What the oracle thinks of the GPU, the cache and the drafts is
``planner.engine.features.default_engine``.

>>> from planner.engine.version import parse_version
>>> needs_v0({"--num-scheduler-steps": "8", "--seed": "1"}, {}, parse_version("0.9.1"))
('--num-scheduler-steps 8',)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.engine.config import Engine
from planner.engine.releases import Release
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError
from planner.model.architecture import Attention, Model, StateMixer

#: Releases with V1 as the default and V0 beside it; the next one, and no other, still asks the oracle.
BOTH_SINCE, V0_GONE_IN, ORACLE_GONE_IN = (0, 8), (0, 11), (0, 11, 1)
#: ``V1_BACKENDS`` of all these releases together, but for 0.11.0, where no name is V0's any more.
_V1_BACKENDS = (
    "FLASH_ATTN_VLLM_V1", "FLASH_ATTN", "PALLAS", "PALLAS_VLLM_V1", "TRITON_ATTN_VLLM_V1", "TRITON_MLA",
    "CUTLASS_MLA_VLLM_V1", "CUTLASS_MLA", "FLASHMLA", "FLASHMLA_VLLM_V1", "FLASH_ATTN_MLA", "FLASHINFER",
    "FLASHINFER_VLLM_V1", "FLASHINFER_MLA", "ROCM_AITER_MLA", "TORCH_SDPA_VLLM_V1", "FLEX_ATTENTION", "TREE_ATTN",
    "XFORMERS_VLLM_V1",
)  # fmt: skip

#: Architectures that V0 alone served at first, with the release whose V1 serves them.
_V1_SERVES_SINCE: dict[str, Release] = {
    "NemotronHForCausalLM": (0, 9, 2), "GraniteMoeHybridForCausalLM": (0, 9, 2),
    "MambaForCausalLM": (0, 10, 1), "FalconMambaForCausalLM": (0, 10, 1), "JambaForCausalLM": (0, 10, 1),
    "MiniMaxText01ForCausalLM": (0, 10, 1), "MiniMaxM1ForCausalLM": (0, 10, 1),
    "BloomForCausalLM": (0, 10, 2), "MllamaForConditionalGeneration": V0_GONE_IN,
}  # fmt: skip
#: From here on models with states get V1 without being asked for ("V1 mamba models are unoptimized" before).
_STATES_SINCE: Release = (0, 10, 2)
#: V1 is on CPUs, and without sliding windows there from the second until the oracle goes.
_CPU_SINCE, _NO_WINDOWS_ON_CPU_SINCE = (0, 9, 1), (0, 9, 2)
#: From here on V1 has pipelines by whatever executor is the default.
_PIPELINES_SINCE: Release = (0, 9, 1)


@dataclass(frozen=True, slots=True)
class _Rule:
    """``option`` brings V0 back where its value passes ``when``; of a release before ``until``."""

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
            return False  # refused for what it is

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

    ``options`` are whole names with their values, empty for switches.
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
    """Whether ``--distributed-executor-backend`` keeps a pipeline on V1 that would else be V0's."""
    backends = ("ray",) if version.release < (0, 9) else ("ray", "mp", "external_launcher")
    both = BOTH_SINCE <= version.release < _PIPELINES_SINCE
    return both and options.get("--distributed-executor-backend") in backends


def v1_serves(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether V1 serves the model if it is asked to, in a ``version`` that has V1."""
    release = version.release
    windows = any(isinstance(mixer, Attention) and mixer.window for mixer in model.mixers())
    if on_cpu and (release < _CPU_SINCE or (windows and _NO_WINDOWS_ON_CPU_SINCE <= release < ORACLE_GONE_IN)):
        return False
    return release >= _V1_SERVES_SINCE.get(model.architecture, BOTH_SINCE)


def falls_back(model: Model, version: EngineVersion, *, on_cpu: bool) -> bool:
    """Whether ``version``, which has both engines, takes V0 for the model's sake if neither is asked for."""
    states = any(isinstance(mixer, StateMixer) for mixer in model.mixers())
    return not v1_serves(model, version, on_cpu=on_cpu) or (states and version.release < _STATES_SINCE)


def asked_engine(only_v0: Sequence[str], use_v1: str | None, version: EngineVersion) -> Engine | None:
    """The engine that a line decides on, by ``VLLM_USE_V1`` or by words that only V0 serves; None: the default one.

    Raises IllegalPlanError where vLLM ends: V1 asked for beside such words, or V0 where there is none any more.
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
