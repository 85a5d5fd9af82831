"""A store of this tree is opened by the last release, and again by this tree: nothing that both know is lost."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tests.samples import slow
from tests.versions import filled
from tests.versions.filled import ACKNOWLEDGED, DEADLINE_S, HALF, IN_FLIGHT, PLAIN, TIMED, Alone, alone, facts, fill
from tests.versions.planted import PLANTED
from tests.versions.rolling import verified
from tests.versions.world import TREE, Version

pytestmark = pytest.mark.timeout(600)


def wait_bodies(broker: Alone, topic: str, wanted: set[str], may_repeat: str = "") -> None:
    """Wait until a topic has these messages and no others, once each. `may_repeat`: one that may be there twice."""
    until = time.monotonic() + DEADLINE_S
    while True:
        found = Counter(body for _, _, body in filled.bodies(broker.at, topic))
        if found.keys() == wanted and all(
            count == 1 or (body == may_repeat and count == 2) for body, count in found.items()
        ):
            return
        assert time.monotonic() < until, (topic, found, wanted)


def check_waiting(broker: Alone, *, killed: bool) -> None:
    """Check that what was in flight, waited or was open when another version closed the store goes on."""
    # A kill may repeat a delayed message whose time had come.
    wait_bodies(broker, TIMED, {"timed-0", "timed-1", "timed-2", "delayed"}, "delayed" if killed else "")
    assert filled.end_open(broker.at) == set(filled.OPEN)
    wait_bodies(broker, HALF, {"commit-0", "commit-1", *filled.OPEN[:-1]})
    returned: dict[str, int] = {}
    with closing(filled.pops(broker.at)) as popped:
        while len(returned) < IN_FLIGHT:
            message = next(popped)
            returned[message.stored.body.decode()] = message.delivery_count
            message.ack()
    assert set(returned.values()) == {2}, f"of {ACKNOWLEDGED + IN_FLIGHT} popped ones only those in flight: {returned}"


def open_backwards(directory: Path, tree: Version, old: Version, *, killed: bool) -> None:
    """Fill a store with a version of the tree, use it with the old one, and then with the tree again; check all."""
    with alone(directory, tree) as broker:
        fill(broker)
        before = facts(broker)
        assert len(before["plain"]) == filled.MESSAGES + filled.BATCH
        assert filled.DELETED not in before["topics"]
        broker.reopen(old, killed=killed)
        assert facts(broker) == before
        check_waiting(broker, killed=killed)
        with BlockingProducer(broker.at, group="later") as producer:
            for number in range(20):
                producer.send(Message(PLAIN, f"later-{number}".encode()))
        changed = facts(broker)
        assert Counter(body for _, _, body in changed["plain"]) > Counter(body for _, _, body in before["plain"])
        broker.reopen(tree, killed=killed)
        assert facts(broker) == changed
        assert {body for _, _, body in filled.bodies(broker.at, HALF)} == {"commit-0", "commit-1", *filled.OPEN[:-1]}
        store = broker.stop()
    assert [*verified(TREE, store), *verified(old, store)] == []


@pytest.mark.parametrize("killed", [False, slow(True)], ids=["stopped", "killed"])
def test_store_of_this_tree_opens_with_the_last_release_and_again_with_this_tree(
    tmp_path: Path, old: Version, *, killed: bool
) -> None:
    open_backwards(tmp_path, TREE, old, killed=killed)


@pytest.mark.slow
def test_table_that_the_last_release_reads_in_another_way_is_noticed(tmp_path: Path, old: Version) -> None:
    with pytest.raises(AssertionError, match="offsets"):
        open_backwards(tmp_path, PLANTED, old, killed=False)
