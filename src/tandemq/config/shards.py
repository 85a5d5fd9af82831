"""Shards: several brokers of one machine that run with the same settings, each with its own name, ports and store.

    shard   brokerName   listenPort   haListenPort, haMasterAddress   storePathRootDir
    0       broker-a     10911        as set                          store
    1       broker-a-1   10921        + 10                            store/shards/1
    2       broker-a-2   10931        + 20                            store/shards/2

Shard 0 is the broker that these settings describe without shards. So an existing store needs no change, and all that
refers to its broker by name stays valid: message queues of consumers, their local offsets, mappings of static topics,
the group's configuration. Names depend on settings alone, so that the shards of a slave find those of their master.

A port 0 stays 0. Metrics are on one port, that of the process that starts the shards.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

from tandemq.config.files import as_text
from tandemq.config.settings import BrokerConfig, key_of
from tandemq.config.validation import problems
from tandemq.errors import ConfigError

PORT_DISTANCE = 10
"""Distance between the ports of two neighbouring shards."""
DIRECTORY = "shards"
"""Directory of the other shards' stores within that of shard 0."""


def shard_name(broker_name: str, number: int) -> str:
    """Return the name of a shard's broker group."""
    return f"{broker_name}-{number}" if number else broker_name


def shard_store(store_path: str, number: int) -> str:
    """Return the directory of a shard's store."""
    return f"{store_path.rstrip('/') or '/'}/{DIRECTORY}/{number}" if number else store_path


def shard_configs(config: BrokerConfig) -> list[BrokerConfig]:
    """Return the settings of all shards, in order; their metrics, if there are any, are on a free port of the loopback.

    Raises:
        ConfigError: two of them would use the same port, or a derived value is invalid.
    """
    shards = [_shard_config(config, number) for number in range(config.shards)]
    for shard in shards:
        for name, text in problems(shard):
            raise ConfigError(f"shard {shard.broker_name}: {key_of(BrokerConfig, name)}: {text}")
    used: dict[int, str] = {}
    if config.scrape_port > 0:
        used[config.scrape_port] = "metricsPort"
    for shard in shards:
        for what, port in _ports(shard):
            other = used.setdefault(port, f"{what} of {shard.broker_name}")
            if port and other != f"{what} of {shard.broker_name}":
                raise ConfigError(
                    f"port {port} would be the {what} of {shard.broker_name} and the {other}",
                    hint=f"the ports of shard K are those of the settings + {PORT_DISTANCE} * K: choose others",
                )
    return shards


def _shard_config(config: BrokerConfig, number: int) -> BrokerConfig:
    distance = PORT_DISTANCE * number
    master = config.ha_master_address
    if master:
        host, _, port = master.rpartition(":")
        master = f"{host}:{int(port) + distance}"
    return replace(
        config,
        shards=1,
        shard_of=config.broker_name,
        broker_name=shard_name(config.broker_name, number),
        store_path=shard_store(config.store_path, number),
        listen_port=config.listen_port and config.listen_port + distance,
        ha_port=config.ha_port and config.ha_port + distance,
        ha_master_address=master,
        metrics_exporter="DISABLE" if config.metrics_exporter == "PROM" else config.metrics_exporter,
        metrics_port=-1 if config.scrape_port == -1 else 0,
        metrics_bind_address="127.0.0.1",
    )


def _ports(shard: BrokerConfig) -> Iterator[tuple[str, int]]:
    if shard.listen_port:
        yield "listenPort", shard.listen_port
        yield "fast port", shard.listen_port - 2
    yield "haListenPort", shard.replication_port


def settings_of(config: BrokerConfig) -> dict[str, str]:
    """Return all settings as texts by their keys, secrets included."""
    return {item.metadata["key"]: as_text(getattr(config, item.name)) for item in fields(config)}
