"""Checks of a registry: whether this machine gets a session there, and whether it survives the loss of a machine."""

import time
from collections.abc import Iterator

from tandemq.cli.doctor.findings import DoctorFinding, counted, ok, problem, warning
from tandemq.cli.doctor.settings_checks import host_of, is_loopback
from tandemq.config.tls import ClientTls
from tandemq.errors import TandemError
from tandemq.registry import NAME_SERVER, Names, NodeMissing, ReadChildren, RegistryAddress

_REMEDY = "start it, or correct the address"


def registry_findings(
    address: RegistryAddress, *, secret_file: str = "", tls: ClientTls | None = None
) -> Iterator[DoctorFinding]:
    """Check a registry.

    Args:
        address: of the registry.
        secret_file: proves the session at a name server, as its haSecretFile; "": it needs none.
        tls: of the connection to a name server.
    """
    from tandemq.coordination.registry.records import ROOT  # noqa: PLC0415  # not for --help
    from tandemq.run.registry_session import RegistryClient  # noqa: PLC0415

    if address.kind == NAME_SERVER and not is_loopback(host_of(address.hosts)):
        yield warning(
            "registry",
            str(address),
            "one name server hosts the registry; without it no member takes over, and none starts to serve",
            "for brokers on several machines use three servers of ZooKeeper or etcd",
        )
    begun_s = time.monotonic()
    try:
        with RegistryClient(address, secret_file=secret_file, tls=tls) as client:
            outcome = client.do(ReadChildren(ROOT))
            took_s = time.monotonic() - begun_s
    except TandemError as error:
        yield problem("registry", str(address), str(error.args[0]), error.hint or _REMEDY)
        return
    if isinstance(outcome, Names | NodeMissing):
        count = len(outcome.children) if isinstance(outcome, Names) else 0
        yield ok("registry", str(address), f"a session within {took_s:.1f} s, groups of {counted(count, 'cluster')}")
    else:
        yield problem("registry", str(address), f"it does not answer a read: {outcome}", _REMEDY)
