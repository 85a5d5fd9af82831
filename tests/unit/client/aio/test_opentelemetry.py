"""OpenTelemetry traces of producers and consumers, with the real SDK and its exporter to memory."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage, SendResult
from tandemq.client.blocking import BlockingProducer
from tandemq.client.opentelemetry import OpenTelemetry
from tandemq.errors import InvalidMessage, TandemError
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
FIRST = ConsumeFrom.FIRST


class Spans:
    """Spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = OpenTelemetry(self.provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.trace_id
    return found


async def test_send_and_handler_are_one_trace(tandemq_broker: LocalCluster, spans: Spans) -> None:
    seen: list[tuple[int, ReceivedMessage]] = []
    arrived = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        seen.append((trace.get_current_span().get_span_context().trace_id, message))
        arrived.set()
        raise RuntimeError("not now")

    servers = tandemq_broker.name_servers
    with spans.provider.get_tracer("test").start_as_current_span("order"):
        async with Producer(servers, group="p", client_id="p@1", tracing=spans.tracing) as producer:
            sent = await producer.send(Message("Otel", b"x", tags="paid", keys=["k1"]))
    async with PushConsumer(
        servers, group="c", topics={"Otel": "*"}, consume_from=FIRST, tracing=spans.tracing, client_id="c@1"
    ) as consumer:
        task = asyncio.create_task(consumer.run(handle))
        async with asyncio.timeout(60):
            await arrived.wait()
    await asyncio.gather(task, return_exceptions=True)
    [order], [send], process = spans.named("order"), spans.named("send Otel"), spans.named("process Otel")
    assert trace_id(order) == trace_id(send) == trace_id(process[0]) == seen[0][0]
    assert send.context is not None
    assert process[0].parent is not None
    assert process[0].parent.span_id == send.context.span_id
    assert (send.kind, process[0].kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert seen[0][1].properties["traceparent"].split("-")[1] == f"{trace_id(send):032x}"
    assert dict(send.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "Otel",
        "messaging.client.id": "p@1",
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("k1",),
        "messaging.message.id": sent.unique_key,
        "messaging.destination.partition.id": f"{sent.queue.broker_name}-{sent.queue.queue_id}",
    }
    found = dict(process[0].attributes or {})
    assert (found["messaging.consumer.group.name"], found["messaging.client.id"]) == ("c", "c@1")
    assert (found["messaging.rocketmq.consumption_model"], found["messaging.message.id"]) == (
        "clustering",
        sent.unique_key,
    )
    assert (found["error.type"], process[0].status.status_code) == ("RuntimeError", StatusCode.ERROR)


async def test_each_way_to_send_has_a_span_that_ends(tandemq_broker: LocalCluster, spans: Spans) -> None:
    async with Producer(tandemq_broker.name_servers, group="p", tracing=spans.tracing) as producer:
        await producer.send_batch([Message("Ways", b"a"), Message("Ways", b"b")])
        await producer.send_oneway(Message("Ways", b"c"))
        ticket = producer.begin(Message("Ways", b"d", delay_level=1))
        with pytest.raises(InvalidMessage):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"e"))
        with pytest.raises(TypeError, match="send a Message, not a str"):
            await producer.send("text")  # type: ignore[arg-type]
    assert isinstance(ticket.result(), SendResult)
    found = [dict(span.attributes or {}) for span in spans.named("send Ways")]
    assert [one.get("messaging.batch.message_count") for one in found].count(2) == 1
    assert [one.get("messaging.rocketmq.message.delay_time_level") for one in found].count(1) == 1
    assert len(found) == 3
    [refused] = spans.named("send SCHEDULE_TOPIC_XXXX")
    assert (refused.attributes or {})["error.type"] == "InvalidMessage"


async def test_received_message_is_linked_to_its_send(tandemq_broker: LocalCluster, spans: Spans) -> None:
    servers = tandemq_broker.name_servers
    async with Producer(servers, group="p", tracing=spans.tracing) as producer:
        await producer.send(Message("Linked", b"x"))
    topics = {"Linked": "*"}
    async with PushConsumer(servers, group="c2", topics=topics, consume_from=FIRST, tracing=spans.tracing) as consumer:
        message = await consumer.receive(120)
        assert message is not None
        await message.ack()
    [receive], [send] = spans.named("receive Linked"), spans.named("send Linked")
    assert (receive.kind, [link.context.trace_id for link in receive.links]) == (SpanKind.CLIENT, [trace_id(send)])
    linked = trace.get_current_span(OpenTelemetry.context_of(message.stored)).get_span_context()
    assert linked.trace_id == trace_id(send)


def test_blocking_send_has_the_context_of_the_calling_thread(tandemq_broker: LocalCluster, spans: Spans) -> None:
    with (
        BlockingProducer(tandemq_broker.name_servers, group="p", tracing=spans.tracing) as producer,
        spans.provider.get_tracer("test").start_as_current_span("outer") as outer,
    ):
        producer.send(Message("Blocked", b"x"))
    [send] = spans.named("send Blocked")
    assert trace_id(send) == outer.get_span_context().trace_id


async def test_failed_send_has_the_error(spans: Spans) -> None:
    async with Producer("127.0.0.1:9", group="p", tracing=spans.tracing, retries=0, retry_ms=0) as producer:
        with pytest.raises(TandemError):
            await producer.send(Message("Nowhere", b"x"))
    [send] = spans.named("send Nowhere")
    assert send.status.status_code is StatusCode.ERROR
    assert (send.attributes or {})["error.type"] in {"NotConnected", "NoRoute"}


def test_unused_hook_imports_nothing() -> None:
    code = "import sys, tandemq; tandemq.Producer, tandemq.PushConsumer; print('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
