"""`tandemq spark`: commands for the jobs of the data pipeline. `tandemq.spark` is imported when a command runs."""

import time
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.spark.collect import collect
from tandemq.cli.spark.config_of import config_lines, config_of_broker, config_of_option, read_config
from tandemq.cli.spark.dataset import expire, remove, state
from tandemq.cli.spark.losses import lost_bytes, show_losses
from tandemq.cli.spark.parameters import (
    EXISTING,
    CommonOptions,
    FillingOptions,
    common_options,
    filling_options,
    lake_argument,
    new_lake_argument,
    range_option,
    retention_option,
    source_argument,
    state_option,
)
from tandemq.cli.spark.pipeline import pipeline
from tandemq.cli.spark.replay import replay
from tandemq.cli.spark.session import clear_errors, run_into_lake
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.output import json_option, show_facts, show_json, show_rows
from tandemq.cli.support.paths import LocalPath, lake_location, storage_option
from tandemq.config.settings import DELAY_LEVELS, parse_delay_levels
from tandemq.errors import ConfigError

if TYPE_CHECKING:
    from tandemq.spark.jobs.rebuild import RebuildResult
    from tandemq.spark.jobs.stats import LogStatistics

SHOWN_MAX = 20
ALLOW_LOSS = {
    "set failOnDataLoss to false to continue without them": "--allow-loss continues without them",
    "set failOnDataLoss to false": "give --allow-loss",
}
"""Hints of the source, in terms of the options of the commands."""

store_argument = click.argument("store", type=EXISTING)


@click.group()
def spark() -> None:
    """Archive, check and measure logs with Spark.

    Needs the extra: pip install 'tandemq[spark]'. STORE is a broker's storePathRootDir, or a directory of commit log
    files, or the URL of archived ones; only collect, replay to topics, and options with an address connect to brokers.
    Exit codes: 0 success, 1 error, 2 wrong usage, 3 a check found faults, or part of the log is missing.
    """


# archive, and maintenance of the lake


@spark.command()
@store_argument
@new_lake_argument
@click.option("--broker-name", help="Value of the column of that name; by default the store directory's name.")
@config_of_option("Keep topics, groups, offsets and delay progress of this broker, instead of those in STORE's files.")
@filling_options(
    "records",
    click.option(
        "--batch-bytes", default=4 << 30, show_default=True, type=click.IntRange(1), help="Bytes of log per commit."
    ),
)
@common_options
def archive(
    store: Path | str,
    lake: Path | str,
    broker_name: str | None,
    config_of: str | None,
    batch_bytes: int,
    filling: FillingOptions,
    common: CommonOptions,
) -> None:
    """Write the log of STORE into the table LAKE, each record once.

    LAKE is the directory of a Delta table, also at a URL, or the name of an Iceberg table: iceberg://CATALOGUE/NAMESPACE.TABLE.

    Records that LAKE contains already are not written again: the command can be interrupted and repeated. Damage is
    archived with its verdict. The broker's topics, groups, offsets and delay progress are kept beside the table, for
    `replay --to-store`.
    """
    if config_of is not None:
        config_of_broker(config_of)  # says at once that it does not answer
    with common.session(ALLOW_LOSS) as (session, java):
        from tandemq.spark.jobs.archive import Archive, ArchiveOptions, ArchiveResult  # noqa: PLC0415

        bar = common.progress("archive")

        def show(done: ArchiveResult) -> None:
            bar(done.end - done.start, done.log_end - done.start)

        log, place = common.locations([store, lake])
        job = Archive(
            ArchiveOptions(
                store=log,
                lake=place,
                broker_name=broker_name,
                checkpoint=filling.checkpoint,
                follows=filling.follow,
                trigger=filling.every,
                bytes_max=batch_bytes,
                fails_on_loss=not filling.allow_loss,
                vacuum_hours=filling.vacuum_hours,
                config=partial(read_config, config_of) if config_of is not None else None,
            ),
            progress=show,
        )
        facts = run_into_lake(job, session)
    show_facts(facts | {"java": java}, as_json=common.as_json)


@spark.command()
@lake_argument
@storage_option
@json_option
def compact(lake: Path | str, storage: tuple[str, ...], as_json: bool) -> None:
    """Merge the small files of LAKE into larger ones; readers are not disturbed."""
    with clear_errors():
        from tandemq.spark.lake.formats import open_lake  # noqa: PLC0415

        table = open_lake(lake_location(lake, storage))
        done = table.compact() | {"files": len(table.data_files()), "rows": table.rows()}
    show_facts(done, as_json=as_json)


@spark.command()
@lake_argument
@click.option(
    "--hours",
    default=168,
    show_default=True,
    type=click.IntRange(0),
    help="Minimum age of files since they left the table; must exceed the longest read or write.",
)
@click.option("--dry-run", is_flag=True, help="Only list them.")
@storage_option
@json_option
def vacuum(lake: Path | str, hours: int, dry_run: bool, storage: tuple[str, ...], as_json: bool) -> None:
    """Delete files in LAKE that are not part of the table: replaced by compact, or left by killed tasks."""
    with clear_errors():
        from tandemq.spark.lake.formats import open_lake  # noqa: PLC0415

        names = open_lake(lake_location(lake, storage)).vacuum(hours, dry_run=dry_run)
    if as_json:
        show_json({"files": names, "deleted": not dry_run})
        return
    for name in names:
        click.echo(name)
    click.echo(f"{len(names)} files {'would be deleted' if dry_run else 'deleted'}")


# checks


@spark.command()
@store_argument
@range_option
@state_option
@common_options
def scrub(
    store: Path | str,
    range_bytes: int,
    state: Path | None,
    common: CommonOptions,
) -> None:
    """Read every record of STORE and verify its checksum; exit code 3 on damage, or if files are missing."""
    with common.session() as (session, java):
        from tandemq.spark.jobs.scrub import scrub as check  # noqa: PLC0415

        progress = common.progress("scrub")
        place = common.location(store)
        found = check(session, place, range_bytes=range_bytes, state=state, progress=progress)
    if common.as_json:
        show_json(asdict(found) | {"java": java})
    else:
        for damage in found.damages[:SHOWN_MAX]:
            click.echo(f"damage at {damage['commitLogOffset']}, {damage['size']} bytes: {damage['verdict']}")
        show_losses(found.lost)
        facts = asdict(found) | {"damages": len(found.damages), "lost": lost_bytes(found.lost)}
        show_facts(facts, as_json=False)
    if found.damages or found.lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


@spark.command()
@click.argument("first", type=EXISTING)
@click.argument("second", type=EXISTING)
@retention_option
@range_option
@state_option
@common_options
def audit(
    first: Path | str,
    second: Path | str,
    allow_retention: bool,
    range_bytes: int,
    state: Path | None,
    common: CommonOptions,
) -> None:
    """Compare the logs of two replicas, the store directories FIRST and SECOND; exit code 3 if they diverge.

    Only log offsets that both contain are compared; records after the end of the other log are shown as lag. Records
    that are missing in one log, because it begins later or has a gap, and those that disappear meanwhile, are shown as
    lost, and lead to exit code 3 too.
    """
    with common.session() as (session, java):
        from tandemq.spark.jobs.audit import audit as compare  # noqa: PLC0415

        progress = common.progress("audit")
        first_location, second_location = common.locations([first, second])
        found = compare(
            session,
            first_location,
            second_location,
            range_bytes=range_bytes,
            allow_retention=allow_retention,
            state=state,
            progress=progress,
        )
    facts = asdict(found) | {"diverges_at": found.diverges_at}
    if common.as_json:
        show_json(facts | {"java": java})
    else:
        shown = [
            {
                "kind": difference["kind"],
                "at": difference["commitLogOffset"],
                "bytes": difference.get("size"),
                "topic": difference.get("topic", ""),
                "queue": difference.get("queueId"),
                "offset": difference.get("queueOffset"),
                "in": ", ".join(difference.get("in", [])),
            }
            for difference in found.differences[:SHOWN_MAX]
        ]
        if shown:
            show_rows(shown, as_json=False)
        show_losses(found.lost)
        counts, lag = facts.pop("counts") | {"lost": lost_bytes(found.lost)}, found.first_end - found.second_end
        del facts["differences"]
        show_facts(facts | counts | {"second is behind by": lag}, as_json=False)
    if found.diverges_at is not None or found.lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


# products of the log


@spark.command()
@store_argument
@click.argument("output", type=LocalPath(file_okay=False, path_type=Path))
@click.option(
    "--queue-file-bytes",
    default=6_000_000,
    show_default=True,
    type=click.IntRange(20),
    help="The broker's mappedFileSizeConsumeQueue.",
)
@click.option("--index/--no-index", default=True, help="Whether to rebuild the key index too.")
@click.option(
    "--slots", default=5_000_000, show_default=True, type=click.IntRange(1), help="The broker's maxHashSlotNum."
)
@click.option(
    "--entries", default=20_000_000, show_default=True, type=click.IntRange(2), help="The broker's maxIndexNum."
)
@click.option("--delays", default=DELAY_LEVELS, show_default=True, help="The broker's messageDelayLevel.")
@click.option(
    "--allow-loss",
    is_flag=True,
    help="Copy the log too, with blanks for its missing bytes: OUTPUT becomes a store with the messages that are left.",
)
@config_of_option(
    "With --allow-loss: take topics, groups, offsets and delay progress from this broker, not from STORE."
)
@range_option
@common_options
def rebuild(
    store: Path | str,
    output: Path,
    queue_file_bytes: int,
    index: bool,
    slots: int,
    entries: int,
    delays: str,
    allow_loss: bool,
    config_of: str | None,
    range_bytes: int,
    common: CommonOptions,
) -> None:
    """Rebuild the consume queues and the key index of STORE from its log, in the new directory OUTPUT.

    STORE is only read. To use the result, stop the broker and replace STORE's directories by those in OUTPUT. After an
    interruption the same command resumes. With --allow-loss OUTPUT is a store of its own, and the exit code 3 if part
    of the log is missing, which is listed.
    """
    if config_of is not None and not allow_loss:
        raise click.UsageError("--config-of needs --allow-loss: otherwise OUTPUT has no configuration")
    config = config_of_broker(config_of) if config_of is not None else None
    with common.session() as (session, java):
        from tandemq.spark.jobs.rebuild import RebuildOptions  # noqa: PLC0415
        from tandemq.spark.jobs.rebuild import rebuild as make  # noqa: PLC0415

        options = RebuildOptions(
            store=common.location(store),
            output=output,
            queue_file_bytes=queue_file_bytes - queue_file_bytes % 20,
            index=index,
            slots=slots,
            entries=entries,
            delays_ms=parse_delay_levels(delays),
            range_bytes=range_bytes,
            allows_loss=allow_loss,
            config=config,
        )
        began = time.monotonic()
        done = make(
            session,
            options,
            lambda what: None if common.as_json else click.echo(f"rebuild: {what}", err=True),
            common.progress("rebuild"),
        )
    _show_rebuild(done, output, {"seconds": round(time.monotonic() - began, 3), "java": java}, as_json=common.as_json)
    if done.lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _show_rebuild(done: "RebuildResult", output: Path, more: dict[str, Any], *, as_json: bool) -> None:
    """Show a result. `more`: further facts."""
    facts = asdict(done) | more
    if as_json:
        show_json(facts | {"config": done.config.facts() if done.config is not None else None})
        return
    show_losses(done.lost)
    for hole in done.holes[:SHOWN_MAX]:
        click.echo(f"no messages: {hole['topic']} queue {hole['queueId']}, offsets [{hole['start']}, {hole['end']})")
    for line in config_lines(done.config, output):
        click.echo(line)
    del facts["config"]
    missing = sum(hole["end"] - hole["start"] for hole in done.holes)
    show_facts(facts | {"lost": lost_bytes(done.lost), "holes": missing}, as_json=False)


@spark.command()
@source_argument
@range_option
@state_option
@common_options
def stats(
    source: Path | str,
    range_bytes: int,
    state: Path | None,
    common: CommonOptions,
) -> None:
    """Count messages, bytes, latency and lag of SOURCE, a store or a lake, by topic and group.

    With --json also per minute. Latency is from the producer's clock to the broker's. Exit code 3: part of the log is
    missing.
    """
    with common.session() as (session, java):
        from tandemq.spark.jobs.stats import gather  # noqa: PLC0415

        progress = common.progress("stats")
        place = common.location(source)
        found = gather(session, place, minutes=common.as_json, range_bytes=range_bytes, state=state, progress=progress)
    if common.as_json:
        show_json(asdict(found) | {"java": java})
    else:
        _show_stats(found)
    if found.lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _show_stats(found: "LogStatistics") -> None:
    hidden = ("first", "last")
    show_rows([{k: v for k, v in row.items() if k not in hidden} for row in found.topics], as_json=False)
    if found.groups:
        click.echo()
        show_rows(found.groups, as_json=False)
    if found.damaged:
        click.echo(f"\n{found.damaged} damaged ranges were found: tandemq spark scrub lists them")
    show_losses(found.lost)


@spark.command()
@source_argument
@click.argument("page", type=LocalPath(dir_okay=False, path_type=Path))
@click.option(
    "--replica",
    "replicas",
    multiple=True,
    type=EXISTING,
    help="Store directory of a replica to compare SOURCE with, or URL of its archived log files; repeatable.",
)
@click.option("--title", help="Title of the page; by default from the name of SOURCE.")
@retention_option
@range_option
@state_option
@common_options
def report(
    source: Path | str,
    page: Path,
    replicas: tuple[Path | str, ...],
    title: str | None,
    allow_retention: bool,
    range_bytes: int,
    state: Path | None,
    common: CommonOptions,
) -> None:
    """Write PAGE, one HTML file: messages, bytes and latency per minute, lag per group, divergence of replicas.

    SOURCE is a store or a lake; only a store can be compared with replicas. With --state, results
    of comparisons are kept in files next to it, with the suffixes .replica-1, .replica-2 and so on.
    """
    if not page.absolute().parent.is_dir():
        raise ConfigError(f"{page} cannot be written: there is no directory {page.absolute().parent}")
    with common.session() as (session, java):
        from tandemq.spark.jobs.audit import audit as compare  # noqa: PLC0415
        from tandemq.spark.jobs.audit import overlap  # noqa: PLC0415
        from tandemq.spark.jobs.report import report_page  # noqa: PLC0415
        from tandemq.spark.jobs.stats import gather  # noqa: PLC0415

        place, *others = common.locations([source, *replicas])
        for other in others:
            overlap(place, other)
        progress = common.progress("stats")
        found = gather(session, place, range_bytes=range_bytes, state=state, progress=progress)
        audits = [
            compare(
                session,
                place,
                other,
                range_bytes=range_bytes,
                allow_retention=allow_retention,
                state=state.with_name(f"{state.name}.replica-{number}") if state is not None else None,
                progress=common.progress(f"audit with {other}"),
            )
            for number, other in enumerate(others, 1)
        ]
    text = report_page(title or f"The log of {PurePath(place.url).name}", found, audits, made=datetime.now(UTC))
    page.write_text(text, encoding="utf-8")
    diverges = [audit.second for audit in audits if audit.diverges_at is not None]
    facts = {"page": str(page), "bytes": len(text.encode()), "topics": len(found.topics), "diverging": len(diverges)}
    lost = lost_bytes([*found.lost, *(loss for audit in audits for loss in audit.lost)])
    show_facts(facts | {"lost": lost} | {"java": java}, as_json=common.as_json)
    if lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


spark.add_command(collect)
spark.add_command(pipeline)
spark.add_command(replay)
spark.add_command(remove)
spark.add_command(expire)
spark.add_command(state)
