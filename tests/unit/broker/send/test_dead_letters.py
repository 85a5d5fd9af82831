"""Warnings of messages that go to a dead letter topic: what they say, and that a flood of them stays small."""

import logging
from pathlib import Path

import pytest

from tandemq.broker.send.dead_letters import GROUPS_MAX, LINES_MAX, QUIET_MS, DeadLetters
from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, send_fields


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "tandemq.broker.send.dead_letters")
    return caplog


def told(lines: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in lines.records if r.name == "tandemq.broker.send.dead_letters"]
    lines.clear()
    return found


def send_back(broker: Harness, log_offset: int, level: int) -> None:
    fields = {"offset": log_offset, "group": "billing", "delayLevel": level, "maxReconsumeTimes": 16}
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS


def test_message_that_is_given_up_is_a_warning_with_key_topic_group_and_times(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    log_offset = int(broker.send("Orders", KEYS="order-17", UNIQ_KEY="0A00").fields["msgId"][16:], 16)
    send_back(broker, log_offset, 1)
    assert told(lines) == [], "it is tried again"
    end = broker.node.store.log.written_end
    send_back(broker, log_offset, -1)
    assert told(lines) == [
        f"dead letter: group=billing topic=Orders key='order-17' unique_key='0A00' reconsume_times=0 log_offset={end}"
    ]


def test_retry_of_a_consumers_own_that_comes_too_often_is_a_warning(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    fields = send_fields("%RETRY%billing", properties={"RETRY_TOPIC": "Orders", "KEYS": "k\n2"})
    broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 2, "l": 3})
    assert told(lines) == []
    broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 3, "l": 3})
    [line] = told(lines)
    assert line.startswith(
        r"dead letter: group=billing topic=Orders key='k\n2' unique_key='' reconsume_times=3 log_offset="
    )


def test_flood_of_dead_letters_is_a_few_lines_and_their_number(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    broker = Harness(tmp_path)
    log_offset = int(broker.send("Orders").fields["msgId"][16:], 16)
    for _ in range(LINES_MAX + 30):
        send_back(broker, log_offset, -1)
    assert len(told(lines)) == LINES_MAX
    broker.pass_time(QUIET_MS + 10_000)
    [line] = told(lines)
    assert line.startswith("dead letters: group=billing 30 more were not logged within 6")
    broker.pass_time(2 * QUIET_MS)
    assert told(lines) == []
    send_back(broker, log_offset, -1)
    assert len(told(lines)) == 1


def test_flood_of_groups_is_bounded_too(lines: pytest.LogCaptureFixture) -> None:
    letters = DeadLetters()
    for number in range(3 * GROUPS_MAX):
        letters.note(f"g{number}", "T\n" * 100_000, {"KEYS": "x" * 100_000}, 16, 0, 0)
    noted = told(lines)
    assert len(noted) == GROUPS_MAX
    assert max(map(len, noted)) < 300
    assert not any("\n" in line for line in noted)
    letters.report(QUIET_MS)
    assert told(lines) == [f"dead letters: group=(others) {2 * GROUPS_MAX} more were not logged within 60 s"]
