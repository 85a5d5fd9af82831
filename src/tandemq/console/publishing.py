"""A publisher within the console's process: it applies stored configurations to the registry, in a thread of its own.

    registry ─► groups that the database does not have yet ─► database          once per session
    database ─► changed groups ─► registry                                      every second

So a console beside a running cluster begins with the configurations that the brokers have.
"""

import logging
import os
import socket
import threading
from collections.abc import Iterable

from tandemq.config.tls import ClientTls
from tandemq.console.services import wall_ms
from tandemq.coordination.registry.records import ROOT, config_from_json, config_path, groups_path
from tandemq.errors import ConfigError, RemoteError, TandemError
from tandemq.groupdb.audit import Actor
from tandemq.groupdb.database import GroupDatabase, RevisionConflict
from tandemq.groupdb.publications import publish
from tandemq.groupdb.publisher import Do
from tandemq.registry import Names, NodeFound, NodeMissing, Read, ReadChildren, parse_address
from tandemq.run.registry_session import RegistryClient

log = logging.getLogger(__name__)
INTERVAL_S = 1.0


class PublisherThread:
    """The publisher. It goes on when registry or database do not answer, and reports a problem once."""

    def __init__(self, database: GroupDatabase, registry: str, secret_file: str, tls: ClientTls | None = None) -> None:
        """Start it.

        Args:
            registry: address, see `tandemq.registry.parse_address`.
            secret_file: haSecretFile of the name server; "": none.
            tls: TLS of the connection to a name server.

        Raises:
            LocalError: the address is malformed.
        """
        self._database = database
        self._address = parse_address(registry)
        self._secret_file = secret_file
        self._tls = tls
        self._name = f"console on {socket.gethostname()}, process {os.getpid()}"
        self._problem = ""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop it after the operation that runs."""
        self._ending.set()
        self._thread.join(INTERVAL_S * 10)

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                with RegistryClient(self._address, secret_file=self._secret_file, tls=self._tls) as client:
                    import_groups(self._database, client.do)
                    while not self._ending.wait(INTERVAL_S):
                        publish(self._database, client.do, None, self._name, wall_ms())
                        self._problem = ""
            except TandemError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    log.warning("publisher: %s; retrying", error)
            self._ending.wait(INTERVAL_S)


def import_groups(database: GroupDatabase, do: Do) -> list[str]:
    """Store the groups of the registry that the database does not have, and return their names.

    Raises:
        RemoteError: the registry does not answer, or refuses.
        NetworkError: the database cannot be used.
    """
    known = {(group.cluster, group.broker_name) for group in database.groups()}
    found = []
    for cluster in _below(do, ROOT):
        for name in _below(do, groups_path(cluster)):
            node = do(Read(config_path(cluster, name))) if (cluster, name) not in known else None
            if not isinstance(node, NodeFound):
                continue
            try:
                config = config_from_json(name, node.data)
                database.change(
                    cluster,
                    name,
                    lambda _, config=config: config,  # type: ignore[misc]
                    wall_ms=wall_ms(),
                    by=Actor("imported from the registry"),
                    expected_revision=0,
                )
            except (ConfigError, RevisionConflict) as error:
                log.warning("publisher: group %s is not imported: %s", name, error)
                continue
            found.append(name)
    return found


def _below(do: Do, path: str) -> Iterable[str]:
    match do(ReadChildren(path)):
        case Names(children=names):
            return names
        case NodeMissing():
            return ()
        case outcome:
            raise RemoteError(f"the registry does not list the nodes below {path}: {outcome}")
