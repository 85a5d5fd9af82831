"""How consumers that ask their broker for queues consume: by pulls or pops, set by operators for a topic and a group.

Source: docs/reference/pop.md; RocketMQ MessageRequestModeManager.
"""

from typing import Any, Literal

import msgspec

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.copied_tables import Polled, StreamedTable, Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.serving import Right
from tandemq.codec.ha import KIND_FEATURE_TABLES
from tandemq.codec.remoting.bodies import convert, decode_body
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.java_types import Int32
from tandemq.model.topic import RETRY_PREFIX
from tandemq.storage.json_tables import TableFile

KIND = KIND_FEATURE_TABLES + 1
MODES_MAX = 10_000
"""Maximum number of pairs of topic and group with a mode."""
_MAP = "messageRequestModeMap"


class RequestMode(msgspec.Struct, rename="camel"):
    """The mode of one topic and group."""

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = "PULL"
    pop_share_queue_num: Int32 = 0
    """Number of next members of the group whose queues a member pops too; 0 or less: all."""


def _modes(raw: dict[str, Any]) -> dict[tuple[str, str], RequestMode]:
    """Return the modes in a table, by topic and group.

    Raises:
        ProtocolError: it is malformed.
    """
    topics = raw.get(_MAP) or {}
    if not isinstance(topics, dict) or not all(isinstance(groups, dict) for groups in topics.values()):
        raise ProtocolError(f"{_MAP}: an object of objects is expected")
    return {
        (topic, group): convert(mode, RequestMode, f"mode of topic={topic} group={group}")
        for topic, groups in topics.items()
        for group, mode in groups.items()
    }


FILE = TableFile("messageRequestMode.json", _modes)


class RequestModes(Feature):
    """The modes of all topics and groups."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = kernel.saver
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._current = kernel.current
        self.table = _modes(FILE.load(kernel.disk))
        self.changes = 0
        """Number of changes since the start."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.SET_MESSAGE_REQUEST_MODE: Request(self._on_set, Right.WRITE, is_saved=True)}

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (RequestModesTable(self),)

    def _on_set(self, _link: Link, command: Command, now: Now) -> Command | None:
        mode = decode_body(command.body, RequestMode, "request mode")
        if mode.topic.startswith(RETRY_PREFIX):
            return command.answer(ResponseCode.NO_PERMISSION, remark="retry topics have no mode of their own")
        if self._topics.get(mode.topic) is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{mode.topic[:255]}] not exist")
        if self._groups.find(mode.consumer_group, now.wall_ms) is None:
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {mode.consumer_group[:255]}",
            )
        place = mode.topic, mode.consumer_group
        if place not in self.table and len(self.table) >= MODES_MAX:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"{MODES_MAX} modes are set, no more are allowed")
        self.replace(self.table | {place: mode})
        return command.answer(ResponseCode.SUCCESS)

    def mode_of(self, topic: str, group: str) -> RequestMode:
        """Return the mode of a group for a topic; that of the settings if none is set."""
        found = self.table.get((topic, group))
        if found is not None:
            return found
        config = self._current.config
        is_pop = config.default_request_mode == "POP" and not topic.startswith(RETRY_PREFIX)
        return RequestMode(topic, group, "POP" if is_pop else "PULL", config.default_pop_share_queues)

    def replace(self, table: dict[tuple[str, str], RequestMode]) -> None:
        """Replace the table, and save it."""
        self.table = table
        self.changes += 1
        self._saver.later(FILE, self.as_json)

    def topic_removed(self, topic: str, _now: Now) -> None:
        """See `Feature`."""
        self._remove([place for place in self.table if place[0] == topic])

    def group_removed(self, group: str, _now: Now) -> None:
        """See `Feature`."""
        self._remove([place for place in self.table if place[1] == group])

    def _remove(self, places: list[tuple[str, str]]) -> None:
        if places:
            self.replace({place: mode for place, mode in self.table.items() if place not in places})

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of its file."""
        topics: dict[str, dict[str, RequestMode]] = {}
        for (topic, group), mode in self.table.items():
            topics.setdefault(topic, {})[group] = mode
        return {_MAP: topics}


class RequestModesTable(StreamedTable):
    """The modes, as slaves copy them."""

    code = Code.GET_ALL_MESSAGE_REQUEST_MODE
    is_optional = True
    kind = KIND
    is_needed = False

    def __init__(self, modes: RequestModes) -> None:
        """Begin to compare."""
        self._modes = modes
        self._published = -1

    def polled(self, _command: Command) -> bytes:
        """See `Table`."""
        return self.whole()

    def take_polled(self, polled: Polled) -> None:
        """See `Table`."""
        self.take(loads(polled.body, is_trusted=True), polled.body)

    @property
    def has_changes(self) -> bool:
        """See `Table`."""
        return self._modes.changes != max(self._published, 0)

    def take_changes(self) -> bytes | None:
        """See `Table`."""
        if self._modes.changes == self._published:
            return None
        self._published = self._modes.changes
        return self.whole()

    def whole(self) -> bytes:
        """See `Table`."""
        return dumps(self._modes.as_json())

    def take(self, table: dict[str, Any], _payload: bytes) -> None:
        """See `Table`."""
        found = _modes(table)
        if found != self._modes.table:
            self._modes.replace(found)
