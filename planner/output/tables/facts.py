"""Lists of what the planner knows: GPU profiles, models, workflows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.hardware import AllReduceCurve, GpuProfile, PartitionRule, Quantity, aliases
from planner.memory import attention_kinds, kv_bytes_per_token, stored_weight_bytes
from planner.model import CatalogEntry, ResolvedModel
from planner.output.answer import fields_of
from planner.output.render import Column, columns_of, json_text, note, print_notes, records_text, rows_of, wrapped
from planner.output.workflows.documents import Workflow
from planner.units import GIB, MB, TFLOP, US


def _peak(dtype: str) -> Callable[[GpuProfile], float | None]:
    return lambda profile: profile.peak_flop_per_s(dtype) / TFLOP if profile.supports(dtype) else None


def _billions(number: float) -> str:
    return f"{number / 1e9:,.2f}"


HARDWARE_COLUMNS = columns_of(
    "hardware",
    memory_gib=lambda profile: round(profile.memory_bytes / GIB, 2),
    aliases=lambda profile: sorted(alias for alias, id in aliases().items() if id == profile.id),
    **{f"{dtype}_tflop_per_s": _peak(dtype) for dtype in ("bf16", "fp8", "fp4")},
)
CATALOG_COLUMNS = columns_of("catalog", billions=_billions)
MODEL_FIELDS = columns_of(
    "model_fields",
    attention=lambda found: attention_kinds(found.model),
    params_by_component=lambda found: {str(part): n for part, n in found.model.params_by_component().items() if n},
    weights_bytes=lambda found: stored_weight_bytes(found.model),
    kv_bytes_per_token=lambda found: kv_bytes_per_token(found.model),
    kv_bytes_per_next_token=lambda found: kv_bytes_per_token(found.model, past_windows=True),
    quantization=lambda found: {
        **fields_of(found.model.quantization, "weight_dtype", "method"),
        "kv_cache_dtype": found.model.quantization.kv_cache_dtype or found.model.dtype,
    },
    notes=lambda found: [*found.notes, *found.model.notes, *found.model.quantization.notes],
)
WORKFLOW_COLUMNS = columns_of("workflows", sources=lambda job: [document.title for document in job.documents])
FILE_COLUMNS = (Column("file", of="0"), Column("purpose", wraps=True, of="1"))


def print_hardware(profiles: Sequence[GpuProfile], output: str) -> None:
    print(records_text(profiles, output, HARDWARE_COLUMNS), end="")
    if output == "table":
        owned = ", ".join(one.id for one in profiles if one.price and one.price.date.endswith("owned"))
        bought = f" (of {owned} a card of your own over three years)" * bool(owned)
        units = "GiB that the engine sees; bf16, fp8, fp4: dense TFLOP/s; node: GPUs of a node; USD/h: list price"
        note(f"note: {units}{bought}")


def print_profile(profile: GpuProfile, output: str) -> None:
    if output == "json":
        print(json_text(profile.model_dump(mode="json", exclude_none=True)), end="")
        return
    names = f" (also {', '.join(profile.aliases)})" if profile.aliases else ""
    if output == "table":
        print(f"{profile.id}{names}: {profile.name}, {profile.architecture}, {profile.gpus_per_node} in a node\n")
    rows = [_figure(path, fact) for path, fact in profile.figures()]
    print(records_text(rows, output, columns_of("model_figures")), end="")
    if output != "table":
        return
    print()
    for key, source in profile.sources.items():
        print(wrapped(f"{key}: {source.title} ({source.retrieved})", rest="  "))
        if source.url:
            print(f"  {source.url}")
    if profile.price is None:
        price = f"no on-demand price is known: give one to compare and fleet with --price {profile.id}=USD_PER_HOUR"
    else:
        date = profile.price.date
        collected = date if date == "undated" else f"collected in {date}"
        price = f"prices are on demand, for one GPU and hour, {collected}; they age within weeks"
    print_notes((*profile.notes, price))


def _figure(path: str, fact: Quantity | PartitionRule | AllReduceCurve) -> tuple[str, str, str, str, str | None]:
    if isinstance(fact, Quantity):
        return path, f"{fact.value:g} {fact.unit}", fact.kind, fact.source, fact.note or None
    if isinstance(fact, PartitionRule):
        allowed = "no" if not fact.allowed else "yes" if fact.validated else "disputed"
        return path, allowed, "rule", fact.source, fact.reason + (f"; instead: {fact.fix}" if fact.fix else "")
    (small, fast), (large, slow) = fact.points[0], fact.points[-1]
    sizes = f"{fact.gpus} GPUs, {len(fact.points)} sizes from {small / MB:,.3g} to {large / MB:,.3g} MB"
    note = "; ".join(filter(None, (sizes, fact.method, fact.note)))
    return path, f"{fast / US:,.0f} to {slow / US:,.0f} us", fact.kind, fact.source, note


def print_catalog(entries: Sequence[CatalogEntry], output: str) -> None:
    columns = (*CATALOG_COLUMNS, *([Column("base"), Column("kind")] if output == "json" else []))
    print(records_text([{**vars(entry), "model": entry.model()} for entry in entries], output, columns), end="")
    if output == "table":
        note(f"note: {len(entries)} models; any other id is looked up on the hub")


def model_facts(found: ResolvedModel) -> dict[str, Any]:
    """The object of ``planner models show --format json``."""
    return rows_of([found], MODEL_FIELDS)[0]


def print_models(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    """Print a row for each model that could be read; JSON also has the others."""
    if output == "json":
        print(json_text(rows), end="")
        return
    shown = [row for row in rows if "error" not in row]
    if shown:
        print(records_text(shown, output, columns_of("model", billions=_billions)), end="")
    if output == "table":
        print_notes(f"{row['resolved']}: {remark}" for row in shown for remark in row["notes"])


def print_workflows(workflows: Sequence[Workflow], output: str) -> None:
    print(records_text(workflows, output, WORKFLOW_COLUMNS), end="")


def print_files(purposes: Mapping[str, str], output: str) -> None:
    print(records_text(list(purposes.items()), output, FILE_COLUMNS), end="")
