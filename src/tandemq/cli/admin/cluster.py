"""`tandemq cluster`: list, broker-config."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.client_session import ask, namesrv_option
from tandemq.cli.support.output import json_option, show_facts, show_json, show_rows
from tandemq.errors import NetworkError, RemoteError

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin


@click.group()
def cluster() -> None:
    """Show brokers, read and change their settings."""


@cluster.command(name="list")
@namesrv_option
@json_option
def list_brokers(name_servers: str, as_json: bool) -> None:
    """List all brokers with what they do."""

    async def story(admin: "Admin") -> list[dict[str, Any]]:
        info = await admin.cluster_info()
        rows = []
        for name, members in info.brokers.items():
            for broker_id, address in sorted(members.members.items()):
                try:
                    figures = await admin.broker_runtime(address)
                except (NetworkError, RemoteError):
                    figures = {}
                rows.append(
                    {
                        "cluster": members.cluster,
                        "broker": name,
                        "id": broker_id,
                        "address": address,
                        "answers": bool(figures),
                        "version": figures.get("brokerVersionDesc", ""),
                        "in/s": _first(figures.get("putTps")),
                        "out/s": _first(figures.get("getTransferredTps")),
                        "logEnd": int(figures.get("commitLogMaxOffset", 0)),
                        "disk": figures.get("commitLogDiskRatio", ""),
                    }
                )
        return rows

    show_rows(ask(name_servers, story), as_json=as_json, empty="no broker is registered")


def _first(rates: str | None) -> float:
    return float(rates.split()[0]) if rates else 0.0


@cluster.command(name="broker-config")
@click.argument("broker")
@click.option("--id", "broker_id", default=0, show_default=True, type=click.IntRange(0), help="Member of the group.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a setting of the running broker.")
@click.option("--get", "key", help="Show this setting only.")
@namesrv_option
@json_option
def broker_config(
    broker: str, broker_id: int, pairs: tuple[str, ...], key: str | None, name_servers: str, as_json: bool
) -> None:
    """Show the settings of BROKER, or change some while it runs; they are not written into its file."""
    changes = dict(_pair(pair) for pair in pairs)

    async def story(admin: "Admin") -> dict[str, str]:
        info = await admin.cluster_info()
        members = info.brokers[broker].members if broker in info.brokers else {}
        address = members.get(broker_id)
        if address is None:
            known = ", ".join(f"{name}/{i}" for name, found in info.brokers.items() for i in found.members)
            raise click.UsageError(f"there is no broker {broker}/{broker_id}; there are: {known or 'none'}")
        if changes:
            await admin.update_broker_config(address, changes)
        return await admin.broker_config(address)

    found = ask(name_servers, story)
    if key is not None:
        if key not in found:
            raise click.UsageError(f"the broker has no setting {key!r}")
        found = {key: found[key]}
    elif changes:
        found = {name: found.get(name, "") for name in changes}
    if as_json:
        show_json(found)
    else:
        show_facts(found, as_json=False)


def _pair(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"--set {pair}: KEY=VALUE is expected")
    return name.strip(), value.strip()
