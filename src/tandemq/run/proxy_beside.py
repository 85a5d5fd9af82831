"""A proxy beside a broker: `tandemq broker --proxy-port`.

broker ─► child process `tandemq proxy`, with the broker's settings of TLS, users, name servers and interface
broker stops ─► the proxy first, while the broker still answers what is in progress
"""

from dataclasses import fields

from tandemq.config.files import as_text
from tandemq.config.settings import BrokerConfig, ProxyConfig, TlsConfig, key_of
from tandemq.errors import ConfigError
from tandemq.run.restarted_child import RestartedChild

SHARED = ("bind_address", "name_servers", "inner_credentials", "ha_secret_file", "log_format")
"""Settings besides those of TLS that a proxy has from its broker."""


def proxy_settings(config: BrokerConfig, port: int) -> dict[str, str]:
    """Return the settings of a proxy beside a broker, by their keys; `port`: for gRPC clients.

    Raises:
        ConfigError: the broker has no name servers.
    """
    if not config.name_servers:
        raise ConfigError("a proxy finds brokers by name servers, of which none is given", hint="add --namesrv")
    names = [*SHARED, *(item.name for item in fields(TlsConfig))]
    found = {key_of(ProxyConfig, name): as_text(getattr(config, name)) for name in names}
    return found | {
        "grpcServerPort": str(port),
        "authenticationEnabled": as_text(config.checks_users),
        "authorizationEnabled": as_text(config.checks_rights),
    }


class ProxyBeside(RestartedChild):
    """The proxy of a broker."""

    def __init__(self, config: BrokerConfig, port: int) -> None:
        """Start nothing yet. Raises as `proxy_settings`."""
        super().__init__("the proxy", ["proxy"], proxy_settings(config, port))

    def became_ready(self) -> None:
        """Keep a port that was any free one for the next start."""
        self.settings["grpcServerPort"] = self.address.rpartition(":")[2]
