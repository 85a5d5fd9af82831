"""Unmodified Java clients while a master is killed and returns: the gaps, per mode and client version.

    python -m bench.java_failover                                  3 rounds per mode, settings for failover: 10 minutes
    python -m bench.java_failover --settings defaults --mode elect --rounds 1

Needs Java 17 and Maven. The scenario is that of tests/interop/test_failover.py: a message each 50 ms and a consumer
with a backlog; kill -9 of the master of one group; its return. Prints the median and the largest value, in seconds.

Exit code 1 if a send failed with the settings for failover; an acknowledged message that was not read raises.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tandemq.coordination.registry.records import Mode
from tests.interop.flights import DEFAULTS, FOR_FAILOVER, FlightFigures
from tests.interop.outages import kill_and_return

_SETTINGS = {"failover": FOR_FAILOVER, "defaults": DEFAULTS}


def main(arguments: list[str]) -> int:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.java_failover", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", choices=[mode.value for mode in Mode], action="append")
    parser.add_argument("--settings", choices=_SETTINGS, default="failover")
    options = parser.parse_args(arguments)
    found: dict[tuple[str, str], list[FlightFigures]] = defaultdict(list)
    for _ in range(options.rounds):
        for mode in options.mode or [mode.value for mode in Mode]:
            with tempfile.TemporaryDirectory(prefix="tandemq-java-failover-") as directory:
                for one in kill_and_return(Mode(mode), _SETTINGS[options.settings], Path(directory)):
                    print(f"{mode}, {one}", flush=True)
                    found[mode, one.version].append(one)
    Console().print(_table(found))
    failed = sum(one.failed_sends for rounds in found.values() for one in rounds)
    return 1 if failed and options.settings == "failover" else 0


def _table(found: dict[tuple[str, str], list[FlightFigures]]) -> Table:
    table = Table(
        "mode", "client", "kill, read", "kill, write", "return, read", "return, write", "failed", "duplicated"
    )
    for (mode, version), rounds in sorted(found.items()):
        table.add_row(
            mode,
            version,
            _spread([one.kill_read_s for one in rounds]),
            _spread([one.kill_write_s for one in rounds]),
            _spread([one.return_read_s for one in rounds]),
            _spread([one.return_write_s for one in rounds]),
            str(sum(one.failed_sends for one in rounds)),
            str(sum(one.duplicates for one in rounds)),
        )
    return table


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f}; {max(values):.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
