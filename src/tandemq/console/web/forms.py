"""Fields of forms and of queries: bounded, and checked with errors that name the field."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qs

from tandemq.errors import ConfigError

FORM_BYTES_MAX = 256 << 10
FIELDS_MAX = 1_000
FIELD_CHARACTERS_MAX = 64 << 10
TIME_MS_MAX = 1 << 47
DIGITS_MAX = 20
_WHOLE = re.compile(r"[+-]?[0-9]+")


class Fields:
    """Fields by name; a name may have several values."""

    def __init__(self, values: Mapping[str, list[str]]) -> None:
        """Take the values."""
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Return the first value of a field, without spaces around it; `default` if it is missing.

        Raises:
            ConfigError: it contains the character 0, which databases refuse.
        """
        values = self._values.get(name)
        if values and "\0" in values[0]:
            raise ConfigError(f"{name}: the character 0 is not allowed")
        return values[0].strip() if values else default

    def raw(self, name: str) -> str:
        """Return the first value of a field as it is; "" if it is missing."""
        values = self._values.get(name)
        return values[0] if values else ""

    def lines(self, name: str) -> str:
        """Return the text of several lines as the user has typed it: browsers send CR LF for each line break."""
        return self.raw(name).replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        """Return all values of a field."""
        return list(self._values.get(name, ()))

    def has(self, name: str) -> bool:
        """Return whether a field is present: how a checked box is seen."""
        return name in self._values

    def integer(self, name: str, default: int | None = None, *, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a field as a whole number.

        Raises:
            ConfigError: it is missing without a default, or it is not a number between `low` and `high`.
        """
        text = self.text(name)
        if not text and default is not None:
            return default
        return whole_number(name, text, low, high)

    def time_ms(self, name: str) -> int | None:
        """Return a field as a time, milliseconds since 1970; None if it is empty. Times without a zone are in UTC.

        Raises:
            ConfigError: it is not a time.
        """
        text = self.text(name)
        if not text:
            return None
        if text.isascii() and text.isdecimal():
            return whole_number(name, text, 0, TIME_MS_MAX)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{name}: a time like 2026-05-31T13:00 is expected, not {text[:40]!r}") from None
        found_ms = int((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)
        if not 0 <= found_ms <= TIME_MS_MAX:
            raise ConfigError(f"{name}: {text[:40]} is not between 1970 and 6429")
        return found_ms


def whole_number(name: str, text: str, low: int = 0, high: int = (1 << 63) - 1) -> int:
    """Return the value of a field as a whole number.

    Raises:
        ConfigError: it is not a number between `low` and `high`.
    """
    if _WHOLE.fullmatch(text) is None:
        raise ConfigError(f"{name}: a whole number is expected, not {text[:40]!r}")
    if len(text) > DIGITS_MAX or not low <= int(text) <= high:
        raise ConfigError(f"{name}: {text[:40]} is not between {low} and {high}")
    return int(text)


def parse_fields(data: bytes) -> Fields:
    """Return the fields of a query or of the body of a form.

    Raises:
        ConfigError: they are too many or too long, or not encoded as forms are.
    """
    if len(data) > FORM_BYTES_MAX:
        raise ConfigError(f"the form has {len(data)} bytes; at most {FORM_BYTES_MAX} are allowed")
    try:
        values = parse_qs(data.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise ConfigError("the form cannot be decoded") from error
    for name, found in values.items():
        if max(map(len, found)) > FIELD_CHARACTERS_MAX:
            raise ConfigError(f"{name[:40]}: at most {FIELD_CHARACTERS_MAX} characters are allowed")
    return Fields(values)
