"""The blocking client for scripts: the asyncio client on an event loop in a thread of its own.

    with BlockingProducer("127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"42 paid"))

    with BlockingTransactionProducer("127.0.0.1:9876", group="orders", check=look_up) as producer:
        with producer.transaction(Message("Orders", b"42 paid")):
            pay(42)

    with BlockingConsumer("127.0.0.1:9876", group="billing", topics={"Orders": "*"}) as consumer:
        while (message := consumer.receive(timeout_s=5)) is not None:
            message.ack()

Thread-safe. Errors are those of the asyncio client. A call that is interrupted by an exception, such as
KeyboardInterrupt, is abandoned: what it had taken is delivered again, what it had begun to send may be stored. A client
belongs to the process that created it: after `fork` the copy cannot use it.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from tandemq.client.aio.deduplication import Deduplication
from tandemq.client.aio.options import ConsumerKeywords, ProducerKeywords, QueueChoice
from tandemq.client.aio.producer import REQUEST_TIMEOUT_S, Producer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.aio.tracing import Tracing
from tandemq.client.aio.transaction_producer import Transaction, TransactionProducer
from tandemq.client.aio.user_code import in_threads
from tandemq.client.consumer.received_message import MessageView, ReceivedMessage
from tandemq.client.consumer.subscription import Expression
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, LocalError, OutcomeUnknown
from tandemq.model.message import Message, SendResult, StoredMessage
from tandemq.model.replies import ReplyMessage
from tandemq.model.transactions import TransactionState

log = logging.getLogger(__name__)
T = TypeVar("T")
_Work = Coroutine[Any, Any, None]
END_S = 5.0
"""For how long a loop that was stopped waits until cancelled work has ended."""


class LoopThread:
    """An event loop in a daemon thread, for the threads of one process.

    Work whose caller does not wait any more, because of an exception from a signal handler for instance, is cancelled.
    When the loop ends, what still runs is cancelled, and its callers get OutcomeUnknown.
    """

    def __init__(self, close: Callable[[], _Work] | None = None) -> None:
        """Start the thread and its loop. `close`: closes what is used on it, before the loop ends."""
        self._close = close
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        """Work that has not ended."""
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="tandemq-client", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # an interruption while it starts
            with contextlib.suppress(RuntimeError):  # it has not begun; it ends when it does
                self.stop()
            raise

    @property
    def is_forked(self) -> bool:
        """Whether this process is a copy of the one with the thread, made by `fork`: it has no such thread."""
        return os.getpid() != self._process

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return its future, without waiting.

        Raises:
            ClosedError: the loop was stopped.
            LocalError: this process is a copy made by `fork`.
        """
        if self.is_forked:
            work.close()
            raise LocalError(
                f"this client belongs to process {self._process}; process {os.getpid()} is a copy made by fork",
                hint="create clients after the fork, in the process that uses them",
            )
        with self._lock:
            if self._is_ended:
                work.close()
                raise ClosedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def call(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """Run a coroutine on the loop and return its result.

        Args:
            work: the coroutine.
            undo: called on the loop with the result if the caller does not get it.

        Raises:
            LocalError: this is a call within the loop, by a function that the client calls, or see `begin`.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalError("a blocking call by a function that the client calls would wait for itself")
        call = _Call(work, undo)
        try:
            try:
                future = self.begin(call.running)
            except LocalError:
                work.close()
                raise
            return future.result()
        except CancelledError:
            raise _cut_off() from None
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                # One turn later than work whose start was interrupted begins.
                self._loop.call_soon_threadsafe(self._loop.call_soon, call.abandon)
            raise

    def stop(self) -> None:
        """Stop the loop and its thread; has no effect a second time, or in a process made by `fork`."""
        if not self.is_forked:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        try:
            loop.run_until_complete(self._stopped.wait())
        except (SystemExit, KeyboardInterrupt) as error:  # of a function of the user's; its caller gets it too
            log.warning("a client was closed by %r", error)
        finally:
            with self._lock:
                self._is_ended = True
            try:
                self._end_tasks()
            finally:
                loop.close()
                for future in list(self._futures):
                    if not future.done():
                        future.set_exception(_cut_off())

    def _end_tasks(self) -> None:
        loop = self._loop
        loop.run_until_complete(asyncio.sleep(0))  # begins what was begun last
        if self._close is not None:
            with contextlib.suppress(TimeoutError):
                loop.run_until_complete(asyncio.wait_for(self._close(), END_S))
        # The client has ended its operations, each with its own error, which their callers get now.
        for _ in range(2):
            loop.run_until_complete(asyncio.sleep(0))
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        # Closed transports report their end, and futures their results.
        for _ in range(2):
            loop.run_until_complete(asyncio.sleep(0))


def _cut_off() -> OutcomeUnknown:
    return OutcomeUnknown("the call was cancelled before it ended", hint="what it had begun may have been carried out")


class _Call(Generic[T]):
    """Work for a caller that may stop waiting. Its methods run on the loop."""

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None) -> None:
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None
        self._results: list[T] = []
        self._is_abandoned = False
        self.running = self._run()
        """The coroutine to run."""

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        result = await self._work
        self._results.append(result)
        if self._is_abandoned:
            self._undo_result()
        return result

    def abandon(self) -> None:
        """Cancel the work, and undo it if it has ended with a result, or does so nevertheless."""
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()
        for coroutine in (self.running, self._work):
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        self._undo_result()

    def _undo_result(self) -> None:
        if self._results and self._undo is not None:
            with contextlib.suppress(ClosedError):
                self._undo(self._results.pop())


class BlockingProducer:
    """Sends messages; each call waits for the response. See `Producer`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        client_id: str = "",
        tls: ClientTls | bool = False,
        tracing: Tracing | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Create and start a producer.

        Args:
            name_servers: "host:port", several separated by ";".
            group: producer group.
            client_id: name of this client at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            options: see `ProducerOptions`.

        Raises:
            ConfigError: an address, the group or an option is invalid.
        """
        self._begin(Producer(name_servers, group=group, client_id=client_id, tls=tls, tracing=tracing, **options))

    def _begin(self, producer: Producer) -> None:
        self._producer = producer
        self._thread = LoopThread(producer.close)
        _start(self._thread, producer.start, producer.close)

    def send(self, message: Message, **choice: Unpack[QueueChoice]) -> SendResult:
        """Send one message and wait for the response; see `Producer.send`."""
        return self._thread.call(self._producer.send(message, **choice))

    def send_batch(self, messages: Sequence[Message], **choice: Unpack[QueueChoice]) -> list[SendResult]:
        """Send several messages of one topic; see `Producer.send_batch`."""
        return self._thread.call(self._producer.send_batch(messages, **choice))

    def send_oneway(self, message: Message, **choice: Unpack[QueueChoice]) -> None:
        """Send one message without a response; see `Producer.send_oneway`."""
        self._thread.call(self._producer.send_oneway(message, **choice))

    def request(
        self, message: Message, *, timeout_s: float = REQUEST_TIMEOUT_S, **choice: Unpack[QueueChoice]
    ) -> ReplyMessage:
        """Send one message as a request and wait for the reply; see `Producer.request`."""
        return self._thread.call(self._producer.request(message, timeout_s=timeout_s, **choice))

    def recall(self, handle: str | SendResult) -> str:
        """Take back a timed message; see `Producer.recall`."""
        return self._thread.call(self._producer.recall(handle))

    def close(self) -> None:
        """Wait for the sends in flight, then close; has no effect a second time."""
        _finish(self._thread, self._producer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingTransaction:
    """A message that is delivered when the body of its `with` returns, and dropped if it raises. See `Transaction`."""

    def __init__(self, transaction: Transaction, thread: LoopThread) -> None:
        """Made by `BlockingTransactionProducer.transaction`."""
        self._transaction = transaction
        self._thread = thread

    @property
    def unique_key(self) -> str:
        """The id of the message."""
        return self._transaction.unique_key

    @property
    def state(self) -> TransactionState:
        """UNKNOWN until it is committed or rolled back."""
        return self._transaction.state

    @property
    def is_confirmed(self) -> bool:
        """Whether the broker has confirmed the end. If it has not, it will ask, and this process answers."""
        return self._transaction.is_confirmed

    def __enter__(self) -> Self:
        self._thread.call(self._transaction.__aenter__(), lambda begun: begun.abandon())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._transaction.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Have the message delivered; see `Transaction.commit`."""
        self._thread.call(self._transaction.commit())

    def rollback(self) -> None:
        """Have the message dropped; see `Transaction.rollback`."""
        self._thread.call(self._transaction.rollback())


class BlockingTransactionProducer(BlockingProducer):
    """Sends messages, and transactions; each call waits for the response. See `TransactionProducer`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        check: Callable[[StoredMessage], TransactionState],
        topics: Iterable[str] = (),
        checks_at_once: int = 8,
        check_timeout_s: float = 30.0,
        client_id: str = "",
        tls: ClientTls | bool = False,
        tracing: Tracing | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Create and start a producer.

        Args:
            check: as that of `TransactionProducer`, as a function; it is called in threads of its own. One that takes
                longer than `check_timeout_s` goes on, and its result is dropped. An error, SystemExit too, means that
                the broker asks again.
            name_servers: and the others, see `TransactionProducer`.
            group: producer group.
            topics: topics of transactions.
            checks_at_once: maximum number of calls of `check` at a time.
            check_timeout_s: for how long `check` may take.
            client_id: name of this client at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            options: see `ProducerOptions`.

        Raises:
            ConfigError: an address, the group or an option is invalid.
        """

        producer = TransactionProducer(
            name_servers,
            group=group,
            check=in_threads(check, "check"),
            topics=topics,
            checks_at_once=checks_at_once,
            check_timeout_s=check_timeout_s,
            client_id=client_id,
            tls=tls,
            tracing=tracing,
            **options,
        )
        self._transactions = producer
        self._begin(producer)

    def transaction(
        self, message: Message, *, check_after_s: int | None = None, **choice: Unpack[QueueChoice]
    ) -> BlockingTransaction:
        """Return a transaction with one message, for `with`; see `TransactionProducer.transaction`."""
        transaction = self._transactions.transaction(message, check_after_s=check_after_s, **choice)
        return BlockingTransaction(transaction, self._thread)


class BlockingMessage(MessageView):
    """A delivered message. End it by `ack` or `retry`; otherwise it is delivered again, here or at another member."""

    __slots__ = ("_message", "_thread")

    def __init__(self, message: ReceivedMessage, thread: LoopThread) -> None:
        """Made by the consumer."""
        super().__init__(message.stored, message.queue)
        self._message = message
        self._thread = thread

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._message.is_ended

    def ack(self) -> None:
        """Acknowledge the message: the next commit may include it."""
        self._thread.call(self._message.ack())

    def retry(self, delay_level: int = 0) -> None:
        """Send the message back for a later redelivery; see `ReceivedMessage.retry`."""
        self._thread.call(self._message.retry(delay_level))

    def reply(self, body: bytes) -> SendResult:
        """Reply to a request; see `ReceivedMessage.reply`."""
        return self._thread.call(self._message.reply(body))


class BlockingConsumer:
    """Consumes topics as a member of a group, one message per call. See `PushConsumer`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        topics: Mapping[str, Expression],
        client_id: str = "",
        tls: ClientTls | bool = False,
        tracing: Tracing | None = None,
        deduplicate: bool | Deduplication = False,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Create a consumer and join the group.

        Args:
            name_servers: "host:port", several separated by ";".
            group: consumer group.
            topics: subscriptions: "*" for all messages of a topic, tags: "a || b", or SQL92: `Sql("a > 3")`.
            client_id: name of this member at brokers and in its group; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            deduplicate: whether, or how, duplicates of handled messages are recognised and skipped.
            options: see `ConsumerOptions`.

        Raises:
            ConfigError: an address, the group, a topic, an expression or an option is invalid.
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server.
        """
        self._consumer = PushConsumer(
            name_servers,
            group=group,
            topics=topics,
            client_id=client_id,
            tls=tls,
            tracing=tracing,
            deduplicate=deduplicate,
            **options,
        )
        self._thread = LoopThread(self._consumer.close)
        _start(self._thread, self._consumer.start, self._consumer.close)

    def receive(self, timeout_s: float | None = None) -> BlockingMessage | None:
        """Return the next message; None if there was none for `timeout_s` seconds.

        Raises:
            ClosedError: the consumer was closed.
        """
        message = self._thread.call(self._consumer.receive(timeout_s), self._return)
        return BlockingMessage(message, self._thread) if message is not None else None

    def _return(self, message: ReceivedMessage | None) -> None:
        if message is not None:
            self._consumer.return_taken(message)

    def __iter__(self) -> Iterator[BlockingMessage]:
        """Iterate over messages without end."""
        while (message := self.receive()) is not None:
            yield message

    @property
    def duplicates_skipped(self) -> int:
        """Number of duplicates that were acknowledged instead of delivered; see `PushConsumer`."""
        return self._consumer.duplicates_skipped

    @property
    def store_failures(self) -> int:
        """Number of calls of the store of handled messages that failed; see `PushConsumer`."""
        return self._consumer.store_failures

    def close(self) -> None:
        """Commit, leave the group, close; has no effect a second time."""
        _finish(self._thread, self._consumer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _start(thread: LoopThread, start: Callable[[], _Work], close: Callable[[], _Work]) -> None:
    try:
        thread.call(start())
    except BaseException:
        _finish(thread, close)
        raise


def _finish(thread: LoopThread, close: Callable[[], _Work]) -> None:
    """Close a client and stop its thread. A copy made by `fork` has nothing to close: the connections are the other
    process's."""
    if thread.is_forked:
        return
    try:
        thread.call(close())
    except (ClosedError, OutcomeUnknown):  # another thread has closed it
        return
    finally:
        thread.stop()
