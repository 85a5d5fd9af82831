"""Charts as SVG, made by the server: lines over the last hour with both axes, readable without colours.

A chart is an image with a title and a description; its values are also in a table on the page (`table_rows`). Colours
come from classes, so that both themes work and nothing is inline.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

WIDTH, HEIGHT = 440, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 10, 24
"""Margins of the plot, for the labels of the axes."""
TABLE_ROWS = 13
GAP_MS = 150_000
"""Samples further apart are not joined by a line: the console did not run, or no broker answered."""
LABELS_MAX = 6
LABEL_HALF = 26
"""Half the width of a time, which is not drawn where it would be cut."""
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
_STEPS = (1, 1.5, 2, 3, 4, 5, 6, 8, 10)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its name, in the language of the page, and its values."""

    name: str
    values: Sequence[float]


def chart(key: str, title: str, times: Sequence[int], lines: Sequence[Line]) -> Markup:
    """Return lines over time as SVG; "" if there are fewer than two samples.

    Args:
        key: unique on the page.
        title: in the language of the page.
        times: calendar ms of the samples, oldest first.
        lines: at most three, each with a value per sample.
    """
    if len(times) < 2:
        return Markup()
    begin, end = times[0], times[-1]
    top = nice_top(max((max(line.values) for line in lines), default=0))
    parts = [*_grid(begin, end, top), *(_line(index, line, times, top) for index, line in enumerate(lines))]
    described = "; ".join(f"{line.name}: {amount(min(line.values))} – {amount(max(line.values))}" for line in lines)
    return Markup(
        '<svg class="chart" role="img" viewBox="0 0 {w} {h}" aria-labelledby="ct-{key} cd-{key}">'
        '<title id="ct-{key}">{title}</title><desc id="cd-{key}">{span} UTC. {described}</desc>{parts}</svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        key=key,
        title=title,
        span=f"{_clock(begin)} – {_clock(end)}",
        described=described,
        parts=Markup().join(parts),
    )


def legend(lines: Sequence[str]) -> Markup:
    """Return the names of lines, each behind a piece of its line."""
    items = [
        Markup(
            '<li><svg class="key" aria-hidden="true" viewBox="0 0 26 8" width="26" height="8">'
            '<path class="line{index}" d="M1 4H25"/></svg> {name}</li>'
        ).format(index=index, name=name)
        for index, name in enumerate(lines)
    ]
    return Markup('<ul class="legend">{}</ul>').format(Markup().join(items))


def table_rows(times: Sequence[int], lines: Sequence[Line]) -> list[tuple[int, list[float]]]:
    """Return at most `TABLE_ROWS` samples, newest first: the time, and the value of each line."""
    step = max(1, math.ceil(len(times) / TABLE_ROWS))
    shown = range(len(times) - 1, -1, -step)
    return [(times[index], [line.values[index] for line in lines]) for index in shown]


def nice_top(value: float) -> float:
    """Return the end of an axis: the next one of `_STEPS` times a power of ten, at least 1."""
    if value <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * step for step in _STEPS if power * step >= value * (1 - 1e-9))


def amount(value: float) -> str:
    """Return a value in a few characters: 0, 0.5, 12, 3.4k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _x(at_ms: int, begin: int, end: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (at_ms - begin) / max(1, end - begin)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(value, top) / top)


def _clock(at_ms: int, *, seconds: bool = False) -> str:
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.gmtime(at_ms / 1000))


def time_ticks(begin: int, end: int) -> list[int]:
    """Return round times for the labels of the axis, at most `LABELS_MAX`."""
    steps_ms = (5_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, HOUR_MS)
    step = next((step for step in steps_ms if (end - begin) / step <= LABELS_MAX), HOUR_MS)
    return list(range(math.ceil(begin / step) * step, end + 1, step))[:LABELS_MAX]


def _grid(begin: int, end: int, top: float) -> Iterator[Markup]:
    for part in (0.0, 0.5, 1.0):
        y = _y(top * part, top)
        yield Markup(
            '<path class="grid" d="M{l} {y:.1f}H{r}"/><text x="{x}" y="{t:.1f}" class="end">{text}</text>'
        ).format(l=LEFT, r=WIDTH - RIGHT, y=y, x=LEFT - 6, t=y + 4, text=amount(top * part))
    yield Markup('<text x="{x}" y="{y}" class="end">UTC</text>').format(x=LEFT - 6, y=HEIGHT - 6)
    seconds = end - begin < 3 * MINUTE_MS
    for at_ms in time_ticks(begin, end):
        x = _x(at_ms, begin, end)
        if not LEFT + LABEL_HALF <= x <= WIDTH - LABEL_HALF:
            continue
        yield Markup(
            '<path class="grid" d="M{x:.1f} {t}V{b}"/><text x="{x:.1f}" y="{y}" class="mid">{text}</text>'
        ).format(x=x, t=HEIGHT - BOTTOM, b=HEIGHT - BOTTOM + 4, y=HEIGHT - 6, text=_clock(at_ms, seconds=seconds))


def _line(index: int, line: Line, times: Sequence[int], top: float) -> Markup:
    begin, end = times[0], times[-1]
    points = [(_x(at_ms, begin, end), _y(value, top)) for at_ms, value in zip(times, line.values, strict=True)]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (before, at_ms), (x, y) in zip(pairwise(times), points[1:], strict=True):
        path += f"{'L' if at_ms - before <= GAP_MS else 'M'}{x:.1f} {y:.1f}"
    return Markup('<path class="line{index}" d="{path}"/>').format(index=index, path=path)
