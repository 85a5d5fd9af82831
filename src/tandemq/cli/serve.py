"""`tandemq broker`, `tandemq namesrv` and `tandemq proxy`: servers until SIGTERM or SIGINT."""

import contextlib
import errno
import gc
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.support.client_session import optional_namesrv_option
from tandemq.cli.support.log_format import use_json, use_name
from tandemq.cli.support.output import json_flag
from tandemq.config.files import load_broker_config, load_name_server_config, load_proxy_config
from tandemq.errors import ConfigError
from tandemq.real.descriptors import raise_limit
from tandemq.real.memory import keep_blocks
from tandemq.real.service_manager import ServiceManager

if TYPE_CHECKING:
    from tandemq.config.settings import BrokerConfig
    from tandemq.run.shards import ShardGroup

log = logging.getLogger(__name__)

json_option = json_flag("Print the addresses as one line of JSON.")
stdin_option = click.option(
    "--while-stdin", is_flag=True, help="Stop when standard input is closed; for programs that start this one."
)
set_option = click.option(
    "--set", "pairs", multiple=True, metavar="KEY=VALUE", help="Override a setting of the file; repeatable."
)


def _read(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}", hint="use a TOML file or a RocketMQ broker.conf") from error


def _overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: KEY=VALUE is expected", hint="for instance --set listenPort=10921")
        found[key.strip()] = value.strip()
    return found


def _stop_on_signal(stop: Callable[[], None], manager: ServiceManager, *, while_stdin: bool) -> None:
    def stop_on_signal(*_: object) -> None:
        manager.stopping()
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_on_signal)
    if while_stdin:

        def wait_for_end() -> None:
            while os.read(sys.stdin.fileno(), 4096):
                continue
            stop_on_signal()

        threading.Thread(target=wait_for_end, name="stdin", daemon=True).start()


def _in_order(*stops: Callable[[], None]) -> Callable[[], None]:
    """Return what stops several parts, one after the other, without waiting for them; callable many times."""

    def stop_all() -> None:
        for stop in stops:
            stop()

    return lambda: threading.Thread(target=stop_all, name="stop", daemon=True).start()


_PORT_SETTING = re.compile(r"\((?:[^(]*?, )?([\w.]*[pP]ort)\b")
"""The setting of a port in the text of an error."""


@contextlib.contextmanager
def port_explained(option: str = "", setting: str = "") -> Iterator[None]:
    """Replace the hint of an error about a port in use by the option that chooses another one.

    Args:
        option: of this command; "": it has only --set.
        setting: the setting that the option stands for.

    Raises:
        ConfigError: a port is in use.
    """
    try:
        yield
    except ConfigError as error:
        cause, found = error.__cause__, _PORT_SETTING.search(str(error.args[0]))
        if found is None or not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
            raise
        choice = f"{option} PORT" if option and found[1] == setting else f"--set {found[1]}=PORT"
        hint = f"another process may use the port: stop it, or choose another port with {choice}"
        raise ConfigError(str(error.args[0]), hint=hint) from error


def _print_ready(text: str, facts: dict[str, object], *, as_json: bool) -> None:
    click.echo(json.dumps(facts | {"pid": os.getpid()}) if as_json else text)


@click.command()
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML file or RocketMQ broker.conf.")
@set_option
@optional_namesrv_option
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Treat absent slaves as lost for good: do not wait for data that only they may have, and keep no old log "
    "files for them.",
)
@click.option(
    "--proxy-port",
    type=click.IntRange(0, 65535),
    help="Also serve gRPC clients at this port, by a proxy in a child process; 0 for any free port.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 64),
    help="Number of brokers, each a child process with its own name, ports and store.",
)
@json_option
@stdin_option
def broker(
    path: str | None,
    pairs: tuple[str, ...],
    name_servers: str | None,
    accept_loss: bool,
    proxy_port: int | None,
    shards: int | None,
    as_json: bool,
    while_stdin: bool,
) -> None:
    """Run one broker, or shards of one, until SIGTERM or SIGINT.

    Without a file it is a master named broker-a on port 10911 with its store in ./store. Shard K above 0 is broker-a-K
    on port 10911 + 10 * K with its store in ./store/shards/K.
    """
    if proxy_port is not None:
        need_protobuf()
    from tandemq.run.account_files import with_account_files  # noqa: PLC0415  # numpy is not loaded for --help
    from tandemq.run.shards import check_other_stores  # noqa: PLC0415

    overrides = _overrides(pairs)
    if name_servers:
        overrides["namesrvAddr"] = name_servers
    if shards is not None:
        overrides["shards"] = str(shards)
    config = load_broker_config(
        _read(path), path=path or "the command line", warn=lambda text: log.warning("%s", text), overrides=overrides
    )
    config = with_account_files(config, path, os.environ)
    if config.log_format == "json":
        use_json({"broker": config.broker_name, "broker_id": config.broker_id})
    elif config.shard_of:
        use_name(config.broker_name)
    check_other_stores(config)
    run = _run_shards if config.shards > 1 else _run_broker
    run(config, accept_loss=accept_loss, proxy_port=proxy_port, as_json=as_json, while_stdin=while_stdin)


def _run_broker(
    config: "BrokerConfig", *, accept_loss: bool, proxy_port: int | None, as_json: bool, while_stdin: bool
) -> None:
    from tandemq.engine import NAME  # noqa: PLC0415  # see `broker`
    from tandemq.run.broker import BrokerProcess  # noqa: PLC0415
    from tandemq.run.proxy_beside import ProxyBeside  # noqa: PLC0415

    keep_blocks()
    raise_limit()
    manager = ServiceManager.of_environment(os.environ)
    manager.starting("opening the store")
    role = "role by the registry" if config.registry_address else config.static_role
    beside = None if proxy_port is None else ProxyBeside(config, proxy_port)
    process = BrokerProcess(config, accept_loss=accept_loss)
    stop = process.stop
    if beside is not None:
        stop = _in_order(beside.stop, process.stop)
        beside.spawn()
    try:
        with port_explained():
            process.open()
        if beside is not None:
            beside.wait_ready()
    except BaseException:
        if beside is not None:
            beside.stop()
        process.close()
        raise
    _stop_on_signal(stop, manager, while_stdin=while_stdin)
    _print_ready(
        f"tandemq broker {config.broker_name}/{config.broker_id} ({role}) at {process.address}, "
        f"fast port {process.fast_port}, replication {process.ha_address}, store {config.store_path}, {NAME} engine"
        + (f", metrics http://{process.metrics_address}/metrics" if process.metrics_address else "")
        + (f", gRPC {beside.address}" if beside is not None else ""),
        {
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "role": role,
            "address": process.address,
            "fastPort": process.fast_port,
            "haAddress": process.ha_address,
            "store": config.store_path,
            "engine": NAME,
            "metrics": process.metrics_address,
            "proxy": "" if beside is None else beside.address,
        },
        as_json=as_json,
    )
    # What the start has made stays: the collector of cycles need not look at it again, which took it 30 ms at a time.
    gc.freeze()
    process.run(manager)
    process.close()


def _run_shards(
    config: "BrokerConfig", *, accept_loss: bool, proxy_port: int | None, as_json: bool, while_stdin: bool
) -> None:
    from tandemq.run.shards import ShardGroup  # noqa: PLC0415  # see `broker`

    manager = ServiceManager.of_environment(os.environ)
    manager.starting(f"starting {config.shards} shards")
    group = ShardGroup(config, accept_loss=accept_loss, proxy_port=proxy_port)
    _stop_on_signal(_in_order(group.stop), manager, while_stdin=while_stdin)
    try:
        group.open()
    except BaseException:
        group.close()
        raise
    if not group.is_stopping:
        _print_shards(config, group, as_json=as_json)
    group.run(manager)


def _print_shards(config: "BrokerConfig", group: "ShardGroup", *, as_json: bool) -> None:
    proxy = "" if group.beside is None else group.beside.address
    _print_ready(
        "\n".join(
            f"tandemq broker {shard.name}/{config.broker_id} at {shard.address}, store {shard.startup['store']}"
            for shard in group.shards
        )
        + (f"\nmetrics http://{group.metrics_address}/metrics" if group.metrics_address else "")
        + (f"\ngRPC {proxy}" if proxy else ""),
        {
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "address": group.shards[0].address,
            "shards": [{**shard.startup, "metrics": ""} for shard in group.shards],
            "metrics": group.metrics_address,
            "proxy": proxy,
        },
        as_json=as_json,
    )


@click.command()
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML file or RocketMQ namesrv.conf.")
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Port to listen on; 0 for any free port.")
@set_option
@json_option
@stdin_option
def namesrv(path: str | None, port: int | None, pairs: tuple[str, ...], as_json: bool, while_stdin: bool) -> None:
    """Run one name server until SIGTERM or SIGINT.

    Without a file or a port it listens on port 9876.
    """
    from tandemq.run.nameserver import NameServerProcess  # noqa: PLC0415  # see above

    overrides = _overrides(pairs)
    if port is not None:
        overrides["listenPort"] = str(port)
    config = load_name_server_config(
        _read(path), path=path or "the command line", warn=lambda text: log.warning("%s", text), overrides=overrides
    )
    if config.log_format == "json":
        use_json({})
    raise_limit()
    manager = ServiceManager.of_environment(os.environ)
    process = NameServerProcess(config)
    with port_explained("--port", "listenPort"):
        process.open()
    _stop_on_signal(process.stop, manager, while_stdin=while_stdin)
    _print_ready(
        f"tandemq name server at {process.address}"
        + (f", metrics http://{process.metrics_address}/metrics" if process.metrics_address else ""),
        {"address": process.address, "metrics": process.metrics_address},
        as_json=as_json,
    )
    # What the start has made stays: the collector of cycles need not look at it again, which took it 30 ms at a time.
    gc.freeze()
    process.run(manager)
    process.close()


@click.command()
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML or properties file.")
@set_option
@optional_namesrv_option
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Port to listen on; 0 for any free port.")
@click.option("--processes", type=click.IntRange(1, 256), help="Number of processes that share the port.")
@json_option
@stdin_option
def proxy(
    path: str | None,
    pairs: tuple[str, ...],
    name_servers: str | None,
    port: int | None,
    processes: int | None,
    as_json: bool,
    while_stdin: bool,
) -> None:
    """Run a proxy for gRPC clients until SIGTERM or SIGINT.

    It serves the clients of RocketMQ 5 for Java, Go, C++, Python, Node.js, Rust and C#, in front of the brokers that
    the name servers list. Without a file or a port it listens on port 8081. With tls.server.certPath it takes
    connections with and without TLS on the same port.
    """
    need_protobuf()
    from tandemq.run.proxy import ProxyGroup, ProxyProcess  # noqa: PLC0415  # see above

    overrides = _overrides(pairs)
    given = {"namesrvAddr": name_servers, "grpcServerPort": port, "processes": processes}
    overrides |= {key: str(value) for key, value in given.items() if value is not None}
    config = load_proxy_config(
        _read(path), path=path or "the command line", warn=lambda text: log.warning("%s", text), overrides=overrides
    )
    if config.log_format == "json":
        use_json({})
    raise_limit()
    manager = ServiceManager.of_environment(os.environ)
    if config.processes > 1:
        group = ProxyGroup(config)
        with port_explained("--port", "grpcServerPort"):
            group.open(manager.report_ns)
        _stop_on_signal(group.stop, manager, while_stdin=while_stdin)
        address, metrics = f"{config.bind_address}:{config.listen_port}", ""
        text = f"tandemq proxy at {address}, {config.processes} processes"
        _print_ready(text, {"address": address, "processes": config.processes}, as_json=as_json)
        group.run(manager)
        return
    process = ProxyProcess(config)
    with port_explained("--port", "grpcServerPort"):
        process.open()
    _stop_on_signal(process.stop, manager, while_stdin=while_stdin)
    address, metrics = process.address, process.metrics_address
    _print_ready(
        f"tandemq proxy at {address}" + (f", metrics http://{metrics}/metrics" if metrics else ""),
        {"address": address, "metrics": metrics},
        as_json=as_json,
    )
    gc.freeze()
    process.run(manager)
    process.close()


def need_protobuf() -> None:
    """Check that the packages of the proxy are installed.

    Raises:
        ConfigError: they are not.
    """
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        raise ConfigError("the proxy needs the package protobuf", hint="pip install 'tandemq[proxy]'")
