"""Pushes to a collector: retries, limits, what is logged and counted."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from tandemq.boundary import LinkKind
from tandemq.config.monitoring import parse_target
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.real.loop import Loop
from tandemq.real.monitoring import otlp_exporter
from tandemq.real.monitoring.metered_node import MeteredNode
from tandemq.real.monitoring.otlp_exporter import OtlpExporter, PushSettings
from tandemq.run.monitoring import push_settings
from tandemq.run.push_headers import HeaderFile
from tandemq.telemetry.otlp import OtlpRenderer
from tests.spec import spec
from tests.unit.real.monitoring.collector import Collector, Response
from tests.unit.real.monitoring.test_metered_node import Node
from tests.unit.telemetry.otlp import metrics_of, total

PUSHES = "tandemq_metrics_pushes_total"


class Pusher:
    """A loop with a node on one thread, and its pushes on another."""

    def __init__(self, settings: PushSettings, *, is_delta: bool = False) -> None:
        self.loop = Loop()
        self.loop.listen("127.0.0.1", 0, LinkKind.REMOTING)
        renderer = OtlpRenderer(50_000, {"service.name": "test"}, "1", 0, is_delta=is_delta)
        self.metered = MeteredNode(Node(10), self.loop.wake, 50_000, renderer)
        self.exporter = OtlpExporter(self.metered, renderer, settings, "tandemq/1")
        self._thread = threading.Thread(target=self.loop.run, args=(self.metered,), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.exporter.start()

    def close(self) -> None:
        self.loop.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout=60)
        self.exporter.close()
        self.loop.close()


@pytest.fixture
def push(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pusher]]:
    """Start to push to a URL; the first pause before a retry is short."""
    monkeypatch.setattr(otlp_exporter, "FIRST_PAUSE_S", 0.01)
    pushers: list[Pusher] = []

    def build(url: str, interval_s: float = 0.1, timeout_s: float = 5.0, **settings: object) -> Pusher:
        target = parse_target(url)
        pushers.append(Pusher(PushSettings(target, interval_s, timeout_s, dict, **settings)))  # type: ignore[arg-type]
        pushers[-1].start()
        return pushers[-1]

    yield build
    for pusher in pushers:
        pusher.close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@spec("O11")
def test_metrics_are_pushed_at_intervals(collector: Collector, push: Callable[..., Pusher]) -> None:
    push(collector.url)
    pushes = collector.wait(3)
    assert pushes[0].path == "/v1/metrics"
    assert pushes[0].headers["User-Agent"] == "tandemq/1"
    assert len([*metrics_of(pushes[0].request)["tandemq_size"].gauge.data_points]) == 10
    assert total(pushes[2].request, PUSHES, outcome="accepted") == 2
    assert total(pushes[2].request, "tandemq_metrics_last_push_timestamp_seconds") > 1e9


@spec("O11")
@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_push_is_repeated_after_an_answer_that_asks_for_it(
    status: int, collector: Collector, push: Callable[..., Pusher]
) -> None:
    collector.answer(Response(status), Response(status))
    push(collector.url, interval_s=2.0)
    first, second, third = collector.wait(3)
    assert first.request == second.request == third.request
    fourth = collector.wait(4)[3]
    assert total(fourth.request, "tandemq_metrics_push_retries_total") == 2
    assert total(fourth.request, PUSHES, outcome="accepted") == 1


@spec("O11")
def test_push_waits_as_long_as_retry_after_says(collector: Collector, push: Callable[..., Pusher]) -> None:
    collector.answer(Response(503, (("Retry-After", "1"),)))
    push(collector.url, interval_s=2.5)
    first, second = collector.wait(2)
    assert first.request == second.request
    assert second.at_s - first.at_s > 0.9


@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [
        ("7", 7, 7),
        ("99999999999999999999", 600, 600),
        ("Wed, 25 Nov 2893 18:14:47 GMT", 600, 600),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("-5", 0, 0),
        ("soon", 0, 0),
        ("Mon, 99 Foo 99999 99:99:99 GMT", 0, 0),
        ("", 0, 0),
    ],
)
def test_retry_after_is_a_number_or_a_date_within_limits(text: str, lowest: float, highest: float) -> None:
    assert lowest <= otlp_exporter._seconds(text) <= highest


def test_retry_after_beyond_the_interval_delays_the_next_push(
    collector: Collector, push: Callable[..., Pusher]
) -> None:
    collector.answer(Response(429, (("Retry-After", "1"),)))
    push(collector.url, interval_s=0.1)
    first, second = collector.wait(2)
    assert second.at_s - first.at_s > 0.9
    assert total(second.request, PUSHES, outcome="failed") == 1, "a newer one"


@spec("O11")
def test_rejected_push_is_not_repeated_and_logged_once(
    collector: Collector, push: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tandemq")
    collector.answer(*[Response(400, body=b"no such tenant\x1b[31m")] * 3)
    push(collector.url)
    pushes = collector.wait(6)
    assert total(pushes[5].request, PUSHES, outcome="rejected") == 3
    assert total(pushes[5].request, "tandemq_metrics_push_retries_total") == 0
    lines = [record.getMessage() for record in caplog.records if record.name == otlp_exporter.__name__]
    who = f"metrics: collector {collector.url}/v1/metrics"
    assert lines == [
        f"{who} does not take pushes: HTTP 400 Bad Request: no such tenant [31m",
        f"{who} takes pushes, after 3 pushes that it did not take",
    ]


def test_redirect_is_not_followed(collector: Collector, push: Callable[..., Pusher]) -> None:
    with Collector() as other:
        collector.answer(Response(307, (("Location", f"{other.url}/v1/metrics"),)))
        push(collector.url)
        collector.wait(2)
        assert other.pushes == []


@spec("O11")
def test_points_that_the_collector_rejects_are_counted(
    collector: Collector, push: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    partial = ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points = 7
    partial.partial_success.error_message = "out of order"
    collector.answer(Response(body=partial.SerializeToString()), Response(body=b"\xff\xff"))
    push(collector.url)
    last = collector.wait(3)[2].request
    assert total(last, "tandemq_metrics_push_rejected_points_total") == 7
    assert total(last, PUSHES, outcome="accepted") == 2, "nothing is repeated"
    assert "rejected 7 data points: out of order" in caplog.text


@spec("O11")
def test_collector_that_does_not_answer_costs_its_time_limit(
    collector: Collector, push: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    collector.answer(Response(is_silent=True), Response(is_silent=True))
    pusher = push(collector.url, timeout_s=0.2)
    last = collector.wait(3)[2].request
    assert "no answer within 0.2 s" in caplog.text
    # More, if the machine was too busy for other answers.
    assert total(last, PUSHES, outcome="failed") + total(last, "tandemq_metrics_push_retries_total") >= 2
    assert pusher.metered.last_turn_ns > 0


@spec("O11")
def test_answer_that_drips_is_cut_at_the_time_limit(
    push: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        is_over = threading.Event()
        closed = threading.Event()

        def drip() -> None:
            sock, _ = server.accept()
            with sock:
                try:
                    sock.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    while not is_over.wait(0.02):
                        sock.sendall(b"x")
                except OSError:
                    closed.set()

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        push(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=0.3)
        assert closed.wait(60)
        is_over.set()
        thread.join(60)


def test_collector_that_is_away_is_found_when_it_is_back(
    push: Callable[..., Pusher], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tandemq")
    with Collector() as collector:
        url = collector.url
    pusher = push(url)
    while pusher.exporter._outcomes[otlp_exporter.PushOutcome.FAILED] < 3:
        threading.Event().wait(0.02)
    assert caplog.text.count("does not take pushes") == 1
    assert "refused" in caplog.text


@spec("O11")
def test_close_ends_a_push_that_begins_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    pusher = Pusher(PushSettings(parse_target("http://127.0.0.1:1"), 0.0, 5.0, dict))
    is_begun, may_go_on = threading.Event(), threading.Event()
    body = pusher.exporter._body

    def held_body() -> bytes | None:
        is_begun.set()
        assert may_go_on.wait(60)
        return body()

    monkeypatch.setattr(pusher.exporter, "_body", held_body)
    monkeypatch.setattr(otlp_exporter, "CLOSE_SECONDS", 0.0)
    pusher.exporter.start()
    assert is_begun.wait(60)
    pusher.exporter.close()  # the loop never runs, as after its end
    may_go_on.set()
    pusher.exporter._thread.join(timeout=60)
    assert not pusher.exporter._thread.is_alive()
    pusher.close()


@spec("O11")
def test_header_file_is_read_again_when_it_changes(
    collector: Collector, push: Callable[..., Pusher], tmp_path: Path
) -> None:
    path = tmp_path / "headers"
    path.touch(0o600)
    path.write_text("# of the test\n\nAuthorization: Bearer one\nX-Scope: a:b\n")
    headers = HeaderFile(str(path))
    pusher = Pusher(PushSettings(parse_target(collector.url), 0.05, 5.0, headers.headers))
    pusher.start()
    try:
        first = collector.wait(1)[0].headers
        assert (first["Authorization"], first["X-Scope"]) == ("Bearer one", "a:b")
        path.write_text("Authorization: Bearer two, longer\n")
        seen = len(collector.wait(1))
        assert collector.wait(seen + 3)[-1].headers["Authorization"] == "Bearer two, longer"
    finally:
        pusher.close()


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        ("secret-token\n", 0o600, "line 1 is not a header"),
        ("A: b\nHost: x\n", 0o600, "line 2: Host is set by TandemQ"),
        ("A: ünï\n", 0o600, "line 1 is not a header"),
        ("A: b\n", 0o644, "all users have access"),
        ("".join(f"A{n}: b\n" for n in range(40)), 0o600, "the maximum is 32"),
    ],
)
def test_header_file_that_cannot_be_used_is_refused_without_showing_it(
    text: str, mode: int, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "headers"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    with pytest.raises(ConfigError, match=reason) as raised:
        HeaderFile(str(path))
    assert "secret-token" not in str(raised.value)


def test_missing_header_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        HeaderFile(str(tmp_path / "none"))


def test_token_on_a_connection_without_tls_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "headers"
    path.touch(0o600)
    for url, is_warned in (("http://127.0.0.1:1", False), ("http://localhost:1", False), ("http://example.org", True)):
        caplog.clear()
        push_settings(BrokerConfig(push_target=url, push_header_file=str(path)))
        assert ("is not encrypted" in caplog.text) == is_warned, url
