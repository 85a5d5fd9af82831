"""Requests of brokers to the consumers of a client: rebalance, reset offsets, report their state, consume a message.

Source: docs/reference/requests.md, "relayed to clients"; RocketMQ ClientRemotingProcessor.
"""

from collections.abc import Callable
from typing import Any

from tandemq.boundary import Now
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.requests import queue_from_json, queue_to_json
from tandemq.codec.record.record import decode_message
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import Raw, dumps, dumps_java, key_text, loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import VERSION_SPOKEN, Command
from tandemq.model.message import MessageQueue

Handler = Callable[[str, Command, Now], Command | None]


class ClientRemotingProcessor:
    """Handles the requests of brokers for all producers and consumers of one client."""

    def __init__(
        self,
        remoting: RemotingClient,
        name_servers: tuple[str, ...],
        consumers: dict[str, PushConsumerCore],
        take_reply: Handler,
        take_check: Handler,
        started_ms: int,
    ) -> None:
        """`consumers`: by group; the node adds consumers to it. `started_ms`: of the client, since 1970.

        `take_reply` handles replies to the client's requests, `take_check` questions for the outcome of transactions.
        """
        self._remoting = remoting
        self._name_servers = name_servers
        self._consumers = consumers
        self._started_ms = started_ms
        self.handlers: dict[int, Handler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take_reply,
            RequestCode.CHECK_TRANSACTION_STATE: take_check,
        }
        """By request code."""

    def process_request(self, address: str, command: Command, now: Now) -> Command | None:
        """Handle one request; returns the response, or None for none or a later one."""
        handler = self.handlers.get(command.code)
        if handler is None:
            remark = f"clients do not handle the request code {command.code}"
            return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            return handler(address, command, now)
        except (ProtocolError, KeyError, ValueError, TypeError, AttributeError) as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"invalid request: {error!r}")

    def _members_changed(self, _address: str, command: Command, now: Now) -> None:
        consumer = self._consumers.get(command.fields.get("consumerGroup", ""))
        if consumer is not None:
            consumer.rebalance_service.rebalance(now)

    def _reset_offsets(self, _address: str, command: Command, now: Now) -> Command | None:
        consumer = self._consumers.get(command.fields["group"])
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this client has no such consumer")
        table = loads(command.body, is_trusted=True)["offsetTable"]
        if isinstance(table, dict):
            offsets = {queue_from_json(loads(key.encode())): integer(offset, "offset") for key, offset in table.items()}
        else:
            offsets = {queue_from_json(item): integer(item.get("offset"), "offset") for item in table}
        consumer.reset_offsets(offsets, now)
        return command.answer(ResponseCode.SUCCESS)

    def _status(self, _address: str, command: Command, _now: Now) -> Command:
        consumer = self._consumers.get(command.fields["group"])
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this client has no such consumer")
        topic = command.fields["topic"]
        table = {
            _queue_key(assigned.queue): assigned.process_queue.committable
            for assigned in consumer.rebalance_service.active()
            if assigned.queue.topic == topic
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps_java({"messageQueueTable": table}))

    def _running_info(self, _address: str, command: Command, now: Now) -> Command:
        consumer = self._consumers.get(command.fields["consumerGroup"])
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this client has no such consumer")
        return command.answer(ResponseCode.SUCCESS, body=dumps_java(self._info(consumer, now)))

    def _info(self, consumer: PushConsumerCore, now: Now) -> dict[str, Any]:
        service = consumer.rebalance_service
        locks = service.locks
        return {
            "mqTable": {
                _queue_key(assigned.queue): self._queue_info(
                    assigned, now, locked=locks is not None and locks.holds(assigned.queue, now)
                )
                for assigned in service.active()
            },
            "properties": {
                "PROP_NAMESERVER_ADDR": ";".join(self._name_servers),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_CLIENT_VERSION": "V4_9_8",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUMEORDERLY": "true" if consumer.options.orderly else "false",
                "PROP_THREADPOOL_CORE_SIZE": "1",
                "consumerGroup": consumer.options.group,
                "messageModel": consumer.options.model.value,
                "clientVersion": str(VERSION_SPOKEN),
            },
            "statusTable": {
                known.data.topic: {
                    "consumeFailedMsgs": 0,
                    "consumeFailedTPS": 0.0,
                    "consumeOKTPS": 0.0,
                    "consumeRT": 0.0,
                    "pullRT": 0.0,
                    "pullTPS": 0.0,
                }
                for known in service.subscriptions
            },
            "subscriptionSet": [
                {
                    "classFilterMode": False,
                    "codeSet": known.data.code_set,
                    "expressionType": known.data.expression_type,
                    "subString": known.data.sub_string,
                    "subVersion": known.data.sub_version,
                    "tagsSet": known.data.tags_set,
                    "topic": known.data.topic,
                }
                for known in service.subscriptions
            ],
        }

    def _queue_info(self, assigned: AssignedQueue, now: Now, *, locked: bool) -> dict[str, Any]:
        process_queue = assigned.process_queue
        wall_ms = now.wall_ms
        return {
            "cachedMsgCount": process_queue.count,
            "cachedMsgMaxOffset": max(0, process_queue.next_offset - 1),
            "cachedMsgMinOffset": process_queue.committable,
            "cachedMsgSizeInMiB": process_queue.bytes_held >> 20,
            "commitOffset": process_queue.committable,
            "droped": False,
            "lastConsumeTimestamp": wall_ms,
            "lastLockTimestamp": wall_ms if locked else 0,
            "lastPullTimestamp": wall_ms - (now.mono_ms - assigned.puller.pulled_ms),
            "locked": locked,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }

    def _consume_directly(self, address: str, command: Command, now: Now) -> Command | None:
        consumer = self._consumers.get(command.fields["consumerGroup"])
        if consumer is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this client has no such consumer")
        message = decode_message(command.body, 0, len(command.body))
        broker_name = command.fields.get("brokerName", "")
        delivery = Delivery(message, MessageQueue(message.topic, broker_name, message.queue_id), None, 0)
        began_ms = now.mono_ms

        def on_end(is_consumed: bool, now: Now) -> None:
            result = {
                "autoCommit": True,
                "consumeResult": "CR_SUCCESS" if is_consumed else "CR_LATER",
                "order": consumer.options.orderly,
                "spentTimeMills": now.mono_ms - began_ms,
            }
            self._remoting.answer(address, command, command.answer(ResponseCode.SUCCESS, body=dumps(result)))

        delivery.on_end = on_end
        consumer.deliver_directly(delivery)
        return None


def _queue_key(queue: MessageQueue) -> Raw:
    return Raw(key_text(queue_to_json(queue)))
