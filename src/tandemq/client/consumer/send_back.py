"""Messages that could not be consumed: sent back for a later redelivery, or to the dead letter topic.

    send back (36) to the master of the message's broker group
      └► fails: send a new message to %RETRY%group, on any broker that accepts it
           └► fails: the message stays with its consumer and is delivered again

Source: docs/reference/requests.md, "retry"; docs/internals/ha.md; RocketMQ DefaultMQPushConsumerImpl.sendMessageBack.
"""

import logging

from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import Steps, ask, current_time, request, wait
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumerOptions
from tandemq.client.producer.encoder import SendRequest
from tandemq.client.producer.machine import ProducerCore
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.message import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RECORD_CRC,
    RETRY_TOPIC,
    TRAN_MSG,
    TRANSACTION_MASK,
    MessageQueue,
    SendStatus,
    StoredMessage,
    SysFlag,
    encode_properties,
)
from tandemq.model.topic import retry_topic

log = logging.getLogger(__name__)
RECONSUME_TIMES_DEFAULT = 16
DEAD_LETTER_LEVEL = -1
SEND_BACK_TIMEOUT_MS = 5_000
FIRST_RETRY_LEVEL = 3
_HOST_FLAGS = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_COMPRESSION_FLAGS = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
_OWN_FLAGS = _HOST_FLAGS | TRANSACTION_MASK
"""Flags of a stored message that a new one has not: a committed message is of no transaction any more."""
_NOT_COPIED = (DELAY, TRAN_MSG, RECORD_CRC, "CLUSTER", "MIN_OFFSET", "MAX_OFFSET")


class MessageSendBack:
    """Sends back the messages of one consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        remoting: RemotingClient,
        routes: Routes,
        producer: ProducerCore,
        keys: UniqueKeys,
    ) -> None:
        """`producer`: sends what cannot be sent back, as new messages."""
        self._options = options
        self._remoting = remoting
        self._routes = routes
        self._producer = producer
        self._keys = keys

    def send_back(self, queue: MessageQueue, message: StoredMessage, level: int) -> Steps[bool]:
        """Send a message back; returns whether a broker has stored it for good, so that it may be acknowledged.

        Args:
            queue: the queue it was read from; its topic may be the group's retry topic.
            level: delay level of the redelivery; 0: increasing with each redelivery; -1: dead letter topic.
        """
        if (yield from self._send_to_broker(queue, message, level)):
            return True
        try:
            now = yield from current_time()
            stored = yield from wait(self._producer.send_prepared(self._as_new(message, level, now.wall_ms), now))
        except TandemError as error:
            log.warning("retry failed group=%s queue=%s reason=%s", self._options.group, queue, error)
            return False
        return stored.status is SendStatus.SEND_OK or not self._routes.is_elected(stored.queue.broker_name)

    def _send_to_broker(self, queue: MessageQueue, message: StoredMessage, level: int) -> Steps[bool]:
        address = self._routes.leader(queue.broker_name)
        if address is None or self._remoting.is_down(address):
            return False
        command = request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=message.log_offset,
            group=self._options.group,
            delayLevel=level,
            originMsgId=message.offset_message_id,
            originTopic=message.topic,
            unitMode=False,
            maxReconsumeTimes=self._reconsume_times_max,
            bname=queue.broker_name,
        )
        try:
            yield from ask(address, command, SEND_BACK_TIMEOUT_MS)
        except TandemError as error:
            log.info("send back failed group=%s queue=%s reason=%s", self._options.group, queue, error)
            return False
        return True

    @property
    def _reconsume_times_max(self) -> int:
        configured = self._options.max_reconsume_times
        return configured if configured >= 0 else RECONSUME_TIMES_DEFAULT

    def _as_new(self, message: StoredMessage, level: int, wall_ms: int) -> SendRequest:
        """Return the message as a new one for the retry topic; brokers move it to the dead letter topic when its
        redeliveries are used up. A body that could not be decompressed is sent as it is stored, with its flags.

        Brokers compare the redeliveries of a message sent back so far, but of a new message those including the next:
        4.x moves it to the dead letter topic when that number has reached the limit, 5.x when it exceeds it. The limit
        in the request makes both agree.
        """
        times_max = self._reconsume_times_max
        is_dead = level == DEAD_LETTER_LEVEL or message.reconsume_times >= times_max
        times = times_max + 1 if is_dead else message.reconsume_times + 1
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
        properties.setdefault(RETRY_TOPIC, message.topic)
        properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[DELAY] = str(level if level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times)
        properties["WAIT"] = "true"
        return SendRequest(
            retry_topic(self._options.group),
            message.body,
            encode_properties(properties),
            message.sys_flag & ~(_OWN_FLAGS if message.fault else _OWN_FLAGS | _COMPRESSION_FLAGS),
            message.flag,
            (message.unique_key or self._keys.next(wall_ms),),
            reconsume_times=times,
            max_reconsume_times=times_max if is_dead else times_max + 1,
        )
