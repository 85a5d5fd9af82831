"""`tandemq group`: create, delete, list and show consumer groups."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.name_completion import complete_clusters, complete_groups
from tandemq.cli.support.output import json_option, plain, show_facts, show_json, show_rows, table_options, time_text
from tandemq.errors import LocalError, NoRoute
from tandemq.model.attributes import PRIORITY_FACTOR, PRIORITY_FACTOR_MAX
from tandemq.model.topic import is_system_group

if TYPE_CHECKING:
    from tandemq.client.admin.groups import ConsumeProgress, GroupConnections
    from tandemq.client.aio.admin import Admin
    from tandemq.model.message import MessageQueue

LIST_HINT = "tandemq group list shows the existing groups"


@click.group()
def group() -> None:
    """Create, delete, list and show consumer groups."""


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--cluster", shell_complete=complete_clusters, help="Only on the masters of this cluster.")
@click.option(
    "--retry-max",
    default=16,
    show_default=True,
    type=click.IntRange(0),
    help="Redeliveries of a message before it moves to %DLQ%NAME.",
)
@click.option("--retry-queues", default=1, show_default=True, type=click.IntRange(0), help="Queues of %RETRY%NAME.")
@click.option("--consume/--no-consume", default=True, help="Whether its members may consume.")
@click.option("--broadcast/--no-broadcast", default=True, help="Whether its members may consume in broadcasting mode.")
@click.option(
    "--priority-factor",
    type=click.IntRange(0, PRIORITY_FACTOR_MAX),
    help="Percentage of pops that prefer the highest priority, in topics of type priority.  [default: 100]",
)
@click.option("--orderly", is_flag=True, help="Its gRPC and POP consumers get the messages of each queue in order.")
@namesrv_option
@json_option
def create(
    name: str,
    cluster: str | None,
    retry_max: int,
    retry_queues: int,
    consume: bool,
    broadcast: bool,
    priority_factor: int | None,
    orderly: bool,
    name_servers: str,
    as_json: bool,
) -> None:
    """Create or change the consumer group NAME."""

    async def requests(admin: "Admin") -> list[str]:
        from tandemq.model.group import SubscriptionGroupConfig  # noqa: PLC0415

        config = SubscriptionGroupConfig(
            name,
            consume_enable=consume,
            consume_broadcast_enable=broadcast,
            retry_queue_nums=retry_queues,
            retry_max_times=retry_max,
            consume_message_orderly=orderly,
            attributes={} if priority_factor is None else {f"+{PRIORITY_FACTOR}": str(priority_factor)},
        )
        return await admin.create_group(config, cluster=cluster)

    show_facts({"group": name, "brokers": ", ".join(with_admin(name_servers, requests))}, as_json=as_json)


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option("--cluster", shell_complete=complete_clusters, help="Only on the masters of this cluster.")
@click.option("--clean", is_flag=True, help="Also delete its offsets and its retry and dead-letter topics.")
@click.option("--yes", is_flag=True, help="Delete it; without this only the number of its members is shown.")
@namesrv_option
@json_option
def delete(name: str, cluster: str | None, clean: bool, yes: bool, name_servers: str, as_json: bool) -> None:
    """Delete the consumer group NAME (a preview without --yes)."""

    async def requests(admin: "Admin") -> dict[str, Any]:
        await offsets_of(admin, name)
        who = await _members(admin, name)
        if yes:
            await admin.delete_group(name, cluster=cluster, clean=clean)
        return {"group": name, "members": len(who.connections) if who else 0, "clean": clean, "deleted": yes}

    show_facts(found := with_admin(name_servers, requests), as_json=as_json)
    if not found["deleted"] and not as_json:
        click.echo("nothing was deleted; --yes deletes it")


async def offsets_of(admin: "Admin", name: str, *, hint: str = "") -> "dict[MessageQueue, ConsumeProgress]":
    """Return a consumer group's progress in each queue that it has an offset for.

    Args:
        admin: client of the cluster.
        name: consumer group.
        hint: advice in the error if the group does not exist.
    Raises:
        LocalError: no broker knows the group.
    """
    progress = await admin.progress(name)
    if not progress and name not in await admin.groups() and await _members(admin, name) is None:
        raise LocalError(f"group {name} does not exist", hint=hint or LIST_HINT)
    return progress


def progress_rows(progress: "dict[MessageQueue, ConsumeProgress]") -> list[dict[str, Any]]:
    """Return a row for each queue of a group's progress."""
    return [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "offset": offsets.consumer_offset,
            "end": offsets.broker_offset,
            "lag": offsets.lag,
            "lastConsumed": time_text(offsets.last_ms),
        }
        for queue, offsets in progress.items()
    ]


async def _members(admin: "Admin", name: str) -> "GroupConnections | None":
    try:
        return await admin.connections(name)
    except NoRoute:
        return None


@group.command(name="list")
@click.option("--all", "with_all", is_flag=True, help="Include system groups.")
@namesrv_option
@table_options
def list_groups(with_all: bool, name_servers: str, as_json: bool) -> None:
    """List the consumer groups that masters know."""
    found = with_admin(name_servers, lambda admin: admin.groups())
    rows = [
        {
            "group": name,
            "consume": config.consume_enable,
            "broadcast": config.consume_broadcast_enable,
            "retryMax": config.retry_max_times,
            "retryQueues": config.retry_queue_nums,
        }
        for name, config in found.items()
        if with_all or not is_system_group(name)
    ]
    show_rows(rows, as_json=as_json, empty="no groups")


@group.command()
@click.argument("name", shell_complete=complete_groups)
@namesrv_option
@table_options
def show(name: str, name_servers: str, as_json: bool) -> None:
    """Show the offsets, lag, members and subscriptions of the consumer group NAME."""

    async def requests(admin: "Admin") -> dict[str, Any]:
        progress = await offsets_of(admin, name)
        who = await _members(admin, name)
        queues = progress_rows(progress)
        members = (
            [
                {"client": connection.client_id, "address": connection.address, "language": connection.language}
                for connection in who.connections
            ]
            if who
            else []
        )
        return {
            "group": name,
            "lag": sum(row["lag"] for row in queues),
            "queues": queues,
            "members": members,
            "subscriptions": who.subscriptions if who else {},
        }

    found = with_admin(name_servers, requests)
    if as_json:
        show_json(found)
        return
    show_rows(found["queues"], as_json=False, empty="no offsets", less=("lastConsumed", "end"))
    click.echo(f"\nlag: {found['lag']} messages\n")
    show_rows(found["members"], as_json=False, empty="the group has no members")
    for topic, expression in found["subscriptions"].items():
        click.echo(f"reads {plain(topic)}: {plain(expression)}")
