"""The picture for the README: one group of bars per rate, TandemQ and the two Java brokers side by side.

It shows the rates with the lowest ratios first, then those with the highest.

Bars show the ratio to the better Java broker of the same run, so cells of different units share one axis; the absolute
value stands at the end of each bar. Written as SVG text: no drawing library, and a diff that can be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bench.cells import JAVA, OURS
from bench.report import Row, extremes, rates

_COLOURS = {OURS: "#2563eb", JAVA[0]: "#f59e0b", JAVA[1]: "#fcd34d"}
_NAMES = {OURS: "TandemQ", JAVA[0]: f"RocketMQ {JAVA[0]}", JAVA[1]: f"RocketMQ {JAVA[1]}"}
_LEFT, _WIDTH, _RIGHT = 330, 420, 110
_BAR, _GAP, _TOP, _TITLE = 11, 12, 56, 20
_SHOWN = 12
_AXIS_MAX = 6.0


def write_svg(path: Path, rows: Sequence[Row]) -> None:
    """Draw the worst and the best of the rates that were measured on ours and on at least one Java broker."""
    worst, best = extremes(rates(rows), _SHOWN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_svg([("Lowest ratios", worst), ("Highest ratios", best)]), encoding="utf-8")


def _svg(parts_shown: Sequence[tuple[str, Sequence[Row]]]) -> str:
    group = 3 * _BAR + _GAP
    rows = [row for _, part in parts_shown for row in part]
    height = _TOP + group * len(rows) + _TITLE * len(parts_shown) + 24
    width = _LEFT + _WIDTH + _RIGHT
    axis_max = min(_AXIS_MAX, max([2.0, *(row.ratio * 1.05 for row in rows if row.ratio is not None)]))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        '<text x="12" y="22" font-size="15" font-weight="600">Throughput, better Java broker = 1</text>',
        *_legend(),
        *_axis(axis_max, height),
    ]
    top = _TOP
    for title, part in parts_shown:
        parts.append(f'<text x="12" y="{top + 8}" font-size="12" font-weight="600">{title}</text>')
        top += _TITLE
        for row in part:
            parts += _group(row, top, axis_max)
            top += group
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
