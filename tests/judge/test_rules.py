"""Each rule finds the fault planted for it, and only that one; a healthy history has no anomaly."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from judge.anomalies import RULES
from judge.verdict import judge
from tests.judge.healthy import Q0, SECOND, TIMER_Q, Lines, Run, at, healthy, index_of, messages, verdict_of
from tests.judge.planted import (
    PLANTED,
    briefly_shared,
    committed_lost,
    lost,
    lost_at_the_end,
    offset_back,
    order,
    pop_again,
    shared,
    two_copies_popped,
)


def test_healthy_history_has_no_anomaly() -> None:
    verdict = verdict_of(healthy())
    assert not verdict.anomalies
    assert not verdict.not_judged


def test_every_rule_has_a_planted_fault() -> None:
    assert PLANTED.keys() == RULES.keys()


@pytest.mark.parametrize(("rule", "plant"), [(rule, plant) for rule, plants in PLANTED.items() for plant in plants])
def test_rule_alone_finds_its_fault(rule: str, plant: Callable[[], Lines]) -> None:
    lines = plant()
    verdict = verdict_of(lines)
    assert set(verdict.counts) == {rule}, verdict.anomalies
    for anomaly in verdict.anomalies:
        assert anomaly.lines
        assert all(1 < line <= len(lines) for line in anomaly.lines)


def test_proof_names_the_lines() -> None:
    lines = lost()
    [anomaly] = verdict_of(lines).anomalies
    sent, acked, poll = (lines[number - 1] for number in anomaly.lines)
    assert (sent["id"], sent["type"]) == ("b-2", "invoke")
    assert (acked["type"], acked["op"]) == ("ok", sent["op"])
    assert poll["f"] == "poll"
    assert "b-2" not in {one[1] for one in poll["messages"]}


def _with(lines: Lines, **promises: object) -> Lines:
    return [{**lines[0], "promises": {**lines[0]["promises"], **promises}}, *lines[1:]]


@pytest.mark.parametrize(
    ("plant", "promises"),
    [
        (lost, {"kept": []}),
        (order, {"order": "none"}),
        (offset_back, {"offsets": "any"}),
        (pop_again, {"pops": "any"}),
        (shared, {"shared_ms": -1}),
    ],
)
def test_what_is_not_promised_is_no_anomaly(plant: Callable[[], Lines], promises: dict[str, object]) -> None:
    assert not verdict_of(_with(plant(), **promises)).anomalies


def test_queue_that_changes_hands_in_time_is_no_anomaly() -> None:
    assert not verdict_of(briefly_shared()).anomalies


def test_copy_that_is_popped_beside_another_one_is_no_anomaly() -> None:
    assert not verdict_of(two_copies_popped()).anomalies


def _fault(lines: Lines, index: int, **fields: object) -> Lines:
    fault = {"t": lines[index]["t"], "p": "world", "f": "fault", "type": "ok", "broker": "a", **fields}
    return [*lines[:index], fault, *lines[index:]]


@pytest.mark.parametrize("plant", [lost_at_the_end, committed_lost, pop_again, offset_back])
def test_loss_by_a_fault_is_excused(plant: Callable[[], Lines]) -> None:
    lines = plant()
    reported = [index for index, line in enumerate(lines) if at("offset", "invoke")(line)]
    assert not verdict_of(_fault(lines, reported[1] if reported else len(lines) - 1)).anomalies


def test_fault_excuses_only_what_was_before_it_at_its_broker_and_not_kept() -> None:
    lines = lost_at_the_end()
    assert verdict_of(_fault(lines, 1)).counts == {"lost": 1}
    assert verdict_of(_fault(lines, len(lines) - 1, broker="b")).counts == {"lost": 1}
    assert verdict_of(_fault(lines, len(lines) - 1, keeps=["SEND_OK"])).counts == {"lost": 1}


def test_offset_given_again_after_a_fault_is_no_divergence() -> None:
    run = Run()
    run.send("a", "a-0", offset=0)
    run.send("a", "a-1", offset=1)
    run.writer.note("world", "fault", broker="a")
    run.send("a", "a-2", offset=1)
    run.read(Q0, 0, "a-0", "a-2")
    assert not verdict_of(run.lines()).anomalies


def test_copies_are_as_many_as_sends() -> None:
    for sends, promise, count in ((2, "sends", 0), (1, "sends", 1), (1, "allowed", 0), (2, "never", 1)):
        run = Run(duplicates=promise)
        run.send("a", "a-0", offset=1, sends=sends)
        run.read(Q0, 0, "a-0", "a-0")
        assert verdict_of(run.lines()).counts["duplicate"] == count


def test_failed_send_cannot_have_stored_a_copy() -> None:
    for outcome, count in (("unknown", 0), ("fail", 1)):
        run = Run()
        run.call("a", "send", outcome, id="a-0", topic="Orders")
        op = run.writer.invoke("a", "send", id="a-0", topic="Orders")
        run.writer.end("a", "send", op, q=Q0, offset=1)
        run.read(Q0, 0, "a-0", "a-0")
        assert verdict_of(run.lines()).counts["duplicate"] == count


def test_sends_in_flight_at_once_have_no_order() -> None:
    run = Run()
    first, second = (run.writer.invoke("a", "send", id=f"a-{n}", topic="Orders") for n in range(2))
    run.writer.end("a", "send", first, q=Q0, offset=1)
    run.writer.end("a", "send", second, q=Q0, offset=0)
    assert not verdict_of(run.lines()).anomalies


def test_order_of_all_processes_is_judged_if_promised() -> None:
    run = Run(order="realtime")
    run.send("a", "a-0", offset=1)
    run.send("b", "b-0", offset=0)
    lines = run.lines()
    assert verdict_of(lines).counts == {"order": 1}
    assert not verdict_of(_with(lines, order="process")).anomalies


def test_assignment_lets_a_reader_begin_elsewhere() -> None:
    run = Run()
    for offset in range(3):
        run.send("a", f"a-{offset}", offset=offset)
    run.poll("c", Q0, 0, "a-0", "a-1", "a-2")
    run.writer.note("c", "assign", group="g", queues=[Q0])
    run.poll("c", Q0, 1, "a-1")
    assert not verdict_of(run.lines()).anomalies


def test_invisible_time_that_was_renewed_counts() -> None:
    run = Run()
    run.send("a", "a-0", offset=0)
    run.pop(Q0, 0, "a-0", invisible_ms=SECOND)
    run.call("pop", "invisible", group="gp", q=Q0, offset=0, invisible_ms=60 * SECOND)
    run.now_ms += 2 * SECOND
    run.pop(Q0, 0, "a-0")
    assert verdict_of(run.lines()).counts == {"pop-overlap": 1}


def test_message_sent_once_is_one_also_in_a_retry_topic() -> None:
    for sends, count in ((1, 1), (2, 0)):
        run = Run()
        run.send("a", "a-0", offset=0, sends=sends)
        run.pop(Q0, 0, "a-0")
        run.call("pop", "ack", group="gp", q=Q0, offset=0)
        run.now_ms += 20 * SECOND
        run.pop("%RETRY%gp_Orders/a/0", 7, "a-0")
        assert verdict_of(run.lines()).counts["pop-again"] == count


def test_late_response_of_a_pop_is_no_overlap() -> None:
    run = Run()
    run.send("a", "a-0", offset=0)
    given: dict[str, Any] = {"group": "gp", "q": Q0, "messages": messages(0, ["a-0"]), "invisible_ms": SECOND}
    run.writer.note("p2", "pop", since=5_000.0, t=5_001.0, **given)
    run.writer.note("p1", "pop", since=3_000.0, t=5_002.0, **given)
    assert not verdict_of(run.lines()).anomalies


def test_popped_message_that_a_poll_gives_again_is_not_lost() -> None:
    for is_given, count in ((True, 0), (False, 1)):
        run = Run()
        run.send("a", "a-0", offset=0)
        run.pop(Q0, 0, "a-0")
        if is_given:
            run.poll("c", "%RETRY%gp_Orders/a/0", 0, "a-0", group="gp")
        run.writer.note("end", "settled")
        assert verdict_of(run.lines()).counts["pop-lost"] == count


def test_acknowledgement_that_is_not_kept_promises_no_place() -> None:
    run = Run()
    op = run.writer.invoke("a", "send", id="a-0", topic="Orders")
    run.writer.end("a", "send", op, status="FLUSH_SLAVE_TIMEOUT", q=Q0, offset=0)
    run.send("a", "a-1", offset=0)
    run.read(Q0, 0, "a-1")
    run.writer.note("end", "settled")
    lines = run.lines()
    assert not verdict_of(lines).anomalies
    found = verdict_of(_with(lines, kept=["SEND_OK", "FLUSH_SLAVE_TIMEOUT"])).counts
    assert found == {"diverging": 1, "order": 1, "unseen": 1}


def test_message_whose_time_has_not_come_is_not_unseen() -> None:
    for due, count in ((10.0, 1), (60 * SECOND, 0)):
        run = Run()
        run.send("a", "w-1", TIMER_Q, 0, due=due)
        run.now_ms += SECOND
        run.writer.note("end", "settled")
        assert verdict_of(run.lines()).counts["unseen"] == count


def test_without_an_end_nothing_is_unseen() -> None:
    lines = healthy()
    verdict = verdict_of(lines[: index_of(lines, at("assign"))])
    assert not verdict.anomalies
    assert len(verdict.not_judged) == 2


def test_long_cycle_is_found() -> None:
    """More nodes than Python's stack has frames: the search is not recursive."""
    run, count = Run(), 5_000
    for number in range(count):
        run.send("a", f"a-{number}", Q0, number + 1)
    run.send("a", "a-last", "Orders/a/1", 0)
    run.send("b", "b-0", "Orders/a/1", 1)
    run.send("b", "b-1", Q0, 0)
    [anomaly] = judge(json.dumps(line) + "\n" for line in run.lines()).anomalies
    assert anomaly.rule == "G0"
    assert anomaly.text.startswith(f"{count + 3} ")
