"""Clients beside one that sends as many small requests as it can: p50 and p99 of their sends, for each request code.

    python -m bench.flood                     every code, at an elected master and at its name server: four minutes
    python -m bench.flood --seconds 3 --codes 26 310

One connection keeps `WINDOW` requests in flight; another one sends one message (at a name server: asks for one route)
at a time. A flooded master must keep its lease: the epoch is shown before and after each code, and it is an error if
it changes. The first row is without a flood.
"""

import argparse
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter
from typing import NamedTuple, Self

from rich.console import Console
from rich.table import Table

from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.children import ChildCluster
from tandemq.run.request import connect

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


class Flood:
    """A connection that keeps `WINDOW` requests with one code in flight, on a thread; a context manager."""

    def __init__(self, address: str, code: int) -> None:
        """Begin to send to a server, "ip:port"."""
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)))
        self._requests = requests_of(code)
        self.answered = 0
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sock.close()

    def _run(self) -> None:
        decoder, sent = FrameDecoder(), 0
        try:
            while not self._is_stopping:
                batch = [next(self._requests) for _ in range(WINDOW + self.answered - sent)]
                sent += len(batch)
                self._sock.sendall(b"".join(batch))
                data = self._sock.recv(1 << 20)
                if not data:
                    return
                self.answered += len(decoder.feed(data))
        except OSError:
            return


def measure(call: Callable[[], object], flood: Flood | None, seconds: float) -> Latency:
    """Call again and again for a while, and return how long the calls took."""
    times: list[float] = []
    before = flood.answered if flood is not None else 0
    start = monotonic()
    while monotonic() - start < seconds or len(times) < 2:
        began = perf_counter()
        call()
        times.append((perf_counter() - began) * 1000)
    times.sort()
    rate = (flood.answered - before) / (monotonic() - start) if flood is not None else 0.0
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
    ):
        address = master_address(cluster)
        for server, make, at, flooded in (
            ("broker", _send, address, [None, *codes]),
            ("name server", _route, cluster.name_servers, [None, *NAME_SERVER_CODES]),
        ):
            with connect(at) as client:
                client.request(make())
                for code in flooded:
                    before = epoch_of(cluster)
                    if code is None:
                        found = measure(lambda: client.request(make()), None, chosen.seconds)  # noqa: B023
                    else:
                        with Flood(at, code) as flood:
                            found = measure(lambda: client.request(make()), flood, chosen.seconds)  # noqa: B023
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
