"""docs/guides/deploy.md: three machines with ZooKeeper, one of which is lost."""

from pathlib import Path

import pytest

from tests.blackbox.deployed import DEPLOY, deploy
from tests.blackbox.machines import healthy, machines
from tests.interop.java import JavaJars, java_executable
from tests.interop.zookeeper import VERSION

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]


def zookeeper(configuration: Path) -> list[str]:
    jars = JavaJars.class_path("zookeeper", VERSION)
    jvm = ["-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [
        java_executable(),
        *jvm,
        "-cp",
        jars,
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(configuration),
    ]


def test_cluster_of_the_page_survives_the_loss_of_a_machine(tmp_path: Path) -> None:
    kill, after = DEPLOY.blocks("Lose a machine")
    with machines(tmp_path, zookeeper) as found:
        deploy(found, has_zookeeper=True)
        found[0].run(kill)
        assert not found[0].is_active("tandemq@broker")
        assert "SEND_OK" in (printed := found[1].run(after))
        assert "UNHEALTHY: broker-a" in printed
        assert "exit code 3" in printed
        found[0].run("systemctl start zookeeper tandemq@namesrv tandemq@broker")
        healthy(found[2])
