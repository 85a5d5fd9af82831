"""Whether broker groups are as they should be: the faults of each, and all of it in one line.

    no master                       no member serves as one
    two masters                     two members do
    master not usable               it may not be read, or not be written, though the configuration lets it
    member away                     a configured or registered member does not answer
    slave not linked, not in sync   it does not copy, or lags too far to count
    registry                        a member does not reach it, or finds something wrong in it
    damage                          a member's log has damaged ranges

Source: docs/guides/operations.md, "Health for scripts".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tandemq.cli.support.members import Found, Group

NO_MASTER = "no master"
COLUMNS_MAX = 100
"""Of the verdict."""
_MAY_READ, _MAY_WRITE = ("FULL", "READ"), ("FULL", "WRITE")
Rows = Sequence[Mapping[str, Any]]
"""The rows of a group, as `ha status --json` has them."""


def faults_of(group: Group, rows: Rows) -> list[str]:
    """What is wrong with a group, the worst first; empty if nothing is."""
    return [
        *_master_faults(group, rows),
        *_away(rows),
        *_slave_faults(group, rows),
        *_registry_faults(group),
        *(f"the log of broker {row['id']} has {row['damaged']} damaged ranges" for row in rows if row["damaged"]),
    ]


def verdict(faults: Mapping[str, Sequence[str]], brokers: int) -> str:
    """One line of at most COLUMNS_MAX characters.

    Args:
        faults: by group; by "" those of none.
        brokers: how many there are in all groups.
    """
    found = [f"{name}: {fault}" if name else fault for name, of_group in faults.items() for fault in of_group]
    if not found:
        return f"HEALTHY: {_counted(len(faults), 'group')}, {_counted(brokers, 'broker')}"
    found.sort(key=lambda text: not text.endswith(NO_MASTER))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return _cut(f"UNHEALTHY: {found[0]}", COLUMNS_MAX - len(more)) + more


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _cut(text: str, columns: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= columns else text[: columns - 1] + "…"


def _master_faults(group: Group, rows: Rows) -> Iterable[str]:
    masters = [found for found in group.members if found.is_master]
    is_java = any(row["id"] == 0 and row["role"] == "MASTER" and row["state"] != "no answer" for row in rows)
    if not masters and not is_java:
        yield NO_MASTER
    if len(masters) > 1:
        yield f"{len(masters)} masters: brokers {', '.join(str(found.broker_id) for found in masters)}"
    for found in masters:
        yield from _use_faults(found)


def _use_faults(master: Found) -> Iterable[str]:
    """What clients may not do at a master that the configuration allows."""
    standing = master.standing or {}
    if not master.has_registry:
        return
    members = standing.get("members", ())
    allowed = next((one["permission"] for one in members if one["brokerId"] == master.broker_id), "FULL")
    for key, words, what in (("mayWrite", _MAY_WRITE, "takes no messages"), ("mayRead", _MAY_READ, "cannot be read")):
        if not standing.get(key) and allowed in words:
            yield f"master {master.broker_id} {what}: {standing.get('why')}"


def _away(rows: Rows) -> Iterable[str]:
    return (f"broker {row['id']} is away" for row in rows if row["state"] in ("away", "no answer"))


def _slave_faults(group: Group, rows: Rows) -> Iterable[str]:
    for row in rows:
        if row["state"] == "has no link to its master":
            yield f"broker {row['id']} has no link to its master"
    if not group.has_registry:
        for row in rows:
            lagging = [link for link in row["slaves"] if not link["inSync"]]
            yield from (f"slave {_named(link)} is {link['behindBytes']} bytes behind" for link in lagging)
            if row["role"] == "SYNC_MASTER" and not row["slavesInSync"]:
                yield f"SYNC_MASTER {row['id']} has no slave in sync"
        return
    first = max((f.standing or {} for f in group.members if f.has_registry), key=lambda s: int(s["epoch"]))
    in_sync = set(first["inSync"] or ())
    answering = {row["id"] for row in rows if row["state"] not in ("away", "no answer", "has no link to its master")}
    if first["mode"] is not None:
        configured = {one["brokerId"] for one in first["members"]}
        yield from (f"broker {one} is not in sync" for one in sorted((configured & answering) - in_sync))


def _named(link: Mapping[str, Any]) -> str:
    return str(link["address"] if link["slave"] is None else link["slave"])


def _registry_faults(group: Group) -> Iterable[str]:
    for found in group.members:
        standing = found.standing or {}
        for trouble in filter(None, (standing.get("trouble"), registry_trouble(standing))):
            yield f"broker {found.broker_id}: {trouble}"


def registry_trouble(standing: Mapping[str, Any]) -> str:
    """What is wrong between a member and its registry, "" if nothing is."""
    if standing.get("isLonely"):
        return "lonely: it has lost the registry and its slaves, and serves nobody"
    if standing.get("registry") not in ("up", None):
        return f"the registry {standing.get('registryAddress')} does not answer"
    return ""
