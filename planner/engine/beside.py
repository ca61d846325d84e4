"""Drafts (``--speculative-config``) and LoRA adapters that are served with a model, and refusals by version.

A rate a accepts position i of a draft in a^i of the steps (Leviathan, Kalman and Matias, 2023, arXiv 2211.17192).
Shares of each position are taken as vLLM logs them (``Per-position acceptance rate``).

>>> parse_speculative_config('{"method": "mtp", "num_speculative_tokens": 3}').num_speculative_tokens
3
>>> with_acceptance(parse_speculative_config('{"method": "mtp", "num_speculative_tokens": 2}'), "0.5").acceptance_length
1.75
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from planner.engine.features import Features, releases
from planner.engine.flags import flag_status, value_status
from planner.engine.settings import (
    ACCEPTANCE_RATE,
    SETTINGS,
    EngineArgs,
    LoraConfig,
    SpeculativeConfig,
    SpeculativeMethod,
    flag_of,
)
from planner.engine.version import EngineVersion
from planner.errors import IllegalPlanError, InputError
from planner.model import Model
from planner.resources import package_dir

FLAG, RATE_FLAG = SETTINGS["speculative_config"].flag, ACCEPTANCE_RATE.flag
#: Options of vLLM before 0.8.2 by the keys of the JSON that took their place (both exist in 0.8.2).
OLD_FLAGS = {
    "model": "--speculative-model", "num_speculative_tokens": "--num-speculative-tokens",
    "draft_tensor_parallel_size": "--speculative-draft-tensor-parallel-size",
    "quantization": "--speculative-model-quantization", "max_model_len": "--speculative-max-model-len",
    "disable_by_batch_size": "--speculative-disable-by-batch-size", "prompt_lookup_max": "--ngram-prompt-lookup-max",
    "prompt_lookup_min": "--ngram-prompt-lookup-min", "acceptance_method": "--spec-decoding-acceptance-method",
}  # fmt: skip
#: The V0 engine's speculative decoding went before the engine itself (vLLM pull request 21152).
V0_ENDS = (0, 10)
#: vLLM's names of methods whose memory is understood; older versions call mtp after the model's architecture.
METHODS: dict[str, SpeculativeMethod] = {
    "mtp": "mtp", "draft_model": "draft_model", "eagle": "eagle", "eagle3": "eagle3", "ngram": "ngram",
    "[ngram]": "ngram", "suffix": "suffix",
}  # fmt: skip
_EXAMPLE = f'such as {FLAG} \'{{"method": "mtp", "num_speculative_tokens": 1}}\''


def parse_speculative_config(text: str) -> SpeculativeConfig:
    """Read the JSON of ``--speculative-config``. Raises InputError for what is no such JSON, or not understood."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{FLAG} is not JSON: {text[:80]!r}", hint=_EXAMPLE) from error
    if not isinstance(given, dict):
        raise InputError(f"{FLAG} is not a JSON object: {text[:80]!r}", hint=_EXAMPLE)
    tokens = given.get("num_speculative_tokens")
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        cause = f"{FLAG}: num_speculative_tokens must be a whole number of at least 1, got {tokens!r}"
        raise InputError(cause, hint=_EXAMPLE)
    draft = given.get("model")
    if draft is not None and not isinstance(draft, str):
        raise InputError(f"{FLAG}: model must be a hub id or a path, got {draft!r}", hint=_EXAMPLE)
    method = _method(given.get("method"), draft)
    if method in ("draft_model", "eagle", "eagle3") and not draft:
        raise InputError(f"{FLAG}: method {method} needs a model", hint='add "model": a hub id or a path')
    size = given.get("draft_tensor_parallel_size")
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InputError(f"{FLAG}: draft_tensor_parallel_size must be at least 1, got {size!r}", hint="leave it out")
    text = json.dumps(given, separators=(",", ":"))
    return SpeculativeConfig(method, tokens, draft, size, text, _synthetic(given, tokens))


def read_drafts(
    drafts: SpeculativeConfig | Mapping[str, Any] | str | None, rates: float | Sequence[float] | str | None = None
) -> SpeculativeConfig | None:
    """``--speculative-config`` with ``--speculative-acceptance-rate``, in any form that the library takes. Raises
    InputError."""
    if drafts is not None and not isinstance(drafts, SpeculativeConfig):
        try:
            drafts = parse_speculative_config(drafts if isinstance(drafts, str) else json.dumps(drafts))
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"{FLAG}: {error}", hint="give a mapping, or its JSON") from error
    if rates is None:
        return drafts
    if drafts is None:
        raise InputError(f"{RATE_FLAG} without {FLAG}", hint=f"add {FLAG}, or leave {RATE_FLAG} out")
    text = ",".join(map(str, rates)) if isinstance(rates, Sequence) and not isinstance(rates, str) else str(rates)
    return with_acceptance(drafts, text)


def with_acceptance(wanted: SpeculativeConfig, text: str) -> SpeculativeConfig:
    """``wanted`` with ``--speculative-acceptance-rate``: one rate, or one for each drafted token. Raises InputError."""
    if wanted.acceptance_rates:
        raise InputError(f"{RATE_FLAG}: {FLAG} sets a synthetic acceptance already", hint=f"leave {RATE_FLAG} out")
    tokens = wanted.num_speculative_tokens
    try:
        given = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{RATE_FLAG} {text[:80]!r} is not a number", hint="such as 0.7, or 0.8,0.6,0.4") from error
    rates = [given[0] ** (place + 1) for place in range(tokens)] if len(given) == 1 else given
    return replace(wanted, acceptance_rates=_checked_rates(rates, tokens, f"{RATE_FLAG} {text[:80]}"))


def searched_drafts(model: Model, resolved: str) -> Iterator[SpeculativeConfig]:
    """Yield drafts by the model's own MTP modules, with the acceptance published for such models."""
    for tokens in _published_rates(resolved) if model.mtp else ():
        drafts = parse_speculative_config(json.dumps({"method": "mtp", "num_speculative_tokens": tokens}))
        if assumed := assumed_acceptance(drafts, resolved):
            yield assumed


def assumed_acceptance(drafts: SpeculativeConfig, resolved: str) -> SpeculativeConfig | None:
    """Return ``drafts`` with the acceptance published for such models; None where they are not by MTP modules."""
    if drafts.method != "mtp":
        return None
    published = _published_rates(resolved)
    nearest = min(published, key=lambda tokens: abs(tokens - drafts.num_speculative_tokens))
    expected, *ends = (with_acceptance(drafts, str(rate)) for rate in published[nearest])
    low, high = (end.acceptance_length for end in ends)
    return replace(expected, acceptance_range=(low, high))


def _published_rates(resolved: str) -> dict[int, list[float]]:
    """Share of drafted tokens accepted (expected, 5 %, 95 %) by their number, of the checkpoint's family."""
    rows = tomllib.loads((package_dir("engine") / "acceptance.toml").read_text(encoding="utf-8"))["mtp"]
    name = resolved.split("/")[-1].lower()
    rates = next(row["rates"] for row in rows if re.match(row["models"], name))
    return {int(tokens): shares for tokens, shares in rates.items()}


def _synthetic(given: dict[str, Any], tokens: int) -> tuple[float, ...]:
    """Rates of the synthetic rejection sampler (``config/speculative.py`` of 0.27), if any. A mean length stands for
    the rates that scatter least: its whole part always, its rest at one more position."""
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    if isinstance(length, int | float) and not isinstance(length, bool):
        if not 1 <= length <= tokens + 1:
            cause = f"{FLAG}: synthetic_acceptance_length must lie between 1 and {tokens + 1}, got {length}"
            raise InputError(cause, hint=_EXAMPLE)
        return tuple(min(max(length - 1 - place, 0.0), 1.0) for place in range(tokens))
    if rates is None:
        return ()
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) for rate in rates):
        raise InputError(f"{FLAG}: synthetic_acceptance_rates must be a list of numbers", hint=_EXAMPLE)
    return _checked_rates(rates, tokens, f"{FLAG}: synthetic_acceptance_rates {rates}")


def _checked_rates(rates: Sequence[float], tokens: int, what: str) -> tuple[float, ...]:
    if len(rates) != tokens:
        cause = f"{what}: {len(rates)} rates for {tokens} drafted tokens"
        raise InputError(cause, hint="give one rate, or one for each position")
    if not all(0 <= rate <= 1 for rate in rates) or any(after > before for before, after in pairwise(rates)):
        cause = f"{what}: rates lie between 0 and 1 and never rise from position to position"
        raise InputError(cause, hint="each is the share of steps in which the draft is accepted up to there")
    return tuple(map(float, rates))


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
        cause = f"{FLAG}: the memory of method {named!r} is not known"
        raise InputError(cause, hint=f"one of: {', '.join(dict.fromkeys(METHODS))}")
    return known


def speculative_options(wanted: SpeculativeConfig, version: EngineVersion) -> Iterator[tuple[str, str]]:
    """Options and values that launch ``wanted``: the JSON, or the older options one by one. Raises IllegalPlanError for
    a key that had no option."""
    if flag_status(version, FLAG):
        yield FLAG, wanted.text
        return
    given = json.loads(wanted.text)
    if wanted.method == "ngram":
        given["model"] = "[ngram]"
    given.pop("method", None)
    for key, value in given.items():
        if key not in OLD_FLAGS:
            raise IllegalPlanError(f"{FLAG}: vLLM {version} has no option for {key!r}", hint="leave it out")
        yield OLD_FLAGS[key], str(value)


def check_speculative_config(
    wanted: SpeculativeConfig, model: Model, version: EngineVersion, features: Features, tensor_parallel_size: int
) -> None:
    """Raise IllegalPlanError where the version, the engine or the model cannot draft like that."""
    old = bool(flag_status(version, OLD_FLAGS["model"]))
    if not old:
        flag_status(version, FLAG).require(f"{FLAG}: vLLM {version}")
    # V0 drafts with a model or from the prompt, to 0.9; its MTP, EAGLE and Medusa workers are not modelled
    if features.engine == "V0" and (version.release >= V0_ENDS or wanted.method not in ("draft_model", "ngram")):
        gone = version.release >= V0_ENDS
        cause = "which no longer drafts (since 0.10.0)" if gone else f"whose drafts by {wanted.method} are not modelled"
        cause = f"{FLAG}: vLLM {version} runs its V0 engine here, {cause}"
        raise IllegalPlanError(cause, hint="choose an --engine-version with the V1 engine")
    for key in json.loads(wanted.text or "{}"):
        status = value_status(version, "speculative_config", key)
        if not status and not (old and (key in OLD_FLAGS or key == "method")):
            cause = f"{FLAG}: vLLM {version} does not know {key!r} ({status})"
            raise IllegalPlanError(cause, hint=status.hint or "leave it out")
    if wanted.method == "draft_model" and not features.draft_models and features.engine == "V1":
        cause = f"{FLAG}: vLLM {version} (V1) does not draft with a model (not before 0.15.0)"
        raise IllegalPlanError(cause, hint='choose vLLM 0.15.0 or later, or "method": "ngram"')
    if wanted.method == "mtp" and not model.mtp:
        cause = f"{FLAG}: {model.id} has no multi-token-prediction modules"
        raise IllegalPlanError(cause, hint='use another "method", such as ngram')
    if wanted.draft_tensor_parallel_size not in (None, 1, tensor_parallel_size):
        size = f"draft_tensor_parallel_size {wanted.draft_tensor_parallel_size}"
        cause = f"{FLAG}: {size} is neither 1 nor the model's {tensor_parallel_size}"
        raise IllegalPlanError(cause, hint="leave it out")


RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
MOST_VOCABULARY = 258_048  #: ``lora/layers/logits_processor.py``


def resolve_lora(args: EngineArgs, model: Model, version: EngineVersion) -> LoraConfig | None:
    """Adapter slots that ``args`` ask for; None without ``--enable-lora``, as in vLLM. Raises InputError for a rank
    that no version takes, IllegalPlanError for what vLLM refuses."""
    if not args.enable_lora:
        return None
    rank, loras = args.max_lora_rank or 16, args.max_loras or 1
    in_host = loras if args.max_cpu_loras is None else args.max_cpu_loras
    if rank not in RANKS:
        cause = f"--max-lora-rank {rank} is no rank that vLLM has"
        raise InputError(cause, hint=f"use one of {', '.join(map(str, RANKS))}")
    if in_host < loras:
        cause = f"--max-cpu-loras {in_host} is less than --max-loras {loras}"
        raise IllegalPlanError(cause, hint="raise it: host memory holds a copy of each adapter on the GPU")
    if model.vocab_size > MOST_VOCABULARY and model.architecture in releases("adapted_tables"):
        most = f"vLLM adapts an lm_head of at most {MOST_VOCABULARY:,} rows"
        cause = f"--enable-lora: {most}, and {model.id} has {model.vocab_size:,}"
        raise IllegalPlanError(cause, hint="leave it out, or merge the adapter into the model")
    if args.fully_sharded_loras and args.enable_expert_parallel:
        cause = "--fully-sharded-loras: vLLM refuses it with --enable-expert-parallel"
        raise IllegalPlanError(cause, hint="leave one of them out")
    if args.fully_sharded_loras and rank % args.tensor_parallel_size:
        cause = f"--max-lora-rank {rank} is not divisible by --tensor-parallel-size {args.tensor_parallel_size}"
        raise IllegalPlanError(f"--fully-sharded-loras: {cause}", hint="raise the rank, or leave it out")
    # routed experts have adapters since FusedMoEWithLoRA (pull request 21229)
    experts, tables = version.release >= (0, 11, 1), model.architecture in releases("adapted_tables")
    return LoraConfig(loras, rank, in_host, args.fully_sharded_loras, experts, tables)


def ignored_lora_flags(args: EngineArgs) -> str:
    """A note on flags of adapters without ``--enable-lora``: vLLM ignores them and says nothing."""
    if args.enable_lora:
        return ""
    names = ("max_loras", "max_lora_rank", "max_cpu_loras", "fully_sharded_loras")
    flags = [flag_of(name) for name in names if getattr(args, name)]
    return f"{' and '.join(flags)} ignored without --enable-lora, as by vLLM" if flags else ""
