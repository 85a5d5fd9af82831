"""A rolling update of the Helm chart: its pods as processes, whose addresses change, under continuous sends."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tests.blackbox.machines import SMALL
from tests.blackbox.programs import wait_until
from tests.blackbox.traffic import TOPIC, Traffic
from tests.packaging import helm
from tests.packaging.pods import Kubernetes, Pod
from tests.packaging.resolved import resolver

pytestmark = pytest.mark.timeout(1800)


VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "stable names": {"broker": {"address": "dns"}},
    "pair": {"groups": [{"name": "broker-a", "replicas": 2}]},
    "slave-consume": {"groups": [{"name": "broker-a", "replicas": 2, "mode": "slave-consume"}]},
}


@pytest.fixture(params=list(VALUES))
def kubernetes(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    """The chart with one of the sets of values and small files, installed; this process resolves its names."""
    chosen = VALUES[request.param]
    values = tmp_path / "values.json"
    values.write_text(json.dumps(chosen | {"broker": {"extraConfig": SMALL, **chosen.get("broker", {})}}))
    made = Kubernetes(tmp_path, helm.documents("--values", str(values)))
    monkeypatch.setattr(socket, "getaddrinfo", resolver(made.hosts))
    try:
        for pod in made.pods:
            pod.start()
        wait_until(
            lambda: all(pod.is_ready() for pod in (*made.of("registry"), *made.of("namesrv"))), "names are there"
        )
        made.run_job()
        wait_until(lambda: is_healthy(made), "the group is healthy")
        yield made
    finally:
        for pod in made.pods:
            print(pod.name, pod.last_lines())
        made.close()


def is_healthy(kubernetes: Kubernetes) -> bool:
    """Return whether all members are there and in sync."""
    check = kubernetes.of("broker")[0].exec("tandemq", "ha", "check", "--broker", "broker-a")
    return check.stdout.startswith(f"HEALTHY: 1 group, {len(kubernetes.of('broker'))} brokers")


def name_servers(pod: Pod) -> str:
    pod.run("topic", "create", TOPIC, "--queues=4")
    return pod.environ["TANDEMQ_NAMESRV"]


def knows_all_brokers(kubernetes: Kubernetes, pod: Pod) -> bool:
    """Return whether a name server has routes again."""
    listed = pod.exec("tandemq", "cluster", "list", f"--namesrv={pod.address}:9876", "--json")
    return listed.returncode == 0 and len(json.loads(listed.stdout)) == len(kubernetes.of("broker"))


def send_with_new_client(kubernetes: Kubernetes) -> None:
    """A client that has just started finds the group too."""
    with BlockingProducer(kubernetes.pods[0].environ["TANDEMQ_NAMESRV"], group="late") as producer:
        assert producer.send(Message(TOPIC, b"late")).status.name == "SEND_OK"


def test_rolling_update_with_other_addresses_fails_no_send_and_loses_nothing(kubernetes: Kubernetes) -> None:
    brokers = kubernetes.of("broker")
    before = [pod.address for pod in brokers]
    with Traffic(name_servers(brokers[0])) as running:
        running.wait_for_more()
        # From the last ordinal down, each after the one before is ready.
        printed = [pod.replace() for pod in reversed(brokers)]
        assert any("accepts messages" in text for text in printed), printed
        running.wait_for_more()
        for pod in (*kubernetes.of("registry"), *kubernetes.of("namesrv")):
            pod.replace()
            send_with_new_client(kubernetes)
            running.wait_for_more()
            # minReadySeconds: until the brokers have registered there again.
            wait_until(partial(knows_all_brokers, kubernetes, pod), f"{pod.name} has the routes")
        wait_until(lambda: is_healthy(kubernetes), "the group is healthy")
        running.wait_for_more()
        running.stop_producing()
        assert running.failed == []
    assert not set(before) & {pod.address for pod in brokers}


@pytest.mark.parametrize("kubernetes", ["defaults"], indirect=True)
def test_member_that_is_stopped_while_the_registry_is_replaced_hands_over_later(kubernetes: Kubernetes) -> None:
    """As `helm upgrade` with another image: Kubernetes updates each StatefulSet without waiting for others."""
    brokers, names = kubernetes.of("broker"), [*kubernetes.of("registry"), *kubernetes.of("namesrv")]
    # The first one to be stopped is the master.
    last = brokers[2]
    last.run("ha", "switch", "--broker=broker-a", "--to=2")
    with Traffic(name_servers(last)) as running, ThreadPoolExecutor(1) as beside:
        running.wait_for_more()
        for pod in names:
            pod.delete()
        stopped = beside.submit(last.delete)
        running.wait_for_more()
        assert not stopped.done()
        for pod in names:
            pod.start()
        assert "accepts messages" in stopped.result()
        last.start()
        for pod in (*names, last):
            pod.wait_ready()
        for pod in brokers[1::-1]:
            pod.replace()
        wait_until(lambda: is_healthy(kubernetes), "the group is healthy")
        running.wait_for_more()
        running.stop_producing()
        assert running.failed == []
