"""Tables written by a worker, and responses that wait for them."""

import json
from pathlib import Path

import pytest

from tandemq.boundary import JobDone
from tandemq.codec.remoting.fastjson import dumps
from tandemq.errors import DiskFailed
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.harness import Harness, run_job, send_fields

OK = ResponseCode.SUCCESS
TOPIC = {
    "topic": "TopicB",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 4,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": "false",
}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    found = Harness(tmp_path)
    found.run_jobs = False
    return found


def end_jobs(broker: Harness) -> None:
    while broker.jobs:
        broker.turn([], [run_job(broker.jobs.pop(0))])


def fail_save(broker: Harness) -> None:
    """Fail the job that saves tables, and run the others."""
    jobs, broker.jobs = broker.jobs, []
    assert "save tables" in [job.name for job in jobs]
    for job in jobs:
        is_save = job.name == "save tables"
        broker.turn([], [JobDone(job, error=DiskFailed("no luck")) if is_save else run_job(job)])


def topics_on_disk(path: Path) -> set[str]:
    file = path / "config" / "topics.json"
    return set(json.loads(file.read_text())["topicConfigTable"]) if file.exists() else set()


@spec("V11")
def test_no_turn_waits_for_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Harness) -> None:
    monkeypatch.setattr(broker.disk, "replace", lambda *_: pytest.fail("a turn wrote and synced a file"))
    broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x")
    broker.send_request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1},
    )
    broker.pass_time(30_000)
    assert {job.name for job in broker.jobs} == {"save tables", "flush", "sync queues"}


def test_answer_to_a_change_waits_until_it_is_saved(tmp_path: Path, broker: Harness) -> None:
    asked = broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    again = broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    assert broker.answer_to(asked) is None
    assert broker.answer_to(again) is None
    assert "TopicB" not in topics_on_disk(tmp_path)
    end_jobs(broker)
    for opaque in (asked, again):
        answer = broker.answer_to(opaque)
        assert answer is not None
        assert answer.code == OK
    assert "TopicB" in topics_on_disk(tmp_path)


def test_message_of_a_new_topic_is_acknowledged_once_the_topic_is_saved(tmp_path: Path, broker: Harness) -> None:
    opaques = [broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x") for _ in range(3)]
    assert [broker.answer_to(opaque) for opaque in opaques] == [None] * 3
    end_jobs(broker)
    answers = [broker.answer_to(opaque) for opaque in opaques]
    assert [answer.code for answer in answers if answer is not None] == [OK] * 3
    assert "TopicA" in topics_on_disk(tmp_path)
    known = broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x")
    assert broker.answer_to(known) is not None


def test_message_whose_topic_cannot_be_saved_is_not_acknowledged(broker: Harness) -> None:
    """After a kill its topic would be gone, and with it the message for consumers."""
    fields = send_fields("TopicA")
    opaques = [broker.send_request(RequestCode.SEND_MESSAGE_V2, fields, b"x")]
    fail_save(broker)
    opaques.append(broker.send_request(RequestCode.SEND_MESSAGE_V2, fields, b"x"))
    assert broker.answer_to(opaques[1]) is None
    broker.pass_time(1_000)
    fail_save(broker)
    answers = [broker.answer_to(opaque) for opaque in opaques]
    assert [answer.code for answer in answers if answer] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert all("no luck" in (answer.remark or "") for answer in answers if answer)
    later = broker.send_request(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    broker.pass_time(1_000)
    end_jobs(broker)
    answer = broker.answer_to(later)
    assert answer is not None
    assert answer.code == OK


def test_failed_save_is_reported_and_retried(tmp_path: Path, broker: Harness) -> None:
    asked = broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    broker.turn([], [JobDone(broker.jobs.pop(0), error=DiskFailed("no luck"))])
    answer = broker.answer_to(asked)
    assert answer is not None
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not saved yet: no luck" in (answer.remark or "")
    assert not broker.jobs
    broker.pass_time(5_000)
    end_jobs(broker)
    assert "TopicB" in topics_on_disk(tmp_path)


def test_failed_save_does_not_count_as_saved_when_a_later_one_succeeds(broker: Harness) -> None:
    """A slave tells its master what it has saved; in seed 1003233 it told what was in memory only."""
    saver = broker.node.kernel.saver
    broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    broker.turn([], [JobDone(broker.jobs.pop(0), error=DiskFailed("no luck"))])
    group = dumps({"groupName": "group"})
    broker.send_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
    end_jobs(broker)
    assert not saver.is_behind
    assert saver.has_unsaved
    broker.pass_time(5_000)
    broker.send_request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
    end_jobs(broker)
    assert not saver.has_unsaved
    assert saver.saved == saver.asked == saver.settled


def test_changes_during_a_save_share_the_next_save_and_the_last_state_wins(tmp_path: Path, broker: Harness) -> None:
    for number in range(5):
        broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": f"Topic{number}"})
    first, *others = broker.jobs
    assert not others
    broker.jobs.clear()
    broker.turn([], [run_job(first)])
    assert topics_on_disk(tmp_path) >= {"Topic0"}
    assert len(broker.jobs) == 1
    end_jobs(broker)
    assert set(broker.restart(clean=False).node.topics.table) >= {f"Topic{number}" for number in range(5)}


def test_clean_stop_saves_pending_tables(tmp_path: Path, broker: Harness) -> None:
    broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)
    broker.send_request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "TopicC"})
    broker.node.close()
    assert topics_on_disk(tmp_path) >= {"TopicB", "TopicC"}


def test_message_of_a_new_topic_whose_sync_fails_meanwhile_is_not_acknowledged(tmp_path: Path) -> None:
    broker = Harness(tmp_path, flush_type="SYNC_FLUSH")
    broker.run_jobs = False
    opaque = broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"x")
    saving, flush = sorted(broker.jobs, key=lambda job: job.name != "save tables")
    broker.turn([], [JobDone(flush, error=DiskFailed("the device is gone"))])
    answer = broker.answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.turn([], [run_job(saving)])
    assert broker.answer_to(opaque) is None
