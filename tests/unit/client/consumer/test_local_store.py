"""Offsets of broadcasting groups in files."""

from pathlib import Path

import pytest

from tandemq.client.consumer.offsets.local_store import FileOffsetStorage
from tandemq.errors import DiskFailed
from tandemq.model.message import MessageQueue

OFFSETS = {MessageQueue("T", "a", 0): 5, MessageQueue("%RETRY%g", "b/c", 3): 0}


def test_offsets_are_read_back(tmp_path: Path) -> None:
    FileOffsetStorage("me", tmp_path).write("a/group", OFFSETS)
    assert FileOffsetStorage("me", tmp_path).read("a/group") == OFFSETS
    assert FileOffsetStorage("you", tmp_path).read("a/group") == {}


def test_generated_client_ids_share_the_machines_file(tmp_path: Path) -> None:
    FileOffsetStorage("10.0.0.1@123#abc", tmp_path).write("g", OFFSETS)
    assert FileOffsetStorage("10.0.0.1@456#def", tmp_path).read("g") == OFFSETS


def test_damaged_file_raises(tmp_path: Path) -> None:
    offsets = FileOffsetStorage("me", tmp_path)
    offsets.write("g", OFFSETS)
    (path,) = tmp_path.rglob("*.json")
    path.write_bytes(b"{")
    with pytest.raises(DiskFailed):
        offsets.read("g")


def test_unusable_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "me").write_bytes(b"")
    with pytest.raises(DiskFailed):
        FileOffsetStorage("me", tmp_path).write("g", OFFSETS)
