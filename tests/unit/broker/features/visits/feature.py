"""Counts who asks, forgets them after a time, and remembers them over a restart."""

from collections.abc import Iterator, Sequence
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.copied_tables import Polled, StreamedTable, Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.storage.json_tables import TableFile
from tandemq.telemetry.families import Batch, Source, gauge, single

CODE = RequestCode.GET_UNIT_TOPIC_LIST
FILE = TableFile("visits.json")
FORGET_MS = 60_000
VISITS = gauge("tandemq_visits", "Visits in the last minute.")


class Visits(Feature):
    """Visits since they were forgotten last."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the count."""
        self._kernel = kernel
        self.count = int(FILE.load(kernel.disk).get("count", 0))
        kernel.every(FORGET_MS, self._forget)

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        return {CODE: Request(self._on_visit)}

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self._collect,)

    def figures(self, _now: Now) -> dict[str, str]:
        """See `Feature`."""
        return {"visits": str(self.count)}

    def _on_visit(self, _link: Link, command: Command, _now: Now) -> Command | None:
        self.set(self.count + 1)
        return command.answer(ResponseCode.SUCCESS, remark=str(self.count))

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (VisitsTable(self),)

    def set(self, count: int) -> None:
        """Set the number, and save it."""
        self.count = count
        self._kernel.saver.later(FILE, lambda: {"count": self.count})

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        yield single(VISITS, self.count)

    def _forget(self, _now: Now) -> None:
        self.count = 0


class VisitsTable(StreamedTable):
    """The number of visits, as slaves copy it."""

    code = RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST
    kind = KIND_FEATURE_TABLES
    is_optional = True
    is_needed = False
    is_waited_for = False

    def __init__(self, visits: Visits) -> None:
        """Begin to compare."""
        self._visits = visits
        self._published = -1

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return self.whole()

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self.take(loads(polled.body), polled.body)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if self._visits.count == self._published:
            return None
        self._published = self._visits.count
        return self.whole()

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps({"count": self._visits.count})

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        self._visits.set(int(table["count"]))


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the feature."""
    return (Visits(kernel),)
