"""Shared fixtures: nothing here touches the network or the user's own files."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, hub_environment
from hypothesis import settings

from planner.planning import defaults

#: `make test` draws the same cases each time. New cases are for `make fuzz`.
settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")

#: Files whose tests share what is made once, and take longer when two workers make it.
TOGETHER = {
    "workflow": "workflows", "test_audit": "workflows", "test_documents": "workflows", "test_deploy": "deploy",
    "test_departures": "departures", "test_fleet": "fleet", "test_report": "report", "test_scripts_matrix": "matrix",
    "test_search_relations": "search relations", "test_split": "split", "test_tune": "tune", "test_ui": "ui",
}  # fmt: skip

#: Modules whose tests take more than two seconds of CPU. All others are ``-m fast``: less than a minute together.
SLOW = {
    "answer", "api", "calibrate", "capacity", "check", "classes", "cli", "cli_bad_input", "cli_startup",
    "cli_streams", "cli_together", "client", "compare", "completion", "deploy", "deploy_hostile", "docs",
    "documents", "doubts", "examples", "fitting_shipped", "fleet", "launches", "next_run", "nodes", "offloading",
    "one_screen", "plan_file", "recommend", "recommend_targets", "relations", "report", "results", "same_figures",
    "scheduler", "scripts", "scripts_classes", "scripts_hostile", "scripts_matrix", "scripts_native",
    "scripts_nodes", "scripts_partition", "scripts_preflight", "scripts_run", "search_relations", "split", "tune",
    "ui", "verdict", "workflows", "workflows_run",
}  # fmt: skip

#: What a shell without job control starts in the background ignores Ctrl-C, down to the commands that tests break.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``pytest -n 2`` sends those files to one worker each, and all other tests one by one."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for part, group in TOGETHER.items() if part in nodeid), nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test ``slow`` or ``fast`` by its module."""
    for item in items:
        item.add_marker("slow" if item.path.stem.removeprefix("test_") in SLOW else "fast")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub on this machine, which is asked in place of the real one."""
    with HubServer() as running:
        hub_environment(monkeypatch, running.endpoint, tmp_path)
        yield running


@pytest.fixture
def best_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON has the best plan of each GPU alone: for tests that read no other. Those with targets take a search more."""
    monkeypatch.setattr("planner.output.tables.recommendation.LISTED", 1)


@pytest.fixture
def short_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay about a third of the requests: for tests that compare answers with each other, not with measurements."""
    monkeypatch.setattr(defaults, "LEAST_SEARCH_PROMPTS", 60)
    monkeypatch.setattr(defaults, "PROMPTS_PER_FLYING", 1)
    monkeypatch.setattr("planner.workload.requests.POOL_PROMPTS", 400)


@pytest.fixture
def short_loops(short_replays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and two requests for each place of a closed loop in place of five."""
    monkeypatch.setattr(defaults, "PROMPTS_PER_SLOT", 2)


@pytest.fixture
def small_searches(short_loops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and one token budget beside the engine's own: for tests of what is said of any plan."""
    monkeypatch.setattr(defaults, "TOKEN_BUDGETS", (2048,))


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, no token, no planner.toml, no calibration and no terminal of the person who runs the tests."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
