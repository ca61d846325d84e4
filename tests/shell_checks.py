"""Scripts as text: are they valid bash, and does shellcheck find anything?"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def check_scripts(texts: Iterable[str], folder: Path) -> None:
    """Bash reads every script. Shellcheck reads one of those that differ in nothing but values."""
    kinds = {_code_of(text): text for text in texts}
    paths = [folder / f"{number}.sh" for number in range(len(kinds))]
    for path, text in zip(paths, kinds.values(), strict=True):
        path.write_text(text)
        assert subprocess.run(["bash", "-n", path], check=False).returncode == 0, text[:200]
    shellcheck = Path(sys.executable).parent / "shellcheck"
    found = subprocess.run([shellcheck, "--severity=style", *paths], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def _code_of(script: str) -> frozenset[str]:
    """The lines of a script without comments and without plain values, which templates write through one filter."""
    lines = (line for line in _NUMBER.sub("0", script).splitlines() if not line.startswith("#"))
    return frozenset(_VALUE.sub(_without_value, line) for line in lines)


#: A plan's digest, the model that is served or cached, and numbers in a row; arguments and streams of the shell keep
#: theirs.
_NUMBER = re.compile(
    r"\b[0-9a-f]{12}\b|(?<![$&])\b\d+(?:[,\n]\d+)*\b(?!>)|(?<= serve )[\w/.-]+|(?<=/hub/models--)[\w.-]+"
)
#: ``name=value``, an option of a command, and the calls with the loads of a measurement.
_VALUE = re.compile(r"^(\w+=)[^$`]*$|^( +)-[^$`]*$|^ *(measure|point|streams|layout) .*$")


def _without_value(found: re.Match[str]) -> str:
    return found[1] or found[2] or found[3]
