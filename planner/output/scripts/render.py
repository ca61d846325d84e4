"""From a plan to the text of its scripts: Jinja substitutes, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from planner.errors import InputError
from planner.output.scripts import quoting
from planner.output.scripts.emission import Emission, is_native, native_names, script_names, template_names
from planner.resources import data_dir

_HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{20,}")


def render_scripts(emission: Emission) -> dict[str, str]:
    """File name to content: ``plan.json``, the scripts that the plan needs and the runbook.

    Raises IllegalPlanError for a plan whose server would be reachable from elsewhere or not at all, and InputError
    when a secret, or something that no command line can hold, would be written.
    """
    names, plan = template_names(emission), emission.file.plan
    if is_native(plan):
        names |= native_names(plan)
    templates = _environment("native" if is_native(plan) else "")
    files = {"plan.json": emission.file.to_json()}
    for name in script_names(emission):
        files[name] = templates.get_template(f"{name}.j2").render(names)
    refuse_tokens(files)
    return files


def refuse_tokens(files: Mapping[str, str]) -> None:
    """Raise InputError when a token of the hub would be written."""
    for name, content in files.items():
        if _HUB_TOKEN.search(content):
            raise InputError(
                f"{name} would hold a token of the hub",
                hint="put it into the environment as HF_TOKEN: the scripts pass it through by name",
            )


def _environment(variant: str) -> jinja2.Environment:
    """Templates of ``vllm/VARIANT`` take the place of those of ``vllm``."""
    folder = data_dir("templates") / "vllm"
    return jinja_environment([folder / variant, folder] if variant else [folder])


def jinja_environment(folders: Sequence[Path]) -> jinja2.Environment:
    """Templates of the first of ``folders`` that has them, strict, with the filters of ``quoting``."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        comment_start_string="{//",  # {# is the length of something in bash
        comment_end_string="//}",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (shell scripts, not HTML: every value passes a filter of its own)
    )
    for name in ("sh", "argv", "comment", "text", "cell", "fenced", "endpoint"):
        made.filters[name] = getattr(quoting, name)
    return made
