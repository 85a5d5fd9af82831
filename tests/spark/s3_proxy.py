"""A proxy before an S3 server for which credentials expire; a process of its own, because clients may hold Python's
lock while they wait.

    python -m tests.spark.s3_proxy PORT

It prints its own port, and answers lines on its input when it obeys them:

    expire METHOD TEXT COUNT     after that many requests of a method whose path contains a text, the token has expired
    renew                        no longer
"""

import http.client
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
SKIPPED = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})


class Proxy(ThreadingHTTPServer):
    """The proxy, and the number of counted requests that it still accepts; None: any."""

    def __init__(self, port: int) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.port = port
        self.left: int | None = None
        self.method = self.text = ""

    def obey(self, order: str, method: str = "", text: str = "", count: str = "") -> None:
        """Do what a line says."""
        self.method, self.text = method, text
        self.left = int(count) if order == "expire" else None

    def has_expired(self, method: str, path: str) -> bool:
        """Count a request; returns whether the token has expired."""
        if self.left is None:
            return False
        self.left -= method == self.method and self.text in path
        return self.left < 0


class Handler(BaseHTTPRequestHandler):
    """Passes on one request after the other."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.has_expired(self.command, self.path):
            self._answer(400, [], EXPIRED, len(EXPIRED))
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        connection = http.client.HTTPConnection(LOOPBACK, self.server.port, timeout=30)
        connection.request(self.command, self.path, body, headers)
        response = connection.getresponse()
        found = response.read()
        kept = [one for one in response.getheaders() if one[0].lower() not in SKIPPED]
        size = int(response.getheader("Content-Length") or 0) if self.command == "HEAD" else len(found)
        connection.close()
        self._answer(response.status, kept, found, size)

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, size: int) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815  # names of the library

    def log_message(self, *_: object) -> None:
        """Write no log."""


def main(port: str) -> None:
    """Serve until the process is killed."""
    proxy = Proxy(int(port))
    print(proxy.server_address[1], flush=True)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    for line in sys.stdin:
        proxy.obey(*line.split())
        print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
