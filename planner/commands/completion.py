"""What a shell offers where the name of a model, a GPU or a workflow is typed. Nothing here asks the network.

Names are known in any case, so what is offered goes on from what was typed: ``llama-3.3`` becomes
``llama-3.3-70B-Instruct``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def models(incomplete: str) -> list[str]:
    """Hub ids of the catalog that begin so; without their organisation where that is enough to name them."""
    from planner.model import catalog_ids

    ids = catalog_ids()
    counted = Counter(name.partition("/")[2].lower() for name in ids)
    short = (part for _, _, part in (name.partition("/") for name in ids) if counted[part.lower()] == 1)
    return _beginning(incomplete, ids) or _beginning(incomplete, short)


def gpus(incomplete: str) -> list[str]:
    """Ids of GPU profiles that begin so, or their aliases where no id does."""
    from planner.hardware import aliases, profile_ids

    return _beginning(incomplete, (*profile_ids(), "all", "local")) or _beginning(incomplete, sorted(aliases()))


def workflows(incomplete: str) -> list[str]:
    """Names of workflows that begin so."""
    from planner.output import list_workflows

    return _beginning(incomplete, ("list", *list_workflows()))


def _beginning(typed: str, names: Iterable[str]) -> list[str]:
    return [typed + name[len(typed) :] for name in names if name.lower().startswith(typed.lower())]
