"""The master of an elected group is killed with open transactions of Java producers: the new one goes on checking."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tandemq.coordination.registry.records import Mode
from tandemq.run.groups import configure
from tests.interop.driver import Event, JavaDriver, Running
from tests.interop.java import Value
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.peers import CLIENTS, SMALL_STORE
from tests.interop.wire import wait_registered, wait_topic
from tests.spec import spec

GROUP = "broker-a"
COUNT = 4
DEADLINE_MS = 600_000
SHORT_CHECKS: dict[str, Value] = {
    "transactionCheckInterval": 6_000,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 100,
}


@spec("G09")
def test_new_master_checks_open_transactions_and_commits_none_twice(tmp_path: Path) -> None:
    with ExitStack() as stack:
        own = {"registryEnable": "true", "kvConfigPath": str(tmp_path / "registry")}
        namesrv = stack.enter_context(OurNameServer(tmp_path / "namesrv", settings=own))
        namesrv.start()
        registry = f"namesrv://{namesrv.address}"
        configure(registry, [GROUP], Mode.ELECT, 2)
        members = [
            stack.enter_context(_member(tmp_path, namesrv.address, registry, broker_id)) for broker_id in range(2)
        ]
        for broker_id, member in enumerate(members):
            member.start()
            wait_registered(namesrv.port, GROUP, broker_id)
        old, new = members
        runs: list[tuple[JavaDriver, str, Running]] = []
        for version in CLIENTS:
            java = stack.enter_context(JavaDriver(version, tmp_path / version, namesrv=namesrv.address))
            topic = f"Killed{version[0]}"
            java.mqadmin("updateTopic", "-n", namesrv.address, "-b", old.address, "-t", topic, "-r", "2", "-w", "2")
            wait_topic(namesrv.port, topic)
            order = java.begin("transact", topic=topic, group=f"{topic}-p", count=COUNT, deadline_ms=DEADLINE_MS)
            runs.append((java, topic, order))
        for _, _, order in runs:
            sent = order.wait_for(lambda event: event["event"] == "sent", within_s=90, count=4 * COUNT)
            assert {event["status"] for event in sent} == {"SEND_OK"}
        before = [_checks(order, within_s=60, kind="never", count=1) for _, _, order in runs]
        old.kill()
        wait_registered(namesrv.port, GROUP, 0)
        consumers = [
            java.begin("push", topic=topic, group=f"{topic}-c", deadline_ms=DEADLINE_MS) for java, topic, _ in runs
        ]
        for (_, _, order), consumer, seen in zip(runs, consumers, before, strict=True):
            consumer.wait_for(lambda event: event["event"] == "message", within_s=120, count=2 * COUNT)
            # Those whose outcome stays unknown are checked by the new master too.
            more = sum(seen.values()) + 2 * COUNT
            after = _checks(order, within_s=90, kind="never", count=more)
            assert all(after[body] > seen[body] for body in after), (seen, after)
        old.start()
        wait_registered(namesrv.port, GROUP, 1)
        for (_, _, order), consumer in zip(runs, consumers, strict=True):
            order.stop()
            order.end()
            delivered = Counter(event["body"] for event in consumer.end() if event["event"] == "message")
            assert delivered == Counter(f"{kind}-{at}" for kind in ("commit", "late") for at in range(COUNT))
        assert new.address


def _member(directory: Path, namesrv: str, registry: str, broker_id: int) -> OurBroker:
    role: dict[str, Value] = {"brokerRole": "SLAVE" if broker_id else "SYNC_MASTER", "brokerId": broker_id}
    settings = {**SMALL_STORE, **SHORT_CHECKS, "registryAddr": registry, "brokerName": GROUP, **role}
    return OurBroker(directory / f"member-{broker_id}", namesrv=namesrv, name=f"member-{broker_id}", settings=settings)


def _checks(order: Running, *, within_s: float, kind: str, count: int) -> Counter[str]:
    """Wait for checks of a kind of transactions; return their number by body."""

    def is_wanted(event: Event) -> bool:
        return event["event"] == "checked" and str(event["body"]).startswith(kind)

    return Counter(event["body"] for event in order.wait_for(is_wanted, within_s=within_s, count=count))
