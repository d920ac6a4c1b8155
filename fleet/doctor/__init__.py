"""Examine a database: what is asked stands in postgres/, what is made of the answers here. Changes nothing."""

from fleet.doctor.check import Check, Finding, Opinion, Verdict
from fleet.doctor.examination import CHECKS, examine

__all__ = ["CHECKS", "Check", "Finding", "Opinion", "Verdict", "examine"]
