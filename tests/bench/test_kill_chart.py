"""The chart of a killed master: lines, gaps, and the outage that it shows. Nothing is run here but the drawing."""

import xml.etree.ElementTree as ET

from bench.kill_chart import END_S, KILL_S, MASTERS, PANELS, STEP_S, Points, chart, outage_s

_SVG = "{http://www.w3.org/2000/svg}"


def steps(value: float, start: float = 0, end: float = END_S) -> Points:
    """Return a line of one value."""
    return [(number * STEP_S, value) for number in range(int(start / STEP_S), int(end / STEP_S) + 1)]


def recorded() -> list[list[Points]]:
    """Return what a takeover after three seconds looks like."""
    found = [[steps(100.0) for _ in panel.lines] for panel in PANELS]
    at = [panel.title for panel in PANELS].index(MASTERS)
    dead, heir = steps(1, 0, KILL_S), steps(0, 0, KILL_S + 3) + steps(1, KILL_S + 3 + STEP_S)
    back = steps(0, 30)
    found[at] = [dead + back, heir]
    return found


def test_every_line_is_drawn_and_broken_where_prometheus_has_no_values() -> None:
    root = ET.fromstring(chart(recorded()))
    lines = root.findall(f"{_SVG}polyline")
    assert len(lines) == sum(len(panel.lines) for panel in PANELS) + 1
    titles = {text.text for text in root.findall(f"{_SVG}text")}
    assert {panel.title for panel in PANELS} <= titles


def test_points_stay_inside_the_picture() -> None:
    root = ET.fromstring(chart(recorded()))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for line in root.findall(f"{_SVG}polyline"):
        for point in line.attrib["points"].split():
            x, y = map(float, point.split(","))
            assert 0 < x < width
            assert 0 < y < height


def test_outage_ends_with_the_first_other_master() -> None:
    assert abs(outage_s(recorded()) - 3) <= 2 * STEP_S


def test_series_that_is_missing_leaves_an_empty_panel() -> None:
    assert ET.fromstring(chart([[[] for _ in panel.lines] for panel in PANELS])) is not None
