"""The pull consumer for asyncio: the user says which queues, from where, and when offsets are told.

async with PullConsumer("127.0.0.1:9876", group="audit") as consumer:
    consumer.assign(await consumer.queues("Orders"))
    while messages := await consumer.poll(timeout_s=1):
        …
        await consumer.commit()
"""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self, TypeVar, Unpack

from tandemq.client.aio.options import ConsumerKeywords
from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.consumer.offsets.store import committed_offset, queue_offset, time_offset
from tandemq.client.consumer.pull_machine import PullConsumerCore
from tandemq.client.core.operations import Steps
from tandemq.client.core.settings import ConsumerOptions
from tandemq.errors import ClosedError
from tandemq.model.codes import RequestCode
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import AUTO_CREATE_TOPIC

T = TypeVar("T")
POLL_MESSAGES_MAX = 500


class PullConsumer:
    """Reads queues the user chooses. Use it with `async with`, or call `start` and `close`."""

    def __init__(
        self, name_servers: str, *, group: str, client_id: str = "", **options: Unpack[ConsumerKeywords]
    ) -> None:
        """A consumer, not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: whose offsets are read and told.
            options: see `ConsumerOptions`.
        Raises:
            ConfigError: the group or an option cannot be.
        """
        self._options = ConsumerOptions(group=group, **options)
        self._name_servers = name_servers
        self._client_id = client_id
        self._shell: Shell | None = None
        self._core: PullConsumerCore | None = None
        self._arrival: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Get ready.

        Raises:
            ConfigError: an address is none.
            NetworkError: no name server answers within `start_timeout_ms`.
            RemoteError: who answers is no name server.
        """
        self._shell = Shell(make_config(self._name_servers, self._client_id))
        self._core = self._shell.node.pull_consumer(self._options)
        self._core.on_ready = self._arrived
        try:
            await self._shell.reach_name_server(self._options.start_timeout_ms, AUTO_CREATE_TOPIC)
        except BaseException:
            await self._close(after_error=True)
            raise

    async def close(self) -> None:
        """Leave and close; offsets are not told. Harmless a second time."""
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        if self._shell is not None and not self._shell.is_closed:
            await self._shell.close(after_error=after_error)
            self._arrived()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(after_error=error is not None)

    def _running(self) -> tuple[Shell, PullConsumerCore]:
        if self._shell is None or self._core is None:
            raise ClosedError("the consumer is not started", hint="use it with `async with`")
        self._shell.check_open()
        return self._shell, self._core

    def _arrived(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read, sorted.

        Raises:
            NoRoute, NetworkError: they cannot be learnt.
        """
        _, core = self._running()
        return await self._tell(core.queues(topic))

    async def _tell(self, story: Steps[T]) -> T:
        shell, _ = self._running()
        return await shell.done(shell.node.kit.runner.start(story, shell.now))

    def subscribe(self, topic: str, expression: str = "*") -> None:
        """Which tags of a topic to read, for queues that are assigned from now on; all without this.

        Raises:
            ConfigError: topic or expression cannot be.
        """
        shell, core = self._running()
        core.subscribe(topic, expression, shell.now)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read these queues and no others; new ones from the group's offset, else by `consume_from`."""
        shell, core = self._running()
        core.assign(queues, shell.now)
        shell.wake()

    def assigned(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        _, core = self._running()
        return core.assigned()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from an offset.

        Raises:
            LocalError: the queue is not assigned.
        """
        shell, core = self._running()
        core.seek(queue, offset, shell.now)
        shell.wake()

    async def seek_to_time(self, queue: MessageQueue, wall_ms: int) -> int:
        """Go on from the first message stored at or after a calendar time; returns its offset.

        Raises:
            LocalError: the queue is not assigned.
            NetworkError, RemoteError: the broker does not say.
        """
        shell, _ = self._running()
        offset = await self._tell(time_offset(shell.node.kit, queue, wall_ms))
        self.seek(queue, offset)
        return offset

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message; None while it is not known."""
        _, core = self._running()
        return core.position(queue)

    async def poll(self, count_max: int = POLL_MESSAGES_MAX, *, timeout_s: float | None = None) -> list[StoredMessage]:
        """Messages that are there, at most `count_max`, as soon as there is one; empty after the time.

        One whose body cannot be decompressed is passed over, with a warning in the log; only from a dead letter topic
        it comes, with its `fault`.
        """
        return [message for _, message in await self.poll_queues(count_max, timeout_s=timeout_s)]

    async def poll_queues(
        self, count_max: int = POLL_MESSAGES_MAX, *, timeout_s: float | None = None
    ) -> list[tuple[MessageQueue, StoredMessage]]:
        """As `poll`, each message with its queue."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    shell, core = self._running()
                    taken = core.take(count_max, shell.now)
                    if taken:
                        shell.wake()
                        return taken
                    self._arrival = asyncio.get_running_loop().create_future()
                    await self._arrival
        except TimeoutError:
            return []

    async def commit(self) -> None:
        """Tell the offsets of all that was polled.

        Raises:
            NetworkError, RemoteError: one could not be told.
        """
        _, core = self._running()
        await self._tell(core.commit())

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset as the broker has it; None if there is none.

        Raises:
            NetworkError, RemoteError: the broker does not say.
        """
        shell, _ = self._running()
        return await self._tell(committed_offset(shell.node.kit, self._options.group, queue))

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The offsets of the first message and behind the last.

        Raises:
            NetworkError, RemoteError: the broker does not say.
        """
        shell, _ = self._running()
        first = await self._tell(queue_offset(shell.node.kit, queue, RequestCode.GET_MIN_OFFSET))
        return first, await self._tell(queue_offset(shell.node.kit, queue, RequestCode.GET_MAX_OFFSET))
