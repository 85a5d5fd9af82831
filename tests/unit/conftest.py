"""Files that are not synced: no test here loses power but on simulated disks (`lab.sim.world.disk`)."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _unsynced() -> Iterator[None]:
    """Do not wait for the disk: that is most of the time of many tests with files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", _check)
        patch.setattr(os, "fsync", _check)
        yield


def _check(fd: int) -> None:
    """Fail for a closed file, as a sync does."""
    os.fstat(fd)
