"""Arguments and options that several commands of `tandemq spark` have in common."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tandemq.cli.spark.session import spark_session
from tandemq.cli.support.gathered import Command, gathered
from tandemq.cli.support.output import table_options
from tandemq.cli.support.paths import LakePath, LocalPath, lake_location, lake_locations, storage_option
from tandemq.cli.support.progress import ProgressLine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tandemq.spark.runtime.location import Location

EXISTING = LakePath(exists=True, file_okay=False, path_type=Path)
"""A directory with a lake or a log, or its URL."""
lake_argument = click.argument("lake", type=EXISTING)
source_argument = click.argument("source", type=EXISTING)
"""A lake or a log."""
allow_loss_option = click.option(
    "--allow-loss", is_flag=True, help="Continue without the missing bytes of a log, instead of failing."
)
new_lake_argument = click.argument("lake", type=LakePath(file_okay=False, path_type=Path))
"""A lake that is created if there is none."""
range_option = click.option(
    "--range-bytes", default=64 << 20, show_default=True, type=click.IntRange(1 << 16), help="Bytes of log per task."
)
state_option = click.option(
    "--state",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="Keep results in this file, and resume from it after an interruption.",
)
retention_option = click.option(
    "--allow-retention",
    is_flag=True,
    help="Accept that one log begins later than the other, as after retention.",
)
_master = click.option(
    "--master", help="Spark's master: local[N], or a cluster's address.  [default: local[*], or spark-submit's]"
)
_conf = click.option("--conf", "conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; repeatable.")
_checkpoint = click.option(
    "--checkpoint",
    type=LakePath(file_okay=False, path_type=Path),
    help="Spark's checkpoint, a local or HDFS directory; by default within a local lake.",
)
_every = click.option("--every", default="1 second", show_default=True, help="With --follow: interval of commits.")
_vacuum = click.option(
    "--vacuum-hours",
    default=168,
    show_default=True,
    type=click.IntRange(0),
    help="With --follow: delete once a day files that left LAKE more than so many hours ago; 0: never.",
)


class CommonOptions(NamedTuple):
    """Values of the options that all jobs have."""

    storage: tuple[str, ...]
    master: str | None
    conf: tuple[str, ...]
    as_json: bool

    def session(self, words: Mapping[str, str] | None = None) -> "AbstractContextManager[tuple[SparkSession, str]]":
        """Open the command's session; see `spark_session`."""
        return spark_session(self.master, self.conf, silent=self.as_json, words=words)

    def progress(self, what: str) -> ProgressLine:
        """Return the progress of a job; `what`: first word of its lines."""
        return ProgressLine(what, silent=self.as_json)

    def location(self, given: Path | str) -> "Location":
        """Return the location of a lake or log; see `lake_location`."""
        return lake_location(given, self.storage)

    def locations(self, given: Sequence[Path | str]) -> "list[Location]":
        """Return the locations of lakes or logs; see `lake_locations`."""
        return lake_locations(given, self.storage)


class FillingOptions(NamedTuple):
    """Values of the options of a command that fills a lake."""

    checkpoint: Path | str | None
    follow: bool
    every: str
    vacuum_hours: int
    allow_loss: bool


def common_options(command: Command) -> Command:
    """Add --storage-option, --master, --conf, --json and --wide; the command gets them as `common`."""
    return storage_option(_master(_conf(table_options(gathered(command, "common", CommonOptions)))))


def filling_options(what: str, batch: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a command that fills a lake; the command gets them as `filling`.

    Args:
        what: noun for the copied items in help texts: records or messages.
        batch: decorator of the option that limits a commit, which the command gets by its own name.
    """
    follow = click.option("--follow", is_flag=True, help=f"Continue with new {what} until interrupted.")
    allow_loss = click.option(
        "--allow-loss", is_flag=True, help=f"Continue without {what} that are missing, instead of failing."
    )

    def decorate(command: Command) -> Command:
        own = gathered(command, "filling", FillingOptions)
        return _checkpoint(follow(_every(batch(_vacuum(allow_loss(own))))))

    return decorate
