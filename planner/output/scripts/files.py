"""Put files into a folder: all of them, or none."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from glob import escape
from pathlib import Path

from planner.errors import InputError
from planner.resources import alone_in

#: Everything that any plan may write: what a new plan does not need, an old one may have left.
ALL_FILES = (
    "plan.json", "RUNBOOK.md", "preflight.sh", "launch.sh", "benchmark.sh", "accuracy.sh", "validate.sh",
    "measure_next.sh", "tune.sh", "partition.sh", "recommendation.json", "report.html",
    # of workflows
    "WORKFLOW.md", "pull_image.sh", "build_image.sh", "build_engine.sh", "shell.sh", "download.sh", "quantize.sh",
    "request.sh", "latency.sh", "ttft.sh", "throughput.sh", "speculative.sh", "quick_reduce.sh", "aiter.sh", "sweep.sh",
    "guidellm.sh", "points.json", "instances.sh", "nginx.conf", "mad.sh", "compare.sh", "COMPARISON.md",
)  # fmt: skip
_HINT = "give -o a folder that you may write to"


def write_folder(
    directory: Path, files: Mapping[str, str], *, force: bool, replaces: Collection[str] = ALL_FILES
) -> None:
    """Write ``files`` (name to content; a name may have folders in it) into ``directory``; scripts become executable.

    Everything is written beside the folder first and then moved, so that a failure leaves what was there; what a run
    that was killed left beside it goes. With
    ``force`` an existing folder keeps what is not a plan's own (results, logs); a script that only the old plan needed
    goes: those are the names in ``replaces``.

    Raises InputError when the folder exists and not ``force``, when it is a file, or when it cannot be written.
    """
    if directory.is_symlink() and not directory.exists():
        raise InputError(f"{directory} is a link to nothing", hint="remove the link, or give another folder to -o")
    directory = directory.resolve()
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory} is a file", hint="give another folder to -o")
    if directory.exists() and not force:
        raise InputError(
            f"{directory} already exists", hint="give another folder to -o, or add --force to replace its scripts"
        )
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            if held.enter_context(alone_in(directory.parent)):  # so nobody else works on what lies there
                _remove_leftovers(directory)
            beside = tempfile.TemporaryDirectory(
                prefix=f".{directory.name}.", suffix=".part", dir=directory.parent, ignore_cleanup_errors=True
            )
            folder = held.enter_context(beside)
            new = Path(folder) / "new"
            _stage(new, files)
            if not directory.exists():
                new.rename(directory)
            elif force:
                _exchange(directory, new, Path(folder) / "old", files, replaces)
            else:  # made meanwhile
                raise InputError(f"{directory} already exists", hint="somebody else wrote it at this moment")
    except OSError as error:
        raise InputError(f"cannot write {directory}: {error.strerror or error}", hint=_HINT) from error


def _remove_leftovers(directory: Path) -> None:
    """What runs that were killed left beside ``directory``."""
    for left in directory.parent.glob(f".{escape(directory.name)}.*.part"):
        if left.is_dir() and {path.name for path in left.iterdir()} <= {"new", "old"}:
            shutil.rmtree(left, ignore_errors=True)


def _stage(new: Path, files: Mapping[str, str]) -> None:
    new.mkdir()
    for name, content in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | 0o111)


def _of_plans(directory: Path) -> set[Path]:
    """Folders that an earlier plan filled: this one, or one below it for each GPU. Relative to ``directory``."""
    places = [directory, *(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())]
    return {place.relative_to(directory) for place in places if (place / "plan.json").is_file()}


def _exchange(directory: Path, new: Path, old: Path, files: Mapping[str, str], replaces: Collection[str]) -> None:
    """Put the new files over the old plan's, and take out what it alone had; put all back when that fails.

    At any moment each file is the old one or the new one, and ``plan.json`` is the last to change.
    """
    folders = {Path(name).parent for name in files} | _of_plans(directory)
    replaced = {Path(name) for name in files} | {folder / name for folder in folders for name in replaces}
    kept = [name for name in sorted(replaced) if (directory / name).exists()]
    made = sorted(map(Path, files), key=lambda name: (name.name == "plan.json", name))
    for name in kept:
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(directory / name, old / name)
    try:
        for name in made:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(directory / name)
        for name in kept:
            if name not in made:
                (directory / name).unlink()
    except BaseException:
        for name in made:
            if name not in kept:
                (directory / name).unlink(missing_ok=True)
        for name in kept:
            (old / name).replace(directory / name)
        raise
