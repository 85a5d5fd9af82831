"""Outcomes of transactions that did not succeed: what their reads say. With a real etcd: tests/unit/boundary."""

import pytest

from tandemq.real.etcd.messages import Header, KeyValue, OperationAnswer, RangeAnswer, TransactionAnswer
from tandemq.real.etcd.transactions import Fence, Keys, below, listing_outcome, writing, written_outcome
from tandemq.registry import (
    Conflict,
    Create,
    Delete,
    Exists,
    Guard,
    Names,
    NodeMissing,
    Outcome,
    ReadChildren,
    RegistryRefused,
    Unknown,
    Write,
)

FENCE = Fence(b"/tandemq-sessions/4d", 3)
HELD = KeyValue(FENCE.key, version=3)


def answered(*found: KeyValue | None) -> TransactionAnswer:
    """An answer whose reads found these keys, None: nothing."""
    ranges = [RangeAnswer(kvs=() if each is None else (each,)) for each in found]
    return TransactionAnswer(Header(), False, tuple(map(OperationAnswer, ranges)))


@pytest.mark.parametrize(
    ("operation", "found", "outcome"),
    [
        (Create("/a/b", b""), [KeyValue(b"/a/b", version=1), None], Exists()),
        (
            Create("/a/b", b""),
            [None, KeyValue(b"/a", version=1, lease=5)],
            RegistryRefused("/a is ephemeral and cannot have children"),
        ),
        (Create("/a/b", b""), [None, KeyValue(b"/a", version=1)], Unknown()),
        (Write("/a", b"", 4), [None], NodeMissing()),
        (Write("/a", b"", 4), [KeyValue(b"/a", version=6)], Conflict()),
        (Write("/a", b"", 4, Guard("/b", 1)), [KeyValue(b"/a", version=5)], Conflict()),
        (Delete("/a", 4), [None], NodeMissing()),
        (Delete("/a", 4), [KeyValue(b"/a", version=4)], Conflict()),
        (Delete("/a", 4), [KeyValue(b"/a", version=5)], RegistryRefused("/a has children")),
    ],
)
def test_outcome_follows_from_what_the_failed_transaction_read(
    operation: Create | Write | Delete, found: list[KeyValue | None], outcome: Outcome
) -> None:
    assert written_outcome(operation, answered(HELD, *found), FENCE) == outcome


@pytest.mark.parametrize("held", [None, KeyValue(FENCE.key, version=2), KeyValue(FENCE.key, version=4)])
def test_nothing_happened_once_the_session_has_ended_or_moved(held: KeyValue | None) -> None:
    for operation in (Create("/a", b""), Write("/a", b"", 0), Delete("/a", 0)):
        assert written_outcome(operation, answered(held, KeyValue(b"/a", version=1)), FENCE) is None


def test_every_write_compares_the_version_of_the_sessions_key() -> None:
    for operation in (Create("/a", b""), Write("/a", b"", 0), Delete("/a", 0)):
        first = writing(operation, Keys("/apps"), 77, FENCE)["compare"][0]
        assert (first["key"], first["target"], first["version"]) == (FENCE.key, "VERSION", "3")


def test_only_ephemeral_nodes_have_the_lease_and_writes_keep_it() -> None:
    keys = Keys("")
    puts = [
        writing(operation, keys, 77, FENCE)["success"][-1]["request_put"]
        for operation in (Create("/a", b"x"), Create("/a", b"x", ephemeral=True), Write("/a", b"x", 0))
    ]
    assert puts == [
        {"key": b"/a", "value": b"x"},
        {"key": b"/a", "value": b"x", "lease": "77"},
        {"key": b"/a", "value": b"x", "ignore_lease": True},
    ]


def test_children_are_the_names_one_level_below() -> None:
    keys = [b"/apps/g/b", b"/apps/g/a", b"/apps/g/a/x"]
    found = RangeAnswer(kvs=tuple(KeyValue(key, version=1) for key in keys))
    answer = TransactionAnswer(Header(), True, (answered(KeyValue(b"/apps/g")).responses[0], OperationAnswer(found)))
    assert listing_outcome(ReadChildren("/g"), answer, Keys("/apps")) == Names(("a", "b"))


def test_range_below_a_directory_has_no_sibling_with_the_same_beginning() -> None:
    start, end = below(b"/g/a")
    assert all(start <= key < end for key in (b"/g/a/", b"/g/a/b", b"/g/a/\xff"))
    assert not any(start <= key < end for key in (b"/g/a", b"/g/ab", b"/g/a-b", b"/g/b/a"))
