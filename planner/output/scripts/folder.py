"""Folders of scripts: written as a whole or not at all, and run no longer than this program lives."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from glob import escape
from pathlib import Path

from planner.errors import InputError, os_errors
from planner.resources import alone_in, package_dir, tables_of

#: Every file of any plan: an old plan may have left some that the new one does not need.
ALL_FILES: tuple[str, ...] = tuple(tables_of(package_dir("output") / "names.toml")["plan_files"])
_HINT = "give -o a folder that you may write to"
_PR_SET_PDEATHSIG = 1  #: of <sys/prctl.h>
_UNSET = ("FORCE", "KEEP", "STOP")  #: variables that change what the scripts leave behind
LEAST_WAIT_S = 120  #: that a script gets to stop its server: docker stop alone waits 10 s before it kills


def check_folder(directory: Path, *, force: bool) -> None:
    """Raise InputError for a folder that exists, unless ``force``, for a file, a link to nothing and no valid name."""
    # a name that is too long, or has a NUL in it
    with os_errors(f"-o {str(directory)[:200]}", ValueError, hint="name another folder"):
        exists, is_link, is_folder = directory.exists(), directory.is_symlink(), directory.is_dir()
    if is_link and not exists:
        raise InputError(f"-o {directory} is a link to nothing", hint="remove the link, or name another folder")
    if exists and not is_folder:
        raise InputError(f"-o {directory} is a file", hint="name another folder")
    if exists and not force:
        raise InputError(f"-o {directory} already exists", hint="name another folder, or add --force to replace it")


def write_folder(
    directory: Path, files: Mapping[str, str], *, force: bool, replaces: Collection[str] = ALL_FILES
) -> None:
    """Write ``files`` (name to content) into ``directory``, all or none. Scripts become executable.

    With ``force`` an existing folder keeps foreign files; old ones in ``replaces`` are removed.
    Raises InputError as ``check_folder``, and if the folder cannot be written."""
    check_folder(directory, force=force)
    directory = directory.resolve()
    with os_errors(f"cannot write {directory}", hint=_HINT):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            if held.enter_context(alone_in(directory.parent)):  # no other run works in it now
                for left in directory.parent.glob(f".{escape(directory.name)}.*.part"):
                    if left.is_dir() and {path.name for path in left.iterdir()} <= {"new", "old"}:
                        shutil.rmtree(left, ignore_errors=True)
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
                raise InputError(f"{directory} already exists", hint="another process wrote it at this moment")


def _stage(new: Path, files: Mapping[str, str]) -> None:
    new.mkdir()
    for name, content in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")
        if name.endswith(".sh"):
            path.chmod(path.stat().st_mode | 0o111)


def _exchange(directory: Path, new: Path, old: Path, files: Mapping[str, str], replaces: Collection[str]) -> None:
    """Put the new files over the old plan's and remove its further ones; put all back if that fails.

    At any moment each file is the old one or the new one, and ``plan.json`` is the last to change. An old plan may
    also lie one folder below, for each GPU."""
    places = [directory, *(path for path in directory.iterdir() if path.is_dir() and not path.is_symlink())]
    folders = {place.relative_to(directory) for place in places if (place / "plan.json").is_file()}
    folders |= {Path(name).parent for name in files}
    replaced = {Path(name) for name in files} | {folder / name for folder in folders for name in replaces}
    present = [name for name in sorted(replaced) if (directory / name).exists()]
    made = sorted(map(Path, files), key=lambda name: (name.name == "plan.json", name))
    for name in present:
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(directory / name, old / name)
    try:
        for name in made:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(directory / name)
        for name in present:
            if name not in made:
                (directory / name).unlink()
    except BaseException:
        for name in made:
            if name not in present:
                (directory / name).unlink(missing_ok=True)
        for name in present:
            (old / name).replace(directory / name)
        raise


def run_script(
    script: Path, *words: str, log: Path, started: Callable[[int], None] = lambda _: None, **variables: str
) -> int:
    """Run ``script`` and return its exit status; ``started`` gets its process number.

    The end of this program, kill -9 included, ends the script with SIGTERM, and the script then stops its server."""
    environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as printed:
            process = subprocess.Popen(  # a script that we wrote
                [str(script), *words], stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                env={**environment, **variables}, start_new_session=True, preexec_fn=_end_with_parent,
            )  # fmt: skip
    except OSError as error:
        cause = f"{error.filename or script}: {error.strerror}"
        hint = "the folder has to be writable, and its scripts executable (chmod +x *.sh)"
        raise InputError(cause, hint=hint) from error
    try:
        started(process.pid)
        return process.wait()
    except BaseException:  # the script has a session of its own, so Ctrl-C does not reach it
        process.terminate()
        process.wait()
        raise


def wait_for(process: int, script: Path) -> None:
    """Wait until a script left by a killed run has stopped its server."""
    command, deadline = Path(f"/proc/{process}/cmdline"), time.monotonic() + LEAST_WAIT_S
    while time.monotonic() < deadline:
        try:
            if str(script).encode() not in command.read_bytes():
                return
        except OSError:
            return
        time.sleep(0.2)


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
