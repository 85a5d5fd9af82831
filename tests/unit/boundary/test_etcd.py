"""A real etcd that requires TLS, a certificate of the client, a user and rights.

The rules of every registry: `test_registry`; servers that answer as a script tells them: tests/unit/real/etcd.
"""

import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tandemq.errors import ConfigError, NotConnected, RemoteError
from tandemq.registry import Create, Done, NodeFound, Read, RegistryRefused, Write, parse_address
from tandemq.run import registry_session
from tandemq.run.registry_session import RegistryClient
from tests.interop.etcd import Etcd

pytestmark = [pytest.mark.system, pytest.mark.services, pytest.mark.timeout(240)]
PASSWORD = "a long one"  # of the test


class SecuredEtcd:
    """One server, with files of its clients."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        for name in ("127.0.0.1", "client.example.org"):
            pair = authority.issue_cert(name)
            pair.cert_chain_pems[0].write_to_path(str(directory / f"{name}.crt"))
            pair.private_key_pem.write_to_path(str(directory / f"{name}.key"))
            (directory / f"{name}.key").chmod(0o600)
        self.password_file = directory / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.password_file.chmod(0o600)
        self.directory = directory
        self.server = Etcd(
            directory / "etcd",
            more=[
                f"--cert-file={directory / '127.0.0.1.crt'}",
                f"--key-file={directory / '127.0.0.1.key'}",
                f"--trusted-ca-file={directory / 'ca.pem'}",
                "--client-cert-auth",
            ],
        )
        self.server.start()
        self._restrict()

    def _restrict(self) -> None:
        """Enable access control: `mq` may use the keys that begin with /apps/tandemq, root all."""
        rights = {"permType": "READWRITE", "key": "L2FwcHMvdGFuZGVtcQ==", "range_end": "L2FwcHMvdGFuZGVtcg=="}
        self._post("user/add", {"name": "root", "password": "root"})
        self._post("role/add", {"name": "root"})
        self._post("user/grant", {"user": "root", "role": "root"})
        self._post("role/add", {"name": "brokers"})
        self._post("role/grant", {"name": "brokers", "perm": rights})
        self._post("user/add", {"name": "mq", "password": PASSWORD})
        self._post("user/grant", {"user": "mq", "role": "brokers"})
        self._post("enable", {})

    def _post(self, method: str, request: dict[str, object]) -> None:
        context = ssl.create_default_context(cafile=str(self.directory / "ca.pem"))
        own = self.directory / "client.example.org"
        context.load_cert_chain(f"{own}.crt", f"{own}.key")
        asking = http.client.HTTPSConnection(self.server.address, context=context, timeout=60)
        asking.request("POST", f"/v3/auth/{method}", json.dumps(request))
        answer = asking.getresponse()
        text = answer.read().decode()
        asking.close()
        assert answer.status == 200, (method, text)

    def address(self, *leave_out: str, prefix: str = "/apps") -> str:
        """Return the address, without some of its parameters."""
        own = self.directory / "client.example.org"
        parameters = {
            "ca": f"{self.directory / 'ca.pem'}",
            "cert": f"{own}.crt",
            "key": f"{own}.key",
            "user": "mq",
            "passwordFile": f"{self.password_file}",
        }
        given = "&".join(f"{key}={value}" for key, value in parameters.items() if key not in leave_out)
        return f"etcd://{self.server.address}{prefix}?{given}"

    def open(self, *leave_out: str, prefix: str = "/apps") -> RegistryClient:
        return RegistryClient(parse_address(self.address(*leave_out, prefix=prefix)))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredEtcd]:
    started = SecuredEtcd(tmp_path_factory.mktemp("secured"))
    yield started
    started.server.kill()


def test_user_with_certificate_and_password_works_below_its_prefix(secured: SecuredEtcd) -> None:
    with secured.open() as client:
        assert client.do(Create("/tandemq/main/x", b"0", ephemeral=True)) == Done(0)
        assert client.do(Write("/tandemq/main/x", b"1", 0)) == Done(1)
        found = client.do(Read("/tandemq/main/x", watch=True))
        assert isinstance(found, NodeFound)
        assert (found.data, found.version) == (b"1", 1)
        refused = client.do(Read("/elsewhere"))
        assert isinstance(refused, RegistryRefused)
        assert "--prefix=true readwrite /apps/tandemq" in refused.reason


def test_client_without_rights_is_told_the_command(secured: SecuredEtcd) -> None:
    with pytest.raises(RemoteError, match=r"permission denied.*etcdctl role grant-permission ROLE"):
        secured.open(prefix="")


def test_client_without_user_is_told_the_parameters(secured: SecuredEtcd) -> None:
    with pytest.raises(RemoteError, match="add user=NAME&passwordFile=FILE to the address"):
        secured.open("user", "passwordFile")


def test_wrong_password_is_refused_until_the_file_is_corrected(secured: SecuredEtcd) -> None:
    secured.password_file.write_text("another\n")
    try:
        with pytest.raises(RemoteError, match="invalid user ID or password"):
            secured.open()
    finally:
        secured.password_file.write_text(f"{PASSWORD}\n")
    secured.open().close()


@pytest.mark.parametrize(
    ("leave_out", "reason"),
    [
        (
            ("cert", "key"),
            "require a certificate of this client|server requires a certificate|certificate, or requires one",
        ),
        (("ca", "cert", "key"), "if it uses TLS, add ca=FILE"),
    ],
)
def test_client_that_etcd_does_not_trust_is_told_why(
    secured: SecuredEtcd, leave_out: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_session, "ANSWER_SECONDS", 3.0)
    with pytest.raises(NotConnected, match=reason):
        secured.open(*leave_out)


def test_secret_files_that_others_can_read_are_refused(secured: SecuredEtcd) -> None:
    for path in (secured.password_file, secured.directory / "client.example.org.key"):
        path.chmod(0o644)
        try:
            with pytest.raises(ConfigError, match="all users have access to it"):
                secured.open()
        finally:
            path.chmod(0o600)
