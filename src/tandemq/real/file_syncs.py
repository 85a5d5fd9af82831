"""Asynchronous fdatasync, executed by the kernel instead of a worker thread.

    begin(job) ──► io_submit(fdatasync) ── kernel threads ──► `fd` is readable ──► take_done()

A worker thread must acquire the interpreter lock before and after `fdatasync`, and waits each time until the loop
releases it; the kernel does not. Where io_submit is not available (not Linux, another processor, a container that
forbids it), `begin` returns False and a worker thread runs the job.

Source: io_submit(2), IOCB_CMD_FDSYNC; eventfd(2); docs/decisions/0013-asynchronous-fdatasync.md.
"""

import ctypes
import os
import platform
from struct import Struct

from tandemq.boundary import Job, JobDone
from tandemq.real.disk import RealFile

AT_ONCE_MAX = 64
_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""Numbers of io_setup, io_destroy, io_getevents and io_submit."""
_REQUEST = Struct("<QIIHhIQQqQII")
_DONE = Struct("<QQqq")
_FDSYNC = 3
_RESFD_FLAG = 1
"""IOCB_FLAG_RESFD: signal completion on an eventfd."""


class FileSyncs:
    """Syncs in progress. Used by the loop's thread only."""

    def __init__(self) -> None:
        """Set up an io context, if the kernel supports it."""
        self.fd = -1
        """Readable when a sync is done; -1 if io_submit is not available."""
        self._in_progress: dict[int, tuple[Job, RealFile]] = {}
        self._next = 0
        numbers = _CALLS.get(platform.machine())
        if numbers is None or not hasattr(os, "eventfd"):
            return
        self._setup, self._destroy, self._get_events, self._submit = numbers
        self._system = ctypes.CDLL(None, use_errno=True).syscall
        self._context = ctypes.c_ulong(0)
        self._request = ctypes.create_string_buffer(_REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._done = ctypes.create_string_buffer(_DONE.size * AT_ONCE_MAX)
        if self._system(self._setup, AT_ONCE_MAX, ctypes.byref(self._context)) == 0:
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def begin(self, job: Job) -> bool:
        """Begin a job that only syncs one file; False, with nothing begun, for another job or if the kernel refuses."""
        if self.fd < 0 or len(job.syncs) != 1 or not isinstance(job.syncs[0], RealFile):
            return False
        file, number = job.syncs[0], self._next
        descriptor = file.fileno() & 0xFFFFFFFF
        _REQUEST.pack_into(self._request, 0, number, 0, 0, _FDSYNC, 0, descriptor, 0, 0, 0, 0, _RESFD_FLAG, self.fd)
        if self._system(self._submit, self._context, 1, self._requests) != 1:
            return False
        self._next += 1
        self._in_progress[number] = job, file
        return True

    def take_done(self) -> list[JobDone]:
        """Return the jobs that ended since the last call."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        count = self._system(self._get_events, self._context, 0, AT_ONCE_MAX, self._done, None)
        done: list[JobDone] = []
        for number, _, result, _ in _DONE.iter_unpack(self._done.raw[: max(0, count) * _DONE.size]):
            job, file = self._in_progress.pop(number)
            error = None if result >= 0 else file.error(OSError(-result, os.strerror(-result)))
            done.append(JobDone(job, error=error))
        return done

    def close(self) -> None:
        """Wait for the syncs in progress, then release the io context."""
        if self.fd >= 0:
            self._system(self._destroy, self._context)
            os.close(self.fd)
            self.fd = -1
