"""`tandemq kafka`: topics for Kafka consumers, read-only."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.doctor.settings_checks import is_loopback
from tandemq.cli.support.client_session import namesrv_option
from tandemq.cli.support.output import json_flag
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, NetworkError
from tandemq.model.topic import AUTO_CREATE_TOPIC
from tandemq.real.descriptors import raise_limit
from tandemq.real.service_manager import ServiceManager

if TYPE_CHECKING:
    from tandemq.kafka.server import KafkaAddress

DEFAULT_PORT = 9092
_FILE = click.Path(exists=True, dir_okay=False)


def need_crc32c() -> None:
    """Check that the package of checksums is installed. Raises ConfigError if not."""
    try:
        import google_crc32c  # noqa: F401, PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(
            "tandemq kafka needs a package that is not installed", hint="pip install 'tandemq[kafka]'"
        ) from error


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address to listen on.")
@click.option(
    "--port", "-p", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: a free one."
)
@click.option("--advertised-host", default="", metavar="HOST", help="Host that consumers connect to; default: --host.")
@click.option(
    "--partitions",
    default="kafka-partitions.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the numbers of partitions; keep it.",
)
@click.option("--certificate", type=_FILE, help="TLS certificate, PEM.")
@click.option("--key", type=_FILE, help="Private key of the certificate, PEM.")
@click.option("--client-ca", type=_FILE, help="Consumers need certificates of these authorities, PEM.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Port of /metrics, /healthz and /readyz on 127.0.0.1, or on --metrics-host.",
)
@click.option("--metrics-host", default="127.0.0.1", metavar="IP", help="IP address of --metrics-port.")
@click.option("--sasl", is_flag=True, help="Consumers sign in as users of the cluster (SASL PLAIN).")
@namesrv_option
@json_flag("Print the address as one line of JSON.")
@click.option(
    "--while-stdin", is_flag=True, help="Stop when standard input is closed; for programs that start this one."
)
def kafka(
    host: str,
    port: int,
    advertised_host: str,
    partitions: Path,
    certificate: str | None,
    key: str | None,
    client_ca: str | None,
    metrics_port: int | None,
    metrics_host: str,
    sasl: bool,
    name_servers: str,
    as_json: bool,
    while_stdin: bool,
) -> None:
    """Serve topics to Kafka consumers, read-only, until SIGTERM or SIGINT.

    Consumers assign partitions, as Spark's Kafka source does; there are no consumer groups. Without --sasl every
    consumer that reaches the port reads with the rights of the user of TANDEMQ_CREDENTIALS.
    """
    need_crc32c()
    from tandemq.kafka.server import KafkaAddress  # noqa: PLC0415  # --help needs none of it

    address = KafkaAddress(host, port, advertised_host, certificate or "", key or "", client_ca or "")
    _check_access(address, sasl=sasl)
    if while_stdin:
        threading.Thread(target=_wait_for_end, name="stdin", daemon=True).start()
    import asyncio  # noqa: PLC0415

    metrics = None if metrics_port is None else (metrics_host, metrics_port)
    asyncio.run(_serve(address, partitions, name_servers, metrics, sasl=sasl, as_json=as_json))


def _wait_for_end() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


def _check_access(address: "KafkaAddress", *, sasl: bool) -> None:
    """Refuse passwords without TLS, and warn if any consumer may read, on other addresses than the loopback.

    Raises:
        ConfigError: passwords would be sent as they are.
    """
    if is_loopback(address.host):
        return
    if sasl and not address.certificate:
        raise ConfigError("--sasl sends passwords as they are: it needs --certificate and --key beyond the loopback")
    if not (sasl or address.client_authorities):
        click.echo("warning: every consumer that reaches this port may read; see --sasl and --client-ca", err=True)


async def _serve(
    address: "KafkaAddress",
    partitions: Path,
    name_servers: str,
    metrics: tuple[str, int] | None,
    *,
    sasl: bool,
    as_json: bool,
) -> None:
    from tandemq.kafka.accounts import KafkaAccounts  # noqa: PLC0415  # as above
    from tandemq.kafka.cluster import ClusterReader  # noqa: PLC0415
    from tandemq.kafka.front import KafkaFront  # noqa: PLC0415
    from tandemq.kafka.metrics import KafkaMonitoring  # noqa: PLC0415
    from tandemq.kafka.partitions import PartitionNumbers  # noqa: PLC0415
    from tandemq.kafka.server import KafkaServer, wait_for_signal  # noqa: PLC0415

    raise_limit()
    manager = ServiceManager.of_environment(os.environ)
    numbers, context, host = PartitionNumbers(partitions), address.context(), address.advertised
    listeners = address.listen()
    port = listeners[0].getsockname()[1]
    tls = client_tls()
    cluster = ClusterReader(name_servers, tls)
    accounts = KafkaAccounts(lambda user: ClusterReader(name_servers, tls, user)) if sasl else None
    front = KafkaFront(cluster, numbers, (host, port), accounts)
    server = KafkaServer(front, context)
    monitoring = None if metrics is None else KafkaMonitoring(metrics, front, server, cluster)
    try:
        try:
            await cluster.start(AUTO_CREATE_TOPIC)
        except NetworkError as error:  # both may be services that start at the same time
            click.echo(f"warning: {error}; consumers get errors until one does", err=True)
        await server.start(listeners)

        def ready() -> None:
            where = f"{address.host}:{port}"
            measured = {} if monitoring is None else {"metrics": monitoring.address}
            facts = json.dumps({"address": where, "pid": os.getpid()} | measured)
            click.echo(facts if as_json else f"tandemq kafka at {where}")

        await wait_for_signal(ready, manager, f"{address.host}:{port}", cluster.not_ready)
    finally:
        if monitoring is not None:
            monitoring.close()
        await server.close()
        manager.close()
        await cluster.close()
        if accounts is not None:
            await accounts.close()
