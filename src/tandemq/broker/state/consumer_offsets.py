"""Committed offsets of the consumer groups, per topic and queue.

Source: docs/internals/storage.md, "consumerOffset.json"; RocketMQ ConsumerOffsetManager.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tandemq.broker.state.offset_journal import OffsetJournal
from tandemq.broker.state.pending_resets import PendingResets
from tandemq.broker.state.persistence import Saver
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import dumps_java, loads
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.storage.json_tables import DataVersion, TableFile, TableOrigin, require

log = logging.getLogger(__name__)
NEXT_CHANGES = "tandemChanges"
"""Key in the file beside the offsets: number of the first change file that is newer than the table."""
COMMITTED_HERE = "tandemCommittedHere"
"""Key in a slave's file: queues whose offsets consumers committed at the slave and its master does not have yet."""
RESETS = "tandemResets"
"""Key beside RocketMQ's "offsetTable": number of times an operator set an offset, for queues where that happened."""
WHOLE = "tandemWhole"
"""Key in a table that a master publishes: it is the complete table, not only changes."""
MAY_LACK_COMMITS = "tandemMayLackCommits"
"""Key in the table that a master sends to slaves: it may lack commits."""
_HINT = (
    "restore it from a backup, or delete it and its .bak: in a group without a registry the slave then hands its "
    "offsets over, in a group with one a member gets those of the master if another member is started first; otherwise "
    "consumer groups begin as new ones"
)
SEPARATOR = "@"
VERSION_STEP = 500
OFFSET_BYTES_MAX = 20 << 20
"""Memory budget of all offsets, as estimated by `_KEY_BYTES` and `_OFFSET_BYTES`; commits beyond it are refused."""
_KEY_BYTES = 400
"""Memory of a pair of topic and group, without the text of its key."""
_OFFSET_BYTES = 100
"""Memory of one queue of such a pair."""


class OffsetCorrection(NamedTuple):
    """A committed offset beyond the end of its queue, set to that end."""

    key: str
    """Topic and group: "topic@group"."""
    queue_id: int
    before: int
    now: int


class ConsumerOffsets:
    """Offsets by "topic@group" and queue id; saved periodically by the owner."""

    def __init__(
        self,
        saver: Saver,
        wall_ms: int,
        is_copy: Callable[[], bool] = lambda: False,
        *,
        has_log: bool = False,
    ) -> None:
        """Load the table.

        Args:
            saver: writes the file.
            wall_ms: the time, for the version of a new table.
            is_copy: returns whether a master's table is copied into this one from time to time. What consumers commit
                here then, while the master is down, is kept until the master has it.
            has_log: whether the log has messages, so that a missing file may have had content.

        Raises:
            StoreDamaged: the table cannot be read.
        """
        self._saver = saver
        self.version = DataVersion(wall_ms)
        self.table: dict[str, dict[int, int]] = {}
        self.resets: dict[str, dict[int, int]] = {}
        self._is_copy = is_copy
        self._committed_here: dict[str, dict[int, int]] = {}
        """Resets of a queue when a consumer committed its offset to this copy."""
        self._changed: dict[str, set[int]] | None = None
        """Queue ids by "topic@group" that changed since `changes` was called; None: changes are not recorded."""
        self.recent: dict[tuple[str, int], None] | None = None
        """("topic@group", queue id) of what was committed, the last one last; None: this is not recorded."""
        self.corrected: list[OffsetCorrection] = []
        """Changes made by the last call of `correct`."""
        self.pending = PendingResets()
        self.staged: dict[tuple[str, str], dict[int, int]] = {}
        """Offsets that count once the messages of this turn are in the log, by topic and group."""
        self.commits = 0
        """Number of offsets committed or reset since the start."""
        self._bytes: int | None = None
        """Estimated memory of `table`; None: must be counted again."""
        raw, origin = FILE.read(saver.disk)
        is_lost = origin is TableOrigin.BACKUP or (origin is TableOrigin.NONE and has_log)
        self.may_lack_commits = is_lost or raw.get(MAY_LACK_COMMITS) is True
        """Whether commits may be missing that a replica has: until a slave has handed its whole table over."""
        self._dirty = origin is not TableOrigin.FILE
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            self.table = parse_offsets(raw)
            self.resets = parse_offsets(raw, RESETS)
            self._committed_here = parse_offsets(raw, COMMITTED_HERE)
        self.is_unnoted = False
        """Whether changes could not be written to the journal; `note_all` tries again."""
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
        """Set an offset, also to a lower one, as RocketMQ does: consumers reset their offsets this way."""
        key = f"{topic}{SEPARATOR}{group}"
        queues = self.table.get(key)
        if queues is None:
            queues = self.table[key] = {}
            self._grow(_memory_of(key, 0))
        if queue_id not in queues:
            self._grow(_OFFSET_BYTES)
        queues[queue_id] = offset
        self._dirty = True
        if self._changed is not None:
            self._changed.setdefault(key, set()).add(queue_id)
        if self.recent is not None:
            self.recent.pop((key, queue_id), None)
            self.recent[key, queue_id] = None
        if self._is_copy():
            self._committed_here.setdefault(key, {})[queue_id] = self._resets_of(key, queue_id)
        self.commits += 1
        if self.commits % VERSION_STEP == 0:
            self.version.next(self.version.timestamp)

    def _grow(self, size: int) -> None:
        if self._bytes is not None:
            self._bytes += size

    def commit_of_member(self, topic: str, group: str, queue_id: int, offset: int, now_ms: int) -> bool:
        """Set an offset that a consumer commits.

        Returns False if it is ignored: the offset was reset and the consumer has not applied the reset yet.
        """
        if self.pending.ignores_commit(topic, group, queue_id, now_ms):
            return False
        self._unstage(topic, group, queue_id)
        self.commit(topic, group, queue_id, offset)
        return True

    def stage(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset that counts from `commit_staged` on, unless it is set or removed before."""
        self.staged.setdefault((topic, group), {})[queue_id] = offset

    def commit_staged(self) -> None:
        """Commit the staged offsets."""
        for (topic, group), offsets in self.staged.items():
            for queue_id, offset in offsets.items():
                self.commit(topic, group, queue_id, offset)
        self.staged.clear()

    def _unstage(self, topic: str, group: str, queue_id: int) -> None:
        self.staged.get((topic, group), {}).pop(queue_id, None)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset for an operator; a lower one takes precedence over higher ones when tables are merged."""
        self.pending.drop(topic, group, queue_id)
        self._unstage(topic, group, queue_id)
        before = self.get(topic, group, queue_id)
        if before is not None and offset < before:
            self.count_reset(topic, group, queue_id)
        self.commit(topic, group, queue_id, offset)

    def count_reset(self, topic: str, group: str, queue_id: int) -> None:
        """Record that consumers were asked to reset an offset: later commits take precedence when tables are merged."""
        queues = self.resets.setdefault(f"{topic}{SEPARATOR}{group}", {})
        queues[queue_id] = queues.get(queue_id, 0) + 1
        self._dirty = True

    def get(self, topic: str, group: str, queue_id: int) -> int | None:
        """Return the committed offset; None if there is none."""
        queues = self.table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def view(self, topic: str, group: str) -> dict[int, int]:
        """Return a group's offsets in a topic, by queue id, until the next change."""
        return self.table.get(f"{topic}{SEPARATOR}{group}") or {}

    def of_group(self, topic: str, group: str) -> dict[int, int]:
        """Return a copy of a group's offsets in a topic, by queue id."""
        return dict(self.table.get(f"{topic}{SEPARATOR}{group}") or {})

    def topics_of(self, group: str) -> list[str]:
        """Return the topics for which a group has offsets."""
        return [topic for topic, _, owner in (key.rpartition(SEPARATOR) for key in self.table) if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets for a topic."""
        return [group for name, _, group in (key.rpartition(SEPARATOR) for key in self.table) if name == topic]

    def remove_group(self, group: str) -> None:
        """Remove the offsets of a group."""
        for place in [place for place in self.staged if place[1] == group]:
            del self.staged[place]
        for topic in self.topics_of(group):
            self._remove(f"{topic}{SEPARATOR}{group}")

    def remove_topic(self, topic: str) -> None:
        """Remove the offsets of a topic."""
        for place in [place for place in self.staged if place[0] == topic]:
            del self.staged[place]
        for group in self.groups_of(topic):
            self._remove(f"{topic}{SEPARATOR}{group}")

    def _remove(self, key: str) -> None:
        topic, _, group = key.rpartition(SEPARATOR)
        self._bytes = None
        for queue_id in self.table.pop(key):
            self.pending.drop(topic, group, queue_id)
        self.resets.pop(key, None)
        self._committed_here.pop(key, None)
        if self._changed is not None:
            self._changed[key] = set()
        self._dirty = True

    def _resets_of(self, key: str, queue_id: int) -> int:
        return self.resets.get(key, {}).get(queue_id, 0)

    def copy_from_master(
        self, table: dict[str, dict[int, int]], resets: dict[str, dict[int, int]], version: DataVersion | None
    ) -> None:
        """Copy a master's table: its entries replace ours by "topic@group"; entries that it lacks are kept.

        So are offsets that consumers committed here, unless the master's is higher or was reset since; see `ahead`.
        """
        self._bytes = None
        for key, queues in table.items():
            own, here = self.table.get(key, {}), self._committed_here.get(key, {})
            found = dict(queues)
            for queue_id, count in list(here.items()):
                theirs = resets.get(key, {}).get(queue_id, 0), queues.get(queue_id, -1)
                if queue_id in own and (count, own[queue_id]) > theirs:
                    found[queue_id] = own[queue_id]
                else:
                    del here[queue_id]
            if not here:
                self._committed_here.pop(key, None)
            if own != found:
                self.table[key] = found
                self._dirty = True
        for key, counts in resets.items():
            for queue_id, count in counts.items():
                if count > self._resets_of(key, queue_id):
                    self.resets.setdefault(key, {})[queue_id] = count
        if version is not None:
            self.version = version

    def keep_all(self) -> None:
        """Keep all offsets of this copy, as if they were committed here: the master may have lost them."""
        for key, queues in self.table.items():
            self._committed_here[key] = {queue_id: self._resets_of(key, queue_id) for queue_id in queues}

    def forget_beyond(self, end_of: Callable[[str, int], int | None]) -> None:
        """Let the master's offsets replace those that were committed here beyond the end of their queue."""
        for key, queues in list(self._committed_here.items()):
            topic = key.rpartition(SEPARATOR)[0]
            own = self.table.get(key, {})
            for queue_id in [number for number in queues if own.get(number, 0) > (end_of(topic, number) or 0)]:
                del queues[queue_id]
            if not queues:
                del self._committed_here[key]

    def ahead(self) -> dict[str, Any]:
        """Return the offsets committed here that the master does not have yet, in the form for `merge_ahead`."""
        found: dict[str, dict[int, int]] = {}
        for key, queues in self._committed_here.items():
            own = self.table.get(key, {})
            found[key] = {queue_id: own[queue_id] for queue_id in queues if queue_id in own}
        return {"offsetTable": found, RESETS: self._committed_here} if found else {}

    def accepted(self, ahead: dict[str, Any]) -> None:
        """Note that the master has the offsets that `ahead` returned; later commits are still to be sent."""
        for key, queues in ahead["offsetTable"].items():
            here, own = self._committed_here.get(key, {}), self.table.get(key, {})
            for queue_id, offset in queues.items():
                if own.get(queue_id) == offset:
                    here.pop(queue_id, None)
            if not here:
                self._committed_here.pop(key, None)
        self._dirty = True

    def merge_ahead(self, raw: dict[str, Any], end_of: Callable[[str, int], int | None]) -> None:
        """Merge the offsets committed at a slave while this broker, its master, was down.

        Per queue the higher offset wins, or the one reset last. Offsets beyond the end of their queue, and what the
        memory budget has no room for, are left out.

        Args:
            raw: the table, see `ahead`.
            end_of: returns the end of a queue; None if the topic does not exist, whose offsets are left out.

        Raises:
            StoreDamaged: `raw` is not such a table.
        """
        resets = parse_offsets(raw, RESETS)
        self._dirty |= self.may_lack_commits
        self.may_lack_commits = False
        for key, queues in parse_offsets(raw).items():
            topic, _, group = key.rpartition(SEPARATOR)
            for queue_id, offset in queues.items():
                end = end_of(topic, queue_id)
                if end is None or offset > end:
                    continue
                own = self.get(topic, group, queue_id)
                count = resets.get(key, {}).get(queue_id, 0)
                is_ahead = (count, offset) > (self._resets_of(key, queue_id), -1 if own is None else own)
                if is_ahead and self.has_room(topic, group, queue_id):
                    self.commit(topic, group, queue_id, offset)
                    if count:
                        self.resets.setdefault(key, {})[queue_id] = count

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Begin or stop collecting changes."""
        self._changed = {} if is_wanted else None

    @property
    def has_changes(self) -> bool:
        """Whether collected changes were not taken yet."""
        return bool(self._changed)

    def changes(self) -> dict[str, Any]:
        """Return the changes since the last call, as `follow` takes them; an entry without queues was removed."""
        changed, self._changed = self._changed or {}, {}
        found = {
            key: {queue_id: offset for queue_id, offset in self.table.get(key, {}).items() if queue_id in queue_ids}
            for key, queue_ids in changed.items()
        }
        return {"offsetTable": found, RESETS: {key: self.resets[key] for key in found if key in self.resets}}

    def record_commits(self, *, of_all: bool) -> None:
        """Record which offsets are committed from now on, in `recent`; `of_all`: all that there are count as well."""
        self.recent = {(key, queue_id): None for key, queues in self.table.items() for queue_id in queues if of_all}

    def forget_commits(self) -> None:
        """Stop recording which offsets are committed."""
        self.recent = None

    def of_places(self, places: Iterable[tuple[str, int]]) -> dict[str, Any]:
        """Return the offsets of these queues of "topic@group", as `merge_positions` takes them."""
        found: dict[str, dict[int, int]] = {}
        resets: dict[str, dict[int, int]] = {}
        for key, queue_id in places:
            offset = self.table.get(key, {}).get(queue_id)
            if offset is not None:
                found.setdefault(key, {})[queue_id] = offset
                if count := self._resets_of(key, queue_id):
                    resets.setdefault(key, {})[queue_id] = count
        return {"offsetTable": found, RESETS: resets}

    def note(self, changes: bytes) -> None:
        """Append changes, JSON in the form that `follow` takes, to the journal: they survive a kill of the process."""
        self.is_unnoted = not self._journal.append(changes) or self.is_unnoted

    def note_all(self) -> None:
        """Append the complete table to the journal, after changes that could not be written."""
        self.is_unnoted = not self._journal.append(dumps_java(self.as_json() | {WHOLE: True}))

    def follow(self, raw: dict[str, Any], text: bytes) -> None:
        """Apply changes or a complete table that the master published: its offsets replace ours, higher or lower.

        `text`: the JSON that `raw` was decoded from.

        Raises:
            StoreDamaged: `raw` is not such a table.
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
        for own, name in ((self.table, "offsetTable"), (self.resets, RESETS)):
            for key, queues in parse_offsets(raw, name).items():
                own.setdefault(key, {}).update(queues)
                if not queues:
                    del own[key]
        self._dirty = True

    def merge_positions(self, raw: dict[str, Any]) -> None:
        """Merge another member's table into this one: per queue the higher offset wins, or the one reset last.

        The table is saved even if nothing changed, since an earlier merge may not have been saved.

        Raises:
            StoreDamaged: `raw` is not such a table.
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

    def correct(self, ends: Mapping[tuple[str, int], int]) -> list[OffsetCorrection]:
        """Set every offset beyond the end of its queue to that end.

        `ends`: queue ends by topic and queue id; a missing queue ends at 0. Returns the changed offsets.
        """
        self.corrected = corrected = []
        for key, queues in self.table.items():
            topic = key.rpartition(SEPARATOR)[0]
            for queue_id, offset in queues.items():
                end = ends.get((topic, queue_id), 0)
                if offset > end:
                    corrected.append(OffsetCorrection(key, queue_id, offset, end))
                    queues[queue_id] = end
        if corrected:
            self._dirty = True
            self.version.next(self.version.timestamp)
        return corrected

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of the file and of the replication protocol."""
        table = {"dataVersion": self.version.as_json(), "offsetTable": self.table}
        return table | {RESETS: self.resets} if self.resets else table

    def for_slaves(self) -> dict[str, Any]:
        """Return the table as a master sends it to slaves that ask for it, and as its file has it."""
        return self.as_json() | ({MAY_LACK_COMMITS: True} if self.may_lack_commits else {})

    def save(self, *, is_awaited: bool = False) -> None:
        """Schedule writing the file if something changed."""
        if self._dirty:
            self._saver.later(FILE, self._content, is_awaited=is_awaited, on_saved=self._journal.saved)
            self._dirty = False

    def _content(self) -> dict[str, Any]:
        next_file = self._journal.rotate()
        here = {COMMITTED_HERE: self._committed_here} if self._committed_here and self._is_copy() else {}
        return self.for_slaves() | here | ({NEXT_CHANGES: next_file} if next_file else {})


def _memory_of(key: str, queues: int) -> int:
    return _KEY_BYTES + 2 * len(key) + _OFFSET_BYTES * queues


def _check(raw: dict[str, Any]) -> None:
    require(raw, "offsetTable")
    parse_offsets(raw)


FILE = TableFile("consumerOffset.json", _check, "their messages are delivered again", _HINT)


def parse_offsets(raw: dict[str, Any], name: str = "offsetTable") -> dict[str, dict[int, int]]:
    """Decode the table with a name, whose queue ids may be unquoted in the JSON.

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


class MasterOffsets(NamedTuple):
    """A master's table, for `ConsumerOffsets.copy_from_master`."""

    table: dict[str, dict[int, int]]
    resets: dict[str, dict[int, int]]
    version: DataVersion | None
    may_lack_commits: bool
    """Whether it may lack commits that this slave has."""


def parse_offsets_body(body: bytes) -> MasterOffsets:
    """Decode a master's response.

    Raises:
        ProtocolError, StoreDamaged: the body cannot be decoded.
    """
    raw = loads(body, is_trusted=True)
    if not isinstance(raw, dict):
        raw = {}
    version = raw.get("dataVersion")
    return MasterOffsets(
        parse_offsets(raw),
        parse_offsets(raw, RESETS),
        DataVersion.from_json(version) if version else None,
        raw.get(MAY_LACK_COMMITS) is True,
    )
