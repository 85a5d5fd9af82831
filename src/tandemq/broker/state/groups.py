"""Configuration of the consumer groups; their connected members are in `clients`.

Source: docs/internals/storage.md, "subscriptionGroup.json"; RocketMQ SubscriptionGroupManager.
"""

from collections.abc import Iterable
from typing import Any

from tandemq.broker.state.forbidden import KEY, ForbiddenTopics, parse_forbidden
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.table_journal import REMOVED, removed_names
from tandemq.codec.remoting.bodies import convert
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.topic import group_name_error, is_system_group
from tandemq.storage.json_tables import DataVersion, TableFile, require

SYSTEM = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class Groups:
    """All groups. Each change is saved in a journal, and later in subscriptionGroup.json."""

    def __init__(self, saver: Saver, config: BrokerConfig, wall_ms: int) -> None:
        """Load the table and add the system groups.

        Raises:
            StoreDamaged: the table cannot be read.
        """
        self._saver = saver
        self.adopt_config(config)
        self.version = DataVersion(wall_ms)
        self.table: dict[str, SubscriptionGroupConfig] = {}
        self.forbidden = ForbiddenTopics()
        self._changed_names: dict[str, None] | None = None
        """Names of groups that changed since the table was last published; None: changes are not recorded."""
        raw = FILE.load(saver.disk)
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            self.table = parse_groups(raw)
            self.forbidden.replace(parse_forbidden(raw))
        journal = saver.keep_journal(FILE, self.as_json, self._changes)
        self.version = journal.replay(self.version, wall_ms, self._apply, has_table=bool(raw))
        for name in SYSTEM:
            self.table.setdefault(name, SubscriptionGroupConfig(name))

    def _apply(self, change: dict[str, Any], adds_only: bool) -> None:
        """Apply a change that the table on the disk lacks."""
        table, removed = parse_groups(change), removed_names(change)
        if not adds_only:
            self.forbidden.take(parse_forbidden(change))
        for name in removed:
            self.table.pop(name, None)
        for name, config in table.items():
            if not (adds_only and name in self.table):
                self.table[name] = config

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self._auto_create = config.auto_create_group
        self._groups_max = config.groups_max

    def may_be(self, name: str) -> bool:
        """Return whether a group exists, or would be created on first use."""
        if name in self.table:
            return True
        return (self._auto_create or is_system_group(name)) and group_name_error(name) is None

    def check_room(self, names: Iterable[str], *, on_use: bool = True) -> None:
        """Refuse to create more groups than the setting allows, before any of them is created.

        `on_use`: they are created because they are used, if that may be.

        Raises:
            ProtocolError: the limit is exceeded; the text names the first group beyond it.
        """
        new = [name for name in dict.fromkeys(names) if name not in self.table]
        missing = [name for name in new if not on_use or self.may_be(name)]
        if len(self.table) + len(missing) > self._groups_max:
            self._refuse(missing[max(0, self._groups_max - len(self.table))])

    def _refuse(self, name: str) -> None:
        raise ProtocolError(
            f"the group {name[:64]} is not created: there are {len(self.table)} groups, "
            f"maxSubscriptionGroups is {self._groups_max}"
        )

    def find(self, name: str, wall_ms: int) -> SubscriptionGroupConfig | None:
        """Return a group, created if groups are created on first use and the name is valid; else None.

        Raises:
            ProtocolError: there are `maxSubscriptionGroups` already.
        """
        found = self.table.get(name)
        if found is None and self.may_be(name):
            found = SubscriptionGroupConfig(name)
            self.put(found, wall_ms)
        return found

    def put(self, config: SubscriptionGroupConfig, wall_ms: int) -> None:
        """Create or change a group.

        Raises:
            ProtocolError: there are `maxSubscriptionGroups` already.
        """
        if config.group_name not in self.table and len(self.table) >= self._groups_max:
            self._refuse(config.group_name)
        self.table[config.group_name] = config
        self._touch(config.group_name, wall_ms)

    def _touch(self, name: str, wall_ms: int) -> None:
        if self._changed_names is not None:
            self._changed_names[name] = None
        self.version.next(wall_ms)
        self._saver.change(FILE, (name,))

    def remove(self, name: str, wall_ms: int) -> bool:
        """Delete a group's configuration and its forbidden topics; False if there is no such group."""
        if self.table.pop(name, None) is None:
            return False
        self.forbidden.take({name: {}})
        self._touch(name, wall_ms)
        return True

    def forbid(self, group: str, topic: str, wall_ms: int, *, readable: bool) -> None:
        """Forbid or allow a group to read a topic.

        Raises:
            ProtocolError: there are too many such entries.
        """
        if self.forbidden.set(group, topic, readable=readable):
            self._touch(group, wall_ms)

    def replace(self, raw: dict[str, Any], version: DataVersion) -> None:
        """Replace the table by that of another broker.

        Raises:
            StoreDamaged: the other table cannot be read.
        """
        table, forbidden = parse_groups(raw), parse_forbidden(raw)
        self._follow(
            table, [name for name in self.table if name not in table], version, self.forbidden.replace(forbidden)
        )
        self.save()

    def follow(self, raw: dict[str, Any], version: DataVersion) -> None:
        """Apply changes of another broker's table.

        Raises:
            StoreDamaged: the changes cannot be read.
        """
        changed, forbidden = parse_groups(raw), parse_forbidden(raw)
        self.forbidden.take(forbidden)
        self._follow(changed, removed_names(raw), version, list(forbidden))

    def _follow(
        self, changed: dict[str, SubscriptionGroupConfig], removed: list[str], version: DataVersion, others: list[str]
    ) -> None:
        names = [*removed, *others, *(name for name, config in changed.items() if self.table.get(name) != config)]
        for name in removed:
            self.table.pop(name, None)
        self.table.update(changed)
        self.version = version
        self._saver.change(FILE, names)

    def collect_changes(self, *, is_wanted: bool) -> None:
        """Begin or stop collecting the names of changed groups."""
        self._changed_names = {} if is_wanted else None

    def take_changed_names(self) -> dict[str, None]:
        """Return the names of the groups that changed since the last call."""
        names, self._changed_names = self._changed_names or {}, {}
        return names

    def as_json(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the table, or the entries with these names, in the form of the file and of the replication protocol.

        To be encoded by `dumps`.
        """
        names = None if names is None else list(names)
        wanted = self.table if names is None else [name for name in names if name in self.table]
        return {
            "dataVersion": self.version.as_json(),
            KEY: self.forbidden.as_json(names),
            "subscriptionGroupTable": {name: self.table[name] for name in wanted},
        }

    def _changes(self, names: Iterable[str]) -> dict[str, Any]:
        """Return a line of the journal."""
        names = list(names)
        return self.as_json(names) | {REMOVED: [name for name in names if name not in self.table]}

    def save(self) -> None:
        """Schedule writing the file."""
        self._saver.later(FILE, self.as_json)


def _check(raw: dict[str, Any]) -> None:
    require(raw, "subscriptionGroupTable")
    parse_groups(raw)
    parse_forbidden(raw)


FILE = TableFile("subscriptionGroup.json", _check)


def parse_groups(raw: dict[str, Any]) -> dict[str, SubscriptionGroupConfig]:
    """Decode group configurations from a table in the form of the file and of the replication protocol.

    Raises:
        StoreDamaged: an entry is not a group configuration.
    """
    try:
        return {
            name: convert({**value, "groupName": value.get("groupName") or name}, SubscriptionGroupConfig, name)
            for name, value in (raw.get("subscriptionGroupTable") or {}).items()
            if value is not None
        }
    except (ProtocolError, AttributeError, TypeError) as error:
        raise StoreDamaged(f"group table: {error}") from error
