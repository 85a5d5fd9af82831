"""`tandemq up`: a cluster prints its addresses, works, stops on Ctrl-C, and keeps its data."""

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq import ConsumeFrom, Message
from tandemq.cli.up import ports_of
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.config.tls import ClientTls
from tandemq.groupdb.database import GroupDatabase
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.children import METRICS_PORT_DISTANCE
from tests.blackbox.certificates import Authority
from tests.blackbox.programs import wait_until
from tests.spec import spec
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.system
STORES = "stores, configuration and logs: {}; Ctrl-C stops it\n"
"""The last line of the output when the cluster is ready."""


@contextmanager
def started(data: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a cluster of one group, and yield it with its parsed output; kill it if the test did not stop it."""
    words = ["up", "--brokers", "1", *(more or ("--slaves", "0")), "--port", "0", "--data", str(data), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def test_cluster_runs_until_interrupted_and_its_data_are_kept(tmp_path: Path) -> None:
    with started(tmp_path) as (process, printed):
        with BlockingProducer(printed["nameServer"], group="g") as producer:
            assert producer.send(Message("T", b"kept")).status.name == "SEND_OK"
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert len(printed["brokers"]) == 1
    assert not [one for one in printed["brokers"] if try_request(one["address"], Command(RequestCode.TANDEM_PEER_INFO))]

    with started(tmp_path) as (process, printed):
        answer = try_request(printed["brokers"][0]["address"], Command(RequestCode.TANDEM_PEER_INFO))
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert answer is not None
    assert int(answer.fields["logEnd"]) > 0


def page_of(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


@spec("O13")
def test_metrics_of_every_process_are_served_and_prometheus_is_told_where(tmp_path: Path) -> None:
    with started(tmp_path) as (process, printed):
        (broker,) = printed["brokers"]
        assert "rocketmq_storage_size_bytes" in page_of(broker["metrics"])
        assert 'tandemq_namesrv_brokers{cluster="DefaultCluster"} 1' in page_of(printed["nameServerMetrics"])
        targets = json.dumps([printed["nameServerMetrics"], broker["metrics"]])
        assert f"      - targets: {targets}\n" in (tmp_path / "prometheus.yml").read_text(encoding="utf-8")
        stop(process)
    with started(tmp_path, "--slaves", "0", "--no-metrics") as (process, printed):
        assert (printed["brokers"][0]["metrics"], printed["nameServerMetrics"]) == ("", "")
        assert not (tmp_path / "prometheus.yml").exists()
        stop(process)


@pytest.mark.services
def test_everything_is_encrypted_with_tls(run: Run, tmp_path: Path) -> None:
    """Clients, the registry, replication and commands; connections without TLS are closed. A restart is the same."""
    made: bytes | None = None
    for body in (b"first", b"second"):
        with started(tmp_path, "--slaves", "1", "--mode", "elect", "--tls") as (process, printed):
            authority = Path(printed["tlsCa"])
            assert made in (None, authority.read_bytes())
            made = authority.read_bytes()
            tls = ClientTls(ca_file=str(authority))
            with BlockingProducer(printed["nameServer"], group="g", tls=tls) as producer:
                assert producer.send(Message("T", body)).status.name == "SEND_OK"
            options = ("--tls-ca", str(authority))
            rows = json.loads(run(*options, "ha", "status", "--json", "-n", printed["nameServer"]).stdout)
            assert [link["secured"] for row in rows for link in row["slaves"]] == ["secret TLSv1.3"]
            for address in (printed["nameServer"], *(broker["address"] for broker in printed["brokers"])):
                assert try_request(address, Command(RequestCode.TANDEM_PEER_INFO), tls) is not None
                assert try_request(address, Command(RequestCode.TANDEM_PEER_INFO)) is None
            stop(process)


def test_given_certificates_are_used_and_those_that_do_not_fit_are_refused(run: Run, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("given")
    options = ("--tls-cert", cert, "--tls-key", key, "--tls-ca", str(authority.ca_file))
    with started(tmp_path / "data", "--slaves", "1", *options) as (process, printed):
        assert printed["tlsCa"] == str(authority.ca_file)
        tls = ClientTls(ca_file=printed["tlsCa"])
        with BlockingProducer(printed["nameServer"], group="g", tls=tls) as producer:
            assert producer.send(Message("T", b"sent")).status.name == "SEND_OK"
        assert try_request(printed["nameServer"], Command(RequestCode.TANDEM_PEER_INFO)) is None
        assert not (tmp_path / "data" / "tls").exists()
        stop(process)
    foreign = authority.issue("foreign", "brokers.example")
    for words, what in (
        (("--tls-cert", cert), "--tls-cert, --tls-key and --tls-ca need each other"),
        (("--tls-cert", foreign[0], "--tls-key", foreign[1], *options[4:]), "certificate is not valid for '127.0.0.1'"),
    ):
        refused = run("up", "--data", str(tmp_path / "none"), *words, code=2)
        assert what in refused.stderr
        assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("groups", [26])
def test_ports_of_all_brokers_differ(groups: int) -> None:
    ports = [port for group in range(groups) for member in range(10) for port in ports_of(group, member)]
    metrics = [ports_of(group, member)[0] + METRICS_PORT_DISTANCE for group in range(groups) for member in range(10)]
    ports += metrics
    fast = [listen - 2 for group in range(groups) for member in range(10) for listen in ports_of(group, member)[:1]]
    assert len({*ports, *fast}) == len(ports) + len(fast)
    assert ports_of(0, 0) == (10911, 10912)


def test_interrupt_during_the_start_leaves_no_process_running(tmp_path: Path) -> None:
    words = ["up", "--brokers", "1", "--slaves", "0", "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            # The name server's log is made when it is started, before the brokers are.
            deadline = time.monotonic() + 120
            while not (tmp_path / "namesrv.log").exists():
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()


def next_error_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of standard error, which must arrive."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], 120)[0], "it said nothing"
    return process.stderr.readline()


@pytest.mark.parametrize("mode", ["elect", "slave-consume", "static"])
def test_authenticated_slave_serves_when_the_master_is_killed(run: Run, tmp_path: Path, mode: str) -> None:
    with started(tmp_path, "--mode", mode) as (process, printed):
        master = printed["brokers"][0]
        rows = json.loads(run("ha", "status", "--json", "-n", printed["nameServer"]).stdout)
        assert [link["secured"] for row in rows for link in row["slaves"]] == ["secret"]
        with BlockingProducer(printed["nameServer"], group="g") as producer:
            assert producer.send(Message("T", b"before")).status.name == "SEND_OK"
            expected = [b"before"]
            os.kill(master["pid"], signal.SIGKILL)
            said = next_error_line(process)
            assert said.startswith("broker-a-0 exited: killed by SIGKILL; broker-a continues with broker-a-1.")
            assert f"tandemq broker -c {tmp_path / 'broker-a-0.conf'}" in said
            if mode == "elect":
                producer.send(Message("T", b"after"))
                expected.append(b"after")
        with BlockingConsumer(
            printed["nameServer"], group="c", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            found = [consumer.receive(timeout_s=60) for _ in expected]
            assert sorted(one.body for one in found if one is not None) == sorted(expected)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("broker", "broker-a-0 exited: killed by SIGKILL; broker-a has no member left"),
        ("name server", "the name server exited: killed by SIGKILL"),
    ],
)
def test_cluster_stops_when_a_whole_group_or_the_name_server_has_exited(tmp_path: Path, who: str, said: str) -> None:
    with started(tmp_path) as (process, printed):
        pid = printed["brokers"][0]["pid"] if who == "broker" else printed["nameServerPid"]
        os.kill(pid, signal.SIGKILL)
        assert process.wait(120) == 1
        assert said in next_error_line(process)


def test_cluster_continues_when_its_last_process_of_a_group_exits_and_a_restarted_one_serves(tmp_path: Path) -> None:
    with started(tmp_path, "--slaves", "1", "--mode", "static") as (process, printed):
        master, slave = printed["brokers"]
        os.kill(master["pid"], signal.SIGKILL)
        assert "continues with broker-a-1." in next_error_line(process)
        words = ["broker", "-c", str(tmp_path / "broker-a-0.conf"), "--json", "--while-stdin"]
        with subprocess.Popen(
            [sys.executable, "-m", "tandemq", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as restarted:
            try:
                assert restarted.stdout is not None
                address = json.loads(restarted.stdout.readline())["address"]
                wait_until(lambda: address in addresses(printed["nameServer"]), "the restarted broker is registered")
                os.kill(slave["pid"], signal.SIGKILL)
                assert f"broker-a-1 exited: killed by SIGKILL; broker-a continues with {address}." in next_error_line(
                    process
                )
                with BlockingProducer(printed["nameServer"], group="g") as producer:
                    producer.send(Message("T", b"after"))
                assert process.poll() is None
            finally:
                restarted.kill()
        assert process.wait(60) == 1
        assert "broker-a has no member left" in next_error_line(process)


def addresses(name_server: str) -> list[str]:
    """Return the addresses of the brokers that a name server lists."""
    answer = try_request(name_server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer is not None
    return [one for group in loads(answer.body)["brokerAddrTable"].values() for one in group["brokerAddrs"].values()]


def test_mode_of_existing_data_is_kept(tmp_path: Path) -> None:
    words = ["up", "--brokers", "1", "--port", "0", "--data", str(tmp_path), "--json"]
    for more, mode in (
        (["--mode", "slave-consume"], "slave-consume"),
        ([], "slave-consume"),
        (["--mode", "elect"], "elect"),
    ):
        with subprocess.Popen(
            [sys.executable, "-m", "tandemq", *words, *more], stdout=subprocess.PIPE, text=True
        ) as up:
            try:
                assert up.stdout is not None
                printed = json.loads(up.stdout.readline())
                assert (printed["mode"], printed["registry"]) == (mode, f"namesrv://{printed['nameServer']}")
                up.send_signal(signal.SIGINT)
                assert up.wait(120) == 0
            finally:
                up.kill()


def failover_status(broker: dict[str, Any]) -> dict[str, Any]:
    answer = try_request(broker["address"], Command(RequestCode.TANDEM_FAILOVER_STATUS))
    assert answer is not None
    found: dict[str, Any] = loads(answer.body)
    return found


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0


@pytest.mark.timeout(120)
def test_groups_are_changed_with_ha_config_and_the_next_start_keeps_the_change(run: Run, tmp_path: Path) -> None:
    def shown() -> tuple[int, bool, list[tuple[str, int]]]:
        group = json.loads(run("ha", "config", "show", "broker-a", "--database", database, "--json").stdout)
        return group["revision"], group["applied"], [(one["role"], one["weight"]) for one in group["members"]]

    def followed(broker: dict[str, Any]) -> bool:
        return [one["weight"] for one in failover_status(broker)["members"]] == [100, 40]

    swapped = [("slave", 100), ("master", 40)]
    with started(tmp_path, "--slaves", "1", "--mode", "slave-consume") as (process, printed):
        database = printed["database"]
        registry = ["--registry", printed["registry"], "--secret-file", printed["secretFile"]]
        assert shown() == (1, True, [("master", 100), ("slave", 100)])
        members = ["--member", "0,role=slave", "--member", "1,role=master,weight=40"]
        run("ha", "config", "set", "broker-a", *members, "--database", database)
        run("ha", "config", "apply", "--database", database, *registry)
        for broker in printed["brokers"]:
            wait_until(lambda broker=broker: followed(broker), "the broker has the new weight")  # type: ignore[misc]
        run("ha", "switch", "--broker", "broker-a", "--to", 1, "-n", printed["nameServer"])
        assert [failover_status(broker)["isMaster"] for broker in printed["brokers"]] == [False, True]
        assert shown() == (2, True, swapped)
        stop(process)

    with started(tmp_path, "--slaves", "1") as (process, printed):
        assert printed["database"] == database
        assert shown() == (2, True, swapped)
        assert [failover_status(broker)["isMaster"] for broker in printed["brokers"]] == [False, True]
        assert all(map(followed, printed["brokers"]))
        stop(process)


def test_commands_for_the_groups_are_printed_and_work(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "with a space"
    words = ["up", "--brokers", "1", "--port", "0", "--data", str(data)]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = dict(line.rstrip().split(None, 1) for line in iter(process.stdout.readline, STORES.format(data)))
            change, apply = (shlex.split(lines[name])[1:] for name in ("configure", "apply"))
            run(*change[:-2], "broker-a", "--member", "1,priority=3")
            (done,) = json.loads(run(*apply, "--json").stdout)
            assert (done["group"], done["done"]) == ("broker-a", "written")
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()


@pytest.mark.timeout(120)
def test_console_beside_the_cluster_publishes_its_roles(tmp_path: Path) -> None:
    with started(tmp_path, "--slaves", "1", "--console") as (process, printed):
        link = printed["console"]["link"]
        assert "/setup/" in link
        with urllib.request.urlopen(link, timeout=60) as page:
            assert b"The user becomes an admin" in page.read()
        assert printed["database"] == f"sqlite:///{tmp_path / 'groups.db'}"
        with GroupDatabase(printed["database"]) as database:
            assert [one.broker_name for one in database.groups()] == ["broker-a"]
            wait_until(lambda: database.groups()[0].is_applied, "its configuration is applied")
        os.kill(printed["console"]["pid"], signal.SIGKILL)
        assert next_error_line(process).startswith("the console exited: killed by SIGKILL")
        assert try_request(printed["nameServer"], Command(RequestCode.GET_BROKER_CLUSTER_INFO)) is not None
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
