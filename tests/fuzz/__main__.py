"""``make fuzz``: broken files, hostile values, a misbehaving hub and odd options, for as long as there is time.

::

    python tests/fuzz --seconds 3600 --seed 1 --jobs 2 [--only trace,runs] [--keep FOLDER]

Each case is a command line in a process of its own, in an empty folder with a home of its own. It has to end within
``LIMIT_S`` and ``MOST_BYTES`` with a documented exit status; an error is two lines; nothing is left half-written; no
secret stands in any file or on any stream; JSON is JSON; a shell, a YAML reader and a Markdown reader find nothing in
the files but what belongs there. ``relations`` has the physics: what may only rise, or only fall.

A failure prints the kind and the number of its case: ``--only KIND --case NUMBER --seed SEED`` runs it again.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import pkgutil
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command line itself has it, before numpy is imported
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from checks import Done, Finding, find_faults  # noqa: E402
from kinds import KINDS, Case, Shop  # noqa: E402

LIMIT_S = 10.0  #: of CPU time
WALL_S = 6 * LIMIT_S  #: in all, without the time for which others at work on the machine keep it waiting
MOST_BYTES = 10**9
#: What no command may print or write: the values of variables of each case.
SECRETS = {
    "HF_TOKEN": "hf_FuzzedSecretOfTheUser0123456789",
    "AWS_SECRET_ACCESS_KEY": "FuzzedAwsSecret+0123456789/abcdefghijklm",
}


@dataclass
class Summary:
    """What was run, and what was found."""

    cases: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    largest_bytes: int = 0
    largest: str = ""

    def add(self, other: Summary) -> None:
        """Join the counts of another process."""
        self.cases += other.cases
        self.statuses += other.statuses
        self.findings += other.findings
        if other.largest_bytes > self.largest_bytes:
            self.largest_bytes, self.largest = other.largest_bytes, other.largest
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest

    def line(self, seconds: float, seed: str) -> str:
        """One line for a person, or for a closing note."""
        cases = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.cases.items()))
        ended = ", ".join(f"{status}: {count:,}" for status, count in sorted(self.statuses.items()))
        found = ", ".join(f"{count} {what}" for what, count in sorted(self.findings.items())) or "nothing"
        return (
            f"fuzz: {self.cases.total():,} cases in {seconds:.0f} s with seed {seed} ({cases}); exit statuses {ended}; "
            f"slowest {self.slowest_s:.1f} s ({self.slowest}), "
            f"largest {self.largest_bytes / 1e6:.0f} MB ({self.largest}); found {found}"
        )


def main() -> int:
    """0 when nothing was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", default=str(int(time.time())), help="any word; the same one draws the same cases")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas")
    parser.add_argument("--case", type=int, help="run this case alone, and show what it prints")
    parser.add_argument("--keep", type=Path, help="keep the folders of findings here")
    given = parser.parse_args()
    kinds = given.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    began_s = time.monotonic()
    os.environ |= {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", "COLUMNS": "100", **SECRETS}
    for name in ("HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE"):
        os.environ.pop(name, None)
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        shop = Shop.stocked(Path(folder) / "shop")
        if given.case is not None:
            return _show(shop, kinds[0], given.seed, given.case, Path(folder))
        print(f"fuzz: seed {given.seed}, {given.seconds:.0f} s", flush=True)
        gc.collect()
        gc.freeze()  # or each child copies what it only counts
        until_s = began_s + given.seconds
        whole = _in_processes(shop, kinds, given.seed, given.jobs, until_s, Path(folder), given.keep)
    print(whole.line(time.monotonic() - began_s, given.seed), flush=True)
    return 1 if whole.findings else 0


def _import_everything() -> None:
    """Processes are forked for each case: what is imported here is imported once."""
    import planner

    for module in pkgutil.walk_packages(planner.__path__, "planner."):
        if module.name != "planner.__main__":
            importlib.import_module(module.name)
    for name in ("numpy.random", "scipy.optimize", "scipy.stats", "yaml", "jinja2"):
        importlib.import_module(name)


def _in_processes(
    shop: Shop, kinds: list[str], seed: str, jobs: int, until_s: float, folder: Path, keep: Path | None
) -> Summary:
    import pickle

    pipes = []
    for job in range(jobs):
        read, write = os.pipe()
        if os.fork() == 0:
            os.close(read)
            status = 1
            try:
                summary = _work(shop, kinds, seed, job, jobs, until_s, folder, keep)
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(summary, pipe)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(write)
        pipes.append(read)
    whole = Summary()
    for read in pipes:
        with os.fdopen(read, "rb") as pipe:
            whole.add(pickle.load(pipe))
    while jobs:
        os.wait()
        jobs -= 1
    return whole


def _work(
    shop: Shop, kinds: list[str], seed: str, job: int, jobs: int, until_s: float, folder: Path, keep: Path | None
) -> Summary:
    """Cases ``job``, ``job + jobs``, ... of each kind in turn."""
    summary = Summary()
    number = job
    while time.monotonic() < until_s:
        for kind in kinds:
            if time.monotonic() >= until_s:
                break
            home = folder / f"{kind}-{number}"
            case, done, found = run_case(shop, kind, seed, number, home)
            summary.cases[kind] += 1
            summary.statuses[str(done.status)] += 1
            if done.bytes > summary.largest_bytes:
                summary.largest_bytes, summary.largest = done.bytes, f"{kind} {number}"
            if done.seconds > summary.slowest_s:
                summary.slowest_s, summary.slowest = done.seconds, f"{kind} {number}"
            for finding in found:
                summary.findings[finding.what] += 1
                print(f"{kind} {number}: {finding.what}: {finding.detail}\n    {case.title}", flush=True)
            if found and keep is not None:
                shutil.copytree(home, keep / home.name, symlinks=True, dirs_exist_ok=True, ignore=_special)
            shutil.rmtree(home, ignore_errors=True)
        number += jobs
    return summary


def _special(folder: str, names: list[str]) -> list[str]:
    """Pipes and the like, which cannot be copied."""
    return [name for name in names if not (Path(folder) / name).is_file() and not (Path(folder) / name).is_dir()]


def run_case(shop: Shop, kind: str, seed: str, number: int, home: Path) -> tuple[Case, Done, list[Finding]]:
    """Make the case, run it in a child and judge what it left behind."""
    random = Random(f"{seed} {kind} {number}")
    work = home / "work"
    work.mkdir(parents=True)
    case = KINDS[kind](random, shop, work)
    with case.beside():
        done = _run(case, home, work)
    found = find_faults(case, done, home, list(SECRETS.values()))
    return case, done, found


def _run(case: Case, home: Path, work: Path) -> Done:
    out, err = home / "stdout", home / "stderr"
    began_s = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(case, home, work, out, err)
    usage, status, killed = None, 0, False
    while usage is None:
        pid, status, seen = os.wait4(child, os.WNOHANG)
        if pid:
            usage = seen
        elif time.monotonic() - began_s - _queued_s(child) > WALL_S and not killed:
            os.killpg(child, signal.SIGKILL)
            killed = True
        else:
            time.sleep(0.005)
    spent_s = usage.ru_utime + usage.ru_stime
    ended = (
        "hang"
        if killed or spent_s > LIMIT_S
        else os.WEXITSTATUS(status)
        if os.WIFEXITED(status)
        else f"signal {os.WTERMSIG(status)}"
    )
    text = [path.read_bytes().decode("utf-8", "replace") for path in (out, err)]
    return Done(ended, *text, spent_s, usage.ru_maxrss * 1024)


def _queued_s(pid: int) -> float:
    """How long a process was ready and had no processor, which others keep busy; 0 where the system does not say."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _child(case: Case, home: Path, work: Path, out: Path, err: Path) -> None:
    """The command, in this process, which then ends."""
    status = 99
    try:
        os.setpgid(0, 0)
        os.chdir(work)
        os.environ |= {
            "HOME": str(home / "home"), "XDG_DATA_HOME": str(home / "home/data"), "HF_HOME": str(home / "home/hf"),
            "XDG_CACHE_HOME": str(home / "home/cache"), "TMPDIR": str(home), **case.env,
        }  # fmt: skip
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        streams = ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY | os.O_CREAT), (2, err, os.O_WRONLY | os.O_CREAT))
        for number, path, how in streams:
            os.dup2(os.open(path, how), number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), "utf-8", write_through=True) for n in (1, 2))
        from planner.commands.main import main as command

        status = command(case.words) if case.call is None else case.call()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 98
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        status = 70
    finally:
        os._exit(status)


def _show(shop: Shop, kind: str, seed: str, number: int, folder: Path) -> int:
    case, done, found = run_case(shop, kind, seed, number, folder / "case")
    print(f"{case.title}\nstatus {done.status}, {done.seconds:.2f} s, {done.bytes / 1e6:.0f} MB")
    print(f"{done.out[:3000]}\n{done.err[-3000:]}")
    for finding in found:
        print(f"{finding.what}: {finding.detail}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
