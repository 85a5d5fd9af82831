"""Arguments and options that several commands of `tandemq spark` have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tandemq.cli.support.output import json_option
from tandemq.cli.support.paths import LakePath, LocalPath, storage_option

Command = Callable[..., Any]

EXISTING = LakePath(exists=True, file_okay=False, path_type=Path)
"""A directory with a lake or a log, or its URL."""
lake_argument = click.argument("lake", type=EXISTING)
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


def common_options(command: Command) -> Command:
    """Add --storage-option, --master, --conf and --json."""
    return storage_option(_master(_conf(json_option(command))))


def filling_options(what: str, batch: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of a command that fills a lake.

    Args:
        what: what it copies, in help texts: records or messages.
        batch: decorator of the option that limits a commit.
    """
    follow = click.option("--follow", is_flag=True, help=f"Continue with new {what} until interrupted.")
    allow_loss = click.option(
        "--allow-loss", is_flag=True, help=f"Continue without {what} that retention has deleted, instead of failing."
    )

    def decorate(command: Command) -> Command:
        return _checkpoint(follow(_every(batch(_vacuum(allow_loss(command))))))

    return decorate
