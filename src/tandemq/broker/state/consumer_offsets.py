"""How far each consumer group is, per topic and queue.

Source: docs/internals/storage.md, "consumerOffset.json"; RocketMQ ConsumerOffsetManager.
"""

import logging
from collections.abc import Mapping
from typing import Any

from tandemq.broker.state.offset_journal import OffsetJournal
from tandemq.broker.state.pending_resets import PendingResets
from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import dumps_java, loads
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.storage.json_tables import DataVersion, load_table

log = logging.getLogger(__name__)
FILE = "consumerOffset.json"
NEXT_CHANGES = "tandemChanges"
"""In the file beside them: the first file of changes that is newer than the table."""
RESETS = "tandemResets"
"""Beside RocketMQ's "offsetTable": how often an operator set an offset, where that ever happened."""
WHOLE = "tandemWhole"
"""In a table that a master tells: it is all there is, not what changed."""
SEPARATOR = "@"
VERSION_STEP = 500
OFFSET_BYTES_MAX = 20 << 20
"""Memory budget of all offsets, as estimated by `_KEY_BYTES` and `_OFFSET_BYTES`; commits beyond it are refused."""
_KEY_BYTES = 400
"""One pair of topic and group, without the text of its key."""
_OFFSET_BYTES = 100
"""One queue of such a pair."""


class ConsumerOffsets:
    """Offsets by "topic@group" and queue id; saved periodically by the owner."""

    def __init__(self, saver: Saver, wall_ms: int) -> None:
        """Load the table.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._saver = saver
        self.version = DataVersion(wall_ms)
        self.table: dict[str, dict[int, int]] = {}
        self.resets: dict[str, dict[int, int]] = {}
        self.changed: dict[str, set[int]] | None = None
        """Queue ids by "topic@group" that changed since somebody looked; None: nobody looks."""
        self.corrected: list[tuple[str, int, int, int]] = []
        """What `correct` changed when it was called last."""
        self.pending = PendingResets()
        self._commits = 0
        self._dirty = False
        self._bytes: int | None = None
        """Estimated memory of `table`; None: to be counted anew."""
        raw = load_table(saver.disk, FILE)
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            self.table = parse_offsets(raw)
            self.resets = parse_offsets(raw, RESETS)
        self.is_unnoted = False
        """Whether the disk did not take changes that were to be kept: `note_all` tries again."""
        self._journal = OffsetJournal(saver.disk)
        for table in self._journal.read(int(raw.get(NEXT_CHANGES, 0))):
            try:
                self._take(table)
            except StoreDamaged as error:
                log.error("offsets: a line of changes cannot be read and is left out: %s", error)

    def has_room(self, topic: str, group: str, queue_id: int) -> bool:
        """Return whether an offset may be committed: the queue has one, or the memory budget allows one more."""
        if self.get(topic, group, queue_id) is not None:
            return True
        if self._bytes is None:
            self._bytes = sum(_memory_of(key, len(queues)) for key, queues in self.table.items())
        return self._bytes < OFFSET_BYTES_MAX

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Remember an offset, as RocketMQ does: a lower one too (a reset comes this way)."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
            self._grow(_memory_of(key, 0))
        if queue_id not in queues:
            self._grow(_OFFSET_BYTES)
        queues[queue_id] = offset
        self._dirty = True
        if self.changed is not None:
            self.changed.setdefault(key, set()).add(queue_id)
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.version.next(self.version.timestamp)

    def _grow(self, size: int) -> None:
        if self._bytes is not None:
            self._bytes += size

    def commit_of_member(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Remember an offset that a consumer commits; False if it is ignored, because the offset was reset and the
        consumer has not followed yet."""
        if self.pending.ignores_commit(topic, group, queue_id, now_ms):
            return False
        self.commit(topic, group, queue_id, offset)
        return True

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset for an operator; if it goes back it outranks higher ones when tables are merged."""
        self.pending.drop(topic, group, queue_id)
        before = self.get(topic, group, queue_id)
        if before is not None and offset < before:
            self.count_reset(topic, group, queue_id)
        self.commit(topic, group, queue_id, offset)

    def count_reset(self, topic: str, group: str, queue_id: int) -> None:
        """Consumers have been told to set their offset: what they commit next outranks what others remember."""
        queues = self.resets.setdefault(f"{topic}{SEPARATOR}{group}", {})
        queues[queue_id] = queues.get(queue_id, 0) + 1
        self._dirty = True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset, None if none was ever committed."""
        queues = self.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def of_group(self, topic: str, group: str) -> dict[int, int]:
        """A group's offsets in a topic by queue id; a copy."""
        return dict(self.table.get(f"{topic}{SEPARATOR}{group}") or {})

    def topics_of(self, group: str) -> list[str]:
        """Topics a group has offsets for."""
        return [topic for topic, _, owner in (key.rpartition(SEPARATOR) for key in self.table) if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets for a topic."""
        return [group for name, _, group in (key.rpartition(SEPARATOR) for key in self.table) if name == topic]

    def remove_group(self, group: str) -> None:
        """Forget a group."""
        for topic in self.topics_of(group):
            self._remove(f"{topic}{SEPARATOR}{group}")

    def remove_topic(self, topic: str) -> None:
        """Forget a topic."""
        for group in self.groups_of(topic):
            self._remove(f"{topic}{SEPARATOR}{group}")

    def _remove(self, key: str) -> None:
        topic, _, group = key.rpartition(SEPARATOR)
        self._bytes = None
        for queue_id in self.table.pop(key):
            self.pending.drop(topic, group, queue_id)
        self.resets.pop(key, None)
        if self.changed is not None:
            self.changed[key] = set()
        self._dirty = True

    def merge(self, table: dict[str, dict[int, int]], version: DataVersion | None) -> None:
        """Take over a master's table, keeping what it lacks; per "topic@group" its queues replace ours."""
        self._bytes = None
        for key, queues in table.items():
            if self.table.get(key) != queues:
                self.table[key] = dict(queues)
                self._dirty = True
        if version is not None:
            self.version = version

    def changes(self) -> dict[str, Any]:
        """What changed since this was called last, as `follow` takes it; without queues: removed."""
        changed, self.changed = self.changed or {}, {}
        found = {
            key: {queue_id: offset for queue_id, offset in self.table.get(key, {}).items() if queue_id in queue_ids}
            for key, queue_ids in changed.items()
        }
        return {"offsetTable": found, RESETS: {key: self.resets[key] for key in found if key in self.resets}}

    def note(self, changes: bytes) -> None:
        """Keep changes over a kill of the process: JSON as `follow` takes it."""
        self.is_unnoted = not self._journal.append(changes) or self.is_unnoted

    def note_all(self) -> None:
        """The disk did not take some changes: try with everything."""
        self.is_unnoted = not self._journal.append(dumps_java(self.as_json() | {WHOLE: True}))

    def follow(self, raw: dict[str, Any], text: bytes) -> None:
        """Take what the master told: its offsets are the ones that count, higher or lower, and in a whole table no
        others do. `text`: the JSON it was.

        Raises:
            StoreDamaged: it is no such table.
        """
        self._take(raw)
        self.pending.clear()
        self.note(text)

    def _take(self, raw: dict[str, Any]) -> None:
        self._bytes = None
        if raw.get(WHOLE):
            table, resets = parse_offsets(raw), parse_offsets(raw, RESETS)
            self.table, self.resets, self._dirty = table, resets, True
            return
        for mine, name in ((self.table, "offsetTable"), (self.resets, RESETS)):
            for key, queues in parse_offsets(raw, name).items():
                mine.setdefault(key, {}).update(queues)
                if not queues:
                    del mine[key]
        self._dirty = True

    def merge_positions(self, raw: dict[str, Any]) -> None:
        """Merge another member's table into ours: per queue the higher offset holds, unless an operator set it since.
        It is saved even if nothing is news: what was merged before may not have been.

        Raises:
            StoreDamaged: it is no such table.
        """
        theirs, resets = parse_offsets(raw), parse_offsets(raw, RESETS)
        self._bytes = None
        for key, queues in theirs.items():
            own, own_resets = self.table.setdefault(key, {}), self.resets.get(key, {})
            for queue_id, offset in queues.items():
                count = resets.get(key, {}).get(queue_id, 0)
                if (count, offset) > (own_resets.get(queue_id, 0), own.get(queue_id, -1)):
                    own[queue_id] = offset
                    if count:
                        self.resets.setdefault(key, {})[queue_id] = count
        self._dirty = True

    def correct(self, ends: Mapping[tuple[str, int], int]) -> list[tuple[str, int, int, int]]:
        """Set every offset beyond the end of its queue, by (topic, queue id), to that end; a queue not named ends at 0.

        Returns ("topic@group", queue id, offset before, offset now) of each that was changed.
        """
        self.corrected = corrected = []
        for key, queues in self.table.items():
            topic = key.rpartition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = ends.get((topic, queue_id), 0)
                if offset > end:
                    corrected.append((key, queue_id, offset, end))
                    queues[queue_id] = end
        if corrected:
            self._dirty = True
            self.version.next(self.version.timestamp)
        return corrected

    def as_json(self) -> dict[str, Any]:
        """The table as peers and the file have it."""
        table = {"dataVersion": self.version.as_json(), "offsetTable": self.table}
        return table | {RESETS: self.resets} if self.resets else table

    def save(self, *, is_awaited: bool = False) -> None:
        """Have the file written if something changed."""
        if self._dirty:
            self._saver.later(FILE, self._content, is_awaited=is_awaited, on_saved=self._journal.saved)
            self._dirty = False

    def _content(self) -> dict[str, Any]:
        following = self._journal.rotate()
        return self.as_json() | ({NEXT_CHANGES: following} if following else {})


def _memory_of(key: str, queues: int) -> int:
    return _KEY_BYTES + 2 * len(key) + _OFFSET_BYTES * queues


def parse_offsets(raw: dict[str, Any], name: str = "offsetTable") -> dict[str, dict[int, int]]:
    """The table of this name from its JSON, whose queue ids may be unquoted.

    Raises:
        StoreDamaged: an entry is not a map of queue ids to offsets.
    """
    try:
        return {
            key: {int(queue_id): integer(offset, key) for queue_id, offset in queues.items() if offset is not None}
            for key, queues in (raw.get(name) or {}).items()
        }
    except (AttributeError, ValueError, TypeError, ProtocolError) as error:
        raise StoreDamaged(f"consumer offset table: {error}") from error


def parse_offsets_body(body: bytes) -> tuple[dict[str, dict[int, int]], DataVersion | None]:
    """The table and its version from a master's answer.

    Raises:
        ProtocolError, StoreDamaged: it cannot be read.
    """
    raw = loads(body, is_trusted=True)
    version = raw.get("dataVersion") if isinstance(raw, dict) else None
    return parse_offsets(raw if isinstance(raw, dict) else {}), DataVersion.from_json(version) if version else None
