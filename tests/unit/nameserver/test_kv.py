"""The key-value configuration and its file."""

import json
from pathlib import Path

import pytest

from tandemq.errors import DiskFull, RemoteError, StoreDamaged
from tandemq.nameserver import kv_config
from tandemq.nameserver.kv_config import FILE, KeyValues
from tandemq.real.disk import RealDisk


class FullDisk(RealDisk):
    """A full disk."""

    def replace(self, path: str, data: bytes, *, is_secret: bool = False) -> None:
        raise DiskFull(f"{path}: {len(data)} bytes do not fit")


def test_values_survive_a_restart(tmp_path: Path) -> None:
    values = KeyValues(RealDisk(tmp_path))
    values.put("space", "key", "ä value")
    values.put("space", "other", "x")
    values.delete("space", "other")
    values.delete("space", "other")
    again = KeyValues(RealDisk(tmp_path))
    assert again.get("space", "key") == "ä value"
    assert again.namespace("space") == {"key": "ä value"}
    assert again.namespace("nothing") is None
    assert json.loads((tmp_path / FILE).read_text()) == {"configTable": {"space": {"key": "ä value"}}}


def test_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}')
    assert KeyValues(RealDisk(tmp_path)).get("ORDER_TOPIC_CONFIG", "T") == "broker-a:4"


@pytest.mark.parametrize("content", ["{", "[]", '{"configTable":[]}', '{"configTable":{"a":1}}', "\xff"])
def test_damaged_file_stops_the_start_and_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_bytes(content.encode("latin-1"))
    with pytest.raises(StoreDamaged, match=r"kvConfig\.json.*backup"):
        KeyValues(RealDisk(tmp_path))


def test_change_that_cannot_be_written_is_not_applied(tmp_path: Path) -> None:
    KeyValues(RealDisk(tmp_path)).put("space", "key", "old")
    values = KeyValues(FullDisk(tmp_path))
    with pytest.raises(DiskFull):
        values.put("space", "key", "new")
    with pytest.raises(DiskFull):
        values.delete("space", "key")
    assert values.get("space", "key") == "old"


def test_value_beyond_the_limit_is_refused_until_another_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_config, "CHARACTERS_MAX", 20)
    values = KeyValues(RealDisk(tmp_path))
    values.put("s", "a", "12345678")
    values.put("s", "a", "123456789")
    with pytest.raises(RemoteError, match="may have 20"):
        values.put("s", "b", "12345678")
    values.delete("s", "a")
    values.put("s", "b", "12345678")
