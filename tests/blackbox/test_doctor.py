"""`tandemq doctor` as a process, about a name server and a broker that run."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import __version__
from tests.blackbox.programs import Program, wait_until
from tests.unit.boundary.registries import NameServerPlace

SECRET = "a secret of the group, long enough\n"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[str, Program]]:
    """Name server and broker with a secret."""
    place = NameServerPlace(tmp_path / "namesrv")
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o600)
    names = f"127.0.0.1:{place.port}"
    program = Program(tmp_path / "broker", namesrvAddr=names, haSecretFile=tmp_path / "secret")
    yield names, program
    program.end()
    place.close()


def doctor(*words: object, code: int) -> dict[str, dict[str, Any]]:
    """Run the command, and return its findings of the broker and its files by check and place."""
    command = [sys.executable, "-m", "tandemq", "--json", "doctor", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == sum(finding["level"] == "problem" for finding in found["findings"])
    return {f"{finding['check']} {finding['where']}": finding for finding in found["findings"]}


def test_broker_that_runs_is_found_healthy_and_its_faults_are_named(
    tmp_path: Path, broker: tuple[str, Program]
) -> None:
    names, program = broker
    conf = tmp_path / "broker" / "broker.conf"
    wait_until(lambda: "registered as broker-a" in program.log_text(), "it is registered")
    found = doctor("--config", conf, code=0)
    address = f"127.0.0.1:{program.port}"
    for key, text in {
        f"store {tmp_path / 'broker' / 'store'}": "in use by a broker",
        f"port {address} (listenPort)": "in use, as the broker runs",
        "secret haSecretFile": "private",
        f"name-server {names}": "registered: 1 broker",
        "health broker-a": "healthy, 1 broker",
        "address broker-a/0": f"{address} answers",
        "clock broker-a/0": "agrees",
        "secret broker-a/0": "it has the secret of --config",
        "secret haSecretFile of broker-a": "members with one: broker-a/0",
    }.items():
        assert (found[key]["level"], text in found[key]["text"]) == ("ok", True), found[key]
    version = found["version the cluster"]
    assert version["level"] == "ok" and version["text"].count(f"TandemQ {__version__}") == 3, version

    other = tmp_path / "other.conf"
    (tmp_path / "another").write_text("another secret, which is long enough\n")
    (tmp_path / "another").chmod(0o644)
    settings = conf.read_text().replace(str(tmp_path / "secret"), str(tmp_path / "another"))
    other.write_text(settings.replace(str(tmp_path / "broker" / "store"), str(tmp_path / "elsewhere")))
    found = doctor("--config", other, code=3)
    assert "all users have access" in found["secret haSecretFile"]["text"]
    assert "chmod 600" in found["secret haSecretFile"]["todo"]
    assert found[f"port {address} (listenPort)"]["level"] == "problem"
    (tmp_path / "another").chmod(0o600)
    found = doctor("--config", other, code=3)
    assert (found["secret broker-a/0"]["level"], found["secret haSecretFile"]["level"]) == ("problem", "ok")

    program.freeze()
    found = doctor("--namesrv", names, code=3)
    assert "does not answer from here" in found["address broker-a/0"]["text"]
    assert found["health broker-a"]["level"] == "problem"
    program.thaw()
