"""Offset stores of a consumer: at the brokers for a clustering group, on this machine for a broadcasting one.

A commit goes to the master, and to a slave while the master is down or inactive. An offset committed at a slave is
committed again at the master when it is back, because the address is remembered with the offset. A member that refuses
a commit with NO_PERMISSION is inactive: the next member gets it.

Source: docs/reference/requests.md, "offsets"; RocketMQ OffsetStore, RemoteBrokerOffsetStore, LocalFileOffsetStore.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.commits import OffsetCommitter, Superseded
from tandemq.client.consumer.offsets.lookup import first_offset, starting_offset
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue, AssignmentState, CommittedOffset
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.operations import Steps, current_time, pause, wait
from tandemq.client.core.requests import query_offset_request
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumerOptions
from tandemq.errors import StoreError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue

log = logging.getLogger(__name__)
CLOSE_ATTEMPTS = 3
"""Number of attempts to commit before a consumer closes without."""
CLOSE_PAUSE_MS = 500

ActiveQueues = Callable[[], Sequence[AssignedQueue]]
"""Returns the active queues of a consumer."""


class OffsetStore(Protocol):
    """Offsets of the queues of one consumer."""

    def load(self, queue: MessageQueue) -> Steps[int]:
        """Return the offset at which the consumer starts to read a queue.

        Raises:
            NetworkError, RemoteError: no broker reports it.
            StoreError: the local offsets cannot be read.
        """

    def persist(self, queue: AssignedQueue, now: Now) -> None:
        """Commit the offset of one queue if it has changed."""

    def persist_all(self, queues: Sequence[AssignedQueue], now: Now) -> None:
        """Commit the offsets of all queues that have changed."""

    def persist_soon(self, queues: ActiveQueues, now: Now) -> None:
        """Commit in the next turn, because a broker stops serving and may still accept commits."""

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """Cancel a commit that was not sent: the position of the queue was moved."""

    def settled(self, queue: MessageQueue) -> Steps[None]:
        """Wait until all commits of a queue have succeeded or failed."""

    def flush(self, queues: ActiveQueues) -> Steps[None]:
        """Commit all offsets and wait for the outcome, before the consumer closes."""


class RemoteBrokerOffsetStore:
    """See `OffsetStore`; offsets of a clustering group at the brokers."""

    def __init__(
        self,
        options: ConsumerOptions,
        committer: OffsetCommitter,
        routes: Routes,
        availability: BrokerAvailability,
        timers: Timers,
    ) -> None:
        """Nothing is committed yet."""
        self._options = options
        self._committer = committer
        self._routes = routes
        self._availability = availability
        self._timers = timers
        self._is_timer_set = False

    def load(self, queue: MessageQueue) -> Steps[int]:
        """See `OffsetStore`."""
        return (yield from starting_offset(self._routes, self._availability, self._options, queue))

    def persist(self, queue: AssignedQueue, now: Now) -> None:
        """See `OffsetStore`."""
        due = self._due(queue)
        if due is not None:
            self._commit(queue, due, now)

    def persist_all(self, queues: Sequence[AssignedQueue], now: Now) -> None:
        """See `OffsetStore`."""
        for queue in queues:
            self.persist(queue, now)

    def persist_soon(self, queues: ActiveQueues, now: Now) -> None:
        """See `OffsetStore`."""

        def persist(now: Now) -> None:
            self._is_timer_set = False
            self.persist_all(queues(), now)

        if not self._is_timer_set:
            self._is_timer_set = True
            self._timers.at(now.mono_ms, persist)

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """See `OffsetStore`."""
        self._committer.withdraw(queue, now)

    def settled(self, queue: MessageQueue) -> Steps[None]:
        """See `OffsetStore`."""
        yield from self._committer.settled(queue)

    def flush(self, queues: ActiveQueues) -> Steps[None]:
        """See `OffsetStore`."""
        for _ in range(CLOSE_ATTEMPTS):
            self.persist_all(queues(), (yield from current_time()))
            yield from wait(self._committer.idle())
            # A refused commit may be in flight to the next member by now.
            yield from pause(0)
            yield from wait(self._committer.idle())
            due = [due for queue in queues() if (due := self._due(queue)) is not None]
            if not any(self._availability.is_inactive(commit.address) for commit in due):
                return
            yield from pause(CLOSE_PAUSE_MS)

    def _due(self, queue: AssignedQueue) -> CommittedOffset | None:
        """Return what is to be committed, and where; None if it is committed already or no broker is known."""
        addresses = self._routes.read_addresses(queue.queue.broker_name)
        if not addresses:
            return None
        due = CommittedOffset(queue.process_queue.committable, addresses[0])
        return None if queue.committed == due else due

    def _commit(self, queue: AssignedQueue, due: CommittedOffset, now: Now) -> None:
        def on_settled(ticket: Ticket[None]) -> None:
            error = ticket.error
            if error is None:
                queue.committed = due
            elif not isinstance(error, Superseded):
                self._timers.at(0, lambda now: self._on_failed(queue, due, error, now))

        self._committer.commit(queue.queue, due.offset, due.address, now).then(on_settled)

    def _on_failed(self, queue: AssignedQueue, failed: CommittedOffset, error: TandemError, now: Now) -> None:
        """Commit at the next member, if there is one; the one that failed is down or inactive now, so that this ends.

        For a queue that was dropped, only a refused commit is repeated: later its next reader may have committed more.
        """
        group, broker_name = self._options.group, queue.queue.broker_name
        is_refused = error.code == ResponseCode.NO_PERMISSION
        if is_refused:
            check = partial(query_offset_request, group, queue.queue)
            self._availability.mark_inactive(failed.address, check, now)
            self._routes.refresh(queue.queue.topic, now)
        following: CommittedOffset | None = None
        if queue.state is AssignmentState.ACTIVE:
            following = self._due(queue)
        elif is_refused:
            addresses = self._routes.read_addresses(broker_name)
            following = CommittedOffset(failed.offset, addresses[0]) if addresses else None
        if (
            following is not None
            and following.address != failed.address
            and not self._availability.is_inactive(following.address)
        ):
            self._commit(queue, following, now)


class OffsetStorage(Protocol):
    """Offsets of broadcasting groups on this machine."""

    def read(self, group: str) -> dict[MessageQueue, int]:
        """Return all offsets of a group; empty if there are none.

        Raises:
            StoreError: they cannot be read.
        """

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Replace all offsets of a group atomically.

        Raises:
            StoreError: they cannot be written.
        """


class MemoryOffsetStorage:
    """See `OffsetStorage`; the offsets are lost with the object."""

    def __init__(self) -> None:
        """Empty."""
        self.groups: dict[str, dict[MessageQueue, int]] = {}

    def read(self, group: str) -> dict[MessageQueue, int]:
        """See `OffsetStorage`."""
        return dict(self.groups.get(group, {}))

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """See `OffsetStorage`."""
        self.groups[group] = dict(offsets)


class LocalOffsetStore:
    """See `OffsetStore`; offsets of one member of a broadcasting group on this machine."""

    def __init__(self, options: ConsumerOptions, storage: OffsetStorage, routes: Routes) -> None:
        """Nothing is read or written yet."""
        self._options = options
        self._storage = storage
        self._routes = routes

    def load(self, queue: MessageQueue) -> Steps[int]:
        """See `OffsetStore`."""
        found = self._storage.read(self._options.group).get(queue)
        if found is not None:
            return found
        return (yield from first_offset(self._routes, self._options, queue))

    def persist(self, queue: AssignedQueue, now: Now) -> None:
        """See `OffsetStore`: offsets are only written for all queues together."""

    def persist_all(self, queues: Sequence[AssignedQueue], now: Now) -> None:  # noqa: ARG002
        """See `OffsetStore`."""
        found = {queue.queue: queue.process_queue.committable for queue in queues}
        group = self._options.group
        try:
            offsets = self._storage.read(group)
            if any(offsets.get(queue) != offset for queue, offset in found.items()):
                self._storage.write(group, offsets | found)
        except StoreError as error:
            # The next commit tries again; a restart before that repeats the messages consumed since the last one.
            log.warning("offsets not saved group=%s reason=%s", group, error)

    def persist_soon(self, queues: ActiveQueues, now: Now) -> None:
        """See `OffsetStore`: brokers do not matter here."""

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """See `OffsetStore`: commits are never in flight here."""

    def settled(self, queue: MessageQueue) -> Steps[None]:  # noqa: ARG002
        """See `OffsetStore`: commits are never in flight here."""
        yield from ()

    def flush(self, queues: ActiveQueues) -> Steps[None]:
        """See `OffsetStore`."""
        self.persist_all(queues(), (yield from current_time()))
