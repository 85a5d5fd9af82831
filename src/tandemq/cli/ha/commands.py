"""`tandemq ha`: what there is to ask and order of groups, and whether twins are equal.

Brokers are asked directly, over one connection each. `verify` compares while everything runs: it asks both brokers
for checksums of the same ranges, up to where both logs reach, and narrows a range that differs down to its first byte.
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
from tandemq.cli.support.members import Found, address_option, groups_of, registry_option, required_at
from tandemq.cli.support.output import json_option, show_json, show_rows
from tandemq.errors import RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

EXIT_FAULTS = 3
CHUNK_BYTES = 1 << 20
REPORT_EVERY_S = 0.5


@click.group()
def ha() -> None:
    """Show replication and roles, move them, compare twins, configure groups."""


for _command in (check, config, force_master, history, scrub, status, switch):
    ha.add_command(_command)


# Comparing twins.


@ha.command()
@click.option("--broker", help="Of this broker group only.")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Begin at this log offset.")
@address_option
@registry_option
@namesrv_option
@json_option
def verify(
    broker: str | None, start: int, addresses: tuple[str, ...], registry: str | None, name_servers: str, as_json: bool
) -> None:
    """Compare the logs of every master and its slaves while they run; exit code 3 if they differ or are damaged."""
    rows = []
    for group in groups_of(name_servers, registry, broker, required_at(addresses, broker)):
        name, members = group.name, group.members
        if len(members) < 2:
            rows.append(
                {
                    "broker": name,
                    "twins": str(members[0].broker_id),
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
                    "twins": f"{first.broker_id}, {other.broker_id}",
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


def _damaged(members: list[Found]) -> int:
    """How many ranges of their logs the members know to be damaged."""
    return sum(len(found["damaged"]) for member in members if (found := try_log_health(member.address)) is not None)


Progress = Callable[[int, int], None]
"""Told the bytes compared and the bytes to compare."""


def _quiet(_done: int, _total: int) -> None:
    """Say nothing."""


def _progress(name: str) -> Progress:
    began = last = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if sys.stderr.isatty() and (now - last > REPORT_EVERY_S or done == total):
            last = now
            speed = done / 1e6 / max(now - began, 1e-9)
            share = 100 * done // max(total, 1)
            end = "\n" if done == total else ""
            click.echo(f"\r{name}: {share} % of {total / 1e6:,.0f} MB, {speed:,.0f} MB/s{end}", nl=False, err=True)

    return tell


@dataclass(frozen=True, slots=True)
class Compared:
    """The range both logs hold, and the offset of the first byte that differs, None if all are equal."""

    start: int
    end: int
    differs_at: int | None


def compare(first: str, second: str, start: int, progress: Progress = _quiet) -> Compared:
    """Compare the logs of two running TandemQ brokers.

    Raises:
        NetworkError: one does not answer.
        RemoteError: one is no TandemQ broker.
    """
    from tandemq.run.request import line  # noqa: PLC0415

    with ExitStack() as stack:
        one, other = _Log(stack.enter_context(line(first))), _Log(stack.enter_context(line(second)))
        a, b = one.digest(0, 0), other.digest(0, 0)
        begin, end = max(start, a.log_start, b.log_start), min(a.log_end, b.log_end)
        begin = min(begin, end)
        for at, size in _equal_ranges(one, other, begin, end):
            if size < 0:
                progress(end - begin, end - begin)
                return Compared(begin, end, at)
            progress(at + size - begin, end - begin)
        return Compared(begin, end, None)


@dataclass(frozen=True, slots=True)
class _Digest:
    size: int
    crc: int
    log_start: int
    log_end: int


class _Log:
    """The log of one broker, as checksums."""

    def __init__(self, opened: Any) -> None:
        self._line = opened

    def digest(self, offset: int, size: int) -> _Digest:
        from tandemq.model.command import Command  # noqa: PLC0415

        fields = {"offset": str(offset), "size": str(size)}
        answer = self._line.ask(Command(RequestCode.TANDEM_LOG_DIGEST, fields=fields))
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(
                f"a broker tells no checksums: {answer.remark}",
                hint="only TandemQ brokers can be compared",
                code=answer.code,
            )
        told = answer.fields
        return _Digest(int(told["size"]), int(told["crc"]), int(told["logStart"]), int(told["logEnd"]))


def _equal_ranges(one: _Log, other: _Log, start: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, size) of equal ranges in order; at the first byte that differs (its offset, -1), and the end."""
    at = start
    while at < end:
        size = min(CHUNK_BYTES, end - at)
        a = one.digest(at, size)
        b = other.digest(at, a.size)
        if a.size == 0 or b.size == 0:
            # Retention has taken the range meanwhile, on one side or both; go on where both hold it again.
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
    """The first byte that differs in a range known to differ: equal prefixes get longer, halving the rest."""
    equal = 0
    while size - equal > 1:
        middle = (equal + size) // 2
        if one.digest(start + equal, middle - equal).crc == other.digest(start + equal, middle - equal).crc:
            equal = middle
        else:
            size = middle
    return start + equal
