"""Which element type the KV cache gets, and which value of ``--kv-cache-dtype`` gives it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.engine.flags import value_status
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.hardware.schema import GpuProfile
from planner.model.architecture import CompressedAttention, LatentAttention, Model
from planner.model.precision import KV_ELEMENT_BYTES

#: vLLM's long names, by the short ones used here.
LONG_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SHORT_NAMES = {long: short for short, long in LONG_NAMES.items()} | {"half": "fp16", "float": "fp32"}


@dataclass(frozen=True, slots=True)
class KvDtype:
    """The element type of the cache, how to ask for it, and what decided it."""

    dtype: str  #: bf16, fp16, fp32, fp8, fp8_e4m3, ...
    flag: str  #: value of ``--kv-cache-dtype``
    reason: str = ""  #: set when the default was taken

    @property
    def is_fp8(self) -> bool:
        """Whether elements take one byte."""
        return self.dtype.startswith("fp8")


def kv_cache_dtype(asked: str, *, dtype: str, model: Model, profile: GpuProfile, version: EngineVersion) -> KvDtype:
    """Resolve ``--kv-cache-dtype``; ``dtype`` is that of the activations, which ``auto`` mostly follows.

    Raises IllegalPlanError for a value that the version does not know, or whose layout is not modelled.
    """
    if asked == "auto":
        return _auto(dtype, model, profile, version)
    name = SHORT_NAMES.get(asked, asked)
    if name == dtype:
        return KvDtype(dtype, _unquantised_flag(dtype, model, profile, version))
    flag = LONG_NAMES.get(name, name)
    status = value_status(version, "kv_cache_dtype", flag)
    if status.state == "unknown":
        raise InputError(
            f"--kv-cache-dtype {asked} is not a value that vLLM knows",
            hint=f"use one of: {', '.join(_modelled(version))}",
        )
    if not status:
        raise IllegalPlanError(
            f"--kv-cache-dtype {asked}: vLLM {version} does not know it ({status})",
            hint=f"use one of: {', '.join(_modelled(version))}",
        )
    if name in LONG_NAMES:  # vLLM 0.33 refuses it and older versions compute nonsense
        raise IllegalPlanError(
            f"--kv-cache-dtype {asked} differs from the {dtype} that the model is computed in",
            hint=f"leave it at auto, or use --dtype {asked}",
        )
    if name not in KV_ELEMENT_BYTES:
        raise IllegalPlanError(
            f"--kv-cache-dtype {asked}: vLLM has it, but its layout is not modelled here",
            hint=f"use one of: {', '.join(_modelled(version))}",
        )
    return KvDtype(name, flag)


def _auto(dtype: str, model: Model, profile: GpuProfile, version: EngineVersion) -> KvDtype:
    reason = _fp8_by_default(model, profile, version)
    if reason:
        return KvDtype("fp8", "fp8", f"kv_cache_dtype fp8: {reason}")
    return KvDtype(dtype, "auto", f"kv_cache_dtype {dtype} (auto)")


def _fp8_by_default(model: Model, profile: GpuProfile, version: EngineVersion) -> str:
    """Why ``auto`` means fp8; empty where it means the model's own type.

    Sources: ``resolve_kv_cache_dtype_string`` (ModelOpt, 0.14.0 on), ``attention.py`` (compressed-tensors, 0.15.0
    on), ``models/config.py`` (DeepSeek-V3.2 in 0.11.0; GLM-5 on Blackwell, 0.32.0 on). A Quark checkpoint's scales
    are used only when ``--kv-cache-dtype fp8`` asks for it.
    """
    release, method = version.release, model.quantization.method or ""
    carries = (model.quantization.kv_cache_dtype or "").startswith("fp8")
    if carries and method.startswith("modelopt") and release >= (0, 14):
        return "the checkpoint carries scales for it (ModelOpt)"
    if carries and method == "compressed-tensors" and release >= (0, 15):
        return "the checkpoint carries scales for it (compressed-tensors)"
    if any(isinstance(mixer, CompressedAttention) for mixer in model.mixers()):
        return "the packed layout of DeepSeek-V4"
    sparse = any(isinstance(mixer, LatentAttention) and mixer.indexer for mixer in model.mixers())
    if sparse and model.architecture == "DeepseekV32ForCausalLM" and (0, 11) <= release < (0, 11, 1):
        return "vLLM 0.11.0 packs DeepSeek-V3.2"
    blackwell = (profile.compute_capability or (0, 0))[0] == 10
    if sparse and model.architecture == "GlmMoeDsaForCausalLM" and blackwell and release >= (0, 32):
        return "vLLM's choice for GLM-5 on Blackwell"
    return ""


def _unquantised_flag(dtype: str, model: Model, profile: GpuProfile, version: EngineVersion) -> str:
    """How to ask for the model's own type: ``auto`` where that is what it means."""
    if not _fp8_by_default(model, profile, version):
        return "auto"
    flag = LONG_NAMES[dtype]
    if not value_status(version, "kv_cache_dtype", flag):
        raise IllegalPlanError(
            f"--kv-cache-dtype {flag}: vLLM {version} would take fp8 and cannot be told otherwise",
            hint="use --kv-cache-dtype fp8, or a newer --engine-version",
        )
    return flag


def _modelled(version: EngineVersion) -> list[str]:
    """The values that this version has and that are modelled here."""
    names = ["auto", *dict.fromkeys(LONG_NAMES.get(name, name) for name in KV_ELEMENT_BYTES)]
    return [name for name in names if value_status(version, "kv_cache_dtype", name)]
