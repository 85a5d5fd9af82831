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
        (
            {"role": "SLAVE"},
            ["authenticationEnabled is off", "haProtocol = auto without haSecretFile", "no haSecretFile"],
        ),
        ({"role": "SLAVE", "ha_protocol": "classic"}, ["authentication", "haProtocol = classic", "no haSecretFile"]),
        ({"role": "SLAVE", "ha_protocol": "tandemq"}, ["authenticationEnabled is off", "no haSecretFile"]),
        ({"role": "SLAVE", "ha_secret_file": "secret"}, ["authenticationEnabled is off"]),
        ({"role": "SLAVE", "registry_address": "namesrv://127.0.0.1:1"}, ["authentication", "no haSecretFile"]),
        ({"role": "SYNC_MASTER", "ha_classic_peers": ("10.0.0.2",)}, ["authentication", "10.0.0.2", "no haSecretFile"]),
        ({"role": "SYNC_MASTER", "authentication_enable": True}, ["no haSecretFile"]),
        ({"role": "SYNC_MASTER", "authentication_enable": True, "ha_secret_file": "secret"}, []),
    ],
)
@pytest.mark.parametrize(
    ("address", "level"), [("127.0.0.1", logging.INFO), ("::1", logging.INFO), ("0.0.0.0", logging.WARNING)]
)
def test_access_without_authentication_is_logged_at_the_start(
    settings: dict[str, Any], said: list[str], address: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    broker_id = int(settings.get("role") == "SLAVE")
    log_open_access(BrokerConfig(broker_id=broker_id, bind_address=address, **settings))
    assert {record.levelno for record in caplog.records} <= {level}
    assert len(caplog.records) == len(said)
    for record, part in zip(caplog.records, said, strict=True):
        assert part in record.getMessage()


def test_copying_from_another_machine_without_authentication_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    config = BrokerConfig(broker_id=1, role="SLAVE", bind_address="127.0.0.1", ha_master_address="10.0.0.1:10912")
    log_open_access(config)
    levels = {record.getMessage().partition(":")[0]: record.levelno for record in caplog.records[:2]}
    assert levels == {"access": logging.INFO, "replication": logging.WARNING}
