"""Asynchronous syncs by the kernel: their results are reported, and other jobs are refused."""

import ctypes
import errno
import platform
import select
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Job, JobDone
from tandemq.errors import DiskFailed, DiskFull
from tandemq.real import file_syncs
from tandemq.real.disk import RealDisk, RealFile
from tandemq.real.file_syncs import FileSyncs


@pytest.fixture
def syncs() -> Iterator[FileSyncs]:
    made = FileSyncs()
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> RealFile:
    return RealDisk(tmp_path).open("file", create=True)


def job_of(*files: Any) -> Job:
    """Return a job that syncs files and must not be run by the test."""

    def run() -> None:
        raise AssertionError("the system does it")

    return Job("sync", run, syncs=files)


def done_of(syncs: FileSyncs, count: int = 1) -> list[JobDone]:
    """Wait for this number of finished jobs and return them."""
    found: list[JobDone] = []
    ready = select.poll()
    ready.register(syncs.fd, select.POLLIN)
    while len(found) < count:
        assert ready.poll(30_000), "a sync did not end"
        found += syncs.take_done()
    return found


def test_completed_sync_is_reported(syncs: FileSyncs, file: RealFile) -> None:
    for number in range(3):
        file.pwrite(b"x" * 10_000, number * 10_000)
        job = job_of(file)
        assert syncs.begin(job)
        assert [(done.job, done.error) for done in done_of(syncs)] == [(job, None)]
    assert syncs.take_done() == []


def test_concurrent_syncs_are_reported_separately(syncs: FileSyncs, tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    jobs = set()
    for number in range(20):
        file = disk.open(str(number), create=True)
        file.pwrite(b"x", 0)
        job = job_of(file)
        assert syncs.begin(job)
        jobs.add(job)
    assert {done.job for done in done_of(syncs, 20)} == jobs


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, DiskFailed), (errno.ENOSPC, DiskFull)])
def test_failed_sync_is_reported_like_one_of_a_thread(
    code: int, kind: type, syncs: FileSyncs, file: RealFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: Any = syncs._system

    def failing(number: int, *args: Any) -> int:
        count = int(call(number, *args))
        if number == syncs._get_events and count:
            file_syncs._DONE.pack_into(syncs._done, 0, *file_syncs._DONE.unpack_from(syncs._done)[:2], -code, 0)
        return count

    monkeypatch.setattr(syncs, "_system", failing)
    assert syncs.begin(job_of(file))
    (done,) = done_of(syncs)
    assert type(done.error) is kind
    assert str(done.error).startswith(file.path)


def test_other_jobs_are_left_to_a_thread(syncs: FileSyncs, file: RealFile) -> None:
    assert not syncs.begin(Job("other work", lambda: None))
    assert not syncs.begin(job_of(file, file))
    assert not syncs.begin(job_of(SimDisk(Random(1)).open("file", create=True)))
    file.close()
    assert not syncs.begin(job_of(file))


def test_missing_io_submit_is_detected(monkeypatch: pytest.MonkeyPatch, file: RealFile) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    syncs = FileSyncs()
    assert (syncs.fd, syncs.begin(job_of(file))) == (-1, False)
    syncs.close()


def test_refusal_of_the_kernel_is_detected(monkeypatch: pytest.MonkeyPatch, file: RealFile) -> None:
    monkeypatch.setattr(
        file_syncs, "_CALLS", {platform.machine(): (10**6,) * 4}
    )  # unknown call numbers, as if a container forbade them
    before = len(list(Path("/proc/self/fd").iterdir()))
    syncs = FileSyncs()
    assert (syncs.fd, syncs.begin(job_of(file))) == (-1, False)
    assert ctypes.get_errno() in (0, errno.ENOSYS)
    syncs.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
