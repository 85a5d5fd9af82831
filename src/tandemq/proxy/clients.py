"""The clients of the proxy: what they have said of themselves, and the stream on which they take commands.

    telemetry stream ─► settings ─► completed, sent back
    heartbeat ─► known client? else UNRECOGNIZED_CLIENT_TYPE, upon which clients send their settings again
    stream ended and no heartbeat for `EXPIRE_MS` ─► gone: its messages are returned

Invariants: at most `clients_max` clients, each with at most `TOPICS_MAX` published topics. Nothing but commands to
clients, renewals and heartbeats needs this memory: other calls of a client that the proxy does not know are served.

Source: docs/reference/grpc.md; RocketMQ GrpcClientSettingsManager, ClientActivity.
"""

import logging
from collections.abc import Callable
from random import Random

import msgspec

from tandemq.boundary import Now
from tandemq.client.core.operations import Steps, current_time, pause
from tandemq.errors import TandemError
from tandemq.grpc.server import Call
from tandemq.model.group import ExponentialRetryPolicy, GroupRetryPolicy, SubscriptionGroupConfig
from tandemq.model.java_types import INT32_MAX
from tandemq.model.proxied import ProxiedKey
from tandemq.proxy.brokers import Brokers
from tandemq.proxy.consumers import GrpcConsumer, consumer_of
from tandemq.proxy.messages import BODY_BYTES_MAX
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import (
    ClientType,
    Code,
    HeartbeatRequest,
    HeartbeatResponse,
    MessageType,
    NotifyClientTerminationRequest,
    NotifyClientTerminationResponse,
    RetryPolicy,
    Settings,
    TelemetryCommand,
)
from tandemq.proxy.status import OK, CallRefused

log = logging.getLogger(__name__)
EXPIRE_MS = 30_000
"""A client without a stream is gone so long after its last sign of life."""
EXPIRE_STREAM_MS = 120_000
"""The same for one whose stream is open."""
SETTINGS_MS = 1_500
"""For how long the configuration of a group is tried: clients wait for their settings in their start."""
TYPES_AGAIN_MS = 5_000
"""Pause before brokers are asked again for the types of topics that none has reported."""
TOPICS_MAX = 4_096
SEND_ATTEMPTS = 3
SEND_BACKOFF_MS = (10, 1_000, 2.0)
"""First and longest pause between attempts of a producer, and the factor between two."""
RECEIVE_BATCH = 32
LONG_POLLING_S = 20
BACKOFF_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Pauses between the attempts of a message whose consumption failed, unless its group has others."""
DELAY_MS_MAX = 7 * 86_400_000
_LITE = (ClientType.LITE_PUSH_CONSUMER, ClientType.LITE_SIMPLE_CONSUMER)


class _Client(msgspec.Struct, eq=False):
    """One client."""

    topics: frozenset[str]
    """That it publishes."""
    seen_ms: int
    stream: Call | None = None
    has_settings: bool = True
    consumer: GrpcConsumer | None = None
    """What operators see of it, if it is a consumer."""
    user: str = ""
    """The user that has sent its settings."""


class GrpcClients:
    """All clients, by their ids."""

    def __init__(self, brokers: Brokers, random: Random, clients_max: int, on_gone: Callable[[str, Now], None]) -> None:
        """`on_gone`: called with the id of a client that has gone."""
        self._brokers = brokers
        self._random = random
        self._clients_max = clients_max
        self._on_gone = on_gone
        self.on_stream_end: Callable[[Call], None] = lambda _stream: None
        """Called when a stream of a client has ended, or is not the one that counts any more."""
        self.on_answer: Callable[[Call, TelemetryCommand, Now], None] = lambda _stream, _answer, _now: None
        """Called with what a client says on its stream besides settings."""
        self._clients: dict[str, _Client] = {}

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def published(self) -> set[str]:
        """Return the topics that clients publish."""
        return set().union(*(client.topics for client in self._clients.values()))

    def tell_producer(self, topic: str, command: TelemetryCommand) -> bool:
        """Send a command to a client that publishes a topic, any of them; return whether there is one."""
        streams = [
            client.stream
            for client in self._clients.values()
            if client.stream is not None and not client.stream.is_over and topic in client.topics
        ]
        if not streams:
            return False
        self._random.choice(streams).send(command.SerializeToString())
        return True

    def consumers(self) -> dict[ProxiedKey, GrpcConsumer]:
        """Return the consumers that have a stream."""
        return {
            ProxiedKey(client.consumer.group, client_id): client.consumer
            for client_id, client in self._clients.items()
            if client.consumer is not None and client.stream is not None and not client.stream.is_over
        }

    def consumer(self, key: ProxiedKey) -> tuple[GrpcConsumer, Call] | None:
        """Return a consumer and its stream; None if it has none."""
        client = self._clients.get(key.client_id)
        if client is None or client.consumer is None or client.stream is None or client.stream.is_over:
            return None
        return (client.consumer, client.stream) if client.consumer.group == key.group else None

    # Settings.

    def settings(self, caller: Caller, stream: Call, settings: Settings) -> Steps[Settings]:
        """Take the settings of a client; return them completed.

        Raises:
            CallRefused: they are invalid, or there are too many clients.
        """
        if settings.client_type in _LITE:
            raise CallRefused(Code.UNSUPPORTED, "lite topics are not supported")
        topics: frozenset[str] = frozenset()
        is_ordered: bool | None = None
        completed = Settings()
        completed.CopyFrom(settings)
        if settings.HasField("publishing"):
            if len(settings.publishing.topics) > TOPICS_MAX:
                raise CallRefused(Code.BAD_REQUEST, f"the client publishes more than {TOPICS_MAX} topics")
            topics = frozenset(topic_of(topic) for topic in settings.publishing.topics)
            _complete_publishing(completed)
        elif settings.HasField("subscription"):
            group = group_of(settings.subscription.group)
            subscribed = [topic_of(entry.topic) for entry in settings.subscription.subscriptions]
            _complete_subscription(completed, (yield from self._config(caller, group, subscribed)))
            is_ordered = completed.subscription.fifo
        else:
            raise CallRefused(Code.BAD_REQUEST, "the settings have neither publishing nor subscription")
        completed.metric.on = False
        now = yield from current_time()
        known = self._own(caller)
        if known is None and len(self._clients) >= self._clients_max:
            raise CallRefused(Code.TOO_MANY_REQUESTS, f"the proxy has {self._clients_max} clients")
        if known is not None and known.stream is not None and known.stream is not stream:
            self._end_stream(known.stream)
        client = self._clients[caller.client_id] = _Client(topics, now.mono_ms, None if stream.is_over else stream)
        client.user = caller.user
        if is_ordered is not None:
            before = known.consumer if known is not None else None
            client.consumer = consumer_of(caller, settings, before, is_ordered=is_ordered, now=now)
        return completed

    def _end_stream(self, stream: Call) -> None:
        stream.end()
        self.on_stream_end(stream)

    def _config(self, caller: Caller, group: str, topics: list[str]) -> Steps[SubscriptionGroupConfig]:
        """Return the configuration of a group, or that of new groups: a client waits for its settings for ever."""
        until_ms = (yield from current_time()).mono_ms + SETTINGS_MS
        for topic in topics[:1]:
            try:
                return (yield from self._brokers.group(group, topic, min(caller.deadline_ms or until_ms, until_ms)))
            except TandemError as error:
                log.warning("settings of a client of group %s: defaults are sent: %s", group, error)
        return SubscriptionGroupConfig(group)

    def expect_checks(self, caller: Caller, expect: Callable[[str, Now], None]) -> Steps[None]:
        """Call `expect` for each topic for whose transactions a client may be asked.

        A topic whose types no broker reports, or that no name server knows, as while its master is down, is tried again
        while the client is known: a client that sends nothing more would not be asked otherwise.
        """
        client = self._clients.get(caller.client_id)
        unknown = sorted(client.topics) if client is not None else []
        while unknown and self._clients.get(caller.client_id) is client:
            topics, unknown = unknown, []
            for topic in topics:
                try:
                    types = yield from self._brokers.message_types(topic, None)
                except TandemError:
                    unknown.append(topic)
                    continue
                if MessageType.TRANSACTION in types:
                    expect(topic, (yield from current_time()))
            if unknown:
                yield from pause(TYPES_AGAIN_MS)

    def stream_ended(self, client_id: str, stream: Call, now: Now) -> None:
        """Note that a stream has ended."""
        client = self._clients.get(client_id)
        if client is not None and client.stream is stream:
            client.stream = None
            client.seen_ms = now.mono_ms
        self.on_stream_end(stream)

    def _own(self, caller: Caller) -> _Client | None:
        """Return the client with the id of a caller; None if there is none.

        Raises:
            CallRefused: another user has it: ids are no secrets.
        """
        client = self._clients.get(caller.client_id)
        if client is not None and client.has_settings and client.user != caller.user:
            raise CallRefused(Code.UNAUTHORIZED, f"the client {caller.client_id[:255]} is one of another user")
        return client

    # Heartbeats, ends.

    def heartbeat(self, caller: Caller, _query: HeartbeatRequest) -> Steps[HeartbeatResponse]:
        """Take a sign of life.

        Raises:
            CallRefused: the client is not known, or one of another user.
        """
        client = self._own(caller)
        if client is not None:
            client.seen_ms = (yield from current_time()).mono_ms
        if client is None or not client.has_settings:
            raise CallRefused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client has sent no settings")
        return HeartbeatResponse(status=OK)

    def seen(self, client_id: str, now: Now) -> bool:
        """Note that a client works on messages, also one without settings, as after a restart of the proxy.

        Returns whether its end will be noticed: it will not if there are too many clients.
        """
        client = self._clients.get(client_id)
        if client is not None:
            client.seen_ms = now.mono_ms
        elif len(self._clients) < self._clients_max:
            self._clients[client_id] = _Client(frozenset(), now.mono_ms, has_settings=False)
        return client_id in self._clients

    def terminate(
        self, caller: Caller, _query: NotifyClientTerminationRequest
    ) -> Steps[NotifyClientTerminationResponse]:
        """Forget a client that ends.

        Raises:
            CallRefused: it is not known, or one of another user.
        """
        client = self._own(caller)
        if client is not None:
            del self._clients[caller.client_id]
            self._on_gone(caller.client_id, (yield from current_time()))
        if client is None or not client.has_settings:
            raise CallRefused(Code.UNRECOGNIZED_CLIENT_TYPE, "the client has sent no settings")
        return NotifyClientTerminationResponse(status=OK)

    def expire(self, now: Now) -> None:
        """Forget clients that give no sign of life; to be called every few seconds."""
        for client_id, client in list(self._clients.items()):
            silent_ms = now.mono_ms - client.seen_ms
            if silent_ms > (EXPIRE_MS if client.stream is None else EXPIRE_STREAM_MS):
                del self._clients[client_id]
                if client.stream is not None:
                    self._end_stream(client.stream)
                log.info("client %.200s has gone: nothing for %d s", client_id, silent_ms // 1000)
                self._on_gone(client_id, now)


def _complete_publishing(settings: Settings) -> None:
    policy = settings.backoff_policy
    policy.max_attempts = SEND_ATTEMPTS
    first_ms, longest_ms, factor = SEND_BACKOFF_MS
    policy.exponential_backoff.initial.FromMilliseconds(first_ms)
    policy.exponential_backoff.max.FromMilliseconds(longest_ms)
    policy.exponential_backoff.multiplier = factor
    settings.publishing.max_body_size = BODY_BYTES_MAX
    settings.publishing.validate_message_type = True


def _complete_subscription(settings: Settings, config: SubscriptionGroupConfig) -> None:
    policy = settings.backoff_policy
    policy.max_attempts = min(config.retry_max_times, INT32_MAX - 1) + 1
    _set_backoff(policy, config.group_retry_policy)
    settings.subscription.fifo = config.consume_message_orderly
    settings.subscription.receive_batch_size = RECEIVE_BATCH
    settings.subscription.long_polling_timeout.FromSeconds(LONG_POLLING_S)


def _set_backoff(policy: RetryPolicy, wanted: GroupRetryPolicy) -> None:
    """Set the delays between deliveries as the group is configured."""
    exponential, customized = wanted.exponential_retry_policy, wanted.customized_retry_policy
    if wanted.type == "EXPONENTIAL":
        found = exponential or ExponentialRetryPolicy()
        policy.exponential_backoff.initial.FromMilliseconds(_delay_ms(found.initial))
        policy.exponential_backoff.max.FromMilliseconds(_delay_ms(found.max))
        policy.exponential_backoff.multiplier = max(found.multiplier, 1)
        return
    policy.customized_backoff.Clear()
    for delay_ms in (customized.next if customized else None) or [seconds * 1_000 for seconds in BACKOFF_S]:
        policy.customized_backoff.next.add().FromMilliseconds(_delay_ms(delay_ms))


def _delay_ms(wanted: int) -> int:
    return min(max(wanted, 1), DELAY_MS_MAX)
