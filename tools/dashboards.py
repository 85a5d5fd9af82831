"""Dashboards for Grafana in deploy/monitoring/grafana: python -m tools.dashboards [--check].

A board is rows of panels; a panel has queries, each an expression and a legend. The tables are in `tools.boards`.
`make reference` writes the files. tests/unit/telemetry/test_dashboards.py fails when one differs, or when an expression
names a metric that the code does not have; tests/interop/test_prometheus.py evaluates every expression on a cluster
that a real Prometheus scrapes.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.boards import BOARDS, Board, Panel

DEPLOY = Path(__file__).resolve().parent.parent / "deploy" / "monitoring"
DASHBOARDS = DEPLOY / "grafana"
RULES = DEPLOY / "rules.yml"
COLUMNS = 24
TALL, LOW = 8, 4
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"')
_METRIC = re.compile(r"\b(?:rocketmq|tandemq|process)_[a-z0-9_]+")


_VARIABLES = {
    "cluster": ("Cluster", "label_values(tandemq_broker_master, cluster)", False),
    "broker": ("Broker group", 'label_values(tandemq_broker_master{cluster="$cluster"}, broker)', True),
    "group": (
        "Consumer group",
        'label_values(rocketmq_consumer_lag_messages{cluster="$cluster"}, consumer_group)',
        True,
    ),
    "topic": ("Topic", 'label_values(rocketmq_messages_in_total{cluster="$cluster"}, topic)', True),
}


def expressions(board: Board) -> Iterator[tuple[str, str]]:
    """Yield title and expression of each query of a board."""
    for _, panels in board.rows:
        for panel in panels:
            for query in panel.queries:
                yield panel.title, query.expr


class AlertRule(NamedTuple):
    """An alert rule of deploy/monitoring/rules.yml."""

    name: str
    expr: str
    after: str
    severity: str
    summary: str
    description: str


def alert_rules() -> list[AlertRule]:
    """Return the alert rules."""
    text = re.sub(r"^ +#.*\n", "", RULES.read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = []
    for block in text.split("- alert: ")[1:]:
        fields = dict(re.findall(r"^ +(\w+): (.+)$", block, re.MULTILINE))
        severity = fields["labels"].removeprefix("{severity: ").removesuffix("}")
        texts = (fields[name].strip('"') for name in ("summary", "description"))
        found.append(AlertRule(block.split("\n", 1)[0], fields["expr"], fields.get("for", ""), severity, *texts))
    return found


def metrics_in(expr: str) -> set[str]:
    """Return the names of our metrics in an expression."""
    return set(_METRIC.findall(_STRINGS.sub('""', expr)))


def as_json(board: Board) -> str:
    """Return the file of a board."""
    model = {
        "uid": f"tandemq-{board.name}",
        "title": board.title,
        "tags": ["tandemq"],
        "editable": True,
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "TandemQ",
                "tags": ["tandemq"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_source_variable(), *map(_variable, board.variables)]},
        "panels": _panels(board),
    }
    return json.dumps(model, indent=1) + "\n"


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}


def _variable(name: str) -> dict[str, Any]:
    label, query, is_many = _VARIABLES[name]
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": is_many,
        "includeAll": is_many,
        "allValue": ".*" if is_many else None,
        "current": {"text": "All", "value": "$__all"} if is_many else {},
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panels(board: Board) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    top = 0
    for title, panels in board.rows:
        found.append(
            {
                "id": len(found) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": _at(0, top, COLUMNS, 1),
                "panels": [],
            }
        )
        top, left, height = top + 1, 0, 0
        for panel in panels:
            if left + panel.width > COLUMNS:
                top, left, height = top + height, 0, 0
            high = LOW if panel.kind == "stat" else TALL
            found.append(_panel(panel, len(found) + 1, _at(left, top, panel.width, high)))
            left, height = left + panel.width, max(height, high)
        top += height
    return found


def _at(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.limit is not None:
        steps.append({"color": "red", "value": panel.limit})
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {"fillOpacity": 8, "thresholdsStyle": {"mode": "off" if panel.limit is None else "line"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
            }
            for at, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS.get(panel.kind, {}),
    }


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"},
}


def files() -> dict[Path, str]:
    """Return the files that should exist."""
    return {DASHBOARDS / f"tandemq-{board.name}.json": as_json(board) for board in BOARDS}


def stale_files() -> list[str]:
    """Return the names of files that differ from the tables, are missing, or are too many."""
    wanted = files()
    stale = [
        path.name for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    return stale + [path.name for path in sorted(DASHBOARDS.glob("*")) if path not in wanted]


def main(arguments: list[str]) -> int:
    """Write the files, or check them; return the exit code."""
    if arguments == ["--check"]:
        if stale := stale_files():
            print(f"{', '.join(stale)}: not as tools/dashboards.py says; run: make reference")
        return int(bool(stale))
    DASHBOARDS.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
