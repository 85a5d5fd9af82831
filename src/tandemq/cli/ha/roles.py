"""`tandemq ha switch`, `force-master` and `history`: change the roles of a group with a registry, show past changes.

A command is sent to the broker that executes it (the present master, or the future one), which answers when it is done.
Commands are not retried automatically; sending one twice is harmless.
Source: docs/internals/failover.md, "Switch"; docs/reference/requests.md, "Groups with a registry".
"""

import time
from collections.abc import Iterable
from typing import Any

import click

from tandemq.cli.ha.shards import with_other_shards
from tandemq.cli.support.members import (
    FoundBroker,
    Group,
    GroupSearch,
    ask_broker,
    ask_json,
    required_at,
    search_options,
)
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.output import json_option, show_json, show_rows, table_options, time_text
from tandemq.errors import ConfigError, LocalError, NetworkError, OutcomeUnknown, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

COMMAND_SECONDS = 20.0
"""Request timeout."""
FORCE_SECONDS = 120.0
"""The same for a forced takeover: the broker gives up after 15 s, with the longest session and most checks 101 s."""
SERVE_SECONDS = 5.0
POLL_SECONDS = 0.02
WAIT_POLL_SECONDS = 0.5
"""Pause before a refused switch is repeated."""

broker_option = click.option(
    "--broker", shell_complete=complete_brokers, help="Broker group; not needed with --address."
)


def _group(name: str | None, search: GroupSearch) -> Group:
    """Return the group whose roles to change.

    Raises:
        LocalError: the group is unknown, or no broker of it answers.
        ConfigError: no group or several groups are named, or its roles are fixed by settings.
    """
    if name is None and not search.addresses:
        raise ConfigError("no group is given", hint="name it with --broker, or one of its brokers with --address")
    groups = search.groups(name)
    if len(groups) > 1:
        names = ", ".join(group.name for group in groups)
        raise ConfigError(f"these addresses belong to several groups: {names}", hint="name one of them with --broker")
    return _with_roles(groups[0])


def _with_roles(group: Group) -> Group:
    """Return a group whose roles can change. Raises as `_group`."""
    name = group.name
    if not group.has_registry:
        if all(found.failover is None for found in group.members):
            raise LocalError(f"no broker of group {name} answers", hint="are they running?")
        raise ConfigError(
            f"the roles of group {name} are fixed by its brokers' settings: it has no registry",
            hint="set registryAddr and configure the group: docs/guides/failover.md",
        )
    return group


def _order(member: FoundBroker, code: RequestCode, *, seconds: float = COMMAND_SECONDS, **fields: str) -> str:
    """Send a command to a broker and return the text of its result, within a time.

    Raises:
        RemoteError: the command was refused or given up; the text says why.
        OutcomeUnknown: the broker did not answer.
    """
    try:
        answer = ask_broker(member.address, code, fields, seconds=seconds)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"the outcome at broker {member.broker_id} is unknown: {error}", hint="tandemq ha status shows it"
        ) from error
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(answer.remark or f"refused with code {answer.code}", code=answer.code)
    return str(answer.remark or "")


@click.command()
@broker_option
@click.option("--to", "target", type=int, help="Broker id of the new master.")
@click.option(
    "--away",
    is_flag=True,
    help="Instead of --to: from the broker of --address to another member in sync, the highest priority first. Does "
    "nothing if that broker is not the master, so that every member can run it before it stops.",
)
@click.option("--shards", is_flag=True, help="Also in the groups of all other shards of these machines.")
@click.option(
    "--wait",
    "wait_s",
    default=0.0,
    type=click.FloatRange(0, 3_600),
    help="For how many seconds to repeat what is refused: no other member is in sync, the registry does not answer.",
)
@search_options
@json_option
def switch(
    broker: str | None, target: int | None, away: bool, shards: bool, wait_s: float, search: GroupSearch, as_json: bool
) -> None:
    """Make another member of a group the master, and wait until it accepts messages.

    No message is lost, and sends that clients retry succeed. Refused, with the reason, while the target is not in sync.
    In slave-consume the configured master returns at the next start: change it with ha config, too.

    With --shards nothing is done if the target is not in sync in one of the groups.
    """
    if away == (target is not None):
        raise ConfigError("either --to or --away is needed", hint="--to ID names the new master")
    until = time.monotonic() + wait_s
    outcomes: list[dict[str, Any]] = []
    while not outcomes:
        leaving = _leaving(broker, search) if away else None
        try:
            outcomes = _switch(broker, target, leaving, search, shards=shards)
        except (LocalError, RemoteError, NetworkError) as error:
            is_final = isinstance(error, ConfigError) or getattr(error, "code", None) == ResponseCode.NO_PERMISSION
            if is_final or time.monotonic() + WAIT_POLL_SECONDS >= until:
                raise
            time.sleep(WAIT_POLL_SECONDS)
    if as_json:
        show_json(outcomes if shards else outcomes[0])
    else:
        click.echo("\n".join(map(_switch_text, outcomes)))


def _switch(
    broker: str | None, target: int | None, leaving: FoundBroker | None, search: GroupSearch, *, shards: bool
) -> list[dict[str, Any]]:
    """Move the mastership to a member, or away from one; return the outcome of each group as --json shows it.

    Raises:
        TandemError: it was refused, or the outcome is unknown.
    """
    if leaving is not None and not shards and not leaving.is_master and leaving.has_registry:
        return [_nothing(leaving.broker, leaving.broker_id)]
    group = _group(broker, search)
    groups = with_other_shards(group, search) if shards else [group]
    if shards and target is not None:
        for other in groups:
            _check_target(other, target)
    return [_switched(other, target, None if leaving is None else leaving.broker_id) for other in groups]


def _nothing(group: str, leaving: int) -> dict[str, Any]:
    return {"seconds": 0.0, "text": "is not the master", "broker": group, "from": leaving, "to": None}


def _check_target(group: Group, target: int) -> None:
    """Check that a shard's group can have this master now.

    Raises:
        ConfigError: its roles are fixed by settings.
        LocalError: it has no master.
        RemoteError: the target is not in sync.
    """
    master = _master(_with_roles(group))
    if target not in (master.failover or {}).get("inSync", ()):
        raise RemoteError(f"{group.name}: broker {target} is not in sync; no group is switched")


def _master(group: Group) -> FoundBroker:
    """Return the active master of a group. Raises LocalError if it has none."""
    if group.master is None:
        raise LocalError(
            f"group {group.name} has no active master",
            hint="tandemq ha status shows why; tandemq ha force-master replaces a master that is lost for good",
        )
    return group.master


def _switched(group: Group, target: int | None, leaving: int | None) -> dict[str, Any]:
    """Switch the master of a group, and return the outcome.

    Args:
        group: the group.
        target: id of the new master; None: another than `leaving`.
        leaving: id of the member that is to be the master no longer.
    """
    if leaving is not None and (group.master is None or group.master.broker_id != leaving):
        return _nothing(group.name, leaving)
    master = _master(group)
    began = time.monotonic()
    if target is None:
        target, text = _switch_away(master)
    else:
        text = _order(master, RequestCode.TANDEM_SWITCH, target=str(target))
    serves = _serves(group, target) if target != master.broker_id else True
    seconds = round(time.monotonic() - began, 3)
    if not serves:
        raise LocalError(f"{text}; it does not accept messages yet", hint="tandemq ha status shows why")
    return {"broker": group.name, "from": master.broker_id, "to": target, "seconds": seconds, "text": text}


def _switch_text(outcome: dict[str, Any]) -> str:
    if outcome["to"] is None:
        return f"{outcome['broker']}: broker {outcome['from']} {outcome['text']}; nothing is done"
    after = f"it accepts messages {outcome['seconds']:.2f} s after the command"
    return f"{outcome['broker']}: {outcome['text']}; {after}"


def _leaving(broker: str | None, search: GroupSearch) -> FoundBroker:
    """Return the broker that is to be no master any more. Raises as `required_at`."""
    if len(search.addresses) != 1:
        raise ConfigError("--away needs one --address", hint="the broker that is about to stop, HOST:PORT")
    return required_at(search.addresses, broker)[0]


def _switch_away(master: FoundBroker) -> tuple[int, str]:
    """Order the master to hand over to another member in sync; return the member's id and the master's answer.

    Raises:
        RemoteError: no member takes over; the text has each one's reason.
        OutcomeUnknown: the master did not answer.
    """
    status = master.failover or {}
    priorities = {member["brokerId"]: member["priority"] for member in status.get("members", ())}
    others = [broker_id for broker_id in status.get("inSync", ()) if broker_id != master.broker_id]
    reasons = []
    for broker_id in sorted(others, key=lambda broker_id: (-priorities.get(broker_id, 0), broker_id)):
        try:
            return broker_id, _order(master, RequestCode.TANDEM_SWITCH, target=str(broker_id))
        except RemoteError as error:
            reasons.append(str(error.args[0]))
    raise RemoteError("; ".join(reasons) or f"no other member of group {master.broker} is in sync")


def _serves(group: Group, target: int) -> bool:
    """Wait until the new master accepts messages; return whether it does within SERVE_SECONDS."""
    address = group.member(target).address
    until = time.monotonic() + SERVE_SECONDS
    while time.monotonic() < until:
        try:
            if ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS).get("mayWrite"):
                return True
        except (NetworkError, RemoteError):
            pass
        time.sleep(POLL_SECONDS)
    return False


@click.command("force-master")
@broker_option
@click.option("--id", "broker_id", required=True, type=int, help="Broker id of the member that is to serve.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@search_options
@json_option
def force_master(broker: str | None, broker_id: int, yes: bool, search: GroupSearch, as_json: bool) -> None:
    """Force a member to serve in place of one that is lost for good, although messages may be lost.

    Also decides which member's log counts when the registry has an older record than members have seen.

    First shows what may be lost or delivered twice. Make sure that the other broker is stopped, not only unreachable.
    """
    group = _group(broker, search)
    member = group.member(broker_id)
    price = _order(member, RequestCode.TANDEM_FORCE_MASTER, preview="true")
    if not yes:
        click.echo(f"{group.name}, broker {broker_id}: {price}", err=True)
        click.confirm("Continue?", abort=True, err=True)
    began = time.monotonic()
    text = _order(member, RequestCode.TANDEM_FORCE_MASTER, seconds=FORCE_SECONDS)
    seconds = round(time.monotonic() - began, 3)
    outcome = {"broker": group.name, "id": broker_id, "price": price, "seconds": seconds, "text": text}
    if as_json:
        show_json(outcome)
        return
    if yes:
        click.echo(price)
    click.echo(f"{group.name}: {text}; after {seconds:.1f} s")


@click.command()
@broker_option
@click.option("--count", type=click.IntRange(1), help="Only the last N entries.")
@search_options
@table_options
def history(broker: str | None, count: int | None, search: GroupSearch, as_json: bool) -> None:
    """Show past changes of a group's roles as recorded by its brokers: oldest first, equal entries merged."""
    group = _group(broker, search)
    entries = merged(
        (found.broker_id, found.failover["timeline"])
        for found in group.members
        if found.has_registry and found.failover is not None
    )
    if count is not None:
        entries = entries[-count:]
    for broker_id in group.missing:
        click.echo(f"tandemq: broker {broker_id} does not answer: its entries are missing", err=True)
    if as_json:
        show_json(entries)
        return
    rows = [
        {
            "time": time_text(entry["ms"]),
            "brokers": ", ".join(map(str, entry["brokers"])),
            "epoch": entry["epoch"],
            "what": entry["text"],
        }
        for entry in entries
    ]
    show_rows(rows, as_json=False, empty="no entries yet")


def merged(timelines: Iterable[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Merge the timelines of several brokers, sorted by calendar time and epoch; each broker's order is kept."""
    entries: dict[tuple[int, int, str], dict[str, Any]] = {}
    for broker_id, timeline in timelines:
        for entry in timeline:
            key = (entry["ms"], entry["epoch"], entry["text"])
            brokers = entries.setdefault(key, {**entry, "brokers": []})["brokers"]
            if broker_id not in brokers:
                brokers.append(broker_id)
    return sorted(entries.values(), key=lambda entry: (entry["ms"], entry["epoch"]))
