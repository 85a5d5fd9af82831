"""Who stands on which side of a test.

The *subject* is what the tests are about: TandemQ ("ours"), or, to prove the tests themselves, a Java version
(`TANDEMQ_INTEROP_SUBJECT=5.3.3 make interop`). *Peers* are the Java versions it meets.
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
"""Of client and server, for the tests in which a new release could differ: its JSON library is another one."""
SUBJECT = os.environ.get("TANDEMQ_INTEROP_SUBJECT", "ours")
assert SUBJECT in {"ours", *SERVER_VERSIONS, NEWEST_VERSION}, SUBJECT

CLIENT_OF = dict(zip(SERVER_VERSIONS, CLIENT_VERSIONS, strict=True)) | {NEWEST_VERSION: NEWEST_VERSION}
CLIENTS = CLIENT_VERSIONS if SUBJECT == "ours" else (CLIENT_OF[SUBJECT],)
"""Client versions that must get along with the subject. Java brokers do so with clients of their own line only: 4.9.7
does not know what a lite pull consumer of 5.3.3 sends, and mqadmin 4.9.8 cannot read what 5.3.3 says about itself."""
ALL_CLIENTS = (*CLIENTS, NEWEST_VERSION) if SUBJECT == "ours" else CLIENTS
SERVERS = tuple(version for version in (*SERVER_VERSIONS, NEWEST_VERSION) if version != SUBJECT)
"""Server versions that the subject meets in replication, with a store and at a name server."""


def of_each_change(cases: Iterable[Any]) -> list[Any]:
    """Return server versions, or pairs of them, as parameters of a test that meets all: with the version between the
    oldest and the newest one they run in `make soak` only."""
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
    """A name server of a kind, not started."""
    return OurNameServer(directory) if kind == "ours" else JavaNameServer(kind, directory)


def broker(kind: str, directory: Path, namesrv: NameServer, *, settings: dict[str, Value], **conf: Value) -> Broker:
    """A broker of a kind, not started; `store` and `name` may be among the keyword arguments' keys of broker.conf."""
    values = {**settings, **conf}
    store = values.pop("store", None)
    path = Path(str(store)) if store else None
    name = f"broker-{kind}-{values.get('brokerName', 'broker-a')}-{values.get('brokerId', 0)}"
    if kind == "ours":
        return OurBroker(directory, namesrv=namesrv.address, store=path, name=name, settings=values)
    return JavaBroker(kind, directory, namesrv=namesrv.address, store=path, name=name, settings=values)


def start_registered(which: Broker, namesrv: NameServer) -> None:
    """Start a broker and wait until the name server knows it (a Java 5.3.3 broker registers 10 s after its start)."""
    which.start()
    wait_registered(namesrv.port, str(which.conf["brokerName"]), int(which.conf["brokerId"]))
