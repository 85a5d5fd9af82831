"""`tandemq ha switch`, `force-master` and `history`: moving the roles of a group with a registry, and what happened.

A command is given to the broker that carries it out, and waited for: to the present master, or to the one that is to
be it. Nothing is repeated by itself; asking twice is harmless.
Source: docs/internals/failover.md, "Switch"; docs/reference/requests.md, "Groups with a registry".
"""

import time
from collections.abc import Iterable
from typing import Any

import click

from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.members import (
    Found,
    Group,
    address_option,
    ask_broker,
    ask_json,
    groups_of,
    registry_option,
    required_at,
)
from tandemq.cli.support.output import json_option, show_json, show_rows, time_text
from tandemq.errors import ConfigError, LocalError, NetworkError, OutcomeUnknown, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

COMMAND_SECONDS = 20.0
"""A forced take-over is given up after 15 s."""
SERVE_SECONDS = 5.0
LOOK_SECONDS = 0.02

broker_option = click.option("--broker", help="The broker group; not needed with --address.")


def _group(name: str | None, addresses: tuple[str, ...], name_servers: str, registry: str | None) -> Group:
    """The group, if roles can be moved in it.

    Raises:
        LocalError: it is unknown, or nobody in it answers.
        ConfigError: it is not said, or not one; or its roles are fixed by settings.
    """
    if name is None and not addresses:
        raise ConfigError("which group is not said", hint="name it with --broker, or one of its brokers with --address")
    groups = groups_of(name_servers, registry, name, required_at(addresses, name))
    if len(groups) > 1:
        names = ", ".join(group.name for group in groups)
        raise ConfigError(f"these addresses are of several groups: {names}", hint="name one of them with --broker")
    group, name = groups[0], groups[0].name
    if not group.has_registry:
        if all(found.standing is None for found in group.members):
            raise LocalError(f"no broker of group {name} answers", hint="are they running?")
        raise ConfigError(
            f"the roles of group {name} are fixed by its brokers' settings: it has no registry",
            hint="set registryAddr and configure the group: docs/guides/failover.md",
        )
    return group


def _order(member: Found, code: RequestCode, **fields: str) -> str:
    """Give a command; what came of it.

    Raises:
        RemoteError: it was refused or given up, with the reason.
        OutcomeUnknown: the broker did not answer.
    """
    try:
        answer = ask_broker(member.address, code, fields, seconds=COMMAND_SECONDS)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"broker {member.broker_id} did not tell what came of it: {error}", hint="tandemq ha status shows it"
        ) from error
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError(answer.remark or f"refused with code {answer.code}", code=answer.code)
    return str(answer.remark or "")


@click.command()
@broker_option
@click.option("--to", "target", required=True, type=int, help="Broker id of the member that is to be the master.")
@address_option
@registry_option
@namesrv_option
@json_option
def switch(
    broker: str | None, target: int, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> None:
    """Move the mastership of an elect group to another member, and wait until that one takes messages.

    Nothing is lost and no send fails that is retried; refused, with the reason, while the target is not in sync.
    """
    group = _group(broker, addresses, name_servers, registry)
    master = group.master
    if master is None:
        raise LocalError(
            f"no member of group {group.name} serves as its master now",
            hint="tandemq ha status tells why; ha force-master is for a master that is gone",
        )
    began = time.monotonic()
    text = _order(master, RequestCode.TANDEM_SWITCH, target=str(target))
    serves = _serves(group, target) if target != master.broker_id else True
    seconds = round(time.monotonic() - began, 3)
    if not serves:
        raise LocalError(f"{text}; it does not take messages yet", hint="tandemq ha status tells why")
    outcome = {"broker": group.name, "from": master.broker_id, "to": target, "seconds": seconds, "text": text}
    if as_json:
        show_json(outcome)
    else:
        click.echo(f"{group.name}: {text}; it may be written to {seconds:.2f} s after the order")


def _serves(group: Group, target: int) -> bool:
    """Whether the new master takes messages, soon."""
    address = group.member(target).address
    until = time.monotonic() + SERVE_SECONDS
    while time.monotonic() < until:
        try:
            if ask_json(address, RequestCode.TANDEM_FAILOVER_STATUS).get("mayWrite"):
                return True
        except (NetworkError, RemoteError):
            pass
        time.sleep(LOOK_SECONDS)
    return False


@click.command("force-master")
@broker_option
@click.option("--id", "broker_id", required=True, type=int, help="Of the member that is to serve.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@address_option
@registry_option
@namesrv_option
@json_option
def force_master(
    broker: str | None,
    broker_id: int,
    yes: bool,
    addresses: tuple[str, ...],
    registry: str | None,
    name_servers: str,
    as_json: bool,
) -> None:
    """Have a member serve, because the one in whose place it does is gone for good, although that may lose something.

    Says first what may be lost or repeated. Make sure that the other one is stopped, and not only cut off.
    """
    group = _group(broker, addresses, name_servers, registry)
    member = group.member(broker_id)
    price = _order(member, RequestCode.TANDEM_FORCE_MASTER, preview="true")
    if not yes:
        click.echo(f"{group.name}, broker {broker_id}: {price}", err=True)
        click.confirm("Go on?", abort=True, err=True)
    began = time.monotonic()
    text = _order(member, RequestCode.TANDEM_FORCE_MASTER)
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
@click.option("--count", type=click.IntRange(1), help="The last N entries only.")
@address_option
@registry_option
@namesrv_option
@json_option
def history(
    broker: str | None,
    count: int | None,
    addresses: tuple[str, ...],
    registry: str | None,
    name_servers: str,
    as_json: bool,
) -> None:
    """Show what happened to the roles of a group, as its brokers kept it: oldest first, one line for what is equal."""
    group = _group(broker, addresses, name_servers, registry)
    entries = merged(
        (found.broker_id, found.standing["timeline"])
        for found in group.members
        if found.has_registry and found.standing is not None
    )
    if count is not None:
        entries = entries[-count:]
    for broker_id in group.missing:
        click.echo(f"tandemq: broker {broker_id} does not answer: what it kept is missing here", err=True)
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
    show_rows(rows, as_json=False, empty="nothing happened yet")


def merged(timelines: Iterable[tuple[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Timelines of several brokers as one, by calendar time and epoch; each broker's own order stays."""
    entries: dict[tuple[int, int, str], dict[str, Any]] = {}
    for broker_id, timeline in timelines:
        for entry in timeline:
            key = (entry["ms"], entry["epoch"], entry["text"])
            brokers = entries.setdefault(key, {**entry, "brokers": []})["brokers"]
            if broker_id not in brokers:
                brokers.append(broker_id)
    return sorted(entries.values(), key=lambda entry: (entry["ms"], entry["epoch"]))
