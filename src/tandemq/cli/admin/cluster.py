"""`tandemq cluster`: list brokers, show and change their settings."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.advice import advised
from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.exit_codes import EXIT_FAILED
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.output import json_option, show_facts, show_json, show_rows, table_options
from tandemq.errors import LocalError, NetworkError, RemoteError

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin


@click.group()
def cluster() -> None:
    """List brokers, show and change their settings."""


@cluster.command(name="list")
@namesrv_option
@table_options
def list_brokers(name_servers: str, as_json: bool) -> None:
    """List all registered brokers with their rates and log ends.

    Exit code 1 if none of them gives its figures; standard error says why.
    """

    async def requests(admin: "Admin") -> list[dict[str, Any]]:
        info = await admin.cluster_info()
        rows = []
        for name, members in info.brokers.items():
            for broker_id, address in sorted(members.members.items()):
                try:
                    figures = await admin.broker_runtime(address)
                except (NetworkError, RemoteError) as error:
                    figures = {}
                    click.echo(f"tandemq: {name}/{broker_id}: {advised(error)}", err=True)
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

    rows = with_admin(name_servers, requests)
    show_rows(
        rows,
        as_json=as_json,
        empty="no broker is registered",
        less=("version", "cluster", "logEnd"),
    )
    if rows and not any(row["answers"] for row in rows):
        raise click.exceptions.Exit(EXIT_FAILED)


def _first(rates: str | None) -> float:
    return float(rates.split()[0]) if rates else 0.0


@cluster.command(name="broker-config")
@click.argument("broker", shell_complete=complete_brokers)
@click.option(
    "--id", "broker_id", default=0, show_default=True, type=click.IntRange(0), help="Broker id within the group."
)
@click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Change a setting of the running broker; repeatable."
)
@click.option("--get", "key", help="Show only this setting.")
@namesrv_option
@json_option
def broker_config(
    broker: str, broker_id: int, pairs: tuple[str, ...], key: str | None, name_servers: str, as_json: bool
) -> None:
    """Show the settings of BROKER, or change some while it runs. Changes are not written to its configuration file."""
    changes = dict(_pair(pair) for pair in pairs)

    async def requests(admin: "Admin") -> dict[str, str]:
        info = await admin.cluster_info()
        members = info.brokers[broker].members if broker in info.brokers else {}
        address = members.get(broker_id)
        if address is None:
            known = ", ".join(f"{name}/{i}" for name, found in info.brokers.items() for i in found.members)
            raise LocalError(f"broker {broker}/{broker_id} does not exist", hint=f"known brokers: {known or 'none'}")
        if changes:
            await admin.update_broker_config(address, changes)
        return await admin.broker_config(address)

    found = with_admin(name_servers, requests)
    if key is not None:
        if key not in found:
            hint = "tandemq cluster broker-config without --get shows all settings"
            raise LocalError(f"broker {broker}/{broker_id} has no setting {key!r}", hint=hint)
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
