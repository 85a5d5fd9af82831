"""Damage of logs and tables by `make chaos`: what it changes, its repair, and that a missing repair is found."""

from pathlib import Path
from random import Random

import pytest

from chaos import brokers, damaged_log, damaged_tables, storage_faults
from chaos.storage_faults import StorageFaults, lacking
from chaos.world import World
from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tests.unit.storage.test_forged_records import record_at_place

FILE_BYTES = 64 << 10


def log_file(store: Path) -> Path:
    """Write a full file of a commit log; return its path."""
    data = b""
    while len(data) < FILE_BYTES - 1_000:
        data += record_at_place(len(data), body=b"a body" * 30)
    path = store / "commitlog" / f"{0:020}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data + (FILE_BYTES - len(data)).to_bytes(4) + bytes.fromhex("CBD43194"))
    with path.open("r+b") as file:
        file.truncate(FILE_BYTES)
    return path


def test_every_kind_damages_records_of_a_file(tmp_path: Path) -> None:
    seen = set()
    for seed in range(60):
        path = log_file(tmp_path)
        before = path.read_bytes()
        kind, places = damaged_log.damage(path, Random(seed))
        after = path.read_bytes()
        assert len(after) == len(before)
        changed = [at for at in range(len(before)) if after[at] != before[at]]
        assert changed
        assert min(changed) >= min(places)
        if kind == "flip":
            assert changed == places
        if kind == "zero":
            assert all(after[at] == 0 for at in changed)
        seen.add(kind)
    assert seen == set(damaged_log.KINDS)


def test_only_files_that_all_members_have_are_damaged(tmp_path: Path) -> None:
    path = log_file(tmp_path)
    assert damaged_log.files_before(tmp_path, FILE_BYTES - 1) == []
    assert damaged_log.files_before(tmp_path, FILE_BYTES) == [path]


def test_file_without_records_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020}"
    path.write_bytes(bytes(FILE_BYTES))
    assert damaged_log.damage(path, Random(1)) == ("", [])


_TABLES = ("config/topics.json", "config/consumerOffset.json.bak", "config/topics.changes-0", "config/timermetrics")
_OTHERS = ("config/accessControl.json", "config/quotas.json.bak", "commitlog/0")


def test_every_kind_damages_one_table(tmp_path: Path) -> None:
    seen = set()
    for seed in range(300):
        store = tmp_path / str(seed)
        for name in (*_TABLES, *_OTHERS):
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_bytes(b"older")
        older = damaged_tables.contents(store, has_static_topic=False)
        for name in _TABLES:
            (store / name).write_bytes(f"bytes of {name}".encode())
        now = damaged_tables.contents(store, has_static_topic=False)
        assert {str(path.relative_to(store)) for path in now} == set(_TABLES)
        name, kind = damaged_tables.damage(now, older, Random(seed))
        changed = [path.name for path, data in now.items() if not path.exists() or path.read_bytes() != data]
        assert changed == ([name] if changed else [])
        assert changed or kind == "swapped", "a table may be exchanged for itself"
        assert all((store / other).read_bytes() == b"older" for other in _OTHERS)
        seen.add((name, kind))
    assert {kind for _, kind in seen} == set(damaged_tables.KINDS)
    assert {name for name, _ in seen} == {Path(name).name for name in _TABLES}


def test_mapping_of_a_static_topic_is_never_damaged(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for name in ("topics.json", "topicQueueMapping.json", "consumerOffset.json"):
        (tmp_path / "config" / name).write_bytes(b"{}")
    names = [path.name for path in damaged_tables.contents(tmp_path, has_static_topic=True)]
    assert names == ["consumerOffset.json"]


def test_missing_names_and_lower_offsets_are_found() -> None:
    tables = {
        "topicConfigTable": {"a": {}, "b": {}},
        "subscriptionGroupTable": {"g": {}},
        "offsetTable": {"a@g": {"0": 7, "1": 3}},
    }
    assert lacking(tables, tables) == []
    ahead = tables | {"offsetTable": {"a@g": {"0": 8, "1": 3}, "b@g": {"0": 1}}}
    assert lacking(tables, ahead) == []
    assert lacking(ahead, tables) == ["a@g/0: 8", "b@g/0: 1"]
    assert lacking(tables, tables | {"topicConfigTable": {"a": {}}}) == ["topicConfigTable b"]
    assert lacking(tables, tables | {"topicConfigTable": {"a": {}, "b": {"perm": 4}}}) == ["topicConfigTable b"]
    assert lacking(tables, {}) == ["all tables: it does not answer"]


def _fill(world: World) -> None:
    """Send messages until every member has full files of its log."""
    with BlockingProducer(world.name_server.address, group="fill") as producer:
        for number in range(300):
            producer.send(Message("Filled", bytes(4_000), keys=[str(number)]))
    world.wait(world.is_whole)


@pytest.mark.system
def test_damage_of_a_member_is_repaired(tmp_path: Path) -> None:
    found: list[str] = []
    with World(tmp_path, mode=Mode.ELECT, members=2) as world:
        _fill(world)
        faults = StorageFaults(world, found)
        logs = [faults.log(world.brokers[number % 2], 0.0, Random(number)) for number in range(4)]
        tables = [faults.table(world.brokers[0], 0.0, Random(number)) for number in range(2)]
    assert found == []
    assert {one["live"] for one in logs} == {True, False}
    assert all(one["kind"] for one in (*logs, *tables))


def _planted(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "PROGRAM", ("-m", "tests.chaos.planted", defect))
    monkeypatch.setattr(storage_faults, "REPAIR_SECONDS", 5.0)  # such a broker never does


@pytest.mark.system
def test_damage_that_is_not_repaired_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _planted("never-repairs", monkeypatch)
    found: list[str] = []
    with World(tmp_path, mode=Mode.ELECT, members=2) as world:
        _fill(world)
        StorageFaults(world, found).log(world.brokers[0], 0.0, Random(1))
    assert [text[:15] for text in found] == ["I10: commitlog/"]


def _lose_offsets(now: damaged_tables.Contents, _older: damaged_tables.Contents, _random: Random) -> tuple[str, str]:
    for path in now:
        if path.name.startswith("consumerOffset."):
            path.unlink()
    return "consumerOffset.json", "missing"


def _commit(world: World) -> None:
    """Commit an offset at the master."""
    fields = {"consumerGroup": "g", "topic": "Filled", "queueId": "0", "commitOffset": "7"}
    assert try_request(world.brokers[0].own_address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields=fields))


@pytest.mark.system
def test_table_that_is_not_copied_again_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _planted("ignores-tables", monkeypatch)
    monkeypatch.setattr(damaged_tables, "damage", _lose_offsets)
    found: list[str] = []
    with World(tmp_path, mode=Mode.ELECT, members=2) as world:
        _fill(world)
        _commit(world)
        StorageFaults(world, found).table(world.brokers[0], 0.0, Random(1))
    assert len(found) == 1
    assert "it lacks Filled@g/0: 7" in found[0]
