"""Fixtures of the searches and what is planned with them."""

import pytest

from planner.planning import defaults


@pytest.fixture
def short_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replay about a third of the requests: for tests that compare answers with each other, not with measurements."""
    monkeypatch.setattr(defaults, "LEAST_SEARCH_PROMPTS", 60)
    monkeypatch.setattr(defaults, "PROMPTS_PER_FLYING", 1)


@pytest.fixture
def short_loops(short_replays: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, and two requests for each place of a closed loop in place of five."""
    monkeypatch.setattr(defaults, "PROMPTS_PER_SLOT", 2)
