"""`tandemq spark`: the data pipeline's jobs, each a few lines over `tandemq.spark`, which is loaded when one runs."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.show import json_option, show_facts, show_json, show_rows
from tandemq.cli.spark_pipeline import pipeline
from tandemq.cli.spark_replay import replay
from tandemq.config import DELAY_LEVELS, parse_delay_levels
from tandemq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_FAULTS = 3
REPORT_EVERY_S = 0.5
LINE_EVERY_S = 10.0
SHOWN_MAX = 20

directory = click.Path(exists=True, file_okay=False, path_type=Path)
store_argument = click.argument("store", type=directory)
lake_argument = click.argument("lake", type=click.Path(file_okay=False, path_type=Path))
state_option = click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path),
    help="Keep results in this file, and go on from it after an interruption.",
)  # fmt: skip
range_option = click.option(
    "--range-bytes", default=64 << 20, show_default=True, type=click.IntRange(1 << 16), help="Bytes of log of one task."
)


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what says where Spark runs."""
    command = click.option("--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting.")(command)
    return click.option(
        "--master", default="local[*]", show_default=True, help="Spark's master: local[N], or a cluster's address."
    )(command)


@click.group()
def spark() -> None:
    """Archive, check and measure logs with Spark.

    Needs the extra: pip install 'tandemq[spark]'. STORE is a broker's storePathRootDir, or a directory of commit log
    files; no broker is asked. Exit codes: 0 done, 1 it did not work, 2 wrong usage, 3 a check found faults.
    """


@contextmanager
def _session(master: str, conf: tuple[str, ...], *, silent: bool) -> "Iterator[SparkSession]":
    """A session for one command.

    Raises:
        ConfigError: the extra is not installed, there is no Java, or a setting is malformed.
    """
    try:
        from tandemq.spark.session import open_session  # noqa: PLC0415  # the other commands need no Spark
    except ImportError as error:
        raise ConfigError(f"Spark is not installed: {error}", hint="pip install 'tandemq[spark]'") from error
    settings = dict(one.partition("=")[::2] for one in conf)
    if "" in settings or not all("=" in one for one in conf):
        raise ConfigError("--conf takes NAME=VALUE", hint="--conf spark.driver.memory=2g")
    session, java = open_session("tandemq spark", master=master, settings=settings)
    if java is not None and not silent:
        click.echo(f"Java {java.version} from {java.origin}", err=True)
    try:
        yield session
    finally:
        if java is not None:
            session.stop()


class _Progress:
    """One moving line on a terminal, a line now and then elsewhere, nothing with --json."""

    def __init__(self, what: str, *, silent: bool) -> None:
        self._what = what
        self._silent = silent
        self._moves = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._silent or (now - self._last < (REPORT_EVERY_S if self._moves else LINE_EVERY_S) and done < total):
            return
        self._last = now
        speed = done / 1e6 / max(now - self._began, 1e-9)
        text = f"{self._what}: {100 * done // max(total, 1)} % of {total / 1e6:,.0f} MB, {speed:,.0f} MB/s"
        end = "\n" if done >= total or not self._moves else ""
        click.echo(f"\r{text}{end}" if self._moves else f"{text}{end}", nl=False, err=True)


# archive, and the care of the lake


@spark.command()
@store_argument
@lake_argument
@click.option("--broker-name", help="What the column of that name says; by default the store directory's name.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Spark's checkpoint; by default within the lake.")
@click.option("--follow", is_flag=True, help="Go on as the log grows, until interrupted.")
@click.option("--every", default="1 second", show_default=True, help="With --follow: how often to commit.")
@click.option("--batch-bytes", default=4 << 30, show_default=True, type=click.IntRange(1), help="Log per commit.")
@click.option("--allow-loss", is_flag=True, help="Go on without what retention has taken, instead of failing.")
@session_options
@json_option
def archive(
    store: Path, lake: Path, broker_name: str | None, checkpoint: Path | None, follow: bool, every: str,
    batch_bytes: int, allow_loss: bool, master: str, conf: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Write the log of STORE into the Delta table LAKE, each record once.

    What LAKE holds already is not written again: interrupt and repeat as you like. Damage is archived with its verdict.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.archive import Archive, Archived, ArchiveOptions  # noqa: PLC0415

        bar = _Progress("archive", silent=as_json)

        def tell(done: Archived) -> None:
            bar(done.end - done.start, done.log_end - done.start)

        job = Archive(
            ArchiveOptions(
                store=store, lake=lake, broker_name=broker_name, checkpoint=checkpoint, follows=follow, trigger=every,
                bytes_max=batch_bytes, fails_on_loss=not allow_loss,
            ),
            progress=tell,
        )  # fmt: skip
        if follow:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        began = time.monotonic()
        try:
            done = job.run(session)
        except KeyboardInterrupt:
            done = job.done
    facts = asdict(done) | {"seconds": round(time.monotonic() - began, 3)}
    del facts["trouble"]
    show_facts(facts, as_json=as_json)


@spark.command()
@lake_argument
@json_option
def compact(lake: Path, as_json: bool) -> None:
    """Join the small files of LAKE into larger ones; readers are not disturbed."""
    from tandemq.spark.lake import DeltaLake  # noqa: PLC0415

    table = DeltaLake(lake)
    done = table.compact()
    show_facts(done | {"files": len(table.data_files()), "rows": table.rows()}, as_json=as_json)


@spark.command()
@lake_argument
@click.option(
    "--hours", default=168, show_default=True, type=click.IntRange(0),
    help="Only files that have not been part of the table for so long; must exceed the longest read or write.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only list them.")
@json_option
def vacuum(lake: Path, hours: int, dry_run: bool, as_json: bool) -> None:
    """Delete files in LAKE that are not part of the table: replaced by compact, or left by killed tasks."""
    from tandemq.spark.lake import DeltaLake  # noqa: PLC0415

    names = DeltaLake(lake).vacuum(hours, dry_run=dry_run)
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
@session_options
@json_option
def scrub(store: Path, range_bytes: int, state: Path | None, master: str, conf: tuple[str, ...], as_json: bool) -> None:
    """Read every record of STORE and compare its checksum; exit code 3 on damage."""
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.scrub import scrub as check  # noqa: PLC0415

        progress = _Progress("scrub", silent=as_json)
        found = check(session, store, range_bytes=range_bytes, state=state, progress=progress)
    if as_json:
        show_json(asdict(found))
    else:
        for damage in found.damages[:SHOWN_MAX]:
            click.echo(f"damage at {damage['commitLogOffset']}, {damage['size']} bytes: {damage['verdict']}")
        facts = asdict(found) | {"damages": len(found.damages)}
        show_facts(facts, as_json=False)
    if found.damages:
        raise click.exceptions.Exit(EXIT_FAULTS)


@spark.command()
@click.argument("first", type=directory)
@click.argument("second", type=directory)
@range_option
@state_option
@session_options
@json_option
def audit(
    first: Path, second: Path, range_bytes: int, state: Path | None, master: str, conf: tuple[str, ...], as_json: bool
) -> None:
    """Compare the logs of twins, the store directories FIRST and SECOND; exit code 3 if they diverge.

    Only what both hold is compared; what one holds behind the other's end is told as lag.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.audit import audit as compare  # noqa: PLC0415

        progress = _Progress("audit", silent=as_json)
        found = compare(session, first, second, range_bytes=range_bytes, state=state, progress=progress)
    facts = asdict(found) | {"diverges_at": found.diverges_at}
    if as_json:
        show_json(facts)
    else:
        shown = [
            {"kind": one["kind"], "at": one["commitLogOffset"], "bytes": one.get("size"), "topic": one.get("topic", ""),
             "queue": one.get("queueId"), "offset": one.get("queueOffset"), "in": ", ".join(one.get("in", []))}
            for one in found.differences[:SHOWN_MAX]
        ]  # fmt: skip
        if shown:
            show_rows(shown, as_json=False)
        counts, lag = facts.pop("counts"), found.first_end - found.second_end
        del facts["differences"]
        show_facts(facts | counts | {"second is behind by": lag}, as_json=False)
    if found.diverges_at is not None:
        raise click.exceptions.Exit(EXIT_FAULTS)


# what is made from the log


@spark.command()
@store_argument
@click.argument("output", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--queue-file-bytes", default=6_000_000, show_default=True, type=click.IntRange(20),
    help="The broker's mappedFileSizeConsumeQueue.",
)  # fmt: skip
@click.option("--index/--no-index", default=True, help="Whether the key index is made too.")
@click.option(
    "--slots", default=5_000_000, show_default=True, type=click.IntRange(1), help="The broker's maxHashSlotNum."
)
@click.option(
    "--entries", default=20_000_000, show_default=True, type=click.IntRange(2), help="The broker's maxIndexNum."
)
@click.option("--delays", default=DELAY_LEVELS, show_default=True, help="The broker's messageDelayLevel.")
@range_option
@session_options
@json_option
def rebuild(
    store: Path, output: Path, queue_file_bytes: int, index: bool, slots: int, entries: int, delays: str,
    range_bytes: int, master: str, conf: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """Make the consume queues and the key index of STORE anew from its log, in the new directory OUTPUT.

    STORE is only read. To use them, stop the broker and put OUTPUT's directories in the place of STORE's. Interrupted,
    the same command goes on where it was.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.rebuild import RebuildOptions  # noqa: PLC0415
        from tandemq.spark.rebuild import rebuild as make  # noqa: PLC0415

        options = RebuildOptions(
            store=store, output=output, queue_file_bytes=queue_file_bytes - queue_file_bytes % 20, index=index,
            slots=slots, entries=entries, delays_ms=parse_delay_levels(delays), range_bytes=range_bytes,
        )  # fmt: skip
        began = time.monotonic()
        done = make(
            session, options, lambda what: None if as_json else click.echo(f"rebuild: {what}", err=True),
            _Progress("rebuild", silent=as_json),
        )  # fmt: skip
    show_facts(asdict(done) | {"seconds": round(time.monotonic() - began, 3)}, as_json=as_json)


@spark.command()
@click.argument("source", type=directory)
@range_option
@state_option
@session_options
@json_option
def stats(
    source: Path, range_bytes: int, state: Path | None, master: str, conf: tuple[str, ...], as_json: bool
) -> None:
    """Count messages, bytes, latency and lag of SOURCE, a store directory or a lake, by topic and group.

    With --json also per minute. Latency is from the producer's clock to the broker's.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.stats import gather  # noqa: PLC0415

        progress = _Progress("stats", silent=as_json)
        found = gather(
            session, source, minutes=as_json, range_bytes=range_bytes, state=state, progress=progress
        )  # fmt: skip
    if as_json:
        show_json(asdict(found))
        return
    hidden = ("first", "last")
    show_rows([{k: v for k, v in row.items() if k not in hidden} for row in found.topics], as_json=False)
    if found.groups:
        click.echo()
        show_rows(found.groups, as_json=False)
    if found.damaged:
        click.echo(f"\n{found.damaged} damaged ranges were met: tandemq spark scrub names them")


@spark.command()
@click.argument("source", type=directory)
@click.argument("page", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--twin", "twins", multiple=True, type=directory, help="A store directory to compare SOURCE with.")
@click.option("--title", help="What the page is called; by default after SOURCE.")
@session_options
@json_option
def report(
    source: Path, page: Path, twins: tuple[Path, ...], title: str | None, master: str, conf: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Write PAGE, one HTML file: messages, bytes and latency per minute, lag per group, divergence of twins.

    SOURCE is a store directory or a lake; twins can be compared with a store directory.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.audit import audit as compare  # noqa: PLC0415
        from tandemq.spark.report import report_page  # noqa: PLC0415
        from tandemq.spark.stats import gather  # noqa: PLC0415

        found = gather(session, source)
        progress = _Progress("audit", silent=as_json)
        audits = [compare(session, source, twin, progress=progress) for twin in twins]
    text = report_page(title or f"The log of {source.resolve().name}", found, audits, made=datetime.now(UTC))
    page.write_text(text, encoding="utf-8")
    diverges = [audit.second for audit in audits if audit.diverges_at is not None]
    facts = {"page": str(page), "bytes": len(text.encode()), "topics": len(found.topics), "diverging": len(diverges)}
    show_facts(facts, as_json=as_json)


@spark.command()
@lake_argument
@click.argument("store", type=click.Path(file_okay=False, path_type=Path))
@click.option("--broker-name", help="Which broker group of LAKE; needed if it holds several.")
@click.option(
    "--file-bytes", default=1 << 30, show_default=True, type=click.IntRange(1), help="Its mappedFileSizeCommitLog."
)
@session_options
@json_option
def restore(
    lake: Path, store: Path, broker_name: str | None, file_bytes: int, master: str, conf: tuple[str, ...], as_json: bool
) -> None:
    """Write the log that LAKE holds into the new store directory STORE, byte for byte as it was.

    A fresh slave that is started on it begins with the whole history, and fetches the rest from its master.
    """
    with _session(master, conf, silent=as_json) as session:
        from tandemq.spark.restore import restore as write  # noqa: PLC0415

        done = write(
            session, lake, store, segment_bytes=file_bytes, broker_name=broker_name,
            progress=lambda what: None if as_json else click.echo(f"restore: {what}", err=True),
        )  # fmt: skip
    show_facts(asdict(done), as_json=as_json)


spark.add_command(pipeline)
spark.add_command(replay)
