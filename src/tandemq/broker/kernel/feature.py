"""A feature of a broker, and the list of all of them.

A feature is what the broker does beyond its log and the rule of what may be seen and acknowledged: it answers requests,
keeps state, works at certain times, and reports. The node calls all features at the same points of a turn, in the order
of the list; a feature overrides the methods that it needs.

    begin_turn ─► handlers ─► run_due ─► before_commit ─► log written ─► committed, or failed
"""

# ruff: noqa: ARG002  # a feature leaves out what it does not need
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.connection import Handler
from tandemq.broker.kernel.serving import Serving
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode
from tandemq.telemetry.families import Source


class Feature:
    """One feature. The methods here do nothing."""

    needs_log_for = ""
    """What retention keeps log files for, for log lines; see `keeps_log_from`."""

    # What it adds to the broker.

    def handlers(self) -> Mapping[RequestCode, Handler]:
        """Return its handlers by request code."""
        return {}

    def sources(self) -> Sequence[Source]:
        """Return what yields its metrics."""
        return ()

    def figures(self, now: Now) -> Mapping[str, str]:
        """Return its part of the runtime information that operators see."""
        return {}

    # Changes from outside.

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take changed settings."""

    def on_serving_change(self, before: Serving, serving: Serving, turn: Turn, now: Now) -> None:
        """Act when mastership, rights or registration changed; see `Serving.is_same_service`."""

    def topic_removed(self, topic: str, now: Now) -> None:
        """Forget a topic that was deleted."""

    def link_closed(self, link: int, turn: Turn, now: Now) -> None:
        """Forget a client's connection that was closed."""

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
        """Count what this turn appended: it is in the log, though perhaps not on the device."""

    def failed(self) -> None:
        """Forget what this turn appended: it is not in the log."""

    # The store.

    def keeps_log_from(self) -> int | None:
        """Return the log offset from which on it needs the log; None: it needs nothing."""
        return None

    def save_tables(self) -> None:
        """Save its tables, at a clean stop."""

    def close(self) -> None:
        """Close its files, once all tables are saved; blocking."""


class Features:
    """All features of a broker. Only those that override a method are called."""

    def __init__(self, features: Sequence[Feature]) -> None:
        """Keep the order of the list."""
        self.all = tuple(features)
        self.begin_turn = [one.begin_turn for one in self._with("begin_turn")]
        self.run_due = [one.run_due for one in self._with("run_due")]
        self.before_commit = [one.before_commit for one in self._with("before_commit")]
        self.committed = [one.committed for one in self._with("committed")]
        self.failed = [one.failed for one in self._with("failed")]
        self.link_closed = [one.link_closed for one in self._with("link_closed")]
        self.on_serving_change = [one.on_serving_change for one in self._with("on_serving_change")]
        self.adopt_config = [one.adopt_config for one in self._with("adopt_config")]
        self.topic_removed = [one.topic_removed for one in self._with("topic_removed")]
        self.save_tables = [one.save_tables for one in self._with("save_tables")]
        self.close = [one.close for one in self._with("close")]
        self._deadlines = [one.deadline_ms for one in self._with("deadline_ms")]
        self._keeping = self._with("keeps_log_from")

    def _with(self, name: str) -> list[Feature]:
        """Return the features that override a method."""
        return [one for one in self.all if getattr(type(one), name) is not getattr(Feature, name)]

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers of all by request code. Two for one code are a mistake of ours."""
        found: dict[int, Handler] = {}
        for feature in self.all:
            for code, handler in feature.handlers().items():
                assert code not in found, f"two handlers for {code}"
                found[int(code)] = handler
        return found

    def sources(self) -> Iterator[Source]:
        """Yield what yields metrics."""
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
        return [at for deadline in self._deadlines if (at := deadline()) is not None]

    def needs_log_from(self) -> dict[str, int]:
        """Return the log offsets from which on features need the log, by what for."""
        found = {one.needs_log_for: one.keeps_log_from() for one in self._keeping}
        return {name: offset for name, offset in found.items() if offset is not None}


FeatureT = TypeVar("FeatureT", bound=Feature)


def one_of(features: Iterable[Feature], kind: type[FeatureT]) -> FeatureT:
    """Return the feature of a kind."""
    return next(feature for feature in features if isinstance(feature, kind))
