"""The quantisation that a model is served in: the checkpoint's own, one made at load time, or a usual form.

::

    read_quantization    what config.json or hf_quant_config.json says
    load_quantized       what ``vllm serve --quantization`` makes of a 16-bit checkpoint
    as_quantized         how publishers usually store a weight dtype, for a checkpoint whose config is not at hand
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.errors import IllegalPlanError, InputError, UnsupportedModelError
from planner.model.architecture import Model
from planner.model.config import Config
from planner.model.forms import READERS, QuantizationForm
from planner.model.precision import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_DYNAMIC,
    FP8_TENSOR,
    MXFP4,
    MXFP8,
    NVFP4,
    PER_CHANNEL,
    UNQUANTIZED,
    WEIGHT_DTYPES,
    Precision,
    Quantization,
    canonical,
    int4,
    rules,
)

# --- the checkpoint's own ----------------------------------------------------------------------------------------


def read_quantization(config: Config, *, base: Precision, sidecar: dict[str, Any] | None) -> Quantization:
    """Precision of every weight of a checkpoint.

    ``base`` is the precision of what is not quantised. ``sidecar`` is the content of ``hf_quant_config.json``, if
    there is one; it counts only where config.json says nothing. Raises UnsupportedModelError for an unknown form.
    """
    found = _stated(config, sidecar)
    if found is None:
        return Quantization(base.name, base)
    block = Config(found, model_id=config.model_id, outer=config.outer)
    method = block.text("quant_method", default="modelopt" if block.has("quant_algo") else "(none named)")
    reader = READERS.get(method.lower().replace("_", "-"))
    if reader is None:
        raise UnsupportedModelError(
            f"{config.model_id}: quantization method {method!r} is not understood",
            hint=f"understood: {', '.join(sorted(READERS))}",
        )
    levels = (level for level in (config, config.outer.nested("text_config")) if level.has("num_hidden_layers"))
    return reader(QuantizationForm(block, next(levels, config), base))


def _stated(config: Config, sidecar: dict[str, Any] | None) -> Mapping[str, Any] | None:
    """The ``quantization_config``, from the outer or the text level, else what the sidecar holds."""
    for level in (config.outer, config.outer.nested("text_config"), config):
        value = level.get("quantization_config", "compression_config")
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise level.refuse("quantization_config", "an object")
        if value:
            return value
    inner = sidecar.get("quantization", sidecar) if isinstance(sidecar, Mapping) else None
    return {"quant_method": "modelopt", **inner} if isinstance(inner, Mapping) and inner.get("quant_algo") else None


# --- what vLLM makes at load time --------------------------------------------------------------------------------

#: Values of ``--quantization`` that quantise a 16-bit checkpoint: precision of linear weights.
AT_LOAD_TIME = {
    "fp8": FP8_TENSOR,
    "fp8_per_tensor": FP8_TENSOR,
    "ptpc_fp8": FP8_CHANNEL,
    "fp8_per_channel": FP8_CHANNEL,
    "fp8_per_block": FP8_BLOCK,
    "mxfp8": MXFP8,
}


def load_quantized(model: Model, method: str) -> Model:
    """``model`` as ``vllm serve --quantization METHOD`` holds it.

    A 16-bit checkpoint is quantised while it loads: the linear weights of its layers; embeddings, lm_head, routers
    and norms stay as they are. A quantised checkpoint stays as it is, under its own method. Raises
    IllegalPlanError where vLLM would refuse.
    """
    own = model.quantization.method
    if own is not None:
        if _same_method(method, own):
            return model
        raise IllegalPlanError(
            f"--quantization {method}: {model.id} is already quantised with {own}",
            hint="leave out --quantization: vLLM reads it from the checkpoint",
        )
    base = model.quantization.base
    known = {
        **AT_LOAD_TIME,
        "int8_per_channel_weight_only": Precision("int8-gptq", 8, base.name, 4, PER_CHANNEL),
        "bitsandbytes": Precision("int4", 4, base.name, 4, (1, 64)),
    }
    if method not in known:
        raise IllegalPlanError(
            f"--quantization {method}: vLLM cannot quantise {model.id} with it at load time",
            hint=f"serve a quantised checkpoint, or use one of: {', '.join(known)}",
        )
    linear = known[method]
    return replace(model, quantization=Quantization(linear.name, base, method, linear))


def _same_method(asked: str, own: str) -> bool:
    """Whether two names mean one form of checkpoint, as gptq_marlin, auto_gptq and gptq do."""
    asked, own = asked.replace("_", "-"), own.replace("_", "-")
    stems = ("gptq", "awq", "modelopt", "mxfp4", "fp8")
    return asked == own or any(stem in asked and own == stem and "fbgemm" not in asked for stem in stems)


# --- a publisher's usual form ------------------------------------------------------------------------------------


def as_quantized(model: Model, weight_dtype: str) -> Model:
    """The same architecture, quantised as publishers usually do for ``weight_dtype``.

    A model that already has this weight dtype is returned unchanged. Raises InputError for a name outside
    ``WEIGHT_DTYPES``.
    """
    if weight_dtype not in WEIGHT_DTYPES:
        raise InputError(f"unknown weight dtype {weight_dtype!r}", hint=f"one of: {', '.join(WEIGHT_DTYPES)}")
    if weight_dtype == model.quantization.weight_dtype:
        return model
    if weight_dtype in UNQUANTIZED:
        return replace(model, dtype=weight_dtype, quantization=Quantization(weight_dtype, UNQUANTIZED[weight_dtype]))
    return replace(model, quantization=_usual_form(model, weight_dtype))


def _usual_form(model: Model, weight_dtype: str) -> Quantization:
    """Forms of amd/*-MXFP4, nvidia/*-NVFP4, RedHatAI/*-FP8-dynamic, Qwen/*-AWQ and *-GPTQ, deepseek-ai/DeepSeek-V4.

    Four-bit floats of a mixture of experts leave attention in 16 bits, as AMD's and NVIDIA's do. MTP modules stay in
    16 bits in all of them: llm-compressor does not load them, NVIDIA's checkpoints list them as excluded.
    """
    base = model.quantization.base
    forms: dict[str, tuple[str, Precision, Precision | None]] = {
        "fp8": ("compressed-tensors", FP8_DYNAMIC, None),
        "mxfp8": ("modelopt", MXFP8, None),
        "mxfp4": ("quark", MXFP4, None),
        "nvfp4": ("modelopt", NVFP4, None),
        "int4-awq": ("awq", int4("int4-awq", base, zero_bits=4), None),
        "int4-gptq": ("gptq", int4("int4-gptq", base, zero_bits=4, index_bytes=4), None),
        "int8-gptq": ("gptq", int4("int8-gptq", base, zero_bits=8, bits=8, index_bytes=4), None),
        "int4": ("compressed-tensors", int4("int4", base), None),
        "fp4-experts+fp8": ("fp8", replace(FP8_BLOCK, scale_bytes=1), MXFP4),
    }
    method, linear, expert = forms[weight_dtype]
    kept = (
        rules(["self_attn", "linear_attn", "mamba", "attn"], None)
        if model.is_moe and linear.compute_dtype == "fp4"
        else ()
    )
    return Quantization(weight_dtype, base, method, linear, expert, kept + rules(_mtp_roots(model), None))


def _mtp_roots(model: Model) -> set[str]:
    """What all weights of the MTP modules lie under: ``mtp``, or a layer after the last (``layers.61``)."""
    paths = (canonical(weight.name) for weight in model.mtp)
    return {f"layers.{index}" if path.startswith("layers.#") else path.partition(".")[0] for path, index in paths}
