from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq import engine
from tandemq.boundary import Disk
from tandemq.errors import DiskFailed
from tandemq.not_cached import FileRange, NotCached
from tandemq.real.disk import RealDisk, RealFile
from tandemq.storage.cached_reads import read_cached


@pytest.mark.parametrize("kind", ["real", "sim"])
def test_cached_bytes_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    disk: Disk = RealDisk(tmp_path) if kind == "real" else SimDisk(Random(1))
    file = disk.open("f", create=True)
    file.pwrite(bytes(range(256)) * 2_000, 100)
    for size, position in ((0, 0), (7, 300), (5_000, 4_090), (512_000, 100), (300_000, 400_000), (10, 600_000)):
        assert read_cached(file, size, position) == file.pread(size, position)


def test_bytes_that_are_not_cached_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk(tmp_path).open("f", create=True)
    file.pwrite(bytes(1_000), 0)
    monkeypatch.setattr(engine, "read_cached", lambda *_: None)
    assert read_cached(file, 500, 200) == bytes(500), "the file is asked as well"
    monkeypatch.setattr(RealFile, "pread_cached", lambda *_: None)
    with pytest.raises(NotCached) as missing:
        read_cached(file, 500, 200)
    assert list(missing.value.ranges) == [FileRange(file, 200, 500)]


def test_closed_file_is_an_error(tmp_path: Path) -> None:
    file = RealDisk(tmp_path).open("f", create=True)
    file.close()
    with pytest.raises(DiskFailed):
        read_cached(file, 500, 200)
