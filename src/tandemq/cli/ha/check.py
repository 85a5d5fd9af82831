"""`tandemq ha check`: health of broker groups as one line and an exit code, for scripts and monitoring.

Source: docs/guides/operations.md, "Health for scripts".
"""

import click

from tandemq.cli.ha.health import faults_of, open_members, open_warnings, outages_of, verdict
from tandemq.cli.ha.nagios import ClusterFaults, LagLimits, PluginState, plugin_line, unknown_line
from tandemq.cli.ha.status import group_rows
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.members import Group, GroupSearch, search_options
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.name_servers import openings
from tandemq.cli.support.output import json_option, show_json
from tandemq.errors import ConfigError, LocalError, TandemError


@click.command()
@click.option("--broker", shell_complete=complete_brokers, help="Only this broker group, which must exist.")
@click.option(
    "--nagios", is_flag=True, help="Print a line with performance data, and exit, as a plugin of Nagios does."
)
@click.option(
    "--warning-lag",
    type=click.IntRange(0),
    metavar="BYTES",
    help="With --nagios: WARNING if a slave is further behind.",
)
@click.option(
    "--critical-lag",
    type=click.IntRange(0),
    metavar="BYTES",
    help="With --nagios: CRITICAL if a slave is further behind.",
)
@search_options
@json_option
def check(
    broker: str | None,
    nagios: bool,
    warning_lag: int | None,
    critical_lag: int | None,
    search: GroupSearch,
    as_json: bool,
) -> int:
    """Check the health of every group and print one line, for scripts.

    \b
    Exit code 0: every group has a readable and writable master, and all members
      are connected and in sync.
    Exit code 3: a group
      has no master, or two, or one that cannot be read or written, or whose disk
        is full;
      has a member that does not answer, is not connected to its master, or is
        not in sync;
      has a member that cannot reach the registry, or reports a problem with it;
      has a damaged log;
      or does not exist, or there is no broker at all.
    Exit code 1: no name server, registry or broker answers. 2: wrong usage.

    Warnings on stderr name brokers, name servers and metrics that other machines reach without credentials. The exit
    code stays.

    Name servers drop a group two minutes after its last broker stopped. Name the group with --broker to be warned then.

    With --nagios the exit code is 0 (OK), 1 (WARNING: a fault that clients do not notice), 2 (CRITICAL: a group without
    a usable master, or that does not exist; or wrong usage) or 3 (UNKNOWN: nothing answers).
    """
    limits = LagLimits(warning_lag, critical_lag)
    _check_usage(limits, nagios=nagios, as_json=as_json)
    try:
        found, groups = _find(search, broker)
    except TandemError as error:
        if not nagios:
            raise
        click.echo(unknown_line(str(error)))
        return PluginState.UNKNOWN
    if nagios:
        line, state = plugin_line(found, limits)
        click.echo(line)
        return state
    return _print_verdict(found, groups, open_warnings(groups, openings(search.name_servers)), as_json=as_json)


def _check_usage(limits: LagLimits, *, nagios: bool, as_json: bool) -> None:
    if nagios and as_json:
        raise click.UsageError("--nagios and --json exclude each other")
    if limits != LagLimits() and not nagios:
        raise click.UsageError("--warning-lag and --critical-lag need --nagios")
    if limits.warning is not None and limits.critical is not None and limits.warning > limits.critical:
        raise click.UsageError("--warning-lag is above --critical-lag")


def _find(search: GroupSearch, broker: str | None) -> tuple[ClusterFaults, list[Group]]:
    """Return the faults of all groups, and the groups. A group that is not found is an outage of its own.

    Raises:
        TandemError: nothing answers, or the options are wrong.
    """
    try:
        groups = search.groups(broker)
    except ConfigError:
        raise
    except LocalError as error:
        missing = {broker or "": [str(error.args[0])]}
        return ClusterFaults(missing, missing), []
    rows = {group.name: group_rows(group) for group in groups}
    return ClusterFaults(
        {group.name: outages_of(group, rows[group.name]) for group in groups},
        {group.name: faults_of(group, rows[group.name]) for group in groups},
        rows,
    ), groups


def _print_verdict(found: ClusterFaults, groups: list[Group], warnings: list[str], *, as_json: bool) -> int:
    brokers = sum(map(len, found.rows.values()))
    line, is_healthy = verdict(found.faults, brokers), not any(found.faults.values())
    if as_json:
        masters = {group.name: group.master.broker_id if group.master is not None else None for group in groups}
        open_ids = {group.name: open_members(group) for group in groups}
        of_groups = [
            {
                "broker": name,
                "healthy": not faults,
                "master": masters.get(name),
                "faults": faults,
                "open": open_ids.get(name, []),
            }
            for name, faults in found.faults.items()
        ]
        show_json({"healthy": is_healthy, "verdict": line, "groups": of_groups, "warnings": warnings})
    else:
        click.echo(line)
        for warning in warnings:
            click.echo(f"tandemq: warning: {warning}", err=True)
    return 0 if is_healthy else EXIT_FAULTS
