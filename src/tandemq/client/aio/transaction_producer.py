"""The producer of transactions for asyncio.

    async def check(message: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT if await is_paid(message.keys[0]) else TransactionState.ROLLBACK

    async with TransactionProducer("127.0.0.1:9876", group="orders", check=check) as producer:
        async with producer.transaction(Message("Orders", b"42 paid", keys=["42"])):
            await pay(42)                       returning commits the message, raising drops it

Brokers ask for the outcome of a transaction whose end they did not get, after a crash of the producer for instance.
`check` is called for transactions that this process does not know; it finds the outcome in the application's database.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, Unpack

from tandemq.client.aio.options import ProducerKeywords, QueueChoice
from tandemq.client.aio.producer import Producer, selector
from tandemq.client.aio.tracing import Tracing
from tandemq.client.aio.transport import Shell
from tandemq.client.aio.user_code import check_async
from tandemq.client.producer.transactions import TransactionCheck, TransactionCore, TransactionTicket
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, ConfigError, LocalError, OutcomeUnknown, TandemError
from tandemq.model.access import Credentials
from tandemq.model.message import Message, SendResult, StoredMessage
from tandemq.model.topic import AUTO_CREATE_TOPIC
from tandemq.model.transactions import TransactionState

log = logging.getLogger(__name__)
Check = Callable[[StoredMessage], Awaitable[TransactionState]]


class Transaction:
    """A message that is delivered when the body of its `async with` returns, and dropped if it raises.

    The body may call `commit` or `rollback` itself, as the last thing it does.
    """

    def __init__(
        self, producer: "TransactionProducer", message: Message, check_after_s: int | None, choice: QueueChoice
    ) -> None:
        """Made by `TransactionProducer.transaction`."""
        self._producer = producer
        self._message = message
        self._check_after_s = check_after_s
        self._choice = choice
        self._ticket: TransactionTicket | None = None
        self._has_begun = False
        self.state = TransactionState.UNKNOWN
        """UNKNOWN until it is committed or rolled back."""
        self.is_confirmed = False
        """Whether the broker has confirmed the end. If it has not, it will ask, and this process answers."""

    @property
    def unique_key(self) -> str:
        """The id of the message.

        Raises:
            LocalError: the transaction has not begun.
        """
        return self._begun().unique_key

    @property
    def half(self) -> SendResult:
        """Where the message is stored until it is committed: its queue offset is not that of the topic.

        Raises:
            LocalError: the transaction has not begun.
        """
        return self._begun().result()

    def _begun(self) -> TransactionTicket:
        if self._ticket is None:
            raise LocalError("the transaction has not begun", hint="use it with `async with`")
        return self._ticket

    async def __aenter__(self) -> Self:
        if self._has_begun:
            raise LocalError("the transaction has begun already", hint="make one for each message")
        shell, core = self._producer.running()
        self._has_begun = True
        await shell.writable()
        select, check_after_s = selector(**self._choice), self._check_after_s
        [ticket] = self._producer.traced(
            [self._message],
            lambda some: [core.begin(some[0], shell.now, select=select, check_after_s=check_after_s)],
        )
        self._ticket = ticket
        try:
            await shell.done(ticket)
        except asyncio.CancelledError:
            ticket.then(lambda _: self._drop(shell, core))
            raise
        return self

    def abandon(self) -> None:
        """Roll back, without waiting, because the body will not run."""
        shell, core = self._producer.running()
        self._drop(shell, core)

    def _drop(self, shell: Shell, core: TransactionCore) -> None:
        """Roll back, without waiting."""
        ticket = self._begun()
        if ticket.error is None and self.state is TransactionState.UNKNOWN and not shell.is_closed:
            self.state = TransactionState.ROLLBACK
            core.end(ticket, TransactionState.ROLLBACK, shell.now, retry_ms=0)
            shell.wake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state is not TransactionState.UNKNOWN:
            return
        if error is None:
            await self.commit()
            return
        try:
            await self._end(TransactionState.ROLLBACK, retry_ms=0)
        except TandemError as failure:
            log.warning("transaction not rolled back unique_key=%s: %s", self.unique_key, failure)

    async def commit(self) -> None:
        """Have the message delivered.

        Returns without an error also if no response comes in time, or a broker fails while it commits: `is_confirmed`
        is False then. The message is delivered already, or once the broker has asked this process or a later one.

        Raises:
            RemoteError: the broker has no such open transaction: it was given up, or lost with its log.
            LocalError: the transaction was ended before.
        """
        await self._end(TransactionState.COMMIT)

    async def rollback(self) -> None:
        """Have the message dropped; otherwise as `commit`."""
        await self._end(TransactionState.ROLLBACK)

    async def _end(self, state: TransactionState, retry_ms: int | None = None) -> None:
        ticket = self._begun()
        shell, core = self._producer.running()
        ended = core.end(ticket, state, shell.now, retry_ms=retry_ms)
        self.state = state
        with contextlib.suppress(OutcomeUnknown):  # the client was closed meanwhile
            self.is_confirmed = await shell.done(ended)
        if not self.is_confirmed:
            log.warning("transaction end not confirmed unique_key=%s state=%s", ticket.unique_key, state.name)


class TransactionProducer(Producer):
    """Sends messages, and transactions. Use it with `async with`, or call `start` and `close`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        check: Check,
        topics: Iterable[str] = (),
        checks_at_once: int = 8,
        check_timeout_s: float = 30.0,
        client_id: str = "",
        tls: ClientTls | bool = False,
        credentials: Credentials | None = None,
        tracing: Tracing | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """Create a producer that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: producer group. Any member of the group may be asked for the outcome of a transaction.
            check: returns the outcome of a transaction of the group, given its message; UNKNOWN if it is not decided
                yet. If it raises, is cancelled, takes too long or returns something else, the outcome is unknown, and
                the broker asks again; SystemExit and KeyboardInterrupt end the event loop.
            topics: topics of transactions: their brokers know this producer from the start. By default those are the
                brokers that create topics.
            checks_at_once: maximum number of calls of `check` at a time.
            check_timeout_s: for how long `check` may take.
            client_id: name of this client at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            options: see `ProducerOptions`.

        Raises:
            ConfigError: the group or an option is invalid, or `check` is not asynchronous.
        """
        check_async(check, "check")
        super().__init__(
            name_servers, group=group, client_id=client_id, tls=tls, credentials=credentials, tracing=tracing, **options
        )
        if checks_at_once < 1 or check_timeout_s <= 0:
            raise ConfigError("checks_at_once must be at least 1, and check_timeout_s more than 0")
        self._check = check
        self._topics = tuple(topics) or (AUTO_CREATE_TOPIC,)
        self._checks_at_once = checks_at_once
        self._check_timeout_s = check_timeout_s
        self._transactions: TransactionCore | None = None
        self._checking: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def start(self) -> None:
        """Start the producer, and introduce it to the brokers of its topics in the background.

        Raises:
            ConfigError: an address is not "host:port".
        """
        await super().start()
        self._is_closing = False
        shell, core = self._running()
        self._transactions = shell.node.transactions(core)
        self._transactions.on_check = self._on_check
        for topic in self._topics:
            shell.node.routes.want(topic)
        shell.node.introduce(self._topics, shell.now)
        shell.wake()

    async def _close(self, *, after_error: bool) -> None:
        self._is_closing = True
        for task in self._checking:
            task.cancel()
        await super()._close(after_error=after_error)

    def running(self) -> tuple[Shell, TransactionCore]:
        """Return the running parts; for `Transaction`.

        Raises:
            ClosedError: the producer is not started, or closed.
        """
        shell, _ = self._running()
        if self._transactions is None:
            raise ClosedError("the producer is not started", hint="use it with `async with`")
        return shell, self._transactions

    def transaction(
        self, message: Message, *, check_after_s: int | None = None, **choice: Unpack[QueueChoice]
    ) -> Transaction:
        """Return a transaction with one message, for `async with`.

        Entering it sends the message, and raises like `send`; also RemoteError if the message is not stored as safely
        as the broker is configured to. While its body runs, checks are answered with UNKNOWN.

        Args:
            message: the message, without a delay.
            check_after_s: time after which the broker asks first, for bodies that take long; by default its
                `transactionTimeOut`. A commit after it is not confirmed before the next check.
            choice: see `send`.
        """
        return Transaction(self, message, check_after_s, choice)

    # Checks.

    def _on_check(self) -> None:
        assert self._transactions is not None, "it was started"
        while not self._is_closing and len(self._checking) < self._checks_at_once:
            check = self._transactions.next_check()
            if check is None:
                return
            task = asyncio.get_running_loop().create_task(self._answer(check))
            self._checking.add(task)
            task.add_done_callback(self._checked)

    def _checked(self, task: asyncio.Task[None]) -> None:
        self._checking.discard(task)
        self._on_check()

    async def _answer(self, check: TransactionCheck) -> None:
        shell, transactions = self.running()
        state, remark = TransactionState.UNKNOWN, ""
        limit = asyncio.timeout(self._check_timeout_s)
        try:
            async with limit:
                state = TransactionState(await self._check(check.message))
        except (Exception, asyncio.CancelledError) as error:
            if self._is_closing:
                return
            late = f"the check took more than {self._check_timeout_s} s"
            remark = late if limit.expired() else f"the check failed: {error!r}"
            log.exception("check failed group=%s unique_key=%s", self._options.group, check.message.unique_key)
        transactions.answer(check, state, shell.now, remark=remark)
        shell.wake()
