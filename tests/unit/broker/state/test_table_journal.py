"""Topics and groups that change are saved in a journal beside their tables, and survive a kill at any moment."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import PowerLoss, SimDisk
from tandemq.boundary import JobDone
from tandemq.broker.state import persistence, table_journal
from tandemq.broker.state.persistence import FOLD_MS
from tandemq.errors import DiskFailed, DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, run_job

TABLE, BEFORE = "config/topics.json", "config/topics.json.bak"


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """A broker with TopicA in topics.json, and TopicB and TopicC in the journal only."""
    found = Harness(tmp_path)
    for name in ("TopicA", "TopicB", "TopicC"):
        found.create_topic(name)
    return found


def files(broker: Harness, stem: str = "topics") -> list[str]:
    return [name for name in broker.disk.list("config") if name.startswith(f"{stem}.changes-")]


def table(broker: Harness) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(broker.disk.read(TABLE) or b"{}")
    return found


def topics(broker: Harness) -> set[str]:
    """Topics that the test created."""
    return {name for name in broker.node.topics.table if name.startswith("Topic")}


def on_disk(broker: Harness) -> set[str]:
    return {name for name in table(broker)["topicConfigTable"] if name.startswith("Topic")}


def delete(broker: Harness, name: str) -> None:
    answer = broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name})
    assert answer.code == ResponseCode.SUCCESS


def rewrite(broker: Harness, name: str, data: bytes) -> None:
    broker.disk.replace(f"config/{name}", data)


def test_change_writes_one_line_and_not_the_table(broker: Harness) -> None:
    assert on_disk(broker) == {"TopicA"}
    [name] = files(broker)
    before = broker.disk.read(f"config/{name}") or b""
    broker.create_topic("TopicD")
    after = broker.disk.read(f"config/{name}") or b""
    assert after.startswith(before)
    assert 0 < len(after) - len(before) < 500
    assert on_disk(broker) == {"TopicA"}


def test_killed_broker_has_every_change_and_its_version_and_writes_the_table(broker: Harness) -> None:
    delete(broker, "TopicB")
    broker.create_topic("TopicA", queues=7)
    version = broker.node.topics.version
    again = broker.restart(clean=False)
    assert topics(again) == {"TopicA", "TopicC"}
    assert again.node.topics.table["TopicA"].config.write_queue_nums == 7
    assert again.node.topics.version == version
    again.turn()
    assert on_disk(again) == {"TopicA", "TopicC"}
    assert table(again)["dataVersion"] == version.as_json()
    assert len(files(again)) == 1
    assert topics(again.restart(clean=False)) == {"TopicA", "TopicC"}


def test_table_is_written_after_ten_seconds_and_at_a_clean_stop(broker: Harness) -> None:
    assert FOLD_MS == 10_000
    broker.pass_time(FOLD_MS)
    assert on_disk(broker) == {"TopicA", "TopicB", "TopicC"}
    written = broker.disk.modified_ms(TABLE)
    broker.pass_time(3 * FOLD_MS)
    assert broker.disk.modified_ms(TABLE) == written, "nothing changed"
    broker.create_topic("TopicD")
    assert "TopicD" not in on_disk(broker)
    broker.node.close()
    assert "TopicD" in on_disk(broker)
    assert files(broker) == []


def test_large_journal_is_folded(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "JOURNAL_BYTES_MAX", 2_000)
    for number in range(40):
        broker.create_topic(f"Topic{number}")
    [name] = files(broker)
    assert len(broker.disk.read(f"config/{name}") or b"") < 3_000
    assert len(on_disk(broker)) > 30
    assert len(topics(broker.restart(clean=False))) == 43


def test_groups_have_a_journal_too(broker: Harness) -> None:
    for name in ("one", "two", "three"):
        body = json.dumps({"groupName": name, "retryMaxTimes": 3}).encode()
        broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "two"})
    version = broker.node.groups.version
    groups = json.loads(broker.disk.read("config/subscriptionGroup.json") or b"")["subscriptionGroupTable"]
    assert "three" not in groups
    again = broker.restart(clean=False)
    assert {"one", "three"} <= again.node.groups.table.keys()
    assert "two" not in again.node.groups.table
    assert again.node.groups.table["three"].retry_max_times == 3
    assert again.node.groups.version == version


def test_line_cut_at_a_byte_loses_only_its_own_change(broker: Harness) -> None:
    [name] = files(broker)
    before, whole = broker.disk.read(TABLE) or b"", broker.disk.read(f"config/{name}") or b""
    begin = whole.rindex(b"\n", 0, -1) + 1
    for end in (*range(begin, len(whole) - 1, 9), len(whole) - 1):
        for other in files(broker):
            broker.disk.remove(f"config/{other}")
        rewrite(broker, "topics.json", before)
        rewrite(broker, name, whole[:end])
        again = broker.restart(clean=False)
        is_complete = end == len(whole) - 1
        assert topics(again) == {"TopicA", "TopicB", *(["TopicC"] if is_complete else [])}, end
        assert again.node.topics.version.counter == 2 + is_complete


def test_damaged_line_is_logged_and_left_out_and_the_version_is_a_new_one(
    broker: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    [name] = files(broker)
    whole = bytearray(broker.disk.read(f"config/{name}") or b"")
    whole[whole.index(b"TopicB")] ^= 1
    rewrite(broker, name, bytes(whole))
    again = broker.restart(clean=False)
    assert topics(again) == {"TopicA", "TopicC"}
    assert f"{name}: damaged and left out: lines [2]" in caplog.text
    assert again.node.topics.version.counter == broker.node.topics.version.counter + 1


def test_line_that_is_no_change_of_topics_is_left_out(broker: Harness, caplog: pytest.LogCaptureFixture) -> None:
    [name] = files(broker)
    whole = broker.disk.read(f"config/{name}") or b""
    wrong: list[dict[str, Any]] = [
        {"dataVersion": None, "topicConfigTable": {"TopicX": {"perm": []}}},
        {"tandemRemoved": 5},
        {"topicConfigTable": {"TopicD": {"perm": 6}}},
    ]
    rewrite(broker, name, whole + b"".join([table_journal._line(change) for change in wrong]))
    assert topics(broker.restart(clean=False)) == {"TopicA", "TopicB", "TopicC", "TopicD"}
    assert caplog.text.count("cannot be read and is left out") == 2


def test_kill_between_table_and_deletion_of_the_old_journal(broker: Harness) -> None:
    [old] = files(broker)
    delete(broker, "TopicB")
    data = broker.disk.read(f"config/{old}") or b""
    broker.pass_time(FOLD_MS)
    rewrite(broker, old, data)
    broker.create_topic("TopicD")
    version = broker.node.topics.version
    assert len(files(broker)) == 2
    again = broker.restart(clean=False)
    assert topics(again) == {"TopicA", "TopicC", "TopicD"}
    assert again.node.topics.version == version


def test_kill_before_the_table_is_written_uses_both_journals(broker: Harness) -> None:
    broker.run_jobs = False
    broker.pass_time(FOLD_MS)
    [saving] = [job for job in broker.jobs if job.name == "save tables"]
    assert saving.name == "save tables"
    assert len(files(broker)) == 2
    assert on_disk(broker) == {"TopicA"}
    version = broker.node.topics.version
    again = broker.restart(clean=False)
    assert topics(again) == {"TopicA", "TopicB", "TopicC"}
    assert again.node.topics.version == version


def test_broker_killed_before_its_first_table_is_written(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.run_jobs = False
    broker.send_request(
        RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "TopicA", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    )
    assert broker.disk.read(TABLE) is None
    again = broker.restart(clean=False)
    assert topics(again) == set(), "it was not answered"
    again.create_topic("TopicB")
    assert topics(again.restart(clean=False)) == {"TopicB"}


def test_deleted_table_is_restored_as_far_as_the_journal_goes(broker: Harness) -> None:
    broker.disk.remove(TABLE)
    broker.disk.remove(BEFORE)
    assert topics(broker.restart(clean=False)) == {"TopicB", "TopicC"}


def test_table_written_by_another_broker_since_gets_only_what_it_lacks(broker: Harness) -> None:
    """RocketMQ opened the store after a kill: it knows only topics.json, and changes it."""
    broker.create_topic("TopicD")
    delete(broker, "TopicA")
    delete(broker, "TopicD")
    written = table(broker)
    written["dataVersion"] = {"counter": 40, "stateVersion": 0, "timestamp": 5}
    written["topicConfigTable"]["TopicB"] = written["topicConfigTable"]["TopicA"] | {
        "topicName": "TopicB",
        "writeQueueNums": 9,
    }
    rewrite(broker, "topics.json", json.dumps(written).encode())
    again = broker.restart(clean=False)
    assert topics(again) == {"TopicA", "TopicB", "TopicC"}
    assert again.node.topics.table["TopicB"].config.write_queue_nums == 9
    assert again.node.topics.version.counter == 41
    again.turn()
    assert on_disk(again) == {"TopicA", "TopicB", "TopicC"}


def test_full_disk_is_reported_and_a_later_save_has_everything() -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    broker.create_topic("TopicA")
    disk.fail("pwrite", times=-1, error=DiskFull, prefix="config/topics.changes")
    broker.create_topic("TopicB")
    assert on_disk(broker) == {"TopicA", "TopicB"}, "the table was written instead"
    disk.fail("replace", times=-1, error=DiskFull, prefix="config/topics.json")
    for name in ("TopicC", "TopicD"):
        asked = broker.send_request(
            RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        )
        answer = broker.answer_to(asked)
        assert answer is not None
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "not saved yet" in (answer.remark or "")
    broker.pass_time(60_000)
    assert len(files(broker)) <= 2, "failed attempts leave no files behind"
    disk.heal()
    broker.pass_time(5_000)
    assert on_disk(broker) == {"TopicA", "TopicB", "TopicC", "TopicD"}
    broker.create_topic("TopicE")
    assert on_disk(broker) == {"TopicA", "TopicB", "TopicC", "TopicD"}
    disk.kill()
    assert topics(broker.restart(clean=False)) == {f"Topic{letter}" for letter in "ABCDE"}


def test_journal_stays_until_the_table_is_written_although_no_new_one_can_be_begun() -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    for name in ("TopicA", "TopicB"):
        broker.create_topic(name)
    disk.fail("create", times=-1, error=DiskFailed, prefix="config/topics.changes")
    disk.fail("replace", times=-1, error=DiskFailed, prefix="config/topics.json")
    broker.pass_time(60_000)
    disk.heal()
    disk.kill()
    assert topics(broker.restart(clean=False)) == {"TopicA", "TopicB"}


def test_failed_sync_of_the_journal_is_reported_and_the_table_written(broker: Harness) -> None:
    broker.run_jobs = False
    asked = broker.send_request(
        RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "TopicD", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    )
    [sync] = broker.jobs
    assert len(sync.syncs) == 1
    assert broker.answer_to(asked) is None
    broker.jobs.clear()
    broker.turn([], [JobDone(sync, error=DiskFailed("the device is gone"))])
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert on_disk(broker) == {"TopicA"}
    broker.pass_time(5_000)
    while broker.jobs:
        broker.turn([], [run_job(broker.jobs.pop(0))])
    assert on_disk(broker) == {"TopicA", "TopicB", "TopicC", "TopicD"}


def test_power_loss_loses_no_change_that_was_answered() -> None:
    for seed in range(60):
        disk, random = SimDisk(Random(seed)), Random(seed)
        broker = Harness(disk)
        for _ in range(4):
            answered: dict[str, int] = {}
            for _ in range(random.randrange(1, 12)):
                name = f"Topic{random.randrange(6)}"
                if random.random() < 0.3:
                    delete(broker, name)
                    answered[name] = 0
                else:
                    answered[name] = random.randrange(1, 9)
                    broker.create_topic(name, queues=answered[name])
                if random.random() < 0.1:
                    broker.pass_time(FOLD_MS)
            disk.crash()
            broker = broker.restart(clean=False)
            found = {name: topic.config.write_queue_nums for name, topic in broker.node.topics.table.items()}
            assert {name: found.get(name, 0) for name in answered} == answered, seed


def test_power_loss_after_failures_of_the_disk_loses_no_change_that_was_answered_with_success() -> None:
    for seed in range(25):
        disk, random = SimDisk(Random(seed)), Random(seed)
        broker = Harness(disk)
        for _ in range(3):
            known: dict[str, int] = {}
            for _ in range(12):
                if random.random() < 0.4:
                    operation = random.choice(("create", "pwrite", "datasync", "replace", "remove"))
                    error = random.choice((DiskFull, DiskFailed))
                    disk.fail(operation, times=random.randrange(1, 4), error=error, prefix="config/topics")
                name, queues = f"Topic{random.randrange(6)}", random.randrange(1, 9)
                fields = {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
                asked = broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
                answer = broker.answer_to(asked)
                assert answer is not None
                if answer.code == ResponseCode.SUCCESS:
                    known[name] = queues
                else:
                    known.pop(name, None)
                broker.pass_time(random.choice((0, 0, 2_000, FOLD_MS)))
            disk.heal()
            if random.random() < 0.5:
                disk.crash()
            else:
                disk.kill()
            broker = broker.restart(clean=False)
            found = {name: topic.config.write_queue_nums for name, topic in broker.node.topics.table.items()}
            assert {name: found.get(name) for name in known} == known, seed


def test_stop_of_the_process_at_any_disk_call_loses_no_change_that_was_answered() -> None:
    for nth in range(1, 60):
        disk = SimDisk(Random(nth))
        broker = Harness(disk)
        broker.create_topic("Topic0")
        disk.stop_at(nth)
        count = 1
        try:
            for number in range(1, 6):
                broker.create_topic(f"Topic{number}")
                count += 1
                broker.pass_time(FOLD_MS // 3)
        except PowerLoss:
            pass
        if nth % 2:
            disk.kill()
        else:
            disk.crash()
        assert topics(broker.restart(clean=False)) >= {f"Topic{number}" for number in range(count)}, nth
