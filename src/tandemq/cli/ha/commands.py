"""`tandemq ha`: the group of commands, and `verify`, which compares replicas.

`verify` compares running brokers, over one connection to each: it requests checksums of the same log ranges from both,
up to the end of the shorter log, and bisects a range that differs to find the first different byte. Then it compares
where the queues begin and end (`queue_comparison`).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.ha.check import check
from tandemq.cli.ha.config import config
from tandemq.cli.ha.roles import force_master, history, switch
from tandemq.cli.ha.scrub import scrub, try_log_health
from tandemq.cli.ha.status import status
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.members import FoundBroker, GroupSearch, search_options
from tandemq.cli.support.name_completion import complete_brokers
from tandemq.cli.support.output import plain, show_json, show_rows, table_options
from tandemq.cli.support.progress import ProgressLine
from tandemq.cli.support.tls import client_tls
from tandemq.errors import RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from tandemq.cli.ha.queue_comparison import ComparedQueues, QueueDifference

CHUNK_BYTES = 1 << 20


@click.group()
def ha() -> None:
    """Show replication and roles, switch masters, compare replicas, configure groups."""


for _command in (check, config, force_master, history, scrub, status, switch):
    ha.add_command(_command)


# Comparing replicas.


@ha.command()
@click.option("--broker", shell_complete=complete_brokers, help="Only this broker group.")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Log offset to start at.")
@search_options
@table_options
def verify(broker: str | None, start: int, search: GroupSearch, as_json: bool) -> None:
    """Compare the logs and the queues of every master and its slaves while they run.

    Exit code 3 if they differ or are damaged.
    """
    rows, differences = [], []
    for group in search.groups(broker):
        first, *others = group.members
        if not others:
            rows.append(_row([first], None))
        for other in others:
            progress = ProgressLine(group.name, silent=as_json, is_brief=True)
            found = compare(first.address, other.address, start, progress)
            rows.append(_row([first, other], found))
            differences += [_difference_row(difference, [first, other]) for difference in found.queues.differences]
    if as_json:
        show_json(rows)
    else:
        show_rows(
            [row | {"queuesDiffer": len(row["queuesDiffer"])} for row in rows],
            as_json=False,
            less=("from", "to", "queues"),
        )
        if differences:
            click.echo("\nQueues that differ, from their first queue offset to their end\n")
            show_rows(differences, as_json=False)
    if any(row["equal"] is False or row["damaged"] or row["queuesDiffer"] for row in rows):
        raise click.exceptions.Exit(EXIT_FAULTS)


def _row(members: Sequence[FoundBroker], found: "ReplicaComparison | None") -> dict[str, Any]:
    """Return the row of a group without a slave, or of two replicas."""
    return {
        "broker": members[0].broker,
        "members": ", ".join(str(member.broker_id) for member in members),
        "from": found and found.start,
        "to": found and found.end,
        "bytes": found.end - found.start if found else 0,
        "equal": found and found.differs_at is None,
        "differsAt": found and found.differs_at,
        "damaged": _damaged(members),
        "queues": found and found.queues.compared,
        "queuesDiffer": [_difference_json(difference) for difference in found.queues.differences] if found else [],
    }


def _difference_json(difference: "QueueDifference") -> dict[str, Any]:
    return {
        "topic": difference.queue.topic,
        "queueId": difference.queue.queue_id,
        "master": difference.master and list(difference.master),
        "slave": difference.slave and list(difference.slave),
    }


def _difference_row(difference: "QueueDifference", members: Sequence[FoundBroker]) -> dict[str, Any]:
    master, slave = (span and f"{span.first} to {span.end}" for span in (difference.master, difference.slave))
    return {
        "broker": members[0].broker,
        "members": f"{members[0].broker_id}, {members[1].broker_id}",
        "topic": plain(difference.queue.topic),
        "queue": difference.queue.queue_id,
        "master": master or "none",
        "slave": slave or "none",
    }


def _damaged(members: Sequence[FoundBroker]) -> int:
    """Return the number of log ranges that the members report as damaged."""
    return sum(len(found["damaged"]) for member in members if (found := try_log_health(member.address)) is not None)


@dataclass(frozen=True, slots=True)
class ReplicaComparison:
    """The range of both logs, the log offset of the first byte that differs (None: all are equal), and the queues."""

    start: int
    end: int
    differs_at: int | None
    queues: "ComparedQueues"


def compare(first: str, second: str, start: int, progress: ProgressLine) -> ReplicaComparison:
    """Compare the logs of two running TandemQ brokers, from log offset `start`, and their queues.

    Args:
        first: address of the master, or of the member to compare with.
        second: address of its slave.
        start: log offset.
        progress: shows the bytes compared.

    Raises:
        NetworkError: a broker does not answer.
        RemoteError: a broker is not TandemQ.
    """
    from tandemq.cli.ha.queue_comparison import compare_queues  # noqa: PLC0415
    from tandemq.client.connection import BlockingConnection  # noqa: PLC0415

    with ExitStack() as stack:
        tls = client_tls()
        master, slave = (stack.enter_context(BlockingConnection(address, tls=tls)) for address in (first, second))
        master_log, slave_log = _Log(master), _Log(slave)
        a, b = master_log.digest(0, 0), slave_log.digest(0, 0)
        begin, end = max(start, a.log_start, b.log_start), min(a.log_end, b.log_end)
        begin = min(begin, end)
        differs_at = None
        for offset, size in _equal_ranges(master_log, slave_log, begin, end):
            if size < 0:
                differs_at = offset
            progress(end - begin if size < 0 else offset + size - begin, end - begin)
        queues = compare_queues(
            master, slave, lambda: (master_log.digest(0, 0).log_start, slave_log.digest(0, 0).log_start)
        )
        return ReplicaComparison(begin, end, differs_at, queues)


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


def _equal_ranges(first: _Log, second: _Log, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, size) of equal ranges in order; at the first byte that differs (its offset, -1), and stop."""
    offset = start
    while offset < end:
        size = min(CHUNK_BYTES, end - offset)
        a = first.digest(offset, size)
        b = second.digest(offset, a.size)
        if a.size == 0 or b.size == 0:
            # Retention has deleted the range meanwhile, on one side or both: continue where both logs start now.
            later = max(a.log_start, b.log_start)
            if later <= offset:
                raise RemoteError(f"log offset {offset} cannot be read")
            offset = later
            continue
        if (a.size, a.crc) != (b.size, b.crc):
            yield _first_difference(first, second, offset, min(a.size, b.size)), -1
            return
        yield offset, a.size
        offset += a.size


def _first_difference(first: _Log, second: _Log, start: int, size: int) -> int:
    """Return the log offset of the first byte that differs, by bisecting a range that is known to differ."""
    equal = 0
    while size - equal > 1:
        middle = (equal + size) // 2
        if first.digest(start + equal, middle - equal).crc == second.digest(start + equal, middle - equal).crc:
            equal = middle
        else:
            size = middle
    return start + equal
