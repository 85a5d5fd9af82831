"""`python -m tests.chaos.planted DEFECT DIRECTORY …`: a broker with a defect that a run must find.

DEFECT: one of `DEFECTS` or `OF_PROXIES`, or a mutation of the simulation (`python -m tests.mutations list`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos import broken
from tandemq.boundary import Now
from tandemq.broker.features.scrub import repair
from tandemq.broker.ha.metadata_stream import MetadataStream
from tandemq.broker.kernel import kernel
from tandemq.cli.main import main as tandemq
from tandemq.coordination.member import older_record
from tandemq.coordination.member.follower import RecordFollower
from tandemq.coordination.member.handover import Handover
from tandemq.coordination.registry import view
from tandemq.coordination.registry.embedded import EmbeddedRegistry
from tandemq.errors import StoreDamaged
from tandemq.real import disk
from tandemq.real.loop import Loop
from tandemq.run.restarted_child import RestartedChild
from tandemq.storage import recovery
from tests.mutations.cluster import MUTATIONS
from tests.mutations.groups import GROUP_MUTATIONS

_LOOK_SECONDS, _STILL_SECONDS = 0.01, 0.06


def _believe_older_registry() -> None:
    """Follow every record of the registry, also one that is older than what was seen."""
    for module in (view, older_record):
        module.continues = lambda *_: True  # type: ignore[attr-defined]


def _never_repair() -> None:
    """Ask no replica for the good bytes of a damaged range."""
    repair.Repairs._next = lambda *_: None  # type: ignore[method-assign]  # that is the defect


def _ignore_tables() -> None:
    """Count the tables of the master as applied, and do not apply them."""

    def take(self: MetadataStream, kind: int, _payload: bytes) -> None:
        self._received.add(kind)  # that is the defect

    MetadataStream.take = take  # type: ignore[method-assign, assignment]


def _ignore_failed_syncs() -> None:
    """Take bytes for durable whose sync failed."""
    broken.KINDS.remove("eio")


def _end_at_errors() -> None:
    """Handle no error of the device."""
    disk.RealFile.error = lambda _self, error: error  # type: ignore[method-assign, assignment, return-value]


def _take_slowness_for_a_hang() -> None:
    """End if the process stands still for a moment."""

    never = threading.Event()

    def watch() -> None:
        while True:
            before = time.monotonic()
            never.wait(_LOOK_SECONDS)
            if time.monotonic() - before > _STILL_SECONDS:
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _end_without_registry() -> None:
    """End when the connection to the registry does."""
    EmbeddedRegistry._lose_link = lambda *_: os._exit(1)  # type: ignore[method-assign]  # that is the defect


def _end_when_switched() -> None:
    """End when another member is to be the master."""
    Handover._propose_switch = lambda *_: os._exit(1)  # type: ignore[method-assign]  # that is the defect


def _hang_without_memory() -> None:
    """Stop doing anything when memory is short, and stay."""
    once = Loop._once

    def stuck(self: Loop, *args: Any) -> Any:
        try:
            return once(self, *args)
        except MemoryError:
            threading.Event().wait()

    Loop._once = stuck  # type: ignore[method-assign, assignment]


def _end_with_the_clock() -> None:
    """End when the calendar clock goes back."""
    once, latest = Loop._once, time.time()

    def checked(self: Loop, *args: Any) -> Any:
        nonlocal latest
        latest = max(latest, time.time_ns() / 1e9)
        if time.time_ns() / 1e9 < latest - 1:
            os._exit(1)
        return once(self, *args)

    Loop._once = checked  # type: ignore[method-assign, assignment]


def _fail_without_descriptors() -> None:
    """Take a file that cannot be opened for lack of descriptors for a device that failed."""
    disk._SCARCE = ()  # type: ignore[assignment]  # that is the defect


def _start_after_clean_stops_only() -> None:
    """Do not start with a store that was not closed."""
    open_store = recovery.open_store

    def reopened(*args: Any) -> Any:
        opened, found = open_store(*args)
        if opened.log.end and not found.clean:
            raise StoreDamaged("it was not closed")
        return opened, found

    kernel.open_store = reopened  # type: ignore[attr-defined, assignment]  # that is the defect


def _leave_dead() -> None:
    """Start no shard again."""
    RestartedChild._watch = lambda *_: None  # type: ignore[method-assign]  # that is the defect


def _let_shards_end() -> None:
    """Have shards end with what started them."""
    RestartedChild.outlive_parent = lambda *_: None  # type: ignore[method-assign]  # that is the defect


def _end_at_once() -> None:
    """End at SIGTERM, whatever is in progress."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
    signal.signal = lambda *_: None  # that is the defect


def _crash_at_damage() -> None:
    """Do not handle what a store has damaged or lacks."""

    def crash(*_args: Any, **_words: Any) -> None:
        raise RuntimeError

    StoreDamaged.__init__ = crash  # type: ignore[method-assign]  # that is the defect


def _end_when_emptied() -> None:
    """End, once, as a member of a group that has had several masters, and has nothing of their logs."""
    follow, mark = RecordFollower.follow, Path(sys.argv[1]) / "ended"

    def followed(self: RecordFollower, now: Now) -> None:
        follow(self, now)
        is_emptied = (self._followed_epoch or 0) > 1 and not self._facts.log.epoch
        if is_emptied and not mark.exists():
            mark.touch()
            os._exit(1)

    RecordFollower.follow = followed  # type: ignore[method-assign]  # that is the defect


DEFECTS: dict[str, Callable[[], None]] = {
    "believes-older-registry": _believe_older_registry,
    "never-repairs": _never_repair,
    "ignores-tables": _ignore_tables,
    "ignores-failed-syncs": _ignore_failed_syncs,
    "ends-at-errors": _end_at_errors,
    "ends-when-slow": _take_slowness_for_a_hang,
    "ends-when-switched": _end_when_switched,
    "ends-without-registry": _end_without_registry,
    "hangs-without-memory": _hang_without_memory,
    "ends-when-the-clock-goes-back": _end_with_the_clock,
    "fails-without-descriptors": _fail_without_descriptors,
    "starts-after-clean-stops-only": _start_after_clean_stops_only,
    "leaves-dead": _leave_dead,
    "crashes-at-damage": _crash_at_damage,
    "ends-when-emptied": _end_when_emptied,
    "shards-end-with-parent": _let_shards_end,
}
"""Name to what plants it."""
OF_PROXIES: dict[str, Callable[[], None]] = {"ends-at-once": _end_at_once}
"""The same of proxies."""


def main() -> None:
    """Plant the defect, then run tandemq."""
    defect = sys.argv.pop(1)
    if defect in OF_PROXIES:
        OF_PROXIES[defect]()
        tandemq()
    elif defect in DEFECTS:
        DEFECTS[defect]()
        broken.main("-m", "tests.chaos.planted", defect)
    else:
        with (MUTATIONS | GROUP_MUTATIONS)[defect].patch():
            broken.main("-m", "tests.chaos.planted", defect)


if __name__ == "__main__":
    main()
