"""Shards of a machine in `tandemq ha`: one row for all of them, and the groups whose roles change together.

Source: docs/guides/sizing.md, "Shards".
"""

from collections.abc import Callable, Sequence
from typing import Any

from tandemq.cli.support.members import Group, GroupSearch, groups_of
from tandemq.errors import ConfigError, LocalError

Rows = list[dict[str, Any]]


def machine_rows(rows: Rows) -> Rows:
    """Return rows of `ha status` with one for all shards of a machine, in place of its first shard."""
    machines: dict[tuple[str, int], Rows] = {}
    for row in rows:
        machines.setdefault((row["shardOf"] or row["broker"], row["id"]), []).append(row)
    return [_joined(shards) if len(shards) > 1 else shards[0] for shards in machines.values()]


def _joined(shards: Rows) -> dict[str, Any]:
    """Return one row: equal values once, numbers by what they mean, log offsets not at all."""
    first = shards[0]
    joined = {key: _value(key, [shard[key] for shard in shards]) for key in first}
    return joined | {"broker": f"{first['shardOf']}, {len(shards)} shards", "address": first["address"]}


def _value(key: str, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if key in _NUMBERS:
        return _NUMBERS[key](known) if known else None
    if key in ("logStart", "logEnd"):
        return None
    distinct = list(dict.fromkeys(map(str, known)))
    return ", ".join(distinct) if len(distinct) > 1 else known[0] if known else None


_NUMBERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "lagBytes": sum,
    "refused": sum,
    "damaged": sum,
    "repaired": sum,
    "slavesInSync": min,
    "lastReadS": max,
    "lastWriteS": max,
    "verifiedH": max,
}


def roles_texts(groups: Sequence[Group]) -> list[str]:
    """Return, for each machine whose roles move together (`shardRolesTogether`), which broker has its masters."""
    machines: dict[str, list[Group]] = {}
    for group in groups:
        if any((found.failover or {}).get("shardRolesTogether") for found in group.members):
            machines.setdefault(group.shard_of, []).append(group)
    return [f"{name}: roles of its shards move together; {_masters(shards)}" for name, shards in machines.items()]


def _masters(shards: Sequence[Group]) -> str:
    places: dict[int | None, list[str]] = {}
    for group in shards:
        places.setdefault(None if group.master is None else group.master.broker_id, []).append(group.name)
    if len(places) == 1 and None not in places:
        return f"broker {next(iter(places))} has all masters"
    texts = [
        f"{'no broker' if number is None else f'broker {number}'} has {', '.join(names)}"
        for number, names in places.items()
    ]
    return f"they are apart: {'; '.join(texts)} (the log of the machine that took over says why)"


def with_other_shards(group: Group, search: GroupSearch) -> list[Group]:
    """Return the groups of all shards of a group's machines.

    Raises:
        ConfigError: the group has none.
        LocalError: only this one is found.
        TandemError: see `groups_of`.
    """
    if not group.shard_of:
        raise ConfigError(f"group {group.name} has no shards", hint="leave out --shards")
    found = [other for other in groups_of(search.name_servers, search.registry) if other.shard_of == group.shard_of]
    if len(found) < 2:
        raise LocalError(f"no other shard of {group.shard_of} is found", hint="tandemq ha status --shards shows them")
    return found
