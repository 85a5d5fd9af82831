"""Message traces: of Java clients at our broker and of ours at Java's, read by our tools and by mqadmin."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from tandemq import Message, Producer, PushConsumer, TransactionProducer
from tandemq.client.admin.traces import MessageTrace, TraceEvent
from tandemq.client.aio.admin import Admin
from tandemq.client.core.settings import ConsumeFrom
from tandemq.codec.message_trace import decode_traces, encode_trace
from tandemq.model.topic import TRACE_TOPIC
from tandemq.model.transactions import TransactionState
from tests.interop.conftest import Drivers
from tests.interop.java import CLIENT_VERSIONS, SERVER_VERSIONS, PeerError, wait_until
from tests.interop.peers import SMALL_STORE, broker, name_server, start_registered
from tests.spec import spec
from tests.unit.codec.test_message_trace import EXAMPLES, line

TRACES = SMALL_STORE | {"traceTopicEnable": "true"}
TRACING: dict[str, str | int | bool] = {"trace": True, "deadline_ms": 280_000, "api_timeout_ms": 30_000}
"""Of Java clients that stay open until their traces were read: a shutdown cuts off those still on their way. A client
of 4.9.8 waits for half a second at most, one of 5.3.3 for its own threads but not for what they handed on."""
STEPS = [TraceEvent.SENT, TraceEvent.DELIVERED, TraceEvent.DELIVERED]


@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_java_reads_and_writes_each_line_as_we_do(version: str, drivers: Drivers) -> None:
    known = [text for text in EXAMPLES if version.startswith("5") or not text.startswith("Recall")]
    text = "".join(map(line, known))
    [rewritten] = drivers(version).call("traces", text=text)
    assert (rewritten["text"], rewritten["count"]) == (text, len(known))


def traces_of(servers: str, key: str, wanted: int) -> MessageTrace:
    """Return the trace of a message, once it has as many events, none of them open."""
    last: list[MessageTrace] = []

    async def search() -> bool:
        async with Admin(servers) as admin:
            last[:] = (await admin.message_traces(key)).traces
        steps = last[0].steps if last else []
        return len(steps) >= wanted and all(step.success is not None for step in steps)

    try:
        wait_until(lambda: asyncio.run(search()), what=f"trace of {key}", within_s=120, every_s=0.5)
    except TimeoutError as error:
        raise PeerError(f"{error}: {last}") from error
    return last[0]


def trace_bodies(servers: str, key: str) -> list[str]:
    async def search() -> list[str]:
        async with Admin(servers) as admin:
            return [message.body.decode() for message in await admin.messages_by_key(TRACE_TOPIC, key)]

    return asyncio.run(search())


@spec("S08")
@pytest.mark.parametrize("version", CLIENT_VERSIONS)
def test_traces_of_java_clients_at_our_broker(version: str, drivers: Drivers, tmp_path: Path) -> None:
    with (
        name_server("ours", tmp_path / "namesrv") as namesrv,
        broker("ours", tmp_path / "broker", namesrv, settings=TRACES, messageDelayLevel="1s 1s 1s 1s") as node,
    ):
        namesrv.start()
        start_registered(node, namesrv)
        java = drivers(version).at(namesrv.address)
        message: dict[str, str | int] = {"topic": "Traced", "count": 1, "tags": "paid", "keys": "order"}
        produced = java.begin("produce", group="orders", timeout_ms=30_000, **message, **TRACING)
        [sent] = produced.wait_for(lambda e: e["event"] in {"sent", "failed"}, 90)
        assert sent["event"] == "sent", sent["text"]
        key = sent["msgId"]
        pushed = java.begin("push", topic="Traced", group="billing", fail_first=1, **TRACING)
        transacted = java.begin("transact", topic="Transacted", group="tx", count=1, timeout_ms=30_000, **TRACING)
        trace = traces_of(namesrv.address, key, 3)
        assert (trace.topic, trace.tags, trace.keys) == ("Traced", "paid", "order0 orderall")
        assert [step.event for step in trace.steps] == STEPS
        assert [step.group for step in trace.steps] == ["orders", "billing", "billing"]
        assert [(step.success, step.retry_times) for step in trace.steps] == [(True, 0), (False, 0), (True, 1)]
        assert (trace.steps[0].broker, trace.steps[0].offset_message_id) == (node.address, sent["offsetMsgId"])
        by_key = traces_of(namesrv.address, "orderall", 3)
        assert by_key.message_id == key
        for body in trace_bodies(namesrv.address, key):
            lines = decode_traces(body)
            assert not lines.unreadable
            assert "".join(map(encode_trace, lines.records)) == body
        ids = [event["transactionId"] for event in transacted.wait_for(lambda e: e["event"] == "sent", 90, count=4)]
        outcomes = [traces_of(namesrv.address, one, 2).steps[1] for one in ids[:2]]
        assert [step.outcome for step in outcomes] == ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]
        for running in (produced, pushed, transacted):
            running.end(within_s=120)
        assert len(pushed.events("message")) == 2


@spec("S08")
@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_traces_of_our_clients_at_a_java_broker_are_read_by_mqadmin(
    version: str, drivers: Drivers, tmp_path: Path
) -> None:
    with (
        name_server(version, tmp_path / "namesrv") as namesrv,
        broker(version, tmp_path / "broker", namesrv, settings=TRACES) as node,
    ):
        namesrv.start()
        start_registered(node, namesrv)
        key = asyncio.run(_send_and_consume(namesrv.address))
        committed = asyncio.run(_commit(namesrv.address))
        trace = traces_of(namesrv.address, key, 2)
        assert [(step.event, step.success) for step in trace.steps] == [
            (TraceEvent.SENT, True),
            (TraceEvent.DELIVERED, True),
        ]
        java = drivers(CLIENT_VERSIONS[SERVER_VERSIONS.index(version)]).at(namesrv.address)
        printed = java.mqadmin("queryMsgTraceById", "-n", namesrv.address, "-i", key)
        for row in (r"Pub\s+orders\s+.*\s+success", r"Sub\s+billing\s+.*\s+success"):
            assert re.search(row, printed), printed
        steps = traces_of(namesrv.address, committed, 2).steps
        assert [step.outcome for step in steps] == ["stored", "COMMIT_MESSAGE"]
        printed = java.mqadmin("queryMsgTraceById", "-n", namesrv.address, "-i", committed)
        assert re.search(r"Pub\s+payments\s.*\ssuccess", printed), printed


async def _commit(servers: str) -> str:
    async def check(_message: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        TransactionProducer(servers, group="payments", check=check, trace=True) as producer,
        producer.transaction(Message("Traced", b"x")) as transaction,
    ):
        pass
    return transaction.unique_key


async def _send_and_consume(servers: str) -> str:
    first = ConsumeFrom.FIRST
    async with Producer(servers, group="orders", trace=True) as producer:
        sent = await producer.send(Message("Traced", b"x", tags="paid", keys=["order-7"]))
    topics = {"Traced": "*"}
    async with PushConsumer(servers, group="billing", topics=topics, consume_from=first, trace=True) as consumer:
        message = await consumer.receive(60)
        assert message is not None
        await message.ack()
    return sent.unique_key
