"""Shared fixtures: nothing here touches the network or the user's own files."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from planner.cli import main


class Outcome(NamedTuple):
    """What a command printed and how it ended."""

    status: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, no token, no planner.toml, no calibration of the person who runs the tests."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def planner(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process."""

    def run(*arguments: str) -> Outcome:
        status = main(arguments)
        printed = capsys.readouterr()
        return Outcome(status, printed.out, printed.err)

    return run
