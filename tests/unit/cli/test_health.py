"""`tandemq health`, against servers that answer as brokers and the console do."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tandemq.cli import health as health_module
from tests.unit.cli.conftest import Run

READY = {"/readyz": (200, '{"ready": true}'), "/healthz": (200, "{}")}
NOT_READY = {"/readyz": (503, '{"reasons": ["no name server", "\\u001b[31m"]}'), "/healthz": (200, "{}")}
CONSOLE = {"/readyz": (303, ""), "/healthz": (200, "ok\n")}
HUNG = {"/readyz": (503, "the event loop does not answer"), "/healthz": (503, "")}


@contextmanager
def server(answers: dict[str, tuple[int, str]]) -> Iterator[str]:
    """Serve these answers; the base of their URLs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = answers[self.path]
            self.send_response(code)
            self.send_header("Location", "/nowhere")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # overridden
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_port}"
        finally:
            served.shutdown()
            thread.join()


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which connections are refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("answers", "words", "reason"),
    [
        (READY, (), ""),
        (CONSOLE, (), ""),
        (NOT_READY, (), "HTTP status 503: no name server; ·[31m"),
        (NOT_READY, ("--live",), ""),
        (HUNG, (), "HTTP status 503"),
        (HUNG, ("--live",), "HTTP status 503"),
    ],
)
def test_answer_of_a_process_decides(
    run: Run, answers: dict[str, tuple[int, str]], words: tuple[str, ...], reason: str
) -> None:
    with server(answers) as url:
        result = run("health", url, *words, "--json", code=int(bool(reason)))
    assert json.loads(result.stdout) == [{"url": url, "healthy": not reason, "reason": reason}]


def test_named_process_must_answer_and_usual_ones_need_not(
    run: Run, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Connection refused" in run("health", nobody, code=1).output
    monkeypatch.setattr(health_module, "USUAL", (nobody,))
    assert "nothing listens at" in run("health", code=1).output
    with server(READY) as url, server(NOT_READY) as other:
        monkeypatch.setattr(health_module, "USUAL", (nobody, url))
        assert [row["url"] for row in json.loads(run("health", "--json").stdout)] == [url]
        monkeypatch.setattr(health_module, "USUAL", (url, other))
        assert [row["healthy"] for row in json.loads(run("health", "--json", code=1).stdout)] == [True, False]


def test_process_that_does_not_answer_in_time_is_not_healthy(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (row,) = json.loads(run("health", url, "--timeout", "0.1", "--json", code=1).stdout)
    assert not row["healthy"]
    assert "timed out" in row["reason"]


def test_other_addresses_are_refused(run: Run) -> None:
    assert "http:// or https://" in str(run("health", "file:///etc/passwd", code=2).output)
