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

Each class here wraps one of the asyncio client, and its methods have the arguments and the documentation of those:
`_blocking` and `_takes_arguments_of` take both from there.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from tandemq.client.aio.lifecycle import AsyncClient
from tandemq.client.aio.loop_thread import LoopThread, user_threads
from tandemq.client.aio.options import QueueChoice, TransactionProducerKeywords
from tandemq.client.aio.pop_consumer import PopConsumer
from tandemq.client.aio.producer import Producer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.aio.receiving import MessageConsumer
from tandemq.client.aio.stop_signals import stop_signals
from tandemq.client.aio.transaction_producer import Transaction, TransactionProducer
from tandemq.client.aio.user_code import in_threads
from tandemq.client.consumer.popped_message import PoppedMessage
from tandemq.client.consumer.received_message import MessageView, ReceivedMessage
from tandemq.errors import ClosedError, OutcomeUnknown
from tandemq.model.message import Message, StoredMessage
from tandemq.model.transactions import TransactionState

P = ParamSpec("P")
T = TypeVar("T")
Instance = TypeVar("Instance")
Wrapped = TypeVar("Wrapped")
Client = TypeVar("Client", bound=AsyncClient[Any])
Consumer = TypeVar("Consumer", bound=MessageConsumer[Any, Any])
Delivered = TypeVar("Delivered", ReceivedMessage, PoppedMessage)
Shown = TypeVar("Shown")


class _Blocking(Generic[Wrapped]):
    """An object of the asyncio client, and the thread of its event loop."""

    __slots__ = ()
    _inner: Wrapped
    _thread: LoopThread


def _blocking(
    method: Callable[Concatenate[Wrapped, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Blocking[Wrapped], P], T]:
    """Return the method that calls an asynchronous one of the wrapped object and waits for its result."""

    @functools.wraps(method)
    def call(self: _Blocking[Wrapped], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(method(self._inner, *args, **kwargs))

    return call


def _takes_arguments_of(
    make: Callable[P, Wrapped],
) -> Callable[[Callable[[Instance, Wrapped], None]], Callable[Concatenate[Instance, P], None]]:
    """Have a constructor take the arguments of another class; it is called with the object that they make."""

    def decorate(construct: Callable[[Instance, Wrapped], None]) -> Callable[Concatenate[Instance, P], None]:
        def init(self: Instance, /, *args: P.args, **kwargs: P.kwargs) -> None:
            construct(self, make(*args, **kwargs))

        wrapped = inspect.getattr_static(make, "__init__")
        functools.update_wrapper(init, construct).__wrapped__ = wrapped
        arguments = (inspect.getdoc(wrapped) or "").partition("\n\n")[2]
        init.__doc__ = f"{construct.__doc__}\n\n{arguments}"
        return init

    return decorate


class _BlockingClient(_Blocking[Client]):
    """A client that is started when it is created."""

    def _start(self, client: Client) -> None:
        self._inner = client
        self._thread = LoopThread(client.close)
        try:
            self._thread.call(client.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for what is in flight, handlers of `run` too, then close; a consumer commits and leaves its group. Has
        no effect a second time, or in a copy made by `fork`: the connections are the other process's."""
        if self._thread.is_forked:
            return
        try:
            self._thread.call(self._inner.close())
        except (ClosedError, OutcomeUnknown):  # another thread has closed it
            return
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingProducer(_BlockingClient[Producer]):
    """Sends messages; each call waits for the response. See `Producer`."""

    @_takes_arguments_of(Producer)
    def __init__(self, producer: Producer) -> None:
        """Create and start a producer; raises what `Producer.start` raises too."""
        self._start(producer)

    send = _blocking(Producer.send)
    """Send one message and wait for the response; see `Producer.send`."""
    send_batch = _blocking(Producer.send_batch)
    """Send several messages of one topic; see `Producer.send_batch`."""
    send_oneway = _blocking(Producer.send_oneway)
    """Send one message without a response; see `Producer.send_oneway`."""
    request = _blocking(Producer.request)
    """Send one message as a request and wait for the reply; see `Producer.request`."""
    recall = _blocking(Producer.recall)
    """Take back a timed message; see `Producer.recall`."""


class BlockingTransaction(_Blocking[Transaction]):
    """A message that is delivered when the body of its `with` returns, and dropped if it raises. See `Transaction`."""

    def __init__(self, transaction: Transaction, thread: LoopThread) -> None:
        """Made by `BlockingTransactionProducer.transaction`."""
        self._inner = transaction
        self._thread = thread

    @property
    def unique_key(self) -> str:
        """The id of the message."""
        return self._inner.unique_key

    @property
    def state(self) -> TransactionState:
        """UNKNOWN until it is committed or rolled back."""
        return self._inner.state

    @property
    def is_confirmed(self) -> bool:
        """Whether the broker has confirmed the end. If it has not, it will ask, and this process answers."""
        return self._inner.is_confirmed

    def __enter__(self) -> Self:
        self._thread.call(self._inner.__aenter__(), Transaction.abandon)
        return self

    __exit__ = _blocking(Transaction.__aexit__)
    commit = _blocking(Transaction.commit)
    """Have the message delivered; see `Transaction.commit`."""
    rollback = _blocking(Transaction.rollback)
    """Have the message dropped; see `Transaction.rollback`."""


class BlockingTransactionProducer(BlockingProducer):
    """Sends messages, and transactions; each call waits for the response. See `TransactionProducer`."""

    _inner: TransactionProducer

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        check: Callable[[StoredMessage], TransactionState],
        **options: Unpack[TransactionProducerKeywords],
    ) -> None:
        """Create and start a producer.

        Args:
            name_servers: "host:port", several separated by ";".
            group: producer group.
            check: as that of `TransactionProducer`, as a function; it is called in threads of its own. One that takes
                longer than `check_timeout_s` goes on, and its result is dropped. An error, SystemExit too, means that
                the broker asks again.
            options: the other arguments of `TransactionProducer`.

        Raises:
            ConfigError: an address, the group or an option is invalid.
        """
        asynchronous = in_threads(check, "check")
        self._start(TransactionProducer(name_servers, group=group, check=asynchronous, **options))

    def transaction(
        self, message: Message, *, check_after_s: int | None = None, **choice: Unpack[QueueChoice]
    ) -> BlockingTransaction:
        """Return a transaction with one message, for `with`; see `TransactionProducer.transaction`."""
        transaction = self._inner.transaction(message, check_after_s=check_after_s, **choice)
        return BlockingTransaction(transaction, self._thread)


class _BlockingDelivery(_Blocking[Delivered], MessageView):
    """A delivered message, whose end waits."""

    __slots__ = ("_inner", "_thread", "queue", "stored")

    def __init__(self, message: Delivered, thread: LoopThread) -> None:
        """Made by the consumer."""
        self.stored, self.queue = message.stored, message.queue
        self._inner = message
        self._thread = thread

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._inner.is_ended


class BlockingMessage(_BlockingDelivery[ReceivedMessage]):
    """A delivered message. End it by `ack` or `retry`; otherwise it is delivered again, here or at another member."""

    __slots__ = ()

    ack = _blocking(ReceivedMessage.ack)
    """Acknowledge the message: the next commit may include it."""
    retry = _blocking(ReceivedMessage.retry)
    """Send the message back for a later redelivery; see `ReceivedMessage.retry`."""
    reply = _blocking(ReceivedMessage.reply)
    """Reply to a request; see `ReceivedMessage.reply`."""


class BlockingPoppedMessage(_BlockingDelivery[PoppedMessage]):
    """A popped message. End it by `ack` or `retry`; otherwise it comes back when its time is over."""

    __slots__ = ()

    @property
    def delivery_count(self) -> int:
        """Number of deliveries of the message, this one included."""
        return self._inner.delivery_count

    @property
    def popped_at(self) -> float:
        """When the broker popped it, by the broker's clock, in seconds since 1970: its invisible time began then."""
        return self._inner.popped_at

    ack = _blocking(PoppedMessage.ack)
    """Acknowledge the message; see `PoppedMessage.ack`."""
    retry = _blocking(PoppedMessage.retry)
    """End the message, and have it come back later; see `PoppedMessage.retry`."""
    change_invisible = _blocking(PoppedMessage.change_invisible)
    """Change when the message comes back; see `PoppedMessage.change_invisible`."""
    reply = _blocking(PoppedMessage.reply)
    """Reply to a request; see `ReceivedMessage.reply`."""


class _BlockingReceiver(_BlockingClient[Consumer], Generic[Consumer, Shown]):
    """A consumer that gives one message per call, or calls a handler."""

    _show: Callable[[Any, LoopThread], Shown]
    """Makes the message for the application."""

    def receive(self, timeout_s: float | None = None) -> Shown | None:
        """Return the next message; None if there was none for `timeout_s` seconds.

        Raises:
            ClosedError: the consumer was stopped or closed, perhaps meanwhile.
        """
        message = self._thread.call(self._inner.receive(timeout_s), self._return)
        return self._show(message, self._thread) if message is not None else None

    def _return(self, message: Any) -> None:
        if message is not None:
            self._inner.return_taken(message)

    def __iter__(self) -> Iterator[Shown]:
        """Iterate over messages until the consumer is stopped or closed."""
        while True:
            try:
                message = self.receive()
            except ClosedError:
                if self._inner.is_stopping:
                    return
                raise
            if message is not None:
                yield message

    def run(self, handler: Callable[[Shown], object], *, concurrency: int = 1, handle_signals: bool = True) -> None:
        """Call `handler` with each message, in `concurrency` threads, until the consumer is stopped or closed.

        The message is acknowledged when the handler returns, and delivered again later when it raises, unless the
        handler has ended it. What the handler returns is ignored. A handler that runs longer than `close_wait_s` after
        a stop is waited for no longer, its message is delivered again; its thread goes on until it returns.

        Args:
            handler: a plain function.
            concurrency: maximum number of handlers that run at a time.
            handle_signals: see `PushConsumer.run`; signals reach the main thread only.

        Raises:
            ConfigError: the handler is asynchronous, or `concurrency` is below 1.
            ClosedError: the consumer has failed.
        """
        threads = user_threads(max(1, concurrency), "tandemq-handler")
        in_thread = in_threads(handler, "the handler", threads)

        async def handle(message: Any) -> object:
            return await in_thread(self._show(message, self._thread))

        try:
            with stop_signals(self.stop) if handle_signals else contextlib.nullcontext():
                self._thread.call(self._inner.run(handle, concurrency=concurrency, handle_signals=False))
        finally:
            threads.shutdown(wait=False)

    def stop(self) -> None:
        """Take no more messages, without waiting: `run` and iterations end, and `receive` raises ClosedError. See
        `PushConsumer.stop`."""
        self._thread.post(self._inner.stop)


class BlockingConsumer(_BlockingReceiver[PushConsumer, BlockingMessage]):
    """Consumes topics as a member of a group, one message per call; iterate over it for all messages, without end. See
    `PushConsumer`."""

    _show = BlockingMessage

    @_takes_arguments_of(PushConsumer)
    def __init__(self, consumer: PushConsumer) -> None:
        """Create a consumer and join the group; raises what `PushConsumer.start` raises too."""
        self._start(consumer)

    subscribe = _blocking(PushConsumer.subscribe)
    """Subscribe to another topic, or to other messages of a topic; see `PushConsumer.subscribe`."""

    @property
    def duplicates_skipped(self) -> int:
        """Number of duplicates that were acknowledged instead of delivered; see `PushConsumer`."""
        return self._inner.duplicates_skipped

    @property
    def store_failures(self) -> int:
        """Number of calls of the store of handled messages that failed; see `PushConsumer`."""
        return self._inner.store_failures


class BlockingPopConsumer(_BlockingReceiver[PopConsumer, BlockingPoppedMessage]):
    """Consumes topics by POP, one message per call; iterate over it for all messages, without end. See
    `PopConsumer`."""

    _show = BlockingPoppedMessage

    @_takes_arguments_of(PopConsumer)
    def __init__(self, consumer: PopConsumer) -> None:
        """Create a consumer and begin to pop; raises what `PopConsumer.start` raises too."""
        self._start(consumer)

    subscribe = _blocking(PopConsumer.subscribe)
    """Subscribe to another topic, or to other messages of a topic; see `PopConsumer.subscribe`."""
