"""Clients, commands and the console of one version at servers of the other one."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandemq.coordination.registry.records import Mode
from tandemq.run.children import Child, ChildCluster
from tests.blackbox.programs import wait_until
from tests.blackbox.test_console_tls import make_token
from tests.versions import client, filled
from tests.versions.filled import VersionedCluster
from tests.versions.world import TREE, Version

pytestmark = pytest.mark.timeout(600)
SETTINGS = {**filled.SETTINGS, "messageDelayLevel": "1s 2s"}
BROKER = "broker-a"
COMMANDS = (
    ("topic", "create", "Commands", "--queues", "2"),
    ("topic", "list", "--json"),
    ("message", "send", "Commands", "first", "--key", "k1", "--json"),
    ("topic", "show", "Commands", "--json"),
    ("message", "query", "Commands", "--key", "k1", "--json"),
    ("message", "tail", "Commands", "--from", "earliest", "--count", "1", "--json"),
    ("group", "create", "commanders", "--retry-max", "5"),
    ("group", "list", "--json"),
    ("group", "show", "commanders", "--json"),
    ("offset", "reset", "commanders", "Commands", "--to", "latest", "--yes"),
    ("offset", "show", "commanders", "--json"),
    ("cluster", "list", "--json"),
    ("cluster", "broker-config", BROKER, "--json"),
    ("quota", "set", "topic", "Commands", "--messages", "1000"),
    ("quota", "list", "--json"),
    ("quota", "delete", "topic", "Commands"),
    ("acl", "init"),
    ("acl", "user", "create", "shop"),
    ("acl", "user", "list", "--json"),
    ("acl", "allow", "shop", "Topic:Commands", "--action", "Pub"),
    ("acl", "list", "--json"),
    ("ha", "status", "--json"),
    ("ha", "check", "--broker", BROKER),
    ("ha", "history", "--broker", BROKER, "--json"),
    ("ha", "verify", "--broker", BROKER, "--json"),
    ("ha", "scrub", "--broker", BROKER, "--json"),
    ("ha", "switch", "--broker", BROKER, "--to", "1"),
    ("ha", "switch", "--broker", BROKER, "--to", "0"),
    ("ha", "check", "--broker", BROKER),
    ("topic", "delete", "Commands", "--yes"),
    ("group", "delete", "commanders", "--yes"),
)
"""Each succeeds, one after the other; `ha check` once the slave has a link to its new master."""


def use_client(version: Version, name_servers: str, topic: str) -> dict[str, Any]:
    """Run `client.py` with a version; return what it prints."""
    isolated = [word for word in version.program if word == "-I"]
    words = [version.interpreter, *isolated, client.__file__, name_servers, topic]
    found: dict[str, Any] = json.loads(filled.run(words))
    return found


def check_client(found: dict[str, Any]) -> None:
    assert found == {
        "sent": ["SEND_OK"],
        "pushed": True,
        "popped": True,
        "pulled": True,
        "committed": True,
        "by_key": ["plain-7"],
        "by_id": "plain-7",
        "stored": client.PLAIN + client.BATCH + 3,
        "is_made": True,
        "lag": 0,
        "brokers": [BROKER],
    }


def use_commands(version: Version, name_servers: str) -> dict[str, Any]:
    """Run all commands; return the JSON of those that print some, by their first words."""
    printed: dict[str, Any] = {}
    for words in COMMANDS:
        command = version.command(*words, "--namesrv", name_servers)
        if words[:2] == ("ha", "check"):
            wait_until(partial(filled.succeeds, command), "the group is healthy")
        output = filled.run(command)
        if words[-1] == "--json":
            printed[" ".join(words[:2])] = json.loads(output)
    return printed


def check_commands(printed: dict[str, Any]) -> None:
    assert "Commands" in printed["topic list"]
    assert printed["message tail"]["body"] == "first"
    assert [message["body"] for message in printed["message query"]] == ["first"]
    assert "commanders" in json.dumps(printed["group list"])
    assert [user["user"] for user in printed["acl user"]] == ["admin", "shop"]


def use_console(version: Version, found: ChildCluster, directory: Path) -> None:
    """Start a console, and read pages of its API, and make a topic."""
    url = f"sqlite:///{directory / 'console.db'}"
    token = make_token(url)
    words = ["console", "--port", "0", "--namesrv", found.name_servers, "--database", url]
    child = Child("console", directory, lambda: words)
    version.install(child)
    child.start()
    try:
        for method, path, body in (
            ("POST", "/topics", {"name": "Pages", "queues": 3}),
            ("GET", "/cluster", None),
            ("GET", "/topics", None),
            ("GET", "/topics/Pages", None),
            ("GET", "/consumer-groups", None),
        ):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(f"http://{child.address}/api/v1{path}", data, headers, method=method)
            with urllib.request.urlopen(request, timeout=60) as response:
                answer = json.load(response)
            assert answer, path
            if path == "/cluster":
                assert BROKER in json.dumps(answer)
    finally:
        assert child.stop(), child.last_lines()


@pytest.mark.slow
@pytest.mark.parametrize("servers_are", ["last release", "this tree"])
def test_clients_commands_and_console_of_one_version_work_with_servers_of_the_other(
    tmp_path: Path, old: Version, servers_are: str
) -> None:
    servers, version = (old, TREE) if servers_are == "last release" else (TREE, old)
    with VersionedCluster(tmp_path, servers, slaves=1, mode=Mode.ELECT, settings=SETTINGS) as found:
        check_client(use_client(version, found.name_servers, "Program"))
        check_commands(use_commands(version, found.name_servers))
        use_console(version, found, tmp_path)


def test_last_release_is_installed_apart_from_this_tree(old: Version) -> None:
    source = "import tandemq, importlib.util as u; print(tandemq.__file__, u.find_spec('tandemq.real.etcd'))"
    place, spec = filled.run([old.interpreter, "-I", "-c", source]).split()
    assert "/build/releases/" in place
    assert spec == "None", "0.1.0 as releases.toml names it has no etcd"


@pytest.mark.parametrize(
    ("setting", "told"), [("registryAddr=etcd://127.0.0.1:2379", "registryAddr"), ("shards=2", "shards")]
)
def test_what_the_last_release_does_not_know_is_refused_at_its_start(
    tmp_path: Path, old: Version, setting: str, told: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"brokerName=a\nstorePathRootDir={tmp_path / 'store'}\n{setting}\n")
    done = subprocess.run(old.command("broker", "-c", file), capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done
    assert told in done.stderr
    assert not (tmp_path / "store" / "commitlog").exists()
