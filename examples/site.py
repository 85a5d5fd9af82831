"""A site that takes orders with the blocking client: a WSGI application, as of Django or Flask.

    python examples/site.py [NAME_SERVER] [PORT]          default: 127.0.0.1:9876 8001
    curl -X POST http://127.0.0.1:8001/orders -d '42 paid'

The producer is created with the first request, so that each process of a server that forks has its own. It is closed
when the process ends.
"""

import atexit
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any
from wsgiref.simple_server import make_server

from tandemq import Message, stop_signals
from tandemq.client.blocking import BlockingProducer
from tandemq.errors import TandemError

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"


@cache
def producer() -> BlockingProducer:
    """Return the producer of this process; threads share it."""
    made = BlockingProducer(NAME_SERVERS, group="shop")
    atexit.register(made.close)
    return made


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Store an order; a failure that may pass asks the caller to try again."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        result = producer().send(Message("Orders", body or b"-"))
    except TandemError as error:
        start_response("503 Service Unavailable" if error.retriable else "400 Bad Request", [])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [result.unique_key.encode()]


def main(port: int) -> None:
    """Serve until a signal comes."""
    ended = threading.Event()
    with make_server("127.0.0.1", port, application) as server, stop_signals(ended.set):
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        print(f"serving on port {server.server_port}", flush=True)
        ended.wait()
        server.shutdown()
        serving.join()
    print("closed", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[2]) if len(sys.argv) > 2 else 8001)
