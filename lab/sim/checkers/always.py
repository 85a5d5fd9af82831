"""Checks during a run: send statuses, offsets, restarts.

    I17  a send status is true when the producer receives it: written, on the device, on as many slaves as required
    I5   one (topic, queue, offset) of a group never refers to two different messages
    I1   a synced log is there after a restart; after a kill of the process alone the whole log is there
    I7   a committed offset comes from a consumer, never moves back by itself, and survives a restart; an offset beyond
         the end of its queue, after a loss, is set to that end before the broker accepts messages

A loss that a level does not promise to survive is allowed, but only where it can happen: when a master whose machine
went down accepts messages again, what was known beyond its log end is dropped. `final` holds the checks at the end.
"""

from lab.sim.checkers.access import GUARDED_GROUP
from lab.sim.checkers.limits import POPPING_GROUP
from lab.sim.checkers.logical_queues import LogicalQueues
from lab.sim.checkers.logs import read_log
from lab.sim.checkers.model import POP_GROUP, STATIC_TOPIC, Attempt, DeliveredMessage, ExpectedState, QueuePlace
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.world import MS, SECOND, Violation, World
from tandemq.broker.node import Broker
from tandemq.codec.record.record import Record, parse_record, property_value
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.pop import REVIVE_GROUP

POLL_US = SECOND
LATE_US = 20 * SECOND
"""Maximum age of a reported offset, or of a master's offset, that may replace a higher one."""
OFFSETS_FILE = "config/consumerOffset.json"
OWN_SUFFIXES = tuple(
    f"@{group}" for group in ("CID_RMQ_SYS_TRANS", REVIVE_GROUP, POP_GROUP, POPPING_GROUP, GUARDED_GROUP)
)
"""Ends of the keys of offsets that brokers move by themselves, and no consumer commits: transactions and pops; and of
those that are judged by I26."""
Offsets = dict[str, dict[int, int]]
"""Offsets by "topic@group" and queue id."""


class ContinuousChecks:
    """The checks that run while one seed runs."""

    def __init__(self, world: World, cluster: Cluster, expected: ExpectedState) -> None:
        self._world = world
        self._cluster = cluster
        self._expected = expected
        self._ledger: dict[QueuePlace, tuple[str, int]] = {}
        self._lost: set[tuple[QueuePlace, str, int]] = set()
        """Ledger entries lost with a master's log tail. Consumers may still hold such messages."""
        self._recovering: dict[str, int] = {}
        """Masters that may have lost bytes and have not accepted messages since, to their log end."""
        self._ends: dict[str, tuple[int, int, int]] = {}
        self._saved: dict[str, Offsets] = {}
        self._offsets: dict[str, tuple[int, dict[tuple[str, int], int]]] = {}
        self._corrected: dict[str, set[tuple[str, int, int]]] = {}
        """Broker group to offsets that its masters set to a queue's end on activation: ("topic@group", queue id,
        offset).
        """
        self._had: dict[tuple[str, str, int], dict[int, int]] = {}
        """(broker group, "topic@group", queue id) to the offsets its master had, and when it last had each."""
        self._is_safety_only = False
        self.statuses: dict[int, int] = {}
        self.logical: LogicalQueues | None = None
        """The logical queues of the static topic, if there is one."""
        cluster.on_start = self.started
        cluster.on_stop = self.stopped
        cluster.on_turn = self.turned
        world.after(POLL_US, self._poll)

    def keep_safety_only(self) -> None:
        """Check from now on only what holds whatever devices lose: no errors, and rights as `_look_at_rights` says."""
        self._cluster.on_start = self._cluster.on_stop = None
        self._cluster.on_turn = self._turned_beyond_tolerance
        self._expected.on_delivery = lambda _: None
        self._expected.on_shown = lambda _address, _log_offset: None
        self._is_safety_only = True

    def _turned_beyond_tolerance(self, host: Host) -> None:
        if host.broker is not None:
            self._judge_errors(host, host.broker)
            self._look_at_rights(host)

    def _judge_errors(self, host: Host, broker: Broker) -> None:
        if broker.faults:
            raise Violation("I16", f"{host.name} had an internal error on a connection; the log names it")

    def _look_at_rights(self, _host: Host) -> None:
        """Check the rights of a member after a turn; those of fixed roles are fixed."""

    # Messages and their places.

    def note(self, place: QueuePlace, key: str, log_offset: int, who: str) -> None:
        """Record that `who` reports a message at a place.

        Raises:
            Violation: I5, another message is known there.
        """
        known = self._ledger.setdefault(place, (key, log_offset))
        if known != (key, log_offset):
            raise Violation("I5", f"{place} is {known} for one and {(key, log_offset)} for {who}")

    def given(self, given: DeliveredMessage) -> None:
        """Check a message delivered to a consumer."""
        place = QueuePlace(given.group, given.topic, given.queue_id, given.queue_offset)
        if (place, given.key, given.log_offset) not in self._lost:
            self.note(place, given.key, given.log_offset, f"{given.broker}, read by a consumer")

    def turned(self, host: Host) -> None:
        """Check a broker after one of its turns."""
        broker = host.broker
        if broker is None:
            return
        self._judge_errors(host, broker)
        self._look_at(host, broker)

    def _look_at(self, host: Host, broker: Broker) -> None:
        """Check the state that a turn left."""
        if not host.is_master or host.name not in self._recovering:
            return
        if broker.puts.refusal is None:
            self._forget(host, self._recovering.pop(host.name))
            self._judge_corrections(host)
        else:
            self._recovering[host.name] = broker.store.log.written_end

    def _forget(self, host: Host, log_end: int) -> None:
        """Drop the messages beyond the log end of a master that lost unsynced bytes."""
        name = host.group.name
        for place, (key, where) in list(self._ledger.items()):
            if place[0] == name and where >= log_end:
                del self._ledger[place]
                self._lost.add((place, key, where))

    # Send statuses.

    def acked(self, attempt: Attempt) -> None:
        """Check that a message reported as stored is stored, as safely as the status says."""
        assert attempt.code is not None, "it was answered"
        self.statuses[attempt.code] = self.statuses.get(attempt.code, 0) + 1
        group = next(group for group in self._cluster.plan.groups if group.name == attempt.group)
        master, *slaves = self._cluster.members(group)
        self._judge_time(attempt, master)
        flushed = says_flushed(attempt, master)
        copied = group.role == "SYNC_MASTER" and attempt.waits and attempt.code == 0
        needed = group.copies - 1
        for index, log_offset in enumerate(attempt.log_offsets):
            message = attempt.messages[index]
            data = self._record_on(master, log_offset, attempt, safe=False)
            if data is None:
                continue
            record = parse_record(data, 0, len(data))
            if isinstance(record, str) or property_value(record.properties, b"UNIQ_KEY") != message.key.encode():
                raise Violation(
                    "I17", f"{master.name} answered {attempt.code} for {message.key}; at {log_offset} it has {record}"
                )
            self._place(attempt, index, record)
            if flushed:
                self._judge_flush(master, log_offset, data, attempt)
            if copied:
                self._judge_copies(slaves, needed, log_offset, data, attempt, safe=flushed and attempt.code == 0)

    def _place(self, attempt: Attempt, index: int, record: Record) -> None:
        message = attempt.messages[index]
        if self.logical is not None and attempt.is_logical:
            self.logical.stored(attempt, index, record)
            place = QueuePlace(attempt.group, STATIC_TOPIC, record.queue_id, record.queue_offset)
            self.note(place, message.key, record.log_offset, "its producer")
            return
        topic, queue_id = message.first_topic, message.first_queue(attempt.queue_id)
        found = (record.topic.decode(), record.queue_id, record.queue_offset)
        if found != (topic, queue_id, attempt.queue_offset + index):
            raise Violation("I17", f"answered {topic}/{queue_id}@{attempt.queue_offset + index}, stored at {found}")
        self.note(QueuePlace(attempt.group, *found), message.key, record.log_offset, "its producer")

    def _judge_time(self, attempt: Attempt, master: Host) -> None:
        plan, config = master.group, master.config
        took_ms = (attempt.answered_us - attempt.sent_us) // MS
        is_late = plan.flush == "SYNC_FLUSH" and took_ms >= config.sync_flush_timeout_ms
        if attempt.code == ResponseCode.FLUSH_DISK_TIMEOUT and not is_late:
            raise Violation("I17", f"{master.name} says FLUSH_DISK_TIMEOUT after {took_ms} ms")
        if attempt.code == ResponseCode.FLUSH_SLAVE_TIMEOUT and (
            plan.role != "SYNC_MASTER" or took_ms < config.slave_timeout_ms
        ):
            raise Violation("I17", f"{master.name} says FLUSH_SLAVE_TIMEOUT after {took_ms} ms")
        if attempt.code == ResponseCode.SLAVE_NOT_AVAILABLE and plan.role != "SYNC_MASTER":
            raise Violation("I17", f"{master.name} says SLAVE_NOT_AVAILABLE and is no SYNC_MASTER")

    def _disturbed(self, host: Host, attempt: Attempt) -> bool:
        """Return whether a host lost bytes since an attempt was sent."""
        return bool(host.flips) or any(when >= attempt.sent_us for when in host.losses_us)

    def _record_on(
        self, host: Host, log_offset: int, attempt: Attempt, size: int | None = None, *, safe: bool
    ) -> bytes | None:
        """Return the record at an offset from a host's disk; None if it may have been lost since.

        `size`: size of the record on another host; without it the record's own length field counts.
        """
        segment = host.config.segment_bytes
        if self._disturbed(host, attempt):
            return None
        disk = host.machine.disk
        if size is None:
            size = int.from_bytes(read_log(disk, log_offset, log_offset + 4, segment))
        return read_log(disk, log_offset, log_offset + min(size, segment), segment, safe=safe)

    def _judge_flush(self, host: Host, log_offset: int, data: bytes, attempt: Attempt) -> None:
        if self._record_on(host, log_offset, attempt, len(data), safe=True) != data:
            raise Violation(
                "I17", f"{host.name} answered {attempt.code} at {log_offset}, and its disk does not have it"
            )

    def _judge_copies(
        self, slaves: list[Host], needed: int, log_offset: int, data: bytes, attempt: Attempt, *, safe: bool
    ) -> None:
        have = sum(
            1 for slave in slaves if self._record_on(slave, log_offset, attempt, len(data), safe=safe) in (None, data)
        )
        if have < needed:
            raise Violation(
                "I17", f"{attempt.group} answered {attempt.code} at {log_offset}; {have} of {needed} slaves have it"
            )

    # Restarts.

    def stopped(self, host: Host) -> None:
        """Note the state of a broker whose process is about to end."""
        broker = host.broker
        assert broker is not None, "it ran"
        self._ends[host.name] = (broker.store.log.written_end, broker.store.log.flushed_offset, len(host.losses_us))
        saved = offsets_on(host)
        is_following = broker.failover is not None and not broker.failover.is_holder
        self._saved[host.name] = _not_above(saved, broker.offsets.table) if is_following else saved

    def started(self, host: Host) -> None:
        """Check a broker whose process has started."""
        broker = host.broker
        assert broker is not None, "it runs"
        self._offsets.pop(host.name, None)
        before = self._ends.get(host.name)
        if host.is_master and (host.name in self._recovering or before is None or before[2] != len(host.losses_us)):
            self._recovering[host.name] = broker.store.log.end
        elif host.is_master:
            self._judge_corrections(host)
        if host.is_master:
            self._note_offsets(host, offsets_in(host))
        if before is None or host.flips or host.wipes_us:
            return
        written, flushed, losses = before
        least = written if losses == len(host.losses_us) else flushed
        if broker.store.log.end < least:
            raise Violation(
                "I1", f"{host.name} had its log up to {least}, and after its restart up to {broker.store.log.end}"
            )
        for key, queues in self._saved.get(host.name, {}).items():
            for queue_id, offset in queues.items():
                now = broker.offsets.table.get(key, {}).get(queue_id, -1)
                if now < offset and not (host.is_master and now == self._end_of(host, key, queue_id)):
                    raise Violation("I7", f"{host.name} had saved {offset} for {key}/{queue_id} and starts with {now}")

    # Committed offsets.

    def _judge_corrections(self, host: Host) -> None:
        """Check that a master moved offsets back only to the end of a queue, with no message behind."""
        assert host.broker is not None, "it runs"
        corrected = host.broker.offsets.corrected
        back = self._corrected.setdefault(host.group.name, set())
        back.update((key, queue_id, now) for key, queue_id, _, now in corrected)
        for key, queue_id, before, now in corrected if not host.flips else ():
            topic = key.rpartition("@")[0]
            if any((host.group.name, topic, queue_id, offset) in self._ledger for offset in range(now, before)):
                raise Violation(
                    "I7", f"{host.name} set {key}/{queue_id} from {before} to {now}, and there are messages"
                )

    def _end_of(self, host: Host, key: str, queue_id: int) -> int:
        assert host.broker is not None, "it runs"
        queue = host.broker.store.queues.get((key.rpartition("@")[0], queue_id))
        return queue.max_offset if queue is not None else 0

    def _poll(self) -> None:
        if self._is_safety_only:
            return
        for host in self._cluster.hosts:
            if host.broker is not None:
                self._look_at_offsets(host)
        self._world.after(POLL_US, self._poll)

    def _look_at_offsets(self, host: Host) -> None:
        since_us, before = self._offsets.get(host.name, (0, {}))
        present = offsets_in(host)
        for (key, queue_id), offset in present.items():
            known = before.get((key, queue_id))
            if known == offset:
                continue
            topic, _, group = key.rpartition("@")
            asked = self._expected.commits.get((host.group.name, topic, queue_id, group), {})
            if self.logical is not None and topic == STATIC_TOPIC:
                asked = self.logical.physical_commits(host.group.name, queue_id)
            if (key, queue_id, offset) in self._corrected.get(host.group.name, ()):
                continue
            if offset not in asked:
                raise Violation("I7", f"{host.name} has {offset} for {key}/{queue_id}, and no consumer committed that")
            is_recent = asked[offset] >= since_us - LATE_US
            if known is not None and offset < known and not is_recent and not self._copied(host, key, queue_id, offset):
                raise Violation("I7", f"{host.name} went back from {known} to {offset} for {key}/{queue_id}")
        self._offsets[host.name] = (self._world.now_us, present)
        if host.is_master:
            self._note_offsets(host, present)

    def _note_offsets(self, host: Host, present: dict[tuple[str, int], int]) -> None:
        """Note a master's offsets: its slaves may copy them, even over higher ones of their own."""
        for (key, queue_id), offset in present.items():
            self._had.setdefault((host.group.name, key, queue_id), {})[offset] = self._world.now_us

    def _copied(self, host: Host, key: str, queue_id: int, offset: int) -> bool:
        """Return whether a slave's offset is one that its master has, or had a moment ago."""
        had = self._had.get((host.group.name, key, queue_id), {})
        return not host.is_master and had.get(offset, -LATE_US) >= self._world.now_us - LATE_US


def says_flushed(attempt: Attempt, master: Host, *, ahead_ppm: int = 0) -> bool:
    """Return whether a status says that the message is on the master's device.

    A missing replica takes precedence over a late flush in the status. `ahead_ppm`: how much faster the master's
    clock may run.
    """
    took_us = attempt.answered_us - attempt.sent_us
    took_ms = (took_us + took_us * ahead_ppm // 1_000_000) // MS
    is_late = attempt.code != ResponseCode.SUCCESS and took_ms >= master.config.sync_flush_timeout_ms
    return (
        master.group.flush == "SYNC_FLUSH"
        and attempt.waits
        and attempt.code != ResponseCode.FLUSH_DISK_TIMEOUT
        and not is_late
    )


def offsets_in(host: Host) -> dict[tuple[str, int], int]:
    """Return the consumer offsets of a running broker, without those that brokers move by themselves."""
    assert host.broker is not None, "it runs"
    table = host.broker.offsets.table
    return {
        (key, queue_id): offset
        for key, queues in table.items()
        if not key.endswith(OWN_SUFFIXES)
        for queue_id, offset in queues.items()
    }


def _not_above(saved: Offsets, held: Offsets) -> Offsets:
    """Return saved offsets, none above the broker's own: a slave follows a master that lost offsets in a power loss."""
    return {
        key: {queue_id: min(offset, held.get(key, {}).get(queue_id, -1)) for queue_id, offset in queues.items()}
        for key, queues in saved.items()
    }


def offsets_on(host: Host) -> Offsets:
    """Return the consumer offsets on a host's disk, without those that brokers move by themselves.

    A table that a flipped byte has made unreadable has none.
    """
    raw = host.machine.disk.peek(OFFSETS_FILE, 1 << 20, 0, safe=False)
    if not raw:
        return {}
    try:
        return {
            key: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            for key, queues in loads(raw)["offsetTable"].items()
            if not key.endswith(OWN_SUFFIXES)
        }
    except (ProtocolError, AttributeError, KeyError, TypeError, ValueError):
        assert host.flips, "nothing else damages a table"
        return {}
