"""From a plan to the text of its scripts: Jinja substitutes, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import jinja2

from planner.errors import InputError
from planner.output.scripts import quoting
from planner.output.scripts.emission import Emission, other_run, template_names
from planner.resources import data_dir
from planner.secrets import is_secret


def render_scripts(emission: Emission) -> dict[str, str]:
    """File name to content: ``plan.json``, the scripts that the plan needs and the runbook.

    Raises IllegalPlanError for a plan whose server would be reachable from elsewhere or not at all, and InputError
    when a secret, or something that no command line can hold, would be written.
    """
    names = template_names(emission)
    # the templates of plans without a container, and over several nodes, take the place of those of the same name
    plan = emission.file.plan
    folders: tuple[str, ...] = ("vllm",) if plan.image else ("vllm/native", "vllm")
    if plan.nodes > 1:
        folders = ("vllm/nodes", "vllm", "deploy")
    of_one = folders
    if plan.classes:
        folders = ("vllm/classes", *folders)
    partition = ("partition.sh",) if emission.profile.partition else ()
    tune = ("tune.sh",) if emission.tunes else ()
    scripts = (
        *partition, "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh", *tune, "RUNBOOK.md",
    )  # fmt: skip
    files = {"plan.json": emission.file.to_json()}
    files |= {name: render_template(f"{name}.j2", names, folders) for name in scripts}
    if other := other_run(emission.file.plan):
        files["measure_next.sh"] = render_template("benchmark.sh.j2", {**names, **other}, of_one)
    refuse_tokens(files)
    return files


def render_template(template: str, names: Mapping[str, object], folders: tuple[str, ...]) -> str:
    """A template of the first of ``folders``, below ``templates/``, that has it."""
    root = data_dir("templates")
    return _environment(tuple(root / folder for folder in folders)).get_template(template).render(names)


def refuse_tokens(files: Mapping[str, str]) -> None:
    """Raise InputError when a token or a key would be written."""
    for name, content in files.items():
        if is_secret(content):
            raise InputError(
                f"{name} would hold a token or a key",
                hint="put it into the environment, as HF_TOKEN: the scripts pass it through by name",
            )


@lru_cache
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    """Strict, with the filters of ``quoting``."""
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
