"""Log lines for dead letters: their content, and their limited number."""

import logging
from pathlib import Path

import pytest

from tandemq.broker.kernel.dead_letters import GROUPS_MAX, LINES_MAX, QUIET_MS, DeadLetters
from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, send_fields


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, "tandemq.broker.kernel.dead_letters")
    return caplog


def logged(lines: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in lines.records if r.name == "tandemq.broker.kernel.dead_letters"]
    lines.clear()
    return found


def send_back(broker: Harness, log_offset: int, level: int) -> None:
    fields = {"offset": log_offset, "group": "billing", "delayLevel": level, "maxReconsumeTimes": 16}
    assert broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS


def test_dead_letter_is_a_warning_with_key_topic_group_and_attempts(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    log_offset = int(broker.send("Orders", KEYS="order-17", UNIQ_KEY="0A00").fields["msgId"][16:], 16)
    send_back(broker, log_offset, 1)
    assert logged(lines) == [], "the message is retried"
    end = broker.node.store.log.written_end
    send_back(broker, log_offset, -1)
    assert logged(lines) == [
        f"dead letter: group=billing topic=Orders key='order-17' unique_key='0A00' reconsume_times=0 log_offset={end}"
    ]


def test_consumers_own_retry_with_too_many_attempts_is_a_warning(
    tmp_path: Path, lines: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    fields = send_fields("%RETRY%billing", properties={"RETRY_TOPIC": "Orders", "KEYS": "k\n2"})
    broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 2, "l": 3})
    assert logged(lines) == []
    broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 3, "l": 3})
    [line] = logged(lines)
    assert line.startswith(
        r"dead letter: group=billing topic=Orders key='k\n2' unique_key='' reconsume_times=3 log_offset="
    )


def test_many_dead_letters_are_a_few_lines_and_their_number(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    broker = Harness(tmp_path)
    log_offset = int(broker.send("Orders").fields["msgId"][16:], 16)
    for _ in range(LINES_MAX + 30):
        send_back(broker, log_offset, -1)
    assert len(logged(lines)) == LINES_MAX
    broker.pass_time(QUIET_MS + 10_000)
    [line] = logged(lines)
    assert line.startswith("dead letters: group=billing 30 more were not logged within 6")
    broker.pass_time(2 * QUIET_MS)
    assert logged(lines) == []
    send_back(broker, log_offset, -1)
    assert len(logged(lines)) == 1


def test_number_of_groups_with_dead_letters_is_limited(lines: pytest.LogCaptureFixture) -> None:
    letters = DeadLetters()
    for number in range(3 * GROUPS_MAX):
        letters.note(f"g{number}", "T\n" * 100_000, {"KEYS": "x" * 100_000}, 16, 0, 0)
    noted = logged(lines)
    assert len(noted) == GROUPS_MAX
    assert max(map(len, noted)) < 300
    assert not any("\n" in line for line in noted)
    letters.report(QUIET_MS)
    assert logged(lines) == [f"dead letters: group=(others) {2 * GROUPS_MAX} more were not logged within 60 s"]
