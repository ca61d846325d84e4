"""The benchmark of public sizes: one of its stories, and the ratio to an interval."""

import pytest

import sizing


def test_the_page_counts_a_story_and_says_how_far_it_is_off() -> None:
    story = next(one for one in sizing.stories() if "L4" in one.name)
    page = "\n".join(sizing.lines([story]))
    assert "1 of 1 stories (100%)" in page and "100,000 to 115,000" in page and story.source in page


@pytest.mark.parametrize(("right", "ratio", "within"), [((6, 10), 1, True), ((6, 7), 8 / 7, True), ((4, 4), 2, False)])
def test_a_ratio_is_that_to_the_nearer_end(right: tuple[float, float], ratio: float, within: bool) -> None:
    figure = sizing.Figure("GPUs", "fit Qwen/Qwen3-4B-FP8 --gpu l4 --max-num-seqs 8", "max_num_seqs", right)
    assert figure.ratio == pytest.approx(ratio) and figure.within is within
