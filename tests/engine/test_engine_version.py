"""vLLM versions: what a text names, their order, the era of a date."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engine.version import NEWEST, RELEASES, existing_version, known_version, newest_by, parse_version
from planner.errors import InputError

# Every way in which published runs and start-up logs name a version, and the release that is meant: numbers as they
# stand; a month is its 15th, and the release dates are 0.7.3 2025-02-20, 0.8.0 2025-03-18, 0.10.2 2025-09-13,
# 0.11.0 2025-10-04, 0.17.1 2026-03-11, 0.18.0 2026-03-20, 0.19.0 2026-04-03, 0.21.0 2026-05-15, 0.23.0 2026-06-13,
# 0.25.1 2026-07-14, 0.29.0 2026-09-09.
NAMED = {
    "0.4.2": (0, 4, 2),
    "0.9.1": (0, 9, 1),
    "v0.11.0": (0, 11, 0),
    "0.22": (0, 22, 0),
    "0.9.0.1": (0, 9, 0, 1),
    "0.10.1.1": (0, 10, 1, 1),
    "0.11.0 (ROCm 7.0)": (0, 11, 0),
    "0.22.0 (rocm)": (0, 22, 0),
    "0.11.0+torch271": (0, 11, 0),
    "0.10.2 (rocm7.0.0_vllm_0.10.2_20251006)": (0, 10, 2),
    "0.11.1 (rocm7.0.0_vllm_0.11.1_20251103)": (0, 11, 1),
    "0.17.1 (ROCm wheel)": (0, 17, 1),
}
APPROXIMATED = {
    "0.6.3.post1": (0, 6, 3),
    "0.6.3.post2.dev308": (0, 6, 3),
    "0.6.3.dev114+g4f95ffee (ROCm 6.2)": (0, 6, 3),
    "0.8.5.dev": (0, 8, 5),
    "0.8.5.post1": (0, 8, 5),
    "0.9.2.dev364 (V0 engine)": (0, 9, 2),
    "0.14.0rc2.dev348": (0, 14, 0),
    "0.22.1rc1": (0, 22, 1),
    "0.26.1rc1.dev156+g0eec856cc.d20260731": (0, 26, 1),
    "0.8.x": (0, 8, 5),
    "0.10.x": (0, 10, 2),
    "0.7.x/0.8.x": (0, 7, 3),
    "0.12/0.13": (0, 12, 0),
    "0.8/0.9 (DCU build)": (0, 8, 0),
    "0.27-0.28 (Aug 2026 latest image)": (0, 27, 0),
    "v0.11-ish (vllm/vllm-openai:latest 2025-10)": (0, 11, 0),
    "2025-03": (0, 7, 3),
    "2025-10": (0, 11, 0),
    "2026-03": (0, 17, 1),
    "2026-05": (0, 21, 0),
    "2026-05 (InferenceX)": (0, 21, 0),
    "2026-05 + tuned AITER": (0, 21, 0),
    "rocm latest 2026-05": (0, 21, 0),
    "InferenceX 2025-10-29": (0, 11, 0),
    "InferenceX 2026-03-28": (0, 18, 0),
    "InferenceX 2026-04-03": (0, 19, 0),
    "InferenceX dashboard 2026-05": (0, 21, 0),
    "main 2025-09": (0, 10, 2),
    "main 2026-06": (0, 23, 0),
    "minimax-m3 image": (0, 23, 0),
    "minimax-m3 image 2026-06": (0, 23, 0),
    "nightly-4559c43a9 (2026-06)": (0, 23, 0),
    "nightly-9e57de719 (2026-07)": (0, 25, 1),
    "Sep 2026": (0, 29, 0),
    "2026": (0, 24, 0),  # its middle, 2 July: after 0.24.0 of 30 June
    "0.2.5": (0, 2, 5),
    "": NEWEST,
    "nightly-4eafc729": NEWEST,
    "1.7.dev16107+gffe20fb09 (fork)": NEWEST,
}


@pytest.mark.parametrize(("text", "release"), NAMED.items())
def test_a_release_is_taken_as_it_stands(text: str, release: tuple[int, ...]) -> None:
    version = parse_version(text)
    assert (version.release, version.note, version.text) == (release, "", text)


@pytest.mark.parametrize(("text", "release"), APPROXIMATED.items())
def test_what_names_no_release_falls_to_the_nearest_era_and_says_so(text: str, release: tuple[int, ...]) -> None:
    version = parse_version(text)
    assert version.release == release
    assert version.note


def test_builds_with_the_atom_plugin_are_an_engine_of_their_own() -> None:
    nightly = "ATOM 514ed7c8e (vLLM + ATOM plugin) rocm/atom-dev:vllm-v0.25.1-nightly_20260805"
    version = parse_version(nightly)
    assert (version.release, version.build, version.note) == ((0, 25, 1), "vllm+atom-plugin", "")
    benchmark = (
        "ATOM 3b79e851b (vLLM + ATOM plugin) rocm/atom-dev:oot-benchmark-24724897303-1-3b79e85-0.19.0-2a69949bdadf"
    )
    assert parse_version(benchmark).release == (0, 19, 0)
    assert parse_version(nightly) != parse_version("0.25.1")


def test_a_date_beside_the_text_places_what_the_text_does_not() -> None:
    assert parse_version("ATOM 078c22ebd (vLLM + ATOM plugin)", date="2026-03-22").release == (0, 18, 0)
    assert parse_version("nightly-4eafc729", date="2026-07-13").release == (0, 25, 0)
    assert parse_version("", date="2025-2026").release == (0, 13, 0)  # between them: 1 January 2026
    assert parse_version("0.9.1", date="2026-07-13").release == (0, 9, 1)


def test_how_a_version_is_written_does_not_matter_for_its_order() -> None:
    texts = ["0.6.3", "v0.8.5", "0.9.0", "0.9.0.1", "0.9.1", "0.10.0", "0.10.1.1", "2025-10", "0.26.1rc1", "0.33.0"]
    versions = [parse_version(text) for text in texts]
    assert sorted(reversed(versions)) == versions
    assert parse_version("0.11.0") == parse_version("2025-10") == known_version("0.11")
    assert len({parse_version("0.11.0"), parse_version("v0.11.0 (ROCm 7.0)")}) == 1


@pytest.mark.parametrize("text", ["abc", "0", "11", "1.2.3", "2025.10", "2025-13", "0..1", "0.11.0;ls", "$(id)", "v"])
def test_nonsense_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError, match="--engine-version") as caught:
        parse_version(text)
    assert "0.11.0" in caught.value.hint


def test_releases_outside_the_table_are_named_as_such() -> None:
    assert "0.33.0" in parse_version("0.40.0").note and "0.33.0" in parse_version("0.33.1rc0.dev88").note
    assert "0.4.2" in parse_version("0.3.1").note
    assert "0.11.2" in parse_version("0.11.3").note


@pytest.mark.parametrize("text", ["0.99.0", "0.40.0", "0.9.5", "v0.11.3", "0.9.5.post1"])
def test_a_release_that_does_not_exist_cannot_be_asked_for(text: str) -> None:
    with pytest.raises(InputError, match="there is no such release") as caught:
        existing_version(text)
    assert "0.33.0" in caught.value.hint


@pytest.mark.parametrize("text", ["0.33", "v0.8.5.post1", "0.34.0rc1.dev3", "0.3.1", "2025-10", "0.8.x"])
def test_releases_dates_and_development_builds_can_be_asked_for(text: str) -> None:
    assert existing_version(text) == parse_version(text)


def test_later_releases_came_out_later() -> None:
    days = [RELEASES[release] for release in sorted(RELEASES)]
    assert days == sorted(days)
    assert RELEASES[0, 33, 0] == datetime.date(2026, 11, 2)


@given(st.dates(datetime.date(2024, 4, 1), datetime.date(2027, 1, 1)))
def test_a_day_falls_to_a_release_that_was_out_and_no_newer_one_was(day: datetime.date) -> None:
    release = newest_by(day)
    assert RELEASES[release] <= day
    assert all(out > day for other, out in RELEASES.items() if other > release)


@given(st.text(max_size=40))
def test_any_text_is_placed_or_refused_in_one_line(text: str) -> None:
    try:
        version = parse_version(text)
    except InputError as error:
        assert error.hint
    else:
        assert len(version.release) >= 3
