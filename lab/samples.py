"""Small configurations for simulations and tests: free ports, and limits low enough to be reached."""

from dataclasses import replace
from typing import Any

from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.config.validation import validate


def tiny(**changes: Any) -> BrokerConfig:
    """Return broker settings for tests, with `changes` by field name."""
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
        disk_used_ratio_max=95,
        disk_force_ratio=1.0,
        disk_full_ratio=1.0,
    )
    return validate(replace(small, **changes))


def tiny_name_server(**changes: Any) -> NameServerConfig:
    """Return name server settings for tests, with `changes` by field name."""
    small = NameServerConfig(bind_address="127.0.0.1", listen_port=0, connections_max=100, frame_bytes_max=256 * 1024)
    return validate(replace(small, **changes))
