"""The progress of delayed messages, as slaves copy it.

It follows the log bytes: a slave that knew of a delivery without its message would never deliver it.
"""

import logging
from typing import Any

from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.kernel.copied_tables import Polled, StreamedTable, Table
from tandemq.broker.kernel.feature import Feature
from tandemq.codec.ha import KIND_DELAYS
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)


class DelayTable(StreamedTable):
    """Delivery progress of each level; always copied whole."""

    code = RequestCode.GET_ALL_DELAY_OFFSET
    kind = KIND_DELAYS
    is_waited_for = False
    is_needed = False
    handed_as = "delays"

    def __init__(self, delay: DelayedMessages) -> None:
        """Begin to compare versions."""
        self._delay = delay
        self._published = -1
        """Version that was taken last."""

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return self.whole()

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._delay.adopt_body(polled.body)
        self._delay.save()

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._delay.version.counter != self._published

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if not self.has_changes:
            return None
        self._published = self._delay.version.counter
        return self.whole()

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps_java(self._delay.as_json())

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._delay.adopt(table)

    def correct(self) -> None:
        """See `Table`."""
        levels = self._delay.correct()
        for level, before, now in levels:
            log.warning("delay: progress of level %d was %d, behind the queue's end; now %d", level, before, now)
        self._delay.save(is_awaited=bool(levels))

    def handed(self) -> dict[str, Any]:
        """See `Table`."""
        return self._delay.as_json()

    def take_handed(self, raw: dict[str, Any]) -> None:
        """See `Table`."""
        self._delay.advance(raw)
        self._delay.save(is_awaited=True)


class DelayTables(Feature):
    """The table as a feature declares it."""

    def __init__(self, delay: DelayedMessages) -> None:
        """Declare it."""
        self._tables = (DelayTable(delay),)

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return self._tables
