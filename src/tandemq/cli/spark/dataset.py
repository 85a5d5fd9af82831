"""`tandemq spark remove`, `expire` and `state`: erasure, retention and time travel."""

import json
import shutil
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.spark.losses import show_losses
from tandemq.cli.spark.parameters import (
    EXISTING,
    CommonOptions,
    allow_loss_option,
    common_options,
    lake_argument,
    source_argument,
)
from tandemq.cli.support.durations import parse_duration, parse_time
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.output import show_facts, show_json, show_rows, time_text
from tandemq.cli.support.paths import LocalPath

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tandemq.spark.jobs.removal import Removal

EXIT_LEFT = 3


def _pair(text: str) -> tuple[str, str]:
    name, is_pair, value = text.partition("=")
    if not is_pair:
        raise click.UsageError(f"--property {text!r} is not NAME=VALUE")
    return name, value


@click.command()
@click.option("--lake", "lakes", multiple=True, type=EXISTING, help="Remove from this lake; repeatable.")
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=EXISTING,
    help="Remove from the log files in this directory or at this URL, or in the store directory of a stopped broker; "
    "repeatable.",
)
@click.option("--key", "keys", multiple=True, help="Messages with this key; repeatable.")
@click.option("--unique-key", "unique_keys", multiple=True, help="The message with this unique key; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Messages with this property; repeatable."
)
@click.option("--topic", "topics", multiple=True, help="Only of this topic, with its retries; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only count the messages.")
@click.option(
    "--report", "page", type=LocalPath(dir_okay=False, path_type=Path), help="Also write the report to this JSON file."
)
@common_options
def remove(
    lakes: tuple[Path | str, ...],
    logs: tuple[Path | str, ...],
    keys: tuple[str, ...],
    unique_keys: tuple[str, ...],
    properties: tuple[str, ...],
    topics: tuple[str, ...],
    dry_run: bool,
    page: Path | None,
    common: CommonOptions,
) -> None:
    """Remove all messages with a key from lakes and from archived logs, and verify it by a second read.

    A removed message keeps its place, size and times; its body, keys, tags, properties and its producer's address are
    overwritten. Logs stay valid for brokers and for all commands. Older versions of a lake that have such messages are
    deleted. Running brokers, consumers and backups are not reached. The command can be repeated. Exit code 3: something
    is left.
    """
    if not lakes and not logs:
        raise click.UsageError("give --lake or --log")
    pairs = tuple(map(_pair, properties))
    with common.session() as (session, java):
        from tandemq.spark.jobs import removal  # noqa: PLC0415  # --help needs no Spark
        from tandemq.spark.jobs.selection import Selection  # noqa: PLC0415

        selection = Selection(keys, unique_keys, pairs, topics)
        results = []
        places = common.locations([*lakes, *logs])
        for lake in places[: len(lakes)]:
            progress = common.progress(f"remove from {lake}")
            results.append(removal.remove_from_lake(session, lake, selection, dry_run=dry_run, progress=progress))
        for log in places[len(lakes) :]:
            progress = common.progress(f"remove from {log}")
            results.append(removal.remove_from_log(session, log, selection, dry_run=dry_run, progress=progress))
        report = removal.report(
            selection, results, dry_run=dry_run, made=datetime.now(UTC).isoformat(timespec="seconds")
        )
    if page is not None:
        page.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if common.as_json:
        show_json(report | {"java": java})
    else:
        _show_removal(results, report["notReached"], dry_run=dry_run)
    if not all(result.is_complete for result in results):
        raise click.exceptions.Exit(EXIT_LEFT)


def _show_removal(results: "list[Removal]", not_reached: list[str], *, dry_run: bool) -> None:
    for result in results:
        verb = "found" if dry_run else "removed"
        click.echo(f"{result.kind} {result.path}: {verb} {result.messages} messages in {result.files} files")
        show = [{"topic": topic, "messages": count} for topic, count in result.topics.items()]
        if show:
            show_rows(show, as_json=False)
        if result.old_files:
            click.echo(f"deleted {result.old_files} files of older versions")
        if result.found_after is not None:
            click.echo(f"a second read found {result.found_after} messages")
        for damage in result.damaged:
            click.echo(f"left: damaged bytes at {damage['commitLogOffset']}, {damage['size']} bytes, contain a value")
        for path in result.left:
            click.echo(f"left: {path} may belong to a running archive: repeat the command in an hour")
        for lost in result.lost:
            click.echo(f"lost: log offsets [{lost['start']}, {lost['end']}) {lost['why']}")
    click.echo("not reached:")
    for what in not_reached:
        click.echo(f"  {what}")


@click.command()
@lake_argument
@click.option("--older-than", metavar="AGE", help="Delete messages stored longer ago than this: 90d, 12h.")
@click.option("--before", metavar="TIME", help="Delete messages stored before this time: 2024-05-31T13:00Z.")
@click.option("--topic", "topics", multiple=True, help="Only of this topic; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only count them.")
@common_options
def expire(
    lake: Path | str,
    older_than: str | None,
    before: str | None,
    topics: tuple[str, ...],
    dry_run: bool,
    common: CommonOptions,
) -> None:
    """Delete old messages from LAKE, in one commit.

    Files with old messages only leave the table; others are rewritten. Archive and collect continue where they were.
    `vacuum` then deletes the old files, and until it does, older versions of the table can be read.
    """
    if (older_than is None) == (before is None):
        raise click.UsageError("give one of --older-than and --before")
    if before is not None:
        before_ms = parse_time(before)
    else:
        before_ms = int((time.time() - parse_duration(older_than or "").total_seconds()) * 1000)
    with common.session() as (session, java):
        from tandemq.spark.jobs.retention import expire as run  # noqa: PLC0415  # --help needs no Spark

        progress = common.progress("expire")
        place = common.location(lake)
        done = run(session, place, before_ms, topics=topics, dry_run=dry_run, progress=progress)
    facts = asdict(done) | {"before": time_text(before_ms), "dry_run": dry_run}
    if common.as_json:
        show_json(facts | {"java": java})
        return
    rows = [{"topic": topic, "messages": count} for topic, count in facts.pop("topics").items()]
    show_rows(rows, as_json=False, empty="no messages are that old")
    show_facts(facts, as_json=False)


@click.command()
@source_argument
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option("--at", metavar="TIME", help="Messages stored before this time: 2024-05-31T13:00Z; by default all.")
@click.option("--from", "from_", metavar="TIME", help="Messages stored at this time or later.")
@click.option("--version", type=click.IntRange(0), help="An older version of a lake's table.")
@click.option(
    "--latest-by-key", is_flag=True, help="Only the last message of each key; one with an empty body deletes it."
)
@click.option(
    "--output",
    metavar="DIRECTORY",
    type=LocalPath(path_type=Path),
    help="Write the messages to this new directory, as Parquet files.",
)
@allow_loss_option
@common_options
def state(
    source: Path | str,
    topics: tuple[str, ...],
    at: str | None,
    from_: str | None,
    version: int | None,
    latest_by_key: bool,
    output: Path | None,
    allow_loss: bool,
    common: CommonOptions,
) -> None:
    """Show what TOPIC held at a moment: all messages stored until then, or the last one of each key.

    SOURCE is a lake or a log: a store directory, or archived log files. Prints counts by queue; --output writes the
    messages themselves. Exit code 3: part of a log is missing.
    """
    times = [parse_time(text) if text is not None else None for text in (from_, at)]
    if output is not None and output.exists():
        raise click.UsageError(f"{output} exists: give a new directory")
    with common.session() as (session, java):
        from pyspark.sql import functions as F  # noqa: PLC0415  # --help needs no Spark

        from tandemq.spark.jobs.messages import open_messages  # noqa: PLC0415
        from tandemq.spark.jobs.moments import TimeSpan  # noqa: PLC0415
        from tandemq.spark.jobs.state import topic_state  # noqa: PLC0415

        opened = open_messages(common.location(source), version=version, allows_loss=allow_loss)
        rows = topic_state(session, opened, topics, span=TimeSpan(*times), version=version, latest_by_key=latest_by_key)
        if output is not None:
            _write(rows, output)
            rows = session.read.parquet(str(output))
        ms = F.unix_millis("storeTimestamp")
        found = rows.groupBy("topic", "brokerName", "queueId").agg(
            F.count("*").alias("messages"),
            F.sum("size").alias("bytes"),
            F.min(ms).alias("first"),
            F.max(ms).alias("last"),
        )
        queues = [row.asDict() for row in found.orderBy("topic", "brokerName", "queueId").collect()]
    lost = [gap._asdict() for gap in opened.lost]
    if common.as_json:
        messages = sum(row["messages"] for row in queues)
        show_json({"queues": queues, "messages": messages, "lost": lost, "java": java})
    else:
        show = [row | {"first": time_text(row["first"]), "last": time_text(row["last"])} for row in queues]
        show_rows(show, as_json=False, empty="no messages")
        show_losses(lost)
    if lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _write(rows: "DataFrame", output: Path) -> None:
    """Write rows to a new directory; if that fails, it is deleted, so that the command can be repeated."""
    try:
        rows.write.parquet(str(output))
    except BaseException:
        shutil.rmtree(output, ignore_errors=True)
        raise
