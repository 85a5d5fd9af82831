"""Warnings that a broker logs when it starts."""

import logging
from typing import Any

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.run.broker import log_open_access
from tests.spec import spec


@spec("H24")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"role": "SLAVE"}, ["haProtocol = auto without haSecretFile"]),
        ({"role": "SLAVE", "ha_protocol": "classic"}, ["haProtocol = classic"]),
        ({"role": "SLAVE", "ha_protocol": "tandemq"}, []),
        ({"role": "SLAVE", "ha_secret_file": "secret"}, []),
        ({"role": "SLAVE", "registry_address": "namesrv://127.0.0.1:9876"}, []),
        ({"role": "SYNC_MASTER"}, []),
        ({"role": "SYNC_MASTER", "ha_classic_peers": ("10.0.0.2",)}, ["haClassicPeers 10.0.0.2"]),
        ({"role": "SYNC_MASTER", "bind_address": "0.0.0.0"}, ["authenticationEnabled is off", "no haSecretFile"]),
        ({"role": "SYNC_MASTER", "bind_address": "0.0.0.0", "authentication_enable": True}, ["no haSecretFile"]),
    ],
)
def test_access_without_authentication_is_logged_at_the_start(
    settings: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    broker_id = int(settings.get("role") == "SLAVE")
    log_open_access(BrokerConfig(broker_id=broker_id, **{"bind_address": "127.0.0.1", **settings}))
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    assert len(caplog.records) == len(said)
    for record, part in zip(caplog.records, said, strict=True):
        assert part in record.getMessage()
