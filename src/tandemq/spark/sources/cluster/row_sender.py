"""A producer of the sink: sends parcels until they are acknowledged.

    any queue       at once; what is not acknowledged is sent again, by itself, to any queue
    of one queue    one after the other; the first that is not acknowledged is sent again, to the same queue

Source: docs/guides/pipeline.md, "The cluster as a sink".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TypeVar

from tandemq.client.aio.loop_thread import LoopThread
from tandemq.client.aio.producer import Producer
from tandemq.client.core.calls import Ticket
from tandemq.errors import NoRoute, StoreError, TandemError
from tandemq.model.message import MessageQueue, SendStatus
from tandemq.spark.sources.cluster.options import SinkOptions
from tandemq.spark.sources.cluster.parcels import Parcel

RETRY_PAUSE_S = 0.2
T = TypeVar("T")
Failure = tuple[Parcel, TandemError]
Delivery = asyncio.Task[list[Failure]]


class RowSender:
    """A producer that sends parcels while the next ones are made."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._producer = Producer(
            options.name_servers,
            group=options.group,
            tls=options.tls or False,
            credentials=options.signer.credentials(),
        )
        self._thread = LoopThread()
        self._thread.call(self._producer.start())
        self._sending: Future[None] | None = None
        self._queues: dict[str, list[MessageQueue]] = {}
        self.unsafe = 0

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, the same for the whole task.

        Raises:
            NoRoute, NetworkError: no name server has told them in time.
        """
        if topic not in self._queues:
            self._queues[topic] = self._thread.call(self._ask_queues(topic))
        return self._queues[topic]

    async def _ask_queues(self, topic: str) -> list[MessageQueue]:
        until = self._until()
        while True:
            try:
                found = await self._producer.queues(topic)
                if found:
                    return found
                raise NoRoute(f"no queue of {topic} accepts messages")
            except TandemError as error:
                if not error.retriable or time.monotonic() >= until:
                    raise
            await asyncio.sleep(RETRY_PAUSE_S)

    def _until(self) -> float:
        return time.monotonic() + self._options.timeout_ms / 1000

    def send(self, parcels: Sequence[Parcel]) -> None:
        """Wait until the parcels of the last call are acknowledged, then begin to send; raises as `flush`."""
        self.flush()
        self._sending = self._thread.begin(self._send(parcels))

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            TandemError: messages were not acknowledged in time, or refused; names the first one.
        """
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    async def _send(self, parcels: Sequence[Parcel]) -> None:
        window = _Window(self._options.in_flight_max)
        last: dict[MessageQueue, Delivery] = {}
        for parcel in parcels:
            await window.wait_for_room(parcel.count)
            if window.failed:
                break
            queue = parcel.lane.queue
            if queue is None:
                delivery = asyncio.create_task(self._deliver(parcel))
            else:
                delivery = last[queue] = asyncio.create_task(self._deliver_in_order(parcel, last.get(queue)))
            window.add(delivery, parcel.count)
        await window.wait_for_end()
        if failed := window.failed:
            first, error = next((failure for failure in failed if not failure[1].retriable), failed[0])
            topic, key = first.first
            raise type(error)(
                f"{sum(part.count for part, _ in failed)} messages are not acknowledged, the first to {topic} "
                f"with key {key}: {error}"
            ) from error

    async def _deliver(self, parcel: Parcel) -> list[Failure]:
        """Send a parcel until it is acknowledged; returns the parts that are refused or not acknowledged in time."""
        until = self._until()
        waiting = [parcel]
        while True:
            failed = await self._attempt_all(waiting)
            if not all(error.retriable for _, error in failed) or not failed or time.monotonic() >= until:
                return failed
            waiting = [part for part, _ in failed]
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _deliver_in_order(self, parcel: Parcel, before: Delivery | None) -> list[Failure]:
        """Send a parcel to its queue, after the one before it, until it is acknowledged; returns the parts that are
        not, from the first one on."""
        if before is not None and (failed := await before):
            return [(parcel, failed[0][1])]
        until = self._until()
        waiting = [parcel]
        while waiting:
            error, unsafe = await self._once(waiting[0])
            if error is None and unsafe and self._options.require_send_ok:
                error = unsafe[0][1]
            if error is None:
                self.unsafe += len(unsafe)
                del waiting[0]
            elif error.retriable and time.monotonic() < until:
                await asyncio.sleep(RETRY_PAUSE_S)
            elif not error.retriable and waiting[0].count > 1:
                waiting[:1] = waiting[0].singles()  # nothing is stored: the message that is refused is named
            else:
                return [(part, error) for part in waiting]
        return []

    async def _attempt_all(self, parcels: Sequence[Parcel]) -> list[Failure]:
        """Send parcels once, all at the same time; returns as `_attempt`."""
        if len(parcels) == 1:
            return await self._attempt(parcels[0])
        outcomes = await asyncio.gather(*map(self._attempt, parcels))
        return [failed for outcome in outcomes for failed in outcome]

    async def _attempt(self, parcel: Parcel) -> list[Failure]:
        """Send a parcel once; returns the parts that are not acknowledged, with their errors.

        Errors are returned and not raised, so that the other messages are awaited.
        """
        error, unsafe = await self._once(parcel)
        if error is not None:
            if error.retriable or parcel.count == 1:
                return [(parcel, error)]
            # Nothing is stored: sent one by one, the message that is refused is named.
            return await self._attempt_all(parcel.singles())
        if not self._options.require_send_ok:
            self.unsafe += len(unsafe)
            return []
        if len(unsafe) == parcel.count:
            return [(parcel, unsafe[0][1])]
        return [(parcel.singles()[number], status) for number, status in unsafe]

    async def _once(self, parcel: Parcel) -> tuple[TandemError | None, list[tuple[int, _Unsafe]]]:
        """Send a parcel once; returns why nothing is stored, and the messages that are stored unsafely."""
        try:
            results = [await _settled(ticket) for ticket in parcel.begin(self._producer)]
        except TandemError as error:
            return error, []
        statuses = [result.status for found in results for result in (found if isinstance(found, list) else [found])]
        unsafe = [
            (number, _Unsafe(f"{status.value}, and requireSendOk is set"))
            for number, status in enumerate(statuses)
            if status is not SendStatus.SEND_OK
        ]
        return None, unsafe

    def close(self) -> None:
        """Close the producer and stop its thread."""
        self._thread.call(self._producer.close())
        self._thread.stop()


class _Window:
    """Deliveries that run, within a limit of messages; the end of one costs the same however many run."""

    def __init__(self, messages_max: int) -> None:
        self._max = messages_max
        self._messages: dict[Delivery, int] = {}
        self._held = 0
        self._awaited = 0
        """Number of messages that may still be held when `_drained` is set."""
        self._drained: asyncio.Future[None] | None = None
        self._broken: Delivery | None = None
        self.failed: list[Failure] = []

    def add(self, delivery: Delivery, count: int) -> None:
        """Add a delivery of `count` messages."""
        self._messages[delivery] = count
        self._held += count
        delivery.add_done_callback(self._remove)

    def _remove(self, delivery: Delivery) -> None:
        self._held -= self._messages.pop(delivery)
        if delivery.cancelled() or delivery.exception() is not None:
            self._broken = delivery
        else:
            self.failed += delivery.result()
        if self._drained is not None and not self._drained.done() and self._held <= self._awaited:
            self._drained.set_result(None)

    async def wait_for_room(self, count: int) -> None:
        """Wait until `count` messages more are within the limit, or nothing runs."""
        await self._drain(max(0, self._max - count))

    async def wait_for_end(self) -> None:
        """Wait until nothing runs; raises what a delivery has raised."""
        await self._drain(0)
        if self._broken is not None:
            self._broken.result()

    async def _drain(self, held_max: int) -> None:
        if self._held > held_max:
            self._awaited, self._drained = held_max, asyncio.get_running_loop().create_future()
            await self._drained


class _Unsafe(StoreError):
    """The message is stored, but without the configured flush or replica."""

    retriable = True


async def _settled(ticket: Ticket[T]) -> T:
    """Wait for the result of a ticket."""
    if not ticket.done:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket.then(lambda _ticket: None if future.done() else future.set_result(None))
        await future
    return ticket.result()
