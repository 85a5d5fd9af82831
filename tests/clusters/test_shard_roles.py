"""How the process that starts shards asks brokers for their roles, and for a switch: with the secret of replication."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.broker import BrokerProcess
from tandemq.run.secret import make_secret_file
from tandemq.run.shard_roles import RoleMover
from tests.blackbox.in_process import running


def test_broker_with_access_control_answers_those_who_know_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = make_secret_file(tmp_path / "secret")
    config = BrokerConfig(
        bind_address="127.0.0.1",
        advertised_ip="127.0.0.1",
        listen_port=0,
        store_path=str(tmp_path / "store"),
        ha_secret_file=str(secret),
        authentication_enable=True,
        disk_full_ratio=1.0,
    )
    with running(BrokerProcess(config)) as broker:
        mover = RoleMover(config, ["a"], lambda: [broker.address])
        assert mover._status(broker.address)["brokerName"] == "broker-a"
        switch = Command(RequestCode.TANDEM_SWITCH, fields={"target": "1", "why": "to test"})
        answer = mover._ask(broker.address, switch, 10)
        assert (answer.code, "no registry" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)

        other = make_secret_file(tmp_path / "other")
        unproven = RoleMover(replace(config, ha_secret_file=str(other)), ["a"], lambda: [broker.address])
        caplog.set_level(logging.WARNING, "tandemq.run.shard_roles")
        for _ in range(2):
            assert unproven._status(broker.address) == {}
        assert len([record for record in caplog.records if "does not report its role" in record.message]) == 1
        assert unproven._ask(broker.address, switch, 10).code == ResponseCode.NO_PERMISSION
    assert mover._status(broker.address) == {}


def test_missing_secret_is_an_error(tmp_path: Path) -> None:
    config = BrokerConfig(store_path=str(tmp_path), ha_secret_file=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="haSecretFile"):
        RoleMover(config, ["a"], list)
