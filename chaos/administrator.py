"""Changes of the group's configuration while it runs, as `tandemq ha config set` and `apply` make them.

The change is made in a database of the run, which refuses what contradicts itself, and carried to the registry, past
all proxies, by the task that `apply` runs. What the group forbids as it stands is refused, and taken back here.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random

from tandemq.coordination.registry.records import BrokerPermission, GroupConfig, Mode, contradictions, with_member
from tandemq.errors import LocalError
from tandemq.groupdb.database import GroupDatabase
from tandemq.groupdb.publisher import Carried, carry_group
from tandemq.registry import parse_address
from tandemq.run.groups import CLUSTER, new_group
from tandemq.run.registry_session import RegistryClient

_WEIGHTS = (0, 50, 10_000)


class Administrator:
    """Keeps the group's configuration."""

    def __init__(
        self, directory: Path, registry: str, group: str, mode: Mode, members: int, secret_file: str | Path = ""
    ) -> None:
        """The group is in the registry as `run.groups` configures it; now it is in the database too."""
        self._database = GroupDatabase(f"sqlite:///{directory / 'groups.db'}")
        self._registry = parse_address(registry)
        self._secret_file = secret_file
        self._group = group
        self.first = self.config = new_group(mode, members)
        self._store(self.first)

    def close(self) -> None:
        """Give the database back."""
        self._database.close()

    def _store(self, config: GroupConfig) -> None:
        self._database.change(CLUSTER, self._group, lambda _: config, wall_ms=time.time_ns() // 1_000_000)

    def change(self, config: GroupConfig) -> str:
        """Let the group become this; "", or why it is refused.

        Raises:
            ConfigError: it contradicts itself.
            RemoteError, NetworkError, OutcomeUnknown: registry or database could not be used.
        """
        self._store(config)
        with RegistryClient(self._registry, secret_file=self._secret_file) as registry:
            done = carry_group(self._database, registry.do, CLUSTER, self._group)
        if done is None:
            raise LocalError(f"the database has forgotten group {self._group}")
        if done.what is Carried.REFUSED:
            self._store(self.config)
            return done.reason
        self.config = config
        return ""

    def draw(self, dice: Random, broker_id: int) -> tuple[str, GroupConfig]:
        """Something to change about a member, in words, and the configuration then; never a contradictory one."""
        member = next(one for one in self.first.members if one.broker_id == broker_id)
        others = tuple(one for one in self.first.members if one is not member)
        weight = dice.choice(_WEIGHTS)
        found = {
            "dropped": replace(self.first, members=others),
            f"weight {weight}": with_member(self.first, replace(member, weight=weight)),
        }
        permission = dice.choice([one for one in BrokerPermission if one is not member.permission])
        found[f"permission {permission.value}"] = with_member(self.first, replace(member, permission=permission))
        sound = {what: config for what, config in found.items() if not list(contradictions(config))}
        what = dice.choice(sorted(sound))
        return what, sound[what]
