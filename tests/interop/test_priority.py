"""Priorities beside Java 5.5.0: what a broker stores where, and in which order pops get it.

Each broker is asked the same, and what it does is noted; the notes have to be equal. A message that comes back is left
out: there we differ on purpose (docs/reference/pop.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tandemq.model.codes import RequestCode
from tandemq.model.message import DELAY, PRIORITY, SHARDING_KEY, TIMER_DELAY_MS, encode_properties
from tests.interop.peers import NEWEST_VERSION, SMALL_STORE, broker, name_server, start_registered
from tests.interop.pops import Popper
from tests.interop.wire import ask
from tests.request_fields import topic_fields
from tests.spec import spec

QUEUES = 4
GROUPS = {"first": None, "second": None, "never": "0", "lowest": None}
"""Groups, and their `priority.factor`."""
SENT: tuple[dict[str, str], ...] = (
    *({PRIORITY: text} for text in ("0", "3", "1", "2", "4", "9", "3", "0")),
    *({PRIORITY: text} for text in ("-1", "abc", "+2", "007", "2147483647", "2147483648", "1.5")),
    {},
    {PRIORITY: "3", DELAY: "1"},
    {PRIORITY: "3", DELAY: "0"},
    {PRIORITY: "3", TIMER_DELAY_MS: "1000"},
    {PRIORITY: "3", SHARDING_KEY: "k"},
)
"""Properties of the messages; the body is the number of the message."""
FACTORS = ("0", "100", "101", "-1", "x")


class Notes(NamedTuple):
    """What a broker did."""

    sent: dict[str, list[tuple[int, str]]]
    """Code and queue of each response, by type of the topic."""
    stored: dict[str, tuple[int, str | None]]
    """Queue and priority of each popped message."""
    one_by_one: list[str]
    at_once: list[str]
    lowest_first: list[str]
    is_never_preferred: bool
    """Whether a group with factor 0 got lower priorities while there were higher ones."""
    factors: list[bool]
    """Whether each of `FACTORS` is accepted."""


def send(port: int, topic: str, properties: dict[str, str], body: bytes) -> tuple[int, str]:
    """Send a message to queue 1 unless its properties say another; return code and queue of the response."""
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 1, "f": 0, "g": 1_700_000_000_000, "h": 0}
    fields |= {"i": encode_properties(properties), "j": 0, "k": "false", "m": "false"}
    answer = ask(port, RequestCode.SEND_MESSAGE_V2, {name: str(value) for name, value in fields.items()}, body).fields
    return answer["code"], answer["extFields"]["queueId"]


def create(port: int, topic: str, message_type: str) -> None:
    fields = topic_fields(topic, QUEUES, attributes=f"+message.type={message_type}")
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    answer = ask(port, RequestCode.UPDATE_AND_CREATE_TOPIC, texts).fields
    assert answer["code"] == 0, answer


def create_group(port: int, group: str, factor: str | None) -> bool:
    attributes = "" if factor is None else f',"attributes":{{"+priority.factor":"{factor}"}}'
    body = f'{{"groupName":"{group}","retryMaxTimes":16{attributes}}}'.encode()
    found: int = ask(port, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).fields["code"]
    return found == 0


def one_by_one(popper: Popper, number: int) -> list[tuple[str, int]]:
    """Pop messages one by one; return their bodies and queues."""
    found = []
    for _ in range(number):
        (taken,) = popper.await_messages(1, maxMsgNums=1)
        found.append((taken.text, taken.message.queue_id))
    return found


def note(kind: str, directory: Path) -> Notes:
    """Ask a broker."""
    with (
        name_server("ours", directory / "namesrv") as namesrv,
        broker(kind, directory / "broker", namesrv, settings=SMALL_STORE | {"reviveQueueNum": 2}) as keeper,
    ):
        namesrv.start()
        start_registered(keeper, namesrv)
        port, sent = keeper.port, {}
        for group, factor in GROUPS.items():
            assert create_group(port, group, factor), group
        for topic in ("PRIORITY", "NORMAL", "DELAY"):
            create(port, topic, topic)
            sent[topic] = [send(port, topic, properties, b"%d" % at) for at, properties in enumerate(SENT)]
        first = Popper(port, "PRIORITY", "first")
        stored = {}
        for taken in first.await_messages(len(SENT)):
            stored[taken.text] = taken.message.queue_id, taken.message.properties.get(PRIORITY)
        for round_ in range(6):
            for priority in (1, 0, 3, 2):
                send(port, "PRIORITY", {PRIORITY: str(priority)}, b"%d-%d" % (priority, round_))
        one = [text for text, _ in one_by_one(first, 24)]
        everything = Popper(port, "PRIORITY", "second").await_messages(len(SENT) + 24)
        never = [queue for _, queue in one_by_one(Popper(port, "PRIORITY", "never"), 20)]
        setting = ask(port, RequestCode.UPDATE_BROKER_CONFIG, body=b"priorityOrderAsc=false")
        assert setting.fields["code"] == 0
        lowest = Popper(port, "PRIORITY", "lowest").await_messages(len(SENT) + 24)
        return Notes(
            sent,
            stored,
            one,
            [taken.text for taken in everything],
            [taken.text for taken in lowest],
            never != sorted(never, reverse=True),
            [create_group(port, "factor", factor) for factor in FACTORS],
        )


@spec("K05")
def test_priorities_are_those_of_a_java_broker(tmp_path: Path) -> None:
    ours, java = note("ours", tmp_path / "ours"), note(NEWEST_VERSION, tmp_path / "java")
    assert ours.sent["PRIORITY"][:6] == [(0, queue) for queue in ("0", "3", "1", "2", "3", "3")]
    assert ours.one_by_one == [f"{priority}-{number}" for priority in (3, 2, 1, 0) for number in range(6)]
    assert ours.is_never_preferred
    for topic, answers in java.sent.items():
        differences = [item for item in zip(SENT, ours.sent[topic], answers, strict=True) if item[1] != item[2]]
        assert not differences, (topic, "properties, our code and queue, Java's")
    for name, found, expected in zip(Notes._fields[1:], ours[1:], java[1:], strict=True):
        assert found == expected, name
