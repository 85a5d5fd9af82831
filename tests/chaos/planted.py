"""`python -m tests.chaos.planted DEFECT DIRECTORY …`: a broker with a defect that a run must find."""

from __future__ import annotations

import sys
from collections.abc import Callable

from chaos.broken import main
from tandemq.coordination.member import older_record
from tandemq.coordination.registry import view


def _believe_older_registry() -> None:
    """Follow every record of the registry, also one that is older than what was seen."""
    for module in (view, older_record):
        module.continues = lambda *_: True  # type: ignore[attr-defined]


DEFECTS: dict[str, Callable[[], None]] = {
    "believes-older-registry": _believe_older_registry,
}
"""Name to what plants it."""

if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)]()
    main()
