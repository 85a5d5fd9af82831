"""What brokers that cannot serve a request answer, ours beside Java's: codes, and how remarks begin.

Clients act on the code: a producer of 5.3 tries another broker after 1, 2, 14, 16 and 17 and fails after 13; a consumer
pulls again after a pause of 3 s whatever the code of a refused pull is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.java import SERVER_VERSIONS, Value, wait_until
from tests.interop.peers import SMALL_STORE, Broker, broker, name_server, start_registered
from tests.interop.test_small_requests import make_topic
from tests.interop.wire import Frame, ask

OLD, NEW = SERVER_VERSIONS
KINDS = ("ours", OLD, NEW)
TOPIC = "Refused"
BUSY = (2, "[REJECTREQUEST]system busy, start flow control for a while")
OTHER_BROKER = frozenset({1, 2, 14, 16, 17, 204, 205, 1500})
"""Codes after which a producer of 5.3.3 tries another broker."""
NOT_A_TOPIC = (17, "topic[Absent] not exist")


def send(place: Broker, *, topic: str = TOPIC, size: int = 1) -> Frame:
    fields = {
        "producerGroup": "p",
        "topic": topic,
        "defaultTopic": "NoTemplate",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return ask(place.port, 10, fields, b"x" * size, version=479)


def pull(place: Broker, *, topic: str = TOPIC) -> Frame:
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return ask(place.port, 11, fields, version=479)


class Row(NamedTuple):
    """One request to brokers in one situation; `answers`: code and how the remark begins, by kind."""

    situation: str
    what: str
    make: Callable[[Broker], Frame]
    answers: dict[str, tuple[int, str]]


SETTINGS: dict[str, dict[str, Value]] = {
    "master": {"maxMessageSize": 65_536, "autoCreateTopicEnable": False},
    "write only": {"brokerPermission": 2},
    "slave": {"brokerRole": "SLAVE", "brokerId": 1},
}
TABLE = (
    Row("slave", "send", send, {"ours": (14, "this broker is a slave"), OLD: (14, "service not available"), NEW: BUSY}),
    # A Java slave of 5.3 serves pulls with `slaveReadEnable` only.
    Row("slave", "pull", pull, {"ours": (0, "FOUND"), OLD: (0, "FOUND"), NEW: BUSY}),
    Row("write only", "pull", pull, dict.fromkeys(("ours", OLD), (16, "the broker"))),
    Row("write only", "send", send, dict.fromkeys(("ours", OLD), (0, ""))),
    Row("master", "large", lambda place: send(place, size=65_537), dict.fromkeys(KINDS, (13, ""))),
    Row("master", "send to none", lambda place: send(place, topic="Absent"), dict.fromkeys(KINDS, NOT_A_TOPIC)),
    Row(
        "master",
        "pull from none",
        lambda place: pull(place, topic="Absent"),
        dict.fromkeys(KINDS, (17, "topic[Absent]")),
    ),
    Row(
        "master",
        "send to a system topic",
        lambda place: send(place, topic="RMQ_SYS_TRANS_HALF_TOPIC"),
        dict.fromkeys(KINDS, (16, "")),
    ),
)


@pytest.mark.parametrize(
    ("situation", "kind"), dict.fromkeys((row.situation, kind) for row in TABLE for kind in row.answers)
)
def test_refusals_have_rocketmqs_codes(kind: str, situation: str, tmp_path: Path) -> None:
    settings: dict[str, Value] = {**SMALL_STORE, "store": str(tmp_path / "store")}
    rows = [row for row in TABLE if row.situation == situation]
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        with broker(kind, tmp_path / "before", namesrv, settings=settings) as place:
            start_registered(place, namesrv)
            make_topic(place, namesrv, TOPIC, 1)
            assert send(place).fields["code"] == 0
            place.stop()
        (tmp_path / "store" / "tandemq.identity").unlink(missing_ok=True)  # the slave gets this store as its own
        with broker(kind, tmp_path / "then", namesrv, settings={**settings, **SETTINGS[situation]}) as place:
            place.start()
            for row in rows:
                code, begin = row.answers[kind]
                found: list[Frame] = []

                def is_answered(row: Row = row, code: int = code, found: list[Frame] = found) -> bool:
                    found[:] = [row.make(place)]
                    return bool(found[0].fields["code"] == code)

                wait_until(is_answered, what=f"{kind}, {situation}, {row.what}: {code}", within_s=20, every_s=0.3)
                remark = found[0].fields.get("remark") or ""
                assert remark.startswith(begin), (row.what, remark)


def test_producers_try_another_broker_after_ours_refused_as_they_do_after_javas() -> None:
    for row in TABLE:
        if row.what.startswith("send") and row.answers["ours"][0]:
            assert {answer[0] in OTHER_BROKER for answer in row.answers.values()} == {True}, row.what
