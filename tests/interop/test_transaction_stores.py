"""Stores with open transactions change hands: what one broker left open, the next one checks and ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq.model.topic import CHECK_MAX_TIME_TOPIC
from tests.interop.checks import Events, bodies, exactly, lose_one, messages, prove, repeat_one
from tests.interop.driver import JavaDriver, Running
from tests.interop.java import SERVER_VERSIONS, wait_until
from tests.interop.peers import CLIENTS, SMALL_STORE, SUBJECT, broker, name_server, start_registered
from tests.interop.wire import wait_topic
from tests.samples import slow

COUNT = 3
TOPIC = "Entrusted"
CHECKED = SMALL_STORE | {
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "3000",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": "100",
}
# Java brokers give up in the same round in which they ask for the last time.
CHECKED_OUT = CHECKED | {"transactionCheckMax": "3"}
OTHERS = [version for version in SERVER_VERSIONS if version != SUBJECT]


@pytest.mark.parametrize(
    ("first", "second"), [pair for other in OTHERS for pair in ((other, SUBJECT), slow((SUBJECT, other)))]
)
def test_open_transactions_go_from_hand_to_hand_and_each_ends_once(
    first: str, second: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    """The first broker checks what it has open; the second ends the late ones; the first again gives up the rest."""
    settings = {**CHECKED, "store": str(tmp_path / "store")}
    with name_server(SUBJECT, tmp_path / "namesrv") as namesrv:
        namesrv.start()
        java = drivers(CLIENTS[-1]).at(namesrv.address)
        java.defaults = {**java.defaults, "api_timeout_ms": 15_000, "timeout_ms": 15_000}

        with broker(first, tmp_path / "0", namesrv, settings=settings) as keeper:
            start_registered(keeper, namesrv)
            at = ("-n", namesrv.address, "-b", keeper.address)
            java.mqadmin("updateTopic", *at, "-t", TOPIC, "-r", "2", "-w", "2")
            wait_topic(namesrv.port, TOPIC)
            order = begin(java, "a", late=0)
            await_checks(order, [*named("late", "a"), *named("never", "a")])
            wait_delivered(java, named("commit", "a"))
            order.end()
            keeper.stop()

        with broker(second, tmp_path / "1", namesrv, settings=settings) as keeper:
            start_registered(keeper, namesrv)
            wait_topic(namesrv.port, TOPIC)
            order = begin(java, "b", late=2)
            expected = [*named("commit", "a", "b"), *named("late", "a", "b")]
            wait_delivered(java, expected)
            await_checks(order, named("never", "a", "b"), more=2)
            asked = checks(order.end())
            assert_asked(asked, {*named("late", "a", "b"), *named("never", "a", "b")}, "b")
            # A client that answers slowly is asked once more.
            assert {asked[body] for body in named("late", "a")} <= {2, 3}
            prove(exactly(expected), delivered(java), lose_one, repeat_one)
            keeper.stop()

        with broker(first, tmp_path / "2", namesrv, settings={**settings, **CHECKED_OUT}) as keeper:
            start_registered(keeper, namesrv)
            wait_topic(namesrv.port, TOPIC)
            order = begin(java, "c", late=1)
            expected += [*named("commit", "c"), *named("late", "c")]
            wait_delivered(java, expected)
            given_up = named("never", "a", "b", "c")
            wait_topic(namesrv.port, CHECK_MAX_TIME_TOPIC)
            wait_until(
                lambda: set(given_up) <= set(bodies(parked(java))),
                what=f"{given_up} given up",
                within_s=60,
                every_s=0.5,
            )
            asked = checks(order.end())
            assert_asked(asked, {*named("late", "c"), *named("never", "c")}, "c")
            prove(exactly(expected), delivered(java), lose_one, repeat_one)
            prove(exactly(given_up), parked(java), lose_one, repeat_one)


def named(kind: str, *names: str) -> list[str]:
    return [f"{kind}-{name}{number}" for name in names for number in range(COUNT)]


def begin(java: JavaDriver, name: str, *, late: int) -> Running:
    """Send transactions of each kind, under this name, and answer the checks of all until the order ends."""
    order = java.begin(
        "transact", topic=TOPIC, group="entrusting", count=COUNT, name=name, late=late, deadline_ms=240_000
    )
    sent = order.wait_for(lambda event: event["event"] == "sent", within_s=60, count=4 * COUNT)
    assert {event["status"] for event in sent} == {"SEND_OK"}
    return order


def checks(events: Events) -> Counter[str]:
    return Counter(event["body"] for event in events if event["event"] == "checked")


def await_checks(order: Running, expected: list[str], more: int = 1) -> None:
    """Wait until each was checked `more` times again."""
    before = checks(order.events())
    wait_until(
        lambda: all(checks(order.events())[body] >= before[body] + more for body in expected),
        what=f"checks of {expected}",
        within_s=60,
        every_s=0.2,
    )


def assert_asked(asked: Counter[str], expected: set[str], name: str) -> None:
    """What is open was checked, and nothing that an earlier broker saw the end of.

    What this broker got itself may be checked while its end is under way.
    """
    own = {*named("commit", name), *named("rollback", name)}
    assert asked.keys() - own == expected, asked


def delivered(java: JavaDriver) -> Events:
    return messages(java.call("pull", topic=TOPIC, group="auditor"))


def parked(java: JavaDriver) -> Events:
    return messages(java.call("pull", topic=CHECK_MAX_TIME_TOPIC, group="auditor"))


def wait_delivered(java: JavaDriver, expected: list[str]) -> None:
    wait_until(
        lambda: set(expected) <= set(bodies(delivered(java))),
        what=f"{expected} delivered",
        within_s=60,
        every_s=0.5,
    )
