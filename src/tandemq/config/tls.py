"""Settings of TLS for clients: those of the node, and above them those of `tls.config.file`.

    node's settings ──┐
    tls.config.file ──┴─► read_tls ─► TlsSettings

As in RocketMQ, the file overrides, keys without meaning in it are ignored, and `tls.server.mode`, `tls.enable` and the
file's own path are not read from it. Only the file has passwords.

Source: docs/reference/compatibility.md, "TLS"; RocketMQ TlsSystemConfig, TlsHelper.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from tandemq.config.java_properties import parse_properties
from tandemq.config.settings import TlsConfig, key_of
from tandemq.config.validation import tls_problems
from tandemq.errors import ConfigError

_NOT_IN_FILE = frozenset({"tls_mode", "tls_file", "tls_enable"})
_PASSWORDS = {"tls.server.keyPassword": "server_password", "tls.client.keyPassword": "client_password"}


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
