"""Operators ask who is connected: consumers with their subscriptions, producers.

Source: docs/reference/requests.md, "administration"; RocketMQ AdminBrokerProcessor, ProducerManager.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.broker.state.clients import Member
from tandemq.codec.remoting.admin_requests import GroupNameFields, ProducerGroupFields, TopicGroupFields
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import GroupFields, read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Connections(broker)
    return {
        Code.GET_CONSUMER_CONNECTION_LIST: on.consumers,
        Code.GET_PRODUCER_CONNECTION_LIST: on.producers,
        Code.GET_ALL_PRODUCER_INFO: on.all_producers,
        Code.QUERY_TOPICS_BY_CONSUMER: on.topics_of_group,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER: on.subscription,
    }


class _Connections:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def consumers(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupFields, command.fields).consumer_group
        group = self._broker.clients.consumers.get(name)
        if group is None:
            return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        body = {
            "connectionSet": _connections(group.members.values()),
            "consumeFromWhere": group.consume_from_where,
            "consumeType": group.consume_type,
            "messageModel": group.message_model,
            "subscriptionTable": {topic: msgspec.to_builtins(data) for topic, data in group.subscriptions.items()},
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def producers(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(ProducerGroupFields, command.fields).producer_group
        members = self._broker.clients.producers.get(name)
        if not members:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        return command.answer(ResponseCode.SUCCESS, body=dumps({"connectionSet": _connections(members.values())}))

    def all_producers(self, _link: Link, command: Command, now: Now) -> Command | None:
        data = {
            name: [
                {
                    "clientId": member.client_id,
                    "language": member.language,
                    "lastUpdateTimestamp": now.wall_ms - (now.mono_ms - member.seen_ms),
                    "remoteIP": member.address,
                    "version": member.version,
                }
                for member in members.values()
            ]
            for name, members in self._broker.clients.producers.items()
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps({"data": data}))

    def topics_of_group(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupNameFields, command.fields).group
        topics = sorted(self._broker.offsets.topics_of(name))
        body = {"brokerAddr": self._broker.registration.address, "topicList": topics}
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def subscription(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(TopicGroupFields, command.fields)
        group = self._broker.clients.consumers.get(fields.group)
        found = group.subscriptions.get(fields.topic) if group is not None else None
        body: dict[str, object] = {"group": fields.group, "topic": fields.topic}
        if found is not None:
            body["subscriptionData"] = msgspec.to_builtins(found)
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))


def _connections(members: Iterable[Member]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": member.address,
            "clientId": member.client_id,
            "language": member.language,
            "version": member.version,
        }
        for member in members
    ]
