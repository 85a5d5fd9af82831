"""Clients beside one that sends as many small requests as it can: p50 and p99 of their sends, for each request code.

    python -m bench.flood                     every code, at an elected master and at its name server: four minutes
    python -m bench.flood --seconds 3 --codes 26 310

One connection of another process keeps `WINDOW` requests in flight; another one sends one message (at a name server:
asks for one route) at a time. A flooded master must keep its lease: the epoch is shown before and after each code, and
it is an error if it changes. The first row is without a flood.
"""

import argparse
import multiprocessing
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import count, islice
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple, Self

from rich.console import Console
from rich.table import Table

from tandemq.client.connection import BlockingConnection
from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.children import ChildCluster

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import Synchronized

WINDOW = 2_000
TOPIC = "Flooded"
NAME_SERVER_CODES = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
)
_FIELDS = {
    "topic": TOPIC,
    "group": "flood",
    "consumerGroup": "flood",
    "producerGroup": "flood",
    "cluster": "DefaultCluster",
    "queueId": "0",
    "queueOffset": "0",
    "offset": "0",
    "timestamp": "0",
    "key": "k",
    "maxNum": "32",
    "maxMsgNums": "32",
    "beginTimestamp": "0",
    "endTimestamp": "99999999999999",
}
_REFUSED_EXPRESSION = b'{"subscriptionData":{"expressionType":"SQL92","subString":"%s"}}' % (
    b" OR ".join(b"a%d = 1" % number for number in range(999)) + b" OR"
)


class Latency(NamedTuple):
    """What a client beside a flood saw, ms, and the flood's requests per second."""

    p50: float
    p99: float
    requests: int
    flood_rate: float


def requests_of(code: int) -> Iterator[bytes]:
    """Yield requests with a code for ever; topics to create are all different."""
    for number in count():
        fields, body = dict(_FIELDS), b""
        if code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            fields |= {"topic": f"Flood{number}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        elif code == RequestCode.CHECK_CLIENT_CONFIG:
            body = _REFUSED_EXPRESSION
        elif code == RequestCode.UPDATE_BROKER_CONFIG:
            body = b"messageDelayLevel=1s 2s\n"
        yield encode_command(Command(code, number % (1 << 30), fields=fields, body=body))


class Flooder:
    """A process that floods servers, one at a time; a context manager."""

    def __init__(self) -> None:
        """Create it without starting the process."""
        context = multiprocessing.get_context("spawn")
        self._orders, orders = context.Pipe()
        self._answered = context.Value("q", 0)
        self._process = context.Process(target=_obey, args=(orders, self._answered), daemon=True)

    @property
    def answered(self) -> int:
        """Number of responses that all floods have received."""
        return int(self._answered.value)

    @contextmanager
    def flood(self, address: str, code: int) -> Iterator[None]:
        """Keep `WINDOW` requests with a code in flight at a server, "ip:port", while the context is open."""
        self._order((address, code))
        try:
            yield
        finally:
            self._order(None)

    def _order(self, order: tuple[str, int] | None) -> None:
        self._orders.send(order)
        self._orders.recv()

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._orders.close()


def _obey(orders: "Connection[None, tuple[str, int] | None]", answered: "Synchronized[int]") -> None:
    """Flood as ordered, until the process is terminated."""
    while True:
        order = orders.recv()
        assert order is not None, "a flood begins with an order"
        address, code = order
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as sock:
            thread = threading.Thread(target=_flood, args=(sock, code, answered))
            thread.start()
            orders.send(None)
            orders.recv()
            with suppress(OSError):  # the server may have closed it
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()
        orders.send(None)


def _flood(sock: socket.socket, code: int, answered: "Synchronized[int]") -> None:
    requests, decoder, in_flight = requests_of(code), FrameDecoder(), 0
    try:
        while True:
            sock.sendall(b"".join(islice(requests, WINDOW - in_flight)))
            data = sock.recv(1 << 20)
            if not data:
                return
            frames = len(decoder.feed(data))
            in_flight = WINDOW - frames
            answered.value += frames
    except OSError:
        return


def measure(call: Callable[[], object], flooder: Flooder, seconds: float) -> Latency:
    """Call again and again for a while, and return how long the calls took."""
    times: list[float] = []
    before = flooder.answered
    start = monotonic()
    while monotonic() - start < seconds or len(times) < 2:
        began = perf_counter()
        call()
        times.append((perf_counter() - began) * 1000)
    times.sort()
    rate = (flooder.answered - before) / (monotonic() - start)
    return Latency(times[len(times) // 2], times[len(times) * 99 // 100], len(times), rate)


def master_address(cluster: ChildCluster) -> str:
    """Return the address of the master, once there is one."""
    cluster.wait_until(lambda: cluster.master_of("broker-a") is not None)
    master = cluster.master_of("broker-a")
    assert master is not None
    return master.address


def epoch_of(cluster: ChildCluster) -> int:
    """Return the epoch of the group as its first member that answers states it."""
    found = [status["epoch"] for broker in cluster.brokers if (status := broker.failover_status())]
    return int(max(found, default=0))


def _send() -> Command:
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    return Command(RequestCode.SEND_MESSAGE_V2, fields=fields, body=b"beside")


def _route() -> Command:
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": TOPIC})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = argparse.ArgumentParser(prog="python -m bench.flood", description="Latency beside floods of requests.")
    options.add_argument("--seconds", type=float, default=1.0, help="time per code (default: 1)")
    options.add_argument("--codes", type=int, nargs="*", help="request codes of brokers (default: all)")
    chosen = options.parse_args(arguments)
    codes = chosen.codes or sorted(code for code in RequestCode if code not in NAME_SERVER_CODES)
    table = Table("server", "code", "p50 ms", "p99 ms", "requests", "flood, requests/s", "epoch")
    changed = []
    with (
        tempfile.TemporaryDirectory() as path,
        ChildCluster(Path(path), groups=1, slaves=1, mode=Mode.ELECT) as cluster,
        Flooder() as flooder,
    ):
        address = master_address(cluster)
        for server, make, at, flooded in (
            ("broker", _send, address, [None, *codes]),
            ("name server", _route, cluster.name_servers, [None, *NAME_SERVER_CODES]),
        ):
            with BlockingConnection(at) as client:
                client.request(make())
                for code in flooded:
                    before = epoch_of(cluster)
                    with nullcontext() if code is None else flooder.flood(at, code):
                        found = measure(lambda: client.request(make()), flooder, chosen.seconds)  # noqa: B023
                    after = epoch_of(cluster)
                    changed += [code] if before != after else []
                    epoch = str(before) if before == after else f"{before} → {after}"
                    name = "none" if code is None else f"{int(code)} {RequestCode(code).name}"
                    figures = (f"{found.p50:.1f}", f"{found.p99:.1f}", str(found.requests), f"{found.flood_rate:,.0f}")
                    table.add_row(server, name, *figures, epoch)
    Console(width=140).print(table)
    if changed:
        print(f"error: the epoch changed beside floods of {changed}", file=sys.stderr)
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
