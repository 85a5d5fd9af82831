"""A feature of a broker, and the list of all of them.

A feature is what the broker does beyond its log and the rule of what may be seen and acknowledged: it answers requests,
keeps state, works at certain times, and reports. The node calls all features at the same points of a turn, in the order
of the list; a feature overrides the methods that it needs.

    begin_turn ─► requests ─► run_due ─► before_commit ─► log written ─► committed, or failed
"""

# ruff: noqa: ARG002  # a feature leaves out what it does not need
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.connection import Handler
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.serving import Right, Serving
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode
from tandemq.model.java_types import INT32_MAX
from tandemq.telemetry.families import Source

BODY_BYTES_MAX = 4 << 20
"""Size of the bodies of requests that are no messages: to read one takes up to a tenth of a microsecond per byte."""
MESSAGE_BYTES_MAX = INT32_MAX
"""The same of messages, which have limits of their own."""


class Request(NamedTuple):
    """The handler of the requests with a code, and the conditions of such a request."""

    handle: Handler
    right: Right | None = None
    """Right without which the request is refused; None: it needs no right."""
    is_saved: bool = False
    """Whether its response means that the tables are saved."""
    is_recorded: bool = False
    """Whether its effect is recorded in the log, so that its response waits for the record."""
    is_copied: bool = False
    """Whether its response waits, in a group with elections, until all members in sync have the tables."""
    is_of_member: bool = False
    """Whether only members of the group may ask, with a proof of the secret of replication."""
    only_reads: bool = False
    """Whether it changes nothing, so that it may be handled again when the device has been read for it."""
    body_bytes_max: int = BODY_BYTES_MAX
    """Size of its body from which on it is refused."""
    is_always_answered: bool = False
    """Whether it is answered even if the responses of this turn have taken all the memory that they may."""


class Feature:
    """One feature. The methods here do nothing."""

    # What it adds to the broker.

    def requests(self) -> Mapping[RequestCode, Request]:
        """Return the requests that it answers, by code."""
        return {}

    def wrap(self, code: RequestCode, request: Request) -> Request:
        """Return a request of any feature, with steps of this feature added before its handler."""
        return request

    def tables(self) -> Sequence[Table]:
        """Return its tables that slaves copy."""
        return ()

    def sources(self) -> Sequence[Source]:
        """Return the sources of its metrics."""
        return ()

    def figures(self, now: Now) -> Mapping[str, str]:
        """Return its part of the runtime information that operators see."""
        return {}

    # Changes from outside.

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Take the advertised addresses, "ip:port", once the ports are bound."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take changed settings."""

    def on_serving_change(self, before: Serving, serving: Serving, turn: Turn, now: Now) -> None:
        """Act when mastership, rights or registration changed; see `Serving.is_same_service`."""

    def topic_removed(self, topic: str, now: Now) -> None:
        """Forget a topic that was deleted."""

    def group_removed(self, group: str, now: Now) -> None:
        """Forget a consumer group that was deleted."""

    def link_closed(self, link: int, turn: Turn, now: Now) -> None:
        """Forget a client's connection that was closed."""

    def rights_changed(self, link: int, turn: Turn, now: Now) -> None:
        """End the waiting requests of a connection whose user may do other things now: its client asks again."""

    # A turn.

    def begin_turn(self, turn: Turn, now: Now) -> None:
        """Begin a turn, before requests are received."""

    def run_due(self, turn: Turn, now: Now) -> None:
        """Do what is due, in bounded time; called each turn. Periodic work is better scheduled (`Schedule`)."""

    def deadline_ms(self) -> int | None:
        """Return when `run_due` is needed, monotonic ms; None: not as things are."""
        return None

    def before_commit(self, now: Now) -> None:
        """Append what has to be in the log together with the messages of this turn."""

    def committed(self, now: Now) -> None:
        """Count the records appended in this turn: they are in the log, but perhaps not on the device yet."""

    def failed(self) -> None:
        """Forget the records appended in this turn, which are not in the log."""

    def turn_took(self, duration_ns: int) -> None:
        """Take the duration of a turn that has ended."""

    def not_ready(self, now: Now) -> Sequence[str]:
        """Return why the broker serves no clients at present, for `/readyz`."""
        return ()

    # The store.

    def needs_log_from(self) -> Mapping[str, int]:
        """Return the log offsets from which on retention has to keep the log, by the reason."""
        return {}

    def save_tables(self) -> None:
        """Save its tables, at a clean stop."""

    def close(self) -> None:
        """Close its files, once all tables are saved; blocking."""


FeatureT = TypeVar("FeatureT")
_HOOKS = (
    "listening",
    "adopt_config",
    "on_serving_change",
    "topic_removed",
    "group_removed",
    "link_closed",
    "rights_changed",
    "begin_turn",
    "run_due",
    "before_commit",
    "committed",
    "failed",
    "turn_took",
    "not_ready",
    "save_tables",
    "close",
)


class Features:
    """All features of a broker. Only those that override a method are called."""

    def __init__(self) -> None:
        """Begin without features; see `add`."""
        self.all: list[Feature] = []
        """In the order in which they see a turn."""
        self.requests: dict[int, Request] = {}
        """By code; see `bind`."""
        self.tables: list[Table] = []
        """That slaves copy, in the order in which they are published."""
        self.listening: list[Callable[[str, str, Now], None]] = []
        self.adopt_config: list[Callable[[BrokerConfig], None]] = []
        self.on_serving_change: list[Callable[[Serving, Serving, Turn, Now], None]] = []
        self.topic_removed: list[Callable[[str, Now], None]] = []
        self.group_removed: list[Callable[[str, Now], None]] = []
        self.link_closed: list[Callable[[int, Turn, Now], None]] = []
        self.rights_changed: list[Callable[[int, Turn, Now], None]] = []
        self.begin_turn: list[Callable[[Turn, Now], None]] = []
        self.run_due: list[Callable[[Turn, Now], None]] = []
        self.before_commit: list[Callable[[Now], None]] = []
        self.committed: list[Callable[[Now], None]] = []
        self.failed: list[Callable[[], None]] = []
        self.turn_took: list[Callable[[int], None]] = []
        self.not_ready: list[Callable[[Now], Sequence[str]]] = []
        self.save_tables: list[Callable[[], None]] = []
        self.close: list[Callable[[], None]] = []
        self._deadlines: list[Callable[[], int | None]] = []

    def add(self, *features: Feature) -> None:
        """Append features."""
        for feature in features:
            self.all.append(feature)
            self.tables += feature.tables()
            for name in _HOOKS:
                if _overrides(feature, name):
                    getattr(self, name).append(getattr(feature, name))
            if _overrides(feature, "deadline_ms"):
                self._deadlines.append(feature.deadline_ms)

    def bind(self) -> None:
        """Collect the requests that features answer, once all are added. Two handlers for a code are our mistake."""
        for feature in self.all:
            for code, request in feature.requests().items():
                assert code not in self.requests, f"two handlers for {code}"
                self.requests[int(code)] = request
        for feature in self.all:
            if _overrides(feature, "wrap"):
                for number, request in self.requests.items():
                    self.requests[number] = feature.wrap(RequestCode(number), request)

    def find(self, kind: type[FeatureT]) -> FeatureT:
        """Return the only feature that offers an interface, or is of a class; it has to be added before."""
        (found,) = (feature for feature in self.all if isinstance(feature, kind))
        return found

    def sources(self) -> Iterator[Source]:
        """Yield the sources of metrics of all features."""
        for feature in self.all:
            yield from feature.sources()

    def figures(self, now: Now) -> dict[str, str]:
        """Return the runtime information of all."""
        found: dict[str, str] = {}
        for feature in self.all:
            found |= feature.figures(now)
        return found

    def deadlines_ms(self) -> list[int]:
        """Return when turns are needed, monotonic ms."""
        return [time_ms for deadline in self._deadlines if (time_ms := deadline()) is not None]

    def needs_log_from(self) -> dict[str, int]:
        """Return the log offsets from which on retention has to keep the log, by what needs it."""
        found: dict[str, int] = {}
        for feature in self.all:
            found |= feature.needs_log_from()
        return found


def _overrides(feature: Feature, name: str) -> bool:
    return getattr(type(feature), name) is not getattr(Feature, name)
