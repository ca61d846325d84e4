"""How many bytes a weight takes in each precision, and which weight of a model has which.

A quantised matrix is stored as its packed values plus scales::

    bytes = out x in x bits / 8  +  scales x scale_bytes (+ zero points)
    scales = one per tensor, per output channel, per group along the input, or per block

Sources of the forms: the checkpoints' own ``quantization_config`` and the OCP microscaling (MX) and NVFP4
formats: MXFP4 is 4 bits and one 8-bit scale per 32 values, NVFP4 is 4 bits and one 8-bit scale per 16 values
and one 32-bit scale per tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, prod


@dataclass(frozen=True, slots=True)
class Precision:
    """Storage and arithmetic of one weight."""

    name: str  #: as in ``weight_dtype``: bf16, fp8, mxfp4, nvfp4, int4-awq, ...
    bits: int  #: stored bits per value
    compute_dtype: str  #: what the matrix unit multiplies in: ``fp8`` for W8A8, ``bf16`` for weight-only forms
    scale_bytes: int = 0  #: of one scale
    group: tuple[int, int] | None = None  #: (rows, columns) that share a scale; 0 means the whole extent
    zero_bits: int = 0  #: of one packed zero point per scale
    tensor_scales: int = 0  #: further 4-byte scales per matrix (weight, input, KV)

    def scales(self, shape: tuple[int, ...]) -> int:
        """Number of scales of one matrix of ``shape`` (out, in)."""
        if self.group is None or len(shape) < 2:
            return 0
        out_features, in_features = prod(shape[:-1]), shape[-1]
        rows, columns = self.group
        return ceil(out_features / (rows or out_features)) * ceil(in_features / (columns or in_features))

    def stored_bytes(self, shape: tuple[int, ...], copies: int = 1) -> int:
        """Bytes of ``copies`` matrices of ``shape``, scales and zero points included."""
        values = ceil(prod(shape) * self.bits / 8)
        scales = self.scales(shape)
        return copies * (values + scales * self.scale_bytes + ceil(scales * self.zero_bits / 8) + 4 * self.tensor_scales)


FP32 = Precision("fp32", 32, "fp32")
BF16 = Precision("bf16", 16, "bf16")
FP16 = Precision("fp16", 16, "fp16")
UNQUANTIZED = {p.name: p for p in (FP32, BF16, FP16)}

#: Bytes of one cached element, by vLLM's ``--kv-cache-dtype``; ``auto`` is resolved before this is asked.
KV_ELEMENT_BYTES: dict[str, float] = {
    "fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Quantization:
    """Which weight of a model is stored in which precision."""

    weight_dtype: str  #: of most linear weights, in the words of ``--weight-dtype``
    base: Precision  #: of everything that is not quantised: norms, biases, embeddings, routers, lm_head
    method: str | None = None  #: ``quant_method`` of the checkpoint; None when it is not quantised
    linear: Precision | None = None  #: of linear weights inside layers; None means ``base``
    expert: Precision | None = None  #: of routed experts, where it differs from ``linear``
    keep: tuple[str, ...] = ()  #: regular expressions, matched at the start of a weight's full path: kept in ``base``
    overrides: tuple[tuple[str, Precision], ...] = ()  #: (regular expression, precision), first match wins
    kv_cache_dtype: str | None = None  #: that the checkpoint carries scales for, such as ``fp8``
    notes: tuple[str, ...] = field(default=())

    @lru_cache(maxsize=65536)  # noqa: B019  (frozen, and few live at a time)
    def precision_of(self, path: str, *, linear: bool, routed_expert: bool = False) -> Precision:
        """Precision of the weight at ``path`` (``model.layers.3.self_attn.q_proj``)."""
        for pattern, precision in self.overrides:
            if re.match(pattern, path):
                return precision
        if not linear or any(re.match(pattern, path) for pattern in self.keep):
            return self.base
        if routed_expert and self.expert:
            return self.expert
        return self.linear or self.base
