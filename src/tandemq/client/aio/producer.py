"""The producer for asyncio.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        result = await producer.send(Message("Orders", b"42 paid", tags="paid", keys=["42"]))

Any number of sends may be under way at once: `asyncio.gather`, or `begin` for the ticket alone.
"""

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from tandemq.client.aio.options import ProducerKeywords, QueueChoice
from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.machine import ProducerCore, Select, by_hash
from tandemq.errors import ClosedError, LocalError
from tandemq.model.message import Message, MessageQueue, SendResult

ONEWAY_BREATH = 64
"""After so many one-way sends in a row the loop gets a turn."""


class Producer:
    """Sends messages. Use it with `async with`, or call `start` and `close`."""

    def __init__(
        self, name_servers: str, *, group: str, client_id: str = "", **options: Unpack[ProducerKeywords]
    ) -> None:
        """A producer, not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: the producer group, as brokers list it.
            options: see `ProducerOptions`.
        Raises:
            ConfigError: the group or an option cannot be.
        """
        self._options = ProducerOptions(group=group, **options)
        self._name_servers = name_servers
        self._client_id = client_id
        self._shell: Shell | None = None
        self._core: ProducerCore | None = None
        self._oneway_count = 0

    async def start(self) -> None:
        """Get ready; connections are made when needed.

        Raises:
            ConfigError: a name server's address is none.
        """
        self._shell = Shell(make_config(self._name_servers, self._client_id))
        self._core = self._shell.node.producer(self._options)

    async def close(self) -> None:
        """Wait for what is under way as long as its timeouts say, leave, close. Harmless a second time."""
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        if self._shell is not None and not self._shell.is_closed:
            await self._shell.close(after_error=after_error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(after_error=error is not None)

    def _running(self) -> tuple[Shell, ProducerCore]:
        if self._shell is None or self._core is None:
            raise ClosedError("the producer is not started", hint="use it with `async with`")
        self._shell.check_open()
        return self._shell, self._core

    def begin(
        self, message: Message, *, unique_key: str | None = None, **choice: Unpack[QueueChoice]
    ) -> Ticket[SendResult]:
        """Begin to send, and do not wait: for those who count answers themselves. Otherwise like `send`.

        Args:
            unique_key: that of an earlier attempt to send the same message.
        """
        shell, core = self._running()
        ticket = core.send(message, shell.now, select=_selector(**choice), unique_key=unique_key)
        shell.wake()
        return ticket

    async def send(self, message: Message, **choice: Unpack[QueueChoice]) -> SendResult:
        """Send one message and wait until the broker has answered.

        Args:
            message: what is sent.
            choice: `queue`, `by_key` or `select`, see `QueueChoice`; else a queue of a broker that answers fast, and
                another one when that fails.
        Raises:
            OutcomeUnknown: no answer came, on any attempt; the message may be stored.
            NotConnected, NoRoute, RemoteError: it is not stored.
            LocalError, RecordTooLarge: it cannot be sent.
        """
        shell, _ = self._running()
        await shell.writable()
        return await shell.done(self.begin(message, **choice))

    async def send_batch(self, messages: Sequence[Message], **choice: Unpack[QueueChoice]) -> list[SendResult]:
        """Send several messages of one topic in as few requests as `batch_bytes_max` allows; one result per message.

        Raises:
            as `send`; then messages of other requests than the failed one may be stored.
        """
        shell, core = self._running()
        await shell.writable()
        tickets = core.send_batch(messages, shell.now, select=_selector(**choice))
        return [result for ticket in tickets for result in await shell.done(ticket)]

    async def send_oneway(self, message: Message, **choice: Unpack[QueueChoice]) -> None:
        """Send one message and do not learn what became of it. Waits while the network takes less than it is given.

        Raises:
            NoRoute, NetworkError: no route could be learnt.
            LocalError, RecordTooLarge: it cannot be sent.
        """
        shell, core = self._running()
        ticket = core.send_oneway(message, shell.now, select=_selector(**choice))
        shell.wake()
        self._oneway_count += 1
        if self._oneway_count % ONEWAY_BREATH == 0:
            await asyncio.sleep(0)
        await shell.writable()
        await shell.done(ticket)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that take messages, sorted.

        Raises:
            NoRoute, NetworkError: they could not be learnt.
        """
        shell, core = self._running()
        return await shell.done(shell.node.kit.runner.start(core.queues(topic), shell.now))


def _selector(
    queue: MessageQueue | None = None, by_key: str | None = None, select: Select | None = None
) -> Select | None:
    if (queue is not None) + (by_key is not None) + (select is not None) > 1:
        raise LocalError("give one of queue, by_key and select")
    if queue is not None:
        return lambda _queues: queue
    return by_hash(by_key) if by_key is not None else select
