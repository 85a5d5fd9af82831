"""File system access with pread, pwrite and fdatasync. No mmap: it hides errors and the order of writes.

This is the only place where OSErrors are converted to StoreErrors.
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns

from tandemq.boundary import Buffer, DiskUsage, split_buffers
from tandemq.errors import DiskFailed, DiskFull, StoreDamaged, StoreError, StoreLocked
from tandemq.real.descriptors import cached_files_max
from tandemq.telemetry.buckets import DurationBuckets

TIMED = "commitlog/"
BUFFERS_PER_WRITE = 1024
"""The kernel accepts no more in one call."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a call that opens a file: it did nothing, and may succeed later."""
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
"""Flag of a read that must not wait for the device; 0 where the system has none, and each read may wait."""
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Errors of file systems that do not know the flag."""


def _error_of(what: str, error: OSError) -> DiskFull | DiskFailed:
    """Convert an error of an open file."""
    if error.errno in _FULL:
        return DiskFull(f"{what}: no space left on the device", hint="free space; nothing is lost")
    return DiskFailed(
        f"{what}: {os.strerror(error.errno or 0)}", hint="check the device and the permissions of the file"
    )


def _opened(what: str, flags: int, mode: int = 0o644) -> int:
    """Open a file and return its descriptor.

    Raises:
        DiskFull: the process or the machine lacks descriptors or memory for it now.
        OSError: any other error.
    """
    try:
        return os.open(what, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in _SCARCE:
            raise
        text = f"{what}: {os.strerror(error.errno)}"
        raise DiskFull(text, hint="raise the limit of open files, or of memory; nothing is lost") from error


@contextmanager
def _store_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error_of(what, error) from error
    except ValueError as error:  # raised by Python for the descriptor -1
        raise DiskFailed(f"{what}: the file is closed") from error


class RealFile:
    """An open file."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        """Take over a descriptor; `close` closes it."""
        self.path = path
        self._fd = fd

    def pwrite(self, data: Buffer, position: int) -> None:
        """See `boundary.File`."""
        try:
            written = os.pwrite(self._fd, data, position)
        except OSError as error:
            raise self.error(error) from error
        if written < len(data):
            self._finish(memoryview(data)[written:], position + written)

    def _finish(self, rest: memoryview, position: int) -> None:
        with _store_errors(self.path):
            while rest:
                written = os.pwrite(self._fd, rest, position)
                if written == 0:
                    raise OSError(errno.ENOSPC, "nothing more was written")
                rest, position = rest[written:], position + written

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """See `boundary.File`."""
        rest = [part for part in parts if len(part)]
        while rest:
            try:
                written = os.pwritev(self._fd, rest[:BUFFERS_PER_WRITE], position)
            except OSError as error:
                raise self.error(error) from error
            if written == 0:
                raise self.error(OSError(errno.ENOSPC, "nothing more was written"))
            position += written
            rest = split_buffers(rest, written)[1]

    def fileno(self) -> int:
        """See `boundary.File`; -1 once it is closed."""
        return self._fd

    def error(self, error: OSError) -> DiskFull | DiskFailed:
        """Convert an OSError of an operation on this file."""
        return _error_of(self.path, error)

    def pread(self, size: int, position: int) -> bytes:
        """See `boundary.File`."""
        try:
            return os.pread(self._fd, size, position)
        except OSError as error:
            raise self.error(error) from error

    def pread_cached(self, size: int, position: int) -> bytes | None:
        """See `boundary.File`."""
        buffer = bytearray(size)
        try:
            count = os.preadv(self._fd, [buffer], position, RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _NOT_SUPPORTED:
                return self.pread(size, position)
            raise self.error(error) from error
        if count == size:
            return bytes(buffer)
        # What is missing is behind the end of the file, or not cached.
        return bytes(buffer[:count]) if position + count >= self.size() else None

    def will_read(self, size: int, position: int) -> None:
        """See `boundary.File`."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_WILLNEED)

    def datasync(self) -> None:
        """See `boundary.File`."""
        with _store_errors(self.path):
            os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """See `boundary.File`."""
        with _store_errors(self.path):
            os.ftruncate(self._fd, size)

    def size(self) -> int:
        """See `boundary.File`."""
        with _store_errors(self.path):
            return os.fstat(self._fd).st_size

    def next_data(self, position: int) -> int:
        """See `boundary.File`."""
        size = self.size()
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA) if position < size else size
        except OSError as error:
            if error.errno == errno.ENXIO:
                return size
            if error.errno == errno.EINVAL:  # the file system does not support SEEK_DATA
                return position
            raise self.error(error) from error

    def close(self) -> None:
        """See `boundary.File`."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Close a file that was dropped from a cache, once no sync job uses it any more."""
        self.close()


class TimedFile(RealFile):
    """A file whose writes are timed."""

    __slots__ = ("_writes",)

    def __init__(self, path: str, fd: int, writes: DurationBuckets) -> None:
        """Take over a descriptor; the durations of writes are counted in `writes`."""
        super().__init__(path, fd)
        self._writes = writes

    def pwrite(self, data: Buffer, position: int) -> None:
        """See `boundary.File`."""
        began_ns = monotonic_ns()
        super().pwrite(data, position)
        self._writes.add(monotonic_ns() - began_ns)

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """See `boundary.File`."""
        began_ns = monotonic_ns()
        super().pwritev(parts, position)
        self._writes.add(monotonic_ns() - began_ns)


def sync_names(directory: Path) -> None:
    """Sync the names of the files in a directory: otherwise a power loss may undo a new one or a rename.

    Raises:
        OSError: it failed.
    """
    fd = _opened(str(directory), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class RealDisk:
    """A directory tree of the file system."""

    open_files_max: int
    """See `boundary.Disk`."""
    writes: DurationBuckets | None = None
    """Durations of writes to files below `TIMED`, if they are to be counted; set before files are opened."""

    def __init__(self, root: str | Path, *, setting: str = "storePathRootDir") -> None:
        """Create the directory if it does not exist.

        Args:
            root: the directory.
            setting: name of the setting that gives it, for error messages.

        Raises:
            DiskFull, DiskFailed: the directory cannot be created or written.
        """
        self.root = Path(root)
        self._prefix = f"{self.root}/"
        self._setting = setting
        with _store_errors(f"{setting}: the directory {self.root} cannot be made"):
            self.root.mkdir(parents=True, exist_ok=True)
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise DiskFailed(f"{self.root} is not writable", hint=f"change its owner or choose another {setting}")
        self._lock_fd = -1
        self.open_files_max = cached_files_max()

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the directory to the message of StoreDamaged errors: the core knows only relative paths."""
        try:
            yield
        except StoreDamaged as error:
            raise StoreDamaged(f"{self._setting} {self.root}: {error.args[0]}", hint=error.hint) from error

    def lock(self) -> None:
        """Lock the directory for this process; RocketMQ uses the same lock.

        Raises:
            StoreLocked: another process holds the lock.
        """
        path = self.root / "lock"
        with _store_errors(str(path)):
            fd = _opened(str(path), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(fd)
            raise StoreLocked(
                f"another process is using {self.root}",
                hint=f"stop it, or give this one a directory of its own: {self._setting}",
            ) from error
        self._lock_fd = fd
        try:
            with _store_errors(str(path)):
                os.pwrite(fd, b"lock", 0)
        except StoreError:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def open(self, path: str, *, create: bool = False, is_secret: bool = False) -> RealFile:
        """See `boundary.Disk`."""
        full = self._prefix + path
        with _store_errors(full):
            if create:
                os.makedirs(os.path.dirname(full), exist_ok=True)
            fd = _opened(full, os.O_RDWR | (os.O_CREAT if create else 0), 0o600 if is_secret else 0o644)
        if self.writes is not None and path.startswith(TIMED):
            return TimedFile(full, fd, self.writes)
        return RealFile(full, fd)

    def list(self, path: str) -> list[str]:
        """See `boundary.Disk`."""
        full = self._prefix + path
        with _store_errors(full):
            try:
                return sorted(os.listdir(full))
            except FileNotFoundError:
                return []

    def exists(self, path: str) -> bool:
        """See `boundary.Disk`."""
        return (self.root / path).exists()

    def read(self, path: str) -> bytes | None:
        """See `boundary.Disk`."""
        with _store_errors(str(self.root / path)):
            try:
                return (self.root / path).read_bytes()
            except FileNotFoundError:
                return None

    def replace(self, path: str, data: bytes, *, is_secret: bool = False) -> None:
        """See `boundary.Disk`."""
        full = self.root / path
        temporary = full.with_name(full.name + ".tmp")
        with _store_errors(str(full)):
            full.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if is_secret else 0o644
            fd = _opened(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fdatasync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, full)
            sync_names(full.parent)

    def remove(self, path: str) -> None:
        """See `boundary.Disk`."""
        full = self.root / path
        with _store_errors(str(full)):
            if full.is_dir():
                shutil.rmtree(full)
            else:
                full.unlink(missing_ok=True)

    def modified_ms(self, path: str) -> int:
        """See `boundary.Disk`."""
        with _store_errors(str(self.root / path)):
            return os.stat(self.root / path).st_mtime_ns // 1_000_000

    def usage(self) -> DiskUsage:
        """See `boundary.Disk`."""
        with _store_errors(str(self.root)):
            stats = os.statvfs(self.root)
        used = stats.f_blocks - stats.f_bfree
        return DiskUsage((used + stats.f_bavail) * stats.f_frsize, stats.f_bavail * stats.f_frsize)
