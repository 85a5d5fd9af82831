"""A cluster whose name server requires a secret: only brokers and tools that know it can use the registry."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandemq.config.settings import NameServerConfig
from tandemq.coordination.registry import records
from tandemq.errors import ConfigError, RemoteError
from tandemq.registry import Done, NodeFound, Read, Write, parse_address
from tandemq.run.groups import CLUSTER
from tandemq.run.local import LocalCluster
from tandemq.run.nameserver import NameServerProcess, log_open_access
from tandemq.run.registry_session import RegistryClient
from tandemq.run.secret import make_secret_file

STATE = records.state_path(CLUSTER, "broker-a")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), slaves=1, mode="elect") as cluster:
        yield cluster


def test_write_that_would_stop_the_brokers_is_refused_at_once_without_the_secret(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    address = parse_address(cluster.registry)
    wrong = make_secret_file(tmp_path / "wrong.secret")
    for secret_file, said in (("", "got no proof"), (wrong, "got a wrong proof")):
        with pytest.raises(RemoteError, match=said) as caught:
            RegistryClient(address, secret_file=secret_file)
        assert "--secret-file" in str(caught.value)
    assert cluster.master().is_master()


def test_tool_with_the_secret_reads_and_writes(cluster: LocalCluster) -> None:
    with RegistryClient(parse_address(cluster.registry), secret_file=cluster.secret_file) as client:
        found = client.do(Read(STATE))
        assert isinstance(found, NodeFound)
        state = records.state_from_json("broker-a", found.data)
        assert isinstance(client.do(Write(STATE, records.state_to_json(state), found.version)), Done)


def test_missing_secret_file_is_a_configuration_error(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        RegistryClient(parse_address(cluster.registry), secret_file=tmp_path / "none")
    config = NameServerConfig(listen_port=0, data_path=str(tmp_path), ha_secret_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No such file"):
        NameServerProcess(config).open()


def test_cluster_without_a_secret_works_as_before(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, mode="elect", settings={"haSecretFile": ""}) as open_to_all:
        assert open_to_all.master().is_master()
        with RegistryClient(parse_address(open_to_all.registry)) as client:
            assert isinstance(client.do(Read(STATE)), NodeFound)


def test_reachable_unauthenticated_registry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = NameServerConfig(registry_enable=True)
    checked = replace(config, authentication_enable=True, ha_secret_file="s")
    for quiet in (replace(config, bind_address="127.0.0.1"), checked):
        log_open_access(quiet, 9876)
    assert caplog.messages == []  # on the loopback these lines are no warnings
    log_open_access(replace(config, authentication_enable=True), 9876)
    assert "no haSecretFile" in caplog.text and len(caplog.messages) == 1
    log_open_access(NameServerConfig(), 9876)
    assert "authenticationEnabled is off" in caplog.messages[1] and len(caplog.messages) == 2
