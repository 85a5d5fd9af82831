"""`tandemq message`: send, recall, follow and look up messages."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.admin.trace import trace
from tandemq.cli.support.client_session import namesrv_option, quiet, with_admin
from tandemq.cli.support.durations import parse_duration, parse_time
from tandemq.cli.support.name_completion import complete_brokers, complete_topics
from tandemq.cli.support.name_servers import explained
from tandemq.cli.support.output import body_field, json_option, plain, show_json, show_rows, table_options, time_text
from tandemq.cli.support.tls import client_tls
from tandemq.errors import LocalError

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin
    from tandemq.model.message import SendResult, StoredMessage

LINES_PER_BATCH = 64
RETRY_MS = 10_000
"""How long a failed send is retried, in milliseconds: longer than a failover, and a user waits at the terminal."""
FAR_FUTURE_MS = 1 << 52


@click.group()
def message() -> None:
    """Send, recall, follow and look up messages."""


@message.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("body", required=False)
@click.option(
    "--file", "path", type=click.Path(dir_okay=False, allow_dash=True), help="Read the body from this file; - is stdin."
)
@click.option("--lines", is_flag=True, help="Send each line of --file as a message.")
@click.option("--tag", default="", help="Tag of the messages.")
@click.option("--key", "keys", multiple=True, help="Key to index the messages by; repeatable.")
@click.option("--property", "pairs", multiple=True, metavar="NAME=VALUE", help="Further property; repeatable.")
@click.option(
    "--delay-level", default=0, type=click.IntRange(0), help="Delay level, see messageDelayLevel; 0: no delay."
)
@click.option("--delay", help="Deliver after this time, like 90s, 5m or 1h30m; brokers of 5.x.")
@click.option("--at", help="Deliver at this time, like 2024-05-31T13:00; brokers of 5.x.")
@click.option("--priority", type=click.IntRange(0), help="Priority, higher values first; topics of type priority.")
@click.option("--group", default="tandemq-cli", show_default=True, help="Producer group.")
@namesrv_option
@table_options
def send(
    topic: str,
    body: str | None,
    path: str | None,
    lines: bool,
    tag: str,
    keys: tuple[str, ...],
    pairs: tuple[str, ...],
    delay_level: int,
    delay: str | None,
    at: str | None,
    priority: int | None,
    group: str,
    name_servers: str,
    as_json: bool,
) -> None:
    """Send BODY, the content of a file, or each line of a file to TOPIC."""
    if (body is None) == (path is None):
        raise click.UsageError("give a BODY or --file")
    data = body.encode() if body is not None else _read(path or "-")
    bodies = data.splitlines() if lines else [data]
    from tandemq.model.message import Message  # noqa: PLC0415

    messages = [
        Message(
            topic,
            content,
            tags=tag,
            keys=keys,
            properties=_properties(pairs),
            delay_level=delay_level,
            delay=parse_duration(delay) if delay else None,
            deliver_at=parse_time(at) / 1000 if at else None,
            priority=priority,
        )
        for content in bodies
    ]
    import asyncio  # noqa: PLC0415  # --help needs no loop

    with quiet(), explained(name_servers):
        results = asyncio.run(_send(name_servers, group, messages))
    has_handles = any(result.recall_handle for result in results)
    rows = [
        {
            "status": result.status.value,
            "id": result.unique_key,
            "broker": result.queue.broker_name,
            "queue": result.queue.queue_id,
            "offset": result.queue_offset,
            "offsetId": result.offset_message_id,
            **({"recallHandle": result.recall_handle} if has_handles else {}),
        }
        for result in results
    ]
    show_rows(rows, as_json=as_json, empty="no messages", less=("offsetId",))


def _read(path: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from error


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.UsageError(f"--property {pair}: NAME=VALUE is expected")
        found[name] = value
    return found


async def _send(name_servers: str, group: str, messages: list[Any]) -> "list[SendResult]":
    from tandemq.client.aio.producer import Producer  # noqa: PLC0415

    results = []
    async with Producer(name_servers, group=group, retry_ms=RETRY_MS, tls=client_tls() or False) as producer:
        for start in range(0, len(messages), LINES_PER_BATCH):
            some = messages[start : start + LINES_PER_BATCH]
            if len(some) == 1 or not some[0].is_batchable:
                results += [await producer.send(outgoing) for outgoing in some]
            else:
                results += await producer.send_batch(some)
    return results


@message.command()
@click.argument("handle")
@click.option("--group", default="tandemq-cli", show_default=True, help="Producer group.")
@namesrv_option
@table_options
def recall(handle: str, group: str, name_servers: str, as_json: bool) -> None:
    """Take back a timed message, by the HANDLE that its send printed. Brokers need recallMessageEnable=true."""
    import asyncio  # noqa: PLC0415  # --help needs no loop

    with quiet(), explained(name_servers):
        key = asyncio.run(_recall(name_servers, group, handle))
    show_rows([{"id": key, "status": "RECALLED"}], as_json=as_json, empty="")


async def _recall(name_servers: str, group: str, handle: str) -> str:
    from tandemq.client.aio.producer import Producer  # noqa: PLC0415

    async with Producer(name_servers, group=group, retry_ms=RETRY_MS, tls=client_tls() or False) as producer:
        return await producer.recall(handle)


@message.command()
@click.argument("topic", shell_complete=complete_topics)
@click.option("--tags", default="*", show_default=True, help="Filter by tags, like: a || b.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="latest",
    show_default=True,
    help="Where to start.",
)
@click.option("--count", type=click.IntRange(1), help="Stop after this number of messages.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="Stop when no message arrived for this time.")
@namesrv_option
@json_option
def tail(
    topic: str, tags: str, start: str, count: int | None, seconds: float | None, name_servers: str, as_json: bool
) -> None:
    """Print the messages of TOPIC as they arrive, until Ctrl-C. No consumer group's offsets change."""
    import asyncio  # noqa: PLC0415  # --help needs no loop

    with quiet(), explained(name_servers), contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_tail(name_servers, topic, tags, start == "earliest", count, seconds, as_json=as_json))


async def _tail(
    name_servers: str,
    topic: str,
    tags: str,
    from_start: bool,
    count: int | None,
    seconds: float | None,
    *,
    as_json: bool,
) -> None:
    from tandemq.client.aio.pull_consumer import PullConsumer  # noqa: PLC0415

    left = count
    async with PullConsumer(name_servers, group="tandemq-cli-tail", tls=client_tls() or False) as consumer:
        consumer.subscribe(topic, tags)
        queues = await consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            first, end = await consumer.bounds(queue)
            consumer.seek(queue, first if from_start else end)
        while left is None or left > 0:
            found = await consumer.poll(min(left or 100, 100), timeout_s=seconds)
            if not found and seconds is not None:
                return
            for stored in found:
                if as_json:
                    show_json(as_object(stored))
                else:
                    click.echo(_line(stored))
            if left is not None:
                left -= len(found)


@message.command()
@click.argument("topic", required=False, shell_complete=complete_topics)
@click.option("--key", help="Search by key; needs TOPIC.")
@click.option("--unique-key", help="Search by the unique key set by the producer; needs TOPIC.")
@click.option("--id", "message_id", help="Look up by offset message id.")
@click.option(
    "--broker",
    "broker_name",
    shell_complete=complete_brokers,
    help="Look up by position: broker group; needs TOPIC, --queue and --offset.",
)
@click.option("--queue", "queue_id", type=click.IntRange(0), help="Look up by position: queue id.")
@click.option("--offset", type=click.IntRange(0), help="Look up by position: offset in the queue.")
@click.option("--begin", help="With --key: stored at this time or later, like 2024-05-31T13:00.")
@click.option("--end", help="With --key: stored at this time or earlier.")
@click.option(
    "--count", default=32, show_default=True, type=click.IntRange(1), help="With --key: maximum number of messages."
)
@namesrv_option
@json_option
def query(
    topic: str | None,
    key: str | None,
    unique_key: str | None,
    message_id: str | None,
    broker_name: str | None,
    queue_id: int | None,
    offset: int | None,
    begin: str | None,
    end: str | None,
    count: int,
    name_servers: str,
    as_json: bool,
) -> None:
    """Look up messages by key, by unique key, by id, or by position."""
    begin_ms = parse_time(begin) if begin else 0
    end_ms = parse_time(end) if end else FAR_FUTURE_MS

    async def requests(admin: "Admin") -> "list[StoredMessage]":
        from tandemq.model.message import MessageQueue  # noqa: PLC0415

        if message_id is not None:
            return [await admin.message_by_id(message_id)]
        if topic is None:
            raise click.UsageError("give a TOPIC, or --id")
        if key is not None or unique_key is not None:
            return await admin.messages_by_key(
                topic,
                unique_key or key or "",
                count_max=count,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique_key is not None,
            )
        if broker_name is None or queue_id is None or offset is None:
            raise click.UsageError("give --key, --unique-key, --id, or --broker, --queue and --offset")
        stored = await admin.message_at(MessageQueue(topic, broker_name, queue_id), offset)
        return [stored] if stored is not None else []

    found = with_admin(name_servers, requests)
    if as_json:
        show_json([as_object(stored) for stored in found])
    elif not found:
        click.echo("no message found")
    else:
        for stored in found:
            click.echo(_line(stored))
    if not found:
        raise click.exceptions.Exit(1)


message.add_command(trace)


def as_object(stored: "StoredMessage") -> dict[str, Any]:
    """Return a message as an object for `--json`.

    A body that is not UTF-8 is given in hexadecimal digits; a body that cannot be decompressed is given as stored, with
    the reason as `fault`.
    """
    return {
        "topic": stored.topic,
        "queue": stored.queue_id,
        "offset": stored.queue_offset,
        "id": stored.unique_key,
        "offsetId": stored.offset_message_id,
        "tag": stored.tags,
        "keys": stored.keys,
        "stored": stored.store_ms,
        "born": stored.born_ms,
        "bornHost": stored.born_host,
        "storeHost": stored.store_host,
        "reconsumeTimes": stored.reconsume_times,
        "properties": stored.properties,
        **body_field(stored.body),
        **({"fault": stored.fault} if stored.fault else {}),
    }


def _line(stored: "StoredMessage") -> str:
    body = stored.body[:200].decode("utf-8", "backslashreplace")
    shown = plain(body) + ("…" if len(stored.body) > 200 else "")
    keys = f" keys={','.join(stored.keys)}" if stored.keys else ""
    tag = f" tag={stored.tags}" if stored.tags else ""
    fault = f" [{stored.fault}]" if stored.fault else ""
    place = f"{stored.topic}/{stored.queue_id}@{stored.queue_offset}"
    return f"{time_text(stored.store_ms)} {place} {plain(stored.unique_key + tag + keys)}{fault} {shown}"
