"""SVG that follows its surroundings: colours by name, letters of the reader's system, nothing that points outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from planner.charts.figure import Chart
from planner.charts.palette import COLORS, style_sheet

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_HREF = f"{{{_XLINK}}}href"


def themed(text: str, chart: Chart, *, alone: bool, key: str) -> str:
    """What matplotlib wrote, made ours, with words for those who hear it. ``key`` begins every id in it."""
    ElementTree.register_namespace("", _SVG)
    root = ElementTree.fromstring(text)  # noqa: S314  (matplotlib wrote it a moment ago)
    for parent in list(root.iter()):
        for child in [c for c in parent if c.tag.endswith(("metadata", "}style"))]:
            parent.remove(child)
    _rename(root, key)
    root.attrib = {
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-labelledby": f"{key}-title {key}-desc",
        "class": "chart",
        "style": f"width: 100%; max-width: {root.attrib['viewBox'].split()[2]}px; height: auto; display: block",
    }
    title = ElementTree.Element(f"{{{_SVG}}}title", id=f"{key}-title")
    described = ElementTree.Element(f"{{{_SVG}}}desc", id=f"{key}-desc")
    title.text, described.text = chart.title, chart.description
    root[:0] = [title, described]
    if alone:
        style = ElementTree.Element(f"{{{_SVG}}}style")
        style.text = f"{style_sheet('svg')}svg {{ background: var(--ground); }}"
        root.insert(2, style)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"
    return ElementTree.tostring(root, encoding="unicode").replace(f' xmlns="{_SVG}"', "", 1)


_NAMED = {light: name for name, (light, _) in COLORS.items()}
_COLOR = re.compile("|".join(_NAMED))
_FAMILY = re.compile(r"'DejaVu Sans'(?:, [^;]*)?")
_REFERENCE = re.compile(r"url\(#([\w-]+)\)")


def _rename(root: ElementTree.Element, key: str) -> None:
    """In every element: named colours, the reader's letters, ids that no other drawing of a page has."""
    wanted = set(_references(root))
    for element in root.iter():
        style = element.get("style")
        if style:
            style = _COLOR.sub(lambda found: f"var(--{_NAMED[found[0]]})", style)
            element.set("style", _FAMILY.sub(FONT, style))
        if element.get("id") in wanted:
            element.set("id", f"{key}-{element.get('id')}")
        else:
            element.attrib.pop("id", None)
        if _HREF in element.attrib:
            element.set("href", f"#{key}-{element.attrib.pop(_HREF).removeprefix('#')}")
        if "clip-path" in element.attrib:
            element.set("clip-path", _REFERENCE.sub(rf"url(#{key}-\1)", element.attrib["clip-path"]))


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        yield element.get(_HREF, "").removeprefix("#")
        yield from _REFERENCE.findall(element.get("clip-path", ""))
