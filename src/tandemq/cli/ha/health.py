"""Health of broker groups: the faults of each group, and a verdict in one line.

    no master                           no member is the active master
    two masters                         several members are
    master not usable                   it serves no reads or writes that the configuration permits, or its disk is full
    member away                         a configured or registered member does not answer
    slave not connected, not in sync    it does not copy, or lags too far behind
    registry                            a member cannot reach it, or reports a problem with it
    damage                              a member's log has damaged ranges

Source: docs/guides/operations.md, "Health for scripts".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tandemq.cli.support.members import FoundBroker, Group
from tandemq.cli.support.name_servers import Openings

NO_MASTER = "no master"
COLUMNS_MAX = 100
"""Maximum length of the verdict."""
OPEN_NAMED_MAX = 5
"""Maximum number of processes that a warning about access control names."""
_MAY_READ, _MAY_WRITE = ("FULL", "READ"), ("FULL", "WRITE")
Rows = Sequence[Mapping[str, Any]]
"""The rows of a group, as printed by `ha status --json`."""


def faults_of(group: Group, rows: Rows) -> list[str]:
    """Return the faults of a group, the worst first; empty if it is healthy."""
    return [
        *_master_faults(group, rows),
        *_away(rows),
        *_slave_faults(group, rows),
        *_registry_faults(group),
        *(f"the log of broker {row['id']} has {row['damaged']} damaged ranges" for row in rows if row["damaged"]),
    ]


def outages_of(group: Group, rows: Rows) -> list[str]:
    """Return the faults of a group because of which its clients are not served."""
    return [*_master_faults(group, rows)]


def open_members(group: Group) -> list[int]:
    """Return the ids of the members at which any client may do everything: `authenticationEnabled` is off."""
    return sorted(found.broker_id for found in group.members if (found.failover or {}).get("isOpen"))


def open_warnings(groups: Sequence[Group], name_servers: Mapping[str, Openings]) -> list[str]:
    """Return warnings about brokers, and name servers by address, at which access control or credentials are off."""
    free = _members(groups, "isOpen") + [address for address, found in name_servers.items() if found.is_open]
    metrics = _members(groups, "hasOpenMetrics")
    metrics += [address for address, found in name_servers.items() if found.has_open_metrics]
    warnings = []
    if free:
        warnings.append(
            f"any client may do everything at {_some(free)}: authenticationEnabled is off; see docs/reference/access.md"
        )
    if metrics:
        warnings.append(f"any client may read the metrics of {_some(metrics)}: there is no metricsCredentialsFile")
    return warnings


def _members(groups: Iterable[Group], flag: str) -> list[str]:
    return [
        f"{group.name}/{number}"
        for group in groups
        for number in sorted(found.broker_id for found in group.members if (found.failover or {}).get(flag))
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - OPEN_NAMED_MAX} more" if len(names) > OPEN_NAMED_MAX else ""
    return ", ".join(names[:OPEN_NAMED_MAX]) + more


def verdict(faults: Mapping[str, Sequence[str]], brokers: int) -> str:
    """Format a verdict: one line of at most COLUMNS_MAX characters.

    Args:
        faults: faults by group name; the name is "" for faults that concern no particular group.
        brokers: number of brokers in all groups.
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
        refusing = next((row["refusing"] for row in rows if row["id"] == found.broker_id), None)
        yield from _use_faults(found, refusing)


def _use_faults(master: FoundBroker, refusing: str | None) -> Iterable[str]:
    """Yield the operations that the master refuses to clients although the configuration permits them.

    Args:
        master: the master.
        refusing: why it refuses messages, such as a full disk; None if it does not.
    """
    failover = master.failover or {}
    if refusing is not None and (not master.has_registry or failover.get("mayWrite")):
        yield f"master {master.broker_id} takes no messages: {refusing}"
    if not master.has_registry:
        return
    members = failover.get("members", ())
    allowed = next((member["permission"] for member in members if member["brokerId"] == master.broker_id), "FULL")
    for key, words, what in (("mayWrite", _MAY_WRITE, "takes no messages"), ("mayRead", _MAY_READ, "cannot be read")):
        if not failover.get(key) and allowed in words:
            yield f"master {master.broker_id} {what}: {failover.get('why')}"


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
    first = max((f.failover or {} for f in group.members if f.has_registry), key=lambda s: int(s["epoch"]))
    in_sync = set(first["inSync"] or ())
    answering = {row["id"] for row in rows if row["state"] not in ("away", "no answer", "has no link to its master")}
    if first["mode"] is not None:
        configured = {member["brokerId"] for member in first["members"]}
        yield from (f"broker {broker_id} is not in sync" for broker_id in sorted((configured & answering) - in_sync))


def _named(link: Mapping[str, Any]) -> str:
    return str(link["address"] if link["slave"] is None else link["slave"])


def _registry_faults(group: Group) -> Iterable[str]:
    for found in group.members:
        failover = found.failover or {}
        for problem in filter(None, (failover.get("trouble"), registry_problem(failover))):
            yield f"broker {found.broker_id}: {problem}"


def registry_problem(failover: Mapping[str, Any]) -> str:
    """Return the problem between a member and its registry, "" if there is none."""
    if failover.get("isLonely"):
        return "isolated: it has lost the registry and its slaves, and serves no requests"
    if failover.get("registry") not in ("up", None):
        return f"the registry {failover.get('registryAddress')} does not answer"
    return ""
