"""What other clients report: the history made of it, and what is found in it beside the judge's rules."""

import io

from chaos.client_events import Decided, Delivered, Observed, Sent
from chaos.reading import Held
from judge.verdict import Verdict, judge
from judge.writing import HistoryWriter

TOPIC, ORDERED = "Killed", "KilledInOrder"
GROUPS = {"readers": TOPIC, "in-order": ORDERED}


def held_as_sent(observed: Observed) -> list[Held]:
    """Return queues that hold what was acknowledged at a place."""
    queues: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for one in observed.sent:
        if one.status and one.queue_id >= 0 and not one.is_half:
            queues.setdefault((one.topic, one.queue_id), []).append((one.offset, one.body))
    return [Held(*key, sorted(found), max(found)[0] + 1) for key, found in queues.items()]


def verdict_of(observed: Observed, held: list[Held]) -> Verdict:
    file = io.StringIO()
    observed.write(HistoryWriter(file, lambda: 9_999.0), held)
    return judge(file.getvalue().splitlines(keepends=True))


def whole_run() -> Observed:
    """Return a run in which everything is as it should be."""
    observed = Observed(ordered={"in-order"})
    for offset in range(4):
        observed.sent.append(Sent("a", TOPIC, f"a-{offset}", 10.0 + offset, "SEND_OK", 0, offset))
        observed.sent.append(Sent("o", ORDERED, f"o-{offset}", 20.0 + offset, "SEND_OK", 1, offset))
        observed.delivered.append(Delivered("readers", TOPIC, f"a-{offset}", 30.0 + offset, 0, offset))
        observed.delivered.append(Delivered("in-order", ORDERED, f"o-{offset}", 40.0 + offset, 1, offset))
    return observed


def found(observed: Observed) -> tuple[dict[str, int], list[str]]:
    held = held_as_sent(observed)
    return verdict_of(observed, held).counts, observed.violations(held, GROUPS, has_acks=True)


def test_run_without_a_defect_has_no_anomaly() -> None:
    assert found(whole_run()) == ({}, [])


def test_message_that_one_group_did_not_get_is_found_although_another_one_read_it() -> None:
    seen = whole_run()
    seen.delivered = [one for one in seen.delivered if one.body != "a-3"]
    counts, [text] = found(seen)
    assert not counts
    assert text == "I1: 1 acknowledged and never delivered to readers, first ['a-3']"
    seen.delivered = [one for one in seen.delivered if one.group != "readers"]
    assert "4 acknowledged and never delivered to readers" in found(seen)[1][0]


def test_group_in_order_may_begin_again_and_pass_over_nothing() -> None:
    seen = whole_run()
    seen.delivered += [Delivered("in-order", ORDERED, f"o-{offset}", 50.0, 1, offset) for offset in (1, 2, 3)]
    assert found(seen) == ({}, [])
    assert seen.report()["rewinds"] == 1
    seen.delivered.append(Delivered("in-order", ORDERED, "o-0", 60.0, 1, 0))
    seen.delivered.append(Delivered("in-order", ORDERED, "o-2", 60.0, 1, 2))
    assert found(seen)[0] == {"skipped": 1}


def test_inverted_deliveries_of_a_group_in_order_are_found() -> None:
    seen = whole_run()
    first = next(number for number, one in enumerate(seen.delivered) if one.body == "o-1")
    second = next(number for number, one in enumerate(seen.delivered) if one.body == "o-2")
    seen.delivered[first], seen.delivered[second] = seen.delivered[second], seen.delivered[first]
    assert found(seen)[0] == {"skipped": 2}


def test_inverted_deliveries_of_a_message_group_are_found() -> None:
    seen = whole_run()
    seen.ordered, seen.fifo = set(), {"in-order": 2}
    seen.delivered = [one for one in seen.delivered if one.group == "readers"]
    held = held_as_sent(seen)
    for number in (1, 0, 2, 3):
        seen.delivered.append(Delivered("in-order", ORDERED, f"o-{number}", 50.0))
    seen.place(held)
    assert not verdict_of(seen, held).counts, "message groups 0 and 1 are apart"
    seen.delivered = [one for one in seen.delivered if one.body != "o-0"]
    seen.delivered.append(Delivered("in-order", ORDERED, "o-0", 60.0))
    seen.place(held)
    assert verdict_of(seen, held).counts == {"went-back": 1}
    seen.delivered.append(Delivered("in-order", ORDERED, "o-1", 70.0))
    assert verdict_of(seen, held).counts == {"went-back": 1}, "a repeated delivery is no disorder"


def test_more_confirmed_acknowledgements_than_copies_are_found() -> None:
    seen = whole_run()
    seen.confirmed.update(["a-0", "a-1"])
    assert found(seen)[1] == []
    seen.confirmed.update(["a-1"])
    assert found(seen)[1] == ["I25: 1 popped again after a confirmed acknowledgement, first ['a-1']"]


def test_transactions_are_judged_by_their_decisions() -> None:
    seen = whole_run()
    for number, is_commit in enumerate((True, False)):
        seen.sent.append(Sent("t", TOPIC, f"t-{number}", 5.0, "SEND_OK", is_half=True))
        seen.decided.append(Decided("t", f"t-{number}", is_commit, 6.0, is_check=not is_commit))
    assert seen.due(TOPIC) == {"a-0", "a-1", "a-2", "a-3", "t-0"}
    assert found(seen) == (
        {"committed-lost": 1},
        ["I1: 1 acknowledged and never delivered to readers, first ['t-0']"],
    )
    seen.delivered += [Delivered("readers", TOPIC, f"t-{number}", 50.0) for number in (0, 1)]
    assert found(seen)[0] == {"aborted-read": 1}
    seen.sent.append(Sent("t", TOPIC, "t-2", 7.0, "SEND_OK", is_half=True))
    assert seen.undecided() == {"t-2"}
    assert found(seen)[0] == {"aborted-read": 1, "undecided": 1}
    expected = {"stored": 3, "committed": 1, "rolled_back": 1, "checks": 1}
    assert seen.report()["transactions"] == expected


def test_failed_send_may_have_stored_its_message() -> None:
    seen = whole_run()
    seen.sent.append(Sent("a", TOPIC, "a-4", 14.0))
    assert found(seen) == ({}, [])
    seen.delivered.append(Delivered("readers", TOPIC, "a-4", 50.0, 0, 4))
    held = held_as_sent(seen)
    held[0].messages.append((4, "a-4"))
    assert not verdict_of(seen, [held[0]._replace(end=5), *held[1:]]).counts
    assert seen.report()["failed"] == 1


def test_acknowledged_message_that_a_queue_lacks_is_found() -> None:
    seen = whole_run()
    held = [one._replace(messages=one.messages[:-1]) for one in held_as_sent(seen)]
    assert verdict_of(seen, held).counts == {"vanished": 2}
