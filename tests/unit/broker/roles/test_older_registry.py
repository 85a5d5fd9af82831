"""Whole brokers whose registry is restored from a backup: acknowledged messages stay in the logs that have them."""

import json
from pathlib import Path

import pytest

from tandemq.broker.roles import journal
from tandemq.broker.roles.journal import FILE
from tandemq.coordination.registry.records import Mode
from tandemq.coordination.registry.tree import Tree
from tandemq.errors import DiskFull, StoreDamaged
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
from tests.unit.broker.harness import messages_in, send_fields
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

COUNT = 50


def log_of(broker: Broker) -> bytes:
    """Return all bytes of a member's log."""
    log = broker.node.store.log
    return log.read(log.start, log.written_end - log.start)


def stop(group: RegistryGroup, *numbers: int) -> None:
    for number in numbers:
        group.kill(number)
    group.pass_time(5_000)


@spec("F09", "F30", "R11")
def test_older_registry_that_elects_a_member_which_had_left_truncates_no_acknowledged_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3)
    group.pass_time(2_000)
    assert group.record.in_sync == (0, 1, 2) and group.record.master == 0
    backup = group.tree.snapshot()
    stop(group, 2)
    assert set(group.record.in_sync) == {0, 1}
    master = group.serving
    assert [group.send(master, b"acknowledged") for _ in range(COUNT)] == [ResponseCode.SUCCESS] * COUNT
    group.pass_time(500)
    known = log_of(master)
    assert log_of(group.brokers[1]) == known
    stop(group, 0, 1)
    group.tree = Tree()
    group.tree.restore(backup)
    assert group.record.in_sync == (0, 1, 2)

    group.start(2)
    group.pass_time(10_000)
    assert group.serving is group.brokers[2], "it cannot know"
    assert group.send(group.brokers[2], b"on the other branch") == ResponseCode.SLAVE_NOT_AVAILABLE, "it stores"
    caplog.clear()
    for number in (0, 1):
        group.start(number)
    group.pass_time(10_000)
    for number in (0, 1):
        assert log_of(group.brokers[number]) == known
        assert not (tmp_path / f"b{number}" / "set-aside").exists()
        assert group.brokers[number].stage == "unread"
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len([text for text in errors if "this broker serves no client and truncates nothing" in text]) == 2
    assert len([text for text in errors if "broker 0, 1 has seen a newer record of the group" in text]) == 1
    answer = group.brokers[0].ask(RequestCode.TANDEM_FAILOVER_STATUS)
    assert "does not continue the newest one that this broker has seen" in json.loads(answer.body)["trouble"]

    stop(group, 2)
    preview = group.brokers[0].ask(RequestCode.TANDEM_FORCE_MASTER, {"preview": "true"})
    assert preview.code == ResponseCode.SUCCESS
    assert "broker 2 (not connected)" in str(preview.remark) and "acknowledged ones too" in str(preview.remark)
    order = group.brokers[0].send_request(RequestCode.TANDEM_FORCE_MASTER, {})
    group.pass_time(6_000)
    done = group.brokers[0].answer_to(order)
    assert done is not None and done.code == ResponseCode.SUCCESS
    group.start(2)
    group.pass_time(10_000)
    assert group.serving is group.brokers[0] and group.record.in_sync == (0, 1, 2)
    assert log_of(group.brokers[0]).startswith(known)
    assert log_of(group.brokers[2]) == log_of(group.brokers[0]) == log_of(group.brokers[1])
    kept = [path.read_bytes() for path in (tmp_path / "b2" / "set-aside").rglob("*") if path.is_file()]
    assert any(b"on the other branch" in data for data in kept)


@spec("F09")
def test_newest_record_survives_restarts_and_a_group_that_only_restarts_is_not_refused(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3)
    group.pass_time(2_000)
    for number in (0, 1, 2, 0, 1, 2):
        group.kill(number)
        group.pass_time(5_000)
        group.start(number)
        group.pass_time(3_000)
    stop(group, 0, 1, 2)
    for number in (0, 1, 2):
        saved = json.loads((tmp_path / f"b{number}" / FILE.path).read_bytes())
        assert saved["seen"]["epoch"] == group.record.epoch
        assert saved["seen"]["changes"][-1] == list(group.record.changes[-1])
        group.start(number)
    group.pass_time(10_000)
    assert group.serving.failover.member.problem(group.now.mono_ms) == ""
    assert group.record.in_sync == (0, 1, 2)


@spec("F09")
def test_master_that_cannot_save_a_changed_record_acknowledges_no_message_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = RegistryGroup(tmp_path, Mode.ELECT)
    master = pair.brokers[0]
    assert pair.send(master) == ResponseCode.SUCCESS

    def full(*_: object) -> None:
        raise DiskFull("failover.json: no space left")

    with monkeypatch.context() as patch:
        patch.setattr(TableFile, "save", full)
        pair.kill(1)
        sent = []
        for _ in range(20):
            sent.append(master.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"body"))
            pair.pass_time(500)
        assert pair.record.in_sync == (0,)
        answers = [master.answer_to(opaque) for opaque in sent]
        assert {answer.code for answer in answers if answer} == {
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            ResponseCode.NO_PERMISSION,
        }
        assert answers[-1] and "the group's record cannot be saved on its disk" in str(answers[-1].remark)
        pulled = master.pull("TopicA")
        assert pulled is not None and len(messages_in(pulled)) > 1, "consumers are served"
    pair.pass_time(1_000)
    assert pair.send(master) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert journal.FILE.load(master.node.kernel.disk)["seen"]["inSync"] == [0]


def test_malformed_record_in_the_store_is_reported(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    group.kill(0)
    path = tmp_path / "b0" / FILE.path
    path.write_text('{"isLogWhole": true, "seen": {"epoch": "x"}}')
    with pytest.raises(StoreDamaged, match=r"failover\.json: seen: .*delete the field"):
        group.start(0)
