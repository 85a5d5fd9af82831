"""Small configurations for tests and simulations: any free port, and limits low enough to be reached."""

from dataclasses import replace
from typing import Any

from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.config.validation import validate


def tiny(**changes: Any) -> BrokerConfig:
    """A broker for tests: any ports, and limits small enough to be reached."""
    small = BrokerConfig(
        bind_address="127.0.0.1",
        advertised_ip="127.0.0.1",
        ha_advertised_ip="127.0.0.1",
        listen_port=0,
        ha_port=0,
        register_ms_min=1,
        message_bytes_max=8 * 1024,
        frame_bytes_max=256 * 1024,
        segment_bytes=32 * 1024,
        queue_file_bytes=20 * 50,
        index_slots=50,
        index_entries=200,
        ha_batch_bytes=4 * 1024,
        transfer_bytes_max=16 * 1024,
    )
    return validate(replace(small, **changes))


def tiny_name_server(**changes: Any) -> NameServerConfig:
    """A name server for tests: any port, few links, small frames."""
    small = NameServerConfig(bind_address="127.0.0.1", listen_port=0, connections_max=100, frame_bytes_max=256 * 1024)
    return validate(replace(small, **changes))
