"""The picture for the README: one group of bars per rate, TandemQ and the two Java brokers side by side.

Bars show the ratio to the better Java broker of the same run, so cells of different units share one axis; the absolute
value stands at the end of each bar. Written as SVG text: no drawing library, and a diff that can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bench.cells import JAVA, OURS
from bench.report import Row

_COLOURS = {OURS: "#2563eb", JAVA[0]: "#f59e0b", JAVA[1]: "#fcd34d"}
_NAMES = {OURS: "TandemQ", JAVA[0]: f"RocketMQ {JAVA[0]}", JAVA[1]: f"RocketMQ {JAVA[1]}"}
_LEFT, _WIDTH, _RIGHT = 250, 420, 110
_BAR, _GAP, _TOP = 11, 12, 56
_AXIS_MAX = 6.0


def write_svg(path: Path, rows: Sequence[Row]) -> None:
    """Draw every rate that was measured on at least one Java broker and on ours."""
    shown = [row for row in rows if row.ratio is not None and row.unit in {"msg/s", "MB/s"}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_svg(shown), encoding="utf-8")


def _svg(rows: Sequence[Row]) -> str:
    group = 3 * _BAR + _GAP
    height = _TOP + group * len(rows) + 24
    width = _LEFT + _WIDTH + _RIGHT
    axis_max = min(_AXIS_MAX, max([2.0, *(row.ratio * 1.05 for row in rows if row.ratio is not None)]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="22" font-size="15" font-weight="600">Throughput, better Java broker = 1</text>',
        *_legend(),
        *_axis(axis_max, height),
    ]
    for number, row in enumerate(rows):
        parts += _group(row, _TOP + number * group, axis_max)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    parts = []
    for number, (server, colour) in enumerate(_COLOURS.items()):
        x = _LEFT + number * 140
        parts.append(f'<rect x="{x}" y="32" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="41" font-size="11">{_NAMES[server]}</text>')
    return parts


def _axis(axis_max: float, height: int) -> list[str]:
    parts = []
    for tick in range(int(axis_max) + 1):
        x = _LEFT + _WIDTH * tick / axis_max
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{height - 18}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 6}" font-size="10" text-anchor="middle">{tick}</text>')
    return parts


def _group(row: Row, top: int, axis_max: float) -> list[str]:
    better = max(row.values[server] for server in JAVA if server in row.values)
    parts = [
        f'<text x="{_LEFT - 10}" y="{top + 2 * _BAR - 1}" font-size="11" text-anchor="end">{escape(row.title)}</text>'
    ]
    for number, server in enumerate(_COLOURS):
        if server not in row.values:
            continue
        value = row.values[server]
        length = _WIDTH * min(value / better, axis_max) / axis_max
        y = top + number * _BAR
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_BAR - 2}" fill="{_COLOURS[server]}"/>'
            f'<text x="{_LEFT + length + 5:.1f}" y="{y + 8}" font-size="9">{value:,.0f} {escape(row.unit)}</text>'
        )
    return parts
