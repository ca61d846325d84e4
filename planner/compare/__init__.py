"""Which GPU, and in which mode? Equal hardware under equal load."""

from planner.compare.comparison import Comparison, Order, compare
from planner.compare.machine import Per, Question, Refused
from planner.compare.order import Flip, in_words
from planner.compare.point import Point, figures

__all__ = ["Comparison", "Flip", "Order", "Per", "Point", "Question", "Refused", "compare", "figures", "in_words"]
