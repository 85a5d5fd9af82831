"""The brokers, as this server reads them: topics, queues, bounds, messages.

Pulls are held by the broker until there is a message (long polling), and belong to no consumer group's offsets. The
master is asked first, then the slaves that serve consumers.

Source: tandemq.client.core.operations; docs/reference/requests.md, "pull".
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple, TypeVar

from tandemq.client.admin.cluster import cluster_info, topic_names, topic_routes
from tandemq.client.aio.transport import Shell, make_config
from tandemq.client.consumer.offsets.lookup import QueueBounds, queue_offset, time_offset
from tandemq.client.core.operations import Steps, ask_any_code, number, refusal, request, run_together
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.requests import pull_request
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.config.tls import ClientTls
from tandemq.errors import AuthenticationError, NetworkError, NotConnected, ProtocolError, RemoteError, TandemError
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import AUTO_CREATE_TOPIC, own_topics

T = TypeVar("T")
HELD_MS = 15_000
"""How long brokers hold a pull: longer than consumers wait, so that the next fetch takes its response."""
START_TIMEOUT_MS = 3_000
READY_S = 8.0
"""How long a name server may take to say which brokers there are."""
MESSAGES_MAX, BULK_MESSAGES_MAX = 32, 4_096
"""Maximum number of messages of a pull, and of a large one, which brokers limit by their own settings too."""
HOLES_MAX = 64
"""Maximum number of ranges without messages that one pull passes over."""
_READABLE_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
INFLATED_MAX = 1 << 20
"""Bytes of decompressed bodies of one pull: what one of eight partitions may have in a response. The rest of what a
broker returned is pulled again: a response could not take it."""
ANSWER_MS = 3_000
"""Timeout of a pull beyond the time for which it is held."""


class Pulled(NamedTuple):
    """Messages of a queue from an offset on, the offset that follows them, and the queue's bounds."""

    messages: Sequence[StoredMessage]
    offset: int
    following: int
    bounds: QueueBounds
    is_outside: bool = False
    """Whether the offset that was asked for is not within the bounds."""
    size: int = 0
    """Bytes of the messages as Kafka's records, once they are counted."""


class ClusterReader:
    """Reads a cluster for any number of consumers; belongs to the running event loop."""

    def __init__(self, name_servers: str, tls: ClientTls | None = None, credentials: Credentials | None = None) -> None:
        """Create a client that connects when it is first used.

        Args:
            name_servers: "host:port", several separated by ";".
            tls: TLS of its connections.
            credentials: user that signs its requests; None: that of the environment, if there is one.

        Raises:
            ConfigError: an address is malformed, or a file of TLS cannot be used.
        """
        self._shell = Shell(make_config(name_servers, tls=tls or False, credentials=credentials))

    async def start(self, topic: str) -> None:
        """Wait for a response of a name server to the query for a topic's route.

        Raises:
            NetworkError, RemoteError: there is none, or it is no name server.
        """
        await self._shell.reach_name_server(START_TIMEOUT_MS, topic)

    async def close(self) -> None:
        """Close all connections."""
        await self._shell.close(limit_s=1.0)

    async def _run(self, steps: Steps[T]) -> T:
        shell = self._shell
        return await shell.done(shell.node.runner.start(steps, shell.now))

    async def addresses(self) -> list[str]:
        """Return the addresses of all brokers.

        Raises:
            NetworkError, RemoteError: no name server responds, or it refuses.
        """
        info = await self._run(cluster_info(self._shell.node.routes))
        return [address for group in info.brokers.values() for address in group.members.values()]

    async def not_ready(self) -> str:
        """Return why consumers get errors now; "" if they do not."""
        try:
            async with asyncio.timeout(READY_S):
                return "" if await self.addresses() else "no broker is registered"
        except (TandemError, TimeoutError) as error:
            return str(error) or "no name server responds"

    async def check_user(self, addresses: Sequence[str]) -> None:
        """Have the first broker that responds check the user that signs. Brokers of RocketMQ, and those without access
        control, leave it to each read.

        Raises:
            AuthenticationError: the broker does not know the user, or the key is another one.
            NetworkError: none responds.
        """
        last: NetworkError = NotConnected("no broker is registered")
        for address in addresses:
            command = request(RequestCode.GET_MAX_OFFSET, topic=AUTO_CREATE_TOPIC, queueId=0)
            try:
                answer = await self._run(ask_any_code(address, command, ANSWER_MS))
            except NetworkError as error:
                last = error
                continue
            if answer.code == ResponseCode.NO_PERMISSION and NOT_AUTHENTICATED in (answer.remark or ""):
                raise AuthenticationError(NOT_AUTHENTICATED)
            return
        raise last

    async def topics(self) -> list[str]:
        """Return the names of all topics but those of the system.

        Raises:
            NetworkError: no name server responds.
        """
        routes = self._shell.node.routes
        info = await self._run(cluster_info(routes))
        own = own_topics(info.brokers, info.clusters)
        return [n for n in await self._run(topic_names(routes)) if n not in own and not n.startswith("%")]

    async def queues(self, topics: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return the queues that can be read now, by topic; topics that no name server knows, and static ones, are left
        out.

        Raises:
            NetworkError: no name server responds.
        """
        found: dict[str, TopicRoute] = {}
        try:
            found = await self._run(topic_routes(self._shell.node.routes, topics))
        except RemoteError:
            for topic in topics:
                with contextlib.suppress(RemoteError):
                    found |= await self._run(topic_routes(self._shell.node.routes, [topic]))
        return {topic: route.subscribe_queues() for topic, route in found.items()}

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return the bounds of a queue.

        Raises:
            NetworkError, RemoteError: no member of the broker group returns them.
        """
        routes = self._shell.node.routes
        codes = RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET
        first, end = await self._run(_on_route(routes, queue, partial(_both, routes, queue, codes)))
        return QueueBounds(first, end)

    async def at_time(self, queue: MessageQueue, wall_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, milliseconds since 1970; else the end.

        Raises:
            NetworkError, RemoteError: no member of the broker group returns it.
        """
        routes = self._shell.node.routes
        return await self._run(_on_route(routes, queue, lambda: time_offset(routes, queue, wall_ms)))

    async def pull(self, pull: "QueuePull") -> Pulled:
        """Return the next messages of a queue; none after `held_ms` without one.

        Raises:
            NetworkError, RemoteError: no member of the broker group returns them.
            ProtocolError: the message at the offset is damaged.
        """
        routes = self._shell.node.routes
        return await self._run(_on_route(routes, pull.queue, partial(_pull, routes, pull)))


class QueuePull(NamedTuple):
    """A pull of one queue."""

    queue: MessageQueue
    offset: int
    is_bulk: bool
    """Whether it may have as many messages as a broker returns at once."""
    held_ms: int = HELD_MS
    """How long the broker waits for a message."""

    def command(self, offset: int) -> Command:
        """Return the request, from an offset on."""
        count = BULK_MESSAGES_MAX if self.is_bulk else MESSAGES_MAX
        return pull_request(self.queue, offset, count, held_ms=self.held_ms, bulk=self.is_bulk)


def _on_route(routes: Routes, queue: MessageQueue, make: Callable[[], Steps[T]]) -> Steps[T]:
    """Run an operation; the route of the queue's topic is fetched before, if its broker group is not known yet, or
    after it, if no member responds: they may have other addresses now."""
    if not routes.members(queue.broker_name):
        yield from topic_routes(routes, [queue.topic])
    try:
        return (yield from make())
    except NetworkError:
        yield from topic_routes(routes, [queue.topic])
        raise


def _both(routes: Routes, queue: MessageQueue, codes: Sequence[RequestCode]) -> Steps[list[int]]:
    return (yield from run_together([queue_offset(routes, queue, code) for code in codes]))


def _pull(routes: Routes, pull: QueuePull) -> Steps[Pulled]:
    position = pull.offset
    bounds = QueueBounds(0, position)
    for _ in range(HOLES_MAX):
        answer = yield from _ask(routes, pull, position)
        if answer.code == ResponseCode.SUCCESS:
            return _messages(answer, pull, position)
        bounds = QueueBounds(int(answer.fields.get("minOffset", 0)), int(answer.fields.get("maxOffset", position)))
        is_within = bounds.first <= position <= bounds.end
        # With another code it is the member that is behind.
        if position == pull.offset and not is_within and answer.code == ResponseCode.PULL_OFFSET_MOVED:
            return Pulled((), position, position, bounds, is_outside=True)
        following = number(answer, "nextBeginOffset")
        if following <= position:
            break
        position = following
    return Pulled((), pull.offset, position, bounds)


def _messages(answer: Command, pull: QueuePull, offset: int) -> Pulled:
    pulled = decode_pulled(answer.body, INFLATED_MAX)
    if not pulled.messages:
        raise ProtocolError(f"the message at offset {offset} of {pull.queue}: {pulled.damage or 'is missing'}")
    readable = list(takewhile(lambda message: not message.fault, pulled.messages))
    if not readable:
        raise ProtocolError(f"the message at offset {offset} of {pull.queue}: {pulled.messages[0].fault}")
    is_whole = pulled.end == len(answer.body) and len(readable) == len(pulled.messages)
    following = number(answer, "nextBeginOffset") if is_whole else readable[-1].queue_offset + 1
    bounds = QueueBounds(number(answer, "minOffset"), number(answer, "maxOffset"))
    return Pulled(readable, pull.offset, following, bounds)


def _ask(routes: Routes, pull: QueuePull, offset: int) -> Steps[Command]:
    """Return the response of the first member that serves consumers."""
    last: TandemError | None = None
    for address in routes.read_addresses(pull.queue.broker_name):
        try:
            answer = yield from ask_any_code(address, pull.command(offset), pull.held_ms + ANSWER_MS)
        except NetworkError as error:
            last = error
            continue
        if answer.code in _READABLE_CODES:
            return answer
        last = refusal(answer)
    raise last or NotConnected(f"no member of {pull.queue.broker_name} is registered")
