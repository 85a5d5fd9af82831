"""What a pull selects: all messages, those with some tags, or those that match an SQL92 expression."""

from typing import NamedTuple

from tandemq.broker.filter.compiled import memory_of_filter
from tandemq.broker.filter.parser import SqlFilter
from tandemq.broker.filter.retry import RetryFilter
from tandemq.broker.state.subscriptions import CODE_BYTES, Codes


class MessageSelector(NamedTuple):
    """The messages that a pull wants."""

    codes: Codes = None
    """Tags codes; None: of all tags."""
    sql: SqlFilter | RetryFilter | None = None

    @property
    def memory_bytes(self) -> int:
        """Estimate of its memory, bytes."""
        compiled = memory_of_filter(self.sql) if isinstance(self.sql, SqlFilter) else 0
        return CODE_BYTES * len(self.codes or ()) + compiled


ALL_MESSAGES = MessageSelector()


def unsupported_kind(kind: object) -> str:
    """Return RocketMQ's remark for an expression of a type that the broker does not accept."""
    return f"The broker does not support consumer to filter message by {str(kind)[:32]}"
