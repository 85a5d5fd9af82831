"""A slave of another make becomes master for good: what waits at the old master goes on there, timed and transactional.

RocketMQ 5.3.3 has timed messages; its slave builds a wheel of its own, and asks its master how far deliveries are (60).
Slaves of both makes ask for the number of waiting messages by topic (61).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.checks import exactly, lose_one, prove, repeat_one
from tests.interop.driver import JavaDriver
from tests.interop.java import Value, wait_until
from tests.interop.logs import read_log
from tests.interop.peers import SMALL_STORE, Broker, broker, name_server, start_registered
from tests.interop.test_timed_messages import JAVA, Peers
from tests.interop.test_timed_messages import TOPIC as TIMED
from tests.interop.test_timed_messages import named as numbered
from tests.interop.test_transaction_stores import TOPIC as TRANSACTED
from tests.interop.test_transaction_stores import (
    await_checks,
    begin,
    delivered,
    named,
    wait_delivered,
)
from tests.interop.wire import loads_lenient, wait_topic
from tests.samples import slow
from tests.spec import spec

SETTINGS: dict[str, Value] = {
    **SMALL_STORE,
    "recallMessageEnable": "true",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "3000",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": "100",
    # TandemQ counts a slave that does not introduce itself only if its address is listed.
    "haClassicPeers": "127.0.0.1",
}
_CHECK = struct.Struct(">4q")


def timer_check(store: Path) -> tuple[int, ...]:
    """Last read time, log position, queue offset, the master's queue offset; zeros without the file."""
    path = store / "config" / "timercheck"
    data = path.read_bytes() if path.exists() else b""
    return _CHECK.unpack_from(data) if len(data) >= _CHECK.size else (0, 0, 0, 0)


def timer_counts(store: Path) -> dict[str, int]:
    """Number of waiting messages by topic, of the file."""
    path = store / "config" / "timermetrics"
    table = loads_lenient(path.read_text())["timingCount"] if path.exists() else {}
    return {topic: counted["count"] for topic, counted in table.items()}


def caught_up(master: Broker, slave: Broker) -> bool:
    return 0 < read_log(master.store).end == read_log(slave.store).end


@spec("S04", "G09")
@pytest.mark.parametrize(("leads", "follows"), [(JAVA, "ours"), slow(("ours", JAVA))])
def test_waiting_messages_and_open_transactions_go_on_at_a_promoted_slave(
    leads: str, follows: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        java = drivers(JAVA).at(namesrv.address)
        peers = Peers(java, namesrv)
        with (
            broker(leads, tmp_path / "master", namesrv, settings=SETTINGS, brokerRole="ASYNC_MASTER") as master,
            broker(follows, tmp_path / "slave", namesrv, settings=SETTINGS, brokerRole="SLAVE", brokerId=1) as slave,
        ):
            peers.ready(master)
            java.mqadmin(
                *("updateTopic", "-n", namesrv.address, "-b", master.address, "-t", TRANSACTED, "-r", "2", "-w", "2")
            )
            wait_topic(namesrv.port, TRANSACTED)
            slave.start()
            order = begin(java, "a", late=0)
            peers.send("near", 3, 1_500)
            far = peers.send("far", 4, 150_000 if follows == JAVA else 60_000)
            assert peers.recall(far[1])[0]["event"] == "recalled"
            peers.await_delivered(numbered("near", 0, 1, 2))
            wait_delivered(java, named("commit", "a"))
            await_checks(order, [*named("late", "a"), *named("never", "a")])
            order.end()
            # RocketMQ takes a recalled message off at once, TandemQ at its time.
            waiting = 3 if leads == JAVA else 4
            wait_until(
                lambda: timer_counts(slave.store).get(TIMED) == waiting and caught_up(master, slave),
                what="the slave has all, and knows how many messages wait",
                within_s=90,
                every_s=0.5,
            )
            if follows == JAVA:
                assert timer_check(slave.store)[3] > 0, "it has asked for the checkpoint"
            master.kill()
            slave.stop()
        (slave.store / "tandemq.identity").unlink(missing_ok=True)  # as an operator who gives the store away
        settings = {**SETTINGS, "store": str(slave.store)}
        with broker(follows, tmp_path / "promoted", namesrv, settings=settings) as promoted:
            start_registered(promoted, namesrv)
            wait_topic(namesrv.port, TRANSACTED)
            order = begin(java, "b", late=2)
            committed = [*named("commit", "a", "b"), *named("late", "a", "b")]
            wait_delivered(java, committed)
            await_checks(order, named("never", "a", "b"))
            order.end()
            expected = [*numbered("near", 0, 1, 2), *numbered("far", 0, 2, 3)]
            peers.await_delivered(expected, within_s=180)
            peers.prove_delivered(expected)
            prove(exactly(committed), delivered(java), lose_one, repeat_one)
