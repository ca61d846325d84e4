"""From a checkpoint's ``quantization_config`` to the precision of each weight.

Every form is recognised by ``quant_method``; one that is not known is refused by name. What vLLM does at load
time (``--quantization fp8``) and a usual publisher's form of each ``weight_dtype`` are here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from planner.errors import InputError, UnsupportedModelError
from planner.model.architecture import Model
from planner.model.config import Config
from planner.model.precision import BF16, Precision, Quantization, Rule, rules

Block = Mapping[str, Any]
Reader = Callable[[Block, Precision], Quantization]

WEIGHT_DTYPES = tuple(["fp32", "bf16", "fp16", "fp8", "mxfp8", "mxfp4", "nvfp4", "int8-gptq", "int4-gptq", "int4-awq", "int4", "fp4-experts+fp8"])

PER_TENSOR, PER_CHANNEL = (0, 0), (1, 0)
FP8_STATIC = Precision("fp8", 8, "fp8", scale_bytes=4, group=PER_TENSOR, tensor_scales=1)
FP8_CHANNEL = Precision("fp8", 8, "fp8", scale_bytes=4, group=PER_CHANNEL)
FP8_TENSOR = Precision("fp8", 8, "fp8", scale_bytes=4, group=PER_TENSOR)
FP8_BLOCK = Precision("fp8", 8, "fp8", scale_bytes=4, group=(128, 128))
MXFP8 = Precision("mxfp8", 8, "fp8", scale_bytes=1, group=(1, 32))
MXFP4 = Precision("mxfp4", 4, "fp4", scale_bytes=1, group=(1, 32))
NVFP4 = Precision("nvfp4", 4, "fp4", scale_bytes=1, group=(1, 16), tensor_scales=2)


def read_quantization(config: Config, *, base: Precision, sidecar: dict[str, Any] | None) -> Quantization:
    """Precision of every weight of a checkpoint.

    ``base`` is the precision of what is not quantised; ``sidecar`` is ``hf_quant_config.json``, where there is
    one. Raises UnsupportedModelError for a form that is not understood.
    """
    block = _block(config, sidecar)
    if block is None:
        return Quantization(base.name, base)
    if config.outer.get("expert_dtype") == "fp4":
        block = {"expert_dtype": "fp4", **block}
    method = _method(block)
    reader = READERS.get(method)
    if reader is None:
        raise UnsupportedModelError(
            f"{config.model_id}: quantization method {method!r} is not understood",
            hint=f"understood: {', '.join(sorted(READERS))}",
        )
    return reader(block, base)


def _block(config: Config, sidecar: dict[str, Any] | None) -> Block | None:
    outer = config.outer
    for level in (outer, outer.nested("text_config"), config):
        found = level.get("quantization_config", "compression_config")
        if isinstance(found, Mapping):
            return found
    if sidecar is None:
        return None
    return {"quant_method": "modelopt", **sidecar.get("quantization", sidecar)}


def _method(block: Block) -> str:
    method = block.get("quant_method")
    if method is None:
        method = "modelopt" if "quant_algo" in block else "(none named)"
    return str(method).lower().replace("_", "-")


# --- fp8 ---------------------------------------------------------------------------------------------------------


def _kept(block: Block) -> tuple[Rule, ...]:
    """What the configuration excludes, under any of the names that publishers use."""
    names: list[str] = []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude", "exclude_modules"):
        names += block.get(key) or ()
    return rules(names, None)


def _fp8(block: Block, base: Precision) -> Quantization:
    """``fp8``: blocks with a scale each, or one scale per tensor; DeepSeek-V4 adds 4-bit experts."""
    static = block.get("activation_scheme") == "static"
    size = block.get("weight_block_size")
    linear = FP8_STATIC if static else FP8_TENSOR
    if size:
        linear = replace(FP8_BLOCK, group=(int(size[0]), int(size[1])))
    kv = "fp8" if block.get("kv_cache_scheme") or block.get("kv_cache_quant_algo") else None
    kept = _kept(block)
    if block.get("moe_quant_algo"):
        return Quantization(
            "nvfp4", base, "fp8", linear, expert=_modelopt_precision(str(block["moe_quant_algo"]), block, base)
        )
    if block.get("expert_dtype") == "fp4":
        return Quantization("fp4-experts+fp8", base, "fp8", replace(linear, scale_bytes=1), MXFP4, kept, kv)
    return Quantization("fp8", base, "fp8", linear, rules=kept, kv_cache_dtype=kv)


def _fbgemm(block: Block, base: Precision) -> Quantization:
    """``fbgemm_fp8``: one scale per output channel. Meta's checkpoints quantise the MLP of all but the outermost layers."""
    return Quantization("fp8", base, "fbgemm_fp8", FP8_CHANNEL, rules=_kept(block))


# --- compressed-tensors -------------------------------------------------------------------------------------------


def _compressed_tensors(block: Block, base: Precision) -> Quantization:
    groups = [g for g in (block.get("config_groups") or {}).values() if g.get("weights")]
    if not groups:
        raise UnsupportedModelError("compressed-tensors without config_groups", hint="check quantization_config")
    linear: Precision | None = None
    named: tuple[Rule, ...] = ()
    for group in groups:
        precision = _group_precision(group, str(group.get("format") or block.get("format") or ""), base)
        targets = [t for t in group.get("targets") or ["Linear"] if t not in _CLASSES]
        named += rules(targets, precision)
        if len(targets) < len(group.get("targets") or ["Linear"]):
            linear = precision
    main = linear or next(r.precision for r in named if r.precision)
    kv = "fp8" if (block.get("kv_cache_scheme") or {}).get("num_bits") == 8 else None
    return Quantization(_label(main), base, "compressed-tensors", linear, rules=_kept(block) + named, kv_cache_dtype=kv)


_CLASSES = {"Linear", "FusedMoE", "LinearBase", "MoE"}


def _group_precision(group: Block, form: str, base: Precision) -> Precision:
    weights = group["weights"]
    activations = group.get("input_activations")
    bits, kind, size = weights.get("num_bits"), weights.get("type"), weights.get("group_size") or 0
    static = bool(activations) and not activations.get("dynamic", False)
    if kind == "float" and bits == 4:
        if size == 16 or form.startswith("nvfp4"):
            return NVFP4 if activations else replace(NVFP4, compute_dtype=base.name, tensor_scales=1)
        return MXFP4 if activations else replace(MXFP4, compute_dtype=base.name)
    if kind == "float" and bits == 8:
        return _float8(weights, static, "fp8" if activations else base.name)
    if kind == "int" and bits in (4, 8):
        name = "int4" if bits == 4 else "int8-gptq"
        compute = "int8" if bits == 8 and activations else base.name
        zero_bits = 0 if weights.get("symmetric", True) else bits
        return Precision(name, bits, compute, 2, (1, size), zero_bits=zero_bits)
    raise UnsupportedModelError(
        f"quantization to {bits} bits of type {kind!r} is not understood", hint="see `planner models list`"
    )


def _float8(weights: Block, static: bool, compute_dtype: str) -> Precision:
    scheme = weights.get("strategy") or "tensor"
    if weights.get("group_size") == 32:
        return replace(MXFP8, compute_dtype=compute_dtype)
    group = {"tensor": PER_TENSOR, "channel": PER_CHANNEL}.get(scheme)
    if scheme == "block":
        rows, columns = weights.get("block_structure") or (128, 128)
        group = (int(rows), int(columns))
    return Precision("fp8", 8, compute_dtype, 4, group or PER_TENSOR, tensor_scales=int(static))


def _label(precision: Precision) -> str:
    return precision.name if precision.name in WEIGHT_DTYPES else "int4"


# --- mxfp4, quark, modelopt ---------------------------------------------------------------------------------------


def _mxfp4(block: Block, base: Precision) -> Quantization:
    """``mxfp4`` of gpt-oss: the routed experts only, with 16-bit activations."""
    note = "MXFP4 experts are multiplied with 16-bit activations unless the kernels of the GPU quantise them"
    return Quantization(
        "mxfp4", base, "mxfp4", expert=replace(MXFP4, compute_dtype=base.name), rules=_kept(block), notes=(note,)
    )


def _quark(block: Block, base: Precision) -> Quantization:
    main = _quark_precision(block.get("global_quant_config") or {}, base)
    layers = block.get("layer_quant_config") or {}
    named = tuple(r for name, spec in layers.items() for r in rules([name], _quark_precision(spec, base)))
    kv = "fp8" if (block.get("export") or {}).get("kv_cache_group") or block.get("kv_cache_quant_config") else None
    return Quantization(_label(main), base, "quark", main, rules=_kept(block) + named, kv_cache_dtype=kv)


def _quark_precision(spec: Block, base: Precision) -> Precision:
    weight = spec.get("weight") or {}
    inputs = spec.get("input_tensors")
    dtype, size = str(weight.get("dtype")), weight.get("group_size") or 0
    static = bool(inputs) and not inputs.get("is_dynamic", False)
    compute = {"fp4": "fp4", "fp8": "fp8", "int": "int8"}.get(dtype[:3], base.name) if inputs else base.name
    if dtype == "fp4":
        return replace(MXFP4, compute_dtype=compute)
    if dtype.startswith("fp8"):
        if size == 32:
            return replace(MXFP8, compute_dtype=compute)
        group = PER_CHANNEL if weight.get("qscheme") == "per_channel" else PER_TENSOR
        return Precision("fp8", 8, compute, 4, group, tensor_scales=int(static))
    if dtype in ("int4", "uint4"):
        return Precision("int4", 4, base.name, 2, (1, size), zero_bits=4 if dtype == "uint4" else 0)
    if dtype == "int8":
        return Precision("int8-gptq", 8, compute, 4, PER_CHANNEL)
    raise UnsupportedModelError(f"quark weights of type {dtype!r} are not understood", hint="serve another checkpoint")


def _modelopt(block: Block, base: Precision) -> Quantization:
    algo = str(block.get("quant_algo") or "").upper()
    scheme = block.get("kv_cache_scheme") or block.get("kv_cache_quant_algo")
    kv = "fp8" if scheme else None
    if algo == "MIXED_PRECISION":
        by_algo: dict[Precision, list[str]] = {}
        for name, spec in (block.get("quantized_layers") or {}).items():
            by_algo.setdefault(_modelopt_precision(str(spec["quant_algo"]), spec, base), []).append(name)
        named = tuple(r for precision, names in by_algo.items() for r in rules(names, precision))
        narrowest = min(by_algo, key=lambda p: p.bits)
        return Quantization(narrowest.name, base, "modelopt", rules=_kept(block) + named, kv_cache_dtype=kv)
    main = _modelopt_precision(algo, block, base)
    return Quantization(main.name, base, "modelopt", main, rules=_kept(block), kv_cache_dtype=kv)


def _modelopt_precision(algo: str, spec: Block, base: Precision) -> Precision:
    algo = algo.upper()
    known = {
        "FP8": FP8_STATIC,
        "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
        "FP8_PB_WO": FP8_BLOCK,
        "MXFP8": MXFP8,
        "MXFP4": MXFP4,
        "NVFP4": NVFP4,
        "W4A16_NVFP4": replace(NVFP4, compute_dtype=base.name, tensor_scales=1),
        "W4A16_AWQ": Precision("int4-awq", 4, base.name, 2, (1, int(spec.get("group_size") or 128))),
    }
    if algo not in known:
        raise UnsupportedModelError(
            f"modelopt's {algo or '(none)'} is not understood", hint=f"understood: {', '.join(known)}"
        )
    return known[algo]


# --- integers -----------------------------------------------------------------------------------------------------


def _awq(block: Block, base: Precision) -> Quantization:
    bits, size = int(block.get("bits", 4)), int(block.get("group_size", 128))
    precision = Precision(
        "int4-awq", bits, base.name, 2, (1, max(size, 0)), zero_bits=bits if block.get("zero_point", True) else 0
    )
    return Quantization("int4-awq", base, "awq", precision, rules=_kept(block))


def _gptq(block: Block, base: Precision) -> Quantization:
    """``gptq``: packed zero points are stored even when the form is symmetric, and so is one index per input."""
    bits, size = int(block.get("bits", 4)), int(block.get("group_size", 128))
    name = "int4-gptq" if bits <= 4 else "int8-gptq"
    precision = Precision(name, bits, base.name, 2, (1, max(size, 0)), zero_bits=bits, index_bytes=4)
    return Quantization(name, base, "gptq", precision, rules=_kept(block))


def _bitsandbytes(block: Block, base: Precision) -> Quantization:
    """``bitsandbytes``: NF4 with a scale per 64 values, or LLM.int8() with a scale per output channel."""
    if block.get("load_in_8bit") or block.get("_load_in_8bit"):
        int8 = Precision("int8", 8, "int8", 4, PER_CHANNEL)
        return Quantization("int8-gptq", base, "bitsandbytes", int8, rules=_kept(block))
    nf4 = Precision("int4", 4, base.name, 4, (1, 64))
    return Quantization("int4", base, "bitsandbytes", nf4, rules=_kept(block))


READERS: dict[str, Reader] = {
    "fp8": _fp8,
    "deepseek-v4-fp8": _fp8,
    "fbgemm-fp8": _fbgemm,
    "compressed-tensors": _compressed_tensors,
    "mxfp4": _mxfp4,
    "quark": _quark,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "modelopt-mixed": _modelopt,
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
}


# --- what vLLM or a publisher would make of a 16-bit checkpoint ----------------------------------------------------


def online_fp8(model: Model) -> Model:
    """``--quantization fp8`` on a 16-bit checkpoint: linear weights of the layers, one scale per tensor.

    Embeddings, lm_head, routers and norms stay as they are. A quantised checkpoint is returned unchanged.
    """
    if model.quantization.method is not None:
        return model
    base = model.quantization.base
    return replace(model, quantization=Quantization("fp8", base, "fp8", FP8_TENSOR))


def as_quantized(model: Model, weight_dtype: str) -> Model:
    """The same architecture in the form that publishers usually give ``weight_dtype``.

    Raises InputError for a name outside ``WEIGHT_DTYPES``.
    """
    if weight_dtype not in WEIGHT_DTYPES:
        raise InputError(f"unknown weight dtype {weight_dtype!r}", hint=f"one of: {', '.join(WEIGHT_DTYPES)}")
    base = model.quantization.base
    return replace(model, quantization=_usual_form(weight_dtype, base))


def _usual_form(weight_dtype: str, base: Precision) -> Quantization:
    forms = {
        "fp8": ("fp8", FP8_CHANNEL, None),
        "mxfp8": ("modelopt", MXFP8, None),
        "mxfp4": ("quark", MXFP4, None),
        "nvfp4": ("modelopt", NVFP4, None),
        "int4-awq": ("awq", Precision("int4-awq", 4, base.name, 2, (1, 128), zero_bits=4), None),
        "int4-gptq": ("gptq", Precision("int4-gptq", 4, base.name, 2, (1, 128), 4, index_bytes=4), None),
        "int8-gptq": ("gptq", Precision("int8-gptq", 8, base.name, 2, (1, 128), 8, index_bytes=4), None),
        "int4": ("compressed-tensors", Precision("int4", 4, base.name, 2, (1, 128)), None),
        "fp4-experts+fp8": ("fp8", replace(FP8_BLOCK, scale_bytes=1), MXFP4),
    }
    if weight_dtype not in forms:
        unquantized = {"fp32": 32, "bf16": 16, "fp16": 16}
        return Quantization(weight_dtype, Precision(weight_dtype, unquantized[weight_dtype], weight_dtype))
    method, linear, expert = forms[weight_dtype]
    return Quantization(weight_dtype, base, method, linear, expert)


__all__ = ["BF16", "WEIGHT_DTYPES", "as_quantized", "online_fp8", "read_quantization"]
