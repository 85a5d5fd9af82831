"""The file of credentials of the metrics port: each line is a token, or `user:password`; one of them is needed.

    a line with a token       Authorization: Bearer TOKEN          Prometheus: authorization.credentials_file
    a line user:password      Authorization: Basic …               Prometheus: basic_auth

Empty lines and lines that start with # are ignored. The file is read again when it changes, so that tokens can be
rotated while a node runs; while it cannot be used, the previous ones hold.

Source: docs/guides/monitoring.md.
"""

import logging
import os
import re
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from tandemq.errors import ConfigError
from tandemq.run.secret import check_private

log = logging.getLogger(__name__)
KEY = "metricsCredentialsFile"
FILE_BYTES_MAX = 64 * 1024
CREDENTIALS_MAX = 32
SECRET_CHARACTERS_MIN = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*\Z")
_USER = re.compile(r"[!-9;-~]{1,64}\Z")
_PASSWORD = re.compile(r"[!-~]+\Z")


class MetricsCredentials:
    """The present credentials of a file."""

    def __init__(self, path: str) -> None:
        """Read the file for the first time.

        Raises:
            ConfigError: it cannot be read, is accessible to all users, or has no valid credentials.
        """
        self._path = Path(path).expanduser()
        self._state: tuple[int, ...] = ()
        self._digests: Sequence[bytes] = ()
        self._fault = ""
        self._read()

    def admit(self, authorization: str) -> bool:
        """Whether the header `Authorization` of a request has one of the credentials; takes the same time if not."""
        try:
            self._read()
            self._fault = ""
        except ConfigError as error:
            if str(error) != self._fault:
                self._fault = str(error)
                log.error("metrics: still using the previous credentials: %s", error)
        scheme, _, given = authorization.partition(" ")
        digest = _digest(scheme, given.strip())
        return sum([compare_digest(digest, known) for known in self._digests]) > 0

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
                if state == self._state:
                    return
                check_private(KEY, str(self._path))
                self._digests = self._parse(file.read(FILE_BYTES_MAX + 1))
        except OSError as error:
            raise self._wrong(os.strerror(error.errno or 0)) from error
        self._state = state

    def _parse(self, data: bytes) -> list[bytes]:
        if len(data) > FILE_BYTES_MAX:
            raise self._wrong(f"it is larger than {FILE_BYTES_MAX} bytes")
        found = []
        for number, line in enumerate(data.decode("latin-1").splitlines(), start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            user, colon, password = text.partition(":")
            # A line is a secret: the error does not show it.
            if not (_USER.match(user) and _PASSWORD.match(password) if colon else _TOKEN.match(text)):
                raise self._wrong(f"line {number} is neither a token nor user:password")
            if len(password if colon else text) < SECRET_CHARACTERS_MIN:
                raise self._wrong(
                    f"line {number} could be guessed: at least {SECRET_CHARACTERS_MIN} characters are needed"
                )
            found.append(_digest("basic", b64encode(text.encode()).decode()) if colon else _digest("bearer", text))
        if not 1 <= len(found) <= CREDENTIALS_MAX:
            raise self._wrong(f"it has {len(found)} credentials; 1 to {CREDENTIALS_MAX} are expected")
        return found

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(
            f"{KEY} {self._path}: {what}",
            hint="create a token with: umask 077; head -c 32 /dev/urandom | base64 > FILE",
        )


def _digest(scheme: str, given: str) -> bytes:
    return sha256(f"{scheme.lower()} {given}".encode(errors="replace")).digest()
