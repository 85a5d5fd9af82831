"""Timed messages and recalls with unmodified 5.3.3 clients and brokers, and stores that change hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from struct import Struct

import pytest

from tandemq import Message, Producer, SendResult
from tandemq.codec.remoting.recall_handle import encode_handle
from tandemq.errors import RemoteError
from tandemq.model.codes import ResponseCode
from tests.interop.checks import Events, bodies, exactly, lose_one, messages, prove, repeat_one
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.peers import SMALL_STORE, Broker, NameServer, broker, name_server, start_registered
from tests.interop.wire import wait_topic
from tests.samples import slow
from tests.spec import spec

JAVA = "5.3.3"
TOPIC = "Later"
SETTINGS = SMALL_STORE | {"recallMessageEnable": "true"}
FAR_MS = 600_000
_UNIT = Struct(">iqiqiqiiq")


class Peers:
    """A broker with its name server, and a Java client."""

    def __init__(self, java: JavaDriver, namesrv: NameServer) -> None:
        self.namesrv = namesrv
        self.java = java.at(namesrv.address)
        self.java.defaults = {**self.java.defaults, "api_timeout_ms": 15_000, "timeout_ms": 15_000}

    def ready(self, which: Broker) -> None:
        start_registered(which, self.namesrv)
        self.java.mqadmin(
            "updateTopic", "-n", self.namesrv.address, "-b", which.address, "-t", TOPIC, "-r", "2", "-w", "2"
        )
        wait_topic(self.namesrv.port, TOPIC)

    def send(self, prefix: str, count: int, timed_ms: int) -> list[str]:
        """Send timed messages; returns their recall handles."""
        answers = self.java.call("produce", topic=TOPIC, prefix=prefix, count=count, timed_ms=timed_ms)
        assert [event.get("status") for event in answers] == count * ["SEND_OK"], answers
        return [event["recallHandle"] for event in answers]

    def recall(self, *handles: str, topic: str = TOPIC) -> Events:
        return self.java.call("recall", topic=topic, handles=",".join(handles))

    def delivered(self) -> Events:
        return messages(self.java.call("pull", topic=TOPIC, group="auditor"))

    def await_delivered(self, expected: list[str], within_s: float = 60) -> None:
        wait_until(
            lambda: set(expected) <= set(bodies(self.delivered())),
            what=f"{expected} delivered",
            within_s=within_s,
            every_s=0.5,
        )

    def prove_delivered(self, expected: list[str]) -> None:
        """Wait until a message sent now has come, and prove what has come until then."""
        self.send("last", 1, 1_000)
        self.await_delivered(["last-0"])
        found = [event for event in self.delivered() if event["body"] != "last-0"]
        prove(exactly(expected), found, lose_one, repeat_one)


def named(prefix: str, *numbers: int) -> list[str]:
    return [f"{prefix}-{number}" for number in numbers]


@pytest.fixture(scope="module", params=["ours", JAVA])
def peers(
    request: pytest.FixtureRequest, drivers: Callable[[str], JavaDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peers]:
    directory = tmp_path_factory.mktemp("timed")
    with (
        name_server(request.param, directory / "namesrv") as namesrv,
        broker(request.param, directory / "broker", namesrv, settings=SETTINGS) as keeper,
    ):
        namesrv.start()
        made = Peers(drivers(JAVA), namesrv)
        made.ready(keeper)
        yield made


@spec("S02")
def test_java_client_recalls_messages_of_both_brokers(peers: Peers) -> None:
    handles = peers.send("java", 4, 12_000)
    recalled = peers.recall(*handles[:2])
    assert [event["event"] for event in recalled] == ["recalled", "recalled"], recalled
    again = peers.recall(handles[0])
    assert again[0]["msgId"] == recalled[0]["msgId"], "a second recall is not noticed"
    peers.await_delivered(named("java", 2, 3))
    late = peers.recall(handles[3])
    assert (late[0]["event"], late[0]["code"]) == ("failed", ResponseCode.ILLEGAL_OPERATION), late
    found = [event for event in peers.delivered() if event["body"].startswith("java")]
    prove(exactly(named("java", 2, 3)), found, lose_one, repeat_one)


def test_our_client_recalls_messages_of_both_brokers(peers: Peers) -> None:
    async def story() -> list[SendResult]:
        async with Producer(peers.namesrv.address, group="ours") as producer:
            sent = [await producer.send(Message(TOPIC, b"ours-%d" % number, delay=12)) for number in range(4)]
            assert [await producer.recall(one) for one in sent[:2]] == [one.unique_key for one in sent[:2]]
            return sent

    sent = asyncio.run(story())
    peers.await_delivered(named("ours", 2, 3))

    async def late() -> None:
        async with Producer(peers.namesrv.address, group="ours") as producer:
            await producer.recall(sent[3].recall_handle)

    with pytest.raises(RemoteError) as caught:
        asyncio.run(late())
    assert caught.value.code == ResponseCode.ILLEGAL_OPERATION
    found = [event for event in peers.delivered() if event["body"].startswith("ours")]
    prove(exactly(named("ours", 2, 3)), found, lose_one, repeat_one)


def test_recalls_are_refused_alike_by_both_brokers(peers: Peers) -> None:
    [handle] = peers.send("kept", 1, FAR_MS)
    now_ms = 1_700_000_000_000
    for handles, topic, code in (
        ("bm9uc2Vuc2U=", TOPIC, ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("Other", "broker-a", now_ms, "K"), TOPIC, ResponseCode.ILLEGAL_OPERATION),
        (encode_handle(TOPIC, "broker-a", now_ms, "K"), TOPIC, ResponseCode.ILLEGAL_OPERATION),
        (encode_handle(TOPIC, "broker-a", now_ms * 2, "K"), TOPIC, ResponseCode.ILLEGAL_OPERATION),
    ):
        [answer] = peers.recall(handles, topic=topic)
        assert answer["event"] == "failed", answer
        assert answer["code"] in (code, -1), answer  # -1: the client refuses it itself
    assert peers.recall(handle)[0]["event"] == "recalled"


# Stores.


@spec("S04")
@pytest.mark.parametrize(("first", "second"), [(JAVA, "ours"), slow(("ours", JAVA))])
def test_waiting_messages_go_from_hand_to_hand_and_each_comes_once(
    first: str, second: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    """The first broker is stopped while messages wait, the second delivers some, and the first again the rest."""
    store = tmp_path / "store"
    settings = {**SETTINGS, "store": str(store)}
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        peers = Peers(drivers(JAVA), namesrv)
        expected: list[str] = []
        with broker(first, tmp_path / "0", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            peers.send("near", 3, 1_500)
            far = peers.send("far", 4, 45_000)
            peers.send("farther", 3, 110_000)
            assert peers.recall(far[1])[0]["event"] == "recalled"
            expected += named("near", 0, 1, 2)
            peers.await_delivered(expected)
            keeper.stop()
        with broker(second, tmp_path / "1", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            assert peers.recall(far[3])[0]["event"] == "recalled"
            peers.send("more", 2, 1_500)
            expected += [*named("far", 0, 2), *named("more", 0, 1)]
            peers.await_delivered(expected)
            prove(exactly(expected), peers.delivered(), lose_one, repeat_one)
            keeper.stop()
        with broker(first, tmp_path / "2", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            expected += named("farther", 0, 1, 2)
            peers.await_delivered(expected, within_s=120)
            peers.prove_delivered(expected)
            keeper.stop()
        if first == JAVA:
            assert len(timer_log(store)) == len([*named("farther", 0, 1, 2), "last record", "last-0"])


def timer_log(store: Path) -> list[tuple[int, ...]]:
    """Return the units in the timer log of a Java broker."""
    with (store / "timerlog" / f"{0:020d}").open("rb") as file:
        units = _UNIT.iter_unpack(file.read(1_000 * _UNIT.size))
    return list(takewhile(lambda unit: unit[0] == _UNIT.size, units))


@spec("S04")
def test_store_of_a_killed_java_broker_has_each_message_delivered_once(
    drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    settings = {**SETTINGS, "store": str(tmp_path / "store")}
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        peers = Peers(drivers(JAVA), namesrv)
        with broker(JAVA, tmp_path / "0", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            peers.send("far", 3, 25_000)
            peers.send("near", 5, 2_000)
            peers.await_delivered(named("near", 0, 1, 2, 3, 4))
            keeper.kill()
        with broker("ours", tmp_path / "1", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            peers.await_delivered(named("far", 0, 1, 2))
            peers.prove_delivered([*named("near", 0, 1, 2, 3, 4), *named("far", 0, 1, 2)])
            keeper.kill()
        with broker("ours", tmp_path / "1", namesrv, settings=settings) as keeper:
            peers.ready(keeper)
            peers.await_delivered(["last-0"])
            found = [event for event in peers.delivered() if not event["body"].startswith("last")]
            prove(exactly([*named("near", 0, 1, 2, 3, 4), *named("far", 0, 1, 2)]), found, lose_one, repeat_one)
            keeper.stop()
