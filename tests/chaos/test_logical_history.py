"""The checks of a static topic in `make chaos`, on histories made by hand."""

from collections.abc import Callable

import pytest

from chaos.history import Place, Stored
from chaos.logical_history import LATE_S, Answer, Delivery, LogicalHistory
from tests.spec import spec

Logs = dict[str, list[Stored]]
Change = Callable[[LogicalHistory, Logs], None]
START = 1_000
"""Where the second segment begins; the first one has two messages."""


def record(body: str, queue_id: int, offset: int, log_offset: int, key: str = "") -> Stored:
    return Stored(Place(queue_id, offset), body, "", body, key or f"id-{body}", log_offset)


def good(*, may_go_back: bool = False) -> tuple[LogicalHistory, Logs]:
    """Logical queue 0 moves from queue 0 of a to queue 4 of b; two messages before, one unplaced, one after."""
    history = LogicalHistory(may_go_back=may_go_back)
    history.opened(0, 0, "a", 0, 0)
    history.confirmed("a", 1.0, has_places=True)
    for number, body in enumerate(("m0", "m1")):
        history.sending(body, 0)
        history.answered(Answer(body, 0, "a", 2.0 + number, 2.5 + number, number, 100 * number))
    history.opened(0, 1, "b", 4, -1)
    history.confirmed("b", 4.0, has_places=False)
    history.sending("m2", 0)
    history.answered(Answer("m2", 0, "b", 4.1, 4.2, -1, 0))
    history.confirmed("a", 5.0, has_places=False)
    history.placed(0, START)
    history.confirmed("b", 6.0, has_places=True)
    history.sending("m3", 0)
    history.answered(Answer("m3", 0, "b", 7.0, 7.1, START + 1, 100))
    logs = {
        "a": [record("m0", 0, 0, 0), record("m1", 0, 1, 100)],
        "b": [record("m2", 4, 0, 0), record("m3", 4, 1, 100)],
    }
    expected = 0
    for group, queue_id, start in (("a", 0, 0), ("b", 4, START)):
        for offset, stored in enumerate(logs[group]):
            history.received(Delivery(0, start + offset, group, queue_id, offset, stored.body), expected)
            expected = start + offset + 1
    history.committing(0, 2, 8.0)
    history.commit_confirmed(0, 2, 8.0, 0)
    history.found(0, 2, 0)
    return history, logs


def found(change: Change, *, may_go_back: bool = False) -> list[str]:
    history, logs = good(may_go_back=may_go_back)
    change(history, logs)
    history.check_clients()
    for group, records in logs.items():
        history.check_log(group, records)
    return history.violations


def test_valid_history_passes_and_is_counted() -> None:
    history, logs = good()
    assert found(lambda _history, _logs: None) == []
    assert history.missing() == set()
    history.counted("SEND_OK")
    report = history.report()
    assert (report["segments"], report["acknowledged"], report["unplaced"], report["delivered"]) == (2, 4, 1, 4)
    assert report["statuses"] == {"SEND_OK": 1}
    assert len(logs) == 2


def acknowledged_is_not_delivered(history: LogicalHistory, _logs: Logs) -> None:
    del history.delivered[0, START + 1]


def acknowledged_is_not_in_the_log(history: LogicalHistory, logs: Logs) -> None:
    history.sending("m4", 0)
    history.answered(Answer("m4", 0, "b", 9.0, 9.1, START + 2, 200))
    history.received(Delivery(0, START + 2, "b", 4, 2, "m4"), START + 2)
    logs["b"].append(record("m4", 4, 2, 201))


def delivered_was_never_sent(history: LogicalHistory, _logs: Logs) -> None:
    history.received(Delivery(0, START + 2, "b", 4, 2, "other"), START + 2)


def stored_in_another_queue(history: LogicalHistory, logs: Logs) -> None:
    history.sending("n0", 1)
    logs["b"].append(record("n0", 4, 2, 200))


def stored_under_two_keys(_history: LogicalHistory, logs: Logs) -> None:
    logs["b"].append(record("m3", 4, 2, 200, key="id-other"))


def offset_has_two_messages(history: LogicalHistory, _logs: Logs) -> None:
    history.received(Delivery(0, 1, "a", 0, 1, "m0"), 1)


def two_are_acknowledged_at_one_offset(history: LogicalHistory, _logs: Logs) -> None:
    history.answers.append(history.answers[-1]._replace(body="m1", sent_s=7.05))


def delivered_is_not_in_the_log(history: LogicalHistory, _logs: Logs) -> None:
    history.sending("m4", 0)
    history.received(Delivery(0, START + 2, "b", 4, 2, "m4"), START + 2)


def delivery_leaves_one_out(history: LogicalHistory, _logs: Logs) -> None:
    history.received(Delivery(0, 1, "a", 0, 1, "m1"), 0)


def delivery_is_of_another_segment(history: LogicalHistory, _logs: Logs) -> None:
    history.received(Delivery(0, 1, "b", 4, 1, "m1"), 1)


def delivery_is_behind_the_next_segment(history: LogicalHistory, logs: Logs) -> None:
    history.sending("m4", 0)
    history.received(Delivery(0, START, "a", 0, START, "m2"), START)
    logs["a"].append(record("m2", 0, START, 200))


def one_is_passed_over(history: LogicalHistory, logs: Logs) -> None:
    history.sending("m4", 0)
    logs["a"].append(record("m4", 0, 2, 200))


def sent_later_and_stored_before(history: LogicalHistory, _logs: Logs) -> None:
    history.answers[0] = history.answers[0]._replace(sent_s=3.6, answered_s=3.7)


def answer_has_another_offset(history: LogicalHistory, _logs: Logs) -> None:
    history.answers[-1] = history.answers[-1]._replace(offset=START + 7)


def answer_lacks_a_known_offset(history: LogicalHistory, _logs: Logs) -> None:
    history.answers[-1] = history.answers[-1]._replace(offset=-1)


def stored_after_the_queue_moved(history: LogicalHistory, _logs: Logs) -> None:
    history.answers[1] = history.answers[1]._replace(sent_s=5.1, answered_s=5.2)


def message_in_no_logical_queue(_history: LogicalHistory, logs: Logs) -> None:
    logs["a"].append(record("m1", 7, 0, 200))


def end_of_a_segment_changes(history: LogicalHistory, _logs: Logs) -> None:
    history.placed(0, START)
    history.placed(0, 2 * START)
    history.segments[0][-1].start = START


def offset_that_nobody_committed(history: LogicalHistory, _logs: Logs) -> None:
    history.found(0, 3, 1)


def committed_offset_is_gone(history: LogicalHistory, _logs: Logs) -> None:
    history.found(0, None, 0)


def older_offset_is_found(history: LogicalHistory, _logs: Logs) -> None:
    history.committing(0, 1, 8.0 - LATE_S - 1)
    history.found(0, 1, 0)


def broker_lost_its_mapping(history: LogicalHistory, _logs: Logs) -> None:
    history.unmapped(0)


def reader_is_sent_back(history: LogicalHistory, _logs: Logs) -> None:
    history.sent_back(0, START, 1)


def older_mapping_is_taken(history: LogicalHistory, _logs: Logs) -> None:
    history.wrongly_taken("a")


@spec("L02", "L04")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (acknowledged_is_not_delivered, "I1: 1 of the static topic acknowledged and never delivered, first ['m3']"),
        (acknowledged_is_not_in_the_log, "I1: Answer(body='m4'"),
        (delivered_was_never_sent, "I2: 'other', given at 1002 of queue 0, was never sent"),
        (stored_in_another_queue, "I2: n0, in the log of b at 4@2 of queue 0, was sent to queue 1"),
        (stored_under_two_keys, "I3: m3 is in the log of b under two unique keys"),
        (offset_has_two_messages, "I5: offset 1 of queue 0 was m1, then m0"),
        (two_are_acknowledged_at_one_offset, "I5: m3 and m1 were both acknowledged at (0, 1001)"),
        (delivered_is_not_in_the_log, "I19: 1 of the static topic delivered and not in the log of b"),
        (
            delivery_leaves_one_out,
            "I23: Delivery(number=0, offset=1, group='a', queue_id=0, queue_offset=1, body='m1') wa",
        ),
        (
            delivery_is_of_another_segment,
            "I23: Delivery(number=0, offset=1, group='b', queue_id=4, queue_offset=1, body=",
        ),
        (delivery_is_behind_the_next_segment, "I23: Delivery(number=0, offset=1000, group='a', queue_id=0"),
        (one_is_passed_over, "I23: 1 in the log of a were passed over, first ['m4']"),
        (sent_later_and_stored_before, "I23: Answer(body='m0', number=0, group='a', sent_s=3.6"),
        (answer_has_another_offset, "I23: Answer(body='m3'"),
        (answer_lacks_a_known_offset, "I23: Answer(body='m3'"),
        (stored_after_the_queue_moved, "I24: Answer(body='m1'"),
        (message_in_no_logical_queue, "I23: m1, in the log of a at 7@0, is in no logical queue"),
        (end_of_a_segment_changes, "I24: the end of the segment before queue 0.1 in b/4 from 1000 has changed"),
        (offset_that_nobody_committed, "I23: queue 0 is said to be at 3, and nobody committed that"),
        (committed_offset_is_gone, "I23: queue 0 is at None, 2 was committed"),
        (older_offset_is_found, "I23: queue 0 is at 1, 2 was committed"),
        (broker_lost_its_mapping, "I23: a reader of queue 0 was given messages without a logical offset"),
        (reader_is_sent_back, "I23: a reader of queue 0 at 1000 was sent back to 1"),
        (older_mapping_is_taken, "I24: a took an older or contradictory mapping"),
    ],
)
def test_violation_is_found(change: Change, text: str) -> None:
    violations = found(change)
    assert any(violation.startswith(text) for violation in violations), violations


@pytest.mark.parametrize("change", [committed_offset_is_gone, older_offset_is_found, reader_is_sent_back])
def test_offsets_may_go_back_where_a_slave_may_lack_commits(change: Change) -> None:
    assert found(change, may_go_back=True) == []


def test_offset_after_a_death_may_be_older() -> None:
    history, _ = good()
    history.found(0, None, 1)
    assert history.violations == []
