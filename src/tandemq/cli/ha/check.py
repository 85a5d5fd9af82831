"""`tandemq ha check`: health of broker groups as one line and an exit code, for scripts and monitoring.

Source: docs/guides/operations.md, "Health for scripts".
"""

import click

from tandemq.cli.ha.health import faults_of, verdict
from tandemq.cli.ha.status import group_rows
from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.members import address_option, groups_of, registry_option, required_at
from tandemq.cli.support.output import json_option, show_json
from tandemq.errors import ConfigError, LocalError

EXIT_FAULTS = 3


@click.command()
@click.option("--broker", help="Only this broker group, which must exist.")
@address_option
@registry_option
@namesrv_option
@json_option
def check(
    broker: str | None, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> int:
    """Check the health of every group and print one line, for scripts.

    \b
    Exit code 0: every group has a readable and writable master, and all members are connected and in sync.
    Exit code 3: a group
      has no master, or two, or one that cannot be read or written;
      has a member that does not answer, is not connected to its master, or is not in sync;
      has a member that cannot reach the registry, or that reports a problem with it;
      has a damaged log;
      or does not exist, or there is no broker at all.
    Exit code 1: no name server, registry or broker answers. 2: wrong usage.

    Name servers drop a group two minutes after its last broker stopped. Name the group with --broker to be warned then.
    """
    try:
        groups = groups_of(name_servers, registry, broker, required_at(addresses, broker))
    except ConfigError:
        raise
    except LocalError as error:
        return _print_verdict({broker or "": [str(error.args[0])]}, {}, 0, as_json=as_json)
    rows = {group.name: group_rows(group) for group in groups}
    faults = {group.name: faults_of(group, rows[group.name]) for group in groups}
    masters = {group.name: group.master.broker_id if group.master is not None else None for group in groups}
    return _print_verdict(faults, masters, sum(map(len, rows.values())), as_json=as_json)


def _print_verdict(faults: dict[str, list[str]], masters: dict[str, int | None], brokers: int, *, as_json: bool) -> int:
    line, is_healthy = verdict(faults, brokers), not any(faults.values())
    if as_json:
        groups = [
            {"broker": name, "healthy": not found, "master": masters.get(name), "faults": found}
            for name, found in faults.items()
        ]
        show_json({"healthy": is_healthy, "verdict": line, "groups": groups})
    else:
        click.echo(line)
    return 0 if is_healthy else EXIT_FAULTS
