"""The result of `tandemq ha check` as a plugin of Nagios, Icinga, Checkmk and others prints it.

    TANDEMQ CRITICAL - broker-a: no master | groups=2;;;0 brokers=4;;;0 'broker-a_lag'=512B;1000;5000;0 …
    └ service, state ─┘ └ worst fault ────┘ └ performance data: label=value[unit];warning;critical;minimum

Source: docs/guides/operations.md, "Nagios and Icinga"; the Nagios plugin development guidelines.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from tandemq.cli.ha.health import Rows

SERVICE = "TANDEMQ"
TEXT_CHARACTERS_MAX = 300


class PluginState(IntEnum):
    """State of a service; the value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class LagLimits:
    """Bytes of the log that a slave may be behind its master; None: any."""

    warning: int | None = None
    critical: int | None = None


@dataclass(slots=True)
class ClusterFaults:
    """Faults and rows by name of the group; "" for faults that concern no particular group."""

    outages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Faults because of which clients are not served."""
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """All faults."""
    rows: Mapping[str, Rows] = field(default_factory=dict)


def plugin_line(found: ClusterFaults, limits: LagLimits) -> tuple[str, PluginState]:
    """Return the line to print, and the state."""
    lagging = {state: _lagging(found.rows, limit) for state, limit in _limits_of(limits)}
    critical = [*_named(found.outages), *lagging[PluginState.CRITICAL]]
    warning = [*_named(found.faults), *lagging[PluginState.WARNING]]
    faults = list(dict.fromkeys([*critical, *warning]))
    state = PluginState.CRITICAL if critical else PluginState.WARNING if warning else PluginState.OK
    brokers = sum(map(len, found.rows.values()))
    text = faults[0] if faults else f"{_counted(len(found.rows), 'group')}, {_counted(brokers, 'broker')}"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{SERVICE} {state.name} - {plain(text)}{more} | {_performance(found, limits)}", state


def unknown_line(reason: str) -> str:
    """Return the line of the state UNKNOWN."""
    return f"{SERVICE} {PluginState.UNKNOWN.name} - {plain(reason)}"


def plain(text: str) -> str:
    """Return a text on one line, without the character that begins performance data."""
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= TEXT_CHARACTERS_MAX else text[: TEXT_CHARACTERS_MAX - 1] + "…"


def _limits_of(limits: LagLimits) -> Sequence[tuple[PluginState, int | None]]:
    return ((PluginState.CRITICAL, limits.critical), (PluginState.WARNING, limits.warning))


def _named(faults: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name}: {fault}" if name else fault for name, of_group in faults.items() for fault in of_group]


def _lagging(rows: Mapping[str, Rows], limit: int | None) -> list[str]:
    if limit is None:
        return []
    return [
        f"{name}: broker {row['id']} is {row['lagBytes']} bytes behind"
        for name, of_group in rows.items()
        for row in of_group
        if (row["lagBytes"] or 0) > limit
    ]


def _performance(found: ClusterFaults, limits: LagLimits) -> str:
    warning, critical = ("" if limit is None else str(limit) for limit in (limits.warning, limits.critical))
    brokers = [row for of_group in found.rows.values() for row in of_group]
    answering = sum(row["state"] not in ("away", "no answer") for row in brokers)
    values = [
        f"groups={len(found.rows)};;;0",
        f"brokers={len(brokers)};;;0",
        f"answering={answering};;;0",
        f"faults={len(_named(found.faults))};;;0",
    ]
    for name, of_group in found.rows.items():
        label = plain(name).replace("'", "").replace("=", "")
        lag = max((row["lagBytes"] or 0 for row in of_group), default=0)
        damaged = sum(row["damaged"] or 0 for row in of_group)
        values += [f"'{label}_lag'={lag}B;{warning};{critical};0", f"'{label}_damaged'={damaged};;;0"]
    return " ".join(values)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
