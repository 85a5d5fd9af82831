"""Secret file of replication: one secret per line; a broker proves the first one and accepts all of them.

The file is read again when it changes, so that secrets can be rotated while brokers run. White space around a line,
empty lines and lines that start with # are ignored.
Source: docs/guides/operations.md, "the secret of replication".
"""

import contextlib
import logging
import os
import secrets
import stat
import time
from pathlib import Path
from random import SystemRandom

from tandemq.errors import ConfigError
from tandemq.replication.authentication import SECRET_BYTES_MIN, Keyring

log = logging.getLogger(__name__)
FILE_BYTES_MAX = 64 * 1024
SECRETS_MAX = 8
SECRET_FILE_NAME = "replication.secret"  # noqa: S105  # a file name, not a secret
"""Secret file in the directory of a local cluster."""
LOG_EVERY_S = 60.0
CREATE_HINT = "create one with: umask 077; head -c 32 /dev/urandom | base64 > FILE"


class SecretFile:
    """The present secrets of a file."""

    def __init__(self, path: str) -> None:
        """Read the file for the first time.

        Raises:
            ConfigError: the file cannot be read, is accessible to other users, or has no valid secret.
        """
        self._path = Path(path).expanduser()
        self._state: tuple[int, ...] = ()
        self._logged_s = -LOG_EVERY_S
        self._secrets: tuple[bytes, ...] = ()
        self._read()

    def secrets(self) -> tuple[bytes, ...]:
        """Return the secrets, read again if the file has changed; the previous ones if it cannot be used now."""
        try:
            self._read()
        except ConfigError as error:
            if time.monotonic() - self._logged_s >= LOG_EVERY_S:
                self._logged_s = time.monotonic()
                log.error("replication: still using the previous secrets: %s", error)
        return self._secrets

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                state = (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
                if state == self._state:
                    return
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise self._wrong(os.strerror(error.errno or 0), CREATE_HINT) from error
        _check_mode(f"haSecretFile {self._path}", found.st_mode)
        self._secrets = self._parse(data)
        if self._state:
            log.info("replication: haSecretFile %s read again, %d secrets", self._path, len(self._secrets))
        self._state = state

    def _parse(self, data: bytes) -> tuple[bytes, ...]:
        if len(data) > FILE_BYTES_MAX:
            raise self._wrong(f"it is larger than {FILE_BYTES_MAX} bytes", CREATE_HINT)
        lines = [line.strip() for line in data.splitlines()]
        found = tuple(line for line in lines if line and not line.startswith(b"#"))
        if not found:
            raise self._wrong("there is no secret in it", CREATE_HINT)
        if len(found) > SECRETS_MAX:
            raise self._wrong(f"it has {len(found)} secrets; the maximum is {SECRETS_MAX}", "remove old ones")
        if any(len(secret) < SECRET_BYTES_MIN for secret in found):
            raise self._wrong(f"a secret has less than {SECRET_BYTES_MIN} bytes and could be guessed", CREATE_HINT)
        return found

    def _wrong(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"haSecretFile {self._path}: {what}", hint=hint)


def check_private(key: str, path: str) -> None:
    """Check that a file is accessible to its owner only; log a warning if its group has access.

    Raises:
        ConfigError: other users have access, or the file does not exist.
    """
    try:
        mode = Path(path).expanduser().stat().st_mode
    except OSError as error:
        raise ConfigError(f"{key} {path}: {os.strerror(error.errno or 0)}") from error
    _check_mode(f"{key} {path}", mode)


def _check_mode(what: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{what}: it is not a regular file")
    if mode & stat.S_IRWXO:
        raise ConfigError(
            f"{what}: all users have access to it (mode {mode & 0o777:o})", hint="chmod 600 makes it private"
        )
    if mode & stat.S_IRWXG:
        log.warning("replication: %s: its group has access to it (mode %o)", what, mode & 0o777)


def read_first_line(key: str, path: str) -> str:
    """Return the first line of a private file, such as a password.

    Raises:
        ConfigError: see `check_private`, or the file cannot be read, or the line is empty.
    """
    check_private(key, path)
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} {path}: {error}") from error
    if not lines or not lines[0]:
        raise ConfigError(f"{key} {path}: its first line is empty")
    return lines[0]


def open_keyring(path: str) -> Keyring | None:
    """Open the keyring of a `haSecretFile`; None if the setting is empty.

    Raises:
        ConfigError: see `SecretFile`.
    """
    return Keyring(SecretFile(path).secrets, SystemRandom()) if path else None


def make_secret_file(path: Path) -> Path:
    """Create a file of mode 600 with a random secret, unless the file exists; returns the path."""
    if not path.exists():
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(f"{secrets.token_hex(32)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path
