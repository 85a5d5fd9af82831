"""Checks of a broker's settings on the machine that is to run it: ports, secrets, advertised addresses, access."""

import errno
import logging
import socket
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address, ip_network
from pathlib import Path

from tandemq.cli.doctor.findings import DoctorFinding, ok, problem, warning
from tandemq.config.settings import BrokerConfig
from tandemq.config.shards import shard_configs
from tandemq.errors import ConfigError
from tandemq.run.ports import FAST_PORT_DISTANCE

CONTAINER_NETWORK = ip_network("172.17.0.0/16")
"""The default network of Docker, which other machines do not reach."""
_PRIVATE = {
    "tls.server.keyPath": "tls_key_file",
    "tls.client.keyPath": "tls_client_key_file",
    "haTlsKeyFile": "ha_tls_key_file",
    "haSecretFile": "ha_secret_file",
    "metricsCredentialsFile": "metrics_credentials_file",
    "metricsHttpExporterHeaderFile": "push_header_file",
}
_CERTIFICATES = {
    "tls.server.certPath": "tls_cert_file",
    "tls.server.trustCertPath": "tls_ca_file",
    "tls.client.certPath": "tls_client_cert_file",
    "tls.client.trustCertPath": "tls_client_ca_file",
    "haTlsCertFile": "ha_tls_cert_file",
    "haTlsCaFile": "ha_tls_ca_file",
    "metricsHttpExporterCaFile": "push_ca_file",
}


def settings_findings(config: BrokerConfig, *, running: Collection[str]) -> Iterator[DoctorFinding]:
    """Check a broker's settings; `running`: names of the shards, or of the broker, that have locked their store."""
    try:
        shards = shard_configs(config) if config.shards > 1 else [config]
    except ConfigError as error:
        yield problem("shards", f"shards = {config.shards}", str(error.args[0]), error.hint)
    else:
        for shard in shards:
            of_shard = f" of {shard.broker_name}" if config.shards > 1 else ""
            for setting, port, address in ports_of(shard):
                yield _port(f"{setting}{of_shard}", port, address, is_running=shard.broker_name in running)
        if config.shards > 1 and config.scrape_port > 0:
            yield _port("metricsPort", config.scrape_port, config.metrics_bind_address, is_running=bool(running))
    yield from _left_shards(config)
    yield from _files(config)
    yield from _access(config)
    yield from _advertised(config)


def _left_shards(config: BrokerConfig) -> Iterator[DoctorFinding]:
    """Check that no store of a shard that would not run has messages."""
    from tandemq.run.shards import check_other_stores  # noqa: PLC0415  # not for --help

    try:
        check_other_stores(config)
    except ConfigError as error:
        yield problem("shards", f"shards = {config.shards}", str(error.args[0]), error.hint)


def ports_of(config: BrokerConfig) -> Iterator[tuple[str, int, str]]:
    """Yield the setting, the number and the address of each port that a broker listens on, unless any will do."""
    bind = config.bind_address
    if config.listen_port:
        yield "listenPort", config.listen_port, bind
        yield "listenPort - 2", config.listen_port - FAST_PORT_DISTANCE, bind
    if config.replication_port:
        name = "haListenPort" if config.ha_port else "listenPort + 1"
        yield name, config.replication_port, bind
    if config.scrape_port > 0:
        yield "metricsPort", config.scrape_port, config.metrics_bind_address


def _port(setting: str, port: int, address: str, *, is_running: bool) -> DoctorFinding:
    from tandemq.real.network.addresses import text_of  # noqa: PLC0415  # not for --help
    from tandemq.real.network.listening import bind, cannot_listen  # noqa: PLC0415

    where = f"{text_of((address, port))} ({setting})"
    try:
        for sock in bind(address, port):
            sock.close()
    except (OSError, OverflowError) as error:
        if is_running and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return ok("port", where, "in use, as the broker runs")
        refused = cannot_listen(where, error)
        return problem("port", where, str(refused.args[0]), refused.hint)
    if is_running:
        return warning("port", where, "free, although the broker runs", "does it run with other settings?")
    return ok("port", where, "free")


def _files(config: BrokerConfig) -> Iterator[DoctorFinding]:
    from tandemq.run.secret import SecretFile, check_private  # noqa: PLC0415  # not for --help

    for key, name in _PRIVATE.items():
        path = getattr(config, name)
        if not path:
            continue
        try:
            with _unlogged("tandemq.run.secret"):
                check_private(key, path)
                if name == "ha_secret_file":
                    SecretFile(path)
        except ConfigError as error:
            yield problem("secret", key, str(error.args[0]), error.hint or "correct the path")
            continue
        mode = Path(path).expanduser().stat().st_mode
        if mode & stat.S_IRWXG:
            text = f"the group of {path} has access to it (mode {mode & 0o777:o})"
            yield warning("secret", key, text, f"chmod 600 {path}, unless the group is meant to")
        else:
            yield ok("secret", key, f"{path} is private")
    for key, name in _CERTIFICATES.items():
        path = getattr(config, name)
        if path:
            try:
                Path(path).expanduser().read_bytes()
            except OSError as error:
                yield problem("certificate", key, f"{path}: {error.strerror}", "correct the path or its permissions")


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Log no warnings of a module whose warnings become findings."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _access(config: BrokerConfig) -> Iterator[DoctorFinding]:
    if config.is_open:
        yield warning(
            "access",
            "authenticationEnabled",
            f"off, and the broker listens on {config.bind_address}: any client that reaches it may do everything",
            "set authenticationEnabled=true and create users: docs/reference/access.md",
        )
    if config.has_open_metrics:
        yield warning(
            "access",
            "metricsCredentialsFile",
            f"not set, and metrics are served at {config.metrics_bind_address}: any client that reaches it reads them",
            "set metricsCredentialsFile, or metricsBindAddress=127.0.0.1",
        )
    if not config.ha_secret_file and not is_loopback(config.bind_address):
        yield warning(
            "access",
            "haSecretFile",
            "not set: any peer that reaches the replication port can copy the log",
            "set the same haSecretFile on all members of the group",
        )


def _advertised(config: BrokerConfig) -> Iterator[DoctorFinding]:
    from tandemq.real.network.addresses import own_ip  # noqa: PLC0415  # not for --help

    servers = config.name_servers
    chosen = config.advertised_ip.strip("[]") or (own_ip(servers[0]) if servers else "127.0.0.1")
    yield from advertised_findings("brokerIP1", chosen, servers, "clients")
    if config.ha_advertised_ip:
        yield from advertised_findings("brokerIP2", config.ha_advertised_ip.strip("[]"), servers, "slaves")


def advertised_findings(
    where: str, host: str, name_servers: tuple[str, ...] | list[str], peers: str
) -> Iterator[DoctorFinding]:
    """Check an address that a broker advertises.

    Args:
        where: the setting, or the broker.
        host: address or host name without a port.
        name_servers: "host:port" each.
        peers: who is to reach it.
    """
    others = [host_of(server) for server in name_servers]
    is_far = any(not is_loopback(other) for other in others)
    todo = f"set {'brokerIP2' if where == 'brokerIP2' else 'brokerIP1'} to an address that all {peers} reach"
    addresses = _addresses(host)
    if not addresses:
        yield problem("advertised-address", where, f"{host} is advertised, and is not resolved here", todo)
    elif is_far and any(is_loopback(address) for address in addresses):
        text = f"{host} is advertised, and name servers are on other machines, whose clients do not reach it"
        yield problem("advertised-address", where, text, todo)
    elif any(ip_address(address).is_unspecified or ip_address(address).is_link_local for address in addresses):
        yield problem("advertised-address", where, f"{host} is advertised, and is no address of one machine", todo)
    elif any(_is_of_containers(address) for address in addresses) and not all(map(_is_of_containers, others)):
        text = f"{host} is advertised, an address of Docker's default network, which other machines do not reach"
        yield warning("advertised-address", where, text, todo)
    else:
        yield ok("advertised-address", where, f"{host} is advertised")


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    return address.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_of_containers(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host) in CONTAINER_NETWORK
    return False


def _addresses(host: str) -> set[str]:
    """Return the IP addresses of a host, none if it is not resolved."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(info[4][0]).partition("%")[0] for info in found}
