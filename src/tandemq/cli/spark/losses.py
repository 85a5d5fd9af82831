"""Missing bytes of a log in the output of commands."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click


def show_losses(lost: Sequence[Mapping[str, Any]]) -> None:
    """Print the log offsets that are missing, or disappeared while they were read."""
    for line in loss_lines(lost):
        click.echo(line)


def loss_lines(lost: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each loss."""
    from tandemq.spark.sources.log.ranges import describe_loss  # noqa: PLC0415  # not for --help

    for loss in lost:
        where = f", in the {' and the '.join(loss['in'])} log" if "in" in loss else ""
        yield f"lost: {describe_loss(loss['start'], loss['end'], loss['why'])}{where}"


def lost_bytes(lost: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of lost bytes."""
    return sum(loss["end"] - loss["start"] for loss in lost)
