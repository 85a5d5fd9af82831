"""Settings changed while the broker ran, kept in the store over restarts.

They are in `config/brokerSettings.json`, by key: the value, and the value of the configuration file (or command line)
it stands in for. At the start they are laid over the file; but a setting whose value in the file is another one than
it was then has been changed there since, and the file wins.

Source: docs/decisions/0006-changed-settings.md; RocketMQ Configuration.persist, which rewrites the file.
"""

import logging

from tandemq.broker.state.persistence import Saver
from tandemq.config.files import as_texts, changed
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.storage.json_tables import load_table

log = logging.getLogger(__name__)
FILE = "brokerSettings.json"


class ChangedSettings:
    """The changes in force."""

    def __init__(self, saver: Saver) -> None:
        """Load them.

        Raises:
            StoreDamaged: the table cannot be read.
        """
        self._saver = saver
        self.table: dict[str, tuple[str, str]] = {}
        """By key: the value, and the one it stands in for."""
        settings = load_table(saver.disk, FILE).get("settings")
        for key, entry in settings.items() if isinstance(settings, dict) else ():
            if isinstance(entry, dict):
                self.table[key] = (str(entry.get("value", "")), str(entry.get("insteadOf", "")))

    def laid_over(self, config: BrokerConfig) -> BrokerConfig:
        """The file's settings with the changes; those that cannot be any more are dropped, and this is logged."""
        told = as_texts(config)
        for key, (value, instead_of) in list(self.table.items()):
            if told.get(key) != instead_of:
                log.warning(
                    "settings: %s=%s, set while the broker ran, gives way to %s of the configuration",
                    key,
                    value,
                    told.get(key),
                )
                self._drop(key)
                continue
            try:
                config, _ = changed(config, f"{key}={value}\n")
            except ConfigError as error:
                log.warning("settings: %s=%s, set while the broker ran, cannot be any more: %s", key, value, error)
                self._drop(key)
                continue
            log.warning(
                "settings: %s=%s, set while the broker ran, outranks %s of the configuration", key, value, instead_of
            )
        return config

    def _drop(self, key: str) -> None:
        del self.table[key]
        self._saver.later(FILE, self.as_json, is_awaited=False)

    def note(self, before: BrokerConfig, after: BrokerConfig, keys: tuple[str, ...]) -> None:
        """Keep the new values of some keys."""
        old, new = as_texts(before), as_texts(after)
        for key in keys:
            _, instead_of = self.table.get(key, ("", old[key]))
            if new[key] == instead_of:
                self.table.pop(key, None)
            else:
                self.table[key] = (new[key], instead_of)
        self._saver.later(FILE, self.as_json)

    def as_json(self) -> dict[str, object]:
        """The table as its file has it."""
        return {"settings": {key: {"value": value, "insteadOf": old} for key, (value, old) in self.table.items()}}
