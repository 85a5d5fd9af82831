"""Messages that could not be consumed: sent back to come again later, or for good into the dead letter topic.

    send back (36) to the master of the message's broker group
      └► it cannot: send a new message to %RETRY%group, on whichever broker takes it
           └► nobody does: the message stays with its consumer and is delivered again

Source: docs/reference/requests.md, "retry"; docs/internals/ha.md; RocketMQ DefaultMQPushConsumerImpl.sendMessageBack.
"""

import logging

from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, ask, current_time, request, wait
from tandemq.client.core.settings import ConsumerOptions
from tandemq.client.producer.encoder import SendRequest
from tandemq.client.producer.machine import ProducerCore
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode
from tandemq.model.message import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RECORD_CRC,
    RETRY_TOPIC,
    TRAN_MSG,
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
_NOT_PASSED_ON = (DELAY, TRAN_MSG, RECORD_CRC, "CLUSTER", "MIN_OFFSET", "MAX_OFFSET")


def reconsume_times_max(options: ConsumerOptions) -> int:
    """How often a message may come again."""
    return options.max_reconsume_times if options.max_reconsume_times >= 0 else RECONSUME_TIMES_DEFAULT


def send_back(
    kit: Kit, options: ConsumerOptions, producer: ProducerCore, queue: MessageQueue, message: StoredMessage, level: int
) -> Steps[bool]:
    """Have a message come again after a delay level (0: growing with each time; -1: never, it is a dead letter).

    Args:
        queue: where the message was read, whose topic may be the group's retry topic.
    Returns:
        whether somebody has taken it, for good: only then it may be acknowledged.
    """
    address = kit.routes.leader(queue.broker_name)
    if address is not None and not kit.links.is_down(address):
        command = request(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            offset=message.log_offset,
            group=options.group,
            delayLevel=level,
            originMsgId=message.offset_message_id,
            originTopic=message.topic,
            unitMode=False,
            maxReconsumeTimes=reconsume_times_max(options),
            bname=queue.broker_name,
        )
        try:
            yield from ask(address, command, SEND_BACK_TIMEOUT_MS)
        except TandemError as error:
            log.info("send back failed group=%s queue=%s reason=%s", options.group, queue, error)
        else:
            return True
    try:
        now = yield from current_time()
        stored = yield from wait(producer.send_prepared(_again(kit, options, message, level, now.wall_ms), now))
    except TandemError as error:
        log.warning("retry failed group=%s queue=%s reason=%s", options.group, queue, error)
        return False
    return stored.status is SendStatus.SEND_OK or not kit.routes.is_elected(stored.queue.broker_name)


def _again(kit: Kit, options: ConsumerOptions, message: StoredMessage, level: int, wall_ms: int) -> SendRequest:
    """The message as a new one for the retry topic; which brokers make a dead letter when its times are over. A body
    that could not be decompressed goes as it is stored, with its flags.

    Of a message sent back brokers compare how often it came before, of a new one how often it will have come: 4.x takes
    it for dead when that has reached the limit, 5.x when it is beyond. The limit told makes all of them agree.
    """
    times_max = reconsume_times_max(options)
    is_dead = level == DEAD_LETTER_LEVEL or message.reconsume_times >= times_max
    times = times_max + 1 if is_dead else message.reconsume_times + 1
    properties = {name: value for name, value in message.properties.items() if name not in _NOT_PASSED_ON}
    properties.setdefault(RETRY_TOPIC, message.topic)
    properties.setdefault(ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[DELAY] = str(level if level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times)
    properties["WAIT"] = "true"
    return SendRequest(
        retry_topic(options.group),
        message.body,
        encode_properties(properties),
        message.sys_flag & ~(_HOST_FLAGS if message.fault else _HOST_FLAGS | _COMPRESSION_FLAGS),
        message.flag,
        (message.unique_key or kit.keys.next(wall_ms),),
        reconsume_times=times,
        max_reconsume_times=times_max if is_dead else times_max + 1,
    )
