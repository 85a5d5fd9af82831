"""`tandemq top`: brokers and consumer groups with lag and rates, live in the terminal.

Each refresh is one request per member for its figures and one per master for the progress of all groups, whatever their
number. Rates of groups are differences between two refreshes. The time between two is at least PAUSE_FACTOR times the
time that the brokers needed to answer, so that a large cluster is asked less often.
Source: docs/guides/monitoring.md, "In the terminal".
"""

import asyncio
import contextlib
import os
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.output import json_option, show_json, terminal_columns
from tandemq.errors import TandemError
from tandemq.model.topic import RETRY_PREFIX, is_system_group

if TYPE_CHECKING:
    from tandemq.client.admin.groups import ConsumeProgress
    from tandemq.client.aio.admin import Admin
    from tandemq.model.message import MessageQueue

PAUSE_FACTOR = 9
SECONDS_MIN = 1.0
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"
_BOLD, _RED, _PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_BROKER_HEADS = ("BROKER", "ID", "IN/S", "OUT/S", "DISK", "")
_GROUP_HEADS = ("GROUP", "LAG", "BEHIND", "IN/S", "OUT/S", "TOPICS")


@dataclass(frozen=True, slots=True)
class TopBroker:
    """A member of a broker group. Rates are those of the last 10 s, as it reports them; `error`: why it has none."""

    broker: str
    id: int
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    disk: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True)
class TopGroup:
    """A consumer group. `behind_s`: age of the last message consumed from the queue that lags most, 0 without lag."""

    group: str
    lag: int
    behind_s: float
    in_per_s: float | None
    """Messages per second stored for it; None before the second refresh."""
    out_per_s: float | None
    """Messages per second that it commits."""
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopRefresh:
    """One refresh."""

    taken_s: float
    """Monotonic time; `wall_ms`: calendar time, `took_s`: time that the brokers needed."""
    wall_ms: int
    took_s: float
    brokers: list[TopBroker]
    progress: "Mapping[str, Mapping[MessageQueue, ConsumeProgress]]" = field(default_factory=dict)


async def sample(admin: "Admin") -> TopRefresh:
    """Ask all brokers once."""
    from tandemq.model.codes import RequestCode  # noqa: PLC0415  # --help needs no client

    began_s = time.monotonic()
    info = await admin.cluster_info()
    asked = await admin.ask_brokers(dict.fromkeys(info.addresses(), RequestCode.GET_BROKER_RUNTIME_INFO))
    rows = [
        _broker_row(name, number, asked[address])
        for name, group in sorted(info.brokers.items())
        for number, address in sorted(group.members.items())
    ]
    progress = await admin.all_progress()
    ended_s = time.monotonic()
    return TopRefresh(ended_s, time.time_ns() // 1_000_000, ended_s - began_s, rows, progress)


def _broker_row(name: str, number: int, answer: dict[str, Any] | TandemError) -> TopBroker:
    if isinstance(answer, TandemError):
        return TopBroker(name, number, error=str(answer.args[0]) if answer.args else "no answer")
    table = answer.get("table") or {}
    return TopBroker(
        name,
        number,
        _first_number(table.get("putTps")),
        _first_number(table.get("getTransferredTps") or table.get("getTransferedTps")),
        _first_number(table.get("commitLogDiskRatio")),
    )


def _first_number(text: object) -> float:
    """Return the first number of a text such as "12.5 3.0 1.0", as brokers report rates; 0 if it is not one."""
    with contextlib.suppress(ValueError, IndexError):
        return float(str(text).split()[0])
    return 0.0


def group_rows(before: TopRefresh | None, now: TopRefresh) -> list[TopGroup]:
    """Return the groups of a refresh, those that lag most first; with rates since the one before."""
    rows = []
    seconds = now.taken_s - before.taken_s if before is not None else 0.0
    for group, queues in now.progress.items():
        if is_system_group(group) or not queues:
            continue
        earlier = before.progress.get(group, {}) if before is not None else {}
        both = [(queues[queue], old) for queue, old in earlier.items() if queue in queues]
        known = bool(both) and seconds > 0
        grown = sum(current.broker_offset - old.broker_offset for current, old in both)
        consumed = sum(current.consumer_offset - old.consumer_offset for current, old in both)
        lagging = [progress.last_ms for progress in queues.values() if progress.lag and progress.last_ms]
        rows.append(
            TopGroup(
                group,
                sum(progress.lag for progress in queues.values()),
                max(0.0, (now.wall_ms - min(lagging)) / 1000) if lagging else 0.0,
                max(0.0, grown / seconds) if known else None,
                max(0.0, consumed / seconds) if known else None,
                tuple(sorted({queue.topic for queue in queues if not queue.topic.startswith(RETRY_PREFIX)})),
            )
        )
    return sorted(rows, key=lambda row: (-row.lag, row.group))


def as_json(before: TopRefresh | None, now: TopRefresh) -> dict[str, Any]:
    """Return a refresh as a JSON object."""
    return {
        "time": now.wall_ms,
        "brokers": [
            {
                "broker": broker.broker,
                "id": broker.id,
                "inPerS": broker.in_per_s,
                "outPerS": broker.out_per_s,
                "disk": broker.disk,
            }
            | ({"error": broker.error} if broker.error else {})
            for broker in now.brokers
        ],
        "groups": [
            {
                "group": group.group,
                "lag": group.lag,
                "behindS": round(group.behind_s, 3),
                "inPerS": group.in_per_s,
                "outPerS": group.out_per_s,
                "topics": list(group.topics),
            }
            for group in group_rows(before, now)
        ],
    }


def screen(before: TopRefresh | None, now: TopRefresh, columns: int, height: int, *, colour: bool) -> list[str]:
    """Return the lines of a screen, 12 at least; of the groups, those that fit into its height."""
    groups = group_rows(before, now)
    clock = time.strftime("%H:%M:%S %z", time.localtime(now.wall_ms / 1000))
    title = f"{clock}  {len(now.brokers)} brokers  {len(groups)} groups  lag {sum(group.lag for group in groups):,}"
    brokers = [
        (
            broker.broker,
            str(broker.id),
            f"{broker.in_per_s:,.0f}",
            f"{broker.out_per_s:,.0f}",
            f"{broker.disk:.0%}",
            broker.error,
        )
        for broker in now.brokers
    ]
    lines = [title, "", *_table(_BROKER_HEADS, brokers[: max(1, height // 3)], columns)]
    if len(brokers) > height // 3:
        lines.append(f"… and {len(brokers) - max(1, height // 3)} more brokers")
    room = max(1, height - len(lines) - 3)
    cells = [
        (
            group.group,
            f"{group.lag:,}",
            _duration(group.behind_s),
            _rate(group.in_per_s),
            _rate(group.out_per_s),
            _names(group.topics),
        )
        for group in groups[:room]
    ]
    lines += ["", *_table(_GROUP_HEADS, cells, columns)]
    if len(groups) > room:
        lines.append(f"… and {len(groups) - room} more groups, with less lag")
    lines = [_printable(line)[:columns] for line in lines]
    if colour:
        heads = {2, len(lines) - len(cells) - 1 - (len(groups) > room)}
        lines = [f"{_BOLD}{line}{_PLAIN}" if index in heads else line for index, line in enumerate(lines)]
        for index, broker in enumerate(now.brokers[: max(1, height // 3)], 3):
            if broker.error:
                lines[index] = f"{_RED}{lines[index]}{_PLAIN}"
    return lines


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], columns: int) -> Iterator[str]:
    """Yield the lines of a table. Names in the first column are cut so that the figures fit."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    widths[0] = min(widths[0], max(len(heads[0]), columns - sum(width + 2 for width in widths[1:-1])))
    for name, *figures, last in (heads, *rows):
        shown = name if len(name) <= widths[0] else f"{name[: widths[0] - 1]}…"
        numbers = (figure.rjust(width) for figure, width in zip(figures, widths[1:-1], strict=True))
        yield "  ".join((shown.ljust(widths[0]), *numbers, last)).rstrip()


def _names(topics: tuple[str, ...]) -> str:
    return " ".join(topics[:3]) + (f" and {len(topics) - 3} more" if len(topics) > 3 else "")


def _rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.0f}"


def _duration(seconds: float) -> str:
    """Format a duration in two units at most: 0 s, 12 s, 3 m 20 s, 2 h 5 m, 3 d 4 h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} m {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def _printable(line: str) -> str:
    """Return a line without characters that a terminal would act on: servers choose names."""
    return "".join(character if character.isprintable() else "?" for character in line)


class _Terminal:
    """The whole screen, restored at the end. `quit` is set when the user presses q."""

    def __init__(self) -> None:
        self.quit = asyncio.Event()
        self._input = sys.stdin.fileno() if sys.stdin.isatty() else -1
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if self._input >= 0:
            self._before = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
            asyncio.get_running_loop().add_reader(self._input, self._on_key)
        click.echo(_ENTER, nl=False)
        return self

    def __exit__(self, *_: object) -> None:
        click.echo(_LEAVE, nl=False)
        if self._input >= 0:
            asyncio.get_running_loop().remove_reader(self._input)
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def show(self, lines: list[str]) -> None:
        click.echo(_HOME + "".join(f"{line}{_TO_END_OF_LINE}\n" for line in lines) + _TO_END, nl=False)

    def _on_key(self) -> None:
        if os.read(self._input, 100) in (b"q", b"Q", b""):
            self.quit.set()


@click.command()
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=click.FloatRange(SECONDS_MIN, 3_600),
    help="Seconds between two refreshes, at least; a slow cluster is asked less often.",
)
@click.option("--once", is_flag=True, help="Refresh twice, print the second one, and end.")
@namesrv_option
@json_option
def top(interval: float, once: bool, name_servers: str, as_json: bool) -> None:
    """Show brokers and consumer groups with lag and rates until Ctrl-C or q.

    IN/S: messages per second stored in the topics of a group, or at a broker. OUT/S: messages per second that a group
    commits, or that a broker delivers. BEHIND: how long ago the last message that the group consumed was stored, of the
    queue that lags most. Groups with most lag are first. With --json one object per refresh is printed, one per line.
    """
    with_admin(name_servers, lambda admin: _run(admin, interval, once=once, json=as_json))


async def _run(admin: "Admin", interval: float, *, once: bool, json: bool) -> None:
    before = await sample(admin)
    if once:
        await asyncio.sleep(_pause(before, SECONDS_MIN))
        now = await sample(admin)
        _print_once(before, now, json=json)
        return
    if json or not sys.stdout.isatty():
        while True:
            await asyncio.sleep(_pause(before, interval))
            now = await sample(admin)
            _print_once(before, now, json=json)
            before = now
    with _Terminal() as terminal:
        earlier: TopRefresh | None = None
        problem = ""
        while True:
            size = shutil.get_terminal_size()
            lines = screen(earlier, before, size.columns, size.lines - 1, colour=True)
            terminal.show([*lines[: size.lines - 2], problem[: size.columns]])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(terminal.quit.wait(), _pause(before, interval))
                return
            try:
                earlier, before, problem = before, await sample(admin), ""
            except TandemError as error:
                problem = _printable(f"not refreshed: {error}")


def _print_once(before: TopRefresh, now: TopRefresh, *, json: bool) -> None:
    if json:
        show_json(as_json(before, now))
    else:
        click.echo("\n".join(screen(before, now, terminal_columns() or 10_000, 10_000, colour=False)))


def _pause(refresh: TopRefresh, interval: float) -> float:
    return max(interval, PAUSE_FACTOR * refresh.took_s)
