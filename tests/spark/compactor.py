"""A process that compacts a lake, and pauses in between until it receives a line.

    python -m tests.spark.compactor LAKE

It prints "begun" after it has read the list of files, and continues after a line from stdin.
"""

import sys

from tandemq.spark.lake.delta import DataFile, DeltaLake


def main(lake: str) -> None:
    """Compact, with a pause before files are merged."""

    class StoppingLake(DeltaLake):
        def _small_files(self) -> list[list[DataFile]]:
            print("begun", flush=True)
            sys.stdin.readline()
            return super()._small_files()

    StoppingLake(lake).compact()


if __name__ == "__main__":
    main(*sys.argv[1:])
