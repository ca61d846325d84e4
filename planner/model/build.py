"""Builds a ``Model`` of ``config.json``: a family builds it, dtype and quantisation are added, and all is checked."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from planner.errors import UnsupportedModelError
from planner.model.architecture import Attention, Model
from planner.model.config import COMPLETE, Config
from planner.model.families import BUILDERS
from planner.model.precision import UNQUANTIZED
from planner.model.quantization import read_quantization
from planner.resources import package_dir, tables_of

#: Names of dtypes in ``torch_dtype`` or ``dtype``, to the words of ``weight_dtype``.
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}


def model_from_config(config: dict[str, Any], *, model_id: str, sidecar: dict[str, Any] | None = None) -> Model:
    """The model that ``config`` (``config.json``) describes. Raises UnsupportedModelError, and no other error."""
    if not isinstance(config, Mapping):
        raise UnsupportedModelError(f"{model_id}: config.json is not an object", hint=COMPLETE)
    outer = Config(config, model_id=model_id)
    builder = BUILDERS.get(outer.architecture)
    if builder is None:
        raise _unknown(outer)
    parts = builder(outer)
    for layer in dict.fromkeys(parts.layers):
        mixer, moe = layer.mixer, layer.moe
        if isinstance(mixer, Attention) and mixer.num_heads % mixer.num_kv_heads:
            wrong = f"{mixer.num_heads} query heads over {mixer.num_kv_heads} KV heads, which do not divide"
        elif moe and moe.top_k > moe.num_experts:
            wrong = f"{moe.top_k} experts per token of {moe.num_experts}"
        else:
            continue
        raise UnsupportedModelError(f"{model_id}: config.json asks for {wrong}", hint=COMPLETE)
    dtype, notes = _dtype(outer)
    remote_code = parts.requires_remote_code or outer.has("auto_map")
    return Model(
        id=model_id, architecture=outer.architecture, model_type=outer.text("model_type", default=""), dtype=dtype,
        quantization=read_quantization(outer, base=UNQUANTIZED[dtype], sidecar=sidecar),
        **{**vars(parts), "notes": parts.notes + notes, "requires_remote_code": remote_code},
    )  # fmt: skip


def _unknown(config: Config) -> UnsupportedModelError:
    name = " ".join(config.architecture.split())[:80]  # one line, whatever the file holds
    if not name:
        cause = f"{config.model_id}: config.json names no architecture ('architectures' is missing or empty)"
        return UnsupportedModelError(cause, hint="give the config.json of a language model in Hugging Face format")
    table: dict[str, list[str]] = tables_of(package_dir("model") / "names.toml")["not_covered"]
    kind = next((kind for kind, words in table.items() if any(word in name for word in words)), "")
    near = "" if kind else ", ".join(get_close_matches(name, BUILDERS, n=3, cutoff=0.75))
    nearest = f"nearest: {near}; " if near else ""
    cause = f"{config.model_id}: the architecture {name} is not understood, so its weights and KV cache are unknown"
    other = f"as {kind} are not covered" if kind else "or add it to planner/model/families"
    return UnsupportedModelError(cause, hint=f"{nearest}see `planner models list`, {other}")


def _dtype(outer: Config) -> tuple[str, tuple[str, ...]]:
    for level in (outer, outer.nested("text_config")):
        name = level.text("torch_dtype", "dtype", default="").removeprefix("torch.")
        if name in DTYPES:
            return DTYPES[name], ()
        if name not in ("", "auto"):
            raise level.refuse("torch_dtype" if level.has("torch_dtype") else "dtype", f"one of {', '.join(DTYPES)}")
    return "bf16", ("config.json gives no dtype: bf16 is assumed",)
