"""`tandemq broker` and `tandemq namesrv`: they print their addresses, stop on signals, and report startup errors."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq.run.local import LocalCluster
from tandemq.run.ports import ReservedPorts
from tests.spec import spec
from tests.unit.cli.conftest import Run

pytestmark = pytest.mark.system

ANY_PORTS = ("--set", "listenPort=0", "--set", "haListenPort=0", "--set", "bindAddress=127.0.0.1")


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a program with --json, and yield it with its parsed output."""
    command = [sys.executable, "-m", "tandemq", *words, "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_broker_prints_its_addresses_and_stops_on_a_signal(tmp_path: Path, signal_number: signal.Signals) -> None:
    with started("broker", *ANY_PORTS, "--set", f"storePathRootDir={tmp_path}") as (process, printed):
        assert (printed["brokerName"], printed["brokerId"], printed["pid"]) == ("broker-a", 0, process.pid)
        host, port = printed["address"].split(":")
        socket.create_connection((host, int(port)), 5).close()
        process.send_signal(signal_number)
        assert process.wait(120) == 0
    assert not (tmp_path / "abort").exists()


def test_name_server_stops_when_its_standard_input_is_closed(tmp_path: Path) -> None:
    words = ("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path}", "--while-stdin")
    with started(*words) as (process, printed):
        assert printed["address"].startswith("127.0.0.1:")
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0


def test_second_process_on_a_store_is_refused(tmp_path: Path, tandemq_broker: LocalCluster) -> None:
    store = tandemq_broker.broker().store
    command = [sys.executable, "-m", "tandemq", "broker", *ANY_PORTS, "--set", f"storePathRootDir={store}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"another process is using {store}" in done.stderr
    assert "give this one a directory of its own" in done.stderr


def test_second_name_server_on_a_directory_is_refused(run: Run, tmp_path: Path) -> None:
    words = ("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path}")
    with started(*words) as (first, _):
        printed = run(*words, code=1).stderr
        assert f"another process is using {tmp_path}" in printed
        assert "give this one a directory of its own: kvConfigPath" in printed
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 0
    with started(*words) as (_, told_again):
        assert told_again["address"]


@spec("H23")
@pytest.mark.parametrize("more", ["", "haListenPort=0\n"])
def test_brokers_whose_files_set_only_the_listen_port_run_beside_each_other(tmp_path: Path, more: str) -> None:
    """The replication port follows `listenPort`, as in RocketMQ; a 0 of 5.3 means the same."""
    with ExitStack() as running:
        for name in ("a", "b"):
            port = running.enter_context(closing(ReservedPorts())).reserve(-2, 1)
            path = tmp_path / f"{name}.conf"
            store = f"storePathRootDir={tmp_path / name}\nbindAddress=127.0.0.1\n"
            path.write_text(f"brokerName={name}\nlistenPort={port}\n{store}{more}")
            _, printed = running.enter_context(started("broker", "-c", str(path)))
            assert printed["address"] == f"127.0.0.1:{port}"
            assert printed["haAddress"] == f"127.0.0.1:{port + 1}"


@pytest.mark.parametrize(
    ("distance", "more", "what", "setting"),
    [
        (0, {}, "listenPort", "listenPort"),
        (-2, {}, "fast port, listenPort - 2", "listenPort"),
        (1, {}, "replication port, listenPort + 1, as haListenPort is not set", "listenPort"),
        (5, {"haListenPort": 5}, "replication port, haListenPort", "haListenPort"),
        (5, {"metricsPort": 5}, "metricsPort", "metricsPort"),
    ],
)
def test_port_in_use_is_reported_with_its_setting(
    run: Run, tmp_path: Path, distance: int, more: dict[str, int], what: str, setting: str
) -> None:
    with closing(ReservedPorts()) as ports, socket.socket() as other:
        port = ports.reserve(-2, 1, 5)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port + distance))
        other.listen()
        settings = {"bindAddress": "127.0.0.1", "listenPort": port, "storePathRootDir": tmp_path}
        settings |= {key: port + off for key, off in more.items()}
        printed = run("broker", *(f"--set={key}={value}" for key, value in settings.items()), code=2).stderr
    assert f"cannot listen on 127.0.0.1:{port + distance} ({what}): Address already in use" in printed
    assert f"stop it, or choose another port with --set {setting}=PORT" in printed


def test_address_of_another_machine_is_reported(run: Run, tmp_path: Path) -> None:
    words = ("--set", "bindAddress=192.0.2.1", "--set", "listenPort=0", "--set", f"storePathRootDir={tmp_path}")
    assert "bindAddress is not an address of this machine" in run("broker", *words, code=2).stderr


def test_port_in_use_exits_with_2(run: Run, tmp_path: Path, tandemq_broker: LocalCluster) -> None:
    port = tandemq_broker.address.split(":")[1]
    words = ("--set", f"listenPort={port}", "--set", "haListenPort=0", "--set", f"storePathRootDir={tmp_path / 's'}")
    printed = run("broker", *words, code=2).stderr
    assert f"cannot listen on 0.0.0.0:{port}" in printed
    assert "another process may use the port" in printed
    printed = run("namesrv", "--port", port, "--set", f"kvConfigPath={tmp_path / 'n'}", code=2).stderr
    assert "another process may use the port: stop it, or choose another port with --port PORT" in printed


def test_directory_of_another_broker_is_refused_with_exit_code_2(run: Run, tmp_path: Path) -> None:
    with LocalCluster(tmp_path) as cluster:
        store = cluster.broker().store
    words = (*ANY_PORTS, "--set", f"storePathRootDir={store}", "--set", "brokerName=broker-x")
    printed = run("broker", *words, code=2).stderr
    assert "is the store of DefaultCluster/broker-a/0, this broker is DefaultCluster/broker-x/0" in printed
    assert (store / "commitlog").parent.is_dir()


def test_directory_that_cannot_be_created_exits_with_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    printed = run("broker", *ANY_PORTS, "--set", f"storePathRootDir={tmp_path / 'file' / 'store'}", code=1).stderr
    assert f"storePathRootDir: the directory {tmp_path / 'file' / 'store'} cannot be made: Not a directory" in printed
    assert "check the device and the permissions of the file" in printed


def test_directory_that_is_not_writable_is_reported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The superuser may write anywhere, so the answer of the system is replaced.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    printed = run("broker", *ANY_PORTS, "--set", f"storePathRootDir={tmp_path}", code=1).stderr
    assert f"{tmp_path} is not writable" in printed
    assert "change its owner or choose another storePathRootDir" in printed


@pytest.mark.parametrize(
    ("file", "content", "printed"),
    [
        ("config/subscriptionGroup.json", b"{groups}", "config/subscriptionGroup.json is damaged: "),
        ("commitlog/00000000000000000000", b"four", "commitlog/00000000000000000000 is 4 bytes long"),
    ],
)
def test_damaged_file_is_reported_with_the_store_directory(
    run: Run, tmp_path: Path, file: str, content: bytes, printed: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir()
    path.write_bytes(content)
    found = run("broker", *ANY_PORTS, "--set", f"storePathRootDir={tmp_path}", code=1).stderr
    assert f"storePathRootDir {tmp_path}: {printed}" in found
    assert path.read_bytes() == content


def test_damaged_file_of_a_name_server_is_reported_with_its_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{values}")
    found = run("namesrv", "--port", "0", "--set", f"kvConfigPath={tmp_path}", code=1).stderr
    assert f"kvConfigPath {tmp_path}: kvConfig.json: " in found


@pytest.mark.parametrize("call", ["pwrite", "write"])
def test_full_disk_at_the_start_is_reported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(os, call)

    def full(fd: int, *rest: Any) -> Any:
        if Path(f"/proc/self/fd/{fd}").readlink().is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, *rest)

    monkeypatch.setattr(os, call, full)
    printed = run("broker", *ANY_PORTS, "--set", f"storePathRootDir={tmp_path}", code=1).stderr
    assert "no space left" in printed
    assert "free space" in printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("listenPrt = 1\n", "did you mean listenPort?"),
        ("listenPort = many\n", "is not a whole number"),
        ("brokerRole = KING\n", "is not a role"),
    ],
)
def test_invalid_configuration_error_names_line_key_and_remedy(
    run: Run, tmp_path: Path, text: str, printed: str
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    found = run("broker", "-c", path, code=2).stderr
    assert printed in found
    assert f"{path}:1" in found


def test_missing_file_and_setting_without_value_are_reported(run: Run, tmp_path: Path) -> None:
    assert "No such file" in run("broker", "-c", tmp_path / "none", code=2).stderr
    assert "KEY=VALUE is expected" in run("broker", "--set", "listenPort", code=2).stderr
    (tmp_path / "latin").write_bytes(b"brokerName=\xff")
    assert "not UTF-8" in run("namesrv", "-c", tmp_path / "latin", code=2).stderr
