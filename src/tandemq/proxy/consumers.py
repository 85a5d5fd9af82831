"""A consumer of the proxy as operators see it: what its settings say, in the form of brokers.

Source: docs/reference/grpc.md, "What operators see"; RocketMQ GrpcClientChannel, ConsumerRunningInfo.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tandemq.boundary import Now
from tandemq.codec.remoting.header import LANGUAGES, UNKNOWN_LANGUAGE
from tandemq.model.command import VERSION_SPOKEN
from tandemq.model.group import SQL_EXPRESSION, SUBSCRIBE_ALL, TAG_EXPRESSION, ConsumerData, SubscriptionData
from tandemq.model.proxied import ProxiedConsumer
from tandemq.proxy.names import Caller, group_of, topic_of
from tandemq.proxy.protocol.messaging_pb2 import ClientType, FilterType, Language, Settings, SubscriptionEntry

SUBSCRIPTION_CHARACTERS_MAX = 64 * 1024
"""Of topics and expressions of a consumer that operators see; the rest are left out."""
TEXT_CHARACTERS_MAX = 100
"""Of texts that clients say of themselves."""
_LANGUAGES = {Language.DOT_NET: "DOTNET", Language.GOLANG: "GO"}


class GrpcConsumer(NamedTuple):
    """A consumer."""

    group: str
    peer: str
    """"ip:port" of its connection."""
    is_push: bool
    is_ordered: bool
    language: str
    version: str
    subscriptions: tuple[SubscriptionData, ...]
    since_ms: int
    """When its first settings came, since 1970."""

    def proxied(self, client_id: str) -> ProxiedConsumer:
        """Return it as brokers take it."""
        data = ConsumerData(self.group, consume_type=self._consume_type, subscription_data_set=list(self.subscriptions))
        return ProxiedConsumer(client_id, self.peer, self.language, VERSION_SPOKEN, data)

    def running_info(self, name_servers: Sequence[str]) -> dict[str, Any]:
        """Return what operators ask of a consumer."""
        return {
            "mqTable": {},
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(name_servers),
                "PROP_CONSUME_TYPE": self._consume_type,
                "PROP_CLIENT_VERSION": self.version,
                "PROP_CONSUMER_START_TIMESTAMP": str(self.since_ms),
                "PROP_CONSUMEORDERLY": "true" if self.is_ordered else "false",
                "PROP_THREADPOOL_CORE_SIZE": "0",
                "consumerGroup": self.group,
                "clientAddr": self.peer,
                "language": self.language,
                "protocol": "gRPC",
            },
            "statusTable": {},
            "subscriptionSet": [msgspec.to_builtins(data) for data in self.subscriptions],
        }

    @property
    def _consume_type(self) -> Any:
        return "CONSUME_PASSIVELY" if self.is_push else "CONSUME_ACTIVELY"


def consumer_of(
    caller: Caller, settings: Settings, before: GrpcConsumer | None, *, is_ordered: bool, now: Now
) -> GrpcConsumer:
    """Return the consumer that has sent these settings; its group and topics are valid.

    `before`: the consumer of its earlier settings.
    """
    agent = settings.user_agent
    number = agent.language
    language = _LANGUAGES.get(number) or (Language.Name(number) if number in Language.values() else "")
    return GrpcConsumer(
        group_of(settings.subscription.group),
        caller.peer,
        settings.client_type == ClientType.PUSH_CONSUMER,
        is_ordered,
        language if language in LANGUAGES else UNKNOWN_LANGUAGE,
        agent.version[:TEXT_CHARACTERS_MAX],
        tuple(_subscriptions(settings.subscription.subscriptions, now)),
        now.wall_ms if before is None else before.since_ms,
    )


def _subscriptions(entries: Sequence[SubscriptionEntry], now: Now) -> list[SubscriptionData]:
    found: list[SubscriptionData] = []
    room = SUBSCRIPTION_CHARACTERS_MAX
    for entry in entries:
        topic, expression = topic_of(entry.topic), entry.expression.expression or SUBSCRIBE_ALL
        room -= len(topic) + len(expression)
        if room < 0:
            break
        kind = SQL_EXPRESSION if entry.expression.type == FilterType.SQL else TAG_EXPRESSION
        found.append(SubscriptionData(topic, expression, sub_version=now.wall_ms, expression_type=kind))
    return found
