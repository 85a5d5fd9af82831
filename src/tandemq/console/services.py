"""Services of the pages: the cluster, the database, accounts, settings. One object per process."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.config.tls import ClientTls
from tandemq.console.access.accounts import Accounts
from tandemq.console.access.rate_limit import RateLimit
from tandemq.console.access.throttle import LoginThrottle
from tandemq.console.access.tokens import ApiTokens
from tandemq.console.cluster.history import Point
from tandemq.console.cluster.messages import MessageFinder
from tandemq.console.cluster.tables_thread import TableSource
from tandemq.console.cluster.topics_and_groups import ClusterTables
from tandemq.console.cluster.watch import ClusterWatch
from tandemq.console.pipeline_files import PipelinePaths
from tandemq.errors import ConfigError, LocalError, OutcomeUnknown, TandemError
from tandemq.groupdb.audit import Actor, AuditEntry, complete, record
from tandemq.groupdb.database import GroupDatabase
from tandemq.model.access import Credentials

T = TypeVar("T")
P = ParamSpec("P")
DATABASE_THREADS = 8
HASHES_MAX = 2
"""Password hashes computed at once; each takes 32 MiB."""
API_BURST = 100
"""API requests that a token may make at once after a pause."""
REFUSED_BURST = 20
REFUSED_PER_S = 1 / 30
STREAMS_MAX = 64
STREAMS_PER_USER = 8
PRODUCER_GROUP = "tandemq-console"
RETRY_MS = 3_000


class NotFound(LocalError):
    """The object that an address names does not exist."""


class AlreadyExists(ConfigError):
    """The object to create exists already."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Settings of the console."""

    hosts: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]"})
    """Host names, without ports, under which browsers may reach it."""
    is_secure: bool = False
    """Whether browsers reach it by HTTPS: cookies are marked, and HSTS is sent."""
    hides_bodies: bool = False
    """Whether viewers do not see bodies and properties of messages."""
    proxies: frozenset[str] = frozenset()
    """Addresses of proxies whose headers X-Forwarded-For and X-Forwarded-Prefix are believed."""
    base_path: str = ""
    """Path below which browsers reach it, as "/ops/tandemq"; "": the root."""
    tls: ClientTls | None = None
    """TLS of the connections to brokers and name servers; None: without."""
    credentials: Credentials | None = None
    """User as which it signs requests to brokers; None: that of the environment, if there is one."""
    resend_per_s: float = 50.0
    """Maximum number of messages per second that one request sends again."""
    pipeline: PipelinePaths = field(default_factory=PipelinePaths)
    """Files of the data pipeline that are shown."""
    api_per_s: float = 20.0
    """Maximum number of API requests per second of one token."""


@dataclass
class Console:
    """The collaborators of all pages. Owner: the event loop."""

    settings: ConsoleSettings
    database: GroupDatabase
    admin: Admin
    name_servers: str
    table_source: TableSource | None = None
    """Source of the tables of topics and groups; None: `admin`."""
    accounts: Accounts = field(init=False)
    watch: ClusterWatch = field(init=False)
    tables: ClusterTables = field(init=False)
    finder: MessageFinder = field(init=False)
    throttle: LoginThrottle = field(default_factory=LoginThrottle)
    setup_token: str = ""
    """Token of the one-time link that creates the first user; "" if there is none."""
    setup_until_ms: int = 0
    tokens: ApiTokens = field(init=False)
    api_limit: RateLimit = field(init=False)
    """API requests, by token."""
    refused_tokens: RateLimit = field(default_factory=lambda: RateLimit(REFUSED_PER_S, REFUSED_BURST))
    """API requests with unknown tokens, by address."""
    api_open: dict[int, int] = field(default_factory=dict)
    """API requests that run now, by token."""
    streams: dict[str, int] = field(default_factory=dict)
    """Open streams by user."""
    ending: anyio.Event = field(default_factory=anyio.Event)
    """Set when the process ends, so that streams end."""
    _threads: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(DATABASE_THREADS))
    _hashes: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(HASHES_MAX))
    _producer: Producer | None = None

    def __post_init__(self) -> None:
        """Create the services from the arguments."""
        self.accounts = Accounts(self.database)
        self.tokens = ApiTokens(self.database)
        self.api_limit = RateLimit(self.settings.api_per_s, API_BURST)
        self.watch = ClusterWatch(self.admin)
        self.tables = ClusterTables(self.table_source or self.admin)
        self.finder = MessageFinder(self.admin)

    async def run(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a blocking function in a thread, such as one of the database."""
        return await to_thread.run_sync(partial(call, *args, **named), limiter=self._threads)

    async def run_hash(self, call: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a function that hashes a password in a thread; few run at once."""
        return await to_thread.run_sync(partial(call, *args, **named), limiter=self._hashes)

    async def producer(self) -> Producer:
        """Return the producer that sends messages for users; started at its first use."""
        if self._producer is None:
            producer = Producer(
                self.name_servers,
                group=PRODUCER_GROUP,
                retry_ms=RETRY_MS,
                tls=self.settings.tls or False,
                credentials=self.settings.credentials,
            )
            await producer.start()
            self._producer = producer
        return self._producer

    async def sample(self) -> None:
        """Record rates and lag of the cluster, and of all topics and groups."""
        await self.tables.sample()
        lag = sum(row.lag for row in await self.tables.groups())
        await self.watch.fresh()  # the state too, so that no page shows one that is as old as the last sample
        view = await self.watch.fresh(figures=True)
        rates = view.rates
        if rates is not None:
            self.tables.history.record_cluster(Point(view.at_ms, lag, rates.received_minute, rates.delivered_minute))

    async def close(self) -> None:
        """End streams and close connections; the database stays open."""
        self.ending.set()
        await self.watch.close()
        await self.tables.close()
        if self._producer is not None:
            await self._producer.close()

    @asynccontextmanager
    async def audited(
        self, by: Actor, action: str, target: str, *, before: str = "", after: str = ""
    ) -> AsyncIterator[None]:
        """Write an entry in the audit log before the body runs, and its outcome afterwards.

        If the body raises, the error is the outcome.
        """
        entry = AuditEntry(wall_ms(), by, action, target=target, before=before, after=after)
        number = await self.run(self._begin_entry, entry)
        try:
            yield
        except OutcomeUnknown as error:
            await self.run(self._end_entry, number, f"unknown: {error}")
            raise
        except TandemError as error:
            await self.run(self._end_entry, number, f"failed: {error}")
            raise
        await self.run(self._end_entry, number, "done")

    def _begin_entry(self, entry: AuditEntry) -> int:
        with self.database.transaction() as connection:
            return record(connection, entry)

    def _end_entry(self, number: int, outcome: str) -> None:
        with self.database.transaction() as connection:
            complete(connection, number, outcome)

    @asynccontextmanager
    async def stream(self, user: str) -> AsyncIterator[bool]:
        """Count a stream of a user; yields whether it may be opened."""
        own = self.streams.get(user, 0)
        if own >= STREAMS_PER_USER or sum(self.streams.values()) >= STREAMS_MAX:
            yield False
            return
        self.streams[user] = own + 1
        try:
            yield True
        finally:
            self.streams[user] -= 1
            if not self.streams[user]:
                del self.streams[user]


def wall_ms() -> int:
    """Return the calendar time, milliseconds since 1970."""
    return time.time_ns() // 1_000_000
