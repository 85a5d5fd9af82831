"""Store directories change hands: what one broker wrote, the other serves and continues, both ways, after kills too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden import GOLDEN, unpack
from tests.interop.checks import (
    Events,
    agrees_with,
    bodies,
    change_body,
    exactly,
    lose_one,
    messages,
    move_one,
    prove,
    repeat_one,
    sent,
)
from tests.interop.driver import JavaDriver
from tests.interop.java import SERVER_VERSIONS, wait_until
from tests.interop.logs import offsets_of, read_log
from tests.interop.peers import (
    CLIENTS,
    SERVERS,
    SHORT_DELAYS,
    SMALL_STORE,
    SUBJECT,
    Broker,
    broker,
    name_server,
    of_each_change,
    start_registered,
)
from tests.interop.wire import wait_topic

_GROUP = "heirs"
_QUEUES = 4
_EACH = 24
"""Messages that every broker adds: six per queue, of which its successor finds three read."""


@pytest.mark.parametrize("other", of_each_change(SERVERS))
def test_store_goes_from_hand_to_hand_and_nothing_is_lost_or_read_twice(
    other: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    """subject, stopped -> other, stopped -> subject, killed -> other, killed -> subject."""
    store = tmp_path / "store"
    settings = {**SMALL_STORE, **SHORT_DELAYS, "store": str(store)}
    chain = [(SUBJECT, "stop"), (other, "stop"), (SUBJECT, "kill"), (other, "kill"), (SUBJECT, "kill")]
    answers: Events = []
    read: Events = []
    with name_server(SUBJECT, tmp_path / "namesrv") as namesrv:
        namesrv.start()
        java = drivers(CLIENTS[-1]).at(namesrv.address)
        for turn, (make, end) in enumerate(chain):
            with broker(make, tmp_path / f"{turn}-{make}", namesrv, settings=settings) as keeper:
                start_registered(keeper, namesrv)
                if turn == 0:
                    at = ("-n", namesrv.address, "-b", keeper.address)
                    java.mqadmin("updateTopic", *at, "-t", "Heirloom", "-r", str(_QUEUES), "-w", str(_QUEUES))
                wait_topic(namesrv.port, "Heirloom")
                _check_inheritance(java, answers, turn)
                read += java.call("pull", topic="Heirloom", group=_GROUP, resume=True, limit=3, commit=True)
                answers += _add(java, turn)
                read += java.call("pull", topic="Heirloom", group=_GROUP, resume=True, limit=3, commit=True)
                if end == "stop":
                    keeper.stop()
                else:
                    _wait_stored(keeper, 3 + 6 * turn)
                    keeper.kill()
        expected_read = [f"turn{turn}-{index}" for turn in range(len(chain)) for index in range(_EACH)]
        prove(_read_in_order_without_gaps, read, lose_one, repeat_one)
        assert set(bodies(read)) <= set(expected_read)


def _add(java: JavaDriver, turn: int) -> Events:
    return sent(
        java.call(
            "produce",
            topic="Heirloom",
            count=_EACH,
            queues=_QUEUES,
            prefix=f"turn{turn}",
            keys=f"turn{turn}k",
            tags="A,B",
            size=600,
        )
    )


def _check_inheritance(java: JavaDriver, answers: Events, turn: int) -> None:
    """All that was written before is there, where it was, and is found by key and by id."""
    if not turn:
        return
    everything = java.call("pull", topic="Heirloom", group="auditor")
    for event in messages(everything):
        event["body"] = event["body"].rstrip(".")
    expected = [f"turn{past}-{index}" for past in range(turn) for index in range(_EACH)]
    prove(exactly(expected), everything, lose_one, repeat_one, change_body)
    prove(agrees_with(answers), everything, lose_one, move_one)
    for past in range(turn):
        by_key = java.call("key", topic="Heirloom", key=f"turn{past}kall", max=64)
        prove(exactly([f"turn{past}-{index}" for index in range(_EACH)]), by_key, lose_one)
    sample = answers[-1]
    found = messages(java.call("unique", topic="Heirloom", unique=sample["msgId"]))
    prove(agrees_with([sample]), found, move_one)


def _read_in_order_without_gaps(events: Events) -> None:
    """The group read each queue from 0 on, one by one, whoever kept the store meanwhile."""
    for queue in range(_QUEUES):
        offsets = [event["queueOffset"] for event in messages(events) if event["queueId"] == queue]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) == 3 + 6 * 4


def _wait_stored(keeper: Broker, offset: int) -> None:
    """Offsets reach the disk every few seconds; a kill before would take them back: allowed, but not the point here."""
    expected = {str(queue): offset for queue in range(_QUEUES)}
    wait_until(
        lambda: offsets_of(keeper.store, "Heirloom", _GROUP) == expected,
        what=f"offsets {expected} on disk",
        within_s=30,
        every_s=0.3,
    )


# ------------------------------------------------------------------------------------------------------ golden stores


@pytest.mark.parametrize(
    "name", [f"store-{version}-{end}" for version in SERVER_VERSIONS for end in ("clean", "killed")]
)
def test_golden_store_reads_as_java_read_it(name: str, drivers: Callable[[str], JavaDriver], tmp_path: Path) -> None:
    unpack(name, tmp_path)
    golden: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    settings = {**golden["configuration"], "store": str(tmp_path / "store")}
    with (
        name_server(SUBJECT, tmp_path / "namesrv") as namesrv,
        broker(SUBJECT, tmp_path / "broker", namesrv, settings=settings) as keeper,
    ):
        namesrv.start()
        java = drivers(CLIENTS[-1]).at(namesrv.address)
        start_registered(keeper, namesrv)
        # After a kill a broker may deliver again what was delayed; that comes after everything golden.
        last = max(message["commitLogOffset"] for message in golden["messages"])
        topics = sorted({message["topic"] for message in golden["messages"]} - {"SCHEDULE_TOPIC_XXXX"})
        for topic in topics:
            wait_topic(namesrv.port, topic)
            wanted = [message for message in golden["messages"] if message["topic"] == topic]
            prove(
                _same_messages(wanted),
                _until(last, java.call("pull", topic=topic, group="archivist")),
                lose_one,
                move_one,
                change_body,
            )
        for key, offsets in golden["keys"].items():
            topic, _, word = key.partition("#")
            found = _until(last, java.call("key", topic=topic, key=word, max=64))
            prove(_at_offsets(offsets), found, lose_one)
        kept = offsets_of(tmp_path / "store", "GoldenOrders", golden["group"])
        assert kept == {"0": 11, "1": 11}
        # What comes next continues the queues.
        ends = {queue["queueId"]: queue["max"] for queue in golden["queues"] if queue["topic"] == "GoldenOrders"}
        answers = sent(java.call("produce", topic="GoldenOrders", count=2, queues=2))
        assert {answer["queueId"]: answer["queueOffset"] for answer in answers} == ends
        assert read_log(keeper.store).records


_COMPARED = (
    "topic",
    "queueId",
    "queueOffset",
    "commitLogOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bodyCRC",
    "flag",
    "storeSize",
    "reconsumeTimes",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
)


def _until(last: int, events: Events) -> Events:
    return [event for event in messages(events) if event["commitLogOffset"] <= last]


def _same_messages(golden: Events) -> Callable[[Events], None]:
    def check(events: Events) -> None:
        assert _comparable(events) == _comparable(golden)

    return check


def _comparable(events: Events) -> list[tuple[Any, ...]]:
    """The stored properties of messages, in the order of the log; MIN_OFFSET and MAX_OFFSET are the client's own."""
    return sorted(
        (
            *(event[key] for key in _COMPARED),
            {key: text for key, text in event["properties"].items() if key not in {"MIN_OFFSET", "MAX_OFFSET"}},
        )
        for event in events
    )


def _at_offsets(offsets: list[int]) -> Callable[[Events], None]:
    def check(events: Events) -> None:
        assert sorted(event["commitLogOffset"] for event in events) == offsets

    return check
