"""The demo's scenario.

    cluster ── 2 × (SYNC_MASTER + slave), child processes; mode elect, slave-consume or static
    load    ── producer ─────────────── 45 % ────────────────────── 70 % ──────────────── 100 %
                                         │ SIGKILL: master of broker-a   │ it is restarted
    group   ── mean per tag ── paused ───┴ reads broker-a from its slave ┴ both groups ────┘
    elect   ── writes of broker-a go to its new master; slave-consume: offset handover after the restart
    then    ── logs ─► lake ─► gold (Spark), audit of the replicas
    checks  ── acknowledged = delivered? · figures equal to those of the file and the lake? · replicas equal?

The receiver is paused shortly before the kill, so that unread messages of broker-a remain that must be read from its
slave. All results are checked against the records of sender and receiver and against the file.
"""

import asyncio
import contextlib
import dataclasses
import math
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tandemq.client.aio.admin import Admin
from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.demo.narration import Narration
from tandemq.demo.rows import Source
from tandemq.demo.statistics import Figures, TagStatistics
from tandemq.demo.store_comparison import Comparison, compare_stores
from tandemq.demo.traffic import Ledger, Receiver, Sender
from tandemq.errors import ConfigError, LocalError, TandemError
from tandemq.run.children import ChildCluster

if TYPE_CHECKING:
    from tandemq.demo.pipeline import Gold, PipelineResult

TOPIC = "Departures"
QUEUES = 4
KILLED = "broker-a"
HOLD_AT, KILL_AT, BACK_AT = 0.35, 0.45, 0.70
PATIENCE_S = 60.0
PACE_S = 20.0
"""In `elect`: time over which messages are sent while the master is dead, if no other member takes over."""
CLOSE = 1e-9
"""Tolerance for means of fractions, whose sums depend on the order; means of whole numbers must be equal."""
_POLL_S = 0.05
_SETTINGS: dict[str, str | int | float | bool] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 20 * 30_000,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
    "registerNameServerPeriodMin": 1_000,
    "registerNameServerPeriod": 5_000,
    "haReconnectInterval": 500,
    "metadataSyncInterval": 1_000,
    **ON_ANY_DISK,
}


@dataclass(slots=True)
class DemoResult:
    """Result of the demo. `faults`: the checks that failed, empty if all hold."""

    mode: str = Mode.STATIC.value
    sent: int = 0
    acknowledged: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    delivered: int = 0
    duplicates: int = 0
    missing: int = 0
    consumed_meanwhile: int = 0
    """Messages of the killed master's group delivered between its death and its return."""
    slave_was_read: bool = False
    """Whether queues of that group were read from its slave meanwhile."""
    seconds_without_delivery: float = 0.0
    seconds_without_delivery_of_killed_group: float = 0.0
    seconds_without_writes: float = 0.0
    seconds_without_writes_of_killed_group: float | None = None
    """None: it accepted no message before its master was back."""
    replica_bytes: int = 0
    replica_differences: list[str] = field(default_factory=list)
    tags: dict[str, dict[str, Any]] = field(default_factory=dict)
    pipeline: "PipelineResult | None" = None
    """Result of the pipeline; None if it was left out."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the values for `--json`."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of the demo."""

    source: Source
    directory: Path | None = None
    """Directory for stores and logs; None: a temporary one that is removed if all went well."""
    has_pipeline: bool = True
    """Whether the logs go through the data pipeline at the end."""
    mode: Mode = Mode.ELECT
    """Mode of the groups: the reaction to the death of a master."""


def run(options: DemoOptions, narration: Narration) -> DemoResult:
    """Run the demo.

    Raises:
        LocalError: the input cannot be read.
        ConfigError: the pipeline is wanted, and Spark or Java is missing.
        TandemError: the cluster cannot be started.
    """
    if options.has_pipeline:
        _check_pipeline()
    narration.title(f"TandemQ demo: {options.source.title}")
    expected = TagStatistics(options.source.columns.value).add_all(options.source.values())
    if not expected.rows:
        raise LocalError(f"{options.source.path} has no rows")
    narration.step(f"read {expected.rows:,} rows with {len(expected.by_tag)} tags, the figures to compare with")
    directory = options.directory or Path(tempfile.mkdtemp(prefix="tandemq-demo-"))
    if options.directory is not None and directory.exists() and any(directory.iterdir()):
        raise LocalError(f"{directory} is not empty", hint="give a new directory")
    demo = _Demo(options, expected, directory, narration)
    asyncio.run(demo.run())
    if options.has_pipeline:
        demo.run_pipeline()
    result = demo.check()
    if options.directory is not None or result.faults:
        narration.step(f"stores, configuration and logs are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
    return result


def _check_pipeline() -> None:
    """Check the requirements of the pipeline before the cluster starts."""
    try:
        from tandemq.demo import pipeline  # noqa: PLC0415  # the rest of the demo needs no Spark
    except ImportError as error:
        raise ConfigError(
            f"Spark is not installed: {error}",
            hint="pip install 'tandemq[spark]', or leave the pipeline out: --no-pipeline",
        ) from error
    pipeline.check_spark()


class _Demo:
    def __init__(self, options: DemoOptions, expected: TagStatistics, directory: Path, narration: Narration) -> None:
        self._source = source = options.source
        self._mode = options.mode
        self._expected = expected
        self._narration = narration
        self._directory = directory
        self._note = ""
        self._total = expected.rows
        self._seen = TagStatistics(source.columns.value)
        self._cluster = ChildCluster(directory, groups=2, slaves=1, mode=options.mode, settings=_SETTINGS)
        self._ledger = Ledger()
        self._result = DemoResult(options.mode.value)
        self._compared_files = 0

    async def run(self) -> None:
        narration, cluster = self._narration, self._cluster
        try:
            await asyncio.to_thread(cluster.start)
            narration.step(
                f"started a name server at {cluster.name_servers} and two broker groups, each a SYNC_MASTER and its "
                f"slave: 5 processes; mode {self._mode.value}"
            )
            await self._load()
            await asyncio.to_thread(cluster.wait_until, cluster.in_sync)
        finally:
            narration.end_load()
            await asyncio.to_thread(cluster.close)
        narration.step("stopped all brokers")
        self._result.faults += [f"{name} did not stop cleanly" for name in cluster.unclean]
        self._compare_replicas()

    def run_pipeline(self) -> None:
        """Run the logs through Spark. A failure there is a fault of the demo and does not end it."""
        from tandemq.demo import pipeline  # noqa: PLC0415  # the rest of the demo needs no Spark

        stores = {
            name: (self._cluster.broker(name, 0).store, self._cluster.broker(name, 1).store) for name in self._groups()
        }
        wanted = pipeline.PipelineJob(stores, TOPIC, self._source.columns.value, self._directory)
        try:
            self._result.pipeline = pipeline.run(wanted, self._narration)
        except TandemError as error:
            self._result.faults.append(f"the pipeline failed: {error}")

    # The load, and the events during it.

    async def _load(self) -> None:
        name_servers = self._cluster.name_servers
        async with Admin(name_servers) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
        # Small compared with the input, so that small inputs too are spread over the whole demo.
        batch, prefetch = (min(most, max(8, self._total // 400)) for most in (128, 256))
        # In `elect` a failed broker is not avoided, because a new master takes over soon.
        avoids = self._mode is not Mode.ELECT
        sender = Sender(name_servers, TOPIC, self._source.read(), self._ledger, batch=batch, avoids=avoids)
        receiver = Receiver(name_servers, TOPIC, self._seen, self._ledger, prefetch=prefetch)
        self._sender, self._receiver = sender, receiver
        await receiver.start()
        receiving = asyncio.create_task(receiver.run())
        sending = asyncio.create_task(sender.run())
        reporting = asyncio.create_task(self._report_progress())
        try:
            await self._until(lambda: len(receiver.assigned()) == 2 * QUEUES, "the consumer was assigned no queues")
            self._narration.step(
                f"the topic has {QUEUES} queues per group; a consumer group of one reads all {2 * QUEUES}"
            )
            self._narration.begin_load(self._total)
            await self._events(sender, receiver, sending)
            await self._until(lambda: not self._ledger.missing, "not all messages were delivered", fails=False)
        finally:
            for task in (sending, reporting):
                task.cancel()
            with contextlib.suppress(TandemError):
                await receiver.close()
            results = await asyncio.gather(sending, receiving, reporting, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        self._take_figures(sender, receiver)

    async def _events(self, sender: Sender, receiver: Receiver, sending: "asyncio.Task[None]") -> None:
        share = self._share_sent
        # Small inputs would be sent before any event, so the load stops at each mark.
        sender.allow(int(self._total * HOLD_AT))
        await self._until(lambda: share() >= HOLD_AT * 0.98, "the load makes no progress")
        receiver.hold()
        sender.allow(int(self._total * KILL_AT))
        await self._until(lambda: share() >= KILL_AT * 0.98, "the load makes no progress")
        await self._kill(sender, receiver)
        await self._write_on(sender)
        await self._until(lambda: share() >= BACK_AT * 0.98, "the load does not continue without the master")
        sender.end_watch()
        await self._until(lambda: self._unread() == 0, "not all messages were read from the slave")
        await self._bring_back(receiver)
        sender.allow(1 << 62)
        await self._until(sending.done, "the load does not end")
        self._narration.step(f"all rows are sent: {len(self._ledger.group_of):,} messages acknowledged")

    async def _kill(self, sender: Sender, receiver: Receiver) -> None:
        master = self._cluster.broker(KILLED)
        self._slave_address = self._cluster.broker(KILLED, 1).address
        pid = master.pid
        if self._mode is not Mode.ELECT:
            sender.allow(int(self._total * BACK_AT))
        await asyncio.to_thread(master.kill)
        sender.watch_gaps(KILLED)
        receiver.watch_gaps(KILLED)
        self._read_at_kill = receiver.state.read_from[KILLED]
        self._narration.injected(
            f"SIGKILL to the master of {KILLED} (process {pid}): {self._unread():,} of its messages are acknowledged "
            "and not yet consumed"
        )
        self._note = f"one broker of {KILLED} is down"
        receiver.resume()
        writing = asyncio.create_task(self._keep_writing(sender))
        try:
            await self._until(self._slave_is_read, f"{KILLED} is not read from its slave")
        finally:
            writing.cancel()
        self._result.slave_was_read = True
        self._narration.step(f"reads continue from its slave at {self._slave_address}, writes on broker-b")

    async def _keep_writing(self, sender: Sender) -> None:
        """In `elect`: allow a little at a time, so that messages are left to send when a new master takes over."""
        most, step = int(self._total * BACK_AT), max(1, int(self._total * (BACK_AT - KILL_AT) * _POLL_S / PACE_S))
        while self._mode is Mode.ELECT and sender.gap_of_group_s is None:
            sender.allow(min(most, sender.allowed + step))
            await asyncio.sleep(_POLL_S)

    async def _write_on(self, sender: Sender) -> None:
        """In `elect`: wait until the group that lost its master accepts messages again; then allow the rest."""
        if self._mode is Mode.ELECT:
            writing = asyncio.create_task(self._keep_writing(sender))
            try:
                await self._until(lambda: sender.gap_of_group_s is not None, "", fails=False)
            finally:
                writing.cancel()
            if sender.gap_of_group_s is not None:
                self._narration.step(f"the slave is the master now: {KILLED} accepts messages again")
        sender.allow(int(self._total * BACK_AT))

    async def _bring_back(self, receiver: Receiver) -> None:
        self._result.consumed_meanwhile = receiver.state.read_from[KILLED] - self._read_at_kill
        self._narration.step(
            f"{self._result.consumed_meanwhile:,} messages of {KILLED} were consumed while its master was dead"
        )
        master = self._cluster.broker(KILLED)
        await asyncio.to_thread(master.start)
        await asyncio.to_thread(self._cluster.wait_until, self._cluster.all_registered)
        if self._mode is not Mode.STATIC:
            await asyncio.to_thread(self._cluster.wait_until, self._cluster.in_sync)
        now = {
            Mode.STATIC: "its slave follows it again",
            Mode.SLAVE_CONSUME: "its slave has handed over the consumers' offsets",
            Mode.ELECT: "it copies from the new master and is in sync",
        }[self._mode]
        self._narration.step(f"the master of {KILLED} is back (process {master.pid}) and registered; {now}")
        self._note = ""

    def _slave_is_read(self) -> bool:
        places = {address for queue, address in self._receiver.reading_from().items() if queue.broker_name == KILLED}
        if self._slave_address not in places:
            return False
        # With a registry the slave may be asked before it has permission to answer.
        return self._mode is Mode.STATIC or bool(self._cluster.broker(KILLED, 1).failover_status().get("mayRead"))

    def _unread(self) -> int:
        return self._ledger.unread[KILLED]

    def _share_sent(self) -> float:
        return len(self._ledger.group_of) / self._total

    async def _until(self, condition: Callable[[], bool], otherwise: str, *, fails: bool = True) -> None:
        """Wait for a condition as long as there is progress."""
        loop = asyncio.get_running_loop()
        stood, since = (-1, -1), loop.time()
        while not condition():
            await asyncio.sleep(_POLL_S)
            stands = (len(self._ledger.group_of), len(self._ledger.delivered))
            if stands != stood:
                stood, since = stands, loop.time()
            elif loop.time() - since > PATIENCE_S:
                if fails:
                    raise TandemError(f"{otherwise}: no progress for {PATIENCE_S:g} s")
                return

    async def _report_progress(self) -> None:
        while True:
            self._narration.load(len(self._ledger.group_of), len(self._ledger.delivered), self._note)
            await asyncio.sleep(_POLL_S)

    # The result.

    def _take_figures(self, sender: Sender, receiver: Receiver) -> None:
        found, sent, ledger = self._result, sender.state, self._ledger
        found.sent = sent.messages
        found.acknowledged = len(ledger.group_of)
        found.statuses = dict(sent.statuses)
        found.delivered = len(ledger.delivered)
        found.duplicates = receiver.state.duplicates
        found.missing = len(ledger.group_of.keys() - ledger.delivered)
        found.seconds_without_delivery = round(receiver.longest_gap_s, 3)
        found.seconds_without_delivery_of_killed_group = round(receiver.longest_gap_of_group_s, 3)
        found.seconds_without_writes = round(sender.longest_gap_s, 3)
        if sender.gap_of_group_s is not None:
            found.seconds_without_writes_of_killed_group = round(sender.gap_of_group_s, 3)
        found.faults += [f"a batch was not acknowledged: {text}" for text in sent.failures[:3]]

    def _compare_replicas(self) -> None:
        total = Comparison()
        for name in self._groups():
            found = compare_stores(self._cluster.broker(name, 0).store, self._cluster.broker(name, 1).store)
            total.files += found.files
            total.bytes += found.bytes
            total.differences += [f"{name}: {text}" for text in found.differences]
        self._result.replica_bytes = total.bytes
        self._result.replica_differences = total.differences
        self._compared_files = total.files

    def _groups(self) -> list[str]:
        return sorted({broker.broker_name for broker in self._cluster.brokers})

    def check(self) -> DemoResult:
        """Compare everything, and print the result."""
        found, narration = self._result, self._narration
        faults = found.faults
        gold = found.pipeline.gold if found.pipeline is not None else {}
        for tag in sorted({*self._expected.by_tag, *self._seen.by_tag, *gold}):
            self._check_tag(tag, gold.get(tag))
        narration.table(self._table())
        unsent = self._total - found.sent
        unacknowledged = found.sent - found.acknowledged
        unasked = found.delivered - (found.acknowledged - found.missing)
        _check(faults, unsent == 0, f"{unsent} rows were not sent")
        _check(faults, unacknowledged == 0, f"{unacknowledged} messages were sent but not acknowledged")
        _check(faults, found.missing == 0, f"{found.missing} acknowledged messages are missing")
        _check(faults, unasked == 0, f"{unasked} messages were delivered but never acknowledged")
        _check(faults, found.slave_was_read, f"{KILLED} was not read from its slave")
        _check(faults, found.consumed_meanwhile > 0, f"no message of {KILLED} was consumed while its master was dead")
        if self._mode is Mode.ELECT:
            is_written = found.seconds_without_writes_of_killed_group is not None
            _check(faults, is_written, f"{KILLED} accepted no message while its old master was dead")
        faults += [f"replicas: {text}" for text in found.replica_differences]
        if found.pipeline is not None:
            faults += found.pipeline.faults
        found.seconds = round(narration.seconds, 1)
        self._print_result(found)
        return found

    def _check_tag(self, tag: str, gold: "Gold | None") -> None:
        found = self._result
        wanted, got = self._expected.by_tag.get(tag, Figures()), self._seen.by_tag.get(tag, Figures())
        row = {
            "rows": got.rows,
            "values": got.values,
            "mean": got.mean,
            "file_mean": wanted.mean,
            "equal": wanted == got,
        }
        if wanted != got:
            found.faults.append(f"{tag}: the messages give {got}, the file {wanted}")
        if found.pipeline is not None:
            like = gold is not None and is_like(gold, got) and is_like(gold, wanted)
            row |= {"gold_mean": gold.mean if gold is not None else None, "gold_equal": like}
            if not like:
                found.faults.append(f"{tag}: the lake gives {gold}, the messages {got}, the file {wanted}")
        found.tags[tag] = row

    def _print_result(self, found: DemoResult) -> None:
        narration = self._narration
        others = ", ".join(f"{name} {count:,}" for name, count in sorted(found.statuses.items()))
        narration.result(
            f"sent {found.sent:,}, acknowledged {found.acknowledged:,} ({others})",
            holds=found.sent == found.acknowledged == self._total,
        )
        narration.result(
            f"delivered {found.delivered:,}, lost {found.missing:,}, duplicates (by unique key) {found.duplicates:,}",
            holds=found.missing == 0,
        )
        narration.result(
            f"longest time without deliveries: {found.seconds_without_delivery:.2f} s; for messages of {KILLED} "
            f"{found.seconds_without_delivery_of_killed_group:.2f} s",
            holds=True,
        )
        own = found.seconds_without_writes_of_killed_group
        group = "until its master was back" if own is None else f"{own:.2f} s"
        narration.result(
            f"longest time without writes: {found.seconds_without_writes:.2f} s; on {KILLED} {group}",
            holds=self._mode is not Mode.ELECT or own is not None,
        )
        equal = all(row["equal"] for row in found.tags.values())
        narration.result(
            f"the figures of {len(found.tags)} tags {'equal' if equal else 'differ from'} those of the file",
            holds=equal,
        )
        replicas = "are equal, byte by byte" if not found.replica_differences else "differ"
        narration.result(
            f"replicas {replicas}: {found.replica_bytes / 1e6:,.0f} MB in {self._compared_files} files of each side",
            holds=not found.replica_differences,
        )
        if found.pipeline is not None:
            self._print_pipeline(found.pipeline)
        for fault in found.faults:
            narration.result(fault, holds=False)

    def _print_pipeline(self, pipeline: "PipelineResult") -> None:
        tags = self._result.tags
        equal = all(row["gold_equal"] for row in tags.values())
        self._narration.result(
            f"the gold table's figures of {len(tags)} tags {'equal' if equal else 'differ from'} those of the consumer "
            "and of the file",
            holds=equal,
        )
        diverging = sum(count for counts in pipeline.divergences.values() for count in counts.values())
        self._narration.result(
            f"the audit finds {diverging or 'no'} records that differ in {pipeline.audited_bytes / 1e6:,.0f} MB of log "
            f"of each side; the pipeline took {pipeline.seconds:g} s",
            holds=not pipeline.faults,
        )

    def _table(self) -> Table:
        names = self._source.names
        what = self._source.columns.value
        table = Table(title=f"mean {what} by {self._source.columns.tag}", title_justify="left")
        table.add_column(self._source.columns.tag)
        if names:
            table.add_column("name")
        has_gold = self._result.pipeline is not None
        for heading in ("messages", "with a value", "consumer's", *(["lake's"] if has_gold else []), "file's", ""):
            table.add_column(heading, justify="right")
        for tag, row in self._result.tags.items():
            cells = [tag, *([names.get(tag, "")] if names else []), f"{row['rows']:,}", f"{row['values']:,}"]
            means = [row["mean"], *([row["gold_mean"]] if has_gold else []), row["file_mean"]]
            equal = row["equal"] and row.get("gold_equal", True)
            table.add_row(*cells, *map(_number, means), "=" if equal else "≠")
        return table


def _check(faults: list[str], holds: bool, text: str) -> None:
    if not holds:
        faults.append(text)


def is_like(gold: "Gold", figures: Figures) -> bool:
    """Return whether the gold table has the same figures of a tag: exactly, where all values are whole numbers."""
    if (gold.messages, gold.values) != (figures.rows, figures.values):
        return False
    if gold.mean is None or figures.mean is None or isinstance(figures.total, int):
        return gold.mean == figures.mean
    return math.isclose(gold.mean, figures.mean, rel_tol=CLOSE, abs_tol=CLOSE)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
