"""Charts: true to their figures, legible in light and dark and without red or green, told in words as well."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.output.charts import (
    COLORS,
    SERIES,
    Bar,
    BarPanel,
    Chart,
    LinePanel,
    Mark,
    Scale,
    Segment,
    Series,
    _limits,
    svg,
)

THEMES = ("light", "dark")
SVG = "{http://www.w3.org/2000/svg}"


def color(name: str, theme: str) -> str:
    return COLORS[name][THEMES.index(theme)]


def lines(*series: Series, title: str = "Speed", **options: object) -> Chart:
    panel = LinePanel("requests in flight", "ms", series, "TTFT", **options)  # type: ignore[arg-type]
    return Chart("speed", title, "What to see.", (panel,))


def bars(*values: float) -> Chart:
    made = tuple(Bar(f"bar {at}", (Segment(value, 0),), f"{value:g}") for at, value in enumerate(values))
    return Chart("sizes", "Sizes", "What to see.", (BarPanel("GiB", made),))


TWO = (
    Series("median", (1, 10, 100), (5, 6, 9), lo=(4, 5, 7), hi=(6, 8, 12)),
    Series("p99", (1, 10, 100), (7, 9, 20), 1, "dashed", "s"),
    Series("measured", (10,), (8,), 2, "points", "D", lo=(6,), hi=(9,), x_lo=(9,), x_hi=(12,), strong=True),
)


# --- colours: WCAG 2.2 relative luminance and contrast; Machado, Oliveira and Fernandes 2009 for colour vision --------


def linear(colour: str) -> list[float]:
    """sRGB to linear light, as WCAG defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def contrast(one: str, other: str) -> float:
    dark, light = sorted(
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in map(linear, (one, other))
    )
    return (light + 0.05) / (dark + 0.05)


def lab(red: float, green: float, blue: float) -> tuple[float, float, float]:
    """Linear sRGB to CIELAB under D65."""

    def scaled(share: float) -> float:
        return float(share ** (1 / 3)) if share > (6 / 29) ** 3 else share / (3 * (6 / 29) ** 2) + 4 / 29

    x = scaled((0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047)
    y = scaled(0.2126729 * red + 0.7151522 * green + 0.0721750 * blue)
    z = scaled((0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


#: Table 1 of "A Physiologically-based Model for Simulation of Color Vision Deficiency", severity 1.0.
VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def seen(colour: str, vision: str) -> tuple[float, float, float]:
    rgb = [sum(share * part for share, part in zip(row, linear(colour), strict=True)) for row in VISION[vision]]
    return lab(*(min(max(share, 0.0), 1.0) for share in rgb))


def test_the_arithmetic_of_colours_is_that_of_the_standards() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the grey that just fails AA
    assert lab(*linear("#ff0000")) == pytest.approx((53.24, 80.09, 67.20), abs=0.02)  # published values of sRGB red
    assert seen("#808080", "no red") == pytest.approx(lab(*linear("#808080")), abs=0.5)  # greys stay grey


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_drawings_stand_out(theme: str) -> None:
    grounds = [color("ground", theme), color("raised", theme)]
    for name in ("ink", "muted", "accent"):
        assert min(contrast(color(name, theme), ground) for ground in grounds) >= 4.5, name
    for name in SERIES:
        assert contrast(color(name, theme), grounds[0]) >= 3, name
        assert contrast(color("on", theme), color(name, theme)) >= 4.5, f"text on {name}"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_series_stay_apart_for_every_eye(theme: str, vision: str) -> None:
    """About 2.3 is just noticeable; side by side in a legend 10 is told apart at a glance."""
    for one, other in combinations(SERIES, 2):
        first, second = (seen(color(name, theme), vision) for name in (one, other))
        distance = sum((a - b) ** 2 for a, b in zip(first, second, strict=True)) ** 0.5
        assert distance >= 10, (one, other, vision)


def test_light_colours_differ_so_that_each_can_be_named() -> None:
    assert len({light for light, _ in COLORS.values()}) == len(COLORS)


# --- SVG ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [720, 360])
@pytest.mark.parametrize("part_of", ["", "plan-1-speed"])
def test_svg_is_whole_and_needs_nothing_from_elsewhere(width: int, part_of: str) -> None:
    text = svg(lines(*TWO, x_log=True, marks=(Mark("plan", x=10), Mark("target", y=15))), width, part_of=part_of)
    root = ElementTree.fromstring(text)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    pointed = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', text))
    assert pointed and pointed <= set(ids)
    assert all(name.startswith(part_of or "speed") for name in ids if name)
    assert set(re.findall(r"\w+://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|<image|@import|<!DOCTYPE|xlink|url\((?!#)", text)
    assert float(root.attrib["viewBox"].split()[2]) == width
    assert root.get("role") == "img" and "max-width" in root.attrib["style"]


def test_svg_takes_its_colours_from_its_surroundings() -> None:
    text = svg(lines(*TWO), part_of="x")
    assert re.findall(r"#[0-9a-f]{6}", text) == []
    assert {"var(--ink)", "var(--muted)", "var(--line)", "var(--c0)", "var(--c1)"} <= set(
        re.findall(r"var\(--\w+\)", text)
    )
    alone = svg(lines(*TWO))
    assert "prefers-color-scheme: dark" in alone and color("ink", "dark") in alone


def test_svg_says_in_words_what_it_shows() -> None:
    root = ElementTree.fromstring(svg(lines(*TWO)))
    words = {(element.text or "").strip() for element in root.iter(f"{SVG}text")}
    assert {"TTFT", "ms", "requests in flight", "median", "p99", "measured", "Speed"} <= words
    labelled = (root.get("aria-labelledby") or "").split()
    told = {element.get("id"): element.text for element in root if element.tag in (f"{SVG}title", f"{SVG}desc")}
    assert [told[name] for name in labelled] == ["Speed", "What to see."]


@given(st.text(max_size=40))
@settings(max_examples=8, deadline=None)
def test_names_cannot_break_out_of_an_svg(name: str) -> None:
    chart = Chart("c", name, name, (BarPanel("GiB", (Bar(name, (Segment(1, 0, name, name),), name),)),))
    root = ElementTree.fromstring(svg(chart, part_of="p"))
    allowed = {"svg", "g", "path", "text", "title", "desc", "defs", "use", "clipPath", "rect", "tspan"}
    assert {element.tag.removeprefix(SVG).rpartition("}")[2] for element in root.iter()} <= allowed


def test_a_dollar_sign_is_a_dollar_sign() -> None:
    assert "a$b^2$c" in "".join(ElementTree.fromstring(svg(lines(*TWO, title="a$b^2$c"))).itertext())


def test_bars_are_as_long_as_their_values() -> None:
    """Widths of the filled paths, 1 to 3, from the coordinates themselves."""
    root = ElementTree.fromstring(svg(bars(1, 3)))
    found = []
    for path in root.iter(f"{SVG}path"):
        if "fill: var(--c0)" in path.get("style", ""):
            x = [float(word) for word in re.findall(r"[ML] (-?[\d.]+) ", path.get("d", ""))]
            found.append(max(x) - min(x))
    assert len(found) == 2
    assert found[1] == pytest.approx(3 * found[0], rel=1e-3)


@pytest.mark.parametrize("log", [False, True])
@given(values=st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_ticks_are_few_round_and_on_the_axis(log: bool, values: list[float]) -> None:
    """And the points of a line lie where its values are: further up for more."""
    low, high = _limits(values, log=log, from_zero=not log)
    assert low < high and all(low <= value <= high for value in values)
    scale = Scale(low, high, 200, 0, log)
    ticks = scale.ticks()
    assert 1 <= len(ticks) <= 8 and all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert all(f"{tick:.10g}" == f"{tick:.15g}" for tick in ticks)
    at = [scale.at(value) for value in sorted(values)]
    assert at == sorted(at, reverse=True) and all(0 <= place <= 200 for place in at)


def test_the_same_chart_has_the_same_bytes() -> None:
    assert svg(lines(*TWO)) == svg(lines(*TWO))
