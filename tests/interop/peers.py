"""The subject of the interoperability tests, and the versions of RocketMQ that it is tested with.

The *subject* is TandemQ ("ours"), or a version of RocketMQ, which shows that the tests themselves are right
(`TANDEMQ_INTEROP_SUBJECT=5.3.3 make interop`). Its *peers* are versions of RocketMQ.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.java import CLIENT_VERSIONS, SERVER_VERSIONS, JavaBroker, JavaNameServer, Value
from tests.interop.ours import OurBroker, OurNameServer
from tests.interop.wire import wait_registered
from tests.samples import slow

NameServer = JavaNameServer | OurNameServer
Broker = JavaBroker | OurBroker

NEWEST_VERSION = "5.5.0"
"""Newest release of client and server, for tests where it could differ: it has another JSON library."""
SUBJECT = os.environ.get("TANDEMQ_INTEROP_SUBJECT", "ours")
assert SUBJECT in {"ours", *SERVER_VERSIONS, NEWEST_VERSION}, SUBJECT

CLIENT_OF = dict(zip(SERVER_VERSIONS, CLIENT_VERSIONS, strict=True)) | {NEWEST_VERSION: NEWEST_VERSION}
CLIENTS = CLIENT_VERSIONS if SUBJECT == "ours" else (CLIENT_OF[SUBJECT],)
"""Client versions that must work with the subject. Java brokers work with clients of their own release line only: 4.9.7
does not know requests of 5.3.3's lite pull consumer, and mqadmin 4.9.8 cannot decode status responses of 5.3.3."""
ALL_CLIENTS = (*CLIENTS, NEWEST_VERSION) if SUBJECT == "ours" else CLIENTS
SERVERS = tuple(version for version in (*SERVER_VERSIONS, NEWEST_VERSION) if version != SUBJECT)
"""Server versions that the subject replicates with, shares stores with and registers with."""


def of_each_change(cases: Iterable[Any]) -> list[Any]:
    """Return server versions, or pairs of them, as parameters of a test. Those with the version between the oldest and
    the newest run in `make soak` only."""
    between = SERVER_VERSIONS[-1]
    return [slow(case) if between in case else case for case in cases]


SMALL_STORE: dict[str, Value] = {
    "mappedFileSizeCommitLog": 256 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 500,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20000,
}

SHORT_DELAYS: dict[str, Value] = {"messageDelayLevel": "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s"}


def name_server(kind: str, directory: Path) -> NameServer:
    """Return a name server, not started. `kind`: "ours" or a version of RocketMQ."""
    return OurNameServer(directory) if kind == "ours" else JavaNameServer(kind, directory)


def broker(kind: str, directory: Path, namesrv: NameServer, *, settings: dict[str, Value], **conf: Value) -> Broker:
    """Return a broker, not started. `kind`: as of `name_server`; `conf`: more keys of broker.conf, and `store`, the
    path of its store."""
    values = {**settings, **conf}
    store = values.pop("store", None)
    path = Path(str(store)) if store else None
    name = f"broker-{kind}-{values.get('brokerName', 'broker-a')}-{values.get('brokerId', 0)}"
    if kind == "ours":
        return OurBroker(directory, namesrv=namesrv.address, store=path, name=name, settings=values)
    return JavaBroker(kind, directory, namesrv=namesrv.address, store=path, name=name, settings=values)


def start_registered(started: Broker, namesrv: NameServer) -> None:
    """Start a broker and wait until the name server has it (a Java 5.3.3 broker registers 10 s after its start)."""
    started.start()
    wait_registered(namesrv.port, str(started.conf["brokerName"]), int(started.conf["brokerId"]))
