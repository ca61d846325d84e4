"""Printing: tables for people, JSON and CSV for programs. Data goes to stdout, everything else to stderr."""

from planner.report.render import note, print_json, print_rows

__all__ = ["note", "print_json", "print_rows"]
