"""How far each slave has copied, connected or not: retention keeps what they lack.

    slave 1           → log offset 4800, in generation 2 of the log
    slave 10.0.0.5    → log offset 0, in generation 2                a classic slave, known by its address

For connected slaves the sessions know more; this is what was seen last, in `config/slaveOffsets.json`. An offset that
is too old keeps more than is needed, never less, so it is saved only when a slave connects or leaves, at a clean stop,
and periodically. A slave given up by the operator counts again once it has connected.

Owner: the master's side of replication. Source: docs/internals/storage.md, "retention".
"""

from collections.abc import Iterable
from typing import Any

from tandemq.broker.state.persistence import Saver
from tandemq.storage.json_tables import TableFile
from tandemq.storage.log.epochs import EpochTable


def _copied(saved: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {who: (int(entry["offset"]), int(entry["generation"])) for who, entry in saved.get("copied", {}).items()}


FILE = TableFile(
    "slaveOffsets.json", _copied, hint="delete it and its .bak: all is kept for the known slaves until they are back"
)


class SlaveOffsets:
    """Log offsets by name of the slave."""

    def __init__(self, saver: Saver) -> None:
        """Load the offsets.

        Raises:
            StoreDamaged: the file is there, and cannot be read.
        """
        self._saver = saver
        saved = FILE.load(saver.disk)
        self._copied = _copied(saved)
        self._given_up: set[str] = {str(who) for who in saved.get("givenUp", [])}
        self._saved = self._as_json()

    def note(self, who: str, log_offset: int, generation: int) -> None:
        """Note that a slave has this generation of the log up to an offset."""
        self._copied[who] = (log_offset, generation)
        self._given_up.discard(who)

    def give_up(self, known: Iterable[str]) -> None:
        """Keep nothing for these slaves, nor for any that was noted, until they connect again."""
        self._given_up.update(known, self._copied)
        self._copied.clear()
        self.save()

    def needed(self, who: str, generations: EpochTable) -> int | None:
        """Return the log offset from which a disconnected slave needs the log; None if it was given up.

        Args:
            who: name of the slave. If nothing is noted of it, it may lack everything: 0.
            generations: of the log as it is now. What the slave has of a tail that was truncated since does not count.
        """
        if who in self._given_up:
            return None
        log_offset, generation = self._copied.get(who, (0, 0))
        return min([log_offset, *(start for number, start in generations if number > generation)])

    def noted(self) -> set[str]:
        """Return the names of slaves with a noted offset."""
        return set(self._copied)

    def save(self) -> None:
        """Write the file if something changed."""
        table = self._as_json()
        if table != self._saved:
            self._saved = table
            self._saver.later(FILE, self._as_json, is_awaited=False)

    def _as_json(self) -> dict[str, Any]:
        copied = {
            broker_id: {"offset": log_end, "generation": number}
            for broker_id, (log_end, number) in sorted(self._copied.items())
        }
        return {"copied": copied, "givenUp": sorted(self._given_up)}
