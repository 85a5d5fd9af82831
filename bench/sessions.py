"""Sessions: the measurement of each group of cells on one kind of server.

A session starts its server, warms it up, measures the chosen cells one after the other, and removes everything. It
yields each figure at once, so that earlier figures survive when a later cell fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import clients, deliveries, live, nats, processes, reading, scraping, sending
from bench.cells import NATS, Session
from bench.setting import Bench, Figure

_SESSIONS: dict[Session, Callable[[Bench], Iterator[Figure]]] = {
    "send": sending.send,
    "deliver": deliveries.deliver,
    "read": reading.read,
    "live": live.live,
    "flush": sending.flush,
    "pair": sending.pair,
    "java": clients.java,
    "rest": processes.rest,
    "store": processes.store,
    "failover": processes.failover,
    "client": clients.client,
    "topics": processes.topics,
    "metrics": scraping.metrics,
    "beside": live.beside,
    "sim": processes.sim,
}


def measure(session: Session, bench: Bench) -> Iterator[Figure]:
    """Measure the chosen cells of one session on one server.

    Raises:
        LoadFailed, LoadError: the server refused the load or did not start.
    """
    return nats.send(bench) if bench.server == NATS else _SESSIONS[session](bench)
