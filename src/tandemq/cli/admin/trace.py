"""`tandemq message trace`: events of a message at producers and consumers."""

from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.durations import parse_time
from tandemq.cli.support.output import echo_wrapped, plain, show_json, show_rows, table_options, time_text

if TYPE_CHECKING:
    from tandemq.client.admin.traces import FoundTraces, MessageTrace
    from tandemq.client.aio.admin import Admin

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@click.command()
@click.argument("key")
@click.option("--topic", default=TRACE_TOPIC, show_default=True, help="The trace topic.")
@click.option("--begin", help="Events reported at this time or later, like 2024-05-31T13:00.")
@click.option("--end", help="Events reported at this time or earlier.")
@namesrv_option
@table_options
def trace(key: str, topic: str, begin: str | None, end: str | None, name_servers: str, as_json: bool) -> None:
    """Show who sent, got and consumed the messages with KEY: a unique key, an offset message id, or a key.

    Clients report it, Java's too, if tracing is on in them; brokers need traceTopicEnable=true.
    """
    begin_ms = parse_time(begin) if begin else 0
    end_ms = parse_time(end) if end else None

    async def requests(admin: "Admin") -> "FoundTraces":
        return await admin.message_traces(key, topic=topic, begin_ms=begin_ms, end_ms=end_ms)

    found = with_admin(name_servers, requests)
    if as_json:
        show_json([as_object(message_trace) for message_trace in found.traces])
    elif not found.traces:
        click.echo(f"no trace found in {topic}")
    else:
        for number, message_trace in enumerate(found.traces):
            _show(message_trace, first=number == 0)
    if found.is_cut:
        click.echo("There may be more: brokers return a limited number; narrow it by --begin and --end.", err=True)
    if found.unreadable:
        click.echo(f"{found.unreadable} lines of the trace topic could not be read.", err=True)
    if not found.traces:
        raise click.exceptions.Exit(1)


def as_object(message_trace: "MessageTrace") -> dict[str, Any]:
    """Return a trace as an object for `--json`; times are milliseconds since 1970."""
    return {
        "id": message_trace.message_id,
        "topic": message_trace.topic,
        "tag": message_trace.tags,
        "keys": message_trace.keys.split(),
        "steps": [
            {
                "event": step.event.value,
                "time": step.time_ms,
                "group": step.group,
                "client": step.client,
                "broker": step.broker,
                "costMs": step.cost_ms,
                "success": step.success,
                "outcome": step.outcome,
                "retryTimes": step.retry_times,
                "offsetId": step.offset_message_id,
            }
            for step in message_trace.steps
        ],
    }


def _show(message_trace: "MessageTrace", *, first: bool) -> None:
    if not first:
        click.echo()
    parts = (("topic", message_trace.topic), ("tag", message_trace.tags), ("keys", message_trace.keys))
    head = " ".join([message_trace.message_id, *(f"{name}={text}" for name, text in parts if text)])
    echo_wrapped(plain(head), indent="  ")
    rows = [
        {
            "time": time_text(step.time_ms),
            "event": step.event.value,
            "group": step.group,
            "client": step.client,
            "broker": step.broker,
            "ms": step.cost_ms,
            "outcome": step.outcome + (f" (delivery {step.retry_times + 1})" if step.retry_times else ""),
        }
        for step in message_trace.steps
    ]
    show_rows(rows, as_json=False, less=("client", "ms"))
