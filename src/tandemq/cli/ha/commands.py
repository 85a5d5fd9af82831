"""`tandemq ha`: the group of commands, and `verify`, which compares the logs of replicas.

`verify` compares running brokers, over one connection to each: it requests checksums of the same log ranges from both,
up to the end of the shorter log, and bisects a range that differs to find the first different byte.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import click

from tandemq.cli.ha.check import check
from tandemq.cli.ha.config import config
from tandemq.cli.ha.roles import force_master, history, switch
from tandemq.cli.ha.scrub import scrub, try_log_health
from tandemq.cli.ha.status import status
from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.members import FoundBroker, address_option, groups_of, registry_option, required_at
from tandemq.cli.support.output import json_option, show_json, show_rows
from tandemq.cli.support.tls import client_tls
from tandemq.errors import RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

EXIT_FAULTS = 3
CHUNK_BYTES = 1 << 20
REPORT_EVERY_S = 0.5


@click.group()
def ha() -> None:
    """Show replication and roles, switch masters, compare replicas, configure groups."""


for _command in (check, config, force_master, history, scrub, status, switch):
    ha.add_command(_command)


# Comparing replicas.


@ha.command()
@click.option("--broker", help="Only this broker group.")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Log offset to start at.")
@address_option
@registry_option
@namesrv_option
@json_option
def verify(
    broker: str | None, start: int, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> None:
    """Compare the logs of every master and its slaves while they run. Exit code 3 if they differ or are damaged."""
    rows = []
    for group in groups_of(name_servers, registry, broker, required_at(addresses, broker)):
        name, members = group.name, group.members
        if len(members) < 2:
            rows.append(
                {
                    "broker": name,
                    "members": str(members[0].broker_id),
                    "from": None,
                    "to": None,
                    "bytes": 0,
                    "equal": None,
                    "differsAt": None,
                    "damaged": _damaged(members),
                }
            )
        first = members[0]
        for other in members[1:]:
            found = compare(first.address, other.address, start, _progress(name) if not as_json else _quiet)
            rows.append(
                {
                    "broker": name,
                    "members": f"{first.broker_id}, {other.broker_id}",
                    "from": found.start,
                    "to": found.end,
                    "bytes": found.end - found.start,
                    "equal": found.differs_at is None,
                    "differsAt": found.differs_at,
                    "damaged": _damaged([first, other]),
                }
            )
    if as_json:
        show_json(rows)
    else:
        show_rows(rows, as_json=False)
    if any(row["equal"] is False or row["damaged"] for row in rows):
        raise click.exceptions.Exit(EXIT_FAULTS)


def _damaged(members: list[FoundBroker]) -> int:
    """Return the number of log ranges that the members report as damaged."""
    return sum(len(found["damaged"]) for member in members if (found := try_log_health(member.address)) is not None)


Progress = Callable[[int, int], None]
"""Called with the bytes compared and the bytes to compare."""


def _quiet(_done: int, _total: int) -> None:
    """Print nothing."""


def _progress(name: str) -> Progress:
    began = last = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if sys.stderr.isatty() and (now - last > REPORT_EVERY_S or done == total):
            last = now
            speed = done / 1e6 / max(now - began, 1e-9)
            share = 100 * done // max(total, 1)
            end = "\n" if done == total else ""
            click.echo(f"\r{name}: {share} % of {total / 1e6:,.0f} MB, {speed:,.0f} MB/s{end}", nl=False, err=True)

    return show


@dataclass(frozen=True, slots=True)
class LogComparison:
    """The range that both logs have, and the log offset of the first byte that differs; None if all bytes are equal."""

    start: int
    end: int
    differs_at: int | None


def compare(first: str, second: str, start: int, progress: Progress = _quiet) -> LogComparison:
    """Compare the logs of two running TandemQ brokers, from log offset `start`.

    Raises:
        NetworkError: a broker does not answer.
        RemoteError: a broker is not TandemQ.
    """
    from tandemq.run.request import connect  # noqa: PLC0415

    with ExitStack() as stack:
        tls = client_tls()
        one, other = (_Log(stack.enter_context(connect(address, tls=tls))) for address in (first, second))
        a, b = one.digest(0, 0), other.digest(0, 0)
        begin, end = max(start, a.log_start, b.log_start), min(a.log_end, b.log_end)
        begin = min(begin, end)
        for at, size in _equal_ranges(one, other, begin, end):
            if size < 0:
                progress(end - begin, end - begin)
                return LogComparison(begin, end, at)
            progress(at + size - begin, end - begin)
        return LogComparison(begin, end, None)


@dataclass(frozen=True, slots=True)
class _Digest:
    size: int
    crc: int
    log_start: int
    log_end: int


class _Log:
    """Checksums of one broker's log."""

    def __init__(self, opened: Any) -> None:
        self._connection = opened

    def digest(self, offset: int, size: int) -> _Digest:
        from tandemq.model.command import Command  # noqa: PLC0415

        fields = {"offset": str(offset), "size": str(size)}
        answer = self._connection.request(Command(RequestCode.TANDEM_LOG_DIGEST, fields=fields))
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(
                f"a broker refuses to give checksums: {answer.remark}",
                hint="only TandemQ brokers can be compared",
                code=answer.code,
            )
        fields = answer.fields
        return _Digest(int(fields["size"]), int(fields["crc"]), int(fields["logStart"]), int(fields["logEnd"]))


def _equal_ranges(one: _Log, other: _Log, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of equal ranges in order; at the first byte that differs (its offset, -1), and stop."""
    at = start
    while at < end:
        size = min(CHUNK_BYTES, end - at)
        a = one.digest(at, size)
        b = other.digest(at, a.size)
        if a.size == 0 or b.size == 0:
            # Retention has deleted the range meanwhile, on one side or both: continue where both logs start now.
            later = max(a.log_start, b.log_start)
            if later <= at:
                raise RemoteError(f"log offset {at} cannot be read")
            at = later
            continue
        if (a.size, a.crc) != (b.size, b.crc):
            yield _first_difference(one, other, at, min(a.size, b.size)), -1
            return
        yield at, a.size
        at += a.size


def _first_difference(one: _Log, other: _Log, start: int, size: int) -> int:
    """Return the log offset of the first byte that differs, by bisecting a range that is known to differ."""
    equal = 0
    while size - equal > 1:
        middle = (equal + size) // 2
        if one.digest(start + equal, middle - equal).crc == other.digest(start + equal, middle - equal).crc:
            equal = middle
        else:
            size = middle
    return start + equal
