"""TLS of a cluster on this machine: a certificate of the loopback addresses and its authority, given or made.

Made ones come from the program openssl at the first start, and are kept in a directory:

    ca.pem        what clients trust; the authority's key is not kept, so that nothing more can be issued
    server.crt    certificate of all nodes: 127.0.0.1, ::1, localhost
    server.key    its key

Source: docs/guides/testing.md; docs/decisions/0019-openssl-makes-test-certificates.md.
"""

import shutil
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError, NetworkError
from tandemq.real.network.tls import Tls, TlsFiles, TlsLink, client_context, server_context
from tandemq.run.secret import check_private

DIRECTORY_NAME = "tls"
_FILES = ("ca.pem", "server.crt", "server.key")
_HOST = "127.0.0.1"
_FLIGHTS = 4
_SECONDS = 30
_CONFIG = """\
[req]
distinguished_name = name
prompt = no
[name]
CN = TandemQ test authority of one cluster
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign,cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth,clientAuth
subjectAltName = IP:127.0.0.1,IP:::1,DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
_SIGN = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 -extfile made.cnf -extensions server"
_COMMANDS = (
    f"req -x509 -config made.cnf -extensions authority {_KEY} -days 3650 -keyout ca.key -out ca.pem",
    f"req -new -config made.cnf -subj /CN=tandemq-local {_KEY} -keyout server.key -out server.csr",
    f"x509 -req -in server.csr {_SIGN} -out server.crt",
)


def make_certificates(directory: Path) -> None:
    """Make authority, certificate and key, unless the directory has them.

    Raises:
        ConfigError: there is no openssl, or it failed.
    """
    if all((directory / name).is_file() for name in _FILES):
        return
    program = shutil.which("openssl")
    if program is None:
        raise ConfigError("TLS of a local cluster needs the program openssl, which is not installed")
    with tempfile.TemporaryDirectory(prefix="tandemq-tls-") as place:
        made = Path(place)
        (made / "made.cnf").write_text(_CONFIG, encoding="ascii")
        for command in _COMMANDS:
            try:
                subprocess.run(  # noqa: S603  # found on PATH
                    [program, *command.split()], cwd=made, check=True, capture_output=True, timeout=_SECONDS
                )
            except (OSError, subprocess.SubprocessError) as error:
                raw = error.stderr if isinstance(error, subprocess.CalledProcessError) else b""
                output = raw.decode("utf-8", "replace")[-200:]
                raise ConfigError(f"openssl made no certificate: {error} {output}".rstrip()) from error
        directory.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (made / name).chmod(0o600)
            shutil.move(made / name, directory / name)


@dataclass(frozen=True, slots=True)
class ClusterCertificates:
    """Files of all nodes of a cluster: one certificate, its key, and the authority that it comes from."""

    cert: Path
    key: Path
    ca: Path

    @classmethod
    def kept_in(cls, directory: Path) -> "ClusterCertificates":
        """Return the files that `make_certificates` makes."""
        return cls(directory / "server.crt", directory / "server.key", directory / "ca.pem")

    def check(self) -> None:
        """Let a node connect to another one, in memory, as all of the cluster do.

        Raises:
            ConfigError: a file cannot be used, or one end refuses the other.
        """
        check_private("--tls-key", str(self.key))
        files = TlsFiles(str(self.cert), str(self.key), str(self.ca), "", "--tls-cert", "--tls-key", "--tls-ca")
        tls = Tls(lambda: server_context(files, ssl.CERT_REQUIRED), lambda: client_context(files), files)
        try:
            _shake(tls.connect(_HOST), tls.accept())
        except NetworkError as error:
            raise ConfigError(
                f"--tls-cert {self.cert} cannot be used for a cluster on this machine: {error}",
                hint=f"it must be valid for {_HOST}, for servers and clients, and come from --tls-ca",
            ) from error

    def client_tls(self) -> ClientTls:
        """Return the TLS settings for clients of the cluster."""
        return ClientTls(ca_file=str(self.ca))

    def node_settings(self) -> dict[str, str]:
        """Return the settings of a node that closes plain connections, and verifies the nodes that it connects to."""
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": str(self.cert),
            "tls.server.keyPath": str(self.key),
            "tls.client.authServer": "true",
            "tls.client.checkHost": "true",
            "tls.client.trustCertPath": str(self.ca),
        }

    def replication_settings(self) -> dict[str, str]:
        """Return the settings of brokers that replicate over TLS."""
        return {"haTlsCertFile": str(self.cert), "haTlsKeyFile": str(self.key), "haTlsCaFile": str(self.ca)}


def _shake(client: TlsLink, server: TlsLink) -> None:
    for _ in range(_FLIGHTS):
        for sender, receiver in ((client, server), (server, client)):
            data = sender.outgoing()
            if data:
                receiver.receive(data)
