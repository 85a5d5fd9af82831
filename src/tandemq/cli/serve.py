"""`tandemq broker` and `tandemq namesrv`: the single programs."""

import logging
import signal
from pathlib import Path

import click

from tandemq.config_file import load_broker_config, load_name_server_config
from tandemq.errors import ConfigError

log = logging.getLogger(__name__)


def _read(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="give a TOML file or a RocketMQ broker.conf") from error


def _overrides(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: key=value is expected")
        found[key.strip()] = value.strip()
    return found


@click.command()
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML or a RocketMQ broker.conf.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting that outranks the file's.")
@click.option("--namesrv", "-n", "name_servers", help="Name servers, host:port;host:port.")
@click.option("--accept-loss", is_flag=True,
              help="After a crash of the machine: do not wait for slaves that may hold what was lost here.")
def broker(path: str | None, pairs: tuple[str, ...], name_servers: str | None, accept_loss: bool) -> None:
    """Run one broker until SIGTERM or SIGINT."""
    from tandemq.run.broker import BrokerProcess  # noqa: PLC0415  # numpy is not loaded for --help

    overrides = _overrides(pairs)
    if name_servers:
        overrides["namesrvAddr"] = name_servers
    config = load_broker_config(
        _read(path), path=path or "the command line", warn=lambda text: log.warning("%s", text), overrides=overrides
    )
    process = BrokerProcess(config, accept_loss=accept_loss)
    process.open()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    click.echo(
        f"tandemq broker {config.broker_name}/{config.broker_id} ({config.role}) at {process.address}, "
        f"fast port {process.fast_port}, replication {process.ha_address}, store {config.store_path}"
    )
    process.run()
    process.close()


@click.command()
@click.option("--config", "-c", "path", type=click.Path(dir_okay=False), help="TOML or a RocketMQ namesrv.conf.")
@click.option("--port", "-p", type=click.IntRange(0, 65535), help="Port; 0 takes any free one.")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="A setting that outranks the file's.")
def namesrv(path: str | None, port: int | None, pairs: tuple[str, ...]) -> None:
    """Run one name server until SIGTERM or SIGINT."""
    from tandemq.run.nameserver import NameServerProcess  # noqa: PLC0415  # see above

    overrides = _overrides(pairs)
    if port is not None:
        overrides["listenPort"] = str(port)
    config = load_name_server_config(
        _read(path), path=path or "the command line", warn=lambda text: log.warning("%s", text), overrides=overrides
    )
    process = NameServerProcess(config)
    process.open()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    click.echo(f"tandemq name server at {process.address}")
    process.run()
    process.close()
