"""docs/guides/upgrade.md, backup.md and faults.md: their commands, on the cluster of deploy.md, under load."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tandemq
from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tandemq.errors import RemoteError
from tests.blackbox.deployed import deploy
from tests.blackbox.machines import VERSION, Machine, machines
from tests.blackbox.traffic import Traffic
from tests.pages import Page

pytestmark = pytest.mark.timeout(900)
UPGRADE, BACKUP, FAULTS = (Page(f"docs/guides/{name}.md") for name in ("upgrade", "backup", "faults"))
NEXT_VERSION = "0.2.0"
TOPIC, CONSUMERS = "Orders", "billing"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path) as found:
        deploy(found, has_zookeeper=False)
        yield found


def name_servers(cluster: list[Machine]) -> str:
    return ";".join(f"{machine.address}:9876" for machine in cluster)


def next_version(directory: Path) -> list[str]:
    """The package with another version number, as a path to import from."""
    source = Path(tandemq.__file__).parent
    copy = shutil.copytree(source, directory / "tandemq", ignore=shutil.ignore_patterns("__pycache__"))
    module = copy / "__init__.py"
    text = module.read_text(encoding="utf-8")
    assert f'"{VERSION}"' in text
    module.write_text(text.replace(f'"{VERSION}"', f'"{NEXT_VERSION}"'), encoding="utf-8")
    return [str(directory), *(str(Path(entry).absolute()) for entry in sys.path)]


def test_upgrade_of_one_machine_after_the_other_loses_nothing_and_a_drain_ends_writes(
    cluster: list[Machine], tmp_path: Path
) -> None:
    upgrade, switch = UPGRADE.blocks("Upgrade")
    path = next_version(tmp_path / "next")
    with Traffic(name_servers(cluster), topic=TOPIC, group=CONSUMERS) as traffic:
        traffic.wait_for_more()
        for number in (1, 2):
            cluster[number].install(NEXT_VERSION, path)
            cluster[number].run(upgrade)
            assert NEXT_VERSION in cluster[number].run("tandemq --version")
            assert VERSION in cluster[0].run("tandemq --version")
            traffic.wait_for_more()  # from a master of the old version to a slave of the new one
        cluster[0].run(switch)
        traffic.wait_for_more()  # from a master of the new version to a slave of the old one
        cluster[0].install(NEXT_VERSION, path)
        cluster[0].run(upgrade)
        traffic.wait_for_more()
        assert traffic.failed == []
        drain, _ = UPGRADE.blocks("Drain")
        traffic.end_producing()
        # No other group takes the topic, and nobody produces.
        cluster[0].run(drain.replace("broker-a", "broker-a --force --wait 1"))
        with (
            BlockingProducer(name_servers(cluster), group="late-senders", retries=0) as late,
            pytest.raises(RemoteError, match="no broker accepts messages"),
        ):
            late.send(Message(TOPIC, b"refused"))
        traffic.stop_producing()
    assert not traffic.missing()


def test_disks_are_lost_stores_are_moved_and_a_machine_is_replaced(cluster: list[Machine]) -> None:
    [lost] = FAULTS.blocks("A lost disk")
    [move] = FAULTS.blocks("A full disk")
    configure, start = FAULTS.blocks("A lost machine")
    with Traffic(name_servers(cluster), topic=TOPIC, group=CONSUMERS) as traffic:
        traffic.wait_for_more()
        cluster[1].run(lost)
        cluster[0].run(lost)  # the master: another member takes over
        traffic.wait_for_more()
        cluster[2].run(move)
        assert cluster[2].path("/var/lib/tandemq/larger-disk/commitlog").is_dir()
        traffic.wait_for_more()
        cluster[2].run("systemctl stop tandemq@broker; rm -rf /var/lib/tandemq/larger-disk")
        cluster[2].run("sed -i s/^brokerId=2$/brokerId=3/ /etc/tandemq/broker.conf")
        cluster[0].run(configure)
        cluster[2].run(start)
        traffic.stop_producing()
    assert not traffic.missing()
    assert traffic.failed == []


def test_backup_is_restored_to_a_group_that_lost_all_stores_and_a_registry_is_made_again(
    cluster: list[Machine],
) -> None:
    [back_up, verify] = BACKUP.blocks("Back up")
    stop, copy, start, force = BACKUP.blocks("Restore")
    forget, publish = BACKUP.blocks("A lost registry")
    with BlockingProducer(name_servers(cluster), group="senders") as producer:
        producer.send(Message(TOPIC, b"before the backup"))
        cluster[2].run(back_up)
        assert "derivedFaults  0" in cluster[2].run(verify)
        producer.send(Message(TOPIC, b"after the backup"))
    for machine in cluster:
        machine.run(stop)
    cluster[2].run(copy)
    for machine in cluster:
        machine.run(start)
    cluster[0].run(force)
    assert bodies(cluster) == ["before the backup"]
    cluster[0].run(forget)
    cluster[0].run(publish)
    with BlockingProducer(name_servers(cluster), group="senders") as producer:
        producer.send(Message(TOPIC, b"after the restore"))
    assert bodies(cluster) == ["before the backup", "after the restore"]
    cluster[0].run("tandemq ha verify")


def bodies(cluster: list[Machine]) -> list[str]:
    """Return the bodies of all messages of the topic."""
    count = sum(
        queue["messages"] for queue in json.loads(cluster[0].run(f"tandemq topic show {TOPIC} --json"))["queues"]
    )
    lines = cluster[0].run(f"tandemq message tail {TOPIC} --from earliest --count {count} --json").splitlines()
    return sorted((str(json.loads(line)["body"]) for line in lines), reverse=True)
