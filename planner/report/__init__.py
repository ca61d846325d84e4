"""Printing: tables for people, JSON and CSV for programs. Data goes to stdout, everything else to stderr.

Each command imports its own module from here: those of ``fit`` must not wait for what ``predict`` needs.
"""
