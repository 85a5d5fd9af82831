"""Recovery: runs of records that the engine verifies give the same store as records verified one by one in Python."""

from collections.abc import Callable
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.engine import python
from tandemq.storage.log import scan
from tandemq.storage.log.scan import DamagedRange
from tandemq.storage.recovery import Recovered
from tandemq.storage.store import Store
from tests.unit.storage.harness import CONFIG, OTHER_BOOT, flags, new_disk, put, reopen, start

PREPARED, ROLLBACK = 0x4, 0xC
SEGMENT = "commitlog/" + "0" * 20
Damage = Callable[[SimDisk, int], None]
Result = tuple[Recovered, list[DamagedRange], int, int, list[int], dict[str, bytes | None]]


def nothing(disk: SimDisk, end: int) -> None:
    """Leave the log as it is."""


def middle(disk: SimDisk, _end: int) -> None:
    """Damage a record in the first file, and a size field in the second one."""
    disk.flip(SEGMENT, 700, 3)
    disk.flip("commitlog/" + f"{CONFIG.segment_bytes:020d}", 2, 6)


def torn(disk: SimDisk, end: int) -> None:
    """Cut the last record in half."""
    last = end - end % CONFIG.segment_bytes
    disk.open(f"commitlog/{last:020d}").pwrite(bytes(60), end - last - 60)


def half_header(disk: SimDisk, end: int) -> None:
    """Write the beginning of one more record."""
    last = end - end % CONFIG.segment_bytes
    if end > last:
        disk.open(f"commitlog/{last:020d}").pwrite(b"\0\0\0\xf0\xda\xa3\x20\xa7", end - last)


def build(seed: int) -> tuple[SimDisk, int]:
    """Write a log of several files with messages of all kinds; blanks end the files."""
    random = Random(seed)
    disk = new_disk(seed)
    store = start(disk)
    for number in range(random.randrange(30, 80)):
        flag = random.choice((0, 0, 0, 0, PREPARED, ROLLBACK))
        topic, queue_id = random.choice(("T", "SCHEDULE_TOPIC_XXXX", "U" * 127)), random.randrange(3)
        put(store, number, topic=topic, queue_id=queue_id, size=random.choice((0, 1, 20, 300, 1500)), sys_flag=flag)
        if not random.randrange(3):
            store.commit()
    store.commit()
    return disk, store.log.end


def recovered(seed: int, damage: Damage, *, keeps_queues: bool) -> Result:
    """Recover a log, and return everything that results."""
    disk, end = build(seed)
    damage(disk, end)
    if not keeps_queues:
        for path in ("tandemq.marks", "checkpoint", "consumequeue", "index"):
            disk.remove(path)
    store, found = reopen(disk, OTHER_BOOT if keeps_queues else CONFIG)
    held = [] if store.damaged else flags(store)
    last_ms, log_end, ranges = store.last_store_ms, store.log.end, store.damaged
    store.close()
    files = {
        path: disk.read(path) for path in disk.paths() if path.startswith(("consumequeue/", "index/", "commitlog/"))
    }
    return found, ranges, log_end, last_ms, held, files


@pytest.mark.parametrize("damage", [nothing, middle, torn, half_header])
@pytest.mark.parametrize("keeps_queues", [False, True])
def test_engine_and_python_recover_the_same_store(
    damage: Damage, keeps_queues: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(12):
        by_engine = recovered(seed, damage, keeps_queues=keeps_queues)
        with monkeypatch.context() as patched:
            patched.setattr(scan, "verify_records", python.verify_records)
            assert recovered(seed, damage, keeps_queues=keeps_queues) == by_engine, f"seed {seed}"
        # After a crash of the machine the damage is part of the torn tail, which is quarantined.
        assert bool(by_engine[1]) == (damage is middle and not keeps_queues)


@pytest.mark.parametrize("with_engine", [False, True])
def test_file_that_ends_exactly_at_a_record(with_engine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blank that ends the file has the smallest size, 8 bytes; the next file begins with a record."""
    if not with_engine:
        monkeypatch.setattr(scan, "verify_records", python.verify_records)
    disk = new_disk()
    store = start(disk)
    size = put(store, 0, size=20).size
    _fill_up_to(store, CONFIG.segment_bytes - 8, size)
    assert store.log.end == CONFIG.segment_bytes - 8
    put(store, 99)
    store.commit()
    assert store.log.end > CONFIG.segment_bytes
    held, end = flags(store), store.log.end
    disk.remove("tandemq.marks")
    disk.remove("consumequeue")
    store, found = reopen(disk)
    assert (flags(store), store.log.end, found.records, store.damaged) == (held, end, len(held), [])


def _fill_up_to(store: Store, end: int, size: int) -> None:
    number = 1
    while end - store.log.end > 3 * size:
        put(store, number)
        number += 1
    rest = end - store.log.end
    plain = put(store, number, size=20).size
    put(store, number + 1, size=20 + rest - plain - plain)
    store.commit()
