"""Small JSON tables: one of the two files is valid at any time."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.errors import StoreDamaged
from tandemq.storage.json_tables import DataVersion, TableFile


def test_table_round_trip_keeps_the_previous_one() -> None:
    disk = SimDisk(Random(1))
    assert TableFile("topics.json").load(disk) == {}
    TableFile("topics.json").save(disk, {"a": {"é": [1, None, "x"]}})
    TableFile("topics.json").save(disk, {"a": 2})
    assert TableFile("topics.json").load(disk) == {"a": 2}
    disk.remove("config/topics.json")
    assert TableFile("topics.json").load(disk) == {"a": {"é": [1, None, "x"]}}


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"{", b"[1]", b"\xff", b" \n"])
def test_unreadable_table_is_replaced_by_the_previous_one(content: bytes) -> None:
    disk = SimDisk(Random(1))
    TableFile("t.json").save(disk, {"a": 1})
    TableFile("t.json").save(disk, {"a": 2})
    disk.replace("config/t.json", content)
    assert TableFile("t.json").load(disk) == {"a": 1}


def test_two_unreadable_files_are_refused_with_a_hint() -> None:
    disk = SimDisk(Random(1))
    disk.replace("config/t.json", b"{")
    disk.replace("config/t.json.bak", b"[")
    with pytest.raises(StoreDamaged, match="restore"):
        TableFile("t.json").load(disk)


def test_table_that_can_be_rebuilt_is_dropped_with_its_consequence(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    for name in ("config/t.json", "config/t.json.bak"):
        disk.replace(name, b"{")
    assert TableFile("t.json", rebuilt="it is made again").load(disk) == {}
    assert "it is dropped: it is made again" in caplog.text
    assert TableFile("other.json", rebuilt="it is made again").load(disk) == {}


def test_unchanged_table_is_not_written() -> None:
    disk = SimDisk(Random(1))
    TableFile("t.json").save(disk, {"a": 1})
    before = disk.counts["replace"]
    TableFile("t.json").save(disk, {"a": 1})
    assert disk.counts["replace"] == before


@pytest.mark.parametrize("corrupt", [False, True])
def test_power_loss_at_every_call_leaves_the_old_or_the_new_table(corrupt: bool) -> None:
    for nth in (1,) if corrupt else (1, 2):  # a damaged file does not become the .bak
        disk = SimDisk(Random(nth))
        TableFile("t.json").save(disk, {"a": 1})
        TableFile("t.json").save(disk, {"a": 2})
        if corrupt:
            disk.replace("config/t.json", b"{")
        disk.stop_at(nth, ("replace",))
        with pytest.raises(PowerLoss):
            TableFile("t.json").save(disk, {"a": 3})
        disk.crash()
        assert TableFile("t.json").load(disk)["a"] in (1, 2, 3)


def test_javas_unquoted_keys_are_read() -> None:
    disk = SimDisk(Random(1))
    disk.replace("config/consumerOffset.json", b'{\n\t"offsetTable":{"T@g":{0:12,1:45\n\t\t}\n\t}\n}')
    assert TableFile("consumerOffset.json").load(disk) == {"offsetTable": {"T@g": {"0": 12, "1": 45}}}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["timestamp", "counter", "stateVersion"]), inner)
        ),
        max_leaves=5,
    )
)
def test_version_is_read_from_any_json(value: Any) -> None:
    version = DataVersion.from_json(value)
    assert isinstance(version.counter, int)
    assert DataVersion.from_json(version.as_json()) == version


def test_version_grows_and_is_compared_for_equality() -> None:
    one = DataVersion(5, 1)
    two = one.copy()
    assert one == two
    two.next(6)
    assert (two.timestamp, two.counter) == (6, 2)
    assert one != two
    assert DataVersion(5, 1, 1) != one
