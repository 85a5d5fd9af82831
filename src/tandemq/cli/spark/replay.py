"""`tandemq spark replay`: sends a lake's messages to a topic again, or writes its log as a fresh slave's store."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.spark.config_of import config_lines, config_of_broker, config_of_option
from tandemq.cli.spark.losses import loss_lines
from tandemq.cli.spark.parameters import CommonOptions, allow_loss_option, common_options, source_argument
from tandemq.cli.support.client_session import name_servers_option, quiet
from tandemq.cli.support.durations import duration_text, parse_byte_rate, parse_rate, parse_time
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.members import ask_json
from tandemq.cli.support.paths import LocalPath
from tandemq.cli.support.tls import spark_tls
from tandemq.errors import ConfigError, NetworkError, RemoteError
from tandemq.model.codes import RequestCode

if TYPE_CHECKING:
    from tandemq.spark.jobs.replay import ReplayResult


@click.command()
@source_argument
@click.option("--to-topic", metavar="TOPIC", help="Send messages to this topic.")
@click.option("--to-same-topics", is_flag=True, help="Send each message to the topic it was in.")
@click.option(
    "--to-store",
    metavar="DIRECTORY",
    type=LocalPath(path_type=Path),
    help="Write a commit log to this store directory.",
)
@name_servers_option("Name servers of the cluster to send to, host:port;host:port.")
@click.option("--where", metavar="SQL", help="SQL condition on a lake's columns that selects messages.")
@click.option("--from", "from_", metavar="TIME", help="Send messages stored at this time or later: 2024-05-31T13:00Z.")
@click.option("--to", "to", metavar="TIME", help="Send messages stored before this time.")
@click.option("--rate", metavar="N/s", help="Maximum number of messages per second, all tasks together.")
@click.option("--byte-rate", metavar="N/s", help="Maximum bytes per second, all tasks together, for instance 10MB/s.")
@click.option(
    "--also",
    metavar="TOPIC",
    multiple=True,
    help="Also send the messages of this topic, which is excluded by default; repeatable.",
)
@click.option(
    "--note",
    metavar="FILE",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="Progress file; the same command resumes from it.",
)
@click.option(
    "--broker-name",
    help="With --to-store: broker group whose log to write.  [default: broker-a]  Of a log: its broker group.  "
    "[default: the directory's name]",
)
@click.option(
    "--segment-bytes",
    type=click.IntRange(min=1024),
    default=1 << 30,
    show_default=True,
    help="Size of a log file: mappedFileSizeCommitLog of the group's brokers.",
)
@click.option("--epochs-of", metavar="HOST:PORT", help="Take the epochs of the log from this broker, the master.")
@config_of_option("With --to-store: take topics, groups, offsets and delay progress from this broker, not from SOURCE.")
@allow_loss_option
@common_options
def replay(
    source: Path | str,
    to_topic: str | None,
    to_same_topics: bool,
    to_store: Path | None,
    name_servers: str,
    where: str | None,
    from_: str | None,
    to: str | None,
    rate: str | None,
    byte_rate: str | None,
    also: tuple[str, ...],
    note: Path | None,
    broker_name: str | None,
    segment_bytes: int,
    epochs_of: str | None,
    config_of: str | None,
    allow_loss: bool,
    common: CommonOptions,
) -> None:
    """Send the messages of SOURCE to a topic again, or write its log as the store of a fresh slave.

    SOURCE is a lake, or for topics also a log: a store directory, or archived log files. Exit code 3: part of a log is
    missing.

    Give one of --to-topic, --to-same-topics and --to-store. Messages keep their unique keys, so that consumers can
    recognize duplicates; --from, --to, --rate and --byte-rate limit which messages are sent, and how fast. System
    topics are excluded, and with --to-topic also retry and dead-letter topics. A slave that starts on the store copies
    only later records from its master.
    """
    _check_target(
        is_one=(to_topic is not None) + to_same_topics + (to_store is not None) == 1,
        to_store=to_store is not None,
        is_part=any((where, note, also, from_, to, rate, byte_rate, allow_loss)),
        has_config=config_of is not None,
    )
    times = [parse_time(text) if text is not None else None for text in (from_, to)]
    limits = parse_rate(rate) if rate is not None else None, parse_byte_rate(byte_rate) if byte_rate else None
    epochs = epochs_of_broker(epochs_of) if epochs_of is not None else None
    config = config_of_broker(config_of) if config_of is not None else None

    show = _Progress("bytes" if to_store is None else "segments")
    with quiet(), common.session() as (session, java):
        from tandemq.spark.jobs.moments import TimeSpan  # noqa: PLC0415  # --help needs no Spark
        from tandemq.spark.jobs.pace import Rate  # noqa: PLC0415
        from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic  # noqa: PLC0415

        place = common.location(source)
        if to_store is not None:
            done = replay_to_store(
                session,
                place,
                broker_name or "broker-a",
                to_store,
                segment_bytes=segment_bytes,
                epochs=epochs,
                config=config,
                progress=show,
            )
        else:
            options = {"nameServer": name_servers, **spark_tls()} | (
                {"topic": to_topic} if to_topic is not None else {}
            )
            done = replay_to_topic(
                session,
                place,
                options,
                where=where,
                span=TimeSpan(*times),
                rate=Rate(*limits),
                also=also,
                broker_name=broker_name,
                allows_loss=allow_loss,
                noted=note,
                progress=show,
            )
    facts = _facts(done) | {"seconds": show.seconds, "java": java}
    click.echo(json.dumps(facts) if common.as_json else "\n".join(_lines(done, to_store)))
    if done.lost:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _check_target(*, is_one: bool, to_store: bool, is_part: bool, has_config: bool) -> None:
    """Refuse options that contradict each other."""
    if not is_one:
        raise click.UsageError("give one of --to-topic, --to-same-topics and --to-store")
    if to_store and is_part:
        raise click.UsageError(
            "a log is written completely: --where, --from, --to, --rate, --byte-rate, --also, --note and --allow-loss "
            "need --to-topic or --to-same-topics"
        )
    if has_config and not to_store:
        raise click.UsageError("--config-of needs --to-store: messages are sent without a configuration")


def _lines(done: "ReplayResult", store: Path | None) -> Iterator[str]:
    """Yield a result as text."""
    if store is None:
        yield f"sent {done.rows} messages; {done.skipped} of {done.total} bytes of the log were sent before"
        for topic, count in sorted(done.left_out.items()):
            yield f"left out {count} messages of {topic}: --also {topic} sends them"
        yield from loss_lines(done.lost)
        return
    yield f"log offsets {done.log_start} to {done.log_end} in {done.total} files in {store}/commitlog"
    yield from config_lines(done.config, store)


class _Progress:
    """Lines on standard error after each piece, with the time left."""

    def __init__(self, unit: str) -> None:
        """`unit`: unit in which the progress counts the log, bytes or segments."""
        self._unit = unit
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def __call__(self, done: "ReplayResult") -> None:
        spent = time.monotonic() - self._began
        left = spent * (done.total - done.done) / max(done.done - done.skipped, 1)
        speed = f", {done.rows / max(spent, 1e-3):,.0f} messages/s" if self._unit == "bytes" else ""
        click.echo(
            f"{done.done} of {done.total} {self._unit} of the log, {done.rows} rows{speed}, "
            f"about {duration_text(left)} left",
            err=True,
        )


def _facts(done: "ReplayResult") -> dict[str, Any]:
    """Return a result as JSON."""
    return {
        "rows": done.rows,
        "bytes": done.bytes,
        "done": done.done,
        "total": done.total,
        "skipped": done.skipped,
        "leftOut": done.left_out,
        "logStart": done.log_start,
        "logEnd": done.log_end,
        "epochs": done.epochs,
        "topics": (done.config.topics if done.config is not None else None) or [],
        "lost": done.lost,
        "config": done.config.facts() if done.config is not None else None,
    }


def epochs_of_broker(address: str) -> list[tuple[int, int]]:
    """Request the epochs of a broker's log, as (epoch, first log offset).

    Raises:
        ConfigError: the broker does not answer, or refuses.
    """
    try:
        answer = ask_json(address, RequestCode.GET_BROKER_EPOCH_CACHE)
    except (NetworkError, RemoteError) as error:
        raise ConfigError(f"--epochs-of: {error}", hint="leave it out to take them from the lake") from error
    return [(int(entry["epoch"]), int(entry["startOffset"])) for entry in answer["epochList"]]
