"""The pull consumer for asyncio: the user assigns queues, sets positions, and commits.

async with PullConsumer("127.0.0.1:9876", group="audit") as consumer:
    consumer.assign(await consumer.queues("Orders"))
    while messages := await consumer.poll(timeout_s=1):
        …
        await consumer.commit()
"""

import asyncio
from collections.abc import Iterable
from typing import TypeVar, Unpack

from tandemq.client.aio.lifecycle import AsyncClient
from tandemq.client.aio.options import ConsumerKeywords
from tandemq.client.consumer.offsets.lookup import QueueBounds, committed_offset, queue_offset, time_offset
from tandemq.client.consumer.pull_machine import PolledMessage, PullConsumerCore
from tandemq.client.consumer.subscription import Expression
from tandemq.client.core.settings import ConsumerOptions
from tandemq.config.tls import ClientTls
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import AUTO_CREATE_TOPIC

T = TypeVar("T")
POLL_MESSAGES_MAX = 500


class PullConsumer(AsyncClient[PullConsumerCore]):
    """Reads the queues that the user assigns. Use it with `async with`, or call `start` and `close`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        client_id: str = "",
        tls: ClientTls | bool = False,
        credentials: Credentials | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Create a consumer that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: consumer group whose offsets are loaded and committed.
            client_id: name of this member at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
            options: see `ConsumerOptions`.

        Raises:
            ConfigError: the group or an option is invalid.
        """
        super().__init__(name_servers, client_id, tls, credentials)
        self._options = ConsumerOptions(group=group, **options)
        self._waiting: set[asyncio.Future[None]] = set()
        """Polls that wait for messages."""

    async def start(self) -> None:
        """Start the consumer and wait for a name server.

        Raises:
            ConfigError: an address is not "host:port".
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server.
            LocalError: it is started already.
        """
        shell = self._open()
        self._core = shell.node.pull_consumer(self._options)
        self._core.on_ready = shell.on_closed = self._on_ready
        try:
            await shell.reach_name_server(self._options.start_timeout_ms, AUTO_CREATE_TOPIC)
        except BaseException:
            await self._close(after_error=True)
            raise

    async def close(self) -> None:
        """Leave the group and close, without a commit; has no effect a second time."""
        await self._close(after_error=False)

    def _on_ready(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, sorted.

        Raises:
            NoRoute: no name server knows the topic.
            NetworkError: no name server responds.
        """
        _, core = self._running()
        return await self._run(core.queues(topic))

    def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Set what to read of a topic, for queues that are assigned from now on; all messages by default.

        Args:
            expression: "*" for all messages, tags: "a || b", or an SQL92 expression: `Sql("a > 3")`. A broker that
                cannot compile it delivers nothing, and the log says so.

        Raises:
            ConfigError: the topic or the expression is invalid.
        """
        shell, core = self._running()
        core.subscribe(topic, expression, shell.now)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others; new ones from the group's committed offset, else by `consume_from`."""
        shell, core = self._running()
        core.assign(queues, shell.now)
        shell.wake()

    def assigned(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        _, core = self._running()
        return core.assigned()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset of an assigned queue.

        Raises:
            LocalError: the queue is not assigned.
        """
        shell, core = self._running()
        core.seek(queue, offset, shell.now)
        shell.wake()

    async def seek_to_time(self, queue: MessageQueue, wall_ms: int) -> int:
        """Continue at the first message stored at or after a time, milliseconds since 1970; returns its offset.

        Raises:
            LocalError: the queue is not assigned.
            NetworkError, RemoteError: no member of the broker group reports it.
        """
        shell, _ = self._running()
        offset = await self._run(time_offset(shell.node.routes, queue, wall_ms))
        self.seek(queue, offset)
        return offset

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message; None if it is not known yet, or the queue is not assigned."""
        _, core = self._running()
        return core.position(queue)

    async def poll(self, count_max: int = POLL_MESSAGES_MAX, *, timeout_s: float | None = None) -> list[StoredMessage]:
        """Wait until there is a message and return those that are there.

        A message whose body cannot be decompressed is skipped, with a warning in the log; one of a dead letter
        topic is returned, with its `fault`.

        Args:
            count_max: maximum number of messages.
            timeout_s: seconds after which the result is empty; None: wait without a limit.
        """
        return [message for _, message in await self.poll_queues(count_max, timeout_s=timeout_s)]

    async def poll_queues(
        self, count_max: int = POLL_MESSAGES_MAX, *, timeout_s: float | None = None
    ) -> list[PolledMessage]:
        """As `poll`, each message with its queue."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    shell, core = self._running()
                    taken = core.take(count_max, shell.now)
                    if taken:
                        shell.wake()
                        return taken
                    await self._wait()
        except TimeoutError:
            return []

    async def _wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    async def commit(self) -> None:
        """Commit the offsets of all messages that were polled.

        Raises:
            NetworkError, RemoteError: the commit of a queue failed; those of other queues may have succeeded.
        """
        _, core = self._running()
        await self._run(core.commit())

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none.

        Raises:
            NetworkError, RemoteError: no member of the broker group reports it.
        """
        shell, _ = self._running()
        return await self._run(committed_offset(shell.node.routes, shell.node.availability, self._options.group, queue))

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the offset of a queue's first message, and the offset after its last.

        Raises:
            NetworkError, RemoteError: no member of the broker group reports it.
        """
        shell, _ = self._running()
        first = await self._run(queue_offset(shell.node.routes, queue, RequestCode.GET_MIN_OFFSET))
        end = await self._run(queue_offset(shell.node.routes, queue, RequestCode.GET_MAX_OFFSET))
        return QueueBounds(first, end)
