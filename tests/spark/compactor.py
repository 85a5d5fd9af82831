"""A process that compacts a lake, and pauses in between until it receives a line.

    python -m tests.spark.compactor LAKE

It prints "begun" after it has read the list of files, and continues after a line from stdin.
"""

import sys
from typing import Any

from deltalake import DeltaTable

from tandemq.spark.lake.delta import DeltaLake


def main(lake: str) -> None:
    """Compact, with a pause before files are merged."""
    optimize: Any = DeltaTable.optimize

    def stop(table: DeltaTable) -> Any:
        print("begun", flush=True)
        sys.stdin.readline()
        return optimize.fget(table)

    DeltaTable.optimize = property(stop)  # type: ignore[assignment]
    DeltaLake(lake).compact()


if __name__ == "__main__":
    main(*sys.argv[1:])
