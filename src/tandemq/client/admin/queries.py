"""Finding messages: by id, by key, by unique key, by where they lie.

A message whose body cannot be decompressed is found like any other, with its `fault`.

Source: docs/reference/requests.md, "all codes".
"""

import logging
from dataclasses import replace

from tandemq.client.admin.cluster import topic_route
from tandemq.client.consumer.offsets.lookup import ask_member
from tandemq.client.core.operations import Invoke, Steps, ask, ask_all, checked, request, text_of
from tandemq.client.core.routes import Routes
from tandemq.codec.record.record import decode_messages, decode_pulled, parse_message_id, read_message
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY, MessageQueue, StoredMessage

log = logging.getLogger(__name__)
TOOLS_GROUP = "TOOLS_CONSUMER"
_SUBSCRIPTION = 4
FAR_FUTURE_MS = (1 << 63) - 1


def message_by_id(text: str) -> Steps[StoredMessage]:
    """The message with an offset message id, asked of the broker that the id names.

    Raises:
        ProtocolError: it is no such id, or what lies there is damaged.
        NetworkError, RemoteError: the broker cannot be reached, or does not have it.
    """
    address, log_offset = parse_message_id(text)
    answer = yield from ask(address, request(RequestCode.VIEW_MESSAGE_BY_ID, offset=log_offset))
    return read_message(answer.body, 0, len(answer.body))


def messages_by_key(
    routes: Routes,
    topic: str,
    key: str,
    count_max: int,
    begin_ms: int = 0,
    end_ms: int = FAR_FUTURE_MS,
    *,
    unique: bool = False,
) -> Steps[list[StoredMessage]]:
    """Messages of a topic with a key, stored within a time, oldest first; all members of all brokers are asked.

    Brokers find keys by hash; what only has the same hash is left out here.

    Raises:
        NoRoute: the topic is unknown.
        NetworkError: nobody answers.
        ProtocolError: all that was found is damaged.
    """
    route = yield from topic_route(routes, topic)
    fields: dict[str, object] = {
        "topic": topic,
        "key": key,
        "maxNum": count_max,
        "beginTimestamp": begin_ms,
        "endTimestamp": end_ms,
    }
    if unique:
        fields["_UNIQUE_KEY_QUERY"] = True
    addresses = [address for group in route.brokers.values() for address in group.members.values()]
    asks = [Invoke(address, _command(fields), 10_000) for address in addresses]
    answers = yield from ask_all(asks)
    found: dict[tuple[str, int, int], StoredMessage] = {}
    names = {address: name for name, group in route.brokers.items() for address in group.members.values()}
    damages: list[ProtocolError] = []
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            for message in _read(answer.body, address, damages):
                if message.topic == topic and _has_key(message, key, unique=unique):
                    found.setdefault((names[address], message.queue_id, message.queue_offset), message)
    errors = [answer for answer in answers if isinstance(answer, TandemError)]
    if len(errors) == len(answers) and errors:
        raise errors[0]
    if damages and not found:
        raise damages[0]
    return sorted(found.values(), key=lambda message: (message.store_ms, message.log_offset))[:count_max]


def _read(body: bytes, address: str, damages: list[ProtocolError]) -> list[StoredMessage]:
    """The messages of an answer up to the first damaged one; bodies beyond the budget of an answer stay compressed."""
    messages, end, damage = decode_pulled(body)
    try:
        if damage:
            raise ProtocolError(damage)
        left_out = "not decompressed: the bodies of this answer are too large together; ask for this message alone"
        messages += [replace(one, fault=left_out) for one in decode_messages(body[end:], inflates=False)]
    except ProtocolError as error:
        damages.append(ProtocolError(f"{address} sent a damaged record: {error}"))
        log.warning("damaged record in the answer to a query address=%s reason=%s", address, error)
    return messages


def _command(fields: dict[str, object]) -> Command:
    return Command(RequestCode.QUERY_MESSAGE, fields={name: text_of(value) for name, value in fields.items()})


def _has_key(message: StoredMessage, key: str, *, unique: bool) -> bool:
    return message.properties.get(UNIQ_KEY) == key if unique else key in message.keys


def message_at(routes: Routes, queue: MessageQueue, offset: int) -> Steps[StoredMessage | None]:
    """The message at an offset of a queue; None if there is none.

    Raises:
        NoRoute, NetworkError, RemoteError: it cannot be learnt.
        ProtocolError: it is damaged.
    """
    if not routes.members(queue.broker_name):
        yield from topic_route(routes, queue.topic)
    answer = yield from ask_member(routes, queue.broker_name, lambda: _pull(queue, offset))
    if answer.code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        return None
    pulled = decode_pulled(checked(answer).body)
    if pulled.damage and not pulled.messages:
        raise ProtocolError(f"the message at offset {offset} of {queue}: {pulled.damage}")
    return pulled.messages[0] if pulled.messages and pulled.messages[0].queue_offset == offset else None


def _pull(queue: MessageQueue, offset: int) -> Command:
    return request(
        RequestCode.PULL_MESSAGE,
        consumerGroup=TOOLS_GROUP,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=1,
        sysFlag=_SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
        expressionType="TAG",
        bname=queue.broker_name,
    )
