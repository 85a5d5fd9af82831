"""Losses that a group is not made for, of any members, several at once: only rules of safety hold then.

    lose-log      a file of the log is damaged, empty, cut, zeroed or missing
    lose-table    a table is, of the active member too
    lose-disk     the store is empty

Each strikes a member that is killed for it. One that does not start on what is left gets an empty store.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from random import Random
from typing import Any

from chaos import damaged_log, damaged_tables
from chaos.brokers import Broker
from chaos.world import World

_LOG_KINDS = ("bytes", "empty", "cut", "zeroed", "missing")
_SAFETY = re.compile(
    r"I2: |I6: |I16: |I11: \d+ (delivered|in the log of \S+) and not committed|I14: .* died, its traceback"
    r"|judge: \d+ (corrupt|phantom|aborted-read|half-read|early),|judge: the history cannot be read"
)


def of_safety(violations: Iterable[str]) -> list[str]:
    """Return the violations of rules that hold whatever was lost: nothing is wrong, invented, or served twice."""
    return [text for text in violations if _SAFETY.match(text)]


class BeyondFaults:
    """The losses of one run."""

    def __init__(self, world: World) -> None:
        """Nothing is lost."""
        self._world = world

    def log(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Lose bytes of a file of the commit log, or all of them."""
        broker.kill()
        files = sorted((broker.judged_store / "commitlog").glob("*"))
        if not files:  # it has just got an empty store
            return {"emptied": _start(broker)}
        path, kind = random.choice(files), random.choice(_LOG_KINDS)
        if kind == "bytes":
            kind, _ = damaged_log.damage(path, random)
        elif kind == "missing":
            path.unlink()
        else:
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.truncate(random.randrange(size + 1) if kind == "cut" else 0)
                file.truncate(size if kind == "zeroed" else file.seek(0, 2))
        time.sleep(seconds)
        return {"file": f"commitlog/{path.name}", "kind": kind, "emptied": _start(broker)}

    def table(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Lose a table, or parts of it."""
        broker.kill()
        has_static_topic = self._world.neighbour is not None
        now = damaged_tables.contents(broker.judged_store, has_static_topic=has_static_topic)
        name, kind = damaged_tables.damage(now, {}, random)
        time.sleep(seconds)
        return {"file": name, "kind": kind, "emptied": _start(broker)}

    def disk(self, broker: Broker, seconds: float, _random: Random) -> None:
        """Lose the whole store."""
        broker.kill()
        shutil.rmtree(broker.judged_store)
        time.sleep(seconds)
        broker.start()


def _start(broker: Broker) -> bool:
    """Start a broker, with an empty store if it refuses to start on what it has; return whether that was so."""
    if broker.start_if_it_can():
        return False
    shutil.rmtree(broker.judged_store)
    broker.start()
    return True
