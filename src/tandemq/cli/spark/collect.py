"""`tandemq spark collect`: copies messages of a running cluster into a lake."""

from pathlib import Path

import click

from tandemq.cli.spark.parameters import (
    CommonOptions,
    FillingOptions,
    common_options,
    filling_options,
    new_lake_argument,
)
from tandemq.cli.spark.session import run_into_lake
from tandemq.cli.support.client_session import name_servers_option
from tandemq.cli.support.output import show_facts
from tandemq.cli.support.progress import StatusLine
from tandemq.cli.support.tls import spark_tls

ALLOW_LOSS = {"failOnDataLoss=false continues without them": "--allow-loss continues without them"}
"""Hints of the source, in terms of this command's options."""


@click.command()
@new_lake_argument
@name_servers_option("Name servers of the cluster, host:port;host:port.")
@click.option("--subscribe", metavar="TOPICS", help="Topics to collect, separated by commas; all by default.")
@click.option(
    "--read-from",
    default="any",
    show_default=True,
    type=click.Choice(["any", "slave", "master"]),
    help="Members to read: slaves first, slaves only, or the master first.",
)
@filling_options(
    "messages",
    click.option(
        "--batch-messages", default=1_000_000, show_default=True, type=click.IntRange(1), help="Messages per commit."
    ),
)
@common_options
def collect(
    lake: Path | str,
    name_servers: str,
    subscribe: str | None,
    read_from: str,
    batch_messages: int,
    filling: FillingOptions,
    common: CommonOptions,
) -> None:
    """Write the messages of a cluster into the Delta table LAKE, each once.

    For clusters whose store directories are not accessible; if they are, archive is faster. Messages that LAKE contains
    already are not written again: the command can be interrupted and repeated.
    """
    what = {"subscribe": subscribe} if subscribe is not None else {"subscribePattern": ".*"}
    source = {
        "nameServer": name_servers,
        **spark_tls(),
        **what,
        "readFrom": read_from,
        "maxOffsetsPerTrigger": str(batch_messages),
        "failOnDataLoss": str(not filling.allow_loss).lower(),
    }
    with common.session(ALLOW_LOSS) as (session, java):
        from tandemq.spark.jobs.collect import Collect, CollectOptions, CollectResult  # noqa: PLC0415

        line = StatusLine(silent=common.as_json)

        def show(done: CollectResult) -> None:
            line.show(lambda: f"collect: {done.rows:,} messages, {done.bytes / 1e6:,.0f} MB in {done.commits} commits")

        job = Collect(
            CollectOptions(
                source=source,
                lake=common.location(lake),
                checkpoint=filling.checkpoint,
                follows=filling.follow,
                trigger=filling.every,
                vacuum_hours=filling.vacuum_hours,
            ),
            progress=show,
        )
        facts = run_into_lake(job, session)
    show_facts(facts | {"java": java}, as_json=common.as_json)
