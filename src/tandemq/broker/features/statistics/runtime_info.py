"""Runtime statistics of the broker as one flat table of texts.

Tools split the texts, so their form is part of the protocol; keys that tools require are always present.
Source: docs/reference/requests.md, "runtime figures"; RocketMQ StoreStatsService, AdminBrokerProcessor.
"""

from operator import add

from tandemq import __version__
from tandemq.boundary import DiskUsage, Now
from tandemq.broker.features.statistics.stats import Rates, Stats
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.fastjson import dumps
from tandemq.metrics import LARGEST_MS, Histogram
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import VERSION_SPOKEN, Command

VERSION_NAME = "V4_9_8"
NO_LIMIT = (1 << 31) - 1
_BUCKETS = (
    ("[<=0ms]", 0, 1),
    ("[0~10ms]", 1, 10),
    ("[10~50ms]", 10, 50),
    ("[50~100ms]", 50, 100),
    ("[100~200ms]", 100, 200),
    ("[200~500ms]", 200, 500),
    ("[500ms~1s]", 500, 1_000),
    ("[1~2s]", 1_000, 2_000),
    ("[2~3s]", 2_000, 3_000),
    ("[3~4s]", 3_000, 4_000),
    ("[4~5s]", 4_000, 5_000),
    ("[5~10s]", 5_000, 10_000),
    ("[10s~]", 10_000, LARGEST_MS + 1),
)
_POOLS = ("send", "pull", "litePull", "query", "ack")
"""RocketMQ's thread pools, whose queues are always empty here: requests are handled in the turn they arrive in."""


class RuntimeInfoProcessor(Feature):
    """Handle requests for runtime statistics."""

    def __init__(self, kernel: Kernel, stats: Stats) -> None:
        """Begin."""
        self._store = kernel.store
        self._disk = kernel.disk
        self._sends = kernel.puts
        self._stats = stats
        self._schedule = kernel.schedule
        self._features = kernel.features
        self._turn = kernel.turn
        self._current = kernel.current
        self._started_ms = kernel.began.wall_ms

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.GET_BROKER_RUNTIME_INFO: Request(self._on_figures)}

    def _on_figures(self, _link: Link, command: Command, now: Now) -> Command | None:
        table = self._identity(now) | self._puts() | self._rates() | self._days() | self._log(now)
        table |= _idle() | self._features.figures(now)
        return command.answer(ResponseCode.SUCCESS, body=dumps({"table": table}))

    def _identity(self, now: Now) -> dict[str, str]:
        return {
            "bootTimestamp": str(self._started_ms),
            "runtime": runtime_text(now.wall_ms - self._started_ms),
            "brokerActive": str(self._turn.serving.is_master).lower(),
            "brokerVersion": str(VERSION_SPOKEN),
            "brokerVersionDesc": VERSION_NAME,
            "tandemqVersion": __version__,
            "startAcceptSendRequestTimeStamp": "0",
        }

    def _puts(self) -> dict[str, str]:
        puts, stats = self._sends, self._stats
        times = stats.put_times_so_far()
        return {
            "putMessageTimesTotal": str(puts.count),
            "putMessageSizeTotal": str(puts.bytes),
            "putMessageAverageSize": f"{puts.bytes / max(1, puts.count):.4f}",
            "putMessageFailedTimes": str(stats.failed_puts),
            "putMessageEntireTimeMax": str(times.highest),
            "putMessageDistributeTime": "null" if stats.last_put_times is None else distribution(stats.last_put_times),
            "putLatencyMin": str(times.lowest),
            "putLatencyMax": str(times.highest),
            "putLatency50": f"{times.percentile(50):.2f}",
            "putLatency90": f"{times.percentile(90):.2f}",
            "putLatency99": f"{times.percentile(99):.2f}",
            "putLatency999": f"{times.percentile(99.9):.2f}",
            "getMessageEntireTimeMax": "0",
        }

    def _rates(self) -> dict[str, str]:
        rates = self._stats.rates
        found, missed = rates("finds"), rates("misses")
        given = _three(rates("given"))
        return {
            "putTps": _three(rates("puts")),
            "getFoundTps": _three(found),
            "getMissTps": _three(missed),
            "getTotalTps": _three(Rates(*map(add, found, missed))),
            "getTransferedTps": given,
            "getTransferredTps": given,
        }

    def _days(self) -> dict[str, str]:
        day, totals = self._stats.day, self._stats.totals()
        return {
            "msgPutTotalYesterdayMorning": str(day.puts_yesterday),
            "msgPutTotalTodayMorning": str(day.puts_today),
            "msgPutTotalTodayNow": str(totals.puts),
            "msgGetTotalYesterdayMorning": str(day.gets_yesterday),
            "msgGetTotalTodayMorning": str(day.gets_today),
            "msgGetTotalTodayNow": str(totals.given),
        }

    def _log(self, now: Now) -> dict[str, str]:
        store_log, usage = self._store.log, self._disk.usage()
        ratio = f"{usage.ratio:.4f}"
        return {
            "commitLogMinOffset": str(store_log.start),
            "commitLogMaxOffset": str(store_log.written_end),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._current.config.store_path}/commitlog": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": capacity_text(usage),
            "remainHowManyDataToFlush": bytes_text(store_log.written_end - store_log.flushed_offset),
            "remainHowManyDataToCommit": bytes_text(0),
            "remainTransientStoreBufferNumbs": str(NO_LIMIT),
            "earliestMessageTimeStamp": str(self._earliest_ms(now)),
            "dispatchBehindBytes": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "loopLagMax": str(self._schedule.lag_ms_max(now)),
        }

    def _earliest_ms(self, now: Now) -> int:
        """Return the store time of the first record in the log; -1 if there is none."""
        start = self._store.log.start
        if start >= self._store.log.written_end:
            return -1
        return min(now.wall_ms, self._store.store_time(start, 0) or -1)


def _idle() -> dict[str, str]:
    """Return the keys of parts that only RocketMQ has, with values of empty queues."""
    found = {"EndTransactionQueueSize": "0", "EndTransactionThreadPoolQueueCapacity": "0"}
    for pool in _POOLS:
        found[f"{pool}ThreadPoolQueueSize"] = "0"
        found[f"{pool}ThreadPoolQueueCapacity"] = "0"
        found[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return found


def _three(rates: Rates) -> str:
    return " ".join(f"{rate:.4f}" for rate in rates)


def distribution(times: Histogram) -> str:
    """Format a histogram of send times in RocketMQ's thirteen ranges."""
    return " ".join(f"{name}:{times.between(start, end)}" for name, start, end in _BUCKETS)


def runtime_text(elapsed_ms: int) -> str:
    """Format a duration in RocketMQ's form."""
    seconds = max(0, elapsed_ms) // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"


def bytes_text(count: int) -> str:
    """Format bytes as `17 B`, `1.5 KiB`, `931.5 GiB`: base 1024, one decimal."""
    if count < 1024:
        return f"{count} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} EiB"


def capacity_text(usage: DiskUsage) -> str:
    """Format size and free space of the device; tools split this text at single spaces."""
    return f"Total : {bytes_text(usage.total_bytes)}, Free : {bytes_text(usage.free_bytes)}."
