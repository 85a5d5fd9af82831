"""What a check finds."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and may fail or be slow later, or is less secure than it could be."""
    PROBLEM = "problem"
    """It does not work, or messages are in danger."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of one check."""

    level: Level
    check: str
    """Name of the check, for programs."""
    where: str
    """Setting, file, address or member."""
    text: str
    todo: str = ""
    """What to do; "" if nothing."""


def ok(check: str, where: str, text: str) -> DoctorFinding:
    """Return a finding without a fault."""
    return DoctorFinding(Level.OK, check, where, text)


def warning(check: str, where: str, text: str, todo: str) -> DoctorFinding:
    """Return a warning."""
    return DoctorFinding(Level.WARNING, check, where, text, todo)


def problem(check: str, where: str, text: str, todo: str) -> DoctorFinding:
    """Return a problem."""
    return DoctorFinding(Level.PROBLEM, check, where, text, todo)


def counts(findings: Sequence[DoctorFinding]) -> dict[Level, int]:
    """Return the number of findings by level."""
    return {level: sum(finding.level is level for finding in findings) for level in Level}


def counted(count: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
