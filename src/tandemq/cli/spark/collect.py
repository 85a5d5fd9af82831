"""`tandemq spark collect`: copies messages of a running cluster into a lake."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.spark.parameters import common_options, filling_options, new_lake_argument
from tandemq.cli.spark.session import LINE_EVERY_S, REPORT_EVERY_S, run_into_lake, spark_session
from tandemq.cli.support.client_session import DEFAULT_NAME_SERVERS
from tandemq.cli.support.output import show_facts
from tandemq.cli.support.paths import lake_location
from tandemq.cli.support.tls import spark_tls

if TYPE_CHECKING:
    from tandemq.spark.jobs.collect import CollectResult

ALLOW_LOSS = {"failOnDataLoss=false continues without them": "--allow-loss continues without them"}
"""Hints of the source, in terms of this command's options."""


@click.command()
@new_lake_argument
@click.option(
    "--namesrv",
    "-n",
    default=DEFAULT_NAME_SERVERS,
    envvar="TANDEMQ_NAMESRV",
    show_default=True,
    show_envvar=True,
    help="Name servers of the cluster, host:port;host:port.",
)
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
    namesrv: str,
    subscribe: str | None,
    read_from: str,
    checkpoint: Path | str | None,
    follow: bool,
    every: str,
    batch_messages: int,
    vacuum_hours: int,
    allow_loss: bool,
    storage: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the messages of a cluster into the Delta table LAKE, each once.

    For clusters whose store directories are not accessible; if they are, archive is faster. Messages that LAKE contains
    already are not written again: the command can be interrupted and repeated.
    """
    what = {"subscribe": subscribe} if subscribe is not None else {"subscribePattern": ".*"}
    source = {
        "nameServer": namesrv,
        **spark_tls(),
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
                lake=lake_location(lake, storage),
                checkpoint=checkpoint,
                follows=follow,
                trigger=every,
                vacuum_hours=vacuum_hours,
            ),
            progress=_ProgressLine(silent=as_json),
        )
        facts = run_into_lake(job, session)
    show_facts(facts | {"java": java}, as_json=as_json)


class _ProgressLine:
    """Progress of a collect: one updated line on a terminal, a line every few seconds elsewhere, nothing with
    --json."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._is_terminal = sys.stderr.isatty()
        self._last = time.monotonic()

    def __call__(self, done: "CollectResult") -> None:
        now = time.monotonic()
        if self._silent or now - self._last < (REPORT_EVERY_S if self._is_terminal else LINE_EVERY_S):
            return
        self._last = now
        text = f"collect: {done.rows:,} messages, {done.bytes / 1e6:,.0f} MB in {done.commits} commits"
        click.echo(f"\r{text}" if self._is_terminal else text, nl=not self._is_terminal, err=True)
