"""Merge what ``dump_parsers.py`` wrote into ``planner/engine/flags.json``.

::

    python tests/real_parsers/build_table.py DUMPS planner/engine/flags.json

A version that has no dump in the folder stays as the table has it, so one dump adds one version.

Names are grouped by the versions that know them, so that the file stays small and its differences readable::

    "0.6.3..0.17.0": "--num-lookahead-slots --swap-space"

Options shared by every command that builds an engine are listed once, under ``engine``.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ENGINE_COMMANDS = ("serve", "bench throughput", "bench latency")
COMMANDS = (*ENGINE_COMMANDS, "bench serve", "benchmark_serving.py", "benchmark_throughput.py", "benchmark_latency.py")
NO_LISTS = (*COMMANDS, "source", "versions", "version", "errors", "engine", "switches")
SOURCE = "options of the real parsers of each version, and its own lists; tests/real_parsers/dump_parsers.py"

Known = dict[str, list[int]]  # name -> indices of the versions that know it


def ranges(indices: list[int], versions: list[str]) -> str:
    """``0.6.3..0.8.5``, open at the end when the newest version is in it; several are joined by commas."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    newest = len(versions) - 1
    return ",".join(f"{versions[a]}..{versions[b] if b < newest else ''}" for a, b in runs)


def grouped(known: Known, versions: list[str]) -> dict[str, str]:
    """Names by the range of versions that know them."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(known):
        groups[ranges(known[name], versions)].append(name)
    return {
        key: " ".join(groups[key]) for key in sorted(groups, key=lambda k: tuple(map(int, k.split("..")[0].split("."))))
    }


def collect(names: Iterable[Iterable[str]]) -> Known:
    """From the names of each version, in order, to the versions of each name."""
    known: Known = defaultdict(list)
    for index, found in enumerate(names):
        for name in set(found) - {"-h", "--help"}:
            known[name].append(index)
    return known


def switches(dump: Mapping[str, Any]) -> set[str]:
    """Options that take no value. Where commands disagree, the server's parser decides.

    ``--enable-chunked-prefill`` of 0.6.3 may take one there, and none in the scripts of its benchmarks.
    """
    served = dump.get("serve", {})
    options = [(name, takes) for command in COMMANDS for name, takes in dump.get(command, {}).items()]
    return {name for name, takes in options if served.get(name, takes) == "switch"}


def lists(source: Mapping[str, Any]) -> list[str]:
    """Names of the value lists, and of the options of JSON, whose keys are listed."""
    return [name for name in source if name not in NO_LISTS]


def order(version: str) -> tuple[int, ...]:
    """Versions by their numbers."""
    return tuple(map(int, version.split(".")))


def names_of(groups: Mapping[str, str], version: str) -> set[str]:
    """The names that a version knows, from their ranges."""
    found: set[str] = set()
    for spans, names in groups.items():
        for first, last in (span.split("..") for span in spans.split(",")):
            if order(first) <= order(version) and (not last or order(version) <= order(last)):
                found.update(names.split())
    return found


def dumps_of(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the dump of each version of a table says, as far as the table keeps it."""
    dumps: dict[str, dict[str, Any]] = {}
    for version in table["versions"].split():
        dump: dict[str, Any] = {"version": version}
        known_switches = names_of(table["switches"], version)
        for command in COMMANDS:
            shared = names_of(table["engine"], version) if command in ENGINE_COMMANDS else set()
            if own := names_of(table[command], version) | shared:
                dump[command] = {name: "switch" if name in known_switches else "value" for name in own}
        dumps[version] = dump | {name: sorted(names_of(table[name], version)) for name in lists(table)}
    return dumps


def main(folder: Path, target: Path) -> None:
    by_version = dumps_of(json.loads(target.read_text())) if target.exists() else {}
    by_version |= {dump["version"]: dump for dump in (json.loads(path.read_text()) for path in folder.glob("*.json"))}
    versions = sorted(by_version, key=order)
    dumps = [by_version[version] for version in versions]
    tables = {}
    engine = [
        set.intersection(*(set(d[c]) for c in ENGINE_COMMANDS if c in d))
        if len(d.keys() & set(ENGINE_COMMANDS)) == 3
        else set()
        for d in dumps
    ]
    tables["engine"] = grouped(collect(engine), versions)
    for command in COMMANDS:
        shared = engine if command in ENGINE_COMMANDS else [set()] * len(dumps)
        own = [set(d.get(command, ())) - s for d, s in zip(dumps, shared, strict=True)]
        tables[command] = grouped(collect(own), versions)
    tables["switches"] = grouped(collect(map(switches, dumps)), versions)
    for name in dict.fromkeys(name for dump in dumps for name in lists(dump)):
        found = [[n for n in d.get(name, ()) if name != "env" or n.startswith("VLLM_")] for d in dumps]
        tables[name] = grouped(collect(found), versions)
    target.write_text(json.dumps({"source": SOURCE, "versions": " ".join(versions), **tables}, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
