"""`python -m tests.chaos.planted DEFECT DIRECTORY …`: a broker with a defect that a run must find.

DEFECT: one of `DEFECTS`, or a mutation of the simulation (`python -m tests.mutations list`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from chaos.broken import main
from tandemq.broker.features.scrub import repair
from tandemq.broker.ha.metadata_stream import MetadataStream
from tandemq.coordination.member import older_record
from tandemq.coordination.registry import view
from tests.mutations.cluster import MUTATIONS


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


DEFECTS: dict[str, Callable[[], None]] = {
    "believes-older-registry": _believe_older_registry,
    "never-repairs": _never_repair,
    "ignores-tables": _ignore_tables,
}
"""Name to what plants it."""

if __name__ == "__main__":
    defect = sys.argv.pop(1)
    if defect in DEFECTS:
        DEFECTS[defect]()
        main()
    else:
        with MUTATIONS[defect].patch():
            main()
