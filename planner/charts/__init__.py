"""Pictures of figures: a chart is data (``figure``), drawn as SVG or PNG (``draw``) or as characters (``terminal``)."""

from planner.charts.figure import Bar, BarPanel, Chart, LinePanel, Mark, Segment, Series, Table

__all__ = ["Bar", "BarPanel", "Chart", "LinePanel", "Mark", "Segment", "Series", "Table"]
