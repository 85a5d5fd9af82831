"""When a done record is written, and what it says."""

from pathlib import Path

import pytest

from tandemq.broker.features.timers import done_writer
from tandemq.broker.features.timers.done_records import TimerProgress, read_done
from tandemq.model.codes import RequestCode
from tandemq.model.topic import TIMER_DONE_TOPIC
from tests.unit.broker.features.timers.test_timed_messages import delivered, ready, timed
from tests.unit.broker.harness import Harness, send_fields


def progress(broker: Harness) -> list[TimerProgress | None]:
    """Return what the done records say."""
    return [read_done(one.body, one.properties).progress for one in delivered(broker, TIMER_DONE_TOPIC, 0)]


def test_log_that_has_grown_gets_a_done_record_while_a_message_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(done_writer, "PROGRESS_BYTES", 4_000)
    broker = ready(tmp_path)

    def records_after_sending(size: int) -> int:
        before = len(progress(broker))
        broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA", 0), b"x" * size)
        broker.pass_time(200)
        return len(progress(broker)) - before

    assert records_after_sending(4_000) == 0  # nothing waits
    timed(broker, TIMER_DELAY_SEC="60")
    broker.pass_time(200)
    assert records_after_sending(10) == 0
    assert records_after_sending(4_000) == 1
    assert records_after_sending(10) == 0


def test_done_record_names_the_time_before_which_all_is_over(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    for delay_ms in (2_500, 10_500):
        timed(broker, TIMER_DELAY_MS=str(delay_ms))
    broker.pass_time(3_200)
    (first,) = progress(broker)
    assert first == TimerProgress(start_ms + 3_000, 2, 0, 0, start_ms + 2_000)
    broker.pass_time(8_000)
    assert progress(broker)[1:] == [TimerProgress(start_ms + 11_000, 2, 0, 1, start_ms + 10_000)]
