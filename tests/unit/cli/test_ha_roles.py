"""`tandemq ha` on groups with a registry: status, switch, force-master, history, and discovery of their members."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.cli.ha.roles import merged
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def elected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A pair in mode elect; tests leave it in sync, with any master."""
    with LocalCluster(tmp_path_factory.mktemp("elected"), slaves=1, mode="elect") as cluster:
        with BlockingProducer(cluster.name_servers, group="g") as producer:
            producer.send(Message("T", b"x"))
        yield cluster


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[LocalCluster]:
    """A pair in mode slave-consume whose slave serves reads, because the master was killed."""
    with LocalCluster(tmp_path, slaves=1, mode="slave-consume") as cluster:
        slave = cluster.broker(broker_id=1).node
        cluster.master().kill()
        cluster.wait_until(lambda: slave.failover is not None and slave.failover.is_holder)
        yield cluster


NOBODY = "127.0.0.1:1"
"""Address without a listener: a name server or broker that does not answer."""


def ha_json(run: Run, cluster: LocalCluster, *words: object, code: int = 0) -> Any:
    return json.loads(run("ha", *words, "--json", "-n", cluster.name_servers, code=code).stdout)


def parts(run: Run, cluster: LocalCluster, *words: object) -> dict[int, Any]:
    return {row["id"]: row for row in ha_json(run, cluster, "status", *words)}


@spec("V19")
def test_status_shows_permissions_with_time_and_reason(run: Run, elected: LocalCluster) -> None:
    master, slave = elected.master().broker_id, 1 - elected.master().broker_id
    rows = parts(run, elected)
    serves, copies = rows[master]["failover"], rows[slave]["failover"]
    assert (serves["stage"], serves["mayRead"], serves["mayWrite"], serves["mode"]) == ("serving", True, True, "elect")
    assert (copies["stage"], copies["mayRead"], copies["mayWrite"]) == ("slave", False, False)
    assert (serves["master"], serves["inSync"], serves["registry"]) == (master, [0, 1], "up")
    assert 0 < serves["leaseLeftMs"] <= serves["leaseMs"]
    assert abs(serves["sinceMs"] - time.time() * 1000) < 300_000
    lag = {member["brokerId"]: (member["lagBytes"], member["lagMs"]) for member in serves["members"]}
    assert lag == {master: (None, None), slave: (0, 0)}
    assert (rows[slave]["lagBytes"], rows[master]["lagBytes"]) == (0, None)
    text = run("ha", "status", "-n", elected.name_servers).stdout
    assert f"broker-a: mode elect, epoch {serves['epoch']}, master {master}, in sync 0, 1" in text
    assert "\nsession 2 s, lease 1.3 s, 2 checks\n" in text
    assert "read and write" in text


@spec("V18")
def test_switch_moves_the_mastership_and_reports_its_duration(run: Run, elected: LocalCluster) -> None:
    source = elected.master().broker_id
    target = 1 - source
    done = ha_json(run, elected, "switch", "--broker", "broker-a", "--to", target)
    assert (done["from"], done["to"]) == (source, target)
    assert done["seconds"] > 0
    assert elected.master().broker_id == target
    elected.wait_in_sync()
    # Asked for again it is harmless.
    text = run("ha", "switch", "--broker", "broker-a", "--to", target, "-n", elected.name_servers).output
    assert f"broker {target} is the master already" in text


def test_master_that_is_about_to_stop_switches_to_another_member(run: Run, elected: LocalCluster) -> None:
    elected.wait_in_sync()
    master = elected.master()
    slave = elected.broker(broker_id=1 - master.broker_id)
    nothing = ha_json(run, elected, "switch", "--away", "--address", slave.address)
    assert (nothing["from"], nothing["to"], nothing["text"]) == (slave.broker_id, None, "is not the master")
    text = run("ha", "switch", "--away", "--address", slave.address, "-n", elected.name_servers).output
    assert text == f"broker-a: broker {slave.broker_id} is not the master; nothing is done\n"
    assert elected.master().broker_id == master.broker_id
    done = ha_json(run, elected, "switch", "--away", "--address", master.address)
    assert (done["from"], done["to"]) == (master.broker_id, slave.broker_id)
    assert elected.master().broker_id == slave.broker_id
    elected.wait_in_sync()


def test_master_without_another_member_in_sync_stays_the_master(run: Run, elected: LocalCluster) -> None:
    elected.wait_in_sync()
    master = elected.master()
    slave = elected.broker(broker_id=1 - master.broker_id)
    slave.kill()
    elected.wait_until(lambda: len(parts(run, elected)[master.broker_id]["failover"]["inSync"]) == 1)
    try:
        words = ["ha", "switch", "--away", "--address", master.address, "-n", elected.name_servers]
        assert "no other member of group broker-a is in sync" in run(*words, code=1).output
        assert elected.master().broker_id == master.broker_id
        # Repeated until the other member is back.
        with ThreadPoolExecutor(1) as beside:
            started = beside.submit(slave.start)
            assert json.loads(run(*words, "--wait", 300, "--json").stdout)["to"] == slave.broker_id
            started.result()
    finally:
        if not slave.is_running:
            slave.start()
        elected.wait_in_sync()


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (["switch", "--broker", "broker-a"], 2, "either --to or --away is needed"),
        (["switch", "--away", "--to", 1, "--address", NOBODY], 2, "either --to or --away is needed"),
        (["switch", "--away", "--broker", "broker-a"], 2, "--away needs one --address"),
        (["switch", "--away", "--address", NOBODY], 1, "no broker given with --address answers"),
        (["switch", "--broker", "broker-a", "--to", 7], 1, "broker 7 is not a member of the group"),
        (["switch", "--broker", "broker-z", "--to", 1], 1, "no broker of group broker-z was found"),
        (["force-master", "--broker", "broker-a", "--id", 7], 1, "broker 7 of group broker-a is unknown"),
        (["history", "--broker", "broker-z"], 1, "through a registry (--registry ADDRESS)"),
        (["history"], 2, "name it with --broker, or one of its brokers with --address"),
        (["history", "--address", NOBODY], 1, "no broker given with --address answers"),
        (["history", "--address", "nowhere"], 2, "HOST:PORT is expected"),
        (["history", "--broker", "broker-a", "--registry", "etcd://x"], 2, "etcd"),
    ],
)
def test_impossible_command_is_refused_with_the_reason(
    run: Run, elected: LocalCluster, words: list[object], code: int, reason: str
) -> None:
    assert reason in str(run("ha", *words, "-n", elected.name_servers, code=code).output)


def test_force_master_is_refused_while_the_master_is_live(run: Run, elected: LocalCluster) -> None:
    slave = 1 - elected.master().broker_id
    words = ["ha", "force-master", "--broker", "broker-a", "--id", slave, "--yes", "-n", elected.name_servers]
    assert "is alive; use switch" in run(*words, code=1).output


@pytest.mark.parametrize("command", [["switch", "--to", 1], ["force-master", "--id", 1], ["history"]])
def test_roles_of_a_group_without_registry_are_fixed(run: Run, cluster: LocalCluster, command: list[object]) -> None:
    result = run("ha", *command, "--broker", "broker-a", "-n", cluster.name_servers, code=2)
    assert "fixed by its brokers' settings" in result.output
    assert all(row["failover"] is None for row in ha_json(run, cluster, "status"))


def test_absent_member_is_reported_and_its_history_is_missing(run: Run, elected: LocalCluster) -> None:
    slave = elected.broker(broker_id=1 - elected.master().broker_id)
    slave.kill()
    elected.wait_until(lambda: len(parts(run, elected)[1 - slave.broker_id]["failover"]["inSync"]) == 1)
    try:
        assert parts(run, elected)[slave.broker_id]["failover"] is None
        assert (
            f"broker {slave.broker_id} is a member and is not live"
            in run("ha", "status", "-n", elected.name_servers).stdout
        )
        printed = run("ha", "history", "--broker", "broker-a", "-n", elected.name_servers)
        assert f"broker {slave.broker_id} does not answer" in printed.output
        words = ["ha", "switch", "--broker", "broker-a", "--to", slave.broker_id, "-n", elected.name_servers]
        assert "not in sync" in run(*words, code=1).output
    finally:
        slave.start()
        elected.wait_in_sync()


@spec("F30")
def test_master_is_forced_to_read_again_when_its_reader_is_gone_for_good(run: Run, reading: LocalCluster) -> None:
    master = reading.broker()
    reading.broker(broker_id=1).kill()
    master.start()
    node = master.node
    reading.wait_until(lambda: node.failover is not None and node.failover.member.stage.value == "awaiting hand-back")
    # Nobody of the group is registered: the registry knows where they are.
    words = ["ha", "force-master", "--broker", "broker-a", "--id", 0, "-n", reading.name_servers]
    with_registry = [*words, "--registry", reading.registry, "--secret-file", reading.secret_file]
    assert reading.registry
    # The dead reader's live node must be gone before it may be forced.
    reading.wait_until(lambda: set(node.failover.member.view.live or {0, 1}) == {0} if node.failover else False)
    refused = run(*with_registry, code=130, typed="n\n")
    assert "that did not reach this broker or the registry" in refused.output
    assert node.failover is not None
    assert not node.failover.is_holder
    done = json.loads(run(*with_registry, "--yes", "--json").stdout)
    assert "delivered again" in done["price"]
    assert node.failover.is_holder
    assert "takes reading back" in done["text"]


def test_unregistered_returning_master_is_found_through_its_slave(run: Run, reading: LocalCluster) -> None:
    words = ["ha", "status", "-n", reading.name_servers]
    assert "read from broker 1" in run(*words).stdout
    reading.broker().start()
    rows = parts(run, reading)
    assert rows[0]["failover"] is not None or rows[0]["state"] == "away"
    reading.wait_until(lambda: parts(run, reading)[0]["failover"] is not None)
    reading.wait_in_sync()
    texts = [entry["text"] for entry in ha_json(run, reading, "history", "--broker", "broker-a")]
    order = ["broker 1 reads for 0", "handing over to broker 0", "handed its offsets over"]
    places = [next(at for at, text in enumerate(texts) if part in text) for part in order]
    assert places == sorted(places)
    assert len(ha_json(run, reading, "history", "--broker", "broker-a", "--count", 3)) == 3


def test_status_works_with_the_registry_alone(run: Run, elected: LocalCluster) -> None:
    refused = run("ha", "status", "--registry", elected.registry, "-n", "127.0.0.1:1", code=1)
    assert "--secret-file" in refused.output
    words = ["status", "--registry", elected.registry, "--secret-file", elected.secret_file, "--json", "-n", NOBODY]
    rows = json.loads(run("ha", *words).stdout)
    assert [row["id"] for row in rows] == [0, 1]
    assert not any(row["registered"] for row in rows)
    assert "no process answers at 127.0.0.1:1" in run("ha", "status", "-n", "127.0.0.1:1", code=1).output


@pytest.mark.parametrize("way", ["--registry", "--address"])
def test_roles_are_changed_with_the_registry_or_one_broker_alone(run: Run, elected: LocalCluster, way: str) -> None:
    elected.wait_in_sync()
    target = 1 - elected.master().broker_id
    asked = elected.broker(broker_id=target).address  # the slave: the master is found through it
    registry = ["--registry", elected.registry, "--secret-file", elected.secret_file, "--broker", "broker-a"]
    found = registry if way == "--registry" else ["--address", asked]
    words = [*found, "-n", NOBODY]
    done = run("ha", "switch", "--to", target, "--json", *words)
    assert json.loads(done.stdout)["to"] == target
    assert f"no process answers at {NOBODY}" in done.stderr
    assert elected.master().broker_id == target
    entries = json.loads(run("ha", "history", "--json", *words).stdout)
    assert {broker_id for entry in entries for broker_id in entry["brokers"]} == {0, 1}, "both were asked"
    refused = run("ha", "force-master", "--id", 1 - target, "--yes", *words, code=1)
    assert "is alive; use switch" in refused.output
    elected.wait_in_sync()
    (row,) = json.loads(run("ha", "verify", "--json", *words).stdout)
    assert (row["members"], row["equal"]) == ("0, 1", True)


@pytest.mark.parametrize("command", [["switch", "--to", 1], ["force-master", "--id", 1], ["history"], ["verify"]])
def test_error_lists_all_ways_to_find_brokers(run: Run, command: list[object]) -> None:
    words = [] if command == ["verify"] else ["--broker", "broker-a"]
    failed = run("ha", *command, *words, "-n", NOBODY, code=1).output
    assert f"no process answers at {NOBODY}" in failed
    assert all(option in failed for option in ("--namesrv", "--registry", "--address"))


def test_address_of_another_group_is_wrong_usage(run: Run, elected: LocalCluster) -> None:
    words = ["--address", elected.master().address, "--broker", "broker-z", "-n", elected.name_servers]
    done = run("ha", "history", *words, code=2)
    assert "the brokers given with --address belong to group broker-a, not to broker-z" in done.output


def test_addresses_of_two_groups_are_wrong_usage(run: Run, cluster: LocalCluster) -> None:
    addresses = [word for name in ("broker-a", "broker-b") for word in ("--address", cluster.broker(name).address)]
    done = run("ha", "history", *addresses, "-n", cluster.name_servers, code=2)
    assert "several groups: broker-a, broker-b" in done.output


def test_timelines_are_merged_in_order_without_duplicates() -> None:
    first = [{"ms": 5, "epoch": 1, "text": "a"}, {"ms": 9, "epoch": 2, "text": "c"}, {"ms": 9, "epoch": 2, "text": "b"}]
    second = [{"ms": 7, "epoch": 1, "text": "x"}, {"ms": 9, "epoch": 2, "text": "c"}]
    found = merged([(0, first), (1, second)])
    assert [(entry["text"], entry["brokers"]) for entry in found] == [("a", [0]), ("x", [1]), ("c", [0, 1]), ("b", [0])]
