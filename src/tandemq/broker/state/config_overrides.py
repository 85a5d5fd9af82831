"""Settings changed at run time, kept in the store over restarts.

They are in `config/brokerSettings.json`, by key: the value, and the value of the configuration file (or command line)
that it replaces. At the start they take precedence over the file; but if the value in the file differs from the
replaced one, it was changed there since, and the file wins.

Source: docs/decisions/0006-changed-settings.md; RocketMQ Configuration.persist, which rewrites the file.
"""

import logging

from tandemq.broker.state.persistence import Saver
from tandemq.config.files import as_texts, changed
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.storage.json_tables import TableFile

log = logging.getLogger(__name__)
FILE = TableFile("brokerSettings.json")


class ChangedSettings:
    """The changed settings in force."""

    def __init__(self, saver: Saver) -> None:
        """Load the table.

        Raises:
            StoreDamaged: the table cannot be read.
        """
        self._saver = saver
        self.table: dict[str, tuple[str, str]] = {}
        """By key: the value, and the configured value that it replaces."""
        settings = FILE.load(saver.disk).get("settings")
        for key, entry in settings.items() if isinstance(settings, dict) else ():
            if isinstance(entry, dict):
                self.table[key] = (str(entry.get("value", "")), str(entry.get("insteadOf", "")))

    def laid_over(self, config: BrokerConfig) -> BrokerConfig:
        """Return the configured settings with the changes; changes that are no longer valid are dropped and logged."""
        configured = as_texts(config)
        for key, (value, instead_of) in list(self.table.items()):
            if configured.get(key) != instead_of:
                log.warning(
                    "settings: %s=%s, set at run time, is dropped: the configuration was changed to %s",
                    key,
                    value,
                    configured.get(key),
                )
                self._drop(key)
                continue
            try:
                config, _ = changed(config, f"{key}={value}\n")
            except ConfigError as error:
                log.warning("settings: %s=%s, set at run time, is dropped: %s", key, value, error)
                self._drop(key)
                continue
            log.warning("settings: %s=%s, set at run time, overrides %s of the configuration", key, value, instead_of)
        return config

    def _drop(self, key: str) -> None:
        del self.table[key]
        self._saver.later(FILE, self.as_json, is_awaited=False)

    def note(self, before: BrokerConfig, after: BrokerConfig, keys: tuple[str, ...]) -> None:
        """Record the new values of some keys."""
        old, new = as_texts(before), as_texts(after)
        for key in keys:
            _, instead_of = self.table.get(key, ("", old[key]))
            if new[key] == instead_of:
                self.table.pop(key, None)
            else:
                self.table[key] = (new[key], instead_of)
        self._saver.later(FILE, self.as_json)

    def as_json(self) -> dict[str, object]:
        """Return the table in the form of its file."""
        return {"settings": {key: {"value": value, "insteadOf": old} for key, (value, old) in self.table.items()}}
