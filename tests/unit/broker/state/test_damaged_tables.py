"""Tables of `config/` that are empty, cut, swapped, zeroed or missing."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import StoreDamaged
from tandemq.model.codes import RequestCode
from tests.spec import spec
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness

NAMES = ("topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json")
Damage = Callable[[Path], None]


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _zeroed(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def _cut(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def _swapped(file: Path) -> None:
    file.write_bytes(b'{\n "somethingElse":{}\n}')


def _missing(file: Path) -> None:
    file.unlink()


DAMAGES = (_empty, _zeroed, _cut, _swapped, _missing)


def _with_tables(path: Path) -> None:
    """Leave a store whose tables were each written twice."""
    broker = Harness(path)
    for number in (1, 2):
        broker.create_topic(f"Topic{number}")
        broker.send(topic=f"Topic{number}", DELAY="1")
        broker.send(topic=f"Topic{number}")
        broker.commit(number, topic="Topic1")
        broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g%d"}' % number)
        broker.pass_time(12_000)
    broker.node.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_table_is_replaced_by_the_bak_with_an_error(
    tmp_path: Path, name: str, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    _with_tables(tmp_path)
    damage(tmp_path / "config" / name)
    caplog.clear()
    broker = Harness(tmp_path)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert any(f"config/{name}" in error and ".bak is used" in error for error in errors), errors
    assert {"Topic1", "Topic2"} <= set(broker.node.topics.table)
    assert broker.committed(topic="Topic1") in (1, 2)
    assert "g1" in broker.node.groups.table
    broker.pass_time(12_000)
    broker.node.close()
    caplog.clear()
    Harness(tmp_path)
    assert not [record for record in caplog.records if record.levelno == logging.ERROR], "it is whole again"


@pytest.mark.parametrize("name", NAMES[1:])
@pytest.mark.parametrize("damage", DAMAGES[:-1])
def test_table_without_a_valid_file_is_refused_with_what_to_do(tmp_path: Path, name: str, damage: Damage) -> None:
    _with_tables(tmp_path)
    damage(tmp_path / "config" / name)
    (tmp_path / "config" / f"{name}.bak").unlink()
    with pytest.raises(StoreDamaged, match="restore") as refused:
        Harness(tmp_path)
    assert f"config/{name}" in str(refused.value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_topics_without_a_valid_file_are_rebuilt_from_their_queues(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    _with_tables(tmp_path)
    for file in (tmp_path / "config").glob("topics*"):
        if file.name == "topics.json":
            damage(file)
        else:
            file.unlink()
    broker = Harness(tmp_path)
    found = broker.node.topics.table
    assert found["Topic1"].config.write_queue_nums >= 1
    assert "topic=Topic2 is rebuilt from its 1 queues" in caplog.text
    assert broker.pull(topic="Topic2") is not None
    assert "SCHEDULE_TOPIC_XXXX" in found
    broker.node.close()
    caplog.clear()
    assert "Topic2" in Harness(tmp_path).node.topics.table
    assert "rebuilt" not in caplog.text


def test_file_that_was_damaged_does_not_become_the_bak(tmp_path: Path) -> None:
    _with_tables(tmp_path)
    file = tmp_path / "config" / "consumerOffset.json"
    backup = file.with_name("consumerOffset.json.bak")
    before = loads(backup.read_bytes())
    _empty(file)
    broker = Harness(tmp_path)
    broker.commit(7, topic="Topic1")
    broker.pass_time(12_000)
    assert loads(backup.read_bytes())["offsetTable"] == before["offsetTable"]
    assert file.read_bytes()


@spec("M09")
@pytest.mark.parametrize("damage", [_empty, _missing])
@pytest.mark.parametrize("with_bak", [False, True])
def test_master_whose_offsets_may_be_older_gets_those_of_its_slave(
    tmp_path: Path, damage: Damage, *, with_bak: bool
) -> None:
    group = Group(tmp_path)
    group.tell_master(group.slave)
    group.send_many(20)
    for offset in (5, 15):
        group.master.commit(offset)
        group.pass_time(10_000)
    group.stop(group.master, clean=True)
    file = tmp_path / "master" / "config" / "consumerOffset.json"
    if not with_bak:
        file.with_name(f"{file.name}.bak").unlink()
        file.unlink()
    else:
        damage(file)
    group.restart_master()
    group.tell_master(group.slave)
    group.pass_time(20_000)
    for member in (group.master, group.slave):
        assert member.node.offsets.get("TopicA", "group", 0) == 15
    assert not group.master.node.offsets.may_lack_commits
    group.master.commit(3)
    group.pass_time(20_000)
    assert group.slave.node.offsets.get("TopicA", "group", 0) == 3, "a slave keeps its own only once"


def test_new_store_is_not_may_lack_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Harness(tmp_path)
    assert isinstance(broker.node.kernel.saver, Saver)
    assert not broker.node.offsets.may_lack_commits
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
