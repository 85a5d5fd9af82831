"""What a pull selects: all messages, those with some tags, or those that match an SQL92 expression."""

from typing import NamedTuple

from tandemq.broker.filter.compiled import memory_of_filter
from tandemq.broker.filter.parser import SqlFilter
from tandemq.broker.state.subscriptions import CODE_BYTES, Codes


class MessageSelector(NamedTuple):
    """The messages that a pull wants."""

    codes: Codes = None
    """Tags codes; None: of all tags."""
    sql: SqlFilter | None = None

    @property
    def memory_bytes(self) -> int:
        """Estimate of its memory, bytes."""
        return CODE_BYTES * len(self.codes or ()) + (memory_of_filter(self.sql) if self.sql is not None else 0)


ALL_MESSAGES = MessageSelector()
