"""Files of a store that are missing, short, empty or older: derived ones are rebuilt, the log is not shortened."""

from collections.abc import Callable
from itertools import product

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.codec.record.entries import INDEX_HEADER
from tandemq.errors import StoreDamaged
from tandemq.storage.store import Store
from tests.spec import spec
from tests.unit.storage.harness import check, fill, new_disk, records, reopen, start

MESSAGES = 150
Damage = Callable[[SimDisk, str, bytes], None]


def _remove(disk: SimDisk, path: str, _older: bytes) -> None:
    disk.remove(path)


def _empty(disk: SimDisk, path: str, _older: bytes) -> None:
    disk.replace(path, b"")


def _cut(disk: SimDisk, path: str, _older: bytes) -> None:
    data = disk.read(path) or b""
    disk.replace(path, data[: len(data) // 2 + 7])


def _older(disk: SimDisk, path: str, older: bytes) -> None:
    disk.replace(path, older)


def _counts_too_much(disk: SimDisk, path: str, _older: bytes) -> None:
    data = bytearray(disk.read(path) or b"")
    fields = INDEX_HEADER.unpack_from(data)
    INDEX_HEADER.pack_into(data, 0, *fields[:-1], fields[-1] | 1 << 30)
    disk.replace(path, bytes(data))


def _ends_later(disk: SimDisk, path: str, _older: bytes) -> None:
    data = bytearray(disk.read(path) or b"")
    first_ms, last_ms, first, last, *rest = INDEX_HEADER.unpack_from(data)
    INDEX_HEADER.pack_into(data, 0, first_ms, last_ms, first, last | 1 << 40, *rest)
    disk.replace(path, bytes(data))


def _filled(disk: SimDisk) -> tuple[Store, dict[str, bytes]]:
    """Return a store with several files of each kind, and their contents at an earlier time."""
    store = start(disk)
    fill(store, MESSAGES - 20, topics=2)
    store.flush_queues()
    before = {path: disk.read(path) or b"" for path in disk.paths()}
    fill(store, 20, first=MESSAGES - 20, topics=2)
    store.flush_queues()
    return store, before


@spec("V14")
@pytest.mark.parametrize("damage", [_remove, _empty, _cut, _older, _counts_too_much, _ends_later])
def test_index_with_a_damaged_file_is_rebuilt_at_the_start(damage: Damage) -> None:
    for position, is_clean in product((0, 1, -1), (True, False)):
        disk = new_disk()
        store, before = _filled(disk)
        if is_clean:
            store.close()
        paths = [path for path in disk.paths() if path.startswith("index/")]
        assert len(paths) > 3
        path = paths[position]
        if damage is _older and path not in before:
            continue
        damage(disk, path, before.get(path, b""))
        store, _ = reopen(disk)
        assert check(store) == list(range(MESSAGES)), (path, is_clean)
        fill(store, 5, first=MESSAGES, topics=2)
        assert check(store) == list(range(MESSAGES + 5)), (path, is_clean)
        store.close()
        store, recovered = reopen(disk)
        assert check(store) == list(range(MESSAGES + 5)), (path, is_clean)
        assert recovered.records == 0, f"{path}: it is rebuilt once only"
        sizes = {len(disk.read(name) or b"") for name in disk.paths() if name.startswith("index/")}
        assert len(sizes) == 1, f"{path}: the damaged file is gone"


def test_records_without_keys_beside_the_index_do_not_have_it_rebuilt() -> None:
    disk = new_disk()
    store = start(disk)
    for number in range(30):
        properties = f"UNIQ_KEY\x01u{number}\x02".encode() if number in (10, 20) else b""
        store.put(
            store.queue("T", 0),
            body=b"body",
            properties=properties,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=bytes(8),
            store_ms=1,
            store_host=bytes(8),
            reconsume_times=0,
        )
    store.commit()
    store.close()
    _, recovered = reopen(disk)
    assert recovered.records == 0


@pytest.mark.parametrize("damage", [_remove, _empty, _cut])
def test_queue_with_a_damaged_file_before_its_last_keeps_all_other_entries(damage: Damage) -> None:
    for is_clean in (True, False):
        disk = new_disk()
        store, _ = _filled(disk)
        ends = {key: queue.max_offset for key, queue in store.queues.items()}
        held = {key: queue.read(0, queue.max_offset) for key, queue in store.queues.items()}
        if is_clean:
            store.close()
        paths = [path for path in disk.paths() if path.startswith("consumequeue/T0/0/")]
        assert len(paths) > 3
        damage(disk, paths[1], b"")
        store, _ = reopen(disk)
        assert {key: queue.max_offset for key, queue in store.queues.items()} == ends
        for key, queue in store.queues.items():
            found = b"".join(queue.read(number, 1) for number in range(queue.max_offset))
            damaged = slice(10 * 20, 20 * 20) if key == ("T0", 0) else slice(0, 0)
            assert (
                found[: damaged.start] + found[damaged.stop :] == held[key][: damaged.start] + held[key][damaged.stop :]
            )
        fill(store, 4, first=MESSAGES, topics=2)
        assert store.queues["T0", 0].max_offset == ends["T0", 0] + 1


def test_queue_whose_files_have_another_size_is_refused() -> None:
    disk = new_disk()
    store, _ = _filled(disk)
    store.close()
    for path in [path for path in disk.paths() if path.startswith("consumequeue/T0/0/")]:
        disk.replace(path, (disk.read(path) or b"")[:100])
    with pytest.raises(StoreDamaged, match=r"consumequeue/T0/0/0{20} is 100 bytes long, 200 are expected"):
        reopen(disk)


@pytest.mark.parametrize("how", ["zeroed", "flipped"])
def test_damaged_last_record_of_a_killed_process_is_not_truncated_silently(how: str) -> None:
    """The kernel has the record; without it a producer's SEND_OK would be undone, and its queue offset given again."""
    disk = new_disk()
    store, _ = _filled(disk)
    *_, last = records(store)
    path = f"commitlog/{last.log_offset - last.log_offset % 4096:020d}"
    data, within = bytearray(disk.read(path) or b""), last.log_offset % 4096
    if how == "zeroed":
        data[within : within + last.size] = bytes(last.size)
    else:
        data[within + 6] ^= 1
    disk.replace(path, bytes(data))
    with pytest.raises(StoreDamaged, match=f"the log ends at {last.log_offset}, but had reached"):
        reopen(disk)
    assert disk.read(path) == bytes(data), "nothing is cleared"
