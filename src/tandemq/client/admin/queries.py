"""Queries for messages: by id, by key, by unique key, by queue and offset.

A message whose body cannot be decompressed is returned like any other, with its `fault`.

Source: docs/reference/requests.md, "all codes".
"""

import logging
from typing import NamedTuple

from msgspec.structs import replace

from tandemq.client.admin.cluster import topic_route
from tandemq.client.consumer.offsets.lookup import ask_member
from tandemq.client.core.operations import Invoke, Steps, ask, ask_all, checked, refusal, request, text_of
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.requests import pull_request
from tandemq.client.core.routes import Routes
from tandemq.codec.record.record import decode_messages, parse_message_id, read_message
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY, MessageQueue, StoredMessage

log = logging.getLogger(__name__)
FAR_FUTURE_MS = (1 << 63) - 1
QUERY_TIMEOUT_MS = 10_000


class LocatedMessage(NamedTuple):
    """A message and its queue."""

    queue: MessageQueue
    message: StoredMessage


def message_by_id(text: str) -> Steps[StoredMessage]:
    """Return the message with an offset message id, from the broker whose address is in the id.

    Raises:
        ProtocolError: the text is not such an id, or the message is damaged.
        NetworkError, RemoteError: the broker does not respond, or does not have the message.
    """
    address, log_offset = parse_message_id(text)
    answer = yield from ask(address, request(RequestCode.VIEW_MESSAGE_BY_ID, offset=log_offset))
    return read_message(answer.body, 0, len(answer.body))


def located_messages(
    routes: Routes,
    topic: str,
    key: str,
    count_max: int,
    begin_ms: int = 0,
    end_ms: int = FAR_FUTURE_MS,
    *,
    unique: bool = False,
) -> Steps[list[LocatedMessage]]:
    """Return the messages of a topic with a key and their queues, oldest first.

    All members of all broker groups are queried. Their indexes have hashes of keys; messages with another key of the
    same hash are left out.

    Args:
        count_max: maximum number of messages.
        begin_ms: stored at or after this time, milliseconds since 1970.
        end_ms: stored at or before this time.
        unique: whether `key` is a unique key.

    Raises:
        NoRoute: no name server knows the topic.
        NetworkError, RemoteError: no broker responds, or each refuses.
        ProtocolError: all messages found are damaged.
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
    names = {address: name for name, group in route.brokers.items() for address in group.members.values()}
    answers = yield from ask_all([Invoke(address, _command(fields), QUERY_TIMEOUT_MS) for address in names])
    errors = [error for answer in answers if (error := _failure(answer)) is not None]
    if errors and len(errors) == len(answers):
        raise errors[0]
    found: dict[MessageQueue, dict[int, StoredMessage]] = {}
    damages: list[ProtocolError] = []
    for (address, name), answer in zip(names.items(), answers, strict=True):
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            for message in _decode(answer.body, address, damages):
                if message.topic == topic and _has_key(message, key, unique=unique):
                    by_offset = found.setdefault(MessageQueue(topic, name, message.queue_id), {})
                    by_offset.setdefault(message.queue_offset, message)
    if damages and not found:
        raise damages[0]
    located = [LocatedMessage(queue, message) for queue, by_offset in found.items() for message in by_offset.values()]
    return sorted(located, key=lambda hit: (hit.message.store_ms, hit.message.log_offset))[:count_max]


def _failure(answer: Command | TandemError) -> TandemError | None:
    """Return why a broker has not searched for a key; None if it has."""
    if isinstance(answer, TandemError):
        return answer
    return None if answer.code in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND) else refusal(answer)


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
    """Return the messages of a topic with a key, oldest first. Arguments and errors as `located_messages`."""
    found = yield from located_messages(routes, topic, key, count_max, begin_ms, end_ms, unique=unique)
    return [hit.message for hit in found]


def _decode(body: bytes, address: str, damages: list[ProtocolError]) -> list[StoredMessage]:
    """Decode the messages of a response up to the first damaged one; bodies beyond the memory budget of a response stay
    compressed."""
    messages, end, damage = decode_pulled(body)
    try:
        if damage:
            raise ProtocolError(damage)
        fault = "not decompressed: the bodies of this response are too large together; query this message alone"
        messages += [replace(message, fault=fault) for message in decode_messages(body[end:], inflates=False)]
    except ProtocolError as error:
        damages.append(ProtocolError(f"{address} sent a damaged record: {error}"))
        log.warning("damaged record in the response to a query address=%s reason=%s", address, error)
    return messages


def _command(fields: dict[str, object]) -> Command:
    return Command(RequestCode.QUERY_MESSAGE, fields={name: text_of(value) for name, value in fields.items()})


def _has_key(message: StoredMessage, key: str, *, unique: bool) -> bool:
    return message.properties.get(UNIQ_KEY) == key if unique else key in message.keys


def message_at(routes: Routes, queue: MessageQueue, offset: int) -> Steps[StoredMessage | None]:
    """Return the message at an offset of a queue; None if there is none.

    Raises:
        NoRoute, NetworkError, RemoteError: no member of the broker group returns it.
        ProtocolError: the message is damaged.
    """
    found = yield from messages_from(routes, queue, offset, 1)
    return found[0] if found and found[0].queue_offset == offset else None


def messages_from(routes: Routes, queue: MessageQueue, offset: int, count_max: int) -> Steps[list[StoredMessage]]:
    """Return the messages that a broker returns for one pull from an offset of a queue; [] if there are none.

    Raises:
        NoRoute, NetworkError, RemoteError: no member of the broker group returns them.
        ProtocolError: the first message is damaged.
    """
    if not routes.members(queue.broker_name):
        yield from topic_route(routes, queue.topic)
    answer = yield from ask_member(routes, queue.broker_name, lambda: pull_request(queue, offset, count_max))
    if answer.code in (
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ):
        return []
    pulled = decode_pulled(checked(answer).body)
    if pulled.damage and not pulled.messages:
        raise ProtocolError(f"the message at offset {offset} of {queue}: {pulled.damage}")
    return pulled.messages[:count_max]
