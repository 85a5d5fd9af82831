"""Keyword arguments of producers and consumers, for type checkers; see `client.core.settings` for their meaning."""

from collections.abc import Iterable
from typing import TypedDict

from tandemq.client.aio.tracing import Tracing
from tandemq.client.core.settings import ConsumeFrom, MessageModel
from tandemq.client.producer.publish_info import Select
from tandemq.config.tls import ClientTls
from tandemq.model.access import Credentials
from tandemq.model.message import MessageQueue


class QueueChoice(TypedDict, total=False):
    """Choice of the queue of a message; at most one of the three. The message is not retried on another queue then."""

    queue: MessageQueue | None
    """This queue."""
    by_key: str | None
    """The queue is chosen by the hash of this key: the same key gives the same queue, as long as the topic keeps its
    queues."""
    select: Select | None
    """This function chooses one of the topic's queues, which are sorted."""


class ProducerKeywords(TypedDict, total=False):
    """Fields of `ProducerOptions` except the group."""

    timeout_ms: int
    retries: int
    retry_ms: int
    retry_when_not_stored_ok: bool
    compress_above_bytes: int
    compress_level: int
    body_bytes_max: int
    batch_bytes_max: int
    linger_ms: int
    batch_bytes: int
    queues_per_new_topic: int
    delay_levels: int
    latency_aware: bool
    zone: str
    close_wait_s: float
    trace: bool | str


class TransactionProducerKeywords(ProducerKeywords, total=False):
    """Arguments of `TransactionProducer` except name servers, group and check."""

    topics: Iterable[str]
    checks_at_once: int
    check_timeout_s: float
    client_id: str
    tls: ClientTls | bool
    credentials: Credentials | None
    tracing: Tracing | None


class ConsumerKeywords(TypedDict, total=False):
    """Fields of `ConsumerOptions` except the group."""

    model: MessageModel
    orderly: bool
    start_timeout_ms: int
    consume_from: ConsumeFrom
    consume_from_ms: int
    max_reconsume_times: int
    pull_messages: int
    long_poll_ms: int
    pull_timeout_ms: int
    prefetch_messages: int
    prefetch_bytes: int
    rebalance_ms: int
    commit_ms: int
    suspend_ms: int
    error_pause_ms: int
    close_wait_s: float
    trace: bool | str


class PopKeywords(TypedDict, total=False):
    """Fields of `PopOptions` except the group."""

    ordered: bool
    start_timeout_ms: int
    consume_from: ConsumeFrom
    invisible_s: float
    renew_s: float
    max_reconsume_times: int
    batch: int
    long_poll_ms: int
    pop_timeout_ms: int
    prefetch_messages: int
    prefetch_bytes: int
    suspend_ms: int
    error_pause_ms: int
    close_wait_s: float
