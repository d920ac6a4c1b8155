"""Benchmarks: ratios of figures that were measured side by side, in one run on one machine. Never a test.

`command.py` lists the scenarios; each is a file in `scenarios/`. A side is a program of its own (`sides/`, `peers/`) that
is given an empty database and its orders as JSON, and prints its figures as JSON.
"""
