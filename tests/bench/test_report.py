"""The report of a benchmark run."""

import json
from pathlib import Path

from bench.cells import CELLS, JAVA, NATS, OURS, SERVERS
from bench.plot import write_svg
from bench.report import (
    extremes,
    generator_notes,
    nats_lines,
    rows,
    summary,
    sync_cost_line,
    sync_costs,
    write_json,
    write_markdown,
)
from bench.setting import Figure
from tests.spec import spec

RATES = {
    ("send/json/varied/4q/1x1", "ours"): 4_000,
    ("send/json/varied/4q/1x1", "4.9.7"): 3_000,
    ("pair/varied/1x1", "ours"): 1_000,
    ("pair/varied/1x1", "4.9.7"): 600,
    ("send/json/varied/4q/16x32", "ours"): 80_000,
    ("pair/varied/16x32", "ours"): 60_000,
    ("pair/varied/16x32", "5.3.3"): 20_000,
}
FIGURES = [Figure(cell, server, rate, {}) for (cell, server), rate in RATES.items()]


@spec("R08")
def test_synchronous_double_write_is_compared_with_an_asynchronous_master_of_the_same_server(tmp_path: Path) -> None:
    """For one sender and for many; a server without one of the two rates is left out."""
    lines = rows(CELLS, FIGURES)
    assert [sync_cost_line(cost) for cost in sync_costs(lines)] == [
        "SYNC_MASTER pair ÷ one ASYNC_MASTER, varied, 1x1: TandemQ 0.25, RocketMQ 4.9.7 0.20",
        "SYNC_MASTER pair ÷ one ASYNC_MASTER, varied, 16x32: TandemQ 0.75",
    ]
    write_json(tmp_path / "latest.json", lines, FIGURES, {})
    written = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert written["sync_cost"] == [
        {"shape": "1x1", "ratios": {"ours": 0.25, "4.9.7": 0.2}},
        {"shape": "16x32", "ratios": {"ours": 0.75}},
    ]


def test_synchronous_double_write_that_was_not_measured_is_not_shown() -> None:
    assert sync_costs(rows(CELLS, FIGURES[:2])) == []


def test_ratio_is_that_to_the_better_java_and_judged_by_the_target() -> None:
    cells = {"send/json/varied/4q/1x1": (1_900, 800, 1_000), "live/100g/send-p99": (1.5, 2.0, 1.0)}
    figures = [
        Figure(name, server, value)
        for name, values in cells.items()
        for server, value in zip((OURS, *JAVA), values, strict=True)
    ]
    rate, time = rows(CELLS, figures)
    assert (rate.ratio, rate.met) == (1.9, True)
    assert (time.ratio, time.met) == (1.5, False)


def test_summary_has_worst_and_best_cells_times_included_and_missed_targets() -> None:
    values = {"pull/1k/4q/1c": (60, 100), "rest/start": (0.5, 1.0), "live/100g/send-p99": (40.0, 10.0)}
    figures = [
        Figure(name, server, value)
        for name, pair in values.items()
        for server, value in zip((OURS, "4.9.7"), pair, strict=True)
    ]
    lines = rows(CELLS, figures)
    worst, best = extremes(lines, 2)
    assert [row.cell for row in worst] == ["live/100g/send-p99", "pull/1k/4q/1c"]
    assert [row.cell for row in best] == ["rest/start"]
    text = "\n".join(summary(lines))
    assert text.index("The worst cells") < text.index("sends, p99: 40 ms, 4.00 of RocketMQ's") < text.index("0.60 of")
    assert "2 of 3 targets missed:" in text
    assert text.endswith("target ≤ 1×")
    assert summary([]) == []


def test_worst_and_best_cells_are_shown_and_none_twice(tmp_path: Path) -> None:
    names = [cell.name for cell in CELLS if cell.name.startswith("send/json/varied/")]
    figures = [
        figure
        for number, name in enumerate(names)
        for figure in (Figure(name, OURS, 100.0 * (number + 1)), Figure(name, "4.9.7", 100.0))
    ]
    lines = rows(CELLS, figures)
    worst, best = extremes(lines, 4)
    assert [row.cell for row in worst] == names[:4]
    assert [row.cell for row in best] == names[:-5:-1]
    assert [len(part) for part in extremes(lines[:5], 4)] == [4, 1]
    write_svg(tmp_path / "plot.svg", lines)
    write_markdown(tmp_path / "latest.md", lines, SERVERS)
    for text in ((tmp_path / "plot.svg").read_text(), (tmp_path / "latest.md").read_text()):
        assert lines[0].title in text
        assert lines[-1].title in text


def test_nats_is_compared_below_the_table_and_is_no_part_of_a_ratio(tmp_path: Path) -> None:
    shares = {"server_cpu": 1.23, "cpu_share": 0.15}
    figures = [*FIGURES, Figure("send/json/varied/4q/1x1", NATS, 2_000, shares)]
    lines = rows(CELLS, figures)
    assert lines[0].ratio == 4 / 3
    (line,) = nats_lines(lines, figures)
    assert "send varied, 1x1: 2.00; its server used 1.23 of a core, its generator 0.15" in line
    write_markdown(tmp_path / "latest.md", lines, SERVERS)
    assert "| RocketMQ 5.3.3 | NATS JetStream |" in (tmp_path / "latest.md").read_text()
    write_markdown(tmp_path / "latest.md", rows(CELLS, FIGURES[:2]), SERVERS)
    written = (tmp_path / "latest.md").read_text()
    assert "NATS" not in written
    assert "5.3.3" not in written


def test_figures_near_the_limit_of_the_generator_are_named() -> None:
    figures = [
        Figure("send/json/varied/4q/16x32", "ours", 500_000, {"cpu_share": 0.4}),
        Figure("send/json/varied/4q/1x1", "ours", 10_000, {"cpu_share": 0.4}),
        Figure("pull/1k/4q/1c", "4.9.7", 10_000, {"cpu_share": 0.97}),
        Figure("live/100g/e2e-p50", "ours", 700, {"expected": 1000, "reads": {"received": 800}}),
        Figure("live/100g/e2e-p99", "ours", 900, {"expected": 1000, "reads": {"received": 800}}),
    ]
    notes = generator_notes(figures, {"16x32": {"limit": 600_000}, "1x1": {"limit": 30_000}})
    assert notes == [
        "ours, send/json/varied/4q/16x32: 83% of the generator's limit",
        "4.9.7, pull/1k/4q/1c: the generator used 97% of a core",
        "ours, live/100g: the groups had received 80% when the run ended",
    ]
