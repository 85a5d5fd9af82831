"""The counts of timed messages, which are for operators, as slaves copy them."""

from tandemq.broker.features.timers.metrics import TimerMetrics
from tandemq.broker.kernel.copied_tables import Polled, Table
from tandemq.codec.remoting.fastjson import dumps
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command


class TimerCountsTable(Table):
    """Number of timed messages that wait, by topic. Masters before 5.x have none."""

    code = RequestCode.GET_TIMER_METRICS
    is_optional = True

    def __init__(self, metrics: TimerMetrics) -> None:
        """Begin."""
        self._metrics = metrics

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return dumps(self._metrics.as_json())

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self._metrics.adopt_body(polled.body, polled.now)
