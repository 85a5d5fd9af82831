"""Offsets on their way to brokers: those of one topic to one broker go in batches, one after the other.

    tell ─► under way ─► answered: all that was told meanwhile goes together, the newest offset of each queue

RocketMQ handles the requests of one link on several threads, so what is sent at once is done in any order. Hence:

* A queue never has two offsets under way; the older one might be written last.
* What a broker is told first goes alone. Two first offsets of a group in a topic would each make a table of their own
  there, and one table, with its offset, is lost: the group reads that queue again.
* What waits for its turn or for the link does not leave once a newer offset of its queue is told, there or to another
  broker, or once the queue is read from elsewhere.

When nobody answers, what waits for the same broker fails with it; whoever told it tells it again.

Owner: the shares of one consumer. Source: docs/reference/requests.md, "offsets"; RocketMQ
ConsumerOffsetManager.commitOffset.
"""

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.store import commit_request
from tandemq.client.core.calls import Ticket
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import Steps, refusal, wait
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue


class _Commit:
    """One offset, told or about to be."""

    __slots__ = ("number", "offset", "ticket")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.number = 0
        """Of the request."""
        self.ticket: Ticket[None] = Ticket()


class Superseded(TandemError):
    """An offset does not hold any more, and did not leave: a newer one was told, or its queue was moved."""


class _Lane:
    """Offsets of one topic on their way to one broker."""

    __slots__ = ("address", "has_table", "under_way", "waiting")

    def __init__(self, address: str) -> None:
        self.address = address
        self.has_table = False
        """The broker has a table of the group in the topic."""
        self.under_way: dict[MessageQueue, _Commit] = {}
        self.waiting: dict[MessageQueue, _Commit] = {}


class OffsetCommitter:
    """Tells brokers the offsets of one group."""

    def __init__(self, links: RemotingClient, group: str) -> None:
        """Nothing is told."""
        self._links = links
        self._group = group
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._idle: list[Ticket[None]] = []

    def tell(self, queue: MessageQueue, offset: int, address: str, now: Now) -> Ticket[None]:
        """Tell a broker an offset, unless a newer one of the same queue is told before this one leaves.

        Returns:
            a ticket, settled when the broker has it; it fails with a NetworkError or RemoteError, or is `Superseded`.
        """
        lane = self._lanes.setdefault((address, queue.topic), _Lane(address))
        overtaken = self._take_back(queue)
        commit = lane.waiting[queue] = _Commit(offset)
        for other in self._lanes.values():
            self._go_on(other, now)
        if overtaken is not None:
            overtaken.ticket.fail(Superseded(f"{queue}: {offset} was told before {overtaken.offset} had left"))
        return commit.ticket

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """The queue is read from another offset now: one that has not left yet does not hold any more."""
        overtaken = self._take_back(queue)
        if overtaken is not None:
            for lane in self._lanes.values():
                self._go_on(lane, now)
            overtaken.ticket.fail(Superseded(f"{queue} was moved before {overtaken.offset} had left"))
            self._tell_if_idle()

    def _take_back(self, queue: MessageQueue) -> _Commit | None:
        """What has not left of a queue: never more than one offset."""
        for lane in self._lanes.values():
            if queue in lane.waiting:
                return lane.waiting.pop(queue)
            commit = lane.under_way.get(queue)
            if commit is not None and self._links.recall(lane.address, commit.number):
                return lane.under_way.pop(queue)
        return None

    def settled(self, queue: MessageQueue) -> Steps[None]:
        """Wait until no offset of a queue is on its way any more, whatever became of it."""
        while (commit := self._on_its_way(queue)) is not None:
            try:
                yield from wait(commit.ticket)
            except TandemError:
                continue

    def _on_its_way(self, queue: MessageQueue) -> _Commit | None:
        for lane in self._lanes.values():
            commit = lane.under_way.get(queue) or lane.waiting.get(queue)
            if commit is not None:
                return commit
        return None

    def idle(self) -> Ticket[None]:
        """Settled when nothing is on its way."""
        ticket: Ticket[None] = Ticket()
        self._idle.append(ticket)
        self._tell_if_idle()
        return ticket

    def _tell_if_idle(self) -> None:
        if self._idle and not any(lane.under_way or lane.waiting for lane in self._lanes.values()):
            idle, self._idle = self._idle, []
            for ticket in idle:
                ticket.settle(None)

    def _go_on(self, lane: _Lane, now: Now) -> None:
        if lane.under_way or not lane.waiting:
            return
        if lane.has_table:
            lane.under_way, lane.waiting = lane.waiting, {}
        else:
            first = next(iter(lane.waiting))
            lane.under_way = {first: lane.waiting.pop(first)}
        for queue, commit in lane.under_way.items():
            commit.number = self._links.request(
                lane.address,
                commit_request(self._group, queue, commit.offset),
                now,
                lambda answer, at, queue=queue: self._heard(lane, queue, answer, at),  # type: ignore[misc]
            )

    def _heard(self, lane: _Lane, queue: MessageQueue, answer: Answer, now: Now) -> None:
        commit = lane.under_way.pop(queue)
        lane.has_table = not isinstance(answer, TandemError) and (lane.has_table or answer.code == ResponseCode.SUCCESS)
        if isinstance(answer, TandemError):
            waiting, lane.waiting = lane.waiting, {}
            for failed in (commit, *waiting.values()):
                failed.ticket.fail(answer)
        elif answer.code != ResponseCode.SUCCESS:
            commit.ticket.fail(refusal(answer))
        else:
            commit.ticket.settle(None)
        self._go_on(lane, now)
        self._tell_if_idle()
