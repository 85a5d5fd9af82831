"""Charts as SVG: axes, gaps, description, and nothing that a name could break."""

import re
from xml.etree import ElementTree as ET

import pytest

from tandemq.console.web.charts import (
    LABELS_MAX,
    TABLE_ROWS,
    Line,
    amount,
    chart,
    legend,
    nice_top,
    table_rows,
    time_ticks,
)

HOUR = [1_700_000_000_000 + 60_000 * minute for minute in range(60)]
EVIL = '"><script>alert(1)</script>'


def test_chart_has_both_axes_with_labels() -> None:
    drawn = str(chart("rates", "Messages per second", HOUR, [Line("sent", [float(n) for n in range(60)])]))
    labels = re.findall(r"<text[^>]*>([^<]+)</text>", drawn)
    assert labels[:3] == ["0", "30", "60"], "from nothing to a round number"
    assert labels[3:] == ["UTC", "22:20", "22:30", "22:40", "22:50", "23:00"], "the last one would be cut"
    assert "<title" in drawn and "22:13 – 23:12 UTC. sent: 0 – 59" in drawn
    assert drawn.count('class="line0"') == 1 and drawn.count("L") == 59


def test_line_has_a_gap_while_nothing_was_recorded() -> None:
    times = [*HOUR[:5], *HOUR[20:25]]
    drawn = str(chart("lag", "Lag", times, [Line("lag", [1] * 10)]))
    path = re.search(r'class="line0" d="([^"]+)"', drawn)
    assert path is not None and path[1].count("M") == 2 and path[1].count("L") == 8


def test_names_are_escaped_and_the_picture_is_well_formed() -> None:
    drawn = str(chart("x", EVIL, HOUR, [Line(EVIL, [0.0] * 60), Line("b", [5e9] * 60)])) + str(legend([EVIL]))
    assert "<script>" not in drawn
    ET.fromstring(f"<p>{drawn}</p>")


def test_one_sample_is_no_chart() -> None:
    assert str(chart("x", "t", HOUR[:1], [Line("a", [1])])) == ""


def test_table_has_few_rows_newest_first_with_the_last_sample() -> None:
    rows = table_rows(HOUR, [Line("a", list(range(60)))])
    assert rows[0] == (HOUR[-1], [59]) and len(rows) <= TABLE_ROWS and rows == sorted(rows, reverse=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (12.5, "12.5"),
        (250.4, "250"),
        (7_500, "7.5k"),
        (12_000, "12k"),
        (3.2e6, "3.2M"),
        (5e9, "5G"),
    ],
)
def test_amounts_are_short(value: float, text: str) -> None:
    assert amount(value) == text


def test_axis_ends_at_a_round_number_at_or_above_the_highest_value() -> None:
    for value in (0.0, 0.3, 1, 1.2, 9.9, 10, 11, 59, 99, 101, 11_943, 1e9):
        top = nice_top(value)
        assert value <= top <= max(1, 1.7 * value), value
        assert float(f"{top:.2g}") == top


def test_labels_of_times_are_few_and_round() -> None:
    for minutes in (1, 2, 5, 12, 30, 60):
        begin = 1_700_000_000_123
        ticks = time_ticks(begin, begin + 60_000 * minutes)
        assert 1 <= len(ticks) <= LABELS_MAX and all(tick % 5_000 == 0 for tick in ticks), minutes
