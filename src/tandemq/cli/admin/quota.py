"""`tandemq quota`: limits of users, topics and consumer groups."""

from typing import TYPE_CHECKING

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.name_completion import complete_limited
from tandemq.cli.support.output import json_option, show_facts, show_rows, table_options
from tandemq.errors import LocalError, ProtocolError
from tandemq.model.quota import CONNECTIONS_MAX, GROUP, IN_FLIGHT_MAX, RATE_MAX, TOPIC, USER, Kind, Quota

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin

_kind_argument = click.argument("kind", type=click.Choice([USER, TOPIC, GROUP]))


@click.group()
def quota() -> None:
    """Limit what users, topics and consumer groups may use.

    A limit holds on each master by itself.
    """


@quota.command(name="set")
@_kind_argument
@click.argument("name", shell_complete=complete_limited)
@click.option("--messages", default=0, type=click.IntRange(0, RATE_MAX), help="Messages per second.")
@click.option("--bytes", "size", default=0, type=click.IntRange(0, RATE_MAX), help="Bytes per second.")
@click.option("--connections", default=0, type=click.IntRange(0, CONNECTIONS_MAX), help="Connections of a user.")
@click.option(
    "--in-flight", default=0, type=click.IntRange(0, IN_FLIGHT_MAX), help="Popped, unacknowledged messages of a group."
)
@click.option("--slow", is_flag=True, help="Sends beyond the rate wait for up to a second before they are refused.")
@namesrv_option
@json_option
def set_quota(
    kind: Kind,
    name: str,
    messages: int,
    size: int,
    connections: int,
    in_flight: int,
    slow: bool,
    name_servers: str,
    as_json: bool,
) -> None:
    """Limit the user, topic or group NAME; '*' is each that has no limit of its own.

    Rates of users and topics limit sends, those of groups deliveries. What is not given is unlimited.
    """
    wanted = Quota(kind, name, messages, size, connections, in_flight, slow)
    if wanted.is_unlimited:
        raise click.UsageError("nothing is limited; `tandemq quota delete` deletes a limit")
    _put(wanted, name_servers)
    show_facts({"kind": kind, "name": name, "limited": True}, as_json=as_json)


@quota.command()
@_kind_argument
@click.argument("name", shell_complete=complete_limited)
@namesrv_option
@json_option
def delete(kind: Kind, name: str, name_servers: str, as_json: bool) -> None:
    """Delete the limit of the user, topic or group NAME."""
    _put(Quota(kind, name), name_servers)
    show_facts({"kind": kind, "name": name, "limited": False}, as_json=as_json)


def _put(wanted: Quota, name_servers: str) -> None:
    try:
        wanted.check()
    except ProtocolError as error:
        raise LocalError(str(error)) from error
    with_admin(name_servers, lambda admin: admin.set_quotas([wanted]))


@quota.command(name="list")
@namesrv_option
@table_options
def list_quotas(name_servers: str, as_json: bool) -> None:
    """List the limits, and how often each was exceeded."""

    async def requests(admin: "Admin") -> list[dict[str, object]]:
        return [
            {
                "kind": limit.kind,
                "name": limit.name,
                "messages/s": limit.messages_per_second,
                "bytes/s": limit.bytes_per_second,
                "connections": limit.connections,
                "inFlight": limit.in_flight,
                "slows": limit.slows,
                "refused": exceeded.refused,
                "slowed": exceeded.slowed,
            }
            for limit, exceeded in await admin.quotas()
        ]

    show_rows(with_admin(name_servers, requests), as_json=as_json, empty="no limits", less=("slowed", "slows"))
