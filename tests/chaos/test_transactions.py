"""The checks of transactions in `make chaos`, on histories made by hand."""

from collections.abc import Callable

import pytest

from chaos.history import Place, Stored
from chaos.transactions import TransactionHistory
from tandemq.model.transactions import TransactionState
from tests.spec import spec

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK
Logs = dict[str, list[Stored]]
Change = Callable[[TransactionHistory, set[str], Logs], None]


def record(queue_id: int, offset: int, body: str, tag: str = "t") -> Stored:
    return Stored(Place(queue_id, offset), body, tag, body, f"key of {body}")


def good() -> tuple[TransactionHistory, set[str], Logs]:
    """One committed twice, one rolled back, one forgotten and committed when it was checked, one with no response."""
    known = TransactionHistory()
    known.stored |= {"t-1", "t-2", "t-3"}
    known.outcomes |= {"t-1": COMMIT, "t-2": ROLLBACK, "t-3": COMMIT, "t-4": ROLLBACK}
    logs = {
        "messages": [record(0, 0, "t-1"), record(1, 0, "t-1"), record(0, 1, "a-1", "a"), record(0, 2, "t-3")],
        "halves": [record(0, offset, f"t-{number}") for offset, number in enumerate((1, 1, 2, 3, 4, 3))],
        "ops": [record(0, 0, "0", "d"), record(0, 1, "1,2,3,", "d"), record(0, 2, "4,5,", "d")],
    }
    return known, {"t-1", "t-3", "a-1"}, logs


def found(change: Change) -> list[str]:
    known, delivered, logs = good()
    change(known, delivered, logs)
    return known.check(delivered) + known.check_log("broker-a-0", **logs)


def test_valid_history_passes_and_is_counted() -> None:
    known, delivered, logs = good()
    assert known.check(delivered) == known.check_log("broker-a-0", **logs) == []
    assert known.report() == {"stored": 3, "committed": 2, "rolled_back": 2, "confirmed": 0, "checks": 0}


def rolled_back_is_delivered(_known: TransactionHistory, delivered: set[str], _logs: Logs) -> None:
    delivered.add("t-2")


def rolled_back_is_in_its_topic(_known: TransactionHistory, _delivered: set[str], logs: Logs) -> None:
    logs["messages"].append(record(2, 0, "t-4"))


def committed_is_not_delivered(_known: TransactionHistory, delivered: set[str], _logs: Logs) -> None:
    delivered.discard("t-3")


def committed_is_not_in_its_topic(_known: TransactionHistory, _delivered: set[str], logs: Logs) -> None:
    del logs["messages"][-1]


def nobody_asked(known: TransactionHistory, _delivered: set[str], _logs: Logs) -> None:
    known.stored.add("t-5")


def half_message_is_open(_known: TransactionHistory, _delivered: set[str], logs: Logs) -> None:
    logs["halves"].append(record(0, 6, "t-4"))


def end_is_refused(known: TransactionHistory, _delivered: set[str], _logs: Logs) -> None:
    known.refused.append("I11: the end of t-1 was refused")


@spec("G09")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (rolled_back_is_delivered, "1 delivered and not committed"),
        (rolled_back_is_in_its_topic, "1 in the log of broker-a-0 and not committed"),
        (committed_is_not_delivered, "1 committed and never delivered"),
        (committed_is_not_in_its_topic, "1 committed and not in the log"),
        (nobody_asked, "1 forgotten: no broker asked"),
        (half_message_is_open, "1 half messages in the log of broker-a-0 are not over"),
        (end_is_refused, "the end of t-1 was refused"),
    ],
)
def test_violation_is_found(change: Change, text: str) -> None:
    (violation,) = found(change)
    assert violation.startswith("I11")
    assert text in violation
