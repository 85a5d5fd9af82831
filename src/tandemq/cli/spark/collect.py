"""`tandemq spark collect`: the messages of a running cluster into a lake."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.spark.session import LINE_EVERY_S, REPORT_EVERY_S, run_into_lake, session_options, spark_session
from tandemq.cli.support.client_session import DEFAULT_NAME_SERVERS
from tandemq.cli.support.output import json_option, show_facts
from tandemq.cli.support.paths import LocalPath

if TYPE_CHECKING:
    from tandemq.spark.jobs.collect import Collected

ALLOW_LOSS = {"failOnDataLoss=false goes on without them": "--allow-loss goes on without them"}
"""What an option of the source is called here."""


@click.command()
@click.argument("lake", type=LocalPath(file_okay=False, path_type=Path))
@click.option(
    "--namesrv",
    "-n",
    default=DEFAULT_NAME_SERVERS,
    envvar="TANDEMQ_NAMESRV",
    show_default=True,
    show_envvar=True,
    help="Name servers of the cluster, host:port;host:port.",
)
@click.option("--subscribe", metavar="TOPICS", help="Topics to collect, separated by commas; all without this.")
@click.option(
    "--read-from",
    default="any",
    show_default=True,
    type=click.Choice(["any", "slave", "master"]),
    help="Whom to read: slaves first, slaves only, or the master while it lives.",
)
@click.option("--checkpoint", type=LocalPath(path_type=Path), help="Spark's checkpoint; by default within the lake.")
@click.option("--follow", is_flag=True, help="Go on as messages come, until interrupted.")
@click.option("--every", default="1 second", show_default=True, help="With --follow: how often to commit.")
@click.option(
    "--batch-messages", default=1_000_000, show_default=True, type=click.IntRange(1), help="Messages per commit."
)
@click.option(
    "--vacuum-hours",
    default=168,
    show_default=True,
    type=click.IntRange(0),
    help="With --follow: once a day delete files that have not been part of LAKE for so long; 0: never.",
)
@click.option("--allow-loss", is_flag=True, help="Go on without what retention has taken, instead of failing.")
@session_options
@json_option
def collect(
    lake: Path,
    namesrv: str,
    subscribe: str | None,
    read_from: str,
    checkpoint: Path | None,
    follow: bool,
    every: str,
    batch_messages: int,
    vacuum_hours: int,
    allow_loss: bool,
    master: str,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the messages of a cluster into the Delta table LAKE, each once.

    For clusters whose disks are out of reach; where they are not, archive is quicker. What LAKE holds already is not
    written again: interrupt and repeat as you like.
    """
    what = {"subscribe": subscribe} if subscribe is not None else {"subscribePattern": ".*"}
    source = {
        "nameServer": namesrv,
        **what,
        "readFrom": read_from,
        "maxOffsetsPerTrigger": str(batch_messages),
        "failOnDataLoss": str(not allow_loss).lower(),
    }
    with spark_session(master, conf, silent=as_json, words=ALLOW_LOSS) as (session, java):
        from tandemq.spark.jobs.collect import Collect, CollectOptions  # noqa: PLC0415  # --help needs no Spark

        job = Collect(
            CollectOptions(
                source=source,
                lake=lake,
                checkpoint=checkpoint,
                follows=follow,
                trigger=every,
                vacuum_hours=vacuum_hours,
            ),
            progress=_Told(silent=as_json),
        )
        facts = run_into_lake(job, session, follows=follow)
    show_facts(facts | {"java": java}, as_json=as_json)


class _Told:
    """How much was collected: one moving line on a terminal, a line now and then elsewhere, nothing with --json."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._moves = sys.stderr.isatty()
        self._last = time.monotonic()

    def __call__(self, done: "Collected") -> None:
        now = time.monotonic()
        if self._silent or now - self._last < (REPORT_EVERY_S if self._moves else LINE_EVERY_S):
            return
        self._last = now
        text = f"collect: {done.rows:,} messages, {done.bytes / 1e6:,.0f} MB in {done.commits} commits"
        click.echo(f"\r{text}" if self._moves else text, nl=not self._moves, err=True)
