"""The history of the log: which generation, or epoch of an `elect` group, began at which log offset.

Source: docs/internals/ha.md.
"""

import logging

from tandemq.boundary import Disk
from tandemq.errors import StoreError
from tandemq.storage.log.epochs import EpochTable, load_epochs, restore_epoch_copies, save_epochs

log = logging.getLogger(__name__)


class Generations:
    """The table of generations, kept on the disk in two copies."""

    def __init__(self, disk: Disk) -> None:
        """Load the table.

        Raises:
            StoreDamaged: neither copy can be read.
        """
        self._disk = disk
        self.pairs: EpochTable = load_epochs(disk)
        """(number, first log offset), oldest first."""
        try:
            restore_epoch_copies(disk, self.pairs)
        except StoreError as error:
            log.warning("replication: only one copy of the table of generations exists: %s", error)

    def set(self, pairs: EpochTable) -> None:
        """Replace the history, once the new one is saved.

        Raises:
            StoreError: it could not be saved; the history is unchanged.
        """
        if pairs != self.pairs:
            save_epochs(self._disk, pairs)
            self.pairs = list(pairs)

    def at(self, end: int) -> int:
        """Return the number of the last generation that begins at or before a log end; 0: none does."""
        return next((number for number, start in reversed(self.pairs) if start <= end), 0)
