"""TLS of a cluster on this machine: a test authority and a certificate of the loopback addresses.

They are made by the program openssl at the first start and kept in a directory:

    ca.pem        what clients trust; the authority's key is not kept, so that nothing more can be issued
    server.crt    certificate of all nodes: 127.0.0.1, ::1, localhost
    server.key    its key

Source: docs/guides/testing.md; docs/decisions/0019-openssl-makes-test-certificates.md.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tandemq.config.tls import ClientTls
from tandemq.errors import ConfigError

DIRECTORY_NAME = "tls"
_FILES = ("ca.pem", "server.crt", "server.key")
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
                said = raw.decode("utf-8", "replace")[-200:]
                raise ConfigError(f"openssl made no certificate: {error} {said}".rstrip()) from error
        directory.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            (made / name).chmod(0o600)
            shutil.move(made / name, directory / name)


def client_tls(directory: Path) -> ClientTls:
    """Return what clients of the cluster need."""
    return ClientTls(ca_file=str(directory / "ca.pem"))


def node_settings(directory: Path) -> dict[str, str]:
    """Return the settings of a node that closes plain connections, and verifies the nodes that it connects to."""
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(directory / "server.crt"),
        "tls.server.keyPath": str(directory / "server.key"),
        "tls.client.authServer": "true",
        "tls.client.checkHost": "true",
        "tls.client.trustCertPath": str(directory / "ca.pem"),
    }


def replication_settings(directory: Path) -> dict[str, str]:
    """Return the settings of brokers that replicate over TLS."""
    return {
        "haTlsCertFile": str(directory / "server.crt"),
        "haTlsKeyFile": str(directory / "server.key"),
        "haTlsCaFile": str(directory / "ca.pem"),
    }
