"""Dashboards and alert rules: made from their tables, and of metrics that the code has."""

import json
import re

import pytest

from tests.spec import spec
from tools import dashboards
from tools.boards import BOARDS, Board
from tools.dashboards import DEPLOY, alert_rules, as_json, expressions, files, metrics_in, stale_files
from tools.reference import metric_families

KINDS = {"timeseries", "stat", "state-timeline", "row"}


def exported_names() -> set[str]:
    """Return the names of all samples: those of families, and the three of each histogram."""
    names = set()
    for family in metric_families().values():
        names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")} if family.bounds else {family.name}
    return names


def test_dashboards_are_those_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert stale_files() == [], "run `make reference`"
    monkeypatch.setattr(dashboards, "files", lambda: {DEPLOY / "grafana" / "tandemq-overview.json": "{}"})
    assert "tandemq-overview.json" in stale_files()
    assert "tandemq-groups.json" in stale_files(), "a file without a table is stale too"


@spec("O07")
def test_every_dashboard_names_metrics_that_exist_with_the_labels_they_have() -> None:
    known = exported_names()
    for board in BOARDS:
        for title, expr in expressions(board):
            assert metrics_in(expr) <= known, f"{board.title}, {title}"
            assert "up{" in expr or metrics_in(expr), f"{board.title}, {title}"


@spec("O06")
def test_every_alert_names_metrics_that_exist_and_has_a_test() -> None:
    known, tests = exported_names(), (DEPLOY / "rules_test.yml").read_text(encoding="utf-8")
    rules = alert_rules()
    assert len(rules) == (DEPLOY / "rules.yml").read_text(encoding="utf-8").count("- alert:")
    for rule in rules:
        assert metrics_in(rule.expr) <= known, rule.name
        assert rule.severity in ("critical", "warning"), rule.name
        cases = re.findall(rf"alertname: {rule.name}\b(.*?)(?=\n +- |\Z)", tests, re.DOTALL)
        assert any("exp_alerts" in case for case in cases), f"{rule.name}: no test in which it fires"
        assert any("exp_alerts" not in case for case in cases) or not rule.after, (
            f"{rule.name}: none in which it does not"
        )


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_panels_do_not_overlap_and_use_variables_that_the_board_has(board: Board) -> None:
    model = json.loads(as_json(board))
    names = {variable["name"] for variable in model["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in model["panels"]:
        assert panel["type"] in KINDS
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < dashboards.COLUMNS, panel["title"]
        taken |= cells
        for target in panel.get("targets", ()):
            used = {name for name in re.findall(r"\$(\w+)", target["expr"]) if not name.startswith("__")}
            assert used <= names, panel["title"]
    assert len({panel["id"] for panel in model["panels"]}) == len(model["panels"])
    assert model["uid"].endswith(board.name)
    assert len(files()) == len(BOARDS)
