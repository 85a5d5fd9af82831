"""A process that compacts a lake, and stops on the way until it is told to go on.

    python -m tests.spark.compactor LAKE

It says "begun" when it has read which files there are, and goes on after a line from stdin.
"""

import sys
from typing import Any

from deltalake import DeltaTable

from tandemq.spark.lake.delta import DeltaLake


def main(lake: str) -> None:
    """Compact, with a stop before files are joined."""
    optimize: Any = DeltaTable.optimize

    def stop(table: DeltaTable) -> Any:
        print("begun", flush=True)
        sys.stdin.readline()
        return optimize.fget(table)

    DeltaTable.optimize = property(stop)  # type: ignore[assignment]
    DeltaLake(lake).compact()


if __name__ == "__main__":
    main(*sys.argv[1:])
