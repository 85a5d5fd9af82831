"""`tandemq up`: run a whole cluster on this machine."""

import contextlib
import json
import shlex
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tandemq.cli.console import DEFAULT_PORT, need_packages
from tandemq.cli.serve import need_protobuf, set_option
from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.output import json_flag, show_json
from tandemq.cli.support.paths import LocalPath
from tandemq.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tandemq.run.children import BrokerChild, Child, ChildCluster
    from tandemq.run.local_tls import ClusterCertificates

_F = TypeVar("_F", bound="Callable[..., Any]")
FIRST_BROKER_PORT = 10911
PROXY_PORT = 8081
PORTS_PER_GROUP = 100
PORTS_PER_MEMBER = 10
POLL_SECONDS = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def ports_of(group: int, broker_id: int) -> tuple[int, int]:
    """Return the listen port and the replication port of a broker: 10911 and 10912 for the first, 10 more for each
    slave, 100 more for each group."""
    listen = FIRST_BROKER_PORT + PORTS_PER_GROUP * group + PORTS_PER_MEMBER * broker_id
    return listen, listen + 1


def _certificate_option(name: str, text: str) -> "Callable[[_F], _F]":
    return click.option(name, type=LocalPath(dir_okay=False, path_type=Path), metavar="FILE", help=text)


@click.command()
@click.option("--brokers", default=2, show_default=True, type=click.IntRange(1, 26), help="Number of broker groups.")
@click.option("--slaves", default=1, show_default=True, type=click.IntRange(0, 9), help="Number of slaves per master.")
@click.option(
    "--data",
    default="tandemq-data",
    show_default=True,
    type=LocalPath(file_okay=False, path_type=Path),
    help="Directory of stores, configuration files and logs; existing data are reused.",
)
@click.option(
    "--port",
    "-p",
    default=9876,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of the name server; brokers use 10911 and up. 0: free ports for all.",
)
@click.option(
    "--mode",
    type=click.Choice(["static", "slave-consume", "elect"]),
    help="Failover mode. Default: the mode of the existing data; for new data elect, or static without slaves.",
)
@click.option(
    "--registry",
    metavar="ADDRESS",
    help="Registry that runs already, such as etcd://host:2379 or zookeeper://host:2181; default: the name server's.",
)
@click.option(
    "--console",
    "with_console",
    is_flag=True,
    help="Also serve the console's web pages, on port 8377, and print the link to open; with --port 0 on a free port.",
)
@click.option(
    "--proxy",
    "with_proxy",
    is_flag=True,
    help="Also run a proxy for gRPC clients, on port 8081; with --port 0 on a free port.",
)
@click.option(
    "--tls",
    "with_tls",
    is_flag=True,
    help="Encrypt all connections, with certificates that openssl makes in --data/tls at the first start.",
)
@_certificate_option("--tls-cert", "Encrypt all connections, with this certificate of 127.0.0.1, PEM.")
@_certificate_option("--tls-key", "Private key of --tls-cert, PEM.")
@_certificate_option("--tls-ca", "Authority of --tls-cert, PEM.")
@click.option(
    "--no-metrics",
    is_flag=True,
    help="Serve no metrics; else each broker serves them at its port + 2, the name server at its port + 1.",
)
@set_option
@json_flag("Print the addresses as one line of JSON once all is ready.")
def up(
    brokers: int,
    slaves: int,
    data: Path,
    port: int,
    mode: str | None,
    registry: str | None,
    with_console: bool,
    with_proxy: bool,
    with_tls: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    no_metrics: bool,
    pairs: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run a cluster on this machine until Ctrl-C; its data are kept.

    The cluster is a name server and broker groups. A group is one SYNC_MASTER (ASYNC_MASTER without slaves) and its
    slaves. Each is a process of its own. With slaves the name server hosts the registry, unless --registry is given,
    and a slave becomes master when the master dies. With --mode slave-consume the slave only serves reads; with --mode
    static it does neither. --set applies a setting to all brokers. They accept SQL92 filters, unless --set
    enablePropertyFilter=false is given.

    A broker that exits by itself is reported and not restarted; the others continue. When a group has no running broker
    left, those included that were restarted by hand, or the name server exits, all processes are stopped, with exit
    code 1.

    The groups' configurations are also stored in the database groups.db in --data, for `tandemq ha config`, with the
    options that are printed. With --console, changes of roles on its pages are stored there and applied to the groups;
    its users and audit log are kept there too.

    With --tls, or with --tls-cert, --tls-key and --tls-ca, connections without TLS are closed. Commands need the
    printed option before their name, Java clients -Dtls.enable=true and the others of docs/guides/operations.md.

    Prometheus can scrape the cluster with the file prometheus.yml in --data.
    """
    from tandemq.coordination.registry.records import Mode  # noqa: PLC0415
    from tandemq.run.children import (  # noqa: PLC0415  # see `tandemq broker`
        ChildCluster,
        ClusterPorts,
        console_child,
        proxy_child,
    )

    has_metrics = not no_metrics
    cluster = ChildCluster(
        data,
        groups=brokers,
        slaves=slaves,
        ports=ClusterPorts(port, ports_of, has_metrics) if port else ClusterPorts(has_metrics=has_metrics),
        settings=_broker_settings(pairs, registry),
        mode=Mode(mode) if mode is not None else None if slaves else Mode.STATIC,
        keeps_groups=_has_database(),
        tls=_certificates(tls_cert, tls_key, tls_ca) or with_tls,
    )
    if with_console:
        need_packages()
    if with_proxy:
        need_protobuf()
    for number in _SIGNALS:
        signal.signal(number, _interrupt)
    gone: list[BrokerChild] = []
    with quiet(), contextlib.suppress(KeyboardInterrupt), cluster, contextlib.ExitStack() as stack:
        beside: dict[str, Child] = {}
        if with_proxy:
            beside["proxy"] = stack.enter_context(_beside(cluster, proxy_child(cluster, PROXY_PORT if port else 0)))
        if with_console:
            beside["console"] = stack.enter_context(
                _beside(cluster, console_child(cluster, DEFAULT_PORT if port else 0))
            )
        scraped = _write_prometheus(cluster)
        _print_ready(cluster, beside, scraped, as_json=as_json)
        _watch(cluster, beside, gone)
    reported = [broker.name for broker in gone]
    if unclean := [name for name in cluster.unclean if name not in reported]:
        raise LocalError(f"{', '.join(unclean)} did not stop cleanly", hint=f"logs are in {data}")
    if not as_json:
        click.echo(f"stopped; its data are in {data}")


def _broker_settings(pairs: tuple[str, ...], registry: str | None) -> dict[str, str]:
    """Return the settings of all brokers."""
    from tandemq.registry import parse_address  # noqa: PLC0415  # see `tandemq broker`

    settings = {"enablePropertyFilter": "true"}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(
                f"--set {pair}: KEY=VALUE is expected", hint="for instance --set flushDiskType=SYNC_FLUSH"
            )
        settings[key.strip()] = value.strip()
    if registry is not None:
        parse_address(registry)
        settings["registryAddr"] = registry
    return settings


def _certificates(cert: Path | None, key: Path | None, ca: Path | None) -> "ClusterCertificates | None":
    """Return the given certificates after a check, None if none are given."""
    from tandemq.run.local_tls import ClusterCertificates  # noqa: PLC0415  # see `tandemq broker`

    if cert is None and key is None and ca is None:
        return None
    if cert is None or key is None or ca is None:
        raise ConfigError("--tls-cert, --tls-key and --tls-ca need each other", hint="--tls alone makes certificates")
    found = ClusterCertificates(cert.absolute(), key.absolute(), ca.absolute())
    found.check()
    return found


def _has_database() -> bool:
    """Return whether the package of the database is installed, an extra, without importing it."""
    return find_spec("sqlalchemy") is not None


def _config_commands(cluster: "ChildCluster") -> tuple[str, str]:
    """Return the commands that change a group of the cluster and that apply the change."""
    database = shlex.join(["--database", cluster.database])
    registry = shlex.join(["--registry", cluster.registry, "--secret-file", cluster.secret_file])
    tls = f"{shlex.join(['--tls-ca', cluster.tls.ca_file])} " if cluster.tls is not None else ""
    return f"tandemq ha config set {database} GROUP …", f"tandemq {tls}ha config apply {database} {registry}"


@contextlib.contextmanager
def _beside(cluster: "ChildCluster", child: "Child") -> "Iterator[Child]":
    """Run a process beside a cluster."""
    child.start()
    try:
        yield child
    finally:
        was_running = child.is_running  # else its exit was reported
        if not child.stop() and was_running:
            cluster.unclean.append(child.name)


def _watch(cluster: "ChildCluster", beside: "dict[str, Child]", gone: "list[BrokerChild]") -> None:
    """Report each broker that exits by itself and append it to `gone`, as long as the cluster can continue.

    Raises:
        LocalError: the name server exited, or the last member of a group.
    """
    while True:
        for broker in cluster.brokers:
            if broker.ending and broker not in gone:
                gone.append(broker)
                _report_exit(cluster, broker)
        for name in {broker.broker_name for broker in gone}:
            if cluster.members_left(name) == []:
                member = [broker for broker in gone if broker.broker_name == name][-1]
                raise LocalError(
                    f"{member.name} exited: {member.ending}; {name} has no member left",
                    hint=f"its log is {member.log_path}",
                )
        for name, child in list(beside.items()):
            if child.ending:
                click.echo(f"the {name} exited: {child.ending}; its log is {child.log_path}", err=True)
                del beside[name]
        if ending := cluster.name_server.ending:
            raise LocalError(f"the name server exited: {ending}", hint=f"its log is {cluster.name_server.log_path}")
        time.sleep(POLL_SECONDS)


def _report_exit(cluster: "ChildCluster", broker: "BrokerChild") -> None:
    left = cluster.members_left(broker.broker_name) or []
    others = [member for member in left if member != broker.address]  # It may still be registered.
    if others:
        click.echo(
            f"{broker.name} exited: {broker.ending}; {broker.broker_name} continues with {', '.join(others)}. Its log "
            f"is {broker.log_path}; to restart it: tandemq broker -c {broker.conf_path}",
            err=True,
        )


def _interrupt(*_: object) -> None:
    """Interrupt the cluster, its start included. Later signals are ignored, so that the shutdown completes."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _write_prometheus(cluster: "ChildCluster") -> Path | None:
    """Write a configuration of Prometheus that scrapes the cluster; return its path, None without metrics."""
    path = cluster.directory / "prometheus.yml"
    targets = [
        process.startup["metrics"] for process in (cluster.name_server, *cluster.brokers) if process.startup["metrics"]
    ]
    if not targets:
        path.unlink(missing_ok=True)
        return None
    lines = ["# Written by tandemq up at each start.", "scrape_configs:", "  - job_name: tandemq"]
    lines += ["    scrape_interval: 5s", "    static_configs:", f"      - targets: {json.dumps(targets)}", ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _print_ready(cluster: "ChildCluster", beside: "dict[str, Child]", scraped: Path | None, *, as_json: bool) -> None:
    if as_json:
        show_json(
            {name: child.startup for name, child in beside.items()}
            | {
                "nameServer": cluster.name_servers,
                "nameServerPid": cluster.name_server.pid,
                "nameServerMetrics": cluster.name_server.startup["metrics"],
                "mode": cluster.mode.value,
                "tlsCa": "" if cluster.tls is None else cluster.tls.ca_file,
                "registry": cluster.registry,
                "secretFile": cluster.secret_file,
                "database": cluster.database if cluster.registry and _has_database() else "",
                "brokers": [
                    {
                        "broker": b.broker_name,
                        "id": b.broker_id,
                        "address": b.address,
                        "pid": b.pid,
                        "metrics": b.metrics_address,
                        "store": str(b.store),
                    }
                    for b in cluster.brokers
                ],
            }
        )
        return
    click.echo(f"name server  {cluster.name_servers}")
    if cluster.tls is not None:
        click.echo(f"TLS          tandemq {shlex.join(['--tls-ca', cluster.tls.ca_file])} COMMAND …")
    if cluster.registry:
        where = "" if cluster.uses_other_registry else "; in the name server, for one machine"
        click.echo(f"registry     {cluster.registry}, mode {cluster.mode.value}{where}")
        click.echo(f"secret file  {cluster.secret_file}")
        if _has_database():
            change, apply = _config_commands(cluster)
            click.echo(f"configure    {change}\napply        {apply}")
    masters = cluster.masters()
    for broker in cluster.brokers:
        role = "master" if broker in masters else "slave"
        metrics = f", metrics {broker.metrics_address}" if broker.metrics_address else ""
        click.echo(f"{broker.name:<12} {broker.address}  {role}, process {broker.pid}{metrics}")
    if scraped is not None:
        click.echo(
            f"metrics      http://{cluster.name_server.startup['metrics']}/metrics and as above; {scraped} has all"
        )
    if "proxy" in beside:
        click.echo(f"gRPC         {beside['proxy'].address}")
    if "console" in beside:
        link = beside["console"].startup["link"]
        once = " (works once, for 15 minutes: it creates the first user)" if "/setup/" in link else ""
        click.echo(f"console      {link}{once}")
    click.echo(f"stores, configuration and logs: {cluster.directory}; Ctrl-C stops it")
