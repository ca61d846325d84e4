"""Speculative decoding: what ``--speculative-config`` says, and which of it the version understands.

::

    mtp            the model's own multi-token-prediction modules draft; they are loaded beside it
    draft_model    a smaller model of the same vocabulary drafts
    eagle          one decoder layer on top of the model's hidden states drafts; embedding and lm_head are shared
    ngram, suffix  earlier text drafts: nothing is loaded

>>> parse_speculative_config('{"method": "mtp", "num_speculative_tokens": 3}').num_speculative_tokens
3
"""

from __future__ import annotations

import json
from typing import Any

from planner.engine.config import SpeculativeConfig, SpeculativeMethod
from planner.engine.features import Features
from planner.engine.flags import flag_status, value_status
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.model.architecture import Model

FLAG = "--speculative-config"
#: vLLM's names of methods whose memory is understood; older versions call mtp after the model's architecture.
METHODS: dict[str, SpeculativeMethod] = {
    "mtp": "mtp", "draft_model": "draft_model", "eagle": "eagle", "ngram": "ngram", "[ngram]": "ngram",
    "suffix": "suffix",
}  # fmt: skip
_EXAMPLE = f'such as {FLAG} \'{{"method": "mtp", "num_speculative_tokens": 1}}\''


def parse_speculative_config(text: str) -> SpeculativeConfig:
    """Read the JSON of ``--speculative-config``. Raises InputError for what is no such JSON, or not understood."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InputError(f"{FLAG} is not JSON: {text[:80]!r}", hint=_EXAMPLE) from error
    if not isinstance(given, dict):
        raise InputError(f"{FLAG} is not a JSON object: {text[:80]!r}", hint=_EXAMPLE)
    tokens = given.get("num_speculative_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InputError(
            f"{FLAG}: num_speculative_tokens must be a whole number of at least 1, got {tokens!r}", hint=_EXAMPLE
        )
    draft = given.get("model")
    if draft is not None and not isinstance(draft, str):
        raise InputError(f"{FLAG}: model must be a hub id or a path, got {draft!r}", hint=_EXAMPLE)
    method = _method(given.get("method"), draft)
    if method in ("draft_model", "eagle") and not draft:
        raise InputError(f"{FLAG}: method {method} needs a model", hint='add "model": a hub id or a path')
    size = given.get("draft_tensor_parallel_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InputError(f"{FLAG}: draft_tensor_parallel_size must be at least 1, got {size!r}", hint="leave it out")
    return SpeculativeConfig(method, tokens, draft, size, json.dumps(given, separators=(",", ":")))


def _method(named: Any, draft: str | None) -> SpeculativeMethod:
    """The method, guessed from the draft's name where it is not given, as vLLM guesses (``config/speculative.py``)."""
    if named is None:
        if draft is None:
            raise InputError(f"{FLAG}: neither method nor model is given", hint=_EXAMPLE)
        if "eagle3" in draft.lower():
            named = "eagle3"
        elif draft in ("ngram", "[ngram]"):
            named = "ngram"
        else:
            named = "eagle" if "eagle-" in draft.lower() else "draft_model"
    known = METHODS.get(str(named)) or ("mtp" if str(named).endswith("_mtp") else None)
    if known is None:
        raise InputError(
            f"{FLAG}: the memory of method {named!r} is not known", hint=f"one of: {', '.join(dict.fromkeys(METHODS))}"
        )
    return known


def check_speculative_config(
    wanted: SpeculativeConfig,
    model: Model,
    version: EngineVersion,
    found: Features,
    tensor_parallel_size: int,
) -> None:
    """Raise IllegalPlanError where the version, the engine or the model cannot draft like that."""
    status = flag_status(version, FLAG)
    if not status:
        raise IllegalPlanError(f"{FLAG}: vLLM {version} does not have it ({status})", hint=status.hint)
    if found.engine == "V0":
        raise IllegalPlanError(
            f"{FLAG}: vLLM {version} runs its V0 engine here, whose speculative decoding is not modelled",
            hint="choose an --engine-version with the V1 engine",
        )
    for key in json.loads(wanted.text or "{}"):
        status = value_status(version, "speculative_config", key)
        if not status:
            raise IllegalPlanError(
                f"{FLAG}: vLLM {version} does not know {key!r} ({status})", hint=status.hint or "leave it out"
            )
    if wanted.method == "draft_model" and not found.draft_models:
        raise IllegalPlanError(
            f"{FLAG}: vLLM {version} (V1) does not draft with a model (not before 0.15.0)",
            hint='choose vLLM 0.15.0 or later, or "method": "ngram"',
        )
    if wanted.method == "mtp" and not model.mtp:
        raise IllegalPlanError(
            f"{FLAG}: {model.id} has no multi-token-prediction modules", hint='use another "method", such as ngram'
        )
    if wanted.draft_tensor_parallel_size not in (None, 1, tensor_parallel_size):
        raise IllegalPlanError(
            f"{FLAG}: draft_tensor_parallel_size {wanted.draft_tensor_parallel_size} is neither 1 nor the model's "
            f"{tensor_parallel_size}",
            hint="leave it out",
        )
