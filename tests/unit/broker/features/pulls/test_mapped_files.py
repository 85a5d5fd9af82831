"""Reads of mapped files: the bytes of the file, after each change of it, and no error that ends the process."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.filter.parser import SqlFilter, compile_filter
from tandemq.broker.kernel.pulls import Messages
from tandemq.broker.state.damage_table import Damages
from tandemq.engine import NAME
from tandemq.errors import DiskFailed, OffsetGone
from tandemq.real.disk import RealDisk
from tandemq.storage.log import range_reader
from tandemq.storage.store import Store, StoreConfig
from tests.unit.storage.harness import put, start

IS_MAPPED = NAME == "compiled" and sys.platform == "linux" and sys.maxsize > 1 << 32
FILE_BYTES = 400_000
"""Not a multiple of the parts for which the page cache is asked."""
TOPICS = 7
FILTERS = ["", "TAGS = 't1'", "KEYS IS NOT NULL", "a = 1"]


def stored(path: Path, sizes: tuple[int, ...] = (700, 3000)) -> Store:
    """A store of three files, of which nothing is in memory."""
    store = start(RealDisk(path), StoreConfig(FILE_BYTES, 20_000, True, 16, 64, (1000,), "boot-1"))
    add(store, sizes, 2 * FILE_BYTES + FILE_BYTES // 2)
    return store


def add(store: Store, sizes: tuple[int, ...], end: int) -> None:
    number = store.log.end
    while store.log.end < end:
        put(store, number, topic=f"T{number % TOPICS}", size=sizes[number % len(sizes)])
        number += 1
        if number % 20 == 0:
            store.commit()
    store.commit()
    store.log.recent.restart(store.log.end)


def read(store: Store, topic: int, offset: int, expression: str) -> Messages:
    reader, queue = MessageReader(store.log, Damages()), store.queues[f"T{topic}", 0]
    if not expression:
        return reader.read(queue, offset, None, most=8, bytes_max=1 << 20, limit=1 << 60)
    sql = compile_filter(expression)
    assert isinstance(sql, SqlFilter)
    return reader.read_matching(queue, offset, sql, most=8, bytes_max=1 << 20, limit=1 << 60)


def read_all(store: Store, expression: str = "") -> list[bytes]:
    """The responses of all queues."""
    found = []
    for topic in range(TOPICS):
        offset = store.queues[f"T{topic}", 0].min_offset
        while offset < store.queues[f"T{topic}", 0].max_offset:
            messages = read(store, topic, offset, expression)
            found.append(b"".join(messages.buffers))
            assert messages.next_offset > offset
            offset = messages.next_offset
    return found


def expected(store: Store, expression: str = "") -> list[bytes]:
    """What `read_all` returns, read message by message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reader, "gather_messages", lambda *_: None)
        patch.setattr(range_reader, "select_messages", lambda *_: None)
        found = read_all(store, expression)
    store.log.reader.forget()
    return found


def mapped_bytes(store: Store) -> int:
    return int(store.log.reader._sources.bytes_mapped)


def is_mapped(path: Path) -> bool:
    """Whether a file, or one in a directory, is mapped, deleted or not."""
    return sys.platform == "linux" and str(path) in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize("expression", FILTERS)
@pytest.mark.parametrize("sizes", [(700, 3000), (30_000, 100, 4_100), (0, 300)])
def test_mapped_files_are_read_as_the_files_are(expression: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    store = stored(tmp_path, sizes)
    found = expected(store, expression)
    read_all(store, expression)  # it is asked at the second read what the page cache has
    before = store.log.reader.bytes_read, mapped_bytes(store)
    assert read_all(store, expression) == found
    if IS_MAPPED:
        mapped = mapped_bytes(store) - before[1]
        assert mapped > 0
        assert store.log.reader.bytes_read - before[0] <= 1.1 * mapped, "almost nothing is read by calls"


@pytest.mark.parametrize("expression", FILTERS)
@pytest.mark.parametrize("at", [0, 150_000, 399_000])
def test_bytes_that_the_page_cache_lacks_are_read_from_the_file(expression: str, at: int, tmp_path: Path) -> None:
    store = stored(tmp_path)
    found = expected(store, expression)
    for path in (tmp_path / "commitlog").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), at, 70_000, os.POSIX_FADV_DONTNEED)  # of several parts
    for _ in range(3):
        assert read_all(store, expression) == found
        store.log.reader.age()


@pytest.mark.parametrize("expression", FILTERS)
@pytest.mark.parametrize("left", [0, 1, 100_000])
def test_file_that_was_made_shorter_is_an_error_of_the_read(expression: str, left: int, tmp_path: Path) -> None:
    """The pages behind its end raise SIGBUS: the store reports what it reports without mapping."""
    store = stored(tmp_path)
    found = expected(store, expression)
    for _ in range(2):
        assert read_all(store, expression) == found
    path = min((tmp_path / "commitlog").iterdir())
    kept = path.read_bytes()
    starts = [(topic, store.queues[f"T{topic}", 0].max_offset // 5) for topic in range(TOPICS)]  # in the first file
    before = {place: b"".join(read(store, *place, expression).buffers) for place in starts}
    os.truncate(path, left)
    for place in starts:
        with contextlib.suppress(OffsetGone, DiskFailed):
            assert before[place].startswith(b"".join(read(store, *place, expression).buffers)), "what blocks hold"
    path.write_bytes(kept)
    store.log.reader.age()
    for _ in range(3):
        assert read_all(store, expression) == found
    assert mapped_bytes(store) > 0 or not IS_MAPPED


def test_change_of_the_log_is_seen_at_once(tmp_path: Path) -> None:
    store = stored(tmp_path)
    for _ in range(2):
        read_all(store)
    entry = store.queues["T3", 0].entry(5)
    record = bytearray(store.log.read(entry.log_offset, entry.size))
    record[100:200] = bytes(100)
    store.log.overwrite(bytes(record), entry.log_offset)
    for _ in range(3):
        assert read(store, 3, 5, "").buffers[0][: len(record)] == record
    store.log.open_at(entry.log_offset, flushed=0)
    store.log.append(bytes(entry.size))
    store.log.write()
    store.log.recent.restart(store.log.end)
    for _ in range(3):
        assert read(store, 3, 5, "").mismatch is not None


def test_deleted_file_is_unmapped_at_once_and_the_others_in_time(tmp_path: Path) -> None:
    """Space of a deleted file is free only when it is not mapped any more."""
    store = stored(tmp_path)
    for _ in range(2):
        read_all(store)
    paths = sorted((tmp_path / "commitlog").iterdir())
    assert is_mapped(paths[0]) == is_mapped(paths[1]) == IS_MAPPED
    store.log.drop_first_segment()
    assert not is_mapped(paths[0])
    for _ in paths:
        store.log.reader.age()
    assert not is_mapped(tmp_path)
    with pytest.raises(OffsetGone):
        read(store, 0, 0, "")
    assert read(store, 0, store.queues["T0", 0].max_offset - 1, "").number == 1
    store.log.reader.forget_if_idle()
    store.log.reader.forget_if_idle()
    for _ in paths:
        store.log.reader.age()
    assert not is_mapped(tmp_path)


SCRIPT = """
import os, resource, signal, sys
from pathlib import Path
from tests.unit.broker.features.pulls.test_mapped_files import mapped_bytes, read_all, stored

if sys.argv[2] == "limited":
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, resource.RLIM_INFINITY))
store = stored(Path(sys.argv[1]))
found = read_all(store)
if sys.argv[2] == "replaced":
    signal.signal(signal.SIGBUS, signal.SIG_IGN)
    store.log.reader.forget()
    before = mapped_bytes(store)
assert read_all(store) == read_all(store) == found
print(mapped_bytes(store) - (before if sys.argv[2] == "replaced" else 0) > 0, flush=True)
os.kill(os.getpid(), signal.SIGBUS)
print("alive", flush=True)
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("way", "output", "code"),
    [
        ("free", f"{IS_MAPPED}\n", -signal.SIGBUS),  # a signal that no read caused still ends the process
        ("limited", "False\n", -signal.SIGBUS),  # of the address space, which other memory needs
        ("replaced", "False\nalive\n", 0),  # the action of the signal: nothing is mapped without its protection
    ],
)
def test_files_are_mapped_only_if_the_process_is_safe(way: str, output: str, code: int, tmp_path: Path) -> None:
    given = [sys.executable, "-c", SCRIPT, str(tmp_path), way]
    found = subprocess.run(given, check=False, capture_output=True, text=True, timeout=120)
    assert (found.stdout, found.returncode) == (output, code), found.stderr


def resident_bytes(path: Path) -> int:
    """Memory of this process in pages of files below a directory; 0 where the kernel does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    found, is_below = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name = line.split()[0]
        if not name.endswith(":"):
            is_below = str(path) in line
        elif is_below and name == "Rss:":
            found += int(line.split()[1]) << 10
    return found


def test_mapped_pages_that_count_as_memory_are_limited(tmp_path: Path) -> None:
    store = stored(tmp_path)
    wanted = expected(store)
    read_all(store)
    assert read_all(store) == wanted
    assert resident_bytes(tmp_path) > 300_000 or not IS_MAPPED
    store.log.reader.limit_memory(16 << 10)
    before = mapped_bytes(store)
    for _ in range(3):
        assert read_all(store) == wanted
    assert mapped_bytes(store) > before or not IS_MAPPED
    assert resident_bytes(tmp_path) < 300_000
