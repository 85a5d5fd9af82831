"""The report of a benchmark run."""

import json
from pathlib import Path

from bench.cells import CELLS
from bench.report import rows, sync_cost_line, sync_costs, write_json
from bench.sessions import Figure
from tests.spec import spec

RATES = {
    ("send-128-1x1", "ours"): 4_000,
    ("send-128-1x1", "4.9.7"): 3_000,
    ("pair-1x1", "ours"): 1_000,
    ("pair-1x1", "4.9.7"): 600,
    ("send-128-16x32", "ours"): 80_000,
    ("pair-16x32", "ours"): 60_000,
    ("pair-16x32", "5.3.3"): 20_000,
}
FIGURES = [Figure(cell, server, rate, {}) for (cell, server), rate in RATES.items()]


@spec("R08")
def test_synchronous_double_write_is_compared_with_an_asynchronous_master_of_the_same_server(tmp_path: Path) -> None:
    """For one sender and for many; a server without one of the two rates is left out."""
    lines = rows(CELLS, FIGURES)
    assert [sync_cost_line(cost) for cost in sync_costs(lines)] == [
        "SYNC_MASTER pair ÷ one ASYNC_MASTER, 128 B, 1x1: TandemQ 0.25, 4.9.7 0.20",
        "SYNC_MASTER pair ÷ one ASYNC_MASTER, 128 B, 16x32: TandemQ 0.75",
    ]
    write_json(tmp_path / "latest.json", lines, FIGURES, {})
    written = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert written["sync_cost"] == [
        {"shape": "1x1", "ratios": {"ours": 0.25, "4.9.7": 0.2}},
        {"shape": "16x32", "ratios": {"ours": 0.75}},
    ]


def test_synchronous_double_write_that_was_not_measured_is_not_shown() -> None:
    assert sync_costs(rows(CELLS, FIGURES[:2])) == []
