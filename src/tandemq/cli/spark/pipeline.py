"""`tandemq spark pipeline`: creates and runs a declarative pipeline project."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from tandemq.cli.spark.parameters import EXISTING
from tandemq.cli.spark.session import clear_errors
from tandemq.cli.support.output import json_option, show_json
from tandemq.cli.support.paths import LocalPath
from tandemq.cli.support.tls import spark_tls

if TYPE_CHECKING:
    from tandemq.spark.pipelines.projects import Project


@click.command()
@click.argument("directory", type=LocalPath(file_okay=False, path_type=Path))
@click.option(
    "--namesrv",
    "-n",
    envvar="TANDEMQ_NAMESRV",
    show_envvar=True,
    help="Create a project that reads the cluster of these name servers, host:port;host:port.",
)
@click.option("--subscribe", metavar="TOPICS", help="Topics to read, separated by commas; all by default.")
@click.option(
    "--store",
    type=EXISTING,
    help="Create a project that reads this store, or archived log files, instead of a cluster.",
)
@click.option(
    "--example",
    type=click.Choice(["orders"]),
    help="Create this example instead: several topics, joins, late data, state; needs --namesrv.",
)
@click.option("--run", "runs", is_flag=True, help="Run the project, after creating it if needed.")
@click.option("--full-refresh", is_flag=True, help="With --run: rebuild all tables.")
@json_option
def pipeline(
    directory: Path,
    namesrv: str | None,
    subscribe: str | None,
    store: Path | str | None,
    example: str | None,
    runs: bool,
    full_refresh: bool,
    as_json: bool,
) -> None:
    """Create a pipeline project (bronze, silver, gold) in DIRECTORY, or run the existing one.

    You can change the transformations of the project, and run it with --run or with spark-pipelines itself.
    """
    context = click.get_current_context()
    is_from_environment = context.get_parameter_source("namesrv") is ParameterSource.ENVIRONMENT
    if full_refresh and not runs:
        raise click.UsageError("--full-refresh needs --run")
    with clear_errors():
        from tandemq.spark.pipelines.projects import SPEC, run_project, write_example, write_project  # noqa: PLC0415
        from tandemq.spark.runtime.java import find_java  # noqa: PLC0415

        exists = (directory / SPEC).is_file()
        if not exists:
            chosen = None if is_from_environment and store is not None else namesrv
            if example is not None:
                write_example(directory, example, _cluster_of(chosen, subscribe, store))
            else:
                write_project(directory, _project(chosen, subscribe, store))
            if not as_json:
                click.echo(
                    f"{directory} contains a pipeline project; run it with: tandemq spark pipeline {directory} --run"
                )
        elif not runs:
            raise click.UsageError(f"{directory} already contains a project; run it with --run")
        elif (namesrv is not None and not is_from_environment) or any((subscribe, store, example)):
            raise click.UsageError(
                f"{directory} already contains a project, and its {SPEC} defines the source: change it there, and give "
                "--run without --namesrv, --subscribe, --store and --example"
            )
        code, java_text = 0, None
        if runs:
            java = find_java()
            java_text = f"{java.version} from {java.origin}"
            if not as_json:
                click.echo(f"Java {java_text}", err=True)
            arguments = ["--full-refresh-all"] if full_refresh else []
            code = run_project(directory, arguments, is_quiet=as_json)
    if as_json:
        facts = {"directory": str(directory), "written": not exists, "run": runs, "exitCode": code, "java": java_text}
        show_json(facts)
    sys.exit(code)


def _cluster_of(namesrv: str | None, subscribe: str | None, store: Path | str | None) -> str:
    if namesrv is None or subscribe is not None or store is not None:
        raise click.UsageError("an example reads its own topics of a cluster: give --namesrv only")
    return namesrv


def _project(namesrv: str | None, subscribe: str | None, store: Path | str | None) -> "Project":
    from tandemq.spark.pipelines.projects import Project  # noqa: PLC0415

    if (namesrv is None) == (store is None):
        raise click.UsageError("a new project reads a cluster or a store: give one of --namesrv and --store")
    if store is not None:
        if subscribe is not None:
            raise click.UsageError("--subscribe needs --namesrv; a store is read completely")
        return Project("rocketmq-log", {"path": str(store.absolute() if isinstance(store, Path) else store)})
    assert namesrv is not None, "checked above"
    what = {"subscribe": subscribe} if subscribe is not None else {"subscribePattern": ".*"}
    source = {"nameServer": namesrv, **spark_tls(), **what, "startingOffsets": "earliest"}
    return Project("rocketmq", source, namesrv)
