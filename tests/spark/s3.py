"""A real S3 server for tests: moto's, in a process of its own, and a proxy before it that misbehaves.

The server keeps objects in memory, and answers conditional puts (If-None-Match) as Amazon's does.
"""

import http.client
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tandemq.spark.runtime.location import Location, locate
from tests.blackbox.programs import wait_until

ROOT = Path(__file__).resolve().parents[2]
SERVER = ROOT / ".venv-s3/bin/moto_server"
LOOPBACK = "127.0.0.1"
BUCKET = "lakes"
SECRET = "secret-of-the-tests"
SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}
_numbers = itertools.count()


@dataclass
class S3:
    """A running server with one bucket."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """Storage options for it."""
        return {
            "aws_access_key_id": "key",
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint_url": f"http://{LOOPBACK}:{self.port}",
            "aws_allow_http": "true",
        }

    def new_lake(self) -> Location:
        """Return a location that was not used before."""
        return locate(f"s3://{BUCKET}/lake-{os.getpid()}-{next(_numbers)}", "the lake", self.options)

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request; returns the body of the answer."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
        try:
            connection.request(method, path, body, SIGNED)
            return connection.getresponse().read()
        finally:
            connection.close()

    def put(self, lake: Location, name: str, body: bytes) -> None:
        """Write an object of a lake, as another tool would."""
        self.request("PUT", f"/{BUCKET}{urlsplit(lake.url).path}/{name}", body)

    def names(self, lake: Location) -> list[str]:
        """List all objects of a lake."""
        prefix = urlsplit(lake.url).path[1:]
        listed = self.request("GET", f"/{BUCKET}?list-type=2&prefix={prefix}/").decode()
        return [name.removeprefix(f"{prefix}/") for name in re.findall("<Key>([^<]*)</Key>", listed)]

    def get(self, lake: Location, name: str) -> bytes:
        """Read an object of a lake."""
        return self.request("GET", f"/{BUCKET}{urlsplit(lake.url).path}/{name}")


@contextmanager
def s3_server() -> Iterator[S3]:
    """A server on a free port."""
    assert SERVER.exists(), "make setup-spark installs the S3 server"
    with subprocess.Popen(
        [str(SERVER), "-H", LOOPBACK, "-p", "0"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            port = 0
            for line in process.stderr:
                if b"Running on http://" in line:
                    port = int(line.rsplit(b":", 1)[1].split()[0])
                    break
            assert port, "the server ended at once"
            threading.Thread(target=process.stderr.read, daemon=True).start()
            server = S3(port)
            wait_until(lambda: b"Error" not in server.request("PUT", f"/{BUCKET}"), "the bucket")
            yield server
        finally:
            process.kill()


@dataclass
class Expiring(S3):
    """The server behind a proxy whose credentials expire (`tests.spark.s3_proxy`)."""

    process: "subprocess.Popen[str]"

    def expire(self, method: str, text: str, count: int) -> None:
        """Accept so many more requests of a method whose path contains a text, then none at all."""
        self._order(f"expire {method} {text} {count}")

    def renew(self) -> None:
        """Accept all requests again."""
        self._order("renew")

    def _order(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"


@contextmanager
def expiring_proxy(server: S3) -> Iterator[Expiring]:
    """A proxy in a process of its own."""
    words = [sys.executable, "-m", "tests.spark.s3_proxy", str(server.port)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Expiring(int(process.stdout.readline()), process)
        finally:
            process.kill()
