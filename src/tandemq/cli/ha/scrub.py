"""`tandemq ha scrub`: verify and repair the commit logs of running brokers.

Also gives `ha status` and `ha verify` their figures on damage:
log_health(address)      a broker's scrub passes, damaged ranges and repairs; None if it is not TandemQ
damage_rows(…)           table of damaged ranges
"""

import sys
import time
from typing import Any

import click

from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.members import ListedBroker, ask_json, members_of
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.output import show_json, show_rows, table_options
from tandemq.errors import LocalError, NetworkError, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

LIST_HINT = "tandemq cluster list shows the brokers"
POLL_S = 0.2
MEBIBYTE = 1 << 20


def log_health(address: str, **fields: object) -> dict[str, Any] | None:
    """Request the health of a broker's log, None if the broker is not TandemQ.

    Args:
        address: "host:port".
        fields: `begin` and `bytesPerSecond` of TANDEM_SCRUB.
    Raises:
        NetworkError: the broker does not answer.
        RemoteError: the broker refuses.
    """
    texts = {name: str(value).lower() for name, value in fields.items()}
    try:
        found: dict[str, Any] = ask_json(address, RequestCode.TANDEM_SCRUB, texts)
    except RemoteError as error:
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        raise
    return found


def health_columns(found: dict[str, Any] | None) -> dict[str, Any]:
    """Return columns of a table: hours since the log was last completely verified, damaged ranges, repaired ranges."""
    if found is None:
        return {"verifiedH": None, "damaged": None, "repaired": None}
    ended = found["last"]["endedMs"]
    hours = round(max(0.0, time.time() * 1000 - ended) / 3_600_000, 1) if ended else None
    return {"verifiedH": hours, "damaged": len(found["damaged"]), "repaired": found["repairedTotal"]}


def damage_rows(broker: str, broker_id: int, found: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return rows for the damaged ranges of one broker's log, and for the range that a slave reported to it."""
    if found is None:
        return []
    rows = [
        {
            "broker": broker,
            "id": broker_id,
            "from": damage["start"],
            "to": damage["end"],
            "fate": "lost" if damage["isLost"] else "waits",
            "why": damage["reason"],
            "repair": damage["trouble"] or "under way",
        }
        for damage in found["damaged"]
    ]
    suspicion = found["suspicion"]
    if suspicion is not None and found["damaged"]:
        rows.append(
            {
                "broker": broker,
                "id": broker_id,
                "from": suspicion["logOffset"],
                "to": None,
                "fate": "suspect",
                "why": f"{suspicion['source']}: {suspicion['reason']}",
                "repair": suspicion["found"],
            }
        )
    return rows


@click.command()
@click.option("--broker", shell_complete=complete_brokers, help="Only this broker group.")
@click.option(
    "--rate", type=click.IntRange(1), help="Rate of this pass in MiB/s per broker; default: the broker's setting."
)
@click.option("--no-wait", is_flag=True, help="Start the pass and do not wait for its end.")
@namesrv_option
@table_options
def scrub(broker: str | None, rate: int | None, no_wait: bool, name_servers: str, as_json: bool) -> None:
    """Make all brokers verify their whole commit log now and repair damage from their replicas.

    Queue entries that disagree with the log are rebuilt from it. Exit code 3 if damage is left. A pass that is already
    running continues at the new rate.
    """
    members = [member for member in members_of(name_servers) if broker in (None, member.broker)]
    if broker is not None and not members:
        raise LocalError(f"no broker of group {broker} is registered at {name_servers}", hint=LIST_HINT)
    wanted = {"begin": True} | ({"bytesPerSecond": rate * MEBIBYTE} if rate else {})
    states = {(member.broker, member.broker_id): log_health(member.address, **wanted) for member in members}
    if not no_wait:
        _wait_until_done(members, states, silent=as_json)
    rows = [_row(name, number, found) for (name, number), found in states.items()]
    damages = [row for (name, number), found in states.items() for row in damage_rows(name, number, found)]
    if as_json:
        show_json([row | {"ranges": (states[row["broker"], row["id"]] or {}).get("damaged", [])} for row in rows])
    else:
        show_rows(rows, as_json=False, empty="no broker is registered", less=("records", "rebuiltEntries", "bytes"))
        show_damages(damages)
    if not no_wait and any(row["damaged"] for row in rows):
        raise click.exceptions.Exit(EXIT_FAULTS)


def _wait_until_done(
    members: list[ListedBroker], states: dict[tuple[str, int], dict[str, Any] | None], *, silent: bool
) -> None:
    """Poll the brokers until every pass has ended, and print the progress."""
    while not all(map(_is_done, states.values())):
        time.sleep(POLL_S)
        for member in members:
            key = member.broker, member.broker_id
            if not _is_done(states[key]):
                states[key] = log_health(member.address)
        if not silent:
            _print_progress(list(states.values()))
    if not silent and sys.stderr.isatty():
        click.echo(err=True)


def show_damages(rows: list[dict[str, Any]]) -> None:
    """Print the table of damaged ranges, if there are any."""
    if rows:
        click.echo("\nDamaged ranges of logs:\n")
        show_rows(rows, as_json=False, empty="")


def _is_done(found: dict[str, Any] | None) -> bool:
    """Return whether the pass has ended and a repair of each damaged range was tried."""
    return found is None or (found["state"] != "running" and all(damage["trouble"] for damage in found["damaged"]))


def _row(name: str, number: int, found: dict[str, Any] | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "broker": name,
        "id": number,
        "state": "no TandemQ broker",
        "bytes": None,
        "records": None,
        "found": None,
        "damaged": None,
        "repaired": None,
        "rebuiltEntries": None,
    }
    if found is None:
        return row
    shown = found["this"]
    return row | {
        "state": "running" if found["state"] == "running" else "verified",
        "bytes": shown["bytes"],
        "records": shown["records"],
        "found": shown["damaged"],
        "damaged": len(found["damaged"]),
        "repaired": found["repairedTotal"],
        "rebuiltEntries": found["corrected"],
    }


def _print_progress(states: list[dict[str, Any] | None]) -> None:
    if not sys.stderr.isatty():
        return
    running = [found for found in states if found is not None]
    done = sum(found["this"]["bytes"] for found in running)
    total = sum(max(0, found["this"]["until"] - found["logStart"]) for found in running)
    click.echo(f"\rscrub: {100 * done // max(total, 1)} % of {total / 1e6:,.0f} MB", nl=False, err=True)


def try_log_health(address: str) -> dict[str, Any] | None:
    """As `log_health`, but also None if the broker does not answer or refuses."""
    try:
        return log_health(address)
    except (NetworkError, RemoteError):
        return None
