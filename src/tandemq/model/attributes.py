"""Attributes of topics and consumer groups: known names, allowed values, and changes by requests.

    +name=value    sets an attribute
    -name          removes an existing attribute

    topics           values                                                             changeable
    message.type     UNSPECIFIED, NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, MIXED     yes
    queue.type       SimpleCQ                                                           when the topic is created
    cleanup.policy   DELETE                                                             when the topic is created
    reserve.time     -1                                                                 yes

    groups           values                                                             changeable
    priority.factor  0 to 100: percentage of pops that prefer the highest priority      yes

A broker takes MIXED only with `enableMixedMessageType`. RocketMQ has further values (`BatchCQ`, `COMPACTION`, a
retention time per topic). They are refused, because TandemQ does not implement them.

Limit: `ATTRIBUTES_BYTES_MAX` per topic or group, in a request and as stored.
Source: RocketMQ TopicAttributes, AttributeUtil, AttributeParser.
"""

from collections.abc import Mapping

from tandemq.errors import ProtocolError

ATTRIBUTES_BYTES_MAX = 16 * 1024
MESSAGE_TYPE = "message.type"
MIXED, PRIORITY = "MIXED", "PRIORITY"
QUEUE_TYPE = "queue.type"
CLEANUP_POLICY = "cleanup.policy"
BATCH_QUEUES = "BatchCQ"
COMPACTION = "COMPACTION"
_RESERVE_TIME = "reserve.time"
_INT64_MAX = (1 << 63) - 1
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, MIXED)
_VALUES = {
    MESSAGE_TYPE: ("UNSPECIFIED", *MESSAGE_TYPES),
    QUEUE_TYPE: ("SimpleCQ", BATCH_QUEUES),
    CLEANUP_POLICY: ("DELETE", COMPACTION),
}
TOPIC_ATTRIBUTES = (*_VALUES, _RESERVE_TIME)
PRIORITY_FACTOR = "priority.factor"
PRIORITY_FACTOR_MAX = 100
GROUP_ATTRIBUTES = (PRIORITY_FACTOR,)
_UNCHANGEABLE = frozenset({QUEUE_TYPE, CLEANUP_POLICY})
_UNSUPPORTED = {
    BATCH_QUEUES: "queues of batches (batchconsumequeue) are not supported; SimpleCQ is",
    COMPACTION: "compaction is not supported: messages are deleted by age; DELETE is supported",
}


def parse_changes(text: str) -> dict[str, str]:
    """Parse `+name=value,-name`; return {"+name": "value", "-name": ""}.

    Raises:
        ProtocolError: a malformed part, a repeated name, or a text longer than the limit.
    """
    _check_size(_bytes_in(text))
    changes: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if (part[0] == "+") != bool(equals):
            raise _malformed(part)
        if name in changes:
            raise ProtocolError(f"attribute {name[1:65]!r} is repeated")
        changes[name] = value
    return changes


def changed(
    present: Mapping[str, str], changes: Mapping[str, str], *, is_new: bool, known: tuple[str, ...] = TOPIC_ATTRIBUTES
) -> dict[str, str]:
    """Return the attributes after the changes of a request.

    Args:
        present: current attributes.
        changes: values by name, with + or - before the name; the value of a removal is ignored.
        is_new: the request creates the topic, so attributes can only be added.
        known: names of the supported attributes.

    Raises:
        ProtocolError: an unknown or malformed name, an invalid value, or an attribute that cannot be changed.
    """
    _check_size(attributes_bytes(changes))
    after, seen = dict(present), set()
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in ("+", "-") or not name or "+" in name or "-" in name:
            raise _malformed(signed)
        if name in seen:
            raise ProtocolError(f"attribute {name[:64]!r} is repeated")
        seen.add(name)
        if name not in known:
            raise ProtocolError(f"unsupported key: {name[:64]!r}; known are {', '.join(known) or 'none'}")
        if is_new and sign == "-":
            raise ProtocolError(f"only add attribute is supported while creating topic. key: {name}")
        if not is_new and name in _UNCHANGEABLE:
            raise ProtocolError(
                f"attempt to update an unchangeable attribute. key: {name}; it is given when the topic is created"
            )
        if sign == "+":
            _check_value(name, value)
            after[name] = value
        elif name not in after:
            raise ProtocolError(f"attempt to delete a nonexistent key: {name}")
        else:
            del after[name]
    return after


def attributes_bytes(attributes: Mapping[str, str]) -> int:
    """Return the size of all names and values in UTF-8, bytes."""
    return sum(_bytes_in(name) + _bytes_in(value) for name, value in attributes.items())


def _bytes_in(text: str) -> int:
    return len(text.encode(errors="replace"))


def priority_factor(attributes: Mapping[str, str]) -> int:
    """Return the percentage of a group's pops that prefer the highest priority."""
    text = attributes.get(PRIORITY_FACTOR, "")
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(PRIORITY_FACTOR_MAX))
    return min(int(text), PRIORITY_FACTOR_MAX) if is_number else PRIORITY_FACTOR_MAX


def _check_value(name: str, value: str) -> None:
    if name == _RESERVE_TIME:
        _check_reserve_time(value)
        return
    if name == PRIORITY_FACTOR:
        if str(priority_factor({name: value})) != value:
            raise ProtocolError(f"{name}={value[:64]!r}: value is not in range(0, {PRIORITY_FACTOR_MAX})")
        return
    if value not in _VALUES[name]:
        raise ProtocolError(f"{name}={value[:64]!r}: value is not in set: {', '.join(_VALUES[name])}")
    if value in _UNSUPPORTED:
        raise ProtocolError(f"{name}={value}: {_UNSUPPORTED[value]}")


def _check_reserve_time(value: str) -> None:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19 and -1 <= int(value) <= _INT64_MAX):
        raise ProtocolError(f"{_RESERVE_TIME}={value[:64]!r}: value is not in range(-1, {_INT64_MAX})")
    if int(value) != -1:
        raise ProtocolError(
            f"{_RESERVE_TIME}={value}: a retention time per topic is not supported; fileReservedTime holds for all"
        )


def _check_size(size: int) -> None:
    if size > ATTRIBUTES_BYTES_MAX:
        raise ProtocolError(f"the attributes have {size} bytes, at most {ATTRIBUTES_BYTES_MAX} are allowed")


def _malformed(part: str) -> ProtocolError:
    return ProtocolError(f"attribute {part[:64]!r}: +name=value or -name is expected")
