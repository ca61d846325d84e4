"""Quantisation of a model: the checkpoint's own, one made at load time, or a publisher's usual form."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import IllegalPlanError, InputError, UnsupportedModelError
from planner.model.architecture import Model
from planner.model.config import COMPLETE, Config
from planner.model.precision import (
    FP8_BLOCK,
    FP8_CHANNEL,
    FP8_DYNAMIC,
    FP8_STATIC,
    FP8_TENSOR,
    MXFP4,
    MXFP8,
    NVFP4,
    PER_CHANNEL,
    PER_TENSOR,
    UNQUANTIZED,
    WEIGHT_DTYPES,
    Precision,
    PrecisionRule,
    Quantization,
    canonical,
    int4,
    rules,
    weight_only,
)


def read_quantization(config: Config, *, base: Precision, sidecar: dict[str, Any] | None) -> Quantization:
    """Precision of every weight of a checkpoint. ``base``: of unquantised weights. ``sidecar`` counts only where
    config.json has nothing. Raises UnsupportedModelError for an unknown form."""
    stated = _stated(config, sidecar)
    if stated is None:
        return Quantization(base.name, base)
    block = Config(stated, model_id=config.model_id, outer=config.outer)
    method = block.text("quant_method", default="modelopt" if block.has("quant_algo") else "(none named)")
    reader = READERS.get(method.lower().replace("_", "-"))
    if reader is None:
        cause = f"{config.model_id}: quantization method {method!r} is not understood"
        raise UnsupportedModelError(cause, hint=f"understood: {', '.join(sorted(READERS))}")
    levels = (level for level in (config, config.outer.nested("text_config")) if level.has("num_hidden_layers"))
    form = reader(QuantizationForm(block, next(levels, config), base))
    return form if block.has("quant_method") else replace(form, method="")


def _stated(config: Config, sidecar: dict[str, Any] | None) -> Mapping[str, Any] | None:
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


_INT8 = Precision("int8-gptq", 8, "bf16", 4, PER_CHANNEL)
_NF4 = Precision("int4", 4, "bf16", 4, (1, 64))
#: Values of ``--quantization`` that quantise a 16-bit checkpoint: precision of linear weights, and of routed experts
#: (``_ONLINE_SHORTHANDS`` of config/quantization.py, ``get_quant_method`` of each). None: left in 16 bits.
AT_LOAD_TIME: dict[str, tuple[Precision | None, Precision | None]] = {
    "fp8": (FP8_TENSOR, FP8_TENSOR), "fp8_per_tensor": (FP8_TENSOR, FP8_TENSOR), "ptpc_fp8": (FP8_CHANNEL, None),
    "fp8_per_channel": (FP8_CHANNEL, FP8_CHANNEL), "fp8_per_block": (FP8_BLOCK, FP8_BLOCK), "mxfp8": (MXFP8, MXFP8),
    "mxfp4": (MXFP4, MXFP4), "bitsandbytes": (_NF4, _NF4), "experts_int8": (None, _INT8),
    "int8_per_channel_weight_only": (None, _INT8), "nvfp4_per_token": (None, NVFP4),
}  # fmt: skip


def load_quantized(model: Model, method: str) -> Model:
    """``model`` as ``vllm serve --quantization METHOD`` holds it: linear weights of its layers, or experts, are
    quantised. A checkpoint quantised like that stays as it is. Raises IllegalPlanError for one quantised otherwise."""
    stored = model.quantization.method
    if stored is not None:
        asked, own = method.replace("_", "-"), stored.replace("_", "-")  # gptq_marlin, auto_gptq and gptq are one form
        alike = own in ("gptq", "awq", "mxfp4", "fp8") and own in asked and "fbgemm" not in asked
        if alike or own in ("", "modelopt", asked):
            return model
        cause = f"--quantization {method}: {model.id} is already quantised with {stored}"
        raise IllegalPlanError(cause, hint="leave out --quantization: vLLM reads it from the checkpoint")
    base, (linear, expert) = model.quantization.base, AT_LOAD_TIME.get(method, (None, None))
    held = linear or (expert if model.is_moe else None) or base
    return replace(model, quantization=Quantization(held.name, base, method, linear, expert or base))


def as_quantized(model: Model, weight_dtype: str) -> Model:
    """A copy of ``model`` in a publisher's usual form: amd/*-MXFP4, nvidia/*-NVFP4, RedHatAI/*-FP8-dynamic, Qwen/*-AWQ
    and *-GPTQ, deepseek-ai/DeepSeek-V4. Four-bit floats of MoEs leave attention in 16 bits, all forms MTP modules."""
    if weight_dtype not in WEIGHT_DTYPES:
        near = " or ".join(one for one in WEIGHT_DTYPES if weight_dtype.lower() in one)
        hint = f"nearest: {near}" if near else f"one of: {', '.join(WEIGHT_DTYPES)}"
        raise InputError(f"unknown weight dtype {weight_dtype!r}", hint=hint)
    if weight_dtype == model.quantization.weight_dtype:
        return model
    if weight_dtype in UNQUANTIZED:
        return replace(model, dtype=weight_dtype, quantization=Quantization(weight_dtype, UNQUANTIZED[weight_dtype]))
    base = model.quantization.base
    forms: dict[str, tuple[str, Precision]] = {
        "fp8": ("compressed-tensors", FP8_DYNAMIC),
        "mxfp8": ("modelopt", MXFP8),
        "mxfp4": ("quark", MXFP4),
        "nvfp4": ("modelopt", NVFP4),
        "int4-awq": ("awq", int4("int4-awq", base, zero_bits=4)),
        "int4-gptq": ("gptq", int4("int4-gptq", base, zero_bits=4, index_bytes=4)),
        "int8-gptq": ("gptq", int4("int8-gptq", base, zero_bits=8, bits=8, index_bytes=4)),
        "int4": ("compressed-tensors", int4("int4", base)),
        "fp4-experts+fp8": ("fp8", replace(FP8_BLOCK, scale_bytes=1)),
    }
    method, linear = forms[weight_dtype]
    expert = MXFP4 if weight_dtype == "fp4-experts+fp8" else None
    plain = ["self_attn", "linear_attn", "mamba", "attn"] if model.is_moe and linear.compute_dtype == "fp4" else []
    # roots of the paths of the MTP modules: ``mtp``, or a layer after the last (``layers.61``)
    paths = (canonical(weight.name) for weight in model.mtp)
    roots = {f"layers.{index}" if path.startswith("layers.#") else path.partition(".")[0] for path, index in paths}
    excluded = rules(plain, None) + rules(roots, None)
    return replace(model, quantization=Quantization(weight_dtype, base, method, linear, expert, excluded))


@dataclass(frozen=True)
class QuantizationForm:
    block: Config
    config: Config  #: of the model
    base: Precision

    def excluded(self) -> tuple[PrecisionRule, ...]:
        """Rules for the excluded modules, under any of the names that publishers use."""
        keys = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude", "exclude_modules")
        return tuple(rule for key in keys for rule in self.rules(self.block.names(key), None))

    def rules(self, names: list[str], precision: Precision | None) -> tuple[PrecisionRule, ...]:
        try:
            return rules(names, precision)
        except re.error as error:
            cause = f"{self.config.model_id}: quantization_config lists a broken expression ({error})"
            raise UnsupportedModelError(cause, hint=COMPLETE) from error

    def unknown(self, what: str) -> UnsupportedModelError:
        cause = f"{self.config.model_id}: quantization to {what} is not understood"
        return UnsupportedModelError(cause, hint="plan for the unquantised model, or another quantised checkpoint")

    def quantization(
        self, method: str, linear: Precision | None, *, expert: Precision | None = None,
        named: tuple[PrecisionRule, ...] = (), kv_cache: bool = False, weight_dtype: str = "",
        notes: tuple[str, ...] = (),
    ) -> Quantization:  # fmt: skip
        """The result. Precedence: exclusions, then named modules, then all other linear weights."""
        main = weight_dtype or _label(linear or expert, named)
        kv_cache_dtype = "fp8" if kv_cache else None
        return Quantization(main, self.base, method, linear, expert, self.excluded() + named, kv_cache_dtype, notes)


def part(block: Config, key: str) -> Config | None:
    """The dictionary under ``key``; None where there is none. Raises UnsupportedModelError for anything else."""
    return block.section(key) if block.has(key) else None


def _parts(block: Config, key: str) -> dict[str, Config]:
    holder = part(block, key)
    names = [name for name in holder.values if isinstance(name, str)] if holder else []
    return {name: inner for name in names if holder and (inner := part(holder, name))}


def _group(block: Config, default: int = 0) -> int:
    """Inputs that share a scale; 0 (also written -1, or null) means all of them."""
    return 0 if block.get("group_size") == -1 else block.size("group_size", default=default)


def _label(main: Precision | None, named: tuple[PrecisionRule, ...]) -> str:
    narrowest = main or min((r.precision for r in named if r.precision), key=lambda p: p.bits, default=FP8_TENSOR)
    return narrowest.name if narrowest.name in WEIGHT_DTYPES else "int8-gptq"


def _fp8(form: QuantizationForm) -> Quantization:
    """A scale per block (DeepSeek-V3) or tensor (AMD). DeepSeek-V4 has 8-bit scales and MXFP4 experts, also where
    ``expert_dtype`` is left out. NVIDIA's re-quantises experts to NVFP4; its ``ignore`` does not list what is 16-bit.
    """
    block, outer = form.block, form.config.outer
    if size := block.sizes("weight_block_size", count=2) if block.has("weight_block_size") else []:
        linear = replace(FP8_BLOCK, group=(size[0], size[1]))
    else:
        linear = FP8_STATIC if block.text("activation_scheme", default="dynamic") == "static" else FP8_TENSOR
    kv_cache = bool(block.get("kv_cache_scheme", "kv_cache_quant_algo"))
    default = "fp4" if outer.get("model_type") == "deepseek_v4" else "fp8"
    if outer.text("expert_dtype", default=default) != "fp4":
        return form.quantization("fp8", linear, kv_cache=kv_cache)
    linear = replace(linear, scale_bytes=1)
    if not block.has("moe_quant_algo"):
        return form.quantization("fp8", linear, expert=MXFP4, kv_cache=kv_cache, weight_dtype="fp4-experts+fp8")
    named = _quantized_layers(form)
    return Quantization(_label(None, named), form.base, "fp8", linear, MXFP4, named, "fp8" if kv_cache else None)


def _fbgemm(form: QuantizationForm) -> Quantization:
    """A scale per output channel. Default exclusions: The Llama 3 Herd of Models, section 6.2."""
    if form.block.names("modules_to_not_convert"):
        return form.quantization("fbgemm_fp8", FP8_CHANNEL)
    last = form.config.num_layers - 1
    recipe = form.rules(["self_attn", "model.layers.0.*", f"model.layers.{last}.*"], None)
    note = "quantization_config names no exclusions: attention and the first and last layer are taken as 16-bit"
    return form.quantization("fbgemm_fp8", FP8_CHANNEL, named=recipe, notes=(note,))


CLASSES = {"Linear", "LinearBase", "FusedMoE", "RoutedExperts"}


def _compressed_tensors(form: QuantizationForm) -> Quantization:
    linear: Precision | None = None
    named: tuple[PrecisionRule, ...] = ()
    for group in _parts(form.block, "config_groups").values():
        weights = part(group, "weights")
        if weights is None:
            continue
        packing = group.text("format", default=form.block.text("format", default=""))
        precision = _scheme(form, weights, part(group, "input_activations"), packing)
        targets = group.names("targets") or ["Linear"]
        named += form.rules([target for target in targets if target not in CLASSES], precision)
        linear = precision if CLASSES.intersection(targets) else linear
    if linear is None and not named:
        raise form.unknown("compressed-tensors without config_groups")
    scheme = part(form.block, "kv_cache_scheme")
    kv_cache = scheme is not None and scheme.get("num_bits") == 8
    return form.quantization("compressed-tensors", linear, named=named, kv_cache=kv_cache)


def _scheme(form: QuantizationForm, weights: Config, activations: Config | None, packing: str) -> Precision:
    """Scales of floats and integers are stored in the model's 16 bits, of MX and NV in 8."""
    bits, kind, size = weights.size("num_bits"), weights.text("type", default="int"), _group(weights)
    if (kind, bits) == ("float", 4):
        precision = NVFP4 if size == 16 or packing.startswith("nvfp4") else MXFP4
    elif (kind, bits) == ("float", 8):
        # a scale of activations is stored unless it is made anew: for all, or as NVFP4's for every group
        anew = not activations or activations.get("dynamic") == "local" or activations.flag("dynamic", default=False)
        strategy = weights.text("strategy", default="tensor")
        group = PER_CHANNEL if strategy == "channel" else PER_TENSOR
        precision = MXFP8 if size == 32 else Precision("fp8", 8, "fp8", 2, group, tensor_scales=int(not anew))
        if strategy == "block" and size != 32:
            rows, columns = weights.sizes("block_structure", count=2) or FP8_BLOCK.group or PER_TENSOR
            precision = replace(FP8_BLOCK, group=(rows, columns))
    elif kind == "int" and bits in (4, 8):
        zero_bits = 0 if weights.flag("symmetric", default=True) else bits
        precision = int4("int4" if bits == 4 else "int8-gptq", form.base, size, zero_bits=zero_bits, bits=bits)
        return replace(precision, compute_dtype="int8") if activations and bits == 8 else precision
    else:
        raise form.unknown(f"{bits} bits of type {kind!r}")
    return precision if activations else weight_only(precision, form.base)


def _mxfp4(form: QuantizationForm) -> Quantization:  # of gpt-oss: the routed experts and nothing else
    note = "MXFP4 experts are multiplied with 16-bit activations unless the kernels of the GPU quantise them"
    return form.quantization("mxfp4", None, expert=weight_only(MXFP4, form.base), notes=(note,))


def _quark(form: QuantizationForm) -> Quantization:
    scheme = part(form.block, "global_quant_config")
    if scheme is None:
        raise form.unknown("quark without global_quant_config")
    named: tuple[PrecisionRule, ...] = ()
    for name, exception in _parts(form.block, "layer_quant_config").items():
        named += form.rules([name], _quark_precision(form, exception))
    export = part(form.block, "export")
    kv_cache = bool(form.block.get("kv_cache_quant_config") or (export and export.names("kv_cache_group")))
    return form.quantization("quark", _quark_precision(form, scheme), named=named, kv_cache=kv_cache)


def _quark_precision(form: QuantizationForm, scheme: Config) -> Precision | None:
    weight, inputs = part(scheme, "weight"), part(scheme, "input_tensors")
    if weight is None:
        return None
    dtype, size = weight.text("dtype"), _group(weight)
    static = inputs is not None and not inputs.flag("is_dynamic", default=False)
    group = PER_CHANNEL if weight.text("qscheme", default="") == "per_channel" else PER_TENSOR
    if dtype == "fp4":
        return MXFP4 if inputs else weight_only(MXFP4, form.base)
    if dtype in ("fp8_e4m3", "fp8_e5m2"):
        precision = MXFP8 if size == 32 else Precision("fp8", 8, "fp8", 4, group, tensor_scales=int(static))
        return precision if inputs else weight_only(precision, form.base)
    if dtype in ("int4", "uint4"):
        return int4("int4", form.base, size, zero_bits=4 if dtype == "uint4" else 0)
    if dtype == "int8":
        return Precision("int8-gptq", 8, "int8" if inputs else form.base.name, 4, group)
    raise form.unknown(f"quark's {dtype!r}")


def _modelopt(form: QuantizationForm) -> Quantization:
    algorithm = form.block.text("quant_algo", default="").upper()
    kv_cache, mixed = bool(form.block.get("kv_cache_scheme", "kv_cache_quant_algo")), algorithm == "MIXED_PRECISION"
    linear, named = (None, _quantized_layers(form)) if mixed else (_modelopt_precision(form, form.block), ())
    return form.quantization("modelopt", linear, named=named, kv_cache=kv_cache)


def _quantized_layers(form: QuantizationForm) -> tuple[PrecisionRule, ...]:
    listed: dict[tuple[str, str], tuple[Config, list[str]]] = {}
    for name, spec in _parts(form.block, "quantized_layers").items():
        key = (str(spec.get("quant_algo")), str(spec.get("group_size")))
        listed.setdefault(key, (spec, []))[1].append(name)
    if not listed:
        raise form.unknown("MIXED_PRECISION without quantized_layers")
    return tuple(r for spec, names in listed.values() for r in form.rules(names, _modelopt_precision(form, spec)))


def _modelopt_precision(form: QuantizationForm, spec: Config) -> Precision:
    algorithm = spec.text("quant_algo", default="(none)").upper()
    known = {
        "FP8": FP8_STATIC, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "FP8_PB_WO": FP8_BLOCK, "MXFP8": MXFP8,
        "NVFP4": NVFP4, "W4A16_NVFP4": weight_only(NVFP4, form.base),
        "W4A16_AWQ": int4("int4-awq", form.base, _group(spec, 128)),
    }  # fmt: skip
    if algorithm not in known:
        raise form.unknown(f"modelopt's {algorithm}")
    return known[algorithm]


def _awq(form: QuantizationForm) -> Quantization:
    bits = form.block.size("bits", default=4)
    if bits != 4:
        raise form.unknown(f"awq of {bits} bits")
    zero_bits = 4 if form.block.flag("zero_point", default=True) else 0
    return form.quantization("awq", int4("int4-awq", form.base, _group(form.block, 128), zero_bits=zero_bits))


def _gptq(form: QuantizationForm) -> Quantization:
    """Zero points and a group index for each input are always stored; Marlin drops both (0.03 bit of 4.2 at groups of
    128). ``dynamic`` excludes (``-:``) or changes (``+:``) modules by expression."""
    bits, size = form.block.size("bits", default=4), _group(form.block, 128)
    if bits not in (2, 3, 4, 8):
        raise form.unknown(f"gptq of {bits} bits")
    named: tuple[PrecisionRule, ...] = ()
    for expression, change in _parts(form.block, "dynamic").items():
        precision = _gptq_precision(change.size("bits", default=bits), _group(change, size), form.base)
        excluded = expression.startswith("-:")
        named += form.rules(["re:" + expression.removeprefix("-:").removeprefix("+:")], None if excluded else precision)
    precision = _gptq_precision(bits, size, form.base)
    if form.block.flag("lm_head", default=False):
        named += form.rules(["lm_head"], precision)
    return form.quantization("gptq", precision, named=named)


def _gptq_precision(bits: int, size: int, base: Precision) -> Precision:
    return int4("int4-gptq" if bits <= 4 else "int8-gptq", base, size, zero_bits=bits, bits=bits, index_bytes=4)


def _auto_round(form: QuantizationForm) -> Quantization:
    bits, size = form.block.size("bits", default=4), _group(form.block, 128)
    if form.block.text("data_type", default="int") != "int" or bits not in (4, 8):
        raise form.unknown(f"auto-round's {bits} bits of {form.block.get('data_type')!r}")
    precision = int4("int4" if bits == 4 else "int8-gptq", form.base, size, zero_bits=bits, bits=bits)
    return form.quantization("auto-round", precision)


def _bitsandbytes(form: QuantizationForm) -> Quantization:
    """``bitsandbytes``: NF4 with a 32-bit scale per 64 values, or LLM.int8() with one per output channel."""
    if form.block.flag("load_in_8bit", "_load_in_8bit", default=False):
        return form.quantization("bitsandbytes", Precision("int8-gptq", 8, "int8", 4, PER_CHANNEL))
    return form.quantization("bitsandbytes", Precision("int4", 4, form.base.name, 4, (1, 64)))


#: A new form is one function and one line here.
READERS: dict[str, Callable[[QuantizationForm], Quantization]] = {
    **dict.fromkeys(("fp8", "deepseek-v4-fp8"), _fp8),
    "fbgemm-fp8": _fbgemm,
    "mxfp8": lambda form: form.quantization("mxfp8", MXFP8),
    "compressed-tensors": _compressed_tensors,
    **dict.fromkeys(("mxfp4", "gpt-oss-mxfp4"), _mxfp4),
    "quark": _quark,
    **dict.fromkeys(("modelopt", "modelopt-fp4", "modelopt-mxfp8", "modelopt-mixed"), _modelopt),
    "awq": _awq,
    "gptq": _gptq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
}
