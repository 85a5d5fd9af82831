"""The file of HTTP headers for pushes of metrics: `Name: value` on each line, such as a token.

Empty lines and lines that start with # are ignored. The file is read again when it changes, so that tokens can be
rotated while a node runs.
Source: docs/guides/monitoring.md, "Push to a collector".
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tandemq.errors import ConfigError
from tandemq.run.secret import check_private

KEY = "metricsHttpExporterHeaderFile"
FILE_BYTES_MAX = 64 * 1024
HEADERS_MAX = 32
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}\Z")
_VALUE = re.compile(r"[ -~]*\Z")
_OURS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "user-agent",
    }
)


class HeaderFile:
    """The present headers of a file; none without one."""

    def __init__(self, path: str) -> None:
        """Read the file for the first time; "" for none.

        Raises:
            ConfigError: see `headers`.
        """
        self._path = Path(path).expanduser() if path else None
        self._state: tuple[int, ...] = ()
        self._headers: Mapping[str, str] = {}
        self.headers()

    def headers(self) -> Mapping[str, str]:
        """Return the headers, read again if the file has changed.

        Raises:
            ConfigError: the file cannot be read, is accessible to all users, or has a line that is not a header.
        """
        if self._path is None:
            return self._headers
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
                if state != self._state:
                    check_private(KEY, str(self._path))
                    self._headers = self._parse(file.read(FILE_BYTES_MAX + 1))
                    self._state = state
        except OSError as error:
            raise ConfigError(f"{KEY} {self._path}: {os.strerror(error.errno or 0)}") from error
        return self._headers

    def _parse(self, data: bytes) -> dict[str, str]:
        if len(data) > FILE_BYTES_MAX:
            raise self._wrong(f"it is larger than {FILE_BYTES_MAX} bytes")
        found: dict[str, str] = {}
        for number, line in enumerate(data.decode("latin-1").splitlines(), start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            name, colon, value = (part.strip() for part in text.partition(":"))
            # A line may be a secret: the error does not show it.
            if not colon or not _NAME.match(name) or not _VALUE.match(value):
                raise self._wrong(f"line {number} is not a header; write Name: value, in ASCII")
            if name.lower() in _OURS:
                raise self._wrong(f"line {number}: {name} is set by TandemQ; remove the line")
            found[name] = value
        if len(found) > HEADERS_MAX:
            raise self._wrong(f"it has {len(found)} headers; the maximum is {HEADERS_MAX}")
        return found

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{KEY} {self._path}: {what}")
