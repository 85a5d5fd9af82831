"""A driver of the example project that kills itself, and its JVM, as requested.

    python -m tests.spark.shop_driver SCRIPT NAME-SERVERS [--follow] [committed|before TABLE NUMBER | exists PATH]

`committed`: after its commit of that number (from 0) to a table, before Spark's; `before`: before that commit;
`exists`: as soon as a file exists below the project. Otherwise it runs to its end, with `--follow` to a signal.
"""

import os
import runpy
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tandemq.spark.lake.upsert import Upsert
from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT


def die() -> None:
    """End at once, with the JVM and Spark's Python processes."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def die_around(when: str, table: str, number: int) -> None:
    """Die before or after a commit to a table."""
    merge, commits = Upsert.__call__, Counter[str]()

    def wrapped(self: Upsert, frame: Any, batch: int) -> None:
        name = self._place.name
        if (when, name, commits[name]) == ("before", table, number):
            frame.count()
            die()
        merge(self, frame, batch)
        if (when, name, commits[name]) == ("committed", table, number):
            die()
        commits[name] += 1

    Upsert.__call__ = wrapped  # type: ignore[method-assign]


def die_if_exists(path: Path) -> None:
    """Die as soon as a file exists."""

    def watch() -> None:
        while not path.exists():
            threading.Event().wait(0.001)
        die()

    threading.Thread(target=watch, daemon=True).start()


def main(script: str, name_servers: str, *when: str) -> None:
    """Run the script of a project."""
    settings = SHORT | {"spark.driver.memory": "512m"}
    open_session("orders", master="local[2]", settings=settings)  # the script takes the session that runs
    follows = [one for one in when[:1] if one == "--follow"]
    when = when[len(follows) :]
    if when[:1] == ("exists",):
        die_if_exists(Path(script).parent / when[1])
    elif when:
        die_around(when[0], when[1], int(when[2]))
    sys.argv = [script, "--namesrv", name_servers, *follows]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
