"""`tandemq console` at a cluster that admits clients with a certificate only, seen through its API."""

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tandemq.config.samples import ON_ANY_DISK
from tandemq.config.tls import ClientTls
from tandemq.console.access import passwords
from tandemq.console.access.accounts import Accounts, ConsoleRole
from tandemq.console.access.tokens import ApiTokens
from tandemq.console.services import wall_ms
from tandemq.groupdb.audit import Actor
from tandemq.groupdb.database import GroupDatabase
from tandemq.run.children import Child, ChildCluster, console_child
from tests.blackbox.certificates import Authority
from tests.blackbox.conftest import StartNameServer
from tests.blackbox.pair import Start
from tests.blackbox.programs import wait_until
from tests.blackbox.test_client_tls import settings
from tests.blackbox.test_tls_of_our_client import is_registered
from tests.spec import spec


class Api:
    """A program that uses a console's API."""

    def __init__(self, address: str, token: str) -> None:
        self._base = f"http://{address}/api/v1"
        self._token = token

    def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)


def make_token(url: str) -> str:
    """Make a token of an admin in a database."""
    with GroupDatabase(url) as database, pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "_COST", 2)
        if not Accounts(database).users():
            Accounts(database).add("ada", ConsoleRole.ADMIN, "correct horse", Actor("test"), 1)
        return ApiTokens(database).create("ada", "test", ConsoleRole.ADMIN, 1, Actor("test"), wall_ms())[0]


@contextmanager
def console(directory: Path, name_servers: str, *tls: str) -> Iterator[Api]:
    """Run a console with options of TLS; the token is that of an admin."""
    url = f"sqlite:///{directory / 'console.db'}"
    token = make_token(url)
    words = [*tls, "console", "--port", "0", "--namesrv", name_servers, "--database", url]
    child = Child("console", directory, lambda: words)
    child.start()
    try:
        yield Api(child.address, token)
    finally:
        assert child.stop(), child.last_lines()


@spec("C10")
def test_console_works_at_a_cluster_that_requires_certificates(
    start: Start, authority: Authority, start_name_server: StartNameServer, tmp_path: Path
) -> None:
    cert, key = authority.issue("client")
    ca = str(authority.ca_file)
    names = start_name_server(tls_client_auth="require", tls_verify_clients=True, tls_ca_file=ca)
    required = {"tls.server.need.client.auth": "require", "tls.server.authClient": "true"}
    own = {"tls.server.trustCertPath": ca}
    own |= {"tls.client.authServer": "true", "tls.client.trustCertPath": ca, "namesrvAddr": names.address}
    own |= {"tls.client.certPath": cert, "tls.client.keyPath": key}
    start("broker", **settings(authority, "enforcing", **required, **own))
    trust = ClientTls(ca_file=ca, cert_file=cert, key_file=key)
    wait_until(lambda: is_registered(names.address, trust), "the broker is registered")

    with console(tmp_path, names.address, "--tls-ca", ca, "--tls-cert", cert, "--tls-key", key) as api:
        found = api.call("GET", "/cluster")
        assert [one["answers"] for group in found["groups"] for one in group["members"]] == [True]
        api.call("POST", "/topics", {"name": "Orders", "queues": 1})
        sent = api.call("POST", "/topics/Orders/messages", {"body": "hello"})
        path = f"/topics/Orders/queues/{sent['broker']}/{sent['queue']}/messages/{sent['offset']}"
        assert api.call("GET", path)["body"] == "hello"
        assert [one["name"] for one in api.call("GET", "/topics?q=Orders")["items"]] == ["Orders"]

    with console(tmp_path, names.address, "--tls-ca", ca) as api:
        found = api.call("GET", "/cluster")
        assert found["level"] == "bad" and "The cluster does not answer" in found["sentences"][0]


def test_console_of_a_local_cluster_ignores_the_tls_of_commands(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tandemq up --console` by an operator whose environment has the authority of another cluster."""
    monkeypatch.setenv("TANDEMQ_TLS_CA", str(authority.ca_file))
    with ChildCluster(tmp_path, groups=1, slaves=0, settings=ON_ANY_DISK) as cluster:
        url = f"sqlite:///{tmp_path / 'groups.db'}"
        token = make_token(url)
        child = console_child(cluster, 0)
        child.start()
        try:
            found = Api(child.address, token).call("GET", "/cluster")
        finally:
            assert child.stop(), child.last_lines()
    assert [one["answers"] for group in found["groups"] for one in group["members"]] == [True]
