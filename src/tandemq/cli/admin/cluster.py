"""`tandemq cluster`: list brokers, show and change their settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.advice import advised
from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.exit_codes import EXIT_FAILED
from tandemq.cli.support.name_completion import complete_brokers, complete_topics
from tandemq.cli.support.output import json_option, show_facts, show_json, show_rows, table_options
from tandemq.cli.support.progress import StatusLine
from tandemq.errors import LocalError, NetworkError, RemoteError

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin


@click.group()
def cluster() -> None:
    """List brokers, change their settings, spread topics over new broker groups, drain old ones."""


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


def _wait_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --wait, which the command gets as `wait_s`; `text`: its help."""
    return click.option("--wait", "wait_s", default=60.0, show_default=True, type=click.FloatRange(0), help=text)


@cluster.command(name="add-group")
@click.argument("broker", shell_complete=complete_brokers)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic; repeatable.  [default: all]",
)
@_wait_option("How long consumers of the new queues are waited for, seconds.")
@namesrv_option
@json_option
def add_group(broker: str, topics: tuple[str, ...], wait_s: float, name_servers: str, as_json: bool) -> None:
    """Spread the topics of a cluster over BROKER too, a broker group that has joined it.

    It gets the consumer groups and topics of the other groups of its cluster, first for consumers; when they have its
    queues, or the time is over, producers may send there. Topics whose messages have an order by key (--order, or of
    type FIFO), and those that are readable only on BROKER, are left out unless --topic names them. The command may be
    repeated.
    """
    from tandemq.client.aio.elastic import join, plan_joining  # noqa: PLC0415  # --help needs no client

    show = _shown(as_json)

    async def requests(admin: "Admin") -> dict[str, Any]:
        plan = await plan_joining(admin, broker, topics)
        late = await join(admin, plan, wait_s, show)
        return {
            "broker": broker,
            "topics": [topic.topic_name for topic in plan.topics],
            "groups": [group.group_name for group in plan.groups],
            "leftOut": plan.left,
            "lateGroups": late,
        }

    found = with_admin(name_servers, requests)
    if as_json:
        show_json(found)
        return
    show_facts(
        {
            "broker": broker,
            "new topics": ", ".join(found["topics"]) or "none",
            "new consumer groups": ", ".join(found["groups"]) or "none",
        },
        as_json=False,
    )
    for topic, reason in found["leftOut"].items():
        click.echo(f"left out: {topic}: {reason}")
    if found["lateGroups"]:
        late = ", ".join(found["lateGroups"])
        click.echo(f"these groups have not reported all new queues in time, and may get first messages late: {late}")


@cluster.command()
@click.argument("broker", shell_complete=complete_brokers)
@_wait_option("How long producers are waited for until they have left, seconds.")
@click.option(
    "--limit", "limit_s", type=click.FloatRange(0), help="Wait no longer for consumers, seconds; exit code 1."
)
@click.option("--force", is_flag=True, help="Also if a topic has no other broker group to which producers can send.")
@click.option("--undo", is_flag=True, help="Let producers send to it again.")
@namesrv_option
@json_option
def drain(
    broker: str,
    wait_s: float,
    limit_s: float | None,
    force: bool,
    undo: bool,
    name_servers: str,
    as_json: bool,
) -> None:
    """Take the broker group BROKER out of service: end when nothing waits there and no consumer group lags.

    Producers leave it, then it refuses sends; consumers go on. Delayed and timed messages, and transactions that
    producers have not ended, are waited for, too.
    """
    from tandemq.client.aio.elastic import leave, stay, unplaced_topics, until_idle  # noqa: PLC0415  # as above

    show = _shown(as_json)

    async def requests(admin: "Admin") -> tuple[str, str]:
        if undo:
            await stay(admin, broker)
            return "", ""
        only = await unplaced_topics(admin, broker)
        if only and not force:
            raise LocalError(
                f"producers could not send to these topics, which have queues on {broker} only: {', '.join(only[:5])}"
                + (f" and {len(only) - 5} more" if len(only) > 5 else ""),
                hint="tandemq cluster add-group gives them queues on another broker group; --force drains nevertheless",
            )
        await leave(admin, broker, wait_s, show)
        waiting = await until_idle(admin, broker, limit_s, show)
        return str(waiting), waiting.todo

    left, todo = with_admin(name_servers, requests)
    facts = {"broker": broker, "drained": not left and not undo, "waiting": left, "todo": todo}
    show_facts(facts, as_json=as_json)
    if left:
        raise click.exceptions.Exit(EXIT_FAILED)


def _shown(as_json: bool) -> "Callable[[str], None]":
    line = StatusLine(silent=as_json)
    return lambda text: line.show(lambda: text)


def _pair(pair: str) -> tuple[str, str]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"--set {pair}: KEY=VALUE is expected")
    return name.strip(), value.strip()
