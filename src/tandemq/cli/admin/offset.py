"""`tandemq offset`: show and reset the offsets of a consumer group."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.admin.group import LIST_HINT, offsets_of, progress_rows
from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.durations import parse_time
from tandemq.cli.support.name_completion import complete_brokers, complete_groups, complete_topics
from tandemq.cli.support.output import show_json, show_rows, table_options

if TYPE_CHECKING:
    from tandemq.client.admin.groups import ResetTarget
    from tandemq.client.aio.admin import Admin

FAR_FUTURE_MS = 1 << 52


@click.group()
def offset() -> None:
    """Show and reset the offsets of a consumer group."""


@offset.command()
@click.argument("group", shell_complete=complete_groups)
@click.option("--topic", shell_complete=complete_topics, help="Only of this topic.")
@namesrv_option
@table_options
def show(group: str, topic: str | None, name_servers: str, as_json: bool) -> None:
    """Show the offsets of GROUP."""

    async def requests(admin: "Admin") -> list[dict[str, Any]]:
        if topic is not None:
            await admin.topic_route(topic)  # raises if the topic does not exist
        progress = await offsets_of(admin, group)
        return progress_rows({queue: offsets for queue, offsets in progress.items() if topic in (None, queue.topic)})

    show_rows(with_admin(name_servers, requests), as_json=as_json, empty="no offsets", less=("lastConsumed", "end"))


@offset.command()
@click.argument("group", shell_complete=complete_groups)
@click.argument("topic", shell_complete=complete_topics)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TARGET",
    help="earliest, latest, an offset, or a time like 2024-05-31T13:00.",
)
@click.option(
    "--broker",
    "broker_name",
    shell_complete=complete_brokers,
    help="Only the queue of this broker group; with --queue.",
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Only this queue; with --broker.")
@click.option("--yes", is_flag=True, help="Change them; without this the new offsets are only shown.")
@namesrv_option
@table_options
def reset(
    group: str,
    topic: str,
    target: str,
    broker_name: str | None,
    queue_id: int | None,
    yes: bool,
    name_servers: str,
    as_json: bool,
) -> None:
    """Reset the offsets of GROUP in TOPIC (a preview without --yes)."""
    if (broker_name is None) != (queue_id is None):
        raise click.UsageError("--broker and --queue need each other")

    async def requests(admin: "Admin") -> list[dict[str, Any]]:
        where = _target(target, topic, broker_name, queue_id)
        progress = await offsets_of(admin, group, hint=f"tandemq group create {group} creates it; {LIST_HINT}")
        before = {queue: offsets.consumer_offset for queue, offsets in progress.items()}
        plan = await (admin.reset_offsets(group, topic, where) if yes else admin.plan_reset(topic, where))
        return [
            {
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "from": before.get(queue),
                "to": offset,
                "again": max(0, before[queue] - offset) if queue in before else None,
            }
            for queue, offset in plan.items()
        ]

    rows = with_admin(name_servers, requests)
    if as_json:
        show_json({"group": group, "topic": topic, "done": yes, "queues": rows})
        return
    show_rows(rows, as_json=False)
    if not yes:
        click.echo("\nnothing was changed; --yes changes them")


def _target(text: str, topic: str, broker_name: str | None, queue_id: int | None) -> "ResetTarget":
    from tandemq.client.admin.groups import ResetTarget  # noqa: PLC0415
    from tandemq.model.message import MessageQueue  # noqa: PLC0415

    queue = MessageQueue(topic, broker_name, queue_id) if broker_name is not None and queue_id is not None else None
    if text == "earliest":
        return ResetTarget(time_ms=0, queue=queue)
    if text == "latest":
        return ResetTarget(time_ms=FAR_FUTURE_MS, queue=queue)
    if text.isdigit():
        return ResetTarget(offset=int(text), queue=queue)
    return ResetTarget(time_ms=parse_time(text), queue=queue)
