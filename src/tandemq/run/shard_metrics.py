"""One port for the metrics of all shards.

    GET /metrics ─► /metrics of each shard, on the loopback, with a token of their own ─► one page, family by family

All metrics of a broker have its name as a label (`broker`, or RocketMQ's `node_id`), so the series of two shards never
have the same labels, and nothing is added up. A shard that does not run is missing; `tandemq_shard_up` reports it.
"""

import logging
import math
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Protocol
from urllib.request import ProxyHandler, Request, build_opener

from tandemq.config.monitoring import labels_of
from tandemq.config.settings import BrokerConfig
from tandemq.real.clock import read_clock
from tandemq.real.monitoring.listener import LOOP_SECONDS, MonitoringListener
from tandemq.real.monitoring.metered_node import Answer, Question, QuestionKind
from tandemq.real.network.addresses import text_of
from tandemq.run.metrics_credentials import MetricsCredentials
from tandemq.telemetry.exposition import RenderedFamily, TextRenderer
from tandemq.telemetry.families import Batch, Family, MetricKind, Metrics, Values, counter, gauge

log = logging.getLogger(__name__)
UP = gauge("tandemq_shard_up", "Whether a shard of this machine serves clients.", "broker")
RESTARTS = counter("tandemq_shard_restarts_total", "How often a shard was started again.", "broker")
_HELP = re.compile(r"^# HELP ", re.MULTILINE)
_opener = build_opener(ProxyHandler({}))


class MeasuredShard(Protocol):
    """What is measured of a shard."""

    name: str
    restarts: int

    @property
    def reason(self) -> str:
        """Why it does not serve; "" if it does."""

    @property
    def metrics_address(self) -> str:
        """Address of its metrics, "ip:port"; "" if it does not run."""


def make_token(directory: Path) -> Path:
    """Return the file with the token for the metrics of the shards, made if it is not there."""
    path = directory / "metrics.token"
    if not path.exists() or not path.stat().st_size:
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
    return path


def merged(pages: Iterable[str]) -> list[RenderedFamily]:
    """Return the families of several pages of Prometheus's text format, each family once, in the order of the pages."""
    found: dict[str, RenderedFamily] = {}
    for page in pages:
        for block in _HELP.split(page)[1:]:
            head, kind, lines = block.split("\n", 2)
            name, _, text = head.partition(" ")
            if name not in found:
                family = _family(name, MetricKind(kind.rpartition(" ")[2]), text)
                found[name] = RenderedFamily(family, [])
            found[name].chunks.append(lines.encode())
    return list(found.values())


def _family(name: str, kind: MetricKind, text: str) -> Family:
    plain = "\\".join(part.replace("\\n", "\n") for part in text.split("\\\\"))
    return Family(name, kind, plain, bounds=(math.inf,) if kind is MetricKind.HISTOGRAM else ())


class ShardMonitoring:
    """The port, and the thread that asks the shards."""

    def __init__(
        self, config: BrokerConfig, shards: Sequence[MeasuredShard], token: Path, alive_ns: Callable[[], int]
    ) -> None:
        """Bind the port and begin to answer.

        Args:
            config: the settings of all shards.
            shards: the shards.
            token: file of the credentials for their metrics.
            alive_ns: returns when the loop that was silent for longest last turned, monotonic.

        Raises:
            ConfigError: the port, or the file of credentials, cannot be used.
        """
        self._shards = shards
        self._authorization = f"Bearer {token.read_text(encoding='ascii').strip()}"
        self._alive_ns = alive_ns
        self._renderer = TextRenderer(config.metrics_series_max)
        self._metrics = Metrics({"tandemq": {"cluster": config.cluster}}, labels_of(config.metrics_label))
        self._lock, self._is_closed = threading.Lock(), False
        self._pool = ThreadPoolExecutor(len(shards) + 1, thread_name_prefix="metrics")
        file = config.metrics_credentials_file
        admits = MetricsCredentials(file).admit if file else None
        self._listener = MonitoringListener(config.metrics_bind_address, config.scrape_port, self, admits)
        self.address = text_of((config.metrics_bind_address, self._listener.port))
        if config.has_open_metrics:
            log.warning(
                "metrics: no metricsCredentialsFile: any client that reaches port %d can read names of topics and "
                "groups",
                self._listener.port,
            )
        self._listener.start()

    @property
    def last_turn_ns(self) -> int:
        """When the loop that was silent for longest last turned, monotonic."""
        return self._alive_ns()

    def ask(self, question: Question) -> None:
        """Answer, in another thread if the shards have to be asked."""
        if question.kind is QuestionKind.READINESS:
            reasons = [f"{shard.name}: {shard.reason}" for shard in self._shards if shard.reason]
            question.reply(Answer(question.kind, reasons=reasons))
            return
        threading.Thread(target=self._answer, args=(question,), name="metrics-answer", daemon=True).start()

    def _answer(self, question: Question) -> None:
        pages = list(self._pool.map(self._page, self._shards))
        answer = Answer(question.kind, families=[*self._own(), *merged(pages)])
        with self._lock:
            if not self._is_closed:
                question.reply(answer)

    def _own(self) -> list[RenderedFamily]:
        up: Values = {(shard.name,): float(not shard.reason) for shard in self._shards}
        restarts: Values = {(shard.name,): shard.restarts for shard in self._shards}
        self._renderer.begin(read_clock())
        return [
            RenderedFamily(
                batch.family, list(self._renderer.render(batch, self._metrics.constant_labels(batch.family)))
            )
            for batch in (Batch(UP, up), Batch(RESTARTS, restarts))
        ]

    def _page(self, shard: MeasuredShard) -> str:
        """Return the metrics of a shard; "" if it does not answer."""
        address = shard.metrics_address
        if not address:
            return ""
        request = Request(f"http://{address}/metrics", headers={"Authorization": self._authorization})
        try:
            with _opener.open(request, timeout=LOOP_SECONDS - 1) as response:
                text: str = response.read().decode()
                return text
        except (OSError, HTTPException) as error:
            log.warning("metrics: %s does not answer: %s", shard.name, error)
            return ""

    def close(self) -> None:
        """Close the port."""
        with self._lock:
            self._is_closed = True
        self._listener.close()
        self._pool.shutdown()
