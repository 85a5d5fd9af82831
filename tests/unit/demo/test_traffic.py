"""The ledger of the demo: acknowledged, delivered, unread, missing and duplicate messages."""

from tandemq.demo.traffic import Ledger


def test_message_is_unread_between_acknowledgement_and_delivery() -> None:
    ledger = Ledger()
    ledger.acknowledged(["k1", "k2"], "a")
    ledger.acknowledged(["k3"], "b")
    assert (ledger.unread["a"], ledger.unread["b"], ledger.missing) == (2, 1, 3)
    assert ledger.deliver("k1")
    assert ledger.deliver("k3")
    assert (ledger.unread["a"], ledger.unread["b"], ledger.missing) == (1, 0, 1)


def test_message_delivered_before_its_acknowledgement_is_never_unread() -> None:
    ledger = Ledger()
    assert ledger.deliver("k1")
    ledger.acknowledged(["k1", "k2"], "a")
    assert ledger.missing == 1


def test_duplicate_message_counts_once() -> None:
    ledger = Ledger()
    ledger.acknowledged(["k1"], "a")
    assert [ledger.deliver("k1"), ledger.deliver("k1")] == [True, False]
    assert ledger.missing == 0
