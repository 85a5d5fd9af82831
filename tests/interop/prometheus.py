"""Debian's Prometheus as a child process, configured as deploy/monitoring is, and its query API."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.interop.java import LOOPBACK, PeerError, Process, free_port
from tools.dashboards import DEPLOY, RULES

INTERVAL = "1s"
_READY = "Server is ready to receive web requests"


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`.

    Raises:
        PeerError: it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise PeerError(f"{name} is not installed; run: apt-get install prometheus")
    return path


class Prometheus(Process):
    """A Prometheus that scrapes targets each second, or at another interval, and evaluates our alert rules."""

    def __init__(self, directory: Path, targets: Iterable[str], *, interval: str = INTERVAL) -> None:
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._conf = directory.resolve() / "prometheus.yml"
        text = (DEPLOY / "prometheus.yml").read_text(encoding="utf-8")
        text = re.sub(r"targets: \[.*\]", f"targets: {json.dumps(list(targets))}", text)
        self._conf.write_text(text.replace("_interval: 10s", f"_interval: {interval}"))
        shutil.copy(RULES, directory)
        super().__init__("prometheus", directory, command=self._command_line, ready=_READY)

    def _command_line(self) -> list[str]:
        return [
            program("prometheus"),
            f"--config.file={self._conf}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self.port}",
        ]

    def get(self, path: str, **fields: str) -> Any:
        """Return the data of an answer of the API."""
        with urlopen(f"http://{LOOPBACK}:{self.port}/api/v1/{path}?{urlencode(fields)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the result of an expression now: a list of `metric` (labels) and `value`."""
        data = self.get("query", query=expr)
        return data["result"] if data["resultType"] == "vector" else [{"metric": {}, "value": data["result"]}]

    def query_range(self, expr: str, start_s: float, end_s: float, step_s: float) -> list[dict[str, Any]]:
        """Return the series of an expression over a time: a list of `metric` (labels) and `values` (time, value)."""
        times = {"start": str(start_s), "end": str(end_s), "step": str(step_s)}
        result: list[dict[str, Any]] = self.get("query_range", query=expr, **times)["result"]
        return result

    def up(self) -> int:
        """Return the number of targets whose last scrape succeeded."""
        return len(self.query("up == 1"))

    def alerts(self) -> dict[str, list[dict[str, Any]]]:
        """Return the labels of alerts that are pending or firing, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self.get("alerts")["alerts"]:
            found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    @staticmethod
    def page_of(address: str) -> bytes:
        """Return the page that a process has for Prometheus."""
        with urlopen(f"http://{address}/metrics", timeout=30) as answer:
            body: bytes = answer.read()
        return body
