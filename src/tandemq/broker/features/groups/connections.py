"""Requests of operators about connected clients: consumers with their subscriptions, and producers.

Source: docs/reference/requests.md, "administration"; RocketMQ AdminBrokerProcessor, ProducerManager.
"""

from collections.abc import Iterable

import msgspec

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.clients import Member
from tandemq.broker.state.proxied_consumers import ProxiedConsumers
from tandemq.codec.remoting.admin_requests import GroupNameFields, ProducerGroupFields, TopicGroupFields
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import GroupFields, read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command


class ConnectionsProcessor(Feature):
    """Handle requests of operators about connected clients."""

    def __init__(self, kernel: Kernel, proxied: ProxiedConsumers) -> None:
        """`proxied`: consumers behind proxies."""
        self._offsets = kernel.offsets
        self._clients = kernel.clients
        self._proxied = proxied
        self._own = kernel.own

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.GET_CONSUMER_CONNECTION_LIST: Request(self._on_consumers),
            Code.GET_PRODUCER_CONNECTION_LIST: Request(self._on_producers),
            Code.GET_ALL_PRODUCER_INFO: Request(self._on_all_producers),
            Code.QUERY_TOPICS_BY_CONSUMER: Request(self._on_topics_of_group),
            Code.QUERY_SUBSCRIPTION_BY_CONSUMER: Request(self._on_subscription),
        }

    def _on_consumers(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupFields, command.fields).consumer_group
        group = self._clients.consumers.get(name)
        proxied = self._proxied.of_group(name)
        if group is None and not proxied:
            return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{name}] not online")
        subscriptions = self._proxied.subscriptions(name) | (group.subscriptions if group is not None else {})
        how = group or proxied[-1].data
        members = [*(group.members.values() if group is not None else ()), *(each.member for each in proxied)]
        body = {
            "connectionSet": _connections(members),
            "consumeFromWhere": how.consume_from_where,
            "consumeType": how.consume_type,
            "messageModel": how.message_model,
            "subscriptionTable": {topic: msgspec.to_builtins(data) for topic, data in subscriptions.items()},
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def _on_producers(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(ProducerGroupFields, command.fields).producer_group
        members = self._clients.producers.get(name)
        if not members:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{name}] not exist")
        return command.answer(ResponseCode.SUCCESS, body=dumps({"connectionSet": _connections(members.values())}))

    def _on_all_producers(self, _link: Link, command: Command, now: Now) -> Command | None:
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
            for name, members in self._clients.producers.items()
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps({"data": data}))

    def _on_topics_of_group(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupNameFields, command.fields).group
        topics = sorted(self._offsets.topics_of(name))
        body = {"brokerAddr": self._own.address, "topicList": topics}
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def _on_subscription(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(TopicGroupFields, command.fields)
        group = self._clients.consumers.get(fields.group)
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
