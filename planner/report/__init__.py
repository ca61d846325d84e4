"""Printing: tables for people, JSON and CSV for programs. Data goes to stdout, everything else to stderr."""

from planner.report.evaluation import print_evaluation
from planner.report.facts import print_hardware, print_models, print_profile
from planner.report.fit import print_fit
from planner.report.prediction import can_serve, print_prediction
from planner.report.recommendation import predicted_lines, print_recommendation
from planner.report.render import note, print_json, print_rows

__all__ = [
    "can_serve",
    "note",
    "predicted_lines",
    "print_evaluation",
    "print_fit",
    "print_hardware",
    "print_json",
    "print_models",
    "print_prediction",
    "print_profile",
    "print_recommendation",
    "print_rows",
]
