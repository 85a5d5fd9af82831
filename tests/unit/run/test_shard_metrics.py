"""The port of all shards' metrics: what it asks shards for, and what it answers without some of them."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from time import monotonic_ns

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.run.shard_metrics import ShardMonitoring, make_token

PAGE = b'# HELP tandemq_x X.\n# TYPE tandemq_x gauge\ntandemq_x{broker="a"} 1\n'
CREDENTIAL = "token-of-the-operator"
HOUR_NS = 3_600_000_000_000


@dataclass(slots=True)
class FakeShard:
    """A shard without a process."""

    name: str
    metrics_address: str
    reason: str = ""
    restarts: int = 0


@dataclass(slots=True)
class Port:
    """The port, its shards, and when their loops turned."""

    shards: list[FakeShard]
    alive_ns: int
    address: str = ""

    def get(self, path: str, token: str = CREDENTIAL) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(f"http://{self.address}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[Port]:
    """A port with a shard that answers who has the token, and one that does not run."""
    token = make_token(tmp_path)
    expected = f"Bearer {token.read_text().strip()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # of the standard library
            is_known = self.headers["Authorization"] == expected
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(PAGE if is_known else b"")

        def log_message(self, *_: object) -> None:
            pass

    credentials = tmp_path / "credentials"
    credentials.touch(mode=0o600)
    credentials.write_text(CREDENTIAL + "\n")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        shards = [FakeShard("a", f"127.0.0.1:{server.server_port}"), FakeShard("a-1", "", "ended", 3)]
        found = Port(shards, monotonic_ns() + HOUR_NS)
        config = BrokerConfig(shards=2, metrics_port=0, metrics_credentials_file=str(credentials), metrics_label="z:b")
        monitoring = ShardMonitoring(config, shards, token, lambda: found.alive_ns)
        found.address = monitoring.address
        yield found
        monitoring.close()
        server.shutdown()
        thread.join()


def test_page_has_the_shards_that_run_and_says_which_do_not(port: Port) -> None:
    status, text = port.get("/metrics")
    assert status == 200 and PAGE.decode() in text
    for line in (
        'tandemq_shard_up{cluster="DefaultCluster",z="b",broker="a"} 1.0',
        'tandemq_shard_up{cluster="DefaultCluster",z="b",broker="a-1"} 0.0',
        'tandemq_shard_restarts_total{cluster="DefaultCluster",z="b",broker="a-1"} 3',
    ):
        assert line in text.splitlines()


def test_page_is_answered_without_a_shard_that_does_not_answer(port: Port) -> None:
    port.shards[0].metrics_address = "127.0.0.1:1"
    status, text = port.get("/metrics")
    assert status == 200 and "tandemq_shard_up" in text and "tandemq_x" not in text


def test_credentials_protect_the_page_and_the_reasons(port: Port) -> None:
    assert port.get("/metrics", token="")[0] == 401
    assert json.loads(port.get("/readyz", token="")[1]) == {"ready": False}
    assert json.loads(port.get("/readyz")[1]) == {"ready": False, "reasons": ["a-1: ended"]}


def test_port_reports_a_loop_that_does_not_turn(port: Port) -> None:
    assert port.get("/healthz")[0] == 200
    port.alive_ns -= HOUR_NS + 6_000_000_000
    assert port.get("/healthz")[0] == 503
