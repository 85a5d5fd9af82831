"""A slave's copies of its master's tables, asked for one by one from time to time.

A table that fails does not stop the others. In groups with a registry the master publishes them instead
(`ha.metadata_stream`). Java slaves also copy the master's timer checkpoint, for the wheel that they build; a TandemQ
slave that becomes master reads what waits from the log.

Source: docs/internals/ha.md, "configuration"; RocketMQ SlaveSynchronize; requirements M01-M05.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tandemq.boundary import Now
from tandemq.broker.ha.offsets_ahead import OffsetsAhead
from tandemq.broker.kernel.copied_tables import Polled, Table
from tandemq.broker.kernel.kernel import Kernel
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief

log = logging.getLogger(__name__)
TIMEOUT_MS = 3_000


class LogCopy(Protocol):
    """The slave's copy of the log."""

    @property
    def is_accepted(self) -> bool:
        """Whether a TandemQ master has found that our log shares its history."""

    @property
    def is_copying(self) -> bool:
        """Whether our log is the beginning of the master's, as far as the protocol can tell."""


class MetadataSync:
    """Requests the master's tables and applies them."""

    def __init__(self, kernel: Kernel, log_copy: Callable[[], LogCopy | None]) -> None:
        """`log_copy` returns the copy of the master's log; None before it exists."""
        self._tables = kernel.features.tables
        self._peers = kernel.peers
        self._turn = kernel.turn
        self._log_copy = log_copy
        self._ahead = OffsetsAhead(kernel)
        self.synced_ms: dict[Code, int] = {}
        """When each table was last applied, calendar ms."""

    def is_complete(self) -> bool:
        """Whether every table was applied at least once."""
        return all(table.is_optional or table.code in self.synced_ms for table in self._tables)

    def sync(self, master: str, now: Now) -> None:
        """Request every table."""
        for table in self._tables:
            self._request(table, master, now)

    def _request(self, table: Table, master: str, now: Now) -> None:
        on_answer = partial(self._on_answer, master, table)
        command = Command(table.code, fields=table.request_fields())
        self._peers.call(master, command, TIMEOUT_MS, on_answer, self._turn.out, now)

    def _on_answer(self, master: str, table: Table, answer: Command | None, now: Now) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            if not table.is_optional:
                reason = "no answer" if answer is None else f"code {answer.code} {brief(answer.remark)}"
                log.warning("metadata: %s from master=%s failed: %s", table.code.name, master, reason)
            return
        log_copy = self._log_copy()
        is_accepted = log_copy is not None and log_copy.is_accepted
        try:
            table.take_polled(Polled(answer.body, master, is_accepted, now))
        except (TandemError, AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("metadata: %s from master=%s is unusable: %s", table.code.name, master, brief(error, 1_000))
            return
        if table.has_more:
            self._request(table, master, now)
            return
        self.synced_ms[table.code] = now.wall_ms
        # Before the log is copied, an offset may be of messages that the master lost.
        if table.may_be_ahead and log_copy is not None and log_copy.is_copying:
            self._ahead.send(master, now)
