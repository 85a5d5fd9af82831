"""Settings of TLS: of brokers and name servers, and of clients.

    node's settings ──┐
    tls.config.file ──┴─► read_tls ─► TlsSettings        a program's arguments, or such a file ─► ClientTls

As in RocketMQ, the file overrides, keys without meaning in it are ignored, and `tls.server.mode`, `tls.enable` and the
file's own path are not read from it. Only the file has passwords.

Source: docs/reference/compatibility.md, "TLS"; RocketMQ TlsSystemConfig, TlsHelper.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from tandemq.config.java_properties import parse_properties
from tandemq.config.settings import TlsConfig, key_of
from tandemq.config.validation import tls_problems
from tandemq.errors import ConfigError

_NOT_IN_FILE = frozenset({"tls_mode", "tls_file", "tls_enable"})
_PASSWORDS = {"tls.server.keyPassword": "server_password", "tls.client.keyPassword": "client_password"}
_CLIENT_KEYS = {
    "tls.client.trustCertPath": "ca_file",
    "tls.client.certPath": "cert_file",
    "tls.client.keyPath": "key_file",
    "tls.client.keyPassword": "key_password",
    "tls.client.authServer": "verify",
    "tls.client.checkHost": "check_host",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of a client: trusted authorities and its own certificate, as PEM files."""

    ca_file: str = ""
    """Trusted authorities; "": those of the system. Java: `tls.client.trustCertPath`."""
    cert_file: str = ""
    """Certificate of this client, for servers that require one. Java: `tls.client.certPath`."""
    key_file: str = ""
    """Its private key. Java: `tls.client.keyPath`."""
    key_password: str = field(default="", repr=False)
    """Password of the key. Java: `tls.client.keyPassword`."""
    verify: bool = True
    """Whether the server's certificate must come from a trusted authority. Java: `tls.client.authServer`, by default
    false."""
    check_host: bool = True
    """Whether the server's certificate must contain the host that the client connects to. Java never checks."""

    def __post_init__(self) -> None:
        """Check that the settings fit together.

        Raises:
            ConfigError: certificate or key is missing, or authorities are given that nothing is verified with.
        """
        if bool(self.cert_file) != bool(self.key_file):
            missing, given = ("cert_file", "key_file") if self.key_file else ("key_file", "cert_file")
            raise ConfigError(f"{given} without {missing}: a client's certificate and its key belong together")
        if self.ca_file and not self.verify:
            raise ConfigError(
                "ca_file has no effect without verification", hint="leave out ca_file, or verify the server"
            )


def read_client_tls(text: str) -> ClientTls:
    """Return the settings in a properties file with Java's names (`tls.properties`); others are ignored.

    Servers are verified unless `tls.client.authServer` is false; Java's default is the opposite. Without verification
    the authorities are ignored, as by Java.

    Raises:
        ConfigError: settings contradict each other.
    """
    values: dict[str, Any] = {}
    for given in parse_properties(text):
        name = _CLIENT_KEYS.get(given.key)
        if name in ("verify", "check_host"):
            values[name] = given.value.lower() != "false"
        elif name is not None:
            values[name] = given.value
    if not values.get("verify", True):
        values.pop("ca_file", None)
    return ClientTls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings(TlsConfig):
    """The settings in force, with passwords; never shown."""

    server_password: str = ""
    client_password: str = ""

    @property
    def serves(self) -> bool:
        """Whether clients may use TLS."""
        return self.tls_mode != "disabled" and (self.tls_test_mode or bool(self.tls_cert_file))

    @property
    def connects(self) -> bool:
        """Whether the node uses TLS on connections that it opens."""
        return self.tls_enable == "true" or (not self.tls_enable and self.tls_mode == "enforcing")


def read_tls(config: TlsConfig, text: str | None) -> TlsSettings:
    """Return the settings of TLS in force.

    Args:
        config: settings of the node.
        text: content of `tls.config.file`, None if there is none.

    Raises:
        ConfigError: a value is invalid, or settings contradict each other.
    """
    names = {item.metadata["key"]: item for item in fields(TlsConfig) if item.name not in _NOT_IN_FILE}
    values: dict[str, Any] = {item.name: getattr(config, item.name) for item in fields(TlsConfig)}
    for given in parse_properties(text or ""):
        item = names.get(given.key)
        if item is not None:
            # Like Java's Boolean.parseBoolean.
            values[item.name] = given.value.lower() == "true" if item.type is bool else given.value
        elif given.key in _PASSWORDS:
            values[_PASSWORDS[given.key]] = given.value
    found = TlsSettings(**values)
    found = replace(found, tls_client_auth=found.tls_client_auth.lower())
    wrong = [f"{key_of(TlsSettings, name)}: {what}" for name, what in tls_problems(found)]
    if found.tls_mode == "enforcing" and not found.serves:
        wrong.append("tls.server.mode: enforcing needs tls.server.certPath and tls.server.keyPath")
    for cert, key in (("tls_cert_file", "tls_key_file"), ("tls_client_cert_file", "tls_client_key_file")):
        if bool(getattr(found, cert)) != bool(getattr(found, key)):
            wrong.append(f"{key_of(TlsSettings, cert)} and {key_of(TlsSettings, key)} belong together; one is missing")
    if wrong:
        raise ConfigError("\n".join(wrong))
    return found
