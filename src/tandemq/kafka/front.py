"""Answers to the requests of Kafka consumers, from a cluster.

    frame ─► KafkaFront.answer ─► Metadata, ListOffsets: a few requests to brokers
                              └─► Fetch: pulls that the brokers hold, one per partition ─► batches

A `FetchSession` belongs to one connection: a pull that found nothing until the fetch ended stays at the broker, and the
next fetch of the same offset takes its response. So a message is sent as soon as it is stored.

Source: Kafka's protocol guide; docs/guides/kafka-consumers.md.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from tandemq.client.consumer.offsets.lookup import QueueBounds
from tandemq.errors import AuthenticationError, NoRoute, ProtocolError, RemoteError, TandemError
from tandemq.kafka.accounts import MECHANISM, KafkaAccounts
from tandemq.kafka.batches import encode_batch, record_bytes
from tandemq.kafka.cluster import HELD_MS, ClusterReader, Pulled, QueuePull
from tandemq.kafka.partitions import PartitionNumbers
from tandemq.kafka.requests import (
    EARLIEST,
    LATEST,
    SASL_VERSIONS,
    VERSIONS,
    Api,
    FetchAnswer,
    FetchPart,
    FetchRequest,
    KafkaError,
    OffsetAnswer,
    OffsetQuestion,
    PartitionState,
    ProduceAnswer,
    TopicMetadata,
    TopicPartition,
    Versions,
    read_fetch,
    read_header,
    read_mechanism,
    read_metadata,
    read_offsets,
    read_produce,
    read_token,
    write_authenticated,
    write_coordinator,
    write_fetch,
    write_handshake,
    write_metadata,
    write_offsets,
    write_produce,
    write_versions,
)
from tandemq.kafka.wire import WireReader, WireWriter
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue
from tandemq.model.topic import topic_name_error
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
WAIT_MAX_MS = 30_000
"""Longest wait of a fetch."""
RESPONSE_BYTES_MAX = 8 << 20
"""Maximum size of the messages in a response; a single message may be larger."""
HELD_BYTES_MAX = 256 << 20
"""Size of messages that were pulled and wait for the next fetch, of all connections together, from which on each holds
those of one pull only; at twice this size they hold no more."""
PARTITIONS_MAX = 1_000
"""Maximum number of partitions of a request."""
BULK_PARTITIONS_MAX = 8
"""Fetches of more partitions pull fewer messages at a time of each."""
EMPTY_PAUSE_S = 0.1
"""Least time between two pulls of a queue that has no messages."""
FAILED_PAUSE_S = 0.5
"""Time after which a fetch that only failed is answered: consumers repeat it at once."""
BUSY_PAUSE_S = 1.0
"""Time after which a pull is repeated that a broker has refused, since it holds too many."""
CLUSTER = "tandemq"
"""Cluster id that consumers see."""


class KafkaFront:
    """Answers requests of all connections."""

    def __init__(
        self,
        cluster: ClusterReader,
        numbers: PartitionNumbers,
        address: tuple[str, int],
        accounts: KafkaAccounts | None = None,
    ) -> None:
        """Begin without connections.

        Args:
            cluster: tells topics and queues, and reads for consumers that do not sign in.
            numbers: of partitions.
            address: host and port under which consumers reach this server.
            accounts: users that consumers must sign in as; None: they need not.
        """
        self._cluster = cluster
        self._numbers = numbers
        self._address = address
        self._accounts = accounts
        self._versions: Versions = VERSIONS if accounts is None else VERSIONS | SASL_VERSIONS
        self.counts = FrontCounts()
        self.requests: Counter[Api] = Counter()
        """Requests answered, by kind."""

    @property
    def held_bytes(self) -> int:
        """Size of messages that wait for fetches."""
        return self.counts.held

    def session(self) -> "FetchSession":
        """Return the state of a new connection."""
        return FetchSession(self._cluster if self._accounts is None else None, self._numbers, self.counts)

    def end(self, session: "FetchSession") -> None:
        """End a session: its connection has ended."""
        session.close()
        if self._accounts is not None and session.cluster is not None:
            self._accounts.leave(session.cluster)

    async def answer(self, frame: bytes, session: "FetchSession") -> bytearray:
        """Return the response to a request, with its length.

        Raises:
            ProtocolError: the request is malformed, or none that is served: the connection is to be closed.
        """
        reader = WireReader(frame)
        header = read_header(reader)
        if header.api not in self._versions:
            raise ProtocolError(f"request {header.api} of {header.client!r} is not served: consumers assign partitions")
        api, version = Api(header.api), header.version
        low, high = self._versions[api]
        if api is not Api.API_VERSIONS and not low <= version <= high:
            raise ProtocolError(f"version {version} of {api.name} is not served: {low} to {high} are")
        if api is Api.API_VERSIONS:
            body = write_versions(version, self._versions)
        elif api is Api.SASL_HANDSHAKE:
            is_served = read_mechanism(reader) == MECHANISM
            body = write_handshake(MECHANISM, KafkaError.NONE if is_served else KafkaError.UNSUPPORTED_SASL_MECHANISM)
        elif api is Api.SASL_AUTHENTICATE:
            body = write_authenticated(version, *await self._sign_in(read_token(reader), session))
        elif session.cluster is None:
            raise ProtocolError(f"{header.client!r} does not sign in (SASL)")
        elif api is Api.METADATA:
            states = await self._states(read_metadata(reader, version))
            body = write_metadata(version, self._address, CLUSTER, states)
        elif api is Api.LIST_OFFSETS:
            questions = read_offsets(reader, version)
            _check_count(len(questions))
            offsets = await asyncio.gather(*map(partial(self._offset, session.cluster), questions))
            self.counts.count_errors(answer.error for answer in offsets)
            body = write_offsets(version, offsets)
        elif api is Api.FIND_COORDINATOR:
            body = write_coordinator(version, self._address)
        elif api is Api.PRODUCE:
            refused = _refuse_sends(*read_produce(reader))
            self.counts.count_errors(answer.error for answer in refused)
            body = write_produce(refused)
        else:
            request = read_fetch(reader, version)
            _check_count(len(request.parts))
            is_known = not request.session
            answers = await session.fetch(request) if is_known else []
            self.counts.count_errors(answer.error for answer in answers)
            body = write_fetch(version, answers, KafkaError.NONE if is_known else KafkaError.FETCH_SESSION_ID_NOT_FOUND)
        self.requests[api] += 1
        start = WireWriter()
        start.int32(4 + len(body.data))
        start.int32(header.correlation_id)
        return start.data + body.data

    async def _sign_in(self, token: bytes, session: "FetchSession") -> tuple[KafkaError, str | None]:
        """Sign a connection in; returns the error, and what it says."""
        if self._accounts is None or session.cluster is not None:
            return KafkaError.ILLEGAL_SASL_STATE, "this connection has signed in"
        try:
            session.cluster = await self._accounts.sign_in(token, await self._cluster.addresses())
        except AuthenticationError as error:
            self.counts.warn("sign-in", error)
            self.counts.count_errors([KafkaError.SASL_AUTHENTICATION_FAILED])
            await asyncio.sleep(FAILED_PAUSE_S)
            return KafkaError.SASL_AUTHENTICATION_FAILED, str(error)
        return KafkaError.NONE, None

    async def _states(self, names: Sequence[str] | None) -> list[TopicMetadata]:
        if names is None:
            names = await self._cluster.topics()
        names = list(dict.fromkeys(names))
        found = await self._cluster.queues([name for name in names if topic_name_error(name) is None])
        self._numbers.update(found)
        states = []
        for name in names:
            served, queues = set(found.get(name, ())), self._numbers.queues(name) if found.get(name) else ()
            error = KafkaError.NONE if queues else KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            partitions = [PartitionState(at, queue in served) for at, queue in enumerate(queues)]
            states.append(TopicMetadata(name, error, partitions))
        return states

    async def _offset(self, cluster: ClusterReader, question: OffsetQuestion) -> OffsetAnswer:
        partition, wanted = question
        queue = self._numbers.queue(*partition)
        if queue is None:
            return OffsetAnswer(partition, KafkaError.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
        try:
            bounds = await cluster.bounds(queue)
            if wanted < 0 and wanted not in (EARLIEST, LATEST):
                return OffsetAnswer(partition, KafkaError.UNSUPPORTED_VERSION, -1, -1)
            if wanted in (EARLIEST, LATEST):
                return OffsetAnswer(partition, KafkaError.NONE, -1, bounds.end if wanted == LATEST else bounds.first)
            offset = await cluster.at_time(queue, wanted)
        except TandemError as error:
            self.counts.warn(queue.topic, error)
            return OffsetAnswer(partition, _code_of(error), -1, -1)
        if offset >= bounds.end:
            return OffsetAnswer(partition, KafkaError.NONE, -1, -1)
        return OffsetAnswer(partition, KafkaError.NONE, wanted, offset)


class FrontCounts:
    """What all sessions have sent and hold."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.held = 0
        """Size of the messages that were pulled and wait for a fetch."""
        self.messages = 0
        """Messages sent to consumers."""
        self.bytes = 0
        """Bytes of these."""
        self.errors: Counter[KafkaError] = Counter()
        """Partitions and sign-ins answered with an error."""
        self._failures = Refusals()

    def count_errors(self, found: Iterable[KafkaError]) -> None:
        """Count what was answered, without NONE."""
        self.errors.update(error for error in found if error is not KafkaError.NONE)

    def warn(self, what: str, error: TandemError) -> None:
        """Log an error, at most once a minute about the same topic or kind: consumers repeat what fails."""
        times = self._failures.note(what, int(time.monotonic() * 1000))
        if times:
            log.warning("%s: times=%d %s", what, times, error)


class FetchSession:
    """Pulls of one connection: in flight, or ended with messages that wait for the next fetch."""

    def __init__(self, cluster: ClusterReader | None, numbers: PartitionNumbers, counts: FrontCounts) -> None:
        """`cluster`: None until the consumer has signed in."""
        self.cluster = cluster
        self._numbers = numbers
        self._counts = counts
        self._held = 0
        self._bounds: dict[MessageQueue, QueueBounds] = {}
        """Bounds of queues as the last pull of each has found them."""
        self._delayed_until_s = 0.0
        """Loop time up to which errors are delayed, since one has been reported."""
        self._pulls: dict[tuple[MessageQueue, int], asyncio.Task[Pulled]] = {}

    def close(self) -> None:
        """Forget all pulls."""
        for key in list(self._pulls):
            self._forget(key)

    def _forget(self, key: tuple[MessageQueue, int]) -> None:
        """Cancel a pull, or let its messages go."""
        task = self._pulls.pop(key)
        task.cancel()
        if task.done() and not task.cancelled() and task.exception() is None:
            self._hold(-task.result().size)

    def _hold(self, size: int) -> None:
        self._held += size
        self._counts.held += size

    async def fetch(self, request: FetchRequest) -> list[FetchAnswer]:
        """Return messages of the partitions as soon as there are `bytes_min` bytes, or an error; else when the wait
        ends."""
        parts = {part: self._numbers.queue(*part.partition) for part in request.parts}
        waiting = {part: (queue, part.offset) for part, queue in parts.items() if queue is not None}
        for key in self._pulls.keys() - waiting.values():
            self._forget(key)
        for left_out in self._bounds.keys() - {queue for queue, _ in waiting.values()}:
            del self._bounds[left_out]
        end_s = asyncio.get_running_loop().time() + min(max(request.wait_ms, 0), WAIT_MAX_MS) / 1000
        is_bulk = len(waiting) <= BULK_PARTITIONS_MAX
        bytes_min = min(request.bytes_min, request.bytes_max)
        await self._wait(list(waiting.values()), bytes_min, end_s, is_bulk=is_bulk)
        left = min(max(request.bytes_max, 1), RESPONSE_BYTES_MAX)
        answers = []
        for part, queue in parts.items():
            if queue is None:
                answers.append(_refused(part.partition, KafkaError.UNKNOWN_TOPIC_OR_PARTITION))
                continue
            answer = self._answer(part, queue, left)
            left -= len(answer.batch)
            answers.append(answer)
        if parts and all(answer.error for answer in answers):
            await asyncio.sleep(FAILED_PAUSE_S)
        return answers

    def _answer(self, part: FetchPart, queue: MessageQueue, bytes_max: int) -> FetchAnswer:
        """Return the answer of a partition; an empty one while its pull is in flight, or if the response is full."""
        task = self._pulls.get((queue, part.offset))
        if task is None or not task.done() or bytes_max <= 0:
            first, end = self._bounds.get(queue, (-1, -1))
            return FetchAnswer(part.partition, KafkaError.NONE, end if end < 0 else max(end, part.offset), first, b"")
        self._forget((queue, part.offset))
        try:
            answer, count = _answer_of(part, task.result(), bytes_max)
        except TandemError as error:
            self._counts.warn(queue.topic, error)
            return _refused(part.partition, _code_of(error))
        self._counts.messages += count
        self._counts.bytes += len(answer.batch)
        return answer

    async def _wait(
        self, keys: Sequence[tuple[MessageQueue, int]], bytes_min: int, end_s: float, *, is_bulk: bool
    ) -> None:
        """Pull until there are enough messages, or one pull has failed, or the time is over."""
        loop = asyncio.get_running_loop()
        while True:
            for queue, offset in keys:
                task = self._pulls.get((queue, offset))
                if task is None or (task.done() and _is_empty(task)):
                    # The first one tells where the queue ends.
                    pull = QueuePull(queue, offset, is_bulk, HELD_MS if queue in self._bounds else 0)
                    self._pulls[queue, offset] = loop.create_task(self._pull(pull))
            tasks = [self._pulls[key] for key in keys]
            done = [task for task in tasks if task.done()]
            left_s = end_s - loop.time()
            found = sum(_bytes_of(task) for task in done)
            if left_s <= 0 or found >= min(max(bytes_min, 1), RESPONSE_BYTES_MAX) or len(done) == len(tasks):
                return
            await asyncio.wait(
                [task for task in tasks if not task.done()], timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )

    async def _pull(self, pull: QueuePull) -> Pulled:
        """Pull; a response without messages that comes at once, though the broker should have held the pull, is
        delayed, and so are errors that repeat themselves, and pulls that a busy broker refuses."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        assert self.cluster is not None
        try:
            pulled = await self.cluster.pull(pull)
        except RemoteError as error:
            if error.code != ResponseCode.SYSTEM_BUSY:
                await self._delay_failure()
                raise
            await asyncio.sleep(BUSY_PAUSE_S)
            return Pulled((), pull.offset, pull.offset, self._bounds.get(pull.queue, QueueBounds(-1, -1)))
        except TandemError:
            await self._delay_failure()
            raise
        self._bounds[pull.queue] = pulled.bounds
        pulled = pulled._replace(size=sum(map(record_bytes, pulled.messages)))
        if not self._has_room(pulled.size):
            pulled = Pulled((), pull.offset, pull.offset, pulled.bounds)  # pulled again by a later fetch
        early_s = began_s + EMPTY_PAUSE_S - loop.time()
        if early_s > 0 and pull.held_ms and _has_nothing(pulled):
            await asyncio.sleep(early_s)
        self._hold(pulled.size)
        return pulled

    async def _delay_failure(self) -> None:
        """Delay errors that come soon after another one, all of them to the same time: consumers repeat at once what
        failed."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._delayed_until_s:
            await asyncio.sleep(self._delayed_until_s - now_s)
        else:
            self._delayed_until_s = now_s + FAILED_PAUSE_S

    def _has_room(self, size: int) -> bool:
        """Return whether messages may be held."""
        held = self._counts.held
        if not self._held:
            return held < 2 * HELD_BYTES_MAX
        return self._held + size <= RESPONSE_BYTES_MAX and held + size <= HELD_BYTES_MAX


def _has_nothing(pulled: Pulled) -> bool:
    """Return whether there is nothing to tell a consumer: no message, and no range without messages to pass over."""
    return not pulled.messages and not pulled.is_outside and pulled.following == pulled.offset


def _is_empty(task: asyncio.Task[Pulled]) -> bool:
    """Return whether a pull ended without anything to tell."""
    if task.cancelled() or task.exception() is not None:
        return False
    return _has_nothing(task.result())


def _bytes_of(task: asyncio.Task[Pulled]) -> int:
    """Return the size of the messages of a pull that has ended; that of other news is more than any."""
    if task.cancelled() or task.exception() is not None:
        return RESPONSE_BYTES_MAX
    pulled = task.result()
    if not pulled.messages:
        return 0 if _has_nothing(pulled) else RESPONSE_BYTES_MAX
    return pulled.size


def _answer_of(part: FetchPart, pulled: Pulled, bytes_max: int) -> tuple[FetchAnswer, int]:
    """Return the answer of a pull that has ended, and its number of messages."""
    first, end = pulled.bounds
    if pulled.is_outside:
        return FetchAnswer(part.partition, KafkaError.OFFSET_OUT_OF_RANGE, end, first, b""), 0
    end = max(end, part.offset) if end >= 0 else end
    left = min(max(part.bytes_max, 1), bytes_max)
    messages, following = pulled.messages, pulled.following
    for at, message in enumerate(messages):
        left -= record_bytes(message)
        if left < 0 and at > 0:
            messages, following = messages[:at], message.queue_offset
            break
    if following <= part.offset:
        return FetchAnswer(part.partition, KafkaError.NONE, end, first, b""), 0
    batch = encode_batch(messages, part.offset, following)
    return FetchAnswer(part.partition, KafkaError.NONE, end, first, batch), len(messages)


def _refused(partition: TopicPartition, error: KafkaError) -> FetchAnswer:
    return FetchAnswer(partition, error, -1, -1, b"")


def _refuse_sends(acks: int, partitions: Sequence[TopicPartition]) -> list[ProduceAnswer]:
    """Return the answers to sends.

    Raises:
        ProtocolError: the producer awaits none, so its connection must tell it.
    """
    _check_count(len(partitions))
    if not acks:
        raise ProtocolError("sends are not served: this port is for consumers")
    return [ProduceAnswer(one, KafkaError.TOPIC_AUTHORIZATION_FAILED) for one in partitions]


def _code_of(error: TandemError) -> KafkaError:
    """Return the code for an error of a request to brokers; consumers repeat the request after NOT_LEADER."""
    if isinstance(error, ProtocolError):
        return KafkaError.CORRUPT_MESSAGE
    if isinstance(error, NoRoute) or (isinstance(error, RemoteError) and error.code == ResponseCode.TOPIC_NOT_EXIST):
        return KafkaError.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(error, RemoteError) and error.code == ResponseCode.NO_PERMISSION:
        return KafkaError.TOPIC_AUTHORIZATION_FAILED
    return KafkaError.NOT_LEADER


def _check_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise ProtocolError(f"a request names {count} partitions; at most {PARTITIONS_MAX} are served")
