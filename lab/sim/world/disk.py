"""In-memory disk with the failures of real ones: full, failing, and losing unsynced data in a power loss.

State after a power loss (`crash`), drawn at random:

    written bytes   each 512-byte sector (or the whole page) of an unsynced page has its last written content, its last
                    synced content, or one written in between; so a last write may be torn
    names, lengths  a journal: all entries up to some point survive, none after it
    datasync        makes a file's bytes durable, and the journal up to the last entry about that file
    replace         is durable when it returns

A process that dies (`kill`) loses nothing that it wrote. Either way its open files cannot be used afterwards.

A device may also lie (`DiskEffect`, `lies`): it loses a write, stores it elsewhere, or reads older bytes, and reports
success; or it reports that bytes are durable which are not. Bytes that are not synced yet are never read from it.

What the page cache lacks (`uncached`), and which pages it wrote to the device, depends on time, place and the reads of
workers alone, not on other calls: engines that read or write the same bytes in other pieces have the same history.

Pages never written take no memory, so a file of 1 GiB costs nothing. All choices come from the given `Random`: the same
calls give the same bytes.

Does not know: permissions, links, more than one process at a time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from zlib import crc32

from tandemq.boundary import Buffer, DiskUsage
from tandemq.errors import DiskFailed, DiskFull, StoreError

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_NO_PAGE = bytes(PAGE_BYTES)
CACHE_BLOCK_BYTES = 1 << 18
"""The page cache has such a block of a file, or lacks it."""
CACHED_MS = 2_000
"""How long it has the same blocks, but for those that workers read (`will_read`)."""
WRITTEN_BACK = 1 / 8
"""Probability that the kernel wrote a changed page to the device before a change at a later time."""

OPERATIONS = ("create", "pwrite", "pread", "datasync", "truncate", "replace", "remove", "read")


class DiskEffect(Enum):
    """What a call does that a fault strikes."""

    FAILS = "raises an error"
    LOST = "the bytes are not written; the call succeeds"
    MISDIRECTED = "the bytes are written at another place of the file; the call succeeds"
    STALE = "older bytes are read; the call succeeds"


class PowerLoss(BaseException):
    """Raised by `SimDisk.stop_at` to end the process. Not an Exception, so that no handler catches it."""


@dataclass(slots=True)
class DiskFault:
    """Failure of calls of one operation, from the `nth` (from 1, counted from now) for `times` calls; -1 without end.

    A failing write leaves a random part of its bytes, unless `leaves_part` is False.
    """

    operation: str
    nth: int = 1
    times: int = 1
    error: type[StoreError] = DiskFailed
    prefix: str = ""
    leaves_part: bool = True
    effect: DiskEffect = DiskEffect.FAILS
    on_strike: Callable[[str, int], None] | None = None
    """Called with path and position before a call that lies."""
    allows: Callable[[str, int, memoryview], bool] = lambda _path, _position, _data: True
    """Whether a write may be misdirected to a place."""
    older: dict[str, bytes] = field(default_factory=dict)
    """Path to the older bytes that a stale read returns."""
    life: int | None = None
    """`SimDisk.life` of the only process that it strikes."""
    by_instant: bool = False
    """Whether all calls of one instant count as one, however many pieces the bytes are read in."""
    seen: int = 0
    """Calls counted so far."""
    seen_ms: int = -1
    """When the last one was counted."""

    def strikes(self, operation: str, path: str, now_ms: int) -> bool:
        """Count a call; return whether it fails."""
        if operation != self.operation or not path.startswith(self.prefix):
            return False
        self.seen += not self.by_instant or now_ms != self.seen_ms
        self.seen_ms = now_ms
        return self.seen >= self.nth and (self.times < 0 or self.seen < self.nth + self.times)


@dataclass(slots=True, eq=False)
class _Content:
    """The bytes of a file.

    `synced`: for each page written since the last sync, its content on the device (None: nothing). `grown_from`: the
    length before writes extended it, -1 if none did since the last sync. `changed_ms`: when pages were changed last.
    """

    salt: int
    size: int = 0
    grown_from: int = -1
    pages: dict[int, bytearray] = field(default_factory=dict)
    synced: dict[int, bytes | None] = field(default_factory=dict)
    changed_ms: dict[int, int] = field(default_factory=dict)
    modified_ms: int = 0


@dataclass(slots=True)
class _Change:
    """One journal entry, with the state before it."""

    kind: str
    path: str
    content: _Content
    replaced: _Content | None = None
    size: int = 0
    dropped: dict[int, bytes | None] = field(default_factory=dict)


class SimFile:
    """An open file; see `boundary.File`."""

    __slots__ = ("_content", "_disk", "_life", "path")

    def __init__(self, disk: "SimDisk", path: str, content: _Content) -> None:
        """A file opened in the current process."""
        self.path = path
        self._disk = disk
        self._content = content
        self._life = disk.life

    def _check(self, operation: str) -> None:
        if self._life != self._disk.life:
            raise DiskFailed(f"{self.path}: the file is closed, or its process is gone")
        self._disk.count(operation, self.path)

    def pwrite(self, data: Buffer, position: int) -> None:
        """See `boundary.File`."""
        self._check("pwrite")
        if position < 0:
            raise DiskFailed(f"{self.path}: a write at {position}")
        raw = memoryview(data).cast("B")
        fault = self._disk.fault("pwrite", self.path)
        if fault is not None and fault.effect is not DiskEffect.FAILS:
            self._lie(fault, raw, position)
            return
        if fault is not None:
            part = self._disk.random.randrange(len(raw) + 1) if fault.leaves_part else 0
            self._disk.store(self._content, raw[:part], position)
            raise fault.error(f"{self.path}: a simulated fault at byte {position + part}")
        stored = self._disk.store(self._content, raw, position)
        if stored < len(raw):
            raise DiskFull(f"{self.path}: no space left on the device", hint="free space; nothing is lost")

    def _lie(self, fault: DiskFault, raw: memoryview, position: int) -> None:
        """Report a write that is not done, or done elsewhere within the bytes that the file has."""
        if fault.on_strike is not None:
            fault.on_strike(self.path, position)
        content, last = self._content, max(position, self._content.size - len(raw))
        if position + len(raw) > content.size:
            self._disk.store(content, memoryview(bytes(len(raw))), position)  # its length grows all the same
        if fault.effect is DiskEffect.MISDIRECTED:
            places = [place for place in range(0, last, SECTOR_BYTES) if abs(place - position) >= SECTOR_BYTES]
            self._disk.random.shuffle(places)
            found = next((place for place in places if fault.allows(self.path, place, raw)), None)
            if found is not None:
                self._disk.store(content, raw, found)

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """See `boundary.File`: one write, as far as faults and power losses go."""
        self.pwrite(b"".join(parts), position)

    def pread(self, size: int, position: int) -> bytes:
        """See `boundary.File`."""
        return self._read(size, position)

    def _read(self, size: int, position: int) -> bytes:
        self._check("pread")
        if size < 0 or position < 0:
            raise DiskFailed(f"{self.path}: a read of {size} bytes at {position}")
        fault = self._disk.raise_fault("pread", self.path)
        older = fault.older.get(self.path) if fault is not None else None
        if fault is not None and older is not None:
            if fault.on_strike is not None:
                fault.on_strike(self.path, position)
            return self._read_older(older, size, position)
        return _load(self._content.pages, self._content.size, size, position)

    def _read_older(self, older: bytes, size: int, position: int) -> bytes:
        """Return older bytes of the device; pages not synced yet are read from the kernel's memory."""
        size = max(0, min(size, self._content.size - position))
        found = bytearray(older[position : position + size].ljust(size, b"\0"))
        for number in self._content.synced:
            begin, end = max(position, number * PAGE_BYTES), min(position + size, (number + 1) * PAGE_BYTES)
            if begin < end:
                found[begin - position : end - position] = _load(
                    self._content.pages, self._content.size, end - begin, begin
                )
        return bytes(found)

    def pread_cached(self, size: int, position: int) -> bytes | None:
        """See `boundary.File`."""
        if self._disk.lacks(self.path, size, position):
            return None
        return self._read(size, position)

    def will_read(self, size: int, position: int) -> None:
        """See `boundary.File`; the page cache may have these blocks afterwards."""
        self._disk.cache(self.path, size, position)

    def fileno(self) -> int:
        """See `boundary.File`."""
        return -1

    def datasync(self) -> None:
        """See `boundary.File`."""
        self._check("datasync")
        self._disk.raise_fault("datasync", self.path)
        if self._disk.lies:
            return
        self._content.synced.clear()
        self._content.grown_from = -1
        self._disk.commit_names(self._content)

    def truncate(self, size: int) -> None:
        """See `boundary.File`."""
        self._check("truncate")
        if size < 0:
            raise DiskFailed(f"{self.path}: a length of {size}")
        self._disk.raise_fault("truncate", self.path)
        self._disk.resize(self.path, self._content, size)

    def size(self) -> int:
        """See `boundary.File`."""
        if self._life != self._disk.life:
            raise DiskFailed(f"{self.path}: the file is closed, or its process is gone")
        return self._content.size

    def next_data(self, position: int) -> int:
        """See `boundary.File`."""
        size = self.size()
        first = position // PAGE_BYTES
        page = min((number for number in self._content.pages if number >= first), default=None)
        return size if page is None else min(size, max(position, page * PAGE_BYTES))

    def close(self) -> None:
        """See `boundary.File`."""
        self._life = -1


class SimDisk:
    """See `boundary.Disk`; and what goes wrong with it."""

    def __init__(self, random: Random, *, total_bytes: int = 1 << 40) -> None:
        """An empty disk. `total_bytes` may change at any time; space is used in pages of 4 KiB."""
        self.random = random
        self.total_bytes = total_bytes
        self.wall_ms = 0
        """Modification time given to files; moved by the owner."""
        self.faults: list[DiskFault] = []
        self.counts: Counter[str] = Counter()
        """Number of calls, by operation."""
        self.on_call: Callable[[str, str], None] | None = None
        """Called before each operation with its name and path; may raise `PowerLoss`."""
        self.open_files_max = 64
        self.uncached = 0.0
        """Share of the blocks of files that the page cache lacks, so that the device has to be waited for."""
        self.lies = False
        """Whether `datasync` and `replace` return without syncing."""
        self.life = 0
        """Incremented when the process ends, which invalidates its open files."""
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {""}
        self._journal: list[_Change] = []
        self._used_pages = 0
        self._cache_salt = random.getrandbits(32)
        self._device_reads: dict[tuple[str, int], tuple[int, int]] = {}
        """By path and block: how many instants the device was read at, and the last one."""

    # Operations (`boundary.Disk`).

    def open(self, path: str, *, create: bool = False, is_secret: bool = False) -> SimFile:  # noqa: ARG002  # as below
        """See `boundary.Disk`."""
        content = self._files.get(path)
        if content is None:
            if not create or path in self._directories:
                raise DiskFailed(f"{path}: no such file")
            self.count("create", path)
            self.raise_fault("create", path)
            self._make_directories(path)
            content = _Content(self.random.getrandbits(32), modified_ms=self.wall_ms)
            self._files[path] = content
            self._journal.append(_Change("create", path, content))
        return SimFile(self, path, content)

    def list(self, path: str) -> list[str]:
        """See `boundary.Disk`."""
        if path in self._files:
            raise DiskFailed(f"{path}: not a directory")
        prefix = f"{path}/" if path else ""
        names = {name[len(prefix) :].split("/", 1)[0] for name in self._files if name.startswith(prefix)}
        names |= {name[len(prefix) :].split("/", 1)[0] for name in self._directories if name.startswith(prefix)}
        return sorted(names - {""})

    def exists(self, path: str) -> bool:
        """See `boundary.Disk`."""
        return path in self._files or path in self._directories

    def read(self, path: str) -> bytes | None:
        """See `boundary.Disk`."""
        self.count("read", path)
        self.raise_fault("read", path)
        if path in self._directories:
            raise DiskFailed(f"{path}: is a directory")
        content = self._files.get(path)
        return None if content is None else _load(content.pages, content.size, content.size, 0)

    def replace(self, path: str, data: bytes, *, is_secret: bool = False) -> None:  # noqa: ARG002  # it has one user
        """See `boundary.Disk`."""
        self.count("replace", path)
        self.raise_fault("replace", path)
        if path in self._directories:
            raise DiskFailed(f"{path}: is a directory")
        self._make_directories(path)
        content = _Content(self.random.getrandbits(32), modified_ms=self.wall_ms)
        if self.store(content, memoryview(data), 0) < len(data):
            self._used_pages -= len(content.pages)
            raise DiskFull(f"{path}: no space left on the device", hint="free space; nothing is lost")
        if not self.lies:
            content.synced.clear()
            content.grown_from = -1
        before = self._files.get(path)
        if before is not None:
            self._used_pages -= len(before.pages)
        self._files[path] = content
        self._journal.append(_Change("replace", path, content, before))
        if not self.lies:
            self.commit_names(content)

    def remove(self, path: str) -> None:
        """See `boundary.Disk`."""
        self.count("remove", path)
        self.raise_fault("remove", path)
        for name in [name for name in self._files if name == path or name.startswith(f"{path}/")]:
            content = self._files.pop(name)
            self._used_pages -= len(content.pages)
            self._journal.append(_Change("remove", name, content))
        self._directories -= {name for name in self._directories if name == path or name.startswith(f"{path}/")}

    def modified_ms(self, path: str) -> int:
        """See `boundary.Disk`."""
        if path not in self._files:
            raise DiskFailed(f"{path}: no such file")
        return self._files[path].modified_ms

    def usage(self) -> DiskUsage:
        """See `boundary.Disk`."""
        return DiskUsage(self.total_bytes, max(0, self.total_bytes - self._used_pages * PAGE_BYTES))

    # Faults.

    def fail(
        self,
        operation: str,
        nth: int = 1,
        *,
        times: int = 1,
        error: type[StoreError] = DiskFailed,
        prefix: str = "",
        leaves_part: bool = True,
    ) -> DiskFault:
        """Let the `nth` call of an operation from now on fail, on paths that begin with `prefix`."""
        assert operation in OPERATIONS, f"an operation is one of {OPERATIONS}"
        fault = DiskFault(operation, nth, times, error, prefix, leaves_part)
        self.faults.append(fault)
        return fault

    def lie(self, operation: str, effect: DiskEffect, nth: int, *, times: int, prefix: str) -> DiskFault:
        """Let calls succeed without their effect, otherwise as `fail`. Stale reads return bytes of this moment."""
        fault = DiskFault(operation, nth, times, prefix=prefix, effect=effect)
        if effect is DiskEffect.STALE:
            paths = [path for path in self._files if path.startswith(prefix)]
            fault.older = {path: self.peek(path, self._files[path].size, 0, safe=False) for path in paths}
        self.faults.append(fault)
        return fault

    def stop_at(self, nth: int, operations: tuple[str, ...] = OPERATIONS) -> None:
        """Raise PowerLoss at the `nth` call of these operations from now on, and at all after it."""
        left = nth

        def stop(operation: str, _path: str) -> None:
            nonlocal left
            if operation in operations:
                left -= 1
                if left <= 0:
                    raise PowerLoss

        self.on_call = stop

    def lacks(self, path: str, size: int, position: int) -> bool:
        """Return whether the page cache lacks some of the bytes."""
        if not self.uncached:
            return False
        chance, time = self.uncached * (1 << 32), self.wall_ms // CACHED_MS
        for block in _blocks(size, position):
            reads, _ = self._device_reads.get((path, block), (0, 0))
            if crc32(f"{self._cache_salt} {path} {block} {time} {reads}".encode()) < chance:
                return True
        return False

    def cache(self, path: str, size: int, position: int) -> None:
        """Draw again whether the page cache lacks the blocks of a read; once for all reads of an instant."""
        if self.uncached:
            for block in _blocks(size, position):
                reads, last_ms = self._device_reads.get((path, block), (0, -1))
                self._device_reads[path, block] = reads + (last_ms != self.wall_ms), self.wall_ms

    def heal(self) -> None:
        """Remove all faults."""
        self.faults.clear()
        self.on_call = None
        self.uncached = 0.0
        if self.lies:
            self.lies = False
            self._journal.clear()
            for content in self._files.values():
                content.synced.clear()
                content.grown_from = -1

    def kill(self) -> None:
        """End the process; its written bytes stay."""
        self.life += 1
        self.on_call = None

    def crash(self) -> None:
        """Cut the power: unsynced data survives at random."""
        self.kill()
        survive = self.random.randrange(len(self._journal) + 1)
        for change in reversed(self._journal[survive:]):
            self._undo(change)
        self._journal.clear()
        unit = self.random.choice((SECTOR_BYTES, PAGE_BYTES))
        chance = self.random.choice((0.0, 0.5, 0.9))
        for path in sorted(self._files):
            self._lose(self._files[path], unit, chance)
        self._used_pages = sum(len(content.pages) for content in self._files.values())

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Flip one bit, on the device too."""
        content = self._files[path]
        assert 0 <= offset < content.size, "a flip lies within the file"
        page, within = divmod(offset, PAGE_BYTES)
        content.pages.setdefault(page, bytearray(PAGE_BYTES))[within] ^= 1 << bit
        synced = content.synced.get(page)
        if synced is not None:
            changed = bytearray(synced)
            changed[within] ^= 1 << bit
            content.synced[page] = bytes(changed)

    def peek(self, path: str, size: int, position: int, *, safe: bool) -> bytes:
        """Return bytes of a file without counting a call or failing. `safe`: only bytes that are durable now."""
        content = self._files.get(path)
        if content is None:
            return b""
        if not safe:
            return _load(content.pages, content.size, size, position)
        for change in self._journal:
            if change.content is content:
                return b""
        pages: dict[int, bytes | bytearray] = {}
        for number in range(position // PAGE_BYTES, (position + size) // PAGE_BYTES + 1):
            raw = content.synced[number] if number in content.synced else content.pages.get(number)
            if raw is not None:
                pages[number] = raw
        return _load(pages, content.size if content.grown_from < 0 else content.grown_from, size, position)

    def paths(self) -> tuple[str, ...]:
        """Return all files, sorted."""
        return tuple(sorted(self._files))

    # Internals.

    def count(self, operation: str, path: str) -> None:
        """Count a call."""
        self.counts[operation] += 1
        if self.on_call is not None:
            self.on_call(operation, path)

    def fault(self, operation: str, path: str) -> DiskFault | None:
        """Return the fault that applies to this call, if any."""
        found = None
        for fault in self.faults:
            if fault.life in (None, self.life) and fault.strikes(operation, path, self.wall_ms):
                found = fault
        return found

    def raise_fault(self, operation: str, path: str) -> DiskFault | None:
        """Raise the error of a fault that applies to this call; return one whose call is to succeed."""
        fault = self.fault(operation, path) if self.faults else None
        if fault is not None and fault.effect is DiskEffect.FAILS:
            raise fault.error(f"{path}: a simulated fault of {operation}")
        return fault

    def store(self, content: _Content, data: memoryview, position: int) -> int:
        """Store bytes while there is space; return how many."""
        done = 0
        while done < len(data):
            page, within = divmod(position + done, PAGE_BYTES)
            piece = data[done : done + PAGE_BYTES - within]
            if page not in content.pages and (self._used_pages + 1) * PAGE_BYTES > self.total_bytes:
                break
            self._before_change(content, page)
            if page not in content.pages:
                content.pages[page] = bytearray(PAGE_BYTES)
                self._used_pages += 1
            content.pages[page][within : within + len(piece)] = piece
            done += len(piece)
        if position + done > content.size and done:
            if content.grown_from < 0:
                content.grown_from = content.size
            content.size = position + done
        content.modified_ms = self.wall_ms
        return done

    def _before_change(self, content: _Content, page: int) -> None:
        is_same_instant = content.changed_ms.get(page) == self.wall_ms
        content.changed_ms[page] = self.wall_ms
        if page in content.synced and (is_same_instant or not self._is_written_back(content, page)):
            return
        present = content.pages.get(page)
        content.synced[page] = None if present is None else bytes(present)

    def _is_written_back(self, content: _Content, page: int) -> bool:
        return crc32(f"{content.salt} {page} {self.wall_ms}".encode()) < WRITTEN_BACK * (1 << 32)

    def resize(self, path: str, content: _Content, size: int) -> None:
        """Change a file's length; bytes beyond it are zero when it grows again."""
        change = _Change("truncate", path, content, size=content.size)
        first_gone = -(-size // PAGE_BYTES)
        for page in [page for page in content.pages if page >= first_gone]:
            present = bytes(content.pages.pop(page))
            change.dropped[page] = content.synced.pop(page, present)
            self._used_pages -= 1
        for page in [page for page in content.synced if page >= first_gone]:
            del content.synced[page]
        within = size % PAGE_BYTES
        if within and size // PAGE_BYTES in content.pages and size < content.size:
            self._before_change(content, size // PAGE_BYTES)
            content.pages[size // PAGE_BYTES][within:] = bytes(PAGE_BYTES - within)
        content.size = size
        content.grown_from = -1
        content.modified_ms = self.wall_ms
        self._journal.append(change)

    def commit_names(self, content: _Content) -> None:
        """Make the journal durable up to the last entry about this file."""
        for position in range(len(self._journal) - 1, -1, -1):
            if self._journal[position].content is content:
                del self._journal[: position + 1]
                return

    def _undo(self, change: _Change) -> None:
        if change.kind == "create":
            self._files.pop(change.path, None)
        elif change.kind == "remove":
            self._make_directories(change.path)
            self._files[change.path] = change.content
        elif change.kind == "replace":
            if change.replaced is None:
                self._files.pop(change.path, None)
            else:
                self._files[change.path] = change.replaced
        else:
            self._undo_resize(change)

    def _undo_resize(self, change: _Change) -> None:
        content = change.content
        for page in [page for page in content.pages if page * PAGE_BYTES >= change.size]:
            del content.pages[page]
            content.synced.pop(page, None)
        for page, raw in change.dropped.items():
            if page not in content.pages and raw is not None:
                content.pages[page] = bytearray(raw)
        content.size = change.size
        content.grown_from = -1

    def _lose(self, content: _Content, unit: int, chance: float) -> None:
        for page in sorted(content.synced):
            synced = content.synced[page]
            present = content.pages.get(page)
            if present is None:
                continue
            for start in range(0, PAGE_BYTES, unit):
                if self.random.random() >= chance:
                    old = bytes(unit) if synced is None else synced[start : start + unit]
                    present[start : start + unit] = old
        content.synced.clear()
        if content.grown_from >= 0 and self.random.random() >= chance:
            _shrink(content, content.grown_from)
        content.grown_from = -1

    def _make_directories(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for count in range(1, len(parts) + 1):
            parent = "/".join(parts[:count])
            if parent in self._files:
                raise DiskFailed(f"{path}: {parent} is not a directory")
            self._directories.add(parent)


def _shrink(content: _Content, size: int) -> None:
    last_page, within = divmod(size, PAGE_BYTES)
    content.size = size
    content.pages = {
        page: raw for page, raw in content.pages.items() if page < last_page or (page == last_page and within)
    }
    if within and last_page in content.pages:
        content.pages[last_page][within:] = bytes(PAGE_BYTES - within)


def _load(pages: Mapping[int, bytes | bytearray], end: int, size: int, position: int) -> bytes:
    """Return bytes of a file with `end` bytes; missing pages are zero."""
    size = min(size, end - position)
    if size <= 0:
        return b""
    first, last = position // PAGE_BYTES, (position + size - 1) // PAGE_BYTES
    start = position - first * PAGE_BYTES
    if first == last:
        page = pages.get(first)
        return bytes(size) if page is None else bytes(page[start : start + size])
    if last - first > len(pages) and not any(first <= number <= last for number in pages):
        return bytes(size)
    return b"".join([pages.get(number, _NO_PAGE) for number in range(first, last + 1)])[start : start + size]


def _blocks(size: int, position: int) -> range:
    return range(position // CACHE_BLOCK_BYTES, (position + max(1, size) - 1) // CACHE_BLOCK_BYTES + 1)
