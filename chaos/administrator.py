"""Configuration changes of a running group, made as `tandemq ha config set` and `apply` make them.

A change is stored in the run's own database, which rejects contradictions, and written to the registry, past all
proxies, by the task that `apply` runs. A change that the group's state forbids is refused, and reverted in the
database.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from random import Random

from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    Mode,
    Role,
    contradictions,
    with_member,
)
from tandemq.errors import LocalError
from tandemq.groupdb.database import GroupDatabase
from tandemq.groupdb.publisher import ApplyOutcome, apply_group
from tandemq.registry import parse_address
from tandemq.run.groups import CLUSTER, new_group
from tandemq.run.registry_session import RegistryClient

_WEIGHTS = (0, 50, 10_000)


class Administrator:
    """Holds and changes the group's configuration."""

    def __init__(
        self, directory: Path, registry: str, group: str, mode: Mode, members: int, secret_file: str | Path = ""
    ) -> None:
        """Store the configuration that `run.groups` wrote to the registry in the database too."""
        self._database = GroupDatabase(f"sqlite:///{directory / 'groups.db'}")
        self._registry = parse_address(registry)
        self._secret_file = secret_file
        self._group = group
        self.first = self.config = new_group(mode, members)
        self._store(self.first)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def _store(self, config: GroupConfig) -> None:
        self._database.change(CLUSTER, self._group, lambda _: config, wall_ms=time.time_ns() // 1_000_000)

    def change(self, config: GroupConfig) -> str:
        """Change the configuration; return "", or the reason of the refusal.

        Raises:
            ConfigError: it contradicts itself.
            RemoteError, NetworkError, OutcomeUnknown: the registry or the database could not be used.
        """
        self._store(config)
        with RegistryClient(self._registry, secret_file=self._secret_file) as registry:
            done = apply_group(self._database, registry.do, CLUSTER, self._group, time.time_ns() // 1_000_000)
        if done is None:
            raise LocalError(f"the database has forgotten group {self._group}")
        if done.what is ApplyOutcome.REFUSED:
            self._store(self.config)
            return done.reason
        self.config = config
        return ""

    def draw(self, random: Random, broker_id: int) -> tuple[str, GroupConfig]:
        """Return a random change of a member as (description, configuration); never a contradictory one."""
        member = next(one for one in self.first.members if one.broker_id == broker_id)
        others = tuple(one for one in self.first.members if one is not member)
        weight = random.choice(_WEIGHTS)
        found = {
            "dropped": replace(self.first, members=others),
            f"weight {weight}": with_member(self.first, replace(member, weight=weight)),
        }
        permission = random.choice([one for one in BrokerPermission if one is not member.permission])
        found[f"permission {permission.value}"] = with_member(self.first, replace(member, permission=permission))
        if self.first.mode is Mode.SLAVE_CONSUME:
            roles = {one.broker_id: Role.MASTER if one is member else Role.SLAVE for one in self.first.members}
            members = tuple(replace(one, role=roles[one.broker_id]) for one in self.first.members)
            found["master"] = replace(self.first, members=members)
        sound = {what: config for what, config in found.items() if not list(contradictions(config))}
        what = random.choice(sorted(sound))
        return what, sound[what]
