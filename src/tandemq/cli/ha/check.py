"""`tandemq ha check`: for scripts and monitoring, one line and an exit code.

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
@click.option("--broker", help="This broker group only; it must be there.")
@address_option
@registry_option
@namesrv_option
@json_option
def check(
    broker: str | None, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> int:
    """Say in one line whether every group is as it should be, for scripts.

    \b
    Exit code 0: every group has a master that may be used, and all of its members, linked and in sync.
    Exit code 3: a group
      has no master, or two, or one that may not be read or written;
      has a member that does not answer, has no link to its master, or is not in sync;
      has a member that does not reach the registry, or finds something wrong in it;
      has damage in a log;
      or is not there, or there is no broker at all.
    Exit code 1: nobody answers who knows of brokers. 2: wrong usage.

    A group all of whose brokers are gone is forgotten by the name servers after two minutes: name it with --broker.
    """
    try:
        groups = groups_of(name_servers, registry, broker, required_at(addresses, broker))
    except ConfigError:
        raise
    except LocalError as error:
        return _tell({broker or "": [str(error.args[0])]}, {}, 0, as_json=as_json)
    rows = {group.name: group_rows(group) for group in groups}
    faults = {group.name: faults_of(group, rows[group.name]) for group in groups}
    masters = {group.name: group.master.broker_id if group.master is not None else None for group in groups}
    return _tell(faults, masters, sum(map(len, rows.values())), as_json=as_json)


def _tell(faults: dict[str, list[str]], masters: dict[str, int | None], brokers: int, *, as_json: bool) -> int:
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
