"""Judge a bill of materials: each installed package is in it with version and a permissive licence. ``make sbom``."""

import json
import re
import subprocess
import sys
from pathlib import Path

INSTALLED = """
import importlib.metadata as metadata, json
print(json.dumps({found.metadata["Name"]: found.version for found in metadata.distributions()}))
"""
OWN = "llm-serving-planner"
COPYLEFT = re.compile(r"\bA?GPL|GNU (Affero )?General Public")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(path: str, python: str) -> None:
    installed = json.loads(subprocess.run([python, "-c", INSTALLED], capture_output=True, check=True).stdout)
    bill = json.loads(Path(path).read_text(encoding="utf-8"))
    listed = {plain(one["name"]): one for one in bill["components"]}
    wanted = {plain(name): version for name, version in installed.items() if name != OWN}
    assert bill["metadata"]["component"]["name"] == OWN and len(wanted) > 20
    assert {name: one["version"] for name, one in listed.items()} == wanted
    for name, one in listed.items():
        licences = json.dumps(one["licenses"])
        assert not COPYLEFT.search(licences), f"{name}: {licences}"
    print(f"sbom: {len(listed)} packages with versions and licences")


if __name__ == "__main__":
    main(*sys.argv[1:])
