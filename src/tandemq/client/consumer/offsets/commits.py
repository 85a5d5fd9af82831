"""Commits in flight: offsets of one topic at one broker are committed in batches, one batch after the other.

    commit ─► in flight ─► response: all commits made meanwhile are sent together, the newest offset of each queue

RocketMQ handles the requests of one connection on several threads, so requests sent at once are handled in any order.
Therefore:

* A queue never has two commits in flight; the older one might be written last.
* The first commit at a broker is sent alone. Two first commits of a group in a topic would each create an offset table
  there, and one table, with its offset, is lost: the group would read that queue again.
* A commit that waits for its turn or for the connection is not sent once a newer offset of its queue is committed,
  there or at another broker, or once the queue is read from another offset.

When a broker does not respond, the commits that wait for it fail as well; the caller commits again.

Owner: the offset store of one consumer. Source: docs/reference/requests.md, "offsets"; RocketMQ
ConsumerOffsetManager.commitOffset.
"""

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import Steps, refusal, wait
from tandemq.client.core.requests import update_offset_request
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue


class _Commit:
    """One offset to commit. `opaque`: of the request, once it was made."""

    __slots__ = ("offset", "opaque", "ticket")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.opaque = 0
        self.ticket: Ticket[None] = Ticket()


class Superseded(TandemError):
    """Error of a commit that was not sent, because a newer offset was committed or the position was moved."""


class _Lane:
    """Commits of one topic at one broker."""

    __slots__ = ("address", "has_table", "in_flight", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.has_table = False
        """Whether the broker has an offset table of the group in the topic."""
        self.in_flight: dict[MessageQueue, _Commit] = {}
        self.waiting: dict[MessageQueue, _Commit] = {}


class OffsetCommitter:
    """Commits the offsets of one group."""

    def __init__(self, remoting: RemotingClient, group: str) -> None:
        """Nothing is in flight."""
        self._remoting = remoting
        self._group = group
        self._lanes: dict[tuple[str, str], _Lane] = {}
        """By address and topic."""
        self._idle: list[Ticket[None]] = []

    def commit(self, queue: MessageQueue, offset: int, address: str, now: Now) -> Ticket[None]:
        """Commit an offset at a broker, unless a newer one of the same queue is committed before this one is sent.

        Returns:
            a ticket, settled when the broker has confirmed the offset; it fails with a NetworkError or RemoteError, or
            with `Superseded`.
        """
        lane = self._lanes.setdefault((address, queue.topic), _Lane(address))
        superseded = self._recall(queue)
        commit = lane.waiting[queue] = _Commit(offset)
        for other in self._lanes.values():
            self._send_next(other, now)
        if superseded is not None:
            superseded.ticket.fail(Superseded(f"{queue}: {offset} was committed before {superseded.offset} was sent"))
        return commit.ticket

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """Cancel the commit of a queue that was not sent, because the position of the queue was moved."""
        superseded = self._recall(queue)
        if superseded is not None:
            for lane in self._lanes.values():
                self._send_next(lane, now)
            superseded.ticket.fail(Superseded(f"{queue} was moved before {superseded.offset} was sent"))
            self._notify_if_idle()

    def _recall(self, queue: MessageQueue) -> _Commit | None:
        """Remove the commit of a queue that was not sent, of which there is one at most."""
        for lane in self._lanes.values():
            if queue in lane.waiting:
                return lane.waiting.pop(queue)
            commit = lane.in_flight.get(queue)
            if commit is not None and self._remoting.recall(lane.address, commit.opaque):
                return lane.in_flight.pop(queue)
        return None

    def settled(self, queue: MessageQueue) -> Steps[None]:
        """Wait until all commits of a queue have succeeded or failed."""
        while (commit := self._pending(queue)) is not None:
            try:
                yield from wait(commit.ticket)
            except TandemError:
                continue

    def _pending(self, queue: MessageQueue) -> _Commit | None:
        for lane in self._lanes.values():
            commit = lane.in_flight.get(queue) or lane.waiting.get(queue)
            if commit is not None:
                return commit
        return None

    def idle(self) -> Ticket[None]:
        """Return a ticket that is settled when no commit is in flight or waits."""
        ticket: Ticket[None] = Ticket()
        self._idle.append(ticket)
        self._notify_if_idle()
        return ticket

    def _notify_if_idle(self) -> None:
        if self._idle and not any(lane.in_flight or lane.waiting for lane in self._lanes.values()):
            idle, self._idle = self._idle, []
            for ticket in idle:
                ticket.settle(None)

    def _send_next(self, lane: _Lane, now: Now) -> None:
        if lane.in_flight or not lane.waiting:
            return
        if lane.has_table:
            lane.in_flight, lane.waiting = lane.waiting, {}
        else:
            first = next(iter(lane.waiting))
            lane.in_flight = {first: lane.waiting.pop(first)}
        for queue, commit in lane.in_flight.items():
            commit.opaque = self._remoting.request(
                lane.address,
                update_offset_request(self._group, queue, commit.offset),
                now,
                lambda answer, now, queue=queue: self._on_answer(lane, queue, answer, now),  # type: ignore[misc]
            )

    def _on_answer(self, lane: _Lane, queue: MessageQueue, answer: Answer, now: Now) -> None:
        commit = lane.in_flight.pop(queue)
        lane.has_table = not isinstance(answer, TandemError) and (lane.has_table or answer.code == ResponseCode.SUCCESS)
        if isinstance(answer, TandemError):
            waiting, lane.waiting = lane.waiting, {}
            for failed in (commit, *waiting.values()):
                failed.ticket.fail(answer)
        elif answer.code != ResponseCode.SUCCESS:
            commit.ticket.fail(refusal(answer))
        else:
            commit.ticket.settle(None)
        self._send_next(lane, now)
        self._notify_if_idle()
