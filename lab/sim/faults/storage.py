"""Faults of devices and files that go unnoticed by the calls themselves, in seeds of their own.

    live      a write that is lost or stored elsewhere, reads of older bytes, syncs not done before a power loss
    at rest   bits of queue entries, of the index and of system records; blocks of a file exchanged or copied; files
              that are cut, empty, missing or older

Within tolerance they strike one member of a group: others have the bytes, and everything must be repaired in the end.
Beyond it they strike any member, several at once, masters too; then only safety is checked.

An operator acts on the hint of a broker that refuses to start: see `Host`.
"""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from lab.sim.checkers.logs import is_change_valid, read_log, walk
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.disk import SECTOR_BYTES, DiskEffect
from lab.sim.world.plan import has_access
from lab.sim.world.world import MS, SECOND, World
from tandemq.codec.record.entries import (
    INDEX_ENTRY_BYTES,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    QUEUE_ENTRY_BYTES,
)
from tandemq.model.topic import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REVIVE_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_DONE_TOPIC,
    TIMER_TOPIC,
)

SYSTEM_TOPICS = (HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, TIMER_DONE_TOPIC, TIMER_TOPIC)
FILES = ("checkpoint", "tandemq.marks", "epochFileCheckpoint", "config/timercheck", "config/scrub.json", "index/")
"""Files beside log and queues that may be cut, empty, missing or older while a broker is down."""
SNAPSHOTS = 4
"""Times at which older copies of files are taken."""
FREE_BYTES_MIN = 1 << 20
"""Free bytes of a disk whose files are replaced."""
BURST = 0.5
"""Share of the seeds in which faults strike together."""
DOWN_MS = (200, 3_000)


class DamagedPlace(NamedTuple):
    """A place in a file."""

    path: str
    position: int


class StorageFaults:
    """The faults of one seed."""

    def __init__(self, world: World, cluster: Cluster, *, may_strike: Callable[[Host], bool], is_beyond: bool) -> None:
        """`may_strike`: whether a host may be damaged; `is_beyond`: whether faults exceed what a group tolerates."""
        self._world = world
        self._cluster = cluster
        self._may_strike = may_strike
        self._is_beyond = is_beyond
        self._random = Random(f"{world.seed}-storage-faults")
        self.is_over = False
        self._older: dict[str, dict[str, list[bytes]]] = {}
        """Host to path to contents at earlier times."""
        self._kinds: list[tuple[int, Callable[[Host], None]]] = [
            (4, self._flip_entry),
            (3, self._flip_index),
            (4, self._flip_system_record),
            (3, self._move_block),
            (4, self._damage_log_file),
            (4, self._damage_queue_file),
            (4, self._damage_file),
            (4, partial(self._lie, DiskEffect.LOST)),
            (4, partial(self._lie, DiskEffect.MISDIRECTED)),
            (3, self._read_older),
            (4, self._lying_sync),
        ]
        if is_beyond:
            self._kinds.append((6, self._lose_group))

    def plan(self, until_us: int, faults: list[Callable[[], None]]) -> None:
        """Spread faults over the time up to `until_us`. `faults`: other ones, which may happen at the same time."""
        random = self._random
        for number in range(SNAPSHOTS):
            self._world.at(random.randrange(3 + 4 * number, 7 + 4 * number) * SECOND, self._copy_files)
        is_burst = random.random() < BURST
        when = random.randrange(10 * SECOND, until_us - 8 * SECOND)
        for _ in range(random.randrange(2, 7 if self._is_beyond else 5)):
            at_us = when + random.randrange(2 * SECOND) if is_burst else random.randrange(6 * SECOND, until_us - SECOND)
            self._world.at(at_us, self._strike)
            if is_burst and random.random() < 0.6:
                self._world.at(at_us + random.randrange(SECOND), random.choice(faults))

    def _strike(self) -> None:
        kind = self._random.choices(self._kinds, [weight for weight, _ in self._kinds])[0][1]
        hosts = self._random.sample(self._cluster.hosts, len(self._cluster.hosts))
        host = next((host for host in hosts if self._is_beyond or self._may_strike(host)), None)
        if host is not None and not self.is_over and host.machine.disk.usage().free_bytes > FREE_BYTES_MIN:
            kind(host)

    def _copy_files(self) -> None:
        for host in self._cluster.hosts:
            disk = host.machine.disk
            for path in disk.paths():
                self._older.setdefault(host.name, {}).setdefault(path, []).append(
                    disk.peek(path, 1 << 20, 0, safe=False)
                )

    # At rest.

    def _take_down(self, kind: str, host: Host, place: DamagedPlace) -> None:
        """Note a fault, and stop the member until it is started again."""
        self._world.fault(kind, f"{host.name} {place.path} byte {place.position}")
        host.kill()
        host.harmed(*place)
        self._world.after(self._random.randrange(*DOWN_MS) * MS, self._starting(host))

    def _files(self, host: Host, prefix: str) -> list[str]:
        return [path for path in host.machine.disk.paths() if path.startswith(prefix)]

    def _content(self, host: Host, path: str) -> bytes:
        return host.machine.disk.peek(path, 1 << 20, 0, safe=False)

    def _flip_entry(self, host: Host) -> None:
        """Flip a bit in a queue entry. The time in an entry of a delayed message is not checked against anything."""
        places = []
        for path in self._files(host, "consumequeue/"):
            written = len(self._content(host, path).rstrip(b"\0")) // QUEUE_ENTRY_BYTES
            if written:
                size = 12 if path.startswith(f"consumequeue/{SCHEDULE_TOPIC}/") else QUEUE_ENTRY_BYTES
                entry = self._random.randrange(written)
                places.append(DamagedPlace(path, entry * QUEUE_ENTRY_BYTES + self._random.randrange(size)))
        self._flip("flip-queue", host, places)

    def _flip_index(self, host: Host) -> None:
        places = []
        for path in self._files(host, "index/"):
            used = len(self._content(host, path).rstrip(b"\0"))
            entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * host.config.index_slots
            part = self._random.choice(
                (range(INDEX_HEADER_BYTES), range(INDEX_HEADER_BYTES, entries_at), range(entries_at, used))
            )
            if used > entries_at + INDEX_ENTRY_BYTES:
                places.append(DamagedPlace(path, self._random.choice(part)))
        self._flip("flip-index", host, places)

    def _flip_system_record(self, host: Host) -> None:
        """Flip a bit in a record that says what becomes of a transaction, a delayed, timed or popped message."""
        end = self._copied_end(host)
        if host.broker is None or end <= 0:
            return
        segment, start = host.config.segment_bytes, host.broker.store.log.start
        found, _ = walk(read_log(host.machine.disk, start, end, segment), start, segment)
        records = [
            each.record for each in found if each.topic in SYSTEM_TOPICS or each.topic.startswith(REVIVE_TOPIC_PREFIX)
        ]
        places = []
        if records:
            record = self._random.choice(records)
            at = record.log_offset + self._random.randrange(record.size)
            places.append(DamagedPlace(f"commitlog/{at - at % segment:020d}", at % segment))
        self._flip("flip-system-record", host, places)

    def _flip(self, kind: str, host: Host, places: list[DamagedPlace]) -> None:
        if places:
            place = self._random.choice(places)
            self._take_down(kind, host, place)
            host.machine.disk.flip(*place, self._random.randrange(8))

    def _move_block(self, host: Host) -> None:
        """Exchange two blocks of a file, or write one over another."""
        prefix = self._random.choice(("commitlog/", "commitlog/", "consumequeue/", "index/"))
        unit = self._random.choice((SECTOR_BYTES, 4096)) if prefix == "commitlog/" else QUEUE_ENTRY_BYTES
        paths = [path for path in self._files(host, prefix) if self._safe_size(host, path) >= 2 * unit]
        if not paths:
            return
        path = self._random.choice(paths)
        data = bytearray(self._content(host, path))
        first, second = self._random.sample(range(0, self._safe_size(host, path) - unit + 1, unit), 2)
        kind = self._random.choice(("block-swapped", "block-copied"))
        moved = bytes(data[first : first + unit])
        if kind == "block-swapped":
            data[first : first + unit] = data[second : second + unit]
        data[second : second + unit] = moved
        if self._passes(host, path, bytes(data)):
            return
        self._take_down(kind, host, DamagedPlace(path, second))
        host.harmed(path, first)
        host.machine.disk.replace(path, bytes(data))

    def _passes(self, host: Host, path: str, changed: bytes) -> bool:
        """Whether a changed record of a log file passes all checks."""
        if not path.startswith("commitlog/"):
            return False
        return is_change_valid(
            self._content(host, path), changed, int(path.rpartition("/")[2]), host.config.segment_bytes
        )

    def _damage_log_file(self, host: Host) -> None:
        paths = [path for path in self._files(host, "commitlog/") if self._safe_size(host, path)]
        self._damage(host, paths, ("empty", "cut", "older", "zeroed"))

    def _damage_queue_file(self, host: Host) -> None:
        self._damage(host, self._files(host, "consumequeue/"), ("empty", "cut", "older", "missing", "zeroed"))

    def _damage_file(self, host: Host) -> None:
        prefix = self._random.choice(FILES)
        # The epochs are in two copies, of which one is good.
        paths = [path for path in self._files(host, prefix) if not path.endswith(".bak")]
        self._damage(host, paths, ("empty", "cut", "older", "missing"))

    def _damage(self, host: Host, paths: list[str], kinds: tuple[str, ...]) -> None:
        """Replace a file by what a crashed file system or an operator's mistake leaves of it."""
        if not paths:
            return
        path, kind, disk = self._random.choice(paths), self._random.choice(kinds), host.machine.disk
        content = self._content(host, path)
        older = [data for data in self._older.get(host.name, {}).get(path, ()) if data != content]
        if kind == "older" and not older:
            return
        # An index of which a file is gone or has another length is rebuilt, and has all keys then.
        is_rebuilt = path.startswith("index/") and kind != "older"
        self._take_down(f"file-{kind}", host, DamagedPlace(f"rebuilt/{path}" if is_rebuilt else path, 0))
        if kind == "missing":
            disk.remove(path)
        elif kind == "older":
            disk.replace(path, self._random.choice(older))
        else:
            cut = content[: self._random.randrange(len(content) + 1)]
            disk.replace(path, {"empty": b"", "cut": cut, "zeroed": bytes(len(content))}[kind])

    def _safe_size(self, host: Host, path: str) -> int:
        """Return how many bytes of a file may be damaged: of the log within tolerance those that all members have."""
        size = len(self._content(host, path))
        if not path.startswith("commitlog/") or self._is_beyond:
            return size
        return max(0, min(size, self._copied_end(host) - int(path.rpartition("/")[2])))

    def _copied_end(self, host: Host) -> int:
        """Return the start of the log file before which all members of the group have durable bytes."""
        ends = [
            0 if member.broker is None else member.broker.store.log.flushed_offset
            for member in self._cluster.members(host.group)
        ]
        end = max(ends) if self._is_beyond else min(ends)
        return end - end % host.config.segment_bytes

    # Live.

    def _lie(self, effect: DiskEffect, host: Host) -> None:
        """Lose or misdirect a write: within tolerance of a member that copies the log, or of what is derived."""
        if host.process is None:
            return
        is_source = host.broker is not None and host.broker.is_master
        is_log = self._is_beyond or not is_source
        prefix = "commitlog/" if is_log else self._random.choice(("consumequeue/", "index/", "tandemq.marks"))
        kind = f"write-{effect.name.lower()}"
        fault = host.machine.disk.lie("pwrite", effect, self._random.randrange(1, 8), times=1, prefix=prefix)

        def strike(path: str, position: int) -> None:
            self._world.fault(kind, f"{host.name} {path} byte {position}")
            host.harmed(path, position)

        def allows(path: str, position: int, data: memoryview) -> bool:
            changed = bytearray(self._content(host, path))
            changed[position : position + len(data)] = data
            return not self._passes(host, path, bytes(changed))

        fault.on_strike, fault.allows = strike, allows

    def _read_older(self, host: Host) -> None:
        """Read what files held at this moment, some seconds later.

        Within tolerance no start of a member that others copy reads an older end of its log: it would lose that end.
        """
        if host.process is None:
            return
        prefix = self._random.choice(("commitlog/", "consumequeue/"))
        disk, times = host.machine.disk, self._random.choice((1, 3, 20))
        fault = disk.lie("pread", DiskEffect.STALE, 1 << 40, times=times, prefix=prefix)
        fault.by_instant = True
        if not self._is_beyond and host.broker is not None and host.broker.is_master:
            fault.life = disk.life
        is_noted = False

        def strike(path: str, position: int) -> None:
            nonlocal is_noted
            if not is_noted:
                is_noted = True
                self._world.fault("read-older", f"{host.name} {path} byte {position}")
                host.harmed(path, position)

        def begin() -> None:
            fault.nth = fault.seen + 1

        fault.on_strike = strike
        self._world.after(self._random.randrange(500, 5_000) * MS, begin)

    def _lose_group(self, host: Host) -> None:
        """Cut the power of a member, while all others of its group lose their disks."""
        for member in self._cluster.members(host.group):
            if member is host:
                self._world.fault("power-loss", member.name)
                member.crash()
            else:
                self._world.fault("disk-lost", member.name)
                member.wipe()
            self._world.after(self._random.randrange(*DOWN_MS) * MS, self._starting(member))

    def _starting(self, host: Host) -> Callable[[], None]:
        return lambda: None if self.is_over else host.start()

    def _lying_sync(self, host: Host) -> None:
        """Let the device report syncs that it does not do, then cut the power; mappings and users may go with them."""
        if host.process is None or self._cluster.plan.has_static_topic or has_access(self._world.seed):
            return
        host.machine.disk.lies = True
        host.harmed("commitlog/", 0)

        def cut() -> None:
            if self.is_over or not host.machine.disk.lies:
                return
            self._world.fault("lying-sync", host.name)
            host.crash()
            host.machine.disk.lies = False
            self._world.after(self._random.randrange(*DOWN_MS) * MS, self._starting(host))

        self._world.after(self._random.randrange(1_000, 6_000) * MS, cut)
