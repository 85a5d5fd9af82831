"""Metrics of a server of Kafka consumers, and whether it can serve them.

The port is the one of brokers (`tandemq.real.monitoring.listener`); its thread asks, and the event loop answers.

Source: docs/guides/kafka-consumers.md.
"""

import asyncio
from collections.abc import Iterator
from time import monotonic_ns

from tandemq.kafka.cluster import ClusterReader
from tandemq.kafka.front import KafkaFront
from tandemq.kafka.server import KafkaServer
from tandemq.real.clock import read_clock
from tandemq.real.monitoring.listener import MonitoringListener
from tandemq.real.monitoring.metered_node import Answer, Question, QuestionKind
from tandemq.real.network.addresses import text_of
from tandemq.telemetry.exposition import RenderedFamily, TextRenderer
from tandemq.telemetry.families import Batch, Values, counter, gauge, single

SERIES_MAX = 1_000
"""More than there are: labels have the kinds of requests and errors."""
BEAT_S = 1.0
CONNECTIONS = gauge("tandemq_kafka_connections", "Open connections of consumers.")
REFUSED = counter(
    "tandemq_kafka_refused_connections_total", "Connections closed for what they sent, or since there were too many."
)
REQUESTS = counter("tandemq_kafka_requests_total", "Requests answered, by kind.", "request")
ERRORS = counter("tandemq_kafka_errors_total", "Partitions and sign-ins answered with an error, by error.", "error")
MESSAGES = counter("tandemq_kafka_messages_sent_total", "Messages sent to consumers.")
BYTES = counter("tandemq_kafka_sent_bytes_total", "Bytes of these messages, as Kafka's records.")
HELD = gauge("tandemq_kafka_held_bytes", "Bytes of messages that were pulled and wait for a fetch.")


class KafkaMonitoring:
    """`/metrics`, `/healthz` and `/readyz` of one process; belongs to the running event loop."""

    def __init__(
        self, address: tuple[str, int], front: KafkaFront, server: KafkaServer, cluster: ClusterReader
    ) -> None:
        """Bind the port, 0 for any free one, and begin to answer.

        Raises:
            ConfigError: the address cannot be used.
        """
        self._front, self._server, self._cluster = front, server, cluster
        self._renderer = TextRenderer(SERIES_MAX)
        self._loop = asyncio.get_running_loop()
        self.last_turn_ns = monotonic_ns()
        """When the event loop was last seen alive, monotonic."""
        self._listener = MonitoringListener(*address, self)
        self.address = text_of((address[0], self._listener.port))
        self._beat = self._loop.create_task(self._beats())
        self._checks: set[asyncio.Task[None]] = set()
        self._listener.start()

    async def _beats(self) -> None:
        while True:
            self.last_turn_ns = monotonic_ns()
            await asyncio.sleep(BEAT_S)

    def ask(self, question: Question) -> None:
        """Have the event loop answer; called by the listener's thread."""
        self._loop.call_soon_threadsafe(self._answer, question)

    def _answer(self, question: Question) -> None:
        if question.kind is QuestionKind.READINESS:
            check = self._loop.create_task(self._check(question))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)
            return
        self._renderer.begin(read_clock())
        families = [RenderedFamily(batch.family, list(self._renderer.render(batch, {}))) for batch in self.collect()]
        question.reply(Answer(question.kind, families=families))

    async def _check(self, question: Question) -> None:
        """Answer whether brokers are registered."""
        reason = await self._cluster.not_ready()
        question.reply(Answer(question.kind, reasons=[reason] if reason else []))

    def collect(self) -> Iterator[Batch]:
        """Yield the batches."""
        front = self._front
        requests: Values = {(api.name.lower(),): count for api, count in front.requests.items()}
        errors: Values = {(error.name.lower(),): count for error, count in front.counts.errors.items()}
        yield single(CONNECTIONS, self._server.connection_count)
        yield single(REFUSED, self._server.refused)
        yield Batch(REQUESTS, requests)
        yield Batch(ERRORS, errors)
        yield single(MESSAGES, front.counts.messages)
        yield single(BYTES, front.counts.bytes)
        yield single(HELD, front.held_bytes)

    def close(self) -> None:
        """Close the port."""
        self._listener.close()
        for task in (self._beat, *self._checks):
            task.cancel()
