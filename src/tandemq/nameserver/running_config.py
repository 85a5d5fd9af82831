"""The name server's settings in force, shared by its parts.

Owner: the name server's node; requests of operators change it. Source: RocketMQ UPDATE_NAMESRV_CONFIG.
"""

from tandemq.config.files import changed
from tandemq.config.settings import NameServerConfig


class RunningConfig:
    """Settings that an operator may change while the name server runs."""

    __slots__ = ("present",)

    def __init__(self, config: NameServerConfig) -> None:
        """Start with the settings from file and command line."""
        self.present = config
        """The settings in force."""

    def update(self, text: str) -> tuple[str, ...]:
        """Apply `key=value` lines and return the keys whose value changed.

        Raises:
            ConfigError: a line is not allowed or the result is inconsistent; nothing changed.
        """
        self.present, keys = changed(self.present, text)
        return keys
