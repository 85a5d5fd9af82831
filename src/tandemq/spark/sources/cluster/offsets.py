"""Offsets by queue, and their JSON form: topic, broker group, queue.

    {"Orders": {"broker-a": {"epoch": 2, "0": 1200, "1": 1187}, "broker-b": {"0": 431}}}

Spark keeps this form in a checkpoint; `startingOffsets` and `endingOffsets` take the same form. There -2 means the
earliest and -1 the latest offset of a queue, as in Spark's Kafka source. `epoch` is the epoch of the group's log when
the offsets were taken; it is left out if the group has none (0).

Source: docs/guides/pipeline.md, "Offsets".
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandemq.errors import ConfigError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import topic_name_error

TOPIC_FORM = '{"topic": {"broker name": {"queue": %s}}}'
RESERVED = "/"
"""First character of keys that are no topics: no topic's name begins with it."""
GONE = "/gone"
"""Key in a checkpoint of the offsets of queues that are gone. Their loss was accepted; one that is back continues."""
EARLIEST = -2
LATEST = -1
EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Position:
    """Offsets by queue, and the epoch of each broker group when they were taken (0 if not named)."""

    offsets: Mapping[MessageQueue, int]
    epochs: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the JSON form, sorted."""
        tree: dict[str, dict[str, dict[str, int]]] = {}
        for queue, offset in sorted(self.offsets.items()):
            group = tree.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})
            epoch = self.epochs.get(queue.broker_name, 0)
            if epoch:
                group[EPOCH] = epoch
            group[str(queue.queue_id)] = offset
        return tree

    def epoch(self, broker_name: str) -> int:
        """Return the epoch of a broker group; 0 if it has none."""
        return self.epochs.get(broker_name, 0)


class RecentPosition:
    """The position of a query and its JSON form. Both are kept, since an idle query has the same ones at each poll."""

    def __init__(self) -> None:
        """Start with a position of no queue."""
        self._position = Position({})
        self._tree: dict[str, Any] = {}

    def write(self, position: Position) -> dict[str, Any]:
        """Return the JSON form of a position. It may be returned again: do not change it."""
        if position != self._position:
            names = {queue.broker_name for queue in position.offsets}
            epochs = {name: number for name, number in position.epochs.items() if number and name in names}
            self._position, self._tree = Position(position.offsets, epochs), position.to_json()
        return self._tree

    def read(self, tree: Mapping[str, Any]) -> Position:
        """Return the position in an offset of a checkpoint; see `read_position`."""
        offsets = {topic: brokers for topic, brokers in tree.items() if not topic.startswith(RESERVED)}
        if offsets != self._tree:
            self._position, self._tree = read_position(offsets), offsets
        return self._position


def parse_offsets(text: str, option: str) -> Position:
    """Parse the offsets in the value of an option.

    Raises:
        ConfigError: the value is malformed; names the entry.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{option} is not JSON: {error.msg} at character {error.pos + 1}",
            hint=f"write earliest, latest, or {TOPIC_FORM % 'offset'}",
        ) from error
    return read_offsets(tree, option)


def read_offsets(tree: object, option: str) -> Position:
    """Like `parse_offsets`, from decoded JSON; -1 and -2 are kept."""
    offsets: dict[MessageQueue, int] = {}
    epochs: dict[str, int] = {}
    for topic, brokers in _entries(tree, option):
        if topic.startswith(RESERVED):
            continue
        fault = topic_name_error(topic)
        if fault is not None:
            raise ConfigError(f"{option}: {fault}")
        for broker_name, queues in _entries(brokers, f"{option}: {topic!r}"):
            where = f"{option}: {topic!r}: {broker_name!r}"
            for name, value in _entries(queues, where):
                number = _number(value, f"{where}: {name!r}", least=0 if name == EPOCH else EARLIEST)
                if name == EPOCH:
                    if epochs.setdefault(broker_name, number) != number:
                        raise ConfigError(f"{where}: epoch {number}, but {epochs[broker_name]} for another topic")
                else:
                    offsets[MessageQueue(topic, broker_name, queue_id_of(name, where))] = number
    if not offsets:
        raise ConfigError(f"{option} names no queue")
    return Position(offsets, epochs)


def read_position(tree: Mapping[str, Any]) -> Position:
    """Return the position in an offset of a checkpoint; it may name no queue.

    Raises:
        ConfigError: the offset is malformed.
    """
    offsets = {topic: brokers for topic, brokers in tree.items() if not topic.startswith(RESERVED)}
    return read_offsets(offsets, "the checkpoint") if offsets else Position({})


def read_gone(tree: Mapping[str, Any]) -> dict[MessageQueue, int]:
    """Return the offsets of queues that are gone from an offset of a checkpoint; raises as `read_position`."""
    gone = tree.get(GONE)
    return dict(read_offsets(gone, f"the checkpoint: {GONE}").offsets) if gone else {}


def write_gone(gone: Mapping[MessageQueue, int], offsets: Collection[MessageQueue]) -> dict[str, Any]:
    """Return the JSON form of `read_gone`, without queues that have an offset again; empty if there are none."""
    left = {queue: offset for queue, offset in gone.items() if queue not in offsets}
    return {GONE: Position(left).to_json()} if left else {}


def parse_times(text: str, option: str) -> dict[MessageQueue, int]:
    """Parse timestamps by queue in the value of an option, in the form of offsets; milliseconds since 1970.

    Raises:
        ConfigError: the value is malformed; names the entry.
    """
    form = TOPIC_FORM % "milliseconds since 1970"
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{option} is not JSON: {error.msg} at character {error.pos + 1}", hint=form) from error
    position = read_offsets(tree, option)
    if position.epochs:
        raise ConfigError(f"{option} names an epoch", hint=f"a time belongs to none: {form}")
    for queue, wall_ms in position.offsets.items():
        if wall_ms < 0:
            where = f"{option}: {queue.topic!r}: {queue.broker_name!r}: '{queue.queue_id}'"
            raise ConfigError(f"{where} is {wall_ms}", hint="milliseconds since 1970")
    return dict(position.offsets)


def queue_id_of(text: object, where: str) -> int:
    """Parse a queue id. `where`: its place in an option, for messages.

    Raises:
        ConfigError: it is not a queue id.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    if not isinstance(text, str) or not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{where}: {text!r} is not a queue id", hint='queues are "0", "1", …')
    return int(text)


def _entries(value: object, where: str) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        is_kafkas = isinstance(value, int) and not isinstance(value, bool)
        hint = f"Kafka's form names no broker, this one does: {TOPIC_FORM % 'number'}" if is_kafkas else ""
        raise ConfigError(f"{where} is {json.dumps(value)[:64]}, not a JSON object", hint=hint)
    return list(value.items())


def _number(value: object, where: str, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{where} is {json.dumps(value)[:64]}, not a whole number")
    if value < least:
        raise ConfigError(f"{where} is {value}", hint="offsets are 0 or more, -1 the latest, -2 the earliest")
    return value
