"""Counts who asks, forgets them after a time, and remembers them over a restart."""

from collections.abc import Iterator, Sequence

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.storage.json_tables import load_table
from tandemq.telemetry.families import Batch, Source, gauge, single

CODE = RequestCode.GET_UNIT_TOPIC_LIST
FILE = "visits.json"
FORGET_MS = 60_000
VISITS = gauge("tandemq_visits", "Visits in the last minute.")


class Visits(Feature):
    """Visits since they were forgotten last."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the count."""
        self._kernel = kernel
        self._count = int(load_table(kernel.disk, FILE).get("count", 0))
        kernel.schedule.every(FORGET_MS, self._forget, first_ms=kernel.began.mono_ms + FORGET_MS)

    def handlers(self) -> dict[RequestCode, Handler]:
        """See `Feature`."""
        return {CODE: self._on_visit}

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self._collect,)

    def figures(self, _now: Now) -> dict[str, str]:
        """See `Feature`."""
        return {"visits": str(self._count)}

    def _on_visit(self, _link: Link, command: Command, _now: Now) -> Command | None:
        self._count += 1
        self._kernel.saver.later(FILE, lambda: {"count": self._count})
        return command.answer(ResponseCode.SUCCESS, remark=str(self._count))

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        yield single(VISITS, self._count)

    def _forget(self, _now: Now) -> None:
        self._count = 0


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build the feature."""
    return (Visits(kernel),)
