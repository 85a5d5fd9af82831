"""Report: one self-contained HTML page about a log. It loads no scripts, fonts or pictures.

Charts are SVG, drawn from the statistics of `spark.jobs.stats`, which the page also contains as JSON.
Source: docs/guides/pipeline.md, "Report".
"""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from tandemq.spark.jobs.audit import AuditResult
from tandemq.spark.jobs.stats import LogStatistics
from tandemq.spark.jobs.tasks import Result
from tandemq.spark.sources.log.ranges import describe_loss

POINTS_MAX = 240
TOPICS_MAX = 8
"""Maximum number of topics with a line of their own in a chart, largest first; the others share one line."""
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 860, 240, 64, 28, 12
COLORS = ("#2f6db3", "#c8553d", "#3f8f5f", "#8a5fb0", "#b8860b", "#2a9d9d", "#b03a74", "#6b6b6b", "#222222")
OTHERS = "all others"
MINUTE_MS = 60_000

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222; background: #fff }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p.summary { color: #555; margin: 0 } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: left } td.n, th.n { text-align: right }
svg { display: block; width: 100%; height: auto } svg text { font: 11px system-ui, sans-serif; fill: #555 }
.key { display: inline-block; margin-right: 1rem; font-size: .85rem } .key i { display: inline-block; width: .8rem; height: .8rem;
margin-right: .35rem; vertical-align: -1px } .bad { color: #b3261e; font-weight: 600 } .good { color: #2c7a4b; font-weight: 600 }
.scroll { max-height: 22rem; overflow: auto }
"""  # noqa: E501  # style sheets read best in few lines
Line = tuple[str, list[float | None]]


def report_page(title: str, stats: LogStatistics, audits: Sequence[AuditResult] = (), *, made: datetime) -> str:
    """Render the page as HTML text.

    Args:
        title: title of the page; any text.
        audits: comparisons with replicas, if any.
        made: time of creation shown on the page.
    """
    total = sum(row["messages"] for row in stats.topics)
    size = sum(row["bytes"] for row in stats.topics)
    summary = f"{total:,} messages, {size:,} bytes of records, {len(stats.topics)} topics"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="summary">{summary}; made {made.astimezone(UTC):%Y-%m-%d %H:%M} UTC</p>',
        _damage(stats),
        *_charts(stats),
        "<h2>Topics</h2>",
        _table(stats.topics, {"first": _time, "last": _time}),
        "<h2>Lag per group</h2>",
        _lag(stats.groups),
        "<h2>Replicas</h2>",
        _replicas(audits),
    ]
    data = json.dumps({"minutes": stats.minutes, "topics": stats.topics, "groups": stats.groups}).replace(
        "<", "\\u003c"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + f'\n<script type="application/json" id="figures">{data}</script>\n</body></html>\n'
    )


def _damage(stats: LogStatistics) -> str:
    found = '<p class="good">No damage was found.</p>'
    if stats.damaged:
        found = f'<p class="bad">{stats.damaged:,} damaged ranges were found: tandemq spark scrub lists them.</p>'
    return found + _lost(stats.lost)


def _lost(lost: Sequence[Result]) -> str:
    """Render the log offsets that disappeared during the read."""
    return "".join(
        f'<p class="bad">Lost: {describe_loss(loss["start"], loss["end"], loss["why"])}.</p>' for loss in lost
    )


def _charts(stats: LogStatistics) -> list[str]:
    if not stats.minutes:
        return ["<p>There are no messages.</p>"]
    buckets, step = _buckets(stats.minutes)
    each = "minute" if step == 1 else f"{step} minutes"
    largest = [row["topic"] for row in sorted(stats.topics, key=lambda row: -row["messages"])[:TOPICS_MAX]]
    charts = []
    for name, field in (("Messages", "messages"), ("Bytes", "bytes")):
        lines = _by_topic(stats.minutes, buckets, step, largest, field)
        charts += [f"<h2>{name} per {each} and topic</h2>", _chart(buckets, lines, f"{name.lower()} per {each}")]
    worst: list[Line] = [
        (name, _worst(stats.minutes, buckets, step, field))
        for name, field in (("p50", "p50_ms"), ("p90", "p90_ms"), ("p99", "p99_ms"))
    ]
    charts += [
        f"<h2>Latency from producer to broker, ms; the slowest topic of each {each}</h2>",
        _chart(buckets, worst, "latency in milliseconds"),
    ]
    return charts


def _buckets(minutes: Sequence[dict[str, Any]]) -> tuple[list[int], int]:
    """Return the starts of at most POINTS_MAX equal time spans, and the minutes per span."""
    first, last = minutes[0]["minute"] // MINUTE_MS, max(row["minute"] for row in minutes) // MINUTE_MS
    step = max(1, -(-(last - first + 1) // POINTS_MAX))
    return [minute * MINUTE_MS for minute in range(first, last + 1, step)], step


def _by_topic(
    minutes: Sequence[dict[str, Any]], buckets: list[int], step: int, largest: list[str], field: str
) -> list[Line]:
    sums: dict[str, list[float | None]] = {}
    for row in minutes:
        name = row["topic"] if row["topic"] in largest else OTHERS
        values = sums.setdefault(name, [0.0] * len(buckets))
        bucket = (row["minute"] - buckets[0]) // (MINUTE_MS * step)
        values[bucket] = (values[bucket] or 0) + row[field]
    return [(name, sums[name]) for name in [*largest, OTHERS] if name in sums]


def _worst(minutes: Sequence[dict[str, Any]], buckets: list[int], step: int, field: str) -> list[float | None]:
    values: list[float | None] = [None] * len(buckets)
    for row in minutes:
        bucket, value, known = (row["minute"] - buckets[0]) // (MINUTE_MS * step), row[field], None
        known = values[bucket]
        if value is not None:
            values[bucket] = value if known is None else max(known, value)
    return values


def _chart(buckets: list[int], lines: Sequence[Line], label: str) -> str:
    """Draw lines over time, with a scale, and a legend below."""
    top = max((value for _, values in lines for value in values if value is not None), default=0) or 1
    width, height = WIDTH - LEFT - 8, HEIGHT - BOTTOM - TOP

    def x(bucket: int) -> float:
        return LEFT + width * (bucket / (len(buckets) - 1) if len(buckets) > 1 else 0.5)

    def y(value: float) -> float:
        return TOP + height * (1 - value / top)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
    for share in (0.0, 0.5, 1.0):
        line_y = y(top * share)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 8}" y1="{line_y:.1f}" y2="{line_y:.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{line_y + 4:.1f}" text-anchor="end">{_short(top * share)}</text>'
        )
    for index, anchor in ((0, "start"), (len(buckets) - 1, "end")):
        parts.append(f'<text x="{x(index):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{_time(buckets[index])}</text>')
    keys = []
    for color, (name, values) in zip(COLORS, lines, strict=False):
        points = [(x(bucket), y(value)) for bucket, value in enumerate(values) if value is not None]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{color}" stroke-width="1.8"/>')
        if len(points) == 1:
            parts.append(f'<circle cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3.5" fill="{color}"/>')
        keys.append(f'<span class="key"><i style="background:{color}"></i>{escape(name)}</span>')
    return "".join(parts) + "</svg>\n<p>" + "".join(keys) + "</p>"


def _lag(groups: Sequence[dict[str, Any]]) -> str:
    if not groups:
        return "<p>The store has no consumer groups.</p>"
    return _table(sorted(groups, key=lambda row: -row["lag"]))


def _replicas(audits: Sequence[AuditResult]) -> str:
    if not audits:
        return "<p>No replica was compared.</p>"
    parts = []
    for found in audits:
        where = f"{escape(found.second)}: log offsets [{found.start:,}, {found.end:,})"
        lag = found.first_end - found.second_end
        behind = f"; {abs(lag):,} bytes {'behind' if lag > 0 else 'ahead'}" if lag else ""
        if found.diverges_at is None:
            word = '<span class="bad">lost</span>' if found.lost else '<span class="good">equal</span>'
            parts.append(f"<p>{word} {where}{behind}</p>{_lost(found.lost)}")
            continue
        counts = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items() if count)
        parts.append(
            f'<p><span class="bad">diverges at {found.diverges_at:,}</span> {where}{behind}; records: {counts}</p>'
            f"{_lost(found.lost)}"
        )
        shown = [
            {
                "kind": difference["kind"],
                "log offset": difference["commitLogOffset"],
                "topic": difference.get("topic", ""),
                "queue": difference.get("queueId"),
                "queue offset": difference.get("queueOffset"),
            }
            for difference in found.differences[:100]
        ]
        parts.append(_table(shown))
    return "\n".join(parts)


def _table(rows: Sequence[dict[str, Any]], formats: dict[str, Callable[[int], str]] | None = None) -> str:
    if not rows:
        return "<p>None.</p>"
    heads = list(rows[0])
    numeric = {head for head in heads if any(isinstance(row[head], int | float) for row in rows)} - set(formats or {})
    head = "".join(
        f'<th class="n">{escape(column)}</th>' if column in numeric else f"<th>{escape(column)}</th>"
        for column in heads
    )
    lines = []
    for row in rows:
        cells = [
            f'<td class="n">{row[column]:,}</td>'
            if column in numeric and row[column] is not None
            else f"<td>{escape((formats or {}).get(column, str)(row[column])) if row[column] is not None else ''}</td>"
            for column in heads
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _time(wall_ms: int) -> str:
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M}"


def _short(value: float) -> str:
    """Format a number for a scale: 1.5k, 20M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
