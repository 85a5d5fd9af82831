"""Selection of messages by message key, unique key or property.

A message is selected if it has one of the values. A copy of it in a retry or dead letter topic, or in the topic of
delayed messages, has the same values; with `topics` it counts as a message of the topic that it names as its own.

Source: docs/guides/dataset.md, "Remove messages".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandemq.errors import ConfigError
from tandemq.model.message import KEY_SEPARATOR, KEYS, UNIQ_KEY, decode_properties
from tandemq.spark.sources.log.ranges import REMOVED

ORIGINS = ("REAL_TOPIC", "RETRY_TOPIC")
"""Properties that name the topic to which a copy in another topic belongs."""
COLUMNS = ["topic", "properties", "verdict"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Values of the messages to select.

    Raises:
        ConfigError: there is no value, or an empty one.
    """

    keys: tuple[str, ...] = ()
    """Message keys: one word of the property KEYS."""
    unique_keys: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()
    """Name and value."""
    topics: tuple[str, ...] = ()
    """Messages of these topics only; () for all."""

    def __post_init__(self) -> None:
        """Check the values."""
        if not self.values:
            raise ConfigError("nothing is selected", hint="give a message key, a unique key or a property")
        if not all(self.values) or not all(name for name, _ in self.properties):
            raise ConfigError("a key or property without a value selects nothing", hint="give a value")
        for key in self.keys:
            if KEY_SEPARATOR in key:
                raise ConfigError(
                    f"the key {key!r} is several keys", hint="a space separates keys: give one after the other"
                )

    @property
    def values(self) -> tuple[str, ...]:
        """All values."""
        return (*self.keys, *self.unique_keys, *(value for _, value in self.properties))

    def digest(self) -> dict[str, Any]:
        """Return the selection for reports: a SHA-256 in place of each value."""
        return {
            "keys": [_hash(key) for key in self.keys],
            "uniqueKeys": [_hash(key) for key in self.unique_keys],
            "properties": [{"name": name, "value": _hash(value)} for name, value in self.properties],
            "topics": list(self.topics),
        }

    def matches(self, batch: Any) -> Any:
        """Return which rows are selected messages, as a boolean Arrow array. `batch`: with COLUMNS."""
        texts = batch.column("properties")
        found = np.zeros(batch.num_rows, dtype=bool)
        for row in np.flatnonzero(_contain(texts, self.values)).tolist():
            if batch.column("verdict")[row].as_py() != REMOVED:
                found[row] = self._is_selected(
                    batch.column("topic")[row].as_py(), decode_properties(texts[row].as_py())
                )
        return pa.array(found)

    def _is_selected(self, topic: str | None, properties: Mapping[str, str]) -> bool:
        if self.topics and not {topic, *(properties.get(name) for name in ORIGINS)} & set(self.topics):
            return False
        return (
            not set(self.keys).isdisjoint(properties.get(KEYS, "").split(KEY_SEPARATOR))
            or properties.get(UNIQ_KEY) in self.unique_keys
            or any(properties.get(name) == value for name, value in self.properties)
        )

    def doubtful(self, batch: Any) -> Any:
        """Return which rows are damage whose bytes contain a value, as a boolean array. `batch`: also with `body`."""
        verdict = batch.column("verdict")
        is_damage = pc.fill_null(pc.not_equal(verdict, REMOVED), fill_value=False).to_numpy(zero_copy_only=False)
        if not is_damage.any():
            return is_damage
        return is_damage & _contain(batch.column("body"), self.values)


def _contain(column: Any, values: Sequence[str]) -> Any:
    """Return which texts or bytes contain one of the values, as a numpy array."""
    found = [pc.match_substring(column, value) for value in values]
    return pc.fill_null(reduce(pc.or_, found), fill_value=False).to_numpy(zero_copy_only=False)


def _hash(value: str) -> str:
    return sha256(value.encode()).hexdigest()
