"""The producer for asyncio.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("Orders", b"42 paid", tags="paid", keys=["42"]))

Any number of sends may be in flight: use `asyncio.gather`, or `begin`, which returns a ticket without waiting.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

from tandemq.client.aio.lifecycle import AsyncClient
from tandemq.client.aio.options import ProducerKeywords, QueueChoice
from tandemq.client.aio.tracing import TracedClient, Tracing, start_traced
from tandemq.client.aio.user_code import guarded_callback, guarded_selector
from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import SendRequest
from tandemq.client.producer.machine import ProducerCore, by_hash
from tandemq.client.producer.publish_info import Select
from tandemq.config.tls import ClientTls
from tandemq.errors import LocalError
from tandemq.model.access import Credentials
from tandemq.model.message import Message, MessageQueue, SendResult
from tandemq.model.replies import ReplyMessage

ONEWAY_YIELD_AFTER = 64
"""After this many one-way sends the event loop gets a turn."""
T = TypeVar("T", bound=Ticket[Any])
REQUEST_TIMEOUT_S = 3.0
"""For how long a request waits for its reply by default."""
REQUEST_TIMEOUT_S_MAX = 86_400.0


class Producer(AsyncClient[ProducerCore]):
    """Sends messages. Use it with `async with`, or call `start` and `close`."""

    _kind = "producer"

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        client_id: str = "",
        tls: ClientTls | bool = False,
        credentials: Credentials | None = None,
        tracing: Tracing | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Create a producer that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: producer group.
            client_id: name of this client at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            options: see `ProducerOptions`.

        Raises:
            ConfigError: the group or an option is invalid.
        """
        super().__init__(name_servers, client_id, tls, credentials)
        self._options = ProducerOptions(group=group, **options)
        self._tracing = tracing
        self._oneway_count = 0

    async def start(self) -> None:
        """Start the producer; it connects on demand.

        Raises:
            ConfigError: an address is not "host:port".
            LocalError: it is started already.
        """
        self._core = self._open().node.producer(self._options)

    async def close(self) -> None:
        """Wait for the responses to sends in flight, within their timeouts and `close_wait_s`, then close.

        No attempt is made after it is called: a send that fails then, or waits for a broker, ends with its error, and
        one without a response with OutcomeUnknown. Call `flush` before to have them retried. A second call waits for
        the first one; a cancelled one closes the connections at once.

        Raises:
            LocalError: the producer belongs to another event loop.
        """
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        if self._shell is not None and not self._shell.is_closed:
            await self._shell.close(after_error=after_error, limit_s=self._options.close_wait_s)

    async def flush(self) -> None:
        """Wait until all sends that have begun, retries included, have ended: each is stored, or has its error.

        Raises:
            ClosedError: the producer is not started, or closed.
        """
        shell, core = self._running()
        shell.wake()
        await shell.done(core.flush(shell.now))

    def begin(
        self, message: Message, *, unique_key: str | None = None, **choice: Unpack[QueueChoice]
    ) -> Ticket[SendResult]:
        """Start to send one message and return its ticket, without waiting. Otherwise as `send`. An error of a
        callback of the ticket is logged.

        Args:
            message: the message.
            unique_key: that of an earlier attempt to send the same message; by default a new one.
            choice: see `send`.
        """
        shell, core = self._shell, self._core
        if shell is None or core is None or not shell.is_usable():
            shell, core = self._running()
        select = selector(**choice) if choice else None
        if self._tracing is None:
            ticket = core.send(message, shell.now, select=select, unique_key=unique_key)
        else:
            [ticket] = self.traced(
                [message], lambda some: [core.send(some[0], shell.now, select=select, unique_key=unique_key)]
            )
        ticket.guard(guarded_callback)
        if not shell.is_awake:
            shell.wake()
        return ticket

    def begin_batch(
        self, messages: Sequence[Message], *, unique_keys: Sequence[str] | None = None, **choice: Unpack[QueueChoice]
    ) -> list[Ticket[list[SendResult]]]:
        """Start to send several messages of one topic and return a ticket per request, without waiting. Otherwise as
        `send_batch`.

        Args:
            messages: the messages.
            unique_keys: those of an earlier attempt to send the same messages; by default new ones.
            choice: see `send`.
        """
        shell, core = self._running()
        select = selector(**choice)
        tickets = self.traced(
            messages, lambda some: core.send_batch(some, shell.now, select=select, unique_keys=unique_keys)
        )
        for ticket in tickets:
            ticket.guard(guarded_callback)
        shell.wake()
        return tickets

    def begin_encoded(self, request: SendRequest, **choice: Unpack[QueueChoice]) -> Ticket[Any]:
        """Start to send a message or batch that was validated and encoded already, and return its ticket, without
        waiting: of one message as `begin`, of a batch a list of results. No span of `tracing` has it.

        Args:
            request: the message or batch.
            choice: see `send`.
        """
        shell, core = self._running()
        ticket = core.send_prepared(request, shell.now, select=selector(**choice))
        ticket.guard(guarded_callback)
        shell.wake()
        return ticket

    async def send(self, message: Message, **choice: Unpack[QueueChoice]) -> SendResult:
        """Send one message and wait for the response of the broker.

        Args:
            message: the message.
            choice: `queue`, `by_key` or `select`, see `QueueChoice`; by default the client chooses a queue of a broker
                that responds fast, and retries on another broker.

        Returns:
            status, queue and offset of the stored message, and its ids. Of a timed message that waits: queue and
            offset of its place among them, and the handle for `recall`.

        A call that is cancelled waits no longer: the message may be stored, now or soon.

        Raises:
            OutcomeUnknown: an attempt had no response and none succeeded; the message may be stored.
            NotConnected, NoRoute, RemoteError: the message is not stored.
            LocalError, RecordTooLarge: the message is invalid, the function that chooses the queue fails, or the
                producer was started on another event loop; nothing was sent.
        """
        shell, core = self._shell, self._core
        if shell is None or core is None or not shell.is_usable():
            shell, core = self._running()
        if shell.is_paused:
            await shell.writable()
            shell.check_open()
        select = selector(**choice) if choice else None
        if self._tracing is None:
            ticket = core.send(message, shell.now, select=select)
        else:
            [ticket] = self.traced([message], lambda some: [core.send(some[0], shell.now, select=select)])
        if not ticket.done:
            if core.in_flight == 1:
                shell.drive()  # no other one to be sent with it
            elif not shell.is_awake:
                shell.wake()
            if not ticket.done:
                future = shell.settled(ticket)
                try:
                    await future
                finally:
                    shell.waiting.discard(future)
        return shell.outcome(ticket)

    def traced(self, messages: Sequence[Message], start: Callable[[Sequence[Message]], list[T]]) -> list[T]:
        """Start to send messages by `start`, within the spans of `tracing` if there is one."""
        if self._tracing is None:
            return start(messages)
        shell, _ = self._running()
        client = TracedClient(shell.node.config.client_id, self._options.group)
        return start_traced(self._tracing, messages, client, start)

    async def send_batch(self, messages: Sequence[Message], **choice: Unpack[QueueChoice]) -> list[SendResult]:
        """Send several messages of one topic, in as few requests as `batch_bytes_max` allows.

        Returns:
            one result per message, in the same order.

        Raises:
            as `send`: messages of other requests than the failed one may be stored.
        """
        shell, core = self._running()
        await shell.writable()
        select = selector(**choice)
        tickets = self.traced(messages, lambda some: core.send_batch(some, shell.now, select=select))
        return [result for ticket in tickets for result in await shell.done(ticket)]

    async def send_oneway(self, message: Message, **choice: Unpack[QueueChoice]) -> None:
        """Send one message without a response: it may be lost without an error. Waits while the send buffers are full.

        Raises:
            NoRoute, NetworkError: the route cannot be fetched.
            LocalError, RecordTooLarge: the message is invalid; nothing was sent.
        """
        shell, core = self._running()
        select = selector(**choice)
        [ticket] = self.traced([message], lambda some: [core.send_oneway(some[0], shell.now, select=select)])
        shell.wake()
        self._oneway_count += 1
        if self._oneway_count % ONEWAY_YIELD_AFTER == 0:
            await asyncio.sleep(0)
        await shell.writable()
        await shell.done(ticket)

    async def request(
        self, message: Message, *, timeout_s: float = REQUEST_TIMEOUT_S, **choice: Unpack[QueueChoice]
    ) -> ReplyMessage:
        """Send one message as a request and wait for the reply of the consumer that gets it.

        Args:
            message: the request. Its consumer replies with `ReceivedMessage.reply`, or sends `create_reply`.
            timeout_s: for how long to wait, sending included, at most a day. A cancelled call waits no longer; its
                request may have been sent, and a reply to it is dropped.
            choice: see `send`.

        Raises:
            NoReply: no reply came in time, or before the producer was closed; the request may have been carried out.
            OutcomeUnknown, NotConnected, NoRoute, RemoteError: the request could not be sent, see `send`.
            LocalError, RecordTooLarge: the message or the time is invalid; nothing was sent.
        """
        if not 0 < timeout_s <= REQUEST_TIMEOUT_S_MAX:
            raise LocalError(f"timeout_s is {timeout_s}; it must be above 0, and at most {REQUEST_TIMEOUT_S_MAX:.0f}")
        shell, core = self._running()
        await shell.writable()
        shell.check_open()
        requester = shell.node.requester
        timeout_ms, select = math.ceil(timeout_s * 1000), selector(**choice)
        [ticket] = self.traced(
            [message],
            lambda some: [requester.request(core, some[0], shell.now, timeout_ms=timeout_ms, select=select)],
        )
        try:
            return await shell.done(ticket)
        finally:
            requester.forget(ticket)

    async def recall(self, handle: str | SendResult) -> str:
        """Take back a timed message, so that it is not delivered; brokers with `recallMessageEnable=true` do that.

        It is sent again while no broker accepts it, for `retry_ms` at most.

        Args:
            handle: the result of the send, or its `recall_handle`, perhaps of another process.

        Returns:
            the unique key of the message. A broker does not notice if it has no such message any more.

        Raises:
            OutcomeUnknown: no response came; the message may be recalled.
            NotConnected, NoRoute, RemoteError: it is not recalled, for instance because its time has come, or because
                the broker recalls no messages.
            LocalError: this is no handle, or the message is no timed one.
        """
        shell, core = self._running()
        if isinstance(handle, SendResult):
            if not handle.recall_handle:
                raise LocalError(f"the message {handle.unique_key} has no recall handle: it is no timed message")
            handle = handle.recall_handle
        ticket = core.recall(handle, shell.now)
        shell.wake()
        return await shell.done(ticket)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that accept messages, sorted.

        Raises:
            NoRoute: no name server knows the topic, and no broker creates it.
            NetworkError: no name server responds.
        """
        _, core = self._running()
        return await self._run(core.queues(topic))


def selector(
    queue: MessageQueue | None = None, by_key: str | None = None, select: Select | None = None
) -> Select | None:
    """Return the function that chooses the queue, see `QueueChoice`.

    Raises:
        LocalError: more than one way is given.
    """
    if (queue is not None) + (by_key is not None) + (select is not None) > 1:
        raise LocalError("give only one of queue, by_key and select")
    if queue is not None:
        return guarded_selector(lambda _queues: queue)
    if by_key is not None:
        return by_hash(by_key)
    return guarded_selector(select) if select is not None else None
