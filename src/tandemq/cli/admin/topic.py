"""`tandemq topic`: create, delete, list and show topics."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.name_completion import complete_brokers, complete_clusters, complete_topics
from tandemq.cli.support.output import (
    echo_wrapped,
    json_option,
    permission_text,
    show_facts,
    show_json,
    show_rows,
    table_options,
    time_text,
)
from tandemq.errors import RemoteError
from tandemq.model.attributes import MESSAGE_TYPE, MESSAGE_TYPES
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, own_topics

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin

PERMISSIONS = {"r": 4, "w": 2, "rw": 6}


@click.group()
def topic() -> None:
    """Create, delete, list and show topics."""


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--queues", default=8, show_default=True, type=click.IntRange(1, 16_384), help="Queues per broker group.")
@click.option("--cluster", shell_complete=complete_clusters, help="Only on the masters of this cluster.")
@click.option(
    "--broker", "broker_name", shell_complete=complete_brokers, help="Only on the master of this broker group."
)
@click.option(
    "--permission", type=click.Choice(sorted(PERMISSIONS)), default="rw", show_default=True, help="What clients may do."
)
@click.option("--order", is_flag=True, help="Mark the topic as globally ordered.")
@click.option(
    "--type",
    "message_type",
    type=click.Choice([name.lower() for name in MESSAGE_TYPES]),
    help="Type of its messages, which gRPC clients must send. Without it a new topic takes normal ones.",
)
@namesrv_option
@json_option
def create(
    name: str,
    queues: int,
    cluster: str | None,
    broker_name: str | None,
    permission: str,
    order: bool,
    message_type: str | None,
    name_servers: str,
    as_json: bool,
) -> None:
    """Create or change the topic NAME."""
    attributes = {} if message_type is None else {MESSAGE_TYPE: message_type.upper()}
    addresses = with_admin(
        name_servers,
        lambda admin: admin.create_topic(
            name,
            queues=queues,
            cluster=cluster,
            broker_name=broker_name,
            perm=PERMISSIONS[permission],
            order=order,
            attributes=attributes,
        ),
    )
    show_facts({"topic": name, "queues": queues, "brokers": ", ".join(addresses)}, as_json=as_json)


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@click.option("--cluster", shell_complete=complete_clusters, help="Only on the masters of this cluster.")
@click.option("--yes", is_flag=True, help="Delete it; without this only the number of its messages is shown.")
@namesrv_option
@json_option
def delete(name: str, cluster: str | None, yes: bool, name_servers: str, as_json: bool) -> None:
    """Delete the topic NAME with its messages (a preview without --yes)."""

    async def requests(admin: "Admin") -> dict[str, Any]:
        stats = await admin.topic_stats(name)
        if yes:
            await admin.delete_topic(name, cluster=cluster)
        messages = sum(queue.max_offset - queue.min_offset for queue in stats.values())
        return {"topic": name, "queues": len(stats), "messages": messages, "deleted": yes}

    show_facts(found := with_admin(name_servers, requests), as_json=as_json)
    if not found["deleted"] and not as_json:
        click.echo("nothing was deleted; --yes deletes it")


@topic.command(name="list")
@click.option("--all", "with_all", is_flag=True, help="Include system, retry and dead-letter topics.")
@namesrv_option
@json_option
def list_topics(with_all: bool, name_servers: str, as_json: bool) -> None:
    """List the topics that the name server knows."""

    async def requests(admin: "Admin") -> list[str]:
        brokers = await admin.cluster_info()
        own = own_topics(brokers.brokers, brokers.clusters)
        names = await admin.topics()
        return [n for n in names if with_all or (n not in own and not n.startswith((RETRY_PREFIX, DLQ_PREFIX)))]

    names = with_admin(name_servers, requests)
    if as_json:
        show_json(names)
    else:
        click.echo("\n".join(names) or "no topics")


@topic.command()
@click.argument("name", shell_complete=complete_topics)
@namesrv_option
@table_options
def show(name: str, name_servers: str, as_json: bool) -> None:
    """Show the brokers, queues and consumer groups of the topic NAME."""

    async def requests(admin: "Admin") -> dict[str, Any]:
        route = await admin.topic_route(name)
        stats = await admin.topic_stats(name)
        try:
            groups = await admin.topic_groups(name)
        except RemoteError:
            groups = []
        offers = [
            {
                "broker": data.broker_name,
                "readQueues": data.read_queue_nums,
                "writeQueues": data.write_queue_nums,
                "permission": data.perm,
                "addresses": route.brokers[data.broker_name].members,
            }
            for data in route.queues
            if data.broker_name in route.brokers
        ]
        queues = [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "min": found.min_offset,
                "max": found.max_offset,
                "messages": found.max_offset - found.min_offset,
                "last": time_text(found.last_ms),
            }
            for queue, found in stats.items()
        ]
        return {"topic": name, "brokers": offers, "queues": queues, "groups": groups}

    found = with_admin(name_servers, requests)
    if as_json:
        show_json(found)
        return
    show_rows(
        [
            row
            | {
                "permission": permission_text(row["permission"]),
                "addresses": ", ".join(f"{member}={address}" for member, address in row["addresses"].items()),
            }
            for row in found["brokers"]
        ],
        as_json=False,
    )
    click.echo()
    show_rows(found["queues"], as_json=False, less=("last", "min"))
    click.echo()
    echo_wrapped(f"read by: {', '.join(found['groups']) or 'no group'}", indent="  ")
