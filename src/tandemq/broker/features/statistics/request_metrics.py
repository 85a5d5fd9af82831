"""Requests by code with their latencies, waits of sends, refusals, connections and timers.

Sends and pulls of the ordinary form are counted by the paths that handle them; all other requests by the dispatcher.
Latencies of sends are exact to a millisecond, from arrival to response; those of other requests are the duration of
their turn, counted by powers of two.
Source: docs/guides/monitoring.md; RocketMQ RemotingMetricsManager.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from tandemq.boundary import LinkKind, Now
from tandemq.broker.features.statistics.stats import Stats
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.metrics import Histogram
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.telemetry.families import Batch, Distribution, Labels, Source, Values, counter, gauge, histogram, single
from tandemq.telemetry.turn_times import AnswerKind

RPC_BOUNDS_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
RPC_LATENCY = histogram(
    "rocketmq_rpc_latency_milliseconds",
    "Latency of requests, from their arrival to their response.",
    "protocol_type",
    "request_code",
    "response_code",
    "is_long_polling",
    "result",
    bounds=RPC_BOUNDS_MS,
)
WATERMARK = gauge(
    "rocketmq_processor_watermark", "Always 0: requests are handled in the turn they arrive in.", "processor"
)
PROCESSORS = (
    "send",
    "async_put",
    "pull",
    "query_message",
    "client_manager",
    "heartbeat",
    "lite_pull",
    "transaction",
    "consumer_manage",
    "admin",
    "reply",
    "ack",
)
SEND_WAIT = histogram(
    "tandemq_send_wait_seconds",
    "Time from the arrival of a send to its response, which waits for the disk and for replicas if so configured.",
    bounds=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)
FAILED = counter("tandemq_send_failed_total", "Messages that could not be written; none of them was acknowledged.")
LINKS = gauge("tandemq_client_connections", "Connections of clients and members.", "kind")
PARTIAL = gauge("tandemq_unfinished_bytes", "Buffered bytes of incomplete requests.")
HELD = gauge("tandemq_held_pulls", "Pulls that wait for messages.")
LATE = gauge("tandemq_loop_late_seconds", "Largest delay of a periodic task in this minute and the one before.")


class RequestMetrics(Feature):
    """The source of the families above."""

    def __init__(self, kernel: Kernel, stats: Stats) -> None:
        """Begin."""
        self._times = kernel.turn_times
        self._pulls = kernel.features.find(Pulls)
        self._stats = stats
        self._links = kernel.links
        self._partial_frames = kernel.partial_frames
        self._schedule = kernel.schedule
        self._finds = self._misses = 0

    def turn_took(self, duration_ns: int) -> None:
        """Count a turn that has ended, with the ordinary pulls answered in it."""
        counters = self._pulls.counters
        found, missed = counters.finds - self._finds, counters.misses - self._misses
        if found:
            self._finds = counters.finds
            self._times.answered(_FOUND, found)
        if missed:
            self._misses = counters.misses
            self._times.answered(_MISSED, missed)
        self._times.turn_took(duration_ns)

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self.collect,)

    def collect(self, now: Now) -> Iterator[Batch | None]:
        """Yield the batches."""
        yield from self._times.collect()
        put_times = self._stats.put_times_so_far()
        yield None
        yield Batch(RPC_LATENCY, distributions=self._latencies(put_times))
        yield None
        bounds_ms = [bound * 1000 for bound in SEND_WAIT.bounds]
        yield Batch(SEND_WAIT, distributions={(): _by_bounds(put_times, bounds_ms, 1000)})
        yield single(FAILED, self._stats.failed_puts)
        yield Batch(WATERMARK, {(name,): 0 for name in PROCESSORS})
        yield from self._collect_connections(now)

    def _latencies(self, put_times: Histogram) -> dict[Labels, Distribution]:
        found: dict[Labels, Distribution] = {
            (
                "remoting",
                code_name(kind.request_code),
                response_name(kind.response_code),
                "true" if kind == _MISSED else "false",
                "success",
            ): buckets.distribution_in(RPC_BOUNDS_MS)
            for kind, buckets in self._times.answers.items()
        }
        if put_times.count:
            sends = "remoting", code_name(RequestCode.SEND_MESSAGE_V2), response_name(0), "false", "success"
            found[sends] = _by_bounds(put_times, RPC_BOUNDS_MS, 1)
        return found

    def _collect_connections(self, now: Now) -> Iterator[Batch | None]:
        kinds: Values = {("remoting",): 0, ("fast",): 0}
        links = list(self._links.values())
        for start in range(0, len(links), 1_000):
            part = links[start : start + 1_000]
            fast = sum(link.kind is LinkKind.FAST for link in part)
            kinds["fast",] += fast
            kinds["remoting",] += len(part) - fast
            yield None
        yield Batch(LINKS, kinds)
        yield single(PARTIAL, self._partial_frames.total)
        yield single(HELD, self._pulls.held_count)
        yield single(LATE, self._schedule.lag_ms_max(now) / 1000)


_FOUND = AnswerKind(RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS)
_MISSED = AnswerKind(RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND)


def code_name(code: int) -> str:
    """Return a request code as a label: its name in lower case, "unknown" for others."""
    return RequestCode(code).name.lower() if code in _REQUESTS else "unknown"


def response_name(code: int) -> str:
    """Return a response code as a label: its name in lower case, "unknown" for others."""
    return ResponseCode(code).name.lower() if code in _RESPONSES else "unknown"


_REQUESTS, _RESPONSES = frozenset(RequestCode), frozenset(ResponseCode)


def _by_bounds(times: Histogram, bounds_ms: Sequence[float], per_unit: int) -> Distribution:
    """Return a histogram of whole milliseconds by upper bounds, ms; `per_unit`: ms in the unit of the sum."""
    counts, total = [0] * (len(bounds_ms) + 1), 0
    for value, number in times.counts():
        counts[bisect_left(bounds_ms, value)] += number
        total += value * number
    return Distribution(counts, total / per_unit)
